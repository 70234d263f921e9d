"""inference.InferParameter -> values: a map of five types, of which each key has its own. Contract: Open Inference V2
over gRPC, with Triton's extensions.

Source: Triton's gRPC server; the texts are its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from tensorgate.adapters.open_inference.parameters import sequence_id_text
from tensorgate.gateway.contract.errors import InvalidArgument
from tensorgate.gateway.contract.tensor import ParameterValue

EMPTY_FINAL: Final = "triton_enable_empty_final_response"
"""Asks a stream to say when a decoupled model has said everything. Some send it with every call."""
FINAL: Final = "triton_final_response"
"""Whether an answer of a stream is the last one."""
FIELD_OF: Final[Mapping[type, str]] = {
    bool: "bool_param",
    int: "int64_param",
    float: "double_param",
    str: "string_param",
}
"""The type of a custom parameter's value -> its field in a message."""

_CUSTOM: Final = ("int64_param", "bool_param", "string_param")
_RESERVED: Final[Mapping[str, tuple[str, ...]]] = {
    "sequence_id": ("int64_param", "string_param"),
    "sequence_start": ("bool_param",),
    "sequence_end": ("bool_param",),
    "priority": ("int64_param", "uint64_param"),
    "timeout": ("int64_param",),
    EMPTY_FINAL: ("bool_param",),
}
"""Parameters that the server consumes, and the types that each may have."""
_NOT_NEGATIVE: Final = ("priority", "timeout")


@dataclass(frozen=True, slots=True)
class V2StreamForm:
    """What a request of a stream says of its replies: `ends` asks for a message after a decoupled model's last answer,
    which names the version as the request did.
    """

    ends: bool
    version: str


def read_parameters(items: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, ParameterValue]]:
    """A request's parameters -> the reserved ones and the custom ones. Raises InvalidArgument, Unsupported."""
    reserved: dict[str, Any] = {}
    custom: dict[str, ParameterValue] = {}
    for key, item in items.items():
        if allowed := _RESERVED.get(key):
            reserved[key] = _checked(key, _value(item, key, allowed))
        elif key.startswith("triton_"):
            raise InvalidArgument(
                "parameter keys starting with 'triton_' are reserved for Triton usage. Only the following keys "
                f"starting with 'triton_' are allowed: {EMPTY_FINAL}"
            )
        elif item.WhichOneof("parameter_choice") == "double_param":
            custom[key] = item.double_param
        else:
            custom[key] = _value(item, key, _CUSTOM)
    return reserved, custom


def _checked(key: str, value: Any) -> Any:
    if key == "sequence_id":
        # an int64 carries an id of 64 bits without a sign, as clients in C++ send it
        return value % 2**64 if type(value) is int else sequence_id_text(value)
    if key in _NOT_NEGATIVE and value < 0:
        raise InvalidArgument(f"invalid value for '{key}', expected value >= 0.")
    return value


def choice(item: Any, allowed: tuple[str, ...], complaint: str, end: str = ".") -> Any:
    """The value of a parameter, which must be of one of these types."""
    found = item.WhichOneof("parameter_choice")
    if found not in allowed:
        raise InvalidArgument(f"{complaint}, expected {_one_of(allowed)}{end}")
    return getattr(item, found)


def _value(item: Any, key: str, allowed: tuple[str, ...]) -> Any:
    return choice(item, allowed, f"invalid value type for '{key}' parameter")


def _one_of(words: tuple[str, ...]) -> str:
    """a; a or b; a, b, or c"""
    if len(words) < 3:
        return " or ".join(words)
    return f"{', '.join(words[:-1])}, or {words[-1]}"


# --------------------------------------------------------------------------------------------------- of single tensors


def region_of(parameters: Mapping[str, Any], tensor: str) -> tuple[str, int, int] | None:
    """Region, offset and bytes of a tensor that is or shall be in shared memory. Raises InvalidArgument."""
    if "shared_memory_region" not in parameters:
        return None
    region = _of_tensor(parameters, "shared_memory_region", "string_param", tensor)
    if "shared_memory_byte_size" not in parameters:
        raise InvalidArgument(
            "'shared_memory_byte_size' must be specified along with 'shared_memory_region' parameter for tensor "
            f"'{tensor}'"
        )
    byte_size = _of_tensor(parameters, "shared_memory_byte_size", "int64_param", tensor)
    offset = 0
    if "shared_memory_offset" in parameters:
        offset = _of_tensor(parameters, "shared_memory_offset", "int64_param", tensor)
    if byte_size < 0 or offset < 0:
        raise InvalidArgument(f"Invalid offset + byte size for shared memory region: '{region}'")
    return region, offset, byte_size


def top_k_of(parameters: Mapping[str, Any]) -> int:
    """How many of the best classes an output shall have; 0: the output itself. Raises InvalidArgument."""
    if "classification" not in parameters:
        return 0
    complaint = "invalid value type for 'classification' parameter"
    top_k: int = choice(parameters["classification"], ("int64_param",), complaint, end="")
    if top_k <= 0:
        raise InvalidArgument("invalid value for 'classification' parameter, expected >= 0")
    return top_k


def _of_tensor(parameters: Mapping[str, Any], key: str, wanted: str, tensor: str) -> Any:
    return choice(parameters[key], (wanted,), f"invalid value type for '{key}' parameter for tensor '{tensor}'")

"""Members of Open Inference V2's JSON bodies, each of the type that it must have, or Triton's words for what is wrong
with it; and a request's parameters: those that the server consumes, and the custom ones, which go to the model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, NoReturn

from tensorgate.adapters.json.body import ARRAY, OBJECT, as_double
from tensorgate.gateway.contract.canonical import Sequence
from tensorgate.gateway.contract.errors import InvalidArgument, Unsupported
from tensorgate.gateway.contract.tensor import ParameterValue

_INT64_MAX: Final = 2**63 - 1
_MAX_SEQUENCE_ID: Final = 128
_MAX_TENSORS: Final = 4096


def fields_of(value: Any) -> list[str]:
    """The keys of an object; none, if the value is no object."""
    return [*value] if isinstance(value, OBJECT) else []


def member(value: Any, fields: list[str], key: str) -> Any:
    """A required member.

    `fields` are the object's keys: to ask simdjson for one that is absent costs an error.
    """
    if key not in fields:
        raise InvalidArgument(f"Unable to parse '{key}': attempt to access non-existing object member '{key}'")
    return value[key]


WRONG_TYPE: Final[Mapping[str, str]] = {
    "boolean": "attempt to access JSON non-boolean as boolean",
    "unsigned": "attempt to access JSON non-unsigned-integer as unsigned-integer",
    "signed": "attempt to access JSON non-signed-integer as signed-integer",
    "double": "attempt to access JSON non-number as double",
    "string": "attempt to access JSON non-string as string",
    "array": "attempt to access JSON non-array as array",
}
"""What is said of a value of another type; the member that has it stands before."""


def text(value: Any, what: str) -> str:
    return value if type(value) is str else _refuse(what, "string")


def boolean(value: Any, what: str) -> bool:
    return value if type(value) is bool else _refuse(what, "boolean")


def unsigned(value: Any, what: str) -> int:
    return value if type(value) is int and 0 <= value < 2**64 else _refuse(what, "unsigned")


def array(value: Any, what: str) -> Any:
    return value if isinstance(value, ARRAY) else _refuse(what, "array")


def _refuse(what: str, wanted: str) -> NoReturn:
    raise InvalidArgument(f"{what}: {WRONG_TYPE[wanted]}" if what else WRONG_TYPE[wanted])


def short_array(value: Any, what: str) -> Any:
    """An array whose elements are read one by one, each for microseconds; no model has as many tensors as the bound."""
    if len(array(value, what)) > _MAX_TENSORS:
        raise InvalidArgument(f"{what}: more than {_MAX_TENSORS} elements")
    return value


# ---------------------------------------------------------------------------------------------------------- parameters


def read_parameters(value: Any) -> tuple[dict[str, Any], dict[str, ParameterValue]]:
    """A request's parameters -> the reserved ones and the custom ones. Raises InvalidArgument, Unsupported."""
    if not isinstance(value, OBJECT):
        raise InvalidArgument("failed to get request params.: attempt to get members for non-object")
    reserved: dict[str, Any] = {}
    custom: dict[str, ParameterValue] = {}
    for key, item in value.items():
        if read := _RESERVED.get(key):
            reserved.setdefault(key, read(item, f"Unable to parse '{key}'"))
        elif key.startswith("triton_"):
            raise InvalidArgument(
                "parameter keys starting with 'triton_' are reserved for Triton usage and should not be specified."
            )
        else:
            custom.setdefault(key, custom_parameter(key, item))
    return reserved, custom


def custom_parameter(key: str, value: Any) -> ParameterValue:
    """A custom parameter: string, boolean, double, or an integer of 64 bits (a larger one becomes a double).

    Raises InvalidArgument.
    """
    if type(value) is int:
        return value if -_INT64_MAX - 1 <= value <= _INT64_MAX else as_double(value)
    if type(value) is str or type(value) is bool or type(value) is float:
        return value
    raise InvalidArgument(f"parameter '{key}' has invalid type. It should be either 'int', 'bool', or 'string'.")


def _sequence_id(value: Any, what: str) -> int | str:
    if type(value) is int and 0 <= value < 2**64:
        return value
    return sequence_id_text(text(value, what))


def sequence_id_text(value: str) -> str:
    """A sequence's id that is no number. Raises Unsupported."""
    if len(value.encode()) > _MAX_SEQUENCE_ID:
        raise Unsupported(f"string correlation ID cannot be longer than {_MAX_SEQUENCE_ID} characters")
    return value


_RESERVED: Final[Mapping[str, Callable[[Any, str], Any]]] = {
    "sequence_id": _sequence_id,
    "sequence_start": boolean,
    "sequence_end": boolean,
    "priority": unsigned,
    "timeout": unsigned,
    "binary_data_output": boolean,
}


def sequence_of(reserved: Mapping[str, Any]) -> Sequence | None:
    """Which sequence a request belongs to; with an id of 0 or "" to none, but models may see the other two."""
    sequence_id = reserved.get("sequence_id", 0)
    start, end = reserved.get("sequence_start", False), reserved.get("sequence_end", False)
    return Sequence(sequence_id, start, end) if sequence_id or start or end else None

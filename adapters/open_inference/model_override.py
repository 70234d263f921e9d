"""JSON of Triton's ModelConfig, as a caller sends it with a load -> the model's entry in the YAML's terms.

Numbers may stand in quotes, as protobuf writes them. What has no equivalent here is passed over, so that a client may
send back the whole configuration that it read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import orjson

from tensorgate.adapters.instance_groups import together

_BACKENDS: Final = {"onnxruntime": "onnx", "onnxruntime_onnx": "onnx", "python": "python"}
_STRING: Final = "TYPE_STRING"


def translate(text: str, plain: Mapping[str, Any]) -> Mapping[str, Any]:
    """The text, and the plain form of the model's entry in the YAML -> that form, with what the text says in its place.

    Raises ValueError.
    """
    try:
        config = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise ValueError(f"the configuration is not JSON: {error}") from None
    if not isinstance(config, dict):
        raise ValueError("the configuration is not a JSON object")
    changed = dict(plain)
    try:
        for key, change in _CHANGES.items():
            if config.get(key) not in (None, "", [], {}):
                change(changed, config[key])
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"the configuration's '{key}' has a wrong type or lacks something: {error}") from None
    return changed


def _integer(value: Any) -> int:
    if type(value) is int or type(value) is str:
        return int(value)
    raise TypeError(f"{value!r} is not an integer")


def _backend(plain: dict[str, Any], value: Any) -> None:
    name = _BACKENDS.get(value)
    if name is None or plain.setdefault("backend", name) != name:
        raise ValueError(f"the model cannot be computed by '{value}'")


def _versions(plain: dict[str, Any], policy: Any) -> None:
    ((kind, detail),) = policy.items()
    if kind == "specific":
        plain["versions"] = [_integer(version) for version in detail["versions"]]
    elif kind == "latest":
        plain["versions"] = {"latest": _integer(detail.get("num_versions", 1))}
    elif kind == "all":
        plain["versions"] = "all"
    else:
        raise KeyError(kind)


def _batch(plain: dict[str, Any], value: Any) -> None:
    plain["max_batch_size"] = _integer(value)


def _instances(plain: dict[str, Any], groups: Any) -> None:
    """Groups that name their GPUs say where the model is; others, how many copies there are where it is."""
    counts = [_integer(group.get("count") or 1) for group in groups]
    named = [[f"cuda:{_integer(gpu)}" for gpu in group.get("gpus") or ()] for group in groups]
    if all(named):
        plain |= together(zip(named, counts, strict=True))
    else:
        plain["instances"] = sum(counts)


def _queue(plain: dict[str, Any], batching: Any) -> None:
    plain["max_queue_delay_us"] = _integer(batching.get("max_queue_delay_microseconds") or 0)


def _parameters(plain: dict[str, Any], parameters: Any) -> None:
    plain["parameters"] = {key: str(value["string_value"]) for key, value in parameters.items()}


def _tensors(key: str) -> Callable[[dict[str, Any], Any], None]:
    def change(plain: dict[str, Any], tensors: Any) -> None:
        plain[key] = [_tensor(tensor, plain.get("max_batch_size")) for tensor in tensors]

    return change


def _tensor(tensor: Any, max_batch_size: Any) -> dict[str, Any]:
    """Dims leave the batch dimension out, shapes have it."""
    name = tensor["data_type"]
    shape = [_integer(size) for size in tensor["dims"]]
    datatype = "BYTES" if name == _STRING else name.removeprefix("TYPE_")
    plain = {"name": tensor["name"], "datatype": datatype, "shape": [-1, *shape] if max_batch_size else shape}
    return plain | ({"optional": True} if tensor.get("optional") else {})


_CHANGES: Final[Mapping[str, Callable[[dict[str, Any], Any], None]]] = {
    "platform": _backend,
    "backend": _backend,
    "max_batch_size": _batch,
    "version_policy": _versions,
    "instance_group": _instances,
    "dynamic_batching": _queue,
    "parameters": _parameters,
    "input": _tensors("inputs"),
    "output": _tensors("outputs"),
}
"""In this order: how tensors are read hangs on the batch size."""

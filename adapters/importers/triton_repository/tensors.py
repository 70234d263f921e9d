"""input and output of Triton's ModelConfig -> whole shapes, the reshapes between callers and the model, the labels of
classes.
"""

from __future__ import annotations

from math import prod
from pathlib import Path, PurePosixPath
from typing import Any, Final

from tensorgate.adapters.importers.common import Source
from tensorgate.adapters.protobuf.messages import enum

_BY_NUMBER: Final = {
    number: value.name.removeprefix("TYPE_")
    for number, value in enum("inference.DataType").values_by_number.items()
    if value.name != "TYPE_INVALID"
}


def datatype(source: Source, key: str, number: int) -> str:
    """TYPE_FP32 -> FP32, TYPE_STRING -> BYTES. Raises ValueError where it is absent or unknown."""
    name = _BY_NUMBER.get(number)
    if name is None:
        raise source.wrong(key, "a tensor needs a data_type" if number == 0 else f"unknown data_type {number}")
    return "BYTES" if name == "STRING" else name


def tensors(source: Source, kind: str, rows: tuple[int, ...]) -> list[dict[str, Any]]:
    """The entries of `inputs` or `outputs`; `kind` is input or output, `rows` the batch dimension where there is one.

    Raises ValueError naming what is missing or contradicts itself.
    """
    return [_tensor(source, f"{kind}[{index}]", each, rows) for index, each in enumerate(getattr(source.config, kind))]


def _tensor(source: Source, key: str, tensor: Any, rows: tuple[int, ...]) -> dict[str, Any]:
    if not tensor.name:
        raise source.wrong(key, "a tensor needs a name")
    _check_dims(source, key, tensor)
    entry = {
        "name": tensor.name,
        "datatype": datatype(source, f"{key}.data_type", tensor.data_type),
        "shape": [*rows, *tensor.dims],
    }
    return entry | ({"optional": True} if getattr(tensor, "optional", False) else {})


def _check_dims(source: Source, key: str, tensor: Any) -> None:
    if not tensor.dims:
        raise source.wrong(key, f"'{tensor.name}' needs dims")
    dims, shape = list(tensor.dims), list(tensor.reshape.shape)
    if not all(size >= 1 or size == -1 for size in dims):
        raise source.wrong(f"{key}.dims", f"each of the dims {dims} of '{tensor.name}' must be at least 1, or -1")
    if not tensor.HasField("reshape"):
        return
    if not all(size >= 1 or size == -1 for size in shape):
        raise source.wrong(f"{key}.reshape", f"each of {shape} must be at least 1, or -1")
    if _elements(dims) != _elements(shape) or dims.count(-1) != shape.count(-1):
        raise source.wrong(f"{key}.reshape", f"'{tensor.name}' has different size for dims {dims} and reshape {shape}")


def _elements(dims: list[int]) -> int:
    return prod(size for size in dims if size > 0)


def reshapes(source: Source) -> dict[str, list[dict[str, Any]]]:
    """The steps of `preprocess` and `postprocess`: callers use dims, the model the reshaped form."""
    before = [_step(each.name, each.dims, each.reshape.shape) for each in source.config.input if _differs(each)]
    after = [_step(each.name, each.reshape.shape, each.dims) for each in source.config.output if _differs(each)]
    return ({"preprocess": before} if before else {}) | ({"postprocess": after} if after else {})


def _differs(tensor: Any) -> bool:
    return tensor.HasField("reshape") and list(tensor.reshape.shape) != list(tensor.dims)


def _step(name: str, before: Any, after: Any) -> dict[str, Any]:
    return {"op": "reshape", "input": name, "before": list(before), "after": list(after)}


def class_labels(source: Source, folder: Path) -> dict[str, str]:
    """Output -> the file of its labels, which must lie in the model's folder."""
    labels = {}
    for index, output in enumerate(source.config.output):
        if output.label_filename:
            labels[output.name] = str(folder / inside(source, f"output[{index}].label_filename", output.label_filename))
    return labels


def inside(source: Source, key: str, name: str) -> str:
    """The name of a file that a client may have sent: below its folder, and nowhere else. Raises ValueError."""
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or "\0" in name or not path.parts:
        raise source.wrong(key, f'"{name}" must lie in the model\'s folder')
    return name

"""What operators check of arrays, and how they put results in their places: the words and rules that they share.

`specs()` of an operator raises ValueError for what the configuration shows to be wrong; its `__call__` raises
InvalidArgument for what only the data shows.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import numpy as np

from tensorgate.gateway.contract.errors import InvalidArgument
from tensorgate.gateway.contract.operator import Op
from tensorgate.gateway.contract.tensor import BYTES, Array, Tensors, TensorSpec


def one(op: str, name: str, specs: Mapping[str, TensorSpec]) -> TensorSpec:
    """The specification of a tensor that an op works on. Raises ValueError naming those that there are."""
    if name not in specs:
        raise ValueError(f"{op}: there is no tensor '{name}' at this point, but {', '.join(specs) or 'none at all'}")
    return specs[name]


def name_of(op: Op) -> str:
    """What an op is called in YAML: CenterCrop is center_crop."""
    return re.sub("(?<=[a-z0-9])(?=[A-Z])", "_", type(op).__name__).lower()


def renamed(op: str, specs: Mapping[str, TensorSpec], old: str, new: TensorSpec) -> dict[str, TensorSpec]:
    """The specifications with one replaced in its place. Raises ValueError if the new name is another tensor's."""
    if new.name != old and new.name in specs:
        raise ValueError(f"{op}: there is a tensor '{new.name}' already")
    return {(new.name if name == old else name): (new if name == old else spec) for name, spec in specs.items()}


def here(xp: Any) -> Hashable:
    """What arrays that an op keeps belong to: the stream that they were made on, None on the host.

    Kept by this, they are ordered like everything else that is done on their stream, and freed in that order.
    """
    return None if xp is np else (xp.cuda.runtime.getDevice(), xp.cuda.get_current_stream().ptr)


def given(op: str, name: str, tensors: Tensors) -> Array:
    """The tensor that an op works on. Raises InvalidArgument where an optional input was left out."""
    array = tensors.get(name)
    if array is None:
        raise InvalidArgument(f"{op} needs '{name}', which is missing")
    return array


def dense(op: str, name: str, tensors: Tensors) -> Array:
    """The tensor that an op works on. Raises InvalidArgument where it was left out, and for BYTES."""
    array = given(op, name, tensors)
    if array.dtype == BYTES:
        raise InvalidArgument(f"{op} needs rows of one shape in '{name}'; resize or pad them before")
    return array


def floating(op: str, spec: TensorSpec) -> None:
    """Raises ValueError for what is not FP16, FP32 or FP64."""
    if spec.dtype.kind != "f":
        raise ValueError(f"{op}: '{spec.name}' is {spec.datatype}; cast it to FP32 first")


def integral(op: str, spec: TensorSpec) -> None:
    """Raises ValueError for what is no integer."""
    if spec.dtype.kind not in "iu":
        raise ValueError(f"{op}: '{spec.name}' is {spec.datatype}, expected integers; cast it to INT64 first")


def numeric(op: str, spec: TensorSpec) -> None:
    """Raises ValueError for what is neither integer nor FP16, FP32 or FP64."""
    if spec.dtype.kind not in "iuf":
        raise ValueError(f"{op}: '{spec.name}' is {spec.datatype}; cast it to FP32 first")


def axis_in(
    op: str, name: str, shape: Sequence[int], axis: int, refuse: type[ValueError | InvalidArgument] = InvalidArgument
) -> int:
    """The axis, counted from the front."""
    if not -len(shape) <= axis < len(shape):
        raise refuse(f"{op}: '{name}' of shape {list(shape)} has no axis {axis}")
    return axis % len(shape)


def one_axis(specs: Mapping[str, TensorSpec], name: str, axis: int) -> tuple[str, int] | None:
    """A tensor and that axis of it, counted from the front; None where its rank is open."""
    shape = specs[name].shape
    return None if shape is None else (name, axis % len(shape))


def replaced(
    op: str, specs: Mapping[str, TensorSpec], old: Sequence[str], new: Sequence[TensorSpec]
) -> dict[str, TensorSpec]:
    """The specifications with new ones in the place of the first old one, the others of these gone; behind all where
    there is no old one. Raises ValueError for a name that is another tensor's.
    """
    rest = [name for name in specs if name not in old]
    names = [spec.name for spec in new]
    for index, name in enumerate(names):
        if name in rest or name in names[:index]:
            raise ValueError(f"{op}: there is a tensor '{name}' already; give this one another name")
    names_before = [*specs]
    at = len([name for name in names_before[: names_before.index(old[0])] if name in rest]) if old else len(rest)
    after = [*(specs[name] for name in rest[:at]), *new, *(specs[name] for name in rest[at:])]
    return {spec.name: spec for spec in after}


def put(tensors: Tensors, old: Sequence[str], new: Tensors) -> Tensors:
    """The tensors without the old ones, with the new ones."""
    return {**{name: array for name, array in tensors.items() if name not in old}, **new}


def widened(array: Array) -> Array:
    """FP16 as FP32, in which sums and quotients keep their meaning; others as they are."""
    return array.astype(np.float32) if array.dtype == np.float16 else array


def holds(dtype: np.dtype[Any], value: float) -> bool:
    """Whether a number is one of this dtype; floating ones round, but not to infinity."""
    if dtype.kind == "f":
        return abs(value) <= float(np.finfo(dtype).max)
    if dtype.kind == "b":
        return value in (0, 1)
    limits = np.iinfo(dtype)
    return value == int(value) and int(limits.min) <= value <= int(limits.max)

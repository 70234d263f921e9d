"""Numbers that the YAML gives once for a whole tensor, or one by one along an axis, as arrays where they are needed."""

from __future__ import annotations

import functools
from collections.abc import Hashable
from typing import Any

import numpy as np

from tensorgate.backends.ops.checks import axis_in, here
from tensorgate.gateway.contract.errors import InvalidArgument
from tensorgate.gateway.contract.tensor import Array, TensorSpec


class PerAxis:
    """Some numbers, broadcast along an axis; each device and stream has its own copy, made with its first call."""

    def __init__(self, numbers: Any, axis: int) -> None:
        self._numbers = np.atleast_1d(np.array(numbers))
        self._axis = axis
        self._ready = functools.cache(self._make)

    def __len__(self) -> int:
        return len(self._numbers)

    def check(self, op: str, spec: TensorSpec) -> None:
        """Raises ValueError where a tensor has no such axis, or another number of entries there."""
        if len(self) == 1 or spec.shape is None:
            return
        size = spec.shape[axis_in(op, spec.name, spec.shape, self._axis, ValueError)]
        if size not in (-1, len(self)):
            raise ValueError(
                f"{op}: axis {self._axis} of '{spec.name}' has {size} entries, but {len(self)} numbers are given"
            )

    def beside(self, op: str, name: str, array: Array, dtype: Any, xp: Any) -> Array:
        """The numbers in this dtype, ready to be combined with the array. Raises InvalidArgument if they do not fit."""
        shape = [1] * array.ndim
        if len(self) > 1:
            axis = axis_in(op, name, array.shape, self._axis)
            if array.shape[axis] != len(self):
                raise InvalidArgument(
                    f"{op}: axis {self._axis} of '{name}' has {array.shape[axis]} entries, expected {len(self)}"
                )
            shape[axis] = -1
        return self._ready(tuple(shape), dtype, here(xp), xp)

    def _make(self, shape: tuple[int, ...], dtype: Any, place: Hashable, xp: Any) -> Array:
        return xp.asarray(self._numbers.astype(dtype).reshape(shape))

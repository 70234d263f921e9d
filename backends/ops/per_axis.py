"""Numbers that the YAML gives once for a whole tensor, or one by one along an axis, as arrays where they are needed."""

from __future__ import annotations

from typing import Any

import numpy as np

from tensorgate.backends.ops.checks import axis_in, here
from tensorgate.gateway.contract.errors import InvalidArgument
from tensorgate.gateway.contract.tensor import Array, TensorSpec


class PerAxis:
    """Some numbers, broadcast along an axis; each device and stream has its own copy, made with its first call."""

    def __init__(self, numbers: Any, axis: int, dtype: Any) -> None:
        self._numbers = np.atleast_1d(np.array(numbers, dtype))
        self._axis = axis
        self._ready: dict[tuple[Any, ...], Array] = {}

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

    def beside(self, op: str, name: str, array: Array, xp: Any) -> Array:
        """The numbers, ready to be combined with this array. Raises InvalidArgument where they do not fit it."""
        shape = [1] * array.ndim
        if len(self) > 1:
            axis = axis_in(op, name, array.shape, self._axis)
            if array.shape[axis] != len(self):
                raise InvalidArgument(
                    f"{op}: axis {self._axis} of '{name}' has {array.shape[axis]} entries, expected {len(self)}"
                )
            shape[axis] = -1
        key = (array.ndim, here(xp))
        if key not in self._ready:
            self._ready[key] = xp.asarray(self._numbers.reshape(shape))
        return self._ready[key]

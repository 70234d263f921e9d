"""Entries picked along one axis, by numbers of the configuration, or of another tensor row by row.

Numbers of a tensor that are negative or beyond the axis pick nothing: `fill` stands there, as behind the last of what
nms keeps. Source: ONNX Gather, and GatherElements with a batch dimension.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field

from tensorgate.backends.ops.checks import axis_in, dense, holds, integral, one, one_axis, put, replaced
from tensorgate.gateway.contract.errors import InvalidArgument
from tensorgate.gateway.contract.operator import Op, OpKind
from tensorgate.gateway.contract.options import Options
from tensorgate.gateway.contract.tensor import Array, Tensors, TensorSpec


class GatherOptions(Options):
    """Entries picked along one axis, by fixed numbers or row by row by those of another tensor.

    Example: {op: gather, input: masks, indices: indices, output: kept, axis: 1}
    """

    op: Literal["gather"]
    input: str = Field(description="Name of the tensor, numbers or BOOL.")
    indices: str | tuple[Annotated[int, Field(ge=0)], ...] = Field(
        description="Which entries: fixed numbers, or the name of a tensor [N, K] of integers, for the axis 1."
    )
    output: str | None = Field(None, description="Name of the result; the same as the input's if not given.")
    axis: int = Field(1, description="The axis from which is picked; not the batch dimension.")
    fill: float = Field(0, allow_inf_nan=False, description="What stands where a number of the tensor picks nothing.")


class Gather(Op):
    """[N, B, ...] and [K] or [N, K] -> [N, K, ...], on the same device."""

    def __init__(self, options: GatherOptions) -> None:
        self._input = options.input
        self._indices = options.indices
        self._output = options.output or options.input
        self._axis = options.axis
        self._fill = options.fill
        self._old = (options.input,)
        if isinstance(options.indices, str) and options.axis != 1:
            raise ValueError("gather: numbers of a tensor pick from axis 1, row by row")

    def specs(self, specs: Mapping[str, TensorSpec]) -> Mapping[str, TensorSpec]:
        spec = one("gather", self._input, specs)
        if spec.dtype.kind not in "iufb":
            raise ValueError(f"gather: '{spec.name}' is {spec.datatype}, expected numbers")
        if not holds(spec.dtype, self._fill):
            raise ValueError(f"gather: fill, {self._fill:g}, is no {spec.datatype}, which '{spec.name}' is")
        shape = spec.shape
        if shape is not None:
            axis = axis_in("gather", self._input, shape, self._axis, ValueError)
            shape = (*shape[:axis], self._count(specs, shape[axis]), *shape[axis + 1 :])
        return replaced("gather", specs, self._old, [replace(spec, name=self._output, shape=shape, labels=())])

    def _count(self, specs: Mapping[str, TensorSpec], size: int) -> int:
        if not isinstance(self._indices, str):
            if self._indices and 0 <= size <= max(self._indices):
                raise ValueError(f"gather: '{self._input}' has {size} entries, indices name {max(self._indices)}")
            return len(self._indices)
        numbers = one("gather", self._indices, specs)
        integral("gather", numbers)
        if numbers.shape is None:
            return -1
        if len(numbers.shape) != 2:
            raise ValueError(f"gather: '{numbers.name}' has shape {list(numbers.shape)}, expected [N, K]")
        return numbers.shape[1]

    def along(self, specs: Mapping[str, TensorSpec]) -> tuple[str, int] | None:
        """The tensor and the axis from which is picked."""
        return one_axis(specs, self._input, self._axis)

    def __call__(self, tensors: Tensors, xp: Any) -> Tensors:
        array = dense("gather", self._input, tensors)
        axis = axis_in("gather", self._input, array.shape, self._axis)
        if isinstance(self._indices, str):
            picked = self._by_row(array, dense("gather", self._indices, tensors), xp)
        elif self._indices and array.shape[axis] <= max(self._indices):
            raise InvalidArgument(f"gather: '{self._input}' has shape {list(array.shape)}, indices are {self._indices}")
        else:
            picked = xp.take(array, xp.asarray(self._indices, np.int64), axis=axis)
        return put(tensors, self._old, {self._output: picked})

    def _by_row(self, array: Array, numbers: Array, xp: Any) -> Array:
        if numbers.ndim != 2 or numbers.shape[0] != array.shape[0]:
            raise InvalidArgument(
                f"gather: '{self._indices}' has shape {list(numbers.shape)}, expected [{array.shape[0]}, K]"
            )
        wide = (*numbers.shape, *(1,) * (array.ndim - 2))
        outside = ((numbers < 0) | (numbers >= array.shape[1])).reshape(wide)
        fill = array.dtype.type(self._fill)
        if not array.shape[1]:
            return xp.full((*numbers.shape, *array.shape[2:]), fill, array.dtype)
        kept = xp.clip(numbers, 0, array.shape[1] - 1).reshape(wide)
        return xp.where(outside, fill, xp.take_along_axis(array, kept.astype(np.int64), axis=1))


KIND = OpKind(GatherOptions, Gather)

"""A part of a tensor along one axis: x[..., start:stop:step, ...]. Any dtype. Source: NumPy's basic slicing."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

from pydantic import Field

from tensorgate.backends.ops.checks import axis_in
from tensorgate.backends.ops.tensor_op import RenamingOptions, TensorOp
from tensorgate.gateway.contract.operator import OpKind
from tensorgate.gateway.contract.tensor import Array, TensorSpec


class SliceOptions(RenamingOptions):
    """A part of a tensor along one axis; the batch dimension stays as it is.

    Example: {op: slice, input: hidden, output: first, axis: 1, stop: 1}
    """

    op: Literal["slice"]
    axis: int = Field(-1, description="The axis of which a part is taken; not the batch dimension.")
    start: int = Field(0, description="Where the part begins; negative: counted from the end.")
    stop: int | None = Field(None, description="Where it ends, this entry not in it; null: at the end.")
    step: int = Field(1, ge=1, description="1: every entry; 2: every other one.")


class Slice(TensorOp):
    """[..., n, ...] -> [..., m, ...], a view on the same device."""

    takes_objects = True

    def __init__(self, options: SliceOptions) -> None:
        super().__init__(options)
        self._axis = self._sliced = options.axis
        self._part = slice(options.start, options.stop, options.step)

    def after(self, spec: TensorSpec) -> TensorSpec:
        shape = spec.shape
        if shape is None:
            return spec
        axis = axis_in(self._op, self._input, shape, self._sliced, ValueError)
        size = shape[axis]
        if size >= 0 and not len(range(size)[self._part]):
            raise ValueError(f"slice: nothing of the {size} entries of axis {self._sliced} of '{self._input}' is left")
        left = len(range(size)[self._part]) if size >= 0 else -1
        return replace(spec, shape=(*shape[:axis], left, *shape[axis + 1 :]), labels=())

    def compute(self, array: Array, xp: Any) -> Array:
        axis = axis_in(self._op, self._input, array.shape, self._sliced)
        return array[(*(slice(None),) * axis, self._part)]


KIND = OpKind(SliceOptions, Slice)

"""The common part of operators that turn one floating tensor into another of the same shape and dtype."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from pydantic import Field

from tensorgate.backends.ops.checks import axis_in, dense, floating, one, one_axis, put, renamed, widened
from tensorgate.gateway.contract.operator import Op
from tensorgate.gateway.contract.options import Options
from tensorgate.gateway.contract.tensor import Array, Tensors, TensorSpec


class SameShapeOptions(Options):
    """Which tensor, and what it is called afterwards."""

    op: str
    input: str = Field(description="Name of the tensor.")
    output: str | None = Field(None, description="Its name afterwards; the same if not given.")


class SameShape(Op):
    """FP16, FP32 or FP64 -> the same, on the same device; FP16 is computed in FP32. Rows are apart from each other,
    unless the axis is theirs.
    """

    def __init__(self, options: Any) -> None:
        self._op: str = options.op
        self._input: str = options.input
        self._output: str = options.output or options.input
        self._axis: int | None = getattr(options, "axis", None)

    def specs(self, specs: Mapping[str, TensorSpec]) -> Mapping[str, TensorSpec]:
        spec = one(self._op, self._input, specs)
        floating(self._op, spec)
        if self._axis is not None and spec.shape is not None:
            axis_in(self._op, self._input, spec.shape, self._axis, ValueError)
        return renamed(self._op, specs, self._input, replace(spec, name=self._output))

    def along(self, specs: Mapping[str, TensorSpec]) -> tuple[str, int] | None:
        """The tensor and the axis whose entries depend on each other."""
        return None if self._axis is None else one_axis(specs, self._input, self._axis)

    def __call__(self, tensors: Tensors, xp: Any) -> Tensors:
        array = dense(self._op, self._input, tensors)
        if self._axis is not None:
            axis_in(self._op, self._input, array.shape, self._axis)
        result = self.compute(widened(array), xp).astype(array.dtype, copy=False) if array.size else array
        return put(tensors, (self._input,), {self._output: result})

    def compute(self, array: Array, xp: Any) -> Array:
        """FP32 or FP64, not empty -> a new array of the same shape and dtype."""
        raise NotImplementedError

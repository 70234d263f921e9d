"""The common part of operators that turn one floating tensor into another of the same shape and dtype."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

from tensorgate.backends.ops.checks import axis_in, floating, widened
from tensorgate.backends.ops.tensor_op import TensorOp
from tensorgate.gateway.contract.tensor import Array, TensorSpec


class SameShape(TensorOp):
    """FP16, FP32 or FP64 -> the same, on the same device; FP16 is computed in FP32. Rows are apart from each other,
    unless the axis is theirs.
    """

    def __init__(self, options: Any) -> None:
        super().__init__(options)
        self._axis = getattr(options, "axis", None)

    def after(self, spec: TensorSpec) -> TensorSpec:
        floating(self._op, spec)
        if self._axis is not None and spec.shape is not None:
            axis_in(self._op, self._input, spec.shape, self._axis, ValueError)
        return spec

    def compute(self, array: Array, xp: Any) -> Array:
        if self._axis is not None:
            axis_in(self._op, self._input, array.shape, self._axis)
        return self.formula(widened(array), xp).astype(array.dtype, copy=False) if array.size else array

    @abstractmethod
    def formula(self, array: Array, xp: Any) -> Array:
        """FP32 or FP64, not empty -> a new array of the same shape and dtype."""

"""Numbers kept within bounds: min(max(x, low), high). NaN stays. Source: ONNX Clip."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, model_validator

from tensorgate.backends.ops.checks import holds, numeric
from tensorgate.backends.ops.tensor_op import RenamingOptions, TensorOp
from tensorgate.gateway.contract.operator import OpKind
from tensorgate.gateway.contract.tensor import Array, TensorSpec


class ClipOptions(RenamingOptions):
    """Numbers kept within bounds.

    Example: {op: clip, input: image, low: 0, high: 1}
    """

    op: Literal["clip"]
    low: float | None = Field(None, allow_inf_nan=False, description="The least that may be; null: no bound.")
    high: float | None = Field(None, allow_inf_nan=False, description="The most that may be; null: no bound.")

    @model_validator(mode="after")
    def _some_bound(self) -> ClipOptions:
        if self.low is None and self.high is None:
            raise ValueError("give low, high, or both")
        if self.low is not None and self.high is not None and self.low > self.high:
            raise ValueError(f"low, {self.low:g}, is above high, {self.high:g}")
        return self


class Clip(TensorOp):
    """Numbers -> the same shape and dtype, on the same device."""

    def __init__(self, options: ClipOptions) -> None:
        super().__init__(options)
        self._bounds = options.low, options.high

    def after(self, spec: TensorSpec) -> TensorSpec:
        numeric(self._op, spec)
        for bound in self._bounds:
            if bound is not None and not holds(spec.dtype, bound):
                raise ValueError(f"clip: {bound:g} is no {spec.datatype}, which '{self._input}' is")
        return spec

    def compute(self, array: Array, xp: Any) -> Array:
        low, high = (None if bound is None else array.dtype.type(bound) for bound in self._bounds)
        return xp.clip(array, low, high)


KIND = OpKind(ClipOptions, Clip)

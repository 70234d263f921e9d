"""Numbers as small integers: clip(round(x / scale) + zero_point), halves to the even neighbour.

Computed in FP32 (of FP64 in FP64), beyond the range of the result its end counts; NaN becomes the zero point.
Source: ONNX QuantizeLinear.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field, model_validator

from tensorgate.backends.ops.checks import floating, widened
from tensorgate.backends.ops.per_axis import PerAxis
from tensorgate.backends.ops.tensor_op import RenamingOptions, TensorOp
from tensorgate.gateway.contract.operator import OpKind
from tensorgate.gateway.contract.tensor import DTYPES, Array, TensorSpec

Scale = Annotated[float, Field(ge=1e-30, le=1e30)]
Scales = Annotated[tuple[Scale, ...], Field(min_length=1)]
Zeros = Annotated[tuple[int, ...], Field(min_length=1)]


class LinearOptions(RenamingOptions):
    """How integers stand for numbers: x = (q - zero_point) * scale."""

    scale: Scale | Scales = Field(description="What one step is worth: a number for all, or one per entry of `axis`.")
    zero_point: int | Zeros = Field(
        0, description="The integer that stands for 0: for all, or one per entry of `axis`."
    )
    axis: int = Field(1, description="The axis that several numbers run along.")

    @model_validator(mode="after")
    def _same_length(self) -> LinearOptions:
        scales, zeros = np.size(self.scale), np.size(self.zero_point)
        if zeros not in (1, scales):
            raise ValueError(f"scale has {scales} numbers and zero_point has {zeros}")
        return self


def check_zeros(op: str, options: LinearOptions, dtype: np.dtype[Any]) -> None:
    """Raises ValueError for a zero point that the integers do not have."""
    limits = np.iinfo(dtype)
    for zero in np.atleast_1d(np.array(options.zero_point, object)):
        if not limits.min <= zero <= limits.max:
            raise ValueError(f"{op}: zero_point {zero} is no {dtype}, which goes from {limits.min} to {limits.max}")


class QuantizeOptions(LinearOptions):
    """Numbers as small integers, as ONNX QuantizeLinear makes them.

    Example: {op: quantize, input: image, scale: 0.0078125, zero_point: 128, datatype: UINT8}
    """

    op: Literal["quantize"]
    datatype: Literal["INT8", "UINT8", "INT16", "UINT16"] = Field("INT8", description="Datatype of the integers.")


class Quantize(TensorOp):
    """FP16, FP32 or FP64 of any shape -> integers of the same shape, on the same device."""

    def __init__(self, options: QuantizeOptions) -> None:
        super().__init__(options)
        self._dtype = DTYPES[options.datatype]
        check_zeros(self._op, options, self._dtype)
        limits = np.iinfo(self._dtype)
        self._least, self._most = float(limits.min), float(limits.max)
        self._scale, self._zero = PerAxis(options.scale, options.axis), PerAxis(options.zero_point, options.axis)

    def after(self, spec: TensorSpec) -> TensorSpec:
        floating(self._op, spec)
        self._scale.check(self._op, spec)
        return replace(spec, dtype=self._dtype)

    def compute(self, array: Array, xp: Any) -> Array:
        array = widened(array)
        steps = xp.rint(array / self._scale.beside(self._op, self._input, array, array.dtype, xp))
        xp.nan_to_num(steps, copy=False, nan=0.0)
        steps += self._zero.beside(self._op, self._input, array, array.dtype, xp)
        return xp.clip(steps, self._least, self._most).astype(self._dtype)


KIND = OpKind(QuantizeOptions, Quantize)

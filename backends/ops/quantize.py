"""Numbers as small integers: clip(round(x / scale) + zero_point), halves to the even neighbour.

Computed in FP32 (of FP64 in FP64), beyond the range of the result its end counts; NaN becomes the zero point.
Source: ONNX QuantizeLinear.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field, model_validator

from tensorgate.backends.ops.checks import dense, floating, one, put, renamed, widened
from tensorgate.backends.ops.per_axis import PerAxis
from tensorgate.gateway.contract.operator import Op, OpKind
from tensorgate.gateway.contract.options import Options
from tensorgate.gateway.contract.tensor import DTYPES, Tensors, TensorSpec

Scale = Annotated[float, Field(ge=1e-30, le=1e30)]
Scales = Annotated[tuple[Scale, ...], Field(min_length=1)]
Zeros = Annotated[tuple[int, ...], Field(min_length=1)]


class LinearOptions(Options):
    """How integers stand for numbers: x = (q - zero_point) * scale."""

    op: str
    input: str = Field(description="Name of the tensor.")
    output: str | None = Field(None, description="Its name afterwards; the same if not given.")
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


class Quantize(Op):
    """FP16, FP32 or FP64 of any shape -> integers of the same shape, on the same device."""

    def __init__(self, options: QuantizeOptions) -> None:
        self._input = options.input
        self._output = options.output or options.input
        self._dtype = DTYPES[options.datatype]
        check_zeros("quantize", options, self._dtype)
        limits = np.iinfo(self._dtype)
        self._least, self._most = float(limits.min), float(limits.max)
        self._scales = {kind: PerAxis(options.scale, options.axis, kind) for kind in (np.float32, np.float64)}
        self._zeros = {kind: PerAxis(options.zero_point, options.axis, kind) for kind in (np.float32, np.float64)}

    def specs(self, specs: Mapping[str, TensorSpec]) -> Mapping[str, TensorSpec]:
        spec = one("quantize", self._input, specs)
        floating("quantize", spec)
        self._scales[np.float32].check("quantize", spec)
        return renamed("quantize", specs, self._input, replace(spec, name=self._output, dtype=self._dtype))

    def __call__(self, tensors: Tensors, xp: Any) -> Tensors:
        array = widened(dense("quantize", self._input, tensors))
        kind = array.dtype.type
        steps = xp.rint(array / self._scales[kind].beside("quantize", self._input, array, xp))
        xp.nan_to_num(steps, copy=False, nan=0.0)
        steps += self._zeros[kind].beside("quantize", self._input, array, xp)
        result = xp.clip(steps, self._least, self._most).astype(self._dtype)
        return put(tensors, (self._input,), {self._output: result})


KIND = OpKind(QuantizeOptions, Quantize)

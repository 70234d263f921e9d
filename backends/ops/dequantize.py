"""Integers as the numbers that they stand for: (q - zero_point) * scale.

The difference is exact, the product is of FP32. Source: ONNX DequantizeLinear.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

import numpy as np
from pydantic import Field

from tensorgate.backends.ops.per_axis import PerAxis
from tensorgate.backends.ops.quantize import LinearOptions, check_zeros
from tensorgate.backends.ops.tensor_op import TensorOp
from tensorgate.gateway.contract.operator import OpKind
from tensorgate.gateway.contract.tensor import DTYPES, Array, TensorSpec


class DequantizeOptions(LinearOptions):
    """Small integers as the numbers that they stand for, as ONNX DequantizeLinear reads them.

    Example: {op: dequantize, input: logits, scale: 0.05, zero_point: 3}
    """

    op: Literal["dequantize"]
    datatype: Literal["FP32", "FP16"] = Field("FP32", description="Datatype of the numbers.")


class Dequantize(TensorOp):
    """INT8, UINT8, INT16, UINT16 or INT32 of any shape -> FP32 or FP16 of the same shape, on the same device."""

    def __init__(self, options: DequantizeOptions) -> None:
        super().__init__(options)
        self._options = options
        self._dtype = DTYPES[options.datatype]
        self._scale, self._zero = PerAxis(options.scale, options.axis), PerAxis(options.zero_point, options.axis)

    def after(self, spec: TensorSpec) -> TensorSpec:
        if spec.datatype not in ("INT8", "UINT8", "INT16", "UINT16", "INT32"):
            raise ValueError(
                f"dequantize: '{self._input}' is {spec.datatype}, expected INT8, UINT8, INT16, UINT16 or INT32"
            )
        check_zeros(self._op, self._options, spec.dtype)
        self._scale.check(self._op, spec)
        return replace(spec, dtype=self._dtype)

    def compute(self, array: Array, xp: Any) -> Array:
        exact = np.int64 if array.dtype.itemsize > 2 else np.int32
        difference = array - self._zero.beside(self._op, self._input, array, exact, xp)
        result = difference.astype(np.float32) * self._scale.beside(self._op, self._input, array, np.float32, xp)
        return result.astype(self._dtype, copy=False)


KIND = OpKind(DequantizeOptions, Dequantize)

"""Multiply a tensor and add to it: x -> x * factor + offset, one pair of numbers for all.

Any shape, kept. Floats keep their dtype unless `to` says another; integers need it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal

import numpy as np
from pydantic import Field, field_validator

from tensorgate.backends.ops.affine import Affine, AffineOp, arithmetic, float_spec
from tensorgate.gateway.contract.operator import OpKind
from tensorgate.gateway.contract.options import Options
from tensorgate.gateway.contract.tensor import DTYPES, TensorSpec


class ScaleOptions(Options):
    """Numbers multiplied and shifted.

    Example: {op: scale, input: image, factor: 0.00392156862745098, to: FP32}
    """

    op: Literal["scale"]
    input: str = Field(description="Name of the tensor.")
    factor: float = Field(1, allow_inf_nan=False, description="What it is multiplied by.")
    divide: float = Field(1, allow_inf_nan=False, description="What it is divided by: 255 for pixels from 0 to 1.")
    offset: float = Field(0, allow_inf_nan=False, description="What is added then.")
    to: Literal["FP16", "FP32", "FP64"] | None = Field(None, description="Datatype afterwards; integers need one.")

    @field_validator("divide")
    @classmethod
    def _not_zero(cls, divide: float) -> float:
        if divide == 0:
            raise ValueError("nothing can be divided by 0")
        return divide


class Scale(AffineOp):
    """One multiplication and one addition per element, on the same device; in float32, or in float64 where the tensor
    is FP64 or of more than 16-bit integers, rounded to the datatype at the end.
    """

    def __init__(self, options: ScaleOptions) -> None:
        super().__init__(options.input)
        self._scale = np.array([options.factor / options.divide])
        self._shift = np.array([options.offset], np.float64)
        self._to = None if options.to is None else DTYPES[options.to]

    def specs(self, specs: Mapping[str, TensorSpec]) -> Mapping[str, TensorSpec]:
        spec = float_spec("scale", self.tensor, specs, self._to)
        return {**specs, self.tensor: replace(spec, dtype=self._to or spec.dtype)}

    def affine(self, dtype: np.dtype[Any], rank: int) -> Affine:
        return arithmetic(dtype, self._to or dtype, rank, self._scale, self._shift)


KIND = OpKind(ScaleOptions, Scale)

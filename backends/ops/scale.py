"""Multiply a tensor and add to it: x -> x * factor + offset, one pair of numbers for all.

Any shape, kept. Floats keep their dtype unless `to` says another; integers need it.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from pydantic import Field, field_validator

from tensorgate.backends.ops.affine import Linear
from tensorgate.backends.ops.tensor_op import TensorOptions
from tensorgate.gateway.contract.operator import OpKind


class ScaleOptions(TensorOptions):
    """Numbers multiplied and shifted.

    Example: {op: scale, input: image, factor: 0.00392156862745098, to: FP32}
    """

    op: Literal["scale"]
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


class Scale(Linear):
    """One pair of numbers for all."""

    def __init__(self, options: ScaleOptions) -> None:
        super().__init__(options, np.array([options.factor / options.divide]), np.array([options.offset], np.float64))


KIND = OpKind(ScaleOptions, Scale)

"""Shift and scale a tensor: x -> (x - mean) / std, per entry of one axis or for all alike.

Any shape, kept. Floats keep their dtype unless `to` says another; integers need it.
"""

from __future__ import annotations

from typing import Annotated, Literal

import numpy as np
from pydantic import Field, model_validator

from tensorgate.backends.ops.affine import Linear
from tensorgate.backends.ops.checks import axis_in
from tensorgate.backends.ops.tensor_op import TensorOptions
from tensorgate.gateway.contract.operator import OpKind
from tensorgate.gateway.contract.tensor import TensorSpec


class NormalizeOptions(TensorOptions):
    """Values shifted and scaled: (x - mean) / std, for all alike or per channel.

    Example: {op: normalize, input: image, mean: [0.485, 0.456, 0.406], std: [0.229, 0.224, 0.225]}
    """

    op: Literal["normalize"]
    mean: tuple[Annotated[float, Field(allow_inf_nan=False)], ...] = Field(
        min_length=1, description="One number for all, or one per entry of `axis`."
    )
    std: tuple[Annotated[float, Field(gt=0, allow_inf_nan=False)], ...] = Field(
        min_length=1, description="As `mean`; each above 0."
    )
    axis: int = Field(1, description="The axis that several numbers run along, 1 for channels first, -1 for last.")
    to: Literal["FP16", "FP32", "FP64"] | None = Field(None, description="Datatype afterwards; integers need one.")

    @model_validator(mode="after")
    def _same_length(self) -> NormalizeOptions:
        if len(self.mean) != len(self.std):
            raise ValueError(f"mean has {len(self.mean)} numbers and std has {len(self.std)}")
        return self


class Normalize(Linear):
    """One pair of numbers for all, or one per entry of an axis."""

    def __init__(self, options: NormalizeOptions) -> None:
        std = np.array(options.std, np.float64)
        super().__init__(options, 1 / std, -np.array(options.mean, np.float64) / std, options.axis)

    def after(self, spec: TensorSpec) -> TensorSpec:
        after = super().after(spec)
        if len(self._scale) > 1 and spec.shape is not None:
            size = spec.shape[axis_in(self._op, self._input, spec.shape, self._along, ValueError)]
            if size not in (-1, len(self._scale)):
                raise ValueError(
                    f"normalize: axis {self._along} of '{self._input}' has {size} entries, "
                    f"but mean and std have {len(self._scale)}"
                )
        return after


KIND = OpKind(NormalizeOptions, Normalize)

"""Shift and scale a tensor: x -> (x - mean) / std, per entry of one axis or for all alike.

Any shape, kept. Floats keep their dtype unless `to` says another; integers need it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field, model_validator

from tensorgate.backends.ops.affine import Affine, AffineOp, arithmetic, float_spec
from tensorgate.gateway.contract.operator import OpKind
from tensorgate.gateway.contract.options import Options
from tensorgate.gateway.contract.tensor import DTYPES, TensorSpec


class NormalizeOptions(Options):
    """Values shifted and scaled: (x - mean) / std, for all alike or per channel.

    Example: {op: normalize, input: image, mean: [0.485, 0.456, 0.406], std: [0.229, 0.224, 0.225]}
    """

    op: Literal["normalize"]
    input: str = Field(description="Name of the tensor.")
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


class Normalize(AffineOp):
    """One multiplication and one addition per element, on the same device; in float32, or in float64 where the tensor
    is FP64 or of more than 16-bit integers, rounded to the datatype at the end.
    """

    def __init__(self, options: NormalizeOptions) -> None:
        super().__init__(options.input)
        self._axis = options.axis
        std = np.array(options.std, np.float64)
        self._scale = 1 / std
        self._shift = -np.array(options.mean, np.float64) / std
        self._to = None if options.to is None else DTYPES[options.to]

    def specs(self, specs: Mapping[str, TensorSpec]) -> Mapping[str, TensorSpec]:
        spec = float_spec("normalize", self.tensor, specs, self._to)
        if len(self._scale) > 1 and spec.shape is not None:
            if not -len(spec.shape) <= self._axis < len(spec.shape):
                raise ValueError(f"normalize: '{self.tensor}' of shape {list(spec.shape)} has no axis {self._axis}")
            if spec.shape[self._axis] not in (-1, len(self._scale)):
                raise ValueError(
                    f"normalize: axis {self._axis} of '{self.tensor}' has {spec.shape[self._axis]} entries, "
                    f"but mean and std have {len(self._scale)}"
                )
        return {**specs, self.tensor: replace(spec, dtype=self._to or spec.dtype)}

    def affine(self, dtype: np.dtype[Any], rank: int) -> Affine:
        return arithmetic(dtype, self._to or dtype, rank, self._scale, self._shift, self._axis)


KIND = OpKind(NormalizeOptions, Normalize)

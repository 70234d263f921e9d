"""Shift and scale a tensor: x -> (x - mean) / std, per entry of one axis or for all alike.

Floating tensors; shape and dtype kept.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field, model_validator

from backends.ops.base import one
from gateway.canonical import Array, Tensors, TensorSpec
from gateway.ports import OpKind, Options


class NormalizeOptions(Options):
    """Values shifted and scaled: (x - mean) / std, for all alike or per channel.

    Example: {op: normalize, input: image, mean: [0.485, 0.456, 0.406], std: [0.229, 0.224, 0.225]}
    """

    op: Literal["normalize"]
    input: str = Field(description="Name of the tensor.")
    mean: tuple[float, ...] = Field(min_length=1, description="One number for all, or one per entry of `axis`.")
    std: tuple[Annotated[float, Field(gt=0)], ...] = Field(min_length=1, description="As `mean`; each above 0.")
    axis: int = Field(1, description="The axis that several numbers run along, 1 for channels first, -1 for last.")

    @model_validator(mode="after")
    def _same_length(self) -> NormalizeOptions:
        if len(self.mean) != len(self.std):
            raise ValueError(f"mean has {len(self.mean)} numbers and std has {len(self.std)}")
        return self


class Normalize:
    """FP16, FP32 or FP64 of any shape -> the same, on the same device: one multiplication and one addition per
    element.
    """

    def __init__(self, options: NormalizeOptions) -> None:
        self._name = options.input
        self._axis = options.axis
        std = np.array(options.std, np.float64)
        self._scale = 1 / std
        self._shift = -np.array(options.mean, np.float64) / std
        self._ready: dict[tuple[Any, int, np.dtype[Any]], tuple[Array, Array]] = {}

    def specs(self, specs: Mapping[str, TensorSpec]) -> Mapping[str, TensorSpec]:
        spec = one("normalize", self._name, specs)
        if spec.dtype.kind != "f":
            raise ValueError(f"normalize: '{self._name}' is {spec.datatype}; cast it to FP32 first")
        if len(self._scale) > 1 and spec.shape is not None:
            if not -len(spec.shape) <= self._axis < len(spec.shape):
                raise ValueError(f"normalize: '{self._name}' of shape {list(spec.shape)} has no axis {self._axis}")
            if spec.shape[self._axis] not in (-1, len(self._scale)):
                raise ValueError(
                    f"normalize: axis {self._axis} of '{self._name}' has {spec.shape[self._axis]} entries, "
                    f"but mean and std have {len(self._scale)}"
                )
        return specs

    def __call__(self, tensors: Tensors, xp: Any) -> Tensors:
        array = tensors[self._name]
        scale, shift = self._factors(array, xp)
        result = array * scale
        result += shift
        return {**tensors, self._name: result}

    def _factors(self, array: Array, xp: Any) -> tuple[Array, Array]:
        """Scale and shift on the device, in the array's dtype and broadcast along the axis; made once per rank."""
        key = (xp, array.ndim, array.dtype)
        if key not in self._ready:
            shape = [1] * array.ndim
            if len(self._scale) > 1:
                shape[self._axis] = -1
            self._ready[key] = (
                xp.asarray(self._scale.astype(array.dtype).reshape(shape)),
                xp.asarray(self._shift.astype(array.dtype).reshape(shape)),
            )
        return self._ready[key]


KIND = OpKind(NormalizeOptions, Normalize)

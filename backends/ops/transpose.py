"""Order a tensor's axes anew: x -> x.transpose(axes).

Any numbers; dtype kept.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field, model_validator

from tensorgate.backends.ops.affine import Affine, AffineOp
from tensorgate.backends.ops.tensor_op import TensorOptions
from tensorgate.gateway.contract.operator import OpKind
from tensorgate.gateway.contract.tensor import BYTES, TensorSpec


class TransposeOptions(TensorOptions):
    """Axes in another order.

    Example: {op: transpose, input: image, layout: NHWC->NCHW}
    """

    op: Literal["transpose"]
    layout: str | None = Field(
        None, pattern="^[A-Z]+->[A-Z]+$", description="A letter per axis, before and after: NHWC->NCHW for example."
    )
    axes: tuple[Annotated[int, Field(ge=0)], ...] | None = Field(
        None, description="Instead of `layout`: for each axis afterwards, which one it is before."
    )

    @model_validator(mode="after")
    def _all_axes(self) -> TransposeOptions:
        if (self.layout is None) == (self.axes is None):
            raise ValueError("give either layout or axes")
        if sorted(self.order) != list(range(len(self.order))):
            raise ValueError(f"{self.layout or list(self.order)} does not name every axis once")
        return self

    @property
    def order(self) -> tuple[int, ...]:
        if self.layout is None:
            return self.axes or ()
        before, _, after = self.layout.partition("->")
        return tuple(before.find(letter) for letter in after.ljust(len(before)))


class Transpose(AffineOp):
    """[n0, n1, ...] -> the same sizes in another order, on the same device, contiguous."""

    def __init__(self, options: TransposeOptions) -> None:
        super().__init__(options)
        self._order = options.order

    def after(self, spec: TensorSpec) -> TensorSpec:
        if spec.dtype == BYTES:
            raise ValueError(f"transpose: '{self.tensor}' is BYTES, not numbers")
        if spec.shape is None:
            return replace(spec, shape=(-1,) * len(self._order))
        if len(spec.shape) != len(self._order):
            raise ValueError(
                f"transpose: '{self.tensor}' of shape {list(spec.shape)} has not {len(self._order)} axes; "
                "name every axis, that of the batch too"
            )
        return replace(spec, shape=tuple(spec.shape[axis] for axis in self._order))

    def affine(self, dtype: np.dtype[Any], rank: int) -> Affine:
        return Affine(dtype, self._order)


KIND = OpKind(TransposeOptions, Transpose)

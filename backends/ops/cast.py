"""Change a tensor's dtype: x -> x.astype(to).

Shape kept; numbers only. Values beyond the new range follow NumPy's casting.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

import numpy as np
from pydantic import Field

from tensorgate.backends.ops.affine import Affine, AffineOp
from tensorgate.backends.ops.tensor_op import TensorOptions
from tensorgate.gateway.contract.operator import OpKind
from tensorgate.gateway.contract.tensor import BYTES, DTYPES, TensorSpec


class CastOptions(TensorOptions):
    """Another datatype; values beyond its range follow NumPy's casting.

    Example: {op: cast, input: image, to: FP32}
    """

    op: Literal["cast"]
    to: Literal[
        "BOOL", "UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64", "FP16", "FP32", "FP64"
    ] = Field(description="Datatype afterwards.")


class Cast(AffineOp):
    """Any shape, any numeric dtype -> the same shape in `to`, on the same device."""

    def __init__(self, options: CastOptions) -> None:
        super().__init__(options)
        self._dtype = DTYPES[options.to]

    def after(self, spec: TensorSpec) -> TensorSpec:
        if spec.dtype == BYTES:
            raise ValueError(f"cast: '{self.tensor}' is BYTES, which is no number")
        return replace(spec, dtype=self._dtype)

    def affine(self, dtype: np.dtype[Any], rank: int) -> Affine:
        return Affine(self._dtype)


KIND = OpKind(CastOptions, Cast)

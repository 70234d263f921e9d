"""Vectors of many tokens as one: [N, L, D] -> [N, D], without those that only fill up.

The mask is the model's own input, or an output of its: 1 for tokens, 0 for padding, on either side. Sums are made in
FP32 for FP16. A row without tokens is zeros. Source: sentence-transformers, models.Pooling.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
from pydantic import Field

from tensorgate.backends.ops.checks import dense, floating, given, one, widened
from tensorgate.backends.ops.tensor_op import RenamingOptions, TensorOp
from tensorgate.gateway.contract.errors import InvalidArgument
from tensorgate.gateway.contract.operator import OpKind
from tensorgate.gateway.contract.tensor import Array, Tensors, TensorSpec


class PoolOptions(RenamingOptions):
    """The vectors of a text's tokens as one vector.

    Example: {op: pool, input: last_hidden_state, mask: attention_mask, output: embedding}
    """

    op: Literal["pool"]
    mode: Literal["mean", "cls", "last", "max"] = Field(
        "mean", description="The mean of all tokens, the first one, the last one, or the largest of each dimension."
    )
    mask: str | None = Field(
        None,
        description="Name of the mask [N, L], 1 for tokens and 0 for padding: an output of the model, or what it takes "
        "after preprocess; null: all are tokens.",
    )


class TokenPool(TensorOp):
    """FP16, FP32 or FP64 [N, L, D] -> [N, D], on the same device."""

    def __init__(self, options: PoolOptions) -> None:
        super().__init__(options)
        self._mode = options.mode
        self._mask = options.mask
        self.from_inputs = () if options.mask is None else (options.mask,)

    def specs(self, specs: Mapping[str, TensorSpec]) -> Mapping[str, TensorSpec]:
        if self._mask is not None:
            mask = one(self._op, self._mask, specs)
            if mask.dtype.kind not in "biu":
                raise ValueError(f"pool: '{mask.name}' is {mask.datatype}; a mask is integers or BOOL")
            if mask.shape is not None and len(mask.shape) != 2:
                raise ValueError(f"pool: '{mask.name}' has shape {list(mask.shape)}, expected [N, L]")
        return super().specs(specs)

    def after(self, spec: TensorSpec) -> TensorSpec:
        floating(self._op, spec)
        shape = spec.shape
        if shape is not None and len(shape) != 3:
            raise ValueError(f"pool: '{spec.name}' has shape {list(shape)}, expected [N, L, D]")
        return TensorSpec(spec.name, spec.dtype, None if shape is None else (shape[0], shape[2]))

    def __call__(self, tensors: Tensors, xp: Any) -> Tensors:
        array = dense(self._op, self._input, tensors)
        if array.ndim != 3:
            raise InvalidArgument(f"pool: '{self._input}' has shape {list(array.shape)}, expected [N, L, D]")
        mask = None if self._mask is None else given(self._op, self._mask, tensors).astype(bool)
        if mask is not None and mask.shape != array.shape[:2]:
            raise InvalidArgument(
                f"pool: '{self._mask}' has shape {list(mask.shape)}, and '{self._input}' {list(array.shape)}"
            )
        result = self._pooled(widened(array), mask, xp).astype(array.dtype, copy=False)
        return {**{name: other for name, other in tensors.items() if name != self._input}, self.tensor: result}

    def compute(self, array: Array, xp: Any) -> Array:
        return self._pooled(array, None, xp)

    def _pooled(self, array: Array, mask: Array | None, xp: Any) -> Array:
        rows, length, width = array.shape
        if not length:
            return xp.zeros((rows, width), array.dtype)
        if mask is None:
            mask = xp.ones((rows, length), bool)
        tokens, counts = mask[..., None], mask.sum(axis=1)[:, None]
        if self._mode == "mean":
            return xp.where(tokens, array, 0).sum(axis=1) / xp.maximum(counts, 1).astype(array.dtype)
        if self._mode == "max":
            largest = xp.where(tokens, array, -np.inf).max(axis=1)
            return xp.where(counts > 0, largest, 0).astype(array.dtype, copy=False)
        at = mask.argmax(axis=1) if self._mode == "cls" else length - 1 - mask[:, ::-1].argmax(axis=1)
        return xp.where(counts > 0, array[xp.arange(rows), at], 0).astype(array.dtype, copy=False)


KIND = OpKind(PoolOptions, TokenPool)

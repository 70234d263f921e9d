"""Scale vectors to length 1: x / max(sqrt(sum(x * x)), eps), along one axis. Source: torch.nn.functional.normalize.

Floating tensors; shape and dtype kept.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from tensorgate.backends.ops.same_shape import SameShape
from tensorgate.backends.ops.tensor_op import RenamingOptions
from tensorgate.gateway.contract.operator import OpKind
from tensorgate.gateway.contract.tensor import Array


class L2NormalizeOptions(RenamingOptions):
    """Vectors scaled to length 1, as embeddings are compared.

    Example: {op: l2_normalize, input: embedding}
    """

    op: Literal["l2_normalize"]
    axis: int = Field(-1, description="The axis along which a vector lies.")
    eps: float = Field(1e-12, ge=1e-30, allow_inf_nan=False, description="The least length that is divided by.")


class L2Normalize(SameShape):
    """[..., n, ...] -> the same. A vector of zeros stays one."""

    def __init__(self, options: L2NormalizeOptions) -> None:
        super().__init__(options)
        self._eps = options.eps

    def formula(self, array: Array, xp: Any) -> Array:
        length = xp.sqrt((array * array).sum(axis=self._axis, keepdims=True))
        return array / xp.maximum(length, array.dtype.type(self._eps))


KIND = OpKind(L2NormalizeOptions, L2Normalize)

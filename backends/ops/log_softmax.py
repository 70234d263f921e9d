"""The logarithm of softmax: x - max - log(sum(exp(x - max))), along one axis, exact where softmax itself is near 0.

Floating tensors; shape and dtype kept.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from tensorgate.backends.ops.same_shape import SameShape
from tensorgate.backends.ops.tensor_op import RenamingOptions
from tensorgate.gateway.contract.operator import OpKind
from tensorgate.gateway.contract.tensor import Array


class LogSoftmaxOptions(RenamingOptions):
    """Scores as logarithms of probabilities.

    Example: {op: log_softmax, input: logits, axis: -1}
    """

    op: Literal["log_softmax"]
    axis: int = Field(-1, description="The axis whose probabilities sum to 1.")


class LogSoftmax(SameShape):
    """[..., n, ...] -> the same. NaN and rows of only -inf give NaN."""

    def formula(self, array: Array, xp: Any) -> Array:
        shifted = array - array.max(axis=self._axis, keepdims=True)
        shifted -= xp.log(xp.exp(shifted).sum(axis=self._axis, keepdims=True))
        return shifted


KIND = OpKind(LogSoftmaxOptions, LogSoftmax)

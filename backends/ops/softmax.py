"""Turn scores into probabilities: exp(x - max) / sum of these, along one axis.

Floating tensors; shape and dtype kept.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from tensorgate.backends.ops.same_shape import SameShape
from tensorgate.backends.ops.tensor_op import RenamingOptions
from tensorgate.gateway.contract.operator import OpKind
from tensorgate.gateway.contract.tensor import Array


class SoftmaxOptions(RenamingOptions):
    """Scores as probabilities, which add up to 1 along an axis.

    Example: {op: softmax, input: logits, output: scores}
    """

    op: Literal["softmax"]
    axis: int = Field(-1, description="The axis that sums to 1.")


class Softmax(SameShape):
    """[..., n, ...] -> the same. NaN and rows of only -inf give NaN."""

    def formula(self, array: Array, xp: Any) -> Array:
        weights = xp.exp(array - array.max(axis=self._axis, keepdims=True))
        weights /= weights.sum(axis=self._axis, keepdims=True)
        return weights


KIND = OpKind(SoftmaxOptions, Softmax)

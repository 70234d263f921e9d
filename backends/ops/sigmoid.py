"""The logistic function: 1 / (1 + exp(-x)), element by element.

Only exp of what is not above 0 is computed, so that nothing overflows and small results keep their digits. Floating
tensors; shape and dtype kept.
"""

from __future__ import annotations

from typing import Any, Literal

from tensorgate.backends.ops.same_shape import SameShape
from tensorgate.backends.ops.tensor_op import RenamingOptions
from tensorgate.gateway.contract.operator import OpKind
from tensorgate.gateway.contract.tensor import Array


class SigmoidOptions(RenamingOptions):
    """Each score as a probability of its own.

    Example: {op: sigmoid, input: logits, output: scores}
    """

    op: Literal["sigmoid"]


class Sigmoid(SameShape):
    """Any shape -> the same. NaN gives NaN."""

    def formula(self, array: Array, xp: Any) -> Array:
        small = xp.exp(-xp.abs(array))
        return xp.where(array >= 0, array.dtype.type(1), small) / (1 + small)


KIND = OpKind(SigmoidOptions, Sigmoid)

"""Compare a tensor with a number: whether each element reaches it, or the elements with those below replaced.

The number is rounded to the tensor's own type first. NaN reaches nothing: it counts as below.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

from pydantic import Field, model_validator

from tensorgate.backends.ops.checks import holds, numeric
from tensorgate.backends.ops.tensor_op import RenamingOptions, TensorOp
from tensorgate.gateway.contract.operator import OpKind
from tensorgate.gateway.contract.tensor import DTYPES, Array, TensorSpec


class ThresholdOptions(RenamingOptions):
    """Whether values reach a bound, as true and false or 1 and 0; or small values replaced.

    Example: {op: threshold, input: scores, output: hit, at: 0.5, datatype: BOOL}
    """

    op: Literal["threshold"]
    at: float = Field(allow_inf_nan=False, description="The least value that counts.")
    datatype: Literal["BOOL", "UINT8"] | None = Field(
        None, description="Datatype of the answers, true and false or 1 and 0; null: the tensor's own, 1 and 0."
    )
    below: float | None = Field(
        None, allow_inf_nan=False, description="What replaces values below `at`; others then stay as they are."
    )

    @model_validator(mode="after")
    def _one_answer(self) -> ThresholdOptions:
        if self.datatype is not None and self.below is not None:
            raise ValueError("datatype is of answers, below of values: give one of them")
        return self


class Threshold(TensorOp):
    """Numbers of any shape -> the same shape, on the same device."""

    def __init__(self, options: ThresholdOptions) -> None:
        super().__init__(options)
        self._at = options.at
        self._below = options.below
        self._dtype = DTYPES[options.datatype] if options.datatype else None

    def after(self, spec: TensorSpec) -> TensorSpec:
        numeric(self._op, spec)
        if self._below is not None and not holds(spec.dtype, self._below):
            raise ValueError(f"threshold: '{self._input}' is {spec.datatype}, which cannot hold {self._below:g}")
        return replace(spec, dtype=self._dtype or spec.dtype)

    def compute(self, array: Array, xp: Any) -> Array:
        reached = array >= (array.dtype.type(self._at) if array.dtype.kind == "f" else self._at)
        if self._below is not None:
            return xp.where(reached, array, array.dtype.type(self._below))
        return reached.astype(self._dtype or array.dtype, copy=False)


KIND = OpKind(ThresholdOptions, Threshold)

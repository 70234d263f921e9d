"""Compare a tensor with a number: whether each element reaches it, or the elements with those below replaced.

The number is rounded to the tensor's own type first. NaN reaches nothing: it counts as below.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal

from pydantic import Field, model_validator

from tensorgate.backends.ops.checks import dense, holds, numeric, one, put, renamed
from tensorgate.gateway.contract.operator import Op, OpKind
from tensorgate.gateway.contract.options import Options
from tensorgate.gateway.contract.tensor import DTYPES, Tensors, TensorSpec


class ThresholdOptions(Options):
    """Whether values reach a bound, as true and false or 1 and 0; or small values replaced.

    Example: {op: threshold, input: scores, output: hit, at: 0.5, datatype: BOOL}
    """

    op: Literal["threshold"]
    input: str = Field(description="Name of the tensor.")
    output: str | None = Field(None, description="Its name afterwards; the same if not given.")
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


class Threshold(Op):
    """Numbers of any shape -> the same shape, on the same device."""

    def __init__(self, options: ThresholdOptions) -> None:
        self._input = options.input
        self._output = options.output or options.input
        self._at = options.at
        self._below = options.below
        self._dtype = DTYPES[options.datatype] if options.datatype else None

    def specs(self, specs: Mapping[str, TensorSpec]) -> Mapping[str, TensorSpec]:
        spec = one("threshold", self._input, specs)
        numeric("threshold", spec)
        if self._below is not None and not holds(spec.dtype, self._below):
            raise ValueError(f"threshold: '{self._input}' is {spec.datatype}, which cannot hold {self._below:g}")
        after = replace(spec, name=self._output, dtype=self._dtype or spec.dtype)
        return renamed("threshold", specs, self._input, after)

    def __call__(self, tensors: Tensors, xp: Any) -> Tensors:
        array = dense("threshold", self._input, tensors)
        reached = array >= (array.dtype.type(self._at) if array.dtype.kind == "f" else self._at)
        if self._below is not None:
            result = xp.where(reached, array, array.dtype.type(self._below))
        else:
            result = reached.astype(self._dtype or array.dtype, copy=False)
        return put(tensors, (self._input,), {self._output: result})


KIND = OpKind(ThresholdOptions, Threshold)

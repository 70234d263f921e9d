"""Where the largest value is: its index along one axis.

Of equal values the lowest index counts. NaN is below every number; where there is nothing else, the index is 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
from pydantic import Field

from tensorgate.backends.ops.checks import axis_in, numeric, replaced
from tensorgate.backends.ops.tensor_op import TensorOp, TensorOptions
from tensorgate.gateway.contract.errors import InvalidArgument
from tensorgate.gateway.contract.operator import OpKind
from tensorgate.gateway.contract.tensor import DTYPES, Array, Tensors, TensorSpec


class ArgmaxOptions(TensorOptions):
    """The index of the largest value along an axis.

    Example: {op: argmax, input: logits, output: label, keep_input: true}
    """

    op: Literal["argmax"]
    output: str | None = Field(None, description="Name of the indices; the same if not given.")
    axis: int = Field(-1, description="The axis along which the largest is sought.")
    keepdims: bool = Field(False, description="Whether that axis stays, with one entry.")
    datatype: Literal["INT64", "INT32"] = Field("INT64", description="Datatype of the indices.")
    keep_input: bool = Field(False, description="Whether the tensor itself stays, too.")


class Argmax(TensorOp):
    """Numbers [..., n, ...] -> indices [..., ...], or [..., 1, ...], on the same device."""

    _axis: int

    def __init__(self, options: ArgmaxOptions) -> None:
        super().__init__(options)
        self._axis = options.axis
        self._keepdims = options.keepdims
        self._dtype = DTYPES[options.datatype]
        self._old = (options.input,) if not options.keep_input else ()

    def specs(self, specs: Mapping[str, TensorSpec]) -> Mapping[str, TensorSpec]:
        return replaced(self._op, specs, self._old, [self._made(specs)])

    def after(self, spec: TensorSpec) -> TensorSpec:
        numeric(self._op, spec)
        shape = spec.shape
        if shape is not None:
            axis = axis_in(self._op, self._input, shape, self._axis, ValueError)
            shape = (*shape[:axis], *([1] if self._keepdims else []), *shape[axis + 1 :])
        return TensorSpec(spec.name, self._dtype, shape)

    def __call__(self, tensors: Tensors, xp: Any) -> Tensors:
        after = super().__call__(tensors, xp)
        return after if self._old else {**tensors, **after}

    def compute(self, array: Array, xp: Any) -> Array:
        axis = axis_in(self._op, self._input, array.shape, self._axis)
        if not array.shape[axis]:
            raise InvalidArgument(f"{self._op}: axis {self._axis} of '{self._input}' has no entries")
        if array.dtype.kind == "f" and array.size:
            numbers = xp.where(xp.isnan(array), array.dtype.type(-np.inf), array)
            array = array == numbers.max(axis=axis, keepdims=True)  # of NaN nothing is equal, and the first counts
        indices = array.argmax(axis=axis).astype(self._dtype)
        return xp.expand_dims(indices, axis) if self._keepdims else indices


KIND = OpKind(ArgmaxOptions, Argmax)

"""Where the largest value is: its index along one axis.

Of equal values the lowest index counts. NaN is below every number; where there is nothing else, the index is 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
from pydantic import Field

from tensorgate.backends.ops.checks import axis_in, dense, numeric, one, one_axis, put, replaced
from tensorgate.gateway.contract.errors import InvalidArgument
from tensorgate.gateway.contract.operator import Op, OpKind
from tensorgate.gateway.contract.options import Options
from tensorgate.gateway.contract.tensor import DTYPES, Tensors, TensorSpec


class ArgmaxOptions(Options):
    """The index of the largest value along an axis.

    Example: {op: argmax, input: logits, output: label, keep_input: true}
    """

    op: Literal["argmax"]
    input: str = Field(description="Name of the tensor.")
    output: str | None = Field(None, description="Name of the indices; the same if not given.")
    axis: int = Field(-1, description="The axis along which the largest is sought.")
    keepdims: bool = Field(False, description="Whether that axis stays, with one entry.")
    datatype: Literal["INT64", "INT32"] = Field("INT64", description="Datatype of the indices.")
    keep_input: bool = Field(False, description="Whether the tensor itself stays, too.")


class Argmax(Op):
    """Numbers [..., n, ...] -> indices [..., ...], or [..., 1, ...], on the same device."""

    def __init__(self, options: ArgmaxOptions) -> None:
        self._input = options.input
        self._output = options.output or options.input
        self._axis = options.axis
        self._keepdims = options.keepdims
        self._dtype = DTYPES[options.datatype]
        self._old = (options.input,) if not options.keep_input else ()

    def specs(self, specs: Mapping[str, TensorSpec]) -> Mapping[str, TensorSpec]:
        spec = one("argmax", self._input, specs)
        numeric("argmax", spec)
        shape = spec.shape
        if shape is not None:
            axis = axis_in("argmax", self._input, shape, self._axis, ValueError)
            shape = (*shape[:axis], *([1] if self._keepdims else []), *shape[axis + 1 :])
        return replaced("argmax", specs, self._old, [TensorSpec(self._output, self._dtype, shape)])

    def along(self, specs: Mapping[str, TensorSpec]) -> tuple[str, int] | None:
        """The tensor and the axis whose entries depend on each other."""
        return one_axis(specs, self._input, self._axis)

    def __call__(self, tensors: Tensors, xp: Any) -> Tensors:
        array = dense("argmax", self._input, tensors)
        axis = axis_in("argmax", self._input, array.shape, self._axis)
        if not array.shape[axis]:
            raise InvalidArgument(f"argmax: axis {self._axis} of '{self._input}' has no entries")
        if array.dtype.kind == "f" and array.size:
            numbers = xp.where(xp.isnan(array), array.dtype.type(-np.inf), array)
            array = array == numbers.max(axis=axis, keepdims=True)  # of NaN nothing is equal, and the first counts
        indices = array.argmax(axis=axis).astype(self._dtype)
        if self._keepdims:
            indices = xp.expand_dims(indices, axis)
        return put(tensors, self._old, {self._output: indices})


KIND = OpKind(ArgmaxOptions, Argmax)

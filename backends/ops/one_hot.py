"""Indices as vectors: on at the index, off elsewhere, along a new axis.

An index counts from 0 and is never negative. Source: ONNX OneHot, but for negative indices.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field

from tensorgate.backends.ops.checks import axis_in, bounded, dense, holds, integral, one, put, replaced
from tensorgate.gateway.contract.errors import InvalidArgument
from tensorgate.gateway.contract.operator import Op, OpKind
from tensorgate.gateway.contract.options import Options
from tensorgate.gateway.contract.tensor import DTYPES, Tensors, TensorSpec


class OneHotOptions(Options):
    """Indices as vectors that are on in one place.

    Example: {op: one_hot, input: label, depth: 10}
    """

    op: Literal["one_hot"]
    input: str = Field(description="Name of the tensor of indices.")
    output: str | None = Field(None, description="Its name afterwards; the same if not given.")
    depth: int = Field(ge=1, le=1 << 24, description="Length of the vectors: indices are 0 to depth - 1.")
    axis: int = Field(-1, description="Where the new axis stands in the result, -1 for last.")
    on_value: float = Field(1, allow_inf_nan=False, description="The value at the index.")
    off_value: float = Field(0, allow_inf_nan=False, description="The value elsewhere.")
    out_of_range: Literal["ignore", "error"] = Field(
        "ignore", description="What becomes of other indices: a vector that is off everywhere, or an error."
    )
    datatype: Literal["FP32", "FP16", "FP64", "BOOL", "UINT8", "INT8", "INT32", "INT64"] = Field(
        "FP32", description="Datatype of the vectors."
    )


class OneHot(Op):
    """Integers [...] -> [..., depth, ...], on the same device."""

    def __init__(self, options: OneHotOptions) -> None:
        self._input = options.input
        self._output = options.output or options.input
        self._depth = options.depth
        self._axis = options.axis
        self._error = options.out_of_range == "error"
        self._dtype = DTYPES[options.datatype]
        for value in (options.on_value, options.off_value):
            if not holds(self._dtype, value):
                raise ValueError(f"one_hot: {value:g} is no {options.datatype}")
        self._on, self._off = (self._dtype.type(value) for value in (options.on_value, options.off_value))

    def specs(self, specs: Mapping[str, TensorSpec]) -> Mapping[str, TensorSpec]:
        spec = one("one_hot", self._input, specs)
        integral("one_hot", spec)
        shape = spec.shape
        if shape is not None:
            axis = axis_in("one_hot", self._output, (*shape, self._depth), self._axis, ValueError)
            shape = (*shape[:axis], self._depth, *shape[axis:])
        return replaced("one_hot", specs, (self._input,), [TensorSpec(self._output, self._dtype, shape)])

    def __call__(self, tensors: Tensors, xp: Any) -> Tensors:
        array = dense("one_hot", self._input, tensors)
        axis = axis_in("one_hot", self._output, (*array.shape, self._depth), self._axis)
        bounded("one_hot", (*array.shape, self._depth), max(self._dtype.itemsize, 1))
        if self._error and bool(((array < 0) | (array >= self._depth)).any()):  # waits for the device
            raise InvalidArgument(f"one_hot: '{self._input}' has an index that is not 0 to {self._depth - 1}")
        places = xp.arange(self._depth).reshape((-1, *(1,) * (array.ndim - axis)))
        hot = xp.where(xp.expand_dims(array, axis) == places, self._on, self._off)
        return put(tensors, (self._input,), {self._output: hot.astype(self._dtype, copy=False)})


KIND = OpKind(OneHotOptions, OneHot)

"""Indices as vectors: on at the index, off elsewhere, along a new axis.

An index counts from 0 and is never negative. Source: ONNX OneHot, but for negative indices.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal

from pydantic import Field

from tensorgate.backends.ops.checks import axis_in, holds, integral, replaced
from tensorgate.backends.ops.tensor_op import RenamingOptions, TensorOp
from tensorgate.gateway.contract.errors import InvalidArgument
from tensorgate.gateway.contract.operator import OpKind
from tensorgate.gateway.contract.tensor import DTYPES, Array, TensorSpec

_MAX_BYTES: Final = 1 << 30


class OneHotOptions(RenamingOptions):
    """Indices as vectors that are on in one place.

    Example: {op: one_hot, input: label, depth: 10}
    """

    op: Literal["one_hot"]
    input: str = Field(description="Name of the tensor of indices.")
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


class OneHot(TensorOp):
    """Integers [...] -> [..., depth, ...], on the same device."""

    def __init__(self, options: OneHotOptions) -> None:
        super().__init__(options)
        self._depth = options.depth
        self._new_axis = options.axis
        self._error = options.out_of_range == "error"
        self._dtype = DTYPES[options.datatype]
        for value in (options.on_value, options.off_value):
            if not holds(self._dtype, value):
                raise ValueError(f"one_hot: {value:g} is no {options.datatype}")
        self._on, self._off = (self._dtype.type(value) for value in (options.on_value, options.off_value))

    def specs(self, specs: Mapping[str, TensorSpec]) -> Mapping[str, TensorSpec]:
        return replaced(self._op, specs, (self._input,), [self._made(specs)])

    def after(self, spec: TensorSpec) -> TensorSpec:
        integral(self._op, spec)
        shape = spec.shape
        if shape is not None:
            axis = axis_in(self._op, self.tensor, (*shape, self._depth), self._new_axis, ValueError)
            shape = (*shape[:axis], self._depth, *shape[axis:])
        return TensorSpec(spec.name, self._dtype, shape)

    def compute(self, array: Array, xp: Any) -> Array:
        axis = axis_in(self._op, self.tensor, (*array.shape, self._depth), self._new_axis)
        size = array.size * self._depth * self._dtype.itemsize
        if size > _MAX_BYTES:
            raise InvalidArgument(f"one_hot would make {size:,} bytes, and {_MAX_BYTES:,} is the most")
        if self._error and bool(((array < 0) | (array >= self._depth)).any()):  # waits for the device
            raise InvalidArgument(f"one_hot: '{self._input}' has an index that is not 0 to {self._depth - 1}")
        places = xp.arange(self._depth).reshape((-1, *(1,) * (array.ndim - axis)))
        hot = xp.where(xp.expand_dims(array, axis) == places, self._on, self._off)
        return hot.astype(self._dtype, copy=False)


KIND = OpKind(OneHotOptions, OneHot)

"""The k largest values along an axis, best first, and where they are.

Equal values (-0.0 and 0.0 are equal) come by the lowest index, NaN last, as in classification: the search is the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal

from pydantic import Field, model_validator

from tensorgate.backends.ops.best_classes import best_indices
from tensorgate.backends.ops.checks import axis_in, dense, numeric, one, one_axis, put, replaced
from tensorgate.gateway.contract.errors import InvalidArgument
from tensorgate.gateway.contract.operator import Op, OpKind
from tensorgate.gateway.contract.options import Options
from tensorgate.gateway.contract.tensor import DTYPES, Tensors, TensorSpec


class TopKOptions(Options):
    """The k largest values along an axis, in descending order, and their indices.

    Example: {op: top_k, input: scores, k: 5, values: best, indices: classes}
    """

    op: Literal["top_k"]
    input: str = Field(description="Name of the tensor.")
    k: int = Field(ge=1, description="How many; the axis must have as many entries.")
    axis: int = Field(-1, description="The axis along which they are sought.")
    values: str | None = Field("values", description="Name of the values; null: they are not wanted.")
    indices: str | None = Field("indices", description="Name of the indices; null: they are not wanted.")
    datatype: Literal["INT64", "INT32"] = Field("INT64", description="Datatype of the indices.")
    keep_input: bool = Field(False, description="Whether the tensor itself stays, too.")

    @model_validator(mode="after")
    def _some_output(self) -> TopKOptions:
        if self.values is None and self.indices is None:
            raise ValueError("neither values nor indices are wanted")
        return self


class TopKOp(Op):
    """Numbers [..., n, ...] -> values and indices [..., k, ...], on the same device."""

    def __init__(self, options: TopKOptions) -> None:
        self._input = options.input
        self._k = options.k
        self._axis = options.axis
        self._values, self._indices = options.values, options.indices
        self._dtype = DTYPES[options.datatype]
        self._old = (options.input,) if not options.keep_input else ()

    def specs(self, specs: Mapping[str, TensorSpec]) -> Mapping[str, TensorSpec]:
        spec = one("top_k", self._input, specs)
        numeric("top_k", spec)
        shape = spec.shape
        if shape is not None:
            axis = axis_in("top_k", self._input, shape, self._axis, ValueError)
            if 0 <= shape[axis] < self._k:
                raise ValueError(
                    f"top_k: axis {self._axis} of '{self._input}' has {shape[axis]} entries, fewer than k, {self._k}"
                )
            shape = (*shape[:axis], self._k, *shape[axis + 1 :])
        named = ((self._values, spec.dtype), (self._indices, self._dtype))
        new = [
            replace(spec, name=name, dtype=dtype, shape=shape, labels=()) for name, dtype in named if name is not None
        ]
        return replaced("top_k", specs, self._old, new)

    def along(self, specs: Mapping[str, TensorSpec]) -> tuple[str, int] | None:
        """The tensor and the axis whose entries depend on each other."""
        return one_axis(specs, self._input, self._axis)

    def __call__(self, tensors: Tensors, xp: Any) -> Tensors:
        array = dense("top_k", self._input, tensors)
        axis = axis_in("top_k", self._input, array.shape, self._axis)
        if array.shape[axis] < self._k:
            raise InvalidArgument(
                f"top_k: axis {self._axis} of '{self._input}' has {array.shape[axis]} entries, fewer than k, {self._k}"
            )
        last = xp.moveaxis(array, axis, -1)
        flat = xp.ascontiguousarray(last).reshape(array.size // array.shape[axis], array.shape[axis])
        indices = best_indices(flat, self._k, xp)
        new = {}
        if self._values is not None:
            new[self._values] = xp.take_along_axis(flat, indices, axis=1)
        if self._indices is not None:
            new[self._indices] = indices.astype(self._dtype, copy=False)
        shape = (*last.shape[:-1], self._k)
        return put(tensors, self._old, {name: xp.moveaxis(new[name].reshape(shape), -1, axis) for name in new})


KIND = OpKind(TopKOptions, TopKOp)

"""One of two values at each place, by a condition. Source: ONNX Where, but that a value may be a number."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
from pydantic import Field, model_validator

from tensorgate.backends.ops.checks import dense, holds, one, put, replaced
from tensorgate.gateway.contract.errors import InvalidArgument
from tensorgate.gateway.contract.operator import Op, OpKind
from tensorgate.gateway.contract.options import Options
from tensorgate.gateway.contract.tensor import Tensors, TensorSpec


class WhereOptions(Options):
    """One of two values at each place, by a condition.

    Example: {op: where, condition: valid, x: scores, y: 0, output: scores}
    """

    op: Literal["where"]
    condition: str = Field(description="Name of a tensor of BOOL; it goes.")
    x: str | float = Field(description="Name of a tensor, or a number: what is taken where the condition is true.")
    y: str | float = Field(description="The same, where it is false. One of the two must be a tensor.")
    output: str = Field(description="Name of the result; of x or y if that is to be replaced.")

    @model_validator(mode="after")
    def _some_tensor(self) -> WhereOptions:
        if not isinstance(self.x, str) and not isinstance(self.y, str):
            raise ValueError("x and y are numbers; one of them must be a tensor")
        return self


class Where(Op):
    """BOOL and numbers of one shape -> the same shape, in the dtype of x or y, on the same device."""

    def __init__(self, options: WhereOptions) -> None:
        self._condition = options.condition
        self._values = options.x, options.y
        self._names = [value for value in self._values if isinstance(value, str)]
        self._output = options.output
        self._old = tuple(dict.fromkeys([self._condition, *[name for name in self._names if name == self._output]]))

    def specs(self, specs: Mapping[str, TensorSpec]) -> Mapping[str, TensorSpec]:
        condition = one("where", self._condition, specs)
        if condition.dtype != np.bool_:
            raise ValueError(
                f"where: '{condition.name}' is {condition.datatype}, expected BOOL; see threshold and cast"
            )
        tensors = [one("where", name, specs) for name in self._names]
        first = tensors[0]
        for value in self._values:
            if not isinstance(value, str) and not (first.dtype.kind in "iufb" and holds(first.dtype, value)):
                raise ValueError(f"where: {value:g} is no {first.datatype}, which '{first.name}' is")
        for each in (condition, *tensors):
            if each is not condition and each.dtype != first.dtype:
                raise ValueError(f"where: '{each.name}' is {each.datatype} and '{first.name}' {first.datatype}")
            if each.shape is not None and first.shape is not None and not _alike(each.shape, first.shape):
                raise ValueError(
                    f"where: '{each.name}' has shape {list(each.shape)}, '{first.name}' {list(first.shape)}"
                )
        return replaced("where", specs, self._old, [TensorSpec(self._output, first.dtype, first.shape)])

    def __call__(self, tensors: Tensors, xp: Any) -> Tensors:
        condition = dense("where", self._condition, tensors)
        arrays = [dense("where", value, tensors) if isinstance(value, str) else value for value in self._values]
        like = next(array for array in arrays if not isinstance(array, (int, float)))
        for array in (condition, *arrays):
            if not isinstance(array, (int, float)) and array.shape != like.shape:
                raise InvalidArgument(
                    f"where needs tensors of one shape, got {list(array.shape)} and {list(like.shape)}"
                )
        x, y = (like.dtype.type(array) if isinstance(array, (int, float)) else array for array in arrays)
        return put(tensors, self._old, {self._output: xp.where(condition, x, y)})


def _alike(a: tuple[int, ...], b: tuple[int, ...]) -> bool:
    return len(a) == len(b) and all(-1 in pair or pair[0] == pair[1] for pair in zip(a, b, strict=True))


KIND = OpKind(WhereOptions, Where)

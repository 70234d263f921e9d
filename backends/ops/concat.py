"""Several tensors as one, along one axis. Any dtype, all of one. Source: ONNX Concat."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from pydantic import Field

from tensorgate.backends.ops.checks import axis_in, given, one, one_axis, put, replaced
from tensorgate.gateway.contract.errors import InvalidArgument
from tensorgate.gateway.contract.operator import Op, OpKind
from tensorgate.gateway.contract.options import Options
from tensorgate.gateway.contract.tensor import Tensors, TensorSpec


class ConcatOptions(Options):
    """Several tensors as one, behind each other along one axis.

    Example: {op: concat, inputs: [age, income], output: features, axis: 1}
    """

    op: Literal["concat"]
    inputs: tuple[str, ...] = Field(min_length=2, description="Names of the tensors, in order; they go.")
    output: str = Field(description="Name of the result.")
    axis: int = Field(-1, description="The axis along which they are joined; not the batch dimension.")


class Concat(Op):
    """[..., n, ...], [..., m, ...] -> [..., n + m, ...], on the same device."""

    def __init__(self, options: ConcatOptions) -> None:
        self._inputs = options.inputs
        self._output = options.output
        self._axis = options.axis

    def specs(self, specs: Mapping[str, TensorSpec]) -> Mapping[str, TensorSpec]:
        parts = [one("concat", name, specs) for name in self._inputs]
        for each in parts[1:]:
            if each.dtype != parts[0].dtype:
                types = f"'{each.name}' is {each.datatype} and '{parts[0].name}' {parts[0].datatype}"
                raise ValueError(f"concat: {types}; cast one of them")
        shapes = [each.shape for each in parts if each.shape is not None]
        shape = self._joined(shapes, ValueError) if len(shapes) == len(parts) else None
        return replaced("concat", specs, self._inputs, [TensorSpec(self._output, parts[0].dtype, shape)])

    def along(self, specs: Mapping[str, TensorSpec]) -> tuple[str, int] | None:
        """The first tensor and the axis along which it grows."""
        return one_axis(specs, self._inputs[0], self._axis)

    def __call__(self, tensors: Tensors, xp: Any) -> Tensors:
        arrays = [given("concat", name, tensors) for name in self._inputs]
        self._joined([array.shape for array in arrays], InvalidArgument)
        return put(tensors, self._inputs, {self._output: xp.concatenate(arrays, axis=self._axis)})

    def _joined(self, shapes: Sequence[tuple[int, ...]], refuse: type[ValueError | InvalidArgument]) -> tuple[int, ...]:
        """The shape of the result, -1 where it is open."""
        first = shapes[0]
        axis = axis_in("concat", self._inputs[0], first, self._axis, refuse)
        for name, shape in zip(self._inputs[1:], shapes[1:], strict=True):
            others = zip((*first[:axis], *first[axis + 1 :]), (*shape[:axis], *shape[axis + 1 :]), strict=False)
            if len(shape) != len(first) or any(a != b and -1 not in (a, b) for a, b in others):
                told = f"'{name}' has shape {list(shape)} and '{self._inputs[0]}' {list(first)}"
                raise refuse(f"concat: {told}; they may differ in axis {self._axis} alone")
        sizes = [shape[axis] for shape in shapes]
        known = [max(size) for size in zip(*shapes, strict=True)]
        return (*known[:axis], -1 if -1 in sizes else sum(sizes), *known[axis + 1 :])


KIND = OpKind(ConcatOptions, Concat)

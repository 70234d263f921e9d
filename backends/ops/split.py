"""One tensor as several, cut along one axis. Any dtype. Source: ONNX Split."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import accumulate, pairwise
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from tensorgate.backends.ops.checks import axis_in, given, one, one_axis, put, replaced
from tensorgate.gateway.contract.errors import InvalidArgument
from tensorgate.gateway.contract.operator import Op, OpKind
from tensorgate.gateway.contract.options import Options
from tensorgate.gateway.contract.tensor import Tensors, TensorSpec


class SplitOptions(Options):
    """One tensor as several, cut along one axis.

    Example: {op: split, input: head, sizes: [4, 80], outputs: [boxes, scores], axis: -1}
    """

    op: Literal["split"]
    input: str = Field(description="Name of the tensor; it goes, its parts stay.")
    sizes: tuple[Annotated[int, Field(ge=1)], ...] = Field(
        min_length=1, description="How many entries of the axis each part gets, in order; together all there are."
    )
    outputs: tuple[str, ...] = Field(min_length=1, description="Names of the parts, as many as sizes.")
    axis: int = Field(-1, description="The axis that is cut; not the batch dimension.")

    @model_validator(mode="after")
    def _one_name_a_part(self) -> SplitOptions:
        if len(self.sizes) != len(self.outputs) or len({*self.outputs}) < len(self.outputs):
            raise ValueError(f"{len(self.sizes)} sizes want as many different names in outputs")
        return self


class Split(Op):
    """[..., n, ...] -> parts [..., size, ...], views on the same device."""

    def __init__(self, options: SplitOptions) -> None:
        self._input = options.input
        self._axis = options.axis
        self._sizes = options.sizes
        self._parts = [slice(*ends) for ends in pairwise(accumulate(options.sizes, initial=0))]
        self._names = options.outputs

    def specs(self, specs: Mapping[str, TensorSpec]) -> Mapping[str, TensorSpec]:
        spec = one("split", self._input, specs)
        shapes: list[tuple[int, ...] | None] = [None] * len(self._names)
        if (shape := spec.shape) is not None:
            axis = axis_in("split", self._input, shape, self._axis, ValueError)
            if shape[axis] not in (-1, sum(self._sizes)):
                raise ValueError(
                    f"split: axis {self._axis} of '{self._input}' has {shape[axis]} entries, {self._told()}"
                )
            shapes = [(*shape[:axis], size, *shape[axis + 1 :]) for size in self._sizes]
        parts = [
            replace(spec, name=name, shape=each, labels=()) for name, each in zip(self._names, shapes, strict=True)
        ]
        return replaced("split", specs, (self._input,), parts)

    def along(self, specs: Mapping[str, TensorSpec]) -> tuple[str, int] | None:
        """The tensor and the axis that is cut."""
        return one_axis(specs, self._input, self._axis)

    def __call__(self, tensors: Tensors, xp: Any) -> Tensors:
        array = given("split", self._input, tensors)
        axis = axis_in("split", self._input, array.shape, self._axis)
        if array.shape[axis] != sum(self._sizes):
            raise InvalidArgument(f"split: '{self._input}' has shape {list(array.shape)}, {self._told()}")
        front = (slice(None),) * axis
        parts = {name: array[(*front, part)] for name, part in zip(self._names, self._parts, strict=True)}
        return put(tensors, (self._input,), parts)

    def _told(self) -> str:
        return f"sizes are {sum(self._sizes)} together"


KIND = OpKind(SplitOptions, Split)

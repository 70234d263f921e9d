"""What operators share that make one tensor out of one tensor: finding it, its name afterwards, its place among others.

A new one of them says in `after` what becomes of the specification, and in `compute` what becomes of the array.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from pydantic import Field

from tensorgate.backends.ops.checks import dense, one, one_axis, renamed
from tensorgate.gateway.contract.operator import Op
from tensorgate.gateway.contract.options import Options
from tensorgate.gateway.contract.tensor import Array, Tensors, TensorSpec


class TensorOptions(Options):
    """Which tensor."""

    op: str
    input: str = Field(description="Name of the tensor.")


class RenamingOptions(TensorOptions):
    """Which tensor, and what it is called afterwards."""

    output: str | None = Field(None, description="Its name afterwards; the same if not given.")


class TensorOp(Op):
    """One tensor -> one tensor in its place, called `output` if the options have that."""

    takes_objects: bool = False
    """Whether it works on BYTES, or on images of different sizes."""

    def __init__(self, options: Any) -> None:
        self._op: str = options.op
        self._input: str = options.input
        self.tensor = getattr(options, "output", None) or options.input
        self._axis: int | None = None
        """The axis whose entries depend on each other, if there is one."""

    def specs(self, specs: Mapping[str, TensorSpec]) -> Mapping[str, TensorSpec]:
        return renamed(self._op, specs, self._input, self._made(specs))

    def _made(self, specs: Mapping[str, TensorSpec]) -> TensorSpec:
        """The specification of the result, under its name."""
        return replace(self.after(one(self._op, self._input, specs)), name=self.tensor)

    def along(self, specs: Mapping[str, TensorSpec]) -> tuple[str, int] | None:
        """The tensor and the axis whose entries depend on each other."""
        return None if self._axis is None else one_axis(specs, self._input, self._axis)

    def __call__(self, tensors: Tensors, xp: Any) -> Tensors:
        array = tensors.get(self._input)
        if array is None or (not self.takes_objects and array.dtype.hasobject):
            array = dense(self._op, self._input, tensors)  # which says what is wrong
        result = self.compute(array, xp)
        if self.tensor == self._input:
            return {**tensors, self.tensor: result}
        return {**{name: other for name, other in tensors.items() if name != self._input}, self.tensor: result}

    @abstractmethod
    def after(self, spec: TensorSpec) -> TensorSpec:
        """What the tensor is afterwards, but for its name. Raises ValueError if it cannot be worked on."""

    @abstractmethod
    def compute(self, array: Array, xp: Any) -> Array:
        """The tensor afterwards, on the same device. Raises InvalidArgument for values that cannot be worked on."""

"""Give a tensor another shape with the same elements: x -> x.reshape(…), over its last axes.

The axes in front of these, such as the rows of a batch, stay. Any dtype.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from tensorgate.backends.ops.tensor_op import TensorOp, TensorOptions
from tensorgate.gateway.contract.errors import InvalidArgument
from tensorgate.gateway.contract.operator import OpKind
from tensorgate.gateway.contract.tensor import Array, TensorSpec

Size = Annotated[int, Field(ge=-1)]


class ReshapeOptions(TensorOptions):
    """Another shape of the last axes with the same elements; those in front, such as rows, stay.

    Example: {op: reshape, input: image, before: [784], after: [1, 28, 28]}
    """

    op: Literal["reshape"]
    before: tuple[Size, ...] = Field(description="Shape of its last axes, -1 where one varies; []: none yet.")
    after: tuple[Size, ...] = Field(description="Their shape afterwards; its -1 are those of `before`, in order.")

    @model_validator(mode="after")
    def _same_elements(self) -> ReshapeOptions:
        fixed = [prod(size for size in shape if size >= 0) for shape in (self.before, self.after)]
        if fixed[0] != fixed[1] or self.before.count(-1) != self.after.count(-1):
            raise ValueError(f"{list(self.before)} and {list(self.after)} do not hold the same number of elements")
        return self


class Reshape(TensorOp):
    """[..., *before] -> [..., *after], on the same device; a view where the memory's order allows it."""

    takes_objects = True

    def __init__(self, options: ReshapeOptions) -> None:
        super().__init__(options)
        self._before = options.before
        self._after = options.after

    def after(self, spec: TensorSpec) -> TensorSpec:
        if spec.shape is None:
            return spec
        front, last = self._split(spec.shape)
        if not self._fits(last):
            raise ValueError(
                f"reshape: '{self._input}' of shape {list(spec.shape)} does not end in {list(self._before)}"
            )
        return replace(spec, shape=(*front, *self._after))

    def compute(self, array: Array, xp: Any) -> Array:
        front, last = self._split(array.shape)
        if not self._fits(last):
            shape = list(array.shape)
            raise InvalidArgument(f"'{self._input}' has shape {shape}, which must end in {list(self._before)}")
        varying = iter([got for got, want in zip(last, self._before, strict=True) if want < 0])
        after = [next(varying) if size < 0 else size for size in self._after]
        return array.reshape((*front, *after))

    def _fits(self, last: tuple[int, ...]) -> bool:
        """Whether these axes, of an array or of a specification, can be those before."""
        return len(last) == len(self._before) and all(
            -1 in pair or pair[0] == pair[1] for pair in zip(last, self._before, strict=True)
        )

    def _split(self, shape: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The axes in front, and those that change."""
        at = max(len(shape) - len(self._before), 0)
        return shape[:at], shape[at:]


KIND = OpKind(ReshapeOptions, Reshape)

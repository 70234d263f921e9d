"""Add a border to images: [..., H, W, C] -> [..., h, w, C], or with channels first.

Any numbers; dtype kept.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field, model_validator

from tensorgate.backends.ops.images import (
    LAYOUT,
    ImageOp,
    Layout,
    Length,
    Size,
    across,
    size_in,
)
from tensorgate.backends.ops.tensor_op import TensorOptions
from tensorgate.gateway.contract.errors import InvalidArgument
from tensorgate.gateway.contract.operator import OpKind
from tensorgate.gateway.contract.tensor import Array, TensorSpec

Border = Annotated[int, Field(ge=0, le=65536)]


class PadOptions(TensorOptions):
    """Images extended to a size, or to a multiple of one.

    Example: {op: pad, input: image, size: [640, 640]}
    """

    op: Literal["pad"]
    size: tuple[Length, Length] | None = Field(None, description="[height, width] afterwards.")
    borders: tuple[Border, Border, Border, Border] | None = Field(
        None, description="Instead of `size`: how much is added at the [top, bottom, left, right]."
    )
    place: Literal["center", "start"] = Field(
        "center", description="Where the image is within `size`: in the middle, or at the top left."
    )
    mode: Literal["constant", "edge", "reflect"] = Field(
        "constant", description="What is added: `value`, the nearest pixel, or the image mirrored without its edge."
    )
    value: float = Field(0.0, allow_inf_nan=False, description="The number that is added, in the tensor's own scale.")
    layout: Layout = LAYOUT

    @model_validator(mode="after")
    def _one_way(self) -> PadOptions:
        if (self.size is None) == (self.borders is None):
            raise ValueError("give either size or borders")
        return self


class Pad(ImageOp):
    """Images that are larger than `size` are refused."""

    def __init__(self, options: PadOptions) -> None:
        super().__init__(options)
        self._options = options
        self._fill = {"constant_values": options.value} if options.mode == "constant" else {}

    def check(self, spec: TensorSpec) -> None:
        if not _can_be(self._options.value, spec.dtype):
            raise ValueError(f"pad: '{self.tensor}' is {spec.datatype}, which has no {self._options.value:g}")

    def size_after(self, old: Size) -> Size:
        new = self._options.size
        if new is not None:
            if any(have > want for have, want in zip(old, new, strict=True)):
                raise ValueError(f"pad: '{self.tensor}' has images of {list(old)}, larger than {list(new)}")
            return new
        height, width = map(sum, self._borders(old))
        return old[0] + height if old[0] >= 0 else -1, old[1] + width if old[1] >= 0 else -1

    def of_one_size(self, images: Array, xp: Any) -> Array:
        height, width = self._borders(size_in(images.shape, self._layout))
        widths = across(self._layout, height, width, (0, 0), images.ndim)
        if self._options.mode != "constant" and not images.size:
            return xp.zeros([have + sum(more) for have, more in zip(images.shape, widths, strict=True)], images.dtype)
        return xp.pad(images, widths, self._options.mode, **self._fill)

    def _borders(self, old: Size) -> tuple[tuple[int, int], tuple[int, int]]:
        """What is added before and behind, along the height and along the width."""
        options = self._options
        if options.borders is not None:
            top, bottom, left, right = options.borders
            return (top, bottom), (left, right)
        assert options.size is not None  # noqa: S101 - one of the two is given
        missing = [want - have for have, want in zip(old, options.size, strict=True)]
        if min(missing) < 0:
            raise InvalidArgument(
                f"'{self.tensor}': an image of {old[0]} x {old[1]} is larger than "
                f"{options.size[0]} x {options.size[1]}; send smaller ones, or have the model's preprocess resize them"
            )
        before = [0 if options.place == "start" else more // 2 for more in missing]
        return (before[0], missing[0] - before[0]), (before[1], missing[1] - before[1])


def _can_be(value: float, dtype: np.dtype[Any]) -> bool:
    if dtype.kind == "b":
        return value in (0, 1)
    return dtype.kind not in "iu" or (value.is_integer() and np.iinfo(dtype).min <= value <= np.iinfo(dtype).max)


KIND = OpKind(PadOptions, Pad)

"""Cut the middle out of images: [..., H, W, C] -> [..., h, w, C], or with channels first.

Any numbers; dtype kept. Smaller images are first padded with zeros on all sides. Source: torchvision's CenterCrop.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

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
from tensorgate.gateway.contract.operator import OpKind
from tensorgate.gateway.contract.tensor import Array


class CenterCropOptions(TensorOptions):
    """The middle of each image, cut out at a size.

    Example: {op: center_crop, input: image, size: [224, 224]}
    """

    op: Literal["center_crop"]
    size: tuple[Length, Length] = Field(description="[height, width] afterwards.")
    layout: Layout = LAYOUT


class CenterCrop(ImageOp):
    """Images of different sizes become one array."""

    def __init__(self, options: CenterCropOptions) -> None:
        super().__init__(options)
        self._size = options.size

    def size_after(self, old: Size) -> Size:
        return self._size

    def of_one_size(self, images: Array, xp: Any) -> Array:
        old = size_in(images.shape, self._layout)
        if any(have < want for have, want in zip(old, self._size, strict=True)):
            images = self._padded(images, old, xp)
            old = size_in(images.shape, self._layout)
        height, width = (
            slice(start := _start(have, want), start + want) for have, want in zip(old, self._size, strict=True)
        )
        return xp.ascontiguousarray(images[tuple(across(self._layout, height, width, slice(None), images.ndim))])

    def _padded(self, images: Array, old: Size, xp: Any) -> Array:
        """Zeros around images that are too small; where their number is odd, there is one more behind."""
        missing = [max(want - have, 0) for have, want in zip(old, self._size, strict=True)]
        height, width = ((more // 2, more - more // 2) for more in missing)
        return xp.pad(images, across(self._layout, height, width, (0, 0), images.ndim))


def _start(have: int, want: int) -> int:
    """Where the middle begins; between two pixels it is the even one. Source: torchvision rounds as Python does."""
    return round((have - want) / 2)


KIND = OpKind(CenterCropOptions, CenterCrop)

"""Cut the middle out of images: [..., H, W, C] -> [..., h, w, C], or with channels first.

Any numbers; dtype kept. Smaller images are first padded with zeros on all sides. Source: torchvision's CenterCrop.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, Literal

from pydantic import Field

from tensorgate.backends.ops.checks import present
from tensorgate.backends.ops.images import LAYOUT, Layout, Size, across, each, image_spec, size_in, with_size
from tensorgate.gateway.contract.operator import Op, OpKind
from tensorgate.gateway.contract.options import Options
from tensorgate.gateway.contract.tensor import Array, Tensors, TensorSpec

Length = Annotated[int, Field(ge=1, le=65536)]


class CenterCropOptions(Options):
    """The middle of each image, cut out at a size.

    Example: {op: center_crop, input: image, size: [224, 224]}
    """

    op: Literal["center_crop"]
    input: str = Field(description="Name of the tensor.")
    size: tuple[Length, Length] = Field(description="[height, width] afterwards.")
    layout: Layout = LAYOUT


class CenterCrop(Op):
    """Images -> images of one size, on the same device; those of different sizes become one array."""

    ragged = "takes"

    def __init__(self, options: CenterCropOptions) -> None:
        self.tensor = options.input
        self._size = options.size
        self._layout = options.layout

    def specs(self, specs: Mapping[str, TensorSpec]) -> Mapping[str, TensorSpec]:
        spec = image_spec("center_crop", self.tensor, specs)
        if spec.shape is None:
            return specs
        return {**specs, self.tensor: replace(spec, shape=with_size(spec.shape, self._layout, self._size))}

    def __call__(self, tensors: Tensors, xp: Any) -> Tensors:
        images = present(self, self.tensor, tensors)
        return {**tensors, self.tensor: each(images, lambda some: self._cropped(some, xp), xp)}

    def _cropped(self, images: Array, xp: Any) -> Array:
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

"""Give images another size: [..., H, W, C] -> [..., h, w, C], or with channels first.

UINT8, FP16, FP32 or FP64; dtype kept. With `antialias`, as Pillow resizes: UINT8 to the bit, floats as its mode F.
"""

from __future__ import annotations

import functools
import importlib
from math import prod
from typing import Any, Final, Literal

import numpy as np
from pydantic import Field, model_validator

from tensorgate.backends.ops import resampling
from tensorgate.backends.ops.checks import here
from tensorgate.backends.ops.images import (
    LAYOUT,
    ImageOp,
    Layout,
    Length,
    Size,
    size_in,
    spread,
    with_size,
)
from tensorgate.backends.ops.resampling import Method
from tensorgate.backends.ops.tensor_op import TensorOptions
from tensorgate.gateway.contract.errors import InvalidArgument
from tensorgate.gateway.contract.operator import OpKind
from tensorgate.gateway.contract.tensor import Array, TensorSpec

_UINT8: Final = np.dtype(np.uint8)
_KEPT_TABLES: Final = 64
_MODES: Final = {1: "L", 3: "RGB", 4: "CMYK"}  # those whose channels Pillow resizes each by itself
_MANY_PIXELS: Final = 1 << 16
_FLOATS: Final = 4 << 20
_TURNS_SINCE: Final = 13


class ResizeOptions(TensorOptions):
    """Images at another size.

    Example: {op: resize, input: image, size: [224, 224]}
    """

    op: Literal["resize"]
    size: tuple[Length, Length] | None = Field(None, description="[height, width] afterwards.")
    shorter: Length | None = Field(None, description="Instead of `size`: its shorter side; the other in proportion.")
    longer: Length | None = Field(None, description="Instead of `size`: its longer side; the other in proportion.")
    method: Method = Field("bilinear", description="nearest, bilinear, bicubic or lanczos.")
    antialias: bool = Field(
        True, description="Whether a smaller image takes all pixels into account, as Pillow does; not for nearest."
    )
    layout: Layout = LAYOUT
    max_pixels: int = Field(50_000_000, ge=1, description="The most pixels that one image may come to have.")

    @model_validator(mode="after")
    def _one_size(self) -> ResizeOptions:
        given = [self.size, self.shorter, self.longer]
        if given.count(None) != 2:
            raise ValueError("give one of size, shorter and longer")
        if self.method == "lanczos" and not self.antialias:
            raise ValueError("lanczos is there with antialias only")
        if self.size is not None and prod(self.size) > self.max_pixels:
            raise ValueError(f"size {list(self.size)} has more than max_pixels, {self.max_pixels}")
        return self


class Resize(ImageOp):
    """Temporaries stay below some tens of megabytes, or a few times one image if that is larger."""

    def __init__(self, options: ResizeOptions) -> None:
        super().__init__(options)
        self._options = options
        self._tables = functools.lru_cache(maxsize=_KEPT_TABLES)(self._make_tables)

    def check(self, spec: TensorSpec) -> None:
        if spec.dtype != _UINT8 and spec.datatype not in ("FP16", "FP32", "FP64"):
            raise ValueError(f"resize: '{self.tensor}' is {spec.datatype}; cast it to UINT8 or FP32 first")

    def size_after(self, old: Size) -> Size:
        """Source: torchvision.transforms.Resize, which cuts off what is behind the point."""
        options = self._options
        if options.size is not None:
            return options.size
        if min(old) <= 0:
            return -1, -1
        short, long = min(old), max(old)
        if options.shorter is not None:
            short, long = options.shorter, options.shorter * long // short
        else:
            assert options.longer is not None  # noqa: S101 - one of the three is given
            short, long = max(1, options.longer * short // long), options.longer
        return (short, long) if old[0] <= old[1] else (long, short)

    def of_one_size(self, images: Array, xp: Any) -> Array:
        old = size_in(images.shape, self._layout)
        if 0 in old:
            return self._of_nothing(images, xp)
        new = self.size_after(old)
        if prod(new) > self._options.max_pixels:
            raise InvalidArgument(
                f"'{self.tensor}': an image of {old[0]} x {old[1]} would have {new[0]} x {new[1]} after resizing, "
                f"which is more than {self._options.max_pixels} pixels"
            )
        if old == new:
            return images
        if self._options.method == "nearest" or images.dtype not in (_UINT8, np.float16):
            return self._both_ways(images, new, xp)
        if images.dtype == np.float16 or not self._options.antialias:
            return self._in_float32(images, new, xp)
        by_pillow = _pillow(images, new, self._options) if xp is np else None
        return self._both_ways(images, new, xp) if by_pillow is None else by_pillow

    def _in_float32(self, images: Array, new: Size, xp: Any) -> Array:
        """A few images at a time, rounded at the end."""
        batch = images.reshape(-1, *images.shape[-3:])
        result = xp.empty((len(batch), *with_size(batch.shape[1:], self._layout, new)), images.dtype)
        step = max(1, _FLOATS // max(prod(batch.shape[1:]), prod(result.shape[1:])))
        for start in range(0, len(batch), step):
            smooth = self._both_ways(batch[start : start + step].astype(np.float32), new, xp)
            if images.dtype == _UINT8:
                smooth = xp.rint(smooth, out=smooth).clip(0, 255)
            result[start : start + step] = smooth
        return result.reshape(*images.shape[:-3], *result.shape[1:])

    def _of_nothing(self, images: Array, xp: Any) -> Array:
        """No image at all has no size yet."""
        if images.shape[0] and len(images.shape) > 3:
            raise InvalidArgument(f"'{self.tensor}' has images without pixels, of shape {list(images.shape[1:])}")
        size = self._options.size or (self._options.shorter or self._options.longer or 0,) * 2
        return xp.zeros(with_size(images.shape, self._layout, size), images.dtype)

    def _both_ways(self, images: Array, new: Size, xp: Any) -> Array:
        """Along the width and along the height, each if it changes, in Pillow's order."""
        passes = [*zip((-3, -2) if self._layout == "NHWC" else (-2, -1), new, strict=True)]
        if not _height_first(size_in(images.shape, self._layout), new):
            passes.reverse()
        for axis, length in passes:
            if images.shape[axis] != length:
                images = self._one_way(images, axis % images.ndim, length, xp)
        return images

    def _one_way(self, images: Array, axis: int, new: int, xp: Any) -> Array:
        method, antialias = self._options.method, self._options.antialias
        shape = images.shape
        if method == "nearest":
            (entries,) = self._tables(here(xp), xp, shape[axis], new, images.dtype)
            return xp.take(images, entries, axis)
        flat = images.reshape(prod(shape[:axis]), shape[axis], prod(shape[axis + 1 :]))
        if xp is np:
            flat = resampling.on_host(flat, new, method, antialias)
        else:
            tables = self._tables(here(xp), xp, shape[axis], new, images.dtype)
            flat = resampling.on_gpu(flat, new, tables, xp)
        return flat.reshape(*shape[:axis], new, *shape[axis + 1 :])

    def _make_tables(self, place: Any, xp: Any, old: int, new: int, dtype: np.dtype[Any]) -> tuple[Array, ...]:
        """What a pass reads beside the images, on their device; kept, the last few."""
        if self._options.method == "nearest":
            return (xp.asarray(resampling.nearest(old, new)),)
        tables = resampling.host_tables(old, new, self._options.method, self._options.antialias, dtype)
        return tuple(xp.asarray(table) for table in tables)


def _pillow(images: Array, new: Size, options: ResizeOptions) -> Array | None:
    """Resize by Pillow, several images at a time, which is quicker on a host; None if it is not there, or cannot."""
    pillow = _pillow_image()
    channels = images.shape[-1]
    if (
        pillow is None
        or options.layout != "NHWC"
        or channels not in _MODES
        or max(size_in(images.shape, "NHWC")) > 65535
    ):
        return None
    filters = pillow.Resampling
    method = {"bilinear": filters.BILINEAR, "bicubic": filters.BICUBIC, "lanczos": filters.LANCZOS}[options.method]
    batch = np.ascontiguousarray(images).reshape(-1, *images.shape[-3:])
    result = np.empty((len(batch), *new, channels), np.uint8)

    def work(row: int) -> None:
        image = batch[row, ..., 0] if channels == 1 else batch[row]
        resized = pillow.frombuffer(_MODES[channels], image.shape[1::-1], image, "raw", _MODES[channels], 0, 1)
        result[row] = np.asarray(resized.resize(new[::-1], method)).reshape(result.shape[1:])

    spread(work, range(len(batch)), pays=prod(images.shape[-3:-1]) + prod(new) > _MANY_PIXELS)
    return result.reshape(*images.shape[:-3], *new, channels)


def _height_first(old: Size, new: Size) -> bool:
    """Whether the height shrinks by more than twice as many pixels as the width. Pillow goes that way since 13."""
    return old[0] - new[0] > max(0, 2 * (old[1] - new[1])) and _pillow_version() >= _TURNS_SINCE


@functools.cache
def _pillow_version() -> int:
    """The first number of the version that is here, or else of the latest that is known."""
    return _TURNS_SINCE if _pillow_image() is None else int(importlib.import_module("PIL").__version__.split(".")[0])


@functools.cache
def _pillow_image() -> Any:
    try:
        return importlib.import_module("PIL.Image")
    except ImportError:
        return None


KIND = OpKind(ResizeOptions, Resize)

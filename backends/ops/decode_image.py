"""Turn files of images into pixels: BYTES [N] or [N, 1] -> UINT8 [N, H, W, C].

JPEG and PNG, and what else `formats` allows: decoded by Pillow on the host, or JPEGs by NVIDIA nvImageCodec where the
model is on a GPU and it is installed. Images of different sizes make a ragged batch: see `backends.ops.images`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final, Literal

import numpy as np
from pydantic import Field

from tensorgate.backends.ops import image_files
from tensorgate.backends.ops.checks import here
from tensorgate.backends.ops.image_files import Header, Mode
from tensorgate.backends.ops.images import T, is_ragged, joined, spread
from tensorgate.backends.ops.tensor_op import RenamingOptions, TensorOp
from tensorgate.gateway.contract.errors import InvalidArgument
from tensorgate.gateway.contract.extras import install_command
from tensorgate.gateway.contract.operator import OpKind
from tensorgate.gateway.contract.tensor import BYTES, DTYPES, Array, TensorSpec

_MANY_PIXELS: Final = 1 << 16


class DecodeImageOptions(RenamingOptions):
    """Image files as pixels.

    Example: {op: decode_image, input: file, output: image}
    """

    op: Literal["decode_image"]
    input: str = Field(description="Name of the tensor: a file in each element.")
    mode: Mode = Field("RGB", description="RGB for three channels, GRAY for one; transparency is left out.")
    formats: tuple[Literal["JPEG", "PNG", "WEBP", "BMP", "GIF"], ...] = Field(
        ("JPEG", "PNG"),
        min_length=1,
        description="Formats that are accepted; of several pictures in a file, the first.",
    )
    exif_orientation: bool = Field(True, description="Whether a photo is turned upright as its camera says.")
    max_pixels: int = Field(
        50_000_000, ge=1, le=89_478_485, description="The most pixels of one image, by what its file says of itself."
    )
    max_batch_pixels: int = Field(200_000_000, ge=1, description="The most pixels of all images that run together.")
    decoder: Literal["auto", "pillow", "nvimgcodec"] = Field(
        "auto",
        description="What decodes JPEGs of a model on a GPU; auto: nvimgcodec, if it is installed. It may differ from "
        "Pillow by a few levels.",
    )


class DecodeImage(TensorOp):
    """BYTES on the host -> pixels on the device. What cannot be read is InvalidArgument, which names its row."""

    ragged = "makes"
    takes_objects = True
    steady = False  # how long it takes is a matter of what is in the files

    def __init__(self, options: DecodeImageOptions) -> None:
        """Raises ValueError if what decodes is not installed."""
        super().__init__(options)
        self._options = options
        self._gpu = image_files.GpuDecoder(options.mode)
        image_files.find_pillow()
        if options.decoder == "nvimgcodec" and not self._gpu.installed:
            raise ValueError(
                f"decode_image: nvImageCodec is not installed: {install_command('images-cuda13')} "
                "(or -cu12 in place of -cu13), or say decoder: auto"
            )

    def after(self, spec: TensorSpec) -> TensorSpec:
        if spec.dtype != BYTES:
            raise ValueError(f"decode_image: '{self._input}' is {spec.datatype}; files of images come as BYTES")
        shape = spec.shape
        if shape is not None and not (len(shape) == 1 or (len(shape) == 2 and shape[1] == 1)):
            raise ValueError(
                f"decode_image: '{self._input}' has shape {list(shape)}; it takes [-1] or [-1, 1], a file per row"
            )
        rows, channels = -1 if shape is None else shape[0], 3 if self._options.mode == "RGB" else 1
        return replace(spec, dtype=DTYPES["UINT8"], shape=(rows, -1, -1, channels))

    def compute(self, array: Array, xp: Any) -> Array:
        files = array.reshape(-1).tolist()
        if not files:
            return xp.zeros((0, 0, 0, 3 if self._options.mode == "RGB" else 1), np.uint8)
        limits = self._options.formats, self._options.max_pixels
        headers = [self._of_row(row, image_files.read_header, data, *limits) for row, data in enumerate(files)]
        pixels = sum(header.pixels for header in headers)
        if pixels > self._options.max_batch_pixels:
            raise InvalidArgument(
                f"'{self._input}': {len(files)} images of {pixels} pixels are more than the "
                f"{self._options.max_batch_pixels} that run together: send fewer, or smaller ones"
            )
        images: list[Array | None] = [None] * len(files)
        if xp is not np and self._options.decoder != "pillow" and self._gpu.installed:
            decoded = self._gpu.decode(headers, here(xp), xp)
            images = [
                image if image is None else self._upright(image, header, xp)
                for image, header in zip(decoded, headers, strict=True)
            ]
        rows = [row for row, image in enumerate(images) if image is None]
        found = spread(lambda row: self._pixels(row, headers[row]), rows, pays=pixels > _MANY_PIXELS)
        if len(rows) == len(files):
            return _put(joined(found, np), xp)
        for row, image in zip(rows, found, strict=True):
            images[row] = xp.asarray(image)
        return joined(images, xp)

    def _of_row(self, row: int, read: Callable[..., T], *arguments: Any) -> T:
        """What is read of an image's file. Raises InvalidArgument that names the row."""
        try:
            return read(*arguments)
        except ValueError as error:
            raise InvalidArgument(f"'{self._input}': image {row} {error}") from None

    def _pixels(self, row: int, header: Header) -> Array:
        return self._upright(self._of_row(row, image_files.decode, header, self._options.mode), header, np)

    def _upright(self, pixels: Array, header: Header, xp: Any) -> Array:
        if not self._options.exif_orientation:
            return pixels
        held = image_files.orientation(header)
        return pixels if held == 1 else xp.ascontiguousarray(image_files.upright(pixels, held))


def _put(images: Array, xp: Any) -> Array:
    """A batch from the host, ragged or not, on the device."""
    if xp is np:
        return images
    return joined([xp.asarray(image) for image in images], xp) if is_ragged(images) else xp.asarray(images)


KIND = OpKind(DecodeImageOptions, DecodeImage)

"""Pixels, or the classes of pixels, as files of images: -> BYTES [N], on the host.

UINT8 [N, H, W, 1, 3 or 4] is grey, RGB or RGBA; with a palette, integers [N, H, W] are its entries, as a segmentation
gives them. Encoded by Pillow.
"""

from __future__ import annotations

import io
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field, model_validator

from tensorgate.backends.ops.image_files import find_pillow
from tensorgate.backends.ops.images import spread
from tensorgate.backends.ops.tensor_op import RenamingOptions, TensorOp
from tensorgate.gateway.contract.errors import InvalidArgument
from tensorgate.gateway.contract.operator import OpKind
from tensorgate.gateway.contract.tensor import BYTES, Array, TensorSpec

_MANY_PIXELS = 1 << 16
_Level = Annotated[int, Field(ge=0, le=255)]


class EncodeImageOptions(RenamingOptions):
    """Pixels as image files.

    Example: {op: encode_image, input: classes, palette: [[0, 0, 0], [255, 0, 0]], output: png}
    """

    op: Literal["encode_image"]
    format: Literal["PNG", "JPEG", "WEBP"] = Field("PNG", description="Format of the files.")
    quality: int = Field(90, ge=1, le=100, description="Of JPEG and WEBP.")
    palette: tuple[tuple[_Level, _Level, _Level], ...] | None = Field(
        None,
        min_length=1,
        max_length=256,
        description="Red, green and blue of each class; the tensor has classes then, and files are PNG.",
    )

    @model_validator(mode="after")
    def _has_palettes(self) -> EncodeImageOptions:
        if self.palette is not None and self.format != "PNG":
            raise ValueError(f"{self.format} has no palettes: leave palette out, or take PNG")
        return self


class EncodeImage(TensorOp):
    """UINT8 [N, H, W, C], or integers [N, H, W] -> BYTES [N]."""

    takes_objects = True
    steady = False  # how small a picture becomes is a matter of what it shows

    def __init__(self, options: EncodeImageOptions) -> None:
        """Raises ValueError where Pillow is not installed."""
        super().__init__(options)
        self._options = options
        self._palette = None if options.palette is None else bytes(np.array(options.palette, np.uint8).reshape(-1))
        find_pillow()

    def after(self, spec: TensorSpec) -> TensorSpec:
        shape, wanted = spec.shape, "[N, H, W, C] of UINT8, of 1, 3 or 4 channels"
        if self._palette is not None:
            wanted = "[N, H, W] of integers"
            fits = spec.dtype.kind in "iu" and (shape is None or len(shape) == 3)
        else:
            fits = spec.dtype == np.uint8 and (shape is None or (len(shape) == 4 and shape[3] in (-1, 1, 3, 4)))
        if not fits:
            found = f"{spec.datatype} {'of any shape' if shape is None else list(shape)}"
            raise ValueError(f"encode_image: '{spec.name}' is {found}, expected {wanted}")
        return TensorSpec(spec.name, BYTES, (-1 if shape is None else shape[0],))

    def compute(self, array: Array, xp: Any) -> Array:
        pixels = [*array] if array.dtype == BYTES else array if isinstance(array, np.ndarray) else array.get()
        pays = sum(each.size for each in pixels) > _MANY_PIXELS
        files = np.empty(len(pixels), np.object_)
        files[:] = spread(lambda row: self._file(row, pixels[row]), range(len(pixels)), pays=pays)
        return files

    def _file(self, row: int, pixels: Array) -> bytes:
        pillow = find_pillow()
        if not isinstance(pixels, np.ndarray):
            pixels = pixels.get()
        file = io.BytesIO()
        if self._palette is not None:
            if pixels.size and not (pixels.min() >= 0 and pixels.max() < len(self._palette) // 3):
                raise InvalidArgument(
                    f"encode_image: row {row} of '{self._input}' has a class that is none of the palette's "
                    f"{len(self._palette) // 3}"
                )
            image = pillow.fromarray(np.ascontiguousarray(pixels, np.uint8))
            image.putpalette(self._palette)
        elif pixels.ndim != 3 or pixels.shape[2] not in (1, 3, 4):
            raise InvalidArgument(f"encode_image: row {row} of '{self._input}' has shape {list(pixels.shape)}")
        else:
            image = pillow.fromarray(np.ascontiguousarray(pixels[..., 0] if pixels.shape[2] == 1 else pixels))
        try:
            image.save(file, self._options.format, quality=self._options.quality)
        except (OSError, ValueError) as error:  # no pixels, or an alpha that the format has not
            raise InvalidArgument(f"encode_image: row {row} of '{self._input}': {error}") from None
        return file.getvalue()


KIND = OpKind(EncodeImageOptions, EncodeImage)

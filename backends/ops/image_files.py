"""What Pillow and nvImageCodec are asked for. Both are imported when an operator needs them."""

from __future__ import annotations

import functools
import importlib
import io
import logging
from collections.abc import Hashable, Sequence
from typing import Any, Final, Literal, NamedTuple

import numpy as np

from tensorgate.gateway.contract.extras import install_command
from tensorgate.gateway.contract.tensor import Array

log = logging.getLogger(__name__)

Mode = Literal["RGB", "GRAY"]
_ORIENTATION: Final = 0x0112  # EXIF 2.3, 4.6.4
_END_OF_JPEG: Final = b"\xff\xd9"
_TAIL: Final = 4096


class Header(NamedTuple):
    """A file of an image as far as it has been read, and how many pixels it says to have."""

    data: bytes
    image: Any
    pixels: int


def find_pillow() -> Any:
    """Pillow's main module. Raises ValueError if it is not installed."""
    try:
        return importlib.import_module("PIL.Image")
    except ImportError:
        raise ValueError(f"decode_image needs Pillow: {install_command('images')}") from None


def read_header(data: Any, formats: Sequence[str], max_pixels: int) -> Header:
    """Look at the beginning of a file; nothing is decoded. Raises ValueError, whose text goes on after "image 3"."""
    pillow = find_pillow()
    allowed = " or ".join(formats)
    if not isinstance(data, bytes):
        raise ValueError("is no bytes")
    try:
        image = pillow.open(io.BytesIO(data), formats=formats)
    except (pillow.DecompressionBombError, pillow.DecompressionBombWarning):
        raise ValueError(f"has more than {max_pixels} pixels") from None
    except pillow.UnidentifiedImageError:
        raise ValueError(f"is no {allowed} file") from None
    except Exception as error:  # a broken header ends in whatever the reader of that format comes upon
        raise ValueError(f"is no readable {allowed} file: {_words(error)}") from None
    width, height = image.size
    if width * height > max_pixels:
        raise ValueError(f"has {height} x {width} pixels, more than {max_pixels}")
    return Header(data, image, width * height)


def decode(header: Header, mode: Mode) -> Array:
    """Pixels [H, W, C] as they lie in the file. Raises ValueError as read_header does."""
    image = header.image
    try:
        image.load()
        # What is transparent has a colour, too; converting would look for it, and warn.
        image.info.pop("transparency", None)
        if image.mode.startswith("I"):
            image = find_pillow().fromarray(_upper_bits(image))
        wanted = "RGB" if mode == "RGB" else "L"
        pixels = np.asarray(image if image.mode == wanted else image.convert(wanted))
    except Exception as error:  # a broken file ends in whatever the decoder comes upon
        raise ValueError(f"is broken: {_words(error)}") from None
    return pixels if mode == "RGB" else pixels[..., None]


def _upper_bits(image: Any) -> Array:
    """Grey of 16 bits -> of 8, as its upper ones."""
    return (np.asarray(image).astype(np.int64) >> 8).clip(0, 255).astype(np.uint8)


def orientation(header: Header) -> int:
    """How the camera was held, 1 to 8; 1 is upright, and what broken EXIF data comes to. After decoding only."""
    try:
        return int(header.image.getexif().get(_ORIENTATION, 1))
    except Exception:  # whatever its reader comes upon
        return 1


def upright(pixels: Array, held: int) -> Array:
    """Turn and mirror an image [H, W, C] by an orientation of EXIF: a view. Source: EXIF 2.3, 4.6.4."""
    if held in (5, 6, 7, 8):
        pixels = pixels.swapaxes(0, 1)
    down = slice(None, None, -1 if held in (3, 4, 7, 8) else 1)
    across = slice(None, None, -1 if held in (2, 3, 6, 7) else 1)
    return pixels[down, across]


def _words(error: Exception) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__


class GpuDecoder:
    """nvImageCodec, with a decoder for each stream that asks for one."""

    def __init__(self, mode: Mode) -> None:
        self._mode = mode
        self._decoder = functools.lru_cache(maxsize=None)(self._make)

    @functools.cached_property
    def installed(self) -> bool:
        """Whether it can be asked. One that is there and does not work is told of in the log, once."""
        try:
            importlib.import_module("nvidia.nvimgcodec")
        except ImportError:
            return False
        return True

    def decode(self, headers: Sequence[Header], place: Hashable, xp: Any) -> list[Array | None]:
        """Pixels [H, W, C] on the GPU as they lie in the file, None for what is left to Pillow."""
        rows = [row for row, header in enumerate(headers) if _is_plain_jpeg(header)]
        found: list[Array | None] = [None] * len(headers)
        if not rows:
            return found
        try:
            codec, decoder, parameters = self._decoder(place)
        except Exception as error:  # no library of CUDA's that it wants, a driver that is too old, and so on
            log.warning("nvImageCodec cannot be used, and Pillow decodes all images: %s", _words(error))
            self.installed = False
            return found
        stream = xp.cuda.get_current_stream()
        images = decoder.decode(
            [codec.CodeStream(headers[row].data) for row in rows], params=parameters, cuda_stream=stream.ptr
        )
        for row, image in zip(rows, images, strict=True):
            if image is not None:
                found[row] = xp.array(xp.asarray(image), order="C")
        stream.synchronize()  # the images are copied; their own memory may go
        width = 3 if self._mode == "RGB" else 1
        for row in rows:
            pixels, size = found[row], headers[row].image.size[::-1]
            if pixels is not None and pixels.shape != (*size, width):
                found[row] = None
        return found

    def _make(self, place: Any) -> tuple[Any, Any, Any]:
        codec = importlib.import_module("nvidia.nvimgcodec")
        colors = codec.ColorSpec.SRGB if self._mode == "RGB" else codec.ColorSpec.GRAY
        parameters = codec.DecodeParams(apply_exif_orientation=False, color_spec=colors, allow_any_depth=False)
        return codec, codec.Decoder(device_id=place[0], options=":fancy_upsampling=1"), parameters


def _is_plain_jpeg(header: Header) -> bool:
    """A whole JPEG of grey or of YCbCr with 8 bits. What has no end is Pillow's to judge."""
    image = header.image
    return (
        image.format == "JPEG"
        and image.mode in ("L", "RGB")
        and not (image.mode == "RGB" and image.info.get("adobe_transform") == 0)
        and _END_OF_JPEG in header.data[-_TAIL:]
    )

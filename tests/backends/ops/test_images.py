"""Operators on images against Pillow and against torchvision's rules written out."""

from __future__ import annotations

import contextlib
import io
import struct
import sys
import tracemalloc
import zlib
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageOps
from pydantic import ValidationError

from tensorgate.backends.ops import resize
from tensorgate.backends.ops.center_crop import KIND as CENTER_CROP
from tensorgate.backends.ops.decode_image import KIND as DECODE
from tensorgate.backends.ops.fusion import fuse
from tensorgate.backends.ops.image_files import GpuDecoder, Header, read_header
from tensorgate.backends.ops.images import is_ragged, joined
from tensorgate.backends.ops.normalize import KIND as NORMALIZE
from tensorgate.backends.ops.pad import KIND as PAD
from tensorgate.backends.ops.resize import KIND as RESIZE
from tensorgate.backends.ops.transpose import KIND as TRANSPOSE
from tensorgate.gateway.contract.errors import InvalidArgument
from tensorgate.gateway.contract.operator import Op, OpKind
from tensorgate.gateway.contract.tensor import BYTES, DTYPES, TensorSpec

RANDOM = np.random.default_rng(7)
FILTERS = {"bilinear": Image.Resampling.BILINEAR, "bicubic": Image.Resampling.BICUBIC}
FILTERS |= {"lanczos": Image.Resampling.LANCZOS, "nearest": Image.Resampling.NEAREST}


def make(kind: OpKind, **options: Any) -> Op:
    return kind.make(kind.options(input="x", **options))


def spec(datatype: str, *shape: int) -> dict[str, TensorSpec]:
    return {"x": TensorSpec("x", DTYPES[datatype], shape)}


def host(array: Any) -> Any:
    return array if isinstance(array, np.ndarray) else array.get()


def run(op: Op, array: Any, xp: Any) -> Any:
    """One tensor through one op, which has to give what its specification says."""
    on_device = array if array.dtype == BYTES else xp.asarray(array)
    got = op({"x": on_device, "other": on_device}, xp)
    assert got["other"] is on_device
    if array.dtype != BYTES:
        before = {"x": TensorSpec("x", array.dtype, array.shape), "other": TensorSpec("other", array.dtype)}
        after = op.specs(before)["x"]
        assert (got["x"].dtype, got["x"].shape) == (after.dtype, after.shape)
        assert got["x"].flags.c_contiguous
    return host(got["x"])


def picture(height: int, width: int, *channels: int) -> Any:
    """Something smooth with noise on it, uint8."""
    y, x = np.mgrid[:height, :width]
    smooth = 120 + 90 * np.sin(x / 7) * np.cos(y / 5)
    noise = RANDOM.integers(-30, 30, (height, width, *channels))
    return (smooth.reshape(height, width, *[1] * len(channels)) + noise).clip(0, 255).astype(np.uint8)


def file_of(pixels: Any, kind: str = "PNG", **options: Any) -> bytes:
    image = pixels if isinstance(pixels, Image.Image) else Image.fromarray(pixels)
    stream = io.BytesIO()
    image.save(stream, kind, **options)
    return stream.getvalue()


def files(*contents: bytes) -> Any:
    array = np.empty(len(contents), object)
    array[:] = contents
    return array


# -------------------------------------------------------------------------------------------------------- decode_image


@pytest.mark.parametrize("shape", [(-1,), (-1, 1)])
@pytest.mark.parametrize(("mode", "channels"), [("RGB", 3), ("GRAY", 1)])
def test_decode(mode: str, channels: int, shape: tuple[int, ...], xp: Any) -> None:
    op = make(DECODE, op="decode_image", mode=mode, decoder="pillow")
    assert op.specs(spec("BYTES", *shape))["x"] == TensorSpec("x", DTYPES["UINT8"], (-1, -1, -1, channels))
    pixels = [picture(40, 30, 3) for _ in range(3)]
    contents = files(file_of(pixels[0], "JPEG"), file_of(pixels[1]), file_of(pixels[2], "JPEG", progressive=True))
    want = [np.asarray(Image.open(io.BytesIO(each)).convert("RGB" if channels == 3 else "L")) for each in contents]
    got = run(op, contents.reshape(shape), xp)
    assert got.dtype == np.uint8
    np.testing.assert_array_equal(got, np.stack(want).reshape(3, 40, 30, channels))


KINDS_OF_FILES: dict[str, tuple[bytes, Any]] = {}


def _kinds() -> None:
    color, gray = picture(9, 11, 3), picture(9, 11)
    palette = Image.fromarray(color).quantize(16)
    deep = RANDOM.integers(0, 65536, (9, 11)).astype(np.uint16)
    clear = np.dstack([color, gray])
    cmyk = Image.fromarray(color).convert("CMYK")
    jpeg_cmyk = file_of(cmyk, "JPEG", quality=95)
    KINDS_OF_FILES.update(
        {
            "a palette": (file_of(palette), np.asarray(palette.convert("RGB"))),
            "a palette with transparency": (
                file_of(palette, transparency=bytes(range(16))),
                np.asarray(palette.convert("RGB")),
            ),
            "one bit": (
                file_of(Image.fromarray(gray).convert("1")),
                np.dstack([np.asarray(Image.fromarray(gray).convert("1")) * np.uint8(255)] * 3),
            ),
            "gray": (file_of(gray), np.dstack([gray] * 3)),
            "gray of 16 bits": (file_of(deep), np.dstack([(deep >> 8).astype(np.uint8)] * 3)),
            "transparent": (file_of(clear), color),
            "gray with one transparent level": (file_of(gray, transparency=int(gray[0, 0])), np.dstack([gray] * 3)),
            "CMYK": (jpeg_cmyk, np.asarray(Image.open(io.BytesIO(jpeg_cmyk)).convert("RGB"))),
        }
    )


_kinds()


@pytest.mark.parametrize("kind", KINDS_OF_FILES)
def test_decode_every_kind_of_file(kind: str, xp: Any) -> None:
    contents, want = KINDS_OF_FILES[kind]
    got = run(make(DECODE, op="decode_image"), files(contents), xp)
    np.testing.assert_array_equal(got[0], want)


@pytest.mark.parametrize("kind", ["WEBP", "BMP", "GIF"])
def test_other_formats_are_read_if_they_are_named(kind: str) -> None:
    pixels = picture(9, 11, 3)
    contents = file_of(pixels, kind, **({"lossless": True} if kind == "WEBP" else {}))
    want = np.asarray(Image.open(io.BytesIO(contents)).convert("RGB"))
    got = run(make(DECODE, op="decode_image", formats=("PNG", kind)), files(contents), np)
    np.testing.assert_array_equal(got[0], want)
    with pytest.raises(InvalidArgument, match="image 0 is no JPEG or PNG file"):
        run(make(DECODE, op="decode_image"), files(contents), np)


@pytest.mark.parametrize("held", range(1, 9))
def test_photos_are_turned_upright(held: int, xp: Any) -> None:
    pixels = picture(24, 16, 3)
    exif = Image.Exif()
    exif[0x0112] = held
    contents = files(file_of(pixels, "PNG", exif=exif))
    upright = np.asarray(ImageOps.exif_transpose(Image.open(io.BytesIO(contents[0]))))
    np.testing.assert_array_equal(run(make(DECODE, op="decode_image"), contents, xp)[0], upright)
    as_it_lies = run(make(DECODE, op="decode_image", exif_orientation=False), contents, xp)[0]
    np.testing.assert_array_equal(as_it_lies, pixels)


@pytest.mark.filterwarnings("ignore:Corrupt EXIF data")
def test_broken_exif_means_upright() -> None:
    pixels = picture(8, 8, 3)
    contents = file_of(pixels, "JPEG", exif=b"Exif\0\0II*\0\xff\xff\xff\xff" + bytes(range(40)), quality=100)
    assert run(make(DECODE, op="decode_image"), files(contents), np).shape == (1, 8, 8, 3)


def test_images_of_different_sizes_stay_apart_until_they_agree(xp: Any) -> None:
    pixels = [picture(40, 30, 3), picture(20, 50, 3), picture(64, 64, 3)]
    ragged = make(DECODE, op="decode_image")({"x": files(*map(file_of, pixels))}, xp)["x"]
    assert is_ragged(ragged)
    assert ragged.shape == (3,)
    for got, want in zip(ragged, pixels, strict=True):
        np.testing.assert_array_equal(host(got), want)
    shorter = make(RESIZE, op="resize", shorter=24)({"x": ragged}, xp)["x"]
    assert [each.shape for each in shorter] == [(32, 24, 3), (24, 60, 3), (24, 24, 3)]
    cropped = host(make(CENTER_CROP, op="center_crop", size=(16, 20))({"x": shorter}, xp)["x"])
    assert cropped.shape == (3, 16, 20, 3)
    for got, want in zip(cropped, pixels, strict=True):
        np.testing.assert_array_equal(got, crop_as_torchvision(resize_as_torchvision(want, 24), 16, 20))
    padded = host(make(PAD, op="pad", size=(64, 64), value=9, place="start")({"x": ragged}, xp)["x"])
    assert padded.shape == (3, 64, 64, 3)
    np.testing.assert_array_equal(padded[1, :20, :50], pixels[1])
    assert (padded[1, 20:] == 9).all()
    assert (padded[1, :, 50:] == 9).all()


def test_no_images(xp: Any) -> None:
    none = make(DECODE, op="decode_image", mode="GRAY")({"x": files()}, xp)["x"]
    assert none.shape == (0, 0, 0, 1)
    assert make(RESIZE, op="resize", size=(8, 9))({"x": none}, xp)["x"].shape == (0, 8, 9, 1)
    assert make(CENTER_CROP, op="center_crop", size=(8, 9))({"x": none}, xp)["x"].shape == (0, 8, 9, 1)
    assert make(PAD, op="pad", size=(8, 9), mode="edge")({"x": none}, xp)["x"].shape == (0, 8, 9, 1)


def png_header(width: int, height: int) -> bytes:
    """The beginning of a PNG that says to be as large as this."""
    body = b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + body + struct.pack(">I", zlib.crc32(body)) + b"\0\0\1\0IDAT"


GOOD = file_of(picture(32, 32, 3), "JPEG")
CUT = GOOD[: -len(GOOD) // 8]
BROKEN: dict[str, tuple[bytes, str]] = {
    "nothing": (b"", "image 1 is no JPEG or PNG file"),
    "text": (b"hello", "image 1 is no JPEG or PNG file"),
    "half a JPEG": (CUT, "image 1 is broken: "),
    "half a PNG": (file_of(picture(64, 64, 3))[:900], "image 1 is broken: "),
    "a PNG of a header": (png_header(100, 100), "image 1 is"),
    "a bomb": (png_header(10_000, 10_000), "image 1 has "),
    "a larger bomb": (png_header(2**31 - 1, 2**31 - 1), "image 1 has more than 50000000 pixels"),
    "just too large": (file_of(np.zeros((7001, 7143), np.uint8)), "image 1 has 7001 x 7143 pixels, more than 50000000"),
    "no pixels": (png_header(0, 5), "image 1 is"),
}


@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
@pytest.mark.parametrize("case", BROKEN)
def test_what_cannot_be_read_is_told_by_its_row(case: str) -> None:
    contents, words = BROKEN[case]
    with pytest.raises(InvalidArgument) as caught:
        make(DECODE, op="decode_image")({"x": files(GOOD, contents)}, np)
    assert caught.value.text.startswith(f"'x': {words}")


def test_the_pixels_of_a_batch_are_bounded() -> None:
    op = make(DECODE, op="decode_image", max_batch_pixels=2000)
    assert run(op, files(GOOD), np).shape == (1, 32, 32, 3)
    with pytest.raises(InvalidArgument, match="2 images of 2048 pixels are more than the 2000 that run together"):
        op({"x": files(GOOD, GOOD)}, np)


@given(data=st.data())
@settings(max_examples=150)
def test_damaged_files_are_images_or_refused(data: st.DataObject) -> None:
    contents = bytearray(data.draw(st.sampled_from([GOOD, *[each for each, _ in KINDS_OF_FILES.values()]])))
    for _ in range(data.draw(st.integers(1, 4))):
        contents[data.draw(st.integers(0, len(contents) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(InvalidArgument):
        got = make(DECODE, op="decode_image", max_pixels=100_000)({"x": files(bytes(contents))}, np)["x"]
        assert got.dtype == np.uint8
        assert got.shape[3] == 3


def test_decode_refuses_what_it_cannot_do(monkeypatch: pytest.MonkeyPatch) -> None:
    op = make(DECODE, op="decode_image")
    for specs, words in [
        (spec("UINT8", -1), "come as BYTES"),
        (spec("BYTES", -1, 2), "a file per row"),
        ({}, "no tensor"),
    ]:
        with pytest.raises(ValueError, match=words):
            op.specs(specs)
    renamed = make(DECODE, op="decode_image", output="image").specs(spec("BYTES", -1))
    assert [*renamed] == ["image"]
    with pytest.raises(ValueError, match="nvImageCodec is not installed"):
        make(DECODE, op="decode_image", decoder="nvimgcodec")
    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    with pytest.raises(ValueError, match=r"decode_image needs Pillow: pip install 'pillow>=11'"):
        make(DECODE, op="decode_image")


class FakeCodec:
    """nvImageCodec's module as far as it is used, on NumPy: reads all but the files that it was told to fail."""

    class ColorSpec:
        SRGB, GRAY = "srgb", "gray"

    def __init__(self, *fails: bytes) -> None:
        self.fails = fails
        self.seen: list[bytes] = []

    def CodeStream(self, data: bytes) -> bytes:  # noqa: N802 - its name
        return data

    def DecodeParams(self, **options: Any) -> Any:  # noqa: N802
        return options

    def Decoder(self, **options: Any) -> Any:  # noqa: N802
        assert options == {"device_id": 0, "options": ":fancy_upsampling=1"}
        return self

    def decode(self, streams: list[bytes], params: Any, cuda_stream: int) -> list[Any]:
        assert params == {"apply_exif_orientation": False, "color_spec": "srgb", "allow_any_depth": False}
        self.seen += streams
        return [None if each in self.fails else np.asarray(Image.open(io.BytesIO(each))) for each in streams]


class FakeStream:
    ptr = 0

    def synchronize(self) -> None:
        self.done = True


def test_a_gpu_decodes_plain_jpegs_and_leaves_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    cut = CUT
    png, cmyk = file_of(picture(8, 8, 3)), KINDS_OF_FILES["CMYK"][0]
    other = file_of(picture(16, 16, 3), "JPEG")
    codec = FakeCodec(other)
    monkeypatch.setitem(sys.modules, "nvidia.nvimgcodec", codec)
    stream = FakeStream()
    cuda = type("Cuda", (), {"get_current_stream": staticmethod(lambda: stream)})
    xp = type("Xp", (), {"cuda": cuda, "array": np.array, "asarray": np.asarray})
    headers: list[Header] = [read_header(each, ("JPEG", "PNG"), 10**6) for each in (GOOD, cut, png, cmyk, other)]
    found = GpuDecoder("RGB").decode(headers, (0, 0), xp)
    assert codec.seen == [GOOD, other]
    assert [image is None for image in found] == [False, True, True, True, True]
    assert stream.done
    np.testing.assert_array_equal(found[0], np.asarray(Image.open(io.BytesIO(GOOD))))


# -------------------------------------------------------------------------------------------------------------- resize


def resize_by_pillow(pixels: Any, height: int, width: int, method: str) -> Any:
    return np.asarray(Image.fromarray(pixels).resize((width, height), FILTERS[method]))


def resize_as_torchvision(pixels: Any, shorter: int, method: str = "bilinear") -> Any:
    """Source: torchvision.transforms.functional._compute_resized_output_size."""
    height, width = pixels.shape[:2]
    short, long = min(width, height), max(width, height)
    new_short, new_long = shorter, int(shorter * long / short)
    new_width, new_height = (new_short, new_long) if width <= height else (new_long, new_short)
    return resize_by_pillow(pixels, new_height, new_width, method)


SIZES = [
    # before, after
    ((40, 60), (16, 24)),
    ((24, 16), (60, 91)),
    ((37, 53), (8, 91)),
    ((200, 53), (40, 40)),
    ((53, 37), (91, 8)),
    ((1, 5), (7, 3)),
    ((7, 1), (1, 1)),
    ((30, 30), (30, 11)),
    ((30, 30), (11, 30)),
    ((20, 20), (20, 20)),
]


@pytest.fixture(params=[True, False], ids=["with Pillow", "by itself"])
def with_pillow(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """On the host Pillow is asked where it can; what is done without it is the same."""
    if not request.param:
        monkeypatch.setattr(resize, "_pillow", lambda *arguments: None)


@pytest.mark.usefixtures("with_pillow")
@pytest.mark.parametrize("method", FILTERS)
@pytest.mark.parametrize(("old", "new"), SIZES)
@pytest.mark.parametrize("layout", ["NHWC", "NCHW"])
@pytest.mark.parametrize("channels", [1, 3, 4, 5])
def test_resize_bytes_to_the_bit_as_pillow(
    old: tuple[int, int], new: tuple[int, int], method: str, layout: str, channels: int, xp: Any
) -> None:
    pixels = np.stack([picture(*old, channels), 255 - picture(*old, channels)])
    pixels[0, 0] = 255  # edges ring, and are clipped
    one_by_one = [
        resize_by_pillow(np.ascontiguousarray(pixels[..., c][i]), *new, method) for i in (0, 1) for c in range(channels)
    ]
    want = np.stack(one_by_one).reshape(2, channels, *new)
    op = make(RESIZE, op="resize", size=new, method=method, layout=layout)
    given = pixels if layout == "NHWC" else pixels.transpose(0, 3, 1, 2)
    got = run(op, np.ascontiguousarray(given), xp)
    np.testing.assert_array_equal(got if layout == "NCHW" else got.transpose(0, 3, 1, 2), want)


@pytest.mark.parametrize("method", FILTERS)
@pytest.mark.parametrize(("old", "new"), SIZES)
@pytest.mark.parametrize(("datatype", "within"), [("FP16", 1e-3), ("FP32", 1e-5), ("FP64", 1e-5)])
def test_resize_floats_as_pillow(
    old: tuple[int, int], new: tuple[int, int], method: str, datatype: str, within: float, xp: Any
) -> None:
    pixels = RANDOM.standard_normal((*old, 1)).astype(DTYPES[datatype])
    want = resize_by_pillow(pixels[..., 0].astype(np.float32), *new, method)
    got = run(make(RESIZE, op="resize", size=new, method=method), pixels, xp)
    np.testing.assert_allclose(got[..., 0], want, rtol=0, atol=within * np.abs(pixels).max())


@given(
    st.tuples(st.integers(1, 90), st.integers(1, 90)),
    st.tuples(st.integers(1, 90), st.integers(1, 90)),
    st.sampled_from([*FILTERS]),
    st.booleans(),
)
@settings(max_examples=200)
def test_resize_any_size(old: tuple[int, int], new: tuple[int, int], method: str, flat: bool) -> None:
    pixels = np.full((*old, 1), 77, np.uint8) if flat else picture(*old, 1)
    op = make(RESIZE, op="resize", size=new, method=method, layout="NCHW")
    got = run(op, pixels.transpose(2, 0, 1), np)[0]
    np.testing.assert_array_equal(got, resize_by_pillow(pixels[..., 0], *new, method))


def sampled(pixels: Any, height: int, width: int, cubic: bool) -> Any:
    """Interpolation without antialiasing, pixel by pixel: align_corners=False, borders repeated, a = -0.75."""

    def weight(x: float) -> float:
        x = abs(x)
        if not cubic:
            return max(0.0, 1 - x)
        if x <= 1:
            return 1.25 * x**3 - 2.25 * x**2 + 1
        return -0.75 * (x**3 - 5 * x**2 + 8 * x - 4) if x < 2 else 0.0

    def axis(old: int, new: int) -> Any:
        matrix = np.zeros((new, old))
        for entry in range(new):
            position = (entry + 0.5) * old / new - 0.5
            for near in range(int(np.floor(position)) - 1, int(np.floor(position)) + 3):
                matrix[entry, min(max(near, 0), old - 1)] += weight(position - near)
        return matrix

    return axis(pixels.shape[0], height) @ pixels @ axis(pixels.shape[1], width).T


@pytest.mark.parametrize("method", ["bilinear", "bicubic"])
@pytest.mark.parametrize(("old", "new"), SIZES)
def test_resize_without_antialias(old: tuple[int, int], new: tuple[int, int], method: str, xp: Any) -> None:
    op = make(RESIZE, op="resize", size=new, method=method, antialias=False)
    pixels = RANDOM.standard_normal((*old, 1)).astype(np.float32)
    want = sampled(pixels[..., 0].astype(np.float64), *new, method == "bicubic")
    np.testing.assert_allclose(run(op, pixels, xp)[..., 0], want, rtol=0, atol=1e-5)
    whole = picture(*old, 1)
    exact = sampled(whole[..., 0].astype(np.float64), *new, method == "bicubic").clip(0, 255)
    assert np.abs(run(op, whole, xp)[..., 0] - exact).max() <= 0.5 + 1e-4


def test_resize_by_one_side() -> None:
    for options, old, new in [
        ({"shorter": 256}, (480, 640), (256, 341)),
        ({"shorter": 256}, (640, 480), (341, 256)),
        ({"shorter": 10}, (10, 25), (10, 25)),
        ({"longer": 100}, (50, 75), (66, 100)),
        ({"longer": 100}, (75, 50), (100, 66)),
        ({"longer": 4}, (1, 90), (1, 4)),
    ]:
        op = make(RESIZE, op="resize", **options)
        assert op.specs(spec("UINT8", -1, *old, 3))["x"].shape == (-1, *new, 3)
        assert run(op, np.zeros((1, *old, 3), np.uint8), np).shape == (1, *new, 3)
        assert op.specs(spec("UINT8", -1, -1, old[1], 3))["x"].shape == (-1, -1, -1, 3)


def test_resize_refuses() -> None:
    for options, words in [
        ({}, "give one of"),
        ({"size": (4, 4), "shorter": 4}, "give one of"),
        ({"shorter": 0}, "greater than or equal to 1"),
        ({"shorter": 4, "method": "lanczos", "antialias": False}, "with antialias only"),
        ({"size": (10_000, 10_000)}, "more than max_pixels"),
    ]:
        with pytest.raises(ValidationError, match=words):
            make(RESIZE, op="resize", **options)
    op = make(RESIZE, op="resize", shorter=256)
    for specs, words in [
        (spec("BYTES", -1), "decode_image makes images of them"),
        (spec("INT64", -1, 4, 4, 3), "cast it to UINT8 or FP32 first"),
        (spec("UINT8", 4, 4), "has not the three axes of an image"),
    ]:
        with pytest.raises(ValueError, match=words):
            op.specs(specs)
    with pytest.raises(InvalidArgument, match="an image of 1 x 60000 would have 256 x 15360000"):
        op({"x": np.zeros((1, 1, 60_000, 1), np.uint8)}, np)
    with pytest.raises(InvalidArgument, match="images without pixels"):
        op({"x": np.zeros((2, 0, 5, 3), np.uint8)}, np)


@pytest.mark.usefixtures("with_pillow")
@pytest.mark.parametrize(("datatype", "antialias"), [("UINT8", True), ("UINT8", False), ("FP16", True), ("FP32", True)])
def test_resize_needs_little_memory_beside_its_result(datatype: str, antialias: bool) -> None:
    images = np.zeros((24, 500, 600, 3), DTYPES[datatype])  # float64 of all would be 173 MB
    op = make(RESIZE, op="resize", size=(64, 64), antialias=antialias)
    op({"x": images[:1]}, np)
    tracemalloc.start()
    got = op({"x": images}, np)["x"]
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most - got.nbytes < 64 << 20


# ---------------------------------------------------------------------------------------------------- center_crop, pad


def crop_as_torchvision(pixels: Any, height: int, width: int) -> Any:
    """Source: torchvision.transforms.functional.center_crop."""
    old_height, old_width = pixels.shape[:2]
    if width > old_width or height > old_height:
        left, right = ((width - old_width) // 2, (width - old_width + 1) // 2) if width > old_width else (0, 0)
        top, bottom = ((height - old_height) // 2, (height - old_height + 1) // 2) if height > old_height else (0, 0)
        pixels = np.pad(pixels, [(top, bottom), (left, right), (0, 0)])
        old_height, old_width = pixels.shape[:2]
    top, left = round((old_height - height) / 2.0), round((old_width - width) / 2.0)
    return pixels[top : top + height, left : left + width]


@pytest.mark.parametrize("old", [(8, 8), (9, 8), (11, 7), (5, 20), (20, 5), (3, 3), (1, 1)])
@pytest.mark.parametrize("new", [(8, 8), (5, 6), (7, 3), (1, 9)])
@pytest.mark.parametrize("dtype", [np.uint8, np.float32, np.int64])
def test_center_crop(old: tuple[int, int], new: tuple[int, int], dtype: Any, xp: Any) -> None:
    pixels = RANDOM.integers(1, 100, (2, *old, 3)).astype(dtype)
    want = np.stack([crop_as_torchvision(each, *new) for each in pixels])
    np.testing.assert_array_equal(run(make(CENTER_CROP, op="center_crop", size=new), pixels, xp), want)
    first = np.ascontiguousarray(pixels.transpose(0, 3, 1, 2))
    got = run(make(CENTER_CROP, op="center_crop", size=new, layout="NCHW"), first, xp)
    np.testing.assert_array_equal(got, want.transpose(0, 3, 1, 2))


@pytest.mark.parametrize("mode", ["constant", "edge", "reflect"])
@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
def test_pad(mode: str, dtype: Any, xp: Any) -> None:
    pixels = RANDOM.integers(1, 100, (2, 5, 6, 3)).astype(dtype)
    fill: Any = {"constant_values": 7} if mode == "constant" else {}

    def wanted(*widths: tuple[int, int]) -> Any:
        padded = [np.pad(each, [*widths, (0, 0)], mode, **fill) for each in pixels]
        return np.stack(padded)

    options: Any = {"op": "pad", "mode": mode, **({"value": 7} if mode == "constant" else {})}
    np.testing.assert_array_equal(run(make(PAD, borders=(1, 2, 3, 4), **options), pixels, xp), wanted((1, 2), (3, 4)))
    np.testing.assert_array_equal(run(make(PAD, size=(8, 8), **options), pixels, xp), wanted((1, 2), (1, 1)))
    np.testing.assert_array_equal(
        run(make(PAD, size=(8, 8), place="start", **options), pixels, xp), wanted((0, 3), (0, 2))
    )


def test_pad_refuses() -> None:
    for options in ({}, {"size": (4, 4), "borders": (0, 0, 0, 0)}):
        with pytest.raises(ValidationError, match="either size or borders"):
            make(PAD, op="pad", **options)
    op = make(PAD, op="pad", size=(4, 4), value=0.5)
    for specs, words in [
        (spec("UINT8", -1, 2, 2, 3), "is UINT8, which has no 0.5"),
        (spec("FP32", -1, 5, 2, 3), r"images of \[5, 2\], larger than \[4, 4\]"),
    ]:
        with pytest.raises(ValueError, match=words):
            op.specs(specs)
    with pytest.raises(InvalidArgument, match="an image of 5 x 2 is larger than 4 x 4"):
        op({"x": np.zeros((1, 5, 2, 3), np.float32)}, np)
    with pytest.raises(ValueError, match="has no 300"):
        make(PAD, op="pad", size=(4, 4), value=300).specs(spec("UINT8", -1, 2, 2, 3))
    assert make(PAD, op="pad", borders=(1, 1, 1, 1)).specs(spec("UINT8", -1, -1, 2, 3))["x"].shape == (-1, -1, 4, 3)


# -------------------------------------------------------------------------------------------------------- ragged checks


def test_other_steps_refuse_images_of_different_sizes() -> None:
    decode = make(DECODE, op="decode_image")
    normalize = make(NORMALIZE, op="normalize", mean=(0.5,), std=(0.5,), to="FP32")
    other = NORMALIZE.make(NORMALIZE.options(op="normalize", input="y", mean=(0.5,), std=(0.5,)))
    before = spec("BYTES", -1) | {"y": TensorSpec("y", DTYPES["FP32"], (-1,))}
    same, differ = files(GOOD, GOOD), files(GOOD, file_of(picture(8, 9, 3)))
    y = np.zeros(2, np.float32)

    def through(ops: list[Op], contents: Any) -> Any:
        tensors: Any = {"x": contents, "y": y}
        for op in fuse(ops, before):
            tensors = op(tensors, np)
        return tensors["x"]

    assert through([decode, other, normalize], same).dtype == np.float32
    with pytest.raises(
        InvalidArgument, match=r"'x' differ in size \(\[8, 9, 3\], \[32, 32, 3\]\), and step 'normalize'"
    ):
        through([decode, other, normalize], differ)
    with pytest.raises(InvalidArgument, match="and the model takes them of one size"):
        through([decode, make(RESIZE, op="resize", shorter=16)], differ)
    assert through([decode, other, make(RESIZE, op="resize", size=(16, 16)), normalize], differ).shape == (2, 16, 16, 3)
    fixed = fuse([decode, make(RESIZE, op="resize", size=(16, 16))], before)
    assert len(fixed) == 2  # nothing is left to check


def test_joined() -> None:
    assert joined([np.zeros((2, 3, 1))] * 2, np).shape == (2, 2, 3, 1)
    assert joined([np.zeros((2, 3, 1)), np.zeros((3, 3, 1))], np).shape == (2,)


# ----------------------------------------------------------------------------------------------------------- all of it


def test_the_usual_pipeline_against_its_definition(xp: Any) -> None:
    """Resize(256), CenterCrop(224), ToTensor, Normalize of torchvision, by Pillow and NumPy."""
    mean, std = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
    sizes = [(480, 640), (640, 480), (300, 300), (200, 1000), (100, 80)]
    contents = files(*[file_of(picture(*size, 3), "JPEG", quality=90) for size in sizes])
    ops = fuse(
        [
            make(DECODE, op="decode_image", decoder="pillow"),
            make(RESIZE, op="resize", shorter=256),
            make(CENTER_CROP, op="center_crop", size=(224, 224)),
            make(
                NORMALIZE,
                op="normalize",
                mean=tuple(255 * m for m in mean),
                std=tuple(255 * s for s in std),
                axis=-1,
                to="FP32",
            ),
            make(TRANSPOSE, op="transpose", layout="NHWC->NCHW"),
        ],
        spec("BYTES", -1),
    )
    tensors: Any = {"x": contents}
    for op in ops:
        tensors = op(tensors, xp)
    want = []
    for each in contents:
        pixels = np.asarray(Image.open(io.BytesIO(each)).convert("RGB"))
        cropped = crop_as_torchvision(resize_as_torchvision(pixels, 256), 224, 224)
        tensor = cropped.transpose(2, 0, 1).astype(np.float32) / np.float32(255)
        want.append((tensor - np.float32(mean)[:, None, None]) / np.float32(std)[:, None, None])
    got = host(tensors["x"])
    assert got.dtype == np.float32
    assert np.abs(got - np.stack(want)).max() <= 1e-6

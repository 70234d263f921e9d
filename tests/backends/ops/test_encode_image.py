"""encode_image: what Pillow reads back is what went in."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
from PIL import Image
from pydantic import ValidationError

from tensorgate.backends.ops.encode_image import KIND
from tensorgate.gateway.contract.errors import InvalidArgument
from tensorgate.gateway.contract.operator import Op
from tensorgate.gateway.contract.tensor import BYTES, DTYPES, TensorSpec

PALETTE = ((0, 0, 0), (255, 0, 0), (0, 255, 0), (1, 2, 3))


def make(**options: Any) -> Op:
    return KIND.make(KIND.options.model_validate({"op": "encode_image", "input": "x", "output": "y", **options}))


def spec(datatype: str, *shape: int) -> dict[str, TensorSpec]:
    return {"x": TensorSpec("x", DTYPES[datatype], shape)}


def opened(file: bytes) -> Any:
    return Image.open(io.BytesIO(file))


@pytest.mark.parametrize(("channels", "mode"), [(1, "L"), (3, "RGB"), (4, "RGBA")])
def test_pixels_come_back(channels: int, mode: str) -> None:
    pixels = np.random.default_rng(1).integers(0, 256, (3, 5, 7, channels), np.uint8)
    op = make()
    after = op.specs(spec("UINT8", -1, -1, -1, channels))
    assert (after["y"].dtype, after["y"].shape) == (BYTES, (-1,))
    files = op({"x": pixels}, np)["y"]
    assert files.shape == (3,)
    for row, file in enumerate(files):
        image = opened(file)
        assert (image.format, image.mode, image.size) == ("PNG", mode, (7, 5))
        assert np.asarray(image).tobytes() == pixels[row].tobytes()


@pytest.mark.parametrize("datatype", ["INT64", "INT32", "UINT8"])
def test_classes_have_the_palettes_colours(datatype: str) -> None:
    classes = np.random.default_rng(2).integers(0, 4, (2, 4, 6)).astype(DTYPES[datatype])
    op = make(palette=PALETTE)
    op.specs(spec(datatype, -1, 4, 6))
    for row, file in enumerate(op({"x": classes}, np)["y"]):
        image = opened(file)
        assert image.mode == "P"
        assert np.asarray(image).tolist() == classes[row].tolist()
        assert np.asarray(image.convert("RGB")).tolist() == np.array(PALETTE)[classes[row].astype(int)].tolist()


def test_images_of_different_sizes() -> None:
    ragged = np.empty(2, np.object_)
    ragged[0], ragged[1] = np.zeros((2, 3, 3), np.uint8), np.full((4, 5, 3), 9, np.uint8)
    assert [opened(file).size for file in make()({"x": ragged}, np)["y"]] == [(3, 2), (5, 4)]


@pytest.mark.parametrize("form", ["JPEG", "WEBP"])
def test_other_formats(form: str) -> None:
    pixels = np.full((1, 8, 8, 3), 200, np.uint8)
    image = opened(make(format=form)({"x": pixels}, np)["y"][0])
    assert (image.format, image.size) == (form, (8, 8))
    assert np.abs(np.asarray(image.convert("RGB")).astype(int) - 200).max() < 8


@pytest.mark.parametrize(
    ("options", "given", "says"),
    [
        ({}, spec("FP32", -1, 4, 4, 3), "'x' is FP32 [-1, 4, 4, 3], expected [N, H, W, C] of UINT8"),
        ({}, spec("UINT8", -1, 4, 4, 2), "of 1, 3 or 4 channels"),
        ({}, spec("UINT8", -1, 4, 4), "expected [N, H, W, C]"),
        ({"palette": PALETTE}, spec("FP32", -1, 4, 4), "expected [N, H, W] of integers"),
        ({"palette": PALETTE}, spec("INT64", -1, 4, 4, 1), "expected [N, H, W] of integers"),
    ],
)
def test_what_is_no_image_is_named_at_load(options: Any, given: Any, says: str) -> None:
    with pytest.raises(ValueError) as caught:
        make(**options).specs(given)
    assert says in str(caught.value)


@pytest.mark.parametrize("wrong", [-1, 4])
def test_a_class_beyond_the_palette_is_an_error(wrong: int) -> None:
    classes = np.zeros((2, 2, 2), np.int64)
    classes[1, 0, 1] = wrong
    with pytest.raises(InvalidArgument, match="row 1 of 'x' has a class that is none of the palette's 4"):
        make(palette=PALETTE)({"x": classes}, np)


def test_what_a_format_cannot_hold_is_an_error() -> None:
    for form, shape in (("JPEG", (1, 2, 2, 4)), ("PNG", (1, 0, 0, 3))):
        with pytest.raises(InvalidArgument, match="row 0 of 'x'"):
            make(format=form)({"x": np.zeros(shape, np.uint8)}, np)
    with pytest.raises(ValidationError, match="has no palettes"):
        make(format="JPEG", palette=PALETTE)

"""The texts of the GPU's kernels, compiled as C++ for this machine's processor and run thread by thread, with all that
leads to their launch.

That they are right is shown here wherever there is a C++ compiler; how they do on a GPU is for tests marked gpu.
"""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cuda_stand_in import OnGpu, StandIn
from PIL import Image

from tensorgate.backends.ops import affine_cuda, nms_cuda, resampling
from tensorgate.backends.ops.affine import Affine, Pass
from tensorgate.backends.ops.center_crop import KIND as CENTER_CROP
from tensorgate.backends.ops.decode_image import KIND as DECODE
from tensorgate.backends.ops.fusion import fuse
from tensorgate.backends.ops.nms import KIND as NMS
from tensorgate.backends.ops.normalize import KIND as NORMALIZE
from tensorgate.backends.ops.pad import KIND as PAD
from tensorgate.backends.ops.resize import KIND as RESIZE
from tensorgate.backends.ops.transpose import KIND as TRANSPOSE
from tensorgate.gateway.contract.operator import Op, OpKind
from tensorgate.gateway.contract.tensor import DTYPES, TensorSpec

pytestmark = pytest.mark.heavy
RANDOM = np.random.default_rng(5)
PLANAR = (0, 3, 1, 2)


@pytest.fixture
def gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StandIn:
    for cached in (affine_cuda._planar_kernel, affine_cuda._generic_kernel, resampling._kernel, nms_cuda._kernel):
        cached.cache_clear()
    return StandIn(tmp_path)


def host(array: Any) -> Any:
    return np.asarray(array)


@pytest.mark.parametrize("channels", [1, 2, 3, 4])
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("alike", [True, False])
def test_planar(channels: int, dtype: Any, alike: bool, gpu: StandIn) -> None:
    scale, shift = RANDOM.normal(0, 3, (2, 1 if alike else channels)).astype(np.float32)
    scale[0], shift[-1] = 1e-7, 1e5  # halves below the normal ones, and infinite ones
    step = Pass("x", Affine(np.dtype(dtype), PLANAR, np.dtype(np.float32), scale, shift, 1))
    for shape in [(1, 1, 16), (3, 24, 31), (5, 8, 40), (2, 64, 64)]:
        x = RANDOM.integers(0, 256, (*shape, channels)).astype(np.uint8)
        with np.errstate(all="ignore"):
            np.testing.assert_array_equal(host(step(gpu.asarray(x), gpu)), step(x, np))
    assert gpu.launched == ["tensorgate_planar"] * 4


@pytest.mark.parametrize("source", ["BOOL", "UINT8", "INT16", "FP16", "FP32", "FP64", "INT64"])
@pytest.mark.parametrize("target", ["FP16", "FP32", "FP64"])
def test_what_is_not_the_usual_case(source: str, target: str, gpu: StandIn) -> None:
    compute = np.dtype(np.float64 if source in ("FP64", "INT64") or target == "FP64" else np.float32)
    scale, shift = np.array([0.5, -3.0, 1e-3]), np.array([1.0, 2.5, -7.0])
    for shape, order, axis in [((2, 5, 7, 3), PLANAR, 1), ((2, 5, 3), None, 2), ((4, 3), (1, 0), 0)]:
        x = (RANDOM.random(shape) * 200).astype(DTYPES[source])
        step = Pass("x", Affine(DTYPES[target], order, compute, scale, shift, axis))
        got = step(gpu.asarray(x), gpu)
        assert isinstance(got, OnGpu)
        np.testing.assert_array_equal(host(got), step(x, np))
    assert set(gpu.launched) == {"tensorgate_affine"}


def make(kind: OpKind, **options: Any) -> Op:
    return kind.make(kind.options(input="x", **options))


@pytest.mark.parametrize("method", ["nearest", "bilinear", "bicubic", "lanczos"])
@pytest.mark.parametrize("dtype", [np.uint8, np.float16, np.float32, np.float64])
@pytest.mark.parametrize("layout", ["NHWC", "NCHW"])
@pytest.mark.parametrize("antialias", [True, False])
def test_resize(method: str, dtype: Any, layout: str, antialias: bool, gpu: StandIn) -> None:
    if method == "lanczos" and not antialias:
        return
    for old, new in [((40, 30), (16, 50)), ((90, 20), (20, 20)), ((1, 7), (4, 1))]:
        shape = (2, *old, 3) if layout == "NHWC" else (2, 3, *old)
        x = (RANDOM.random(shape) * 255).astype(dtype)
        x[0].reshape(-1)[: x[0].size // 2] = 255  # edges ring, and are clipped
        op = make(RESIZE, op="resize", size=new, method=method, layout=layout, antialias=antialias)
        got, want = op({"x": gpu.asarray(x)}, gpu)["x"], op({"x": x}, np)["x"]
        assert isinstance(got, OnGpu)
        assert got.dtype == want.dtype
        if dtype == np.uint8 and antialias:
            np.testing.assert_array_equal(host(got), want)
        else:
            within = {np.uint8: 1, np.float16: 0.5}.get(dtype, 1e-4)
            np.testing.assert_allclose(host(got).astype(float), want.astype(float), rtol=0, atol=within)


def test_resize_with_wide_offsets(gpu: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    """As of images that are larger than this machine's memory."""
    monkeypatch.setattr(resampling, "_MAX_NARROW", 0)
    for dtype in (np.uint8, np.float32):
        x = (RANDOM.random((2, 20, 30, 3)) * 255).astype(dtype)
        op = make(RESIZE, op="resize", size=(16, 50))
        got, want = op({"x": gpu.asarray(x)}, gpu)["x"], op({"x": x}, np)["x"]
        np.testing.assert_allclose(host(got).astype(float), want.astype(float), rtol=0, atol=1e-4)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("layout", ["xyxy", "yxyx", "cxcywh"])
@pytest.mark.parametrize("classes", [0, 3])
def test_nms(dtype: Any, layout: str, classes: int, gpu: StandIn) -> None:
    """To the bit: boxes of no size, of infinite size and of none at all among them."""
    boxes = (RANDOM.random((5, 60, 4)) * 10).astype(dtype)
    if layout != "cxcywh":
        boxes[..., 2:] += boxes[..., :2]
    boxes[0, :4] = [[1, 1, 1, 1], [np.nan, 0, 5, 5], [0, 0, np.inf, np.inf], [-np.inf, 0, 5, 5]]
    boxes[1] = boxes[1, :1]
    scores = np.round(RANDOM.random((5, *([classes] if classes else []), 60)), 2).astype(dtype)
    scores[2] = np.nan
    for options in ({}, {"max_output": 7}, {"score_threshold": 0.5, "iou_threshold": 0.2}, {"class_aware": False}):
        op = NMS.make(NMS.options(op="nms", boxes="b", scores="s", layout=layout, **options))
        with np.errstate(all="ignore"):
            want = op({"b": boxes, "s": scores}, np)
            got = op({"b": gpu.asarray(boxes), "s": gpu.asarray(scores)}, gpu)
        assert list(got) == list(want)
        for name in want:
            np.testing.assert_array_equal(host(got[name]), want[name], name)
    assert gpu.launched == ["tensorgate_nms"] * 4


def test_the_usual_pipeline(gpu: StandIn) -> None:
    contents = np.empty(3, object)
    for row, size in enumerate([(60, 80), (90, 50), (40, 40)]):
        stream = io.BytesIO()
        Image.fromarray(RANDOM.integers(0, 256, (*size, 3)).astype(np.uint8)).save(stream, "JPEG")
        contents[row] = stream.getvalue()
    mean, std = (123.675, 116.28, 103.53), (58.395, 57.12, 57.375)
    ops = [
        make(DECODE, op="decode_image", decoder="pillow"),
        make(RESIZE, op="resize", shorter=48),
        make(CENTER_CROP, op="center_crop", size=(44, 50)),
        make(PAD, op="pad", size=(48, 52), mode="edge"),
        make(NORMALIZE, op="normalize", mean=mean, std=std, axis=-1, to="FP16"),
        make(TRANSPOSE, op="transpose", layout="NHWC->NCHW"),
    ]
    results = []
    for xp in (np, gpu):
        tensors: Any = {"x": contents}
        for op in fuse(ops, {"x": TensorSpec("x", DTYPES["BYTES"], (-1,))}):
            tensors = op(tensors, xp)
        results.append(tensors["x"])
    assert isinstance(results[1], OnGpu)
    assert results[1].shape == (3, 3, 48, 52)
    np.testing.assert_array_equal(host(results[1]), results[0])
    assert gpu.launched[-1] == "tensorgate_planar"

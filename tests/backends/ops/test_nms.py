"""nms against a naive one, box by box, and against ONNX's reference evaluator."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator
from pydantic import ValidationError

from tensorgate.backends.ops.nms import KIND
from tensorgate.gateway.contract.errors import InvalidArgument
from tensorgate.gateway.contract.operator import Op
from tensorgate.gateway.contract.tensor import DTYPES, TensorSpec

INF, NAN = math.inf, math.nan


def make(**options: Any) -> Op:
    return KIND.make(KIND.options(op="nms", boxes="b", scores="s", **options))


def specs(boxes: tuple[int, ...], scores: tuple[int, ...], datatype: str = "FP32") -> dict[str, TensorSpec]:
    return {"b": TensorSpec("b", DTYPES[datatype], boxes), "s": TensorSpec("s", DTYPES[datatype], scores)}


def some_boxes(images: int, count: int, seed: int = 0) -> Any:
    random = np.random.default_rng(seed)
    corner = random.random((images, count, 2), np.float32) * 10
    return np.concatenate([corner, corner + random.random((images, count, 2), np.float32) * 5], -1)


def some_scores(*shape: int, seed: int = 1) -> Any:
    return np.round(np.random.default_rng(seed).random(shape, np.float32), 2)  # with ties


def overlap(a: Any, b: Any) -> Any:
    width = max(np.float32(0), min(a[2], b[2]) - max(a[0], b[0]))
    height = max(np.float32(0), min(a[3], b[3]) - max(a[1], b[1]))
    both = width * height
    union = (a[2] - a[0]) * (a[3] - a[1]) + (b[2] - b[0]) * (b[3] - b[1]) - both
    return both / union if union > 0 else np.float32(0)


def naive(
    boxes: Any, scores: Any, classes: Any = None, iou: float = 0.5, least: float = -INF, most: int = 100
) -> list[int]:
    """One image, xyxy: torchvision's rule, within classes if there are any."""
    waiting = sorted((i for i in range(len(scores)) if scores[i] > np.float32(least)), key=lambda i: (-scores[i], i))
    kept: list[int] = []
    while waiting and len(kept) < most:
        best = waiting.pop(0)
        kept.append(best)
        waiting = [
            i
            for i in waiting
            if (classes is not None and classes[i] != classes[best])
            or not overlap(boxes[best], boxes[i]) > np.float32(iou)
        ]
    return kept


def assert_padded(got: dict[str, Any], image: int, boxes: Any, kept: list[int], scores: Any) -> None:
    count = int(got["counts"][image])
    assert got["indices"][image, :count].tolist() == kept
    np.testing.assert_array_equal(got["boxes"][image, :count], boxes[kept])
    np.testing.assert_array_equal(got["scores"][image, :count], scores)
    assert (got["indices"][image, count:] == -1).all()
    assert not got["boxes"][image, count:].any()
    assert not got["scores"][image, count:].any()


@pytest.mark.parametrize("most", [1, 7, 100])
@pytest.mark.parametrize("iou", [0.0, 0.3, 0.7, 1.0])
@pytest.mark.parametrize("least", [None, 0.4])
def test_one_class(iou: float, most: int, least: float | None) -> None:
    boxes, scores = some_boxes(5, 60), some_scores(5, 60)
    op = make(iou_threshold=iou, max_output=most, score_threshold=least)
    got = dict(op({"b": boxes, "s": scores}, np))
    for image in range(5):
        kept = naive(boxes[image], scores[image], iou=iou, least=-INF if least is None else least, most=most)
        assert_padded(got, image, boxes[image], kept, scores[image][kept])
    after = op.specs(specs((-1, 60, 4), (-1, 60)))
    assert [*after] == ["boxes", "scores", "indices", "counts"]
    assert all(array.dtype == after[name].dtype and after[name].accepts(array.shape) for name, array in got.items())


@pytest.mark.parametrize("aware", [True, False])
def test_classes_of_scores(aware: bool) -> None:
    boxes, scores = some_boxes(3, 30), some_scores(3, 4, 30)
    op = make(class_aware=aware, score_threshold=0.5, max_output=50)
    got = op({"b": boxes, "s": scores}, np)
    for image in range(3):
        if aware:
            places, flat = np.tile(boxes[image], (4, 1)), scores[image].ravel()
            kept = naive(places, flat, np.repeat(range(4), 30), least=0.5, most=50)
            wanted = [(i % 30, i // 30) for i in kept]
        else:
            flat = scores[image].max(axis=0)
            wanted = [(i, scores[image, :, i].argmax()) for i in naive(boxes[image], flat, least=0.5, most=50)]
        count = int(got["counts"][image])
        assert [*zip(got["indices"][image, :count], got["classes"][image, :count], strict=True)] == wanted
        assert got["scores"][image, :count].tolist() == [scores[image, c, i] for i, c in wanted]
        assert (got["classes"][image, count:] == -1).all()
    assert [*op.specs(specs((-1, 30, 4), (-1, 4, 30)))] == ["boxes", "scores", "classes", "indices", "counts"]


@pytest.mark.parametrize("dtype", [np.int64, np.uint8])
def test_classes_of_boxes(dtype: Any) -> None:
    boxes, scores = some_boxes(2, 40), some_scores(2, 40)
    classes = np.random.default_rng(5).integers(0, 3, (2, 40)).astype(dtype)
    got = make(classes="c")({"b": boxes, "s": scores, "c": classes}, np)
    for image in range(2):
        kept = naive(boxes[image], scores[image], classes[image])
        assert_padded(dict(got), image, boxes[image], kept, scores[image][kept])
        assert got["classes"][image, : len(kept)].tolist() == classes[image][kept].tolist()


@pytest.mark.parametrize("layout", ["yxyx", "cxcywh"])
def test_as_onnx(layout: str) -> None:
    corners, scores = some_boxes(2, 25, seed=7), some_scores(2, 3, 25, seed=8)
    boxes = corners[..., [1, 0, 3, 2]]
    if layout == "cxcywh":
        boxes = np.concatenate([(corners[..., :2] + corners[..., 2:]) / 2, corners[..., 2:] - corners[..., :2]], -1)
    got = make(layout=layout, iou_threshold=0.4, score_threshold=0.3, max_output=75)({"b": boxes, "s": scores}, np)
    ours = {
        (image, int(got["classes"][image, i]), int(got["indices"][image, i]))
        for image in range(2)
        for i in range(int(got["counts"][image]))
    }
    names = ["b", "s", "m", "i", "t"]
    feed = [boxes, scores, np.array([75], np.int64), np.array([0.4], np.float32), np.array([0.3], np.float32)]
    node = onnx.helper.make_node("NonMaxSuppression", names, ["y"], center_point_box=int(layout == "cxcywh"))
    takes = [
        onnx.helper.make_tensor_value_info(name, onnx.helper.np_dtype_to_tensor_dtype(array.dtype), None)
        for name, array in zip(names, feed, strict=True)
    ]
    graph = onnx.helper.make_graph([node], "g", takes, [onnx.helper.make_tensor_value_info("y", 7, None)])
    (theirs,) = ReferenceEvaluator(onnx.helper.make_model(graph)).run(None, dict(zip(names, feed, strict=True)))
    assert ours == {tuple(map(int, row)) for row in theirs}


def test_rows_do_not_depend_on_each_other() -> None:
    boxes, scores = some_boxes(6, 80), some_scores(6, 80)
    scores[2] = 0
    op = make(score_threshold=0.2, max_candidates=30, max_output=20)
    together = op({"b": boxes, "s": scores}, np)
    for image in range(6):
        alone = op({"b": boxes[image : image + 1], "s": scores[image : image + 1]}, np)
        for name, array in alone.items():
            np.testing.assert_array_equal(array[0], together[name][image])


def test_a_large_batch_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    boxes, scores = some_boxes(7, 20), some_scores(7, 20)
    whole = make()({"b": boxes, "s": scores}, np)
    monkeypatch.setattr("tensorgate.backends.ops.nms._PAIRS", 900)
    for name, array in make()({"b": boxes, "s": scores}, np).items():
        np.testing.assert_array_equal(array, whole[name])


def test_odd_boxes() -> None:
    """No area, turned over, not a number; FP16, whose areas are computed in FP32."""
    boxes = np.array([[[0, 0, 0, 0], [0, 0, 0, 0], [300, 300, 0, 0], [0, 0, 300, 300], [NAN] * 4]], np.float16)
    scores = np.array([[0.9, 0.8, 0.7, 0.6, 0.5]], np.float16)
    got = make()({"b": boxes, "s": scores}, np)
    assert got["indices"][0, :5].tolist() == [0, 1, 2, 4, -1]
    assert got["boxes"].dtype == np.float16


@pytest.mark.parametrize(
    ("boxes", "scores"), [((0, 5, 4), (0, 5)), ((2, 0, 4), (2, 0)), ((2, 0, 4), (2, 3, 0)), ((2, 5, 4), (2, 0, 5))]
)
def test_nothing(boxes: tuple[int, ...], scores: tuple[int, ...]) -> None:
    for aware in (True, False):
        op = make(max_output=3, class_aware=aware)
        got = op({"b": np.zeros(boxes, np.float32), "s": np.zeros(scores, np.float32)}, np)
        assert got["counts"].tolist() == [0] * boxes[0]
        assert got["boxes"].shape == (boxes[0], 3, 4)
        assert (got["indices"] == -1).all()


def test_scores_that_are_no_numbers_are_no_candidates() -> None:
    got = make()({"b": some_boxes(1, 3), "s": np.array([[NAN, INF, NAN]], np.float32)}, np)
    assert got["counts"].tolist() == [1]
    assert got["indices"][0, 0] == 1


def test_names() -> None:
    outputs = {"boxes": "found", "scores": None, "indices": None, "counts": "n"}
    op = make(outputs=outputs)
    assert [*op.specs(specs((-1, 9, 4), (-1, 9)))] == ["found", "n"]
    assert {*op({"b": some_boxes(1, 9), "s": some_scores(1, 9)}, np)} == {"found", "n"}
    for wrong in ({"boxes": "x", "scores": "x"}, dict.fromkeys(("boxes", "scores", "classes", "indices", "counts"))):
        with pytest.raises(ValidationError, match="needs one name at least, and no name twice"):
            make(outputs=wrong)


def test_refusals() -> None:
    op = make()
    for boxes, scores, words in [
        ((-1, 9), (-1, 9), "expected \\[N, B, 4\\]"),
        ((-1, 9, 5), (-1, 9), "expected \\[N, B, 4\\]"),
        ((-1, 9, 4), (-1,), "expected \\[N, B\\] or \\[N, C, B\\]"),
        ((-1, 9, 4), (-1, 8), "'s' has scores of 8 boxes, 'b' has 9"),
    ]:
        with pytest.raises(ValueError, match=words):
            op.specs(specs(boxes, scores))
    with pytest.raises(ValueError, match="cast it to FP32"):
        op.specs(specs((-1, 9, 4), (-1, 9), "INT32"))
    with pytest.raises(ValueError, match="nothing says the shape of 's'"):
        op.specs(specs((-1, 9, 4), (-1, 9)) | {"s": TensorSpec("s", DTYPES["FP32"])})
    with pytest.raises(ValueError, match="must both be"):
        make(classes="c").specs(specs((-1, 9, 4), (-1, 2, 9)) | {"c": TensorSpec("c", DTYPES["INT32"], (-1, 9))})
    for shape in [(1, 9), (1, 9, 4, 1), (1, 8, 4)]:
        with pytest.raises(InvalidArgument, match="nms needs boxes"):
            op({"b": np.zeros(shape, np.float32), "s": np.zeros((1, 9), np.float32)}, np)

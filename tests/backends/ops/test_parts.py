"""slice, split, concat, gather, where, clip, class_names, box_convert, to_json: against NumPy, ONNX and by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as some
from op_results import by_onnx, checked
from pydantic import ValidationError

from tensorgate.backends.ops.box_convert import KIND as BOX_CONVERT
from tensorgate.backends.ops.class_names import KIND as CLASS_NAMES
from tensorgate.backends.ops.clip import KIND as CLIP
from tensorgate.backends.ops.concat import KIND as CONCAT
from tensorgate.backends.ops.gather import KIND as GATHER
from tensorgate.backends.ops.slice import KIND as SLICE
from tensorgate.backends.ops.split import KIND as SPLIT
from tensorgate.backends.ops.to_json import KIND as TO_JSON
from tensorgate.backends.ops.where import KIND as WHERE
from tensorgate.gateway.contract.errors import InvalidArgument
from tensorgate.gateway.contract.operator import Op, OpKind
from tensorgate.gateway.contract.tensor import DTYPES, TensorSpec

ALL: dict[str, OpKind] = {
    "slice": SLICE,
    "split": SPLIT,
    "concat": CONCAT,
    "gather": GATHER,
    "where": WHERE,
    "clip": CLIP,
    "class_names": CLASS_NAMES,
    "box_convert": BOX_CONVERT,
    "to_json": TO_JSON,
}


def make(op: str, **options: Any) -> Op:
    read = {key: tuple(value) if isinstance(value, list) else value for key, value in options.items()}
    return ALL[op].make(ALL[op].options.model_validate({"op": op, **read}, context=Path("/nowhere/x.yaml")))


def specs(**tensors: tuple[str, tuple[int, ...] | None]) -> dict[str, TensorSpec]:
    return {name: TensorSpec(name, DTYPES[datatype], shape) for name, (datatype, shape) in tensors.items()}


def texts(*rows: Any) -> Any:
    array = np.array(rows, np.object_)
    array[...] = np.vectorize(lambda text: text.encode(), otypes=[object])(array)
    return array


X = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
OF_X = specs(x=("FP32", (-1, 3, 4)))


@given(some.integers(-6, 6), some.none() | some.integers(-6, 6), some.integers(1, 4))
def test_slice_is_numpys(start: int, stop: int | None, step: int) -> None:
    wanted = X[..., start:stop:step]
    op = make("slice", input="x", start=start, stop=stop, step=step)
    if not wanted.shape[-1]:
        with pytest.raises(ValueError, match="slice: nothing of the 4 entries of axis -1 of 'x' is left"):
            op.specs(OF_X)
    else:
        assert checked(op, OF_X, {"x": X})["x"].tolist() == wanted.tolist()


@given(some.lists(some.integers(1, 5), min_size=1, max_size=4), some.sampled_from([0, 1, -1]), some.integers(1, 3))
def test_split_and_concat_undo_each_other(sizes: list[int], axis: int, others: int) -> None:
    shape = [others] * 2
    shape[axis] = sum(sizes)
    x = np.random.default_rng(0).random(shape, np.float32)
    names = [f"part{index}" for index in range(len(sizes))]
    parts = checked(
        make("split", input="x", sizes=sizes, outputs=names, axis=axis), specs(x=("FP32", tuple(shape))), {"x": x}
    )
    for got, wanted in zip(
        parts.values(), by_onnx("Split", x, np.array(sizes), outputs=len(sizes), axis=axis), strict=True
    ):
        assert got.tolist() == wanted.tolist()
    if len(sizes) > 1:
        of_parts = specs(**{name: ("FP32", part.shape) for name, part in parts.items()})
        joined = checked(make("concat", inputs=names, output="x", axis=axis), of_parts, parts)
        assert joined["x"].tolist() == x.tolist()


def test_gather_by_rows_and_by_fixed_numbers() -> None:
    indices = np.array([[2, 0, -1], [1, 1, 3]], np.int32)
    of_both = OF_X | specs(i=("INT32", (-1, 3)))
    got = checked(make("gather", input="x", indices="i", output="y", fill=-5), of_both, {"x": X, "i": indices})["y"]
    nothing = [-5.0] * 4
    assert got.tolist() == [
        [X[0, 2].tolist(), X[0, 0].tolist(), nothing],
        [X[1, 1].tolist(), X[1, 1].tolist(), nothing],
    ]
    fixed = checked(make("gather", input="x", indices=[3, 0], axis=2), OF_X, {"x": X})["x"]
    assert fixed.tolist() == by_onnx("Gather", X, np.array([3, 0]), axis=2)[0].tolist()
    empty = {"x": X[:, :0], "i": indices}
    assert (
        checked(make("gather", input="x", indices="i"), specs(x=("FP32", (-1, -1, 4)), i=("INT32", (-1, 3))), empty)[
            "x"
        ].tolist()
        == np.zeros((2, 3, 4)).tolist()
    )


@given(some.lists(some.tuples(some.booleans(), some.floats(width=32), some.floats(width=32)), min_size=1))
def test_where_is_onnxs(rows: list[tuple[bool, float, float]]) -> None:
    c, x, y = (np.array(column) for column in zip(*rows, strict=True))
    x, y = x.astype(np.float32), y.astype(np.float32)
    of_all = specs(c=("BOOL", (-1,)), x=("FP32", (-1,)), y=("FP32", (-1,)))
    got = checked(make("where", condition="c", x="x", y="y", output="z"), of_all, {"c": c, "x": x, "y": y})
    assert got["z"].tobytes() == by_onnx("Where", c, x, y)[0].tobytes()
    assert {*got} == {"z", "x", "y"}
    number = checked(make("where", condition="c", x="x", y=0.5, output="x"), of_all, {"c": c, "x": x, "y": y})
    assert number["x"].tobytes() == np.where(c, x, np.float32(0.5)).tobytes()


@pytest.mark.parametrize("datatype", ["FP16", "FP32", "FP64", "INT8", "UINT8", "INT64"])
def test_clip_is_onnxs(datatype: str) -> None:
    x = np.arange(0, 100, 7).astype(DTYPES[datatype])
    of_x = specs(x=(datatype, (-1,)))
    for low, high in (10, 50), (None, 30), (20, None):
        got = checked(make("clip", input="x", low=low, high=high), of_x, {"x": x})["x"]
        wanted = by_onnx(
            "Clip", x, *(np.array(0 if low is None else low, x.dtype), np.array(99 if high is None else high, x.dtype))
        )
        assert got.tolist() == wanted[0].tolist()


def test_class_names(tmp_path: Path) -> None:
    numbers = np.array([[1, 0, -1, 7]], np.int32)
    (tmp_path / "labels.txt").write_text("cat\nköter\n", encoding="utf-8")
    of_numbers = specs(i=("INT32", (-1, 4)))
    for said in {"names": ("cat", "köter")}, {"file": str(tmp_path / "labels.txt")}:
        got = checked(make("class_names", input="i", output="n", unknown="?", **said), of_numbers, {"i": numbers})
        assert [name.decode() for name in got["n"][0]] == ["köter", "cat", "?", "?"]
        assert got["i"] is numbers
    assert [*checked(make("class_names", input="i", names=("a",)), of_numbers, {"i": numbers})] == ["i"]


BOX = {"xyxy": (2, 3, 6, 9), "yxyx": (3, 2, 9, 6), "xywh": (2, 3, 4, 6), "cxcywh": (4, 6, 4, 6)}


@pytest.mark.parametrize("behind", BOX)
@pytest.mark.parametrize("before", BOX)
@pytest.mark.parametrize("datatype", ["FP16", "FP32", "FP64"])
def test_box_convert(datatype: str, before: str, behind: str) -> None:
    boxes = np.array([[BOX[before]]], DTYPES[datatype])
    of_boxes = specs(b=(datatype, (-1, 1, 4)))
    got = checked(make("box_convert", input="b", from_layout=before, to_layout=behind), of_boxes, {"b": boxes})["b"]
    assert got.tolist() == [[list(map(float, BOX[behind]))]]
    scaled = make("box_convert", input="b", from_layout=before, to_layout=behind, divide=(2, 1), multiply=(1, 10))
    x, y = (0, 1) if behind != "yxyx" else (1, 0)
    wanted = got.copy()
    wanted[..., x::2] /= 2
    wanted[..., y::2] *= 10
    np.testing.assert_allclose(checked(scaled, of_boxes, {"b": boxes})["b"], wanted, rtol=1e-3)


def test_boxes_of_a_detectors_head() -> None:
    """DETR's: numbers before a sigmoid, in parts of the image."""
    raw = np.array([[[0.0, 0.0, -1.0, 1.0]]], np.float32)
    op = make("box_convert", input="b", sigmoid=True, multiply=(640, 480))
    width, height = 640 / (1 + np.e), 480 / (1 + 1 / np.e)
    wanted = [320 - width / 2, 240 - height / 2, 320 + width / 2, 240 + height / 2]
    np.testing.assert_allclose(checked(op, specs(b=("FP32", (-1, 1, 4))), {"b": raw})["b"][0, 0], wanted, rtol=1e-5)


FOUND = {
    "boxes": np.array([[[0.1, 0.2], [3, 4]], [[5, np.nan], [7, 8]]], np.float32),
    "names": texts(["cat", "dog"], ["owl", ""]),
    "counts": np.array([2, 1], np.int32),
}
OF_FOUND = specs(boxes=("FP32", (-1, 2, 2)), names=("BYTES", (-1, 2)), counts=("INT32", (-1,)))


def test_to_json() -> None:
    fields = {"box": "boxes", "name": "names"}
    got = checked(make("to_json", fields=fields, counts="counts", output="found"), OF_FOUND, FOUND)
    assert [*got] == ["found"]
    assert got["found"].tolist() == [
        b'[{"box":[0.1,0.2],"name":"cat"},{"box":[3.0,4.0],"name":"dog"}]',
        b'[{"box":[5.0,null],"name":"owl"}]',
    ]
    columns = make("to_json", fields=fields, form="columns", keep_inputs=True)
    got = checked(columns, OF_FOUND, FOUND)
    assert [*got] == ["boxes", "names", "counts", "json"]
    assert json.loads(got["json"][1]) == {"box": [[5, None], [7, 8]], "name": ["owl", ""]}
    scalars = make("to_json", fields={"label": "l", "score": "s"}, form="columns")
    of_scalars = specs(l=("BYTES", (-1,)), s=("FP64", (-1,)))
    row = checked(scalars, of_scalars, {"l": np.array([b"a\xff"], np.object_), "s": np.array([0.5])})
    assert json.loads(row["json"][0]) == {"label": "a\ufffd", "score": 0.5}


REFUSED: dict[str, tuple[str, dict[str, Any], dict[str, TensorSpec], str]] = {
    "slice: no axis": ("slice", {"input": "x", "axis": 3}, OF_X, "'x' of shape .* has no axis 3"),
    "split: other sizes": (
        "split",
        {"input": "x", "sizes": [1, 2], "outputs": ["a", "b"]},
        OF_X,
        "has 4 entries, sizes are 3",
    ),
    "split: a name twice over": (
        "split",
        {"input": "x", "sizes": [1, 3], "outputs": ["a", "z"]},
        OF_X | specs(z=("FP32", (1,))),
        "there is a tensor 'z' already",
    ),
    "concat: types": (
        "concat",
        {"inputs": ["x", "z"], "output": "y"},
        OF_X | specs(z=("FP64", (-1, 3, 4))),
        "cast one of them",
    ),
    "concat: shapes": (
        "concat",
        {"inputs": ["x", "z"], "output": "y"},
        OF_X | specs(z=("FP32", (-1, 2, 4))),
        "may differ in axis -1",
    ),
    "gather: beyond": ("gather", {"input": "x", "indices": [3], "axis": 1}, OF_X, "has 3 entries, indices name 3"),
    "gather: floats": ("gather", {"input": "x", "indices": "x"}, OF_X, "expected integers"),
    "where: no condition": ("where", {"condition": "x", "x": "x", "y": 0, "output": "x"}, OF_X, "expected BOOL"),
    "where: no such number": (
        "where",
        {"condition": "c", "x": "i", "y": 0.5, "output": "i"},
        specs(c=("BOOL", (-1,)), i=("INT32", (-1,))),
        "0.5 is no INT32",
    ),
    "clip: beyond the type": ("clip", {"input": "i", "high": 300}, specs(i=("UINT8", (-1,))), "300 is no UINT8"),
    "class_names: floats": ("class_names", {"input": "x", "names": ["a"]}, OF_X, "expected integers"),
    "box_convert: no boxes": ("box_convert", {"input": "b"}, specs(b=("FP32", (-1, 3))), r"expected \[..., 4\]"),
    "to_json: no entries": ("to_json", {"fields": {"a": "a"}}, specs(a=("FP32", (-1,))), "without entries to list"),
}


@pytest.mark.parametrize(("op", "options", "before", "words"), REFUSED.values(), ids=REFUSED)
def test_what_the_configuration_shows_to_be_wrong(op: str, options: Any, before: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        make(op, **options).specs(before)


@pytest.mark.parametrize(
    ("op", "options"),
    [
        ("split", {"input": "x", "sizes": [1], "outputs": ["a", "b"]}),
        ("clip", {"input": "x"}),
        ("clip", {"input": "x", "low": 2, "high": 1}),
        ("where", {"condition": "c", "x": 0, "y": 1, "output": "z"}),
        ("class_names", {"input": "x"}),
    ],
)
def test_options_that_cannot_be(op: str, options: Any) -> None:
    with pytest.raises(ValidationError):
        make(op, **options)


WRONG_DATA: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "split": ("split", {"input": "x", "sizes": [4], "outputs": ["a"]}, {"x": X[..., :2]}),
    "concat": ("concat", {"inputs": ["x", "y"], "output": "z"}, {"x": X, "y": X[:1]}),
    "gather: rows": ("gather", {"input": "x", "indices": "i"}, {"x": X, "i": np.zeros((3, 1), np.int32)}),
    "gather: beyond": ("gather", {"input": "x", "indices": [4], "axis": 2}, {"x": X}),
    "where": ("where", {"condition": "c", "x": "x", "y": 0, "output": "x"}, {"c": np.zeros(3, bool), "x": X}),
    "box_convert": ("box_convert", {"input": "x"}, {"x": X[..., :3]}),
    "to_json: rows": ("to_json", {"fields": {"a": "x", "b": "y"}}, {"x": X, "y": X[:1]}),
    "to_json: entries": ("to_json", {"fields": {"a": "x", "b": "y"}}, {"x": X, "y": X[:, :1]}),
    "missing": ("concat", {"inputs": ["x", "y"], "output": "z"}, {"x": X}),
}


@pytest.mark.parametrize(("op", "options", "tensors"), WRONG_DATA.values(), ids=WRONG_DATA)
def test_what_only_the_data_shows_to_be_wrong(op: str, options: Any, tensors: Any) -> None:
    with pytest.raises(InvalidArgument):
        make(op, **options)(tensors, np)


@pytest.mark.parametrize(
    ("op", "options"),
    [
        ("slice", {"input": "x", "axis": 0, "stop": 1}),
        ("split", {"input": "x", "axis": 0, "sizes": [1], "outputs": ["a"]}),
        ("concat", {"inputs": ["x", "x"], "output": "y", "axis": 0}),
        ("gather", {"input": "x", "axis": 0, "indices": [0]}),
    ],
)
def test_the_batch_is_left_alone(op: str, options: Any) -> None:
    """The axis is told, so that a model whose rows are different callers' refuses the step."""
    assert make(op, **options).along(OF_X) == ("x", 0)

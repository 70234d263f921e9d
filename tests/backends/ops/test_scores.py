"""Operators on scores against exact formulas in FP64 and ONNX's reference evaluator."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from op_results import by_onnx, checked
from pydantic import ValidationError

from tensorgate.backends.ops.argmax import KIND as ARGMAX
from tensorgate.backends.ops.l2_normalize import KIND as L2_NORMALIZE
from tensorgate.backends.ops.log_softmax import KIND as LOG_SOFTMAX
from tensorgate.backends.ops.one_hot import KIND as ONE_HOT
from tensorgate.backends.ops.sigmoid import KIND as SIGMOID
from tensorgate.backends.ops.softmax import KIND as SOFTMAX
from tensorgate.backends.ops.threshold import KIND as THRESHOLD
from tensorgate.backends.ops.top_k import KIND as TOP_K
from tensorgate.gateway.contract.errors import InvalidArgument
from tensorgate.gateway.contract.operator import Op, OpKind
from tensorgate.gateway.contract.tensor import DTYPES, TensorSpec

INF, NAN = math.inf, math.nan


def make(kind: OpKind, **options: Any) -> Op:
    return kind.make(kind.options(**options))


def spec(datatype: str, *shape: int, name: str = "x") -> dict[str, TensorSpec]:
    return {name: TensorSpec(name, DTYPES[datatype], shape)}


# -------------------------------------------------------------------------------------------- same shape, same dtype


def softmax(x: Any, axis: int) -> Any:
    e = np.exp(x - x.max(axis=axis, keepdims=True))
    return e / e.sum(axis=axis, keepdims=True)


FORMULAS: dict[str, tuple[OpKind, dict[str, Any], Any]] = {
    "softmax": (SOFTMAX, {"axis": 1}, lambda x: softmax(x, 1)),
    "log_softmax": (LOG_SOFTMAX, {"axis": 1}, lambda x: np.log(softmax(x, 1))),
    "sigmoid": (SIGMOID, {}, lambda x: 1 / (1 + np.exp(-x))),
    "l2_normalize": (L2_NORMALIZE, {"axis": 1}, lambda x: x / np.sqrt((x * x).sum(axis=1, keepdims=True))),
}
PRECISION = {"FP16": 1e-3, "FP32": 1e-6, "FP64": 1e-14}


@pytest.mark.parametrize("datatype", PRECISION)
@pytest.mark.parametrize("name", FORMULAS)
def test_formula(name: str, datatype: str) -> None:
    kind, options, formula = FORMULAS[name]
    op = make(kind, op=name, input="x", output="y", **options)
    x = (np.random.default_rng(1).standard_normal((3, 1000, 2)) * 4).astype(DTYPES[datatype])
    kept = x.copy()
    got = checked(op, spec(datatype, -1, 1000, 2), {"x": x})["y"]
    np.testing.assert_allclose(
        got, formula(x.astype(np.float64)), rtol=PRECISION[datatype] * 5, atol=PRECISION[datatype] * 5
    )
    np.testing.assert_array_equal(x, kept)
    alone = op({"x": x[1:2]}, np)["y"]
    np.testing.assert_array_equal(alone[0], got[1])


@pytest.mark.parametrize("name", FORMULAS)
def test_same_shape_takes_nothing_and_refuses(name: str) -> None:
    kind, options, _ = FORMULAS[name]
    op = make(kind, op=name, input="x", **options)
    assert op({"x": np.zeros((0, 5), np.float32)}, np)["x"].shape == (0, 5)
    assert op({"x": np.zeros((5, 0), np.float32)}, np)["x"].shape == (5, 0)
    with pytest.raises(ValueError, match=f"{name}: 'x' is UINT8; cast it to FP32 first"):
        op.specs(spec("UINT8", 1, 2))
    with pytest.raises(ValueError, match=f"{name}: there is no tensor 'x' at this point, but y"):
        op.specs(spec("FP32", 1, 2, name="y"))
    with pytest.raises(InvalidArgument, match=f"{name} needs 'x', which is missing"):
        op({}, np)
    with pytest.raises(InvalidArgument, match="rows of one shape"):
        op({"x": np.array([np.zeros(1), np.zeros(2)], object)}, np)
    if options:
        with pytest.raises(ValueError, match=rf"{name}: 'x' of shape \[5\] has no axis 1"):
            op.specs(spec("FP32", 5))
        with pytest.raises(InvalidArgument, match="has no axis 1"):
            op({"x": np.zeros(5, np.float32)}, np)


def test_half_precision_sums_are_made_in_single() -> None:
    """In FP16 the sum of 5000 ones is 2048, and the square of 300 is infinite."""
    ones = np.zeros((1, 5000), np.float16)
    got = make(SOFTMAX, op="softmax", input="x")({"x": ones}, np)["x"]
    assert got.dtype == np.float16
    np.testing.assert_allclose(got, 1 / 5000, rtol=1e-3)
    long = np.full((1, 4), 300, np.float16)
    assert make(L2_NORMALIZE, op="l2_normalize", input="x")({"x": long}, np)["x"].tolist() == [[0.5] * 4]


def test_far_ends() -> None:
    x = np.array([[-200, -90, 0, 90, INF, -INF, NAN]], np.float32)
    got = make(SIGMOID, op="sigmoid", input="x")({"x": x}, np)["x"][0]
    np.testing.assert_allclose(got[:6], [0, 8.19401262e-40, 0.5, 1, 1, 0], rtol=1e-4)
    assert np.isnan(got[6])
    log = make(LOG_SOFTMAX, op="log_softmax", input="x")({"x": np.array([[0, 1000]], np.float32)}, np)["x"]
    assert log.tolist() == [[-1000, 0]]
    zeros = make(L2_NORMALIZE, op="l2_normalize", input="x")({"x": np.zeros((1, 3), np.float32)}, np)["x"]
    assert zeros.tolist() == [[0, 0, 0]]


# --------------------------------------------------------------------------------------------------- argmax and top_k


@pytest.mark.parametrize("keepdims", [False, True])
@pytest.mark.parametrize("axis", [1, -1, 2])
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, np.int8, np.uint64])
def test_argmax(dtype: Any, axis: int, keepdims: bool) -> None:
    x = np.random.default_rng(2).integers(0, 5, (4, 6, 7)).astype(dtype)  # with many ties
    op = make(ARGMAX, op="argmax", input="x", output="y", axis=axis, keepdims=keepdims, datatype="INT32")
    datatype = next(name for name in DTYPES if DTYPES[name] == dtype)
    got = checked(op, spec(datatype, -1, 6, 7), {"x": x})["y"]
    (want,) = by_onnx("ArgMax", x, axis=axis, keepdims=int(keepdims))
    np.testing.assert_array_equal(got, want)


def test_argmax_of_what_is_no_number() -> None:
    x = np.array([[1, NAN, 2], [NAN, -INF, NAN], [NAN] * 3, [-0.0, 0.0, -1], [INF, INF, NAN]], np.float32)
    op = make(ARGMAX, op="argmax", input="x", output="y", keep_input=True)
    got = checked(op, spec("FP32", -1, 3), {"x": x})
    assert got["y"].tolist() == [2, 1, 0, 0, 0]
    assert got["x"] is x
    with pytest.raises(InvalidArgument, match="has no entries"):
        op({"x": np.zeros((2, 0), np.float32)}, np)
    with pytest.raises(ValueError, match="there is a tensor 'x' already"):
        make(ARGMAX, op="argmax", input="x", keep_input=True).specs(spec("FP32", -1, 3))


@pytest.mark.parametrize("axis", [1, -1])
@pytest.mark.parametrize(("size", "k"), [(9, 1), (9, 9), (700, 3), (700, 600)])
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.int64, np.uint8])
def test_top_k(dtype: Any, size: int, k: int, axis: int) -> None:
    shape = (2, size, 3) if axis == 1 else (2, 3, size)
    x = np.random.default_rng(3).integers(0, 100, shape).astype(dtype)
    op = make(TOP_K, op="top_k", input="x", k=k, axis=axis)
    datatype = next(name for name in DTYPES if DTYPES[name] == dtype)
    got = checked(op, spec(datatype, -1, *shape[1:]), {"x": x})
    order = np.argsort(-x.astype(np.float64), axis=axis, kind="stable").take(range(k), axis)
    np.testing.assert_array_equal(got["indices"], order)
    np.testing.assert_array_equal(got["values"], np.take_along_axis(x, order, axis))


def test_top_k_takes_nan_last_and_refuses() -> None:
    op = make(TOP_K, op="top_k", input="x", k=3, values=None, indices="i", datatype="INT32", keep_input=True)
    x = np.array([[NAN, 1, -INF, 1, NAN]], np.float16)
    got = checked(op, spec("FP16", -1, 5), {"x": x})
    assert got["i"].tolist() == [[1, 3, 2]]
    with pytest.raises(ValueError, match="axis -1 of 'x' has 2 entries, fewer than k, 3"):
        op.specs(spec("FP32", -1, 2))
    with pytest.raises(InvalidArgument, match="axis -1 of 'x' has 2 entries, fewer than k, 3"):
        op({"x": np.zeros((1, 2), np.float32)}, np)
    assert op({"x": np.zeros((0, 4), np.float32)}, np)["i"].shape == (0, 3)
    with pytest.raises(ValidationError, match="neither values nor indices"):
        make(TOP_K, op="top_k", input="x", k=3, values=None, indices=None)


# ------------------------------------------------------------------------------------------------------------- one_hot


@pytest.mark.parametrize("axis", [-1, 0, 1, 2])
@pytest.mark.parametrize("dtype", [np.int64, np.uint8])
def test_one_hot(dtype: Any, axis: int) -> None:
    x = np.array([[0, 1, 4], [2, 3, 0]], dtype)
    op = make(
        ONE_HOT, op="one_hot", input="x", output="y", depth=5, axis=axis, on_value=3, off_value=-1, datatype="INT32"
    )
    datatype = next(name for name in DTYPES if DTYPES[name] == dtype)
    got = checked(op, spec(datatype, -1, 3), {"x": x})["y"]
    (want,) = by_onnx("OneHot", x, np.int64(5), np.array([-1, 3], np.int32), axis=axis)
    np.testing.assert_array_equal(got, want)


def test_one_hot_out_of_range() -> None:
    x = np.array([-1, 5, 2])
    quiet = make(ONE_HOT, op="one_hot", input="x", depth=3, datatype="BOOL")
    assert quiet({"x": x}, np)["x"].tolist() == [[False] * 3, [False] * 3, [False, False, True]]
    strict = make(ONE_HOT, op="one_hot", input="x", depth=3, out_of_range="error")
    for bad in ([-1], [3]):
        with pytest.raises(InvalidArgument, match="has an index that is not 0 to 2"):
            strict({"x": np.array(bad)}, np)
    assert strict({"x": np.array([2])}, np)["x"].tolist() == [[0, 0, 1]]


def test_one_hot_refuses() -> None:
    op = make(ONE_HOT, op="one_hot", input="x", depth=1 << 24)
    with pytest.raises(InvalidArgument, match=r"would make 67,108,864,000 bytes"):
        op({"x": np.zeros(1000, np.int64)}, np)
    with pytest.raises(ValueError, match="is FP32, expected integers"):
        op.specs(spec("FP32", -1))
    with pytest.raises(ValueError, match=r"0\.5 is no UINT8"):
        make(ONE_HOT, op="one_hot", input="x", depth=2, on_value=0.5, datatype="UINT8")
    with pytest.raises(ValueError, match="has no axis 3"):
        make(ONE_HOT, op="one_hot", input="x", depth=2, axis=3).specs(spec("INT64", -1))


# ----------------------------------------------------------------------------------------------------------- threshold

THRESHOLDS: dict[str, tuple[dict[str, Any], list[Any], np.dtype[Any]]] = {
    "flags": ({"datatype": "BOOL"}, [False, True, True, False], DTYPES["BOOL"]),
    "bytes": ({"datatype": "UINT8"}, [0, 1, 1, 0], DTYPES["UINT8"]),
    "own": ({}, [0.0, 1.0, 1.0, 0.0], DTYPES["FP32"]),
    "replaced": ({"below": -9.0}, [-9.0, 0.5, INF, -9.0], DTYPES["FP32"]),
}


@pytest.mark.parametrize("case", THRESHOLDS)
def test_threshold(case: str) -> None:
    options, wanted, dtype = THRESHOLDS[case]
    op = make(THRESHOLD, op="threshold", input="x", output="y", at=0.5, **options)
    got = checked(op, spec("FP32", -1), {"x": np.array([0.4999, 0.5, INF, NAN], np.float32)})["y"]
    assert got.tolist() == wanted
    assert got.dtype == dtype


def test_threshold_of_integers() -> None:
    op = make(THRESHOLD, op="threshold", input="x", at=1.5, below=0)
    assert checked(op, spec("UINT8", -1), {"x": np.array([1, 2, 255], np.uint8)})["x"].tolist() == [0, 2, 255]
    for value in (-1, 0.5):
        with pytest.raises(ValueError, match=f"is UINT8, which cannot hold {value}"):
            make(THRESHOLD, op="threshold", input="x", at=1, below=value).specs(spec("UINT8", -1))
    with pytest.raises(ValidationError, match="give one of them"):
        make(THRESHOLD, op="threshold", input="x", at=1, below=0, datatype="BOOL")

"""Answers that are equal, nearly equal, or not."""

import json
import tracemalloc
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tensorgate.gateway.contract.canonical import InferResponse, TopK
from tensorgate.gateway.routing.response_diff import TensorDiff, Tolerance, compare

NAN, INF = float("nan"), float("inf")


def compared(mine: Any, theirs: Any, dtype: Any = np.float32, **tolerance: float) -> TensorDiff:
    a, b = np.array(mine, dtype), np.array(theirs, dtype)
    (found,) = compare(InferResponse({"y": a}), InferResponse({"y": b}), Tolerance(**tolerance))
    return found


@pytest.mark.parametrize(
    ("mine", "theirs", "dtype", "what", "beyond"),
    [
        ([1, 2], [1, 2], np.float32, "equal", 0),
        ([1000, 2], [1000.9, 2], np.float32, "equal", 0),
        ([1000, 2], [1001.1, 2], np.float32, "values", 1),
        ([0.0], [9e-6], np.float64, "equal", 0),
        ([0.0], [2e-5], np.float64, "values", 1),
        ([0.0], [-0.0], np.float32, "equal", 0),
        ([NAN, 1], [NAN, 1], np.float32, "equal", 0),
        ([NAN, 1], [1, NAN], np.float32, "values", 2),
        ([INF, -INF], [INF, -INF], np.float32, "equal", 0),
        ([INF], [-INF], np.float32, "values", 1),
        ([INF], [3e38], np.float32, "values", 1),
        ([3e38], [INF], np.float32, "values", 1),
        ([1.0], [1.0009765625], np.float16, "equal", 0),
        ([1.0], [1.0078125], ml_dtypes.bfloat16, "values", 1),
        ([1000], [1001], np.int32, "values", 1),
        ([2**63 - 1], [2**63 - 2], np.int64, "values", 1),
        ([0, 255], [255, 0], np.uint8, "values", 2),
        ([True, False], [True, True], np.bool_, "values", 1),
        ([b"a", b"\xff"], [b"a", b"\xff"], object, "equal", 0),
        ([b"a", b""], [b"a", b"b"], object, "values", 1),
        ([], [], np.float32, "equal", 0),
        (1.0, 2.0, np.float32, "values", 1),
    ],
)
def test_elements(mine: Any, theirs: Any, dtype: Any, what: str, beyond: int) -> None:
    found = compared(mine, theirs, dtype)
    assert (found.what, found.beyond) == (what, beyond)
    assert len(found.first) == beyond
    json.dumps(found.first, allow_nan=False)


def test_how_far_and_where() -> None:
    found = compared([[1.0, 2.0], [4.0, 0.0]], [[1.0, 3.0], [2.0, 0.0]], rtol=0.1)
    assert (found.elements, found.beyond, found.max_absolute, found.max_relative) == (4, 2, 2.0, 0.5)
    assert found.first == (((0, 1), 2.0, 3.0), ((1, 0), 4.0, 2.0))
    assert compared([1.0], [NAN]).max_absolute == INF
    assert compared([0.0], [5e-6]).max_relative == 0.0, "what atol allows is no relative difference"


def test_many_pieces_are_one_comparison_in_little_memory() -> None:
    mine = np.zeros((3, 1 << 20), np.float32)
    theirs = mine.copy()
    theirs[0, 5] = theirs[2, -1] = 1
    tracemalloc.start()
    (found,) = compare(InferResponse({"y": mine}), InferResponse({"y": theirs}), Tolerance())
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (found.elements, found.beyond) == (3 << 20, 2)
    assert [index for index, _, _ in found.first] == [(0, 5), (2, (1 << 20) - 1)]
    assert peak < mine.nbytes * 2


def test_forms_and_names() -> None:
    ones = np.ones((1, 2), np.float32)
    primary = InferResponse({"a": ones, "b": ones, "c": ones, "d": ones, "skip": ones})
    shadow = InferResponse({"a": ones.astype(np.float64), "b": ones.T, "e": ones, "d": ones, "skip": ones * 2})
    found = {each.output: each for each in compare(primary, shadow, Tolerance(), {"skip"})}
    assert {name: each.what for name, each in found.items()} == {
        "a": "datatype",
        "b": "shape",
        "d": "equal",
        "c": "missing",
        "e": "extra",
    }
    assert (found["a"].primary, found["a"].shadow) == ("FP32 [1, 2]", "FP64 [1, 2]")


def test_classes_are_compared_like_tensors() -> None:
    def best(*indices: int) -> InferResponse:
        values = np.ones((1, len(indices)), np.float32)
        return InferResponse({}, classes={"y": TopK(values, np.array([indices]))})

    found = compare(best(3, 4), best(3, 5), Tolerance())
    assert {each.output: each.what for each in found} == {"y (values)": "equal", "y (classes)": "values"}

"""Every operator against a definition written out by hand, and on specifications that it must refuse."""

from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from tensorgate.backends.ops.cast import KIND as CAST
from tensorgate.backends.ops.normalize import KIND as NORMALIZE
from tensorgate.backends.ops.reshape import KIND as RESHAPE
from tensorgate.backends.ops.softmax import KIND as SOFTMAX
from tensorgate.gateway.contract.errors import InvalidArgument
from tensorgate.gateway.contract.operator import Op, OpKind
from tensorgate.gateway.contract.tensor import DTYPES, TensorSpec


def make(kind: OpKind, **options: Any) -> Op:
    return kind.make(kind.options(**options))


def spec(datatype: str, *shape: int) -> dict[str, TensorSpec]:
    return {"x": TensorSpec("x", DTYPES[datatype], shape)}


def test_cast() -> None:
    op = make(CAST, op="cast", input="x", to="FP32")
    assert op.specs(spec("UINT8", -1, 2))["x"] == TensorSpec("x", DTYPES["FP32"], (-1, 2))
    other = np.zeros(1)
    got = op({"x": np.array([[0, 255]], np.uint8), "other": other}, np)
    assert got["x"].dtype == np.float32
    assert got["x"].tolist() == [[0, 255]]
    assert got["other"] is other
    with pytest.raises(ValueError, match="is BYTES"):
        op.specs(spec("BYTES", 1))


def test_normalize_all_alike() -> None:
    op = make(NORMALIZE, op="normalize", input="x", mean=(2.0,), std=(4.0,))
    got = op({"x": np.array([[2, 6], [0, -2]], np.float32)}, np)["x"]
    assert got.dtype == np.float32
    assert got.tolist() == [[0, 1], [-0.5, -1]]


@pytest.mark.parametrize("axis", [1, -1])
def test_normalize_per_channel(axis: int) -> None:
    mean, std = (0.5, 0.25, 1.0), (0.5, 2.0, 4.0)
    op = make(NORMALIZE, op="normalize", input="x", mean=mean, std=std, axis=axis)
    shape = (2, 3, 5, 5) if axis == 1 else (2, 5, 5, 3)
    x = np.random.default_rng(0).random(shape, np.float32)
    by_hand = np.stack([(x.take(c, axis) - mean[c]) / std[c] for c in range(3)], axis)
    op.specs(spec("FP32", -1, *shape[1:]))
    np.testing.assert_allclose(op({"x": x}, np)["x"], by_hand, rtol=1e-6, atol=1e-7)


def test_normalize_refuses_what_it_cannot_do() -> None:
    op = make(NORMALIZE, op="normalize", input="x", mean=(0.0, 0.0), std=(1.0, 1.0))
    for specs, words in [
        (spec("UINT8", 1, 2), "cast it to FP32 first"),
        (spec("FP32", 5), "no axis 1"),
        (spec("FP32", 1, 3), "has 3 entries, but mean and std have 2"),
        ({}, "there is no tensor 'x'"),
    ]:
        with pytest.raises(ValueError, match=words):
            op.specs(specs)
    with pytest.raises(ValidationError, match="mean has 1 numbers and std has 2"):
        make(NORMALIZE, op="normalize", input="x", mean=(0.0,), std=(1.0, 1.0))
    with pytest.raises(ValidationError):
        make(NORMALIZE, op="normalize", input="x", mean=(0.0,), std=(0.0,))


def test_softmax_renames_in_place_and_survives_large_scores() -> None:
    op = make(SOFTMAX, op="softmax", input="logits", output="scores")
    logits = {"logits": TensorSpec("logits", DTYPES["FP32"], (-1, 3)), "y": TensorSpec("y", DTYPES["FP32"])}
    assert list(op.specs(logits)) == ["scores", "y"]
    got = op({"logits": np.array([[1e4, 1e4, -1e4], [0, np.log(2), np.log(3)]], np.float32)}, np)["scores"]
    np.testing.assert_allclose(got, [[0.5, 0.5, 0], [1 / 6, 1 / 3, 1 / 2]], rtol=1e-6)
    assert got.dtype == np.float32
    with pytest.raises(ValueError, match="a tensor 'y' already"):
        make(SOFTMAX, op="softmax", input="logits", output="y").specs(logits)
    with pytest.raises(ValueError, match="no axis 2"):
        make(SOFTMAX, op="softmax", input="logits", axis=2).specs(logits)


RESHAPES: dict[str, tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...], tuple[int, ...], tuple[int, ...]]] = {
    # before, after, specification before, array's shape before, and after
    "a vector of one as a scalar per row": ((1,), (), (-1, 1), (3, 1), (3,)),
    "and back": ((), (1,), (-1,), (3,), (3, 1)),
    "flat": ((2, 3), (6,), (-1, 2, 3), (4, 2, 3), (4, 6)),
    "no batch": ((2, 3), (3, 2), (2, 3), (2, 3), (3, 2)),
    "no rows": ((2, 3), (6,), (-1, 2, 3), (0, 2, 3), (0, 6)),
    "one that varies": ((-1, 2), (2, -1), (-1, -1, 2), (1, 5, 2), (1, 2, 5)),
    "two that vary": ((-1, 4, -1), (-1, 2, 2, -1), (-1, -1, 4, -1), (2, 3, 4, 5), (2, 3, 2, 2, 5)),
    "one that varies, empty": ((-1, 2), (2, -1), (-1, -1, 2), (2, 0, 2), (2, 2, 0)),
}


@pytest.mark.parametrize("case", RESHAPES)
@pytest.mark.parametrize("dtype", [np.float32, np.object_])
def test_reshape(case: str, dtype: Any) -> None:
    before, after, declared, given, wanted = RESHAPES[case]
    op = make(RESHAPE, op="reshape", input="x", before=before, after=after)
    array = np.arange(np.prod(given, dtype=int)).reshape(given).astype(dtype)
    got = op({"x": array, "other": array}, np)
    assert got["x"].shape == wanted
    assert got["x"].ravel().tolist() == array.ravel().tolist()
    assert got["other"] is array
    shape = op.specs(spec("FP32", *declared))["x"].shape
    assert shape is not None
    assert len(shape) == len(wanted)
    assert all(size in (-1, have) for size, have in zip(shape, wanted, strict=True))


def test_reshape_refuses() -> None:
    for before, after in [((2,), (3,)), ((-1,), (2,)), ((-1, 2), (-1, 3)), ((), (2,))]:
        with pytest.raises(ValidationError, match="same number of elements"):
            make(RESHAPE, op="reshape", input="x", before=before, after=after)
    op = make(RESHAPE, op="reshape", input="x", before=(2, 3), after=(6,))
    for shape in [(-1, 3, 2), (3,), ()]:
        with pytest.raises(ValueError, match="does not end in"):
            op.specs(spec("FP32", *shape))
    for array in [np.zeros((1, 3, 2)), np.zeros(3)]:
        with pytest.raises(InvalidArgument, match="must end in"):
            op({"x": array}, np)
    anything = {"x": TensorSpec("x", DTYPES["FP32"], None)}
    assert op.specs(anything) == anything

"""pool: against loops over rows, whichever side is padded."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as some
from op_results import checked
from runtimes import host

from tensorgate.backends.ops.pool import KIND
from tensorgate.gateway.contract.errors import InvalidArgument
from tensorgate.gateway.contract.operator import Op
from tensorgate.gateway.contract.tensor import DTYPES, TensorSpec

MODES = ("mean", "cls", "last", "max")


def make(**options: Any) -> Op:
    return KIND.make(KIND.options.model_validate({"op": "pool", "input": "x", **options}))


def specs(datatype: str = "FP32", mask: str = "INT64") -> dict[str, TensorSpec]:
    return {
        "x": TensorSpec("x", DTYPES[datatype], (-1, -1, 3)),
        "mask": TensorSpec("mask", DTYPES[mask], (-1, -1)),
    }


def by_hand(mode: str, x: Any, mask: Any) -> Any:
    rows = []
    for vectors, tokens in zip(x.astype(np.float64), mask, strict=True):
        kept = vectors[tokens.astype(bool)]
        if not len(kept):
            rows.append(np.zeros(vectors.shape[1]))
        else:
            rows.append({"mean": kept.mean(axis=0), "cls": kept[0], "last": kept[-1], "max": kept.max(axis=0)}[mode])
    return np.array(rows).reshape(len(x), x.shape[2])


@pytest.mark.parametrize("mode", MODES)
@given(
    lengths=some.lists(some.integers(0, 5), min_size=0, max_size=4),
    left=some.booleans(),
    datatype=some.sampled_from(["FP32", "FP16", "FP64"]),
    mask_type=some.sampled_from(["INT64", "INT32", "BOOL"]),
)
def test_what_fills_up_does_not_count(mode: str, lengths: list[int], left: bool, datatype: str, mask_type: str) -> None:
    longest = max(lengths, default=0)
    x = np.random.default_rng(len(lengths)).normal(size=(len(lengths), longest, 3)).astype(DTYPES[datatype])
    mask = np.zeros((len(lengths), longest), DTYPES[mask_type])
    for row, length in enumerate(lengths):
        mask[row, longest - length if left else 0 : longest if left else length] = 1
    op = make(mode=mode, mask="mask", output="y")
    assert op.from_inputs == ("mask",)
    result = checked(op, specs(datatype, mask_type), {"x": x, "mask": mask})
    assert np.allclose(result["y"], by_hand(mode, x, mask), rtol=1e-3 if datatype == "FP16" else 1e-6)


@pytest.mark.parametrize("mode", MODES)
def test_without_a_mask_all_are_tokens(mode: str) -> None:
    x = np.arange(12, dtype=np.float32).reshape(2, 2, 3)
    result = checked(make(mode=mode), {"x": specs()["x"]}, {"x": x})
    assert result["x"].tolist() == by_hand(mode, x, np.ones((2, 2))).tolist()


@pytest.mark.parametrize("mode", MODES)
def test_on_the_device_it_is_what_it_is_on_the_host(mode: str, xp: Any) -> None:
    x = np.random.default_rng(5).normal(size=(4, 7, 3)).astype(np.float32)
    mask = np.tri(4, 7, 2, np.int64)
    mask[3] = 0
    op = make(mode=mode, mask="mask")
    result = op({"x": xp.asarray(x), "mask": xp.asarray(mask)}, xp)["x"]
    assert isinstance(result, xp.ndarray)
    assert np.allclose(host(result), by_hand(mode, x, mask), rtol=1e-5, atol=1e-6)


def test_a_row_of_infinities_and_a_poisoned_padding_stay_apart() -> None:
    x = np.array([[[1.0], [np.nan]], [[-np.inf], [2.0]]], np.float32)
    mask = np.array([[1, 0], [1, 0]])
    given_specs = {"x": TensorSpec("x", DTYPES["FP32"], (-1, -1, 1)), "mask": specs()["mask"]}
    for mode in MODES:
        assert make(mode=mode, mask="mask").specs(given_specs)
        assert make(mode=mode, mask="mask")({"x": x, "mask": mask}, np)["x"].tolist() == [[1.0], [-np.inf]], mode


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"x": TensorSpec("x", DTYPES["INT64"], (-1, -1, 3))}, "cast it to FP32"),
        ({"x": TensorSpec("x", DTYPES["FP32"], (-1, 3))}, "expected [N, L, D]"),
        ({"mask": TensorSpec("mask", DTYPES["FP32"], (-1, -1))}, "a mask is integers or BOOL"),
        ({"mask": TensorSpec("mask", DTYPES["INT64"], (-1,))}, "expected [N, L]"),
    ],
)
def test_what_cannot_be_pooled_is_named_at_load(changed: dict[str, TensorSpec], says: str) -> None:
    with pytest.raises(ValueError) as caught:
        make(mask="mask").specs(specs() | changed)
    assert says in str(caught.value)


def test_a_mask_of_another_shape_is_the_callers() -> None:
    x = np.zeros((2, 2, 3), np.float32)
    with pytest.raises(InvalidArgument, match="'mask' has shape"):
        make(mask="mask")({"x": x, "mask": np.zeros((2, 3), np.int64)}, np)
    with pytest.raises(InvalidArgument, match="which is missing"):
        make(mask="mask")({"x": x}, np)

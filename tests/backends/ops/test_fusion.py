"""scale, normalize on integers, transpose; and steps that become one: never another answer than theirs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from pydantic import ValidationError

from tensorgate.backends.ops.affine import Affine, Pass, blocks, holds
from tensorgate.backends.ops.cast import KIND as CAST
from tensorgate.backends.ops.checks import name_of
from tensorgate.backends.ops.fusion import Fused, fuse
from tensorgate.backends.ops.normalize import KIND as NORMALIZE
from tensorgate.backends.ops.reshape import KIND as RESHAPE
from tensorgate.backends.ops.scale import KIND as SCALE
from tensorgate.backends.ops.transpose import KIND as TRANSPOSE
from tensorgate.gateway.contract.errors import InvalidArgument
from tensorgate.gateway.contract.operator import Op, OpKind
from tensorgate.gateway.contract.tensor import DTYPES, TensorSpec

KINDS = {"cast": CAST, "normalize": NORMALIZE, "reshape": RESHAPE, "scale": SCALE, "transpose": TRANSPOSE}
PIXELS = np.random.default_rng(3).integers(0, 256, (3, 32, 24, 3)).astype(np.uint8)
MEAN, STD = (123.675, 116.28, 103.53), (58.395, 57.12, 57.375)


def make(op: str, **options: Any) -> Op:
    kind: OpKind = KINDS[op]
    return kind.make(kind.options(**{"op": op, "input": "x", **options}))


def spec(datatype: str, *shape: int) -> dict[str, TensorSpec]:
    return {"x": TensorSpec("x", DTYPES[datatype], shape)}


def host(array: Any) -> Any:
    return array if isinstance(array, np.ndarray) else array.get()


def through(ops: Any, array: Any, xp: Any) -> Any:
    tensors: Any = {"x": xp.asarray(array)}
    for op in ops:
        tensors = op(tensors, xp)
    return host(tensors["x"])


# ------------------------------------------------------------------------------------------------------------- each op


def test_scale(xp: Any) -> None:
    op = make("scale", divide=255.0, to="FP32")
    assert op.specs(spec("UINT8", -1, 4))["x"] == TensorSpec("x", DTYPES["FP32"], (-1, 4))
    every = np.arange(256, dtype=np.uint8)
    got = through([op], every, xp)
    np.testing.assert_allclose(got, every / np.float32(255), rtol=2**-23)
    assert got[[0, 255]].tolist() == [0.0, 1.0]
    assert through([make("scale", factor=2.0, offset=-1.0)], np.array([0.5, 3.0]), xp).tolist() == [0.0, 5.0]
    half = through([make("scale", factor=0.1)], np.array([60000.0], np.float16), xp)
    assert half.dtype == np.float16
    assert half[0] == np.float16(6000)
    large = through([make("scale", offset=1.0, to="FP64")], np.array([2**40]), xp)
    assert large.tolist() == [2**40 + 1]


@pytest.mark.parametrize("dtype", [np.uint8, np.int16, np.int32, np.float16, np.float32, np.float64])
@pytest.mark.parametrize("to", ["FP16", "FP32", "FP64"])
@pytest.mark.parametrize("axis", [1, -1])
def test_normalize_numbers_of_any_kind(dtype: Any, to: str, axis: int, xp: Any) -> None:
    x = PIXELS.astype(dtype) if axis == -1 else PIXELS.transpose(0, 3, 1, 2).astype(dtype)
    op = make("normalize", mean=MEAN, std=STD, axis=axis, to=to)
    assert op.specs({"x": TensorSpec("x", x.dtype, x.shape)})["x"].datatype == to
    shape = (-1, 1, 1) if axis == 1 else (-1,)
    want = (x.astype(np.float64) - np.reshape(MEAN, shape)) / np.reshape(STD, shape)
    got = through([op], x, xp)
    assert got.dtype == DTYPES[to]
    np.testing.assert_allclose(got, want, rtol={"FP16": 2**-10, "FP32": 0, "FP64": 0}[to], atol=1e-6)


@pytest.mark.parametrize("options", [{"layout": "NHWC->NCHW"}, {"axes": (0, 3, 1, 2)}])
@pytest.mark.parametrize("dtype", [np.uint8, np.float32, np.bool_, np.int64])
def test_transpose(options: Any, dtype: Any, xp: Any) -> None:
    op = make("transpose", **options)
    assert op.specs(spec("UINT8", -1, 4, 5, 3))["x"].shape == (-1, 3, 4, 5)
    got = through([op], PIXELS.astype(dtype), xp)
    assert got.flags.c_contiguous
    np.testing.assert_array_equal(got, PIXELS.astype(dtype).transpose(0, 3, 1, 2))


def test_what_is_refused() -> None:
    for options, words in [
        ({}, "either layout or axes"),
        ({"layout": "NC->CN", "axes": (1, 0)}, "either layout or axes"),
        ({"layout": "NHWC->NCH"}, "does not name every axis once"),
        ({"layout": "NHHC->NCHH"}, "does not name every axis once"),
        ({"layout": "NHWC->NCHX"}, "does not name every axis once"),
        ({"axes": (0, 2)}, "does not name every axis once"),
        ({"layout": "nhwc->nchw"}, "match pattern"),
    ]:
        with pytest.raises(ValidationError, match=words):
            make("transpose", **options)
    for options in ({"divide": 0.0}, {"factor": float("inf")}):
        with pytest.raises(ValidationError):
            make("scale", **options)
    for op, specs, words in [
        (make("transpose", layout="NHWC->NCHW"), spec("UINT8", -1, 4), "has not 4 axes"),
        (make("transpose", layout="NC->CN"), spec("BYTES", -1, 4), "is BYTES"),
        (make("scale"), spec("UINT8", -1), "for integers say to: FP32 here"),
        (make("scale", to="FP32"), spec("BOOL", -1), "cast it to FP32 first"),
        (make("normalize", mean=(1.0,), std=(1.0,)), spec("INT32", -1), "for integers say to: FP32 here"),
    ]:
        with pytest.raises(ValueError, match=words):
            op.specs(specs)
    anything = {"x": TensorSpec("x", DTYPES["FP32"], None)}
    assert make("transpose", layout="NC->CN").specs(anything)["x"].shape == (-1, -1)


def test_a_channel_too_many_is_the_callers_error(xp: Any) -> None:
    op = make("normalize", mean=MEAN, std=STD)
    with pytest.raises(InvalidArgument, match=r"'x' has shape \[1, 4, 2, 2\], of which one axis must have 3 entries"):
        through([op], np.zeros((1, 4, 2, 2), np.float32), xp)
    with pytest.raises(InvalidArgument, match="one axis must have 3 entries"):
        through([op], np.zeros(3, np.float32), xp)


@pytest.mark.parametrize(
    "shape", [(), (0,), (5,), (0, 3), (3, 0, 2), (1000, 3), (2, 5, 3), (2, 3, 500, 900), (2, 500, 900, 3), (2, 300_000)]
)
def test_blocks_cover_everything_once(shape: tuple[int, ...]) -> None:
    seen = np.zeros(shape, np.int8)
    for at in blocks(shape, 4):
        part = seen[at]
        assert part.flags.c_contiguous
        assert part.size * 4 <= 768 << 10
        seen[at] += 1
    assert (seen == 1).all()


def test_blocks_of_one_large_row() -> None:
    x = np.arange(600_000, dtype=np.float32).reshape(2, 300_000)
    scale = np.linspace(1, 2, 300_000)
    got = Pass("x", Affine(x.dtype, None, x.dtype, scale, scale, 1))(x, np)
    np.testing.assert_allclose(got, x * scale + scale, rtol=3e-7)


def test_what_a_dtype_holds() -> None:
    for dtype, source, answer in [
        ("FP32", "UINT8", True),
        ("FP32", "INT16", True),
        ("FP32", "UINT32", False),
        ("FP32", "INT32", False),
        ("FP64", "INT32", True),
        ("FP64", "INT64", False),
        ("FP16", "UINT8", True),
        ("FP16", "INT16", False),
        ("FP16", "BOOL", True),
        ("FP32", "FP16", True),
        ("FP16", "FP32", False),
        ("INT32", "UINT8", True),
        ("UINT8", "INT32", False),
        ("UINT8", "FP32", False),
        ("BF16", "BF16", True),
        ("FP32", "BF16", False),
    ]:
        assert holds(DTYPES[dtype], DTYPES[source]) is answer, (dtype, source)


# -------------------------------------------------------------------------------------------------------------- fusion


USUAL = [
    {"op": "cast", "to": "FP32"},
    {"op": "scale", "divide": 255.0},
    {"op": "transpose", "layout": "NHWC->NCHW"},
    {"op": "normalize", "mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)},
    {"op": "cast", "to": "FP16"},
]


@pytest.mark.parametrize("steps", [2, 3, 4, 5])
@pytest.mark.parametrize("channels", [1, 3])
def test_the_usual_steps_become_one(steps: int, channels: int, xp: Any) -> None:
    options = [dict(each) for each in USUAL[:steps]]
    if channels == 1 and steps > 3:
        options[3] |= {"mean": (0.5,), "std": (0.25,)}
    ops = [make(**each) for each in options]
    pixels = np.ascontiguousarray(PIXELS[..., :channels])
    (fused,) = fuse(ops, spec("UINT8", -1, -1, -1, channels))
    assert isinstance(fused, Fused)
    assert fused.specs(spec("UINT8", -1, 8, 9, channels)) == chained_specs(ops, spec("UINT8", -1, 8, 9, channels))
    for rows in (pixels, pixels[1:], pixels[:, 1:, ::2], pixels[:0]):
        want = through(ops, rows, np)
        got = through([fused], rows, xp)
        assert got.dtype == want.dtype
        assert got.flags.c_contiguous
        np.testing.assert_allclose(got, want, rtol=2e-3 if steps == 5 else 1e-6, atol=1e-6)


def chained_specs(ops: list[Op], specs: Any) -> Any:
    for op in ops:
        specs = op.specs(specs)
    return specs


def names(ops: Any) -> list[Any]:
    return [tuple(map(name_of, op.parts)) if isinstance(op, Fused) else name_of(op) for op in ops]


def test_what_becomes_one_and_what_does_not() -> None:
    mean = {"mean": (1.0,), "std": (2.0,)}
    steps: Any
    for steps, datatype, want in [
        # rounded between the steps
        ([("scale", {"to": "FP16"}), ("normalize", mean)], "UINT8", ["scale", "normalize"]),
        ([("normalize", mean), ("scale", {})], "FP16", ["normalize", "scale"]),
        ([("cast", {"to": "UINT8"}), ("scale", {"to": "FP32"})], "FP32", ["cast", "scale"]),
        ([("cast", {"to": "FP32"}), ("normalize", mean)], "INT32", ["cast", "normalize"]),
        ([("cast", {"to": "FP16"}), ("cast", {"to": "FP32"})], "FP32", ["cast", "cast"]),
        # a whole number may depend on the last bit
        ([("scale", {}), ("cast", {"to": "INT32"})], "FP32", ["scale", "cast"]),
        ([("scale", {}), ("cast", {"to": "BOOL"})], "FP32", ["scale", "cast"]),
        # nothing is lost between them
        ([("scale", {}), ("cast", {"to": "FP16"})], "FP32", [("scale", "cast")]),
        ([("scale", {}), ("cast", {"to": "FP64"})], "FP32", [("scale", "cast")]),
        ([("scale", {}), ("cast", {"to": "FP64"}), ("scale", {})], "FP32", [("scale", "cast"), "scale"]),
        ([("cast", {"to": "FP32"}), ("normalize", mean)], "UINT16", [("cast", "normalize")]),
        ([("cast", {"to": "FP64"}), ("normalize", mean)], "INT32", [("cast", "normalize")]),
        ([("scale", {"to": "FP16"}), ("transpose", {"layout": "NC->CN"})], "UINT8", [("scale", "transpose")]),
        ([("cast", {"to": "INT32"}), ("cast", {"to": "FP32"})], "UINT8", [("cast", "cast")]),
        # numbers that overflow or vanish on the way
        ([("scale", {"factor": 1e30}), ("scale", {"factor": 1e-30})], "FP32", ["scale", "scale"]),
        ([("scale", {"factor": 0.0}), ("scale", {})], "FP32", ["scale", "scale"]),
        # another step between them
        (
            [("cast", {"to": "FP32"}), ("reshape", {"before": (), "after": (1,)}), ("scale", {})],
            "UINT8",
            ["cast", "reshape", "scale"],
        ),
    ]:
        ops = [make(op, **options) for op, options in steps]
        assert names(fuse(ops, spec(datatype, -1, 4))) == want, steps


def test_factors_along_different_axes_stay_apart() -> None:
    both = {"mean": (1.0, 2.0), "std": (1.0, 2.0)}
    ops = [make("normalize", axis=0, **both), make("transpose", layout="AB->BA"), make("normalize", axis=0, **both)]
    assert names(fuse(ops, spec("FP32", 2, 2))) == [("normalize", "transpose"), "normalize"]
    ops[2] = make("normalize", axis=1, **both)
    assert names(fuse(ops, spec("FP32", 2, 2))) == [("normalize", "transpose", "normalize")]


def test_steps_on_two_tensors_may_alternate() -> None:
    before = spec("UINT8", -1, 3) | {"y": TensorSpec("y", DTYPES["UINT8"], (-1, 3))}
    ops = [
        make(op, input=name, **more) for op, more in [("cast", {"to": "FP32"}), ("scale", {})] for name in ("x", "y")
    ]
    fused = fuse(ops, before)
    assert [each.tensor for each in fused] == ["x", "y"]  # type: ignore[attr-defined]
    assert names(fused) == [("cast", "scale")] * 2
    unknown = {"x": TensorSpec("x", DTYPES["UINT8"], None), "y": TensorSpec("y", DTYPES["UINT8"], None)}
    assert names(fuse(ops, unknown)) == ["cast", "scale"] * 2


NUMBERS = st.floats(-300, 300, width=32).filter(lambda number: abs(number) > 1e-3)
STEPS = st.lists(st.sampled_from(["cast", "scale", "normalize", "transpose"]), min_size=2, max_size=6)


@given(
    data=st.data(),
    shape=arrays.array_shapes(min_dims=1, max_dims=4, min_side=0, max_side=5),
    datatype=st.sampled_from(["BOOL", "UINT8", "INT8", "UINT16", "INT32", "INT64", "FP16", "FP32", "FP64"]),
    steps=STEPS,
)
@settings(max_examples=300)
def test_fused_steps_give_what_the_steps_give(data: st.DataObject, shape: Any, datatype: str, steps: Any) -> None:
    """Against the steps done one by one in float64: the bound that `affine` states, for every run that became one;
    to the bit where nothing is computed.
    """
    specs = spec(datatype, *shape)
    ops: list[Any] = []
    for step in steps:
        now = specs["x"]
        assert now.shape is not None
        if step == "cast":
            op = make("cast", to=data.draw(st.sampled_from(["UINT8", "INT16", "INT32", "FP16", "FP32", "FP64"])))
        elif step == "transpose":
            op = make("transpose", axes=tuple(data.draw(st.permutations(range(len(now.shape))))))
        elif now.dtype.kind == "b":
            continue
        else:
            to = data.draw(st.sampled_from(["FP16", "FP32", "FP64"]))
            if step == "scale":
                op = make("scale", factor=data.draw(NUMBERS), offset=data.draw(NUMBERS), to=to)
            else:
                axis = data.draw(st.integers(0, len(now.shape) - 1))
                count = data.draw(st.sampled_from(sorted({1, max(now.shape[axis], 1)})))
                mean = tuple(data.draw(NUMBERS) for _ in range(count))
                std = tuple(abs(data.draw(NUMBERS)) for _ in range(count))
                if count > 1 and now.shape[axis] != count:
                    continue
                op = make("normalize", mean=mean, std=std, axis=axis, to=to)
        ops.append(op)
        specs = dict(op.specs(specs))
    elements = {"b": st.booleans(), "u": st.integers(0, 255), "i": st.integers(-100, 100)}.get(
        DTYPES[datatype].kind, st.floats(-1000, 1000, width=16)
    )
    given_array = data.draw(arrays.arrays(DTYPES[datatype], shape, elements=elements))
    array = given_array
    with np.errstate(all="ignore"):
        for op in fuse(ops, spec(datatype, *shape)):
            if isinstance(op, Fused):
                check(op, array)
            array = through([op], array, np)
    assert (array.dtype, array.shape) == (specs["x"].dtype, specs["x"].shape)


def check(fused: Fused, array: Any) -> None:
    got = through([fused], array, np)
    one_by_one = through(fused.parts, array, np)
    assert (got.dtype, got.shape) == (one_by_one.dtype, one_by_one.shape)
    if fused.step.compute is None:
        np.testing.assert_array_equal(got, one_by_one)
        return
    exact, size, x = array.astype(np.float64), np.zeros(array.shape), array
    for part in fused.parts:  # the sum of what is added on the way bounds what may be rounded
        step = part.affine(x.dtype, x.ndim)
        exact, size = (each if step.order is None else each.transpose(step.order) for each in (exact, size))
        if step.compute is not None:
            shape = [1] * x.ndim
            if len(step.scale) > 1:
                shape[step.axis] = -1
            scale, shift = step.scale.reshape(shape), step.shift.reshape(shape)
            size = np.abs(scale) * np.maximum(size, np.abs(exact)) + np.abs(shift)
            exact = exact * scale + shift
        x = through([part], x, np)
    compute, result = np.finfo(fused.step.compute), np.finfo(got.dtype)
    finite = np.abs(exact) < float(result.max) / 2
    bound = 2 * float(compute.eps) * size + float(result.eps) * np.abs(exact) + float(result.tiny)
    for each, times in ((got, 1), (one_by_one, len(fused.parts))):
        assert (np.abs(each.astype(np.float64) - exact)[finite] <= times * bound[finite]).all()


def test_an_optional_input_that_is_missing() -> None:
    ops = [make("cast", to="FP32"), make("scale")]
    for each in (ops, fuse(ops, spec("UINT8", -1, 3))):
        with pytest.raises(InvalidArgument, match="cast needs 'x', which is missing"):
            each[0]({}, np)

"""Every operator, in every datatype that it takes: a batch that lies anyhow, against each row alone, on the host."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import pytest
from runtimes import CUDA, host

from tensorgate.backends.ops import OPS
from tensorgate.backends.ops.best_classes import best_classes
from tensorgate.gateway.contract.canonical import TopK
from tensorgate.gateway.contract.operator import Op
from tensorgate.gateway.contract.tensor import DATATYPES, DTYPES, TensorSpec

ROWS = 5
OF_THE_HOST = {"class_names", "decode_image", "detokenize", "encode_image", "to_json", "tokenize"}
"""They take or give BYTES, which no GPU holds; what decode_image does there is tried in ops/test_images.py."""
NUMBERS = [name for name in DTYPES if name not in ("BYTES", "BF16")]
SHAPES: dict[str, tuple[int, ...]] = {"x": (13, 7, 3), "b": (41, 4), "s": (3, 41)}
"""Of one row: sizes that no vector of a GPU divides."""
TOLERANCE = {"FP16": 4e-3, "FP32": 2e-5, "FP64": 1e-12}
CASES: dict[str, dict[str, Any]] = {
    "argmax": {"input": "x", "axis": 2},
    "argmax of the last": {"input": "x", "output": "i", "datatype": "INT32", "keepdims": True, "keep_input": True},
    "box_convert": {"input": "b", "divide": (13, 7)},
    "box_convert behind a sigmoid": {"input": "b", "sigmoid": True, "to_layout": "yxyx"},
    **{f"cast to {to}": {"input": "x", "to": to} for to in NUMBERS},
    "center_crop": {"input": "x", "size": (5, 6)},
    "clip": {"input": "x", "low": 10, "high": 50},
    "concat": {"inputs": ("x", "x"), "output": "x", "axis": 2},
    "dequantize": {"input": "x", "scale": 0.037, "zero_point": 7},
    "dequantize by channel": {"input": "x", "scale": (0.1, 0.5, 2.0), "zero_point": (0, 3, 100), "axis": 3},
    "gather": {"input": "x", "indices": (3, 0, 3), "axis": 2},
    "l2_normalize": {"input": "x", "axis": 1},
    "log_softmax": {"input": "x", "axis": 2},
    "nms": {"boxes": "b", "scores": "s", "iou_threshold": 0.3, "score_threshold": 0.1},
    "normalize": {"input": "x", "mean": (1.0, 2.0, 3.0), "std": (0.5, 2.0, 7.0), "axis": -1},
    "normalize to FP16": {"input": "x", "mean": (1.0, 2.0, 3.0), "std": (0.5, 2.0, 7.0), "axis": -1, "to": "FP16"},
    "one_hot": {"input": "x", "depth": 11},
    "pad": {"input": "x", "size": (17, 9), "mode": "edge"},
    "pad by borders": {"input": "x", "borders": (1, 2, 3, 4), "mode": "reflect"},
    **{f"pool by {mode}": {"input": "s", "mode": mode} for mode in ("mean", "cls", "last", "max")},
    "quantize": {"input": "x", "scale": 0.1},
    "quantize by channel": {"input": "x", "scale": (0.1, 0.5, 2.0), "axis": 3, "datatype": "UINT8"},
    "rename": {"names": {"x": "z"}},
    "reshape": {"input": "x", "before": (7, 3), "after": (21,)},
    "resize": {"input": "x", "size": (6, 11)},
    "resize by bicubic": {"input": "x", "size": (29, 5), "method": "bicubic", "antialias": False},
    "resize by lanczos": {"input": "x", "size": (29, 5), "method": "lanczos"},
    "resize by nearest": {"input": "x", "size": (26, 14), "method": "nearest"},
    "scale": {"input": "x", "divide": 255, "offset": -0.5},
    "scale to FP32": {"input": "x", "divide": 255, "to": "FP32"},
    "select": {"keep": ("s",)},
    "sigmoid": {"input": "x"},
    "slice": {"input": "x", "axis": 2, "start": 1, "step": 2},
    "softmax": {"input": "x", "axis": 1},
    "split": {"input": "b", "sizes": (1, 3), "outputs": ("p", "q")},
    "threshold": {"input": "x", "at": 1.0},
    "top_k": {"input": "x", "k": 4, "axis": 1},
    "top_k of the last": {"input": "x", "k": 3, "datatype": "INT32"},
    "transpose": {"input": "x", "layout": "NHWC->NCHW"},
    "transpose axes": {"input": "x", "axes": (0, 2, 1, 3)},
    "where": {"condition": "x", "x": "x", "y": 0, "output": "x"},
}  # fmt: skip


def make(name: str) -> Op:
    op = name.split()[0]
    module, _, attribute = OPS[op].partition(":")
    kind = getattr(importlib.import_module(module), attribute)
    made: Op = kind.make(kind.options(op=op, **CASES[name]))
    return made


def specs(datatype: str) -> dict[str, TensorSpec]:
    return {name: TensorSpec(name, DTYPES[datatype], (-1, *shape)) for name, shape in SHAPES.items()}


def taken() -> Iterator[tuple[str, str]]:
    """The operator's cases, each with the datatypes that it does not refuse."""
    for name in CASES:
        for datatype in NUMBERS:
            try:
                make(name).specs(specs(datatype))
            except ValueError:
                continue
            yield name, datatype


TAKEN = list(taken())


def numbers(datatype: str, seed: int = 3) -> dict[str, Any]:
    """Tensors of ROWS rows. What a cast could not hold is not among them; boxes are boxes, and scores differ."""
    random = np.random.default_rng(seed)
    made = {name: random.random((ROWS, *shape)) * 100 for name, shape in SHAPES.items()}
    made["b"][..., 2:] += made["b"][..., :2]
    made["s"] = random.permuted(np.arange(made["s"].size) / made["s"].size).reshape(made["s"].shape)
    return {name: array.astype(DTYPES[datatype]) for name, array in made.items()}


def scattered(array: Any, xp: Any) -> Any:
    """The same numbers, not in C order: every other row of more, its last two axes the other way round in memory."""
    turned = xp.asarray(np.repeat(array, 2, axis=0)).swapaxes(-1, -2).copy()
    return turned.swapaxes(-1, -2)[::2]


def test_every_operator_is_tried() -> None:
    assert {name.split()[0] for name in CASES} == OPS.keys() - OF_THE_HOST
    assert {name for name, _ in TAKEN} == CASES.keys()


@pytest.mark.parametrize(("name", "datatype"), TAKEN)
def test_a_batch_that_lies_anyhow_is_each_row_alone(name: str, datatype: str, xp: Any) -> None:
    op, given = make(name), numbers(datatype)
    got = op({key: scattered(array, xp) for key, array in given.items()}, xp)
    alone = [op({key: array[row : row + 1].copy() for key, array in given.items()}, np) for row in range(ROWS)]
    assert got.keys() == alone[0].keys()
    for key, array in got.items():
        want = np.concatenate([row[key] for row in alone])
        assert isinstance(array, xp.ndarray)
        assert array.dtype == want.dtype, key
        within = TOLERANCE.get(DATATYPES[want.dtype], 0.0)
        within = max(within, TOLERANCE.get(datatype, 0.0)) if within else 0.0
        largest = float(np.abs(want).max(initial=1.0)) if within else 1.0
        np.testing.assert_allclose(host(array), want, rtol=within, atol=within * largest, err_msg=key)


@pytest.mark.parametrize(("name", "datatype"), [each for each in TAKEN if each[1] in ("UINT8", "FP32")])
def test_no_rows(name: str, datatype: str, xp: Any) -> None:
    op, given = make(name), {key: array[:0] for key, array in numbers(datatype).items()}
    got, want = op({key: xp.asarray(array) for key, array in given.items()}, xp), op(given, np)
    assert {key: (array.dtype, array.shape) for key, array in got.items()} == {
        key: (array.dtype, array.shape) for key, array in want.items()
    }


# ------------------------------------------------------------------------------------------------------- the best ones


RANKED = [name for name in NUMBERS if name not in ("BOOL", "FP16")]


@pytest.mark.parametrize("datatype", RANKED)
@pytest.mark.parametrize(("row", "k"), [(1, 1), (7, 7), (256, 5), (1000, 5), (50_257, 1), (50_257, 100)])
def test_the_best_classes(datatype: str, row: int, k: int, xp: Any) -> None:
    """Their exact order, with ties, NaN and both zeros, by Python's own sort."""
    random = np.random.default_rng(row + k)
    scores = (random.standard_normal((3, row)) * 50).round(1).astype(DTYPES[datatype])
    if scores.dtype.kind == "f":
        scores[0, :: max(2, row // 9)] = [np.nan, -0.0, 0.0, np.inf, -np.inf, *([np.nan] * row)][
            : len(scores[0, :: max(2, row // 9)])
        ]
    best = best_classes("y", xp.asarray(scores), k, True, xp)
    assert isinstance(best, TopK)
    for number, values in enumerate(scores.tolist()):
        ranked = sorted(enumerate(values), key=lambda each: (each[1] != each[1], -each[1] if each[1] == each[1] else 0))
        assert host(best.indices)[number].tolist() == [index for index, _ in ranked[:k]]
        np.testing.assert_array_equal(host(best.values)[number], scores[number, [index for index, _ in ranked[:k]]])


# -------------------------------------------------------------------------------------------------------- many elements

HUGE: dict[str, tuple[dict[str, Any], tuple[int, ...], str, Callable[[Any], Any]]] = {
    # an operator, a row's shape, the datatype, what the last row of ones is
    "cast": ({"input": "x", "to": "FP16"}, (1 << 20,), "UINT8", lambda row: row.astype(np.float16)),
    "normalize": (
        {"input": "x", "mean": (1.0, 0.5, 2.0), "std": (1.0, 2.0, 4.0), "axis": -1, "to": "FP16"},
        (64, 64, 3),
        "UINT8",
        lambda row: ((row - np.array([1.0, 0.5, 2.0])) / np.array([1.0, 2.0, 4.0])).astype(np.float16),
    ),
    "threshold": (
        {"input": "x", "at": 1.0, "datatype": "UINT8"},
        (1 << 20,),
        "FP16",
        lambda row: (row >= 1).astype(np.uint8),
    ),
    "argmax": ({"input": "x"}, (1 << 10,), "UINT8", lambda row: np.argmax(row, -1)),
    "resize": (
        {"input": "x", "size": (32, 32), "method": "nearest"},
        (64, 64, 3),
        "UINT8",
        lambda row: row[1::2, 1::2],
    ),
    "transpose": ({"input": "x", "layout": "NHWC->NCHW"}, (64, 64, 3), "UINT8", lambda row: row.transpose(2, 0, 1)),
}  # fmt: skip

BEYOND = (1 << 31) + (3 << 20)


@pytest.mark.parametrize("name", HUGE)
@pytest.mark.parametrize("elements", [3 << 20, pytest.param(BEYOND, marks=[pytest.mark.gpu, pytest.mark.alone])])
def test_more_elements_than_an_int_counts(name: str, elements: int) -> None:
    """On a GPU beyond 2^31, where an index of 32 bits would write elsewhere."""
    on_gpu = elements == BEYOND
    xp = importlib.import_module("cupy") if on_gpu else np
    options, shape, datatype, formula = HUGE[name]
    per_row = int(np.prod(shape))
    rows = -(-elements // per_row)
    if on_gpu and xp.cuda.runtime.memGetInfo()[0] < 6 * elements * DTYPES[datatype].itemsize:
        pytest.skip("this GPU has too little free memory")
    module, _, attribute = OPS[name].partition(":")
    kind = getattr(importlib.import_module(module), attribute)
    x = xp.zeros((rows, *shape), DTYPES[datatype])
    last = np.random.default_rng(0).integers(0, 3, shape).astype(DTYPES[datatype])
    x[-1] = xp.asarray(last)
    made = kind.make(kind.options(op=name, **options))({"x": x}, xp)["x"]
    np.testing.assert_array_equal(host(made[-1]), formula(last))
    zeros = formula(np.zeros_like(last))
    np.testing.assert_array_equal(host(made[0]), zeros)
    np.testing.assert_array_equal(host(made[rows // 2]), zeros)
    if on_gpu:
        del x, made
        xp.get_default_memory_pool().free_all_blocks()


@pytest.mark.gpu
def test_work_of_many_streams_does_not_mix() -> None:
    """Operators on sixteen streams at once, from as many threads, in memory that CuPy gives again and again."""
    import threading

    cupy = importlib.import_module("cupy")
    names = ["softmax", "normalize", "resize", "top_k", "nms", "quantize", "transpose", "argmax"]
    wrong: list[str] = []

    def work(number: int) -> None:
        name = names[number % len(names)]
        op = make(name)
        with cupy.cuda.Device(int(CUDA[-1])), cupy.cuda.Stream(non_blocking=True) as stream:
            for seed in range(20):
                given = numbers("FP32", seed)
                got = op({key: cupy.asarray(array) for key, array in given.items()}, cupy)
                want: Mapping[str, Any] = op(given, np)
                stream.synchronize()
                wrong.extend(
                    f"{name} {key} of turn {seed}"
                    for key in want
                    if not np.allclose(got[key].get(stream=stream), want[key], 1e-4, 1e-3)
                )

    threads = [threading.Thread(target=work, args=(number,)) for number in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []

"""The best classes of outputs: their exact order, and that callers who share a batch get what they would get alone."""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as st_numpy
from paper_backend import PaperBackend

from tensorgate.backends.execution import pipeline
from tensorgate.backends.execution.device import Device
from tensorgate.backends.ops.best_classes import best_classes, classes_of
from tensorgate.gateway.contract.backend import BackendKind, ModelSource
from tensorgate.gateway.contract.canonical import InferRequest, InferResponse, ModelView, OutputRequest, TopK
from tensorgate.gateway.contract.errors import ClassesTooMany, ClassesUnsupported, GatewayError
from tensorgate.gateway.contract.execution import Computation
from tensorgate.gateway.contract.options import Options
from tensorgate.gateway.contract.tensor import DTYPES, Tensors, TensorSpec
from tensorgate.gateway.engine.admission import Admission
from tensorgate.gateway.engine.queue import QueuePolicy
from tensorgate.gateway.engine.scheduler import Scheduler
from tensorgate.gateway.engine.scheduler_metrics import SchedulerMetrics

RANKED = [name for name in DTYPES if name not in ("BOOL", "FP16", "BF16", "BYTES")]


def expected(row: Any, k: int) -> list[tuple[Any, int]]:
    """By Python's own sort, which is stable."""
    values = list(enumerate(row.ravel().tolist()))
    ranked = sorted(values, key=lambda each: (each[1] != each[1], -each[1] if each[1] == each[1] else 0))
    return [(value, index) for index, value in ranked[:k]]


def pairs(best: Any) -> list[tuple[Any, int]]:
    assert isinstance(best, TopK), best
    return list(zip(best.values.tolist(), best.indices.tolist(), strict=True))


def same(got: list[tuple[Any, int]], want: list[tuple[Any, int]]) -> bool:
    """NaN is itself here, and -0.0 is not 0.0."""
    return repr(got) == repr(want)


EDGES: list[tuple[str, list[Any], list[int]]] = [
    ("FP32", [1.1, 3.3, 0.5, 2.4], [1, 3, 0, 2]),
    ("FP32", [0.0, -0.0, 0.0], [0, 1, 2]),
    ("FP32", [np.nan, -np.inf, 1.0, -np.nan, np.inf, -1e-45], [4, 2, 5, 1, 0, 3]),
    ("FP64", [-1.0, np.nan, -2.0, 5e-324, 0.0, -np.nan], [3, 4, 0, 2, 1, 5]),
    ("FP64", [1e308, np.inf, -np.inf, -1e308], [1, 0, 3, 2]),
    ("INT8", [-128, 127, 0, 127], [1, 3, 2, 0]),
    ("UINT8", [0, 255, 128, 255], [1, 3, 2, 0]),
    ("INT64", [-(2**63), 2**63 - 1, 2**53 + 1, 2**53], [1, 2, 3, 0]),
    ("UINT64", [2**64 - 1, 0, 2**63, 2**64 - 1], [0, 3, 2, 1]),
]


@pytest.mark.parametrize(("datatype", "values", "order"), EDGES)
@pytest.mark.parametrize("padding", [0, 2000], ids=["sorted", "separated first"])
def test_the_order_is_exact(datatype: str, values: list[Any], order: list[int], padding: int) -> None:
    array = np.array(values, DTYPES[datatype])
    if padding:
        ranked = [array[i] for i in order]
        worst = np.full(padding, ranked[-1], array.dtype)  # behind the values: equal to the worst, so after it
        array = np.concatenate([array, worst])
    best = best_classes("y", array, len(order), False, np)
    assert [index for _, index in pairs(best)] == order
    assert isinstance(best, TopK)
    assert best.values.dtype == DTYPES[datatype]


@pytest.mark.parametrize("datatype", RANKED)
@given(data=st.data(), rows=st.integers(0, 3), k=st.integers(1, 900))
def test_against_a_plain_sort(datatype: str, data: Any, rows: int, k: int) -> None:
    size = data.draw(st.sampled_from([0, 1, 7, 256, 257, 900]))
    few = data.draw(st_numpy.arrays(DTYPES[datatype], st.integers(1, 12)))
    chosen = np.random.default_rng(data.draw(st.integers(0, 2**32))).integers(0, len(few), (rows, size))
    array = few[chosen]  # few different values, so that there are many ties
    best = best_classes("y", array.reshape(rows, 1, size), k, True, np)
    assert isinstance(best, TopK)
    assert best.values.shape == (rows, min(k, size))
    for row, values, indices in zip(array, best.values, best.indices, strict=True):
        assert same(pairs(TopK(values, indices)), expected(row, k))


@pytest.mark.parametrize("shape", [(), (3,), (2, 0), (2, 3, 2)])
def test_without_batch_dimension_all_is_one_row(shape: tuple[int, ...]) -> None:
    array = np.arange(int(np.prod(shape)), dtype=np.int32).reshape(shape)
    assert pairs(best_classes("y", array, 4, False, np)) == expected(array, 4)


@pytest.mark.parametrize("datatype", ["BOOL", "FP16", "BF16", "BYTES"])
@pytest.mark.parametrize("shape", [(2, 2), (0,)])
def test_types_without_order(datatype: str, shape: tuple[int, ...]) -> None:
    refused = best_classes("y", np.zeros(shape, DTYPES[datatype]), 1, True, np)
    assert isinstance(refused, ClassesUnsupported)
    assert (refused.output, refused.datatype) == ("y", datatype)


def test_rows_that_are_too_long() -> None:
    row = np.broadcast_to(np.float32(1), (1_000_001,))
    assert isinstance(best_classes("y", row, 1, False, np), ClassesTooMany)
    assert pairs(best_classes("y", row[1:], 2, False, np)) == [(1.0, 0), (1.0, 1)]
    million = np.broadcast_to(np.int64(1), (5, 1_000_000))
    best = TopK(million, million)
    assert isinstance(classes_of("y", best, 1_000_000, None), ClassesTooMany)
    assert isinstance(classes_of("y", best, 1_000_000, slice(1, 5)), TopK)


# ------------------------------------------------------------------------------------------- callers who share a batch


class Mixed(PaperBackend):
    """y = x, w = x as INT32, s = x as text: one output that cannot be classified among those that can."""

    def __init__(self, source: ModelSource) -> None:
        self.device = Device()
        self.max_batch_size = int(source.max_batch_size)
        self.inputs = (TensorSpec("x", DTYPES["FP32"], (-1, 300)),)
        datatypes = {"y": "FP32", "w": "INT32", "s": "BYTES"}
        self.outputs = tuple(TensorSpec(name, DTYPES[datatype], (-1, 300)) for name, datatype in datatypes.items())

    def infer(self, tensors: Tensors, outputs: Sequence[str], requests: Sequence[InferRequest]) -> Iterable[Tensors]:
        x = tensors["x"]
        texts = np.array([str(each).encode() for each in x.ravel().tolist()], object).reshape(x.shape)
        everything = {"y": x, "w": x.astype(np.int32), "s": texts}
        return ({name: everything[name] for name in outputs},)


def mixed(max_batch_size: int = 64) -> Computation:
    source = ModelSource("m", 1, Path(), "cpu", (), (), max_batch_size, None)
    return pipeline.load(BackendKind(Options, Mixed), source, 1, (), ())


@pytest.fixture(scope="module")
def view() -> Any:
    class View:
        name, version, outputs = "m", 1, dict.fromkeys("yws")

    return View()


OUTPUTS = st.lists(
    st.builds(OutputRequest, st.sampled_from("yyws"), st.sampled_from([0, 0, 1, 3, 299, 300, 10**19])),
    max_size=3,
    unique_by=lambda output: output.name,
).map(tuple)
CALLERS = st.lists(st.tuples(st.integers(0, 3), OUTPUTS), min_size=1, max_size=5)


def pipeline_of(computation: Computation) -> Any:
    return computation.executors[0]


def check_own(outcome: InferResponse | GatewayError, request: InferRequest) -> None:
    """What a caller must get, told from its own request alone."""
    x = request.inputs["x"]
    wanted = {output.name: output.top_k for output in request.outputs} or {"y": 0, "w": 0, "s": 0}
    if wanted.get("s"):
        assert isinstance(outcome, ClassesUnsupported)
        return
    assert isinstance(outcome, InferResponse)
    assert set(outcome.outputs) == {name for name, k in wanted.items() if not k}
    assert set(outcome.classes) == {name for name, k in wanted.items() if k}
    for name, array in outcome.outputs.items():
        whole = {"y": x, "w": x.astype(np.int32)}.get(name)
        assert array.shape == x.shape
        if whole is not None:
            assert array.tobytes() == whole.tobytes()
        else:
            assert [float(text) for text in array.ravel()] == x.ravel().tolist()
    for name, best in outcome.classes.items():
        rows = x if name == "y" else x.astype(np.int32)
        assert best.values.shape == best.indices.shape == (len(x), min(wanted[name], 300))
        for row, values, indices in zip(rows, best.values, best.indices, strict=True):
            assert pairs(TopK(values, indices)) == expected(row, wanted[name])


@given(callers=CALLERS, seed=st.integers(0, 2**32))
def test_callers_in_one_batch(callers: list[Any], seed: int, view: Any) -> None:
    numbers = np.random.default_rng(seed)
    requests = [
        InferRequest(view, {"x": numbers.integers(0, 90, (rows, 300)).astype(np.float32)}, outputs=outputs)
        for rows, outputs in callers
    ]
    (outcomes,) = pipeline_of(mixed()).run(requests, lambda timing: None)
    for outcome, request in zip(outcomes, requests, strict=True):
        check_own(outcome, request)


@given(outputs=OUTPUTS, seed=st.integers(0, 2**32))
def test_one_caller_to_a_model_without_batches(outputs: Any, seed: int, view: Any) -> None:
    x = np.random.default_rng(seed).integers(0, 90, (2, 300)).astype(np.float32)
    request = InferRequest(view, {"x": x}, outputs=outputs)
    ((outcome,),) = pipeline_of(mixed(0)).run([request], lambda timing: None)
    wanted = {output.name: output.top_k for output in outputs}
    if wanted.get("s"):
        assert isinstance(outcome, ClassesUnsupported)
    else:
        for name, best in outcome.classes.items():
            assert pairs(best) == expected(x, wanted[name])


async def test_callers_in_one_queue(make_model: Callable[..., ModelView]) -> None:
    """The same through the scheduler: one batch is taken whatever is asked of it, and only who asks for what cannot be
    given is told so.
    """
    batches: list[int] = []
    paper = make_model(
        "m", {"x": ("FP32", (-1, 300))}, {"y": ("FP32", None), "w": ("INT32", None), "s": ("BYTES", None)}
    )
    admission = Admission(2, "same")
    meter = SchedulerMetrics(lambda stage, seconds: None, batches.append)
    scheduler = Scheduler("m", mixed().executors, QueuePolicy(64), lambda request: admission, meter)
    numbers = np.random.default_rng(1)
    wishes = [(), (("y", 2),), (("s", 1),), (("y", 0), ("w", 5)), (("y", 300), ("s", 0)), (("s", 0),), (("w", 1),)]
    requests = [
        InferRequest(
            paper,
            {"x": numbers.integers(0, 90, (2, 300)).astype(np.float32)},
            outputs=tuple(OutputRequest(name, k) for name, k in wish),
        )
        for wish in wishes
    ]
    jobs = [scheduler.submit(request) for request in requests]
    outcomes = await asyncio.gather(*(anext(job) for job in jobs), return_exceptions=True)
    assert batches == [2 * len(wishes)]
    for outcome, request in zip(outcomes, requests, strict=True):
        assert not isinstance(outcome, BaseException) or isinstance(outcome, GatewayError), outcome
        check_own(outcome, request)
    await scheduler.close()

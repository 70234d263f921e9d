"""Batches on a device answer as each request alone would on the host, by one copy in and one copy out.

The device is a stand-in that does everything as late, as early or in as odd an order as a GPU may, and a GPU where
there is one.
"""

import importlib
import os
import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from fake_cuda import Cupy, Event, Stream, orders
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from paper_backend import PaperBackend

from tensorgate.backends.execution import pipeline, registered
from tensorgate.backends.execution.device import Device, open_device
from tensorgate.backends.ops.best_classes import best_classes
from tensorgate.backends.ops.normalize import KIND as NORMALIZE
from tensorgate.backends.ops.softmax import KIND as SOFTMAX
from tensorgate.gateway.contract.backend import BackendKind, ModelSource
from tensorgate.gateway.contract.canonical import Destination, InferRequest, InferResponse, OutputRequest, TopK
from tensorgate.gateway.contract.errors import GatewayError, ModelFailed
from tensorgate.gateway.contract.execution import Computation, Traffic
from tensorgate.gateway.contract.options import Options
from tensorgate.gateway.contract.tensor import DTYPES, Tensors, TensorSpec


class Various(PaperBackend):
    """Several inputs of several kinds, several outputs: computed, passed through, text, and one on the host."""

    device: Device
    busy = False

    def __init__(self, source: ModelSource) -> None:
        self.device = open_device(source.device)
        self.in_flight = 1 if source.device == "cpu" else 2
        self.decoupled = bool(source.parameters.get("answers"))
        self.times = source.parameters.get("answers", 1)
        self.max_batch_size = int(source.max_batch_size)
        self.inputs = (
            TensorSpec("x", DTYPES["FP32"], (-1, 3)),
            TensorSpec("n", DTYPES["INT64"], (-1,), optional=True),
            TensorSpec("t", DTYPES["BYTES"], (-1, 1), optional=True),
        )
        kinds = {"y": "FP32", "same": "FP32", "flag": "BOOL", "count": "INT64", "text": "BYTES", "turned": "FP32"}
        self.outputs = tuple(TensorSpec(name, DTYPES[kind]) for name, kind in kinds.items())

    def infer(self, tensors: Tensors, outputs: Sequence[str], requests: Sequence[InferRequest]) -> Iterable[Tensors]:
        x, xp = tensors["x"], self.device.xp
        assert isinstance(x, xp.ndarray)
        if any(request.id == "bad" for request in requests):
            _ = x * 3
            raise KeyError("bad")
        for turn in range(self.times):
            assert not self.busy, "two batches are computed at a time"
            self.busy = True
            os.sched_yield()  # another thread may come in
            scaled = xp.where(x > 0, x * 2, x) + 1  # a temporary, gone before the device has looked at it
            turned = scaled[:, ::-1]
            everything = {
                "y": scaled + turn,
                "same": x,
                "flag": x > 0,
                "count": tensors["n"] + 1 if "n" in tensors else xp.where(x[:, 0] > 0, 1, 2),
                "text": tensors.get("t", np.full((len(x), 1), b"none", object)),
                "turned": turned,
            }
            del scaled
            self.busy = False
            yield {name: everything[name] for name in outputs}


NAMES = ("y", "same", "flag", "count", "text", "turned")
VIEW: Any = SimpleNamespace(name="m", version=1, outputs=dict.fromkeys(NAMES))


def load(
    device: str, before: Sequence[Any] = (), after: Sequence[Any] = (), kind: Any = Various, **parameters: Any
) -> Computation:
    source = ModelSource("m", 1, Path(), device, (), (), 64, None, parameters)
    return pipeline.load(BackendKind(Options, kind), source, 1, before, after)


def ask(rows: int, seed: int, outputs: Sequence[str] = (), *, more: str = "", **facts: Any) -> InferRequest:
    random = np.random.default_rng(seed)
    inputs: dict[str, Any] = {"x": random.standard_normal((rows, 3), np.float32)}
    if "n" in more:
        inputs["n"] = random.integers(-(2**60), 2**60, rows)
    if "t" in more:
        inputs["t"] = np.array([b"%d" % seed] * rows, object).reshape(rows, 1)
    wanted = tuple(OutputRequest(name.rstrip("123"), int(name[-1]) if name[-1].isdigit() else 0) for name in outputs)
    return InferRequest(VIEW, inputs, outputs=wanted, **facts)


class Summed(Various):
    """One number for all rows: scalars, on the device and on the host."""

    def __init__(self, source: ModelSource) -> None:
        super().__init__(source)
        self.max_batch_size = 0
        self.inputs = (TensorSpec("x", DTYPES["FP32"], (-1,)),)
        self.outputs = tuple(TensorSpec(name, DTYPES["FP32"], ()) for name in ("total", "again", "host"))

    def infer(self, tensors: Tensors, outputs: Sequence[str], requests: Sequence[InferRequest]) -> Iterable[Tensors]:
        total = tensors["x"].sum()
        return ({name: {"total": total, "again": total * 1, "host": np.float32(7)}[name] for name in outputs},)


class Halves(Various):
    """h = h, in a type that NumPy does not know by itself."""

    def __init__(self, source: ModelSource) -> None:
        super().__init__(source)
        self.inputs = self.outputs = (TensorSpec("h", DTYPES["BF16"], (-1, 2)),)

    def infer(self, tensors: Tensors, outputs: Sequence[str], requests: Sequence[InferRequest]) -> Iterable[Tensors]:
        assert isinstance(tensors["h"], self.device.xp.ndarray)
        return (tensors,)


def observe(timing: tuple[str, float]) -> None:
    assert timing[0] in ("preprocess", "infer", "postprocess")


def run(computation: Computation, requests: Sequence[InferRequest], executor: int = 0) -> list[Any]:
    (outcomes,) = computation.executors[executor].run(requests, observe)
    return list(outcomes)


def told(outcome: Any) -> Any:
    """An answer for comparison, to the bit."""
    if isinstance(outcome, GatewayError):
        return type(outcome), str(outcome)
    assert isinstance(outcome, InferResponse)
    plain = {name: exact(array) for name, array in outcome.outputs.items()}
    return plain | {name: (exact(best.values), exact(best.indices)) for name, best in outcome.classes.items()}


def exact(array: Any) -> Any:
    assert isinstance(array, np.ndarray)
    return array.dtype, array.shape, array.tolist() if array.dtype == object else array.tobytes()


@pytest.fixture(params=[*orders(), pytest.param("real", marks=pytest.mark.gpu)])
def cupy(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    if request.param == "real":
        return importlib.import_module("cupy")
    fake = Cupy(request.param)
    monkeypatch.setitem(sys.modules, "cupy", fake)
    return fake


@pytest.fixture
def traffic(cupy: Any) -> Callable[[Computation], Traffic]:
    """What a computation says it copied, which is what was copied."""

    def read(computation: Computation) -> Traffic:
        said = computation.traffic()
        if isinstance(cupy, Cupy):
            done = cupy.world.copies
            for way, copies, nbytes in (
                ("in", said.copies_in, said.bytes_in),
                ("out", said.copies_out, said.bytes_out),
            ):
                assert [copies, nbytes] == [
                    sum(each[0] == way for each in done),
                    sum(each[1] for each in done if each[0] == way),
                ]
        return said

    return read


WISHES = st.lists(
    st.sampled_from([*NAMES, "y1", "y3", "count2", "flag1", "text1"]), max_size=4, unique_by=lambda n: n[0]
)
BATCHES = st.lists(
    st.tuples(
        st.sampled_from(["", "n", "t", "nt"]),
        st.lists(st.tuples(st.integers(0, 5), st.integers(0, 99), WISHES), min_size=1, max_size=5),
    ),
    min_size=1,
    max_size=6,
)


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(batches=BATCHES)
def test_everybody_gets_what_they_would_get_alone_on_the_host(cupy: Any, batches: Any) -> None:
    """Answers are kept until the end: nobody writes into them later."""
    alone, computation = load("cpu"), load("cuda:0")
    expected, got = [], []
    for number, (more, callers) in enumerate(batches):
        requests = [ask(rows, seed, wishes, more=more) for rows, seed, wishes in callers]
        expected += [told(run(alone, [request])[0]) for request in requests]
        got += run(computation, requests, number % 2)
    assert [told(outcome) for outcome in got] == expected


def test_one_copy_in_and_one_out(cupy: Any, traffic: Any) -> None:
    computation = load("cuda:0")
    run(computation, [ask(2, 1, more="nt"), ask(3, 2, ["y", "turned"], more="nt")])
    assert traffic(computation)[::2] == (1, 1, 1)
    run(computation, [ask(2, 1, ["y2", "text"])])
    assert traffic(computation)[::2] == (2, 2, 2)
    best = traffic(computation).bytes_out
    run(computation, [ask(2, 1, ["text"]), ask(1, 2, ["text"])])
    assert traffic(computation)[::2] == (3, 2, 3), "text has never left the host"
    assert load("cpu").traffic() == Traffic()
    assert best > 0


def test_two_batches_in_flight(cupy: Any) -> None:
    """Both executors of an instance at the same time, each from its own thread."""
    computation, alone = load("cuda:0"), load("cpu")
    assert len(computation.executors) == 2
    batches = [[ask(rows, 10 * seed + rows, more="n") for rows in range(1, 4)] for seed in range(40)]
    expected = [[told(run(alone, [request])[0]) for request in batch] for batch in batches]
    got: dict[int, Any] = {}

    def work(number: int) -> None:
        for turn in range(number, len(batches), 2):
            got[turn] = run(computation, batches[turn], number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [[told(each) for each in got[turn]] for turn in range(len(batches))] == expected


def test_operators_run_on_the_device(cupy: Any, traffic: Any) -> None:
    normalize = NORMALIZE.make(NORMALIZE.options(op="normalize", input="x", mean=(1.0,), std=(2.0,)))  # type: ignore[call-arg]
    softmax = SOFTMAX.make(SOFTMAX.options(op="softmax", input="y", output="p"))  # type: ignore[call-arg]
    requests = [ask(2, 1, ["p", "flag"]), ask(1, 2, ["p2"])]
    for each in requests:
        each.view.outputs["p"] = None
    alone = load("cpu", [normalize], [softmax])
    computation = load("cuda:0", [normalize], [softmax])
    got, want = run(computation, requests), [run(alone, [request])[0] for request in requests]
    np.testing.assert_allclose(got[0].outputs["p"], want[0].outputs["p"], rtol=1e-6)
    np.testing.assert_array_equal(got[1].classes["p"].indices, want[1].classes["p"].indices)


def test_a_failure_leaves_nothing_behind(cupy: Any) -> None:
    computation, alone = load("cuda:0"), load("cpu")
    for seed in range(6):
        with pytest.raises(ModelFailed):
            run(computation, [ask(2, seed), ask(2, seed + 1, id="bad")])
        if isinstance(cupy, Cupy):
            assert not cupy.world.pending, "what the batch had is given back, and somebody still works with it"
        requests = [ask(3, seed + 10, ["y", "turned"]), ask(2, seed + 20)]
        assert [told(each) for each in run(computation, requests)] == [told(run(alone, [each])[0]) for each in requests]


@pytest.mark.parametrize("names", [("total",), ("total", "again", "host"), ("host",)])
def test_scalars_cross(cupy: Any, names: Sequence[str]) -> None:
    x = np.arange(4, dtype=np.float32)
    for device in ("cpu", "cuda:0"):
        computation = load(device, kind=Summed)
        (outcome,) = run(computation, [InferRequest(VIEW, {"x": x}, outputs=tuple(map(OutputRequest, names)))])
        assert {name: (array.shape, float(array)) for name, array in outcome.outputs.items()} == {
            name: ((), 7.0 if name == "host" else 6.0) for name in names
        }


def test_bfloat16_crosses_like_the_rest(cupy: Any, traffic: Any) -> None:
    computation = load("cuda:0", kind=Halves)
    halves = [np.arange(2 * rows).reshape(rows, 2).astype(DTYPES["BF16"]) for rows in (1, 3)]
    outcomes = run(computation, [InferRequest(VIEW, {"h": h}) for h in halves])
    assert [exact(outcome.outputs["h"]) for outcome in outcomes] == [exact(h) for h in halves]
    assert traffic(computation) == Traffic(1, 16, 1, 16, 1)


def test_what_has_begun_ends_before_its_memory_is_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch that fails between its copy and its computation."""
    cupy = Cupy()
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    computation = load("cuda:0")
    monkeypatch.setattr(Stream, "wait_event", _fails)
    with pytest.raises(RuntimeError):
        run(computation, [ask(2, 1)])
    assert cupy.world.copies
    assert not cupy.world.pending


def _fails(*_: Any) -> None:
    raise RuntimeError("not now")


def test_answers_of_a_decoupled_model(cupy: Any) -> None:
    computation, alone = load("cuda:0", answers=4), load("cpu", answers=4)
    request = ask(2, 1, ["y", "turned"])
    got, want = ([told(each) for (each,) in way.executors[0].run([request], observe)] for way in (computation, alone))
    assert got == want
    assert len(got) == 4
    early = iter(computation.executors[0].run([request], observe))
    next(early)
    early.close()  # type: ignore[attr-defined]
    assert told(run_first(computation, ask(1, 5))) == told(run_first(alone, ask(1, 5)))


def run_first(computation: Computation, request: InferRequest) -> Any:
    return next(iter(computation.executors[0].run([request], observe)))[0]


def test_outputs_go_into_callers_memory(cupy: Any) -> None:
    computation, alone = load("cuda:0"), load("cpu")
    memory = bytearray(24)
    into = {"turned": Destination(memoryview(memory), bytes)}
    shared, other = ask(2, 1, ["turned", "y"], into=into), ask(2, 2, ["turned"])
    first, second = run(computation, [shared, other])
    want = run(alone, [ask(2, 1, ["turned", "y"])])[0]
    assert bytes(memory) == want.outputs["turned"].tobytes()
    assert exact(first.outputs["y"]) == exact(want.outputs["y"])
    assert told(second) == told(run(alone, [other])[0])


def test_outputs_stay_on_the_device_for_another_model(cupy: Any, traffic: Any) -> None:
    first, second, alone = load("cuda:0"), load("cuda:0"), load("cpu")
    kept, told_away = run(first, [ask(2, 1, ["y", "count"], on_device=True), ask(1, 2, ["turned"])])
    assert isinstance(kept.outputs["y"], cupy.ndarray)
    copies = first.traffic()
    assert (copies.copies_in, copies.copies_out, copies.bytes_out) == (1, 1, 3 * 3 * 4)
    step = InferRequest(VIEW, {"x": kept.outputs["y"], "n": kept.outputs["count"]}, into={})
    own = ask(3, 7, more="n")
    got = run(second, [step, own])
    assert (second.traffic().copies_in, second.traffic().copies_out) == (1, 1)
    host = run(alone, [ask(2, 1, ["y", "count"])])[0].outputs
    want = InferRequest(VIEW, {"x": host["y"], "n": host["count"]})
    assert [told(each) for each in got] == [told(run(alone, [each])[0]) for each in (want, own)]
    assert told(told_away) == told(run(alone, [ask(1, 2, ["turned"])])[0])
    run(second, [step])
    assert second.traffic().copies_in == 1, "nothing of it was on the host"


def test_the_best_classes_are_found_without_a_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    cupy = Cupy()
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    scores = np.random.default_rng(1).integers(0, 50, (4, 1000)).astype(np.float32)
    best, want = best_classes("y", cupy.asarray(scores), 5, True, cupy), best_classes("y", scores, 5, True, np)
    assert isinstance(best, TopK)
    assert isinstance(want, TopK)
    assert not cupy.world.clock, "nothing has happened yet"
    assert (best.values.get() == want.values).all()
    assert (best.indices.get() == want.indices).all()


def test_the_stages_are_told_once(cupy: Any) -> None:
    seen: list[str] = []
    list(load("cuda:0").executors[0].run([ask(2, 1)], lambda timing: seen.append(timing[0])))
    assert seen == ["preprocess", "infer", "postprocess"]


# -------------------------------------------------------------------------------- what the stand-in notices, it notices


def _nothing(*_: Any) -> None:
    pass


@pytest.mark.parametrize("broken", [(Stream, "wait_event"), (Event, "synchronize")], ids=["streams", "threads"])
def test_whoever_does_not_wait_is_wrong(broken: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cupy", Cupy())
    computation, alone = load("cuda:0"), load("cpu")
    monkeypatch.setattr(*broken, _nothing)
    request = ask(2, 1, ["y", "turned"])
    want = told(run(alone, [request])[0])
    try:
        assert any(told(run(computation, [request])[0]) != want for _ in range(9))
    except RuntimeError as error:
        assert "NotReady" in str(error)  # noqa: PT017 - either is right


@pytest.mark.parametrize("order", [*orders()])
def test_registered_memory_is_copied_from_where_it_lies(order: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """No pinned memory is filled for it, and it is held until the copy is over."""
    fake = Cupy(order)
    monkeypatch.setitem(sys.modules, "cupy", fake)
    monkeypatch.setattr(registered, "_MIN_BYTES", 24)
    computation, alone = load("cuda:0"), load("cpu")
    request = ask(4, 3, more="n")
    shared = np.zeros(4096, np.uint8)
    x = shared[64 : 64 + 48].view(np.float32).reshape(4, 3)
    x[:] = request.inputs["x"]
    unregister = registered.register(shared.ctypes.data, shared.nbytes)
    direct = InferRequest(VIEW, {**request.inputs, "x": x})
    want = told(run(alone, [request])[0])
    fake.world.copies.clear()
    assert told(run(computation, [direct])[0]) == want
    assert [nbytes for way, nbytes in fake.world.copies if way == "in"] == [48, 32]
    both = run(computation, [direct, request])  # rows of several callers lie in no region together
    assert [told(each) for each in both] == [want, want]
    unregister()
    assert fake.world.registered == {}
    fake.world.copies.clear()
    assert told(run(computation, [direct])[0]) == want
    assert len([way for way, _ in fake.world.copies if way == "in"]) == 1


def test_memory_that_cuda_refuses_stays_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = Cupy()
    monkeypatch.setitem(sys.modules, "cupy", fake)
    memory = np.zeros(1 << 20, np.uint8)
    monkeypatch.setattr(registered, "in_use", set())
    registered.register(memory.ctypes.data, memory.nbytes)()  # no model is on a GPU
    monkeypatch.setattr(registered, "in_use", {0})
    first = registered.register(memory.ctypes.data, memory.nbytes)
    assert registered.is_registered(memory)
    assert not registered.is_registered(memory[::2])
    assert not registered.is_registered(memory[:100])
    registered.register(memory.ctypes.data, memory.nbytes)()  # a second time is refused, and changes nothing
    assert registered.is_registered(memory)
    first()
    assert registered.ranges == {}

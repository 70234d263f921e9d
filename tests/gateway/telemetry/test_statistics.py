"""Counting is exact: every request ends as one success or one failure, every run counts once."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import Any, Literal

import numpy as np
import pytest
from waiting import Clock, until

from tensorgate.gateway.contract.canonical import InferRequest, InferResponse, ModelView
from tensorgate.gateway.contract.errors import (
    DeadlineExceeded,
    GatewayError,
    InvalidArgument,
    ModelFailed,
    QueueFull,
    QueueTimeout,
)
from tensorgate.gateway.contract.execution import Executor, Observe
from tensorgate.gateway.contract.questions import Duration, Statistics
from tensorgate.gateway.engine.admission import Admission
from tensorgate.gateway.engine.pending_request import PendingRequest
from tensorgate.gateway.engine.queue import LevelPolicy, QueuePolicy
from tensorgate.gateway.engine.scheduler import Scheduler
from tensorgate.gateway.engine.scheduler_metrics import SchedulerMetrics
from tensorgate.gateway.telemetry.statistics import MAX_ANSWERS_COUNTED, Compute, Counters, compute_of
from tensorgate.gateway.telemetry.tracing import Tracer

MS = 1_000_000
TOOK = (("preprocess", 0.001), ("infer", 0.010), ("postprocess", 0.002))
"""What every run of the models below says that it took."""


class Model(Executor):
    """Gives back what it gets. A negative number fails its run; `gate` holds runs back."""

    decoupled = False
    merges = True

    def __init__(self, runs_on: Literal["thread", "loop"] = "thread", *, inline: bool = False) -> None:
        self.runs_on: Literal["thread", "loop"] = runs_on
        self.inline = inline
        self.gate = asyncio.Event()
        self.gate.set()
        self.loop = asyncio.get_running_loop()

    def run(self, requests: Sequence[InferRequest], observe: Observe) -> Iterator[Sequence[InferResponse]]:
        if not self.inline:
            asyncio.run_coroutine_threadsafe(self._wait(), self.loop).result(5)
        yield self._answer(requests, observe)

    async def arun(self, requests: Sequence[InferRequest], observe: Observe) -> AsyncIterator[Sequence[InferResponse]]:
        await self._wait()
        yield self._answer(requests, observe)

    async def _wait(self) -> None:
        await self.gate.wait()

    def _answer(self, requests: Sequence[InferRequest], observe: Observe) -> list[InferResponse]:
        for stage, seconds in TOOK[:2]:
            observe((stage, seconds))
        if any((request.inputs["x"] < 0).any() for request in requests):
            raise ModelFailed("negative")
        observe(TOOK[2])
        return [InferResponse({"y": request.inputs["x"]}) for request in requests]

    def close(self) -> None:
        pass


class Stream(Model):
    """As many answers as the number says, the second of them without outputs; fails after those of an odd number."""

    decoupled = True

    def run(self, requests: Sequence[InferRequest], observe: Observe) -> Iterator[Sequence[InferResponse]]:
        observe(TOOK[0])
        number = int(requests[0].inputs["x"][0])
        for index in range(number):
            for stage, seconds in TOOK[1:]:
                observe((stage, seconds))
            yield [InferResponse({"y": np.array([index])} if index != 1 else {})]
        asyncio.run_coroutine_threadsafe(self._wait(), self.loop).result(5)
        if number % 2:
            raise ModelFailed("odd")


class Kept(Tracer):
    """What a trace would be made of; off, as tracers are."""

    def __init__(self) -> None:
        self.on = False
        self.noted: list[tuple[float, float | None, tuple[int, ...] | None, float]] = []

    def note(
        self, request: InferRequest, began: float, started: float | None, compute: Compute | None, ended: float
    ) -> None:
        took = None if compute is None else tuple(round(seconds * 1e3) for seconds in compute)
        self.noted.append((began, started, took, ended))


class Bench:
    def __init__(self, model: Model, policy: QueuePolicy, quick: bool) -> None:
        self.model = model
        self.counters = Counters()
        self.seconds = 1e-6 if quick else 1.0
        self.tracer = Kept()
        meter = SchedulerMetrics(lambda stage, seconds: None, lambda rows: None, self.counters, self.tracer)
        self.scheduler = Scheduler("m", [model], policy, self.admit, meter)

    def admit(self, request: InferRequest) -> Admission:
        x = request.inputs["x"]
        if not x.size:
            raise InvalidArgument("empty")
        return Admission(x.shape[0], "key", self.seconds)

    @property
    def said(self) -> Statistics:
        return self.counters.statistics("m", 1)

    @property
    def failures(self) -> dict[str, int]:
        return {reason: count for reason, count in self.counters.failed_by.items() if count}


@pytest.fixture
async def bench() -> AsyncIterator[Callable[..., Bench]]:
    made: list[Bench] = []

    def make(model: Model, *, quick: bool = False, max_queue_size: int = 512, **policy: int) -> Bench:
        level = LevelPolicy(max_queue_size, allow_timeout_override=True)
        made.append(Bench(model, QueuePolicy(level=level, **policy), quick))
        return made[-1]

    yield make
    for each in made:
        each.model.gate.set()
        await each.scheduler.close()


@pytest.fixture
def ask(make_model: Callable[..., ModelView]) -> Callable[..., InferRequest]:
    view = make_model("m", {"x": ("FP64", None)}, {"y": ("FP64", None)})

    def request(*numbers: float, **changes: Any) -> InferRequest:
        return InferRequest(view, {"x": np.array(numbers)}, **changes)

    return request


async def outcome(job: PendingRequest) -> int | type[GatewayError]:
    """How many answers a job has, or the kind of its error."""
    answers = 0
    try:
        async for _ in job:
            answers += 1
    except GatewayError as error:
        return type(error)
    return answers


def sums(said: Statistics) -> dict[str, tuple[int, int]]:
    """Count and whole milliseconds of the stages that have any; success, fail and queue without time."""
    exact = ("compute_input", "compute_infer", "compute_output")
    return {
        name: (each.count, round(each.ns / MS) if name in exact else 0)
        for name, each in said.stages.items()
        if each != Duration()
    }


def batches(said: Statistics) -> dict[int, tuple[int, int, int, int]]:
    """Rows of a batch -> runs, and milliseconds of input, inference and output."""
    names = ("compute_input", "compute_infer", "compute_output")
    for each in said.batches.values():
        assert each.keys() == set(names)
        assert len({each[name].count for name in names}) == 1
    return {
        rows: (each["compute_infer"].count, *(round(each[name].ns / MS) for name in names))
        for rows, each in said.batches.items()
    }


def in_all(requests: int) -> dict[str, tuple[int, int]]:
    """The sums of so many successful requests of TOOK."""
    return {
        "success": (requests, 0),
        "queue": (requests, 0),
        "compute_input": (requests, requests),
        "compute_infer": (requests, 10 * requests),
        "compute_output": (requests, 2 * requests),
    }


def test_a_new_version_has_every_key_at_nothing() -> None:
    said = Counters().statistics("m", 3)
    assert (said.name, said.version) == ("m", 3)
    assert (said.last_inference_ms, said.inference_count, said.execution_count) == (0, 0, 0)
    assert said.batches == said.responses == {}
    assert said.stages == dict.fromkeys(
        ("success", "fail", "queue", "compute_input", "compute_infer", "compute_output", "cache_hit", "cache_miss"),
        Duration(),
    )


def test_stages_of_this_house_are_three_of_tritons() -> None:
    assert compute_of([("queue", 9.0), ("decode", 9.0), *TOOK, ("infer", 1.0)]) == (0.001, 1.010, 0.002)


@pytest.mark.parametrize(
    ("runs_on", "inline"), [("thread", False), ("loop", False), ("thread", True)], ids=["thread", "loop", "inline"]
)
async def test_one_request_at_a_time(
    runs_on: Literal["thread", "loop"],
    inline: bool,
    bench: Callable[..., Bench],
    ask: Callable[..., InferRequest],
) -> None:
    begun = time.time()
    it = bench(Model(runs_on, inline=inline), quick=inline, max_batch_size=8)
    for numbers in ([1.0, 2.0], [3.0, 4.0], [5.0, 6.0, 7.0]):
        assert await outcome(it.scheduler.submit(ask(*numbers))) == 1
    assert sums(it.said) == in_all(3)
    assert batches(it.said) == {2: (2, 2, 20, 4), 3: (1, 1, 10, 2)}
    assert (it.said.inference_count, it.said.execution_count) == (7, 3)
    assert it.said.stages["success"].ns > 0
    since, now = it.said.last_inference_ms / 1000, time.time()
    assert begun - 1 < since < now + 1
    assert await outcome(it.scheduler.submit(ask(-1.0))) is ModelFailed
    assert sums(it.said) == {**in_all(3), "fail": (1, 0)}
    assert batches(it.said) == {2: (2, 2, 20, 4), 3: (1, 1, 10, 2)}, "a run without answers is no execution"
    assert it.failures == {"BACKEND": 1}


@pytest.mark.parametrize("runs_on", ["thread", "loop"])
async def test_a_batchs_time_counts_once_for_it_and_once_for_each_request(
    runs_on: Literal["thread", "loop"], bench: Callable[..., Bench], ask: Callable[..., InferRequest]
) -> None:
    it = bench(Model(runs_on), max_batch_size=8)
    it.model.gate.clear()
    jobs = [it.scheduler.submit(ask(1.0))]
    await until(lambda: it.scheduler.running == 1)
    jobs += [it.scheduler.submit(ask(*numbers)) for numbers in ([1.0], [2.0, 3.0], [4.0, 5.0, 6.0])]
    it.model.gate.set()
    assert await asyncio.gather(*map(outcome, jobs)) == [1, 1, 1, 1]
    assert sums(it.said) == in_all(4)
    assert batches(it.said) == {1: (1, 1, 10, 2), 6: (1, 1, 10, 2)}
    assert (it.said.inference_count, it.said.execution_count) == (7, 2)
    assert it.said.stages["queue"].ns > 0


@pytest.mark.parametrize("runs_on", ["thread", "loop"])
async def test_of_a_batch_that_failed_the_runs_alone_count(
    runs_on: Literal["thread", "loop"], bench: Callable[..., Bench], ask: Callable[..., InferRequest]
) -> None:
    it = bench(Model(runs_on), max_batch_size=8)
    it.model.gate.clear()
    jobs = [it.scheduler.submit(ask(1.0))]
    await until(lambda: it.scheduler.running == 1)
    jobs += [it.scheduler.submit(ask(*numbers)) for numbers in ([2.0, 3.0], [-1.0], [4.0])]
    it.model.gate.set()
    assert await asyncio.gather(*map(outcome, jobs)) == [1, 1, ModelFailed, 1]
    assert sums(it.said) == {**in_all(3), "fail": (1, 0)}
    assert batches(it.said) == {1: (2, 2, 20, 4), 2: (1, 1, 10, 2)}
    assert (it.said.inference_count, it.said.execution_count) == (4, 3)
    assert it.failures == {"BACKEND": 1}


async def test_who_leaves_is_a_failure_whenever_that_is(
    bench: Callable[..., Bench], ask: Callable[..., InferRequest]
) -> None:
    it = bench(Model(), max_batch_size=8)
    it.model.gate.clear()
    runs = it.scheduler.submit(ask(1.0, 2.0))
    await until(lambda: it.scheduler.running == 1)
    waits = it.scheduler.submit(ask(3.0))
    waits.abandon()
    runs.abandon()
    runs.abandon()
    assert it.failures == {"CANCELED": 2}
    it.model.gate.set()
    await until(lambda: it.scheduler.running == 0)
    assert sums(it.said) == {"fail": (2, 0)}
    assert (it.said.inference_count, it.said.execution_count) == (0, 1), "it ran, for nobody"
    done = it.scheduler.submit(ask(4.0))
    assert await outcome(done) == 1
    done.abandon()
    assert it.said.stages["fail"].count == 2, "leaving with all answers is no failure"


@pytest.mark.parametrize("number", [5.0, 6.0], ids=["and fails then", "and ends then"])
async def test_who_leaves_with_all_that_he_wants_has_succeeded(
    bench: Callable[..., Bench], ask: Callable[..., InferRequest], number: float
) -> None:
    it = bench(Stream())
    it.model.gate.clear()
    request = ask(number)
    job = it.scheduler.submit(request)
    await anext(job)
    request.cancellation.is_satisfied = True
    job.abandon()
    it.model.gate.set()
    await until(lambda: it.scheduler.running == 0)
    assert it.failures == {}
    assert (it.said.stages["success"].count, it.said.stages["fail"].count) == (1, 0)
    assert not any(each["cancel"].count or each["fail"].count for each in it.said.responses.values())


async def test_what_comes_too_late_or_finds_no_room(
    bench: Callable[..., Bench], ask: Callable[..., InferRequest], clock: Clock
) -> None:
    it = bench(Model(), max_batch_size=1, max_queue_size=2)
    it.model.gate.clear()
    runs = it.scheduler.submit(ask(1.0))
    await until(lambda: it.scheduler.running == 1)
    now = clock()
    patient = it.scheduler.submit(ask(2.0, queue_timeout_us=1000))
    urgent = it.scheduler.submit(ask(3.0, deadline=now + 0.002))
    with pytest.raises(QueueFull):
        it.scheduler.submit(ask(4.0))
    await clock.advance(0.003)
    assert await outcome(patient) is QueueTimeout
    assert await outcome(urgent) is DeadlineExceeded
    with pytest.raises(DeadlineExceeded):
        it.scheduler.submit(ask(5.0, deadline=now))
    with pytest.raises(InvalidArgument):
        it.scheduler.submit(ask())
    assert it.failures == {"REJECTED": 2, "CANCELED": 2}, "what does not fit the model was never a request of it"
    it.scheduler.give_up()
    assert it.failures == {"REJECTED": 2, "CANCELED": 2, "OTHER": 1}
    it.model.gate.set()
    assert await outcome(runs) != 1
    assert sums(it.said) == {"fail": (5, 0)}


async def test_answers_of_a_stream_count_by_their_index(
    bench: Callable[..., Bench], ask: Callable[..., InferRequest]
) -> None:
    it = bench(Stream())
    assert await outcome(it.scheduler.submit(ask(2.0))) == 2
    assert await outcome(it.scheduler.submit(ask(3.0))) is ModelFailed
    assert await outcome(it.scheduler.submit(ask(0.0))) == 0
    assert sums(it.said) == {
        "success": (2, 0),
        "fail": (1, 0),
        "queue": (2, 0),
        "compute_input": (2, 2),
        "compute_infer": (2, 20),
        "compute_output": (2, 4),
    }
    assert (it.said.inference_count, it.said.execution_count) == (2, 3)
    counts = {index: {key: d.count for key, d in each.items() if d.count} for index, each in it.said.responses.items()}
    ok = {"compute_infer": 2, "compute_output": 2}
    assert counts == {
        "0": {**ok, "success": 2},
        "1": {**ok, "empty_response": 2},
        "2": {"compute_infer": 1, "compute_output": 1, "success": 1},
        "3": {"fail": 1},
    }
    assert it.said.responses["0"]["compute_infer"] == Duration(2, 20 * MS)
    assert it.said.responses["0"]["success"] == Duration(2, 24 * MS)
    assert all(
        each.keys() == {"compute_infer", "compute_output", "success", "fail", "empty_response", "cancel"}
        for each in it.said.responses.values()
    )


async def test_a_stream_that_nobody_reads_on(bench: Callable[..., Bench], ask: Callable[..., InferRequest]) -> None:
    it = bench(Stream())
    it.model.gate.clear()
    job = it.scheduler.submit(ask(1.0))
    assert (await anext(job)).outputs
    job.abandon()
    it.model.gate.set()
    await until(lambda: it.scheduler.running == 0)
    assert it.failures == {"CANCELED": 1}
    assert [it.said.responses["0"]["success"].count, it.said.responses["1"]["cancel"].count] == [1, 1]


def test_endless_streams_do_not_grow_the_statistics() -> None:
    counters = Counters()
    for index in range(MAX_ANSWERS_COUNTED + 50):
        counters.answered(index, (0.0, 0.1, 0.0), empty=False)
    counters.broke_off(10 * MAX_ANSWERS_COUNTED, "fail", (0.0, 0.0, 0.0))
    assert len(counters.statistics("m", 1).responses) == MAX_ANSWERS_COUNTED


async def test_a_long_stream_keeps_no_times(bench: Callable[..., Bench], ask: Callable[..., InferRequest]) -> None:
    it = bench(Stream())
    it.model.gate.clear()
    job = it.scheduler.submit(ask(500.0))
    for _ in range(500):
        await anext(job)
    (batch,) = it.scheduler._active
    assert not batch.timings
    assert batch.answers == 500
    it.model.gate.set()
    assert await outcome(job) == 0


@pytest.mark.parametrize("inline", [False, True])
async def test_every_end_of_a_request_can_be_traced(
    inline: bool, bench: Callable[..., Bench], ask: Callable[..., InferRequest]
) -> None:
    it = bench(Model(inline=inline), quick=inline, max_batch_size=8)
    await outcome(it.scheduler.submit(ask(1.0)))
    assert not it.tracer.noted
    it.tracer.on = True
    await outcome(it.scheduler.submit(ask(1.0)))
    await outcome(it.scheduler.submit(ask(-1.0)))
    (began, started, took, ended), (_, never, nothing, _) = it.tracer.noted
    assert started is not None
    assert began <= started <= ended
    assert took == (1, 10, 2)
    assert never is nothing is None


async def test_a_stream_is_one_trace(bench: Callable[..., Bench], ask: Callable[..., InferRequest]) -> None:
    it = bench(Stream())
    it.tracer.on = True
    assert await outcome(it.scheduler.submit(ask(4.0))) == 4
    assert [took for _, _, took, _ in it.tracer.noted] == [(1, 40, 8)]

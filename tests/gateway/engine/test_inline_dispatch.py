"""Requests that run in their caller's own steps, and the ways in which they may end."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import weakref
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import numpy as np
import pytest
from waiting import Clock

from tensorgate.gateway.contract.canonical import InferRequest, InferResponse, ModelView
from tensorgate.gateway.contract.errors import (
    Cancelled,
    DeadlineExceeded,
    GatewayError,
    Internal,
    InvalidArgument,
    ModelFailed,
    ModelUnavailable,
    QueueFull,
)
from tensorgate.gateway.contract.execution import Executor, Observe
from tensorgate.gateway.engine.admission import Admission
from tensorgate.gateway.engine.inline_dispatch import InlineCall
from tensorgate.gateway.engine.pending_request import PendingRequest
from tensorgate.gateway.engine.queue import LevelPolicy, QueuePolicy
from tensorgate.gateway.engine.scheduler import Scheduler
from tensorgate.gateway.engine.scheduler_metrics import SchedulerMetrics


class Elsewhere(Executor):
    """A model on the loop, which echoes x: numbers below 0 fail, 666 ends its thread, the rest wait for `gate`."""

    runs_on = "loop"
    inline = decoupled = merges = False

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.gate.set()
        self.alone: list[float] = []
        self.queued: list[float] = []
        self.cancelled = 0

    async def arun_alone(self, request: InferRequest, observe: Observe) -> InferResponse | GatewayError:
        x = request.inputs["x"]
        self.alone += x.tolist()
        return await self._answer(request, observe)

    def run(self, requests: Sequence[InferRequest], observe: Observe) -> Any:
        raise AssertionError("it runs on the loop")

    async def arun(
        self, requests: Sequence[InferRequest], observe: Observe
    ) -> AsyncIterator[list[InferResponse | GatewayError]]:
        (request,) = requests
        self.queued += request.inputs["x"].tolist()
        yield [await self._answer(request, observe)]

    async def _answer(self, request: InferRequest, observe: Observe) -> InferResponse | GatewayError:
        x = request.inputs["x"]
        left = asyncio.Event()
        request.cancellation.on_cut = left.set
        waits = [asyncio.ensure_future(event.wait()) for event in (self.gate, left)]
        try:
            await asyncio.wait(waits, return_when="FIRST_COMPLETED")
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        finally:
            request.cancellation.on_cut = None
            for each in waits:
                each.cancel()
        observe(("infer", 1e-6))
        if left.is_set():
            return Cancelled("the caller has left")
        match x[0]:
            case -1:
                raise InvalidArgument("negative")
            case -2:
                return ModelFailed("said so")
            case -3:
                raise RuntimeError("a bug")
            case 666:
                raise SystemExit
        return InferResponse({"y": x})

    def close(self) -> None:
        self.closed = True


class Bench:
    def __init__(self, copies: int, keys: bool) -> None:
        self.executor = Elsewhere()
        self.stages: list[str] = []
        self.rows: list[int] = []
        self.meter = SchedulerMetrics(lambda stage, seconds: self.stages.append(stage), self.rows.append)
        policy = QueuePolicy(level=LevelPolicy(1), max_batch_size=0)
        executors: Any = [self.executor] * copies
        admission = Admission(1, "key" if keys else None)
        self.scheduler = Scheduler("m", executors, policy, lambda request: admission, self.meter)

    @property
    def counts(self) -> tuple[int, int, int]:
        """(successes, cancelled, other failures)"""
        counters = self.meter.counters
        by = counters.failed_by
        return counters.successes.count, by["CANCELED"], counters.failures.count - by["CANCELED"]

    def submit(self, request: InferRequest) -> InlineCall:
        passing = self.scheduler.answer(request)
        assert type(passing) is InlineCall
        return passing


@pytest.fixture
async def bench() -> AsyncIterator[Callable[..., Bench]]:
    made: list[Bench] = []

    def make(copies: int = 1, *, keys: bool = False) -> Bench:
        made.append(Bench(copies, keys))
        return made[-1]

    yield make
    for each in made:
        each.executor.gate.set()
        async with asyncio.timeout(5):
            await each.scheduler.close()
        assert each.scheduler.running == each.scheduler.queued == 0
        assert each.executor.closed


@pytest.fixture
def ask(make_model: Callable[..., ModelView]) -> Callable[..., InferRequest]:
    view = make_model("m", {"x": ("FP64", None)}, {"y": ("FP64", None)})

    def request(number: float, **changes: Any) -> InferRequest:
        return InferRequest(view, {"x": np.array([number])}, **changes)

    return request


async def turns(count: int = 5) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_it_runs_where_it_is_awaited(bench: Any, ask: Any) -> None:
    b = bench()
    passing = b.submit(ask(7))
    await turns()
    assert b.executor.alone == []
    assert b.scheduler.running == 1
    assert (await anext(passing)).outputs["y"].tolist() == [7]
    assert b.scheduler.running == 0
    assert b.executor.alone == [7]
    assert b.counts == (1, 0, 0)
    assert b.rows == [1]
    assert sorted(b.stages) == ["infer", "queue"]


async def test_it_is_an_iterator_of_one_answer(bench: Any, ask: Any) -> None:
    b = bench()
    passing = b.submit(ask(7))
    assert [answer.outputs["y"].tolist() async for answer in passing] == [[7]]
    passing.abandon()
    assert b.counts == (1, 0, 0)


async def test_who_does_not_wait_at_once_is_queued(bench: Any, ask: Any) -> None:
    b = bench()
    job = b.scheduler.submit(ask(7))
    assert type(job) is PendingRequest
    assert (await anext(job)).outputs["y"].tolist() == [7]
    assert (b.executor.alone, b.executor.queued) == ([], [7])


async def test_what_may_share_a_batch_is_queued(bench: Any, ask: Any) -> None:
    b = bench(keys=True)
    job = b.scheduler.answer(ask(7))
    assert type(job) is PendingRequest
    assert (await anext(job)).outputs["y"].tolist() == [7]


async def test_there_are_as_many_at_a_time_as_copies_and_the_next_waits(bench: Any, ask: Any) -> None:
    b = bench(copies=2)
    b.executor.gate.clear()
    first = [asyncio.ensure_future(b.submit(ask(number)).__anext__()) for number in (1, 2)]
    await turns()
    third = b.scheduler.answer(ask(3))
    assert type(third) is PendingRequest
    with pytest.raises(QueueFull):
        b.scheduler.answer(ask(4))
    assert (b.scheduler.running, b.scheduler.queued) == (2, 1)
    b.executor.gate.set()
    assert [(await each).outputs["y"].tolist() for each in first] == [[1], [2]]
    assert (await anext(third)).outputs["y"].tolist() == [3]
    assert (b.executor.alone, b.executor.queued) == ([1, 2], [3])
    assert (await anext(b.submit(ask(5)))).outputs["y"].tolist() == [5]


@pytest.mark.parametrize(
    ("number", "error", "text"),
    [
        (-1, InvalidArgument, "negative"),
        (-2, ModelFailed, "said so"),
        (-3, Internal, "^$"),
        (666, ModelFailed, "SystemExit"),
    ],
)
async def test_an_error_is_its_callers_alone(bench: Any, ask: Any, number: float, error: Any, text: str) -> None:
    b = bench(copies=2)
    other = asyncio.ensure_future(b.submit(ask(1)).__anext__())
    with pytest.raises(error, match=text):
        await anext(b.submit(ask(number)))
    assert (await other).outputs["y"].tolist() == [1]
    assert b.counts == (1, 0, 1)


async def test_a_caller_who_leaves_ends_it(bench: Any, ask: Any) -> None:
    b = bench()
    b.executor.gate.clear()
    request = ask(7)
    task = asyncio.ensure_future(b.submit(request).__anext__())
    await turns()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert b.executor.cancelled == 1
    assert request.cancellation.cut
    assert b.scheduler.running == 0
    assert b.counts == (0, 1, 0)


async def test_a_caller_who_never_waits_gives_its_place_back(bench: Any, ask: Any) -> None:
    b = bench()
    passing = b.submit(ask(7))
    passing.abandon()
    passing.abandon()
    assert b.scheduler.running == 0
    assert b.counts == (0, 1, 0)
    assert (await anext(b.submit(ask(8)))).outputs["y"].tolist() == [8]


async def test_whoever_is_late_is_told_that(bench: Any, ask: Any, clock: Clock) -> None:
    """Whatever the model says of it then; an answer is an answer."""
    b = bench(copies=2)
    b.executor.gate.clear()
    late = [asyncio.ensure_future(b.submit(ask(x, deadline=clock() + 0.01)).__anext__()) for x in (-1, 7)]
    await clock.advance(0.03)
    b.executor.gate.set()
    with pytest.raises(DeadlineExceeded):
        await late[0]
    assert (await late[1]).outputs["y"].tolist() == [7]
    assert b.counts == (1, 1, 0)


async def test_giving_up_tells_whoever_waits(bench: Any, ask: Any) -> None:
    b = bench(copies=2)
    b.executor.gate.clear()
    waiting = [asyncio.ensure_future(b.submit(ask(number)).__anext__()) for number in (1, 2)]
    await turns()
    b.scheduler.give_up()
    for each in waiting:
        with pytest.raises(ModelUnavailable):
            await each
    assert b.scheduler.running == 0


async def test_closing_waits_for_it(bench: Any, ask: Any) -> None:
    b = bench()
    b.executor.gate.clear()
    waiting = asyncio.ensure_future(b.submit(ask(1)).__anext__())
    await turns()
    closing = asyncio.ensure_future(b.scheduler.close())
    await turns()
    with pytest.raises(ModelUnavailable):
        b.scheduler.answer(ask(2))
    assert not closing.done()
    b.executor.gate.set()
    assert (await waiting).outputs["y"].tolist() == [1]
    await closing


@pytest.mark.parametrize("number", [1, -1, -2])
async def test_nothing_is_kept_of_what_is_over(bench: Any, ask: Any, number: float) -> None:
    b = bench()
    request = ask(number)
    alive = weakref.ref(request.inputs["x"])
    gc.disable()
    try:
        with contextlib.suppress(GatewayError):
            await b.submit(request).__anext__()
        del request
        await turns()
        assert alive() is None
    finally:
        gc.enable()

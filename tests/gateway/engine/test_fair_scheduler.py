"""The scheduler of a model whose callers have shares, against executors that are held or stream at a test's command."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any, Literal

import numpy as np
import pytest
from waiting import until

from tensorgate.gateway.contract.canonical import InferRequest, InferResponse
from tensorgate.gateway.contract.canonical import Sequence as Steps
from tensorgate.gateway.contract.errors import GatewayError, QueueFull, SequenceIdMismatch
from tensorgate.gateway.contract.execution import Executor, Observe
from tensorgate.gateway.contract.tensor import DTYPES
from tensorgate.gateway.engine.admission import Admission
from tensorgate.gateway.engine.fair_scheduler import FairScheduler
from tensorgate.gateway.engine.pending_request import PendingRequest
from tensorgate.gateway.engine.queue import LevelPolicy, QueuePolicy
from tensorgate.gateway.engine.scheduler_metrics import SchedulerMetrics
from tensorgate.gateway.engine.sequence_controls import Control, SequencePolicy
from tensorgate.gateway.engine.shares import SharePolicy, Shares

Outcomes = Sequence[InferResponse | GatewayError]


class Held(Executor):
    """Answers each request with its own x, once it is let go."""

    merges = True

    def __init__(
        self, runs_on: Literal["thread", "loop"] = "thread", *, decoupled: bool = False, inline: bool = False
    ) -> None:
        self.runs_on: Literal["thread", "loop"] = runs_on
        self.decoupled = decoupled
        self.inline = inline
        self.go = threading.Semaphore(0)
        self.batches: list[list[float]] = []

    def run(self, requests: Sequence[InferRequest], observe: Observe) -> Iterator[Outcomes]:
        self.batches.append([float(request.inputs["x"][0, 0]) for request in requests])
        for _ in range(3 if self.decoupled else 1):
            assert self.go.acquire(timeout=20)
            yield [InferResponse({"y": request.inputs["x"]}) for request in requests]

    async def arun(self, requests: Sequence[InferRequest], observe: Observe) -> AsyncIterator[Outcomes]:
        for step in self.run(requests, observe):
            await asyncio.sleep(0)
            yield step

    def close(self) -> None:
        """Nothing is held."""


Make = Callable[..., FairScheduler]


@pytest.fixture
def shares() -> Shares:
    return Shares(SharePolicy({"a": 3}))


@pytest.fixture
async def make(shares: Shares) -> AsyncIterator[Make]:
    made: list[tuple[Any, Held]] = []

    def make(executor: Held, sequences: SequencePolicy | None = None, seconds: float = 1.0, **policy: Any) -> Any:
        admission = Admission(1, None if executor.decoupled else 1, seconds)
        metrics = SchedulerMetrics(lambda stage, seconds: None, lambda rows: None)
        args = ("m", [executor], QueuePolicy(**policy), lambda request: admission, metrics, sequences, ["cuda:0"])
        made.append((FairScheduler(shares, *args), executor))
        return made[-1][0]

    yield make
    for scheduler, executor in made:
        for _ in range(100):
            executor.go.release()
        await scheduler.close()


def ask(number: float, share: str, **facts: Any) -> InferRequest:
    view: Any = SimpleNamespace(name="m", decoupled=False)
    request = InferRequest(view, {"x": np.full((1, 1), number, np.float32)}, **facts)
    request.cancellation.share = share
    return request


def had(shares: Shares) -> dict[str, float]:
    return {each.caller: each.seconds for each in shares.usage()}


async def test_the_next_batch_has_everybody_s_requests(make: Make, shares: Shares) -> None:
    executor = Held()
    scheduler = make(executor, max_batch_size=4, levels=2)  # nothing goes early
    first = scheduler.submit(ask(0, "a"))
    await until(lambda: executor.batches == [[0.0]])
    others = [scheduler.submit(ask(number, share)) for number, share in enumerate("aaaaab", 1)]
    executor.go.release()
    assert (await anext(first)).outputs["y"] == 0
    await until(lambda: len(executor.batches) == 2)
    assert 6.0 in executor.batches[1], "the last that came is of a caller who has had nothing yet"
    for _ in range(2):
        executor.go.release()
    for each in others:
        await anext(each)
    assert had(shares).keys() == {"a", "b"}
    assert all(seconds > 0 for seconds in had(shares).values())
    assert not shares.waiting
    assert not shares.running


async def test_a_full_queue_refuses_its_own_caller(make: Make) -> None:
    executor = Held()
    scheduler = make(executor, max_batch_size=1, level=LevelPolicy(1))
    scheduler.submit(ask(0, "a"))
    await until(lambda: executor.batches == [[0.0]])
    scheduler.submit(ask(1, "a"))
    with pytest.raises(QueueFull, match="for caller 'a' alone"):
        scheduler.submit(ask(2, "a"))
    scheduler.submit(ask(3, "b"))
    scheduler.submit(ask(4, ""))
    with pytest.raises(QueueFull, match="for caller 'anonymous' alone"):
        scheduler.submit(ask(5, ""))


@pytest.mark.parametrize("runs_on", ["thread", "loop"])
async def test_a_stream_is_charged_with_each_answer(
    make: Make, shares: Shares, runs_on: Literal["thread", "loop"]
) -> None:
    executor = Held(runs_on, decoupled=True)
    scheduler = make(executor)
    if runs_on == "loop":
        for _ in range(3):
            executor.go.release()
    answers = scheduler.submit(ask(0, "a", stream=True))
    seconds = [0.0]
    for _ in range(3):
        executor.go.release()
        await anext(answers)
        seconds.append(had(shares)["a"])
    assert seconds == sorted(set(seconds)), "more with each"
    with pytest.raises(StopAsyncIteration):
        await anext(answers)


async def test_what_runs_at_once_counts_too(make: Make, shares: Shares) -> None:
    executor = Held(inline=True)
    scheduler = make(executor, seconds=1e-6, max_batch_size=4)
    executor.go.release()
    answers = scheduler.submit(ask(0, "a"))
    assert not isinstance(answers, PendingRequest)
    assert had(shares)["a"] > 0


async def test_sequences_go_by_what_their_callers_have_had(make: Make, shares: Shares) -> None:
    executor = Held()
    scheduler = make(executor, SequencePolicy(max_idle_us=10**9), max_batch_size=4)

    def step(sequence: int, share: str, *, start: bool = True, end: bool = True) -> PendingRequest:
        found = scheduler.submit(ask(sequence, share, sequence=Steps(sequence, start, end)))
        assert isinstance(found, PendingRequest)
        return found

    steps = [step(1, "a")]
    await until(lambda: executor.batches == [[1.0]])
    steps += [step(2, "a"), step(3, "b"), step(4, "a")]
    for _ in steps:
        executor.go.release()
    for each in steps:
        await anext(each)
    assert executor.batches == [[1.0], [3.0], [2.0], [4.0]]
    assert not shares.waiting


async def test_sequences_of_a_full_queue(make: Make) -> None:
    executor = Held()
    scheduler = make(executor, SequencePolicy(max_idle_us=10**9), level=LevelPolicy(1))
    for number, share in enumerate("aab", 1):  # the first one has a seat, and runs
        scheduler.submit(ask(number, share, sequence=Steps(number, start=True)))
        await until(lambda: executor.batches == [[1.0]])
    with pytest.raises(QueueFull, match="for caller 'a' alone"):
        scheduler.submit(ask(4, "a", sequence=Steps(4, start=True)))


async def test_a_sequence_that_has_no_place_does_not_wait(make: Make, shares: Shares) -> None:
    identity = Control("ID", "correlation_id", DTYPES["INT32"], (1,))
    scheduler = make(Held(), SequencePolicy(max_idle_us=10**9, controls=(identity,)))
    with pytest.raises(SequenceIdMismatch):
        scheduler.submit(ask(0, "a", sequence=Steps(2**31, start=True)))
    assert not shares.waiting


async def test_who_leaves_waits_no_more(make: Make, shares: Shares) -> None:
    executor = Held()
    scheduler = make(executor, max_batch_size=1)
    scheduler.submit(ask(0, "a"))
    await until(lambda: executor.batches == [[0.0]])
    waiting = scheduler.submit(ask(1, "b"))
    assert shares.waiting == {"b": 1}
    waiting.abandon()
    assert not shares.waiting

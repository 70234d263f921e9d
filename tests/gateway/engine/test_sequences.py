"""Sequences in a scheduler: models that add up, with sums of their own or with sums that the gateway keeps for them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from collections.abc import Sequence as Series
from typing import Any, Literal

import numpy as np
import pytest
from waiting import Clock, stays, steps, until

from tensorgate.gateway.contract.canonical import InferRequest, InferResponse, ModelView, OutputRequest, Sequence
from tensorgate.gateway.contract.errors import (
    DeadlineExceeded,
    GatewayError,
    ModelFailed,
    ModelUnavailable,
    QueueFull,
    QueueTimeout,
    SequenceBatch,
    SequenceCancelled,
    SequenceIdMismatch,
    SequenceIdMissing,
    SequenceNotStarted,
)
from tensorgate.gateway.contract.execution import Executor, Observe
from tensorgate.gateway.contract.tensor import DTYPES
from tensorgate.gateway.engine.admission import Admission
from tensorgate.gateway.engine.pending_request import PendingRequest
from tensorgate.gateway.engine.queue import LevelPolicy, QueuePolicy
from tensorgate.gateway.engine.scheduler import Scheduler
from tensorgate.gateway.engine.scheduler_metrics import SchedulerMetrics
from tensorgate.gateway.engine.sequence_controls import Control, SequencePolicy, SequenceState
from tensorgate.gateway.engine.sequences import Sequences

INT32, UINT64 = DTYPES["INT32"], DTYPES["UINT64"]
SUM = SequenceState("SUM", "NEXT", np.zeros((1, 1), INT32))
BAD = 666


class Adder(Executor):
    """Answers x plus what it remembers of the sequence. While `gate` is closed, runs stay inside; BAD raises."""

    decoupled = False
    merges = True

    def __init__(self, runs_on: Literal["thread", "loop"] = "thread", *, inline: bool = False) -> None:
        self.runs_on: Literal["thread", "loop"] = runs_on
        self.inline = inline
        self.gate = threading.Event()
        self.gate.set()
        self.sums: dict[int | str, int] = {}
        self.runs: list[list[int | str]] = []
        self.seen: list[dict[str, Any]] = []
        self.closed = False

    def run(self, requests: Series[InferRequest], observe: Observe) -> Iterator[Series[InferResponse]]:
        assert self.gate.wait(50)
        yield self._answer(requests)

    async def arun(self, requests: Series[InferRequest], observe: Observe) -> AsyncIterator[Series[InferResponse]]:
        assert await asyncio.to_thread(self.gate.wait, 50)
        yield self._answer(requests)

    def _answer(self, requests: Series[InferRequest]) -> list[InferResponse]:
        sequences = [request.sequence for request in requests]
        self.runs.append([sequence.id for sequence in sequences if sequence])
        self.seen += [{name: array.tolist() for name, array in request.inputs.items()} for request in requests]
        if any((request.inputs["x"] == BAD).any() for request in requests):
            raise ModelFailed("bad")
        return [self._add(request) for request in requests]

    def _add(self, request: InferRequest) -> InferResponse:
        sequence = request.sequence
        assert sequence is not None
        total = int(request.inputs["x"][0, 0]) + (0 if sequence.start else self.sums[sequence.id])
        self.sums[sequence.id] = total
        return InferResponse({"y": np.array([[total]], INT32)})

    def close(self) -> None:
        self.closed = True


class Kept(Adder):
    """The same with its sum as a state: SUM in, NEXT out, of all rows at once."""

    def _add(self, request: InferRequest) -> InferResponse:
        total = request.inputs["SUM"] + request.inputs["x"]
        outputs = {"y": total, "NEXT": total}
        asked = {output.name for output in request.outputs} or outputs.keys()
        return InferResponse({name: array for name, array in outputs.items() if name in asked})


class Counting(Adder):
    """Decoupled: counts up to its sum."""

    decoupled = True

    def run(self, requests: Series[InferRequest], observe: Observe) -> Iterator[Series[InferResponse]]:
        assert self.gate.wait(50)
        (response,) = self._answer(requests)
        for number in range(int(response.outputs["y"][0, 0])):
            yield [InferResponse({"y": np.array([[number + 1]], INT32)})]

    async def arun(self, requests: Series[InferRequest], observe: Observe) -> AsyncIterator[Series[InferResponse]]:
        for step in self.run(requests, observe):
            await asyncio.sleep(0)
            yield step


class Bench:
    """A scheduler of sequences over some executors, and a short way to ask it."""

    def __init__(self, view: ModelView, executors: Series[Adder], queue: QueuePolicy, policy: SequencePolicy) -> None:
        self.view = view
        self.executors = executors
        self.rows = queue.max_batch_size
        self.seconds = 1.0
        meter = SchedulerMetrics(lambda stage, seconds: None, lambda rows: None)
        self.scheduler = Scheduler("m", executors, queue, self.admit, meter, policy)
        assert isinstance(self.scheduler._queue, Sequences)
        self.line = self.scheduler._queue

    def admit(self, request: InferRequest) -> Admission:
        rows = len(request.inputs["x"])
        return Admission(rows, (1,) if self.rows > 1 else None, self.seconds)

    def submit(self, sequence: Sequence | None, *numbers: int, **changes: Any) -> Any:
        x = np.array(numbers or (1,), INT32)[:, None]
        return self.scheduler.submit(InferRequest(self.view, {"x": x}, sequence=sequence, **changes))

    async def ask(self, sequence: Sequence | None, *numbers: int, **changes: Any) -> int:
        return await answer(self.submit(sequence, *numbers, **changes))

    def hold(self) -> None:
        for executor in self.executors:
            executor.gate.clear()

    def release(self) -> None:
        for executor in self.executors:
            executor.gate.set()

    async def held(self, runs: int = 1) -> None:
        await until(lambda: self.scheduler.running == runs)


Make = Callable[..., Bench]


@pytest.fixture
async def make(make_model: Callable[..., ModelView]) -> AsyncIterator[Make]:
    view = make_model("m", {"x": ("INT32", None)}, {"y": ("INT32", None)})
    made: list[Bench] = []

    def bench(
        *executors: Adder,
        rows: int = 0,
        level: LevelPolicy | None = None,
        delay_us: int = 0,
        preferred: tuple[int, ...] = (),
        **policy: Any,
    ) -> Bench:
        queue = QueuePolicy(rows, delay_us, level or LevelPolicy(), preferred_batch_sizes=preferred)
        states = (SUM,) if isinstance(executors[0], Kept) else ()
        made.append(Bench(view, executors, queue, SequencePolicy(states=states, **policy)))
        return made[-1]

    yield bench
    for each in made:
        each.release()
        await asyncio.wait_for(each.scheduler.close(), 50)
        assert each.line.alive == each.line.queued == 0
        assert all(instance.taken == 0 and not instance.ready for instance in each.line._instances.values())
        assert not each.line._backlog
        assert all(executor.closed for executor in each.executors)


async def answer(job: PendingRequest) -> int:
    async with asyncio.timeout(50):
        (response,) = [response async for response in job]
    assert list(response.outputs) == ["y"]
    return int(response.outputs["y"][0, 0])


async def outcomes(*jobs: PendingRequest) -> list[Any]:
    """The answer of each, or the kind of its error."""
    results = await asyncio.gather(*map(answer, jobs), return_exceptions=True)
    return [type(result) if isinstance(result, Exception) else result for result in results]


def start(sequence: int | str = 5) -> Sequence:
    return Sequence(sequence, start=True)


def step(sequence: int | str = 5) -> Sequence:
    return Sequence(sequence)


def end(sequence: int | str = 5) -> Sequence:
    return Sequence(sequence, end=True)


def only(sequence: int | str = 5) -> Sequence:
    return Sequence(sequence, start=True, end=True)


# ------------------------------------------------------------------------------------------------------------- refusals


REFUSED: list[tuple[str, list[Sequence], Sequence | None, int, type[GatewayError]]] = [
    ("no id", [], None, 1, SequenceIdMissing),
    ("no id beside a live one", [start()], None, 1, SequenceIdMissing),
    ("no start", [], step(), 1, SequenceNotStarted),
    ("only an end", [], end(), 1, SequenceNotStarted),
    ("after the end", [start(), end()], step(), 1, SequenceNotStarted),
    ("after the only one", [only()], step(), 1, SequenceNotStarted),
    ("another's id", [start(6)], step(), 1, SequenceNotStarted),
    ("a number is no text", [start("5")], step(5), 1, SequenceNotStarted),
    ("text is no number", [start(5)], step("5"), 1, SequenceNotStarted),
    ("two rows", [], start(), 2, SequenceBatch),
    ("two rows without an id", [], None, 2, SequenceBatch),
    ("no rows", [start()], step(), 0, SequenceBatch),
]


@pytest.mark.parametrize(
    ("before", "sequence", "rows", "kind"), [row[1:] for row in REFUSED], ids=[r[0] for r in REFUSED]
)
async def test_what_is_refused(
    make: Make, before: list[Sequence], sequence: Sequence | None, rows: int, kind: type[GatewayError]
) -> None:
    b = make(Adder(), rows=4)
    for each in before:
        await b.ask(each)
    alive = b.line.alive
    x = np.ones((rows, 1), INT32)
    with pytest.raises(kind):
        b.scheduler.submit(InferRequest(b.view, {"x": x}, sequence=sequence))
    assert b.line.alive == alive
    assert await b.ask(only(7), 3) == 3


async def test_a_refusal_changes_nothing(make: Make) -> None:
    b = make(Adder(), rows=4)
    assert await b.ask(start(), 10) == 10
    with pytest.raises(SequenceBatch):
        b.submit(end(), 1, 2)
    assert await b.ask(end(), 1) == 11


# -------------------------------------------------------------------------------------------------- order and isolation


@pytest.mark.parametrize("kind", [Adder, Kept])
@pytest.mark.parametrize("runs_on", ["thread", "loop", "inline"])
@pytest.mark.parametrize("rows", [0, 1, 4])
@pytest.mark.parametrize("instances", [1, 2, 3])
async def test_every_sequence_sees_its_own_sum(
    make: Make, kind: type[Adder], runs_on: str, rows: int, instances: int
) -> None:
    """Callers of 25 sequences that send ahead of the answers, in whatever order chance has it."""
    chance = np.random.default_rng(instances * 10 + rows)
    executors = [
        kind("thread", inline=True) if runs_on == "inline" else kind(runs_on)  # type: ignore[arg-type]
        for _ in range(instances)
    ]
    b = make(*executors, rows=rows)
    b.seconds = 1e-6

    async def caller(sequence: int | str) -> None:
        for _ in range(2):
            numbers = chance.integers(0, 600, chance.integers(1, 8)).tolist()
            jobs = []
            for place, number in enumerate(numbers):
                flags = {"start": place == 0, "end": place == len(numbers) - 1}
                jobs.append(b.submit(Sequence(sequence, **flags), number))
                if chance.random() < 0.5:
                    for _ in range(chance.integers(10)):
                        await asyncio.sleep(0)
            assert [await answer(job) for job in jobs] == np.cumsum(numbers).tolist()

    ids: list[int | str] = [*range(1, 20), *"12345", "x"]
    await asyncio.gather(*map(caller, ids))
    assert b.line.alive == 0
    runs = [run for executor in executors for run in executor.runs]
    assert all(len(set(map(repr, run))) == len(run) <= max(rows, 1) for run in runs)
    if kind is Adder:
        assert max(map(len, runs)) == 1
    assert all(executor.runs for executor in executors)


async def test_a_sequence_stays_at_its_instance(make: Make) -> None:
    b = make(Adder(), Adder(), Adder(), rows=4)
    for sequence in range(1, 7):
        await b.ask(start(sequence), 0)
    for _ in range(5):
        await asyncio.gather(*(b.ask(step(sequence), 1) for sequence in range(1, 7)))
    homes = [{name for run in executor.runs for name in run} for executor in b.executors]
    assert sorted(map(len, homes)) == [2, 2, 2]
    assert set().union(*homes) == set(range(1, 7))


async def test_different_sequences_share_a_run_where_the_gateway_keeps_the_state(make: Make) -> None:
    b = make(Kept(), rows=4)
    b.hold()
    first = b.submit(start(1), 1)
    await b.held()
    rest = [b.submit(each, n) for n, each in enumerate([start(2), step(1), start(3), step(2), end(1), start(4)], 2)]
    b.release()
    assert await outcomes(first, *rest) == [1, 2, 1 + 3, 4, 2 + 5, 1 + 3 + 6, 7]
    assert b.executors[0].runs[:2] == [[1], [2, 3, 4, 1]]
    assert all(len(set(run)) == len(run) for run in b.executors[0].runs)


async def test_different_sequences_share_a_run_of_a_model_that_is_given_each(make: Make) -> None:
    """Triton: L0_metrics, test_sequence_batch_scheduler_direct and _oldest."""
    b = make(Adder(), rows=4, batches_own_state=True)
    b.hold()
    first = b.submit(start(1), 1)
    await b.held()
    rest = [b.submit(each, n) for n, each in enumerate([start(2), step(1), start(3), step(2), end(1)], 2)]
    b.release()
    assert await outcomes(first, *rest) == [1, 2, 1 + 3, 4, 2 + 5, 1 + 3 + 6]
    assert b.executors[0].runs == [[1], [2, 3, 1], [2, 1]]


@pytest.mark.parametrize("preferred", [(), (2, 3)])
async def test_sequences_wait_for_company_where_they_may(make: Make, preferred: tuple[int, ...]) -> None:
    b = make(Adder(), rows=4, batches_own_state=True, delay_us=60_000_000, preferred=preferred)
    enough = min((4, *preferred))
    jobs = [b.submit(start(n), n) for n in range(1, enough)]
    await stays(lambda: not b.executors[0].runs)
    jobs += [b.submit(step(1), 10), b.submit(start(enough), enough)]
    assert await outcomes(*jobs[:-2], jobs[-1]) == [*range(1, enough + 1)]
    await stays(lambda: b.executors[0].runs == [[*range(1, enough + 1)]])
    jobs[-2].abandon()


async def test_sequences_wait_for_company_no_longer_than_they_may(make: Make) -> None:
    b = make(Adder(), rows=4, batches_own_state=True, delay_us=50_000)
    first = b.submit(start(1), 1)
    await steps()
    assert await outcomes(first, b.submit(start(2), 2)) == [1, 2]
    assert b.executors[0].runs == [[1, 2]]


async def test_requests_with_other_parameters_or_states_of_another_shape_run_apart(make: Make) -> None:
    b = make(Kept(), rows=4)
    b.hold()
    first = b.submit(start(9), 1)
    await b.held()
    jobs = [b.submit(start(1), 1), b.submit(start(2), 2, parameters={"t": 1}), b.submit(start(3), 3)]
    b.release()
    assert await outcomes(first, *jobs) == [1, 1, 2, 3]
    assert b.executors[0].runs == [[9], [1, 3], [2]]
    b.line._live[1].states = {"SUM": np.zeros((1, 2), INT32)}  # as a model whose state grows would have it
    b.hold()
    first = b.submit(end(9), 1)
    await b.held()
    jobs = [b.submit(end(n), 1) for n in (1, 2, 3)]
    b.release()
    assert await outcomes(first, *jobs) == [2, 1, 3, 4]
    assert b.executors[0].runs[3:] == [[9], [1], [2, 3]]


@pytest.mark.parametrize("runs_on", ["thread", "loop"])
async def test_a_model_that_streams_finishes_one_answer_before_the_next(make: Make, runs_on: Any) -> None:
    b = make(Counting(runs_on), rows=4)
    jobs = [b.submit(start(), 2), b.submit(step(), 1), b.submit(only(6), 0), b.submit(end(), 1)]
    told = [[int(response.outputs["y"][0, 0]) async for response in job] for job in jobs]
    assert told == [[1, 2], [1, 2, 3], [], [1, 2, 3, 4]]


# ------------------------------------------------------------------------------------------------------ seats and lives


async def test_a_later_sequence_waits_for_a_seat(make: Make) -> None:
    b = make(Adder(), rows=1)
    assert await b.ask(start(1), 1) == 1
    waits = [b.submit(start(2), 20), b.submit(end(2), 2), b.submit(only(3), 30)]
    assert await b.ask(step(1), 1) == 2
    assert b.scheduler.queued == 3
    assert await b.ask(end(1), 1) == 3
    assert await outcomes(*waits) == [20, 22, 30]
    assert b.executors[0].runs == [[1], [1], [1], [2], [2], [3]]


async def test_an_end_gives_the_seat_back_even_if_its_sequence_starts_anew(make: Make) -> None:
    b = make(Adder())
    b.hold()
    jobs = [b.submit(start(1), 1), b.submit(end(1), 1), b.submit(start(1), 5), b.submit(only(2), 7)]
    b.release()
    assert await outcomes(*jobs[:2], jobs[3]) == [1, 2, 7]
    assert await answer(jobs[2]) == 5
    assert b.executors[0].runs == [[1], [1], [2], [1]]


async def test_a_start_restarts_a_live_sequence_in_its_turn(make: Make) -> None:
    b = make(Kept(), rows=4)
    assert await b.ask(start(), 1) == 1
    jobs = [b.submit(step(), 2), b.submit(start(), 10), b.submit(step(), 3)]
    assert await outcomes(*jobs) == [3, 10, 13]
    assert b.line.alive == 1
    assert await b.ask(end(), 1) == 14
    assert b.line.alive == 0


@pytest.mark.parametrize("backlog", [False, True])
async def test_idle_sequences_expire(make: Make, backlog: bool) -> None:
    b = make(Adder(), max_idle_us=30_000)
    assert await b.ask(start(1), 1) == 1
    waits = b.submit(only(2), 7) if backlog else None
    await until(lambda: b.line.alive == 0)
    assert b.line._timer is None
    with pytest.raises(SequenceNotStarted):
        await b.ask(step(1))
    if waits is not None:
        assert await answer(waits) == 7


async def test_expiry_goes_by_the_clock_and_needs_one_timer(make: Make) -> None:
    b = make(Adder(), rows=8, max_idle_us=10_000_000)
    now = 100.0
    b.line._clock = lambda: now
    for sequence in (1, 2, 3):
        now += 4
        await b.ask(start(sequence), 1)
    timer = b.line._timer
    await b.ask(step(1), 1)  # at 112: now the youngest
    assert b.line._timer is timer
    now = 117.9
    b.line.expire()
    assert list(b.line._live) == [1, 2, 3]
    now = 118.0
    b.line.expire()
    assert list(b.line._live) == [1, 3]
    now = 122.0
    with pytest.raises(SequenceNotStarted):
        b.submit(step(3))  # also where the timer is late
    assert b.line.alive == 0
    assert await b.ask(start(3), 9) == 9


async def test_a_sequence_that_waits_or_runs_does_not_expire(make: Make, clock: Clock) -> None:
    b = make(Adder(), max_idle_us=1000)
    b.line._clock = clock
    b.hold()
    jobs = [b.submit(start(1), 1), b.submit(step(1), 1), b.submit(start(2), 1)]
    await b.held()
    await clock.advance(0.03)
    await clock.advance(0.03)
    b.release()
    assert await outcomes(*jobs[:2]) == [1, 2]
    last = asyncio.ensure_future(answer(jobs[2]))
    while not last.done():
        await clock.advance(1e-3)
    assert await last == 1


async def test_the_table_is_bounded(make: Make) -> None:
    b = make(Adder(), Adder(), rows=2, level=LevelPolicy(max_queue_size=3))
    b.hold()
    jobs = [b.submit(start(sequence), sequence) for sequence in (1, 2, 3)]
    await b.held(2)
    jobs += [b.submit(start(sequence), sequence) for sequence in (4, 5)]
    for sequence in (1, 6):
        with pytest.raises(QueueFull):
            b.submit(Sequence(sequence, start=sequence == 6))
    assert b.line.alive == 5
    b.release()
    assert await outcomes(*jobs[:4]) == [1, 2, 3, 4]
    jobs[4].abandon()
    assert b.line.alive == 4


# ----------------------------------------------------------------------------------------------------- what goes wrong


@pytest.mark.parametrize(("kind", "rows"), [(Adder, 1), (Adder, 4), (Kept, 1), (Kept, 4)])
async def test_a_request_that_fails_is_a_step_that_did_not_happen(make: Make, kind: type[Adder], rows: int) -> None:
    b = make(kind(), rows=rows)
    assert await b.ask(start(), 1) == 1
    with pytest.raises(ModelFailed):
        await b.ask(step(), BAD)
    assert await b.ask(end(), 2) == 3


@pytest.mark.parametrize(("kind", "rows"), [(Adder, 0), (Adder, 4), (Kept, 4)])
@pytest.mark.parametrize("alive", [False, True])
async def test_a_sequence_whose_first_request_fails_has_not_started(
    make: Make, kind: type[Adder], rows: int, alive: bool
) -> None:
    """Nobody goes on where an earlier sequence of that name has left off."""
    b = make(kind(), rows=rows)
    assert await b.ask(start() if alive else only(), 100) == 100
    b.hold()
    jobs = [b.submit(start(), BAD), b.submit(step(), 1), b.submit(end(), 2), b.submit(only(), 3), b.submit(start(), 4)]
    await b.held()
    b.release()
    assert await outcomes(*jobs) == [ModelFailed, SequenceNotStarted, SequenceNotStarted, 3, 4]
    assert await outcomes(b.submit(start(), BAD)) == [ModelFailed]
    with pytest.raises(SequenceNotStarted):
        b.submit(step())
    assert b.line.alive == 0


async def test_a_request_that_fails_costs_its_neighbours_nothing(make: Make) -> None:
    b = make(Kept(), rows=4)
    b.hold()
    first = b.submit(only(9), 9)
    await b.held()
    jobs = [b.submit(each, n) for each, n in ((start(1), 1), (start(2), BAD), (start(3), 3))]
    later = [b.submit(end(n), 10) for n in (1, 2, 3)]
    b.release()
    assert await outcomes(first, *jobs, *later) == [9, 1, ModelFailed, 3, 11, SequenceNotStarted, 13]


async def test_an_abandoned_request_cancels_what_waits_behind_it_in_its_sequence(make: Make) -> None:
    """Triton: L0_request_cancellation, test_direct_sequence_batch_scheduler_request_cancellation."""
    b = make(Adder())
    b.hold()
    jobs = [b.submit(start(), 1), *[b.submit(step(), n) for n in (10, 100)], b.submit(end(), 1000)]
    follows = b.submit(only(), 5)
    await b.held()
    jobs[1].abandon()
    with pytest.raises(StopAsyncIteration):
        await anext(jobs[1])
    b.release()
    assert await outcomes(jobs[0], *jobs[2:], follows) == [1, SequenceCancelled, SequenceCancelled, 5]


async def test_a_cancelled_sequence_is_over(make: Make) -> None:
    b = make(Adder())
    b.hold()
    jobs = [b.submit(start(), 1), b.submit(step(), 10), b.submit(step(), 100)]
    await b.held()
    jobs[1].abandon()
    with pytest.raises(SequenceNotStarted):
        b.submit(step(), 1)
    b.release()
    assert await outcomes(jobs[0], jobs[2]) == [1, SequenceCancelled]
    await until(lambda: b.line.alive == 0)


async def test_a_request_abandoned_while_it_runs_has_happened(make: Make) -> None:
    b = make(Kept(), rows=4)
    b.hold()
    first = b.submit(start(), 1)
    await b.held()
    first.abandon()
    last = b.submit(end(), 2)
    b.release()
    assert await answer(last) == 3


@pytest.mark.parametrize("seated", [True, False])
async def test_without_its_first_request_a_sequence_has_not_started(make: Make, seated: bool) -> None:
    b = make(Adder())
    b.hold()
    runs = b.submit(only(1) if seated else start(1), 1)
    await b.held()
    lost = b.submit(start(2), 1)
    waiting = [b.submit(step(2), 2), b.submit(start(2), 30), b.submit(step(2), 3)]
    lost.abandon()
    assert await outcomes(waiting[0]) == [SequenceCancelled]
    waiting[1].abandon()
    assert await outcomes(waiting[2]) == [SequenceCancelled]
    with pytest.raises(SequenceNotStarted):
        b.submit(step(2))
    assert (b.line.alive, b.scheduler.queued) == (1, 0)
    b.release()
    assert await answer(runs) == 1


async def test_an_abandoned_end_ends_its_sequence(make: Make) -> None:
    b = make(Adder())
    b.hold()
    first = b.submit(start(1), 1)
    last = b.submit(end(1), 1)
    follows = b.submit(only(2), 5)
    await b.held()
    last.abandon()
    with pytest.raises(SequenceNotStarted):
        b.submit(step(1))
    b.release()
    assert await outcomes(first, follows) == [1, 5]


async def test_a_late_first_request_gives_its_place_in_the_backlog_up(make: Make, clock: Clock) -> None:
    b = make(Adder(), level=LevelPolicy(timeout_us=200_000))
    await b.ask(start(1), 1)
    late = [b.submit(start(2), 1), b.submit(end(2), 1)]
    await clock.advance(0.3)
    assert await outcomes(*late) == [QueueTimeout, SequenceNotStarted]
    assert b.line.alive == 1
    assert await b.ask(end(1), 1) == 2


async def test_a_sequence_keeps_its_order_also_where_the_late_are_delayed(make: Make, clock: Clock) -> None:
    b = make(Adder(), level=LevelPolicy(timeout_us=5000, timeout_action="delay"))
    b.hold()
    jobs = [b.submit(start(), 1), b.submit(step(), 2), b.submit(end(), 3)]
    await clock.advance(0.02)
    b.release()
    assert await outcomes(*jobs) == [1, 3, 6]


async def test_a_deadline_ends_the_wait_and_not_the_sequence(make: Make, clock: Clock) -> None:
    b = make(Adder())
    b.hold()
    first = b.submit(start(), 1)
    await b.held()
    late = b.submit(step(), 2, deadline=clock() + 0.02)
    await clock.advance(0.03)
    assert await outcomes(late) == [DeadlineExceeded]
    b.release()
    assert await answer(first) == 1
    assert await b.ask(end(), 4) == 5


async def test_closing_answers_what_was_accepted_and_ends_every_sequence(make: Make) -> None:
    b = make(Adder())
    await b.ask(start(1), 1)
    b.hold()
    jobs = [b.submit(step(1), 1), b.submit(start(2), 20), b.submit(step(2), 2), b.submit(start(3), 30)]
    closing = asyncio.create_task(b.scheduler.close())
    await steps()
    with pytest.raises(ModelUnavailable):
        b.submit(step(1))
    b.release()
    assert await outcomes(*jobs) == [2, 20, 22, 30]
    await asyncio.wait_for(closing, 50)
    assert b.line.alive == 0


async def test_closing_ends_what_is_idle_at_once(make: Make) -> None:
    b = make(Adder(), rows=4)
    for sequence in (1, 2, 3):
        await b.ask(start(sequence), 1)
    await asyncio.wait_for(b.scheduler.close(), 1)
    assert b.line.alive == 0


async def test_giving_up_tells_everybody(make: Make) -> None:
    b = make(Adder())
    b.hold()
    jobs = [b.submit(each) for each in (start(1), step(1), start(2), step(2), end(2), only(3))]
    await b.held()
    b.scheduler.give_up()
    assert await outcomes(*jobs) == [ModelUnavailable] * 6
    assert b.scheduler.queued == 0


async def test_whatever_happens_no_sequence_is_wedged(make: Make) -> None:
    """Callers that leave, fail and never end; afterwards every id can be used again."""
    chance = np.random.default_rng(7)
    b = make(Kept(), Kept(), rows=2, max_idle_us=20_000)

    async def caller(sequence: int) -> None:
        for _ in range(30):
            try:
                job = b.submit(
                    Sequence(sequence, chance.random() < 0.4, chance.random() < 0.3),
                    BAD if chance.random() < 0.1 else 1,
                )
            except GatewayError:
                continue
            if chance.random() < 0.3:
                for _ in range(chance.integers(10)):
                    await asyncio.sleep(0)
                job.abandon()
            elif chance.random() < 0.5:
                await outcomes(job)

    await asyncio.gather(*(caller(sequence) for sequence in range(1, 13) for _ in range(2)))
    for sequence in range(1, 13):
        assert await b.ask(only(sequence), 42) == 42
    await until(lambda: b.line.alive == 0)


# ------------------------------------------------------------------------------------------------- controls and states


CONTROLS = (
    Control("START", "start", INT32, (1, 1)),
    Control("READY", "ready", DTYPES["BOOL"], (1, 1)),
    Control("END", "end", DTYPES["FP32"], (1, 1), (-1.0, 0.5)),
    Control("ID", "correlation_id", UINT64, (1, 1)),
)


async def test_controls_tell_where_a_request_is(make: Make) -> None:
    b = make(Adder(), rows=4, controls=CONTROLS)
    largest = 2**64 - 1
    for each in (start(largest), step(largest), end(largest), only(1)):
        await b.ask(each, 3)
    want = [(1, -1.0, largest), (0, -1.0, largest), (0, 0.5, largest), (1, 0.5, 1)]
    assert b.executors[0].seen == [
        {"x": [[3]], "START": [[first]], "READY": [[True]], "END": [[last]], "ID": [[name]]}
        for first, last, name in want
    ]


IDENTITIES: list[tuple[str, int | str, Any]] = [
    ("UINT64", 2**64 - 1, [2**64 - 1]),
    ("INT64", 2**63 - 1, [2**63 - 1]),
    ("UINT32", 7, [7]),
    ("INT32", 2**31 - 1, [2**31 - 1]),
    ("BYTES", "naïve", ["naïve".encode()]),
    ("BYTES", 7, [b"7"]),
    ("INT64", 2**63, None),
    ("INT32", 2**31, None),
    ("UINT32", 2**32, None),
    ("UINT64", "7", None),
]


@pytest.mark.parametrize(("datatype", "sequence", "want"), IDENTITIES)
async def test_an_id_fits_its_control_or_is_refused(make: Make, datatype: str, sequence: int | str, want: Any) -> None:
    b = make(Adder(), controls=(Control("ID", "correlation_id", DTYPES[datatype], (1,)),))
    if want is None:
        with pytest.raises(SequenceIdMismatch):
            b.submit(start(sequence))
        assert b.line.alive == 0
        return
    await b.ask(only(sequence))
    assert b.executors[0].seen[0]["ID"] == want


async def test_states_are_nobody_elses(make: Make) -> None:
    b = make(Kept(), rows=4)
    assert await b.ask(start(1), 5) == 5
    state = b.line._live[1].states["SUM"]
    assert (state.tolist(), state.flags.writeable, state.base) == ([[5]], False, None)
    assert await b.ask(step(1), 1, outputs=(OutputRequest("y"),)) == 6
    assert await b.ask(only(2), 7) == 7
    assert await b.ask(start(1), 1) == 1
    assert await b.ask(end(1), 1) == 2
    assert b.line.alive == 0
    assert SUM.initial.tolist() == [[0]]


async def test_the_callers_request_stays_as_it_was(make: Make) -> None:
    b = make(Kept(), rows=4, controls=CONTROLS)
    request = InferRequest(b.view, {"x": np.ones((1, 1), INT32)}, sequence=only(), outputs=(OutputRequest("y"),))
    assert await answer(b.scheduler.submit(request)) == 1
    assert list(request.inputs) == ["x"]
    assert [output.name for output in request.outputs] == ["y"]

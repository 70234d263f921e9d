"""The scheduler against an executor that is held, fails or streams at the test's command."""

import asyncio
import contextlib
import gc
import threading
import time
import weakref
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import Any, Literal

import numpy as np
import pytest
from waiting import Clock, settles, stays, steps, until

from tensorgate.gateway.contract.canonical import InferRequest, InferResponse, ModelView
from tensorgate.gateway.contract.errors import (
    DeadlineExceeded,
    GatewayError,
    Internal,
    InvalidArgument,
    ModelFailed,
    ModelUnavailable,
    QueueFull,
    QueueTimeout,
)
from tensorgate.gateway.contract.execution import Executor, Observe
from tensorgate.gateway.engine.admission import Admission
from tensorgate.gateway.engine.pending_request import STREAM_WINDOW, PendingRequest
from tensorgate.gateway.engine.queue import LevelPolicy, QueuePolicy
from tensorgate.gateway.engine.scheduler import Scheduler
from tensorgate.gateway.engine.scheduler_metrics import SchedulerMetrics


class Echo(Executor):
    """Answers every request with its own rows. While `gate` is closed, batches stay inside."""

    decoupled = False
    merges = True

    def __init__(self, runs_on: Literal["thread", "loop"] = "thread", *, inline: bool = False) -> None:
        self.runs_on: Literal["thread", "loop"] = runs_on
        self.inline = inline
        self.gate = threading.Event()
        self.gate.set()
        self.batches: list[list[float]] = []
        self.threads: set[str] = set()
        self.closed = False

    def run(self, requests: Sequence[InferRequest], observe: Observe) -> Iterator[Sequence[InferResponse]]:
        assert self.gate.wait(5)
        yield self._answer(requests, observe)

    async def arun(self, requests: Sequence[InferRequest], observe: Observe) -> AsyncIterator[Sequence[InferResponse]]:
        assert await asyncio.to_thread(self.gate.wait, 5)
        yield self._answer(requests, observe)

    def _answer(self, requests: Sequence[InferRequest], observe: Observe) -> list[InferResponse]:
        self.threads.add(threading.current_thread().name)
        self.batches.append([float(x) for request in requests for x in request.inputs["x"].flat])
        observe(("infer", 1e-6))
        for request in requests:
            if (request.inputs["x"] < 0).any():
                raise InvalidArgument("negative")
            if (request.inputs["x"] == 666).any():
                raise SystemExit
        return [InferResponse({"y": request.inputs["x"]}) for request in requests]

    def close(self) -> None:
        self.closed = True


class Steady(Echo):
    """Takes a while, so that what a test says of its speed is not measured away."""

    def _answer(self, requests: Sequence[InferRequest], observe: Observe) -> list[InferResponse]:
        begun = time.perf_counter()
        while time.perf_counter() - begun < 100e-6:
            pass
        return super()._answer(requests, observe)


class Counting(Echo):
    """Decoupled: answers 0, 1, 2 … below the first number of x, then fails if that is odd."""

    decoupled = True

    def __init__(self, runs_on: Literal["thread", "loop"] = "thread") -> None:
        super().__init__(runs_on)
        self.yielded = 0
        self.ended = threading.Event()

    def run(self, requests: Sequence[InferRequest], observe: Observe) -> Iterator[Sequence[InferResponse]]:
        (request,) = requests
        limit = int(request.inputs["x"][0])
        try:
            for number in range(limit):
                self.yielded += 1
                yield [InferResponse({"y": np.array([number])})]
            if limit % 2:
                raise ModelFailed("odd")
        finally:
            self.ended.set()

    async def arun(self, requests: Sequence[InferRequest], observe: Observe) -> AsyncIterator[Sequence[InferResponse]]:
        for step in self.run(requests, observe):
            await asyncio.sleep(0)
            yield step


class Tidying(Counting):
    """Takes a step of the loop to leave a request, whose reader may be gone: `most` are in it at a time."""

    def __init__(self) -> None:
        super().__init__("loop")
        self.inside = self.most = 0

    async def arun(self, requests: Sequence[InferRequest], observe: Observe) -> AsyncIterator[Sequence[InferResponse]]:
        self.inside += 1
        self.most = max(self.most, self.inside)
        try:
            async for step in super().arun(requests, observe):
                yield step
        finally:
            await asyncio.sleep(0)
            self.inside -= 1


class Bench:
    """A scheduler, its executor, and what it reported."""

    def __init__(self, executor: Echo, policy: QueuePolicy) -> None:
        self.executor = executor
        self.stages: list[str] = []
        self.batch_rows: list[int] = []
        self.admissions: dict[Any, Admission] = {}
        meter = SchedulerMetrics(lambda stage, seconds: self.stages.append(stage), self.batch_rows.append)
        self.scheduler = Scheduler("m", [executor], policy, self.admit, meter)
        self.batches = policy.max_batch_size > 0

    def admit(self, request: InferRequest) -> Admission:
        x = request.inputs["x"]
        key = x.shape[1:] if self.batches else None
        return self.admissions.setdefault(x.shape, Admission(x.shape[0], key))


Submit = Callable[..., PendingRequest]


@pytest.fixture
async def bench() -> AsyncIterator[Callable[..., Bench]]:
    made: list[Bench] = []

    def make(executor: Echo, *levels: LevelPolicy, max_queue_size: int = 512, **policy: Any) -> Bench:
        if len(levels) > 1:
            policy |= {"own_levels": dict(enumerate(levels, 1)), "levels": len(levels)}
        level = levels[0] if levels else LevelPolicy(max_queue_size)
        made.append(Bench(executor, QueuePolicy(level=level, **policy)))
        return made[-1]

    yield make
    for each in made:
        each.executor.gate.set()
        await each.scheduler.close()
        assert each.executor.closed


@pytest.fixture
def ask(make_model: Callable[..., ModelView]) -> Callable[..., InferRequest]:
    view = make_model("m", {"x": ("FP64", None)}, {"y": ("FP64", None)})

    def request(*numbers: float, **changes: Any) -> InferRequest:
        return InferRequest(view, {"x": np.array(numbers)}, **changes)

    return request


async def answer(job: PendingRequest) -> list[float]:
    return [float(number) async for response in job for number in response.outputs["y"]]


@pytest.mark.parametrize("numbers", [(1,), (-1,), (2, 3)])
async def test_nothing_is_kept_of_what_is_over(bench: Any, ask: Any, numbers: tuple[float, ...]) -> None:
    """Neither answers nor errors make circles, which only a collector would find."""
    b = bench(Echo(), max_batch_size=4)
    gc.collect()
    gc.disable()
    try:
        requests = [ask(number) for number in numbers]
        inputs = [weakref.ref(request.inputs["x"]) for request in requests]
        jobs = [b.scheduler.submit(request) for request in requests]
        del requests
        for job in jobs:
            with contextlib.suppress(InvalidArgument):
                await answer(job)
        jobs.clear()
        del job
        await until(lambda: not any(each() is not None for each in inputs))
    finally:
        gc.enable()


async def test_what_piles_up_behind_a_busy_device_is_the_next_batch(bench: Any, ask: Any) -> None:
    b = bench(Echo(), max_batch_size=4)
    b.executor.gate.clear()
    first = b.scheduler.submit(ask(0))
    await until(lambda: b.scheduler.running == 1)
    rest = [b.scheduler.submit(ask(n)) for n in range(1, 7)]
    assert b.scheduler.queued == 6
    b.executor.gate.set()
    assert [await answer(job) for job in (first, *rest)] == [[float(n)] for n in range(7)]
    assert b.executor.batches == [[0], [1, 2, 3, 4], [5, 6]]
    assert b.batch_rows == [1, 4, 2]
    assert b.stages.count("queue") == 7
    assert (b.scheduler.queued, b.scheduler.running) == (0, 0)


async def test_batches_respect_rows_keys_and_parameters(bench: Any, ask: Any) -> None:
    b = bench(Echo(), max_batch_size=3)
    b.executor.gate.clear()
    jobs = [b.scheduler.submit(ask(0))]
    await until(lambda: b.scheduler.running == 1)
    wide = ask(8)
    object.__setattr__(wide, "inputs", {"x": np.array([[8.0]])})
    jobs += [b.scheduler.submit(r) for r in (ask(1, 1), ask(2, 2), ask(3), ask(4, parameters={"t": 1}))]
    odd = b.scheduler.submit(wide)
    jobs += [b.scheduler.submit(ask(5, parameters={"t": True})), b.scheduler.submit(ask(6, parameters={"t": 1}))]
    b.executor.gate.set()
    assert [await answer(job) for job in jobs] == [[0], [1, 1], [2, 2], [3], [4], [5], [6]]
    assert [response.outputs["y"].tolist() async for response in odd] == [[[8]]]
    assert b.executor.batches == [[0], [1, 1], [2, 2, 3], [4, 6], [8], [5]]


async def test_without_a_batch_dimension_each_request_runs_alone(bench: Any, ask: Any) -> None:
    b = bench(Echo(), max_batch_size=0)
    jobs = [b.scheduler.submit(ask(n)) for n in range(3)]
    assert [await answer(job) for job in jobs] == [[0], [1], [2]]
    assert b.executor.batches == [[0], [1], [2]]


async def test_a_full_queue_refuses_at_once(bench: Any, ask: Any) -> None:
    b = bench(Echo(), max_batch_size=1, max_queue_size=2)
    b.executor.gate.clear()
    jobs = [b.scheduler.submit(ask(0))]
    await until(lambda: b.scheduler.running == 1)
    jobs += [b.scheduler.submit(ask(n)) for n in (1, 2)]
    with pytest.raises(QueueFull):
        b.scheduler.submit(ask(3))
    jobs[1].abandon()
    jobs[1] = b.scheduler.submit(ask(4))  # an abandoned request gives its place back
    b.executor.gate.set()
    assert [await answer(job) for job in jobs] == [[0], [4], [2]]
    assert [1] not in b.executor.batches


async def test_abandoned_requests_cost_no_batch_and_no_memory(bench: Any, ask: Any) -> None:
    b = bench(Echo(), max_batch_size=8, max_queue_size=5)
    b.executor.gate.clear()
    first = b.scheduler.submit(ask(0))
    await until(lambda: b.scheduler.running == 1)
    for n in range(1, 100):
        b.scheduler.submit(ask(n)).abandon()
    assert b.scheduler.queued == 0
    assert len(b.scheduler._queue.waiting()) <= 6
    b.executor.gate.set()
    assert await answer(first) == [0]
    assert b.executor.batches == [[0]]


@pytest.mark.parametrize("state", ["waiting", "running"])
async def test_a_deadline_is_kept_whether_it_waits_or_runs(bench: Any, ask: Any, state: str, clock: Clock) -> None:
    b = bench(Echo(), max_batch_size=1)
    b.executor.gate.clear()
    if state == "waiting":
        b.scheduler.submit(ask(0))
    job = b.scheduler.submit(ask(1, deadline=clock() + 0.05))
    answering = asyncio.ensure_future(answer(job))
    await clock.advance(0.04)
    assert not answering.done()
    await clock.advance(0.02)
    with pytest.raises(DeadlineExceeded):
        await answering
    assert job.request.cancellation.cut


async def test_a_deadline_in_the_past_is_refused(bench: Any, ask: Any) -> None:
    b = bench(Echo())
    with pytest.raises(DeadlineExceeded):
        b.scheduler.submit(ask(1, deadline=time.monotonic() - 1))


async def test_queue_timeout_counts_waiting_only(bench: Any, ask: Any, clock: Clock) -> None:
    b = bench(Echo(), LevelPolicy(allow_timeout_override=True), max_batch_size=1)
    b.executor.gate.clear()
    runs = b.scheduler.submit(ask(1, queue_timeout_us=20_000))
    await until(lambda: b.scheduler.running == 1)
    waits = b.scheduler.submit(ask(2, queue_timeout_us=20_000))
    await clock.advance(0.03)
    with pytest.raises(QueueTimeout):
        await answer(waits)
    b.executor.gate.set()
    assert await answer(runs) == [1]


TIMEOUTS: list[tuple[LevelPolicy, int, int]] = [
    (LevelPolicy(), 0, 0),
    (LevelPolicy(), 7, 0),  # without the policy's leave it has no effect
    (LevelPolicy(timeout_us=50), 0, 50),
    (LevelPolicy(timeout_us=50), 7, 50),
    (LevelPolicy(timeout_us=50, allow_timeout_override=True), 0, 50),
    (LevelPolicy(timeout_us=50, allow_timeout_override=True), 7, 7),
    (LevelPolicy(timeout_us=50, allow_timeout_override=True), 70, 50),  # it only shortens
    (LevelPolicy(allow_timeout_override=True), 7, 7),
]


@pytest.mark.parametrize(("policy", "timeout_us", "patience_us"), TIMEOUTS)
def test_a_request_may_shorten_its_wait_where_the_policy_lets_it(
    ask: Any, policy: LevelPolicy, timeout_us: int, patience_us: int
) -> None:
    assert policy.patience_us(ask(1, queue_timeout_us=timeout_us)) == patience_us


async def test_a_timeout_without_leave_has_no_effect(bench: Any, ask: Any, clock: Clock) -> None:
    b = bench(Echo(), max_batch_size=1)
    b.executor.gate.clear()
    jobs = [b.scheduler.submit(ask(n, queue_timeout_us=1)) for n in (1, 2)]
    await clock.advance(0.02)
    b.executor.gate.set()
    assert [await answer(job) for job in jobs] == [[1], [2]]


async def test_who_has_waited_too_long_is_refused(bench: Any, ask: Any, clock: Clock) -> None:
    b = bench(Echo(), LevelPolicy(timeout_us=200_000))
    b.executor.gate.clear()
    runs = b.scheduler.submit(ask(1))
    await until(lambda: b.scheduler.running == 1)
    late = b.scheduler.submit(ask(2))
    await clock.advance(0.3)
    with pytest.raises(QueueTimeout):
        await answer(late)
    assert b.scheduler.queued == 0
    b.executor.gate.set()
    assert await answer(runs) == [1]


async def test_who_has_waited_too_long_lets_all_others_pass(bench: Any, ask: Any, clock: Clock) -> None:
    policy = LevelPolicy(timeout_us=60_000_000, timeout_action="delay", allow_timeout_override=True)
    b = bench(Echo(), policy)
    b.executor.gate.clear()
    jobs = [b.scheduler.submit(ask(0))]
    await until(lambda: b.scheduler.running == 1)
    begun = clock()
    jobs += [b.scheduler.submit(ask(n, queue_timeout_us=10_000, deadline=begun + 60)) for n in (1, 2)]
    jobs += [b.scheduler.submit(ask(3))]
    late = b.scheduler.submit(ask(4, queue_timeout_us=10_000, deadline=begun + 0.1))
    await clock.advance(0.05)
    await clock.advance(0.1)
    with pytest.raises(DeadlineExceeded):  # delayed, and late all the same
        await answer(late)
    jobs += [b.scheduler.submit(ask(5))]
    b.executor.gate.set()
    assert [await answer(job) for job in jobs] == [[0], [1], [2], [3], [5]]
    assert b.executor.batches == [[0], [3], [5], [1], [2]]


async def test_a_deadline_after_the_patience_is_kept_while_it_runs(bench: Any, ask: Any, clock: Clock) -> None:
    b = bench(Echo(), LevelPolicy(timeout_us=50_000))
    b.executor.gate.clear()
    job = b.scheduler.submit(ask(1, deadline=clock() + 0.1))
    await until(lambda: b.scheduler.running == 1)
    await clock.advance(0.2)
    with pytest.raises(DeadlineExceeded):
        await answer(job)


@pytest.mark.parametrize("rows", [0, 1, 2])
async def test_the_highest_priority_goes_first(bench: Any, ask: Any, rows: int) -> None:
    b = bench(Echo(), *[LevelPolicy()] * 3, max_batch_size=rows, default_level=2)
    b.executor.gate.clear()
    jobs = [b.scheduler.submit(ask(0))]
    await until(lambda: b.scheduler.running == 1)
    priorities = [3, 0, 1, 2, 4, 1, 3, 2**63]
    jobs += [b.scheduler.submit(ask(n, priority=priority)) for n, priority in enumerate(priorities, 1)]
    b.executor.gate.set()
    assert [await answer(job) for job in jobs] == [[n] for n in range(9)]
    assert [n for batch in b.executor.batches for n in batch] == [0, 3, 6, 2, 4, 5, 8, 1, 7]
    assert len(b.executor.batches) == (5 if rows == 2 else 9)


async def test_the_highest_priority_goes_first_across_groups(bench: Any, ask: Any) -> None:
    b = bench(Echo(), *[LevelPolicy()] * 2, max_batch_size=4)
    b.executor.gate.clear()
    jobs = [b.scheduler.submit(ask(0))]
    await until(lambda: b.scheduler.running == 1)
    jobs += [b.scheduler.submit(ask(1, priority=2)), b.scheduler.submit(ask(2, priority=1, parameters={"t": 1}))]
    b.executor.gate.set()
    assert [await answer(job) for job in jobs] == [[0], [1], [2]]
    assert b.executor.batches == [[0], [2], [1]]


async def test_every_priority_has_a_queue_of_its_own(bench: Any, ask: Any) -> None:
    levels = (LevelPolicy(max_queue_size=2), LevelPolicy(max_queue_size=1, timeout_us=300_000))
    b = bench(Echo(), *levels, default_level=2)
    b.executor.gate.clear()
    jobs = [b.scheduler.submit(ask(0))]
    await until(lambda: b.scheduler.running == 1)
    jobs += [b.scheduler.submit(ask(n, priority=1)) for n in (1, 2)]
    late = b.scheduler.submit(ask(3))
    for priority, limit in ((1, 2), (2, 1), (0, 1)):
        with pytest.raises(QueueFull) as full:
            b.scheduler.submit(ask(9, priority=priority))
        assert full.value.limit == limit
    with pytest.raises(QueueTimeout):
        await answer(late)
    last = b.scheduler.submit(ask(4))  # its place is free again, and its patience its own
    b.executor.gate.set()
    assert [await answer(job) for job in (*jobs, last)] == [[0], [1], [2], [4]]


async def test_there_may_be_more_priorities_than_one_could_keep(bench: Any, ask: Any) -> None:
    """Triton: L0_model_queue, test_max_priority_levels."""
    own = {1: LevelPolicy(1), 2**32: LevelPolicy(2)}
    b = bench(Echo(), own_levels=own, levels=2**64 - 1, default_level=2**32)
    b.executor.gate.clear()
    jobs = [b.scheduler.submit(ask(0))]
    await until(lambda: b.scheduler.running == 1)
    jobs += [b.scheduler.submit(ask(n, priority=level)) for n, level in enumerate((0, 2**64 - 1, 2**32, 7, 1), 1)]
    for level in (0, 1):
        with pytest.raises(QueueFull):
            b.scheduler.submit(ask(9, priority=level))
    jobs[4].abandon()
    b.executor.gate.set()
    assert [await answer(job) for job in jobs if job is not jobs[4]] == [[0], [1], [2], [3], [5]]
    assert b.executor.batches == [[0], [5], [1], [3], [2]]
    assert not b.scheduler._queue._counts, "nothing is kept of levels that callers have named"


@pytest.mark.parametrize("send", [False, True])
async def test_a_request_that_does_not_fit_sends_what_waits(bench: Any, ask: Any, send: bool) -> None:
    """Triton: L0_optional_input, test_optional_mix_inputs; its dynamic batcher sends a pending batch for it."""
    b = bench(Echo(), max_batch_size=4, max_queue_delay_us=60_000_000, send_on_mismatch=send)
    jobs = []
    for n in range(3):
        jobs.append(b.scheduler.submit(ask(n) if n % 2 else ask([n])))
        sent = [[0.0], [1.0]][:n] if send else []
        await until(lambda expected=sent: b.executor.batches == expected)
        await stays(lambda expected=sent: b.executor.batches == expected)
    for job in jobs if not send else jobs[2:]:
        job.abandon()


async def test_a_preferred_size_waits_for_nobody(bench: Any, ask: Any) -> None:
    b = bench(Echo(), max_batch_size=8, max_queue_delay_us=60_000_000, preferred_batch_sizes=(2, 4))
    jobs = [b.scheduler.submit(ask(n)) for n in range(7)]
    assert [await answer(job) for job in jobs[:6]] == [[n] for n in range(6)]
    jobs.append(b.scheduler.submit(ask(7)))
    assert [await answer(job) for job in jobs[6:]] == [[6], [7]]
    assert b.executor.batches == [[0, 1, 2, 3], [4, 5], [6, 7]]


async def test_a_preferred_size_is_one_that_requests_make_exactly(bench: Any, ask: Any) -> None:
    """Triton: L0_model_queue, test_timeout_override, where 1, 2 and 2 rows go on waiting for 4 or 8."""
    b = bench(Echo(), max_batch_size=32, max_queue_delay_us=60_000_000, preferred_batch_sizes=(4, 8))
    jobs = [b.scheduler.submit(ask(*rows)) for rows in ((0,), (1, 2), (3, 4))]
    await stays(lambda: not b.executor.batches)
    jobs.append(b.scheduler.submit(ask(5, 6, 7)))
    assert [await answer(job) for job in jobs] == [[0], [1, 2], [3, 4], [5, 6, 7]]
    more = [b.scheduler.submit(ask(*rows)) for rows in ((0, 1, 2), (3, 4, 5), (6, 7, 8))]
    assert [await answer(job) for job in more] == [[0, 1, 2], [3, 4, 5], [6, 7, 8]]
    assert b.executor.batches == [[*range(8)], [*range(9)]], "as many rows as the largest size wait for no more either"


@pytest.mark.parametrize("way", ["abandoned", "late", "delayed"])
async def test_without_one_of_them_those_behind_may_make_a_preferred_size(bench: Any, ask: Any, way: str) -> None:
    """Triton: L0_model_queue, test_timeout_override and test_priority_with_policy."""
    level = LevelPolicy(timeout_action="delay" if way == "delayed" else "reject", allow_timeout_override=True)
    b = bench(Echo(), level, max_batch_size=32, max_queue_delay_us=60_000_000, preferred_batch_sizes=(4, 8))
    first = b.scheduler.submit(ask(0, queue_timeout_us=0 if way == "abandoned" else 50_000))
    jobs = [b.scheduler.submit(ask(*rows)) for rows in ((1, 2), (3, 4))]
    if way == "abandoned":
        await stays(lambda: not b.executor.batches)
        first.abandon()
    assert [await answer(job) for job in jobs] == [[1, 2], [3, 4]]
    first.abandon()


@pytest.mark.parametrize("runs_on", ["thread", "loop"])
async def test_one_bad_request_fails_alone(bench: Any, ask: Any, runs_on: Any) -> None:
    b = bench(Echo(runs_on), max_batch_size=8)
    b.executor.gate.clear()
    first = b.scheduler.submit(ask(0))
    await until(lambda: b.scheduler.running == 1)
    jobs = [b.scheduler.submit(ask(n)) for n in (1, -2, 3, 666)]
    b.executor.gate.set()
    outcomes = await asyncio.gather(*(answer(job) for job in (first, *jobs)), return_exceptions=True)
    assert outcomes[0:2] == [[0], [1]]
    assert isinstance(outcomes[2], InvalidArgument)
    assert outcomes[3] == [3]
    assert isinstance(outcomes[4], ModelFailed)
    assert await answer(b.scheduler.submit(ask(7))) == [7]  # the slot has survived


async def test_an_idle_device_waits_for_company_as_long_as_it_may(bench: Any, ask: Any, clock: Clock) -> None:
    b = bench(Echo(), max_batch_size=3, max_queue_delay_us=50_000)
    jobs = [b.scheduler.submit(ask(n)) for n in (1, 2)]
    await clock.advance(0.045)
    await stays(lambda: not b.executor.batches)
    await clock.advance(0.01)
    assert [await answer(job) for job in jobs] == [[1], [2]]
    jobs = [b.scheduler.submit(ask(n)) for n in (1, 2, 3)]  # a full batch waits for nobody
    assert [await answer(job) for job in jobs] == [[1], [2], [3]]
    assert b.executor.batches == [[1, 2], [1, 2, 3]]


async def test_a_delay_below_a_millisecond_is_kept(bench: Any, ask: Any, clock: Clock) -> None:
    b = bench(Echo(), max_batch_size=3, max_queue_delay_us=300)
    job = b.scheduler.submit(ask(1))
    await clock.advance(290e-6)
    await stays(lambda: not b.executor.batches)
    await clock.advance(20e-6)
    assert await answer(job) == [1]


async def test_what_is_measured_to_be_quick_runs_on_the_loop(bench: Any, ask: Any) -> None:
    b = bench(Echo(inline=True), max_batch_size=4)
    assert await answer(b.scheduler.submit(ask(1))) == [1]
    assert b.executor.threads == {"m-0"}
    b.admissions[(1,)].seconds = 1e-6
    assert await answer(b.scheduler.submit(ask(2))) == [2]
    assert threading.current_thread().name in b.executor.threads
    b.admissions[(1,)].seconds = 1.0  # grown slow: off the loop again
    b.executor.threads.clear()
    assert await answer(b.scheduler.submit(ask(3))) == [3]
    assert b.executor.threads == {"m-0"}


async def test_nobody_waits_for_what_is_cut_before_it_runs_inline(bench: Any, ask: Any) -> None:
    b = bench(Echo(inline=True), max_batch_size=4)
    b.admissions[1,] = Admission(1, (), 0.0)
    request = ask(1)
    request.cancellation.end()
    with pytest.raises(ModelUnavailable):
        await anext(b.scheduler.submit(request))
    assert (b.executor.batches, b.stages) == ([], ["queue"])


async def test_who_comes_while_the_loop_turns_shares_a_run(bench: Any, ask: Any) -> None:
    """The first is answered at once, the others together, and they come back together: from then on all of them are."""
    b = bench(Steady(inline=True), max_batch_size=8)
    assert await answer(b.scheduler.submit(ask(0))) == [0]

    async def keep_asking(number: int) -> None:
        for _ in range(3):
            b.admissions[(1,)].seconds = 50e-6  # quick, but not so quick that company gains nothing
            assert await answer(b.scheduler.submit(ask(number))) == [number]

    await asyncio.gather(*[keep_asking(number) for number in range(1, 9)])
    sizes = [len(batch) for batch in b.executor.batches[1:]]
    assert sizes[:2] == [1, 8]
    assert sum(sizes) == 24
    assert len(sizes) <= 5
    await steps()
    b.admissions[(1,)].seconds = 50e-6
    b.scheduler.submit(ask(9))  # nobody else comes: at once again
    assert b.executor.batches[-1] == [9]


async def test_what_costs_less_than_a_place_in_a_batch_does_not_wait_for_one(bench: Any, ask: Any) -> None:
    b = bench(Echo(inline=True), max_batch_size=8)
    assert await answer(b.scheduler.submit(ask(0))) == [0]
    for number in range(1, 5):
        b.admissions[(1,)].seconds = 1e-6
        b.scheduler.submit(ask(number))
        assert b.executor.batches[-1] == [number]


async def test_together_they_may_be_too_much_for_the_loop(bench: Any, ask: Any) -> None:
    b = bench(Echo(inline=True), max_batch_size=8)
    assert await answer(b.scheduler.submit(ask(0))) == [0]
    b.executor.threads.clear()
    b.admissions[(1,)].seconds = 1.0
    jobs = [b.scheduler.submit(ask(number)) for number in range(4)]
    b.admissions[(1,)].seconds = 50e-6  # each for itself would be quick
    assert [await answer(job) for job in jobs] == [[0], [1], [2], [3]]
    assert b.executor.threads == {"m-0"}
    assert b.executor.batches[-1] == [0, 1, 2, 3]


async def test_a_batch_does_not_make_its_requests_look_slow(bench: Any, ask: Any) -> None:
    admission = Admission(1, "key", 50e-6)
    admission.measured(400e-6, 8)
    assert admission.seconds == 50e-6
    admission.measured(40e-6, 8)  # but one alone takes no longer than all of them
    assert admission.seconds == 40e-6
    admission.measured(60e-6)
    assert admission.seconds == pytest.approx(44e-6)


def test_what_lies_near_the_bound_does_not_go_to_and_fro() -> None:
    admission = Admission(1, "key")
    ways = []
    for us in (140, 99, 120, 140, 155, 160, 120, 101, 99, 110):
        admission.measured(us * 1e-6)
        admission.seconds = us * 1e-6  # at once, not slowly
        ways.append(admission.seconds < admission.inline_below)
    assert ways == [False, True, True, True, False, False, False, False, True, True]


async def test_how_many_come_decides_whether_they_wait_for_each_other(ask: Any) -> None:
    """80 us: four who share a run save 240, their places in a batch and the hop to a thread cost 200; two save 80 of
    150.
    """
    executor = Echo(inline=True)
    meter = SchedulerMetrics(lambda stage, seconds: None, lambda rows: None)
    policy = QueuePolicy(max_batch_size=8)
    scheduler = Scheduler("m", [executor], policy, lambda request: Paced(1, "key", 80e-6), meter)
    for turn in range(60):
        for job in [scheduler.submit(ask(number)) for number in (1, 2)]:
            await answer(job)
        await asyncio.sleep(0)
        if turn == 30:  # by now it is known that no more come
            executor.batches.clear()
    assert executor.batches == [[1], [2]] * 29
    assert executor.threads == {threading.current_thread().name}
    executor.batches.clear()
    for _ in range(3):
        for job in [scheduler.submit(ask(number)) for number in (1, 2, 3, 4)]:
            await answer(job)
        await asyncio.sleep(0)
    assert [len(batch) for batch in executor.batches] == [1, 1, 1, 1, 1, 3, 1, 3]
    await scheduler.close()


@pytest.mark.parametrize("runs_on", ["thread", "loop"])
async def test_streams_arrive_complete_and_in_order(bench: Any, ask: Any, runs_on: Any) -> None:
    b = bench(Counting(runs_on))
    assert await answer(b.scheduler.submit(ask(10_000))) == list(range(10_000))
    assert await answer(b.scheduler.submit(ask(0))) == []
    job = b.scheduler.submit(ask(3))
    assert [float((await anext(job)).outputs["y"][0]) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(ModelFailed):
        await anext(job)


@pytest.mark.parametrize("runs_on", ["thread", "loop"])
async def test_a_slow_reader_pauses_its_generator_and_leaving_ends_it(bench: Any, ask: Any, runs_on: Any) -> None:
    b = bench(Counting(runs_on))
    job = b.scheduler.submit(ask(1_000_000))
    await anext(job)
    await settles(lambda: b.executor.yielded)
    assert b.executor.yielded <= STREAM_WINDOW + 3
    job.abandon()
    await until(b.executor.ended.is_set)
    assert b.executor.yielded <= STREAM_WINDOW + 4
    assert await answer(b.scheduler.submit(ask(2))) == [0, 1]


async def test_closing_finishes_what_was_accepted_and_refuses_the_rest(bench: Any, ask: Any) -> None:
    b = bench(Echo(), max_batch_size=2)
    b.executor.gate.clear()
    jobs = [b.scheduler.submit(ask(n)) for n in range(5)]
    closing = asyncio.create_task(b.scheduler.close())
    await steps()
    with pytest.raises(ModelUnavailable):
        b.scheduler.submit(ask(9))
    b.executor.gate.set()
    assert [await answer(job) for job in jobs] == [[n] for n in range(5)]
    await closing
    assert b.executor.closed


async def test_giving_up_tells_everybody(bench: Any, ask: Any) -> None:
    b = bench(Echo(), max_batch_size=1)
    b.executor.gate.clear()
    jobs = [b.scheduler.submit(ask(n)) for n in range(3)]
    await until(lambda: b.scheduler.running == 1)
    b.scheduler.give_up()
    for job in jobs:
        with pytest.raises(ModelUnavailable):
            await answer(job)
    assert b.scheduler.queued == 0


async def test_a_model_on_the_loop_has_left_a_request_before_it_gets_the_next(bench: Any, ask: Any) -> None:
    b = bench(Tidying())
    for _ in range(3):
        job = b.scheduler.submit(ask(1000))
        await anext(job)
        job.abandon()
    assert [answer.outputs["y"].item() async for answer in b.scheduler.submit(ask(2))] == [0, 1]
    assert b.executor.most == 1


async def test_cancelling_the_reader_abandons_the_request(bench: Any, ask: Any) -> None:
    b = bench(Echo(), max_batch_size=1)
    b.executor.gate.clear()
    b.scheduler.submit(ask(0))
    await until(lambda: b.scheduler.running == 1)
    job = b.scheduler.submit(ask(1))

    async def read() -> None:
        try:
            await answer(job)
        finally:
            job.abandon()

    reader = asyncio.create_task(read())
    await asyncio.sleep(0)
    reader.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reader
    assert b.scheduler.queued == 0


async def test_every_caller_gets_its_own_rows_whatever_happens_around_it(bench: Any, ask: Any) -> None:
    b = bench(Echo(), max_batch_size=7, max_queue_size=10_000)
    random = np.random.default_rng(1)

    async def caller(n: int) -> None:
        numbers = random.integers(1, 600, random.integers(1, 6)).astype(float)
        fate = random.random()
        if fate < 0.1:
            numbers[0] = -1
        job = b.scheduler.submit(ask(*numbers))
        if 0.1 < fate < 0.2:
            await asyncio.sleep(0)
            job.abandon()
            return
        try:
            assert await answer(job) == list(numbers)
        except GatewayError:
            assert fate < 0.1

    for _ in range(20):
        await asyncio.gather(*(caller(n) for n in range(50)))
    assert max(map(len, b.executor.batches)) <= 7


async def test_the_device_where_least_runs_takes_the_next_batch(ask: Any) -> None:
    """Two models on the same two devices: each goes by the other's batches, too."""
    places = ("cuda:0", "cuda:1", "cuda:0", "cuda:1")
    models = {name: [Echo() for _ in places] for name in "ab"}
    for executor in (*models["a"], *models["b"]):
        executor.gate.clear()
    quiet = SchedulerMetrics(lambda stage, seconds: None, lambda rows: None)
    schedulers = {
        name: Scheduler(name, executors, QueuePolicy(), lambda _: Admission(1, None), quiet, devices=places)
        for name, executors in models.items()
    }
    jobs: list[Any] = []

    async def start(name: str) -> int:
        """Which executor of the model has taken the next request."""
        before = {slot.executor for slot in schedulers[name]._idle}
        jobs.append(schedulers[name].submit(ask(1)))
        await until(lambda: jobs[-1].started)
        (taken,) = before - {slot.executor for slot in schedulers[name]._idle}
        return models[name].index(taken)  # type: ignore[arg-type]

    assert await start("a") == 3, "all alike: the last"
    assert await start("b") == 2, "the other device, although this model has nothing on the first"
    assert await start("b") == 3
    assert await start("b") == 0
    assert await start("a") == 2, "two run on each: the last of its own"
    models["a"][3].gate.set()
    assert await answer(jobs[0]) == [1]
    models["a"][3].gate.clear()
    assert await start("a") == 3, "it was busy last"
    for executor in (*models["a"], *models["b"]):
        executor.gate.set()
    for job in jobs[1:]:
        assert await answer(job) == [1]
    for scheduler in schedulers.values():
        await scheduler.close()


async def test_of_batches_that_take_turns_the_second_is_full(ask: Any) -> None:
    """One instance has two slots, another one: what is not full goes where nothing runs, or gains company."""
    own, shared = [Echo() for _ in range(3)], object()
    for executor, turn in zip(own, (shared, shared, object()), strict=True):
        executor.device_lock_key = turn
        executor.gate.clear()
    meter = SchedulerMetrics(lambda stage, seconds: None, lambda rows: None)
    policy = QueuePolicy(max_batch_size=3)
    scheduler = Scheduler("m", own, policy, lambda request: Admission(1, "key"), meter)
    jobs = []
    for _ in range(6):
        jobs.append(scheduler.submit(ask(1)))
        await settles(lambda: scheduler.running)
    assert scheduler.running == 5, "one on each instance, and three that have waited for each other"
    assert scheduler.queued == 1
    for executor in own:
        executor.gate.set()
    for job in jobs:
        assert await answer(job) == [1]
    assert sorted(len(batch) for executor in own for batch in executor.batches) == [1, 1, 1, 3]
    await scheduler.close()


async def test_a_full_batch_waits_at_the_door_of_a_busy_thread(bench: Any, ask: Any) -> None:
    """It is begun before the answers of the last are handed out. What is not full gains company in the queue."""
    b = bench(Echo(), max_batch_size=3)
    b.executor.gate.clear()
    first = b.scheduler.submit(ask(0))
    await until(lambda: b.scheduler.running == 1)
    jobs = [b.scheduler.submit(ask(n)) for n in (1, 2)]
    await stays(lambda: (b.scheduler.queued, b.scheduler.running) == (2, 1))
    jobs += [b.scheduler.submit(ask(n)) for n in (3, 4)]
    await until(lambda: b.scheduler.running == 4)
    assert (b.scheduler.queued, b.scheduler.running) == (1, 4), "one runs, three are at its door"
    jobs[0].abandon()
    b.executor.gate.set()
    assert [await answer(job) for job in (first, *jobs[1:])] == [[0], [2], [3], [4]]
    assert b.executor.batches == [[0], [1, 2, 3], [4]]


async def test_a_batch_at_the_door_has_not_begun(bench: Any, ask: Any, clock: Clock) -> None:
    """Its time there is time in the queue."""
    b = bench(Echo(), max_batch_size=2)
    b.executor.gate.clear()
    jobs = [b.scheduler.submit(ask(0))]
    await until(lambda: b.scheduler.running == 1)
    jobs += [b.scheduler.submit(ask(n)) for n in (1, 2)]
    await until(lambda: b.scheduler.running == 3)
    await clock.advance(0.1)
    b.executor.gate.set()
    for job in jobs:
        await answer(job)
    assert b.scheduler._metrics.counters.queue == pytest.approx(0.2), "a tenth of a second for each of the two"


@pytest.mark.parametrize(
    "policy",
    [
        {"max_batch_size": 0},
        {"max_batch_size": 1},
        {"max_batch_size": 2, "batching": False},
        {"max_batch_size": 2, "timeout_us": 1_000_000},
        {"max_batch_size": 2, "levels": 2},
    ],
)
async def test_nobody_is_at_the_door_who_could_be_overtaken_or_refused(bench: Any, ask: Any, policy: Any) -> None:
    levels = [LevelPolicy(timeout_us=policy.pop("timeout_us", 0))] * policy.pop("levels", 1)
    b = bench(Echo(), *levels, **policy)
    b.executor.gate.clear()
    jobs = [b.scheduler.submit(ask(0))]
    await until(lambda: b.scheduler.running == 1)
    jobs += [b.scheduler.submit(ask(n)) for n in (1, 2, 3)]
    await stays(lambda: (b.scheduler.queued, b.scheduler.running) == (3, 1))
    b.executor.gate.set()
    assert [await answer(job) for job in jobs] == [[0], [1], [2], [3]]


class Odd(Echo):
    """Its outcomes are made when somebody looks at them; then 13 is a surprise, and 14 is forgotten."""

    def run(self, requests: Sequence[InferRequest], observe: Observe) -> Any:
        class Lazy(Sequence[InferResponse]):
            def __len__(self) -> int:
                return len(requests)

            def __getitem__(self, index: Any) -> Any:
                x = requests[index].inputs["x"]
                if (x == 13).any():
                    raise ZeroDivisionError
                if (x == 14).any():
                    raise IndexError
                return InferResponse({"y": x})

        return (Lazy(),)


@pytest.mark.parametrize("number", [13, 14])
async def test_outcomes_that_cannot_be_made_are_errors_of_their_requests(
    bench: Any, ask: Any, number: float, caplog: pytest.LogCaptureFixture
) -> None:
    b = bench(Odd(), max_batch_size=4)
    jobs = [b.scheduler.submit(ask(1)), b.scheduler.submit(ask(number))]
    for job in jobs:
        with pytest.raises(Internal):
            await answer(job)
    assert await answer(b.scheduler.submit(ask(2))) == [2]
    assert caplog.records


async def test_a_quick_model_that_is_busy_is_not_called_a_second_time(bench: Any, ask: Any) -> None:
    """One may run on the loop, but not while the thread is in it, although there is room at the door."""
    b = bench(Steady(inline=True), max_batch_size=2)
    slow = b.scheduler.submit(ask(0))
    await answer(slow)
    b.executor.gate.clear()
    b.admissions.clear()
    jobs = [b.scheduler.submit(ask(1))]  # of unknown length: not on the loop
    await until(lambda: b.scheduler.running == 1)
    for admission in b.admissions.values():
        admission.seconds = 1e-6
    jobs += [b.scheduler.submit(ask(2)), b.scheduler.submit(ask(3))]
    await steps()
    assert b.executor.batches in ([[0]], [[0], [1]]), "an executor is called by one at a time"
    b.executor.gate.set()
    assert [await answer(job) for job in jobs] == [[1], [2], [3]]


@pytest.mark.parametrize(("seconds", "batches"), [(50e-6, [[1], [2, 3, 4], [5]]), (5e-6, [[1], [2], [3], [4], [5]])])
async def test_what_comes_together_with_a_quick_request_makes_a_batch(ask: Any, seconds: float, batches: Any) -> None:
    """Unless a run costs less than a place in a batch."""
    executor = Echo(inline=True)
    meter = SchedulerMetrics(lambda stage, seconds: None, lambda rows: None)
    policy = QueuePolicy(max_batch_size=8)
    # The clock of a busy machine must not decide: an admission of its own for each, and the test's word for its time.
    scheduler = Scheduler("m", [executor], policy, lambda request: Paced(1, "key", seconds), meter)
    jobs = [scheduler.submit(ask(number)) for number in (1, 2, 3, 4)]
    assert [await answer(job) for job in jobs] == [[1], [2], [3], [4]]
    await asyncio.sleep(0)
    assert await answer(scheduler.submit(ask(5))) == [5]
    assert executor.batches == batches
    await scheduler.close()


class Paced(Admission):
    """Never measured."""

    def measured(self, seconds: float, requests: int = 1) -> None:
        pass

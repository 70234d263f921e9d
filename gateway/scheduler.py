"""The queue in front of one loaded model, and how batches leave it.

A batch is taken when the device has room for it, not before: while a batch runs, requests pile up, and what has piled
up is the next batch. So an idle model answers at once and a busy one batches by itself, without a timer.
`max_queue_delay_us` above 0 makes an idle device wait that long for company.

Everything here happens on the event loop but for the computation: each executor has a thread of its own (a *slot*),
gets one batch at a time, and wakes the loop once per batch. A computation that has been measured to be quicker than
that hop runs on the loop itself.

Only requests of one batch key share a batch: the same input names, dtypes and trailing shapes, and the same
parameters. If a batch of several fails, each of its requests is run again alone, so that one bad request costs its
neighbours time and nothing else.

Nothing that was accepted is lost: every job ends with its last answer or with an error, also when its model is closed.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import queue
import threading
import time
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from gateway.canonical import InferRequest, InferResponse
from gateway.errors import (
    DeadlineExceeded,
    GatewayError,
    Internal,
    ModelFailed,
    ModelUnavailable,
    QueueFull,
    QueueTimeout,
)
from gateway.ports import Executor, Observe

log = logging.getLogger(__name__)

INLINE_BELOW_SECONDS: Final = 200e-6
"""A hop to a thread and back costs about this much processor time; what is quicker runs on the loop."""
STREAM_WINDOW: Final = 32
"""Answers of a decoupled model that may wait for a slow reader before its generator is paused."""


@dataclass(slots=True, eq=False)
class Admission:
    """What the model says of a request that it accepts: how many rows, with whom it may share a batch (None: with
    nobody).

    `seconds` is how long a request of exactly these shapes keeps its thread busy, first as warm-up lets guess, then
    as measured: it falls at once and rises slowly, so that one noisy measurement does not count. Admissions are
    shared by all requests of the same shapes.
    """

    rows: int
    batch_key: Hashable | None
    seconds: float = 1.0

    def measured(self, seconds: float) -> None:
        self.seconds = min(seconds, self.seconds * 1.1)

    @property
    def is_quick(self) -> bool:
        return self.seconds < INLINE_BELOW_SECONDS


@dataclass(frozen=True, slots=True)
class QueuePolicy:
    """How requests wait. `max_batch_size` 0: one request at a time, whatever its shape."""

    max_batch_size: int = 0
    max_queue_delay_us: int = 0
    max_queue_size: int = 512


@dataclass(frozen=True, slots=True)
class Meter:
    """Where the scheduler reports to: stage times, and the rows of each batch. Called on the event loop only."""

    observe: Observe
    batch: Callable[[int], None]


class Job(AsyncIterator[InferResponse]):
    """An accepted request, and the iterator of its answers.

    `on_leave` is called once if it ends while it still waits.
    """

    __slots__ = (
        "_answers",
        "_on_leave",
        "_reader",
        "_room",
        "_timer",
        "_writer",
        "admission",
        "finished",
        "request",
        "started",
        "submitted",
    )

    def __init__(
        self, request: InferRequest, admission: Admission, submitted: float, on_leave: Callable[[], None]
    ) -> None:
        self._on_leave = on_leave
        self.request = request
        self.admission = admission
        self.submitted = submitted
        self.started = False
        self.finished = False
        self._answers: deque[InferResponse | GatewayError] = deque()
        self._reader: asyncio.Future[None] | None = None
        self._writer: asyncio.Future[None] | None = None
        self._room: threading.Semaphore | None = None
        self._timer: asyncio.TimerHandle | None = None

    async def __anext__(self) -> InferResponse:
        while not self._answers:
            if self.finished:
                raise StopAsyncIteration
            self._reader = asyncio.get_running_loop().create_future()
            await self._reader
        answer = self._answers.popleft()
        self._make_room()
        if isinstance(answer, GatewayError):
            raise answer
        return answer

    def abandon(self) -> None:
        """The caller has left: what has not started never will, what runs is told by the request's lifeline."""
        self.end()
        self._answers.clear()

    def deliver(self, answer: InferResponse) -> None:
        """One answer of perhaps several. On the loop."""
        if not self.finished:
            self._answers.append(answer)
            self._wake_reader()

    def end(self, last: InferResponse | GatewayError | None = None) -> None:
        """The last answer, an error, or nothing more. On the loop; only the first end counts."""
        if self.finished:
            return
        self.finished = True
        self.request.lifeline.cut = True
        if last is not None:
            self._answers.append(last)
        if self._timer is not None:
            self._timer.cancel()
        if not self.started:
            self._on_leave()
        self._wake_reader()
        self._make_room()

    def expire_at(self, when: float, error: GatewayError, waiting_only: bool) -> None:
        """End with `error` at `when` (time.monotonic) unless it has ended by then, or has started if only waiting
        counts.
        """

        def expire() -> None:
            if not (waiting_only and self.started):
                self.end(error)

        delay = max(0.0, when - time.monotonic())
        self._timer = asyncio.get_running_loop().call_later(delay, expire)

    # Back-pressure of decoupled models: the producer takes one place per answer, the reader gives it back.

    def wait_for_room(self) -> bool:
        """In the producer's thread: until a place is free. False once nobody reads any more."""
        if self._room is None:
            self._room = threading.Semaphore(STREAM_WINDOW)
        self._room.acquire()
        return not self.finished

    async def await_room(self) -> bool:
        """The same for a producer on the loop."""
        while len(self._answers) >= STREAM_WINDOW and not self.finished:
            self._writer = asyncio.get_running_loop().create_future()
            await self._writer
        return not self.finished

    def _make_room(self) -> None:
        if self._room is not None:
            self._room.release()
        if self._writer is not None and not self._writer.done():
            self._writer.set_result(None)

    def _wake_reader(self) -> None:
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)


@dataclass(slots=True, eq=False)
class Batch:
    """Jobs that run together, and what became of them.

    `outcomes` is filled by the computation, in the order of `jobs`; `busy` are the processor seconds of its thread.
    """

    jobs: list[Job]
    outcomes: list[InferResponse | GatewayError] = field(default_factory=list)
    timings: list[tuple[str, float]] = field(default_factory=list)
    started: float = 0.0
    busy: float = 0.0

    @property
    def requests(self) -> list[InferRequest]:
        return [job.request for job in self.jobs]

    @property
    def rows(self) -> int:
        return sum(job.admission.rows for job in self.jobs)

    def observe(self, stage: str, seconds: float) -> None:
        self.timings.append((stage, seconds))


def compute(executor: Executor, batch: Batch) -> None:
    """Run a batch of a unary model, in whatever thread this is, and fill its outcomes."""
    requests = batch.requests
    try:
        (responses,) = executor.run(requests, batch.observe)
        batch.outcomes = list(responses)
    except BaseException as error:  # a model may even raise SystemExit: the thread and its jobs must outlive it
        alone = len(requests) == 1
        batch.outcomes = [_told(error)] if alone else [_alone(executor, request, batch.observe) for request in requests]


def _alone(executor: Executor, request: InferRequest, observe: Observe) -> InferResponse | GatewayError:
    if request.lifeline.cut:
        return ModelUnavailable(request.view.name)
    try:
        ((response,),) = executor.run([request], observe)
    except BaseException as error:
        return _told(error)
    return response


async def acompute(executor: Executor, batch: Batch) -> None:
    """`compute` for a model that runs on the loop."""
    requests = batch.requests
    try:
        async with contextlib.aclosing(_steps(executor, requests, batch)) as steps:
            async for responses in steps:
                batch.outcomes = list(responses)
    except BaseException as error:
        if len(requests) == 1:
            batch.outcomes = [_told(error)]
            return
        batch.outcomes = []
        for job in batch.jobs:
            alone = Batch([job], timings=batch.timings)
            await acompute(executor, alone)
            batch.outcomes += alone.outcomes


async def _steps(
    executor: Executor, requests: Sequence[InferRequest], batch: Batch
) -> AsyncGenerator[Sequence[InferResponse], None]:
    async for responses in executor.arun(requests, batch.observe):
        yield responses


def _told(error: BaseException) -> GatewayError:
    """The error that a caller may see. One of ours that is no GatewayError is a bug, and the log has it whole."""
    if isinstance(error, GatewayError):
        return error
    if not isinstance(error, Exception):
        return ModelFailed(type(error).__name__)
    log.error("a batch failed unexpectedly", exc_info=error)
    return Internal()


class Slot:
    """Room for one batch: an executor, and the thread that drives it (started with its first batch)."""

    def __init__(self, name: str, executor: Executor, loop: asyncio.AbstractEventLoop) -> None:
        self.executor = executor
        self._loop = loop
        self._name = name
        self._inbox: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._task: asyncio.Task[None] | None = None

    def start(self, batch: Batch, done: Callable[[Slot, Batch], None]) -> None:
        """Compute the batch away from the loop's current step, then call done(slot, batch) on the loop."""
        if self.executor.runs_on == "loop":
            self._task = self._loop.create_task(self._on_loop(batch, done))
            return
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name=self._name, daemon=True)
            self._thread.start()
        step = self._stream if self.executor.decoupled else self._unary
        self._inbox.put(lambda: step(batch, done))

    def close(self) -> None:
        """After its last batch: end the thread and give the executor back."""
        if self._thread is not None:
            self._inbox.put(None)
            self._thread.join()
        self.executor.close()

    def _work(self) -> None:
        while (step := self._inbox.get()) is not None:
            step()

    def _tell(self, callback: Callable[..., None], *args: object) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody is left to tell
            self._loop.call_soon_threadsafe(callback, *args)

    def _unary(self, batch: Batch, done: Callable[[Slot, Batch], None]) -> None:
        """Processor time counts for the choice between thread and loop: the clock on the wall also shows how long a
        thread waited for the interpreter.
        """
        begun = time.thread_time()
        compute(self.executor, batch)
        batch.busy = time.thread_time() - begun
        self._tell(done, self, batch)

    def _stream(self, batch: Batch, done: Callable[[Slot, Batch], None]) -> None:
        """A decoupled model: every answer is handed over as it comes, and the generator pauses while its reader is
        behind.
        """
        (job,) = batch.jobs
        steps: Iterator[Sequence[InferResponse]] = iter(())
        try:
            steps = iter(self.executor.run(batch.requests, batch.observe))
            for (response,) in steps:
                if not job.wait_for_room():
                    break
                self._tell(job.deliver, response)
        except BaseException as error:
            batch.outcomes = [_told(error)]
        finally:
            close = getattr(steps, "close", None)
            if close is not None:
                close()
        self._tell(done, self, batch)

    async def _on_loop(self, batch: Batch, done: Callable[[Slot, Batch], None]) -> None:
        if self.executor.decoupled:
            await self._astream(batch)
        else:
            await acompute(self.executor, batch)
        done(self, batch)

    async def _astream(self, batch: Batch) -> None:
        (job,) = batch.jobs
        try:
            async with contextlib.aclosing(_steps(self.executor, batch.requests, batch)) as steps:
                async for (response,) in steps:
                    if not await job.await_room():
                        break
                    job.deliver(response)
        except BaseException as error:
            batch.outcomes = [_told(error)]


class Scheduler:
    """The queue of one loaded model. Every method belongs to the event loop."""

    def __init__(
        self,
        name: str,
        executors: Sequence[Executor],
        policy: QueuePolicy,
        admit: Callable[[InferRequest], Admission],
        meter: Meter,
    ) -> None:
        self._name = name
        self._policy = policy
        self._admit = admit
        self._meter = meter
        self._loop = asyncio.get_running_loop()
        self._slots = [Slot(f"{name}-{n}", executor, self._loop) for n, executor in enumerate(executors)]
        self._idle = list(self._slots)
        self._groups: dict[Hashable, deque[Job]] = {}
        self._queued = 0
        self._left = 0
        self._running = 0
        self._kick: asyncio.Handle | None = None
        self._closing = False
        self._drained = asyncio.Event()

    @property
    def queued(self) -> int:
        """Jobs that wait."""
        return self._queued

    @property
    def running(self) -> int:
        """Jobs in batches that run."""
        return self._running

    def submit(self, request: InferRequest) -> Job:
        """Accept a request: its answers come from the job.

        Raises QueueFull, DeadlineExceeded, ModelUnavailable, or what admission says.
        """
        admission = self._admit(request)
        if self._closing:
            raise ModelUnavailable(self._name)
        now = time.monotonic()
        if request.deadline is not None and request.deadline <= now:
            raise DeadlineExceeded(self._name)
        job = Job(request, admission, now, self._note_left)
        if admission.is_quick and not self._queued and not self._policy.max_queue_delay_us and self._may_run_inline():
            job.started = True
            self._answer_inline(job)
            return job
        if self._queued >= self._policy.max_queue_size:
            raise QueueFull(self._name, self._policy.max_queue_size)
        self._enqueue(job)
        return job

    async def close(self) -> None:
        """Refuse new requests, finish what was accepted, then give the executors back."""
        self._closing = True
        self._schedule(0.0)
        if self._queued or self._running:
            await self._drained.wait()
        for slot in self._slots:
            await self._loop.run_in_executor(None, slot.close)

    # ---------------------------------------------------------------------------------------------------------- inline

    def _may_run_inline(self) -> bool:
        return bool(self._idle) and self._idle[-1].executor.inline

    def _answer_inline(self, job: Job) -> None:
        """The short way of a quick request to an idle model: no batch, no timers, no detour."""
        begun = time.perf_counter()
        outcome = _alone(self._idle[-1].executor, job.request, self._meter.observe)
        job.admission.measured(time.perf_counter() - begun)
        self._meter.observe("queue", 0.0)
        self._meter.batch(job.admission.rows)
        job.end(outcome)

    def _run_inline(self, batch: Batch) -> None:
        begun = time.perf_counter()
        compute(self._idle[-1].executor, batch)
        batch.busy = time.perf_counter() - begun
        self._settle(batch)

    # --------------------------------------------------------------------------------------------------------- waiting

    def _enqueue(self, job: Job) -> None:
        key: Hashable = job.admission.batch_key  # None: shares a batch with nobody, but one group with its like
        if key is not None and job.request.parameters:
            key = (key, tuple((name, type(value), value) for name, value in sorted(job.request.parameters.items())))
        self._groups.setdefault(key, deque()).append(job)
        self._queued += 1
        self._set_timer(job)
        if self._idle:
            self._schedule(0.0)

    def _set_timer(self, job: Job) -> None:
        """One timer per job at most: whichever of its two limits comes first.

        The deadline counts while it runs, too.
        """
        request = job.request
        patience = job.submitted + request.queue_timeout_us / 1e6 if request.queue_timeout_us else None
        if patience is not None and (request.deadline is None or patience < request.deadline):
            job.expire_at(patience, QueueTimeout(self._name), waiting_only=True)
        elif request.deadline is not None:
            job.expire_at(request.deadline, DeadlineExceeded(self._name), waiting_only=False)

    def _schedule(self, delay: float) -> None:
        """Look for a batch after `delay` seconds; at most one such look is pending."""
        if self._kick is not None:
            if delay:
                return
            self._kick.cancel()
        # Timers of both event loops tick in milliseconds: a shorter wait is a look at the queue per turn of the loop.
        self._kick = (
            self._loop.call_later(delay, self._dispatch) if delay > 1e-3 else self._loop.call_soon(self._dispatch)
        )

    def _dispatch(self) -> None:
        self._kick = None
        while self._idle:
            batch = self._next_batch()
            if batch is None:
                break
            self._start(batch)
        self._note_drained()

    def _next_batch(self) -> Batch | None:
        """The ripe group whose first job has waited longest, as far as it fits into one batch."""
        now = time.monotonic()
        best: deque[Job] | None = None
        soonest = None
        for key, group in list(self._groups.items()):
            self._drop_finished(group)
            if not group:
                del self._groups[key]
                continue
            ripe_in = self._ripe_in(group, now)
            if ripe_in > 0:
                soonest = ripe_in if soonest is None else min(soonest, ripe_in)
            elif best is None or group[0].submitted < best[0].submitted:
                best = group
        if best is not None:
            return self._take(best)
        if soonest is not None:
            self._schedule(soonest)
        return None

    def _note_left(self) -> None:
        """A waiting job was abandoned or is late.

        Its place in the group is cleared when its turn comes, or when many such have gathered.
        """
        self._queued -= 1
        self._left += 1
        if self._left > self._policy.max_queue_size:
            for key, group in list(self._groups.items()):
                self._groups[key] = deque(job for job in group if not job.finished)
            self._left = 0
        self._note_drained()

    def _drop_finished(self, group: deque[Job]) -> None:
        """Abandoned and late jobs leave before they cost a place in a batch."""
        while group and group[0].finished:
            group.popleft()
            self._left -= 1

    def _ripe_in(self, group: deque[Job], now: float) -> float:
        """Seconds until this group may go: 0 when its first job has waited long enough or it fills a batch."""
        delay = self._policy.max_queue_delay_us / 1e6
        if not delay or self._closing or group[0].admission.batch_key is None:
            return 0.0
        waited = now - group[0].submitted
        if (
            waited >= delay
            or sum(job.admission.rows for job in group if not job.finished) >= self._policy.max_batch_size
        ):
            return 0.0
        return delay - waited

    def _take(self, group: deque[Job]) -> Batch:
        jobs: list[Job] = []
        room = max(self._policy.max_batch_size, group[0].admission.rows)
        while group and (group[0].finished or group[0].admission.rows <= room):
            job = group.popleft()
            if job.finished:
                self._left -= 1
                continue
            self._queued -= 1
            room -= job.admission.rows
            jobs.append(job)
            if job.admission.batch_key is None:
                break
        return Batch(jobs)

    # --------------------------------------------------------------------------------------------------------- running

    def _start(self, batch: Batch) -> None:
        """On the loop if all of it is quick, else in the slot's thread."""
        batch.started = time.monotonic()
        for job in batch.jobs:
            job.started = True
        if self._may_run_inline() and all(job.admission.is_quick for job in batch.jobs):
            self._run_inline(batch)
            return
        self._running += len(batch.jobs)
        self._idle.pop().start(batch, self._done)

    def _done(self, slot: Slot, batch: Batch) -> None:
        self._running -= len(batch.jobs)
        self._idle.append(slot)
        self._settle(batch)
        self._dispatch()

    def _settle(self, batch: Batch) -> None:
        """Hand every job its outcome, and the meter what was measured."""
        admission = batch.jobs[0].admission
        if batch.busy and all(job.admission is admission for job in batch.jobs):
            admission.measured(batch.busy)  # of several, it is no less than one alone would take
        observe = self._meter.observe
        for stage, seconds in batch.timings:
            observe(stage, seconds)
        self._meter.batch(batch.rows)
        for job in batch.jobs:
            observe("queue", batch.started - job.submitted)
        if not batch.outcomes:
            for job in batch.jobs:
                job.end()
            return
        for job, outcome in zip(batch.jobs, batch.outcomes, strict=True):
            job.end(outcome)

    def _note_drained(self) -> None:
        if self._closing and not self._queued and not self._running:
            self._drained.set()

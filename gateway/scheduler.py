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
import time
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

from gateway.canonical import InferRequest
from gateway.errors import DeadlineExceeded, ModelUnavailable, QueueFull, QueueTimeout
from gateway.job import Admission, Job
from gateway.meter import Meter
from gateway.ports import Executor
from gateway.slot import Batch, Slot, compute, run_alone


@dataclass(frozen=True, slots=True)
class QueuePolicy:
    """How requests wait. `max_batch_size` 0: one request at a time, whatever its shape."""

    max_batch_size: int = 0
    max_queue_delay_us: int = 0
    max_queue_size: int = 512


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
        self._active: set[Batch] = set()
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
        return sum(len(batch.jobs) for batch in self._active)

    def submit(self, request: InferRequest) -> Job:
        """Accept a request: its answers come from the job.

        Raises QueueFull, DeadlineExceeded, ModelUnavailable, or what admission says.
        """
        admission = self._admit(request)
        if self._closing:
            raise self._meter.refused(ModelUnavailable(self._name))
        now = time.monotonic()
        if request.deadline is not None and request.deadline <= now:
            raise self._meter.refused(DeadlineExceeded(self._name))
        job = Job(request, admission, now, self._note_left, self._meter.failed)
        if admission.is_quick and not self._queued and not self._policy.max_queue_delay_us and self._may_run_inline():
            job.started = True
            self._answer_inline(job)
            return job
        if self._queued >= self._policy.max_queue_size:
            raise self._meter.refused(QueueFull(self._name, self._policy.max_queue_size))
        self._enqueue(job)
        return job

    async def close(self) -> None:
        """Refuse new requests, finish what was accepted, then give the executors back."""
        self._closing = True
        self._schedule(0.0)
        if self._queued or self._active:
            await self._drained.wait()
        for slot in self._slots:
            await self._loop.run_in_executor(None, slot.close)

    def give_up(self) -> None:
        """Time is over: everybody who still waits for an answer learns that there will be none."""
        waiting = [job for group in self._groups.values() for job in group]
        for job in [*waiting, *(job for batch in self._active for job in batch.jobs)]:
            job.end(ModelUnavailable(self._name))

    # ---------------------------------------------------------------------------------------------------------- inline

    def _may_run_inline(self) -> bool:
        return bool(self._idle) and self._idle[-1].executor.inline

    def _answer_inline(self, job: Job) -> None:
        """The short way of a quick request to an idle model: no batch, no timers, no detour."""
        timings: list[tuple[str, float]] = []

        def observe(stage: str, seconds: float) -> None:
            timings.append((stage, seconds))

        begun = time.perf_counter()
        outcome = run_alone(self._idle[-1].executor, job.request, observe)
        seconds = time.perf_counter() - begun
        job.admission.measured(seconds)
        self._meter.ran_inline(job, outcome, seconds, timings)
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
        batch.on_answer = self._meter.answered
        for job in batch.jobs:
            job.started = True
        if self._may_run_inline() and all(job.admission.is_quick for job in batch.jobs):
            self._run_inline(batch)
            return
        self._active.add(batch)
        self._idle.pop().start(batch, self._done)

    def _done(self, slot: Slot, batch: Batch) -> None:
        self._active.discard(batch)
        self._idle.append(slot)
        self._settle(batch)
        self._dispatch()

    def _settle(self, batch: Batch) -> None:
        """Hand every job its outcome, and the meter what was measured."""
        admission = batch.jobs[0].admission
        if batch.busy and all(job.admission is admission for job in batch.jobs):
            admission.measured(batch.busy)  # of several, it is no less than one alone would take
        self._meter.ran(batch, decoupled=self._slots[0].executor.decoupled)
        if not batch.outcomes:
            for job in batch.jobs:
                job.end()
            return
        for job, outcome in zip(batch.jobs, batch.outcomes, strict=True):
            job.end(outcome)

    def _note_drained(self) -> None:
        if self._closing and not self._queued and not self._active:
            self._drained.set()

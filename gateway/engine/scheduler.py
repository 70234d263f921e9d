"""The queue in front of one loaded model, and how batches leave it.

Jobs wait in a *line*, which knows who may go next: `waiting` for ordinary models, `sequences` for those whose requests
build on one another. What is here is common to both.

A batch is taken when the device has room for it, not before: while a batch runs, requests pile up, and what has piled
up is the next batch. So an idle model answers at once and a busy one batches by itself, without a timer.
`max_queue_delay_us` above 0 makes an idle device wait that long for company.

Everything here happens on the event loop but for the computation: each executor has a thread of its own (a *slot*),
gets one batch at a time, and wakes the loop once per batch. A computation that has been measured to be quicker than
that hop runs on the loop itself.

A model may have instances on several devices, each in slots of its own: a batch goes to the device where least runs.
One instance may have several slots whose batches take turns; the second is for full batches, whose copies it hides.

If a batch of several fails, each of its requests is run again alone, so that one bad request costs its neighbours
time and nothing else.

Nothing that was accepted is lost: every job ends with its last answer or with an error, also when its model is closed.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Final

from tensorgate.gateway.contract.canonical import InferRequest
from tensorgate.gateway.contract.errors import DeadlineExceeded, DeviceLost, ModelUnavailable, QueueFull, QueueTimeout
from tensorgate.gateway.contract.execution import Executor
from tensorgate.gateway.contract.shortcuts import is_taken
from tensorgate.gateway.engine.inline_dispatch import InlineCall
from tensorgate.gateway.engine.pending_request import Admission, CompletedResponse, PendingRequest, are_quick
from tensorgate.gateway.engine.queue import Line, QueuePolicy, RequestQueue
from tensorgate.gateway.engine.scheduler_metrics import SchedulerMetrics
from tensorgate.gateway.engine.sequence_controls import SequencePolicy
from tensorgate.gateway.engine.sequences import Sequences
from tensorgate.gateway.engine.worker import Batch, Slot, compute, run_alone

_RUNS_INLINE: Final = is_taken("inline_runs")
_running: Final[Counter[str]] = Counter()
"""How many batches run on each device now, of all models: devices belong to the process."""


class Scheduler:
    """The queue of one loaded model. Every method belongs to the event loop."""

    def __init__(
        self,
        name: str,
        executors: Sequence[Executor],
        policy: QueuePolicy,
        admit: Callable[[InferRequest], Admission],
        meter: SchedulerMetrics,
        sequences: SequencePolicy | None = None,
        devices: Sequence[str] = (),
    ) -> None:
        self._name = name
        self._policy = policy
        self._admit = admit
        self._meter = meter
        self._loop = asyncio.get_running_loop()
        places = devices or ("",) * len(executors)
        self._slots = [
            Slot(f"{name}-{n}", executor, self._loop, place)
            for n, (executor, place) in enumerate(zip(executors, places, strict=True))
        ]
        if sequences is None and policy.may_go_early:
            self._slots = [door for slot in self._slots if (door := slot.door()) is not None] + self._slots
        self._idle = list(self._slots)
        turns = [slot.device_lock_key for slot in self._slots]
        self._takes_turns = len(set(turns)) < len(turns)
        self._has_one_choice = len(set(devices)) < 2 and not self._takes_turns
        self._line: Line = (
            RequestQueue(name, policy)
            if sequences is None
            else Sequences(name, policy, sequences, self._slots, lambda: self._schedule(0.0))
        )
        self._on_leave, self._on_failure = self._note_left, meter.failed
        self._has_timeouts = policy.has_timeouts
        self._has_short_way = sequences is None and not policy.max_queue_delay_us and _RUNS_INLINE
        self._dispatches_inline = (
            sequences is None and executors[0].arun_alone is not None and is_taken("inline_dispatch")
        )
        self._passing: set[InlineCall] = set()
        self._active: set[Batch] = set()
        self._look: asyncio.Handle | None = None
        self._look_waits = False
        self._has_company = False
        self._closing = False
        self._drained = asyncio.Event()

    @property
    def queued(self) -> int:
        """Jobs that wait."""
        return self._line.queued

    @property
    def running(self) -> int:
        """Jobs in batches that run, and requests that run without."""
        return sum(len(batch.jobs) for batch in self._active) + len(self._passing)

    def submit(
        self, request: InferRequest, *, awaited: bool = False
    ) -> PendingRequest | CompletedResponse | InlineCall:
        """Accept a request: its answers come from the job, or are there already, or `awaited` at once.

        Raises QueueFull, DeadlineExceeded, ModelUnavailable, what admission says, or what a sequence may not do.
        """
        admission = self._admit(request)
        if self._closing:
            raise self._meter.refused(ModelUnavailable(self._name))
        now = time.monotonic()
        if request.deadline is not None and request.deadline <= now:
            raise self._meter.refused(DeadlineExceeded(self._name))
        if self._idle and not self._line.queued:
            if self._has_short_way and admission.is_quick:
                slot = self._choice()[-1] if self._active else self._idle[-1]
                executor = slot.executor
                if (
                    executor.inline
                    and not slot.contention
                    and not (self._has_company and admission.benefits_from_batching)
                ):
                    return self._answer_inline(executor, request, admission, now)
            elif awaited and self._dispatches_inline and admission.batch_key is None:
                return self._pass_on(request, admission, now)
        job = PendingRequest(request, admission, now, self._on_leave, self._on_failure)
        try:
            self._line.add(job)
        except QueueFull as error:
            raise self._meter.refused(error) from None
        if self._has_timeouts or request.deadline is not None:
            self._set_timer(job)
        if self._idle:
            self._schedule(0.0)
        return job

    async def close(self) -> None:
        """Refuse new requests, finish what was accepted, then give the executors back."""
        self._closing = True
        self._line.close()
        self._schedule(0.0)
        if self._line.queued or self._active or self._passing:
            await self._drained.wait()
        for slot in self._slots:
            await self._loop.run_in_executor(None, slot.close)

    def give_up(self, why: type[ModelUnavailable] | type[DeviceLost] = ModelUnavailable) -> None:
        """Time is over: everybody who still waits for an answer learns that there will be none."""
        waiting = [*self._line.jobs()]  # from behind: a sequence that loses its first request refuses those after it
        for job in [*reversed(waiting), *(job for batch in self._active for job in batch.jobs)]:
            job.end(why(self._name))
        for passing in [*self._passing]:
            passing.end(why(self._name))

    # ---------------------------------------------------------------------------------------------------------- inline

    def _answer_inline(
        self, executor: Executor, request: InferRequest, admission: Admission, now: float
    ) -> CompletedResponse:
        """The short way of a quick request to an idle model: no job, no batch, no timers."""
        timings: list[tuple[str, float]] = []

        def observe(stage: str, seconds: float) -> None:
            timings.append((stage, seconds))

        begun = time.perf_counter()
        outcome = run_alone(executor, request, observe)
        seconds = time.perf_counter() - begun
        request.cancellation.end()
        admission.measured(seconds)
        self._meter.ran_inline(request, admission.rows, outcome, (now, seconds), timings)
        if admission.benefits_from_batching:
            self._expect_company()
        return CompletedResponse(outcome)

    def _pass_on(self, request: InferRequest, admission: Admission, now: float) -> InlineCall:
        slot = self._choice()[-1]
        self._take_slot(slot)
        passing = InlineCall(slot, request, admission, now, self._meter, self._passed)
        self._passing.add(passing)
        return passing

    def _passed(self, passing: InlineCall) -> None:
        self._passing.discard(passing)
        self._idle.append(passing.slot)
        _running[passing.slot.device] -= 1
        if self._line.queued:
            self._dispatch()
        self._note_drained()

    def _expect_company(self) -> None:
        """Whoever else comes in this turn of the loop waits for its end: they run together."""
        if not self._has_company:
            self._has_company = True
            self._loop.call_soon(self._expect_nobody)

    def _expect_nobody(self) -> None:
        self._has_company = False

    def _run_inline(self, slot: Slot, batch: Batch) -> None:
        begun = time.perf_counter()
        compute(slot.executor, batch)
        batch.busy = time.perf_counter() - begun
        self._line.done(batch)
        self._settle(batch)

    # --------------------------------------------------------------------------------------------------------- waiting

    def _set_timer(self, job: PendingRequest) -> None:
        """One timer per job at most: whichever of its two limits comes first.

        The deadline counts while it runs, too.
        """
        request = job.request
        level = self._policy.levels[job.rank // 2]
        patience_us = level.patience_us(request)
        until = job.submitted + patience_us / 1e6
        if patience_us and (request.deadline is None or until < request.deadline):
            job.call_at(until, self._delay if level.timeout_action == "delay" else self._refuse, job)
        else:
            self._set_deadline(job)

    def _set_deadline(self, job: PendingRequest) -> None:
        if job.request.deadline is not None:
            job.call_at(job.request.deadline, job.end, DeadlineExceeded(self._name))

    def _refuse(self, job: PendingRequest) -> None:
        """It has waited too long, or has been lucky in time."""
        if job.started:
            self._set_deadline(job)
        else:
            job.end(QueueTimeout(self._name))

    def _delay(self, job: PendingRequest) -> None:
        if not job.started:
            self._line.delay(job)
        self._set_deadline(job)

    def _schedule(self, delay: float) -> None:
        """Look for a batch after `delay` seconds; at most one such look is pending."""
        if self._look is not None:
            if delay or not self._look_waits:
                return
            self._look.cancel()
        # Timers of both event loops tick in milliseconds: a shorter wait is a look at the queue per turn of the loop.
        self._look_waits = delay > 1e-3
        self._look = (
            self._loop.call_later(delay, self._dispatch) if self._look_waits else self._loop.call_soon(self._dispatch)
        )

    def _dispatch(self) -> None:
        self._look = None
        while self._idle:
            found = self._line.next_batch(self._choice())
            if found is None:
                if self._line.next_wakeup_s is not None:
                    self._schedule(self._line.next_wakeup_s)
                break
            self._start(*found)
        self._note_drained()

    def _choice(self) -> Sequence[Slot]:
        """The idle slots, the best one last: one that need not take turns, on the device where least runs, the one that
        was busy last, whose caches are warm.
        """
        if self._has_one_choice:
            return self._idle
        return sorted(self._idle, key=lambda slot: (-slot.contention, -_running[slot.device]))

    def _take_slot(self, slot: Slot) -> None:
        """It is idle no more."""
        if self._idle[-1] is slot:
            self._idle.pop()
        else:
            self._idle.remove(slot)
        _running[slot.device] += 1

    def _note_turn(self, ran: Slot, *, busy: bool) -> None:
        """Tell the slots that take turns with one that it begins or ends."""
        if self._takes_turns:
            for slot in self._slots:
                if slot is not ran and slot.device_lock_key is ran.device_lock_key:
                    slot.contention += 1 if busy else -1

    def _note_left(self, job: PendingRequest) -> None:
        """A waiting job was abandoned or is late."""
        self._line.left(job)
        self._note_drained()

    # --------------------------------------------------------------------------------------------------------- running

    def _start(self, slot: Slot, batch: Batch) -> None:
        """On the loop if all of it is quick, else in the slot's thread."""
        batch.started = time.monotonic()
        batch.on_answer = self._meter.answered
        for job in batch.jobs:
            job.started = True
        if (
            _RUNS_INLINE
            and slot.executor.inline
            and not slot.contention
            and are_quick([job.admission for job in batch.jobs])
        ):
            self._run_inline(slot, batch)
            return
        self._active.add(batch)
        self._take_slot(slot)
        self._note_turn(slot, busy=True)
        slot.start(batch, self._done)

    def _done(self, slot: Slot, batch: Batch) -> None:
        """What waits goes first: the device has nothing to do, and answers take a moment to hand out."""
        self._active.discard(batch)
        self._idle.append(slot)
        _running[slot.device] -= 1
        self._note_turn(slot, busy=False)
        self._line.done(batch)
        self._dispatch()
        self._settle(batch)

    def _settle(self, batch: Batch) -> None:
        """Hand every job its outcome, and the meter what was measured."""
        outcomes = batch.settled()
        admission = batch.jobs[0].admission
        if batch.busy and all(job.admission is admission for job in batch.jobs):
            admission.measured(batch.busy, len(batch.jobs))
        self._meter.ran(batch, decoupled=self._slots[0].executor.decoupled)
        if not outcomes:
            for job in batch.jobs:
                job.end()
        else:
            for job, outcome in zip(batch.jobs, outcomes, strict=True):
                job.end(outcome)
        if len(batch.jobs) > 1:  # callers who got their answers together ask again together
            self._expect_company()

    def _note_drained(self) -> None:
        if self._closing and not (self._line.queued or self._active or self._passing):
            self._drained.set()

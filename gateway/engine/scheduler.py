"""The queue in front of one loaded model, and how batches leave it.

Requests wait in a queue, which knows who may go next: `queue` for ordinary models, `sequences` for those whose
requests build on one another. What is here is common to both.

A batch is taken when the device has room for it, not before: while a batch runs, requests pile up, and what has piled
up is the next batch. So an idle model answers at once and a busy one batches by itself, without a timer.
`max_queue_delay_us` above 0 makes an idle device wait that long for company.

Everything here happens on the event loop but for the computation: each executor has a thread of its own (a *worker*),
gets one batch at a time, and wakes the loop once per batch. A computation that has been measured to be quicker than
that hop runs on the loop itself.

A model may have instances on several devices, each in workers of its own: a batch goes to the device where least runs.
One instance may have several workers whose batches take turns; the second is for full batches, whose copies it hides.

If a batch of several fails, each of its requests is run again alone, so that one bad request costs its neighbours
time and nothing else.

Nothing accepted is lost: every request ends with its last answer or with an error, also when a model is closed.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Final, cast

from tensorgate.gateway.contract.canonical import InferRequest, InferResponse
from tensorgate.gateway.contract.errors import (
    DeadlineExceeded,
    DeviceLost,
    GatewayError,
    ModelUnavailable,
    QueueFull,
    QueueTimeout,
    WouldBeLate,
)
from tensorgate.gateway.contract.execution import Executor
from tensorgate.gateway.contract.shortcuts import is_taken
from tensorgate.gateway.engine.admission import BATCH_COST_SECONDS, Admission, are_quick
from tensorgate.gateway.engine.goal_queue import GoalQueue
from tensorgate.gateway.engine.inline_dispatch import InlineCall
from tensorgate.gateway.engine.pending_request import CompletedResponse, PendingRequest
from tensorgate.gateway.engine.queue import QueuePolicy, RequestQueue, SchedulerQueue
from tensorgate.gateway.engine.scheduler_metrics import SchedulerMetrics
from tensorgate.gateway.engine.sequence_controls import SequencePolicy
from tensorgate.gateway.engine.sequences import Sequences
from tensorgate.gateway.engine.token_budget import TokenBudget
from tensorgate.gateway.engine.worker import Batch, Worker, compute, run_alone

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
        metrics: SchedulerMetrics,
        sequences: SequencePolicy | None = None,
        devices: Sequence[str] = (),
        budget: TokenBudget | None = None,
    ) -> None:
        self._name = name
        self._policy = policy
        self._admit = admit
        self._metrics = metrics
        self._loop = asyncio.get_running_loop()
        places = devices or ("",) * len(executors)
        self._workers = [
            Worker(f"{name}-{n}", executor, self._loop, place)
            for n, (executor, place) in enumerate(zip(executors, places, strict=True))
        ]
        if sequences is None and policy.may_go_early:
            self._workers = [
                standby for worker in self._workers if (standby := worker.standby()) is not None
            ] + self._workers
        self._idle = list(self._workers)
        lock_keys = [worker.device_lock_key for worker in self._workers]
        self._has_contention = len(set(lock_keys)) < len(lock_keys)
        self._has_one_choice = len(set(devices)) < 2 and not self._has_contention
        self._queue = self._make_queue(policy, sequences, budget)
        self.goal_queue = self._queue if isinstance(self._queue, GoalQueue) else None
        """What it has learned of batches, where there is a goal."""
        self._on_leave, self._on_failure, self._on_answer = self._note_left, metrics.failed, metrics.answered
        self._has_timeouts = policy.has_timeouts
        is_free = sequences is None and budget is None and policy.goal is None
        """Whether a request may run without having been in the queue."""
        self._has_short_way = is_free and not policy.max_queue_delay_us and _RUNS_INLINE
        self._dispatches_inline = is_free and executors[0].arun_alone is not None and is_taken("inline_dispatch")
        self._inline_calls: set[InlineCall] = set()
        self._active: set[Batch] = set()
        self._wakeup: asyncio.Handle | None = None
        self._wakeup_is_timer = False
        self._is_turn_open = False
        self._comes_from_batch = False
        """Callers of a batch have just got their answers: even the first who comes in this turn is not alone."""
        self._in_turn = 0
        """How many quick requests have come in this turn of the loop that may share a run."""
        self._company: float = policy.max_batch_size
        """How many come in one, lately."""
        self._closing = False
        self._drained = asyncio.Event()

    def _make_queue(
        self, policy: QueuePolicy, sequences: SequencePolicy | None, budget: TokenBudget | None
    ) -> SchedulerQueue:
        if sequences is None and policy.goal is not None:
            side_by_side = {worker.device_lock_key: worker.device for worker in self._workers}
            call_soon = self._loop.call_soon
            return GoalQueue(self._name, policy, policy.goal, [*side_by_side.values()], budget, call_soon)
        if sequences is None:
            return RequestQueue(self._name, policy, budget)
        return Sequences(self._name, policy, sequences, self._workers, lambda: self._schedule(0.0))

    @property
    def queued(self) -> int:
        """Requests that wait."""
        return self._queue.queued

    @property
    def queued_tokens(self) -> int | None:
        """Tokens of the texts that wait, padding within a request included; None where they are not counted."""
        return self._queue.queued_tokens

    @property
    def running(self) -> int:
        """Requests in batches that run, and requests that run without."""
        return sum(len(batch.members) for batch in self._active) + len(self._inline_calls)

    @property
    def is_quiet(self) -> bool:
        """Whether nothing waits, runs, or is to go on: a model that leaves now costs nobody anything."""
        return not (self._queue.queued or self._active or self._inline_calls or self._queue.alive)

    def submit(self, request: InferRequest) -> PendingRequest | CompletedResponse:
        """Accept a request: it is answered at once, or queued. Raises what `answer` does."""
        found = self.answer(request, awaited=False)
        if isinstance(found, (InferResponse, GatewayError)):
            return CompletedResponse(found)
        return cast("PendingRequest", found)

    def answer(
        self, request: InferRequest, *, awaited: bool = True
    ) -> InferResponse | GatewayError | PendingRequest | InlineCall:
        """Accept a request: it is answered at once, or queued, or, `awaited`, run by whoever waits for the answer.

        Raises QueueFull, WouldBeLate, DeadlineExceeded, ModelUnavailable, what admission says, or what a sequence may
        not do.
        """
        admission = self._admit(request)
        if self._closing:
            raise self._metrics.refused(ModelUnavailable(self._name))
        now = time.monotonic()
        if request.deadline is not None and request.deadline <= now:
            raise self._metrics.refused(DeadlineExceeded(self._name))
        if self._idle and not self._queue.queued:
            if self._has_short_way and admission.seconds < admission.inline_below:
                worker = self._choice()[-1] if self._active else self._idle[-1]
                executor = worker.executor
                if (
                    executor.inline
                    and not worker.contention
                    and (admission.seconds < BATCH_COST_SECONDS or not self._waits_for_company(admission))
                ):
                    return self._answer_inline(executor, request, admission, now)
            elif awaited and self._dispatches_inline and admission.batch_key is None:
                return self._dispatch_inline(request, admission, now)
        pending = PendingRequest(request, admission, now, self._on_leave, self._on_failure)
        try:
            self._queue.add(pending)
        except (QueueFull, WouldBeLate) as error:
            raise self._metrics.refused(error) from None
        if self._has_timeouts or request.deadline is not None:
            self._set_timer(pending)
        if self._idle:
            self._schedule(0.0)
        return pending

    async def close(self) -> None:
        """Refuse new requests, finish what was accepted, then give the executors back."""
        self._closing = True
        self._queue.close()
        self._schedule(0.0)
        if self._queue.queued or self._active or self._inline_calls:
            await self._drained.wait()
        for worker in self._workers:
            await self._loop.run_in_executor(None, worker.close)

    def give_up(self, why: type[ModelUnavailable] | type[DeviceLost] = ModelUnavailable) -> None:
        """Time is over: everybody who still waits for an answer learns that there will be none."""
        waiting = [*self._queue.waiting()]  # from behind: a sequence without its first request refuses the others
        for pending in [*reversed(waiting), *(pending for batch in self._active for pending in batch.members)]:
            pending.end(why(self._name))
        for inline_call in [*self._inline_calls]:
            inline_call.end(why(self._name))

    # ---------------------------------------------------------------------------------------------------------- inline

    def _answer_inline(
        self, executor: Executor, request: InferRequest, admission: Admission, now: float
    ) -> InferResponse | GatewayError:
        """Run a quick request on an idle model: nothing waits, there is no batch and no timer, and nobody to be told
        that it is over.
        """
        timings: list[tuple[str, float]] = []
        outcome = run_alone(executor, request, timings.append)
        seconds = time.monotonic() - now
        admission.measured(seconds)
        self._metrics.ran_inline(request, admission.rows, outcome, (now, seconds), timings)
        return outcome

    def _dispatch_inline(self, request: InferRequest, admission: Admission, now: float) -> InlineCall:
        worker = self._choice()[-1]
        self._take_worker(worker)
        inline_call = InlineCall(worker, request, admission, now, self._metrics, self._end_inline)
        self._inline_calls.add(inline_call)
        return inline_call

    def _end_inline(self, inline_call: InlineCall) -> None:
        self._inline_calls.discard(inline_call)
        self._idle.append(inline_call.worker)
        _running[inline_call.worker.device] -= 1
        if self._queue.queued:
            self._dispatch()
        self._note_drained()

    def _waits_for_company(self, admission: Admission) -> bool:
        """Whether a quick request waits for the end of this turn of the loop, to share a run with others: the first of
        a turn does not, and the rest do if that is better with as many as come in a turn.
        """
        is_first = not (self._in_turn or self._comes_from_batch)
        self._begin_turn()
        self._in_turn += 1
        return not is_first and admission.benefits_from(self._company)

    def _begin_turn(self) -> None:
        if not self._is_turn_open:
            self._is_turn_open = True
            self._loop.call_soon(self._end_turn)

    def _end_turn(self) -> None:
        """As many are expected in the next turn, or some fewer, if they have been more until now: so that a model does
        not go to and fro between alone and together.
        """
        if self._in_turn:
            self._company = max(self._in_turn, (15 * self._company + self._in_turn) / 16)
        self._in_turn = 0
        self._is_turn_open = self._comes_from_batch = False

    def _run_inline(self, worker: Worker, batch: Batch) -> None:
        begun = time.perf_counter()
        compute(worker.executor, batch)
        batch.busy = time.perf_counter() - begun
        self._queue.done(batch)
        self._settle(batch)

    # --------------------------------------------------------------------------------------------------------- waiting

    def _set_timer(self, pending: PendingRequest) -> None:
        """One timer per request at most: whichever of its two limits comes first.

        The deadline counts while it runs, too.
        """
        request, policy = pending.request, self._policy
        level = policy.own_levels.get(pending.rank // 2, policy.level) if policy.own_levels else policy.level
        patience_us = level.patience_us(request)
        until = pending.submitted + patience_us / 1e6
        if patience_us and (request.deadline is None or until < request.deadline):
            pending.call_at(until, self._delay if level.timeout_action == "delay" else self._refuse, pending)
        else:
            self._set_deadline(pending)

    def _set_deadline(self, pending: PendingRequest) -> None:
        if pending.request.deadline is not None:
            pending.call_at(pending.request.deadline, pending.end, DeadlineExceeded(self._name))

    def _refuse(self, pending: PendingRequest) -> None:
        """It has waited too long, or has been lucky in time."""
        if pending.started:
            self._set_deadline(pending)
        else:
            pending.end(QueueTimeout(self._name))

    def _delay(self, pending: PendingRequest) -> None:
        if not pending.started:
            self._queue.delay(pending)
            if self._idle:
                self._schedule(0.0)  # without it, those behind it may make a batch
        self._set_deadline(pending)

    def _schedule(self, delay: float) -> None:
        """Look for a batch after `delay` seconds; at most one such look is pending."""
        if self._wakeup is not None:
            if delay or not self._wakeup_is_timer:
                return
            self._wakeup.cancel()
        # Timers of both event loops tick in milliseconds: a shorter wait is a look at the queue per turn of the loop.
        self._wakeup_is_timer = delay > 1e-3
        self._wakeup = (
            self._loop.call_later(delay, self._dispatch)
            if self._wakeup_is_timer
            else self._loop.call_soon(self._dispatch)
        )

    def _dispatch(self) -> None:
        self._wakeup = None
        while self._idle:
            found = self._queue.next_batch(self._choice())
            if found is None:
                if self._queue.next_wakeup_s is not None:
                    self._schedule(self._queue.next_wakeup_s)
                break
            self._start(*found)
        self._note_drained()

    def _choice(self) -> Sequence[Worker]:
        """The idle workers, the best one last: one that need not take turns, on the device where least runs, the one
        that was busy last, whose caches are warm.
        """
        if self._has_one_choice:
            return self._idle
        return sorted(self._idle, key=lambda worker: (-worker.contention, -_running[worker.device]))

    def _take_worker(self, worker: Worker) -> None:
        """It is idle no more."""
        if self._idle[-1] is worker:
            self._idle.pop()
        else:
            self._idle.remove(worker)
        _running[worker.device] += 1

    def _note_contention(self, ran: Worker, *, busy: bool) -> None:
        """Tell the workers that take turns with one that it begins or ends."""
        if self._has_contention:
            for worker in self._workers:
                if worker is not ran and worker.device_lock_key is ran.device_lock_key:
                    worker.contention += 1 if busy else -1

    def _note_left(self, pending: PendingRequest) -> None:
        """A waiting request was abandoned or is late. Those behind it may make a batch now."""
        self._queue.left(pending)
        if self._idle and self._queue.queued:
            self._schedule(0.0)
        self._note_drained()

    # --------------------------------------------------------------------------------------------------------- running

    def _start(self, worker: Worker, batch: Batch) -> None:
        """On the loop if all of it is quick, else in the worker's thread."""
        batch.started = time.monotonic()
        batch.on_answer = self._on_answer
        for pending in batch.members:
            pending.started = True
        if (
            _RUNS_INLINE
            and worker.executor.inline
            and not worker.contention
            and are_quick([pending.admission for pending in batch.members])
        ):
            self._run_inline(worker, batch)
            return
        self._active.add(batch)
        self._take_worker(worker)
        self._note_contention(worker, busy=True)
        worker.start(batch, self._done)

    def _done(self, worker: Worker, batch: Batch) -> None:
        """What waits goes first: the device has nothing to do, and answers take a moment to hand out."""
        self._active.discard(batch)
        self._idle.append(worker)
        _running[worker.device] -= 1
        self._note_contention(worker, busy=False)
        self._queue.done(batch)
        self._dispatch()
        self._settle(batch)

    def _settle(self, batch: Batch) -> None:
        """Hand every request its outcome, and the metrics what was measured."""
        outcomes = batch.settled()
        admission = batch.members[0].admission
        if batch.busy and all(pending.admission is admission for pending in batch.members):
            admission.measured(batch.busy, len(batch.members))
        self._metrics.ran(batch, decoupled=self._workers[0].executor.decoupled)
        if not outcomes:
            for pending in batch.members:
                pending.end()
        else:
            for pending, outcome in zip(batch.members, outcomes, strict=True):
                pending.end(outcome)
        if len(batch.members) > 1:  # callers who got their answers together ask again together
            self._begin_turn()
            self._comes_from_batch = True

    def _note_drained(self) -> None:
        if self._closing and not (self._queue.queued or self._active or self._inline_calls):
            self._drained.set()

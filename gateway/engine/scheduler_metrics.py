"""Where a scheduler reports to: stage times, the rows of batches, the model's own counters, and traces of requests.

Of a request's three possible ends, two are counted here from what ran (success, and failure inside the model), one as
it happens (its caller has left, or it came too late). Everything is called on the event loop.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from tensorgate.gateway.contract.canonical import InferRequest, InferResponse
from tensorgate.gateway.contract.errors import GatewayError
from tensorgate.gateway.engine.pending_request import PendingRequest
from tensorgate.gateway.engine.worker import Batch
from tensorgate.gateway.telemetry.statistics import (
    CANCELED,
    Compute,
    Counters,
    Timings,
    Took,
    compute_of,
    reason_of,
)
from tensorgate.gateway.telemetry.tracing import Tracer


@dataclass(frozen=True, slots=True)
class SchedulerMetrics:
    """What one scheduler reports to. `observe` and `batch` are the histograms of the operator's metrics. Where there is
    `note_alone`, that of `counters`, all that requests which run alone have in common is left to it.
    """

    observe: Callable[[str, float], None]
    batch: Callable[[int], None]
    counters: Counters = field(default_factory=Counters)
    tracer: Tracer = field(default_factory=Tracer)
    note_alone: Callable[[Iterable[float]], None] | None = None

    def ran_inline(
        self, request: InferRequest, rows: int, outcome: InferResponse | GatewayError, took: Took, timings: Timings
    ) -> None:
        """A request has run at once and alone, without a batch."""
        began, seconds = took
        if (call_record := request.cancellation.call_record) is not None:
            call_record.ran(rows, rows, began, began, began + seconds)
        note = self.note_alone
        if note is not None and len(timings) == 1 and timings[0][0] == "infer" and type(outcome) is InferResponse:
            note((rows, began, seconds, timings[0][1]))
        else:
            self._ran_alone(request, rows, outcome, took, timings)
        if self.tracer.on and type(outcome) is InferResponse:
            self.tracer.note(request, began, began, compute_of(timings), began + seconds)

    def _ran_alone(
        self, request: InferRequest, rows: int, outcome: InferResponse | GatewayError, took: Took, timings: Timings
    ) -> None:
        """The same in its general form."""
        self._observe(timings)
        self.observe("queue", 0.0)
        self.batch(rows)
        if isinstance(outcome, GatewayError):
            self._failed(request, *took, reason_of(outcome))
        else:
            compute = compute_of(timings)
            self.counters.ran(rows, compute)
            self.counters.succeeded(rows, *took, 0.0, compute)

    def hit(self, request: InferRequest, began: float, seconds: float) -> None:
        """A request that `began` then (time.monotonic) was answered by the response cache, in so many seconds."""
        self.counters.hit(began, seconds)
        if self.tracer.on:
            self.tracer.note(request, began, None, None, began + seconds)

    def ran(self, batch: Batch, *, decoupled: bool) -> None:
        """Count a batch that has run, whose requests have not ended yet: runs that gave answers, requests that succeed.

        Who fails or has left is counted by `failed`.
        """
        self._observe(batch.timings)
        self.batch(batch.rows)
        now, observe = time.monotonic(), self.observe
        for pending in batch.members:
            observe("queue", batch.started - pending.submitted)
            if (call_record := pending.request.cancellation.call_record) is not None:
                call_record.ran(pending.admission.rows, batch.rows, pending.submitted, batch.started, now)
        for members, outcomes, timings in batch.runs():
            compute = compute_of(timings)
            if decoupled:
                self._stopped(batch, compute)
                compute = _sum(batch.compute, compute)
            succeeded = [
                pending
                for pending, outcome in zip(members, outcomes, strict=True)
                if not isinstance(outcome, GatewayError) or pending.request.cancellation.is_satisfied
            ]
            if succeeded or batch.answers:
                self.counters.ran(sum([pending.admission.rows for pending in members]), compute)
            self._succeeded([pending for pending in succeeded if _is_served(pending)], batch.started, compute, now)

    def _succeeded(self, members: Sequence[PendingRequest], started: float, compute: Compute, now: float) -> None:
        """All of one run at once: what is common to them is counted together."""
        if not members:
            return
        count, began = len(members), sum([pending.submitted for pending in members])
        rows = sum([pending.admission.rows for pending in members])
        seconds, queued = now * count - began, started * count - began
        self.counters.succeeded(rows, members[-1].submitted, seconds, queued, compute, count)
        if self.tracer.on:
            for pending in members:
                self.tracer.note(pending.request, pending.submitted, started, compute, now)

    def answered(self, batch: Batch, answer: InferResponse, timings: Timings, given: float) -> None:
        """A decoupled model has given an answer, which is perhaps not its last; hands it on."""
        self._observe(timings)
        compute = compute_of(timings)
        batch.compute = _sum(batch.compute, compute)
        (pending,) = batch.members
        if answer.outputs:
            if batch.answered:
                self.observe("next_answer", given - batch.answered)
            else:
                self.observe("first_answer", given - pending.submitted)
            batch.answered = given
        if not pending.finished:
            self.counters.answered(batch.answers, compute, empty=not answer.outputs)
            batch.answers += 1
        pending.deliver(answer)

    def _stopped(self, batch: Batch, compute: Compute) -> None:
        """A decoupled model gives no more answers: it is done, or nobody takes them any more, or it has failed."""
        (pending,) = batch.members
        if pending.request.cancellation.is_satisfied:
            return
        if pending.finished:
            self.counters.broke_off(batch.answers, "cancel", compute)
        elif batch.outcomes:
            self.counters.broke_off(batch.answers, "fail", compute)

    def failed(self, pending: PendingRequest, reason: str) -> None:
        """A request ends without success: the model failed, it came too late, or its caller has left."""
        now = time.monotonic()
        self._failed(pending.request, pending.submitted, now - pending.submitted, reason)
        if not pending.started and (call_record := pending.request.cancellation.call_record) is not None:
            call_record.left(pending.admission.rows, pending.submitted, now)

    def _failed(self, request: InferRequest, began: float, seconds: float, reason: str) -> None:
        self.counters.failed(reason, seconds)
        if self.tracer.on:
            self.tracer.note(request, began, None, None, began + seconds)

    def left(self, request: InferRequest, began: float) -> None:
        """A caller has left whose request runs in his own steps."""
        self._failed(request, began, time.monotonic() - began, CANCELED)

    def refused(self, error: GatewayError) -> GatewayError:
        """A request is refused a place in the queue. Returns the error, to be raised."""
        self.counters.failed(reason_of(error), 0.0)
        return error

    def _observe(self, timings: Timings) -> None:
        observe = self.observe
        for stage, seconds in timings:
            observe(stage, seconds)


def _is_served(pending: PendingRequest) -> bool:
    """Whether its caller is still there as the run ends, or left with all that it wanted."""
    return not pending.finished or pending.request.cancellation.is_satisfied


def _sum(one: Compute, other: Compute) -> Compute:
    return one[0] + other[0], one[1] + other[1], one[2] + other[2]

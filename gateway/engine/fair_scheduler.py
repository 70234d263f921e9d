"""The scheduler of a model whose callers have shares: its queue is a fair one, which is told what has run beside it."""

from __future__ import annotations

import time
from typing import Any

from tensorgate.gateway.contract.canonical import InferRequest, InferResponse
from tensorgate.gateway.contract.errors import GatewayError
from tensorgate.gateway.contract.execution import Executor
from tensorgate.gateway.engine.admission import Admission
from tensorgate.gateway.engine.fair_queue import FairQueue, FairSequences
from tensorgate.gateway.engine.inline_dispatch import InlineCall
from tensorgate.gateway.engine.queue import QueuePolicy, SchedulerQueue
from tensorgate.gateway.engine.scheduler import Scheduler
from tensorgate.gateway.engine.sequence_controls import SequencePolicy
from tensorgate.gateway.engine.shares import Shares
from tensorgate.gateway.engine.token_budget import TokenBudget
from tensorgate.gateway.engine.worker import Batch
from tensorgate.gateway.telemetry.statistics import Timings


class FairScheduler(Scheduler):
    """The queue of one loaded model, in which callers wait by their `shares`."""

    def __init__(self, shares: Shares, *args: Any) -> None:
        self._shares = shares
        super().__init__(*args)
        self._on_answer = self._charge_answer

    def _make_queue(
        self, policy: QueuePolicy, sequences: SequencePolicy | None, budget: TokenBudget | None
    ) -> SchedulerQueue:
        queue: FairQueue | FairSequences
        if sequences is None:
            queue = FairQueue(self._name, policy, budget, self._shares, self._workers, self._wake)
        else:
            queue = FairSequences(self._name, policy, sequences, self._shares, self._workers, self._wake)
        self._queue_shares = queue.shares
        return queue

    def _wake(self) -> None:
        self._schedule(0.0)

    def _answer_inline(
        self, executor: Executor, request: InferRequest, admission: Admission, now: float
    ) -> InferResponse | GatewayError:
        outcome = super()._answer_inline(executor, request, admission, now)
        self._queue_shares.ran_alone(request.cancellation.share, now, time.monotonic() - now)
        return outcome

    def _end_inline(self, inline_call: InlineCall) -> None:
        submitted = inline_call.submitted
        self._queue_shares.ran_alone(inline_call.request.cancellation.share, submitted, time.monotonic() - submitted)
        super()._end_inline(inline_call)

    def _charge_answer(self, batch: Batch, answer: InferResponse, timings: Timings, given: float) -> None:
        self._queue_shares.note_answer(batch)
        self._metrics.answered(batch, answer, timings, given)

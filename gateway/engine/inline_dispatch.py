"""A request that runs in its caller's own steps: nothing of the queue is between the two.

That is for a model that computes on the event loop, has room, and would run the request alone in any case. What remains
of a request is that it is counted, that it may be ended by others than its caller, and that it fails alone.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

from tensorgate.gateway.contract.canonical import InferRequest, InferResponse
from tensorgate.gateway.contract.errors import DeadlineExceeded, GatewayError
from tensorgate.gateway.engine.admission import Admission
from tensorgate.gateway.engine.scheduler_metrics import SchedulerMetrics
from tensorgate.gateway.engine.worker import Worker, public_error


class InlineCall(AsyncIterator[InferResponse]):
    """The only answer to a request, computed by whoever waits for it, and not before somebody does.

    It has its worker from the beginning, and calls `give_back` once it needs that no more. Belongs to the loop.
    """

    __slots__ = ("_admission", "_give_back", "_is_over", "_metrics", "_why", "request", "submitted", "worker")

    def __init__(
        self,
        worker: Worker,
        request: InferRequest,
        admission: Admission,
        submitted: float,
        metrics: SchedulerMetrics,
        give_back: Callable[[InlineCall], None],
    ) -> None:
        self.worker = worker
        self.request = request
        self._admission = admission
        self.submitted = submitted
        self._metrics = metrics
        self._give_back = give_back
        self._is_over = False
        self._why: GatewayError | None = None

    async def __anext__(self) -> InferResponse:
        """Compute the answer. Raises the error that is in its place."""
        if self._is_over:
            raise StopAsyncIteration
        timings: list[tuple[str, float]] = []
        run_alone: Any = self.worker.executor.arun_alone  # there is one, or this was not made
        outcome: InferResponse | GatewayError
        try:
            outcome = await run_alone(self.request, timings.append)
            if isinstance(outcome, GatewayError):
                outcome = public_error(outcome, self.request)
        except asyncio.CancelledError:
            self.abandon()
            raise
        except BaseException as error:  # see worker.compute
            outcome = public_error(error, self.request)
        outcome = self._settled(outcome, timings)
        if not isinstance(outcome, GatewayError):
            return outcome
        try:
            raise outcome
        finally:
            del outcome  # it knows this frame: all that is here would stay until somebody looks for circles

    def abandon(self) -> None:
        if not self._is_over:
            self._metrics.left(self.request, self.submitted)
            self._end()

    def end(self, why: GatewayError) -> None:
        """Whoever waits is to be told that, and the model that nobody waits."""
        if self._why is None:
            self._why = why
            self.request.cancellation.end()

    def _settled(
        self, outcome: InferResponse | GatewayError, timings: list[tuple[str, float]]
    ) -> InferResponse | GatewayError:
        request, submitted = self.request, self.submitted
        now = time.monotonic()
        if self._why is not None:
            outcome, self._why = self._why, None
        elif request.deadline is not None and request.deadline <= now and isinstance(outcome, GatewayError):
            outcome = DeadlineExceeded(request.view.name)
        self._metrics.ran_inline(request, self._admission.rows, outcome, (submitted, now - submitted), timings)
        self._end()
        return outcome

    def _end(self) -> None:
        self._is_over = True
        self.request.cancellation.end()
        self._give_back(self)

"""Room for one batch at a time: an executor and the thread that drives it, and what becomes of a batch there.

If a batch of several fails, each of its requests is run again alone, unless there is no device any more. Whatever a
model raises ends its own requests and nothing else: not its neighbours, not the thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import queue
import threading
import time
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from tensorgate.gateway.contract.canonical import InferRequest, InferResponse
from tensorgate.gateway.contract.errors import DeviceLost, GatewayError, Internal, ModelFailed, ModelUnavailable
from tensorgate.gateway.contract.execution import Executor, Observe
from tensorgate.gateway.engine.handover import Handover
from tensorgate.gateway.engine.pending_request import STREAM_WINDOW, PendingRequest
from tensorgate.gateway.telemetry.failure_log import FAILURES
from tensorgate.gateway.telemetry.statistics import Compute, Timings

log = logging.getLogger(__name__)


def _deliver(batch: Batch, answer: InferResponse, timings: Timings, given: float) -> None:
    batch.members[0].deliver(answer)


@dataclass(slots=True, eq=False)
class Batch:
    """Requests that run together, and what became of them."""

    members: list[PendingRequest]
    outcomes: Sequence[InferResponse | GatewayError] = ()
    """From the computation, in the order of `members`, perhaps made as one looks at them: `settled` does so, once."""
    timings: list[tuple[str, float]] = field(default_factory=list)
    alone: list[int] = field(default_factory=list)
    """Where members were run again alone: for each, where in `timings` its own run begins."""
    started: float = 0.0
    busy: float = 0.0
    """Processor seconds of the thread that ran the batch."""
    on_answer: Callable[[Batch, InferResponse, Timings, float], None] = _deliver
    """on_answer(batch, answer, timings, given) takes every answer of a decoupled model on the loop, with what it took,
    and when the model gave it, in seconds of time.monotonic()."""
    answers: int = 0
    """How many answers a decoupled model has given."""
    answered: float = 0.0
    """When it gave the last one with outputs; 0: none yet."""
    compute: Compute = (0.0, 0.0, 0.0)
    """What those answers took."""

    @property
    def requests(self) -> list[InferRequest]:
        return [pending.request for pending in self.members]

    @property
    def rows(self) -> int:
        return sum(pending.admission.rows for pending in self.members)

    def settled(self) -> list[InferResponse | GatewayError]:
        """The outcomes, made. On the loop, where nothing may go wrong that leaves a request without an end."""
        outcomes = self.outcomes
        if not isinstance(outcomes, list):
            try:
                outcomes = list(outcomes)
            except Exception as error:
                outcomes = [public_error(error, pending.request) for pending in self.members]
            self.outcomes = outcomes
        if outcomes and len(outcomes) != len(self.members):
            log.error("%d outcomes for %d requests", len(outcomes), len(self.members))
            self.outcomes = outcomes = [Internal() for _ in self.members]
        return outcomes

    def observe(self, timing: tuple[str, float]) -> None:
        self.timings.append(timing)

    def take_timings(self) -> Timings:
        """What was observed since the last time."""
        timings, self.timings = self.timings, []
        return timings

    def runs(self) -> Iterator[tuple[list[PendingRequest], Sequence[InferResponse | GatewayError | None], Timings]]:
        """The requests that shared a run, what became of each (None: its answers have been delivered), and the time
        that the run took: one, or one for each request if they were run again alone.
        """
        outcomes: Sequence[InferResponse | GatewayError | None] = self.outcomes or [None] * len(self.members)
        if not self.alone:
            yield self.members, outcomes, self.timings
            return
        ends = [*self.alone[1:], len(self.timings)]
        for pending, outcome, begin, end in zip(self.members, outcomes, self.alone, ends, strict=True):
            yield [pending], [outcome], self.timings[begin:end]


def compute(executor: Executor, batch: Batch) -> None:
    """Run a batch of a unary model, in whatever thread this is, and fill its outcomes."""
    requests = batch.requests
    try:
        (batch.outcomes,) = executor.run(requests, batch.observe)
        return
    except BaseException as error:  # a model may even raise SystemExit: the thread and its requests must outlive it
        if len(requests) == 1 or isinstance(error, DeviceLost):
            batch.outcomes = [public_error(error, request) for request in requests]
            return
    # Here the exception is gone, and with it what the batch held: after "out of memory" it must not be in the way.
    outcomes = []
    for request in requests:
        batch.alone.append(len(batch.timings))
        outcomes.append(run_alone(executor, request, batch.observe))
    batch.outcomes = outcomes


def run_alone(executor: Executor, request: InferRequest, observe: Observe) -> InferResponse | GatewayError:
    if request.cancellation.cut:
        return ModelUnavailable(request.view.name)
    try:
        ((response,),) = executor.run([request], observe)
    except BaseException as error:
        return public_error(error, request)
    return response


async def acompute(executor: Executor, batch: Batch) -> None:
    """`compute` for a model that runs on the loop."""
    requests = batch.requests
    try:
        async with contextlib.aclosing(_steps(executor, requests, batch)) as steps:
            async for responses in steps:
                batch.outcomes = _with_public_errors(responses, requests)
        return
    except BaseException as error:
        if len(requests) == 1 or isinstance(error, DeviceLost):
            batch.outcomes = [public_error(error, request) for request in requests]
            return
    outcomes: list[InferResponse | GatewayError] = []
    for pending in batch.members:
        batch.alone.append(len(batch.timings))
        alone = Batch([pending], timings=batch.timings)
        await acompute(executor, alone)
        outcomes += alone.outcomes
    batch.outcomes = outcomes


async def _steps(
    executor: Executor, requests: Sequence[InferRequest], batch: Batch
) -> AsyncGenerator[Sequence[InferResponse | GatewayError], None]:
    """They are at their end when this is: a model that has been left must not clean up in the next one's time."""
    answers: Any = executor.arun(requests, batch.observe)
    async with contextlib.aclosing(answers) as steps:
        async for responses in steps:
            yield responses


def _with_public_errors(
    outcomes: Sequence[InferResponse | GatewayError], requests: Sequence[InferRequest]
) -> Sequence[InferResponse | GatewayError]:
    """What a model says of each request by itself; rows that are made as one looks at them have no errors."""
    if type(outcomes) is list:
        for outcome, request in zip(outcomes, requests, strict=False):
            if isinstance(outcome, GatewayError):
                public_error(outcome, request)
    return outcomes


def public_error(error: BaseException, request: InferRequest) -> GatewayError:
    """The error that a request's caller may see. The log has what a model's code has raised; one of ours that is no
    GatewayError is a bug, and the log has it whole.

    It may wait for a slow reader, and must not keep the frames of a run alive meanwhile, with all their arrays.
    """
    if isinstance(error, GatewayError):
        FAILURES.note(error, request)
        error.__cause__ = error.__context__ = None
        return error.with_traceback(None)
    if not isinstance(error, Exception):
        failed = ModelFailed(type(error).__name__)
        failed.__cause__ = error
        return public_error(failed, request)
    log.error("a batch failed unexpectedly", exc_info=error)
    return Internal()


class WorkerThread:
    """A thread that takes steps one after another, begun with the first."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._inbox: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def put(self, step: Callable[[], None]) -> None:
        """After all steps that were put before it."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name=self._name, daemon=True)
            self._thread.start()
        self._inbox.put(step)

    def end(self) -> None:
        """Wait for its last step."""
        if self._thread is not None:
            self._inbox.put(None)
            self._thread.join()
            self._thread = None

    def _work(self) -> None:
        while (step := self._inbox.get()) is not None:
            step()
            del step  # an idle thread must not hold on to the tensors of its last batch


class Worker:
    """Room for one batch: an executor, and the thread that drives it.

    `contention`: how many other workers run batches with which this one's would take turns. The scheduler says so.
    """

    def __init__(
        self,
        name: str,
        executor: Executor,
        loop: asyncio.AbstractEventLoop,
        device: str = "",
        first: Worker | None = None,
    ) -> None:
        self.executor = executor
        self.device = device
        self.contention = 0
        self._first = first
        self._thread: WorkerThread = WorkerThread(name) if first is None else first._thread
        self.device_lock_key: object = executor.device_lock_key or self._thread
        self._loop = loop
        self._name = name
        self._task: asyncio.Task[None] | None = None

    @property
    def is_standby(self) -> bool:
        """Whether it only takes turns with another one, on the same executor."""
        return self._first is not None

    def standby(self) -> Worker | None:
        """Make a worker of the same thread, whose batch waits for this one's to end; None where that is not quicker.

        A thread that has another batch at hand begins it while the loop still hands out the answers to the last one.
        Otherwise it would wait for the loop to bring it the next, and for the interpreter, which the loop has.
        """
        executor = self.executor
        if executor.runs_on != "thread" or executor.decoupled or self.device_lock_key is not self._thread:
            return None
        return Worker(self._name, executor, self._loop, self.device, self)

    def start(self, batch: Batch, done: Callable[[Worker, Batch], None]) -> None:
        """Compute the batch away from the loop's current step, then call done(worker, batch) on the loop."""
        if self.executor.runs_on == "loop":
            self._task = self._loop.create_task(self._on_loop(batch, done))
            return
        step = self._stream if self.executor.decoupled else self._unary
        self._thread.put(lambda: step(batch, done))

    def close(self) -> None:
        """After its last batch: end the thread and give the executor back."""
        self._thread.end()
        if self._first is not None:
            return
        try:
            self.executor.close()
        except Exception:  # one model's last words must not keep the others loaded
            log.exception("%s could not be closed", self._name)

    def _tell(self, callback: Callable[..., None], *args: object) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody is left to tell
            self._loop.call_soon_threadsafe(callback, *args)

    def _unary(self, batch: Batch, done: Callable[[Worker, Batch], None]) -> None:
        """Processor time counts for the choice between thread and loop: the clock on the wall also shows how long a
        thread waited for the interpreter.
        """
        batch.started = time.monotonic()
        begun = time.thread_time()
        compute(self.executor, batch)
        batch.busy = time.thread_time() - begun
        self._tell(done, self, batch)

    def _stream(self, batch: Batch, done: Callable[[Worker, Batch], None]) -> None:
        """A decoupled model: every answer is handed over as it comes, and the generator pauses while its reader is
        behind.
        """
        (pending,) = batch.members
        steps: Any = None

        def take(piece: tuple[InferResponse, Timings, float]) -> None:
            batch.on_answer(batch, *piece)

        def end() -> None:
            handover.take_all()
            done(self, batch)

        handover = Handover(self._loop, take, STREAM_WINDOW)
        try:
            steps = self.executor.run(batch.requests, batch.observe)
            for (response,) in steps:
                if isinstance(response, GatewayError):
                    raise response
                if not pending.wait_for_room():
                    break
                handover.give((response, batch.take_timings(), time.monotonic()))
        except BaseException as error:
            batch.outcomes = [public_error(error, pending.request)]
        finally:
            if steps is not None:
                steps.close()
        self._tell(end)

    async def _on_loop(self, batch: Batch, done: Callable[[Worker, Batch], None]) -> None:
        if self.executor.decoupled:
            await self._astream(batch)
        else:
            await acompute(self.executor, batch)
        done(self, batch)

    async def _astream(self, batch: Batch) -> None:
        (pending,) = batch.members
        try:
            async with contextlib.aclosing(_steps(self.executor, batch.requests, batch)) as steps:
                async for (response,) in steps:
                    if isinstance(response, GatewayError):
                        raise response
                    if not await pending.await_room():
                        break
                    batch.on_answer(batch, response, batch.take_timings(), time.monotonic())
        except BaseException as error:
            batch.outcomes = [public_error(error, pending.request)]

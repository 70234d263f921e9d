"""An accepted request on its way through a scheduler, and the iterator of its answers."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from typing import Final, cast

from tensorgate.gateway.contract.canonical import InferRequest, InferResponse
from tensorgate.gateway.contract.errors import GatewayError
from tensorgate.gateway.engine.admission import Admission
from tensorgate.gateway.telemetry.statistics import CANCELED, reason_of

STREAM_WINDOW: Final = 32
"""Answers of a decoupled model that may wait for a slow reader before its generator is paused."""


class CompletedResponse(AsyncIterator[InferResponse]):
    """The only answer to a request that was answered while it was submitted."""

    __slots__ = ("_is_taken", "_outcome")

    def __init__(self, outcome: InferResponse | GatewayError) -> None:
        self._outcome = outcome
        self._is_taken = False

    async def __anext__(self) -> InferResponse:
        if self._is_taken:
            raise StopAsyncIteration
        self._is_taken = True
        if isinstance(self._outcome, GatewayError):
            raise self._outcome
        return self._outcome

    def abandon(self) -> None:
        self._is_taken = True

    def call_on_answer(self, on_answer: Callable[[InferResponse], None]) -> None:
        """Call back with the answer, unless there is an error in its place."""
        if isinstance(self._outcome, InferResponse):
            on_answer(self._outcome)


class PendingRequest(AsyncIterator[InferResponse]):
    """An accepted request, and the iterator of its answers.

    `on_leave` is called once if it ends while it still waits, `on_failure` once, with one of statistics.REASONS, if it
    ends without success. `rank` belongs to the queue where it waits. All but `wait_for_room` belongs to the loop.
    """

    # Values of the class until something else is known: most requests need none of these.
    started = False
    finished = False
    abandoned = False
    """Its caller left before it had ended."""
    rank = 0
    share = ""
    """Its caller, where callers have shares of a device."""
    due = 0.0
    """When it should have been answered, of a model with a goal."""
    tokens = 0
    """Of its longest text, where the model has a budget of them."""
    _on_answer: Callable[[InferResponse], None] | None = None
    _answers: deque[InferResponse | BaseException] | None = None
    _reader: asyncio.Future[InferResponse] | None = None
    _writer: asyncio.Future[None] | None = None
    _given = _taken = 0
    """Answers of a producer in a thread of its own, and those of them that have been read."""
    _room: threading.Event | None = None
    _timer: asyncio.TimerHandle | None = None

    def __init__(
        self,
        request: InferRequest,
        admission: Admission,
        submitted: float,
        on_leave: Callable[[PendingRequest], None],
        on_failure: Callable[[PendingRequest, str], None],
    ) -> None:
        self.request = request
        self.admission = admission
        self.submitted = submitted
        self._on_leave = on_leave
        self._on_failure = on_failure

    def call_on_answer(self, on_answer: Callable[[InferResponse], None]) -> None:
        """Call back with the only answer, before its reader gets it. Nothing may be raised there."""
        self._on_answer = on_answer

    def __anext__(self) -> asyncio.Future[InferResponse]:
        """No coroutine: whoever has the answer wakes whoever waits for it, and nobody in between."""
        reader = asyncio.get_running_loop().create_future()
        if self._answers:
            _resolve(reader, self._answers.popleft())
            self._make_room()
        elif self.finished:
            _resolve(reader, StopAsyncIteration())
        else:
            self._reader = reader
        return reader

    def abandon(self) -> None:
        """The caller has left: what has not started never will, what runs is told by the request's cancellation."""
        if not self.finished and not self.request.cancellation.is_satisfied:
            self.abandoned = True
            self._on_failure(self, CANCELED)
        self.end()
        self._answers = None

    def deliver(self, answer: InferResponse) -> None:
        """One answer of perhaps several."""
        if not self.finished:
            self._give(answer)

    def end(self, last: InferResponse | GatewayError | None = None) -> None:
        """The last answer, an error, or nothing more; only the first end counts."""
        if self.finished:
            return
        self.finished = True
        self.request.cancellation.end()
        if type(last) is InferResponse:  # the usual case
            if self._on_answer is not None:
                self._on_answer(last)
            self._give(last)
        elif last is not None:
            self._on_failure(self, reason_of(cast("GatewayError", last)))
            self._give(last)
        elif (reader := self._take_reader()) is not None:
            _resolve(reader, StopAsyncIteration())
        if self._timer is not None:
            self._timer.cancel()
        if not self.started:
            self._on_leave(self)
        if self._given or self._writer is not None:
            self._make_room()

    def call_at(self, when: float, callback: Callable[..., None], *args: object) -> None:
        """Call back at `when` (time.monotonic) unless it has ended by then. There is one timer: the last one set."""
        delay = max(0.0, when - time.monotonic())
        self._timer = asyncio.get_running_loop().call_later(delay, callback, *args)

    def _give(self, answer: InferResponse | GatewayError) -> None:
        """To its reader, if he waits for it already."""
        reader = self._take_reader()
        if reader is not None:
            if type(answer) is InferResponse:
                reader.set_result(answer)
            else:
                _resolve(reader, answer)
            if self._given or self._writer is not None:
                self._make_room()
        elif self._answers is None:
            self._answers = deque((answer,))
        else:
            self._answers.append(answer)

    def _take_reader(self) -> asyncio.Future[InferResponse] | None:
        """Who waits, to be told now. He is not kept: an error knows by its traceback who was told of it, he knows the
        request, and if the request knew the error, all its tensors would stay until somebody looks for such circles.
        """
        reader, self._reader = self._reader, None
        return None if reader is None or reader.done() else reader

    # Back-pressure of decoupled models: so many of the answers may be unread. A producer in a thread counts those that
    # it gives, the loop those that are taken, and only who is ahead by the whole window waits to be told.

    def wait_for_room(self) -> bool:
        """In the producer's thread: until one more answer may be given. False once nobody reads any more."""
        self._given += 1
        while self._given - self._taken > STREAM_WINDOW and not self.finished:
            self._room = room = threading.Event()
            if self._given - self._taken > STREAM_WINDOW and not self.finished:  # still, now that the loop can see it
                room.wait()
            self._room = None
        return not self.finished

    async def await_room(self) -> bool:
        """The same for a producer on the loop."""
        while self._answers is not None and len(self._answers) >= STREAM_WINDOW and not self.finished:
            self._writer = asyncio.get_running_loop().create_future()
            await self._writer
        return not self.finished

    def _make_room(self) -> None:
        self._taken += 1
        if self._room is not None:
            self._room.set()
        if self._writer is not None and not self._writer.done():
            self._writer.set_result(None)


def _resolve(reader: asyncio.Future[InferResponse], outcome: InferResponse | BaseException) -> None:
    """An error may come to somebody who leaves at the same moment: nobody is to be warned that it was not seen."""
    if isinstance(outcome, BaseException):
        reader.set_exception(outcome)
        reader.exception()
    else:
        reader.set_result(outcome)

"""Requests on their way into a model, and its answers on their way out.

A *run* is one call of execute: the event loop makes it, the model's thread works on it. Each of its requests has a
*channel*. Answers may be put there from any thread, while execute runs or long after it; the loop takes them out.

A model holds a channel by its *producer*, in the request and in every response sender. When the last of them is gone
and the final answer was never sent, nobody can ever send it: the request ends with an error then, and holds up nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Final

from tensorgate.backends.triton_python.errors import TritonModelException
from tensorgate.backends.triton_python.response import InferenceResponse, canonical
from tensorgate.gateway.contract.canonical import Answers, InferRequest, InferResponse
from tensorgate.gateway.contract.errors import GatewayError, ModelFailed, ModelUnavailable
from tensorgate.gateway.contract.tensor import TensorSpec

Outcome = InferResponse | GatewayError
FINAL: Final = 1
"""TRITONSERVER_RESPONSE_COMPLETE_FINAL"""
WINDOW: Final = 64
"""Answers that may wait for a slow reader. A thread that sends more waits for room."""
LOOP_WINDOW: Final = 4096
"""Answers that may wait where the sender is on an event loop, which must not wait: the request fails beyond."""


class Run:
    """One call of execute, or several where it reschedules requests.

    `begun`, `executed` and `may_reschedule` are the model thread's to set; the rest belongs to the loop.
    """

    def __init__(self, requests: Sequence[InferRequest], outputs: Mapping[str, TensorSpec], *, decoupled: bool) -> None:
        self.loop = asyncio.get_running_loop()
        self.requests = requests
        self.decoupled = decoupled
        self.channels = [AnswerChannel(self, request, outputs) for request in requests]
        self.begun = False
        self.executed = False
        self.may_reschedule = False
        """The model has said how it releases some request."""
        self.children: set[Answers] = set()
        """What the model asked of other models on behalf of these requests."""
        self._waiter: asyncio.Future[None] | None = None

    @property
    def abandoned(self) -> bool:
        """Whether all its callers have left."""
        return all(request.cancellation.cut for request in self.requests)

    def note_cut(self) -> None:
        """A caller has left. Called on the loop."""
        for channel in self.channels:
            if channel.request.cancellation.cut:
                channel.make_room()
        if self.abandoned:
            for answers in tuple(self.children):
                answers.abandon()
        self._wake()

    def leave(self) -> None:
        """The scheduler takes no more outcomes. Called on the loop."""
        for channel in self.channels:
            channel.leave()

    def fail(self, error: GatewayError) -> bool:
        """What execute raised is the answer to all that have none yet. False if nobody hears of it. In any thread."""
        heard = [channel.fail(error) for channel in self.channels]
        return True in heard

    def finish(self) -> None:
        """Execute has returned, or was never called since nobody waits."""
        self.executed = True
        self.poke()

    def poke(self) -> None:
        """Something has changed. In any thread."""
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody is left to tell
            self.loop.call_soon_threadsafe(self._wake)

    def note_answer(self) -> None:
        """A channel has something new. Who waits for all of them looks only after execute has returned."""
        if self.decoupled or self.executed:
            self.poke()

    async def settled(self) -> list[Outcome]:
        """What became of each request of a model that answers once."""
        while not (self.executed and all(channel.settled for channel in self.channels)):
            await self._change()
        return [channel.take() or ModelUnavailable(channel.request.view.name) for channel in self.channels]

    async def stream(self) -> AsyncGenerator[InferResponse, None]:
        """The answers to the one request of a decoupled model. Raises its error."""
        (channel,) = self.channels
        while True:
            ended = channel.ended
            while (outcome := channel.take()) is not None:
                if isinstance(outcome, GatewayError):
                    raise outcome
                yield outcome
            if ended or (self.abandoned and (self.executed or not self.begun)):
                return
            if not channel.ended:
                await self._change()

    async def _change(self) -> None:
        self._waiter = self.loop.create_future()
        await self._waiter

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class AnswerChannel:
    """The answers to one request. `ended`: no more will come."""

    def __init__(self, run: Run, request: InferRequest, outputs: Mapping[str, TensorSpec]) -> None:
        self.run = run
        self.request = request
        self.ended = False
        self.sender_taken = False
        self._outputs = outputs
        self._answers: deque[Outcome] = deque()
        self._lock = threading.RLock()  # a garbage collection in its midst may find a producer that nobody holds
        self._closed = False
        self._sent = 0
        self._room = threading.Semaphore(WINDOW) if run.decoupled else None  # a single answer has room

    # ------------------------------------------------------------------------------------------- in the model's threads

    def send(self, response: InferenceResponse | None, flags: int) -> None:
        """Raises TritonModelException where Triton does: after the final one, and so on."""
        with self._lock:
            self._check(response, flags)
            self._closed = flags == FINAL
            self._sent += response is not None
        if response is not None and not self.request.cancellation.cut and not self.ended:
            final = flags == FINAL or not self.run.decoupled
            self._put(canonical(response, self.request, self._outputs, final=final))
        if flags == FINAL:
            self._end()

    def _check(self, response: InferenceResponse | None, flags: int) -> None:
        refused = "Unable to send response."
        if self._closed:
            raise TritonModelException(f"{refused} Response sender has been closed.")
        if flags not in (0, FINAL):
            raise TritonModelException(f"{refused} Unsupported flag.")
        if response is None and not flags:
            raise TritonModelException(
                "Inference Response object must be provided when the response flags is set to zero."
            )
        if not self.run.decoupled:
            if response is not None and self._sent:
                raise TritonModelException(f"{refused} Non-decoupled model cannot send more than one response.")
            if response is None and not self._sent:
                raise TritonModelException(
                    f"{refused} Non-decoupled model cannot send complete final before sending a response."
                )

    def _put(self, outcome: Outcome) -> None:
        """An error is the last thing that a caller hears."""
        if not self._wait_for_room():
            return
        self._answers.append(outcome)
        if isinstance(outcome, GatewayError):
            self.ended = True
        self.run.note_answer()

    def _wait_for_room(self) -> bool:
        """False once nobody reads any more."""
        if self._room is None:
            return True
        if _on_a_loop():
            if len(self._answers) >= LOOP_WINDOW:
                self.fail(ModelFailed(f"{LOOP_WINDOW} answers wait for the caller to read them"))
                return False
            return True
        self._room.acquire()
        if self.request.cancellation.cut or self.ended:
            self._room.release()  # for the next one who waits
            return False
        return True

    def fail(self, error: GatewayError) -> bool:
        """End with this error, unless the last answer was sent. Whether it is heard."""
        with self._lock:
            if self._closed or (self._sent and not self.run.decoupled):
                return False
            self._closed = True
        self._answers.append(error)
        self._end()
        return True

    def _end(self) -> None:
        self.ended = True
        self.run.note_answer()

    # ------------------------------------------------------------------------------------------------------ on the loop

    @property
    def settled(self) -> bool:
        return bool(self._answers) or self.request.cancellation.cut

    def take(self) -> Outcome | None:
        if not self._answers:
            return None
        self.make_room()
        return self._answers.popleft()

    def leave(self) -> None:
        """The scheduler takes no more outcomes, for whatever reason."""
        self.ended = True
        self.make_room()

    def make_room(self) -> None:
        """Whoever waits for room looks again whether there is any, and whether anybody reads."""
        if self._room is not None:
            self._room.release()


def _on_a_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


class Producer:
    """The model's end of a channel, for as long as anything of the model's holds it."""

    __slots__ = ("channel",)

    def __init__(self, channel: AnswerChannel) -> None:
        self.channel = channel

    def __del__(self) -> None:
        self.channel.fail(ModelFailed("the model has dropped the request without a final response"))


class InferenceResponseSender:
    """What `request.get_response_sender()` gives. May be used from any thread."""

    def __init__(self, producer: Producer) -> None:
        self._producer = producer

    def send(self, response: InferenceResponse | None = None, flags: int = 0) -> None:
        """Send an answer, the end (flags=TRITONSERVER_RESPONSE_COMPLETE_FINAL), or both."""
        if response is not None and not isinstance(response, InferenceResponse):
            raise TypeError(f"what is sent is an InferenceResponse, not {type(response).__name__}")
        self._producer.channel.send(response, flags)

    def is_cancelled(self) -> bool:
        cancellation = self._producer.channel.request.cancellation
        return cancellation.cut or cancellation.is_asked_to_stop

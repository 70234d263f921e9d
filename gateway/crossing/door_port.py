"""Where doors connect to the engine: requests in, answers out, and whatever else they ask passed to its host."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import os
import secrets
import socket
import struct
import time
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final, Protocol, TypeAlias

from tensorgate.gateway.contract.call import Buffer, Reply
from tensorgate.gateway.contract.canonical import (
    Answers,
    CancellationToken,
    InferRequest,
    InferResponse,
    ModelView,
    OutgoingSpan,
    OutputRequest,
    Sequence,
    TopK,
)
from tensorgate.gateway.contract.errors import GatewayError, ModelUnavailable
from tensorgate.gateway.contract.tensor import NOTHING
from tensorgate.gateway.crossing.arena import Arena, PeerArena
from tensorgate.gateway.crossing.channel import Channel, greet, hello_of
from tensorgate.gateway.crossing.engine_link import MAX_ARENA_BYTES, STREAM_CREDIT
from tensorgate.gateway.crossing.failures import failure_of
from tensorgate.gateway.crossing.frames import CrossingBroken
from tensorgate.gateway.crossing.messages import (
    Answer,
    Asked,
    Cancel,
    Classes,
    Credit,
    End,
    FromDoor,
    Hello,
    Observed,
    Relay,
    RelayPage,
    Seen,
    Settle,
    Stale,
    State,
    Submit,
)
from tensorgate.gateway.crossing.tensors import TensorWriter
from tensorgate.gateway.telemetry.trace_context import parent_of

log = logging.getLogger(__name__)

SETTLE_S: Final = 1.0
"""How long a door may take to say what it has counted, or to take a new state over."""
_BACKLOG: Final = 128
_numbers: Final = itertools.count(1)
"""Of connections of doors."""
_MAX_TIME_S: Final = 1e12
Seconds: TypeAlias = Callable[[], float]
_UCRED: Final = struct.Struct("3i")
GIVE_BACK_S: Final = 0.1


class Host(Protocol):
    """What the engine's process does with what it is asked."""

    def view_of(self, serial: int) -> ModelView | None:
        """The version with a serial number; None once it has left."""
        ...

    def state(self, number: int, writer: TensorWriter) -> State:
        """What is served now, under that number."""
        ...

    def relay(self, door: DoorConnection, message: Relay | RelayPage, body: Buffer) -> Coroutine[Any, Any, None]:
        """Answer a whole call, whose body is here."""
        ...

    def seconds_of(self, serial: int, request: InferRequest) -> Seconds | None:
        """Tells how long such a request is likely to run, of a version of which doors may have copies; None of any
        other. Raises InvalidArgument's kinds.
        """
        ...

    def observed(self, door: int, message: Observed) -> None:
        """A door has counted; `door` is the number of its connection."""
        ...

    def joined(self, hello: Hello) -> None:
        """A door is there."""
        ...

    def left(self, door: int) -> None:
        """A door has gone."""
        ...


class Recorder:
    """Notes when a request ran, and whom it asked. See contract.canonical.Traced."""

    __slots__ = ("_headers", "calls", "events")

    def __init__(self, headers: Mapping[str, str]) -> None:
        self._headers = headers
        self.events: list[tuple[float, ...]] = []
        self.calls: list[Asked] = []

    def ran(self, rows: int, batch_rows: int, submitted: float, started: float, ended: float) -> None:
        """See Traced."""
        self.events.append((rows, batch_rows, submitted, started, ended))

    def left(self, rows: int, submitted: float, ended: float) -> None:
        """See Traced."""
        self.events.append((rows, submitted, ended))

    def upstream(self, target: str) -> OutgoingSpan:
        """See Traced. Spans are the door's: it learns of this one with the answer."""
        return _AskedSpan(self.calls, target, self._headers)

    def asked(self, target: str, span_id: str, begun: float, ended: float, *, failed: bool) -> None:
        """See Traced."""
        self.calls.append(Asked(target, span_id, begun, ended, failed))

    def carried(self) -> Mapping[str, str]:
        """See Traced."""
        return self._headers

    def take(self) -> tuple[tuple[tuple[float, ...], ...], tuple[Asked, ...]]:
        """What was noted since the last time."""
        taken = tuple(self.events), tuple(self.calls)
        self.events.clear()
        self.calls.clear()
        return taken


class CallRecorder(Recorder):
    """The same for a whole call: what a CallRecord is in one process, as far as the service needs it."""

    __slots__ = ("view",)

    def __init__(self, headers: Mapping[str, str]) -> None:
        super().__init__(headers)
        self.view: ModelView | None = None

    def submitted(self, view: ModelView) -> None:
        """See CallRecord."""
        self.view = view

    def replied(self, reply: Reply, begun: float = 0.0) -> None:
        """The door sees replies itself."""

    def passed(self, piece: Buffer) -> None:
        """It sees what is passed on, too."""


class _AskedSpan:
    """A call to another server, which is the child of the door's span where that is traced."""

    def __init__(self, calls: list[Asked], target: str, headers: Mapping[str, str]) -> None:
        self._calls = calls
        self._target = target
        self._begun = time.monotonic()
        self._span_id = ""
        self.headers = headers
        parent = parent_of(headers)
        if parent is not None and parent.sampled:
            self._span_id = secrets.token_hex(8)
            self.headers = replace(parent, span_id=self._span_id).headers()

    def end(self, *, failed: bool) -> None:
        """See OutgoingSpan."""
        span_id, self._span_id = self._span_id, ""
        if span_id:
            self._calls.append(Asked(self._target, span_id, self._begun, time.monotonic(), failed))


class DoorConnection:
    """One door. All methods are for the event loop."""

    def __init__(self, port: DoorPort, hello: Hello, arena: Arena, peer_arena: PeerArena) -> None:
        self._port = port
        self._host = port.host
        self.slot = hello.slot
        self.number = next(_numbers)
        self.seen = 0
        self.settled = 0
        self.changed = asyncio.Event()
        self.channel: Channel[Any] = Channel(hello, arena, peer_arena, FromDoor, self._take, self._gone)
        self._running: dict[int, tuple[Answers, CancellationToken]] = {}
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._rooms: dict[int, asyncio.Semaphore] = {}
        self._takers: Mapping[type, Callable[[Any], None]] = {
            Submit: self._submit,
            Cancel: self._cancel,
            Credit: self._credit,
            Relay: self._relay,
            RelayPage: self._relay,
            Observed: self._observed,
            Seen: self._seen,
        }

    def send(self, message: Any) -> None:
        """Tell the door something; without effect once it has gone."""
        self.channel.send(message)

    async def wait_for_room(self, call: int) -> None:
        """Until the reader of a stream has taken enough of it."""
        await self._rooms[call].acquire()

    def _take(self, message: Any) -> None:
        self._takers[type(message)](message)

    def _gone(self, why: str) -> None:
        """The door has ended: nobody waits for what it asked."""
        log.info("door %s: %s", self.slot, why)
        for answers, _ in list(self._running.values()):
            answers.abandon()
        self._running.clear()
        for task in list(self._tasks.values()):
            task.cancel()
        self._takers = {}
        self._port.gone(self)
        self.changed.set()

    # ------------------------------------------------------------------------------------------------------- inferences

    def _submit(self, message: Submit) -> None:
        inputs = self.channel.reader.tensors(message.inputs)  # first: so their memory is given back, whatever comes
        call, deadline = message.call, message.deadline
        if call in self._running or call in self._tasks:
            raise CrossingBroken(f"call {call} is there already")
        if deadline is not None and not abs(deadline) < _MAX_TIME_S:
            raise CrossingBroken(f"a deadline of {deadline}")
        view = self._host.view_of(message.model)
        if view is None:
            self.channel.send(Stale(call))
            return
        token = _token_of(message)
        recorder = None
        if message.carried is not None:
            token.call_record = recorder = Recorder(message.carried)
        request = InferRequest(
            view,
            inputs,
            message.id,
            tuple([OutputRequest(name, top_k) for name, top_k in message.outputs]) if message.outputs else (),
            message.parameters or NOTHING,
            message.signature,
            message.priority,
            None if message.sequence is None else Sequence(*message.sequence),
            deadline,
            message.queue_timeout_us,
            message.stream,
            tokens=message.tokens,
            cancellation=token,
        )
        try:
            seconds = self._host.seconds_of(message.model, request)
            found = view.handle.submit(request) if view.decoupled else view.handle.answer(request)
        except Exception as error:
            self._send_refusal(call, error, recorder)
            return
        if isinstance(found, InferResponse):
            self._send_answer(call, found, recorder, seconds)
            return
        if isinstance(found, GatewayError):
            self._send_failure(call, found, recorder)
            return
        self._running[call] = found, token
        if view.decoupled:
            self._rooms[call] = asyncio.Semaphore(STREAM_CREDIT)
            self._start(call, self._stream(call, found, recorder))
        else:
            future = asyncio.ensure_future(anext(found))
            future.add_done_callback(partial(self._answered, call, recorder, seconds))

    def _answered(
        self, call: int, recorder: Recorder | None, seconds: Seconds | None, future: asyncio.Future[InferResponse]
    ) -> None:
        """The only answer is here, or an error in its place."""
        if self._running.pop(call, None) is None:  # nobody waits
            if not future.cancelled():
                future.exception()
            return
        if future.cancelled():
            self._send_failure(call, asyncio.CancelledError(), recorder)
        elif (error := future.exception()) is not None:
            self._send_failure(call, error, recorder)
        else:
            self._send_answer(call, future.result(), recorder, seconds)

    async def _stream(self, call: int, answers: Answers, recorder: Recorder | None) -> None:
        try:
            async for answer in answers:
                await self.wait_for_room(call)
                self._send_answer(call, answer, recorder)
            self.channel.send(End(call, () if recorder is None else recorder.take()[1]))
        except Exception as error:
            self._send_failure(call, error, recorder)
        finally:
            answers.abandon()
            self._running.pop(call, None)
            self._rooms.pop(call, None)

    def _send_answer(
        self, call: int, answer: InferResponse, recorder: Recorder | None, seconds: Seconds | None = None
    ) -> None:
        writer = self.channel.writer
        try:
            classes = {name: _classes(best, writer) for name, best in answer.classes.items()} if answer.classes else {}
            ran: tuple[tuple[float, ...], ...] = ()
            asked: tuple[Asked, ...] = ()
            if recorder is not None:
                ran, asked = recorder.take()
            self.channel.send(
                Answer(
                    call,
                    writer.tensors(answer.outputs),
                    answer.parameters,  # type: ignore[arg-type]  # any mapping will do
                    answer.final,
                    classes,
                    ran,
                    asked,
                    0.0 if seconds is None else seconds(),
                )
            )
        except (GatewayError, OverflowError, ValueError, TypeError) as error:
            self._send_failure(call, error, recorder)

    def _send_refusal(self, call: int, error: Exception, recorder: Recorder | None) -> None:
        """The model did not accept a request: where it has left, the door does not know it yet."""
        if isinstance(error, ModelUnavailable):
            self.channel.send(Stale(call))
        else:
            self._send_failure(call, error, recorder, refused=True)

    def _send_failure(
        self, call: int, error: BaseException, recorder: Recorder | None, *, refused: bool = False
    ) -> None:
        if not isinstance(error, GatewayError):
            log.error("a request of a door failed unexpectedly", exc_info=error)
        ran, asked = ((), ()) if recorder is None else recorder.take()
        self.channel.send(failure_of(call, error, ran, asked, refused=refused))

    def _cancel(self, message: Cancel) -> None:
        running = self._running.pop(message.call, None)
        if running is not None:
            answers, token = running
            token.is_satisfied = message.satisfied
            answers.abandon()
        task = self._tasks.get(message.call)
        if task is not None:
            task.cancel()

    def _credit(self, message: Credit) -> None:
        room = self._rooms.get(message.call)
        if room is not None:
            for _ in range(min(message.answers, STREAM_CREDIT)):
                room.release()

    # ------------------------------------------------------------------------------------------------------ whole calls

    def _relay(self, message: Relay | RelayPage) -> None:
        body = self.channel.reader.data(message.body)  # first: so its memory is given back, whatever comes
        call = message.call
        if call in self._running or call in self._tasks:
            raise CrossingBroken(f"call {call} is there already")
        self._rooms[call] = asyncio.Semaphore(STREAM_CREDIT)
        self._start(call, self._host.relay(self, message, body))

    def _start(self, call: int, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks[call] = task
        task.add_done_callback(partial(self._ended, call))

    def _ended(self, call: int, task: asyncio.Task[None]) -> None:
        self._tasks.pop(call, None)
        self._rooms.pop(call, None)
        if task.cancelled() or (error := task.exception()) is None:
            return
        if isinstance(error, CrossingBroken):
            self.channel.break_off(f"the other process broke the protocol: {error}")
        else:
            self._send_failure(call, error, None)

    # --------------------------------------------------------------------------------------------------------- counting

    def _observed(self, message: Observed) -> None:
        self._host.observed(self.number, message)
        self.settled = max(self.settled, message.settle)
        self.changed.set()

    def _seen(self, message: Seen) -> None:
        self.seen = max(self.seen, message.number)
        self.changed.set()


class DoorPort:
    """A Unix socket in a private folder, where the doors of this gateway connect."""

    def __init__(self, path: Path, program: str, host: Host) -> None:
        self.host = host
        self._path = path
        self._program = program
        self._doors: set[DoorConnection] = set()
        self.slots: dict[int, tuple[int | None, float]] = {}
        """Slot -> (the number of its door, None while there is none; since when, in the loop's seconds)."""
        self._greeting: set[asyncio.Task[None]] = set()
        self._listening: asyncio.Task[None] | None = None
        self._number = 0
        self._settle = 0

    async def start(self) -> None:
        """Listen. What an engine that died has left behind is replaced."""
        with contextlib.suppress(FileNotFoundError):
            self._path.unlink()
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        sock.bind(str(self._path))
        self._path.chmod(0o600)
        sock.listen(_BACKLOG)
        sock.setblocking(False)
        self._listening = asyncio.ensure_future(self._accept(sock))

    async def stop(self) -> None:
        """Let the doors go."""
        if self._listening is not None:
            self._listening.cancel()
        for task in list(self._greeting):
            task.cancel()
        for door in list(self._doors):
            door.channel.close()

    async def _accept(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        with listener:
            while True:
                sock, _ = await loop.sock_accept(listener)
                task = loop.create_task(self._greet(sock))
                self._greeting.add(task)
                task.add_done_callback(self._greeting.discard)

    async def _greet(self, sock: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        _, uid, _ = _UCRED.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size))
        if uid != os.getuid():
            log.error("a process of user %s is no door of ours", uid)
            sock.close()
            return
        arena = Arena(MAX_ARENA_BYTES)
        try:
            hello, peer_arena = await asyncio.to_thread(greet, sock, arena, hello_of(self._program), first=False)
        except (OSError, CrossingBroken) as error:
            log.error("a door was not let in: %s", str(error))  # a record must not keep what the error was raised in
            sock.close()
            arena.close()
            return
        except asyncio.CancelledError:  # what greets in its thread ends with the socket
            sock.shutdown(socket.SHUT_RDWR)
            sock.close()
            arena.close()
            raise
        door = DoorConnection(self, hello, arena, peer_arena)
        await loop.connect_accepted_socket(lambda: door.channel, sock)
        self._doors.add(door)
        self.slots[hello.slot] = (door.number, loop.time())
        self.host.joined(hello)
        self._tell(door)

    def gone(self, door: DoorConnection) -> None:
        """A door has ended."""
        self._doors.discard(door)
        if self.slots.get(door.slot, (0, 0.0))[0] == door.number:
            self.slots[door.slot] = (None, asyncio.get_running_loop().time())
        self.host.left(door.number)

    def give_back(self) -> None:
        """Tell the doors which of their memory is free; to be called some times a second."""
        for door in self._doors:
            door.channel.give_back()

    def publish(self, number: int) -> None:
        """Tell all doors what is served now, under a number that grows."""
        self._number = number
        for door in self._doors:
            self._tell(door)

    def _tell(self, door: DoorConnection) -> None:
        state = self.host.state(self._number, door.channel.writer)
        door.send(state)

    async def seen(self) -> None:
        """Until every door serves what was published last; one that hangs is not waited for."""
        number = self._number
        await self._until(lambda door: door.seen >= number)

    async def settle(self) -> None:
        """Until every door has said what it counted so far; one that hangs is not waited for."""
        self._settle += 1
        number = self._settle
        for door in self._doors:
            door.send(Settle(number))
        await self._until(lambda door: door.settled >= number)

    async def _until(self, done: Callable[[DoorConnection], bool]) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(SETTLE_S):
                for door in list(self._doors):
                    while door in self._doors and not done(door):
                        door.changed.clear()
                        await door.changed.wait()


def _token_of(message: Submit) -> CancellationToken:
    token = CancellationToken()
    if message.request_id:
        token.request_id = message.request_id
    if message.share:
        token.share = message.share
    return token


def _classes(best: TopK, writer: TensorWriter) -> Classes:
    return Classes(writer.tensor("", best.values), writer.tensor("", best.indices))

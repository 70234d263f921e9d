"""The way from a door to the engine: requests out, answers in, and what the engine serves.

It connects by itself, and again whenever the engine's process was replaced. Meanwhile every call is refused at once.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import re
import socket
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from tensorgate.gateway.contract.call import MustRelay, Reply
from tensorgate.gateway.contract.canonical import Answers, InferRequest, InferResponse, ModelView, TopK, Traced
from tensorgate.gateway.contract.errors import GatewayError, ModelUnavailable, Unavailable
from tensorgate.gateway.contract.options import Options
from tensorgate.gateway.contract.tensor import NOTHING
from tensorgate.gateway.crossing.arena import Arena
from tensorgate.gateway.crossing.channel import Channel, OtherVersion, greet, hello_of
from tensorgate.gateway.crossing.failures import code_of, error_of, reason_of
from tensorgate.gateway.crossing.frames import CrossingBroken
from tensorgate.gateway.crossing.messages import (
    Answer,
    Asked,
    Cancel,
    Classes,
    Credit,
    End,
    Failure,
    FromEngine,
    RelayAccepted,
    RelayEnd,
    RelayReply,
    ReplicaOffer,
    Seen,
    Settle,
    Stale,
    State,
    Submit,
)
from tensorgate.gateway.crossing.views import view_of
from tensorgate.gateway.wire.eager_start import Waiter

log = logging.getLogger(__name__)

RETRY_S: Final = 0.05
"""The pause before the engine is looked for again."""
STREAM_CREDIT: Final = 32
"""Answers of a decoupled model that may be on their way before their reader has taken any."""
GIVE_BACK_S: Final = 0.1
_RAN_NUMBERS: Final = 5
_SPAN_ID: Final = re.compile(r"(?!0{16})[0-9a-f]{16}").fullmatch
_RETRY_AFTER: Final = MappingProxyType({"Retry-After": "1"})
MAX_ARENA_BYTES: Final = 64 << 30
"""Addresses, not memory: the configuration bounds what callers may send at once."""


def engine_away() -> Unavailable:
    """The error of calls for which there is no engine: its process ended, and is being started again."""
    error = Unavailable("the engine is being started again")
    error.http_headers = _RETRY_AFTER
    return error


class RemoteModel:
    """A loaded version in the engine's process: see contract.canonical.Handle."""

    __slots__ = ("_link", "answer", "learn", "name", "offer", "ready", "serial", "submit", "version", "view")

    view: ModelView

    def __init__(self, link: EngineLink, serial: int, name: str, version: int) -> None:
        self._link = link
        self.serial = serial
        self.name = name
        self.version = version
        self.ready = True
        self.submit: Callable[[InferRequest], RemoteAnswers] = partial(link.submit, self)
        """Send a request to the engine. Raises Unavailable, Exhausted, MustRelay."""
        self.answer: Callable[[InferRequest], InferResponse | GatewayError | Answers] = self.submit
        """See Handle. A door may answer by a copy of the model, which the engine's `offer` allows."""
        self.offer: ReplicaOffer | None = None
        self.learn: Callable[[InferRequest, float], None] | None = None
        """Hears how long requests are likely to run that were not answered here."""

    def is_ready(self) -> bool:
        return self.ready and self._link.is_up


@dataclass(frozen=True, slots=True)
class RemoteSnapshot:
    """What the engine serves, as `models.loaded_models.Snapshot` has it."""

    models: Mapping[str, Mapping[int, RemoteModel]] = NOTHING
    labels: Mapping[str, Mapping[str, int]] = NOTHING
    unloaded: frozenset[str] = frozenset()
    starting: frozenset[str] = frozenset()
    """Of these the engine knows."""
    loadable: frozenset[str] = frozenset()
    """Of these, too: a door asks it for every name that it does not know."""


class RemoteAnswers(AsyncIterator[InferResponse]):
    """The answers to one request: see contract.canonical.Answers."""

    __slots__ = ("_call", "_finished", "_link", "_reader", "_ready", "_request", "_taken", "decoupled")

    def __init__(self, link: EngineLink, call: int, request: InferRequest) -> None:
        self._link = link
        self._call = call
        self._request = request
        self.decoupled = request.view.decoupled
        self._ready: deque[InferResponse | Exception] = deque()
        self._reader: Waiter[InferResponse] | None = None
        self._finished = False
        self._taken = 0

    @property
    def model(self) -> str:
        """The name of the model that is asked."""
        return self._request.view.name

    def __anext__(self) -> Waiter[InferResponse]:
        reader: Waiter[InferResponse] = Waiter()
        if self._ready:
            self._resolve(reader, self._ready.popleft())
        elif self._finished:
            reader.set_exception(StopAsyncIteration())
        else:
            self._reader = reader
        return reader

    def abandon(self) -> None:
        if not self._finished:
            self._finished = True
            self._link.cancel(self._call, satisfied=self._request.cancellation.is_satisfied)
        self._ready.clear()

    def give(self, outcome: InferResponse | Exception, *, final: bool) -> None:
        """One answer, or the error that is the last."""
        self._finished = final
        reader = self._reader
        if reader is None:
            self._ready.append(outcome)
            return
        self._reader = None
        if reader.is_over:
            self._ready.append(outcome)
        elif type(outcome) is InferResponse and not self.decoupled:
            reader.set_result(outcome)
        else:
            self._resolve(reader, outcome)

    def refuse(self) -> None:
        """The error that comes is of a request that was not accepted."""
        self._request.cancellation.refused = True

    def end(self) -> None:
        """No more answers."""
        self._finished = True
        reader, self._reader = self._reader, None
        if reader is not None and not reader.is_over:
            reader.set_exception(StopAsyncIteration())

    def ran(self, events: tuple[tuple[float, ...], ...], calls: tuple[Asked, ...]) -> None:
        """Tell whoever wants to know what became of the request. Raises CrossingBroken."""
        record = self._request.cancellation.call_record
        if record is not None:
            tell(record, events, calls)

    def learn(self, seconds: float) -> None:
        """Such a request is likely to run for so long."""
        handle = self._request.view.handle
        if isinstance(handle, RemoteModel) and handle.learn is not None:
            handle.learn(self._request, seconds)

    def _resolve(self, reader: Waiter[InferResponse], outcome: InferResponse | Exception) -> None:
        if self.decoupled and type(outcome) is InferResponse:
            self._taken += 1
            if self._taken == STREAM_CREDIT // 2:
                self._taken = 0
                self._link.credit(self._call, STREAM_CREDIT // 2)
        if isinstance(outcome, Exception):
            reader.set_exception(outcome)
        else:
            reader.set_result(outcome)


def tell(record: Traced, events: tuple[tuple[float, ...], ...], calls: tuple[Asked, ...]) -> None:
    """Tell a record when its requests ran, and whom they asked. Raises CrossingBroken."""
    try:
        for event in events:
            if len(event) == _RAN_NUMBERS:
                record.ran(int(event[0]), int(event[1]), *event[2:])
            else:
                rows, submitted, ended = event
                record.left(int(rows), submitted, ended)
        for call in calls:
            if _SPAN_ID(call.span_id) is None:
                raise ValueError(f"no number of a span: {call.span_id[:80]}")
            record.asked(call.target, call.span_id, call.begun, call.ended, failed=call.failed)
    except (ValueError, OverflowError) as error:
        raise CrossingBroken(f"when a request ran: {error}") from None


class RelayedCall:
    """A call that the engine answers as a whole: its replies, and how it ended."""

    def __init__(self) -> None:
        self.events: asyncio.Queue[Reply | RelayAccepted | RelayEnd | Exception] = asyncio.Queue()


class EngineLink:
    """A door's connection to the engine. All methods are for the event loop.

    `on_state` hears what the engine serves, whenever that changes, and None when the engine has gone; `on_settle` is to
    answer with an Observed of that number. `options` has each dialect's section of a model; `restarts` is how often
    this door had to be replaced, by reason. A door that `is_next` is to replace one that serves.
    """

    def __init__(
        self,
        path: Path,
        program: str,
        slot: int,
        options: Mapping[str, type[Options]],
        on_state: Callable[[State | None], None],
        on_settle: Callable[[int], None],
        restarts: Mapping[str, int] = NOTHING,
        *,
        is_next: bool = False,
    ) -> None:
        self.loop = asyncio.get_running_loop()
        self.snapshot = RemoteSnapshot()
        self._path = path
        self._program = program
        self._slot = slot
        self._restarts = restarts
        self._is_next = is_next
        self._options = options
        self._on_state, self._on_settle = on_state, on_settle
        self._channel: Channel[Any] | None = None
        self._lost: asyncio.Event = asyncio.Event()
        self.outdated = asyncio.Event()
        """Set once it is clear that another program has to be this door."""
        self._calls = itertools.count(1)
        self._pending: dict[int, RemoteAnswers] = {}
        self._relayed: dict[int, RelayedCall] = {}
        self._models: dict[int, RemoteModel] = {}
        self._takers: Mapping[type, Callable[[Any], None]] = {
            Answer: self._answer,
            End: self._end,
            Failure: self._failure,
            Stale: self._stale,
            RelayReply: self._relay_reply,
            RelayAccepted: self._relay_event,
            RelayEnd: self._relay_end,
            Settle: lambda message: self._on_settle(message.number),
            State: self._state,
        }

    @property
    def is_up(self) -> bool:
        """Whether the engine is there."""
        return self._channel is not None

    @property
    def _open(self) -> Channel[Any]:
        """The channel, for what came through it."""
        if self._channel is None:
            raise engine_away()
        return self._channel

    async def run(self) -> None:
        """Stay connected."""
        refused = ""
        while True:
            try:
                await self._connect()
            except (OSError, CrossingBroken) as error:
                if isinstance(error, OtherVersion) and (error.is_newer or self._is_next):
                    self.outdated.set()
                if isinstance(error, CrossingBroken) and str(error) != refused:
                    refused = str(error)
                    log.error("no connection to the engine: %s", error)
                await asyncio.sleep(RETRY_S)
                continue
            while not self._lost.is_set():
                try:
                    await asyncio.wait_for(self._lost.wait(), GIVE_BACK_S)
                except TimeoutError:
                    if self._channel is not None:
                        self._channel.give_back()

    async def _connect(self) -> None:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        arena = Arena(MAX_ARENA_BYTES)
        try:
            sock.setblocking(False)
            await self.loop.sock_connect(sock, str(self._path))
            hello, peer_arena = await asyncio.to_thread(
                greet, sock, arena, hello_of(self._program, self._slot, self._restarts), first=True
            )
        except BaseException:
            sock.close()
            arena.close()
            raise
        self._lost = asyncio.Event()
        channel: Channel[Any] = Channel(hello, arena, peer_arena, FromEngine, self._take, self._gone)
        self._channel = channel
        try:
            await self.loop.connect_accepted_socket(lambda: channel, sock)
        except BaseException:
            self._channel = None
            raise

    def _gone(self, why: str) -> None:
        """The engine has ended: so has every call that it was to answer."""
        self._channel = None
        self.snapshot = RemoteSnapshot()
        self._models = {}
        pending, self._pending = self._pending, {}
        for answers in pending.values():
            answers.give(engine_away(), final=True)
        relayed, self._relayed = self._relayed, {}
        for call in relayed.values():
            call.events.put_nowait(engine_away())
        self._on_state(None)
        self._lost.set()

    # ---------------------------------------------------------------------------------------------------- to the engine

    def submit(self, model: RemoteModel, request: InferRequest) -> RemoteAnswers:
        """See RemoteModel.submit."""
        channel = self._channel
        if channel is None:
            raise engine_away()
        call = next(self._calls)
        sequence, token = request.sequence, request.cancellation
        try:
            channel.send(
                Submit(
                    call,
                    model.serial,
                    channel.writer.tensors(request.inputs),
                    request.id,
                    tuple([(output.name, output.top_k) for output in request.outputs]) if request.outputs else (),
                    request.parameters,  # type: ignore[arg-type]  # any mapping will do
                    request.signature,
                    request.priority,
                    None if sequence is None else (sequence.id, sequence.start, sequence.end),
                    request.deadline,
                    request.queue_timeout_us,
                    request.stream,
                    request.tokens,
                    token.request_id,
                    token.share,
                    None if token.call_record is None else dict(token.call_record.carried()),
                )
            )
        except (OverflowError, UnicodeEncodeError):  # larger than a frame, or text that is no Unicode
            raise MustRelay from None
        answers = self._pending[call] = RemoteAnswers(self, call, request)
        return answers

    def room(self, size: int) -> memoryview | None:
        """Memory for a body that crosses without a copy, if there is any."""
        return None if self._channel is None else self._channel.writer.room(size)

    def cancel(self, call: int, *, satisfied: bool = False) -> None:
        """Nobody waits for a call any more."""
        if (self._pending.pop(call, None) is not None or call in self._relayed) and self._channel is not None:
            self._channel.send(Cancel(call, satisfied))

    def credit(self, call: int, answers: int) -> None:
        """So many more answers may come."""
        if call in self._pending and self._channel is not None:
            self._channel.send(Credit(call, answers))

    def give_up(self) -> None:
        """Fail every call that waits for an answer: this door ends."""
        for number, answers in list(self._pending.items()):
            self.cancel(number)
            answers.give(ModelUnavailable(answers.model), final=True)
        for relayed in list(self._relayed.values()):
            relayed.events.put_nowait(ModelUnavailable(""))

    def send(self, message: Any) -> None:
        """Tell the engine something. Raises Unavailable."""
        if self._channel is None:
            raise engine_away()
        self._channel.send(message)

    async def relay(self, make: Callable[[int, Any], Any]) -> AsyncGenerator[Reply | RelayAccepted | RelayEnd, None]:
        """Have the engine answer a call, which `make` makes a message of, by its number and a TensorWriter. The last
        event is a RelayEnd. Raises Unavailable, Exhausted, and what the engine could not answer with.
        """
        channel = self._channel
        if channel is None:
            raise engine_away()
        number = next(self._calls)
        channel.send(make(number, channel.writer))
        call = self._relayed[number] = RelayedCall()
        ended = False
        taken = 0
        try:
            while not ended:
                event = await call.events.get()
                if isinstance(event, Exception):
                    ended = True
                    raise event
                ended = type(event) is RelayEnd
                yield event
                if type(event) is Reply and event.streamed:
                    taken += 1
                    if taken % (STREAM_CREDIT // 2) == 0 and self._channel is channel:
                        channel.send(Credit(number, STREAM_CREDIT // 2))
        finally:
            if not ended:
                self.cancel(number)
            self._relayed.pop(number, None)

    # -------------------------------------------------------------------------------------------------- from the engine

    def _take(self, message: Any) -> None:
        self._takers[type(message)](message)

    def _answer(self, message: Answer) -> None:
        answers = self._pending.get(message.call)
        reader = self._open.reader
        outputs = reader.tensors(message.outputs)  # also where nobody waits: so the other side's memory is given back
        if answers is None:
            return
        if message.ran or message.asked:
            answers.ran(message.ran, message.asked)
        if message.seconds:
            answers.learn(message.seconds)
        classes: Mapping[str, TopK] = NOTHING
        if message.classes:
            classes = {name: _top_k(each, reader) for name, each in message.classes.items()}
        decoupled = answers.decoupled
        if not decoupled:
            del self._pending[message.call]
        answers.give(InferResponse(outputs, message.parameters or NOTHING, message.final, classes), final=not decoupled)

    def _end(self, message: End) -> None:
        answers = self._pending.pop(message.call, None)
        if answers is not None:
            answers.ran((), message.asked)
            answers.end()

    def _failure(self, message: Failure) -> None:
        error = error_of(message)
        answers = self._pending.get(message.call)
        if answers is not None:
            answers.ran(message.ran, message.asked)
            if message.refused:
                answers.refuse()
            del self._pending[message.call]
            answers.give(error, final=True)
        elif (relayed := self._relayed.get(message.call)) is not None:
            relayed.events.put_nowait(error)

    def _stale(self, message: Stale) -> None:
        answers = self._pending.pop(message.call, None)
        if answers is not None:
            answers.give(MustRelay(), final=True)

    def _relay_reply(self, message: RelayReply) -> None:
        parts = [self._open.reader.data(part) for part in message.body]  # also where nobody waits: see _answer
        call = self._relayed.get(message.call)
        if call is None:
            return
        body = parts[0] if len(parts) == 1 else parts
        code = code_of(message.grpc_code)
        said = (message.status, message.headers, code, message.text, message.streamed, message.metadata)
        call.events.put_nowait(Reply(body, *said))

    def _relay_end(self, message: RelayEnd) -> None:
        code_of(message.code), code_of(message.reply_code), reason_of(message.reason)
        self._relay_event(message)

    def _relay_event(self, message: RelayAccepted | RelayEnd) -> None:
        call = self._relayed.get(message.call)
        if call is not None:
            call.events.put_nowait(message)

    def _state(self, message: State) -> None:
        models: dict[str, dict[int, RemoteModel]] = {}
        known, self._models = self._models, {}
        channel = self._open
        for said in message.models:
            model = known.get(said.serial)
            if model is None:
                model = RemoteModel(self, said.serial, said.name, said.version)
                model.view = view_of(said, model, self._options, channel.reader)
                model.offer = said.replica
            model.ready = said.serial not in message.unready
            self._models[said.serial] = model
            models.setdefault(said.name, {})[said.version] = model
        self.snapshot = RemoteSnapshot(models, message.labels, frozenset(message.unloaded))
        self._on_state(message)
        channel.send(Seen(message.number))


def _top_k(said: Classes, reader: Any) -> TopK:
    return TopK(reader.tensor(said.values), reader.tensor(said.indices))

"""The engine as a process of its own: an App without ports, and a place where doors connect.

Doors submit inferences here that they have decoded. All else that callers ask comes as a whole call, and is answered
by the same service as in one process; whoever let it in, the door, counts it.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from tensorgate import __version__
from tensorgate.gateway.app import App
from tensorgate.gateway.config import Config
from tensorgate.gateway.contract.call import Buffer, Call, Caller, Reply
from tensorgate.gateway.contract.canonical import InferRequest, ModelView
from tensorgate.gateway.contract.dialect import Endpoint
from tensorgate.gateway.contract.errors import Code
from tensorgate.gateway.crossing.door_port import CallRecorder, DoorConnection, DoorPort, Seconds
from tensorgate.gateway.crossing.frames import CrossingBroken
from tensorgate.gateway.crossing.messages import (
    Hello,
    Observed,
    Relay,
    RelayAccepted,
    RelayEnd,
    RelayPage,
    RelayReply,
    ReplicaOffer,
    State,
    View,
)
from tensorgate.gateway.crossing.tensors import TensorWriter
from tensorgate.gateway.crossing.views import view_message
from tensorgate.gateway.engine.model import Model
from tensorgate.gateway.monitoring.call_counters import counted_model
from tensorgate.gateway.monitoring.door_metrics import DoorsObserved
from tensorgate.gateway.replicas import counted
from tensorgate.gateway.telemetry.call_outcome import CALLER_LEFT, INFERENCES, CallOutcome

LOOK_EVERY_S: Final = 0.05
"""How often it is looked whether doors have to hear of something."""
_SETTLE_EVERY: Final = 10
_READS: Final = 3


class RelayedPeer:
    """The other end of a door's connection."""

    __slots__ = ("_address", "_names")

    def __init__(self, address: str, names: Sequence[str]) -> None:
        self._address = address
        self._names = names

    def address(self) -> str:
        """See Peer."""
        return self._address

    def names(self) -> Sequence[str]:
        """See Peer."""
        return self._names


class RelayedExchange:
    """A door's request for a page: see transport.http_exchange.HttpExchange."""

    def __init__(self, page: RelayPage) -> None:
        self.method = page.method
        self.target = page.target
        self.headers: Mapping[str, str] = page.headers
        self.begun = time.monotonic()
        self.request_id = ""
        self.peer = RelayedPeer(*page.peer)
        self._body = page.body

    @property
    def has_begun(self) -> bool:
        """See HttpExchange."""
        return False

    def take_body(self) -> Buffer | None:
        """See HttpExchange."""
        return self._body

    async def read(self, limit: int) -> Buffer:
        """See HttpExchange. The door has held it to a limit."""
        return self._body

    def send(self, reply: Reply) -> None:
        """A page returns its reply."""

    async def start(self, reply: Reply) -> None:
        """A page has one reply."""

    async def chunk(self, reply: Reply) -> None:
        """See start."""

    async def end(self) -> None:
        """See start."""


class EngineProcess:
    """Plays door_port.Host for an App."""

    def __init__(self, app: App, path: Path, text: str) -> None:
        """`path` is where doors connect, `text` the YAML that they have started with."""
        self._app = app
        self._service = app.service
        observer: Any = RelayObserver()  # doors write the access log, and have the spans
        self._service.observer = observer
        self._service.recorder = None
        self._port = DoorPort(path, __version__, self)
        self._pages = app.pages(tuple(app.dialects.values()))
        self._observed = DoorsObserved(app.metrics, self._has_series)
        app.router.running_elsewhere = self._observed.running
        app.vitals.listeners.add_all(self._observed.traffic)
        if app.observer is not None and app.observer.usage is not None:
            self._observed.usage = app.observer.usage
        app.overview.doors = self._doors
        app.vitals.lines_of_doors = self._observed.log_lines
        if app.vitals.recorded is not None:
            app.vitals.recorded = self._observed.recorded
        self._serials = itertools.count(1)
        self._known: dict[Model, int] = {}
        self._by_serial: dict[int, Model] = {}
        self._offers: dict[int, ReplicaOffer] = {}
        self._replicated: tuple[int, ...] = ()
        self._views: dict[int, ModelView] = {}
        self._published: tuple[Any, ...] = ()
        self._number = 0
        self._first_text = text
        self._text = ""
        self._reloads = 0
        self._looking: asyncio.Task[None] | None = None
        app.on_take_over = self._take_over
        app.engine.gather = self._port.settle

    async def start(self, *, again: bool) -> None:
        """Let doors connect. What they know of the configuration is of an engine before, if this one was started
        `again`.
        """
        if again:
            self._text = self._text_of(self._app.config)
        self._publish_changes()
        await self._port.start()
        self._looking = asyncio.ensure_future(self._look())

    async def stop(self) -> None:
        """Let them go. Accepted calls are answered before."""
        if self._looking is not None:
            self._looking.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._looking
        await self._port.settle()
        await self._port.stop()

    async def _look(self) -> None:
        for turn in itertools.count():
            await asyncio.sleep(LOOK_EVERY_S)
            self._publish_changes()
            self._port.give_back()
            if turn % _SETTLE_EVERY == 0:
                await self._port.settle()

    def _take_over(self, config: Config) -> None:
        """Another configuration is in force: doors get its text."""
        self._text = self._text_of(config) or self._text
        self._reloads += 1
        self._publish_changes()

    def _text_of(self, config: Config) -> str:
        """The YAML that a configuration was made of; "" where that is found no more."""
        for _ in range(_READS):
            with contextlib.suppress(OSError):
                text = config.source.read_text(encoding="utf-8")
                if config.is_of(text):
                    return text
        return self._first_text if config.is_of(self._first_text) else ""

    def _publish_changes(self) -> None:
        """Tell doors what serves now, if that is not what they know."""
        service, snapshot = self._service, self._app.repository.snapshot
        models = [model for versions in snapshot.models.values() for model in versions.values()]
        unready = tuple([model for model in models if not model.is_ready()])
        state = (
            snapshot,
            service.ready,
            service.online,
            service.draining,
            unready,
            self._serving(),
            dict(service.logs.settings()),
            self._reloads,
            self._text,
            tuple([model for model in models if model.is_traced]),
        )
        if state == self._published:
            return
        self._published = state
        known = self._known
        self._known = {model: known.get(model) or next(self._serials) for model in models}
        self._by_serial = {serial: model for model, serial in self._known.items()}
        self._views = {serial: model.view for serial, model in self._by_serial.items()}
        self._offers = {serial: offer for serial, offer in self._offers.items() if serial in self._views}
        for model, serial in self._known.items():
            if model not in known and (offer := self._app.replica_offer(model)) is not None:
                self._offers[serial] = offer
        # The engine has to see requests that leave traces.
        self._replicated = tuple([serial for serial in self._offers if not self._by_serial[serial].is_traced])
        self._number += 1
        self._port.publish(self._number)

    def _serving(self) -> tuple[str, ...]:
        return tuple([name for name in self._app.router.held_names() if self._service.serves(name)])

    def _doors(self) -> list[dict[str, Any]]:
        """All that were ever there, for the operator's page."""
        now, restarts = asyncio.get_running_loop().time(), self._app.metrics.restarts_of_doors
        return [
            {
                "slot": slot,
                "up": door is not None,
                "since_s": int(now - since),
                "connections": 0 if door is None else self._observed.connections(door),
                "restarts": sum(restarts.get(slot, {}).values()),
            }
            for slot, (door, since) in sorted(self._port.slots.items())
        ]

    def _has_series(self, model: str, version: str) -> bool:
        """Whether calls of that name are still told of: those of an unloaded version ended with it."""
        app = self._app
        if not model or model in app.router.routes:
            return True
        if not version:
            return app.router.is_public(model)
        return any(str(number) == version for number in app.repository.snapshot.models.get(model, ()))

    # ---------------------------------------------------------------------------------------------------- a port's host

    def view_of(self, serial: int) -> ModelView | None:
        """See door_port.Host."""
        return self._views.get(serial)

    def state(self, number: int, writer: TensorWriter) -> State:
        """See door_port.Host."""
        service, snapshot = self._service, self._app.repository.snapshot
        views: list[View] = [
            view_message(model.view, serial, writer, self._offers.get(serial)) for model, serial in self._known.items()
        ]
        return State(
            number,
            tuple(views),
            {name: dict(labels) for name, labels in snapshot.labels.items()},
            tuple(sorted(snapshot.unloaded)),
            service.ready,
            service.online,
            service.draining,
            tuple([serial for model, serial in self._known.items() if not model.is_ready()]),
            self._serving(),
            dict(service.logs.settings()),
            self._reloads,
            self._text,
            self._replicated,
        )

    def seconds_of(self, serial: int, request: InferRequest) -> Seconds | None:
        """See door_port.Host."""
        if serial not in self._offers:
            return None
        admission = self._by_serial[serial].admission_of(request)
        return lambda: admission.seconds

    def observed(self, door: int, message: Observed) -> None:
        """See door_port.Host."""
        try:
            self._observed.add(door, message)
            for each in message.routes:
                route = self._app.router.routes.get(each.route)
                if route is not None:
                    route.add((each.model, each.version, each.why), each.requests)
            for serial, data in message.replicas:
                runs = counted(data)
                if serial in self._by_serial:
                    self._by_serial[serial].counters.note_in_door(runs)
        except ValueError as error:
            raise CrossingBroken(f"counts: {error}") from None

    def joined(self, hello: Hello) -> None:
        """See door_port.Host."""
        self._observed.joined(hello.slot, hello.restarts)

    def left(self, door: int) -> None:
        """See door_port.Host."""
        self._observed.gone(door)

    async def relay(self, door: DoorConnection, message: Relay | RelayPage, body: Buffer) -> None:
        """See door_port.Host."""
        if isinstance(message, RelayPage):
            await self._relay_page(door, message)
            return
        before = self._number

        async def send(reply: Reply) -> None:
            self._publish_changes()
            if self._number != before:
                await self._port.seen()
            await self._reply(door, message.call, reply)

        def accepted(decoupled: bool) -> None:
            door.send(RelayAccepted(message.call, decoupled))

        endpoint, call = self._call(message, body)
        outcomes: list[CallOutcome] = []
        call.report = outcomes.append  # type: ignore[assignment]  # it is told of outcomes
        call.record = recorder = None if message.carried is None else CallRecorder(message.carried)
        await self._service.handle(message.dialect, endpoint, call, send, accepted)
        door.send(_end(message.call, outcomes.pop(), recorder))  # popped: it has the call, which would have itself

    async def _relay_page(self, door: DoorConnection, message: RelayPage) -> None:
        page = self._pages.get(message.path)
        if page is None:
            raise CrossingBroken(f"no page {message.path[:80]}")
        await self._port.settle()
        reply = await page(RelayedExchange(message))
        self._publish_changes()
        await self._reply(door, message.call, reply)
        door.send(RelayEnd(message.call, Code.OK, Code.OK, *CALLER_LEFT, "", "", "", None, 0.0))

    def _call(self, message: Relay, body: Buffer) -> tuple[Endpoint, Call]:
        dialect = self._app.called.get(message.dialect)
        if dialect is None:
            raise CrossingBroken(f"no dialect {message.dialect[:80]}")
        if message.transport == "grpc":
            endpoint = dialect.grpc.get(message.target)
            if endpoint is None:
                raise CrossingBroken(f"no method {message.target[:80]}")
        else:
            endpoint = dialect.match(message.method, message.target).endpoint
        max_body_bytes, max_binary_bytes, max_json_depth = message.limits
        call = Call(
            body,
            message.method,
            message.target,
            message.headers,
            "grpc" if message.transport == "grpc" else "http",
            message.args,
            message.deadline,
            max_body_bytes,
            max_binary_bytes,
            max_json_depth,
            listener=message.listener,
            peer=RelayedPeer(*message.peer),
            auth=message.auth,
            request_id=message.request_id,
            admitted=message.admitted,
        )
        call.share = message.share
        if message.caller is not None:
            name, roles, until = message.caller
            call.caller = Caller(name, frozenset(roles), until)
        return endpoint, call

    async def _reply(self, door: DoorConnection, call: int, reply: Reply) -> None:
        if reply.streamed:
            await door.wait_for_room(call)
        body = reply.body
        parts = (body,) if isinstance(body, (bytes, bytearray, memoryview)) else body
        writer = door.channel.writer
        door.send(
            RelayReply(
                call,
                tuple([writer.data(part) for part in parts]),
                reply.http_status,
                dict(reply.headers),
                reply.grpc_code,
                reply.message,
                reply.streamed,
                None if reply.metadata is None else (dict(reply.metadata[0]), dict(reply.metadata[1])),
            )
        )


class RelayObserver:
    """Gives calls of doors the records that these want: an engine has no calls of its own."""

    access_log = None

    def begin(self, endpoint: Endpoint, call: Call, begun: float) -> CallRecorder | None:
        """See Observer."""
        recorder: CallRecorder | None = call.record
        return recorder


def _end(call: int, outcome: CallOutcome, recorder: CallRecorder | None) -> RelayEnd:
    question = outcome.question
    view = question.view if type(question) is InferRequest else outcome.forwarded
    own_name = "" if view is None else getattr(view.handle, "name", view.name)
    if view is not None:
        outcome.named = view.name, view.version
    elif outcome.endpoint.method not in INFERENCES:
        outcome.named = "", ""
    model, version = outcome.named
    return RelayEnd(
        call,
        outcome.code,
        outcome.reply_code,
        outcome.failure.error,
        outcome.failure.reason,
        outcome.error_text,
        model,
        own_name,
        version if isinstance(version, int) else None,
        outcome.model_seconds,
        counted_model(outcome),
        *((), ()) if recorder is None else recorder.take(),
    )

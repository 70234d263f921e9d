"""A door: a process that accepts connections, reads, checks and writes calls, and has the engine's process answer them.

It has no model, queue or counter that another door would have to know of. Inferences cross decoded; every other call is
relayed as it came. While the engine is away, a door says so at once, in each dialect's words.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import aclosing
from functools import partial
from typing import Any, Final, NoReturn

from tensorgate import __version__
from tensorgate.adapters.protobuf import messages as descriptors
from tensorgate.gateway.app import alias, docs_pages, guarded, house_dialects, observer_of, recorder_of, trim_memory
from tensorgate.gateway.config import Config, ConfigError, model_validator
from tensorgate.gateway.contract.call import Reply, combined
from tensorgate.gateway.contract.canonical import ModelRef
from tensorgate.gateway.contract.dialect import Dialect
from tensorgate.gateway.contract.errors import Code, ErrorReason, GatewayError, Unsupported
from tensorgate.gateway.contract.execution import Computation
from tensorgate.gateway.contract.questions import ServerDescription
from tensorgate.gateway.contract.registries import Registries
from tensorgate.gateway.contract.tensor import NOTHING
from tensorgate.gateway.contract.text import SECTION, TextOptions
from tensorgate.gateway.crossing.engine_link import EngineLink, tell
from tensorgate.gateway.crossing.messages import (
    ModelProgram,
    Relay,
    RelayAccepted,
    RelayEnd,
    RelayPage,
    RouteCount,
    State,
)
from tensorgate.gateway.crossing.role import Role
from tensorgate.gateway.crossing.shared_state import SharedState
from tensorgate.gateway.model_loading import load_program
from tensorgate.gateway.monitoring.call_counters import CountedModel
from tensorgate.gateway.monitoring.door_metrics import DoorMetrics
from tensorgate.gateway.monitoring.metrics import note_traced
from tensorgate.gateway.page import DATA_PATHS, html_pages
from tensorgate.gateway.remote_engine import RemoteEngine
from tensorgate.gateway.replicas import Replicas
from tensorgate.gateway.security.access import AccessRules
from tensorgate.gateway.security.auth import AdminKey
from tensorgate.gateway.security.authorizer import authorizer_of
from tensorgate.gateway.security.limit_table import LimitTable
from tensorgate.gateway.service import Accepted, Send, Service
from tensorgate.gateway.telemetry.call_outcome import CallOutcome, FailureKind
from tensorgate.gateway.transport.http_exchange import HttpExchange
from tensorgate.gateway.transport.http_server import Page, probe_page, read_only
from tensorgate.gateway.transport.ports import Ports
from tensorgate.gateway.transport.sockets import Sockets
from tensorgate.gateway.transport.spread import Spread
from tensorgate.gateway.wire.http1_body import SHARED_BODIES

log = logging.getLogger(__name__)

MAX_PAGE_BODY_BYTES: Final = 1 << 20
MAX_WAIT_S: Final = 5.0
"""How long the first door of a slot lets connections wait for the engine before it listens, and answers that there is
none, and a door that is to replace one that serves lets that serve; one that follows a door that has fallen waits only
MAX_NEXT_WAIT_S, for its engine is there or is down."""
MAX_NEXT_WAIT_S: Final = 0.5
RETRY_S: Final = 1.0
MAX_SILENCE_S: Final = 5.0
"""An engine that says nothing for longer hangs: no traffic should come."""
ReadText = Callable[[str], Config]
"""The configuration of a YAML text. Raises ConfigError."""


class DoorService(Service):
    """Answers calls by the engine's process. `state` is what that has said last; None while it is away."""

    shared: SharedState
    state: State | None = None
    heard_at = -math.inf
    """When the engine has asked last what was counted, which it does twice a second, by `time.monotonic()`."""

    @property
    def ready(self) -> bool:
        """Whether the engine is, and lives, all doors have found it, and this one goes on."""
        return self.state is not None and self.state.ready and self._goes_on()

    def serves(self, name: str) -> bool:
        """Whether traffic should come here for a model of that name; any other name stands for the server."""
        if self.state is not None and name in self._engine.names():
            return name in self.state.serving and self._goes_on()
        return self.ready

    def _goes_on(self) -> bool:
        return not self.draining and time.monotonic() - self.heard_at <= MAX_SILENCE_S and self.shared.are_linked()


class Door:
    """One door. `start` listens, `drain` or `hand_on` end it."""

    def __init__(self, config: Config, kinds: Registries, role: Role, read_text: ReadText) -> None:
        self._config = config
        self._kinds = kinds = config.extended(kinds)
        self._read_text = read_text
        self._followed = ("", 0)
        self._slot = role.slot
        self._authorization: Any = (None, (), None)
        self._access: AccessRules | None = None
        options = config.dialects()
        self._dialects: dict[str, Dialect] = {name: kind.make(options[name]) for name, kind in kinds.dialects.items()}
        spoken = self._dialects.values()
        sections = {name: kind.model_options for name, kind in kinds.dialects.items() if kind.model_options is not None}
        sections[SECTION] = TextOptions
        self._link = EngineLink(
            role.engine_socket,
            __version__,
            role.slot,
            sections,
            self._on_state,
            self._settle,
            role.restarts or NOTHING,
            is_next=role.is_next,
        )
        default_model = next((dialect.default_model for dialect in spoken if dialect.default_model), None)
        self._engine = RemoteEngine(config, self._link, default_model, lambda view: alias(spoken, view))
        self._shared = SharedState(role.shared)
        self._observer = observer_of(config, self._shared.alone)
        wanted = {name: kind.metrics(config.metrics) for name, kind in kinds.dialects.items()}
        self._call_metrics = {name: each.calls for name, each in wanted.items() if each and each.calls}
        self._metrics = DoorMetrics(
            self._call_metrics, self._engine.is_public, self._observer, self._count_routes, self._routes_running
        )
        if self._observer is not None:
            self._observer.on_traced = partial(note_traced, self._metrics.calls)
        description = ServerDescription(config.server_name, __version__)
        self.service = DoorService(config, self._engine, self._metrics, description)
        self.service.relay = self._relay
        self.service.observer = self._observer
        self.service.recorder = self._recorder = recorder_of(config, role.slot)
        if self._recorder is not None:
            self._metrics.recorded = self._recorder.counts
        self.service.trim = trim_memory
        self.service.started = True
        self.service.shared = self._shared
        self._replicas = Replicas(self._load)
        self._metrics.replica_runs = self._replicas.take
        self._limits = LimitTable.of(self._shared, role.row)
        self._limits.forget_row()
        self._spread = Spread(self._shared, role.row, role.door_socket)
        self._sockets = Sockets.inherited(role.http, role.metrics, role.grpc)
        traffic, house = self._metrics.traffic, house_dialects(config)
        self._ports = Ports(self.service, self._dialects, descriptors.pool(), traffic, self._guarded, house)
        self._connecting: asyncio.Task[None] | None = None
        self._bounding: asyncio.TimerHandle | None = None
        self._told = asyncio.Event()
        self._max_wait_s = MAX_WAIT_S if role.restarts is None or role.is_next else MAX_NEXT_WAIT_S
        self._take_over(config)

    @property
    def outdated(self) -> asyncio.Event:
        """Set once another program has to be this door: the engine is of a newer one; or it is of an older one, and the
        door that this one was to replace gets along with it.
        """
        return self._link.outdated

    async def start(self) -> bool:
        """Look for the engine, and listen once it has said what it serves: until then clients wait to be accepted, for
        so long as a client may well wait. False, and it does not listen, if this door is outdated already.
        """
        SHARED_BODIES.allocate = self._link.room
        self._connecting = asyncio.ensure_future(self._link.run())
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._max_wait_s):
                await self._told_or_outdated()
        if self.outdated.is_set():
            return False
        await self._ports.start(self._config, self._sockets, self._pages, self._spread)
        self._spread.start()
        self._bound()
        return True

    async def _told_or_outdated(self) -> None:
        waits = [asyncio.ensure_future(event.wait()) for event in (self._told, self.outdated)]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in waits:
                each.cancel()

    async def drain(self, hurried: asyncio.Event, *, hand_on: bool) -> bool:
        """Unready; after `unready_seconds`, or once it is `hurried`, no new connections, and everything that was
        accepted answered. With `hand_on` another door goes on at the same sockets, at once.

        False if that took longer than `drain_seconds`.
        """
        grace = self._config.drain_seconds
        self.service.draining = not hand_on
        self._ports.drain()
        if not hand_on:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._config.unready_seconds):
                    await hurried.wait()
        self._spread.stop()
        timer = asyncio.get_running_loop().call_later(grace, self._link.give_up)
        try:
            async with asyncio.timeout(grace + 1):
                await self._ports.stop(grace + 0.5, hand_on=hand_on)
        except TimeoutError:
            return False
        finally:
            timer.cancel()
            if self._bounding is not None:
                self._bounding.cancel()
            with contextlib.suppress(GatewayError):
                self._settle(0)
                await asyncio.sleep(0)  # it leaves with this turn of the loop
            if self._connecting is not None:
                self._connecting.cancel()
            self._shared.clear(self._spread.row)
            await self._replicas.close()
            if self._observer is not None:
                await asyncio.to_thread(self._observer.close)
            if self._recorder is not None:
                await asyncio.to_thread(self._recorder.close)
        return True

    def reopen_logs(self) -> None:
        """The access log was renamed, and goes on in a new file."""
        if self._observer is not None:
            self._observer.reopen()

    def _load(self, program: ModelProgram) -> Computation:
        """A copy of a model, in a thread."""

        def refuse(ref: ModelRef) -> NoReturn:
            raise Unsupported(f"a copy of model '{program.name}' asks no other models")

        def wait(work: Coroutine[Any, Any, Any]) -> Any:
            return asyncio.run_coroutine_threadsafe(work, self._link.loop).result()

        return load_program(self._kinds, model_validator(self._kinds), program, refuse, wait)

    # -------------------------------------------------------------------------------------------- what the engine says

    def _on_state(self, state: State | None) -> None:
        self.service.state = state
        self._shared.set_linked(self._spread.row, linked=state is not None)
        if state is None:
            return
        models = self._link.snapshot.models
        self._replicas.follow([each for versions in models.values() for each in versions.values()], state.replicated)
        self._metrics.keep({(view.name, str(view.version)) for view in state.models}, self._engine.routes)
        self.service.heard_at = time.monotonic()
        self._told.set()
        self.service.online = state.online
        if state.log_settings != self.service.logs.settings():
            self.service.logs.change(state.log_settings)
        self._follow()

    def _follow(self) -> None:
        """Take over the engine's configuration, unless that is done; again a second later where it cannot be."""
        state = self.service.state
        if state is None or not state.configuration:
            return
        wanted = (state.configuration, state.reloads)
        if wanted == self._followed:
            return
        try:
            self._take_over(self._read_text(state.configuration))
        except (ConfigError, OSError, ValueError) as error:  # a file that is being replaced, or an older program here
            log.error("door %s goes by its old configuration, the engine's cannot be read: %s", self._slot, error)
            asyncio.get_running_loop().call_later(RETRY_S, self._follow)
        else:
            self._followed = wanted

    def _take_over(self, config: Config) -> None:
        """All that a configuration says of calls, as far as it takes effect without a restart."""
        self._config = config
        self.service.admin = AdminKey(config.admin) if config.admin else None
        authorization = (config.auth, config.rate_limits, config.limits.max_elements, config.shares)
        if authorization != self._authorization:
            self.service.authorizer, self._access = authorizer_of(config, self._engine.models_behind, self._limits)
            self._authorization = authorization
        self._engine.take_over(config, self._access)
        self._ports.limit(config)
        self.service.reconfigure(config)

    def _count_routes(self) -> tuple[RouteCount, ...]:
        return tuple(
            [
                RouteCount(name, *key, requests)
                for name, route in self._engine.routes.items()
                for key, requests in route.take_counts().items()
            ]
        )

    def _routes_running(self) -> tuple[tuple[str, int], ...]:
        return tuple([(name, route.counts.running) for name, route in self._engine.routes.items()])

    def _bound(self) -> None:
        """See to it once a second that an engine that does not ask costs no memory."""
        self._metrics.bound()
        self._bounding = asyncio.get_running_loop().call_later(1, self._bound)

    def _settle(self, number: int) -> None:
        self.service.heard_at = time.monotonic()
        self._link.send(self._metrics.take(number))

    # ------------------------------------------------------------------------------------------------------ whole calls

    async def _relay(self, outcome: CallOutcome, send: Send, accepted: Accepted | None) -> tuple[str, int | str]:
        """See service.Relay."""
        call, record = outcome.call, outcome.call_record

        def message(number: int, writer: Any) -> Relay:
            caller = call.caller
            return Relay(
                number,
                call.dialect,
                writer.data(call.body),
                call.method,
                call.raw_target,
                combined(call.headers.items()),
                call.transport,
                dict(call.args),
                call.deadline,
                (call.max_body_bytes, call.max_binary_bytes, call.max_json_depth),
                call.listener,
                (call.peer.address(), tuple(call.peer.names())),
                None if caller is None else (caller.name, tuple(caller.roles), caller.until),
                call.auth,
                call.request_id,
                call.admitted,
                None if record is None else dict(record.carried()),
                call.share,
            )

        async with aclosing(self._link.relay(message)) as events:
            async for event in events:
                if type(event) is Reply:
                    if (sent := send(event)) is not None:
                        await sent
                elif type(event) is RelayAccepted:
                    if accepted is not None and not call.accepted:
                        accepted(event.decoupled)
                    call.accepted = True
                elif type(event) is RelayEnd:
                    outcome.code, outcome.reply_code = Code(event.code), Code(event.reply_code)
                    outcome.failure, outcome.error_text = FailureKind(event.kind, ErrorReason(event.reason)), event.text
                    outcome.model_seconds = event.model_seconds
                    if event.counted is not None:
                        name, rows = event.counted
                        outcome.counted = CountedModel(name, event.model_seconds, rows)
                    outcome.named = event.model, "" if event.version is None else event.version
                    if record is not None:
                        tell(record, event.ran, event.asked)
                        record.view = self._engine.view_of(event.model, event.own_name, event.version or 0)
                    return outcome.named
        return "", 0

    # ----------------------------------------------------------------------------------------------------- the house's

    def _pages(self, dialects: Sequence[Dialect]) -> dict[str, Page]:
        own = {"/healthz": probe_page(lambda: True), "/readyz": probe_page(lambda: self.service.ready)}
        relayed = ["/metrics", "/admin/reload", *(each.path for each in self._call_metrics.values())]
        found: dict[str, Page] = {path: self._relayed_page(path) for path in relayed} | own
        if self._config.page and dialects:
            found |= {path: read_only(read) for path, read in html_pages(dialects).items()}
            found |= {path: self._relayed_page(path) for path in DATA_PATHS}
        return found | {path: read_only(read) for path, read in docs_pages(self._config, dialects).items()}

    def _guarded(self, shown: Mapping[str, Page]) -> dict[str, str]:
        return guarded(shown, (each.path for each in self._call_metrics.values()), self._dialects.values())

    def _relayed_page(self, path: str) -> Page:
        async def page(exchange: HttpExchange) -> Reply:
            here = exchange.take_body()
            body = bytes(await exchange.read(MAX_PAGE_BODY_BYTES) if here is None else here)

            def message(number: int, writer: Any) -> RelayPage:
                peer = exchange.peer
                return RelayPage(
                    number,
                    path,
                    exchange.method,
                    exchange.target,
                    combined(exchange.headers.items()),
                    body,
                    (peer.address(), tuple(peer.names())),
                )

            try:
                async with aclosing(self._link.relay(message)) as events:
                    async for event in events:
                        if type(event) is Reply:
                            return event
            except GatewayError as error:
                headers = {"Content-Type": "text/plain; charset=utf-8", **error.http_headers}
                return Reply(f"{error}\n".encode(), 503, headers)
            return Reply(b"", 503)

        return page

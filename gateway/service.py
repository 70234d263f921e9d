"""The life of a request, in one place for every dialect and transport.

    decode   the dialect turns the call's bytes into a question, resolving the model on the way
    answer   an inference is submitted to the model's scheduler, any other question is looked up
    encode   the dialect turns each answer into a reply

`handle` is the only way in, a unary call a stream of one. It turns every failure into one encoded error, times the
stages, and counts the call when it is over.

Large bodies must not make small ones wait. Whatever is read or written for more than some tenths of a millisecond is
read or written in a thread, and the long steps of that give the interpreter away: digits, strings and tf.Examples in
the compiled helpers, copies in NumPy, compression in zlib. What is left keeps the loop for less than 2 ms, mostly for
less than one; for longer only gRPC's own copies of messages as large as 64 MB, and large documents of many small values
(`benchmarks.mix` has figures).

Processes in front of the engine would stall each other less still. But the way to another process and back costs each
request 75 to 110 us, through shared memory at that, and a model's batches, sequences, counters and administration would
have to be shared. So there is one process.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from inspect import isawaitable
from typing import Any, Final

from tensorgate.gateway.config import Config
from tensorgate.gateway.contract.call import Call, MustOffload, Reply
from tensorgate.gateway.contract.canonical import Answers, InferRequest, InferResponse, ModelRef
from tensorgate.gateway.contract.dialect import Endpoint, Resolve
from tensorgate.gateway.contract.errors import (
    Code,
    GatewayError,
    Internal,
    ModelDecoupled,
    ModelFailed,
    ModelNotFound,
    ModelUnavailable,
    NotOneAnswer,
    Unauthenticated,
    Unknown,
)
from tensorgate.gateway.contract.questions import (
    IndexEntry,
    InferTogether,
    LoadModel,
    LogSettings,
    ModelConfiguration,
    ModelList,
    ModelMetadata,
    ModelReady,
    ModelStatistics,
    ModelStatus,
    MonitorSeries,
    RegionStatus,
    RegisterRegion,
    ReloadModels,
    RepositoryIndex,
    ServerDescription,
    ServerLive,
    ServerMetadata,
    ServerReady,
    SetOnline,
    Statistics,
    TraceSettings,
    UnloadModel,
    UnregisterRegion,
    VersionStatus,
)
from tensorgate.gateway.engine.inline_dispatch import InlineCall
from tensorgate.gateway.engine.pending_request import CompletedResponse
from tensorgate.gateway.engine.shared_memory import SharedMemory
from tensorgate.gateway.models.repository import Repository
from tensorgate.gateway.monitoring.metrics import CallSeries, MetricsCollector
from tensorgate.gateway.monitoring.observer import Observer
from tensorgate.gateway.monitoring.time_series import TimeSeries
from tensorgate.gateway.routing.route import Route
from tensorgate.gateway.routing.router import Resolution, Router
from tensorgate.gateway.routing.shadow import MirroredRequest, Shadow
from tensorgate.gateway.security.auth import AdminKey
from tensorgate.gateway.security.authorizer import Authorizer
from tensorgate.gateway.telemetry.call_record import CallRecord
from tensorgate.gateway.telemetry.logs import Logs
from tensorgate.gateway.telemetry.tracing import Tracing

log = logging.getLogger(__name__)

Send = Callable[[Reply], Awaitable[None]]
"""Takes a reply away, and waits while the client is slow. Raises ConnectionError once the client has left."""

Accepted = Callable[[InferRequest], None]

LARGE_BODY_BYTES: Final = 2 << 20
"""Bodies of this size and more are decoded in a thread, so that all others need not wait for a hostile one."""
TRIM_AFTER_S: Final = 5.0
"""Large bodies that follow each other use the same memory again."""
_CODECS: Final = 2
_NEUTRAL: Final = "the model failed; the log of the server says more"


class Service:
    """Answers calls. `started`, `draining`, `gate` (who may ask for what), `admin` (what callers must show who change
    the server's state), `observer` (who is told of every call) and `trim` (gives back what the allocator keeps; called
    in a thread) belong to the composition root, `online` to grps' operators. `exposes_model_errors`: callers read what
    a model's code has raised.
    """

    def __init__(
        self,
        config: Config,
        repository: Repository,
        router: Router,
        metrics: MetricsCollector,
        description: ServerDescription,
        tracing: Tracing | None = None,
        memory: SharedMemory | None = None,
        monitor: TimeSeries | None = None,
    ) -> None:
        self._monitor = monitor or TimeSeries(metrics)
        self._memory = memory or SharedMemory()
        self._config = config
        self._repository = repository
        self._resolve = router.resolve
        self._router = router
        self._metrics = metrics
        self._description = description
        self._tracing = tracing or Tracing()
        self._logs = Logs()
        self._codecs = ThreadPoolExecutor(_CODECS, "codec")
        self.admin: AdminKey | None = None
        self.gate: Authorizer | None = None
        self.observer: Observer | None = None
        self.trim: Callable[[], None] | None = None
        self._trimming: asyncio.TimerHandle | None = None
        self.started = False
        self.draining = False
        self.online = False
        self.exposes_model_errors = True
        self._answers: Mapping[type, Callable[[Any], Any]] = {
            InferTogether: self._infer_together,
            ServerLive: lambda question: True,
            ServerReady: self._server_ready,
            SetOnline: self._set_online,
            ServerMetadata: self._server_metadata,
            ModelList: lambda question: self._router.names(),
            ModelReady: self._model_ready,
            ModelMetadata: lambda question: question.view,
            ModelStatus: self._model_status,
            ModelConfiguration: self._model_configuration,
            RepositoryIndex: self._repository_index,
            LoadModel: self._load_model,
            UnloadModel: self._unload_model,
            MonitorSeries: self._monitor.series,
            ReloadModels: self._reload_models,
            ModelStatistics: self._model_statistics,
            TraceSettings: self._trace_settings,
            LogSettings: self._log_settings,
            RegionStatus: self._memory.status,
            RegisterRegion: lambda question: asyncio.to_thread(self._memory.register, question),
            UnregisterRegion: self._memory.unregister,
        }

    @property
    def ready(self) -> bool:
        """Started, not draining, and (unless readiness is lenient) every wanted version loaded."""
        complete = self._config.readiness == "lenient" or self._repository.all_available()
        return self.started and not self.draining and complete

    def reconfigure(self, config: Config) -> None:
        """Another configuration, from now on."""
        self._config = config
        self.exposes_model_errors = config.expose_model_errors
        self._description = replace(self._description, configuration=config.plain())

    async def handle(
        self, dialect: str, endpoint: Endpoint, call: Call, send: Send, accepted: Accepted | None = None
    ) -> None:
        """Answer one call: `send` gets each reply, one at least unless a streaming model has nothing to say. `accepted`
        is told of a request that has been submitted, before any of its answers.

        Raises nothing but what ends a call from outside: its cancellation, or `send`'s word that the client has left.
        """
        begun = time.perf_counter()
        calls = question = None
        ran = 0.0
        code = told = Code.CANCELLED
        call.regions = self._memory
        call.dialect = dialect
        kind = ""
        observer = self.observer
        if observer is not None:
            call.call_record = observer.begin(endpoint, call, begun) if observer.has_spans else CallRecord()
        resolve = self._router.resolver(call)
        try:
            self._enter(endpoint, call)
            question = self._decode_at_once(endpoint, call, resolve)
            if question is None:
                question = await self._decode_in_thread(endpoint, call, resolve)
            if self.gate is not None:
                self.gate.admit(call, question)
            if type(question) is InferRequest:
                view = question.view
                calls = self._metrics.calls[dialect, call.transport, view.name, view.version, endpoint.method]
                calls.decoded(time.perf_counter() - begun)
                routed = view.route is not None and type(resolve) is Resolution
                infer = self._infer_by_route if routed else self._infer
                ran = await infer(endpoint, call, question, resolve, calls, send, accepted)
            else:
                await send(_seen(call, await self._answer(endpoint, call, question)))
            code = told = Code.OK
        except ConnectionError:
            raise
        except Exception as error:
            code, told, kind, reply = self._failed(endpoint, call, error)
            await send(_seen(call, reply))
        finally:
            call.end()
            calls = calls or self._metrics.calls[dialect, call.transport, "", "", endpoint.method]
            seconds = time.perf_counter() - begun
            if code:
                calls.failed(code, seconds)
            else:
                calls.took(seconds)
                calls.ran(ran)
            counter = self._metrics.call_counters.get(dialect)
            if counter is not None and (code or calls.tell is None):
                counter.ended(endpoint, call, question, told, seconds, ran)
            if observer is not None:
                observer.end(endpoint, call, question, code, kind, seconds)

    def _failed(self, endpoint: Endpoint, call: Call, error: Exception) -> tuple[Code, Code, str, Reply]:
        """A call ends with an error -> its code, what the caller is told, the error's name, and the answer."""
        if isinstance(error, GatewayError):
            if isinstance(error, (ModelFailed, Unknown)) and not self.exposes_model_errors:
                error = (Unknown if isinstance(error, Unknown) else ModelFailed)(_NEUTRAL)
            self._metrics.refused(error, draining=self.draining)
            reply = _refusal(error, endpoint.encode_error(error, call))
            return error.code, reply.grpc_code, type(error).__name__, reply
        log.error("%s %s failed unexpectedly", call.dialect, endpoint.address, exc_info=error)
        return Code.INTERNAL, Code.INTERNAL, Internal.__name__, endpoint.encode_error(Internal(), call)

    def _enter(self, endpoint: Endpoint, call: Call) -> None:
        """Past the gate, or past the administrator's key where there is none. Raises what refuses the call."""
        if self.gate is not None:
            self.gate.enter(endpoint, call, self.admin)
        elif endpoint.admin and self.admin is not None:
            self.admin.check(call.headers)

    async def _answer(self, endpoint: Endpoint, call: Call, question: Any) -> Reply:
        """What is looked up, or done, for a question that is no inference of one model."""
        if type(question) is InferTogether:
            for request in question.requests:
                request.cancellation.request_id = call.request_id
                if call.call_record is not None:
                    call.call_record.view = request.view
                    request.cancellation.call_record = call.call_record
        answer = self._answers[type(question)](question)
        if isawaitable(answer):
            answer = await answer
        if self.gate is not None:
            answer = self.gate.visible(call, question, answer)
        if type(question) is InferTogether and _is_any_long(endpoint, answer, question):
            reply: Reply = await self._in_thread(endpoint.encode, answer, question)
            return reply
        return endpoint.encode(answer, question)

    async def _infer(
        self,
        endpoint: Endpoint,
        call: Call,
        request: InferRequest,
        resolve: Resolve,
        calls: CallSeries,
        send: Send,
        accepted: Accepted | None,
        copy: MirroredRequest | None = None,
    ) -> float:
        """Submit a request, and send a reply for each of its answers. -> seconds until the model's last. `copy` hears
        what has been sent.
        """
        submitted = answered = time.perf_counter()
        try:
            answers = self._submit(endpoint, call, request)
        except ModelUnavailable:  # exchanged or unloaded while the body was read: ask what serves now
            request = await self._decode_in_thread(endpoint, call, resolve)
            answers = self._submit(endpoint, call, request)
        call.accepted = True
        if accepted is not None:
            accepted(request)
        answer = None
        if type(answers) is CompletedResponse:  # the usual way of small requests, spared an iteration
            answer = answers.take()
        elif type(answers) is InlineCall:
            answer = await answers.take()
        if answer is not None:
            answered = await self._send_answer(endpoint, call, answer, request, calls, send)
            if copy is not None:
                copy.on_answer(answer)
        else:
            try:
                async for answer in answers:
                    answered = await self._send_answer(endpoint, call, answer, request, calls, send)
                    if copy is not None:
                        copy.on_answer(answer)
            finally:
                answers.abandon()
        if endpoint.encode_end is not None and (end := endpoint.encode_end(answer, request)) is not None:
            await send(_seen(call, end))
        return answered - submitted

    async def _infer_by_route(
        self,
        endpoint: Endpoint,
        call: Call,
        request: InferRequest,
        resolve: Any,
        calls: CallSeries,
        send: Send,
        accepted: Accepted | None,
    ) -> float:
        """The same with what a route says of it: how long, how many at a time, and who else answers if its model
        cannot. `resolve` is the call's Resolution.
        """
        route: Route = request.view.route
        again = resolve.again(request)
        route.enter()
        has_sent = False

        async def send_once(reply: Reply) -> None:
            nonlocal has_sent
            has_sent = True
            await send(reply)

        try:
            while True:
                if again is not None:
                    request = self._decode_at_once(endpoint, call, again)
                    if request is None:
                        request = await self._decode_in_thread(endpoint, call, again)
                if route.timeout_s:
                    request = _hurried(request, route.timeout_s)
                route.count(request.view, resolve.why)
                tell = None if call.accepted else accepted  # its place in a stream it has once
                infer = self._infer if route.mirror is None else partial(self._infer_mirrored, route.mirror)
                try:
                    return await infer(endpoint, call, request, again or resolve, calls, send_once, tell)
                except GatewayError as error:
                    again = None if has_sent else resolve.instead(request, error)
                    if again is None:
                        raise
        finally:
            route.leave()

    async def _infer_mirrored(
        self,
        shadow: Shadow,
        endpoint: Endpoint,
        call: Call,
        request: InferRequest,
        resolve: Resolve,
        calls: CallSeries,
        send: Send,
        accepted: Accepted | None,
    ) -> float:
        """The same as `_infer`; afterwards, other models may get the request, too."""
        copy = shadow.copy(request, self._router.target)
        if copy is None:
            return await self._infer(endpoint, call, request, resolve, calls, send, accepted)
        with copy:
            seconds = copy.seconds = await self._infer(endpoint, call, request, resolve, calls, send, accepted, copy)
        return seconds

    async def _send_answer(
        self,
        endpoint: Endpoint,
        call: Call,
        answer: InferResponse,
        request: InferRequest,
        calls: CallSeries,
        send: Send,
    ) -> float:
        """-> when the model had given it."""
        begun = time.perf_counter()
        if endpoint.is_long(answer, request):
            reply = await self._in_thread(endpoint.encode, answer, request)
        else:
            reply = endpoint.encode(answer, request)
        calls.encoded(time.perf_counter() - begun)
        if call.call_record is not None:
            call.call_record.replied(reply, begun)
        await send(reply)
        return begun

    def _decode_at_once(self, endpoint: Endpoint, call: Call, resolve: Resolve) -> Any:
        """What is asked; None where that would keep the loop from others."""
        if len(call.body) >= LARGE_BODY_BYTES:
            return None
        try:
            return endpoint.decode(call, resolve)
        except MustOffload:
            return None

    async def _decode_in_thread(self, endpoint: Endpoint, call: Call, resolve: Resolve) -> Any:
        call.in_thread = True
        if len(call.body) >= LARGE_BODY_BYTES or "content-encoding" in call.headers:
            call.on_end(self._trim_later)
        return await self._in_thread(endpoint.decode, call, resolve)

    def _trim_later(self) -> None:
        """What a large body was read into is free now, and still kept."""
        if self.trim is not None and self._trimming is None:
            self._trimming = asyncio.get_running_loop().call_later(TRIM_AFTER_S, self._trim, self.trim)

    def _trim(self, trim: Callable[[], None]) -> None:
        self._trimming = None
        self._codecs.submit(trim)

    async def _in_thread(self, step: Callable[..., Any], *args: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._codecs, step, *args)

    def _submit(self, endpoint: Endpoint, call: Call, request: InferRequest) -> Answers:
        view = request.view
        call_record = call.call_record
        if call_record is not None:
            call_record.submitted(view)
            request.cancellation.call_record = call_record
        if call.request_id:
            request.cancellation.request_id = call.request_id
        if not view.decoupled:
            return view.handle.submit(request, awaited=True)
        if endpoint.stream == "unary":
            raise ModelDecoupled(view.name)
        answers = view.handle.submit(request, awaited=True)
        takes_one = endpoint.stream == "single" or (endpoint.stream == "server" and not request.stream)
        return SingleResponse(answers, view.name) if takes_one else answers

    async def _infer_together(self, question: InferTogether) -> tuple[InferResponse, ...]:
        """Submit all requests, then wait for each; whatever ends the waiting, nobody waits for the rest."""
        pending: list[Answers] = []
        try:
            for request in question.requests:
                if request.view.decoupled:
                    raise ModelDecoupled(request.view.name)
                pending.append(request.view.handle.submit(request))
            return tuple([await anext(answers) for answers in pending])
        finally:
            for answers in pending:
                answers.abandon()

    def serves(self, name: str) -> bool:
        """Whether traffic should come here for a model of that name; any other name stands for the server."""
        if name in self._router.names():
            return self._model_ready(ModelReady(ModelRef(name)))
        return self.ready

    # ------------------------------------------------------------------------------------------------- other questions

    def _server_ready(self, question: ServerReady) -> bool:
        return self.ready and (self.online or not question.online_gate)

    def _set_online(self, question: SetOnline) -> None:
        self.online = question.online

    def _model_ready(self, question: ModelReady) -> bool:
        try:
            view = self._resolve(question.ref)
        except GatewayError:
            return False
        return not self.draining and view.handle.is_ready()

    def _model_status(self, question: ModelStatus) -> tuple[VersionStatus, ...]:
        ref = question.ref
        model = self._router.models_behind(ref.name)[0]
        try:
            return self._repository.statuses(model, ref.version)
        except ModelNotFound as error:
            raise ModelNotFound(ref.name, ref.version, known=error.known) from None

    def _server_metadata(self, question: ServerMetadata) -> ServerDescription:
        models = {name: self._told(name, plain) for name, plain in self._repository.configurations().items()}
        return replace(self._description, configuration={**self._description.configuration, "models": models})

    def _model_configuration(self, question: ModelConfiguration) -> Mapping[str, Any]:
        return self._told(question.name, self._repository.configuration(question.name))

    def _told(self, name: str, configuration: Mapping[str, Any]) -> Mapping[str, Any]:
        """A model's configuration with its name, and the highest version that is loaded."""
        loaded = self._repository.snapshot.models.get(name)
        return {"name": name, **configuration} | ({"version": max(loaded)} if loaded else {})

    # ------------------------------------------------------------------------------------------------------ repository

    async def _repository_index(self, question: RepositoryIndex) -> tuple[IndexEntry, ...]:
        return await self._repository.index(question.ready_only)

    async def _load_model(self, question: LoadModel) -> None:
        await self._repository.load(question.name, question.configuration, question.files)

    async def _unload_model(self, question: UnloadModel) -> None:
        await self._repository.unload(question.name, question.dependents)

    async def _reload_models(self, question: ReloadModels) -> int:
        before = self._metrics.inferences
        await self._repository.reload(question.models)
        return self._metrics.inferences - before

    # ------------------------------------------------------------------------------- statistics, trace and log settings

    def _model_statistics(self, question: ModelStatistics) -> tuple[Statistics, ...]:
        models = self._repository.snapshot.models
        if question.ref is None:
            every = [(name, models[name]) for name in sorted(models)]
        else:
            every = [(question.ref.name, self._router.served(question.ref))]
        return tuple(
            version.counters.statistics(name, version.version)
            for name, versions in every
            for version in versions.values()
        )

    def _trace_settings(self, question: TraceSettings) -> Mapping[str, tuple[str, ...]]:
        model = self._router.models_behind(question.model)[0]
        if model and model not in self._repository.snapshot.models:
            raise ModelNotFound(question.model)
        self._tracing.change(model, question.changes)
        return self._tracing.settings(model)

    def _log_settings(self, question: LogSettings) -> Mapping[str, bool | int | str]:
        self._logs.change(question.changes)
        return self._logs.settings()


def _seen(call: Call, reply: Reply) -> Reply:
    """A reply that is about to be sent."""
    if call.call_record is not None:
        call.call_record.replied(reply)
    return reply


def _is_any_long(endpoint: Endpoint, answers: tuple[InferResponse, ...], question: InferTogether) -> bool:
    return any(map(endpoint.is_long, answers, question.requests))


def _refusal(error: GatewayError, reply: Reply) -> Reply:
    """An error with the headers that go with it. A stream of somebody unknown ends: there no message can be one."""
    if error.http_headers:
        reply = replace(reply, headers={**reply.headers, **error.http_headers})
    if type(error) is Unauthenticated and reply.grpc_code is Code.OK:
        reply = replace(reply, grpc_code=error.code, message=reply.message or str(error))
    return reply


def _hurried(request: InferRequest, seconds: float) -> InferRequest:
    """A request that is late once these seconds are over."""
    until = time.monotonic() + seconds
    return replace(request, deadline=until if request.deadline is None else min(request.deadline, until))


class SingleResponse(AsyncIterator[InferResponse]):
    """The answers of a decoupled model to a call that can carry exactly one. One without outputs, as some models end
    with, does not count.

    Raises NotOneAnswer as soon as it is known: what else the model would say is never asked for.
    """

    def __init__(self, answers: Answers, model: str) -> None:
        self._answers = answers
        self._model = model
        self._told = False

    async def __anext__(self) -> InferResponse:
        if self._told:
            raise StopAsyncIteration
        only = await self._next()
        if only is None or await self._next() is not None:
            raise NotOneAnswer(self._model)
        self._told = True
        return only

    async def _next(self) -> InferResponse | None:
        async for answer in self._answers:
            if answer.outputs:
                return answer
        return None

    def abandon(self) -> None:
        """See Answers."""
        self._answers.abandon()

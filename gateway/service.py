"""The life of a request, in one place for every dialect and transport.

    decode   the dialect turns the call's bytes into a question, resolving the model on the way
    answer   the engine gets an inference, or any other question (`contract.engine`)
    encode   the dialect turns each answer into a reply

`handle` is the only way in, a unary call a stream of one. It turns every failure into one encoded error, and reports
the call's outcome once.

Large bodies must not make small ones wait. Whatever is read or written for more than some tenths of a millisecond is
read or written in a thread, and the long steps of that give the interpreter away: digits, strings and tf.Examples in
the compiled helpers, copies in NumPy, compression in zlib. What is left keeps the loop for less than 2 ms, mostly for
less than one; for longer only gRPC's own copies of messages as large as 64 MB, and large documents of many small values
(`benchmarks.mix` has figures).

Where there are cores for it, several processes of this kind, called doors, stand in front of one engine in a process of
its own. A door's service decodes, submits and encodes inferences itself, and relays every other call.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing, suppress
from dataclasses import replace
from inspect import isawaitable
from typing import Any, Final

from tensorgate.gateway.config import Config
from tensorgate.gateway.contract.call import ArrivingReply, Call, MustOffload, MustRelay, Reply
from tensorgate.gateway.contract.canonical import (
    Answers,
    InferRequest,
    InferResponse,
    ModelRef,
    ModelView,
    MustForward,
    MustLoad,
    OutgoingSpan,
)
from tensorgate.gateway.contract.dialect import Endpoint, Follow, QuotaHeaders, Resolve
from tensorgate.gateway.contract.engine import CallResolver, Engine, OnAnswer, TakesPieces
from tensorgate.gateway.contract.errors import (
    Code,
    ErrorReason,
    GatewayError,
    Internal,
    InvalidArgument,
    LabelNotFound,
    ModelDecoupled,
    ModelFailed,
    ModelNotFound,
    ModelUnavailable,
    NotFound,
    NotOneAnswer,
    Unauthenticated,
    Unavailable,
    Unknown,
    code_of,
    text_of,
)
from tensorgate.gateway.contract.questions import (
    ApiDocument,
    InferTogether,
    KnownAnswer,
    LogSettings,
    ModelConfigurations,
    ModelList,
    ModelMetadata,
    ModelReady,
    MonitorSeries,
    ReloadModels,
    ServedModels,
    ServerDescription,
    ServerLive,
    ServerMetadata,
    ServerReady,
    SetOnline,
    asked_model,
)
from tensorgate.gateway.contract.tensor import BYTES, Array
from tensorgate.gateway.monitoring.metrics import CallCounting, CallSeries
from tensorgate.gateway.monitoring.observer import Observer
from tensorgate.gateway.monitoring.time_series import TimeSeries
from tensorgate.gateway.recording.recorder import FlightRecorder
from tensorgate.gateway.security.auth import AdminKey
from tensorgate.gateway.security.authorizer import Authorizer
from tensorgate.gateway.telemetry.call_outcome import INFERENCES, CallOutcome, FailureKind
from tensorgate.gateway.telemetry.call_record import NO_OUTGOING_SPAN
from tensorgate.gateway.telemetry.logs import Logs
from tensorgate.gateway.telemetry.passing import show, tokens_of, watched

log = logging.getLogger(__name__)

Send = Callable[[Reply], Awaitable[None] | None]
"""Takes a reply away -> what is to be waited for while the client is slow, None where nothing is. Raises
ConnectionError once the client has left."""

Accepted = Callable[[bool], None]
"""Hears that a request has been submitted, and whether its model is decoupled."""

Relay = Callable[[CallOutcome, Send, Accepted | None], Awaitable[tuple[str, int | str]]]
"""Has the engine's process answer the call of an outcome, which it completes -> the model that it counts for and its
version, "" if none. Raises GatewayError if that process is away.
"""

ANSWERED_BY_DOORS: Final = frozenset({KnownAnswer, ServerLive, ServerReady})

LARGE_BODY_BYTES: Final = 2 << 20
"""Bodies of this size and more are decoded in a thread, so that all others need not wait for a hostile one."""
SMALL_ANSWER_BYTES: Final = 4 << 10
"""As many bytes of numbers are quick to encode in any protocol: none is asked whether they are long."""
_UNKNOWN_BYTES: Final = SMALL_ANSWER_BYTES + 1
"""What several texts count."""
TRIM_AFTER_S: Final = 5.0
"""Large bodies that follow each other use the same memory again."""
_CODECS: Final = 2
_LOOKS: Final = frozenset({"metadata", "config"})
"""Methods of calls that only look at a model: for these it is not loaded where its file tells enough."""
_MOST_READS: Final = 4
"""How often a call is read whose model is not there: for a route, each time another one may be loaded."""
_STREAMED: Final = frozenset({"server", "bidi"})
"""Endpoints whose answers may be many replies."""
_NEUTRAL: Final = "the model failed; the log of the server says more"
_UPSTREAM: Final[Mapping[Code, ErrorReason]] = {
    Code.CANCELLED: ErrorReason.CANCELLED,
    Code.DEADLINE_EXCEEDED: ErrorReason.DEADLINE,
} | dict.fromkeys(
    (Code.UNKNOWN, Code.RESOURCE_EXHAUSTED, Code.INTERNAL, Code.UNAVAILABLE, Code.DATA_LOSS), ErrorReason.UPSTREAM
)
"""Why another server has not answered a call that was passed on; what is not here, it has refused."""
_CANNOT_NOW: Final = (Code.UNAVAILABLE, Code.RESOURCE_EXHAUSTED)
"""With these another server may answer in its place."""


class Service:
    """Answers calls. The composition root sets the public attributes; `online` is also set by grps' operators."""

    def __init__(
        self,
        config: Config,
        engine: Engine,
        metrics: CallCounting,
        description: ServerDescription,
        monitor: TimeSeries | None = None,
    ) -> None:
        self._config = config
        self._engine = engine
        self._metrics = metrics
        self._description = description
        self.logs = Logs()
        """What the process logs."""
        self._codecs = ThreadPoolExecutor(_CODECS, "codec")
        self._trimming: asyncio.TimerHandle | None = None
        self.authorizer: Authorizer | None = None
        """Who may ask for what."""
        self.admin: AdminKey | None = None
        """What callers must show who change the server's state, where there is no authorizer."""
        self.observer: Observer | None = None
        """Gets the outcome of every call."""
        self.recorder: FlightRecorder | None = None
        """Keeps calls and their answers."""
        self.trim: Callable[[], None] | None = None
        """Gives back what the allocator keeps; called in a thread."""
        self.relay: Relay | None = None
        """In a door: passes calls on to the engine's process."""
        self.documents: Callable[[ApiDocument, Iterable[ModelView]], bytes] | None = None
        """Writes documents of the API, in any thread, of the server with these models; None: nobody may have them."""
        self.started = False
        self.draining = False
        self.online = False
        self.exposes_model_errors = True
        """Whether callers read what a model's code has raised."""
        self._answers: Mapping[type, Callable[[Any], Any]] = {
            KnownAnswer: lambda question: question.answer,
            ServerLive: lambda question: True,
            ServerReady: self._server_ready,
            SetOnline: self._set_online,
            ServerMetadata: self._server_metadata,
            ModelList: lambda question: engine.names(),
            ModelReady: self._model_ready,
            ModelMetadata: lambda question: question.view,
            ApiDocument: self._api_document,
            MonitorSeries: lambda question: monitor.series(question) if monitor is not None else (),
            ReloadModels: self._reload_models,
            LogSettings: self._log_settings,
        }
        """How the questions are answered that the engine is not asked, or not alone."""

    @property
    def ready(self) -> bool:
        """Started, not draining, and (unless readiness is lenient) every wanted version loaded."""
        complete = self._config.readiness == "lenient" or self._engine.is_complete()
        return self.started and not self.draining and complete

    def reconfigure(self, config: Config) -> None:
        """Take over another configuration, from now on."""
        self._config = config
        self.exposes_model_errors = config.expose_model_errors
        self._description = replace(self._description, configuration=config.plain())

    async def handle(
        self, dialect: str, endpoint: Endpoint, call: Call, send: Send, accepted: Accepted | None = None
    ) -> None:
        """Answer one call: `send` gets each reply, one at least unless a streaming model has nothing to say. `accepted`
        is called once a request has been submitted, before any of its answers.

        Raises nothing but what ends a call from outside: its cancellation, or `send`'s word that the client has left.
        """
        outcome = CallOutcome()
        outcome.endpoint, outcome.call, outcome.begun = endpoint, call, time.perf_counter()
        calls = None
        call.regions = self._engine.regions
        call.dialect = dialect
        if self.observer is not None or self.recorder is not None:
            self._watch(outcome)
        resolver = self._engine.resolver(call)
        resolve = self._engine.resolve if resolver is None else resolver
        try:
            if self.authorizer is not None or endpoint.admin:
                send = self._enter(endpoint, call, send)
            try:
                question = outcome.question = self._decode_at_once(endpoint, call, resolve)
            except (MustOffload, ModelNotFound, LabelNotFound, MustLoad) as why:
                question = outcome.question = await self._decode_again(why, endpoint, call, resolve)
            if type(question) is InferRequest:
                if self.authorizer is not None and not call.admitted:
                    self.authorizer.admit(call, question)
                    call.admitted = True
                view = question.view
                calls = self._metrics.calls[dialect, call.transport, view.name, view.version, endpoint.method]
                calls.decoded(time.perf_counter() - outcome.begun)
                if resolver is None or view.route is None:
                    answered = self._infer(outcome, question, resolve, calls, send, accepted)
                else:
                    answered = self._infer_by_route(outcome, question, resolver, calls, send, accepted)
                outcome.model_seconds = await answered
            else:
                await self._ask(outcome, question, send, accepted)
            outcome.code = outcome.reply_code = Code.OK
        except ConnectionError:
            raise
        except (MustForward, MustRelay) as elsewhere:
            calls = await self._answered_elsewhere(outcome, elsewhere, resolver, send, accepted)
        except Exception as error:
            await _done(send(_seen(outcome, self._failed(outcome, error))))
        finally:
            self._report(outcome, calls)

    def forwarded(
        self, kind: tuple[str, str], endpoint: Endpoint, args: Mapping[str, str], begun: Callable[[], bytes]
    ) -> ModelRef | None:
        """Return the model of a call that may be sent on before all of it is here, for another server answers it whole.
        `kind` is the dialect and the transport, `begun` gives the first bytes of the body.
        """
        model_of = endpoint.model_of
        if model_of is None or self.recorder is not None or self._engine.regions.in_use:
            return None
        try:
            return self._engine.forwarded(kind, lambda: model_of(args, begun()))
        except GatewayError:
            return None

    async def confirm_forward(self, endpoint: Endpoint, call: Call, ref: ModelRef) -> None:
        """Read a call that is being sent on to the server behind this model, now that all of it is here. Raises what it
        would have come to otherwise.
        """
        resolver = self._engine.resolver(call)
        resolve = self._engine.resolve if resolver is None else resolver
        try:
            try:
                self._decode_at_once(endpoint, call, resolve)
            except MustOffload:
                await self._decode_in_thread(endpoint, call, resolve)
        except MustForward as found:
            if found.view.name == ref.name:
                return
        raise InvalidArgument("the call names another model in the end than in the beginning")

    def _watch(self, outcome: CallOutcome) -> None:
        """Let those know of a call that begins who note or keep calls."""
        if self.observer is not None:
            outcome.call_record = self.observer.begin(outcome.endpoint, outcome.call, outcome.begun)
        if self.recorder is not None:
            self.recorder.begin(outcome)

    async def _answered_elsewhere(
        self,
        outcome: CallOutcome,
        elsewhere: MustForward | MustRelay,
        resolver: CallResolver | None,
        send: Send,
        accepted: Accepted | None,
    ) -> CallSeries | None:
        """PassOn a call on as it is -> the series where it counts."""
        if isinstance(elsewhere, MustForward):
            return await self._forwarded(outcome, elsewhere.view, resolver, send, accepted)
        return await self._relayed(outcome, send, accepted)

    async def _relayed(self, outcome: CallOutcome, send: Send, accepted: Accepted | None) -> CallSeries | None:
        """PassOn a call on to the engine's process, and its replies to the caller -> the series where it counts."""
        call, relay = outcome.call, self.relay

        def take(reply: Reply) -> Awaitable[None] | None:
            outcome.call.has_replied = True
            show(reply, outcome)
            return send(_seen(outcome, reply))

        if outcome.endpoint.meter is not None:
            outcome.meter = outcome.endpoint.meter(call)
        try:
            if relay is None:
                raise Internal
            model, version = await relay(outcome, take, accepted)
        except ConnectionError:
            raise
        except GatewayError as error:
            await _done(send(_seen(outcome, self._failed(outcome, error))))
            return None
        if not model:
            return None
        return self._metrics.calls[call.dialect, call.transport, model, version, outcome.endpoint.method]

    async def _forwarded(
        self,
        outcome: CallOutcome,
        view: ModelView,
        resolver: CallResolver | None,
        send: Send,
        accepted: Accepted | None,
    ) -> CallSeries:
        """Have the server that computes a model answer the call, and pass its replies on -> the series where it counts.

        A call that asks for no inference counts as any other one: by no model.
        """
        call, endpoint = outcome.call, outcome.endpoint
        outcome.forwarded, outcome.named = view, (view.name, view.version)
        if endpoint.meter is not None and call.report is None:
            outcome.meter = endpoint.meter(call)
        calls = self._metrics.calls[call.dialect, call.transport, view.name, view.version, endpoint.method]
        try:
            if self.authorizer is not None:
                self.authorizer.admit_whole(call, view.name)
            begun = time.perf_counter()
            calls.decoded(begun - outcome.begun)
            if view.route is None or resolver is None:
                await self._forward(outcome, view, send)
            else:
                await self._forward_by_route(outcome, view, resolver, calls, send, accepted)
            outcome.model_seconds = outcome.answered - begun
        except ConnectionError:
            raise
        except Exception as error:
            reply = error.reply if isinstance(error, _RefusedThere) else self._failed(outcome, error)
            await _done(send(_seen(outcome, reply)))
        return calls

    async def _forward_by_route(
        self,
        outcome: CallOutcome,
        view: ModelView,
        resolver: CallResolver,
        calls: CallSeries,
        send: Send,
        accepted: Accepted | None,
    ) -> None:
        """The same by whichever model the route says; the last may be one that is asked by a request of tensors."""
        call, endpoint = outcome.call, outcome.endpoint

        async def ask(view: ModelView, seen_by: TakesPieces | None) -> None:
            outcome.seen_by = seen_by
            await self._forward(outcome, view, send, may_refuse=True)

        streams = endpoint.stream in _STREAMED
        instead = await resolver.forward(view, ask, lambda: call.has_replied, endpoint.read_answer, streams=streams)
        if instead is not None:
            outcome.forwarded = outcome.meter = outcome.seen_by = None

            def resolve(ref: ModelRef) -> ModelView:
                return instead

            question = outcome.question = await self._decode_in_thread(endpoint, call, resolve)
            if type(question) is InferRequest:
                await self._infer(outcome, question, resolve, calls, send, accepted)
            else:
                await self._ask(outcome, question, send, accepted)
            outcome.code = outcome.reply_code = Code.OK

    async def _forward(self, outcome: CallOutcome, view: ModelView, send: Send, *, may_refuse: bool = False) -> None:
        """One server's replies. With `may_refuse` raises _RefusedThere where it says that it cannot answer now."""
        call, endpoint, forwarder = outcome.call, outcome.endpoint, view.forwarder
        outgoing: OutgoingSpan = NO_OUTGOING_SPAN
        if forwarder is None:
            raise Internal
        if (call_record := outcome.call_record) is not None:
            call_record.submitted(view)
            outgoing = call_record.upstream(call.raw_target)
        outcome.code = outcome.reply_code = Code.OK
        streams, whole = endpoint.stream in _STREAMED, outcome.recorded is not None
        failed = True
        try:
            async with aclosing(forwarder.forward(call, outgoing.headers, streams=streams, whole=whole)) as replies:
                async for reply in replies:
                    outcome.answered = time.perf_counter()
                    _note_status(outcome, reply)
                    if may_refuse and not call.has_replied and outcome.code in _CANNOT_NOW:
                        raise _RefusedThere(outcome.code, reply)
                    outcome.call.has_replied = True
                    if reply.arriving is None:
                        show(reply, outcome)
                        await _done(send(_seen(outcome, watched(reply, outcome))))
                    else:
                        await _sent_in_pieces(outcome, reply, reply.arriving, send)
                        show(reply, outcome)
            if streams:  # pieces may have been passed on since the last reply
                outcome.answered = time.perf_counter()
            failed = outcome.code is not Code.OK
        finally:
            outgoing.end(failed=failed)

    def _enter(self, endpoint: Endpoint, call: Call, send: Send) -> Send:
        """Check a call by the authorizer, or where there is none by the administrator's key -> how its replies are
        sent. Raises what refuses it.
        """
        if call.report is not None:  # a door has let it in
            return send
        if self.authorizer is not None:
            self.authorizer.enter(endpoint, call, self.admin)
            if endpoint.quota_headers is not None:
                return _with_quotas(send, call, endpoint.quota_headers)
        elif self.admin is not None:
            self.admin.check(call.headers)
        return send

    def _failed(self, outcome: CallOutcome, error: Exception) -> Reply:
        """Note the error that a call ends with, and encode it."""
        endpoint, call = outcome.endpoint, outcome.call
        if not isinstance(error, GatewayError):
            log.error("%s %s failed unexpectedly", call.dialect, endpoint.address, exc_info=error)
            error = Internal()
        view = _view_of(outcome)
        outcome.named = self._engine.named(call) if view is None else (view.name, view.version)
        outcome.failure = FailureKind(type(error).__name__, self._reason_of(error, outcome))
        if isinstance(error, (ModelFailed, Unknown)) and not self.exposes_model_errors:
            error = (Unknown if isinstance(error, Unknown) else ModelFailed)(_NEUTRAL)
        outcome.error_text = text_of(error)
        reply = _refusal(error, endpoint.encode_error(error, call))
        outcome.code, outcome.reply_code = error.code, reply.grpc_code
        return reply

    def _reason_of(self, error: GatewayError, outcome: CallOutcome) -> ErrorReason:
        """Why a call fails: the error's reason, unless what is known of the call says more."""
        reason = error.error_reason
        if reason is ErrorReason.MALFORMED and outcome.call.accepted:
            return ErrorReason.MODEL_REFUSED
        if reason is ErrorReason.UNKNOWN_VERSION and not outcome.named[0]:
            return ErrorReason.UNKNOWN_MODEL
        if reason is ErrorReason.UNAVAILABLE and self.draining:
            return ErrorReason.DRAINING
        return reason

    def _report(self, outcome: CallOutcome, calls: CallSeries | None) -> None:
        """Give the outcome of a call that is over to whoever counts or notes it."""
        call, code = outcome.call, outcome.code
        for step in call.end_steps:
            step()
        if call.report is not None:
            call.report(outcome)
            return
        if calls is None:
            method = outcome.endpoint.method
            model, version = outcome.named if method in INFERENCES else ("", "")
            calls = self._metrics.calls[call.dialect, call.transport, model, version, method]
        outcome.seconds = seconds = time.perf_counter() - outcome.begun
        if code:
            calls.failed(code, outcome.failure.reason, seconds)
            if code is not Code.CANCELLED:
                self._metrics.errors.note(outcome)
        else:
            calls.took(seconds)
            calls.ran(outcome.model_seconds)
        if (used := tokens_of(outcome)) is not None:  # those of a call that was left are its caller's, too
            _spend(outcome, calls, used)
        counter = self._metrics.call_counters.get(call.dialect)
        if counter is not None and (code or calls.tell is None):
            counter.ended(outcome)
        if self.observer is not None:
            self.observer.end(outcome)
        if outcome.recorded is not None and self.recorder is not None:
            self.recorder.keep(outcome)

    # ---------------------------------------------------------------------------------------------------------- decode

    def _decode_at_once(self, endpoint: Endpoint, call: Call, resolve: Resolve) -> Any:
        """Read what is asked. Raises MustOffload where that would keep the loop from others."""
        if len(call.body) >= LARGE_BODY_BYTES or "content-encoding" in call.headers:
            raise MustOffload
        return endpoint.decode(call, resolve)

    async def _decode_again(self, why: Exception, endpoint: Endpoint, call: Call, resolve: Resolve) -> Any:
        """Read in a thread what is long, and anew what asks for a model that another server turns out to have, or that
        had to be loaded.
        """
        for _ in range(_MOST_READS):
            if isinstance(why, MustLoad):
                if endpoint.method in _LOOKS and (view := await self._engine.described(why.model)) is not None:
                    return await self._decode_in_thread(endpoint, call, _finds(view))
                await self._engine.demand(why.model, call.deadline)
            elif isinstance(why, (ModelNotFound, LabelNotFound)) and not (
                self._engine.discovers and await self._engine.discover(why.name)
            ):
                raise why
            try:
                return await self._decode_in_thread(endpoint, call, resolve)
            except (ModelNotFound, LabelNotFound, MustLoad) as error:
                why = error
        raise ModelUnavailable(why.model if isinstance(why, MustLoad) else str(why))

    async def _decode_loaded(self, endpoint: Endpoint, call: Call, resolve: Resolve) -> Any:
        """Read in a thread, and once more where the model has left meanwhile and had to be loaded again."""
        try:
            return await self._decode_in_thread(endpoint, call, resolve)
        except MustLoad as why:
            return await self._decode_again(why, endpoint, call, resolve)

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

    # ------------------------------------------------------------------------------------------------------- inference

    async def _infer(
        self,
        outcome: CallOutcome,
        request: InferRequest,
        resolve: Resolve,
        calls: CallSeries,
        send: Send,
        accepted: Accepted | None,
        on_answer: OnAnswer | None = None,
    ) -> float:
        """Submit a request, and send a reply for each of its answers -> seconds until the model's last.

        `on_answer` gets each answer that has been sent.
        """
        endpoint, call = outcome.endpoint, outcome.call
        outcome.answered = submitted = time.perf_counter()
        try:
            found = self._submit(outcome, request)
        except ModelUnavailable:  # exchanged or unloaded while the body was read: ask what serves now
            request, found = await self._submit_again(outcome, resolve)
        if accepted is not None and not call.accepted:  # once, however many models it tries
            accepted(request.view.decoupled)
        call.accepted = True
        answer = None
        if isinstance(found, InferResponse):
            answer = found
            if endpoint.follow is not None:
                endpoint.follow(answer, request)
            if (sent := self._reply(outcome, answer, request, calls, send, on_answer)) is not None:
                await sent
        elif isinstance(found, GatewayError):
            raise found
        else:
            answer = await self._reply_each(outcome, found, request, calls, send, on_answer)
        if endpoint.encode_end is not None and (end := endpoint.encode_end(answer, request)) is not None:
            await _done(send(_seen(outcome, end)))
        return outcome.answered - submitted

    async def _submit_again(
        self, outcome: CallOutcome, resolve: Resolve
    ) -> tuple[InferRequest, InferResponse | GatewayError | Answers]:
        """Read a call anew whose model has left, and submit that: models that are loaded on demand may leave again."""
        for _ in range(_MOST_READS):
            request = await self._decode_loaded(outcome.endpoint, outcome.call, resolve)
            with suppress(ModelUnavailable):
                return request, self._submit(outcome, request)
        raise ModelUnavailable(request.view.name)

    async def _reply_each(
        self,
        outcome: CallOutcome,
        answers: Answers,
        request: InferRequest,
        calls: CallSeries,
        send: Send,
        on_answer: OnAnswer | None,
    ) -> InferResponse | None:
        """Wait for the answers, and send a reply for each -> the last one."""
        view, answer, follow = request.view, None, outcome.endpoint.follow
        try:
            if view.decoupled and not _takes_one(outcome.endpoint, request):
                async for answer in answers:
                    is_enough = follow is not None and follow(answer, request)
                    await _done(self._reply(outcome, answer, request, calls, send, on_answer))
                    if is_enough:
                        _take_no_more(answers, request)
                        break
            else:
                if follow is not None:
                    answer = await _last_answer(answers, request, follow)
                else:
                    answer = await (_only_answer(answers, view.name) if view.decoupled else anext(answers, None))
                if answer is not None:
                    sent = self._reply(outcome, answer, request, calls, send, on_answer)
                    if sent is not None:
                        await sent
        except BaseException:
            if request.cancellation.refused:
                outcome.call.accepted = False
            answers.abandon()
            raise
        return answer

    async def _infer_by_route(
        self,
        outcome: CallOutcome,
        request: InferRequest,
        resolver: CallResolver,
        calls: CallSeries,
        send: Send,
        accepted: Accepted | None,
    ) -> float:
        """Infer as often, and by which models, as the route says."""

        async def decode(resolve: Resolve) -> InferRequest:
            endpoint, call = outcome.endpoint, outcome.call
            request: InferRequest
            try:
                request = self._decode_at_once(endpoint, call, resolve)
            except MustOffload:
                request = await self._decode_loaded(endpoint, call, resolve)
            return request

        def infer(request: InferRequest, resolve: Resolve, on_answer: OnAnswer | None) -> Awaitable[float]:
            return self._infer(outcome, request, resolve, calls, send, accepted, on_answer)

        return await resolver.infer(request, decode, infer, lambda: outcome.call.has_replied)

    def _submit(self, outcome: CallOutcome, request: InferRequest) -> InferResponse | GatewayError | Answers:
        view = request.view
        if (call_record := outcome.call_record) is not None:
            call_record.submitted(view)
            request.cancellation.call_record = call_record
        if request_id := outcome.call.request_id:
            request.cancellation.request_id = request_id
        if share := outcome.call.share:
            request.cancellation.share = share
        if view.decoupled and outcome.endpoint.stream == "unary":
            raise ModelDecoupled(view.name)
        return view.handle.answer(request)

    def _reply(
        self,
        outcome: CallOutcome,
        answer: InferResponse,
        request: InferRequest,
        calls: CallSeries,
        send: Send,
        on_answer: OnAnswer | None,
        reply: Reply | None = None,
    ) -> Awaitable[None] | None:
        """Encode an answer, unless its `reply` is there, and send it -> what is to be waited for, None: nothing."""
        if reply is None:
            outcome.answered = time.perf_counter()
            nbytes = 0
            for array in answer.outputs.values():
                nbytes += array.nbytes if array.dtype != BYTES else _text_bytes(array)
            is_small = nbytes <= SMALL_ANSWER_BYTES and not answer.classes
            if not is_small and outcome.endpoint.is_long(answer, request):
                return self._reply_from_thread(outcome, answer, request, calls, send, on_answer)
            reply = outcome.endpoint.encode(answer, request)
        calls.encoded(time.perf_counter() - outcome.answered)
        if outcome.call_record is not None:
            outcome.call_record.replied(reply, outcome.answered)
        if outcome.recorded is not None:
            outcome.recorded.replied(reply)
        outcome.call.has_replied = True
        sent = send(reply)
        if on_answer is not None:
            on_answer(answer)
        return sent

    async def _reply_from_thread(
        self,
        outcome: CallOutcome,
        answer: InferResponse,
        request: InferRequest,
        calls: CallSeries,
        send: Send,
        on_answer: OnAnswer | None,
    ) -> None:
        reply = await self._in_thread(outcome.endpoint.encode, answer, request)
        await _done(self._reply(outcome, answer, request, calls, send, on_answer, reply))

    async def _ask(self, outcome: CallOutcome, question: Any, send: Send, accepted: Accepted | None) -> None:
        """Answer what is no inference, or several of them."""
        if type(question) is InferTogether:
            await self._infer_together(outcome, question, send, accepted)
        else:
            await _done(send(_seen(outcome, await self._answer(outcome, question))))

    # ------------------------------------------------------------------------------------- inferences of one question

    async def _infer_together(
        self, outcome: CallOutcome, question: InferTogether, send: Send, accepted: Accepted | None
    ) -> None:
        """Submit all requests, and send one reply, or what is made of each answer as it comes; whatever ends that,
        nobody waits for the rest. Raises as `_admit` does.
        """
        endpoint, call = outcome.endpoint, outcome.call
        await self._admit(outcome, question)
        follow, view, pending = endpoint.follow, question.requests[0].view, list[Answers]()
        outcome.named = view.name, view.version
        try:
            for request in question.requests:
                request.cancellation.request_id = call.request_id
                request.cancellation.share = call.share
                if (call_record := outcome.call_record) is not None:
                    call_record.view = request.view
                    request.cancellation.call_record = call_record
                if request.view.decoupled and follow is None:
                    raise ModelDecoupled(request.view.name)
                pending.append(request.view.handle.submit(request))
            if follow is not None and question.requests[0].stream:
                if accepted is not None:
                    accepted(view.decoupled)
                call.accepted = True
                await self._reply_to_several(outcome, question.requests, pending, follow, send)
                return
            if follow is None:
                answers = [await anext(each) for each in pending]
            else:
                of_each = zip(pending, question.requests, strict=True)
                answers = [await _last_answer(each, request, follow) for each, request in of_each]
        finally:
            for each in pending:
                each.abandon()
        if any(map(endpoint.is_long, answers, question.requests)):
            reply: Reply = await self._in_thread(endpoint.encode, tuple(answers), question)
        else:
            reply = endpoint.encode(tuple(answers), question)
        await _done(send(_seen(outcome, reply)))

    async def _reply_to_several(
        self,
        outcome: CallOutcome,
        requests: tuple[InferRequest, ...],
        pending: list[Answers],
        follow: Follow,
        send: Send,
    ) -> None:
        """Send a reply for each answer to each of several requests, whichever comes first."""
        endpoint = outcome.endpoint
        last: list[InferResponse | None] = [None] * len(requests)
        async with aclosing(_each_answer(pending)) as told:
            async for number, answer in told:
                request = requests[number]
                if answer is not None:
                    last[number] = answer
                    if follow(answer, request):
                        _take_no_more(pending[number], request)  # which ends its answers
                    outcome.call.has_replied = True
                    await _done(send(_seen(outcome, endpoint.encode(answer, request))))
                elif endpoint.encode_end is not None:
                    end = endpoint.encode_end(last[number], request)
                    if end is not None:
                        await _done(send(_seen(outcome, end)))

    # ------------------------------------------------------------------------------------------------- other questions

    async def _admit(self, outcome: CallOutcome, question: Any) -> None:
        """Let a question in that is no inference alone. Raises MustRelay, or MustForward, where it is not for this
        process.
        """
        if self.relay is not None and type(question) not in ANSWERED_BY_DOORS:
            raise MustRelay
        if self.authorizer is not None:
            self.authorizer.admit(outcome.call, question)
        if (ref := asked_model(question)) is not None:
            await self._check_forward(outcome.call, ref)

    async def _answer(self, outcome: CallOutcome, question: Any) -> Reply:
        """Look up, or do, what a question asks that is no inference, and encode the answer. Raises as `_admit` does."""
        endpoint, call = outcome.endpoint, outcome.call
        await self._admit(outcome, question)
        answer = self._answers.get(type(question), self._engine.ask)(question)
        if isawaitable(answer):
            answer = await answer
        if self.authorizer is not None:
            answer = self.authorizer.visible(call, question, answer)
        return endpoint.encode(answer, question)

    async def _check_forward(self, call: Call, ref: ModelRef) -> None:
        """Raise MustForward for a question of a model that another server answers by itself."""
        if self._engine.discovers:
            await self._engine.discover(ref.name)
        self._engine.check_forward(call, ref)

    def serves(self, name: str) -> bool:
        """Whether traffic should come here for a model of that name; any other name stands for the server."""
        if self._engine.is_public(name):
            return self._model_ready(ModelReady(ModelRef(name)))
        return self.ready

    def _server_ready(self, question: ServerReady) -> bool:
        return self.ready and (self.online or not question.online_gate)

    def _set_online(self, question: SetOnline) -> None:
        self.online = question.online

    def _model_ready(self, question: ModelReady) -> bool:
        try:
            view = self._engine.resolve(question.ref)
        except GatewayError:
            return False
        except MustLoad as loadable:
            return not self.draining and self._engine.is_loadable(loadable.model)
        return not self.draining and view.handle.is_ready()

    def _server_metadata(self, question: ServerMetadata) -> ServerDescription:
        models = self._engine.ask(ModelConfigurations())
        return replace(self._description, configuration={**self._description.configuration, "models": models})

    async def _api_document(self, question: ApiDocument) -> bytes:
        """Of the server, with the highest versions that the caller may use."""
        if self.documents is None:
            raise NotFound("Not Found")
        views = (
            []
            if question.view is not None
            else [
                view
                for view in self._engine.ask(ServedModels())
                if self.authorizer is None or self.authorizer.may(question.caller, view.name)
            ]
        )
        document: bytes = await self._in_thread(self.documents, question, views)
        return document

    async def _reload_models(self, question: ReloadModels) -> int:
        before = self._metrics.inferences
        await self._engine.ask(question)
        return self._metrics.inferences - before

    def _log_settings(self, question: LogSettings) -> Mapping[str, bool | int | str]:
        self.logs.change(question.changes)
        return self.logs.settings()


class _RefusedThere(Unavailable):
    """Another server cannot answer now, and says so by this reply."""

    def __init__(self, code: Code, reply: Reply) -> None:
        super().__init__(f"HTTP status {reply.http_status}")
        self.code = code
        self.reply = reply


def _with_quotas(send: Send, call: Call, headers_of: QuotaHeaders) -> Send:
    """A `send` that says with the first reply what the caller's limits leave; some are known with the model alone."""
    told = False

    def send_first(reply: Reply) -> Awaitable[None] | None:
        nonlocal told
        if told or (call.quota is None and call.token_quota is None):
            return send(reply)
        told = True
        return send(replace(reply, headers={**headers_of(call.quota, call.token_quota), **reply.headers}))

    return send_first


def _seen(outcome: CallOutcome, reply: Reply) -> Reply:
    """Note a reply that is about to be sent."""
    if outcome.call_record is not None:
        outcome.call_record.replied(reply)
    if outcome.recorded is not None:
        outcome.recorded.replied(reply)
    return reply


def _spend(outcome: CallOutcome, calls: CallSeries, used: tuple[int, int]) -> None:
    """Count the tokens of a call that is over."""
    if not outcome.code:
        calls.spent(*used)
    for charge in outcome.call.charges:
        charge(sum(used))


async def _sent_in_pieces(outcome: CallOutcome, reply: Reply, arriving: ArrivingReply, send: Send) -> None:
    """Send a reply while it comes: what becomes of it is known behind it."""
    outcome.code = outcome.reply_code = Code.CANCELLED
    try:
        await _done(send(_seen(outcome, reply)))
    finally:
        if (last := arriving.last) is not None:
            outcome.code = outcome.reply_code = Code.OK
            _note_status(outcome, last)


def _note_status(outcome: CallOutcome, reply: Reply) -> None:
    """Note the error that another server has replied, if it is one."""
    if code := reply.grpc_code or code_of(reply.http_status):
        outcome.code = outcome.reply_code = code
        reason = _UPSTREAM.get(code, ErrorReason.MODEL_REFUSED)
        outcome.failure, outcome.error_text = FailureKind("", reason), reply.message


def _refusal(error: GatewayError, reply: Reply) -> Reply:
    """Add the headers that go with an error. A stream of somebody unknown ends: there no message can be one."""
    if error.http_headers:
        reply = replace(reply, headers={**reply.headers, **error.http_headers})
    if type(error) is Unauthenticated and reply.grpc_code is Code.OK:
        reply = replace(reply, grpc_code=error.code, message=reply.message or str(error))
    return reply


def _view_of(outcome: CallOutcome) -> ModelView | None:
    """The model that a call asks, as far as it was read."""
    question = outcome.question
    if type(question) is InferTogether:
        question = question.requests[0]
    view: ModelView | None = getattr(question, "view", outcome.forwarded)
    return view


async def _done(sent: Awaitable[None] | None) -> None:
    """Wait until a reply has left."""
    if sent is not None:
        await sent


def _finds(view: ModelView) -> Resolve:
    """A resolve for a call that is about this model, whatever it names."""
    return lambda ref: view


def _text_bytes(array: Array) -> int:
    """The bytes of one text, such as a piece of a stream; several may be any number."""
    return len(array.item()) if array.size == 1 else _UNKNOWN_BYTES


def _takes_one(endpoint: Endpoint, request: InferRequest) -> bool:
    """Whether the caller can be given exactly one answer of a decoupled model."""
    return endpoint.stream == "single" or (endpoint.stream == "server" and not request.stream)


async def _only_answer(answers: Answers, model: str) -> InferResponse:
    """The only answer of a decoupled model. One without outputs, as some models end with, does not count.

    Raises NotOneAnswer as soon as it is known: what else the model would say is never asked for.
    """
    only = None
    async for answer in answers:
        if answer.outputs:
            if only is not None:
                raise NotOneAnswer(model)
            only = answer
    if only is None:
        raise NotOneAnswer(model)
    return only


async def _last_answer(answers: Answers, request: InferRequest, follow: Follow) -> InferResponse:
    """The last answer that the caller wants, once it has been seen; one without outputs where there is none."""
    last = InferResponse({})
    async for last in answers:
        if follow(last, request):
            _take_no_more(answers, request)
            break
    return last


def _take_no_more(answers: Answers, request: InferRequest) -> None:
    """The caller has all that it wants: the model may end."""
    request.cancellation.is_satisfied = True
    answers.abandon()


async def _each_answer(pending: Sequence[Answers]) -> AsyncGenerator[tuple[int, InferResponse | None], None]:
    """The answers to several requests as they come, each with the number of its request; None behind the last of one.
    Raises what one of them ends with.
    """
    told: asyncio.Queue[tuple[int, InferResponse | Exception | None]] = asyncio.Queue(len(pending))

    async def listen(number: int) -> None:
        try:
            async for answer in pending[number]:
                await told.put((number, answer))
            await told.put((number, None))
        except Exception as error:
            await told.put((number, error))

    listeners = [asyncio.ensure_future(listen(number)) for number in range(len(pending))]
    left = len(pending)
    try:
        while left:
            number, answer = await told.get()
            if isinstance(answer, Exception):
                raise answer
            left -= answer is None
            yield number, answer
    finally:
        for listener in listeners:
            listener.cancel()

"""The life of a request, in one place for every dialect and transport.

    decode   the dialect turns the call's bytes into a question, resolving the model on the way
    answer   an inference is submitted to the model's scheduler, any other question is looked up
    encode   the dialect turns each answer into a reply

`handle` is the only way in, a unary call a stream of one. It turns every failure into one encoded error, times the
stages, and counts the call when it is over.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from inspect import isawaitable
from typing import Any, Final

from gateway.canonical import InferRequest, InferResponse
from gateway.config import Config
from gateway.errors import Code, GatewayError, Internal, ModelDecoupled, ModelNotFound
from gateway.metrics import Metrics
from gateway.ports import Answers, Call, Endpoint, NeedsThread, Reply
from gateway.questions import (
    ModelConfiguration,
    ModelList,
    ModelMetadata,
    ModelReady,
    ModelStatus,
    RegionStatus,
    RegisterRegion,
    ServerDescription,
    ServerLive,
    ServerMetadata,
    ServerReady,
    SetOnline,
    UnregisterRegion,
    VersionStatus,
)
from gateway.repository import Repository
from gateway.router import Router
from gateway.shared_memory import SharedMemory

log = logging.getLogger(__name__)

Send = Callable[[Reply], Awaitable[None]]
"""Takes a reply away, and waits while the client is slow. Raises ConnectionError once the client has left."""

LARGE_BODY_BYTES: Final = 2 << 20
"""Bodies of this size and more are decoded in a thread, so that all others need not wait for a hostile one."""
MANY_CLASSES: Final = 10_000
"""The texts of that many are written in a thread, too: each costs as much as dozens of numbers."""
_CODECS: Final = 2


def _are_many(answer: InferResponse) -> bool:
    return sum([len(best.values.flat) for best in answer.classes.values()]) > MANY_CLASSES


class Service:
    """Answers calls. `started` and `draining` belong to the composition root, `online` to grps' operators."""

    def __init__(
        self,
        config: Config,
        repository: Repository,
        router: Router,
        metrics: Metrics,
        description: ServerDescription,
        memory: SharedMemory | None = None,
    ) -> None:
        self._memory = memory or SharedMemory()
        self._config = config
        self._repository = repository
        self._resolve = router.resolve
        self._router = router
        self._metrics = metrics
        self._description = description
        self._codecs = ThreadPoolExecutor(_CODECS, "codec")
        self.started = False
        self.draining = False
        self.online = False
        self._answers: Mapping[type, Callable[[Any], Any]] = {
            ServerLive: lambda question: True,
            ServerReady: self._server_ready,
            SetOnline: self._set_online,
            ServerMetadata: lambda question: self._description,
            ModelList: lambda question: self._router.names(),
            ModelReady: self._model_ready,
            ModelMetadata: lambda question: question.view,
            ModelStatus: self._model_status,
            ModelConfiguration: self._model_configuration,
            RegionStatus: self._memory.status,
            RegisterRegion: lambda question: asyncio.to_thread(self._memory.register, question),
            UnregisterRegion: self._memory.unregister,
        }

    @property
    def ready(self) -> bool:
        """Started, not draining, and (unless readiness is lenient) every wanted version loaded."""
        complete = self._config.readiness == "lenient" or self._repository.all_available()
        return self.started and not self.draining and complete

    async def handle(self, dialect: str, endpoint: Endpoint, call: Call, send: Send) -> None:
        """Answer one call: `send` gets each reply, one at least unless a streaming model has nothing to say.

        Raises nothing but what ends a call from outside: its cancellation, or `send`'s word that the client has left.
        """
        begun = time.perf_counter()
        model = version = ""
        code = Code.CANCELLED
        call.regions = self._memory
        try:
            if len(call.body) < LARGE_BODY_BYTES:
                try:
                    question = endpoint.decode(call, self._resolve)
                except NeedsThread:
                    question = await self._decode_in_thread(endpoint, call)
            else:
                question = await self._decode_in_thread(endpoint, call)
            if type(question) is InferRequest:
                view = question.view
                model, version = view.name, str(view.version)
                observe = self._metrics.stages(model, version).observe
                observe("decode", time.perf_counter() - begun)
                answers = self._submit(endpoint, question)
                try:
                    async for answer in answers:
                        answered = time.perf_counter()
                        if answer.classes and _are_many(answer):
                            reply = await self._in_thread(endpoint.encode, answer, question)
                        else:
                            reply = endpoint.encode(answer, question)
                        observe("encode", time.perf_counter() - answered)
                        await send(reply)
                finally:
                    answers.abandon()
            else:
                answer = self._answers[type(question)](question)
                if isawaitable(answer):
                    answer = await answer
                await send(endpoint.encode(answer, question))
            code = Code.OK
        except GatewayError as error:
            code = error.code
            await send(endpoint.encode_error(error, call))
        except ConnectionError:
            raise
        except Exception:
            code = Code.INTERNAL
            log.exception("%s %s failed unexpectedly", dialect, endpoint.address)
            await send(endpoint.encode_error(Internal(), call))
        finally:
            key = (dialect, call.transport, model, version, endpoint.method)
            self._metrics.request(key, code, time.perf_counter() - begun)

    async def _decode_in_thread(self, endpoint: Endpoint, call: Call) -> Any:
        call.in_thread = True
        return await self._in_thread(endpoint.decode, call, self._resolve)

    async def _in_thread(self, step: Callable[..., Any], *args: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._codecs, step, *args)

    def _submit(self, endpoint: Endpoint, request: InferRequest) -> Answers:
        if request.view.decoupled and endpoint.stream == "unary":
            raise ModelDecoupled(request.view.name)
        return request.view.handle.submit(request)

    # ------------------------------------------------------------------------------------------------- other questions

    def _server_ready(self, question: ServerReady) -> bool:
        return self.ready and (self.online or not question.online_gate)

    def _set_online(self, question: SetOnline) -> None:
        self.online = question.online

    def _model_ready(self, question: ModelReady) -> bool:
        try:
            self._resolve(question.ref)
        except GatewayError:
            return False
        return not self.draining

    def _model_status(self, question: ModelStatus) -> tuple[VersionStatus, ...]:
        ref = question.ref
        targets = self._config.routes.get(ref.name)
        if not targets:
            return self._repository.statuses(ref.name, ref.version)
        try:
            return self._repository.statuses(targets[0].model, ref.version)
        except ModelNotFound as error:
            raise ModelNotFound(ref.name, ref.version, known=error.known) from None

    def _model_configuration(self, question: ModelConfiguration) -> Mapping[str, Any]:
        models: Mapping[str, Any] = self._description.configuration["models"]
        if question.name not in models:
            raise ModelNotFound(question.name)
        return {"name": question.name, **models[question.name]}

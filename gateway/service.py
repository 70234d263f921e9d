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

from gateway.canonical import InferRequest, ModelRef
from gateway.config import Config
from gateway.errors import Code, GatewayError, Internal, ModelDecoupled, ModelNotFound
from gateway.metrics import Metrics
from gateway.ports import Answers, Call, Endpoint, Reply
from gateway.questions import (
    ModelConfiguration,
    ModelList,
    ModelMetadata,
    ModelReady,
    ModelStatus,
    ServerDescription,
    ServerLive,
    ServerMetadata,
    ServerReady,
    SetOnline,
    VersionStatus,
)
from gateway.repository import Repository
from gateway.router import Router

log = logging.getLogger(__name__)

Send = Callable[[Reply], Awaitable[None]]
"""Takes a reply away, and waits while the client is slow. Raises ConnectionError once the client has left."""

Accepted = Callable[[InferRequest], None]

LARGE_BODY_BYTES: Final = 2 << 20
"""Bodies of this size and more are decoded in a thread, so that all others need not wait for a hostile one."""
_DECODERS: Final = 2


class Service:
    """Answers calls. `started` and `draining` belong to the composition root, `online` to grps' operators."""

    def __init__(
        self, config: Config, repository: Repository, router: Router, metrics: Metrics, description: ServerDescription
    ) -> None:
        self._config = config
        self._repository = repository
        self._resolve = router.resolve
        self._router = router
        self._metrics = metrics
        self._description = description
        self._decoders = ThreadPoolExecutor(_DECODERS, "decode")
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
        }

    @property
    def ready(self) -> bool:
        """Started, not draining, and (unless readiness is lenient) every wanted version loaded."""
        complete = self._config.readiness == "lenient" or self._repository.all_available()
        return self.started and not self.draining and complete

    async def handle(
        self, dialect: str, endpoint: Endpoint, call: Call, send: Send, accepted: Accepted | None = None
    ) -> None:
        """Answer one call: `send` gets each reply, one at least unless a streaming model has nothing to say. `accepted`
        is told of a request that has been submitted, before any of its answers.

        Raises nothing but what ends a call from outside: its cancellation, or `send`'s word that the client has left.
        """
        begun = time.perf_counter()
        model = version = ""
        code = Code.CANCELLED
        try:
            if len(call.body) < LARGE_BODY_BYTES:
                question = endpoint.decode(call, self._resolve)
            else:
                loop = asyncio.get_running_loop()
                question = await loop.run_in_executor(self._decoders, endpoint.decode, call, self._resolve)
            if type(question) is InferRequest:
                view = question.view
                model, version = view.name, str(view.version)
                observe = self._metrics.stages(model, version).observe
                observe("decode", time.perf_counter() - begun)
                answers = self._submit(endpoint, question)
                call.accepted = True
                if accepted is not None:
                    accepted(question)
                answer = None
                try:
                    async for answer in answers:
                        answered = time.perf_counter()
                        reply = endpoint.encode(answer, question)
                        observe("encode", time.perf_counter() - answered)
                        await send(reply)
                finally:
                    answers.abandon()
                if endpoint.encode_end is not None and (end := endpoint.encode_end(answer, question)) is not None:
                    await send(end)
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

    def _submit(self, endpoint: Endpoint, request: InferRequest) -> Answers:
        if request.view.decoupled and endpoint.stream == "unary":
            raise ModelDecoupled(request.view.name)
        return request.view.handle.submit(request)

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

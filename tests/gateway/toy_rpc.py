"""A gRPC port with a toy dialect behind it, for tests of the port alone: its model does what the method's name says."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

from aio_port import AioServer
from waiting import until

from tensorgate.adapters.protobuf.messages import pool
from tensorgate.gateway.contract.call import Call, Reply
from tensorgate.gateway.contract.canonical import InferRequest, InferResponse, ModelRef, ModelView
from tensorgate.gateway.contract.dialect import Dialect, Endpoint, Match, Resolve
from tensorgate.gateway.contract.errors import Code, GatewayError, InvalidArgument
from tensorgate.gateway.contract.questions import ServerDescription
from tensorgate.gateway.monitoring.metrics import MetricsCollector
from tensorgate.gateway.service import Service
from tensorgate.gateway.transport.grpc_exchange import GrpcLimits
from tensorgate.gateway.transport.grpc_port import GrpcListener
from tensorgate.gateway.transport.grpc_server import GrpcServer
from tensorgate.gateway.transport.sockets import bind

ECHO, TELL, BIG, FAIL, HOLD = (f"/toy.Toy/{name}" for name in ("Echo", "Tell", "Big", "Fail", "Hold"))
COUNT, CHAT = "/toy.Toy/Count", "/toy.Toy/Chat"
LIMIT = 6_000_000
METADATA_BYTES = 16_384
STREAMS = 100

OWN_SERVER = [True, False]
"""Everything holds with the gateway's own HTTP/2, and with that of grpc.aio, which is the oracle."""


class Said(GatewayError):
    """An error with any code and text."""

    def __init__(self, code: Code, text: str) -> None:
        super().__init__(text)
        self.code = code


@dataclass
class Model:
    """Knows which requests are open; those of Hold are answered once the test says go."""

    open: set[int] = field(default_factory=set)
    submitted: int = 0
    abandoned: int = 0
    made: int = 0
    """Messages of Count."""
    go: asyncio.Event = field(default_factory=asyncio.Event)

    def answer(self, request: InferRequest) -> Any:
        self.submitted += 1
        self.open.add(self.submitted)
        return Answering(self, self.submitted, self._answers(request.wire), streams=request.stream)

    async def _answers(self, call: Call) -> AsyncIterator[bytes]:
        method, body = call.raw_target, bytes(call.body)
        if method == TELL:
            yield json.dumps(told(call)).encode()
        elif method == BIG:
            yield b"x" * int(body)
        elif method == FAIL:
            code, _, text = body.decode().partition(" ")
            raise Said(Code(int(code)), text)
        elif method == COUNT:
            count, size = map(int, body.split())
            for number in range(count):
                self.made += 1
                yield str(number).encode().ljust(size, b".")
                await asyncio.sleep(0)
        else:
            if method == HOLD or body.startswith(b"hold"):
                await self.go.wait()
            yield body


class Answering:
    """A request's answers, until they end or nobody wants them any more."""

    def __init__(self, model: Model, number: int, answers: AsyncIterator[bytes], *, streams: bool) -> None:
        self._model = model
        self._number = number
        self._answers = answers
        self._streams = streams

    def __aiter__(self) -> Answering:
        return self

    async def __anext__(self) -> InferResponse:
        try:
            answer = InferResponse({}, {"body": await anext(self._answers)})  # type: ignore[dict-item]
        except (StopAsyncIteration, GatewayError):
            self._model.open.discard(self._number)
            raise
        if not self._streams:
            self._model.open.discard(self._number)
        return answer

    def abandon(self) -> None:
        self._model.abandoned += self._number in self._model.open
        self._model.open.discard(self._number)


def told(call: Call) -> dict[str, Any]:
    """What the transport has said of a call."""
    left = None if call.deadline is None else call.deadline - time.monotonic()
    return {"headers": dict(call.headers), "left": left, "peer": call.peer.address(), "size": len(call.body)}


def make_dialect() -> Dialect:
    def decode(call: Call, resolve: Resolve) -> InferRequest:
        if call.body == b"bug":
            raise ZeroDivisionError("secret")
        if call.body.startswith(b"wrong"):
            raise InvalidArgument("this is wrong")
        streams = call.raw_target == COUNT
        view = replace(resolve(ModelRef("toy")), decoupled=streams)
        return InferRequest(view, {}, deadline=call.deadline, stream=streams, wire=call)

    def encode(answer: InferResponse, request: InferRequest) -> Reply:
        body: Any = answer.parameters["body"]
        return Reply([body[:5], memoryview(body)[5:]], streamed=True)

    def encode_error(error: GatewayError, call: Call) -> Reply:
        return Reply(b"", grpc_code=error.code, message=str(error))

    streams = {COUNT: "server", CHAT: "bidi"}
    methods: dict[str, Any] = {
        name: Endpoint(name, name, decode, encode, encode_error, stream=streams.get(name, "unary"))  # type: ignore[arg-type]
        for name in (ECHO, TELL, BIG, FAIL, HOLD, COUNT, CHAT)
    }
    return Dialect("toy", "Toy", "/toy", lambda method, target: Match(methods[ECHO]), lambda view: None, methods)


@dataclass
class Toy:
    """A running port."""

    model: Model
    service: Service
    listener: GrpcListener
    own_server: bool
    port: int = 0

    async def until(self, happened: Callable[[], object]) -> None:
        await until(happened)


@asynccontextmanager
async def toy_port(
    view: ModelView,
    *,
    own_server: bool,
    metadata: int = METADATA_BYTES,
    streams: int | None = STREAMS,
    connections: int | None = None,
    **options: Any,
) -> AsyncIterator[Toy]:
    """`view` has a Model for its handle."""
    model: Any = view.handle
    config: Any = SimpleNamespace(readiness="strict", expose_model_errors=True, routes={}, models={"toy": None})

    def resolve(ref: ModelRef) -> ModelView:
        return view

    engine: Any = SimpleNamespace(
        is_complete=lambda: True,
        regions=None,
        ask=None,
        resolve=resolve,
        resolver=lambda call: None,
        discovers=False,
        check_forward=lambda call, ref: None,
        forwarded=lambda kind, named: None,
        named=lambda call: ("", ""),
        names=lambda: (),
        is_public=lambda name: False,
    )
    service = Service(config, engine, MetricsCollector(), ServerDescription("t", "1"))
    service.started = True
    limits = GrpcLimits(LIMIT, metadata, streams, connections)
    listener = GrpcListener(
        service, [make_dialect()], limits, pool(), make_port=GrpcServer if own_server else AioServer, **options
    )
    toy = Toy(model, service, listener, own_server)
    sock = bind("127.0.0.1", 0)
    toy.port = sock.getsockname()[1]
    await listener.start(sock)
    try:
        yield toy
    finally:
        model.go.set()
        await listener.stop(0)

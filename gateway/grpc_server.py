"""grpc.aio on one side, Call and Reply on the other.

Messages pass as raw bytes: no generated servicer, so that a dialect reads large tensors as views of what arrived. The
table of methods is the dialects' own; this module knows none of them.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import grpc

from gateway.errors import Code
from gateway.ports import Call, Dialect, Endpoint, Reply
from gateway.service import Send, Service

_STATUS: Final = {code: status for code in Code for status in grpc.StatusCode if status.value[0] == code}

OPTIONS: Final = (
    ("grpc.so_reuseport", 0),  # two servers must never share a port unnoticed
    ("grpc.max_send_message_length", -1),
    ("grpc.http2.max_frame_size", 1 << 20),
)


@dataclass(frozen=True, slots=True)
class _Method:
    """A full method name with its endpoint, and the dialect that it belongs to."""

    dialect: str
    name: str
    endpoint: Endpoint


class GrpcListener:
    """One address that speaks some dialects over gRPC."""

    def __init__(self, service: Service, dialects: Sequence[Dialect], max_body_bytes: int) -> None:
        self._service = service
        self._max_body_bytes = max_body_bytes
        self._methods = {
            name: _Method(dialect.name, name, endpoint)
            for dialect in dialects
            for name, endpoint in dialect.grpc.items()
        }
        self._server: Any = None

    async def start(self, address: str) -> int:
        """Listen on host:port; returns the port. Raises RuntimeError if the address is taken."""
        options = (*OPTIONS, ("grpc.max_receive_message_length", self._max_body_bytes))
        self._server = grpc.aio.server(options=options)
        self._server.add_generic_rpc_handlers((_Handlers(self._methods, self._handler),))
        port: int = self._server.add_insecure_port(address)
        await self._server.start()
        return port

    async def stop(self, grace: float) -> None:
        """Accept nothing more, finish calls for `grace` seconds, cancel the rest."""
        if self._server is not None:
            await self._server.stop(grace)

    # -------------------------------------------------------------------------------------------------------- one call

    def _handler(self, method: _Method) -> Any:
        """grpc's idea of a method, without serializers: bytes in, bytes out."""

        async def unary(body: bytes, context: Any) -> bytes:
            answers: list[bytes] = []

            async def send(reply: Reply) -> None:
                answers.append(await _bytes(reply, context))

            await self._handle(method, body, context, send)
            return answers[-1]

        async def server_stream(body: bytes, context: Any) -> None:
            async def send(reply: Reply) -> None:
                await context.write(await _bytes(reply, context))

            await self._handle(method, body, context, send)

        async def bidi(bodies: AsyncIterator[bytes], context: Any) -> None:
            async for body in bodies:
                await server_stream(body, context)

        if method.endpoint.stream in ("unary", "single"):
            return grpc.unary_unary_rpc_method_handler(unary)
        if method.endpoint.stream == "server":
            return grpc.unary_stream_rpc_method_handler(server_stream)
        return grpc.stream_stream_rpc_method_handler(bidi)

    async def _handle(self, method: _Method, body: bytes, context: Any, send: Send) -> None:
        remaining = context.time_remaining()
        call = Call(
            body,
            "POST",
            method.name,
            {key: value for key, value in context.invocation_metadata() if isinstance(value, str)},
            "grpc",
            deadline=None if remaining is None else time.monotonic() + remaining,
            max_body_bytes=self._max_body_bytes,
        )
        await self._service.handle(method.dialect, method.endpoint, call, send)


class _Handlers(grpc.GenericRpcHandler):  # type: ignore[misc]
    """The table of methods in grpc's form; an unknown method is UNIMPLEMENTED by grpc itself."""

    def __init__(self, methods: Mapping[str, _Method], make: Callable[[_Method], Any]) -> None:
        self._handlers = {name: make(method) for name, method in methods.items()}

    def service(self, handler_call_details: Any) -> Any:
        return self._handlers.get(handler_call_details.method)


async def _bytes(reply: Reply, context: Any) -> bytes:
    """The reply's message; a reply that is no success ends the call with its status."""
    if reply.grpc_code is not Code.OK:
        await context.abort(_STATUS[reply.grpc_code], reply.message)
    body = reply.body
    return bytes(body) if isinstance(body, (bytes, bytearray, memoryview)) else b"".join(body)

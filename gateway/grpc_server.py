"""grpc.aio on one side, Call and Reply on the other.

Messages pass as raw bytes: no generated servicer, so that a dialect reads large tensors as views of what arrived. The
table of methods is the dialects' own; this module knows none of them. Beside them every port has the house's health
and reflection.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import grpc

from gateway.canonical import NOTHING
from gateway.errors import Code
from gateway.grpc_house import Health, Reflection
from gateway.grpc_streams import Chat, Reader, abort, body_of, write
from gateway.peers import GrpcPeer, Metadata
from gateway.ports import Call, Dialect, Endpoint, Reply
from gateway.service import Service
from gateway.tls import TlsFiles

log: Final = logging.getLogger(__name__)

OPTIONS: Final = (
    ("grpc.so_reuseport", 0),  # two servers must never share a port unnoticed
    ("grpc.max_send_message_length", -1),
    ("grpc.http2.max_frame_size", 1 << 20),
    # Clients keep connections alive by pings, some every ten seconds, and grpc would end those connections.
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 5000),
)


def _is_our_fault(record: logging.LogRecord) -> bool:
    """grpc logs a traceback for every answer whose client left while it was being sent. That must not fill the log."""
    return not (record.exc_info and isinstance(record.exc_info[1], grpc.aio.InternalError))


logging.getLogger("grpc._cython.cygrpc").addFilter(_is_our_fault)


@dataclass(frozen=True, slots=True)
class _Method:
    """A full method name with its endpoint, and the dialect that it belongs to."""

    dialect: str
    name: str
    endpoint: Endpoint


class GrpcListener:
    """One address that speaks some dialects over gRPC.

    `max_body_bytes` bounds a message; `descriptors` is the protobuf pool that reflection reads, with what the dialects
    speak; `names` are what routes call it, `auth` is what it wants of callers, "" what all ports do.
    """

    def __init__(
        self,
        service: Service,
        dialects: Sequence[Dialect],
        max_body_bytes: int,
        descriptors: Any = None,
        names: tuple[str, ...] = (),
        *,
        tls: TlsFiles | None = None,
        auth: str = "",
        options: Sequence[tuple[str, int]] = (),
    ) -> None:
        self._tls = tls
        self._auth = auth
        self._options = options
        self._service = service
        self._names = names
        self._max_body_bytes = max_body_bytes
        self._methods = {
            name: _Method(dialect.name, name, endpoint)
            for dialect in dialects
            for name, endpoint in dialect.grpc.items()
        }
        self._descriptors = descriptors
        self._reader = Reader()
        self._server: Any = None

    async def start(self, address: str) -> int:
        """Listen on host:port; returns the port. Raises RuntimeError if the address is taken."""
        options = (*OPTIONS, *self._options, ("grpc.max_receive_message_length", self._max_body_bytes))
        self._server = grpc.aio.server(options=options)
        self._server.add_generic_rpc_handlers((_Handlers(self._handlers()),))
        port: int = (
            self._server.add_insecure_port(address)
            if self._tls is None
            else self._server.add_secure_port(address, _credentials(self._tls))
        )
        await self._server.start()
        return port

    async def stop(self, grace: float) -> None:
        """Accept nothing more, finish what was asked for `grace` seconds, cancel the rest."""
        self._reader.stop()
        if self._server is not None:
            await self._server.stop(grace)

    def _handlers(self) -> dict[str, Any]:
        services = {name.split("/")[1] for name in self._methods}
        return {
            **Health(self._service, self._reader, self._auth).handlers(),
            **Reflection(services, self._descriptors, self._reader, self._service, self._auth).handlers(),
            **{name: self._handler(method) for name, method in self._methods.items()},
        }

    # -------------------------------------------------------------------------------------------------------- one call

    def _handler(self, method: _Method) -> Any:
        """grpc's idea of a method, without serializers: bytes in, bytes out."""
        dialect, name, endpoint = method.dialect, method.name, method.endpoint

        async def unary(body: bytes, context: Any) -> bytes:
            answer = b""

            async def send(reply: Reply) -> None:
                nonlocal answer
                if reply.grpc_code is not Code.OK:
                    await abort(context, reply)
                answer = await body_of(reply)

            call = self._call(name, context, Metadata(context), _deadline(context), body)
            await self._service.handle(dialect, endpoint, call, send)
            return answer

        async def server_stream(body: bytes, context: Any) -> None:
            async def send(reply: Reply) -> None:
                if reply.grpc_code is not Code.OK:
                    await abort(context, reply)
                await write(context, reply)

            call = self._call(name, context, Metadata(context), _deadline(context), body)
            with contextlib.suppress(ConnectionError):
                await self._service.handle(dialect, endpoint, call, send)

        async def bidi(bodies: Any, context: Any) -> None:
            chat = Chat(self._service, dialect, endpoint, context)
            await chat.run(self._reader, partial(self._call, name, context, Metadata(context), _deadline(context)))

        if endpoint.stream in ("unary", "single"):
            return grpc.unary_unary_rpc_method_handler(unary)
        if endpoint.stream == "server":
            return grpc.unary_stream_rpc_method_handler(server_stream)
        return grpc.stream_stream_rpc_method_handler(bidi)

    def _call(self, method: str, context: Any, headers: Metadata, deadline: float | None, body: bytes) -> Call:
        """One message of an RPC: name, metadata and deadline are those of all its messages."""
        return Call(
            body,
            "POST",
            method,
            headers,
            "grpc",
            NOTHING,
            deadline,
            self._max_body_bytes,
            listener=self._names,
            peer=GrpcPeer(context),
            auth=self._auth,
        )


def _deadline(context: Any) -> float | None:
    """In seconds of time.monotonic()."""
    remaining = context.time_remaining()
    return None if remaining is None else time.monotonic() + remaining


def grpc_bounds(metadata: int, streams: int | None, connections: int | None) -> tuple[tuple[str, int], ...]:
    """Options for a port: bytes of metadata per call, of which grpc refuses some from there on and all at twice as
    many; calls per connection; connections.
    """
    known = {
        "grpc.max_metadata_size": metadata,
        "grpc.absolute_max_metadata_size": 2 * metadata,
        "grpc.max_concurrent_streams": streams,
        "grpc.max_allowed_incoming_connections": connections,
    }
    return tuple((name, most) for name, most in known.items() if most is not None)


def _credentials(files: TlsFiles) -> Any:
    """grpc asks at each new connection whether the files have changed. Raises ValueError, OSError."""

    def read() -> Any:
        files.check()
        roots = files.client_ca.read_bytes() if files.client_ca else None
        return grpc.ssl_server_certificate_configuration(
            [(files.key.read_bytes(), files.certificate.read_bytes())], roots
        )

    stamp = files.stamp()

    def changed() -> Any:
        nonlocal stamp
        try:
            found = files.stamp()
            if found == stamp:
                return None
            stamp = found
            return read()
        except (OSError, ValueError) as error:
            log.error("the certificates from before stay: %s", error)
            return None

    return grpc.dynamic_ssl_server_credentials(read(), changed, files.client_ca is not None)


class _Handlers(grpc.GenericRpcHandler):  # type: ignore[misc]
    """The table of methods in grpc's form; an unknown method is UNIMPLEMENTED by grpc itself."""

    def __init__(self, handlers: Mapping[str, Any]) -> None:
        self._handlers = handlers

    def service(self, handler_call_details: Any) -> Any:
        return self._handlers.get(handler_call_details.method)

"""grpc.aio on one side, Call and Reply on the other.

Messages pass as raw bytes: no generated servicer, so that a dialect reads large tensors as views of what arrived. The
table of methods is the dialects' own; this module knows none of them. Beside them every port has the house's health
and reflection.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import grpc

from gateway.canonical import NOTHING
from gateway.errors import Code
from gateway.grpc_house import Health, Reflection
from gateway.grpc_streams import Chat, Reader, abort, body_of, write
from gateway.peers import GrpcPeer, Metadata
from gateway.ports import Call, Dialect, Endpoint, Reply
from gateway.request_id import REQUEST_ID, is_sane
from gateway.request_id import new as new_id
from gateway.service import Service
from gateway.tls import TlsFiles
from gateway.traffic import Counts, Traffic

log: Final = logging.getLogger(__name__)

OPTIONS: Final = (
    ("grpc.so_reuseport", 0),  # two servers must never share a port unnoticed
    ("grpc.max_send_message_length", -1),
    ("grpc.http2.max_frame_size", 1 << 20),
    # Clients keep connections alive by pings, some every ten seconds, and grpc would end those connections.
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 5000),
)


QUIET_S: Final = 0.02
"""So long nobody has asked anything: then nobody is about to, who waits for an answer; not on a busy machine, either,
where a client that is to ask may wait for a core.
"""
MOST_LOOKS: Final = 20
"""Callers who ask without waiting for answers may never be quiet."""
GOES_OUT_S: Final = 0.002


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
    speak; `names` are what routes call it, `auth` is what it wants of callers, "" what all ports do. With `request_ids`
    every call's trailing metadata has an id, and not only those of callers who sent one.
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
        request_ids: bool = False,
    ) -> None:
        self._tls = tls
        self._auth = auth
        self._options = options
        self._service = service
        self._names = names
        self._request_ids = request_ids
        self._counts = Counts()
        self._max_body_bytes = max_body_bytes
        self._methods = {
            name: _Method(dialect.name, name, endpoint)
            for dialect in dialects
            for name, endpoint in dialect.grpc.items()
        }
        self._descriptors = descriptors
        self._reader = Reader()
        self._server: Any = None
        self._begun = 0
        self._held: asyncio.Event | None = None

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
        if self._server is None:
            return
        self._held = asyncio.Event()
        await self._quiet()
        stopping = asyncio.ensure_future(self._server.stop(grace))
        await asyncio.sleep(GOES_OUT_S)
        self._held.set()
        await stopping

    async def _quiet(self) -> None:
        """Until no calls come any more.

        grpc takes one call after the other, and cancels what it has not taken when it stops: a client that has just
        asked would learn that it had been cancelled, which nobody asks again for. So answers are held back for a
        moment. Who waits for one asks nothing else meanwhile; everything that was asked is taken; and the word
        that this connection ends leaves before the answers, so that the next question goes elsewhere.
        """
        for _ in range(MOST_LOOKS):
            before = self._begun
            await asyncio.sleep(QUIET_S)
            if self._begun == before:
                return

    def _handlers(self) -> dict[str, Any]:
        services = {name.split("/")[1] for name in self._methods}
        return {
            **Health(self._service, self._reader, self._auth).handlers(),
            **Reflection(services, self._descriptors, self._reader, self._service, self._auth).handlers(),
            **{name: self._handler(method) for name, method in self._methods.items()},
        }

    # -------------------------------------------------------------------------------------------------------- one call

    def _unary(self, method: _Method) -> Any:
        dialect, name, endpoint = method.dialect, method.name, method.endpoint

        async def unary(body: bytes, context: Any) -> bytes:
            answer = b""

            async def send(reply: Reply) -> None:
                nonlocal answer
                if self._held is not None:
                    await self._held.wait()
                if reply.grpc_code is not Code.OK:
                    await abort(context, reply)
                answer = await body_of(reply)

            with self._counted():
                await self._service.handle(dialect, endpoint, self._calls(name, context)(body), send)
            self._counts.sent += len(answer)
            return answer

        return unary

    def _handler(self, method: _Method) -> Any:
        """grpc's idea of a method, without serializers: bytes in, bytes out."""
        dialect, name, endpoint = method.dialect, method.name, method.endpoint

        async def server_stream(body: bytes, context: Any) -> None:
            async def send(reply: Reply) -> None:
                if self._held is not None:
                    await self._held.wait()
                if reply.grpc_code is not Code.OK:
                    await abort(context, reply)
                self._counts.sent += await write(context, reply)

            with contextlib.suppress(ConnectionError), self._counted():
                await self._service.handle(dialect, endpoint, self._calls(name, context)(body), send)

        async def bidi(bodies: Any, context: Any) -> None:
            chat = Chat(self._service, dialect, endpoint, context, self._counts)
            with self._counted():
                await chat.run(self._reader, self._calls(name, context))

        if endpoint.stream in ("unary", "single"):
            return grpc.unary_unary_rpc_method_handler(self._unary(method))
        if endpoint.stream == "server":
            return grpc.unary_stream_rpc_method_handler(server_stream)
        return grpc.stream_stream_rpc_method_handler(bidi)

    def _calls(self, method: str, context: Any) -> Callable[[bytes], Call]:
        """Makes a call of each message of an RPC: name, metadata and deadline are those of all its messages."""
        headers, deadline = Metadata(context), _deadline(context)
        request_id = self._request_id(headers, context)

        def call(body: bytes) -> Call:
            self._begun += 1
            self._counts.received += len(body)
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
                request_id=request_id,
            )

        return call

    def _request_id(self, headers: Metadata, context: Any) -> str:
        """What the RPC is called in the answer's metadata; "" where it is not."""
        given = headers.get(REQUEST_ID)
        if given is None and not self._request_ids:
            return ""
        request_id = given if given is not None and is_sane(given) else new_id()
        context.set_trailing_metadata(((REQUEST_ID, request_id),))
        return request_id

    @contextlib.contextmanager
    def _counted(self) -> Iterator[None]:
        self._counts.running += 1
        try:
            yield
        finally:
            self._counts.running -= 1

    def traffic(self) -> Traffic:
        """What passes here, for metrics: may be called in any thread. gRPC keeps its connections to itself."""
        return Traffic(None, self._counts.running, self._counts.received, self._counts.sent)


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

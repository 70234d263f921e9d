"""A gRPC port by grpc.aio: where there is TLS, which it does without the interpreter."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Mapping
from typing import Any, Final, NoReturn

import grpc

from gateway.errors import Code
from gateway.grpc_exchange import Bounds, Handler, Handlers
from gateway.grpc_streams import body_of, short_detail
from gateway.peers import GrpcPeer, Metadata
from gateway.ports import Peer, Reply
from gateway.request_id import REQUEST_ID
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

_STATUS: Final = {code: status for code in Code for status in grpc.StatusCode if status.value[0] == code}


def _is_our_fault(record: logging.LogRecord) -> bool:
    """grpc logs a traceback for every answer whose client left while it was being sent. That must not fill the log."""
    return not (record.exc_info and isinstance(record.exc_info[1], grpc.aio.InternalError))


logging.getLogger("grpc._cython.cygrpc").addFilter(_is_our_fault)


class AioServer:
    """One address."""

    def __init__(self, handlers: Handlers, counts: Counts, bounds: Bounds, tls: TlsFiles | None) -> None:
        self._handlers = handlers
        self._counts = counts
        self._tls = tls
        self._options = (*OPTIONS, *_options(bounds))
        self._server: Any = None
        self.held: asyncio.Event | None = None
        self.begun = 0

    async def start(self, host: str, port: int) -> int:
        """Listen; returns the port. Raises OSError if the address is taken."""
        address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        self._server = grpc.aio.server(options=self._options)
        self._server.add_generic_rpc_handlers((_Table({name: self._made(h) for name, h in self._handlers.items()}),))
        try:
            found: int = (
                self._server.add_insecure_port(address)
                if self._tls is None
                else self._server.add_secure_port(address, _credentials(self._tls))
            )
        except RuntimeError as error:
            raise OSError(str(error)) from None
        await self._server.start()
        return found

    async def stop(self, grace: float) -> None:
        """Accept nothing more, finish what was asked for `grace` seconds, cancel the rest."""
        if self._server is None:
            return
        self.held = asyncio.Event()
        await self._quiet()
        stopping = asyncio.ensure_future(self._server.stop(grace))
        await asyncio.sleep(GOES_OUT_S)
        self.held.set()
        await stopping

    async def _quiet(self) -> None:
        """Until no calls come any more.

        grpc takes one call after the other, and cancels what it has not taken when it stops: a client that has just
        asked would learn that it had been cancelled, which nobody asks again for. So answers are held back for a
        moment. Who waits for one asks nothing else meanwhile; everything that was asked is taken; and the word
        that this connection ends leaves before the answers, so that the next question goes elsewhere.
        """
        for _ in range(MOST_LOOKS):
            before = self.begun
            await asyncio.sleep(QUIET_S)
            if self.begun == before:
                return

    def _made(self, handler: Handler) -> Any:
        """grpc's idea of a method, without serializers: bytes in, bytes out."""

        async def unary(body: bytes, context: Any) -> bytes:
            rpc = AioRpc(self, context, self._counts)
            await handler.run(rpc, body)
            return rpc.answer

        async def stream(body: Any, context: Any) -> None:
            with contextlib.suppress(ConnectionError):
                await handler.run(AioRpc(self, context, self._counts), body)

        if handler.stream == "unary":
            return grpc.unary_unary_rpc_method_handler(unary)
        if handler.stream == "server":
            return grpc.unary_stream_rpc_method_handler(stream)
        return grpc.stream_stream_rpc_method_handler(stream)

    def traffic(self) -> Traffic:
        """See Listener. grpc keeps its connections to itself."""
        return Traffic(None, self._counts.running, self._counts.received, self._counts.sent)


class AioRpc:
    """See Rpc. `answer` is what is to be returned for a call of one answer."""

    __slots__ = ("_context", "_counts", "_server", "answer", "deadline", "headers", "peer")

    headers: Mapping[str, str]
    peer: Peer

    def __init__(self, server: AioServer, context: Any, counts: Counts) -> None:
        server.begun += 1
        self._server = server
        self._context = context
        self._counts = counts
        self.headers = Metadata(context)
        remaining = context.time_remaining()
        self.deadline = None if remaining is None else time.monotonic() + remaining
        self.peer = GrpcPeer(context)
        self.answer = b""

    def name(self, request_id: str) -> None:
        self._context.set_trailing_metadata(((REQUEST_ID, request_id),))

    async def read(self) -> bytes | None:
        body = await self._context.read()
        return None if body is grpc.aio.EOF else body

    async def send(self, reply: Reply) -> None:
        if reply.grpc_code is not Code.OK:
            await self.fail(reply)
        if self._server.held is not None:
            await self._server.held.wait()
        self.answer = await body_of(reply)
        self._counts.sent += len(self.answer)

    async def write(self, reply: Reply) -> None:
        if self._server.held is not None:
            await self._server.held.wait()
        body = await body_of(reply)
        try:
            await self._context.write(body)
        except grpc.aio.BaseError as error:
            raise ConnectionResetError("the client has left") from error
        self._counts.sent += len(body)

    async def fail(self, reply: Reply) -> NoReturn:
        if self._server.held is not None:
            await self._server.held.wait()
        await self._context.abort(_STATUS[reply.grpc_code], short_detail(reply.message).decode(errors="ignore"))
        raise AssertionError("abort raises")


def _options(bounds: Bounds) -> list[tuple[str, int]]:
    """In grpc's words. Some calls of more than the bytes of metadata are refused, and all of twice as many."""
    known = {
        "grpc.max_receive_message_length": bounds.message,
        "grpc.max_metadata_size": bounds.metadata,
        "grpc.absolute_max_metadata_size": 2 * bounds.metadata,
        "grpc.max_concurrent_streams": bounds.streams,
        "grpc.max_allowed_incoming_connections": bounds.connections,
    }
    return [(name, most) for name, most in known.items() if most is not None]


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


class _Table(grpc.GenericRpcHandler):  # type: ignore[misc]
    """The table of methods in grpc's form; an unknown method is UNIMPLEMENTED by grpc itself."""

    def __init__(self, handlers: Mapping[str, Any]) -> None:
        self._handlers = handlers

    def service(self, handler_call_details: Any) -> Any:
        return self._handlers.get(handler_call_details.method)

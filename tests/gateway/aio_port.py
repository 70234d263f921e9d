"""A gRPC port by grpc.aio: what the gateway's own is compared with."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import logging
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NoReturn
from urllib.parse import unquote

import grpc
import numpy as np

from tensorgate.gateway.contract.call import Buffer, Peer, Reply
from tensorgate.gateway.contract.errors import Code
from tensorgate.gateway.telemetry.connection_metrics import ListenerCounters
from tensorgate.gateway.telemetry.request_id import REQUEST_ID
from tensorgate.gateway.transport.grpc_exchange import GrpcLimits, Handler, Handlers
from tensorgate.gateway.transport.grpc_streams import short_detail
from tensorgate.gateway.transport.timeouts import ClientTimeouts
from tensorgate.gateway.wire.http1_body import Body

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
MAX_LOOKS: Final = 20
"""Callers who ask without waiting for answers may never be quiet."""
GOES_OUT_S: Final = 0.002
COPIED_IN_THREAD_BYTES: Final = 1 << 20

_STATUS: Final = {code: status for code in Code for status in grpc.StatusCode if status.value[0] == code}


def _is_our_fault(record: logging.LogRecord) -> bool:
    """grpc logs a traceback for every answer whose client left while it was being sent. That must not fill the log."""
    return not (record.exc_info and isinstance(record.exc_info[1], grpc.aio.InternalError))


logging.getLogger("grpc._cython.cygrpc").addFilter(_is_our_fault)


class AioServer:
    """One address."""

    def __init__(
        self,
        handlers: Handlers,
        counters: ListenerCounters,
        limits: GrpcLimits,
        tls: None = None,
        timeouts: ClientTimeouts | None = None,
    ) -> None:
        self._handlers = handlers
        self._counters = counters
        self._options = (*OPTIONS, *_options(limits))
        self._server: Any = None
        self.held: asyncio.Event | None = None
        self.begun = 0

    async def start(self, sock: socket.socket, share: None = None) -> None:
        """Listen at the address of a socket that is closed: grpc takes none."""
        host, port = sock.getsockname()[:2]
        sock.close()
        self._server = grpc.aio.server(options=self._options)
        self._server.add_generic_rpc_handlers((_Table({name: self._made(h) for name, h in self._handlers.items()}),))
        self._server.add_insecure_port(f"{host}:{port}")
        await self._server.start()

    async def stop(self, grace: float, *, hand_on: bool = False) -> None:
        """Accept nothing more, finish what was asked for `grace` seconds, cancel the rest."""
        if self._server is None:
            return
        self.held = asyncio.Event()
        await self._quiet()
        stopping = asyncio.ensure_future(self._server.stop(grace))
        await asyncio.sleep(GOES_OUT_S)  # real time: grpc tells nobody when that has gone out
        self.held.set()
        await stopping

    async def _quiet(self) -> None:
        """Until no calls come any more.

        grpc takes one call after the other, and cancels what it has not taken when it stops: a client that has just
        asked would learn that it had been cancelled, which nobody asks again for. So answers are held back for a
        moment. Who waits for one asks nothing else meanwhile; everything that was asked is taken; and the word
        that this connection ends leaves before the answers, so that the next question goes elsewhere.
        """
        for _ in range(MAX_LOOKS):
            before = self.begun
            await asyncio.sleep(QUIET_S)  # real time: grpc tells nobody what it still has
            if self.begun == before:
                return

    def _made(self, handler: Handler) -> Any:
        """grpc's idea of a method, without serializers: bytes in, bytes out."""

        async def unary(body: bytes, context: Any) -> bytes:
            rpc = AioRpc(self, context, self._counters)
            await handler.run(rpc, body)
            return rpc.answer

        async def stream(body: Any, context: Any) -> None:
            with contextlib.suppress(ConnectionError):
                await handler.run(AioRpc(self, context, self._counters), body)

        if handler.stream == "unary":
            return grpc.unary_unary_rpc_method_handler(unary)
        if handler.stream == "server":
            return grpc.unary_stream_rpc_method_handler(stream)
        return grpc.stream_stream_rpc_method_handler(stream)

    @property
    def connections(self) -> None:
        """grpc keeps them to itself."""


class AioRpc:
    """See Rpc. `answer` is what is to be returned for a call of one answer."""

    __slots__ = ("_context", "_counters", "_server", "answer", "deadline", "headers", "peer")

    headers: Mapping[str, str]
    peer: Peer

    def __init__(self, server: AioServer, context: Any, counters: ListenerCounters) -> None:
        server.begun += 1
        self._server = server
        self._context = context
        self._counters = counters
        self.headers = Metadata(context)
        remaining = context.time_remaining()
        self.deadline = None if remaining is None else time.monotonic() + remaining
        self.peer = GrpcPeer(context)
        self.answer = b""

    def set_request_id(self, request_id: str) -> None:
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
        self._counters.sent += len(self.answer)

    async def write(self, reply: Reply) -> None:
        if self._server.held is not None:
            await self._server.held.wait()
        body = await body_of(reply)
        try:
            await self._context.write(body)
        except grpc.aio.BaseError as error:
            raise ConnectionResetError("the client has left") from error
        self._counters.sent += len(body)

    async def fail(self, reply: Reply) -> NoReturn:
        if self._server.held is not None:
            await self._server.held.wait()
        await self._context.abort(_STATUS[reply.grpc_code], short_detail(reply.message).decode(errors="ignore"))
        raise AssertionError("abort raises")


def _options(limits: GrpcLimits) -> list[tuple[str, int]]:
    """In grpc's words. Some calls of more than the bytes of metadata are refused, and all of twice as many."""
    known = {
        "grpc.max_receive_message_length": limits.max_message_bytes,
        "grpc.max_metadata_size": limits.max_metadata_bytes,
        "grpc.absolute_max_metadata_size": 2 * limits.max_metadata_bytes,
        "grpc.max_concurrent_streams": limits.max_streams,
        "grpc.max_allowed_incoming_connections": limits.max_connections,
    }
    return [(name, most) for name, most in known.items() if most is not None]


class _Table(grpc.GenericRpcHandler):  # type: ignore[misc]
    """The table of methods in grpc's form; an unknown method is UNIMPLEMENTED by grpc itself."""

    def __init__(self, handlers: Mapping[str, Any]) -> None:
        self._handlers = handlers

    def service(self, handler_call_details: Any) -> Any:
        return self._handlers.get(handler_call_details.method)


class GrpcPeer:
    """Of an RPC, by its context."""

    __slots__ = ("_context",)

    def __init__(self, context: Any) -> None:
        self._context = context

    def address(self) -> str:
        """See Peer. grpc has it as ipv4:1.2.3.4:567, or ipv6:[::1]:567."""
        kind, _, rest = unquote(self._context.peer()).partition(":")
        return rest.rpartition(":")[0].strip("[]") if kind in ("ipv4", "ipv6") else ""

    def names(self) -> Sequence[str]:
        """See Peer."""
        shown = self._context.auth_context()
        kinds = ("peer_uri", "peer_dns", "x509_common_name")
        return [name.decode("utf-8", "replace") for kind in kinds for name in shown.get(kind, ())]


class Metadata(Mapping[str, str]):
    """An RPC's metadata, what is binary in base64, read once somebody asks: few do, and it is as much work as a small
    tensor.
    """

    __slots__ = ("_context", "_read")

    def __init__(self, context: Any) -> None:
        self._context = context
        self._read: dict[str, str] | None = None

    def __getitem__(self, key: str) -> str:
        return self._values()[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values())

    def __len__(self) -> int:
        return len(self._values())

    def _values(self) -> dict[str, str]:
        if self._read is None:
            pairs = self._context.invocation_metadata()
            self._read = {
                key: value if isinstance(value, str) else base64.b64encode(value).decode() for key, value in pairs
            }
        return self._read


async def body_of(reply: Reply) -> bytes:
    """A reply's message; its parts are copied once, here, and where they are large while the loop goes on."""
    body = reply.body
    if type(body) is bytes:
        return body
    parts: Sequence[Buffer] = [body] if isinstance(body, (bytes, bytearray, memoryview)) else body
    size = sum(map(len, parts))
    if size >= COPIED_IN_THREAD_BYTES:
        return await asyncio.to_thread(_joined, parts, size)
    return b"".join(parts)


def _joined(parts: Sequence[Buffer], size: int) -> Buffer:
    """The same as bytes.join, which keeps the interpreter to itself; NumPy gives it away while it copies."""
    body = Body(size, b"")
    for part in parts:
        if len(part):
            np.frombuffer(body.room, np.uint8)[: len(part)] = np.frombuffer(part, np.uint8)
            body.commit(len(part))
    return body.whole()

"""A gRPC port without grpc: HTTP/2 to the handlers of methods, and back, on the event loop.

grpc.aio takes each message through a thread of its own, copies it several times, and makes a task of each call. Here a
call's first step is taken as soon as its message is whole: most small ones end with it, and their answer is one buffer.

    socket ──▶ GrpcServerConnection (Http2) ── headers, messages ──▶ GrpcCall ──▶ the flow ──▶ back to the socket

Source: gRPC over HTTP/2.
"""

from __future__ import annotations

import asyncio
import socket
from typing import Final

from tensorgate.gateway.config.listeners import TlsFiles
from tensorgate.gateway.telemetry.connection_metrics import ListenerCounters
from tensorgate.gateway.transport.acceptor import Listening, listen
from tensorgate.gateway.transport.certificates import HTTP2, Certificates
from tensorgate.gateway.transport.clients import ClientConnection, Clients
from tensorgate.gateway.transport.grpc_call import WINDOW_BYTES
from tensorgate.gateway.transport.grpc_connection import MAX_RECEIVED_FRAME_BYTES, GrpcServerConnection
from tensorgate.gateway.transport.grpc_context import GrpcContext
from tensorgate.gateway.transport.grpc_exchange import GrpcLimits, Handlers
from tensorgate.gateway.transport.spread import Share
from tensorgate.gateway.transport.timeouts import ClientTimeouts
from tensorgate.gateway.wire.http2 import new_scratch
from tensorgate.gateway.wire.http2_frames import (
    DEFAULT_WINDOW,
    INITIAL_WINDOW_SIZE,
    MAX_CONCURRENT_STREAMS,
    MAX_FRAME_SIZE,
    MAX_HEADER_LIST_SIZE,
    MAX_INT31,
    WINDOW_UPDATE,
    settings,
    short_frame,
)

_NO_LIMIT: Final = 1 << 62


class GrpcServer:
    """A gRPC port."""

    def __init__(
        self,
        handlers: Handlers,
        counters: ListenerCounters,
        limits: GrpcLimits,
        tls: TlsFiles | None = None,
        timeouts: ClientTimeouts | None = None,
    ) -> None:
        timeouts = timeouts or ClientTimeouts()
        self._certificates = None if tls is None else Certificates(tls, HTTP2)
        self._clients: Clients[ClientConnection] = Clients(timeouts.sweep, limits.max_connections)
        self.context = GrpcContext(
            handlers,
            counters,
            limits,
            timeouts,
            self._clients,
            asyncio.get_running_loop(),
            new_scratch(),
            _greeting(limits),
            _NO_LIMIT if limits.max_streams is None else limits.max_streams,
        )
        self._listening: Listening | None = None

    async def start(self, sock: socket.socket, share: Share | None = None) -> None:
        """See GrpcPort."""

        def connect() -> GrpcServerConnection:
            return GrpcServerConnection(self.context)

        self._listening = await listen(sock, connect, self._clients, self._certificates, self.context.timeouts, share)
        self._clients.sweep()

    async def stop(self, grace: float, *, hand_on: bool = False) -> None:
        """See GrpcPort.

        Every client is told to ask nothing more here, and all that it asks before it has read that is answered.
        """
        if self._listening is not None:
            self._listening.close(hand_on=hand_on)
            await self._clients.stop(grace)

    @property
    def connections(self) -> int:
        """See GrpcPort."""
        return self._clients.count


def _greeting(limits: GrpcLimits) -> bytes:
    """The first frames of each connection: settings, and a window that is never closed."""
    values = {} if limits.max_streams is None else {MAX_CONCURRENT_STREAMS: limits.max_streams}
    values |= {INITIAL_WINDOW_SIZE: WINDOW_BYTES, MAX_FRAME_SIZE: MAX_RECEIVED_FRAME_BYTES}
    values |= {MAX_HEADER_LIST_SIZE: limits.max_metadata_bytes}
    return settings(values) + short_frame(WINDOW_UPDATE, 0, MAX_INT31 - DEFAULT_WINDOW)

"""A gRPC port without grpc: HTTP/2 to the handlers of methods, and back, on the event loop.

grpc.aio takes each message through a thread of its own, copies it several times, and makes a task of each call. Here a
call's first step is taken as soon as its message is whole: most small ones end with it, and their answer is one buffer.

    socket ──▶ Connection (http2) ── headers, messages ──▶ GrpcCall ──▶ the flow ──▶ back to the socket

Source: gRPC over HTTP/2.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any, Final

from tensorgate.gateway.config.listeners import TlsFiles
from tensorgate.gateway.telemetry.connection_metrics import Counts
from tensorgate.gateway.transport.certificates import HTTP2, Certificates
from tensorgate.gateway.transport.grpc_call import WINDOW_BYTES
from tensorgate.gateway.transport.grpc_connection import FRAME_BYTES, Connection
from tensorgate.gateway.transport.grpc_exchange import Bounds, Handlers
from tensorgate.gateway.transport.sockets import bind
from tensorgate.gateway.transport.timeouts import ClientTimeouts
from tensorgate.gateway.wire.http2 import new_scratch
from tensorgate.gateway.wire.http2_frames import (
    FIRST_WINDOW,
    FRAME_SIZE,
    LIST_SIZE,
    MAX_STREAMS,
    MOST,
    WINDOW,
    WINDOW_UPDATE,
    settings,
    short_frame,
)

BACKLOG: Final = 1024
_NO_LIMIT: Final = 1 << 62


class GrpcServer:
    """All connections of one port."""

    def __init__(
        self,
        handlers: Handlers,
        counts: Counts,
        bounds: Bounds,
        tls: TlsFiles | None = None,
        timeouts: ClientTimeouts | None = None,
    ) -> None:
        self.handlers = handlers
        self.counts = counts
        self.bounds = bounds
        self.timeouts = timeouts or ClientTimeouts()
        self._certificates = None if tls is None else Certificates(tls, HTTP2)
        self.max_streams = _NO_LIMIT if bounds.streams is None else bounds.streams
        said = {} if bounds.streams is None else {MAX_STREAMS: bounds.streams}
        said |= {WINDOW: WINDOW_BYTES, FRAME_SIZE: FRAME_BYTES, LIST_SIZE: bounds.metadata}
        self.greeting = settings(said) + short_frame(WINDOW_UPDATE, 0, MOST - FIRST_WINDOW)
        self.loop = asyncio.get_running_loop()
        self.scratch = new_scratch()
        self.clients: set[Connection] = set()
        self.draining = False
        self._all_gone = asyncio.Event()
        self._server: asyncio.Server | None = None

    async def start(self, host: str, port: int) -> int:
        """Listen; returns the port. Raises OSError if the address is taken."""
        sock = bind(host, port)
        secure: dict[str, Any] = {}
        if self._certificates is not None:
            timeouts = {"ssl_handshake_timeout": self.timeouts.head, "ssl_shutdown_timeout": self.timeouts.linger}
            secure = {"ssl": self._certificates.context(), **timeouts}
        self._server = await self.loop.create_server(self._connect, sock=sock, backlog=BACKLOG, **secure)
        self._sweep()
        found: int = sock.getsockname()[1]
        return found

    def _connect(self) -> asyncio.BaseProtocol:
        most = self.bounds.connections
        if most is not None and len(self.clients) >= most:
            return _TurnedAway()
        return Connection(self)

    async def stop(self, grace: float) -> None:
        """Accept nothing more, finish what was asked for `grace` seconds, cancel the rest.

        Every client is told to ask nothing more here, and that whatever it has asked before it read that is answered.
        """
        if self._server is None:
            return
        self._server.close()
        await asyncio.sleep(0)  # who has connected is known
        self.draining = True
        for connection in list(self.clients):
            connection.part()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(grace):
                await self._gone()
        tasks = [task for connection in list(self.clients) for task in connection.abort()]
        await self._gone()
        if tasks:
            await asyncio.wait(tasks, timeout=1)
        self._timer.cancel()

    async def _gone(self) -> None:
        if self.clients:
            self._all_gone.clear()
            await self._all_gone.wait()

    def forget(self, connection: Connection) -> None:
        """The connection is closed."""
        self.clients.discard(connection)
        if not self.clients:
            self._all_gone.set()

    def _sweep(self) -> None:
        """Look after those who are waited for. One timer for all: one per call would cost more."""
        for connection in list(self.clients):
            connection.look_after()
        self._timer = self.loop.call_later(self.timeouts.sweep, self._sweep)

    @property
    def connections(self) -> int:
        """See GrpcPort."""
        return len(self.clients)


class _TurnedAway(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport.close()

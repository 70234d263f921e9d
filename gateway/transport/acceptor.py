"""Connections of a listening socket, each with a protocol of its own.

One process leaves accepting to the event loop's own server. A door accepts by itself, since it may hand a connection
over to another one before TLS or any protocol has seen it; and a Unix socket is accepted from in the same way on every
event loop, uvloop's server of TCP being of TCP alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import logging
import socket
import struct
from collections.abc import Callable
from typing import Any, Final, Protocol

from tensorgate.gateway.transport.certificates import Certificates
from tensorgate.gateway.transport.clients import Clients
from tensorgate.gateway.transport.sockets import BACKLOG
from tensorgate.gateway.transport.spread import Share
from tensorgate.gateway.transport.timeouts import ClientTimeouts

_log: Final = logging.getLogger(__name__)
_PER_STEP: Final = 64
"""How many connections are accepted before the loop does something else."""
_PAUSE_S: Final = 1.0
"""How long nothing is accepted where the process has no descriptors left. asyncio waits as long."""
_SO_ATTACH_FILTER: Final = 26
"""Linux's own, which Python's socket module does not name."""
_INSTRUCTION: Final = struct.Struct("HBBI")
_NO_SYN: Final = (
    (0x30, 0, 0, 13),  # load the byte of flags of TCP's header
    (0x45, 0, 1, 0x02),  # where SYN is not among them, skip one
    (0x06, 0, 0, 0),  # drop it
    (0x06, 0, 0, 0xFFFF),  # pass it
)
"""A classic BPF program: code, jump if true, jump if false, operand."""

Connect = Callable[[], asyncio.BaseProtocol]
"""Makes the protocol of a new connection."""


class Listening(Protocol):
    """An address at which connections are accepted."""

    def close(self, *, hand_on: bool) -> None:
        """Accept nothing more. With `hand_on` another process goes on at the address; else nobody does, whoever holds
        the same socket.
        """
        ...


async def listen(
    sock: socket.socket,
    connect: Connect,
    clients: Clients[Any],
    certificates: Certificates | None,
    timeouts: ClientTimeouts,
    share: Share | None = None,
) -> Listening:
    """Accept connections, over TLS where there are certificates; `share` is that of one of several doors."""
    secure: dict[str, Any] = {}
    if certificates is not None:
        secure = {
            "ssl": certificates.context(),
            "ssl_handshake_timeout": timeouts.head,
            "ssl_shutdown_timeout": timeouts.linger,
        }
    connect = clients.bounded(connect) if share is None else clients.bounded(connect, share.others)
    if share is not None or sock.family == socket.AF_UNIX:
        return Acceptor(sock, connect, clients, secure, share)
    loop = asyncio.get_running_loop()
    return _Server(sock, await loop.create_server(connect, sock=sock, backlog=BACKLOG, **secure))


class _Server:
    """The event loop's own server."""

    def __init__(self, sock: socket.socket, server: asyncio.Server) -> None:
        self._sock = sock
        self._server = server

    def close(self, *, hand_on: bool) -> None:
        """See Listening."""
        if not hand_on:
            shut(self._sock)
        self._server.close()


class Acceptor:
    """Accepts on the event loop, and keeps what no lighter door takes."""

    def __init__(
        self,
        sock: socket.socket,
        connect: Connect,
        clients: Clients[Any],
        secure: dict[str, Any],
        share: Share | None,
    ) -> None:
        """`secure` is what the event loop has to know of TLS."""
        self._sock = sock
        self._connect = connect
        self._clients = clients
        self._secure = secure
        self._share = share
        self._loop = asyncio.get_running_loop()
        self._opening: dict[asyncio.BaseProtocol, asyncio.Task[None]] = {}
        """Protocols that have no connection yet: TLS is shaking hands."""
        self._pause: asyncio.TimerHandle | None = None
        if share is not None:
            share.take, share.count = self.take, self._count
            clients.on_change = share.update
        sock.listen(BACKLOG)
        self._loop.add_reader(sock, self._accept)

    def take(self, connection: socket.socket) -> None:
        """Serve an accepted connection."""
        if connection.family != socket.AF_UNIX:
            with contextlib.suppress(OSError):  # the client has left
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        protocol = self._connect()
        self._opening[protocol] = self._loop.create_task(self._open(protocol, connection))
        self._update()

    def close(self, *, hand_on: bool) -> None:
        """See Listening. Who has connected already is served, unless another process does that."""
        if self._sock.fileno() < 0:  # it is closed already
            return
        if self._pause is not None:
            self._pause.cancel()
        self._loop.remove_reader(self._sock)
        if not hand_on:
            _turn_away(self._sock)
            with contextlib.suppress(OSError):
                while (connection := self._next()) is not None:
                    self.take(connection)
            shut(self._sock)
        self._sock.close()

    def _accept(self) -> None:
        share = self._share
        try:
            for _ in range(_PER_STEP):
                if (connection := self._next()) is None:
                    return
                if share is None or not share.hand_over(connection):
                    self.take(connection)
        except OSError as error:  # no descriptors are left
            _log.error("cannot accept connections: %s", error.strerror)
            self._loop.remove_reader(self._sock)
            self._pause = self._loop.call_later(_PAUSE_S, self._loop.add_reader, self._sock, self._accept)

    def _next(self) -> socket.socket | None:
        """The next connection that waits, if any does. Raises OSError."""
        while True:
            try:
                connection, _ = self._sock.accept()
            except (BlockingIOError, InterruptedError):
                return None
            except ConnectionAbortedError:
                continue
            connection.setblocking(False)
            return connection

    async def _open(self, protocol: asyncio.BaseProtocol, connection: socket.socket) -> None:
        try:
            with contextlib.suppress(OSError):  # the client has left, or TLS has failed
                await self._loop.connect_accepted_socket(lambda: protocol, connection, **self._secure)
        finally:
            del self._opening[protocol]
            self._update()

    def _count(self) -> int:
        known = self._clients.open
        return self._clients.count + sum(protocol not in known for protocol in self._opening)

    def _update(self) -> None:
        if self._share is not None:
            self._share.update()


def _turn_away(sock: socket.socket) -> None:
    """Nobody new begins to connect, for as long as it takes to accept who has: closing resets what waits. A client that
    comes meanwhile asks again a second later, when nobody is there.
    """
    if sock.family == socket.AF_UNIX:
        return
    program = ctypes.create_string_buffer(b"".join(_INSTRUCTION.pack(*each) for each in _NO_SYN))
    with contextlib.suppress(OSError):
        sock.setsockopt(
            socket.SOL_SOCKET, _SO_ATTACH_FILTER, struct.pack("HP", len(_NO_SYN), ctypes.addressof(program))
        )


def shut(sock: socket.socket) -> None:
    """Nobody accepts at the address any more, whoever holds the same socket."""
    with contextlib.suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)

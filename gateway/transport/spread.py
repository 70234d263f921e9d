"""Connections in equal numbers to all doors, for as long as they live.

The kernel gives each new connection to one of the sockets of an address by a hash of both ends: of 16 connections, one
of two doors may get 11, and then has 11 of 16 calls for hours where clients keep connections. So a door that has
accepted a connection, and sees in the shared state that another door has fewer, hands it over before it has read a
byte of it, as a file descriptor over a Unix socket. With every connection the difference is one at most.

    accept ── fewest here ──▶ this door's protocol                  (TLS, HTTP, gRPC)
       └───── fewer there ──▶ door-<row>.sock ──▶ that door's protocol

If it cannot be handed over, it stays. What was handed over is never handed on.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Final

from tensorgate.gateway.crossing.shared_state import SharedState

_MESSAGE_BYTES: Final = 2
"""A message is the listener's number, little endian, and one descriptor."""
_BACKLOG: Final = 512


class Share:
    """One listener's part of the spread: what its acceptor asks and tells."""

    def __init__(self, spread: Spread, listener: int) -> None:
        self._spread = spread
        self._listener = listener
        self.take: Callable[[socket.socket], None]
        """Serves a connection. Set by the acceptor."""
        self.count: Callable[[], int] = lambda: 0
        """How many connections there are. Set by the acceptor."""

    def update(self) -> None:
        """The number of connections may have changed."""
        self._spread.state.set_open(self._listener, self._spread.row, self.count())

    def others(self) -> int:
        """How many connections the other doors have."""
        open_ = self._spread.state.open(self._listener)
        return sum(open_) - open_[self._spread.row]

    def hand_over(self, connection: socket.socket) -> bool:
        """Give an accepted connection to the door that has fewest, and close it here; False if it belongs here."""
        state, row = self._spread.state, self._spread.row
        to = state.lighter(self._listener, row)
        if to is None:
            return False
        state.give(self._listener, row, to)
        if not self._spread.send(to, self._listener, connection):
            state.give(self._listener, row, to, -1)
            return False
        connection.close()
        return True


class Spread:
    """One door's side. `path` says where the door of a row takes connections."""

    def __init__(self, state: SharedState, row: int, path: Callable[[int], Path]) -> None:
        self.state = state
        self.row = row
        self._path = path
        self._loop = asyncio.get_running_loop()
        self._shares: dict[int, Share] = {}
        self._doors: dict[int, socket.socket] = {}
        self._incoming: set[socket.socket] = set()
        self._sock: socket.socket | None = None
        state.begin(row)

    def share(self, listener: int) -> Share:
        """The part of a listener, by its number in `Sockets.all`."""
        return self._shares.setdefault(listener, Share(self, listener))

    def start(self) -> None:
        """Take what other doors hand over. All listeners have started. Raises OSError."""
        path = self._path(self.row)
        path.unlink(missing_ok=True)
        self._sock = sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        sock.setblocking(False)
        sock.bind(str(path))
        sock.listen(_BACKLOG)
        self._loop.add_reader(sock, self._accept, sock)
        self.state.set_alive(self.row, alive=True)

    def stop(self) -> None:
        """Take what other doors have sent already, and nothing more. Listeners stop after that."""
        self.state.set_alive(self.row, alive=False)
        if self._sock is None:
            return
        self._loop.remove_reader(self._sock)
        self._sock.shutdown(socket.SHUT_RD)  # what a sender does from here on fails, and it keeps the connection
        self._accept(self._sock)
        self._sock.close()
        self._sock = None
        for sock in list(self._incoming):
            sock.shutdown(socket.SHUT_RD)
            self._receive(sock)
        for sock in self._doors.values():
            sock.close()
        self._doors.clear()

    def send(self, row: int, listener: int, connection: socket.socket) -> bool:
        """Hand a connection over to the door of a row. False if that cannot be done at once."""
        message = [listener.to_bytes(_MESSAGE_BYTES, "little")]
        for is_old in (True, False):  # the one of before may have been another door's, which is gone
            sock = self._doors.get(row) if is_old else self._connect(row)
            if sock is None:
                continue
            try:
                socket.send_fds(sock, message, [connection.fileno()])
            except BlockingIOError:
                return False
            except OSError:
                sock.close()
                self._doors.pop(row, None)
            else:
                return True
        return False

    def _connect(self, row: int) -> socket.socket | None:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        sock.setblocking(False)
        try:
            sock.connect(str(self._path(row)))
        except OSError:
            sock.close()
            return None
        self._doors[row] = sock
        return sock

    def _accept(self, sock: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                door, _ = sock.accept()
                door.setblocking(False)
                self._incoming.add(door)
                self._loop.add_reader(door, self._receive, door)

    def _receive(self, door: socket.socket) -> None:
        """Take all that another door has sent."""
        while door in self._incoming:
            try:
                message, numbers, _, _ = socket.recv_fds(door, _MESSAGE_BYTES, 1)
            except BlockingIOError:
                return
            except OSError:
                message, numbers = b"", []
            if not message:
                self._forget(door)
                return
            listener = int.from_bytes(message, "little")
            for connection in (socket.socket(fileno=number) for number in numbers):
                connection.setblocking(False)
                self._shares[listener].take(connection)
            self.state.take(listener, self.row)

    def _forget(self, door: socket.socket) -> None:
        if door in self._incoming:
            self._incoming.discard(door)
            self._loop.remove_reader(door)
            door.close()

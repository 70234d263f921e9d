"""A Unix socket between two processes of a gateway: frames both ways, on the event loop.

What is sent in one turn of the loop leaves in one system call, and whoever wakes takes all that is there. A reader that
is slow blocks nobody: what it does not take waits here, up to a bound, beyond which it is taken for dead.
"""

from __future__ import annotations

import asyncio
import os
import socket
import struct
from collections.abc import Callable, Mapping
from typing import Any, Final, Generic, TypeVar, cast

from tensorgate.gateway.contract.tensor import NOTHING
from tensorgate.gateway.crossing.arena import Arena, PeerArena
from tensorgate.gateway.crossing.frames import CrossingBroken, FrameReader, add_frame
from tensorgate.gateway.crossing.messages import VERSION, Hello, Release
from tensorgate.gateway.crossing.tensors import TensorReader, TensorWriter

MAX_WAITING_BYTES: Final = 256 << 20
"""What may wait for the other side to read it. It reads all the time, unless it hangs."""
TRIM_EVERY_S: Final = 5.0
"""An arena from which nothing was taken for so long keeps no free pages."""
HANDSHAKE_S: Final = 10.0
_SCRATCH_BYTES: Final = 256 << 10
_HELLO: Final = struct.Struct("<I")

M = TypeVar("M")


class OtherVersion(CrossingBroken):
    """The other side is of another version of the crossing. `is_newer` says whether it is this side that is old."""

    def __init__(self, text: str, *, is_newer: bool) -> None:
        super().__init__(text)
        self.is_newer = is_newer


class Channel(asyncio.BufferedProtocol, Generic[M]):
    """One end. `on_message` gets each message in order, `on_lost` is called once when the other side is gone.

    All methods are for the event loop.
    """

    def __init__(
        self,
        hello: Hello,
        arena: Arena,
        peer_arena: PeerArena,
        message: Any,
        on_message: Callable[[M], None],
        on_lost: Callable[[str], None],
    ) -> None:
        self.peer = hello
        """What the other side has said of itself."""
        self.writer = TensorWriter(arena)
        self.reader = TensorReader(peer_arena)
        self._arena, self._peer_arena = arena, peer_arena
        self._frames: FrameReader[M] = FrameReader(message)
        self._on_message, self._on_lost = on_message, on_lost
        self._scratch = bytearray(_SCRATCH_BYTES)
        self._into = memoryview(self._scratch)
        self._out = bytearray()
        self._is_flushing = False
        self._is_over = False
        self._transport: asyncio.Transport | None = None
        self._loop = asyncio.get_running_loop()
        self._trims_at = self._loop.time() + TRIM_EVERY_S
        self._why = "the other process is gone"

    def send(self, message: Any) -> None:
        """Send with this turn of the loop. Raises OverflowError for a message that is too long, TypeError or ValueError
        for what none may have. Without effect once the other side is gone.
        """
        if self._is_over:
            return
        add_frame(message, self._out)
        if not self._is_flushing:
            self._is_flushing = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._is_flushing = False
        if self._peer_arena.has_released:
            add_frame(Release(self._peer_arena.take_released()), self._out)
        out, transport = self._out, self._transport
        if transport is None or not out:
            return
        self._out = bytearray()
        transport.write(out)
        if transport.get_write_buffer_size() > MAX_WAITING_BYTES:
            self.break_off("the other process does not read")

    def give_back(self) -> None:
        """Tell the other side which blocks are free, if any have become so, where nothing is sent. After a while of no
        use, this side's own memory goes back to the system. To be called some times a second.
        """
        now = self._loop.time()
        if now >= self._trims_at:
            self._trims_at = now + TRIM_EVERY_S
            self._arena.trim()
        if self._peer_arena.has_released and not self._is_flushing:
            self._flush()

    def close(self) -> None:
        """End the connection."""
        if self._transport is not None:
            self._transport.abort()

    # ------------------------------------------------------------------------------------------------------- a protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is no subclass
        self._flush()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._into

    def buffer_updated(self, nbytes: int) -> None:
        is_flushing, self._is_flushing = self._is_flushing, True  # what is sent from here on leaves at the end
        try:
            message: Any
            for message in self._frames.receive(self._into[:nbytes]):
                if type(message) is Release:
                    self.writer.release(message.tickets)
                else:
                    self._on_message(message)
        except CrossingBroken as error:
            self.break_off(f"the other process broke the protocol: {error}")
        finally:
            self._is_flushing = is_flushing
            if self._out and not is_flushing:
                self._flush()

    def eof_received(self) -> None:
        """The other side ends, and so does this one."""

    def connection_lost(self, exc: Exception | None) -> None:
        self._is_over = True
        self._transport = None
        self._arena.close()
        self.writer.forget()
        lost, self._on_message, self._on_lost = self._on_lost, _ignore, _ignore  # with which whoever had them is free
        lost(self._why)

    def break_off(self, why: str) -> None:
        """End the connection, since the other side does what it must not."""
        self._why = why
        self.close()


def _ignore(message: object) -> None:
    """What comes after the end."""


def greet(sock: socket.socket, arena: Arena, hello: Hello, *, first: bool) -> tuple[Hello, PeerArena]:
    """Exchange the first messages and the arenas on a blocking socket: in a thread, it may take HANDSHAKE_S.

    Raises OSError, OtherVersion, and CrossingBroken where the other side is nobody of ours.
    """
    sock.settimeout(HANDSHAKE_S)
    if first:
        _say(sock, arena, hello)
    said, fd = _hear(sock)
    peer_arena = PeerArena(fd)
    if not first:
        _say(sock, arena, hello)
    if said.version != hello.version:
        raise OtherVersion(
            f"process {said.pid} of program {said.program} speaks version {said.version} of the crossing, this one "
            f"version {hello.version}: restart them all",
            is_newer=said.version > hello.version,
        )
    sock.setblocking(False)
    return said, peer_arena


def _say(sock: socket.socket, arena: Arena, hello: Hello) -> None:
    frame = bytearray()
    add_frame(hello, frame)
    socket.send_fds(sock, [frame], [arena.fd])


def _hear(sock: socket.socket) -> tuple[Hello, int]:
    data, fds, flags, _ = socket.recv_fds(sock, _HELLO.size, 1)
    try:
        if len(data) != _HELLO.size or not fds or flags & socket.MSG_CTRUNC:
            raise CrossingBroken("no greeting")
        (size,) = _HELLO.unpack(data)
        if size > 1024:
            raise CrossingBroken(f"a greeting of {size} bytes")
        body = bytearray()
        while len(body) < size:
            part = sock.recv(size - len(body))
            if not part:
                raise CrossingBroken("no greeting")
            body += part
        (hello,) = FrameReader[Hello](Hello).receive(memoryview(data + body))
    except BaseException:
        for fd in fds:
            os.close(fd)
        raise
    return hello, fds[0]


def hello_of(program: str, slot: int = 0, restarts: Mapping[str, int] = NOTHING) -> Hello:
    """What this process says of itself."""
    return Hello(VERSION, program, os.getpid(), slot, dict(restarts))

"""An HTTP/2 client for tests: it sends any frames, right ones and wrong ones, and keeps what comes back.

Header blocks are made and read by the package hpack: with a table that changes, and Huffman's code. It is the oracle
for the gateway's own. Source: RFC 9113, gRPC over HTTP/2.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from urllib.parse import unquote

import hpack

from tensorgate.gateway.wire.http2_frames import (
    ACK,
    CANCEL,
    CONTINUATION,
    DATA,
    DEFAULT_WINDOW,
    END_HEADERS,
    END_STREAM,
    FRAME_HEADER_BYTES,
    GOAWAY,
    HEADERS,
    MAX_INT31,
    MIN_FRAME_BYTES,
    PING,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
)
from tensorgate.gateway.wire.http2_frames import frame_header as head_of

PRIORITY_FRAME = 2
TABLE, PUSH, STREAMS, WINDOW, FRAME, HEADER_LIST = 1, 2, 3, 4, 5, 6
"""Settings."""
MAGIC = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
WITHIN_S = 30.0
"""So long a test waits for what must come; a machine may be busy."""

Pairs = Sequence[tuple[str, str]]


def frame(kind: int, flags: int = 0, stream: int = 0, payload: bytes = b"") -> bytes:
    return head_of(len(payload), kind, flags, stream) + payload


def settings(*pairs: tuple[int, int]) -> bytes:
    return frame(SETTINGS, payload=b"".join(n.to_bytes(2, "big") + value.to_bytes(4, "big") for n, value in pairs))


def window(stream: int, more: int) -> bytes:
    return frame(WINDOW_UPDATE, 0, stream, more.to_bytes(4, "big"))


def reset(stream: int, reason: int = CANCEL) -> bytes:
    return frame(RST_STREAM, 0, stream, reason.to_bytes(4, "big"))


def data(stream: int, payload: bytes = b"", *, end: bool = False) -> bytes:
    return frame(DATA, END_STREAM if end else 0, stream, payload)


def message(body: bytes, compressed: int = 0) -> bytes:
    """With gRPC's prefix."""
    return bytes([compressed]) + len(body).to_bytes(4, "big") + body


def messages(stream: bytes) -> list[bytes]:
    """The messages of a stream, whole and not compressed all of them."""
    found = []
    while stream:
        size = int.from_bytes(stream[1:5], "big")
        assert stream[0] == 0, "a compressed message"
        assert len(stream) >= 5 + size, "half a message"
        found.append(stream[5 : 5 + size])
        stream = stream[5 + size :]
    return found


def request(path: str, *more: tuple[str, str], without: Iterable[str] = (), **other: str) -> list[tuple[str, str]]:
    """The headers of a gRPC call: with `more`, some left out, and some others by their names without the colon."""
    usual = {":method": "POST", ":scheme": "http", ":path": path, ":authority": "test"}
    usual |= {"te": "trailers", "content-type": "application/grpc"}
    usual |= {f":{name}" if f":{name}" in usual else name.replace("_", "-"): value for name, value in other.items()}
    return [*((name, value) for name, value in usual.items() if name not in without), *more]


def literal(headers: Iterable[tuple[str | bytes, str | bytes]]) -> bytes:
    """A header block that says each as it stands, whatever it is, and leaves no trace."""
    block = b""
    for pair in headers:
        block += b"\0"
        for text in pair:
            raw = text.encode("latin-1") if isinstance(text, str) else text
            block += number(len(raw), 7) + raw
    return block


def number(value: int, bits: int, first: int = 0) -> bytes:
    """HPACK's form of a number, with a prefix of so many bits."""
    most = (1 << bits) - 1
    if value < most:
        return bytes([first | value])
    value -= most
    tail = b""
    while value >= 128:
        tail += bytes([value % 128 + 128])
        value //= 128
    return bytes([first | most]) + tail + bytes([value])


def in_frames(stream: int, block: bytes, flags: int = 0, size: int = MIN_FRAME_BYTES) -> bytes:
    """HEADERS, and CONTINUATION for what does not fit into `size` bytes."""
    parts = [block[at : at + size] for at in range(0, len(block), size)] or [b""]
    kinds = [HEADERS] + [CONTINUATION] * (len(parts) - 1)
    ends = [0] * (len(parts) - 1) + [END_HEADERS]
    return b"".join(
        frame(kind, end | (flags if kind == HEADERS else 0), stream, part)
        for kind, end, part in zip(kinds, ends, parts, strict=True)
    )


@dataclass
class Stream:
    """What came on one stream."""

    blocks: list[Pairs] = field(default_factory=list)
    data: bytearray = field(default_factory=bytearray)
    ended: bool = False
    resets: list[int] = field(default_factory=list)

    @property
    def reset(self) -> int | None:
        """The first: a client hears no other."""
        return self.resets[0] if self.resets else None

    @property
    def over(self) -> bool:
        return self.ended or self.reset is not None

    def header(self, name: str) -> str | None:
        """Of the last block that has it."""
        return next((value for block in reversed(self.blocks) for key, value in block if key == name), None)

    @property
    def status(self) -> int | None:
        told = self.header("grpc-status")
        return None if told is None else int(told)

    @property
    def text(self) -> str:
        return unquote(self.header("grpc-message") or "")

    @property
    def messages(self) -> list[bytes]:
        return messages(bytes(self.data))

    @property
    def body(self) -> bytes:
        """Of a call that has succeeded with one message."""
        assert (self.status, self.reset) == (0, None), self
        (body,) = self.messages
        return body


class Wire:
    """One connection. Frames are read when somebody waits for them, and SETTINGS are acknowledged then."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.encoder = hpack.Encoder()
        self.decoder = hpack.Decoder()
        self.streams: dict[int, Stream] = defaultdict(Stream)
        self.frames: list[tuple[int, int, int, int]] = []
        """Kind, flags, stream and size of all that came."""
        self.settings: dict[int, int] = {}
        self.goaway: tuple[int, int] | None = None
        """The last stream that the server has taken, and its reason."""
        self.pongs: list[bytes] = []
        self.acks = 0
        self.closed = False
        self.acknowledges = True
        self.hung_up = False
        self._block = b""
        self._window = DEFAULT_WINDOW
        self._windows: dict[int, int] = {}
        self._next = 1

    async def __aenter__(self) -> Wire:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.writer.transport.abort()

    # ------------------------------------------------------------------------------------------------------- to send

    def send(self, *parts: bytes) -> None:
        if not self.writer.is_closing() and not self.hung_up:
            self.writer.write(b"".join(parts))

    def hang_up(self) -> None:
        """Say no more, and go on hearing."""
        self.hung_up = True
        with contextlib.suppress(OSError):  # the server may have been first
            self.writer.write_eof()

    def take(self) -> int:
        """The next number of a stream."""
        self._next += 2
        return self._next - 2

    def block(self, headers: Pairs) -> bytes:
        """Refers to what this connection's table has, and adds to it."""
        return self.encoder.encode(headers)

    def ask(self, path: str, body: bytes, *more: tuple[str, str]) -> int:
        """A unary call in one piece -> its stream."""
        stream = self.take()
        self.send(in_frames(stream, self.block(request(path, *more))), data(stream, message(body), end=True))
        return stream

    def open_stream(self, path: str, *more: tuple[str, str]) -> int:
        stream = self.take()
        self.send(in_frames(stream, self.block(request(path, *more))))
        return stream

    async def send_data(self, stream: int, payload: bytes, size: int = MIN_FRAME_BYTES, *, end: bool = True) -> None:
        """In frames, as far and as soon as the server's windows let it."""
        view = memoryview(payload)
        while view:
            room = min(size, self._window, self._windows.get(stream, self.settings.get(WINDOW, DEFAULT_WINDOW)))
            if room <= 0:
                await self.step()
                assert not self.closed
                continue
            part = view[:room]
            view = view[room:]
            self._window -= len(part)
            self._windows[stream] = self._windows.get(stream, self.settings.get(WINDOW, DEFAULT_WINDOW)) - len(part)
            self.send(data(stream, bytes(part), end=end and not view))
            await self.writer.drain()

    # ------------------------------------------------------------------------------------------------------- to read

    async def step(self) -> None:
        """Read one frame, or learn that there will be none."""
        try:
            head = await self.reader.readexactly(FRAME_HEADER_BYTES)
            size, kind, flags, stream = (
                int.from_bytes(head[:3], "big"),
                head[3],
                head[4],
                int.from_bytes(head[5:], "big"),
            )
            payload = await self.reader.readexactly(size)
        except (asyncio.IncompleteReadError, ConnectionError):
            self.closed = True
            return
        self.frames.append((kind, flags, stream, size))
        self._take(kind, flags, stream, payload)

    def _take(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        if kind == DATA:
            self.streams[stream].data += payload
            self.streams[stream].ended = bool(flags & END_STREAM)
        elif kind in (HEADERS, CONTINUATION):
            self._block += payload
            if kind == HEADERS:
                self.streams[stream].ended = bool(flags & END_STREAM)
            if flags & END_HEADERS:
                self.streams[stream].blocks.append(self.decoder.decode(self._block))
                self._block = b""
        elif kind == RST_STREAM:
            self.streams[stream].resets.append(int.from_bytes(payload, "big"))
        elif kind == GOAWAY:
            self.goaway = int.from_bytes(payload[:4], "big"), int.from_bytes(payload[4:8], "big")
        else:
            self._take_control(kind, flags, stream, payload)

    def _take_control(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        if kind == PING:
            if flags & ACK:
                self.pongs.append(payload)
            else:
                self.send(frame(PING, ACK, 0, payload))
        elif kind == WINDOW_UPDATE:
            more = int.from_bytes(payload, "big")
            if stream:
                self._windows[stream] = self._windows.get(stream, self.settings.get(WINDOW, DEFAULT_WINDOW)) + more
            else:
                self._window += more
        elif kind == SETTINGS and flags & ACK:
            self.acks += 1
        elif kind == SETTINGS:
            self._settle(payload)

    def _settle(self, payload: bytes) -> None:
        before = self.settings.get(WINDOW, DEFAULT_WINDOW)
        for at in range(0, len(payload), 6):
            self.settings[int.from_bytes(payload[at : at + 2], "big")] = int.from_bytes(payload[at + 2 : at + 6], "big")
        more = self.settings.get(WINDOW, DEFAULT_WINDOW) - before
        self._windows = {stream: room + more for stream, room in self._windows.items()}
        if self.acknowledges:
            self.send(frame(SETTINGS, ACK))

    async def until(self, happened: Callable[[], object]) -> None:
        """Read until it has happened, or the connection is at its end."""
        try:
            async with asyncio.timeout(WITHIN_S):
                while not happened() and not self.closed:
                    await self.step()
        except TimeoutError:
            raise AssertionError(f"it did not happen; there came {self.frames[-20:]}, {self.goaway}") from None

    async def answer(self, stream: int) -> Stream:
        """What came on a stream, once that is over."""
        found = self.streams[stream]
        await self.until(lambda: found.over)
        assert found.over, f"the connection is closed: {found}, {self.goaway}"
        return found

    async def call(self, path: str, body: bytes, *more: tuple[str, str]) -> Stream:
        return await self.answer(self.ask(path, body, *more))

    async def say(self, headers: Pairs, *parts: bytes) -> Stream:
        """A call with any headers and any DATA; without parts it ends with its headers."""
        stream = self.take()
        self.send(in_frames(stream, self.block(headers), 0 if parts else END_STREAM))
        for n, part in enumerate(parts, 1):
            self.send(data(stream, part, end=n == len(parts)))
        return await self.answer(stream)

    async def echo(self, mark: bytes = b"12345678") -> None:
        """Until the server has read all that was sent; it may end the connection instead."""
        wanted = self.pongs.count(mark) + 1
        self.send(frame(PING, 0, 0, mark))
        await self.until(lambda: self.pongs.count(mark) == wanted)

    async def end(self) -> None:
        """Until the server closes the connection."""
        await self.until(lambda: self.closed)
        assert self.closed

    async def settled(self) -> Wire:
        """Once both sides know each other's settings."""
        await self.until(lambda: self.settings and self.acks)
        assert not self.closed
        return self


async def plug(port: int, buffer_bytes: int = 0) -> Wire:
    """A connection on which nothing has been said yet. With `buffer_bytes` the kernel takes little of what is not
    read.
    """
    sock = socket.socket()
    if buffer_bytes:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer_bytes)
    sock.setblocking(False)
    try:
        await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", port))
        return Wire(*await asyncio.open_connection(sock=sock, limit=max(1 << 16, buffer_bytes)))
    except OSError:
        sock.close()
        raise


async def connect(
    port: int, *pairs: tuple[int, int], room: int = MAX_INT31 - DEFAULT_WINDOW, buffer_bytes: int = 0
) -> Wire:
    """A connection that has begun: with these settings, or else all the windows there can be; `room` is what the
    connection's has more than at first.
    """
    wire = await plug(port, buffer_bytes)
    wire.send(MAGIC, settings(*(pairs or [(WINDOW, MAX_INT31)])))
    if room:
        wire.send(window(0, room))
    return wire

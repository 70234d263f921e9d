"""Bytes over sockets: clients that keep every byte of an answer, and know nothing of the gateway's own code.

HTTP/1.1 over connections that stay open, in every way a request may be cut into pieces; gRPC over HTTP/2 with header
blocks of our own making, so that two callers may share a connection's table in every way that RFC 7541 allows. Answers
to header blocks are read by the package hpack.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import grpc
import hpack
from h2_wire import MAGIC, data, frame, in_frames, message, messages, number, reset, settings, window

from tensorgate.gateway.wire.http2_frames import (
    ACK,
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    HEADERS,
    PING,
    RST_STREAM,
    SETTINGS,
)

HOST: Final = "127.0.0.1"
WITHIN_S: Final = 30.0
"""An answer that takes longer is none; a busy machine takes a second."""
IDLE_S: Final = 30.0
TABLE_BYTES: Final = 4096
WINDOW: Final = 1 << 30

Pairs = Sequence[tuple[str, str]]


class NoAnswer(Exception):
    """The connection has ended, or nothing came."""


@dataclass(frozen=True, slots=True)
class Message:
    """A request on the wire. `body`: one part over HTTP, over gRPC a message each. `quirk`: how it is cut, see Http and
    Grpc; `genuine`: by grpcio in place of our own frames.
    """

    transport: str
    target: str
    body: tuple[bytes, ...]
    method: str = "POST"
    headers: Pairs = ()
    quirk: str = ""
    genuine: bool = False
    timeout_s: float | None = None

    def __str__(self) -> str:
        """So that it can be played again."""
        head = f"{self.transport} {self.method} {self.target} {list(self.headers)} {self.quirk}"
        return f"{head} {'grpcio' if self.genuine else ''}\n    {self.body!r}"


@dataclass(frozen=True, slots=True)
class Reply:
    """All that came: heads are the status line and headers of HTTP, or every block of gRPC."""

    heads: tuple[Any, ...]
    parts: tuple[bytes, ...] = ()

    @property
    def status(self) -> int:
        """HTTP's, or gRPC's."""
        if isinstance(self.heads[0], str):
            return int(self.heads[0].split()[1])
        return int(next((value for block in self.heads for name, value in block if name == "grpc-status"), -1))

    @property
    def body(self) -> bytes:
        return b"".join(self.parts)

    def header(self, name: str) -> str:
        blocks = self.heads[1:2] if isinstance(self.heads[0], str) else self.heads
        return next((value for block in blocks for key, value in block if key.lower() == name), "")


# ---------------------------------------------------------------------------------------------------------------- HTTP


class Http:
    """Connections to a port, each used by one request at a time.

    Quirks: chunked, the body in chunks; pieces, head and body in small writes; expect, with 100-continue; close, on a
    connection of its own that is closed; old, HTTP/1.0; twin, with another request behind it in the same write.
    """

    def __init__(self, port: int) -> None:
        self._port = port
        self._idle: list[tuple[float, asyncio.StreamReader, asyncio.StreamWriter]] = []

    async def _connection(self, *, fresh: bool) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """One that is open, or a new one: servers close what is idle for long."""
        while self._idle and not fresh:
            since, reader, writer = self._idle.pop()
            if asyncio.get_running_loop().time() - since < IDLE_S:
                return reader, writer
            writer.close()
        return await asyncio.open_connection(HOST, self._port, limit=1 << 26)

    async def ask(self, asked: Message) -> Reply:
        reader, writer = await self._connection(fresh=asked.quirk in ("close", "old", "expect"))
        try:
            async with asyncio.timeout(WITHIN_S):
                await self._send(writer, asked)
                if asked.quirk == "twin":
                    writer.write(b"GET /v2/health/live HTTP/1.1\r\nHost: test\r\n\r\n")
                reply = await _read(reader, asked.method)
                while reply.status == 100:
                    reply = await _read(reader, asked.method)
                if asked.quirk == "twin" and not _closes(reply):
                    second = await _read(reader, "GET")
                    reply = Reply((*reply.heads, *second.heads), (*reply.parts, *second.parts[:0]))
        except (OSError, asyncio.IncompleteReadError) as error:
            writer.close()
            raise NoAnswer(repr(error)) from error
        except BaseException:
            writer.close()
            raise
        if _closes(reply) or asked.quirk in ("close", "old", "expect"):
            writer.close()
        else:
            self._idle.append((asyncio.get_running_loop().time(), reader, writer))
        return reply

    async def _send(self, writer: asyncio.StreamWriter, asked: Message) -> None:
        body = b"".join(asked.body)
        version = "1.0" if asked.quirk == "old" else "1.1"
        lines = [f"{asked.method} {asked.target} HTTP/{version}", "Host: test"]
        lines += [f"{name}: {value}" for name, value in asked.headers]
        if asked.quirk == "chunked":
            lines.append("Transfer-Encoding: chunked")
            half = len(body) // 2
            parts = [part for part in (body[:half], body[half:]) if part]
            body = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n"
        elif body or asked.method == "POST":
            lines.append(f"Content-Length: {len(body)}")
        if asked.quirk == "expect":
            lines.append("Expect: 100-continue")
        if asked.quirk == "close":
            lines.append("Connection: close")
        whole = ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1") + body
        if asked.quirk == "pieces":
            for start in range(0, len(whole), max(7, len(whole) // 3)):
                writer.write(whole[start : start + max(7, len(whole) // 3)])
                await asyncio.sleep(0)
        else:
            writer.write(whole)
        await writer.drain()

    def close(self) -> None:
        for _, _, writer in self._idle:
            writer.close()


def _closes(reply: Reply) -> bool:
    return reply.header("connection").lower() == "close"


async def _read(reader: asyncio.StreamReader, method: str) -> Reply:
    lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    pairs = tuple([(name, value.strip()) for name, _, value in (line.partition(":") for line in lines[1:-2])])
    head = Reply((lines[0], pairs))
    if method == "HEAD" or head.status in (100, 204, 304):
        return head
    if head.header("transfer-encoding") == "chunked":
        parts = []
        while size := int(await reader.readline(), 16):
            parts.append(await reader.readexactly(size))
            await reader.readexactly(2)
        await reader.readexactly(2)
        return Reply(head.heads, tuple(parts))
    length = head.header("content-length")
    body = await reader.readexactly(int(length)) if length else await reader.read()
    return Reply(head.heads, (body,))


# ------------------------------------------------------------------------------------------------------------- HTTP/2


class Table:
    """An encoder that is told how to write each header: what it remembers is what RFC 7541 says it must."""

    def __init__(self) -> None:
        self._entries: list[tuple[str, str]] = []

    def block(self, plain: Pairs, remembered: Pairs = (), empty: bool = False) -> bytes:
        """`plain` headers leave no trace, `remembered` ones are looked up, and added where they are not there."""
        made = b""
        if empty:
            self._entries.clear()
            made += number(0, 5, 0x20) + number(TABLE_BYTES, 5, 0x20)
        made += b"".join(b"\0" + _text(name) + _text(value) for name, value in plain)
        for pair in remembered:
            if pair in self._entries:
                made += number(62 + self._entries.index(pair), 7, 0x80)
            else:
                made += b"\x40" + _text(pair[0]) + _text(pair[1])
                self._entries.insert(0, pair)
                self._shrink()
        return made

    def add(self, pair: tuple[str, str]) -> bytes:
        """A header that becomes the newest entry, whether it is there already or not."""
        self._entries.insert(0, pair)
        self._shrink()
        return b"\x40" + _text(pair[0]) + _text(pair[1])

    def _shrink(self) -> None:
        while sum(len(name) + len(value) + 32 for name, value in self._entries) > TABLE_BYTES:
            self._entries.pop()


def _text(text: str) -> bytes:
    raw = text.encode("latin-1")
    return number(len(raw), 7) + raw


@dataclass
class _Call:
    blocks: list[Any] = field(default_factory=list)
    data: bytearray = field(default_factory=bytearray)
    over: asyncio.Event = field(default_factory=asyncio.Event)
    resets: list[int] = field(default_factory=list)


class Grpc:
    """One connection that all calls share, and the genuine client beside it.

    Quirks: trailers, the request ends with a block of headers that adds somebody's credentials to the table; noise, the
    same with any header; empty, the table is emptied first; cancelled, a call of somebody else's is begun and taken
    back before; pieces, headers and message in many frames. Credentials are always looked up in the table.
    """

    def __init__(self, port: int, credentials: Sequence[tuple[str, str]] = ()) -> None:
        self._port = port
        self._credentials = credentials
        self._table = Table()
        self._decoder = hpack.Decoder()
        self._calls: dict[int, _Call] = {}
        self._next = 1
        self._block = b""
        self._writer: asyncio.StreamWriter | None = None
        self._reading: asyncio.Task[None] | None = None
        self._channel: Any = None
        self.source = random.Random(0)

    async def open(self) -> None:
        reader, self._writer = await asyncio.open_connection(HOST, self._port)
        self._writer.write(MAGIC + settings((4, WINDOW), (5, (1 << 24) - 1)) + window(0, WINDOW))
        self._reading = asyncio.create_task(self._read(reader))

    async def ask(self, asked: Message) -> Reply:
        if asked.genuine:
            return await self._ask_genuine(asked)
        if self._writer is None:
            await self.open()
        call = self._send(asked)
        try:
            async with asyncio.timeout(WITHIN_S):
                await call.over.wait()
        except TimeoutError:
            raise NoAnswer(f"nothing came: {call}") from None
        blocks = tuple(tuple((name, value) for name, value in block) for block in call.blocks)
        if not blocks:
            raise NoAnswer(f"reset: {call.resets}")
        return Reply(blocks, tuple(messages(bytes(call.data))))

    def _send(self, asked: Message) -> _Call:
        assert self._writer is not None
        if asked.quirk == "cancelled":
            self._cancel_one(asked)
        stream, call = self._open()
        plain: list[tuple[str, str]] = [
            (":method", "POST"), (":scheme", "http"), (":path", asked.target), (":authority", "test"),
            ("te", "trailers"), ("content-type", "application/grpc"),
        ]  # fmt: skip
        plain += [pair for pair in asked.headers if pair not in self._credentials]
        if asked.timeout_s is not None:
            plain.append(("grpc-timeout", f"{round(asked.timeout_s)}S"))
        known = [pair for pair in asked.headers if pair in self._credentials]
        block = self._table.block(plain, known, asked.quirk == "empty")
        whole = b"".join(map(message, asked.body))
        ends = asked.quirk not in ("trailers", "noise")
        if asked.quirk == "pieces":
            sent = in_frames(stream, block, size=20) + data(stream, whole[:3])
            sent += data(stream, whole[3:9]) + data(stream, whole[9:], end=True)
        else:
            sent = in_frames(stream, block) + data(stream, whole, end=ends) if len(whole) < 16000 else b""
            if not sent:
                cuts = [whole[at : at + 16000] for at in range(0, len(whole), 16000)]
                sent = in_frames(stream, block)
                sent += b"".join(data(stream, cut, end=ends and cut is cuts[-1]) for cut in cuts)
        if not ends:
            pair = ("x-noise", str(self.source.random()))
            if asked.quirk == "trailers" and self._credentials:
                pair = self.source.choice(self._credentials)
            sent += in_frames(stream, self._table.add(pair), END_STREAM)
        self._writer.write(sent)
        return call

    def _cancel_one(self, asked: Message) -> None:
        assert self._writer is not None
        stream, call = self._open()
        del self._calls[stream]
        somebody = self._credentials[:1] or [("x-noise", "1")]
        plain = [(":method", "POST"), (":scheme", "http"), (":path", asked.target), (":authority", "test")]
        self._writer.write(in_frames(stream, self._table.block(plain, somebody)) + reset(stream))
        call.over.set()

    def _open(self) -> tuple[int, _Call]:
        stream = self._next
        self._next += 2
        call = self._calls[stream] = _Call()
        return stream, call

    async def _read(self, reader: asyncio.StreamReader) -> None:
        try:
            while True:
                head = await reader.readexactly(9)
                payload = await reader.readexactly(int.from_bytes(head[:3], "big"))
                self._take(head[3], head[4], int.from_bytes(head[5:], "big"), payload)
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            for call in self._calls.values():
                call.over.set()
            self._writer = None

    def _take(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        call = self._calls.get(stream) or _Call()
        if kind == DATA:
            call.data += payload
            if payload:
                self._write(window(0, len(payload)))
        elif kind in (HEADERS, CONTINUATION):
            self._block += payload
            if flags & END_HEADERS:
                call.blocks.append(self._decoder.decode(self._block))
                self._block = b""
        elif kind == RST_STREAM:
            call.resets.append(int.from_bytes(payload, "big"))
            call.over.set()
        elif kind in (SETTINGS, PING) and not flags & ACK:
            self._write(frame(kind, ACK, 0, payload if kind == PING else b""))
        if kind in (DATA, HEADERS) and flags & END_STREAM:
            call.over.set()
            self._calls.pop(stream, None)

    def _write(self, sent: bytes) -> None:
        if self._writer is not None:
            self._writer.write(sent)

    async def _ask_genuine(self, asked: Message) -> Reply:
        if self._channel is None:
            options = [("grpc.max_receive_message_length", -1), ("grpc.use_local_subchannel_pool", 1)]
            self._channel = grpc.aio.insecure_channel(f"{HOST}:{self._port}", options)
        call = self._channel.stream_stream(asked.target)(
            iter(asked.body), metadata=tuple(asked.headers), timeout=asked.timeout_s or WITHIN_S
        )
        parts: list[bytes] = []
        with contextlib.suppress(grpc.RpcError):
            while (part := await call.read()) is not grpc.aio.EOF:
                parts.append(part)
        code, details = await call.code(), await call.details()
        first = [(name, value) for name, value in await call.initial_metadata()]
        last = [("grpc-status", str(code.value[0])), ("grpc-message", details or "")]
        last += [(name, value) for name, value in await call.trailing_metadata() or ()]
        return Reply((tuple(first), tuple(last)), tuple(parts))

    async def close(self) -> None:
        if self._reading is not None:
            self._reading.cancel()
        if self._writer is not None:
            self._writer.close()
        if self._channel is not None:
            await self._channel.close()

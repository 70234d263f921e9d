"""Calls with any number of answers over our own HTTP/2: against grpc's server, and against one that is written here."""

import asyncio
import contextlib
import gc
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
import uvloop
from upstream_frames import MAX_BYTES, OK, OPENING, SETTINGS, ask, data, frame, header, message, served, setting, text
from waiting import settles, steps, until

from tensorgate.backends.remote.connection import TOO_LARGE, ConnectionLost, NotReached
from tensorgate.backends.remote.grpc_connection import GrpcConnection
from tensorgate.backends.remote.upstream_call import UpstreamCall
from tensorgate.gateway.contract.errors import Code
from tensorgate.gateway.wire import http2
from tensorgate.gateway.wire.http2_frames import STREAM_BYTES

# ---------------------------------------------------------------------------------------------------- grpc's own server


class Talker:
    """What its streams did: `written` are messages of those without an end, `idle` says that no such stream is left."""

    def __init__(self) -> None:
        self.written = 0
        self.running = 0
        self.idle = asyncio.Event()

    async def talk(self, body: bytes, context: Any) -> None:
        size, _, count = body.partition(b" ")
        for number in range(int(count)):
            await context.write(text(int(size) + number % 3))
        if size == b"7":
            await context.abort(grpc.StatusCode.UNAVAILABLE, "not now")

    async def flood(self, body: bytes, context: Any) -> None:
        self.running += 1
        self.idle.clear()
        try:
            while True:
                await context.write(self.written.to_bytes(4, "big") + bytes(int(body)))
                self.written += 1
        finally:
            self.running -= 1
            if not self.running:
                self.idle.set()

    async def repeat(self, bodies: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
        """A call of many messages each way."""
        async for body in bodies:
            for _ in range(3):
                yield body

    async def echo(self, body: bytes, context: Any) -> bytes:
        return body


@contextlib.asynccontextmanager
async def talking() -> AsyncIterator[tuple[Talker, GrpcConnection]]:
    talker = Talker()
    server = grpc.aio.server(options=[("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)])
    handlers = {
        "Talk": grpc.unary_stream_rpc_method_handler(talker.talk),
        "Flood": grpc.unary_stream_rpc_method_handler(talker.flood),
        "Repeat": grpc.stream_stream_rpc_method_handler(talker.repeat),
        "Echo": grpc.unary_unary_rpc_method_handler(talker.echo),
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("test.Test", handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    connection = GrpcConnection(f"127.0.0.1:{port}", MAX_BYTES)
    yield talker, connection
    await connection.close()
    await server.stop(0)


@pytest.fixture
async def upstream() -> AsyncIterator[tuple[Talker, GrpcConnection]]:
    async with talking() as both:
        yield both


Both = tuple[Talker, GrpcConnection]


async def _sizes(connection: GrpcConnection, size: int, count: int) -> tuple[list[int], Code]:
    """Of the answers; and how it ended."""
    sizes, code = [], Code.OK
    async with contextlib.aclosing(connection.stream(ask("Talk", f"{size} {count}".encode()), 20)) as replies:
        async for reply in replies:
            body = bytes(reply.body)  # type: ignore[arg-type]
            if reply.grpc_code is Code.OK:
                assert body == text(len(body))
                sizes.append(len(body))
            code = reply.grpc_code
    return sizes, code


TALKS = [(0, 0), (0, 1), (0, 3000), (1, 5000), (65_530, 30), (200_000, 30), (STREAM_BYTES - 6, 5), (3 << 20, 4)]


@pytest.mark.parametrize(("size", "count"), TALKS)
async def test_messages_of_every_size_come_in_order(size: int, count: int, upstream: Both) -> None:
    assert await _sizes(upstream[1], size, count) == ([size + number % 3 for number in range(count)], Code.OK)


def test_so_they_do_on_uvloop() -> None:
    async def main() -> None:
        async with talking() as (_, connection):
            for size, count in TALKS:
                expected = [size + number % 3 for number in range(count)], Code.OK
                assert await _sizes(connection, size, count) == expected
            large = text(MAX_BYTES)
            assert (await connection.call(ask("Echo", large), 5)).body == large
            async with contextlib.aclosing(connection.stream(ask("Flood", b"100000"), None)) as replies:
                assert (await anext(replies)).grpc_code is Code.OK

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())


async def test_a_call_of_many_messages_each_way_gets_one(upstream: Both) -> None:
    replies = [reply async for reply in upstream[1].stream(ask("Repeat", b"on", b"ce"), 5)]
    assert [reply.body for reply in replies] == [b"once"] * 3


async def test_what_a_server_says_at_the_end_is_told_behind_its_answers(upstream: Both) -> None:
    replies = [reply async for reply in upstream[1].stream(ask("Talk", b"7 2"), 5)]
    assert [(reply.grpc_code, reply.message) for reply in replies] == [
        (Code.OK, ""),
        (Code.OK, ""),
        (Code.UNAVAILABLE, "not now"),
    ]
    (reply,) = [reply async for reply in upstream[1].stream(ask("Nothing"), 5)]
    assert reply.grpc_code is Code.UNIMPLEMENTED


async def test_a_large_message_ends_the_stream(upstream: Both) -> None:
    assert await _sizes(upstream[1], MAX_BYTES - 1, 5) == ([MAX_BYTES - 1, MAX_BYTES], Code.RESOURCE_EXHAUSTED)


@pytest.mark.parametrize(("size", "most"), [(100_000, 40), (5 << 20, 4)])
async def test_who_reads_slowly_holds_the_server_back_and_nobody_else(size: int, most: int, upstream: Both) -> None:
    talker, connection = upstream
    async with contextlib.aclosing(connection.stream(ask("Flood", str(size).encode()), None)) as replies:
        await anext(replies)
        for _ in range(20):
            assert (await connection.call(ask("Echo", b"x" * 2_000_000), 5)).body == b"x" * 2_000_000
            await steps()
        assert talker.written < most
        for number in range(1, most + 20):
            reply = await anext(replies)
            assert bytes(reply.body)[:4] == number.to_bytes(4, "big")  # type: ignore[arg-type]
    async with asyncio.timeout(50):
        await talker.idle.wait()


async def test_who_leaves_ends_the_stream_and_not_the_connection(upstream: Both) -> None:
    talker, connection = upstream
    for _ in range(20):
        replies = connection.stream(ask("Flood", b"300000"), None)
        await anext(replies)
        await replies.aclose()
        waiting = asyncio.ensure_future(_drained(connection))
        await steps()
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
    async with asyncio.timeout(50):
        await talker.idle.wait()
    assert len(connection._clients) == 1
    assert not connection._clients[0]._streams
    assert (await connection.call(ask("Echo", b"on"), None)).body == b"on"


async def _drained(connection: GrpcConnection) -> None:
    async for _ in connection.stream(ask("Flood", b"300000"), None):
        pass


async def test_a_deadline_ends_a_stream_behind_what_came_before(upstream: Both) -> None:
    talker, connection = upstream
    codes = [reply.grpc_code async for reply in connection.stream(ask("Flood", b"50000"), 0.3)]
    assert codes[-1] is Code.DEADLINE_EXCEEDED
    assert set(codes[:-1]) == {Code.OK}
    async with asyncio.timeout(50):
        await talker.idle.wait()
    (late,) = [reply async for reply in connection.stream(ask("Flood", b"1"), 0.0)]
    assert late.grpc_code is Code.DEADLINE_EXCEEDED


async def test_closing_ends_streams_also_on_connections_that_were_left(upstream: Both) -> None:
    _, connection = upstream
    old = connection.stream(ask("Flood", b"1"), None)
    await anext(old)
    connection._clients[0].on_goaway(2**31 - 1)
    new = connection.stream(ask("Flood", b"1"), None)
    await anext(new)
    assert len(connection._clients) == 2
    await connection.close()
    for replies in (old, new):
        with pytest.raises(ConnectionLost, match="closed"):
            async for _ in replies:
                pass
    with pytest.raises(NotReached):
        await connection.call(ask("Echo"), None)


async def test_who_waits_for_a_connection_is_told_that_it_was_closed() -> None:
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()

    async with served(silent) as connection:
        waiting = [asyncio.ensure_future(connection.call(ask("Echo"), None)) for _ in range(2)]
        await asyncio.sleep(0)
        await connection.close()
        for each in waiting:
            with pytest.raises(NotReached, match="closed"):
                await each
    async with served(silent) as connection:
        waiting = [asyncio.ensure_future(connection.call(ask("Echo"), None))]
        await steps()
        await connection.close()
        with pytest.raises(NotReached, match="closed"):
            await waiting[0]


# ------------------------------------------------------------------------------------------------------- frames by hand

NOT_FOUND = frame(1, 5, 1, header(b"grpc-status", b"5") + header(b"grpc-message", b"no"))
REFUSED = frame(3, 0, 1, b"\0\0\0\7")
THREE = message(b"one") + message(b"") + message(b"three")
LARGE = text(300_000)
GOODBYE = frame(7, 0, 0, bytes(8))


async def told_by(*pieces: bytes, closes: bool = False) -> tuple[list[bytes], Any]:
    """What a stream comes to when its server sends these pieces: the answers, and the last word."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(SETTINGS)
        await reader.readuntil(b"/test.Test/Echo")
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
            await steps()
        if not closes:
            await reader.read()

    answers: list[bytes] = []
    async with served(serve) as connection, asyncio.timeout(50):
        try:
            async for reply in connection.stream(ask("Echo", b"x"), None):
                if reply.grpc_code is not Code.OK:
                    return answers, (reply.grpc_code, reply.message)
                answers.append(bytes(reply.body))  # type: ignore[arg-type]
        except (ConnectionLost, NotReached) as error:
            return answers, type(error)
    return answers, Code.OK


COMPLETE = OPENING + data(THREE) + OK
WHOLE = [b"one", b"", b"three"]
ENDINGS: dict[str, tuple[list[bytes], list[bytes], Any]] = {
    "several in a frame": ([OPENING, data(THREE), OK], WHOLE, Code.OK),
    "byte by byte": ([COMPLETE[at : at + 1] for at in range(len(COMPLETE))], WHOLE, Code.OK),
    "each byte in a frame": ([OPENING, *[data(THREE[at : at + 1]) for at in range(len(THREE))], OK], WHOLE, Code.OK),
    "padded": ([OPENING, data(b"\3" + THREE + bytes(3), 8), data(b"\0", 8), OK], WHOLE, Code.OK),
    "one that ends where another begins": (
        [OPENING, data(message(LARGE)[:100_000]), data(message(LARGE)[100_000:] + message(LARGE)), OK],
        [LARGE, LARGE],
        Code.OK,
    ),
    "large ones in a frame, in pieces": (
        [OPENING, *[data(message(LARGE) * 3)[at : at + 99_991] for at in range(0, 900_024, 99_991)], OK],
        [LARGE] * 3,
        Code.OK,
    ),
    "none": ([frame(1, 5, 1, b"\x88" + OK[9:])], [], Code.OK),
    "a status behind some": ([OPENING, data(THREE), NOT_FOUND], WHOLE, (Code.NOT_FOUND, "no")),
    "a status alone": ([frame(1, 5, 1, b"\x88" + NOT_FOUND[9:])], [], (Code.NOT_FOUND, "no")),
    "half a message": ([OPENING, data(THREE[:-1]), OK], WHOLE[:2], (Code.INTERNAL, "the answer is not whole")),
    "half a prefix": ([OPENING, data(THREE + b"\0\0"), OK], WHOLE, (Code.INTERNAL, "the answer is not whole")),
    "no last word": (
        [OPENING, data(THREE, 1)],
        WHOLE,
        (Code.UNKNOWN, "the answer is none of gRPC's: HTTP status 200"),
    ),
    "one that is compressed": (
        [OPENING, data(THREE + b"\1" + THREE[1:]), OK],
        WHOLE,
        (Code.INTERNAL, "the answer is compressed, which was not offered"),
    ),
    "one that is too large": (
        [OPENING, data(THREE), data(b"\0\x7f\xff\xff\xff")],
        WHOLE,
        (Code.RESOURCE_EXHAUSTED, TOO_LARGE.format(size=2**31 - 1, max_bytes=MAX_BYTES)),
    ),
    "without headers": ([data(THREE), OK], [], (Code.INTERNAL, "the answer has no headers")),
    "a proxy's page": (
        [frame(1, 4, 1, header(b":status", b"502")), data(b"<html>", 1)],
        [],
        (Code.UNAVAILABLE, "the answer is none of gRPC's: HTTP status 502"),
    ),
    "ended by the server": (
        [OPENING, data(THREE), frame(3, 0, 1, b"\0\0\0\x08")],
        WHOLE,
        (Code.CANCELLED, "the server ended the call with error 8"),
    ),
    "refused after it began": (
        [OPENING, REFUSED],
        [],
        (Code.UNAVAILABLE, "the server ended the call with error 7"),
    ),
    "a server that stops later": (
        [OPENING, frame(7, 0, 0, b"\0\0\0\1" + bytes(4)), data(THREE), OK],
        WHOLE,
        Code.OK,
    ),
    "a server that stops at once": ([OPENING, data(THREE), GOODBYE], WHOLE, ConnectionLost),
    "a window that is too large": (
        [OPENING, data(THREE), frame(8, 0, 1, b"\x7f\xff\xff\xff")],
        WHOLE,
        (Code.INTERNAL, "no HTTP/2 of gRPC: a window that is too large"),
    ),
    "a window of all that is too large": (
        [OPENING, data(THREE), frame(8, 0, 0, b"\x7f\xff\xff\xff")],
        WHOLE,
        ConnectionLost,
    ),
    "settings that are too large": ([OPENING, data(THREE), frame(4, 0, 0, setting(4, 2**31))], WHOLE, ConnectionLost),
    "half a setting": ([OPENING, data(THREE), frame(4, 0, 0, setting(4, 1)[:5])], WHOLE, ConnectionLost),
}


@pytest.mark.parametrize("name", ENDINGS)
async def test_a_stream_is_read_however_it_comes(name: str) -> None:
    pieces, answers, end = ENDINGS[name]
    assert await told_by(*pieces) == (answers, end)


@pytest.mark.parametrize("pieces", [[OPENING], [OPENING, data(THREE)], [OPENING, data(message(LARGE))[:50_000]]])
async def test_a_stream_that_breaks_is_lost_behind_what_came_before(pieces: list[bytes]) -> None:
    answers, end = await told_by(*pieces, closes=True)
    assert end is ConnectionLost
    assert answers == (WHOLE if data(THREE) in pieces else [])


@pytest.mark.parametrize("refusal", [REFUSED, GOODBYE, GOODBYE[:-1] + b"\7"])
async def test_a_stream_that_was_not_begun_is_asked_for_again(refusal: bytes) -> None:
    """On the same connection, or on a new one."""
    refused: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(SETTINGS)
        await reader.readuntil(b"/test.Test/Echo")
        if not refused:
            refused.append(refusal)
            writer.write(refusal)
            if refusal is not REFUSED:
                return
            await reader.readuntil(b"/test.Test/Echo")
            writer.write(b"".join(frame(kind, flags, 3, body) for kind, flags, body in ANSWERED))
        else:
            writer.write(COMPLETE)
        await reader.read()

    async with served(serve) as connection, asyncio.timeout(50):
        assert [reply.body async for reply in connection.stream(ask("Echo"), None)] == WHOLE


ANSWERED = [(1, 4, OPENING[9:]), (0, 0, THREE), (1, 5, OK[9:])]


async def test_a_server_that_refuses_every_stream_is_not_reached() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(SETTINGS)
        for number in (1, 3, 5):
            await reader.readuntil(b"/test.Test/Echo")
            writer.write(frame(3, 0, number, b"\0\0\0\7"))
        await reader.read()

    async with served(serve) as connection, asyncio.timeout(50):
        with pytest.raises(NotReached):
            await anext(connection.stream(ask("Echo"), None))


# -------------------------------------------------------------------------------------------------------------- windows


class Peer:
    """A server's end of a connection: `windows` are what it may send, by stream, `bodies` what has come."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.windows: Counter[int] = Counter({0: 65535})
        self.first = 65535
        self.bodies: Counter[int] = Counter()
        self.frames: list[tuple[int, int, int]] = []

    async def start(self, settings: bytes = b"") -> None:
        await self.reader.readexactly(24)
        self.writer.write(frame(4, 0, 0, settings))

    async def take(self) -> tuple[int, int, int]:
        """The next frame: its kind, flags and stream."""
        head = await self.reader.readexactly(9)
        body = await self.reader.readexactly(int.from_bytes(head[:3], "big"))
        kind, flags, stream = head[3], head[4], int.from_bytes(head[5:], "big")
        if kind == 0:
            self.bodies[stream] += len(body)
        elif kind == 1:
            self.windows[stream] = self.first
        elif kind == 4 and not flags & 1:
            said = {int.from_bytes(body[at : at + 2], "big"): body[at + 2 : at + 6] for at in range(0, len(body), 6)}
            self.first = int.from_bytes(said[4], "big")
        elif kind == 8:
            self.windows[stream] += int.from_bytes(body, "big")
        self.frames.append((kind, flags, stream))
        return kind, flags, stream

    async def until(self, kind: int, stream: int, flags: int = 0) -> None:
        """Take frames, the last one being of this kind."""
        while True:
            found = await self.take()
            if found[0] == kind and found[2] == stream and found[1] & flags == flags:
                return

    async def rest(self) -> None:
        """All that there is."""
        while True:
            taking = asyncio.ensure_future(self.take())
            for _ in range(5):
                await steps()
                if taking.done():
                    break
            else:
                taking.cancel()
                await asyncio.wait([taking])
                return
            await taking

    def write(self, kind: int, flags: int, stream: int, body: bytes = b"") -> None:
        self.writer.write(frame(kind, flags, stream, body))

    async def send(self, stream: int, body: bytes) -> None:
        """As DATA, as the windows allow."""
        at = 0
        while at < len(body):
            part = body[at : at + min(self.windows[stream], 50_000)]
            if part:
                self.write(0, 0, stream, part)
                self.windows[stream] -= len(part)
                at += len(part)
            else:
                await self.take()


@pytest.mark.parametrize("sizes", [[5] * 150_000, [10_000] * 400, [3 << 20, 5, 2 << 20, 1 << 20, 0, *[2 << 20] * 20]])
async def test_what_waits_is_one_window_and_a_message(sizes: list[int]) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer = Peer(reader, writer)
        await peer.start()
        await peer.until(0, 1)
        writer.write(OPENING)
        await peer.send(1, b"".join(message(text(size)) for size in sizes))
        writer.write(OK)
        await reader.read()

    async with served(serve) as connection, asyncio.timeout(30):
        replies = connection.stream(ask("Flood", b""), None)
        found = [await anext(replies)]
        (exchange,) = connection._clients[0]._streams.values()
        for _ in range(20):
            await steps()
            assert exchange.held + exchange.receive_window <= STREAM_BYTES + max(sizes) + 5
            found.append(await anext(replies))
        found += [reply async for reply in replies]
    assert [len(reply.body) for reply in found] == sizes  # type: ignore[arg-type]


async def test_a_server_that_sends_more_than_it_may_ends_the_stream() -> None:
    sent = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer = Peer(reader, writer)
        await peer.start()
        await peer.until(0, 1)
        for body in (OPENING, *[data(message(LARGE))] * 20):
            writer.write(body)
            await writer.drain()
        await peer.until(3, 1)
        sent.set()
        await peer.until(1, 3)
        writer.write(b"".join(frame(kind, flags, 3, body) for kind, flags, body in ANSWERED))
        await reader.read()

    async with served(serve) as connection, asyncio.timeout(50):
        replies = connection.stream(ask("Flood"), None)
        assert (await anext(replies)).body == LARGE
        await sent.wait()
        rest = [(reply.grpc_code, reply.message) async for reply in replies]
        assert rest == [(Code.OK, "")] * 2 + [(Code.INTERNAL, "no HTTP/2 of gRPC: more than the window")]
        assert [reply.body async for reply in connection.stream(ask("Echo"), None)] == WHOLE


async def test_abandoned_streams_take_nothing_of_the_connection_s_window(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http2, "_GIVEN_BACK_BYTES", 1)
    windows: list[int] = []
    counted = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer = Peer(reader, writer)
        await peer.start()
        await peer.until(0, 1)
        writer.write(OPENING)
        writer.write(data(message(b"first")))
        peer.windows[0] -= 10
        await peer.until(3, 1)  # and what is still on its way
        for body in (message(LARGE)[:200_000], b"\7" + bytes(20)):
            writer.write(data(body, 8 if body[0] else 0))
            peer.windows[0] -= len(body)
        await peer.rest()
        windows.append(peer.windows[0])
        counted.set()

    async with served(serve) as connection, asyncio.timeout(50):
        replies = connection.stream(ask("Flood"), None)
        assert (await anext(replies)).body == b"first"
        await replies.aclose()
        await counted.wait()
    assert windows == [2**31 - 1]


async def test_an_upload_that_nobody_wants_any_more_ends_and_others_go_on() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer = Peer(reader, writer)
        await peer.start(setting(4, 1000))
        await peer.until(3, 1)
        assert peer.bodies[1] == 1000
        await peer.until(0, 3)
        await peer.rest()
        assert peer.bodies[3] == 1000
        peer.write(8, 0, 1, (5000).to_bytes(4, "big"))  # too late
        peer.write(8, 0, 3, (99_005).to_bytes(4, "big"))
        await peer.rest()
        assert peer.bodies[3] == 64_535, "the connection's window"
        peer.write(8, 0, 0, (100_000).to_bytes(4, "big"))
        await peer.until(0, 3, 1)
        assert peer.bodies == {1: 1000, 3: 100_005}
        writer.write(b"".join(frame(kind, flags, 3, body) for kind, flags, body in ANSWERED))
        await reader.read()

    async with served(serve) as connection, asyncio.timeout(50):
        first = asyncio.ensure_future(connection.call(ask("Echo", text(100_000)), None))
        await until(lambda: connection._clients)
        await settles(lambda: [(*link._streams, *link._stalled) for link in connection._clients])
        first.cancel()
        await asyncio.wait([first])
        replies = [reply.body async for reply in connection.stream(ask("Echo", text(100_000)), None)]
        assert replies == WHOLE
        assert not connection._clients[0]._stalled


async def test_a_window_may_be_narrowed_below_nothing() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer = Peer(reader, writer)
        await peer.start()
        peer.write(8, 0, 0, (1 << 20).to_bytes(4, "big"))
        await peer.until(0, 1)
        await peer.rest()
        assert peer.bodies[1] == 65_535
        peer.write(4, 0, 0, setting(4, 1000))  # -64,535 are left
        peer.write(8, 0, 1, (64_535).to_bytes(4, "big"))
        await peer.rest()
        assert peer.bodies[1] == 65_535
        peer.write(8, 0, 1, (1).to_bytes(4, "big"))
        await peer.rest()
        assert peer.bodies[1] == 65_536
        peer.write(4, 0, 0, setting(4, 1 << 20))
        await peer.until(0, 1, 1)
        assert peer.bodies[1] == 100_005
        writer.write(COMPLETE)
        await reader.read()

    async with served(serve) as connection, asyncio.timeout(50):
        assert [reply.body async for reply in connection.stream(ask("Echo", text(100_000)), None)] == WHOLE


async def test_what_the_kernel_has_not_taken_is_not_sent_once_nobody_wants_it() -> None:
    begun, go = asyncio.Event(), asyncio.Event()
    taken: list[int] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer = Peer(reader, writer)
        await peer.start(setting(4, 2**31 - 1) + setting(5, 2**24 - 1))
        peer.write(8, 0, 0, (2**31 - 1 - 65535).to_bytes(4, "big"))
        await peer.until(1, 1)
        begun.set()
        await go.wait()
        await peer.until(3, 1)
        taken.append(peer.bodies[1])
        await peer.until(0, 3, 1)
        writer.write(b"".join(frame(kind, flags, 3, body) for kind, flags, body in ANSWERED))
        await reader.read()

    async with served(serve) as connection, asyncio.timeout(50):
        large = bytes(200 << 20)
        first = asyncio.ensure_future(connection.call(ask("Echo", large), None))
        await begun.wait()
        await steps()
        first.cancel()
        await asyncio.wait([first])
        go.set()
        assert [reply.body async for reply in connection.stream(ask("Echo", large[:1_000]), None)] == WHOLE
        assert 0 < taken[0] < 30 << 20


async def test_large_requests_take_turns_at_the_kernel() -> None:
    """Nobody says anything of windows here: the kernel alone holds them back."""
    size = 40 << 20

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer = Peer(reader, writer)
        await peer.start(setting(4, 2**31 - 1) + setting(5, 2**24 - 1))
        peer.write(8, 0, 0, (2**31 - 1 - 65535).to_bytes(4, "big"))
        await until(lambda: sum(len(link._streams) for link in connection._clients) == 2)
        await peer.until(0, 3, 1)
        assert peer.bodies[1] < size, "the second one did not wait for all of the first"
        if peer.frames[-1] != (0, 1, 1):
            await peer.until(0, 1, 1)
        assert peer.bodies == {1: size + 5, 3: (size >> 1) + 5}
        for number in (1, 3):
            writer.write(b"".join(frame(kind, flags, number, body) for kind, flags, body in ANSWERED))
        await reader.read()

    async with served(serve) as connection, asyncio.timeout(50):
        calls = [connection.stream(ask("Echo", bytes(count)), None) for count in (size, size >> 1)]
        firsts = await asyncio.gather(*map(anext, calls))
        assert [first.body for first in firsts] == [b"one", b"one"]


@pytest.mark.parametrize("kind", ["pings", "settings"])
async def test_a_server_that_asks_and_never_reads_is_left(kind: str) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(SETTINGS)
        await reader.readuntil(b"/test.Test/Echo")
        for _ in range(200):
            writer.write((frame(6, 0, 0, bytes(8)) if kind == "pings" else SETTINGS) * 10_000)
            await writer.drain()

    async with served(serve) as connection, asyncio.timeout(50):
        with pytest.raises(ConnectionLost):
            await connection.call(ask("Echo", bytes(100_000)), None)


async def test_nothing_is_left_of_calls_that_are_over(upstream: Both) -> None:
    """However they ended, and however long they might have taken."""
    _, connection = upstream
    for seconds in (100, 0.001, None):
        for _ in range(10):
            await connection.call(ask("Echo", b"x"), seconds)
            await _sizes(connection, 7, 2)
            replies = connection.stream(ask("Flood", b"9"), seconds)
            await anext(replies)
            await replies.aclose()
            leaving = asyncio.ensure_future(connection.call(ask("Flood", b"9"), seconds))
            await asyncio.sleep(0)
            leaving.cancel()
            await asyncio.wait([leaving])
    await until(lambda: not connection._clients[0]._streams)
    assert not connection._clients[0]._stalled
    del leaving, replies
    gc.collect()
    assert [each for each in gc.get_objects() if isinstance(each, UpstreamCall)] == []

"""gRPC calls over the lane's own HTTP/2: against grpc's server, and against one that says what a test has it say."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc
import pytest
from upstream_frames import MAX_BYTES, OK, OPENING, SETTINGS, ask, data, frame, header, message, served, setting, text
from waiting import steps

from tensorgate.backends.remote.connection import TOO_LARGE, ConnectionLost, NotReached
from tensorgate.backends.remote.grpc_connection import GrpcConnection
from tensorgate.backends.remote.options import UpstreamAccess
from tensorgate.gateway.contract.call import Reply
from tensorgate.gateway.contract.errors import Code
from tensorgate.gateway.wire import hpack

SIZES = (0, 1, 100, 16_379, 32_763, 65_530, 65_536, 200_000, 602_112, MAX_BYTES)


# ---------------------------------------------------------------------------------------------------- grpc's own server


class Upstream:
    """What it saw of calls."""

    def __init__(self) -> None:
        self.waiting = asyncio.Semaphore(0)
        self.cancelled = asyncio.Semaphore(0)
        self.metadata: dict[str, str] = {}
        self.remaining: float | None = None

    async def echo(self, body: bytes, context: Any) -> bytes:
        self.metadata = dict(context.invocation_metadata())
        self.remaining = context.time_remaining()
        return body

    async def refuse(self, body: bytes, context: Any) -> bytes:
        await context.abort(grpc.StatusCode.NOT_FOUND, "größe: 100 %\n")
        return b""

    async def wait(self, body: bytes, context: Any) -> bytes:
        self.waiting.release()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.cancelled.release()
            raise
        return body


@pytest.fixture
async def upstream() -> AsyncIterator[tuple[Upstream, GrpcConnection]]:
    told = Upstream()
    server = grpc.aio.server(options=[("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)])
    handlers = {
        name: grpc.unary_unary_rpc_method_handler(handler)
        for name, handler in {"Echo": told.echo, "Refuse": told.refuse, "Wait": told.wait}.items()
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("test.Test", handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    lane = GrpcConnection(f"127.0.0.1:{port}", MAX_BYTES, UpstreamAccess((("authorization", "Bearer 7"),)))
    yield told, lane
    await lane.close()
    await server.stop(0)


@pytest.mark.parametrize("size", SIZES)
async def test_messages_of_every_size_come_back(size: int, upstream: tuple[Upstream, GrpcConnection]) -> None:
    _, lane = upstream
    body = text(size)
    for parts in ((body,), (body[:7], memoryview(body)[7:]), (b"", bytearray(body))):
        reply = await lane.call(ask("Echo", *parts), 20)
        assert (reply.grpc_code, bytes(reply.body)) == (Code.OK, body)  # type: ignore[arg-type]


async def test_many_calls_share_a_connection(upstream: tuple[Upstream, GrpcConnection]) -> None:
    _, lane = upstream
    bodies = [text(number * 20_000) for number in range(60)]
    replies = await asyncio.gather(*(lane.call(ask("Echo", body), 20) for body in bodies))
    assert [bytes(reply.body) for reply in replies] == bodies  # type: ignore[arg-type]


async def test_headers_and_the_time_that_is_left_go_along(upstream: tuple[Upstream, GrpcConnection]) -> None:
    told, lane = upstream
    await lane.call(ask("Echo", b"", traceparent="00-1-2-01"), 5)
    assert told.metadata["authorization"] == "Bearer 7"
    assert told.metadata["traceparent"] == "00-1-2-01"
    assert told.remaining is not None
    assert 4 < told.remaining <= 5
    await lane.call(ask("Echo", b""), None)
    assert "traceparent" not in told.metadata
    assert told.remaining is None


async def test_what_http_2_itself_reads_comes_first() -> None:
    """Not every server minds, but HAProxy does. Source: RFC 9113, 8.3."""
    lane = GrpcConnection("localhost:1", MAX_BYTES, UpstreamAccess((("authorization", "Bearer 7"),)))
    names = [*hpack.decode(lane._block(ask("Echo", b"", traceparent="00-1-2-01"), 5))]
    assert names[:4] == [":method", ":scheme", ":authority", ":path"]
    assert names[4:] == ["te", "content-type", "authorization", "grpc-timeout", "traceparent"]
    await lane.close()


async def test_a_server_s_own_words_are_passed_on(upstream: tuple[Upstream, GrpcConnection]) -> None:
    _, lane = upstream
    reply = await lane.call(ask("Refuse", text(600_000)), None)
    assert (reply.grpc_code, reply.message) == (Code.NOT_FOUND, "größe: 100 %\n")
    reply = await lane.call(ask("Nothing", b"x"), None)
    assert reply.grpc_code == Code.UNIMPLEMENTED
    reply = await lane.call(ask("Echo", text(MAX_BYTES + 1)), None)
    assert (reply.grpc_code, reply.message) == (
        Code.RESOURCE_EXHAUSTED,
        TOO_LARGE.format(size=MAX_BYTES + 1, max_bytes=MAX_BYTES),
    )
    assert (await lane.call(ask("Echo", b"more"), None)).body == b"more"


async def test_who_leaves_or_is_late_ends_the_call(upstream: tuple[Upstream, GrpcConnection]) -> None:
    told, lane = upstream
    assert (await lane.call(ask("Echo", b"connected"), None)).body == b"connected"
    late = await lane.call(ask("Wait", b"x"), 1)
    assert late.grpc_code == Code.DEADLINE_EXCEEDED
    waiting = asyncio.ensure_future(lane.call(ask("Wait", b"x"), None))
    await told.waiting.acquire()
    await told.waiting.acquire()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    async with asyncio.timeout(5):
        await told.cancelled.acquire()
        await told.cancelled.acquire()
    assert (await lane.call(ask("Echo", b"on"), None)).body == b"on"


async def test_a_server_that_is_not_there_is_not_reached(upstream: tuple[Upstream, GrpcConnection]) -> None:
    lane = GrpcConnection("127.0.0.1:1", MAX_BYTES)
    for _ in range(2):
        with pytest.raises(NotReached):
            await lane.call(ask("Echo", b""), None)
    await lane.close()


async def test_another_address_of_a_name_is_tried(
    upstream: tuple[Upstream, GrpcConnection], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def two(*args: Any, **options: Any) -> list[Any]:
        return [(0, 0, 0, "", (host, 0)) for host in ("127.0.0.9", "127.0.0.1")]

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", two)
    _, lane = upstream
    assert (await lane.call(ask("Echo", b"here"), None)).body == b"here"


# ------------------------------------------------------------------------------------------------------- frames by hand

NOT_FOUND = header(b"grpc-status", b"5") + header(b"grpc-message", b"no%20%C3%BC")
HUFFMAN = bytes.fromhex("00 88 9acac8b21234da8f 81 07")
"""grpc-status: 0, in fewer bits."""


async def said_by(*pieces: bytes, closes: bool = False) -> Reply:
    """What a call comes to when its server sends these pieces, one after the other."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            writer.write(SETTINGS)
            await reader.readuntil(b"/test.Test/Echo")
            for piece in pieces:
                writer.write(piece)
                await writer.drain()
                await steps()
            if not closes:
                await reader.read()

    async with served(serve) as lane, asyncio.timeout(5):
        return await lane.call(ask("Echo", b"x"), None)


ANSWER = OPENING + data(message(b"whole")) + OK
LARGE = text(300_000)
ANSWERS = {
    "at once": ([ANSWER], b"whole"),
    "byte by byte": ([ANSWER[at : at + 1] for at in range(len(ANSWER))], b"whole"),
    "without a message's bytes": ([OPENING, data(message(b"")), OK], b""),
    "a message in many frames": (
        [OPENING, *[data(message(b"whole")[at : at + 2]) for at in range(0, 10, 2)], OK],
        b"whole",
    ),
    "large frames": ([OPENING, data(message(LARGE)), OK], LARGE),
    "large frames in pieces": (
        [OPENING, *[data(message(LARGE))[at : at + 99_991] for at in range(0, 300_014, 99_991)], OK],
        LARGE,
    ),
    "padded": ([OPENING, data(b"\3" + message(b"whole") + b"\0\0\0", 8), OK], b"whole"),
    "headers in two frames": (
        [OPENING, data(message(b"whole")), frame(1, 1, 1, OK[9:14]), frame(9, 4, 1, OK[14:])],
        b"whole",
    ),
    "trailers in fewer bits": ([OPENING, data(message(b"whole")), frame(1, 5, 1, HUFFMAN)], b"whole"),
    "another stream's frames": ([OPENING, data(b"not ours", 0, 3), data(message(b"whole")), OK], b"whole"),
    "frames of no known kind": ([OPENING, frame(0xBE, 0, 0, b"grease"), data(message(b"whole")), OK], b"whole"),
    "a ping and a window": (
        [OPENING, frame(6, 0, 0, bytes(8)), frame(8, 0, 0, b"\0\0\0\1"), data(message(b"whole")), OK],
        b"whole",
    ),
    "after the word that the server stops": ([frame(7, 0, 0, bytes([0, 0, 0, 1, 0, 0, 0, 0])), ANSWER], b"whole"),
}


@pytest.mark.parametrize("name", ANSWERS)
async def test_an_answer_is_read_however_it_comes(name: str) -> None:
    pieces, body = ANSWERS[name]
    reply = await said_by(*pieces)
    assert (reply.grpc_code, bytes(reply.body)) == (Code.OK, body), reply.message  # type: ignore[arg-type]


FAILURES: dict[str, tuple[list[bytes], Code, str]] = {
    "a status alone": ([frame(1, 5, 1, b"\x88" + NOT_FOUND)], Code.NOT_FOUND, "no ü"),
    "a status behind a message": ([OPENING, data(message(b"x")), frame(1, 5, 1, NOT_FOUND)], Code.NOT_FOUND, "no ü"),
    "a status that does not exist": ([frame(1, 5, 1, b"\x88" + header(b"grpc-status", b"99"))], Code.UNKNOWN, ""),
    "a proxy's word": (
        [frame(1, 5, 1, header(b":status", b"503"))],
        Code.UNAVAILABLE,
        "the answer is none of gRPC's: HTTP status 503",
    ),
    "no status": ([OPENING, data(message(b"x"), 1)], Code.UNKNOWN, "the answer is none of gRPC's: HTTP status 200"),
    "no message": ([OPENING, OK], Code.INTERNAL, "the answer is not whole"),
    "half a message": ([OPENING, data(message(b"whole")[:7]), OK], Code.INTERNAL, "the answer is not whole"),
    "half a prefix": ([OPENING, data(b"\0\0"), OK], Code.INTERNAL, "the answer is not whole"),
    "two messages": ([OPENING, data(message(b"x") + b"\0"), OK], Code.INTERNAL, "more than one answer came"),
    "a second one in a frame of its own": (
        [OPENING, data(message(b"x")), data(message(b"x")), OK],
        Code.INTERNAL,
        "more than one answer came",
    ),
    "compressed": (
        [OPENING, data(b"\1" + message(b"x")[1:]), OK],
        Code.INTERNAL,
        "the answer is compressed, which was not offered",
    ),
    "too large": (
        [OPENING, data(b"\0\x7f\xff\xff\xff")],
        Code.RESOURCE_EXHAUSTED,
        TOO_LARGE.format(size=2**31 - 1, max_bytes=MAX_BYTES),
    ),
    "ended": (
        [OPENING, frame(3, 0, 1, b"\0\0\0\x0b")],
        Code.RESOURCE_EXHAUSTED,
        "the server ended the call with error 11",
    ),
    "ended for no good reason": (
        [frame(3, 0, 1, b"\0\0\0\2")],
        Code.INTERNAL,
        "the server ended the call with error 2",
    ),
}


@pytest.mark.parametrize("name", FAILURES)
async def test_what_is_no_answer_is_told(name: str) -> None:
    pieces, code, said = FAILURES[name]
    reply = await said_by(*pieces)
    assert (reply.grpc_code, reply.message) == (code, said)


BROKEN = {
    "closed": ([OPENING], True),
    "closed in a message": ([OPENING, data(message(LARGE))[:50_000]], True),
    "another protocol": ([b"HTTP/1.1 400 Bad Request\r\n\r\n"], False),
    "a push": ([frame(5, 4, 1, bytes(4))], False),
    "a huge frame": ([frame(1, 4, 1)[:0] + b"\xff\xff\xff" + frame(1, 4, 1)[3:]], False),
    "a table that does not exist": ([frame(1, 5, 1, b"\xff\x7f")], False),
    "a block that ends too soon": ([frame(1, 5, 1, b"\0\5gr")], False),
    "a number without an end": ([frame(1, 5, 1, b"\xff" + b"\xff" * 9)], False),
    "a text that is not padded": ([frame(1, 5, 1, bytes.fromhex("00 81 00 00"))], False),
    "too much padding": ([data(b"\7abc", 8)], False),
    "a frame within headers": ([frame(1, 0, 1, b"\x88"), data(b"x")], False),
    "headers without a beginning": ([frame(9, 4, 1, b"\x88")], False),
    "headers without an end": ([frame(1, 0, 1, b"\x88"), *[frame(9, 0, 1, bytes(60_000))] * 2], False),
}


@pytest.mark.parametrize("name", BROKEN)
async def test_a_connection_that_breaks_is_lost(name: str) -> None:
    pieces, closes = BROKEN[name]
    with pytest.raises(ConnectionLost):
        await said_by(*pieces, closes=closes)


# ----------------------------------------------------------------------------------- a server that looks at frames


class Watching:
    """A server that keeps what it gets: `bodies` by connection and stream, in `frames` everything, as (connection,
    kind, flags, stream). `settings` are its own; `answers` says what becomes of a stream whose request is whole.
    """

    def __init__(self, settings: bytes, answers: Callable[[Any, int, int], bytes]) -> None:
        self.settings = settings
        self.answers = answers
        self.connections = 0
        self.frames: list[tuple[int, int, int, int]] = []
        self.sizes: list[int] = []
        self.bodies: dict[tuple[int, int], bytes] = {}
        self.writer: Any = None

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            await reader.readexactly(24)
            self.connections += 1
            self.writer = writer
            connection = self.connections
            writer.write(frame(4, 0, 0, self.settings))
            while True:
                head = await reader.readexactly(9)
                kind, flags, stream = head[3], head[4], int.from_bytes(head[5:], "big")
                body = await reader.readexactly(int.from_bytes(head[:3], "big"))
                self.frames.append((connection, kind, flags, stream))
                if kind != 0:
                    continue
                self.sizes.append(len(body))
                whole = self.bodies[connection, stream] = self.bodies.get((connection, stream), b"") + body
                if flags & 1:
                    writer.write(self.answers(self, connection, stream))
                elif whole:  # little by little
                    writer.write(frame(8, 0, stream, (700).to_bytes(4, "big")))
                    writer.write(frame(8, 0, 0, (700).to_bytes(4, "big")))


@contextlib.asynccontextmanager
async def watched(settings: bytes, answers: Callable[[Any, int, int], bytes]) -> AsyncIterator[tuple[Watching, Any]]:
    told = Watching(settings, answers)
    async with served(told.serve) as lane, asyncio.timeout(10):
        yield told, lane


def echoed(told: Watching, connection: int, stream: int) -> bytes:
    body = told.bodies[connection, stream]
    return (
        frame(1, 4, stream, OPENING[9:])
        + b"".join(frame(0, 0, stream, body[at : at + 16_384]) for at in range(0, len(body), 16_384))
        + frame(1, 5, stream, OK[9:])
    )


async def test_a_server_says_how_much_it_takes_at_a_time() -> None:
    body = text(100_000)
    async with watched(setting(4, 1000), echoed) as (told, lane):
        reply = await lane.call(ask("Echo", body[:30_000], body[30_000:]), None)
        assert bytes(reply.body) == body
        assert max(told.sizes) <= 1000
    async with watched(setting(5, 20_000) + setting(4, 2**31 - 1), echoed) as (told, lane):
        assert bytes((await lane.call(ask("Echo", body), None)).body) == body
        assert max(told.sizes) == 20_000


async def test_a_server_says_how_many_calls_it_takes_at_a_time() -> None:
    waiting: list[int] = []
    max_bytes = 0

    def answers(told: Watching, connection: int, stream: int) -> bytes:
        nonlocal max_bytes
        waiting.append(stream)
        max_bytes = max(max_bytes, len(waiting))
        asyncio.get_running_loop().call_later(0.005, answer, told, connection, stream)
        return b""

    def answer(told: Watching, connection: int, stream: int) -> None:
        waiting.remove(stream)
        told.writer.write(echoed(told, connection, stream))

    async with watched(setting(3, 2), answers) as (told, lane):
        replies = await asyncio.gather(*(lane.call(ask("Echo", text(n * 300)), None) for n in range(20)))
        assert [bytes(reply.body) for reply in replies] == [text(n * 300) for n in range(20)]
        assert max_bytes == 2
        assert told.connections == 1
        late = await asyncio.gather(*(lane.call(ask("Echo", b"x"), 0.004) for _ in range(5)))
        assert {reply.grpc_code for reply in late} == {Code.DEADLINE_EXCEEDED}


@pytest.mark.parametrize(
    "refusal",
    [
        frame(3, 0, 1, b"\0\0\0\7"),
        frame(7, 0, 0, bytes(8)),
        frame(7, 0, 0, b"\x7f\xff\xff\xff" + bytes(4)) + frame(7, 0, 0, bytes(8)),
    ],
    ids=["the call", "the connection", "the connection in two steps"],
)
async def test_what_a_server_refuses_to_look_at_is_asked_again(refusal: bytes) -> None:
    refused: list[int] = []

    def answers(told: Watching, connection: int, stream: int) -> bytes:
        if not refused:
            refused.append(stream)
            return refusal
        return echoed(told, connection, stream)

    async with watched(b"", answers) as (told, lane):
        assert bytes((await lane.call(ask("Echo", b"body"), None)).body) == b"body"
        assert len(told.bodies) == 2


async def test_a_server_that_refuses_time_and_again_is_not_reached() -> None:
    async with watched(b"", lambda told, connection, stream: frame(3, 0, stream, b"\0\0\0\7")) as (told, lane):
        with pytest.raises(NotReached):
            await lane.call(ask("Echo", b"body"), None)
        assert len(told.bodies) == 3

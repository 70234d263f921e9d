"""Streams over HTTP, from a server that sends what a test has it send."""

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from waiting import steps

from tensorgate.adapters.open_inference.generate_client import Events
from tensorgate.adapters.upstream import http_failure
from tensorgate.backends.remote.connection import TOO_LARGE, ConnectionLost, NotReached
from tensorgate.backends.remote.http_connection import HttpConnection
from tensorgate.gateway.contract.call import Reply
from tensorgate.gateway.contract.errors import Exhausted
from tensorgate.gateway.contract.upstream import Ask

ASK = Ask("/v2/models/m/generate_stream", (b"{}",), cut=Events)
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
MAX_BYTES = 1000
TOLD = TOO_LARGE.format(size="more than 1000", max_bytes=1000).encode()


class Server:
    """`pieces` are sent one after the other; `gone` is set when the client has left."""

    def __init__(self) -> None:
        self.pieces: list[bytes] = []
        self.then: Callable[[asyncio.StreamWriter], Any] = lambda writer: writer.close()
        self.gone = asyncio.Event()
        self.asked = b""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            self.asked = await reader.readuntil(b"\r\n\r\n") + await reader.readexactly(2)
            for piece in self.pieces:
                writer.write(piece)
                await writer.drain()
                await steps()
            self.then(writer)
            await reader.read()
        writer.close()
        self.gone.set()


@pytest.fixture
async def rig() -> AsyncIterator[tuple[Server, HttpConnection]]:
    told = Server()
    server = await asyncio.start_server(told.serve, "127.0.0.1", 0)
    connection = HttpConnection(f"127.0.0.1:{server.sockets[0].getsockname()[1]}", MAX_BYTES)
    yield told, connection
    await connection.close()
    async with asyncio.timeout(5):
        await told.gone.wait()
    server.close()
    await server.wait_closed()


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


async def heard(connection: HttpConnection, seconds: float | None = 5) -> list[Reply]:
    async with contextlib.aclosing(connection.stream(ASK, seconds)) as replies:
        return [reply async for reply in replies]


async def test_every_event_is_a_reply_as_it_comes(rig: tuple[Server, HttpConnection]) -> None:
    server, connection = rig
    server.pieces = [HEAD, chunk(b"data: 1\n\ndata"), chunk(b": 2\r\n\r"), chunk(b"\ndata: 3\n\n"), chunk(b"")]
    replies = await heard(connection)
    assert [(reply.http_status, reply.body) for reply in replies] == [(200, b"1"), (200, b"2"), (200, b"3")]
    assert b"POST /v2/models/m/generate_stream" in server.asked
    told = re.search(rb"x-request-timeout-ms: ([0-9]+)\r\n", server.asked)
    assert told is not None
    assert 4000 < int(told[1]) <= 5000  # connecting takes of it


async def test_an_answer_that_is_no_success_is_one_reply(rig: tuple[Server, HttpConnection]) -> None:
    server, connection = rig
    server.pieces = [b'HTTP/1.1 400 Bad Request\r\nContent-Length: 20\r\n\r\ndata: {"error":"x"}\n']
    assert [(reply.http_status, reply.body) for reply in await heard(connection)] == [(400, b'data: {"error":"x"}\n')]


async def test_a_server_that_dies_in_mid_stream_is_lost(rig: tuple[Server, HttpConnection]) -> None:
    server, connection = rig
    server.pieces = [HEAD, chunk(b"data: 1\n\n"), chunk(b"data: 2")]
    replies = connection.stream(ASK, None)
    assert (await anext(replies)).body == b"1"
    with pytest.raises(ConnectionLost):
        await anext(replies)


async def test_who_leaves_ends_the_stream(rig: tuple[Server, HttpConnection]) -> None:
    server, connection = rig
    server.pieces = [HEAD, chunk(b"data: 1\n\n")]
    server.then = lambda writer: None
    async with contextlib.aclosing(connection.stream(ASK, None)) as replies:
        assert (await anext(replies)).body == b"1"
    async with asyncio.timeout(5):
        await server.gone.wait()


async def test_a_stream_has_its_time(rig: tuple[Server, HttpConnection]) -> None:
    server, connection = rig
    server.pieces = [HEAD, chunk(b"data: 1\n\n")]
    server.then = lambda writer: None
    assert [reply.http_status for reply in await heard(connection, 0.2)] == [200, 504]


async def test_an_event_has_a_largest_size_and_a_stream_has_none(rig: tuple[Server, HttpConnection]) -> None:
    server, connection = rig
    event = chunk(b"data: " + b"x" * 600 + b"\n\n")
    server.pieces = [HEAD, *[event] * 5, *[chunk(b"data: " + b"x" * 600)] * 2]
    server.then = lambda writer: None
    replies = connection.stream(ASK, None)
    for _ in range(5):
        assert len((await anext(replies)).body) == 600
    last = [reply async for reply in replies]
    assert [(reply.http_status, bytes(reply.body)) for reply in last] == [(413, TOLD)]


FULL = b"HTTP/1.1 200 OK\r\n"


@pytest.mark.parametrize(
    "pieces",
    {
        "claimed": [FULL + b"Content-Length: 1001\r\n\r\n"],
        "without an end": [HEAD, *[chunk(b"x" * 100)] * 11],
        "until the connection ends": [FULL + b"\r\n", b"x" * 1001],
        "as an error": [HEAD.replace(b"200 OK", b"503 Service Unavailable"), *[chunk(b"x" * 100)] * 11],
    }.items(),
    ids=lambda each: each[0],
)
async def test_an_answer_without_an_end_is_told_with_the_limit(
    rig: tuple[Server, HttpConnection], pieces: tuple[str, list[bytes]], caplog: pytest.LogCaptureFixture
) -> None:
    """The callers hear what the operator can change, and the log names the server, too."""
    server, connection = rig
    server.pieces = pieces[1]
    server.then = lambda writer: None
    reply = await connection.call(Ask("/v2/models/m/infer", (b"{}",)), 5)
    assert (reply.http_status, bytes(reply.body)) == (413, TOLD)
    failure = http_failure(reply)
    assert (type(failure), str(failure)) == (Exhausted, TOLD.decode())
    (said,) = caplog.messages
    assert said == f"upstream {connection._base}: {TOLD.decode()}"


async def test_an_answer_of_the_largest_size_is_taken(rig: tuple[Server, HttpConnection]) -> None:
    server, connection = rig
    server.pieces = [HEAD, *[chunk(b"x" * 100)] * 10, chunk(b"")]
    reply = await connection.call(Ask("/v2/models/m/infer", (b"{}",)), 5)
    assert (reply.http_status, reply.body) == (200, b"x" * MAX_BYTES)


async def test_a_server_that_is_not_there_is_not_reached(rig: tuple[Server, HttpConnection]) -> None:
    server, _ = rig
    server.gone.set()
    nowhere = HttpConnection("127.0.0.1:1", MAX_BYTES)
    with pytest.raises(NotReached):
        await heard(nowhere)
    await nowhere.close()


@pytest.mark.parametrize(("method", "is_asked_again"), [("GET", True), ("HEAD", True), ("POST", False)])
async def test_a_connection_that_was_closed_for_having_been_idle(method: str, is_asked_again: bool) -> None:
    connections = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answers once for each connection, and closes it when it is asked again."""
        nonlocal connections
        connections += 1
        try:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 204 No Content\r\n\r\n")
            await reader.readuntil(b"\r\n\r\n")
        except asyncio.IncompleteReadError:
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    connection = HttpConnection(f"127.0.0.1:{server.sockets[0].getsockname()[1]}", MAX_BYTES)
    assert (await connection.call(Ask("/", method=method), 5)).http_status == 204
    if is_asked_again:
        assert (await connection.call(Ask("/", method=method), 5)).http_status == 204
    else:
        with pytest.raises(ConnectionLost):
            await connection.call(Ask("/", method=method), 5)
    assert connections == 1 + is_asked_again
    await connection.close()
    server.close()
    await steps()

"""Streams over HTTP, from a server that sends what a test has it send."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from waiting import steps

from adapters.open_inference.events import Events
from backends.remote.connection import HttpConnection, Lost, NotReached
from gateway.ports import Ask, Reply

ASK = Ask("/v2/models/m/generate_stream", (b"{}",), cut=Events)
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
MOST_BYTES = 1000


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
    connection = HttpConnection(f"127.0.0.1:{server.sockets[0].getsockname()[1]}", MOST_BYTES)
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
    assert b"x-request-timeout-ms: 5000" in server.asked


async def test_an_answer_that_is_no_success_is_one_reply(rig: tuple[Server, HttpConnection]) -> None:
    server, connection = rig
    server.pieces = [b'HTTP/1.1 400 Bad Request\r\nContent-Length: 20\r\n\r\ndata: {"error":"x"}\n']
    assert [(reply.http_status, reply.body) for reply in await heard(connection)] == [(400, b'data: {"error":"x"}\n')]


async def test_a_server_that_dies_in_mid_stream_is_lost(rig: tuple[Server, HttpConnection]) -> None:
    server, connection = rig
    server.pieces = [HEAD, chunk(b"data: 1\n\n"), chunk(b"data: 2")]
    replies = connection.stream(ASK, None)
    assert (await anext(replies)).body == b"1"
    with pytest.raises(Lost):
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
    with pytest.raises(Lost):
        await anext(replies)


async def test_a_server_that_is_not_there_is_not_reached(rig: tuple[Server, HttpConnection]) -> None:
    server, _ = rig
    server.gone.set()
    nowhere = HttpConnection("127.0.0.1:1", MOST_BYTES)
    with pytest.raises(NotReached):
        await heard(nowhere)
    await nowhere.close()

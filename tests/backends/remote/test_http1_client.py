"""Requests over HTTP/1.1, and the connections that they share."""

from __future__ import annotations

import asyncio
import re
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import pytest
from waiting import until

from tensorgate.backends.remote.connection import ConnectionLost, NotReached
from tensorgate.backends.remote.http1_client import Http1Client
from tensorgate.backends.remote.http_connection import HttpConnection
from tensorgate.backends.remote.options import UpstreamAccess
from tensorgate.gateway.contract.upstream import Ask
from tensorgate.gateway.wire.http1_reply import ReplyReader

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Coroutine[Any, Any, None]]
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


class Server:
    """It keeps what it was asked, and answers by a handler, once per request."""

    def __init__(self, reply: bytes = OK) -> None:
        self.reply = reply
        self.heads: list[bytes] = []
        self.bodies: list[bytes] = []
        self.writers: list[asyncio.StreamWriter] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writers.append(writer)
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                found = re.search(rb"content-length: (\d+)", head)
                self.bodies.append(await reader.readexactly(int(found[1]) if found else 0))
                self.heads.append(head)
                writer.write(self.reply)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()


@asynccontextmanager
async def rigged(server: Server, path: str = "", **headers: str) -> AsyncIterator[Http1Client]:
    listening = await asyncio.start_server(server.serve, "127.0.0.1", 0)
    client = Http1Client(f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}{path}", headers=headers)
    try:
        async with asyncio.timeout(60):
            yield client
    finally:
        await client.close()
        listening.close()
        for writer in server.writers:
            writer.close()


async def ask(
    client: Http1Client, method: str = "POST", target: str = "/", body: bytes = b"", **headers: str
) -> ReplyReader:
    reader = ReplyReader(1 << 20, has_body=method != "HEAD")
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    connection = await client.send(Ask(target, (body,) if body else (), method, named), reader, None)
    try:
        await connection.whole()
    finally:
        client.release(connection)
    return reader


async def test_requests_share_a_connection_one_after_the_other() -> None:
    server = Server()
    async with rigged(server, "/below/", Authorization="me") as client:
        for number in range(3):
            assert (await ask(client, target=f"/a%20b?c={number}", body=b"12", X_One="é")).body() == b"ok"
        assert (await ask(client, "GET", accept="text/plain")).body() == b"ok"
    assert len(server.writers) == 1
    assert server.bodies == [b"12", b"12", b"12", b""]
    lines = server.heads[1].decode().split("\r\n")
    assert lines[0] == "POST /below/a%20b?c=1 HTTP/1.1"
    assert {"authorization: me", "x-one: é", "content-length: 2", "accept: */*"} <= {*lines}
    assert [line for line in lines if line.startswith("host: 127.0.0.1:")]
    lines = server.heads[3].decode().split("\r\n")
    assert "accept: text/plain" in lines
    assert "accept: */*" not in lines
    assert not [line for line in lines if line.startswith("content-length")]


async def test_requests_at_once_have_connections_of_their_own() -> None:
    server = Server()
    async with rigged(server) as client:
        await asyncio.gather(*(ask(client) for _ in range(4)))
        assert len(server.writers) == 4
        await asyncio.gather(*(ask(client) for _ in range(4)))
        assert len(server.writers) == 4


@pytest.mark.parametrize(
    "reply",
    [
        b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok",
        b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok",
        OK + b"more",
        b"HTTP/1.1 500 Internal Server Error\r\nContent-Length: 2\r\n\r\nok",
    ],
)
async def test_a_connection_that_is_no_longer_good_is_not_used_again(reply: bytes) -> None:
    server = Server(reply)
    async with rigged(server) as client:
        for _ in range(3):
            assert (await ask(client)).body() == b"ok"
    assert len(server.writers) == 3


async def test_a_server_that_closes_an_idle_connection_is_asked_by_another() -> None:
    server = Server()
    async with rigged(server) as client:
        await ask(client)
        server.writers[0].close()
        await until(lambda: not any(each.is_open for each in client._idle))
        assert (await ask(client)).body() == b"ok"
        assert len(server.writers) == 2


async def test_a_server_that_speaks_unasked_is_not_listened_to() -> None:
    server = Server()
    async with rigged(server) as client:
        await ask(client)
        server.writers[0].write(OK)
        await until(lambda: not any(each.is_open for each in client._idle))
        server.reply = b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nnew"
        assert (await ask(client)).body() == b"new"


async def test_idle_connections_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tensorgate.backends.remote.http1_client._IDLE_S", 0.01)
    server = Server()
    async with rigged(server) as client:
        await ask(client)
        await until(lambda: not client._idle and not client._open)
        assert (await ask(client)).body() == b"ok"
        assert len(server.writers) == 2


async def test_who_leaves_takes_his_connection_along() -> None:
    server = Server(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\npart")
    async with rigged(server) as client:
        task = asyncio.ensure_future(ask(client))
        await until(lambda: server.heads)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not client._idle
        server.reply = OK
        assert (await ask(client)).body() == b"ok"
        assert len(server.writers) == 2


async def test_a_large_body_and_its_echo() -> None:
    body = bytes(range(256)) * 2048
    server = Server(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
    async with rigged(server) as client:
        for _ in range(2):
            assert (await ask(client, body=body)).body() == body
    assert server.bodies == [body, body]
    assert len(server.writers) == 1


async def test_an_answer_before_the_question_was_heard() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        opened.append(writer)
        writer.write(b"HTTP/1.1 413 Too Large\r\nContent-Length: 2\r\n\r\nno")

    opened: list[asyncio.StreamWriter] = []
    listening = await asyncio.start_server(serve, "127.0.0.1", 0, limit=1024)
    client = Http1Client(f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}")
    reader = await ask(client, body=b"x" * (64 << 20))
    assert (reader.status, reader.body()) == (413, b"no")
    assert not client._idle
    await client.close()
    listening.close()
    for writer in opened:
        writer.close()


async def test_a_slow_reader_of_a_stream_holds_it_back() -> None:
    size = 32 << 20
    server = Server(b"HTTP/1.1 200 OK\r\n\r\n" + bytes(size))
    async with rigged(server) as client:
        reader = ReplyReader(1 << 10, in_pieces=True)
        connection = await client.send(Ask("/", (), "GET"), reader, None)
        await until(lambda: connection._is_paused)
        waiting = sum(map(len, reader.pieces))
        assert waiting < 3 << 20
        found = 0
        while found < size:
            found += sum(map(len, connection.take()))
            if found < size and not reader.pieces:
                await connection.more()
        client.release(connection)
        assert found == size


@pytest.mark.parametrize(
    ("target", "headers"),
    [
        ("/a b", {}),
        ("/a\r\nx: 1", {}),
        ("/", {"x": "1\r\ny: 2"}),
        ("/", {"x": "1\n"}),
        ("/", {"x\r\ny": "1"}),
        ("/", {"x y": "1"}),
        ("/", {"x:": "1"}),
        ("/", {"": "1"}),
        ("/", {"x": "\0"}),
    ],
)
async def test_what_would_be_another_request_is_not_sent(target: str, headers: dict[str, str]) -> None:
    server = Server()
    async with rigged(server) as client:
        with pytest.raises(ValueError, match="must not have"):
            await client.send(Ask(target, headers=headers), ReplyReader(1), None)
        assert not client._open
    assert not server.heads


async def test_the_time_of_a_call_begins_before_the_connection() -> None:
    """The kernel takes connections, and nobody answers TLS."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        tls = UpstreamAccess(tls=ssl.create_default_context())
        connection = HttpConnection(f"127.0.0.1:{listening.getsockname()[1]}", 1 << 20, tls)
        assert (await connection.call(Ask("/"), 0.05)).http_status == 504
        assert [reply.http_status async for reply in connection.stream(Ask("/"), 0.05)] == [504]
        with pytest.raises(NotReached):
            await connection.call(Ask("/"), None)
        await connection.close()


async def test_the_server_hears_how_much_time_is_left() -> None:
    server = Server()
    async with rigged(server) as client:
        now = asyncio.get_running_loop().time()
        for until in (now + 60, now):
            reader = ReplyReader(1 << 20)
            connection = await client.send(Ask("/", (b"x",)), reader, until)
            await connection.whole()
            client.release(connection)
    said = [re.search(rb"x-request-timeout-ms: ([0-9]+)", head) for head in server.heads]
    first, second = [int(found[1]) for found in said if found is not None]
    assert 0 < first <= 60_000
    assert second == 1


@pytest.mark.parametrize("reply", [b"", b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\npart", b"SSH-2.0-x\r\n\r\n"])
async def test_a_connection_that_breaks(reply: bytes) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(reply)
        writer.close()

    listening = await asyncio.start_server(serve, "127.0.0.1", 0)
    client = Http1Client(f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}")
    with pytest.raises(ConnectionLost):
        await ask(client)
    listening.close()
    await listening.wait_closed()
    with pytest.raises(NotReached):
        await ask(client)
    await client.close()


async def test_closing_ends_what_is_under_way() -> None:
    server = Server(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\npart")
    async with rigged(server) as client:
        task = asyncio.ensure_future(ask(client))
        await until(lambda: server.heads)
        await client.close()
        with pytest.raises(ConnectionLost):
            await task

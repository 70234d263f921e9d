"""The fast path, byte by byte: which way each request goes, and that nobody could tell by the answers.

aiohttp alone is the oracle: the same bytes are sent to a listener with the fast path and to one without.
"""

import asyncio
import contextlib
import json
import logging
import re
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from waiting import Clock, settles, stays, steps, until

from tensorgate.gateway.contract.call import Call, Reply
from tensorgate.gateway.contract.dialect import Dialect, Endpoint, Match
from tensorgate.gateway.contract.errors import GatewayError
from tensorgate.gateway.contract.questions import ServerLive
from tensorgate.gateway.service import Send
from tensorgate.gateway.transport import http_server
from tensorgate.gateway.transport.http_fast_path import READ_BYTES
from tensorgate.gateway.transport.http_server import HttpLimits, HttpListener, probe_page
from tensorgate.gateway.transport.sockets import bind
from tensorgate.gateway.transport.timeouts import ClientTimeouts

LIMIT = 200_000
BIG = [bytes([n]) * 1_000_000 for n in range(8)]


REPLIES = {
    "/stream": [*(Reply(part, streamed=True) for part in (b"one", b"", [b"t", b"wo"])), Reply(b"end")],
    "/bigstream": [Reply(part, streamed=True) for part in BIG],
    "/big": [Reply(BIG)],
    "/nothing": [Reply(b"", 204)],
    "/empty": [Reply(b"", 200)],
    "/bye": [Reply(b"bye", 200, {"Connection": "close"})],
    "/split": [Reply(b"", 200, {"X": "a\r\nSet-Cookie: b"})],
}


async def done(sent: Awaitable[None] | None) -> None:
    if sent is not None:
        await sent


@dataclass
class Echo:
    """A service that tells what it was asked, and misbehaves by the path."""

    asked: asyncio.Event = field(default_factory=asyncio.Event)
    begun: list[str] = field(default_factory=list)
    cancelled: int = 0
    authorizer: None = None
    go_on: asyncio.Event = field(default_factory=asyncio.Event)

    async def handle(self, dialect: str, endpoint: Endpoint, call: Call, send: Send) -> None:
        path = call.raw_target
        self.begun.append(path)
        self.asked.set()
        try:
            endpoint.decode(call, lambda ref: None)  # type: ignore[arg-type, return-value]
        except GatewayError as error:
            await done(send(Reply(str(error).encode(), 413, {"Content-Type": "text/plain"})))
            return
        try:
            async for reply in self.replies(path, call):
                await done(send(reply))
        except asyncio.CancelledError:
            self.cancelled += 1
            raise

    async def replies(self, path: str, call: Call) -> AsyncIterator[Reply]:
        if path == "/bug":
            raise ZeroDivisionError("secret")
        if path == "/wait":
            await self.go_on.wait()
        if path == "/yield":
            await asyncio.sleep(0)
        for reply in REPLIES.get(path) or [self.told(call)]:
            yield reply

    @staticmethod
    def told(call: Call) -> Reply:
        way = "fast path" if type(call.headers) is dict else "aiohttp"
        body = call.body
        seen = [call.method, call.raw_target, len(body), bytes(body[:40]).decode("latin-1"), call.headers.get("x-a")]
        return Reply(json.dumps(seen).encode(), 200, {"Content-Type": "application/json", "X-Way": way})


@dataclass
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def way(self) -> str:
        return self.headers.get("x-way", "")


@dataclass
class Server:
    """A listener with its service, and how to talk to it."""

    listener: HttpListener
    echo: Echo
    port: int

    async def open(self, buffer_bytes: int = 0) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        sock = socket.socket()
        if buffer_bytes:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer_bytes)
        sock.setblocking(False)
        try:
            await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", self.port))
        except OSError:
            sock.close()
            raise
        return await asyncio.open_connection(sock=sock)

    async def talk(self, *parts: bytes, turns: int = 1, timeouts: float = 5.0) -> list[Answer]:
        """The answers to these parts, between which the loop has so many turns, until the server closes, or says
        nothing more for a while.
        """
        reader, writer = await self.open()
        try:
            for part in parts:
                if not writer.is_closing():
                    writer.write(part)
                for _ in range(turns):
                    await asyncio.sleep(0)
            data = b""
            with contextlib.suppress(ConnectionError):
                while more := await read_within(timeouts, reader):
                    data += more
        finally:
            writer.close()
        return answers(data)


async def read_within(timeouts: float, reader: asyncio.StreamReader) -> bytes:
    """What comes next; nothing at the end, or after so long a silence. That is heard in steps: where others keep this
    process from running, neither has the server been silent.
    """
    reading = asyncio.ensure_future(reader.read(1 << 20))
    for _ in range(20):
        if (await asyncio.wait([reading], timeout=timeouts / 20))[0]:
            return await reading
    reading.cancel()
    return b""


def answers(data: bytes) -> list[Answer]:
    """The bytes of a connection -> the answers in it, whole ones all of them."""
    found = []
    while data:
        head, end, data = data.partition(b"\r\n\r\n")
        assert end, head
        first, *lines = head.decode().split("\r\n")
        match = re.fullmatch(r"HTTP/1\.[01] ([0-9]{3}) .*", first)
        assert match, first
        headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}
        assert len(headers) == len(lines)
        status = int(match[1])
        if headers.get("transfer-encoding") == "chunked":
            body, data = unchunked(data)
        else:
            size = 0 if status == 204 or "x-head" in headers else int(headers.get("content-length", len(data)))
            body, data = data[:size], data[size:]
            assert len(body) == size
        found.append(Answer(status, headers, body))
    return found


def unchunked(data: bytes) -> tuple[bytes, bytes]:
    body = b""
    while True:
        size, _, data = data.partition(b"\r\n")
        count = int(size, 16)
        body, end, data = body + data[:count], data[count : count + 2], data[count + 2 :]
        assert end == b"\r\n"
        if not count:
            return body, data


async def serve(fast_path: bool, grace: float = 0.2, timeouts: ClientTimeouts | None = None) -> Server:
    echo: Any = Echo()
    endpoint = Endpoint("*", "echo", lambda call, resolve: ServerLive(), lambda *_: Reply(b""), lambda *_: Reply(b""))
    streaming = replace(endpoint, stream="server")
    dialect = Dialect(
        "echo",
        "Echo",
        "/",
        lambda method, target: Match(streaming if "stream" in target else endpoint),
        lambda view: None,
    )
    pages = {"/readyz": probe_page(lambda: True)}
    limits = HttpLimits(LIMIT, 2 * LIMIT, grace_seconds=grace)
    listener = HttpListener(echo, [dialect], pages, limits, fast_path=fast_path, timeouts=timeouts)
    sock = bind("127.0.0.1", 0)
    await listener.start(sock)
    return Server(listener, echo, sock.getsockname()[1])


Start = Callable[..., Any]
QUICK = ClientTimeouts(idle=0.3, head=0.2, body=0.2, answer=0.2, linger=0.2, sweep=0.02)


@pytest.fixture
async def start(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Start]:
    servers = []

    async def start(*, fast_path: bool = True, grace: float = 0.2, timeouts: ClientTimeouts | None = None) -> Server:
        servers.append(await serve(fast_path, grace, timeouts))
        return servers[-1]

    yield start
    monkeypatch.setattr(http_server, "SETTLE_S", 0.0)  # nobody connects any more
    await asyncio.gather(*(server.listener.stop() for server in servers))


@pytest.fixture(params=[True, False], ids=["fast path", "aiohttp"])
async def server(start: Start, request: pytest.FixtureRequest) -> Server:
    server: Server = await start(fast_path=request.param)
    return server


@pytest.fixture
async def fast(start: Start) -> Server:
    server: Server = await start()
    return server


def post(body: bytes = b"", path: bytes = b"/a", *extra: bytes) -> bytes:
    lines = [b"POST " + path + b" HTTP/1.1", b"Host: x", b"Content-Length: %d" % len(body), *extra, b"", body]
    return b"\r\n".join(lines)


def get(path: bytes = b"/a", *extra: bytes) -> bytes:
    return b"\r\n".join([b"GET " + path + b" HTTP/1.1", b"Host: x", *extra, b"", b""])


BYE = get(b"/bye")
CHUNKED = b"POST /a HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n"

WAYS = [
    (post(b"abc"), ["fast path"], ["POST", "/a", 3, "abc", None]),
    (post(b"abc", b"/a?b=%20c", b"X-A: \xc3\xa4 b "), ["fast path"], ["POST", "/a?b=%20c", 3, "abc", "ä b"]),
    (get(), ["fast path"], ["GET", "/a", 0, "", None]),
    (get().replace(b"GET", b"DELETE"), ["fast path"], ["DELETE", "/a", 0, "", None]),
    (post(b"x" * LIMIT), ["fast path"], ["POST", "/a", LIMIT, "x" * 40, None]),
    (get(b"/a", b"Connection: keep-alive"), ["fast path"], ["GET", "/a", 0, "", None]),
    (get(b"/yield"), ["fast path"], ["GET", "/yield", 0, "", None]),
    (CHUNKED, ["aiohttp"], ["POST", "/a", 5, "abcde", None]),
    (post(b"abc", b"/a", b"Transfer-Encoding:"), None, None),
    (get(b"/a", b"X-A: b", b"X-A: c"), ["aiohttp"], ["GET", "/a", 0, "", "b, c"]),
    (get(b"//a"), ["aiohttp"], None),
    (b"\r\n" + get(), ["aiohttp"], ["GET", "/a", 0, "", None]),
    (get(b"/a", *(b"x-%d: y" % n for n in range(80))), ["aiohttp"], None),
    (get(b"/a", b"X-A: " + b"b" * 8160), ["aiohttp"], None),
    (get(b"/a", b"X-B: " + b"b" * 9000), None, None),
    (get(b"/a", b"Upgrade: h2c", b"Connection: upgrade"), ["aiohttp"], None),
    (get().replace(b"1.1", b"1.0\r\nConnection: keep-alive"), ["aiohttp"], ["GET", "/a", 0, "", None]),
]


@pytest.mark.parametrize(("request_", "ways", "told"), WAYS)
async def test_which_way_a_request_goes(fast: Server, request_: bytes, ways: Any, told: Any) -> None:
    first, *rest = await fast.talk(request_ + BYE, timeouts=1)
    assert [first.way] == (ways or [""])
    assert first.status == (200 if ways else 400)
    if told:
        assert json.loads(first.body) == told
        assert [answer.body for answer in rest] == [b"bye"]


@pytest.mark.parametrize("request_", [request for request, _, _ in WAYS])
async def test_the_answers_are_the_same_without_the_fast_path(fast: Server, start: Start, request_: bytes) -> None:
    await same(fast, await start(fast_path=False), request_ + BYE)


SMUGGLING = [
    post(b"abc", b"/a", b"Transfer-Encoding: chunked"),
    CHUNKED.replace(b"Host: x", b"Host: x\r\nContent-Length: 4"),
    CHUNKED.replace(b"Host: x", b"Host: x\r\nContent-Length: 26"),
    CHUNKED.replace(b": chunked", b":chunked"),
    CHUNKED.replace(b": chunked", b" : chunked"),
    CHUNKED.replace(b": chunked", b": xchunked"),
    CHUNKED.replace(b": chunked", b": chunked\r\nTransfer-Encoding: identity"),
    CHUNKED.replace(b"Transfer-Encoding: chunked", b"X: y\nTransfer-Encoding: chunked"),
    CHUNKED.replace(b"Transfer-Encoding: chunked", b"X: y\rTransfer-Encoding: chunked"),
    CHUNKED.replace(b"Transfer-Encoding", b"Transfer_Encoding"),
    CHUNKED.replace(b"Transfer-Encoding", b"Transfer-Encoding\0"),
    CHUNKED.replace(b"Transfer-Encoding", b"\x0bTransfer-Encoding"),
    post(b"abc", b"/a", b"Content-Length: 3"),
    post(b"abc", b"/a", b"Content-Length: 5"),
    post(b"abc", b"/a", b"content-length: 0"),
    *(
        post(b"abc").replace(b": 3", value)
        for value in (
            b": +3",
            b": -3",
            b": 3 3",
            b": 0x3",
            b": 3,3",
            b": 3.0",
            b": ",
            b": 3;",
            b":\x0b3",
            b": 3\0",
            b" : 3",
        )
    ),
    post(b"abc").replace(b": 3", b": 18446744073709551619"),
    post(b"abc").replace(b": 3", b": 9999999999999999999999999"),
    post(b"abc").replace(b": 3", b":\t3\t"),
    post(b"abc").replace(b": 3", b": 003"),
    post(b"abc").replace(b"\r\n", b"\n"),
    post(b"abc").replace(b"Host: x\r\n", b"Host: x\n"),
    post(b"abc").replace(b"Host: x\r\n", b"Host: x\r\r\n"),
    post(b"abc").replace(b"HTTP/1.1\r\n", b"HTTP/1.1\n"),
    post(b"abc").replace(b"Host: x", b"Host: x\0y"),
    post(b"abc").replace(b"Host: x", b"Host: x\r\n folded: y"),
    post(b"abc").replace(b"Host: x", b"Host: x\r\n\tContent-Length: 9"),
    post(b"abc").replace(b"Host: x", b"Host: x\r\nHost: y"),
    post(b"abc").replace(b"Host: x\r\n", b""),
    post(b"abc").replace(b"Host: x", b"Host"),
    post(b"abc").replace(b"Host: x", b"Host: x\r\nnonsense"),
    post(b"abc").replace(b"Host: x", b" Host: x"),
    post(b"abc").replace(b"/a ", b"/a\r\nX: y "),
    post(b"abc").replace(b"/a HTTP/1.1", b"/a"),
    post(b"abc").replace(b"/a HTTP/1.1", b"/a HTTP/1.1 HTTP/1.1"),
    post(b"abc").replace(b"POST", b"POST\0"),
    get(b"/a", b"Connection: close, te"),
    get(b"/a", b"Content-Type: a", b"Content-Type: b"),
    get(b"/a", b"Expect: 100-continue"),
    get(b"/a", b"Expect: nonsense"),
    get(b"/\x7f"),
    get(b"/\xff"),
    get(b"http://x/a"),
    get(b"*"),
    get().replace(b"GET", b"FETCH"),
    get().replace(b"GET /a", b"CONNECT x:1"),
]


def summary(found: list[Answer]) -> list[tuple[int, bytes]]:
    """What a client would act upon."""
    return [(answer.status, answer.body) for answer in found]


async def same(server: Server, oracle: Server, *parts: bytes, timeouts: float = 0.3) -> None:
    """One difference is allowed: aiohttp drops what it has read when what came with it is broken."""
    fast, slow = await asyncio.gather(*(each.talk(*parts, timeouts=timeouts) for each in (server, oracle)))
    ours, theirs = summary(fast), summary(slow)
    if theirs and theirs[0][0] in (400, 501):
        ours = ours[-1:]
    assert ours == theirs


@pytest.mark.parametrize("request_", SMUGGLING)
async def test_nothing_is_read_in_two_ways(
    fast: Server, start: Start, caplog: pytest.LogCaptureFixture, request_: bytes
) -> None:
    caplog.set_level(logging.CRITICAL)
    oracle = await start(fast_path=False)
    await same(fast, oracle, request_ + BYE)
    await same(fast, oracle, post(b"x" * 50) + request_ + BYE)
    await same(fast, oracle, request_ + post(b"abc") + BYE)


@pytest.fixture(scope="module")
def both() -> Any:
    """A loop with a listener of each kind for all examples of a property."""
    logging.getLogger("aiohttp.server").setLevel(logging.CRITICAL)
    loop = asyncio.new_event_loop()
    servers = [loop.run_until_complete(serve(fast_path)) for fast_path in (True, False)]
    yield loop, *servers
    for server in servers:
        loop.run_until_complete(server.listener.stop())
    loop.close()
    logging.getLogger("aiohttp.server").setLevel(logging.NOTSET)


ODD = [
    b"\r",
    b"\n",
    b"\r\n",
    b"\0",
    b" ",
    b"\t",
    b":",
    b",",
    b"\x7f",
    b"\xff",
    b"0",
    b"Content-Length: 1\r\n",
    b"chunked",
]


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_mutated_requests_fare_the_same(both: Any, data: st.DataObject) -> None:
    loop, fast, oracle = both
    request = data.draw(st.sampled_from([post(b"abc"), get(b"/a", b"X-A: b"), CHUNKED, post(b"", b"/a", b"X-A:")]))
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(request)))
        cut = data.draw(st.integers(0, 2))
        request = request[:at] + data.draw(st.sampled_from([b"", *ODD])) + request[at + cut :]
    loop.run_until_complete(same(fast, oracle, request + BYE, timeouts=0.1))


async def test_pipelined_mixes_are_answered_in_order(fast: Server, start: Start) -> None:
    oracle = await start(fast_path=False)
    mix = [post(b"one"), get(b"/yield"), post(b"y" * 100_000), get(b"/stream"), get(b"/readyz"), get(b"/nothing")]
    await same(fast, oracle, b"".join(mix) + BYE, timeouts=2)
    found = await fast.talk(b"".join([*mix, CHUNKED, post(b"two"), *mix]) + BYE)
    assert [answer.status for answer in found] == [200] * 5 + [204] + [200] * 7 + [204, 200]
    ways = [answer.way for answer in found]
    assert ways == ["fast path"] * 3 + [""] * 3 + ["aiohttp"] * 5 + [""] * 4
    lengths = [json.loads(answer.body)[2] for answer in found if answer.way]
    assert lengths == [3, 0, 100_000, 5, 3, 3, 0, 100_000]


@pytest.mark.parametrize("request_", [post(b"abc"), CHUNKED, get(b"/stream")])
async def test_split_at_every_position(server: Server, request_: bytes) -> None:
    async def split(at: int) -> None:
        found = await server.talk(request_[:at], request_[at:] + BYE, turns=10)
        assert [answer.status for answer in found] == [200, 200]

    for first in range(1, len(request_), 20):
        await asyncio.gather(*(split(at) for at in range(first, min(first + 20, len(request_)))))


async def test_byte_by_byte(fast: Server) -> None:
    found = await fast.talk(*(bytes([byte]) for byte in post(b"abc") + get(b"/stream") + CHUNKED + BYE), turns=5)
    assert [(answer.status, answer.way) for answer in found] == [
        (200, "fast path"),
        (200, ""),
        (200, "aiohttp"),
        (200, ""),
    ]
    assert found[1].body == b"onetwoend"


async def test_a_thousand_requests_on_one_connection(server: Server) -> None:
    reader, writer = await server.open()
    for n in range(1000):
        writer.write(post(b"x" * n, b"/%d" % n))
        head = await reader.readuntil(b"\r\n\r\n")
        size = int(re.search(rb"Content-Length: ([0-9]+)", head)[1])  # type: ignore[index]
        assert json.loads(await reader.readexactly(size))[1:3] == [f"/{n}", n]
    writer.close()


async def test_very_many_pipelined_requests(fast: Server) -> None:
    count = 2000
    found = await fast.talk(get() * count + BYE, timeouts=20)
    assert len(found) == count + 1
    assert {answer.way for answer in found[:-1]} == {"fast path"}


async def test_a_head_request_has_no_body_in_its_answer(server: Server) -> None:
    reader, writer = await server.open()
    writer.write(get(b"/a").replace(b"GET", b"HEAD") + BYE)
    data = await reader.read()
    first, second = data.split(b"\r\n\r\n", 1)
    assert b"Content-Length: 27\r\n" in first + b"\r\n"
    assert second.startswith(b"HTTP/1.1 200")
    writer.close()


@pytest.mark.parametrize(("method", "has_length"), [(b"GET", True), (b"HEAD", False)])
async def test_an_empty_answer_says_what_it_is_and_to_head_no_length(
    server: Server, method: bytes, has_length: bool
) -> None:
    reader, writer = await server.open()
    writer.write(get(b"/empty").replace(b"GET", method) + BYE)
    head, _, rest = (await reader.read()).partition(b"\r\n\r\n")
    assert rest.startswith(b"HTTP/1.1 200")
    assert b"Content-Type: application/octet-stream" in head
    assert (b"Content-Length" in head) == has_length
    writer.close()


@pytest.mark.parametrize("last", [BYE, get(b"/a", b"Connection: close")])
async def test_close_is_said_and_done(server: Server, last: bytes) -> None:
    found = await server.talk(post(b"abc") + last)
    assert [answer.headers.get("connection") for answer in found] == [None, "close"]


async def test_nothing_is_answered_after_the_last(fast: Server) -> None:
    assert len(await fast.talk(post(b"abc") + get(b"/a", b"Connection: close") + post(b"never"))) == 2


async def test_what_the_heads_of_answers_say(fast: Server) -> None:
    (told, _) = await fast.talk(get() + BYE)
    assert list(told.headers) == ["content-type", "x-way", "server", "date", "content-length"]
    assert re.fullmatch(r"\w{3}, \d\d \w{3} \d{4} \d\d:\d\d:\d\d GMT", told.headers["date"])
    assert told.headers["server"] == "tensorgate"


# ----------------------------------------------------------------------------------------------------- what goes wrong


@pytest.mark.parametrize("path", [b"/bug", b"/split"])
async def test_a_bug_costs_its_own_request_only(server: Server, caplog: pytest.LogCaptureFixture, path: bytes) -> None:
    caplog.set_level(logging.CRITICAL)
    (answer,) = await server.talk(get(path) + get())
    assert (answer.status, answer.headers["connection"]) == (500, "close")
    assert b"secret" not in answer.body
    assert len(await server.talk(get() + BYE)) == 2


@pytest.mark.parametrize("size", [LIMIT + 1, 3_000_000, 40_000_000])
async def test_a_body_that_is_too_large_is_refused_while_it_is_sent(server: Server, size: int) -> None:
    head, _, _ = post(b"").partition(b"\r\n\r\n")
    head = head.replace(b": 0", b": %d" % size) + b"\r\n\r\n"
    reader, writer = await server.open()
    writer.write(head)
    answer = await reader.readuntil(b"bytes")
    assert answer.startswith(b"HTTP/1.1 413")
    for _ in range(0, size, 1_000_000):
        writer.write(bytes(min(1_000_000, size)))
        await writer.drain()
    writer.close()


async def test_a_body_that_is_too_large_and_here(fast: Server) -> None:
    (answer,) = await fast.talk(post(b"x" * (LIMIT + 1)) + get())
    assert (answer.status, answer.headers["connection"]) == (413, "close")


@pytest.mark.parametrize("path", [b"/big", b"/bigstream"])
async def test_a_slow_reader_gets_everything_and_holds_up_what_follows(server: Server, path: bytes) -> None:
    reader, writer = await server.open()
    writer.write(get(path) + BYE)
    await until(lambda: server.echo.begun)
    await stays(lambda: server.echo.begun == [path.decode()])
    data = bytearray()
    while more := await reader.read(1 << 16):
        data += more
        if len(data) < 1_000_000:
            await steps()
    first, second = answers(bytes(data))
    assert first.body == b"".join(BIG)
    assert second.body == b"bye"
    writer.close()


async def test_reading_ahead_is_bounded(fast: Server) -> None:
    reader, writer = await fast.open()
    writer.write(get(b"/wait"))
    count = 200_000
    writer.write(get() * count + BYE)
    await until(lambda: fast.echo.begun)
    (connection,) = fast.listener._clients.open  # type: ignore[union-attr]
    await settles(lambda: len(connection._ahead))
    assert len(connection._ahead) <= 2 * READ_BYTES
    assert fast.echo.begun == ["/wait"]
    fast.echo.go_on.set()
    begun = await reader.readuntil(b"\r\n\r\n")
    assert begun.startswith(b"HTTP/1.1 200")
    writer.transport.abort()


async def gone(server: Server) -> None:
    await until(lambda: not server.listener._clients.open)  # type: ignore[union-attr]


async def given_up(server: Server, clock: Clock) -> None:
    """Move the clock on until the server has closed every connection."""
    begun = clock()
    while server.listener._clients.open:  # type: ignore[union-attr]
        await clock.advance(QUICK.sweep)
        assert clock() - begun < 2


async def slowly(server: Server, clock: Clock, *parts: bytes, pause: float) -> list[Answer]:
    """The answers to these parts, with pauses by the clock between them, until the server closes."""
    reader, writer = await server.open()
    data = bytearray()

    async def hear() -> None:
        with contextlib.suppress(ConnectionError):
            while more := await reader.read(1 << 20):
                data.extend(more)

    hearing = asyncio.create_task(hear())
    for part in parts:
        if not writer.is_closing():
            writer.write(part)
        await clock.advance(pause / 2)
        await clock.advance(pause / 2)
    while not hearing.done():
        await clock.advance(QUICK.sweep)
    writer.close()
    return answers(bytes(data))


@pytest.mark.parametrize("part", [b"", b"POST /a HT", post(b"x" * 100_000)[:50_000], post(b"abc")[:-1]])
async def test_a_client_that_leaves_in_the_middle_of_its_request(fast: Server, part: bytes) -> None:
    _, writer = await fast.open()
    writer.write(part)
    await until(lambda: fast.listener.traffic().connections)
    await steps()
    writer.transport.abort()
    await gone(fast)
    assert fast.echo.begun == []


@pytest.mark.parametrize("path", [b"/wait", b"/big", b"/bigstream"])
async def test_a_client_that_leaves_in_the_middle_of_its_answer(fast: Server, path: bytes) -> None:
    _, writer = await fast.open()
    writer.write(get(path))
    await until(lambda: fast.echo.begun)
    await settles(lambda: fast.listener.traffic().sent)
    writer.transport.abort()
    await gone(fast)
    await until(lambda: fast.echo.cancelled)
    assert fast.echo.cancelled == 1
    assert len(await fast.talk(get() + BYE)) == 2


async def test_a_client_that_leaves_before_its_request_began_to_wait(fast: Server) -> None:
    """The task is cancelled before its first step: the request must still hear of it."""
    _, writer = await fast.open()
    writer.write(get(b"/wait"))
    await fast.echo.asked.wait()
    for connection in list(fast.listener._clients.open):  # type: ignore[union-attr]
        connection.connection_lost(None)
    await until(lambda: fast.echo.cancelled)
    assert fast.echo.cancelled == 1
    writer.close()


@pytest.mark.parametrize(
    ("parts", "count"),
    [([], 0), ([b"POST /a"], 0), ([post(b"x" * 9)[:-1]], 0), ([post(b"abc")], 1), ([post(b"a"), b"GET"], 1)],
)
async def test_patience_ends(start: Start, parts: list[bytes], count: int, clock: Clock) -> None:
    server: Server = await start(timeouts=QUICK)
    begun = clock()
    assert len(await slowly(server, clock, *parts, pause=0.05)) == count
    assert 0.15 < clock() - begun < 0.5
    await gone(server)


async def test_patience_is_with_heads_and_not_with_their_bytes(start: Start, clock: Clock) -> None:
    server: Server = await start(timeouts=QUICK)
    found = await slowly(server, clock, *(bytes([byte]) for byte in get() * 2), pause=0.02)
    assert found == []


async def test_patience_is_with_bodies_that_come_on(start: Start, clock: Clock) -> None:
    server: Server = await start(timeouts=QUICK)
    request = post(b"x" * 10)
    found = await slowly(server, clock, request[:-10], *([b"x"] * 10), BYE, pause=0.1)
    assert [answer.status for answer in found] == [200, 200]


async def test_patience_with_a_client_that_never_reads_nor_ends(start: Start, clock: Clock) -> None:
    server: Server = await start(timeouts=QUICK)
    reader, writer = await server.open()
    writer.write(post(b"").replace(b": 0", b": 90000000"))
    assert (await reader.readline()).startswith(b"HTTP/1.1 413")
    await given_up(server, clock)
    writer.close()


@pytest.mark.parametrize("path", [b"/big", b"/bigstream"])
async def test_patience_with_answers_that_nobody_takes(start: Start, path: bytes, clock: Clock) -> None:
    server: Server = await start(timeouts=QUICK)
    _, writer = await server.open()
    writer.write(get(path))
    await until(lambda: server.echo.begun)
    await given_up(server, clock)
    writer.close()


@pytest.mark.parametrize("path", [b"/big", b"/bigstream"])
async def test_patience_is_with_readers_that_go_on(start: Start, path: bytes, clock: Clock) -> None:
    """8 MB at 5 MB/s: longer than the patience with a reader that takes nothing."""
    server: Server = await start(timeouts=replace(QUICK, answer=0.6))
    reader, writer = await server.open(buffer_bytes=1 << 16)
    begun, count = clock(), 0
    try:
        writer.write(get(path))
        while count < 8_000_000:
            await clock.advance(0.01)
            due = min(int(5_000_000 * (clock() - begun)), 8_000_000) - count
            await reader.readexactly(due)
            count += due
    finally:
        writer.close()
    assert clock() - begun > 1.5


# ------------------------------------------------------------------------------------------------------------- the end


@pytest.mark.parametrize("request_", [get(b"/wait"), CHUNKED.replace(b"/a", b"/wait")])
async def test_the_end_waits_for_what_is_being_answered(start: Start, request_: bytes) -> None:
    server: Server = await start(grace=600)
    idle = await server.open()
    used = await server.open()
    used[1].write(get())
    await used[0].readuntil(b"null]")
    server.echo.asked.clear()
    running = await server.open()
    running[1].write(request_)
    half = await server.open()
    half[1].write(post(b"abc")[:-1])
    await server.echo.asked.wait()
    stopping = asyncio.create_task(server.listener.stop())
    for reader, _ in (idle, used):
        assert await reader.read() == b""
    with pytest.raises(ConnectionRefusedError):
        await server.open()
    assert not stopping.done()
    server.echo.go_on.set()
    half[1].write(b"c")
    for reader, _ in (running, half):
        (answer,) = answers(await reader.read())
        assert (answer.status, answer.headers["connection"]) == (200, "close")
    await stopping
    for _, writer in (idle, used, running, half):
        writer.close()


@pytest.mark.parametrize("request_", [get(b"/wait"), CHUNKED.replace(b"/a", b"/wait")])
async def test_the_end_does_not_wait_for_ever(start: Start, request_: bytes, clock: Clock) -> None:
    server: Server = await start(grace=0.4)
    reader, writer = await server.open()
    writer.write(request_)
    await server.echo.asked.wait()
    begun = clock()
    stopping = asyncio.create_task(server.listener.stop())
    while not stopping.done():
        await clock.advance(0.05)
    assert 0.35 < clock() - begun < 0.75
    with contextlib.suppress(ConnectionError):
        assert await reader.read() == b""
    assert server.echo.cancelled == 1
    writer.close()


@pytest.mark.parametrize("request_", [get(), CHUNKED])
async def test_clients_go_with_their_next_answer(start: Start, request_: bytes) -> None:
    """Before the end, whoever comes is answered, and told not to come again by this connection."""
    server: Server = await start(grace=5)
    used = await server.open()
    used[1].write(request_)
    await used[0].readuntil(b"null]" if request_ == get() else b"]")
    server.listener.drain()
    fresh = await server.open()
    for reader, writer in (used, fresh):
        writer.write(request_)
        (answer,) = answers(await reader.read())
        assert (answer.status, answer.headers["connection"]) == (200, "close")
        writer.close()


@pytest.mark.parametrize("request_", [get(), CHUNKED])
async def test_who_asks_just_before_the_end_is_answered(start: Start, request_: bytes) -> None:
    """On a connection that is idle and about to be closed, and on one that has just been made."""
    server: Server = await start(grace=5)
    used = await server.open()
    used[1].write(request_)
    await used[0].readuntil(b"null]" if request_ == get() else b"]")
    fresh = await server.open()
    stopping = asyncio.create_task(server.listener.stop())
    await asyncio.sleep(0)
    for reader, writer in (used, fresh):
        writer.write(request_)
        (answer,) = answers(await reader.read())
        assert (answer.status, answer.headers["connection"]) == (200, "close")
        writer.close()
    await stopping


async def test_a_head_that_has_begun_before_the_end(start: Start, clock: Clock) -> None:
    """It is answered if it comes soon, and not waited for long."""
    server: Server = await start(grace=600)
    soon, never = await server.open(), await server.open()
    for _, writer in (soon, never):
        writer.write(get()[:-2])
    await until(lambda: server.listener.traffic().connections == 2)
    await steps()
    stopping = asyncio.create_task(server.listener.stop())
    await clock.advance(0.2)
    soon[1].write(get()[-2:])
    (answer,) = answers(await soon[0].read())
    assert (answer.status, answer.headers["connection"]) == (200, "close")
    assert not stopping.done()
    await clock.advance(3)
    assert await never[0].read() == b""
    await until(stopping.done)
    for _, writer in (soon, never):
        writer.close()

"""A stream of another server is the same to the byte, whether its pieces are passed on as they come or each is a reply
that whoever waits for it sends; however the server cuts it, and however slowly the caller reads.
"""

from __future__ import annotations

import http.client
import json
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from typing import Any, Final

import pytest
import yaml
from relays import listening
from rig import server
from serving import Gateway
from waiting import wait_until

pytestmark = pytest.mark.timeout(120)

PLAIN: Final = {"plain": "passed_pieces", "short": "", "aiohttp": "http_fast_path"}
"""Without which shortcut each gateway is."""
HEAD: Final = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n"
)
EVENT: Final = b'data: {"choices":[{"index":0,"delta":{"content":"word"}}]}\n\n'
PAUSE_S: Final = 2e-3
LARGE: Final = b"x" * (200 << 10)


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


END: Final = b"0\r\n\r\n"
STREAMS: Final[dict[str, Sequence[bytes]]] = {
    "event by event": [HEAD, *[chunk(EVENT)] * 20, END],
    "with the head": [HEAD + chunk(EVENT) * 3, chunk(EVENT) * 2 + END],
    "cut anywhere": [(HEAD + chunk(EVENT) * 5 + END)[at : at + 7] for at in range(0, 700, 7)],
    "a chunk in many pieces": [HEAD, b"%x\r\n" % len(LARGE), LARGE[:1], LARGE[1:70_000], LARGE[70_000:], b"\r\n", END],
    "large ones": [HEAD, *[chunk(LARGE)] * 40, END],
    "until it closes": [b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n", EVENT, EVENT, EVENT],
    "of a known length": [
        b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % (3 * len(EVENT)),
        EVENT,
        EVENT,
        EVENT,
    ],
    "an error": [
        b'HTTP/1.1 429 Too Many Requests\r\nConnection: close\r\nContent-Length: 23\r\n\r\n{"error":{"message":"x"}}'
    ],
    "broken off": [HEAD, chunk(EVENT), chunk(EVENT), b"41\r\ndata: "],
    "no chunk": [HEAD, chunk(EVENT), b"what is this\r\n"],
}
"""What the server sends, each piece by itself."""


class Upstream:
    """Answers each POST with the stream that its path names, and then closes."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.left = 0
        """How many callers have gone before the end."""
        self._answering: list[threading.Thread] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """Behind its callers."""
        self._listener.close()
        for each in self._answering:
            each.join()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                here, _ = self._listener.accept()
                thread = threading.Thread(target=self._serve, args=(here,), daemon=True)
                self._answering.append(thread)
                thread.start()

    def _serve(self, here: socket.socket) -> None:
        with here, suppress(OSError):
            here.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            asked = b""
            while b"\r\n\r\n" not in asked:
                if not (data := here.recv(1 << 16)):
                    return
                asked += data
            if asked.startswith(b"GET"):
                listing = b'{"object":"list","data":[{"id":"m"}]}'
                here.sendall(
                    b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % len(listing) + listing
                )
                return
            head, _, body = asked.partition(b"\r\n\r\n")
            length = next(int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
            while len(body) < length:
                body += here.recv(1 << 16)
            self._answer(here, json.loads(body)["messages"][0]["content"])

    def _answer(self, here: socket.socket, name: str) -> None:
        if name == "endless":
            here.sendall(HEAD)
            try:
                while True:
                    here.sendall(chunk(EVENT))
                    time.sleep(PAUSE_S)  # real time: so that each piece comes by itself
            except OSError:
                self.left += 1
            return
        for piece in STREAMS[name]:
            here.sendall(piece)
            time.sleep(PAUSE_S)  # real time: so that each piece comes by itself


class World:
    def __init__(self, upstream: Upstream, gateways: dict[str, Gateway]) -> None:
        self.upstream = upstream
        self.gateways = gateways


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("passed")
    upstream = Upstream()
    address = f"http://127.0.0.1:{upstream.port}/v1"
    model = {"backend": "remote", "upstream": {"dialect": "openai", "address": address, "model": "m"}}
    with ExitStack() as stack:
        stack.callback(upstream.close)
        gateways = {}
        for name, plain in PLAIN.items():
            file = folder / f"{name}.yaml"
            file.write_text(yaml.safe_dump({"listen": listening(), "models": {"here": model}}))
            gateways[name] = stack.enter_context(server(file, name, plain))
        for each in gateways.values():
            each.wait_until_ready()
        yield World(upstream, gateways)
        for each in gateways.values():
            assert "Traceback" not in each.said, each.said


def asked(gateway: Gateway, name: str) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
    connection = http.client.HTTPConnection("127.0.0.1", gateway.port, timeout=30)
    connection.connect()
    connection.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 256 << 10)
    body = {"model": "here", "stream": True, "messages": [{"role": "user", "content": name}]}
    connection.request("POST", "/openai/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"})
    return connection, connection.getresponse()


def read(gateway: Gateway, name: str, pause_s: float = 0.0) -> Any:
    """Status, content type, body, and whether that has its end."""
    connection, reply = asked(gateway, name)
    body, is_whole = b"", True
    try:
        while data := reply.read1(1 << 14):
            body += data
            if pause_s:
                time.sleep(pause_s)  # real time: a slow reader
    except (http.client.HTTPException, ConnectionError) as error:
        is_whole = False
        body += getattr(error, "partial", b"")
    reply.close()
    connection.close()
    return reply.status, reply.getheader("content-type"), body, is_whole


@pytest.mark.parametrize("name", STREAMS)
def test_the_same_by_every_way(world: World, name: str) -> None:
    answers = {way: read(gateway, name) for way, gateway in world.gateways.items()}
    assert answers["short"] == answers["plain"] == answers["aiohttp"]
    status, _, body, is_whole = answers["short"]
    assert (status, is_whole) == (429 if name == "an error" else 200, name not in ("broken off", "no chunk")) or (
        b"error" in body
    )


def test_who_reads_slowly_gets_all_of_it(world: World) -> None:
    """The pieces wait here, and then there."""
    for gateway in world.gateways.values():
        assert read(gateway, "large ones", pause_s=5e-4)[2:] == (LARGE * 40, True)


def test_who_leaves_takes_the_call_along(world: World) -> None:
    for gateway in world.gateways.values():
        before = world.upstream.left
        connection, reply = asked(gateway, "endless")
        assert reply.read(len(EVENT) * 3) == EVENT * 3
        reply.close()
        connection.close()
        wait_until(lambda before=before: world.upstream.left == before + 1)

"""What a gateway adds to each piece of a stream that another server says, and how soon that server learns of a caller
that has left.

    python -m benchmarks.text_latency [--pause-ms 20] [--chunks 300]

The server tells in each piece when it said it; one caller reads, directly and through the gateway in turns.
"""
# ruff: noqa: T201 - a command speaks by print

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from statistics import median
from typing import NamedTuple

import uvloop
import yaml

HOST, PORT = "127.0.0.1", 18077
ROUNDS, LEAVING = 3, 20
PATH = "/openai/v1/chat/completions"
TOLD = b'data: {"t":'
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
LISTING = b'{"object":"list","data":[{"id":"m"}]}'


class Seen(NamedTuple):
    """Of one stream, in microseconds: how old a piece was, and how long after the one before it came."""

    p50: float
    p99: float
    between: float


class Upstream:
    """Says a piece, waits, and says the next one, until it has said enough or its caller has left."""

    def __init__(self, pause_s: float, chunks: int) -> None:
        self._pause_s = pause_s
        self._chunks = chunks
        self.left_at = 0.0
        """When the last caller that left was known to have."""

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                asked = await reader.readuntil(b"\r\n\r\n")
                lines = asked.lower().split(b"\r\n")
                length = next((int(line[15:]) for line in lines if line[:15] == b"content-length:"), 0)
                await reader.readexactly(length)
                if asked.startswith(b"POST"):
                    break
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(LISTING), LISTING))
            writer.write(HEAD)
            leaves = asyncio.ensure_future(self._watch(reader))
            for _ in range(self._chunks):
                if leaves.done():
                    break
                data = TOLD + b'%d,"choices":[{"index":0,"delta":{"content":"word"}}]}\n\n' % time.perf_counter_ns()
                writer.write(b"%x\r\n%b\r\n" % (len(data), data))
                await asyncio.sleep(self._pause_s)
            if not leaves.done():
                leaves.cancel()
                writer.write(b"0\r\n\r\n")
        writer.close()

    async def _watch(self, reader: asyncio.StreamReader) -> None:
        with suppress(ConnectionError):
            await reader.read(1)
        self.left_at = time.perf_counter()


async def ask(port: int, pieces: int) -> tuple[Seen, float]:
    """Read so many pieces, and leave -> what was seen, and when it left."""
    reader, writer = await asyncio.open_connection(HOST, port)
    body = json.dumps({"model": "here", "stream": True, "messages": [{"role": "user", "content": "x"}]}).encode()
    head = f"POST {PATH} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body)
    ages: list[float] = []
    came: list[int] = []
    while len(ages) < pieces:
        line = await reader.readline()
        now = time.perf_counter_ns()
        if line.startswith(TOLD):
            ages.append((now - int(line[len(TOLD) : line.index(b",")])) / 1e3)
            came.append(now)
        elif not line:
            raise SystemExit("the stream ended too early")
    left_at = time.perf_counter()
    writer.transport.abort()
    between = (came[-1] - came[0]) / max(1, len(came) - 1) / 1e3
    return Seen(median(ages), sorted(ages)[int(len(ages) * 0.99)], between), left_at


async def compare(options: argparse.Namespace) -> None:
    upstream = Upstream(options.pause_ms / 1e3, options.chunks)
    server = await asyncio.start_server(upstream.answer, HOST, 0)
    direct = server.sockets[0].getsockname()[1]
    there = {"dialect": "openai", "address": f"http://{HOST}:{direct}/v1", "model": "m"}
    config = {
        "listen": {"http": [{"bind": f"{HOST}:{PORT}"}], "grpc": []},
        "models": {"here": {"backend": "remote", "upstream": there}},
    }
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "gateway.yaml"
        file.write_text(yaml.safe_dump(config))
        serve = [sys.executable, "-m", "tensorgate", "serve", str(file), "--log-level", "warning"]
        gateway = subprocess.Popen(serve, stdout=subprocess.DEVNULL)  # noqa: S603, ASYNC220 - before any is measured
        try:
            await until_ready()
            seen: dict[str, list[Seen]] = {"direct": [], "relayed": []}
            for _ in range(ROUNDS):
                for name, port in (("direct", direct), ("relayed", PORT)):
                    seen[name].append((await ask(port, options.chunks))[0])
            for name, rounds in seen.items():
                best = Seen(*map(min, zip(*rounds, strict=True)))
                print(f"{name:8} {best.p50:7.0f} us old, p99 {best.p99:7.0f}; one every {best.between / 1e3:7.3f} ms")
            after = []
            for _ in range(LEAVING):
                _, left_at = await ask(PORT, min(5, options.chunks))
                while upstream.left_at < left_at:  # noqa: ASYNC110 - an event would tell of those before, too
                    await asyncio.sleep(0)
                after.append((upstream.left_at - left_at) * 1e3)
            print(f"a caller that leaves is known there after {median(after):.2f} ms, at most {max(after):.2f}")
        finally:
            gateway.terminate()
            gateway.wait()


async def until_ready() -> None:
    for _ in range(600):
        with suppress(OSError):
            reader, writer = await asyncio.open_connection(HOST, PORT)
            writer.write(b"GET /readyz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            answer = await reader.read(64)
            writer.close()
            if b" 200 " in answer:
                return
        await asyncio.sleep(0.1)
    raise SystemExit("the gateway is not ready")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.text_latency",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--pause-ms", type=float, default=20.0, help="between two pieces; default: 20")
    parser.add_argument("--chunks", type=int, default=300, help="pieces of a stream; default: 300")
    uvloop.run(compare(parser.parse_args(arguments)))


if __name__ == "__main__":
    main()

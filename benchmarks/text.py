"""What texts cost: streams passed on, streams of a model here, and vectors, each beside the plain loop that does it.

    python -m benchmarks.text relay         a stream of a mock upstream, passed on by the gateway, by aiohttp by hand,
                                            and by a loop that moves bytes and knows no HTTP: the least there is
                                            [--pause-ms 2: between two chunks of a stream]
    python -m benchmarks.text writer        64 streams of the demo's writer, beside its own loop, and beside aiohttp by
                                            hand: the model in a thread, an event for each piece
                                            [--own-process: the model computes beside the gateway, which has the other
                                            core, too]
    python -m benchmarks.text embeddings    texts as vectors, beside a session that gets packed batches
                                            [--model FOLDER: 1/model.onnx and tokenizer.json; the demo's by default;
                                            --texts 1: of one request; 64 callers at once, or as many as ask for 256]

The servers have one core, whoever asks has another; all take turns, and of each the best turn counts. `us` is the
processor time of the server that is measured, per chunk, piece or text.
"""
# ruff: noqa: T201 - a command speaks by print

from __future__ import annotations

import argparse
import asyncio
import importlib
import json
import os
import random
import sys
import tempfile
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple, cast

import numpy as np
import onnxruntime
import orjson
import uvloop
import yaml
from aiohttp import ClientSession, web
from tokenizers import Tokenizer

from benchmarks.servers import HOST, Server, running

ROOT = Path(__file__).parents[1]
DEMO = ROOT / "config/demo/models"
SERVED_CORE, ASKING_CORE = 0, 1
UPSTREAM_PORT, GATEWAY_PORT, BARE_PORT, FLOOR_PORT = 18050, 18051, 18052, 18053
CHUNKS, STREAMS = 200, 64
WRITERS, PIECES = 64, 64
TEXTS = 64
CHUNK = b"data: " + json.dumps(
    {"id": "chatcmpl-1", "object": "chat.completion.chunk", "choices": [{"index": 0, "delta": {"content": " word"}}]}
).encode() + b"\n\n"  # fmt: skip


class Turn(NamedTuple):
    """What one turn came to: units a second, and microseconds of the server's processor for each."""

    rate: float
    us: float


# ----------------------------------------------------------------------------------------------------- the other sides


async def mock(port: int, pause_s: float) -> None:
    """An upstream that says CHUNKS chunks, each in a write of its own, and ends."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        framed = b"%x\r\n%b\r\n" % (len(CHUNK), CHUNK)
        head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
        listing = b'{"object":"list","data":[{"id":"m"}]}'
        while True:
            try:
                asked = await reader.readuntil(b"\r\n\r\n")
            except (asyncio.IncompleteReadError, ConnectionError):
                return
            length = next(
                (int(line[15:]) for line in asked.lower().split(b"\r\n") if line[:15] == b"content-length:"), 0
            )
            await reader.readexactly(length)
            if asked.startswith(b"GET"):
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(listing), listing))
                continue
            writer.write(head)
            for _ in range(CHUNKS):
                writer.write(framed)
                await asyncio.sleep(pause_s)  # so that each leaves by itself
            writer.write(b"0\r\n\r\n")

    server = await asyncio.start_server(answer, HOST, port)
    await server.serve_forever()


async def bare(port: int, upstream_port: int) -> None:
    """A relay as one writes it with aiohttp."""
    session = ClientSession()

    async def relay(request: web.Request) -> web.StreamResponse:
        body = await request.json()
        body["model"] = "m"
        url = f"http://{HOST}:{upstream_port}/v1/chat/completions"
        async with session.post(url, json=body) as reply:
            answer = web.StreamResponse(status=reply.status, headers={"Content-Type": reply.headers["Content-Type"]})
            await answer.prepare(request)
            async for piece in reply.content.iter_any():
                await answer.write(piece)
            await answer.write_eof()
            return answer

    await serve_by_hand(port, "/openai/v1/chat/completions", relay)


async def serve_by_hand(
    port: int, path: str, answer: Callable[[web.Request], Coroutine[Any, Any, web.StreamResponse]]
) -> None:
    """One address of aiohttp's, for ever."""
    app = web.Application()
    app.router.add_post(path, answer)
    app.router.add_get("/{any:.*}", ready)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, HOST, port).start()
    await asyncio.Event().wait()


async def bare_writer(port: int) -> None:
    """The demo's writer as one serves it with aiohttp: one text after the other in a thread, an event a piece."""
    writer, model = demo_writer()
    thread, loop = ThreadPoolExecutor(1), asyncio.get_running_loop()

    def write(asked: dict[str, Any], give: Callable[[str | None], object]) -> None:
        wish = writer.Wish(max_tokens=asked["max_tokens"], seed=asked["seed"])
        for piece in model.write(model.prompt(asked["prompt"].encode()), wish):
            loop.call_soon_threadsafe(give, piece)
        loop.call_soon_threadsafe(give, None)

    async def answer(request: web.Request) -> web.StreamResponse:
        asked, pieces = await request.json(), asyncio.Queue[str | None]()
        reply = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await reply.prepare(request)
        thread.submit(write, asked, pieces.put_nowait)
        while (piece := await pieces.get()) is not None:
            choice = {"index": 0, "text": piece, "logprobs": None, "finish_reason": None}
            told = {"id": "cmpl-1", "object": "text_completion", "created": 0, "model": "writer", "choices": [choice]}
            await reply.write(b"data: %b\n\n" % orjson.dumps(told))
        await reply.write(b"data: [DONE]\n\n")
        return reply

    await serve_by_hand(port, "/openai/v1/completions", answer)


def demo_writer() -> tuple[Any, Any]:
    """The module of the demo's writer, and the model."""
    sys.path.insert(0, str(DEMO))
    writer = importlib.import_module("writer")  # a file of the demo
    return writer, writer.Writer(SimpleNamespace(path=DEMO))


class _There(asyncio.Protocol):
    """A connection to the upstream: what comes goes to the caller, in the same step."""

    def __init__(self, caller: asyncio.Transport) -> None:
        self._caller = caller

    def data_received(self, data: bytes) -> None:
        self._caller.write(data)
        if data.endswith(b"0\r\n\r\n"):
            self._caller.close()


class _Here(asyncio.Protocol):
    """A caller."""

    def __init__(self, upstream_port: int) -> None:
        self._port = upstream_port

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._caller = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        if data.startswith(b"GET"):
            self._caller.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
        else:
            self._asking = asyncio.ensure_future(self._ask(data))

    async def _ask(self, data: bytes) -> None:
        connected = asyncio.get_running_loop().create_connection(lambda: _There(self._caller), HOST, self._port)
        transport, _ = await connected
        transport.write(data.replace(b"Connection: close\r\n", b""))


async def floor(port: int, upstream_port: int) -> None:
    """Reading and writing alone: nothing is parsed, counted or held back, and nobody is waited for."""
    server = await asyncio.get_running_loop().create_server(lambda: _Here(upstream_port), HOST, port)
    await server.serve_forever()


async def ready(request: web.Request) -> web.Response:
    return web.Response()


async def read_stream(port: int, path: str, body: bytes, mark: bytes) -> int:
    """Ask for a stream, and count what it says."""
    reader, writer = await asyncio.open_connection(HOST, port)
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    writer.write(head.encode() + body)
    found, rest = 0, b""
    while data := await reader.read(1 << 16):
        rest += data
        found += rest.count(mark)
        rest = rest[rest.rfind(mark) + len(mark) :] if mark in rest else rest[-len(mark) :]
    writer.close()
    return found


def asked(server: Server, ask: Callable[[], Coroutine[Any, Any, int]], seconds: float, at_once: int) -> Turn:
    """So many callers, one request after the other each."""

    async def turn() -> Turn:
        before, begun = server.cpu_us(), time.perf_counter()
        until = begun + seconds

        async def caller() -> int:
            units = 0
            while time.perf_counter() < until:
                units += await ask()
            return units

        units = sum(await asyncio.gather(*[caller() for _ in range(at_once)]))
        return Turn(units / (time.perf_counter() - begun), (server.cpu_us() - before) / units)

    return uvloop.run(turn())


# ----------------------------------------------------------------------------------------------------------- contests


def gateway(stack: ExitStack, models: dict[str, Any], cores: int | set[int] = SERVED_CORE) -> Server:
    """A gateway with these models, on the served core."""
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
    file = folder / "gateway.yaml"
    listen = {"http": [{"bind": f"{HOST}:{GATEWAY_PORT}"}], "grpc": []}
    file.write_text(yaml.safe_dump({"listen": listen, "models": models}))
    command = [sys.executable, "-m", "tensorgate", "serve", str(file), "--log-level", "warning"]
    return stack.enter_context(running("gateway", command, GATEWAY_PORT, cores))


def relay_contest(stack: ExitStack, options: argparse.Namespace) -> dict[str, Callable[[], Turn]]:
    again = [sys.executable, "-m", "benchmarks.text"]
    upstream = [*again, "mock", "--port", str(UPSTREAM_PORT), "--pause-ms", str(options.pause_ms)]
    stack.enter_context(running("upstream", upstream, UPSTREAM_PORT, ASKING_CORE))
    address = f"http://{HOST}:{UPSTREAM_PORT}/v1"
    model = {"backend": "remote", "upstream": {"dialect": "openai", "address": address, "model": "m"}}
    ours = gateway(stack, {"here": model})
    by_hand = [*again, "bare", "--port", str(BARE_PORT)]
    theirs = stack.enter_context(running("aiohttp", by_hand, BARE_PORT, SERVED_CORE))
    bytes_alone = [*again, "floor", "--port", str(FLOOR_PORT)]
    least = stack.enter_context(running("floor", bytes_alone, FLOOR_PORT, SERVED_CORE))
    body = json.dumps({"model": "here", "stream": True, "messages": [{"role": "user", "content": "hi"}]}).encode()

    def contender(server: Server, port: int) -> Callable[[], Turn]:
        path = "/openai/v1/chat/completions"
        return lambda: asked(server, lambda: read_stream(port, path, body, b"data: "), options.seconds, STREAMS)

    return {
        "gateway": contender(ours, GATEWAY_PORT),
        "aiohttp by hand": contender(theirs, BARE_PORT),
        "bytes alone": contender(least, FLOOR_PORT),
    }


def writer_contest(stack: ExitStack, options: argparse.Namespace) -> dict[str, Callable[[], Turn]]:
    demo = yaml.safe_load((ROOT / "config/demo.yaml").read_text())["models"]["writer"]
    text = {key: str(ROOT / "config" / value) if key != "kind" else value for key, value in demo["text"].items()}
    demo |= {"path": str(ROOT / "config" / demo["path"]), "text": text, "instances": 1}
    if options.own_process:
        demo["process"] = "own"
    del demo["example"]
    server = gateway(stack, {"writer": demo}, {SERVED_CORE, ASKING_CORE} if options.own_process else SERVED_CORE)
    asked_for = {"model": "writer", "prompt": "In the beginning", "max_tokens": PIECES, "seed": 1, "stream": True}
    body, path = json.dumps(asked_for).encode(), "/openai/v1/completions"

    by_hand = [sys.executable, "-m", "benchmarks.text", "bare-writer", "--port", str(BARE_PORT)]
    theirs = stack.enter_context(running("aiohttp", by_hand, BARE_PORT, SERVED_CORE))

    def streams(server: Server, port: int) -> Callable[[], Turn]:
        return lambda: asked(server, lambda: read_stream(port, path, body, b'"text":"'), options.seconds, WRITERS)

    return {
        "gateway": streams(server, GATEWAY_PORT),
        "the model's own loop": lambda: alone(options.seconds),
        "aiohttp by hand": streams(theirs, BARE_PORT),
    }


def alone(seconds: float) -> Turn:
    """The writer in this process, on the served core, one text after the other."""
    writer, model = demo_writer()
    os.sched_setaffinity(0, {SERVED_CORE})
    try:
        prompt = model.prompt(b"In the beginning")
        pieces, begun = 0, time.perf_counter()
        while time.perf_counter() < begun + seconds:
            pieces += sum(1 for _ in model.write(prompt, writer.Wish(max_tokens=PIECES, seed=1)))
        took = time.perf_counter() - begun
    finally:
        os.sched_setaffinity(0, {ASKING_CORE})
    return Turn(pieces / took, took * 1e6 / pieces)


def embeddings_contest(stack: ExitStack, options: argparse.Namespace) -> dict[str, Callable[[], Turn]]:
    folder: Path = options.model
    tokenizer = folder / "tokenizer.json"
    verses = (ROOT / "config/demo/verses.txt").read_text().splitlines()
    random.Random(1).shuffle(verses)  # noqa: S311 - so that any few of them have much the same lengths
    text = {"kind": "embedding", "tokenizer": str(tokenizer), "pooling": "mean", "max_tokens": 256, "truncation": True}
    model = {"backend": "onnx", "path": str(folder), "max_batch_size": 32, "intra_op_threads": 1, "text": text}
    server = gateway(stack, {"embedder": model})
    bodies = [
        json.dumps(
            {"model": "embedder", "input": [*verses, *verses][at : at + options.texts], "encoding_format": "base64"}
        ).encode()
        for at in range(len(verses))
    ]
    turn = iter(range(1 << 40))

    async def one() -> int:
        body = bodies[next(turn) * options.texts % len(bodies)]
        return await read_stream(GATEWAY_PORT, "/openai/v1/embeddings", body, b'"embedding":')

    session_options = onnxruntime.SessionOptions()
    session_options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(folder / "1/model.onnx", session_options, providers=["CPUExecutionProvider"])
    pieces = Tokenizer.from_file(str(tokenizer))
    pieces.enable_padding()
    pieces.enable_truncation(256)

    def by_hand() -> Turn:
        os.sched_setaffinity(0, {SERVED_CORE})
        try:
            texts, begun, at = 0, time.perf_counter(), 0
            while time.perf_counter() < begun + options.seconds:
                some = [verses[(at + number) % len(verses)] for number in range(32)]
                at += 32
                packed(session, pieces, some)
                texts += len(some)
            took = time.perf_counter() - begun
        finally:
            os.sched_setaffinity(0, {ASKING_CORE})
        return Turn(texts / took, took * 1e6 / texts)

    return {
        "gateway": lambda: asked(server, one, options.seconds, max(1, min(TEXTS, 256 // options.texts))),
        "packed batches by hand": by_hand,
    }


def packed(session: Any, pieces: Any, texts: Sequence[str]) -> Any:
    """Tokens of all, padded; one run; the mean of each text's, of length 1."""
    encoded = pieces.encode_batch(list(texts))
    given = {
        "input_ids": np.array([each.ids for each in encoded]),
        "attention_mask": np.array([each.attention_mask for each in encoded]),
        "token_type_ids": np.array([each.type_ids for each in encoded]),
    }
    wanted = {each.name for each in session.get_inputs()}
    (vectors,) = session.run(None, {name: array for name, array in given.items() if name in wanted})
    mask = given["attention_mask"][..., None]
    sums = (vectors * mask).sum(1)
    return sums / np.linalg.norm(sums, axis=1, keepdims=True)


CONTESTS = {"relay": relay_contest, "writer": writer_contest, "embeddings": embeddings_contest}
HELPERS: Mapping[str, Callable[[argparse.Namespace], Coroutine[Any, Any, None]]] = {
    "mock": lambda options: mock(options.port, options.pause_ms / 1e3),
    "bare": lambda options: bare(options.port, UPSTREAM_PORT),
    "bare-writer": lambda options: bare_writer(options.port),
    "floor": lambda options: floor(options.port, UPSTREAM_PORT),
}
"""Servers that a contest starts."""
UNITS = {"relay": "chunks", "writer": "pieces", "embeddings": "texts"}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.text", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("contest", choices=[*CONTESTS, *HELPERS])
    parser.add_argument("--rounds", type=int, default=5, help="turns of each, of which the best counts; default: 5")
    parser.add_argument("--seconds", type=float, default=3.0, help="length of one turn; default: 3")
    parser.add_argument("--pause-ms", type=float, default=2.0, help="between two chunks; default: 2")
    parser.add_argument("--own-process", action="store_true", help="the writer computes in a process of its own")
    parser.add_argument("--texts", type=int, default=1, help="texts of a request for vectors; default: 1")
    parser.add_argument("--model", type=Path, default=DEMO / "embedder", help="an encoder's folder")
    parser.add_argument("--port", type=int, default=0, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.contest in HELPERS:
        uvloop.run(HELPERS[options.contest](options))
        return
    os.sched_setaffinity(0, {ASKING_CORE})
    with ExitStack() as stack:
        contenders = CONTESTS[options.contest](stack, options)
        turns: dict[str, list[Turn]] = {name: [] for name in contenders}
        for _ in range(options.rounds):
            for name, turn in contenders.items():
                turns[name].append(turn())
    best = {name: Turn(max(each.rate for each in some), min(each.us for each in some)) for name, some in turns.items()}
    unit = f"{UNITS[options.contest]}/s"
    for name, came_to in best.items():
        print(f"{name:24} {came_to.rate:10,.0f} {unit} {came_to.us:8.1f} us")
    ours, theirs, *_ = best.values()
    print(f"{'ratio':24} {ours.rate / theirs.rate:10.2f} {'':{len(unit)}} {ours.us / theirs.us:8.2f}")


if __name__ == "__main__":
    main()

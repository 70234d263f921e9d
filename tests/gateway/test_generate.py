"""Generate from socket to model and back: a model that does as the text says, with the fast path and without it."""

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Iterator, Sequence
from types import SimpleNamespace
from typing import Any, Literal

import aiohttp
import numpy as np
import pytest
from waiting import settles, until

from tensorgate.adapters.open_inference import KIND
from tensorgate.adapters.open_inference.options import OpenInferenceOptions
from tensorgate.gateway.contract.canonical import InferRequest, InferResponse, ModelRef
from tensorgate.gateway.contract.errors import GatewayError, InvalidArgument, ModelFailed, ModelNotFound
from tensorgate.gateway.contract.execution import Computation, Executor, Observe
from tensorgate.gateway.contract.questions import ServerDescription
from tensorgate.gateway.contract.tensor import BYTES, TensorSpec
from tensorgate.gateway.engine.model import Model, ModelSpec
from tensorgate.gateway.engine.queue import LevelPolicy, QueuePolicy
from tensorgate.gateway.engine.scheduler_metrics import SchedulerMetrics
from tensorgate.gateway.monitoring.metrics import MetricsCollector
from tensorgate.gateway.service import Service
from tensorgate.gateway.transport.http_server import HttpLimits, HttpListener
from tensorgate.gateway.transport.sockets import bind

SSE = "text/event-stream; charset=utf-8"
NOT_ONE = (
    "generate expects model to produce exactly 1 response, use generate stream for model that generates various "
    "number of responses"
)
IMPATIENCE_S = 50.0


class Talker(Executor):
    """Says the words of its input one by one. Some words it obeys: `wait` for the test, `forever`, `big`, errors."""

    runs_on: Literal["thread", "loop"] = "thread"
    inline = False
    merges = True

    def __init__(self, decoupled: bool) -> None:
        self.decoupled = decoupled
        self.go_on = threading.Event()
        self.said = 0
        self.closed = threading.Event()
        self.requests: list[InferRequest] = []

    def run(self, requests: Sequence[InferRequest], observe: Observe) -> Iterator[Sequence[InferResponse]]:
        self.requests.append(requests[0])
        try:
            for word in self._words(requests[0].inputs["text_input"][0].decode()):
                outputs = {} if word == "nothing" else {"text_output": np.array([word.encode()], object)}
                self.said += 1
                yield [InferResponse(outputs)]
        finally:
            self.closed.set()

    def _words(self, text: str) -> Iterator[str]:
        for word in text.split():
            if word == "wait":
                assert self.go_on.wait(IMPATIENCE_S)
            elif word in FAILURES:
                raise FAILURES[word]
            elif word in ("forever", "big"):
                while True:
                    yield "x" * (1 if word == "forever" else 50_000)
            else:
                yield word

    def arun(self, requests: Sequence[InferRequest], observe: Observe) -> AsyncIterator[Sequence[InferResponse]]:
        raise NotImplementedError

    def close(self) -> None:
        pass


FAILURES: dict[str, GatewayError] = {"bug": ModelFailed("KeyError: 'x'"), "wrong": InvalidArgument("no such word")}


class House:
    """A gateway whose models are talkers: `stream` is decoupled, `once` is not, `full` has no room."""

    def __init__(self) -> None:
        self.talkers = {name: Talker(decoupled=name != "once") for name in ("stream", "once", "full")}
        self.models = {name: self._model(name, talker) for name, talker in self.talkers.items()}
        models = dict.fromkeys(self.models)
        config: Any = SimpleNamespace(readiness="strict", expose_model_errors=True, routes={}, models=models)
        engine: Any = SimpleNamespace(
            is_complete=lambda: True,
            regions=None,
            ask=None,
            resolve=self.resolve,
            resolver=lambda call: None,
            discovers=False,
            check_forward=lambda call, ref: None,
            forwarded=lambda kind, named: None,
            named=lambda call: ("", ""),
        )
        self.metrics = MetricsCollector()
        self.service = Service(config, engine, self.metrics, ServerDescription("t", "1"))
        self.port = 0

    @staticmethod
    def _model(name: str, talker: Talker) -> Model:
        inputs, outputs = (TensorSpec("text_input", BYTES, (1,)),), (TensorSpec("text_output", BYTES, (1,)),)
        computation = Computation((talker,), inputs, outputs, inputs, 0, "python", "cpu")
        plan = ModelSpec(QueuePolicy(level=LevelPolicy(max_queue_size=0 if name == "full" else 8)))
        return Model(name, 1, (1,), computation, plan, SchedulerMetrics(lambda *_: None, lambda _: None))

    def resolve(self, ref: ModelRef) -> Any:
        if ref.name not in self.models:
            raise ModelNotFound(ref.name)
        return self.models[ref.name].view

    @property
    def talker(self) -> Talker:
        return self.talkers["stream"]


@pytest.fixture(params=[True, False], ids=["fast path", "aiohttp"])
async def house(request: pytest.FixtureRequest) -> AsyncIterator[House]:
    house = House()
    limits = HttpLimits(100_000, 100_000, grace_seconds=0.1)
    dialects = [KIND.make(OpenInferenceOptions())]
    listener = HttpListener(house.service, dialects, {}, limits, fast_path=request.param)
    sock = bind("127.0.0.1", 0)
    await listener.start(sock)
    house.port = sock.getsockname()[1]
    yield house
    await listener.stop()
    for model in house.models.values():
        async with asyncio.timeout(IMPATIENCE_S):
            await model.close()


@pytest.fixture
async def http(house: House) -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(f"http://127.0.0.1:{house.port}") as session:
        yield session


def event(word: str, model: str = "stream") -> bytes:
    return f'data: {{"model_name":"{model}","model_version":"1","text_output":"{word}"}}\n\n'.encode()


def say(text: str, model: str = "stream", action: str = "generate_stream", version: str = "1.1") -> bytes:
    body = json.dumps({"text_input": text}).encode()
    head = f"POST /v2/models/{model}/{action} HTTP/{version}\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


async def connect(house: House, **options: Any) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection("127.0.0.1", house.port, **options)


# ---------------------------------------------------------------------------------------------------------------- once

ONCE = [
    ("hello", "stream", 200, {"text_output": "hello"}),
    ("hello", "once", 200, {"text_output": "hello"}),
    ("hello nothing", "stream", 200, {"text_output": "hello"}),
    ("", "stream", 400, {"error": NOT_ONE}),
    ("nothing", "stream", 400, {"error": NOT_ONE}),
    ("hello world", "stream", 400, {"error": NOT_ONE}),
    ("forever", "stream", 400, {"error": NOT_ONE}),
    ("bug", "stream", 500, {"error": "KeyError: 'x'"}),
    ("hello bug", "stream", 500, {"error": "KeyError: 'x'"}),
    ("wrong", "once", 400, {"error": "no such word"}),
    ("hello", "none", 404, {"error": "Request for unknown model: 'none' is not found"}),
]


@pytest.mark.parametrize(("text", "model", "status", "told"), ONCE)
async def test_generate(
    http: aiohttp.ClientSession, house: House, text: str, model: str, status: int, told: dict[str, str]
) -> None:
    async with http.post(f"/v2/models/{model}/generate", json={"text_input": text}) as answer:
        assert (answer.status, answer.headers["Content-Type"]) == (status, "application/json")
        names = {} if "error" in told else {"model_name": model, "model_version": "1"}
        assert json.loads(await answer.read()) == names | told
    if model in house.talkers:
        await until(house.talkers[model].closed.is_set)


# -------------------------------------------------------------------------------------------------------------- stream

STREAMS = [
    ("one two three", 200, event("one") + event("two") + event("three")),
    ("one nothing", 200, event("one")),
    ("", 200, b""),
    ("one wrong", 200, event("one") + b'data: {"error":"no such word"}\n\n'),
    ("one bug two", 200, event("one") + b'data: {"error":"KeyError: \'x\'"}\n\n'),
    ("bug", 500, b'data: {"error":"KeyError: \'x\'"}\n\n'),
    ("wrong", 400, b'data: {"error":"no such word"}\n\n'),
]


@pytest.mark.parametrize(("text", "status", "body"), STREAMS)
async def test_generate_stream(http: aiohttp.ClientSession, text: str, status: int, body: bytes) -> None:
    async with http.post("/v2/models/stream/generate_stream", json={"text_input": text}) as answer:
        assert (answer.status, answer.headers["Content-Type"]) == (status, SSE)
        assert await answer.read() == body


async def test_an_ordinary_model_streams_its_only_answer(http: aiohttp.ClientSession) -> None:
    async with http.post("/v2/models/once/versions/1/generate_stream", json={"text_input": "hello"}) as answer:
        assert (answer.status, answer.headers["Content-Type"]) == (200, SSE)
        assert await answer.read() == event("hello", "once")


BEFORE = [
    ("POST", "none", {"text_input": "a"}, 404, "Request for unknown model: 'none' is not found"),
    ("POST", "full", {"text_input": "a"}, 503, "[request id: <id_unknown>] Exceeds maximum queue size"),
    ("POST", "stream", [], 400, "attempt to get members for non-object"),
    ("POST", "stream", {"text_input": "a" * 100_000}, 400, None),
    ("GET", "stream", None, 405, "Method Not Allowed"),
    ("PUT", "stream", {}, 405, "Method Not Allowed"),
]


@pytest.mark.parametrize(("method", "model", "body", "status", "error"), BEFORE)
async def test_what_fails_before_a_model_has_it_is_plain_json(
    http: aiohttp.ClientSession, method: str, model: str, body: Any, status: int, error: str | None
) -> None:
    async with http.request(method, f"/v2/models/{model}/generate_stream", json=body) as answer:
        assert (answer.status, answer.headers["Content-Type"]) == (status, "application/json")
        told = json.loads(await answer.read())
        assert list(told) == ["error"]
        assert error is None or told["error"] == error


@pytest.mark.parametrize("action", ["generate", "generate_stream"])
async def test_head_is_not_allowed(http: aiohttp.ClientSession, action: str) -> None:
    async with http.head(f"/v2/models/stream/{action}") as answer:
        assert (answer.status, await answer.read()) == (405, b"")


async def test_an_event_is_sent_as_soon_as_the_model_has_it(house: House) -> None:
    reader, writer = await connect(house)
    writer.write(say("one wait two"))
    async with asyncio.timeout(IMPATIENCE_S):
        head = await reader.readuntil(b"\r\n\r\n")
        first = await reader.readuntil(b"\n\n\r\n")
    assert b"Transfer-Encoding: chunked" in head
    assert first == b"%x\r\n%b\r\n" % (len(event("one")), event("one"))
    assert (house.talker.said, house.talker.closed.is_set()) == (1, False)
    house.talker.go_on.set()
    async with asyncio.timeout(IMPATIENCE_S):
        rest = await reader.readuntil(b"0\r\n\r\n")
    assert rest == b"%x\r\n%b\r\n0\r\n\r\n" % (len(event("two")), event("two"))
    writer.close()


@pytest.mark.parametrize(("text", "status", "body"), [("wait", 504, b""), ("one wait", 200, event("one"))])
async def test_a_deadline_ends_a_stream_in_words(
    http: aiohttp.ClientSession, house: House, text: str, status: int, body: bytes
) -> None:
    headers = {"x-request-timeout-ms": "600"}
    async with http.post("/v2/models/stream/generate_stream", json={"text_input": text}, headers=headers) as answer:
        assert (answer.status, answer.headers["Content-Type"]) == (status, SSE)
        assert await answer.read() == body + b'data: {"error":"Deadline Exceeded"}\n\n'
    house.talker.go_on.set()
    await until(house.talker.closed.is_set)


async def test_a_client_that_leaves_stops_the_model(house: House) -> None:
    reader, writer = await connect(house)
    writer.write(say("forever"))
    async with asyncio.timeout(IMPATIENCE_S):
        await reader.readuntil(b"\n\n")
    writer.close()
    await until(house.talker.closed.is_set)
    [request] = house.talker.requests
    assert request.cancellation.cut
    await until(lambda: b'code="CANCELLED",dialect="open_inference",method="generate_stream"' in house.metrics.render())


async def test_a_client_that_leaves_before_the_first_event_stops_the_model(house: House) -> None:
    _, writer = await connect(house)
    writer.write(say("wait forever"))
    await until(lambda: house.talker.requests)
    writer.close()
    await until(lambda: house.talker.requests[0].cancellation.cut)
    house.talker.go_on.set()
    await until(house.talker.closed.is_set)
    assert house.talker.said <= 1


async def test_a_reader_that_is_slow_pauses_the_model(house: House) -> None:
    reader, writer = await connect(house, limit=1000)
    writer.write(say("big"))
    await until(lambda: house.talker.said > 30)
    await settles(lambda: house.talker.said)  # until nothing fits any more: sockets hold megabytes
    said = house.talker.said
    assert 50_000 * said < 32 << 20
    for _ in range(100):
        await reader.readexactly(50_000)
    await until(lambda: house.talker.said > said + 50)
    writer.close()
    await until(house.talker.closed.is_set)


async def test_the_next_request_waits_behind_a_stream(house: House) -> None:
    reader, writer = await connect(house)
    live = b"GET /v2/health/live HTTP/1.1\r\nHost: x\r\n\r\n"
    writer.write(say("one two") + live + say("", action="generate_stream") + say("bug") + live)
    writer.write(live.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"))
    async with asyncio.timeout(IMPATIENCE_S):
        data = await reader.read(-1)
    order = [b"text_output", b"0\r\n\r\nHTTP/1.1 200", b'"live":true', SSE.encode(), b"500", b'{"error"', b'"live"']
    places = [data.find(order[0])]
    for mark in order[1:]:
        places.append(data.find(mark, places[-1] + 1))
    assert -1 not in places
    assert data.count(b"HTTP/1.1 ") == 6
    writer.close()


async def test_http_1_0_gets_events_without_chunks(house: House) -> None:
    reader, writer = await connect(house)
    writer.write(say("one two", version="1.0"))
    async with asyncio.timeout(IMPATIENCE_S):
        head, _, body = (await reader.read(-1)).partition(b"\r\n\r\n")
    assert b" 200 " in head.partition(b"\r\n")[0]
    assert b"chunked" not in head.lower()
    assert body == event("one") + event("two")
    writer.close()

"""Both transports under one dialect made for the purpose: what a fourth dialect needs is what stands here."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import aiohttp
import grpc
import numpy as np
import pytest
from waiting import until

from tensorgate.adapters.protobuf.messages import pool
from tensorgate.adapters.tf_serving.metrics import TfServingMetricsOptions, make_metrics
from tensorgate.gateway.contract.call import Call, Reply
from tensorgate.gateway.contract.canonical import InferRequest, InferResponse, ModelRef, ModelView
from tensorgate.gateway.contract.dialect import Dialect, Endpoint, Match, Resolve
from tensorgate.gateway.contract.errors import (
    BodyTooLarge,
    Code,
    DeadlineExceeded,
    GatewayError,
    Internal,
    InvalidArgument,
    MethodNotAllowed,
    ModelDecoupled,
    ModelNotFound,
    RouteNotFound,
)
from tensorgate.gateway.contract.questions import ServerDescription, ServerLive
from tensorgate.gateway.monitoring.metrics import MetricsCollector
from tensorgate.gateway.service import Service
from tensorgate.gateway.telemetry.call_outcome import CallOutcome
from tensorgate.gateway.transport.grpc_exchange import GrpcLimits
from tensorgate.gateway.transport.grpc_port import GrpcListener
from tensorgate.gateway.transport.http_server import (
    HttpLimits,
    HttpListener,
    dialect_metrics_page,
    metrics_page,
    probe_page,
)
from tensorgate.gateway.transport.sockets import bind

LIMIT = 100_000
BINARY_LIMIT = 200_000


class Handle:
    """Answers with the numbers one by one if asked to stream, with all of them otherwise."""

    def __init__(self) -> None:
        self.left = 0
        self.submitted = 0

    def answer(self, request: InferRequest) -> Any:
        self.submitted += 1
        return Answering(self._answers(request), self)

    async def _answers(self, request: InferRequest) -> AsyncIterator[InferResponse]:
        x = request.inputs["x"]
        if x.size and x[0] == -1:
            await asyncio.Event().wait()
        if request.deadline is not None and request.deadline < time.monotonic() + 0.05:
            raise DeadlineExceeded("m")
        for part in np.split(x, x.size) if request.stream else [x]:
            yield InferResponse({"y": part})
            await asyncio.sleep(0)
        if request.stream and x[-1] == 13:
            raise InvalidArgument("unlucky")


class Answering:
    """Answers that note whether somebody left before the last."""

    def __init__(self, answers: AsyncIterator[InferResponse], handle: Handle) -> None:
        self._answers = answers
        self._handle = handle
        self._over = False

    def __aiter__(self) -> AsyncIterator[InferResponse]:
        return self

    async def __anext__(self) -> InferResponse:
        try:
            return await anext(self._answers)
        except (StopAsyncIteration, GatewayError):
            self._over = True
            raise

    def abandon(self) -> None:
        self._handle.left += not self._over


HTTP_STATUS: dict[type[GatewayError], int] = {
    InvalidArgument: 400,
    ModelNotFound: 404,
    RouteNotFound: 404,
    MethodNotAllowed: 405,
    BodyTooLarge: 413,
    Internal: 500,
    ModelDecoupled: 501,
    DeadlineExceeded: 504,
}


def make_dialect() -> Dialect:  # noqa: C901  (seven functions in one place, to be read as a whole)
    """The wire format: float64 in, float64 out; an error is its kind and text."""

    def decode(call: Call, resolve: Resolve) -> InferRequest:
        if call.body == b"bug":
            raise ZeroDivisionError("secret")
        if len(call.body) % 8:
            raise InvalidArgument(f"{len(call.body)} bytes are no doubles")
        view = resolve(ModelRef(call.args.get("model", call.headers.get("model", "m"))))
        inputs = {"x": np.frombuffer(call.body, np.float64)}
        streams = call.headers.get("stream") == "1"
        view = replace(view, decoupled=streams or view.decoupled)
        return InferRequest(view, inputs, deadline=call.deadline, stream=streams)

    def refuse(call: Call, resolve: Resolve) -> Any:
        raise (MethodNotAllowed if call.raw_target == "/plain/m" else RouteNotFound)(call.method, call.raw_target)

    def encode(answer: InferResponse, request: InferRequest) -> Reply:
        return Reply(body=[b"y=", answer.outputs["y"].tobytes()], streamed=request.stream)

    def encode_error(error: GatewayError, call: Call) -> Reply:
        text = f"{type(error).__name__} {error}"
        return Reply(
            text.encode(), HTTP_STATUS[type(error)], {"Content-Type": "text/plain"}, grpc_code=error.code, message=text
        )

    def live(call: Call, resolve: Resolve) -> ServerLive:
        return ServerLive()

    infer = Endpoint("/plain/{model}", "infer", decode, encode, encode_error)
    stream = Endpoint("/plain/{model}/stream", "stream", decode, encode, encode_error, stream="server")
    nothing = Endpoint("*", "unknown", refuse, encode, encode_error)
    alive = Endpoint("/plain", "live", live, lambda answer, question: Reply(str(answer).encode()), encode_error)

    def match(method: str, target: str) -> Match:
        parts = target.strip("/").split("/")
        if target == "/plain":
            return Match(alive)
        if method == "POST" and len(parts) > 1:
            return Match(stream if parts[-1] == "stream" else infer, {"model": parts[1]})
        return Match(nothing)

    methods = {"/p.Plain/Infer": infer, "/p.Plain/Stream": stream, "/p.Plain/Live": alive}
    chat = Endpoint("/p.Plain/Chat", "chat", decode, encode, encode_error, stream="bidi")
    grpc = {**methods, "/p.Plain/Chat": chat}
    return Dialect("plain", "Plain", "/plain", match, lambda view: None, grpc, binary_header="tensor-bytes")


class Watching:
    """What a dialect's own metrics are told: method, question, what the caller was told, whether the model's time is
    part of the whole.
    """

    def __init__(self) -> None:
        self.told: list[tuple[str, type, Code, bool]] = []

    def ended(self, outcome: CallOutcome) -> None:
        has_run = 0 < outcome.model_seconds < outcome.seconds
        self.told.append((outcome.endpoint.method, type(outcome.question), outcome.reply_code, has_run))

    def teller(self, model: str, method: str, transport: str) -> None:
        """None: one by one."""

    def settle(self) -> None:
        """Nothing waits."""

    def forget(self, model: str) -> None:
        raise AssertionError("nothing is unloaded here")


class House:
    """A running gateway around one model that is only a handle."""

    def __init__(self, view: ModelView) -> None:
        self.view = view
        config: Any = SimpleNamespace(readiness="strict", expose_model_errors=True, routes={}, models={"m": None})
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
            names=lambda: ("m",),
            is_public=lambda name: name == "m",
        )
        self.watch = Watching()
        counters: Any = {"plain": self.watch}
        self.metrics = MetricsCollector(call_counters=counters)
        self.service = Service(config, engine, self.metrics, ServerDescription("t", "1"))
        self.url = ""
        self.grpc_port = 0

    def resolve(self, ref: ModelRef) -> ModelView:
        if ref.name != "m":
            raise ModelNotFound(ref.name)
        return self.view

    def counted(self) -> dict[str, float]:
        lines = [line for line in self.metrics.render().decode().splitlines() if line.startswith("tensorgate_requests")]
        return {line.split("{")[1].split("}")[0]: float(line.split()[-1]) for line in lines}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Everything about HTTP holds with the fast path and without it."""
    if "house" in metafunc.fixturenames and "channel" not in metafunc.fixturenames:
        metafunc.parametrize("fast_path", [True, False], ids=["fast path", "aiohttp"], indirect=True)


@pytest.fixture
def fast_path(request: pytest.FixtureRequest) -> bool:
    return bool(getattr(request, "param", True))


OWN_METRICS: Any = make_metrics(TfServingMetricsOptions(tf_serving_path="/plain/metrics"))


@pytest.fixture
async def house(make_model: Callable[..., ModelView], fast_path: bool) -> AsyncIterator[House]:
    view = make_model("m", {"x": ("FP64", (-1,))}, {"y": ("FP64", (-1,))}, handle=Handle())
    house = House(view)
    other = make_dialect()
    dialects = [make_dialect(), Dialect("other", "Other", "/other", other.match, lambda view: None)]
    pages = {
        "/metrics": metrics_page(house.metrics.page),
        "/readyz": probe_page(lambda: house.service.ready),
        "/plain/metrics": dialect_metrics_page(lambda target: OWN_METRICS.calls.answer(target, ())),
    }
    limits = HttpLimits(LIMIT, BINARY_LIMIT, grace_seconds=0.1)
    listener = HttpListener(house.service, dialects, pages, limits, fast_path=fast_path)
    sock = bind("127.0.0.1", 0)
    await listener.start(sock)
    house.url = f"http://127.0.0.1:{sock.getsockname()[1]}"
    rpc = GrpcListener(house.service, dialects, GrpcLimits(LIMIT), pool())
    sock = bind("127.0.0.1", 0)
    house.grpc_port = sock.getsockname()[1]
    await rpc.start(sock)
    yield house
    await rpc.stop(0)
    await listener.stop()


@pytest.fixture
async def http(house: House) -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(house.url) as session:
        yield session


NUMBERS = np.array([1.5, 2.5])


async def test_a_call_and_its_reply(house: House, http: aiohttp.ClientSession) -> None:
    async with http.post("/plain/m", data=NUMBERS.tobytes()) as answer:
        assert (answer.status, await answer.read()) == (200, b"y=" + NUMBERS.tobytes())
        assert answer.headers["Server"] == "tensorgate"
    async with http.get("/plain") as answer:
        assert await answer.read() == b"True"
    key = 'code="OK",dialect="plain",method="infer",model="m",transport="http",version="1"'
    assert any(set(key.split(",")) == set(labels.split(",")) for labels in house.counted())


REFUSALS = [
    ("POST", "/plain/m", b"abc", 400, b"InvalidArgument 3 bytes are no doubles"),
    ("POST", "/plain/none", b"", 404, b"ModelNotFound none"),
    ("GET", "/plain/m", None, 405, b"MethodNotAllowed GET /plain/m"),
    ("PUT", "/plain/x/y/z", b"", 404, b"RouteNotFound PUT /plain/x/y/z"),
    ("POST", "/plain/m", b"x" * (LIMIT + 1), 413, b"BodyTooLarge body larger than 100000 bytes"),
    ("POST", "/plain/m", b"bug", 500, b"Internal "),
    ("GET", "/plaindromes", None, 404, b'{"error": "Not Found"}'),
    ("GET", "/", None, 404, b'{"error": "Not Found"}'),
    ("POST", "/metrics", b"", 405, b'{"error": "Method Not Allowed"}'),
]


@pytest.mark.parametrize(("method", "path", "body", "status", "text"), REFUSALS)
async def test_refusals(
    http: aiohttp.ClientSession, method: str, path: str, body: bytes | None, status: int, text: bytes
) -> None:
    async with http.request(method, path, data=body) as answer:
        assert (answer.status, await answer.read()) == (status, text)


async def test_tensors_as_bytes_may_be_larger_than_other_bodies(http: aiohttp.ClientSession) -> None:
    for size, status in ((BINARY_LIMIT, 200), (BINARY_LIMIT + 8, 413)):
        async with http.post("/plain/m", data=bytes(size), headers={"Tensor-Bytes": "1"}) as answer:
            assert answer.status == status
            assert len(await answer.read()) in (size + 2, len("BodyTooLarge body larger than 200000 bytes"))


async def test_unknown_models_are_no_label_values(house: House, http: aiohttp.ClientSession) -> None:
    await http.post("/plain/evil-name", data=b"")
    assert all("evil" not in labels for labels in house.counted())


async def test_a_chunked_body_is_bounded_too(http: aiohttp.ClientSession) -> None:
    async def chunks(count: int) -> AsyncIterator[bytes]:
        for _ in range(count):
            yield bytes(8000)

    async with http.post("/plain/m", data=chunks(10)) as answer:
        assert len(await answer.read()) == 80_002
    async with http.post("/plain/m", data=chunks(13)) as answer:
        assert answer.status == 413


async def test_expect_100_continue(house: House) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", int(house.url.rpartition(":")[2]))
    writer.write(b"POST /plain/m HTTP/1.1\r\nHost: x\r\nContent-Length: 8\r\nExpect: 100-continue\r\n\r\n")
    assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
    writer.write(bytes(8))
    assert (await reader.readline()).startswith(b"HTTP/1.1 200")
    writer.close()


async def test_streams_are_chunked_as_they_come(http: aiohttp.ClientSession) -> None:
    async with http.post("/plain/m/stream", data=np.arange(3.0).tobytes(), headers={"stream": "1"}) as answer:
        chunks = [chunk async for chunk, _ in answer.content.iter_chunks()]
    assert answer.headers["Transfer-Encoding"] == "chunked"
    assert b"".join(chunks) == b"".join(b"y=" + np.float64(n).tobytes() for n in range(3))
    async with http.post("/plain/m/stream", data=np.array([1.0, 13.0]).tobytes(), headers={"stream": "1"}) as answer:
        assert (await answer.read()).endswith(b"InvalidArgument unlucky")


async def test_a_client_that_leaves_abandons_its_request(house: House) -> None:
    handle: Any = house.view.handle
    async with aiohttp.ClientSession(house.url) as http:
        asking = asyncio.ensure_future(http.post("/plain/m", data=np.array([-1.0]).tobytes()))
        await until(lambda: handle.submitted)
        asking.cancel()
        await asyncio.wait([asking])
    await until(lambda: handle.left)
    assert (handle.submitted, handle.left) == (1, 1)
    assert any('code="CANCELLED"' in labels for labels in house.counted())


@pytest.mark.parametrize(
    ("header", "status"), [("1", 504), ("60000", 200), ("soon", 400), ("-1", 400), ("1" * 13, 400)]
)
async def test_the_timeout_header_is_a_deadline(http: aiohttp.ClientSession, header: str, status: int) -> None:
    async with http.post("/plain/m", data=b"", headers={"x-request-timeout-ms": header}) as answer:
        assert answer.status == status


async def test_a_decoupled_model_needs_a_stream(house: House, http: aiohttp.ClientSession) -> None:
    object.__setattr__(house.view, "decoupled", True)
    async with http.post("/plain/m", data=b"") as answer:
        assert answer.status == 501


async def test_the_pages_of_the_house(house: House, http: aiohttp.ClientSession) -> None:
    async with http.get("/readyz") as answer:
        assert answer.status == 503
    house.service.started = True
    async with http.get("/readyz") as answer:
        assert (answer.status, await answer.text()) == (200, "ok\n")
    async with http.get("/metrics") as answer:
        assert answer.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
        assert "tensorgate_request_seconds_bucket" not in await answer.text()


async def test_pages_ignore_a_query(http: aiohttp.ClientSession) -> None:
    async with http.get("/metrics?name=a") as answer:
        assert answer.status == 200
    async with http.post("/metrics?name=a") as answer:
        assert answer.status == 405


@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "DELETE", "OPTIONS"])
async def test_tensorflow_servings_metrics_have_their_path_for_any_method(
    http: aiohttp.ClientSession, method: str
) -> None:
    async with http.request(method, "/plain/metrics") as answer:
        assert (answer.status, answer.headers["Content-Type"]) == (200, "text/plain")
        assert (await answer.read()).startswith(b"# TYPE :tensorflow:serving:request_count counter\n")
    async with http.request(method, "/plain/metrics?name=a") as answer:
        assert (answer.status, answer.headers["Content-Type"]) == (400, "text/plain")
        assert await answer.text() == "Unexpected path: /plain/metrics?name=a. Should be /plain/metrics"
    async with http.head("/plain/metrics") as answer:
        assert (answer.status, await answer.read()) == (200, b"")


async def test_a_dialects_own_metrics_are_told_of_its_calls(house: House, http: aiohttp.ClientSession) -> None:
    for method, path, body in (
        ("POST", "/plain/m", NUMBERS.tobytes()),
        ("GET", "/plain", None),
        ("POST", "/plain/none", b""),
        ("POST", "/plain/m", b"bug"),
        ("POST", "/other/m", b""),
    ):
        async with http.request(method, path, data=body) as answer:
            await answer.read()
    assert house.watch.told == [
        ("infer", InferRequest, Code.OK, True),
        ("live", ServerLive, Code.OK, False),
        ("infer", type(None), Code.NOT_FOUND, False),
        ("infer", type(None), Code.INTERNAL, False),
    ]


@pytest.mark.parametrize(
    "garbage", [b"\x16\x03\x01\x02", b"GET\r\n\r\n", b"POST /plain/m HTTP/1.1\r\nContent-Length: x\r\n\r\n"]
)
async def test_what_is_no_http_is_refused_without_a_traceback(house: House, garbage: bytes) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", int(house.url.rpartition(":")[2]))
    writer.write(garbage)
    writer.write_eof()
    answer = await reader.read()
    assert b"Traceback" not in answer
    assert not answer or answer.startswith((b"HTTP/1.0 400", b"HTTP/1.1 400"))
    writer.close()


def test_a_port_is_never_shared() -> None:
    with bind("127.0.0.1", 0) as first:
        first.listen()
        with pytest.raises(OSError, match="in use"):
            bind("127.0.0.1", first.getsockname()[1])


# ---------------------------------------------------------------------------------------------------------------- gRPC


@pytest.fixture
async def channel(house: House) -> AsyncIterator[Any]:
    async with grpc.aio.insecure_channel(f"127.0.0.1:{house.grpc_port}") as channel:
        yield channel


async def test_grpc_unary(house: House, channel: Any) -> None:
    assert await channel.unary_unary("/p.Plain/Infer")(NUMBERS.tobytes()) == b"y=" + NUMBERS.tobytes()
    assert await channel.unary_unary("/p.Plain/Live")(b"") == b"True"
    assert any('transport="grpc"' in labels for labels in house.counted())


GRPC_REFUSALS = [
    ("Infer", b"abc", (), Code.INVALID_ARGUMENT, "InvalidArgument 3 bytes are no doubles"),
    ("Infer", b"", (("model", "none"),), Code.NOT_FOUND, "ModelNotFound none"),
    ("Infer", b"bug", (), Code.INTERNAL, "Internal "),
    ("Infer", bytes(LIMIT + 8), (), Code.RESOURCE_EXHAUSTED, None),
    ("Nothing", b"", (), Code.UNIMPLEMENTED, None),
]


@pytest.mark.parametrize(("method", "body", "metadata", "code", "text"), GRPC_REFUSALS)
async def test_grpc_refusals(
    channel: Any, method: str, body: bytes, metadata: Any, code: Code, text: str | None
) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await channel.unary_unary(f"/p.Plain/{method}")(body, metadata=metadata)
    assert caught.value.code().value[0] == code
    assert text is None or caught.value.details() == text


async def test_grpc_streams(channel: Any) -> None:
    call = channel.unary_stream("/p.Plain/Stream")(np.arange(3.0).tobytes(), metadata=(("stream", "1"),))
    assert [answer async for answer in call] == [b"y=" + np.float64(n).tobytes() for n in range(3)]
    chat = channel.stream_stream("/p.Plain/Chat")(iter([np.float64(7).tobytes(), np.float64(8).tobytes()]))
    assert [answer async for answer in chat] == [b"y=" + np.float64(n).tobytes() for n in (7, 8)]


async def test_grpc_deadline_and_cancellation_reach_the_model(house: House, channel: Any) -> None:
    handle: Any = house.view.handle
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await channel.unary_unary("/p.Plain/Infer")(np.array([-1.0]).tobytes(), timeout=0.1)
    assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    call = channel.unary_unary("/p.Plain/Infer")(np.array([-1.0]).tobytes())
    asking = asyncio.ensure_future(call.code())
    await until(lambda: handle.submitted == 2)
    call.cancel()
    await until(lambda: handle.left == 2)
    assert await asking is grpc.StatusCode.CANCELLED

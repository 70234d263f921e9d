"""TensorFlow Serving's REST interface as bytes on a socket: request line, headers and body in, the whole answer out."""

import asyncio
import gzip
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
from waiting import Clock, stays, steps, until

from tensorgate.adapters.tf_serving import KIND
from tensorgate.gateway.contract.canonical import InferRequest, InferResponse, ModelRef, ModelView
from tensorgate.gateway.contract.errors import DeadlineExceeded, LabelNotFound, ModelNotFound
from tensorgate.gateway.contract.questions import ServerDescription, VersionStatus
from tensorgate.gateway.local_engine import LocalEngine
from tensorgate.gateway.monitoring.metrics import MetricsCollector
from tensorgate.gateway.service import Service
from tensorgate.gateway.transport import http_server
from tensorgate.gateway.transport.http_server import HttpLimits, HttpListener
from tensorgate.gateway.transport.sockets import bind

LIMIT = 1000


class Answering:
    """One answer: the input, or the deadline where the input is 13; `late` counts who has come to wait for it."""

    late = 0

    def __init__(self, request: InferRequest) -> None:
        self._request: InferRequest | None = request

    def __aiter__(self) -> AsyncIterator[InferResponse]:
        return self

    async def __anext__(self) -> InferResponse:
        request, self._request = self._request, None
        if request is None:
            raise StopAsyncIteration
        x = request.inputs["x"]
        if 13 in x and request.deadline is not None:
            Answering.late += 1
            late = asyncio.Event()
            asyncio.get_running_loop().call_at(request.deadline, late.set)
            await late.wait()
            raise DeadlineExceeded("m")
        return InferResponse({"y": x})

    def abandon(self) -> None:
        pass


@dataclass
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes
    closed: bool


def page(status: str) -> bytes:
    title = status[4:]
    text = f"<HTML><HEAD>\n<TITLE>{status}</TITLE>\n</HEAD><BODY>\n<H1>{title}</H1>\n</BODY></HTML>\n"
    return text.encode()


def error(text: str) -> bytes:
    return f'{{\n    "error": "{text}"\n}}'.encode()


@pytest.fixture
async def listen(make_model: Callable[..., ModelView], monkeypatch: pytest.MonkeyPatch) -> Any:
    view = make_model("m", {"x": ("FP32", None)}, {"y": ("FP32", None)}, handle=SimpleNamespace(answer=Answering))

    def resolve(ref: ModelRef) -> ModelView:
        if ref.label is not None:
            raise LabelNotFound(ref.name, ref.label)
        if ref.name != "m" or ref.version not in (None, 1):
            raise ModelNotFound(ref.name, ref.version)
        return view

    def statuses(name: str, version: int | None) -> tuple[VersionStatus, ...]:
        resolve(ModelRef(name, version))
        return (VersionStatus(1, "AVAILABLE"),)

    config: Any = SimpleNamespace(readiness="strict", expose_model_errors=True, routes={}, models={"m": None})
    repository: Any = SimpleNamespace(
        all_available=lambda: True,
        statuses=statuses,
        snapshot=SimpleNamespace(models={}),
        is_loadable=lambda name: False,
    )
    router: Any = SimpleNamespace(
        resolve=resolve,
        resolver=lambda call: None,
        discovers=False,
        check_forward=lambda call, ref: None,
        forwarded=lambda kind, named: None,
        named=lambda call: ("", ""),
        names=lambda: ("m",),
        is_public=lambda name: name == "m",
        models_behind=lambda n: [n],
    )
    service = Service(config, LocalEngine(repository, router), MetricsCollector(), ServerDescription("t", "1"))
    listeners = []

    async def start(fast_path: bool, **options: Any) -> int:
        dialect = KIND.make(KIND.options(**options))
        limits = HttpLimits(LIMIT, LIMIT, grace_seconds=0.1)
        listener = HttpListener(service, [dialect], {}, limits, fast_path=fast_path)
        sock = bind("127.0.0.1", 0)
        await listener.start(sock)
        listeners.append(listener)
        port: int = sock.getsockname()[1]
        return port

    yield start
    monkeypatch.setattr(http_server, "SETTLE_S", 0.0)  # nobody connects any more
    await asyncio.gather(*(listener.stop() for listener in listeners))


async def talk(port: int, request: bytes) -> Answer:
    """One request, its answer, and whether the connection ends with it."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request)
    async with asyncio.timeout(5):
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            line, *fields = head.decode().splitlines()[:-1]
            if " 100 " not in line:
                break
        headers = {name: value for name, _, value in (field.partition(": ") for field in fields)}
        has_body = not request.startswith(b"HEAD")
        body = await reader.readexactly(int(headers["Content-Length"])) if has_body else b""
    ending = asyncio.ensure_future(reader.read())
    for _ in range(3):
        await steps()
    closed = ending.done() and ending.result() == b""
    ending.cancel()
    writer.close()
    return Answer(int(line.split()[1]), headers, body, closed)


def get(target: str, method: str = "GET", *headers: str) -> bytes:
    return "".join(f"{line}\r\n" for line in (f"{method} {target} HTTP/1.1", "Host: h", *headers, "")).encode()


def post(target: str, body: bytes, *headers: str) -> bytes:
    return get(target, "POST", f"Content-Length: {len(body)}", *headers) + body


ROW = b'{"instances": [1.5]}'
PREDICT = "/v1/models/m:predict"
CHUNKED = get(PREDICT, "POST", "Transfer-Encoding: chunked")
PREDICTIONS = b'{\n    "predictions": [1.5\n    ]\n}'
STATUS = b"""{
 "model_version_status": [
  {
   "version": "1",
   "state": "AVAILABLE",
   "status": {
    "error_code": "OK",
    "error_message": ""
   }
  }
 ]
}
"""
JSON, HTML, NOTHING = "application/json", "text/html", "text/html; charset=ISO-8859-1"
EMPTY = error("JSON Parse error: The document is empty")
NO_M = "Could not find any versions of model "

ROWS: list[tuple[str, bytes, int, str, bytes]] = [
    ("predict", post(PREDICT, ROW), 200, JSON, PREDICTIONS),
    ("prefix in capitals", post("/V1/MODELS/m:predict", ROW), 200, JSON, PREDICTIONS),
    ("version with zeros", post("/v1/models/m/versions/0001:predict", ROW), 200, JSON, PREDICTIONS),
    ("encoded name", post("/v1/models/%6D:predict", ROW), 200, JSON, PREDICTIONS),
    ("headers are ignored", post(PREDICT, ROW, "Content-Type: text/x", "Accept: a/b"), 200, JSON, PREDICTIONS),
    ("no compression", post(PREDICT, ROW, "Accept-Encoding: gzip, br"), 200, JSON, PREDICTIONS),
    ("other encodings", post(PREDICT, ROW, "Content-Encoding: br"), 200, JSON, PREDICTIONS),
    ("gzip in capitals", post(PREDICT, ROW, "Content-Encoding: GZIP"), 200, JSON, PREDICTIONS),
    ("gzip", post(PREDICT, gzip.compress(ROW), "Content-Encoding: gzip"), 200, JSON, PREDICTIONS),
    ("x-gzip", post(PREDICT, gzip.compress(ROW), "Content-Encoding: x-gzip; q=1"), 200, JSON, PREDICTIONS),
    ("gzip that is none", post(PREDICT, ROW, "Content-Encoding: gzip"), 400, JSON, EMPTY),
    ("gzip cut off", post(PREDICT, gzip.compress(ROW)[:-9], "Content-Encoding: gzip"), 400, JSON, EMPTY),
    (
        "gzip of too much",
        post(PREDICT, gzip.compress(bytes(LIMIT + 1)), "Content-Encoding: gzip"),
        413,
        JSON,
        error("Request body is larger than 1000 bytes"),
    ),
    ("chunked", CHUNKED + b"5\r\n" + ROW[:5] + b"\r\nf\r\n" + ROW[5:] + b"\r\n0\r\n\r\n", 200, JSON, PREDICTIONS),
    ("expect", post(PREDICT, ROW, "Expect: 100-continue"), 200, JSON, PREDICTIONS),
    ("no body", post(PREDICT, b""), 400, JSON, EMPTY),
    ("too large", post(PREDICT, bytes(LIMIT + 1)), 413, JSON, error("Request body is larger than 1000 bytes")),
    ("status", get("/v1/models/m"), 200, JSON, STATUS),
    ("status of a version", get("/v1/models/m/versions/1"), 200, JSON, STATUS),
    ("status ignores labels", get("/v1/models/m/labels/any"), 200, JSON, STATUS),
    ("METADATA is status", get("/v1/models/m/METADATA"), 200, JSON, STATUS),
    ("query", get("/v1/models/m?x=1"), 404, JSON, error(f"{NO_M}m?x=1")),
    ("fragment", get("/v1/models/m#x"), 404, JSON, error(f"{NO_M}m#x")),
    ("encoded slash", get("/v1/models/a%2Fb%3Ac+d"), 404, JSON, error(f"{NO_M}a/b:c+d")),
    ("name that is no UTF-8", get("/v1/models/%FFm"), 404, JSON, error(NO_M + "?m").replace(b"?", b"\xff")),
    ("unknown version", get("/v1/models/m/versions/7"), 404, JSON, error("Could not find version 7 of model m")),
    ("metadata", get("/v1/models/o/metadata"), 404, JSON, error("Servable not found for request: Latest(o)")),
    (
        "metadata of a version",
        get("/v1/models/m/versions/7/metadata"),
        404,
        JSON,
        error("Servable not found for request: Specific(m, 7)"),
    ),
    (
        "metadata of a label",
        get("/v1/models/m/labels/l/metadata"),
        400,
        JSON,
        error("Unrecognized servable version label: l"),
    ),
    ("no name", get("/v1/models"), 400, JSON, error("Missing model name in request.")),
    ("unknown thing", get("/v1/x"), 400, JSON, error("Malformed request: GET /v1/x")),
    ("predict with query", post(f"{PREDICT}?x", ROW), 400, JSON, error(f"Malformed request: POST {PREDICT}?x")),
    (
        "capital verb",
        post("/v1/models/m:PREDICT", ROW),
        400,
        JSON,
        error("Malformed request: POST /v1/models/m:PREDICT"),
    ),
    ("get predict", get(PREDICT), 400, JSON, error(f"Malformed request: GET {PREDICT}")),
    ("post status", post("/v1/models/m", b"{}"), 400, JSON, error("Malformed request: POST /v1/models/m")),
    ("put", get("/v1/models/m", "PUT"), 400, JSON, error("Malformed request: PUT /v1/models/m")),
    ("delete", get("/v1/models/m", "DELETE"), 400, JSON, error("Malformed request: DELETE /v1/models/m")),
    ("patch", get(PREDICT, "PATCH"), 400, JSON, error(f"Malformed request: PATCH {PREDICT}")),
    ("head", get("/v1/models/m", "HEAD"), 400, JSON, b""),
    ("version beyond int64", get("/v1/models/m/versions/9223372036854775808"), 400, JSON, b""),
    ("options", get("/v1/any", "OPTIONS", "Origin: http://a"), 200, NOTHING, b""),
    ("options, https", get(PREDICT, "OPTIONS", "Origin: https://a:1"), 200, NOTHING, b""),
    ("options without origin", get(PREDICT, "OPTIONS"), 400, NOTHING, b""),
    ("options from nowhere", get(PREDICT, "OPTIONS", "Origin: null"), 400, NOTHING, b""),
    ("outside", get("/v2/models/m"), 404, HTML, page("404 Not Found")),
    ("the prefix alone", get("/v1"), 404, HTML, page("404 Not Found")),
    ("two slashes", post("//v1/models/m:predict", ROW), 404, HTML, page("404 Not Found")),
    ("illegal", get("/v1/models/{m}"), 400, HTML, page("400 Bad Request")),
    ("illegal escape", get("/v1/models/%zz"), 400, HTML, page("400 Bad Request")),
    ("illegal, and outside", get("/[x]"), 400, HTML, page("400 Bad Request")),
    ("no target", b"GET  HTTP/1.1\r\nHost: h\r\n\r\n", 400, HTML, page("400 Bad Request")),
    ("trace", get("/v1/models/m", "TRACE"), 501, HTML, page("501 Not Implemented")),
    ("connect", get("h:80", "CONNECT"), 501, HTML, page("501 Not Implemented")),
    ("unknown method", get("/v1/models/m", "FETCH"), 501, HTML, page("501 Not Implemented")),
]


@pytest.mark.parametrize("fast_path", [True, False], ids=["fast path", "aiohttp"])
@pytest.mark.parametrize(
    ("request_", "status", "kind", "body"), [row[1:] for row in ROWS], ids=[row[0] for row in ROWS]
)
async def test_the_answer(listen: Any, fast_path: bool, request_: bytes, status: int, kind: str, body: bytes) -> None:
    """Pages of HTML are the last word on their connection, nothing else is, but a body that was not read."""
    answer = await talk(await listen(fast_path), request_)
    assert (answer.status, answer.headers["Content-Type"], answer.body) == (status, kind, body)
    assert answer.closed == (kind == HTML) or status == 413
    assert answer.headers.keys() <= {"Content-Type", "Content-Length", "Date", "Server", "Connection"}


@pytest.mark.parametrize("fast_path", [True, False], ids=["fast path", "aiohttp"])
async def test_connections_live_on(listen: Any, fast_path: bool) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", await listen(fast_path))
    for _ in range(3):
        writer.write(post(PREDICT, b"{") + post(PREDICT, ROW))
        assert b" 400 " in await reader.readuntil(b'offset: 1"\n}')
        assert b" 200 " in await reader.readuntil(PREDICTIONS)
    writer.write(get("/v1/models/m").replace(b"HTTP/1.1", b"HTTP/1.0"))
    assert (await reader.read()).endswith(STATUS)
    writer.close()


CORS = {
    "Access-Control-Allow-Origin": "*",
    "Access-Control-Allow-Methods": "POST, GET",
    "Access-Control-Allow-Headers": "Content-Type",
}


@pytest.mark.parametrize("fast_path", [True, False], ids=["fast path", "aiohttp"])
@pytest.mark.parametrize(("request_", "kind"), [(row[1], row[3]) for row in ROWS], ids=[row[0] for row in ROWS])
async def test_cors_is_on_every_answer_of_the_api(listen: Any, fast_path: bool, request_: bytes, kind: str) -> None:
    port, port_without = await listen(fast_path, cors=True), await listen(fast_path)
    answer, without = await talk(port, request_), await talk(port_without, request_)
    assert (answer.status, answer.body, answer.closed) == (without.status, without.body, without.closed)
    extra = CORS if kind != HTML else {}
    assert answer.headers == {**without.headers, "Date": answer.headers["Date"], **extra}


LATE = (504, error("Timed out waiting for notification"))


@pytest.mark.parametrize("fast_path", [True, False], ids=["fast path", "aiohttp"])
async def test_calls_time_out(listen: Any, fast_path: bool, clock: Clock) -> None:
    late = b'{"instances": [13]}'
    port = await listen(fast_path, timeout_ms=60)

    async def answered_late(port: int, *headers: str) -> None:
        before = Answering.late
        answering = asyncio.create_task(talk(port, post(PREDICT, late, *headers)))
        await until(lambda: Answering.late > before)
        await clock.advance(0.05)
        await stays(lambda: not answering.done())
        await clock.advance(0.01)
        await until(answering.done)
        answer = await answering
        assert (answer.status, answer.body) == LATE

    await answered_late(port)
    assert (await talk(port, post(PREDICT, ROW))).status == 200
    await answered_late(port, "X-Request-Timeout-Ms: 60000")
    for unhurried in (await listen(fast_path), await listen(fast_path, timeout_ms=0)):
        await answered_late(unhurried, "X-Request-Timeout-Ms: 60")
    assert (await talk(unhurried, post(PREDICT, late))).status == 200


def test_options() -> None:
    default: Any = KIND.options()
    assert (default.cors, default.timeout_ms) == (False, 30_000)
    assert KIND.make(KIND.options(timeout_ms=0)).http_timeout_ms == 0

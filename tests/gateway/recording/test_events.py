"""Inferences as CloudEvents."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace
from typing import Any

import pytest
from pydantic import ValidationError
from waiting import wait_until

from tensorgate.gateway.config.observing import EventsConfig, RecordConfig
from tensorgate.gateway.contract.call import Call, Reply
from tensorgate.gateway.contract.errors import Code
from tensorgate.gateway.recording.events import REQUEST, RESPONSE, EventSink, Exchanged
from tensorgate.gateway.recording.recorder import FlightRecorder
from tensorgate.gateway.telemetry.call_outcome import CallOutcome

JSON = {"content-type": "application/json"}
VIEW = SimpleNamespace(name="m", version=3)
ITEM = Exchanged("r-1", "m", 3, 1.5, 2.25, "/v2/models/m/infer", JSON, b"{}", [(JSON, b"[1]")])


class Sink(ThreadingHTTPServer):
    """Keeps what is posted; answers as `status` says."""

    daemon_threads = True

    def __init__(self) -> None:
        self.status = 202
        self.keeps = True
        self.seen: list[tuple[str, Mapping[str, str], bytes]] = []
        self.connections = 0
        sink = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def setup(self) -> None:
                sink.connections += 1
                super().setup()

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                sink.seen.append((self.path, {name.lower(): value for name, value in self.headers.items()}, body))
                self.send_response(sink.status)
                self.send_header("Content-Length", "0")
                if not sink.keeps:
                    self.send_header("Connection", "close")
                self.end_headers()

            def log_message(self, *arguments: Any) -> None:
                pass

        super().__init__(("127.0.0.1", 0), Handler)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/events?x=1"


@pytest.fixture
def sink() -> Iterator[Sink]:
    with Sink() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def send(sink: Sink, *items: Exchanged, **options: Any) -> EventSink:
    events = EventSink(EventsConfig(url=sink.url, **options), "tensorgate")
    for item in items:
        events.take(item, len(item.body))
    events.close()
    return events


@pytest.mark.parametrize("keeps", [True, False])
def test_both_halves_of_an_inference(sink: Sink, keeps: bool) -> None:
    sink.keeps = keeps
    events = send(sink, ITEM, ITEM)
    assert (events.written, events.dropped) == (2, 0)
    assert sink.connections == (1 if keeps else 4)
    common = {
        "ce-specversion": "1.0",
        "ce-id": "r-1",
        "ce-source": "tensorgate",
        "ce-inferenceservicename": "m",
        "ce-component": "predictor",
        "ce-endpoint": "",
        "ce-modelname": "m",
        "ce-modelversion": "3",
        **JSON,
    }
    (path, first, body), (_, second, other), *_ = sink.seen
    assert path == "/events?x=1"
    own = {"host", "accept-encoding", "content-length", "connection"}
    wanted = common | {"ce-type": REQUEST, "ce-time": "1970-01-01T00:00:01.500000Z"}
    assert {name: value for name, value in first.items() if name not in own} == wanted
    wanted = common | {"ce-type": RESPONSE, "ce-time": "1970-01-01T00:00:02.250000Z"}
    assert {name: value for name, value in second.items() if name not in own} == wanted
    assert (body, other) == (b"{}", b"[1]")


@pytest.mark.parametrize(("mode", "kinds"), [("request", [REQUEST]), ("response", [RESPONSE, RESPONSE])])
def test_one_half(sink: Sink, mode: str, kinds: list[str]) -> None:
    send(sink, ITEM._replace(answers=[(JSON, b"1"), (JSON, b"2")]), mode=mode)
    assert [headers["ce-type"] for _, headers, _ in sink.seen] == kinds


def test_what_the_configuration_says_of_events(sink: Sink) -> None:
    send(sink, ITEM, source="http://here/", service="iris", namespace="teams")
    headers = sink.seen[0][1]
    assert (headers["ce-source"], headers["ce-inferenceservicename"]) == ("http://here/", "iris")
    assert headers["ce-namespace"] == "teams"


def test_attributes_are_ascii_and_ids_are_made(sink: Sink) -> None:
    send(sink, ITEM._replace(request_id="", model='a "b"%é\r\nx: 1'))
    headers = sink.seen[0][1]
    assert headers["ce-modelname"] == "a%20%22b%22%25%C3%A9%0D%0Ax:%201"
    assert "x" not in headers
    assert headers["ce-id"] == sink.seen[1][1]["ce-id"] != ""


def test_binary_bodies_keep_what_they_are_read_by(sink: Sink) -> None:
    binary = {"content-type": "application/octet-stream", "inference-header-content-length": "2"}
    send(sink, ITEM._replace(headers=binary, body=b"{}\0\xff"))
    headers, body = sink.seen[0][1:]
    assert body == b"{}\0\xff"
    assert binary.items() <= headers.items()


def test_a_sink_that_refuses_costs_events_and_is_asked_again(sink: Sink, caplog: pytest.LogCaptureFixture) -> None:
    events = EventSink(EventsConfig(url=sink.url, mode="request"), "s")
    sink.status = 503
    for number in range(3):
        events.take(ITEM, 2)
        wait_until(lambda number=number: events.dropped == number + 1)  # type: ignore[misc]
    sink.status = 200
    events.take(ITEM, 2)
    wait_until(lambda: events.written == 1)
    events.close()
    assert [record.message for record in caplog.records if record.levelname == "ERROR"] == [
        f"calls cannot be recorded in {sink.url}: an event was refused: 503 Service Unavailable"
    ]


def test_a_sink_that_is_not_there(caplog: pytest.LogCaptureFixture) -> None:
    events = EventSink(EventsConfig(url="http://127.0.0.1:1/"), "s")
    events.take(ITEM, 2)
    events.close()
    assert (events.written, events.dropped) == (0, 1)
    assert "calls cannot be recorded in http://127.0.0.1:1/: no event was taken: " in caplog.text


@pytest.mark.parametrize("url", ["", "sink", "ftp://x/", "http://", "http:///x", "http://a b/"])
def test_addresses_that_are_none(url: str) -> None:
    with pytest.raises(ValidationError):
        EventsConfig(url=url)


def test_a_record_goes_somewhere() -> None:
    with pytest.raises(ValidationError, match="calls are recorded nowhere: give a file, or events with a url"):
        RecordConfig.model_validate_json(json.dumps({"share": 0.5}))
    assert RecordConfig.model_validate_json(json.dumps({"events": {"url": "https://sink/x"}})).events is not None


class Kept:
    """In place of a sink."""

    written = dropped = 0

    def __init__(self) -> None:
        self.items: list[Exchanged] = []

    def take(self, item: Exchanged, nbytes: int) -> None:
        self.items.append(item)


def exchanged(
    *replies: Reply,
    body: bytes = b"{}",
    code: Code = Code.OK,
    view: Any = VIEW,
    transport: Any = "http",
    **headers: str,
) -> list[Exchanged]:
    """What is sent of a call."""
    kept: Any = Kept()
    config = RecordConfig.model_validate_json(json.dumps({"events": {"url": "http://x/"}, "max_body_bytes": 100}))
    recorder = FlightRecorder(config, None, kept)
    outcome: Any = CallOutcome()
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    outcome.call = Call(body, "POST", "/target", named, transport, request_id="r-1")
    outcome.begun, outcome.code, outcome.endpoint = time.perf_counter(), code, SimpleNamespace(stream="unary")
    outcome.question = SimpleNamespace(view=view) if view is not None else None
    recorder.begin(outcome)
    for reply in replies:
        outcome.recorded.replied(reply)
    recorder.keep(outcome)
    found: list[Exchanged] = kept.items
    return found


def test_what_is_sent_of_a_call() -> None:
    reply = Reply(b"[1]", headers={"Content-Type": "application/json", "X-Other": "1"})
    (item,) = exchanged(reply, content_type="text/plain", authorization="secret")
    assert item[:3] == ("r-1", "m", 3)
    assert item[5:] == ("/target", {"content-type": "text/plain"}, b"{}", [(JSON, b"[1]")])
    assert item.came <= item.ended
    (item,) = exchanged(Reply(b"\1"), Reply(b"\2"), transport="grpc")
    protobuf = {"content-type": "application/grpc+proto"}
    assert (item.headers, item.answers) == (protobuf, [(protobuf, b"\1"), (protobuf, b"\2")])


@pytest.mark.parametrize(
    "call",
    [
        {"view": None},
        {"code": Code.INVALID_ARGUMENT},
        {"body": b"x" * 101},
        {"content_encoding": "gzip"},
    ],
    ids=str,
)
def test_what_is_not_sent(call: dict[str, Any]) -> None:
    assert exchanged(Reply(b"[1]"), **call) == []


def test_answers_that_are_long_or_compressed_are_not_sent() -> None:
    assert exchanged(Reply(b"x" * 101)) == []
    assert exchanged(Reply(b"x", headers={"Content-Encoding": "gzip"})) == []

"""Servers that speak OpenAI's protocol, behind a gateway: what callers send arrives as they sent it, and each piece of
an answer is there when the server has said it.
"""

from __future__ import annotations

import http.client
import json
import queue
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
import yaml
from serving import Answer, Gateway, running
from waiting import wait_until

CHAT = "/openai/v1/chat/completions"
SAYS_WITHIN_S = 20.0
ENDED = None


class Pen:
    """What the mock writes for one stream: the test says each piece, and learns when nobody reads any more."""

    def __init__(self) -> None:
        self.pieces: queue.Queue[bytes | None] = queue.Queue()
        self.left = threading.Event()

    def say(self, document: Any) -> None:
        self.pieces.put(b"data: " + json.dumps(document).encode() + b"\n\n")


class Server(ThreadingHTTPServer):
    """A server whose answers the test decides."""

    daemon_threads = True
    request_queue_size = 64

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.asked: list[tuple[str, str, dict[str, str], bytes]] = []
        self.pens: queue.Queue[Pen] = queue.Queue()
        self.shadow_answer: tuple[int, Any] | None = None
        self.answer: tuple[int, Any] = (200, {"id": "x", "object": "chat.completion", "choices": []})
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/api/v9"


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Server

    def log_message(self, *args: Any) -> None:
        pass

    def do_GET(self) -> None:
        self._send(200, {"object": "list", "data": [{"id": "big/model-7b", "object": "model"}]})

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        headers = {name.lower(): value for name, value in self.headers.items()}
        self.server.asked.append((self.command, self.path, headers, body))
        if not json.loads(body).get("stream"):
            is_shadow = "x-shadow" in headers and self.server.shadow_answer is not None
            self._send(*(self.server.shadow_answer if is_shadow else self.server.answer))
            return
        pen = Pen()
        self.server.pens.put(pen)
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("transfer-encoding", "chunked")
        self.send_header("x-own", "there")
        self.end_headers()
        self._write(pen)

    def _write(self, pen: Pen) -> None:
        self.connection.settimeout(0.02)
        while True:
            try:
                if not self.connection.recv(1):
                    pen.left.set()
                    return
            except TimeoutError:
                pass
            except OSError:
                pen.left.set()
                return
            while not pen.pieces.empty():
                piece = pen.pieces.get()
                if piece is None:
                    self.wfile.write(b"0\r\n\r\n")
                    return
                if piece == b"break":
                    self.connection.close()
                    return
                self.wfile.write(b"%x\r\n%b\r\n" % (len(piece), piece))

    def _send(self, status: int, document: Any) -> None:
        body = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server() as server:
        yield server
        server.shutdown()


@pytest.fixture(scope="module")
def gateway(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    there: Any = {"dialect": "openai", "address": server.address, "model": "big/model-7b"}
    there["headers"] = {"authorization": "Bearer theirs"}
    away = there | {"address": "http://127.0.0.1:9/v1"}
    chat, vectors = there | {"signature": "chat/completions"}, there | {"signature": "embeddings"}
    config = {
        "listen": {"http": [{"bind": "127.0.0.1:0"}], "grpc": [{"bind": "127.0.0.1:0"}]},
        "readiness": "lenient",
        "rate_limits": [{"names": [name], "tokens_per_minute": 30} for name in ("counted", "also_counted")],
        "models": {
            "big": {"backend": "remote", "upstream": there},
            "counted": {"backend": "remote", "upstream": there},
            "also_counted": {"backend": "remote", "upstream": there},
            "other": {"backend": "remote", "upstream": there | {"headers": {"x-shadow": "yes"}}},
            "away": {"backend": "remote", "upstream": away},
            "talker": {"backend": "remote", "upstream": chat, "text": {"kind": "chat", "messages": "messages"}},
            "vectors": {"backend": "remote", "upstream": vectors, "text": {"kind": "embedding"}},
        },
        "upstreams": {"all": {"dialect": "openai", "address": server.address}},
        "routes": {
            "any": {"targets": [{"model": "away"}], "fallback": [{"model": "big"}]},
            "compared": {
                "targets": [{"model": "big"}],
                "mirror": {"to": [{"model": "other"}], "share": 1.0, "samples": {"file": "diffs.jsonl"}},
            },
            "translated": {"targets": [{"model": "away"}], "fallback": [{"model": "talker"}]},
        },
    }
    file = tmp_path_factory.mktemp("openai") / "gateway.yaml"
    file.write_text(yaml.safe_dump(config, sort_keys=False))
    with running(file) as gateway:
        yield gateway
        assert gateway.stop() == 0
        assert "Traceback" not in gateway.said_itself, gateway.said


def ask(gateway: Gateway, body: bytes, path: str = CHAT, **headers: str) -> Answer:
    return gateway.request("POST", path, body, {"Content-Type": "application/json", **headers})


def opened(gateway: Gateway, document: Any, path: str = CHAT) -> tuple[http.client.HTTPConnection, Any]:
    """A stream that has begun."""
    connection = http.client.HTTPConnection("127.0.0.1", gateway.port, timeout=SAYS_WITHIN_S)
    connection.request("POST", path, json.dumps(document), {"Content-Type": "application/json"})
    return connection, document


# What no parser of ours would write like this: order, spacing, numbers that are no double, members that nobody knows.
ODD = (
    b'{ "messages":[{"role":"user","content":"the \\"model\\": x"}],"x_new":{"model":"inner","n":1.50},\n'
    b'"big":123456789012345678901234567890, "model" : "%b","temperature":7e-1,"tools":[{"type":"function"}]}'
)


@pytest.mark.parametrize("path", [CHAT, "/v1/chat/completions", "/v1/responses", "/openai/v1/embeddings?a=b"])
def test_a_body_arrives_as_it_was_sent_but_for_the_models_name(gateway: Gateway, server: Server, path: str) -> None:
    answer = ask(gateway, ODD % b"big", path, Authorization="Bearer mine", **{"X-Trace": "7"})
    assert answer.status == 200, answer.body
    method, target, headers, body = server.asked[-1]
    assert (method, target) == ("POST", "/api/v9/" + path.partition("/v1/")[2])
    assert body == ODD % b"big/model-7b"
    assert headers["authorization"] == "Bearer theirs"
    assert headers["x-trace"] == "7"


@pytest.mark.parametrize(
    ("sent", "arrived"),
    [
        (b'{"model":"big/model-7b","a":1.0}', b'{"model":"big/model-7b","a":1.0}'),
        (b'{"a":{"model":"x"},"model":"big"}', b'{"a":{"model":"x"},"model":"big/model-7b"}'),
        (b'{"model":"big","\\u006dodel":"big"}', b'{"model":"big/model-7b","\\u006dodel":"big/model-7b"}'),
        (b'{"model":"nobody", "model" :"big"}', b'{"model":"big/model-7b", "model" :"big/model-7b"}'),
    ],
)
def test_the_name_that_counts_is_the_one_that_is_replaced(
    gateway: Gateway, server: Server, sent: bytes, arrived: bytes
) -> None:
    """The last one was resolved, so no other one may arrive."""
    assert ask(gateway, sent).status == 200
    assert server.asked[-1][3] == arrived


def test_what_the_server_refuses_is_told_in_its_words(gateway: Gateway, server: Server) -> None:
    before, refusal = server.answer, {"error": {"message": "too hot", "type": "t", "param": "temperature", "code": "c"}}
    server.answer = (422, refusal)
    try:
        answer = ask(gateway, b'{"model":"big","messages":[]}')
    finally:
        server.answer = before
    assert (answer.status, answer.json) == (422, refusal)


def test_each_piece_is_there_when_the_server_has_said_it(gateway: Gateway, server: Server) -> None:
    connection, _ = opened(gateway, {"model": "big", "messages": [], "stream": True})
    pen = server.pens.get(timeout=SAYS_WITHIN_S)
    pen.say({"number": 0})
    reply = connection.getresponse()
    assert (reply.status, reply.getheader("content-type"), reply.getheader("x-own")) == (
        200,
        "text/event-stream",
        "there",
    )
    for number in range(20):  # the server says the next one once this one has been read
        assert reply.readline() == b'data: {"number": %d}\n' % number
        assert reply.readline() == b"\n"
        pen.say({"number": number + 1})
    pen.pieces.put(ENDED)
    assert reply.read() == b'data: {"number": 20}\n\n'
    connection.close()


@pytest.mark.parametrize("model", ["big", "talker", "any"])
def test_who_leaves_takes_the_call_along(gateway: Gateway, server: Server, model: str) -> None:
    path = CHAT if model != "talker" else "/v1/messages"
    document = {"model": model, "messages": [{"role": "user", "content": "a"}], "stream": True, "max_tokens": 5}
    connection, _ = opened(gateway, document, path)
    pen = server.pens.get(timeout=SAYS_WITHIN_S)
    pen.say({"choices": [{"index": 0, "delta": {"content": "a"}}]})
    reply = connection.getresponse()
    assert reply.readline()
    reply.close()
    connection.close()
    assert pen.left.wait(SAYS_WITHIN_S)


def test_a_stream_that_breaks_ends_with_an_error(gateway: Gateway, server: Server) -> None:
    connection, _ = opened(gateway, {"model": "big", "messages": [], "stream": True})
    pen = server.pens.get(timeout=SAYS_WITHIN_S)
    pen.say({"number": 0})
    reply = connection.getresponse()
    assert reply.readline()
    pen.pieces.put(b"break")
    rest = reply.read()
    event = json.loads(rest.strip().removeprefix(b"data: "))
    assert event["error"]["message"] == "the connection to the upstream server broke"
    connection.close()


def test_another_server_answers_where_one_is_away(gateway: Gateway, server: Server) -> None:
    wait_until(lambda: ask(gateway, b'{"model":"any","x":1.50}').status == 200)  # it may have been doubted before
    assert server.asked[-1][3] == b'{"model":"big/model-7b","x":1.50}'
    away = ask(gateway, b'{"model":"away"}')
    assert (away.status, away.json["error"]["message"]) == (503, "the upstream server cannot be reached")


@pytest.mark.parametrize("model", ["talker", "translated"])
def test_anthropics_messages_are_translated(gateway: Gateway, server: Server, model: str) -> None:
    """Also where a route tried another server first."""
    body = {"model": model, "max_tokens": 9, "system": "be brief", "messages": [{"role": "user", "content": "hi"}]}
    connection, _ = opened(gateway, body, "/anthropic/v1/messages")
    pen = server.pens.get(timeout=SAYS_WITHIN_S)
    assert server.asked[-1][1] == "/api/v9/chat/completions"
    sent = json.loads(server.asked[-1][3])
    assert sent == {
        "model": "big/model-7b",
        "max_tokens": 9,
        "messages": [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hi"}],
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    pen.say({"choices": [{"index": 0, "delta": {"role": "assistant", "content": "he"}}]})
    pen.say({"choices": [{"index": 0, "delta": {"content": "llo"}, "finish_reason": None}]})
    pen.say({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
    pen.say({"choices": [], "usage": {"prompt_tokens": 11, "completion_tokens": 2}})
    pen.pieces.put(b"data: [DONE]\n\n")
    pen.pieces.put(ENDED)
    told = json.loads(connection.getresponse().read())
    assert told["content"] == [{"type": "text", "text": "hello"}]
    assert (told["stop_reason"], told["usage"]["input_tokens"], told["usage"]["output_tokens"]) == ("end_turn", 11, 2)
    connection.close()


def test_v2_generates_by_it(gateway: Gateway, server: Server) -> None:
    document = {"text_input": "hi", "temperature": 0.7, "stop": ["a", "b"], "min_p": 0.25}
    connection, _ = opened(gateway, document, "/v2/models/talker/generate_stream")
    pen = server.pens.get(timeout=SAYS_WITHIN_S)
    sent = json.loads(server.asked[-1][3])
    assert sent["messages"] == [{"role": "user", "content": "hi"}]
    assert (sent["temperature"], sent["stop"], sent["min_p"]) == (0.7, ["a", "b"], 0.25)
    pen.say({"choices": [{"index": 0, "delta": {"content": "hé"}}]})
    pen.say({"error": {"message": "out of ink"}})
    pen.pieces.put(ENDED)
    events = [json.loads(line[6:]) for line in connection.getresponse().read().splitlines() if line]
    assert events[0]["text_output"] == "hé"
    assert events[1] == {"error": "out of ink"}
    connection.close()


def test_vectors_of_it_for_every_dialect(gateway: Gateway, server: Server) -> None:
    before = server.answer
    server.answer = (200, {"data": [{"index": 1, "embedding": [3, 4]}, {"index": 0, "embedding": "AACAPwAAAEA="}]})
    try:
        told = gateway.post("/v1/models/vectors:predict", {"instances": ["a", "b"]}).json
        shown = gateway.post("/embed?model=vectors", {"inputs": ["a", "b"]}).json
    finally:
        server.answer = before
    assert told == {"predictions": [[1.0, 2.0], [3.0, 4.0]]}
    assert [round(number, 4) for number in shown[1]] == [0.6, 0.8]
    assert json.loads(server.asked[-1][3])["input"] == ["a", "b"]


def test_its_models_are_listed_and_found(gateway: Gateway) -> None:
    names = [each["id"] for each in gateway.get("/v1/models").json["data"]]
    assert names == [
        "big",
        "counted",
        "also_counted",
        "other",
        "away",
        "talker",
        "vectors",
        "big/model-7b",
        "any",
        "compared",
        "translated",
    ]
    assert gateway.get("/openai/v1/models/big/model-7b").json["id"] == "big/model-7b"


def shadowed(gateway: Gateway, result: str) -> float:
    return gateway.metrics().total("tensorgate_shadow_requests_total", route="compared", result=result)


def test_a_mirror_gets_calls_that_pass_unread_and_compares_what_is_said(gateway: Gateway, server: Server) -> None:
    """The copy goes to the other server's address as the call went to the first, and texts are compared."""

    def chat(text: str) -> tuple[int, Any]:
        return 200, {"id": text, "choices": [{"index": 0, "message": {"content": text}, "finish_reason": "stop"}]}

    server.answer, server.asked = chat("the same"), []
    body = b'{"model":"compared","messages":[{"role":"user","content":"x"}],"own":1.50}'
    assert ask(gateway, body).json["id"] == "the same"
    wait_until(lambda: shadowed(gateway, "equal") == 1)
    first, second = server.asked
    assert first[3] == second[3] == body.replace(b"compared", b"big/model-7b")
    assert "x-shadow" not in first[2]
    assert second[2]["x-shadow"] == "yes"
    server.shadow_answer = chat("another")
    assert ask(gateway, body).json["id"] == "the same"
    wait_until(lambda: shadowed(gateway, "different") == 1)
    server.shadow_answer = 500, {"error": {"message": "no"}}
    assert ask(gateway, body).status == 200
    wait_until(lambda: shadowed(gateway, "error") == 1)
    server.shadow_answer = None


def test_a_mirrored_stream_is_compared_when_it_has_ended(gateway: Gateway, server: Server) -> None:
    connection, _ = opened(gateway, {"model": "compared", "messages": [], "stream": True})
    before = shadowed(gateway, "equal")
    for pieces in (["one ", "two"], ["one", " t", "wo"]):
        pen = server.pens.get(timeout=SAYS_WITHIN_S)
        for piece in pieces:
            pen.say({"choices": [{"index": 0, "delta": {"content": piece}}]})
        pen.pieces.put(ENDED)
        if connection.sock is not None:
            assert connection.getresponse().read().count(b"data:") == 2
            connection.close()
    wait_until(lambda: shadowed(gateway, "equal") == before + 1)


def quota_of(answer: Any) -> list[str | None]:
    return [answer.headers.get(f"x-ratelimit-{what}-tokens") for what in ("limit", "remaining")]


def test_a_limit_of_tokens_holds_for_calls_that_pass_unread(gateway: Gateway, server: Server) -> None:
    server.answer = (200, {"choices": [], "usage": {"prompt_tokens": 20, "completion_tokens": 25, "total_tokens": 45}})
    first = ask(gateway, b'{"model":"counted","messages":[]}')
    assert (first.status, quota_of(first)) == (200, ["30", "30"])
    second = ask(gateway, b'{"model":"counted","messages":[]}')
    assert second.status == 429
    assert "too many tokens" in second.json["error"]["message"]
    assert int(second.headers["Retry-After"]) > 1
    assert ask(gateway, b'{"model":"big","messages":[]}').status == 200
    assert gateway.metrics().total("tensorgate_tokens_total", model="counted") == 45


def test_a_stream_takes_its_tokens_when_it_ends(gateway: Gateway, server: Server) -> None:
    connection, _ = opened(gateway, {"model": "also_counted", "messages": [], "stream": True})
    pen = server.pens.get(timeout=SAYS_WITHIN_S)
    for _ in range(50):
        pen.say({"choices": [{"index": 0, "delta": {"content": "word"}}]})
    reply = connection.getresponse()
    lines = [reply.readline() for _ in range(90)]
    assert sum(line.startswith(b"data: ") for line in lines) == 45
    connection.close()
    reply.close()
    wait_until(pen.left.is_set)
    wait_until(lambda: ask(gateway, b'{"model":"also_counted","messages":[]}').status == 429)


def test_calls_are_counted_by_the_models_names_here(gateway: Gateway) -> None:
    ask(gateway, b'{"model":"big","messages":[]}')
    wait_until(lambda: gateway.metrics().total("tensorgate_requests_total", dialect="openai", model="big") > 0)
    assert not gateway.metrics().total("tensorgate_requests_total", model="nobody")

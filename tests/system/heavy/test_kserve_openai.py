"""What KServe's own tests hold its OpenAI models to: the answers of its fixtures, told token by token by a model here,
and relayed from a server that answers with them.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml
from serving import DEMO, HOST, Gateway, running

pytestmark = pytest.mark.heavy

VARIABLE = "KSERVE_SOURCES"
WRITER = DEMO.parent / "demo/models/writer"
OWN = ("id", "created", "model", "system_fingerprint", "usage")
"""What each server says in its own words, or counts by its own tokenizer."""
MODEL = """
import json

class Told:
    def __init__(self, context):
        self.tokens = context.parameters["tokens"]

    def infer(self, inputs, request):
        scores = [
            {0: {"logprob": logprob, "decoded_token": token}} for token, logprob in self.tokens
        ]
        pieces = zip(self.tokens, scores) if request.streaming else [(("".join(t for t, _ in self.tokens), 0), None)]
        for (token, _), score in pieces:
            yield {"text_output": [token], "logprobs": [json.dumps(scores if score is None else [score])]}
"""


@pytest.fixture(scope="module")
def fixtures() -> Path:
    if VARIABLE not in os.environ:
        pytest.skip(f"{VARIABLE} names no checkout of github.com/kserve/kserve")
    return Path(os.environ[VARIABLE]) / "python/kserve/test/fixtures/openai"


class Server(ThreadingHTTPServer):
    """Answers each path with one of the fixtures, to the byte."""

    answers: Mapping[str, tuple[str, bytes]] = {}


class Handler(BaseHTTPRequestHandler):
    server: Server

    def log_message(self, *args: Any) -> None:
        pass

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        kind, answer = self.server.answers[f"{self.path}{' stream' if body.get('stream') else ''}"]
        self.send_response(200)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)


@pytest.fixture(scope="module")
def upstream(fixtures: Path) -> Iterator[Server]:
    with Server((HOST, 0), Handler) as server:
        server.answers = {
            "/v1/chat/completions": ("application/json", (fixtures / "chat_completion.json").read_bytes()),
            "/v1/chat/completions stream": (
                "text/event-stream",
                (fixtures / "chat_completion_chunk_stream.txt").read_bytes(),
            ),
            "/v1/completions": ("application/json", (fixtures / "completion.json").read_bytes()),
            "/v1/completions stream": ("text/event-stream", (fixtures / "completion_chunk_stream.txt").read_bytes()),
            "/v1/embeddings": ("application/json", (fixtures / "embedding.json").read_bytes()),
            "/v1/rerank": ("application/json", (fixtures / "rerank.json").read_bytes()),
        }
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


@pytest.fixture(scope="module")
def gateway(fixtures: Path, upstream: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    folder = tmp_path_factory.mktemp("kserve")
    (folder / "told.py").write_text(MODEL)
    logprobs = json.loads((fixtures / "completion.json").read_text())["choices"][0]["logprobs"]
    text = {"kind": "chat", "tokenizer": str(WRITER / "tokenizer.json"), "logprobs": "logprobs"}
    there = {"dialect": "openai", "address": f"http://{HOST}:{upstream.server_port}/v1", "model": "there"}
    one = {"datatype": "BYTES", "shape": [1]}
    told = {
        "backend": "python",
        "path": f"{folder / 'told.py'}:Told",
        "parameters": {"tokens": [*map(list, zip(logprobs["tokens"], logprobs["token_logprobs"], strict=True))]},
        "inputs": [
            {"name": "text_input", **one},
            {"name": "logprobs", "datatype": "INT32", "shape": [1], "optional": True},
        ],
        "outputs": [{"name": "text_output", **one}, {"name": "logprobs", **one}],
        "text": text | {"chat_template": str(WRITER / "chat_template.jinja")},
    }
    models = {"told": told, "relayed": {"backend": "remote", "upstream": there}}
    file = folder / "gateway.yaml"
    file.write_text(
        yaml.safe_dump({"listen": {"http": [{"bind": f"{HOST}:0"}]}, "models": models, "readiness": "lenient"})
    )
    with running(file) as gateway:
        yield gateway


def asked(fixtures: Path, kind: str, model: str, **more: Any) -> dict[str, Any]:
    members: dict[str, Any] = json.loads((fixtures / f"{kind}_create_params.json").read_text())
    return members | {"model": model, **more}


def common(told: Any, wanted: Any) -> Any:
    """As much of what was told as the fixture has members."""
    if isinstance(wanted, dict) and isinstance(told, dict):
        return {name: common(told[name], each) for name, each in wanted.items() if name in told}
    if isinstance(wanted, list) and isinstance(told, list) and len(told) == len(wanted):
        return [common(*both) for both in zip(told, wanted, strict=True)]
    return told


@pytest.mark.parametrize(("kind", "path"), [("completion", "completions"), ("chat_completion", "chat/completions")])
def test_a_model_here_answers_as_the_fixture(gateway: Gateway, fixtures: Path, kind: str, path: str) -> None:
    wanted = json.loads((fixtures / f"{kind}.json").read_text())
    for choice in wanted["choices"]:
        if "message" in choice:  # Servers with tools say that none was called; OpenAI's own says nothing then.
            assert choice["message"].pop("tool_calls") == []
    told = gateway.post(f"/openai/v1/{path}", asked(fixtures, kind, "told")).json
    assert set(told) >= {"id", "created", "model", "usage"}
    found, held_to = ({key: value for key, value in each.items() if key not in OWN} for each in (told, wanted))
    assert common(found, held_to) == held_to


@pytest.mark.parametrize(
    ("kind", "path"),
    [
        ("completion", "completions"),
        ("chat_completion", "chat/completions"),
        ("embedding", "embeddings"),
        ("rerank", "rerank"),
    ],
)
def test_an_answer_is_relayed_to_the_byte(
    gateway: Gateway, upstream: Server, fixtures: Path, kind: str, path: str
) -> None:
    answer = gateway.post(f"/openai/v1/{path}", asked(fixtures, kind, "relayed"))
    assert answer.body == upstream.answers[f"/v1/{path}"][1]


@pytest.mark.parametrize(("kind", "path"), [("completion", "completions"), ("chat_completion", "chat/completions")])
def test_a_stream_is_relayed_to_the_byte(
    gateway: Gateway, upstream: Server, fixtures: Path, kind: str, path: str
) -> None:
    answer = gateway.post(f"/openai/v1/{path}", asked(fixtures, kind, "relayed", stream=True))
    assert answer.body == upstream.answers[f"/v1/{path} stream"][1]

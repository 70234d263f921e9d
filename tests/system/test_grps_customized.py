"""A chat server's path on a gateway: a python model reads raw requests and writes raw responses, whole or streamed."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from serving import HOST, Gateway, running

MODEL = """
import json
import numpy as np

class Chat:
    def __init__(self, context):
        pass

    def infer(self, inputs, request):
        asked = json.loads(inputs["request"][0])
        if "fail" in asked:
            raise ValueError(asked["fail"])
        words = asked["prompt"].split()
        key = json.loads(request.parameters["http_headers"]).get("x-key", "nobody")
        if not asked.get("stream"):
            yield answer(json.dumps({"for": key, "text": " ".join(words).upper()}), 201, "application/json")
            return
        for word in words:
            yield answer(f"data: {word}\\n\\n", 200, "text/event-stream; charset=utf-8")


class Whole(Chat):
    def infer(self, inputs, request):
        return next(super().infer(inputs, request))


def answer(body, status, kind):
    return {"body": np.array([body]), "status": np.array([status], np.int32), "kind": np.array([kind])}
"""
CONFIG = """
listen: {http: [{bind: "%s:0"}]}
models:
  stream: &raw
    backend: python
    path: chat.py:Chat
    inputs: [{name: request, datatype: BYTES, shape: [1]}]
    outputs:
      - {name: body, datatype: BYTES, shape: [1]}
      - {name: status, datatype: INT32, shape: [1]}
      - {name: kind, datatype: BYTES, shape: [1]}
    grps: {reply: {bin_data: body, status: status, content_type: kind}}
  whole: {<<: *raw, path: "chat.py:Whole"}
grps:
  default_model: whole
  customized_predict_http:
    path: /v1/chat/completions
    customized_body: true
    streaming_ctrl: {ctrl_mode: body_param, ctrl_key: stream, res_content_type: text/event-stream}
"""
CHAT = "/v1/chat/completions"


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    folder = tmp_path_factory.mktemp("chat")
    (folder / "chat.py").write_text(MODEL)
    file: Path = folder / "gateway.yaml"
    file.write_text(CONFIG % HOST)
    with running(file) as made:
        yield made
        assert made.stop() == 0, made.said
        assert "Traceback" not in made.said, made.said


def test_a_whole_response(gateway: Gateway) -> None:
    for path in (CHAT, "/grps/v1/infer/predict"):
        answer = gateway.request("POST", path, {"prompt": "to be"}, {"X-Key": "hamlet"})
        assert (answer.status, answer.headers["Content-Type"]) == (201, "application/json")
        assert answer.json == {"for": "hamlet", "text": "TO BE"}


def test_a_streamed_response(gateway: Gateway) -> None:
    answer = gateway.post(f"{CHAT}?model=stream-1", {"prompt": "to be or not", "stream": True})
    assert (answer.status, answer.headers["Content-Type"]) == (200, "text/event-stream; charset=utf-8")
    assert answer.headers["Transfer-Encoding"] == "chunked"
    assert answer.body == b"data: to\n\ndata: be\n\ndata: or\n\ndata: not\n\n"


def test_failures(gateway: Gateway) -> None:
    refused = gateway.post(CHAT, {"fail": "no tongue"})
    assert (refused.status, refused.body) == (500, b"ValueError: no tongue")
    streamed = gateway.post(f"{CHAT}?model=stream-1", {"fail": "no tongue", "stream": True})
    assert (streamed.status, streamed.body) == (200, b"ValueError: no tongue")
    assert gateway.request("POST", CHAT, b"{").status == 500


def test_a_generator_that_is_asked_plainly_answers_plainly(gateway: Gateway) -> None:
    answer = gateway.post(f"{CHAT}?model=stream-1", {"prompt": "two words"})
    assert (answer.status, answer.json["text"]) == (201, "TWO WORDS")


def test_other_paths_of_that_prefix_keep_their_owner(gateway: Gateway) -> None:
    status = gateway.get("/v1/models/whole")
    assert status.json["model_version_status"][0]["state"] == "AVAILABLE"
    for path in ("/v1/chat", f"{CHAT}/other"):
        assert json.loads(gateway.get(path).body)["error"] == f"Malformed request: GET {path}"

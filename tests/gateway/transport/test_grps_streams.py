"""Whether grps answers once or in a stream is the caller's to say, over both transports, whatever the model is."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tensorgate.adapters.grps.proto_message import GrpsMessage
from tensorgate.gateway.app import App, registries
from tensorgate.gateway.config import load_config
from tensorgate.gateway.contract.call import Call, Reply

MODEL = """
class Counts:
    def __init__(self, context):
        pass

    def infer(self, inputs, request):
        for number in range(int(inputs["n"].reshape(-1)[0])):
            yield {"text": [b"%d" % number]}

class CountsOnLoop(Counts):
    async def infer(self, inputs, request):
        for number in range(int(inputs["n"].reshape(-1)[0])):
            yield {"text": [b"%d" % number]}
"""
PREDICT = "/grps/v1/infer/predict"
OWN = "/own"


async def started(folder: Path, **own: Any) -> App:
    (folder / "model.py").write_text(MODEL)
    entry = {
        "backend": "python",
        "max_batch_size": 0,
        "inputs": [{"name": "n", "datatype": "FP32", "shape": [-1]}],
        "outputs": [{"name": "text", "datatype": "BYTES", "shape": [-1]}],
        "grps": {"bin_data": "n"} if own.get("customized_body") else {},
    }
    if own.get("customized_body"):
        entry["inputs"] = [{"name": "n", "datatype": "BYTES", "shape": [-1]}]
    models = {name: entry | {"path": f"model.py:{name}"} for name in ("Counts", "CountsOnLoop")}
    dialect = {"customized_predict_http": {"path": OWN, **own}} if own else {}
    text = yaml.safe_dump({"grps": dialect, "models": models})
    (folder / "gateway.yaml").write_text(text)
    kinds = registries()
    app = App(load_config(folder / "gateway.yaml", kinds), kinds)
    await app.load(lambda report: None)
    return app


@pytest.fixture
async def app(tmp_path: Path) -> AsyncIterator[App]:
    app = await started(tmp_path)
    yield app
    await app.drain()


async def over_http(app: App, target: str, body: bytes, headers: dict[str, str]) -> list[Reply]:
    found = app.dialects["grps"].match("POST", target)
    call = Call(body, "POST", target, {"content-type": "application/json", **headers}, "http", found.args)
    return await _replies(app, found.endpoint, call)


async def over_grpc(app: App, method: str, message: Any) -> list[Any]:
    method = f"/grps.protos.v1.GrpsService/{method}"
    replies = await _replies(
        app, app.dialects["grps"].grpc[method], Call(message.SerializeToString(), "POST", method, {}, "grpc")
    )
    return [GrpsMessage.FromString(_joined(reply)) for reply in replies]


async def _replies(app: App, endpoint: Any, call: Call) -> list[Reply]:
    replies: list[Reply] = []

    async def send(reply: Reply) -> None:
        replies.append(reply)

    await app.service.handle("grps", endpoint, call, send)
    return replies


def _joined(reply: Reply) -> bytes:
    return bytes(reply.body) if isinstance(reply.body, (bytes, bytearray, memoryview)) else b"".join(reply.body)


def texts(reply: Reply) -> Any:
    return json.loads(_joined(reply))["gtensors"]["tensors"][0]["flat_string"]


@pytest.mark.parametrize("model", ["Counts", "CountsOnLoop"])
async def test_a_generator_of_one_answer_answers_plainly(model: str, app: App) -> None:
    [reply] = await over_http(app, f"{PREDICT}?model={model}-1", b'{"ndarray": [1]}', {})
    assert (reply.http_status, texts(reply), reply.streamed) == (200, ["0"], False)
    asked = GrpsMessage(model=f"{model}-1")
    asked.gtensors.tensors.add(dtype=7, shape=[1], flat_float32=[1])
    [message] = await over_grpc(app, "Predict", asked)
    assert message.gtensors.tensors[0].flat_string[:] == ["0"]


@pytest.mark.parametrize("count", [0, 2, 1000])
async def test_more_answers_or_none_are_refused_and_the_control_is_named(count: int, app: App) -> None:
    [reply] = await over_http(app, f"{PREDICT}?model=Counts-1", b'{"ndarray": [%d]}' % count, {})
    status = json.loads(_joined(reply))["status"]
    text = "Model Counts did not give exactly one answer: ask with {}."
    assert (reply.http_status, status["msg"]) == (500, text.format("streaming=true"))
    asked = GrpsMessage(model="Counts-1")
    asked.gtensors.tensors.add(dtype=7, shape=[1], flat_float32=[count])
    [message] = await over_grpc(app, "Predict", asked)
    assert message.status.msg == text.format("PredictStreaming")


async def test_who_asks_for_a_stream_gets_one(app: App) -> None:
    replies = await over_http(app, f"{PREDICT}?model=Counts-1&streaming=true", b'{"ndarray": [3]}', {})
    assert [texts(reply) for reply in replies] == [["0"], ["1"], ["2"]]
    asked = GrpsMessage(model="Counts-1")
    asked.gtensors.tensors.add(dtype=7, shape=[1], flat_float32=[3])
    messages = await over_grpc(app, "PredictStreaming", asked)
    assert [message.gtensors.tensors[0].flat_string[:] for message in messages] == [["0"], ["1"], ["2"]]


CONTROLS = [
    ({"ctrl_mode": "query_param", "ctrl_key": "flow"}, "flow=true", "?flow=true", {}),
    ({"ctrl_mode": "header_param", "ctrl_key": "X-Flow"}, "the header X-Flow: true", "", {"x-flow": "true"}),
    ({"ctrl_mode": "body_param", "ctrl_key": "flow"}, '"flow": true', "", {}),
]


@pytest.mark.parametrize(("control", "words", "query", "headers"), CONTROLS, ids=[words for _, words, *_ in CONTROLS])
@pytest.mark.parametrize("raw", [False, True])
async def test_customized_paths_name_their_own_control(
    raw: bool, control: dict[str, str], words: str, query: str, headers: dict[str, str], tmp_path: Path
) -> None:
    app = await started(tmp_path, streaming_ctrl=control, customized_body=raw)
    body = b"%d" if raw else b'{"model": "Counts-1", "ndarray": [%d]}'
    model = "model=Counts-1"
    plain = f"{OWN}?{model}"
    [one] = await over_http(app, plain, body % 1, {})
    assert one.http_status == 200
    assert _joined(one) == b"0" if raw else texts(one) == ["0"]
    [refused] = await over_http(app, plain, body % 2, {})
    said = _joined(refused).decode() if raw else json.loads(_joined(refused))["status"]["msg"]
    assert said == f"Model Counts did not give exactly one answer: ask with {words}."
    if control["ctrl_mode"] != "body_param":
        streamed = await over_http(app, f"{OWN}{query}{'&' if query else '?'}{model}", body % 2, headers)
        assert len(streamed) == 2
    await app.drain()

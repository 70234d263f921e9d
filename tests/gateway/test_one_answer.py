"""A class that yields answers plain calls with its only answer, and learns whether its caller takes more."""

import json
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import grpc
import pytest
import yaml

from tensorgate.adapters.protobuf.messages import message
from tensorgate.gateway.app import App, registries
from tensorgate.gateway.config import load_config

MODELS = """
class Words:
    def __init__(self, context):
        pass

    def infer(self, inputs, request):
        words = inputs["text"][0].decode().split()
        if not request.streaming:
            words = [" ".join(words).upper()] if words != ["many"] else words * 2
        for word in words:
            yield {"word": [word], "length": [len(word)]}
"""
ENTRY = {
    "backend": "python",
    "path": "models.py:Words",
    "inputs": [{"name": "text", "datatype": "BYTES", "shape": [1]}],
    "outputs": [
        {"name": "word", "datatype": "BYTES", "shape": [1]},
        {"name": "length", "datatype": "INT64", "shape": [1]},
    ],
}


@pytest.fixture
async def app(tmp_path: Path) -> AsyncIterator[App]:
    (tmp_path / "models.py").write_text(MODELS)
    file = tmp_path / "gateway.yaml"
    listen = {key: [{"bind": "127.0.0.1:0"}] for key in ("http", "grpc")}
    file.write_text(yaml.safe_dump({"listen": listen, "models": {"m": ENTRY}, "drain_seconds": 2}))
    kinds = registries()
    made = App(load_config(file, kinds), kinds)
    await made.start()
    await made.load(lambda report: None)
    yield made
    await made.drain()


@pytest.mark.parametrize(
    ("path", "body", "status", "said"),
    [
        ("/v2/models/m/generate", {"text": "hi you"}, 200, '"word":"HI YOU"'),
        ("/v2/models/m/generate", {"text": "many"}, 400, "generate expects model to produce exactly 1 response"),
        ("/v2/models/m/generate_stream", {"text": "hi you"}, 200, '"word":"you"'),
        (
            "/v2/models/m/infer",
            {"inputs": [{"name": "text", "datatype": "BYTES", "shape": [1], "data": ["hi"]}]},
            501,
            "HTTP end point doesn't support models with decoupled transaction policy",
        ),
        ("/v1/models/m:predict", {"inputs": {"text": ["hi you"]}}, 200, '"HI YOU"'),
        ("/v1/models/m:predict", {"inputs": {"text": ["many"]}}, 501, "this protocol carries one"),
        ("/v1/models/m:predict", {"inputs": {"text": [""]}}, 200, '"word": [\n            ""'),
    ],
)
async def test_plain_calls_over_http(app: App, path: str, body: object, status: int, said: str) -> None:
    async with (
        aiohttp.ClientSession(app.addresses[0]) as http,
        http.post(path, data=json.dumps(body)) as answer,
    ):
        text = await answer.text()
        assert (answer.status, said in text) == (status, True), text


async def test_plain_calls_over_grpc(app: App) -> None:
    address = next(each for each in app.addresses if each.startswith("grpc")).partition("//")[2]
    async with grpc.aio.insecure_channel(address) as channel:

        async def ask(text: bytes) -> list[bytes]:
            request = message("tensorflow.serving.PredictRequest")()
            request.model_spec.name = "m"
            request.inputs["text"].dtype = 7
            request.inputs["text"].tensor_shape.dim.add(size=1)
            request.inputs["text"].string_val.append(text)
            predict = channel.unary_unary("/tensorflow.serving.PredictionService/Predict")
            body = await predict(request.SerializeToString())
            return [*message("tensorflow.serving.PredictResponse").FromString(body).outputs["word"].string_val]

        assert await ask(b"hi you") == [b"HI YOU"]
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await ask(b"many")
        assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED

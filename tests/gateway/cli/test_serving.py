"""A device is lost: what every dialect says then, over both transports; and where a parent watches over the process."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import grpc
import pytest
import yaml
from grpc_health.v1 import health_pb2
from waiting import stays, until

from tensorgate.adapters.protobuf.messages import message
from tensorgate.backends.execution import failures
from tensorgate.gateway.app import App, registries
from tensorgate.gateway.cli import serving
from tensorgate.gateway.config import load_config

WITHIN_S = 10.0
LOST = "lost its device, the server restarts"
MODEL = """
import time

class Model:
    def __init__(self, context):
        self.go = context.path / "go"

    def infer(self, inputs, request):
        while inputs["x"][0, 0] < 0 and not self.go.exists():
            time.sleep(0.01)
        return {"y": inputs["x"]}
"""


@pytest.fixture
async def app(tmp_path: Path) -> AsyncIterator[App]:
    (tmp_path / "model.py").write_text(MODEL)
    tensor = {"datatype": "FP32", "shape": [-1, 1]}
    model = {
        "backend": "python",
        "path": "model.py:Model",
        "max_batch_size": 8,
        "inputs": [{"name": "x", **tensor}],
        "outputs": [{"name": "y", **tensor}],
    }
    listen = {"http": [{"bind": "127.0.0.1:0"}], "grpc": [{"bind": "127.0.0.1:0"}]}
    models = {"m": dict(model), "other": dict(model)}
    file = tmp_path / "gateway.yaml"
    file.write_text(yaml.safe_dump({"listen": listen, "models": models, "grps": {"initially_online": True}}))
    kinds = registries()
    made = App(load_config(file, kinds), kinds)
    await made.start()
    await made.load(lambda report: None)
    assert made.service.ready
    yield made
    (tmp_path / "go").touch()
    await made.drain()


def infer(x: float) -> dict[str, Any]:
    return {"inputs": [{"name": "x", "shape": [1, 1], "datatype": "FP32", "data": [x]}]}


async def runs(app: App, model: str) -> None:
    """Until it has begun with a request."""
    await until(lambda: app.repository.snapshot.models[model][1].running)


ASKED: list[tuple[str, Any, int, str]] = [
    ("/healthz", None, 200, "ok"),
    ("/readyz", None, 503, "unavailable"),
    ("/v2/health/live", None, 200, ""),
    ("/v2/health/ready", None, 400, ""),
    ("/v2/models/m/ready", None, 400, ""),
    ("/v2/models/m/infer", infer(1), 503, LOST),
    ("/v1/models/m", None, 200, '"state": "END"'),
    ("/v1/models/m", None, 200, "its device is lost"),
    ("/v1/models/m:predict", {"instances": [[1.0]]}, 503, LOST),
    ("/grps/v1/health/ready", None, 503, ""),
    ("/grps/v1/infer/predict?model=m-1&return-ndarray=true", {"ndarray": [[1.0]]}, 503, LOST),
]


async def test_every_dialect_says_so_at_once(app: App) -> None:
    url, address = app.addresses[0], app.addresses[1].removeprefix("grpc://")
    async with (
        asyncio.timeout(WITHIN_S),
        aiohttp.ClientSession() as http,
        grpc.aio.insecure_channel(address) as channel,
    ):
        waiting = asyncio.ensure_future(http.post(url + "/v2/models/m/infer", json=infer(-1)))
        await runs(app, "m")
        await asyncio.to_thread(failures.failure_of, lost(), "m")  # noticed in a model's thread
        async with await waiting as answer:
            assert (answer.status, LOST in await answer.text()) == (503, True)
        for path, body, status, words in ASKED:
            async with http.request("GET" if body is None else "POST", url + path, json=body) as answer:
                assert (path, answer.status) == (path, status)
                assert words in await answer.text()
        await says_so_over_grpc(channel)
    assert app.device_lost.is_set()


def lost() -> Exception:
    kind: type[Exception] = type("CUDARuntimeError", (RuntimeError,), {"status": 719})
    return kind("cudaErrorLaunchFailure: unspecified launch failure")


async def says_so_over_grpc(channel: Any) -> None:
    async def call(method: str, question: Any, answer: Any) -> Any:
        return answer.FromString(await channel.unary_unary(method)(question.SerializeToString()))

    health = health_pb2.HealthCheckRequest, health_pb2.HealthCheckResponse
    for service in ("", "m"):
        told = await call("/grpc.health.v1.Health/Check", health[0](service=service), health[1])
        assert told.status == health_pb2.HealthCheckResponse.NOT_SERVING
    v2 = "/inference.GRPCInferenceService/"
    told = await call(
        v2 + "ServerReady", message("inference.ServerReadyRequest")(), message("inference.ServerReadyResponse")
    )
    assert not told.ready
    request = message("inference.ModelReadyRequest")(name="m")
    assert not (await call(v2 + "ModelReady", request, message("inference.ModelReadyResponse"))).ready
    tensor = message("inference.ModelInferRequest.InferInputTensor")(name="x", datatype="FP32", shape=[1, 1])
    tensor.contents.fp32_contents.append(1)
    with pytest.raises(grpc.aio.AioRpcError, match=LOST) as refused:
        await call(
            v2 + "ModelInfer",
            message("inference.ModelInferRequest")(model_name="m", inputs=[tensor]),
            message("inference.ModelInferResponse"),
        )
    assert refused.value.code() is grpc.StatusCode.UNAVAILABLE


async def test_models_elsewhere_still_answer_who_asked_before(app: App) -> None:
    async with asyncio.timeout(WITHIN_S), aiohttp.ClientSession() as http:
        waiting = asyncio.ensure_future(http.post(app.addresses[0] + "/v2/models/other/infer", json=infer(-1)))
        await runs(app, "other")
        app.lose_device("m")
        leaving = asyncio.ensure_future(app.leave(WITHIN_S))
        await stays(lambda: not leaving.done())
        (app.config.source.parent / "go").touch()
        async with await waiting as answer:
            assert json.loads(await answer.read())["outputs"][0]["data"] == [-1]
        await leaving


async def test_who_leaves_waits_no_longer_than_it_may(app: App) -> None:
    async with aiohttp.ClientSession() as http:
        waiting = asyncio.ensure_future(http.post(app.addresses[0] + "/v2/models/other/infer", json=infer(-1)))
        await runs(app, "other")
        async with asyncio.timeout(WITHIN_S):
            await app.leave(0.1)
        waiting.cancel()


CPU = {"backend": "python", "path": "model.py:Model", "device": "cpu"}
WATCHED = [
    ({"models": {"m": CPU | {"device": "auto"}}}, True, True),
    ({"models": {"m": CPU | {"device": "cuda:1"}}}, True, True),
    ({"models": {"m": CPU}}, True, False),
    ({"models": {"m": CPU | {"device": "auto"}}}, False, False),
    ({"models": {"m": CPU}, "repositories": ["."]}, True, True),
    ({"models": {"m": CPU}, "supervise": True}, False, True),
    ({"models": {"m": CPU | {"device": "cuda"}}, "supervise": False}, True, False),
]


@pytest.mark.parametrize(("config", "driver", "watched"), WATCHED)
def test_a_parent_watches_where_a_gpu_may_be_lost(
    config: dict[str, Any], driver: bool, watched: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "model.py").write_text(MODEL)
    (tmp_path / "gateway.yaml").write_text(yaml.safe_dump(config))
    monkeypatch.setattr(serving, "_DRIVERS", (str(tmp_path) if driver else str(tmp_path / "nowhere"),))
    assert serving.is_supervised(load_config(tmp_path / "gateway.yaml", registries())) is watched

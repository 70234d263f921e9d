"""A call that fails counts under the model that it names, with its reason: in metrics, the access log and the list of
recent errors, over every transport and in every dialect.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
import grpc
import numpy as np
import pytest
import yaml

from tensorgate.adapters.protobuf import messages as pb
from tensorgate.gateway.app import App, registries
from tensorgate.gateway.cli import client
from tensorgate.gateway.config import load_config

MODELS = """
from tensorgate.gateway.contract.errors import InvalidArgument


class M:
    def __init__(self, context):
        pass
    def infer(self, inputs, request):
        if inputs["x"][0] == 7:
            raise InvalidArgument("seven is refused")
        raise KeyError("secret")
"""
X = {"name": "x", "datatype": "FP32", "shape": [1], "data": [0]}
V2 = "/v2/models/m/infer"
TF = "/v1/models/m:predict"
GRPS = "/grps/v1/infer/predict?model=m-1"
NO_INPUT: dict[str, Any] = {"inputs": []}


def v2(**more: Any) -> dict[str, Any]:
    return {"inputs": [X | more]}


def v2_message(name: str = "m", version: str = "", datatype: str = "FP32", tensor: str = "x", data: float = 0) -> bytes:
    message = pb.message("inference.ModelInferRequest")(model_name=name, model_version=version)
    message.inputs.add(name=tensor, datatype=datatype, shape=[1])
    message.raw_input_contents.append(np.float32(data).tobytes())
    serialized: bytes = message.SerializeToString()
    return serialized


def tf_message(name: str = "m", version: int | None = None, tensor: str = "x", dtype: int = 1) -> bytes:
    message = pb.message("tensorflow.serving.PredictRequest")()
    message.model_spec.name = name
    if version is not None:
        message.model_spec.version.value = version
    given = message.inputs[tensor]
    given.dtype = dtype
    given.tensor_shape.dim.add(size=1)
    given.tensor_content = bytes(4)
    serialized: bytes = message.SerializeToString()
    return serialized


class Case(NamedTuple):
    path: str
    body: Any
    model: str
    version: str
    reason: str
    headers: Mapping[str, str] = {}


V2_GRPC = "/inference.GRPCInferenceService/ModelInfer"
TF_GRPC = "/tensorflow.serving.PredictionService/Predict"
CASES = [
    Case(V2, b"{", "m", "1", "malformed"),
    Case(V2, b"{", "m", "1", "malformed", {"Transfer-Encoding": "chunked"}),
    Case(V2, b"[" * 200 + b"]" * 200, "m", "1", "too_deep"),
    Case(V2, bytes(2000), "m", "1", "too_large"),
    Case(V2, v2(datatype="FP64"), "m", "1", "dtype"),
    Case(V2, v2(datatype="WHAT"), "m", "1", "dtype"),
    Case(V2, v2(shape=[2]), "m", "1", "shape"),
    Case(V2, v2(shape=[1, 1]), "m", "1", "shape"),
    Case(V2, v2(name="z"), "m", "1", "unknown_input"),
    Case(V2, NO_INPUT, "m", "1", "missing_input"),
    Case(V2, v2() | {"outputs": [{"name": "z"}]}, "m", "1", "unknown_output"),
    Case(V2, v2(data=[7]), "m", "1", "model_refused"),
    Case(V2, v2(), "m", "1", "model_raised"),
    Case("/v2/models/nobody/infer", v2(), "", "", "unknown_model"),
    Case("/v2/models/nobody/versions/3/infer", v2(), "", "", "unknown_model"),
    Case("/v2/models/m/versions/3/infer", v2(), "m", "", "unknown_version"),
    Case("/v2/models/by/infer", b"{", "by", "", "malformed"),
    Case("/v2/models/m/generate", b"{", "m", "1", "malformed"),
    Case("/v2/models/m/nonsense", v2(), "", "", "unknown_address"),
    Case(TF, b"{", "m", "1", "malformed"),
    Case(TF, {"inputs": {"z": [1.0]}}, "m", "1", "missing_input"),
    Case(TF, {"inputs": ["a"]}, "m", "1", "dtype"),
    Case("/v1/models/m/versions/3:predict", {"inputs": [1.0]}, "m", "", "unknown_version"),
    Case("/v1/models/m/labels/new:predict", {"inputs": [1.0]}, "m", "", "unknown_version"),
    Case(TF, {"inputs": [1.0]}, "m", "1", "model_raised"),
    Case(GRPS, b"{", "m", "1", "malformed", {"Content-Type": "application/json"}),
    Case(GRPS, {"ndarray": [[1.0], [2.0, 3.0]]}, "m", "1", "shape", {"Content-Type": "application/json"}),
    Case(GRPS, {"model": "m-1", "gmap": {"s_f": {"z": 1.0}}}, "m", "1", "unknown_input"),
    Case(V2_GRPC, v2_message(datatype="FP64"), "m", "1", "dtype"),
    Case(V2_GRPC, v2_message(version="1", tensor="z"), "m", "1", "unknown_input"),
    Case(V2_GRPC, v2_message(version="3"), "m", "", "unknown_version"),
    Case(V2_GRPC, v2_message("nobody"), "", "", "unknown_model"),
    Case(V2_GRPC, v2_message("by", tensor="z"), "by", "", "unknown_input"),
    Case(V2_GRPC, v2_message(data=7), "m", "1", "model_refused"),
    Case(V2_GRPC, v2_message(), "m", "1", "model_raised"),
    Case(V2_GRPC, b"\xff", "", "", "malformed"),
    Case(TF_GRPC, tf_message(tensor="z"), "m", "1", "missing_input"),
    Case(TF_GRPC, tf_message(dtype=3), "m", "1", "dtype"),
    Case(TF_GRPC, tf_message(version=3), "m", "", "unknown_version"),
    Case(TF_GRPC, tf_message(), "m", "1", "model_raised"),
]


class House:
    def __init__(self, folder: Path) -> None:
        (folder / "models.py").write_text(MODELS)
        tensor = {"datatype": "FP32", "shape": [-1]}
        tensors = {"inputs": [{"name": "x", **tensor}], "outputs": [{"name": "y", **tensor}]}
        file = folder / "gateway.yaml"
        sections = {
            "listen": {"http": [{"bind": "127.0.0.1:0"}], "grpc": [{"bind": "127.0.0.1:0"}]},
            "models": {"m": {"backend": "python", "path": "models.py:M", **tensors}},
            "routes": {"by": [{"model": "m"}]},
            "limits": {"max_body_bytes": 1000},
            "access_log": {"file": "access.log"},
            "drain_seconds": 1,
        }
        file.write_text(yaml.safe_dump(sections))
        kinds = registries()
        self.folder = folder
        self.app = App(load_config(file, kinds), kinds)

    async def start(self) -> None:
        await self.app.start()
        await self.app.load(lambda report: None)
        address = next(each for each in self.app.addresses if each.startswith("grpc://"))
        self.http = aiohttp.ClientSession(self.app.addresses[0])
        self.channel = grpc.aio.insecure_channel(address.removeprefix("grpc://"))

    async def stop(self) -> None:
        await self.http.close()
        await self.channel.close()
        await self.app.drain()

    async def ask(self, case: Case) -> None:
        if isinstance(case.body, bytes) and "." in case.path:
            with pytest.raises(grpc.aio.AioRpcError):
                await self.channel.unary_unary(case.path)(case.body)
            return
        body = case.body if isinstance(case.body, bytes) else json.dumps(case.body).encode()
        data: Any = body
        if "Transfer-Encoding" in case.headers:

            async def data() -> AsyncIterator[bytes]:
                yield body

            data = data()
        headers = {"Content-Type": "application/json"} | {
            key: value for key, value in case.headers.items() if key != "Transfer-Encoding"
        }
        async with self.http.post(case.path, data=data, headers=headers) as answer:
            await answer.read()
            assert answer.status >= 400 or case.path == GRPS

    async def failures(self) -> list[dict[str, str]]:
        """The labels of the series of failed calls."""
        async with self.http.get("/metrics") as answer:
            lines = re.findall(r"^tensorgate_requests_total\{(.*)\} (\S+)$", await answer.text(), re.MULTILINE)
        series = [dict(re.findall(r'(\w+)="([^"]*)"', labels)) for labels, _ in lines]
        return [labels for labels in series if labels["code"] != "OK"]

    async def line(self) -> dict[str, Any]:
        """The last line of the access log."""
        assert self.app.observer is not None
        await asyncio.to_thread(self.app.observer.close)
        line: dict[str, Any] = json.loads((self.folder / "access.log").read_text().splitlines()[-1])
        return line


@pytest.fixture
async def house(tmp_path: Path) -> AsyncIterator[House]:
    made = House(tmp_path)
    await made.start()
    yield made
    await made.stop()


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.path} {case.model} {case.version} {case.reason}")
async def test_a_call_that_fails_counts_under_the_model_that_it_names(house: House, case: Case) -> None:
    await house.ask(case)
    line = await house.line()
    (labels,) = await house.failures()
    assert (labels["model"], labels["version"], labels["reason"]) == (case.model, case.version, case.reason)
    assert (line["reason"], line["code"]) == (case.reason, labels["code"])
    # the log names the model itself, where it is known
    if case.version:
        assert (line["model"], str(line["version"])) == ("m", case.version)
    else:
        assert line.get("model", "") == case.model
    async with house.http.get("/overview.json") as answer:
        (error,) = (await answer.json())["errors"]
    assert {key: error[key] for key in ("model", "version", "reason", "code", "count")} == {
        "model": case.model,
        "version": case.version,
        "reason": case.reason,
        "code": labels["code"],
        "count": 1,
    }
    assert error["text"]
    assert error["since"] == error["last"]


async def test_the_series_of_a_model_without_versions_end_with_its_last_version(house: House) -> None:
    metrics = house.app.metrics
    await house.ask(Case("/v2/models/m/versions/3/infer", v2(), "m", "", "unknown_version"))
    assert [key[2:4] for key in metrics._requests] == [("m", "")]
    metrics.forget("m", 2, is_last=False)
    assert [key[2:4] for key in metrics._requests] == [("m", "")]
    before = metrics.inferences
    metrics.forget("m", 1, is_last=True)
    assert not metrics._requests
    assert metrics.inferences == before


async def test_a_model_that_cannot_answer_now_is_not_available(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    async def states() -> list[str]:
        async with house.http.get("/v1/models/m") as answer:
            return [each["state"] for each in (await answer.json())["model_version_status"]]

    assert await states() == ["AVAILABLE"]
    monkeypatch.setattr(type(house.app.repository.snapshot.models["m"][1]), "is_ready", lambda self: False)
    assert await states() == ["LOADING"]


async def test_the_command_line_shows_the_last_errors_of_each_model(house: House) -> None:
    await house.ask(Case(V2, v2(data=[7]), "m", "1", "model_refused"))
    await house.ask(Case("/v2/models/nobody/infer", v2(), "", "", "unknown_model"))
    lines: list[str] = []
    await asyncio.to_thread(client.models, client.Gateway(house.app.addresses[0], 5), None, lines.append)
    (line,) = [line for line in lines if "error" in line]
    assert re.fullmatch(
        r"  error  INVALID_ARGUMENT model_refused, Open Inference V2 http infer, 1 times since \S+Z, last \S+Z: "
        r"seven is refused",
        line,
    )

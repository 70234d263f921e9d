"""Routes from socket to model: who answers whom, over both transports and in every dialect."""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import aiohttp
import grpc
import numpy as np
import pytest
import yaml

from tensorgate.adapters.protobuf import messages as pb
from tensorgate.gateway.app import App, registries
from tensorgate.gateway.config import RouteConfig, RouteTarget, load_config
from tensorgate.gateway.contract.canonical import ModelRef
from tensorgate.gateway.routing.route import Route, WeightedTargets

MODELS = """
import asyncio, time

class Named:
    def __init__(self, context):
        self.number = context.parameters["number"]
    async def infer(self, inputs, request):
        if inputs["x"].ravel()[0] > 0:
            await asyncio.sleep(float(inputs["x"].ravel()[0]))
        return {"y": inputs["x"] * 0 + self.number}

class Failing:
    def __init__(self, context):
        pass
    def infer(self, inputs, request):
        from tensorgate.gateway.contract.errors import ModelUnavailable
        raise ModelUnavailable("upstream")

class Full:
    def __init__(self, context):
        pass
    def infer(self, inputs, request):
        from tensorgate.gateway.contract.errors import QueueFull
        raise QueueFull("elsewhere", 1)
"""
TENSORS = {
    "inputs": [{"name": "x", "datatype": "FP32", "shape": [-1]}],
    "outputs": [{"name": "y", "datatype": "FP32", "shape": [-1]}],
}
ModelInferRequest = pb.message("inference.ModelInferRequest")
ModelInferResponse = pb.message("inference.ModelInferResponse")


def python(name: str, **more: Any) -> dict[str, Any]:
    return {"backend": "python", "path": f"models.py:{name}", **TENSORS, **more}


class House:
    """A gateway with three models that say their number, and some that cannot."""

    def __init__(self, folder: Path, routes: Mapping[str, Any]) -> None:
        (folder / "models.py").write_text(MODELS)
        models = {f"m{n}": python("Named", parameters={"number": n}, instances=8) for n in (1, 2, 3)}
        models |= {"failing": python("Failing"), "full": python("Full")}
        models["absent"] = python("Absent")
        http = [{"bind": "127.0.0.1:0", "name": "front"}, {"bind": "127.0.0.1:0", "name": "back"}]
        file = folder / "gateway.yaml"
        listen = {"http": http, "grpc": [{"bind": "127.0.0.1:0"}]}
        file.write_text(
            yaml.safe_dump(
                {
                    "listen": listen,
                    "models": models,
                    "routes": dict(routes),
                    "readiness": "lenient",
                    "drain_seconds": 1,
                    "model_control": {"mode": "explicit", "load": ["*"]},
                }
            )
        )
        kinds = registries()
        self.app = App(load_config(file, kinds), kinds)

    async def start(self) -> None:
        await self.app.start()
        await self.app.load(lambda report: None)
        self.front, self.back, address = self.app.addresses
        self.http = aiohttp.ClientSession()
        self.channel = grpc.aio.insecure_channel(address.removeprefix("grpc://"))
        await self.channel.channel_ready()

    async def stop(self) -> None:
        await self.http.close()
        await self.channel.close()
        await self.app.drain()

    async def v2(
        self, name: str, x: float = 0, *, port: str = "", headers: Mapping[str, str] | None = None, **parameters: Any
    ) -> Any:
        tensor = {"name": "x", "datatype": "FP32", "shape": [1], "data": [x]}
        body = {"inputs": [tensor], "parameters": parameters}
        url = f"{port or self.front}/v2/models/{name}/infer"
        async with self.http.post(url, json=body, headers=headers) as answer:
            content = await answer.json()
            return content["outputs"][0]["data"][0] if answer.status == 200 else (answer.status, content["error"])

    async def tf_serving(self, name: str, headers: Mapping[str, str] | None = None) -> Any:
        url = f"{self.front}/v1/models/{name}:predict"
        async with self.http.post(url, data=b'{"inputs": [0]}', headers=headers) as answer:
            content = json.loads(await answer.text())
            return content["outputs"][0] if answer.status == 200 else (answer.status, content["error"])

    async def grps(self, name: str, headers: Mapping[str, str] | None = None) -> Any:
        body = json.dumps({"model": name, "ndarray": [0.0]})
        url = f"{self.front}/grps/v1/infer/predict?return-ndarray=true"
        typed = {"Content-Type": "application/json", **(headers or {})}
        async with self.http.post(url, data=body, headers=typed) as answer:
            content = json.loads(await answer.text())
            return content["ndarray"][0] if "ndarray" in content else content

    async def grpc(self, name: str, headers: Mapping[str, str] | None = None) -> Any:
        request = ModelInferRequest(model_name=name)
        request.inputs.add(name="x", datatype="FP32", shape=[1])
        request.raw_input_contents.append(np.zeros(1, np.float32).tobytes())
        call = self.channel.unary_unary(
            "/inference.GRPCInferenceService/ModelInfer",
            request_serializer=ModelInferRequest.SerializeToString,
            response_deserializer=ModelInferResponse.FromString,
        )
        answer = await call(request, metadata=tuple((headers or {}).items()))
        return float(np.frombuffer(answer.raw_output_contents[0], np.float32)[0])

    async def metrics(self) -> str:
        async with self.http.get(f"{self.front}/metrics") as answer:
            return await answer.text()


Make = Callable[[Mapping[str, Any]], Awaitable[House]]


@pytest.fixture
async def make(tmp_path: Path) -> AsyncIterator[Make]:
    houses: list[House] = []

    async def made(routes: Mapping[str, Any]) -> House:
        houses.append(House(tmp_path, routes))
        await houses[-1].start()
        return houses[-1]

    yield made
    for house in houses:
        await house.stop()


def to(*names: str) -> list[dict[str, Any]]:
    return [{"model": name} for name in names]


RULES = {
    "targets": to("m1"),
    "match": [
        {"header": {"X-Canary": ["yes", "always"]}, "to": to("m2")},
        {"header": {"x-any": "*"}, "dialect": ["open_inference", "grps"], "to": to("m3")},
        {"transport": "grpc", "to": to("m2")},
        {"listener": "back", "to": to("m3")},
    ],
}


async def test_the_first_rule_that_fits_decides(make: Make) -> None:
    house = await make({"r": RULES})
    assert await house.v2("r") == 1
    assert await house.tf_serving("r") == 1
    assert await house.grps("r") == 1
    assert await house.v2("r", headers={"x-canary": "yes"}) == 2
    assert await house.tf_serving("r", {"X-CANARY": "always"}) == 2
    assert await house.grps("r", {"x-canary": "no"}) == 1
    assert await house.v2("r", headers={"x-any": ""}) == 3
    assert await house.tf_serving("r", {"x-any": "1"}) == 1, "all of a rule must be true"
    assert await house.v2("r", headers={"x-any": "1", "x-canary": "yes"}) == 2
    assert await house.grpc("r") == 2
    assert await house.grpc("r", {"x-any": "1"}) == 3
    assert await house.v2("r", port=house.back) == 3
    text = await house.metrics()
    assert 'tensorgate_route_requests_total{model="m1",route="r",version="1",why="chosen"} 5.0' in text
    assert 'tensorgate_route_requests_total{model="m3",route="r",version="1",why="matched"} 3.0' in text
    assert 'tensorgate_route_running{route="r"} 0.0' in text


async def test_weights_share_and_callers_stay(make: Make) -> None:
    shares = [{"model": "m1", "weight": 70}, {"model": "m2", "weight": 30}]
    house = await make({"r": shares, "s": {"targets": shares, "sticky": {"header": "X-User"}}})
    found = Counter([await house.v2("r") for _ in range(300)])
    assert 50 < found[2] < 130
    users = [f"user {n}" for n in range(60)]
    first = [await house.v2("s", headers={"x-user": user}) for user in users]
    assert len(set(first)) == 2
    assert [await house.tf_serving("s", {"x-user": user}) for user in users] == first
    assert [await house.grpc("s", {"x-user": user}) for user in users] == first, "in any dialect"


async def test_a_parameter_may_say_who_stays(make: Make) -> None:
    route = {"targets": to("m1", "m2", "m3"), "sticky": {"parameter": "tenant"}}
    house = await make({"r": route})
    tenants = [f"t{n}" for n in range(20)]
    first = [await house.v2("r", tenant=tenant) for tenant in tenants]
    assert len(set(first)) == 3
    for _ in range(3):
        assert [await house.v2("r", tenant=tenant) for tenant in tenants] == first


async def test_a_sequence_stays_with_its_target(make: Make) -> None:
    house = await make({"r": to("m1", "m2", "m3")})
    for number in range(1, 13):
        steps = [await house.v2("r", sequence_id=number, sequence_start=not step) for step in range(4)]
        assert len(set(steps)) == 1, f"sequence {number} was split: {steps}"


def test_shifting_shares_moves_only_who_must() -> None:
    def share(weight: int) -> Route:
        targets = (RouteTarget(model="old", weight=100 - weight), RouteTarget(model="new", weight=weight))
        return Route("r", RouteConfig(targets=targets))

    few, more = share(10), share(30)
    users = [str(number) for number in range(2000)]
    before = {user for user in users if few.pick(None, user)[0].model == "new"}
    after = {user for user in users if more.pick(None, user)[0].model == "new"}
    assert before < after or before <= after
    assert abs(len(before) / 2000 - 0.1) < 0.03
    assert abs(len(after) / 2000 - 0.3) < 0.04


@pytest.mark.parametrize(("place", "expected"), [(0.0, "a"), (0.2499, "a"), (0.25, "c"), (0.9999, "c")])
def test_a_weight_of_nothing_gets_nothing(place: float, expected: str) -> None:
    weights = {"a": 1, "b": 0, "c": 3}
    share = WeightedTargets([RouteTarget(model=name, weight=weight) for name, weight in weights.items()])
    assert share.pick(place).model == expected


async def test_who_is_not_there_is_passed_over(make: Make) -> None:
    house = await make(
        {
            "gone": {"targets": to("absent"), "fallback": to("absent", "m2", "m3")},
            "dies": {"targets": to("failing"), "fallback": to("absent", "failing", "m3")},
            "none": {"targets": to("failing"), "fallback": to("absent")},
        }
    )
    for name, expected in (("gone", 2), ("dies", 3)):
        assert await house.v2(name) == expected
        assert await house.tf_serving(name) == expected
        assert await house.grps(name) == expected
        assert await house.grpc(name) == expected
    status, text = await house.v2("none")
    assert status == 503, text
    text = await house.metrics()
    assert 'tensorgate_route_requests_total{model="m2",route="gone",version="1",why="fallback"} 4.0' in text
    assert 'tensorgate_route_requests_total{model="failing",route="dies",version="1",why="chosen"} 4.0' in text
    assert 'tensorgate_route_requests_total{model="m3",route="dies",version="1",why="fallback"} 4.0' in text


async def test_a_full_queue_is_no_reason_unless_it_is_said(make: Make) -> None:
    house = await make(
        {
            "waits": {"targets": to("full"), "fallback": to("m2")},
            "flows over": {"targets": to("full"), "fallback": to("m2"), "fallback_on_overload": True},
        }
    )
    assert (await house.v2("waits"))[0] in (429, 503)
    assert await house.v2("flows%20over") == 2


async def test_a_model_that_is_unloaded_hands_over(make: Make) -> None:
    house = await make({"r": {"targets": to("m1"), "fallback": to("m2")}})
    assert await house.v2("r") == 1
    await house.app.repository.unload("m1", dependents=False)
    assert await house.v2("r") == 2
    async with house.http.get(f"{house.front}/v2/models/r/ready") as answer:
        assert answer.status == 200
    await house.app.repository.load("m1")
    assert await house.v2("r") == 1


async def test_time_and_room(make: Make) -> None:
    house = await make(
        {"quick": {"targets": to("m1"), "timeout_ms": 100}, "narrow": {"targets": to("m1"), "max_concurrent": 2}}
    )
    status, text = await house.v2("quick", 5)
    assert status in (503, 504), text
    assert await house.v2("quick", 0.01) == 1
    answers = await asyncio.gather(*[house.v2("narrow", 0.3) for _ in range(5)])
    assert sorted(str(answer)[:4] for answer in answers)[:3].count("(503") == 3, answers
    assert answers.count(1) == 2
    assert await house.v2("narrow") == 1, "room is given back"
    assert 'tensorgate_route_refused_total{route="narrow"} 3.0' in await house.metrics()


async def test_names_of_grps_clients(make: Make) -> None:
    house = await make({"old-1.0.0": to("m2"), "r": to("m3")})
    assert await house.grps("old-1.0.0") == 2
    assert await house.grps("r-1") == 3
    assert await house.grps("m1-1") == 1
    assert house.app.router.resolve(ModelRef(qualified="r")).name == "r"

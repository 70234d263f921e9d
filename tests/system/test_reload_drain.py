"""Under load in every dialect over HTTP and gRPC: configurations change, traffic shifts, gateways go; nobody fails."""

import asyncio
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import grpc
import pytest
import yaml
from grpc_health.v1 import health_pb2
from serving import Gateway, running
from steady_load import MODEL, loaded, times
from waiting import until, wait_until

from tensorgate.adapters.protobuf.messages import message

KEY = {"x-admin": "secret"}
APPLIED = "tensorgate_config_reloads_total"


class House:
    """A gateway and its file."""

    def __init__(self, folder: Path, name: str, **sections: Any) -> None:
        self.file = folder / f"{name}.yaml"
        self.source = str(folder / "times.py")
        bind = {"bind": "127.0.0.1:0"}
        self.config: dict[str, Any] = {
            "listen": {"http": [bind], "grpc": [dict(bind)]},
            "models": {"a": times(self.source, 1), "b": times(self.source, 2)},
            "routes": {"m": [{"model": "a", "weight": 100}, {"model": "b", "weight": 0}]},
            "drain_seconds": 10,
            **sections,
        }
        self.write()
        self.gateway: Gateway

    def write(self, **sections: Any) -> None:
        self.config |= sections
        new = self.file.with_suffix(".new")
        new.write_text(yaml.safe_dump(self.config, sort_keys=False))
        new.replace(self.file)

    async def applied(self, count: int) -> None:
        """Until so many reloads are over."""

        def seen() -> float:
            return self.gateway.metrics().total(APPLIED, result="applied")

        await asyncio.to_thread(wait_until, lambda: seen() >= count, lambda: self.gateway.said)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "times.py").write_text(MODEL)
    (tmp_path / "key").write_text("secret")
    return tmp_path


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as it:
        yield it


async def answered(load: Any, count: int = 100) -> None:
    """Until so many more calls are."""
    before = load.answers.total()
    await until(lambda: load.answers.total() >= before + count)


async def test_reloads_and_shifts_under_load(folder: Path, stack: ExitStack) -> None:
    admin = {"header": "x-admin", "value_file": str(folder / "key")}
    house = House(folder, "one", admin=admin, reload={"watch": True, "poll_seconds": 0.05})
    gateway = house.gateway = stack.enter_context(running(house.file))
    async with loaded("m", {1.0}, [gateway]) as load:
        await answered(load)
        for count, factor in enumerate((3, 5, 7), 1):  # another version of the model behind the route
            load.allowed.add(factor)
            house.write(models=house.config["models"] | {"a": times(house.source, factor)})
            if count == 2:  # SIGHUP and the watch may both see it: the second changes nothing
                gateway.process.send_signal(signal.SIGHUP)
            await house.applied(count)
            load.allowed = {float(factor)}
            await answered(load)
        assert set(load.since()) == {1, 3, 5, 7}
        house.write(routes={"m": [{"model": "absent"}]})
        answer = await asyncio.to_thread(gateway.request, "POST", "/admin/reload", None, KEY)
        assert (answer.status, answer.json["result"]) == (422, "refused")
        assert answer.json["errors"][0].endswith(': routes.m[0].model: no model "absent"; known are a, b')
        for count, weight in enumerate((50, 100), 4):  # the canary
            load.allowed.add(2.0)
            house.write(routes={"m": [{"model": "a", "weight": 100 - weight}, {"model": "b", "weight": weight}]})
            await house.applied(count)
            await answered(load, 100)  # who had asked before is answered as before
            load.since()
            await answered(load, 600)
            seen = load.since()
            share = seen[2.0] / sum(seen.values())
            assert weight / 100 - 0.15 < share < weight / 100 + 0.15
        assert set(seen) <= {2.0}
        load.allowed = {2.0}
        house.write(models={"b": times(house.source, 2)}, routes={"m": [{"model": "b"}]})  # the old one leaves
        await house.applied(6)
        await answered(load)
        assert load.retries.total() == 0
    assert gateway.stop() == 0
    assert "Traceback" not in gateway.said_itself


async def test_gateways_go_under_load(folder: Path, stack: ExitStack) -> None:
    """Two of three. One goes at once: it is the worker of a supervisor, which holds the same socket and must let nobody
    in who would find no one inside. Another waits for load balancers to notice. The last one is hurried.
    """
    houses = [House(folder, f"house{n}", unready_seconds=wait) for n, wait in enumerate((0, 0.7, 60))]
    houses[0].write(supervise=True)
    for house in houses:
        house.gateway = stack.enter_context(running(house.file))
    at_once, waits, stays = (house.gateway for house in houses)
    async with loaded("m", {1.0}, [at_once, waits, stays]) as load:
        await answered(load)
        at_once.terminate()
        assert await asyncio.to_thread(at_once.process.wait, 10) == 0
        await answered(load)
        before = load.answers.total()
        waits.terminate()
        await asyncio.to_thread(waits.wait_until_said, "draining")
        async with grpc.aio.insecure_channel(f"127.0.0.1:{waits.grpc_port}") as channel:
            assert await health(channel) == {
                "live": True,
                "ready": False,
                "house": health_pb2.HealthCheckResponse.NOT_SERVING,
            }
        assert await asyncio.to_thread(probes, waits) == [503, 400, 200]
        assert await asyncio.to_thread(waits.process.wait, 10) == 0
        assert load.answers.total() > before
    stays.terminate()
    stays.wait_until_said("stopping in 60 s")
    await asyncio.sleep(0.25)  # real time: signals that come together count as one
    assert stays.stop() == 0  # by a second signal
    for gateway in (at_once, waits, stays):
        assert "drained in" in gateway.said
        assert "Traceback" not in gateway.said_itself


def probes(gateway: Gateway) -> list[int]:
    """What a gateway that is about to stop tells whom: Kubernetes, V2's callers, and whoever still asks a model."""
    tensor = {"name": "x", "datatype": "FP32", "shape": [1], "data": [1]}
    return [
        gateway.get("/readyz").status,
        gateway.get("/v2/health/ready").status,
        gateway.post("/v2/models/m/infer", {"inputs": [tensor]}).status,
    ]


async def health(channel: Any) -> dict[str, Any]:
    """The same over gRPC."""

    async def ask(method: str, request: str, answer: str) -> Any:
        body = await channel.unary_unary(method)(message(request)().SerializeToString())
        return message(answer).FromString(body)

    v2 = "/inference.GRPCInferenceService/Server"
    live = await ask(f"{v2}Live", "inference.ServerLiveRequest", "inference.ServerLiveResponse")
    ready = await ask(f"{v2}Ready", "inference.ServerReadyRequest", "inference.ServerReadyResponse")
    body = await channel.unary_unary("/grpc.health.v1.Health/Check")(b"")
    house = health_pb2.HealthCheckResponse.FromString(body).status
    return {"live": live.live, "ready": ready.ready, "house": house}

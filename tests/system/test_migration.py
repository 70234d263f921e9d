"""A migration played through as its operator does it, while clients of every dialect ask without a pause: import, serve
in front of the old server, compare, shift, cut over, end the old server. Nobody fails, and every answer is right.

The old server of each kind is played by a gateway that serves the importer's YAML, and speaks that server's dialect
alone.
"""

from __future__ import annotations

import asyncio
import json
import re
import signal
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import onnx
import pytest
import yaml
from onnx import TensorProto, helper
from relays import address, listening, remote
from serving import HOST, Gateway, command, running
from steady_load import loaded
from waiting import wait_until

pytestmark = pytest.mark.heavy  # a minute

TENSORS = {
    "inputs": [{"name": "x", "datatype": "FP32", "shape": [-1]}],
    "outputs": [{"name": "y", "datatype": "FP32", "shape": [-1]}],
}
ENOUGH = 250
"""Calls from which a share of a tenth can be told from another."""


def times(file: Path, factor: float) -> None:
    """y = x * factor."""
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n"]) for name in "xy")
    constant = helper.make_tensor("c", TensorProto.FLOAT, [1], [factor])
    graph = helper.make_graph([helper.make_node("Mul", ["x", "c"], ["y"])], "g", [x], [y], [constant])
    file.parent.mkdir(parents=True)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), file)


# -------------------------------------------------------------------------------------------- what the old servers have


def triton(folder: Path) -> list[str]:
    """A repository -> how to import it."""
    times(folder / "repository/m/1/model.onnx", 2)
    tensors = 'input { name: "x" data_type: TYPE_FP32 dims: -1 } output { name: "y" data_type: TYPE_FP32 dims: -1 }'
    (folder / "repository/m/config.pbtxt").write_text(f'backend: "onnxruntime" max_batch_size: 0 {tensors}')
    return ["triton", str(folder / "repository")]


def tf_serving(folder: Path) -> list[str]:
    """A list of models."""
    times(folder / "models/m/1/model.onnx", 2)
    base = f'config {{ name: "m" base_path: "{folder}/models/m" model_platform: "tensorflow" }}'
    (folder / "models.config").write_text(f"model_config_list {{ {base} }}")
    return ["tf-serving", str(folder / "models.config")]


def grps(folder: Path) -> list[str]:
    """Its two files."""
    times(folder / "data/m.onnx", 2)
    (folder / "conf").mkdir()
    server, inference = folder / "conf/server.yml", folder / "conf/inference.yml"
    server.write_text('interface: {framework: http+grpc, host: 0.0.0.0, port: "7080, 7081"}')
    model = "{name: m, version: 1.0.0, device: cpu, inferer_type: torch, inferer_path: ./data/m.pt}"
    node = "{name: node-1, type: model, model: m-1.0.0}"
    inference.write_text(f"models: [{model}]\ndag: {{type: sequential, name: d, nodes: [{node}]}}")
    return ["grps", str(server), str(inference)]


# ------------------------------------------------------------------------------------------------------- the operator


class Front:
    """The gateway in front, and its file, which the operator edits."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.reloads = 0
        self.sections: dict[str, Any] = {"listen": listening()}
        self.gateway: Gateway

    def write(self, **sections: Any) -> None:
        self.sections |= sections
        self.file.write_text(yaml.safe_dump(self.sections, sort_keys=False))

    async def reload(self, **sections: Any) -> None:
        """An edit, and `kill -HUP`."""
        self.write(**sections)
        self.gateway.process.send_signal(signal.SIGHUP)
        self.reloads += 1
        await self.until(lambda: self.total("tensorgate_config_reloads_total", result="applied") == self.reloads)

    def total(self, name: str, **labels: str) -> float:
        return self.gateway.metrics().total(name, **labels)

    async def until(self, done: Callable[[], bool]) -> None:
        await asyncio.to_thread(wait_until, done, lambda: self.gateway.said)

    async def share_of_new(self) -> float:
        """Of the calls from now on."""
        before = self._answered()
        await self.until(lambda: sum(self._answered()) - sum(before) >= ENOUGH)
        old, new = (now - then for now, then in zip(self._answered(), before, strict=True))
        return new / (old + new)

    def _answered(self) -> tuple[float, float]:
        metrics = self.gateway.metrics()
        old, new = (metrics.total("tensorgate_route_requests_total", route="m", model=each) for each in ("old", "new"))
        return old, new


def imported(folder: Path, words: list[str]) -> dict[str, Any]:
    """The importer's YAML, which can be served as it is."""
    file = folder / "imported.yaml"
    done = command("import", *words, "-o", str(file))
    assert done.returncode == 0, done.stderr
    done = command("check", "--load", str(file))
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = yaml.safe_load(file.read_text())
    return found


def old_server(folder: Path, stack: ExitStack) -> Gateway:
    """The old server's stand-in."""
    file = folder / "old.yaml"
    file.write_text(re.sub(r"0\.0\.0\.0:\d+", f"{HOST}:0", (folder / "imported.yaml").read_text()))
    server = stack.enter_context(running(file))
    if "grps" in server.said:
        server.get("/grps/v1/health/online")
    return server


def difference(file: Path) -> dict[str, Any]:
    """What `tensorgate diff` says of the route, nothing if all is equal."""
    told = command("diff", str(file), "--json") if file.exists() else None
    if told is None:
        return {}
    assert told.returncode == 0, told.stderr
    found: dict[str, Any] = json.loads(told.stdout)["summary"].get("m", {})
    return found


WAYS = {
    "triton": (triton, "open_inference", "grpc", "m"),
    "tf_serving": (tf_serving, "tf_serving", "http", "m"),
    "grps": (grps, "grps", "grpc", "m-1.0.0"),
}


@pytest.mark.parametrize("kind", WAYS)
async def test_a_whole_fleet_moves_and_nobody_notices(kind: str, tmp_path: Path) -> None:
    files, dialect, transport, name = WAYS[kind]
    new = imported(tmp_path, files(tmp_path))["models"]["m"]
    times(tmp_path / "wrong/1/model.onnx", 3)
    wrong = {"backend": "onnx", "path": str(tmp_path / "wrong")}
    diffs = tmp_path / "diffs.jsonl"
    mirror: dict[str, Any] = {"to": [{"model": "new"}], "samples": {"file": str(diffs), "rate_per_minute": 6000}}
    route: dict[str, Any] = {"targets": [{"model": "old"}], "fallback": [{"model": "new"}]}
    with ExitStack() as stack:
        server = old_server(tmp_path, stack)
        declared = TENSORS if kind == "grps" else {}  # it has no word for them
        old = remote(dialect, transport, address(server, transport), name, **declared)
        front = Front(tmp_path / "front.yaml")
        front.write(models={"old": old, "new": new}, routes={"m": route | {"mirror": mirror}})
        front.gateway = stack.enter_context(running(front.file))
        async with loaded("m", {2.0}, [front.gateway]) as load:
            # Compare: no difference, then one that is planted.
            await front.until(lambda: front.total("tensorgate_shadow_requests_total", result="equal") >= ENOUGH)
            assert front.total("tensorgate_shadow_requests_total", result="different") == 0
            assert front.total("tensorgate_route_requests_total", model="new") == 0
            assert difference(diffs) == {}
            await front.reload(
                models={"old": old, "new": new, "wrong": wrong},
                routes={"m": route | {"mirror": mirror | {"to": [{"model": "wrong"}]}}},
            )
            await front.until(lambda: front.total("tensorgate_shadow_requests_total", result="different") >= 10)
            found = await asyncio.to_thread(difference, diffs)
            assert found["results"]["different"] >= 1
            assert found["outputs"]["y"]["max_relative"] == pytest.approx(1 / 3, rel=0.01)
            # Shift.
            for weight in (10, 50, 100):
                targets = [{"model": "old", "weight": 100 - weight}, {"model": "new", "weight": weight}]
                await front.reload(
                    models={"old": old, "new": new}, routes={"m": route | {"targets": targets}}, readiness="lenient"
                )
                share = await front.share_of_new()
                assert weight / 100 - 0.08 < share < weight / 100 + 0.08
            # Cut over: the old server is out of the file, gets nothing more, and ends with all that it had.
            await front.reload(models={"new": new}, routes={"m": {"targets": [{"model": "new"}]}})
            asked = await asyncio.to_thread(requests, server)
            await front.share_of_new()
            assert await asyncio.to_thread(requests, server) == asked
            assert await asyncio.to_thread(server.stop) == 0, server.said
            assert await front.share_of_new() == 1
            assert load.retries.total() == 0, load.told()
        assert load.since().keys() == {2.0}
        assert front.gateway.stop() == 0
        for gateway in (server, front.gateway):
            assert "Traceback" not in gateway.said, gateway.said


def requests(server: Gateway) -> float:
    """How many calls have reached its model."""
    return server.metrics().total("tensorgate_requests_total", method="infer")

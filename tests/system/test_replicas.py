"""Doors that have copies of a quick model: nobody can tell but by the metrics, and by how soon an answer comes."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import onnx
import pytest
import yaml
from onnx import TensorProto, helper
from serving import HOST, Gateway, started
from waiting import wait_until

CALLERS = 6
"""Connections at once, so that both doors have some."""
BODY = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 2], "data": [1, 2]}]}


def write_model(folder: Path, by: float) -> None:
    """x -> x * by"""
    folder.mkdir(parents=True, exist_ok=True)
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 2]) for name in ("x", "y"))
    factor = helper.make_tensor("by", TensorProto.FLOAT, [1], [by])
    graph = helper.make_graph([helper.make_node("Mul", ["x", "by"], ["y"])], "times", [x], [y], [factor])
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(made, folder / "model.onnx")


@pytest.fixture
def gateway(tmp_path: Path) -> Iterator[Gateway]:
    write_model(tmp_path / "times" / "1", 3)
    bind = {"bind": f"{HOST}:0"}
    (tmp_path / "gateway.yaml").write_text(
        yaml.safe_dump(
            {
                "listen": {"http": [bind], "metrics": dict(bind)},
                "processes": {"doors": 2},
                "model_control": {"mode": "explicit", "load": ["*"]},
                "tracing": {"file": str(tmp_path / "trace.json")},
                "models": {"times": {"backend": "onnx", "path": str(tmp_path / "times"), "device": "cpu"}},
            }
        )
    )
    with started(tmp_path / "log", str(tmp_path / "gateway.yaml"), python=Path(sys.executable)) as gateway:
        gateway.wait_until_ready()
        yield gateway
        assert gateway.stop() == 0, gateway.said
        assert "Traceback" not in gateway.said, gateway.said


def ask(gateway: Gateway, times: int) -> list[Any]:
    """Ask the model so often, by several connections -> all answers."""

    def one(_: int) -> Any:
        answer = gateway.request("POST", "/v2/models/times/infer", json.dumps(BODY).encode())
        return answer.json["outputs"][0]["data"] if answer.status == 200 else answer.json

    with ThreadPoolExecutor(CALLERS) as callers:
        return list(callers.map(one, range(times)))


def in_doors(gateway: Gateway) -> float:
    return gateway.metrics().total("tensorgate_replica_requests_total", model="times")


def until_in_doors(gateway: Gateway, answer: list[float]) -> int:
    """Ask until doors answer themselves -> how often."""
    asked = 0

    def is_so() -> bool:
        nonlocal asked
        before = in_doors(gateway)
        assert ask(gateway, 40) == [answer] * 40
        asked += 40
        return in_doors(gateway) - before == 40

    wait_until(is_so)
    return asked


def post(gateway: Gateway, path: str, body: Any = None) -> Any:
    answer = gateway.request("POST", path, json.dumps(body or {}).encode())
    assert answer.status == 200, answer.body
    return answer.json if answer.body else None


def statistics(gateway: Gateway) -> Any:
    (found,) = gateway.request("GET", "/v2/models/times/stats").json["model_stats"]
    return found


def test_copies_are_one_model_to_whoever_looks(gateway: Gateway, tmp_path: Path) -> None:
    asked = until_in_doors(gateway, [3, 6])
    told = statistics(gateway)
    assert (told["inference_count"], told["inference_stats"]["success"]["count"]) == (asked, asked)
    assert gateway.metrics().total("tensorgate_requests_total", model="times") == asked
    # Who is traced is seen by the engine.
    traced = {"trace_level": ["TIMESTAMPS"], "trace_rate": "1", "trace_count": "-1"}
    post(gateway, "/v2/models/times/trace/setting", traced)
    before = in_doors(gateway)
    assert ask(gateway, 20) == [[3, 6]] * 20
    assert in_doors(gateway) == before
    post(gateway, "/v2/models/times/trace/setting", {"trace_level": ["OFF"]})
    assert ask(gateway, 20) == [[3, 6]] * 20
    assert in_doors(gateway) == before + 20
    # A wrong request is refused in the same words, whoever could answer a right one.
    wrong = json.dumps({"inputs": [BODY["inputs"][0] | {"shape": [2, 1]}]}).encode()
    refused = {gateway.request("POST", "/v2/models/times/infer", wrong).body for _ in range(8)}
    assert len(refused) == 1


@pytest.mark.parametrize("version", ["1", "2"])
def test_what_a_caller_has_changed_holds_at_once(gateway: Gateway, tmp_path: Path, version: str) -> None:
    until_in_doors(gateway, [3, 6])
    write_model(tmp_path / "times" / version, 5)
    assert ask(gateway, 40) == [[3, 6]] * 40, "files alone change nothing"
    post(gateway, "/v2/repository/models/times/load")
    assert ask(gateway, 40) == [[5, 10]] * 40
    until_in_doors(gateway, [5, 10])
    post(gateway, "/v2/repository/models/times/unload")
    assert all("error" in answer for answer in ask(gateway, 40))

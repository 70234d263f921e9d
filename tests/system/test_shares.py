"""Shares of the devices in a gateway of two doors: who calls is known to the engine, a full queue is one caller's."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest
import yaml
from serving import HOST, Answer, Gateway, started
from waiting import wait_until

GATED = """
import time

class Gated:
    def __init__(self, context):
        self.go = context.path / "go"

    def infer(self, inputs, request):
        while not self.go.exists():
            time.sleep(0.002)
        return {"y": inputs["x"]}
"""
BODY = json.dumps({"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 1], "data": [1]}]}).encode()
QUEUED = "tensorgate_share_queued"


@pytest.fixture
def gateway(tmp_path: Path) -> Iterator[Gateway]:
    (tmp_path / "gated.py").write_text(GATED)
    tensor = {"datatype": "FP32", "shape": [-1, 1]}
    ends = {"inputs": [{"name": "x", **tensor}], "outputs": [{"name": "y", **tensor}]}
    file = tmp_path / "gateway.yaml"
    config = {
        "listen": {"http": [{"bind": f"{HOST}:0"}]},
        "models": {"m": {"backend": "python", "path": "gated.py:Gated", "max_batch_size": 1, **ends}},
        "routes": {"counted": {"targets": [{"model": "m"}], "max_concurrent": 9}},
        "shares": {"by": "header", "header": "x-team", "weights": {"a": 3, "b": 1}, "max_queue_size": 1},
    }
    file.write_text(yaml.safe_dump(config))
    with started(tmp_path / "log", "--doors", "2", str(file), python=Path(sys.executable)) as gateway:
        gateway.wait_until_ready()
        yield gateway


def test_one_caller_s_full_queue_is_nobody_else_s(gateway: Gateway, tmp_path: Path) -> None:
    def ask(team: str, model: str = "m") -> Answer:
        return gateway.request("POST", f"/v2/models/{model}/infer", BODY, {"x-team": team} if team else {})

    def queued(team: str) -> float:
        return gateway.metrics().total(QUEUED, caller=team)

    with ThreadPoolExecutor() as callers, contextlib.ExitStack() as stack:
        stack.callback((tmp_path / "go").touch)
        answers: list[Future[Answer]] = [callers.submit(ask, "a")]
        wait_until(lambda: gateway.metrics().total("tensorgate_running_requests", model="m") == 1)
        answers.append(callers.submit(ask, "a"))
        wait_until(lambda: queued("a") == 1)
        refused = ask("a")
        assert refused.status == 503
        assert refused.json["error"].endswith("Exceeds maximum queue size (for caller 'a' alone)")
        for team, name, model in (("b", "b", "counted"), ("stranger", "(others)", "m"), ("", "", "m")):
            answers.append(callers.submit(ask, team, model))  # a route that counts is relayed whole
            wait_until(lambda: queued(name) == 1)  # noqa: B023
        (tmp_path / "go").touch()
        assert [each.result().status for each in answers] == [200] * 5
    metrics = gateway.metrics()
    assert metrics.total("tensorgate_share_refused_total", caller="a") == 1
    assert metrics.total("tensorgate_share_refused_total") == 1
    for team in ("a", "b", "(others)", ""):
        assert metrics.total("tensorgate_share_device_seconds_total", caller=team, device="cpu") > 0

"""A kernel writes where nothing is: CUDA does no more work for that process, which ends, and another one serves."""

from __future__ import annotations

import http.client
import sys
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
import yaml
from runtimes import CUDA
from serving import HOST, Gateway, running
from waiting import wait_until

MODEL = '''
    import os

    FAULT = """extern "C" __global__ void fault(float* y) { y[threadIdx.x] = 1; }"""


    class Fragile:
        def __init__(self, context):
            self.xp, self.on_gpu = context.xp, context.device != "cpu"

        def infer(self, inputs, request):
            if (inputs["x"] == 700).any():
                if not self.on_gpu:
                    os._exit(7)
                self.xp.RawKernel(FAULT, "fault")((1,), (32,), (self.xp.uint64(64),))
            return {"y": inputs["x"] * 2}
'''


@pytest.fixture
def gateway(place: str, tmp_path: Path) -> Iterator[Gateway]:
    (tmp_path / "model.py").write_text(dedent(MODEL))
    tensor = {"datatype": "FP32", "shape": [-1, 1]}
    model = {
        "backend": "python",
        "path": "model.py:Fragile",
        "device": place,
        "max_batch_size": 8,
        "inputs": [{"name": "x", **tensor}],
        "outputs": [{"name": "y", **tensor}],
    }
    bind = {"bind": f"{HOST}:0"}
    document = {"listen": {"http": [bind], "metrics": dict(bind)}, "models": {"m": model}}
    if place != CUDA:
        document["supervise"] = True  # where there is a GPU it is so by itself
    file = tmp_path / "gateway.yaml"
    file.write_text(yaml.safe_dump(document))
    with running(file, python=Path(sys.executable)) as gateway:
        yield gateway
        assert gateway.stop() == 0, gateway.said


def ask(gateway: Gateway, x: float) -> Any:
    """The answer's status and its numbers, or the exception of a connection that ended."""
    document = {"inputs": [{"name": "x", "shape": [1, 1], "datatype": "FP32", "data": [x]}]}
    try:
        answer = gateway.post("/v2/models/m/infer", document)
    except (OSError, http.client.HTTPException) as error:
        return type(error)
    return answer.status, answer.json["outputs"][0]["data"] if answer.status == 200 else answer.json["error"]


def restarts(gateway: Gateway) -> float:
    return gateway.metrics().total("tensorgate_worker_restarts_total")


@pytest.mark.timeout(240)
def test_the_worker_is_replaced(gateway: Gateway, place: str) -> None:
    for lost in (1, 2):
        assert ask(gateway, 3) == (200, [6])
        told = ask(gateway, 700)
        assert isinstance(told, type) or told[0] in (500, 503), told
        wait_until(lambda: ask(gateway, 4) == (200, [8]), lambda: gateway.said)
        wait_until(lambda count=lost: restarts(gateway) == count, lambda: gateway.said)
    if place == CUDA:
        assert "has lost its device" in gateway.said
        assert "illegal memory access" in gateway.said

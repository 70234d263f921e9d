"""A server under load whose device is lost, or whose process crashes: it says so, and is there again.

The stand-in for a GPU's end is a model that raises what CuPy would.
"""

from __future__ import annotations

import http.client
import json
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent
from typing import Any

import grpc
import pytest
import yaml
from grpc_health.v1 import health_pb2
from serving import HOST, Gateway, command, one_process, running, started
from waiting import wait_until

CALLERS = 4
X = {"name": "x", "datatype": "FP32", "shape": [-1, 1]}
NOBODY_WAITS_S = 60.0
"""A second's pause, the models, and a machine that is busy."""
CLOSED = {"RemoteDisconnected", "ConnectionResetError", "BrokenPipeError"}
"""What becomes of a request on a connection that ends."""
MODEL = """
import os, signal

class CUDARuntimeError(RuntimeError):
    pass

class Model:
    def __init__(self, context):
        pass

    def infer(self, inputs, request):
        x = inputs["x"]
        if (x == 700).any():
            raise CUDARuntimeError("cudaErrorIllegalAddress: an illegal memory access was encountered")
        if (x == 11).any():
            os.kill(os.getpid(), signal.SIGSEGV)
        if (x == 9).any():
            os._exit(9)
        return {"y": x * 2}
"""


@pytest.fixture
def gateway(tmp_path: Path) -> Iterator[Gateway]:
    (tmp_path / "model.py").write_text(dedent(MODEL))
    tensor = {"datatype": "FP32", "shape": [-1, 1]}
    model = {
        "backend": "python",
        "path": "model.py:Model",
        "max_batch_size": 8,
        "inputs": [{"name": "x", **tensor}],
        "outputs": [{"name": "y", **tensor}],
    }
    bind = {"bind": f"{HOST}:0"}
    file = tmp_path / "gateway.yaml"
    listen = {"http": [bind], "grpc": [dict(bind)], "metrics": dict(bind)}
    file.write_text(yaml.safe_dump({"listen": listen, "supervise": True, "models": {"m": model}}))
    with running(file) as gateway:
        yield gateway


def body(x: float) -> str:
    return json.dumps({"inputs": [{"name": "x", "shape": [1, 1], "datatype": "FP32", "data": [x]}]})


class Load:
    """Callers who ask one thing after the other on connections that they keep, and note what becomes of it."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._over = threading.Event()
        self._threads = [threading.Thread(target=self._call, args=(number + 1,)) for number in range(CALLERS)]
        self.outcomes: Counter[str] = Counter()
        self.wrong: list[str] = []

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *why: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()

    def _call(self, x: int) -> None:
        connection = http.client.HTTPConnection(HOST, self._port, timeout=NOBODY_WAITS_S)
        while not self._over.is_set():
            try:
                connection.request("POST", "/v2/models/m/infer", body(x))
                answer = connection.getresponse()
                said = answer.read()
                self.outcomes[str(answer.status)] += 1
                if answer.status == 200 and json.loads(said)["outputs"][0]["data"] != [2 * x]:
                    self.wrong.append(said.decode())
            except (OSError, http.client.HTTPException) as error:
                self.outcomes[type(error).__name__] += 1
                connection.close()
        connection.close()


def ask(gateway: Gateway, x: float) -> Any:
    try:
        return gateway.request("POST", "/v2/models/m/infer", body(x).encode())
    except (OSError, http.client.HTTPException) as error:
        return error


def serves(gateway: Gateway) -> bool:
    answer = ask(gateway, 3)
    return getattr(answer, "status", None) == 200


def restarts(gateway: Gateway, reason: str) -> float:
    return gateway.metrics().total("tensorgate_worker_restarts_total", reason=reason)


def health(gateway: Gateway) -> int:
    with grpc.insecure_channel(f"{HOST}:{gateway.grpc_port}") as channel:
        check = channel.unary_unary("/grpc.health.v1.Health/Check")
        answer = check(health_pb2.HealthCheckRequest().SerializeToString(), timeout=20, wait_for_ready=True)
    status: int = health_pb2.HealthCheckResponse.FromString(answer).status
    return status


def count(gateway: Gateway, words: str) -> int:
    return gateway.said.count(words)


def test_a_lost_device_costs_its_requests_and_a_moment(gateway: Gateway) -> None:
    assert restarts(gateway, "device_lost") == 0
    with Load(gateway.port) as load:
        wait_until(lambda: load.outcomes["200"] > 50)
        lost = ask(gateway, 700)
        assert (lost.status, lost.headers["Retry-After"]) == (503, "1")
        assert lost.json == {"error": "model 'm' has lost its device, the server restarts"}
        wait_until(lambda: count(gateway, "\nready\n") == 2)
        before = load.outcomes["200"]
        wait_until(lambda: load.outcomes["200"] > before + 50)
    assert load.wrong == []
    assert load.outcomes.keys() <= {"200", "503", *CLOSED}
    assert restarts(gateway, "device_lost") == 1
    assert gateway.request("GET", "/readyz").status == 200
    port = gateway.grpc_port = int(gateway.said.rsplit("grpc://", 1)[1].split(":")[1].split()[0])
    assert port
    assert health(gateway) == health_pb2.HealthCheckResponse.SERVING
    assert "cudaErrorIllegalAddress" in gateway.said  # for the operator, and for nobody else
    assert gateway.stop() == 0
    assert "drained in" in gateway.said


@one_process(reason="doors answer in the place of a connection that breaks: see test_doors")
@pytest.mark.parametrize(("x", "why", "reason"), [(11, "SIGSEGV", "SIGSEGV"), (9, "exit status 9", "exit")])
def test_a_crash_costs_what_was_asked_of_it_and_a_moment(gateway: Gateway, x: int, why: str, reason: str) -> None:
    with Load(gateway.port) as load:
        wait_until(lambda: load.outcomes["200"] > 50)
        assert isinstance(ask(gateway, x), (OSError, http.client.HTTPException))
        wait_until(lambda: count(gateway, "\nready\n") == 2)
        before = load.outcomes["200"]
        wait_until(lambda: load.outcomes["200"] > before + 50)
    assert load.wrong == []
    assert load.outcomes.keys() <= {"200", *CLOSED}
    assert sum(load.outcomes.values()) - load.outcomes["200"] <= 3 * CALLERS
    assert restarts(gateway, reason) == 1
    assert f"the worker ended ({why}); another begins in 1 s\n" in gateway.said
    assert serves(gateway)
    assert gateway.stop() == 0


@pytest.mark.parametrize("supervise", [True, False])
def test_a_model_that_loads_for_minutes_does_not_hold_up_the_end(supervise: bool, tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(
        "import atexit, time\natexit.register(print, 'said good-bye', flush=True)\n"
        "print('loading', flush=True)\ntime.sleep(600)\n"
    )
    model = {"backend": "python", "path": "model.py:Model", "inputs": [X], "outputs": [X]}
    file = tmp_path / "gateway.yaml"
    listen = {"http": [{"bind": f"{HOST}:0"}]}
    file.write_text(yaml.safe_dump({"listen": listen, "supervise": supervise, "models": {"m": model}}))
    with started(tmp_path / "log", str(file)) as gateway:
        gateway.wait_until_said("loading")
        assert gateway.stop() == 0
        assert "said good-bye" in gateway.said


def test_what_is_wrong_is_said_once(tmp_path: Path) -> None:
    file = tmp_path / "gateway.yaml"
    file.write_text("supervise: true\nmodels: {m: {backend: onnx, path: nowhere}}")
    wrong = command("serve", str(file))
    assert wrong.returncode == 2
    assert wrong.stderr.count("nowhere") == 1

"""Routes over servers that die, and shadows on other servers, in processes of their own."""

import json
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import yaml
from relays import address, infer, listening, remote
from serving import Gateway, command, one_process, running
from waiting import wait_until

from tensorgate.adapters.protobuf.messages import message

PLUS = """
import os, time
import numpy as np

class Plus:
    def __init__(self, context):
        self.number = np.float32(context.parameters.get("number", 1))

    def infer(self, inputs, request):
        x = inputs["x"]
        if (x == -1).any():
            os.kill(os.getpid(), 9)
        if (x == -2).any():
            time.sleep(30)
        return {"y": x + self.number}
"""
TENSORS = {
    "inputs": [{"name": "x", "datatype": "FP32", "shape": [-1, 1]}],
    "outputs": [{"name": "y", "datatype": "FP32", "shape": [-1, 1]}],
}
WAYS = [(dialect, transport) for dialect in ("open_inference", "tf_serving", "grps") for transport in ("grpc", "http")]


def plus(number: float, **more: Any) -> dict[str, Any]:
    return {"backend": "python", "path": "plus.py:Plus", "parameters": {"number": number}, **TENSORS, **more}


def write(file: Path, models: dict[str, Any], listen: dict[str, Any] | None = None, **sections: Any) -> Path:
    (file.parent / "plus.py").write_text(PLUS)
    file.write_text(yaml.safe_dump({"listen": listen or listening(), "models": models, **sections}))
    return file


@contextmanager
def knocking(ask: Callable[[], Any]) -> Iterator[list[tuple[float, Any]]]:
    """Someone who asks all the time: when, and what came."""
    outcomes: list[tuple[float, Any]] = []
    stop = threading.Event()

    def knock() -> None:
        while not stop.is_set():
            begun = time.monotonic()
            outcomes.append((begun, ask()))

    threads = [threading.Thread(target=knock) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        yield outcomes
    finally:
        stop.set()
        for thread in threads:
            thread.join()


@pytest.mark.parametrize(("dialect", "transport"), [("open_inference", "grpc"), ("tf_serving", "http")])
def test_a_fallback_takes_over_when_an_upstream_is_killed_and_gives_back(
    dialect: str, transport: str, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    where = write(tmp_path / "up.yaml", {"m": plus(1)})
    with running(where) as up:
        there = remote(dialect, transport, address(up, transport), "m", upstream={"version": 1}, **TENSORS)
        routes = {"r": {"targets": [{"model": "there"}], "fallback": [{"model": "here"}]}}
        with running(write(tmp_path / "gw.yaml", {"there": there, "here": plus(2)}, routes=routes)) as gateway:

            def ask() -> Any:
                answer = infer(gateway, "r", x=[5.0])
                return answer.json["outputs"][0]["data"][0] if answer.status == 200 else answer.status

            with knocking(ask) as outcomes:
                wait_until(lambda: len(outcomes) > 20)
                os.kill(up.process.pid, signal.SIGKILL)
                killed = time.monotonic()
                wait_until(lambda: gateway.get("/v2/models/there/ready").status == 400)
                answer = infer(gateway, "there", x=[5.0])
                assert answer.status == 503
                wait_until(lambda: [said for begun, said in outcomes if begun > killed].count(7.0) > 20)
                first = next(begun for begun, said in outcomes if said == 7.0)
                again = listening() | {transport: [{"bind": address(up, transport)}]}
                with running(write(tmp_path / "again.yaml", {"m": plus(1)}, again)):
                    begun = time.monotonic()
                    wait_until(lambda: outcomes[-1][1] == 6.0)
                    record_property("seconds until the fallback answered", first - killed)
                    record_property("seconds until it was asked again", time.monotonic() - begun)
                    wait_until(lambda: outcomes[-1][0] > killed + 2.0)
            counts = Counter(said for _, said in outcomes)
            assert set(counts) <= {6.0, 7.0}, f"everybody had an answer, of one or the other: {counts}"
            late = [said for begun, said in outcomes if killed + 2.0 < begun]
            assert late, "someone asked until the end"
            assert gateway.stop() == 0
            assert "Traceback" not in gateway.said_itself, gateway.said


@pytest.mark.parametrize(("dialect", "transport"), WAYS)
def test_tensors_may_be_called_otherwise_there(dialect: str, transport: str, upstream: Gateway, tmp_path: Path) -> None:
    ours = {
        "inputs": [{"name": "value", "datatype": "FP32", "shape": [-1, 1]}],
        "outputs": [{"name": "sum", "datatype": "FP32", "shape": [-1, 1]}],
    }
    names = {"inputs": {"value": "x"}, "outputs": {"sum": "y"}, "version": 1}
    where = address(upstream, transport)
    models = {
        "declared": remote(dialect, transport, where, "plus1", upstream=names, **ours),
        "batched": remote(dialect, transport, where, "plus1", upstream=names, **ours, max_batch_size=4),
    }
    if dialect != "grps":
        models["described"] = remote(dialect, transport, where, "plus1", upstream=names)
    wrong = remote(dialect, transport, where, "plus1", upstream=names | {"inputs": {"x": "z"}}, **ours)
    with running(write(tmp_path / "gw.yaml", models | {"wrong": wrong}, readiness="lenient")) as gateway:
        for model in models:
            answer = infer(gateway, model, value=[1.0, 2.0])
            assert [(each["name"], each["data"]) for each in answer.json["outputs"]] == [("sum", [2.0, 3.0])], model
            body = {"outputs": [{"name": "sum"}], "inputs": [tensor("value", [4.0])]}
            assert gateway.post(f"/v2/models/{model}/infer", body).json["outputs"][0]["data"] == [5.0]
        assert "upstream.inputs: the model has no 'x'" in gateway.said
        assert gateway.stop() == 0


def tensor(name: str, values: list[float]) -> dict[str, Any]:
    return {"name": name, "datatype": "FP32", "shape": [len(values), 1], "data": values}


@pytest.fixture(scope="module")
def upstream(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """The old server."""
    with running(write(tmp_path_factory.mktemp("old") / "up.yaml", {"plus1": plus(1)})) as gateway:
        yield gateway


# -------------------------------------------------------------------------------------------------------------- shadows


def v2(gateway: Gateway, x: list[float]) -> Any:
    return infer(gateway, "r", x=x).json["outputs"][0]["data"]


def tf_serving(gateway: Gateway, x: list[float]) -> Any:
    answer = gateway.post("/v1/models/r:predict", {"instances": [[value] for value in x]}).json
    return [value for (value,) in answer["predictions"]]


def grps(gateway: Gateway, x: list[float]) -> Any:
    tensors = {"tensors": [{"name": "x", "dtype": "DT_FLOAT32", "shape": [len(x), 1], "flat_float32": x}]}
    answer = gateway.post("/grps/v1/infer/predict", {"model": "r", "gtensors": tensors}).json
    return answer["gtensors"]["tensors"][0]["flat_float32"]


def v2_grpc(gateway: Gateway, x: list[float]) -> Any:
    request = message("inference.ModelInferRequest")(
        model_name="r",
        inputs=[{"name": "x", "datatype": "FP32", "shape": [len(x), 1]}],
        raw_input_contents=[np.float32(x).tobytes()],
    )
    with grpc.insecure_channel(address(gateway, "grpc")) as channel:
        call = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
        answer = message("inference.ModelInferResponse").FromString(call(request.SerializeToString(), timeout=10))
    return np.frombuffer(answer.raw_output_contents[0], np.float32).tolist()


CALLERS = (v2, v2_grpc, tf_serving, grps)


def results(gateway: Gateway) -> dict[str, float]:
    series = gateway.metrics()
    found = {each: series.total("tensorgate_shadow_requests_total", result=each) for each in series.values("result")}
    return {result: count for result, count in found.items() if count}


def settled(gateway: Gateway, total: int) -> dict[str, float]:
    wait_until(lambda: sum(results(gateway).values()) >= total)
    return results(gateway)


@pytest.mark.parametrize(("dialect", "transport"), WAYS)
def test_an_old_server_is_compared_from_either_side(
    dialect: str, transport: str, upstream: Gateway, tmp_path: Path
) -> None:
    old = remote(dialect, transport, address(upstream, transport), "plus1", upstream={"version": 1}, **TENSORS)
    for primary, shadow in (("old", "new"), ("new", "old")):
        mirror = {"to": [{"model": shadow}], "timeout_ms": 20_000}
        routes = {"r": {"targets": [{"model": primary}], "mirror": mirror}}
        file = write(tmp_path / f"{primary}.yaml", {"old": old, "new": plus(1)}, routes=routes)
        with running(file) as gateway:
            for call in CALLERS:
                assert call(gateway, [1.5, 2.0]) == [2.5, 3.0]
            assert settled(gateway, 4) == {"equal": 4}
            assert gateway.stop() == 0
            assert "Traceback" not in gateway.said_itself, gateway.said


@one_process(reason="its upstream server dies: a group of processes does not")
def test_a_shadow_that_differs_crashes_dawdles_or_is_dead_is_no_concern_of_callers(tmp_path: Path) -> None:
    with running(write(tmp_path / "old.yaml", {"plus": plus(2, instances=2)})) as old:
        there = remote("open_inference", "grpc", address(old, "grpc"), "plus")
        samples = {"file": "diffs.jsonl", "rate_per_minute": 6000}
        mirror = {"to": [{"model": "there"}], "timeout_ms": 500, "max_in_flight": 4, "samples": samples}
        routes = {"r": {"targets": [{"model": "here"}], "mirror": mirror}}
        # The same code in this process, but for what kills or delays: the primary gets on.
        here = plus(1, path="safe.py:Safe")
        (tmp_path / "safe.py").write_text(
            "import numpy as np\nclass Safe:\n    def __init__(self, context): pass\n"
            "    def infer(self, inputs, request): return {'y': inputs['x'] + np.float32(1)}\n"
        )
        with running(write(tmp_path / "gw.yaml", {"there": there, "here": here}, routes=routes)) as gateway:
            for call in CALLERS:
                assert call(gateway, [1.0, 2.0]) == [2.0, 3.0]
            assert settled(gateway, 4) == {"different": 4}
            said = command("diff", str(tmp_path / "diffs.jsonl")).stdout
            assert "2 of 2 elements differ by up to 1, relative" in said
            assert "largest difference: absolute 1" in said
            told = json.loads(command("diff", str(tmp_path / "diffs.jsonl"), "--json").stdout)
            assert told["summary"]["r"]["outputs"]["y"]["max_absolute"] == 1.0

            assert v2(gateway, [-2.0]) == [-1.0]  # the shadow sleeps over it, and then nobody waits for it any more
            assert settled(gateway, 5) == {"different": 4, "error": 1}

            assert v2(gateway, [-1.0]) == [0.0]  # and this kills it
            assert old.process.wait(10) != 0
            for number in range(40):
                call = CALLERS[number % len(CALLERS)]
                assert call(gateway, [float(number)]) == [number + 1.0]
            assert settled(gateway, 46) == {"different": 4, "error": 42}
            assert gateway.stop() == 0
            assert "Traceback" not in gateway.said_itself, gateway.said

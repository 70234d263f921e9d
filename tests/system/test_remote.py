"""Models that another server computes: a second gateway behind the first, in every dialect, over every transport."""

import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import yaml
from relays import address, front, infer, listening, remote
from serving import Gateway, demo_config, one_process, running, started
from waiting import wait_until

from tensorgate.adapters.protobuf.messages import message

WAYS = [(dialect, transport) for dialect in ("open_inference", "tf_serving", "grps") for transport in ("grpc", "http")]
SLOW = """
import time
import numpy as np
from tensorgate.gateway.contract.errors import InvalidArgument

class Slow:
    def __init__(self, context):
        self.seen = context.parameters["seen"]

    def infer(self, inputs, request):
        if (inputs["x"] < 0).any():
            raise InvalidArgument("a negative number")
        if (inputs["x"] > 1e6).any():
            raise ValueError("too much")
        for _ in range(int(inputs["seconds"][0, 0] * 50)):
            time.sleep(0.02)
            if request.cancelled:
                with open(self.seen, "a") as file:
                    file.write("cancelled\\n")
                return {"y": inputs["x"]}
        return {"y": inputs["x"]}
"""
TENSORS = {
    "inputs": [
        {"name": "x", "datatype": "FP32", "shape": [-1, 1]},
        {"name": "seconds", "datatype": "FP32", "shape": [-1, 1]},
    ],
    "outputs": [{"name": "y", "datatype": "FP32", "shape": [-1, 1]}],
}


ANY_RANK = {"inputs": [{"name": "x", "datatype": "FP32"}], "outputs": [{"name": "y", "datatype": "FP32"}]}
INT32 = {"datatype": "INT32", "shape": [-1, 16]}
DECLARED = {
    "digits": {
        "inputs": [{"name": "image", "datatype": "FP32", "shape": [-1, 8, 8]}],
        "outputs": [{"name": "scores", "datatype": "FP32", "shape": [-1, 10]}],
    },
    "half_plus_two": ANY_RANK,
    "add_sub": {
        "inputs": [{"name": "INPUT0", **INT32}, {"name": "INPUT1", **INT32}],
        "outputs": [{"name": "OUTPUT0", **INT32}, {"name": "OUTPUT1", **INT32}],
    },
    "upper": {
        "inputs": [{"name": "text", "datatype": "BYTES", "shape": [-1]}],
        "outputs": [{"name": "shout", "datatype": "BYTES", "shape": [-1]}],
    },
    "slow": TENSORS,
    "slow8": TENSORS,
}
"""What grps has no word for; nor has V2 for a tensor of any rank."""
VERSIONS = {"half_plus_two": 1, "digits": 2}


def behind(dialect: str, transport: str, upstream: Gateway, model: str, **changes: Any) -> dict[str, Any]:
    """A model of the upstream gateway, declared where the dialect does not describe it."""
    if dialect == "grps" or (model, dialect) == ("half_plus_two", "open_inference"):
        changes |= DECLARED[model]
    if dialect == "grps":
        changes["upstream"] = {"version": VERSIONS.get(model, 1)}
    return remote(dialect, transport, address(upstream, transport), model, **changes)


@pytest.fixture(scope="module")
def upstream(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """The demo, and a model that takes its time and notes callers who leave."""
    folder = tmp_path_factory.mktemp("upstream")
    (folder / "slow.py").write_text(SLOW)
    slow = {
        "backend": "python",
        "path": f"{folder}/slow.py:Slow",
        "parameters": {"seen": f"{folder}/seen"},
        "instances": 4,
        **TENSORS,
    }
    (folder / "up.yaml").write_text(demo_config({"slow": slow, "slow8": slow | {"max_batch_size": 8}}))
    with running(folder / "up.yaml") as gateway:
        yield gateway
        assert "Traceback" not in gateway.said_itself, gateway.said


@pytest.fixture(scope="module")
def relay(upstream: Gateway, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """Every model of the demo, over every way there is."""
    models: dict[str, Any] = {}
    for dialect, transport in WAYS:
        for model in ("digits", "half_plus_two", "add_sub", "upper", "slow"):
            models[f"{model}-{dialect}-{transport}"] = behind(dialect, transport, upstream, model)
        models[f"slow8-{dialect}-{transport}"] = behind(dialect, transport, upstream, "slow8", max_batch_size=8)
    grpc_address = address(upstream, "grpc")
    models["countdown"] = remote("open_inference", "grpc", grpc_address, "countdown")
    for model in ("countdown", "writer"):
        models[f"{model}-http"] = remote("open_inference", "http", address(upstream, "http"), model)
    models["running_sum"] = remote("open_inference", "grpc", grpc_address, "running_sum")
    file = tmp_path_factory.mktemp("relay") / "relay.yaml"
    file.write_text(front(models))
    with running(file) as gateway:
        yield gateway
        assert gateway.stop() == 0
        assert "Traceback" not in gateway.said_itself, gateway.said


@pytest.mark.parametrize(("dialect", "transport"), WAYS)
def test_any_dialect_in_reaches_any_dialect_out(
    dialect: str, transport: str, upstream: Gateway, relay: Gateway
) -> None:
    suffix = f"-{dialect}-{transport}"
    tensors: Any
    for model, tensors in {
        "add_sub": {"INPUT0": ("INT32", [list(range(16))]), "INPUT1": ("INT32", [[3] * 16])},
        "upper": {"text": ("BYTES", ["größe", "", "a"])},
        "digits": {"image": ("FP32", [[[float(n % 17) for n in range(8)]] * 8] * 3)},
    }.items():
        inputs = [
            {"name": name, "datatype": datatype, "shape": list(np.shape(data)), "data": data}
            for name, (datatype, data) in tensors.items()
        ]
        there = upstream.post(f"/v2/models/{model}/infer", {"inputs": inputs, "id": "7"})
        here = relay.post(f"/v2/models/{model}{suffix}/infer", {"inputs": inputs, "id": "7"})
        assert here.status == 200, here.body
        assert here.json["id"] == "7"
        assert here.json["outputs"] == there.json["outputs"]
    for body in ({"instances": [1.0, 2.0, 5.0]}, {"instances": [[1.5], [3.0]]}):
        there = upstream.post("/v1/models/half_plus_two:predict", body)
        here = relay.post(f"/v1/models/half_plus_two{suffix}:predict", body)
        assert (here.status, here.body) == (200, there.body)
    gtensors = {"tensors": [{"name": "x", "dtype": "DT_FLOAT32", "shape": [2], "flat_float32": [1, 3]}]}
    here = relay.post(f"/grps/v1/infer/predict?model=half_plus_two{suffix}-1", {"gtensors": gtensors})
    assert here.json["gtensors"]["tensors"][0]["flat_float32"] == [2.5, 3.5]


@pytest.mark.parametrize(("dialect", "transport"), WAYS)
def test_large_tensors_travel_whole(dialect: str, transport: str, upstream: Gateway, relay: Gateway) -> None:
    body = {"instances": [n / 4 for n in range(200_000)]}
    there = upstream.post("/v1/models/half_plus_two:predict", body)
    here = relay.post(f"/v1/models/half_plus_two-{dialect}-{transport}:predict", body)
    assert (here.status, here.body == there.body) == (200, True)


@pytest.mark.parametrize(("dialect", "transport"), WAYS)
def test_what_the_upstream_says_of_a_request_keeps_its_kind_and_text(
    dialect: str, transport: str, relay: Gateway
) -> None:
    refused = 500 if dialect == "grps" else 400  # it says 500 of everything
    for x, status, text in ((-1.0, refused, "a negative number"), (2e6, 500, "ValueError: too much")):
        answer = infer(relay, f"slow-{dialect}-{transport}", x=[x], seconds=[0.0])
        assert (answer.status, answer.json["error"]) == (status, text)
    good = infer(relay, f"slow-{dialect}-{transport}", x=[3.0], seconds=[0.0])
    assert good.json["outputs"][0]["data"] == [3.0]


@pytest.mark.parametrize(("dialect", "transport"), WAYS)
def test_rows_come_back_to_their_senders_and_one_bad_request_fails_alone(
    dialect: str, transport: str, relay: Gateway
) -> None:
    def ask(number: int) -> tuple[int, Any]:
        mark = -1.0 if number % 10 == 7 else float(number)
        answer = infer(relay, f"slow8-{dialect}-{transport}", x=[mark, number + 0.5], seconds=[0.02, 0.02])
        return number, answer

    with ThreadPoolExecutor(12) as callers:
        for number, answer in callers.map(ask, range(60)):
            if number % 10 == 7:
                refused = 500 if dialect == "grps" else 400
                assert (answer.status, answer.json) == (refused, {"error": "a negative number"})
            else:
                assert answer.json["outputs"][0]["data"] == [float(number), number + 0.5]


@pytest.mark.parametrize(("dialect", "transport"), WAYS)
def test_a_deadline_ends_the_call_and_the_upstream_learns_that(
    dialect: str, transport: str, upstream: Gateway, relay: Gateway
) -> None:
    seen = Path(str(upstream.log)).parent / "seen"
    seen.write_text("")
    body = {
        "inputs": [
            {"name": "x", "datatype": "FP32", "shape": [1, 1], "data": [1.0]},
            {"name": "seconds", "datatype": "FP32", "shape": [1, 1], "data": [100.0]},
        ]
    }
    answer = relay.request(
        "POST",
        f"/v2/models/slow-{dialect}-{transport}/infer",
        body,
        {"Content-Type": "application/json", "x-request-timeout-ms": "800"},  # a busy machine needs some to get there
    )
    assert answer.status == 504
    wait_until(lambda: seen.read_text() == "cancelled\n")


@pytest.mark.parametrize(("dialect", "transport"), WAYS)
def test_a_caller_who_leaves_ends_the_call_upstream(
    dialect: str, transport: str, upstream: Gateway, relay: Gateway
) -> None:
    seen = Path(str(upstream.log)).parent / "seen"
    seen.write_text("")
    with grpc.insecure_channel(address(relay, "grpc")) as channel:
        call = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
        tensors = {"x": 1.0, "seconds": 100.0}
        request = message("inference.ModelInferRequest")(
            model_name=f"slow-{dialect}-{transport}",
            inputs=[{"name": name, "datatype": "FP32", "shape": [1, 1]} for name in tensors],
            raw_input_contents=[np.float32(value).tobytes() for value in tensors.values()],
        )
        future = call.future(request.SerializeToString())
        wait_until(lambda: upstream.metrics().total("tensorgate_running_requests", model="slow"))
        future.cancel()
    wait_until(lambda: seen.read_text() == "cancelled\n")


def streamed(gateway: Gateway, model: str, start: int, **parameters: bool) -> Iterator[Any]:
    """The answers of a model that counts down, over a V2 stream; leaving it ends the call."""
    request = message("inference.ModelInferRequest")(
        model_name=model,
        id="c",
        inputs=[{"name": "start", "datatype": "INT32", "shape": [1]}],
        raw_input_contents=[np.int32(start).tobytes()],
        parameters={name: {"bool_param": value} for name, value in parameters.items()},
    )
    with grpc.insecure_channel(address(gateway, "grpc")) as channel:
        call = channel.stream_stream("/inference.GRPCInferenceService/ModelStreamInfer")
        for body in call(iter([request.SerializeToString()]), timeout=10):
            yield message("inference.ModelStreamInferResponse").FromString(body)


def number(answer: Any) -> int:
    assert not answer.error_message, answer.error_message
    return int(np.frombuffer(answer.infer_response.raw_output_contents[0], np.int32)[0])


@pytest.mark.parametrize("model", ["countdown", "countdown-http"])
def test_a_decoupled_model_streams_through(model: str, relay: Gateway) -> None:
    assert relay.get(f"/v2/models/{model}/config").json["model_transaction_policy"] == {"decoupled": True}
    answers = [*streamed(relay, model, 3)]
    assert [*map(number, answers)] == [3, 2, 1, 0]
    assert {each.infer_response.id for each in answers} == {"c"}
    here = relay.post(f"/v2/models/{model}/generate_stream", {"start": 2})
    assert [line for line in here.body.split(b"\n") if line] == [
        b'data: {"model_name":"%b","model_version":"1","count":%d}' % (model.encode(), count) for count in (2, 1, 0)
    ]


def test_a_model_that_answers_once_is_streamed_over_http_too(relay: Gateway) -> None:
    body = {"text_input": "to be", "max_tokens": 4, "seed": 1, "temperature": 0.5, "stream": True}
    here = relay.post("/v2/models/writer-http/generate_stream", body)
    assert here.status == 200, here.body
    assert here.body.count(b"data: ") == 4
    assert b'"error"' not in here.body


def test_sequences_are_carried_on(relay: Gateway) -> None:
    totals = []
    for step, number in enumerate((5, 6, 7)):
        body = {
            "parameters": {"sequence_id": 2**63 + 5, "sequence_start": step == 0, "sequence_end": step == 2},
            "inputs": [{"name": "INPUT", "datatype": "INT32", "shape": [1, 1], "data": [number]}],
        }
        totals.append(relay.post("/v2/models/running_sum/infer", body).json["outputs"][0]["data"][0])
    assert totals == [5, 11, 18]


@pytest.mark.parametrize(("dialect", "transport"), WAYS)
def test_a_server_that_dies_is_noticed_its_neighbour_takes_over_and_it_may_come_back(
    dialect: str, transport: str, tmp_path: Path
) -> None:
    (tmp_path / "slow.py").write_text(SLOW)
    slow = {"backend": "python", "path": "slow.py:Slow", "parameters": {"seen": f"{tmp_path}/seen"}, **TENSORS}
    (tmp_path / "a.yaml").write_text(front({"slow": slow}))
    (tmp_path / "b.yaml").write_text(front({"slow": slow}))
    with running(tmp_path / "a.yaml") as a, running(tmp_path / "b.yaml") as b:
        both = [address(a, transport), address(b, transport)]
        models = {
            "both": remote(dialect, transport, both, "slow", upstream={"version": 1}, **TENSORS),
            "one": remote(dialect, transport, both[0], "slow", upstream={"version": 1}, **TENSORS),
        }
        (tmp_path / "gw.yaml").write_text(front(models))
        with running(tmp_path / "gw.yaml") as gateway:
            outcomes: list[int] = []
            stop = threading.Event()

            def knock() -> None:
                while not stop.is_set():
                    outcomes.append(infer(gateway, "both", x=[1.0], seconds=[0.0]).status)

            knocking = threading.Thread(target=knock)
            knocking.start()
            wait_until(lambda: outcomes.count(200) > 10)
            os.kill(a.process.pid, signal.SIGKILL)
            wait_until(lambda: gateway.get("/v2/models/one/ready").status == 400)
            assert gateway.get("/v2/models/both/ready").status == 200
            answer = infer(gateway, "one", x=[1.0], seconds=[0.0])
            assert (answer.status, answer.json) == (503, {"error": "the upstream server cannot be reached"})
            told = len(outcomes)
            wait_until(lambda: len(outcomes) > told + 20)
            stop.set()
            knocking.join()
            assert set(outcomes) <= {200, 503}
            assert outcomes.count(503) <= 1  # the one that was being answered
            assert outcomes[-10:] == [200] * 10
            again = listening()
            again["http" if transport == "http" else "grpc"] = [{"bind": both[0]}]
            (tmp_path / "again.yaml").write_text(yaml.safe_dump({"listen": again, "models": {"slow": slow}}))
            with running(tmp_path / "again.yaml"):
                wait_until(lambda: gateway.get("/v2/models/one/ready").status == 200)
                assert infer(gateway, "one", x=[1.0], seconds=[0.0]).status == 200
            assert gateway.stop() == 0


def test_a_server_that_comes_later_is_waited_for(tmp_path: Path) -> None:
    with started(tmp_path / "probe.log", str(_one_model(tmp_path / "probe.yaml", tmp_path))) as probe:
        probe.wait_until_ready()
        where = address(probe, "grpc")
    models = {"late": remote("open_inference", "grpc", where, "slow", wait_seconds=0.2)}
    (tmp_path / "gw.yaml").write_text(front(models))
    with started(tmp_path / "gw.log", str(tmp_path / "gw.yaml")) as gateway:
        gateway.wait_until_said("NOT READY")
        assert "does not describe slow: the upstream server cannot be reached" in gateway.said
        assert infer(gateway, "late", x=[1.0], seconds=[0.0]).status == 404
        file = _one_model(tmp_path / "up.yaml", tmp_path, grpc=[{"bind": where}])
        with running(file):
            wait_until(lambda: gateway.get("/v2/models/late/ready").status == 200)
            assert infer(gateway, "late", x=[1.0], seconds=[0.0]).status == 200
        assert gateway.stop() == 0


def test_it_stops_at_once_while_it_waits_for_a_server(tmp_path: Path) -> None:
    with started(tmp_path / "probe.log", str(_one_model(tmp_path / "probe.yaml", tmp_path))) as probe:
        probe.wait_until_ready()
        nowhere = address(probe, "grpc")
    patient = remote("open_inference", "grpc", nowhere, "slow", wait_seconds=600)
    late = remote("open_inference", "grpc", nowhere, "slow", wait_seconds=0)
    (tmp_path / "gw.yaml").write_text(front({"late": late, "patient": patient}))
    with started(tmp_path / "gw.log", str(tmp_path / "gw.yaml")) as gateway:
        gateway.wait_until_said("FAILED late")
        assert gateway.stop() == 0
        assert "Traceback" not in gateway.said_itself, gateway.said


@pytest.mark.parametrize("transport", ["grpc", "http"])
def test_grps_streams_through(transport: str, upstream: Gateway, tmp_path: Path) -> None:
    count = {"datatype": "INT32", "shape": [1]}
    model = remote(
        "grps",
        transport,
        address(upstream, transport),
        "countdown",
        upstream={"version": 1},
        decoupled=True,
        inputs=[{"name": "start", **count}],
        outputs=[{"name": "count", **count}],
    )
    (tmp_path / "gw.yaml").write_text(front({"countdown": model}))
    with running(tmp_path / "gw.yaml") as gateway:
        answers = [*streamed(gateway, "countdown", 2, triton_enable_empty_final_response=True)]
        assert [*map(number, answers[:-1])] == [2, 1, 0]
        assert answers[-1].infer_response.parameters["triton_final_response"].bool_param
        assert gateway.stop() == 0


TALKER = """
import os, time
import numpy as np
from tensorgate.gateway.contract.errors import InvalidArgument

class Talker:
    def __init__(self, context):
        self.seen = context.parameters["seen"]

    def infer(self, inputs, request):
        start = int(inputs["start"][0])
        if start < 0:
            raise InvalidArgument("a negative number")
        yield {"count": np.array([start], np.int32)}
        if start == 666:
            raise ValueError("too much")
        if start == 9:
            time.sleep(0.2)
            os.kill(os.getpid(), 9)
        for _ in range(500):
            time.sleep(0.02)
            if request.cancelled:
                with open(self.seen, "a") as file:
                    file.write("cancelled\\n")
                return
"""
COUNT = {"datatype": "INT32", "shape": [1]}
STREAMS = [("open_inference", "grpc"), ("open_inference", "http"), ("grps", "grpc"), ("grps", "http")]


@one_process(reason="it kills the server: of a group, only the supervisor")
@pytest.mark.parametrize(("dialect", "transport"), STREAMS)
def test_what_happens_in_mid_stream_is_carried_on(dialect: str, transport: str, tmp_path: Path) -> None:
    (tmp_path / "talker.py").write_text(TALKER)
    seen = tmp_path / "seen"
    tensors = {"inputs": [{"name": "start", **COUNT}], "outputs": [{"name": "count", **COUNT}]}
    talker = {"backend": "python", "path": "talker.py:Talker", "parameters": {"seen": str(seen)}, **tensors}
    (tmp_path / "up.yaml").write_text(front({"talker": talker}))
    with running(tmp_path / "up.yaml") as up:
        where = address(up, transport)
        there = remote(dialect, transport, where, "talker", upstream={"version": 1}, decoupled=True, **tensors)
        (tmp_path / "gw.yaml").write_text(front({"talker": there}))
        with running(tmp_path / "gw.yaml") as gateway:
            failed = [*streamed(gateway, "talker", 666)]
            assert number(failed[0]) == 666
            assert [each.error_message for each in failed[1:]] == ["ValueError: too much"]
            (refused,) = streamed(gateway, "talker", -1)
            assert refused.error_message == "a negative number"
            leaving: Any = streamed(gateway, "talker", 5)
            assert number(next(leaving)) == 5
            leaving.close()
            wait_until(lambda: seen.exists() and seen.read_text() == "cancelled\n")
            lost = [*streamed(gateway, "talker", 9)]
            assert number(lost[0]) == 9
            assert [each.error_message for each in lost[1:]] == ["the connection to the upstream server broke"]
            assert gateway.stop() == 0
            assert "Traceback" not in gateway.said_itself, gateway.said


@pytest.mark.parametrize("transport", ["grpc", "http"])
def test_a_dialect_without_streams_is_refused_when_the_model_is_loaded(
    transport: str, upstream: Gateway, tmp_path: Path
) -> None:
    tensors = {"inputs": [{"name": "start", **COUNT}], "outputs": [{"name": "count", **COUNT}]}
    model = remote("tf_serving", transport, address(upstream, transport), "countdown", decoupled=True, **tensors)
    (tmp_path / "gw.yaml").write_text(front({"countdown": model}))
    with started(tmp_path / "gw.log", str(tmp_path / "gw.yaml")) as gateway:
        gateway.wait_until_said("FAILED countdown")
        assert f"a decoupled model cannot be asked in tf_serving over {transport}" in gateway.said


def _one_model(file: Path, folder: Path, **listen: Any) -> Path:
    (folder / "slow.py").write_text(SLOW)
    slow = {"backend": "python", "path": "slow.py:Slow", "parameters": {"seen": f"{folder}/seen"}, **TENSORS}
    file.write_text(yaml.safe_dump({"listen": listening() | listen, "models": {"slow": slow}}))
    return file

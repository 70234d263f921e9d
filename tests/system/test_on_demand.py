"""More models than memory: loaded when somebody asks for them, whoever asks, and gone when others need their room."""

from __future__ import annotations

import json
import shutil
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import onnx
import pytest
import yaml
from onnx import TensorProto, helper, numpy_helper
from serving import DEMO, HOST, Gateway, running
from waiting import wait_until

from tensorgate.adapters.protobuf.messages import message
from tensorgate.gateway.models.file_digest import files_digest

SIDE = 256
"""Of a model's weights: 256 KiB."""
MODELS = 12
ROOM = {"cpu": "3MiB"}
X = [1.0] * SIDE


def make(folder: Path, factor: float) -> None:
    """x [n, SIDE] -> y, all of it times a factor of the model's own: nobody else's answer looks like it."""
    folder.mkdir(parents=True)
    weights = numpy_helper.from_array(np.diag(np.full(SIDE, factor, np.float32)), "w")
    specs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", SIDE]) for name in "xy"]
    graph = helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["y"])], "g", specs[:1], specs[1:], [weights])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)
    onnx.save(model, folder / "model.onnx")


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    for number in range(MODELS):
        make(folder / f"m{number}/1", number + 1.0)
        (folder / f"m{number}/model.yaml").write_text("backend: onnx\nmax_batch_size: 8\n")
    return folder


def written(folder: Path, repository: Path, **sections: Any) -> Path:
    file = folder / "gateway.yaml"
    bind = {"bind": f"{HOST}:0"}
    listen = {"http": [bind], "grpc": [dict(bind)], "metrics": dict(bind)}
    told = {"listen": listen, "repositories": [str(repository)], "grps": {"initially_online": True}, **sections}
    file.write_text(yaml.safe_dump(told))
    return file


@pytest.fixture(scope="module")
def gateway(models: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    residency = {"on_demand": True, "max_resident_bytes": ROOM, "pin": ["m0"]}
    with running(written(tmp_path_factory.mktemp("gateway"), models, residency=residency)) as it:
        yield it
        assert it.stop() == 0
        assert "Traceback" not in it.said


def by_v2(gateway: Gateway, name: str) -> float:
    inputs = [{"name": "x", "datatype": "FP32", "shape": [1, SIDE], "data": X}]
    answer = gateway.post(f"/v2/models/{name}/infer", {"inputs": inputs})
    assert answer.status == 200, answer
    return float(answer.json["outputs"][0]["data"][0])


def by_tf_serving(gateway: Gateway, name: str) -> float:
    answer = gateway.post(f"/v1/models/{name}:predict", {"instances": [X]})
    assert answer.status == 200, answer
    return float(answer.json["predictions"][0][0])


def by_grps(gateway: Gateway, name: str) -> float:
    answer = gateway.post("/grps/v1/infer/predict?return-ndarray=true", {"model": f"{name}-1", "ndarray": [X]})
    assert answer.status == 200, answer
    return float(answer.json["ndarray"][0][0])


def by_grpc(gateway: Gateway, name: str) -> float:
    request = message("inference.ModelInferRequest")(
        model_name=name,
        inputs=[{"name": "x", "datatype": "FP32", "shape": [1, SIDE]}],
        raw_input_contents=[np.array(X, np.float32).tobytes()],
    )
    with grpc.insecure_channel(f"{HOST}:{gateway.grpc_port}") as channel:
        call = channel.unary_unary(
            "/inference.GRPCInferenceService/ModelInfer",
            request_serializer=lambda each: each.SerializeToString(),
            response_deserializer=message("inference.ModelInferResponse").FromString,
        )
        return float(np.frombuffer(call(request, timeout=60).raw_output_contents[0], np.float32)[0])


WAYS = (by_v2, by_tf_serving, by_grps, by_grpc)


def test_every_dialect_finds_every_model(gateway: Gateway) -> None:
    for number in range(MODELS):
        assert WAYS[number % len(WAYS)](gateway, f"m{number}") == number + 1
    told = gateway.metrics()
    assert told.total("tensorgate_demand_evictions_total", cause="memory") > 0
    assert told.total("tensorgate_resident_bytes", device="cpu") <= 3 << 20
    assert told.total("tensorgate_resident_models") < MODELS


def test_many_callers_of_few_models_and_few_of_many(gateway: Gateway) -> None:
    """Everybody gets his own model's answer, and nobody an error, while models come and go."""
    source = np.random.default_rng(7)
    asks = [(WAYS[source.integers(4)], int(min(source.zipf(1.5), MODELS)) - 1) for _ in range(160)]
    with ThreadPoolExecutor(8) as callers:
        answers = callers.map(lambda ask: ask[0](gateway, f"m{ask[1]}"), asks)
    assert list(answers) == [number + 1 for _, number in asks]


def test_who_looks_at_a_model_does_not_load_it(gateway: Gateway) -> None:
    absent = next(
        f"m{number}"
        for number in range(MODELS)
        if gateway.get(f"/v1/models/m{number}").json["model_version_status"][0]["state"] == "START"
    )
    before = gateway.metrics().total("tensorgate_demand_loads_total")
    status = gateway.get(f"/v1/models/{absent}").json["model_version_status"]
    assert status == [{"version": "1", "state": "START", "status": {"error_code": "OK", "error_message": ""}}]
    assert gateway.get(f"/v2/models/{absent}/ready").status == 200
    metadata = gateway.get(f"/v2/models/{absent}").json
    assert (metadata["platform"], metadata["versions"]) == ("onnxruntime_onnx", ["1"])
    assert metadata["inputs"] == [{"name": "x", "datatype": "FP32", "shape": [-1, SIDE]}]
    assert gateway.get(f"/v2/models/{absent}/config").json["max_batch_size"] == 8
    signatures = gateway.get(f"/v1/models/{absent}/metadata").json["metadata"]["signature_def"]["signature_def"]
    assert signatures["serving_default"]["inputs"]["x"]["dtype"] == "DT_FLOAT"
    assert gateway.get(f"/v2/models/{absent}/stats").json == {"model_stats": []}
    index = {each["name"]: each for each in gateway.post("/v2/repository/index", {}).json}
    assert index[absent] == {"name": absent, "state": "UNAVAILABLE", "reason": "loaded when it is asked for"}
    assert index["m0"]["state"] == "READY"
    assert gateway.metrics().total("tensorgate_demand_loads_total") == before
    assert gateway.get("/v2/health/ready").status == 200
    assert gateway.get("/v2/models/nobody/ready").status == 400
    assert gateway.post("/v1/models/nobody:predict", {"instances": [X]}).status == 404


@pytest.mark.parametrize("number", [0, MODELS - 1])
def test_what_is_wrong_with_a_request_is_told_in_the_words_of_its_dialect(gateway: Gateway, number: int) -> None:
    name = f"m{number}"
    refused = gateway.post(f"/v1/models/{name}:predict", {"instances": [[1.0]]})
    assert refused.status == 400
    assert "error" in refused.json
    assert gateway.get(f"/v1/models/{name}/versions/7").status == 404
    late = gateway.request("POST", f"/v1/models/{name}/versions/7:predict", {"instances": [X]})
    assert late.status == 404


def test_a_file_that_is_no_model_is_told_and_tried_again_later(models: Path, tmp_path: Path) -> None:
    folder = tmp_path / "models"
    shutil.copytree(models / "m1", folder / "good")
    shutil.copytree(models / "m2", folder / "bad")
    whole = (folder / "bad/1/model.onnx").read_bytes()
    (folder / "bad/1/model.onnx").write_bytes(whole[: len(whole) // 2])
    with running(written(tmp_path, folder, residency={"on_demand": True})) as gateway:
        for _ in range(2):
            refused = gateway.post("/v1/models/bad:predict", {"instances": [X]})
            assert refused.status == 503
            assert int(refused.headers["Retry-After"]) >= 1
            assert str(tmp_path) not in refused.body.decode()
        assert gateway.get("/v2/models/bad/ready").status == 400
        (state,) = gateway.get("/v1/models/bad").json["model_version_status"]
        assert (state["state"], state["status"]["error_code"]) == ("END", "UNAVAILABLE")
        assert by_tf_serving(gateway, "good") == 2
        (folder / "bad/1/model.onnx").write_bytes(whole)
        wait_until(lambda: gateway.post("/v1/models/bad:predict", {"instances": [X]}).status == 200)
        assert by_v2(gateway, "bad") == 3
        assert gateway.stop() == 0


def test_callers_load_and_unload_by_hand(models: Path, tmp_path: Path) -> None:
    residency = {"on_demand": True, "max_resident_bytes": ROOM}
    with running(written(tmp_path, models, residency=residency, model_control={"mode": "explicit"})) as gateway:
        assert gateway.post("/v2/repository/models/m3/load", {}).status == 200
        for number in range(4, MODELS):
            assert by_v2(gateway, f"m{number}") == number + 1
        states = {each["name"]: each["state"] for each in gateway.post("/v2/repository/index", {}).json}
        assert states["m3"] == "READY", "what a caller has loaded stays until he unloads it"
        assert gateway.post("/v2/repository/models/m3/unload", {}).status == 200
        refused = gateway.post("/v2/models/m3/infer", {"inputs": []})
        assert refused.status in (400, 404)
        assert gateway.get("/v2/models/m3/ready").status == 400
        assert gateway.post("/v2/repository/models/m3/load", {}).status == 200
        assert by_grps(gateway, "m3") == 4
        assert gateway.stop() == 0


def test_a_route_an_ensemble_and_those_who_are_left_out(models: Path, tmp_path: Path) -> None:
    """Of names that match no pattern all are there from the start on."""
    step = {"inputs": {"x": "x"}, "outputs": {"y": "y"}}
    twice = {
        "backend": "ensemble",
        "max_batch_size": 8,
        "inputs": [{"name": "x", "datatype": "FP32", "shape": [-1, SIDE]}],
        "outputs": [{"name": "z", "datatype": "FP32", "shape": [-1, SIDE]}],
        "steps": [{"model": "m1", **step}, {"model": "m2", "inputs": {"x": "y"}, "outputs": {"y": "z"}}],
    }
    sections = {
        "models": {"twice": twice},
        "routes": {"either": [{"model": "m4", "weight": 1}, {"model": "m5", "weight": 1}], "one-1": [{"model": "m6"}]},
        "residency": {"on_demand": ["m[1-9]*", "twice"], "max_resident_bytes": ROOM},
    }
    with running(written(tmp_path, models, **sections)) as gateway:
        states = {each["name"]: each["state"] for each in gateway.post("/v2/repository/index", {}).json}
        assert {name for name, state in states.items() if state == "READY"} == {"m0"}
        assert {by_v2(gateway, "either") for _ in range(20)} == {5.0, 6.0}
        assert by_grps(gateway, "one") == 7.0
        for number in (7, 8, 9, 10, 11):
            by_v2(gateway, f"m{number}")
        for _ in range(3):
            answer = gateway.post("/v1/models/twice:predict", {"instances": [X]})
            assert answer.status == 200, answer
            assert answer.json["predictions"][0][0] == 6.0
            by_v2(gateway, "m9")
        assert gateway.stop() == 0


def test_callers_who_leave_and_callers_who_are_late(models: Path, tmp_path: Path) -> None:
    """A load goes on for those who come after; a deadline counts while it does."""
    file = written(tmp_path, models, residency={"on_demand": True, "wait": 0})
    with running(file) as gateway:
        turned_away = gateway.post("/v1/models/m1:predict", {"instances": [X]})
        assert turned_away.status == 503
        assert turned_away.headers["Retry-After"] == "1"
        wait_until(lambda: gateway.post("/v1/models/m1:predict", {"instances": [X]}).status == 200)
        stop = threading.Event()

        def leave() -> None:
            while not stop.is_set():
                body = json.dumps({"instances": [X]})
                head = f"POST /v1/models/m2:predict HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
                with socket.create_connection((HOST, gateway.port)) as caller:
                    caller.sendall(head.encode() + body.encode())

        leaving = threading.Thread(target=leave)
        leaving.start()
        try:
            wait_until(lambda: gateway.post("/v1/models/m2:predict", {"instances": [X]}).status == 200)
        finally:
            stop.set()
            leaving.join()
        assert gateway.stop() == 0
        assert "Traceback" not in gateway.said


def test_nothing_is_read_of_a_model_that_proves_nothing(models: Path, tmp_path: Path) -> None:
    """Neither for who looks nor for who asks: proofs come before a file is parsed."""
    folder = tmp_path / "models"
    shutil.copytree(models / "m1", folder / "good")
    shutil.copytree(models / "m2", folder / "other")
    control = {"verify": {"sha256": files_digest(folder / "good/1").sha256}}
    with running(written(tmp_path, folder, residency={"on_demand": True}, model_control=control)) as gateway:
        metadata = gateway.get("/v2/models/good").json
        assert metadata["inputs"] == [{"name": "x", "datatype": "FP32", "shape": [-1, SIDE]}]
        for refused in (gateway.get("/v2/models/other"), gateway.post("/v1/models/other:predict", {"instances": [X]})):
            assert refused.status == 503
            assert "not verified: the SHA-256 of 1 is" in refused.json["error"]
        assert by_v2(gateway, "good") == 2
        assert gateway.stop() == 0


def test_models_of_texts_are_listed_and_answer(tmp_path: Path) -> None:
    """A page for chats lists models first, and asks one of them then."""
    demo = DEMO.parent / "demo/models"
    writer = yaml.safe_load(DEMO.read_text())["models"]["writer"]
    text = {key: str(DEMO.parent / value) if key != "kind" else value for key, value in writer["text"].items()}
    del writer["example"]
    models = {"writer": {**writer, "path": f"{demo}/writer.py:Writer", "text": text}}
    models["plain"] = {"backend": "onnx", "path": str(demo / "half_plus_two")}
    file = written(tmp_path, tmp_path / "none", models=models, residency={"on_demand": True})
    (tmp_path / "none").mkdir()
    with running(file) as gateway:
        for _ in range(2):
            listed = gateway.get("/openai/v1/models").json["data"]
            assert [(each["id"], each["task"]) for each in listed] == [("writer", "completion")]
            said = gateway.post("/openai/v1/completions", {"model": "writer", "prompt": "In the", "max_tokens": 3})
            assert said.status == 200, said
            assert said.json["usage"]["completion_tokens"] == 3
        assert gateway.get("/openai/v1/models/nobody").status == 404
        assert gateway.metrics().total("tensorgate_resident_models") == 1
        assert gateway.stop() == 0

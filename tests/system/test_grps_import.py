"""From a grps server's two files to answers: import, check, serve, and clients that go on as they did."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import onnx
import pytest
import yaml
from onnx import TensorProto, helper
from serving import HOST, Gateway, command, running

from tensorgate.adapters.protobuf.messages import message

SERVER = """
interface: {framework: http+grpc, host: 0.0.0.0, port: "7080, 7081", customized_predict_http: {path: /v1/predict}}
max_connections: 1000
max_concurrency: 32
log: {log_dir: ./logs, log_backup_count: 7}
"""
INFERENCE = """
models:
  - {name: your_model, version: 1.0.0, device: cpu, inferer_type: torch, inferer_path: ./data/first.pt,
     converter_type: torch, batching: {type: dynamic, max_batch_size: 4, batch_timeout_us: 0}}
  - {name: your_model, version: 1.10, device: cpu, inferer_type: torch, inferer_path: ./data/second.pt,
     converter_type: torch, batching: {type: none}}
dag: {type: sequential, name: your_dag, nodes: [{name: node-1, type: model, model: your_model-1.10}]}
"""
GrpsMessage = message("grps.protos.v1.GrpsMessage")


def plus(file: Path, amount: float) -> None:
    """y = x + amount, of any number of rows: the model and its export."""
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 2]) for name in "xy")
    constant = helper.make_tensor("c", TensorProto.FLOAT, [1], [amount])
    graph = helper.make_graph([helper.make_node("Add", ["x", "c"], ["y"])], "g", [x], [y], [constant])
    file.parent.mkdir(exist_ok=True)
    file.touch()
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), file.with_suffix(".onnx")
    )


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """The old server's files as they are; ports alone are changed, to free ones."""
    folder = tmp_path_factory.mktemp("old_server")
    plus(folder / "data" / "first.pt", 1)
    plus(folder / "data" / "second.pt", 2)
    conf, file = folder / "conf", folder / "gateway.yaml"
    conf.mkdir()
    (conf / "server.yml").write_text(SERVER)
    (conf / "inference.yml").write_text(INFERENCE)
    done = command("import", "grps", str(conf / "server.yml"), str(conf / "inference.yml"), "-o", str(file))
    assert done.returncode == 0, done.stderr
    done = command("check", "--load", str(file))
    assert (done.returncode, done.stderr) == (0, "")
    text = file.read_text()
    assert (text.count("0.0.0.0:7080"), text.count("0.0.0.0:7081")) == (1, 1)
    file.write_text(text.replace("0.0.0.0:7080", f"{HOST}:0").replace("0.0.0.0:7081", f"{HOST}:0"))
    with running(file) as serving:
        yield serving
        assert serving.stop() == 0


def predict(gateway: Gateway, query: str, path: str = "/grps/v1/infer/predict", **body: Any) -> tuple[int, Any]:
    answer = gateway.post(f"{path}?return-ndarray=true{query}", {"ndarray": [[1, 2]], **body})
    return answer.status, answer.json.get("ndarray", answer.json["status"]["msg"])


def test_models_answer_under_the_names_that_clients_say(gateway: Gateway) -> None:
    assert predict(gateway, "&model=your_model-1.0.0") == (200, [[2.0, 3.0]])
    assert predict(gateway, "&model=your_model-1.10") == (200, [[3.0, 4.0]])
    assert predict(gateway, "", model="your_model-1.0.0") == (200, [[2.0, 3.0]])
    assert predict(gateway, "&model=your_model") == (500, "Model your_model not found.")
    assert predict(gateway, "&model=your_model-1.1") == (500, "Model your_model-1.1 not found.")


def test_the_dag_answers_who_names_no_model(gateway: Gateway) -> None:
    assert predict(gateway, "") == predict(gateway, "", path="/v1/predict") == (200, [[3.0, 4.0]])


def test_metadata_is_that_of_the_old_files(gateway: Gateway) -> None:
    answer = gateway.post("/grps/v1/metadata/model", {"str_data": "your_model"})
    entry = yaml.safe_load(answer.json["str_data"])
    assert (entry["name"], entry["version"]) == ("your_model", "1.0.0")  # of two, the first that stands there
    assert entry["batching"] == {"type": "dynamic", "max_batch_size": 4, "batch_timeout_us": 0}
    told = yaml.safe_load(gateway.get("/grps/v1/metadata/server").json["str_data"])
    assert [(each["name"], each["version"]) for each in told["models"]] == [
        ("your_model", "1.0.0"),
        ("your_model", "1.10"),
    ]
    assert told["dag"]["nodes"][0]["model"] == "your_model-1.10"
    assert told["interface"]["customized_predict_http"]["path"] == "/v1/predict"


def test_grpc_answers_too(gateway: Gateway) -> None:
    tensor = {"dtype": 7, "shape": [1, 2], "flat_float32": [1, 2]}
    asked = GrpsMessage(model="your_model-1.0.0", gtensors={"tensors": [tensor]})
    with grpc.insecure_channel(f"{HOST}:{gateway.grpc_port}") as channel:
        call = channel.unary_unary(
            "/grps.protos.v1.GrpsService/Predict",
            request_serializer=lambda sent: sent.SerializeToString(),
            response_deserializer=GrpsMessage.FromString,
        )
        answer = call(asked, timeout=10)
    assert (answer.status.code, list(answer.gtensors.tensors[0].flat_float32)) == (200, [2, 3])

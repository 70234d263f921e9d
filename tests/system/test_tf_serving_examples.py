"""Classification and regression as clients meet them: a model of YAML's signatures, over both transports."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from serving import HOST, Gateway

from tensorgate.adapters.protobuf.messages import message

Serve = Callable[[str], Gateway]
PREDICTION = "/tensorflow.serving.PredictionService/"
MODEL = """
import numpy as np

class Model:
    runs = 0

    def __init__(self, context): pass

    def infer(self, inputs, request):
        Model.runs += 1
        x = inputs["x"]
        names = np.array([[b"sum", b"max"]] * len(x), object)
        return {
            "scores": np.stack([x.sum(1), x.max(1)], 1),
            "names": names,
            "value": x.sum(1),
            "runs": np.full(len(x), Model.runs, np.float32),
        }
"""
CONFIG = """
models:
  m:
    backend: python
    path: {folder}/model.py:Model
    max_batch_size: 8
    inputs: [{{name: x, datatype: FP32, shape: [-1, 2]}}]
    outputs:
      - {{name: scores, datatype: FP32, shape: [-1, 2]}}
      - {{name: names, datatype: BYTES, shape: [-1, 2]}}
      - {{name: value, datatype: FP32, shape: [-1]}}
      - {{name: runs, datatype: FP32, shape: [-1]}}
    signatures:
      serving_default: {{method: classify, inputs: {{f: x}}, scores: scores, classes: names}}
      regress: {{method: regress, inputs: {{f: x}}, outputs: {{outputs: value}}}}
      count: {{method: regress, inputs: {{f: x}}, outputs: {{outputs: runs}}}}
"""
BIND = f'listen: {{http: [{{bind: "{HOST}:0"}}], grpc: [{{bind: "{HOST}:0"}}]}}\n'


@pytest.fixture
def gateway(tmp_path: Path, serve: Serve) -> Gateway:
    (tmp_path / "model.py").write_text(MODEL)
    return serve(BIND + CONFIG.format(folder=tmp_path))


@pytest.fixture
def ask(gateway: Gateway) -> Iterator[Callable[[str, Any, str], Any]]:
    with grpc.insecure_channel(f"{HOST}:{gateway.grpc_port}") as channel:

        def call(method: str, request: Any, kind: str) -> Any:
            body = channel.unary_unary(PREDICTION + method)(request.SerializeToString(), timeout=30)
            return message(f"tensorflow.serving.{kind}").FromString(body)

        yield call


def example(*values: float) -> Any:
    found = message("tensorflow.Example")()
    found.features.feature["f"].float_list.value.extend(values)
    return found


def test_both_transports_say_the_same(gateway: Gateway, ask: Callable[[str, Any, str], Any]) -> None:
    rows = [[1.0, 2.0], [3.5, 0.5]]
    body = {"examples": [{"f": row} for row in rows]}
    answer = gateway.post("/v1/models/m:classify", body)
    text = b'{\n    "results": [[["sum", 3.0], ["max", 2.0]], [["sum", 4.0], ["max", 3.5]]\n    ]\n}'
    assert (answer.status, answer.body, answer.headers["Content-Type"]) == (200, text, "application/json")
    request = message("tensorflow.serving.ClassificationRequest")(model_spec={"name": "m"})
    request.input.example_list.examples.extend(example(*row) for row in rows)
    result = ask("Classify", request, "ClassificationResponse").result
    lists = [[[one.label, one.score] for one in each.classes] for each in result.classifications]
    assert lists == json.loads(text)["results"]

    answer = gateway.post("/v1/models/m:regress", {"signature_name": "regress"} | body)
    assert answer.body == b'{\n    "results": [3.0, 4.0]\n}'
    request.model_spec.signature_name = "regress"
    result = ask("Regress", request, "RegressionResponse").result
    assert [one.value for one in result.regressions] == [3, 4]


def test_a_class_that_sees_the_signature_runs_once_for_each_of_a_multi_inference(
    ask: Callable[[str, Any, str], Any],
) -> None:
    request = message("tensorflow.serving.MultiInferenceRequest")()
    request.input.example_list.examples.append(example(1, 2))
    for signature, verb in (("", "classify"), ("regress", "regress"), ("count", "regress")):
        task = request.tasks.add(method_name=f"tensorflow/serving/{verb}")
        task.model_spec.name = "m"
        task.model_spec.signature_name = signature
    runs = []
    for _ in range(2):
        classes, value, count = ask("MultiInference", request, "MultiInferenceResponse").results
        runs.append(count.regression_result.regressions[0].value)
        assert classes.classification_result.classifications[0].classes[0].score == 3
        assert value.regression_result.regressions[0].value == 3
    assert runs[1] == runs[0] + 3


def test_too_many_examples_for_a_batch(gateway: Gateway, ask: Callable[[str, Any, str], Any]) -> None:
    answer = gateway.post("/v1/models/m:classify", {"examples": [{"f": [1.0, 2.0]}] * 9})
    text = "Task size 9 is larger than maximum input batch size 8"
    assert (answer.status, answer.json) == (400, {"error": text})
    request = message("tensorflow.serving.ClassificationRequest")(model_spec={"name": "m"})
    request.input.example_list.examples.extend([example(1, 2)] * 9)
    with pytest.raises(grpc.RpcError) as caught:
        ask("Classify", request, "ClassificationResponse")
    assert (caught.value.code(), caught.value.details()) == (grpc.StatusCode.INVALID_ARGUMENT, text)

"""TensorFlow Serving over gRPC as min-tfs-client calls it. Its generated messages are those of 2020: they need a
protobuf that is older than the other clients', in its pure Python.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

os.environ["PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION"] = "python"
sys.path.insert(0, str(Path(sys.prefix) / "2020"))

import checks
import grpc
import numpy as np
from min_tfs_client.requests import TensorServingClient
from min_tfs_client.tensors import tensor_proto_to_ndarray
from tensorflow.core.example.example_pb2 import Example
from tensorflow_serving.apis.classification_pb2 import ClassificationRequest
from tensorflow_serving.apis.get_model_metadata_pb2 import GetModelMetadataRequest, SignatureDefMap
from tensorflow_serving.apis.get_model_status_pb2 import GetModelStatusRequest
from tensorflow_serving.apis.inference_pb2 import MultiInferenceRequest
from tensorflow_serving.apis.model_service_pb2_grpc import ModelServiceStub
from tensorflow_serving.apis.prediction_service_pb2_grpc import PredictionServiceStub
from tensorflow_serving.apis.regression_pb2 import RegressionRequest

REGRESS = "tensorflow/serving/regress"
CLASSIFY = "classify_x_to_y"
DTYPES = {
    "BOOL": np.bool_,
    "INT8": np.int8,
    "INT16": np.int16,
    "INT32": np.int32,
    "INT64": np.int64,
    "UINT8": np.uint8,
    "UINT16": np.uint16,
    "UINT32": np.uint32,
    "UINT64": np.uint64,
    "FP32": np.float32,
    "FP64": np.float64,
}


def client_for(address: str) -> TensorServingClient:
    host, _, port = address.partition(":")
    return TensorServingClient(host, int(port))


def example(x: float) -> Example:
    message = Example()
    message.features.feature["x"].float_list.value.append(x)
    return message


# -------------------------------------------------------------------------------------------------------- its own calls


def check_predicts(address: str) -> None:
    client = client_for(address)
    for version in (None, 1):
        answer = client.predict_request("half_plus_two", {"x": np.array([1, 2, 5], np.float32)}, model_version=version)
        assert tensor_proto_to_ndarray(answer.outputs["y"]).tolist() == [2.5, 3.0, 4.5]
        spec = answer.model_spec
        assert (spec.name, spec.version.value, spec.signature_name) == ("half_plus_two", 1, "serving_default")


def check_every_dtype_in_typed_fields(address: str) -> None:
    client = client_for(address)
    for datatype, dtype in DTYPES.items():
        sent: Any = np.array([0, 1, 100, 17], dtype)
        answer = client.predict_request(f"echo_{datatype}", {"x": sent})
        got = tensor_proto_to_ndarray(answer.outputs["x"])
        assert got.dtype == dtype, datatype
        assert got.tolist() == sent.tolist(), datatype


def check_strings(address: str) -> None:
    answer = client_for(address).predict_request("upper", {"text": np.array(["straße", "a"])})
    assert [*answer.outputs["shout"].string_val] == [b"STRASSE", b"A"]


def check_an_unknown_model(address: str) -> None:
    one = {"x": np.array([1], np.float32)}
    error = checks.raised(grpc.RpcError, lambda: client_for(address).predict_request("absent", one))
    assert error.code() is grpc.StatusCode.NOT_FOUND
    assert error.details() == "Servable not found for request: Latest(absent)"


# ------------------------------------------------------------------------------------ its messages, TensorFlow's stubs


def check_regresses(address: str) -> None:
    request = RegressionRequest()
    request.model_spec.name = "half_plus_three"
    request.model_spec.signature_name = REGRESS
    request.input.example_list.examples.extend([example(1.0), example(2.0)])
    with grpc.insecure_channel(address) as channel:
        answer = PredictionServiceStub(channel).Regress(request, 10)
    assert [each.value for each in answer.result.regressions] == [3.5, 4.0]
    assert (answer.model_spec.version.value, answer.model_spec.signature_name) == (123, REGRESS)


def check_regresses_with_a_context(address: str) -> None:
    request = RegressionRequest()
    request.model_spec.name = "half_plus_three"
    request.model_spec.signature_name = REGRESS
    request.input.example_list_with_context.context.CopyFrom(example(8.0))
    request.input.example_list_with_context.examples.extend([Example(), example(2.0)])
    with grpc.insecure_channel(address) as channel:
        answer = PredictionServiceStub(channel).Regress(request, 10)
    assert [each.value for each in answer.result.regressions] == [7.0, 4.0]


def check_classifies(address: str) -> None:
    request = ClassificationRequest()
    request.model_spec.name = "half_plus_three"
    request.model_spec.signature_name = CLASSIFY
    request.input.example_list.examples.extend([example(1.0), example(2.0)])
    with grpc.insecure_channel(address) as channel:
        answer = PredictionServiceStub(channel).Classify(request, 10)
    rows = [[(each.label, each.score) for each in row.classes] for row in answer.result.classifications]
    assert rows == [[("", 3.5)], [("", 4.0)]]


def check_several_inferences_at_once(address: str) -> None:
    request = MultiInferenceRequest()
    for signature, method in ((REGRESS, REGRESS), (CLASSIFY, "tensorflow/serving/classify")):
        task = request.tasks.add(method_name=method)
        task.model_spec.name = "half_plus_three"
        task.model_spec.signature_name = signature
    request.input.example_list.examples.append(example(4.0))
    with grpc.insecure_channel(address) as channel:
        first, second = PredictionServiceStub(channel).MultiInference(request, 10).results
    assert first.regression_result.regressions[0].value == 5.0
    assert second.classification_result.classifications[0].classes[0].score == 5.0
    assert [each.model_spec.signature_name for each in (first, second)] == [REGRESS, CLASSIFY]


def check_no_examples(address: str) -> None:
    request = RegressionRequest()
    request.model_spec.name = "half_plus_three"
    request.model_spec.signature_name = REGRESS
    with grpc.insecure_channel(address) as channel:
        error = checks.raised(grpc.RpcError, lambda: PredictionServiceStub(channel).Regress(request, 10))
    assert (error.code(), error.details()) == (grpc.StatusCode.INVALID_ARGUMENT, "Input is empty.")


def check_metadata(address: str) -> None:
    request = GetModelMetadataRequest(metadata_field=["signature_def"])
    request.model_spec.name = "half_plus_three"
    with grpc.insecure_channel(address) as channel:
        answer = PredictionServiceStub(channel).GetModelMetadata(request, 10)
    packed = answer.metadata["signature_def"]
    assert packed.type_url == "type.googleapis.com/tensorflow.serving.SignatureDefMap"
    signatures = SignatureDefMap.FromString(packed.value).signature_def
    assert {name: each.method_name for name, each in signatures.items()} == {
        "serving_default": "tensorflow/serving/predict",
        REGRESS: REGRESS,
        CLASSIFY: "tensorflow/serving/classify",
    }
    assert signatures["serving_default"].inputs["x"].tensor_shape.unknown_rank


def check_status(address: str) -> None:
    request = GetModelStatusRequest()
    request.model_spec.name = "half_plus_three"
    with grpc.insecure_channel(address) as channel:
        (only,) = ModelServiceStub(channel).GetModelStatus(request, 10).model_version_status
    assert (only.version, only.state, only.status.error_code) == (123, 30, 0)


if __name__ == "__main__":
    checks.main(globals())

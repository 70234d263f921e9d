"""TensorFlow Serving over gRPC as ovmsclient calls it: its gRPC client, and its messages where that has no call."""

from __future__ import annotations

from collections.abc import Callable

import checks
import grpc
import numpy as np
from ovmsclient import make_grpc_client
from ovmsclient.tfs_compat.base.errors import InvalidInputError, ModelNotFoundError
from ovmsclient.tfs_compat.grpc.tensors import make_tensor_proto
from ovmsclient.tfs_compat.protos.tensorflow.core.framework.types_pb2 import DT_FLOAT, DT_STRING
from ovmsclient.tfs_compat.protos.tensorflow_serving.apis.get_model_status_pb2 import GetModelStatusRequest
from ovmsclient.tfs_compat.protos.tensorflow_serving.apis.model_service_pb2_grpc import ModelServiceStub
from ovmsclient.tfs_compat.protos.tensorflow_serving.apis.predict_pb2 import PredictRequest
from ovmsclient.tfs_compat.protos.tensorflow_serving.apis.prediction_service_pb2_grpc import PredictionServiceStub

INTEGERS = {
    "INT8": np.int8,
    "INT16": np.int16,
    "INT32": np.int32,
    "INT64": np.int64,
    "UINT8": np.uint8,
    "UINT16": np.uint16,
    "UINT32": np.uint32,
    "UINT64": np.uint64,
}
FLOATS = {"FP16": np.float16, "FP32": np.float32, "FP64": np.float64}
LARGE = 3 << 20
"""Elements; 12 MB of float32, three times what gRPC takes unless it is told to."""


def request_for(model: str, **inputs: object) -> PredictRequest:
    request = PredictRequest()
    request.model_spec.name = model
    for name, value in inputs.items():
        request.inputs[name].CopyFrom(make_tensor_proto(value))
    return request


# -------------------------------------------------------------------------------------------------------------- predict


def check_predicts_by_version(address: str) -> None:
    client = make_grpc_client(address)
    pictures = np.array(checks.images(), np.float32)
    for version in (1, 2):
        assert tuple(client.predict({"image": pictures}, "digits", version).argmax(axis=1)) == checks.SHOWN
    assert client.predict({"x": [1.0, 2.0, 5.0]}, "half_plus_two", 1).tolist() == [2.5, 3.0, 4.5]
    assert client.predict({"x": 5.0}, "half_plus_three", 123).tolist() == [5.5]


def check_integers_keep_every_bit(address: str) -> None:
    client = make_grpc_client(address)
    for datatype, dtype in INTEGERS.items():
        limits = np.iinfo(dtype)
        sent = np.array([limits.min, limits.max, 0, 1, limits.max // 3], dtype)
        got = client.predict({"x": sent}, f"echo_{datatype}", 1)
        assert got.dtype == dtype, datatype
        assert got.tolist() == sent.tolist(), datatype


def check_floats_keep_every_bit(address: str) -> None:
    client = make_grpc_client(address)
    for datatype, dtype in FLOATS.items():
        limits = np.finfo(dtype)
        odd = [limits.max, limits.min, limits.tiny, limits.eps, -0.0, np.inf, -np.inf, np.nan, 1 / 3]
        sent = np.array(odd, dtype)
        got = client.predict({"x": sent}, f"echo_{datatype}", 1)
        assert got.dtype == dtype, datatype
        assert got.tobytes() == sent.tobytes(), datatype


def check_booleans(address: str) -> None:
    sent = np.array([True, False, False, True])
    got = make_grpc_client(address).predict({"x": sent}, "echo_BOOL", 1)
    assert got.dtype == np.bool_
    assert got.tolist() == sent.tolist()


def check_strings_and_bytes(address: str) -> None:
    client = make_grpc_client(address)
    assert client.predict({"text": ["straße", "a"]}, "upper", 1).tolist() == [b"STRASSE", b"A"]
    sent = [b"\xff\x00\xfe", b"a" * 1000, b"\x01"]
    assert client.predict({"x": sent}, "echo_BYTES", 1).tolist() == sent


def check_typed_fields_in_place_of_content(address: str) -> None:
    """One value stands for all, as TensorFlow itself writes tensors of equal numbers."""
    proto = make_tensor_proto(2.0, dtype=DT_FLOAT, shape=[1])
    del proto.tensor_shape.dim[:]
    for size in (2, 3):
        proto.tensor_shape.dim.add(size=size)
    got = make_grpc_client(address).predict({"x": proto}, "half_plus_two", 1)
    assert got.tolist() == [[3.0] * 3] * 2


def check_empty_tensors(address: str) -> None:
    client = make_grpc_client(address)
    assert client.predict({"x": np.zeros((0,), np.float32)}, "half_plus_two", 1).shape == (0,)
    assert client.predict({"x": np.zeros((2, 0), np.float32)}, "half_plus_two", 1).shape == (2, 0)
    assert client.predict({"text": make_tensor_proto([], DT_STRING)}, "upper", 1).shape == (0,)


def check_several_outputs_and_a_filter(address: str) -> None:
    rows = np.arange(32, dtype=np.int32).reshape(2, 16)
    outputs = make_grpc_client(address).predict({"INPUT0": rows, "INPUT1": rows}, "add_sub", 1)
    assert outputs["OUTPUT0"].tolist() == (rows + rows).tolist()
    assert outputs["OUTPUT1"].tolist() == (rows - rows).tolist()
    request = request_for("add_sub", INPUT0=rows, INPUT1=rows)
    request.output_filter.append("OUTPUT1")
    with grpc.insecure_channel(address) as channel:
        answer = PredictionServiceStub(channel).Predict(request, 10)
    assert [*answer.outputs] == ["OUTPUT1"]


def check_large_tensors(address: str) -> None:
    sent = np.arange(LARGE, dtype=np.float32)
    got = make_grpc_client(address).predict({"x": sent}, "echo_FP32", 1, 60)
    assert got.tobytes() == sent.tobytes()


# ----------------------------------------------------------------------------------------------------- about the models


def check_status(address: str) -> None:
    available = {"state": "AVAILABLE", "error_code": 0, "error_message": ""}
    client = make_grpc_client(address)
    assert client.get_model_status("digits", 2) == {2: available}
    assert client.get_model_status("half_plus_three", 123) == {123: available}
    request = GetModelStatusRequest()
    request.model_spec.name = "digits"
    with grpc.insecure_channel(address) as channel:
        answer = ModelServiceStub(channel).GetModelStatus(request, 10)
    assert [each.version for each in answer.model_version_status] == [2, 1]


def check_metadata(address: str) -> None:
    client = make_grpc_client(address)
    rows = {"shape": [-1, 16], "dtype": "DT_INT32"}
    assert client.get_model_metadata("add_sub", 1) == {
        "model_version": 1,
        "inputs": {"INPUT0": rows, "INPUT1": rows},
        "outputs": {"OUTPUT0": rows, "OUTPUT1": rows},
    }
    about = client.get_model_metadata("digits", 1)
    assert about["model_version"] == 1
    assert about["inputs"] == {"image": {"shape": [-1, 8, 8], "dtype": "DT_FLOAT"}}
    assert about["outputs"] == {"scores": {"shape": [-1, 10], "dtype": "DT_FLOAT"}}


# ----------------------------------------------------------------------------------------------------- what is wrong


def check_its_own_errors(address: str) -> None:
    client = make_grpc_client(address)

    def raised(kind: type[Exception], call: Callable[[], object]) -> str:
        return str(checks.raised(kind, call)).removeprefix("Error occurred during handling the request: ")

    absent = "Servable not found for request: Specific(absent, 1)"
    one = {"x": [1.0]}
    assert raised(ModelNotFoundError, lambda: client.predict(one, "absent", 1)) == absent
    assert raised(ModelNotFoundError, lambda: client.get_model_metadata("absent", 1)) == absent
    assert raised(ModelNotFoundError, lambda: client.get_model_status("absent", 1)) == (
        "Could not find version 1 of model absent"
    )
    assert raised(ModelNotFoundError, lambda: client.predict(one, "half_plus_two")) == (
        "Servable not found for request: Specific(half_plus_two, 0)"
    )
    wrong = raised(InvalidInputError, lambda: client.predict({"x": np.array([1], np.int32)}, "half_plus_two", 1))
    assert wrong == "Expects arg[0] to be float but int32 is provided"
    missing = raised(InvalidInputError, lambda: client.predict({}, "half_plus_two", 1))
    assert missing.startswith("input size does not match signature: 0!=1 ")


def check_a_model_that_takes_too_long(address: str) -> None:
    client = make_grpc_client(address)
    checks.raised(TimeoutError, lambda: client.predict({"x": np.array([2000], np.int32)}, "slow", 1, 0.2))
    assert client.predict({"x": np.array([0], np.int32)}, "slow", 1).tolist() == [0]


if __name__ == "__main__":
    checks.main(globals())

"""What users of tensorflow-serving-api do, done by it and by TensorFlow, which reads every tensor of the answers.

Runs in the environment .venv-tensorflow with the address of gRPC.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import checks
import grpc
import numpy as np
import tensorflow as tf
from tensorflow_serving.apis import (
    classification_pb2,
    get_model_metadata_pb2,
    get_model_status_pb2,
    inference_pb2,
    model_management_pb2,
    model_service_pb2_grpc,
    predict_pb2,
    prediction_service_pb2_grpc,
    regression_pb2,
)

Array = np.ndarray[Any, Any]

HALF = "half_plus_three"
REGRESS = "tensorflow/serving/regress"
CLASSIFY = "classify_x_to_y"
UNLIMITED = (("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1))
LARGE = 6 << 20
"""Elements; 24 MB of float32."""

NUMBERS = {
    "INT8": tf.int8,
    "INT16": tf.int16,
    "INT32": tf.int32,
    "INT64": tf.int64,
    "UINT8": tf.uint8,
    "UINT16": tf.uint16,
    "UINT32": tf.uint32,
    "UINT64": tf.uint64,
    "FP16": tf.float16,
    "BF16": tf.bfloat16,
    "FP32": tf.float32,
    "FP64": tf.float64,
    "BOOL": tf.bool,
}
IN_TYPED_FIELDS = ("UINT16", "BOOL")
AVAILABLE = get_model_status_pb2.ModelVersionStatus.AVAILABLE


@contextmanager
def prediction(address: str) -> Iterator[prediction_service_pb2_grpc.PredictionServiceStub]:
    with grpc.insecure_channel(address, UNLIMITED) as channel:
        yield prediction_service_pb2_grpc.PredictionServiceStub(channel)


@contextmanager
def model_service(address: str) -> Iterator[model_service_pb2_grpc.ModelServiceStub]:
    with grpc.insecure_channel(address) as channel:
        yield model_service_pb2_grpc.ModelServiceStub(channel)


def request_for(model: str, signature: str = "", **inputs: Any) -> predict_pb2.PredictRequest:
    request = predict_pb2.PredictRequest()
    request.model_spec.name = model
    request.model_spec.signature_name = signature
    for name, value in inputs.items():
        request.inputs[name].CopyFrom(tf.make_tensor_proto(value))
    return request


def predicted(address: str, model: str, **inputs: Any) -> dict[str, Array]:
    with prediction(address) as stub:
        answer = stub.Predict(request_for(model, **inputs), 30)
    return {name: tf.make_ndarray(proto) for name, proto in answer.outputs.items()}


def refused(call: Callable[[], object]) -> tuple[str, str]:
    error = checks.raised(grpc.RpcError, call)
    return error.code().name, error.details()


def example(**features: Any) -> tf.train.Example:
    kinds = {float: ("float_list", tf.train.FloatList), int: ("int64_list", tf.train.Int64List)}
    made = {}
    for name, value in features.items():
        field, kind = kinds.get(type(value), ("bytes_list", tf.train.BytesList))
        made[name] = tf.train.Feature(**{field: kind(value=[value])})
    return tf.train.Example(features=tf.train.Features(feature=made))


def extremes(dtype: tf.DType) -> list[Any]:
    if dtype == tf.bool:
        return [True, False]
    if dtype.is_integer:
        return [dtype.min, dtype.max, 0, 1]
    return [dtype.min, dtype.max, 0.1, -0.0, np.nan, np.inf, -np.inf, 1 / 3]


# -------------------------------------------------------------------------------------------------------------- predict


def check_every_dtype_as_it_is_written(address: str) -> None:
    """Most as content, some in typed fields."""
    for datatype, dtype in NUMBERS.items():
        sent = np.array(extremes(dtype), dtype.as_numpy_dtype)
        proto = tf.make_tensor_proto(sent)
        assert bool(proto.tensor_content) is (datatype not in IN_TYPED_FIELDS), datatype
        got = predicted(address, f"echo_{datatype}", x=proto)["x"]
        assert (got.dtype, got.shape) == (sent.dtype, sent.shape), datatype
        assert got.tobytes() == sent.tobytes(), datatype


def check_every_dtype_in_typed_fields(address: str) -> None:
    """A tensor of equal numbers, which TensorFlow writes once for all of them."""
    for datatype, dtype in NUMBERS.items():
        sent = np.full((5,), extremes(dtype)[1], dtype.as_numpy_dtype)
        proto = tf.make_tensor_proto(sent[:1], shape=[5])
        assert not proto.tensor_content, datatype
        got = predicted(address, f"echo_{datatype}", x=proto)["x"]
        assert got.dtype == sent.dtype, datatype
        assert got.tobytes() == sent.tobytes(), datatype


def check_strings(address: str) -> None:
    sent = [b"", b"a", "straße".encode(), b"\xff\x00", b"x" * 100_000]
    assert predicted(address, "echo_BYTES", x=sent)["x"].tolist() == sent
    packed = tf.make_tensor_proto([b"a", b"bc", b""])
    packed.tensor_content = b"\x01\x02\x00abc"
    del packed.string_val[:]
    assert predicted(address, "echo_BYTES", x=packed)["x"].tolist() == [b"a", b"bc", b""]
    assert predicted(address, "upper", text=["straße", "a"])["shout"].tolist() == [b"STRASSE", b"A"]


def check_shapes(address: str) -> None:
    for value in (5.0, [1.0, 2.0, 5.0], [[1.0], [2.0]], np.zeros((2, 0, 3), np.float32), np.ones((1,) * 8, np.float32)):
        sent = np.array(value, np.float32)
        got = predicted(address, HALF, x=sent)["y"]
        assert got.shape == sent.shape
        assert got.tobytes() == (sent / 2 + 3).tobytes()


def check_large_tensors(address: str) -> None:
    sent = np.arange(LARGE, dtype=np.float32)
    assert predicted(address, "echo_FP32", x=sent)["x"].tobytes() == sent.tobytes()


def check_an_answer_in_typed_fields(address: str) -> None:
    """Every element is there: small clients read no other form."""
    with prediction(address) as stub:
        answer = stub.Predict(request_for(HALF, x=np.ones((2, 3), np.float32)), 10)
    proto = answer.outputs["y"]
    assert [*proto.float_val] == [3.5] * 6
    assert not proto.tensor_content
    assert [dim.size for dim in proto.tensor_shape.dim] == [2, 3]
    spec = answer.model_spec
    assert (spec.name, spec.version.value, spec.signature_name) == (HALF, 123, "serving_default")


def check_versions_and_labels(address: str) -> None:
    pictures = np.array(checks.images(), np.float32)
    with prediction(address) as stub:
        for choice in ({}, {"version": {"value": 1}}, {"version_label": "stable"}, {"version_label": "canary"}):
            request = request_for("digits", image=pictures)
            request.model_spec.MergeFrom(type(request.model_spec)(**choice))
            answer = stub.Predict(request, 10)
            assert tuple(tf.make_ndarray(answer.outputs["scores"]).argmax(axis=1)) == checks.SHOWN, choice
            old = "version" in choice or choice.get("version_label") == "stable"
            assert answer.model_spec.version.value == (1 if old else 2), choice
            assert answer.model_spec.WhichOneof("version_choice") == "version"


def check_filtered_outputs(address: str) -> None:
    rows = np.arange(16, dtype=np.int32).reshape(1, 16)
    request = request_for("add_sub", INPUT0=rows, INPUT1=rows)
    with prediction(address) as stub:
        assert {*stub.Predict(request, 10).outputs} == {"OUTPUT0", "OUTPUT1"}
        request.output_filter.append("OUTPUT0")
        outputs = stub.Predict(request, 10).outputs
        assert [*outputs] == ["OUTPUT0"]
        assert tf.make_ndarray(outputs["OUTPUT0"]).tolist() == (rows * 2).tolist()
        request.output_filter.append("OUTPUT0")
        assert refused(lambda: stub.Predict(request, 10)) == (
            "INVALID_ARGUMENT",
            "duplicate output tensor alias: OUTPUT0",
        )
        request.output_filter[1] = "OUTPUT7"
        assert refused(lambda: stub.Predict(request, 10)) == (
            "INVALID_ARGUMENT",
            "output tensor alias not found in signature: OUTPUT7 Outputs expected to be in the set {OUTPUT0,OUTPUT1}.",
        )


def check_refusals(address: str) -> None:
    one = np.ones(1, np.float32)
    at_version = request_for(HALF, x=one)
    at_version.model_spec.version.value = 7
    at_label = request_for(HALF, x=one)
    at_label.model_spec.version_label = "nightly"
    cut = tf.make_tensor_proto(np.ones(3, np.float32))
    cut.tensor_content = cut.tensor_content[:-1]
    table = [
        (predict_pb2.PredictRequest(), "INVALID_ARGUMENT", "Missing ModelSpec"),
        (request_for("absent", x=one), "NOT_FOUND", "Servable not found for request: Latest(absent)"),
        (at_version, "NOT_FOUND", f"Servable not found for request: Specific({HALF}, 7)"),
        (at_label, "INVALID_ARGUMENT", "Unrecognized servable version label: nightly"),
        (request_for(HALF, "no", x=one), "FAILED_PRECONDITION", 'Serving signature key "no" not found.'),
        (
            request_for(HALF, x=np.ones(1, np.int64)),
            "INVALID_ARGUMENT",
            "Expects arg[0] to be float but int64 is provided",
        ),
        (request_for(HALF, x=cut), "INVALID_ARGUMENT", "tensor parsing error: x"),
        (
            request_for(HALF, x=one, z=one),
            "INVALID_ARGUMENT",
            "input size does not match signature: 2!=1 len({x,z}) != len({x}). "
            "Sent extra: {z}. Missing but required: {}.",
        ),
    ]
    with prediction(address) as stub:
        for request, code, text in table:
            assert refused(lambda request=request: stub.Predict(request, 10)) == (code, text)


def check_deadlines_and_cancelled_calls(address: str) -> None:
    slow = request_for("slow", x=np.array([3000], np.int32))
    with prediction(address) as stub:
        begun = time.monotonic()
        assert refused(lambda: stub.Predict(slow, 0.3))[0] == "DEADLINE_EXCEEDED"
        waiting = [stub.Predict.future(slow, 30) for _ in range(3)]
        time.sleep(0.2)
        for call in waiting:
            call.cancel()
        assert all(call.cancelled() for call in waiting)
        answer = stub.Predict(request_for("slow", x=np.array([1], np.int32)), 30)
        assert tf.make_ndarray(answer.outputs["x"]).tolist() == [1]
        assert time.monotonic() - begun < 9, "calls that were cancelled are not computed"


def check_many_calls_at_once(address: str) -> None:
    with prediction(address) as stub:
        sent = [np.array([number, -number], np.float32) for number in range(300)]
        calls = [stub.Predict.future(request_for(HALF, x=x), 30) for x in sent]
        for x, call in zip(sent, calls, strict=True):
            assert tf.make_ndarray(call.result().outputs["y"]).tolist() == (x / 2 + 3).tolist()


# ------------------------------------------------------------------------------------------------------------- examples


def check_regresses(address: str) -> None:
    request = regression_pb2.RegressionRequest()
    request.model_spec.name = HALF
    request.model_spec.signature_name = REGRESS
    request.input.example_list.examples.extend(example(x=float(number)) for number in range(5))
    with prediction(address) as stub:
        answer = stub.Regress(request, 10)
    assert [each.value for each in answer.result.regressions] == [3.0, 3.5, 4.0, 4.5, 5.0]
    assert answer.model_spec.version.value == 123


def check_classifies_with_a_context(address: str) -> None:
    request = classification_pb2.ClassificationRequest()
    request.model_spec.name = HALF
    request.model_spec.signature_name = CLASSIFY
    request.input.example_list_with_context.context.CopyFrom(example(x=4.0, note=b"shared"))
    request.input.example_list_with_context.examples.extend([example(), example(x=1.0, more=3)])
    with prediction(address) as stub:
        answer = stub.Classify(request, 10)
    rows = [[(each.label, each.score) for each in row.classes] for row in answer.result.classifications]
    assert rows == [[("", 5.0)], [("", 3.5)]]


def check_several_inferences_at_once(address: str) -> None:
    request = inference_pb2.MultiInferenceRequest()
    for signature, method in ((REGRESS, REGRESS), (CLASSIFY, "tensorflow/serving/classify")):
        task = request.tasks.add(method_name=method)
        task.model_spec.name = HALF
        task.model_spec.signature_name = signature
    request.input.example_list.examples.extend([example(x=2.0), example(x=4.0)])
    with prediction(address) as stub:
        first, second = stub.MultiInference(request, 10).results
        assert [each.value for each in first.regression_result.regressions] == [4.0, 5.0]
        assert [row.classes[0].score for row in second.classification_result.classifications] == [4.0, 5.0]
        request.tasks.add().CopyFrom(request.tasks[0])
        assert refused(lambda: stub.MultiInference(request, 10)) == (
            "INVALID_ARGUMENT",
            f"Duplicate evaluation of signature: {REGRESS}",
        )


def check_refused_examples(address: str) -> None:
    request = regression_pb2.RegressionRequest()
    request.model_spec.name = HALF
    request.model_spec.signature_name = REGRESS
    with prediction(address) as stub:
        assert refused(lambda: stub.Regress(request, 10)) == ("INVALID_ARGUMENT", "Input is empty.")
        for wrong in (example(), example(x=1), example(x=b"1"), example(z=1.0)):
            request.input.example_list.CopyFrom(type(request.input.example_list)(examples=[wrong]))
            assert refused(lambda: stub.Regress(request, 10))[0] == "INVALID_ARGUMENT", wrong
        request.model_spec.signature_name = "no"
        assert refused(lambda: stub.Regress(request, 10)) == (
            "INVALID_ARGUMENT",
            "No signature was found with the name: no",
        )


# ----------------------------------------------------------------------------------------------------- about the models


def check_metadata(address: str) -> None:
    request = get_model_metadata_pb2.GetModelMetadataRequest(metadata_field=["signature_def"])
    request.model_spec.name = "digits"
    request.model_spec.version_label = "stable"
    with prediction(address) as stub:
        answer = stub.GetModelMetadata(request, 10)
        assert (answer.model_spec.name, answer.model_spec.version.value) == ("digits", 1)
        signatures = get_model_metadata_pb2.SignatureDefMap()
        assert answer.metadata["signature_def"].Unpack(signatures)
        signature = signatures.signature_def["serving_default"]
        image, scores = signature.inputs["image"], signature.outputs["scores"]
        assert tf.TensorShape(image.tensor_shape).as_list() == [None, 8, 8]
        assert tf.TensorShape(scores.tensor_shape).as_list() == [None, 10]
        assert tf.dtypes.as_dtype(image.dtype) == tf.float32
        assert signature.method_name == tf.compat.v1.saved_model.PREDICT_METHOD_NAME
        request.metadata_field.append("assets")
        assert refused(lambda: stub.GetModelMetadata(request, 10)) == (
            "INVALID_ARGUMENT",
            "Metadata field assets is not supported",
        )


def check_status(address: str) -> None:
    request = get_model_status_pb2.GetModelStatusRequest()
    request.model_spec.name = "digits"
    with model_service(address) as stub:
        versions = stub.GetModelStatus(request, 10).model_version_status
        assert [(each.version, each.state) for each in versions] == [(2, AVAILABLE), (1, AVAILABLE)]
        request.model_spec.name = "absent"
        assert refused(lambda: stub.GetModelStatus(request, 10)) == (
            "NOT_FOUND",
            "Could not find any versions of model absent",
        )


def check_a_configuration_that_is_no_list(address: str) -> None:
    request = model_management_pb2.ReloadConfigRequest()
    request.config.custom_model_config.type_url = "type.googleapis.com/x"
    with model_service(address) as stub:
        assert refused(lambda: stub.HandleReloadConfigRequest(request, 10)) == (
            "INVALID_ARGUMENT",
            "ServerModelConfig type not supported by HandleReloadConfigRequest. "
            "Only ModelConfigList is currently supported",
        )


def check_a_reload(address: str) -> None:
    """The last check: two models of the demo are all that is served afterwards, one under another name."""
    request = model_management_pb2.ReloadConfigRequest(metric_names=[":tensorflow:serving:request_count"])
    for name, folder in ((HALF, HALF), ("other", "half_plus_two")):
        path = str(checks.IMAGES.parent / "models" / folder)
        request.config.model_config_list.config.add(name=name, base_path=path, model_platform="tensorflow")
    request.config.model_config_list.config[0].version_labels["stable"] = 123
    with model_service(address) as stub:
        answer = stub.HandleReloadConfigRequest(request, 30)
        assert answer.status.error_code == 0
        assert [each.name for each in answer.metric] == [":tensorflow:serving:request_count"]
        status = get_model_status_pb2.GetModelStatusRequest()
        status.model_spec.name = "other"
        assert [each.state for each in stub.GetModelStatus(status, 10).model_version_status] == [AVAILABLE]
        request.config.model_config_list.config[0].version_labels["stable"] = 7
        assert refused(lambda: stub.HandleReloadConfigRequest(request, 30)) == (
            "FAILED_PRECONDITION",
            f"Request to assign label to version 7 of model {HALF}, which is not currently available for inference",
        )
    assert predicted(address, "other", x=np.ones(1, np.float32))["y"].tolist() == [2.5]
    gone = request_for("digits", image=np.zeros((1, 8, 8), np.float32))
    with prediction(address) as stub:
        labelled = request_for(HALF, x=np.ones(1, np.float32))
        labelled.model_spec.version_label = "stable"
        assert stub.Predict(labelled, 10).model_spec.version.value == 123
        assert refused(lambda: stub.Predict(gone, 10)) == (
            "NOT_FOUND",
            "Servable not found for request: Latest(digits)",
        )


if __name__ == "__main__":
    checks.main(globals())

"""TensorFlow Serving over gRPC as its clients meet it: the shipped demo, on one port with every other dialect."""

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from google.protobuf.json_format import MessageToDict
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2
from serving import HOST, Gateway, demo_config

from tensorgate.adapters.protobuf.messages import message

Serve = Callable[[str], Gateway]
PREDICTION, MODEL = "/tensorflow.serving.PredictionService/", "/tensorflow.serving.ModelService/"
SLOW = """
import time

class Slow:
    def __init__(self, context): self.context = context

    def infer(self, inputs, request):
        if inputs["x"].ravel()[0] < 0:
            while not request.cancelled:
                time.sleep(0.02)
            raise ValueError("left")
        return {"y": inputs["x"]}
"""


class Client:
    def __init__(self, port: int) -> None:
        unlimited = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
        self.channel = grpc.insecure_channel(f"{HOST}:{port}", options=unlimited)

    def ask(self, address: str, body: Any, kind: str, **more: Any) -> Any:
        body = body if isinstance(body, bytes) else body.SerializeToString()
        return message(f"tensorflow.serving.{kind}").FromString(
            self.channel.unary_unary(address)(body, timeout=more.pop("timeout", 30), **more)
        )

    def predict(self, model: str, spec: Any = None, outputs: Any = (), timeout: float = 30, **inputs: Any) -> Any:
        request = message("tensorflow.serving.PredictRequest")(
            model_spec={"name": model, **(spec or {})}, output_filter=outputs
        )
        for name, array in inputs.items():
            request.inputs[name].CopyFrom(as_tensor(array))
        return self.ask(PREDICTION + "Predict", request, "PredictResponse", timeout=timeout)

    def refused(self, *args: Any, **more: Any) -> tuple[str, str]:
        with pytest.raises(grpc.RpcError) as caught:
            self.predict(*args, **more)
        return caught.value.code().name, caught.value.details()


def as_tensor(array: Any) -> Any:
    array = np.asarray(array)
    numbers = {"f": (1, "float_val"), "i": (3, "int_val"), "O": (7, "string_val")}
    dtype, field = numbers[array.dtype.kind]
    shape = {"dim": [{"size": size} for size in array.shape]}
    return message("tensorflow.TensorProto")(dtype=dtype, tensor_shape=shape, **{field: array.ravel().tolist()})


def values(proto: Any, field: str) -> Any:
    return np.reshape(getattr(proto, field), [dim.size for dim in proto.tensor_shape.dim]).tolist()


@pytest.fixture(scope="module")
def client(demo: Gateway) -> Iterator[Client]:
    client = Client(demo.grpc_port)
    with client.channel:
        yield client


def test_predict_takes_any_shape_that_the_model_takes(client: Client) -> None:
    for shape in ((), (1,), (3,), (2, 2), (0, 2)):
        answer = client.predict("half_plus_two", x=np.full(shape, 5, np.float32))
        assert values(answer.outputs["y"], "float_val") == np.full(shape, 4.5).tolist()
    assert MessageToDict(answer.model_spec) == {
        "name": "half_plus_two",
        "version": "1",
        "signatureName": "serving_default",
    }


def test_predict_gives_what_rest_gives(demo: Gateway, client: Client) -> None:
    images = np.random.default_rng(0).integers(0, 17, (5, 8, 8)).astype(np.float32)
    for spec, address in (
        (None, "digits"),
        ({"version": {"value": 1}}, "digits/versions/1"),
        ({"version_label": "stable"}, "digits/labels/stable"),
    ):
        rest = demo.post(f"/v1/models/{address}:predict", {"instances": images.tolist()}).json["predictions"]
        answer = client.predict("digits", spec, image=images)
        assert np.array_equal(np.float32(rest), np.float32(values(answer.outputs["scores"], "float_val")))
        assert answer.model_spec.version.value == (2 if spec is None else 1)
        assert answer.model_spec.WhichOneof("version_choice") == "version"


def test_several_inputs_and_outputs(client: Client) -> None:
    a, b = np.arange(16, dtype=np.int32).reshape(1, 16), np.ones((1, 16), np.int32)
    answer = client.predict("add_sub", INPUT0=a, INPUT1=b)
    assert values(answer.outputs["OUTPUT0"], "int_val") == (a + b).tolist()
    assert values(answer.outputs["OUTPUT1"], "int_val") == (a - b).tolist()
    only = client.predict("add_sub", outputs=["OUTPUT1"], INPUT0=a, INPUT1=b)
    assert only.outputs.keys() == {"OUTPUT1"}


def test_strings(client: Client) -> None:
    [answer] = client.predict("upper", text=np.array([b"abc", b"x"], object)).outputs.values()
    assert list(answer.string_val) == [b"ABC", b"X"]


def test_a_large_tensor(client: Client) -> None:
    many = np.random.default_rng(0).random(3_000_000, np.float32)
    answer = client.predict("half_plus_two", x=many)
    assert np.array_equal(np.float32(answer.outputs["y"].float_val), many / 2 + 2)


def test_one_value_for_all(demo: Gateway, client: Client) -> None:
    request = message("tensorflow.serving.PredictRequest")(model_spec={"name": "half_plus_two"})
    request.inputs["x"].CopyFrom(as_tensor(np.float32([2])))
    request.inputs["x"].tensor_shape.dim[0].size = 1_000_000
    answer = client.ask(PREDICTION + "Predict", request, "PredictResponse")
    assert len(answer.outputs["y"].float_val) == 1_000_000
    assert set(answer.outputs["y"].float_val) == {3}
    request.inputs["x"].tensor_shape.dim[0].size = 10**12
    used = demo.cpu_s()
    with pytest.raises(grpc.RpcError) as caught:
        client.ask(PREDICTION + "Predict", request, "PredictResponse")
    assert (caught.value.code().name, caught.value.details()) == ("INVALID_ARGUMENT", "tensor parsing error: x")
    assert demo.cpu_s() - used < 2


def test_metadata_is_that_of_rest(demo: Gateway, client: Client) -> None:
    for name in ("digits", "add_sub", "upper"):
        request = message("tensorflow.serving.GetModelMetadataRequest")(
            model_spec={"name": name}, metadata_field=["signature_def"]
        )
        answer = client.ask(PREDICTION + "GetModelMetadata", request, "GetModelMetadataResponse")
        signatures = message("tensorflow.serving.SignatureDefMap")()
        assert answer.metadata["signature_def"].Unpack(signatures)
        plain = MessageToDict(signatures, preserving_proto_field_name=True, always_print_fields_with_no_presence=True)
        assert plain == demo.get(f"/v1/models/{name}/metadata").json["metadata"]["signature_def"]
        assert (answer.model_spec.name, answer.model_spec.signature_name) == (name, "")


def test_status_is_that_of_rest(demo: Gateway, client: Client) -> None:
    for spec, address in (({}, "digits"), ({"version": {"value": 1}}, "digits/versions/1")):
        request = message("tensorflow.serving.GetModelStatusRequest")(model_spec={"name": "digits", **spec})
        answer = client.ask(MODEL + "GetModelStatus", request, "GetModelStatusResponse")
        rest = demo.get(f"/v1/models/{address}").json["model_version_status"]
        got = MessageToDict(answer, preserving_proto_field_name=True)["model_version_status"]
        assert [(each["version"], each["state"]) for each in got] == [(each["version"], each["state"]) for each in rest]


STATUS_REFUSALS = [
    ({"name": "no"}, "Could not find any versions of model no"),
    ({}, "Could not find any versions of model "),
    ({"name": "digits", "version": {"value": 9}}, "Could not find version 9 of model digits"),
    ({"name": "digits", "version": {}}, "Could not find version 0 of model digits"),
]


@pytest.mark.parametrize(("spec", "text"), STATUS_REFUSALS)
def test_status_of_what_is_not_there(spec: Any, text: str, client: Client) -> None:
    request = message("tensorflow.serving.GetModelStatusRequest")(model_spec=spec)
    with pytest.raises(grpc.RpcError) as caught:
        client.ask(MODEL + "GetModelStatus", request, "GetModelStatusResponse")
    assert (caught.value.code().name, caught.value.details()) == ("NOT_FOUND", text)


ROW = np.zeros((1, 8, 8), np.float32)
REFUSALS: list[tuple[tuple[Any, ...], dict[str, Any], str, str]] = [
    (("no",), {"x": ROW}, "NOT_FOUND", "Servable not found for request: Latest(no)"),
    (
        ("digits", {"version": {"value": 7}}),
        {"image": ROW},
        "NOT_FOUND",
        "Servable not found for request: Specific(digits, 7)",
    ),
    (
        ("digits", {"version_label": "odd"}),
        {"image": ROW},
        "INVALID_ARGUMENT",
        "Unrecognized servable version label: odd",
    ),
    (
        ("no", {"version_label": "odd"}),
        {"image": ROW},
        "INVALID_ARGUMENT",
        "Unrecognized servable version label: odd",
    ),
    (
        ("digits", {"version_label": ""}),
        {"image": ROW},
        "INVALID_ARGUMENT",
        "Unrecognized servable version label: ",
    ),
    (("digits", {"version": {}}), {"image": ROW}, "NOT_FOUND", "Servable not found for request: Specific(digits, 0)"),
    (("",), {"image": ROW}, "INVALID_ARGUMENT", "ModelSpec has no name specified."),
    (
        ("digits", {"signature_name": "odd"}),
        {"image": ROW},
        "FAILED_PRECONDITION",
        'Serving signature key "odd" not found.',
    ),
    (
        ("digits",),
        {"image": ROW.astype(np.int32)},
        "INVALID_ARGUMENT",
        "Expects arg[0] to be float but int32 is provided",
    ),
    (
        ("countdown",),
        {"start": np.int32([3])},
        "UNIMPLEMENTED",
        "Model countdown gave no answer or several, and this protocol carries one",
    ),
]


@pytest.mark.parametrize(("args", "inputs", "code", "text"), REFUSALS)
def test_refusals(args: tuple[Any, ...], inputs: dict[str, Any], code: str, text: str, client: Client) -> None:
    assert client.refused(*args, **inputs) == (code, text)


def test_a_shape_that_the_model_does_not_take(client: Client) -> None:
    code, text = client.refused("digits", image=np.zeros((1, 7, 7), np.float32))
    assert code == "INVALID_ARGUMENT"
    assert "7" in text


def test_bytes_that_are_no_message(client: Client) -> None:
    for address in (PREDICTION + "Predict", PREDICTION + "GetModelMetadata", MODEL + "GetModelStatus"):
        with pytest.raises(grpc.RpcError) as caught:
            client.channel.unary_unary(address)(b"\x0a\xff", timeout=30)
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    with pytest.raises(grpc.RpcError) as caught:
        client.channel.unary_unary("/tensorflow.serving.SessionService/SessionRun")(b"", timeout=30)
    assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED


def test_health_and_reflection(client: Client) -> None:
    for name in ("", "ModelService", "PredictionService", "tensorflow.serving.PredictionService"):
        body = health_pb2.HealthCheckRequest(service=name).SerializeToString()
        answer = client.channel.unary_unary("/grpc.health.v1.Health/Check")(body, timeout=30)
        assert health_pb2.HealthCheckResponse.FromString(answer).status == health_pb2.HealthCheckResponse.SERVING
    questions = [{"list_services": ""}]
    questions += [{"file_containing_symbol": f"tensorflow.serving.{name}Service"} for name in ("Prediction", "Model")]
    questions += [{"file_by_filename": "google/protobuf/wrappers.proto"}]
    asked = (reflection_pb2.ServerReflectionRequest(**each).SerializeToString() for each in questions)
    call = client.channel.stream_stream("/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo")
    answers = [reflection_pb2.ServerReflectionResponse.FromString(each) for each in call(asked, timeout=30)]
    names = {each.name for each in answers[0].list_services_response.service}
    assert {"tensorflow.serving.PredictionService", "tensorflow.serving.ModelService"} <= names
    assert all(answer.file_descriptor_response.file_descriptor_proto for answer in answers[1:])


def test_elements_as_bytes_and_limits(serve: Serve, tmp_path: Path) -> None:
    """What only the YAML changes, and what only a slow model shows: time, and clients that leave."""
    (tmp_path / "slow.py").write_text(SLOW)
    tensor = {"datatype": "FP32", "shape": [-1]}
    slow = {
        "backend": "python",
        "path": f"{tmp_path}/slow.py:Slow",
        "inputs": [{"name": "x", **tensor}],
        "outputs": [{"name": "y", **tensor}],
    }
    text = demo_config({"slow": slow}, tf_serving={"tensor_content": True}, limits={"max_binary_bytes": 100_000})
    client = Client(serve(text).grpc_port)
    answer = client.predict("half_plus_two", x=np.float32([2, 4])).outputs["y"]
    assert answer.tensor_content == np.float32([3, 4]).tobytes()
    assert not answer.float_val

    assert len(client.predict("half_plus_two", x=np.zeros(24_000, np.float32)).outputs["y"].tensor_content) == 96_000
    code, _ = client.refused("half_plus_two", x=np.zeros(26_000, np.float32))
    assert code == "RESOURCE_EXHAUSTED"

    assert client.refused("slow", timeout=0.3, x=np.float32([-1]))[0] == "DEADLINE_EXCEEDED"
    request = message("tensorflow.serving.PredictRequest")(model_spec={"name": "slow"})
    request.inputs["x"].CopyFrom(as_tensor(np.float32([-1])))
    call = client.channel.unary_unary(PREDICTION + "Predict").future(request.SerializeToString())
    threading.Timer(0.3, call.cancel).start()
    with pytest.raises(grpc.FutureCancelledError):
        call.result(30)
    assert client.predict("slow", x=np.float32([1])).outputs["y"].tensor_content == np.float32([1]).tobytes()

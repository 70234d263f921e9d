"""GrpsService: real messages in, real messages out, and what is read by hand beside what protobuf reads."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as st_numpy

from tensorgate.adapters.grps import KIND, proto_message
from tensorgate.adapters.grps.options import GrpsMapping, GrpsOptions
from tensorgate.adapters.grps.proto_message import GrpsMessage, read_message, tensors_message
from tensorgate.adapters.grps.tensors import BY_DTYPE, BY_NUMBER, array_of
from tensorgate.adapters.protobuf.messages import message
from tensorgate.gateway.contract import errors
from tensorgate.gateway.contract.call import Call, Reply
from tensorgate.gateway.contract.canonical import InferRequest, InferResponse, ModelView
from tensorgate.gateway.contract.dialect import Endpoint, Resolve
from tensorgate.gateway.contract.errors import Code, GatewayError
from tensorgate.gateway.contract.questions import ModelConfiguration, ServerLive, ServerMetadata, ServerReady, SetOnline
from tensorgate.gateway.contract.tensor import BYTES, DTYPES

MakeModel = Callable[..., ModelView]
MakeResolve = Callable[..., Resolve]
SERVICE = "/grps.protos.v1.GrpsService/"
OK = {"code": 200, "msg": "OK", "status": 1}
METHODS = {
    "Predict": "single",
    "PredictStreaming": "server",
    "Online": "unary",
    "Offline": "unary",
    "CheckLiveness": "unary",
    "CheckReadiness": "unary",
    "ServerMetadata": "unary",
    "ModelMetadata": "unary",
}


def endpoint(method: str, **options: Any) -> Endpoint:
    return KIND.make(GrpsOptions(**options)).grpc[SERVICE + method]


def call_of(body: bytes) -> Call:
    return Call(body, "POST", SERVICE, {}, "grpc")


def ask(method: str, content: Any, resolve: Any = None) -> Any:
    body = content if isinstance(content, bytes) else GrpsMessage(**content).SerializeToString()
    return endpoint(method).decode(call_of(body), resolve)


def parsed(reply: Reply) -> Any:
    assert reply.grpc_code is Code.OK
    body = reply.body
    return GrpsMessage.FromString(body if isinstance(body, bytes) else b"".join(body))  # type: ignore[arg-type]


def text_model(make_model: MakeModel) -> ModelView:
    return make_model("m", {"text": ("BYTES", (-1,))}, {"said": ("BYTES", (-1,))})


def test_every_method_of_the_service_is_there() -> None:
    found = KIND.make(GrpsOptions()).grpc
    assert {name.removeprefix(SERVICE): each.stream for name, each in found.items()} == METHODS
    assert {name.removeprefix(SERVICE) for name, each in found.items() if each.admin} == {"Online", "Offline"}
    service = message("grps.protos.v1.GrpsMessage").DESCRIPTOR.file.services_by_name["GrpsService"]
    assert {method.name for method in service.methods} == METHODS.keys()


# ------------------------------------------------------------------------------------------------------- real messages

TENSOR = b"\x0a\x01x\x10\x07\x1a\x01\x02\x52\x08\x00\x00\x80\x3f\x00\x00\x00\x40"  # x: DT_FLOAT32 [2] = 1, 2
TENSORS = b"\x2a\x14\x0a\x12" + TENSOR
OK_BYTES = b"\x0a\x09\x08\xc8\x01\x12\x02OK\x18\x01"


def test_bytes_of_a_predict_in_both_directions(make_model: MakeModel, make_resolve: MakeResolve) -> None:
    view = make_model("m", {"x": ("FP32", (-1,))}, {"x": ("FP32", (-1,))})
    request = ask("Predict", b"\x12\x03m-1" + TENSORS, make_resolve(view))
    assert {name: array.tolist() for name, array in request.inputs.items()} == {"x": [1.0, 2.0]}
    reply = endpoint("Predict").encode(InferResponse({"x": np.array([1, 2], np.float32)}), request)
    assert b"".join(reply.body) == OK_BYTES + TENSORS  # type: ignore[arg-type]


def test_a_failure_is_a_message_and_the_call_is_ok() -> None:
    reply = endpoint("Predict").encode_error(errors.ModelNotFound("m-7"), call_of(b""))
    assert reply.body == b"\x0a\x1b\x08\xf4\x03\x12\x14Model m-7 not found.\x18\x02"
    assert reply.grpc_code is Code.OK


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("body", [b"\xff", b"\x0a\x05a", b"\x22\x01\xff", b"\x00"], ids=repr)
def test_what_is_no_message_fails_the_call(method: str, body: bytes, make_resolve: MakeResolve) -> None:
    with pytest.raises(GatewayError) as refused:
        ask(method, body, make_resolve())
    assert endpoint(method).encode_error(refused.value, call_of(body)).grpc_code is Code.INTERNAL


# ------------------------------------------------------------------------------------------------------------ payloads


def test_text_and_bytes(make_model: MakeModel, make_resolve: MakeResolve) -> None:
    view = text_model(make_model)
    answer = InferResponse({"said": np.array([b"hello"], BYTES)})
    for kind, sent, told in (
        ("str_data", "grps", "hello"),
        ("bin_data", b"\xff\0", b"hello"),
        ("str_data", "", "hello"),
    ):
        request = ask("Predict", {kind: sent}, make_resolve(view))
        assert request.inputs["text"].tolist() == [sent.encode() if isinstance(sent, str) else sent]
        answered = parsed(endpoint("Predict").encode(answer, request))
        assert answered.WhichOneof("data_oneof") == kind
        assert getattr(answered, kind) == told


def test_an_empty_answer_keeps_its_arm(make_model: MakeModel, make_resolve: MakeResolve) -> None:
    request = ask("Predict", {"bin_data": b"x"}, make_resolve(text_model(make_model)))
    answered = parsed(endpoint("Predict").encode(InferResponse({"said": np.array([b""], BYTES)}), request))
    assert (answered.WhichOneof("data_oneof"), answered.bin_data) == ("bin_data", b"")


def test_several_strings_are_tensors(make_model: MakeModel, make_resolve: MakeResolve) -> None:
    request = ask("Predict", {"str_data": "x"}, make_resolve(text_model(make_model)))
    answered = parsed(endpoint("Predict").encode(InferResponse({"said": np.array([b"a", b"b"], BYTES)}), request))
    [tensor] = answered.gtensors.tensors
    assert (tensor.name, tensor.dtype, [*tensor.shape], [*tensor.flat_string]) == ("said", 9, [2], ["a", "b"])


def test_maps(make_model: MakeModel, make_resolve: MakeResolve) -> None:
    mapping = GrpsMapping.model_validate({"gmap": {"s_i64": {"count": "n"}, "s_s": {"text": "t"}}})
    view = make_model("m", {"n": ("INT64", (1,)), "t": ("BYTES", (1,))}, {}, mappings={"grps": mapping})
    request = ask("Predict", {"gmap": {"s_i64": {"count": -5}, "s_s": {"text": "ü"}}}, make_resolve(view))
    assert {name: array.tolist() for name, array in request.inputs.items()} == {"n": [-5], "t": ["ü".encode()]}


def test_an_empty_message_gives_the_model_no_input(make_model: MakeModel, make_resolve: MakeResolve) -> None:
    assert ask("Predict", b"", make_resolve(text_model(make_model))).inputs == {}


@pytest.mark.parametrize(
    ("tensor", "said"),
    [
        (
            {"dtype": 7, "shape": [3], "flat_float32": [1, 2]},
            "Tensor size not match, shape: [3], expected size: 3, actual",
        ),
        ({"dtype": 7, "shape": [2], "flat_float64": [1, 2]}, "Tensor flat_float32 data is empty."),
        ({"dtype": 0, "shape": [2], "flat_float32": [1, 2]}, "Tensor dtype not supported: DT_INVALID."),
        ({"dtype": 42, "shape": [2], "flat_float32": [1, 2]}, "Tensor dtype not supported: 42."),
        ({"name": "x", "dtype": 1, "shape": [1], "flat_uint8": [300]}, "Failed to parse flat_uint8 field: a number is"),
        ({"dtype": 2, "shape": [1], "flat_int8": [-129]}, "Failed to parse flat_int8 field: a number is out of range."),
        (
            {"dtype": 7, "shape": [4294967295] * 3, "flat_float32": [1]},
            "Tensor size not match, shape: [4294967295, 429",
        ),
        ({"dtype": 7, "shape": [1] * 65, "flat_float32": [1]}, "Tensor has more than 64 dimensions."),
    ],
    ids=str,
)
def test_tensors_that_are_none(tensor: Any, said: str, make_model: MakeModel, make_resolve: MakeResolve) -> None:
    view = make_model("m", {"x": ("FP32", None)}, {})
    with pytest.raises(GatewayError) as refused:
        ask("Predict", {"gtensors": {"tensors": [tensor]}}, make_resolve(view))
    answered = parsed(endpoint("Predict").encode_error(refused.value, call_of(b"")))
    assert (answered.status.code, answered.status.status) == (500, 2)
    assert answered.status.msg.startswith(said)
    assert answered.WhichOneof("data_oneof") is None


# ----------------------------------------------------------------------------------------------------- other questions


@pytest.mark.parametrize(
    ("method", "question"),
    [
        ("Online", SetOnline(True)),
        ("Offline", SetOnline(False)),
        ("CheckLiveness", ServerLive()),
        ("CheckReadiness", ServerReady(online_gate=True)),
        ("ServerMetadata", ServerMetadata()),
    ],
)
def test_questions_without_content(method: str, question: Any) -> None:
    assert ask(method, b"") == question
    assert ask(method, {"str_data": "whatever"}) == question


def test_ready_or_not() -> None:
    question = ServerReady(online_gate=True)
    told = parsed(endpoint("CheckReadiness").encode(True, question)).status
    assert {field.name: value for field, value in told.ListFields()} == OK
    for code in (503, 403):
        told = parsed(endpoint("CheckReadiness", offline_grpc_code=code).encode(False, question)).status
        assert (told.code, told.msg, told.status) == (code, "Service Unavailable", 2)


@pytest.mark.parametrize(
    ("content", "code", "said"),
    [
        (b"", 400, "No model name."),
        ({"str_data": ""}, 400, "The model name is empty."),
        ({"bin_data": b"m"}, 400, "No "),
    ],
    ids=str,
)
def test_metadata_of_no_model(content: Any, code: int, said: str) -> None:
    with pytest.raises(GatewayError) as refused:
        ask("ModelMetadata", content)
    answered = parsed(endpoint("ModelMetadata").encode_error(refused.value, call_of(b"")))
    assert (answered.status.code, answered.status.msg[: len(said)]) == (code, said)


def test_metadata_of_a_model() -> None:
    assert ask("ModelMetadata", {"str_data": "digits"}) == ModelConfiguration("digits")
    told = parsed(endpoint("ModelMetadata").encode({"backend": "torch", "path": "m"}, ModelConfiguration("digits")))
    assert told.str_data.startswith("batching:\n  type: none\n")
    unknown = parsed(endpoint("ModelMetadata").encode_error(errors.ModelNotFound("x"), call_of(b"")))
    assert (unknown.status.code, unknown.status.msg) == (404, "Model not found.")


# ------------------------------------------------------------------------------------- read by hand, and by protobuf

NUMBERED = [dtype for dtype in BY_DTYPE if dtype != BYTES]
ARRAYS = st_numpy.arrays(st.sampled_from(NUMBERED), st_numpy.array_shapes(min_dims=0, max_dims=3, max_side=5))


def sent(name: str, array: Any) -> Any:
    row = BY_DTYPE[array.dtype]
    flat = array.astype(np.float32) if array.dtype == np.float16 else array
    return {"name": name, "dtype": row.number, "shape": array.shape, row.field: flat.reshape(-1).tolist()}


def plain(fields: dict[str, Any]) -> dict[str, Any]:
    tensors = [
        (each.name, each.dtype, each.shape, {k: v.tobytes() for k, v in each.data.items()})
        for each in fields["gtensors"]
    ]
    return fields | {"gtensors": tensors}


@given(st.lists(ARRAYS, max_size=3), st.text(max_size=3))
def test_reading_by_hand_is_reading(arrays: list[Any], model: str) -> None:
    tensors = [sent(f"t{number}", array) for number, array in enumerate(arrays)]
    body = GrpsMessage(model=model, gtensors={"tensors": tensors}).SerializeToString()
    by_protobuf = read_message(body)
    walked = proto_message.walk(body)
    assert walked is not None
    assert plain(walked) == plain(by_protobuf)
    for array, tensor in zip(arrays, walked["gtensors"], strict=True):
        if array.size:
            got = array_of(tensor)
            assert (got.dtype, got.shape, got.tobytes()) == (array.dtype, array.shape, array.tobytes())


@given(st.lists(ARRAYS, max_size=3))
def test_what_is_written_is_read(arrays: list[Any]) -> None:
    outputs = {f"t{number}": array for number, array in enumerate(arrays)}
    body = b"".join(tensors_message(outputs))
    answered = GrpsMessage.FromString(body)
    assert answered.SerializeToString(deterministic=True) == body or not arrays
    for (name, array), tensor in zip(outputs.items(), answered.gtensors.tensors, strict=True):
        row = BY_NUMBER[tensor.dtype]
        values = np.array(getattr(tensor, row.field), np.float64 if array.dtype.kind == "f" else np.int64)
        assert (tensor.name, tuple(tensor.shape)) == (name, array.shape)
        assert np.array_equal(values.astype(array.dtype).reshape(array.shape), array, equal_nan=array.dtype.kind == "f")


@given(st.binary(max_size=60))
def test_reading_by_hand_never_says_more_than_protobuf(body: bytes) -> None:
    walked = None
    try:
        walked = proto_message.walk(body)
    except Exception as error:  # what a part of it raises, the whole raises, too
        with pytest.raises(type(error)):
            GrpsMessage.FromString(body)
    if walked is not None:
        assert plain(walked) == plain(read_message(body))


def test_stream_and_its_end(make_model: MakeModel, make_resolve: MakeResolve) -> None:
    request = ask("PredictStreaming", {"str_data": "x"}, make_resolve(text_model(make_model)))
    assert isinstance(request, InferRequest)
    assert request.stream
    reply = endpoint("PredictStreaming").encode(InferResponse({"said": np.array([b"a"], BYTES)}), request)
    assert (parsed(reply).str_data, reply.streamed) == ("a", True)


def test_the_dtypes_are_those_of_the_table() -> None:
    assert {dtype.name: number for number, dtype in BY_NUMBER.items()} == {
        value.name: value.number
        for value in message("grps.protos.v1.GenericTensor").DESCRIPTOR.file.enum_types_by_name["DataType"].values
        if value.number
    }
    assert DTYPES[BY_NUMBER[6].datatype] == np.float16

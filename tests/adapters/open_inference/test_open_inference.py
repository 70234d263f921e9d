"""Open Inference V2 over HTTP, JSON: request lines and bodies as they come, replies to the byte."""

import json
import shlex
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as st_numpy

from tensorgate.adapters.open_inference import KIND
from tensorgate.adapters.open_inference.errors import ANSWERS
from tensorgate.adapters.open_inference.options import OpenInferenceOptions
from tensorgate.gateway.contract import errors
from tensorgate.gateway.contract.call import Call, Reply
from tensorgate.gateway.contract.canonical import InferRequest, InferResponse, ModelRef, ModelView, Sequence
from tensorgate.gateway.contract.dialect import Resolve
from tensorgate.gateway.contract.errors import GatewayError
from tensorgate.gateway.contract.questions import (
    ModelList,
    ModelMetadata,
    ModelReady,
    ServerDescription,
    ServerLive,
    ServerMetadata,
    ServerReady,
)
from tensorgate.gateway.contract.tensor import DATATYPES, DTYPES, TensorSpec

DIALECT = KIND.make(OpenInferenceOptions())
JSON = {"Content-Type": "application/json"}


@pytest.fixture
def models(make_model: Callable[..., ModelView]) -> dict[str, ModelView]:
    vector = {"x": ("FP32", (-1, 2))}
    views = [
        make_model("add", {"a": ("INT32", (-1, 2)), "b": ("INT32", (-1, 2))}, {"sum": ("INT32", (-1, 2))}),
        make_model("rows", vector, {"y": ("FP32", (-1, 2)), "z": ("FP32", (-1,))}, max_batch_size=4),
        make_model("rows2", {"x": ("FP32", (-1, 2)), "w": ("FP32", (-1, 1))}, {}, max_batch_size=4),
        make_model("text", {"t": ("BYTES", (-1,))}, {"t": ("BYTES", (-1,))}),
        make_model("token", vector, vector, decoupled=True),
        make_model("my model", vector, vector, version=3, versions=(1, 3)),
        *(make_model(name.lower(), {"x": (name, None)}, {"y": (name, None)}) for name in DTYPES),
    ]
    return {view.name: view for view in views}


@pytest.fixture
def resolve(models: dict[str, ModelView], make_resolve: Callable[..., Resolve]) -> Resolve:
    return make_resolve(*models.values())


def decode(
    resolve: Resolve, line: str, body: bytes = b"", headers: Mapping[str, str] | None = None, **call: Any
) -> Any:
    """The question of a request, or the reply that refuses it."""
    method, target = line.split(" ", 1)
    match = DIALECT.match(method, target)
    message = Call(body, method, target, headers or {}, "http", match.args, **call)
    try:
        return match.endpoint.decode(message, resolve)
    except GatewayError as error:
        return match.endpoint.encode_error(error, message)


def encode(line: str, answer: Any, question: Any) -> Reply:
    return DIALECT.match(*line.split(" ", 1)).endpoint.encode(answer, question)


def infer(resolve: Resolve, model: str, body: Any, **call: Any) -> Any:
    return decode(
        resolve, f"POST /v2/models/{model}/infer", body if isinstance(body, bytes) else orjson.dumps(body), **call
    )


def refusal(reply: Any) -> tuple[int, str]:
    assert isinstance(reply, Reply), reply
    assert reply.headers["Content-Type"] == "application/json"
    document = json.loads(bytes(reply.body))
    assert list(document) == ["error"]
    assert reply.message == document["error"]
    return reply.http_status, document["error"]


def x(data: Any, datatype: str = "FP32", shape: Any = None, **more: Any) -> dict[str, Any]:
    shape = [1, len(data)] if shape is None else shape
    return {"inputs": [{"name": "x", "datatype": datatype, "shape": shape, "data": data}], **more}


# ------------------------------------------------------------------------------------------------ addresses, questions

QUESTIONS: list[tuple[str, Any]] = [
    ("GET /v2", ServerMetadata()),
    ("GET /v2/", ServerMetadata()),
    ("GET /v2?verbose=1", ServerMetadata()),
    ("GET /v2/health/live", ServerLive()),
    ("GET /v2/health/ready", ServerReady()),
    ("GET /v2/models", ModelList()),
    ("GET /v2/models/add/ready", ModelReady(ModelRef("add"))),
    ("GET /v2/models/add/versions/7/ready", ModelReady(ModelRef("add", 7))),
    ("GET /v2/models/my%20model/ready?x=/", ModelReady(ModelRef("my model"))),
    ("GET /v2/models/a%2Fb/versions/007/ready", ModelReady(ModelRef("a/b", 7))),
    ("GET /v2/models/stats/ready", ModelReady(ModelRef("stats"))),
]


@pytest.mark.parametrize(("line", "question"), QUESTIONS)
def test_questions(line: str, question: Any, resolve: Resolve) -> None:
    assert decode(resolve, line) == question


NO_SUCH_PLACE = [
    "GET /v2/health",
    "GET /v2/health/live/",
    "GET /v2/Health/live",
    "GET /v2/models/",
    "GET /v2/models/add/",
    "GET /v2/models/add/versions",
    "GET /v2/models/add/versions/x",
    "GET /v2/models/add/versions/1/",
    "GET /v2/models/add/versions/-1/ready",
    "GET /v2/models/add/nothing",
    "GET /v2/models//ready",
    "GET /v2/models/add/versions/1/trace/setting",
    "GET /v2/models/{model}/versions/{version}/infer",
    "POST /v2/models/add/infer/",
]


@pytest.mark.parametrize("line", NO_SUCH_PLACE)
def test_unknown_paths(line: str, resolve: Resolve) -> None:
    reply = decode(resolve, line)
    assert (reply.http_status, reply.body, dict(reply.headers)) == (404, b'{"error":"Not Found"}', JSON)


@pytest.mark.parametrize(
    "line",
    ["POST /v2", "HEAD /v2/health/live", "OPTIONS /v2/models/add/infer", "GET /v2/models/add/versions/1/infer"],
)
def test_wrong_methods(line: str, resolve: Resolve) -> None:
    reply = decode(resolve, line)
    assert (reply.http_status, reply.body, dict(reply.headers)) == (405, b'{"error":"Method Not Allowed"}', JSON)


MODEL_ERRORS = [
    ("GET /v2/models/none", 404, "Request for unknown model: 'none' is not found"),
    ("GET /v2/models/%7Bmodel%7D", 404, "Request for unknown model: '{model}' is not found"),
    ("GET /v2/models/add/versions/2", 404, "Request for unknown model: 'add' version 2 is not found"),
    ("POST /v2/models/none/infer", 404, "Request for unknown model: 'none' is not found"),
    ("POST /v2/models/add/versions/0/infer", 404, "Request for unknown model: 'add' version 0 is not found"),
    (
        "POST /v2/models/add/versions/9223372036854775808/infer",
        400,
        "failed to get model version from specified version string '9223372036854775808' (details: stol), "
        "version should be an integral value > 0",
    ),
    (
        "POST /v2/models/token/infer",
        501,
        "HTTP end point doesn't support models with decoupled transaction policy",
    ),
]


@pytest.mark.parametrize(("line", "status", "text"), MODEL_ERRORS)
def test_the_model_is_looked_for_before_the_body(line: str, status: int, text: str, resolve: Resolve) -> None:
    assert refusal(decode(resolve, line, b"no JSON")) == (status, text)


def test_a_version_of_any_length_is_refused(resolve: Resolve) -> None:
    status, text = refusal(decode(resolve, f"GET /v2/models/add/versions/{'9' * 6000}/ready"))
    assert status == 400
    assert text.startswith("failed to get model version from specified version string '999")


def test_a_model_without_versions_says_so() -> None:
    def resolve(ref: ModelRef) -> ModelView:
        raise errors.ModelNotFound(ref.name, ref.version, known=True)

    text = "Request for unknown model: 'add' has no available versions"
    assert refusal(decode(resolve, "GET /v2/models/add")) == (404, text)


# ------------------------------------------------------------------------------------------------ answers, to the byte


def test_control_replies(models: dict[str, ModelView]) -> None:
    description = ServerDescription("triton", "2.1.0")
    ready = ModelReady(ModelRef("my model"))
    replies: list[tuple[str, Any, Any, int, bytes]] = [
        ("GET /v2/health/live", True, ServerLive(), 200, b'{"live":true}'),
        ("GET /v2/health/ready", True, ServerReady(), 200, b'{"live":true,"ready":true}'),
        ("GET /v2/health/ready", False, ServerReady(), 400, b'{"live":true,"ready":false}'),
        (
            "GET /v2",
            description,
            ServerMetadata(),
            200,
            b'{"name":"triton","version":"2.1.0","extensions":["classification","sequence","model_repository",'
            b'"model_repository(unload_dependents)","schedule_policy","model_configuration","binary_tensor_data",'
            b'"parameters","statistics","trace","logging"]}',
        ),
        ("GET /v2/models", ("a", "b"), ModelList(), 200, b'{"models":["a","b"]}'),
        ("GET /v2/models/x/ready", True, ready, 200, b'{"name":"my model","ready":true}'),
        ("GET /v2/models/x/ready", False, ready, 400, b'{"error":"Model version not ready"}'),
    ]
    for line, answer, question, status, body in replies:
        reply = encode(line, answer, question)
        assert (reply.http_status, reply.body, dict(reply.headers)) == (status, body, JSON)


def test_metadata_lists_the_versions_that_were_asked_for(resolve: Resolve) -> None:
    for line, versions in [("GET /v2/models/my%20model", b'"1","3"'), ("GET /v2/models/my%20model/versions/3", b'"3"')]:
        question = decode(resolve, line)
        assert isinstance(question, ModelMetadata)
        assert encode(line, question.view, question).body == (
            b'{"name":"my model","versions":[' + versions + b'],"platform":"onnxruntime_onnx",'
            b'"inputs":[{"name":"x","datatype":"FP32","shape":[-1,2]}],'
            b'"outputs":[{"name":"x","datatype":"FP32","shape":[-1,2]}]}'
        )


ANSWERED: list[tuple[str, str, list[Any], list[int], bytes]] = [
    ("", "FP32", [1.1, 2, -0.0], [1, 3], b'"shape":[1,3],"data":[1.1,2.0,-0.0]'),
    ("", "FP32", [np.nan, 1.5, np.inf, -np.inf], [4], b'"shape":[4],"data":[NaN,1.5,Infinity,-Infinity]'),
    ("", "FP64", [np.nan] * 2, [2, 1], b'"shape":[2,1],"data":[NaN,NaN]'),
    ("", "BOOL", [True, False], [2], b'"shape":[2],"data":[true,false]'),
    ("", "UINT8", [255], [], b'"shape":[],"data":[255]'),
    ("", "UINT64", [2**64 - 1], [1], b'"shape":[1],"data":[18446744073709551615]'),
    ("", "INT64", [-(2**63)], [1], b'"shape":[1],"data":[-9223372036854775808]'),
    ("", "BYTES", [b"", b'a"\0', "é".encode()], [3], '"shape":[3],"data":["","a\\"\\u0000","é"]'.encode()),
    ("", "INT32", [], [0, 7], b'"shape":[0,7],"data":[]'),
    ('"4\n2', "INT32", [1], [1, 1], b'"shape":[1,1],"data":[1]'),
]


@pytest.mark.parametrize(("id", "datatype", "values", "shape", "output"), ANSWERED)
def test_infer_replies(
    id: str, datatype: str, values: list[Any], shape: list[int], output: bytes, models: dict[str, ModelView]
) -> None:
    request = InferRequest(models["add"], {}, id=id)
    array = np.array(values, DTYPES[datatype]).reshape(shape)
    reply = encode("POST /v2/models/add/infer", InferResponse({"y": array}), request)
    start = b'{"id":"\\"4\\n2",' if id else b"{"
    assert reply.body == (
        start
        + b'"model_name":"add","model_version":"1","outputs":[{"name":"y","datatype":"'
        + datatype.encode()
        + b'",'
        + output
        + b"}]}"
    )
    assert (reply.http_status, dict(reply.headers)) == (200, JSON)


def test_outputs_of_any_memory_layout_and_parameters(models: dict[str, ModelView]) -> None:
    grid = np.arange(6, dtype=np.int32).reshape(2, 3)
    outputs = {"t": grid.T, "s": np.arange(8, dtype=np.float32)[::4]}
    answer = InferResponse(outputs, parameters={"note": "ü", "n": 1, "f": 0.5, "b": True})
    assert (
        encode("POST /v2/models/add/infer", answer, InferRequest(models["add"], {})).body
        == (
            '{"model_name":"add","model_version":"1","parameters":{"note":"ü","n":1,"f":0.5,"b":true},"outputs":['
            '{"name":"t","datatype":"INT32","shape":[3,2],"data":[0,3,1,4,2,5]},'
            '{"name":"s","datatype":"FP32","shape":[2],"data":[0.0,4.0]}]}'
        ).encode()
    )


CANNOT_BE_JSON: list[tuple[str, Any, str]] = [
    ("FP16", 1, "sending FP16 data via JSON is not supported. Please use the binary data format for output"),
    ("BF16", 1, "sending BF16 data via JSON is not supported. Please use the binary data format for output"),
    ("BYTES", b"\xff", "output 'y' holds bytes that are not UTF-8. Please use the binary data format for output"),
]


@pytest.mark.parametrize(("datatype", "value", "text"), CANNOT_BE_JSON)
def test_outputs_that_json_cannot_carry(datatype: str, value: Any, text: str, models: dict[str, ModelView]) -> None:
    answer = InferResponse({"y": np.array([value], DTYPES[datatype])})
    with pytest.raises(errors.EncodingFailed) as caught:
        encode("POST /v2/models/add/infer", answer, InferRequest(models["add"], {}))
    assert caught.value.text == text


# ------------------------------------------------------------------------------------------------------------ requests


def test_a_whole_request(resolve: Resolve) -> None:
    body = (
        b'{"id":"42","model_name":"ignored","parameters":{"sequence_id":7,"sequence_start":true,"sequence_end":false,'
        b'"priority":2,"timeout":1500,"temperature":0.5,"top":3,"sample":true,"note":"x","headers":"h",'
        b'"far":18446744073709551615,"huge":-100000000000000000000},'
        b'"inputs":[{"name":"b","shape":[2,2],"datatype":"INT32","data":[[1,2],[3,4]],"parameters":{"other":1}},'
        b'{"extra":{},"data":[1,[2],[[3]],4],"datatype":"INT32","shape":[2,2],"name":"a"}],'
        b'"outputs":[{"name":"sum","parameters":{"binary_data":false,"classification":0}}]}'
    )
    request = decode(resolve, "POST /v2/models/add/versions/1/infer?q", body, deadline=12.5)
    assert isinstance(request, InferRequest)
    assert list(request.inputs) == ["b", "a"]
    for array in request.inputs.values():
        assert array.dtype == np.int32
        np.testing.assert_array_equal(array, [[1, 2], [3, 4]])
    assert (request.id, [output.name for output in request.outputs]) == ("42", ["sum"])
    assert request.sequence == Sequence(7, start=True, end=False)
    assert (request.priority, request.queue_timeout_us, request.deadline) == (2, 1500, 12.5)
    assert request.parameters == {
        "temperature": 0.5,
        "top": 3,
        "sample": True,
        "note": "x",
        "headers": "h",
        "far": 2.0**64,
        "huge": -1e20,
    }
    assert type(request.parameters["far"]) is float


def test_a_small_request_asks_for_everything(resolve: Resolve, models: dict[str, ModelView]) -> None:
    for more in ({}, {"outputs": [], "id": "", "parameters": {"sequence_id": 0}}, {"parameters": {"sequence_id": ""}}):
        request = infer(resolve, "fp32", x([1.5], **more))
        assert request.view is models["fp32"]
        assert (request.id, request.outputs, request.sequence, dict(request.parameters)) == ("", (), None, {})


@pytest.mark.parametrize("id", [{}, {"sequence_id": 0}, {"sequence_id": ""}])
def test_flags_of_a_sequence_without_an_id_are_kept(id: dict[str, Any], resolve: Resolve) -> None:
    for start, end in ((True, False), (False, True), (True, True)):
        request = infer(resolve, "fp32", x([1.5], parameters={**id, "sequence_start": start, "sequence_end": end}))
        assert request.sequence == Sequence(id.get("sequence_id", 0), start, end)


TWICE: list[tuple[list[Any], str]] = [
    ([{"name": "z"}, {"name": "y"}, {"name": "z"}], "z"),
    ([{"name": "y"}, {"name": "y", "parameters": {"classification": 1}}], "y"),
    ([{"name": "y", "parameters": {"binary_data": True}}, {"name": "y"}], "y"),
    ([{"name": "no such output"}, {"name": "no such output"}], "no such output"),
]


@pytest.mark.parametrize(("outputs", "name"), TWICE)
@pytest.mark.parametrize("request_id", ["", "7"])
def test_an_output_named_twice_is_refused(outputs: list[Any], name: str, request_id: str, resolve: Resolve) -> None:
    more = {"id": request_id} if request_id else {}
    for _ in range(3):  # also once another request has left a template
        assert not isinstance(infer(resolve, "rows", x([1, 2], outputs=[{"name": "z"}])), Reply)
        reply = infer(resolve, "rows", x([1, 2], outputs=outputs, **more))
        text = f"[request id: {request_id or '<id_unknown>'}] output '{name}' already exists in request"
        assert refusal(reply) == (400, text)


@pytest.mark.parametrize("body", [bytes, bytearray, memoryview])
def test_any_buffer_may_be_a_body(body: Callable[[bytes], Any], resolve: Resolve) -> None:
    request = decode(resolve, "POST /v2/models/fp32/infer", body(orjson.dumps(x([1.5]))))
    np.testing.assert_array_equal(request.inputs["x"], [[1.5]])


DATA: list[tuple[str, list[int], str, list[Any]]] = [
    ("FP32", [2, 2], "[[1.5, -2], [3e2, 4]]", [1.5, -2, 300, 4]),
    ("FP32", [4], "[NaN, Inf, -Infinity, 1]", [np.nan, np.inf, -np.inf, 1]),
    ("FP32", [1], "[1e39]", [np.inf]),
    ("FP64", [1, 1], "[0.1]", [0.1]),
    ("BOOL", [2], "[true, false]", [True, False]),
    ("UINT8", [2], "[0, 255]", [0, 255]),
    ("INT8", [2], "[-128, 127]", [-128, 127]),
    ("UINT64", [1], "[18446744073709551615]", [2**64 - 1]),
    ("INT64", [1], "[-9223372036854775808]", [-(2**63)]),
    ("BYTES", [2, 1], '[["é\\u0000"], [""]]', ["é\0".encode(), b""]),
    ("FP32", [], "[7]", [7]),
    ("FP16", [0, 3], '"ignored"', []),
    ("INT32", [3, 0], "[1, 2]", []),
]


@pytest.mark.parametrize(("datatype", "shape", "data", "values"), DATA)
def test_data(datatype: str, shape: list[int], data: str, values: list[Any], resolve: Resolve) -> None:
    body = f'{{"inputs":[{{"name":"x","datatype":"{datatype}","shape":{shape},"data":{data}}}]}}'
    array = infer(resolve, datatype.lower(), body.encode()).inputs["x"]
    assert (array.dtype, array.shape) == (DTYPES[datatype], tuple(shape))
    np.testing.assert_array_equal(array.ravel(), np.array(values, DTYPES[datatype]))


NONE = "attempt to access non-existing object member"
UNSIGNED = "attempt to access JSON non-unsigned-integer as unsigned-integer"
SIGNED = "attempt to access JSON non-signed-integer as signed-integer"
SOURCE = (
    "Input must set only one of the following fields: 'data', 'binary_data_size' in 'parameters', "
    "'shared_memory_region' in 'parameters'. But"
)
NOT_TYPED = "It should be either 'int', 'bool', or 'string'."
NOTE = (
    "NOTE: Setting a non-zero max_batch_size in the model config requires a batch dimension to be prepended to each "
    "input shape. If you want to specify the full shape including the batch dim in your input dims config, try setting "
    "max_batch_size to zero. See the model configuration docs for more info on max_batch_size."
)


def inputs(*items: Any, **more: Any) -> dict[str, Any]:
    return {"inputs": list(items), **more}


ITEM = {"name": "x", "datatype": "FP32", "shape": [1, 2], "data": [1, 2]}

REFUSED: list[tuple[str, Any, str]] = [
    # JSON, id, parameters
    ("rows", b"", "failed to parse the request JSON buffer: The document is empty. at 0"),
    ("rows", b'{"id":', "failed to parse the request JSON buffer: Invalid value. at 6"),
    ("rows", b"[" * 101 + b"]" * 101, "JSON nesting depth exceeds maximum allowed limit (100)"),
    ("rows", [], f"Unable to parse 'inputs': {NONE} 'inputs'"),
    ("rows", {}, f"Unable to parse 'inputs': {NONE} 'inputs'"),
    ("rows", {"id": 1}, "Unable to parse 'id': attempt to access JSON non-string as string"),
    ("rows", {"id": None}, "Unable to parse 'id': attempt to access JSON non-string as string"),
    ("rows", {"parameters": []}, "failed to get request params.: attempt to get members for non-object"),
    ("rows", {"parameters": {"priority": -1}}, f"Unable to parse 'priority': {UNSIGNED}"),
    ("rows", {"parameters": {"timeout": 1.5}}, f"Unable to parse 'timeout': {UNSIGNED}"),
    (
        "rows",
        {"parameters": {"sequence_id": True}},
        "Unable to parse 'sequence_id': attempt to access JSON non-string as string",
    ),
    (
        "rows",
        {"parameters": {"sequence_start": 1}},
        "Unable to parse 'sequence_start': attempt to access JSON non-boolean as boolean",
    ),
    (
        "rows",
        {"parameters": {"triton_x": 1}},
        "parameter keys starting with 'triton_' are reserved for Triton usage and should not be specified.",
    ),
    ("rows", {"parameters": {"p": [1]}}, f"parameter 'p' has invalid type. {NOT_TYPED}"),
    ("rows", {"parameters": {"p": {}}}, f"parameter 'p' has invalid type. {NOT_TYPED}"),
    ("rows", {"parameters": {"p": None}}, f"parameter 'p' has invalid type. {NOT_TYPED}"),
    # inputs, one by one
    ("rows", {"inputs": {}}, "Unable to parse 'inputs': attempt to access JSON non-array as array"),
    ("rows", inputs(1), f"{SOURCE} no field is set"),
    ("rows", inputs({"name": "x"}), f"{SOURCE} no field is set"),
    (
        "rows",
        inputs(ITEM | {"parameters": {"binary_data_size": 8, "shared_memory_region": "r"}}),
        f"{SOURCE} set 'data' 'binary_data_size' 'shared_memory_region'",
    ),
    ("rows", inputs({"data": []}), f"Unable to parse 'name': {NONE} 'name'"),
    ("rows", inputs({"data": [], "name": "x"}), f"Unable to parse 'datatype': {NONE} 'datatype'"),
    ("rows", inputs({"data": [], "name": "x", "datatype": "FP32"}), f"Unable to parse 'shape': {NONE} 'shape'"),
    ("rows", inputs(ITEM | {"name": 3}), "Unable to parse 'name': attempt to access JSON non-string as string"),
    *(
        ("rows", inputs(ITEM | {"datatype": t}), "invalid datatype for input x")
        for t in ("fp32", "STRING", "TYPE_FP32")
    ),
    ("rows", inputs(ITEM | {"shape": 2}), "Unable to parse 'shape': attempt to access JSON non-array as array"),
    *(("rows", inputs(ITEM | {"shape": [s]}), f"Unable to parse 'shape': {UNSIGNED}") for s in (-1, 1.0, "1", True)),
    ("rows", inputs(ITEM, ITEM, id="7"), "[request id: 7] input 'x' already exists in request"),
    ("rows", inputs(ITEM, ITEM), "[request id: <id_unknown>] input 'x' already exists in request"),
    ("rows", inputs(ITEM | {"data": 1}), "Unable to parse 'data': attempt to access JSON non-array as array"),
    ("bool", x([1], "BOOL"), "Unable to parse 'data': attempt to access JSON non-boolean as boolean"),
    ("uint8", x([1.0], "UINT8"), f"Unable to parse 'data': {UNSIGNED}"),
    ("uint8", x([-1], "UINT8"), f"Unable to parse 'data': {UNSIGNED}"),
    ("uint8", x([256], "UINT8"), "Unable to parse 'data': 256 is out of range for UINT8"),
    ("int8", x([-129], "INT8"), "Unable to parse 'data': -129 is out of range for INT8"),
    ("int32", x([1.0], "INT32"), f"Unable to parse 'data': {SIGNED}"),
    ("int32", x(["1"], "INT32"), f"Unable to parse 'data': {SIGNED}"),
    (
        "int64",
        b'{"inputs":[{"name":"x","datatype":"INT64","shape":[1],"data":[9223372036854775808]}]}',
        f"Unable to parse 'data': {SIGNED}",
    ),
    ("fp32", x([None]), "Unable to parse 'data': attempt to access JSON non-number as double"),
    ("fp64", x([1, True], "FP64"), "Unable to parse 'data': attempt to access JSON non-number as double"),
    (
        "bytes",
        x([1], "BYTES"),
        "Unable to parse JSON bytes array: attempt to access JSON non-string as string",
    ),
    *(
        (
            kind.lower(),
            x([1], kind),
            f"receiving {kind} data via JSON is not supported. Please use the binary data format for input x",
        )
        for kind in ("FP16", "BF16")
    ),
    ("rows", x([1, 2, 3], shape=[1, 2]), "Unable to parse 'data': Shape does not match true shape of 'data' field"),
    ("rows", x([1], shape=[1, 2]), "Unable to parse 'data': Shape does not match true shape of 'data' field"),
    (
        "rows",
        x([1], shape=[10**12]),
        "JSON input 'x' has a byte_size (4000000000000 bytes) that exceeds the maximum allowed value of 67108864 "
        "bytes. Use --http-max-input-size to increase the limit.",
    ),
    (
        "rows",
        x([1], shape=[2**40, 2**40]),
        "invalid shape for input 'x': shape [1099511627776,1099511627776] causes total element count to exceed maximum "
        "size of 9223372036854775807",
    ),
    (
        "rows",
        x([1], shape=[2**61]),
        "byte size overflow for input 'x': 2305843009213693952 elements of 4 bytes exceed 9223372036854775807",
    ),
    ("fp32", x([1], shape=[1] * 65), "invalid shape for input 'x': shape has 65 dimensions, at most 64 are possible"),
    # outputs
    ("rows", x([1, 2], outputs={}), "Unable to parse 'outputs': attempt to access JSON non-array as array"),
    ("rows", x([1, 2], outputs=[{}]), f"Unable to parse 'name': {NONE} 'name'"),
    (
        "rows",
        x([1, 2], outputs=[{"name": "y", "parameters": {"classification": -1}}]),
        f"Unable to set 'classification': {UNSIGNED}",
    ),
    (
        "rows",
        x([1, 2], outputs=[{"name": "y", "parameters": {"binary_data": 1}}]),
        "Unable to parse 'binary_data': attempt to access JSON non-boolean as boolean",
    ),
    # the request against the model
    ("rows", inputs(outputs=[{"name": "q"}]), "unexpected inference output 'q' for model 'rows'"),
    (
        "add",
        inputs(ITEM | {"name": "a", "datatype": "INT32"}, id="i"),
        "[request id: i] expected 2 inputs but got 1 inputs for model 'add'. Got input(s) ['a'], but missing required "
        "input(s) ['b']. Please provide all required input(s).",
    ),
    (
        "add",
        inputs(*(ITEM | {"name": name} for name in "abc")),
        "[request id: <id_unknown>] expected 2 inputs but got 3 inputs for model 'add'. Got input(s) ['c','b','a'], "
        "but missing required input(s) ]. Please provide all required input(s).",
    ),
    ("rows", inputs(ITEM | {"name": "q"}), "unexpected inference input 'q' for model 'rows'"),
    (
        "rows2",
        inputs(ITEM, ITEM | {"name": "w", "shape": [], "data": [1]}),
        "[request id: <id_unknown>] input 'w' has no shape but model requires batch dimension for 'rows2'",
    ),
    (
        "rows2",
        inputs(ITEM, ITEM | {"name": "w", "shape": [2, 1]}),
        "[request id: <id_unknown>] input 'x' batch size does not match other inputs for 'rows2'",
    ),
    (
        "rows",
        x([1] * 10, shape=[5, 2]),
        "[request id: <id_unknown>] inference request batch-size must be <= 4 for 'rows'",
    ),
    (
        "rows",
        x([1, 2], "INT32", id="9"),
        "[request id: 9] inference input 'x' data-type is 'INT32', but model 'rows' expects 'FP32'",
    ),
    (
        "rows",
        x([1, 2, 3]),
        "[request id: <id_unknown>] unexpected shape for input 'x' for model 'rows'. Expected [-1,2], got [1,3]. "
        + NOTE,
    ),
    (
        "text",
        {"inputs": [{"name": "t", "datatype": "BYTES", "shape": [1, 1], "data": ["a"]}]},
        "[request id: <id_unknown>] unexpected shape for input 't' for model 'text'. Expected [-1], got [1,1]. ",
    ),
    (
        "text",
        {"inputs": [{"name": "t", "datatype": "BYTES", "shape": [3], "data": ["a", "b"]}]},
        "[request id: <id_unknown>] expected 3 string elements for inference input 't' for model 'text', got 2",
    ),
    (
        "text",
        {"inputs": [{"name": "t", "datatype": "BYTES", "shape": [1], "data": ["a", "b"]}]},
        "[request id: <id_unknown>] unexpected number of string elements 2 "
        "for inference input 't' for model 'text', expecting 1",
    ),
]


@pytest.mark.parametrize(("model", "body", "text"), REFUSED)
def test_bad_requests(model: str, body: Any, text: str, resolve: Resolve) -> None:
    assert refusal(infer(resolve, model, body)) == (400, text)


def test_strings_are_counted_last(resolve: Resolve) -> None:
    body = {
        "inputs": [{"name": "t", "datatype": "BYTES", "shape": [9, 10**9], "data": ["a"]}],
        "outputs": [{"name": "q"}],
    }
    assert refusal(infer(resolve, "text", body)) == (400, "unexpected inference output 'q' for model 'text'")
    del body["outputs"]
    assert "unexpected shape for input 't'" in refusal(infer(resolve, "text", body))[1]


def test_optional_inputs_may_be_missing(
    make_model: Callable[..., ModelView], make_resolve: Callable[..., Resolve]
) -> None:
    view = make_model("opt", {"x": ("FP32", (-1, 2)), "o": ("FP32", (-1,))}, {})
    object.__setattr__(view.inputs["o"], "optional", True)
    resolve = make_resolve(view)
    assert isinstance(infer(resolve, "opt", inputs(ITEM)), InferRequest)
    assert refusal(infer(resolve, "opt", inputs()))[1].endswith(
        "expected number of inputs between 1 and 2 but got 0 inputs for model 'opt'. Got input(s) [], but missing "
        "required input(s) ['x']. Please provide all required input(s)."
    )


def test_what_is_not_there_yet_is_refused(resolve: Resolve) -> None:
    region = {"name": "x", "datatype": "FP32", "shape": [1, 2], "parameters": {"shared_memory_region": "r"}}
    assert refusal(infer(resolve, "rows", inputs(region))) == (404, "Unable to find shared memory region: 'r'")
    output = x([1, 2], outputs=[{"name": "y", "parameters": {"shared_memory_region": "q"}}])
    assert refusal(infer(resolve, "rows", output)) == (404, "Unable to find shared memory region: 'q'")
    long_id = {"parameters": {"sequence_id": "s" * 129}}
    assert refusal(infer(resolve, "rows", long_id)) == (
        501,
        "string correlation ID cannot be longer than 128 characters",
    )


def test_the_listener_may_set_another_depth(resolve: Resolve) -> None:
    body = {"deep": [[[1]]], **x([1.0])}
    assert isinstance(infer(resolve, "fp32", body, max_json_depth=4), InferRequest)
    assert refusal(infer(resolve, "fp32", body, max_json_depth=3))[0] == 400


# -------------------------------------------------------------------------------------------------------------- errors


def kinds() -> list[type[GatewayError]]:
    return [kind for kind in errors.kinds() if kind.__module__.startswith("tensorgate.gateway.contract.errors")]


@pytest.mark.parametrize("kind", kinds(), ids=lambda kind: kind.__name__)
def test_every_kind_has_a_row(kind: type[GatewayError]) -> None:
    assert kind in ANSWERS


LATE: list[tuple[GatewayError, int, str]] = [
    (errors.QueueFull("rows", 5), 503, "[request id: 42] Exceeds maximum queue size"),
    (errors.QueueTimeout("rows"), 503, "Request timeout expired"),
    (errors.WouldBeLate("rows", 0.25), 503, "model 'rows' is overloaded: the answer would be 0.250 s late"),
    (
        errors.SequenceIdMissing("rows"),
        400,
        "inference request to model 'rows' must specify a non-zero or non-empty correlation ID",
    ),
    (
        errors.SequenceNotStarted(42, "rows"),
        400,
        "inference request for sequence 42 to model 'rows' must specify the START flag on the first request of the "
        "sequence",
    ),
    (
        errors.SequenceBatch("rows"),
        400,
        "inference request to model 'rows' must specify batch-size 1 due to requirements of sequence batcher",
    ),
    (
        errors.SequenceIdMismatch("a", "UINT64", "rows"),
        400,
        "correlation ID a does not fit model 'rows', which expects 'UINT64'",
    ),
    (errors.ModelUnavailable("rows"), 503, "model 'rows' has stopped accepting requests"),
    (errors.DeadlineExceeded("rows"), 504, "Deadline Exceeded"),
    (errors.OutOfMemory("rows"), 503, "failed to allocate memory for the request to model 'rows'"),
    (errors.DeviceLost("rows"), 503, "model 'rows' has lost its device, the server restarts"),
    (errors.ModelFailed("division by zero"), 500, "division by zero"),
    (
        errors.OutputRows("y", (3,), 2),
        500,
        "output 'y' has shape [3], but its first dimension must be the 2 rows of the batch",
    ),
    (errors.InvalidArgument("too dark"), 400, "too dark"),
    (errors.BodyTooLarge(10), 400, "Request body has a byte_size that exceeds the maximum allowed value of 10 bytes."),
    (errors.Internal("secret"), 500, "internal error"),
    (errors.LabelNotFound("m", "canary"), 404, "Request for unknown model: 'm' label 'canary' is not found"),
    (errors.SignatureNotFound("m", "s"), 400, "model 'm' has no signature 's'"),
    (errors.EncodingFailed("no"), 400, "no"),
    (errors.Unknown("who knows"), 400, "who knows"),
    (errors.Unavailable("not now"), 503, "not now"),
    (errors.AlreadyExists("it is there"), 400, "it is there"),
    (errors.Cancelled("stopped"), 400, "stopped"),
    (errors.SequenceCancelled(5, "rows"), 400, "sequence 5 of model 'rows' was cancelled"),
]


@pytest.mark.parametrize(("error", "status", "text"), LATE)
def test_errors_after_decode(error: GatewayError, status: int, text: str, resolve: Resolve) -> None:
    match = DIALECT.match("POST", "/v2/models/rows/infer")
    call = Call(orjson.dumps(x([1, 2], id="42")), "POST", "/v2/models/rows/infer", {}, "http", match.args)
    match.endpoint.decode(call, resolve)
    reply = match.endpoint.encode_error(error, call)
    assert refusal(reply) == (status, text)
    assert reply.headers.get("Retry-After") == ("1" if status == 503 else None)


class Odd(GatewayError):
    """A kind that nobody told this dialect of."""


def test_an_unknown_kind_is_a_fault_of_ours() -> None:
    call = Call(b"", "GET", "/v2", {}, "http")
    assert refusal(DIALECT.match("GET", "/v2").endpoint.encode_error(Odd("secret"), call)) == (500, "internal error")


# ---------------------------------------------------------------------------------------------------------- properties

CARRIED = [name for name in DTYPES if name not in ("FP16", "BF16", "BYTES")]


@given(st.data())
def test_what_is_sent_is_what_comes_back(data: st.DataObject) -> None:
    dtype = DTYPES[data.draw(st.sampled_from(CARRIED))]
    array = data.draw(st_numpy.arrays(dtype, st_numpy.array_shapes(min_dims=0, min_side=0)))
    there_and_back(array)


@given(st.lists(st.text(st.characters(codec="utf-8"))))
def test_strings_come_back(texts: list[str]) -> None:
    array = np.empty(len(texts), object)
    array[:] = [text.encode() for text in texts]
    there_and_back(array)


def there_and_back(array: Any) -> None:
    """A tensor's response, posted as a request."""
    name = DATATYPES[array.dtype]
    view = ModelView("echo", 1, (1,), {"x": TensorSpec("x", array.dtype)}, {}, {}, 0, "", handle=None)  # type: ignore[arg-type]
    sent = encode("POST /v2/models/echo/infer", InferResponse({"x": array}), InferRequest(view, {})).body
    assert isinstance(sent, bytes)
    got = infer(lambda ref: view, "echo", sent.replace(b'"outputs":', b'"inputs":', 1)).inputs["x"]
    assert (DATATYPES[got.dtype], got.shape) == (name, array.shape)
    np.testing.assert_array_equal(got, array)


@given(st.binary(max_size=80))
def test_garbage_is_answered(body: bytes) -> None:
    def resolve(ref: ModelRef) -> ModelView:
        return ModelView("m", 1, (1,), {}, {}, {}, 0, "", handle=None)  # type: ignore[arg-type]

    answer = infer(resolve, "m", body)
    assert isinstance(answer, InferRequest) or refusal(answer)[0] == 400


JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["inputs", "outputs", "name", "datatype", "shape", "data", "parameters", "id", "timeout"]),
            inner,
        )
    ),
    max_leaves=12,
)


@given(st.dictionaries(st.sampled_from(["id", "parameters", "inputs", "outputs"]), JUNK), JUNK, JUNK, JUNK)
def test_misshapen_requests_are_answered(body: dict[str, Any], shape: Any, data: Any, parameters: Any) -> None:
    def resolve(ref: ModelRef) -> ModelView:
        return ModelView("m", 1, (1,), {}, {}, {}, 0, "", handle=None)  # type: ignore[arg-type]

    item = {"name": "x", "datatype": "INT32", "shape": shape, "data": data, "parameters": parameters}
    for request in (body, body | {"inputs": [item]}):
        answer = infer(resolve, "m", json.dumps(request).encode())
        assert isinstance(answer, InferRequest) or refusal(answer)[0] in (400, 404, 501)


# ------------------------------------------------------------------------------------------------------------- example


def test_the_example_runs(models: dict[str, ModelView], resolve: Resolve) -> None:
    sample = DIALECT.sample(models["my model"])
    assert sample is not None
    line = sample.curl("http://127.0.0.1:8000/")
    assert line is not None
    curl, silent, url, flag, body = shlex.split(line)
    assert (curl, silent, flag) == ("curl", "-s", "-d")
    assert url == "http://127.0.0.1:8000/v2/models/my%20model/infer"
    request = decode(resolve, f"POST {url.removeprefix('http://127.0.0.1:8000')}", body.encode())
    np.testing.assert_array_equal(request.inputs["x"], [[1, 1]])


def test_an_example_survives_the_shell(make_model: Callable[..., ModelView]) -> None:
    text = np.array([b"it's $HOME `x`"], object)
    view = make_model("text", {"t": ("BYTES", (1,))}, {}, example_inputs={"t": text})
    sample = DIALECT.sample(view)
    assert sample is not None
    line = sample.curl("http://h")
    assert line is not None
    assert json.loads(shlex.split(line)[-1])["inputs"][0]["data"] == ["it's $HOME `x`"]


def test_no_example_where_json_cannot_do_it(models: dict[str, ModelView], make_model: Callable[..., ModelView]) -> None:
    bare = make_model("bare", {"x": ("FP32", (1,))}, {}, example_inputs={})
    for view in (models["fp16"], models["token"], bare):
        assert DIALECT.sample(view) is None
    large = DIALECT.sample(make_model("large", {"x": ("FP32", (200_000,))}, {}))
    assert large is not None
    assert large.curl("http://h") is None

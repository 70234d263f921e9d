"""Generate: request bodies as they come, answers to the byte, alone and as server-sent events."""

import gzip
import json
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorgate.adapters.open_inference import KIND
from tensorgate.adapters.open_inference.generate import filled_shape
from tensorgate.adapters.open_inference.options import OpenInferenceOptions
from tensorgate.gateway.contract import errors
from tensorgate.gateway.contract.call import Call, Reply
from tensorgate.gateway.contract.canonical import InferRequest, InferResponse, ModelView
from tensorgate.gateway.contract.dialect import Resolve
from tensorgate.gateway.contract.errors import GatewayError, InvalidArgument
from tensorgate.gateway.contract.tensor import BYTES, DATATYPES, DTYPES, TensorSpec

DIALECT = KIND.make(OpenInferenceOptions())
JSON = {"Content-Type": "application/json"}
SSE = {"Content-Type": "text/event-stream; charset=utf-8"}
BOTH = pytest.mark.parametrize("action", ["generate", "generate_stream"])


@pytest.fixture
def resolve(make_model: Callable[..., ModelView], make_resolve: Callable[..., Resolve]) -> Resolve:
    said = {"text_output": ("BYTES", (1,))}
    optional = make_model("opt", {}, said)
    inputs = {
        "text_input": TensorSpec("text_input", BYTES, (1,)),
        "seed": TensorSpec("seed", DTYPES["INT64"], (1,), optional=True),
    }
    return make_resolve(
        make_model("llm", {"text_input": ("BYTES", (1,))}, said, decoupled=True, version=3, versions=(3,)),
        make_model("chat", {"text_input": ("BYTES", (-1, 1)), "stream": ("BOOL", (-1, 1))}, said, max_batch_size=4),
        make_model("rows", {"x": ("FP32", (-1, 2))}, {"y": ("FP32", (-1, 2))}, max_batch_size=4),
        make_model("pair", {"text": ("BYTES", (2,))}, said),
        make_model("my model", {"id": ("BYTES", (1,))}, said),
        ModelView(**{name: getattr(optional, name) for name in ModelView.__slots__} | {"inputs": inputs}),
        *(make_model(name.lower(), {"x": (name, None)}, {"y": (name, None)}) for name in DTYPES),
    )


def ask(resolve: Resolve, target: str, body: Any, **call: Any) -> Any:
    """The question of a request, or the reply that refuses it."""
    match = DIALECT.match("POST", f"/v2/models/{target}")
    data = body if isinstance(body, bytes) else orjson.dumps(body)
    message = Call(data, "POST", target, call.pop("headers", {}), "http", match.args, **{"in_thread": True, **call})
    try:
        return match.endpoint.decode(message, resolve)
    except GatewayError as error:
        return match.endpoint.encode_error(error, message)


def refusal(reply: Any) -> tuple[int, str]:
    assert isinstance(reply, Reply), reply
    assert dict(reply.headers) == JSON
    document = json.loads(bytes(reply.body))
    assert list(document) == ["error"]
    return reply.http_status, document["error"]


def told(answer: InferResponse, request: InferRequest, action: str = "generate") -> Reply:
    return DIALECT.match("POST", f"/v2/models/m/{action}").endpoint.encode(answer, request)


# ------------------------------------------------------------------------------------------------------------ requests


def test_the_address_says_how_many_answers_there_may_be() -> None:
    for path in ("/v2/models/m/{}", "/v2/models/m/versions/1/{}"):
        one, many = (DIALECT.match("POST", path.format(action)) for action in ("generate", "generate_stream"))
        assert (one.endpoint.stream, one.endpoint.method) == ("single", "generate")
        assert (many.endpoint.stream, many.endpoint.method) == ("server", "generate_stream")
        assert one.args == many.args == {"model": "m"} | ({"version": "1"} if "versions" in path else {})
    nothing = DIALECT.match("POST", "/v2/models/m/generate_stream").endpoint.nothing
    assert (nothing.http_status, nothing.body, dict(nothing.headers)) == (200, b"", SSE)


@pytest.mark.parametrize("method", ["GET", "HEAD", "PUT", "OPTIONS"])
@BOTH
def test_only_post(method: str, action: str, resolve: Resolve) -> None:
    match = DIALECT.match(method, f"/v2/models/llm/{action}")
    call = Call(b"", method, "", {}, "http", match.args)
    with pytest.raises(errors.MethodNotAllowed) as caught:
        match.endpoint.decode(call, resolve)
    assert refusal(match.endpoint.encode_error(caught.value, call)) == (405, "Method Not Allowed")


@BOTH
def test_the_example_of_the_protocols_page(action: str, resolve: Resolve) -> None:
    body = b'{"id":"42","text_input":"client input","parameters":{"stream":false,"temperature":0}}'
    request = ask(resolve, f"llm/{action}", body)
    assert (request.view.name, request.id, request.outputs) == ("llm", "42", ())
    assert request.inputs["text_input"].tolist() == [b"client input"]
    assert request.parameters == {"stream": False, "temperature": 0}
    assert request.stream is (action == "generate_stream")
    answer = InferResponse({"text_output": np.array([b"model output"], object)})
    document = b'{"id":"42","model_name":"llm","model_version":"3","text_output":"model output"}'
    event = b"data: " + document + b"\n\n"
    expected = (document, JSON, False) if action == "generate" else (event, SSE, True)
    reply = told(answer, request, action)
    assert (reply.body, dict(reply.headers), reply.streamed) == expected
    assert reply.http_status == 200


def test_every_key_is_a_tensor_or_a_parameter(resolve: Resolve) -> None:
    body = {
        "text_input": "a",
        "priority": 1,
        "timeout": -2,
        "sequence_id": "s",
        "triton_x": True,
        "max": 2**63,
        "parameters": {"stream": True, "top_p": 0.5, "text": "b", "parameters": 1, "id": "inner"},
    }
    request = ask(resolve, "chat/generate", body)
    assert request.inputs["text_input"].tolist() == [[b"a"]]
    assert request.inputs["stream"].tolist() == [[True]]
    assert request.parameters == {
        "priority": 1,
        "timeout": -2,
        "sequence_id": "s",
        "triton_x": True,
        "max": 2.0**63,
        "top_p": 0.5,
        "text": "b",
        "parameters": 1,
        "id": "inner",
    }
    assert (request.id, request.priority, request.queue_timeout_us, request.sequence) == ("", 0, 0, None)


def test_an_input_may_be_called_id(resolve: Resolve) -> None:
    request = ask(resolve, "my%20model/generate", {"id": "7"})
    assert (request.id, request.inputs["id"].tolist(), request.parameters) == ("7", [b"7"], {})


def test_optional_inputs_may_be_left_out_or_come_as_parameters(resolve: Resolve) -> None:
    assert list(ask(resolve, "opt/generate", {"text_input": "a"}).inputs) == ["text_input"]
    request = ask(resolve, "opt/generate", {"text_input": "a", "parameters": {"seed": 5}})
    assert (request.inputs["seed"].tolist(), request.inputs["seed"].dtype) == ([5], np.int64)


def test_the_rest_of_the_call_counts_too(resolve: Resolve) -> None:
    assert ask(resolve, "llm/versions/3/generate?x=1", {"text_input": "a"}, deadline=12.5).deadline == 12.5
    packed = gzip.compress(b'{"text_input":"a"}')
    assert ask(resolve, "llm/generate", packed, headers={"content-encoding": "gzip"}).inputs["text_input"] == [b"a"]
    assert ask(resolve, "llm/generate", memoryview(b'{"text_input":"a"}').tobytes()).inputs["text_input"] == [b"a"]


VALUES: list[tuple[str, bytes, Any]] = [
    ("BOOL", b"true", [True]),
    ("BOOL", b"[true,false]", [True, False]),
    ("UINT8", b"255", [255]),
    ("UINT16", b"[1,65535]", [1, 65535]),
    ("UINT32", b"4294967295", [4294967295]),
    ("UINT64", b"18446744073709551615", [2**64 - 1]),
    ("INT8", b"-128", [-128]),
    ("INT16", b"[]", []),
    ("INT32", b"[[1],[2]]", [1, 2]),
    ("INT64", b"[9223372036854775807,-9223372036854775808]", [2**63 - 1, -(2**63)]),
    ("FP32", b"1", [1.0]),
    ("FP32", b"[0.5,-Infinity]", [0.5, -np.inf]),
    ("FP64", b"NaN", [np.nan]),
    ("FP64", b"0.1", [0.1]),
    ("BYTES", '"straße 🙂"'.encode(), ["straße 🙂".encode()]),
    ("BYTES", rb'["","a\u0000b","\ud83d\ude42"]', [b"", b"a\0b", "🙂".encode()]),
]


@pytest.mark.parametrize(("datatype", "value", "elements"), VALUES)
def test_values_of_every_datatype(datatype: str, value: bytes, elements: list[Any], resolve: Resolve) -> None:
    array = ask(resolve, f"{datatype.lower()}/generate", b'{"x":' + value + b"}").inputs["x"]
    assert (DATATYPES[array.dtype], array.shape) == (datatype, (len(elements),))
    np.testing.assert_array_equal(array, np.array(elements, array.dtype))


SHAPES: list[tuple[tuple[int, ...] | None, int, tuple[int, ...] | None]] = [
    ((-1, 16), 32, (2, 16)),
    ((-1, 1), 1, (1, 1)),
    ((-1, -1), 3, (1, 3)),
    ((-1, 2, -1), 6, (1, 2, 3)),
    ((-1, 2, -1, 3), 12, (1, 2, 2, 3)),
    ((1,), 1, (1,)),
    ((), 1, ()),
    ((-1,), 0, (0,)),
    ((-1, 4), 0, (0, 4)),
    ((0, -1), 0, (0, 1)),
    ((0,), 0, (0,)),
    (None, 3, (3,)),
    (None, 0, (0,)),
    ((-1, 16), 31, None),
    ((2,), 4, None),
    ((2,), 1, None),
    ((1,), 0, None),
    ((), 2, None),
    ((), 0, None),
    ((0, -1), 3, None),
]


@pytest.mark.parametrize(("declared", "elements", "shape"), SHAPES)
def test_the_declared_shape_is_filled(
    declared: tuple[int, ...] | None, elements: int, shape: tuple[int, ...] | None
) -> None:
    spec = TensorSpec("I", DTYPES["FP32"], declared)
    if shape is not None:
        assert filled_shape(spec, elements) == shape
        return
    with pytest.raises(InvalidArgument, match="The schema can not convert input 'I' to tensor"):
        filled_shape(spec, elements)


def test_a_batch_of_nothing_is_one_row() -> None:
    """As Triton has it; what is wrong with that is then said of the data."""
    assert filled_shape(TensorSpec("I", DTYPES["FP32"], (-1, 1)), 0, batched=True) == (1, 1)
    assert filled_shape(TensorSpec("I", DTYPES["FP32"], (-1, -1)), 0, batched=True) == (1, 0)


PARAMETER = "parameter 'p' has invalid type. It should be either 'int', 'bool', or 'string'."
NESTED = "Converting keyword: 'parameters': "
SHAPE = "The schema can not convert input 'text_input' to tensor with proper shape"
TWICE = "input 'text_input' already exists in request"
NO_STRING = "Unable to parse JSON bytes array: attempt to access JSON non-string as string"
LACKING = "Got input(s) [], but missing required input(s) ['text_input']. Please provide all required input(s)."
REFUSALS: list[tuple[str, bytes, str]] = [
    ("llm", b"", "failed to parse the request JSON buffer: The document is empty. at 0"),
    ("llm", b'{"a":}', "failed to parse the request JSON buffer: Invalid value. at 5"),
    ("llm", b"[1]", "attempt to get members for non-object"),
    ("llm", b"null", "attempt to get members for non-object"),
    ("llm", b"NaN", "attempt to get members for non-object"),
    ("llm", b'{"id":1}', "Unable to parse 'id': attempt to access JSON non-string as string"),
    ("llm", b'{"text_input":"a","p":null}', PARAMETER),
    ("llm", b'{"text_input":"a","p":[1]}', PARAMETER),
    ("llm", b'{"text_input":"a","p":{}}', PARAMETER),
    ("llm", b'{"text_input":"a","parameters":{"p":{}}}', NESTED + PARAMETER),
    ("llm", b'{"text_input":"a","parameters":{"p":null}}', NESTED + PARAMETER),
    (
        "llm",
        b'{"text_input":"a","parameters":[]}',
        "Expected JSON object for keyword: 'parameters': attempt to access JSON non-object as object",
    ),
    ("llm", b'{"text_input":"a","text_input":"b"}', f"[request id: <id_unknown>] {TWICE}"),
    ("llm", b'{"id":"9","text_input":"a","text_input":"b"}', f"[request id: 9] {TWICE}"),
    ("llm", b'{"x":NaN,"text_input":"a","text_input":"b"}', f"[request id: <id_unknown>] {TWICE}"),
    (
        "llm",
        b'{"text_input":"a","parameters":{"text_input":"b"}}',
        f"{NESTED}[request id: <id_unknown>] {TWICE}",
    ),
    (
        "llm",
        b"{}",
        "[request id: <id_unknown>] expected 1 inputs but got 0 inputs for model 'llm'. " + LACKING,
    ),
    (
        "opt",
        b'{"id":"9"}',
        "[request id: 9] expected number of inputs between 1 and 2 but got 0 inputs for model 'opt'. " + LACKING,
    ),
    ("llm", b'{"text_input":["a","b"]}', SHAPE),
    ("llm", b'{"text_input":[]}', SHAPE),
    ("llm", b'{"text_input":1}', NO_STRING),
    ("llm", b'{"text_input":null}', NO_STRING),
    ("llm", b'{"text_input":{}}', NO_STRING),
    ("llm", b'{"text_input":[{}]}', NO_STRING),
    (
        "pair",
        b'{"text":[["a"],[]]}',
        "[request id: <id_unknown>] expected 2 string elements for inference input 'text' for model 'pair', got 1",
    ),
    ("bool", b'{"x":1}', "Unable to parse 'data': attempt to access JSON non-boolean as boolean"),
    ("uint8", b'{"x":-1}', "Unable to parse 'data': attempt to access JSON non-unsigned-integer as unsigned-integer"),
    ("uint8", b'{"x":256}', "Unable to parse 'data': 256 is out of range for UINT8"),
    ("int32", b'{"x":1.0}', "Unable to parse 'data': attempt to access JSON non-signed-integer as signed-integer"),
    ("int32", b'{"x":"1"}', "Unable to parse 'data': attempt to access JSON non-signed-integer as signed-integer"),
    ("fp64", b'{"x":["1"]}', "Unable to parse 'data': attempt to access JSON non-number as double"),
    ("fp64", b'{"x":[[1,2]]}', "Unable to parse 'data': Shape does not match true shape of 'data' field"),
    ("fp64", b'{"x":[[]]}', "Unable to parse 'data': Shape does not match true shape of 'data' field"),
    (
        "fp16",
        b'{"x":1}',
        "receiving FP16 data via JSON is not supported. Please use the binary data format for input x",
    ),
    (
        "bf16",
        b'{"x":1}',
        "receiving BF16 data via JSON is not supported. Please use the binary data format for input x",
    ),
    ("chat", b'{"text_input":["a","b"],"stream":true}',
     "[request id: <id_unknown>] input 'text_input' batch size does not match other inputs for 'chat'"),
    ("rows", b'{"x":[1,2,3,4,5,6,7,8,9,10]}',
     "[request id: <id_unknown>] inference request batch-size must be <= 4 for 'rows'"),
    ("llm", b'{"text_input":"a",' + b",".join(b'"%d":1' % n for n in range(4096)) + b"}",
     "more than 4096 members in an object"),
    ("llm", b"[" * 101 + b"]" * 101, "JSON nesting depth exceeds maximum allowed limit (100)"),
]  # fmt: skip


@BOTH
@pytest.mark.parametrize(("model", "body", "text"), REFUSALS)
def test_refusals(model: str, body: bytes, text: str, action: str, resolve: Resolve) -> None:
    assert refusal(ask(resolve, f"{model}/{action}", body)) == (400, text)


@BOTH
def test_unknown_models_come_before_anything_in_the_body(action: str, resolve: Resolve) -> None:
    assert refusal(ask(resolve, f"no/{action}", b"{")) == (404, "Request for unknown model: 'no' is not found")
    version = f"llm/versions/4/{action}"
    assert refusal(ask(resolve, version, b"{")) == (404, "Request for unknown model: 'llm' version 4 is not found")
    version = f"no/versions/4/{action}"
    assert refusal(ask(resolve, version, b"{")) == (404, "Request for unknown model: 'no' is not found")
    reply = ask(resolve, f"llm/{action}", b"{", headers={"content-encoding": "br"})
    assert (reply.http_status, reply.message) == (501, "Unsupported compression type")


@given(st.binary(max_size=60) | st.recursive(st.none() | st.booleans() | st.floats() | st.text(max_size=3),
       lambda inner: st.lists(inner, max_size=3) | st.dictionaries(
           st.sampled_from(["text_input", "stream", "id", "parameters", "p"]), inner, max_size=4), max_leaves=8)
       .map(lambda value: json.dumps(value).encode()))  # fmt: skip
def test_garbage_is_refused_in_words(body: bytes) -> None:
    spec = {"text_input": TensorSpec("text_input", BYTES, (1,)), "stream": TensorSpec("stream", DTYPES["BOOL"], (1,))}
    nobody: Any = None
    view = ModelView("m", 1, (1,), spec, {}, {}, 0, "python", nobody)
    answer = ask(lambda ref: view, "m/generate", body)
    assert isinstance(answer, InferRequest) or refusal(answer)[0] == 400


# ------------------------------------------------------------------------------------------------------------- answers


def request_of(**changes: Any) -> InferRequest:
    nobody: Any = None
    return InferRequest(ModelView("m", 1, (1,), {}, {}, {}, 0, "python", nobody), {}, **changes)


OUTPUTS: list[tuple[Any, str]] = [
    (np.array([True]), "true"),
    (np.array([[7]], np.int8), "7"),
    (np.array(5, np.int32), "5"),
    (np.array([], np.int32), "[]"),
    (np.array([[1, 2], [3, 4]], np.uint64), "[1,2,3,4]"),
    (np.array([2**64 - 1], np.uint64), "18446744073709551615"),
    (np.array([1.0, 0.5], np.float32), "[1.0,0.5]"),
    (np.array([np.nan], np.float32), "NaN"),
    (np.array([np.inf, 1.0, -np.inf]), "[Infinity,1.0,-Infinity]"),
    (np.array([b"a\"\n"], object), r'"a\"\n"'),
    (np.array(["ß".encode(), b""], object), '["ß",""]'),
]  # fmt: skip


@pytest.mark.parametrize(("array", "text"), OUTPUTS)
def test_an_output_is_a_value_or_a_flat_array(array: Any, text: str) -> None:
    document = f'{{"model_name":"m","model_version":"1","y":{text}}}'.encode()
    assert told(InferResponse({"y": array}), request_of()).body == document
    assert told(InferResponse({"y": array}), request_of(), "generate_stream").body == b"data: " + document + b"\n\n"


def test_parameters_of_the_answer_stand_beside_the_outputs() -> None:
    answer = InferResponse({"y": np.array([1]), "z": np.array([2, 3])}, {"finished": True, "score": 0.5, "why": "eos"})
    assert (
        told(answer, request_of(id="ü")).body
        == (
            '{"id":"ü","model_name":"m","model_version":"1","finished":true,"score":0.5,"why":"eos","y":1,"z":[2,3]}'
        ).encode()
    )


def test_nobody_is_told_of_an_answer_without_outputs() -> None:
    reply = told(InferResponse({}), request_of(), "generate_stream")
    assert (reply.body, reply.streamed, dict(reply.headers)) == (b"", True, SSE)


UNTOLD: list[tuple[Any, str]] = [
    (np.ones(1, np.float16),
     "sending FP16 data via JSON is not supported. Please use the binary data format for output"),
    (np.ones(1, ml_dtypes.bfloat16),
     "sending BF16 data via JSON is not supported. Please use the binary data format for output"),
    (np.array([b"\xff"], object),
     "output 'y' holds bytes that are not UTF-8. Please use the binary data format for output"),
]  # fmt: skip


@BOTH
@pytest.mark.parametrize(("array", "text"), UNTOLD)
def test_what_json_cannot_carry(array: Any, text: str, action: str) -> None:
    with pytest.raises(errors.EncodingFailed) as caught:
        told(InferResponse({"y": array}), request_of(), action)
    assert caught.value.text == text


# -------------------------------------------------------------------------------------------------------------- errors

FAILURES: list[tuple[GatewayError, int, str]] = [
    (errors.ModelFailed("KeyError: 'x'"), 500, "KeyError: 'x'"),
    (errors.InvalidArgument("no such word"), 400, "no such word"),
    (errors.DeadlineExceeded("m"), 504, "Deadline Exceeded"),
    (errors.EncodingFailed("not so"), 400, "not so"),
    (errors.Internal("secret"), 500, "internal error"),
]  # fmt: skip


@pytest.mark.parametrize(("error", "status", "text"), FAILURES)
def test_a_failure_is_an_event_once_a_model_has_the_request(error: GatewayError, status: int, text: str) -> None:
    encode_error = DIALECT.match("POST", "/v2/models/m/generate_stream").endpoint.encode_error
    call = Call(b"", "POST", "", {}, "http")
    before = encode_error(error, call)
    assert refusal(before) == (status, text)
    call.accepted = True
    after = encode_error(error, call)
    assert (after.http_status, after.body) == (status, b"data: " + bytes(before.body) + b"\n\n")
    assert dict(after.headers) == SSE
    assert (after.grpc_code, after.message) == (before.grpc_code, before.message)


def test_a_caller_may_still_be_told_to_come_back() -> None:
    call = Call(b"", "POST", "", {}, "http", accepted=True)
    reply = DIALECT.match("POST", "/v2/models/m/generate_stream").endpoint.encode_error(errors.QueueTimeout("m"), call)
    assert (reply.http_status, dict(reply.headers)) == (503, SSE | {"Retry-After": "1"})


def test_generate_wants_exactly_one_answer() -> None:
    call = Call(b"", "POST", "", {}, "http", accepted=True)
    reply = DIALECT.match("POST", "/v2/models/m/generate").endpoint.encode_error(errors.NotOneAnswer("m"), call)
    assert refusal(reply) == (
        400,
        "generate expects model to produce exactly 1 response, use generate stream for model that generates various "
        "number of responses",
    )

"""A second path for predict, other ways to ask for a stream, and models that see the raw request."""

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from tensorgate.adapters.grps import KIND
from tensorgate.adapters.grps.options import GrpsMapping, GrpsOptions
from tensorgate.gateway.contract.call import Call, Reply
from tensorgate.gateway.contract.canonical import InferRequest, InferResponse, ModelView
from tensorgate.gateway.contract.dialect import Dialect, Resolve
from tensorgate.gateway.contract.errors import EncodingFailed, GatewayError
from tensorgate.gateway.contract.tensor import BYTES

MakeModel = Callable[..., ModelView]
MakeResolve = Callable[..., Resolve]
PREDICT = "/grps/v1/infer/predict"
CHAT = "/v1/chat/completions"
JSON = {"content-type": "application/json"}
TENSOR = b'{"ndarray": [1]}'


def dialect(**own: Any) -> Dialect:
    return KIND.make(GrpsOptions.model_validate({"customized_predict_http": {"path": CHAT, **own}}))


def decode(made: Dialect, call: Call, resolve: Resolve) -> Any:
    """-> the request, or the reply that refuses it"""
    match = made.match(call.method, call.raw_target)
    call.args = match.args
    try:
        return match.endpoint.decode(call, resolve)
    except GatewayError as error:
        return match.endpoint.encode_error(error, call)


def call_of(target: str, body: bytes = TENSOR, headers: Any = JSON, method: str = "POST") -> Call:
    return Call(body, method, target, headers, "http")


def floats(make_model: MakeModel, **more: Any) -> ModelView:
    return make_model("m", {"x": ("FP32", (-1,))}, {"y": ("FP32", (-1,))}, **more)


# ----------------------------------------------------------------------------------------------------- the second path


def test_the_second_path_belongs_to_the_dialect() -> None:
    assert dialect().paths == (CHAT,)
    assert KIND.make(GrpsOptions()).paths == ()


@pytest.mark.parametrize("path", ["", "chat", "/a b", "/a?b", "/grps/v1", "/grps/v1/infer/predict"])
def test_paths_that_cannot_be(path: str) -> None:
    with pytest.raises(ValidationError):
        dialect(path=path)


def test_the_same_protocol_on_both_paths(make_model: MakeModel, make_resolve: MakeResolve) -> None:
    made, resolve = dialect(), make_resolve(floats(make_model))
    for call in (call_of(PREDICT), call_of(CHAT), call_of(CHAT, method="GET")):
        assert decode(made, call, resolve).inputs["x"].tolist() == [1.0]
    refused = decode(made, call_of(PREDICT, method="GET"), resolve)
    assert (refused.http_status, refused.headers["Allow"]) == (405, "POST")


# ------------------------------------------------------------------------------------------------- asking for a stream


@pytest.mark.parametrize(
    ("control", "target", "body", "headers", "stream"),
    [
        ({}, f"{PREDICT}?streaming=True", TENSOR, {}, True),
        ({"ctrl_key": "flow"}, f"{PREDICT}?flow=true", TENSOR, {}, True),
        ({"ctrl_key": "flow"}, f"{PREDICT}?streaming=true", TENSOR, {}, False),
        ({"ctrl_mode": "header_param"}, PREDICT, TENSOR, {"streaming": "TRUE"}, True),
        ({"ctrl_mode": "header_param", "ctrl_key": "X-Flow"}, CHAT, TENSOR, {"x-flow": "true"}, True),
        ({"ctrl_mode": "header_param"}, PREDICT, TENSOR, {"streaming": "1"}, False),
        ({"ctrl_mode": "header_param"}, f"{PREDICT}?streaming=true", TENSOR, {}, False),
        ({"ctrl_mode": "body_param", "ctrl_key": "stream"}, CHAT, b'{"ndarray": [1], "stream": true}', {}, True),
        ({"ctrl_mode": "body_param", "ctrl_key": "stream"}, CHAT, b'{"ndarray": [1], "stream": "true"}', {}, False),
        ({"ctrl_mode": "body_param", "ctrl_key": "stream"}, CHAT, b'{"ndarray": [1], "stream": 1}', {}, False),
    ],
    ids=str,
)
def test_how_a_stream_is_asked_for(
    control: Any,
    target: str,
    body: bytes,
    headers: Any,
    stream: bool,
    make_model: MakeModel,
    make_resolve: MakeResolve,
) -> None:
    made = dialect(streaming_ctrl={"res_content_type": "text/event-stream", **control})
    call = call_of(target, body, {**JSON, **headers})
    request = decode(made, call, make_resolve(floats(make_model)))
    assert isinstance(request, InferRequest)
    reply = made.match("POST", target).endpoint.encode(InferResponse({"y": np.ones(1, np.float32)}), request)
    assert (request.stream, reply.streamed) == (stream, stream)
    assert reply.headers["Content-Type"] == ("text/event-stream" if stream else "application/json;charset=utf-8")


def test_a_body_that_is_no_json_asks_for_none(make_model: MakeModel, make_resolve: MakeResolve) -> None:
    made = dialect(streaming_ctrl={"ctrl_mode": "body_param"})
    for body in (b"{", b"[true]", b"\xff", b"[" * 10_000):
        refused = decode(made, call_of(PREDICT, body), make_resolve(floats(make_model)))
        assert (refused.http_status, refused.streamed) == (500, False)


def test_a_model_that_streams_is_asked_as_the_caller_likes(make_model: MakeModel, make_resolve: MakeResolve) -> None:
    resolve = make_resolve(floats(make_model, decoupled=True))
    assert not decode(dialect(), call_of(PREDICT), resolve).stream
    assert decode(dialect(), call_of(f"{PREDICT}?streaming=true"), resolve).stream


# ----------------------------------------------------------------------------------------------------------- raw bodies

RAW = {"customized_body": True, "streaming_ctrl": {"ctrl_mode": "body_param", "ctrl_key": "stream"}}
OUTPUTS = {"body": ("BYTES", (1,)), "status": ("INT32", (1,)), "type": ("BYTES", (1,)), "more": ("BYTES", (1,))}
SHAPED = {"bin_data": "body", "status": "status", "content_type": "type", "headers": "more"}


def raw_model(make_model: MakeModel, **reply: str) -> ModelView:
    mapping = GrpsMapping.model_validate({"reply": reply})
    outputs = OUTPUTS if reply else {"body": ("BYTES", (1,))}
    return make_model("m", {"request": ("BYTES", (1,))}, outputs, mappings={"grps": mapping})


def said(**values: Any) -> InferResponse:
    return InferResponse(
        {
            name: np.array([value], BYTES if isinstance(value, bytes) else np.int32)
            for name, value in ({"status": 200, "type": b"text/plain", "more": b"{}"} | values).items()
        }
    )


@pytest.mark.parametrize("target", [PREDICT, CHAT])
def test_a_model_sees_the_raw_request(target: str, make_model: MakeModel, make_resolve: MakeResolve) -> None:
    headers = {"Content-Type": "no/type", "x-key": "v"}
    call = call_of(f"{target}?model=m-1&a=%20", b"\xff{", headers)
    request = decode(dialect(**RAW), call, make_resolve(raw_model(make_model)))
    assert request.inputs["request"].tolist() == [b"\xff{"]
    asked = dict(request.parameters)
    assert json.loads(asked.pop("http_headers")) == {"content-type": "no/type", "x-key": "v"}
    assert asked == {"http_method": "POST", "http_path": target, "http_query": "model=m-1&a=%20"}


def encode(request: InferRequest, answer: InferResponse) -> Reply:
    return dialect(**RAW).match("POST", CHAT).endpoint.encode(answer, request)


def test_a_model_shapes_the_raw_response(make_model: MakeModel, make_resolve: MakeResolve) -> None:
    request = decode(dialect(**RAW), call_of(CHAT), make_resolve(raw_model(make_model, **SHAPED)))
    more = b'{"X-One": "1", "Content-Length": "7"}'
    reply = encode(request, said(body=b"\0raw", status=418, type=b"image/png", more=more))
    assert (reply.body, reply.http_status, reply.streamed) == (b"\0raw", 418, False)
    assert dict(reply.headers) == {"Content-Type": "image/png", "X-One": "1"}


@pytest.mark.parametrize(
    "answer",
    [
        {"status": 99},
        {"status": 600},
        {"type": b"a\r\nSet-Cookie: b"},
        {"more": b"[]"},
        {"more": b"{"},
        {"more": b'{"a": 1}'},
        {"more": b'{"a b": "1"}'},
        {"more": b'{"a": "1\\r\\nb: c"}'},
    ],
    ids=str,
)
def test_what_is_no_response(answer: Any, make_model: MakeModel, make_resolve: MakeResolve) -> None:
    request = decode(dialect(**RAW), call_of(CHAT), make_resolve(raw_model(make_model, **SHAPED)))
    with pytest.raises(EncodingFailed):
        encode(request, said(body=b"x", **answer))


@pytest.mark.parametrize(
    ("reply", "content_type"), [({}, "application/octet-stream"), ({"str_data": "body"}, "text/plain")]
)
def test_content_types_by_themselves(
    reply: Any, content_type: str, make_model: MakeModel, make_resolve: MakeResolve
) -> None:
    request = decode(dialect(**RAW), call_of(CHAT), make_resolve(raw_model(make_model, **reply)))
    assert encode(request, said(body=b"x")).headers == {"Content-Type": content_type}


def test_raw_streams(make_model: MakeModel, make_resolve: MakeResolve) -> None:
    made = dialect(customized_body=True, streaming_ctrl={"res_content_type": "text/event-stream"})
    request = decode(made, call_of(f"{CHAT}?streaming=true"), make_resolve(raw_model(make_model)))
    reply = made.match("POST", CHAT).endpoint.encode(said(body=b"data: x\n\n"), request)
    assert (reply.body, reply.streamed, reply.headers["Content-Type"]) == (b"data: x\n\n", True, "text/event-stream")


def test_raw_failures_are_text(make_resolve: MakeResolve) -> None:
    made = dialect(customized_body=True)
    reply = decode(made, call_of(f"{CHAT}?model=x-1"), make_resolve())
    assert (reply.body, reply.http_status, reply.streamed) == (b"Model x-1 not found.", 500, False)
    assert reply.headers == {"Content-Type": "text/plain"}
    reply = decode(made, call_of(f"{CHAT}?model=x-1&streaming=true"), make_resolve())
    assert (reply.body, reply.http_status, reply.streamed) == (b"Model x-1 not found.", 200, True)

"""Answers that come as a stream over HTTP: bytes as other servers send them, however they are cut into pieces."""

from collections.abc import Callable
from typing import Any

import numpy as np
import orjson
import pytest

from tensorgate.adapters.grps.client import Documents, GrpsHttpClient
from tensorgate.adapters.open_inference.client import V2HttpClient
from tensorgate.adapters.open_inference.generate_client import Events
from tensorgate.gateway.contract.call import Reply
from tensorgate.gateway.contract.canonical import InferRequest, InferResponse, ModelView, Sequence
from tensorgate.gateway.contract.errors import (
    EncodingFailed,
    GatewayError,
    InvalidArgument,
    ModelFailed,
    NotFound,
    Unavailable,
)
from tensorgate.gateway.contract.tensor import DTYPES, TensorSpec
from tensorgate.gateway.contract.upstream import Cutter, Description, UpstreamModel

TRITON = b'data: {"model_name":"m","model_version":"1","y":1}\n\ndata: {"model_name":"m","model_version":"1","y":2}\n\n'
EVENTS = {
    "as Triton sends them": (TRITON, [b'{"model_name":"m","model_version":"1","y":%d}' % n for n in (1, 2)]),
    "CR LF": (b"data: a\r\n\r\ndata: b\r\n\r\n", [b"a", b"b"]),
    "CR": (b"data: a\r\rdata: b\r\r", [b"a", b"b"]),
    "lines of one event": (b"data: a\ndata:b\ndata:  c\n\n", [b"a\nb\n c"]),
    "all there is in an event": (b": hello\nevent: x\nid: 7\nretry: 10\ndata: a\n\n:bye\n\n", [b"a"]),
    "a mark of its encoding": (b"\xef\xbb\xbfdata: a\n\n", [b"a"]),
    "empty lines": (b"\n\n\ndata: a\n\n\n\n", [b"a"]),
    "a text with what ends lines elsewhere": ("data: größe\u2028\n\n".encode(), ["größe\u2028".encode()]),
    "without an end": (b"data: a\n\ndata: b", [b"a", b"b"]),
    "nothing": (b"", []),
}
DOCUMENTS = {
    "one after the other": (b'{"a":1}{"b":{"c":[{}]}}', [b'{"a":1}', b'{"b":{"c":[{}]}}']),
    "lines between": (b' {\n  "a": 1\n}\r\n\t{"b": 2}\n', [b'{\n  "a": 1\n}', b'{"b": 2}']),
    "braces in texts": (rb'{"a":"}{"}{"\\":"\"}"}', [rb'{"a":"}{"}', rb'{"\\":"\"}"}']),
    "texts in UTF-8": ('{"a":"größe}"}{}'.encode(), ['{"a":"größe}"}'.encode(), b"{}"]),
    "without an end": (b'{"a":1}{"b":', [b'{"a":1}', b'{"b":']),
    "nothing": (b" \n", []),
}


def cut(cutter: Cutter, body: bytes, size: int) -> list[bytes]:
    found: list[bytes] = []
    for at in range(0, len(body), size):
        found += cutter.feed(body[at : at + size])
    return found + cutter.end()


@pytest.mark.parametrize(
    ("make", "body", "want"),
    [
        *[pytest.param(Events, *case, id=f"events: {name}") for name, case in EVENTS.items()],
        *[pytest.param(Documents, *case, id=f"documents: {name}") for name, case in DOCUMENTS.items()],
    ],
)
def test_messages_are_found_wherever_the_bytes_are_cut(
    make: Callable[[], Cutter], body: bytes, want: list[bytes]
) -> None:
    for size in range(1, len(body) + 2):
        assert cut(make(), body, size) == want, size


def test_a_message_is_told_as_soon_as_it_is_whole() -> None:
    assert Events().feed(TRITON[:-1]) == [EVENTS["as Triton sends them"][1][0]]
    assert Events().feed(b"data: a\r\n\r\n") == [b"a"]
    assert Documents().feed(b'{"a":1}{') == [b'{"a":1}']


def test_what_is_no_document_is_no_message_either(make_model: Callable[..., ModelView]) -> None:
    assert Documents().feed(b'{}raw{"a":1}') == [b"{}", b'raw{"a":1}']
    with pytest.raises(ModelFailed, match="no valid grps message"):
        GrpsHttpClient(UpstreamModel("m", 1)).decode_part(Reply(b'raw{"a":1}'), Description())


# ------------------------------------------------------------------------------------------------------ V2's generate


def spec(name: str, datatype: str, shape: tuple[int, ...] | None) -> TensorSpec:
    return TensorSpec(name, DTYPES[datatype], shape)


CLIENT = V2HttpClient(UpstreamModel("a b", 3))


def asked(view: ModelView, shape: tuple[int, ...] | None, array: Any, name: str = "x", **request: Any) -> Any:
    description = Description((TensorSpec(name, array.dtype, shape),), ())
    inputs = {name: array}
    return CLIENT.encode(inputs, (), InferRequest(view, inputs, **request), description, stream=True)


@pytest.mark.parametrize(
    ("datatype", "shape", "value", "want"),
    [
        ("INT32", (1,), [7], b"7"),
        ("FP32", (-1, 2), [[1.5, 2], [np.nan, -np.inf]], b"[1.5,2.0,NaN,-Infinity]"),
        ("FP32", (-1, 1), [[0.1]], b"0.1"),
        ("BOOL", (2, 1), [[True], [False]], b"[true,false]"),
        ("UINT64", (-1,), [2**64 - 1, 0], b"[18446744073709551615,0]"),
        ("BYTES", (-1,), ["größe".encode(), b'"\n'], '["größe","\\"\\n"]'.encode()),
        ("INT64", None, [1, 2], b"[1,2]"),
        ("INT64", (-1,), [], b"[]"),
    ],
)
def test_a_question_has_values_without_shapes(
    datatype: str, shape: Any, value: Any, want: bytes, make_model: Callable[..., ModelView]
) -> None:
    array = np.array(value, DTYPES[datatype])
    ask = asked(make_model("m", {}, {}), shape, array, id="7", parameters={"temperature": 0.5})
    assert (ask.method, ask.target) == ("POST", "/v2/models/a%20b/versions/3/generate_stream")
    assert ask.headers["Content-Type"] == "application/json"
    assert b"".join(ask.body) == b'{"id":"7","x":%b,"parameters":{"temperature":0.5}}' % want


@pytest.mark.parametrize(
    ("datatype", "shape", "value", "more", "text"),
    [
        ("INT32", (-1, -1), [[1], [2]], {}, r"input 'x' of shape \[2, 1\] cannot be streamed over HTTP"),
        ("INT32", (3,), [1], {}, r"input 'x' of shape \[1\] cannot be streamed"),
        ("FP16", (1,), [1], {}, "input 'x' is float16, which JSON cannot carry"),
        ("BF16", (1,), [1], {}, "input 'x' is bfloat16, which JSON cannot carry"),
        ("BYTES", (1,), [b"\xff"], {}, "input 'x' is no text"),
        ("INT32", (1,), [1], {"sequence": Sequence(7)}, "a request of a sequence"),
        ("INT32", (1,), [1], {"parameters": {"x": 1}}, "a parameter has the name of the input 'x'"),
        ("INT32", (1,), [1], {"name": "parameters"}, "an input cannot be called 'parameters'"),
    ],
)
def test_what_a_question_cannot_say_is_refused(
    datatype: str, shape: Any, value: Any, more: Any, text: str, make_model: Callable[..., ModelView]
) -> None:
    with pytest.raises(EncodingFailed, match=text):
        asked(make_model("m", {}, {}), shape, np.array(value, DTYPES[datatype]), **more)


OUTPUTS = Description(
    (), (spec("y", "FP32", (-1, 2)), spec("text", "BYTES", (1,)), spec("n", "INT64", None), spec("b", "BOOL", (-1,)))
)


def event(**members: Any) -> InferResponse:
    return CLIENT.decode_part(Reply(orjson.dumps({"model_name": "m", "model_version": "1", **members})), OUTPUTS)


def test_an_event_is_an_answer_of_the_shape_that_is_declared() -> None:
    answer = event(id="7", y=[1, 2, 3.5, 4], text="größe", n=2**53 + 1, b=True, finish="stop", other=None)
    assert answer.outputs["y"].tolist() == [[1, 2], [3.5, 4]]
    assert answer.outputs["y"].dtype == np.float32
    assert answer.outputs["text"].tolist() == ["größe".encode()]
    assert answer.outputs["n"].tolist() == [2**53 + 1]
    assert (answer.outputs["b"].dtype, answer.outputs["b"].tolist()) == (np.bool_, [True])
    assert answer.parameters == {"finish": "stop"}
    assert not answer.final
    assert event(y=[]).outputs["y"].shape == (0, 2)
    assert not event().outputs
    floats = CLIENT.decode_part(Reply(b'{"y":[NaN,-Infinity]}'), OUTPUTS).outputs["y"]
    assert np.isnan(floats[0, 0])
    assert floats[0, 1] == -np.inf


@pytest.mark.parametrize(
    "body",
    [
        *[
            b"",
            b"{",
            b"[]",
            b'"x"',
            b"[DONE]",
            b'{"y":[1]}',
            b'{"y":"x"}',
            b'{"y":{}}',
            b'{"y":[[1,2]]}',
            b'{"text":1}',
        ],
        *[b'{"n":1e400}', b'{"n":99999999999999999999}', b'{"n":1.5}', b'{"y":["1","2"]}', b'{"b":1}', b'{"n":true}'],
        *[b'{"text":["a","b"]}', b"\xff", b"[" * 100_000],
    ],
)
def test_what_is_no_event_is_the_models_failure(body: bytes) -> None:
    with pytest.raises(ModelFailed, match="no valid generate event"):
        CLIENT.decode_part(Reply(body), OUTPUTS)


@pytest.mark.parametrize(
    ("status", "body", "kind", "text"),
    [
        (200, b'{"error":"too much"}', ModelFailed, "too much"),
        (400, b'data: {"error":"a negative number"}\n\n', InvalidArgument, "a negative number"),
        (500, b'data: {"error":"it failed"}\r\n\r\n', ModelFailed, "it failed"),
        (404, b'{"error":"Request for unknown model"}', NotFound, "Request for unknown model"),
        (404, b"Not Found", NotFound, "Not Found"),
        (503, b"", Unavailable, "HTTP status 503"),
    ],
)
def test_a_failure_keeps_its_kind_and_text(status: int, body: bytes, kind: type[GatewayError], text: str) -> None:
    with pytest.raises(kind) as raised:
        CLIENT.decode_part(Reply(body, status), OUTPUTS)
    assert str(raised.value) == text


def test_grps_messages_of_a_stream_are_answers(make_model: Callable[..., ModelView]) -> None:
    client = GrpsHttpClient(UpstreamModel("m", 1))
    inputs = {"x": np.array([1.5], np.float32)}
    ask = client.encode(inputs, (), InferRequest(make_model("m", {}, {}), inputs), Description(), stream=True)
    assert ask.target == "/grps/v1/infer/predict?model=m-1&streaming=true"
    assert ask.cut is Documents
    tensor = {"name": "y", "dtype": "DT_FLOAT32", "shape": [1], "flat_float32": [2.5]}
    said = {"status": {"code": 200, "msg": "OK", "status": "SUCCESS"}, "gtensors": {"tensors": [tensor]}}
    answer = client.decode_part(Reply(orjson.dumps(said)), Description())
    assert answer.outputs["y"].tolist() == [2.5]
    assert not answer.final
    failure = {"status": {"code": 500, "msg": "it failed", "status": "FAILURE"}}
    with pytest.raises(ModelFailed, match="it failed"):
        client.decode_part(Reply(orjson.dumps(failure)), Description())

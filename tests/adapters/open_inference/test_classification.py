"""Classification over HTTP: what asks for it, and the texts that clients read."""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import orjson
import pytest

from tensorgate.adapters.open_inference import KIND
from tensorgate.adapters.open_inference.classification import class_texts
from tensorgate.adapters.open_inference.options import OpenInferenceOptions
from tensorgate.adapters.open_inference.raw import V2ReplyForm
from tensorgate.adapters.open_inference.response import EXTENSIONS, with_classes
from tensorgate.gateway.contract.call import Call, Reply
from tensorgate.gateway.contract.canonical import InferRequest, InferResponse, ModelView, OutputRequest, TopK
from tensorgate.gateway.contract.dialect import Resolve
from tensorgate.gateway.contract.errors import ClassesTooMany, ClassesUnsupported, GatewayError
from tensorgate.gateway.contract.tensor import DTYPES

DIALECT = KIND.make(OpenInferenceOptions())
LINE = ("POST", "/v2/models/m/infer")
WRONG = "Unable to set 'classification': attempt to access JSON non-unsigned-integer as unsigned-integer"


@pytest.fixture
def model(make_model: Callable[..., ModelView]) -> ModelView:
    outputs: Any = {"a": ("FP32", (-1, 4)), "b": ("INT32", (-1, 4)), "c": ("FP32", (-1, 4))}
    view = make_model("m", {"x": ("FP32", (-1, 4))}, outputs, max_batch_size=8)
    labelled = replace(view.outputs["b"], labels=("apple", "", "pear"))
    return replace(view, outputs={**view.outputs, "b": labelled})


def decode(resolve: Resolve, outputs: Any, **body: Any) -> Any:
    """The request, or the status and text of its refusal."""
    tensor = {"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]}
    call = Call(orjson.dumps({"inputs": [tensor], "outputs": outputs, **body}), *LINE, {}, "http", {"model": "m"})
    endpoint = DIALECT.match(*LINE).endpoint
    try:
        return endpoint.decode(call, resolve)
    except GatewayError as error:
        reply = endpoint.encode_error(error, call)
        return reply.http_status, json.loads(bytes(reply.body))["error"]


def wish(name: str, **parameters: Any) -> dict[str, Any]:
    return {"name": name, "parameters": parameters}


# ----------------------------------------------------------------------------------------------------- what is asked


def test_what_asks_for_classes(model: ModelView, make_resolve: Callable[..., Resolve]) -> None:
    resolve = make_resolve(model)
    asked = [wish("c", classification=3), wish("a", classification=0), wish("b", classification=2**64 - 1)]
    request = decode(resolve, asked)
    assert request.outputs == (OutputRequest("c", 3), OutputRequest("a"), OutputRequest("b", 2**64 - 1))
    again = decode(resolve, asked)
    assert again.outputs == request.outputs, "also by the template that the first one left"
    assert decode(resolve, [wish("c")]).outputs == (OutputRequest("c"),)
    custom = decode(resolve, [wish("c")], parameters={"classification": 3})
    assert (custom.outputs, custom.parameters) == ((OutputRequest("c"),), {"classification": 3})


def test_classes_may_go_out_as_binary(model: ModelView, make_resolve: Callable[..., Resolve]) -> None:
    resolve = make_resolve(model)
    request = decode(resolve, [wish("b", classification=1, binary_data=True), wish("a", classification=1)])
    assert request.wire.binary == {"b"}
    by_default = decode(resolve, [wish("b", classification=1)], parameters={"binary_data_output": True})
    assert by_default.wire.binary == {"b"}


@pytest.mark.parametrize("value", [-1, "3", 3.0, True, None, [3], {}, 2**64])
def test_what_is_no_number_of_classes(value: Any, model: ModelView, make_resolve: Callable[..., Resolve]) -> None:
    document = json.dumps([{"name": "a", "parameters": {"classification": value}}])
    call = Call(b'{"inputs":[],"outputs":' + document.encode() + b"}", *LINE, {}, "http", {"model": "m"})
    endpoint = DIALECT.match(*LINE).endpoint
    with pytest.raises(GatewayError) as caught:
        endpoint.decode(call, make_resolve(model))
    reply = endpoint.encode_error(caught.value, call)
    assert (reply.http_status, reply.message) == (400, WRONG)


# -------------------------------------------------------------------------------------------------------------- texts


def top(datatype: str, values: Any, indices: Any) -> TopK:
    return TopK(np.array(values, DTYPES[datatype]), np.array(indices, np.int64))


TEXTS: list[tuple[TopK, tuple[str, ...], list[bytes]]] = [
    (top("FP32", [3.3, 2.4], [1, 3]), (), [b"3.300000:1", b"2.400000:3"]),
    (top("FP32", [3.3, 2.4], [1, 3]), ("", "index_1_label"), [b"3.300000:1:index_1_label", b"2.400000:3"]),
    (top("INT32", [10, 5], [2, 1]), ("kiwi", "pickle", "apple"), [b"10:2:apple", b"5:1:pickle"]),
    (
        top("FP32", [1e20, 1e-10, -0.0], [0, 1, 2]),
        (),
        [b"100000002004087734272.000000:0", b"0.000000:1", b"-0.000000:2"],
    ),
    (top("FP64", [np.inf, -np.inf, np.nan, -np.nan], [0, 1, 2, 3]), (), [b"inf:0", b"-inf:1", b"nan:2", b"nan:3"]),
    (top("FP64", [0.1234567, 1e300], [9, 0]), (), [b"0.123457:9", f"{1e300:f}:0".encode()]),
    (top("INT64", [2**63 - 1, -(2**63)], [0, 1]), (), [b"9223372036854775807:0", b"-9223372036854775808:1"]),
    (top("UINT64", [2**64 - 1], [7]), ("a", "b"), [b"18446744073709551615:7"]),
    (top("UINT8", [1], [1]), ("a", "100 %d:ä"), ["1:1:100 %d:ä".encode()]),
    (top("FP32", [], []), ("a",), []),
]


@pytest.mark.parametrize(("best", "labels", "texts"), TEXTS)
def test_texts(best: TopK, labels: tuple[str, ...], texts: list[bytes]) -> None:
    array = class_texts(best, labels)
    assert (array.dtype, array.tolist()) == (DTYPES["BYTES"], texts)


SHAPES = [((1, 2), (1, 2)), ((3, 1), (3, 1)), ((2,), (2,)), ((0, 4), (0,)), ((4, 0), (0,)), ((0,), (0,))]


@pytest.mark.parametrize(("shape", "want"), SHAPES)
def test_shapes(shape: tuple[int, ...], want: tuple[int, ...]) -> None:
    zeros = np.zeros(shape, np.int64)
    assert class_texts(TopK(zeros, zeros), ()).shape == want


# ----------------------------------------------------------------------------------------------------------- answers


def answer() -> InferResponse:
    a = np.array([[1, 2, 3, 4]], np.float32)
    classes = {"c": top("FP32", [[4.0, 3.0]], [[3, 2]]), "b": top("INT32", [[9, 8, 7]], [[0, 1, 3]])}
    return InferResponse({"a": a}, classes=classes)


def ask(model: ModelView, binary: frozenset[str] = frozenset()) -> InferRequest:
    return InferRequest(model, {}, "42", wire=V2ReplyForm(binary))


def test_an_answer_with_classes(model: ModelView) -> None:
    reply = DIALECT.match(*LINE).endpoint.encode(answer(), ask(model))
    assert bytes(reply.body) == (  # type: ignore[arg-type]
        b'{"id":"42","model_name":"m","model_version":"1","outputs":['
        b'{"name":"a","datatype":"FP32","shape":[1,4],"data":[1.0,2.0,3.0,4.0]},'
        b'{"name":"b","datatype":"BYTES","shape":[1,3],"data":["9:0:apple","8:1","7:3"]},'
        b'{"name":"c","datatype":"BYTES","shape":[1,2],"data":["4.000000:3","3.000000:2"]}]}'
    )


def test_an_answer_with_classes_as_binary(model: ModelView) -> None:
    reply = DIALECT.match(*LINE).endpoint.encode(answer(), ask(model, frozenset("bc")))
    head, b, c = reply.body
    assert b'"name":"b","datatype":"BYTES","shape":[1,3],"parameters":{"binary_data_size":27}}' in bytes(head)  # type: ignore[arg-type]
    assert bytes(b) == b"\x09\0\0\x009:0:apple\x03\0\0\x008:1\x03\0\0\x007:3"  # type: ignore[arg-type]
    assert bytes(c) == b"\x0a\0\0\x004.000000:3\x0a\0\0\x003.000000:2"  # type: ignore[arg-type]


def test_the_outputs_of_either_transport(model: ModelView) -> None:
    found = [(name, array.dtype == DTYPES["BYTES"], array.shape) for name, array in with_classes(answer(), ask(model))]
    assert found == [("a", False, (1, 4)), ("b", True, (1, 3)), ("c", True, (1, 2))]


def test_refusals() -> None:
    call = Call(b"", *LINE, {}, "http")
    endpoint = DIALECT.match(*LINE).endpoint

    def told(error: GatewayError) -> Any:
        reply: Reply = endpoint.encode_error(error, call)
        return reply.http_status, int(reply.grpc_code), reply.message

    want = "class result not available for output due to unsupported type 'FP16'"
    assert told(ClassesUnsupported("a", "FP16")) == (400, 3, want)
    assert told(ClassesTooMany("a")) == (400, 3, "classification output tensor too large")
    assert "classification" in EXTENSIONS

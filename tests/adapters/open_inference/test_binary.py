"""Open Inference V2 over HTTP, binary tensor data and compressed bodies: messages to the byte, in both directions."""

import gzip
import json
import struct
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as st_numpy

from tensorgate.adapters.open_inference import KIND
from tensorgate.adapters.open_inference.compression import best_coding
from tensorgate.adapters.open_inference.options import OpenInferenceOptions
from tensorgate.gateway.contract.call import Call, Reply
from tensorgate.gateway.contract.canonical import InferRequest, InferResponse, ModelRef, ModelView
from tensorgate.gateway.contract.dialect import Resolve
from tensorgate.gateway.contract.errors import GatewayError
from tensorgate.gateway.contract.tensor import DATATYPES, DTYPES, TensorSpec

ENDPOINT = KIND.make(OpenInferenceOptions()).match("POST", "/v2/models/m/infer").endpoint
LENGTH = "inference-header-content-length"


@pytest.fixture
def resolve(make_model: Callable[..., ModelView], make_resolve: Callable[..., Resolve]) -> Resolve:
    vector = {"x": ("FP32", (-1, 2))}
    return make_resolve(
        make_model(
            "pair", {"a": ("INT32", (-1, 2)), "b": ("BYTES", (-1,))}, {"a": ("INT32", (-1, 2)), "b": ("BYTES", (-1,))}
        ),
        make_model("rows", vector, {"y": ("FP32", (-1, 2))}, max_batch_size=4),
        make_model("grid", {"x": ("FP32", (-1, -1))}, {}),
        make_model("fixed", {"x": ("UINT8", (2, 3))}, {}),
        make_model("line", {"x": ("INT16", (2, -1))}, {}),
        make_model("word", {"t": ("BYTES", (1,))}, {}),
        make_model("words", {"t": ("BYTES", (-1, 1))}, {}, max_batch_size=4),
        make_model("text", {"t": ("BYTES", (-1,))}, {}),
        *(make_model(name.lower(), {"x": (name, None)}, {"x": (name, None)}) for name in DTYPES),
    )


def ask(resolve: Resolve, model: str, body: Any, headers: dict[str, str] | None = None, **more: Any) -> Any:
    """The request that a message asks for, or the reply that refuses it."""
    call = Call(
        body,
        "POST",
        f"/v2/models/{model}/infer",
        headers or {},
        "http",
        {"model": model},
        **{"in_thread": True, **more},
    )
    try:
        return ENDPOINT.decode(call, resolve)
    except GatewayError as error:
        return ENDPOINT.encode_error(error, call)


def binary(head: dict[str, Any], tail: bytes = b"") -> tuple[bytes, dict[str, str]]:
    text = orjson.dumps(head)
    return text + tail, {LENGTH: str(len(text))}


def item(name: str, datatype: str, shape: list[int], size: Any) -> dict[str, Any]:
    return {"name": name, "datatype": datatype, "shape": shape, "parameters": {"binary_data_size": size}}


def refusal(reply: Any) -> tuple[int, str]:
    assert isinstance(reply, Reply), reply
    assert reply.headers["Content-Type"] == "application/json"
    return reply.http_status, json.loads(bytes(reply.body))["error"]  # type: ignore[arg-type]


def whole(reply: Reply) -> bytes:
    return reply.body if isinstance(reply.body, bytes) else b"".join(reply.body)  # type: ignore[arg-type]


# ------------------------------------------------------------------------------------------------------------ messages

RAW: list[tuple[str, list[int], list[Any], bytes]] = [
    ("BOOL", [2], [True, False], b"\1\0"),
    ("UINT8", [3], [0, 1, 255], b"\x00\x01\xff"),
    ("UINT16", [1], [0x0102], b"\x02\x01"),
    ("UINT32", [1], [1], b"\1\0\0\0"),
    ("UINT64", [1], [2**64 - 1], b"\xff" * 8),
    ("INT8", [1], [-1], b"\xff"),
    ("INT16", [1, 2], [-2, 1], b"\xfe\xff\1\0"),
    ("INT32", [2, 1], [1, -1], b"\1\0\0\0\xff\xff\xff\xff"),
    ("INT64", [], [1], b"\1" + b"\0" * 7),
    ("FP16", [1], [1], b"\x00\x3c"),
    ("BF16", [1], [1], b"\x80\x3f"),
    ("FP32", [1], [np.nan], b"\x00\x00\xc0\x7f"),
    ("FP64", [1], [1], b"\0" * 6 + b"\xf0\x3f"),
    ("BYTES", [2, 2], [b"a", b"", b"\xff\0", b"xyz"], b"\1\0\0\0a\0\0\0\0\2\0\0\0\xff\0\3\0\0\0xyz"),
    ("BYTES", [0], [], b""),
    ("FP32", [0, 4], [], b""),
]


@pytest.mark.parametrize(("datatype", "shape", "values", "data"), RAW)
def test_tensors_in_both_directions(
    datatype: str, shape: list[int], values: list[Any], data: bytes, resolve: Resolve
) -> None:
    head = {
        "inputs": [item("x", datatype, shape, len(data))],
        "outputs": [{"name": "x", "parameters": {"binary_data": True}}],
    }
    request = ask(resolve, datatype.lower(), *binary(head, data))
    assert isinstance(request, InferRequest)
    array = request.inputs["x"]
    assert (array.dtype, array.shape) == (DTYPES[datatype], tuple(shape))
    np.testing.assert_array_equal(array.ravel(), np.array(values, DTYPES[datatype]))

    reply = ENDPOINT.encode(InferResponse({"x": array}), request)
    model = datatype.lower()
    text = (
        f'{{"model_name":"{model}","model_version":"1","outputs":[{{"name":"x","datatype":"{datatype}",'
        f'"shape":{json.dumps(shape, separators=(",", ":"))},"parameters":{{"binary_data_size":{len(data)}}}}}]}}'
    ).encode()
    assert whole(reply) == text + data
    if data:
        assert dict(reply.headers) == {
            "Content-Type": "application/octet-stream",
            "Inference-Header-Content-Length": str(len(text)),
        }
    else:
        assert dict(reply.headers) == {"Content-Type": "application/json"}


def test_any_byte_but_0_is_true(resolve: Resolve) -> None:
    request = ask(resolve, "bool", *binary({"inputs": [item("x", "BOOL", [3], 3)]}, b"\x02\x00\xff"))
    assert request.inputs["x"].tobytes() == b"\1\0\1"


def test_json_and_binary_mix(resolve: Resolve) -> None:
    words = {"name": "b", "datatype": "BYTES", "shape": [2], "data": ["x", "y"]}
    head = {
        "id": "5",
        "inputs": [words, item("a", "INT32", [1, 2], 8)],
        "outputs": [{"name": "b"}, {"name": "a", "parameters": {"binary_data": True}}],
    }
    request = ask(resolve, "pair", *binary(head, struct.pack("<2i", 7, -7)))
    np.testing.assert_array_equal(request.inputs["a"], [[7, -7]])
    assert request.inputs["b"].tolist() == [b"x", b"y"]
    text = (
        b'{"id":"5","model_name":"pair","model_version":"1","outputs":['
        b'{"name":"a","datatype":"INT32","shape":[1,2],"parameters":{"binary_data_size":8}},'
        b'{"name":"b","datatype":"BYTES","shape":[2],"data":["x","y"]}]}'
    )
    reply = ENDPOINT.encode(InferResponse({name: request.inputs[name] for name in ("a", "b")}), request)
    assert reply.headers["Inference-Header-Content-Length"] == str(len(text))
    assert whole(reply) == text + struct.pack("<2i", 7, -7)


DEFAULTS: list[tuple[Any, Any, set[str]]] = [
    (True, [], {"a", "b"}),
    (False, [], set()),
    (True, [{"name": "a"}], {"a"}),
    (True, [{"name": "a", "parameters": {"binary_data": False}}, {"name": "b"}], {"b"}),
    (False, [{"name": "a", "parameters": {"binary_data": True}}, {"name": "b"}], {"a"}),
]


@pytest.mark.parametrize(("default", "outputs", "expected"), DEFAULTS)
def test_which_outputs_are_binary(default: bool, outputs: Any, expected: set[str], resolve: Resolve) -> None:
    head = {
        "parameters": {"binary_data_output": default},
        "inputs": [
            {"name": "a", "datatype": "INT32", "shape": [1, 2], "data": [1, 2]},
            {"name": "b", "datatype": "BYTES", "shape": [1], "data": ["x"]},
        ],
        "outputs": outputs,
    }
    request = ask(resolve, "pair", orjson.dumps(head))
    assert dict(request.parameters) == {}
    names = [output.name for output in request.outputs] or ["a", "b"]
    reply = ENDPOINT.encode(InferResponse({name: request.inputs[name] for name in names}), request)
    length = reply.headers.get("Inference-Header-Content-Length")
    document = json.loads(whole(reply)[: int(length) if length else None])
    assert {output["name"] for output in document["outputs"] if "data" not in output} == expected


def test_numbers_are_views_of_the_message(resolve: Resolve) -> None:
    for make in (bytes, bytearray, memoryview):
        text, headers = binary({"inputs": [item("x", "FP32", [1, 2], 8)]}, struct.pack("<2f", 1, 2))
        body = make(text)
        request = ask(resolve, "rows", body, headers)
        assert np.shares_memory(request.inputs["x"], np.frombuffer(body, np.uint8))


def test_large_binary_outputs_are_views_of_the_arrays(resolve: Resolve) -> None:
    head = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 2], "data": [1, 2]}]}
    request = ask(resolve, "rows", orjson.dumps(head | {"parameters": {"binary_data_output": True}}))
    array = np.ones((512, 2), np.float32)
    reply = ENDPOINT.encode(InferResponse({"y": array}), request)
    assert isinstance(reply.body, list)
    assert np.shares_memory(np.frombuffer(reply.body[1], np.uint8), array)


def test_binary_outputs_of_any_memory_layout(resolve: Resolve) -> None:
    request = ask(resolve, "rows", b"\0" * 8, {LENGTH: "0"})
    array = np.arange(4, dtype=np.float32).reshape(2, 2)
    for view in (array.T, array[:, ::-1], array[::2]):
        assert whole(ENDPOINT.encode(InferResponse({"y": view}), request)).endswith(view.tobytes())


# ------------------------------------------------------------------------------------------------------------ refusals

UNKNOWN_ID = "[request id: <id_unknown>] "
SIZE = "attempt to access JSON non-unsigned-integer as unsigned-integer"

REFUSED: list[tuple[str, dict[str, Any], bytes, str]] = [
    (
        "rows",
        {"inputs": [item("x", "FP32", [1, 2], 8)]},
        b"12345",
        "unexpected size for input 'x', expecting 3 additional bytes for model 'rows'",
    ),
    (
        "rows",
        {"inputs": [item("x", "FP32", [1, 2], 8)]},
        b"123456789",
        "unexpected additional input data for model 'rows'",
    ),
    (
        "rows",
        {"id": "7", "inputs": [item("x", "FP32", [1, 2], 7)]},
        b"1234567",
        "[request id: 7] input byte size mismatch for input 'x' for model 'rows'. Expected 8, got 7",
    ),
    (
        "fp32",
        {"inputs": [item("x", "FP32", [10**12], 4)]},
        b"1234",
        UNKNOWN_ID + "input byte size mismatch for input 'x' for model 'fp32'. Expected 4000000000000, got 4",
    ),
    (
        "fp32",
        {"inputs": [item("x", "FP32", [0], 4)]},
        b"1234",
        UNKNOWN_ID + "input byte size mismatch for input 'x' for model 'fp32'. Expected 0, got 4",
    ),
    (
        "rows",
        {"inputs": [item("x", "FP32", [1, 3], 4)]},
        b"1234",
        UNKNOWN_ID + "unexpected shape for input 'x' for model 'rows'. Expected [-1,2], got [1,3]. NOTE: ",
    ),
    ("rows", {"inputs": [item("x", "FP32", [1, 2], -8)]}, b"", f"Unable to parse 'binary_data_size': {SIZE}"),
    ("rows", {"inputs": [item("x", "FP32", [1, 2], "8")]}, b"", f"Unable to parse 'binary_data_size': {SIZE}"),
    (
        "rows",
        {"parameters": {"binary_data_output": 1}},
        b"",
        "Unable to parse 'binary_data_output': attempt to access JSON non-boolean as boolean",
    ),
    (
        "text",
        {"inputs": [item("t", "BYTES", [1], 3)]},
        b"\1\0\0",
        "[request id: <id_unknown>] incomplete string length indicator for inference input 't' for model 'text', "
        "expecting 4 bytes but only 3 bytes available. Please make sure the string length indicator is in one buffer.",
    ),
    (
        "text",
        {"inputs": [item("t", "BYTES", [1], 7)]},
        b"\x10\0\0\0abc",
        "incomplete string data for inference input 't', expecting string of length 16 but only 3 bytes available",
    ),
    (
        "text",
        {"inputs": [item("t", "BYTES", [3], 8)]},
        b"\0" * 8,
        "[request id: <id_unknown>] expected 3 string elements for inference input 't' for model 'text', got 2",
    ),
    (
        "text",
        {"inputs": [item("t", "BYTES", [1], 8)]},
        b"\0" * 8,
        "[request id: <id_unknown>] unexpected number of string elements 2 "
        "for inference input 't' for model 'text', expecting 1",
    ),
]


@pytest.mark.parametrize(("model", "head", "tail", "text"), REFUSED)
def test_bad_messages(model: str, head: dict[str, Any], tail: bytes, text: str, resolve: Resolve) -> None:
    status, got = refusal(ask(resolve, model, *binary(head, tail)))
    assert status == 400
    assert got.startswith(text) if text.endswith("NOTE: ") else got == text


@pytest.mark.parametrize("length", ["-1", "100", "9" * 5000])
def test_lengths_out_of_range(length: str, resolve: Resolve) -> None:
    text = f"inference header size should be in range (0, 2), got: {length}"
    assert refusal(ask(resolve, "rows", b"{}", {LENGTH: length})) == (400, text)


@pytest.mark.parametrize("length", ["", "x", "1.0", "1_0", "\u0661"])
def test_lengths_that_are_no_numbers(length: str, resolve: Resolve) -> None:
    text = f"Unable to parse Inference-Header-Content-Length, got: {length}"
    assert refusal(ask(resolve, "rows", b"{}", {LENGTH: length})) == (400, text)


def test_a_length_that_is_no_text(resolve: Resolve) -> None:
    """Bytes of a header that are not UTF-8 arrive as surrogates, which no reply can carry."""
    text = "Unable to parse Inference-Header-Content-Length, got: ?"
    assert refusal(ask(resolve, "rows", b"{}", {LENGTH: "\udcff"})) == (400, text)


def test_a_length_that_cuts_the_json(resolve: Resolve) -> None:
    body, headers = binary({"inputs": [item("x", "FP32", [1, 2], 8)]}, b"12345678")
    status, text = refusal(ask(resolve, "rows", body, {LENGTH: str(int(headers[LENGTH]) - 1)}))
    assert status == 400
    assert text.startswith(
        "failed to parse the request JSON buffer: Missing a comma or '}' after an object member. at "
    )


# ------------------------------------------------------------------------------------------------- raw binary requests

RAW_REQUESTS: list[tuple[str, bytes, list[Any]]] = [
    ("rows", struct.pack("<2f", 1, 2), [[1, 2]]),
    ("fixed", bytes(range(6)), [[0, 1, 2], [3, 4, 5]]),
    ("line", struct.pack("<6h", *range(6)), [[0, 1, 2], [3, 4, 5]]),
    ("word", b"hello", [b"hello"]),
    ("words", b"hello", [[b"hello"]]),
    ("word", b"", [b""]),
]


@pytest.mark.parametrize(("model", "body", "values"), RAW_REQUESTS)
def test_raw_requests(model: str, body: bytes, values: list[Any], resolve: Resolve) -> None:
    request = ask(resolve, model, body, {LENGTH: "0"}, deadline=3.0)
    (array,) = request.inputs.values()
    assert array.tolist() == values
    assert request.deadline == 3.0
    reply = ENDPOINT.encode(InferResponse({name: np.ones(1, np.uint8) for name in request.view.outputs}), request)
    assert whole(reply).endswith(b"\1" if request.view.outputs else b"]}")


RAW_REFUSED = [
    (
        "pair",
        b"12",
        "[request id: <id_unknown>] Raw request must only have 1 input (found 1) to be deduced but got 2 inputs in "
        "'pair' model configuration",
    ),
    (
        "grid",
        b"1234",
        "[request id: <id_unknown>] The shape of the raw input 'x' can not be deduced because there are more than one "
        "variable-sized dimension",
    ),
    ("text", b"abc", "[request id: <id_unknown>] For BYTE datatype raw input 't', the model must have input shape [1]"),
    ("fixed", b"12345", UNKNOWN_ID + "input byte size mismatch for input 'x' for model 'fixed'. Expected 6, got 5"),
    ("line", b"12345", UNKNOWN_ID + "input byte size mismatch for input 'x' for model 'line'. Expected 4, got 5"),
]


@pytest.mark.parametrize(("model", "body", "text"), RAW_REFUSED)
def test_raw_requests_that_cannot_be_deduced(model: str, body: bytes, text: str, resolve: Resolve) -> None:
    assert refusal(ask(resolve, model, body, {LENGTH: "0"})) == (400, text)


# --------------------------------------------------------------------------------------------------------- compression

BODY, HEADERS = binary({"inputs": [item("x", "FP32", [1, 2], 8)]}, struct.pack("<2f", 1, 2))


@pytest.mark.parametrize(
    ("coding", "compress"),
    [("gzip", gzip.compress), ("GZIP ", gzip.compress), ("deflate", zlib.compress), ("identity", bytes), ("", bytes)],
)
def test_compressed_requests(coding: str, compress: Callable[[bytes], bytes], resolve: Resolve) -> None:
    request = ask(resolve, "rows", compress(BODY), HEADERS | {"content-encoding": coding})
    np.testing.assert_array_equal(request.inputs["x"], [[1, 2]])


def test_unknown_codings_are_refused_with_those_that_work(resolve: Resolve) -> None:
    reply = ask(resolve, "rows", BODY, HEADERS | {"content-encoding": "br"})
    assert refusal(reply) == (501, "Unsupported compression type")
    assert reply.headers["Accept-Encoding"] == "gzip, deflate"


@pytest.mark.parametrize(
    "body",
    [b"", b"garbage", gzip.compress(BODY, mtime=0)[:-3], gzip.compress(BODY, mtime=0) + b"x", zlib.compress(BODY)],
)
def test_broken_streams_are_refused(body: bytes, resolve: Resolve) -> None:
    status, text = refusal(ask(resolve, "rows", body, HEADERS | {"content-encoding": "gzip"}))
    assert status == 400
    assert text.startswith("failed to decompress the gzip request body: ")


def test_inflation_is_bounded(resolve: Resolve) -> None:
    bomb = gzip.compress(b" " * 10_000_000)
    text = "Request body has a byte_size that exceeds the maximum allowed value of 1000 bytes."
    assert refusal(ask(resolve, "rows", bomb, {"content-encoding": "gzip"}, max_body_bytes=1000)) == (400, text)
    exact = gzip.compress(BODY)
    headers = HEADERS | {"content-encoding": "gzip"}
    assert isinstance(ask(resolve, "rows", exact, headers, max_binary_bytes=len(BODY)), InferRequest)
    text = f"Request body has a byte_size that exceeds the maximum allowed value of {len(BODY) - 1} bytes."
    assert refusal(ask(resolve, "rows", exact, headers, max_binary_bytes=len(BODY) - 1)) == (400, text)


def test_beside_binary_tensors_the_json_has_the_limit_of_json(resolve: Resolve) -> None:
    size = int(HEADERS["inference-header-content-length"])
    assert isinstance(ask(resolve, "rows", BODY, HEADERS, max_body_bytes=size), InferRequest)
    text = f"Request body has a byte_size that exceeds the maximum allowed value of {size - 1} bytes."
    assert refusal(ask(resolve, "rows", BODY, HEADERS, max_body_bytes=size - 1)) == (400, text)


ACCEPTED = [
    ("gzip", "gzip"),
    ("deflate, gzip", "deflate"),
    ("deflate;q=0.5, gzip;q=0.8, identity;q=0.1", "gzip"),
    ("identity, gzip", ""),
    ("br, *, gzip; q=0.1", "gzip"),
    ("gzip;q=0", ""),
    ("gzip;q=x, deflate;q=0.2", "deflate"),
    ("GZIP", "gzip"),
    ("*", ""),
    ("", ""),
]


@pytest.mark.parametrize(("header", "coding"), ACCEPTED)
def test_the_best_coding(header: str, coding: str) -> None:
    assert best_coding(header) == coding


@pytest.mark.parametrize("is_binary", [True, False])
@pytest.mark.parametrize(("coding", "inflate"), [("gzip", gzip.decompress), ("deflate", zlib.decompress)])
def test_compressed_replies(coding: str, inflate: Callable[[bytes], bytes], is_binary: bool, resolve: Resolve) -> None:
    head = {
        "inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 2], "data": [1, 2]}],
        "parameters": {"binary_data_output": is_binary},
    }
    answer = InferResponse({"y": np.array([[1, 2]], np.float32)})
    plain = ENDPOINT.encode(answer, ask(resolve, "rows", orjson.dumps(head)))
    reply = ENDPOINT.encode(answer, ask(resolve, "rows", orjson.dumps(head), {"accept-encoding": coding}))
    assert inflate(whole(reply)) == whole(plain)
    assert dict(reply.headers) == dict(plain.headers) | {"Content-Encoding": coding}


def test_errors_are_not_compressed(resolve: Resolve) -> None:
    reply = ask(resolve, "rows", b"{}", {"accept-encoding": "gzip"})
    assert "Content-Encoding" not in reply.headers
    assert refusal(reply)[0] == 400


# ---------------------------------------------------------------------------------------------------------- properties


def view_of(dtype: Any) -> ModelView:
    spec = {"x": TensorSpec("x", dtype)}
    return ModelView("echo", 1, (1,), spec, spec, {}, 0, "", handle=None)  # type: ignore[arg-type]


@given(st.data())
def test_what_goes_out_as_bytes_comes_back_as_bytes(data: st.DataObject) -> None:
    dtype = DTYPES[data.draw(st.sampled_from([name for name in DTYPES if name not in ("BF16", "BYTES")]))]
    there_and_back(data.draw(st_numpy.arrays(dtype, st_numpy.array_shapes(min_dims=0, min_side=0))))


@given(st.lists(st.binary(max_size=5), max_size=5))
def test_any_bytes_come_back(elements: list[bytes]) -> None:
    array = np.empty(len(elements), object)
    array[:] = elements
    there_and_back(array)


def there_and_back(array: Any) -> None:
    """A tensor's binary response, posted as a request."""
    view = view_of(array.dtype)
    head = {"inputs": [item("x", DATATYPES[array.dtype], [0], 0)], "parameters": {"binary_data_output": True}}
    request = ask(lambda ref: view, "echo", orjson.dumps(head))
    reply = ENDPOINT.encode(InferResponse({"x": array}), request)
    sent = whole(reply).replace(b'"outputs":', b'"inputs":', 1)
    length = int(reply.headers.get("Inference-Header-Content-Length", len(sent) + 1)) - 1
    got = ask(lambda ref: view, "echo", sent, {LENGTH: str(length)}).inputs["x"]
    assert (got.dtype, got.shape) == (array.dtype, array.shape)
    np.testing.assert_array_equal(got, array)


@given(
    st.binary(max_size=60), st.integers(-2, 70), st.sampled_from(["", "gzip", "deflate"]), st.sampled_from(list(DTYPES))
)
def test_garbage_is_answered(body: bytes, length: int, coding: str, datatype: str) -> None:
    def resolve(ref: ModelRef) -> ModelView:
        return view_of(DTYPES[datatype])

    answer = ask(resolve, "m", body, {LENGTH: str(length), "content-encoding": coding})
    assert isinstance(answer, InferRequest) or refusal(answer)[0] == 400


@given(st.binary(max_size=40), st.lists(st.integers(0, 2**40), max_size=4), st.sampled_from(list(DTYPES)))
def test_any_tail_is_answered(tail: bytes, shape: list[int], datatype: str) -> None:
    message = binary({"inputs": [item("x", datatype, shape, len(tail))]}, tail)
    answer = ask(lambda ref: view_of(DTYPES[datatype]), "m", *message)
    assert isinstance(answer, InferRequest) or refusal(answer)[0] == 400

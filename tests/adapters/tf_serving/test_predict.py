"""`:predict`: JSON to tensors and back, each objection in the contract's words."""

import base64
import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as st_numpy

from tensorgate.adapters.tf_serving import predict_request, tensors
from tensorgate.adapters.tf_serving.predict_request import PredictForm
from tensorgate.adapters.tf_serving.routes import match
from tensorgate.gateway.contract.call import Call
from tensorgate.gateway.contract.canonical import InferRequest, InferResponse, ModelView, OutputRequest
from tensorgate.gateway.contract.dialect import Resolve
from tensorgate.gateway.contract.errors import EncodingFailed, GatewayError
from tensorgate.gateway.contract.tensor import DTYPES

MakeModel = Callable[..., ModelView]
MakeResolve = Callable[..., Resolve]
PREDICT = "/v1/models/m:predict"
STATELESS = settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture]
)  # the fixtures only hand over functions
ENDPOINT = match("POST", PREDICT).endpoint
IN_JSON = sorted(set(DTYPES) - {"FP16", "BF16", "UINT16"})


def decode(body: bytes | str, view: ModelView, make_resolve: MakeResolve) -> InferRequest:
    data = body.encode() if isinstance(body, str) else body
    call = Call(data, "POST", PREDICT, {}, "http", match("POST", PREDICT).args)
    request = ENDPOINT.decode(call, make_resolve(view))
    assert isinstance(request, InferRequest)
    return request


def refusal(body: str, view: ModelView, make_resolve: MakeResolve) -> tuple[int, str]:
    call = Call(body.encode(), "POST", PREDICT, {}, "http", match("POST", PREDICT).args)
    with pytest.raises(GatewayError) as caught:
        ENDPOINT.decode(call, make_resolve(view))
    reply = ENDPOINT.encode_error(caught.value, call)
    assert isinstance(reply.body, bytes)
    return reply.http_status, json.loads(reply.body)["error"]


def encode(view: ModelView, outputs: dict[str, Any], *, rows: bool) -> bytes:
    request = InferRequest(view, {}, wire=PredictForm(view.signatures["serving_default"], rows))
    reply = ENDPOINT.encode(InferResponse(outputs), request)
    assert (reply.http_status, reply.headers) == (200, {"Content-Type": "application/json"})
    assert isinstance(reply.body, bytes)
    return reply.body


# ------------------------------------------------------------------------------------------------------- what is taken

TAKEN: list[tuple[str, str, list[Any]]] = [
    ("FP32", '{"instances": [{"x": 1, "x": 2}, {"x": 3}]}', [1, 2]),
    ("FP32", '{"instances": [{"x": 1, "x": 2}, {"x": NaN}]}', [1, 2]),
    ("FP32", '{"instances": [[1, 2.5], [3, 4]]}', [[1, 2.5], [3, 4]]),
    ("FP32", '{"instances": [1.0, 2.0]}', [1, 2]),
    ("FP32", '{"instances": [[], []]}', [[], []]),
    ("FP32", '{"instances": [{"x": [1, 2]}, {"x": [3, 4]}]}', [[1, 2], [3, 4]]),
    ("FP32", '{"instances": [{"x": 1}, {"x": 2.5}, {"x": NaN}]}', [1, 2.5, np.nan]),
    ("FP32", '{"instances": [{"x": []}]}', [[]]),
    ("FP32", '{"instances": [NaN, Infinity, -Infinity, Inf, -Inf, -NaN]}', [np.nan, *[np.inf, -np.inf] * 2, np.nan]),
    ("FP32", '{"instances": [16777217, 1e39, -1e39, 1E5, -0]}', [16777216, np.inf, -np.inf, 1e5, 0]),
    ("FP32", '{"instances": [340282350000000000000000000000000000000000]}', [np.inf]),
    ("FP64", '{"instances": [9007199254740993, 0.1]}', [9007199254740992, 0.1]),
    ("INT8", '{"instances": [300, -129, 2147483647, -2147483648]}', [44, 127, -1, 0]),
    ("UINT8", '{"instances": [300, -1]}', [44, 255]),
    ("INT16", '{"instances": [{"x": 65537}]}', [1]),
    ("INT32", '{"inputs": [[2147483647], [-2147483648]]}', [[2**31 - 1], [-(2**31)]]),
    ("INT64", '{"inputs": [9223372036854775807, -9223372036854775808]}', [2**63 - 1, -(2**63)]),
    ("UINT64", '{"inputs": [18446744073709551615]}', [2**64 - 1]),
    ("UINT32", '{"inputs": {"x": [4294967295]}}', [2**32 - 1]),
    ("BOOL", '{"instances": [true, false]}', [True, False]),
    ("BYTES", '{"instances": ["a", {"b64": "Yg=="}, "YQ=="]}', [b"a", b"b", b"YQ=="]),
    ("BYTES", '{"instances": [{"b64": "Y Q\\n"}, {"b64": "YQ"}, {"b64": ""}]}', [b"a", b"a", b""]),
    ("BYTES", '{"instances": [{"b64": "/+8="}, {"b64": "YR=="}]}', [b"\xff\xef", b"a"]),
    ("BYTES", '{"instances": [{"x": "a"}, {"x": {"b64": "Yg"}}]}', [b"a", b"b"]),
    ("BYTES", '{"instances": [["a", "\\u00e9"], [{"b64": "Yg"}, ""]]}', [[b"a", "é".encode()], [b"b", b""]]),
    ("BYTES", '{"inputs": {"b64": "Yg"}}', b"b"),
    ("BYTES", '{"inputs": [{"b64": "Yg"}]}', [b"b"]),
    ("FP32", '{"inputs": 2.5}', 2.5),
    ("FP32", '{"inputs": []}', []),
    ("FP32", '{"inputs": {"x": 2.5, "other": "ignored"}}', 2.5),
    ("FP32", '{"inputs": {"x": 1, "x": 2}, "inputs": 3}', 1),
    ("FP32", '{"inputs": {"x": [NaN, 1], "x": 2}, "inputs": 3}', [np.nan, 1]),
    ("FP32", '{"inputs": 1, "output_filter": ["y"], "parameters": {}}', 1),
    ("FP32", '{"instances": ' + "[" * 64 + "1" + "]" * 64 + "}", np.ones((1,) * 64).tolist()),
]


@pytest.mark.parametrize(("datatype", "body", "want"), TAKEN, ids=[body[:60] for _, body, _ in TAKEN])
def test_tensors(datatype: str, body: str, want: Any, make_model: MakeModel, make_resolve: MakeResolve) -> None:
    view = make_model("m", {"x": (datatype, (-1, 7))}, {"y": (datatype, None)})
    tensor = decode(body, view, make_resolve).inputs["x"]
    np.testing.assert_array_equal(tensor, np.array(want, DTYPES[datatype]), strict=True)


def test_unsigned_zero_and_negative_zero(make_model: MakeModel, make_resolve: MakeResolve) -> None:
    view = make_model("m", {"x": ("FP64", (-1,))}, {})
    assert np.signbit(decode('{"inputs": [-0.0, 0.0]}', view, make_resolve).inputs["x"]).tolist() == [True, False]


def test_several_inputs_by_rows(make_model: MakeModel, make_resolve: MakeResolve) -> None:
    view = make_model("m", {"a": ("FP32", (-1, 2)), "b": ("INT64", (-1,)), "c": ("BYTES", (-1,))}, {})
    rows = [{"a": [i, 0.5], "b": i, "c": f"row {i}"} for i in range(30)]
    inputs = decode(json.dumps({"instances": rows}), view, make_resolve).inputs
    np.testing.assert_array_equal(inputs["a"], np.array([[i, 0.5] for i in range(30)], np.float32), strict=True)
    np.testing.assert_array_equal(inputs["b"], np.arange(30), strict=True)
    assert inputs["c"].tolist() == [f"row {i}".encode() for i in range(30)]


def test_several_inputs_by_columns_may_differ_in_rows(make_model: MakeModel, make_resolve: MakeResolve) -> None:
    view = make_model("m", {"a": ("FP32", (-1, 2)), "b": ("INT64", ())}, {})
    request = decode('{"inputs": {"b": 7, "a": [[1, 2]], "z": {}}}', view, make_resolve)
    assert {name: tensor.shape for name, tensor in request.inputs.items()} == {"a": (1, 2), "b": ()}


def test_signatures_rename_and_choose(make_model: MakeModel, make_resolve: MakeResolve) -> None:
    signatures = {
        "serving_default": ({"x": "x"}, {"y": "y", "z": "z"}),
        "part": ({"image": "x"}, {"scores": "z", "again": "z"}),
    }
    view = make_model("m", {"x": ("FP32", (-1,))}, {"y": ("FP32", (-1,)), "z": ("FP32", (-1,))}, signatures=signatures)
    request = decode('{"signature_name": "part", "instances": [{"image": 1}]}', view, make_resolve)
    assert request.inputs["x"].tolist() == [1]
    assert (request.outputs, request.signature) == ((OutputRequest("z"),), "part")
    reply = ENDPOINT.encode(InferResponse({"z": np.array([5], np.float32)}), request)
    assert json.loads(bytes(reply.body)) == {"predictions": [{"scores": 5, "again": 5}]}  # type: ignore[arg-type]
    assert decode('{"instances": [1]}', view, make_resolve).outputs == ()


NUMERIC = [np.float32, np.float64, np.int8, np.uint8, np.int16, np.int32, np.int64, np.uint32, np.uint64]
ARRAYS = st_numpy.arrays(st.sampled_from([*NUMERIC, np.bool_]), st_numpy.array_shapes(max_dims=4))


def by_rows(array: Any) -> list[Any]:
    values: list[Any] = array.tolist()
    return [{"instances": values}, {"instances": [{"x": row} for row in values]}, {"inputs": values}]


@STATELESS
@given(ARRAYS)
def test_all_formats_carry_the_same_tensor(
    make_model: MakeModel, make_resolve: MakeResolve, array: np.ndarray[Any, Any]
) -> None:
    names = {dtype: name for name, dtype in DTYPES.items()}
    view = make_model("m", {"x": (names[array.dtype], None)}, {"x": (names[array.dtype], None)})
    for message in by_rows(array):
        call = Call(
            json.dumps(message).encode(), "POST", PREDICT, {}, "http", match("POST", PREDICT).args, in_thread=True
        )
        request = ENDPOINT.decode(call, make_resolve(view))
        np.testing.assert_array_equal(request.inputs["x"], array, strict=True)
        answer = json.loads(bytes(ENDPOINT.encode(InferResponse(request.inputs), request).body))  # type: ignore[arg-type]
        [values] = answer.values()
        back = np.array(values, array.dtype).reshape(array.shape)
        np.testing.assert_array_equal(back, array)
        if not np.isnan(array).any():  # of which there are many
            assert request.inputs["x"].tobytes() == back.tobytes() == array.tobytes()


@pytest.mark.parametrize("datatype", sorted(set(IN_JSON) - {"BYTES", "BOOL"}))
@pytest.mark.parametrize("text", ["[[1, 2], [3, 4]]", "[[], []]", "[5]", "[[[300]], [[7]]]", "[-1]"])
def test_the_exact_way_agrees_with_the_fast_one(
    datatype: str, text: str, monkeypatch: pytest.MonkeyPatch, make_model: MakeModel, make_resolve: MakeResolve
) -> None:
    view = make_model("m", {"x": (datatype, None)}, {})
    for body in (f'{{"instances": {text}}}', f'{{"inputs": {text}}}', f'{{"instances": [{{"x": {text}}}]}}'):
        try:
            fast: Any = decode(body, view, make_resolve).inputs["x"]
        except GatewayError:
            fast = None
        with monkeypatch.context() as patch:
            patch.setattr(tensors, "rectangle", lambda *_: (_ for _ in ()).throw(ValueError()))
            if fast is None:
                assert refusal(body, view, make_resolve)[0] == 400
            else:
                np.testing.assert_array_equal(decode(body, view, make_resolve).inputs["x"], fast, strict=True)


# ----------------------------------------------------------------------------------------------------- what is refused

ROW = "Failed to process element: {} of 'instances' list. Error: INVALID_ARGUMENT: "
KEY = "Failed to process element: {} key: x of 'instances' list. Error: INVALID_ARGUMENT: "

REFUSED = [
    ("FP32", '{"instances": [1, "2"]}', ROW.format(1) + 'JSON Value: "2" Type: String is not of expected type: float'),
    ("FP64", '{"instances": [null]}', ROW.format(0) + "JSON Value: null Type: Null is not of expected type: double"),
    ("FP32", '{"inputs": [true]}', "JSON Value: true Type: True is not of expected type: float"),
    ("FP32", '{"inputs": [false]}', "JSON Value: false Type: False is not of expected type: float"),
    ("FP32", '{"inputs": "NaN"}', 'JSON Value: "NaN" Type: String is not of expected type: float'),
    ("FP32", '{"inputs": [{"a": 1}]}', 'JSON Value: {\n    "a": 1\n} Type: Object is not of expected type: float'),
    ("INT32", '{"inputs": [1.0]}', "JSON Value: 1.0 Type: Number is not of expected type: int32"),
    ("INT32", '{"inputs": [1e2]}', "JSON Value: 100.0 Type: Number is not of expected type: int32"),
    ("INT8", '{"inputs": [2147483648]}', "JSON Value: 2147483648 Type: Number is not of expected type: int8"),
    ("UINT8", '{"inputs": [1.5]}', "JSON Value: 1.5 Type: Number is not of expected type: uint8"),
    ("INT16", '{"inputs": true}', "JSON Value: true Type: True is not of expected type: int16"),
    ("UINT32", '{"inputs": [-1]}', "JSON Value: -1 Type: Number is not of expected type: uint32"),
    ("UINT64", '{"inputs": [-1]}', "JSON Value: -1 Type: Number is not of expected type: uint64"),
    (
        "UINT64",
        '{"inputs": [18446744073709551616]}',
        "JSON Value: 18446744073709552000.0 Type: Number is not of expected type: uint64",
    ),
    ("INT64", '{"inputs": ["5"]}', 'JSON Value: "5" Type: String is not of expected type: int64'),
    ("INT64", '{"inputs": [NaN]}', "JSON Value:  Type: Number is not of expected type: int64"),
    ("BOOL", '{"inputs": [1]}', "JSON Value: 1 Type: Number is not of expected type: bool"),
    ("BYTES", '{"inputs": [1]}', "JSON Value: 1 Type: Number is not of expected type: string"),
    ("BYTES", '{"instances": [{"b64": "-_8="}]}', ROW.format(0) + "Unable to base64 decode"),
    ("BYTES", '{"instances": [{"b64": "YQ="}]}', ROW.format(0) + "Unable to base64 decode"),
    ("BYTES", '{"instances": [{"b64": "Y"}]}', ROW.format(0) + "Unable to base64 decode"),
    ("BYTES", '{"instances": [{"b64": "YQ==YQ=="}]}', ROW.format(0) + "Unable to base64 decode"),
    ("BYTES", '{"instances": [{"b64": "é"}]}', ROW.format(0) + "Unable to base64 decode"),
    (
        "BYTES",
        '{"instances": [[{"b64": 5}]]}',
        ROW.format(0) + 'JSON Value: {\n    "b64": 5\n} not formatted correctly for base64 data',
    ),
    ("FP32", '{"instances": [[1, 2], [3]]}', ROW.format(1) + "Expecting tensor size: 2 but got: 1"),
    ("FP32", '{"instances": [[1, 2], [[3, 4]]]}', ROW.format(1) + "Expecting shape [2] but got: [1,2]"),
    ("FP32", '{"instances": [1, [2]]}', ROW.format(1) + "Expecting shape [] but got: [1]"),
    (
        "FP32",
        '{"instances": [[[1, 2], [3]]]}',
        ROW.format(0) + "Encountered list at unexpected size: 1 at level: 1 expected size: 2",
    ),
    ("FP32", '{"instances": [[1, [2]]]}', ROW.format(0) + "Encountered list at unexpected level: 1 expected < 1"),
    (
        "FP32",
        '{"inputs": [[1], 2]}',
        "JSON Value: 2 found at incorrect level: 2 in the JSON DOM. Expected at level: 2",
    ),
    ("FP32", '{"instances": [{"x": 1}, 2]}', "Expecting object but got list at item 1 of input list"),
    ("BYTES", '{"instances": [{"x": "a"}, {"b64": ""}]}', "Expecting object but got list at item 1 of input list"),
    ("FP32", '{"instances": [1, {"x": 2}]}', "Expecting value/list but got object at item 1 of input list"),
    (
        "FP32",
        '{"instances": [{"z": 1}]}',
        KEY.format(0).replace("x", "z") + "JSON object: does not have named input: z",
    ),
    (
        "FP32",
        '{"instances": [{"x": 1, "z": 1}]}',
        KEY.format(0).replace("x", "z") + "JSON object: does not have named input: z",
    ),
    (
        "FP32",
        '{"instances": [{}]}',
        "Failed to process element: 0 of 'instances' list. JSON object: {} keys must be equal to: x",
    ),
    ("FP32", '{"instances": [{"x": 1}, {"x": [1]}]}', KEY.format(1) + "Expecting shape [] but got: [1]"),
    ("FP32", '{"instances": [{"x": [1]}, {"x": []}]}', KEY.format(1) + "Expecting tensor size: 1 but got: 0"),
    (
        "FP32",
        '{"instances": [{"x": NaN}, {"x": true}]}',
        KEY.format(1) + "JSON Value: true Type: True is not of expected type: float",
    ),
    ("FP32", '{"inputs": {"z": 1}}', "Missing named input: x in 'inputs' object."),
    ("FP32", '{"inputs": {"b64": 5}}', "Missing named input: x in 'inputs' object."),
    ("FP32", '{"instances": ' + "[" * 65 + "1" + "]" * 65 + "}", "tensor parsing error: x"),
    ("FP32", '{"inputs": ' + "[" * 999 + "]" * 999 + "}", "tensor parsing error: x"),
    ("FP32", '{"instances": [{"x": ' + "[" * 64 + "1" + "]" * 64 + "}]}", "tensor parsing error: x"),
]


@pytest.mark.parametrize(("datatype", "body", "text"), REFUSED, ids=[body[:60] for _, body, _ in REFUSED])
def test_refusals(datatype: str, body: str, text: str, make_model: MakeModel, make_resolve: MakeResolve) -> None:
    view = make_model("m", {"x": (datatype, (-1,))}, {})
    assert refusal(body, view, make_resolve) == (400, text)


SEVERAL = [
    (
        '{"instances": [{"b": [1], "a": 2, "b": [1, 2]}]}',
        "Failed to process element: 0 key: b of 'instances' list. Error: INVALID_ARGUMENT:"
        " Expecting tensor size: 1 but got: 2",
    ),
    (
        '{"instances": [1]}',
        "instances is a plain list, but expecting list of objects as multiple input tensors required"
        " as per tensorinfo_map",
    ),
    (
        '{"inputs": [1]}',
        "inputs is a plain value/list, but expecting an object as multiple input tensors required"
        " as per tensorinfo_map",
    ),
    (
        '{"instances": [{"b": 1, "a": 2}, {"b": 1}]}',
        "Failed to process element: 1 of 'instances' list. JSON object: {\n    \"b\": 1\n} keys must be equal to: a,b",
    ),
    (
        '{"instances": [{"b": 1, "a": true}]}',
        "Failed to process element: 0 key: a of 'instances' list. Error: INVALID_ARGUMENT:"
        " JSON Value: true Type: True is not of expected type: float",
    ),
    ('{"inputs": {"a": 1}}', "Missing named input: b in 'inputs' object."),
]


@pytest.mark.parametrize(("body", "text"), SEVERAL)
def test_refusals_of_several_inputs(body: str, text: str, make_model: MakeModel, make_resolve: MakeResolve) -> None:
    view = make_model("m", {"b": ("FP32", (-1,)), "a": ("FP32", (-1,))}, {})
    assert refusal(body, view, make_resolve) == (400, text)


@pytest.mark.parametrize(("datatype", "name"), [("FP16", "half"), ("BF16", "bfloat16"), ("UINT16", "uint16")])
def test_dtypes_without_json(datatype: str, name: str, make_model: MakeModel, make_resolve: MakeResolve) -> None:
    view = make_model("m", {"x": (datatype, (-1,))}, {"y": (datatype, (-1,))})
    words = f"Conversion of JSON Value: 1 to type: {name}"
    assert refusal('{"inputs": [1, 2]}', view, make_resolve) == (501, words)
    row = f"Failed to process element: 0 of 'instances' list. Error: UNIMPLEMENTED: {words}"
    assert refusal('{"instances": [1, 2]}', view, make_resolve) == (400, row)
    key = f"Failed to process element: 0 key: x of 'instances' list. Error: UNIMPLEMENTED: {words}"
    assert refusal('{"instances": [{"x": 1}]}', view, make_resolve) == (400, key)
    with pytest.raises(EncodingFailed) as caught:
        encode(view, {"y": np.zeros(1, DTYPES[datatype])}, rows=True)
    assert caught.value.text == f"Failed to write JSON value for tensor type: {name}"
    with pytest.raises(EncodingFailed, match="has no shape information"):
        encode(view, {"y": np.zeros((), DTYPES[datatype])}, rows=True)
    words = f'JSON Value: {{\n    "a": 1\n}} Type: Object is not of expected type: {name}'
    assert refusal('{"inputs": [{"a": 1}]}', view, make_resolve) == (400, words)


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-300, 300) | st.floats() | st.sampled_from(["", "YQ==", "x"]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(["x", "b64", "z"]), inner, max_size=2),
    max_leaves=8,
)


@STATELESS
@given(st.sampled_from(sorted(DTYPES)), st.sampled_from(["instances", "inputs"]), JSON_VALUES)
def test_any_value_is_a_tensor_or_a_refusal(
    make_model: MakeModel, make_resolve: MakeResolve, datatype: str, key: str, value: Any
) -> None:
    view = make_model("m", {"x": (datatype, (-1,))}, {})
    call = Call(json.dumps({key: value}).encode(), "POST", PREDICT, {}, "http", match("POST", PREDICT).args)
    try:
        tensor = ENDPOINT.decode(call, make_resolve(view)).inputs["x"]
    except GatewayError as error:
        status = ENDPOINT.encode_error(error, call).http_status
    else:
        status = 200 if tensor.dtype == DTYPES[datatype] and tensor.ndim >= (key == "instances") else 0
    assert status in (200, 400, 501)


MUTATED = [
    b'{"signature_name": "serving_default", "instances": [[1.5, -2e3, NaN], [0, 1, Infinity]]}',
    b'{"inputs": {"x": [[1, 2], [3, 4]], "y": {"b64": "AA=="}}}',
    b'{"instances": [{"b64": "AAE="}, "\\u00e9", "\xc3\xa9\xff"]}',
    b'{"instances": [{"x": [1, 2]}, {"x": [3, 4]}, {"x": [true, "a"]}]}',
    b'{"inputs": [18446744073709551615, -9223372036854775808, 300]}',
]
PIECES = [
    b"[",
    b"]",
    b"{",
    b"}",
    b",",
    b'"',
    b'"x":',
    b"1e400",
    b"9" * 400,
    b"-",
    b"NaN",
    b"\\ud800",
    b"{}",
    b"[" * 300,
]


@st.composite
def mutated(draw: st.DrawFn) -> bytes:
    """A good body with a byte changed, a piece too many, a part gone or said twice."""
    body = bytearray(draw(st.sampled_from(MUTATED)))
    for _ in range(draw(st.integers(0, 2))):
        at, to = sorted(draw(st.tuples(*[st.integers(0, len(body))] * 2)))
        piece = draw(st.sampled_from([*PIECES, bytes(body[at:to])]) | st.binary(max_size=2))
        body[at : draw(st.sampled_from([at, at + 1, to, len(body)]))] = piece
    return bytes(body)


@STATELESS
@given(st.sampled_from(sorted(DTYPES)), mutated())
def test_a_broken_body_is_answered(
    make_model: MakeModel, make_resolve: MakeResolve, datatype: str, body: bytes
) -> None:
    view = make_model("m", {"x": (datatype, None)}, {"x": (datatype, None)})
    call = Call(body, "POST", PREDICT, {}, "http", match("POST", PREDICT).args)
    try:
        request = ENDPOINT.decode(call, make_resolve(view))
        reply = ENDPOINT.encode(InferResponse(request.inputs), request)
    except GatewayError as error:
        reply = ENDPOINT.encode_error(error, call)
        assert isinstance(json.loads(bytes(reply.body).decode("utf-8", "replace"))["error"], str)  # type: ignore[arg-type]
    assert reply.http_status in (200, 400, 501)


# ------------------------------------------------------------------------------------------------------------- answers

F32, OBJ = np.float32, np.object_
LAID_OUT: list[tuple[bool, dict[str, Any], bytes]] = [
    (True, {"y": np.array([2.5, 3, 4.5], F32)}, b'{\n    "predictions": [2.5, 3.0, 4.5\n    ]\n}'),
    (True, {"y": np.array([[1, 2], [3, np.nan]], F32)}, b'{\n    "predictions": [[1.0, 2.0], [3.0, NaN]\n    ]\n}'),
    (True, {"y": np.array([[[1], [2]]], np.int64)}, b'{\n    "predictions": [[[1], [2]]\n    ]\n}'),
    (True, {"y": np.zeros((2, 0), F32)}, b'{\n    "predictions": [[], []\n    ]\n}'),
    (True, {"y": np.zeros((1, 2, 0), F32)}, b'{\n    "predictions": [[[], []]\n    ]\n}'),
    (True, {"y": np.zeros((1, 0, 2), F32)}, b'{\n    "predictions": [[]\n    ]\n}'),
    (True, {"y": np.zeros((0, 2), F32)}, b'{\n    "predictions": []\n}'),
    (True, {"y": np.zeros(0, F32), "z": np.zeros(0, F32)}, b'{\n    "predictions": []\n}'),
    (True, {"y": np.zeros((0, 3), np.float16)}, b'{\n    "predictions": []\n}'),
    (True, {"y": np.zeros((1, 0, 3), np.float16)}, b'{\n    "predictions": [[]\n    ]\n}'),
    (False, {"y": np.zeros((0, 3), np.uint16)}, b'{\n    "outputs": []\n}'),
    (
        True,
        {"y": np.array([[1, 2], [3, 4]], np.uint8), '%s"': np.array([True, False])},
        b'{\n    "predictions": [\n        {\n            "y": [1, 2],\n            "%s\\"": true\n        },'
        b'\n        {\n            "y": [3, 4],\n            "%s\\"": false\n        }\n    ]\n}',
    ),
    (
        True,
        {"y": np.array([b'a"/\\\x01\x1f\n', "é".encode()], OBJ)},
        '{\n    "predictions": ["a\\"/\\\\\\u0001\\u001F\\n", "é"\n    ]\n}'.encode(),
    ),
    (True, {"y": np.array([b"\xff\xfe"], OBJ)}, b'{\n    "predictions": ["\xff\xfe"\n    ]\n}'),
    (
        True,
        {"y_bytes": np.array([b"a", b""], OBJ)},
        b'{\n    "predictions": [{\n            "b64": "YQ=="\n        },'
        b' {\n            "b64": ""\n        }\n    ]\n}',
    ),
    (
        True,
        {"y_bytes": np.array([[b"\xff"]], OBJ), "y": np.array([1], np.int8)},
        b'{\n    "predictions": [\n        {\n            "y_bytes": [{\n                    "b64": "/w=="\n'
        b'                }],\n            "y": 1\n        }\n    ]\n}',
    ),
    (True, {"y_bytes": np.array([7], np.uint64)}, b'{\n    "predictions": [7\n    ]\n}'),
    (False, {"y": np.array(2.5, F32)}, b'{\n    "outputs": 2.5\n}'),
    (False, {"y": np.zeros(0, F32)}, b'{\n    "outputs": []\n}'),
    (
        False,
        {"y": np.array([[1, 2], [3, 4]], F32)},
        b'{\n    "outputs": [\n        [\n            1.0,\n            2.0\n        ],\n        [\n            3.0,\n'
        b"            4.0\n        ]\n    ]\n}",
    ),
    (False, {"y": np.zeros((2, 0), F32)}, b'{\n    "outputs": [\n        [],\n        []\n    ]\n}'),
    (
        False,
        {"y": np.array([1], F32), "z": np.array(b"s", OBJ)},
        b'{\n    "outputs": {\n        "y": [\n            1.0\n        ],\n        "z": "s"\n    }\n}',
    ),
    (
        False,
        {"y_bytes": np.array([b"a"], OBJ)},
        b'{\n    "outputs": [\n        {\n            "b64": "YQ=="\n        }\n    ]\n}',
    ),
]


@pytest.mark.parametrize(("rows", "outputs", "want"), LAID_OUT)
def test_layout(rows: bool, outputs: dict[str, Any], want: bytes, make_model: MakeModel) -> None:
    view = make_model("m", {}, dict.fromkeys(outputs, ("FP32", None)))
    assert encode(view, outputs, rows=rows) == want


@pytest.mark.parametrize("rows", [False, True])
def test_an_output_that_the_model_left_out(rows: bool, make_model: MakeModel) -> None:
    view = make_model("m", {}, {"y": ("FP32", None), "z": ("FP32", None)})
    with pytest.raises(EncodingFailed) as caught:
        encode(view, {"y": np.zeros(2, F32)}, rows=rows)
    assert caught.value.text == "The model gave no output z"


@pytest.mark.parametrize(
    ("outputs", "text"),
    [
        ({"y": np.array(1, F32)}, "Tensor name: y has no shape information "),
        (
            {"y": np.zeros(2, F32), "z": np.zeros(3, F32)},
            "Tensor name: z has inconsistent batch size: 3 expecting: 2",
        ),
    ],
)
def test_answers_that_rows_cannot_carry(outputs: dict[str, Any], text: str, make_model: MakeModel) -> None:
    view = make_model("m", {}, dict.fromkeys(outputs, ("FP32", None)))
    with pytest.raises(EncodingFailed) as caught:
        encode(view, outputs, rows=True)
    assert caught.value.text == text


@STATELESS
@given(
    st.booleans(),
    st_numpy.arrays(OBJ, st_numpy.array_shapes(max_dims=3, min_side=0), elements=st.binary(max_size=6)),
)
def test_base64_answers_parse(make_model: MakeModel, rows: bool, array: np.ndarray[Any, Any]) -> None:
    view = make_model("m", {}, {"y_bytes": ("BYTES", None)})
    [values] = json.loads(encode(view, {"y_bytes": array}, rows=rows)).values()
    leaves = [base64.b64decode(leaf["b64"], validate=True) for leaf in _leaves(values)]
    assert leaves == array.reshape(-1).tolist()


def _leaves(values: Any) -> list[Any]:
    return [leaf for item in values for leaf in _leaves(item)] if isinstance(values, list) else [values]


MANY = [
    "1.5, 2.5, 3.5, 4.5, 5.5, 6.5, 7.5",
    "[1, 2], [3, 4], [5, 6], [7, 8], [9, NaN], [1, 2], [3, 4]",
    '{"x": 1}, {"x": 2}, {"x": 3}, {"x": 4}, {"x": 5}, {"x": 6}, {"x": 7}',
    '1, 2, 3, 4, 5, 6, "a", 8',
    "1, 2, 3, [4], 5, 6",
    "1, 2, 3, 4, {}, 6",
    "[1], [2], [3], [4], [5, 6], [7]",
    "[[1]], [[2]], [[3]], [[4]], [[5], 6], [7]",
    "[], [], [], [], [1], []",
    '{"x": 1}, {"x": 2}, {"x": 3}, {"x": [4]}, {"x": 5}',
    '{"x": 1}, {"x": 2}, {"x": 3}, {"x": 4, "y": 1}, {"x": 5}',
    '{"x": 1}, {"x": 2}, {"x": 3}, {"x": 4, "x": 4}, {"x": 5}',
    '{"x": 1}, {"x": 2}, {"x": 3}, {"x": 4}, {}, {"x": 5}',
    '{"x": 1}, {"x": 2}, {"x": 3}, 4, {"x": 5}',
]


@pytest.mark.parametrize("rows", MANY)
@pytest.mark.parametrize("at_once", [1, 2, 3, 4, 5])
def test_many_rows_are_read_some_at_a_time_and_mean_the_same(
    rows: str, at_once: int, make_model: Any, make_resolve: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    resolve = make_resolve(make_model("m", {"x": ("FP32", None)}, {"y": ("FP32", None)}))
    body = f'{{"instances": [{rows}]}}'.encode()

    def ask() -> tuple[Any, ...]:
        call = Call(body, "POST", "/v1/models/m:predict", {}, "http", {"model": "m"}, in_thread=True)
        try:
            tensor = predict_request.decode_predict(call, resolve).inputs["x"]
        except GatewayError as error:
            return type(error), str(error)
        return tensor.dtype, tensor.shape, repr(tensor.tolist())

    at_a_time = ask()
    monkeypatch.setattr(predict_request, "_AT_ONCE", at_once)
    assert ask() == at_a_time

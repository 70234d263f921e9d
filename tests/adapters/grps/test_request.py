"""grps predict, bytes -> InferRequest: tables of bodies in both outcomes, and properties."""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as st_numpy

from tensorgate.adapters.grps import KIND
from tensorgate.adapters.grps.errors import row_of
from tensorgate.adapters.grps.options import GrpsMapping, GrpsOptions, GrpsReply
from tensorgate.adapters.grps.response import ReplyForm, reply_form
from tensorgate.adapters.grps.tensors import NUMBERS, GrpsTensor, array_of
from tensorgate.adapters.grps.tensors import row_of as tensor_row
from tensorgate.gateway.contract.call import Call
from tensorgate.gateway.contract.canonical import InferRequest, ModelRef, ModelView
from tensorgate.gateway.contract.errors import GatewayError, InvalidArgument, ModelNotFound, UnknownOutput
from tensorgate.gateway.contract.tensor import DTYPES, TensorSpec

PREDICT = "/grps/v1/infer/predict"
JSON = "application/json"
DIALECT = KIND.make(GrpsOptions())
FLOATS = {"x": ("FP32", (-1, 2))}
TEXT = {"text": ("BYTES", (-1, 1)), "k": ("INT32", (1,))}


@pytest.fixture
def ask(make_resolve: Callable[..., Any]) -> Callable[..., InferRequest]:
    """(view, body) -> the request that the dialect makes of it."""

    def run(view: ModelView, body: bytes, query: str = "", content: str = JSON) -> InferRequest:
        match = DIALECT.match("POST", PREDICT + query)
        call = Call(body, "POST", PREDICT + query, {"content-type": content}, "http", match.args, in_thread=True)
        request = match.endpoint.decode(call, make_resolve(view))
        assert isinstance(request, InferRequest)
        return request

    return run


@pytest.fixture
def refusal(ask: Callable[..., InferRequest]) -> Callable[..., tuple[int, str]]:
    """(view, body) -> code and text of the refusal."""

    def run(view: ModelView, body: bytes, query: str = "", content: str = JSON) -> tuple[int, str]:
        with pytest.raises(GatewayError) as caught:
            ask(view, body, query, content)
        row = row_of(caught.value)
        return row.http_status, row.text(caught.value)

    return run


# ------------------------------------------------------------------------------------------------------------- ndarray

NDARRAYS: list[tuple[bytes, Any]] = [
    (b'{"ndarray": [[1, 2.5], [3, 4e1]]}', [[1, 2.5], [3, 40]]),
    (b'{"ndarray": [[true, 2], [false, 0.5]]}', [[1, 2], [0, 0.5]]),
    (b'{"ndarray": [NaN, Infinity, -Infinity]}', [np.nan, np.inf, -np.inf]),
    (b'{"ndarray": 7}', 7),
    (b'{"ndarray": true}', 1),
    (b'{"ndarray": 0}', 0),
    (b'{"ndarray": [16777217, 1e39]}', [16777216, np.inf]),
    (b'{"ndarray": [123456789012345678901234567890]}', [1.2345679e29]),
    (b'{"model": 5, "junk": [[1], 2], "ndarray": [1, 2]}', [1, 2]),
    (b'{"str_data": "", "gtensors": {}, "gmap": null, "ndarray": [1]}', [1]),
    (b'\xef\xbb\xbf{"ndarray": [1]}', [1]),
    (b'{"ndarray": [1], "ndarray": [2]}', [2]),
    (b'{"ndarray": [NaN], "ndarray": [2]}', [2]),
    (b'{"ndarray": ["no"], "gtensors": 5, "gtensors": null, "ndarray": [Infinity]}', [np.inf]),
    (b'{"ndarray": [[]]}', [[]]),
    (b'{"ndarray": [[], []]}', [[], []]),
    ('{"ndarray": [1, 2]}'.encode("utf-16"), [1, 2]),
    ('{"ndarray": [[1], [2]]}'.encode("utf-16-be"), [[1], [2]]),
    ('{"ndarray": [true]}'.encode("utf-32"), [1]),
]


@pytest.mark.parametrize(("body", "want"), NDARRAYS, ids=[repr(body[:40]) for body, _ in NDARRAYS])
def test_ndarray_is_one_float32_tensor(ask: Any, make_model: Any, body: bytes, want: Any) -> None:
    request = ask(make_model("m", FLOATS, FLOATS), body)
    assert list(request.inputs) == ["x"]
    assert request.inputs["x"].dtype == np.float32
    np.testing.assert_array_equal(request.inputs["x"], np.array(want, np.float32))


NOT_NDARRAYS: list[tuple[bytes, str]] = [
    (b'{"ndarray": [[1, 2], [3]]}', "Parse NDArray failed: NDArray some array size not match."),
    (b'{"ndarray": [[1, true], [3]]}', "Parse NDArray failed: NDArray some array size not match."),
    (b'{"ndarray": [true, [1]]}', "Parse NDArray failed: NDArray some array size not match."),
    (b'{"ndarray": ["1"]}', "Parse NDArray failed: '1' is not a number or array."),
    (b'{"ndarray": [[1, null]]}', "Parse NDArray failed: None is not a number or array."),
    (b'{"ndarray": [1, {}]}', "Parse NDArray failed: an object is not a number or array."),
    (b'{"ndarray": "1"}', "NDArray is not number or array."),
    (b'{"ndarray": {"a": 1}}', "NDArray is not number or array."),
    (b'{"ndarray": [[], [1]]}', "Parse NDArray failed: NDArray some array size not match."),
    (b'{"ndarray": [[], 1]}', "Parse NDArray failed: NDArray some array size not match."),
    (b'{"ndarray": []}', "No legal field in json."),
    (b'{"ndarray": ' + b"[" * 70 + b"1" + b"]" * 70 + b"}", "Parse json failed. arrays nested deeper than 64 levels."),
    (b'{"ndarray": [' + b"9" * 310 + b", true]}", "Parse NDArray failed: a number is too large."),
]


@pytest.mark.parametrize(("body", "text"), NOT_NDARRAYS, ids=[repr(body[:40]) for body, _ in NOT_NDARRAYS])
def test_what_is_no_ndarray_is_code_500(refusal: Any, make_model: Any, body: bytes, text: str) -> None:
    assert refusal(make_model("m", FLOATS, FLOATS), body) == (500, text)


def test_ndarray_goes_to_the_only_input_or_the_only_required_one(ask: Any, refusal: Any, make_model: Any) -> None:
    two = make_model("m", {"x": ("FP32", None), "y": ("FP32", None)}, FLOATS)
    assert refusal(two, b'{"ndarray": [1]}') == (500, "Model m takes 2 inputs, ndarray carries one: use gtensors.")
    x, y = TensorSpec("x", DTYPES["FP32"], optional=True), TensorSpec("y", DTYPES["FP32"])
    optional = make_model("m", {}, FLOATS)
    object.__setattr__(optional, "inputs", {"x": x, "y": y})
    assert list(ask(optional, b'{"ndarray": [1]}').inputs) == ["y"]


def everything(make_model: Any, **mapping: Any) -> ModelView:
    """A model that takes text, bytes, tensors and an entry of gmap, each of them optional."""
    inputs = {"text": "BYTES", "tensor": "FP32", "count": "INT64", "more": "FP32"}
    specs = {name: TensorSpec(name, DTYPES[datatype], (1,), optional=True) for name, datatype in inputs.items()}
    view: ModelView = make_model("m", {}, {"said": ("BYTES", (1,)), "y": ("FP32", None), "z": ("FP32", None)})
    own = {"gmap": {"s_i64": {"count": "count"}}, "reply": {"str_data": "said", "gtensors": ["z", "y"]}} | mapping
    return replace(view, inputs=specs, mappings={"grps": GrpsMapping.model_validate_json(json.dumps(own))})


ONE_NUMBER = b'{"dtype": "DT_FLOAT32", "shape": [1], "flat_float32": [1]}'
MIXED: list[tuple[bytes, dict[str, Any], list[str], str]] = [
    (b'{"str_data": "a"}', {"str_data": "text"}, ["text"], "str_data"),
    (b'{"gmap": {"s_i64": {"count": 3}}}', {"str_data": "text"}, ["count"], "str_data"),
    (b'{"ndarray": [1]}', {"str_data": "text", "bin_data": "more"}, ["tensor"], "gtensors"),
    (b'{"gtensors": {"tensors": [%b]}}' % ONE_NUMBER, {"str_data": "text"}, ["tensor"], "gtensors"),
    (
        b'{"gtensors": {"tensors": [%b, %b]}}' % (ONE_NUMBER, ONE_NUMBER),
        {"str_data": "text"},
        ["tensor", "more"],
        "gtensors",
    ),
]


@pytest.mark.parametrize(("body", "mapping", "inputs", "form"), MIXED)
def test_one_model_takes_text_and_tensors(
    ask: Any, make_model: Any, body: bytes, mapping: dict[str, Any], inputs: list[str], form: str
) -> None:
    """Each kind has its inputs, and tensors are answered in tensors."""
    request = ask(everything(make_model, **mapping), body)
    assert list(request.inputs) == inputs
    assert request.wire.form == form
    assert [output.name for output in request.outputs] == (["said"] if form == "str_data" else ["z", "y"])


def test_tensors_are_answered_with_an_ndarray_of_the_first_of_them(make_model: Any) -> None:
    form, outputs = reply_form(everything(make_model), "gtensors", as_ndarray=True, stream=False)
    assert (form.form, form.output, [output.name for output in outputs]) == ("ndarray", "z", ["z"])
    form, _ = reply_form(everything(make_model), "str_data", as_ndarray=False, stream=False)
    assert (form.form, form.output) == ("str_data", "said")
    unknown = everything(make_model, reply={"gtensors": ["none"]})
    with pytest.raises(UnknownOutput):
        reply_form(unknown, "gtensors", as_ndarray=False, stream=False)


def test_what_text_fills_without_a_word_about_it(ask: Any, refusal: Any, make_model: Any) -> None:
    """The only BYTES input is text's. Required inputs keep their places among tensors without names."""
    text = make_model("m", {"text": ("BYTES", (1,)), "x": ("FP32", None)}, FLOATS)
    assert list(ask(text, b'{"ndarray": [1]}').inputs) == ["x"]
    strings = b'{"dtype": "DT_STRING", "shape": [1], "flat_string": ["a"]}'
    assert list(ask(text, b'{"gtensors": {"tensors": [%b]}}' % strings).inputs) == ["text"]
    several = everything(make_model, str_data="text")
    assert refusal(several, b'{"ndarray": [1]}') == (500, "Model m takes 4 inputs, ndarray carries one: use gtensors.")


@given(array=st_numpy.arrays(np.float32, st_numpy.array_shapes(max_dims=4), elements={"allow_subnormal": False}))
def test_any_float32_array_comes_back_bit_equal(array: np.ndarray[Any, Any]) -> None:
    from_ndarray = decode(json.dumps({"ndarray": array.tolist()}).encode())
    np.testing.assert_array_equal(from_ndarray, array)
    tensor = {"dtype": "DT_FLOAT32", "shape": array.shape, "flat_float32": [printed(v) for v in array.reshape(-1)]}
    np.testing.assert_array_equal(decode(json.dumps({"gtensors": {"tensors": [tensor]}}).encode()), array)


def printed(value: np.float32) -> Any:
    if np.isfinite(value):
        return float(np.clip(np.float64(value), -3.4028234663852886e38, 3.4028234663852886e38))
    return "NaN" if np.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def decode(body: bytes) -> np.ndarray[Any, Any]:
    view = paper("m", FLOATS)
    match = DIALECT.match("POST", PREDICT)
    call = Call(body, "POST", PREDICT, {"content-type": JSON}, "http", match.args, in_thread=True)
    array: np.ndarray[Any, Any] = match.endpoint.decode(call, lambda ref: view).inputs["x"]
    return array


def paper(name: str, inputs: Any) -> ModelView:
    specs = {key: TensorSpec(key, DTYPES[datatype], shape) for key, (datatype, shape) in inputs.items()}
    return ModelView(name, 1, (1,), specs, specs, {}, 0, "", handle=None)  # type: ignore[arg-type]


# ------------------------------------------------------------------------------------------------------------ gtensors

DTYPE_ROWS: list[tuple[Any, str, str, list[Any], Any]] = [
    ("DT_UINT8", "flat_uint8", "UINT8", [0, 255], [0, 255]),
    ("DT_INT8", "flat_int8", "INT8", [-128, 127], [-128, 127]),
    ("DT_INT16", "flat_int16", "INT16", [-32768, 32767], [-32768, 32767]),
    ("DT_INT32", "flat_int32", "INT32", [-(2**31), 2**31 - 1], [-(2**31), 2**31 - 1]),
    ("DT_INT64", "flat_int64", "INT64", ["-9223372036854775808", 2**63 - 1], [-(2**63), 2**63 - 1]),
    ("DT_INT64", "flat_int64", "INT64", [9007199254740993, 1.0], [9007199254740993, 1]),
    ("DT_INT64", "flat_int64", "INT64", [1e3, 2.0], [1000, 2]),
    ("DT_FLOAT16", "flat_float16", "FP16", [0.1, 65504], [np.float16(0.1), 65504]),
    ("DT_FLOAT32", "flat_float32", "FP32", ["1.5", "NaN"], [1.5, np.nan]),
    ("DT_FLOAT32", "flat_float32", "FP32", ["Infinity", "-Infinity"], [np.inf, -np.inf]),
    ("DT_FLOAT32", "flat_float32", "FP32", ["1e39", " -.5"], [np.inf, -0.5]),
    ("DT_FLOAT32", "flat_float32", "FP32", [True, 0.5], [1, 0.5]),
    ("DT_FLOAT64", "flat_float64", "FP64", [1e300, "1e3"], [1e300, 1000]),
    ("DT_FLOAT64", "flat_double", "FP64", [1, 2], [1, 2]),
    ("DT_STRING", "flat_string", "BYTES", ["", "\u00e9"], [b"", "\u00e9".encode()]),
    (7, "flatFloat32", "FP32", [1, 2], [1, 2]),
    ("4", "flatInt32", "INT32", ["+7", "-08"], [7, -8]),
    (4.0, "flat_int32", "INT32", [True + 0, 3.0], [1, 3]),
]


@pytest.mark.parametrize(("dtype", "field", "datatype", "sent", "want"), DTYPE_ROWS)
def test_every_dtype(ask: Any, make_model: Any, dtype: Any, field: str, datatype: str, sent: Any, want: Any) -> None:
    tensor = {"name": "x", "dtype": dtype, "shape": [2], field: sent}
    for body in (json.dumps, lambda value: json.dumps(value).replace("1, 2", "1,\t2") + "\n"):
        request = ask(make_model("m", FLOATS, FLOATS), body({"gtensors": {"tensors": [tensor]}}).encode())
        assert request.inputs["x"].dtype == DTYPES[datatype]
        np.testing.assert_array_equal(request.inputs["x"], np.array(want, DTYPES[datatype]))


def test_the_table_of_dtypes_is_the_protocols() -> None:
    names = ["DT_INVALID", "DT_UINT8", "DT_INT8", "DT_INT16", "DT_INT32", "DT_INT64"]
    names += ["DT_FLOAT16", "DT_FLOAT32", "DT_FLOAT64", "DT_STRING"]
    assert {name: number for number, name in enumerate(names)} == NUMBERS
    without = {datatype for datatype, dtype in DTYPES.items() if tensor_row(np.empty(0, dtype)) is None}
    assert without == {"BOOL", "UINT16", "UINT32", "UINT64", "BF16"}


ONE = b'{"dtype": 7, "shape": [2], "flat_float32": [1, 2]}'
NAMED = b'{"name": "%s", "dtype": 7, "shape": [1], "flat_float32": [%s]}'
WRAPPED = b'{"gtensors": {"tensors": [%s]}}'


def test_tensors_reach_inputs_by_name_or_in_the_models_order(ask: Any, make_model: Any) -> None:
    view = make_model("m", {"a": ("FP32", None), "b": ("FP32", None)}, FLOATS)
    for names in ((b"b", b"a"), (b"", b"")):
        request = ask(view, WRAPPED % (NAMED % (names[0], b"1") + b"," + NAMED % (names[1], b"2")))
        first, second = ("b", "a") if names[0] else ("a", "b")
        assert (request.inputs[first].tolist(), request.inputs[second].tolist()) == ([1], [2])
    assert list(ask(view, WRAPPED % ONE).inputs) == ["a"]
    assert ask(view, b'{"gtensors": {}}').inputs == {}


NOT_GTENSORS: list[tuple[bytes, str]] = [
    (NAMED % (b"a", b"1") + b"," + NAMED % (b"", b"1"), "Tensors should be all named or all unnamed."),
    (NAMED % (b"a", b"1") + b"," + NAMED % (b"a", b"1"), "Tensor name a is given twice."),
    (ONE + b"," + ONE + b"," + ONE, "Model m takes 2 inputs, got 3 tensors."),
    (b'{"flat_float32": [1]}', "Tensor dtype not supported: DT_INVALID."),
    (b'{"name": "a", "dtype": 42}', "Tensor a dtype not supported: 42."),
    (b'{"dtype": 7}', "Tensor flat_float32 data is empty."),
    (b'{"dtype": 7, "shape": [0], "flat_float32": []}', "Tensor flat_float32 data is empty."),
    (b'{"dtype": 7, "flat_int32": [1]}', "Tensor flat_float32 data is empty."),
    (
        b'{"dtype": 7, "shape": [2, 2], "flat_float32": [1, 2, 3]}',
        "Tensor size not match, shape: [2, 2], expected size: 4, actual size: 3.",
    ),
    (b'{"dtype": 7, "flat_float32": [1, 2]}', "Tensor size not match, shape: [], expected size: 1, actual size: 2."),
]


@pytest.mark.parametrize(("tensors", "text"), NOT_GTENSORS, ids=[text for _, text in NOT_GTENSORS])
def test_data_checks(refusal: Any, make_model: Any, tensors: bytes, text: str) -> None:
    view = make_model("m", {"a": ("FP32", None), "b": ("FP32", None)}, FLOATS)
    assert refusal(view, WRAPPED % tensors) == (500, text)


@pytest.mark.parametrize("field", ["flat_float32", "flatFloat32"])
def test_long_tensors(ask: Any, refusal: Any, make_model: Any, field: str) -> None:
    """Their numbers never become a document's; what is wrong with one is told as with a short one."""
    view = make_model("m", FLOATS, FLOATS)
    values = np.random.default_rng(0).standard_normal(6000, np.float32)

    def body(numbers: str, end: str = "}]}}") -> bytes:
        head = f'{{"gtensors": {{"tensors": [{{"dtype": 7, "shape": [3000, 2], "{field}": [{numbers}], "name": "x"'
        return f"{head}{end}".encode()

    numbers = ", ".join(map(str, values.tolist()))
    np.testing.assert_array_equal(ask(view, body(numbers)).inputs["x"], values.reshape(3000, 2))
    np.testing.assert_array_equal(ask(view, body(numbers + ', "1"', ', "shape": [6001]}]}}')).inputs["x"][-1], 1)
    assert "is not finite" in refusal(view, body(numbers + ", 3.4028235e38"))[1]
    assert "actual size: 6001" in refusal(view, body(numbers + ", 1"))[1]
    cut_short = body(numbers, "}]}")
    reason = f"Parse json failed. Missing a comma or '}}' after an object member. At offset {len(cut_short)}."
    assert refusal(view, cut_short) == (500, reason)


def test_numpy_has_64_dimensions(refusal: Any, make_model: Any) -> None:
    with pytest.raises(InvalidArgument, match="Tensor x has more than 64 dimensions"):
        array_of(GrpsTensor("x", 7, (1,) * 65, {"flat_float32": np.ones(1, np.float32)}))
    many = WRAPPED % b",".join([b"{}"] * 4097)
    assert "more than 4096 elements" in refusal(make_model("m", FLOATS, FLOATS), many)[1]


UNFIT: list[tuple[bytes, str]] = [
    (b'"flat_uint8": [256]', "flat_uint8[0]"),
    (b'"flat_uint8": [1.0, -1]', "flat_uint8[1]"),
    (b'"flat_int8": [-129]', "flat_int8[0]"),
    (b'"flat_int16": [32768]', "flat_int16[0]"),
    (b'"flat_int32": [1.5]', "flat_int32[0]"),
    (b'"flat_int32": [true]', "flat_int32[0]"),
    (b'"flat_int32": [null]', "flat_int32[0]"),
    (b'"flat_int32": [" 1"]', "flat_int32[0]"),
    (b'"flat_int32": [1, "1.0"]', "flat_int32[1]"),
    (b'"flat_int32": ["1e3"]', "flat_int32[0]"),
    (b'"flat_int32": ["0x10"]', "flat_int32[0]"),
    (b'"flat_int32": [""]', "flat_int32[0]"),
    (b'"flat_int64": [9223372036854775808]', "flat_int64[0]"),
    (b'"flat_int64": [1e30]', "flat_int64[0]"),
    (b'"flat_float32": [3.4028235e38]', "flat_float32"),
    (b'"flat_float32": ["1", 1e39]', "flat_float32[1]"),
    (b'"flat_float32": ["0x1p3"]', "flat_float32[0]"),
    (b'"flat_float32": [""]', "flat_float32[0]"),
    (b'"flat_float32": [NaN]', "flat_float32"),
    (b'"flat_float32": [-Infinity]', "flat_float32"),
    (b'"flat_float32": ["nan"]', "flat_float32[0]"),
    (b'"flat_float32": [null]', "flat_float32[0]"),
    (b'"flat_float32": [[1, 2], []]', "flat_float32"),
    (b'"flat_float32": [[1]]', "flat_float32"),
    (b'"flat_float32": [["1"]]', "flat_float32[0]"),
    (b'"flat_float32": 1', "flat_float32"),
    (b'"flat_float32": {"a": 1}', "flat_float32"),
    (b'"flat_float64": [' + b"9" * 400 + b"]", "flat_float64"),
    (b'"flat_string": [1]', "flat_string"),
    (b'"flat_string": [["a"]]', "flat_string"),
    (b'"shape": [-1]', "shape[0]"),
    (b'"shape": [4294967296]', "shape[0]"),
    (b'"shape": [' + b"1," * 64 + b"1]", "shape"),
    (b'"dtype": "DT_FLOAT"', "dtype"),
    (b'"dtype": "dt_float32"', "dtype"),
    (b'"dtype": true', "dtype"),
    (b'"dtype": 2147483648', "dtype"),
    (b'"name": 5', "name"),
]


@pytest.mark.parametrize(("member", "place"), UNFIT, ids=[repr(member[:40]) for member, _ in UNFIT])
@pytest.mark.parametrize("camel", [False, True])
def test_values_that_do_not_fit_are_refused_where_they_stand(
    refusal: Any, make_model: Any, member: bytes, place: str, camel: bool
) -> None:
    if camel and b"flat_" in member:
        name = place.partition("[")[0].encode()
        member = member.replace(name, b"flat" + name[5:].capitalize())
    code, text = refusal(make_model("m", FLOATS, FLOATS), WRAPPED % (b'{"junk": [[[3]]], %s}' % member))
    assert code == 500
    assert text.startswith(f"Failed to parse gtensors.tensors[0].{place} field: ")


@pytest.mark.parametrize("pad", [1, 5000])
def test_arrays_inside_flat_fields_are_refused_however_long(refusal: Any, make_model: Any, pad: int) -> None:
    for inner in ("[]", "[1]", "[1, 2], []"):
        numbers = ", ".join(["1"] * pad) + ", " + inner
        for rest in ('"name": "["', '"other": [1]', '"shape": [3]'):
            body = WRAPPED % f'{{"dtype": 7, "flat_float32": [{numbers}], {rest}}}'.encode()
            assert "without arrays" in refusal(make_model("m", FLOATS, FLOATS), body)[1]


MESSAGES: list[tuple[bytes, str]] = [
    (b'{"str_data": "a", "gtensors": {}}', "oneof fields."),
    (b'{"str_data": "a", "bin_data": "aGk="}', "oneof fields."),
    (b'{"str_data": "a", "ndarray": {}}', "oneof fields."),
    (b'{"str_data": "a", "ndarray": [1]}', "oneof fields."),
    (b'{"ndarray": [1], "gtensors": {"tensors": [{}]}}', "oneof fields."),
    (b'{"gmap": {"s_s": {"a": "b"}}, "gtensors": {"tensors": 5}}', "oneof fields."),
    (b'{"gtensors": {"tensors": [{}]}, "ndarray": [1, "x"], "str_data": null}', "oneof fields."),
    (b'{"str_data": 5}', "Failed to parse str_data field: expected a string."),
    (b'{"gtensors": [1]}', "Failed to parse gtensors field: expected an object."),
    (b'{"gtensors": {"tensors": {"a": 1}}}', "Failed to parse gtensors.tensors field: expected an array."),
    (b'{"gtensors": {"tensors": [null]}}', "Failed to parse gtensors.tensors[0] field: expected an object."),
    (b'{"str_data": "a", "model": 5}', "Failed to parse model field: expected a string."),
    (b'{"str_data": "a", "status": {"code": "x"}}', "Failed to parse status.code field: expected an integer."),
    (
        b'{"str_data": "a", "status": {"status": "NO"}}',
        "Failed to parse status.status field: 'NO' is none of UNKNOWN, SUCCESS, FAILURE.",
    ),
    (
        b'{"gtensors": {"tensors": [{"dtype": "DT_FLOAT", "shape": [1], "flat_float32": [1]}]}}',
        "Failed to parse gtensors.tensors[0].dtype field: 'DT_FLOAT' is none of DT_INVALID, DT_UINT8, DT_INT8, "
        "DT_INT16, DT_INT32, DT_INT64, DT_FLOAT16, DT_FLOAT32, DT_FLOAT64, DT_STRING.",
    ),
    (
        b'{"gtensors": {"tensors": [{"dtype": 1.5}]}}',
        "Failed to parse gtensors.tensors[0].dtype field: expected an integer.",
    ),
    (b'{"gmap": {"s_b": {"k": "a"}}}', "Failed to parse gmap.s_b.k field: not base64."),
    (b'{"gmap": {"s_b": {"k": "a.G"}}}', "Failed to parse gmap.s_b.k field: not base64."),
    (b'{"gmap": {"s_b": {"k": 5}}}', "Failed to parse gmap.s_b.k field: expected a string."),
    (b'{"gmap": {"s_b": {"k": null}}}', "Failed to parse gmap.s_b.k field: expected a string."),
    (b'{"gmap": {"s_s": {"k": 5}}}', "Failed to parse gmap.s_s.k field: expected a string."),
    (b'{"gmap": {"s_i64": {"k": 9223372036854775808}}}', "9223372036854775808 is out of range."),
    (b'{"gmap": {"s_i32": {"k": true}}}', "Failed to parse gmap.s_i32.k field: expected an integer."),
    (b'{"gmap": {"s_i32": {"k": 1.5}}}', "Failed to parse gmap.s_i32.k field: expected an integer."),
    (b'{"gmap": {"s_d": {"k": NaN}}}', "field: the number is not finite or too large."),
    (b'{"gmap": {"s_i32": {"k": null}}}', "Failed to parse gmap.s_i32.k field: expected an integer."),
    (b'{"gmap": {"s_i32": [1]}}', "Failed to parse gmap.s_i32 field: expected an object."),
    (b'{"gmap": {"s_f": {"k": 1e39}}}', "field: the number is not finite or too large."),
    (b'{"bin_data": "aGk="}', "bin_data should use application/octet-stream format."),
    (b"{}", "No legal field in json."),
    (b'{"strData": "a"}', "No legal field in json."),
    (b'{"str_data": 0, "gtensors": [], "gmap": null, "ndarray": ""}', "No legal field in json."),
    (b"[1]", "The json body is not an object."),
    (b"5", "The json body is not an object."),
    (b'{"ndarray": [1', "Parse json failed. Missing a comma or ']' after an array element. At offset 14."),
    (b'{"str_data": "\\ud800"}', "The surrogate pair in string is invalid. At offset 14."),
    (b'{"ndarray": ' + b"[" * 200, "Parse json failed. nesting deeper than 100 levels."),
    ('{"a": 1}'.encode("utf-16"), "No legal field in json."),
    ('{"str_data": "a'.encode("utf-16"), "Missing a closing quotation mark in string. At offset 15."),
    (b"\xff\xfe{", "Parse json failed. Invalid value. At offset 0."),
]


@pytest.mark.parametrize(("body", "text"), MESSAGES, ids=[repr(body[:40]) for body, _ in MESSAGES])
def test_what_is_no_message_is_code_500(refusal: Any, make_model: Any, body: bytes, text: str) -> None:
    code, got = refusal(make_model("m", TEXT, TEXT), body)
    assert code == 500
    assert got.endswith(text)


def test_null_unsets_and_the_later_spelling_wins(ask: Any, make_model: Any) -> None:
    view = make_model("m", FLOATS, FLOATS)
    both = b'{"name": "y", "dtype": 7, "flatFloat32": [1], "flat_float32": [2], "name": null, "flat_int32": null}'
    assert ask(view, WRAPPED % both).inputs["x"].tolist() == 2
    other = b'{"dtype": 7, "flat_float32": [2], "flatFloat32": [1], "dtype": 7}'
    assert ask(view, WRAPPED % other).inputs["x"].tolist() == 1
    assert ask(view, b'{"gtensors": {"tensors": [' + ONE + b']}, "str_data": null}').inputs["x"].shape == (2,)
    twice = b'{"dtype": "NO", "flat_float32": [[]], "shape": 1e99, "shape": null, "dtype": 7, "flat_float32": [3]}'
    assert ask(view, WRAPPED % twice).inputs["x"].tolist() == 3
    order = (
        b'{"dtype": 7, "flat_float32": 0, "flatFloat32": [1], "flat_float32": [2]}'  # a key stands where it was first
    )
    assert ask(view, WRAPPED % order).inputs["x"].tolist() == 1


# ---------------------------------------------------------------------------------------- text, bytes, maps, the model


@pytest.mark.parametrize(
    ("body", "content", "data"),
    [
        (b'{"str_data": "h\\u00e9"}', JSON, "h\u00e9".encode()),
        (b'{"str_data": ""}', JSON, b""),
        (b'{"strData": 1, "str_data": "a", "status": {"code": 7}}', JSON, b"a"),
        (b"\x00\xff{", "application/octet-stream", b"\x00\xff{"),
        (b"{}", "Application/Octet-Stream; x=y", b"{}"),
    ],
)
def test_text_and_bytes_fill_a_bytes_input(ask: Any, make_model: Any, body: bytes, content: str, data: bytes) -> None:
    array = ask(make_model("m", TEXT, TEXT), body, content=content).inputs["text"]
    assert (array.dtype, array.shape, array.item()) == (DTYPES["BYTES"], (1, 1), data)


GMAPS: list[tuple[str, str, str, Any]] = [
    ("s_s", '"\\u00e9"', "BYTES", b"\xc3\xa9"),
    ("s_b", '"aGk="', "BYTES", b"hi"),
    ("sB", '"aGk"', "BYTES", b"hi"),
    ("s_b", '"_-8"', "BYTES", b"\xff\xef"),
    ("s_b", '"/+8="', "BYTES", b"\xff\xef"),
    ("s_b", '"a\\nGk= "', "BYTES", b"hi"),
    ("s_b", '""', "BYTES", b""),
    ("s_i32", "3.0", "INT32", 3),
    ("sI32", '"-7"', "INT32", -7),
    ("s_i64", "-9223372036854775808", "INT64", -(2**63)),
    ("s_i64", '"9223372036854775807"', "INT64", 2**63 - 1),
    ("s_f", '"1e39"', "FP32", np.inf),
    ("s_f", '"NaN"', "FP32", np.nan),
    ("s_f", "0.1", "FP32", np.float32(0.1)),
    ("sD", '"-Infinity"', "FP64", -np.inf),
    ("s_d", "true", "FP64", 1.0),
]


@pytest.mark.parametrize(("key", "value", "datatype", "want"), GMAPS)
def test_every_map(ask: Any, make_model: Any, key: str, value: str, datatype: str, want: Any) -> None:
    name = key if key.startswith("s_") else f"s_{key[1:].lower()}"
    mapping = GrpsMapping.model_validate({"gmap": {name: {"k": "x"}}})
    view = make_model("m", {"x": (datatype, (1,))}, TEXT, mappings={"grps": mapping})
    array = ask(view, f'{{"gmap": {{"{key}": {{"k": 0, "k": {value}}}}}}}'.encode()).inputs["x"]
    assert array.dtype == DTYPES[datatype]
    np.testing.assert_array_equal(array, np.array([want], DTYPES[datatype]))


def test_the_mapping_names_inputs(ask: Any, refusal: Any, make_model: Any) -> None:
    inputs = {"a": ("BYTES", None), "b": ("BYTES", (1,)), "n": ("INT64", ()), "wide": ("BYTES", (4,))}
    gmap = {"s_i64": {"count": "n"}, "s_b": {"raw": "b"}, "s_s": {"t": "a"}}
    mapping = GrpsMapping.model_validate({"str_data": "b", "bin_data": "a", "gmap": gmap})
    view = make_model("m", inputs, TEXT, mappings={"grps": mapping})
    assert list(ask(view, b'{"str_data": "x"}').inputs) == ["b"]
    assert ask(view, b"x", content="application/octet-stream").inputs["a"].shape == (1,)
    sent = b'{"gmap": {"sI64": {"count": "7"}, "s_b": {"raw": "_-8"}, "s_s": {"t": "e"}, "s_t": {"x": 1}}}'
    filled = ask(view, sent).inputs
    assert (filled["n"].dtype, filled["n"].item()) == (np.int64, 7)
    assert (filled["b"].item(), filled["a"].item()) == (b"\xff\xef", b"e")
    assert refusal(view, b'{"gmap": {"s_d": {"z": 1}}}') == (500, "Model m takes no s_d entry z of gmap.")
    bare = make_model("m", inputs, TEXT)
    assert refusal(bare, b'{"str_data": "x"}') == (500, "Model m takes no str_data.")
    assert refusal(bare, b'{"gmap": {"s_d": {"z": 1}}}') == (500, "Model m takes no gmap.")
    for name, text in (
        ("wide", "Input wide takes the shape [4], the request carries one element."),
        ("q", "no input q"),
    ):
        wrong = make_model("m", inputs, TEXT, mappings={"grps": GrpsMapping(str_data=name)})
        assert text in refusal(wrong, b'{"str_data": "x"}')[1]


@pytest.mark.parametrize(
    ("query", "body", "qualified"),
    [
        ("", b'{"ndarray": 1}', ""),
        ("?model=a-1", b'{"ndarray": 1}', "a-1"),
        ("?model=a-1&model=b-2", b'{"ndarray": 1}', "a-1"),
        ("?model=my%20model-1.0", b'{"ndarray": 1, "model": ""}', "my model-1.0"),
        ("?model=a-1", b'{"ndarray": 1, "model": "b-2"}', "b-2"),
        ("?model=a-1", b'{"ndarray": 1, "model": 3}', "a-1"),
        ("?model=a-1", b'{"gtensors": {}, "model": "b-2"}', "b-2"),
        ("?model=a-1", b'{"gtensors": {}, "model": null}', "a-1"),
    ],
)
def test_the_model_is_the_bodys_else_the_querys(make_model: Any, query: str, body: bytes, qualified: str) -> None:
    asked: list[ModelRef] = []

    def resolve(ref: ModelRef) -> ModelView:
        asked.append(ref)
        raise ModelNotFound(ref.qualified or "")

    match = DIALECT.match("POST", PREDICT + query)
    call = Call(body, "POST", PREDICT + query, {"content-type": JSON}, "http", match.args, in_thread=True)
    with pytest.raises(ModelNotFound):
        match.endpoint.decode(call, resolve)
    assert asked == [ModelRef(qualified=qualified)]


@pytest.mark.parametrize(
    ("content", "body", "query", "want"),
    [
        (None, b"{}", "", (400, "No content type in headers.")),
        ("text/plain", b"{}", "", (400, "Unsupported content type.")),
        ("multipart/form-data; boundary=x", b"{}", "", (400, "Unsupported content type.")),
        ("application/x-www-form-urlencoded", b"{}", "", (400, "Unsupported content type.")),
        ("application/jsonx", b"{}", "", (400, "Unsupported content type.")),
        (JSON, b"", "", (400, "The http body is empty.")),
        ("application/octet-stream", b"", "", (400, "The http body is empty.")),
        ("APPLICATION/JSON;charset=utf-8", b"", "", (400, "The http body is empty.")),
    ],
)
def test_content_type_and_emptiness(
    make_resolve: Any, make_model: Any, content: str | None, body: bytes, query: str, want: tuple[int, str]
) -> None:
    match = DIALECT.match("POST", PREDICT + query)
    headers = {} if content is None else {"content-type": content}
    with pytest.raises(GatewayError) as caught:
        match.endpoint.decode(Call(body, "POST", PREDICT, headers, "http", match.args), make_resolve())
    row = row_of(caught.value)
    assert (row.http_status, row.text(caught.value)) == want


def test_streaming_and_return_ndarray_exclude_each_other(refusal: Any, make_model: Any) -> None:
    text = "Bad Request, err: Streaming and ret ndarray are not supported at the same time."
    got = refusal(make_model("m", FLOATS, FLOATS), b"", "?streaming=True&return-ndarray=true")
    assert got == (400, text)


# ----------------------------------------------------------------------------------------------- the form of the reply

OUTPUTS = {"y": ("FP32", None), "said": ("BYTES", None)}
BOTH = GrpsReply(str_data="said", bin_data="said")
IN_MAPS = GrpsReply(gmap={"s_f": {"a": "y"}, "s_s": {"b": "said"}, "s_b": {"c": "said"}})
ALL = GrpsReply(str_data="said", gmap={"s_f": {"a": "y"}})


@pytest.mark.parametrize(
    ("reply", "body", "query", "form", "outputs"),
    [
        (GrpsReply(), b'{"gtensors": {}}', "", ReplyForm("gtensors"), []),
        (GrpsReply(), b'{"gtensors": {}}', "?return-ndarray=true", ReplyForm("ndarray", "y"), ["y"]),
        (GrpsReply(), b'{"gtensors": {}}', "?streaming=true", ReplyForm("gtensors", stream=True), []),
        (GrpsReply(), b'{"str_data": "a"}', "", ReplyForm("str_data", "said", if_single=True), []),
        (GrpsReply(), b"a", "", ReplyForm("bin_data", "said", if_single=True), []),
        (GrpsReply(str_data="said"), b'{"gtensors": {}}', "", ReplyForm("str_data", "said"), ["said"]),
        (GrpsReply(str_data="said"), b"a", "", ReplyForm("str_data", "said"), ["said"]),
        (GrpsReply(str_data="said"), b'{"gtensors": {}}', "?return-ndarray=true", ReplyForm("ndarray", "y"), ["y"]),
        (
            GrpsReply(bin_data="said"),
            b'{"gtensors": {}}',
            "?return-ndarray=true",
            ReplyForm("bin_data", "said"),
            ["said"],
        ),
        (BOTH, b'{"gtensors": {}}', "", ReplyForm("str_data", "said"), ["said"]),
        (BOTH, b"a", "", ReplyForm("bin_data", "said"), ["said"]),
        (GrpsReply(), b"a", "?return-ndarray=true", ReplyForm("ndarray", "y"), ["y"]),
        (IN_MAPS, b'{"gtensors": {}}', "", ReplyForm("gmap", entries=IN_MAPS.gmap), ["y", "said"]),
        (IN_MAPS, b'{"gtensors": {}}', "?return-ndarray=true", ReplyForm("ndarray", "y"), ["y"]),
        (ALL, b'{"gtensors": {}}', "", ReplyForm("str_data", "said"), ["said"]),
    ],
)
def test_only_the_outputs_of_the_reply_are_asked_for(
    ask: Any, make_model: Any, reply: GrpsReply, body: bytes, query: str, form: ReplyForm, outputs: list[str]
) -> None:
    view = make_model("m", TEXT, OUTPUTS, mappings={"grps": GrpsMapping(reply=reply)})
    request = ask(view, body, query, JSON if body.startswith(b"{") else "application/octet-stream")
    assert request.wire == form
    assert [output.name for output in request.outputs] == outputs
    assert request.stream is form.stream


def test_raw_bytes_pay_no_heed_to_return_ndarray(ask: Any, refusal: Any, make_model: Any) -> None:
    """Where bytes come back, they do; text stays what cannot become an ndarray."""
    view = make_model("m", TEXT, {"said": ("BYTES", None)})
    raw = ask(view, b"a", "?return-ndarray=true", "application/octet-stream")
    assert raw.wire == ReplyForm("bin_data", "said", if_single=True)
    assert ask(view, b'{"str_data": "a"}', "?return-ndarray=true").wire == ReplyForm("ndarray", "said")


def test_a_reply_of_an_output_that_is_not_there(refusal: Any, make_model: Any) -> None:
    view = make_model("m", TEXT, OUTPUTS, mappings={"grps": GrpsMapping(reply=GrpsReply(str_data="q"))})
    assert refusal(view, b'{"gtensors": {}}') == (500, "Model m has no output q.")
    mapping = GrpsMapping(reply=GrpsReply(gmap={"s_s": {"a": "q"}}))
    view = make_model("m", TEXT, OUTPUTS, mappings={"grps": mapping})
    assert refusal(view, b'{"gtensors": {}}') == (500, "Model m has no output q.")


# ------------------------------------------------------------------------------------------------------------- garbage

KEYS = ["model", "str_data", "bin_data", "gtensors", "gmap", "ndarray", "tensors", "name", "dtype", "shape", "s_i64"]
KEYS += ["s_b", "flat_float32", "flat_int8", "flat_string", "status", "code"]
LEAVES = st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=4)
VALUES = st.recursive(
    LEAVES | st.sampled_from(["DT_FLOAT32", 7]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=4),
    max_leaves=12,
)


@given(VALUES | st.dictionaries(st.sampled_from(KEYS[:6]), VALUES, max_size=3))
def test_any_json_is_a_request_or_a_gateway_error(value: Any) -> None:
    judge(json.dumps(value).encode())


@given(st.binary(max_size=60))
def test_any_bytes_are_a_request_or_a_gateway_error(body: bytes) -> None:
    judge(body)
    judge(b'{"ndarray": ' + body + b"}")


def judge(body: bytes) -> None:
    match = DIALECT.match("POST", PREDICT)
    call = Call(body, "POST", PREDICT, {"content-type": JSON}, "http", match.args, in_thread=True)
    view = paper("m", {"x": ("FP32", None), "t": ("BYTES", None)})
    try:
        assert isinstance(match.endpoint.decode(call, lambda ref: view), InferRequest)
    except GatewayError as error:
        reply = match.endpoint.encode_error(error, call)
        assert orjson.loads(bytes(reply.body))["status"]["code"] == reply.http_status  # type: ignore[arg-type]

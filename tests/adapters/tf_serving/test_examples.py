"""`:classify` and `:regress`: Examples in JSON to tensors, answers back, each objection in the contract's words."""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tensorgate.adapters.protobuf.messages import message
from tensorgate.adapters.tf_serving import example_json
from tensorgate.adapters.tf_serving.routes import match
from tensorgate.gateway.contract.call import Call, MustOffload
from tensorgate.gateway.contract.canonical import InferRequest, InferResponse, ModelView
from tensorgate.gateway.contract.dialect import Resolve
from tensorgate.gateway.contract.errors import GatewayError, InvalidArgument
from tensorgate.gateway.contract.tensor import BYTES, DTYPES, Signature, TensorSpec

MakeModel = Callable[..., ModelView]
MakeResolve = Callable[..., Resolve]
Example = message("tensorflow.Example")
WIRE = {"inputs": TensorSpec("input_example_tensor", BYTES, (-1,))}


def specs(table: dict[str, tuple[str, tuple[int, ...] | None]]) -> dict[str, TensorSpec]:
    return {name: TensorSpec(name, DTYPES[datatype], shape) for name, (datatype, shape) in table.items()}


SCORES, CLASSES, VALUE, WIDE = specs(
    {"s": ("FP32", (-1, 3)), "c": ("BYTES", (-1, 3)), "v": ("FP32", (-1,)), "w": ("FP64", (-1,))}
).values()
FEATURES = specs({"x": ("FP32", (-1, 2)), "n": ("INT64", (-1,)), "t": ("BYTES", (-1, -1))})
TEXT = {"inputs": TensorSpec("text", BYTES, (-1,))}

SIGNATURES = {
    one.name: one
    for one in (
        Signature("serving_default", WIRE, {"scores": SCORES, "classes": CLASSES}, features={"x": FEATURES["x"]}),
        Signature("scores", WIRE, {"scores": SCORES}, features=FEATURES),
        Signature("labelled", WIRE, {"scores": replace(SCORES, labels=("é", 'b"'))}, features={"x": FEATURES["x"]}),
        Signature("classes", WIRE, {"classes": CLASSES}, features={"n": FEATURES["n"]}),
        Signature("regress", WIRE, {"outputs": VALUE}, features={"x": FEATURES["x"]}),
        Signature("text", TEXT, {"outputs": VALUE}),
        Signature("numbers", {"inputs": FEATURES["x"]}, {"outputs": WIDE}),
        Signature("wide", TEXT, {"scores": WIDE}),
        Signature("two", {"inputs": TEXT["inputs"], "b": SCORES}, {"outputs": VALUE}),
        Signature("three", TEXT, {"a": VALUE, "b": VALUE, "c": VALUE}),
        Signature("misnamed", {"in": TEXT["inputs"]}, {"out": VALUE}),
        Signature("unnamed", TEXT, {"out": VALUE}, method="tensorflow/serving/predict"),
    )
}


@pytest.fixture
def view(make_model: MakeModel) -> ModelView:
    return replace(make_model("m", {}, {}), signatures=SIGNATURES)


@pytest.fixture
def ask(view: ModelView, make_resolve: MakeResolve) -> Callable[..., InferRequest]:
    def decode(verb: str, body: str | bytes) -> InferRequest:
        data = body.encode() if isinstance(body, str) else body
        found = match("POST", f"/v1/models/m:{verb}")
        call = Call(data, "POST", f"/v1/models/m:{verb}", {}, "http", found.args, deadline=5.0, in_thread=True)
        request = found.endpoint.decode(call, make_resolve(view))
        assert isinstance(request, InferRequest)
        return request

    return decode


def refusal(verb: str, body: str, resolve: Resolve, model: str = "m") -> tuple[int, str]:
    found = match("POST", f"/v1/models/{model}:{verb}")
    call = Call(body.encode(), "POST", f"/v1/models/{model}:{verb}", {}, "http", found.args)
    with pytest.raises(GatewayError) as caught:
        found.endpoint.decode(call, resolve)
    reply = found.endpoint.encode_error(caught.value, call)
    assert isinstance(reply.body, bytes)
    return reply.http_status, json.loads(reply.body)["error"]


def examples(*features: dict[str, Any], **more: Any) -> str:
    return json.dumps({"examples": [*features], **more})


# ------------------------------------------------------------------------------------------------------- what is taken


def test_features_become_rows(ask: Callable[..., InferRequest]) -> None:
    body = (
        '{"signature_name": "scores", "examples": [{"x": [1.0, 2.5], "n": 3, "t": ["a", {"b64": "/+8="}]},'
        ' {"t": ["é", ""], "x": [NaN, -Infinity], "n": [true], "unknown": 5}]}'
    )
    request = ask("classify", body)
    want = {
        "x": np.array([[1, 2.5], [np.nan, -np.inf]], np.float32),
        "n": np.array([3, 1], np.int64),
        "t": np.array([[b"a", b"\xff\xef"], ["é".encode(), b""]], np.object_),
    }
    assert request.inputs.keys() == want.keys()
    for name, tensor in want.items():
        np.testing.assert_array_equal(request.inputs[name], tensor, strict=True)
    assert (request.signature, request.deadline) == ("scores", 5.0)
    assert [output.name for output in request.outputs] == ["s"]


TAKEN: list[tuple[str, str, tuple[int, ...] | None, Any]] = [
    ("FP32", "1.0", (-1,), [1]),
    ("FP32", "[1.0]", (-1,), [1]),
    ("FP32", "[1.0]", (-1, 1), [[1]]),
    ("FP32", "1e2", (-1, 1, 1), [[[100]]]),
    ("FP32", "[1.0, 2.0, 3.0, 4.0]", (-1, 2, 2), [[[1, 2], [3, 4]]]),
    ("FP32", "[1.0, 2.0, 3.0, 4.0]", (-1, -1, 2), [[[1, 2], [3, 4]]]),
    ("FP32", "[1.0, 2.0]", (-1, -1), [[1, 2]]),
    ("FP32", "[1.0, 2.0]", None, [[1, 2]]),
    ("FP32", "1.0", None, [[1]]),
    ("FP32", "1e39", (-1,), [np.inf]),
    ("FP32", f"{[0.5] * 40}", (-1, 40), [[0.5] * 40]),
    ("FP32", f"{[1e39] * 40}", (-1, 40), [[np.inf] * 40]),
    ("FP32", f"[{'NaN, ' * 40}Infinity]", (-1, -1), [[np.nan] * 40 + [np.inf]]),
    ("FP32", "18446744073709551616", (-1,), [2**64]),
    ("FP32", "[-9223372036854775809, 0.5]", (-1, 2), [[-(2**63), 0.5]]),
    ("FP64", "[0.1]", (-1,), [np.float32(0.1)]),  # a float_list has no doubles
    ("FP64", f"{[0.1] * 40}", (-1, 40), [[np.float32(0.1)] * 40]),
    ("FP16", "0.1", (-1,), [0.1]),
    ("FP32", f"[{'0.5, ' * 40}18446744073709551616]", (-1, 41), [[*[0.5] * 40, 2**64]]),
    ("FP32", f"{[1.5] * 20}", (-1, 20), [[1.5] * 20]),
    ("INT64", f"{[True, *[3] * 40]}".lower(), (-1, 41), [[1, *[3] * 40]]),
    ("INT64", "[9223372036854775807, -9223372036854775808]", (-1, 2), [[2**63 - 1, -(2**63)]]),
    ("INT64", f"{[2**62] * 40}", (-1, 40), [[2**62] * 40]),
    ("INT64", "[true, 2, false]", (-1, 3), [[1, 2, 0]]),
    ("INT32", "[2147483647, -2147483648]", (-1, 2), [[2**31 - 1, -(2**31)]]),
    ("UINT64", "9223372036854775807", (-1,), [2**63 - 1]),
    ("UINT8", f"{[255] * 40}", (-1, 40), [[255] * 40]),
    ("BOOL", "[true, 0, 1]", (-1, 3), [[True, False, True]]),
    ("BYTES", '"a\\u00e9"', (-1,), ["aé".encode()]),
    ("BYTES", '{"b64": "YQ"}', (-1,), [b"a"]),
    ("BYTES", '["a", {"b64": "Yg=="}]', (-1, 2), [[b"a", b"b"]]),
    ("BYTES", f"{['q'] * 40}".replace("'", '"'), (-1, 40), [[b"q"] * 40]),
    ("BYTES", '[{"b64": "Yg"}%s]' % (', "q"' * 39), (-1, 40), [[b"b", *[b"q"] * 39]]),
]


@pytest.mark.parametrize(("datatype", "literal", "shape", "want"), TAKEN, ids=[f"{a} {b[:40]}" for a, b, *_ in TAKEN])
def test_values(
    datatype: str,
    literal: str,
    shape: tuple[int, ...] | None,
    want: Any,
    make_model: MakeModel,
    make_resolve: MakeResolve,
) -> None:
    signature = Signature(
        "serving_default", WIRE, {"outputs": VALUE}, features={"x": TensorSpec("q", DTYPES[datatype], shape)}
    )
    view = replace(make_model("m", {}, {}), signatures={"serving_default": signature})
    found = match("POST", "/v1/models/m:regress")
    for body in (
        f'{{"examples": [{{"x": {literal}}}]}}',
        f'{{"examples": [{{"x": {literal}}}], "nan": NaN}}',  # the tokens of which make another parser read the rest
    ):
        call = Call(body.encode(), "POST", "/v1/models/m:regress", {}, "http", found.args)
        tensor = found.endpoint.decode(call, make_resolve(view)).inputs["q"]
        np.testing.assert_array_equal(tensor, np.array(want, DTYPES[datatype]), strict=True)


def test_repeated_features_and_members(ask: Callable[..., InferRequest]) -> None:
    body = '{"examples": [{"x": ["a"], "x": [1.0, 2.0]}], "examples": 5, "signature_name": "", "signature_name": 7}'
    assert ask("classify", body).inputs["x"].tolist() == [[1, 2]]
    assert ask("classify", body.replace("2.0", "NaN")).inputs["x"][0, 0] == 1


def test_context(ask: Callable[..., InferRequest]) -> None:
    body = examples({}, {"n": 3}, {"t": ["c"]}, signature_name="scores", context={"x": [1.5, 2], "n": 2, "t": ["d"]})
    inputs = ask("classify", body.replace("[1.5, 2]", "[1.5, 2.0]")).inputs
    assert inputs["x"].tolist() == [[1.5, 2]] * 3
    assert inputs["n"].tolist() == [2, 3, 2]
    assert inputs["t"].tolist() == [[b"d"], [b"d"], [b"c"]]


def test_a_feature_of_no_kind_hides_the_context(ask: Callable[..., InferRequest], make_resolve: MakeResolve) -> None:
    with pytest.raises(GatewayError, match=r"Feature: x .*could not be found.  Index: 1"):
        ask("classify", '{"context": {"x": [1.0, 2.0]}, "examples": [{}, {"x": []}]}')


def test_an_optional_input_may_be_missing_everywhere(make_model: MakeModel, make_resolve: MakeResolve) -> None:
    features = {"x": FEATURES["x"], "n": replace(FEATURES["n"], optional=True)}
    signature = Signature("serving_default", WIRE, {"outputs": VALUE}, features=features)
    resolve = make_resolve(replace(make_model("m", {}, {}), signatures={"serving_default": signature}))
    found = match("POST", "/v1/models/m:regress")
    call = Call(b'{"examples": [{"x": [1.0, 2.0]}]}', "POST", "/v1/models/m:regress", {}, "http", found.args)
    assert found.endpoint.decode(call, resolve).inputs.keys() == {"x"}
    some = '{"examples": [{"x": [1.0, 2.0], "n": 1}, {"x": [1.0, 2.0]}]}'
    assert refusal("regress", some, resolve) == (
        400, "Name: <unknown>, Feature: n (data type: int64) is required but could not be found.  Index: 1"
    )  # fmt: skip


def test_defaults_of_features_that_an_example_lacks(make_model: MakeModel, make_resolve: MakeResolve) -> None:
    """As FixedLenFeature has them: one example's own values count before a context's, and these before the default."""
    optional = {name: replace(spec, optional=True) for name, spec in FEATURES.items()}
    defaults = {"x": np.float32([0.5, 9]), "n": np.int64([7]), "t": np.array([b"?", b"!"], np.object_)}
    signature = Signature("serving_default", WIRE, {"outputs": VALUE}, features=optional, defaults=defaults)
    view = replace(make_model("m", {}, {}), signatures={"serving_default": signature})
    found = match("POST", "/v1/models/m:regress")

    def inputs(body: str) -> dict[str, Any]:
        call = Call(body.encode(), "POST", "/v1/models/m:regress", {}, "http", found.args)
        request = found.endpoint.decode(call, make_resolve(view))
        return {name: tensor.tolist() for name, tensor in request.inputs.items()}

    body = examples({"x": [1.0, 2.0]}, {"n": 3}, {"t": ["a", "b"]})
    assert inputs(body) == {
        "x": [[1, 2], [0.5, 9], [0.5, 9]],
        "n": [7, 3, 7],
        "t": [[b"?", b"!"], [b"?", b"!"], [b"a", b"b"]],
    }
    assert inputs(examples({}, {"n": 3}, context={"n": 2}))["n"] == [2, 3]
    assert inputs(examples({}))["x"] == [[0.5, 9]]


def test_a_model_that_reads_examples_itself(ask: Callable[..., InferRequest]) -> None:
    body = (
        '{"signature_name": "text", "context": {"b": [1, true], "c": "x"},'
        f' "examples": [{{"a": 1.5, "e": []}}, {{"b": ["q", {{"b64": "/w"}}], "f": {[2.5] * 40}}}]}}'
    )
    serialized = ask("regress", body).inputs["text"]
    assert (serialized.dtype, serialized.shape) == (BYTES, (2,))
    first, second = (Example.FromString(text).features.feature for text in serialized)
    assert {name: feature.WhichOneof("kind") for name, feature in first.items()} == {
        "a": "float_list", "b": "int64_list", "c": "bytes_list", "e": None
    }  # fmt: skip
    assert (first["a"].float_list.value[:], first["b"].int64_list.value[:]) == ([1.5], [1, 1])
    assert (second["b"].bytes_list.value[:], second["c"].bytes_list.value[:]) == ([b"q", b"\xff"], [b"x"])
    assert second["f"].float_list.value[:] == [2.5] * 40


BOOLEANS = [
    ("true", [1]),
    ("false", [0]),
    ("[true]", [1]),
    ("[false, true]", [0, 1]),
    ("[true, 2, false]", [1, 2, 0]),
    ("[2, true]", [2, 1]),
    (f"[{', '.join(['true', 'false'] * 20)}]", [1, 0] * 20),
]
"""An int64 of 0 or 1, wherever one stands."""


@pytest.mark.parametrize(("literal", "want"), BOOLEANS, ids=[literal[:20] for literal, _ in BOOLEANS])
@pytest.mark.parametrize("where", ['{"examples": [{"f": %s}]}', '{"context": {"f": %s}, "examples": [{}]}'])
@pytest.mark.parametrize("rest", ["", ', "nan": NaN'])
def test_a_boolean_is_an_int64(
    rest: str,
    where: str,
    literal: str,
    want: list[int],
    make_model: MakeModel,
    make_resolve: MakeResolve,
) -> None:
    feature = Signature(
        "serving_default", WIRE, {"outputs": VALUE}, features={"f": TensorSpec("q", DTYPES["INT64"], (-1, -1))}
    )
    whole = SIGNATURES["text"]
    view = replace(make_model("m", {}, {}), signatures={"serving_default": feature, "text": whole})
    body = where % literal
    found = match("POST", "/v1/models/m:regress")

    def ask(members: str) -> InferRequest:
        text = f"{body[:-1]}{rest}{members}}}".encode()
        call = Call(text, "POST", "/v1/models/m:regress", {}, "http", found.args)
        request = found.endpoint.decode(call, make_resolve(view))
        assert isinstance(request, InferRequest)
        return request

    np.testing.assert_array_equal(ask("").inputs["q"], np.array([want], np.int64), strict=True)
    [serialized] = ask(', "signature_name": "text"').inputs["text"]
    assert Example.FromString(serialized).features.feature["f"].int64_list.value[:] == want


MIXED = [
    ("[1, true, 2, false, 3, 4, 5]", "int64_list", [1, 1, 2, 0, 3, 4, 5]),
    ("[0.5, 18446744073709551616, 1.5, 1e39, 2.5]", "float_list", [0.5, 2.0**64, 1.5, np.inf, 2.5]),
    ('["a", {"b64": "Yg"}, "c", "d", "e"]', "bytes_list", [b"a", b"b", b"c", b"d", b"e"]),
    ("[1, 2, 3, 4, 5, 1.5]", "", "Unexpected element type in feature: f expecting type: int64"),
    ('["a", "b", "c", "d", 1]', "", "Unexpected element type in feature: f expecting type: bytes"),
    ("[1, 2, 3, 4, null]", "", "Feature: f has element with unexpected JSON type: Null"),
    ("[1, 2, 3, 4, 9223372036854775808]", "", "Feature: f has uint64_t element. Only int64_t is supported."),
]


@pytest.mark.parametrize(("literal", "kind", "want"), MIXED)
@pytest.mark.parametrize("chunk", [1, 2, 3, 100])
def test_many_values_are_read_some_at_a_time(
    chunk: int,
    literal: str,
    kind: str,
    want: Any,
    ask: Callable[..., InferRequest],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(example_json, "_FEW", 1)
    monkeypatch.setattr(example_json, "_CHUNK", chunk)
    body = f'{{"signature_name": "text", "examples": [{{"f": {literal}}}]}}'
    if not kind:
        with pytest.raises(InvalidArgument, match=want):
            ask("regress", body)
        return
    [serialized] = ask("regress", body).inputs["text"]
    assert getattr(Example.FromString(serialized).features.feature["f"], kind).value[:] == want


def test_an_example_has_no_millions_of_features(
    ask: Callable[..., InferRequest], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(example_json, "_MAX_FEATURES", 3)
    body = '{"signature_name": "text", "examples": [{"a": 1, "b": 2, "c": 3%s}]}'
    assert ask("regress", body % "").inputs
    for extra in (', "d": 4', ', "a": 4', ', "d": NaN'):
        with pytest.raises(InvalidArgument, match="Example has more than 3 features"):
            ask("regress", body % extra)


def test_a_scalar_beyond_a_floats_range_is_infinite_as_a_message(ask: Callable[..., InferRequest]) -> None:
    [serialized] = ask("regress", '{"signature_name": "text", "examples": [{"f": 1e39}]}').inputs["text"]
    assert Example.FromString(serialized).features.feature["f"].float_list.value[:] == [np.inf]


# ----------------------------------------------------------------------------------------------------- what is refused

BODIES: list[tuple[str, str]] = [
    ("", "JSON Parse error: The document is empty"),
    ("[1]", "JSON Value: [1] Is not object"),
    (
        '{"signature_name": 5}',
        'JSON Value: {\n    "signature_name": 5\n} not formatted correctly.'
        " 'signature_name' key must be a string value.",
    ),
    ('{"context": 5}', "Example must be JSON object but got JSON Number"),
    ('{"context": null, "examples": 5}', "Example must be JSON object but got JSON Null"),
    ('{"context": [{}]}', "Example must be JSON object but got JSON Array"),
    ('{"context": {"a": null}, "examples": []}', "Feature: a has element with unexpected JSON type: Null"),
    ("{}", "JSON Value: {} When method is classify, key 'examples' is expected and was not found"),
    (
        '{"instances": [1]}',
        'JSON Value: {\n    "instances": [1]\n} When method is classify, '
        "key 'examples' is expected and was not found",
    ),
    (
        '{"examples": {}}',
        "JSON Value: {\n    \"examples\": {}\n} Expecting 'examples' value to be an list/array",
    ),
    ('{"examples": []}', "JSON Value: {\n    \"examples\": []\n} 'examples' value is an empty array"),
    ('{"examples": [{}, 1]}', "Example must be JSON object but got JSON Number"),
    ('{"examples": ["a"]}', "Example must be JSON object but got JSON String"),
    ('{"examples": [true]}', "Example must be JSON object but got JSON True"),
    ('{"examples": [false]}', "Example must be JSON object but got JSON False"),
    ('{"examples": [[]]}', "Example must be JSON object but got JSON Array"),
    ('{"examples": [{"a": null}]}', "Feature: a has element with unexpected JSON type: Null"),
    ('{"examples": [{"a": [1, null]}]}', "Feature: a has element with unexpected JSON type: Null"),
    ('{"examples": [{"a": [[1]]}]}', "Feature: a has element with unexpected JSON type: Array"),
    ('{"examples": [{"a": {}}]}', "Feature: a has element with unexpected JSON type: Object"),
    ('{"examples": [{"a": {"b64": 5}}]}', "Feature: a has element with unexpected JSON type: Object"),
    ('{"examples": [{"a": [{"b64": "YQ", "c": 1}]}]}', "Feature: a has element with unexpected JSON type: Object"),
    ('{"examples": [{"a": {"b64": "!"}}]}', "Unable to base64 decode"),
    ('{"examples": [{"a": [1, 1.0]}]}', "Unexpected element type in feature: a expecting type: int64"),
    ('{"examples": [{"a": [1.0, 1]}]}', "Unexpected element type in feature: a expecting type: float"),
    ('{"examples": [{"a": [1.0, true]}]}', "Unexpected element type in feature: a expecting type: float"),
    ('{"examples": [{"a": ["a", 1]}]}', "Unexpected element type in feature: a expecting type: bytes"),
    ('{"examples": [{"a": [{"b64": "YQ"}, 1]}]}', "Unexpected element type in feature: a expecting type: bytes"),
    ('{"examples": [{"a": [1, "b"]}]}', "Unexpected element type in feature: a expecting type: int64"),
    ('{"examples": [{"a": [NaN, "b"]}]}', "Unexpected element type in feature: a expecting type: float"),
    ('{"examples": [{"a": [1, 18446744073709551616]}]}', "Unexpected element type in feature: a expecting type: int64"),
    (
        '{"examples": [{"a": 18446744073709551615}]}',
        "Feature: a has uint64_t element. Only int64_t is supported.",
    ),
    (
        '{"examples": [{"a": [1, 9223372036854775808]}]}',
        "Feature: a has uint64_t element. Only int64_t is supported.",
    ),
    (
        '{"examples": [{"a": [%s18446744073709551615]}]}' % ("1, " * 40),
        "Feature: a has uint64_t element. Only int64_t is supported.",
    ),
    ('{"examples": [{"a": [%s1]}]}' % ("1.5, " * 40), "Unexpected element type in feature: a expecting type: float"),
    ('{"examples": [{"a": [%s1.5]}]}' % ("1, " * 40), "Unexpected element type in feature: a expecting type: int64"),
    ('{"examples": [{"a": [%s[]]}]}' % ("1, " * 40), "Feature: a has element with unexpected JSON type: Array"),
    ('{"examples": [{"a": 1e400}]}', "JSON Parse error: Number too big to be stored in double. at offset: 20"),
]


@pytest.mark.parametrize("verb", ["classify", "regress"])
@pytest.mark.parametrize(("body", "text"), BODIES, ids=[body for body, _ in BODIES])
def test_wrong_bodies_come_before_unknown_models(body: str, text: str, verb: str, make_resolve: MakeResolve) -> None:
    assert refusal(verb, body, make_resolve()) == (400, text)


ONE = '{"signature_name": "%s", "examples": [{"x": [1.0, 2.0]}]}'
WRONG: list[tuple[str, str, str]] = [
    ("classify", ONE % "other", "No signature was found with the name: other"),
    ("regress", ONE % "other", "No signature was found with the name: other"),
    ("classify", ONE % "two", "Expected one input Tensor."),
    ("regress", ONE % "two", "Expected one input Tensor."),
    ("regress", ONE % "serving_default", "Expected one output Tensor."),
    ("classify", ONE % "three", "Expected one or two output Tensors, found 3"),
    ("regress", ONE % "three", "Expected one output Tensor."),
    ("regress", ONE % "numbers", "Expects arg[0] to be float but string is provided"),
    (
        "classify",
        '{"examples": [{"x": [1.0, 2.0]}, {"y": 1}]}',
        "Name: <unknown>, Feature: x (data type: float) is required but could not be found.  Index: 1",
    ),
    (
        "classify",
        '{"examples": [{"x": [1, 2]}]}',
        "Name: <unknown>, Key: x, Index: 0.  Data types don't match. Data type: int64 but expected type: float",
    ),
    (
        "classify",
        '{"examples": [{"x": [1.0, 2.0]}, {"x": "a"}]}',
        "Name: <unknown>, Key: x, Index: 1.  Data types don't match. Data type: string but expected type: float",
    ),
    (
        "classify",
        '{"examples": [{"x": 1.0}]}',
        "Name: <unknown>, Key: x, Index: 0.  Number of float values != expected.  Values size: 1 but output shape: [2]",
    ),
    (
        "classify",
        '{"signature_name": "classes", "examples": [{"n": [1, 2]}]}',
        "Name: <unknown>, Key: n, Index: 0.  Number of int64 values != expected.  Values size: 2 but output shape: []",
    ),
    (
        "classify",
        '{"signature_name": "scores", "examples": [{"x": [1.0, 2.0], "n": 1, "t": "a"},'
        ' {"x": [1.0, 2.0], "n": 1, "t": ["a", "b"]}]}',
        "Name: <unknown>, Key: t, Index: 1.  Number of bytes values != expected.  Values size: 2 but output shape: [1]",
    ),
]


@pytest.mark.parametrize(("verb", "body", "text"), WRONG, ids=[text for *_, text in WRONG])
def test_what_a_signature_refuses(verb: str, body: str, text: str, view: ModelView, make_resolve: MakeResolve) -> None:
    assert refusal(verb, body, make_resolve(view)) == (400, text)


@pytest.mark.parametrize(
    ("verb", "name", "text"),
    [
        ("classify", "misnamed", "No classification inputs found in SignatureDef: inputs {"),
        ("regress", "misnamed", "No regression inputs found in SignatureDef: inputs {"),
        ("regress", "unnamed", "No regression outputs found in SignatureDef: inputs {"),
        (
            "classify",
            "unnamed",
            'Expected classification signature outputs to contain at least one of "classes" or "scores".'
            " Signature was: inputs {",
        ),
    ],
)
def test_signatures_of_other_names(verb: str, name: str, text: str, view: ModelView, make_resolve: MakeResolve) -> None:
    status, told = refusal(verb, ONE % name, make_resolve(view))
    assert (status, told[: len(text)]) == (400, text)
    assert '\n  key: "in' in told
    assert told.endswith('method_name: "tensorflow/serving/predict"\n')


@pytest.mark.parametrize(
    ("address", "status", "text"),
    [
        ("other", 404, "Servable not found for request: Latest(other)"),
        ("m/versions/7", 404, "Servable not found for request: Specific(m, 7)"),
        ("m/labels/a", 400, "Unrecognized servable version label: a"),
        ("other/labels/a", 400, "Unrecognized servable version label: a"),
    ],
)
def test_models_that_are_not_there(address: str, status: int, text: str, make_resolve: MakeResolve) -> None:
    resolve = make_resolve()
    assert refusal("classify", ONE % "other", resolve, address) == (status, text)


@pytest.mark.parametrize(
    ("datatype", "literal", "text"),
    [
        ("UINT8", "256", "Value out of range for uint8: 256"),
        ("UINT64", "-1", "Value out of range for uint64: -1"),
        ("BOOL", "2", "Value out of range for bool: 2"),
        ("INT32", f"{[*range(50), 2**31]}", "Value out of range for int32: 2147483648"),
    ],
)
def test_ranges(datatype: str, literal: str, text: str, make_model: MakeModel, make_resolve: MakeResolve) -> None:
    features = {"x": TensorSpec("q", DTYPES[datatype], (-1, -1))}
    signature = Signature("serving_default", WIRE, {"outputs": VALUE}, features=features)
    resolve = make_resolve(replace(make_model("m", {}, {}), signatures={"serving_default": signature}))
    fits = "1" if literal[0] != "[" else f"{[1] * 51}"
    body = f'{{"examples": [{{"x": {fits}}}, {{"x": {literal}}}]}}'
    assert refusal("regress", body, resolve) == (400, f"Name: <unknown>, Key: x, Index: 1.  {text}")


def test_long_bodies_wait_for_a_thread(view: ModelView, make_resolve: MakeResolve) -> None:
    found = match("POST", "/v1/models/m:classify")
    call = Call(b" " * 70_000, "POST", "/v1/models/m:classify", {}, "http", found.args)
    with pytest.raises(MustOffload):
        found.endpoint.decode(call, make_resolve(view))


# -------------------------------------------------------------------------------------------------------------- answers


def encode(ask: Callable[..., InferRequest], verb: str, name: str, outputs: dict[str, Any], count: int = 2) -> bytes:
    one = {"x": [1.5, 2.5], "n": 1, "t": ["a"]}
    request = ask(verb, examples(*[one] * count, signature_name=name))
    endpoint = match("POST", f"/v1/models/m:{verb}").endpoint
    try:
        reply = endpoint.encode(InferResponse(outputs), request)
    except GatewayError as error:
        reply = endpoint.encode_error(error, Call(b"", "POST", "", {}, "http"))
        assert reply.http_status == 400
        return bytes(json.loads(bytes(reply.body))["error"].encode())  # type: ignore[arg-type]
    assert (reply.http_status, reply.headers) == (200, {"Content-Type": "application/json"})
    assert isinstance(reply.body, bytes)
    return reply.body


F, BYTES_ARRAY = np.float32, np.object_
ANSWERS: list[tuple[str, str, dict[str, Any], str]] = [
    (
        "classify",
        "serving_default",
        {
            "s": np.array([[0.5, 1 / 3], [1e6, np.nan]], F),
            "c": np.array([[b"a", b'"'], ["é".encode(), b""]], BYTES_ARRAY),
        },
        '{\n    "results": [[["a", 0.5], ["\\"", 0.333333343]], [["é", 1e+06], ["", NaN]]\n    ]\n}',
    ),
    (
        "classify",
        "serving_default",
        {"s": np.array([[0.5], [1]], F), "c": np.array([[b"\xff"], [b"\n"]], BYTES_ARRAY)},
        '{\n    "results": [[["\udcff", 0.5]], [["\\n", 1.0]]\n    ]\n}',
    ),
    ("classify", "scores", {"s": np.zeros((2, 0), F)}, '{\n    "results": [[], []\n    ]\n}'),
    (
        "classify",
        "scores",
        {"s": np.array([[0.1], [-0.0]], F)},
        '{\n    "results": [[["", 0.1]], [["", -0.0]]\n    ]\n}',
    ),
    (
        "classify",
        "classes",
        {"c": np.array([[b"a"], [b"b"]], BYTES_ARRAY)},
        '{\n    "results": [[["a", 0.0]], [["b", 0.0]]\n    ]\n}',
    ),
    (
        "classify",
        "labelled",
        {"s": np.array([[1, 2, 3], [4, 5, 6]], F)},
        '{\n    "results": [[["é", 1.0], ["b\\"", 2.0], ["", 3.0]], [["é", 4.0], ["b\\"", 5.0], ["", 6.0]]\n    ]\n}',
    ),
    ("regress", "regress", {"v": np.array([3.5, 4], F)}, '{\n    "results": [3.5, 4.0]\n}'),
    ("regress", "regress", {"v": np.array([[-np.inf], [1e-5]], F)}, '{\n    "results": [-Infinity, 1e-05]\n}'),
]


@pytest.mark.parametrize(("verb", "name", "outputs", "text"), ANSWERS, ids=[text for *_, text in ANSWERS])
def test_results(verb: str, name: str, outputs: dict[str, Any], text: str, ask: Callable[..., InferRequest]) -> None:
    assert encode(ask, verb, name, outputs).decode("utf-8", "surrogateescape") == text


def test_one_result(ask: Callable[..., InferRequest]) -> None:
    assert encode(ask, "regress", "regress", {"v": np.array([2], F)}, 1) == b'{\n    "results": [2.0]\n}'


MISSHAPEN: list[tuple[str, str, dict[str, Any], str]] = [
    ("classify", "scores", {"s": np.zeros(2, F)}, "Expected Tensor shape: [batch_size num_classes] but got [2]"),
    ("classify", "scores", {"s": np.zeros((), F)}, "Expected Tensor shape: [batch_size num_classes] but got []"),
    (
        "classify",
        "classes",
        {"c": np.full((2, 1, 1), b"a", BYTES_ARRAY)},
        "Expected Tensor shape: [batch_size num_classes] but got [2,1,1]",
    ),
    ("classify", "scores", {"s": np.zeros((2, 3))}, "Expected scores Tensor of DT_FLOAT. Got: DT_DOUBLE"),
    ("classify", "classes", {"c": np.zeros((2, 3), F)}, "Expected classes Tensor of DT_STRING. Got: DT_FLOAT"),
    ("classify", "scores", {"s": np.zeros((3, 3), F)}, "Expected scores output batch size of 2. Got: 3"),
    (
        "classify",
        "classes",
        {"c": np.full((1, 3), b"a", BYTES_ARRAY)},
        "Expected classes output batch size of 2. Got: 1",
    ),
    (
        "classify",
        "serving_default",
        {"s": np.zeros((2, 3), F), "c": np.full((2, 2), b"a", BYTES_ARRAY)},
        "Tensors class and score should match in dim_size(1). Got 2 vs. 3",
    ),
    ("classify", "scores", {}, "The model gave no output s"),
    (
        "regress",
        "regress",
        {"v": np.zeros((2, 2), F)},
        "Expected output Tensor shape to be either [batch_size] or [batch_size, 1] but got [2,2]",
    ),
    (
        "regress",
        "regress",
        {"v": np.zeros((), F)},
        "Expected output Tensor shape to be either [batch_size] or [batch_size, 1] but got []",
    ),
    ("regress", "regress", {"v": np.zeros(3, F)}, "Input batch size did not match output batch size: 2 vs. 3"),
    ("regress", "regress", {"v": np.zeros(2, np.int64)}, "Expected output Tensor of DT_FLOAT.  Got: DT_INT64"),
]


@pytest.mark.parametrize(("verb", "name", "outputs", "text"), MISSHAPEN, ids=[text for *_, text in MISSHAPEN])
def test_outputs_that_are_no_answer(
    verb: str, name: str, outputs: dict[str, Any], text: str, ask: Callable[..., InferRequest]
) -> None:
    assert encode(ask, verb, name, outputs) == text.encode()

"""TensorFlow Serving over REST: addresses, order of checks, bodies, errors. Bytes in, bytes out."""

import gzip
import json
import shlex
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from google.protobuf import text_format
from hypothesis import given
from hypothesis import strategies as st

from tensorgate.adapters.tf_serving import KIND
from tensorgate.adapters.tf_serving.errors import ANSWERS, HTTP_STATUSES, answer_of
from tensorgate.adapters.tf_serving.routes import match
from tensorgate.adapters.tf_serving.signature_def import SignatureDef
from tensorgate.gateway.contract import errors
from tensorgate.gateway.contract.call import Call, Reply
from tensorgate.gateway.contract.canonical import InferRequest, ModelRef, ModelView
from tensorgate.gateway.contract.dialect import Resolve
from tensorgate.gateway.contract.errors import Code, GatewayError, kinds
from tensorgate.gateway.contract.questions import ModelMetadata, ModelStatus, ServerLive, VersionStatus
from tensorgate.gateway.contract.tensor import BYTES, DTYPES, Signature, TensorSpec

MakeModel = Callable[..., ModelView]
MakeResolve = Callable[..., Resolve]
PREDICT = "/v1/models/m:predict"


def call_of(method: str, target: str, body: bytes = b"", headers: dict[str, str] | None = None, **more: Any) -> Call:
    return Call(body, method, target, headers or {}, "http", match(method, target).args, **{"in_thread": True, **more})


def ask(call: Call, resolve: Resolve) -> Any:
    """The question, or the reply to what decode raised."""
    endpoint = match(call.method, call.raw_target).endpoint
    try:
        return endpoint.decode(call, resolve)
    except GatewayError as error:
        return endpoint.encode_error(error, call)


def error_of(reply: Reply) -> str:
    assert isinstance(reply, Reply)
    assert isinstance(reply.body, bytes)
    text = json.loads(reply.body)["error"]
    assert isinstance(text, str)
    return text


@pytest.fixture
def model(make_model: MakeModel) -> ModelView:
    return make_model("m", {"x": ("FP32", (-1, 2))}, {"y": ("FP32", (-1, 2))})


# ----------------------------------------------------------------------------------------------------------- addresses

NAMED = [
    ("POST", "/v1/models/m:predict", "infer", {"model": "m"}),
    ("POST", "/V1/MODELS/M:predict", "infer", {"model": "M"}),
    ("POST", "/v1/models/m/versions/007:predict", "infer", {"model": "m", "version": "7"}),
    ("POST", "/v1/models/m/labels/stable:predict", "infer", {"model": "m", "label": "stable"}),
    ("POST", "/v1/models/a%2Fb%3Ac+d:predict", "infer", {"model": "a/b:c+d"}),
    ("GET", "/v1/models/m", "status", {"model": "m"}),
    ("GET", "/v1/models/m?x=1", "status", {"model": "m?x=1"}),
    ("GET", "/v1/models/m/versions/9223372036854775807", "status", {"model": "m", "version": "9223372036854775807"}),
    ("GET", "/v1/models/m/labels/a%20b", "status", {"model": "m", "label": "a b"}),
    ("GET", "/v1/models/m/metadata", "metadata", {"model": "m"}),
    ("GET", "/v1/models/m/versions/0/metadata", "metadata", {"model": "m", "version": "0"}),
    ("GET", "/v1/models/m/METADATA", "status", {"model": "m"}),
    ("GET", "/v1/models/metadata", "status", {"model": "metadata"}),
]


@pytest.mark.parametrize(("method", "target", "label", "args"), NAMED)
def test_addresses(method: str, target: str, label: str, args: dict[str, str]) -> None:
    found = match(method, target)
    assert (found.endpoint.method, found.args) == (label, args)


MALFORMED = [
    ("POST", "/v1/models/m:predict?x=1"),
    ("POST", "/v1/models/m:PREDICT"),
    ("POST", "/v1/models/m%3Apredict"),
    ("POST", "/v1/models/m"),
    ("POST", "/v1/models/m/metadata"),
    ("POST", "/v1/models/m/versions/1/labels/a:predict"),
    ("POST", "/v1/models/m/versions/-1:predict"),
    ("POST", "/v1/models/m/versions/a:predict"),
    ("POST", "/v1/models/m/version/1:predict"),
    ("POST", "/v1/models/m/label/a:predict"),
    ("POST", "/v1/models/m:predict/"),
    ("POST", "/v1/models/:predict"),
    ("GET", "/v1/models/m:predict"),
    ("GET", "/v1/models/m/"),
    ("GET", "/v1/models/m/label/a"),
    ("GET", "/v1/"),
    ("GET", "/v1/nothing"),
    ("PUT", "/v1/models/m"),
    ("DELETE", "/v1/models/m"),
    ("PATCH", "/v1/models/m:predict"),
]


@pytest.mark.parametrize(("method", "target"), MALFORMED)
def test_malformed_addresses(method: str, target: str, make_resolve: MakeResolve) -> None:
    reply = ask(call_of(method, target), make_resolve())
    assert (reply.http_status, reply.headers) == (400, {"Content-Type": "application/json"})
    assert error_of(reply) == f"Malformed request: {method} {target}"


@pytest.mark.parametrize("target", ["/v1/models", "/V1/models", "/v1/models/versions/1"])
def test_missing_model_name(target: str, make_resolve: MakeResolve) -> None:
    assert error_of(ask(call_of("GET", target), make_resolve())) == "Missing model name in request."


EMPTY = [
    ("HEAD", "/v1/models/m", {}, 400),
    ("GET", "/v1/models/m/versions/9223372036854775808", {}, 400),
    ("POST", "/v1/models/m/versions/99999999999999999999999:predict", {}, 400),
    ("OPTIONS", "/v1/models/m", {}, 400),
    ("OPTIONS", "/v1/models/m", {"origin": "null"}, 400),
]


@pytest.mark.parametrize(("method", "target", "headers", "status"), EMPTY)
def test_empty_answers(
    method: str, target: str, headers: dict[str, str], status: int, make_resolve: MakeResolve
) -> None:
    reply = ask(call_of(method, target, headers=headers), make_resolve())
    assert (reply.http_status, reply.body) == (status, b"")


@pytest.mark.parametrize("origin", ["http://a", "https://a.example"])
def test_preflight(origin: str, make_resolve: MakeResolve) -> None:
    call = call_of("OPTIONS", "/v1/models/m:predict", headers={"origin": origin})
    question = ask(call, make_resolve())
    assert question == ServerLive()
    reply = match(call.method, call.raw_target).endpoint.encode(True, question)
    assert (reply.http_status, reply.body) == (200, b"")


@pytest.mark.parametrize(
    ("method", "target", "status"),
    [
        ("GET", "/v1", 404),
        ("POST", "//v1/models/m:predict", 404),
        ("TRACE", "/v1/models/m", 501),
        ("X", "/v1", 501),
        ("POST", "/v1/models/m/versions/\u0661:predict", 400),
        ("GET", "/v1/models/{m}", 400),
        ("GET", "/v1/models/[m]", 400),
        ("GET", "/v1/models/m%zz", 400),
        ("GET", "/v1/models/m%2", 400),
        ("GET", "/v1/models/m#a#b", 400),
        ("GET", "/nothing|", 400),
    ],
)
def test_pages(method: str, target: str, status: int, make_resolve: MakeResolve) -> None:
    reply = ask(call_of(method, target), make_resolve())
    assert (reply.http_status, reply.headers["Content-Type"]) == (status, "text/html")
    assert str(status) in reply.body.decode()


@given(st.sampled_from(["GET", "POST", "PUT", "HEAD", "OPTIONS", "QUERY"]), st.text(max_size=40))
def test_every_target_has_an_endpoint(method: str, tail: str) -> None:
    for target in (tail, f"/v1/{tail}", f"/v1/models/{tail}", f"/v1/models/{tail}:predict"):
        found = match(method, target)
        if found.endpoint.method in ("infer", "status", "metadata"):
            assert found.args["model"]
            assert int(found.args.get("version", 0)) < 2**63


# ----------------------------------------------------------------------------------------------------- order of checks

ORDER = [
    ("nobody:predict", b"{", 400, "JSON Parse error: Missing a name for object member. at offset: 1"),
    ("nobody:predict", b"[1]", 400, "JSON Value: [1] Is not object"),
    (
        "nobody:predict",
        b'{"signature_name": 1}',
        400,
        'JSON Value: {\n    "signature_name": 1\n} not formatted correctly.'
        " 'signature_name' key must be a string value.",
    ),
    ("nobody:predict", b"{}", 404, "Servable not found for request: Latest(nobody)"),
    ("nobody/versions/7:predict", b"{}", 404, "Servable not found for request: Specific(nobody, 7)"),
    ("m/versions/7:predict", b"{}", 404, "Servable not found for request: Specific(m, 7)"),
    ("nobody/labels/blue:predict", b"{}", 400, "Unrecognized servable version label: blue"),
    (
        "m:predict",
        b'{"signature_name": "other"}',
        400,
        'Serving signature name: "other" not found in signature def',
    ),
    ("m:predict", b'{"signature_name": ""}', 400, "Missing 'inputs' or 'instances' key"),
    ("m:predict", b"", 400, "JSON Parse error: The document is empty"),
    ("m:predict", b" \n", 400, "JSON Parse error: The document is empty. at offset: 2"),
    (
        "m:predict",
        b'{"instances": 1e400}',
        400,
        "JSON Parse error: Number too big to be stored in double. at offset: 14",
    ),
    ("m:predict", b'{"a":' * 1001 + b"1" + b"}" * 1001, 400, "Missing 'inputs' or 'instances' key"),
    ("m:predict", b'{"a":' * 1001 + b"}" * 1001, 400, "JSON Parse error: nesting deeper than 1000 levels"),
    ("m:predict", b'{"inputs": 1, "instances": NaN}', 400, None),
    (
        "m:predict",
        b'{"inputs": 1, "instances": 2}',
        400,
        'JSON Value: {\n    "inputs": 1,\n    "instances": 2\n} Not formatted correctly expecting only one of'
        " 'inputs' or 'instances' keys to exist ",
    ),
    (
        "m:predict",
        b'{"instances": {}}',
        400,
        "JSON Value: {\n    \"instances\": {}\n} Expecting 'instances' to be an list/array",
    ),
    ("m:predict", b'{"instances": []}', 400, "JSON Value: {\n    \"instances\": []\n} No values in 'instances' array"),
]


@pytest.mark.parametrize(("path", "body", "status", "text"), ORDER)
def test_order_of_checks(
    path: str, body: bytes, status: int, text: str | None, model: ModelView, make_resolve: MakeResolve
) -> None:
    reply = ask(call_of("POST", f"/v1/models/{path}", body), make_resolve(model))
    assert reply.http_status == status
    assert text is None or error_of(reply) == text


def test_a_known_label_of_a_version_that_is_gone_is_an_unknown_version(make_resolve: MakeResolve) -> None:
    def resolve(ref: ModelRef) -> ModelView:
        raise errors.ModelNotFound(ref.name, 3, known=True)

    reply = ask(call_of("POST", "/v1/models/m/labels/blue:predict", b"{}"), resolve)
    assert (reply.http_status, error_of(reply)) == (404, "Servable not found for request: Specific(m, 3)")


# ----------------------------------------------------------------------------------------------------- bodies as bytes

GOOD = b'{"instances": [[1.5, 2]]}'


@pytest.mark.parametrize(
    ("body", "encoding"),
    [
        (GOOD, ""),
        (b"\xef\xbb\xbf" + GOOD + b" ] trailing", "br"),
        (bytearray(GOOD), ""),
        (memoryview(GOOD), ""),
        (gzip.compress(GOOD, mtime=0), "gzip"),
        (gzip.compress(GOOD, mtime=0), "deflate, gzip"),
        (memoryview(gzip.compress(GOOD, mtime=0)), "x-gzip"),
    ],
)
def test_bodies_that_are_read(body: Any, encoding: str, model: ModelView, make_resolve: MakeResolve) -> None:
    call = call_of("POST", PREDICT, body, {"content-encoding": encoding}, deadline=5.0)
    request = ask(call, make_resolve(model))
    assert isinstance(request, InferRequest)
    assert request.view is model
    assert (request.outputs, request.signature, request.deadline) == ((), "serving_default", 5.0)
    np.testing.assert_array_equal(request.inputs["x"], np.array([[1.5, 2]], np.float32), strict=True)


BOMB = gzip.compress(b"[" * (101 << 20), 1, mtime=0)


@pytest.mark.parametrize(
    "body",
    [
        GOOD,
        gzip.compress(GOOD, mtime=0)[:-1],
        gzip.compress(GOOD, mtime=0)[:-20],
        b"",
        gzip.compress(GOOD, mtime=0) + b"x",
        gzip.compress(b"", mtime=0),
    ],
)
def test_gzip_that_does_not_unpack_is_an_empty_body(body: bytes, model: ModelView, make_resolve: MakeResolve) -> None:
    reply = ask(call_of("POST", PREDICT, body, {"content-encoding": "gzip"}), make_resolve(model))
    assert (reply.http_status, error_of(reply)) == (400, "JSON Parse error: The document is empty")


def test_inflation_is_bounded(model: ModelView, make_resolve: MakeResolve) -> None:
    headers = {"content-encoding": "gzip"}
    reply = ask(call_of("POST", PREDICT, BOMB, headers, max_body_bytes=1000), make_resolve(model))
    assert (reply.http_status, error_of(reply)) == (413, "Request body is larger than 1000 bytes")
    reply = ask(call_of("POST", PREDICT, BOMB, headers, max_body_bytes=1 << 30), make_resolve(model))
    assert (reply.http_status, error_of(reply)) == (400, "JSON Parse error: The document is empty")


def test_depth_is_the_callers_to_limit(model: ModelView, make_resolve: MakeResolve) -> None:
    body = b'{"x": ' + b"[" * 999 + b"]" * 999 + b', "instances": [[1, 2]]}'
    assert isinstance(ask(call_of("POST", PREDICT, body), make_resolve(model)), InferRequest)
    reply = ask(call_of("POST", PREDICT, body, max_json_depth=999), make_resolve(model))
    assert error_of(reply) == "JSON Parse error: nesting deeper than 999 levels"


@given(st.binary(max_size=80))
def test_garbage_is_answered(body: bytes) -> None:
    def resolve(ref: ModelRef) -> ModelView:
        raise errors.ModelNotFound(ref.name)

    for headers in ({}, {"content-encoding": "gzip"}):
        reply = ask(call_of("POST", PREDICT, body, headers), resolve)
        assert reply.http_status in (400, 404)
        assert error_of(reply)


# ------------------------------------------------------------------------------------------------- status and metadata


def test_status_ignores_labels(make_resolve: MakeResolve) -> None:
    resolve = make_resolve()
    assert ask(call_of("GET", "/v1/models/m"), resolve) == ModelStatus(ModelRef("m"))
    assert ask(call_of("GET", "/v1/models/m/versions/3"), resolve) == ModelStatus(ModelRef("m", 3))
    assert ask(call_of("GET", "/v1/models/m/labels/blue"), resolve) == ModelStatus(ModelRef("m"))


STATUS = b"""{
 "model_version_status": [
  {
   "version": "4",
   "state": "END",
   "status": {
    "error_code": "UNKNOWN",
    "error_message": "no \\"file\\""
   }
  },
  {
   "version": "3",
   "state": "AVAILABLE",
   "status": {
    "error_code": "OK",
    "error_message": ""
   }
  }
 ]
}
"""


def test_status_body() -> None:
    versions = (VersionStatus(4, "END", 'no "file"'), VersionStatus(3, "AVAILABLE"))
    reply = match("GET", "/v1/models/m").endpoint.encode(versions, ModelStatus(ModelRef("m")))
    assert (reply.http_status, reply.body, reply.headers) == (200, STATUS, {"Content-Type": "application/json"})


@pytest.mark.parametrize(
    ("target", "error", "text"),
    [
        ("/v1/models/m", errors.ModelNotFound("m"), "Could not find any versions of model m"),
        ("/v1/models/m/versions/3", errors.ModelNotFound("m", 3), "Could not find version 3 of model m"),
        ("/v1/models/m/metadata", errors.ModelNotFound("m"), "Servable not found for request: Latest(m)"),
        ("/v1/models/m/metadata", errors.LabelNotFound("m", "l"), "Unrecognized servable version label: l"),
        ("/v1/models/m", errors.Internal(), "Internal error"),
    ],
)
def test_status_has_its_own_words_for_unknown_models(target: str, error: GatewayError, text: str) -> None:
    assert error_of(match("GET", target).endpoint.encode_error(error, call_of("GET", target))) == text


METADATA = b"""{
"model_spec":{
 "name": "m",
 "version": "5",
 "signature_name": ""
}
,
"metadata": {"signature_def": {
 "signature_def": {
  "serving_default": {
   "inputs": {
    "image": {
     "name": "x:0",
     "dtype": "DT_FLOAT",
     "tensor_shape": {
      "dim": [
       {
        "size": "-1",
        "name": ""
       },
       {
        "size": "2",
        "name": ""
       }
      ],
      "unknown_rank": false
     }
    }
   },
   "outputs": {
    "y": {
     "name": "y:0",
     "dtype": "DT_STRING",
     "tensor_shape": {
      "dim": [],
      "unknown_rank": true
     }
    }
   },
   "method_name": "tensorflow/serving/predict",
   "defaults": {}
  }
 }
}
}
}
"""


def test_metadata_body(make_model: MakeModel, make_resolve: MakeResolve) -> None:
    signatures = {"serving_default": ({"image": "x"}, {"y": "y"})}
    view = make_model(
        "m", {"x": ("FP32", (-1, 2))}, {"y": ("BYTES", None)}, signatures=signatures, version=5, versions=(5,)
    )
    question = ask(call_of("GET", "/v1/models/m/versions/5/metadata"), make_resolve(view))
    assert isinstance(question, ModelMetadata)
    reply = match("GET", "/v1/models/m/metadata").endpoint.encode(view, question)
    assert (reply.body, reply.headers) == (METADATA, {"Content-Type": "application/json"})


DEFINITION = b"""
inputs { key: "b" value { name: "b:0" dtype: DT_INT64 } }
inputs { key: "a" value { coo_sparse { values_tensor_name: "v:0" indices_tensor_name: "i:0" } dtype: DT_STRING
  tensor_shape { dim { size: -1 name: "batch" } } } }
outputs { key: "o" value { dtype: DT_HALF tensor_shape { unknown_rank: true } } }
method_name: "any/thing"
defaults { key: "b" value { dtype: DT_INT64 tensor_shape { } int64_val: 9007199254740993 } }
"""
SHAPELESS = {"name": "b:0", "dtype": "DT_INT64"}
SPARSE = {
    "dtype": "DT_STRING",
    "tensor_shape": {"dim": [{"size": "-1", "name": "batch"}], "unknown_rank": False},
    "coo_sparse": {"values_tensor_name": "v:0", "indices_tensor_name": "i:0", "dense_shape_tensor_name": ""},
}
NO_VALUES = ["float", "double", "int", "string", "scomplex", "bool", "dcomplex", "half", "resource_handle", "variant"]
DEFAULT = {
    "dtype": "DT_INT64",
    "tensor_shape": {"dim": [], "unknown_rank": False},
    "version_number": 0,
    "tensor_content": "",
    **{f"{kind}_val": [] for kind in [*NO_VALUES, "uint32", "uint64"]},
    "int64_val": ["9007199254740993"],
    "float8_val": "",
}
DESCRIBED = {
    "inputs": {"a": SPARSE, "b": SHAPELESS},
    "outputs": {"o": {"dtype": "DT_HALF", "tensor_shape": {"dim": [], "unknown_rank": True}}},
    "method_name": "any/thing",
    "defaults": {"b": DEFAULT},
}


def described(signature: Signature, make_model: MakeModel) -> dict[str, Any]:
    view = replace(make_model("m", {}, {}), signatures={signature.name: signature})
    reply = match("GET", "/v1/models/m/metadata").endpoint.encode(view, ModelMetadata(view))
    shown: dict[str, Any] = json.loads(bytes(reply.body))["metadata"]["signature_def"]["signature_def"]  # type: ignore[arg-type]
    return shown


def test_metadata_shows_the_definition_that_a_model_brought(make_model: MakeModel) -> None:
    """Names in order, fields in the order of their numbers, what is unset in a oneof or a message left out."""
    definition = text_format.Parse(DEFINITION, SignatureDef()).SerializeToString()
    shown = described(Signature("s", {}, {}, definition=definition), make_model)
    assert shown == {"s": DESCRIBED}
    assert [*shown["s"]] == ["inputs", "outputs", "method_name", "defaults"]
    assert [*shown["s"]["inputs"]] == ["a", "b"]
    assert [*shown["s"]["inputs"]["a"]] == ["dtype", "tensor_shape", "coo_sparse"]
    assert [*shown["s"]["defaults"]["b"]][:4] == ["dtype", "tensor_shape", "version_number", "tensor_content"]


def test_metadata_shows_defaults_and_method(make_model: MakeModel) -> None:
    x, y = TensorSpec("x", DTYPES["FP32"], (-1, 2)), TensorSpec("y", BYTES, ())
    defaults = {"a": np.array([[0.5, 1]], np.float32), "b": np.array(b"\xff", np.object_)}
    signature = Signature("s", {"a": x, "b": y}, {}, "tensorflow/serving/regress", defaults=defaults)
    shown = described(signature, make_model)["s"]
    assert shown["method_name"] == "tensorflow/serving/regress"
    assert (shown["defaults"]["a"]["tensor_content"], shown["defaults"]["b"]["string_val"]) == (
        "AAAAPwAAgD8=",
        ["/w=="],
    )


def test_metadata_names_every_dtype(make_model: MakeModel) -> None:
    view = make_model("m", {name: (name, ()) for name in DTYPES}, {})
    reply = match("GET", "/v1/models/m/metadata").endpoint.encode(view, ModelMetadata(view))
    inputs = json.loads(reply.body)["metadata"]["signature_def"]["signature_def"]["serving_default"]["inputs"]
    want = {"FP16": "HALF", "BF16": "BFLOAT16", "FP32": "FLOAT", "FP64": "DOUBLE", "BYTES": "STRING"}
    assert {name: info["dtype"] for name, info in inputs.items()} == {n: f"DT_{want.get(n, n)}" for n in DTYPES}


# -------------------------------------------------------------------------------------------------------------- errors


def test_every_kind_has_an_answer() -> None:
    missing = [
        kind
        for kind in kinds()
        if kind.__module__.startswith("tensorgate.gateway.contract.errors") and kind not in ANSWERS
    ]
    assert missing == []


def test_every_code_has_a_status() -> None:
    assert HTTP_STATUSES.keys() == set(Code)


ANSWERED: list[tuple[GatewayError, int, Code, str]] = [
    (errors.InvalidArgument('a "b"\n\x01/é'), 400, Code.INVALID_ARGUMENT, 'a "b"\n\x01/é'),
    (errors.Unsupported("no"), 501, Code.UNIMPLEMENTED, "no"),
    (errors.NotFound("gone"), 404, Code.NOT_FOUND, "gone"),
    (errors.BodyTooLarge(9), 413, Code.RESOURCE_EXHAUSTED, "Request body is larger than 9 bytes"),
    (
        errors.BatchTooLarge(9, 8, "m"),
        400,
        Code.INVALID_ARGUMENT,
        "Task size 9 is larger than maximum input batch size 8",
    ),
    (errors.BatchMissing("x", "m"), 400, Code.INVALID_ARGUMENT, str(errors.BatchMissing("x", "m"))),
    (errors.BatchMismatch("x", "m"), 400, Code.INVALID_ARGUMENT, str(errors.BatchMismatch("x", "m"))),
    (
        errors.QueueFull("m", 4),
        503,
        Code.UNAVAILABLE,
        "The batch scheduling queue to which this task was submitted is full; currently 4 requests wait for model m",
    ),
    (
        errors.WouldBeLate("m", 0.25),
        503,
        Code.UNAVAILABLE,
        "Model m is overloaded: the answer would be 0.250 s late",
    ),
    (
        errors.QueueTimeout("m"),
        504,
        Code.DEADLINE_EXCEEDED,
        "Run() timeout exceeded while waiting in batching queue",
    ),
    (
        errors.SequenceIdMissing("m"),
        400,
        Code.INVALID_ARGUMENT,
        "Model m takes requests of sequences only, and this protocol cannot name a sequence",
    ),
    (
        errors.SequenceNotStarted(5, "m"),
        400,
        Code.INVALID_ARGUMENT,
        "sequence 5 of model 'm' has not been started",
    ),
    (errors.DeadlineExceeded("m"), 504, Code.DEADLINE_EXCEEDED, "Timed out waiting for notification"),
    (errors.ModelUnavailable("m"), 503, Code.UNAVAILABLE, "Model m is being unloaded"),
    (errors.ModelFailed("boom"), 500, Code.INTERNAL, "boom"),
    (errors.OutputRows("y", (), 2), 400, Code.FAILED_PRECONDITION, "Batched output tensor has 0 dimensions"),
    (
        errors.OutputRows("y", (3, 1), 2),
        400,
        Code.FAILED_PRECONDITION,
        "Batched output tensor's 0th dimension does not equal the sum of the 0th dimension sizes of the input tensors",
    ),
    (errors.Unknown("who knows"), 500, Code.UNKNOWN, "who knows"),
    (errors.Unavailable("not now"), 503, Code.UNAVAILABLE, "not now"),
    (errors.AlreadyExists("it is there"), 409, Code.ALREADY_EXISTS, "it is there"),
    (errors.Cancelled("stopped"), 499, Code.CANCELLED, "stopped"),
    (errors.SequenceCancelled(5, "m"), 499, Code.CANCELLED, "sequence 5 of model 'm' was cancelled"),
    (errors.Internal("secret"), 500, Code.INTERNAL, "Internal error"),
    (errors.EncodingFailed("half"), 400, Code.INVALID_ARGUMENT, "half"),
    (
        errors.SignatureNotFound("m", "s"),
        400,
        Code.FAILED_PRECONDITION,
        'Serving signature name: "s" not found in signature def',
    ),
]


@pytest.mark.parametrize(("error", "status", "code", "text"), ANSWERED, ids=[type(e).__name__ for e, *_ in ANSWERED])
def test_errors(error: GatewayError, status: int, code: Code, text: str) -> None:
    reply = match("POST", PREDICT).endpoint.encode_error(error, call_of("POST", PREDICT))
    assert (reply.http_status, reply.grpc_code, reply.message) == (status, code, text)
    assert error_of(reply) == text
    assert reply.headers.get("Retry-After") == ("1" if status == 503 else None)


def test_error_bytes() -> None:
    error = errors.InvalidArgument('a "b" \\ / \x01\n\t é')
    reply = match("POST", PREDICT).endpoint.encode_error(error, call_of("POST", PREDICT))
    assert reply.body == '{\n    "error": "a \\"b\\" \\\\ / \\u0001\\n\\t é"\n}'.encode()


def test_a_kind_that_the_table_lacks_is_answered_as_its_nearest() -> None:
    class Odd(errors.ModelFailed):
        pass

    class Odder(GatewayError):
        pass

    assert answer_of(Odd("x")) is ANSWERS[errors.ModelFailed]
    assert answer_of(Odder()) is ANSWERS[errors.Internal]


# ------------------------------------------------------------------------------------------------------------- example


def run_example(line: str, view: ModelView, make_resolve: MakeResolve) -> InferRequest:
    words = shlex.split(line)
    assert (words[:2], words[3]) == (["curl", "-s"], "-d")
    target = words[2].removeprefix("http://h:1")
    request = ask(call_of("POST", target, words[4].encode()), make_resolve(view))
    assert isinstance(request, InferRequest)
    return request


EXAMPLES: list[dict[str, Any]] = [
    {"x": np.array([[0.1, np.nan], [1e30, 2]], np.float32)},
    {"x": np.array(3, np.int64)},
    {"a": np.array([1, 2], np.uint8), "b": np.array([[True], [False]])},
    {"a": np.array([1, 2], np.int32), "b": np.array([1], np.int32)},
    {"x": np.array([b"it's", "é".encode(), b"\xff$(rm)"], np.object_)},
]


@pytest.mark.parametrize("inputs", EXAMPLES)
def test_examples_run(inputs: dict[str, Any], make_model: MakeModel, make_resolve: MakeResolve) -> None:
    names = {dtype: name for name, dtype in DTYPES.items()}
    specs = {name: (names[array.dtype], array.shape) for name, array in inputs.items()}
    view = make_model("it's/a model", specs, {}, example_inputs=inputs)
    sample = KIND.make(KIND.options()).sample(view)
    assert sample is not None
    line = sample.curl("http://h:1/")
    assert line is not None
    assert "\n" not in line
    request = run_example(line, view, make_resolve)
    for name, array in inputs.items():
        np.testing.assert_array_equal(request.inputs[name], array, strict=True)


def test_models_without_an_example(make_model: MakeModel) -> None:
    sample = KIND.make(KIND.options()).sample
    assert sample(make_model("m", {"x": ("FP16", (1,))}, {})) is None
    assert sample(make_model("m", {"x": ("FP32", (1,))}, {}, example_inputs={})) is None
    assert sample(make_model("m", {"x": ("FP32", (0, 2))}, {})) is None
    assert sample(make_model("m", {"x": ("FP32", (1,))}, {}, decoupled=True)) is None
    large = sample(make_model("m", {"x": ("FP32", (100_000,))}, {}))
    assert large is not None
    assert large.curl("http://h") is None


def test_the_dialect() -> None:
    dialect = KIND.make(KIND.options())
    assert (dialect.name, dialect.prefix, dialect.max_json_depth) == ("tf_serving", "/v1", 1000)

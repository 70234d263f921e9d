"""The grps dialect from request line to reply: addresses, methods, queries, health, metadata, the example."""

import json
import shlex
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import pytest
import yaml
from pydantic import ValidationError

from tensorgate.adapters import DIALECTS
from tensorgate.adapters.grps import KIND
from tensorgate.adapters.grps.options import GrpsMapping, GrpsOptions
from tensorgate.gateway.contract.call import Call, Reply
from tensorgate.gateway.contract.canonical import InferResponse, ModelView
from tensorgate.gateway.contract.dialect import Dialect
from tensorgate.gateway.contract.errors import GatewayError, ModelNotFound
from tensorgate.gateway.contract.questions import (
    ModelConfiguration,
    ServerDescription,
    ServerLive,
    ServerMetadata,
    ServerReady,
    SetOnline,
)

PREDICT = "/grps/v1/infer/predict"
JSON = {"content-type": "application/json"}


def dialect(**options: Any) -> Dialect:
    return KIND.make(GrpsOptions(**options))


def call(method: str, target: str, body: bytes = b"", headers: Any = None, **options: Any) -> Any:
    """-> the question, or the reply that refuses it"""
    match = dialect(**options).match(method, target)
    message = Call(body, method, target, headers or {}, "http", match.args)
    try:
        return match.endpoint.decode(message, refuse)
    except GatewayError as error:
        return match.endpoint.encode_error(error, message)


def refuse(ref: Any) -> ModelView:
    raise ModelNotFound(ref.qualified)


def status_of(reply: Reply) -> tuple[int, int, str]:
    status = json.loads(text(reply))["status"]
    return reply.http_status, status["code"], status["msg"]


def text(reply: Reply) -> bytes:
    return bytes(reply.body) if isinstance(reply.body, bytes) else b"".join(reply.body)  # type: ignore[arg-type]


def test_the_kind_is_in_the_table_and_the_package() -> None:
    assert DIALECTS["grps"] == "tensorgate.adapters.grps:KIND"
    made = dialect()
    assert (made.name, made.title, made.prefix, made.max_json_depth) == ("grps", "grps", "/grps/v1", 100)


@pytest.mark.parametrize("options", [{"http_status": "sometimes"}, {"initially_online": 1}, {"colour": "red"}])
def test_options_are_strict(options: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        GrpsOptions(**options)
    with pytest.raises(ValidationError):
        GrpsMapping(**options)


def test_a_gmap_of_the_yaml() -> None:
    wanted = GrpsMapping.model_validate({"gmap": {"s_i64": {"count": "counters"}}, "reply": {"str_data": "out"}})
    assert (wanted.gmap["s_i64"]["count"], wanted.reply.str_data) == ("counters", "out")
    with pytest.raises(ValidationError):
        GrpsMapping.model_validate({"gmap": {"s_t": {"count": "counters"}}})


# ----------------------------------------------------------------------------------------------------------- addresses

QUESTIONS: list[tuple[str, Any, str]] = [
    ("/grps/v1/health/online", SetOnline(True), "GET POST"),
    ("/grps/v1/health/offline", SetOnline(False), "GET POST"),
    ("/grps/v1/health/live", ServerLive(), "GET POST"),
    ("/grps/v1/health/ready", ServerReady(online_gate=True), "GET POST"),
    ("/grps/v1/health/%72eady?x=1", ServerReady(online_gate=True), "GET POST"),
    ("/grps/v1/metadata/server", ServerMetadata(), "GET POST"),
]


@pytest.mark.parametrize(("target", "question", "methods"), QUESTIONS, ids=[row[0] for row in QUESTIONS])
def test_questions_without_a_body(target: str, question: Any, methods: str) -> None:
    for method in methods.split():
        assert call(method, target, b"not read {") == question
    for method in ("PUT", "DELETE", "HEAD", "OPTIONS", "PATCH", "get"):
        reply = call(method, target)
        assert status_of(reply) == (405, 405, "Method Not Allowed")
        assert reply.headers["Allow"] == ", ".join(methods.split())


@pytest.mark.parametrize("path", [PREDICT, f"{PREDICT}?streaming=true", "/grps/v1/metadata/model"])
def test_post_alone(path: str) -> None:
    reply = call("GET", path)
    assert (reply.http_status, reply.headers["Allow"]) == (405, "POST")


NOWHERE = ["/grps/v1", "/grps/v1/", "/grps/v1/infer/predict/", "/grps/v1//infer/predict", "/grps/v1/INFER/predict"]
NOWHERE += ["/grps/v1streaming", "/grps/v1/streaming", "/grps/v1/monitor/metrics", "/grps/v1/metrics", "/", "*", ""]


@pytest.mark.parametrize("target", NOWHERE)
@pytest.mark.parametrize("http_status", ["mirror", "always_200"])
def test_unknown_addresses(target: str, http_status: str) -> None:
    assert status_of(call("POST", target, http_status=http_status)) == (404, 404, "Not Found")


@pytest.mark.parametrize(
    ("query", "args"),
    [
        ("", {}),
        (
            "?model=a-1&streaming=TRUE&return-ndarray=True",
            {"model": "a-1", "return_ndarray": "true", "streaming": "true"},
        ),
        ("?model=", {}),
        ("?model=%E4%BD%A0+b%2D1&model=c", {"model": "\u4f60 b-1"}),
        ("?return-ndarray=1&streaming=yes", {}),
        ("?return_ndarray=true&Streaming=true", {}),
        ("?return-ndarray=false&return-ndarray=true&streaming=&streaming=true", {}),
        ("?%ff=%zz&&=&model=a", {"model": "a"}),
    ],
)
def test_the_query_is_read_once(query: str, args: dict[str, str]) -> None:
    made = dialect()
    match = made.match("POST", PREDICT + query)
    assert dict(match.args) == args
    assert match.endpoint.method == "infer"
    assert made.match("POST", PREDICT + query) is match


def test_streaming_is_predicts_alone() -> None:
    assert call("GET", "/grps/v1/health/live?streaming=true") == ServerLive()


@pytest.mark.parametrize(("http_status", "http"), [("mirror", (400, 500)), ("always_200", (200, 200))])
def test_failures_mirror_their_code_or_do_not(http_status: str, http: tuple[int, int]) -> None:
    missing = call("POST", PREDICT, b"{}", http_status=http_status)
    assert status_of(missing) == (http[0], 400, "No content type in headers.")
    unknown = call("POST", f"{PREDICT}?model=a-1", b'{"ndarray": 1}', JSON, http_status=http_status)
    assert status_of(unknown) == (http[1], 500, "Model a-1 not found.")
    ready = dialect(http_status=http_status).match("GET", "/grps/v1/health/ready").endpoint
    assert ready.encode(False, ServerReady()).http_status == (503 if http_status == "mirror" else 200)


def test_a_stream_says_its_errors_inside() -> None:
    reply = call("POST", f"{PREDICT}?streaming=true&model=a-1", b'{"ndarray": 1}', JSON)
    assert (reply.http_status, reply.streamed) == (200, True)
    assert json.loads(text(reply))["status"]["msg"] == "Model a-1 not found."
    empty = call("POST", f"{PREDICT}?streaming=true", b"", JSON)
    assert (empty.http_status, json.loads(text(empty))["status"]["code"]) == (200, 400)
    both = call("POST", f"{PREDICT}?streaming=true&return-ndarray=true", b"", JSON)
    assert (both.http_status, both.streamed) == (400, False)


# ------------------------------------------------------------------------------------------------------------ metadata

MODEL = {
    "backend": "onnx",
    "path": "models/digits",
    "versions": [1, 10],
    "device": "cuda:1",
    "max_batch_size": 32,
    "max_queue_delay_us": 2000,
    "parameters": {"k": 1},
}


def test_model_metadata() -> None:
    assert call("POST", "/grps/v1/metadata/model", b'{"str_data": "digits"}', JSON) == ModelConfiguration("digits")
    endpoint = dialect().match("POST", "/grps/v1/metadata/model").endpoint
    shown = json.loads(text(endpoint.encode(MODEL, ModelConfiguration("digits"))))["str_data"]
    entry = {
        "name": "digits",
        "version": "10",
        "device": "cuda:1",
        "inferer_type": "customized",
        "inferer_name": "onnx",
        "inferer_path": "models/digits",
        "inferer_args": {"k": 1},
        "converter_type": "none",
        "batching": {"type": "dynamic", "max_batch_size": 32, "batch_timeout_us": 2000},
    }
    assert yaml.safe_load(shown) == entry
    assert [line.split(":")[0] for line in shown.splitlines() if line[0] != " "] == sorted(entry)
    bare = yaml.safe_load(json.loads(text(endpoint.encode({"backend": "torch"}, ModelConfiguration("t"))))["str_data"])
    assert bare == {"name": "t", "inferer_type": "torch", "converter_type": "none", "batching": {"type": "none"}}


@pytest.mark.parametrize(
    ("configuration", "name", "version"),
    [
        ({"version": 3}, "m", "3"),
        ({"version": 3, "grps": None}, "m", "3"),
        ({"version": 3, "versions": [1, 2], "grps": {"version": "1.10"}}, "m", "1.10"),
        ({"version": 1, "grps": {"name": "your_model", "version": "1.0.0"}}, "your_model", "1.0.0"),
    ],
)
def test_model_metadata_tells_the_version_that_callers_say(configuration: Any, name: str, version: str) -> None:
    endpoint = dialect().match("POST", "/grps/v1/metadata/model").endpoint
    reply = endpoint.encode({"backend": "onnx", **configuration}, ModelConfiguration("m"))
    shown = yaml.safe_load(json.loads(text(reply))["str_data"])
    assert (shown["name"], shown["version"]) == (name, version)
    server = ServerDescription("tensorgate", "1", {"models": {"m": {"backend": "onnx", **configuration}}})
    encode = dialect(default_model="m").match("GET", "/grps/v1/metadata/server").endpoint.encode
    shown = yaml.safe_load(json.loads(text(encode(server, ServerMetadata())))["str_data"])
    assert shown["dag"]["nodes"][0]["model"] == f"{name}-{version}"


def test_names_that_callers_say_beside_the_models_own() -> None:
    assert GrpsMapping().qualified("m") is None
    assert GrpsMapping(version="1.0.0").qualified("m") == "m-1.0.0"
    assert GrpsMapping(name="your_model", version="1.0.0").qualified("m") == "your_model-1.0.0"
    with pytest.raises(ValidationError, match="a name needs a version"):
        GrpsMapping.model_validate({"name": "your_model", "version": None})
    with pytest.raises(ValidationError, match="a name needs a version"):
        GrpsMapping(name="your_model")


METADATA_ERRORS: list[tuple[str | None, bytes, int, str]] = [
    (None, b'{"str_data": "m"}', 415, "Unsupported content type."),
    ("text/plain", b'{"str_data": "m"}', 415, "Unsupported content type."),
    ("application/json", b"", 400, "Parse json failed. The document is empty. At offset 0."),
    ("application/json", b"{", 400, "Parse json failed. Missing a name for object member. At offset 1."),
    ("application/json", b"{}", 400, "No model name."),
    ("application/json", b"[]", 400, "No model name."),
    ("application/json", b'{"str_data": null}', 400, "No model name."),
    ("application/json", b'{"str_data": 5}', 400, "No model name."),
]


@pytest.mark.parametrize(("content", "body", "code", "message"), METADATA_ERRORS)
def test_model_metadata_refuses(content: str | None, body: bytes, code: int, message: str) -> None:
    reply = call("POST", "/grps/v1/metadata/model", body, {"content-type": content} if content else {})
    assert status_of(reply) == (code, code, message)


@pytest.mark.parametrize("content", ["application/json; charset=utf-8", "Application/JSON", "application/x+json"])
def test_model_metadata_takes_any_json_type(content: str) -> None:
    asked = call("POST", "/grps/v1/metadata/model", b'{"str_data": ""}', {"content-type": content})
    assert asked == ModelConfiguration("")


def test_an_unknown_model_is_404_here() -> None:
    match = dialect().match("POST", "/grps/v1/metadata/model")
    message = Call(b"", "POST", "/grps/v1/metadata/model", {}, "http", match.args)
    assert status_of(match.endpoint.encode_error(ModelNotFound(""), message)) == (404, 404, "Model not found.")


def test_server_metadata() -> None:
    configuration = {
        "listen": {"http": [{"bind": "0.0.0.0:8000"}], "grpc": [{"bind": "0.0.0.0:8001"}]},
        "models": {"digits": MODEL, "other": {"backend": "python", "path": "a.py:A", "device": ["cuda:3", "cpu"]}},
        "limits": {"max_connections": 1000},
        "admin": {"token": "hidden"},
    }
    server = ServerDescription("tensorgate", "1", configuration)
    endpoint = dialect(default_model="digits").match("GET", "/grps/v1/metadata/server").endpoint
    shown = json.loads(text(endpoint.encode(server, ServerMetadata())))["str_data"]
    assert "hidden" not in shown
    inference, _, served = shown.partition("\n\n")
    first, second = yaml.safe_load(inference), yaml.safe_load(served)
    assert [model["name"] for model in first["models"]] == ["digits", "other"]
    assert first["dag"]["nodes"] == [{"name": "node-1", "type": "model", "model": "digits-10"}]
    assert second["interface"] == {"framework": "http+grpc", "host": "0.0.0.0", "port": "8000,8001"}
    assert (second["max_connections"], second["gpu"]) == (1000, {"devices": [1, 3]})
    assert first["models"][1]["device"] == "cuda:3, cpu"
    assert yaml.safe_load(shown) == first | second
    keys = {"models", "dag", "interface", "max_connections", "max_concurrency", "log", "gpu"}
    assert (first | second).keys() == keys
    own = {"path": "/v1/x", "customized_body": False, "streaming_ctrl": {"ctrl_mode": "query_param"}}
    more = configuration | {"grps": {"customized_predict_http": own}}
    shown = json.loads(text(endpoint.encode(ServerDescription("t", "1", more), ServerMetadata())))["str_data"]
    assert yaml.safe_load(shown)["interface"]["customized_predict_http"] == own
    bare = json.loads(text(endpoint.encode(ServerDescription("t", "1"), ServerMetadata())))["str_data"]
    assert yaml.safe_load(bare).keys() == keys - {"interface", "gpu"}
    assert yaml.safe_load(bare)["dag"]["nodes"][0]["model"] == "digits"


# ------------------------------------------------------------------------------------------------------------- example

EXAMPLES: list[tuple[dict[str, Any], dict[str, Any], Any, str]] = [
    ({"x": ("FP32", (-1, 2))}, {"y": ("FP32", None)}, {"ndarray": [[1.0, 1.0]]}, "&return-ndarray=true"),
    ({"x": ("FP32", ())}, {"y": ("INT64", None)}, {"ndarray": 1.0}, ""),
    (
        {"a": ("FP32", (2,)), "b": ("INT64", (-1, 1))},
        {"y": ("FP32", None)},
        {
            "gtensors": {
                "tensors": [
                    {"name": "a", "dtype": "DT_FLOAT32", "shape": [2], "flat_float32": [1.0, 1.0]},
                    {"name": "b", "dtype": "DT_INT64", "shape": [1, 1], "flat_int64": [1]},
                ]
            }
        },
        "",
    ),
]


@pytest.mark.parametrize(("inputs", "outputs", "body", "flags"), EXAMPLES)
def test_the_example_is_a_line_that_the_dialect_understands(
    make_model: Any, make_resolve: Any, inputs: Any, outputs: Any, body: Any, flags: str
) -> None:
    view = make_model("it's-m", inputs, outputs)
    assert run(view, make_resolve) == (body, f"model=it%27s-m-1{flags}")


def run(view: ModelView, make_resolve: Any) -> tuple[Any, str]:
    """What the line sends, after decoding it as the dialect would: the inputs must be the examples."""
    made = dialect()
    sample = made.sample(view)
    assert sample is not None
    line = sample.curl("http://127.0.0.1:8000")
    assert line is not None
    curl, silent, url, _, header, _, body = shlex.split(line)
    assert (curl, silent, header) == ("curl", "-s", "Content-Type: application/json")
    split = urlsplit(url)
    target = f"{split.path}?{split.query}"
    match = made.match("POST", target)
    request = match.endpoint.decode(Call(body.encode(), "POST", target, JSON, "http", match.args), make_resolve(view))
    for name, array in view.example_inputs.items():
        np.testing.assert_array_equal(request.inputs[name], array)
        assert request.inputs[name].dtype == array.dtype
    outputs = {name: np.zeros(1, spec.dtype) for name, spec in view.outputs.items()}
    assert text(match.endpoint.encode(InferResponse(outputs), request))
    return json.loads(body), split.query


def test_examples_of_text_and_of_what_is_not_finite(make_model: Any, make_resolve: Any) -> None:
    said = np.array([["it's \u00e9".encode()]], np.object_)
    view = make_model("m", {"t": ("BYTES", (-1, 1))}, {"y": ("FP32", None)}, example_inputs={"t": said})
    assert run(view, make_resolve)[0] == {"str_data": "it's \u00e9"}
    strange = np.array([np.nan, 0.1, -np.inf], np.float32)
    view = make_model("m", {"x": ("FP32", (3,))}, {"y": ("FP32", None)}, example_inputs={"x": strange})
    assert run(view, make_resolve)[0]["gtensors"]["tensors"][0]["flat_float32"] == ["NaN", 0.1, "-Infinity"]


@pytest.mark.parametrize(
    ("inputs", "examples"),
    [
        ({"x": ("BF16", (1,))}, None),
        ({"x": ("BOOL", (1,))}, None),
        ({"x": ("FP32", (1, 3, 224, 224))}, None),
        ({"x": ("FP32", (0,))}, None),
        ({"x": ("FP32", (1,))}, {}),
        ({"x": ("BYTES", (1,))}, {"x": np.array([b"\xff"], np.object_)}),
        ({"x": ("BYTES", (2,))}, {"x": np.array([b"\xff", b"a"], np.object_)}),
    ],
)
def test_no_example_where_grps_has_none(make_model: Any, inputs: Any, examples: Any) -> None:
    changes = {} if examples is None else {"example_inputs": examples}
    assert dialect().sample(make_model("m", inputs, {}, **changes)) is None

"""The model repository extension on the wire: index, load, unload, in Triton's words."""

import base64
import json
from typing import Any

import pytest

from tensorgate.adapters.open_inference.errors import encode_error
from tensorgate.adapters.open_inference.routes import ENDPOINTS, match
from tensorgate.gateway.contract import errors
from tensorgate.gateway.contract.call import Call
from tensorgate.gateway.contract.errors import Code, GatewayError, MalformedJson
from tensorgate.gateway.contract.questions import IndexEntry, LoadModel, RepositoryIndex, UnloadModel

LOAD = "/v2/repository/models/m/load"
UNLOAD = "/v2/repository/models/m/unload"
INDEX = "/v2/repository/index"


def decoded(target: str, body: Any = b"", method: str = "POST") -> Any:
    """The question of an address and a body (bytes, or what to write as JSON)."""
    found = match(method, target)
    text = body if isinstance(body, bytes) else json.dumps(body).encode()

    def resolve(ref: Any) -> Any:
        raise AssertionError("nothing here resolves a model")

    return found.endpoint.decode(Call(text, method, target, {}, "http", found.args), resolve)


QUESTIONS: list[tuple[str, Any, Any]] = [
    (INDEX, b"", RepositoryIndex()),
    (INDEX, b" \n", RepositoryIndex()),
    (INDEX, {}, RepositoryIndex()),
    (INDEX, {"ready": False, "other": 1}, RepositoryIndex()),
    (INDEX, {"ready": True}, RepositoryIndex(ready_only=True)),
    ("/v2/repository/any%20name/index", {"ready": True}, RepositoryIndex(ready_only=True)),
    ("/v2/repository/index/index", b"", RepositoryIndex()),
    (LOAD, b"", LoadModel("m")),
    (LOAD, {}, LoadModel("m")),
    (LOAD, {"parameters": {}}, LoadModel("m")),
    ("/v2/repository/models/a%20b/load?x=1", b"", LoadModel("a b")),
    ("/v2/repository/models/models/load", b"", LoadModel("models")),
    (LOAD, {"parameters": {"config": '{"max_batch_size":"16"}'}}, LoadModel("m", '{"max_batch_size":"16"}')),
    (
        LOAD,
        {"parameters": {"config": "{}", "file:1/model.onnx": base64.b64encode(b"\0onnx").decode(), "file:l.txt": ""}},
        LoadModel("m", "{}", {"1/model.onnx": b"\0onnx", "l.txt": b""}),
    ),
    (UNLOAD, b"", UnloadModel("m")),
    (UNLOAD, {"parameters": {"unload_dependents": True}}, UnloadModel("m", dependents=True)),
    (UNLOAD, {"parameters": {"unload_dependents": False, "other": 1}}, UnloadModel("m")),
]


@pytest.mark.parametrize(("target", "body", "question"), QUESTIONS)
def test_questions(target: str, body: Any, question: Any) -> None:
    assert decoded(target, body) == question


NAMED = "'repository_name' specification is not supported"
NOT_TEXT = "attempt to access JSON non-string as string"
NOT_BOOLEAN = "attempt to access JSON non-boolean as boolean"
REFUSALS: list[tuple[str, Any, type[GatewayError], str]] = [
    (INDEX, {"ready": "yes"}, errors.InvalidArgument, f"Unable to parse 'ready': {NOT_BOOLEAN}"),
    ("/v2/repository/r/models/m/load", b"", errors.Unsupported, NAMED),
    ("/v2/repository/r/models/m/unload", b"", errors.Unsupported, NAMED),
    (LOAD, {"parameters": {"confg": "{}"}}, errors.InvalidArgument, "unrecognized load parameter 'confg'."),
    (LOAD, {"parameters": {"config": {}}}, errors.InvalidArgument, f"Unable to parse 'config': {NOT_TEXT}"),
    (LOAD, {"parameters": {"file:1/m": 1}}, errors.InvalidArgument, f"Unable to parse 'file:1/m': {NOT_TEXT}"),
    (LOAD, {"parameters": {"file:1/m": "%"}}, errors.InvalidArgument, "failed to decode base64 of 'file:1/m'"),
    (
        LOAD,
        {"parameters": [1]},
        errors.InvalidArgument,
        "Unable to parse 'parameters': attempt to get members for non-object",
    ),
    (
        UNLOAD,
        {"parameters": {"unload_dependents": 1}},
        errors.InvalidArgument,
        f"Unable to parse 'unload_dependents': {NOT_BOOLEAN}",
    ),
]


@pytest.mark.parametrize(("target", "body", "kind", "text"), REFUSALS)
def test_refusals(target: str, body: Any, kind: type[GatewayError], text: str) -> None:
    with pytest.raises(kind) as caught:
        decoded(target, body)
    assert str(caught.value) == text


@pytest.mark.parametrize("target", [INDEX, LOAD, UNLOAD])
@pytest.mark.parametrize("body", [b"{", b"[" * 200, b"\xff", b"{}x"])
def test_broken_bodies(target: str, body: bytes) -> None:
    with pytest.raises(MalformedJson):
        decoded(target, body)


@pytest.mark.parametrize(
    ("method", "target", "kind"),
    [
        ("GET", INDEX, errors.MethodNotAllowed),
        ("GET", LOAD, errors.MethodNotAllowed),
        ("POST", "/v2/repository", errors.RouteNotFound),
        ("POST", "/v2/repository/index/", errors.RouteNotFound),
        ("POST", "/v2/repository/models/m/reload", errors.RouteNotFound),
        ("POST", "/v2/repository/models//load", errors.RouteNotFound),
        ("POST", "/v2/repository/a/b/index", errors.RouteNotFound),
        ("POST", "/v2/repository/{model}/load", errors.RouteNotFound),
    ],
)
def test_addresses_that_do_not_exist(method: str, target: str, kind: type[GatewayError]) -> None:
    with pytest.raises(kind) as caught:
        decoded(target, method=method)
    assert type(caught.value) is kind


def test_the_index_is_an_array_without_empty_members() -> None:
    entries = (
        IndexEntry("a", 1, "READY"),
        IndexEntry("a", 2, "UNAVAILABLE", "unloaded"),
        IndexEntry("b"),
        IndexEntry("c", None, "UNAVAILABLE", "broken"),
    )
    reply = match("POST", INDEX).endpoint.encode(entries, RepositoryIndex())
    assert (reply.http_status, dict(reply.headers)) == (200, {"Content-Type": "application/json"})
    assert reply.body == (
        b'[{"name":"a","version":"1","state":"READY"},'
        b'{"name":"a","version":"2","state":"UNAVAILABLE","reason":"unloaded"},'
        b'{"name":"b"},{"name":"c","state":"UNAVAILABLE","reason":"broken"}]'
    )


@pytest.mark.parametrize("target", [LOAD, UNLOAD])
def test_what_is_done_is_told_without_a_body(target: str) -> None:
    reply = match("POST", target).endpoint.encode(None, LoadModel("m"))
    assert (reply.http_status, reply.body) == (200, b"")


KINDS: list[tuple[GatewayError, int, Code, str]] = [
    (
        errors.ModelControlOff(),
        503,
        Code.UNAVAILABLE,
        "explicit model load / unload is not allowed if polling is enabled",
    ),
    (
        errors.ModelNotStored("m"),
        500,
        Code.INTERNAL,
        "failed to load 'm', failed to poll from model repository",
    ),
    (errors.LoadRefused("m", "not JSON"), 400, Code.INVALID_ARGUMENT, "failed to load 'm', not JSON"),
    (
        errors.LoadFailed("m", {1: "cut short", 3: "no memory"}),
        400,
        Code.INVALID_ARGUMENT,
        "load failed for model 'm': version 1 is at UNAVAILABLE state: cut short; "
        "version 3 is at UNAVAILABLE state: no memory;",
    ),
    (
        errors.PlatformRefused("m", "caffe"),
        400,
        Code.INVALID_ARGUMENT,
        "failed to load 'm', unexpected platform type 'caffe'",
    ),
    (
        errors.LabelRefused("m", "stable", 3),
        400,
        Code.FAILED_PRECONDITION,
        "version 3 of model 'm' is not ready, and can have no label",
    ),
    (
        errors.ReloadFailed({("m", 1): errors.Reason("cut short"), ("n", 2): errors.Reason("no memory")}),
        500,
        Code.UNKNOWN,
        "load failed for models 'm' version 1: cut short; 'n' version 2: no memory;",
    ),
]


@pytest.mark.parametrize(("error", "status", "code", "text"), KINDS)
def test_failures_in_the_words_of_triton(error: GatewayError, status: int, code: Code, text: str) -> None:
    reply = encode_error(error, Call(b"", "POST", LOAD, {}, "http"))
    assert (reply.http_status, reply.grpc_code, reply.message) == (status, code, text)
    assert json.loads(bytes(reply.body)) == {"error": text}  # type: ignore[arg-type]


def test_what_changes_the_server_is_the_administrators() -> None:
    assert {each.address.partition(" ")[2] for each in ENDPOINTS if each.admin} == {
        "/v2/repository/models/{model}/load",
        "/v2/repository/models/{model}/unload",
        "/v2/logging",
        "/v2/trace/setting",
        "/v2/models/{model}/trace/setting",
        "/v2/{kind}sharedmemory/region/{region}/register",
        "/v2/{kind}sharedmemory/region/{region}/unregister",
        "/v2/{kind}sharedmemory/unregister",
    }

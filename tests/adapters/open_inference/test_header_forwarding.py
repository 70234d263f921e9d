"""Headers that become parameters of a request: which, under what name, and over each transport."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from pydantic import ValidationError

from tensorgate import Server
from tensorgate.adapters.open_inference import KIND
from tensorgate.adapters.open_inference.options import OpenInferenceOptions
from tensorgate.adapters.open_inference.proto_routes import GRPC_ENDPOINTS
from tensorgate.adapters.open_inference.routes import match
from tensorgate.adapters.protobuf.messages import message
from tensorgate.gateway.contract.call import Call
from tensorgate.gateway.contract.canonical import InferRequest, ModelView
from tensorgate.gateway.contract.dialect import Endpoint, Resolve
from tensorgate.gateway.contract.errors import InvalidArgument

ModelInferRequest = message("inference.ModelInferRequest")
ModelInferResponse = message("inference.ModelInferResponse")
ModelStreamInferResponse = message("inference.ModelStreamInferResponse")
INFER = "/inference.GRPCInferenceService/ModelInfer"
STREAM = "/inference.GRPCInferenceService/ModelStreamInfer"
BODIES: dict[str, Any] = {
    "infer": {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1], "data": [1]}], "parameters": {"a": 1}},
    "generate": {"x": 1, "a": 1},
    "generate_stream": {"x": 1, "a": 1},
}


@pytest.fixture
def resolve(make_model: Callable[..., ModelView], make_resolve: Callable[..., Resolve]) -> Resolve:
    return make_resolve(make_model("m", {"x": ("FP32", (-1,))}, {"y": ("FP32", (-1,))}))


def of_http(action: str, pattern: str) -> Endpoint:
    dialect = KIND.make(OpenInferenceOptions(http_header_forward_pattern=pattern))
    return dialect.match("POST", f"/v2/models/m/{action}").endpoint


def ask(endpoint: Endpoint, resolve: Resolve, body: bytes, headers: dict[str, str], transport: Any) -> Any:
    request = endpoint.decode(
        Call(body, "POST", "/", headers, transport, {"model": "m"}, in_thread=True, deadline=5.0), resolve
    )
    assert isinstance(request, InferRequest)
    np.testing.assert_array_equal(np.asarray(request.inputs["x"]), [1])
    assert request.deadline == 5.0
    return request.parameters


HEADERS = {"x-user": "ann", "x-tenant": "t", "a": "header", "content-type": "application/json"}
CASES: list[tuple[str, dict[str, str], dict[str, Any]]] = [
    ("^x-", HEADERS, {"a": 1, "x-user": "ann", "x-tenant": "t"}),
    ("user", HEADERS, {"a": 1, "x-user": "ann"}),
    ("USER", HEADERS, {"a": 1, "x-user": "ann"}),
    ("(?-i)USER", HEADERS, {"a": 1}),
    ("(?-i)user", HEADERS, {"a": 1, "x-user": "ann"}),
    ("^user", HEADERS, {"a": 1}),
    ("^a$", HEADERS, {"a": "header"}),
    ("x-.*", {}, {"a": 1}),
    ("", HEADERS, {"a": 1}),
    (
        "^x-",
        {"x-u": "é", "x-b": b"\xe9".decode("utf-8", "surrogateescape")},
        {"a": 1, "x-u": "é", "x-b": "\N{REPLACEMENT CHARACTER}"},
    ),
]


@pytest.mark.parametrize("action", BODIES)
@pytest.mark.parametrize(("pattern", "headers", "parameters"), CASES)
def test_over_http(
    resolve: Resolve, action: str, pattern: str, headers: dict[str, str], parameters: dict[str, Any]
) -> None:
    body = json.dumps(BODIES[action]).encode()
    endpoint = of_http(action, pattern)
    for _ in range(3):  # a template answers in the end
        assert ask(endpoint, resolve, body, headers, "http") == parameters
    assert ask(of_http(action, pattern.upper() if pattern == "^x-" else pattern), resolve, body, headers, "http") == (
        parameters
    )


def proto(**parameters: str) -> Any:
    request = ModelInferRequest(model_name="m", raw_input_contents=[np.float32([1]).tobytes()])
    request.inputs.add(name="x", datatype="FP32", shape=[1])
    for name, value in parameters.items():
        request.parameters[name].string_param = value
    return request


@pytest.mark.parametrize("method", [INFER, STREAM])
@pytest.mark.parametrize(("pattern", "headers", "parameters"), CASES)
def test_over_grpc(
    resolve: Resolve, method: str, pattern: str, headers: dict[str, str], parameters: dict[str, Any]
) -> None:
    endpoint = KIND.make(OpenInferenceOptions(grpc_header_forward_pattern=pattern)).grpc[method]
    wanted = {name: value if value != 1 else "body" for name, value in parameters.items()}
    assert ask(endpoint, resolve, proto(a="body").SerializeToString(), headers, "grpc") == wanted
    del wanted["a"]
    forwarded = {"a": "header"} if parameters["a"] == "header" else {}
    for _ in range(3):  # without parameters a template answers in the end
        assert ask(endpoint, resolve, proto().SerializeToString(), headers, "grpc") == wanted | forwarded


@pytest.mark.parametrize("name", ["sequence_id", "timeout", "headers", "triton_x"])
def test_reserved_names(resolve: Resolve, name: str) -> None:
    """In Triton's words, and only where the pattern wants them."""
    body = json.dumps(BODIES["infer"]).encode()
    with pytest.raises(InvalidArgument, match=f"^Header '{name}' is reserved for Triton usage and cannot be forwarded"):
        ask(of_http("infer", ".*"), resolve, body, {name: "1"}, "http")
    assert ask(of_http("infer", "^x-"), resolve, body, {name: "1"}, "http") == {"a": 1}


def test_nothing_else_is_changed() -> None:
    """Without a pattern every endpoint is the plain one; with one, all but those that have parameters."""
    plain = KIND.make(OpenInferenceOptions())
    assert (plain.match, plain.grpc) == (match, GRPC_ENDPOINTS)
    forwarding = KIND.make(OpenInferenceOptions(http_header_forward_pattern=".", grpc_header_forward_pattern="."))
    assert forwarding.match("GET", "/v2/models/m") == match("GET", "/v2/models/m")
    line = "POST", "/v2/models/m/infer"
    assert forwarding.match(*line).endpoint is forwarding.match("POST", "/v2/models/n/infer").endpoint
    differing = {name for name in GRPC_ENDPOINTS if forwarding.grpc[name] is not GRPC_ENDPOINTS[name]}
    assert differing == {INFER, STREAM}


def test_a_pattern_that_is_none() -> None:
    with pytest.raises(ValidationError, match="is no regular expression"):
        OpenInferenceOptions(http_header_forward_pattern="(")
    with pytest.raises(ValidationError, match="is no regular expression"):
        OpenInferenceOptions(grpc_header_forward_pattern="(?-i)(")


MODEL = """
import json
import numpy as np

class Tell:
    def __init__(self, context):
        pass

    def infer(self, inputs, request):
        return {"y": np.array([json.dumps(dict(request.parameters), sort_keys=True)], object)}
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder: Path = tmp_path_factory.mktemp("model")
    (folder / "tell.py").write_text(MODEL)
    entry = {
        "backend": "python",
        "path": str(folder / "tell.py:Tell"),
        "inputs": [{"name": "x", "datatype": "FP32", "shape": [-1]}],
        "outputs": [{"name": "y", "datatype": "BYTES", "shape": [1]}],
    }
    patterns = {"http_header_forward_pattern": "^x-", "grpc_header_forward_pattern": "^(x-|user-agent)"}
    config = {"server_name": "triton", "open_inference": patterns, "models": {"m": entry}}
    with Server(config) as running:
        yield running


def http(server: Server, path: str, body: Any = None) -> bytes:
    data = None if body is None else json.dumps(body).encode()
    headers = {"X-User": "ann", "X-Note": "é".encode().decode("latin-1"), "Y": "n"}
    request = urllib.request.Request(f"{server.url}{path}", data, headers)  # noqa: S310
    with urllib.request.urlopen(request, timeout=30) as answer:  # noqa: S310
        found: bytes = answer.read()
        return found


@pytest.mark.parametrize("action", BODIES)
def test_a_model_reads_headers_of_http(server: Server, action: str) -> None:
    answer = http(server, f"/v2/models/m/{action}", BODIES[action]).removeprefix(b"data: ")
    told = json.loads(answer)
    text = told["outputs"][0]["data"][0] if action == "infer" else told["y"]
    assert json.loads(text)["x-user"] == "ann"
    assert json.loads(text).keys() == {"a", "x-user", "x-note"}


def test_a_model_reads_metadata_of_grpc(server: Server) -> None:
    metadata = (("x-user", "ann"), ("y", "n"))
    with grpc.insecure_channel(server.grpc_address) as channel:
        unary = channel.unary_unary(INFER, ModelInferRequest.SerializeToString, ModelInferResponse.FromString)
        stream = channel.stream_stream(STREAM, ModelInferRequest.SerializeToString, ModelStreamInferResponse.FromString)
        one = unary(proto(), metadata=metadata, timeout=30)
        [other] = list(stream(iter([proto()]), metadata=metadata, timeout=30))
    for answer in (one, other.infer_response):
        told = json.loads(answer.raw_output_contents[0][4:])
        assert told["x-user"] == "ann"
        assert told.keys() == {"x-user", "user-agent"}


def test_the_name_of_the_server(server: Server) -> None:
    assert json.loads(http(server, "/v2"))["name"] == "triton"

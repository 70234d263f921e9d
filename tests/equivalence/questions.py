"""What is asked besides inferences, and what no port knows: both servers have to say the same."""

from __future__ import annotations

import json
from collections.abc import Iterator

from wire import Message
from worlds import World

from tensorgate.adapters.protobuf.messages import message

JSON = (("Content-Type", "application/json"),)


def questions(world: World) -> Iterator[Message]:
    """Metadata, health, wrong methods, unknown names; no counters and no times, which are each server's own."""
    for model in world.models.values():
        yield from _of_model(model.name)
    for name in ("nobody", "m0/versions/2", "m0/versions/x", "m%30"):
        yield from _of_model(name)
    for target in (
        "/v2",
        "/v2/health/live",
        "/v2/health/ready",
        "/v1/models",
        "/grps/v1/health/ready",
        "/none",
        "/v2/",
        "//",
    ):
        for method in ("GET", "POST", "HEAD", "OPTIONS", "DELETE"):
            yield Message("http", target, (b"",), method)
    for body in (b"", b"{}", b"[]", b"null", b"{", b"\xff", b'{"inputs":[]}', b'{"instances":[]}', b'{"str_data":"x"}'):
        for target in (
            "/v2/models/pair/infer",
            "/v1/models/pair:predict",
            "/grps/v1/infer/predict",
            "/v2/models/pair/generate",
        ):
            yield Message("http", target, (body,), headers=JSON)
            yield Message("http", target, (body,), quirk="chunked")
    yield from _rpc()


def _of_model(name: str) -> Iterator[Message]:
    for target in (
        f"/v2/models/{name}",
        f"/v2/models/{name}/ready",
        f"/v2/models/{name}/config",
        f"/v1/models/{name}",
        f"/v1/models/{name}/metadata",
    ):
        yield Message("http", target, (b"",), "GET")
    yield Message("http", f"/v2/models/{name}/infer", (b'{"inputs":[]}',))
    yield Message("http", f"/v1/models/{name}:predict", (b'{"instances":[]}',))
    yield Message("http", "/grps/v1/metadata/model", (json.dumps({"str_data": name}).encode(),), headers=JSON)


def _rpc() -> Iterator[Message]:
    service = "/inference.GRPCInferenceService/"
    for name in ("pair", "examples", "whoami", "nobody"):
        for method in ("ModelMetadata", "ModelReady"):  # a ModelConfig has maps, whose order is up to protobuf
            made = message(f"inference.{method}Request")(name=name)
            yield Message("grpc", service + method, (made.SerializeToString(),))
        empty = message("inference.ModelInferRequest")(model_name=name)
        for body in (empty.SerializeToString(), b"", b"\xff", b"\x0a\x05ab"):
            yield Message("grpc", f"{service}ModelInfer", (body,))
            yield Message("grpc", f"{service}ModelStreamInfer", (body,))
            yield Message("grpc", "/tensorflow.serving.PredictionService/Predict", (body,))
            yield Message("grpc", "/grps.protos.v1.GrpsService/Predict", (body,))
    for method in ("ServerLive", "ServerReady", "ServerMetadata"):
        yield Message("grpc", service + method, (b"",))
    yield Message("grpc", f"{service}ModelInfer", ())
    yield Message("grpc", f"{service}ModelInfer", (b"", b""))
    yield Message("grpc", f"{service}Nothing", (b"",))
    yield Message("grpc", "/nobody/Nothing", (b"",))

"""Request line -> endpoint. The table is `endpoints`; everything else here is looking it up quickly."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache, partial
from types import MappingProxyType
from typing import Any, Final
from urllib.parse import parse_qsl, unquote

from adapters.grps.errors import METADATA_TABLE, encode_error, encode_stream_error
from adapters.grps.example import example
from adapters.grps.metadata import decode_model, model_text, server_text
from adapters.grps.options import GrpsOptions
from adapters.grps.proto_routes import grpc_endpoints
from adapters.grps.request import decode_predict
from adapters.grps.response import encode_predict, encode_ready, encode_success, encode_text
from gateway.errors import MethodNotAllowed, RouteNotFound
from gateway.ports import Call, Dialect, Endpoint, Match, Resolve
from gateway.questions import ServerLive, ServerMetadata, ServerReady, SetOnline

PREFIX: Final = "/grps/v1"

_BOTH: Final = ("GET", "POST")
_POST: Final = ("POST",)
_REMEMBERED: Final = 1024
_STREAMING: Final = "streaming"

Route = tuple[tuple[str, ...], Endpoint]


def make(options: GrpsOptions) -> Dialect:
    """The dialect as its options want it."""
    routes = endpoints(options)
    return Dialect(
        name="grps", title="grps", prefix=PREFIX, match=_matcher(routes), example=example, grpc=grpc_endpoints(options)
    )


def endpoints(options: GrpsOptions) -> Mapping[str, Route]:
    """Path below the prefix -> the methods it takes and what answers; `_STREAMING` is predict with streaming=true."""
    always_200 = options.http_status == "always_200"
    fail = partial(encode_error, always_200=always_200)
    fail_metadata = partial(encode_error, table=METADATA_TABLE, always_200=always_200)
    fail_stream = partial(encode_stream_error, always_200=always_200)
    ready = partial(encode_ready, always_200=always_200)
    online, offline = SetOnline(True), SetOnline(False)
    live, is_ready, server = ServerLive(), ServerReady(online_gate=True), ServerMetadata()

    def show_server(answer: Any, question: Any) -> Any:
        return encode_text(server_text(answer, options.default_model))

    def show_model(answer: Any, question: Any) -> Any:
        return encode_text(model_text(question.name, answer))

    def predict(stream: bool) -> Any:
        return partial(decode_predict, stream=stream)

    at = PREFIX
    return {
        "/health/online": (
            _BOTH,
            Endpoint(f"{at}/health/online", "online", _asks(online), encode_success, fail, admin=True),
        ),
        "/health/offline": (
            _BOTH,
            Endpoint(f"{at}/health/offline", "offline", _asks(offline), encode_success, fail, admin=True),
        ),
        "/health/live": (_BOTH, Endpoint(f"{at}/health/live", "live", _asks(live), ready, fail)),
        "/health/ready": (_BOTH, Endpoint(f"{at}/health/ready", "ready", _asks(is_ready), ready, fail)),
        "/metadata/server": (_BOTH, Endpoint(f"{at}/metadata/server", "metadata", _asks(server), show_server, fail)),
        "/metadata/model": (
            _POST,
            Endpoint(f"POST {at}/metadata/model", "metadata", decode_model, show_model, fail_metadata),
        ),
        "/infer/predict": (
            _POST,
            Endpoint(f"POST {at}/infer/predict", "infer", predict(False), encode_predict, fail),
        ),
        _STREAMING: (
            _POST,
            Endpoint(
                f"POST {at}/infer/predict?streaming=true", "infer", predict(True), encode_predict, fail_stream, "server"
            ),
        ),
    }


def _asks(question: Any) -> Any:
    """Decode of an address that has a question and reads no body."""

    def decode(call: Call, resolve: Resolve) -> Any:
        return question

    return decode


# ------------------------------------------------------------------------------------------------------------ matching


def _refuses(method: str, error: type[RouteNotFound]) -> Endpoint:
    def decode(call: Call, resolve: Resolve) -> Any:
        raise error(call.method, call.raw_target.partition("?")[0])

    return Endpoint(PREFIX, method, decode, encode_success, encode_error)


_NOT_FOUND: Final = Match(_refuses("unknown", RouteNotFound))
_NOT_ALLOWED: Final = _refuses("unknown", MethodNotAllowed)


def _matcher(routes: Mapping[str, Route]) -> Any:
    @lru_cache(_REMEMBERED)
    def match(method: str, raw_target: str) -> Match:
        path, _, query = raw_target.partition("?")
        path = unquote(path).removeprefix(PREFIX)
        route = routes.get(path) if path.startswith("/") else None
        if route is None:
            return _NOT_FOUND
        if method not in route[0]:
            return Match(_NOT_ALLOWED, MappingProxyType({"allow": ", ".join(route[0])}))
        args = _args(query)
        return Match(routes[_STREAMING if _STREAMING in args and path == "/infer/predict" else path][1], args)

    return match


def _args(query: str) -> Mapping[str, str]:
    """model, return_ndarray, streaming, as far as the query sets them; of repeated keys the first counts."""
    first: dict[str, str] = {}
    for key, value in parse_qsl(query, keep_blank_values=True):
        first.setdefault(key, value)
    args = {"model": first["model"]} if first.get("model") else {}
    for key, arg in (("return-ndarray", "return_ndarray"), ("streaming", _STREAMING)):
        if first.get(key, "").lower() == "true":
            args[arg] = "true"
    return MappingProxyType(args)

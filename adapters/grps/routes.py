"""HTTP request lines below /grps/v1 -> endpoints. The table is `endpoints`; everything else here is looking it up
quickly. Contract: grps v1.1.0.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache, partial
from types import MappingProxyType
from typing import Any, Final
from urllib.parse import parse_qsl, unquote

from tensorgate.adapters.failures import refusing
from tensorgate.adapters.grps.api import PREDICT, description
from tensorgate.adapters.grps.customized import decode_raw, encode_raw, encode_raw_error
from tensorgate.adapters.grps.errors import METADATA_TABLE, encode_error, encode_predict_error, encode_unreadable
from tensorgate.adapters.grps.metadata import decode_model, model_text, server_text
from tensorgate.adapters.grps.monitor import decode_series, encode_series
from tensorgate.adapters.grps.options import PREFIX, CustomizedHttp, GrpsOptions, StreamingControl, mapping_of
from tensorgate.adapters.grps.proto_routes import grpc_endpoints
from tensorgate.adapters.grps.request import STREAMING, asks_for_stream, decode_predict
from tensorgate.adapters.grps.response import encode_predict, encode_ready, encode_success, encode_text
from tensorgate.adapters.grps.sample import sample, samples
from tensorgate.gateway.contract.dialect import Dialect, Endpoint, Match
from tensorgate.gateway.contract.errors import MethodNotAllowed, RouteNotFound
from tensorgate.gateway.contract.questions import ServerLive, ServerMetadata, ServerReady, SetOnline

_BOTH: Final = ("GET", "POST")
_POST: Final = ("POST",)
_GET: Final = ("GET",)
_REMEMBERED: Final = 1024

_STANDARD: Final = CustomizedHttp(path="/predict")
"""How predict is without a path of the user's: only its streaming control counts."""

Route = tuple[tuple[str, ...], Endpoint]


def make(options: GrpsOptions) -> Dialect:
    """The dialect as its options want it."""
    own = options.customized_predict_http
    control = own.streaming_ctrl if own else StreamingControl()
    routes = endpoints(options)
    return Dialect(
        name="grps",
        title="grps",
        prefix=PREFIX,
        match=_matcher(routes, control.ctrl_key if control.ctrl_mode == "query_param" else None),
        sample=sample,
        samples=samples,
        grpc=grpc_endpoints(options),
        paths=(own.path,) if own else (),
        unreadable=encode_unreadable,
        page_paths=(f"{PREFIX}/monitor/metrics",),
        default_model=options.default_model,
        alias=lambda view: mapping_of(view).qualified(view.name),
        initially_online=options.initially_online,
        api=description(options, routes),
    )


def endpoints(options: GrpsOptions) -> Mapping[str, Route]:
    """Path -> the methods it takes and what answers."""
    always_200 = options.http_status == "always_200"
    fail = partial(encode_error, always_200=always_200)
    fail_metadata = partial(encode_error, rows=METADATA_TABLE, always_200=always_200)
    ready = partial(encode_ready, always_200=always_200)

    def show_server(answer: Any, question: Any) -> Any:
        return encode_text(server_text(answer, options.default_model))

    def show_model(answer: Any, question: Any) -> Any:
        return encode_text(model_text(question.name, answer))

    routes: dict[str, Route] = {}

    def row(methods: tuple[str, ...], path: str, label: str, decode: Any, encode: Any, **more: Any) -> None:
        more.setdefault("encode_error", fail)
        address = path if methods is _BOTH else f"{methods[0]} {path}"
        routes[path] = methods, Endpoint(address, label, decode, encode, **more)

    row(_BOTH, f"{PREFIX}/health/online", "online", _asks(SetOnline(True)), encode_success, admin=True)
    row(_BOTH, f"{PREFIX}/health/offline", "offline", _asks(SetOnline(False)), encode_success, admin=True)
    row(_BOTH, f"{PREFIX}/health/live", "live", _asks(ServerLive()), ready)
    row(_BOTH, f"{PREFIX}/health/ready", "ready", _asks(ServerReady(online_gate=True)), ready)
    row(_BOTH, f"{PREFIX}/metadata/server", "metadata", _asks(ServerMetadata()), show_server)
    row(_POST, f"{PREFIX}/metadata/model", "metadata", decode_model, show_model, encode_error=fail_metadata)
    row(_GET, f"{PREFIX}/monitor/series", "monitor", decode_series, encode_series)
    own = options.customized_predict_http
    predict = _predict(own or _STANDARD, always_200)
    row(_POST, PREDICT, "infer", *predict[:2], encode_error=predict[2], stream="server")
    if own:
        row(_BOTH, own.path, "infer", *predict[:2], encode_error=predict[2], stream="server")
    return routes


def _predict(own: CustomizedHttp, always_200: bool) -> tuple[Any, Any, Any]:
    """decode, encode and encode_error of predict: in the protocol's form, or in the model's own."""
    control = own.streaming_ctrl
    asks, content_type = asks_for_stream(control), control.res_content_type
    if own.customized_body:
        return (
            partial(decode_raw, asks=asks, stream_type=content_type),
            encode_raw,
            partial(encode_raw_error, stream_type=content_type, control=control.words),
        )
    return (
        partial(decode_predict, asks=asks),
        partial(encode_predict, stream_headers=MappingProxyType({"Content-Type": content_type})),
        partial(encode_predict_error, always_200=always_200, stream_type=content_type, control=control.words),
    )


def _asks(question: Any) -> Any:
    """Decode of an address that has a question and reads no body."""
    return lambda call, resolve: question


# ------------------------------------------------------------------------------------------------------------ matching


def _refusing(kind: type[RouteNotFound]) -> Endpoint:
    return refusing(PREFIX, lambda call: kind(call.method, call.raw_target.partition("?")[0]), encode_error)


_NOT_FOUND: Final = Match(_refusing(RouteNotFound))
_NOT_ALLOWED: Final = _refusing(MethodNotAllowed)


def _matcher(routes: Mapping[str, Route], stream_key: str | None) -> Any:
    # Never stale: the routes are constants of a dialect, which has a matcher of its own; models are resolved later.
    @lru_cache(_REMEMBERED)
    def match(method: str, raw_target: str) -> Match:
        path, _, query = raw_target.partition("?")
        route = routes.get(unquote(path))
        if route is None:
            return _NOT_FOUND
        if method not in route[0]:
            return Match(_NOT_ALLOWED, MappingProxyType({"allow": ", ".join(route[0])}))
        return Match(route[1], _args(query, stream_key))

    return match


def _args(query: str, stream_key: str | None) -> Mapping[str, str]:
    """model, return_ndarray, streaming, as far as the query sets them; of repeated keys the first counts."""
    first: dict[str, str] = {}
    for key, value in parse_qsl(query, keep_blank_values=True):
        first.setdefault(key, value)
    args = {"model": first["model"]} if first.get("model") else {}
    for arg, name in (("return_ndarray", "return-ndarray"), (STREAMING, stream_key)):
        if name is not None and first.get(name, "").lower() == "true":
            args[arg] = "true"
    return MappingProxyType(args)

"""/openapi.json, which every port that speaks a dialect has beside it: a dialect of one address, which asks what V2's
/v2/models/{model}/openapi.json asks, and is let in, counted and answered as all calls are.

    /openapi.json                            the server: what the port speaks, the models that the caller may use
    /openapi.json?dialect=tf_serving         one dialect of it
    /openapi.json?model=digits[&version=2]   a model; with &examples=all also its requests that are long
"""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus
from types import MappingProxyType
from typing import Final, NoReturn
from urllib.parse import parse_qsl

import orjson

from tensorgate.gateway.contract.call import Call, Reply
from tensorgate.gateway.contract.canonical import ModelRef, MustForward
from tensorgate.gateway.contract.dialect import Dialect, Endpoint, Match, Resolve
from tensorgate.gateway.contract.errors import (
    Code,
    GatewayError,
    InvalidArgument,
    MethodNotAllowed,
    ModelNotFound,
    Unauthenticated,
    text_of,
)
from tensorgate.gateway.contract.questions import ApiDocument

PATH: Final = "/openapi.json"
_HEADERS: Final = MappingProxyType(
    {"Content-Type": "application/json", "Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}
)
_STATUSES: Final[Mapping[Code, int]] = {
    Code.INVALID_ARGUMENT: 400,
    Code.UNAUTHENTICATED: 401,
    Code.PERMISSION_DENIED: 403,
    Code.NOT_FOUND: 404,
    Code.RESOURCE_EXHAUSTED: 429,
    Code.UNAVAILABLE: 503,
    Code.DEADLINE_EXCEEDED: 504,
}
_MAX_VERSION_DIGITS: Final = 18


def _decode(call: Call, resolve: Resolve) -> ApiDocument:
    """Raises InvalidArgument, and what `resolve` does."""
    asked = dict(parse_qsl(call.raw_target.partition("?")[2]))
    dialect, version = asked.get("dialect", ""), asked.get("version")
    if "model" not in asked:
        return ApiDocument(call.listener, call.caller, PATH, dialect)
    if version is not None and not (version.isascii() and version.isdecimal() and len(version) <= _MAX_VERSION_DIGITS):
        raise InvalidArgument("version must be a number")
    ref = ModelRef(asked["model"], None if version is None else int(version))
    try:
        view = resolve(ref)
    except MustForward as forward:
        view = forward.view
    return ApiDocument(call.listener, call.caller, PATH, dialect, view, ref.version, asked.get("examples") == "all")


def _encode(document: bytes, question: ApiDocument) -> Reply:
    return Reply(document, headers=_HEADERS)


def _encode_error(error: GatewayError, call: Call) -> Reply:
    status = 405 if isinstance(error, MethodNotAllowed) else _STATUSES.get(error.code, 500)
    if isinstance(error, ModelNotFound):
        text = f"there is no model {text_of(error)}"
    elif isinstance(error, Unauthenticated):
        text = "The credentials are not valid" if error.given else "Credentials are required"
    else:
        text = text_of(error) or HTTPStatus(status).phrase
    return Reply(orjson.dumps({"error": text}), status, _HEADERS, error.code, text)


def _refuse(call: Call, resolve: Resolve) -> NoReturn:
    raise MethodNotAllowed(call.method, call.raw_target)


_FOUND: Final = Match(Endpoint(f"GET {PATH}", "api_document", _decode, _encode, _encode_error))
_REFUSED: Final = Match(Endpoint(PATH, "unknown", _refuse, _encode, _encode_error))

ADDRESS: Final = Dialect(
    name="openapi",
    title="OpenAPI",
    prefix=PATH,
    match=lambda method, target: _FOUND if method == "GET" else _REFUSED,
    sample=lambda view: None,
    paths=(PATH,),
)

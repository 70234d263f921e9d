"""HTTP request lines of TensorFlow Serving's REST API -> endpoints. Source: the patterns of its server.

They are matched against the request target as it came: still percent-encoded, and with its query string, which thereby
becomes part of the last name. Names are decoded afterwards, so %2F and %3A put slashes and colons into them. Patterns
ignore case, but a verb must be lower case (`:PREDICT` is malformed) and `/METADATA` is not metadata but status: quirks.
"""

from __future__ import annotations

import re
from dataclasses import replace
from functools import lru_cache
from typing import Any, Final
from urllib.parse import unquote

from tensorgate.adapters.failures import refusing
from tensorgate.adapters.tf_serving.classify_json import decoder, encode_classify, encode_regress
from tensorgate.adapters.tf_serving.errors import (
    EMPTY_HEADERS,
    encode_empty_error,
    encode_error,
    encode_html_error,
    encode_preflight_error,
    encode_status_error,
)
from tensorgate.adapters.tf_serving.metadata import decode_metadata, decode_status, encode_metadata, encode_status
from tensorgate.adapters.tf_serving.predict_request import decode_predict
from tensorgate.adapters.tf_serving.predict_response import encode_predict
from tensorgate.gateway.contract.call import Call, Reply
from tensorgate.gateway.contract.dialect import Endpoint, Match, Resolve
from tensorgate.gateway.contract.errors import GatewayError, InvalidArgument, RouteNotFound, Unsupported
from tensorgate.gateway.contract.questions import ServerLive

_FLAGS: Final = re.IGNORECASE | re.ASCII
_API: Final = re.compile(r"/v1/.*", _FLAGS | re.DOTALL)
_POST: Final = re.compile(
    r"/v1/models/([^/:]+)(?:(?:/versions/(\d+))|(?:/labels/([^/:]+)))?:(classify|regress|predict)", _FLAGS
)
_GET: Final = re.compile(
    r"/v1/models(?:/([^/:]+))?(?:(?:/versions/(\d+))|(?:/labels/([^/:]+)))?(?:/(metadata))?", _FLAGS
)
_LEGAL: Final = re.compile(
    r"(?:[\w\-.~!$&'()*+,;=:@/]|%[0-9a-f]{2})*+(?:\?(?:[\w\-.~!$&'()*+,;=:@/?]|%[0-9a-f]{2})*+)?"
    r"(?:#(?:[\w\-.~!$&'()*+,;=:@/?]|%[0-9a-f]{2})*+)?",
    _FLAGS,
)
"""Source: RFC 3986, section 3."""
_METHODS: Final = frozenset({"GET", "POST", "PUT", "DELETE", "PATCH", "HEAD", "OPTIONS"})
_MAX_VERSION: Final = 2**63 - 1


def _encode_preflight(answer: Any, question: Any) -> Reply:
    return Reply(b"", headers=EMPTY_HEADERS)


def _malformed(call: Call) -> GatewayError:
    return RouteNotFound(call.method, call.raw_target)


def _preflight(call: Call, resolve: Resolve) -> ServerLive:
    """OPTIONS answers any page of the web, with nothing, whether CORS is on or off."""
    origin = call.headers.get("origin", "")
    if "http://" in origin or "https://" in origin:
        return ServerLive()
    raise InvalidArgument("")


_ADDRESS: Final = "/v1/models/{name}[/versions/{version}|/labels/{label}]"
_PREDICT: Final = Endpoint(f"POST {_ADDRESS}:predict", "infer", decode_predict, encode_predict, encode_error, "single")
_STATUS: Final = Endpoint(f"GET {_ADDRESS}", "status", decode_status, encode_status, encode_status_error)
_METADATA: Final = Endpoint(f"GET {_ADDRESS}/metadata", "metadata", decode_metadata, encode_metadata, encode_error)
_CLASSIFY: Final = Endpoint(
    f"POST {_ADDRESS}:classify", "classify", decoder("classify"), encode_classify, encode_error, "single"
)
_REGRESS: Final = Endpoint(
    f"POST {_ADDRESS}:regress", "regress", decoder("regress"), encode_regress, encode_error, "single"
)
_VERBS: Final = {"predict": _PREDICT, "classify": _CLASSIFY, "regress": _REGRESS}
_PREFLIGHT: Final = Endpoint("OPTIONS /v1/", "preflight", _preflight, _encode_preflight, encode_preflight_error)

_UNKNOWN: Final = Match(refusing("/v1/", _malformed, encode_error))
_NO_MODEL: Final = Match(
    refusing("GET /v1/models", lambda call: InvalidArgument("Missing model name in request."), encode_error)
)
_HEAD: Final = Match(refusing("HEAD /v1/", _malformed, encode_empty_error))
_TOO_LARGE: Final = Match(refusing(_ADDRESS, lambda call: InvalidArgument(""), encode_empty_error))
_OUTSIDE: Final = Match(refusing("/v1", _malformed, encode_html_error))
_ILLEGAL: Final = Match(refusing("*", lambda call: InvalidArgument("Bad Request"), encode_html_error))
_NO_METHOD: Final = Match(refusing("/v1/", lambda call: Unsupported(f"HTTP method {call.method}"), encode_html_error))


# Never stale: the addresses are constants, and models are resolved later.
@lru_cache(maxsize=1024)
def match(method: str, raw_target: str) -> Match:
    """The endpoint of a request line; what does not exist is an endpoint whose decode raises."""
    if method not in _METHODS:
        return _NO_METHOD
    if not _LEGAL.fullmatch(raw_target):
        return _ILLEGAL
    if not _API.fullmatch(raw_target):
        return _OUTSIDE
    if method == "POST":
        return _match_post(raw_target)
    if method == "GET":
        return _match_get(raw_target)
    if method == "OPTIONS":
        return Match(_PREFLIGHT)
    return _HEAD if method == "HEAD" else _UNKNOWN


_CORS_HEADERS: Final = {
    "Access-Control-Allow-Origin": "*",
    "Access-Control-Allow-Methods": "POST, GET",
    "Access-Control-Allow-Headers": "Content-Type",
}


# Never stale, as match is not.
@lru_cache(maxsize=1024)
def match_cross_origin(method: str, raw_target: str) -> Match:
    """`match`, with headers that let pages of any site read the answers: on all that the API itself answers."""
    found = match(method, raw_target)
    if found.endpoint.encode_error is encode_html_error:
        return found
    return replace(found, endpoint=_cross_origin(found.endpoint))


def _cross_origin(endpoint: Endpoint) -> Endpoint:
    def encode(answer: Any, question: Any) -> Reply:
        return _with_cors(endpoint.encode(answer, question))

    def encode_failure(error: GatewayError, call: Call) -> Reply:
        return _with_cors(endpoint.encode_error(error, call))

    return replace(endpoint, encode=encode, encode_error=encode_failure)


def _with_cors(reply: Reply) -> Reply:
    return replace(reply, headers={**reply.headers, **_CORS_HEADERS})


def _match_post(raw_target: str) -> Match:
    found = _POST.fullmatch(raw_target)
    if found is None or found[4] not in _VERBS:
        return _UNKNOWN
    return _named(_VERBS[found[4]], *found.group(1, 2, 3))


def _match_get(raw_target: str) -> Match:
    found = _GET.fullmatch(raw_target)
    if found is None:
        return _UNKNOWN
    if found[1] is None:
        return _NO_MODEL
    return _named(_METADATA if found[4] == "metadata" else _STATUS, *found.group(1, 2, 3))


def _named(endpoint: Endpoint, model: str, version: str | None, label: str | None) -> Match:
    args = {"model": unquote(model, errors="surrogateescape")}
    if version is not None:
        digits = version.lstrip("0") or "0"
        if len(digits) > 19 or int(digits) > _MAX_VERSION:
            return _TOO_LARGE
        args["version"] = digits
    if label is not None:
        args["label"] = unquote(label, errors="surrogateescape")
    return Match(endpoint, args)

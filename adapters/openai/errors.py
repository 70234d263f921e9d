"""Every kind of failure in OpenAI's words: HTTP status, type, code and text; and the same in the forms of Anthropic,
Cohere and text-embeddings-inference, whose clients read other members and know other statuses.

A stream that has begun ends with an error as an event. Source: the errors pages of these vendors' API references, and
what their Python clients make of statuses.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import orjson

from tensorgate.adapters.failures import MEMORY_KINDS, OWN_TEXT, Wording, nearest, table
from tensorgate.adapters.openai.events import EVENT_STREAM, event
from tensorgate.adapters.openai.fields import INVALID, MISSING, WRONG_TYPE, BadField
from tensorgate.gateway.contract import errors as kind
from tensorgate.gateway.contract.call import Call, CallQuota, Reply
from tensorgate.gateway.contract.errors import Code, GatewayError

JSON: Final = "application/json"
BUSY: Final = 503
_RATE: Final = 429
_INVALID: Final = 400
_UNPROCESSABLE: Final = 422
_BY_SCHEMA: Final = (MISSING, INVALID, WRONG_TYPE)

_REQUEST: Final = "invalid_request_error"
_SERVER: Final = "server_error"


def _model_not_found(error: kind.ModelNotFound) -> str:
    if error.known or error.serves:
        version = "" if error.version is None else f" in version {error.version}"
        return f"The model `{error.name}` does not serve{version} now."
    return f"The model `{error.name}` does not exist or you do not have access to it."


def _malformed(error: kind.MalformedJson) -> str:
    if error.max_depth is not None:
        return f"The body's JSON nests deeper than {error.max_depth} levels."
    return f"We could not parse the JSON body of your request: {error.reason}."


def _load_failed(error: kind.LoadFailed) -> str:
    reasons = "; ".join(f"version {version}: {why}" for version, why in error.reasons.items())
    return f"The model `{error.model}` failed to load: {reasons}."


def _reload_failed(error: kind.ReloadFailed) -> str:
    reasons = "; ".join(f"{model} version {version}: {why.text}" for (model, version), why in error.reasons.items())
    return f"Models failed to load: {reasons}."


TABLE: Final = table(
    {
        (400, Code.INVALID_ARGUMENT): {
            kind.InvalidArgument: OWN_TEXT,
            kind.Unsupported: OWN_TEXT,
            kind.MalformedJson: _malformed,
            kind.LabelNotFound: "The model `{0.name}` has no label `{0.label}`.",
            kind.SignatureNotFound: "The model `{0.model}` has no signature `{0.signature}`.",
            kind.ModelDecoupled: "The model `{0.model}` answers in a stream.",
            kind.NotOneAnswer: "The model `{0.model}` did not give exactly one answer.",
            kind.LoadRefused: "The model `{0.model}` cannot be loaded: {0.reason}.",
            kind.LoadFailed: _load_failed,
            kind.PlatformRefused: "The model `{0.model}` cannot be loaded: unknown platform {0.platform}.",
            kind.LabelRefused: "The model `{0.model}` does not serve version {0.version}.",
            kind.BatchTooLarge: "{0.rows} texts are too many: the model `{0.model}` takes at most {0.limit} at once.",
            kind.InputCount: OWN_TEXT,
            kind.PreconditionFailed: OWN_TEXT,
            kind.EncodingFailed: OWN_TEXT,
            **dict.fromkeys(MEMORY_KINDS, "This protocol has no shared memory."),
        },
        (401, Code.UNAUTHENTICATED): {
            kind.Unauthenticated: lambda e: (
                "Incorrect API key provided."
                if e.given
                else "You didn't provide an API key: send it as a header, `Authorization: Bearer YOUR_KEY`."
            ),
        },
        (403, Code.PERMISSION_DENIED): {
            kind.AdminRequired: "This needs the administrator's key in the header {0.header}.",
            kind.Forbidden: lambda e: (
                f"You are not allowed to use the model `{e.model}`." if e.model else "This is for administrators."
            ),
            kind.CrossOriginRefused: "This changes the server, which is not for pages of {0.origin}.",
            kind.ModelControlOff: "Models are not loaded and unloaded by callers here.",
        },
        (404, Code.NOT_FOUND): {
            kind.NotFound: OWN_TEXT,
            kind.ModelNotFound: _model_not_found,
            kind.ModelNotStored: "The model `{0.model}` does not exist.",
        },
        (404, Code.UNIMPLEMENTED): {kind.RouteNotFound: "Invalid URL ({0.method} {0.path})"},
        (405, Code.UNIMPLEMENTED): {
            kind.MethodNotAllowed: "Not allowed to {0.method} on {0.path}.",
        },
        (409, Code.ALREADY_EXISTS): {kind.AlreadyExists: OWN_TEXT},
        (413, Code.RESOURCE_EXHAUSTED): {kind.BodyTooLarge: "The body exceeds {0.limit} bytes."},
        (429, Code.RESOURCE_EXHAUSTED): {
            kind.RateLimited: "Rate limit reached: too many {0.what}. Please try again in {0.retry_after} s.",
            kind.Exhausted: OWN_TEXT,
        },
        (499, Code.CANCELLED): {kind.Cancelled: OWN_TEXT, kind.SequenceCancelled: OWN_TEXT},
        (500, Code.INTERNAL): {
            kind.ModelFailed: OWN_TEXT,
            kind.OutputRows: OWN_TEXT,
            kind.Unknown: OWN_TEXT,
            kind.ReloadFailed: _reload_failed,
            kind.Internal: "The server had an error while processing your request.",
        },
        (503, Code.UNAVAILABLE): {
            kind.QueueFull: "The model `{0.model}` is overloaded: {0.limit} requests wait already{0.whose}.",
            kind.QueueTimeout: "The model `{0.model}` is overloaded: the request waited too long.",
            kind.WouldBeLate: "The model `{0.model}` is overloaded: the answer would be {0.wait_s:.3f} s late.",
            kind.ModelUnavailable: "The model `{0.model}` has stopped taking requests.",
            kind.OutOfMemory: "The model `{0.model}` is out of memory.",
            kind.DeviceLost: "The model `{0.model}` has lost its device, the server restarts.",
            kind.Unavailable: OWN_TEXT,
        },
        (504, Code.DEADLINE_EXCEEDED): {
            kind.DeadlineExceeded: "The model `{0.model}` did not answer in time.",
            kind.TimedOut: OWN_TEXT,
        },
    }
)

_CODES: Final[Mapping[type[GatewayError], str]] = {
    kind.ModelNotFound: "model_not_found",
    kind.Unauthenticated: "invalid_api_key",
    kind.RateLimited: "rate_limit_exceeded",
    kind.RouteNotFound: "unknown_url",
    kind.MethodNotAllowed: "method_not_supported",
    kind.Unsupported: "unsupported",
    kind.QueueFull: "server_overloaded",
    kind.QueueTimeout: "server_overloaded",
    kind.WouldBeLate: "server_overloaded",
}
"""OpenAI's `code`, which programs tell errors by."""
_ANTHROPIC_TYPES: Final = {
    400: _REQUEST,
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}
_ANTHROPIC_BUSY: Final = 529
_TEI_TYPES: Final = {400: "Validation", 413: "Validation", 429: "Overloaded", 503: "Overloaded", 504: "Backend"}
_TEI_STATUSES: Final = {400: 422, 500: 424, 503: 429}
"""text-embeddings-inference's own, which its clients know."""


def row_of(error: GatewayError) -> Wording:
    """The row of the error's kind, or of the nearest kind above it."""
    return nearest(error, TABLE)


def _object(error: GatewayError, status: int, text: str) -> dict[str, Any]:
    code = next((_CODES[each] for each in type(error).__mro__ if each in _CODES), None)
    param = "model" if isinstance(error, kind.ModelNotFound) else None
    if isinstance(error, BadField):
        code, param = error.code_text, error.param
    type_ = _REQUEST if status < kind_of_server else _SERVER
    if status == _RATE:
        type_ = "rate_limit_error"
    return {"message": text, "type": type_, "param": param, "code": code}


kind_of_server: Final = 499
"""From this status on it is no fault of the caller's."""


def _openai(error: GatewayError, status: int, text: str) -> tuple[int, dict[str, Any]]:
    return status, {"error": _object(error, status, text)}


def _fastapi(error: GatewayError, status: int, text: str) -> tuple[int, dict[str, Any]]:
    """A list for what a schema refuses, else a text."""
    if isinstance(error, BadField) and error.code_text in _BY_SCHEMA:
        where = ["body", *(error.param or "").split(".")] if error.param else ["body"]
        return _UNPROCESSABLE, {"detail": [{"type": error.code_text, "loc": where, "msg": error.by_schema}]}
    if isinstance(error, kind.ModelNotFound):
        return _INVALID, {"detail": f"Unknown model: {error.name}"}
    return status, {"detail": error.by_schema if isinstance(error, BadField) else text}


def _anthropic(error: GatewayError, status: int, text: str) -> tuple[int, dict[str, Any]]:
    type_ = _ANTHROPIC_TYPES.get(status, "api_error" if status >= kind_of_server else _REQUEST)
    return (
        _ANTHROPIC_BUSY if status == BUSY else status,
        {"type": "error", "error": {"type": type_, "message": text}},
    )


def _cohere(error: GatewayError, status: int, text: str) -> tuple[int, dict[str, Any]]:
    """Jina's clients read `detail`."""
    return status, {"message": text, "detail": text, "error": _object(error, status, text)}


def _tei(error: GatewayError, status: int, text: str) -> tuple[int, dict[str, Any]]:
    return _TEI_STATUSES.get(status, status), {"error": text, "error_type": _TEI_TYPES.get(status, "Backend")}


_Form = Callable[[GatewayError, int, str], tuple[int, dict[str, Any]]]


def _encoder(form: _Form, event_name: str = "") -> Callable[..., Reply]:
    def encode_error(error: GatewayError, call: Call) -> Reply:
        row = row_of(error)
        text = row.text(error)
        status, body = form(error, row.http_status, text)
        written = orjson.dumps(body, default=str)
        if call.has_replied:
            return Reply(event(written, event_name), 200, EVENT_STREAM, row.grpc_code, text, streamed=True)
        headers = {"Content-Type": JSON}
        if row.http_status == BUSY:
            headers["Retry-After"] = "1"
        if isinstance(error, kind.RateLimited):
            headers |= {"x-ratelimit-remaining-requests": "0", "x-ratelimit-reset-requests": f"{error.retry_after}s"}
        if "allow" in call.args:
            headers["Allow"] = call.args["allow"]
        return Reply(written, status, headers, row.grpc_code, text)

    return encode_error


encode_error: Final = _encoder(_openai)
"""OpenAI's form."""
encode_fastapi_error: Final = _encoder(_fastapi)
encode_anthropic_error: Final = _encoder(_anthropic, "error")
encode_cohere_error: Final = _encoder(_cohere)
encode_tei_error: Final = _encoder(_tei)


def quota_headers(requests: CallQuota | None, tokens: CallQuota | None) -> Mapping[str, str]:
    """As OpenAI's API has them."""
    headers = {}
    for what, quota in (("requests", requests), ("tokens", tokens)):
        if quota is not None:
            headers[f"x-ratelimit-limit-{what}"] = str(int(quota.limit))
            headers[f"x-ratelimit-remaining-{what}"] = str(max(0, int(quota.remaining)))
            headers[f"x-ratelimit-reset-{what}"] = f"{quota.reset_s:.3f}s"
    return headers


def encode_unreadable(status: int, text: str) -> Reply:
    """What answers a message that is no HTTP."""
    body = {"error": {"message": f"{text}.", "type": _REQUEST, "param": None, "code": None}}
    return Reply(orjson.dumps(body), status, {"Content-Type": JSON})

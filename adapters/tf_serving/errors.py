"""Kinds of failure -> TensorFlow Serving's HTTP status, gRPC code and text, stated once for REST and gRPC."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from http import HTTPStatus
from typing import Final

from tensorgate.adapters.failures import MEMORY_KINDS, OWN_TEXT, Wording, Words, nearest, table
from tensorgate.adapters.tf_serving.json_text import quote, utf8
from tensorgate.gateway.contract import errors
from tensorgate.gateway.contract.call import Call, Reply
from tensorgate.gateway.contract.errors import Code, GatewayError, MalformedJson, ModelNotFound, SignatureNotFound

JSON_HEADERS: Final = {"Content-Type": "application/json"}
EMPTY_HEADERS: Final = {"Content-Type": "text/html; charset=ISO-8859-1"}
_RETRY_HEADERS: Final = JSON_HEADERS | {"Retry-After": "1"}
_HTML_HEADERS: Final = {"Content-Type": "text/html", "Connection": "close"}

HTTP_STATUSES: Final = {
    Code.OK: 200,
    Code.CANCELLED: 499,
    Code.UNKNOWN: 500,
    Code.INVALID_ARGUMENT: 400,
    Code.DEADLINE_EXCEEDED: 504,
    Code.NOT_FOUND: 404,
    Code.ALREADY_EXISTS: 409,
    Code.PERMISSION_DENIED: 403,
    Code.RESOURCE_EXHAUSTED: 429,
    Code.FAILED_PRECONDITION: 400,
    Code.ABORTED: 409,
    Code.OUT_OF_RANGE: 400,
    Code.UNIMPLEMENTED: 501,
    Code.INTERNAL: 500,
    Code.UNAVAILABLE: 503,
    Code.DATA_LOSS: 500,
    Code.UNAUTHENTICATED: 401,
}
"""Canonical code -> HTTP status. Source: TensorFlow Serving's REST server."""


def _parse_error(error: MalformedJson) -> str:
    place = "" if error.offset is None else f" at offset: {error.offset}"
    return f"JSON Parse error: {error.reason}{place}"


def _servable_not_found(error: ModelNotFound) -> str:
    wanted = f"Latest({error.name})" if error.version is None else f"Specific({error.name}, {error.version})"
    return f"Servable not found for request: {wanted}"


def no_versions(error: ModelNotFound) -> str:
    """What status says of an unknown model, or version of it."""
    versions = "any versions" if error.version is None else f"version {error.version}"
    return f"Could not find {versions} of model {error.name}"


def _load_failed(error: errors.LoadFailed) -> str:
    reasons = "; ".join(f"version {version}: {why}" for version, why in error.reasons.items())
    return f"Model {error.model} failed to load: {reasons}"


def _platform_refused(error: errors.PlatformRefused) -> str:
    if not error.before:
        return f"Model {error.model} requests unsupported platform {error.platform}"
    return (
        f"Illegal to change a model's platform. For model {error.model} platform was {error.before}"
        f" and new platform requested is {error.platform}"
    )


def _reload_failed(error: errors.ReloadFailed) -> str:
    servables = (
        f"{{{{name: {model} version: {version}}} due to error: {why.code.name}: {why.text}}}, "
        for (model, version), why in error.reasons.items()
    )
    return f"{len(error.reasons)} servable(s) did not become available: {{{''.join(servables)}}}"


def _output_rows(error: errors.OutputRows) -> str:
    if not error.shape:
        return "Batched output tensor has 0 dimensions"
    return (
        "Batched output tensor's 0th dimension does not equal the sum of the 0th dimension sizes of the input tensors"
    )


_MALFORMED: Final = "Malformed request: {0.method} {0.path}"

_WORDS: Final[Mapping[Code, Mapping[type[GatewayError], Words]]] = {
    Code.INVALID_ARGUMENT: {
        errors.InvalidArgument: OWN_TEXT,
        errors.MalformedJson: _parse_error,
        errors.RouteNotFound: _MALFORMED,
        errors.MethodNotAllowed: _MALFORMED,
        errors.LabelNotFound: "Unrecognized servable version label: {0.label}",
        errors.LoadRefused: "Model {0.model} cannot be loaded: {0.reason}",
        errors.PlatformRefused: _platform_refused,
        errors.UnknownOutput: OWN_TEXT,
        errors.InputCount: OWN_TEXT,
        errors.UnknownInput: OWN_TEXT,
        errors.BatchMissing: OWN_TEXT,
        errors.BatchMismatch: OWN_TEXT,
        errors.BatchTooLarge: "Task size {0.rows} is larger than maximum input batch size {0.limit}",
        errors.DtypeMismatch: OWN_TEXT,
        errors.ShapeMismatch: OWN_TEXT,
        errors.SequenceIdMissing: (
            "Model {0.model} takes requests of sequences only, and this protocol cannot name a sequence"
        ),
        errors.SequenceNotStarted: OWN_TEXT,
        errors.SequenceBatch: OWN_TEXT,
        errors.SequenceIdMismatch: OWN_TEXT,
        errors.ClassesUnsupported: OWN_TEXT,
        errors.ClassesTooMany: OWN_TEXT,
        errors.EncodingFailed: OWN_TEXT,
    },
    Code.UNIMPLEMENTED: {
        errors.Unsupported: OWN_TEXT,
        errors.ModelDecoupled: "Model {0.model} streams its answers, which this protocol cannot carry",
        errors.NotOneAnswer: "Model {0.model} gave no answer or several, and this protocol carries one",
        **dict.fromkeys(MEMORY_KINDS, "This protocol has no shared memory"),
    },
    Code.NOT_FOUND: {
        errors.NotFound: OWN_TEXT,
        errors.ModelNotFound: _servable_not_found,
        errors.ModelNotStored: "Could not find base path of model {0.model}",
    },
    Code.FAILED_PRECONDITION: {
        errors.SignatureNotFound: 'Serving signature name: "{0.signature}" not found in signature def',
        errors.ModelControlOff: (
            "Models are not loaded and unloaded by callers here: the configuration needs model_control: {{mode: "
            "explicit, model_roots: [...]}}, or mode poll"
        ),
        errors.LabelRefused: (
            "Request to assign label to version {0.version} of model {0.model}, which is not currently available "
            "for inference"
        ),
        errors.OutputRows: _output_rows,
        errors.PreconditionFailed: OWN_TEXT,
    },
    Code.PERMISSION_DENIED: {
        errors.AdminRequired: "This API is restricted, expecting header '{0.header}'",
        errors.Forbidden: lambda e: (
            f"Use of model {e.model} is not allowed" if e.model else "Administration is not allowed"
        ),
        errors.CrossOriginRefused: "This changes the server, which is not for pages of {0.origin}",
    },
    Code.UNAUTHENTICATED: {
        errors.Unauthenticated: lambda e: "The credentials are not valid" if e.given else "Credentials are required",
    },
    Code.RESOURCE_EXHAUSTED: {
        errors.RateLimited: "Too many {0.what}, retry after {0.retry_after} s",
        errors.OutOfMemory: "OOM when running model {0.model}",
        errors.Exhausted: OWN_TEXT,
    },
    Code.ABORTED: {errors.LoadFailed: _load_failed},
    Code.UNKNOWN: {
        errors.ReloadFailed: _reload_failed,
        errors.Unknown: OWN_TEXT,
    },
    Code.UNAVAILABLE: {
        errors.QueueFull: (
            "The batch scheduling queue to which this task was submitted is full; currently {0.limit} requests "
            "wait for model {0.model}{0.whose}"
        ),
        errors.WouldBeLate: "Model {0.model} is overloaded: the answer would be {0.wait_s:.3f} s late",
        errors.ModelUnavailable: "Model {0.model} is being unloaded",
        errors.DeviceLost: "Model {0.model} has lost its device, the server restarts",
        errors.Unavailable: OWN_TEXT,
    },
    Code.DEADLINE_EXCEEDED: {
        errors.QueueTimeout: "Run() timeout exceeded while waiting in batching queue",
        errors.DeadlineExceeded: "Timed out waiting for notification",
        errors.TimedOut: OWN_TEXT,
    },
    Code.INTERNAL: {
        errors.ModelFailed: OWN_TEXT,
        errors.Internal: "Internal error",
    },
    Code.ALREADY_EXISTS: {errors.AlreadyExists: OWN_TEXT},
    Code.CANCELLED: {errors.Cancelled: OWN_TEXT, errors.SequenceCancelled: OWN_TEXT},
}
ANSWERS: Final = table(
    {(HTTP_STATUSES[code], code): words for code, words in _WORDS.items()}
    | {(413, Code.RESOURCE_EXHAUSTED): {errors.BodyTooLarge: "Request body is larger than {0.limit} bytes"}}
)
"""Kind -> answer, over both transports."""


def answer_of(error: GatewayError) -> Wording:
    """The answer to a kind, or to the nearest kind that it is a special case of."""
    return nearest(error, ANSWERS)


def encode_error(error: GatewayError, call: Call) -> Reply:
    """{"error": text}, on predict, metadata and addresses that do not exist."""
    answer = answer_of(error)
    return _error_reply(answer, answer.text(error))


def encode_status_error(error: GatewayError, call: Call) -> Reply:
    """{"error": text}, on status: an unknown model has other words there."""
    if isinstance(error, ModelNotFound):
        return _error_reply(answer_of(error), no_versions(error))
    return encode_error(error, call)


def _error_reply(answer: Wording, text: str) -> Reply:
    status = answer.http_status
    body = utf8(f'{{\n    "error": {quote(text)}\n}}')
    headers = _RETRY_HEADERS if status == 503 else JSON_HEADERS
    return Reply(body, status, headers, answer.grpc_code, text)


def encode_empty_error(error: GatewayError, call: Call) -> Reply:
    """The status alone: on HEAD, and for a version beyond int64 (a quirk of the original's)."""
    answer = answer_of(error)
    return Reply(b"", answer.http_status, JSON_HEADERS, answer.grpc_code)


def encode_preflight_error(error: GatewayError, call: Call) -> Reply:
    """The status alone, on OPTIONS, which says nothing of JSON."""
    return replace(encode_empty_error(error, call), headers=EMPTY_HEADERS)


def encode_html_error(error: GatewayError, call: Call) -> Reply:
    """A page of HTML: for what never reaches the API, an illegal target, a path outside or a method that HTTP lacks."""
    status = 404 if isinstance(error, errors.RouteNotFound) else HTTP_STATUSES[answer_of(error).grpc_code]
    return replace(html_page(status), grpc_code=answer_of(error).grpc_code)


def html_page(status: int) -> Reply:
    """The page of a status, as the original's HTTP layer has it. It is the last word on its connection."""
    title = HTTPStatus(status).phrase
    page = f"<HTML><HEAD>\n<TITLE>{status} {title}</TITLE>\n</HEAD><BODY>\n<H1>{title}</H1>\n</BODY></HTML>\n"
    return Reply(page.encode(), status, _HTML_HEADERS)


# ----------------------------------------------------------------------------------------------------------------- gRPC

_MAX_DETAIL_BYTES: Final = 1024


def encode_grpc_error(error: GatewayError, call: Call) -> Reply:
    """The status of a call that failed."""
    answer = answer_of(error)
    return failed(answer.grpc_code, answer.text(error))


def encode_grpc_predict_error(error: GatewayError, call: Call) -> Reply:
    """The status of a Predict that failed: an unknown signature has other words than in JSON."""
    if isinstance(error, SignatureNotFound):
        return failed(Code.FAILED_PRECONDITION, f'Serving signature key "{error.signature}" not found.')
    return encode_grpc_error(error, call)


def encode_grpc_status_error(error: GatewayError, call: Call) -> Reply:
    """The status of a GetModelStatus that failed: an unknown model has other words there."""
    if isinstance(error, ModelNotFound):
        return failed(Code.NOT_FOUND, no_versions(error))
    return encode_grpc_error(error, call)


def failed(code: Code, text: str) -> Reply:
    """A status with its text, cut as the original cuts it."""
    details = text.encode("utf-8", "replace")
    text = details[:_MAX_DETAIL_BYTES].decode("utf-8", "ignore")
    if len(details) > _MAX_DETAIL_BYTES:
        text += "...TRUNCATED"
    return Reply(b"", grpc_code=code, message=text)

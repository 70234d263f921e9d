"""Kinds of failure -> TensorFlow Serving's HTTP status, gRPC code and text, stated once for REST and gRPC."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from http import HTTPStatus
from typing import Any, Final, NamedTuple

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


class TfsFailure(NamedTuple):
    """What one kind of failure is called; `words` is a format of the error, {0}, or makes the text; `http_status` only
    where the code's own does not do.
    """

    code: Code
    words: str | Callable[[Any], str]
    http_status: int | None = None

    def text(self, error: GatewayError) -> str:
        return self.words.format(error) if isinstance(self.words, str) else self.words(error)


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


_MALFORMED: Final = TfsFailure(Code.INVALID_ARGUMENT, "Malformed request: {0.method} {0.path}")
_WRONG_TENSORS: Final = TfsFailure(Code.INVALID_ARGUMENT, "{0.text}")
_NO_MEMORY: Final = TfsFailure(Code.UNIMPLEMENTED, "This protocol has no shared memory")

ANSWERS: Final[dict[type[GatewayError], TfsFailure]] = {
    errors.InvalidArgument: TfsFailure(Code.INVALID_ARGUMENT, "{0.text}"),
    errors.Unsupported: TfsFailure(Code.UNIMPLEMENTED, "{0.text}"),
    errors.NotFound: TfsFailure(Code.NOT_FOUND, "{0.text}"),
    errors.MalformedJson: TfsFailure(Code.INVALID_ARGUMENT, _parse_error),
    errors.BodyTooLarge: TfsFailure(
        Code.RESOURCE_EXHAUSTED, "Request body is larger than {0.limit} bytes", http_status=413
    ),
    errors.RouteNotFound: _MALFORMED,
    errors.MethodNotAllowed: _MALFORMED,
    errors.ModelNotFound: TfsFailure(Code.NOT_FOUND, _servable_not_found),
    errors.LabelNotFound: TfsFailure(Code.INVALID_ARGUMENT, "Unrecognized servable version label: {0.label}"),
    errors.SignatureNotFound: TfsFailure(
        Code.FAILED_PRECONDITION, 'Serving signature name: "{0.signature}" not found in signature def'
    ),
    errors.ModelDecoupled: TfsFailure(
        Code.UNIMPLEMENTED, "Model {0.model} streams its answers, which this protocol cannot carry"
    ),
    errors.NotOneAnswer: TfsFailure(
        Code.UNIMPLEMENTED, "Model {0.model} gave no answer or several, and this protocol carries one"
    ),
    errors.AdminRequired: TfsFailure(Code.PERMISSION_DENIED, "This API is restricted, expecting header '{0.header}'"),
    errors.Unauthenticated: TfsFailure(
        Code.UNAUTHENTICATED, lambda e: "The credentials are not valid" if e.given else "Credentials are required"
    ),
    errors.Forbidden: TfsFailure(
        Code.PERMISSION_DENIED,
        lambda e: f"Use of model {e.model} is not allowed" if e.model else "Administration is not allowed",
    ),
    errors.CrossOriginRefused: TfsFailure(
        Code.PERMISSION_DENIED, "This changes the server, which is not for pages of {0.origin}"
    ),
    errors.RateLimited: TfsFailure(Code.RESOURCE_EXHAUSTED, "Too many {0.what}, retry after {0.retry_after} s"),
    errors.ModelControlOff: TfsFailure(
        Code.FAILED_PRECONDITION,
        "Models are not loaded and unloaded by callers here: the configuration needs"
        " model_control: {{mode: explicit, model_roots: [...]}}, or mode poll",
    ),
    errors.ModelNotStored: TfsFailure(Code.NOT_FOUND, "Could not find base path of model {0.model}"),
    errors.LoadRefused: TfsFailure(Code.INVALID_ARGUMENT, "Model {0.model} cannot be loaded: {0.reason}"),
    errors.LoadFailed: TfsFailure(Code.ABORTED, _load_failed),
    errors.PlatformRefused: TfsFailure(Code.INVALID_ARGUMENT, _platform_refused),
    errors.LabelRefused: TfsFailure(
        Code.FAILED_PRECONDITION,
        "Request to assign label to version {0.version} of model {0.model},"
        " which is not currently available for inference",
    ),
    errors.ReloadFailed: TfsFailure(Code.UNKNOWN, _reload_failed),
    errors.UnknownOutput: _WRONG_TENSORS,
    errors.InputCount: _WRONG_TENSORS,
    errors.UnknownInput: _WRONG_TENSORS,
    errors.BatchMissing: _WRONG_TENSORS,
    errors.BatchMismatch: _WRONG_TENSORS,
    errors.BatchTooLarge: TfsFailure(
        Code.INVALID_ARGUMENT, "Task size {0.rows} is larger than maximum input batch size {0.limit}"
    ),
    errors.DtypeMismatch: _WRONG_TENSORS,
    errors.ShapeMismatch: _WRONG_TENSORS,
    errors.SequenceIdMissing: TfsFailure(
        Code.INVALID_ARGUMENT,
        "Model {0.model} takes requests of sequences only, and this protocol cannot name a sequence",
    ),
    errors.SequenceNotStarted: _WRONG_TENSORS,
    errors.SequenceBatch: _WRONG_TENSORS,
    errors.SequenceIdMismatch: _WRONG_TENSORS,
    errors.ClassesUnsupported: _WRONG_TENSORS,
    errors.ClassesTooMany: _WRONG_TENSORS,
    errors.SharedMemoryDisabled: _NO_MEMORY,
    errors.RegionNotFound: _NO_MEMORY,
    errors.RegionExists: _NO_MEMORY,
    errors.RegionUnreachable: _NO_MEMORY,
    errors.RegionInvalid: _NO_MEMORY,
    errors.RegionKeyReserved: _NO_MEMORY,
    errors.RegionLimit: _NO_MEMORY,
    errors.CudaMemoryUnavailable: _NO_MEMORY,
    errors.RegionRange: _NO_MEMORY,
    errors.OutputTooLarge: _NO_MEMORY,
    errors.QueueFull: TfsFailure(
        Code.UNAVAILABLE,
        "The batch scheduling queue to which this task was submitted is full;"
        " currently {0.limit} requests wait for model {0.model}",
    ),
    errors.QueueTimeout: TfsFailure(Code.DEADLINE_EXCEEDED, "Run() timeout exceeded while waiting in batching queue"),
    errors.DeadlineExceeded: TfsFailure(Code.DEADLINE_EXCEEDED, "Timed out waiting for notification"),
    errors.ModelUnavailable: TfsFailure(Code.UNAVAILABLE, "Model {0.model} is being unloaded"),
    errors.OutOfMemory: TfsFailure(Code.RESOURCE_EXHAUSTED, "OOM when running model {0.model}"),
    errors.DeviceLost: TfsFailure(Code.UNAVAILABLE, "Model {0.model} has lost its device, the server restarts"),
    errors.ModelFailed: TfsFailure(Code.INTERNAL, "{0.text}"),
    errors.OutputRows: TfsFailure(Code.FAILED_PRECONDITION, _output_rows),
    errors.Unknown: TfsFailure(Code.UNKNOWN, "{0.text}"),
    errors.Unavailable: TfsFailure(Code.UNAVAILABLE, "{0.text}"),
    errors.Exhausted: TfsFailure(Code.RESOURCE_EXHAUSTED, "{0.text}"),
    errors.TimedOut: TfsFailure(Code.DEADLINE_EXCEEDED, "{0.text}"),
    errors.PreconditionFailed: TfsFailure(Code.FAILED_PRECONDITION, "{0.text}"),
    errors.AlreadyExists: TfsFailure(Code.ALREADY_EXISTS, "{0.text}"),
    errors.Cancelled: TfsFailure(Code.CANCELLED, "{0.text}"),
    errors.EncodingFailed: TfsFailure(Code.INVALID_ARGUMENT, "{0.text}"),
    errors.Internal: TfsFailure(Code.INTERNAL, "Internal error"),
}
"""Kind -> answer, over both transports."""


def answer_of(error: GatewayError) -> TfsFailure:
    """The answer to a kind, or to the nearest kind that it is a special case of."""
    kinds = (ANSWERS[kind] for kind in type(error).__mro__ if kind in ANSWERS)
    return next(kinds, ANSWERS[errors.Internal])


def encode_error(error: GatewayError, call: Call) -> Reply:
    """{"error": text}, on predict, metadata and addresses that do not exist."""
    answer = answer_of(error)
    return _error_reply(answer, answer.text(error))


def encode_status_error(error: GatewayError, call: Call) -> Reply:
    """{"error": text}, on status: an unknown model has other words there."""
    if isinstance(error, ModelNotFound):
        return _error_reply(answer_of(error), no_versions(error))
    return encode_error(error, call)


def _error_reply(answer: TfsFailure, text: str) -> Reply:
    status = answer.http_status or HTTP_STATUSES[answer.code]
    body = utf8(f'{{\n    "error": {quote(text)}\n}}')
    headers = _RETRY_HEADERS if status == 503 else JSON_HEADERS
    return Reply(body, status, headers, answer.code, text)


def encode_empty_error(error: GatewayError, call: Call) -> Reply:
    """The status alone: on HEAD, and for a version beyond int64 (a quirk of the original's)."""
    answer = answer_of(error)
    return Reply(b"", answer.http_status or HTTP_STATUSES[answer.code], JSON_HEADERS, answer.code)


def encode_preflight_error(error: GatewayError, call: Call) -> Reply:
    """The status alone, on OPTIONS, which says nothing of JSON."""
    return replace(encode_empty_error(error, call), headers=EMPTY_HEADERS)


def encode_html_error(error: GatewayError, call: Call) -> Reply:
    """A page of HTML: for what never reaches the API, an illegal target, a path outside or a method that HTTP lacks."""
    status = 404 if isinstance(error, errors.RouteNotFound) else HTTP_STATUSES[answer_of(error).code]
    return replace(html_page(status), grpc_code=answer_of(error).code)


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
    return failed(answer.code, answer.text(error))


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

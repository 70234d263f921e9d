"""What every kind of failure is in TensorFlow Serving's words: HTTP status, gRPC code and text, stated once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from http import HTTPStatus
from typing import Any, Final, NamedTuple

from tensorgate.adapters.tf_serving.json_text import quote, utf8
from tensorgate.gateway.contract import errors
from tensorgate.gateway.contract.call import Call, Reply
from tensorgate.gateway.contract.errors import Code, GatewayError, MalformedJson, ModelNotFound

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


class Answer(NamedTuple):
    """What one kind of failure is called; `http_status` only where the code's own does not do."""

    code: Code
    text: Callable[[Any], str]
    http_status: int | None = None


def _finished(error: Any) -> str:
    return str(error.text)


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


def _reasons(error: errors.LoadFailed) -> str:
    return "; ".join(f"version {version}: {why}" for version, why in error.reasons.items())


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


_MALFORMED: Final = Answer(Code.INVALID_ARGUMENT, lambda e: f"Malformed request: {e.method} {e.path}")
_WRONG_TENSORS: Final = Answer(Code.INVALID_ARGUMENT, _finished)
_NO_MEMORY: Final = Answer(Code.UNIMPLEMENTED, lambda e: "This protocol has no shared memory")

ANSWERS: Final[dict[type[GatewayError], Answer]] = {
    errors.InvalidArgument: Answer(Code.INVALID_ARGUMENT, _finished),
    errors.Unsupported: Answer(Code.UNIMPLEMENTED, _finished),
    errors.NotFound: Answer(Code.NOT_FOUND, _finished),
    errors.MalformedJson: Answer(Code.INVALID_ARGUMENT, _parse_error),
    errors.BodyTooLarge: Answer(
        Code.RESOURCE_EXHAUSTED, lambda e: f"Request body is larger than {e.limit} bytes", http_status=413
    ),
    errors.RouteNotFound: _MALFORMED,
    errors.MethodNotAllowed: _MALFORMED,
    errors.ModelNotFound: Answer(Code.NOT_FOUND, _servable_not_found),
    errors.LabelNotFound: Answer(Code.INVALID_ARGUMENT, lambda e: f"Unrecognized servable version label: {e.label}"),
    errors.SignatureNotFound: Answer(
        Code.FAILED_PRECONDITION, lambda e: f'Serving signature name: "{e.signature}" not found in signature def'
    ),
    errors.ModelDecoupled: Answer(
        Code.UNIMPLEMENTED, lambda e: f"Model {e.model} streams its answers, which this protocol cannot carry"
    ),
    errors.NotOneAnswer: Answer(
        Code.UNIMPLEMENTED, lambda e: f"Model {e.model} gave no answer or several, and this protocol carries one"
    ),
    errors.AdminRequired: Answer(
        Code.PERMISSION_DENIED, lambda e: f"This API is restricted, expecting header '{e.header}'"
    ),
    errors.Unauthenticated: Answer(
        Code.UNAUTHENTICATED, lambda e: "The credentials are not valid" if e.given else "Credentials are required"
    ),
    errors.Forbidden: Answer(
        Code.PERMISSION_DENIED,
        lambda e: f"Use of model {e.model} is not allowed" if e.model else "Administration is not allowed",
    ),
    errors.CrossOriginRefused: Answer(
        Code.PERMISSION_DENIED, lambda e: f"This changes the server, which is not for pages of {e.origin}"
    ),
    errors.RateLimited: Answer(Code.RESOURCE_EXHAUSTED, lambda e: f"Too many {e.what}, retry after {e.retry_after} s"),
    errors.ModelControlOff: Answer(
        Code.FAILED_PRECONDITION,
        lambda e: (
            "Models are not loaded and unloaded by callers here: the configuration needs"
            " model_control: {mode: explicit, model_roots: [...]}, or mode poll"
        ),
    ),
    errors.ModelNotStored: Answer(Code.NOT_FOUND, lambda e: f"Could not find base path of model {e.model}"),
    errors.LoadRefused: Answer(Code.INVALID_ARGUMENT, lambda e: f"Model {e.model} cannot be loaded: {e.reason}"),
    errors.LoadFailed: Answer(Code.ABORTED, lambda e: f"Model {e.model} failed to load: {_reasons(e)}"),
    errors.PlatformRefused: Answer(Code.INVALID_ARGUMENT, _platform_refused),
    errors.LabelRefused: Answer(
        Code.FAILED_PRECONDITION,
        lambda e: (
            f"Request to assign label to version {e.version} of model {e.model},"
            " which is not currently available for inference"
        ),
    ),
    errors.ReloadFailed: Answer(Code.UNKNOWN, _reload_failed),
    errors.UnknownOutput: _WRONG_TENSORS,
    errors.InputCount: _WRONG_TENSORS,
    errors.UnknownInput: _WRONG_TENSORS,
    errors.BatchMissing: _WRONG_TENSORS,
    errors.BatchMismatch: _WRONG_TENSORS,
    errors.BatchTooLarge: Answer(
        Code.INVALID_ARGUMENT, lambda e: f"Task size {e.rows} is larger than maximum input batch size {e.limit}"
    ),
    errors.DtypeMismatch: _WRONG_TENSORS,
    errors.ShapeMismatch: _WRONG_TENSORS,
    errors.SequenceIdMissing: Answer(
        Code.INVALID_ARGUMENT,
        lambda e: f"Model {e.model} takes requests of sequences only, and this protocol cannot name a sequence",
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
    errors.QueueFull: Answer(
        Code.UNAVAILABLE,
        lambda e: (
            "The batch scheduling queue to which this task was submitted is full;"
            f" currently {e.limit} requests wait for model {e.model}"
        ),
    ),
    errors.QueueTimeout: Answer(
        Code.DEADLINE_EXCEEDED, lambda e: "Run() timeout exceeded while waiting in batching queue"
    ),
    errors.DeadlineExceeded: Answer(Code.DEADLINE_EXCEEDED, lambda e: "Timed out waiting for notification"),
    errors.ModelUnavailable: Answer(Code.UNAVAILABLE, lambda e: f"Model {e.model} is being unloaded"),
    errors.OutOfMemory: Answer(Code.RESOURCE_EXHAUSTED, lambda e: f"OOM when running model {e.model}"),
    errors.DeviceLost: Answer(Code.UNAVAILABLE, lambda e: f"Model {e.model} has lost its device, the server restarts"),
    errors.ModelFailed: Answer(Code.INTERNAL, _finished),
    errors.OutputRows: Answer(Code.FAILED_PRECONDITION, _output_rows),
    errors.Unknown: Answer(Code.UNKNOWN, _finished),
    errors.Unavailable: Answer(Code.UNAVAILABLE, _finished),
    errors.Exhausted: Answer(Code.RESOURCE_EXHAUSTED, _finished),
    errors.TimedOut: Answer(Code.DEADLINE_EXCEEDED, _finished),
    errors.PreconditionFailed: Answer(Code.FAILED_PRECONDITION, _finished),
    errors.AlreadyExists: Answer(Code.ALREADY_EXISTS, _finished),
    errors.Cancelled: Answer(Code.CANCELLED, _finished),
    errors.EncodingFailed: Answer(Code.INVALID_ARGUMENT, _finished),
    errors.Internal: Answer(Code.INTERNAL, lambda e: "Internal error"),
}
"""Kind -> answer, over both transports."""


def answer_of(error: GatewayError) -> Answer:
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


def _error_reply(answer: Answer, text: str) -> Reply:
    status = answer.http_status or HTTP_STATUSES[answer.code]
    body = utf8(f'{{\n    "error": {quote(text)}\n}}')
    headers = _RETRY_HEADERS if status == 503 else JSON_HEADERS
    return Reply(body, status, headers, answer.code, text)


def encode_empty_error(error: GatewayError, call: Call) -> Reply:
    """The status alone: on HEAD, and for a version beyond int64 (a quirk of the original's)."""
    answer = answer_of(error)
    return Reply(b"", answer.http_status or HTTP_STATUSES[answer.code], JSON_HEADERS, answer.code)


def encode_preflight_error(error: GatewayError, call: Call) -> Reply:
    """The same on OPTIONS, which says nothing of JSON."""
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

"""Every kind of failure in grps' words: the code of the envelope, which is also the HTTP status, gRPC's code, the text.

Over gRPC an application's failure is an OK call whose message says FAILURE; only what never became a message fails the
call itself. Texts are the final sentence that clients of the old servers look for, without their traceback.
Source: grps v1.1.0, what the Python server answers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from tensorgate.adapters.failures import MEMORY_KINDS, OWN_TEXT, Wording, nearest, table
from tensorgate.adapters.grps.printing import BYTES_TYPE, JSON, envelope
from tensorgate.adapters.grps.tensors import dtype_name
from tensorgate.gateway.contract import errors as kind
from tensorgate.gateway.contract.call import Call, Reply
from tensorgate.gateway.contract.errors import Code, GatewayError


class BadRequest(kind.InvalidArgument):
    """An objection that the contract gives code 400, not the 500 of everything inside the body."""


class Undecodable(kind.InvalidArgument):
    """The bytes of a gRPC message are none: the call fails, for there is no message to answer."""


class UnsupportedMediaType(BadRequest):
    """The metadata endpoint's own answer to another content type."""


def _malformed(error: kind.MalformedJson) -> str:
    where = "" if error.offset is None else f" At offset {error.offset}."
    return f"Parse json failed. {error.reason.rstrip('.')}.{where}"


def _model_not_found(error: kind.ModelNotFound) -> str:
    name = error.name if error.version is None else f"{error.name}-{error.version}"
    return f"Model {name} not found." if name else "No default model."


def _dtype_mismatch(error: kind.DtypeMismatch) -> str:
    want, got = dtype_name(error.want), dtype_name(error.got)
    return f"Tensor {error.input} dtype not match, expected dtype: {want}, actual dtype: {got}."


def _shape_mismatch(error: kind.ShapeMismatch) -> str:
    want, got = list(error.want), list(error.got)
    return f"Tensor {error.input} shape not match, expected shape: {want}, actual shape: {got}."


def _load_failed(error: kind.LoadFailed) -> str:
    reasons = "; ".join(f"version {version}: {why}" for version, why in error.reasons.items())
    return f"Model {error.model} failed to load: {reasons}."


def _reload_failed(error: kind.ReloadFailed) -> str:
    reasons = "; ".join(f"{model} version {version}: {why.text}" for (model, version), why in error.reasons.items())
    return f"Models failed to load: {reasons}."


TABLE: Final = table(
    {
        (400, Code.OK): {BadRequest: OWN_TEXT},
        (400, Code.INTERNAL): {Undecodable: OWN_TEXT},
        (415, Code.OK): {UnsupportedMediaType: OWN_TEXT},
        (500, Code.OK): {
            kind.InvalidArgument: OWN_TEXT,
            kind.Unsupported: OWN_TEXT,
            kind.NotFound: OWN_TEXT,
            kind.MalformedJson: _malformed,
            kind.ModelNotFound: _model_not_found,
            kind.LabelNotFound: "Model {0.name} has no label {0.label}.",
            kind.SignatureNotFound: "Model {0.model} has no signature {0.signature}.",
            kind.ModelDecoupled: "Model {0.model} answers in a stream.",
            kind.NotOneAnswer: "Model {0.model} did not give exactly one answer.",
            kind.ModelControlOff: "Models are not loaded and unloaded by callers here.",
            kind.ModelNotStored: "Model {0.model} not found.",
            kind.LoadRefused: "Model {0.model} cannot be loaded: {0.reason}.",
            kind.LoadFailed: _load_failed,
            kind.PlatformRefused: "Model {0.model} cannot be loaded: unknown platform {0.platform}.",
            kind.LabelRefused: "Model {0.model} does not serve version {0.version}.",
            kind.ReloadFailed: _reload_failed,
            kind.UnknownOutput: "Model {0.model} has no output {0.output}.",
            kind.InputCount: OWN_TEXT,
            kind.UnknownInput: "Model {0.model} has no input {0.input}.",
            kind.BatchMissing: "Tensor {0.input} has no first dimension.",
            kind.BatchMismatch: "Tensor {0.input} differs from the others in its first dimension.",
            kind.BatchTooLarge: "Batch size {0.rows} of model {0.model} exceeds the maximum of {0.limit}.",
            kind.DtypeMismatch: _dtype_mismatch,
            kind.ShapeMismatch: _shape_mismatch,
            kind.SequenceIdMissing: "Model {0.model} takes requests of sequences only, which grps cannot name.",
            kind.SequenceNotStarted: OWN_TEXT,
            kind.SequenceBatch: OWN_TEXT,
            kind.SequenceIdMismatch: OWN_TEXT,
            kind.ClassesUnsupported: OWN_TEXT,
            kind.ClassesTooMany: OWN_TEXT,
            kind.ModelFailed: OWN_TEXT,
            kind.OutputRows: OWN_TEXT,
            kind.Unknown: OWN_TEXT,
            kind.PreconditionFailed: OWN_TEXT,
            kind.AlreadyExists: OWN_TEXT,
            kind.Cancelled: OWN_TEXT,
            kind.SequenceCancelled: OWN_TEXT,
            kind.EncodingFailed: OWN_TEXT,
            kind.Internal: "Internal error.",
            **dict.fromkeys(MEMORY_KINDS, "This protocol has no shared memory."),
        },
        (413, Code.RESOURCE_EXHAUSTED): {kind.BodyTooLarge: "The body exceeds {0.limit} bytes."},
        (404, Code.UNIMPLEMENTED): {kind.RouteNotFound: "Not Found"},
        (405, Code.UNIMPLEMENTED): {kind.MethodNotAllowed: "Method Not Allowed"},
        (403, Code.PERMISSION_DENIED): {
            kind.AdminRequired: "This API is restricted, expecting header {0.header}.",
            kind.Forbidden: lambda e: (
                f"Use of model {e.model} is not allowed." if e.model else "Administration is not allowed."
            ),
            kind.CrossOriginRefused: "This changes the server, which is not for pages of {0.origin}.",
        },
        (401, Code.UNAUTHENTICATED): {
            kind.Unauthenticated: lambda e: (
                "The credentials are not valid." if e.given else "Credentials are required."
            ),
        },
        (429, Code.RESOURCE_EXHAUSTED): {kind.RateLimited: "Too many {0.what}, retry after {0.retry_after} s."},
        (503, Code.OK): {
            kind.QueueFull: "Model {0.model} is busy{0.whose}.",
            kind.QueueTimeout: "Model {0.model} is busy, the wait timed out.",
            kind.WouldBeLate: "Model {0.model} is busy, the answer would be {0.wait_s:.3f} s late.",
            kind.ModelUnavailable: "Model {0.model} is unavailable.",
            kind.OutOfMemory: "Model {0.model} is out of memory.",
            kind.DeviceLost: "Model {0.model} has lost its device, the server restarts.",
            kind.Unavailable: OWN_TEXT,
            kind.Exhausted: OWN_TEXT,
        },
        (503, Code.DEADLINE_EXCEEDED): {
            kind.DeadlineExceeded: "Model {0.model} did not answer in time.",
            kind.TimedOut: OWN_TEXT,
        },
    }
)


METADATA_TABLE: Final[Mapping[type[GatewayError], Wording]] = {
    **TABLE,
    **table(
        {
            (400, Code.OK): {kind.MalformedJson: _malformed},
            (404, Code.OK): {kind.ModelNotFound: "Model not found."},
        }
    ),
}
"""What metadata/model answers: another framework's checks stand in front of it."""


BUSY: Final = 503
"""The status of what may succeed in a second."""
_WANTS_STREAM: Final = (kind.ModelDecoupled, kind.NotOneAnswer)
_KEEP_STATUS: Final = (
    kind.RouteNotFound,
    kind.Unauthenticated,
    kind.Forbidden,
    kind.CrossOriginRefused,
    kind.RateLimited,
)


def row_of(error: GatewayError, rows: Mapping[type[GatewayError], Wording] = TABLE) -> Wording:
    """The row of the error's kind, or of the nearest kind above it."""
    return nearest(error, rows)


def keeps_status(kind: type[GatewayError]) -> bool:
    """Whether a kind of failure has its own HTTP status even where all others answer with 200."""
    return issubclass(kind, _KEEP_STATUS)


def text_of(error: GatewayError, row: Wording, control: str) -> str:
    """What a caller of predict is told; `control` is how a stream is asked for where the call came in."""
    text = row.text(error)
    return f"{text[:-1]}: ask with {control}." if control and isinstance(error, _WANTS_STREAM) else text


def encode_error(
    error: GatewayError,
    call: Call,
    *,
    rows: Mapping[type[GatewayError], Wording] = TABLE,
    always_200: bool = False,
    control: str = "",
) -> Reply:
    """A failure -> its envelope. Routing errors keep their HTTP status: no grps server answers 200 to an address that
    does not exist. Those of the gate keep theirs, which proxies and clients act upon.
    """
    row = row_of(error, rows)
    text = text_of(error, row, control)
    status = 200 if always_200 and not keeps_status(type(error)) else row.http_status
    headers = {"Content-Type": JSON}
    if row.http_status == BUSY:
        headers["Retry-After"] = "1"
    if "allow" in call.args:
        headers["Allow"] = call.args["allow"]
    return Reply(envelope(row.http_status, text), status, headers, row.grpc_code, text)


def encode_unreadable(status: int, text: str) -> Reply:
    """What answers a message that is no HTTP."""
    return Reply(envelope(status, f"{text}."), status, {"Content-Type": JSON})


def encode_predict_error(
    error: GatewayError,
    call: Call,
    *,
    always_200: bool = False,
    stream_type: str = BYTES_TYPE,
    control: str = "",
) -> Reply:
    """A failure of predict. On a streaming call it is one more document of the stream, whose head is 200 by contract
    from the moment that the request's own head is accepted; that is noted then.
    """
    if not call.notes.get("stream"):
        return encode_error(error, call, always_200=always_200, control=control)
    row = row_of(error)
    text = row.text(error)
    return Reply(
        envelope(row.http_status, text, indent=2),
        200,
        {"Content-Type": stream_type},
        row.grpc_code,
        text,
        streamed=True,
    )

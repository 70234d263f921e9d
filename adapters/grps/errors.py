"""Every kind of failure in grps' words: the code of the envelope, which is also the HTTP status, gRPC's code, the text.

Over gRPC an application's failure is an OK call whose message says FAILURE; only what never became a message fails the
call itself. Texts are the final sentence that clients of the old servers look for, without their traceback.
Source: grps v1.1.0, what the Python server answers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

from tensorgate.adapters.grps.printing import BYTES_TYPE, JSON, envelope
from tensorgate.adapters.grps.tensors import dtype_name
from tensorgate.gateway.contract import errors as kind
from tensorgate.gateway.contract.call import Call, Reply
from tensorgate.gateway.contract.errors import Code, GatewayError


class BadRequest(kind.InvalidArgument):
    """An objection that the contract gives code 400, not the 500 of everything inside the body."""


class BadHead(BadRequest):
    """An objection to the request's head: it is made before any stream starts."""


class Undecodable(kind.InvalidArgument):
    """The bytes of a gRPC message are none: the call fails, for there is no message to answer."""


class UnsupportedMediaType(BadRequest):
    """The metadata endpoint's own answer to another content type."""


@dataclass(frozen=True, slots=True)
class Row:
    """`retry`: the same request may succeed in a second."""

    code: int
    grpc: Code
    text: Callable[[Any], str]
    retry: bool = False


def _text(error: Any) -> str:
    return str(error.text)


def _fixed(text: str) -> Callable[[Any], str]:
    return lambda error: text


def _malformed(error: kind.MalformedJson) -> str:
    where = "" if error.offset is None else f" At offset {error.offset}."
    return f"Parse json failed. {error.reason.rstrip('.')}.{where}"


def _model_not_found(error: kind.ModelNotFound) -> str:
    name = error.name if error.version is None else f"{error.name}-{error.version}"
    return f"Model {name} not found." if name else "No default model."


def _batch_too_large(error: kind.BatchTooLarge) -> str:
    return f"Batch size {error.rows} of model {error.model} exceeds the maximum of {error.limit}."


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


_NO_MEMORY: Final = Row(500, Code.OK, _fixed("This protocol has no shared memory."))

TABLE: Final[Mapping[type[GatewayError], Row]] = MappingProxyType(
    {
        BadRequest: Row(400, Code.OK, _text),
        Undecodable: Row(400, Code.INTERNAL, _text),
        UnsupportedMediaType: Row(415, Code.OK, _text),
        kind.InvalidArgument: Row(500, Code.OK, _text),
        kind.Unsupported: Row(500, Code.OK, _text),
        kind.NotFound: Row(500, Code.OK, _text),
        kind.MalformedJson: Row(500, Code.OK, _malformed),
        kind.BodyTooLarge: Row(413, Code.RESOURCE_EXHAUSTED, lambda e: f"The body exceeds {e.limit} bytes."),
        kind.RouteNotFound: Row(404, Code.UNIMPLEMENTED, _fixed("Not Found")),
        kind.MethodNotAllowed: Row(405, Code.UNIMPLEMENTED, _fixed("Method Not Allowed")),
        kind.ModelNotFound: Row(500, Code.OK, _model_not_found),
        kind.LabelNotFound: Row(500, Code.OK, lambda e: f"Model {e.name} has no label {e.label}."),
        kind.SignatureNotFound: Row(500, Code.OK, lambda e: f"Model {e.model} has no signature {e.signature}."),
        kind.ModelDecoupled: Row(500, Code.OK, lambda e: f"Model {e.model} answers in a stream."),
        kind.NotOneAnswer: Row(500, Code.OK, lambda e: f"Model {e.model} did not give exactly one answer."),
        kind.AdminRequired: Row(
            403, Code.PERMISSION_DENIED, lambda e: f"This API is restricted, expecting header {e.header}."
        ),
        kind.Unauthenticated: Row(
            401,
            Code.UNAUTHENTICATED,
            lambda e: "The credentials are not valid." if e.given else "Credentials are required.",
        ),
        kind.Forbidden: Row(
            403,
            Code.PERMISSION_DENIED,
            lambda e: f"Use of model {e.model} is not allowed." if e.model else "Administration is not allowed.",
        ),
        kind.CrossOriginRefused: Row(
            403, Code.PERMISSION_DENIED, lambda e: f"This changes the server, which is not for pages of {e.origin}."
        ),
        kind.RateLimited: Row(
            429, Code.RESOURCE_EXHAUSTED, lambda e: f"Too many {e.what}, retry after {e.retry_after} s."
        ),
        kind.ModelControlOff: Row(500, Code.OK, _fixed("Models are not loaded and unloaded by callers here.")),
        kind.ModelNotStored: Row(500, Code.OK, lambda e: f"Model {e.model} not found."),
        kind.LoadRefused: Row(500, Code.OK, lambda e: f"Model {e.model} cannot be loaded: {e.reason}."),
        kind.LoadFailed: Row(500, Code.OK, _load_failed),
        kind.PlatformRefused: Row(
            500, Code.OK, lambda e: f"Model {e.model} cannot be loaded: unknown platform {e.platform}."
        ),
        kind.LabelRefused: Row(500, Code.OK, lambda e: f"Model {e.model} does not serve version {e.version}."),
        kind.ReloadFailed: Row(500, Code.OK, _reload_failed),
        kind.UnknownOutput: Row(500, Code.OK, lambda e: f"Model {e.model} has no output {e.output}."),
        kind.InputCount: Row(500, Code.OK, _text),
        kind.UnknownInput: Row(500, Code.OK, lambda e: f"Model {e.model} has no input {e.input}."),
        kind.BatchMissing: Row(500, Code.OK, lambda e: f"Tensor {e.input} has no first dimension."),
        kind.BatchMismatch: Row(
            500, Code.OK, lambda e: f"Tensor {e.input} differs from the others in its first dimension."
        ),
        kind.BatchTooLarge: Row(500, Code.OK, _batch_too_large),
        kind.DtypeMismatch: Row(500, Code.OK, _dtype_mismatch),
        kind.ShapeMismatch: Row(500, Code.OK, _shape_mismatch),
        kind.SequenceIdMissing: Row(
            500, Code.OK, lambda e: f"Model {e.model} takes requests of sequences only, which grps cannot name."
        ),
        kind.SequenceNotStarted: Row(500, Code.OK, _text),
        kind.SequenceBatch: Row(500, Code.OK, _text),
        kind.SequenceIdMismatch: Row(500, Code.OK, _text),
        kind.ClassesUnsupported: Row(500, Code.OK, _text),
        kind.ClassesTooMany: Row(500, Code.OK, _text),
        kind.SharedMemoryDisabled: _NO_MEMORY,
        kind.RegionNotFound: _NO_MEMORY,
        kind.RegionExists: _NO_MEMORY,
        kind.RegionUnreachable: _NO_MEMORY,
        kind.RegionInvalid: _NO_MEMORY,
        kind.RegionKeyReserved: _NO_MEMORY,
        kind.RegionLimit: _NO_MEMORY,
        kind.CudaMemoryUnavailable: _NO_MEMORY,
        kind.RegionRange: _NO_MEMORY,
        kind.OutputTooLarge: _NO_MEMORY,
        kind.QueueFull: Row(503, Code.OK, lambda e: f"Model {e.model} is busy.", retry=True),
        kind.QueueTimeout: Row(503, Code.OK, lambda e: f"Model {e.model} is busy, the wait timed out.", retry=True),
        kind.DeadlineExceeded: Row(
            503, Code.DEADLINE_EXCEEDED, lambda e: f"Model {e.model} did not answer in time.", retry=True
        ),
        kind.ModelUnavailable: Row(503, Code.OK, lambda e: f"Model {e.model} is unavailable.", retry=True),
        kind.OutOfMemory: Row(503, Code.OK, lambda e: f"Model {e.model} is out of memory.", retry=True),
        kind.DeviceLost: Row(
            503, Code.OK, lambda e: f"Model {e.model} has lost its device, the server restarts.", retry=True
        ),
        kind.ModelFailed: Row(500, Code.OK, _text),
        kind.OutputRows: Row(500, Code.OK, _text),
        kind.Unknown: Row(500, Code.OK, _text),
        kind.Unavailable: Row(503, Code.OK, _text, retry=True),
        kind.Exhausted: Row(503, Code.OK, _text, retry=True),
        kind.TimedOut: Row(503, Code.DEADLINE_EXCEEDED, _text, retry=True),
        kind.PreconditionFailed: Row(500, Code.OK, _text),
        kind.AlreadyExists: Row(500, Code.OK, _text),
        kind.Cancelled: Row(500, Code.OK, _text),
        kind.EncodingFailed: Row(500, Code.OK, _text),
        kind.Internal: Row(500, Code.OK, _fixed("Internal error.")),
    }
)


METADATA_TABLE: Final[Mapping[type[GatewayError], Row]] = MappingProxyType(
    {
        **TABLE,
        kind.MalformedJson: Row(400, Code.OK, _malformed),
        kind.ModelNotFound: Row(404, Code.OK, _fixed("Model not found.")),
    }
)
"""What metadata/model answers: another framework's checks stand in front of it."""


_WANTS_STREAM: Final = (kind.ModelDecoupled, kind.NotOneAnswer)
_KEEP_STATUS: Final = (
    kind.RouteNotFound,
    kind.Unauthenticated,
    kind.Forbidden,
    kind.CrossOriginRefused,
    kind.RateLimited,
)


def row_of(error: GatewayError, table: Mapping[type[GatewayError], Row] = TABLE) -> Row:
    """The row of the error's kind, or of the nearest kind above it."""
    return next((table[each] for each in type(error).__mro__ if each in table), table[kind.Internal])


def text_of(error: GatewayError, row: Row, control: str) -> str:
    """What a caller of predict is told; `control` is how a stream is asked for where the call came in."""
    text = row.text(error)
    return f"{text[:-1]}: ask with {control}." if control and isinstance(error, _WANTS_STREAM) else text


def encode_error(
    error: GatewayError,
    call: Call,
    *,
    table: Mapping[type[GatewayError], Row] = TABLE,
    always_200: bool = False,
    control: str = "",
) -> Reply:
    """A failure -> its envelope. Routing errors keep their HTTP status: no grps server answers 200 to an address that
    does not exist. Those of the gate keep theirs, which proxies and clients act upon.
    """
    row = row_of(error, table)
    text = text_of(error, row, control)
    status = 200 if always_200 and not isinstance(error, _KEEP_STATUS) else row.code
    headers = {"Content-Type": JSON}
    if row.retry:
        headers["Retry-After"] = "1"
    if "allow" in call.args:
        headers["Allow"] = call.args["allow"]
    return Reply(envelope(row.code, text), status, headers, row.grpc, text)


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
    return Reply(envelope(row.code, text, indent=2), 200, {"Content-Type": stream_type}, row.grpc, text, streamed=True)

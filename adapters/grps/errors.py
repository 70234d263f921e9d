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
class GrpsFailure:
    """What one kind of failure is called; `words` is a format of the error, {0}, or makes the text; `retry`: the same
    request may succeed in a second.
    """

    code: int
    grpc: Code
    words: str | Callable[[Any], str]
    retry: bool = False

    def text(self, error: GatewayError) -> str:
        return self.words.format(error) if isinstance(self.words, str) else self.words(error)


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


_NO_MEMORY: Final = GrpsFailure(500, Code.OK, "This protocol has no shared memory.")

TABLE: Final[Mapping[type[GatewayError], GrpsFailure]] = MappingProxyType(
    {
        BadRequest: GrpsFailure(400, Code.OK, "{0.text}"),
        Undecodable: GrpsFailure(400, Code.INTERNAL, "{0.text}"),
        UnsupportedMediaType: GrpsFailure(415, Code.OK, "{0.text}"),
        kind.InvalidArgument: GrpsFailure(500, Code.OK, "{0.text}"),
        kind.Unsupported: GrpsFailure(500, Code.OK, "{0.text}"),
        kind.NotFound: GrpsFailure(500, Code.OK, "{0.text}"),
        kind.MalformedJson: GrpsFailure(500, Code.OK, _malformed),
        kind.BodyTooLarge: GrpsFailure(413, Code.RESOURCE_EXHAUSTED, "The body exceeds {0.limit} bytes."),
        kind.RouteNotFound: GrpsFailure(404, Code.UNIMPLEMENTED, "Not Found"),
        kind.MethodNotAllowed: GrpsFailure(405, Code.UNIMPLEMENTED, "Method Not Allowed"),
        kind.ModelNotFound: GrpsFailure(500, Code.OK, _model_not_found),
        kind.LabelNotFound: GrpsFailure(500, Code.OK, "Model {0.name} has no label {0.label}."),
        kind.SignatureNotFound: GrpsFailure(500, Code.OK, "Model {0.model} has no signature {0.signature}."),
        kind.ModelDecoupled: GrpsFailure(500, Code.OK, "Model {0.model} answers in a stream."),
        kind.NotOneAnswer: GrpsFailure(500, Code.OK, "Model {0.model} did not give exactly one answer."),
        kind.AdminRequired: GrpsFailure(
            403, Code.PERMISSION_DENIED, "This API is restricted, expecting header {0.header}."
        ),
        kind.Unauthenticated: GrpsFailure(
            401,
            Code.UNAUTHENTICATED,
            lambda e: "The credentials are not valid." if e.given else "Credentials are required.",
        ),
        kind.Forbidden: GrpsFailure(
            403,
            Code.PERMISSION_DENIED,
            lambda e: f"Use of model {e.model} is not allowed." if e.model else "Administration is not allowed.",
        ),
        kind.CrossOriginRefused: GrpsFailure(
            403, Code.PERMISSION_DENIED, "This changes the server, which is not for pages of {0.origin}."
        ),
        kind.RateLimited: GrpsFailure(
            429, Code.RESOURCE_EXHAUSTED, "Too many {0.what}, retry after {0.retry_after} s."
        ),
        kind.ModelControlOff: GrpsFailure(500, Code.OK, "Models are not loaded and unloaded by callers here."),
        kind.ModelNotStored: GrpsFailure(500, Code.OK, "Model {0.model} not found."),
        kind.LoadRefused: GrpsFailure(500, Code.OK, "Model {0.model} cannot be loaded: {0.reason}."),
        kind.LoadFailed: GrpsFailure(500, Code.OK, _load_failed),
        kind.PlatformRefused: GrpsFailure(
            500, Code.OK, "Model {0.model} cannot be loaded: unknown platform {0.platform}."
        ),
        kind.LabelRefused: GrpsFailure(500, Code.OK, "Model {0.model} does not serve version {0.version}."),
        kind.ReloadFailed: GrpsFailure(500, Code.OK, _reload_failed),
        kind.UnknownOutput: GrpsFailure(500, Code.OK, "Model {0.model} has no output {0.output}."),
        kind.InputCount: GrpsFailure(500, Code.OK, "{0.text}"),
        kind.UnknownInput: GrpsFailure(500, Code.OK, "Model {0.model} has no input {0.input}."),
        kind.BatchMissing: GrpsFailure(500, Code.OK, "Tensor {0.input} has no first dimension."),
        kind.BatchMismatch: GrpsFailure(
            500, Code.OK, "Tensor {0.input} differs from the others in its first dimension."
        ),
        kind.BatchTooLarge: GrpsFailure(500, Code.OK, _batch_too_large),
        kind.DtypeMismatch: GrpsFailure(500, Code.OK, _dtype_mismatch),
        kind.ShapeMismatch: GrpsFailure(500, Code.OK, _shape_mismatch),
        kind.SequenceIdMissing: GrpsFailure(
            500, Code.OK, "Model {0.model} takes requests of sequences only, which grps cannot name."
        ),
        kind.SequenceNotStarted: GrpsFailure(500, Code.OK, "{0.text}"),
        kind.SequenceBatch: GrpsFailure(500, Code.OK, "{0.text}"),
        kind.SequenceIdMismatch: GrpsFailure(500, Code.OK, "{0.text}"),
        kind.ClassesUnsupported: GrpsFailure(500, Code.OK, "{0.text}"),
        kind.ClassesTooMany: GrpsFailure(500, Code.OK, "{0.text}"),
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
        kind.QueueFull: GrpsFailure(503, Code.OK, "Model {0.model} is busy.", retry=True),
        kind.QueueTimeout: GrpsFailure(503, Code.OK, "Model {0.model} is busy, the wait timed out.", retry=True),
        kind.DeadlineExceeded: GrpsFailure(
            503, Code.DEADLINE_EXCEEDED, "Model {0.model} did not answer in time.", retry=True
        ),
        kind.ModelUnavailable: GrpsFailure(503, Code.OK, "Model {0.model} is unavailable.", retry=True),
        kind.OutOfMemory: GrpsFailure(503, Code.OK, "Model {0.model} is out of memory.", retry=True),
        kind.DeviceLost: GrpsFailure(
            503, Code.OK, "Model {0.model} has lost its device, the server restarts.", retry=True
        ),
        kind.ModelFailed: GrpsFailure(500, Code.OK, "{0.text}"),
        kind.OutputRows: GrpsFailure(500, Code.OK, "{0.text}"),
        kind.Unknown: GrpsFailure(500, Code.OK, "{0.text}"),
        kind.Unavailable: GrpsFailure(503, Code.OK, "{0.text}", retry=True),
        kind.Exhausted: GrpsFailure(503, Code.OK, "{0.text}", retry=True),
        kind.TimedOut: GrpsFailure(503, Code.DEADLINE_EXCEEDED, "{0.text}", retry=True),
        kind.PreconditionFailed: GrpsFailure(500, Code.OK, "{0.text}"),
        kind.AlreadyExists: GrpsFailure(500, Code.OK, "{0.text}"),
        kind.Cancelled: GrpsFailure(500, Code.OK, "{0.text}"),
        kind.EncodingFailed: GrpsFailure(500, Code.OK, "{0.text}"),
        kind.Internal: GrpsFailure(500, Code.OK, "Internal error."),
    }
)


METADATA_TABLE: Final[Mapping[type[GatewayError], GrpsFailure]] = MappingProxyType(
    {
        **TABLE,
        kind.MalformedJson: GrpsFailure(400, Code.OK, _malformed),
        kind.ModelNotFound: GrpsFailure(404, Code.OK, "Model not found."),
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


def row_of(error: GatewayError, table: Mapping[type[GatewayError], GrpsFailure] = TABLE) -> GrpsFailure:
    """The row of the error's kind, or of the nearest kind above it."""
    return next((table[each] for each in type(error).__mro__ if each in table), table[kind.Internal])


def text_of(error: GatewayError, row: GrpsFailure, control: str) -> str:
    """What a caller of predict is told; `control` is how a stream is asked for where the call came in."""
    text = row.text(error)
    return f"{text[:-1]}: ask with {control}." if control and isinstance(error, _WANTS_STREAM) else text


def encode_error(
    error: GatewayError,
    call: Call,
    *,
    table: Mapping[type[GatewayError], GrpsFailure] = TABLE,
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

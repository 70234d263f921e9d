"""What every kind of failure is in Open Inference V2: HTTP status, gRPC code, text; one row each, for both transports.

Clients match on these texts, so they are Triton's to the letter where Triton has one. Some carry the prefix
`[request id: X] `: the id is in the call's notes once decode has read it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import orjson

from tensorgate.gateway.contract import errors
from tensorgate.gateway.contract.call import Call, Reply
from tensorgate.gateway.contract.errors import Code, GatewayError

JSON_HEADERS: Final = MappingProxyType({"Content-Type": "application/json"})
"""Of every JSON body, right or wrong: KServe's client shows an error only under exactly this type."""

_RETRY: Final = MappingProxyType({**JSON_HEADERS, "Retry-After": "1"})
_CODINGS: Final = MappingProxyType({**JSON_HEADERS, "Accept-Encoding": "gzip, deflate"})


class UnsupportedCoding(errors.Unsupported):
    """The body is compressed in a way that this server does not know."""

    def __init__(self) -> None:
        super().__init__("Unsupported compression type")


class V2Failure(NamedTuple):
    """A row of the table. `text` is a format of the error, {0}, or makes it; `prefixed` texts name the request."""

    http_status: int
    grpc_code: Code
    text: str | Callable[[Any, Call], str]
    prefixed: bool = False
    headers: Mapping[str, str] = JSON_HEADERS


def with_id(call: Call, text: str) -> str:
    return f"[request id: {call.notes.get('id') or '<id_unknown>'}] {text}"


def encode_error(error: GatewayError, call: Call) -> Reply:
    """Any failure -> its reply; a kind that has no row is a fault of ours."""
    answer = ANSWERS.get(type(error)) or ANSWERS[errors.Internal]
    text = answer.text.format(error) if isinstance(answer.text, str) else answer.text(error, call)
    if answer.prefixed:
        text = with_id(call, text)
    if not text.isascii():  # a header or a model may have put bytes into it that are no text
        text = text.encode("utf-8", "replace").decode()
    body = orjson.dumps({"error": text})
    return Reply(body, answer.http_status, answer.headers, answer.grpc_code, text)


# --------------------------------------------------------------------------------------------------------------- texts


def _malformed(error: errors.MalformedJson, call: Call) -> str:
    at = "" if error.offset is None else f" at {error.offset}"
    return f"failed to parse the request JSON buffer: {error.reason}{at}"


def _model_not_found(error: errors.ModelNotFound, call: Call) -> str:
    request = f"Request for unknown model: '{error.name}'"
    if error.version is not None:
        return f"{request} version {error.version} is not found"
    return f"{request} has no available versions" if error.known else f"{request} is not found"


def _decoupled(error: errors.ModelDecoupled, call: Call) -> str:
    speaker = "HTTP end point" if call.transport == "http" else "ModelInfer RPC"
    return f"{speaker} doesn't support models with decoupled transaction policy"


def _input_count(error: errors.InputCount, call: Call) -> str:
    """Triton goes through the inputs from the last one, and closes a list of nothing that it did not open."""
    missing = _names(error.missing) if error.missing else "]"
    least, most = error.min_inputs, error.max_inputs
    expected = f"{most} inputs" if least == most else f"number of inputs between {least} and {most}"
    return (
        f"expected {expected} but got {len(error.got)} inputs for model '{error.model}'. "
        f"Got input(s) {_names(error.got[::-1])}, but missing required input(s) {missing}. "
        "Please provide all required input(s)."
    )


def _names(names: tuple[str, ...]) -> str:
    return "[" + ",".join(f"'{name}'" for name in names) + "]"


_BATCH_NOTE: Final = (
    "NOTE: Setting a non-zero max_batch_size in the model config requires a batch dimension to be prepended to each "
    "input shape. If you want to specify the full shape including the batch dim in your input dims config, try setting "
    "max_batch_size to zero. See the model configuration docs for more info on max_batch_size."
)


def shape_text(shape: tuple[int, ...]) -> str:
    """(-1, 16) -> '[-1,16]'"""
    return "[" + ",".join(map(str, shape)) + "]"


def _admin_required(error: errors.AdminRequired, call: Call) -> str:
    what = "API" if call.transport == "http" else "protocol"
    return f"This {what} is restricted, expecting header '{error.header}'"


def _load_failed(error: errors.LoadFailed, call: Call) -> str:
    states = (f"version {version} is at UNAVAILABLE state: {why};" for version, why in error.reasons.items())
    return f"load failed for model '{error.model}': {' '.join(states)}"


def _reload_failed(error: errors.ReloadFailed, call: Call) -> str:
    states = (f"'{model}' version {version}: {why.text};" for (model, version), why in error.reasons.items())
    return f"load failed for models {' '.join(states)}"


def _region_not_found(error: errors.RegionNotFound, call: Call) -> str:
    kind = f"{error.kind} " if error.kind else ""
    return f"Unable to find {kind}shared memory region: '{error.name}'"


ANSWERS: Final[Mapping[type[GatewayError], V2Failure]] = MappingProxyType(
    {
        errors.InvalidArgument: V2Failure(400, Code.INVALID_ARGUMENT, "{0.text}"),
        errors.Unsupported: V2Failure(501, Code.UNIMPLEMENTED, "{0.text}"),
        UnsupportedCoding: V2Failure(501, Code.UNIMPLEMENTED, "{0.text}", headers=_CODINGS),
        errors.NotFound: V2Failure(404, Code.NOT_FOUND, "{0.text}"),
        errors.MalformedJson: V2Failure(400, Code.INVALID_ARGUMENT, _malformed),
        errors.BodyTooLarge: V2Failure(
            400,
            Code.RESOURCE_EXHAUSTED,
            "Request body has a byte_size that exceeds the maximum allowed value of {0.limit} bytes.",
        ),
        errors.RouteNotFound: V2Failure(404, Code.UNIMPLEMENTED, "Not Found"),
        errors.MethodNotAllowed: V2Failure(405, Code.UNIMPLEMENTED, "Method Not Allowed"),
        errors.ModelNotFound: V2Failure(404, Code.NOT_FOUND, _model_not_found),
        errors.LabelNotFound: V2Failure(
            404, Code.NOT_FOUND, "Request for unknown model: '{0.name}' label '{0.label}' is not found"
        ),
        errors.SignatureNotFound: V2Failure(
            400, Code.INVALID_ARGUMENT, "model '{0.model}' has no signature '{0.signature}'"
        ),
        errors.ModelDecoupled: V2Failure(501, Code.UNIMPLEMENTED, _decoupled),
        errors.NotOneAnswer: V2Failure(
            400,
            Code.INVALID_ARGUMENT,
            "generate expects model to produce exactly 1 response, use generate stream for model that generates "
            "various number of responses",
        ),
        errors.AdminRequired: V2Failure(403, Code.UNAVAILABLE, _admin_required),
        errors.Unauthenticated: V2Failure(
            401,
            Code.UNAUTHENTICATED,
            lambda e, call: "the credentials are not valid" if e.given else "credentials are required",
        ),
        errors.Forbidden: V2Failure(
            403,
            Code.PERMISSION_DENIED,
            lambda e, call: f"use of model '{e.model}' is not allowed" if e.model else "administration is not allowed",
        ),
        errors.CrossOriginRefused: V2Failure(
            403,
            Code.PERMISSION_DENIED,
            "this changes the server's state, which is not for pages of {0.origin} (see cors)",
        ),
        errors.RateLimited: V2Failure(429, Code.RESOURCE_EXHAUSTED, "too many {0.what}, retry after {0.retry_after} s"),
        errors.ModelControlOff: V2Failure(
            503, Code.UNAVAILABLE, "explicit model load / unload is not allowed if polling is enabled"
        ),
        errors.ModelNotStored: V2Failure(
            500, Code.INTERNAL, "failed to load '{0.model}', failed to poll from model repository"
        ),
        errors.LoadRefused: V2Failure(400, Code.INVALID_ARGUMENT, "failed to load '{0.model}', {0.reason}"),
        errors.LoadFailed: V2Failure(400, Code.INVALID_ARGUMENT, _load_failed),
        errors.PlatformRefused: V2Failure(
            400, Code.INVALID_ARGUMENT, "failed to load '{0.model}', unexpected platform type '{0.platform}'"
        ),
        errors.LabelRefused: V2Failure(
            400,
            Code.FAILED_PRECONDITION,
            "version {0.version} of model '{0.model}' is not ready, and can have no label",
        ),
        errors.ReloadFailed: V2Failure(500, Code.UNKNOWN, _reload_failed),
        errors.UnknownOutput: V2Failure(
            400, Code.INVALID_ARGUMENT, "unexpected inference output '{0.output}' for model '{0.model}'"
        ),
        errors.InputCount: V2Failure(400, Code.INVALID_ARGUMENT, _input_count, prefixed=True),
        errors.UnknownInput: V2Failure(
            400, Code.INVALID_ARGUMENT, "unexpected inference input '{0.input}' for model '{0.model}'"
        ),
        errors.BatchMissing: V2Failure(
            400,
            Code.INVALID_ARGUMENT,
            "input '{0.input}' has no shape but model requires batch dimension for '{0.model}'",
            prefixed=True,
        ),
        errors.BatchMismatch: V2Failure(
            400,
            Code.INVALID_ARGUMENT,
            "input '{0.input}' batch size does not match other inputs for '{0.model}'",
            prefixed=True,
        ),
        errors.BatchTooLarge: V2Failure(
            400,
            Code.INVALID_ARGUMENT,
            "inference request batch-size must be <= {0.limit} for '{0.model}'",
            prefixed=True,
        ),
        errors.DtypeMismatch: V2Failure(
            400,
            Code.INVALID_ARGUMENT,
            "inference input '{0.input}' data-type is '{0.got}', but model '{0.model}' expects '{0.want}'",
            prefixed=True,
        ),
        errors.ShapeMismatch: V2Failure(
            400,
            Code.INVALID_ARGUMENT,
            lambda e, call: (
                f"unexpected shape for input '{e.input}' for model '{e.model}'. "
                f"Expected {shape_text(e.want)}, got {shape_text(e.got)}. {_BATCH_NOTE if e.batched else ''}"
            ),
            prefixed=True,
        ),
        errors.SequenceIdMissing: V2Failure(
            400,
            Code.INVALID_ARGUMENT,
            "inference request to model '{0.model}' must specify a non-zero or non-empty correlation ID",
        ),
        errors.SequenceNotStarted: V2Failure(
            400,
            Code.INVALID_ARGUMENT,
            "inference request for sequence {0.sequence} to model '{0.model}' must specify the START flag on the "
            "first request of the sequence",
        ),
        errors.SequenceBatch: V2Failure(
            400,
            Code.INVALID_ARGUMENT,
            "inference request to model '{0.model}' must specify batch-size 1 due to requirements of sequence batcher",
        ),
        errors.SequenceIdMismatch: V2Failure(
            400,
            Code.INVALID_ARGUMENT,
            "correlation ID {0.sequence} does not fit model '{0.model}', which expects '{0.datatype}'",
        ),
        errors.ClassesUnsupported: V2Failure(
            400, Code.INVALID_ARGUMENT, "class result not available for output due to unsupported type '{0.datatype}'"
        ),
        errors.ClassesTooMany: V2Failure(400, Code.INVALID_ARGUMENT, "classification output tensor too large"),
        errors.SharedMemoryDisabled: V2Failure(
            501,
            Code.UNIMPLEMENTED,
            "Client shared memory is disabled. Start the server with '--allow-client-shm=true' to enable.",
        ),
        errors.RegionNotFound: V2Failure(404, Code.NOT_FOUND, _region_not_found),
        errors.RegionExists: V2Failure(400, Code.ALREADY_EXISTS, "shared memory region '{0.name}' already in manager"),
        errors.RegionUnreachable: V2Failure(500, Code.INTERNAL, "Unable to open shared memory region: '{0.key}'"),
        errors.RegionInvalid: V2Failure(500, Code.INTERNAL, "Invalid shared memory region: '{0.key}'"),
        errors.RegionKeyReserved: V2Failure(
            400,
            Code.INVALID_ARGUMENT,
            "cannot register shared memory region '{0.name}' with key '{0.key}' as the key contains the reserved "
            "prefix '{0.prefix}'",
        ),
        errors.RegionLimit: V2Failure(
            503, Code.UNAVAILABLE, "no more than {0.limit} shared memory regions can be registered"
        ),
        errors.CudaMemoryUnavailable: V2Failure(
            400, Code.INVALID_ARGUMENT, "failed to register CUDA shared memory region: '{0.name}', GPUs not supported"
        ),
        errors.RegionRange: V2Failure(
            400, Code.INVALID_ARGUMENT, "Invalid offset + byte size for shared memory region: '{0.name}'"
        ),
        errors.OutputTooLarge: V2Failure(
            500,
            Code.INTERNAL,
            "shared memory size specified with the request for output '{0.output}' ({0.given} bytes) should be at "
            "least {0.needed} bytes to hold the results",
        ),
        errors.QueueFull: V2Failure(503, Code.UNAVAILABLE, "Exceeds maximum queue size", prefixed=True, headers=_RETRY),
        errors.QueueTimeout: V2Failure(503, Code.UNAVAILABLE, "Request timeout expired", headers=_RETRY),
        errors.DeadlineExceeded: V2Failure(504, Code.DEADLINE_EXCEEDED, "Deadline Exceeded"),
        errors.ModelUnavailable: V2Failure(
            503, Code.UNAVAILABLE, "model '{0.model}' has stopped accepting requests", headers=_RETRY
        ),
        errors.OutOfMemory: V2Failure(
            503,
            Code.RESOURCE_EXHAUSTED,
            "failed to allocate memory for the request to model '{0.model}'",
            headers=_RETRY,
        ),
        errors.DeviceLost: V2Failure(
            503, Code.UNAVAILABLE, "model '{0.model}' has lost its device, the server restarts", headers=_RETRY
        ),
        errors.ModelFailed: V2Failure(500, Code.INTERNAL, "{0.text}"),
        errors.OutputRows: V2Failure(500, Code.INTERNAL, "{0.text}"),
        errors.Unknown: V2Failure(400, Code.UNKNOWN, "{0.text}"),
        errors.Unavailable: V2Failure(503, Code.UNAVAILABLE, "{0.text}", headers=_RETRY),
        errors.Exhausted: V2Failure(429, Code.RESOURCE_EXHAUSTED, "{0.text}", headers=_RETRY),
        errors.TimedOut: V2Failure(504, Code.DEADLINE_EXCEEDED, "{0.text}"),
        errors.PreconditionFailed: V2Failure(400, Code.FAILED_PRECONDITION, "{0.text}"),
        errors.AlreadyExists: V2Failure(400, Code.ALREADY_EXISTS, "{0.text}"),
        errors.Cancelled: V2Failure(400, Code.CANCELLED, "{0.text}"),
        errors.EncodingFailed: V2Failure(400, Code.INVALID_ARGUMENT, "{0.text}"),
        errors.Internal: V2Failure(500, Code.INTERNAL, "internal error"),
    }
)

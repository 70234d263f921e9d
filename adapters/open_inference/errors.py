"""What every kind of failure is in Open Inference V2: HTTP status, gRPC code, text; one row each, for both transports.

Clients match on these texts, so they are Triton's to the letter where Triton has one. Some carry the prefix
`[request id: X] `: the id is in the call's notes once decode has read it.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

import orjson

from tensorgate.adapters.failures import OWN_TEXT, table
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


def with_id(call: Call, text: str) -> str:
    return f"[request id: {call.notes.get('id') or '<id_unknown>'}] {text}"


def encode_error(error: GatewayError, call: Call) -> Reply:
    """Any failure -> its reply; a kind that has no row is a fault of ours."""
    kind = type(error) if type(error) in ANSWERS else errors.Internal
    answer = ANSWERS[kind]
    text = answer.text(error, call)
    if kind in _PREFIXED:
        text = with_id(call, text)
    if not text.isascii():  # a header or a model may have put bytes into it that are no text
        text = text.encode("utf-8", "replace").decode()
    body = orjson.dumps({"error": text})
    return Reply(body, answer.http_status, _HEADERS.get(kind, JSON_HEADERS), answer.grpc_code, text)


# --------------------------------------------------------------------------------------------------------------- texts


def _malformed(error: errors.MalformedJson, call: Call) -> str:
    if error.max_depth is not None:
        return f"JSON nesting depth exceeds maximum allowed limit ({error.max_depth})"
    at = "" if error.offset is None else f" at {error.offset}"
    return f"failed to parse the request JSON buffer: {error.reason}{at}"


def _model_not_found(error: errors.ModelNotFound, call: Call) -> str:
    request = f"Request for unknown model: '{error.name}'"
    if error.version is not None and (error.known or error.serves):
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


ANSWERS: Final = table(
    {
        (400, Code.INVALID_ARGUMENT): {
            errors.InvalidArgument: OWN_TEXT,
            errors.MalformedJson: _malformed,
            errors.SignatureNotFound: "model '{0.model}' has no signature '{0.signature}'",
            errors.NotOneAnswer: (
                "generate expects model to produce exactly 1 response, use generate stream for model that generates "
                "various number of responses"
            ),
            errors.LoadRefused: "failed to load '{0.model}', {0.reason}",
            errors.LoadFailed: _load_failed,
            errors.PlatformRefused: "failed to load '{0.model}', unexpected platform type '{0.platform}'",
            errors.UnknownOutput: "unexpected inference output '{0.output}' for model '{0.model}'",
            errors.InputCount: _input_count,
            errors.UnknownInput: "unexpected inference input '{0.input}' for model '{0.model}'",
            errors.BatchMissing: "input '{0.input}' has no shape but model requires batch dimension for '{0.model}'",
            errors.BatchMismatch: "input '{0.input}' batch size does not match other inputs for '{0.model}'",
            errors.BatchTooLarge: "inference request batch-size must be <= {0.limit} for '{0.model}'",
            errors.DtypeMismatch: (
                "inference input '{0.input}' data-type is '{0.got}', but model '{0.model}' expects '{0.want}'"
            ),
            errors.ShapeMismatch: lambda e, call: (
                f"unexpected shape for input '{e.input}' for model '{e.model}'. "
                f"Expected {shape_text(e.want)}, got {shape_text(e.got)}. {_BATCH_NOTE if e.batched else ''}"
            ),
            errors.SequenceIdMissing: (
                "inference request to model '{0.model}' must specify a non-zero or non-empty correlation ID"
            ),
            errors.SequenceNotStarted: (
                "inference request for sequence {0.sequence} to model '{0.model}' must specify the START flag on the "
                "first request of the sequence"
            ),
            errors.SequenceBatch: (
                "inference request to model '{0.model}' must specify batch-size 1 due to requirements of sequence "
                "batcher"
            ),
            errors.SequenceIdMismatch: (
                "correlation ID {0.sequence} does not fit model '{0.model}', which expects '{0.datatype}'"
            ),
            errors.ClassesUnsupported: "class result not available for output due to unsupported type '{0.datatype}'",
            errors.ClassesTooMany: "classification output tensor too large",
            errors.RegionKeyReserved: (
                "cannot register shared memory region '{0.name}' with key '{0.key}' as the key contains the reserved "
                "prefix '{0.prefix}'"
            ),
            errors.CudaMemoryUnavailable: (
                "failed to register CUDA shared memory region: '{0.name}', GPUs not supported"
            ),
            errors.RegionRange: lambda e, call: (
                f"Invalid offset{'' if e.starts_outside else ' + byte size'} for shared memory region: '{e.name}'"
            ),
            errors.RegionOutOfBounds: "failed to register shared memory region '{0.name}': invalid args",
            errors.EncodingFailed: OWN_TEXT,
        },
        (501, Code.UNIMPLEMENTED): {
            errors.Unsupported: OWN_TEXT,
            UnsupportedCoding: OWN_TEXT,
            errors.ModelDecoupled: _decoupled,
            errors.SharedMemoryDisabled: (
                "Client shared memory is disabled. Start the server with '--allow-client-shm=true' to enable."
            ),
        },
        (404, Code.NOT_FOUND): {
            errors.NotFound: OWN_TEXT,
            errors.ModelNotFound: _model_not_found,
            errors.LabelNotFound: "Request for unknown model: '{0.name}' label '{0.label}' is not found",
            errors.RegionNotFound: _region_not_found,
        },
        (400, Code.RESOURCE_EXHAUSTED): {
            errors.BodyTooLarge: (
                "Request body has a byte_size that exceeds the maximum allowed value of {0.limit} bytes."
            ),
        },
        (404, Code.UNIMPLEMENTED): {errors.RouteNotFound: "Not Found"},
        (405, Code.UNIMPLEMENTED): {errors.MethodNotAllowed: "Method Not Allowed"},
        (403, Code.UNAVAILABLE): {errors.AdminRequired: _admin_required},
        (401, Code.UNAUTHENTICATED): {
            errors.Unauthenticated: lambda e, call: (
                "the credentials are not valid" if e.given else "credentials are required"
            ),
        },
        (403, Code.PERMISSION_DENIED): {
            errors.Forbidden: lambda e, call: (
                f"use of model '{e.model}' is not allowed" if e.model else "administration is not allowed"
            ),
            errors.CrossOriginRefused: (
                "this changes the server's state, which is not for pages of {0.origin} (see cors)"
            ),
        },
        (429, Code.RESOURCE_EXHAUSTED): {
            errors.RateLimited: "too many {0.what}, retry after {0.retry_after} s",
            errors.Exhausted: OWN_TEXT,
        },
        (503, Code.UNAVAILABLE): {
            errors.ModelControlOff: "explicit model load / unload is not allowed if polling is enabled",
            errors.RegionLimit: "no more than {0.limit} shared memory regions can be registered",
            errors.QueueFull: "Exceeds maximum queue size{0.whose}",
            errors.QueueTimeout: "Request timeout expired",
            errors.WouldBeLate: "model '{0.model}' is overloaded: the answer would be {0.wait_s:.3f} s late",
            errors.ModelUnavailable: "model '{0.model}' has stopped accepting requests",
            errors.DeviceLost: "model '{0.model}' has lost its device, the server restarts",
            errors.Unavailable: OWN_TEXT,
        },
        (500, Code.INTERNAL): {
            errors.ModelNotStored: "failed to load '{0.model}', failed to poll from model repository",
            errors.RegionUnreachable: "Unable to open shared memory region: '{0.key}'",
            errors.RegionInvalid: "Invalid shared memory region: '{0.key}'",
            errors.OutputTooLarge: (
                "shared memory size specified with the request for output '{0.output}' ({0.given} bytes) should be at"
                " least {0.needed} bytes to hold the results"
            ),
            errors.ModelFailed: OWN_TEXT,
            errors.OutputRows: OWN_TEXT,
            errors.Internal: "internal error",
        },
        (400, Code.FAILED_PRECONDITION): {
            errors.LabelRefused: "version {0.version} of model '{0.model}' is not ready, and can have no label",
            errors.PreconditionFailed: OWN_TEXT,
        },
        (500, Code.UNKNOWN): {errors.ReloadFailed: _reload_failed},
        (400, Code.ALREADY_EXISTS): {
            errors.RegionExists: "shared memory region '{0.name}' already in manager",
            errors.AlreadyExists: OWN_TEXT,
        },
        (504, Code.DEADLINE_EXCEEDED): {
            errors.DeadlineExceeded: "Deadline Exceeded",
            errors.TimedOut: OWN_TEXT,
        },
        (503, Code.RESOURCE_EXHAUSTED): {
            errors.OutOfMemory: "failed to allocate memory for the request to model '{0.model}'",
        },
        (400, Code.UNKNOWN): {errors.Unknown: OWN_TEXT},
        (400, Code.CANCELLED): {errors.Cancelled: OWN_TEXT, errors.SequenceCancelled: OWN_TEXT},
    }
)
_PREFIXED: Final = frozenset(
    {
        errors.InputCount,
        errors.BatchMissing,
        errors.BatchMismatch,
        errors.BatchTooLarge,
        errors.DtypeMismatch,
        errors.ShapeMismatch,
        errors.QueueFull,
    }
)
"""Kinds whose texts name the request."""
_HEADERS: Final[Mapping[type[GatewayError], Mapping[str, str]]] = {
    UnsupportedCoding: _CODINGS,
    **dict.fromkeys(
        (
            errors.QueueFull,
            errors.QueueTimeout,
            errors.WouldBeLate,
            errors.ModelUnavailable,
            errors.OutOfMemory,
            errors.DeviceLost,
            errors.Unavailable,
            errors.Exhausted,
        ),
        _RETRY,
    ),
}
"""Of kinds that have more than JSON's."""

"""What every kind of failure is in this dialect: HTTP status, gRPC code, text; one row each, for both transports.

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


class Answer(NamedTuple):
    """A row of the table; `prefixed` texts name the request."""

    http_status: int
    grpc_code: Code
    text: Callable[[Any, Call], str]
    prefixed: bool = False
    headers: Mapping[str, str] = JSON_HEADERS


def with_id(call: Call, text: str) -> str:
    return f"[request id: {call.notes.get('id') or '<id_unknown>'}] {text}"


def encode_error(error: GatewayError, call: Call) -> Reply:
    """Any failure -> its reply; a kind that has no row is a fault of ours."""
    answer = ANSWERS.get(type(error)) or ANSWERS[errors.Internal]
    text = answer.text(error, call)
    if answer.prefixed:
        text = with_id(call, text)
    if not text.isascii():  # a header or a model may have put bytes into it that are no text
        text = text.encode("utf-8", "replace").decode()
    body = orjson.dumps({"error": text})
    return Reply(body, answer.http_status, answer.headers, answer.grpc_code, text)


# --------------------------------------------------------------------------------------------------------------- texts


def _own_text(error: Any, call: Call) -> str:
    text: str = error.text
    return text


def _always(text: str) -> Callable[[Any, Call], str]:
    return lambda error, call: text


def _malformed(error: errors.MalformedJson, call: Call) -> str:
    at = "" if error.offset is None else f" at {error.offset}"
    return f"failed to parse the request JSON buffer: {error.reason}{at}"


def _body_too_large(error: errors.BodyTooLarge, call: Call) -> str:
    return f"Request body has a byte_size that exceeds the maximum allowed value of {error.limit} bytes."


def _model_not_found(error: errors.ModelNotFound, call: Call) -> str:
    request = f"Request for unknown model: '{error.name}'"
    if error.version is not None:
        return f"{request} version {error.version} is not found"
    return f"{request} has no available versions" if error.known else f"{request} is not found"


def _label_not_found(error: errors.LabelNotFound, call: Call) -> str:
    return f"Request for unknown model: '{error.name}' label '{error.label}' is not found"


def _signature_not_found(error: errors.SignatureNotFound, call: Call) -> str:
    return f"model '{error.model}' has no signature '{error.signature}'"


def _decoupled(error: errors.ModelDecoupled, call: Call) -> str:
    speaker = "HTTP end point" if call.transport == "http" else "ModelInfer RPC"
    return f"{speaker} doesn't support models with decoupled transaction policy"


_NOT_ONE: Final = (
    "generate expects model to produce exactly 1 response, use generate stream for model that generates various number "
    "of responses"
)


def _unknown_output(error: errors.UnknownOutput, call: Call) -> str:
    return f"unexpected inference output '{error.output}' for model '{error.model}'"


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


def _unknown_input(error: errors.UnknownInput, call: Call) -> str:
    return f"unexpected inference input '{error.input}' for model '{error.model}'"


def _batch_missing(error: errors.BatchMissing, call: Call) -> str:
    return f"input '{error.input}' has no shape but model requires batch dimension for '{error.model}'"


def _batch_mismatch(error: errors.BatchMismatch, call: Call) -> str:
    return f"input '{error.input}' batch size does not match other inputs for '{error.model}'"


def _batch_too_large(error: errors.BatchTooLarge, call: Call) -> str:
    return f"inference request batch-size must be <= {error.limit} for '{error.model}'"


def _dtype_mismatch(error: errors.DtypeMismatch, call: Call) -> str:
    return (
        f"inference input '{error.input}' data-type is '{error.got}', but model '{error.model}' expects '{error.want}'"
    )


_BATCH_NOTE: Final = (
    "NOTE: Setting a non-zero max_batch_size in the model config requires a batch dimension to be prepended to each "
    "input shape. If you want to specify the full shape including the batch dim in your input dims config, try setting "
    "max_batch_size to zero. See the model configuration docs for more info on max_batch_size."
)


def _shape_mismatch(error: errors.ShapeMismatch, call: Call) -> str:
    return (
        f"unexpected shape for input '{error.input}' for model '{error.model}'. "
        f"Expected {shape_text(error.want)}, got {shape_text(error.got)}. {_BATCH_NOTE if error.batched else ''}"
    )


def shape_text(shape: tuple[int, ...]) -> str:
    """(-1, 16) -> '[-1,16]'"""
    return "[" + ",".join(map(str, shape)) + "]"


def _admin_required(error: errors.AdminRequired, call: Call) -> str:
    what = "API" if call.transport == "http" else "protocol"
    return f"This {what} is restricted, expecting header '{error.header}'"


def _unauthenticated(error: errors.Unauthenticated, call: Call) -> str:
    return "the credentials are not valid" if error.given else "credentials are required"


def _forbidden(error: errors.Forbidden, call: Call) -> str:
    return f"use of model '{error.model}' is not allowed" if error.model else "administration is not allowed"


def _cross_origin(error: errors.CrossOriginRefused, call: Call) -> str:
    return f"this changes the server's state, which is not for pages of {error.origin} (see cors)"


def _rate_limited(error: errors.RateLimited, call: Call) -> str:
    return f"too many {error.what}, retry after {error.retry_after} s"


_CONTROL_OFF: Final = "explicit model load / unload is not allowed if polling is enabled"


def _not_stored(error: errors.ModelNotStored, call: Call) -> str:
    return f"failed to load '{error.model}', failed to poll from model repository"


def _load_refused(error: errors.LoadRefused, call: Call) -> str:
    return f"failed to load '{error.model}', {error.reason}"


def _load_failed(error: errors.LoadFailed, call: Call) -> str:
    states = (f"version {version} is at UNAVAILABLE state: {why};" for version, why in error.reasons.items())
    return f"load failed for model '{error.model}': {' '.join(states)}"


def _platform_refused(error: errors.PlatformRefused, call: Call) -> str:
    return f"failed to load '{error.model}', unexpected platform type '{error.platform}'"


def _label_refused(error: errors.LabelRefused, call: Call) -> str:
    return f"version {error.version} of model '{error.model}' is not ready, and can have no label"


def _reload_failed(error: errors.ReloadFailed, call: Call) -> str:
    states = (f"'{model}' version {version}: {why.text};" for (model, version), why in error.reasons.items())
    return f"load failed for models {' '.join(states)}"


def _sequence_not_started(error: errors.SequenceNotStarted, call: Call) -> str:
    return (
        f"inference request for sequence {error.sequence} to model '{error.model}' must specify the START flag on the "
        "first request of the sequence"
    )


def _of_sequence(must: str) -> Callable[[Any, Call], str]:
    return lambda error, call: f"inference request to model '{error.model}' must specify {must}"


def _sequence_id_mismatch(error: errors.SequenceIdMismatch, call: Call) -> str:
    return f"correlation ID {error.sequence} does not fit model '{error.model}', which expects '{error.datatype}'"


def _classes_unsupported(error: errors.ClassesUnsupported, call: Call) -> str:
    return f"class result not available for output due to unsupported type '{error.datatype}'"


_MEMORY_DISABLED: Final = "Client shared memory is disabled. Start the server with '--allow-client-shm=true' to enable."


def _region_not_found(error: errors.RegionNotFound, call: Call) -> str:
    kind = f"{error.kind} " if error.kind else ""
    return f"Unable to find {kind}shared memory region: '{error.name}'"


def _region_exists(error: errors.RegionExists, call: Call) -> str:
    return f"shared memory region '{error.name}' already in manager"


def _region_unreachable(error: errors.RegionUnreachable, call: Call) -> str:
    return f"Unable to open shared memory region: '{error.key}'"


def _region_invalid(error: errors.RegionInvalid, call: Call) -> str:
    return f"Invalid shared memory region: '{error.key}'"


def _region_key_reserved(error: errors.RegionKeyReserved, call: Call) -> str:
    return (
        f"cannot register shared memory region '{error.name}' with key '{error.key}' as the key contains the reserved "
        f"prefix '{error.prefix}'"
    )


def _region_limit(error: errors.RegionLimit, call: Call) -> str:
    return f"no more than {error.limit} shared memory regions can be registered"


def _no_cuda(error: errors.CudaMemoryUnavailable, call: Call) -> str:
    return f"failed to register CUDA shared memory region: '{error.name}', GPUs not supported"


def _region_range(error: errors.RegionRange, call: Call) -> str:
    return f"Invalid offset + byte size for shared memory region: '{error.name}'"


def _output_too_large(error: errors.OutputTooLarge, call: Call) -> str:
    return (
        f"shared memory size specified with the request for output '{error.output}' ({error.given} bytes) should be at "
        f"least {error.needed} bytes to hold the results"
    )


def _model_unavailable(error: errors.ModelUnavailable, call: Call) -> str:
    return f"model '{error.model}' has stopped accepting requests"


def _out_of_memory(error: errors.OutOfMemory, call: Call) -> str:
    return f"failed to allocate memory for the request to model '{error.model}'"


def _device_lost(error: errors.DeviceLost, call: Call) -> str:
    return f"model '{error.model}' has lost its device, the server restarts"


ANSWERS: Final[Mapping[type[GatewayError], Answer]] = MappingProxyType(
    {
        errors.InvalidArgument: Answer(400, Code.INVALID_ARGUMENT, _own_text),
        errors.Unsupported: Answer(501, Code.UNIMPLEMENTED, _own_text),
        UnsupportedCoding: Answer(501, Code.UNIMPLEMENTED, _own_text, headers=_CODINGS),
        errors.NotFound: Answer(404, Code.NOT_FOUND, _own_text),
        errors.MalformedJson: Answer(400, Code.INVALID_ARGUMENT, _malformed),
        errors.BodyTooLarge: Answer(400, Code.RESOURCE_EXHAUSTED, _body_too_large),
        errors.RouteNotFound: Answer(404, Code.UNIMPLEMENTED, _always("Not Found")),
        errors.MethodNotAllowed: Answer(405, Code.UNIMPLEMENTED, _always("Method Not Allowed")),
        errors.ModelNotFound: Answer(404, Code.NOT_FOUND, _model_not_found),
        errors.LabelNotFound: Answer(404, Code.NOT_FOUND, _label_not_found),
        errors.SignatureNotFound: Answer(400, Code.INVALID_ARGUMENT, _signature_not_found),
        errors.ModelDecoupled: Answer(501, Code.UNIMPLEMENTED, _decoupled),
        errors.NotOneAnswer: Answer(400, Code.INVALID_ARGUMENT, _always(_NOT_ONE)),
        errors.AdminRequired: Answer(403, Code.UNAVAILABLE, _admin_required),
        errors.Unauthenticated: Answer(401, Code.UNAUTHENTICATED, _unauthenticated),
        errors.Forbidden: Answer(403, Code.PERMISSION_DENIED, _forbidden),
        errors.CrossOriginRefused: Answer(403, Code.PERMISSION_DENIED, _cross_origin),
        errors.RateLimited: Answer(429, Code.RESOURCE_EXHAUSTED, _rate_limited),
        errors.ModelControlOff: Answer(503, Code.UNAVAILABLE, _always(_CONTROL_OFF)),
        errors.ModelNotStored: Answer(500, Code.INTERNAL, _not_stored),
        errors.LoadRefused: Answer(400, Code.INVALID_ARGUMENT, _load_refused),
        errors.LoadFailed: Answer(400, Code.INVALID_ARGUMENT, _load_failed),
        errors.PlatformRefused: Answer(400, Code.INVALID_ARGUMENT, _platform_refused),
        errors.LabelRefused: Answer(400, Code.FAILED_PRECONDITION, _label_refused),
        errors.ReloadFailed: Answer(500, Code.UNKNOWN, _reload_failed),
        errors.UnknownOutput: Answer(400, Code.INVALID_ARGUMENT, _unknown_output),
        errors.InputCount: Answer(400, Code.INVALID_ARGUMENT, _input_count, prefixed=True),
        errors.UnknownInput: Answer(400, Code.INVALID_ARGUMENT, _unknown_input),
        errors.BatchMissing: Answer(400, Code.INVALID_ARGUMENT, _batch_missing, prefixed=True),
        errors.BatchMismatch: Answer(400, Code.INVALID_ARGUMENT, _batch_mismatch, prefixed=True),
        errors.BatchTooLarge: Answer(400, Code.INVALID_ARGUMENT, _batch_too_large, prefixed=True),
        errors.DtypeMismatch: Answer(400, Code.INVALID_ARGUMENT, _dtype_mismatch, prefixed=True),
        errors.ShapeMismatch: Answer(400, Code.INVALID_ARGUMENT, _shape_mismatch, prefixed=True),
        errors.SequenceIdMissing: Answer(
            400, Code.INVALID_ARGUMENT, _of_sequence("a non-zero or non-empty correlation ID")
        ),
        errors.SequenceNotStarted: Answer(400, Code.INVALID_ARGUMENT, _sequence_not_started),
        errors.SequenceBatch: Answer(
            400, Code.INVALID_ARGUMENT, _of_sequence("batch-size 1 due to requirements of sequence batcher")
        ),
        errors.SequenceIdMismatch: Answer(400, Code.INVALID_ARGUMENT, _sequence_id_mismatch),
        errors.ClassesUnsupported: Answer(400, Code.INVALID_ARGUMENT, _classes_unsupported),
        errors.ClassesTooMany: Answer(400, Code.INVALID_ARGUMENT, _always("classification output tensor too large")),
        errors.SharedMemoryDisabled: Answer(501, Code.UNIMPLEMENTED, _always(_MEMORY_DISABLED)),
        errors.RegionNotFound: Answer(404, Code.NOT_FOUND, _region_not_found),
        errors.RegionExists: Answer(400, Code.ALREADY_EXISTS, _region_exists),
        errors.RegionUnreachable: Answer(500, Code.INTERNAL, _region_unreachable),
        errors.RegionInvalid: Answer(500, Code.INTERNAL, _region_invalid),
        errors.RegionKeyReserved: Answer(400, Code.INVALID_ARGUMENT, _region_key_reserved),
        errors.RegionLimit: Answer(503, Code.UNAVAILABLE, _region_limit),
        errors.CudaMemoryUnavailable: Answer(400, Code.INVALID_ARGUMENT, _no_cuda),
        errors.RegionRange: Answer(400, Code.INVALID_ARGUMENT, _region_range),
        errors.OutputTooLarge: Answer(500, Code.INTERNAL, _output_too_large),
        errors.QueueFull: Answer(
            503, Code.UNAVAILABLE, _always("Exceeds maximum queue size"), prefixed=True, headers=_RETRY
        ),
        errors.QueueTimeout: Answer(503, Code.UNAVAILABLE, _always("Request timeout expired"), headers=_RETRY),
        errors.DeadlineExceeded: Answer(504, Code.DEADLINE_EXCEEDED, _always("Deadline Exceeded")),
        errors.ModelUnavailable: Answer(503, Code.UNAVAILABLE, _model_unavailable, headers=_RETRY),
        errors.OutOfMemory: Answer(503, Code.RESOURCE_EXHAUSTED, _out_of_memory, headers=_RETRY),
        errors.DeviceLost: Answer(503, Code.UNAVAILABLE, _device_lost, headers=_RETRY),
        errors.ModelFailed: Answer(500, Code.INTERNAL, _own_text),
        errors.OutputRows: Answer(500, Code.INTERNAL, _own_text),
        errors.Unknown: Answer(400, Code.UNKNOWN, _own_text),
        errors.Unavailable: Answer(503, Code.UNAVAILABLE, _own_text, headers=_RETRY),
        errors.Exhausted: Answer(429, Code.RESOURCE_EXHAUSTED, _own_text, headers=_RETRY),
        errors.TimedOut: Answer(504, Code.DEADLINE_EXCEEDED, _own_text),
        errors.PreconditionFailed: Answer(400, Code.FAILED_PRECONDITION, _own_text),
        errors.AlreadyExists: Answer(400, Code.ALREADY_EXISTS, _own_text),
        errors.Cancelled: Answer(400, Code.CANCELLED, _own_text),
        errors.EncodingFailed: Answer(400, Code.INVALID_ARGUMENT, _own_text),
        errors.Internal: Answer(500, Code.INTERNAL, _always("internal error")),
    }
)

"""InferResponse -> inference.ModelInferResponse and ModelStreamInferResponse. Contract: Open Inference V2 over gRPC,
with Triton's streams.

Outputs are always raw contents, whatever the request used. What does not change from answer to answer is kept as
serialized fields; a reply is those and views of the answer's arrays, which the transport joins. Fields stand in the
order of their numbers, as protobuf itself would write them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final

import numpy as np

from tensorgate.adapters.open_inference.errors import encode_error
from tensorgate.adapters.open_inference.proto_parameters import FIELD_OF, FINAL, V2StreamForm
from tensorgate.adapters.open_inference.raw import raw_of
from tensorgate.adapters.open_inference.response import with_classes
from tensorgate.adapters.protobuf.messages import message
from tensorgate.adapters.protobuf.wire_format import varint
from tensorgate.gateway.contract.call import Buffer, Call, Reply
from tensorgate.gateway.contract.canonical import InferRequest, InferResponse
from tensorgate.gateway.contract.errors import DeadlineExceeded, EncodingFailed, GatewayError
from tensorgate.gateway.contract.tensor import BYTES, DATATYPES, NOTHING, ParameterValue

ERROR_METADATA: Final = "triton_grpc_error"
"""Metadata of a caller that wants a model's error to end its stream, as a status."""

RAW_OUTPUTS: Final = 6 << 3 | 2
"""The tag of ModelInferResponse.raw_output_contents."""
_INFER_RESPONSE: Final = message("inference.ModelInferResponse")
_STREAM_RESPONSE: Final = message("inference.ModelStreamInferResponse")
_ID: Final = b"\x1a"
_RAW_OUTPUT: Final = bytes([RAW_OUTPUTS])
_IN_STREAM: Final = b"\x12"
_MAX_BYTES: Final = 2**31 - 1


def encode_infer(answer: InferResponse, request: InferRequest) -> Reply:
    """Host arrays -> ModelInferResponse, without a copy of theirs. Raises EncodingFailed."""
    return Reply(_response(answer, request, _parameters(answer.parameters) if answer.parameters else b""))


def encode_stream(answer: InferResponse, request: InferRequest) -> Reply:
    """Host arrays -> a message of a stream, which says whether it is the last one to its request."""
    parts = _response(answer, request, _parameters(answer.parameters) + _FINALS[answer.final])
    return Reply([_IN_STREAM, varint(sum(map(len, parts))), *parts], streamed=True)


def encode_end(last: InferResponse | None, request: InferRequest) -> Reply | None:
    """After a decoupled model's last answer: one more message, if the caller wants to be told and has not been."""
    wire: V2StreamForm = request.wire
    if not wire.ends or not request.view.decoupled or (last is not None and last.final):
        return None
    response = _INFER_RESPONSE(model_name=request.view.name, model_version=wire.version, id=request.id)
    response.parameters[FINAL].bool_param = True
    return Reply(_STREAM_RESPONSE(infer_response=response).SerializeToString(), streamed=True)


def encode_stream_error(error: GatewayError, call: Call) -> Reply:
    """A failure, as a message that leaves the stream open; what a model said also names it, and is its last word, or
    the stream's if the caller wants that.

    A deadline is that of the stream, and ends it.
    """
    reply = encode_error(error, call)
    ends = call.accepted and call.headers.get(ERROR_METADATA) == "true"
    if ends or isinstance(error, DeadlineExceeded):
        return reply
    response = _INFER_RESPONSE(id=call.notes.get("id", ""))
    if call.accepted:
        response.model_name = call.notes["model"]
        response.parameters[FINAL].bool_param = True
    body = _STREAM_RESPONSE(error_message=reply.message, infer_response=response).SerializeToString()
    return Reply(body, streamed=True)


def _response(answer: InferResponse, request: InferRequest, parameters: bytes) -> list[Buffer]:
    """The fields of a ModelInferResponse."""
    view = request.view
    outputs = with_classes(answer, request) if answer.classes else answer.outputs.items()
    if len(outputs) == 1 and not (request.id or parameters or request.into):
        ((name, array),) = outputs
        if array.dtype != BYTES:
            return [_before_lone(view.name, view.version, name, array.dtype, array.shape), raw_of(array)]
    fields: list[Buffer] = [_opening(view.name, view.version)]
    if request.id:
        text = request.id.encode()
        fields += _ID, varint(len(text)), text
    if parameters:
        fields.append(parameters)
    contents: list[Buffer] = []
    into = request.into or NOTHING
    for name, array in outputs:
        fields.append(_output(name, DATATYPES[array.dtype], array.shape))
        data = b"" if name in into else raw_of(array)
        contents += _RAW_OUTPUT, varint(len(data)), data
    fields += contents
    if sum(map(len, contents)) > _MAX_BYTES:
        raise _too_large()
    return fields


# Never stale: made of nothing but its arguments.
@lru_cache(maxsize=1024)
def _before_lone(model: str, version: int, name: str, dtype: np.dtype[Any], shape: tuple[int, ...]) -> bytes:
    """All of an answer with one numeric output, and nothing to say beside it, but that output's data."""
    size = math.prod(shape) * dtype.itemsize
    if size > _MAX_BYTES:
        raise _too_large()
    return _opening(model, version) + _output(name, DATATYPES[dtype], shape) + _RAW_OUTPUT + varint(size)


def _too_large() -> EncodingFailed:
    return EncodingFailed("the response is larger than the 2 GiB that a message can have")


# Never stale: made of nothing but its arguments.
@lru_cache(maxsize=1024)
def _opening(model: str, version: int) -> bytes:
    serialized: bytes = _INFER_RESPONSE(model_name=model, model_version=str(version)).SerializeToString()
    return serialized


# Never stale: made of nothing but its arguments.
@lru_cache(maxsize=1024)
def _output(name: str, datatype: str, shape: tuple[int, ...]) -> bytes:
    tensor = {"name": name, "datatype": datatype, "shape": shape}
    serialized: bytes = _INFER_RESPONSE(outputs=[tensor]).SerializeToString()
    return serialized


def _parameters(values: Mapping[str, ParameterValue]) -> bytes:
    """What a model says beside its tensors."""
    if not values:
        return b""
    response: Any = _INFER_RESPONSE()
    for name, value in values.items():
        try:
            setattr(response.parameters[name], FIELD_OF[type(value)], value)
        except (KeyError, ValueError, TypeError):
            raise EncodingFailed(f"the response's parameter '{name}' is none that a message can carry") from None
    serialized: bytes = response.SerializeToString()
    return serialized


_FINALS: Final = {final: _parameters({FINAL: final}) for final in (False, True)}
"""What a stream says after each answer."""

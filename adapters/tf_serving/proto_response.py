"""Predict over gRPC: answers -> PredictResponse.

A reply is made of serialized fields and of views of the answer's arrays, which the transport joins. Fields stand in the
order of their numbers, outputs in the order in which they were asked for.
"""

from __future__ import annotations

from typing import Final

from adapters.tf_serving.proto_request import Wanted
from adapters.tf_serving.proto_spec import effective_spec
from adapters.tf_serving.tensor_message import tensor_parts
from adapters.wire_format import varint
from gateway.canonical import InferRequest, InferResponse
from gateway.errors import EncodingFailed
from gateway.ports import Buffer, Encode, Reply

_OUTPUTS: Final = b"\x0a"
_MODEL_SPEC: Final = b"\x12"
_KEY: Final = b"\x0a"
_VALUE: Final = b"\x12"
_MOST_BYTES: Final = 2**31 - 1


def predict_encoder(*, content: bool) -> Encode:
    """The encode of Predict; `content`: tensors as bytes, not in typed fields."""

    def encode_predict(answer: InferResponse, request: InferRequest) -> Reply:
        """Raises EncodingFailed."""
        wanted: Wanted = request.wire
        parts: list[Buffer] = []
        for name, inner in wanted.outputs.items():
            parts += _output(name, tensor_parts(answer.outputs[inner], content=content))
        spec = effective_spec(request.view.name, request.view.version, wanted.signature)
        parts += _MODEL_SPEC, varint(len(spec)), spec
        if sum(map(len, parts)) > _MOST_BYTES:
            raise EncodingFailed("The response is larger than the 2 GiB that a message can have")
        return Reply(parts)

    return encode_predict


def _output(name: str, tensor: list[Buffer]) -> list[Buffer]:
    """An entry of the map."""
    key = name.encode()
    size = sum(map(len, tensor))
    opening = _KEY + varint(len(key)) + key + _VALUE + varint(size)
    return [_OUTPUTS, varint(len(opening) + size), opening, *tensor]

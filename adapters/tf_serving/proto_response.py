"""InferResponse -> tensorflow.serving.PredictResponse.

A reply is made of serialized fields and of views of the answer's arrays, which the transport joins. Fields stand in the
order of their numbers, outputs in the order in which they were asked for.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any, Final

import numpy as np

from tensorgate.adapters.protobuf.wire_format import varint
from tensorgate.adapters.tf_serving.model_spec import effective_spec
from tensorgate.adapters.tf_serving.proto_request import ProtoPredictForm
from tensorgate.adapters.tf_serving.proto_tensors import is_memory, tensor_parts
from tensorgate.gateway.contract.call import Buffer, Reply
from tensorgate.gateway.contract.canonical import InferRequest, InferResponse
from tensorgate.gateway.contract.dialect import Encode
from tensorgate.gateway.contract.errors import EncodingFailed
from tensorgate.gateway.contract.shortcuts import is_taken
from tensorgate.gateway.contract.tensor import Tensors

_OUTPUTS: Final = b"\x0a"
_MODEL_SPEC: Final = b"\x12"
_KEY: Final = b"\x0a"
_VALUE: Final = b"\x12"
_MAX_BYTES: Final = 2**31 - 1
_SMALL_BYTES: Final = 2 << 10
_HAS_FRAMES: Final = is_taken("predict_frames")


def predict_encoder(*, content: bool) -> Encode:
    """The encode of Predict; `content`: tensors as bytes, not in typed fields."""

    def encode_predict(answer: InferResponse, request: InferRequest) -> Reply:
        """Raises EncodingFailed."""
        wanted: ProtoPredictForm = request.wire
        outputs = {name: answer.outputs[inner] for name, inner in wanted.outputs.items()}
        spec = effective_spec(request.view.name, request.view.version, wanted.signature)
        if len(outputs) == 1:
            ((name, array),) = outputs.items()
            around = _around_lone(name, array.dtype, array.shape, spec, content=content)
            if around is not None:
                return Reply([around[0], array.tobytes(), around[1]])
        parts = _parts(outputs, spec, content=content)
        if sum(map(len, parts)) > _MAX_BYTES:
            raise EncodingFailed("The response is larger than the 2 GiB that a message can have")
        return Reply(parts)

    return encode_predict


def _parts(outputs: Tensors, spec: bytes, *, content: bool) -> list[Buffer]:
    parts: list[Buffer] = []
    for name, array in outputs.items():
        parts += _output(name, tensor_parts(array, content=content))
    parts += _MODEL_SPEC, varint(len(spec)), spec
    return parts


@lru_cache(maxsize=1024)  # a function of its arguments alone: nothing makes it stale
def _around_lone(
    name: str, dtype: np.dtype[Any], shape: tuple[int, ...], spec: bytes, *, content: bool
) -> tuple[bytes, bytes] | None:
    """All of an answer with one small output but that output's data, if these are the array's own bytes: it is the same
    for all of that shape.
    """
    size = math.prod(shape) * dtype.itemsize
    if not (0 < size <= _SMALL_BYTES and _HAS_FRAMES and is_memory(dtype, content=content)):
        return None
    parts = _parts({name: np.empty(shape, dtype)}, spec, content=content)
    [data] = [index for index, part in enumerate(parts) if isinstance(part, memoryview)]
    return b"".join(parts[:data]), b"".join(parts[data + 1 :])


def _output(name: str, tensor: list[Buffer]) -> list[Buffer]:
    """An entry of the map."""
    key = name.encode()
    size = sum(map(len, tensor))
    opening = _KEY + varint(len(key)) + key + _VALUE + varint(size)
    return [_OUTPUTS, varint(len(opening) + size), opening, *tensor]

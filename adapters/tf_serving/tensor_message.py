"""Arrays on the host -> TensorProto, as bytes.

Elements stand in the typed field of their dtype, every one of them, or as bytes. Floats are views of the array: the
field is its memory, behind a tag and a length. Source: the field table of TensorProto.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Final

import numpy as np

from tensorgate.adapters.json.texts import pieces
from tensorgate.adapters.protobuf import varints
from tensorgate.adapters.protobuf.messages import message
from tensorgate.adapters.protobuf.wire_format import varint
from tensorgate.adapters.tf_serving.proto_types import BY_DTYPE, CONTENT, STRINGS, WIDTHS, WireType
from tensorgate.adapters.tf_serving.tensors import Tensor
from tensorgate.gateway.contract.call import Buffer
from tensorgate.gateway.contract.tensor import BYTES

_TENSOR: Final = message("tensorflow.TensorProto")
_STRING_TAG: Final = bytes([STRINGS << 3 | 2])


def tensor_parts(array: Tensor, *, content: bool = False) -> list[Buffer]:
    """The serialized message, in parts of which large ones are views; `content`: elements as bytes."""
    wire = BY_DTYPE[array.dtype]
    parts: list[Buffer] = [_opening(wire.number, array.shape)]
    if not array.size:
        return parts
    if content:
        data = _content(array)
        parts += _field(CONTENT, sum(map(len, data))), *data
    elif wire.dtype == BYTES:
        parts += _string_fields(array)
    elif WIDTHS[wire.field]:
        parts += _field(wire.field, array.nbytes), _memory(array)
    else:
        parts += _varints(array, wire)
    return parts


def is_memory(dtype: np.dtype[Any], *, content: bool) -> bool:
    """Whether the data of a message are the bytes of the array: then two of the same dtype and shape differ in them
    alone. Of what is written number by number, even the length depends on the numbers.
    """
    return dtype != BYTES and (content or WIDTHS[BY_DTYPE[dtype].field] == dtype.itemsize)


@lru_cache(maxsize=1024)  # a function of its arguments alone: nothing makes it stale
def _opening(number: int, shape: tuple[int, ...]) -> bytes:
    """Dtype and shape."""
    tensor = _TENSOR(dtype=number)
    tensor.tensor_shape.SetInParent()
    for size in shape:
        tensor.tensor_shape.dim.add(size=size)
    serialized: bytes = tensor.SerializeToString()
    return serialized


def _field(number: int, size: int) -> bytes:
    return varint(number << 3 | 2) + varint(size)


def _memory(array: Tensor) -> memoryview:
    view: memoryview = np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
    return view


def _varints(array: Tensor, wire: WireType) -> list[Buffer]:
    numbers = array.reshape(-1)
    if wire.field_name == "half_val":
        numbers = numbers.view(np.uint16)
    data = varints.encode(numbers)
    return [_field(wire.field, len(data)), data]


def _string_fields(array: Tensor) -> list[Buffer]:
    return [
        b"".join([part for text in texts for part in (_STRING_TAG, varint(len(text)), text)]) for texts in pieces(array)
    ]


def _content(array: Tensor) -> list[Buffer]:
    """The elements as bytes; of strings all lengths, then what they are."""
    if array.dtype != BYTES:
        return [_memory(array)]
    lengths: list[Buffer] = [b"".join([varint(len(text)) for text in texts]) for texts in pieces(array)]
    return [*lengths, *[b"".join(texts) for texts in pieces(array)]]

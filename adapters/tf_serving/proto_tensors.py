"""tensorflow.TensorProto <-> arrays on the host.

A tensor's elements come as bytes (`tensor_content`), or in the typed field of its dtype, of which the last value stands
for all that are missing. What is wrong with a tensor is never told, only that it is. Source: TensorFlow's own reading
of the message.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final, NamedTuple, NoReturn

import numpy as np

from tensorgate.adapters.json.texts import array_of, pieces
from tensorgate.adapters.protobuf import varints
from tensorgate.adapters.protobuf.messages import message
from tensorgate.adapters.protobuf.wire_format import LENGTH_BYTES, MAX_ELEMENTS, varint
from tensorgate.adapters.tf_serving.data_types import (
    BY_DTYPE,
    BY_NUMBER,
    CONTENT,
    FIELD_DTYPES,
    FOREIGN_BYTES,
    STRINGS,
    WIDTHS,
    WireType,
)
from tensorgate.adapters.tf_serving.proto_wire import NOTHING_CUT, TensorCut, Unusual
from tensorgate.adapters.tf_serving.tensors import MAX_RANK, Shape, Tensor
from tensorgate.gateway.contract.call import Buffer, Call, MustOffload
from tensorgate.gateway.contract.errors import InvalidArgument
from tensorgate.gateway.contract.tensor import BYTES

_INT64_MAX: Final = 2**63 - 1
_REPEATED_SHARE: Final = 16
_SEVERAL_VALUES: Final = 4
_QUICK_STRINGS: Final = 1 << 14


class Given(NamedTuple):
    """A tensor as it came: the number of its dtype, and its elements, None where no model takes that dtype."""

    number: int
    array: Tensor | None


class TensorProtoReader:
    """Reads the tensors of one request.

    A few bytes can stand for a tensor of any size. What a request may become by repeated values is bounded, for all of
    its tensors together, by a sixteenth of the largest message: 64 MiB where that is 1 GiB. A single value that stands
    for all takes no memory until the model reads it; if there are several, the tensor counts four times.
    """

    def __init__(self, call: Call, cuts: Mapping[str, TensorCut]) -> None:
        self._cuts = cuts
        self._in_thread = call.in_thread
        self._most = call.max_body_bytes
        self._room = call.max_body_bytes // _REPEATED_SHARE

    def read(self, name: str, message: Any) -> Given:
        """Raises InvalidArgument, Unusual."""
        cut = self._cuts.get(name, NOTHING_CUT)
        shape = _shape(name, message.tensor_shape.dim)
        count = math.prod(shape)
        number = message.dtype
        wire = BY_NUMBER.get(number)
        content = _content(message, cut)
        if wire is None:
            _check_foreign(name, number, count, content)
            return Given(number, None)
        if not count:
            return Given(number, np.empty(shape, wire.dtype))
        if content and wire.dtype == BYTES:
            flat = _strings(name, content, count, in_thread=self._in_thread)
        elif content:
            flat = _from_content(name, content, wire, count)
        else:
            flat = self._whole(name, _values(message, cut, wire), wire.dtype, count)
        return Given(number, flat.reshape(shape))

    def _whole(self, name: str, values: Tensor, dtype: np.dtype[Any], count: int) -> Tensor:
        """As many values as there are elements: surplus ones are dropped, for missing ones the last is repeated.

        Raises InvalidArgument before anything is allocated that is too large.
        """
        if values.size >= count:
            return values if values.size == count else values[:count]
        size = count * dtype.itemsize
        if size > self._most:
            _refuse(name)
        self._room -= size if values.size < 2 else size * _SEVERAL_VALUES
        if self._room < 0:
            raise InvalidArgument(f"tensor parsing error: {name}: {size} bytes, of which few were sent")
        if values.size < 2:
            return np.broadcast_to(values if values.size else _nothing(dtype), count)
        whole = np.empty(count, dtype)
        whole[: values.size] = values
        whole[values.size :] = values[-1]
        return whole


def _refuse(name: str) -> NoReturn:
    raise InvalidArgument(f"tensor parsing error: {name}")


def _shape(name: str, dimensions: Any) -> Shape:
    """The declared shape, in Python's integers, that an array can have."""
    if len(dimensions) > MAX_RANK:
        _refuse(name)
    shape = tuple([dimension.size for dimension in dimensions])
    count = extent = 1
    for size in shape:
        count *= size
        extent *= size or 1
        if size < 0 or count > _INT64_MAX:
            _refuse(name)
    if extent > _INT64_MAX // 8:  # an empty tensor that no array can be
        _refuse(name)
    return shape


def _check_foreign(name: str, number: int, count: int, content: Any) -> None:
    """Of a dtype that no model takes, only the size can be wrong."""
    width = FOREIGN_BYTES.get(number)
    if width is None or (count and width and content and len(content) != count * width):
        _refuse(name)


# ------------------------------------------------------------------------------------------------------------- content


def _content(message: Any, cut: TensorCut) -> memoryview | None:
    """The tensor's bytes, if it has some."""
    if cut.content is None:
        return memoryview(message.tensor_content) if message.tensor_content else None
    if message.tensor_content:
        raise Unusual
    return cut.content


def _from_content(name: str, content: memoryview, wire: WireType, count: int) -> Tensor:
    """Numbers as a view of the bytes; BOOL is a copy."""
    if len(content) != count * wire.dtype.itemsize:
        _refuse(name)
    return _flags(np.frombuffer(content, np.uint8)) if wire.dtype.kind == "b" else np.frombuffer(content, wire.dtype)


def _strings(name: str, content: memoryview, count: int, *, in_thread: bool) -> Tensor:
    """The lengths of all strings, then their bytes."""
    if count > MAX_ELEMENTS or count > len(content):
        _refuse(name)
    if count > _QUICK_STRINGS and not in_thread:
        raise MustOffload
    digits = np.frombuffer(content[: count * LENGTH_BYTES], np.uint8)
    ends = np.flatnonzero(digits < 0x80)[:count]
    lengths = varints.decode(content[: ends[-1] + 1]) if len(ends) == count else None
    if lengths is None or np.diff(ends, prepend=-1).max() > LENGTH_BYTES:
        _refuse(name)
    stops = np.cumsum(lengths.astype(np.uint32), dtype=np.int64) + int(ends[-1]) + 1
    if stops[-1] != len(content):
        _refuse(name)
    flat = np.empty(count, np.object_)
    at = int(ends[-1]) + 1
    for index, stop in enumerate(stops.tolist()):
        flat[index] = bytes(content[at:stop])
        at = stop
    return flat


# ------------------------------------------------------------------------------------------------------- typed fields


def _values(message: Any, cut: TensorCut, wire: WireType) -> Tensor:
    """The values of the dtype's own field, of which there may be any number."""
    single = getattr(message, wire.field_name)
    if wire.dtype == BYTES:
        return array_of(cut.strings or single[:])
    runs = [run for field, run in cut.numbers if field == wire.field and len(run)]
    if not runs:
        return _narrow(np.array(single[:], FIELD_DTYPES[wire.field_name]), wire)
    if single:
        raise Unusual
    arrays = [_run(run, wire) for run in runs]
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)


def _narrow(values: Tensor, wire: WireType) -> Tensor:
    """Integers of the field -> elements of the dtype: cut to its width, or the bits of half a float."""
    if wire.field_name == "half_val":
        return values.astype(np.uint16).view(wire.dtype)
    return values.astype(wire.dtype, copy=False)


def _run(run: Any, wire: WireType) -> Tensor:
    """A run of numbers -> elements, of floats a view of the message."""
    if WIDTHS[wire.field]:
        return np.frombuffer(run, wire.dtype)
    return _flags(run) if wire.dtype.kind == "b" else _narrow(run, wire)


def _flags(numbers: Tensor) -> Tensor:
    """Truth values: anything but 0 is true."""
    return np.not_equal(numbers, 0)


def _nothing(dtype: np.dtype[Any]) -> Tensor:
    return array_of([b""]) if dtype == BYTES else np.zeros(1, dtype)


# ------------------------------------------------------------------------------------------------ arrays to TensorProto

_TENSOR: Final = message("tensorflow.TensorProto")
_STRING_TAG: Final = bytes([STRINGS << 3 | 2])


def tensor_parts(array: Tensor, *, content: bool = False) -> list[Buffer]:
    """The serialized message, in parts of which large ones are views; `content`: elements as bytes."""
    wire = BY_DTYPE[array.dtype]
    parts: list[Buffer] = [_opening(wire.number, array.shape)]
    if not array.size:
        return parts
    if content:
        data = _content_parts(array)
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


def _content_parts(array: Tensor) -> list[Buffer]:
    """The elements as bytes; of strings all lengths, then what they are."""
    if array.dtype != BYTES:
        return [_memory(array)]
    lengths: list[Buffer] = [b"".join([varint(len(text)) for text in texts]) for texts in pieces(array)]
    return [*lengths, *[b"".join(texts) for texts in pieces(array)]]

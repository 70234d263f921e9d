"""GrpsMessage in protobuf <-> the fields of a message as `message` reads them from JSON, and replies."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import numpy as np
from google.protobuf.message import DecodeError

from adapters.grps.errors import Undecodable
from adapters.grps.tensors import BY_FIELD, Array, Tensor, row_of
from adapters.packed import LENGTH, Field, fields, head, pack_varints, varint
from adapters.pb import message
from gateway.canonical import BYTES, DTYPES, Tensors, datatype_of
from gateway.errors import EncodingFailed, InvalidArgument
from gateway.ports import Buffer

GrpsMessage: Final = message("grps.protos.v1.GrpsMessage")
_Tensor: Final = message("grps.protos.v1.GenericTensor")
_STATUS, _MODEL, _GTENSORS = (
    GrpsMessage.DESCRIPTOR.fields_by_name[name].number for name in ("status", "model", "gtensors")
)
_FLAT: Final = {name: _Tensor.DESCRIPTOR.fields_by_name[name].number for name in BY_FIELD}
_FLOATS: Final[dict[int, tuple[str, np.dtype[Any]]]] = {
    _FLAT["flat_float16"]: ("flat_float16", np.dtype("<f4")),
    _FLAT["flat_float32"]: ("flat_float32", np.dtype("<f4")),
    _FLAT["flat_float64"]: ("flat_float64", np.dtype("<f8")),
}
"""The flat fields that are packed memory: by number, their names and the dtype of that memory."""
_SUCCESS, _FAILURE = 1, 2
_WALKED_BYTES: Final = 4 << 10
"""Smaller messages are cheaper to copy than to walk."""
_MOST_TENSORS: Final = 4096
_MOST_FIELDS: Final = 64


# ------------------------------------------------------------------------------------------------------------- reading


def read_message(body: Buffer) -> dict[str, Any]:
    """Bytes -> the fields that are set, `gtensors` as a list of Tensor, `gmap` as maps by name.

    Raises Undecodable, or InvalidArgument for a tensor with numbers that its dtype lacks.
    """
    try:
        walked = walk(body) if len(body) >= _WALKED_BYTES else None
        return walked or _read(GrpsMessage.FromString(bytes(body)))
    except DecodeError:
        raise Undecodable("Exception deserializing request!") from None


def walk(body: Buffer) -> dict[str, Any] | None:
    """A message with tensors and without surprises: floats become views of the body. None for any other.

    Raises DecodeError, or InvalidArgument.
    """
    found = fields(body, 0, len(body), _MOST_FIELDS)
    if found is None or sorted(field.number for field in found if field.number > _MODEL) != [_GTENSORS]:
        return None
    [data] = [field for field in found if field.number == _GTENSORS]
    tensors = fields(body, data.begin, data.end, _MOST_TENSORS) if data.wire_type == LENGTH else None
    if tensors is None or any((tensor.number, tensor.wire_type) != (1, LENGTH) for tensor in tensors):
        return None
    inner = [fields(body, tensor.begin, tensor.end, _MOST_FIELDS) for tensor in tensors]
    view = memoryview(body)
    rest = GrpsMessage.FromString(b"".join((view[: data.start], view[data.end :])))
    read = [None if parts is None else _walk_tensor(view, parts) for parts in inner]
    return None if None in read else {**_read(rest), "gtensors": read}


def _walk_tensor(view: memoryview, parts: list[Field]) -> Tensor | None:
    numbers = [part.number for part in parts]
    floats = [part for part in parts if part.number in _FLOATS]
    if len(set(numbers)) < len(numbers) or any(part.wire_type != LENGTH for part in floats):
        return None
    data: dict[str, Array] = {}
    rest: list[Buffer] = []
    for part in parts:
        if part.number in _FLOATS:
            name, dtype = _FLOATS[part.number]
            if (part.end - part.begin) % dtype.itemsize:
                return None
            data[name] = _as_sent(name, np.frombuffer(view[part.begin : part.end], dtype))
        elif part.wire_type == LENGTH:
            rest += [head(part.number, part.end - part.begin), view[part.begin : part.end]]
        else:
            rest.append(varint(part.number << 3) + varint(part.value))
    return _tensor(_Tensor.FromString(b"".join(rest)), data)


def _read(parsed: Any) -> dict[str, Any]:
    found: dict[str, Any] = {"model": parsed.model} if parsed.model else {}
    arm = parsed.WhichOneof("data_oneof")
    if arm == "gtensors":
        found[arm] = [_tensor(tensor, {}) for tensor in parsed.gtensors.tensors]
    elif arm == "gmap":
        found[arm] = {field.name: dict(entries) for field, entries in parsed.gmap.ListFields()}
    elif arm is not None:
        found[arm] = getattr(parsed, arm)
    return found


def _tensor(parsed: Any, data: dict[str, Array]) -> Tensor:
    """`data` has the flat fields that were read already."""
    for field, values in parsed.ListFields():
        if field.name in BY_FIELD:
            data[field.name] = _as_sent(field.name, _array(values, field.name))
    return Tensor(parsed.name, parsed.dtype, tuple(parsed.shape), data)


def _array(values: Any, name: str) -> Array:
    if name != "flat_string":
        return np.array(values, np.int64 if name.startswith(("flat_int", "flat_uint")) else np.float64)
    strings = np.empty(len(values), np.object_)
    strings[:] = [value.encode() for value in values]
    return strings


def _as_sent(name: str, values: Array) -> Array:
    """What travels as a wider number, as its field's own dtype; half floats beyond their range are infinite."""
    dtype = DTYPES[BY_FIELD[name].datatype]
    if dtype.kind in "iu" and values.size:
        limits = np.iinfo(dtype)
        if values.min() < limits.min or values.max() > limits.max:
            raise InvalidArgument(f"Failed to parse {name} field: a number is out of range.")
    with np.errstate(over="ignore"):
        return values.astype(dtype, copy=False)


# ------------------------------------------------------------------------------------------------------------- writing


def status(code: int, text: str) -> bytes:
    """A message that is its status and nothing more; 200 is success."""
    flag = _SUCCESS if code == 200 else _FAILURE
    written: bytes = GrpsMessage(status={"code": code, "msg": text, "status": flag}).SerializeToString()
    return written


OK: Final = status(200, "OK")


def string_message(text: str) -> list[Buffer]:
    """Success with str_data, even an empty one."""
    data = text.encode("utf-8", "replace")
    return [OK, head(GrpsMessage.DESCRIPTOR.fields_by_name["str_data"].number, len(data)), data]


def bytes_message(data: bytes) -> list[Buffer]:
    """Success with bin_data, even an empty one."""
    return [OK, head(GrpsMessage.DESCRIPTOR.fields_by_name["bin_data"].number, len(data)), data]


def tensors_message(outputs: Tensors) -> list[Buffer]:
    """Success with gtensors. Raises EncodingFailed."""
    return [OK, *gtensors(outputs)]


def gtensors(tensors: Tensors) -> list[Buffer]:
    """The field, its numbers being the arrays' own memory. Raises EncodingFailed."""
    parts: list[Buffer] = []
    for name, array in tensors.items():
        tensor = list(_parts(name, array))
        parts += [head(1, _size(tensor)), *tensor]
    return [head(_GTENSORS, _size(parts)), *parts]


def _parts(name: str, array: Array) -> Iterator[Buffer]:
    row = row_of(array)
    if row is None:
        raise EncodingFailed(f"Output {name} is {datatype_of(array.dtype)}, for which grps has no dtype.")
    start = _Tensor(name=name, dtype=row.number, shape=array.shape)
    if array.dtype == BYTES:
        yield start.SerializeToString()
        yield from _strings(name, array)
        return
    yield start.SerializeToString()
    if array.size:
        data = _content(array)
        yield head(_FLAT[row.field], len(data))
        yield data


def _content(array: Array) -> Buffer:
    if array.dtype.kind in "iu":
        return pack_varints(array)
    floats = array.astype("<f4") if array.dtype == np.float16 else array
    return np.ascontiguousarray(floats).reshape(-1).view(np.uint8).data


def _strings(name: str, array: Array) -> Iterator[Buffer]:
    for value in array.reshape(-1):
        try:
            value.decode()
        except UnicodeDecodeError:
            raise EncodingFailed(f"Output {name} holds bytes that are not UTF-8 text.") from None
        yield head(_FLAT["flat_string"], len(value))
        yield value


def _size(parts: list[Buffer]) -> int:
    return sum(len(part) for part in parts)

"""grps.protos.v1.GrpsMessage in protobuf <-> the fields that `message` reads from JSON, and replies. Contract: grps
v1.1.0.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

import numpy as np
from google.protobuf.message import DecodeError

from tensorgate.adapters.grps.errors import Undecodable
from tensorgate.adapters.grps.options import MapName
from tensorgate.adapters.grps.tensors import BY_FIELD, Array, GrpsTensor, output_row
from tensorgate.adapters.json.texts import array_of
from tensorgate.adapters.protobuf.messages import message
from tensorgate.adapters.protobuf.varints import encode
from tensorgate.adapters.protobuf.wire_format import fields, varint
from tensorgate.gateway.contract.call import Buffer
from tensorgate.gateway.contract.errors import EncodingFailed, InvalidArgument
from tensorgate.gateway.contract.shortcuts import is_taken
from tensorgate.gateway.contract.tensor import BYTES, DTYPES, Tensors

GrpsMessage: Final = message("grps.protos.v1.GrpsMessage")
_Tensor: Final = message("grps.protos.v1.GenericTensor")
_KIND: Final = "GrpsMessage"
_BYTES: Final = 2
_ARMS: Final = {field.number for field in GrpsMessage.DESCRIPTOR.oneofs_by_name["data_oneof"].fields}
_BIN_DATA, _STR_DATA, _GTENSORS = (
    GrpsMessage.DESCRIPTOR.fields_by_name[name].number << 3 | _BYTES for name in ("bin_data", "str_data", "gtensors")
)
_TENSORS: Final = 1 << 3 | _BYTES
_FLAT: Final = {name: _Tensor.DESCRIPTOR.fields_by_name[name].number << 3 | _BYTES for name in BY_FIELD}
_FLOATS: Final[dict[int, tuple[str, np.dtype[Any]]]] = {
    _FLAT["flat_float16"]: ("flat_float16", np.dtype("<f4")),
    _FLAT["flat_float32"]: ("flat_float32", np.dtype("<f4")),
    _FLAT["flat_float64"]: ("flat_float64", np.dtype("<f8")),
}
"""The flat fields that are packed memory: by tag, their names and the dtype of that memory."""
_SUCCESS, _FAILURE = 1, 2
_WALKED_BYTES: Final = 4 << 10 if is_taken("message_cuts") else 1 << 62
"""Smaller messages are cheaper to copy than to walk."""


# ------------------------------------------------------------------------------------------------------------- reading


def read_message(body: Buffer) -> dict[str, Any]:
    """Bytes -> the fields that are set, `gtensors` as a list of GrpsTensor, `gmap` as maps by name.

    Raises Undecodable, or InvalidArgument for a tensor with numbers that its dtype lacks.
    """
    try:
        walked = walk(body) if len(body) >= _WALKED_BYTES else None
        return walked or _read(GrpsMessage.FromString(bytes(body)))
    except DecodeError:
        raise Undecodable("Exception deserializing request!") from None


def walk(body: Buffer) -> dict[str, Any] | None:
    """A message with tensors and without surprises: floats become views of the body. None for any other. Raises
    DecodeError.
    """
    view = memoryview(body)
    try:
        arms = [field for field in fields(body, 0, len(body), _KIND) if field[0] >> 3 in _ARMS]
        if [tag for tag, *_ in arms] != [_GTENSORS]:
            return None
        [(_, begin, data, end)] = arms
        tensors = [_walk_tensor(view, first, last) for _, _, first, last in _only(body, data, end)]
    except (InvalidArgument, _Surprise):  # which protobuf refuses, too, if it does
        return None
    return {**_read(GrpsMessage.FromString(b"".join((view[:begin], view[end:])))), "gtensors": tensors}


class _Surprise(Exception):
    """A message that is put together in an unusual way: protobuf knows what it means."""


def _only(body: Buffer, at: int, end: int) -> Iterator[tuple[int, int, int, int]]:
    """The tensors of gtensors, if there is nothing else."""
    for field in fields(body, at, end, _KIND):
        if field[0] != _TENSORS or field[1] != at:
            raise _Surprise
        at = field[3]
        yield field
    if at != end:
        raise _Surprise


def _walk_tensor(view: memoryview, at: int, end: int) -> GrpsTensor:
    data: dict[str, Array] = {}
    rest: list[Buffer] = []
    for tag, begin, first, last in fields(view, at, end, _KIND):
        if tag not in _FLOATS:
            continue
        name, dtype = _FLOATS[tag]
        if name in data or (last - first) % dtype.itemsize:
            raise _Surprise
        data[name] = _as_sent(name, np.frombuffer(view[first:last], dtype))
        rest.append(view[at:begin])
        at = last
    parsed = _Tensor.FromString(b"".join((*rest, view[at:end])))
    if any(field.name in data for field, _ in parsed.ListFields()):  # numbers of one field, packed and not
        raise _Surprise
    return _tensor(parsed, data)


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


def _tensor(parsed: Any, data: dict[str, Array]) -> GrpsTensor:
    """`data` has the flat fields that were read already."""
    for field, values in parsed.ListFields():
        if field.name in BY_FIELD:
            data[field.name] = _as_sent(field.name, _array(values, field.name))
    return GrpsTensor(parsed.name, parsed.dtype, tuple(parsed.shape), data)


def _array(values: Any, name: str) -> Array:
    if name != "flat_string":
        return np.array(values, np.int64 if name.startswith(("flat_int", "flat_uint")) else np.float64)
    return array_of([value.encode() for value in values])


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
    serialized: bytes = GrpsMessage(status={"code": code, "msg": text, "status": flag}).SerializeToString()
    return serialized


OK: Final = status(200, "OK")


def string_message(text: str) -> list[Buffer]:
    """Success with str_data, even an empty one."""
    return bytes_message(text.encode("utf-8", "replace"), _STR_DATA)


def bytes_message(data: bytes, tag: int = _BIN_DATA) -> list[Buffer]:
    """Success with bin_data, or another field of bytes, even an empty one."""
    return [OK, _head(tag, len(data)), data]


def maps_message(maps: Mapping[MapName, Mapping[str, Any]]) -> list[Buffer]:
    """Success with gmap, even an empty one."""
    written = GrpsMessage()
    written.gmap.SetInParent()
    for name, entries in maps.items():
        field = getattr(written.gmap, name)
        for key, value in entries.items():
            plain = value if isinstance(value, bytes) else value[0].item()
            field[key] = plain.decode() if name == "s_s" else plain
    return [OK, written.SerializeToString()]


def tensors_message(outputs: Tensors) -> list[Buffer]:
    """Success with gtensors. Raises EncodingFailed."""
    return [OK, *gtensors(outputs)]


def gtensors(tensors: Tensors) -> list[Buffer]:
    """The field, its numbers being the arrays' own memory. Raises EncodingFailed."""
    parts: list[Buffer] = []
    for name, array in tensors.items():
        tensor = list(_parts(name, array))
        parts += [_head(_TENSORS, _size(tensor)), *tensor]
    return [_head(_GTENSORS, _size(parts)), *parts]


def _parts(name: str, array: Array) -> Iterator[Buffer]:
    row = output_row(name, array)
    start = _Tensor(name=name, dtype=row.number, shape=array.shape)
    yield start.SerializeToString()
    if array.dtype == BYTES:
        yield from _strings(name, array)
    elif array.size:
        data = _content(array)
        yield _head(_FLAT[row.field], len(data))
        yield data


def _content(array: Array) -> Buffer:
    if array.dtype.kind in "iu":
        return encode(array.reshape(-1))
    floats = array.astype("<f4") if array.dtype == np.float16 else array
    return np.ascontiguousarray(floats).reshape(-1).view(np.uint8).data


def _strings(name: str, array: Array) -> Iterator[Buffer]:
    for value in array.reshape(-1):
        try:
            value.decode()
        except UnicodeDecodeError:
            raise EncodingFailed(f"Output {name} holds bytes that are not UTF-8 text.") from None
        yield _head(_FLAT["flat_string"], len(value))
        yield value


def _size(parts: list[Buffer]) -> int:
    return sum(len(part) for part in parts)


def _head(tag: int, size: int) -> bytes:
    """What stands before so many bytes."""
    return varint(tag) + varint(size)

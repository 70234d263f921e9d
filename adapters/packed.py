"""Repeated numbers of protobuf messages, without a Python object per number.

Packed floats are little-endian memory, in messages as in arrays: `fields` finds where they lie. Packed integers are
varints: `pack_varints` makes those of a whole array at once (protobuf's own way back, np.array over a parsed field, is
as quick as that). Source: the protobuf encoding specification.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np

from gateway.ports import Buffer

Array: TypeAlias = np.ndarray[Any, Any]

VARINT: Final = 0
LENGTH: Final = 2
"""Wire types."""
_MOST_BYTES: Final = 2**31 - 1


class Field(NamedTuple):
    """One field of a message: its number, its wire type, where it starts and where its content lies; of a varint, its
    value.
    """

    number: int
    wire_type: int
    start: int
    begin: int
    end: int
    value: int = 0


def fields(body: Buffer, begin: int, end: int, most: int) -> list[Field] | None:
    """The fields of the message between two places, if they are at most so many, and all varints or of a stated
    length; None for anything else, malformed or not, which is for protobuf to judge.
    """
    found: list[Field] = []
    while begin < end:
        start = begin
        tag, begin = _varint(body, begin, end)
        value, begin = _varint(body, begin, end) if begin else (0, 0)
        number, wire_type = tag >> 3, tag & 7
        if not begin or not number or len(found) == most:
            return None
        if wire_type == VARINT:
            found.append(Field(number, VARINT, start, begin, begin, value))
        elif wire_type == LENGTH and value <= end - begin:
            found.append(Field(number, LENGTH, start, begin, begin + value))
            begin += value
        else:
            return None
    return found


def _varint(body: Buffer, begin: int, end: int) -> tuple[int, int]:
    """A number of at most five bytes, and where it ends: 0 if there is none."""
    value = 0
    for shift, place in zip(range(0, 35, 7), range(begin, end), strict=False):
        byte = body[place]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (value, place + 1) if value <= _MOST_BYTES else (0, 0)
    return 0, 0


def varint(value: int) -> bytes:
    """A number that is not negative."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def head(number: int, size: int) -> bytes:
    """What stands before the content of a field of so many bytes."""
    return varint(number << 3 | LENGTH) + varint(size)


def pack_varints(values: Array) -> bytes:
    """Integers of any dtype -> varints one after the other; negative ones take ten bytes, as in int32 and int64."""
    numbers = values.reshape(-1).astype(np.int64 if values.dtype.kind == "i" else np.uint64).view(np.uint64)
    if not numbers.size:
        return b""
    largest = int(numbers.max())
    if largest < 0x80:
        return numbers.astype(np.uint8).tobytes()
    columns = -(-largest.bit_length() // 7)
    groups = np.empty((numbers.size, columns), np.uint8)
    kept = np.empty(groups.shape, np.bool_)
    for place in range(columns):
        rest = numbers >> np.uint64(7 * place)
        more = rest > 0x7F
        groups[:, place] = rest.astype(np.uint8) & 0x7F | more.view(np.uint8) << 7
        kept[:, place] = rest != 0
    kept[:, 0] = True
    return groups[kept].tobytes()

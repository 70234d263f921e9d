"""Protobuf's packed fields of integers <-> arrays: variable-length integers, many at once.

Each number stands in the fewest bytes that hold it, seven bits to a byte, lowest first; all bytes but its last have the
eighth bit set. A negative one is taken as 64 bits, and so has ten bytes. The compiled helper `_varints` does the same
where it is installed, several times as fast. Source: the protobuf encoding specification.
"""

from __future__ import annotations

from typing import Any, Final, TypeAlias

import numpy as np

from tensorgate.adapters._native import helper
from tensorgate.gateway.contract.call import Buffer

_native_encode = helper("native_varints", "_varints", "encode")
_native_decode = helper("native_varints", "_varints", "decode")

Integers: TypeAlias = np.ndarray[Any, Any]

_KINDS: Final = {np.dtype(kind): kind for kind in ("u1", "u2", "u4", "u8", "i1", "i2", "i4", "i8")}
_MAX_BYTES: Final = 10
_DIGIT: Final = np.uint8(0x7F)
_CHUNK: Final = 1 << 14
"""Numbers whose bytes stay in the processor's cache."""


def encode(numbers: Integers) -> Buffer:
    """An array of integers or truth values, of one dimension -> its bytes."""
    if numbers.dtype.kind == "b":
        return _plain(numbers.view(np.uint8))
    return _native_encode(np.ascontiguousarray(numbers), _KINDS[numbers.dtype]) if _native_encode else _encode(numbers)


def _encode(numbers: Integers) -> Buffer:
    if not numbers.size:
        return b""
    smallest, largest = numbers.min(), numbers.max()
    if smallest >= 0 and largest <= _DIGIT:
        return _plain(numbers.astype(np.uint8))
    wide = numbers.astype(np.int64).view(np.uint64) if numbers.dtype.kind == "i" else numbers.astype(np.uint64)
    width = _MAX_BYTES if smallest < 0 else -(-int(largest).bit_length() // 7)
    return b"".join([_encode_chunk(wide[at : at + _CHUNK], width) for at in range(0, wide.size, _CHUNK)])


def _plain(digits: Integers) -> Buffer:
    """Numbers below 128 are their own bytes."""
    view: memoryview = np.ascontiguousarray(digits).data
    return view


def _encode_chunk(numbers: Integers, width: int) -> bytes:
    """Numbers of at most `width` bytes: every byte that each of them could have, then those that it does."""
    places = np.empty((numbers.size, width), np.uint8)
    is_used = np.empty((numbers.size, width), np.bool_)
    is_used[:, 0] = True
    rest = numbers
    for place in range(width):
        places[:, place] = rest
        rest = rest >> np.uint64(7)
        if place + 1 < width:
            is_used[:, place + 1] = rest != 0
    places[:, :-1] &= _DIGIT
    places[:, :-1] |= is_used[:, 1:].view(np.uint8) << np.uint8(7)
    places[:, -1] &= _DIGIT
    return places[is_used].tobytes()


def decode(data: Buffer) -> Integers | None:
    """Bytes -> the numbers as uint64, lowest 64 bits of each; None where they end within a number, or one is too long.

    Where all are below 128 they may come as the bytes that they are, in uint8.
    """
    digits = np.frombuffer(data, np.uint8)
    if not digits.size or digits.max() <= _DIGIT:
        return digits
    if not _native_decode:
        return _decode(digits)
    numbers = _native_decode(data)
    return None if numbers is None else np.frombuffer(numbers, np.uint64)


def _decode(digits: Integers) -> Integers | None:
    if digits[-1] > _DIGIT:
        return None
    ends = np.flatnonzero(digits <= _DIGIT)
    begins = np.empty_like(ends)
    begins[0] = 0
    begins[1:] = ends[:-1] + 1
    width = int((ends - begins).max()) + 1
    if width > _MAX_BYTES:
        return None
    numbers = np.empty(begins.size, np.uint64)
    for at in range(0, begins.size, _CHUNK):
        numbers[at : at + _CHUNK] = _decode_chunk(digits, begins[at : at + _CHUNK], ends[at : at + _CHUNK], width)
    return numbers


def _decode_chunk(digits: Integers, begins: Integers, ends: Integers, width: int) -> Integers:
    """Digit by digit, from each number's last to its first; where a number has fewer, what is read counts as none."""
    numbers = np.zeros(begins.size, np.uint64)
    for place in range(width - 1, -1, -1):
        at = begins + place
        has = at <= ends
        digit = digits[np.minimum(at, ends)] & _DIGIT
        numbers <<= np.uint64(7)
        numbers |= np.where(has, digit, np.uint8(0))
    return numbers

"""BYTES tensors <-> JSON strings, and length-prefixed raw bytes, in pieces: they are very many small objects.

What Python does to all elements of an array in one step (to list them, to join them, to write them as JSON) keeps the
interpreter for milliseconds where they are a hundred thousand, and nobody else is served meanwhile. So they are read
and written a few thousand at a time. The compiled helper `_texts` does most of that without the interpreter, and
several times as fast; without it, everything works.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Any, Final, TypeAlias

import numpy as np

from tensorgate.adapters._native import helper
from tensorgate.gateway.contract.call import Buffer
from tensorgate.gateway.contract.tensor import BYTES, Array

_native_lengths = helper("native_texts", "_texts", "write_lengths")
_native_read_lengths = helper("native_texts", "_texts", "read_lengths")
_native_json = helper("native_texts", "_texts", "write_json")
_native_read_json = helper("native_texts", "_texts", "read_json")

PIECE: Final = 4096
"""Elements with which any one step is done in some tenths of a millisecond."""
LENGTH: Final = struct.Struct("<I")
Texts: TypeAlias = np.ndarray[Any, Any]


def pieces(array: Array) -> Iterator[list[bytes]]:
    """The elements in row-major order, as lists."""
    flat = array.reshape(-1)
    for at in range(0, flat.size, PIECE):
        yield flat[at : at + PIECE].tolist()


def array_of(texts: Sequence[bytes]) -> Texts:
    """-> array of one dimension."""
    flat: Texts = np.empty(len(texts), BYTES)
    for at in range(0, len(texts), PIECE):
        flat[at : at + PIECE] = texts[at : at + PIECE]
    return flat


def joined(parts: list[bytes]) -> Buffer:
    """The parts as one: bytes.join keeps the interpreter to itself, NumPy gives it away while it copies."""
    if len(parts) == 1:
        return parts[0]
    whole = np.empty(sum(map(len, parts)), np.uint8)
    at = 0
    for part in parts:
        whole[at : at + len(part)] = np.frombuffer(part, np.uint8)
        at += len(part)
    view: memoryview = whole.data
    return view


# ---------------------------------------------------------------------------------------------------------- raw bytes


def with_lengths(array: Array) -> Buffer:
    """Each element's length as a uint32, then the element."""
    return joined([(_native_lengths or _with_lengths)(texts) for texts in pieces(array)]) if array.size else b""


def _with_lengths(texts: list[bytes]) -> bytes:
    return b"".join([part for text in texts for part in (LENGTH.pack(len(text)), text)])


def read_lengths(data: memoryview, max_count: int) -> tuple[list[bytes], int]:
    """Up to `max_count` elements that stand behind their lengths, as far as they are whole, and where they end."""
    texts: list[bytes] = []
    at = 0
    read = _native_read_lengths or _read_lengths
    while max_count > len(texts):
        some, at = read(data, at, min(max_count - len(texts), PIECE))
        texts += some
        if len(some) < PIECE:
            break
    return texts, at


def _read_lengths(data: Buffer, at: int, max_count: int) -> tuple[list[bytes], int]:
    texts: list[bytes] = []
    end = len(data)
    while len(texts) < max_count and end - at >= LENGTH.size:
        stop = at + LENGTH.size + LENGTH.unpack_from(data, at)[0]
        if stop > end:
            break
        texts.append(bytes(data[at + LENGTH.size : stop]))
        at = stop
    return texts, at


# --------------------------------------------------------------------------------------------------------------- JSON


def json_strings(array: Array, between: bytes, *, upper: bool, utf8: bool) -> list[bytes] | None:
    """The elements as JSON strings with these bytes between them, in parts; None where one is not in UTF-8, if that
    matters (else all bytes but ASCII's stay what they are), or without the compiled helper.

    Escaped are quotes, backslashes and control characters, with hexadecimal digits in upper case if `upper`.
    """
    if _native_json is None:
        return None
    parts = []
    for texts in pieces(array):
        part = _native_json(texts, between, upper, utf8)
        if part is None:
            return None
        parts.append(part)
    if parts:
        parts[0] = parts[0][len(between) :]
    return parts


def read_json(text: Buffer, start: int) -> tuple[Texts, int] | None:
    """The array whose '[' is text[start] -> array of one dimension, and the offset behind it; the same strings, in
    UTF-8, as a document has.

    None for everything but an array of strings that are right, one at least, and always None without the compiled
    helper: the caller then goes the way that words errors.
    """
    if _native_read_json is None or text[start : start + 1] != b"[":
        return None
    texts: list[bytes] = []
    at, closed = start + 1, False
    while not closed:
        found = _native_read_json(text, at, PIECE)
        if found is None:
            return None
        some, at, closed = found
        texts += some
    return array_of(texts), at

"""JSON as the Python server lays it out: every member and every element on a line of its own, one space deeper per
level (two inside a stream), what is not ASCII escaped, no newline at the end.

Values are printed as lists of buffers, so that a megabyte of numbers is never copied into its envelope. The digits are
orjson's, shortest that read back to the same value, set as Python does: 1e-05.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from typing import Any, Final, TypeAlias

import numpy as np
import orjson

from gateway.ports import Buffer

JSON: Final = "application/json;charset=utf-8"
BYTES_TYPE: Final = "application/octet-stream"
"""The content type of raw bytes, and of a stream of anything."""

Printed: TypeAlias = list[bytes]
"""Buffers that make one JSON value when joined."""

Array: TypeAlias = np.ndarray[Any, Any]

_DEEPEST_KEPT: Final = 16
_LEAST_PLAIN, _LEAST_EXPONENT = 1e-4, 1e16
"""Between these Python writes no exponent."""
_FIRST_SHORTENED: Final = 1e13
"""From here on orjson does, for 32-bit floats."""
_MOST_REWRITTEN: Final = 4096
_NEWLINES: Final = {
    indent: tuple(b"\n" + b" " * (indent * level) for level in range(_DEEPEST_KEPT)) for indent in (1, 2)
}


def newline(level: int, indent: int) -> bytes:
    """A line's end and the next one's indentation."""
    return _NEWLINES[indent][level] if level < _DEEPEST_KEPT else b"\n" + b" " * (indent * level)


def text(value: str) -> bytes:
    """A string, escaped down to ASCII."""
    return json.dumps(value).encode()


def members(pairs: Iterable[tuple[str, Printed]], level: int, indent: int) -> Printed:
    """An object whose braces stand at `level`."""
    return _lines([[b'"%b": ' % key.encode(), *value] for key, value in pairs], b"{}", level, indent)


def elements(values: Sequence[Printed], level: int, indent: int) -> Printed:
    """An array whose brackets stand at `level`."""
    return _lines(values, b"[]", level, indent)


def _lines(values: Sequence[Printed], brackets: bytes, level: int, indent: int) -> Printed:
    if not values:
        return [brackets]
    inner = newline(level + 1, indent)
    printed = [brackets[:1] + inner, *values[0]]
    for value in values[1:]:
        printed.append(b"," + inner)
        printed += value
    printed.append(newline(level, indent) + brackets[1:])
    return printed


def _status(code: int, message: str, indent: int) -> Printed:
    flag = b'"SUCCESS"' if code == 200 else b'"FAILURE"'
    return members([("code", [b"%d" % code]), ("msg", [text(message)]), ("status", [flag])], 1, indent)


_OPENINGS: Final = {
    indent: b"{" + newline(1, indent) + b'"status": ' + b"".join(_status(200, "OK", indent)) for indent in (1, 2)
}


def envelope(code: int, message: str, indent: int = 1) -> bytes:
    """A reply that is its status and nothing more."""
    return b"".join(members([("status", _status(code, message, indent))], 0, indent))


def success(key: str, value: Printed, indent: int = 1) -> Printed:
    """A successful reply with its one data member, whose value was printed at level 1."""
    return [_OPENINGS[indent] + b"," + newline(1, indent) + b'"%b": ' % key.encode(), *value, newline(0, indent) + b"}"]


# -------------------------------------------------------------------------------------------------------------- arrays


def numbers(flat: Array, level: int, indent: int, *, quoted: bool = False) -> Printed:
    """A flat array of numbers, one or more; `quoted` writes them as strings, as JSON has 64-bit integers."""
    mark = b'"' if quoted else b""
    inner = newline(level + 1, indent)
    lines = compact(flat)[1:-1].replace(b",", mark + b"," + inner + mark)
    return [b"[" + inner + mark, lines, mark + newline(level, indent) + b"]"]


def strings(values: Sequence[str], level: int, indent: int) -> Printed:
    """A list of strings, one or more."""
    inner = newline(level + 1, indent)
    printed = json.dumps(values, separators=("," + inner.decode(), ": "))
    return [b"[" + inner, printed[1:-1].encode(), newline(level, indent) + b"]"]


def nested(array: Array, level: int, indent: int) -> Printed:
    """An array of any rank as nested lists; rank 0 is a bare number."""
    rank = array.ndim
    if not rank:
        return [compact(array.reshape(1))[1:-1]]
    if not array.size:
        return [json.dumps(array.tolist(), indent=indent).encode().replace(b"\n", newline(level, indent))]
    lines = _marked(array).replace(b",", b"," + newline(level + rank, indent))
    for count in range(1, rank):
        outer = level + rank - count
        seam = _closing(level + rank, count, indent) + b"," + newline(outer, indent) + _opening(outer, count, indent)
        lines = lines.replace(_mark(count), seam)
    return [_opening(level, rank, indent), lines, _closing(level + rank, rank, indent)]


def _mark(count: int) -> bytes:
    """A byte that no number has, for the seam where that many arrays end and as many begin."""
    return bytes([128 + count])


def _marked(array: Array) -> bytes:
    """The numbers of an array: a comma between two of a row, a mark between two rows. [[1,2],[3,4]] -> 1,2\\x813,4

    bytes.replace is quick for single bytes alone, so each seam is made one: its bracket becomes the mark, which the
    row's index tells, and the comma and bracket behind it go with all other brackets.
    """
    rows = compact(array.reshape(-1, array.shape[-1]))
    if array.size == array.shape[-1]:
        return rows[2:-2]
    text = np.frombuffer(rows, np.uint8).copy()
    ends = np.flatnonzero(text == ord("]"))[:-2]
    index = np.arange(1, len(ends) + 1)
    marks = np.full(len(ends), 129, np.uint8)
    for axis in range(array.ndim - 2, 0, -1):
        marks += index % math.prod(array.shape[axis:-1]) == 0
    text[ends] = marks
    text[ends + 1] = ord("[")
    return text.tobytes().replace(b"[", b"")[:-2]


def _opening(level: int, count: int, indent: int) -> bytes:
    """That many brackets one in the other, the first at `level`, up to where the innermost value begins."""
    return b"".join(b"[" + newline(level + each + 1, indent) for each in range(count))


def _closing(level: int, count: int, indent: int) -> bytes:
    """The end of that many arrays whose innermost values stand at `level`."""
    return b"".join(newline(level - each - 1, indent) + b"]" for each in range(count))


def compact(array: Array) -> bytes:
    """orjson's text of an array of rank 1 or more, with Python's where they differ; what is not finite as strings."""
    if array.dtype.kind != "f":
        return _dumped(array)
    odd = _written_otherwise(array)
    if not odd.any():
        return _dumped(array)
    known = array.copy()
    known[odd] = np.nan  # null to orjson
    text = _dumped(known)
    view, begin = memoryview(text), 0
    spliced: list[Buffer] = []
    for name in _in_python(array[odd]):
        null = text.index(b"n", begin)  # nothing else has this letter, and one byte is found quickly
        spliced += (view[begin:null], name)
        begin = null + 4
    return b"".join((*spliced, view[begin:]))


def _dumped(array: Array) -> bytes:
    return orjson.dumps(np.ascontiguousarray(array), option=orjson.OPT_SERIALIZE_NUMPY)


def _written_otherwise(array: Array) -> Array:
    """Where orjson's text is not Python's: 0.00001 is 1e-05 there, and 1e+13 of 32 bits has all of its digits. Each
    costs a third of a microsecond, so very many stay as they are, equal numbers.
    """
    size = np.abs(array)
    odd = (size < _LEAST_PLAIN) & (size > 0)
    if array.dtype == np.float32:
        odd |= (size >= _FIRST_SHORTENED) & (size < _LEAST_EXPONENT)
    if np.count_nonzero(odd) > _MOST_REWRITTEN:
        odd[:] = False
    return odd | ~np.isfinite(array)


def _in_python(values: Array) -> list[bytes]:
    """The texts of some values: their shortest digits, as Python sets them."""
    finite = np.isfinite(values)
    names = np.where(np.isnan(values), b'"NaN"', np.where(values > 0, b'"Infinity"', b'"-Infinity"')).astype(np.object_)
    if finite.any():
        names[finite] = json.dumps(orjson.loads(_dumped(values[finite])))[1:-1].encode().split(b", ")
    texts: list[bytes] = names.tolist()
    return texts

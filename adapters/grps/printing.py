"""JSON as the Python server lays it out: every member and every element on a line of its own, one space deeper per
level (two inside a stream), what is not ASCII escaped, no newline at the end.

Values are printed as lists of buffers, so that a megabyte of numbers is never copied into its envelope. The digits are
orjson's, shortest that read back to the same value; Python writes those of 0.00001 as 1e-05, which is all that differs.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from typing import Any, Final, TypeAlias

import numpy as np
import orjson

JSON: Final = "application/json;charset=utf-8"
BYTES_TYPE: Final = "application/octet-stream"
"""The content type of raw bytes, and of a stream of anything."""

Printed: TypeAlias = list[bytes]
"""Buffers that make one JSON value when joined."""

Array: TypeAlias = np.ndarray[Any, Any]

_DEEPEST_KEPT: Final = 16
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
    """orjson's text of an array of rank 1 or more; what is not finite, which it makes null, as strings."""
    printed = orjson.dumps(np.ascontiguousarray(array), option=orjson.OPT_SERIALIZE_NUMPY)
    if array.dtype.kind != "f":
        return printed
    finite = np.isfinite(array)
    return printed if finite.all() else _with_names(printed, array[~finite])


def _with_names(printed: bytes, strange: Array) -> bytes:
    """Put the names of these values, in row-major order, where the text has null."""
    names = np.where(np.isnan(strange), "NaN", np.where(strange > 0, "Infinity", "-Infinity")).tolist()
    pieces = printed.split(b"null")
    spliced = [pieces[0]]
    for name, piece in zip(names, pieces[1:], strict=True):
        spliced += (b'"%b"' % name.encode(), piece)
    return b"".join(spliced)

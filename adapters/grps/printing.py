"""JSON as the Python server lays it out: every member and every element on a line of its own, one space deeper per
level (two inside a stream), what is not ASCII escaped, no newline at the end.

Values are printed as lists of buffers, so that a megabyte of numbers is never copied into its envelope.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Final, TypeAlias

from tensorgate.adapters.grps.number_text import joined
from tensorgate.adapters.grps.tensors import Array
from tensorgate.adapters.json.texts import PIECE
from tensorgate.gateway.contract.call import Buffer

JSON: Final = "application/json;charset=utf-8"
BYTES_TYPE: Final = "application/octet-stream"
"""The content type of raw bytes, and of a stream of anything."""

Printed: TypeAlias = list[Buffer]
"""Buffers that make one JSON value when joined."""


def newline(level: int, indent: int) -> bytes:
    """A line's end and the next one's indentation."""
    return b"\n" + b" " * (indent * level)


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
    lines = joined(flat, (mark + b"," + inner + mark,))
    return [b"[" + inner + mark, lines, mark + newline(level, indent) + b"]"]


def strings(values: Sequence[str], level: int, indent: int) -> Printed:
    """A list of strings, one or more."""
    inner = newline(level + 1, indent)
    separators = ("," + inner.decode(), ": ")
    printed: Printed = [b"[" + inner]
    for at in range(0, len(values), PIECE):
        some = json.dumps(values[at : at + PIECE], separators=separators)[1:-1].encode()
        printed += (b"," + inner, some) if at else (some,)
    return [*printed, newline(level, indent) + b"]"]


def nested(array: Array, level: int, indent: int) -> Printed:
    """A float32 array of any rank as nested lists of the doubles that equal its numbers, 0.10000000149011612 for 0.1;
    rank 0 is a bare number.
    """
    rank = array.ndim
    if not rank:
        return [joined(array.reshape(1), (b"",), widened=True)]
    if not array.size:
        return [json.dumps(array.tolist(), indent=indent).encode().replace(b"\n", newline(level, indent))]
    lines = joined(array, tuple(_seam(level + rank, count, indent) for count in range(rank)), widened=True)
    return [_opening(level, rank, indent), lines, _closing(level + rank, rank, indent)]


def _seam(level: int, count: int, indent: int) -> bytes:
    """What stands between two numbers of this level where that many arrays end, and as many begin."""
    outer = level - count
    return _closing(level, count, indent) + b"," + newline(outer, indent) + _opening(outer, count, indent)


def _opening(level: int, count: int, indent: int) -> bytes:
    """That many brackets one in the other, the first at `level`, up to where the innermost value begins."""
    return b"".join(b"[" + newline(level + each + 1, indent) for each in range(count))


def _closing(level: int, count: int, indent: int) -> bytes:
    """The end of that many arrays whose innermost values stand at `level`."""
    return b"".join(newline(level - each - 1, indent) + b"]" for each in range(count))

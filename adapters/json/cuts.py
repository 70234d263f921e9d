"""Arrays of a JSON body that are read where they stand, by `body.scan`, and not with the document around them.

To read a document keeps the interpreter for itself, a millisecond for each megabyte and ten where something is wrong
with it, and nobody else is served meanwhile. The compiled helpers find arrays of nothing but numbers, and of nothing
but strings, without it.

A *lone array* is all of its body but a few known words, {"instances": [...]} or {"model": "a", "ndarray": [...]}: a
regular expression takes the words, and nothing is read as a document. Everything else (more members, escapes in a
string, text behind the object, what is no plain array of numbers) is read as one, which words every error: here
nothing ever fails.

From any other large body the long arrays are *cut*: a mark takes the place of each, and the small text that is left is
read as a document. Where that names an array's dtype, its numbers are scanned in the body; its strings are read there a
few thousand at a time. What was cut out was valid, and so is a mark, so a syntax error of the text is one of the body,
only elsewhere: `Cuts.offset` tells where. No caller can know a mark. Whatever else is wrong with a request is to be
found in the whole body, whose own values stand in error texts.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from tensorgate.adapters._native import helper
from tensorgate.adapters.json.body import ARRAY, is_deeper, scan
from tensorgate.gateway.contract.call import Buffer
from tensorgate.gateway.contract.errors import ErrorReason, GatewayError
from tensorgate.gateway.contract.shortcuts import is_taken
from tensorgate.gateway.contract.tensor import Array

_long_arrays = helper("array_cuts", "_numbers", "long_arrays")
_long_texts = helper("array_cuts", "_texts", "long_arrays")

MIN_BODY_BYTES: Final = 256 << 10
"""Smaller bodies are read in less time than two threads take to hand the interpreter to each other."""
_MIN_BYTES: Final = 4 << 10
_SECRET: Final = secrets.token_hex(16)
_IS_TAKEN: Final = is_taken("lone_arrays")
_SPACE: Final = rb"[ \t\n\r]*"
_PLAIN_STRING: Final = rb'"([ !#-\[\]-~]*)"'
"""Printable ASCII without quotes and backslashes."""
_CLOSE: Final = re.compile(_SPACE + rb"\}" + _SPACE)


# --------------------------------------------------------------------------------------------------------- lone arrays


class Opened(NamedTuple):
    """What a body says before its lone array: the value of the string member, "" if there is none, the array's key, and
    where its bracket stands.
    """

    text: str
    key: str
    start: int


class Envelope:
    """Objects with an array under one of some keys, and perhaps a string member in front of it."""

    def __init__(self, string: str, *arrays: str) -> None:
        text = rb'(?:"%b"' % string.encode() + _SPACE + b":" + _SPACE + _PLAIN_STRING + _SPACE + b"," + _SPACE + b")?"
        keys = b'"(' + b"|".join(key.encode() for key in arrays) + b')"'
        self._open = re.compile(_SPACE + rb"\{" + _SPACE + text + keys + _SPACE + b":" + _SPACE + rb"(?=\[)")

    def open(self, body: Buffer) -> Opened | None:
        """How a body begins, if it begins like this."""
        found = self._open.match(body) if _IS_TAKEN else None
        if found is None:
            return None
        text, key = found.groups()
        return Opened("" if text is None else bytes(text).decode(), bytes(key).decode(), found.end())


def lone_array(body: Buffer, opened: Opened, dtype: np.dtype[Any], max_depth: int) -> Array | None:
    """The array of an opened envelope -> array of `dtype` in the shape of its nesting, on the host. None if it is empty
    or anything but a rectangular array of numbers that fit, or more follows than the end of the object, or the body is
    nested deeper than `max_depth`.
    """
    found = scan(body, opened.start, dtype)
    if found is None:
        return None
    array, end = found
    fits = array.size and array.ndim < max_depth and _CLOSE.fullmatch(body, end)
    return array if fits else None


# ---------------------------------------------------------------------------------------------------------------- cuts


class NotAsNumbers(GatewayError):
    """An array that was cut out is not what its dtype takes."""

    error_reason = ErrorReason.DTYPE


class Cuts:
    """A body without the arrays at these places. `text` is what is left of it."""

    def __init__(self, body: bytes, places: Sequence[tuple[int, int]]) -> None:
        self._body = body
        self._places = places
        self._taken: set[int] = set()
        self.text = without(body, places)

    def numbers(self, value: Any, dtype: np.dtype[Any]) -> Array | None:
        """The array that a value of the document stands for, in the shape of its nesting, on the host; None if it is no
        mark. Raises NotAsNumbers.
        """
        number = marked(value)
        if number is None:
            return None
        self._taken.add(number)
        begin, end = self._places[number]
        found = scan(self._body, begin, dtype)
        if found is None or found[1] != end:
            raise NotAsNumbers
        return found[0]

    @property
    def is_all_taken(self) -> bool:
        """Whether every array was asked for. Of one that was not, the mark may have been taken for a caller's text."""
        return len(self._taken) == len(self._places)

    def offset(self, offset: int) -> int:
        """Where a place of the text is in the body."""
        for number, (begin, end) in enumerate(self._places):
            if offset <= begin:
                break
            offset += end - begin - len(_mark(number))
        return offset


def cut(body: bytes, max_depth: int) -> Cuts | None:
    """A large body without its long arrays; None if it has none, is not large, or is nested deeper than `max_depth`."""
    if _long_arrays is None or len(body) < MIN_BODY_BYTES or is_deeper(body, max_depth):
        return None
    places = _long_arrays(body, _MIN_BYTES)
    if _long_texts is not None and len(body) - sum([end - begin for begin, end in places]) >= MIN_BODY_BYTES:
        places = sorted(places + _long_texts(body, _MIN_BYTES))
    return Cuts(body, places) if places else None


def without(body: Buffer, places: Sequence[tuple[int, int]]) -> bytes:
    """A body with a mark in the place of each array."""
    kept: list[Buffer] = []
    view, begin = memoryview(body), 0
    for number, (at, end) in enumerate(places):
        kept += view[begin:at], _mark(number)
        begin = end
    return b"".join((*kept, view[begin:]))


def _mark(number: int) -> bytes:
    return b'["%b%d"]' % (_SECRET.encode(), number)


def marked(value: Any) -> int | None:
    """The number of the array whose mark this value of a document is; None if it is no mark."""
    mark = value[0] if isinstance(value, ARRAY) and len(value) == 1 else None
    return int(mark[len(_SECRET) :]) if isinstance(mark, str) and mark.startswith(_SECRET) else None

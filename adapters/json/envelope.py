"""Bodies that are one array and a few bytes around it: {"instances": [...]}, {"model": "a", "ndarray": [...]}.

Such a body needs no document. What may stand before the array and behind it are a handful of texts, which a regular
expression takes whole, and the array itself is scanned where it stands. Everything else (more members, escapes in a
string, text behind the object, what is no plain array of numbers) is no envelope, and read as a document, which words
every error: here nothing ever fails.
"""

from __future__ import annotations

import re
from typing import Any, Final, NamedTuple

import numpy as np

from tensorgate.adapters.json.body import scan
from tensorgate.gateway.contract.call import Buffer
from tensorgate.gateway.contract.shortcuts import is_taken
from tensorgate.gateway.contract.tensor import Array

_IS_TAKEN: Final = is_taken("lone_arrays")
_SPACE: Final = rb"[ \t\n\r]*"
_PLAIN_STRING: Final = rb'"([ !#-\[\]-~]*)"'
"""Printable ASCII without quotes and backslashes."""
_CLOSE: Final = re.compile(_SPACE + rb"\}" + _SPACE)


class Opened(NamedTuple):
    """What an envelope says before its array."""

    text: str
    """The value of the string member, "" if there is none."""
    key: str
    """The array's."""
    start: int
    """Where its bracket stands in the body."""


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

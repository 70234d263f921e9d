"""Documents without their long arrays of numbers, and of strings.

To read a document keeps the interpreter for itself, a millisecond for each megabyte and ten where something is wrong
with it, and nobody else is served meanwhile. The compiled helpers find arrays of nothing but numbers, and of nothing
but strings, without it. They are cut out: a mark takes the place of each, and the small text that is left is read as a
document. Where that names an array's dtype, its numbers are scanned in the body, again without the interpreter; its
strings are read there a few thousand at a time.

What was cut out was valid, and so is a mark, so a syntax error of the text is one of the body, only elsewhere:
`Cuts.offset` tells where. No caller can know a mark. Whatever else is wrong with a request is to be found in the whole
body, whose own values stand in error texts.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from tensorgate.adapters.json.body import ARRAY, is_deeper, scan
from tensorgate.gateway.contract.errors import GatewayError
from tensorgate.gateway.contract.shortcuts import require
from tensorgate.gateway.contract.tensor import Array

try:
    require("array_cuts")
    from tensorgate.adapters._native import _numbers
except ImportError:  # built where there is a compiler
    _long_arrays = None
else:
    _long_arrays = getattr(_numbers, "long_arrays", None)  # absent in one of an older source
try:
    require("array_cuts")
    from tensorgate.adapters._native import _texts
except ImportError:
    _long_texts = None
else:
    _long_texts = _texts.long_arrays

MIN_BODY_BYTES: Final = 256 << 10
"""Smaller bodies are read in less time than two threads take to hand the interpreter to each other."""
_MIN_BYTES: Final = 4 << 10
_SECRET: Final = secrets.token_hex(16)


class NotAsNumbers(GatewayError):
    """An array that was cut out is not what its dtype takes."""


class Cuts:
    """A body without the arrays at these places. `text` is what is left of it."""

    def __init__(self, body: bytes, places: Sequence[tuple[int, int]]) -> None:
        self._body = body
        self._places = places
        self._taken: set[int] = set()
        kept: list[bytes | memoryview] = []
        view, begin = memoryview(body), 0
        for number, (at, end) in enumerate(places):
            kept += view[begin:at], _mark(number)
            begin = end
        self.text = b"".join((*kept, view[begin:]))

    def numbers(self, value: Any, dtype: np.dtype[Any]) -> Array | None:
        """The array that a value of the document stands for, in the shape of its nesting, on the host; None if it is no
        mark. Raises NotAsNumbers.
        """
        mark = value[0] if isinstance(value, ARRAY) and len(value) == 1 else None
        if not isinstance(mark, str) or not mark.startswith(_SECRET):
            return None
        number = int(mark[len(_SECRET) :])
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


def _mark(number: int) -> bytes:
    return b'["%b%d"]' % (_SECRET.encode(), number)


def cut(body: bytes, max_depth: int) -> Cuts | None:
    """A large body without its long arrays; None if it has none, is not large, or is nested deeper than `max_depth`."""
    if _long_arrays is None or len(body) < MIN_BODY_BYTES or is_deeper(body, max_depth):
        return None
    places = _long_arrays(body, _MIN_BYTES)
    if _long_texts is not None and len(body) - sum([end - begin for begin, end in places]) >= MIN_BODY_BYTES:
        places = sorted(places + _long_texts(body, _MIN_BYTES))
    return Cuts(body, places) if places else None

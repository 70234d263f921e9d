"""Documents that nest deeper than a parser's stack allows, cut down to one that does not.

The original's parser needs no stack, so depth is without limit. What stands deeper than any tensor may have dimensions,
and deeper than an error text shows, makes no difference as long as it is JSON. So the document is cut into bands of
levels: the first one, in which what is deeper is empty arrays and objects, is the document to read; the values of every
other band are read side by side, as elements of one array, to see that they are JSON.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from tensorgate.adapters.json.body import STRING, read
from tensorgate.gateway.contract.errors import MalformedJson

BAND: Final = 900
"""Levels of a band."""
_MAX_BYTES: Final = 8 << 20
"""As cutting takes twenty times the memory, larger documents are left as they are."""

Numbers = np.ndarray[Any, Any]


def cut(body: bytes) -> tuple[bytes, Numbers] | None:
    """The document without what is deeper than a band, and where its bytes stood. None if it is too large, or no JSON
    below there.
    """
    if len(body) > _MAX_BYTES:
        return None
    text = np.frombuffer(body, np.uint8)
    levels, brackets, closing = _levels(body)
    ends = ((levels == 1) & closing).nonzero()[0]
    if not ends.size:
        return None
    end = ends[0] + 1
    text, levels, brackets, closing = text[:end], levels[:end], brackets[:end], closing[:end]
    first, *others = _bands(levels, brackets)
    for number, band in enumerate(others, 1):
        if not _is_json(text[band], closing[band] & (levels[band] == number * BAND + 1)):
            return None
    return text[first].tobytes(), first


def _levels(body: bytes) -> tuple[Numbers, Numbers, Numbers]:
    """The level of every byte, brackets as deep as what they hold; and which bytes are brackets, which closing ones."""
    text = np.frombuffer(STRING.sub(lambda found: b'"' * len(found[0]), body), np.uint8)
    opening = (text == ord("[")) | (text == ord("{"))
    closing = (text == ord("]")) | (text == ord("}"))
    levels = np.cumsum(opening.astype(np.int32) - closing, dtype=np.int32) + closing
    return levels, opening | closing, closing


def _bands(levels: Numbers, brackets: Numbers) -> list[Numbers]:
    """The bytes of every band, by their places: those of its levels, and the brackets of the next one's values."""
    number = np.maximum(levels - 1, 0) // BAND
    outer = (brackets & (number > 0) & ((levels - 1) % BAND == 0)).nonzero()[0]
    places = np.concatenate([np.arange(levels.size), outer])
    numbers = np.concatenate([number, number[outer] - 1])
    order = np.lexsort((places, numbers))
    return np.split(places[order], np.cumsum(np.bincount(numbers))[:-1])


def _is_json(text: Numbers, ends: Numbers) -> bool:
    """Whether values are JSON that stand one after the other, each up to its end."""
    separated = np.repeat(text, 1 + ends)
    separated[np.cumsum(1 + ends)[ends] - 1] = ord(",")
    try:
        read(b"[" + separated.tobytes() + b"0]", BAND + 2)
    except MalformedJson:
        return False
    return True

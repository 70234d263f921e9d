"""JSON documents -> values, as TensorFlow Serving reads them where `json.body` reads something else.

Its parser is RapidJSON 1.1, run so that deep documents need no stack: it words two errors differently, stops at the end
of the document, has no integers larger than a double, and does not look at the encoding of strings. Strings that are
not UTF-8 are therefore bytes like all others. Here they are `str` with surrogates for the bytes that do not fit
(Python's surrogateescape), which `json_text.utf8` turns back.

Depth is without limit there. What stands deeper than any tensor may have dimensions, and deeper than an error text
shows, makes no difference as long as it is JSON. So a document that nests deeper than a parser's stack allows is `cut`
into bands of levels: the first one, in which what is deeper is empty arrays and objects, is the document to read; the
values of every other band are read side by side, as elements of one array, to see that they are JSON.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any, Final

import numpy as np

from tensorgate.adapters.json.body import STRING, object_of, read
from tensorgate.gateway.contract.call import Buffer
from tensorgate.gateway.contract.errors import MalformedJson

_WHITE_SPACE: Final = re.compile(r"\ufeff?[ \t\n\r]*")
TOO_DEEP: Final = "nesting deeper"
"""How the reason begins."""
_NOT_UTF8: Final = "Invalid encoding in string."
_DOUBLE_DIGITS: Final = 308
_LONG_NUMBER: Final = re.compile(rb"[0-9]{%d}" % _DOUBLE_DIGITS)
_STEP: Final = 16
_IN_STEPS: Final = b"\1" * (_DOUBLE_DIGITS // _STEP)
"""So many of its digits stand where only every sixteenth byte of a text is looked at."""
_STRING_OR_NUMBER: Final = re.compile(
    rb'"[^"\\]*(?:\\.[^"\\]*)*"?|-?[0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?', re.DOTALL
)
_ENDS: Final = frozenset(b"]},:")
_python: Final = json.JSONDecoder(object_pairs_hook=object_of)


def read_document(body: bytes, max_depth: int) -> Any:
    """Bytes -> value, as `json_body.read` has it. Raises MalformedJson."""
    try:
        value = read(body, max_depth, ignore_trailing=True)
    except MalformedJson as error:
        if error.reason == _NOT_UTF8 and error.offset is not None and body[error.offset] >= 0x80:
            return _read_bytes(body, max_depth)
        _refuse_too_big(memoryview(body)[: error.offset])
        raise _as_original(error, body) from None
    if isinstance(value, (dict, list, int)):  # not of simdjson, which knows no such integers
        _refuse_too_big(body)
    return value


def _as_original(error: MalformedJson, body: bytes) -> MalformedJson:
    """The error in the original's words."""
    if error.reason == _NOT_UTF8:
        return MalformedJson("Invalid escape character in string.", error.offset)
    if error.offset is not None and _is_end_alone(body, error.offset):
        return MalformedJson("The document is empty.", error.offset)
    return error


def _refuse_too_big(text: Buffer) -> None:
    """Refuse integers of more digits than double has room for. With an exponent they are a syntax error already."""
    if not _may_have_long_number(text) or not _LONG_NUMBER.search(text):
        return
    for token in _STRING_OR_NUMBER.finditer(text):
        if token.end() - token.start() > _DOUBLE_DIGITS and token[0][:1] != b'"' and math.isinf(float(token[0])):
            raise MalformedJson("Number too big to be stored in double.", token.start())


def _may_have_long_number(text: Buffer) -> bool:
    """NumPy leaves the interpreter to others."""
    some = np.frombuffer(text, np.uint8)[::_STEP]
    return _IN_STEPS in (some - np.uint8(ord("0")) < 10).tobytes()


def _is_end_alone(body: bytes, offset: int) -> bool:
    """Whether the first token of all is one that can only end or continue something."""
    return offset < len(body) and body[offset] in _ENDS and not body[:offset].removeprefix(b"\xef\xbb\xbf").strip()


def _read_bytes(body: bytes, max_depth: int) -> Any:
    """A document with strings that are not UTF-8: the reader that finds errors sees a question mark for each byte that
    does not fit, Python's then reads the values. That knows the tokens NaN, Infinity and -Infinity alone.
    """
    text = body.decode("utf-8", "surrogateescape")
    read_document(text.encode("utf-8", "replace"), max_depth)
    try:
        value, _ = _python.raw_decode(text, _WHITE_SPACE.match(text).end())  # type: ignore[union-attr]
    except RecursionError:
        raise MalformedJson(f"nesting deeper than {max_depth} levels", max_depth=max_depth) from None
    except ValueError:
        raise MalformedJson(_NOT_UTF8) from None
    return value


# ------------------------------------------------------------------------------------------------------- deep documents

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

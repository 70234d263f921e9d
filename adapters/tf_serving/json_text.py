"""Numbers, strings and values -> text of JSON, as TensorFlow Serving writes it. Strings are RapidJSON's. Numbers have
six significant digits if they read back as the same number, and else as many as always do: 9 for float32, 17 for
float64. The compiled helper writes floating numbers where it is installed.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from itertools import islice
from typing import Any, Final, Literal, TypeAlias

import numpy as np

from tensorgate.adapters._native import helper
from tensorgate.adapters.json.body import ARRAY, OBJECT, members
from tensorgate.gateway.contract.tensor import DTYPES

_format_rows: Final[Callable[..., list[str]] | None] = helper("native_numbers", "_numbers", "format_rows")

INDENT: Final = "    "

_SHORT: Final = {8: "\\b", 9: "\\t", 10: "\\n", 12: "\\f", 13: "\\r", 34: '\\"', 92: "\\\\"}
_ESCAPES: Final = {code: f"\\u{code:04X}" for code in range(32)} | _SHORT
_ESCAPED: Final = re.compile(r'["\\\x00-\x1f]')
_LONG: Final = 1000
"""Looking up every character is quick for fewer, of ASCII; else it is quicker to find those that are escaped."""
_SHOWN_BYTES: Final = 256
_KINDS: Final[Mapping[Any, Literal["f", "d"]]] = {DTYPES["FP32"]: "f", DTYPES["FP64"]: "d"}
_TRUTH: Final = ("false", "true")
_ENOUGH: Final = {4: "%.9g ", 8: "%.17g "}
_NOT_FINITE: Final = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}
Array: TypeAlias = np.ndarray[Any, Any]


def utf8(text: str) -> bytes:
    """The bytes of a string that a document held, UTF-8 or not (see `json_document`), or of any other text."""
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return text.encode("utf-8", "replace")


def quote(text: str) -> str:
    """A JSON string: quotes, backslashes and control characters escaped, all else as it is. Source: RapidJSON."""
    if len(text) < _LONG and text.isascii():
        return f'"{text.translate(_ESCAPES)}"'
    return f'"{_ESCAPED.sub(lambda found: _ESCAPES[ord(found[0])], text)}"'


def show(value: Any) -> str:
    """A value of a request as error texts show it: members on lines of their own, arrays on one, cut after 256 bytes.

    Source: TensorFlow Serving, which stops before the first token once 256 bytes are written.
    """
    page = _Page()
    with suppress(_Cut):
        page.write(value, 0, "")
    return "".join(page.tokens)


class _Cut(Exception):
    """The page is full."""


class _Page:
    """Tokens written so far. Every level of nesting writes at least one byte, so `write` calls itself at most 256
    deep.
    """

    def __init__(self) -> None:
        self.tokens: list[str] = []
        self.size = 0

    def put(self, token: str) -> None:
        if self.size >= _SHOWN_BYTES:
            raise _Cut()
        self.tokens.append(token)
        self.size += len(utf8(token))

    def write(self, value: Any, level: int, before: str) -> None:
        """Put a value that stands `level` deep, with the separator before it."""
        if isinstance(value, OBJECT):
            self._write_object(value, level, before)
        elif isinstance(value, ARRAY):
            self.put(f"{before}[")
            for index, item in enumerate(value):
                self.write(item, level + 1, ", " if index else "")
            self.put("]")
        else:
            self._write_scalar(value, before)

    def _write_object(self, value: Any, level: int, before: str) -> None:
        self.put(before + "{")
        line = "\n"
        for key, item in _members(value):
            self.put(line + INDENT * (level + 1) + quote(key))
            self.write(item, level + 1, ": ")
            line = ",\n"
        self.put("\n" + INDENT * level + "}" if len(value) else "}")

    def _write_scalar(self, value: Any, before: str) -> None:
        if isinstance(value, float) and not math.isfinite(value):  # the writer has no text for these, and gives up
            self.put(before)
            raise _Cut()
        self.put(before + _scalar(value))


def _members(value: Any) -> Iterable[tuple[str, Any]]:
    """The members of an object, each looked up when its turn comes: simdjson's `items` would make all of them. That is
    needed where a name repeats, since looking up finds the first.
    """
    if isinstance(value, dict):
        return members(value)
    keys = list(islice(value, _SHOWN_BYTES))
    return members(value) if len(set(keys)) < len(keys) else ((key, value[key]) for key in keys)


def _scalar(value: Any) -> str:
    if isinstance(value, str):
        return quote(value)
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int) and -(2**63) <= value < 2**64:
        return str(value)
    return _double(float(value))


def _double(value: float) -> str:
    """Shortest text that reads back, plain from 1e-6 to 1e21, else with an exponent. Source: RapidJSON's Prettify."""
    sign = "-" if math.copysign(1.0, value) < 0 else ""
    mantissa, _, exponent = f"{abs(value)!r}".partition("e")
    whole, _, fraction = mantissa.partition(".")
    digits = (whole + fraction).lstrip("0")
    point = len(whole) + int(exponent or 0) - (len(whole + fraction) - len(digits))
    digits = digits.rstrip("0")
    if not digits:
        return f"{sign}0.0"
    if -6 < point <= 21:
        return sign + _plain(digits, point)
    return f"{sign}{digits[0]}{'.' if digits[1:] else ''}{digits[1:]}e{point - 1}"


def _plain(digits: str, point: int) -> str:
    """'12', -1 -> '0.012'; '12', 1 -> '1.2'; '12', 3 -> '120.0'"""
    if point <= 0:
        return "0." + "0" * -point + digits
    return f"{digits[:point]:0<{point}}.{digits[point:] or '0'}"


# -------------------------------------------------------------------------------------------------------------- numbers


def number_rows(array: Array, columns: int, between: str = "") -> list[str]:
    """The elements of a bool, integer, float32 or float64 array as TensorFlow Serving writes them, in row-major order:
    those of each row, of so many columns, joined by `between`.

    0.1 -> '0.1', 1e6 -> '1e+06', float32 1/3 -> '0.333333343', 1 -> '1.0', infinity -> 'Infinity'.
    """
    kind = array.dtype.kind
    if kind == "f" and _format_rows is not None:
        return _format_rows(np.ascontiguousarray(array), _KINDS[array.dtype], columns, between)
    flat = array.reshape(-1)
    if kind in "iu" and columns > 1:
        rows = [repr(row)[1:-1] for row in flat.reshape(-1, columns).tolist()]
        return rows if between == ", " else [row.replace(", ", between) for row in rows]
    if kind == "f":
        texts = _floats(flat)
    else:
        texts = [_TRUTH[value] for value in flat.tolist()] if kind == "b" else [*map(str, flat.tolist())]
    if columns == 1:
        return texts
    return [between.join(texts[at : at + columns]) for at in range(0, len(texts), columns)]


def _floats(flat: Array) -> list[str]:
    """One format operation and one comparison for all of them, then the same for those that six digits fail.

    Reading back goes through float64, which rounds twice for float32; of all decimals with six digits, none lies where
    that matters.
    """
    values = flat.tolist()
    texts = ("%g " * len(values) % tuple(values)).split()
    failed = (np.array([*map(float, texts)], flat.dtype) != flat).nonzero()[0]
    if failed.size:
        longer = (_ENOUGH[flat.itemsize] * failed.size % tuple(flat[failed].tolist())).split()
        for index, text in zip(failed.tolist(), longer, strict=True):
            texts[index] = text
    return [text if "." in text or "e" in text else _NOT_FINITE.get(text) or text + ".0" for text in texts]

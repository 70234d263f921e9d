"""Documents with gaps: what is written must be there, equal and of its type; keys beyond those are free."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

MAX_SHOWN: Final = 300
"""Longer values are cut for people."""


@dataclass(frozen=True, slots=True)
class Gap:
    """A place for any value of some types; a text may have to contain something. No types: any value at all."""

    types: tuple[type, ...] = ()
    contains: str = ""

    def fits(self, value: Any) -> bool:
        typed = not self.types or any(_is(value, each) for each in self.types)
        return typed and (not self.contains or self.contains in str(value))

    def __repr__(self) -> str:
        kinds = " or ".join(each.__name__ for each in self.types) or "anything"
        return f"<{kinds} with {self.contains!r}>" if self.contains else f"<{kinds}>"


@dataclass(frozen=True, slots=True)
class OneOf:
    """A place for one of several patterns."""

    patterns: tuple[Any, ...]

    def fits(self, value: Any) -> bool:
        return any(_fits(each, value) for each in self.patterns)

    def __repr__(self) -> str:
        return " or ".join(shown(each) for each in self.patterns)


@dataclass(frozen=True, slots=True)
class Float32:
    """A number that rounds to the same 32-bit float, however many digits it was written with."""

    value: float

    def fits(self, value: Any) -> bool:
        return _same_float32(self.value, value)

    def __repr__(self) -> str:
        return f"{self.value} (as a 32-bit float)"


@dataclass(frozen=True, slots=True)
class Unordered:
    """A list of exactly these, in any order."""

    patterns: tuple[Any, ...]

    def fits(self, value: Any) -> bool:
        return isinstance(value, list) and len(value) == len(self.patterns) and _all_in(self.patterns, value)

    def __repr__(self) -> str:
        return f"in any order {shown(list(self.patterns))}"


@dataclass(frozen=True, slots=True)
class Including:
    """A list that has these, among others."""

    patterns: tuple[Any, ...]

    def fits(self, value: Any) -> bool:
        return isinstance(value, list) and _all_in(self.patterns, value)

    def __repr__(self) -> str:
        return f"a list with {shown(list(self.patterns))}"


class _Absent:
    def __repr__(self) -> str:
        return "<no such key>"


_GAPS: Final = (Gap, OneOf, Float32, Unordered, Including)
ABSENT: Final = _Absent()
"""The value of a key that must not be there."""
ANY: Final = Gap()
TEXT: Final = Gap((str,))
INTEGER: Final = Gap((int,))
BOOLEAN: Final = Gap((bool,))
LIST: Final = Gap((list,))
OBJECT: Final = Gap((dict,))


def mismatches(pattern: Any, value: Any, path: str = "") -> Iterator[tuple[str, str, str]]:
    """(where, expected, got) of everything in `value` that is not as the pattern says."""
    where = path or "the document"
    if isinstance(pattern, dict):
        yield from _object_mismatches(pattern, value, path)
    elif isinstance(pattern, list):
        if not isinstance(value, list) or len(value) != len(pattern):
            yield where, shown(pattern), shown(value)
            return
        for index, each in enumerate(pattern):
            yield from mismatches(each, value[index], f"{path}[{index}]")
    elif not (pattern.fits(value) if isinstance(pattern, _GAPS) else _equal(pattern, value)):
        yield where, shown(pattern), shown(value)


def _object_mismatches(pattern: Mapping[str, Any], value: Any, path: str) -> Iterator[tuple[str, str, str]]:
    if not isinstance(value, dict):
        yield path or "the document", shown(pattern), shown(value)
        return
    for key, expected in pattern.items():
        inner = f"{path}.{key}" if path else key
        if expected is ABSENT:
            if key in value:
                yield inner, "no such key", shown(value[key])
        elif key not in value:
            yield inner, shown(expected), "no such key"
        else:
            yield from mismatches(expected, value[key], inner)


def _fits(pattern: Any, value: Any) -> bool:
    return next(mismatches(pattern, value), None) is None


def _all_in(patterns: tuple[Any, ...], values: list[Any]) -> bool:
    return all(any(_fits(pattern, value) for value in values) for pattern in patterns)


def _is(value: Any, kind: type) -> bool:
    if kind is int:
        return isinstance(value, int) and not isinstance(value, bool)
    if kind is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    return isinstance(value, kind)


def _equal(pattern: Any, value: Any) -> bool:
    if isinstance(pattern, float):
        return _is(value, float) and (pattern == value or (math.isnan(pattern) and math.isnan(value)))
    return type(pattern) is type(value) and bool(pattern == value)


def _same_float32(number: float, value: Any) -> bool:
    if not _is(value, float):
        return False
    try:
        return struct.pack("<f", number) == struct.pack("<f", value)
    except (OverflowError, struct.error):
        return False


def shown(value: Any) -> str:
    """A value as people read it, cut where it is long."""
    if isinstance(value, bytes):
        return shown_bytes(value)
    if isinstance(value, _GAPS):
        return repr(value)
    try:
        text = json.dumps(value, ensure_ascii=False, default=_inner)
    except (TypeError, ValueError):
        text = repr(value)
    return _cut(text)


def _inner(value: Any) -> str:
    return shown_bytes(value) if isinstance(value, bytes) else repr(value)


def shown_bytes(data: bytes) -> str:
    """Text where it is printable, hexadecimal otherwise, with its length."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        text = ""
    if text and all(character.isprintable() or character in "\n\t" for character in text):
        return _cut(text)
    return f"{len(data)} bytes: {_cut(data[:MAX_SHOWN].hex(' '))}" if data else "nothing"


def _cut(text: str) -> str:
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}… ({len(text)} characters)"

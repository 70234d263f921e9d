"""Where each key of a text-format message stands: protobuf's own parser forgets it.

It does not judge: the parser does that, before or after. Every field has its number in its path, "input[1].dims[0]",
for what is repeated and what is not look alike in this format. Source: Protocol Buffers, text format language.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import Final

_TOKENS: Final = re.compile(
    r"""(?P<skip>\s+|\#[^\n]*|[,;:])|(?P<name>[A-Za-z_]\w*)|(?P<open>[{<])|(?P<close>[}>])"""
    r"""|(?P<list>\[)|(?P<end>\])|(?P<value>"(?:\\.|[^"\\\n])*"?|'(?:\\.|[^'\\\n])*'?|[^\s\#,;:{}<>\[\]"']+)""",
    re.DOTALL,
)
_MAX_DEPTH: Final = 16  # no message of a configuration nests so deep
_UNNUMBERED: Final = re.compile(r"[A-Za-z_]\w*(?![\w\[])")


@dataclass(frozen=True, slots=True)
class KeyLocation:
    """Where a key stands, from 1, and the first token of its value, a text without its quotes."""

    line: int
    column: int
    value: str = ""


@dataclass(slots=True)
class KeyLocations:
    """The keys of one text, in its order, by path."""

    found: dict[str, KeyLocation] = field(default_factory=dict)

    def of(self, path: str) -> KeyLocation | None:
        """The place of a path; what has no number is the first."""
        return self.found.get(_UNNUMBERED.sub(lambda name: f"{name[0]}[0]", path))

    def of_entry(self, path: str, key: str) -> KeyLocation | None:
        """The place of a map's entry."""
        index = 0
        while (place := self.of(f"{path}[{index}].key")) is not None:
            if place.value == key:
                return place
            index += 1
        return self.of(path)

    def before(self, line: int, column: int) -> str:
        """The key that stands last before a place, or at it, as people write it; "" if there is none."""
        last = ""
        for path, place in self.found.items():
            if (place.line, place.column) > (line, column):
                break
            last = path
        return last.replace("[0]", "")


def read_key_locations(text: str) -> KeyLocations:
    """The places of every key, as far as the text can be understood."""
    return _KeyScanner().read(text)


class _KeyScanner:
    """`path` is the key whose value is awaited; `in_list`: that value is a list, `again` past its first message."""

    def __init__(self) -> None:
        self.places = KeyLocations()
        self.prefix, self.counts, self.path = "", dict[str, int](), ""
        self.in_list = self.again = False
        self.outer: list[tuple[str, dict[str, int], str]] = []

    def read(self, text: str) -> KeyLocations:
        line, line_start = 1, 0
        for token in _TOKENS.finditer(text):
            if len(self.outer) > _MAX_DEPTH:
                break
            self._take(str(token.lastgroup), token[0], KeyLocation(line, token.start() - line_start + 1))
            newlines = token[0].count("\n")
            if newlines:
                line, line_start = line + newlines, token.start() + token[0].rfind("\n") + 1
        return self.places

    def _take(self, kind: str, word: str, place: KeyLocation) -> None:
        if kind == "open":
            self._open(place)
        elif kind == "close":
            self._close()
        elif kind == "list":
            self.in_list = True
        elif kind == "end":
            self.in_list, self.again, self.path = False, False, ""
        elif kind != "skip" and not self.in_list:
            if self.path:
                self.places.found[self.path] = replace(self.places.found[self.path], value=word.strip("\"'"))
                self.path = ""
            elif kind == "name":
                self._key(word, place)

    def _key(self, name: str, place: KeyLocation) -> None:
        index = self.counts.get(name, 0)
        self.counts[name] = index + 1
        self.path = f"{self.prefix}{name}[{index}]"
        self.places.found[self.path] = place

    def _open(self, place: KeyLocation) -> None:
        if self.in_list and self.again:  # another message of the list is another of its key
            self._key(self.path[len(self.prefix) :].partition("[")[0], place)
        self.outer.append((self.prefix, self.counts, self.path if self.in_list else ""))
        self.prefix, self.counts, self.path = f"{self.path}.", {}, ""
        self.in_list = self.again = False

    def _close(self) -> None:
        if self.outer:
            self.prefix, self.counts, self.path = self.outer.pop()
            self.in_list = self.again = bool(self.path)

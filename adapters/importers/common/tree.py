"""A YAML file -> its values as raw text, each with its line.

Text stays as it was written: a version 1.10 is no number. Every mapping remembers which of its keys were asked for, so
that `leftovers` tells those that nobody knows.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeAlias

import yaml

from tensorgate.adapters.importers.common import Note, printable, read_text
from tensorgate.adapters.importers.common.source import Fate

_MAX_DEPTH: Final = 16
_MAX_VALUES: Final = 20_000
_NULLS: Final = frozenset(("", "~", "null", "Null", "NULL"))
_TRUTHS: Final = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}

Value: TypeAlias = "str | list[Item] | dict[str, Item] | None"


@dataclass(slots=True)
class File:
    """The file that values come from, and the notes that reading them gathers."""

    name: str
    notes: list[Note] = field(default_factory=list)
    values: int = 0


@dataclass(slots=True)
class Item:
    """A value: raw text, None if blank, a list, or a mapping; `key` is the way to it, "interface.port"."""

    file: File
    key: str
    line: int
    value: Value
    asked: set[str] = field(default_factory=set)

    # ------------------------------------------------------------------------------------------------------- asking

    def member(self, name: str) -> Item:
        """A member of a mapping, blank if it is not there."""
        self.asked.add(name)
        found = self.value.get(name) if isinstance(self.value, dict) else None
        return found or Item(self.file, f"{self.key}.{name}" if self.key else name, self.line, None)

    def mapping(self) -> Item:
        """Itself, if it is a mapping or blank. Raises ValueError."""
        if not isinstance(self.value, dict | None):
            raise self.wrong("expected a mapping")
        return self

    def items(self) -> list[Item]:
        """The elements of a list; a blank one has none. Raises ValueError."""
        if not isinstance(self.value, list | None):
            raise self.wrong("expected a list")
        return self.value or []

    def text(self, default: str = "") -> str:
        """Raises ValueError for a list or a mapping."""
        if isinstance(self.value, list | dict):
            raise self.wrong("expected a text")
        return default if self.value is None else self.value

    def number(self, default: int, minimum: int) -> int:
        """Raises ValueError."""
        text = self.text(str(default))
        try:
            value = int(text)
        except ValueError:
            raise self.wrong(f"found {text}, expected a whole number") from None
        if value < minimum:
            raise self.wrong(f"found {value}, expected at least {minimum}")
        return value

    def truth(self) -> bool:
        """Raises ValueError."""
        text = self.text("false")
        if text.lower() not in _TRUTHS:
            raise self.wrong(f"found {text}, expected true or false")
        return _TRUTHS[text.lower()]

    def choice(self, default: str, *others: str) -> str:
        """One of these texts. Raises ValueError."""
        text = self.text(default)
        if text not in (default, *others):
            raise self.wrong(f"found {text}, expected {', '.join((default, *others))}")
        return text

    @property
    def given(self) -> bool:
        """Whether there is something."""
        return self.value is not None

    def plain(self) -> Any:
        """As YAML's own rules read it, lists and mappings included."""
        if isinstance(self.value, list):
            return [item.plain() for item in self.value]
        if isinstance(self.value, dict):
            return {name: item.plain() for name, item in self.value.items()}
        return yaml.safe_load(self.value) if self.value is not None else None

    # ------------------------------------------------------------------------------------------------------- telling

    def note(self, text: str, fate: Fate = "ignored") -> None:
        """Tell what becomes of it."""
        self.file.notes.append(Note(self.file.name, self.line, self.key, text, fate))

    def ignore(self, reason: str) -> None:
        """Tell that it does not matter here, if it is there."""
        if self.given:
            self.note(f"is ignored: {reason}")

    def wrong(self, text: str) -> ValueError:
        """The error that it cannot be, for the reader to raise."""
        key = f"{self.key}: " if self.key else ""
        return ValueError(f"{self.file.name}:{self.line}: {key}{printable(text)}")

    def leftovers(self) -> None:
        """Tell of the members that nobody asked for."""
        for name, item in (self.value if isinstance(self.value, dict) else {}).items():
            if name not in self.asked:
                close = difflib.get_close_matches(name, self.asked, 1)
                item.note(f"is not known and passed over{f'; did you mean {close[0]}?' if close else ''}")


def read_tree(path: Path) -> Item:
    """The mapping of a file of YAML or JSON. Raises ValueError, or OSError."""
    found = read_trees(path)
    if len(found) != 1:
        raise ValueError(f"{path}: expected a mapping")
    return found[0]


def read_trees(path: Path) -> list[Item]:
    """The mappings of a file, of which it may have several, one after the other. Raises ValueError, or OSError."""
    name = str(path)
    text = read_text(path, name)
    if path.suffix == ".json":  # in which a tab is a space, and stands in no string
        text = text.replace("\t", " ")
    try:
        nodes = [node for node in yaml.compose_all(text, yaml.SafeLoader) if node is not None]
    except (yaml.YAMLError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        where = f"{name}:{mark.line + 1}" if mark else name
        raise ValueError(
            f"{where}: {printable(str(getattr(error, 'problem', None) or 'not readable as YAML'))}"
        ) from None
    if not nodes or not all(isinstance(node, yaml.MappingNode) for node in nodes):
        raise ValueError(f"{name}: expected a mapping")
    file = File(printable(name))
    return [_item(file, "", node, 0) for node in nodes]


def _item(file: File, key: str, node: yaml.Node, depth: int) -> Item:
    line = node.start_mark.line + 1
    file.values += 1
    if depth > _MAX_DEPTH or file.values > _MAX_VALUES:
        raise ValueError(f"{file.name}:{line}: {key}: too deep or too large")
    value: Value
    if isinstance(node, yaml.MappingNode):
        value = dict(_members(file, key, node, depth))
    elif isinstance(node, yaml.SequenceNode):
        value = [_item(file, f"{key}[{index}]", each, depth + 1) for index, each in enumerate(node.value)]
    else:
        plain = isinstance(node, yaml.ScalarNode) and node.style is None
        value = None if plain and node.value in _NULLS else _whole_text(node.value)
    return Item(file, key, line, value)


def _whole_text(text: str) -> str:
    """Of JSON's escapes two may be one letter, and one alone is none."""
    return text if text.isascii() else text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _members(file: File, key: str, node: yaml.MappingNode, depth: int) -> Iterator[tuple[str, Item]]:
    for name_node, value_node in node.value:
        name = printable(str(name_node.value)) if isinstance(name_node, yaml.ScalarNode) else "?"
        yield name, _item(file, f"{key}.{name}" if key else name, value_node, depth + 1)

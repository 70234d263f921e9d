"""YAML text -> plain data, with the location of every value.

Only what JSON has too: text, numbers, true and false, null, lists, mappings with text as keys; no tags that make
objects. Where YAML 1.1 surprises (`no` is false, `12:30` is 750, `010` is 8) and text was meant, the remark says so
and tells to quote it. The text is walked twice: once as events, which bounds its depth before libyaml's composer
recurses, then as nodes, which counts what aliases expand to.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias, cast

import yaml
from yaml.constructor import SafeConstructor

Loc: TypeAlias = tuple[str | int, ...]
"""The keys and indices that lead to a value."""

MAX_DEPTH: Final = 50
_TOO_DEEP: Final = "nesting depth"
MAX_VALUES: Final = 100_000

_TAG: Final = "tag:yaml.org,2002:"
_TEXT: Final = {_TAG + name for name in ("str", "timestamp", "value")}
_BASE_60_OR_8: Final = re.compile(r"[-+]?(0[0-9_]+|[0-9][0-9_]*(:[0-9]+)+(\.[0-9_]*)?)")
_NOUNS: Final[dict[Loc, str]] = {("models",): "a model of this name", ("routes",): "a route of this name"}


class _YamlLoader(yaml.CSafeLoader):
    """Reads 1e-5 as a number, as JSON and YAML 1.2 do; YAML 1.1 requires a dot."""


_YamlLoader.add_implicit_resolver(
    _TAG + "float", re.compile(r"[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+$", re.ASCII), list("-+.0123456789")
)


@dataclass(frozen=True, slots=True, order=True)
class Position:
    """A line and a column, from 1."""

    line: int
    column: int


@dataclass(frozen=True, slots=True)
class NodeLocation:
    """Where a value stands: the position of its key (in a list: of the value), of the value, and its node."""

    key: Position
    value: Position
    node: yaml.Node


@dataclass(frozen=True, slots=True)
class Finding:
    """A remark about the text at a position; `loc` is the path to the value, if reading got that far."""

    position: Position
    loc: Loc
    text: str


@dataclass(frozen=True, slots=True)
class Tree:
    """Plain data, the location of each value in it, and what is wrong with the text."""

    data: Any
    locations: dict[Loc, NodeLocation]
    findings: tuple[Finding, ...]
    doubtful: frozenset[Loc]
    """Values that have a finding already: further ones about them are dropped."""


class NotYaml(Exception):
    """The text cannot be parsed as YAML."""

    def __init__(self, position: Position, text: str) -> None:
        super().__init__(text)
        self.finding = Finding(position, (), text)


def read_tree(text: str) -> Tree:
    """Text of one YAML document -> Tree. Raises NotYaml."""
    try:
        _check_depth(text)
        root = yaml.compose(text, Loader=_YamlLoader)
    except yaml.MarkedYAMLError as error:
        if _TOO_DEEP in (error.problem or ""):  # PyYAML's own bound, where it reads far ahead
            raise NotYaml(_position(error.problem_mark), f"nested deeper than {MAX_DEPTH} levels") from None
        raise _syntax(error, text) from None
    except yaml.reader.ReaderError as error:
        before = text.encode()[: error.position].decode(errors="ignore")  # libyaml counts bytes here
        position = Position(before.count("\n") + 1, len(before) - before.rfind("\n"))
        raise NotYaml(position, f"not YAML: {error.reason}") from None
    if root is None:
        raise NotYaml(Position(1, 1), "found nothing, expected a mapping")
    builder = _TreeBuilder()
    data = builder.value(root, (), _position(root.start_mark))
    return Tree(data, builder.locations, tuple(builder.findings), frozenset(builder.doubtful))


def _check_depth(text: str) -> None:
    depth = 0
    for event in yaml.parse(text, Loader=_YamlLoader):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > MAX_DEPTH:
            raise NotYaml(_position(event.start_mark), f"nested deeper than {MAX_DEPTH} levels")


def _syntax(error: yaml.MarkedYAMLError, text: str) -> NotYaml:
    position = _position(error.problem_mark)
    if error.problem == "but found another document":
        return NotYaml(position, "a second document starts here, expected one")
    context = f"{error.context} that starts on line {error.context_mark.line + 1}, " if error.context_mark else ""
    tab = "; YAML indents with spaces, not with tabs" if _character(text, position) == "\t" else ""
    return NotYaml(position, f"not YAML: {context}{error.problem}{tab}")


def _character(text: str, position: Position) -> str:
    lines = text.split("\n")
    line = lines[position.line - 1] if position.line <= len(lines) else ""
    return line[position.column - 1 : position.column]


def _position(mark: Any) -> Position:
    return Position(mark.line + 1, mark.column + 1)


@dataclass(slots=True)
class _TreeBuilder:
    """Walks the nodes once, in the order of the text."""

    locations: dict[Loc, NodeLocation] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)
    doubtful: set[Loc] = field(default_factory=set)
    count: int = 0

    def value(self, node: yaml.Node, loc: Loc, key: Position) -> Any:
        position = _position(node.start_mark)
        self._count(node)
        if len(loc) > MAX_DEPTH:
            raise NotYaml(position, f"nested deeper than {MAX_DEPTH} levels, or inside itself by an alias")
        self.locations[loc] = NodeLocation(key, position, node)
        match node:
            case yaml.MappingNode(tag=tag) if tag == _TAG + "map":
                return {name: self.value(child, (*loc, name), at) for name, child, at in self._entries(node, loc)}
            case yaml.SequenceNode(tag=tag) if tag == _TAG + "seq":
                return [self.value(child, (*loc, i), _position(child.start_mark)) for i, child in enumerate(node.value)]
            case yaml.ScalarNode():
                return self._scalar(node, loc)
        return self._unknown_tag(node, loc)

    def _scalar(self, node: yaml.ScalarNode, loc: Loc) -> Any:
        try:
            value = _scalar(node)
        except (ValueError, LookupError):
            return self._unknown_tag(node, loc)
        if type(value) in (int, float) and _BASE_60_OR_8.fullmatch(node.value):
            self.doubtful.add(loc)
            self._find(node, loc, f"found {found(node)}; write {value}, or put it in quotes if text is meant")
        return value

    def _unknown_tag(self, node: yaml.Node, loc: Loc) -> None:
        self.doubtful.add(loc)
        self._find(node, loc, f"cannot read this as {node.tag.replace(_TAG, '!!')}, expected plain data")

    def _entries(self, node: yaml.MappingNode, loc: Loc, depth: int = 0) -> Iterator[tuple[str, yaml.Node, Position]]:
        """(key, value, position of the key) of a mapping, then of those merged with `<<`; the first of a name wins."""
        seen: dict[str, Position] = {}
        merged: list[yaml.MappingNode] = []
        for key, child in node.value:
            if key.tag == _TAG + "merge":
                merged += self._merged(child, loc)
            elif (name := self._key(key, loc)) is None:
                continue
            elif name in seen:
                noun = _NOUNS.get(loc, "this key")
                self._find(key, (*loc, name), f"{noun} stands already on line {seen[name].line}")
            else:
                seen[name] = _position(key.start_mark)
                yield name, child, seen[name]
        for other in merged:
            self._count(other)
            if depth > MAX_DEPTH:
                raise NotYaml(_position(other.start_mark), "a mapping that merges itself")
            for name, child, position in self._entries(other, loc, depth + 1):
                if name not in seen:
                    seen[name] = position
                    yield name, child, position

    def _merged(self, node: yaml.Node, loc: Loc) -> list[yaml.MappingNode]:
        nodes = node.value if isinstance(node, yaml.SequenceNode) else [node]
        mappings = [each for each in nodes if isinstance(each, yaml.MappingNode)]
        if len(mappings) < len(nodes):
            self._find(node, (*loc, "<<"), f"found {found(node)}, expected a mapping to merge, or a list of them")
        return mappings

    def _key(self, node: yaml.Node, loc: Loc) -> str | None:
        """The text of a key. One of another type adds a finding and is taken as written; None if it is no scalar."""
        if not isinstance(node, yaml.ScalarNode):
            self._find(node, loc, f"found {found(node)} as a key, expected text")
            return None
        if node.tag not in _TEXT:
            remark = f"found the key {found(node)}, expected text; put it in quotes: {quoted(node.value)}"
            self._find(node, (*loc, node.value), remark)
        text: str = node.value
        return text

    def _count(self, node: yaml.Node) -> None:
        self.count += 1
        if self.count > MAX_VALUES:
            raise NotYaml(_position(node.start_mark), f"more than {MAX_VALUES:,} values, aliases written out")

    def _find(self, node: yaml.Node, loc: Loc, text: str) -> None:
        self.findings.append(Finding(_position(node.start_mark), loc, text))


def _scalar(node: yaml.Node) -> str | int | float | bool | None:
    """The value of a scalar by its tag; a date stays text. Raises ValueError, LookupError."""
    text: str = node.value
    if node.tag in _TEXT:
        return text
    value = _CONSTRUCT[node.tag](SafeConstructor(), cast("yaml.ScalarNode", node))
    if isinstance(value, int) and value.bit_length() > 64:
        raise ValueError(text)
    return value


_CONSTRUCT: Final = {
    _TAG + "null": SafeConstructor.construct_yaml_null,
    _TAG + "bool": SafeConstructor.construct_yaml_bool,
    _TAG + "int": SafeConstructor.construct_yaml_int,
    _TAG + "float": SafeConstructor.construct_yaml_float,
}


def found(node: yaml.Node) -> str:
    """How a finding names a value: as it is written, and as YAML reads it where that differs."""
    if isinstance(node, yaml.MappingNode):
        return "a mapping" if node.value else "an empty mapping"
    if isinstance(node, yaml.SequenceNode):
        return "a list" if node.value else "an empty list"
    if node.tag == _TAG + "null" and not node.value:
        return "nothing"
    written = shortened(node.value)
    try:
        read = json.dumps(_scalar(node))
    except (ValueError, LookupError):
        return written
    if node.tag in _TEXT:
        return quoted(node.value)
    surprising = _BASE_60_OR_8.fullmatch(node.value) or (node.tag == _TAG + "bool" and node.value.lower() != read)
    return f"{written}, which YAML reads as {read}" if surprising else written


def quoted(text: str) -> str:
    """Text in double quotes, shortened."""
    return json.dumps(shortened(text), ensure_ascii=False)


def shortened(text: str) -> str:
    """At most 60 characters of a text."""
    return text if len(text) <= 60 else f"{text[:59]}…"


def key_path(loc: Loc) -> str:
    """listen.http[1].bind"""
    path = ""
    for step in loc:
        path += f"[{step}]" if isinstance(step, int) else f".{step if _is_plain(step) else quoted(step)}"
    return path.removeprefix(".")


def _is_plain(key: str) -> bool:
    return bool(key) and all(character.isalnum() or character in "_-" for character in key)

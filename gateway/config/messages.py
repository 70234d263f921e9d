"""pydantic's errors -> findings with a line and column, in an operator's words.

Pydantic names a location by keys, indices and, inside unions, tags that stand in no file. So each step is followed
through the data and, side by side, through the JSON schema of the same classes: the schema tells tags from keys, and
which keys and names would have been possible.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import yaml
from pydantic_core import ErrorDetails

from tensorgate.gateway.config.yaml_tree import Finding, Loc, NodeLocation, Tree, found, quoted

Schema: TypeAlias = Mapping[str, Any]

_TYPES: Final = {
    "int_type": "an integer",
    "int_from_float": "an integer",
    "float_type": "a number",
    "finite_number": "a finite number",
    "bool_type": "true or false",
    "string_type": "text",
    "list_type": "a list",
    "tuple_type": "a list",
    "set_type": "a list",
    "frozen_set_type": "a list",
    "dict_type": "a mapping",
    "mapping_type": "a mapping",
    "model_type": "a mapping",
    "model_attributes_type": "a mapping",
    "dataclass_type": "a mapping",
    "none_required": "null",
}
_BOUNDS: Final = {
    "greater_than_equal": ("at least", "ge"),
    "greater_than": ("more than", "gt"),
    "less_than_equal": ("at most", "le"),
    "less_than": ("less than", "lt"),
    "multiple_of": ("a multiple of", "multiple_of"),
}
_LENGTHS: Final = {
    "too_short": ("at least", "min_length", "entry", "entries"),
    "too_long": ("at most", "max_length", "entry", "entries"),
    "string_too_short": ("at least", "min_length", "character", "characters"),
    "string_too_long": ("at most", "max_length", "character", "characters"),
}


_UNQUOTED: Final = re.compile(r"[-+]?[0-9]+(\.[0-9]*)?([eE][-+]?[0-9]+)?|true|false")


_OTHER_WORDS: Final = {
    "bool_": "BOOL", "boolean": "BOOL", "float": "FP32", "float16": "FP16", "half": "FP16", "bfloat16": "BF16",
    "float32": "FP32", "single": "FP32", "float64": "FP64", "double": "FP64", "int": "INT32", "long": "INT64",
    "string": "BYTES", "str": "BYTES", "object": "BYTES", "byte": "UINT8", "char": "INT8",
}  # fmt: skip
"""Datatypes as NumPy, TensorFlow and C call them."""
_MIN_BEGINNING: Final = 3
_TIME: Final = re.compile(r"(\d+(?:\.\d+)?) ?(us|ms|s|m|min|h)")
_SECONDS: Final = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}
_KEY_UNITS: Final = {"us": "us", "ms": "ms", "seconds": "s", "s": "s"}
"""How keys of times end -> the unit of their numbers."""


@dataclass(frozen=True, slots=True)
class Target:
    """What an error is about: the innermost value on its path that stands in the file, the schemas that may apply to
    it, and those of the mapping or list around it. `rest` is the last step that led nowhere: an absent key, the tag of
    a union, or "[key]" for the key itself.
    """

    loc: Loc
    location: NodeLocation
    schemas: Sequence[Schema]
    around: Sequence[Schema]
    rest: str | int


@dataclass(frozen=True, slots=True)
class Translator:
    """Turns the errors of one file into findings, by its tree and the JSON schema of the classes that refused it."""

    tree: Tree
    schema: Schema

    def findings(self, errors: Iterable[ErrorDetails]) -> Iterator[Finding]:
        """A finding per error, in no order. A value that no member of a union accepts is one finding that lists all
        members; if one member got further into the value than the others, only its findings count.
        """
        expected: dict[Loc, list[str]] = {}
        targets = [(error, self._target(error["loc"])) for error in errors]
        deeper = {target.loc[:length] for _, target in targets for length in range(len(target.loc))}
        deeper |= {target.loc for error, target in targets if error["type"] == "missing"}
        for error, target in targets:
            text = _expected(error, target)
            if text:
                expected.setdefault(target.loc, []).append(text)
            else:
                if target.rest != "[key]":
                    deeper.add(target.loc)  # one member of a union took its kind, and objects to what it says
                yield _remark(error, target, self.tree)
        for loc, texts in expected.items():
            if loc in deeper:
                continue
            location = self.tree.locations[loc]
            yield Finding(
                location.value, loc, f"found {found(location.node)}, expected {' or '.join(dict.fromkeys(texts))}"
            )

    def _target(self, loc: Loc) -> Target:
        at: Loc = ()
        schemas = around = list(self._options(self.schema))
        rest: str | int = ""
        for step in loc:
            if tagged := [choices[step] for choices in map(_choices, schemas) if step in choices]:
                schemas = list(self._options(tagged[0]))
            elif (*at, step) in self.tree.locations:
                at, rest, around = (*at, step), "", schemas
                schemas = [option for child in _children(around, step) for option in self._options(child)]
            else:
                rest = step
        return Target(at, self.tree.locations[at], schemas, around, rest)

    def _options(self, schema: Schema) -> Iterator[Schema]:
        """The schemas behind references and undiscriminated unions."""
        if "$ref" in schema:
            schema = self.schema["$defs"][schema["$ref"].rpartition("/")[2]]
        members = schema.get("anyOf") or ([] if "discriminator" in schema else schema.get("oneOf"))
        if not members:
            yield schema
        for member in members or ():
            yield from self._options(member)


def _choices(schema: Schema) -> dict[Any, Schema]:
    """The members of a discriminated union, by tag."""
    mapping = schema.get("discriminator", {}).get("mapping", {})
    return {tag: {"$ref": reference} for tag, reference in mapping.items()}


def _children(schemas: Iterable[Schema], step: str | int) -> Iterator[Schema]:
    for schema in schemas:
        if isinstance(step, int):
            child = schema.get("items")
        else:
            child = schema.get("properties", {}).get(step, schema.get("additionalProperties"))
        if isinstance(child, dict):
            yield child


# --------------------------------------------------------------------------------------------------------------- words


def _expected(error: ErrorDetails, target: Target) -> str | None:
    """What stands after "expected" for an error about a value's kind, size or choice; None for other errors."""
    kind, context = error["type"], error.get("ctx", {})
    if kind in _TYPES:
        return _TYPES[kind] + _remedy(kind, target.location.node, target.loc)
    if kind in _BOUNDS:
        words, key = _BOUNDS[kind]
        return f"{words} {_number(context[key])}"
    if kind in _LENGTHS:
        words, key, one, many = _LENGTHS[kind]
        return f"{words} {context[key]} {one if context[key] == 1 else many}"
    if kind == "string_pattern_mismatch":
        return f"text that matches {context['pattern']}"
    if kind in ("literal_error", "enum"):
        names = [schema["const"] for schema in target.schemas if "const" in schema]
        names += [name for schema in target.schemas for name in schema.get("enum", ())]
        return _one_of(names, target.location.node)
    return None


def _remark(error: ErrorDetails, target: Target, tree: Tree) -> Finding:
    kind, location, loc = error["type"], target.location, target.loc
    tagged = next((schema for schema in target.schemas if "discriminator" in schema), None)
    if kind == "missing":
        return Finding(location.key, (*loc, target.rest), "missing required key")
    if kind == "extra_forbidden":
        keys = sorted({key for schema in target.around for key in schema.get("properties", ())})
        return Finding(location.key, loc, f"unknown key{hint(str(loc[-1]), keys)}")
    if tagged and kind == "union_tag_not_found":
        names = ", ".join(_choices(tagged))
        return Finding(
            location.key, (*loc, tagged["discriminator"]["propertyName"]), f"missing required key; one of {names}"
        )
    if tagged and kind == "union_tag_invalid":
        loc = (*loc, tagged["discriminator"]["propertyName"])
        location = tree.locations[loc]
        return Finding(
            location.value, loc, f"found {found(location.node)}, expected {_one_of(_choices(tagged), location.node)}"
        )
    text = str(error.get("ctx", {}).get("error") or error["msg"])
    if target.rest == "[key]":
        return Finding(location.key, loc, f"found {quoted(str(loc[-1]))}, {text}" if _is_half(text) else text)
    return Finding(location.value, loc, f"found {found(location.node)}, {text}" if _is_half(text) else text)


def _number(bound: Any) -> str:
    return str(int(bound) if isinstance(bound, float) and bound.is_integer() else bound)


def _is_half(text: str) -> bool:
    """Whether the text lacks what was found: a validator that raises "expected …" leaves that to this module."""
    return text.startswith("expected ")


def _one_of(names: Iterable[Any], node: yaml.Node) -> str:
    names = list(map(str, names))
    meant = closest(str(node.value), names)
    return ("one of " if len(names) > 1 else "") + ", ".join(names) + (f"; did you mean {meant}?" if meant else "")


def hint(key: str, keys: Sequence[str]) -> str:
    """The end of a remark about an unknown name: the one that was meant, or those there are if they are few."""
    meant = closest(key, keys)
    if meant:
        return f"; did you mean {meant}?"
    return f"; known are {', '.join(keys)}" if 0 < len(keys) <= 8 else ""


def closest(written: str, names: Sequence[str]) -> str | None:
    """The name that was meant: in other letters, as others call it, its beginning, or one that is spelled alike."""
    plain = {name.lower(): name for name in names}
    word = written.lower()
    other = _OTHER_WORDS.get(word.removeprefix("dt_").removeprefix("type_").removeprefix("np."))
    if word in plain or other in names:
        return plain.get(word, other)
    begun = [name for name in plain if len(word) >= _MIN_BEGINNING and name.startswith(word)]
    close = begun if len(begun) == 1 else difflib.get_close_matches(word, plain, 1)
    return plain[close[0]] if close else None


def _remedy(kind: str, node: yaml.Node, loc: Loc) -> str:
    """How to write a scalar that was taken for another kind than it was meant to be."""
    time = _TIME.fullmatch(str(node.value)) if isinstance(node, yaml.ScalarNode) else None
    unit = next((unit for unit in _KEY_UNITS if loc and str(loc[-1]).endswith(f"_{unit}")), None)
    if kind in ("int_type", "float_type") and time and unit:
        amount = float(time[1]) * _SECONDS[time[2]] / _SECONDS[_KEY_UNITS[unit]]
        return f" of {unit if unit != 'us' else 'microseconds'}: {_number(round(amount, 6))}"
    if kind == "string_type" and isinstance(node, yaml.ScalarNode) and node.value:
        return f"; put it in quotes: {quoted(node.value)}"
    is_quoted = isinstance(node, yaml.ScalarNode) and node.style in ("'", '"')
    if kind in ("int_type", "float_type", "bool_type") and is_quoted and _UNQUOTED.fullmatch(node.value):
        return "; write it without quotes"
    return ""

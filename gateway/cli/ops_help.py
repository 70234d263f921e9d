"""The text of `tensorgate ops`: the operators that the YAML may name."""

from __future__ import annotations

import difflib
import inspect
import json
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from tensorgate.gateway.contract.operator import OpKind

_WIDTH: Final = 100
_WORDS: Final = {"string": "text", "boolean": "true or false", "null": "null", "object": "mapping", "array": "list"}


def listed(ops: Mapping[str, OpKind]) -> Iterator[str]:
    """A line per operator."""
    width = max(map(len, ops))
    for name in sorted(ops):
        yield f"{name:{width}}  {_paragraphs(ops[name])[0]}"


def explained(ops: Mapping[str, OpKind], names: Sequence[str]) -> Iterator[str]:
    """The description and keys of these operators. Raises KeyError with a text for people if one does not exist."""
    for name in names:
        if name not in ops:
            close = difflib.get_close_matches(name, ops, 1)
            raise KeyError(f"there is no operator {name}" + (f"; did you mean {close[0]}?" if close else ""))
        yield name
        for paragraph in _paragraphs(ops[name]):
            # an example stays on one line, to be copied
            lines = [paragraph] if paragraph.startswith("Example:") else textwrap.wrap(paragraph, _WIDTH)
            yield from (f"  {line}" for line in lines)
        yield ""
        schema = ops[name].options.model_json_schema()
        yield from _keys(schema, schema.get("$defs", {}), "  ")
        yield ""


def _paragraphs(kind: OpKind) -> list[str]:
    text = inspect.cleandoc(kind.options.__doc__ or "An operator of the configuration's own.")
    return [" ".join(part.split()) for part in text.split("\n\n")]


def _keys(schema: Mapping[str, Any], parts: Mapping[str, Any], indent: str) -> Iterator[str]:
    required = schema.get("required", ())
    for key, value in schema.get("properties", {}).items():
        if key == "op":
            continue
        kind = _kind(value, parts)
        default = "required" if key in required else f"default {json.dumps(value.get('default'))}"
        inner = parts[value["$ref"].rpartition("/")[2]] if "$ref" in value else None
        yield f"{indent}{key}: {kind}, {default}" if inner is None else f"{indent}{key}: mapping"
        about = textwrap.wrap(value.get("description", ""), _WIDTH - len(indent) - 4)
        yield from (f"{indent}    {line}" for line in about)
        if inner is not None:
            yield from _keys(inner, parts, indent + "    ")


def _kind(schema: Mapping[str, Any], parts: Mapping[str, Any]) -> str:
    """A value's type in a few words."""
    if "$ref" in schema:
        return _kind(parts[schema["$ref"].rpartition("/")[2]], parts)
    if "anyOf" in schema:
        return " or ".join(_kind(option, parts) for option in schema["anyOf"])
    if "enum" in schema:
        return ", ".join(map(str, schema["enum"]))
    if "const" in schema:
        return str(schema["const"])
    kind = str(schema.get("type", "anything"))
    if kind == "array":
        items = schema.get("items") or next(iter(schema.get("prefixItems", ())), None)
        return "list" if items is None else f"list of {_kind(items, parts)}"
    low, high = schema.get("minimum"), schema.get("maximum")
    bounds = f" from {low:g}" if low is not None else ""
    bounds += f" to {high:g}" if high is not None else ""
    return _WORDS.get(kind, kind) + bounds

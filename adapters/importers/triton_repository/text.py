"""config.pbtxt, or a configuration as JSON -> a ModelConfig message that knows where its keys stand; a message -> JSON
data.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from google.protobuf import json_format
from google.protobuf.descriptor import FieldDescriptor

from tensorgate.adapters.importers import common as migration
from tensorgate.adapters.importers.common import Note, Source
from tensorgate.adapters.importers.common.source import shorter
from tensorgate.adapters.protobuf.messages import message

CONFIG_FILE: Final = "config.pbtxt"
_KIND: Final = "inference.ModelConfig"


@dataclass(frozen=True, slots=True)
class Reading:
    """One model's folder, read: its entry below `models:` as plain data, paths absolute, and what to tell of it."""

    entry: Mapping[str, Any]
    notes: tuple[Note, ...] = ()


def parse_text(text: str, file: str = CONFIG_FILE) -> Source:
    """Text format -> configuration. Raises ValueError naming file, line, column and key."""
    return migration.parse_text(text, _KIND, file)


def parse_json(text: str) -> Source:
    """The JSON form, in which integers may be in quotes -> configuration. Raises ValueError."""
    if not text.lstrip().startswith("{"):
        raise ValueError("configuration: expected a JSON object")
    try:
        config = json_format.Parse(text, message(_KIND)())
    except (json_format.ParseError, ValueError, RecursionError) as error:
        raise ValueError(f"configuration: {shorter(str(error))}") from None
    return Source(config, "configuration")


# ------------------------------------------------------------------------------------------------------------ JSON data


def plain(message: Any, *, defaults: bool) -> dict[str, Any]:
    """What is set, and with `defaults` also what is not, but for messages and members of a oneof."""
    data: dict[str, Any] = {}
    for field in message.DESCRIPTOR.fields:
        value = getattr(message, field.name)
        if _is_map(field):
            entry = field.message_type.fields_by_name["value"]
            found: Any = {str(key): _one(entry, value[key], defaults) for key in sorted(value)}
        elif field.is_repeated:
            found = [_one(field, each, defaults) for each in value]
        elif field.has_presence:
            if message.HasField(field.name):
                data[field.name] = _one(field, value, defaults)
            continue
        else:
            found = _one(field, value, defaults)
        if defaults or value:
            data[field.name] = found
    return data


def _is_map(field: FieldDescriptor) -> bool:
    kind = field.message_type
    return kind is not None and bool(kind.GetOptions().map_entry)


def _one(field: FieldDescriptor, value: Any, defaults: bool) -> Any:
    if field.message_type is not None:
        return plain(value, defaults=defaults)
    if field.enum_type is not None:
        named = field.enum_type.values_by_number.get(value)
        return named.name if named else value
    return value

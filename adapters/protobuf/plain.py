"""A message -> JSON data: fields by their own names, enums by theirs; unlike protobuf's own form, every integer is a
number.
"""

from __future__ import annotations

from typing import Any

from google.protobuf.descriptor import FieldDescriptor


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

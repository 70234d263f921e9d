"""Protobuf messages as plain values: objects by field name, lists, and scalars with their defaults."""

from __future__ import annotations

from typing import Any


def plain_message(message: Any) -> dict[str, Any]:
    """Every field by name. Fields with presence are left out where they are not set: submessages, members of a oneof.
    Enums are numbers.
    """
    found: dict[str, Any] = {}
    for field in message.DESCRIPTOR.fields:
        value = getattr(message, field.name)
        is_map = field.message_type is not None and field.message_type.GetOptions().map_entry
        if is_map:
            found[field.name] = {str(key): _plain(value[key]) for key in value}
        elif field.is_repeated:
            found[field.name] = [_plain(each) for each in value]
        elif not field.has_presence or message.HasField(field.name):
            found[field.name] = _plain(value)
    return found


def _plain(value: Any) -> Any:
    return plain_message(value) if hasattr(value, "DESCRIPTOR") else value

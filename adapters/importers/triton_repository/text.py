"""config.pbtxt, or a configuration as JSON -> a ModelConfig message that knows where its keys stand."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from google.protobuf import json_format

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

"""config.pbtxt, or a configuration as JSON -> a ModelConfig message that knows where its keys stand."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from google.protobuf import json_format, text_format

from adapters.pb import message, pool
from adapters.triton_repository.places import Places, read_places

CONFIG_FILE: Final = "config.pbtxt"
_UNKNOWN: Final = re.compile(r'Message type "([\w.]+)" has no field named "([^"]*)"')


@dataclass(frozen=True, slots=True)
class Note:
    """What the configuration says and this gateway does not do, or does in its own way. `line` 0: no line to name."""

    file: str
    line: int
    key: str
    text: str

    def __str__(self) -> str:
        where = f"{self.file}:{self.line}" if self.line else self.file
        return f"{where}: {self.key} {self.text}"


@dataclass(frozen=True, slots=True)
class Reading:
    """One model's folder, read: its entry below `models:` as plain data, paths absolute, and what to tell of it."""

    entry: Mapping[str, Any]
    notes: tuple[Note, ...] = ()


@dataclass(slots=True)
class Source:
    """A ModelConfig, the file that it came from, and the notes that reading it gathers."""

    config: Any
    file: str
    places: Places = field(default_factory=Places)
    notes: list[Note] = field(default_factory=list)

    def note(self, key: str, text: str, at: str = "") -> None:
        """Tell of a key, "instance_group[1].gpus"; `at` is the map entry that is meant, if it is one."""
        place = self.places.of_entry(key, at) if at else self.places.of(key)
        shown = f"{key}.{at}" if at else key
        self.notes.append(Note(self.file, place.line if place else 0, shown.replace("[0]", ""), text))

    def wrong(self, key: str, text: str) -> ValueError:
        """The error that a key is wrong, for the reader to raise."""
        place = self.places.of(key)
        where = f"{self.file}:{place.line}:{place.column}" if place else self.file
        return ValueError(f"{where}: {key.replace('[0]', '')}: {_printable(text)}")


def parse_text(text: str, file: str = CONFIG_FILE) -> Source:
    """Text format -> configuration. Raises ValueError naming file, line, column and key."""
    places = read_places(text)
    try:
        config = text_format.Parse(text, message("inference.ModelConfig")())
    except text_format.ParseError as error:
        raise ValueError(_told(error, text, file, places)) from None
    except (ValueError, RecursionError) as error:  # an escape that is no text, for one
        raise ValueError(f"{file}: {_printable(str(error))}") from None
    return Source(config, file, places)


def parse_json(text: str) -> Source:
    """The JSON form, in which integers may be in quotes -> configuration. Raises ValueError."""
    if not text.lstrip().startswith("{"):
        raise ValueError("configuration: expected a JSON object")
    try:
        config = json_format.Parse(text, message("inference.ModelConfig")())
    except (json_format.ParseError, ValueError, RecursionError) as error:
        raise ValueError(f"configuration: {_shorter(str(error))}") from None
    return Source(config, "configuration")


def _told(error: text_format.ParseError, text: str, file: str, places: Places) -> str:
    line, column = error.GetLine() or 1, error.GetColumn() or 1
    lines = text.split("\n")
    shown = lines[line - 1] if line <= len(lines) else ""
    remark = str(error).removeprefix(f"{line}:{column} : ").removeprefix(f"'{shown}': ")
    key = places.before(line, column)
    return f"{file}:{line}:{column}: {key + ': ' if key else ''}{_shorter(remark)}"


def _shorter(remark: str) -> str:
    """Protobuf's remark; an unknown key is told with the one that was meant."""
    unknown = _UNKNOWN.search(remark)
    if unknown is None:
        return _printable(remark)
    known = [each.name for each in pool().FindMessageTypeByName(unknown[1]).fields]
    close = difflib.get_close_matches(unknown[2], known, 1)
    return f'unknown key "{_printable(unknown[2][:80])}"' + (f"; did you mean {close[0]}?" if close else "")


def _printable(text: str) -> str:
    """What others wrote, for one line of a log."""
    line = "".join(letter if letter.isprintable() else json.dumps(letter)[1:-1] for letter in text[:300])
    return line if len(text) <= 300 else line + "…"

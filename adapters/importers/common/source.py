"""A configuration in protobuf's text format -> a message that knows where its keys stand."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

from google.protobuf import text_format

from tensorgate.adapters.importers.common.key_locations import KeyLocations, read_key_locations
from tensorgate.adapters.protobuf.messages import message, pool
from tensorgate.gateway.contract.extras import install_command

MAX_BYTES: Final = 1 << 20
_UNKNOWN: Final = re.compile(r'Message type "([\w.]+)" has no field named "([^"]*)"')

Fate: TypeAlias = Literal["mapped", "ignored", "refused", "told"]
"""What became of a key: it is done here, is not missed, could not be had, or was done and has something to look at."""


class UsageError(ValueError):
    """A command line is wrong: its server would not start with it, either. `str()` has a line per mistake."""


@dataclass(frozen=True, slots=True)
class Note:
    """What the configuration says and this gateway does not do, or does in its own way. `line` 0: no line to name."""

    file: str
    line: int
    key: str
    text: str
    fate: Fate = "ignored"

    def __str__(self) -> str:
        where = f"{self.file}:{self.line}" if self.line else self.file
        return f"{where}: {self.key} {self.text}"


@dataclass(slots=True)
class Source:
    """A message, the file that it came from, and the notes that reading it gathers. Keys are paths in the message,
    "instance_group[1].gpus".
    """

    config: Any
    file: str
    places: KeyLocations = field(default_factory=KeyLocations)
    notes: list[Note] = field(default_factory=list)

    def note(self, key: str, text: str, at: str = "", fate: Fate = "ignored") -> None:
        """Tell of a key; `at` is the map entry that is meant, if it is one."""
        place = self.places.of_entry(key, at) if at else self.places.of(key)
        shown = f"{key}.{at}" if at else key
        self.notes.append(Note(self.file, place.line if place else 0, shown.replace("[0]", ""), text, fate))

    def wrong(self, key: str, text: str) -> ValueError:
        """The error that a key is wrong, for the reader to raise."""
        place = self.places.of(key)
        where = f"{self.file}:{place.line}:{place.column}" if place else self.file
        return ValueError(f"{where}: {key.replace('[0]', '')}: {printable(text)}")


def own_notes(notes: Iterable[Note], prefix: str) -> list[Note]:
    """The notes of one model by line, their keys without the way to it."""
    return sorted((replace(note, key=note.key.removeprefix(prefix)) for note in notes), key=lambda note: note.line)


def read_text(place: Path, file: str) -> str:
    """The text of a configuration; errors call it `file`. Raises ValueError, or OSError."""
    if place.exists() and not place.is_file():  # to open a pipe would wait for whoever writes into it
        raise ValueError(f"{file}: not a file")
    with place.open("rb") as opened:
        content = opened.read(MAX_BYTES + 1)
    if len(content) > MAX_BYTES:
        raise ValueError(f"{file}: larger than {MAX_BYTES >> 20} MiB")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise ValueError(f"{file}:{line}: not UTF-8 text") from None


def parse_text(text: str, kind: str, file: str, *, lenient: bool = False, secret: bool = False) -> Source:
    """Text format -> a message of the `kind`. `lenient` notes keys that it has not, and passes over them; of a text
    that is `secret` no error shows a part.

    Raises ValueError naming file, line, column and key.
    """
    places = read_key_locations(text)
    source = Source(message(kind)(), file, places)
    try:
        text_format.Parse(text, source.config, allow_unknown_field=lenient)
    except text_format.ParseError as error:
        raise ValueError(_error_text(error, text, file, places, secret)) from None
    except (ValueError, RecursionError) as error:  # an escape that is no text, for one
        raise ValueError(f"{file}: {'not readable' if secret else printable(str(error))}") from None
    if lenient:
        for key, known in _unknown(places, source.config.DESCRIPTOR):
            source.note(key, f"is not known and passed over{_close(key.rpartition('.')[2].partition('[')[0], known)}")
    return source


def _unknown(places: KeyLocations, descriptor: Any) -> Iterator[tuple[str, list[str]]]:
    """(path, the keys that could have stood there) of each key that its message has not."""
    for path in places.found:
        *outer, last = path.split(".")
        around = descriptor
        for step in outer:
            inner = around.fields_by_name.get(step.partition("[")[0]) if around else None
            around = inner.message_type if inner else None
        if around is not None and last.partition("[")[0] not in around.fields_by_name:
            yield path, [each.name for each in around.fields]


def _error_text(error: text_format.ParseError, text: str, file: str, places: KeyLocations, secret: bool) -> str:
    line, column = error.GetLine() or 1, error.GetColumn() or 1
    lines = text.split("\n")
    shown = lines[line - 1] if line <= len(lines) else ""
    remark = str(error).removeprefix(f"{line}:{column} : ").removeprefix(f"'{shown}': ")
    if secret:
        return f"{file}:{line}:{column}: not readable as text format"
    key = places.before(line, column)
    return f"{file}:{line}:{column}: {key + ': ' if key else ''}{shorter(remark)}"


def shorter(remark: str) -> str:
    """Protobuf's remark; an unknown key is told with the one that was meant."""
    unknown = _UNKNOWN.search(remark)
    if unknown is None:
        return printable(remark)
    known = [each.name for each in pool().FindMessageTypeByName(unknown[1]).fields]
    return f'unknown key "{printable(unknown[2][:80])}"{_close(unknown[2], known)}'


def _close(name: str, known: list[str]) -> str:
    close = difflib.get_close_matches(name, known, 1)
    return f"; did you mean {close[0]}?" if close else ""


def printable(text: str) -> str:
    """What others wrote, for one line of a log."""
    line = "".join(letter if letter.isprintable() else json.dumps(letter)[1:-1] for letter in text[:300])
    return line if len(text) <= 300 else line + "…"


# ----------------------------------------------------------------------------------------- what all servers' models say

NO_BOUND: Final = 65536
"""How many requests may wait where the other server sets no bound."""


def needs_tensorflow() -> str:
    """The remark on a model that TensorFlow runs."""
    return f"needs TensorFlow here: {install_command('tensorflow')}"


def versions_of(policy: Any, minimum: int, refuse: Callable[[str], ValueError]) -> Any:
    """A version policy, of Triton or of TensorFlow Serving -> latest, all, a list, or {latest: n}; versions begin from
    the `minimum`. Raises what `refuse` makes of the name of a wrong field.
    """
    choice = policy.WhichOneof("policy_choice")
    if choice == "specific":
        wanted = sorted(set(policy.specific.versions))
        if not wanted or wanted[0] < minimum:
            raise refuse(choice)
        return wanted
    count = policy.latest.num_versions if choice == "latest" else 1
    if count < minimum:
        raise refuse("latest")
    return "all" if choice == "all" else "latest" if count < 2 else {"latest": count}


def is_version(entry: Path) -> bool:
    """Whether it is the folder of a version."""
    return entry.name.isascii() and entry.name.isdecimal() and entry.is_dir()

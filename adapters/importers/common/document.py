"""Models that were read -> a YAML file of the gateway, for people to read and keep."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import yaml

from tensorgate.adapters.importers.common.source import Note

_ORDER: Final = (
    "backend", "path", "file", "versions", "device", "instances", "decoupled", "max_batch_size", "batching",
    "max_queue_delay_us", "preferred_batch_sizes", "send_on_mismatch", "max_queue_size",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Imported:
    """A model that was read, or why it could not be."""

    name: str
    entry: Mapping[str, Any] | None = None
    notes: Sequence[Note] = ()
    error: str = ""


@dataclass(frozen=True, slots=True)
class ImportedServer:
    """What another server was told: `sections` are lines of YAML before `models`. `secrets` and `skeletons` are files
    beside the YAML, path -> text: of the former nobody but their owner may read, the latter people fill in, so that
    none is written over.
    """

    sections: Sequence[str]
    models: Sequence[Imported]
    notes: Sequence[Note]
    secrets: Mapping[str, str] = field(default_factory=dict)
    skeletons: Mapping[str, str] = field(default_factory=dict)


def document(title: Sequence[str], sections: Sequence[str], models: Sequence[Imported], folder: Path | None) -> str:
    """The file's text: comments, the lines of the sections before `models`, and the models; paths are relative to its
    `folder`, or left as they are. What could not be read, or is done otherwise, stands in comments.
    """
    lines = [*(f"# {one_line(line)}" for line in title), "", *sections, *(["", "models:"] if models else [])]
    for model in models:
        lines += ["", *_model(model, folder)]
    return "\n".join(lines) + "\n"


def _model(model: Imported, folder: Path | None) -> Iterator[str]:
    if model.entry is None:
        yield f"  # {one_line(model.name)}: not imported: {one_line(model.error)}"
        return
    yield f"  {flow(model.name)}:"
    yield from (f"    # {one_line(str(note))}" for note in model.notes if note.fate != "mapped")
    entry = dict(model.entry)
    entry.pop("open_inference", None)  # the answer to clients who ask for it is made from what stands here
    for key in sorted(entry, key=lambda key: _ORDER.index(key) if key in _ORDER else len(_ORDER)):
        yield from _pair(key, _relative(key, entry[key], folder) if folder else entry[key])


def _relative(key: str, value: Any, folder: Path) -> Any:
    if key == "path":
        return relative(value, folder)
    if key == "class_labels":
        return {output: relative(file, folder) for output, file in value.items()}
    if key == "sequences":
        states = [
            state | ({"initial": relative(state["initial"], folder)} if state.get("initial", "zero") != "zero" else {})
            for state in value.get("states", ())
        ]
        return value | ({"states": states} if states else {})
    return value


def relative(file: str, folder: Path) -> str:
    """A path as a file in that folder says it."""
    return Path(os.path.relpath(file, folder)).as_posix()


def _pair(key: str, value: Any) -> Iterator[str]:
    if isinstance(value, list) and value and all(isinstance(each, Mapping) for each in value):
        yield f"    {key}:"
        yield from (f"      - {flow(each)}" for each in value)
    else:
        yield f"    {key}: {flow(value)}"


def flow(value: Any) -> str:
    """One line of YAML."""
    text = yaml.safe_dump(value, default_flow_style=True, sort_keys=False, allow_unicode=True, width=float("inf"))
    return text.removesuffix("\n").removesuffix("\n...")


def one_line(text: str) -> str:
    """What others wrote, for a comment."""
    return "".join(letter if letter.isprintable() else " " for letter in text)

"""Models that were read -> a YAML file of the gateway, for people to read and keep."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

from adapters.triton_repository.text import Note

_ORDER: Final = (
    "backend", "path", "file", "versions", "device", "instances", "decoupled", "max_batch_size", "batching",
    "max_queue_delay_us", "preferred_batch_sizes", "max_queue_size",
)  # fmt: skip
_PORTS: Final = """\
listen:                               # Triton's ports
  http:
    - {bind: "0.0.0.0:8000"}
  grpc:
    - {bind: "0.0.0.0:8001"}
  metrics: {bind: "0.0.0.0:8002"}
"""


@dataclass(frozen=True, slots=True)
class Imported:
    """A model that was read, or why it could not be."""

    name: str
    entry: Mapping[str, Any] | None = None
    notes: Sequence[Note] = ()
    error: str = ""


def document(title: str, models: Sequence[Imported], folder: Path) -> str:
    """The file's text; paths are relative to its `folder`. What could not be read, or is done otherwise, stands in
    comments.
    """
    lines = [
        f"# {_one_line(title)}",
        "# What Triton's configuration says and is not done here stands beside each model.",
    ]
    lines += ["", *_PORTS.splitlines(), "", "models:"]
    for model in models:
        lines += ["", *_model(model, folder)]
    return "\n".join(lines) + "\n"


def _model(model: Imported, folder: Path) -> Iterator[str]:
    if model.entry is None:
        yield f"  # {_one_line(model.name)}: not imported: {_one_line(model.error)}"
        return
    yield f"  {_flow(model.name)}:"
    for note in model.notes:
        yield f"    # {_one_line(str(note))}"
    entry = dict(model.entry)
    entry.pop("open_inference", None)  # the answer to clients who ask for it is made from what stands here
    for key in sorted(entry, key=lambda key: _ORDER.index(key) if key in _ORDER else len(_ORDER)):
        yield from _pair(key, _relative(key, entry[key], folder))


def _relative(key: str, value: Any, folder: Path) -> Any:
    if key == "path":
        return _path(value, folder)
    if key == "class_labels":
        return {output: _path(file, folder) for output, file in value.items()}
    if key == "sequences":
        states = [
            state | ({"initial": _path(state["initial"], folder)} if state.get("initial", "zero") != "zero" else {})
            for state in value.get("states", ())
        ]
        return value | ({"states": states} if states else {})
    return value


def _path(file: str, folder: Path) -> str:
    return Path(os.path.relpath(file, folder)).as_posix()


def _pair(key: str, value: Any) -> Iterator[str]:
    if isinstance(value, list) and value and all(isinstance(each, Mapping) for each in value):
        yield f"    {key}:"
        yield from (f"      - {_flow(each)}" for each in value)
    else:
        yield f"    {key}: {_flow(value)}"


def _flow(value: Any) -> str:
    """One line of YAML."""
    text = yaml.safe_dump(value, default_flow_style=True, sort_keys=False, allow_unicode=True, width=float("inf"))
    return text.removesuffix("\n").removesuffix("\n...")


def _one_line(text: str) -> str:
    return "".join(letter if letter.isprintable() else " " for letter in text)

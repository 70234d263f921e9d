"""The models of repositories, read once at start: folders -> more models in the configuration.

A model whose folder cannot be read, or holds what the configuration refuses, fails alone: its name and what is wrong
with it stay.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

from gateway.config import Config, ConfigError, ModelConfig, parse_config
from gateway.ports import Registries

_LATER: Final = {"batching", "queue", "priorities", "preferred_batch_sizes", "sequences", "open_inference"}


class Reading(Protocol):
    """A model's folder, read: its entry below `models:` as plain data, and what to tell of it."""

    @property
    def entry(self) -> Mapping[str, Any]: ...

    @property
    def notes(self) -> Sequence[object]: ...


@dataclass(frozen=True, slots=True)
class Folders:
    """The configuration with the models of its repositories; of those that failed, why; and notes, a line each."""

    config: Config
    failed: Mapping[str, str]
    notes: Sequence[str]


def read_repositories(config: Config, registries: Registries, read: Callable[[Path], Reading]) -> Folders:
    """`read` raises ValueError or OSError."""
    models: dict[str, ModelConfig] = dict(config.models)
    failed: dict[str, str] = {}
    notes: list[str] = []
    for folder in _model_folders(config):
        name = folder.name
        if name in models or name in failed:
            failed[name] = f"{folder} is the second model of that name"
            models.pop(name, None)
            continue
        try:
            reading = read(folder)
            text = json.dumps({"models": {name: _known(reading.entry, registries)}})
            models[name] = parse_config(text, folder, type(config)).models[name]
        except ConfigError as error:
            failed[name] = "; ".join(f"{each.key}: {each.text}" for each in error.problems)
        except (ValueError, OSError) as error:
            failed[name] = str(error)
        else:
            notes += [f"{name}: {note}" for note in reading.notes]
    return Folders(config.model_copy(update={"models": models}), failed, notes)


def _model_folders(config: Config) -> list[Path]:
    found = [entry for repository in config.repositories for entry in sorted(repository.path.iterdir())]
    return [entry for entry in found if entry.is_dir() and not entry.name.startswith(".")]


def _known(entry: Mapping[str, Any], registries: Registries) -> dict[str, Any]:
    """The entry without the keys that models do not have yet."""
    dialects = {name for name, kind in registries.dialects.items() if kind.model_options}
    known = {*ModelConfig.model_fields, *dialects}
    return {key: value for key, value in entry.items() if key in known or key not in _LATER}

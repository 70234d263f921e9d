"""The folders of a model repository: the only place here that reads files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tensorgate.adapters.importers.common import Source, read_text
from tensorgate.adapters.importers.triton_repository.model import translate
from tensorgate.adapters.importers.triton_repository.text import CONFIG_FILE, Reading, parse_json, parse_text
from tensorgate.adapters.protobuf.messages import message


def model_folders(repository: Path) -> dict[str, Path]:
    """Name -> folder, by name: each folder of a repository is a model, if its name can be one. Raises OSError."""
    folders = [
        entry for entry in repository.iterdir() if entry.is_dir() and entry.name[0] != "." and entry.name.isprintable()
    ]
    return {folder.name: folder for folder in sorted(folders)}


def read_model(folder: Path, configuration: str | None = None, *, name: str | None = None) -> Reading:
    """One model. `configuration`, JSON, is taken in place of its config.pbtxt; `name` in place of its folder's.

    Raises ValueError naming what is wrong, or OSError.
    """
    folder = folder.absolute()
    source = _source(folder, configuration)
    if _answers_any_number(source.config, folder.parent, set()):
        source.config.model_transaction_policy.decoupled = True
    return translate(source, name or folder.name, folder, _files(folder))


def _answers_any_number(config: Any, repository: Path, seen: set[str]) -> bool:
    """Whether a model is decoupled by its configuration, or an ensemble has a step that is: in Triton it answers as
    often as the step, without a word of its own.
    """
    if config.model_transaction_policy.decoupled:
        return True
    parts = {step.model_name for step in config.ensemble_scheduling.step} - seen
    seen |= parts
    for part in sorted(parts):
        try:
            if _answers_any_number(_source(repository / part, None).config, repository, seen):
                return True
        except (ValueError, OSError):  # told where that model itself is read
            continue
    return False


def _source(folder: Path, configuration: str | None) -> Source:
    if configuration is not None:
        return parse_json(configuration)
    place = folder / CONFIG_FILE
    if not place.exists():
        return Source(message("inference.ModelConfig")(), "without config.pbtxt")
    return parse_text(read_text(place, CONFIG_FILE))


def _files(folder: Path) -> list[str]:
    """The names in every version's folder."""
    versions = [entry for entry in folder.iterdir() if entry.is_dir() and entry.name.isdecimal()]
    return [file.name for version in sorted(versions) for file in version.iterdir() if file.name.isprintable()]

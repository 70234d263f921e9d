"""A model's folder in a repository: its entry of the YAML stands in `model.yaml`, beside its versions."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from tensorgate.gateway.config import read_plain
from tensorgate.gateway.models.catalog import ReadFolder, Translate

FILE: Final = "model.yaml"


def folder_reader(translate: Translate, otherwise: ReadFolder | None = None) -> ReadFolder:
    """What reads such folders; `translate` knows the texts of configurations that callers send, `otherwise` what has no
    such file, and everything that comes with such a text.
    """

    def read(folder: Path, configuration: str | None, name: str) -> Mapping[str, Any]:
        file = folder / FILE
        if otherwise is not None and (configuration is not None or not file.is_file()):
            return otherwise(folder, configuration, name)
        if not file.is_file() and configuration is None:
            raise ValueError(f"no {FILE} in {folder}")
        own = read_plain(file) if file.is_file() else {}
        if configuration is None:
            return {"path": "."} | own
        # A caller's files may bring this one along: of paths that it names, none may count.
        return translate(configuration, {"path": "."} | {key: own[key] for key in own if key == "backend"})

    return read

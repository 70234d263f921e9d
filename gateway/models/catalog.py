"""Where the configurations of models come from: the YAML file, and folders that hold a model each.

A catalog says which models there are now and how each is configured; whether anybody wants them loaded is the
repository's business. Everything here reads the disk: call it in a thread.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Protocol, TypeAlias

from tensorgate.gateway.config import MAX_VERSION, Config, ModelConfig
from tensorgate.gateway.contract.errors import ModelNotFound
from tensorgate.gateway.contract.files import FileRef

ReadFolder: TypeAlias = Callable[[Path, str | None, str], Mapping[str, Any]]
"""(a model's folder, the text of a configuration in place of the folder's own, the model's name) -> the plain YAML form
of that model. Raises ValueError or OSError."""
Translate: TypeAlias = Callable[[str, Mapping[str, Any]], Mapping[str, Any]]
"""(text of a configuration, the plain YAML form of a model) -> that form with what the text says in its place. Raises
ValueError."""
Validate: TypeAlias = Callable[[Mapping[str, Any], Path], ModelConfig]
"""(plain YAML form, the folder that its paths start from) -> configuration. Raises ValueError."""

_MAX_DEPTH: Final = 8
_MAX_NAMES: Final = 5
_NOT_OF_THE_MODEL: Final = frozenset(("__pycache__",))


class Catalog(Protocol):
    """A source of models."""

    def names(self) -> tuple[str, ...]:
        """All that there are now. Raises OSError where that cannot be told."""
        ...

    def read(self, name: str, configuration: str | None = None, folder: Path | None = None) -> ModelConfig:
        """How a model is configured. `configuration` is a text that takes the place of its own, `folder` one that takes
        the place of where it lies.

        Raises ModelNotFound, or ValueError or OSError with a text for people.
        """
        ...

    def fingerprint(self, name: str) -> Hashable:
        """Changes whenever a file of the model does. Looks at names, sizes and times, not into files."""
        ...


class YamlCatalog:
    """The models of the configuration file, as it was read; what they are made of may change."""

    def __init__(self, config: Config, translate: Translate | None = None, validate: Validate | None = None) -> None:
        self._models = config.models
        self._folder = config.source.parent
        self._translate = translate
        self._validate = validate

    def names(self) -> tuple[str, ...]:
        return tuple(self._models)

    def read(self, name: str, configuration: str | None = None, folder: Path | None = None) -> ModelConfig:
        model = self._models.get(name)
        if model is None:
            raise ModelNotFound(name)
        if configuration is None:
            return model
        if self._translate is None or self._validate is None:
            raise ValueError("this model takes no other configuration than its own")
        plain = dict(self._translate(configuration, model.model_dump(mode="json")))
        if folder is not None and model.path is not None:
            member = model.path.member
            plain["path"] = f"{folder / model.path.path.name}:{member}" if member else str(folder)
        return self._validate(plain, self._folder)

    def fingerprint(self, name: str) -> Hashable:
        model = self._models.get(name)
        if model is None:
            return ()
        return (tree_print(model.path.path) if model.path else (), files_print(model))


class FolderCatalog:
    """Folders with one folder per model; of two models of one name the first counts."""

    def __init__(self, folders: Sequence[Path], read_folder: ReadFolder, validate: Validate) -> None:
        self._folders = folders
        self._read_folder = read_folder
        self._validate = validate

    def names(self) -> tuple[str, ...]:
        return tuple(sorted(self._found()))

    def read(self, name: str, configuration: str | None = None, folder: Path | None = None) -> ModelConfig:
        """With files of its own in `folder`, a model need not be there."""
        place = folder or self._found().get(name)
        if place is None:
            raise ModelNotFound(name)
        if not name.isprintable() or "/" in name:
            raise ValueError("a model's name has neither / nor control characters")
        return self._validate(self._read_folder(place, configuration, name), place)

    def fingerprint(self, name: str) -> Hashable:
        place = self._found().get(name)
        return () if place is None else tree_print(place)

    def _found(self) -> dict[str, Path]:
        found: dict[str, Path] = {}
        for folder in self._folders:
            for entry in folder.iterdir():  # Path.is_dir is quiet about a link that leads to itself
                if entry.name[0] != "." and entry.name.isprintable() and entry.is_dir():
                    found.setdefault(entry.name, entry)
        return found


class Catalogs:
    """Several catalogs as one; of two models of one name the first counts."""

    def __init__(self, *catalogs: Catalog) -> None:
        self._catalogs = catalogs

    def names(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(name for catalog in self._catalogs for name in catalog.names()))

    def read(self, name: str, configuration: str | None = None, folder: Path | None = None) -> ModelConfig:
        for catalog in self._catalogs:
            try:
                return catalog.read(name, configuration, folder)
            except ModelNotFound:
                continue
        raise ModelNotFound(name)

    def fingerprint(self, name: str) -> Hashable:
        return next((each.fingerprint(name) for each in self._catalogs if name in each.names()), ())


def wanted_versions(config: ModelConfig) -> dict[int, Path]:
    """Version -> where it lies, ascending, as the version policy chooses. Raises OSError."""
    place = config.path.path if config.path else Path()
    if config.versions.flat:
        return {1: place}
    found = version_folders(place)
    return {version: found[version] for version in config.versions.choose(found)}


def no_version(config: ModelConfig) -> str:
    """Why a model has no version to load: what lies where its versions are sought, and what was expected."""
    place = config.path.path if config.path else Path()
    try:
        versions = sorted(version_folders(place))
        names = sorted(entry.name + "/" * entry.is_dir() for entry in place.iterdir())
    except OSError as error:
        return f"no version to load in {place}: {error.strerror}"
    if versions:
        wanted = ", ".join(map(str, config.versions.named))
        return f"no version to load in {place}: found {_listed(list(map(str, versions)))}, but versions names {wanted}"
    found = f"found {_listed(names)}" if names else "the folder is empty"
    remedy = "; versions: none takes the folder itself for the model" if names else ""
    return f"no version to load in {place}: {found}, expected folders with whole numbers as names, like 1/{remedy}"


def _listed(names: Sequence[str]) -> str:
    more = len(names) - _MAX_NAMES
    return ", ".join(names[:_MAX_NAMES]) + (f" and {more} more" if more > 0 else "")


def version_folders(place: Path) -> dict[int, Path]:
    """Version -> where it lies, of all that there are. Raises OSError.

    A folder whose name is a number that callers can ask for is a version; others are ignored. Of 1 and 01 it is 1.
    """
    folders = [entry for entry in place.iterdir() if _is_version(entry.name) and entry.is_dir()]
    return {int(folder.name): folder for folder in sorted(folders, key=lambda folder: len(folder.name), reverse=True)}


def _is_version(name: str) -> bool:
    return name.isascii() and name.isdecimal() and int(name) <= MAX_VERSION


# --------------------------------------------------------------------------------------------------------- fingerprints


def files_print(config: ModelConfig) -> Hashable:
    """Of the files that a configuration names beside its model."""
    files = [*config.class_labels.values(), *([config.example] if config.example else [])]
    for step in (*config.preprocess, *config.postprocess):
        files += [value for value in dict(step).values() if isinstance(value, FileRef)]
    return tuple(tree_print(file.path) for file in files)


def tree_print(path: Path) -> Hashable:
    """Of a file, or of a folder and what is below it."""
    try:
        state = path.stat()
    except OSError:
        return ()
    if stat.S_ISDIR(state.st_mode):
        return (state.st_ino, *_below(path, 0))
    return (state.st_ino, state.st_mtime_ns, state.st_size)


def _below(path: Path, depth: int) -> Iterator[tuple[str, int, int, int]]:
    """A folder's own time changes with what Python leaves beside a model: only its entries count."""
    try:
        entries = sorted(os.scandir(path), key=lambda entry: entry.name)
    except OSError:
        return
    for entry in entries:
        if entry.name[0] == "." or entry.name in _NOT_OF_THE_MODEL:
            continue
        try:
            state = entry.stat()
        except OSError:
            continue
        folder = stat.S_ISDIR(state.st_mode)
        yield entry.path, state.st_ino, *((0, 0) if folder else (state.st_mtime_ns, state.st_size))
        if folder and depth < _MAX_DEPTH:
            yield from _below(Path(entry.path), depth + 1)

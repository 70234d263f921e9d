"""A model's folder on disk: its version folders, fingerprints of its files, and files that callers upload.

Everything here reads or writes the disk: call it in a thread.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from typing import Final, TypeAlias

from tensorgate.gateway.config import MAX_VERSION, ModelConfig
from tensorgate.gateway.contract.files import FileRef

FILE: Final = "model.yaml"
"""A model's entry of the YAML, in its folder of a repository, beside its versions."""
MAX_FILES: Final = 1024
MAX_BYTES: Final = 2 << 30

_MAX_DEPTH: Final = 8
_MAX_NAMES: Final = 5
_MAX_PARTS: Final = 16
_IGNORED_NAMES: Final = frozenset(("__pycache__",))
_PROGRAMS: Final = re.compile(r"\.(py|pyc|pyo|pyw|pyd|pth|so|dll|dylib)$|\.so\.", re.IGNORECASE)

Upload: TypeAlias = "TemporaryDirectory[str]"
"""A private folder with the files of one load. Its owner cleans it up once nothing reads from it."""


def wanted_versions(config: ModelConfig) -> dict[int, Path]:
    """Version -> its folder, ascending, as the version policy chooses; a file is version 1. Raises OSError."""
    place = config.path.path if config.path else Path()
    if config.versions.flat or place.is_file():
        return {1: place}
    found = version_folders(place)
    return {version: found[version] for version in config.versions.choose(found)}


def no_version(config: ModelConfig) -> str:
    """Why a model has no version to load: what its folder contains, and what was expected."""
    place = config.path.path if config.path else Path()
    try:
        versions = sorted(version_folders(place))
        names = sorted(entry.name + "/" * entry.is_dir() for entry in place.iterdir())
    except OSError as error:
        return f"no version to load in {place}: {error.strerror}"
    return no_version_among(config, str(place), versions, names)


def no_version_among(config: ModelConfig, place: str, versions: Sequence[int], names: Sequence[str]) -> str:
    """Why there is none to load of these versions, in a folder with these names."""
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
    """Version -> its folder, of all versions on disk. Raises OSError.

    A folder whose name is a number that callers can ask for is a version; others are ignored. Of 1 and 01 it is 1.
    """
    folders = [entry for entry in place.iterdir() if _is_version(entry.name) and entry.is_dir()]
    return {int(folder.name): folder for folder in sorted(folders, key=lambda folder: len(folder.name), reverse=True)}


def _is_version(name: str) -> bool:
    return name.isascii() and name.isdecimal() and int(name) <= MAX_VERSION


# --------------------------------------------------------------------------------------------------------- fingerprints


def files_fingerprint(config: ModelConfig) -> Hashable:
    """Changes whenever a file does that a configuration names beside its model."""
    files = [*config.class_labels.values(), *([config.example] if config.example else [])]
    if config.verify is not None:
        files += config.verify.files()
        if config.verify.folder and config.path is not None:
            files.append(FileRef("", config.path.path.parent))
    for step in (*config.preprocess, *config.postprocess):
        files += [value for value in dict(step).values() if isinstance(value, FileRef)]
    return tuple(tree_fingerprint(file.path) for file in files)


def tree_fingerprint(path: Path) -> Hashable:
    """Changes whenever a file, or anything below a folder, does: by names, sizes and times; () if it does not exist."""
    try:
        state = path.stat()
    except OSError:
        return ()
    if stat.S_ISDIR(state.st_mode):
        return (state.st_ino, *_below(path, 0))
    return (state.st_ino, state.st_mtime_ns, state.st_size)


def _below(path: Path, depth: int) -> Iterator[tuple[str, int, int, int]]:
    """Entries of a folder. Its own time does not count: it changes when Python writes __pycache__."""
    try:
        entries = sorted(os.scandir(path), key=lambda entry: entry.name)
    except OSError:
        return
    for entry in entries:
        if entry.name[0] == "." or entry.name in _IGNORED_NAMES:
            continue
        try:
            state = entry.stat()
        except OSError:
            continue
        folder = stat.S_ISDIR(state.st_mode)
        yield entry.path, state.st_ino, *((0, 0) if folder else (state.st_mtime_ns, state.st_size))
        if folder and depth < _MAX_DEPTH:
            yield from _below(Path(entry.path), depth + 1)


# -------------------------------------------------------------------------------------------------------------- uploads


def store(files: Mapping[str, bytes]) -> Upload:
    """Contents by path below the model's folder -> a temporary folder with them, which only this user can read.

    Raises ValueError for paths that lead out of the folder, and for too many files or bytes.
    """
    if len(files) > MAX_FILES or sum(map(len, files.values())) > MAX_BYTES:
        raise ValueError(f"more than {MAX_FILES} files or {MAX_BYTES} bytes")
    places = {name: _checked(name) for name in files}
    upload = TemporaryDirectory(prefix="tensorgate-upload-")
    try:
        for name, content in files.items():
            place = Path(upload.name, places[name])
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(content)
    except OSError as error:
        upload.cleanup()
        raise ValueError(f"file '{name}' cannot be stored: {error.strerror}") from None
    return upload


def first_program(names: Iterable[str]) -> str | None:
    """The first file, if any, that Python or the system's loader would execute."""
    return next((name for name in names if _PROGRAMS.search(name)), None)


def _checked(name: str) -> PurePosixPath:
    path = PurePosixPath(name)
    plain = name.isprintable() and "\\" not in name and str(path) == name and not path.is_absolute()
    if not plain or ".." in path.parts or not 0 < len(path.parts) <= _MAX_PARTS:
        raise ValueError(f"file path '{name}' does not lie below the model's folder")
    return path

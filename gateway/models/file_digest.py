"""What a model's files are, as one SHA-256: of a file its own, as sha256sum prints it; of a folder its manifest's.

The manifest has a line for each file below the folder, hidden ones too: the file's SHA-256, two spaces, and its path
from the folder on, in the order of the paths' bytes. So coreutils find the same digest:

    cd FOLDER && find . -type f -printf '%P\\0' | LC_ALL=C sort -z | xargs -0 sha256sum | sha256sum

A link to a file inside the folder counts as that file; every other link is refused, and so is what is neither a file
nor a folder. Empty folders do not count. Everything here reads the disk: call it in a thread.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeAlias

_MAX_FILES: Final = 100_000
FileState: TypeAlias = tuple[int, int, int, int, int]
"""Device, inode, size, and the times of the last write and the last change. Whoever writes to a file can set back the
first of the times, and not the second."""


class UnfitFiles(ValueError):
    """Files that have no digest."""


@dataclass(frozen=True, slots=True)
class FilesDigest:
    """The digest of a file or folder; each file's own by its path from the folder on, "." for a file alone; and what
    state each was in.
    """

    sha256: str
    files: Mapping[str, str]
    states: Mapping[str, FileState]

    def manifest(self) -> str:
        """The text whose SHA-256 is that of the folder."""
        return manifest_of(self.files)


def files_digest(path: Path) -> FilesDigest:
    """The digest of a file, or of all files below a folder. Raises UnfitFiles, OSError."""
    if not path.is_dir():
        sha256, state = _file(path, path.name)
        return FilesDigest(sha256, {".": sha256}, {".": state})
    files, states = {}, {}
    for name, place in _below(path):
        files[name], states[name] = _file(place, name)
    if not files:
        raise UnfitFiles(f"no file in {path}")
    return FilesDigest(hashlib.sha256(manifest_of(files).encode()).hexdigest(), files, states)


def manifest_of(files: Mapping[str, str]) -> str:
    """Path -> digest, as the text of a manifest."""
    return "".join(f"{files[name]}  {name}\n" for name in sorted(files, key=os.fsencode))


def file_states(path: Path) -> dict[str, FileState]:
    """The states of a file, or of all files below a folder, by the names that `files_digest` gives them, without
    reading them. Raises UnfitFiles, OSError.
    """
    if not path.is_dir():
        return {".": state_of(path.stat())}
    return {name: state_of(place.stat()) for name, place in _below(path)}


def state_of(found: os.stat_result) -> FileState:
    """What changes whenever the file does."""
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def _file(place: Path, name: str) -> tuple[str, FileState]:
    """What is hashed is what was opened, and stayed as it was meanwhile."""
    with open(place, "rb", buffering=0, opener=_opener) as file:
        before = os.fstat(file.fileno())
        if not stat.S_ISREG(before.st_mode):
            raise UnfitFiles(f"{name} is no regular file")
        sha256 = hashlib.file_digest(file, "sha256").hexdigest()
        state = state_of(os.fstat(file.fileno()))
    if state != state_of(before):
        raise UnfitFiles(f"{name} was written to while it was read")
    return sha256, state


def _opener(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)


def _below(folder: Path) -> Iterator[tuple[str, Path]]:
    """The files below a folder by their paths from there on. Raises UnfitFiles, OSError."""
    root = folder.resolve()
    due, count = [("", root)], 0
    while due:
        prefix, place = due.pop()
        for entry in sorted(os.scandir(place), key=lambda entry: entry.name):
            name = prefix + entry.name
            count += 1
            if count > _MAX_FILES:
                raise UnfitFiles(f"more than {_MAX_FILES} files")
            if not name.isprintable() or "\\" in name:
                raise UnfitFiles(f"the name of a file has characters that no manifest takes: {name!a}")
            if entry.is_dir(follow_symlinks=False):
                due.append((f"{name}/", Path(entry.path)))
                continue
            if entry.is_symlink():
                _check_link(Path(entry.path), root, name)
            yield name, Path(entry.path)


def _check_link(place: Path, root: Path, name: str) -> None:
    try:
        target = place.resolve(strict=True)
    except (OSError, RuntimeError):
        raise UnfitFiles(f"{name} is a link to nothing") from None
    if not target.is_relative_to(root):
        raise UnfitFiles(f"{name} is a link that leads out of the folder: cp -rL copies what it stands for")
    if not target.is_file():
        raise UnfitFiles(f"{name} is a link to a folder: cp -rL copies what it stands for")

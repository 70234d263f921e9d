"""What lies at a location: its files, which versions they are, and what identifies their content."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from hashlib import sha256
from typing import Any, Final

from tensorgate.gateway.config import MAX_VERSION
from tensorgate.gateway.contract.locations import Location, is_safe_path

MAX_FILES: Final = 100_000


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """A file of a store. `path` is relative to the folder that was listed; `address` is how its store finds it.

    `size` is in bytes, None if the store does not say it. `digest` is sha256:HEX, or git:HEX of a Git blob; `tag`
    changes whenever the content does: an ETag, or what the store has in its place. One of both is there.
    """

    path: str
    size: int | None
    address: str
    digest: str = ""
    tag: str = ""


@dataclass(frozen=True)
class FileTree:
    """Files that belong together: all of a version, or of a model without versions. `name` is that of the file, if the
    URL names a file and no folder. `placeholders` are the paths of further files, which are there empty.
    """

    url: str
    files: tuple[RemoteFile, ...]
    name: str = ""
    placeholders: tuple[str, ...] = ()

    @cached_property
    def key(self) -> str:
        """Names the content: by digests alone where all files have one, so that copies in other stores are equal."""
        known = [(each.path, each.digest) for each in self.files]
        if not all(digest for _, digest in known):
            known = [(self.url, ""), *((each.path, f"{each.size} {each.digest or each.tag}") for each in self.files)]
        more = [self.placeholders] if self.placeholders else []
        return sha256(json.dumps([*known, *more]).encode()).hexdigest()

    @property
    def size(self) -> int:
        """Of all files whose size is known, in bytes."""
        return sum(each.size or 0 for each in self.files)


@dataclass(frozen=True, slots=True)
class Listing:
    """The files at a location. `is_file`: the URL names this one file; `is_final`: it can never list anything else."""

    location: Location
    files: tuple[RemoteFile, ...]
    is_file: bool = False
    is_final: bool = False

    def whole(self) -> FileTree:
        """All of it."""
        return FileTree(self.location.url, self.files, self.files[0].path if self.is_file else "")

    def versions(self) -> dict[int, FileTree]:
        """Version -> its files, ascending; a file is version 1. Of folders 1 and 01 it is 1."""
        if self.is_file:
            return {1: self.whole()}
        folders = sorted(filter(_is_version, self.folders()), key=lambda folder: (int(folder), -len(folder)))
        return {int(folder): self.folder(folder) for folder in folders}

    def folders(self) -> list[str]:
        """The names of the folders, in order."""
        return sorted({each.path.partition("/")[0] for each in self.files if "/" in each.path})

    def folder(self, name: str) -> FileTree:
        """What is below one folder."""
        start = f"{name}/"
        files = [each for each in self.files if each.path.startswith(start)]
        url = f"{self.location.url.rstrip('/')}/{name}"
        return FileTree(url, tuple([replace(each, path=each.path.removeprefix(start)) for each in files]))

    def skeleton(self, max_bytes: int) -> FileTree:
        """Of a repository of models: what lies beside their version folders, up to a size; all else by name alone."""
        files = [each for each in self.files if "/" in each.path]
        small = [each for each in files if not _is_version(each.path.split("/")[1]) and (each.size or 0) <= max_bytes]
        others = {each.path for each in files}.difference(each.path for each in small)
        return FileTree(self.location.url, tuple(small), placeholders=tuple(sorted(others)))

    def names(self) -> list[str]:
        """What lies in the folder itself: files, and folders with a slash."""
        return sorted({first + slash for first, slash, _ in (each.path.partition("/") for each in self.files)})

    def plain(self) -> dict[str, Any]:
        """As plain data, for JSON."""
        return {"files": [asdict(each) for each in self.files], "is_file": self.is_file, "is_final": self.is_final}


def listing_of(plain: Mapping[str, Any], location: Location) -> Listing:
    """The listing that was written as plain data. Raises KeyError, TypeError or ValueError for any other."""
    files = tuple([RemoteFile(**each) for each in plain["files"]])
    return checked(Listing(location, files, bool(plain["is_file"]), bool(plain["is_final"])))


def checked(listing: Listing) -> Listing:
    """The listing, in order of its paths. Raises ValueError for one whose names lead out of its folder, or collide."""
    if len(listing.files) > MAX_FILES:
        raise ValueError(f"{listing.location.url}: more than {MAX_FILES} files")
    paths = {each.path for each in listing.files}
    for each in listing.files:
        if not is_safe_path(each.path):
            raise ValueError(f"{listing.location.url}: a file's name leads out of the folder: {each.path!r}")
    parents = {parent for path in paths for parent in _parents(path)}
    if len(paths) != len(listing.files) or paths & parents:
        raise ValueError(f"{listing.location.url}: a name stands for two files, or for a file and a folder")
    return replace(listing, files=tuple(sorted(listing.files, key=lambda each: each.path)))


def _parents(path: str) -> Iterable[str]:
    parts = path.split("/")[:-1]
    return ("/".join(parts[:length]) for length in range(1, len(parts) + 1))


def _is_version(name: str) -> bool:
    return name.isascii() and name.isdecimal() and int(name) <= MAX_VERSION

"""Trees on disk, by their keys: whole or not at all, for several processes at once, and within a limit.

    trees/KEY/files/…           a tree's files, as their paths say
    trees/KEY/tree.json         its URL, and each file's size, SHA-256 and stamp; its own time is that of the last use
    locks/KEY                   locked shared by who uses the tree, and alone by who removes it for room
    locks/KEY.fetch             locked by who fetches it
    partial/KEY/…               files as far as they have come; they are resumed
    listings/DIGEST.json        what a URL listed last, for when its store cannot be asked

A tree is fetched below partial/ and renamed into its place when all of it is on the disk, so that a process that is
killed leaves either nothing or a whole tree. The kernel gives up a dead process's locks. A file's stamp is its inode,
size and times: as long as it is what it was when the digest was computed, nothing has written to the file, and it is
not read again; else, after a copy to another disk or damage, it is.

A lock's file is never removed: who waits for one must not hold another one of the same name.
"""

from __future__ import annotations

import errno
import fcntl
import json
import logging
import os
import secrets
import shutil
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from hashlib import file_digest, sha256
from pathlib import Path
from typing import Any, Final

from tensorgate.gateway.contract.files import tree_bytes
from tensorgate.gateway.contract.locations import Location
from tensorgate.gateway.stores.listing import FileTree, Listing, listing_of

log = logging.getLogger(__name__)

ABOUT: Final = "tree.json"
_FETCH: Final = ".fetch"
_READ_ONLY: Final = (errno.EROFS, errno.EACCES)
_FREE_BYTES: Final = 64 << 20
"""What a download leaves on the disk for everybody else."""


class CacheFull(ValueError):
    """A tree does not fit beside those that are in use."""


class Lease:
    """The right to read a tree until it is closed or nobody has it any more. `path` is its folder or only file;
    `digests` has the SHA-256 of each file, in hexadecimal, by its path in the tree.
    """

    def __init__(self, path: Path, digests: Mapping[str, str], lock: int) -> None:
        self.path = path
        self.digests = digests
        self._end = weakref.finalize(self, os.close, lock)

    def close(self) -> None:
        """Nothing reads from the path any more."""
        self._end()


class Cache:
    """A folder for trees. Everything here reads or writes the disk: call it in a thread."""

    def __init__(self, folder: Path, max_bytes: int | None = None) -> None:
        self.folder = folder
        self.max_bytes = max_bytes

    def place(self, tree: FileTree) -> Path:
        """Where a tree is, or will be: its folder, or its only file."""
        return self._tree(tree.key) / "files" / tree.name

    def lease(self, tree: FileTree) -> Lease | None:
        """A tree that is there, whole and undamaged; None for any other. A damaged one is removed."""
        try:
            lock = self._locked(tree.key, fcntl.LOCK_SH)
        except OSError as error:
            if error.errno not in _READ_ONLY or not self.folder.is_dir():
                raise
            lock = os.open(self.folder, os.O_RDONLY)  # nobody removes anything there
        try:
            if (found := self._whole(tree.key)) is not None:
                digests = {path: said["sha256"] for path, said in found.items()}
                return Lease(self.place(tree), digests, lock)
        except BaseException:
            os.close(lock)
            raise
        os.close(lock)
        return None

    def has(self, tree: FileTree) -> bool:
        """Whether a tree is there, by its name alone."""
        return (self._tree(tree.key) / ABOUT).is_file()

    @contextmanager
    def filling(self, tree: FileTree) -> Iterator[Path | None]:
        """A folder to fetch a tree into, with what has come of it before; no other process has it meanwhile. None if
        the tree is there by now. A damaged one leaves its place, whoever uses it: what is mapped stays mapped.
        """
        lock = self._locked(tree.key + _FETCH, fcntl.LOCK_EX)
        try:
            if self._whole(tree.key, log.warning) is not None:
                yield None
                return
            self._remove(self._tree(tree.key))
            partial = self.folder / "partial" / tree.key
            (partial / "files").mkdir(parents=True, exist_ok=True)
            yield partial
        finally:
            os.close(lock)

    def settle(self, tree: FileTree, partial: Path, digests: Mapping[str, str]) -> None:
        """Put a tree that was fetched in its place, within `filling`. `digests` has the SHA-256 of each file."""
        files = {}
        for path, digest in digests.items():
            file = partial / "files" / path
            _sync(file)
            stamp = _stamp(file)  # the same after the folder has another name
            files[path] = {"size": stamp[1], "sha256": digest, "stamp": stamp}
        for path in tree.placeholders:
            place = partial / "files" / path
            place.parent.mkdir(parents=True, exist_ok=True)
            place.touch()
        about = {"url": tree.url, "files": files}
        _write(partial / ABOUT, about)
        for folder, _, _ in os.walk(partial):
            _sync(Path(folder))
        place = self._tree(tree.key)
        place.parent.mkdir(parents=True, exist_ok=True)
        partial.rename(place)
        _sync(place.parent)

    def make_room(self, needed: int, key: str) -> None:
        """Remove what was used longest ago until so many bytes fit. Raises CacheFull if they cannot."""
        if self.max_bytes is not None and needed > self.max_bytes:
            raise CacheFull(f"needs {needed} bytes, more than stores.cache.max_bytes, {self.max_bytes}")
        while True:
            held = self._held()
            total = sum(size for _, size, _ in held)
            free = shutil.disk_usage(self.folder).free - _FREE_BYTES
            over = max(needed - free, total + needed - self.max_bytes if self.max_bytes is not None else 0)
            if over <= 0:
                return
            old = sorted([each for each in held if each[2].name != key], key=lambda each: each[0])
            if not any(self.discard(folder) for _, _, folder in old):
                raise CacheFull(f"needs {needed} bytes, and all that {self.folder} has is in use: {total} bytes")

    def discard(self, folder: Path) -> bool:
        """Remove a tree, whole or partial, unless somebody uses it -> whether it is gone."""
        name = folder.name if folder.parent.name == "trees" else folder.name + _FETCH
        try:
            lock = self._locked(name, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        try:
            log.info("removing %s from the cache of models", folder.name[:12])
            return self._remove(folder)
        finally:
            os.close(lock)

    # ---------------------------------------------------------------------------------------------------- listings

    def remember(self, listing: Listing) -> None:
        """Keep what a URL lists, if the cache can be written."""
        file = self._listing(listing.location)
        content = {"url": listing.location.url, **listing.plain()}
        if _read(file) != content:
            with suppress(OSError):
                file.parent.mkdir(parents=True, exist_ok=True)
                _write(file, content)

    def remembered(self, location: Location) -> Listing | None:
        """What a URL listed last."""
        found = _read(self._listing(location))
        with suppress(KeyError, TypeError, ValueError):
            return listing_of(found, location)
        return None

    def _listing(self, location: Location) -> Path:
        return self.folder / "listings" / f"{sha256(location.url.encode()).hexdigest()}.json"

    # ------------------------------------------------------------------------------------------------------- trees

    def _tree(self, key: str) -> Path:
        return self.folder / "trees" / key

    def _locked(self, name: str, how: int) -> int:
        locks = self.folder / "locks"
        if not locks.is_dir():
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            locks.mkdir(exist_ok=True)
        lock = os.open(locks / name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, how)
        except BaseException:
            os.close(lock)
            raise
        return lock

    def _whole(self, key: str, say: Callable[..., None] = log.debug) -> dict[str, Any] | None:
        """What is known of each file of a tree that is there and undamaged, which counts as used then; else None."""
        folder = self._tree(key)
        about = _read(folder / ABOUT)
        if not about:
            return None
        stale = False
        for path, said in about["files"].items():
            stamp = _intact(folder / "files" / path, said)
            if stamp is None:
                say("%s of %s is damaged in the cache of models, and is fetched again", path, about["url"])
                return None
            stale = stale or stamp != said["stamp"]
            said["stamp"] = stamp
        with suppress(OSError):  # a cache that cannot be written serves all the same
            if stale:
                _write(folder / ABOUT, about)
            os.utime(folder / ABOUT)
        files: dict[str, Any] = about["files"]
        return files

    def _held(self) -> list[tuple[float, int, Path]]:
        """(last use, bytes, folder) of all trees; what is partial is older than all that is whole."""
        found = []
        for kind in ("partial", "trees"):
            for folder in self._folders(kind):
                size = last = 0.0
                with suppress(OSError):
                    size = tree_bytes(folder)
                    last = (folder / ABOUT).stat().st_mtime
                found.append((last, int(size), folder))
        return found

    def _folders(self, kind: str) -> list[Path]:
        try:
            return [each for each in (self.folder / kind).iterdir() if each.is_dir()]
        except OSError:
            return []

    def _remove(self, folder: Path) -> bool:
        """Out of its place at once, then off the disk: what is mapped stays mapped."""
        trash = self.folder / "partial" / f"{folder.name[:64]}.{secrets.token_hex(4)}"
        trash.parent.mkdir(parents=True, exist_ok=True)
        try:
            folder.rename(trash)
        except FileNotFoundError:
            return False
        shutil.rmtree(trash, ignore_errors=True)
        return True


def _intact(file: Path, said: Mapping[str, Any]) -> list[int] | None:
    """The stamp of a file that is what was said of it; None for any other."""
    try:
        stamp = _stamp(file)
        if stamp == said["stamp"]:
            return stamp
        with file.open("rb") as content:
            same = stamp[1] == said["size"] and file_digest(content, "sha256").hexdigest() == said["sha256"]
    except OSError:
        return None
    return stamp if same else None


def _stamp(file: Path) -> list[int]:
    state = file.stat()
    return [state.st_ino, state.st_size, state.st_mtime_ns, state.st_ctime_ns]


def _read(file: Path) -> dict[str, Any]:
    """A small JSON document that was written here; empty if it is not there, or is damaged."""
    try:
        found = json.loads(file.read_bytes())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _write(file: Path, content: Mapping[str, Any]) -> None:
    """Whole, or not at all."""
    new = file.with_name(f"{file.name}.{secrets.token_hex(4)}")
    try:
        new.write_text(json.dumps(content), encoding="utf-8")
        _sync(new)
        new.replace(file)
    except BaseException:
        new.unlink(missing_ok=True)
        raise


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)

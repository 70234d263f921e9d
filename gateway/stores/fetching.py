"""A tree into the cache: several files at a time, each resumed where it broke off, and held against its digest."""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from tensorgate.gateway.contract.files import tree_bytes
from tensorgate.gateway.stores.cache import Cache, Lease
from tensorgate.gateway.stores.errors import Changed, Damaged, Unreachable
from tensorgate.gateway.stores.http import CHUNK_BYTES, Policy, pause
from tensorgate.gateway.stores.listing import FileTree, RemoteFile
from tensorgate.gateway.stores.store import Store

Say = Callable[[str], None]

PROGRESS_EVERY_S: Final = 5.0
_SHORT: Final = 12


class Fetcher:
    """Fetches trees, `connections` files at a time in all."""

    def __init__(self, cache: Cache, policy: Policy, connections: int, say: Say) -> None:
        self._cache = cache
        self._policy = policy
        self._say = say
        self._threads = ThreadPoolExecutor(connections, "fetch")

    def fetch(self, tree: FileTree, store: Store) -> Lease:
        """A tree of the cache, fetched if it is not there. Blocks: call it in a thread, and not in one of its own.

        Raises NotThere, NotAllowed, Unreachable, Damaged, CacheFull, OSError.
        """
        while True:
            lease = self._cache.lease(tree)
            if lease is not None:
                return lease
            with self._cache.filling(tree) as partial:
                if partial is not None:
                    self._fill(tree, store, partial)

    def _fill(self, tree: FileTree, store: Store, partial: Path) -> None:
        there = tree_bytes(partial)
        self._cache.make_room(max(tree.size - there, 0), tree.key)
        resumed = f", {_amount(there)} of it there already" if there else ""
        size = f", {_amount(tree.size)}" if tree.size else ""
        self._say(f"fetching {tree.url}: {_files(len(tree.files))}{size}{resumed}")
        progress = _Progress(tree, there, self._say)
        ended = threading.Event()
        work = {
            self._threads.submit(self._file, each, store, partial / "files" / each.path, progress, ended): each.path
            for each in tree.files
        }
        digests, failure = {}, None
        for future in as_completed(work):
            try:
                digests[work[future]] = future.result()
            except BaseException as error:
                failure = failure or error
                ended.set()
        if failure is not None:
            raise failure
        self._cache.settle(tree, partial, digests)
        self._say(f"fetched {tree.url}: {_amount(progress.done)} in {progress.seconds():.1f} s")

    def _file(self, file: RemoteFile, store: Store, place: Path, progress: _Progress, ended: threading.Event) -> str:
        """Fetch a file -> its SHA-256. A digest that is wrong after a resumption is tried once more from the start."""
        place.parent.mkdir(parents=True, exist_ok=True)
        if file.size is None and file.digest and place.exists():  # whether all of it is there, its size does not tell
            with suppress(Damaged):
                return _checked(file, place)
        attempt = 0
        while True:
            if ended.is_set():
                raise Unreachable("another file could not be fetched")
            resumed = place.exists()
            try:
                self._receive(file, store, place, progress, ended)
                return _checked(file, place)
            except Damaged:
                place.unlink()
                if not resumed:
                    raise
            except Changed:
                place.unlink(missing_ok=True)
                raise
            except Unreachable:
                if attempt >= self._policy.retries:
                    raise
                self._policy.sleep(pause(attempt))
                attempt += 1

    def _receive(
        self, file: RemoteFile, store: Store, place: Path, progress: _Progress, ended: threading.Event
    ) -> None:
        """Append what lacks. What came is kept where it breaks off."""
        offset = place.stat().st_size if place.exists() else 0
        if file.size is not None and offset >= file.size:
            if offset > file.size:
                place.unlink()
                offset = 0
            elif place.exists():
                return
        with store.open(file, offset) as (start, chunks), place.open("r+b" if offset else "wb") as to:
            to.truncate(start)
            to.seek(start)
            progress.add(start - offset)
            for chunk in chunks:
                to.write(chunk)
                progress.add(len(chunk))
                if ended.is_set():
                    raise Unreachable("another file could not be fetched")
            length = to.tell()
        if file.size is not None and length != file.size:
            if length > file.size:
                raise Damaged(f"{file.path}: {length} bytes came, and {file.size} were listed")
            raise Unreachable(f"{file.path}: only {length} of {file.size} bytes came")

    def close(self) -> None:
        """End the threads; busy ones finish their file first."""
        self._threads.shutdown(wait=False, cancel_futures=True)


class _Progress:
    """How far a tree has come; a line now and then."""

    def __init__(self, tree: FileTree, done: int, say: Say) -> None:
        self._tree = tree
        self._say = say
        self._begun = self._told = time.monotonic()
        self._lock = threading.Lock()
        self.done = done

    def add(self, count: int) -> None:
        """So many bytes more have come, or fewer are there."""
        with self._lock:
            self.done += count
            now = time.monotonic()
            if now - self._told < PROGRESS_EVERY_S:
                return
            self._told = now
            done, tree = self.done, self._tree
        share = f" of {_amount(tree.size)}, {100 * done // tree.size} %" if tree.size else ""
        self._say(f"fetching {tree.url}: {_amount(done)}{share}, {_amount(int(done / self.seconds()))}/s")

    def seconds(self) -> float:
        """Since it began."""
        return max(time.monotonic() - self._begun, 1e-3)


def _checked(file: RemoteFile, place: Path) -> str:
    """The SHA-256 of a file that was fetched. Raises Damaged if it, or its size, is not what its store says."""
    kind, _, wanted = file.digest.partition(":")
    size = place.stat().st_size
    found: dict[str, Any] = {"sha256": hashlib.sha256()}
    if kind == "git":
        found["git"] = hashlib.sha1(f"blob {size}\0".encode(), usedforsecurity=False)
    with place.open("rb") as content:
        while chunk := content.read(CHUNK_BYTES):
            for each in found.values():
                each.update(chunk)
    if wanted and found[kind].hexdigest() != wanted:
        raise Damaged(f"{file.path}: what came has another digest than {kind}:{wanted[:_SHORT]}…")
    return str(found["sha256"].hexdigest())


def _files(count: int) -> str:
    return f"{count} file{'s' * (count != 1)}"


def _amount(size: int) -> str:
    for unit in ("B", "KiB", "MiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024  # type: ignore[assignment]
    return f"{size:.1f} GiB"

"""Memory that one process allocates, and that another one reads: a memfd, sparse until it is used.

Blocks have sizes of a few classes, so that a freed one serves the next of its class, still warm. What has not been used
for a while goes back to the system. Nothing of it has a name in a file system: when its last process ends, it is gone.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import threading
import weakref
from typing import Final

import numpy as np

from tensorgate.gateway.contract.tensor import Array
from tensorgate.gateway.crossing.frames import CrossingBroken
from tensorgate.gateway.crossing.messages import Block

PAGE: Final = mmap.PAGESIZE
_KEPT_BYTES: Final = 64 << 20
"""Freed blocks whose pages stay. Beyond that, the pages of a freed block go back at once."""


_SEALS: Final = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
"""Reading what its owner has cut off would end the reader."""


class ArenaFull(MemoryError):
    """The arena has no room for a block of this size."""


def class_of(size: int) -> int:
    """The size of the block that holds so many bytes: whole pages, in quarters of a power of two."""
    if size <= 4 * PAGE:
        return max(1, -(-size // PAGE)) * PAGE
    step = 1 << (size - 1).bit_length() - 3
    step = max(step, PAGE)
    return -(-size // step) * step


class Arena:
    """The side that allocates. Blocks may be asked for and given back in any thread."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.fd = os.memfd_create("tensorgate", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.truncate(self.fd, max_bytes)
        fcntl.fcntl(self.fd, fcntl.F_ADD_SEALS, _SEALS)
        self._map = mmap.mmap(self.fd, max_bytes)
        self.address = np.frombuffer(self._map, np.uint8, 1).__array_interface__["data"][0]
        self._lock = threading.RLock()  # what is freed while it is held may be a block itself
        self._top = 0
        self._warm: dict[int, list[int]] = {}
        self._cold: dict[int, list[int]] = {}
        """Free blocks by their size, with their pages and without."""
        self._kept = 0
        """Bytes of those with their pages."""
        self._was_used = False
        self._live: dict[int, int] = {}
        self.used = 0
        """Bytes of blocks that are allocated now."""

    def allocate(self, size: int) -> Array:
        """Writable memory, as an array of so many bytes; given back once no array or memoryview of it is left.

        Raises ArenaFull.
        """
        whole = class_of(size)
        with self._lock:
            offset = self._take(whole)
            self._live[offset] = whole
            self.used += whole
            self._was_used = True
        root = np.frombuffer(self._map, np.uint8, size, offset)  # arrays of it refer to it, not to what lies below
        weakref.finalize(root, self._give_back, offset).atexit = False
        return root

    def find(self, address: int, size: int) -> int | None:
        """The offset of memory at an address, if it lies here."""
        offset = address - self.address
        return offset if 0 <= offset <= self.max_bytes - size else None

    def _take(self, whole: int) -> int:
        if warm := self._warm.get(whole):
            self._kept -= whole
            return warm.pop()
        if cold := self._cold.get(whole):
            return cold.pop()
        if self._top + whole <= self.max_bytes:
            offset = self._top
            self._top += whole
            return offset
        self._cool()
        for size in sorted(self._cold):  # a larger one will do; what is left of it waits for the arena to be empty
            if size >= whole and self._cold[size]:
                return self._cold[size].pop()
        if not self._live and whole <= self.max_bytes:
            self._reset()
            self._top = whole
            return 0
        raise ArenaFull(f"{self.used} of {self.max_bytes} bytes are in use, and {whole} more are wanted")

    def _give_back(self, offset: int) -> None:
        with self._lock:
            whole = self._live.pop(offset)
            self.used -= whole
            if not self._live and self._top > _KEPT_BYTES:  # nothing is left to come between free blocks
                self._reset()
                return
            if self._kept + whole > _KEPT_BYTES:
                self._drop(offset, whole)
                self._cold.setdefault(whole, []).append(offset)
            else:
                self._kept += whole
                self._warm.setdefault(whole, []).append(offset)

    def _reset(self) -> None:
        self._drop(0, self._top)
        self._top = self._kept = 0
        self._warm.clear()
        self._cold.clear()

    def trim(self) -> None:
        """Give the pages of all free blocks back to the system, if none was taken since the last time."""
        with self._lock:
            if self._was_used:
                self._was_used = False
            elif self._kept:
                self._cool()

    def _cool(self) -> None:
        for size, offsets in self._warm.items():
            for offset in offsets:
                self._drop(offset, size)
            self._cold.setdefault(size, []).extend(offsets)
        self._warm.clear()
        self._kept = 0

    def _drop(self, offset: int, size: int) -> None:
        with contextlib.suppress(OSError, ValueError):
            self._map.madvise(mmap.MADV_REMOVE, offset, size)

    def close(self) -> None:
        """Close the file; the mapping goes with its last array."""
        os.close(self.fd)


class PeerArena:
    """The side that reads. Whoever sends offsets is not trusted: they are checked."""

    def __init__(self, fd: int) -> None:
        """Takes the file over. Raises CrossingBroken if it is none of ours."""
        try:
            size = os.fstat(fd).st_size
            if fcntl.fcntl(fd, fcntl.F_GET_SEALS) & _SEALS != _SEALS:
                raise CrossingBroken("an arena that may shrink")
            self._map = mmap.mmap(fd, size, prot=mmap.PROT_READ)
        except (OSError, ValueError) as error:
            raise CrossingBroken(f"no arena: {error}") from None
        finally:
            os.close(fd)
        self._size = size
        self._released: list[int] = []

    def view(self, block: Block) -> Array:
        """The bytes of a block, read-only. When the last array of them is gone, its ticket is in `take_released`.

        Raises CrossingBroken.
        """
        offset, size = block.offset, block.size
        if offset < 0 or size < 0 or offset + size > self._size:
            raise CrossingBroken(f"a block of {size} bytes at {offset} of {self._size}")
        root = np.frombuffer(self._map, np.uint8, size, offset)
        weakref.finalize(root, self._released.append, block.ticket).atexit = False
        return root

    @property
    def has_released(self) -> bool:
        return bool(self._released)

    def take_released(self) -> tuple[int, ...]:
        """The tickets of blocks of which no array is left, each once."""
        released = self._released
        if not released:
            return ()
        taken = tuple(released)
        del released[: len(taken)]
        return taken

"""What all doors read, and each writes its own part of: one memfd, made by the supervisor and mapped by every process.

    offset   what                                     who writes
    0        magic, 8 bytes: b"TGSHARED"              the supervisor, once
    8        version of this layout, uint32           "
    12       number of listeners, uint32              "
    16       number of rows, uint32: two per door     "
    20       1 once all have served, uint32           the supervisor
    24       offset of the rate-limit region, uint64  "
    32       its size, uint64                         "
    64       alive[row]                               the row's door; the supervisor once that door is gone
    then     linked[row]                              the row's door
    then     open[listener][row]                      the row's door
    then     taken[listener][row]                     the row's door
    then     given[listener][from row][to row]        the door of `from row`
    then, at a multiple of 4096: the rate-limit region, zeros at first, whose layout is its users'

All numbers are little endian, every cell is an aligned int64 that has one writer: so there is no lock, and nothing that
a killed process could leave locked. A row is one process's at a time. A door of slot s has the row s or s + doors:
while it still finishes what it has, the next door of its slot counts in the other one.

`open` counts the connections that a door has, `given` those that it has handed to another one, `taken` those that were
handed to it and that it has received. A door's load is what it has and what is on its way to it: open + all that was
given to it - taken. `linked` says that its calls find the engine.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import numpy as np

MAGIC: Final = b"TGSHARED"
VERSION: Final = 3
RATE_LIMIT_BYTES: Final = 4 << 20
"""The size of the rate-limit region. Pages that nobody uses cost nothing."""
_HEADER: Final = struct.Struct("<8sIIIIQQ")
_HEADER_BYTES: Final = 64
_SERVED: Final = 20
_CELL: Final = np.dtype("<i8")
_PAGE: Final = 4096
_LOCK: Final = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 0, 1, 0)
"""Of the first byte: struct flock."""


class SharedState:
    """The mapped memory. `fd` is to be inherited by other processes."""

    def __init__(self, fd: int) -> None:
        """Map what `create` has made. Raises ValueError for a layout that is not this one's."""
        self.fd = fd
        self._memory = memory = mmap.mmap(fd, os.fstat(fd).st_size)
        magic, version, listeners, rows, _, start, size = _HEADER.unpack_from(memory)
        if (magic, version) != (MAGIC, VERSION) or len(memory) != start + size or start != _region(listeners, rows):
            raise ValueError("the shared memory of the doors has another layout: start the gateway anew")
        self.doors: int = rows // 2
        self._alive = self._cells(_HEADER_BYTES, rows)
        before = _HEADER_BYTES + self._alive.nbytes
        self._linked = self._cells(before, rows)
        before += self._linked.nbytes
        self._open = self._cells(before, listeners, rows)
        before += self._open.nbytes
        self._taken = self._cells(before, listeners, rows)
        before += self._taken.nbytes
        self._given = self._cells(before, listeners, rows, rows)
        self.rate_limits = memoryview(memory)[start : start + size]
        """The rate-limit region, writable."""

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """No other process of the group is within `alone` meanwhile. Waits; in a thread."""
        with Path(f"/proc/self/fd/{self.fd}").open("rb+") as file:  # a lock of its own, which ends with it
            fcntl.fcntl(file, fcntl.F_OFD_SETLKW, _LOCK)
            yield

    @classmethod
    def create(cls, listeners: int, doors: int, rate_limit_bytes: int = RATE_LIMIT_BYTES) -> SharedState:
        """New memory without a name, all counts 0 and nobody alive. Raises OSError."""
        rows = 2 * doors
        start = _region(listeners, rows)
        fd = os.memfd_create("tensorgate-doors")
        os.ftruncate(fd, start + rate_limit_bytes)
        os.pwrite(fd, _HEADER.pack(MAGIC, VERSION, listeners, rows, 0, start, rate_limit_bytes), 0)
        return cls(fd)

    def _cells(self, offset: int, *shape: int) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
        return np.ndarray(shape, _CELL, self._memory, offset)

    def set_served(self) -> None:
        """The engine and every door have served, and whoever started the group was told."""
        self._memory[_SERVED] = 1

    def has_served(self) -> bool:
        """Whether the engine and every door have served, and whoever started the group was told."""
        return self._memory[_SERVED] == 1

    def begin(self, row: int) -> None:
        """A door's start: it has nothing, and what was on its way to the one before it in this row is lost."""
        self._alive[row] = self._linked[row] = 0
        self._open[:, row] = 0
        self._taken[:, row] = self._given[:, :, row].sum(axis=1)

    def set_alive(self, row: int, *, alive: bool) -> None:
        """Whether the row's door takes connections from others."""
        self._alive[row] = alive

    def clear(self, row: int) -> None:
        """The row's door is gone."""
        self._alive[row] = 0
        self._open[:, row] = 0

    def is_alive(self, row: int) -> bool:
        """Whether the row's door takes connections from others."""
        return bool(self._alive[row])

    def set_linked(self, row: int, *, linked: bool) -> None:
        """Whether calls at the row's door find the engine."""
        self._linked[row] = linked

    def are_linked(self) -> bool:
        """Whether calls find the engine at whichever door takes them."""
        return bool((self._linked >= self._alive).all())

    def set_open(self, listener: int, row: int, count: int) -> None:
        """How many connections the row's door has."""
        self._open[listener, row] = count

    def open(self, listener: int) -> list[int]:
        """How many connections each row has."""
        found: list[int] = self._open[listener].tolist()
        return found

    def give(self, listener: int, row: int, to: int, count: int = 1) -> None:
        """The row's door hands so many connections to another; -1 takes one back."""
        self._given[listener, row, to] += count

    def take(self, listener: int, row: int) -> None:
        """The row's door has received a connection."""
        self._taken[listener, row] += 1

    def lighter(self, listener: int, row: int) -> int | None:
        """The row that is alive and has fewest, if it has fewer than this one: with one connection more it has no more
        than this one would. None if there is none.
        """
        loads = self._open[listener] + self._given[listener].sum(axis=0) - self._taken[listener]
        least = int(np.where(self._alive != 0, loads, np.iinfo(np.int64).max).argmin())
        return least if self._alive[least] and loads[least] < loads[row] else None


def _region(listeners: int, rows: int) -> int:
    """Where the rate-limit region begins."""
    cells = 2 * rows + 2 * listeners * rows + listeners * rows * rows
    return -(-(_HEADER_BYTES + cells * _CELL.itemsize) // _PAGE) * _PAGE

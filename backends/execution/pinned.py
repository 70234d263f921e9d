"""Pinned memory of the host, from and to which a GPU copies by itself: kept, since to make some takes milliseconds.

A piece goes back to the free list with the last array on it, which may be an answer that a slow caller still reads.
Pieces have sizes of `size_class`, at most a quarter larger than what was asked for; CuPy's own pool doubles its sizes,
and never gives anything back. What nobody has used for minutes goes when something new is made, and all that is free
when a model goes, or when memory is short.
"""

from __future__ import annotations

import contextlib
import ctypes
import time
from collections import deque
from typing import Any, Final

import numpy as np

from tensorgate.gateway.contract.tensor import Array

_MIN_SIZE_CLASS: Final = 4096
_MAX_IDLE_S: Final = 300.0


def size_class(nbytes: int) -> int:
    """A size that is at most a quarter larger, four for each power of two: batches come in any size."""
    if nbytes <= _MIN_SIZE_CLASS:
        return _MIN_SIZE_CLASS
    step = 1 << (nbytes - 1).bit_length() - 3
    return -(-nbytes // step) * step


class PinnedPool:
    """For any thread. Pieces come back wherever Python's collector happens to run, so that there is no lock: a deque's
    own steps are whole.
    """

    def __init__(self, runtime: Any) -> None:
        self.runtime = runtime
        self._free: dict[int, deque[tuple[int, float]]] = {}

    def take(self, nbytes: int) -> Array:
        """Bytes that are nobody else's until the last view of them is gone. Raises what CUDA raises. With a device
        selected.
        """
        size = size_class(nbytes)
        try:
            address, _ = self._free[size].pop()
        except LookupError:
            address = self._make(size)
        piece: Any = (ctypes.c_uint8 * size).from_address(address)
        piece.lent = _Lent(self, size, address)
        return np.frombuffer(piece, np.uint8, nbytes)

    def give_back(self, size: int, address: int) -> None:
        self._free.setdefault(size, deque()).append((address, time.monotonic()))

    def trim(self, idle_s: float = 0.0) -> None:
        """Give the host what has not been used for so long."""
        before = time.monotonic() - idle_s
        for pieces in list(self._free.values()):
            with contextlib.suppress(IndexError):
                while pieces[0][1] <= before:
                    address, since = pieces.popleft()
                    if since > before:  # another thread has taken the one that was looked at
                        pieces.append((address, since))
                        break
                    self.runtime.freeHost(address)

    def _make(self, size: int) -> int:
        self.trim(_MAX_IDLE_S)
        try:
            return int(self.runtime.hostAlloc(size, self.runtime.hostAllocPortable))
        except Exception:  # CuPy's CUDARuntimeError: what is free in other sizes may be enough
            self.trim()
            return int(self.runtime.hostAlloc(size, self.runtime.hostAllocPortable))


class _Lent:
    """Comes back when it dies."""

    __slots__ = ("_address", "_pool", "_size")

    def __init__(self, pool: PinnedPool, size: int, address: int) -> None:
        self._pool = pool
        self._size = size
        self._address = address

    def __del__(self) -> None:
        self._pool.give_back(self._size, self._address)


_pool: Final[list[PinnedPool]] = []


def pinned_pool(runtime: Any) -> PinnedPool:
    """The process's, by cupy.cuda.runtime."""
    if not _pool or _pool[0].runtime is not runtime:
        _pool[:] = [PinnedPool(runtime)]
    return _pool[0]

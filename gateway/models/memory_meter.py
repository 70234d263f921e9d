"""How much memory this process holds, on the host and on each GPU: what a model has taken is the difference between
before and after it was loaded.

On the host the allocator is asked for the bytes in use, not the kernel for the pages: pages that an unloaded model left
are used again by the next one, which would seem to take nothing. Where the C library cannot tell, the pages count.
Source: glibc, mallinfo2 (2.33 and later).
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Final

CPU: Final = "cpu"
_STATM: Final = Path("/proc/self/statm")
_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")
_BLOCK_BYTES: Final = 64
"""About as much one of Python's own small blocks takes, which do not come from the C library."""


class _Mallinfo2(ctypes.Structure):
    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in (
            "arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost",
        )
    )  # fmt: skip


def _reader() -> Callable[[], int]:
    try:
        mallinfo2 = ctypes.CDLL(None).mallinfo2
    except (AttributeError, OSError):
        return resident_bytes
    mallinfo2.restype = _Mallinfo2

    def used() -> int:
        found = mallinfo2()
        return int(found.uordblks + found.hblkhd) + sys.getallocatedblocks() * _BLOCK_BYTES

    return used


def resident_bytes() -> int:
    """The pages of this process that are in memory."""
    return int(_STATM.read_bytes().split()[1]) * _PAGE_BYTES


used_bytes: Final = _reader()
"""The host's memory that this process has in use, in bytes. In any thread: some microseconds."""

ReadDevice = Callable[[str], int]
"""A device, cuda:N -> the bytes that are taken there; 0 where that cannot be read."""


class MemoryMeter:
    """Reads what is in use on the host and on GPUs."""

    def __init__(self, read_device: ReadDevice = lambda device: 0) -> None:
        self._read_device = read_device

    def read(self, devices: Iterable[str]) -> Mapping[str, int]:
        """The bytes in use on the host and on these devices. In any thread."""
        return {CPU: used_bytes(), **{device: self._read_device(device) for device in devices if device != CPU}}

"""The body of a request while it arrives: memory for the socket to write to, which becomes the body without a copy.
gRPC's large messages come the same way.

Dialects read `bytes`, and Python offers no memory that can first be written and then be `bytes`, but for its C API:
"the data must not be modified in any way, unless the object was just created using PyBytes_FromStringAndSize(NULL,
size)". That memory is also not cleared before it is written, so a head that only claims a large body costs addresses
and no memory. Nobody sees the object before its last byte is there.

Addresses are not free, either: the kernel keeps a book of them, and has limits. So there is a bound on what is only
claimed, for all bodies together and where a connection has many for those of one. A body within it has its whole place
from the start, and is never copied. One beyond grows as its bytes arrive.

In a door, large bodies of tensors arrive in memory that the engine's process reads, too: see SharedBodies.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any, Final

_PY_BUF_WRITE: Final = 0x200


def _function(name: str, result: Any, *arguments: Any) -> Any:
    function = ctypes.pythonapi[name]
    function.restype, function.argtypes = result, arguments
    return function


_new_bytes: Final = _function("PyBytes_FromStringAndSize", ctypes.py_object, ctypes.c_char_p, ctypes.c_ssize_t)
_address: Final = _function("PyBytes_AsString", ctypes.c_void_p, ctypes.py_object)
_memory: Final = _function("PyMemoryView_FromMemory", ctypes.py_object, ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int)


SMALL_BYTES: Final = 64 << 10
"""So much a body may claim without being asked, and has at first if it may not claim more."""
_PROCESS_BYTES: Final = 4 << 30
MIN_PIECE_BYTES: Final = 64 << 10
"""Of a body that is sent on while it arrives, less is not sent by itself, but for its end."""


class Quota:
    """A bound on what is taken at a time, of bytes or of anything else that is only promised, within `parent`'s."""

    __slots__ = ("_limit", "_parent", "taken")

    def __init__(self, limit: int, parent: Quota | None = None) -> None:
        self._limit = limit
        self._parent = parent
        self.taken = 0

    @property
    def left(self) -> int:
        """How much may be taken."""
        left = self._limit - self.taken
        return left if self._parent is None else min(left, self._parent.left)

    def take(self, count: int) -> bool:
        """Take `count` if that much is left. -> whether it was."""
        if count > self.left:
            return False
        if self._parent is not None:
            self._parent.take(count)
        self.taken += count
        return True

    def give(self, count: int) -> None:
        """Give back what was taken."""
        self.taken -= count
        if self._parent is not None:
            self._parent.give(count)


PROCESS_QUOTA: Final = Quota(_PROCESS_BYTES)
"""Bytes of all bodies, of all ports."""


class SharedBodies:
    """Where large bodies are put that another process is to read. `allocate` gives writable memory of so many bytes,
    which lives as long as any view of it, or None where there is none; without it, all bodies are this process's own.
    """

    allocate: Callable[[int], memoryview | None] | None = None


SHARED_BODIES: Final = SharedBodies()
"""Those of this process."""


class Body:
    """A body that arrives. `missing` is how many bytes are still to come."""

    __slots__ = ("_is_shared", "_quota", "_taken_bytes", "_whole", "missing", "on_more", "room")

    _whole: bytes | memoryview
    room: memoryview
    """Memory for what comes next, empty once the body is whole. It must not be used once the Body is gone."""

    def __init__(self, length: int, begun: bytes, quota: Quota = PROCESS_QUOTA, *, is_shared: bool = False) -> None:
        """`length` bytes, more than the few that have `begun` it. One that `is_shared` lies in memory of SHARED_BODIES
        if it is large, and is a memoryview. Raises MemoryError.
        """
        self._quota = quota
        self._is_shared = is_shared and SHARED_BODIES.allocate is not None
        self._taken_bytes = 0
        self.on_more: Callable[[], None] | None = None
        """Called when more has come."""
        self.missing = length
        self._hold(self._size(length, max(SMALL_BYTES, 2 * len(begun))))
        self.room[: len(begun)] = begun
        self.commit(len(begun))

    def _size(self, length: int, unclaimed: int) -> int:
        """How much memory to get: `length`, if it is no more than `unclaimed` or the quota has it."""
        if length <= unclaimed:
            return length
        if not self._quota.take(length):
            return unclaimed
        self._taken_bytes = length
        return length

    def _hold(self, size: int) -> None:
        if self._is_shared and size > SMALL_BYTES and (allocate := SHARED_BODIES.allocate) is not None:
            room = allocate(size)
            if room is not None:
                self.room, self._whole = room, room.toreadonly()
                return
        self._whole = _new_bytes(None, size)
        self.room = _memory(_address(self._whole), size, _PY_BUF_WRITE)

    def commit(self, count: int) -> None:
        """Take `count` bytes that were written to `room`. Raises MemoryError."""
        self.room = self.room[count:]
        self.missing -= count
        if self.missing and not self.room:
            self._grow()
        if self.on_more is not None:
            self.on_more()

    def begun(self) -> bytes:
        """What has come of a body that has all its memory."""
        return bytes(memoryview(self._whole)[: len(self._whole) - self.missing])

    def place(self) -> memoryview | None:
        """Where the body will lie, what has come of it first; None where it has not got all its memory yet."""
        return memoryview(self._whole).toreadonly() if len(self.room) == self.missing else None

    def _grow(self) -> None:
        """Get twice the memory, or all of it: what has come is no mere claim."""
        begun = self._whole
        self._hold(self._size(len(begun) + self.missing, 2 * len(begun)))
        self.room[: len(begun)] = begun
        self.room = self.room[len(begun) :]

    def whole(self) -> bytes | memoryview:
        """The body. Nothing may be missing."""
        self._give_back()
        return self._whole

    def _give_back(self) -> None:
        if self._taken_bytes:
            self._quota.give(self._taken_bytes)
            self._taken_bytes = 0

    def __del__(self) -> None:
        self._give_back()

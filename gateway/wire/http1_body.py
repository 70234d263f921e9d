"""The body of a request while it arrives: memory for the socket to write to, which becomes the body without a copy.
gRPC's large messages come the same way.

Dialects read `bytes`, and Python offers no memory that can first be written and then be `bytes`, but for its C API:
"the data must not be modified in any way, unless the object was just created using PyBytes_FromStringAndSize(NULL,
size)". That memory is also not cleared before it is written, so a head that only claims a large body costs addresses
and no memory. Nobody sees the object before its last byte is there.

Addresses are not free, either: the kernel keeps a book of them, and has limits. So there is a bound on what is only
claimed, for all bodies together and where a connection has many for those of one. A body within it has its whole place
from the start, and is never copied. One beyond grows as its bytes arrive.
"""

from __future__ import annotations

import ctypes
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


class Claims:
    """At most so much at a time, of bytes or of anything else that is only promised; and `within` others' bound."""

    __slots__ = ("_most", "_within", "taken")

    def __init__(self, most: int, within: Claims | None = None) -> None:
        self._most = most
        self._within = within
        self.taken = 0

    @property
    def left(self) -> int:
        """How much may be taken."""
        left = self._most - self.taken
        return left if self._within is None else min(left, self._within.left)

    def take(self, count: int) -> bool:
        """Whether there is so much left, which is then taken until it is given back."""
        if count > self.left:
            return False
        if self._within is not None:
            self._within.take(count)
        self.taken += count
        return True

    def give(self, count: int) -> None:
        """Back."""
        self.taken -= count
        if self._within is not None:
            self._within.give(count)


PROCESS: Final = Claims(_PROCESS_BYTES)
"""Of all bodies, whichever port they come by."""


class Body:
    """`room` is the memory for what comes next: it must not be used once the Body is gone. It is empty when the body is
    whole, `lacking` is how much is still to come.
    """

    __slots__ = ("_bytes", "_claimed", "_claims", "lacking", "room")

    room: memoryview

    def __init__(self, length: int, begun: bytes, claims: Claims = PROCESS) -> None:
        """`length` bytes, more than the few that have `begun` it. Raises MemoryError."""
        self._claims = claims
        self._claimed = 0
        self.lacking = length
        self._hold(self._size(length, max(SMALL_BYTES, 2 * len(begun))))
        self.room[: len(begun)] = begun
        self.added(len(begun))

    def _size(self, length: int, least: int) -> int:
        """How much memory there is to be: all of it, if it is little or can be claimed."""
        if length <= least:
            return length
        if not self._claims.take(length):
            return least
        self._claimed = length
        return length

    def _hold(self, size: int) -> None:
        self._bytes: bytes = _new_bytes(None, size)
        self.room = _memory(_address(self._bytes), size, _PY_BUF_WRITE)

    def added(self, count: int) -> None:
        """So many bytes have been written to `room`. Raises MemoryError."""
        self.room = self.room[count:]
        self.lacking -= count
        if self.lacking and not self.room:
            self._grow()

    def _grow(self) -> None:
        """Twice as much, or all of it: what is there is real."""
        begun = self._bytes
        self._hold(self._size(len(begun) + self.lacking, 2 * len(begun)))
        self.room[: len(begun)] = begun
        self.room = self.room[len(begun) :]

    def whole(self) -> bytes:
        """The body, once nothing is lacking."""
        self._give_back()
        return self._bytes

    def _give_back(self) -> None:
        if self._claimed:
            self._claims.give(self._claimed)
            self._claimed = 0

    def __del__(self) -> None:
        self._give_back()

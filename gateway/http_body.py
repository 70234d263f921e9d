"""The body of a request while it arrives: memory for the socket to write to, which becomes the body without a copy.
gRPC's large messages come the same way.

Dialects read `bytes`, and Python offers no memory that can first be written and then be `bytes`, but for its C API:
"the data must not be modified in any way, unless the object was just created using PyBytes_FromStringAndSize(NULL,
size)". That memory is also not cleared before it is written, so a head that only claims a large body costs addresses
and no memory. Nobody sees the object before its last byte is there.
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


class Body:
    """`room` is the memory for what comes next: it must not be used once the Body is gone."""

    __slots__ = ("_bytes", "room")

    room: memoryview

    def __init__(self, length: int, begun: bytes) -> None:
        """`length` bytes, more than the few that have `begun` it. Raises MemoryError."""
        self._bytes: bytes = _new_bytes(None, length)
        self.room = _memory(_address(self._bytes), length, _PY_BUF_WRITE)
        self.room[: len(begun)] = begun
        self.added(len(begun))

    def added(self, count: int) -> None:
        """So many bytes have been written to `room`."""
        self.room = self.room[count:]

    def whole(self) -> bytes:
        """The body, once there is no more room."""
        return self._bytes

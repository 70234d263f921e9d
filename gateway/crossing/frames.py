"""A stream of bytes <-> messages. No sockets here: `receive` takes what came, in whatever pieces it came."""

from __future__ import annotations

import struct
from typing import Any, Final, Generic, TypeVar

import msgspec

MAX_FRAME_BYTES: Final = 64 << 20
"""Tensors that are larger lie in an arena. Whoever sends a longer frame is cut off."""

_LENGTH: Final = struct.Struct("<I")
_encode_into: Final = msgspec.msgpack.Encoder().encode_into

M = TypeVar("M")


class CrossingBroken(Exception):
    """The other side has sent what no peer of this version sends."""


def add_frame(message: Any, buffer: bytearray) -> None:
    """Append a message to what is to be sent. Raises OverflowError beyond MAX_FRAME_BYTES, and TypeError or
    UnicodeEncodeError for what msgpack cannot say; nothing is appended then.
    """
    start = len(buffer)
    buffer += b"\0\0\0\0"
    try:
        _encode_into(message, buffer, -1)
    except BaseException:
        del buffer[start:]
        raise
    size = len(buffer) - start - 4
    if size > MAX_FRAME_BYTES:
        del buffer[start:]
        raise OverflowError(f"a message of {size} bytes")
    _LENGTH.pack_into(buffer, start, size)


class FrameReader(Generic[M]):
    """Finds messages in a stream. `message` is the union of all that may come."""

    def __init__(self, message: Any) -> None:
        self._decode = msgspec.msgpack.Decoder(message).decode
        self._rest = bytearray()

    def receive(self, data: memoryview) -> list[M]:
        """The messages that are whole with this data. Raises CrossingBroken."""
        found: list[M] = []
        if self._rest:
            self._rest += data
            source = memoryview(self._rest)
        else:
            source = data
        at, end = 0, len(source)
        decode = self._decode
        try:
            while end - at >= 4:
                (size,) = _LENGTH.unpack_from(source, at)
                if size > MAX_FRAME_BYTES:
                    raise CrossingBroken(f"a frame of {size} bytes")
                stop = at + 4 + size
                if stop > end:
                    break
                found.append(decode(source[at + 4 : stop]))
                at = stop
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise CrossingBroken(str(error)) from None
        rest = bytes(source[at:])
        source.release()
        self._rest = bytearray(rest)
        return found

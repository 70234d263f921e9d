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
    """Append a message to what is to be sent. Raises OverflowError beyond MAX_FRAME_BYTES, TypeError, ValueError for
    what no message may have; then it appends nothing.
    """
    start = len(buffer)
    buffer += b"\0\0\0\0"
    try:
        _encode_into(message, buffer, -1)
        size = len(buffer) - start - 4
        if size > MAX_FRAME_BYTES:
            raise OverflowError(f"a message of {size} bytes")
    except BaseException:
        del buffer[start:]
        raise
    _LENGTH.pack_into(buffer, start, size)


class FrameReader(Generic[M]):
    """Finds messages in a stream. `message` is the union of all that may come."""

    def __init__(self, message: Any) -> None:
        self._decode = msgspec.msgpack.Decoder(message).decode
        self._rest = bytearray()

    def receive(self, data: memoryview) -> list[M]:
        """The messages that are whole with this data. Raises CrossingBroken."""
        found: list[M] = []
        rest = self._rest
        source = data
        if rest:
            rest += data
            source = memoryview(rest)
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
        if source is not data:
            source.release()
            del rest[:at]
        elif at < end:
            rest += data[at:]
        return found

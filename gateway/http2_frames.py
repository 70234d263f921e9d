"""HTTP/2's frames, as far as gRPC needs them. Source: RFC 9113."""

from __future__ import annotations

import struct
from typing import Final

DATA: Final = 0
HEADERS: Final = 1
RST_STREAM: Final = 3
SETTINGS: Final = 4
PUSH_PROMISE: Final = 5
PING: Final = 6
GOAWAY: Final = 7
WINDOW_UPDATE: Final = 8
CONTINUATION: Final = 9
"""Kinds."""

END_STREAM: Final = 0x01
ACK: Final = 0x01
END_HEADERS: Final = 0x04
PADDED: Final = 0x08
PRIORITY: Final = 0x20
"""Flags."""

REFUSED_STREAM: Final = 7
CANCEL: Final = 8
"""Reasons to end a stream."""

FRAME: Final = struct.Struct(">HBBBI")
"""A frame's head: its size in 24 bits, as two numbers; kind, flags, stream."""
FRAME_BYTES: Final = 9
MOST: Final = 2**31 - 1
FIRST_WINDOW: Final = 65535
FIRST_FRAME: Final = 16384
"""What holds before anybody has said otherwise."""
MOST_CONTROL_BYTES: Final = 64 << 10
"""No frame but one of data is larger, nor are all headers together."""


class BadFrame(Exception):
    """Nothing that the server says from here on can be understood."""


def frame(size: int, kind: int, flags: int, stream: int) -> bytes:
    """The head of a frame."""
    return FRAME.pack(size >> 8, size & 0xFF, kind, flags, stream)


def unpadded(data: bytes) -> bytes:
    """What a padded frame holds. Raises BadFrame."""
    if not data or data[0] >= len(data):
        raise BadFrame("more padding than frame")
    return data[1 : len(data) - data[0]]


def _setting(number: int, value: int) -> bytes:
    return number.to_bytes(2, "big") + value.to_bytes(4, "big")


_OUR_SETTINGS: Final = (
    _setting(1, 0)  # no table of headers
    + _setting(2, 0)  # no pushes
    + _setting(4, MOST)  # a stream's window
    + _setting(5, 2**24 - 1)  # the largest frame
    + _setting(6, MOST_CONTROL_BYTES)  # the longest headers
)
PREFACE: Final = (
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
    + frame(len(_OUR_SETTINGS), SETTINGS, 0, 0)
    + _OUR_SETTINGS
    + frame(4, WINDOW_UPDATE, 0, 0)
    + (MOST - FIRST_WINDOW).to_bytes(4, "big")
)
"""What a client says first."""

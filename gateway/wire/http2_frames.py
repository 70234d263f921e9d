"""HTTP/2's frames, as far as gRPC needs them. Source: RFC 9113."""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Final

DATA: Final = 0
HEADERS: Final = 1
PRIORITY_FRAME: Final = 2
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

TABLE_SIZE: Final = 1
ENABLE_PUSH: Final = 2
MAX_STREAMS: Final = 3
WINDOW: Final = 4
FRAME_SIZE: Final = 5
LIST_SIZE: Final = 6
"""Settings."""

NO_ERROR: Final = 0
PROTOCOL_ERROR: Final = 1
FLOW_CONTROL_ERROR: Final = 3
STREAM_CLOSED: Final = 5
FRAME_SIZE_ERROR: Final = 6
REFUSED_STREAM: Final = 7
CANCEL: Final = 8
COMPRESSION_ERROR: Final = 9
ENHANCE_YOUR_CALM: Final = 11
"""Reasons to end a stream, or the connection."""

FRAME: Final = struct.Struct(">HBBBI")
"""A frame's head: its size in 24 bits, as two numbers; kind, flags, stream."""
FRAME_BYTES: Final = 9
MOST: Final = 2**31 - 1
FIRST_WINDOW: Final = 65535
FIRST_FRAME: Final = 16384
LARGEST_FRAME: Final = 2**24 - 1
"""What holds before anybody has said otherwise, and the most that can be said."""
MAX_CONTROL_BYTES: Final = 64 << 10
"""No frame but one of data is larger, nor are all headers together."""
MAGIC: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
"""What a client says before its first frame."""

_SIZES: Final = {RST_STREAM: 4, PING: 8, WINDOW_UPDATE: 4, PRIORITY_FRAME: 5}
_OF_STREAMS: Final = frozenset({DATA, HEADERS, PRIORITY_FRAME, RST_STREAM, CONTINUATION})
_OF_CONNECTIONS: Final = frozenset({SETTINGS, PING, GOAWAY})


class BadFrame(Exception):
    """Nothing that the other end says from here on can be understood, or is wanted; `code` says why."""

    def __init__(self, text: str, code: int = PROTOCOL_ERROR) -> None:
        super().__init__(text)
        self.code = code


class BadStream(Exception):
    """The same of one stream."""

    def __init__(self, text: str, code: int = PROTOCOL_ERROR) -> None:
        super().__init__(text)
        self.code = code


FRAMES_AT_ONCE: Final = 10_000
FRAMES_PER_S: Final = 1_000


class FrameBudget:
    """How many frames that carry nothing the other end may send: SETTINGS, PING, RST_STREAM, WINDOW_UPDATE, PRIORITY,
    empty ones, and those that are only refused. So many at once, so many more each second, and as many as there is a
    reason for: whoever takes large answers opens windows all the time, and `earned` counts what was sent to it.
    """

    __slots__ = ("_clock", "_level", "_then", "earned")

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._level = FRAMES_AT_ONCE
        self._then = clock()
        self.earned = 0

    def spend(self, cost: int = 1) -> None:
        """Raises BadFrame once it is used up."""
        self._level -= cost
        if self._level < 0:
            self._refill()

    def _refill(self) -> None:
        """Only now is the clock looked at: what is not used up costs a subtraction."""
        now = self._clock()
        level = self._level + int((now - self._then) * FRAMES_PER_S) + self.earned
        self._level, self._then, self.earned = min(level, FRAMES_AT_ONCE), now, 0
        if level < 0:
            raise BadFrame("too many frames that carry nothing", ENHANCE_YOUR_CALM)


def frame(size: int, kind: int, flags: int, stream: int) -> bytes:
    """The head of a frame."""
    return FRAME.pack(size >> 8, size & 0xFF, kind, flags, stream)


def short_frame(kind: int, stream: int, value: int) -> bytes:
    """A frame that says a number: RST_STREAM, WINDOW_UPDATE."""
    return frame(4, kind, 0, stream) + value.to_bytes(4, "big")


def goaway(last: int, code: int) -> bytes:
    return frame(8, GOAWAY, 0, 0) + last.to_bytes(4, "big") + code.to_bytes(4, "big")


def settings(values: Mapping[int, int]) -> bytes:
    said = b"".join(number.to_bytes(2, "big") + value.to_bytes(4, "big") for number, value in values.items())
    return frame(len(said), SETTINGS, 0, 0) + said


def read_settings(data: bytes) -> Iterator[tuple[int, int]]:
    """Settings and their values, those unknown too. Raises BadFrame."""
    for at in range(0, len(data), 6):
        number, value = int.from_bytes(data[at : at + 2], "big"), int.from_bytes(data[at + 2 : at + 6], "big")
        if number == WINDOW and value > MOST:
            raise BadFrame("a window that is too large", FLOW_CONTROL_ERROR)
        if number == FRAME_SIZE and not FIRST_FRAME <= value <= LARGEST_FRAME:
            raise BadFrame(f"frames of {value} bytes")
        if number == ENABLE_PUSH and value > 1:
            raise BadFrame("pushes that are neither allowed nor forbidden")
        yield number, value


def check(kind: int, flags: int, stream: int, size: int) -> None:
    """What can be said of a frame by its head. Raises BadFrame."""
    if kind in _OF_CONNECTIONS and stream:
        raise BadFrame("a frame of the connection that names a stream")
    if kind in _OF_STREAMS and not stream:
        raise BadFrame("a frame of a stream that names none")
    fits = size == _SIZES.get(kind, size)
    if kind == SETTINGS:
        fits = size == 0 if flags & ACK else size % 6 == 0
    if not fits:
        raise BadFrame(f"{size} bytes in a frame of kind {kind}", FRAME_SIZE_ERROR)


def unpadded(data: bytes) -> bytes:
    """What a padded frame holds. Raises BadFrame."""
    if not data or data[0] >= len(data):
        raise BadFrame("more padding than frame")
    return data[1 : len(data) - data[0]]


STREAM_BYTES: Final = 1 << 20
"""A stream's window in answers, if nobody takes them."""
PREFACE: Final = (
    MAGIC
    + settings(
        {
            TABLE_SIZE: 0,
            ENABLE_PUSH: 0,
            WINDOW: STREAM_BYTES,
            FRAME_SIZE: LARGEST_FRAME,
            LIST_SIZE: MAX_CONTROL_BYTES,
        }
    )
    + short_frame(WINDOW_UPDATE, 0, MOST - FIRST_WINDOW)
)
"""What a client says first."""

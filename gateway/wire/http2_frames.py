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
"""Types. Source: RFC 9113, 6; the rules of each are in `http2.FRAME_RULES`."""

END_STREAM: Final = 0x01
ACK: Final = 0x01
END_HEADERS: Final = 0x04
PADDED: Final = 0x08
PRIORITY: Final = 0x20
"""Flags."""

HEADER_TABLE_SIZE: Final = 1
ENABLE_PUSH: Final = 2
MAX_CONCURRENT_STREAMS: Final = 3
INITIAL_WINDOW_SIZE: Final = 4
MAX_FRAME_SIZE: Final = 5
MAX_HEADER_LIST_SIZE: Final = 6
"""Settings. Source: RFC 9113, 6.5.2."""

NO_ERROR: Final = 0
PROTOCOL_ERROR: Final = 1
FLOW_CONTROL_ERROR: Final = 3
STREAM_CLOSED: Final = 5
FRAME_SIZE_ERROR: Final = 6
REFUSED_STREAM: Final = 7
CANCEL: Final = 8
COMPRESSION_ERROR: Final = 9
ENHANCE_YOUR_CALM: Final = 11
"""Why a stream or the connection ends. Source: RFC 9113, 7."""

FRAME_HEADER: Final = struct.Struct(">HBBBI")
"""Size in 24 bits as two numbers, type, flags, stream."""
FRAME_HEADER_BYTES: Final = 9
MAX_INT31: Final = 2**31 - 1
DEFAULT_WINDOW: Final = 65535
MIN_FRAME_BYTES: Final = 16384
MAX_FRAME_BYTES: Final = 2**24 - 1
"""The largest window and stream number, the window before any settings, and the bounds of a frame's size, the lower of
which holds before any settings.
"""
MAX_CONTROL_BYTES: Final = 64 << 10
"""No frame but DATA is larger, nor are all headers together."""
MAGIC: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
"""The bytes before a client's first frame."""


class Http2ConnectionError(Exception):
    """The connection cannot go on; `code` says why. Source: RFC 9113, 5.4.1."""

    def __init__(self, text: str, code: int = PROTOCOL_ERROR) -> None:
        super().__init__(text)
        self.code = code


class Http2StreamError(Exception):
    """A stream cannot go on, the connection can; `code` says why. Source: RFC 9113, 5.4.2."""

    def __init__(self, text: str, code: int = PROTOCOL_ERROR) -> None:
        super().__init__(text)
        self.code = code


FRAMES_AT_ONCE: Final = 10_000
FRAMES_PER_S: Final = 1_000


class FrameBudget:
    """How many frames that carry nothing the other end may send: all but DATA and headers, empty ones of these, and
    those that are only refused. FRAMES_AT_ONCE may come at once and FRAMES_PER_S more each second. `earned` counts the
    frames that there is a reason for, since a client that takes large answers opens windows all the time. Who takes
    from `left` and finds it below 0 calls `refill`.
    """

    __slots__ = ("_clock", "_then", "earned", "left")

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self.left = FRAMES_AT_ONCE
        self._then = clock()
        self.earned = 0

    def spend(self, cost: int = 1) -> None:
        """Take from the budget. Raises Http2ConnectionError once it is used up."""
        self.left -= cost
        if self.left < 0:
            self.refill()

    def refill(self) -> None:
        """Add what time and answers have earned. The clock is read only here. Raises Http2ConnectionError if that is
        not enough.
        """
        now = self._clock()
        level = self.left + int((now - self._then) * FRAMES_PER_S) + self.earned
        self.left, self._then, self.earned = min(level, FRAMES_AT_ONCE), now, 0
        if level < 0:
            raise Http2ConnectionError("too many frames that carry nothing", ENHANCE_YOUR_CALM)


def frame_header(size: int, kind: int, flags: int, stream: int) -> bytes:
    """The nine bytes before a frame's payload."""
    return FRAME_HEADER.pack(size >> 8, size & 0xFF, kind, flags, stream)


def short_frame(kind: int, stream: int, value: int) -> bytes:
    """A frame whose payload is a number: RST_STREAM, WINDOW_UPDATE."""
    return frame_header(4, kind, 0, stream) + value.to_bytes(4, "big")


def goaway(last: int, code: int) -> bytes:
    return frame_header(8, GOAWAY, 0, 0) + last.to_bytes(4, "big") + code.to_bytes(4, "big")


def settings(values: Mapping[int, int]) -> bytes:
    payload = b"".join(number.to_bytes(2, "big") + value.to_bytes(4, "big") for number, value in values.items())
    return frame_header(len(payload), SETTINGS, 0, 0) + payload


def read_settings(data: bytes) -> Iterator[tuple[int, int]]:
    """The settings and values of a SETTINGS frame, unknown ones too. Raises Http2ConnectionError."""
    for at in range(0, len(data), 6):
        number, value = int.from_bytes(data[at : at + 2], "big"), int.from_bytes(data[at + 2 : at + 6], "big")
        if number == INITIAL_WINDOW_SIZE and value > MAX_INT31:
            raise Http2ConnectionError("a window that is too large", FLOW_CONTROL_ERROR)
        if number == MAX_FRAME_SIZE and not MIN_FRAME_BYTES <= value <= MAX_FRAME_BYTES:
            raise Http2ConnectionError(f"frames of {value} bytes")
        if number == ENABLE_PUSH and value > 1:
            raise Http2ConnectionError("pushes that are neither allowed nor forbidden")
        yield number, value


def unpadded(data: bytes) -> bytes:
    """The payload of a padded frame without its padding. Raises Http2ConnectionError."""
    if not data or data[0] >= len(data):
        raise Http2ConnectionError("more padding than frame")
    return data[1 : len(data) - data[0]]


STREAM_BYTES: Final = 1 << 20
"""The window of a client's stream for answers that nobody has taken yet."""
PREFACE: Final = (
    MAGIC
    + settings(
        {
            HEADER_TABLE_SIZE: 0,
            ENABLE_PUSH: 0,
            INITIAL_WINDOW_SIZE: STREAM_BYTES,
            MAX_FRAME_SIZE: MAX_FRAME_BYTES,
            MAX_HEADER_LIST_SIZE: MAX_CONTROL_BYTES,
        }
    )
    + short_frame(WINDOW_UPDATE, 0, MAX_INT31 - DEFAULT_WINDOW)
)
"""The connection preface of a client. Source: RFC 9113, 3.4."""

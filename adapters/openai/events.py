"""Server-sent events, as they are written. Source: the HTML standard, 9.2."""

from __future__ import annotations

from types import MappingProxyType
from typing import Final

EVENT_STREAM: Final = MappingProxyType(
    {"Content-Type": "text/event-stream; charset=utf-8", "Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
)
"""Proxies send each on at once."""
DONE: Final = b"data: [DONE]\n\n"
"""What ends OpenAI's streams."""


def event(data: bytes, name: str = "") -> bytes:
    """One event. `data` has no line feeds: JSON on one line."""
    return b"event: %b\ndata: %b\n\n" % (name.encode(), data) if name else b"data: %b\n\n" % data


class EventCutter:
    """The `Cutter` of a stream of events: a message is the `data` line of one, as it is."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[bytes]:
        *lines, self._rest = (self._rest + data).split(b"\n")
        return [line.rstrip(b"\r") for line in lines if line.startswith(b"data:")]

    def end(self) -> list[bytes]:
        """A line that was not ended."""
        rest, self._rest = self._rest, b""
        return [rest] if rest.startswith(b"data:") else []

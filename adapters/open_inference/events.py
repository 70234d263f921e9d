"""Server-sent events as they arrive over HTTP: bytes in any pieces -> the data of each event.

Lines end as CR LF, LF or CR; the data of an event may have several. Names and numbers of events, and comments, say
nothing of a tensor. Source: the HTML standard, "server-sent events".
"""

from __future__ import annotations

import re
from typing import Final

_END_OF_LINE: Final = re.compile(rb"\r\n|\n|\r")
_MARK: Final = b"\xef\xbb\xbf"


class Events:
    """See Cutter: a message is the data of one event."""

    def __init__(self) -> None:
        self._line: list[bytes] = []
        self._data: list[bytes] = []
        self._is_first = True

    def feed(self, data: bytes) -> list[bytes]:
        self._line.append(data)
        if b"\n" not in data and b"\r" not in data:
            return []
        text = b"".join(self._line)
        if text.endswith(b"\r"):  # half of a line's end, perhaps
            text, kept = text[:-1], b"\r"
        else:
            kept = b""
        *lines, rest = _END_OF_LINE.split(text)
        self._line = [rest + kept]
        return self._events(lines)

    def end(self) -> list[bytes]:
        """What is left: an event that nothing ends is not whole, but may be all that is lacking is its end."""
        events = self._events(_END_OF_LINE.split(b"".join(self._line)))
        return [*events, *self._events([b""])]

    def _events(self, lines: list[bytes]) -> list[bytes]:
        events: list[bytes] = []
        for line in lines:
            if self._is_first:
                line, self._is_first = line.removeprefix(_MARK), False
            if not line:
                if self._data:
                    events.append(b"\n".join(self._data))
                    self._data = []
                continue
            name, _, value = line.partition(b":")
            if name == b"data":
                self._data.append(value.removeprefix(b" "))
        return events

"""JSON documents that follow one another without anything between them, as a grps server streams its messages: bytes in
any pieces -> one document after the other.
"""

from __future__ import annotations

import re
from typing import Final

_OUTSIDE: Final = re.compile(rb'["{}]')
_INSIDE: Final = re.compile(rb'["\\]')
_BEGIN: Final = re.compile(rb"[^ \t\r\n]")


class Documents:
    """See Cutter: a message is one JSON object. What is no object is a message as it is, which nobody takes for one."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._depth = 0
        self._in_text = False
        self._skips = False

    def feed(self, data: bytes) -> list[bytes]:
        found: list[bytes] = []
        begin = at = 0
        while True:
            if not self._depth and not self._pieces:
                first = _BEGIN.search(data, at)
                if first is None:
                    return found
                begin = at = first.start()
                if first[0] != b"{":
                    return [*found, data[at:]]
            if self._skips and at < len(data):
                self._skips, at = False, at + 1
            mark = (_INSIDE if self._in_text else _OUTSIDE).search(data, at)
            if mark is None:
                break
            at = mark.end()
            if self._took(mark[0]):
                self._pieces.append(data[begin:at])
                found += self.end()
        if begin < len(data):
            self._pieces.append(data[begin:])
        return found

    def end(self) -> list[bytes]:
        """What has begun."""
        pieces, self._pieces = self._pieces, []
        return [b"".join(pieces)] if pieces else []

    def _took(self, mark: bytes) -> bool:
        """Whether a document ends with this."""
        if mark == b'"':
            self._in_text = not self._in_text
        elif mark == b"\\":
            self._skips = True
        elif mark == b"{":
            self._depth += 1
        else:
            self._depth -= 1
            return self._depth <= 0
        return False

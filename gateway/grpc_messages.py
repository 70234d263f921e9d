"""gRPC's messages as they come in: each has five bytes before it, whether it is compressed and how long it is.

What is large goes from the socket to the memory where it stays; see http_body. Source: gRPC over HTTP/2.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from typing import Final

from gateway.http_body import Body

PREFIX_BYTES: Final = 5
_NO_ROOM: Final = memoryview(b"")


class TooLarge(Exception):
    """A message has `size` bytes, of at most `most`."""

    def __init__(self, size: int, most: int) -> None:
        super().__init__(f"{size} bytes, of at most {most}")
        self.size = size
        self.most = most


class Garbled(Exception):
    """What is said to be compressed is not."""


_WINDOW_BITS: Final[Mapping[str, int]] = {"gzip": 16 + zlib.MAX_WBITS, "deflate": zlib.MAX_WBITS}
CODINGS: Final = frozenset({"", "identity", *_WINDOW_BITS})
"""What messages may be compressed by."""


def inflate(body: bytes, coding: str, most: int) -> bytes:
    """A compressed message, plain. Raises TooLarge beyond `most` bytes, Garbled."""
    if coding not in _WINDOW_BITS:
        raise Garbled("a compressed message, and no word by what")
    stream = zlib.decompressobj(_WINDOW_BITS[coding])
    try:
        plain = stream.decompress(body, most + 1)
    except zlib.error as error:
        raise Garbled(f"a message is no {coding}: {error}") from None
    if len(plain) > most:
        raise TooLarge(len(plain), most)
    if not stream.eof:
        raise Garbled(f"a message is no {coding}: it ends too soon")
    return plain


def prefix(size: int) -> bytes:
    """What goes before a message that is not compressed."""
    return b"\0" + size.to_bytes(4, "big")


class Incoming:
    """The messages of one direction of a call, of at most `most_bytes` each.

    `lacking` is how much is known to be missing of the one that has begun; `room` is memory for that, where it is
    worth while to be read into: it must not be used once the Incoming is gone.
    """

    __slots__ = ("_body", "_compressed", "_most_bytes", "_prefix", "room")

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._prefix = b""
        self._body: Body | None = None
        self._compressed = False
        self.room = _NO_ROOM

    @property
    def lacking(self) -> int:
        return len(self.room)

    @property
    def has_begun(self) -> bool:
        """Whether there is a part of a message."""
        return self._body is not None or self._prefix != b""

    def lone(self, data: memoryview) -> tuple[bytes, bool] | None:
        """The same of data that are one message from its beginning to its end; None where they are not."""
        size = len(data) - PREFIX_BYTES
        if self._body is not None or self._prefix or size < 0 or size > self._most_bytes:
            return None
        if int.from_bytes(data[1:PREFIX_BYTES], "big") != size:
            return None
        return bytes(data[PREFIX_BYTES:]), data[0] != 0

    def take(self, data: memoryview) -> list[tuple[bytes, bool]]:
        """More of them -> those that are whole now, and whether each is compressed. Raises TooLarge, MemoryError."""
        found = []
        while data:
            if self._body is not None:
                part = data[: len(self.room)]
                self.room[: len(part)] = part
                data = data[len(part) :]
                found += self.added(len(part))
                continue
            lacking = PREFIX_BYTES - len(self._prefix)
            self._prefix += data[:lacking]
            data = data[lacking:]
            if len(self._prefix) < PREFIX_BYTES:
                break
            size = int.from_bytes(self._prefix[1:], "big")
            if size > self._most_bytes:
                raise TooLarge(size, self._most_bytes)
            compressed, self._prefix = self._prefix[0] != 0, b""
            if len(data) >= size:
                found.append((bytes(data[:size]), compressed))
                data = data[size:]
            else:
                self._body, self._compressed = Body(size, bytes(data)), compressed
                self.room = self._body.room
                break
        return found

    def added(self, count: int) -> list[tuple[bytes, bool]]:
        """So much was written to `room` -> the message, if it is whole now, and whether it is compressed."""
        body = self._body
        if body is None:
            return []
        body.added(count)
        self.room = body.room
        if self.room:
            return []
        self._body, self.room = None, _NO_ROOM
        return [(body.whole(), self._compressed)]

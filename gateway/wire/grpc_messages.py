"""gRPC's messages as they come in: each has five bytes before it, whether it is compressed and how long it is.

What is large goes from the socket to the memory where it stays; see http_body. Source: gRPC over HTTP/2.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from typing import Final

from tensorgate.gateway.wire.http1_body import PROCESS, SMALL_BYTES, Body, Claims

PREFIX_BYTES: Final = 5
_NO_ROOM: Final = memoryview(b"")


class TooLarge(Exception):
    """A message has `size` bytes, of at most `most`."""

    def __init__(self, size: int, most: int) -> None:
        super().__init__(f"{size} bytes, of at most {most}")
        self.size = size
        self.most = most


class NotAdmitted(Exception):
    """Nothing large is kept of somebody who will be refused."""


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
    """The messages of one direction of a call, of at most `max_bytes` each.

    `lacking` is how much is known to be missing of the one that has begun; `room` is memory for that, where it is
    worth while to be read into: it must not be used once the Incoming is gone, or closed. What a message's prefix
    claims is held to `claims`, and nothing large is kept unless `admits` says that it may be.
    """

    __slots__ = ("_admits", "_body", "_claims", "_compressed", "_max_bytes", "_prefix", "is_closed", "room")

    def __init__(self, max_bytes: int, claims: Claims = PROCESS, admits: Callable[[], bool] | None = None) -> None:
        self._max_bytes = max_bytes
        self._claims = claims
        self._admits = admits
        self._prefix = b""
        self._body: Body | None = None
        self._compressed = False
        self.is_closed = False
        self.room = _NO_ROOM

    @property
    def lacking(self) -> int:
        return 0 if self._body is None else self._body.lacking

    @property
    def has_begun(self) -> bool:
        """Whether there is a part of a message."""
        return self._body is not None or self._prefix != b""

    def close(self) -> None:
        """Nobody wants any more of them: the memory is given back, and what still comes is thrown away."""
        self.is_closed = True
        self._prefix = b""
        self._body, self.room = None, _NO_ROOM

    def lone(self, data: memoryview) -> tuple[bytes, bool] | None:
        """The same of data that are one message from its beginning to its end; None where they are not."""
        size = len(data) - PREFIX_BYTES
        if self._body is not None or self._prefix or size < 0 or size > self._max_bytes or self.is_closed:
            return None
        if int.from_bytes(data[1:PREFIX_BYTES], "big") != size:
            return None
        return bytes(data[PREFIX_BYTES:]), data[0] != 0

    def take(self, data: memoryview) -> list[tuple[bytes, bool]]:
        """More of them -> those that are whole now, and whether each is compressed. Raises TooLarge, MemoryError,
        NotAdmitted.
        """
        found: list[tuple[bytes, bool]] = []
        while data and not self.is_closed:
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
            if size > self._max_bytes:
                raise TooLarge(size, self._max_bytes)
            compressed, self._prefix = self._prefix[0] != 0, b""
            if len(data) >= size:
                found.append((bytes(data[:size]), compressed))
                data = data[size:]
            else:
                self._begin(size, data, compressed=compressed)
                break
        return found

    def _begin(self, size: int, begun: memoryview, *, compressed: bool) -> None:
        """A message of which more is to come."""
        if size > SMALL_BYTES and self._admits is not None and not self._admits():
            raise NotAdmitted
        self._body, self._compressed = Body(size, bytes(begun), self._claims), compressed
        self.room = self._body.room

    def added(self, count: int) -> list[tuple[bytes, bool]]:
        """So much was written to `room` -> the message, if it is whole now, and whether it is compressed. Raises
        MemoryError.
        """
        body = self._body
        if body is None:
            return []
        body.added(count)
        self.room = body.room
        if self.room:
            return []
        self._body, self.room = None, _NO_ROOM
        return [(body.whole(), self._compressed)]

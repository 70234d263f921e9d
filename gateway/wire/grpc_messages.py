"""gRPC's messages as they come in. Five bytes before each say whether it is compressed, and its length.

A large message goes from the socket to the memory where it stays, as http1_body explains. Source: gRPC over HTTP/2.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Mapping
from typing import Final

from tensorgate.gateway.contract.call import Buffer
from tensorgate.gateway.wire.http1_body import PROCESS_QUOTA, SMALL_BYTES, Body, Quota

PREFIX_BYTES: Final = 5
MESSAGE_PREFIX: Final = struct.Struct(">BI")
"""Whether the message behind it is compressed, and its size."""
_NO_ROOM: Final = memoryview(b"")


class MessageTooLarge(Exception):
    """A message has `size` bytes, of at most `limit`."""

    def __init__(self, size: int, limit: int) -> None:
        super().__init__(f"{size} bytes, of at most {limit}")
        self.size = size
        self.limit = limit


class NotAdmitted(Exception):
    """A large message comes from a caller who will be refused."""


class CorruptMessage(Exception):
    """A compressed message cannot be inflated."""


_WINDOW_BITS: Final[Mapping[str, int]] = {"gzip": 16 + zlib.MAX_WBITS, "deflate": zlib.MAX_WBITS}
CODINGS: Final = frozenset({"", "identity", *_WINDOW_BITS})
"""The values of grpc-encoding that are understood."""


def inflate(body: Buffer, coding: str, max_bytes: int) -> bytes:
    """Inflate a message. Raises MessageTooLarge beyond `max_bytes`, CorruptMessage."""
    if coding not in _WINDOW_BITS:
        raise CorruptMessage("a compressed message, and no word by what")
    stream = zlib.decompressobj(_WINDOW_BITS[coding])
    try:
        plain = stream.decompress(body, max_bytes + 1)
    except zlib.error as error:
        raise CorruptMessage(f"a message is no {coding}: {error}") from None
    if len(plain) > max_bytes:
        raise MessageTooLarge(len(plain), max_bytes)
    if not stream.eof:
        raise CorruptMessage(f"a message is no {coding}: it ends too soon")
    return plain


class Incoming:
    """The messages of one direction of a call, of at most `max_bytes` each.

    What a message's prefix claims is held to `quota`. A large message is kept only if `admits` agrees.
    """

    __slots__ = ("_admits", "_body", "_compressed", "_max_bytes", "_on_begin", "_prefix", "_quota", "is_closed", "room")

    def __init__(
        self,
        max_bytes: int,
        quota: Quota = PROCESS_QUOTA,
        admits: Callable[[], bool] | None = None,
        on_begin: Callable[[Body, int], None] | None = None,
    ) -> None:
        """`on_begin` gets each large message that is not compressed when its first bytes are here, and its size."""
        self._max_bytes = max_bytes
        self._quota = quota
        self._admits = admits
        self._on_begin = on_begin
        self._prefix = b""
        self._body: Body | None = None
        self._compressed = False
        self.is_closed = False
        self.room = _NO_ROOM
        """Memory for what is missing of a large message. It must not be used once the Incoming is gone or closed."""

    @property
    def missing(self) -> int:
        """How many bytes are missing of the message that has begun."""
        return 0 if self._body is None else self._body.missing

    @property
    def has_begun(self) -> bool:
        """A part of a message has come."""
        return self._body is not None or self._prefix != b""

    def close(self) -> None:
        """Give the memory back, and throw away what still comes."""
        self.is_closed = True
        self._prefix = b""
        self._body, self.room = None, _NO_ROOM

    def take(self, data: memoryview) -> list[tuple[Buffer, bool]]:
        """Take more data. -> messages that are whole now, each with whether it is compressed.

        Raises MessageTooLarge, MemoryError, NotAdmitted.
        """
        found: list[tuple[Buffer, bool]] = []
        while data and not self.is_closed:
            if self._body is not None:
                part = data[: len(self.room)]
                self.room[: len(part)] = part
                data = data[len(part) :]
                found += self.commit(len(part))
                continue
            missing = PREFIX_BYTES - len(self._prefix)
            self._prefix += data[:missing]
            data = data[missing:]
            if len(self._prefix) < PREFIX_BYTES:
                break
            size = int.from_bytes(self._prefix[1:], "big")
            if size > self._max_bytes:
                raise MessageTooLarge(size, self._max_bytes)
            compressed, self._prefix = self._prefix[0] != 0, b""
            if len(data) >= size:
                found.append((bytes(data[:size]), compressed))
                data = data[size:]
            else:
                self._begin(size, data, compressed=compressed)
                break
        return found

    def _begin(self, size: int, begun: memoryview, *, compressed: bool) -> None:
        """Begin a message of which more is to come."""
        if size > SMALL_BYTES and self._admits is not None and not self._admits():
            raise NotAdmitted
        self._body, self._compressed = Body(size, bytes(begun), self._quota, is_shared=not compressed), compressed
        self.room = self._body.room
        if self._on_begin is not None and not compressed:
            self._on_begin(self._body, size)

    def commit(self, count: int) -> list[tuple[Buffer, bool]]:
        """Take `count` bytes that were written to `room`. -> the message if it is whole now, and whether compressed.

        Raises MemoryError.
        """
        body = self._body
        if body is None:
            return []
        body.commit(count)
        self.room = body.room
        if self.room:
            return []
        self._body, self.room = None, _NO_ROOM
        return [(body.whole(), self._compressed)]

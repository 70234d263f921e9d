"""Replies of HTTP/1.1 servers, as a client reads them: bytes in, a status, headers and a body out.

A body of known length arrives in memory of its own, into which the socket writes; one in chunks, or one that ends with
its connection, is put together. What is wanted in pieces is given as it comes. Source: RFC 9112, sections 2 to 7.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

from tensorgate.gateway.wire.http1_body import Body

MAX_HEAD_BYTES: Final = 64 << 10
_MAX_LINE_BYTES: Final = 4 << 10
"""Of the line before a chunk."""

_FIELD: Final = rb"[\w!#$%&'*+\-.^`|~]++:[^\0\r\n]*+\r\n"
_HEAD: Final = re.compile(rb"HTTP/1\.([01]) ([1-5][0-9]{2})(?: [^\0\r\n]*+)?\r\n((?:" + _FIELD + rb")*+)\r\n")
_CHUNK: Final = re.compile(rb"([0-9A-Fa-f]{1,15})[\t ]*(?:;[^\0\r\n]*)?\r\n")
_CRLF: Final = b"\r\n"
_END: Final = b"\r\n\r\n"
_MAX_DIGITS: Final = 18
_SWITCHING: Final = 101
_SUCCESS: Final = 200
_BODILESS: Final = (204, 304)


class BadReply(Exception):
    """What a server sent is not HTTP/1.1, or ended too early."""


class ReplyTooLarge(Exception):
    """A body has more bytes than are read."""


class ReplyReader:
    """One reply. What has come is given to `receive`; but while there is `arriving`, its next bytes go into the room of
    that, and `commit` tells how many there are.

    Wanted `in_pieces`, the body of a success (200) is in `pieces` as it comes, whatever its size, and whoever reads it
    takes them out.
    """

    __slots__ = (
        "_buffer",
        "_has_body",
        "_in_pieces",
        "_left",
        "_max_bytes",
        "_size",
        "_take",
        "arriving",
        "headers",
        "is_complete",
        "keeps_alive",
        "on_begin",
        "pieces",
        "status",
    )

    def __init__(self, max_bytes: int, *, has_body: bool = True, in_pieces: bool = False) -> None:
        """`has_body` is false of the reply to a HEAD, whatever its headers say."""
        self.status = 0
        """0 until the head is there."""
        self.headers: dict[str, str] = {}
        """By lower-case name; those that came repeatedly are joined by commas."""
        self.arriving: Body | None = None
        self.on_begin: Callable[[Body, int], None] | None = None
        """Gets `arriving` when it begins, and its size."""
        self.pieces: list[bytes] = []
        self.is_complete = False
        self.keeps_alive = False
        """Whether the connection may have another request, once this reply is complete."""
        self._max_bytes = max_bytes
        self._has_body = has_body
        self._in_pieces = in_pieces
        self._buffer = bytearray()
        self._left = 0
        self._size = 0
        self._take: Callable[[memoryview], None] = self._take_head

    @property
    def is_stream(self) -> bool:
        """Whether the body comes in pieces; known with the head."""
        return self._in_pieces

    def receive(self, data: memoryview) -> None:
        """More bytes, which are looked at now. Raises BadReply, ReplyTooLarge, MemoryError."""
        self._take(data)

    def commit(self, body: Body, count: int) -> None:
        """So many bytes of `arriving` have come. Raises MemoryError."""
        body.commit(count)
        if not body.missing:
            self.pieces.append(bytes(body.whole()))
            self.arriving = None
            self._end()

    def eof(self) -> None:
        """No more bytes will come. Raises BadReply where some are missing."""
        if self._take == self._take_rest and not self.is_complete:
            self._end()
        elif not self.is_complete:
            raise BadReply("the connection ended before the reply")

    def body(self) -> bytes:
        """All that came, of a complete reply."""
        pieces = self.pieces
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    # ------------------------------------------------------------------------------------------------------------- head

    def _take_head(self, data: memoryview) -> None:
        buffer = self._buffer
        known = max(0, len(buffer) - len(_END) + 1)
        buffer += data
        end = buffer.find(_END, known)
        if end < 0:
            if len(buffer) > MAX_HEAD_BYTES:
                raise BadReply(f"a head of more than {MAX_HEAD_BYTES} bytes")
            return
        end += len(_END)
        self._read_head(bytes(buffer[:end]))
        rest = bytes(buffer[end:])
        buffer.clear()
        if self.is_complete:
            self.keeps_alive = self.keeps_alive and not rest
        elif rest:
            self._take(memoryview(rest))

    def _read_head(self, data: bytes) -> None:
        match = _HEAD.fullmatch(data)
        if match is None:
            raise BadReply(f"no head of a reply: {data[:80]!r}")
        minor, digits, fields = match.groups()
        status, headers = int(digits), _headers(fields)
        if status == _SWITCHING:
            raise BadReply("the server speaks another protocol now")
        if status < _SUCCESS:
            return
        self.status, self.headers = status, headers
        self._in_pieces = self._in_pieces and status == _SUCCESS
        said = headers.get("connection", "").lower()
        self.keeps_alive = "close" not in said if minor == b"1" else "keep-alive" in said
        encoding, length = headers.get("transfer-encoding"), headers.get("content-length")
        if not self._has_body or status in _BODILESS:
            self._end()
        elif encoding is not None:
            if encoding.lower() != "chunked":
                raise BadReply(f"a body of the transfer coding {encoding[:80]!r}")
            self.keeps_alive = self.keeps_alive and length is None
            self._take = self._take_chunks
        elif length is None:
            self.keeps_alive = False
            self._take = self._take_rest
        else:
            self._expect(_length(length))

    def _expect(self, length: int) -> None:
        self._left = length
        self._take = self._take_counted
        if not length:
            self._end()
        elif length > self._max_bytes and not self._in_pieces:
            raise ReplyTooLarge

    # ------------------------------------------------------------------------------------------------------------- body

    def _take_counted(self, data: memoryview) -> None:
        """The first bytes of a body of known length, or all of a stream's."""
        left = self._left
        if not self._in_pieces and len(data) < left:
            self.arriving = Body(left, bytes(data))
            if self.on_begin is not None:
                self.on_begin(self.arriving, left)
            return
        self._left = left - min(left, len(data))
        self._add(data[:left])
        if not self._left:
            self._end()
            self.keeps_alive = self.keeps_alive and len(data) == left

    def _take_rest(self, data: memoryview) -> None:
        self._add(data)

    def _take_chunks(self, data: memoryview) -> None:
        """`_left` counts the bytes of a chunk that are to come, and the line end behind it."""
        if self._buffer:
            self._buffer += data
            data, self._buffer = memoryview(bytes(self._buffer)), bytearray()
        while data and not self.is_complete:
            left = self._left
            if left > len(_CRLF):
                part = data[: left - len(_CRLF)]
                self._add(part)
                self._left -= len(part)
                data = data[len(part) :]
                continue
            if left:
                if len(data) < left:
                    break
                if bytes(data[:left]) != _CRLF:
                    raise BadReply("a chunk that does not end")
                self._left, data = 0, data[left:]
                continue
            known = bytes(data[:_MAX_LINE_BYTES])
            match = _CHUNK.match(known)
            if match is None:
                if b"\n" in known or len(data) >= _MAX_LINE_BYTES:
                    raise BadReply(f"no chunk: {known[:80]!r}")
                break
            size = int(match[1], 16)
            if not size:
                self._take = self._take_trailers
                self._take(data[match.end() - len(_CRLF) :])
                return
            self._left, data = size + len(_CRLF), data[match.end() :]
        self._buffer += data

    def _take_trailers(self, data: memoryview) -> None:
        """From the line end behind the last chunk's size on. Nobody wants to know what they say."""
        self._buffer += data
        end = 0 if self._buffer.startswith(_CRLF * 2) else self._buffer.find(_END)
        if end < 0:
            if len(self._buffer) > MAX_HEAD_BYTES:
                raise BadReply(f"trailers of more than {MAX_HEAD_BYTES} bytes")
            return
        self.keeps_alive = self.keeps_alive and len(self._buffer) == end + len(_END)
        self._end()

    def _add(self, data: memoryview) -> None:
        self._size += len(data)
        if self._size > self._max_bytes and not self._in_pieces:
            raise ReplyTooLarge
        self.pieces.append(bytes(data))

    def _end(self) -> None:
        self.is_complete = True
        self._take = _take_no_more


def _take_no_more(data: memoryview) -> None:
    raise BadReply("more than one reply")


def _headers(fields: bytes) -> dict[str, str]:
    headers: dict[str, str] = {}
    for line in fields.decode("utf-8", "surrogateescape").split("\r\n")[:-1]:
        name, _, value = line.partition(":")
        name, value = name.lower(), value.strip(" \t")
        known = headers.get(name)
        headers[name] = value if known is None else f"{known}, {value}"
    return headers


def _length(said: str) -> int:
    """Raises BadReply. Source: RFC 9112, 6.3: the same number repeatedly is that number."""
    numbers = {number.strip(" \t") for number in said.split(",")}
    number = numbers.pop()
    if numbers or not number.isascii() or not number.isdecimal() or len(number) > _MAX_DIGITS:
        raise BadReply(f"a body of {said[:80]!r} bytes")
    return int(number)

"""gzip and zlib bodies of requests -> plain ones, inflated a piece at a time.

A thousand bytes come out of one, so what comes out is counted as it does, and nobody goes on once there is too much of
it. It lies in memory of its own, which the system has back as soon as nobody looks at it any more; the allocator would
keep it. Each piece leaves the interpreter to others.
"""

from __future__ import annotations

import mmap
import zlib
from collections.abc import Iterator
from typing import Final

from tensorgate.gateway.contract.call import Buffer
from tensorgate.gateway.contract.errors import BodyTooLarge

_GIVEN_BYTES: Final = 64 << 10
"""What is left of them is copied for every piece."""
_PIECE_BYTES: Final = 1 << 20


def inflate(body: Buffer, window_bits: int, limit: int) -> Buffer:
    """A compressed body, plain: bytes if it is small, else a view. `window_bits` is zlib's, and says the format.

    Raises BodyTooLarge beyond `limit` bytes, zlib.error for a stream that is broken, incomplete or followed by more.
    """
    pieces = _pieces(body, window_bits)
    first = next(pieces, b"")
    second = next(pieces, b"")
    if not second:
        _check(len(first), limit)
        return first
    room = mmap.mmap(-1, 4 * _PIECE_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)  # a shared one cannot grow
    size = 0
    for some in (first, second), pieces:
        for piece in some:
            end = size + len(piece)
            _check(end, limit)
            if end > len(room):
                room.resize(2 * len(room))
            room[size:end] = piece
            size = end
    return memoryview(room)[:size]


def _check(size: int, limit: int) -> None:
    if size > limit:
        raise BodyTooLarge(limit)


def _pieces(body: Buffer, window_bits: int) -> Iterator[bytes]:
    stream = zlib.decompressobj(window_bits)
    for at in range(0, len(body), _GIVEN_BYTES):
        given: Buffer = memoryview(body)[at : at + _GIVEN_BYTES]
        piece = b""
        while given or len(piece) == _PIECE_BYTES:  # all was taken, and there may be more of what it stands for
            piece = stream.decompress(given, _PIECE_BYTES)
            if piece:
                yield piece
            if stream.eof:
                break
            given = stream.unconsumed_tail
        if stream.eof:
            if stream.unused_data or at + _GIVEN_BYTES < len(body):
                raise zlib.error("data follows the stream")
            return
    raise zlib.error("the stream is incomplete")

"""Replies of HTTP/1.1 servers, however their bytes are cut."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from tensorgate.gateway.wire.http1_reply import MAX_HEAD_BYTES, BadReply, ReplyReader, ReplyTooLarge

MAX_BYTES = 1000
LARGE = bytes(range(256)) * 3
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


def read(pieces: Sequence[bytes], *, eof: bool = False, **options: Any) -> ReplyReader:
    reader = ReplyReader(MAX_BYTES, **options)
    for piece in pieces:
        data = memoryview(piece)
        while data:
            body = reader.arriving
            if body is None:
                reader.receive(data)
                break
            count = min(len(body.room), len(data))
            body.room[:count] = data[:count]
            reader.commit(body, count)
            data = data[count:]
    if eof:
        reader.eof()
    return reader


def cuts(data: bytes) -> list[list[bytes]]:
    """The same bytes whole, one by one, and cut in two at each place."""
    ways = [[data], [data[at : at + 1] for at in range(len(data))]]
    return ways + [[data[:at], data[at:]] for at in range(1, len(data))]


REPLIES: list[tuple[str, bytes, int, bytes, bool]] = [
    ("counted", b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello", 200, b"hello", True),
    ("large", b"HTTP/1.1 200 OK\r\ncontent-length:768\r\n\r\n" + LARGE, 200, LARGE, True),
    ("nothing", b"HTTP/1.1 204 No Content\r\n\r\n", 204, b"", True),
    ("not modified", b"HTTP/1.1 304 Not Modified\r\nContent-Length: 9\r\n\r\n", 304, b"", True),
    ("empty", b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n", 404, b"", True),
    ("no reason", b"HTTP/1.1 500 \r\nContent-Length: 1\r\n\r\nx", 500, b"x", True),
    ("bare status", b"HTTP/1.1 500\r\nContent-Length: 1\r\n\r\nx", 500, b"x", True),
    ("same length twice", b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\nx", 200, b"x", True),
    ("last", b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 1\r\n\r\nx", 200, b"x", False),
    ("old", b"HTTP/1.0 200 OK\r\nContent-Length: 1\r\n\r\nx", 200, b"x", False),
    ("old and kept", b"HTTP/1.0 200 OK\r\nConnection: Keep-Alive\r\nContent-Length: 1\r\n\r\nx", 200, b"x", True),
    ("continue", b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nx", 200, b"x", True),
    ("hints", b"HTTP/1.1 103 Early\r\nLink: a\r\n\r\nHTTP/1.1 404 No\r\nContent-Length: 1\r\n\r\nx", 404, b"x", True),
    ("chunks", CHUNKED + b"5\r\nhello\r\n1 ;a=b\r\n!\r\n0\r\n\r\n", 200, b"hello!", True),
    ("trailers", CHUNKED + b"A\r\n0123456789\r\n0\r\nx-a: 1\r\nx-b: 2\r\n\r\n", 200, b"0123456789", True),
    ("chunks alone", CHUNKED + b"0\r\n\r\n", 200, b"", True),
    ("a line end in a chunk", CHUNKED + b"4\r\n\r\n\r\n\r\n0\r\n\r\n", 200, b"\r\n\r\n", True),
    (
        "chunks and a length",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n1\r\nx\r\n0\r\n\r\n",
        200,
        b"x",
        False,
    ),
]


@pytest.mark.parametrize(
    ("data", "status", "body", "keeps_alive"), [each[1:] for each in REPLIES], ids=[r[0] for r in REPLIES]
)
def test_a_reply_is_the_same_however_it_is_cut(data: bytes, status: int, body: bytes, keeps_alive: bool) -> None:
    for pieces in cuts(data):
        reader = read(pieces)
        assert reader.is_complete
        assert (reader.status, reader.body(), reader.keeps_alive) == (status, body, keeps_alive)
        reader.eof()


@pytest.mark.parametrize(("data", "body"), [each[1:4:2] for each in REPLIES if each[2] == 200])
def test_a_success_comes_in_pieces(data: bytes, body: bytes) -> None:
    for pieces in cuts(data):
        reader = read(pieces, in_pieces=True)
        assert reader.is_stream
        assert reader.is_complete
        assert b"".join(reader.pieces) == body
    halves = read([data[:-4]], in_pieces=True)
    assert body.startswith(b"".join(halves.pieces))


def test_what_is_no_success_is_whole() -> None:
    reader = read([b"HTTP/1.1 400 Bad\r\nContent-Length: 3\r\n\r\n", b"a", b"bc"], in_pieces=True)
    assert not reader.is_stream
    assert reader.body() == b"abc"


def test_headers() -> None:
    reader = read(
        [b"HTTP/1.1 200 OK\r\nX-One: \t a b \r\nx-two:\r\nX-ONE: c\r\nx-\xc3\xa9: 1\r\nContent-Length: 0\r\n\r\n"[:47]]
    )
    assert reader.status == 0
    reader = read([b"HTTP/1.1 200 OK\r\nX-One: \t a b \r\nx-two:\r\nX-ONE: \xc3\xa9\r\nContent-Length: 0\r\n\r\n"])
    assert reader.headers == {"x-one": "a b, é", "x-two": "", "content-length": "0"}


def test_the_reply_to_a_head_has_no_body() -> None:
    reader = read([b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n"], has_body=False)
    assert (reader.is_complete, reader.body(), reader.keeps_alive) == (True, b"", True)


@pytest.mark.parametrize("in_pieces", [False, True])
def test_a_body_that_ends_with_its_connection(in_pieces: bool) -> None:
    for pieces in cuts(b"HTTP/1.1 200 OK\r\n\r\nsome text"):
        reader = read(pieces, in_pieces=in_pieces)
        assert not reader.is_complete
        reader.eof()
        assert (reader.is_complete, reader.body(), reader.keeps_alive) == (True, b"some text", False)


@pytest.mark.parametrize("name", ["counted", "large", "chunks", "trailers", "chunks alone"])
def test_a_reply_that_ends_too_early(name: str) -> None:
    data = next(each[1] for each in REPLIES if each[0] == name)
    for end in range(len(data)):
        reader = read([data[:end]])
        assert not reader.is_complete
        with pytest.raises(BadReply, match="the connection ended before the reply"):
            reader.eof()


def test_bytes_behind_a_reply_end_its_connection() -> None:
    for name, data, *_ in REPLIES:
        reader = read([data + b"H"])
        assert not reader.keeps_alive, name
    reader = read([b"HTTP/1.1 204 No\r\n\r\n"])
    with pytest.raises(BadReply, match="more than one reply"):
        reader.receive(memoryview(b"x"))


@pytest.mark.parametrize(
    "data",
    [
        b"HTTP/2 200 OK\r\n\r\n",
        b"HTTP/1.1 20 OK\r\n\r\n",
        b"HTTP/1.1 600 OK\r\n\r\n",
        b"ICY 200 OK\r\n\r\n",
        b"HTTP/1.1 101 Switching\r\nUpgrade: x\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nno colon\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nx : 1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nx: 1\r\n folded\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nx: \0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nx: 1\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1x\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length:\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: \xd9\xa1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1, 2\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1234567890123456789\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n",
        CHUNKED + b"x\r\n",
        CHUNKED + b"-1\r\n",
        CHUNKED + b"\r\n",
        CHUNKED + b"1\n",
        CHUNKED + b"1234567890123456\r\n",
        CHUNKED + b"1\r\nab\r\n",
        CHUNKED + b"1;" + b"a" * 5000,
        b"HTTP/1.1 200 OK\r\nx: " + b"a" * MAX_HEAD_BYTES,
        CHUNKED + b"0\r\nx: " + b"a" * MAX_HEAD_BYTES,
    ],
)
def test_what_is_no_reply(data: bytes) -> None:
    with pytest.raises(BadReply):
        read([data])
    with pytest.raises(BadReply):
        read([data[at : at + 1] for at in range(len(data))] if len(data) < 200 else [data[:100], data[100:]])


@pytest.mark.parametrize(
    "data",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 1001\r\n\r\n",
        CHUNKED + b"3E9\r\n" + b"x" * 1001,
        b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * 1001,
    ],
)
def test_what_is_too_large(data: bytes) -> None:
    with pytest.raises(ReplyTooLarge):
        read([data])
    reader = read([data], in_pieces=True)
    assert reader.is_stream

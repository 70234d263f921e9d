"""Heads: which are ordinary, and what is read from them."""

import pytest

from tensorgate.gateway.wire import http1_head as http_head
from tensorgate.gateway.wire.http1_head import MAX_HEAD_BYTES, RequestHead, may_become_head, read_head, reply_head

ORDINARY = [
    (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", RequestHead("GET", "/", {"host": "x"}, 0, True)),
    (
        b"POST /v2/models/m%20n/infer?a=b HTTP/1.1\r\nhost:x\r\nContent-Length: 12\r\nX-A:  b c\t \r\nX-B:\r\n\r\n",
        RequestHead(
            "POST",
            "/v2/models/m%20n/infer?a=b",
            {"host": "x", "content-length": "12", "x-a": "b c", "x-b": ""},
            12,
            True,
        ),
    ),
    (b"GET / HTTP/1.1\r\nHost: x\r\nConnection: Close\r\n\r\n", None),
    (b"PUT /a HTTP/1.1\r\nCONNECTION: keep-alive\r\nHOST: x\r\nContent-Length: 007\r\n\r\n", None),
    (b"GET / HTTP/1.1\r\nHost: x\r\nX-A: \xc3\xa4\xff\r\n\r\n", None),
    (b"GET / HTTP/1.1\r\nHost: x\r\nX-A: a:b: c\r\n\r\n", None),
    (b"GET / HTTP/1.1\r\n" + b"".join(b"x-%d: y\r\n" % n for n in range(63)) + b"Host: x\r\n\r\n", None),
]


@pytest.mark.parametrize(("data", "head"), ORDINARY)
def test_ordinary_heads(data: bytes, head: RequestHead | None) -> None:
    found = read_head(data)
    assert found is not None
    assert head is None or found == head
    assert read_head(data) == found


def test_what_is_read_from_heads() -> None:
    (_, _, closing, leading, odd, colons, _) = [read_head(data) for data, _ in ORDINARY]
    assert closing
    assert not closing.keep_alive
    assert leading
    assert (leading.method, leading.length, leading.keep_alive) == ("PUT", 7, True)
    assert odd
    assert odd.headers["x-a"] == "ä\udcff"
    assert colons
    assert colons.headers["x-a"] == "a:b: c"


def lines(*extra: bytes, first: bytes = b"POST /a HTTP/1.1", host: bytes = b"Host: x") -> bytes:
    return b"".join(line + b"\r\n" for line in (first, host, *extra, b""))


NOT_ORDINARY = [
    lines(first=b"POST /a HTTP/1.0"),
    lines(first=b"POST /a HTTP/1.1 "),
    lines(first=b"POST  /a HTTP/1.1"),
    lines(first=b"POST /a  HTTP/1.1"),
    lines(first=b" POST /a HTTP/1.1"),
    lines(first=b"\r\nPOST /a HTTP/1.1"),
    lines(first=b"POST /a\t HTTP/1.1"),
    lines(first=b"POST /a HTTP/2.0"),
    lines(first=b"POST /a http/1.1"),
    lines(first=b"POST /a"),
    lines(first=b"post /a HTTP/1.1"),
    lines(first=b"FETCH /a HTTP/1.1"),
    lines(first=b"CONNECT a:1 HTTP/1.1"),
    lines(first=b"OPTIONS * HTTP/1.1"),
    lines(first=b"POST http://x/a HTTP/1.1"),
    lines(first=b"POST //a HTTP/1.1"),
    lines(first=b"POST /a#b HTTP/1.1"),
    lines(first=b"POST /\xc3\xa4 HTTP/1.1"),
    lines(first=b"POST /a\0 HTTP/1.1"),
    lines(host=b"X: y"),
    lines(b"Host: x"),
    lines(b"Content-Length: 3", b"Content-Length: 3"),
    lines(b"Content-Length: 3", b"content-length: 4"),
    lines(b"Content-Length: 3, 3"),
    lines(b"Content-Length: +3"),
    lines(b"Content-Length: -3"),
    lines(b"Content-Length: 0x3"),
    lines(b"Content-Length: 1_0"),
    lines(b"Content-Length: 3 3"),
    lines(b"Content-Length:"),
    lines("Content-Length: ٣".encode()),
    lines(b"Content-Length: 1" + b"0" * 15),
    lines(b"Content-Length : 3"),
    lines(b"Transfer-Encoding: chunked"),
    lines(b"Transfer-Encoding: identity"),
    lines(b"transfer-encoding: chunked", b"Content-Length: 3"),
    lines(b"Transfer-Encoding:\tchunked"),
    lines(b"Expect: 100-continue"),
    lines(b"Upgrade: websocket"),
    lines(b"Connection: upgrade"),
    lines(b"Connection: close, keep-alive"),
    lines(b"Connection: close", b"Connection: close"),
    lines(b"Proxy-Connection: close"),
    lines(b"Sec-WebSocket-Key1: x"),
    lines(b"X: a", b"x: b"),
    lines(b"X: a", b" b"),
    lines(b"X: a", b"\tb"),
    lines(b" X: a"),
    lines(b"X : a"),
    lines(b"X"),
    lines(b": a"),
    lines(b"X\0: a"),
    lines(b"X: a\0"),
    lines(b"X: a\x7f"),
    lines(b"X: a\x0b"),
    lines(b"X: a\rb"),
    lines(b"X: a\nb"),
    lines(b"X: a\nTransfer-Encoding: chunked"),
    lines(b"X: a\rTransfer-Encoding: chunked"),
    lines(b"X(Y): a"),
    lines(b"\xc3\xa4: a"),
    lines(b"X: a").replace(b"\r\n", b"\n"),
    lines(b"X: a")[:-2],
    lines(b"X: a") + b"\r\n",
    lines(*(b"x-%d: y" % n for n in range(64))),
    lines(b"X: " + b"a" * MAX_HEAD_BYTES),
]


@pytest.mark.parametrize("data", NOT_ORDINARY)
def test_everything_else_is_not(data: bytes) -> None:
    assert read_head(data) is None


@pytest.mark.parametrize(("data", "_"), ORDINARY)
def test_every_part_of_an_ordinary_head_may_become_one(data: bytes, _: object) -> None:
    assert all(may_become_head(data[:end]) for end in range(len(data) - 1))


@pytest.mark.parametrize(
    "part",
    [
        b"\x16\x03\x01",
        b"SSH-2.0-x",
        b"get ",
        b"FETCH ",
        b"GET x",
        b"GET //",
        b"GET / HTTQ",
        b"GET / HTTP/1.1\n",
        b"GET / HTTP/1.1\r\n ",
        b"GET / HTTP/1.1\r\nA: b\n",
        b"GET / HTTP/1.1\r\nA: b\r\n c",
        b"GET / HTTP/1.1\r\nA: b\r\nC\r",
        b"GET / HTTP/1.1\r\nA: b\0",
        b"GET / HTTP/1.1\r\nA: b\rc",
        b"\r\n",
        b"GET /" + b"a" * MAX_HEAD_BYTES,
    ],
)
def test_parts_that_cannot(part: bytes) -> None:
    assert not may_become_head(part)


def test_heads_of_replies() -> None:
    head = reply_head(404, (("Content-Type", "text/plain"), ("X-A", "ä")))
    expected = "HTTP/1.1 404 Not Found\r\nContent-Type: text/plain\r\nX-A: ä\r\nServer: tensorgate\r\n"
    assert (head.data, head.closes) == (expected.encode(), False)
    assert reply_head(200, ()).data == (
        b"HTTP/1.1 200 OK\r\nContent-Type: application/octet-stream\r\nServer: tensorgate\r\n"
    )
    assert reply_head(299, (("Connection", "Close"),)).closes
    assert reply_head(299, ()).data.startswith(b"HTTP/1.1 299 \r\n")
    assert not reply_head(200, (("X", "close"), ("Connection", "keep-alive"))).closes


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("X", "a\r\nSet-Cookie: b"),
        ("X", "a\nb"),
        ("X", "a\rb"),
        ("X", "a\0"),
        ("X: a\r\nY", "b"),
        ("X Y", "b"),
        ("", "b"),
        ("Content-Length", "3"),
        ("transfer-encoding", "chunked"),
    ],
)
def test_a_reply_cannot_add_headers_to_itself(name: str, value: str) -> None:
    with pytest.raises(ValueError, match="must not have the header"):
        reply_head(200, ((name, value),))


OWN = [
    (b"X-Request-Id: 1", {"x-request-id": "1"}),
    (b"x-request-id:\xc3\xa4 \t\r\nTraceparent: 00-a-b-01\r\nTRACESTATE: c=d", {"x-request-id": "\u00e4"}),
    (b"x-request-id: 1\r\nX-Request-ID: 2", None),
    (b"x-request-id : 1", None),
    (b" x-request-id: 1", None),
    (b"x-request-id", None),
    (b"x-request-id: \x00", None),
    (b"x-request-id: a\nb", None),
]


@pytest.mark.parametrize(("lines", "headers"), OWN)
@pytest.mark.parametrize("first", [True, False])
def test_lines_that_differ_each_time_are_read_apart(lines: bytes, headers: dict[str, str] | None, first: bool) -> None:
    """And the same is read as if they were not."""
    others = b"Host: x\r\nContent-Length: 3\r\n"
    fields = lines + b"\r\n" + others if first else others + lines + b"\r\n"
    for number in range(3):
        found = read_head(b"POST /%d HTTP/1.1\r\n%s\r\n" % (number, fields))
        if headers is None:
            assert found is None
        else:
            assert found is not None
            assert found.headers.items() >= {"host": "x", "content-length": "3", **headers}.items()
            assert (found.target, found.length) == (f"/{number}", 3)
    assert read_head(b"POST / HTTP/1.1\r\n%s\r\n" % lines) is None  # no host


def test_only_so_many_heads_are_remembered() -> None:
    for number in range(3000):
        assert read_head(b"GET /%d HTTP/1.1\r\nHost: x\r\n\r\n" % number) is not None
    assert len(http_head.KNOWN_HEADS) <= 1024

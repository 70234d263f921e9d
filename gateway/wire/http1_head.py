"""Heads of HTTP/1.1 messages: ordinary requests are read, replies are written.

A head is *ordinary* if there is only one way to read it. `read_head` knows nothing else: no line end but CRLF, no
folded line, no repeated name, nothing about the body but one Content-Length in digits. What it refuses is not
necessarily wrong; it is for a complete parser to judge. That keeps two parsers on one port safe: whatever they could
disagree about is only ever read by one of them. Source: RFC 9112, sections 2.2 to 6.3.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from http import HTTPStatus
from typing import Final

SERVER: Final = "tensorgate"
MAX_HEAD_BYTES: Final = 8 << 10
_MAX_HEADERS: Final = 64
_REMEMBERED_BYTES: Final = 1 << 10
_MAX_REMEMBERED: Final = 1024

_METHOD: Final = rb"(?:GET|HEAD|POST|PUT|DELETE|PATCH|OPTIONS)"
_TARGET: Final = rb"/(?:[\w\-.~!$&'()*+,;=:@%?][\w\-.~!$&'()*+,;=:@%?/]*+)?"
_NAME: Final = rb"[\w!#$%&'*+\-.^`|~]++"
_VALUE: Final = rb"[\t\x20-\x7e\x80-\xff]*+"
_LINE: Final = rb"(" + _METHOD + rb") (" + _TARGET + rb") HTTP/1\.1\r\n"
_FIELDS: Final = rb"(?:" + _NAME + rb":" + _VALUE + rb"\r\n)"
_HEAD: Final = re.compile(_LINE + rb"(" + _FIELDS + rb"{1,%d}+)\r\n" % _MAX_HEADERS)
_UNFINISHED: Final = re.compile(
    rb"[A-Z]{0,7}"
    rb"|" + _METHOD + rb" (?:" + _TARGET + rb"(?: H?T?T?P?/?1?\.?1?\r?)?)?"
    rb"|" + _LINE + _FIELDS + rb"{0,%d}+(?:\r|" % _MAX_HEADERS + _NAME + rb"(?::" + _VALUE + rb"\r?)?)?"
)
_OWN: Final = (
    rb"[xX]-[rR][eE][qQ][uU][eE][sS][tT]-[iI][dD]|[tT][rR][aA][cC][eE](?:[pP][aA][rR][eE][nN][tT]|[sS][tT][aA][tT][eE])"
)
_OWN_LINE: Final = re.compile(rb"\r\n(" + _OWN + rb"):(" + _VALUE + rb")(?=\r\n)")
"""Lines that differ with each request, and would make its head unlike all others."""
_LENGTH: Final = re.compile(r"[0-9]{1,15}")
_NOT_ORDINARY: Final = frozenset(
    ("transfer-encoding", "expect", "upgrade", "proxy-connection", "http2-settings", "sec-websocket-key1")
)


@dataclass(slots=True)
class RequestHead:
    """An ordinary request without its body, which has `length` bytes. Header names are lower-case."""

    method: str
    target: str
    headers: Mapping[str, str]
    length: int
    keep_alive: bool


def may_become_head(part: bytes) -> bool:
    """Whether these bytes, which end before their empty line, may still become an ordinary head."""
    return len(part) <= MAX_HEAD_BYTES and _UNFINISHED.fullmatch(part) is not None


def read_head(data: bytes) -> RequestHead | None:
    """The bytes up to and with the empty line -> head, or None if they are not ordinary.

    A short one is put into `KNOWN_HEADS`, without the lines that differ each time.
    """
    if len(data) > _REMEMBERED_BYTES:
        return _read_head(data) if len(data) <= MAX_HEAD_BYTES else None
    parts = _OWN_LINE.split(data)
    return _remember(data) if len(parts) == 1 else _with_own(parts)


def _remember(data: bytes) -> RequestHead | None:
    head = KNOWN_HEADS.get(data)
    if head is None and (head := _read_head(data)) is not None:
        if len(KNOWN_HEADS) >= _MAX_REMEMBERED:
            del KNOWN_HEADS[next(iter(KNOWN_HEADS))]
        KNOWN_HEADS[data] = head
    return head


def _with_own(parts: list[bytes]) -> RequestHead | None:
    """A head with lines that differ each time. `parts` are the bytes between them, and the name and value of each."""
    head = _remember(b"".join(parts[::3]))
    if head is None:
        return None
    headers = dict(head.headers)
    for name, value in zip(parts[1::3], parts[2::3], strict=True):
        headers[name.decode().lower()] = value.decode("utf-8", "surrogateescape").strip(" \t")
    if len(headers) < len(head.headers) + len(parts) // 3:
        return None
    return RequestHead(head.method, head.target, headers, head.length, head.keep_alive)


def _read_head(data: bytes) -> RequestHead | None:
    match = _HEAD.fullmatch(data)
    if match is None:
        return None
    method, target, fields = match.groups()
    headers = {}
    lines = fields.decode("utf-8", "surrogateescape").split("\r\n")
    lines.pop()
    for line in lines:
        name, _, value = line.partition(":")
        headers[name.lower()] = value.strip(" \t")
    length = headers.get("content-length", "0")
    connection = headers.get("connection", "keep-alive").lower()
    if (
        len(headers) < len(lines)
        or "host" not in headers
        or not _NOT_ORDINARY.isdisjoint(headers)
        or not _LENGTH.fullmatch(length)
        or connection not in ("keep-alive", "close")
    ):
        return None
    return RequestHead(method.decode(), target.decode(), headers, int(length), connection == "keep-alive")


KNOWN_HEADS: Final[dict[bytes, RequestHead]] = {}
"""What `read_head` has read of late: clients repeat their heads, so it is asked only for what is not here. Never stale:
a head of HTTP/1.1 says the same whenever and wherever it comes, and nobody writes into one.
"""


# ------------------------------------------------------------------------------------------------------------- replies


@dataclass(frozen=True, slots=True)
class ReplyHead:
    """Status line and headers, without Date, framing and the empty line."""

    data: bytes
    closes: bool
    """The reply is the connection's last."""


# Never stale: made of nothing but its arguments.
@lru_cache(maxsize=256)
def reply_head(status: int, headers: tuple[tuple[str, str], ...]) -> ReplyHead:
    """The status line and a reply's own headers. Raises ValueError for what would not stay one header, or frames it."""
    lines = [f"HTTP/1.1 {status} {_PHRASES.get(status, '')}"]
    for name, value in (*headers, *default_headers(headers)):
        if not _REPLY_NAME.fullmatch(name) or not _REPLY_VALUE.fullmatch(value) or name.lower() in _FRAMING:
            raise ValueError(f"a reply must not have the header {name!r}: {value!r}")
        lines.append(f"{name}: {value}")
    closes = any(name.lower() == "connection" and value.lower() == "close" for name, value in headers)
    return ReplyHead("".join(f"{line}\r\n" for line in lines).encode("utf-8", "surrogateescape"), closes)


def default_headers(headers: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """The default headers that these do not have."""
    names = {name.lower() for name, _ in headers}
    return [(name, value) for name, value in _DEFAULTS if name.lower() not in names]


_FRAMING: Final = frozenset(("content-length", "transfer-encoding"))
_REPLY_NAME: Final = re.compile(_NAME.decode(), re.ASCII)
_REPLY_VALUE: Final = re.compile("[^\0\r\n]*")
_DEFAULTS: Final = (("Content-Type", "application/octet-stream"), ("Server", SERVER))
_PHRASES: Final = {status.value: status.phrase for status in HTTPStatus}

"""Header blocks of HTTP/2: written without a table that changes, read with one or without.

An end that announces a table of no bytes gets blocks that always mean the same, and remembers what they mean
(`decode`). A server cannot ask for that: its clients send headers before they have its settings. Source: RFC 7541.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from functools import cache, lru_cache
from typing import Final

_STATIC: Final = (
    *[(":authority", ""), (":method", "GET"), (":method", "POST"), (":path", "/"), (":path", "/index.html")],
    *[(":scheme", "http"), (":scheme", "https")],
    *[(":status", status) for status in ("200", "204", "206", "304", "400", "404", "500")],
    *[("accept-charset", ""), ("accept-encoding", "gzip, deflate"), ("accept-language", ""), ("accept-ranges", "")],
    *[("accept", ""), ("access-control-allow-origin", ""), ("age", ""), ("allow", ""), ("authorization", "")],
    *[("cache-control", ""), ("content-disposition", ""), ("content-encoding", ""), ("content-language", "")],
    *[("content-length", ""), ("content-location", ""), ("content-range", ""), ("content-type", ""), ("cookie", "")],
    *[("date", ""), ("etag", ""), ("expect", ""), ("expires", ""), ("from", ""), ("host", ""), ("if-match", "")],
    *[("if-modified-since", ""), ("if-none-match", ""), ("if-range", ""), ("if-unmodified-since", "")],
    *[("last-modified", ""), ("link", ""), ("location", ""), ("max-forwards", ""), ("proxy-authenticate", "")],
    *[("proxy-authorization", ""), ("range", ""), ("referer", ""), ("refresh", ""), ("retry-after", "")],
    *[("server", ""), ("set-cookie", ""), ("strict-transport-security", ""), ("transfer-encoding", "")],
    *[("user-agent", ""), ("vary", ""), ("via", ""), ("www-authenticate", "")],
)
_STATIC_ENTRIES: Final = len(_STATIC)
_LENGTHS: Final = bytes.fromhex(
    "0d171c1c1c1c1c1c1c181e1c1c1e1c1c1c1c1c1c1c1c1e1c1c1c1c1c1c1c1c1c060a0a0c0d06080b0a0a080b080606060505050606060606"
    "060607080f060c0a0d06070707070707070707070707070707070707070707070807080d130d0e060f050605060506060605070706060605"
    "06070605050607070707070f0b0e0d1c14161414161616171617171717171817181816171817171717151617161717181615141616171715"
    "1716161815161717151516151716171714161616171616171a1a1413161716191a1a1a1b1b1a181913151a1b1b1a1b1815151a1a1c1b1b1b"
    "14181415161515171616191918181a171a1b1a1a1b1b1b1b1b1c1b1b1b1b1b1a1e"
)
"""How many bits each octet's code has in a text of fewer bits, and the end's. The codes count up, the short ones
first."""
_END: Final = 256
_MAX_DIGITS: Final = 5
_REMEMBERED_BYTES: Final = 512
_NO_END: Final = 1 << 62


class BadBlock(Exception):
    """No header block, or one that refers to what is in no table."""


def encode(headers: Iterable[tuple[str, str]]) -> bytes:
    """A block that leaves no trace in a table. Names are in lower case, all is ASCII."""
    block = bytearray()
    for name, value in headers:
        block += b"\0" + _text(name) + _text(value)
    return bytes(block)


def _text(text: str) -> bytes:
    return _number(len(text)) + text.encode("ascii")


def _number(value: int) -> bytes:
    """With a prefix of 7 bits."""
    if value < 0x7F:
        return bytes([value])
    encoded = bytearray([0x7F])
    value -= 0x7F
    while value >= 0x80:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


TABLE_BYTES: Final = 4096
"""The size of a reader's table before any settings."""
NO_TABLE: Final = b"\x20"
"""A table size update to 0, which a block begins with."""
_ENTRY_BYTES: Final = 32
"""What an entry counts beside its texts. Source: RFC 7541, 4.1."""


class Decoder:
    """Reads the blocks of one connection, each of which may change what later ones mean.

    Of a block's headers `max_bytes` are kept, each counting 32 more than its texts.
    """

    __slots__ = ("_bytes", "_max_bytes", "_max_table", "_table", "_table_bytes", "changes")

    def __init__(self, max_bytes: int, table_bytes: int = TABLE_BYTES) -> None:
        self._max_bytes = max_bytes
        self._table: deque[tuple[str, str]] = deque()
        self._bytes = 0
        self._table_bytes = self._max_table = table_bytes
        self.changes = 0
        """Counts what any block has done to the table, be it of headers, trailers, or a stream that is refused or over:
        the same bytes mean the same only while this stays.
        """

    def read(self, block: bytes) -> list[tuple[str, str]] | None:
        """A block's headers in order, None if they are too large; the table is right all the same. Raises BadBlock."""
        found: list[tuple[str, str]] = []
        at, left = 0, self._max_bytes
        end = len(block)
        has_begun = False
        while at < end:
            first = block[at]
            if first & 0x80:
                index, at = (first & 0x7F, at + 1) if first != 0xFF else _read_number(block, at, 0x7F)
                entry = self._entry(index)
            elif first & 0xE0 == 0x20:
                size, at = _read_number(block, at, 0x1F)
                if size > self._max_table or has_begun:
                    raise BadBlock("a table of another size")
                self._table_bytes = size
                self._shrink(size)
                continue
            else:
                index, at = _read_number(block, at, 0x3F if first & 0x40 else 0x0F)
                name, at = (self._entry(index)[0], at) if index else _read_text(block, at)
                value, at = _read_text(block, at)
                entry = (name, value)
                if first & 0x40:
                    self._insert(entry)
            has_begun = True
            left -= len(entry[0]) + len(entry[1]) + _ENTRY_BYTES
            if left >= 0:
                found.append(entry)
        return found if left >= 0 else None

    def _entry(self, index: int) -> tuple[str, str]:
        if 0 < index <= _STATIC_ENTRIES:
            return _STATIC[index - 1]
        place = index - _STATIC_ENTRIES - 1
        if not 0 <= place < len(self._table):
            raise BadBlock("an entry that is not in the table")
        return self._table[place]

    def _insert(self, entry: tuple[str, str]) -> None:
        size = len(entry[0]) + len(entry[1]) + _ENTRY_BYTES
        self._shrink(self._table_bytes - size)
        if size <= self._table_bytes:
            self._table.appendleft(entry)
            self._bytes += size

    def _shrink(self, max_bytes: int) -> None:
        """Evict the oldest entries until the others have at most `max_bytes`."""
        self.changes += 1
        while self._bytes > max_bytes and self._table:
            name, value = self._table.pop()
            self._bytes -= len(name) + len(value) + _ENTRY_BYTES


def decode(block: bytes) -> Mapping[str, str]:
    """The headers of a block without a table, the last of those that are repeated. Raises BadBlock."""
    return _remembered(block) if len(block) <= _REMEMBERED_BYTES else _decode(block)


def _decode(block: bytes) -> Mapping[str, str]:
    return dict(Decoder(_NO_END, 0).read(block) or ())


_remembered: Final = lru_cache(maxsize=256)(_decode)  # never stale: without a table a block always means the same


def _read_number(block: bytes, at: int, mask: int) -> tuple[int, int]:
    """Read a number whose prefix has the bits of `mask`. -> the number, and where it ends. Raises BadBlock."""
    if at >= len(block):
        raise BadBlock("it ends too soon")
    value = block[at] & mask
    at += 1
    if value < mask:
        return value, at
    for shift in range(0, 7 * _MAX_DIGITS, 7):
        if at >= len(block):
            break
        byte = block[at]
        at += 1
        value += (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise BadBlock("a number without an end")


def _read_text(block: bytes, at: int) -> tuple[str, int]:
    is_coded = at < len(block) and block[at] >= 0x80
    size, at = _read_number(block, at, 0x7F)
    end = at + size
    if end > len(block):
        raise BadBlock("it ends too soon")
    text = block[at:end]
    return (_decoded(text) if is_coded else text).decode("latin-1"), end


def _codes() -> dict[tuple[int, int], int]:
    """(bits, code) -> octet"""
    codes: dict[tuple[int, int], int] = {}
    code = before = 0
    for bits, octet in sorted((bits, octet) for octet, bits in enumerate(_LENGTHS)):
        code <<= bits - before
        codes[bits, code] = octet
        code += 1
        before = bits
    return codes


_START: Final = (0, 0)
_MAX_PADDING: Final = 7

_State = tuple[int, int]
"""The bits of a code that have come so far, and how many they are."""


# Never stale: the code is the specification's.
@cache
def _steps() -> dict[_State, list[tuple[_State | None, bytes]]]:
    """For each state, what each octet's half does: the next state, None for what no text has, and what comes out."""
    codes = _codes()
    inner = {(bits - n, code >> n) for bits, code in codes for n in range(1, bits + 1)}

    def step(state: _State, half: int) -> tuple[_State | None, bytes]:
        bits, code = state
        out = b""
        for place in (3, 2, 1, 0):
            bits, code = bits + 1, code << 1 | (half >> place & 1)
            octet = codes.get((bits, code))
            if octet == _END:
                return None, b""
            if octet is not None:
                out += bytes([octet])
                bits = code = 0
        return (bits, code), out

    return {state: [step(state, half) for half in range(16)] for state in inner}


class _Rows(dict[_State, list[tuple[_State | None, bytes]]]):
    """For each state, what each octet does: made of the steps of its halves as soon as a text comes by. Never stale."""

    def __missing__(self, state: _State) -> list[tuple[_State | None, bytes]]:
        steps = _steps()
        row: list[tuple[_State | None, bytes]] = []
        for octet in range(256):
            middle, first = steps[state][octet >> 4]
            following, second = (None, b"") if middle is None else steps[middle][octet & 0x0F]
            row.append((following, first + second))
        self[state] = row
        return row


_rows: Final = _Rows()


def _decoded(text: bytes) -> bytes:
    state = _START
    found = []
    for octet in text:
        following, out = _rows[state][octet]
        if following is None:
            raise BadBlock("a text with an end within")
        state = following
        if out:
            found.append(out)
    bits, code = state
    if bits > _MAX_PADDING or code != (1 << bits) - 1:
        raise BadBlock("a text that is not padded")
    return b"".join(found)

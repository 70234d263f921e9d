"""Header blocks of HTTP/2, without a table that changes: what a client sends, and what it reads.

The client announces a table of no bytes, so a server's blocks say the same whenever they come, and what a block said is
remembered. Source: RFC 7541.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
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
_MOST_DIGITS: Final = 5
_REMEMBERED_BYTES: Final = 512


class BadBlock(Exception):
    """No header block, or one that refers to a table that this client does not keep."""


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


def decode(block: bytes) -> Mapping[str, str]:
    """What a block says; of headers that come again, the last one. Raises BadBlock."""
    return _remembered(block) if len(block) <= _REMEMBERED_BYTES else _decode(block)


def _decode(block: bytes) -> Mapping[str, str]:
    found: dict[str, str] = {}
    at = 0
    while at < len(block):
        first = block[at]
        if first & 0x80:
            index, at = _read_number(block, at, 0x7F)
            name, value = _entry(index)
        elif first & 0xE0 == 0x20:
            size, at = _read_number(block, at, 0x1F)
            if size:
                raise BadBlock("a table of another size")
            continue
        else:
            index, at = _read_number(block, at, 0x3F if first & 0x40 else 0x0F)
            name, at = (_entry(index)[0], at) if index else _read_text(block, at)
            value, at = _read_text(block, at)
        found[name] = value
    return found


_remembered: Final = lru_cache(maxsize=256)(_decode)


def _entry(index: int) -> tuple[str, str]:
    if not 0 < index <= len(_STATIC):
        raise BadBlock("an entry that is not in the table")
    return _STATIC[index - 1]


def _read_number(block: bytes, at: int, most: int) -> tuple[int, int]:
    """A number whose prefix has the bits of `most` -> it, and where it ends."""
    if at >= len(block):
        raise BadBlock("it ends too soon")
    value = block[at] & most
    at += 1
    if value < most:
        return value, at
    for shift in range(0, 7 * _MOST_DIGITS, 7):
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


_CODES: Final = _codes()
_MOST_PADDING: Final = 7


def _decoded(text: bytes) -> bytes:
    found = bytearray()
    bits = code = 0
    for byte in text:
        for place in range(7, -1, -1):
            bits, code = bits + 1, code << 1 | (byte >> place & 1)
            octet = _CODES.get((bits, code))
            if octet is not None:
                if octet == _END:
                    raise BadBlock("a text with an end within")
                found.append(octet)
                bits = code = 0
    if bits > _MOST_PADDING or code != (1 << bits) - 1:
        raise BadBlock("a text that is not padded")
    return bytes(found)

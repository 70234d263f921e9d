"""Protobuf messages, walked by hand: fields, varints, and what a message is without one of its fields.

Source: the protobuf encoding specification; where it is silent (how long a varint may be, how deep groups may nest),
upb, protobuf's own parser, with which this agrees on every message.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from google.protobuf.message import DecodeError

from tensorgate.adapters.protobuf.messages import message
from tensorgate.gateway.contract.call import Buffer
from tensorgate.gateway.contract.errors import InvalidArgument

_FIRST_TEXT: Final = 1 << 3 | 2
_LONG: Final = 1 << 7
"""What is shorter has a size of one byte."""
_FIXED64: Final = 1
_BYTES: Final = 2
_TAG_BYTES: Final = 5
_VARINT_BYTES: Final = 10
_MAX_BYTES: Final = 2**31 - 1
_MAX_GROUPS: Final = 100
LENGTH_BYTES: Final = 5
"""As many at most say how long something is."""
MAX_FIELDS: Final = 1 << 14
"""No model has as many tensors; and each field costs a microsecond, and more memory than it has bytes."""
MAX_ELEMENTS: Final = 1 << 20
"""Strings, or numbers that are not packed, of all inputs together."""
MAX_HEAD_BYTES: Final = 1 << 20
"""Of a message, apart from its tensors' data."""


def malformed(kind: str) -> InvalidArgument:
    return InvalidArgument(f"failed to parse the request: it is no valid {kind}")


def too_large() -> InvalidArgument:
    return InvalidArgument(f"failed to parse the request: more than {MAX_HEAD_BYTES} bytes of it are no tensor data")


def parse(kind: str, body: Buffer) -> Any:
    """Bytes -> the message of that full name. Raises InvalidArgument."""
    try:
        return message(kind).FromString(body)
    except DecodeError:
        raise malformed(kind) from None


def fields(
    body: Buffer, at: int, end: int, kind: str, max_fields: int = MAX_FIELDS
) -> Iterator[tuple[int, int, int, int]]:
    """The fields that have a length, and stand in no group: tag, where they begin, where their data begins, and ends.

    Raises InvalidArgument.
    """
    groups: list[int] = []
    for _ in range(max_fields):
        if at >= end:
            break
        begin = at
        tag, at = read_varint(body, at, end, _TAG_BYTES, kind)
        if tag >> 32 or (tag < 8 and not groups):  # upb minds field 0 outside of groups only
            raise malformed(kind)
        if tag & 7 != _BYTES:
            at = _skip(body, at, end, tag, groups, kind)
            continue
        size, data = read_varint(body, at, end, LENGTH_BYTES, kind)
        at = data + size
        if size > _MAX_BYTES or at > end:
            raise malformed(kind)
        if not groups:
            yield tag, begin, data, at
    if at < end:
        raise InvalidArgument(f"failed to parse the request: it has more than {max_fields} fields")
    if groups:
        raise malformed(kind)


def first_text(begun: bytes) -> str | None:
    """Field 1 of a message that begins with it, and has this field as a short text; None for any other."""
    size = begun[1] if len(begun) > 1 and begun[0] == _FIRST_TEXT else 0
    if not 0 < size < _LONG or len(begun) < 2 + size:
        return None
    return begun[2 : 2 + size].decode(errors="replace")


def cut_out(body: Buffer, wanted: int, kind: str) -> tuple[bytes, list[memoryview]]:
    """A message -> the same without the fields of the tag `wanted`, and the data of these, as views of it.

    Raises InvalidArgument.
    """
    view = memoryview(body)
    rest: list[memoryview] = []
    found: list[memoryview] = []
    kept = 0
    for tag, begin, data, end in fields(body, 0, len(body), kind):
        if tag == wanted:
            rest.append(view[kept:begin])
            found.append(view[data:end])
            kept = end
    rest.append(view[kept:])
    return b"".join(rest), found


def _skip(body: Buffer, at: int, end: int, tag: int, groups: list[int], kind: str) -> int:
    """Where the field ends that has this tag; `groups` are the numbers of those that are open."""
    match tag & 7:
        case 0:
            return read_varint(body, at, end, _VARINT_BYTES, kind)[1]
        case 1 | 5 as width:
            at += 8 if width == _FIXED64 else 4
        case 3 if len(groups) < _MAX_GROUPS:
            groups.append(tag >> 3)
        case 4 if groups and groups[-1] == tag >> 3:
            groups.pop()
        case _:
            raise malformed(kind)
    if at > end:
        raise malformed(kind)
    return at


def read_varint(body: Buffer, at: int, end: int, max_bytes: int, kind: str) -> tuple[int, int]:
    """A number of at most so many bytes -> it, and where it ends."""
    value = shift = 0
    for place in range(at, min(end, at + max_bytes)):
        byte = body[place]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, place + 1
        shift += 7
    raise malformed(kind)


def varint(number: int) -> bytes:
    """A length in the fewest bytes."""
    if number < 0x80:
        return _ONE_BYTE[number]
    encoded = bytearray()
    while number >= 0x80:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)


_ONE_BYTE: Final = [bytes([number]) for number in range(0x80)]

"""Protobuf's wire format, as far as it is walked by hand: the raw data of large messages, which protobuf would copy.

A large tensor on its way in is copied once on our side of the socket, where grpc joins what it received to one `bytes`;
`split` cuts it out as a view of that, the array is a view of the view (BOOL, BYTES and typed contents are copied once
more), and the next copy is the batch's, or the device's. On its way out it is copied once, too: the transport joins
the parts of a reply, which are views of the answer's arrays.

Source: the protobuf encoding specification; where it is silent (how long a varint may be, how deep groups may nest),
upb, protobuf's own parser, with which this agrees on every message.
"""

from __future__ import annotations

from typing import Any, Final

from google.protobuf.message import DecodeError

from adapters.pb import message
from gateway.errors import InvalidArgument
from gateway.ports import Buffer

_RAW_CONTENTS: Final = 7 << 3 | 2
"""The tag of ModelInferRequest.raw_input_contents."""
_FIXED64: Final = 1
_BYTES: Final = 2
_TAG_BYTES: Final = 5
_LENGTH_BYTES: Final = 5
_VARINT_BYTES: Final = 10
_MOST_BYTES: Final = 2**31 - 1
_MOST_GROUPS: Final = 100
MOST_FIELDS: Final = 1 << 14
"""No model has as many tensors; and each field costs a microsecond, and more memory than it has bytes."""


def malformed(kind: str) -> InvalidArgument:
    return InvalidArgument(f"failed to parse the request: it is no valid {kind}")


def parse(kind: str, body: Buffer) -> Any:
    """Bytes -> the message of that full name. Raises InvalidArgument."""
    try:
        return message(kind).FromString(body)
    except DecodeError:
        raise malformed(kind) from None


def split(body: Buffer, kind: str) -> tuple[bytes, list[memoryview]]:
    """A ModelInferRequest -> the same without raw_input_contents, and these, as views of it.

    Raises InvalidArgument for what upb refuses, as far as it can be seen from outside; the fields are left to it.
    """
    view, end = memoryview(body), len(body)
    head: list[memoryview] = []
    raw: list[memoryview] = []
    groups: list[int] = []
    at = kept = fields = 0
    while at < end:
        start = at
        tag, at = _varint(body, at, end, _TAG_BYTES, kind)
        if tag >> 3 == 0 or tag >> 32:
            raise malformed(kind)
        if tag & 7 != _BYTES:
            at = _skip(body, at, end, tag, groups, kind)
        else:
            size, at = _varint(body, at, end, _LENGTH_BYTES, kind)
            at += size
            if size > _MOST_BYTES or at > end:
                raise malformed(kind)
            if tag == _RAW_CONTENTS and not groups:
                head.append(view[kept:start])
                raw.append(view[at - size : at])
                kept = at
        fields += 1
        if fields > MOST_FIELDS:
            raise InvalidArgument(f"failed to parse the request: it has more than {MOST_FIELDS} fields")
    if groups:
        raise malformed(kind)
    head.append(view[kept:])
    return b"".join(head), raw


def _skip(body: Buffer, at: int, end: int, tag: int, groups: list[int], kind: str) -> int:
    """Where the field ends that has this tag; `groups` are the numbers of those that are open."""
    match tag & 7:
        case 0:
            return _varint(body, at, end, _VARINT_BYTES, kind)[1]
        case 1 | 5 as width:
            at += 8 if width == _FIXED64 else 4
        case 3 if len(groups) < _MOST_GROUPS:
            groups.append(tag >> 3)
        case 4 if groups and groups[-1] == tag >> 3:
            groups.pop()
        case _:
            raise malformed(kind)
    if at > end:
        raise malformed(kind)
    return at


def _varint(body: Buffer, at: int, end: int, most: int, kind: str) -> tuple[int, int]:
    """A number of at most so many bytes -> it, and where it ends."""
    value = shift = 0
    for place in range(at, min(end, at + most)):
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

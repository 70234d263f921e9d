"""The numbers of large messages, cut out by hand: protobuf would copy them, one by one into Python's objects.

What a PredictRequest says is read by protobuf; only the data of its tensors is cut out before, as views of the body.
A tensor's bytes and its floats are then arrays without a copy. Whatever is unusual about a message (fields in pieces,
twice, out of order) is read as protobuf reads it, or the message is left to protobuf.
"""

from __future__ import annotations

from typing import Final

from adapters.tf_serving.proto_types import CONTENT, STRINGS, WIDTHS
from adapters.wire_format import MOST_ELEMENTS, MOST_FIELDS, MOST_HEAD_BYTES, fields, too_large, varint
from gateway.errors import InvalidArgument
from gateway.ports import Buffer, NeedsThread

KIND: Final = "tensorflow.serving.PredictRequest"
_INPUTS: Final = 2 << 3 | 2
_KEY: Final = 1 << 3 | 2
_VALUE: Final = 2 << 3 | 2
_CUT: Final = frozenset({number << 3 | 2 for number in (CONTENT, *WIDTHS)})
_STRING: Final = STRINGS << 3 | 2


class Cut:
    """What was cut out of one tensor: its content, runs of numbers by field, and strings."""

    __slots__ = ("content", "numbers", "strings")

    def __init__(self) -> None:
        self.content: memoryview | None = None
        self.numbers: list[tuple[int, memoryview]] = []
        self.strings: list[bytes] = []

    def add(self, field: int, data: memoryview) -> None:
        if field == CONTENT:
            self.content = data
        else:
            self.numbers.append((field, data))


NOTHING_CUT: Final = Cut()


def split(body: Buffer, *, in_thread: bool) -> tuple[bytes, dict[bytes, Cut]]:
    """A PredictRequest -> the same without its tensors' data, and this, by the inputs' names.

    Strings of messages that are not large stay where they are. Raises InvalidArgument for what upb refuses, as far as
    it can be seen from outside, and for a message that has much of what no tensor is made of; NeedsThread.
    """
    return _Splitter(body, in_thread).split()


class _Whole(Exception):
    """The tensor stays as it is."""


class _Splitter:
    def __init__(self, body: Buffer, in_thread: bool) -> None:
        self._body = body
        self._view = memoryview(body)
        self._in_thread = in_thread
        self._cuts_strings = len(body) > MOST_HEAD_BYTES
        self._strings_left = MOST_ELEMENTS
        self._runs_left = MOST_FIELDS
        self._cuts: dict[bytes, Cut] = {}

    def split(self) -> tuple[bytes, dict[bytes, Cut]]:
        view = self._view
        head: list[Buffer] = []
        kept = size = 0
        for tag, begin, data, end in fields(self._body, 0, len(self._body), KIND):
            if tag == _INPUTS:
                entry = self._entry(data, end)
                head += view[kept:begin], _tag_and_length(_INPUTS, len(entry)), entry
                kept = end
                size += len(entry)
                self._check(size)
        head.append(view[kept:])
        message = b"".join(head)
        self._check(len(message))
        return message, self._cuts

    def _check(self, head_bytes: int) -> None:
        if self._cuts_strings and head_bytes > MOST_HEAD_BYTES:
            raise too_large()

    def _entry(self, at: int, end: int) -> bytes:
        """An entry of `inputs` without its tensor's data; the last of a name counts."""
        view = self._view
        key = b""
        cut = Cut()
        rest: list[Buffer] = []
        kept = at
        for tag, begin, data, stop in fields(self._body, at, end, KIND):
            if tag == _KEY:
                key = bytes(view[data:stop])
            elif tag == _VALUE:
                tensor = self._tensor(data, stop, cut)
                rest += view[kept:begin], _tag_and_length(_VALUE, len(tensor)), tensor
                kept = stop
        rest.append(view[kept:end])
        self._cuts[key] = cut
        return b"".join(rest)

    def _tensor(self, at: int, end: int, cut: Cut) -> Buffer:
        """A tensor without its data, which goes into `cut`."""
        try:
            return b"".join(self._rest_of(at, end, cut))
        except _Whole:
            return self._view[at:end]

    def _rest_of(self, at: int, end: int, cut: Cut) -> list[Buffer]:
        view = self._view
        rest: list[Buffer] = []
        kept = at
        found: list[tuple[int, memoryview]] = []
        for tag, begin, data, stop in fields(self._body, at, end, KIND, MOST_ELEMENTS):
            if tag == _STRING:
                self._take_string(cut, view[data:stop])
            elif tag in _CUT:
                found.append((tag >> 3, view[data:stop]))
            else:
                continue
            rest.append(view[kept:begin])
            kept = stop
        self._runs_left -= len(found)
        if self._runs_left < 0:
            raise InvalidArgument(f"failed to parse the request: its tensors are in more than {MOST_FIELDS} pieces")
        for field, run in found:
            cut.add(field, run)
        rest.append(view[kept:end])
        return rest

    def _take_string(self, cut: Cut, string: memoryview) -> None:
        if not self._cuts_strings:
            raise _Whole
        if not self._in_thread:
            raise NeedsThread
        if not self._strings_left:
            raise InvalidArgument(f"failed to parse the request: it has more than {MOST_ELEMENTS} strings")
        self._strings_left -= 1
        cut.strings.append(bytes(string))


def _tag_and_length(tag: int, size: int) -> bytes:
    return bytes([tag]) + varint(size)

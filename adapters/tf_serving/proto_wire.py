"""Tensors' data cut out of a large PredictRequest or PredictResponse: protobuf would copy it, number by number into
Python's objects.

What a PredictRequest says is read by protobuf; only the data of its tensors is cut out before, as views of the body.
A tensor's bytes and its floats are then arrays without a copy. Whatever is unusual about a message (fields in pieces,
twice, out of order) is read as protobuf reads it, or the message is left to protobuf.
"""

from __future__ import annotations

from typing import Final

from tensorgate.adapters.protobuf import varints
from tensorgate.adapters.protobuf.varints import Integers
from tensorgate.adapters.protobuf.wire_format import (
    LENGTH_BYTES,
    MAX_ELEMENTS,
    MAX_FIELDS,
    MAX_HEAD_BYTES,
    fields,
    malformed,
    read_varint,
    too_large,
    varint,
)
from tensorgate.adapters.tf_serving.data_types import CONTENT, STRINGS, WIDTHS
from tensorgate.gateway.contract.call import Buffer, MustOffload
from tensorgate.gateway.contract.errors import InvalidArgument

KIND: Final = "tensorflow.serving.PredictRequest"
INPUTS: Final = 2 << 3 | 2
OUTPUTS: Final = 1 << 3 | 2
"""The tags of PredictRequest.inputs and PredictResponse.outputs."""
_KEY: Final = 1 << 3 | 2
_VALUE: Final = 2 << 3 | 2
_CUT: Final = frozenset({number << 3 | 2 for number in (CONTENT, *WIDTHS)})
_STRINGS_STAY_BYTES: Final = MAX_HEAD_BYTES
"""In messages of this size and less, strings are left to protobuf, which is faster with many."""
_QUICK_BYTES: Final = 1 << 18
"""As many bytes of varints are read on the event loop."""
_STRING: Final = STRINGS << 3 | 2


class Unusual(Exception):
    """What this says only protobuf knows: of an entry of `inputs` that has unknown fields, or of a field that has runs
    of numbers and single ones.
    """


class TensorCut:
    """What was cut out of one tensor: its content; runs of numbers by field, floats as bytes and all others as uint64
    or uint8; strings.
    """

    __slots__ = ("content", "numbers", "strings")

    def __init__(self) -> None:
        self.content: memoryview | None = None
        self.numbers: list[tuple[int, memoryview | Integers]] = []
        self.strings: list[bytes] = []


NOTHING_CUT: Final = TensorCut()


def split(body: Buffer, *, in_thread: bool, tensors: int = INPUTS) -> tuple[bytes, dict[bytes, TensorCut]]:
    """A PredictRequest -> the same without its tensors' data, and this, by the inputs' names; of another message, with
    the tag of its `tensors`.

    Strings of messages that are not large stay where they are. Raises InvalidArgument for what upb refuses, as far as
    it can be seen from outside, and for a message that has much of what no tensor is made of; Unusual, MustOffload.
    """
    return _Splitter(body, in_thread, tensors).split()


class _Whole(Exception):
    """The tensor stays as it is."""


class _Splitter:
    def __init__(self, body: Buffer, in_thread: bool, tensors: int) -> None:
        self._tensors = tensors
        self._body = body
        self._view = memoryview(body)
        self._in_thread = in_thread
        self._cuts_strings = len(body) > _STRINGS_STAY_BYTES
        self._strings_left = MAX_ELEMENTS
        self._runs_left = MAX_FIELDS
        self._cuts: dict[bytes, TensorCut] = {}

    def split(self) -> tuple[bytes, dict[bytes, TensorCut]]:
        view = self._view
        head: list[Buffer] = []
        kept = size = walked = 0
        for tag, begin, data, end in fields(self._body, 0, len(self._body), KIND):
            if tag == self._tensors:
                entry = self._entry(data, end)
                head += view[kept:begin], _tag_and_length(tag, len(entry)), entry
                kept = end
                size += len(entry)
                walked += end - begin
                self._check(size)
        head.append(view[kept:])
        self._check(len(view) - walked + size)
        return b"".join(head), self._cuts

    def _check(self, head_bytes: int) -> None:
        if head_bytes > MAX_HEAD_BYTES:
            raise too_large()

    def _entry(self, at: int, end: int) -> bytes:
        """An entry of `inputs` without its tensor's data; the last of a name counts."""
        view = self._view
        key = b""
        cut = TensorCut()
        rest: list[Buffer] = []
        known = 0
        for tag, begin, data, stop in fields(self._body, at, end, KIND):
            if tag == _KEY:
                key = bytes(view[data:stop])
                rest.append(view[begin:stop])
            elif tag == _VALUE:
                tensor = self._tensor(data, stop, cut)
                rest += _tag_and_length(_VALUE, len(tensor)), tensor
            else:
                break
            known += stop - begin
        if known != end - at:
            raise Unusual
        self._cuts[key] = cut
        return b"".join(rest)

    def _tensor(self, at: int, end: int, cut: TensorCut) -> Buffer:
        """A tensor without its data, which goes into `cut`."""
        try:
            return b"".join(self._rest_of(at, end, cut))
        except _Whole:
            return self._view[at:end]

    def _rest_of(self, at: int, end: int, cut: TensorCut) -> list[Buffer]:
        """The walk over a tensor begins anew after strings, of which there may be many."""
        view = self._view
        rest: list[Buffer] = []
        kept = at
        size = 0
        found: list[tuple[int, memoryview]] = []
        is_over = False
        while not is_over:
            is_over = True
            for tag, begin, data, stop in fields(self._body, at, end, KIND, MAX_ELEMENTS):
                if tag == _STRING:
                    at = self._take_strings(cut, data, stop, end)
                    is_over = False
                elif tag in _CUT:
                    at = stop
                    found.append((tag >> 3, view[data:stop]))
                else:
                    continue
                rest.append(view[kept:begin])
                size += begin - kept
                kept = at
                if not is_over:
                    break
            self._check(size)
        self._take(cut, found)
        rest.append(view[kept:end])
        return rest

    def _take(self, cut: TensorCut, found: list[tuple[int, memoryview]]) -> None:
        self._runs_left -= len(found)
        if self._runs_left < 0:
            raise InvalidArgument(f"failed to parse the request: its tensors are in more than {MAX_FIELDS} pieces")
        for field, data in found:
            if field == CONTENT:
                cut.content = data
                continue
            if len(data) > _QUICK_BYTES and not (WIDTHS[field] or self._in_thread):
                raise MustOffload
            cut.numbers.append((field, _run(field, data)))

    def _take_strings(self, cut: TensorCut, data: int, stop: int, end: int) -> int:
        """A string, and all that stand right behind it -> where they end."""
        if not self._cuts_strings:
            raise _Whole
        if not self._in_thread:
            raise MustOffload
        body = self._body = bytes(self._body)
        strings = [body[data:stop]]
        max_strings = self._strings_left
        while stop + 1 < end and body[stop] == _STRING and len(strings) <= max_strings:
            size, data = body[stop + 1], stop + 2
            if size > 0x7F:
                size, data = read_varint(body, stop + 1, end, LENGTH_BYTES, KIND)
            stop = data + size
            if stop > end:
                raise malformed(KIND)
            strings.append(body[data:stop])
        self._strings_left -= len(strings)
        if self._strings_left < 0:
            raise InvalidArgument(f"failed to parse the request: it has more than {MAX_ELEMENTS} strings")
        cut.strings += strings
        return stop


def _run(field: int, data: memoryview) -> memoryview | Integers:
    """Numbers as they stand in the message, floats as their bytes. Refuses one that is cut short, as protobuf does."""
    width = WIDTHS[field]
    if width:
        if len(data) % width:
            raise malformed(KIND)
        return data
    numbers = varints.decode(data)
    if numbers is None:
        raise malformed(KIND)
    return numbers


def _tag_and_length(tag: int, size: int) -> bytes:
    return bytes([tag]) + varint(size)

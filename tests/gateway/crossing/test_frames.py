"""Frames: a stream cut anywhere gives the same messages, and what is none of them is CrossingBroken."""

import struct
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorgate.gateway.crossing.frames import MAX_FRAME_BYTES, CrossingBroken, FrameReader, add_frame
from tensorgate.gateway.crossing.messages import (
    Cancel,
    Credit,
    Failure,
    FromDoor,
    FromEngine,
    Hello,
    Release,
    Submit,
    Tensor,
)

numbers = st.integers(-(2**63), 2**64 - 1)
texts = st.text(max_size=30)
tensors = st.builds(
    Tensor, texts, texts, st.lists(numbers, max_size=4).map(tuple), st.binary(max_size=50), st.binary(max_size=9)
)
messages = st.one_of(
    st.builds(Cancel, numbers),
    st.builds(Credit, numbers, numbers),
    st.builds(Release, st.lists(numbers, max_size=5).map(tuple)),
    st.builds(Submit, numbers, numbers, st.lists(tensors, max_size=3).map(tuple), deadline=st.none() | st.floats()),
)


def framed(*given: Any) -> bytes:
    buffer = bytearray()
    for message in given:
        add_frame(message, buffer)
    return bytes(buffer)


def read(data: bytes, *, message: Any = FromDoor) -> list[Any]:
    return FrameReader[Any](message).receive(memoryview(data))


@given(st.lists(messages, max_size=5), st.lists(st.integers(0, 600), max_size=8))
def test_a_stream_cut_anywhere(given: list[Any], cuts: list[int]) -> None:
    data = framed(*given)
    reader = FrameReader[Any](FromDoor)
    found: list[Any] = []
    begin = 0
    for end in [*sorted(cuts), len(data)]:
        part = bytearray(data[begin:end])
        found += reader.receive(memoryview(part))
        part[:] = bytes(len(part))  # the memory is the next read's
        begin = max(begin, min(end, len(data)))
    assert repr(found) == repr(given)


def raw(content: bytes) -> bytes:
    return struct.pack("<I", len(content)) + content


def packed(value: Any) -> bytes:
    return raw(msgspec.msgpack.encode(value))


@pytest.mark.parametrize(
    "data",
    [
        struct.pack("<I", MAX_FRAME_BYTES + 1),
        b"\xff\xff\xff\xff",
        raw(b""),
        raw(b"\xc1"),
        raw(framed(Cancel(1))[4:-1]),
        raw(framed(Cancel(1))[4:] + b"\0"),
        packed([11]),
        packed([11, 1, 2]),
        packed([11, "1"]),
        packed([11, 1.5]),
        packed([11, None]),
        packed([99, 1]),
        packed(["Cancel", 1]),
        packed({"call": 1}),
        packed(7),
        packed([10, 1, 1, [["x", "FP32", [1], "text"]]]),
        packed([10, 1, 1, [], "", [], {"a": [1]}]),
        raw(b"\x92\x0b\xd9\x02\xff\xfe"),
        raw(b"\x93\x0a\x01" + b"\x91" * 100_000),
    ],
    ids=range(19),
)
def test_what_is_no_message(data: bytes) -> None:
    with pytest.raises(CrossingBroken):
        read(data)


def test_deep_facts_are_no_message() -> None:
    with pytest.raises(CrossingBroken):
        read(raw(b"\x95\x20\x01\xa1k\xa1t\x81\xa1f" + b"\x91" * 100_000 + b"\xc0"), message=FromEngine)


def test_a_greeting_comes_once() -> None:
    with pytest.raises(CrossingBroken):
        read(framed(Hello(1, "1", 1)))
    with pytest.raises(CrossingBroken):
        read(framed(Hello(1, "1", 1)), message=FromEngine)


@given(st.binary(max_size=200))
def test_noise(data: bytes) -> None:
    for noise in (data, raw(data)):
        try:
            read(noise)
        except CrossingBroken:
            continue


@given(st.lists(messages, min_size=1, max_size=3), st.data())
def test_mutated(given: list[Any], data: st.DataObject) -> None:
    whole = bytearray(framed(*given))
    for _ in range(data.draw(st.integers(1, 4))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    try:
        read(bytes(whole))
    except CrossingBroken:
        return


@pytest.mark.parametrize(
    ("message", "error"),
    [
        (Failure(1, "k", "t", {"a": object()}), TypeError),
        (Failure(1, "k", "\ud800", {}), UnicodeEncodeError),
        (Failure(1, "k", "t", {"a": 1 << 70}), OverflowError),
        (Failure(1, "k", "x" * (MAX_FRAME_BYTES + 1), {}), OverflowError),
    ],
    ids=["object", "surrogate", "integer", "long"],
)
def test_what_cannot_be_sent_leaves_nothing(message: Any, error: type[Exception]) -> None:
    buffer = bytearray(framed(Cancel(1)))
    with pytest.raises(error):
        add_frame(message, buffer)
    add_frame(Cancel(2), buffer)
    assert read(bytes(buffer)) == [Cancel(1), Cancel(2)]


def test_a_long_message_in_many_parts() -> None:
    sent = Submit(1, 1, (Tensor("x", "UINT8", (1,), b"7" * (30 << 20)),))
    data = memoryview(framed(sent, Cancel(9)))
    reader = FrameReader[Any](FromDoor)
    found: list[Any] = []
    for at in range(0, len(data), 64 << 10):
        found += reader.receive(data[at : at + (64 << 10)])
    assert found == [sent, Cancel(9)]

"""The walk over large messages by hand agrees with upb on what is a message, and on what is in it."""

import pytest
from google.protobuf.message import DecodeError
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tensorgate.adapters.open_inference.proto_message import split
from tensorgate.adapters.protobuf.messages import message
from tensorgate.adapters.protobuf.wire_format import (
    MAX_ELEMENTS,
    MAX_FIELDS,
    MAX_HEAD_BYTES,
    parse,
    read_varint,
    varint,
)
from tensorgate.gateway.contract.errors import InvalidArgument

KIND = "inference.ModelInferRequest"
Request = message(KIND)

Found = tuple[bytes, list[bytes]] | None
"""The message without its raw contents, and these; None if it is refused."""


def by_upb(body: bytes) -> Found:
    try:
        request = Request.FromString(body)
    except DecodeError:
        return None
    raw = list(request.raw_input_contents)
    request.ClearField("raw_input_contents")
    return request.SerializeToString(deterministic=True), raw


def by_hand(body: bytes) -> Found:
    try:
        head, raw = split(body)
        request = parse(KIND, head)
    except InvalidArgument:
        return None
    assert not request.raw_input_contents
    return request.SerializeToString(deterministic=True), [bytes(each) for each in raw]


# ------------------------------------------------------------------------------------------------- bytes of all sorts

words = st.text(max_size=4)
int64s = st.integers(-(2**63), 2**63 - 1)
parameters = st.dictionaries(
    words,
    st.one_of(
        st.builds(lambda value: {"bool_param": value}, st.booleans()),
        st.builds(lambda value: {"int64_param": value}, int64s),
        st.builds(lambda value: {"string_param": value}, words),
        st.builds(lambda value: {"double_param": value}, st.floats()),
        st.builds(lambda value: {"uint64_param": value}, st.integers(0, 2**64 - 1)),
        st.just({}),
    ),
    max_size=2,
)
contents = st.one_of(
    st.builds(lambda values: {"int_contents": values}, st.lists(st.integers(-(2**31), 2**31 - 1), max_size=3)),
    st.builds(lambda values: {"fp32_contents": values}, st.lists(st.floats(width=32), max_size=3)),
    st.builds(lambda values: {"bytes_contents": values}, st.lists(st.binary(max_size=3), max_size=3)),
)
inputs = st.fixed_dictionaries(
    {"name": words, "datatype": words, "shape": st.lists(int64s, max_size=3), "parameters": parameters},
    optional={"contents": contents},
)
requests = st.builds(
    lambda **fields: bytes(Request(**fields).SerializeToString()),
    model_name=words,
    model_version=words,
    id=words,
    parameters=parameters,
    inputs=st.lists(inputs, max_size=2),
    outputs=st.lists(st.fixed_dictionaries({"name": words, "parameters": parameters}), max_size=2),
    raw_input_contents=st.lists(st.binary(max_size=6), max_size=3),
)


def long_varint(number: int, extra: int) -> bytes:
    """A number in more bytes than it needs."""
    digits = [number >> shift & 0x7F for shift in range(0, max(7, number.bit_length()), 7)] + [0] * extra
    return bytes([digit | 0x80 for digit in digits[:-1]] + digits[-1:])


numbers = st.builds(
    long_varint, st.one_of(st.integers(0, 300), st.integers(0, 2**70)), st.sampled_from([0, 0, 0, 1, 4, 9])
)
tags = st.builds(
    lambda field, kind, extra: long_varint(field << 3 | kind, extra),
    st.one_of(st.integers(0, 9), st.sampled_from([16, 2**28, 2**29 - 1, 2**29])),
    st.integers(0, 7),
    st.sampled_from([0, 0, 0, 1, 3, 4]),
)
fields = st.one_of(
    st.builds(lambda tag, data: tag + varint(len(data)) + data, tags, st.binary(max_size=9)),
    st.builds(lambda tag, data: tag + data, tags, st.binary(max_size=9)),
    st.builds(lambda tag, number: tag + number, tags, numbers),
    st.builds(
        lambda field, data: varint(field << 3 | 3) + data + varint(field << 3 | 4),
        st.integers(1, 20),
        st.one_of(requests, st.binary(max_size=6)),
    ),
    st.builds(lambda depth: b"\x43" * depth + b"\x44" * depth, st.integers(95, 105)),
    requests,
)
bodies = st.builds(b"".join, st.lists(fields, max_size=4))


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    """A message that has lost its end, or some of whose bytes are others."""
    body = bytearray(draw(st.one_of(requests, bodies)))
    for _ in range(draw(st.integers(0, 3))):
        if body:
            body[draw(st.integers(0, len(body) - 1))] = draw(st.integers(0, 255))
    return bytes(body[: draw(st.integers(0, len(body)))] if draw(st.booleans()) else body)


KEYS = bytes.fromhex("000102030408 0a0b0c0d 121a222a2b2c 323a3b3c 43447f8081baff")
strings_of_keys = st.lists(st.sampled_from(KEYS), max_size=14).map(bytes)

# ---------------------------------------------------------------------------------------------------------------- both


@settings(max_examples=1000)
@given(st.one_of(requests, bodies, damaged(), strings_of_keys, st.binary(max_size=40)))
@example(b"\x3a\x80\x80\x80\x80\x10")
@example(b"\x3a\xff\xff\xff\xff\x07")
@example(b"\xba\x80\x80\x80\x00\x01a")
@example(b"\xba\x80\x80\x80\x10\x01a")
@example(b"\x43\x3a\x01a\x44\x3a\x01b")
@example(b"\x43" * 100 + b"\x44" * 100)
@example(b"\x43" * 101 + b"\x44" * 101)
@example(b"\x40" + b"\xff" * 9 + b"\x7f")
@example(b"\x40" + b"\x80" * 10 + b"\x01")
@example(b"\x43\x4c")
@example(b"\x43\x00\x44")
@example(b"\x43\x00\x01\x44")
@example(b"\x43\x03\x04\x44")
@example(b"\x43\x02\x01a\x44")
def test_the_walk_agrees_with_upb(body: bytes) -> None:
    assert by_hand(body) == by_upb(body)


def test_packed_and_unpacked_numbers_are_the_same() -> None:
    shape = b"\x18\x02\x18\x03"
    packed = b"\x1a\x02\x02\x03"
    for numbers in (shape, packed):
        (item,) = parse(KIND, split(b"\x2a" + varint(len(numbers)) + numbers)[0]).inputs
        assert list(item.shape) == [2, 3]


def test_raw_contents_are_views_of_the_body() -> None:
    body = Request(model_name="m", raw_input_contents=[b"abc", b"", b"d"], id="7").SerializeToString()
    head, raw = split(body)
    assert raw == [b"abc", b"", b"d"]
    assert all(each.obj is body for each in raw)
    assert head == Request(model_name="m", id="7").SerializeToString()


@pytest.mark.parametrize("field", [b"\x2a\x00", b"\x3a\x00", b"\x40\x00"])
def test_a_message_has_few_fields(field: bytes) -> None:
    split(field * MAX_FIELDS)
    with pytest.raises(InvalidArgument, match=f"more than {MAX_FIELDS} fields"):
        split(field * (MAX_FIELDS + 1))
    with pytest.raises(InvalidArgument, match=f"more than {MAX_FIELDS} fields"):
        split(b"\x43" + field * MAX_FIELDS + b"\x44")


@pytest.mark.parametrize("number", [0, 1, 127, 128, 300, 2**14 - 1, 2**14, 2**31 - 1])
def test_varints(number: int) -> None:
    body = b"\x40" + varint(number)
    assert Request.FromString(body).SerializeToString() == body, "no byte more than upb would write"
    assert read_varint(body, 1, len(body), 5, KIND) == (number, len(body))


def in_input(data: bytes) -> bytes:
    return b"\x2a" + varint(len(data)) + data


def in_contents(data: bytes) -> bytes:
    return b"\x2a" + varint(len(data)) + data


LARGE = bytes(MAX_HEAD_BYTES - 20)


def test_what_is_large_is_tensor_data() -> None:
    numbers = b"\x0a" + varint(len(LARGE)) + LARGE
    for body in (
        in_input(in_contents(numbers)),
        in_input(in_contents(numbers) + in_contents(numbers)),
        in_input(in_contents(numbers)) * 3,
        in_input(in_contents(b"\x42\x01a" * MAX_ELEMENTS)),
        b"\x3a" + varint(len(LARGE)) + LARGE + b"\x0a\x01m",
        in_input(b"\x1a" + varint(len(LARGE)) + LARGE),
    ):
        assert by_hand(body) == by_upb(body)
    few = b"\x1a" + varint(100) + bytes(100)
    for body in (
        in_input(b"\x1a" + varint(len(LARGE)) + LARGE + few),
        in_input(in_contents(numbers) + few) + few + b"\x0a" + varint(len(LARGE)) + LARGE,
        in_input(b"\x22\x03\x0a\x01a" * 250_000),
    ):
        with pytest.raises(InvalidArgument, match=f"{MAX_HEAD_BYTES} bytes of it are no tensor data|16384 fields"):
            split(body)


def test_many_strings_come_as_raw_contents() -> None:
    half = in_input(in_contents(b"\x42\x00" * (MAX_ELEMENTS // 2)))
    assert by_hand(half * 2) == by_upb(half * 2)
    with pytest.raises(InvalidArgument, match="it has more than 524288 fields"):
        split(half + in_input(in_contents(b"\x42\x00" * (MAX_ELEMENTS // 2 + 1))))


def test_malformed_bytes_are_named() -> None:
    for refuse in (lambda: parse(KIND, b"\x0a\x05a"), lambda: split(b"\x0a\x05a")):
        with pytest.raises(InvalidArgument) as caught:
            refuse()
        assert caught.value.text == "failed to parse the request: it is no valid inference.ModelInferRequest"

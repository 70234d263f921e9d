"""Tensors of large messages are cut out by hand: what they become is what protobuf would have made of them."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tensorgate.adapters.protobuf.messages import message
from tensorgate.adapters.protobuf.wire_format import MAX_FIELDS, MAX_HEAD_BYTES, varint
from tensorgate.adapters.tf_serving import KIND, proto_request, proto_wire
from tensorgate.adapters.tf_serving.proto_wire import split
from tensorgate.gateway.contract.call import Call, MustOffload, Reply
from tensorgate.gateway.contract.errors import Code, GatewayError
from tensorgate.gateway.contract.tensor import DTYPES, Signature, TensorSpec

PREDICT = KIND.make(KIND.options()).grpc["/tensorflow.serving.PredictionService/Predict"]
Request, TensorProto = message("tensorflow.serving.PredictRequest"), message("tensorflow.TensorProto")


def paper(datatype: str) -> Any:
    """A view whose two inputs, x and the one without a name, may be left out."""
    specs = {name: TensorSpec(name, DTYPES[datatype], optional=True) for name in ("x", "")}
    signature = Signature("serving_default", specs, {})
    return SimpleNamespace(name="m", version=1, outputs={}, signatures={"serving_default": signature}, decoupled=False)


VIEWS = {datatype: paper(datatype) for datatype in DTYPES}


def decoded(body: bytes, datatype: str, walked: int, monkeypatch: pytest.MonkeyPatch, **more: Any) -> Any:
    """What a message says: the inputs as plain data, or the refusal."""
    monkeypatch.setattr(proto_request, "_WALKED_BYTES", walked)
    call = Call(body, "POST", "", {}, "grpc", **more)
    try:
        request = PREDICT.decode(call, lambda ref: VIEWS[datatype])
    except GatewayError as error:
        reply = PREDICT.encode_error(error, call)
        return reply.grpc_code, reply.message
    return {name: (a.dtype, a.shape, _bits(a)) for name, a in request.inputs.items()}


def _bits(array: Any) -> Any:
    """A signalling NaN becomes a quiet one where Python's float carries it."""
    if array.dtype == np.float32:
        array = np.where(np.isnan(array), np.float32(np.nan), array)
    return array.tolist() if array.dtype == object else array.tobytes()


def by_upb(body: bytes, datatype: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    return decoded(body, datatype, 1 << 30, monkeypatch)


def by_hand(body: bytes, datatype: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    return decoded(body, datatype, 0, monkeypatch)


# ------------------------------------------------------------------------------------------------- bytes of all sorts

NUMBERS = {"float_val": 5, "double_val": 6, "scomplex_val": 9, "dcomplex_val": 12}
VARINTS = {"int_val": 7, "int64_val": 10, "bool_val": 11, "half_val": 13, "uint32_val": 16, "uint64_val": 17}


def sized(field: int, data: bytes) -> bytes:
    return varint(field << 3 | 2) + varint(len(data)) + data


def long_varint(number: int, extra: int) -> bytes:
    """A number in more bytes than it needs."""
    digits = [number >> shift & 0x7F for shift in range(0, max(7, number.bit_length()), 7)] + [0] * extra
    return bytes([digit | 0x80 for digit in digits[:-1]] + digits[-1:])


one_varint = st.builds(
    long_varint,
    st.one_of(st.integers(0, 300), st.integers(0, 2**64 - 1), st.integers(0, 2**70)),
    st.sampled_from([0, 0, 0, 1, 8]),
)
types = st.sampled_from([1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 14, 17, 19, 22, 23, 0, 99])
shapes = st.one_of(
    st.lists(st.sampled_from([0, 1, 2, 3]), max_size=3),
    st.sampled_from([[4], [8], [2, 2]]),
    st.lists(st.integers(-2, 2**40), max_size=2),
).map(lambda sizes: b"".join([sized(2, b"\x08" + varint(size % 2**64)) for size in sizes]))
tensor_fields = st.one_of(
    types.map(lambda number: b"\x08" + varint(number)),
    shapes.map(lambda shape: sized(2, shape)),
    st.builds(sized, st.just(4), st.one_of(st.binary(max_size=9), st.sampled_from([bytes(8), bytes(16), b""]))),
    st.builds(sized, st.sampled_from([*NUMBERS.values()]), st.binary(max_size=16)),
    st.builds(sized, st.sampled_from([5, 6]), st.sampled_from([bytes(range(4)), bytes(range(8)), bytes(16)])),
    st.builds(
        lambda field, numbers: sized(field, b"".join(numbers)),
        st.sampled_from([*VARINTS.values()]),
        st.lists(one_varint, max_size=4),
    ),
    st.builds(sized, st.sampled_from([*VARINTS.values()]), st.binary(max_size=4)),
    st.builds(
        lambda field, number: varint(field << 3) + number, st.sampled_from([*VARINTS.values(), 3, 4]), one_varint
    ),
    st.builds(lambda number: b"\x2d" + number, st.binary(min_size=4, max_size=4)),
    st.builds(lambda number: b"\x31" + number, st.binary(min_size=8, max_size=8)),
    st.builds(sized, st.just(8), st.binary(max_size=4)),
    st.builds(sized, st.sampled_from([14, 15, 18, 20]), st.binary(max_size=3)),
    st.just(b"\xa3\x01\xa4\x01"),
    st.just(b"\xa3\x01" + sized(4, b"abcd") + b"\xa4\x01"),
)
tensors = st.one_of(
    st.lists(tensor_fields, max_size=5).map(b"".join),
    st.builds(
        lambda number, shape, fields: b"\x08" + varint(number) + sized(2, shape) + b"".join(fields),
        types,
        shapes,
        st.lists(tensor_fields, max_size=3),
    ),
)
keys = st.sampled_from([b"x", b"x", b"", b"y", b"\xff"])
entries = st.one_of(
    st.builds(lambda key, tensor: sized(1, key) + sized(2, tensor), keys, tensors),
    st.builds(
        lambda parts: b"".join(parts),
        st.lists(
            st.one_of(
                keys.map(lambda key: sized(1, key)),
                tensors.map(lambda tensor: sized(2, tensor)),
                st.sampled_from([b"\x08\x01", b"\x18\x01", sized(3, b"ab"), b"\x1b\x1c"]),
            ),
            max_size=4,
        ),
    ),
)
fields = st.one_of(
    entries.map(lambda entry: sized(2, entry)),
    entries.map(lambda entry: sized(2, entry)),
    st.sampled_from([sized(3, b"y"), sized(6, b"id"), sized(5, b""), sized(9, b"??"), b"\x10\x01", b"\x53\x54"]),
)
SPEC = b"\x0a\x03\x0a\x01m"
bodies = st.lists(fields, max_size=4).map(lambda parts: SPEC + b"".join(parts))


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    """A message that has lost its end, or some of whose bytes are others."""
    body = bytearray(draw(bodies))
    for _ in range(draw(st.integers(0, 3))):
        body[draw(st.integers(0, len(body) - 1))] = draw(st.integers(0, 255))
    return bytes(body[: draw(st.integers(0, len(body)))] if draw(st.booleans()) else body)


def with_tensor(*parts: bytes) -> bytes:
    return SPEC + sized(2, sized(1, b"x") + sized(2, b"".join(parts)))


TWO_FLOATS = b"\x08\x01" + sized(2, sized(2, b"\x08\x02"))
TWO_INTS = b"\x08\x09" + sized(2, sized(2, b"\x08\x02"))


@settings(max_examples=500)
@given(st.one_of(bodies, bodies, damaged()), st.sampled_from([*DTYPES]))
@example(with_tensor(TWO_FLOATS, sized(5, b"abcd"), sized(5, b"efgh")), "FP32")
@example(with_tensor(TWO_FLOATS, b"\x2dabcd", sized(5, b"efgh")), "FP32")
@example(with_tensor(TWO_FLOATS, sized(5, b"abcd"), b"\x2defgh"), "FP32")
@example(with_tensor(sized(5, b"abcd"), TWO_FLOATS, sized(4, b"abcdefgh"), sized(4, b"")), "FP32")
@example(with_tensor(TWO_FLOATS, sized(4, b""), sized(4, b"abcdefgh")), "FP32")
@example(with_tensor(TWO_FLOATS, sized(5, b"abcdefg")), "FP32")
@example(with_tensor(TWO_FLOATS, sized(6, b"abcdefg")), "FP32")
@example(with_tensor(TWO_INTS, sized(10, b"\1\x82")), "INT64")
@example(with_tensor(TWO_INTS, sized(10, b"\x80" * 10 + b"\1")), "INT64")
@example(with_tensor(TWO_INTS, sized(10, b"\xff" * 9 + b"\x7f")), "INT64")
@example(with_tensor(TWO_INTS, sized(7, b"\x80")), "INT64")
@example(with_tensor(TWO_INTS) + with_tensor(TWO_INTS, sized(10, b"\5"))[5:], "INT64")
@example(with_tensor(TWO_INTS, sized(10, b"\5")) + with_tensor(TWO_INTS)[5:], "INT64")
@example(SPEC + sized(2, sized(2, TWO_INTS + sized(10, b"\1")) + sized(1, b"x") + sized(2, sized(10, b"\2"))), "INT64")
@example(SPEC + sized(2, sized(1, b"y") + sized(1, b"x") + sized(2, TWO_INTS + sized(10, b"\1"))), "INT64")
@example(
    SPEC
    + sized(
        2,
        sized(1, b"x") + sized(2, TWO_FLOATS + sized(4, b"abcdefgh")) + sized(2, sized(8, b"") + sized(4, b"12345678")),
    ),
    "FP32",
)
def test_the_walk_agrees_with_upb(body: bytes, datatype: str) -> None:
    with pytest.MonkeyPatch.context() as patched:
        assert by_hand(body, datatype, patched) == by_upb(body, datatype, patched)


@settings(max_examples=300)
@given(st.one_of(bodies, damaged()), st.sampled_from(["BYTES", "BYTES", "FP32"]))
def test_strings_cut_out_are_those_of_upb(body: bytes, datatype: str) -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(proto_wire, "_STRINGS_STAY_BYTES", 0)
        assert decoded(body, datatype, 0, patched, in_thread=True) == by_upb(body, datatype, patched)


# -------------------------------------------------------------------------------------------------------------- bounds


def refusal(body: bytes, **more: Any) -> str:
    call = Call(body, "POST", "", {}, "grpc", **more)
    with pytest.raises(GatewayError) as caught:
        PREDICT.decode(call, lambda ref: VIEWS["BYTES"])
    reply: Reply = PREDICT.encode_error(caught.value, call)
    assert reply.grpc_code is Code.INVALID_ARGUMENT
    return reply.message


STRINGS = b"\x08\x07" + sized(2, sized(2, b"\x08\x02"))


def test_many_strings_are_read_in_a_thread() -> None:
    body = with_tensor(STRINGS, b"\x42\x01a" * 400_000)
    with pytest.raises(MustOffload):
        split(body, in_thread=False)
    head, cuts = split(body, in_thread=True)
    assert len(cuts[b"x"].strings) == 400_000
    assert len(head) < 100


def test_many_varints_are_read_in_a_thread() -> None:
    body = with_tensor(TWO_INTS, sized(10, b"\x81\x01" * 200_000))
    with pytest.raises(MustOffload):
        split(body, in_thread=False)
    _, cuts = split(body, in_thread=True)
    [(_, numbers)] = cuts[b"x"].numbers
    assert len(numbers) == 200_000
    assert set(numbers.tolist()) == {129}
    split(with_tensor(TWO_FLOATS, sized(5, bytes(400_000))), in_thread=False)


def test_strings_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proto_wire, "_STRINGS_STAY_BYTES", 0)
    monkeypatch.setattr(proto_wire, "MAX_ELEMENTS", 100)

    def body(*counts: int) -> bytes:
        strings = [STRINGS + b"\x42\x01a\x50\x01" * 2 + b"\x42\x01a" * (count - 2) for count in counts]
        return SPEC + b"".join([sized(2, sized(1, b"x") + sized(2, each)) for each in strings])

    assert len(split(body(40, 60), in_thread=True)[1][b"x"].strings) == 60
    for counts in ((40, 61), (101,)):
        with pytest.raises(GatewayError, match="it has more than 100 strings"):
            split(body(*counts), in_thread=True)


def test_what_stands_between_strings_is_counted() -> None:
    body = with_tensor(STRINGS, (b"\x42\x01a" + b"\x50\x01" * 1000) * 600)
    assert refusal(body, in_thread=True).endswith("bytes of it are no tensor data")


def test_runs_of_numbers_are_counted() -> None:
    few = with_tensor(TWO_FLOATS, sized(5, b"abcd") * MAX_FIELDS)
    assert len(split(few, in_thread=True)[1][b"x"].numbers) == MAX_FIELDS
    many = with_tensor(TWO_FLOATS, sized(5, b"abcd") * (MAX_FIELDS + 1))
    assert refusal(many) == f"failed to parse the request: its tensors are in more than {MAX_FIELDS} pieces"


@pytest.mark.parametrize(
    "body",
    [
        with_tensor(TWO_FLOATS, sized(2, b"\x12\x00" * MAX_HEAD_BYTES)),
        SPEC + sized(6, bytes(MAX_HEAD_BYTES)),
        SPEC + sized(2, sized(1, bytes(MAX_HEAD_BYTES))),
        with_tensor(TWO_FLOATS, b"\x2dabcd" * 250_000),
        SPEC + sized(2, sized(1, b"x") + sized(2, sized(20, bytes(600_000)))) * 2,
    ],
    ids=["dimensions", "client_id", "key", "single floats", "unknown"],
)
def test_what_is_large_is_tensor_data(body: bytes) -> None:
    assert refusal(body) == f"failed to parse the request: more than {MAX_HEAD_BYTES} bytes of it are no tensor data"


def test_a_message_has_few_inputs() -> None:
    assert refusal(SPEC + b"\x12\x00" * MAX_FIELDS) == (
        f"failed to parse the request: it has more than {MAX_FIELDS} fields"
    )


def test_large_messages_in_pieces_are_refused() -> None:
    """Only protobuf knows the order of packed and single values, and it would take long."""
    body = with_tensor(TWO_FLOATS, b"\x2dabcd", sized(5, bytes(2 * MAX_HEAD_BYTES)))
    call = Call(body, "POST", "", {}, "grpc")
    with pytest.raises(GatewayError, match="no tensor data"):
        PREDICT.decode(call, lambda ref: VIEWS["FP32"])

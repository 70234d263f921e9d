"""Many Examples at once: the compiled helper reads what protobuf reads, or nothing."""

import importlib.util
import random
import shutil
from typing import Any

import numpy as np
import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from tensorgate.adapters.protobuf.messages import message
from tensorgate.adapters.tf_serving import example_proto
from tensorgate.adapters.tf_serving.example_tensors import model_inputs
from tensorgate.gateway.contract.errors import InvalidArgument
from tensorgate.gateway.contract.tensor import BYTES, DTYPES, Signature, TensorSpec

Example = message("tensorflow.Example")
Examples = message("tensorflow.serving.ExampleList")
KIND = "tensorflow.serving.RegressionRequest"
DTYPE = {"float": np.float32, "int64": np.int64}


def test_the_helper_is_built_where_there_is_a_compiler() -> None:
    built = importlib.util.find_spec("tensorgate.adapters._native._examples") is not None
    assert built or shutil.which("g++") is None, (
        "g++ is here: pip install -e . builds tensorgate.adapters._native._examples"
    )


helper: Any = pytest.importorskip("tensorgate.adapters._native._examples", exc_type=ImportError)


def example(features: dict[str, tuple[str, list[Any]]]) -> Any:
    made = Example()
    for name, (kind, values) in features.items():
        feature = made.features.feature[name]
        one = getattr(feature, f"{kind}_list")
        one.SetInParent()
        one.value.extend(values)
    return made


def read(body: bytes, names: tuple[bytes, ...], most: int = 100) -> Any:
    """Columns as lists, or None."""
    found = helper.read(body, 0, len(body), names, most)
    if found is None:
        return None
    columns, count, end = found
    plain = [(k, s, v if k == "bytes" else np.frombuffer(v, DTYPE[k]).tolist()) for k, s, v in columns]
    return plain, count, end


INT64 = st.integers(-(2**63), 2**63 - 1)
FLOAT = st.floats(width=32, allow_nan=False)
VALUES = {"float": FLOAT, "int64": st.one_of(INT64, st.integers(-3, 300)), "bytes": st.binary(max_size=5)}


@st.composite
def alike(draw: st.DrawFn) -> tuple[list[Any], dict[str, tuple[str, int]]]:
    """Examples whose features have one kind and size each, and these."""
    schema = draw(
        st.dictionaries(st.text("ab_0", max_size=3), st.tuples(st.sampled_from([*VALUES]), st.integers(0, 3)))
    )
    count = draw(st.integers(1, 5))
    rows = [
        {name: (kind, [draw(VALUES[kind]) for _ in range(size)]) for name, (kind, size) in schema.items()}
        for _ in range(count)
    ]
    return [example(row) for row in rows], schema


@given(alike())
def test_columns_are_what_protobuf_has(made: tuple[list[Any], dict[str, tuple[str, int]]]) -> None:
    messages, schema = made
    body = Examples(examples=messages).SerializeToString()
    found = read(body, tuple(name.encode() for name in schema))
    assert found is not None
    columns, count, end = found
    assert (count, end) == (len(messages), len(body))
    for (name, (kind, size)), column in zip(schema.items(), columns, strict=True):
        values = [v for one in messages for v in getattr(one.features.feature[name], f"{kind}_list").value]
        assert column == (kind, size, values)
    first, count, end = read(body, (), 1)
    assert (first, count) == ([], 1)
    assert body[:end] == Examples(examples=messages[:1]).SerializeToString()


X = example({"x": ("float", [1.0, 2.0])})
ROWS: list[tuple[list[Any], bytes]] = [
    ([X, example({})], b"x"),
    ([X, example({"x": ("float", [1.0])})], b"x"),
    ([X, example({"x": ("int64", [1, 2])})], b"x"),
    ([X], b"y"),
    ([Example()], b"x"),
    ([example({"\u00e9": ("float", [1.0])})], b"\xc3\xa9"),
]


@pytest.mark.parametrize(("messages", "name"), ROWS)
def test_columns_are_all_of_a_kind(messages: list[Any], name: bytes) -> None:
    assert read(Examples(examples=messages).SerializeToString(), (name,)) is None


LONG = b"\x0a\x13\x0a\x11\x0a\x0f\x0a\x01x\x12\x0a\x12\x08\x0a\x06"
WHOLE = b"\x0a\x15\x0a\x13\x0a\x11\x0a\x01x\x12\x0c\x12\x0a\x0a\x08\x00\x00\x80\x3f\x00\x00\x00\x40"


def test_the_whole_is_right() -> None:
    assert Examples.FromString(WHOLE) == Examples(examples=[X])
    assert read(WHOLE, (b"x",)) == ([("float", 2, [1.0, 2.0])], 1, len(WHOLE))


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\x0a",
        b"\x12\x00",
        b"\x0a\x80\x80\x80\x80\x80\x00",
        b"\x0a\xff\xff\xff\xff\x0f",
        b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",
        WHOLE + b"\x10\x01",
        WHOLE[:2] + b"\x12" + WHOLE[3:],
        WHOLE[:4] + b"\x12" + WHOLE[5:],
        WHOLE[:8] + b"\xff" + WHOLE[9:],
        WHOLE[:11] + b"\x22" + WHOLE[12:],
        LONG + b"\x00\x00\x80\x3f\x00\x00",
        # a float that is not packed
        b"\x0a\x10\x0a\x0e\x0a\x0c\x0a\x01x\x12\x07\x12\x05\x0d\x00\x00\x80\x3f",
        # an integer of more than 64 bits
        b"\x0a\x17\x0a\x15\x0a\x13\x0a\x01x\x12\x0e\x1a\x0c\x0a\x0a" + b"\xff" * 9 + b"\x02",
        b"\x0a\x17\x0a\x15\x0a\x13\x0a\x01x\x12\x0e\x1a\x0c\x0a\x0a" + b"\xff" * 10,
        # a value before its key; a feature without a kind; one that comes twice
        b"\x0a\x13\x0a\x11\x0a\x0f\x12\x0a\x12\x08\x0a\x06\x00\x00\x80\x3f\x0a\x01x",
        b"\x0a\x09\x0a\x07\x0a\x05\x0a\x01x\x12\x00",
        b"\x0a\x12\x0a\x10" + b"\x0a\x06\x0a\x01x\x12\x02\x12\x00" * 2,
    ],
)
def test_what_is_not_plain_is_left(body: bytes) -> None:
    assert read(body, (b"x",)) is None


def test_whatever_is_read_is_right() -> None:
    chance = random.Random(4)  # noqa: S311
    features = {"x": ("float", [1.0, 2.0]), "n": ("int64", [1, -1]), "t": ("bytes", [b"a", b""])}
    whole = Examples(examples=[example(features)] * 2).SerializeToString()
    assert read(whole, (b"x", b"n", b"t")) is not None
    seen = 0
    for _ in range(30_000):
        body = bytearray(whole)
        for _ in range(chance.randrange(1, 3)):
            body[chance.randrange(len(body))] = chance.choice((0, 1, 2, 10, 18, 26, 128, 255, chance.randrange(256)))
        damaged = bytes(body[: chance.choice((len(body), len(body), chance.randrange(len(body))))])
        for names in ((), (b"x",), (b"x", b"n", b"t")):
            found = read(damaged, names)
            if found is None:
                continue
            seen += 1
            columns, count, end = found
            messages = Examples.FromString(damaged[:end]).examples
            assert (len(messages), end) == (count, len(damaged))
            for name, (kind, size, values) in zip(names, columns, strict=True):
                wanted = [getattr(one.features.feature[name.decode()], f"{kind}_list").value for one in messages]
                assert {len(one) for one in wanted} == {size}
                assert repr(values) == repr([value for one in wanted for value in one])
    assert seen > 1000


def test_what_the_helper_does_not_take() -> None:
    for at, end in ((-1, 1), (2, 1), (0, len(WHOLE) + 1)):
        with pytest.raises(ValueError):
            helper.read(WHOLE, at, end, (), 1)
    for names in (("x",), [b"x"], None):
        with pytest.raises((TypeError, SystemError)):
            helper.read(WHOLE, 0, len(WHOLE), names, 1)
    with pytest.raises(TypeError):
        helper.read(WHOLE, 0, 1, ())
    assert helper.read(WHOLE, 0, len(WHOLE), (b"x",) * 70_000, 1) is None


def test_many_texts_come_in_pieces() -> None:
    many = Examples(examples=[example({"t": ("bytes", [b"a"] * 5000)})] * 5).SerializeToString()
    columns, count, end = read(many, (b"t",))
    assert (columns[0][:2], count) == (("bytes", 5000), 2)
    assert len(columns[0][2]) == 10_000
    assert read(many[end:], (b"t",))[1] == 2
    assert read(Examples(examples=[example({"t": ("bytes", [b""] * 70_000)})]).SerializeToString(), (b"t",)) is None


# ------------------------------------------------------------------------------------------------------ whole requests

SIGNATURE = Signature(
    "s",
    {"inputs": TensorSpec("e", BYTES, (-1,))},
    {},
    features={
        "x": TensorSpec("x", DTYPES["FP32"], (-1, 2)),
        "n": TensorSpec("n", DTYPES["INT32"], (-1,)),
        "t": TensorSpec("t", BYTES, (-1, -1)),
    },
)


def row(number: int, **changes: tuple[str, list[Any]]) -> Any:
    usual = {"x": ("float", [number, 0.5]), "n": ("int64", [number]), "t": ("bytes", [b"%d" % number])}
    return example(usual | changes)


ODD: list[dict[str, tuple[str, list[Any]]]] = [
    {},
    {"x": ("float", [1.0])},
    {"x": ("int64", [1, 2])},
    {"n": ("int64", [2**31])},
    {"n": ("int64", [])},
    {"t": ("bytes", [])},
    {"t": ("bytes", [b"a", b"b"])},
    {"other": ("bytes", [b"a", b"b"])},
]


@pytest.mark.parametrize("odd", ODD)
@pytest.mark.parametrize("everywhere", [False, True])
def test_requests_are_what_they_are_one_by_one(
    odd: dict[str, tuple[str, list[Any]]], everywhere: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(example_proto, "_PIECE", 3)
    monkeypatch.setattr(example_proto, "SMALL_BYTES", 0)
    request = message(KIND)(model_spec={"name": "m"})
    request.input.example_list.examples.extend(
        [row(number, **(odd if everywhere or number == 7 else {})) for number in range(10)]
    )
    body = request.SerializeToString()

    def outcome() -> Any:
        head, examples = example_proto.read_request(KIND, body)
        assert (head.model_spec.name, len(examples)) == ("m", 10)
        try:
            inputs = model_inputs(SIGNATURE, examples)
        except InvalidArgument as error:
            return type(examples), error.text
        return type(examples), {name: (one.dtype, one.shape, one.tolist()) for name, one in inputs.items()}

    way, at_once = outcome()
    assert way is example_proto.PlainExamples
    with monkeypatch.context() as patched:
        patched.setattr(example_proto, "_native_read", None)
        way, one_by_one = outcome()
    assert way is example_proto.ProtoExamples
    assert at_once == one_by_one


def test_what_protobuf_refuses_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(example_proto, "SMALL_BYTES", 0)
    request = message(KIND)(model_spec={"name": "m"})
    request.input.example_list.examples.extend([row(number) for number in range(3)])
    body = request.SerializeToString()
    for end in range(1, len(body)):
        try:
            expected = message(KIND).FromString(body[:end])
        except DecodeError:
            with pytest.raises(InvalidArgument):
                example_proto.read_request(KIND, body[:end])
        else:
            head, examples = example_proto.read_request(KIND, body[:end])
            assert (head.model_spec, len(examples)) == (expected.model_spec, len(expected.input.example_list.examples))

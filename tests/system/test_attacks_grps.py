"""The same attacks on grps over gRPC: every method, and tensors that claim what they do not hold."""

import random
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import pytest
from attacks import SECRETS, attacked
from serving import Gateway, demo_config

from tensorgate.adapters.protobuf.messages import message
from tensorgate.adapters.protobuf.wire_format import varint

GrpsMessage = message("grps.protos.v1.GrpsMessage")
SERVICE = "/grps.protos.v1.GrpsService"
METHODS = (
    "Predict",
    "PredictStreaming",
    "Online",
    "CheckLiveness",
    "CheckReadiness",
    "ServerMetadata",
    "ModelMetadata",
)
MODEL = b"\x12\x0fhalf_plus_two-1"
GOOD = GrpsMessage(
    model="half_plus_two-1", gtensors={"tensors": [{"dtype": 7, "shape": [2], "flat_float32": [1, 2]}]}
).SerializeToString()


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    with attacked(tmp_path_factory, demo_config()) as gateway:
        yield gateway


@pytest.fixture(autouse=True)
def answered_after(undisturbed: None, channel: Any) -> Iterator[None]:
    """A good call on the same channel comes after every attack."""
    yield
    answer = ask(channel, "Predict", GOOD)
    assert list(answer.gtensors.tensors[0].flat_float32) == [2.5, 3.0]


def head(number: int, size: int) -> bytes:
    """What stands before a field of so many bytes."""
    return varint(number << 3 | 2) + varint(size)


def ask(channel: Any, method: str, body: bytes) -> Any:
    """The only answer of a call, or the last of its stream."""
    if method == "PredictStreaming":
        answers = list(channel.unary_stream(f"{SERVICE}/{method}")(body, timeout=10))
        return GrpsMessage.FromString(answers[-1])
    return GrpsMessage.FromString(channel.unary_unary(f"{SERVICE}/{method}")(body, timeout=10))


def wrapped(*tensors: bytes) -> bytes:
    """A request with these tensors, each as it is."""
    data = b"".join(head(1, len(each)) + each for each in tensors)
    return MODEL + head(5, len(data)) + data


FLOATS = b"\x10\x07\x52\x04\x00\x00\x80\x3f"
"""DT_FLOAT32 with one element, without a shape."""


def shaped(*shape: int) -> bytes:
    packed = b"".join(map(varint, shape))
    return FLOATS + head(3, len(packed)) + packed


GARBAGE: dict[str, bytes] = {
    "a tag alone": b"\x2a",
    "a length beyond the end": b"\x2a\xff\xff\xff\xff\x0f\x0a",
    "a negative length": b"\x2a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",
    "field 0": b"\x00\x01",
    "an endless number": b"\x08" + b"\xff" * 11,
    "a group without end": b"\x2b" * 20_000,
    "a group's end": b"\x0c",
    "text that is none": b"\x22\x02\xff\xfe",
    "a model that is no text": b"\x12\x02\xc3\x28",
    "floats of five bytes": wrapped(b"\x10\x07\x52\x05\x00\x00\x80\x3f\x00"),
    "a tensor cut short": wrapped(FLOATS)[:-2],
}


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("body", GARBAGE.values(), ids=GARBAGE)
def test_what_is_no_message_fails_the_call(channel: Any, method: str, body: bytes) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        ask(channel, method, body)
    assert caught.value.code() is grpc.StatusCode.INTERNAL
    assert not [secret for secret in SECRETS if secret.decode() in caught.value.details()]


def many() -> bytes:
    return wrapped(*[FLOATS] * 100_000)


REFUSED: dict[str, tuple[bytes | Callable[[], bytes], str]] = {
    "nothing": (MODEL, "half_plus_two"),
    "another kind": (MODEL + b"\x22\x01a", "takes no str_data"),
    "an ndarray": (MODEL + b"\x32\x00", "half_plus_two"),
    "a map": (MODEL + b"\x3a\x07\x0a\x05\x0a\x01a\x12\x00", "takes no gmap"),
    "10^12 elements": (wrapped(shaped(1_000_000, 1_000_000)), "expected size: 1000000000000, actual size: 1"),
    "2^96 elements": (wrapped(shaped(*[2**32 - 1] * 3)), "size not match"),
    "0 by a lot": (wrapped(shaped(0, 2**32 - 1)), "expected size: 0, actual size: 1"),
    "65 dimensions": (wrapped(shaped(*[1] * 65)), "64 dimensions"),
    "a million dimensions": (lambda: wrapped(shaped(*[1] * 1_000_000)), "64 dimensions"),
    "100,000 tensors": (many, "takes 1 inputs, got 100000 tensors"),
    "100,000 empty tensors": (lambda: wrapped(*[b""] * 100_000), "takes 1 inputs, got 100000 tensors"),
    "a dtype that is none": (wrapped(b"\x10\x2a\x52\x04\x00\x00\x80\x3f"), "dtype not supported: 42"),
    "a negative dtype": (wrapped(b"\x10" + b"\xff" * 9 + b"\x01"), "dtype not supported: -1"),
    "a shape of the wrong wire type": (wrapped(FLOATS + b"\x1d\x01\x00\x00\x00\x1a\x01\x03"), "expected size: 3"),
    "floats as numbers": (wrapped(b"\x10\x07\x50\x01"), "data is empty"),
    "data of another dtype": (wrapped(b"\x10\x07\x3a\x01\x01"), "data is empty"),
    "two tensors of a name": (wrapped(b"\x0a\x01x" + FLOATS, b"\x0a\x01x" + FLOATS), "is given twice"),
    "the last of two payloads": (wrapped(FLOATS) + b"\x22\x01a", "takes no str_data"),
    "8 million floats of which none fits": (
        lambda: wrapped(b"\x10\x07\x1a\x01\x02" + head(10, 4 << 23) + bytes(4 << 23)),
        "expected size: 2, actual size: 8388608",
    ),
    "a model's name of a megabyte": (lambda: head(2, 1 << 20) + b"a" * (1 << 20) + wrapped(FLOATS)[17:], "not found."),
}


@pytest.mark.parametrize("method", ["Predict", "PredictStreaming"])
@pytest.mark.parametrize("attack", REFUSED)
def test_what_does_not_fit_is_a_message_that_says_so(channel: Any, method: str, attack: str) -> None:
    made, text = REFUSED[attack]
    body = made if isinstance(made, bytes) else made()
    answer = ask(channel, method, body)
    assert (answer.status.code, answer.status.status, answer.WhichOneof("data_oneof")) == (500, 2, None)
    assert text in answer.status.msg
    assert not [secret for secret in SECRETS if secret.decode() in answer.status.msg]


def test_of_two_payloads_the_last_counts(channel: Any) -> None:
    """One oneof after the other, and twice the same, which protobuf merges."""
    answer = ask(channel, "Predict", MODEL + b"\x22\x01a" + wrapped(FLOATS))
    assert list(answer.gtensors.tensors[0].flat_float32) == [2.5]
    assert "got 2 tensors" in ask(channel, "Predict", wrapped(FLOATS) + wrapped(FLOATS)).status.msg


def test_parts_of_a_message_and_changed_ones(channel: Any) -> None:
    """Cut anywhere, or with any byte another: an answer, or a call that failed as it should."""
    chance = random.Random(7)  # noqa: S311 - it makes garbage, no secrets
    for number in range(400):
        body = bytearray(GOOD)
        if number % 2:
            del body[chance.randrange(len(body)) :]
        else:
            body[chance.randrange(len(body))] = chance.randrange(256)
        assert outcome(channel, chance.choice(METHODS), bytes(body)) in (200, 400, 404, 500, grpc.StatusCode.INTERNAL)


def outcome(channel: Any, method: str, body: bytes) -> Any:
    """The code of the message, or of the call that failed."""
    try:
        return ask(channel, method, body).status.code
    except grpc.RpcError as error:
        return error.code()


def test_methods_that_are_none(channel: Any) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        ask(channel, "Nothing", b"")
    assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED

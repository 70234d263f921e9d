"""The same attacks on what TensorFlow Serving has besides predict in JSON: Examples, and everything over gRPC."""

import gzip
import json
import random
import struct
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import pytest
from attacks import (
    LIMIT_BYTES,
    SECRETS,
    Body,
    Bystanders,
    attacked,
    check_refusal,
    closing_connection,
    read_answer,
)
from serving import HOST, JSON, Gateway, demo_config
from waiting import wait_until

from tensorgate.adapters.protobuf.messages import message

PREDICTION = "/tensorflow.serving.PredictionService/"
MODEL = "/tensorflow.serving.ModelService/"
PREDICT = f"{PREDICTION}Predict"
METHODS = (
    *(f"{PREDICTION}{name}" for name in ("Predict", "Classify", "Regress", "MultiInference", "GetModelMetadata")),
    *(f"{MODEL}{name}" for name in ("GetModelStatus", "HandleReloadConfigRequest")),
)
REGRESS = "/v1/models/half_plus_three:regress"
CLASSIFY = "/v1/models/half_plus_three:classify"
REGRESSION = "tensorflow/serving/regress"
CLASSES = "classify_x_to_y"
MESSAGE_BYTES = 16 << 20
PATIENT_S = 45.0
FLOAT, INT32, STRING, INT64, BOOL = 1, 3, 7, 9, 10
"""DataType"""


# ----------------------------------------------------------------------------------------------------------- bystanders


class Callers(Bystanders):
    """They call over gRPC as well."""

    def __init__(self, gateway: Gateway) -> None:
        self._channel = grpc.insecure_channel(f"{HOST}:{gateway.grpc_port}", [("grpc.use_local_subchannel_pool", 1)])
        super().__init__(gateway)

    def ask_more(self) -> None:
        self._predict()
        self._regress()

    def _predict(self) -> None:
        answer = self._call(PREDICT, GOOD, "PredictResponse")
        if answer is not None and [*answer.outputs["y"].float_val] != [4.0]:
            self.failures.append(f"Predict: {answer}")

    def _regress(self) -> None:
        answer = self._call(f"{PREDICTION}Regress", GOOD_EXAMPLE, "RegressionResponse")
        if answer is not None and [each.value for each in answer.result.regressions] != [4.0]:
            self.failures.append(f"Regress: {answer}")

    def _call(self, method: str, body: bytes, kind: str) -> Any:
        try:
            return message(f"tensorflow.serving.{kind}").FromString(
                self._channel.unary_unary(method)(body, timeout=PATIENT_S)
            )
        except grpc.RpcError as error:
            self.failures.append(f"{method}: {error.code()} {error.details()}")
            return None

    def end(self) -> None:
        super().end()
        self._channel.close()


BYSTANDERS = Callers
pytestmark = pytest.mark.usefixtures("undisturbed")


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """The demo with small limits."""
    limits = {"max_body_bytes": LIMIT_BYTES, "max_binary_bytes": MESSAGE_BYTES}
    with attacked(tmp_path_factory, demo_config({"slow": SLOW}, limits=limits), slow=SLOW_MODEL) as gateway:
        yield gateway


SLOW_TENSOR = [{"name": "x", "datatype": "INT32", "shape": [1]}]
SLOW = {"backend": "python", "path": "slow.py:Slow", "inputs": SLOW_TENSOR, "outputs": SLOW_TENSOR}
SLOW_MODEL = """
import time

class Slow:
    def __init__(self, context):
        pass

    def infer(self, inputs, request):
        time.sleep(int(inputs["x"][0]) / 1000)
        return dict(inputs)
"""


def outcome(channel: Any, method: str, body: bytes, timeout: float = PATIENT_S) -> tuple[str, str]:
    """(code, details), ("OK", "") if it was answered. Nothing may be told of the server's inside, and in good time."""
    try:
        channel.unary_unary(method)(body, timeout=timeout)
    except grpc.RpcError as error:
        code, details = error.code().name, error.details()
    else:
        code, details = "OK", ""
    assert not [secret for secret in SECRETS if secret in details.encode()]
    assert "nternal error" not in details
    return code, details


# ------------------------------------------------------------------------------------------------------------- messages


def varint(number: int) -> bytes:
    encoded = bytearray()
    while number >= 0x80:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*encoded, number])


def number(field: int, value: int) -> bytes:
    return varint(field << 3) + varint(value & (1 << 64) - 1)


def part(field: int, data: bytes) -> bytes:
    return varint(field << 3 | 2) + varint(len(data)) + data


def tensor(dtype: int, shape: tuple[int, ...], *parts: bytes) -> bytes:
    dims = b"".join(part(2, number(1, size)) for size in shape)
    return number(1, dtype) + part(2, dims) + b"".join(parts)


def spec(model: str, signature: str = "") -> bytes:
    return part(1, part(1, model.encode()) + part(3, signature.encode()))


def predict(value: bytes, model: str = "half_plus_two", name: str = "x") -> bytes:
    return spec(model) + part(2, part(1, name.encode()) + part(2, value))


def feature(name: str, values: bytes) -> bytes:
    """An entry of Features: a list of floats."""
    return part(1, part(1, name.encode()) + part(2, part(2, part(1, values))))


def example(*features: bytes) -> bytes:
    return part(1, b"".join(features))


def regress(examples: list[bytes], context: bytes | None = None) -> bytes:
    listed = b"".join(part(1, each) for each in examples)
    given = part(1, listed) if context is None else part(2, listed + part(2, context))
    return spec("half_plus_three", REGRESSION) + part(2, given)


ONE = struct.pack("<f", 1)
TWO = struct.pack("<f", 2)
GOOD = predict(tensor(FLOAT, (1,), part(4, struct.pack("<f", 4))))
GOOD_EXAMPLE = regress([example(feature("x", TWO))])
GOOD_TASKS = b"".join(
    part(1, spec("half_plus_three", name) + part(2, method.encode()))
    for name, method in ((REGRESSION, REGRESSION), (CLASSES, "tensorflow/serving/classify"))
)
GOOD_BODIES = {
    "Predict": GOOD,
    "Classify": spec("half_plus_three", CLASSES) + part(2, part(1, part(1, example(feature("x", TWO))))),
    "Regress": GOOD_EXAMPLE,
    "MultiInference": GOOD_TASKS + part(2, part(1, part(1, example(feature("x", TWO))))),
    "GetModelMetadata": spec("half_plus_three") + part(2, b"signature_def"),
    "GetModelStatus": spec("half_plus_three"),
    "HandleReloadConfigRequest": part(1, part(2, part(1, b"type.googleapis.com/x"))),
}


# --------------------------------------------------------------------------------------------------------- cut messages

FINE_ENDS = {"OK", "INVALID_ARGUMENT", "NOT_FOUND", "FAILED_PRECONDITION", "UNIMPLEMENTED", "PERMISSION_DENIED"}


def garbage(good: bytes) -> Iterator[bytes]:
    """Bytes that are nothing, and messages that are cut, or have bytes too many or other ones."""
    chance = random.Random(7)  # noqa: S311
    for end in range(len(good)):
        yield good[:end]
    for _ in range(20):
        yield chance.randbytes(chance.choice((1, 3, 20, 300)))
        cut = chance.randrange(len(good))
        yield good[:cut] + chance.randbytes(1) + good[cut + 1 :]
        yield good[:cut] + chance.randbytes(3) + good[cut:]


@pytest.mark.parametrize("method", METHODS)
def test_garbage_to_every_method(channel: Any, method: str) -> None:
    good = GOOD_BODIES[method.rpartition("/")[2]]
    ends = {outcome(channel, method, body)[0] for body in garbage(good)}
    assert ends <= FINE_ENDS
    assert "INVALID_ARGUMENT" in ends


WRONG_TYPES: dict[str, bytes] = {
    "model_spec is a number": number(1, 7),
    "model_spec is 64 bits": varint(1 << 3 | 1) + bytes(8),
    "name is no UTF-8": part(1, part(1, b"\xff\xfe")),
    "inputs is a number": spec("half_plus_two") + number(2, 1),
    "an input's name is a number": spec("half_plus_two") + part(2, number(1, 1)),
    "an input is 32 bits": spec("half_plus_two") + part(2, part(1, b"x") + varint(2 << 3 | 5) + bytes(4)),
    "dtype is text": predict(part(1, b"DT_FLOAT")),
    "a float that is cut": predict(tensor(FLOAT, (1,), part(5, ONE[:3]))),
    "a group that stays open": GOOD + varint(9 << 3 | 3),
    "a group that was never opened": GOOD + varint(9 << 3 | 4),
    "100000 groups": GOOD + varint(9 << 3 | 3) * 100_000,
    "field 0": GOOD + number(0, 1),
    "wire type 7": GOOD + varint(9 << 3 | 7),
    "a varint without end": GOOD + b"\x80" * 100,
    "a length of 2^63": spec("half_plus_two") + varint(2 << 3 | 2) + varint(1 << 63),
    "a length of 2^31": spec("half_plus_two") + varint(2 << 3 | 2) + varint(1 << 31),
}


@pytest.mark.parametrize("body", WRONG_TYPES.values(), ids=WRONG_TYPES)
def test_wrong_wire_types(channel: Any, body: bytes) -> None:
    code, details = outcome(channel, PREDICT, body)
    assert (code, bool(details)) == ("INVALID_ARGUMENT", True)


# ---------------------------------------------------------------------------------------------------------- odd tensors

PARSING = "tensor parsing error: x"
ODD_TENSORS: dict[str, tuple[bytes, str]] = {
    "10^12 floats from one": (tensor(FLOAT, (10**12,), part(5, ONE)), PARSING),
    "10^12 floats from none": (tensor(FLOAT, (10**12,)), PARSING),
    "10^6 x 10^6 x 10^6 x 10^6": (tensor(FLOAT, (10**6,) * 4, part(5, ONE)), PARSING),
    "2^63 - 1": (tensor(FLOAT, (2**63 - 1,), part(5, ONE)), PARSING),
    "2^62 twice": (tensor(FLOAT, (2**62, 2**62), part(5, ONE)), PARSING),
    "none of 10^18 rows": (tensor(FLOAT, (10**18, 0, 10**18)), PARSING),
    "a dimension below 0": (tensor(FLOAT, (-1,), part(5, ONE)), PARSING),
    "300 dimensions": (tensor(FLOAT, (1,) * 300, part(5, ONE)), PARSING),
    "100000 dimensions": (tensor(FLOAT, (1,) * 100_000, part(5, ONE)), PARSING),
    "no dtype": (tensor(0, (1,), part(5, ONE)), PARSING),
    "a dtype that nobody knows": (tensor(99, (1,), part(5, ONE)), PARSING),
    "a reference": (tensor(101, (1,), part(5, ONE)), ""),
    "content too short": (tensor(FLOAT, (2,), part(4, ONE)), PARSING),
    "content too long": (tensor(FLOAT, (1,), part(4, ONE * 2)), PARSING),
    "content of half a float": (tensor(FLOAT, (1,), part(4, ONE[:2])), PARSING),
    "content for 10^12": (tensor(FLOAT, (10**12,), part(4, ONE)), PARSING),
    "resources": (tensor(20, (1,), part(14, b"")), ""),
    "variants": (tensor(21, (1,), part(15, b"")), ""),
    "64 MB of floats from one": (tensor(FLOAT, (16 << 20,), part(5, ONE)), PARSING),
}


@pytest.mark.parametrize(("value", "text"), ODD_TENSORS.values(), ids=ODD_TENSORS)
def test_odd_tensors(channel: Any, value: bytes, text: str) -> None:
    code, details = outcome(channel, PREDICT, predict(value))
    assert code == "INVALID_ARGUMENT"
    assert details.startswith(text)


ODD_STRINGS: dict[str, bytes] = {
    "lengths beyond the end": tensor(STRING, (1,), part(8, b"")[:0], part(4, varint(100) + b"abc")),
    "a length of 2^63": tensor(STRING, (1,), part(4, varint(1 << 63) + b"abc")),
    "lengths that overflow": tensor(STRING, (2,), part(4, varint((1 << 64) - 1) + varint(4) + b"abc")),
    "a length without end": tensor(STRING, (1,), part(4, b"\x80" * 20)),
    "a length that is cut": tensor(STRING, (2,), part(4, b"\x01\x80")),
    "bytes left over": tensor(STRING, (1,), part(4, b"\x01abc")),
    "fewer lengths than strings": tensor(STRING, (3,), part(4, b"\x00\x00")),
    "10^12 strings": tensor(STRING, (10**12,), part(4, b"\x00" * 100)),
    "10^12 strings from none": tensor(STRING, (10**12,)),
    "10^8 strings from one": tensor(STRING, (10**8,), part(8, b"a")),
    "10^6 large strings from one": tensor(STRING, (10**7,), part(8, b"a" * 1000)),
}


@pytest.mark.parametrize("value", ODD_STRINGS.values(), ids=ODD_STRINGS)
def test_odd_strings(channel: Any, value: bytes) -> None:
    code, details = outcome(channel, PREDICT, predict(value, "upper", "text"))
    assert (code, details[:25]) == ("INVALID_ARGUMENT", "tensor parsing error: tex")


def test_bytes_that_are_no_text_are_the_models_to_refuse(channel: Any) -> None:
    code, details = outcome(channel, PREDICT, predict(tensor(STRING, (1,), part(8, b"\xff")), "upper", "text"))
    assert (code, "UTF-8" in details) == ("INVALID_ARGUMENT", True)


# --------------------------------------------------------------------------------------------------------------- plenty

PLENTY: dict[str, tuple[str, Callable[[], bytes]]] = {
    "100000 inputs": (
        PREDICT,
        lambda: GOOD + b"".join(part(2, part(1, b"i%d" % index) + part(2, b"")) for index in range(100_000)),
    ),
    "100000 times the same input": (PREDICT, lambda: GOOD + part(2, part(1, b"x") + part(2, b"")) * 100_000),
    "100000 outputs": (PREDICT, lambda: GOOD + part(3, b"y") * 100_000),
    "100000 unknown fields": (PREDICT, lambda: GOOD + number(99, 1) * 100_000),
    "a name of 5 MB": (PREDICT, lambda: predict(b"", "m" * (5 << 20))),
    "an input of a name of 5 MB": (PREDICT, lambda: predict(b"", name="x" * (5 << 20))),
    "300000 fields of one value": (
        PREDICT,
        lambda: predict(tensor(FLOAT, (300_000,), (varint(5 << 3 | 5) + ONE) * 300_000)),
    ),
    "100000 examples without features": (f"{PREDICTION}Regress", lambda: regress([b""] * 100_000)),
    "an example of 100000 features": (
        f"{PREDICTION}Regress",
        lambda: regress([example(*(feature(f"f{index}", ONE) for index in range(100_000)))]),
    ),
    "100000 times the same feature": (f"{PREDICTION}Regress", lambda: regress([example(feature("x", ONE) * 100_000)])),
    "a large context for many examples": (
        f"{PREDICTION}Regress",
        lambda: regress([b""] * 50_000, example(feature("x", ONE * 500_000))),
    ),
    "a context of many features for many examples": (
        f"{PREDICTION}Regress",
        lambda: regress([b""] * 10_000, example(*(feature(f"f{index}", ONE) for index in range(10_000)))),
    ),
    "examples of different lengths": (
        f"{PREDICTION}Regress",
        lambda: regress([example(feature("x", ONE * size)) for size in range(1000)]),
    ),
    "100000 tasks": (f"{PREDICTION}MultiInference", lambda: GOOD_TASKS * 50_000),
    "100000 metadata fields": (
        f"{PREDICTION}GetModelMetadata",
        lambda: spec("half_plus_two") + part(2, b"signature_def") * 100_000 + part(2, b"x"),
    ),
    "100000 models": (
        f"{MODEL}HandleReloadConfigRequest",
        lambda: part(1, part(1, part(1, part(1, b"m") + part(2, b"/m") + part(4, b"tensorflow")) * 100_000)),
    ),
    "models below the root": (
        f"{MODEL}HandleReloadConfigRequest",
        lambda: part(1, part(1, part(1, part(1, b"../m") + part(2, b"/../etc") + part(4, b"tensorflow")))),
    ),
    "100000 metric names": (
        f"{MODEL}HandleReloadConfigRequest",
        lambda: GOOD_BODIES["HandleReloadConfigRequest"] + part(2, b":a") * 100_000,
    ),
}


@pytest.mark.parametrize(("method", "body"), PLENTY.values(), ids=PLENTY)
def test_plenty(gateway: Gateway, channel: Any, method: str, body: Callable[[], bytes]) -> None:
    before = gateway.rss_bytes()
    assert outcome(channel, method, body())[0] in FINE_ENDS
    assert gateway.rss_bytes() - before < 400 << 20


def test_a_message_that_is_too_large(channel: Any) -> None:
    code, _ = outcome(channel, PREDICT, predict(tensor(FLOAT, (5 << 20,), part(4, ONE * (5 << 20)))))
    assert code == "RESOURCE_EXHAUSTED"


def test_a_compressed_message_that_is_too_large(gateway: Gateway) -> None:
    options = [("grpc.use_local_subchannel_pool", 1), ("grpc.max_send_message_length", -1)]
    body = predict(tensor(FLOAT, (10 << 20,), part(4, bytes(40 << 20))))
    gzipped = grpc.Compression.Gzip
    with grpc.insecure_channel(f"{HOST}:{gateway.grpc_port}", options, gzipped) as channel:
        begun = gateway.rss_bytes()
        with pytest.raises(grpc.RpcError) as caught:
            channel.unary_unary(PREDICT)(body, timeout=PATIENT_S)
    assert caught.value.code().name in ("RESOURCE_EXHAUSTED", "INTERNAL")
    assert gateway.rss_bytes() - begun < 100 << 20


# ---------------------------------------------------------------------------------------------------------- no patience


def test_cancelled_calls_are_not_computed(gateway: Gateway, channel: Any) -> None:
    ask = channel.unary_unary(PREDICT)
    slow = predict(tensor(INT32, (1,), part(7, varint(1000))), "slow")
    calls = [ask.future(slow, timeout=PATIENT_S) for _ in range(100)]
    wait_until(lambda: gateway.metrics().total("tensorgate_running_requests", model="slow"))
    for call in calls:
        call.cancel()
    ask(predict(tensor(INT32, (1,), part(7, varint(1))), "slow"), timeout=PATIENT_S)


def test_a_storm_of_deadlines(channel: Any) -> None:
    ask = channel.unary_unary(PREDICT)

    def hurry(_: int) -> str:
        try:
            return str(len(ask(GOOD, timeout=0.001)))
        except grpc.RpcError as error:
            return str(error.code().name)

    with ThreadPoolExecutor(8) as threads:
        outcomes = {*threads.map(hurry, range(500))}
    assert outcomes <= {"DEADLINE_EXCEEDED", "CANCELLED", str(len(ask(GOOD, timeout=PATIENT_S)))}


# ----------------------------------------------------------------------------------------------------------------- JSON


def examples(*features: Any, context: Any = None, signature: str = REGRESSION) -> bytes:
    body = {"signature_name": signature, "examples": [*features]}
    return json.dumps(body if context is None else body | {"context": context}).encode()


REFUSED: dict[str, tuple[Body, str]] = {
    "no object": (b"[]", "Is not object"),
    "nothing": (b"", "The document is empty"),
    "cut": (examples({"x": 1.0})[:-5], "JSON Parse error: "),
    "no examples": (b"{}", "key 'examples' is expected and was not found"),
    "examples is an object": (b'{"examples": {}}', "to be an list/array"),
    "examples is empty": (b'{"examples": []}', "is an empty array"),
    "an example is a list": (examples([1.0]), "Example must be JSON object but got JSON "),
    "context is a list": (examples({"x": 1.0}, context=[1]), "Example must be JSON object but got JSON "),
    "null": (examples({"x": None}), "Feature: x has element with unexpected JSON type: Null"),
    "nested": (examples({"x": [[1.0]]}), "Feature: x has element with unexpected JSON type: Array"),
    "mixed": (examples({"x": [1.0, "a"]}), "Unexpected element type in feature: x expecting type: float"),
    "uint64": (examples({"x": 2**64 - 1}), "Feature: x has uint64_t element. Only int64_t is supported."),
    "1e400": (b'{"examples": [{"x": 1e400}]}', "Number too big to be stored in double."),
    "no base64": (examples({"x": {"b64": "*"}}), "ase64"),
    "a whole number": (examples({"x": 1}), ""),
    "nothing for x": (examples({}), ""),
    "two lengths": (examples({"x": [1.0]}, {"x": [1.0, 2.0]}), ""),
    "many examples of nothing": (lambda: examples(*[{}] * 500_000), ""),
    "many features": (lambda: examples({f"f{index}": 1.0 for index in range(200_000)}), ""),
    "a large context for many examples": (
        lambda: examples(*[{}] * 100_000, context={"x": [1.0] * 500_000}),
        "",
    ),
    "many features in a context for many examples": (
        lambda: examples(*[{}] * 100_000, context={f"f{index}": 1.0 for index in range(100_000)}),
        "",
    ),
    "100000 levels": (b'{"examples": [{"x": ' + b"[" * 100_000, ""),
}


@pytest.mark.parametrize("path", [REGRESS, CLASSIFY])
@pytest.mark.parametrize(("body", "text"), REFUSED.values(), ids=REFUSED)
def test_examples_that_are_refused(gateway: Gateway, path: str, body: Body, text: str) -> None:
    sent = body if isinstance(body, bytes) else body()
    if path == CLASSIFY:
        sent = sent.replace(REGRESSION.encode(), CLASSES.encode())
    before = gateway.rss_bytes()
    answer = gateway.post(path, sent)
    assert gateway.rss_bytes() - before < 400 << 20
    check_refusal("tf_serving", answer, 400, text)


def test_a_body_that_becomes_large(gateway: Gateway) -> None:
    """As no body at all: TensorFlow Serving drops what it will not unpack."""
    bomb = zlib.compressobj(wbits=31)
    body = b"".join([bomb.compress(b" " * (1 << 20)) for _ in range(200)]) + bomb.flush()
    for unfit in (body, body[:1000], gzip.compress(examples({"x": 1.0}))[:-9], b"\x1f\x8b" + bytes(100)):
        before = gateway.rss_bytes()
        answer = gateway.request("POST", REGRESS, unfit, JSON | {"Content-Encoding": "gzip"})
        assert answer.status in (400, 413), answer.body[:300]
        assert answer.json.keys() == {"error"}
        assert gateway.rss_bytes() - before < 100 << 20


def test_a_slow_sender_is_answered_in_the_end(gateway: Gateway, bystanders: Bystanders) -> None:
    body, rounds = examples({"x": 1.0}), bystanders.rounds
    with closing_connection(gateway) as sock:
        sock.sendall(f"POST {REGRESS} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n".encode())
        for byte in body:
            sock.sendall(bytes([byte]))
            bystanders.pause()
        answer = read_answer(sock)
    assert (answer.status, answer.json) == (200, {"results": [3.5]})
    assert bystanders.rounds > rounds

"""The same attacks on what Open Inference V2 has besides infer: generate, settings, model control, shared memory,
sequences, and all of it over gRPC.
"""

import json
import random
import re
import socket
import struct
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import pytest
from attacks import LIMIT_BYTES, SECRETS, WITHIN_S, Body, attacked, closing_connection, read_answer
from serving import Gateway, demo_config
from waiting import wait_until

from tensorgate.adapters.protobuf.messages import message

SERVICE = "/inference.GRPCInferenceService"
METHODS = (
    *("ServerLive", "ServerReady", "ModelReady", "ServerMetadata", "ModelMetadata", "ModelConfig", "ModelStatistics"),
    *("RepositoryIndex", "RepositoryModelLoad", "RepositoryModelUnload", "TraceSetting", "LogSettings", "ModelInfer"),
    *("SystemSharedMemoryStatus", "SystemSharedMemoryRegister", "SystemSharedMemoryUnregister"),
    *("CudaSharedMemoryStatus", "CudaSharedMemoryRegister", "CudaSharedMemoryUnregister", "ModelStreamInfer"),
)


pytestmark = pytest.mark.usefixtures("undisturbed")


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """The demo with everything allowed that callers may change."""
    control = {"mode": "explicit", "load": ["*"], "allow_uploads": True}
    limits, memory = {"max_body_bytes": LIMIT_BYTES}, {"system": True}
    with attacked(tmp_path_factory, demo_config(limits=limits, model_control=control, shared_memory=memory)) as gateway:
        yield gateway


# ---------------------------------------------------------------------------------------------------------------- HTTP

GENERATE = "/v2/models/upper/generate"
STREAM = "/v2/models/countdown/generate_stream"
TRACE = "/v2/trace/setting"
LOGGING = "/v2/logging"
INDEX = "/v2/repository/index"
LOAD = "/v2/repository/models/upper/load"
UNLOAD = "/v2/repository/models/upper/unload"
REGISTER = "/v2/systemsharedmemory/region/r/register"
SUM = "/v2/models/running_sum/infer"
READING = (GENERATE, STREAM, TRACE, LOGGING, INDEX, LOAD, UNLOAD, REGISTER, SUM)
"""Every address that reads a JSON body."""

NO_JSON: dict[str, Body] = {
    "truncated": b'{"inputs": [{"name": "x", "sha',
    "not-utf-8": b'{"a": "\xff\xfe"}',
    "surrogate": b'{"a": "\\ud800"}',
    "1e400": b'{"a": 1e400}',
    "5000-digits": b'{"a": %b}' % (b"1" * 5000),
    "2000-levels": b'{"a":' * 2000 + b"1" + b"}" * 2000,
    "4-mb-of-brackets": lambda: b"[" * (4 << 20),
    "4-mb-of-objects": lambda: b'{"a":' * 800_000,
}


DEEP = ("2000-levels", "4-mb-of-brackets", "4-mb-of-objects")
TOO_DEEP = "JSON nesting depth exceeds maximum allowed limit (100)"


@pytest.mark.parametrize("path", READING)
@pytest.mark.parametrize("name", NO_JSON)
def test_what_is_no_json_is_refused(gateway: Gateway, path: str, name: str) -> None:
    body: Body = NO_JSON[name]
    used = gateway.cpu_s()
    answer = gateway.post(path, body if isinstance(body, bytes) else body())
    assert gateway.cpu_s() - used < WITHIN_S
    assert answer.status == 400, answer.body[:300]
    assert answer.json["error"].startswith(TOO_DEEP if name in DEEP else "failed to parse the request JSON buffer: ")
    assert answer.headers["Content-Type"] == "application/json"


def of_sequence(**parameters: Any) -> bytes:
    tensor = {"name": "INPUT", "datatype": "INT32", "shape": [1, 1], "data": [1]}
    return json.dumps({"inputs": [tensor], "parameters": parameters}).encode()


def load(config: Any = None, **files: str) -> bytes:
    return json.dumps({"parameters": {**({} if config is None else {"config": config}), **files}}).encode()


REFUSED: list[tuple[str, bytes, int, str]] = [
    (GENERATE, b"[]", 400, "attempt to get members for non-object"),
    (GENERATE, b'{"text":[["a","b"]]}', 400, "unexpected number of string elements 2"),
    (GENERATE, b'{"text":"a","text":"b"}', 400, "input 'text' already exists in request"),
    (GENERATE, b'{"text":"a","parameters":{"text":"b"}}', 400, "input 'text' already exists in request"),
    (GENERATE, b'{"text":"a","parameters":[]}', 400, "Expected JSON object for keyword: 'parameters'"),
    (GENERATE, b'{"text":"a","more":null}', 400, "parameter 'more' has invalid type"),
    (GENERATE, b'{"text":"a","id":7}', 400, "Unable to parse 'id'"),
    (GENERATE, b'{"text":17}', 400, "Unable to parse JSON bytes array"),
    (STREAM, b'{"start":[1,2]}', 400, "can not convert input 'start'"),
    (STREAM, b'{"start":1e300}', 400, "Unable to parse 'data'"),
    (STREAM, b'{"start":99999999999}', 400, "out of range for INT32"),
    (STREAM, b"{}", 400, "expected 1 inputs but got 0 inputs"),
    (GENERATE.replace("upper", "countdown"), b'{"start":2}', 400, "expects model to produce exactly 1 response"),
    (TRACE, b'{"trace_rate":1}', 400, "attempt to access JSON non-string as string"),
    (TRACE, b'{"trace_rate":"99999999999999999999999"}', 400, "Unable to parse 'trace_rate'"),
    (TRACE, b'{"trace_file":"/etc/passwd"}', 501, "trace file location can not be updated"),
    (TRACE, b'{"trace_level":{"a":1}}', 400, "non-array as array"),
    (LOGGING, b'{"log_info":1}', 400, "non-boolean as boolean"),
    (LOGGING, b'{"log_verbose_level":18446744073709551616}', 400, "non-unsigned-integer"),
    (LOGGING, b'{"log_file":"/etc/passwd"}', 501, "log file location can not be updated"),
    (INDEX, b'{"ready":"yes"}', 400, "Unable to parse 'ready'"),
    (LOAD, b'{"parameters":[]}', 400, "Unable to parse 'parameters'"),
    (LOAD, load("{"), 400, "failed to load 'upper'"),
    (LOAD, load('{"max_batch_size":1e300}'), 400, "failed to load 'upper'"),
    (LOAD, load('{"instance_group":[{"count":1000000}]}'), 400, "failed to load 'upper'"),
    (LOAD, load(**{"file:1/model.py": "YQ=="}), 400, "files need a configuration"),
    (LOAD, load("{}", **{"file:../../x": "YQ=="}), 400, "does not lie below the model's folder"),
    (LOAD, load("{}", **{"file:/etc/x": "YQ=="}), 400, "does not lie below the model's folder"),
    (LOAD, load("{}", **{"file:1/model.onnx": "*"}), 400, "failed to decode base64"),
    (LOAD, load(unknown="x"), 400, "unrecognized load parameter 'unknown'."),
    ("/v2/repository/models/..%2f..%2fetc/load", b"", 500, "failed to poll from model repository"),
    ("/v2/repository/models/%00/load", b"", 500, "failed to poll from model repository"),
    ("/v2/repository/else/models/upper/load", b"", 501, "'repository_name' specification is not supported"),
    (UNLOAD, b'{"parameters":{"unload_dependents":7}}', 400, "Unable to parse 'unload_dependents'"),
    (REGISTER, b"{}", 400, "has no 'key' field"),
    (REGISTER, b'{"key":"/x","byte_size":-1}', 400, "Unable to parse 'byte_size'"),
    (REGISTER, b'{"key":"/../etc/passwd","byte_size":64}', 500, "Unable to open shared memory region"),
    (REGISTER, b'{"key":"\\u0000","byte_size":64}', 500, "Unable to open shared memory region"),
    (REGISTER.replace("system", "cuda"), b'{"raw_handle":{"b64":"*"},"device_id":0,"byte_size":1}', 400, "base64"),
    (SUM, of_sequence(), 400, "must specify a non-zero or non-empty correlation ID"),
    (SUM, of_sequence(sequence_id=2**64), 400, "Unable to parse 'sequence_id'"),
    (SUM, of_sequence(sequence_id="x" * 129), 501, "cannot be longer than 128 characters"),
    (SUM, of_sequence(sequence_id=7), 400, "must specify the START flag on the first request"),
    (SUM, of_sequence(sequence_id=7, sequence_start="yes"), 400, "Unable to parse 'sequence_start'"),
    (SUM, of_sequence(triton_x=1), 400, "reserved for Triton usage"),
]


@pytest.mark.parametrize(("path", "body", "status", "text"), REFUSED, ids=lambda value: str(value)[:40])
def test_refused(gateway: Gateway, path: str, body: bytes, status: int, text: str) -> None:
    answer = gateway.post(path, body)
    assert (answer.status, text in answer.json["error"]) == (status, True), answer.body[:300]
    assert not [secret for secret in SECRETS if secret in answer.body]


ODD_PATHS = [
    ("GET", "/v2/models/stats/stats", 400),
    ("GET", "/v2/models/%ff%fe/config", 404),
    ("GET", "/v2/models/%00/stats", 400),
    ("GET", "/v2/models/upper/versions/99999999999999999999/config", 400),
    ("GET", "/v2/models/upper/versions/1e3/config", 404),
    ("GET", "/v2/models/upper/config/", 404),
    ("GET", GENERATE, 405),
    ("DELETE", LOGGING, 405),
    ("PUT", INDEX, 405),
    ("GET", LOAD, 405),
    ("POST", "/v2/models/upper/versions/1/trace/setting", 404),
    ("POST", "/v2/repository/models//load", 404),
    ("GET", "/v2/systemsharedmemory/region//status", 404),
    ("GET", "/v2/systemsharedmemory/region/%ff/status", 404),
]


@pytest.mark.parametrize(("method", "path", "status"), ODD_PATHS)
def test_odd_addresses(gateway: Gateway, method: str, path: str, status: int) -> None:
    answer = gateway.request(method, path)
    assert (answer.status, [*answer.json]) == (status, ["error"])


@pytest.mark.parametrize(
    "more", [b"Content-Length: 2\r\n\r\n{}", b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n"]
)
def test_a_header_that_is_no_text_is_refused(gateway: Gateway, more: bytes) -> None:
    with closing_connection(gateway) as sock:
        head = b"POST /v2/models/upper/infer HTTP/1.1\r\nHost: x\r\nInference-Header-Content-Length: \xff\r\n"
        sock.sendall(head + more)
        answer = read_answer(sock)
    assert (answer.status, answer.json) == (400, {"error": "Unable to parse Inference-Header-Content-Length, got: ?"})


def stream_request(start: int) -> bytes:
    body = b'{"start":%d}' % start
    return b"POST %b HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%b" % (STREAM.encode(), len(body), body)


def until(done: Callable[[], bool]) -> None:
    wait_until(done, lambda: "What callers left behind still runs.")


def nothing_waits(gateway: Gateway) -> bool:
    return gateway.metrics().total("tensorgate_queued_requests") == 0 and countdown_is_free(gateway)


def countdown_is_free(gateway: Gateway) -> bool:
    used = gateway.cpu_s()
    assert gateway.post(STREAM, b'{"start":0}').body.count(b"data: ") == 1
    return gateway.cpu_s() - used < WITHIN_S


def test_200_streams_that_leave(gateway: Gateway) -> None:
    """The model counts to a million for each of them, one after the other: it is free again at once."""
    socks = [closing_connection(gateway) for _ in range(200)]
    for sock in socks:
        sock.sendall(stream_request(1_000_000))
    assert socks[0].recv(1000).startswith(b"HTTP/1.1 200")
    for sock in socks:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        sock.close()
    until(lambda: nothing_waits(gateway))


def test_what_is_pipelined_behind_a_stream_is_answered_behind_it(gateway: Gateway) -> None:
    infer = b'{"inputs":[{"name":"text","datatype":"BYTES","shape":[1],"data":["a"]}]}'
    head = b"POST /v2/models/upper/infer HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: %d\r\n\r\n"
    with closing_connection(gateway) as sock:
        sock.sendall(stream_request(1) * 3 + head % len(infer) + infer)
        said = b""
        while chunk := sock.recv(1 << 16):
            said += chunk
    assert [*re.findall(rb'"count":(\d)|"data":\["(A)"\]', said)] == [(b"1", b""), (b"0", b"")] * 3 + [(b"", b"A")]


# ---------------------------------------------------------------------------------------------------------------- gRPC


def infer_message(model: str, name: str, datatype: str, raw: bytes) -> bytes:
    tensor = {"name": name, "datatype": datatype, "shape": [1]}
    request: Any = message("inference.ModelInferRequest")
    body: bytes = request(model_name=model, inputs=[tensor], raw_input_contents=[raw]).SerializeToString()
    return body


GOOD = infer_message("half_plus_two", "x", "FP32", struct.pack("<f", 4))
ENDLESS = infer_message("countdown", "start", "INT32", struct.pack("<i", 1_000_000))


def garbage() -> Iterator[bytes]:
    """Bytes that are nothing, and messages that are cut, or have a byte too many or another one."""
    chance = random.Random(7)  # noqa: S311
    for _ in range(10):
        yield chance.randbytes(chance.choice((1, 3, 20, 300)))
        cut = chance.randrange(len(GOOD))
        yield GOOD[:cut]
        yield GOOD[:cut] + chance.randbytes(1) + GOOD[cut + 1 :]
        yield GOOD[:cut] + chance.randbytes(3) + GOOD[cut:]


@pytest.mark.parametrize("method", METHODS)
def test_garbage_to_every_method(channel: Any, method: str) -> None:
    ends: list[tuple[str, str]] = []
    for body in garbage():
        try:
            if method == "ModelStreamInfer":
                [*channel.stream_stream(f"{SERVICE}/{method}")(iter([body, body]), timeout=10)]
            else:
                channel.unary_unary(f"{SERVICE}/{method}")(body, timeout=10)
        except grpc.RpcError as error:
            ends.append((error.code().name, error.details()))
    assert not {code for code, _ in ends} & {"UNKNOWN", "DEADLINE_EXCEEDED", "CANCELLED"}
    assert "internal error" not in {text for _, text in ends}


@pytest.mark.parametrize("method", ["/grpc.health.v1.Health/Check", f"{SERVICE}/Nothing", "//", "/"])
def test_garbage_beside_the_methods(channel: Any, method: str) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        channel.unary_unary(method)(b"\xff\xff\xff", timeout=10)
    assert caught.value.code().name in ("INVALID_ARGUMENT", "UNIMPLEMENTED")


def test_grpc_streams_that_leave(gateway: Gateway, channel: Any) -> None:
    ask = channel.stream_stream(f"{SERVICE}/ModelStreamInfer")
    calls = [ask(iter([ENDLESS] * 3))]
    next(calls[0])  # the model is its own now, and no other's turn comes
    calls += [ask(iter([ENDLESS] * 3)) for _ in range(89)]  # a connection takes 100 at a time
    until(lambda: gateway.metrics().total("tensorgate_queued_requests") >= 89)
    for call in calls:
        call.cancel()
    until(lambda: nothing_waits(gateway))


def test_a_storm_of_deadlines(gateway: Gateway, channel: Any) -> None:
    ask = channel.unary_unary(f"{SERVICE}/ModelInfer")

    def hurry(_: int) -> str:
        try:
            return str(len(ask(GOOD, timeout=0.001)))
        except grpc.RpcError as error:
            return str(error.code().name)

    with ThreadPoolExecutor(8) as threads:
        outcomes = {*threads.map(hurry, range(500))}
    assert outcomes <= {"DEADLINE_EXCEEDED", "CANCELLED", str(len(ask(GOOD, timeout=10)))}
    until(lambda: nothing_waits(gateway))


def test_large_metadata_is_refused(channel: Any) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        channel.unary_unary(f"{SERVICE}/ModelInfer")(GOOD, metadata=[("a", "b" * 70_000)], timeout=10)
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


def test_long_names_are_forgotten(gateway: Gateway, channel: Any) -> None:
    """120 names of 4 MB each, of which none is there."""
    request: Any = message("inference.ModelReadyRequest")
    ask = channel.unary_unary(f"{SERVICE}/ModelReady")
    body = b'{"inputs":[{"name":"x","datatype":"FP32","shape":[1],"data":[1]}],"outputs":[{"name":"%d%b"}]}'
    infer = "/v2/models/half_plus_two/infer"
    assert gateway.post(infer, body % (0, b"n" * (4 << 20))).status == 400
    before = gateway.rss_bytes()
    for number in range(1, 121):
        assert gateway.post(infer, body % (number, b"n" * (4 << 20))).status == 400
    assert gateway.rss_bytes() - before < 250 << 20
    assert ask(request(name="n" * 100_000).SerializeToString()) == b""

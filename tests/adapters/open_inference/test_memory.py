"""Shared memory over HTTP: the calls that manage regions, and requests whose tensors lie in them."""

import json
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import orjson
import pytest

from tensorgate.adapters.open_inference import KIND
from tensorgate.adapters.open_inference.options import OpenInferenceOptions
from tensorgate.adapters.open_inference.request import _json_templates
from tensorgate.gateway.contract import errors
from tensorgate.gateway.contract.call import Call, MustOffload
from tensorgate.gateway.contract.canonical import InferRequest, InferResponse, ModelView, OutputRequest
from tensorgate.gateway.contract.dialect import Resolve
from tensorgate.gateway.contract.errors import Code, GatewayError
from tensorgate.gateway.contract.memory import Memory
from tensorgate.gateway.contract.questions import (
    Region,
    RegionStatus,
    RegisterRegion,
    ServerDescription,
    ServerMetadata,
    UnregisterRegion,
)
from tensorgate.gateway.contract.tensor import DTYPES

DIALECT = KIND.make(OpenInferenceOptions())
NO_STRING = "attempt to access JSON non-string as string"
UNSIGNED = "attempt to access JSON non-unsigned-integer as unsigned-integer"


class Buffers:
    """Regions that are bytes of this process."""

    def __init__(self, **regions: bytes) -> None:
        self.regions = {name: bytearray(content) for name, content in regions.items()}

    def view(self, name: str, offset: int, byte_size: int, *, writable: bool = False) -> Memory:
        if name not in self.regions:
            raise errors.RegionNotFound(name)
        if offset + byte_size > len(self.regions[name]):
            raise errors.RegionRange(name)
        view = memoryview(self.regions[name])[offset : offset + byte_size]
        return view if writable else view.toreadonly()


@pytest.fixture
def resolve(make_model: Callable[..., ModelView], make_resolve: Callable[..., Resolve]) -> Resolve:
    views = [make_model(name, {"x": (name, None)}, {"y": (name, None), "z": (name, None)}) for name in DTYPES]
    return make_resolve(*views)


def ask(resolve: Any, line: str, body: bytes = b"", regions: Any = None, **call: Any) -> Any:
    """The question of a request, or (status, text) of its refusal."""
    method, target = line.split(" ", 1)
    match = DIALECT.match(method, target)
    more = {} if regions is None else {"regions": regions}
    message = Call(body, method, target, {}, "http", match.args, **more, **call)
    try:
        return match.endpoint.decode(message, resolve)
    except GatewayError as error:
        reply = match.endpoint.encode_error(error, message)
        return reply.http_status, json.loads(bytes(reply.body))["error"]  # type: ignore[arg-type]


def infer(
    resolve: Any,
    regions: Any,
    datatype: str,
    shape: list[int],
    parameters: Mapping[str, Any] | None = None,
    outputs: Any = (),
    data: Any = None,
    **call: Any,
) -> Any:
    tensor: dict[str, Any] = {"name": "x", "datatype": datatype, "shape": shape}
    tensor |= {} if parameters is None else {"parameters": parameters}
    tensor |= {} if data is None else {"data": data}
    body = json.dumps({"inputs": [tensor], "outputs": outputs}).encode()
    return ask(resolve, f"POST /v2/models/{datatype}/infer", body, regions, **call)


def at(name: str, byte_size: int, offset: int = 0, **more: Any) -> dict[str, Any]:
    where = {"shared_memory_region": name, "shared_memory_byte_size": byte_size}
    return where | ({"shared_memory_offset": offset} if offset else {}) | more


# --------------------------------------------------------------------------------------------------------- the regions

QUESTIONS: list[tuple[str, bytes, Any]] = [
    ("GET /v2/systemsharedmemory/status", b"", RegionStatus("system")),
    ("GET /v2/systemsharedmemory/region/a%20b/status?x=1", b"", RegionStatus("system", "a b")),
    ("GET /v2/cudasharedmemory/region/r/status", b"", RegionStatus("cuda", "r")),
    ("GET /v2/cudasharedmemory/status", b"", RegionStatus("cuda")),
    ("POST /v2/systemsharedmemory/unregister", b"", UnregisterRegion("system")),
    ("POST /v2/systemsharedmemory/region/r/unregister", b"", UnregisterRegion("system", "r")),
    ("POST /v2/cudasharedmemory/unregister", b"", UnregisterRegion("cuda")),
    ("POST /v2/cudasharedmemory/region/r/unregister", b"", UnregisterRegion("cuda", "r")),
    (
        "POST /v2/systemsharedmemory/region/r/register",
        b'{"key":"/k","offset":8,"byte_size":18446744073709551615}',
        RegisterRegion("system", Region("r", 2**64 - 1, "/k", 8)),
    ),
    (
        "POST /v2/systemsharedmemory/region/status/register",
        b'{"key":"k","byte_size":1,"more":[]}',
        RegisterRegion("system", Region("status", 1, "k")),
    ),
    (
        "POST /v2/cudasharedmemory/region/r/register",
        b'{"raw_handle":{"b64":"AAEC"},"device_id":1,"byte_size":64}',
        RegisterRegion("cuda", Region("r", 64, device_id=1), b"\0\1\2"),
    ),
]


@pytest.mark.parametrize(("line", "body", "question"), QUESTIONS)
def test_questions(line: str, body: bytes, question: Any, resolve: Resolve) -> None:
    assert ask(resolve, line, body) == question
    changes = not isinstance(question, RegionStatus)
    assert DIALECT.match(*line.split(" ", 1)).endpoint.admin == changes


REFUSED: list[tuple[str, bytes, int, str]] = [
    ("GET /v2/systemsharedmemory", b"", 404, "Not Found"),
    ("GET /v2/systemsharedmemory/", b"", 404, "Not Found"),
    ("POST /v2/systemsharedmemory/register", b"", 404, "Not Found"),
    ("POST /v2/systemsharedmemory/region//register", b"", 404, "Not Found"),
    ("GET /v2/systemsharedmemory/region/r", b"", 404, "Not Found"),
    ("GET /v2/systemsharedmemory/region/r/status/", b"", 404, "Not Found"),
    ("GET /v2/xpusharedmemory/status", b"", 404, "Not Found"),
    ("POST /v2/systemsharedmemory/status", b"", 405, "Method Not Allowed"),
    ("GET /v2/systemsharedmemory/region/r/register", b"", 405, "Method Not Allowed"),
    ("GET /v2/cudasharedmemory/unregister", b"", 405, "Method Not Allowed"),
    ("POST S", b"", 400, "failed to parse the request JSON buffer: The document is empty. at 0"),
    ("POST S", b"[]", 400, "Shared memory register request has no 'key' field"),
    ("POST S", b'{"byte_size":1}', 400, "Shared memory register request has no 'key' field"),
    ("POST S", b'{"key":"k"}', 400, "Shared memory register request has no 'byte_size' field"),
    ("POST S", b'{"key":1,"byte_size":1}', 400, "Unable to parse 'key': attempt to access JSON non-string as string"),
    ("POST S", b'{"key":"k","byte_size":-1}', 400, f"Unable to parse 'byte_size': {UNSIGNED}"),
    ("POST S", b'{"key":"k","byte_size":1.0}', 400, f"Unable to parse 'byte_size': {UNSIGNED}"),
    ("POST S", b'{"key":"k","byte_size":1,"offset":"0"}', 400, f"Unable to parse 'offset': {UNSIGNED}"),
    ("POST C", b"{}", 400, "Shared memory register request has no 'raw_handle' field"),
    ("POST C", b'{"raw_handle":"AAEC"}', 400, "Shared memory register request has no 'b64' field in 'raw_handle'"),
    ("POST C", b'{"raw_handle":{"b64":"AAEC"}}', 400, "Shared memory register request has no 'byte_size' field"),
    ("POST C", b'{"raw_handle":{"b64":"?"}}', 400, "Unable to parse 'b64': the handle is not base64"),
    ("POST C", '{"raw_handle":{"b64":"ä"}}'.encode(), 400, "Unable to parse 'b64': the handle is not base64"),
]


@pytest.mark.parametrize(("line", "body", "status", "text"), REFUSED)
def test_refused_questions(line: str, body: bytes, status: int, text: str, resolve: Resolve) -> None:
    places = {"POST S": "system", "POST C": "cuda"}
    if line in places:
        line = f"POST /v2/{places[line]}sharedmemory/region/r/register"
    assert ask(resolve, line, body) == (status, text)


def test_answers() -> None:
    def answer(line: str, answer: Any, question: Any) -> Any:
        reply = DIALECT.match(*line.split(" ", 1)).endpoint.encode(answer, question)
        assert reply.headers["Content-Type"] == "application/json"
        return reply.http_status, bytes(reply.body)  # type: ignore[arg-type]

    system, cuda = Region("r", 64, "/k", 8), Region("g", 64, device_id=1)
    assert answer("GET /v2/systemsharedmemory/status", (system,), RegionStatus("system")) == (
        200,
        b'[{"name":"r","key":"/k","offset":8,"byte_size":64}]',
    )
    assert answer("GET /v2/cudasharedmemory/status", (cuda,), RegionStatus("cuda")) == (
        200,
        b'[{"name":"g","device_id":1,"byte_size":64}]',
    )
    assert answer("GET /v2/cudasharedmemory/status", (), RegionStatus("cuda")) == (200, b"[]")
    done = ("POST /v2/systemsharedmemory/unregister", None, UnregisterRegion("system"))
    assert answer(*done) == (200, b"")


@pytest.mark.parametrize("works", [(), ("system",), ("cuda", "system")])
def test_only_what_works_is_listed(works: tuple[Any, ...]) -> None:
    server = ServerDescription("t", "1", shared_memory=frozenset(works))
    reply = DIALECT.match("GET", "/v2").endpoint.encode(server, ServerMetadata())
    listed = [name for name in json.loads(reply.body)["extensions"] if "memory" in name]  # type: ignore[arg-type]
    assert listed == [f"{kind}_shared_memory" for kind in ("system", "cuda") if kind in works]


WORDS: list[tuple[GatewayError, int, Code, str]] = [
    (
        errors.SharedMemoryDisabled(),
        501,
        Code.UNIMPLEMENTED,
        "Client shared memory is disabled. Start the server with '--allow-client-shm=true' to enable.",
    ),
    (errors.RegionNotFound("R"), 404, Code.NOT_FOUND, "Unable to find shared memory region: 'R'"),
    (errors.RegionNotFound("R", "system"), 404, Code.NOT_FOUND, "Unable to find system shared memory region: 'R'"),
    (errors.RegionNotFound("R", "cuda"), 404, Code.NOT_FOUND, "Unable to find cuda shared memory region: 'R'"),
    (errors.RegionExists("R"), 400, Code.ALREADY_EXISTS, "shared memory region 'R' already in manager"),
    (errors.RegionUnreachable("/K"), 500, Code.INTERNAL, "Unable to open shared memory region: '/K'"),
    (errors.RegionInvalid("/K"), 500, Code.INTERNAL, "Invalid shared memory region: '/K'"),
    (
        errors.RegionKeyReserved("R", "/P1", "P"),
        400,
        Code.INVALID_ARGUMENT,
        "cannot register shared memory region 'R' with key '/P1' as the key contains the reserved prefix 'P'",
    ),
    (errors.RegionLimit(2), 503, Code.UNAVAILABLE, "no more than 2 shared memory regions can be registered"),
    (
        errors.CudaMemoryUnavailable("R"),
        400,
        Code.INVALID_ARGUMENT,
        "failed to register CUDA shared memory region: 'R', GPUs not supported",
    ),
    (
        errors.RegionOutOfBounds("R"),
        400,
        Code.INVALID_ARGUMENT,
        "failed to register shared memory region 'R': invalid args",
    ),
    (
        errors.RegionRange("R", starts_outside=True),
        400,
        Code.INVALID_ARGUMENT,
        "Invalid offset for shared memory region: 'R'",
    ),
    (
        errors.RegionRange("R"),
        400,
        Code.INVALID_ARGUMENT,
        "Invalid offset + byte size for shared memory region: 'R'",
    ),
    (
        errors.OutputTooLarge("O", 32, 64),
        500,
        Code.INTERNAL,
        "shared memory size specified with the request for output 'O' (32 bytes) should be at least 64 bytes to hold "
        "the results",
    ),
]


@pytest.mark.parametrize(("error", "status", "code", "text"), WORDS, ids=lambda value: type(value).__name__)
def test_words(error: GatewayError, status: int, code: Code, text: str) -> None:
    call = Call(b"", "POST", "", {}, "http")
    reply = DIALECT.match("GET", "/v2").endpoint.encode_error(error, call)
    assert (reply.http_status, reply.grpc_code, reply.message) == (status, code, text)


# -------------------------------------------------------------------------------------------------------------- inputs


@pytest.mark.parametrize("datatype", ["FP32", "FP16", "BF16", "FP64", "UINT8", "INT8", "UINT16"])
def test_numbers_stay_where_they_are(datatype: str, resolve: Resolve) -> None:
    dtype = DTYPES[datatype]
    content = np.array([1, 2, 3], dtype).tobytes()
    for offset in (0, 1, 8):
        regions = Buffers(r=bytes(offset) + content)
        request = infer(resolve, regions, datatype, [3], at("r", len(content), offset))
        array = request.inputs["x"]
        assert (array.dtype, array.tobytes(), array.flags.writeable) == (dtype, content, False)
        assert request.into == {}
        regions.regions["r"][offset:] = content[dtype.itemsize :] + content[: dtype.itemsize]
        assert array.tobytes() != content, "a view"


@pytest.mark.parametrize("datatype", ["BOOL", "INT32", "UINT32", "INT64", "UINT64"])
def test_what_models_take_for_indices_is_copied(datatype: str, resolve: Resolve) -> None:
    content = np.array([1, 0, 1], DTYPES[datatype]).tobytes()
    regions = Buffers(r=content)
    array = infer(resolve, regions, datatype, [3], at("r", len(content))).inputs["x"]
    regions.regions["r"][:] = bytes(len(content))
    assert array.tobytes() == content


def test_text_is_copied_before_it_is_read(resolve: Resolve) -> None:
    regions = Buffers(r=b"\1\0\0\0a\0\0\0\0\2\0\0\0bc")
    array = infer(resolve, regions, "BYTES", [3], at("r", 15)).inputs["x"]
    regions.regions["r"][:] = b"\xff" * 15
    assert array.tolist() == [b"a", b"", b"bc"]
    cut = Buffers(r=b"\5\0\0\0a")
    assert infer(resolve, cut, "BYTES", [1], at("r", 5)) == (
        400,
        "incomplete string data for inference input 'x', expecting string of length 5 but only 1 bytes available",
    )


def test_an_empty_tensor_needs_no_bytes(resolve: Resolve) -> None:
    assert infer(resolve, Buffers(r=b"1234"), "FP32", [0, 2], at("r", 0)).inputs["x"].shape == (0, 2)


SOURCES = (
    "Input must set only one of the following fields: 'data', 'binary_data_size' in 'parameters', "
    "'shared_memory_region' in 'parameters'. But set"
)
MISMATCH = "[request id: <id_unknown>] input byte size mismatch for input 'x' for model 'FP32'. Expected 8, got"
WRONG_INPUTS: list[tuple[dict[str, Any], int, str]] = [
    (at("q", 8), 404, "Unable to find shared memory region: 'q'"),
    (at("r", 9), 400, "Invalid offset + byte size for shared memory region: 'r'"),
    (at("r", 8, 1), 400, "Invalid offset + byte size for shared memory region: 'r'"),
    (at("r", 1, 2**64 - 1), 400, "Invalid offset + byte size for shared memory region: 'r'"),
    (at("r", 7), 400, f"{MISMATCH} 7"),
    ({"shared_memory_region": "r"}, 400, f"{MISMATCH} 0"),
    (at("r", -1), 400, f"Unable to parse 'shared_memory_byte_size': {UNSIGNED}"),
    (at("r", 2**64), 400, f"Unable to parse 'shared_memory_byte_size': {UNSIGNED}"),
    (at("r", 8) | {"shared_memory_offset": "0"}, 400, f"Unable to parse 'shared_memory_offset': {UNSIGNED}"),
    ({"shared_memory_region": 1}, 400, f"Unable to parse 'shared_memory_region': {NO_STRING}"),
    (at("r", 8, binary_data_size=8), 400, f"{SOURCES} 'binary_data_size' 'shared_memory_region'"),
]


@pytest.mark.parametrize(("parameters", "status", "text"), WRONG_INPUTS)
def test_wrong_inputs(parameters: dict[str, Any], status: int, text: str, resolve: Resolve) -> None:
    assert infer(resolve, Buffers(r=bytes(8)), "FP32", [2], parameters) == (status, text)


def test_a_claimed_shape_is_not_believed(resolve: Resolve) -> None:
    for datatype in DTYPES:
        status, text = infer(resolve, Buffers(r=bytes(8)), datatype, [10**12], at("r", 8))
        assert status == 400, text


def test_much_is_not_copied_on_the_event_loop(resolve: Resolve) -> None:
    regions = Buffers(r=bytes(2 << 20))
    much = (regions, "INT64", [1 << 18], at("r", 2 << 20))
    with pytest.raises(MustOffload):
        infer(resolve, *much)
    assert infer(resolve, *much, in_thread=True).inputs["x"].nbytes == 2 << 20
    assert infer(resolve, regions, "FP64", [1 << 18], at("r", 2 << 20)).inputs["x"].nbytes == 2 << 20
    texts = infer(resolve, regions, "BYTES", [1], at("r", 2 << 20), in_thread=True, max_body_bytes=1 << 20)
    assert texts == (400, "input 'x' makes more than 1048576 bytes of text in shared memory")


# ------------------------------------------------------------------------------------------------------------- outputs


def wanted(name: str, **parameters: Any) -> dict[str, Any]:
    return {"name": name, "parameters": parameters}


def test_outputs_have_destinations(resolve: Resolve) -> None:
    regions = Buffers(r=bytes(8))
    outputs = [wanted("z", **at("r", 4, 2), binary_data=False), {"name": "y"}]
    for _ in range(2):  # no template either
        request = infer(resolve, regions, "FP32", [1], None, outputs, [1.0])
        assert request.outputs == (OutputRequest("z"), OutputRequest("y"))
        assert list(request.into) == ["z"]
        request.into["z"].memory[:] = b"1234"
        assert regions.regions["r"] == b"\0\x001234\0\0"
        regions.regions["r"][:] = bytes(8)
    assert infer(resolve, regions, "FP32", [1], None, [{"name": "y"}], [1.0]).into is None
    assert request.into["z"].serialize(np.array([b"ab"], object)) == b"\2\0\0\0ab"


def test_templates_keep_no_memory(resolve: Resolve) -> None:
    _json_templates._by_text.clear()
    infer(resolve, Buffers(r=bytes(8)), "FP32", [1], None, [wanted("y", **at("r", 4))], [1.0])
    assert not _json_templates._by_text


BOTH = "Output can't set both 'shared_memory_region' and"
WRONG_OUTPUTS: list[tuple[dict[str, Any], int, str]] = [
    (at("q", 8), 404, "Unable to find shared memory region: 'q'"),
    (at("r", 9), 400, "Invalid offset + byte size for shared memory region: 'r'"),
    (at("r", 8, binary_data=True), 400, f"{BOTH} 'binary_data'"),
    (at("r", 8, classification=1), 400, f"{BOTH} 'classification'"),
    (at("r", -8), 400, f"Unable to parse 'shared_memory_byte_size': {UNSIGNED}"),
]


@pytest.mark.parametrize(("parameters", "status", "text"), WRONG_OUTPUTS)
def test_wrong_outputs(parameters: dict[str, Any], status: int, text: str, resolve: Resolve) -> None:
    outputs = [wanted("y", **parameters)]
    assert infer(resolve, Buffers(r=bytes(8)), "FP32", [1], None, outputs, [1.0]) == (status, text)


def test_no_default_makes_them_binary(resolve: Resolve) -> None:
    tensor = {"name": "x", "datatype": "FP32", "shape": [1], "data": [1.0]}
    body = {
        "inputs": [tensor],
        "parameters": {"binary_data_output": True},
        "outputs": [wanted("y", **at("r", 4)), {"name": "z"}],
    }
    request = ask(resolve, "POST /v2/models/FP32/infer", orjson.dumps(body), Buffers(r=bytes(4)))
    assert isinstance(request, InferRequest)
    assert request.wire.binary == {"z"}


def test_an_answer_tells_no_data(resolve: Resolve) -> None:
    request = infer(resolve, Buffers(r=bytes(8)), "FP32", [1], None, [wanted("y", **at("r", 4)), {"name": "z"}], [1.0])
    array = np.array([1.5], np.float32)
    reply = DIALECT.match("POST", "/v2/models/FP32/infer").endpoint.encode(
        InferResponse({"y": array, "z": array}), request
    )
    assert bytes(reply.body) == (  # type: ignore[arg-type]
        b'{"model_name":"FP32","model_version":"1","outputs":[{"name":"y","datatype":"FP32","shape":[1]},'
        b'{"name":"z","datatype":"FP32","shape":[1],"data":[1.5]}]}'
    )

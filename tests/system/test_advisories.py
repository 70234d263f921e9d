"""What other servers have published advisories about, replayed: each is refused as its contract says, and the server
goes on.

Sources: the public advisories of Triton Inference Server (path traversal in loads, log files, keys of shared memory,
sizes that overflow, many chunks), TensorFlow Serving (JSON that nests), servers with open administration, aiohttp and
its kin (request smuggling, header injection, trailers), HTTP/2 (rapid reset).
"""

import asyncio
import base64
import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import grpc
import pytest
from serving import HOST, Gateway, demo_config, running

from tensorgate.adapters.protobuf import messages as pb

SHARED = Path("/dev/shm")  # noqa: S108 - Linux has it there
KEY = "0123456789abcdef"
ADMIN = {"x-admin-key": KEY, "Content-Type": "application/json"}
MODEL = "half_plus_two"
INFER = f"/v2/models/{MODEL}/infer"


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """With everything allowed that has ever been dangerous, and a key for administrators."""
    folder = tmp_path_factory.mktemp("advisories")
    (folder / "key").write_text(KEY)
    (folder / "models").mkdir()
    text = demo_config(
        admin={"header": "X-Admin-Key", "value_file": "key"},
        model_control={"mode": "explicit", "load": ["*"], "allow_uploads": True},
        shared_memory={"system": True, "max_regions": 4},
        repositories=["models"],
    )
    (folder / "demo.yaml").write_text(text)
    with running(folder / "demo.yaml") as gateway:
        yield gateway
        assert gateway.stop() == 0, gateway.said
        assert "Traceback" not in gateway.said_itself, gateway.said


@pytest.fixture(autouse=True)
def goes_on(gateway: Gateway) -> Iterator[None]:
    """Nothing has changed for those who send good requests."""
    before = set(SHARED.iterdir())
    yield
    body = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [2], "data": [1.0, 2.0]}]}
    answer = gateway.post(INFER, body)
    assert (answer.status, answer.json["outputs"][0]["data"]) == (200, [2.5, 3.0])
    assert gateway.request("GET", "/readyz").status == 200
    assert set(SHARED.iterdir()) <= before


class Attack(NamedTuple):
    """A request, the statuses that refuse it, and words of the refusal."""

    method: str
    path: str
    body: Any
    statuses: tuple[int, ...]
    words: str = ""


def upload(name: str) -> dict[str, Any]:
    config = json.dumps({"backend": "python"})
    return {"parameters": {"config": config, f"file:{name}": base64.b64encode(b"evil").decode()}}


def register(key: str, offset: int = 0, size: int = 64) -> dict[str, Any]:
    return {"key": key, "offset": offset, "byte_size": size}


def tensor(shape: list[Any], **more: Any) -> dict[str, Any]:
    return {"inputs": [{"name": "x", "datatype": "FP32", "shape": shape, **({"data": [1.0]} | more)}]}


def nested(depth: int) -> bytes:
    return b'{"instances":' + b"[" * depth + b"]" * depth + b"}"


LOAD = "/v2/repository/models/{}/load"
REGION = "/v2/systemsharedmemory/region/r/register"
ATTACKS = {
    "a model above the repository": Attack("POST", LOAD.format("..%2F..%2Fetc"), {}, (400, 404, 500)),
    "a model that is a path": Attack("POST", LOAD.format("%2Fetc%2Fpasswd"), {}, (400, 404, 500)),
    "a model with dots": Attack("POST", LOAD.format(".."), {}, (400, 404, 500)),
    "a model with a NUL": Attack("POST", LOAD.format("m%00.onnx"), {}, (400, 404, 500)),
    "a path in the address": Attack("GET", "/v2/models/../../etc/passwd", None, (404,)),
    "an encoded path in the address": Attack("GET", "/v1/models/..%2F..%2Fetc%2Fpasswd/metadata", None, (404,)),
    "a file above the model": Attack("POST", LOAD.format("evil"), upload("1/../../../evil"), (400,)),
    "a file at the root": Attack("POST", LOAD.format("evil"), upload("/tmp/tensorgate_evil"), (400,)),  # noqa: S108
    "a file with a backslash": Attack("POST", LOAD.format("evil"), upload("1\\..\\..\\evil"), (400,)),
    "a program": Attack("POST", LOAD.format("evil"), upload("1/model.py"), (400,), "model_control.trusted"),
    "a program by another name": Attack(
        "POST", LOAD.format("evil"), upload("1/weights"), (400,), "the backend triton_python are programs"
    ),
    "a path in a configuration": Attack(
        "POST", LOAD.format(MODEL), {"parameters": {"config": json.dumps({"backend": "../../evil"})}}, (400,)
    ),
    "a log file": Attack("POST", "/v2/logging", {"log_file": "/tmp/tensorgate_evil"}, (400, 501)),  # noqa: S108
    "a trace file": Attack("POST", "/v2/trace/setting", {"trace_file": "/tmp/tensorgate_evil"}, (400, 501)),  # noqa: S108
    "memory of a python backend": Attack("POST", REGION, register("triton_python_backend_shm_region_1"), (400,)),
    "memory that is a path": Attack("POST", REGION, register("../../etc/passwd"), (400, 500)),
    "memory below a folder": Attack("POST", REGION, register("/a/../../etc/passwd"), (400, 500)),
    "memory that does not exist": Attack("POST", REGION, register("/tensorgate_none"), (500,), "Unable to open"),
    "memory of an overflowing size": Attack("POST", REGION, register("/tensorgate_none", 2**63, 2**63), (400, 500)),
    "memory of a negative size": Attack("POST", REGION, register("/tensorgate_none", -1, -1), (400, 500)),
    "an unknown region": Attack(
        "POST",
        INFER,
        tensor([1], parameters={"shared_memory_region": "r", "shared_memory_byte_size": 2**63}),
        (400, 404),
    ),
    "a product of 2**64": Attack("POST", INFER, tensor([2**32, 2**32]), (400,)),
    "a product of 2**64 + 1": Attack("POST", INFER, tensor([274177, 67280421310721]), (400,)),
    "the largest dimension": Attack("POST", INFER, tensor([2**63 - 1]), (400,)),
    "a dimension beyond int64": Attack("POST", INFER, tensor([2**64]), (400,)),
    "a negative dimension": Attack("POST", INFER, tensor([-1]), (400,)),
    "thirty dimensions": Attack("POST", INFER, tensor([2] * 30), (400,)),
    "JSON that nests": Attack("POST", f"/v1/models/{MODEL}:predict", nested(200_000), (400,)),
    "JSON that nests and does not end": Attack("POST", f"/v1/models/{MODEL}:predict", b"[" * 1_000_000, (400,)),
    "V2's JSON that nests": Attack("POST", INFER, b'{"a":' * 100_000, (400,)),
    "grps' JSON that nests": Attack("POST", "/grps/v1/infer/predict", b'{"a":' * 100_000, (500,), "Parse json failed"),
    "jobs": Attack("POST", "/api/jobs/", {"entrypoint": "id"}, (404,)),
    "an actuator": Attack("GET", "/actuator/env", None, (404,)),
    "an interpreter": Attack("POST", "/v2/repository/models/x/exec", {"code": "1"}, (404,)),
    "a line in a model's name": Attack("GET", "/v2/models/a%0d%0aSet-Cookie:%20x=1", None, (404,)),
    "a line in a request id": Attack("POST", INFER, {"id": "a\r\nX: y", **tensor([2])}, (400,)),
}


@pytest.mark.parametrize("name", ATTACKS)
def test_refused(gateway: Gateway, name: str) -> None:
    attack = ATTACKS[name]
    answer = gateway.request(attack.method, attack.path, attack.body, ADMIN)
    assert answer.status in attack.statuses, answer.body
    assert attack.words in answer.body.decode("utf-8", "replace")
    assert "Set-Cookie" not in answer.headers
    assert "X" not in answer.headers
    for secret in (b"Traceback", b"root:", b'File "', b"site-packages"):
        assert secret not in answer.body
    assert not Path("/tmp/tensorgate_evil").exists()  # noqa: S108


@pytest.mark.parametrize(
    "path",
    [
        "/v2/repository/models/x/load",
        "/v2/repository/models/x/unload",
        "/v2/logging",
        "/v2/trace/setting",
        REGION,
        "/v2/systemsharedmemory/unregister",
        "/grps/v1/health/offline",
    ],
)
def test_nobody_administers_without_the_key(gateway: Gateway, path: str) -> None:
    for headers in ({}, {"X-Admin-Key": ""}, {"X-Admin-Keys": KEY}, {"X_Admin_Key": KEY}):
        answer = gateway.request("POST", path, {}, {"Content-Type": "application/json", **headers})
        assert answer.status == 403, path


# ------------------------------------------------------------------------------------------------------------ smuggling

HIDDEN = b"GET /v2/models/hidden HTTP/1.1\r\nHost: x\r\n\r\n"
CHUNKED = b"Transfer-Encoding: chunked\r\n"
SMUGGLED = {
    "length and chunks": b"Content-Length: 6\r\n" + CHUNKED + b"\r\n0\r\n\r\n",
    "chunks and length": CHUNKED + b"Content-Length: 4\r\n\r\n0\r\n\r\n",
    "two lengths": b"Content-Length: 0\r\nContent-Length: 40\r\n\r\n",
    "a list of lengths": b"Content-Length: 0, 40\r\n\r\n",
    "a signed length": b"Content-Length: +0\r\n\r\n",
    "a negative length": b"Content-Length: -1\r\n\r\n",
    "a length of underscores": b"Content-Length: 1_0\r\n\r\n",
    "a length in hexadecimal": b"Content-Length: 0x0\r\n\r\n",
    "a space before the colon": b"Content-Length : 0\r\n\r\n",
    "a folded line": b"X: y\r\n Content-Length: 40\r\n\r\n",
    "a bare line feed": b"X: y\nContent-Length: 40\r\n\r\n",
    "a bare carriage return": b"X: y\rContent-Length: 40\r\n\r\n",
    "a NUL": b"X: y\0z\r\n\r\n",
    "another coding": b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
    "a coding after chunked": b"Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n",
    "a vertical tab": b"Transfer-Encoding:\x0bchunked\r\n\r\n0\r\n\r\n",
    "a negative chunk": CHUNKED + b"\r\n-1\r\nx\r\n0\r\n\r\n",
    "a chunk in underscores": CHUNKED + b"\r\n1_0\r\nxxxxxxxxxxxxxxxx\r\n0\r\n\r\n",
    "a chunk beyond its size": CHUNKED + b"\r\n1\r\nxx\r\n0\r\n\r\n",
    "a line feed in a chunk's extension": CHUNKED + b"\r\n1;a\nb\r\nx\r\n0\r\n\r\n",
    "a name with a space": b"X Y: z\r\n\r\n",
}


def exchanged(gateway: Gateway, data: bytes) -> bytes:
    """All that comes back until the server closes the connection, or is silent."""
    with socket.create_connection((HOST, gateway.port), timeout=2) as connection:
        connection.sendall(data)
        answer = b""
        try:
            while part := connection.recv(1 << 16):
                answer += part
        except TimeoutError:
            pass
    return answer


@pytest.mark.parametrize("name", SMUGGLED)
def test_nothing_is_smuggled(gateway: Gateway, name: str) -> None:
    """It is refused, and what follows on the connection is not read as a request."""
    answer = exchanged(gateway, b"POST /grps/v1/health/live HTTP/1.1\r\nHost: x\r\n" + SMUGGLED[name] + HIDDEN)
    assert answer.startswith((b"HTTP/1.1 400", b"HTTP/1.0 400")), answer
    assert answer.count(b"HTTP/1.") == 1, answer
    assert b"hidden" not in answer


def test_trailers_are_bounded(gateway: Gateway) -> None:
    head = b"POST " + INFER.encode() + b" HTTP/1.1\r\nHost: x\r\n" + CHUNKED + b"\r\n0\r\n"
    before = gateway.rss_bytes()
    try:
        answer = exchanged(gateway, head + b"x: y\r\n" * 2_000_000 + b"\r\n")
    except OSError:  # closed while it was still sending
        answer = b"HTTP/1.1 400"
    assert answer.startswith((b"HTTP/1.1 400", b"HTTP/1.0 400")), answer
    assert gateway.rss_bytes() < before + (64 << 20)


def test_many_small_chunks_are_a_body_like_any(gateway: Gateway) -> None:
    body = json.dumps(tensor([1])).encode() + b" " * 200_000
    chunks = b"".join(b"1\r\n%c\r\n" % byte for byte in body)
    head = b"POST " + INFER.encode() + b" HTTP/1.1\r\nHost: x\r\nConnection: close\r\n" + CHUNKED
    assert exchanged(gateway, head + b"\r\n" + chunks + b"0\r\n\r\n").startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize("count", [129, 100_000])
def test_many_headers_are_refused(gateway: Gateway, count: int) -> None:
    lines = b"".join(b"X-%d: y\r\n" % number for number in range(count))
    try:
        answer = exchanged(gateway, b"GET /v2 HTTP/1.1\r\nHost: x\r\n" + lines + b"\r\n")
    except OSError:
        answer = b"HTTP/1.1 400"
    assert answer.startswith((b"HTTP/1.1 400", b"HTTP/1.0 400", b"HTTP/1.1 431")), answer[:100]


# ----------------------------------------------------------------------------------------------------------------- gRPC


def test_rapid_reset(gateway: Gateway) -> None:
    """Thousands of calls that are cancelled as soon as they are made."""
    message = pb.message("inference.ModelInferRequest")(model_name=MODEL)
    message.inputs.add(name="x", datatype="FP32", shape=[1])
    message.raw_input_contents.append(b"\0" * 4)
    body = message.SerializeToString()

    async def storm() -> None:
        async with grpc.aio.insecure_channel(f"{HOST}:{gateway.grpc_port}") as channel:
            infer = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
            for _ in range(20):
                calls = [infer(body) for _ in range(200)]
                await asyncio.sleep(0)
                for call in calls:
                    call.cancel()
            assert await infer(body, timeout=10)

    asyncio.run(storm())


def test_huge_metadata(gateway: Gateway) -> None:
    with grpc.insecure_channel(f"{HOST}:{gateway.grpc_port}") as channel:
        live = channel.unary_unary("/inference.GRPCInferenceService/ServerLive")
        for pairs in ((("x", "y" * 100_000),), tuple((f"x-{number}", "y" * 100) for number in range(1000))):
            with pytest.raises(grpc.RpcError) as caught:
                live(b"", metadata=pairs, timeout=10)
            assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert live(b"", timeout=10)

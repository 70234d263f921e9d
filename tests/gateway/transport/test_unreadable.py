"""Messages that are no HTTP: each is answered in the words of the dialect that it was for, and ends its connection."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import yaml

from tensorgate.gateway.app import App, registries
from tensorgate.gateway.config import load_config

MALFORMED = "The message is not well-formed HTTP"
LONG = "The request line or a header is longer than 8190 bytes"
METHOD = "The method is unknown"
BROKEN = "the body is not well-formed HTTP"
V2, TF, GRPS = "/v2/models/m", "/v1/models/m", "/grps/v1/health/live"
HOUSE = {"V2": V2, "nobody": "/x"}
"""Whose JSON has an error and nothing else."""


def head(target: str, *fields: str, method: str = "GET", version: str = "HTTP/1.1") -> bytes:
    return "\r\n".join((f"{method} {target} {version}", "Host: h", *fields, "", "")).encode("latin-1")


WRONG: dict[str, tuple[bytes, int, str]] = {
    "another protocol": (head("TARGET", version="HTTQ/1.1"), 400, MALFORMED),
    "a version that is none": (head("TARGET", version="HTTP/x.y"), 400, MALFORMED),
    "a space in the target": (head("TARGET x"), 400, MALFORMED),
    "a header without a colon": (head("TARGET", "no colon"), 400, MALFORMED),
    "a header without a name": (head("TARGET", ": x"), 400, MALFORMED),
    "a NUL": (head("TARGET", "a: b\0c"), 400, MALFORMED),
    "a bare CR": (head("TARGET", "a: b\rc"), 400, MALFORMED),
    "a length that is none": (head("TARGET", "Content-Length: x", method="POST"), 400, MALFORMED),
    "two lengths": (head("TARGET", "Content-Length: 1", "Content-Length: 2", method="POST"), 400, MALFORMED),
    "a length and chunks": (
        head("TARGET", "Content-Length: 1", "Transfer-Encoding: chunked", method="POST"),
        400,
        MALFORMED,
    ),
    "a long header": (head("TARGET", "a: " + "b" * 9000), 400, LONG),
    "a long target": (head("TARGET/" + "b" * 9000), 400, LONG),
    "many headers": (head("TARGET", *[f"a{number}: b" for number in range(200)]), 400, MALFORMED),
    "a method that is none": (head("TARGET", method="FETCH"), 501, METHOD),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("unreadable")
    (folder / "model.py").write_text("class Model:\n    def __init__(self, context):\n        pass\n")
    return folder


@pytest.fixture
async def ports(folder: Path) -> AsyncIterator[dict[str, int]]:
    """One of all dialects, and one of each."""
    names = list(registries().dialects)
    listen = [{"bind": "127.0.0.1:0"}, *({"bind": "127.0.0.1:0", "dialects": [name]} for name in names)]
    tensor = [{"name": "x", "datatype": "FP32", "shape": [-1]}]
    model = {"backend": "python", "path": "model.py:Model", "inputs": tensor, "outputs": tensor}
    (folder / "gateway.yaml").write_text(yaml.safe_dump({"listen": {"http": listen}, "models": {"m": model}}))
    kinds = registries()
    app = App(load_config(folder / "gateway.yaml", kinds), kinds)
    await app.start()
    yield {name: int(url.rpartition(":")[2]) for name, url in zip(["all", *names], app.addresses, strict=True)}
    await app.drain()


async def ask(port: int, *parts: bytes) -> tuple[int, dict[str, str], bytes]:
    """An answer that is the last one of its connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    for part in parts:
        writer.write(part)
        await writer.drain()
    async with asyncio.timeout(10):
        answer = await reader.read()
    writer.close()
    first, _, body = answer.partition(b"\r\n\r\n")
    line, *fields = first.decode().split("\r\n")
    return int(line.split()[1]), {name.lower(): value for name, _, value in (f.partition(": ") for f in fields)}, body


def envelope(status: int, text: str) -> object:
    return {"status": {"code": status, "msg": f"{text}.", "status": "FAILURE"}}


@pytest.mark.parametrize("case", WRONG)
async def test_a_head_that_is_none(ports: dict[str, int], case: str) -> None:
    message, status, text = WRONG[case]
    for name, target in (*HOUSE.items(), ("open_inference", V2), ("TF", TF), ("tf_serving", TF), ("grps", GRPS)):
        port = ports.get(name, ports["all"])
        data = message.replace(b"TARGET", target.encode())
        for parts in ((data,), (data[: len(target) + 10], data[len(target) + 10 :])):
            found, headers, body = await ask(port, *parts)
            assert (name, found) == (name, status)
            assert (headers["connection"], int(headers["content-length"])) == ("close", len(body))
            if name in ("TF", "tf_serving"):  # as the original's HTTP layer does
                assert headers["content-type"] == "text/html"
                assert body.startswith(f"<HTML><HEAD>\n<TITLE>{status} ".encode())
            else:
                assert headers["content-type"].startswith("application/json")
                assert json.loads(body) == (envelope(status, text) if name == "grps" else {"error": text})


async def test_what_is_no_http_at_all(ports: dict[str, int]) -> None:
    """Where no target can be told, the house answers, or a port's only dialect."""
    for data in (
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
        b"\0\r\n\r\n",
        b"GET  HTTP/1.1\r\nHost: h\r\n\r\n",
    ):
        for name in ("all", "open_inference"):
            status, headers, body = await ask(ports[name], data)
            assert status in (400, 501)
            assert headers["content-type"].startswith("application/json")
            assert json.loads(body)["error"] in (MALFORMED, METHOD)
        status, headers, body = await ask(ports["grps"], data)
        assert json.loads(body)["status"]["code"] == status
        assert (await ask(ports["tf_serving"], data))[1]["content-type"] == "text/html"


CHUNKS = [b"x\r\n", b"5\r\nab\r\n\r\n", b"-1\r\n", b"2\r\nabc\r\n"]


@pytest.mark.parametrize("chunks", CHUNKS)
async def test_chunks_that_are_none(ports: dict[str, int], chunks: bytes) -> None:
    """With the head they are a message that is none; behind it, a call of the dialect's that cannot be read."""
    request = head("/v2/models/m/infer", "Transfer-Encoding: chunked", method="POST")
    status, headers, body = await ask(ports["all"], request + chunks)
    assert (status, headers["connection"], json.loads(body)) == (400, "close", {"error": MALFORMED})
    for name, (target, wanted) in {
        "V2": ("/v2/models/m/infer", {"error": BROKEN}),
        "TF": ("/v1/models/m:predict", {"error": BROKEN}),
        "grps": ("/grps/v1/infer/predict?model=m-1", {"status": {"code": 500, "msg": BROKEN, "status": "FAILURE"}}),
    }.items():
        request = head(target, "Transfer-Encoding: chunked", "Expect: 100-continue", method="POST")
        reader, writer = await asyncio.open_connection("127.0.0.1", ports["all"])
        writer.write(request)
        async with asyncio.timeout(10):
            assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"  # the head is accepted
            writer.write(b"1\r\n \r\n" + chunks)
            answer = await reader.read()
        writer.close()
        found, _, body = answer.partition(b"\r\n\r\n")
        assert (name, b" 400 " in found or name == "grps", json.loads(body)) == (name, True, wanted)


@pytest.mark.parametrize("framing", ["Transfer-Encoding: chunked", "Content-Length: 9"])
async def test_a_body_that_does_not_go_on_ends_its_connection(folder: Path, framing: str) -> None:
    """On the way of unusual requests, too."""
    bodies = {"listen": {"http": [{"bind": "127.0.0.1:0"}]}, "limits": {"timeouts": {"body_seconds": 0.05}}}
    tensor = [{"name": "x", "datatype": "FP32", "shape": [-1]}]
    model = {"backend": "python", "path": "model.py:Model", "inputs": tensor, "outputs": tensor}
    (folder / "slow.yaml").write_text(yaml.safe_dump({**bodies, "models": {"m": model}}))
    kinds = registries()
    app = App(load_config(folder / "slow.yaml", kinds), kinds)
    await app.start()
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", int(app.addresses[0].rpartition(":")[2]))
        writer.write(head("/v2/models/m/infer", framing, "Expect: 100-continue", method="POST") + b"1\r\n{\r\n")
        async with asyncio.timeout(10):
            assert await reader.read() == b"HTTP/1.1 100 Continue\r\n\r\n"
        writer.close()
    finally:
        await app.drain()

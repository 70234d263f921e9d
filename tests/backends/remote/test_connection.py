"""Connections to other servers: TLS both ways, and headers that go with every call."""

import asyncio
import contextlib
import json
import ssl
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
import uvloop
from aiohttp import web
from pydantic import ValidationError

from tensorgate.backends.remote.connection import ConnectionLost, NotReached, UpstreamConnection
from tensorgate.backends.remote.grpc_connection import GrpcConnection
from tensorgate.backends.remote.http_connection import HttpConnection
from tensorgate.backends.remote.options import UpstreamAccess, UpstreamOptions, access_of, host_and_port
from tensorgate.gateway.contract.errors import Code
from tensorgate.gateway.contract.upstream import Ask
from tensorgate.gateway.wire import hpack

ECHO = Ask("/echo.Echo/Echo", (b"hello",), headers={"x-own": "1"})


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An authority, a server's certificate for the name `upstream.test`, and a client's."""
    folder = tmp_path_factory.mktemp("tls")

    def openssl(*arguments: str) -> None:
        subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)

    new = ["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"]
    openssl(*new, "-keyout", "ca.key", "-out", "ca.crt", "-subj", "/CN=authority")
    for name in ("upstream.test", "client"):
        openssl(
            *[*new, "-keyout", f"{name}.key", "-out", f"{name}.crt", "-subj", f"/CN={name}"],
            *["-addext", f"subjectAltName=DNS:{name}", "-addext", "basicConstraints=critical,CA:FALSE"],
            *["-CA", "ca.crt", "-CAkey", "ca.key"],
        )
    return folder


def access(folder: Path | None = None, **changes: Any) -> UpstreamAccess:
    upstream = {"dialect": "open_inference", "address": "x:1", **changes}
    context = folder / "gateway.yaml" if folder else None
    return access_of(UpstreamOptions.model_validate_json(json.dumps(upstream), context=context))


def client_of(folder: Path, **changes: Any) -> UpstreamAccess:
    tls = {"ca": "ca.crt", "certificate": "client.crt", "key": "client.key", "server_name": "upstream.test"}
    return access(folder, tls=tls | changes, headers={"authorization": "Bearer 7"})


async def echo_grpc(body: bytes, context: Any) -> bytes:
    said = dict(context.invocation_metadata())
    return json.dumps([said.get("authorization"), said.get("x-own"), body.decode()]).encode()


async def echo_http(request: web.Request) -> web.Response:
    said = request.headers
    return web.json_response([said.get("authorization"), said.get("x-own"), (await request.read()).decode()])


@pytest.fixture(params=["grpc", "http"])
async def server(request: pytest.FixtureRequest, certificates: Path) -> AsyncIterator[tuple[str, str]]:
    """A server that wants a client's certificate, and says which headers came: its transport, where it is."""
    read = {name: (certificates / name).read_bytes() for name in ("upstream.test.key", "upstream.test.crt", "ca.crt")}
    if request.param == "grpc":
        aio = grpc.aio.server()
        handler = grpc.unary_unary_rpc_method_handler(echo_grpc)
        aio.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("echo.Echo", {"Echo": handler}),))
        pair = (read["upstream.test.key"], read["upstream.test.crt"])
        port = aio.add_secure_port("127.0.0.1:0", grpc.ssl_server_credentials([pair], read["ca.crt"], True))
        await aio.start()
        yield "grpc", f"127.0.0.1:{port}"
        await aio.stop(0)
        return
    app = web.Application()
    app.router.add_post("/echo.Echo/Echo", echo_http)
    runner = web.AppRunner(app)
    await runner.setup()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates / "upstream.test.crt", certificates / "upstream.test.key")
    context.load_verify_locations(certificates / "ca.crt")
    context.verify_mode = ssl.CERT_REQUIRED
    site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context)
    await site.start()
    yield "http", f"127.0.0.1:{runner.addresses[0][1]}"
    await runner.cleanup()


def connected(server: tuple[str, str], how: UpstreamAccess) -> UpstreamConnection:
    transport, where = server
    return GrpcConnection(where, 1 << 20, how) if transport == "grpc" else HttpConnection(where, 1 << 20, how)


async def said(server: tuple[str, str], how: UpstreamAccess) -> Any:
    connection = connected(server, how)
    try:
        return json.loads(bytes((await connection.call(ECHO, 5)).body))  # type: ignore[arg-type]
    finally:
        await connection.close()


async def test_tls_both_ways_and_headers(server: tuple[str, str], certificates: Path) -> None:
    assert await said(server, client_of(certificates)) == ["Bearer 7", "1", "hello"]


@pytest.mark.parametrize("wrong", [{"server_name": "other.test"}, {"ca": None}])
async def test_a_server_that_is_another_is_not_talked_to(
    server: tuple[str, str], certificates: Path, wrong: dict[str, Any]
) -> None:
    with pytest.raises(NotReached):
        await said(server, client_of(certificates, **wrong))


async def test_a_client_without_a_certificate_is_not_served(server: tuple[str, str], certificates: Path) -> None:
    with pytest.raises((NotReached, ConnectionLost)) as raised:
        await said(server, client_of(certificates, certificate=None, key=None))
    assert server[0] == "http" or raised.type is NotReached


async def test_a_server_that_does_not_encrypt_is_not_reached(certificates: Path) -> None:
    aio = grpc.aio.server()
    where = f"127.0.0.1:{aio.add_insecure_port('127.0.0.1:0')}"
    await aio.start()
    with pytest.raises(NotReached):
        await said(("grpc", where), client_of(certificates))
    await aio.stop(0)


@contextlib.asynccontextmanager
async def encrypted(certificates: Path) -> AsyncIterator[str]:
    """A server of grpc's that repeats a message again and again; where it is."""

    async def repeat(body: bytes, context: Any) -> AsyncIterator[bytes]:
        for _ in range(20):
            yield body

    aio = grpc.aio.server(options=[("grpc.max_receive_message_length", -1)])
    handlers = {
        "Echo": grpc.unary_unary_rpc_method_handler(echo_grpc),
        "Repeat": grpc.unary_stream_rpc_method_handler(repeat),
    }
    aio.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("echo.Echo", handlers),))
    pair = tuple([(certificates / name).read_bytes() for name in ("upstream.test.key", "upstream.test.crt")])
    port = aio.add_secure_port("127.0.0.1:0", grpc.ssl_server_credentials([pair]))
    await aio.start()
    yield f"127.0.0.1:{port}"
    await aio.stop(0)


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_large_messages_and_streams_are_encrypted_too(new_loop: Any, certificates: Path) -> None:
    async def main() -> None:
        async with encrypted(certificates) as where:
            connection = GrpcConnection(where, 1 << 23, client_of(certificates, certificate=None, key=None))
            body = bytes(range(256)) * (1 << 14)
            for size in (0, 5, 20_000, 700_000, len(body)):
                asked = Ask("/echo.Echo/Repeat", (body[: size // 3], memoryview(body)[size // 3 : size]))
                replies = [reply async for reply in connection.stream(asked, 20)]
                assert [reply.body for reply in replies] == [body[:size]] * 20
                assert json.loads((await connection.call(ECHO, 5)).body)[2] == "hello"  # type: ignore[arg-type]
            async with contextlib.aclosing(connection.stream(asked, 20)) as leaving:
                assert (await anext(leaving)).body == body
            await connection.close()

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(main())


async def test_the_server_s_name_is_what_it_is_asked_for(certificates: Path) -> None:
    def authority(how: UpstreamAccess) -> str:
        return hpack.decode(GrpcConnection("127.0.0.1:1", 1, how)._block(ECHO, None))[":authority"]

    assert authority(client_of(certificates)) == "upstream.test"
    assert authority(UpstreamAccess()) == "127.0.0.1:1"


@pytest.mark.parametrize(
    "address", ["dns:///x:1", "unix:/x", "localhost", "a b:1", "x:0", "x:65536", "http://x:1", ":1", "::1:80", "x:1/y"]
)
def test_an_address_over_grpc_is_a_host_and_a_port(address: str) -> None:
    with pytest.raises(ValidationError, match="expected HOST:PORT over gRPC, not '"):
        access(address=["x:1", address])
    access(address=address, transport="http")


@pytest.mark.parametrize(
    ("address", "host", "port"),
    [("x.y-z_1:65535", "x.y-z_1", 65535), ("10.0.0.1:80", "10.0.0.1", 80), ("[::1]:8001", "::1", 8001)],
)
def test_hosts_are_names_or_addresses(address: str, host: str, port: int) -> None:
    access(address=address)
    assert host_and_port(address) == (host, port)


async def test_headers_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET", " Bearer x \n")
    assert access(headers={"authorization": {"env": "SECRET"}, "x-a": "b"}).headers == (
        ("authorization", "Bearer x"),
        ("x-a", "b"),
    )
    monkeypatch.setenv("SECRET", "two\nlines")
    with pytest.raises(ValueError, match=r"upstream\.headers\.authorization: SECRET is no printable"):
        access(headers={"authorization": {"env": "SECRET"}})
    monkeypatch.delenv("SECRET")
    with pytest.raises(ValueError, match="the environment variable SECRET is not set"):
        access(headers={"authorization": {"env": "SECRET"}})


@pytest.mark.parametrize("name", ["grpc-timeout", "Content-Length", "content-type", "host", "a b", "x-bin", ""])
def test_headers_of_the_transport_are_refused(name: str) -> None:
    with pytest.raises(ValidationError):
        access(headers={name: "x"})


@pytest.mark.parametrize("tls", [{"certificate": "client.crt"}, {"ca": "absent.crt"}])
def test_files_that_are_not_there_are_named_in_the_configuration(certificates: Path, tls: dict[str, str]) -> None:
    with pytest.raises(ValidationError, match=r"belong together|no such file"):
        access(certificates, tls=tls)


def test_files_that_cannot_be_used_are_told_when_the_model_is_loaded(certificates: Path) -> None:
    with pytest.raises(ValueError, match=r"upstream\.tls"):
        access(certificates, tls={"ca": "client.key"})
    with pytest.raises(ValueError, match=r"upstream\.tls"):
        access(certificates, tls={"certificate": "client.crt", "key": "ca.key"})


async def test_a_connection_that_breaks_in_mid_stream_is_lost_however_soon_that_is_read() -> None:
    async def talk(body: bytes, context: Any) -> None:
        await context.write(body)
        await asyncio.Event().wait()

    aio = grpc.aio.server()
    handler = grpc.unary_stream_rpc_method_handler(talk)
    aio.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("echo.Echo", {"Echo": handler}),))
    port = aio.add_insecure_port("127.0.0.1:0")
    await aio.start()
    between: list[asyncio.StreamWriter] = []

    async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        between.append(writer)
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(1 << 16):
                writer.write(data)
        writer.close()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there = await asyncio.open_connection("127.0.0.1", port)
        await asyncio.gather(carry(reader, there[1]), carry(there[0], writer))

    async with await asyncio.start_server(accept, "127.0.0.1", 0) as relay:
        connection = GrpcConnection(f"127.0.0.1:{relay.sockets[0].getsockname()[1]}", 1 << 20)
        for _ in range(20):
            replies = connection.stream(ECHO, 10)
            assert (await anext(replies)).grpc_code is Code.OK
            for writer in between:
                writer.transport.abort()
            between.clear()
            with pytest.raises(ConnectionLost):
                await anext(replies)
        await connection.close()
    await aio.stop(0)

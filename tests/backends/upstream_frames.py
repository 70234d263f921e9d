"""A server of gRPC that says what a test has it say, frame by frame, and the connection that asks it."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from tensorgate.backends.remote.grpc_connection import GrpcConnection
from tensorgate.gateway.contract.upstream import Ask

MAX_BYTES = 8 << 20
PREFACE_BYTES = 24
SETTINGS = bytes.fromhex("000000 04 00 00000000")
OPENING = bytes.fromhex("00000e 01 04 00000001") + bytes.fromhex("88 0f10 0a") + b"abcdefghij"
"""HEADERS: ":status: 200", and "content-type" with some value."""


def frame(kind: int, flags: int, stream: int, data: bytes = b"") -> bytes:
    return len(data).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + data


def header(name: bytes, value: bytes) -> bytes:
    return b"\0" + bytes([len(name)]) + name + bytes([len(value)]) + value


def data(body: bytes, flags: int = 0, stream: int = 1) -> bytes:
    return frame(0, flags, stream, body)


def message(body: bytes) -> bytes:
    return b"\0" + len(body).to_bytes(4, "big") + body


OK = frame(1, 5, 1, header(b"grpc-status", b"0"))


def ask(name: str, *parts: Any, **headers: str) -> Ask:
    return Ask(f"/test.Test/{name}", parts, headers=headers)


def text(size: int) -> bytes:
    return (bytes(range(251)) * (size // 251 + 1))[:size]


def setting(number: int, value: int) -> bytes:
    return number.to_bytes(2, "big") + value.to_bytes(4, "big")


Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@contextlib.asynccontextmanager
async def served(serve: Serve) -> AsyncIterator[GrpcConnection]:
    """A connection to it. What goes wrong in the server is raised here."""
    tasks: set[asyncio.Task[None]] = set()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        try:
            with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
                await serve(reader, writer)
        finally:
            writer.close()

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    connection = GrpcConnection(f"127.0.0.1:{server.sockets[0].getsockname()[1]}", MAX_BYTES)
    try:
        yield connection
    finally:
        await connection.close()
        await asyncio.gather(*tasks)
        server.close()
        await server.wait_closed()

"""gRPC's unary calls without grpc.aio, where they need no TLS: the usual way of requests to another server.

Streams, and whatever else is unusual, go by grpc.aio.
"""

from __future__ import annotations

import asyncio
import re
import socket
import time
from collections.abc import AsyncGenerator
from typing import Final, Literal

from backends.remote.connection import CONNECTS_WITHIN_S, OPEN, Connection, GrpcConnection, Lost, NotReached
from backends.remote.http2 import Broken, Http2, Refused
from backends.remote.options import Access
from gateway import hpack
from gateway.errors import Code
from gateway.ports import Ask, Reply

Streams = Literal["bidi", "server", "no"]
_ADDRESS: Final = re.compile(r"(?:\[([0-9a-fA-F:.%]+)\]|([a-zA-Z0-9._-]+)):([0-9]{1,5})")
_FIRST_PAUSE_S: Final = 0.1
_LONGEST_PAUSE_S: Final = 1.0
_LONGER: Final = 1.6
_ATTEMPTS: Final = 3


def connect(address: str, max_bytes: int, streams: Streams, access: Access = OPEN) -> Connection:
    """The best way to a server."""
    if access.tls is None and (found := _ADDRESS.fullmatch(address)) is not None:
        host, port = found[1] or found[2], int(found[3])
        return LaneConnection(host, port, max_bytes, GrpcConnection(address, max_bytes, streams, access), access)
    return GrpcConnection(address, max_bytes, streams, access)


class LaneConnection:
    """See Connection. `aio` is the other way to the same address."""

    def __init__(self, host: str, port: int, max_bytes: int, aio: GrpcConnection, access: Access) -> None:
        self._host = host
        self._port = port
        self._max_bytes = max_bytes
        self._aio = aio
        authority = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        self._first = [(":method", "POST"), (":scheme", "http"), (":authority", authority)]
        self._common = [("te", "trailers"), ("content-type", "application/grpc"), *access.headers]
        self._blocks: dict[str, bytes] = {}
        self._link: Http2 | None = None
        self._opening: asyncio.Task[Http2] | None = None
        self._pause_s = _FIRST_PAUSE_S
        self._not_before = 0.0
        self._why = ""
        self._closed = False

    async def call(self, ask: Ask, seconds: float | None) -> Reply:
        block = self._block(ask, seconds)
        for _ in range(_ATTEMPTS):
            link = self._link
            try:
                if link is None or not link.usable:
                    async with asyncio.timeout(seconds):
                        link = await self._open()
                return await link.call(block, ask.body, seconds)
            except TimeoutError:
                return Reply(b"", grpc_code=Code.DEADLINE_EXCEEDED, message="Deadline Exceeded")
            except Refused:  # the server is about to stop, or is busy: perhaps it is not when asked anew
                continue
            except Broken as error:
                raise Lost(str(error)) from None
        raise NotReached("the server takes no calls")

    def _block(self, ask: Ask, seconds: float | None) -> bytes:
        block = self._blocks.get(ask.target)
        if block is None:
            block = self._blocks[ask.target] = hpack.encode([*self._first, (":path", ask.target), *self._common])
        if seconds is not None:
            block += hpack.encode([("grpc-timeout", f"{max(1, min(int(seconds * 1e3), 99_999_999))}m")])
        return block + hpack.encode(ask.headers.items()) if ask.headers else block

    async def _open(self) -> Http2:
        """A connection; whoever needs one waits for the same. Raises NotReached."""
        if self._opening is None:
            if time.monotonic() < self._not_before:
                raise NotReached(self._why)
            self._opening = asyncio.ensure_future(self._connect())
            self._opening.add_done_callback(self._opened)
        return await asyncio.shield(self._opening)

    async def _connect(self) -> Http2:
        """To the first of the name's addresses that answers; each has its share of the time. Raises NotReached."""
        loop = asyncio.get_running_loop()
        why: Exception = Broken("it has no address")
        try:
            async with asyncio.timeout(CONNECTS_WITHIN_S):
                found = await loop.getaddrinfo(self._host, self._port, type=socket.SOCK_STREAM)
        except (OSError, TimeoutError) as error:
            found, why = [], error
        hosts = dict.fromkeys(str(info[4][0]) for info in found)
        for host in hosts:
            try:
                async with asyncio.timeout(CONNECTS_WITHIN_S / len(hosts)):
                    return await self._shake_hands(host)
            except (OSError, Broken, TimeoutError) as error:
                why = error
        raise NotReached(f"{self._host}:{self._port}: {str(why) or 'it took too long'}")

    async def _shake_hands(self, host: str) -> Http2:
        loop = asyncio.get_running_loop()
        _, link = await loop.create_connection(lambda: Http2(self._max_bytes), host, self._port)
        try:
            await link.ready
        except BaseException:
            link.close()
            raise
        return link

    def _opened(self, opening: asyncio.Task[Http2]) -> None:
        self._opening = None
        if opening.cancelled():
            return
        error = opening.exception()
        if error is None:
            self._link, self._pause_s = opening.result(), _FIRST_PAUSE_S
            if self._closed:
                self._link.close()
            return
        self._why = str(error)
        self._not_before = time.monotonic() + self._pause_s
        self._pause_s = min(self._pause_s * _LONGER, _LONGEST_PAUSE_S)

    def stream(self, ask: Ask, seconds: float | None) -> AsyncGenerator[Reply, None]:
        return self._aio.stream(ask, seconds)

    async def close(self) -> None:
        self._closed = True
        if self._opening is not None:
            self._opening.cancel()
        if self._link is not None:
            self._link.close()
        await self._aio.close()

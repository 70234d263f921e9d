"""One address of another server over gRPC, by a connection of our own that is opened when it is needed."""

from __future__ import annotations

import asyncio
import math
import socket
import time
from collections.abc import AsyncGenerator
from typing import Final, cast

from tensorgate.backends.remote.connection import CONNECTS_WITHIN_S, OPEN, ConnectionLost, NotReached
from tensorgate.backends.remote.http2_client import CallRefused, Http2Client
from tensorgate.backends.remote.options import UpstreamAccess, host_and_port
from tensorgate.backends.remote.upstream_call import UpstreamCall, failed
from tensorgate.gateway.contract.call import Reply
from tensorgate.gateway.contract.errors import Code
from tensorgate.gateway.contract.upstream import Ask
from tensorgate.gateway.wire import hpack
from tensorgate.gateway.wire.eager_start import in_task

_MIN_PAUSE_S: Final = 0.1
_MAX_PAUSE_S: Final = 1.0
_PAUSE_GROWTH: Final = 1.6
_ATTEMPTS: Final = 3
_MAX_TIMEOUT_MS: Final = 99_999_999
_LATE: Final = failed(Code.DEADLINE_EXCEEDED, "Deadline Exceeded")


class GrpcConnection:
    """An UpstreamConnection over gRPC. The address is HOST:PORT."""

    def __init__(self, address: str, max_bytes: int, access: UpstreamAccess = OPEN) -> None:
        self._loop = asyncio.get_running_loop()
        self._host, self._port = host_and_port(address)
        self._max_bytes = max_bytes
        self._tls = access.tls
        self._server_name = access.server_name
        scheme = "http" if access.tls is None else "https"
        self._first = [(":method", "POST"), (":scheme", scheme), (":authority", access.server_name or address)]
        self._common = [("te", "trailers"), ("content-type", "application/grpc"), *access.headers]
        self._blocks: dict[str, bytes] = {}
        self._client: Http2Client | None = None
        self._clients: list[Http2Client] = []
        self._opening: asyncio.Task[Http2Client] | None = None
        self._pause_s = _MIN_PAUSE_S
        self._not_before = 0.0
        self._why = ""

    async def call(self, ask: Ask, seconds: float | None) -> Reply:
        try:
            _, reply = await self._ask(ask, seconds, streams=False)
        except TimeoutError:
            return _LATE
        return cast("Reply", reply)

    async def stream(self, ask: Ask, seconds: float | None) -> AsyncGenerator[Reply, None]:
        try:
            call, reply = await self._ask(ask, seconds, streams=True)
        except TimeoutError:
            yield _LATE
            return
        try:
            while reply is not None:
                yield reply
                reply = await call.next()
        finally:
            call.leave()

    async def _ask(self, ask: Ask, seconds: float | None, *, streams: bool) -> tuple[UpstreamCall, Reply | None]:
        """A call, and what comes first. Raises NotReached, ConnectionLost; TimeoutError if it did not begin in time."""
        until = None if seconds is None else self._loop.time() + seconds
        for _ in range(_ATTEMPTS):
            try:
                client = self._client
                if client is None or not client.usable:
                    await in_task()
                    async with asyncio.timeout_at(until):
                        client = await self._open()
                if client.is_full:
                    await client.wait_for_room(until)
                call = client.begin(self._block(ask, until), ask, until, streams=streams)
                try:
                    return call, await call.next()
                except BaseException:
                    call.leave()
                    raise
            except CallRefused:  # the server is about to stop, or is busy: perhaps it is not when asked anew
                continue
        raise NotReached("the server takes no calls")

    def _block(self, ask: Ask, until: float | None) -> bytes:
        block = self._blocks.get(ask.target)
        if block is None:
            block = self._blocks[ask.target] = hpack.encode([*self._first, (":path", ask.target), *self._common])
        if until is not None:  # not less than there is: who is late is told so from here
            left_ms = math.ceil((until - self._loop.time()) * 1e3)
            block += hpack.encode([("grpc-timeout", f"{max(1, min(left_ms, _MAX_TIMEOUT_MS))}m")])
        return block + hpack.encode(ask.headers.items()) if ask.headers else block

    # ------------------------------------------------------------------------------------------------------- connection

    async def _open(self) -> Http2Client:
        """A connection; whoever needs one waits for the same. Raises NotReached."""
        if self._opening is None:
            if time.monotonic() < self._not_before:
                raise NotReached(self._why)
            self._opening = asyncio.ensure_future(self._connect())
            self._opening.add_done_callback(self._opened)
        opening = self._opening
        try:
            return await asyncio.shield(opening)
        except asyncio.CancelledError:
            if opening.cancelled():  # by close(); whoever waits may live on
                raise NotReached("closed") from None
            raise

    async def _connect(self) -> Http2Client:
        """To the first of the name's addresses that answers; each has its share of the time. Raises NotReached."""
        why: Exception = OSError("it has no address")
        try:
            async with asyncio.timeout(CONNECTS_WITHIN_S):
                found = await self._loop.getaddrinfo(self._host, self._port, type=socket.SOCK_STREAM)
            hosts = dict.fromkeys(str(info[4][0]) for info in found)
            for host in hosts:
                try:
                    async with asyncio.timeout(CONNECTS_WITHIN_S / len(hosts)):
                        return await self._shake_hands(host)
                except (OSError, ConnectionLost) as error:
                    why = error
        except OSError as error:
            why = error
        raise NotReached(f"{self._host}:{self._port}: {str(why) or 'it took too long'}")

    async def _shake_hands(self, host: str) -> Http2Client:
        name = None if self._tls is None else self._server_name or self._host
        _, client = await self._loop.create_connection(
            lambda: Http2Client(self._max_bytes), host, self._port, ssl=self._tls, server_hostname=name
        )
        try:
            await client.ready
        except BaseException:
            client.close()
            raise
        return client

    def _opened(self, opening: asyncio.Task[Http2Client]) -> None:
        self._opening = None
        if opening.cancelled():
            return
        error = opening.exception()
        if error is None:
            self._client, self._pause_s = opening.result(), _MIN_PAUSE_S
            self._clients = [*[client for client in self._clients if not client.closed], self._client]
            return
        self._why = str(error)
        self._not_before = time.monotonic() + self._pause_s
        self._pause_s = min(self._pause_s * _PAUSE_GROWTH, _MAX_PAUSE_S)

    async def close(self) -> None:
        self._why, self._not_before = "closed", math.inf
        if self._opening is not None:
            self._opening.cancel()
            await asyncio.wait([self._opening])
        for client in self._clients:
            client.close()

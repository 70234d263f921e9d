"""Whole calls to the server that computes a model, in its own dialect: bytes there, bytes back, nothing decoded.

Headers go along both ways, but for those of a single connection, and for credentials by which this gateway has known
the caller: they are meant for it alone.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from typing import Final

from tensorgate.backends.remote.arriving_reply import ReplyInPieces
from tensorgate.backends.remote.options import UpstreamOptions
from tensorgate.backends.remote.pool import Pool
from tensorgate.gateway.contract.backend import ModelSource
from tensorgate.gateway.contract.call import Call, Reply
from tensorgate.gateway.contract.errors import QueueFull
from tensorgate.gateway.contract.tensor import NOTHING
from tensorgate.gateway.contract.upstream import Ask, Client

log = logging.getLogger(__name__)

_MAX_WAITING: Final = 1024
"""How many calls may wait for others to end."""
_OF_CONNECTIONS: Final = frozenset(
    {
        "connection",
        "content-length",
        "expect",
        "host",
        "http2-settings",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)
"""Source: RFC 9110, 7.6.1."""
_OF_GRPC: Final = _OF_CONNECTIONS | {"content-type", "user-agent"}
_GRPC_PREFIX: Final = "grpc-"
_OF_ANSWERS: Final = _OF_CONNECTIONS | {"date", "server"}
_OF_GRPC_ANSWERS: Final = _OF_ANSWERS | {
    ":status",
    "content-type",
    "grpc-accept-encoding",
    "grpc-encoding",
    "grpc-message",
    "grpc-status",
    "x-request-id",
}
_METADATA: Final = re.compile(r"[0-9a-z_.-]+ [ -~]*")
"""A name of gRPC's metadata, and its value."""
_MAX_METADATA_BYTES: Final = 8 << 10
"""Of what goes to the caller, before the first message and behind the last. Source: the bound of gRPC's clients."""
_CREDENTIALS: Final = frozenset({"authorization", "cookie", "x-api-key"})


class ChunkCutter:
    """Every piece of a streamed body is passed on as it comes."""

    def feed(self, data: bytes) -> list[bytes]:
        return [data]

    def end(self) -> list[bytes]:
        return []


class RemoteForwarder:
    """See contract.forwarding.Forwarder. `name` is the model's, here and there."""

    def __init__(
        self, pools: Mapping[str, Pool], upstream: UpstreamOptions, name: str, client: Client, in_flight: int
    ) -> None:
        """`pools` are by transport."""
        self._pools = pools
        self._readdressed = client.readdressed
        self._passes_on = client.passes_on
        aliases = client.aliases
        self._own_headers = frozenset(upstream.headers)
        self.kinds = frozenset((upstream.dialect, transport) for transport in pools)
        self.aliases = aliases
        self._name = name
        self._names = None if client.readdresses else frozenset((name, *aliases))
        self._timeout_s = upstream.timeout_ms / 1000
        self._in_flight = in_flight
        self._room = asyncio.Semaphore(in_flight)
        self._waiting = 0

    def takes(self, call: Call, name: str) -> bool:
        """Memory that callers share with this gateway is nothing to another server."""
        return (
            (call.dialect, call.transport) in self.kinds
            and (self._names is None or name in self._names)
            and not call.regions.in_use
            and self._passes_on(call)
        )

    async def forward(
        self, call: Call, headers: Mapping[str, str], *, streams: bool, whole: bool
    ) -> AsyncGenerator[Reply, None]:
        if self._room.locked():
            if self._waiting >= _MAX_WAITING:
                raise QueueFull(self._name, _MAX_WAITING)
            self._waiting += 1
            try:
                await self._room.acquire()
            finally:
                self._waiting -= 1
        else:
            await self._room.acquire()
        try:
            pool, is_http = self._pools[call.transport], call.transport == "http"
            told = _headers_there(call)
            if self._own_headers:  # such as the key by which that server knows this gateway
                told = {name: value for name, value in told.items() if name not in self._own_headers}
            target, body = self._readdressed(call) or (
                call.raw_target,
                (call.body,) if len(call.body) or not is_http else (),
            )
            ask = Ask(
                target,
                body,
                call.method,
                {**told, **headers},
                ChunkCutter if is_http else None,
                call.arriving,
                takes_arriving=not whole,
            )
            if not streams:
                reply = await pool.call(ask, self._seconds(call))
                arriving = reply.arriving
                try:
                    if isinstance(arriving, ReplyInPieces):
                        arriving.translate = partial(_reply_here, streamed=False)
                    yield _reply_here(reply, streamed=False)
                finally:
                    if arriving is not None:
                        arriving.close()
                return
            async with aclosing(pool.stream(ask, self._seconds(call))) as replies:
                first: Reply | None = None
                here: Reply | None = None
                async for reply in replies:
                    if first is not None and here is not None and _has_head_of(reply, first):
                        yield Reply(reply.body, here.http_status, here.headers, streamed=here.streamed)
                        continue
                    first, here = reply, _reply_here(reply, streamed=True)
                    yield here
        finally:
            self._room.release()

    def _seconds(self, call: Call) -> float | None:
        limit = self._timeout_s or None
        if call.deadline is None:
            return limit
        left = max(1e-3, call.deadline - time.monotonic())
        return left if limit is None else min(left, limit)


def may_forward(source: ModelSource, client: Client, upstream: UpstreamOptions) -> bool:
    """Whether calls may be passed on as they are. Not where something of the model is different here: its name or its
    tensors, or which of its versions and signatures answers; nor where there are several addresses, of which one would
    have to get all calls that belong together.
    """
    if client.readdresses:  # a call that is asked by no tensors does not depend on theirs
        return upstream.forward
    is_same = upstream.model in ("", source.name) and not (
        source.inputs
        or source.outputs
        or upstream.inputs
        or upstream.outputs
        or upstream.signature
        or upstream.label is not None
        or upstream.version is not None
    )
    return upstream.forward and is_same and not (client.stateful and len(upstream.addresses) > 1)


def _headers_there(call: Call) -> dict[str, str]:
    """What the caller sent, for another server."""
    is_http = call.transport == "http"
    dropped = _OF_CONNECTIONS if is_http else _OF_GRPC
    if call.caller is not None:
        dropped = dropped | _CREDENTIALS
    return {
        name: value
        for name, value in call.headers.items()
        if name not in dropped and (is_http or not name.startswith((_GRPC_PREFIX, ":")))
    }


def _reply_here(reply: Reply, *, streamed: bool) -> Reply:
    """What the server replied, for the caller: an error ends a stream."""
    headers = {name: value for name, value in reply.headers.items() if name not in _OF_ANSWERS}
    is_error = reply.grpc_code or reply.http_status != 200
    metadata = reply.metadata
    if metadata is not None:
        before, behind = map(_metadata_here, metadata)
        metadata = (before, behind) if before or behind else None
    return replace(reply, headers=headers, streamed=streamed and not is_error, metadata=metadata)


def _has_head_of(reply: Reply, other: Reply) -> bool:
    """Whether it is a further piece of the same answer over HTTP, whose head has been read."""
    return reply.headers is other.headers and reply.metadata is None and not reply.grpc_code


def _metadata_here(metadata: Mapping[str, str]) -> Mapping[str, str]:
    """What the server said of the answer, and neither of its connection nor of the status, which is sent anew."""
    if metadata.keys() <= _OF_GRPC_ANSWERS:
        return NOTHING
    kept, room = {}, _MAX_METADATA_BYTES
    for name, value in metadata.items():
        if name not in _OF_GRPC_ANSWERS and _METADATA.fullmatch(f"{name} {value}"):
            room -= len(name) + len(value)
            if room < 0:
                log.warning("upstream: more than %d bytes of metadata; the rest is left out", _MAX_METADATA_BYTES)
                break
            kept[name] = value
    return kept

"""The other end of a connection, as transports see it. Nothing is looked up before somebody asks."""

from __future__ import annotations

import asyncio
from typing import Any
from urllib.parse import unquote


class HttpPeer:
    """Of an HTTP connection."""

    __slots__ = ("_transport",)

    def __init__(self, transport: asyncio.BaseTransport | None) -> None:
        self._transport = transport

    def address(self) -> str:
        """See Peer."""
        name = self._transport.get_extra_info("peername") if self._transport is not None else None
        return str(name[0]) if isinstance(name, tuple) else ""


class GrpcPeer:
    """Of an RPC, by its context."""

    __slots__ = ("_context",)

    def __init__(self, context: Any) -> None:
        self._context = context

    def address(self) -> str:
        """See Peer. grpc has it as ipv4:1.2.3.4:567, or ipv6:[::1]:567."""
        kind, _, rest = unquote(self._context.peer()).partition(":")
        return rest.rpartition(":")[0].strip("[]") if kind in ("ipv4", "ipv6") else ""

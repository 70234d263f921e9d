"""What all connections of one gRPC port share."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from tensorgate.gateway.telemetry.connection_metrics import ListenerCounters
from tensorgate.gateway.transport.clients import ClientConnection, Clients
from tensorgate.gateway.transport.grpc_exchange import GrpcLimits, Handlers
from tensorgate.gateway.transport.timeouts import ClientTimeouts


@dataclass(frozen=True, slots=True, eq=False)
class GrpcContext:
    """The server makes it, its connections and calls read it."""

    handlers: Handlers
    counters: ListenerCounters
    limits: GrpcLimits
    timeouts: ClientTimeouts
    clients: Clients[ClientConnection]
    loop: asyncio.AbstractEventLoop
    scratch: memoryview
    """Memory to read into, for all connections of the loop."""
    greeting: bytes
    """The first frames of each connection: the server's settings."""
    max_streams: int
    """Calls at a time on one connection."""

"""What a gRPC server offers to the one flow that answers calls. Tests have grpc.aio's besides."""

from __future__ import annotations

import socket
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NoReturn, Protocol, TypeAlias

from tensorgate.gateway.contract.call import Buffer, Peer, Reply
from tensorgate.gateway.transport.spread import Share
from tensorgate.gateway.wire.http1_body import Body


class Rpc(Protocol):
    """One call, and how to answer it: by `send` once, or by any number of `write`. When the flow is over, so is the
    call, with OK.

    Sending waits for a reader that is slow, and raises ConnectionError once there is none.
    """

    @property
    def headers(self) -> Mapping[str, str]:
        """The metadata, with lower-case keys; values of keys in -bin are base64."""
        ...

    @property
    def deadline(self) -> float | None:
        """In seconds of `time.monotonic()`."""
        ...

    @property
    def peer(self) -> Peer: ...

    def set_request_id(self, request_id: str) -> None:
        """Put a request id into the trailing metadata. Called before anything is sent."""
        ...

    async def read(self) -> Buffer | None:
        """The next message of a call of many, None after the last."""
        ...

    def send(self, reply: Reply) -> Awaitable[None] | None:
        """Send the only reply: its message, or its status if that is not OK -> what is to be waited for, None where
        nothing is.
        """
        ...

    async def write(self, reply: Reply) -> None:
        """One message of several."""
        ...

    async def fail(self, reply: Reply) -> NoReturn:
        """End the call with the status of a reply that is no success. Raises what ends the flow, too."""
        ...


RunArriving: TypeAlias = Callable[[Rpc, Body, int], Coroutine[Any, Any, None] | None]
"""(call, what takes its message, the message's size) -> the flow of a unary call whose large message begins to come;
None if it has to be whole."""


@dataclass(frozen=True, slots=True)
class Handler:
    """How a method is answered."""

    stream: Literal["unary", "server", "bidi"]
    run: Callable[[Rpc, Buffer], Coroutine[Any, Any, None]]
    """The flow. It gets the only message, or an empty one where it is to read many."""
    admits: Callable[[Mapping[str, str]], bool] | None = None
    """Tells from a call's metadata whether `run` may let it in. Otherwise nothing large of the call is kept."""
    run_arriving: RunArriving | None = None


Handlers = Mapping[str, Handler]
"""Handlers by the methods' full names."""


@dataclass(frozen=True, slots=True)
class GrpcLimits:
    """The limits of one port."""

    max_message_bytes: int
    max_metadata_bytes: int = 16 << 10
    max_streams: int | None = None
    """Calls at a time on one connection."""
    max_connections: int | None = None


class GrpcPort(Protocol):
    """One address that speaks gRPC."""

    @property
    def connections(self) -> int | None:
        """How many are open; None where it does not tell. May be asked in any thread."""
        ...

    async def start(self, sock: socket.socket, share: Share | None = None) -> None:
        """Listen at a bound socket; `share` is the part of it that one of several doors takes."""
        ...

    async def stop(self, grace: float, *, hand_on: bool = False) -> None:
        """Accept nothing more, finish what was asked for `grace` seconds, cancel the rest. With `hand_on` another
        process goes on at the address; else nobody does, whoever holds the same socket.
        """
        ...

"""What a way of speaking gRPC offers to the one flow that answers calls. There is the lane; tests have grpc.aio's, to
compare.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NoReturn, Protocol

from tensorgate.gateway.contract.call import Peer, Reply


class Rpc(Protocol):
    """One call, and how to answer it: by `send` once, or by any number of `write`. When the flow is over, so is the
    call, with OK.

    `headers` is its metadata but for what is binary, with lower-case keys; `deadline` is in seconds of
    `time.monotonic()`; `request_id` goes into the answer's trailing metadata, unless it is "". Sending waits for a
    reader that is slow, and raises ConnectionError once there is none.
    """

    @property
    def headers(self) -> Mapping[str, str]: ...

    @property
    def deadline(self) -> float | None: ...

    @property
    def peer(self) -> Peer: ...

    def name(self, request_id: str) -> None:
        """Give it a request id, before anything is sent."""
        ...

    async def read(self) -> bytes | None:
        """The next message of a call of many, None after the last."""
        ...

    async def send(self, reply: Reply) -> None:
        """The only reply: its message, or its status if that is not OK."""
        ...

    async def write(self, reply: Reply) -> None:
        """One message of several."""
        ...

    async def fail(self, reply: Reply) -> NoReturn:
        """End the call with the status of a reply that is no success. Raises what ends the flow, too."""
        ...


@dataclass(frozen=True, slots=True)
class Handler:
    """How a method is answered. `run` has the only message, or none where it is to read many (`bidi`). `admits` says of
    a call's metadata whether `run` may let it in: otherwise nothing large of it need be kept.
    """

    stream: Literal["unary", "server", "bidi"]
    run: Callable[[Rpc, bytes], Coroutine[Any, Any, None]]
    admits: Callable[[Mapping[str, str]], bool] | None = None


Handlers = Mapping[str, Handler]
"""By the methods' full names."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """Of one port: bytes of a message, of a call's metadata, calls at a time on a connection, connections."""

    message: int
    metadata: int = 16 << 10
    streams: int | None = None
    connections: int | None = None


class GrpcPort(Protocol):
    """One address that speaks gRPC."""

    @property
    def connections(self) -> int | None:
        """How many are open; None where it does not tell. May be asked in any thread."""
        ...

    async def start(self, host: str, port: int) -> int:
        """Listen; returns the port. Raises OSError if the address is taken."""
        ...

    async def stop(self, grace: float) -> None:
        """Accept nothing more, finish what was asked for `grace` seconds, cancel the rest."""
        ...

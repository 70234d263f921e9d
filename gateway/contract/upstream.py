"""A dialect from the other side: what a client of another server sends, and what it makes of the answers."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeAlias

from tensorgate.gateway.contract.call import Buffer, Reply
from tensorgate.gateway.contract.canonical import InferRequest, InferResponse
from tensorgate.gateway.contract.tensor import NOTHING, Tensors, TensorSpec


@dataclass(frozen=True, slots=True)
class UpstreamModel:
    """A model of another server, as that server's clients name it; `signature` "" is its default."""

    name: str
    version: int | None = None
    label: str | None = None
    signature: str = ""


class Cutter(Protocol):
    """Cuts the body of an HTTP answer that has many messages into these, while it arrives."""

    def feed(self, data: bytes) -> list[bytes]:
        """More of the body -> the messages that are whole now."""
        ...

    def end(self) -> list[bytes]:
        """Nothing more comes: what is left, whole or not."""
        ...


@dataclass(slots=True, eq=False)
class Ask:
    """One message to another server: `target` is an HTTP path, percent-encoded, or a full gRPC method. What comes back
    is a Reply; of a stream over HTTP several, with the messages that a new `cut` finds in the body.
    """

    target: str
    body: Sequence[Buffer] = ()
    method: str = "POST"
    headers: Mapping[str, str] = NOTHING
    cut: Callable[[], Cutter] | None = None


@dataclass(frozen=True, slots=True)
class Description:
    """What another server says of a model; what it leaves open stays empty."""

    inputs: tuple[TensorSpec, ...] = ()
    outputs: tuple[TensorSpec, ...] = ()
    decoupled: bool = False


class Client(Protocol):
    """A dialect from the other side, on one transport: what a client of a server sends, and what it makes of the
    answers, for one model. As pure as a dialect.

    `streams`: how a decoupled model is asked: a call of many messages each way (bidi), one question with many answers
    (server), or not at all (no). `platform` is informational.
    """

    transport: Literal["http", "grpc"]
    streams: Literal["bidi", "server", "no"]
    platform: str

    def probe(self) -> Ask:
        """Can the model answer now?"""
        ...

    def is_ready(self, reply: Reply) -> bool:
        """What the answer to a probe says."""
        ...

    def questions(self) -> Sequence[Ask]:
        """What to ask to learn the model's specifications; nothing where the protocol has no word for them."""
        ...

    def description(self, replies: Sequence[Reply]) -> Description:
        """The answers to those. Raises GatewayError."""
        ...

    def encode(
        self, tensors: Tensors, outputs: Sequence[str], request: InferRequest, description: Description, *, stream: bool
    ) -> Ask:
        """Host arrays in, the named outputs wanted; `request` has what goes along with them. Raises EncodingFailed."""
        ...

    def decode(self, reply: Reply, description: Description) -> InferResponse:
        """The whole answer, or with an error's kind and text what the server said instead: raises GatewayError."""
        ...

    def decode_part(self, reply: Reply, description: Description) -> InferResponse:
        """The same of one message of a stream: the last one is final, and may have no outputs."""
        ...


MakeClient: TypeAlias = Callable[[UpstreamModel], Client]

Clients: TypeAlias = Callable[[str, str], MakeClient | None]
"""(dialect, transport) -> what makes its clients, if there are any."""

Await: TypeAlias = Callable[[Coroutine[Any, Any, Any]], Any]
"""Runs on the event loop what a thread gives it, and returns what becomes of it."""

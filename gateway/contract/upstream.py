"""A dialect from the other side: what a client of another server sends, and what it makes of the answers."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeAlias

from tensorgate.gateway.contract.call import ArrivingBody, Buffer, Call, Reply
from tensorgate.gateway.contract.canonical import InferRequest, InferResponse
from tensorgate.gateway.contract.questions import IndexEntry, LoadModel, UnloadModel
from tensorgate.gateway.contract.tensor import NOTHING, Tensors, TensorSpec


@dataclass(frozen=True, slots=True)
class UpstreamModel:
    """A model of another server, as that server's clients name it."""

    name: str
    version: int | None = None
    label: str | None = None
    signature: str = ""
    """"" is the server's default."""


class Cutter(Protocol):
    """Splits the body of an HTTP answer into its messages, while it arrives."""

    def feed(self, data: bytes) -> list[bytes]:
        """More of the body -> the messages that are whole now."""
        ...

    def end(self) -> list[bytes]:
        """The body has ended -> what is left, whole or not."""
        ...


@dataclass(slots=True, eq=False)
class Ask:
    """One message to another server. A Reply comes back; of a stream, several."""

    target: str
    """An HTTP path, percent-encoded, or a full gRPC method."""
    body: Sequence[Buffer] = ()
    """Sent in order, not joined first."""
    method: str = "POST"
    headers: Mapping[str, str] = NOTHING
    cut: Callable[[], Cutter] | None = None
    """Makes what finds the messages of a stream over HTTP."""
    arriving: ArrivingBody | None = None
    """What tells how much of `body`, which is one buffer, is here. None: all of it."""
    takes_arriving: bool = False
    """Whether the reply may be one that still arrives, and pieces of a stream may be passed on without one."""


@dataclass(frozen=True, slots=True)
class Description:
    """What another server says of a model; what it leaves open stays empty."""

    inputs: tuple[TensorSpec, ...] = ()
    outputs: tuple[TensorSpec, ...] = ()
    decoupled: bool = False
    binary: bool = True
    """Whether the server takes tensors as bytes, where the protocol knows both them and text."""


class Client(Protocol):
    """The client half of a dialect on one transport, for one model. It is as pure as a dialect: backends.remote owns
    the connections. What a protocol has no word for, its client inherits.
    """

    @property
    def transport(self) -> Literal["http", "grpc"]: ...

    @property
    def streams(self) -> Literal["bidi", "server", "no"]:
        """How a decoupled model is asked: a call of many messages each way, one question with many answers, or not."""
        ...

    @property
    def stateful(self) -> bool:
        """Whether calls may belong together, so that one of several servers has to get them all."""
        return False

    @property
    def platform(self) -> str:
        """The model's platform in metadata; informational."""
        ...

    @property
    def aliases(self) -> tuple[str, ...]:
        """What else its callers may call the model."""
        return ()

    @property
    def readdresses(self) -> bool:
        """Whether `readdressed` says how to ask: then the model may have another name here."""
        return False

    def passes_on(self, call: Call) -> bool:
        """Whether the server may be asked what a caller asks in the same dialect, over the same transport."""
        return True

    def readdressed(self, call: Call) -> tuple[str, Sequence[Buffer]] | None:
        """The target and the body by which the server is asked what a caller asks in the same dialect; None: by the
        caller's own. In any thread; the call has been read before.
        """
        return None

    def probe(self) -> Ask:
        """Asks whether the model can answer now."""
        ...

    def is_ready(self, reply: Reply) -> bool:
        """Reads the answer to a probe."""
        ...

    def listings(self, *, ready_only: bool) -> Sequence[Ask]:
        """Ask the server for all its models, or those that are ready: the first of these that it knows."""
        return ()

    def listed(self, reply: Reply) -> tuple[IndexEntry, ...] | None:
        """Reads the answer to one of `listings`: a model's versions, as far as it says these. None where the server
        does not know the question. Raises GatewayError.
        """
        return None

    def control(self, question: LoadModel | UnloadModel) -> tuple[Ask, Callable[[Reply], None]] | None:
        """Asks the server to load or unload a model, beside what reads the answer and raises GatewayError."""
        return None

    def available(self, reply: Reply) -> tuple[int, ...]:
        """Reads the answer to a probe: the versions that are ready, as far as it says these. Raises GatewayError."""
        return ()

    def questions(self) -> Sequence[Ask]:
        """What to ask for the model's specifications; empty where the protocol has no word for them."""
        return ()

    def description(self, replies: Sequence[Reply]) -> Description:
        """Reads the answers to `questions`. Raises GatewayError."""
        return Description()

    def encode(
        self, tensors: Tensors, outputs: Sequence[str], request: InferRequest, description: Description, *, stream: bool
    ) -> Ask:
        """Host arrays in, the named outputs wanted, all if there are none. `request` has the parameters that go along.

        Raises EncodingFailed.
        """
        ...

    def decode(self, reply: Reply, description: Description) -> InferResponse:
        """Reads a whole answer. Raises GatewayError: the kind and text of what the server said instead."""
        ...

    def decode_part(self, reply: Reply, description: Description) -> InferResponse:
        """Reads one message of a stream: the last one is final, and may have no outputs. Raises GatewayError."""
        ...


class ModelServer(Protocol):
    """Another server, of which any model may be asked. On the event loop but for `names` and `entry`."""

    @property
    def names(self) -> tuple[str, ...] | None:
        """The models that the configuration names; None: all that the server has."""
        ...

    @property
    def refresh_seconds(self) -> float:
        """How often it is asked which models it has."""
        ...

    @property
    def controlled(self) -> bool:
        """Whether it loads and unloads its models when callers here say so."""
        ...

    def versions(self, model: str) -> tuple[int, ...]:
        """The versions that the model had when the server was last asked; none where it does not say. In any thread."""
        ...

    def entry(self, model: str) -> Mapping[str, Any]:
        """What the YAML would say of one of its models."""
        ...

    async def index(self) -> tuple[IndexEntry, ...]:
        """All models, ready or not; none where it does not say. Raises Unavailable."""
        ...

    async def listed(self) -> tuple[str, ...] | None:
        """The models that are ready there; None where it does not say. Raises Unavailable."""
        ...

    async def has(self, model: str) -> bool:
        """Whether this model is ready there. Raises Unavailable."""
        ...

    async def control(self, question: LoadModel | UnloadModel) -> None:
        """Have it load or unload a model. Raises GatewayError: what it said instead, or that it cannot be asked."""
        ...

    async def close(self) -> None:
        """Give back connections."""
        ...


MakeClient: TypeAlias = Callable[[UpstreamModel], Client]

Clients: TypeAlias = Callable[[str, str], MakeClient | None]
"""(dialect, transport) -> what makes its clients, if there are any."""

Await: TypeAlias = Callable[[Coroutine[Any, Any, Any]], Any]
"""Runs a coroutine on the event loop for a thread, and returns its result."""

"""One message as a transport saw it, and one for it to send: for whoever writes a transport or a dialect."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, NamedTuple, Protocol, TypeAlias

from tensorgate.gateway.contract.errors import Code
from tensorgate.gateway.contract.memory import NO_REGIONS, Regions
from tensorgate.gateway.contract.tensor import NOTHING

Buffer: TypeAlias = bytes | bytearray | memoryview


class MustOffload(Exception):
    """Raised by a decode on the event loop that has much to read. The service calls it again in a thread, where it
    calls decodes of compressed bodies in the first place: nobody knows yet how large those are.
    """


class MustRelay(Exception):
    """Raised in a door by what only the engine's process can answer: a name that the door does not know, memory that
    callers share with the engine, a version that has left. The service passes the whole call on.
    """


@dataclass(frozen=True, slots=True)
class Caller:
    """Who calls, as the credentials say."""

    name: str
    roles: frozenset[str] = frozenset()
    until: float = math.inf
    """When the credentials expire, in seconds since 1970."""
    claim: str = ""
    """What a token says in the claim that shares go by, "" where there is none."""


class Peer(Protocol):
    """The other end of a connection."""

    def address(self) -> str:
        """The IP address, which may be a proxy's; "" if there is none."""
        ...

    def names(self) -> Sequence[str]:
        """The names of a verified certificate: URIs, DNS names, the common name; none without a certificate."""
        ...


class Nobody:
    """The peer of a call that came by no connection."""

    def address(self) -> str:
        return ""

    def names(self) -> Sequence[str]:
        return ()


NOBODY: Final[Peer] = Nobody()


def combined(headers: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Headers by their names in lower case, repeated ones joined as one list. So no reader takes the first of two and
    another the last, and two credentials are none. Source: RFC 9110, 5.3.
    """
    found: dict[str, str] = {}
    for name, value in headers:
        name = name.lower()
        found[name] = f"{found[name]}, {value}" if name in found else value
    return found


class ArrivingBody(Protocol):
    """A body of which a part is here, for whoever sends it on meanwhile. On the event loop."""

    on_more: Callable[[], None] | None
    """Called when `passable_bytes` has grown, and once when there is an `error`. Whoever sends the body on writes it.
    """

    @property
    def passable_bytes(self) -> int:
        """How many of the first bytes may be sent on. The last of them follow once nothing can be wrong any more."""
        ...

    @property
    def error(self) -> Exception | None:
        """Why the body must not be sent on to its end."""
        ...


class ArrivingReply(Protocol):
    """A reply of which a part is here, for whoever sends it on meanwhile. On the event loop."""

    def pieces(self) -> AsyncIterator[Buffer]:
        """The body as it comes. It ends early where no more will come."""
        ...

    @property
    def last(self) -> Reply | None:
        """The end of it, once that is known: the status, and the metadata behind the message. An error without all of
        the body: the rest will not come.
        """
        ...

    def close(self) -> None:
        """Nobody waits for the rest, if any is to come."""
        ...


PassOn: TypeAlias = "Callable[[Buffer], bool]"
"""Sends a piece of a stream on at once; false where it would have to wait: then it is to come as a reply."""
Further: TypeAlias = "Callable[[PassOn], None]"


class CallQuota(NamedTuple):
    """What a limit of requests, or of tokens, leaves a caller."""

    limit: float
    """How many it may have at once, none before them."""
    remaining: float
    reset_s: float
    """Until it may have all of them again."""


@dataclass(slots=True, eq=False)
class Call:
    """One message as a transport saw it, made whole by the transport.

    What is Final stays as it was made; the type checker holds everybody to it, so that it costs no call. The rest is
    written while the call is answered, each attribute by the one writer that is named below it.
    """

    body: Final[Buffer]
    """The message. Arrays that are decoded may be views of it."""
    method: Final[str]
    """HTTP's method; POST over gRPC."""
    raw_target: Final[str]
    """HTTP's request target, still percent-encoded, or the full name of the gRPC method."""
    headers: Final[Mapping[str, str]]
    """HTTP headers or gRPC metadata, read case-insensitively with lower-case keys. gRPC's values of keys in -bin are
    base64."""
    transport: Final[Literal["http", "grpc"]]
    args: Final[Mapping[str, str]] = NOTHING
    """What the dialect's address says: model, version and so on."""
    deadline: Final[float | None] = None
    """In seconds of `time.monotonic()`."""
    max_body_bytes: Final[int] = 64 << 20
    """Bounds the JSON of a body, also once it is inflated."""
    max_binary_bytes: Final[int] = 1 << 30
    """Bounds a body of tensor data as bytes."""
    max_json_depth: Final[int | None] = None
    """How deep JSON may nest."""
    notes: Final[dict[str, str]] = field(default_factory=dict)
    """What the dialect's decode learns that a later error must repeat, such as the request's id; of a call that it
    could not read to the end also `model`, `version` and `label`, as the message has them, where the address does not.
    Only the dialect writes into it.
    """
    accepted: bool = False
    """The question is a model's to answer, and an error from here on is an answer, too. The service writes it."""
    has_replied: bool = False
    """A reply has been sent, and what goes wrong from now on comes behind it. The service writes it."""
    regions: Regions = NO_REGIONS
    """The memory that callers share. The service writes it."""
    in_thread: bool = False
    """Decoding runs in a thread and may take its time. The service writes it."""
    dialect: str = ""
    """The dialect that reads the message. The service writes it."""
    listener: Final[tuple[str, ...]] = ()
    """What routes call the port where the message came in."""
    peer: Final[Peer] = NOBODY
    """The other end of the connection."""
    caller: Caller | None = None
    """The caller, None if nobody knows it. The authorizer writes it."""
    share: str = ""
    """Whose share of the devices it is answered from, "" for callers whom nobody knows and where there are no shares.
    The authorizer writes it; in the engine's process, what a door says."""
    auth: Final[str] = ""
    """What the port wants of callers, "" for what all ports do."""
    request_id: str = ""
    """What the answer's headers call it, "" where they do not. The observer writes one for the access log."""
    admitted: bool = False
    """The authorizer has counted the question. The service writes it; in the engine's process, what a door says."""
    token_quota: CallQuota | None = None
    """What the limits of tokens leave the caller. The authorizer writes it."""
    quota: CallQuota | None = None
    """What the narrowest limit of requests leaves the caller; None: there is none. The authorizer writes it."""
    record: Any = None
    """The CallRecord of a call that a door has let in, where it wants to know. The process of the engine writes it."""
    report: Callable[[object], None] | None = None
    """Takes the outcome of a call that a door has let in, and will count. The process of the engine writes it."""
    arriving: Final[ArrivingBody | None] = None
    """What tells how much of `body` is here, which has its whole length from the start. None: all of it."""
    charges: tuple[Callable[[int], None], ...] = field(default=(), init=False)
    """Who is to be told how many tokens the call has taken, when it is over. The authorizer writes it."""
    end_steps: tuple[Callable[[], None], ...] = field(default=(), init=False)
    """What is to be done when the call is over. The service does it."""

    def on_end(self, step: Callable[[], None]) -> None:
        """Take a step when the call is over."""
        self.end_steps += (step,)


@dataclass(slots=True, eq=False)
class Reply:
    """One message for a transport to send. Nobody changes it once it is made."""

    body: Final[Buffer | Sequence[Buffer]]
    """One buffer, or several that are sent in order without joining them first."""
    http_status: Final[int] = 200
    headers: Final[Mapping[str, str]] = NOTHING
    grpc_code: Final[Code] = Code.OK
    """What gRPC sends beside the body. A reply that is OK has a body."""
    message: Final[str] = ""
    """The text of the gRPC status."""
    streamed: Final[bool] = False
    """More replies may follow on the same call."""
    metadata: Final[tuple[Mapping[str, str], Mapping[str, str]] | None] = None
    """gRPC's, that which comes before the first message and that behind the last; values of keys in -bin are base64."""
    arriving: Final[ArrivingReply | None] = None
    """What gives the body as it comes, where `body`, which is one buffer, is not all here. None: all of it is."""
    further: Final[Further | None] = None
    """Of the first reply of a stream: gets what sends the pieces behind it on as they come, if the transport can."""


EMPTY: Final = Reply(b"")

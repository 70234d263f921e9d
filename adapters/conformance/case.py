"""A conformance case: requests as they go over the wire, and what a conforming server answers.

A suite does no I/O. `find` yields requests and is sent their replies, until it returns what it has learned of the
server; `cases` makes the cases for that.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, Protocol

UNIMPLEMENTED: Final = 12
"""gRPC's code for methods that a server lacks."""


class Level(enum.IntEnum):
    """How much a difference weighs."""

    EXTENSION = 0
    """A server may lack it."""
    RECOMMENDED = 1
    """Clients cope with another answer."""
    REQUIRED = 2
    """Clients break on another answer."""


@dataclass(frozen=True, slots=True)
class WireRequest:
    """One call. `messages` is the body over HTTP, if there is one; over gRPC, every message that the client sends."""

    transport: Literal["http", "grpc"]
    target: str
    """Over HTTP the path as it is sent, over gRPC the full name of the method."""
    messages: tuple[bytes, ...] = ()
    method: str = "POST"
    headers: tuple[tuple[str, str], ...] = ()
    """Over gRPC the metadata."""
    client_streams: bool = False
    server_streams: bool = False


@dataclass(frozen=True, slots=True)
class WireReply:
    """What came back. Names of headers are in lower case; over gRPC they are the initial and trailing metadata."""

    messages: tuple[bytes, ...] = ()
    """The body over HTTP; over gRPC every message that came before the status."""
    status: int = 0
    """Of HTTP."""
    code: int = 0
    """Of gRPC."""
    text: str = ""
    """The status message of gRPC."""
    headers: Mapping[str, str] = field(default_factory=dict)
    failure: str = ""
    """Why there is no reply: no connection, no answer in time, no HTTP. All else is empty then."""

    @property
    def body(self) -> bytes:
        return b"".join(self.messages)

    @property
    def is_not_offered(self) -> bool:
        """Whether this is how servers refuse what they do not know."""
        return self.status in (404, 405, 501) or self.code == UNIMPLEMENTED


@dataclass(frozen=True, slots=True)
class ReplyDifference:
    """One fact of a reply that is not as expected; both sides as people read them."""

    what: str
    expected: str
    got: str
    level: Level = Level.REQUIRED


class Expectation(Protocol):
    """What a reply must be like."""

    def differences(self, reply: WireReply) -> Iterable[ReplyDifference]: ...


Step = tuple[WireRequest, tuple[Expectation, ...]]
"""A request, and all that holds of its reply."""


@dataclass(frozen=True, slots=True)
class ConformanceCase:
    """One promise of the protocol. Steps are asked in order, over one connection."""

    name: str
    clause: str
    """Where the protocol says so."""
    steps: tuple[Step, ...]
    level: Level = Level.REQUIRED
    """The most that a difference of this case weighs."""
    extension: str = ""
    """The extension that it belongs to; a server that refuses all of an extension does not offer it."""

    @property
    def transport(self) -> str:
        return self.steps[0][0].transport


@dataclass(frozen=True, slots=True)
class FoundServer:
    """What a suite has learned of a server before it asks: a name for the report, and the dialect's facts."""

    name: str
    models: Sequence[Any] = ()
    notes: Sequence[str] = ()
    """What could not be asked, and why."""
    extensions: frozenset[str] | None = None
    """Those that it says it has; None: it says nothing of them."""


Finding = Generator[WireRequest, WireReply, FoundServer]


@dataclass(frozen=True, slots=True)
class ConformanceSuite:
    """A dialect's conformance cases."""

    name: str
    title: str
    find: Callable[[Sequence[str], Sequence[str]], Finding]
    """(transports that can be asked, models that were named) -> a generator of requests, sent their replies."""
    cases: Callable[[FoundServer, Sequence[str]], Sequence[ConformanceCase]]
    """(server, transports) -> what to ask it."""
    repository: Callable[[str], Mapping[str, bytes]]
    """(absolute path of a folder) -> files there, by relative path, of models whose behaviour the cases know."""
    serve_hint: str
    """How the models of the repository are served, for people."""
    is_volatile: Callable[[WireRequest], bool] = lambda request: False
    """Whether two right answers to this may differ: counters, times."""

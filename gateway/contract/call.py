"""One message as a transport saw it, and one for it to send: for whoever writes a transport or a dialect."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, Protocol, TypeAlias

from tensorgate.gateway.contract.errors import Code
from tensorgate.gateway.contract.memory import NO_REGIONS, Regions
from tensorgate.gateway.contract.tensor import NOTHING

Buffer: TypeAlias = bytes | bytearray | memoryview


class MustOffload(Exception):
    """Raised by a decode on the event loop that finds it has much to read, although its call is short: it is called
    again in a thread.
    """


@dataclass(frozen=True, slots=True)
class Caller:
    """Who calls, as the credentials say: its name and roles. `until` is when they expire, in seconds since 1970."""

    name: str
    roles: frozenset[str] = frozenset()
    until: float = math.inf


class Peer(Protocol):
    """The other end of a connection."""

    def address(self) -> str:
        """Its IP address; "" if it has none. It may be a proxy's."""
        ...

    def names(self) -> Sequence[str]:
        """What its certificate calls it, if it has shown one that was verified: URIs, DNS names, the common name."""
        ...


class Nobody:
    """Where there is no connection."""

    def address(self) -> str:
        return ""

    def names(self) -> Sequence[str]:
        return ()


NOBODY: Final[Peer] = Nobody()


def combined(headers: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Headers by their names in lower case; those that come again as one list. Nobody takes the first and somebody else
    the last of two, and two credentials are none. Source: RFC 9110, 5.3.
    """
    found: dict[str, str] = {}
    for name, value in headers:
        name = name.lower()
        found[name] = f"{found[name]}, {value}" if name in found else value
    return found


@dataclass(slots=True, eq=False)
class Call:
    """One message as a transport saw it, with what the dialect's address said (`args`: model, version, …).

    `dialect` is who reads it, `listener` what the port is called where it came in, `peer` the other end of the
    connection, `caller` who has asked, None if nobody knows. `auth` is what the port wants of callers, "" what all do,
    `ending` what is to be done when the call is over. `headers` is read case-insensitively
    with lower-case keys (HTTP headers or gRPC metadata). `raw_target` is the
    HTTP request target, still percent-encoded, or the full gRPC method. `deadline` is in seconds of
    `time.monotonic()`. `max_body_bytes` bounds the JSON of a body, also once it is inflated, `max_binary_bytes` a
    body of tensor data as bytes, `max_json_depth` how deep JSON may nest. `notes` is the dialect's own: what its decode
    learned that a later error must repeat, such as the request's id. `accepted`: the question is a model's to answer,
    and an error from here on is an answer, too. `regions` is the memory that callers share; `in_thread`
    tells a decode that it may take its time. `peer` is the other end of its connection;
    `request_id` is what its answer's headers call it, "" where they do not. `call_record` is kept where somebody wants
    to know what becomes of it.
    """

    body: Buffer
    method: str
    raw_target: str
    headers: Mapping[str, str]
    transport: Literal["http", "grpc"]
    args: Mapping[str, str] = NOTHING
    deadline: float | None = None
    max_body_bytes: int = 64 << 20
    max_binary_bytes: int = 1 << 30
    max_json_depth: int | None = None
    notes: dict[str, Any] = field(default_factory=dict)
    accepted: bool = False
    regions: Regions = NO_REGIONS
    in_thread: bool = False
    dialect: str = ""
    listener: tuple[str, ...] = ()
    peer: Peer = NOBODY
    caller: Caller | None = None
    auth: str = ""
    request_id: str = ""
    call_record: Any = None
    ending: tuple[Callable[[], None], ...] = ()

    def end(self) -> None:
        """The call is over."""
        for step in self.ending:
            step()

    def check_inline(self, most: int) -> None:
        """For a decode that takes as long as the body has bytes: on the event loop `most` of them, and none that are
        compressed, whose number nobody knows. Raises MustOffload.
        """
        if not self.in_thread and (len(self.body) > most or "content-encoding" in self.headers):
            raise MustOffload


@dataclass(slots=True, eq=False)
class Reply:
    """One message for a transport to send. `body` may be a list of buffers, sent in order without joining them first.

    `grpc_code` and `message` are what gRPC sends beside it; an OK reply carries a body. `streamed`: more may follow
    on the same call.
    """

    body: Buffer | Sequence[Buffer]
    http_status: int = 200
    headers: Mapping[str, str] = NOTHING
    grpc_code: Code = Code.OK
    message: str = ""
    streamed: bool = False


EMPTY: Final = Reply(b"")

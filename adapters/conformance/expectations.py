"""What a reply must be like: each expectation looks at one side of it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final

from google.protobuf.message import DecodeError

from tensorgate.adapters.conformance.case import Level, ReplyDifference, WireReply
from tensorgate.adapters.conformance.patterns import mismatches, shown, shown_bytes
from tensorgate.adapters.conformance.plain import plain_message
from tensorgate.adapters.protobuf.messages import message


@dataclass(frozen=True, slots=True)
class HasStatus:
    """HTTP's status is one of these."""

    statuses: tuple[int, ...]
    level: Level = Level.REQUIRED

    def differences(self, reply: WireReply) -> Iterable[ReplyDifference]:
        if reply.status not in self.statuses:
            expected = " or ".join(map(str, self.statuses))
            yield ReplyDifference("status", expected, f"{reply.status} {shown_bytes(reply.body)}", self.level)


@dataclass(frozen=True, slots=True)
class HasErrorStatus:
    """HTTP's status is that of some error."""

    level: Level = Level.REQUIRED

    def differences(self, reply: WireReply) -> Iterable[ReplyDifference]:
        if not 400 <= reply.status <= 599:
            yield ReplyDifference("status", "400 to 599", f"{reply.status} {shown_bytes(reply.body)}", self.level)


@dataclass(frozen=True, slots=True)
class HasHeader:
    """A header has this value; None: it must not be there."""

    name: str
    value: str | None
    level: Level = Level.REQUIRED

    def differences(self, reply: WireReply) -> Iterable[ReplyDifference]:
        got = reply.headers.get(self.name.lower())
        if got != self.value:
            yield ReplyDifference(f"header {self.name}", str(self.value or "absent"), str(got or "absent"), self.level)


@dataclass(frozen=True, slots=True)
class HasHeaderStart:
    """A header's value starts so, whatever parameters follow."""

    name: str
    start: str
    level: Level = Level.REQUIRED

    def differences(self, reply: WireReply) -> Iterable[ReplyDifference]:
        got = reply.headers.get(self.name.lower(), "")
        if not got.lower().startswith(self.start):
            yield ReplyDifference(f"header {self.name}", f"{self.start}…", got or "absent", self.level)


@dataclass(frozen=True, slots=True)
class HasJson:
    """The body is JSON that fits a pattern."""

    pattern: Any
    level: Level = Level.REQUIRED

    def differences(self, reply: WireReply) -> Iterable[ReplyDifference]:
        yield from json_differences(self.pattern, reply.body, self.level)


@dataclass(frozen=True, slots=True)
class HasEvents:
    """The body is server-sent events, each `data: ` and JSON that fits its pattern, and nothing else."""

    patterns: tuple[Any, ...]
    level: Level = Level.REQUIRED

    def differences(self, reply: WireReply) -> Iterable[ReplyDifference]:
        events = reply.body.split(b"\n\n")
        if events.pop() or len(events) != len(self.patterns) or any(not each.startswith(b"data: ") for each in events):
            yield ReplyDifference("events", f"{len(self.patterns)} events", shown_bytes(reply.body), self.level)
            return
        for pattern, event in zip(self.patterns, events, strict=True):
            yield from json_differences(pattern, event.removeprefix(b"data: "), self.level)


@dataclass(frozen=True, slots=True)
class HasJsonAndTail:
    """The body is JSON, as long as a header says, that fits a pattern, and then exactly these bytes."""

    length_header: str
    pattern: Any
    tail: bytes
    level: Level = Level.REQUIRED

    def differences(self, reply: WireReply) -> Iterable[ReplyDifference]:
        text = reply.headers.get(self.length_header.lower(), "")
        if not (text.isdecimal() and int(text) <= len(reply.body)):
            yield ReplyDifference(
                f"header {self.length_header}", "the length of the JSON", text or "absent", self.level
            )
            return
        length = int(text)
        yield from json_differences(self.pattern, reply.body[:length], self.level)
        if reply.body[length:] != self.tail:
            yield ReplyDifference("binary data", shown_bytes(self.tail), shown_bytes(reply.body[length:]), self.level)


@dataclass(frozen=True, slots=True)
class HasCode:
    """gRPC's status is one of these."""

    codes: tuple[int, ...]
    level: Level = Level.REQUIRED

    def differences(self, reply: WireReply) -> Iterable[ReplyDifference]:
        if reply.code not in self.codes:
            expected = " or ".join(CODE_NAMES[code] for code in self.codes)
            got = f"{CODE_NAMES[reply.code]} {reply.text}".rstrip()
            yield ReplyDifference("gRPC status", expected, got, self.level)


@dataclass(frozen=True, slots=True)
class HasText:
    """gRPC's status message contains this, or is just something where it is empty."""

    contains: str = ""
    level: Level = Level.REQUIRED

    def differences(self, reply: WireReply) -> Iterable[ReplyDifference]:
        if not reply.text or self.contains not in reply.text:
            yield ReplyDifference("gRPC message", self.contains or "some text", reply.text or "nothing", self.level)


@dataclass(frozen=True, slots=True)
class HasMessages:
    """The messages are of this type, as many as there are patterns, and fit them in order."""

    type_name: str
    patterns: tuple[Any, ...]
    level: Level = Level.REQUIRED
    transform: Callable[[Any], Any] = plain_message
    """What the patterns are of, made of a decoded message."""

    def differences(self, reply: WireReply) -> Iterable[ReplyDifference]:
        if len(reply.messages) != len(self.patterns):
            yield ReplyDifference("messages", str(len(self.patterns)), str(len(reply.messages)), self.level)
            return
        for index, (pattern, data) in enumerate(zip(self.patterns, reply.messages, strict=True)):
            try:
                value = self.transform(message(self.type_name).FromString(data))
            except DecodeError:
                yield ReplyDifference("message", self.type_name, shown_bytes(data), self.level)
                continue
            prefix = f"message {index} " if len(self.patterns) > 1 else ""
            for where, expected, got in mismatches(pattern, value):
                yield ReplyDifference(f"{prefix}{where}", expected, got, self.level)


def json_differences(pattern: Any, data: bytes, level: Level) -> Iterable[ReplyDifference]:
    """What differs between JSON and a pattern; bytes that are no JSON are one difference."""
    try:
        value = json.loads(data)
    except ValueError:
        yield ReplyDifference("body", f"JSON like {shown(pattern)}", shown_bytes(data), level)
        return
    for where, expected, got in mismatches(pattern, value):
        yield ReplyDifference(where, expected, got, level)


CODE_NAMES: Final = (
    "OK",
    "CANCELLED",
    "UNKNOWN",
    "INVALID_ARGUMENT",
    "DEADLINE_EXCEEDED",
    "NOT_FOUND",
    "ALREADY_EXISTS",
    "PERMISSION_DENIED",
    "RESOURCE_EXHAUSTED",
    "FAILED_PRECONDITION",
    "ABORTED",
    "OUT_OF_RANGE",
    "UNIMPLEMENTED",
    "INTERNAL",
    "UNAVAILABLE",
    "DATA_LOSS",
    "UNAUTHENTICATED",
)
"""gRPC's codes by number."""

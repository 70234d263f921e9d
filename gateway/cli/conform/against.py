"""Two servers asked the same, or a server asked what another has answered before: only what differs is told."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from google.protobuf.message import DecodeError

from tensorgate.adapters.conformance.case import (
    ConformanceCase,
    ConformanceSuite,
    FoundServer,
    Level,
    ReplyDifference,
    WireReply,
    WireRequest,
)
from tensorgate.adapters.conformance.expectations import CODE_NAMES
from tensorgate.adapters.conformance.patterns import mismatches, shown, shown_bytes
from tensorgate.adapters.conformance.plain import plain_message
from tensorgate.adapters.protobuf.messages import message, pool
from tensorgate.gateway.cli.client import ClientError
from tensorgate.gateway.cli.conform.asking import WireClient
from tensorgate.gateway.cli.conform.judging import JudgedCase, JudgedServer, Verdict, find_server, judge_case
from tensorgate.gateway.recording.record import RecordedCall, RecordedReply, body_of, read_files

LENGTH_HEADER: Final = "inference-header-content-length"
_NOT_SENT: Final = frozenset(
    {"host", "content-length", "connection", "transfer-encoding", "te", "expect", "keep-alive"}
)


@dataclass(frozen=True, slots=True)
class IsSameReply:
    """The reply says what another one said: JSON and messages as values, everything else byte for byte."""

    request: WireRequest
    other: WireReply

    def differences(self, reply: WireReply) -> Iterable[ReplyDifference]:
        was = self.other
        if was.failure:
            yield ReplyDifference("reply", f"no answer: {was.failure}", "an answer")
            return
        if was.status != reply.status:
            yield ReplyDifference("status", str(was.status), f"{reply.status} {shown_bytes(reply.body)}")
            return
        if was.code != reply.code:
            yield ReplyDifference("gRPC status", CODE_NAMES[was.code], f"{CODE_NAMES[reply.code]} {reply.text}")
            return
        if was.text != reply.text:
            yield ReplyDifference("gRPC message", was.text, reply.text, Level.RECOMMENDED)
        types = [each.headers.get("content-type", "absent") for each in (was, reply)]
        if self.request.transport == "http" and types[0] != types[1]:
            yield ReplyDifference("header content-type", types[0], types[1], Level.RECOMMENDED)
        level = Level.RECOMMENDED if reply.status >= 400 else Level.REQUIRED
        if len(was.messages) != len(reply.messages):
            yield ReplyDifference("messages", str(len(was.messages)), str(len(reply.messages)))
            return
        for one, other in zip(was.messages, reply.messages, strict=True):
            yield from self._parts(_parts(self.request, was, one), _parts(self.request, reply, other), level)

    def _parts(self, was: tuple[Any, bytes], now: tuple[Any, bytes], level: Level) -> Iterator[ReplyDifference]:
        if (was[0] is None) is not (now[0] is None):
            expected, got = (shown_bytes(data) if value is None else shown(value) for value, data in (was, now))
            yield ReplyDifference("body", expected, got, level)
            return
        found = {where: (expected, got) for where, expected, got in mismatches(was[0], now[0])}
        for where, got, expected in mismatches(now[0], was[0]):
            found.setdefault(where, (expected, got))
        for where, (expected, got) in found.items():
            yield ReplyDifference(where, expected, got, level)
        if was[1] != now[1]:
            yield ReplyDifference("bytes", shown_bytes(was[1]), shown_bytes(now[1]), level)


def _parts(request: WireRequest, reply: WireReply, data: bytes) -> tuple[Any, bytes]:
    """(what is compared as a value, what is compared byte for byte) of a body or message."""
    try:
        if request.transport == "grpc":
            service, _, method = request.target.strip("/").rpartition("/")
            kind = pool().FindServiceByName(service).methods_by_name[method].output_type.full_name
            return plain_message(message(kind).FromString(data)), b""
        length = reply.headers.get(LENGTH_HEADER, "")
        cut = int(length) if length.isdecimal() else len(data)
        return json.loads(data[:cut]), data[cut:]
    except (ValueError, KeyError, DecodeError):
        return None, data


def judge_against(
    suite: ConformanceSuite,
    asked: Mapping[str, WireClient],
    others: Mapping[str, WireClient],
    addresses: Mapping[str, str],
    cases: Sequence[ConformanceCase] | None,
    models: Sequence[str],
) -> JudgedServer:
    """Ask two servers all that the suite has for the other one, or `cases`. Raises ClientError."""
    begun, now = time.monotonic(), time.time()
    server = find_server(suite, others, models) if cases is None else FoundServer("")
    judged = []
    for case in suite.cases(server, tuple(asked)) if cases is None else cases:
        if case.transport not in asked or case.transport not in others:
            continue
        if not any(suite.is_volatile(request) for request, _ in case.steps):
            judged.append(_judge_against(case, asked[case.transport], others[case.transport]))
    return JudgedServer(suite, server, addresses, judged, time.monotonic() - begun, now)


def _judge_against(case: ConformanceCase, client: WireClient, other: WireClient) -> JudgedCase:
    """Ask both, step by step, up to the first step at which they differ."""
    done = JudgedCase(case, Verdict.PASSED)
    for request, _ in case.steps:
        expected = IsSameReply(request, other.ask(request))
        step = ConformanceCase(case.name, case.clause, ((request, (expected,)),), Level.REQUIRED)
        done = judge_case(step, client)
        if done.verdict is not Verdict.PASSED:
            break
    return done


def recorded_cases(files: Sequence[Path], transports: Iterable[str]) -> list[ConformanceCase]:
    """A case for each recorded call whose body was kept, each question once: the answer is to be what it was.

    Raises ClientError.
    """
    cases: dict[WireRequest, ConformanceCase] = {}
    try:
        for call in read_files(files):
            request = _request(call)
            if request is None or call.transport not in transports or call.ended == "CANCELLED":
                continue
            reply = _reply(call)
            if reply is not None and request not in cases:
                name = f"{call.method} {call.target}" if call.transport == "http" else call.target
                step = request, (IsSameReply(request, reply),)
                cases[request] = ConformanceCase(name, "recorded", (step,))
    except (OSError, ValueError) as error:
        raise ClientError(str(error)) from None
    if not cases:
        raise ClientError("there is no recorded call to ask over these transports")
    return list(cases.values())


def judge_recorded(
    suite: ConformanceSuite,
    asked: Mapping[str, WireClient],
    addresses: Mapping[str, str],
    cases: Sequence[ConformanceCase],
) -> JudgedServer:
    """Ask what was recorded: what differs from the answers of then."""
    begun, now = time.monotonic(), time.time()
    steady = [case for case in cases if not suite.is_volatile(case.steps[0][0])]
    judged = [judge_case(case, asked[case.transport]) for case in steady]
    return JudgedServer(suite, FoundServer(""), addresses, judged, time.monotonic() - begun, now)


def _request(call: RecordedCall) -> WireRequest | None:
    body = body_of(call)
    if body is None:
        return None
    transport: Literal["http", "grpc"] = "http" if call.transport == "http" else "grpc"
    if transport == "grpc":
        is_bidi = call.stream == "bidi"
        streams = is_bidi or call.stream == "server"
        return WireRequest("grpc", call.target, (body,), client_streams=is_bidi, server_streams=streams)
    headers = tuple(sorted((name, value) for name, value in call.headers.items() if name not in _NOT_SENT))
    return WireRequest("http", call.target, (body,) if body else (), call.method, headers)


def _reply(call: RecordedCall) -> WireReply | None:
    bodies = [body_of(each) for each in call.replies]
    kept = tuple(body for body in bodies if body is not None)
    if len(kept) < len(bodies) or not call.replies:
        return None
    last: RecordedReply = call.replies[-1]
    if call.transport == "http":
        return WireReply((b"".join(kept),), call.replies[0].status, headers=call.replies[0].headers)
    return WireReply(kept[:-1] if last.code else kept, code=last.code, text=last.message)

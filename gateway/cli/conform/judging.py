"""Cases asked one by one, and a verdict on each."""

from __future__ import annotations

import enum
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from tensorgate.adapters.conformance.case import (
    ConformanceCase,
    ConformanceSuite,
    FoundServer,
    Level,
    ReplyDifference,
    WireReply,
    WireRequest,
)
from tensorgate.gateway.cli.client import ClientError
from tensorgate.gateway.cli.conform.asking import WireClient


class Verdict(enum.StrEnum):
    """What came of a case."""

    PASSED = "passed"
    DIFFERS = "differs"
    NOT_OFFERED = "not offered"


@dataclass(frozen=True, slots=True)
class JudgedCase:
    """A case and its verdict; where it differs, the exchange that did and what differs."""

    case: ConformanceCase
    verdict: Verdict
    differences: tuple[ReplyDifference, ...] = ()
    request: WireRequest | None = None
    reply: WireReply | None = None
    seconds: float = 0.0

    @property
    def level(self) -> Level:
        """How much it weighs: as the case does, unless nothing differs but what clients cope with."""
        only_recommended = bool(self.differences) and all(each.level <= Level.RECOMMENDED for each in self.differences)
        return Level.RECOMMENDED if only_recommended else self.case.level


@dataclass(frozen=True, slots=True)
class JudgedServer:
    """All of a report."""

    suite: ConformanceSuite
    server: FoundServer
    addresses: Mapping[str, str]
    cases: Sequence[JudgedCase]
    seconds: float
    time: float

    def of(self, verdict: Verdict) -> list[JudgedCase]:
        return [each for each in self.cases if each.verdict is verdict]

    @property
    def fails(self) -> bool:
        """Whether anything differs that clients rely on: what is required, or of an extension that is offered."""
        return any(each.level is not Level.RECOMMENDED for each in self.of(Verdict.DIFFERS))


def find_server(suite: ConformanceSuite, asked: Mapping[str, WireClient], models: Sequence[str]) -> FoundServer:
    """Let the suite look around. Raises ClientError where the server does not answer at all."""
    finding = suite.find(tuple(asked), models)
    try:
        request = next(finding)
        while True:
            reply = asked[request.transport].ask(request)
            if reply.failure:
                raise ClientError(f"{request.transport} {request.target}: {reply.failure}")
            request = finding.send(reply)
    except StopIteration as done:
        server: FoundServer = done.value
        return server


def judge(
    suite: ConformanceSuite,
    asked: Mapping[str, WireClient],
    addresses: Mapping[str, str],
    models: Sequence[str],
    on_case: Callable[[JudgedCase], None] = lambda case: None,
) -> JudgedServer:
    """Ask all that the suite has for this server. Raises ClientError."""
    begun, now = time.monotonic(), time.time()
    server = find_server(suite, asked, models)
    judged = []
    for case in suite.cases(server, tuple(asked)):
        judged.append(judge_case(case, asked[case.transport]))
        on_case(judged[-1])
    return JudgedServer(
        suite, server, addresses, list(_settled(judged, server.extensions)), time.monotonic() - begun, now
    )


def judge_case(case: ConformanceCase, client: WireClient) -> JudgedCase:
    """Ask its steps up to the first that differs."""
    begun = time.monotonic()
    for request, expectations in case.steps:
        reply = client.ask(request)
        if reply.failure:
            found = [ReplyDifference("reply", "an answer", reply.failure)]
        else:
            found = _distinct([each for expected in expectations for each in expected.differences(reply)])
        if found:
            lacks = bool(case.extension) and reply.is_not_offered and not reply.failure
            verdict = Verdict.NOT_OFFERED if lacks else Verdict.DIFFERS
            return JudgedCase(case, verdict, tuple(found), request, reply, time.monotonic() - begun)
    return JudgedCase(case, Verdict.PASSED, seconds=time.monotonic() - begun)


def _distinct(found: Sequence[ReplyDifference]) -> list[ReplyDifference]:
    """Without those of a side that an earlier, weightier one tells of already."""
    kept: dict[str, ReplyDifference] = {}
    for each in sorted(found, key=lambda each: -each.level):
        kept.setdefault(each.what, each)
    return list(kept.values())


def _settled(judged: Sequence[JudgedCase], extensions: frozenset[str] | None) -> Iterator[JudgedCase]:
    """An extension of which something passed is offered: what is refused as if it were not there differs. One of which
    nothing passed is not offered, if it is not among those that the server says it has.
    """
    passed: defaultdict[tuple[str, str], int] = defaultdict(int)
    for each in judged:
        passed[each.case.extension, each.case.transport] += each.verdict is Verdict.PASSED
    for each in judged:
        extension, verdict = each.case.extension, each.verdict
        has_some = passed[extension, each.case.transport] > 0
        unsaid = bool(extension) and extensions is not None and extension not in extensions
        if verdict is Verdict.NOT_OFFERED and has_some:
            verdict = Verdict.DIFFERS
        elif verdict is Verdict.DIFFERS and unsaid and not has_some:
            verdict = Verdict.NOT_OFFERED
        yield each if verdict is each.verdict else replace(each, verdict=verdict)

"""A report for people, for programs, and for what reads JUnit's."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, Final
from xml.etree import ElementTree

from tensorgate.adapters.conformance.case import Level, WireReply, WireRequest
from tensorgate.adapters.conformance.expectations import CODE_NAMES
from tensorgate.adapters.conformance.patterns import shown_bytes
from tensorgate.gateway.cli.conform.judging import JudgedCase, JudgedServer, Verdict

LEVELS: Final = {Level.REQUIRED: "required", Level.RECOMMENDED: "recommended", Level.EXTENSION: "extension"}


def lines(report: JudgedServer, show: int) -> Iterator[str]:
    """For the terminal: what differs, at most `show` cases of it, what is not offered, and the sums."""
    yield f"{report.suite.title}: {report.server.name or 'a server without a name'}"
    yield from (f"  {transport} {address}" for transport, address in report.addresses.items())
    differing = sorted(report.of(Verdict.DIFFERS), key=lambda each: -each.level)
    for level, name in LEVELS.items():
        group = [each for each in differing if each.level is level]
        if group:
            yield f"\n{len(group)} differ, {name}:"
        for each in group[:show]:
            yield from _case_lines(each)
        if len(group) > show:
            yield f"  … and {len(group) - show} more (--json and --html have all)"
    lacking = Counter(f"{each.case.extension} ({each.case.transport})" for each in report.of(Verdict.NOT_OFFERED))
    if lacking:
        yield "\nnot offered: " + ", ".join(f"{name} {count}" for name, count in sorted(lacking.items()))
    yield from (f"note: {note}" for note in report.server.notes)
    yield "\n" + totals(report)


def totals(report: JudgedServer) -> str:
    """One line."""
    counts = Counter(each.verdict for each in report.cases)
    told = ", ".join(f"{counts[verdict]} {verdict}" for verdict in Verdict)
    return f"{len(report.cases)} cases in {report.seconds:.1f} s: {told}"


def _case_lines(judged: JudgedCase) -> Iterator[str]:
    yield f"  {judged.case.transport} {judged.case.name}  [{judged.case.clause}]"
    if judged.request is not None:
        yield f"      asked    {shown_request(judged.request)}"
    for each in judged.differences:
        yield f"      {each.what}: expected {each.expected}"
        yield f"      {' ' * len(each.what)}  got      {each.got}"


def shown_request(request: WireRequest) -> str:
    """As people read it, in one line."""
    headers = "".join(f" {name}: {value};" for name, value in request.headers)
    body = " + ".join(shown_bytes(each) for each in request.messages)
    start = f"{request.method} {request.target}" if request.transport == "http" else request.target
    return f"{start}{headers} {body}".rstrip().replace("\n", "\\n")


def shown_reply(reply: WireReply) -> str:
    """As people read it."""
    if reply.failure:
        return f"no answer: {reply.failure}"
    status = str(reply.status) if reply.status else f"{CODE_NAMES[reply.code]} {reply.text}"
    headers = "".join(f"\n{name}: {value}" for name, value in reply.headers.items())
    return f"{status}{headers}\n" + "\n".join(shown_bytes(each) for each in reply.messages)


def plain(report: JudgedServer) -> Mapping[str, Any]:
    """As data."""
    return {
        "protocol": report.suite.name,
        "server": report.server.name,
        "addresses": dict(report.addresses),
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(report.time)),
        "seconds": round(report.seconds, 3),
        "totals": {str(verdict): len(report.of(verdict)) for verdict in Verdict},
        "notes": list(report.server.notes),
        "cases": [plain_case(each) for each in report.cases],
    }


def plain_case(judged: JudgedCase) -> Mapping[str, Any]:
    """As data; what was asked and answered only where it differs."""
    found: dict[str, Any] = {
        "name": judged.case.name,
        "clause": judged.case.clause,
        "transport": judged.case.transport,
        "level": LEVELS[judged.level],
        "extension": judged.case.extension,
        "outcome": str(judged.verdict),
    }
    if judged.request is not None and judged.reply is not None:
        found |= {"asked": shown_request(judged.request), "answered": shown_reply(judged.reply)}
        found["differences"] = [
            {"what": each.what, "expected": each.expected, "got": each.got, "level": LEVELS[each.level]}
            for each in judged.differences
        ]
    return found


def junit(report: JudgedServer) -> bytes:
    """JUnit's XML: required differences are failures, everything else that is not passed is skipped."""
    suite = ElementTree.Element(
        "testsuite",
        name=f"{report.suite.title}: {report.server.name}",
        tests=str(len(report.cases)),
        failures=str(sum(each.level is not Level.RECOMMENDED for each in report.of(Verdict.DIFFERS))),
        skipped=str(
            sum(each.level is Level.RECOMMENDED for each in report.of(Verdict.DIFFERS))
            + len(report.of(Verdict.NOT_OFFERED))
        ),
        time=f"{report.seconds:.3f}",
    )
    for judged in report.cases:
        case = ElementTree.SubElement(
            suite,
            "testcase",
            classname=f"{report.suite.name}.{judged.case.transport}.{judged.case.clause}",
            name=judged.case.name,
            time=f"{judged.seconds:.3f}",
        )
        if judged.verdict is Verdict.PASSED:
            continue
        is_failure = judged.verdict is Verdict.DIFFERS and judged.level is not Level.RECOMMENDED
        why = str(judged.verdict) if judged.verdict is Verdict.NOT_OFFERED else f"differs, {LEVELS[judged.level]}"
        told = ElementTree.SubElement(case, "failure" if is_failure else "skipped", message=why)
        text = "\n".join(f"{each.what}: expected {each.expected}, got {each.got}" for each in judged.differences)
        told.text = "".join(character for character in text if character.isprintable() or character in "\n\t")
    xml: bytes = ElementTree.tostring(suite, encoding="utf-8", xml_declaration=True)
    return xml + b"\n"

"""`tensorgate replay`: recorded calls, sent again to a server in their own time, and what differs."""

from __future__ import annotations

import asyncio
import json
import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

from tensorgate.backends.remote.connection import ConnectionLost, NotReached, UpstreamConnection
from tensorgate.backends.remote.forwarding import ChunkCutter
from tensorgate.backends.remote.grpc_connection import GrpcConnection
from tensorgate.backends.remote.http_connection import HttpConnection
from tensorgate.gateway.cli.answer_diff import Leniency, ReadTensors, differences
from tensorgate.gateway.cli.client import ClientError
from tensorgate.gateway.contract.call import Reply
from tensorgate.gateway.contract.canonical import InferResponse
from tensorgate.gateway.contract.dialect import DialectKind
from tensorgate.gateway.contract.errors import Code, GatewayError
from tensorgate.gateway.contract.tensor import NOTHING
from tensorgate.gateway.contract.upstream import Ask, Description, UpstreamModel
from tensorgate.gateway.recording.record import RecordedCall, RecordedReply, body_of, read_files

MAX_BYTES: Final = 1 << 30
_PATIENCE_S: Final = 60.0
_PROGRESS_S: Final = 1.0
_NOT_SENT: Final = frozenset(
    {"host", "content-length", "connection", "transfer-encoding", "te", "expect", "keep-alive"}
)
_OF_GRPC: Final = _NOT_SENT | {"content-type", "user-agent"}
_PERCENTILES: Final = (50, 90, 99)

PrintLine = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class ReplayOptions:
    """How to replay: `speed` 0 is as fast as `connections` calls at a time can be; with `diff` answers are compared."""

    http: str | None
    grpc: str | None
    speed: float = 1.0
    connections: int = 64
    repeat: int = 1
    diff: bool = False
    leniency: Leniency = Leniency()  # noqa: RUF009  it is frozen
    """What counts as no difference."""
    dialects: Mapping[str, DialectKind] = NOTHING
    """Their clients read the tensors of answers."""
    models: frozenset[str] = frozenset()
    headers: tuple[tuple[str, str], ...] = ()
    show: int = 20
    """How many calls that differ are shown."""


@dataclass(slots=True)
class Outcome:
    """What came of all calls."""

    sent: int = 0
    skipped: Counter[str] = field(default_factory=Counter)
    results: Counter[str] = field(default_factory=Counter)
    seconds: list[float] = field(default_factory=list)
    late_s: float = 0.0
    """How much later than it should have been the latest call was sent."""
    differing: list[tuple[RecordedCall, list[str]]] = field(default_factory=list)
    took_s: float = 0.0

    def percentile(self, percent: int) -> float:
        """In seconds; 0 where nothing was answered."""
        ordered = sorted(self.seconds)
        return ordered[min(len(ordered) - 1, len(ordered) * percent // 100)] if ordered else 0.0


def replay(files: Sequence[Path], wanted: ReplayOptions, report: Path | None, print_line: PrintLine) -> int:
    """Send all calls -> exit status: 0, or 1 where something differs or nothing was answered. Raises ClientError."""
    try:
        calls = sorted(
            [each for each in read_files(files) if not wanted.models or each.model in wanted.models],
            key=lambda call: call.time,
        )
    except (OSError, ValueError) as error:
        raise ClientError(str(error)) from None
    if not calls:
        raise ClientError("there is no recorded call to send (of these models)")
    outcome = asyncio.run(_play(calls, wanted, print_line))
    for line in summary(outcome, wanted):
        print_line(line)
    if report is not None:
        try:
            report.write_text(json.dumps(plain(outcome), indent=2) + "\n")
        except OSError as error:
            raise ClientError(str(error)) from None
    unanswered = outcome.sent == outcome.results["no answer"]
    return 1 if outcome.differing or unanswered else 0


async def _play(calls: Sequence[RecordedCall], wanted: ReplayOptions, print_line: PrintLine) -> Outcome:
    ways: dict[str, UpstreamConnection] = {}
    if wanted.http is not None:
        ways["http"] = HttpConnection(wanted.http.rstrip("/"), MAX_BYTES)
    if wanted.grpc is not None:
        ways["grpc"] = GrpcConnection(wanted.grpc, MAX_BYTES)
    outcome, room = Outcome(), asyncio.Semaphore(wanted.connections if not wanted.speed else 100_000)
    first, last = calls[0].time, calls[-1].time
    begun = told = time.monotonic()
    running: set[asyncio.Task[None]] = set()
    try:
        for turn in range(wanted.repeat):
            for call in calls:
                way = ways.get(call.transport)
                if (why := _why_not(call, way)) or way is None:
                    outcome.skipped[why] += 1
                    continue
                if wanted.speed:
                    due = begun + (turn * (last - first) + call.time - first) / wanted.speed
                    await asyncio.sleep(max(0.0, due - time.monotonic()))
                    outcome.late_s = max(outcome.late_s, time.monotonic() - due)
                await room.acquire()
                task = asyncio.ensure_future(_send(way, call, wanted, outcome, room))
                running.add(task)
                task.add_done_callback(running.discard)
                if time.monotonic() - told >= _PROGRESS_S:
                    told = time.monotonic()
                    print_line(f"{outcome.sent} of {len(calls) * wanted.repeat} sent, {len(outcome.differing)} differ")
        await asyncio.gather(*running)
        outcome.took_s = time.monotonic() - begun
    finally:
        for way in ways.values():
            await way.close()
    return outcome


def _why_not(call: RecordedCall, way: UpstreamConnection | None) -> str:
    if way is None:
        return f"no address for {call.transport} (see {'--to' if call.transport == 'http' else '--grpc'})"
    return "its body was too long to be recorded" if body_of(call) is None else ""


async def _send(
    way: UpstreamConnection, call: RecordedCall, wanted: ReplayOptions, outcome: Outcome, room: asyncio.Semaphore
) -> None:
    dropped = _NOT_SENT if call.transport == "http" else _OF_GRPC
    headers = {
        name: value for name, value in call.headers.items() if name not in dropped and not name.startswith("grpc-")
    }
    body = body_of(call) or b""
    is_http = call.transport == "http"
    ask = Ask(
        call.target,
        (body,) if body or not is_http else (),
        call.method,
        headers | dict(wanted.headers),
        ChunkCutter if is_http else None,
    )
    streams = call.stream in ("server", "bidi") and (not is_http or len(call.replies) > 1)
    outcome.sent += 1
    begun = time.monotonic()
    got: list[RecordedReply] = []
    try:
        if streams:
            async with aclosing(way.stream(ask, call.deadline_s or _PATIENCE_S)) as replies:
                got += [_recorded(reply, time.monotonic() - begun) async for reply in replies]
        else:
            got.append(_recorded(await way.call(ask, call.deadline_s or _PATIENCE_S), time.monotonic() - begun))
    except (NotReached, ConnectionLost) as error:
        outcome.results["no answer"] += 1
        if wanted.diff:
            outcome.differing.append((call, [f"no answer: {error}"]))
        return
    finally:
        room.release()
    outcome.seconds.append(time.monotonic() - begun)
    outcome.results[_result(got)] += 1
    if not wanted.diff or call.ended == "CANCELLED":
        return
    read = answer_reader(call, wanted.dialects)
    if found := differences(_joined(call, call.replies), _joined(call, got), wanted.leniency, read):
        outcome.differing.append((call, found))


def answer_reader(call: RecordedCall, dialects: Mapping[str, DialectKind]) -> ReadTensors:
    """What reads the tensors of the answers to a call."""
    kind = dialects.get(call.dialect)
    make = None if kind is None else kind.http_client if call.transport == "http" else kind.grpc_client
    if make is None:
        return lambda reply: None
    client = make(UpstreamModel(call.model))
    return partial(_tensors, client.decode_part if call.stream in ("server", "bidi") else client.decode)


def _tensors(decode: Callable[[Reply, Description], InferResponse], recorded: RecordedReply) -> InferResponse | None:
    """The tensors of an answer: a reply that has none, such as that to a question of metadata, is no such answer."""
    body = body_of(recorded)
    if body is None:
        return None
    said = Reply(body, recorded.status, recorded.headers, Code(recorded.code), recorded.message)
    try:
        answer = decode(said, Description())
    except GatewayError:
        return None
    return answer if answer.outputs else None


def _joined(call: RecordedCall, replies: Sequence[RecordedReply]) -> Sequence[RecordedReply]:
    """A streamed HTTP body as one: where its pieces are cut is chance."""
    if call.transport != "http" or len(replies) <= 1:
        return replies
    bodies = [body_of(each) for each in replies]
    if any(body is None for body in bodies):
        return [RecordedReply(0.0, replies[0].status, headers=replies[0].headers, left_out_bytes=1)]
    data = b"".join([body for body in bodies if body is not None])
    return [RecordedReply(0.0, replies[0].status, replies[0].code, headers=replies[0].headers, data=data)]


def _recorded(reply: Reply, after_s: float) -> RecordedReply:
    body: Any = reply.body
    return RecordedReply(
        after_s,
        reply.http_status,
        int(reply.grpc_code),
        reply.message,
        reply.headers,
        None,
        bytes(body),
    )


def _result(got: Sequence[RecordedReply]) -> str:
    if not got:
        return "OK"
    last = got[-1]
    return f"code {last.code}" if last.code else f"status {last.status}" if last.status >= 400 else "OK"


def summary(outcome: Outcome, wanted: ReplayOptions) -> Iterable[str]:
    """The report, for people."""
    rate = outcome.sent / outcome.took_s if outcome.took_s else math.nan
    yield f"{outcome.sent} calls in {outcome.took_s:.1f} s, {rate:.0f}/s: " + ", ".join(
        f"{count} {name}" for name, count in outcome.results.most_common()
    )
    times = ", ".join(f"p{percent} {outcome.percentile(percent) * 1e3:.2f} ms" for percent in _PERCENTILES)
    yield f"{times}; the latest call left {outcome.late_s * 1e3:.0f} ms late"
    yield from (f"{count} not sent: {why}" for why, count in outcome.skipped.items())
    if not wanted.diff:
        return
    if not outcome.differing:
        yield "nothing differs"
        return
    yield f"{len(outcome.differing)} differ:"
    for call, found in outcome.differing[: wanted.show]:
        yield f"  {call.method} {call.target} at {time.strftime('%H:%M:%S', time.gmtime(call.time))}"
        yield from (f"    {each}" for each in found)
    if len(outcome.differing) > wanted.show:
        yield f"  … and {len(outcome.differing) - wanted.show} more (--json has all)"


def plain(outcome: Outcome) -> Mapping[str, Any]:
    """The report, as data."""
    return {
        "sent": outcome.sent,
        "seconds": outcome.took_s,
        "results": dict(outcome.results),
        "not_sent": dict(outcome.skipped),
        "latency_s": {f"p{percent}": outcome.percentile(percent) for percent in _PERCENTILES},
        "late_s": outcome.late_s,
        "differing": [
            {"time": call.time, "method": call.method, "target": call.target, "model": call.model, "what": found}
            for call, found in outcome.differing
        ],
    }

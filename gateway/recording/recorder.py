"""Takes calls up while they are answered. What outlives a call is its line, made when it is over, and made by then of
bytes that nobody changes: no request, no answer and no memory of theirs waits for a disk.
"""

from __future__ import annotations

import logging
import math
import random
import time
from collections.abc import Mapping, Sequence
from typing import Final

from tensorgate.gateway.config.observing import RecordConfig
from tensorgate.gateway.contract.call import Buffer, Call, Reply
from tensorgate.gateway.contract.errors import Code
from tensorgate.gateway.recording.events import GRPC_BODY, OF_BODIES, EventSink, Exchanged
from tensorgate.gateway.recording.files import RecordFiles
from tensorgate.gateway.recording.lines import Kept, KeptReply, LineMaker
from tensorgate.gateway.telemetry.call_outcome import CallOutcome

log = logging.getLogger(__name__)
_AHEAD_S: Final = 1.0
"""Calls that come together may take the time of so many seconds at once."""
_MOST_S: Final = 1e-3
"""A line that takes longer counts as this: it was the first of its kind, or its process had to wait meanwhile."""
_IN_ALL: Final = 5.0
"""What a recorded call costs in all, by what its line takes: it is kept, written by a thread, and its bytes are in
nobody's cache any more. Measured by `benchmarks.observability`.
"""


class FlightRecorder:
    """Which calls are recorded, and where. On the event loop."""

    def __init__(
        self,
        config: RecordConfig,
        files: RecordFiles | None,
        events: EventSink | None = None,
        redacted: frozenset[str] = frozenset(),
    ) -> None:
        """`redacted` are names of headers that are left out beside those of the configuration."""
        self._files = files
        self._events = events
        self._line = LineMaker(redacted | {name.lower() for name in config.redact})
        self._share = config.share
        self._models = frozenset(config.models)
        self._max_body_bytes = config.max_body_bytes
        self._failed = 0
        self._max_load = config.max_load
        self._resumes_at = -math.inf
        """Calls that come before this have no time left for them, in seconds of time.perf_counter()."""
        self._passed_over = 0
        """Calls that were not recorded because others had taken that time."""

    def counts(self) -> tuple[int, int, int]:
        """Calls that stand in files or were sent, those that were dropped, and those that were passed over."""
        places = [each for each in (self._files, self._events) if each is not None]
        dropped = sum([each.dropped for each in places], self._failed)
        return sum([each.written for each in places]), dropped, self._passed_over

    def close(self) -> None:
        """Write what waits, as far as that works within moments. In a thread."""
        for each in (self._files, self._events):
            if each is not None:
                each.close()

    def begin(self, outcome: CallOutcome) -> None:
        """A call has come, and may be recorded."""
        # S311: it guards nothing.
        if self._share < 1 and random.random() >= self._share:  # noqa: S311
            return
        if outcome.begun < self._resumes_at:
            self._passed_over += 1
            return
        outcome.recorded = CallRecording(outcome.call, self._max_body_bytes)

    def keep(self, outcome: CallOutcome) -> None:
        """A call is over that has a recording: it is kept, if its model is wanted. Raises nothing."""
        begun = time.perf_counter()
        try:
            self._keep(outcome)
        except Exception:
            self._failed += 1
            log.exception("a call cannot be recorded")
        if self._max_load < 1:
            now = time.perf_counter()
            pause = min(now - begun, _MOST_S) * _IN_ALL / self._max_load
            self._resumes_at = max(self._resumes_at, now - _AHEAD_S) + pause

    def _keep(self, outcome: CallOutcome) -> None:
        recording, outcome.recorded = outcome.recorded, None
        view = outcome.forwarded or getattr(outcome.question, "view", None)
        model: str
        version: int | str
        if view is not None:
            model, version = view.name, view.version
        else:
            model, version = "" if outcome.counted is None else outcome.counted.model, 0
        if recording is None or (self._models and model not in self._models):
            return
        if self._files is not None:
            line = self._line(outcome, model, version, recording.body, recording.replies)
            self._files.take(line, len(line))
        if self._events is not None and model and outcome.code is Code.OK:
            exchanged = _exchanged(outcome, model, version, recording.body, recording.replies)
            if exchanged is not None:
                self._events.take(exchanged, len(exchanged.body) + sum([len(body) for _, body in exchanged.answers]))


class CallRecording:
    """What is kept of a call while it is answered."""

    __slots__ = ("_longest", "body", "replies")

    def __init__(self, call: Call, longest: int) -> None:
        """Bodies that are `longest` bytes at most are kept."""
        body = call.body
        self._longest = longest
        self.body: Kept = body if type(body) is bytes and len(body) <= longest else self._kept(body)
        self.replies: list[KeptReply] = []

    def replied(self, reply: Reply) -> None:
        """A reply is about to be sent."""
        body = reply.body
        kept = body if type(body) is bytes and len(body) <= self._longest else self._kept(body)
        self.replies.append((time.perf_counter(), reply, kept))

    def _kept(self, body: Buffer | Sequence[Buffer]) -> Kept:
        parts = (body,) if isinstance(body, (bytes, bytearray, memoryview)) else body
        size = sum(map(len, parts))
        return b"".join(parts) if size <= self._longest else size


def _exchanged(
    outcome: CallOutcome, model: str, version: int | str, body: Kept, replies: list[KeptReply]
) -> Exchanged | None:
    """The bodies of an inference that succeeded; None where one was too long to be kept, or is compressed."""
    call = outcome.call
    answers = [kept for _, _, kept in replies if type(kept) is bytes]
    if type(body) is not bytes or len(answers) < len(replies):
        return None
    sides = [_lowered(call.headers), *[_lowered(reply.headers) for _, reply, _ in replies]]
    if any(side.get("content-encoding", "identity") != "identity" for side in sides):
        return None
    is_http = call.transport == "http"
    own: list[Mapping[str, str]] = [
        {name: side[name] for name in OF_BODIES if name in side} if is_http else GRPC_BODY for side in sides
    ]
    came = time.time() - time.perf_counter() + outcome.begun
    sent = list(zip(own[1:], answers, strict=True))
    return Exchanged(call.request_id, model, version, came, came + outcome.seconds, call.raw_target, own[0], body, sent)


def _lowered(headers: Mapping[str, str]) -> dict[str, str]:
    return {name.lower(): value for name, value in headers.items()}

"""The last errors, for operators: of each kind the newest text, when it came, and how many there were since when."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NamedTuple

from tensorgate.gateway.contract.errors import Code, ErrorReason
from tensorgate.gateway.telemetry.call_outcome import CallOutcome

MAX_KINDS: Final = 256
"""The kinds that are kept: those whose last error is the newest."""
MAX_TEXT_CHARS: Final = 512


class ErrorKey(NamedTuple):
    """What errors of one kind have in common. `model` is a public name, "" where there is none, as is `version`."""

    dialect: str
    transport: str
    model: str
    version: str
    method: str
    code: Code
    reason: ErrorReason


@dataclass(slots=True)
class RecentError:
    """Errors of one kind. Times are seconds since 1970."""

    key: ErrorKey
    text: str
    """What the last one said: no more than callers may know, for whoever sees the page may be one."""
    since: float
    last: float
    count: int


class RecentErrors:
    """Errors by kind, the newest last. In any thread; `clock` tells seconds since 1970."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self.now = clock
        self._kinds: dict[ErrorKey, RecentError] = {}
        self._lock = threading.Lock()

    def note(self, outcome: CallOutcome) -> None:
        """A call has failed."""
        call, (model, version) = outcome.call, outcome.named
        method, reason = outcome.endpoint.method, outcome.failure.reason
        key = ErrorKey(call.dialect, call.transport, model, str(version), method, outcome.code, reason)
        now = self.now()
        self.add(RecentError(key, outcome.error_text[:MAX_TEXT_CHARS], now, now, 1))

    def add(self, more: RecentError) -> None:
        """Errors of one kind that were noted here, or in another process."""
        with self._lock:
            known = self._kinds.pop(more.key, None)
            if known is not None:
                text = more.text if more.last >= known.last else known.text
                since, last = min(known.since, more.since), max(known.last, more.last)
                more = RecentError(more.key, text, since, last, known.count + more.count)
            self._kinds[more.key] = more
            if len(self._kinds) > MAX_KINDS:
                del self._kinds[min(self._kinds.values(), key=lambda each: each.last).key]

    def read(self) -> list[RecentError]:
        """All that is known, the newest first."""
        with self._lock:
            return sorted(self._kinds.values(), key=lambda each: each.last, reverse=True)

    def take(self) -> list[RecentError]:
        """All that was noted since the last time, which is forgotten here."""
        with self._lock:
            taken, self._kinds = [*self._kinds.values()], {}
            return taken

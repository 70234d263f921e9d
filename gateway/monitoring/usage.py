"""What each caller has used of each model: calls, rows, bytes, seconds of computing."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from typing import Any, Final, TypeAlias

from tensorgate.gateway.contract.errors import Code
from tensorgate.gateway.monitoring.families import Family, counter
from tensorgate.gateway.telemetry.call_outcome import CallOutcome

MAX_KEYS: Final = 4096
"""Callers by models; who comes later counts as OTHERS."""
OTHERS: Final = "(others)"

Used: TypeAlias = tuple[str, str, int, int, int, int, float, int]
"""(caller, model, calls, rows, bytes in, bytes out, seconds of computing, calls that failed)"""


class Usage:
    """Sums since the start. `count` is for the event loop, all else for any thread."""

    def __init__(self) -> None:
        self._sums: dict[tuple[str, str], list[float]] = {}
        self._lock = threading.Lock()

    def count(self, outcome: CallOutcome) -> None:
        """Count a call that is over and has named a model; it still has its record. Nobody known is the caller "".

        Of a batch, a request counts as much of the time as it had of the rows.
        """
        call, record = outcome.call, outcome.call_record
        if record is None:
            return
        view = record.view or getattr(outcome.question, "view", None)
        model = outcome.named[0] if view is None else view.name
        if model:
            seconds = record.compute_s * record.rows / record.batch_rows if record.batch_rows else 0.0
            caller = "" if call.caller is None else call.caller.name
            failed = outcome.code is not Code.OK and outcome.code is not Code.CANCELLED
            self.add((caller, model, 1, record.rows, len(call.body), record.sent, seconds, int(failed)))

    def add(self, used: Used) -> None:
        """Add what one caller has used of one model, here or in another process."""
        caller, model, *numbers = used
        with self._lock:
            sums = self._sums.get((caller, model))
            if sums is None:
                if len(self._sums) >= MAX_KEYS:
                    caller = OTHERS
                sums = self._sums.setdefault((caller, model), [0] * len(numbers))
            for at, number in enumerate(numbers):
                sums[at] += number

    def read(self) -> list[Used]:
        """All of it, by caller and model."""
        with self._lock:
            return sorted(_used(key, sums) for key, sums in self._sums.items())

    def callers(self) -> list[dict[str, Any]]:
        """The sums of each caller over all models, most calls first; "" is who did not say who they are."""
        sums: dict[str, dict[str, Any]] = {}
        for caller, _, calls, rows, _, _, seconds, failed in self.read():
            each = sums.setdefault(caller, {"caller": caller, "calls": 0, "failed": 0, "rows": 0, "compute_s": 0.0})
            each["calls"] += calls
            each["failed"] += failed
            each["rows"] += rows
            each["compute_s"] += seconds
        return sorted(sums.values(), key=lambda each: -each["calls"])

    def take(self) -> list[Used]:
        """All that was counted since the last time, which is forgotten here."""
        with self._lock:
            taken, self._sums = self._sums, {}
        return [_used(key, sums) for key, sums in taken.items()]

    def collect(self) -> Iterator[Family]:
        """Prometheus' families of it; none as long as there is nothing."""
        used = self.read()
        if not used:
            return
        for at, (name, text) in enumerate(_FAMILIES, 2):
            samples: list[tuple[Sequence[str], float]] = [((each[0], each[1]), float(each[at])) for each in used]
            yield counter(f"tensorgate_usage_{name}", text, "caller model", samples)


def _used(key: tuple[str, str], sums: Sequence[float]) -> Used:
    calls, rows, received, sent, seconds, failed = sums
    return (*key, int(calls), int(rows), int(received), int(sent), seconds, int(failed))


_FAMILIES: Final = (
    ("calls", "Calls of a caller that named the model, also those that failed."),
    ("rows", "Rows that the model computed for the caller."),
    ("received_bytes", "Bytes of the calls' messages."),
    ("sent_bytes", "Bytes of the replies."),
    ("compute_seconds", "Time in the model, of a shared batch by the caller's share of its rows."),
    ("failed_calls", "Those of the calls that failed, and were not given up by the caller."),
)

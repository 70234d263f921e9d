"""Lines of the access log, from what calls leave behind.

While a call ends, what its line says is noted only. Lines are made many at a time: one after the other takes a third of
the time that it takes in between other work.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from json.encoder import encode_basestring_ascii as quoted
from typing import Any, Final, TypeAlias

from tensorgate.gateway.telemetry.call_outcome import CallOutcome
from tensorgate.gateway.telemetry.call_record import CallRecord
from tensorgate.gateway.telemetry.request_id import new as new_id

Names: TypeAlias = Mapping[tuple[Any, ...], str]
OnWaiting: TypeAlias = Callable[[int], None]
QUICK_S: Final = 10e-3
"""Below this, a time's text is looked up."""


def moment(second: int) -> str:
    """A second since the epoch: 2026-01-31T23:59:59, UTC. Source: RFC 3339."""
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(second))


class Lines:
    """Lines that wait to be written. They are made when they are taken.

    `on_waiting` is called with how many lines wait: at the first, and at each when they are `many`. `names` is
    described at `end`.
    """

    def __init__(self, names: Names, on_waiting: OnWaiting, many: int) -> None:
        self._names = names
        self._on_waiting = on_waiting
        self._many = many
        self._facts: list[tuple[Any, ...]] = []
        self._second = 0
        self._time = moment(0)

    def add(
        self, names: str, request_id: str, now: float, received: int, seconds: float, call_record: CallRecord, /
    ) -> int:
        """A call is over, `now`, in seconds since the epoch. -> how many lines wait. `names` is the part of the line
        that is the same for all such calls, beginning with a comma. For one thread.
        """
        ran = None  # a line must not keep a model that is gone
        if call_record.view is not None:
            ran = (call_record.rows, call_record.batch_rows, call_record.queue_s, call_record.compute_s)
        self._facts.append((names, request_id, now, received, call_record.sent, seconds, ran, call_record.trace_id))
        count = len(self._facts)
        if count == 1 or count >= self._many:
            self._on_waiting(count)
        return count

    def end(self, outcome: CallOutcome, /) -> int:
        """A call is over; its record is taken from it. The names are those that were given for
        (model, listener, dialect, transport, method, code, failure, status, address, caller's name), and a call that
        has no name is given one. -> how many lines wait. The model is its view, or of a failure the name and version
        that it is about.
        """
        call = outcome.call
        call_record: CallRecord = outcome.call_record  # type: ignore[assignment]  # there is one where there is a log
        outcome.call_record = None
        if call_record.view is None:
            call_record.view = getattr(outcome.question, "view", None)
        caller = call.caller
        names = self._names[
            call_record.view or outcome.named,
            call.listener,
            call.dialect,
            call.transport,
            outcome.endpoint.method,
            outcome.code,
            outcome.failure,
            call_record.status,
            call.peer.address(),
            None if caller is None else caller.name,
        ]
        return self.add(names, call.request_id or new_id(), time.time(), len(call.body), outcome.seconds, call_record)

    def take(self) -> tuple[bytes, int]:
        """All of them, and how many. In any thread, by one at a time."""
        count = len(self._facts)
        facts = self._facts[:count]
        del self._facts[:count]  # more may come meanwhile, but none may go
        return "".join(map(self._line, facts)).encode(), count

    def _line(self, facts: tuple[Any, ...]) -> str:
        """Short times are looked up: formatting one takes three times as long."""
        names, request_id, now, received, sent, seconds, ran, trace_id = facts
        if int(now) != self._second:
            self._second, self._time = int(now), moment(int(now))
        model = ""
        if ran is not None:
            rows, batch_rows, queue_s, compute_s = ran
            queue = _MS[int(queue_s * 1e6 + 0.5)] if 0 <= queue_s < QUICK_S else f"{queue_s * 1e3:.3f}"
            compute = _MS[int(compute_s * 1e6 + 0.5)] if 0 <= compute_s < QUICK_S else f"{compute_s * 1e3:.3f}"
            model = f',"rows":{rows},"batch_rows":{batch_rows},"queue_ms":{queue},"compute_ms":{compute}'
        total = _MS[int(seconds * 1e6 + 0.5)] if 0 <= seconds < QUICK_S else f"{seconds * 1e3:.3f}"
        trace = "" if trace_id is None else f',"trace_id":"{trace_id}"'
        return (
            f'{{"time":"{self._time}{_FRACTIONS[int((now - self._second) * 1e3)]}Z","request_id":{quoted(request_id)}'
            f'{names}{model},"bytes_in":{received},"bytes_out":{sent},"total_ms":{total}{trace}}}\n'
        )


_MS: Final = [f"{us // 1000}.{us % 1000:03d}" for us in range(round(QUICK_S * 1e6) + 1)]
_FRACTIONS: Final = [f".{ms:03d}" for ms in range(1000)]

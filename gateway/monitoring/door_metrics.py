"""What a door counts of its calls: it keeps every observation until the engine, which has the sums, takes it over.

In a process killed meanwhile, what it had observed since then is lost: at most a second's.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Mapping
from typing import Final

import numpy as np

from tensorgate.gateway.contract.errors import Code, GatewayError
from tensorgate.gateway.contract.metrics import CallMetrics
from tensorgate.gateway.crossing.messages import Ended, Observed, RouteCount, Series
from tensorgate.gateway.monitoring.call_counters import CountedCall, counted_call
from tensorgate.gateway.monitoring.metrics import CallSeries, CallSeriesTable, CodecTimes, MetricsCollector, RequestKey
from tensorgate.gateway.monitoring.observer import Observer
from tensorgate.gateway.telemetry.call_outcome import CallOutcome
from tensorgate.gateway.telemetry.connection_metrics import Listeners, ListenerTraffic
from tensorgate.gateway.telemetry.rejection_reasons import refusal_of

_NO_MODEL: Final = -1.0


class DoorSeries(CallSeries):
    """The calls of one RequestKey since they were taken over last."""

    __slots__ = ("_calls", "_codec")

    def __init__(self, codec: CodecTimes, *, tells: bool) -> None:
        super().__init__(codec, _told if tells else None)
        self._codec = codec
        self._calls: list[tuple[Code, float]] = []

    def failed(self, code: Code, seconds: float) -> None:
        self._calls.append((code, seconds))

    def take(self, key: RequestKey) -> Series | None:
        """All that was observed, which is forgotten here; None where there is nothing."""
        failed, self._calls = self._calls, []
        took, ran = self._took.settle(), self._ran.settle()
        decoded, encoded = self._codec.decode.settle(), self._codec.encode.settle()
        if not (failed or len(took) or len(decoded)):
            return None
        dialect, transport, model, version, method = key
        return Series(
            dialect,
            transport,
            model,
            version,
            method,
            took.tobytes(),
            ran.tobytes(),
            decoded.tobytes(),
            encoded.tobytes(),
            tuple(failed),
        )


def _told(seconds: object, ran: object) -> None:
    """The engine tells who counts for a dialect."""


class DoorCounters:
    """The calls of one dialect that counts each."""

    def __init__(self, dialect: str, wanted: CallMetrics, is_public: Callable[[str], bool]) -> None:
        self.wanted = wanted
        self._dialect = dialect
        self._is_public = is_public
        self._calls: list[Ended] = []

    def ended(self, outcome: CallOutcome) -> None:
        """Count one call that is over."""
        call = counted_call(outcome, self._is_public)
        seconds = _NO_MODEL if call.model_seconds is None else call.model_seconds
        self._calls.append(
            Ended(self._dialect, call.model, call.method, call.transport, call.code, call.seconds, seconds, call.rows)
        )

    def take(self) -> list[Ended]:
        """All calls since the last time."""
        taken, self._calls = self._calls, []
        return taken


class DoorMetrics:
    """See metrics.CallCounting. `call_metrics` are those of dialects that count each call; `count_routes`
    gives what routes have counted since the last time."""

    def __init__(
        self,
        call_metrics: Mapping[str, CallMetrics],
        is_public: Callable[[str], bool],
        observer: Observer | None,
        count_routes: Callable[[], tuple[RouteCount, ...]] = tuple,
        routes_running: Callable[[], tuple[tuple[str, int], ...]] = tuple,
    ) -> None:
        """`routes_running` gives the requests of each route that are on their way."""
        self.call_counters = {name: DoorCounters(name, wanted, is_public) for name, wanted in call_metrics.items()}
        self.calls = CallSeriesTable(self._series)
        self.traffic = Listeners()
        self._observer = observer
        self._count_routes = count_routes
        self._routes_running = routes_running
        self._live: Callable[[RequestKey], bool] = lambda key: True
        self._every: dict[RequestKey, DoorSeries] = {}
        self._refused: dict[str, int] = {}

    @property
    def inferences(self) -> int:
        """The engine counts them."""
        return 0

    def refused(self, error: GatewayError, *, draining: bool) -> None:
        """A call ends with this error: count it, if it is one with which callers are turned away."""
        reason = refusal_of(error, draining=draining)
        if reason is not None:
            self._refused[reason] = self._refused.get(reason, 0) + 1

    def keep(self, versions: Collection[tuple[str, str]], routes: Container[str]) -> None:
        """Only these versions, and routes, are served from now on: series of others end once they were taken over."""
        self._live = lambda key: not key[2] or key[2] in routes or key[2:4] in versions

    def take(self, settle: int) -> Observed:
        """All that was observed since the last time, for the engine's Settle of that number."""
        series = [taken for key, each in self._every.items() if (taken := each.take(key)) is not None]
        if gone := [key for key in self._every if not self._live(key)]:
            for key in gone:
                del self._every[key]
            self.calls.clear()
        refused, self._refused = self._refused, {}
        ended = [each for counters in self.call_counters.values() for each in counters.take()]
        log = self._observer.access_log if self._observer is not None else None
        lines = (0, 0) if log is None else (log.written, log.dropped)
        listeners = [
            (*labels, traffic.connections, traffic.running, traffic.received, traffic.sent)
            for labels, traffic in self.traffic.read().items()
        ]
        routes, running = self._count_routes(), self._routes_running()
        return Observed(settle, tuple(series), refused, tuple(ended), tuple(listeners), lines, routes, running)

    def _series(self, key: RequestKey) -> DoorSeries:
        series = self._every.get(key)
        if series is None:
            dialect, _, model, _, method = key
            counters = self.call_counters.get(dialect) if model else None
            tells = counters is not None and method not in counters.wanted.row_methods
            series = self._every[key] = DoorSeries(CodecTimes(), tells=tells)
        return series


class DoorsObserved:
    """The engine's side: sums of what all doors have counted."""

    def __init__(self, metrics: MetricsCollector, has_series: Callable[[str, str], bool] = lambda *of: True) -> None:
        """`has_series` tells whether calls to a model's version, by its public name, are still told of."""
        self._metrics = metrics
        self._has_series = has_series
        self._running: dict[int, Mapping[str, int]] = {}
        self._traffic: dict[int, dict[tuple[str, str], ListenerTraffic]] = {}
        self._past: dict[tuple[str, str], ListenerTraffic] = {}
        self._lines: dict[int, tuple[int, int]] = {}
        self._past_lines = (0, 0)

    def add(self, door: int, observed: Observed) -> None:
        """A door has counted; `door` is its connection's own number. Raises ValueError for what no door sends."""
        metrics = self._metrics
        for each in observed.series:
            if not self._has_series(each.model, each.version):
                continue
            series = metrics.calls[each.dialect, each.transport, each.model, each.version, each.method]
            took, ran, decoded, encoded = map(_floats, (each.took, each.ran, each.decoded, each.encoded))
            series.add(took, ran, [(Code(code), seconds) for code, seconds in each.failed])
            for seconds in decoded.tolist():
                series.decoded(seconds)
            for seconds in encoded.tolist():
                series.encoded(seconds)
        for reason, calls in observed.refused.items():
            metrics.count_refused(reason, calls)
        for end in observed.ended:
            counter = metrics.call_counters.get(end.dialect)
            if counter is not None:
                ran_s = None if end.model_seconds == _NO_MODEL else end.model_seconds
                counter.count(
                    CountedCall(end.model, end.method, end.transport, Code(end.code), end.seconds, ran_s, end.rows)
                )
        self._traffic[door] = {
            (title, transport): ListenerTraffic(connections, running, received, sent)
            for title, transport, connections, running, received, sent in observed.listeners
        }
        self._lines[door] = observed.log_lines
        self._running[door] = dict(observed.routes_running)

    def joined(self, slot: int, restarts: Mapping[str, int]) -> None:
        """The door of a slot is there, after so many restarts. It may be an older one that has only connected anew."""
        known = self._metrics.restarts_of_doors.get(slot, {})
        if sum(restarts.values()) >= sum(known.values()):
            self._metrics.restarts_of_doors[slot] = restarts

    def gone(self, door: int) -> None:
        """A door has ended: what passed through it still counts, what was under way does not."""
        for labels, traffic in self._traffic.pop(door, {}).items():
            past = self._past.get(labels, ListenerTraffic(None, 0, 0, 0))
            self._past[labels] = past + ListenerTraffic(None, 0, traffic.received, traffic.sent)
        self._running.pop(door, None)
        written, dropped = self._lines.pop(door, (0, 0))
        self._past_lines = (self._past_lines[0] + written, self._past_lines[1] + dropped)

    def traffic(self) -> dict[tuple[str, str], ListenerTraffic]:
        """What passes through each listener, by its name and transport, at all doors."""
        total = dict(self._past)
        for door in list(self._traffic.values()):
            for labels, traffic in door.items():
                total[labels] = traffic + total.get(labels, ListenerTraffic(None, 0, 0, 0))
        return total

    def running(self, route: str) -> int:
        """Requests of a route that are on their way in doors."""
        return sum(each.get(route, 0) for each in list(self._running.values()))

    def log_lines(self) -> tuple[int, int]:
        """Lines of the access log: written, and dropped."""
        every = [self._past_lines, *list(self._lines.values())]
        return sum(written for written, _ in every), sum(dropped for _, dropped in every)


def _floats(data: bytes) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    return np.frombuffer(data, np.float64)

"""What a door counts of its calls: it keeps every observation until the engine, which has the sums, takes it over.

In a process killed meanwhile, what it had observed since then is lost: at most a second's. While the engine
does not ask, `bound` merges what has come together: counts, sums and the buckets of every histogram stay what they are.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence
from typing import Any, Final

import numpy as np

from tensorgate.gateway.contract.errors import Code, ErrorReason
from tensorgate.gateway.contract.metrics import CallMetrics
from tensorgate.gateway.crossing.messages import CountedError, Ended, Observed, RouteCount, Series
from tensorgate.gateway.monitoring.call_counters import CountedCall, counted_call
from tensorgate.gateway.monitoring.families import Exemplar
from tensorgate.gateway.monitoring.metrics import (
    CallSeries,
    CallSeriesTable,
    CodecTimes,
    MetricsCollector,
    RequestKey,
)
from tensorgate.gateway.monitoring.observer import Observer
from tensorgate.gateway.monitoring.recent_errors import ErrorKey, RecentError, RecentErrors
from tensorgate.gateway.monitoring.usage import Usage
from tensorgate.gateway.telemetry.call_outcome import CallOutcome
from tensorgate.gateway.telemetry.connection_metrics import Listeners, ListenerTraffic
from tensorgate.gateway.telemetry.histogram import SECONDS, Gathered, Merger

_NO_MODEL: Final = -1.0
_NO_LINES: Final = (0, 0, 0, 0, 0)
MAX_NOTED: Final = 1 << 18
"""Observations that a door keeps one by one."""
_US: Final = 1e6


class DoorSeries(CallSeries):
    """The calls of one RequestKey since they were taken over last."""

    __slots__ = ("_calls", "_codec", "_edges", "_failed_merged", "_merged")

    def __init__(self, codec: CodecTimes, edges: Sequence[float], *, tells: bool) -> None:
        """`edges` are the bounds of all histograms in which they are counted."""
        super().__init__(codec, _told if tells else None)
        self._codec = codec
        self._edges = edges
        self._calls: list[tuple[Code, ErrorReason, float]] = []
        self._merged: tuple[Merger, ...] = ()
        self._failed_merged: dict[tuple[Code, ErrorReason], Merger] = {}

    def failed(self, code: Code, reason: ErrorReason, seconds: float) -> None:
        self._calls.append((code, reason, seconds))

    @property
    def _every(self) -> tuple[Gathered, ...]:
        return self._took, self._ran, self._codec.decode, self._codec.encode

    @property
    def noted(self) -> int:
        """Observations that are kept one by one."""
        return sum([each.waiting for each in self._every]) + len(self._calls)

    def merge(self) -> None:
        """Keep none of them one by one."""
        self._merged = self._merged or tuple([Merger(self._edges) for _ in self._every])
        for merger, each in zip(self._merged, self._every, strict=True):
            merger.add(each.settle())
        calls, self._calls = self._calls, []
        for ending in {call[:2] for call in calls}:
            if ending not in self._failed_merged:
                self._failed_merged[ending] = Merger(self._edges)
            self._failed_merged[ending].add(np.array([seconds for *other, seconds in calls if tuple(other) == ending]))

    def take(self, key: RequestKey) -> Series | None:
        """All that was observed, which is forgotten here; None where there is nothing."""
        failed = [(*call, 1) for call in self._calls]
        self._calls = []
        took, ran, decoded, encoded = [each.settle() for each in self._every]
        merged, self._merged = self._merged, ()
        exemplars, self.exemplars = tuple(self.exemplars.values()), {}
        tokens, self.tokens = self.tokens, (0, 0)
        if not (failed or merged or len(took) or len(decoded)):
            return None
        failed += [(*ending, *some) for ending, merger in self._failed_merged.items() for some in merger.take()]
        self._failed_merged = {}
        more: Any = tuple([tuple(merger.take()) for merger in merged]) or ((),) * 4
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
            more,
            exemplars,
            tokens,
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
        self._merged: dict[tuple[str, str, str, int, tuple[float, ...]], list[float]] = {}
        self.edges = [bound / _US for bound in wanted.bounds_us]
        """The bounds of its histograms of time, in seconds."""

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
        for (model, method, transport, code, _), (calls, seconds, model_seconds, rows) in self._merged.items():
            means = seconds / calls, model_seconds / calls, rows / calls
            taken.append(Ended(self._dialect, model, method, transport, code, *means, int(calls)))
        self._merged = {}
        return taken

    @property
    def noted(self) -> int:
        """Calls that are kept one by one."""
        return len(self._calls)

    def merge(self) -> None:
        """Keep none of them one by one, but those together that fall into the same buckets."""
        calls, self._calls = self._calls, []
        for call in calls:
            buckets = (
                bisect_left(self.edges, call.seconds),
                bisect_left(self.edges, call.model_seconds),
                bisect_left(self.wanted.row_bounds, call.rows),
                call.model_seconds == _NO_MODEL,
            )
            key = (call.model, call.method, call.transport, call.code, buckets)
            sums = self._merged.setdefault(key, [0, 0.0, 0.0, 0.0])
            for at, number in enumerate((1, call.seconds, call.model_seconds, call.rows)):
                sums[at] += number


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
        self.recorded: Callable[[], tuple[int, int, int]] = lambda: (0, 0, 0)
        """Recorded calls, written and dropped."""
        self.replica_runs: Callable[[], tuple[tuple[int, bytes], ...]] = tuple
        """What copies of models in this door have answered since the last time."""
        self._count_routes = count_routes
        self._routes_running = routes_running
        self._live: Callable[[RequestKey], bool] = lambda key: True
        self._every: dict[RequestKey, DoorSeries] = {}
        self.errors = RecentErrors()

    @property
    def inferences(self) -> int:
        """The engine counts them."""
        return 0

    def keep(self, versions: Collection[tuple[str, str]], routes: Container[str]) -> None:
        """Only these versions, and routes, are served from now on: series of others end once they were taken over."""
        known = {*versions, *((model, "") for model, _ in versions)}
        self._live = lambda key: not key[2] or key[2] in routes or key[2:4] in known

    def bound(self) -> None:
        """Merge what was observed, if that has become too much; to be called once a second."""
        noting: list[DoorSeries | DoorCounters] = [*self._every.values(), *self.call_counters.values()]
        if sum([each.noted for each in noting]) > MAX_NOTED:
            for each in noting:
                each.merge()

    def take(self, settle: int) -> Observed:
        """All that was observed since the last time, for the engine's Settle of that number."""
        series = [taken for key, each in self._every.items() if (taken := each.take(key)) is not None]
        if gone := [key for key in self._every if not self._live(key)]:
            for key in gone:
                del self._every[key]
            self.calls.clear()
        errors = [CountedError(each.key, each.text, each.since, each.last, each.count) for each in self.errors.take()]
        ended = [each for counters in self.call_counters.values() for each in counters.take()]
        log = self._observer.access_log if self._observer is not None else None
        lines = (*((0, 0) if log is None else (log.written, log.dropped)), *self.recorded())
        listeners = [
            (*labels, traffic.connections, traffic.running, traffic.received, traffic.sent)
            for labels, traffic in self.traffic.read().items()
        ]
        routes, running = self._count_routes(), self._routes_running()
        return Observed(
            settle,
            tuple(series),
            tuple(errors),
            tuple(ended),
            tuple(listeners),
            lines,
            routes,
            running,
            () if self._observer is None or self._observer.usage is None else tuple(self._observer.usage.take()),
            self.replica_runs(),
        )

    def _series(self, key: RequestKey) -> DoorSeries:
        series = self._every.get(key)
        if series is None:
            dialect, _, model, _, method = key
            counters = self.call_counters.get(dialect) if model else None
            tells = counters is not None and method not in counters.wanted.row_methods
            edges = SECONDS if counters is None else sorted({*SECONDS, *counters.edges})
            series = self._every[key] = DoorSeries(CodecTimes(), edges, tells=tells)
        return series


class DoorsObserved:
    """The engine's side: sums of what all doors have counted."""

    def __init__(self, metrics: MetricsCollector, has_series: Callable[[str, str], bool] = lambda *of: True) -> None:
        """`has_series` tells whether calls to a model's version, by its public name, are still told of."""
        self._metrics = metrics
        self._has_series = has_series
        self.usage = Usage()
        """What callers have used, through all doors."""
        self._running: dict[int, Mapping[str, int]] = {}
        self._traffic: dict[int, dict[tuple[str, str], ListenerTraffic]] = {}
        self._past: dict[tuple[str, str], ListenerTraffic] = {}
        self._lines: dict[int, tuple[int, ...]] = {}
        self._past_lines: tuple[int, ...] = _NO_LINES

    def add(self, door: int, observed: Observed) -> None:
        """A door has counted; `door` is its connection's own number. Raises ValueError for what no door sends."""
        metrics = self._metrics
        for each in observed.series:
            if self._has_series(each.model, each.version):
                self._add_series(each)
        for error in observed.errors:
            dialect, transport, model, version, method, code, reason = error.key
            key = ErrorKey(dialect, transport, model, version, method, Code(code), ErrorReason(reason))
            metrics.errors.add(RecentError(key, error.text, error.since, error.last, error.count))
        for end in observed.ended:
            counter = metrics.call_counters.get(end.dialect)
            if counter is not None:
                ran_s = None if end.model_seconds == _NO_MODEL else end.model_seconds
                call = CountedCall(end.model, end.method, end.transport, Code(end.code), end.seconds, ran_s, end.rows)
                if end.calls == 1:
                    counter.count(call)
                else:
                    counter.count_alike(call, end.calls)
        for used in observed.usage:
            self.usage.add(used)
        self._traffic[door] = {
            (title, transport): ListenerTraffic(connections, running, received, sent)
            for title, transport, connections, running, received, sent in observed.listeners
        }
        self._lines[door] = observed.lines
        self._running[door] = dict(observed.routes_running)

    def _add_series(self, said: Series) -> None:
        series = self._metrics.calls[said.dialect, said.transport, said.model, said.version, said.method]
        took, ran, decoded, encoded = map(_floats, (said.took, said.ran, said.decoded, said.encoded))
        failed = [(Code(code), ErrorReason(reason), seconds, calls) for code, reason, seconds, calls in said.failed]
        series.add(took, ran, failed)
        series.spent(*said.tokens)
        for seconds in decoded.tolist():
            series.decoded(seconds)
        for seconds in encoded.tolist():
            series.encoded(seconds)
        if any(said.merged):
            self._add_merged(series, said)
        for exemplar in said.exemplars:
            series.traced(Exemplar(*exemplar))

    def _add_merged(self, series: CallSeries, said: Series) -> None:
        took, ran, decoded, encoded = said.merged
        series.add_merged(took)
        codec = self._metrics.codec(said.model, said.version)
        for gathered, pairs in ((codec.decode, decoded), (codec.encode, encoded)):
            for seconds, calls in pairs:
                gathered.observe_often(seconds, calls)
        if series.tell is not None:
            self._metrics.call_counters[said.dialect].count_merged(said.model, said.method, said.transport, took, ran)

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
        self._past_lines = _sum([self._past_lines, self._lines.pop(door, _NO_LINES)])

    def traffic(self) -> dict[tuple[str, str], ListenerTraffic]:
        """What passes through each listener, by its name and transport, at all doors."""
        total = dict(self._past)
        for door in list(self._traffic.values()):
            for labels, traffic in door.items():
                total[labels] = traffic + total.get(labels, ListenerTraffic(None, 0, 0, 0))
        return total

    def connections(self, door: int) -> int:
        """Open connections of clients at a door."""
        return sum(traffic.connections or 0 for traffic in self._traffic.get(door, {}).values())

    def running(self, route: str) -> int:
        """Requests of a route that are on their way in doors."""
        return sum(each.get(route, 0) for each in list(self._running.values()))

    def log_lines(self) -> tuple[int, int]:
        """Lines of the access log: written, and dropped."""
        written, dropped, *_ = _sum([self._past_lines, *list(self._lines.values())])
        return written, dropped

    def recorded(self) -> tuple[int, int, int]:
        """Recorded calls: written, dropped, and passed over."""
        _, _, written, dropped, passed_over = _sum([self._past_lines, *list(self._lines.values())])
        return written, dropped, passed_over


def _sum(every: Iterable[tuple[int, ...]]) -> tuple[int, ...]:
    return tuple(map(sum, zip(*every, strict=True)))


def _floats(data: bytes) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    return np.frombuffer(data, np.float64)

"""What calls were like in the last two minutes, hour, day and month: rates, errors and percentiles of every stream.

Percentiles do not add up: the 99th of an hour is no mean of those of its minutes. So every stream has a histogram of
the minute, the hour and the day that are not over yet; when one is over, its percentiles are kept and its counts go
into the next longer one. Buckets grow by 8 %, so that a percentile is at most 4 % off. Served and refused calls have
histograms of their own: a refusal takes microseconds, and a median over both would tell of neither.

All numbers lie in arrays with a row per stream, so that a second costs some array operations whatever number of models
there is. A row takes 11 KB; of more than MAX_STREAMS streams, the ones that were idle longest are forgotten.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

MAX_STREAMS: Final = 2048

Stream = tuple[str, str]
"""(dialect, model); no model where a call was refused before it reached one"""
TOTAL: Final[Stream] = ("", "")
"""All streams together."""

COLUMNS: Final = ("calls", "errors", "p50", "p99", "refused_p50", "refused_p99")
"""Of one point: calls of all kinds, those of them that failed, and milliseconds; NaN where there was no such call."""


@dataclass(frozen=True, slots=True)
class Span:
    """A stretch of the past: `points` points of `step` seconds each."""

    step: int
    points: int


SPANS: Final[Mapping[str, Span]] = {
    "minutes": Span(1, 120),
    "hour": Span(60, 60),
    "day": Span(3600, 24),
    "month": Span(86400, 30),
}
_FIRST_S: Final = 1e-5
_GROWTH: Final = 1.08
_EDGES: Final = _FIRST_S * _GROWTH ** np.arange(240)
"""Seconds, from 10 microseconds up to a quarter of an hour; what lies beyond counts as that."""
_BUCKETS: Final = len(_EDGES) + 1
_MIDDLES_MS: Final = 1e3 * np.minimum(np.append(_EDGES, _EDGES[-1]), _EDGES[-1]) / np.sqrt(_GROWTH)


@dataclass(slots=True)
class SecondOfCalls:
    """What one stream's calls of one second were: numbers, and times in seconds."""

    calls: int = 0
    errors: int = 0
    served: list[float] = field(default_factory=list)
    refused: list[float] = field(default_factory=list)


class CallHistory:
    """The streams' past. `add` takes a second; points are numbered from 0, the first second's, on."""

    def __init__(self) -> None:
        self._rows: dict[Stream, int] = {TOTAL: 0}
        self._free: list[int] = []
        self.seconds = 0
        """How many were added."""
        self._rings = {name: np.zeros((0, span.points, len(COLUMNS)), np.float32) for name, span in SPANS.items()}
        self._open = {name: np.zeros((2, 0, _BUCKETS), np.uint32) for name in (*SPANS,)[1:]}
        self._sums = {name: np.zeros((0, 2)) for name in (*SPANS,)[1:]}
        self._sizes = np.zeros((0, 2), np.int64)
        self._last_call = np.zeros(0, np.int64)
        self._grow(16)

    def streams(self) -> list[Stream]:
        """All that had a call, but for TOTAL."""
        return [stream for stream in self._rows if stream != TOTAL]

    def counts(self, stream: Stream) -> tuple[int, int]:
        """(calls, errors) since the stream is known."""
        row = self._rows.get(stream)
        return (0, 0) if row is None else (int(self._sizes[row, 0]), int(self._sizes[row, 1]))

    def number(self, span: str) -> int:
        """How many points of a span were completed so far."""
        return self.seconds // SPANS[span].step

    def points(self, stream: Stream, span: str, since: int = 0) -> Any:
        """The points from number `since` on that are still there, oldest first: [points, COLUMNS]."""
        number, size = self.number(span), SPANS[span].points
        wanted = np.arange(max(since, number - size, 0), number) % size
        row = self._rows.get(stream)
        return np.zeros((0, len(COLUMNS)), np.float32) if row is None else self._rings[span][row, wanted]

    def table(self, span: str) -> tuple[list[Stream], Any, Any]:
        """All streams but TOTAL: (their names, their last points of a span [streams, COLUMNS], their counts
        [streams, 2]).
        """
        streams = self.streams()
        rows = np.array([self._rows[stream] for stream in streams], np.int64)
        number = self.number(span)
        if number:
            last = self._rings[span][rows, (number - 1) % SPANS[span].points]
        else:
            last = np.full((len(rows), len(COLUMNS)), [0, 0, *[np.nan] * 4], np.float32)
        return streams, last, self._sizes[rows]

    def add(self, second: Mapping[Stream, SecondOfCalls]) -> None:
        """The second that has passed."""
        for stream in second:
            if stream not in self._rows:
                self._rows[stream] = row = self._new_row()
                self._last_call[row] = self.seconds
        second = {stream: each for stream, each in second.items() if stream in self._rows}
        used = max(self._rows.values()) + 1
        counts = np.zeros((used, 2))
        histograms = np.zeros((2, used, _BUCKETS), np.uint32)
        at = [self._rows[stream] for stream in second]
        counts[at] = [(each.calls, each.errors) for each in second.values()] if at else 0
        for kind, times in enumerate(([e.served for e in second.values()], [e.refused for e in second.values()])):
            rows = np.repeat(np.array(at, np.int64), [len(each) for each in times])
            buckets = np.searchsorted(_EDGES, np.array([one for each in times for one in each]))
            np.add.at(histograms[kind], (rows, buckets), 1)
        counts[0] = counts.sum(0)
        histograms[:, 0] = histograms.sum(1)
        self._sizes[:used] += counts.astype(np.int64)
        self._last_call[:used][counts[:, 0] > 0] = self.seconds
        self._complete("minutes", self.seconds, counts, histograms)
        self.seconds += 1
        for name, span in list(SPANS.items())[1:]:
            self._sums[name][:used] += counts
            self._open[name][:, :used] += histograms
            if self.seconds % span.step:
                break
            counts, histograms = self._sums[name][:used].copy(), self._open[name][:, :used].copy()
            self._complete(name, self.seconds // span.step - 1, counts, histograms)
            self._sums[name][:] = 0
            self._open[name][:] = 0

    def _complete(self, span: str, number: int, counts: Any, histograms: Any) -> None:
        """Write a point of every row."""
        used = len(counts)
        point = self._rings[span][:, number % SPANS[span].points]
        point[used:] = [0, 0, *[np.nan] * 4]
        point[:used, :2] = counts
        for kind in range(2):
            point[:used, 2 + 2 * kind : 4 + 2 * kind] = percentiles_ms(histograms[kind], (50, 99))

    def _new_row(self) -> int:
        if len(self._rows) > MAX_STREAMS:
            self._forget(min(self.streams(), key=lambda stream: self._last_call[self._rows[stream]]))
        if self._free:
            return self._free.pop()
        row = len(self._rows)
        if row >= len(self._sizes):
            self._grow(2 * row)
        return row

    def _forget(self, stream: Stream) -> None:
        row = self._rows.pop(stream)
        self._free.append(row)
        for ring in self._rings.values():
            ring[row] = [0, 0, *[np.nan] * 4]
        for opened, sums in zip(self._open.values(), self._sums.values(), strict=True):
            opened[:, row] = 0
            sums[row] = 0
        self._sizes[row] = 0

    def _grow(self, rows: int) -> None:
        more = rows - len(self._sizes)
        empty = [0, 0, *[np.nan] * 4]
        for name, span in SPANS.items():
            fresh = np.broadcast_to(np.array(empty, np.float32), (more, span.points, len(COLUMNS)))
            self._rings[name] = np.concatenate((self._rings[name], fresh))
        for name in self._open:
            self._open[name] = np.pad(self._open[name], ((0, 0), (0, more), (0, 0)))
            self._sums[name] = np.pad(self._sums[name], ((0, more), (0, 0)))
        self._sizes = np.pad(self._sizes, ((0, more), (0, 0)))
        self._last_call = np.pad(self._last_call, (0, more))


def percentiles_ms(histograms: Any, percents: tuple[float, ...]) -> Any:
    """[rows, buckets] -> [rows, percents] in milliseconds; NaN where nothing was observed."""
    found = np.full((len(histograms), len(percents)), np.nan, np.float32)
    busy = np.flatnonzero(histograms.any(1))
    if len(busy):
        up_to = histograms[busy].cumsum(1, dtype=np.int64)
        for at, percent in enumerate(percents):
            rank = np.ceil(up_to[:, -1] * (percent / 100)).clip(1)
            found[busy, at] = _MIDDLES_MS[(up_to < rank[:, None]).sum(1)]
    return found

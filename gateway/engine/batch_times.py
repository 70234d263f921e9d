"""How long batches of one model take on one device, by their rows: learned from those that ran.

What is learned has two parts, since they change at different speeds. The *shape* says how the time grows with the rows:
a point for each of some sizes, the median of the last runs near it, and lines in between. The *pace* is a factor that
all sizes share: a machine that others load, or a GPU that clocks down, slows every size at once, and sizes that have
not run lately are not believed to be quick for it. Medians forget a single stall.

Where batches are padded to fixed sizes, the time is a staircase: nine rows cost as much as thirty-two.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import deque
from collections.abc import Sequence
from statistics import median
from typing import Final

SHAPE_RUNS: Final = 32
"""Runs near one size that its point is made of."""
PACE_RUNS: Final = 9
"""Runs of any size that the pace is made of: few, so that it moves before the shape does."""
SPREAD_RUNS: Final = 128
_SPREAD_SHARE: Final = 0.95
_STEPS_PER_OCTAVE: Final = 4
_LEAST_S: Final = 1e-9
_EQUAL: Final = 0.98
"""Sizes whose cost of a row is this near the best are as good; the largest of them is taken."""


class BatchTimes:
    """The times of one model's batches on one device. Rows go from 1 to `max_rows`; `sizes` are those to which batches
    are padded, in rising order, or empty.
    """

    def __init__(self, max_rows: int, sizes: Sequence[int] = ()) -> None:
        self.max_rows = max(1, max_rows)
        self._sizes = tuple(size for size in sizes if size <= self.max_rows)
        self._near: dict[int, deque[tuple[int, float]]] = {}
        self._ratios: deque[float] = deque(maxlen=SPREAD_RUNS)
        self._pace_of: deque[float] = deque(maxlen=PACE_RUNS)
        self._pace = 1.0
        self._spread = 1.0
        self._seen = 0
        self._table: list[float] = []
        """Rows -> seconds at a pace of 1, rising; [0] is 0."""
        self._best_up_to: list[int] = []
        self.largest_seen = 0
        """The most rows that have run."""
        self.candidates: list[int] = []
        """Sizes worth thinking of, rising: each is the best of those up to it."""

    @property
    def is_known(self) -> bool:
        """Whether anything has run."""
        return bool(self._table)

    def observe(self, rows: int, seconds: float) -> None:
        """A batch of so many rows has run."""
        rows, seconds = self.padded(min(max(rows, 1), self.max_rows)), max(seconds, _LEAST_S)
        near = self._near.get(self._bucket(rows))
        if near is None:
            near = self._near[self._bucket(rows)] = deque(maxlen=SHAPE_RUNS)
            self._seen = 0
        else:  # what was only guessed of this size says nothing of the machine
            expected = self._table[rows]
            self._pace_of.append(seconds / expected)
            self._ratios.append(seconds / (expected * self._pace))
            self._pace = median(self._pace_of)
        near.append((rows, seconds / self._pace))
        self.largest_seen = max(self.largest_seen, rows)
        self._seen += 1
        if self._seen < SHAPE_RUNS or self._seen % 8 == 0:
            self._draw()

    def seconds(self, rows: int) -> float:
        """How long such a batch is expected to run; 0 where nothing is known."""
        return self._table[min(rows, self.max_rows)] * self._pace if self._table else 0.0

    def likely(self, rows: int) -> float:
        """How long it runs at most, but for one of twenty."""
        return self.seconds(rows) * self._spread

    def largest(self, seconds: float) -> int:
        """The most rows that are likely to end within so many seconds; 0: not even one."""
        if not self._table:
            return self.max_rows
        return bisect_right(self._table, seconds / (self._pace * self._spread)) - 1 if seconds > 0 else 0

    def best_up_to(self, rows: int) -> int:
        """The size of no more rows at which a row costs least."""
        return self._best_up_to[min(rows, self.max_rows)] if self._table else min(rows, self.max_rows)

    def rate(self, rows: int) -> float:
        """Rows a second, in batches of so many one after another."""
        seconds = self.seconds(rows)
        return rows / seconds if seconds else math.inf

    def padded(self, rows: int) -> int:
        """The size in which so many rows run."""
        return next((size for size in self._sizes if size >= rows), rows)

    def points(self) -> list[tuple[int, float]]:
        """(rows, expected seconds) of the sizes that have run."""
        return [(round(rows), shape * self._pace) for rows, shape in self._points()]

    def _bucket(self, rows: int) -> int:
        return rows if self._sizes or rows < _STEPS_PER_OCTAVE else round(_STEPS_PER_OCTAVE * math.log2(rows)) + 1000

    def _points(self) -> list[tuple[float, float]]:
        """Times never fall with the rows: where they seem to, neighbours share their mean."""
        found = sorted(
            (sum(rows for rows, _ in near) / len(near), median(seconds for _, seconds in near), len(near))
            for near in self._near.values()
        )
        pools: list[tuple[list[float], float, int]] = []
        for rows, seconds, count in found:
            pools.append(([rows], seconds, count))
            while len(pools) > 1 and pools[-1][1] < pools[-2][1]:
                (later, after, more), (earlier, before, some) = pools.pop(), pools.pop()
                pools.append(([*earlier, *later], (before * some + after * more) / (some + more), some + more))
        return [(each, seconds) for rows, seconds, _ in pools for each in rows]

    def _draw(self) -> None:
        points = self._points()
        (first, least), (last, most) = points[0], points[-1]
        # Beyond the largest size that has run the line goes on as it has come, and through zero where there is but one.
        slope = (most - least) / (last - first) if last > first else most / last
        table, at = [0.0], 0
        for rows in range(1, self.max_rows + 1):
            size = self.padded(rows)
            while at < len(points) - 1 and points[at + 1][0] < size:
                at += 1
            if size <= first:
                seconds = least
            elif size >= last:
                seconds = most + slope * (size - last)
            else:
                (left, low), (right, high) = points[at], points[at + 1]
                seconds = low + (high - low) * (size - left) / (right - left)
            table.append(max(seconds, table[-1], _LEAST_S))
        self._table = table
        best, most, self._best_up_to = 1, 0.0, [0]
        for rows in range(1, self.max_rows + 1):
            rate = rows / table[rows]
            most = max(most, rate)
            best = rows if rate >= _EQUAL * most else best
            self._best_up_to.append(best)
        self.candidates = sorted(set(self._best_up_to[1:]))
        if len(self._ratios) >= PACE_RUNS:
            ordered = sorted(self._ratios)
            self._spread = max(1.0, ordered[int(len(ordered) * _SPREAD_SHARE)])

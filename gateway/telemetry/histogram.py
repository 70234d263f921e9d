"""What series of metrics are made of: a histogram to count in."""

from __future__ import annotations

import threading
from array import array
from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np

from tensorgate.gateway.contract.metrics import Distribution

SECONDS: Final = (
    *(25e-6, 50e-6, 100e-6, 250e-6, 500e-6),
    *(1e-3, 2.5e-3, 5e-3, 10e-3, 25e-3, 50e-3, 0.1, 0.25, 0.5),
    *(1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0),
)
"""Bounds for the times of calls and of their stages; what generates texts takes minutes."""


class Histogram:
    """Observations sorted into buckets. Not thread-safe: for one event loop."""

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    def observe_often(self, value: float, count: int) -> None:
        """One value so many times."""
        self.counts[bisect_left(self.bounds, value)] += count
        self.sum += value * count

    def observe_all(self, values: Any) -> None:
        """All numbers of an array."""
        up_to = np.searchsorted(np.sort(values), self.bounds, "right").tolist()  # a third of the time of the other way
        found = [end - begin for begin, end in zip((0, *up_to), (*up_to, len(values)), strict=True)]
        self.counts = [had + new for had, new in zip(self.counts, found, strict=True)]
        self.sum += float(values.sum())

    def add(self, other: Histogram) -> None:
        """What another of the same bounds has observed."""
        self.counts = [mine + theirs for mine, theirs in zip(self.counts, other.counts, strict=True)]
        self.sum += other.sum

    def distribution(self) -> Distribution:
        """The observations so far, as a value."""
        return Distribution(self.bounds, tuple(self.counts), self.sum)


class Merger:
    """Observations of which, between two edges, only the number and the sum are kept."""

    def __init__(self, edges: Sequence[float]) -> None:
        """`edges` ascend. A histogram whose bounds are among them counts what was merged as it would count each."""
        self._edges = np.array(edges, np.float64)
        self._counts = np.zeros(len(edges) + 1, np.int64)
        self._sums = np.zeros(len(edges) + 1)

    def add(self, values: Any) -> None:
        """All numbers of an array."""
        at = np.searchsorted(self._edges, values)
        self._counts += np.bincount(at, minlength=len(self._counts))
        self._sums += np.bincount(at, values, len(self._counts))

    def take(self) -> list[tuple[float, int]]:
        """Everything that was added, which is forgotten here: (a value, how often). Sums stay what they were."""
        edges, counts, sums = self._edges, self._counts, self._sums
        found = []
        for at in np.flatnonzero(counts).tolist():
            low = np.nextafter(edges[at - 1], np.inf) if at else -np.inf
            high = edges[at] if at < len(edges) else np.inf
            found.append((float(min(max(sums[at] / counts[at], low), high)), int(counts[at])))
        self._counts, self._sums = np.zeros_like(counts), np.zeros_like(sums)
        return found


class Gathered:
    """A histogram for what is observed with each call: `observe` only notes a number, and many are sorted at a time, by
    `settle`, at the latest when somebody reads. Whoever has one settles it now and then, for it grows until then.

    `observe` is for one thread, all else for any.
    """

    __slots__ = ("_histogram", "_waiting", "observe")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._histogram = Histogram(bounds)
        self._waiting = array("d")
        self.observe: Callable[[float], None] = self._waiting.append

    @property
    def waiting(self) -> int:
        """How many observations are not sorted yet."""
        return len(self._waiting)

    def settle(self) -> Any:
        """-> what was observed since the last time, as an array."""
        if not self._waiting:
            return _NOTHING
        with _settling:
            waiting = self._waiting
            count = len(waiting)
            values = np.frombuffer(waiting[:count])  # more may come meanwhile, but none may go
            del waiting[:count]
            self._histogram.observe_all(values)
        return values

    def observe_often(self, value: float, count: int) -> None:
        """One value so many times. In any thread."""
        with _settling:
            self._histogram.observe_often(value, count)

    def observe_all(self, values: Any) -> None:
        """All numbers of an array. In any thread."""
        with _settling:
            self._histogram.observe_all(values)

    @property
    def histogram(self) -> Histogram:
        """All of it so far."""
        self.settle()
        return self._histogram


_settling: Final = threading.Lock()
_NOTHING: Final = np.empty(0)

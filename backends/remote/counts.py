"""What calls to other servers came to, by model and address, and how Prometheus reads it.

Counted on the event loop, in plain numbers; read in any thread. Versions of a model that ask the same address are one.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import accumulate
from typing import Final, Literal

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

Result = Literal["ok", "failed", "unreachable", "broken"]
OK: Final[Result] = "ok"
FAILED: Final[Result] = "failed"
RESULTS: Final[tuple[Result, ...]] = (OK, FAILED, "unreachable", "broken")
"""Answered, also with a word against the request; answered that it cannot; not connected to; lost meanwhile."""
_SECONDS: Final = (1e-3, 2.5e-3, 5e-3, 10e-3, 25e-3, 50e-3, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
_LABELS: Final = ["model", "address"]


class AddressCounts:
    """Calls to one address."""

    __slots__ = ("by_result", "seconds", "slots")

    def __init__(self) -> None:
        self.by_result: dict[Result, int] = dict.fromkeys(RESULTS, 0)
        self.slots = [0] * (len(_SECONDS) + 1)
        self.seconds = 0.0

    def ended(self, result: Result, seconds: float) -> None:
        """A call is over; how long it took counts if there was an answer."""
        self.by_result[result] += 1
        if result in (OK, FAILED):
            self.slots[bisect_left(_SECONDS, seconds)] += 1
            self.seconds += seconds

    def add(self, other: AddressCounts) -> None:
        """What another one has counted."""
        for result, count in other.by_result.items():
            self.by_result[result] += count
        self.slots = [mine + theirs for mine, theirs in zip(self.slots, other.slots, strict=True)]
        self.seconds += other.seconds


@dataclass(frozen=True, slots=True)
class AddressState:
    """An address as it is now."""

    model: str
    address: str
    counts: AddressCounts
    busy: int
    ready: bool
    ejected: bool


def families(states: Iterable[AddressState]) -> Iterator[Metric]:
    """The series of all addresses; nothing where there are none."""
    calls = CounterMetricFamily(
        "tensorgate_upstream_calls", "Calls to other servers, by what came of them.", labels=[*_LABELS, "result"]
    )
    timed = HistogramMetricFamily(
        "tensorgate_upstream_seconds", "Time until another server's whole answer.", labels=_LABELS
    )
    running = GaugeMetricFamily("tensorgate_upstream_running", "Calls to other servers under way.", labels=_LABELS)
    ready = GaugeMetricFamily("tensorgate_upstream_ready", "Whether the last probe was answered.", labels=_LABELS)
    ejected = GaugeMetricFamily("tensorgate_upstream_ejected", "Whether it is left alone for a while.", labels=_LABELS)
    for labels, same in _by_labels(states).items():
        counts = AddressCounts()
        for state in same:
            counts.add(state.counts)
        for result, count in counts.by_result.items():
            calls.add_metric([*labels, result], count)
        bounds = (*map(str, _SECONDS), "+Inf")
        timed.add_metric(labels, list(zip(bounds, map(float, accumulate(counts.slots)), strict=True)), counts.seconds)
        running.add_metric(labels, sum(state.busy for state in same))
        ready.add_metric(labels, float(any(state.ready for state in same)))
        ejected.add_metric(labels, float(any(state.ejected for state in same)))
    if ready.samples:
        yield from (calls, timed, running, ready, ejected)


def _by_labels(states: Iterable[AddressState]) -> dict[tuple[str, str], list[AddressState]]:
    found: dict[tuple[str, str], list[AddressState]] = {}
    for state in states:
        found.setdefault((state.model, state.address), []).append(state)
    return found

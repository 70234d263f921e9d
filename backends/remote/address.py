"""An address of another server: how it is, what the calls to it came to, and how Prometheus reads that.

Counted on the event loop, in plain numbers; read in any thread. Versions of a model that ask the same address are one.
"""

from __future__ import annotations

import asyncio
import logging
import time
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Final, Literal

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from tensorgate.backends.remote.connection import UpstreamConnection

log = logging.getLogger(__name__)

Result = Literal["ok", "failed", "unreachable", "broken"]
OK: Final[Result] = "ok"
FAILED: Final[Result] = "failed"
RESULTS: Final[tuple[Result, ...]] = (OK, FAILED, "unreachable", "broken")
"""Answered, also with a word against the request; answered that it cannot; not connected to; lost meanwhile."""
_SECONDS: Final = (1e-3, 2.5e-3, 5e-3, 10e-3, 25e-3, 50e-3, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
_LABELS: Final = ["model", "address"]


_FAILURES: Final = 5
"""So many in a row make an outlier."""
_LEFT_ALONE_S: Final = 5.0


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


@dataclass(slots=True, eq=False)
class Address:
    """One address of a model. `ready` is what the last probe said, `busy` counts calls, `failures` those in a row that
    failed for the server's reasons; before `ejected_until` (seconds of time.monotonic()) others are preferred. `doubt`
    asks for the next probe at once.
    """

    model: str
    name: str
    connection: UpstreamConnection
    ready: bool = False
    busy: int = 0
    failures: int = 0
    ejected_until: float = 0.0
    doubt: asyncio.Event = field(default_factory=asyncio.Event)
    counts: AddressCounts = field(default_factory=AddressCounts)

    @property
    def is_ejected(self) -> bool:
        """Whether it is left alone for a while."""
        return self.ejected_until > time.monotonic()

    def note(self, *, failed: bool) -> None:
        """How a call went."""
        self.failures = self.failures + 1 if failed else 0
        if self.failures >= _FAILURES:
            self.failures = 0
            self.ejected_until = time.monotonic() + _LEFT_ALONE_S
            log.warning("upstream %s failed %d times in a row: left alone for a while", self.name, _FAILURES)


def families(addresses: Iterable[Address]) -> Iterator[Metric]:
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
    for labels, same in _by_labels(addresses).items():
        counts = AddressCounts()
        for address in same:
            counts.add(address.counts)
        for result, count in counts.by_result.items():
            calls.add_metric([*labels, result], count)
        bounds = (*map(str, _SECONDS), "+Inf")
        timed.add_metric(labels, list(zip(bounds, map(float, accumulate(counts.slots)), strict=True)), counts.seconds)
        running.add_metric(labels, sum(address.busy for address in same))
        ready.add_metric(labels, float(any(address.ready for address in same)))
        ejected.add_metric(labels, float(any(address.is_ejected for address in same)))
    if ready.samples:
        yield from (calls, timed, running, ready, ejected)


def _by_labels(addresses: Iterable[Address]) -> dict[tuple[str, str], list[Address]]:
    found: dict[tuple[str, str], list[Address]] = {}
    for address in addresses:
        found.setdefault((address.model, address.name), []).append(address)
    return found

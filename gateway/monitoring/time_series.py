"""What the last seconds, minutes, hours and days were like: a sample a second, in rings of fixed size.

Counters and percentiles are those of calls of models, taken from what the metrics count anyway. Source of the rings'
sizes: grps' monitor, which shows 60 seconds, 60 minutes, 24 hours and 30 days of each of its series.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from tensorgate.gateway.contract.errors import Code
from tensorgate.gateway.contract.metrics import Gpu
from tensorgate.gateway.contract.questions import MonitorSeries, Points
from tensorgate.gateway.monitoring.call_history import CallHistory, SecondOfCalls, Stream
from tensorgate.gateway.monitoring.metrics import MetricsCollector, RequestKey
from tensorgate.gateway.telemetry.call_outcome import INFERENCES

PERCENTS: Final = (*range(10, 100, 10), *range(91, 100), 99.9, 99.99)
REFUSED: Final = INFERENCES | {"unknown"}
"""The methods of calls that count although they reached no model: questions about the server's health do not."""
_RINGS: Final = (60, 60, 24, 30)
"""Seconds, minutes, hours, days."""
_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")
_STATM: Final = Path("/proc/self/statm")


class Trend:
    """One number a second; of full minutes, hours and days what `together` makes of their parts."""

    def __init__(self, together: Callable[[Sequence[float]], float]) -> None:
        self._together = together
        self._rings = [deque([0.0] * size, size) for size in _RINGS]
        self._seen = 0

    def add(self, value: float) -> None:
        seconds, minutes, hours, days = self._rings
        self._seen += 1
        seconds.append(value)
        if self._seen % 60 == 0:
            minutes.append(self._together(seconds))
            if self._seen % 3600 == 0:
                hours.append(self._together(minutes))
                if self._seen % 86400 == 0:
                    days.append(self._together(hours))

    @property
    def last(self) -> float:
        return self._rings[0][-1]

    def all(self) -> list[float]:
        """Oldest first: days, hours, minutes, seconds."""
        return [value for ring in reversed(self._rings) for value in ring]


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


class TimeSeries:
    """Reads the metrics once a second. `gpus` gives those that models are on."""

    def __init__(self, metrics: MetricsCollector, gpus: Callable[[], Iterable[Gpu]] = tuple) -> None:
        self._metrics = metrics
        self._gpus = gpus
        self._seen: dict[RequestKey, tuple[int, int]] = {}
        self._cpu = (time.monotonic(), time.process_time())
        self._memory = os.sysconf("SC_PHYS_PAGES") * _PAGE_BYTES
        self.history = CallHistory()
        self.percentiles: list[float] = [0.0] * len(PERCENTS)
        self.gpus: tuple[Gpu, ...] = ()
        names = ("requests_per_second", "error_percent", "mean_latency_ms", "cpu_percent", "memory_percent")
        self.trends = {name: Trend(_mean) for name in names} | {"max_latency_ms": Trend(max)}

    async def run(self) -> None:
        """Take a sample a second until it is cancelled."""
        while True:
            await asyncio.sleep(1)
            self.sample()
            self.gpus = await asyncio.to_thread(lambda: tuple(self._gpus()))
            for index, gpu in enumerate(self.gpus):
                self.trends.setdefault(f"gpu{index}_memory_mib", Trend(_mean)).add(gpu.used / 2**20)

    def series(self, question: MonitorSeries) -> Points | None:
        """Answer the question: None for a name that is unknown."""
        if question.name == "latency_percentiles_ms":
            places = (*range(10, 100, 10), *range(91, 102))
            return Points("cdf", tuple(zip(places, self.percentiles, strict=True)))
        trend = self.trends.get(question.name)
        return None if trend is None else Points("trend", tuple(enumerate(trend.all())))

    def sample(self) -> None:
        """Add the second that has passed to every series."""
        seconds = self._collect()
        self.history.add(seconds)
        calls = sum(each.calls for each in seconds.values())
        errors = sum(each.errors for each in seconds.values())
        times = [one for each in seconds.values() for one in (*each.served, *each.refused)]
        self.percentiles = _percentiles(times, PERCENTS)
        self.trends["requests_per_second"].add(calls)
        self.trends["error_percent"].add(100 * errors / calls if calls else 0)
        self.trends["mean_latency_ms"].add(1e3 * _mean(times) if times else 0)
        self.trends["max_latency_ms"].add(1e3 * max(times) if times else 0)
        self.trends["cpu_percent"].add(self._cpu_percent())
        self.trends["memory_percent"].add(100 * self.memory_bytes() / self._memory)

    def memory_bytes(self) -> int:
        """The resident memory of this process; 0 where the system does not tell."""
        try:
            return int(_STATM.read_text().split()[1]) * _PAGE_BYTES
        except OSError:
            return 0

    def _cpu_percent(self) -> float:
        """Of one core."""
        before, self._cpu = self._cpu, (time.monotonic(), time.process_time())
        return 100 * (self._cpu[1] - before[1]) / max(self._cpu[0] - before[0], 1e-9)

    def _collect(self) -> Mapping[Stream, SecondOfCalls]:
        """Calls since the last look that reached a model or wanted to; no stream that had none."""
        found: dict[Stream, SecondOfCalls] = {}
        for key, endings, (served, refused) in self._metrics.recent():
            if not key[2] and key[4] not in REFUSED:
                continue
            calls = sum(endings.values())
            failed = sum(count for (code, _), count in endings.items() if is_error(code))
            before = self._seen.get(key, (0, 0))
            if calls == before[0]:
                continue
            self._seen[key] = (calls, failed)
            if calls < before[0]:  # unloaded, and back again
                before = (0, 0)
            had = found.setdefault((key[0], key[2]), SecondOfCalls())
            had.calls += calls - before[0]
            had.errors += failed - before[1]
            had.served += served
            had.refused += refused
        return found


def _percentiles(times: list[float], percents: Sequence[float]) -> list[float]:
    """In milliseconds."""
    if not times:
        return [0.0] * len(percents)
    found: Any = np.percentile(times, percents)
    return [1e3 * value for value in found.tolist()]


def is_error(code: Code) -> bool:
    """Whether a call that ended so counts as an error: one whose caller left does not."""
    return code is not Code.OK and code is not Code.CANCELLED

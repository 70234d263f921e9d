"""The state of the process itself, as Prometheus reads it: ready or not, how the event loop keeps up, what passes
through its ports.
"""

from __future__ import annotations

import asyncio
import platform
from collections.abc import Callable, Iterator
from typing import Final

from tensorgate.gateway.monitoring.families import AnyFamily, counter, gauge, histogram
from tensorgate.gateway.monitoring.observer import Observer
from tensorgate.gateway.telemetry.connection_metrics import Listeners
from tensorgate.gateway.telemetry.histogram import Histogram

_LAGS: Final = (1e-3, 2.5e-3, 5e-3, 10e-3, 25e-3, 50e-3, 0.1, 0.25, 0.5, 1.0, 2.5)
_EVERY_S: Final = 1.0


class ProcessMetrics:
    """Collects them when Prometheus asks; `run` measures the event loop's lag."""

    def __init__(self, version: str, ready: Callable[[], bool], observer: Observer | None) -> None:
        self.listeners = Listeners()
        self._version = version
        self._ready = ready
        self._observer = observer
        self._lag = Histogram(_LAGS)
        self.lines_of_doors: Callable[[], tuple[int, int]] = lambda: (0, 0)
        """Lines of the access log that other processes have written and dropped."""
        self.recorded: Callable[[], tuple[int, int, int]] | None = None
        """Recorded calls, written, dropped and passed over; None where none are recorded."""

    async def run(self) -> None:
        """Measure once a second how late the event loop wakes a sleeper."""
        loop = asyncio.get_running_loop()
        while True:
            due = loop.time() + _EVERY_S
            await asyncio.sleep(_EVERY_S)
            self._lag.observe(max(0.0, loop.time() - due))

    def collect(self) -> Iterator[AnyFamily]:
        yield gauge("tensorgate_ready", "Whether calls should come.", "", [((), self._ready())])
        built = (self._version, platform.python_version())
        yield gauge("tensorgate_build_info", "What runs.", "version python", [(built, 1)])
        yield histogram(
            "tensorgate_event_loop_lag_seconds",
            "How late the event loop is, looked at once a second.",
            "",
            [((), self._lag.distribution())],
        )
        yield from self.listeners.collect()
        log = self._observer.access_log if self._observer is not None else None
        if log is not None:
            written, dropped = self.lines_of_doors()
            text = "Lines of the access log."
            yield counter("tensorgate_access_log_lines", text, "", [((), log.written + written)])
            text = "Lines of the access log that could not be written in time, or at all."
            yield counter("tensorgate_access_log_dropped", text, "", [((), log.dropped + dropped)])
        if self.recorded is not None:
            written, dropped, passed_over = self.recorded()
            yield counter("tensorgate_recorded_calls", "Calls in recorded files.", "", [((), written)])
            text = "Calls that could not be recorded in time, or at all."
            yield counter("tensorgate_recorded_dropped", text, "", [((), dropped)])
            text = "Calls that were not recorded because others had taken the time of max_load."
            yield counter("tensorgate_recorded_passed_over", text, "", [((), passed_over)])

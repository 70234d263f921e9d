"""The gateway with a meter on its event loop: how long does the loop keep everybody waiting?

    python -m benchmarks.watched FILE serve CONFIGURATION

A timer asks to be called every millisecond; how late it is called is how late any small request would have been. What
the loop's thread waited for a core of a machine that does other things is taken off (the kernel counts it), so what is
left is the gateway's own: time that the loop itself was busy, and time that it waited for the interpreter, which
another thread had. SIGUSR2 has the worst of it written to FILE, and begins anew.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import threading
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from tensorgate.gateway.app import App
from tensorgate.gateway.cli import main as command

TICK_S = 1e-3


@dataclass(slots=True)
class Stalls:
    """The longest stall in milliseconds, how much of it the loop itself was busy, and how many were longer than 2."""

    worst_ms: float = 0.0
    busy_ms: float = 0.0
    over_2_ms: int = 0


class SchedulerMetrics:
    """Ticks on the running loop."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._loop = asyncio.get_running_loop()
        self._schedule = os.open(f"/proc/self/task/{threading.get_native_id()}/schedstat", os.O_RDONLY)
        self._stalls = Stalls()
        self._plan()

    def _waited_s(self) -> float:
        """For a core, so far."""
        return int(os.pread(self._schedule, 64, 0).split()[1]) / 1e9

    def _plan(self) -> None:
        self._busy = time.thread_time()
        self._waited = self._waited_s()
        self._due = time.perf_counter() + TICK_S
        self._loop.call_later(TICK_S, self._tick)

    def _tick(self) -> None:
        late = time.perf_counter() - self._due - (self._waited_s() - self._waited)
        stalls = self._stalls
        stalls.over_2_ms += late > 2e-3
        if late * 1e3 > stalls.worst_ms:
            stalls.worst_ms = late * 1e3
            stalls.busy_ms = (time.thread_time() - self._busy) * 1e3
        self._plan()

    def tell(self) -> None:
        stalls, self._stalls = self._stalls, Stalls()
        part = self._file.with_suffix(".part")
        part.write_text(json.dumps(asdict(stalls)))
        part.replace(self._file)


def main() -> int:
    file = Path(sys.argv[1])
    start = App.start

    async def watched(app: App) -> None:
        meter = SchedulerMetrics(file)
        asyncio.get_running_loop().add_signal_handler(signal.SIGUSR2, meter.tell)
        await start(app)

    App.start = watched  # type: ignore[method-assign, assignment]
    return command.main(sys.argv[2:])


if __name__ == "__main__":
    sys.exit(main())

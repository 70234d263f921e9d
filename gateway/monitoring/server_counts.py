"""The numbers of loaded models, the host and GPUs, read for dialects that show them under another server's names."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

from tensorgate.gateway.contract.metrics import HostUsage, ModelCounts, ReadGpu, ServerCounts, Total
from tensorgate.gateway.engine.model import Model
from tensorgate.gateway.monitoring.gpu_metrics import gpus_of
from tensorgate.gateway.telemetry.statistics import Tally

_PROC: Final = Path("/proc")


class ServerCounter:
    """Reads them. It remembers the processors' times between two readings, so one process should have one."""

    def __init__(
        self, models: Callable[[], Iterable[Model]], read_gpu: ReadGpu = lambda device: None, proc: Path = _PROC
    ) -> None:
        self._models = models
        self._read_gpu = read_gpu
        self._proc = proc
        self._before = (0, 0)

    def read(self) -> ServerCounts:
        """Off the event loop: numbers are read while they change, each of them whole."""
        models = [*self._models()]
        return ServerCounts([_counts(model) for model in models], self._host(), gpus_of(models, self._read_gpu))

    def _host(self) -> HostUsage | None:
        try:
            busy, total = _processor_times((self._proc / "stat").read_text())
            memory, used = _memory((self._proc / "meminfo").read_text())
        except (OSError, ValueError, LookupError):
            return None
        before, self._before = self._before, (busy, total)
        passed = total - before[1]
        return HostUsage((busy - before[0]) / passed if passed > 0 else 0.0, memory, used)


def _counts(model: Model) -> ModelCounts:
    counters = model.counters
    return ModelCounts(
        model=model.name,
        version=model.version,
        successes=_total(counters.successes),
        failures=dict(counters.failed_by),
        hits=_total(counters.hits),
        misses=_total(counters.misses),
        is_cached=model.is_cached,
        rows=counters.rows,
        runs=counters.runs,
        queue_s=counters.queue,
        input_s=counters.input,
        infer_s=counters.infer,
        output_s=counters.output,
        queued=model.queued,
        load_s=model.load_seconds,
    )


def _total(tally: Tally) -> Total:
    return Total(tally.count, tally.seconds)


def _processor_times(stat: str) -> tuple[int, int]:
    """/proc/stat -> (busy, all) ticks of all processors since boot. The line: user nice system idle iowait irq softirq
    steal; guests are in user.
    """
    ticks = [int(word) for word in stat.split("\n", 1)[0].split()[1:9]]
    return sum(ticks) - sum(ticks[3:5]), sum(ticks)


def _memory(meminfo: str) -> tuple[float, float]:
    """/proc/meminfo -> (all, not available) bytes."""
    lines = (line.split() for line in meminfo.splitlines())
    sizes = {words[0]: int(words[1]) * 1024 for words in lines if len(words) > 1}
    return float(sizes["MemTotal:"]), float(sizes["MemTotal:"] - sizes["MemAvailable:"])

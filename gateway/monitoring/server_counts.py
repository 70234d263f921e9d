"""The numbers of loaded models, the host and GPUs, read for dialects that show them under another server's names."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

from tensorgate.gateway.contract.metrics import EngineStatistics, HostUsage, ReadGpu, ServerCounts
from tensorgate.gateway.monitoring.gpu_metrics import gpus_of

_PROC: Final = Path("/proc")


class ServerCounter:
    """Reads them. It remembers the processors' times between two readings, so one process should have one."""

    def __init__(
        self, statistics: Callable[[], EngineStatistics], read_gpu: ReadGpu = lambda device: None, proc: Path = _PROC
    ) -> None:
        self._statistics = statistics
        self._read_gpu = read_gpu
        self._proc = proc
        self._before = (0, 0)

    def read(self) -> ServerCounts:
        """Off the event loop: numbers are read while they change, each of them whole."""
        models = self._statistics().models
        devices = [device for model in models for device in model.devices]
        return ServerCounts(models, self._host(), gpus_of(devices, self._read_gpu))

    def _host(self) -> HostUsage | None:
        try:
            busy, total = _processor_times((self._proc / "stat").read_text())
            memory, used = _memory((self._proc / "meminfo").read_text())
        except (OSError, ValueError, LookupError):
            return None
        before, self._before = self._before, (busy, total)
        passed = total - before[1]
        return HostUsage((busy - before[0]) / passed if passed > 0 else 0.0, memory, used)


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

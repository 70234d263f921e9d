"""The exposition text under Triton's names, for dashboards and alerts that were made for it.

Written by hand: Triton's counters do not end in `_total`, which the client library would insist on. Model series are
those of what is loaded now, at 0 from then on. The gauges of the host come from /proc, those of GPUs from who knows
them; where nobody does they are left out.
Source: Triton's metrics documentation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Final, Literal, TypeAlias

from tensorgate.gateway.contract.backend import Gpu, ReadGpu
from tensorgate.gateway.engine.model import Model
from tensorgate.gateway.monitoring.gpu_metrics import gpus_of
from tensorgate.gateway.telemetry.histogram import label_text
from tensorgate.gateway.telemetry.statistics import REASONS, Counters

_PROC: Final = Path("/proc")
_US: Final = 1e6

_COUNTERS: Final[tuple[tuple[str, str, Callable[[Counters], float]], ...]] = (
    ("nv_inference_request_success", "Requests that succeeded.", lambda c: c.successes.count),
    ("nv_inference_count", "Rows of requests that succeeded.", lambda c: c.rows),
    ("nv_inference_exec_count", "Runs of the model.", lambda c: c.runs),
    (
        "nv_inference_request_duration_us",
        "Time of requests that succeeded, in microseconds.",
        lambda c: c.successes.seconds * _US,
    ),
    ("nv_inference_queue_duration_us", "Time that they waited for a run.", lambda c: c.queue * _US),
    ("nv_inference_compute_input_duration_us", "Time before the model.", lambda c: c.input * _US),
    ("nv_inference_compute_infer_duration_us", "Time in the model.", lambda c: c.infer * _US),
    ("nv_inference_compute_output_duration_us", "Time after the model.", lambda c: c.output * _US),
)
_CACHE: Final[tuple[tuple[str, str, Callable[[Counters], float]], ...]] = (
    ("nv_cache_num_hits_per_model", "Requests that the response cache answered.", lambda c: c.hits.count),
    ("nv_cache_num_misses_per_model", "Requests that it could not answer.", lambda c: c.misses.count),
    (
        "nv_cache_hit_duration_per_model",
        "Time to look up what it answered, in microseconds.",
        lambda c: c.hits.seconds * _US,
    ),
    (
        "nv_cache_miss_duration_per_model",
        "Time to look up and to insert what it could not, in microseconds.",
        lambda c: c.misses.seconds * _US,
    ),
)
_GPU: Final[tuple[tuple[str, Literal["counter", "gauge"], str, Callable[[Gpu], float | None]], ...]] = (
    ("nv_gpu_memory_total_bytes", "gauge", "Memory of the GPU.", lambda gpu: gpu.total),
    ("nv_gpu_memory_used_bytes", "gauge", "Memory of the GPU that is in use.", lambda gpu: gpu.used),
    ("nv_gpu_utilization", "gauge", "Share of the last moments in which it computed.", lambda gpu: gpu.utilization),
    ("nv_gpu_power_usage", "gauge", "Power that it takes, in watts.", lambda gpu: gpu.power_watts),
    ("nv_gpu_power_limit", "gauge", "Power that it may take, in watts.", lambda gpu: gpu.power_limit_watts),
    (
        "nv_energy_consumption",
        "counter",
        "Energy since its driver was loaded, in joules.",
        lambda gpu: gpu.energy_joules,
    ),
)
_Sample: TypeAlias = tuple[str, float]
"""(labels, value)"""


class TritonMetrics:
    """Renders them. It remembers the processor's times between two calls, so one process should have one."""

    def __init__(
        self, models: Callable[[], Iterable[Model]], read_gpu: ReadGpu = lambda device: None, proc: Path = _PROC
    ) -> None:
        self._models = models
        self._read_gpu = read_gpu
        self._proc = proc
        self._before = (0, 0)

    def render(self) -> bytes:
        """The text. Off the event loop: numbers are read while they change, each of them whole."""
        return "".join([*self._of_models(), *self._of_host(), *self._of_gpus()]).encode()

    def _of_models(self) -> Iterator[str]:
        models = [(label_text(model=model.name, version=str(model.version)), model) for model in self._models()]
        for name, text, read in _COUNTERS:
            yield _family(name, "counter", text, [(labels, float(int(read(m.counters)))) for labels, m in models])
        cached = [(labels, model) for labels, model in models if model.is_cached]
        for name, text, read in _CACHE if cached else ():
            yield _family(name, "counter", text, [(labels, float(int(read(m.counters)))) for labels, m in cached])
        failures = [
            (f'{labels},reason="{reason}"', float(model.counters.failed_by[reason]))
            for labels, model in models
            for reason in REASONS
        ]
        yield _family("nv_inference_request_failure", "counter", "Requests that failed, by reason.", failures)
        pending = [(labels, float(model.queued)) for labels, model in models]
        yield _family("nv_inference_pending_request_count", "gauge", "Requests that wait for a run.", pending)
        loads = [(labels, model.load_seconds) for labels, model in models]
        yield _family("nv_model_load_duration_secs", "gauge", "How long the model took to load, in seconds.", loads)

    def _of_host(self) -> Iterator[str]:
        try:
            busy, total = _processor_times((self._proc / "stat").read_text())
            memory, used = _memory((self._proc / "meminfo").read_text())
        except (OSError, ValueError, LookupError):
            return
        before, self._before = self._before, (busy, total)
        passed = total - before[1]
        share = (busy - before[0]) / passed if passed > 0 else 0.0
        yield _family(
            "nv_cpu_utilization", "gauge", "Busy share of all processors since the last scrape.", [("", share)]
        )
        yield _family("nv_cpu_memory_total_bytes", "gauge", "Memory of the machine.", [("", memory)])
        yield _family("nv_cpu_memory_used_bytes", "gauge", "Memory that is not available.", [("", used)])

    def _of_gpus(self) -> Iterator[str]:
        """Of the GPUs that models are on."""
        gpus = gpus_of(self._models(), self._read_gpu)
        for name, kind, text, read in _GPU:
            told = [(label_text(gpu_uuid=gpu.uuid), float(value)) for gpu in gpus if (value := read(gpu)) is not None]
            if told:
                yield _family(name, kind, text, told)


def _family(name: str, kind: Literal["counter", "gauge"], text: str, samples: Iterable[_Sample]) -> str:
    lines = [f"{name}{{{labels}}} {value!r}\n" if labels else f"{name} {value!r}\n" for labels, value in samples]
    return f"# HELP {name} {text}\n# TYPE {name} {kind}\n{''.join(lines)}"


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

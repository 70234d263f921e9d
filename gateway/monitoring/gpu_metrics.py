"""The GPUs that models are on, as Prometheus' families: what a GPU does not tell has no series."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from tensorgate.gateway.contract.metrics import Gpu, ReadGpu
from tensorgate.gateway.engine.model import Model

_LABELS: Final = ("device", "gpu_uuid", "gpu")
_GAUGES: Final[tuple[tuple[str, str, Callable[[Gpu], float | None]], ...]] = (
    ("tensorgate_gpu_memory_bytes", "Memory of the GPU.", lambda gpu: gpu.total),
    ("tensorgate_gpu_memory_used_bytes", "Memory of the GPU that is in use, by whomever.", lambda gpu: gpu.used),
    (
        "tensorgate_gpu_utilization_ratio",
        "Share of the last moments in which it computed.",
        lambda gpu: gpu.utilization,
    ),
    ("tensorgate_gpu_power_watts", "Power that it takes.", lambda gpu: gpu.power_watts),
    ("tensorgate_gpu_temperature_celsius", "Its temperature.", lambda gpu: gpu.temperature_celsius),
)


def gpus_of(models: Iterable[Model], read_gpu: ReadGpu) -> list[Gpu]:
    """The GPUs that models are on, each once."""
    devices = sorted({device for model in models for device in model.devices})
    return [gpu for device in devices if (gpu := read_gpu(device)) is not None]


def gpu_families(gpus: Iterable[Gpu]) -> Iterator[Metric]:
    """One family for each number that any of them tells."""
    gpus = list(gpus)
    for name, text, read in _GAUGES:
        family = GaugeMetricFamily(name, text, labels=_LABELS)
        _fill(family, gpus, read)
        if family.samples:
            yield family
    energy = CounterMetricFamily("tensorgate_gpu_energy_joules", "Energy since its driver was loaded.", labels=_LABELS)
    _fill(energy, gpus, lambda gpu: gpu.energy_joules)
    if energy.samples:
        yield energy


def _fill(
    family: GaugeMetricFamily | CounterMetricFamily, gpus: Iterable[Gpu], read: Callable[[Gpu], float | None]
) -> None:
    for gpu in gpus:
        if (value := read(gpu)) is not None:
            family.add_metric([gpu.device, gpu.uuid, gpu.name], value)

"""The GPUs that models are on, as Prometheus' families: what a GPU does not tell has no series."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from operator import attrgetter
from typing import Any, Final

from tensorgate.gateway.contract.metrics import Gpu, ReadGpu
from tensorgate.gateway.monitoring.families import Family, counter, gauge

_FAMILIES: Final[tuple[tuple[Callable[..., Family], str, str, Callable[[Gpu], Any]], ...]] = (
    (gauge, "memory_bytes", "Memory of the GPU.", attrgetter("total")),
    (gauge, "memory_used_bytes", "Memory of the GPU that is in use, by whomever.", attrgetter("used")),
    (gauge, "utilization_ratio", "Share of the last moments in which it computed.", attrgetter("utilization")),
    (gauge, "power_watts", "Power that it takes.", attrgetter("power_watts")),
    (gauge, "temperature_celsius", "Its temperature.", attrgetter("temperature_celsius")),
    (counter, "energy_joules", "Energy since its driver was loaded.", attrgetter("energy_joules")),
)


def gpus_of(devices: Iterable[str], read_gpu: ReadGpu) -> list[Gpu]:
    """The GPUs among the devices of models, each once."""
    return [gpu for device in sorted(set(devices)) if (gpu := read_gpu(device)) is not None]


def gpu_families(gpus: Iterable[Gpu]) -> Iterator[Family]:
    """One family for each number that any of them tells."""
    gpus = list(gpus)
    for make, name, text, read in _FAMILIES:
        numbers = [((gpu.device, gpu.uuid, gpu.name), number) for gpu in gpus if (number := read(gpu)) is not None]
        if numbers:
            yield make(f"tensorgate_gpu_{name}", text, "device gpu_uuid gpu", numbers)

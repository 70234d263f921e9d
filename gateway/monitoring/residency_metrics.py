"""What Prometheus is shown of models that are loaded on demand."""

from __future__ import annotations

from collections.abc import Iterable

from tensorgate.gateway.contract.metrics import ResidencyCounts
from tensorgate.gateway.monitoring.families import NO_EXEMPLARS, AnyFamily, HistogramFamily, counter, gauge


def residency_families(counts: ResidencyCounts) -> Iterable[AnyFamily]:
    """All of it."""
    yield gauge(
        "tensorgate_resident_models",
        "Models that are in memory because somebody asked for them, or that are pinned.",
        "",
        [((), counts.models)],
    )
    yield gauge("tensorgate_loading_models", "Models that are being loaded on demand.", "", [((), counts.loading)])
    yield gauge(
        "tensorgate_resident_bytes",
        "What those models hold, as measured when they were loaded.",
        "device",
        [((device,), nbytes) for device, nbytes in counts.held.items()],
    )
    yield gauge(
        "tensorgate_resident_limit_bytes",
        "What they may hold together: residency.max_resident_bytes.",
        "device",
        [((device,), most) for device, most in counts.bounds.items()],
    )
    yield counter(
        "tensorgate_demand_loads",
        "Models that were loaded on demand, by why: request, neighbour, schedule, pin, caller.",
        "cause",
        [((cause,), count) for cause, count in sorted(counts.loads.items())],
    )
    yield counter(
        "tensorgate_demand_evictions",
        "Models that have left memory, by why: memory, idle, caller.",
        "cause",
        [((cause,), count) for cause, count in sorted(counts.evictions.items())],
    )
    yield counter("tensorgate_demand_failures", "Loads on demand that failed.", "", [((), counts.failures)])
    yield counter(
        "tensorgate_demand_refusals",
        "Callers who were told to ask again, since the model was not there in time.",
        "",
        [((), counts.refusals)],
    )
    yield HistogramFamily(
        "tensorgate_demand_wait_seconds",
        "How long callers have waited for a model that had to be loaded.",
        (),
        [((), counts.waits, NO_EXEMPLARS)],
    )

"""What Prometheus is shown of models that are loaded on demand."""

from __future__ import annotations

from collections.abc import Iterable

from tensorgate.gateway.models.on_demand import OnDemand
from tensorgate.gateway.monitoring.families import NO_EXEMPLARS, AnyFamily, HistogramFamily, counter, gauge


def residency_families(models: OnDemand) -> Iterable[AnyFamily]:
    """All of it. In any thread: numbers of the event loop are read as they are."""
    ledger, counts = models.ledger, models.counts
    devices = sorted({*ledger.bounds, *(device for each in list(ledger.residents.values()) for device in each.holds)})
    yield gauge(
        "tensorgate_resident_models",
        "Models that are in memory because somebody asked for them, or that are pinned.",
        "",
        [((), len(ledger.residents))],
    )
    yield gauge("tensorgate_loading_models", "Models that are being loaded on demand.", "", [((), models.loading)])
    yield gauge(
        "tensorgate_resident_bytes",
        "What those models hold, as measured when they were loaded.",
        "device",
        [((device,), ledger.held(device)) for device in devices],
    )
    yield gauge(
        "tensorgate_resident_limit_bytes",
        "What they may hold together: residency.max_resident_bytes.",
        "device",
        [((device,), most) for device, most in ledger.bounds.items()],
    )
    yield counter(
        "tensorgate_demand_loads",
        "Models that were loaded on demand, by why: request, neighbour, schedule, pin, caller.",
        "cause",
        [((cause,), count) for cause, count in dict(counts.loads).items()],
    )
    yield counter(
        "tensorgate_demand_evictions",
        "Models that have left memory, by why: memory, idle, caller.",
        "cause",
        [((cause,), count) for cause, count in dict(counts.evictions).items()],
    )
    yield counter("tensorgate_demand_failures", "Loads on demand that failed.", "", [((), counts.failures)])
    yield counter(
        "tensorgate_demand_refusals",
        "Callers who were told to ask again, since the model was not there in time.",
        "",
        [((), counts.turned_away)],
    )
    yield HistogramFamily(
        "tensorgate_demand_wait_seconds",
        "How long callers have waited for a model that had to be loaded.",
        (),
        [((), counts.waits.distribution(), NO_EXEMPLARS)],
    )

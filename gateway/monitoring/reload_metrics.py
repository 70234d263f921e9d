"""Reloads of the configuration, as Prometheus' families."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from tensorgate.gateway.monitoring.families import AnyFamily, counter, gauge


def reload_families(counts: Mapping[str, int], succeeded_at: float, digest: str) -> Iterator[AnyFamily]:
    """`counts` are reloads by result, `succeeded_at` is in seconds since the epoch."""
    yield counter(
        "tensorgate_config_reloads",
        "Times the configuration was read anew, by what came of it.",
        "result",
        [((result,), count) for result, count in counts.items()],
    )
    yield gauge(
        "tensorgate_config_last_reload_success_timestamp_seconds",
        "When the configuration in force was last found to be that of the file.",
        "",
        [((), succeeded_at)],
    )
    yield gauge("tensorgate_config_info", "The SHA-256 of the configuration in force.", "hash", [((digest,), 1)])

"""What routes with a mirror count, as Prometheus' series."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from tensorgate.gateway.contract.metrics import RouteUsage
from tensorgate.gateway.monitoring.families import AnyFamily, counter, gauge, histogram


def shadow_families(routes: Iterable[RouteUsage]) -> Iterator[AnyFamily]:
    """The families of all routes that mirror; none if there are no such routes."""
    mirrored = [(route.name, route.mirror) for route in routes if route.mirror is not None]
    if not mirrored:
        return
    yield counter(
        "tensorgate_shadow_requests",
        "Mirrored requests, by what the comparison of both answers gave: equal, different, error (the shadow has "
        "failed), or dropped (not mirrored for lack of room).",
        "route result",
        [((name, result), count) for name, shadow in mirrored for result, count in shadow.results.items()],
    )
    yield histogram(
        "tensorgate_shadow_difference",
        "Largest relative difference between elements of an output, per request.",
        "route output",
        [((name, output), found) for name, shadow in mirrored for output, found in shadow.differences.items()],
    )
    yield counter(
        "tensorgate_shadow_beyond",
        "Elements of an output that differ by more than the tolerance.",
        "route output",
        [((name, output), count) for name, shadow in mirrored for output, count in shadow.beyond.items()],
    )
    yield histogram(
        "tensorgate_shadow_seconds",
        "Time until the answer to a mirrored request: the caller's (primary), and the shadow's.",
        "route side",
        [((name, side), found) for name, shadow in mirrored for side, found in shadow.seconds.items()],
    )
    yield gauge(
        "tensorgate_shadow_held_bytes",
        "Tensors of copies that are not compared yet.",
        "route",
        [((name,), shadow.held_bytes) for name, shadow in mirrored],
    )
    yield gauge(
        "tensorgate_shadow_running",
        "Copies of requests under way.",
        "route",
        [((name,), shadow.running) for name, shadow in mirrored],
    )

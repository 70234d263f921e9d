"""What routes with a mirror count, as Prometheus' series."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from tensorgate.gateway.routing.route import Route


def shadow_families(routes: Iterable[Route]) -> Iterator[Metric]:
    """The families of all routes that mirror; none if there are no such routes. Called in any thread."""
    mirrored = [(route.name, route.mirror) for route in routes if route.mirror is not None]
    if not mirrored:
        return
    requests = CounterMetricFamily(
        "tensorgate_shadow_requests",
        "Mirrored requests, by what the comparison of both answers gave: equal, different, error (the shadow has "
        "failed), or dropped (not mirrored for lack of room).",
        labels=["route", "result"],
    )
    differences = HistogramMetricFamily(
        "tensorgate_shadow_difference",
        "Largest relative difference between elements of an output, per request.",
        labels=["route", "output"],
    )
    beyond = CounterMetricFamily(
        "tensorgate_shadow_beyond",
        "Elements of an output that differ by more than the tolerance.",
        labels=["route", "output"],
    )
    seconds = HistogramMetricFamily(
        "tensorgate_shadow_seconds",
        "Time until the answer to a mirrored request: the caller's (primary), and the shadow's.",
        labels=["route", "side"],
    )
    held = GaugeMetricFamily(
        "tensorgate_shadow_held_bytes", "Tensors of copies that are not compared yet.", labels=["route"]
    )
    running = GaugeMetricFamily("tensorgate_shadow_running", "Copies of requests under way.", labels=["route"])
    for name, shadow in mirrored:
        for result, count in shadow.results.items():
            requests.add_metric([name, result], count)
        for output, histogram in list(shadow.differences.items()):
            histogram.add_to(differences, (name, output))
        for output, count in list(shadow.beyond.items()):
            beyond.add_metric([name, output], count)
        for side, histogram in shadow.seconds.items():
            histogram.add_to(seconds, (name, side))
        held.add_metric([name], shadow.held_bytes)
        running.add_metric([name], shadow.in_flight)
    yield from (requests, differences, beyond, seconds, held, running)

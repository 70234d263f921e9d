"""Prometheus' families, each made with its samples in one call. Labels are named in one text: "model version"."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import TypeAlias

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from tensorgate.gateway.contract.metrics import Distribution

Samples: TypeAlias = Iterable[tuple[Sequence[str], float]]
"""(values of the labels, number); the last labels may be left out"""


def counter(name: str, text: str, labels: str, samples: Samples) -> Metric:
    """A counter; the client library adds _total to its name."""
    return _filled(CounterMetricFamily(name, text, labels=labels.split()), samples)


def gauge(name: str, text: str, labels: str, samples: Samples) -> Metric:
    """A number that goes up and down."""
    return _filled(GaugeMetricFamily(name, text, labels=labels.split()), samples)


def histogram(name: str, text: str, labels: str, samples: Iterable[tuple[Sequence[str], Distribution]]) -> Metric:
    """A histogram, whose buckets Prometheus wants cumulative."""
    family = HistogramMetricFamily(name, text, labels=labels.split())
    for values, each in samples:
        bounds = (*map(str, each.bounds), "+Inf")
        family.add_metric(values, list(zip(bounds, map(float, accumulate(each.counts)), strict=True)), each.sum)
    return family


def _filled(family: CounterMetricFamily | GaugeMetricFamily, samples: Samples) -> Metric:
    for values, number in samples:
        family.add_metric(values, number)
    return family

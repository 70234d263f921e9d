"""Prometheus' families, each made with its samples in one call. Labels are named in one text: "model version"."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

from prometheus_client.core import Metric

from tensorgate.gateway.contract.metrics import Distribution


class Exemplar(NamedTuple):
    """One observation of a histogram, of a call that was traced; `at` is in seconds since 1970."""

    trace_id: str
    value: float
    at: float


Exemplars: TypeAlias = Mapping[int, Exemplar]
"""By the number of the bucket."""


@dataclass(frozen=True, slots=True)
class Family:
    """A metric with all of its series: (values of the labels, number); the last labels may be left out."""

    name: str
    text: str
    kind: Literal["counter", "gauge"]
    labels: tuple[str, ...]
    samples: Sequence[tuple[Sequence[str], float]]


@dataclass(frozen=True, slots=True)
class HistogramFamily:
    """A histogram with all of its series."""

    name: str
    text: str
    labels: tuple[str, ...]
    samples: Sequence[tuple[Sequence[str], Distribution, Exemplars]]


AnyFamily: TypeAlias = Family | HistogramFamily | Metric
"""Models and others that count by themselves bring families of the client library."""
NO_EXEMPLARS: Exemplars = {}


def counter(name: str, text: str, labels: str, samples: Iterable[tuple[Sequence[str], float]]) -> Family:
    """A counter; its series have _total behind its name."""
    return Family(name, text, "counter", tuple(labels.split()), [*samples])


def gauge(name: str, text: str, labels: str, samples: Iterable[tuple[Sequence[str], float]]) -> Family:
    """A number that goes up and down."""
    return Family(name, text, "gauge", tuple(labels.split()), [*samples])


def histogram(
    name: str,
    text: str,
    labels: str,
    samples: Iterable[tuple[Sequence[str], Distribution]],
    exemplars: Mapping[Sequence[str], Exemplars] = {},
) -> HistogramFamily:
    """A histogram; `exemplars` are those of the series with these labels."""
    found = [(values, each, exemplars.get(values, NO_EXEMPLARS)) for values, each in samples]
    return HistogramFamily(name, text, tuple(labels.split()), found)

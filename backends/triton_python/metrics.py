"""pb_utils.MetricFamily and Metric: what models count, and how Prometheus reads it.

A family belongs to the process and not to a model: two models that name the same one share it, if they mean the same
kind of thing. `collect` gives all of them to the gateway's /metrics.
"""

from __future__ import annotations

import re
import threading
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar, Final

from prometheus_client.core import Metric as Exposed

from tensorgate.backends.triton_python.errors import TritonModelException

_NAME: Final = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_LABEL: Final = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")
_OURS: Final = ("tensorgate_", "process_", "python_info")
_COUNTER, _GAUGE, _HISTOGRAM = 0, 1, 2
_TYPES: Final = {_COUNTER: "counter", _GAUGE: "gauge", _HISTOGRAM: "histogram"}

_lock: Final = threading.Lock()
_families: Final[dict[str, MetricFamily]] = {}
"""The first of each name, which has the metrics of all."""


class Metric:
    """One number, or for a histogram one distribution; may be used from any thread."""

    def __init__(self, kind: int, labels: Mapping[str, str], buckets: Sequence[float]) -> None:
        self._kind = kind
        self._labels = dict(labels)
        self._bounds = tuple(float(bound) for bound in buckets)
        self._counts = [0] * (len(self._bounds) + 1)
        self._value = 0.0
        self._lock = threading.Lock()

    def increment(self, value: float) -> None:
        """Counters take no negative values."""
        self._only(_COUNTER, _GAUGE, verb="increment")
        if self._kind == _COUNTER and value < 0:
            raise TritonModelException("a counter cannot be incremented by a negative value")
        with self._lock:
            self._value += value

    def set(self, value: float) -> None:
        self._only(_GAUGE, verb="set")
        self._value = float(value)

    def observe(self, value: float) -> None:
        self._only(_HISTOGRAM, verb="observe")
        with self._lock:
            self._counts[bisect_left(self._bounds, value)] += 1
            self._value += value

    def value(self) -> float:
        self._only(_COUNTER, _GAUGE, verb="value")
        return self._value

    def _only(self, *kinds: int, verb: str) -> None:
        if self._kind not in kinds:
            raise TritonModelException(f"a {_TYPES[self._kind]} has no {verb}")

    def expose(self, name: str, family: Exposed) -> None:
        """Its samples, under the family's name as the model wrote it."""
        if self._kind != _HISTOGRAM:
            family.add_sample(name, self._labels, self._value)
            return
        with self._lock:
            counts, total = list(self._counts), self._value
        below = 0
        for bound, count in zip((*map(str, self._bounds), "+Inf"), counts, strict=True):
            below += count
            family.add_sample(f"{name}_bucket", {**self._labels, "le": bound}, below)
        family.add_sample(f"{name}_count", self._labels, below)
        family.add_sample(f"{name}_sum", self._labels, total)


class MetricFamily:
    """A name, what it means, and of what kind its metrics are."""

    COUNTER: ClassVar[int] = _COUNTER
    GAUGE: ClassVar[int] = _GAUGE
    HISTOGRAM: ClassVar[int] = _HISTOGRAM

    def __init__(self, name: str, description: str, kind: int) -> None:
        if kind not in _TYPES:
            raise TritonModelException(f"{kind!r} is no kind of MetricFamily")
        if not _NAME.fullmatch(name) or name.startswith(_OURS):
            raise TritonModelException(f"'{name}' cannot be the name of a model's metric")
        self._description = description
        self._kind = kind
        self._metrics: dict[tuple[tuple[str, str], ...], Metric] = {}
        with _lock:
            first = _families.setdefault(name, self)
        if first._kind != kind:
            raise TritonModelException(f"metric '{name}' is a {_TYPES[first._kind]} already")
        self._metrics = first._metrics

    def Metric(  # noqa: N802  Triton's name
        self, labels: Mapping[str, str] | None = None, buckets: Sequence[float] | None = None
    ) -> Metric:
        """The metric with these labels; asked for twice, it is the same one. Histograms want `buckets`, ascending."""
        own = {key: str(value) for key, value in (labels or {}).items()}
        for key in own:
            if not _LABEL.fullmatch(key) or key == "le":
                raise TritonModelException(f"'{key}' cannot be a label")
        bounds = list(buckets or ())
        if (self._kind == _HISTOGRAM) != (buckets is not None) or bounds != sorted(set(bounds)):
            raise TritonModelException("histograms, and they alone, have buckets in ascending order")
        key_of = tuple(sorted(own.items()))
        with _lock:
            return self._metrics.setdefault(key_of, Metric(self._kind, own, bounds))


def collect() -> Iterator[Exposed]:
    """Every family, for Prometheus. A counter's name stays as the model wrote it, which Prometheus calls untyped
    unless it ends in _total.
    """
    with _lock:
        found = [(name, first, list(first._metrics.values())) for name, first in _families.items()]
    for given, first, metrics in found:
        name, kind = given, _TYPES[first._kind]
        if kind == "counter":
            name, kind = (name[:-6], kind) if name.endswith("_total") else (name, "unknown")
        family = Exposed(name, first._description, kind)
        for metric in metrics:
            metric.expose(given, family)
        yield family

"""pb_utils.MetricFamily and Metric: what models count, and how Prometheus reads it.

A family belongs to the process and not to a model: two models that name the same one share it, if they mean the same
kind of thing. It ends with the last model that has it, as does a series of it, so that a model that is loaded anew
begins with zeros. `collect` gives all of them to the gateway's /metrics.
"""

from __future__ import annotations

import re
import threading
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar, Final
from weakref import WeakValueDictionary

from prometheus_client.core import Metric as Exposed

from tensorgate.backends.triton_python.errors import TritonModelException

_NAME: Final = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_LABEL: Final = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")
_OURS: Final = ("tensorgate_", "process_", "python_info")
_COUNTER, _GAUGE, _HISTOGRAM = 0, 1, 2
_TYPES: Final = {_COUNTER: "counter", _GAUGE: "gauge", _HISTOGRAM: "histogram"}

_lock: Final = threading.Lock()


class _Numbers:
    """One series: a number, or for a histogram a distribution. There as long as a Metric of it is."""

    def __init__(self, kind: int, labels: dict[str, str], bounds: Sequence[float]) -> None:
        self.kind = kind
        self.labels = labels
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(self.bounds) + 1)
        self.value = 0.0
        self.lock = threading.Lock()

    def expose(self, name: str, family: Exposed) -> None:
        """Its samples, under the family's name as the model wrote it."""
        if self.kind != _HISTOGRAM:
            family.add_sample(name, self.labels, self.value)
            return
        with self.lock:
            counts, total = list(self.counts), self.value
        below = 0
        for bound, count in zip(
            (*(repr(each).removesuffix(".0") for each in self.bounds), "+Inf"), counts, strict=True
        ):
            below += count
            family.add_sample(f"{name}_bucket", {**self.labels, "le": bound}, below)
        family.add_sample(f"{name}_count", self.labels, below)
        family.add_sample(f"{name}_sum", self.labels, total)


class _Registered:
    """What the families of one name share. There as long as one of them, or a Metric, is."""

    def __init__(self, description: str, kind: int) -> None:
        self.description = description
        self.kind = kind
        self.series: WeakValueDictionary[tuple[tuple[str, str], ...], _Numbers] = WeakValueDictionary()


_families: Final[WeakValueDictionary[str, _Registered]] = WeakValueDictionary()


class Metric:
    """One number, or for a histogram one distribution; may be used from any thread. It keeps its family."""

    def __init__(self, family: _Registered, numbers: _Numbers) -> None:
        self._family = family
        self._numbers = numbers

    def increment(self, value: float) -> None:
        """Counters take no negative values."""
        numbers = self._of(_COUNTER, _GAUGE, verb="increment")
        if numbers.kind == _COUNTER and value < 0:
            raise TritonModelException("a counter cannot be incremented by a negative value")
        with numbers.lock:
            numbers.value += value

    def set(self, value: float) -> None:
        self._of(_GAUGE, verb="set").value = float(value)

    def observe(self, value: float) -> None:
        numbers = self._of(_HISTOGRAM, verb="observe")
        with numbers.lock:
            numbers.counts[bisect_left(numbers.bounds, value)] += 1
            numbers.value += value

    def value(self) -> float:
        return self._of(_COUNTER, _GAUGE, verb="value").value

    def _of(self, *kinds: int, verb: str) -> _Numbers:
        if self._numbers.kind not in kinds:
            raise TritonModelException(f"a {_TYPES[self._numbers.kind]} has no {verb}")
        return self._numbers


class MetricFamily:
    """A name, what it means, and of what kind its metrics are. It is there as long as a model has it or a metric."""

    COUNTER: ClassVar[int] = _COUNTER
    GAUGE: ClassVar[int] = _GAUGE
    HISTOGRAM: ClassVar[int] = _HISTOGRAM

    def __init__(self, name: str, description: str, kind: int) -> None:
        if kind not in _TYPES:
            raise TritonModelException(f"{kind!r} is no kind of MetricFamily")
        if not _NAME.fullmatch(name) or name.startswith(_OURS):
            raise TritonModelException(f"'{name}' cannot be the name of a model's metric")
        with _lock:
            first = _families.get(name)
            if first is None:
                first = _families[name] = _Registered(description, kind)
        if first.kind != kind:
            raise TritonModelException(f"metric '{name}' is a {_TYPES[first.kind]} already")
        self._registered = first

    def Metric(  # noqa: N802  Triton's name
        self, labels: Mapping[str, str] | None = None, buckets: Sequence[float] | None = None
    ) -> Metric:
        """The metric with these labels; asked for twice, it is the same one. Histograms want `buckets`, ascending."""
        own = {key: str(value) for key, value in (labels or {}).items()}
        for key in own:
            if not _LABEL.fullmatch(key) or key == "le":
                raise TritonModelException(f"'{key}' cannot be a label")
        kind = self._registered.kind
        bounds = [float(bound) for bound in buckets or ()]
        if (kind == _HISTOGRAM) != (buckets is not None) or bounds != sorted(set(bounds)):
            raise TritonModelException("histograms, and they alone, have buckets in ascending order")
        key_of = tuple(sorted(own.items()))
        with _lock:  # two threads may ask for the same
            numbers = self._registered.series.get(key_of)
            if numbers is None:
                numbers = self._registered.series[key_of] = _Numbers(kind, own, bounds)
        return Metric(self._registered, numbers)


def numbers_of(name: str) -> list[tuple[Mapping[str, str], float]]:
    """The series of a family, of counters or gauges: labels and value. Empty where there is none."""
    with _lock:
        family = _families.get(name)
        series = [] if family is None else list(family.series.values())
    return [(numbers.labels, numbers.value) for numbers in series if numbers.kind != _HISTOGRAM]


def collect() -> Iterator[Exposed]:
    """Every family, for Prometheus. A counter's name stays as the model wrote it, which Prometheus calls untyped
    unless it ends in _total.
    """
    with _lock:
        found = [(name, first, list(first.series.values())) for name, first in _families.items()]
    for given, first, series in found:
        name, kind = given, _TYPES[first.kind]
        if kind == "counter":
            name, kind = (name[:-6], kind) if name.endswith("_total") else (name, "unknown")
        family = Exposed(name, first.description, kind)
        for numbers in series:
            numbers.expose(given, family)
        yield family

"""Families -> the text that Prometheus reads: its own format 0.0.4, or OpenMetrics where that is asked for.

Hundreds of models have tens of thousands of series. They are written some thousand lines at a time, and the interpreter
is given away in between: whoever answers calls meanwhile does not wait for the rest.

Source: Prometheus, exposition formats; OpenMetrics 1.0.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import accumulate
from typing import Any, Final

from prometheus_client.core import Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics
from prometheus_client.utils import floatToGoString

from tensorgate.gateway.monitoring.families import AnyFamily, Exemplar, Family, HistogramFamily

PLAIN: Final = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS: Final = "application/openmetrics-text; version=1.0.0; charset=utf-8"
_LINES_AT_ONCE: Final = 1024
_PAUSE_S: Final = 50e-6
"""A thread that sleeps for no time at all takes the interpreter back before anybody else has it."""
_END: Final = "# EOF\n"
_COUNTERS: Final = re.compile(r"^(# TYPE \S+ )counter$", re.MULTILINE)


def wants_openmetrics(accept: str) -> bool:
    """Whether a scraper prefers OpenMetrics, as its header Accept says. Source: RFC 9110, 12.5.1."""
    weights = {"application/openmetrics-text": 0.0, "text/plain": 0.0}
    for item in accept.lower().split(","):
        kind, *parameters = [part.strip() for part in item.split(";")]
        if kind in weights:
            weights[kind] = max(weights[kind], _weight(parameters))
    openmetrics, plain = weights.values()
    return openmetrics > 0 and openmetrics >= plain


def _weight(parameters: Iterable[str]) -> float:
    for parameter in parameters:
        if parameter.startswith("q="):
            try:
                return float(parameter[2:])
            except ValueError:
                return 0.0
    return 1.0


def exposition(families: Iterable[AnyFamily], more: str = "", *, openmetrics: bool = False) -> bytes:
    """All families, then `more`, which is text of the format 0.0.4. Takes milliseconds: not for the event loop."""
    pieces: list[str] = []
    foreign: list[Metric] = []
    lines = 0
    for family in families:
        if isinstance(family, Metric):
            foreign.append(family)
            continue
        for piece, count in _written(family, openmetrics=openmetrics):
            pieces.append(piece)
            lines += count
            if lines >= _LINES_AT_ONCE:
                lines = 0
                time.sleep(_PAUSE_S)
    pieces.append(_foreign(foreign, openmetrics=openmetrics))
    if openmetrics:  # where counters have to end with _total, which those of other servers do not
        more = _COUNTERS.sub(r"\1unknown", more) + _END
    pieces.append(more)
    return "".join(pieces).encode()


class _Foreign:
    """What the client library takes for a registry."""

    def __init__(self, families: Sequence[Metric]) -> None:
        self._families = families

    def collect(self) -> Sequence[Metric]:
        return self._families


def _foreign(families: Sequence[Metric], *, openmetrics: bool) -> str:
    registry: Any = _Foreign(families)
    text = (generate_openmetrics if openmetrics else generate_latest)(registry).decode()
    return text.removesuffix(_END)


def _written(family: Family | HistogramFamily, *, openmetrics: bool) -> Iterator[tuple[str, int]]:
    """Pieces of text, and how many lines each has."""
    kind = "histogram" if isinstance(family, HistogramFamily) else family.kind
    suffix = "_total" if kind == "counter" else ""
    name = family.name if openmetrics else family.name + suffix
    text = family.text.replace("\\", r"\\").replace("\n", r"\n")
    yield f"# HELP {name} {text}\n# TYPE {name} {kind}\n", 2
    order = sorted(range(len(family.labels)), key=family.labels.__getitem__)
    if isinstance(family, Family):
        name = family.name + suffix
        for values, number in family.samples:
            yield f"{name}{_braced(_labels(family.labels, order, values))} {_number(number)}\n", 1
        return
    name = family.name
    for values, each, exemplars in family.samples:
        labels = _labels(family.labels, order, values)
        bounds = _bounds(each.bounds)
        begin = f'{name}_bucket{{{labels}{"," if labels else ""}le="'
        counts = [*accumulate(each.counts)]
        if openmetrics and exemplars:
            ends = [_exemplar(exemplars.get(at)) for at in range(len(counts))]
            lines = [f'{begin}{b}"}} {n}.0{end}\n' for b, n, end in zip(bounds, counts, ends, strict=True)]
        else:
            lines = [f'{begin}{b}"}} {n}.0\n' for b, n in zip(bounds, counts, strict=True)]
        braced = _braced(labels)
        lines.append(f"{name}_count{braced} {counts[-1]}.0\n{name}_sum{braced} {_number(each.sum)}\n")
        yield "".join(lines), len(counts) + 2


def _exemplar(exemplar: Exemplar | None) -> str:
    if exemplar is None:
        return ""
    return f' # {{trace_id="{_escaped(exemplar.trace_id)}"}} {_number(exemplar.value)} {exemplar.at:.3f}'


# Never stale: made of nothing but its arguments.
@lru_cache(maxsize=64)
def _bounds(bounds: tuple[float, ...]) -> tuple[str, ...]:
    return (*map(floatToGoString, bounds), "+Inf")


def _labels(names: Sequence[str], order: Sequence[int], values: Sequence[str]) -> str:
    """Without braces, by the order of their names; what a series leaves out are the last ones."""
    return ",".join([f'{names[at]}="{_escaped(values[at])}"' for at in order if at < len(values)])


def _braced(labels: str) -> str:
    return f"{{{labels}}}" if labels else ""


def _escaped(value: str) -> str:
    if "\\" in value or '"' in value or "\n" in value:
        return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
    return value


def _number(value: float) -> str:
    return f"{value}.0" if type(value) is int else str(floatToGoString(value))  # type: ignore[no-untyped-call]

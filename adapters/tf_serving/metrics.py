"""Metrics under TensorFlow Serving's names, for dashboards and alerts that were made for it.

Written by hand: the names begin with a colon, which the client library would not have. A call is counted once, when it
is over; only those that succeeded are timed. Source: TensorFlow Serving's monitoring, and what its REST server writes
there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate, chain
from typing import Annotated, Final

from pydantic import Field

from tensorgate.gateway.contract.call import Reply
from tensorgate.gateway.contract.metrics import CallCounts, CallMetrics, DialectMetrics, Distribution, label_text
from tensorgate.gateway.contract.options import Options

LATENCY_US: Final = tuple(10 * 1.8**power for power in range(33))
EXAMPLES: Final = tuple(2.0**power for power in range(15))

_RUNTIME: Final = "TF1"
_PREFIX: Final = ":tensorflow:serving:"
_TYPE: Final = {"Content-Type": "text/plain"}
_APIS: Final = {"infer": "predict", "classify": "classify", "regress": "regress"}
"""The label of an endpoint's metrics -> the verb that its address ends in"""
_WITH_EXAMPLES: Final = frozenset({"classify", "regress"})


class TfServingMetricsOptions(Options):
    """What the section `metrics` may say of them."""

    tf_serving_path: Annotated[str, Field(pattern=r"^/[^?#\s]*$")] | None = Field(
        default="/monitoring/prometheus/metrics",
        description="Where the series of TensorFlow Serving's dashboards are, :tensorflow:serving:request_count and so "
        "on; null: nowhere.",
    )


def make_metrics(options: TfServingMetricsOptions) -> DialectMetrics | None:
    path = options.tf_serving_path
    if path is None:
        return None

    def answer(target: str, counts: Sequence[CallCounts]) -> Reply:
        """For any method, and for no query."""
        if target != path:
            text = f"Unexpected path: {target}. Should be {path}"
            return Reply(text.encode("utf-8", "replace"), 400, _TYPE)
        return Reply(render(counts).encode(), headers=_TYPE)

    return DialectMetrics(calls=CallMetrics(path, answer, LATENCY_US, EXAMPLES, _WITH_EXAMPLES))


def render(counts: Sequence[CallCounts]) -> str:
    """The exposition text."""
    by_status: dict[str, int] = {}
    examples: dict[str, Distribution] = {}
    latencies: dict[str, Distribution] = {}
    runtimes: dict[str, Distribution] = {}
    for calls in counts:
        model, api = calls.model, _APIS.get(calls.method, "")
        if calls.transport == "http":
            _add(latencies, label_text(model_name=model, API=api, entrypoint="REST"), calls.latency_us)
        elif api:
            _add(latencies, label_text(model_name=model, API=api.title(), entrypoint="GRPC"), calls.latency_us)
        else:
            continue  # the original counts no other methods of gRPC
        for code, count in calls.codes.items():
            labels = label_text(model_name=model, status=code.name)
            by_status[labels] = by_status.get(labels, 0) + count
        _add(runtimes, label_text(model_name=model, API=api.title(), runtime=_RUNTIME), calls.runtime_us)
        _add(examples, label_text(model=model), calls.rows)
    totals = {labels: int(rows.sum) for labels, rows in examples.items()}
    families = (
        _counters("request_count", by_status),
        _histograms("request_latency", latencies),
        _histograms("runtime_latency", runtimes),
        _histograms("request_example_counts", examples),
        _counters("request_example_count_total", totals),
        _counters("request_log_count", {}),  # no requests are logged here
    )
    return "".join(chain(*families))


def _add(series: dict[str, Distribution], labels: str, more: Distribution) -> None:
    """Add to those with the same labels. What has observed nothing is no series yet."""
    if not any(more.counts):
        return
    if labels in series:
        had = series[labels]
        counts = tuple([one + other for one, other in zip(had.counts, more.counts, strict=True)])
        more = Distribution(had.bounds, counts, had.sum + more.sum)
    series[labels] = more


def _counters(name: str, series: Mapping[str, int]) -> Iterator[str]:
    yield f"# TYPE {_PREFIX}{name} counter\n"
    for labels, count in series.items():
        yield f"{_PREFIX}{name}{{{labels}}} {count}\n"


def _histograms(name: str, series: Mapping[str, Distribution]) -> Iterator[str]:
    yield f"# TYPE {_PREFIX}{name} histogram\n"
    for labels, histogram in series.items():
        bounds = (*(f"{bound:g}" for bound in histogram.bounds), "+Inf")
        for bound, count in zip(bounds, accumulate(histogram.counts), strict=True):
            yield f'{_PREFIX}{name}_bucket{{{labels},le="{bound}"}} {count}\n'
        total = sum(histogram.counts)
        yield f"{_PREFIX}{name}_sum{{{labels}}} {histogram.sum!r}\n{_PREFIX}{name}_count{{{labels}}} {total}\n"

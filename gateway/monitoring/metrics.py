"""Every Prometheus instrument. Other rooms know only `SchedulerMetrics` and `MetricsCollector`.

The request path only notes numbers, on the event loop: a labelled look-up in the client library would cost twenty times
as much. They are sorted into histograms once a second, and the library renders those when Prometheus asks.
Label values are names of the configuration and of our own code, never a caller's text: a request that named an unknown
model is counted under model="".
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

from prometheus_client import CollectorRegistry, PlatformCollector, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from tensorgate.gateway.contract.errors import Code, GatewayError
from tensorgate.gateway.contract.tensor import NOTHING
from tensorgate.gateway.engine.model import Model
from tensorgate.gateway.engine.response_cache import ResponseCache
from tensorgate.gateway.engine.scheduler_metrics import SchedulerMetrics
from tensorgate.gateway.monitoring.call_counters import CallCounters
from tensorgate.gateway.monitoring.shadow_metrics import shadow_families
from tensorgate.gateway.routing.route import Route
from tensorgate.gateway.telemetry.histogram import Gathered, Histogram
from tensorgate.gateway.telemetry.rejection_reasons import REFUSALS, refusal_of
from tensorgate.gateway.telemetry.statistics import Counters
from tensorgate.gateway.telemetry.tracing import RequestTracing

SECONDS: Final = (
    *(25e-6, 50e-6, 100e-6, 250e-6, 500e-6),
    *(1e-3, 2.5e-3, 5e-3, 10e-3, 25e-3, 50e-3, 0.1, 0.25, 0.5),
    *(1.0, 2.5, 5.0, 10.0),
)
ROWS: Final = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0)
STAGES: Final = ("decode", "queue", "preprocess", "infer", "postprocess", "encode")

MAX_RECENT: Final = 4096

ModelKey = tuple[str, str]
"""(model, version); ("", "") where a request reached no model"""
RequestKey = tuple[str, str, str, str, str]
"""(dialect, transport, model, version, method)"""
CallsKey = tuple[str, str, str, int | str, str]
"""A RequestKey whose version may be a number"""


Tell = Callable[[Any, Any], None]
"""Takes arrays: how many seconds calls took, and for how many of these their model ran"""


class Stages:
    """Time in each stage of one model version's requests."""

    __slots__ = ("_observe", "by_stage")

    def __init__(self) -> None:
        self.by_stage = {stage: Gathered(SECONDS) for stage in STAGES}
        self._observe = {stage: gathered.observe for stage, gathered in self.by_stage.items()}

    def observe(self, stage: str, seconds: float) -> None:
        self._observe[stage](seconds)

    def settle(self) -> None:
        """Sort what was observed into histograms."""
        for gathered in self.by_stage.values():
            gathered.settle()


class CallSeries:
    """The calls of one RequestKey. `took` counts the seconds of a call that succeeded, `ran` those of its model,
    `failed` a call that did not succeed; `decoded` and `encoded` count the seconds of these stages. All are for the
    event loop, and all but `failed` only append a number. `tell` takes the same, many at a time.
    """

    __slots__ = ("_failed", "_failures", "_ran", "_recent", "_took", "decoded", "encoded", "ran", "tell", "took")

    def __init__(self, stages: Stages, tell: Tell | None = None) -> None:
        self._took = Gathered(SECONDS)
        self._ran = Gathered(())
        self.tell = tell
        self.ran = _ignored if tell is None else self._ran.observe
        self._failed = Histogram(SECONDS)
        self._failures: dict[Code, int] = {}
        self._recent: deque[float] = deque(maxlen=MAX_RECENT)
        self.took = self._took.observe
        self.decoded = stages.by_stage["decode"].observe
        self.encoded = stages.by_stage["encode"].observe

    def failed(self, code: Code, seconds: float) -> None:
        self._failed.observe(seconds)
        self._failures[code] = self._failures.get(code, 0) + 1
        self._recent.append(seconds)

    def settle(self) -> None:
        """Sort what was observed into histograms, and tell `tell`."""
        seconds = self._took.settle()
        self._recent.extend(seconds[-MAX_RECENT:].tolist())
        if self.tell is not None:
            self.tell(seconds, self._ran.settle())

    def seconds(self) -> Histogram:
        """The seconds of all of them."""
        self.settle()
        both = Histogram(SECONDS)
        both.add(self._took.histogram)
        both.add(self._failed)
        return both

    def codes(self) -> dict[Code, int]:
        """Status code -> calls that ended with it."""
        self.settle()
        well = sum(self._took.histogram.counts)
        return {Code.OK: well, **self._failures} if well else dict(self._failures)

    def recent(self) -> list[float]:
        """The seconds of calls that ended since the last reading, of the last MAX_RECENT."""
        self.settle()
        return [self._recent.popleft() for _ in range(len(self._recent))]


_ignored: Final = deque[float](maxlen=0).append


class CallSeriesTable(dict[CallsKey, CallSeries]):
    """Series by key. A known key costs one dict lookup: the version may be a number, so nobody makes a text of it."""

    def __init__(self, make: Callable[[RequestKey], CallSeries]) -> None:
        self._make = make

    def __missing__(self, key: CallsKey) -> CallSeries:
        dialect, transport, model, version, method = key
        calls = self[key] = self._make((dialect, transport, model, str(version), method))
        return calls


class MetricsCollector(Collector):
    """All counters of the process. `models` tells what is loaded now, for the gauges that are read when asked.

    `tracing` says whose requests leave a trace; `more` gives what models count themselves, `end` the text that dialects
    add. `call_counters` count the calls of a dialect once more, by its name. `calls` finds those of a kind. `cache` is
    the response cache, `routes` are those that lead to models; `restarts` is how often this process was replaced, by
    reason, where somebody watches.
    """

    def __init__(
        self,
        models: Callable[[], Iterable[Model]],
        tracing: RequestTracing | None = None,
        more: Iterable[Callable[[], Iterable[Metric]]] = (),
        call_counters: Mapping[str, CallCounters] = NOTHING,
        cache: ResponseCache | None = None,
        routes: Callable[[], Iterable[Route]] = tuple,
        restarts: Mapping[str, int] = NOTHING,
        end: Callable[[], str] = str,
    ) -> None:
        self.call_counters = call_counters
        self.calls = CallSeriesTable(self._calls)
        self._gone = 0
        self._models = models
        self._tracing = tracing or RequestTracing()
        self._more = tuple(more)
        self._cache = cache or ResponseCache()
        self._routes = routes
        self._restarts = restarts
        self._end = end
        self._requests: dict[RequestKey, CallSeries] = {}
        self._refused = dict.fromkeys(REFUSALS, 0)
        self._stages: dict[ModelKey, Stages] = {}
        self._counters: dict[ModelKey, Counters] = {}
        self._batches: dict[ModelKey, Gathered] = {}
        self._registry = CollectorRegistry()
        self._registry.register(self)
        ProcessCollector(registry=self._registry)
        PlatformCollector(registry=self._registry)

    def request(self, key: RequestKey, code: Code, seconds: float) -> None:
        """Count one call that is over."""
        calls = self.calls[key]
        if code:
            calls.failed(code, seconds)
        else:
            calls.took(seconds)

    def _calls(self, key: RequestKey) -> CallSeries:
        calls = self._requests.get(key)
        if calls is None:
            dialect, transport, model, version, method = key
            counter = self.call_counters.get(dialect) if model else None
            tell = None if counter is None else counter.teller(model, method, transport)
            stages = self.stages(model, version) if model else Stages()  # what reached no model has none to be shown
            calls = self._requests[key] = CallSeries(stages, tell)
        return calls

    @property
    def inferences(self) -> int:
        """How many calls have reached a model, ever."""
        return self._gone + sum(sum(calls.codes().values()) for key, calls in self._requests.items() if key[2])

    def recent(self) -> Iterator[tuple[RequestKey, Mapping[Code, int], list[float]]]:
        """Of each kind of calls: how many ended with which code so far, and the times of those that
        ended since this was last asked, which are then forgotten.
        """
        self.settle()
        for key, calls in self._requests.items():
            yield key, calls.codes(), calls.recent()

    def batches(self) -> Mapping[ModelKey, Histogram]:
        """Rows of the batches that ran, by model and version. On the loop."""
        for counters in self._counters.values():
            counters.settle()
        return {key: gathered.histogram for key, gathered in self._batches.items()}

    def stages(self, model: str, version: str) -> Stages:
        """The stage times of one model version, under the public name that the caller used."""
        key = (model, version)
        stages = self._stages.get(key)
        if stages is None:
            stages = self._stages[key] = Stages()
        return stages

    def meter(self, model: str, version: int) -> SchedulerMetrics:
        """What the scheduler of a version that is being loaded reports to. Series exist from here on, at 0."""
        batches = self._batches.setdefault((model, str(version)), Gathered(ROWS))
        stages = self.stages(model, str(version))
        counters = self._counters[model, str(version)] = Counters()

        def ran_alone(rows: int, count: int) -> None:
            stages.by_stage["queue"].observe_often(0.0, count)
            batches.observe_often(rows, count)

        counters.settled = ran_alone
        return SchedulerMetrics(
            stages.observe, batches.observe, counters, self._tracing.tracer(model), stages.by_stage["infer"].observe
        )

    def forget(self, model: str, version: int) -> None:
        """A version was unloaded: its series end. They start at 0 should it come back, as after a restart."""
        key = (model, str(version))
        self._stages.pop(key, None)
        self._batches.pop(key, None)
        self._counters.pop(key, None)
        for each in [each for each in self._requests if each[2:4] == key]:
            self._gone += sum(self._requests.pop(each).codes().values())
        self.calls.clear()
        if not any(name == model for name, _ in self._batches):
            for counter in self.call_counters.values():
                counter.forget(model)

    def settle(self) -> None:
        """Sort what was noted of calls, on the loop: once a second, so that it does not grow, and before `render`."""
        noted: list[Gathered | Stages | CallSeries | CallCounters | Counters] = [
            *self._batches.values(),
            *self._stages.values(),
        ]
        for each in (*noted, *self._counters.values(), *self._requests.values(), *self.call_counters.values()):
            each.settle()

    def refused(self, error: GatewayError, *, draining: bool) -> None:
        """A call ends with this error: count it, if it is one with which callers are turned away."""
        reason = refusal_of(error, draining=draining)
        if reason is not None:
            self._refused[reason] += 1

    def render(self) -> bytes:
        """The exposition text, Prometheus 0.0.4. Takes milliseconds: call it off the event loop, after `settle`."""
        return generate_latest(self._registry) + self._end().encode()

    def collect(self) -> Iterator[Metric]:
        yield from self._collect_requests()
        yield from self._collect_models()
        yield from self._collect_cache()
        yield from self._collect_traffic()
        yield from self._collect_routes()
        yield from shadow_families(self._routes())
        if self._restarts:
            restarts = CounterMetricFamily(
                "tensorgate_worker_restarts", "How often the process had to be replaced, and why.", labels=["reason"]
            )
            for reason, count in self._restarts.items():
                restarts.add_metric([reason], count)
            yield restarts
        for collect in self._more:
            yield from collect()

    def _collect_requests(self) -> Iterator[Metric]:
        labels = ["dialect", "transport", "model", "version", "method"]
        counted = CounterMetricFamily(
            "tensorgate_requests", "Calls answered, by canonical status code.", labels=[*labels, "code"]
        )
        timed = HistogramMetricFamily(
            "tensorgate_request_seconds", "Time from the whole request read to the last answer sent.", labels=labels
        )
        for key, calls in list(self._requests.items()):
            calls.seconds().add_to(timed, key)
            for code, count in calls.codes().items():
                counted.add_metric([*key, code.name], count)
        refused = CounterMetricFamily(
            "tensorgate_rejected_requests",
            "Calls that were turned away, not for what they ask but for how much there is of it, or who asks.",
            labels=["reason"],
        )
        for reason, count in list(self._refused.items()):
            refused.add_metric([reason], count)
        yield from (counted, timed, refused)

    def _collect_models(self) -> Iterator[Metric]:
        labels = ["model", "version"]
        stages = HistogramMetricFamily(
            "tensorgate_stage_seconds", "Time in each stage of a request.", labels=[*labels, "stage"]
        )
        batches = HistogramMetricFamily("tensorgate_batch_rows", "Rows in each batch that ran.", labels=labels)
        queued = GaugeMetricFamily("tensorgate_queued_requests", "Requests that wait for a batch.", labels=labels)
        running = GaugeMetricFamily("tensorgate_running_requests", "Requests in batches that run.", labels=labels)
        for key, times in list(self._stages.items()):
            for stage, gathered in times.by_stage.items():
                gathered.histogram.add_to(stages, (*key, stage))
        for key, gathered in list(self._batches.items()):
            gathered.histogram.add_to(batches, key)
        loads = GaugeMetricFamily("tensorgate_model_load_seconds", "How long loading took.", labels=labels)
        for model in self._models():
            loads.add_metric([model.name, str(model.version)], model.load_seconds)
            queued.add_metric([model.name, str(model.version)], model.queued)
            running.add_metric([model.name, str(model.version)], model.running)
        yield from (stages, batches, queued, running, loads)

    def _collect_cache(self) -> Iterator[Metric]:
        """Of the models that ask for it; nothing where none does."""
        cached = [model for model in self._models() if model.is_cached]
        if not cached:
            return
        looked = CounterMetricFamily(
            "tensorgate_response_cache_lookups",
            "Requests that the response cache was asked for.",
            labels=["model", "version", "result"],
        )
        for model in cached:
            for result, tally in (("hit", model.counters.hits), ("miss", model.counters.misses)):
                looked.add_metric([model.name, str(model.version), result], tally.count)
        yield looked
        cache = self._cache
        yield GaugeMetricFamily("tensorgate_response_cache_bytes", "What it holds.", value=cache.nbytes)
        yield GaugeMetricFamily("tensorgate_response_cache_max_bytes", "What it may hold.", value=cache.max_bytes)
        yield GaugeMetricFamily("tensorgate_response_cache_entries", "Answers that it holds.", value=cache.entries)
        yield CounterMetricFamily(
            "tensorgate_response_cache_evictions", "Answers that left for want of room.", value=cache.evictions
        )

    def _collect_traffic(self) -> Iterator[Metric]:
        """Between the host and devices, of the models that are on any. One copy each way per batch is as it should be:
        a ratio above says that something goes back and forth.
        """
        labels = ["model", "version", "direction"]
        copies = CounterMetricFamily("tensorgate_device_copies", "Copies between host and device.", labels=labels)
        copied = CounterMetricFamily("tensorgate_device_copied_bytes", "Bytes that they carried.", labels=labels)
        batches = CounterMetricFamily("tensorgate_device_batches", "Batches that they were for.", labels=labels[:2])
        for model in self._models():
            traffic = model.computation.traffic()
            if not traffic.batches and model.devices == ("cpu",):
                continue
            key = [model.name, str(model.version)]
            for direction, count, nbytes in (
                ("in", traffic.copies_in, traffic.bytes_in),
                ("out", traffic.copies_out, traffic.bytes_out),
            ):
                copies.add_metric([*key, direction], count)
                copied.add_metric([*key, direction], nbytes)
            batches.add_metric(key, traffic.batches)
        if batches.samples:
            yield from (copies, copied, batches)

    def _collect_routes(self) -> Iterator[Metric]:
        taken = CounterMetricFamily(
            "tensorgate_route_requests",
            "Requests by a route, by the version that they went to, and why: chosen by weight, matched by a rule, "
            "fallback.",
            labels=["route", "model", "version", "why"],
        )
        refused = CounterMetricFamily(
            "tensorgate_route_refused", "Requests beyond a route's max_concurrent.", labels=["route"]
        )
        running = GaugeMetricFamily("tensorgate_route_running", "Requests of a route on their way.", labels=["route"])
        for route in self._routes():
            for (model, version, why), count in list(route.counts.taken.items()):
                taken.add_metric([route.name, model, version, why], count)
            refused.add_metric([route.name], route.counts.refused)
            running.add_metric([route.name], route.counts.running)
        if running.samples:
            yield from (taken, refused, running)

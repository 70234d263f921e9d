"""Every Prometheus instrument. The rest of the house knows only `Meter` and `Metrics.request`.

The request path counts in plain Python lists and dictionaries on the event loop, ten times as cheap as a labelled
look-up in the client library; the library renders them when Prometheus asks. Label values are names of the
configuration and of our own code, never a caller's text: a request that named an unknown model is counted under
model="".
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, Protocol

from prometheus_client import CollectorRegistry, PlatformCollector, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from gateway.canonical import NOTHING
from gateway.errors import Code, GatewayError
from gateway.meter import Meter
from gateway.model import Model
from gateway.ports import Call, Endpoint
from gateway.refusals import REFUSALS, refusal_of
from gateway.response_cache import ResponseCache
from gateway.route import Route
from gateway.series import Histogram
from gateway.shadow_metrics import shadow_families
from gateway.statistics import Counters
from gateway.tracing import Tracing
from gateway.triton_metrics import TritonMetrics

SECONDS: Final = (
    *(25e-6, 50e-6, 100e-6, 250e-6, 500e-6),
    *(1e-3, 2.5e-3, 5e-3, 10e-3, 25e-3, 50e-3, 0.1, 0.25, 0.5),
    *(1.0, 2.5, 5.0, 10.0),
)
ROWS: Final = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0)
STAGES: Final = ("decode", "queue", "preprocess", "infer", "postprocess", "encode")

MOST_RECENT: Final = 4096

ModelKey = tuple[str, str]
"""(model, version); ("", "") where a request reached no model"""
RequestKey = tuple[str, str, str, str, str]
"""(dialect, transport, model, version, method)"""


class Watch(Protocol):
    """Counts the calls of one dialect once more, in that dialect's own way."""

    def ended(self, endpoint: Endpoint, call: Call, question: Any, code: Code, seconds: float, ran: float) -> None:
        """One call is over, after so many seconds, of which its model took `ran`. `question` is None if it could not
        be read, `code` is what the caller was told.
        """
        ...

    def forget(self, model: str) -> None:
        """A model has no loaded version any more."""
        ...


class Stages:
    """Time in each stage of one model version's requests."""

    __slots__ = ("by_stage",)

    def __init__(self) -> None:
        self.by_stage = {stage: Histogram(SECONDS) for stage in STAGES}

    def observe(self, stage: str, seconds: float) -> None:
        histogram = self.by_stage[stage]  # not histogram.observe: this is called several times a request
        histogram.counts[bisect_left(SECONDS, seconds)] += 1
        histogram.sum += seconds


class Requests:
    """Calls of one kind: how long they took, and how many ended with which code. `recent` are times that the monitor
    has not seen yet, the last ones if it looks too seldom.
    """

    __slots__ = ("codes", "recent", "seconds")

    def __init__(self) -> None:
        self.seconds = Histogram(SECONDS)
        self.codes: dict[Code, int] = {}
        self.recent: deque[float] = deque(maxlen=MOST_RECENT)


class Metrics(Collector):
    """All counters of the process. `models` tells what is loaded now, for the gauges that are read when asked.

    `tracing` says whose requests leave a trace; `triton` adds the series that Triton's dashboards draw,
    `more` gives what models count themselves. `watches` are those of single dialects. `inferences` is how many calls
    have reached a model, ever. `cache` is what answers again, `routes` are those that lead to models; `restarts` is how
    often this process was replaced, by reason, where somebody watches.
    """

    def __init__(
        self,
        models: Callable[[], Iterable[Model]],
        tracing: Tracing | None = None,
        triton: TritonMetrics | None = None,
        more: Iterable[Callable[[], Iterable[Metric]]] = (),
        watches: Mapping[str, Watch] = NOTHING,
        cache: ResponseCache | None = None,
        routes: Callable[[], Iterable[Route]] = tuple,
        restarts: Mapping[str, int] = NOTHING,
    ) -> None:
        self.watches = watches
        self.inferences = 0
        self._models = models
        self._tracing = tracing or Tracing()
        self._triton = triton
        self._more = tuple(more)
        self._cache = cache or ResponseCache()
        self._routes = routes
        self._restarts = restarts
        self._requests: dict[RequestKey, Requests] = {}
        self._refused = dict.fromkeys(REFUSALS, 0)
        self._stages: dict[ModelKey, Stages] = {}
        self._batches: dict[ModelKey, Histogram] = {}
        self._registry = CollectorRegistry()
        self._registry.register(self)
        ProcessCollector(registry=self._registry)
        PlatformCollector(registry=self._registry)

    def request(self, key: RequestKey, code: Code, seconds: float) -> None:
        """One call is over."""
        if key[2]:
            self.inferences += 1
        requests = self._requests.get(key)
        if requests is None:
            requests = self._requests[key] = Requests()
        requests.seconds.observe(seconds)
        requests.recent.append(seconds)
        requests.codes[code] = requests.codes.get(code, 0) + 1

    def recent(self) -> Iterator[tuple[RequestKey, Mapping[Code, int], list[float]]]:
        """Of each kind of calls: how many ended with which code so far, and the times of those that
        ended since this was last asked, which are then forgotten.
        """
        for key, requests in self._requests.items():
            times = list(requests.recent)
            requests.recent.clear()
            yield key, requests.codes, times

    def batches(self) -> Mapping[ModelKey, Histogram]:
        """Rows of the batches that ran, by model and version."""
        return self._batches

    def stages(self, model: str, version: str) -> Stages:
        """The stage times of one model version, under the public name that the caller used."""
        key = (model, version)
        stages = self._stages.get(key)
        if stages is None:
            stages = self._stages[key] = Stages()
        return stages

    def meter(self, model: str, version: int) -> Meter:
        """What the scheduler of a version that is being loaded reports to. Series exist from here on, at 0."""
        batches = self._batches.setdefault((model, str(version)), Histogram(ROWS))
        observe = self.stages(model, str(version)).observe
        return Meter(observe, batches.observe, Counters(), self._tracing.tracer(model))

    def forget(self, model: str, version: int) -> None:
        """A version was unloaded: its series end. They start at 0 should it come back, as after a restart."""
        key = (model, str(version))
        self._stages.pop(key, None)
        self._batches.pop(key, None)
        for each in [each for each in self._requests if each[2:4] == key]:
            del self._requests[each]
        if not any(name == model for name, _ in self._batches):
            for watch in self.watches.values():
                watch.forget(model)

    def refused(self, error: GatewayError, *, draining: bool) -> None:
        """A call ends with this error: count it, if it is one with which callers are turned away."""
        reason = refusal_of(error, draining=draining)
        if reason is not None:
            self._refused[reason] += 1

    def render(self) -> bytes:
        """The exposition text, Prometheus 0.0.4. Takes milliseconds: call it off the event loop."""
        text = generate_latest(self._registry)
        return text + self._triton.render() if self._triton else text

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
        for key, requests in list(self._requests.items()):
            requests.seconds.add_to(timed, key)
            for code, count in list(requests.codes.items()):
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
            for stage, histogram in times.by_stage.items():
                histogram.add_to(stages, (*key, stage))
        for key, histogram in list(self._batches.items()):
            histogram.add_to(batches, key)
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

"""Every Prometheus instrument. Other rooms know only `MetricsCollector` and the `CallSeries` that it gives them.

The request path only notes numbers, on the event loop: a labelled look-up in the client library would cost twenty times
as much. They are sorted into histograms once a second, and written when Prometheus asks. A series is there once it has
something to count, but for what alerts ask of idle models.
Label values are names of the configuration and of our own code, never a caller's text: a request that named an unknown
model is counted under model="".
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, Protocol

from prometheus_client import PlatformCollector, ProcessCollector

from tensorgate.gateway.contract.engine import StatisticsSource
from tensorgate.gateway.contract.errors import Code, ErrorReason
from tensorgate.gateway.contract.metrics import (
    Distribution,
    EngineStatistics,
    ModelCounts,
    RouteUsage,
    ShareUsage,
    VersionDistributions,
)
from tensorgate.gateway.contract.tensor import NOTHING
from tensorgate.gateway.monitoring.call_counters import CallCounters
from tensorgate.gateway.monitoring.exposition import OPENMETRICS, PLAIN, exposition, wants_openmetrics
from tensorgate.gateway.monitoring.families import AnyFamily, Exemplar, counter, gauge, histogram
from tensorgate.gateway.monitoring.genai_metrics import genai_families
from tensorgate.gateway.monitoring.goal_metrics import goal_families
from tensorgate.gateway.monitoring.recent_errors import RecentErrors
from tensorgate.gateway.monitoring.shadow_metrics import shadow_families
from tensorgate.gateway.telemetry.call_outcome import CallOutcome
from tensorgate.gateway.telemetry.call_record import CallRecord
from tensorgate.gateway.telemetry.histogram import SECONDS, Gathered, Histogram

STAGES: Final = ("decode", "queue", "preprocess", "infer", "postprocess", "encode")

MAX_RECENT: Final = 4096

ModelKey = tuple[str, str]
"""(model, version); ("", "") where a request reached no model"""
RequestKey = tuple[str, str, str, str, str]
"""(dialect, transport, model, version, method)"""
CallsKey = tuple[str, str, str, int | str, str]
"""A RequestKey whose version may be a number"""
Ending = tuple[Code, ErrorReason | None]
"""How a call ended; no reason where it is OK"""


Tell = Callable[[Any, Any], None]
"""Takes arrays: how many seconds calls took, and for how many of these their model ran"""


class CodecTimes:
    """Seconds in which the requests of one model version were decoded, and its answers encoded."""

    __slots__ = ("decode", "encode")

    def __init__(self) -> None:
        self.decode = Gathered(SECONDS)
        self.encode = Gathered(SECONDS)

    def settle(self) -> None:
        """Sort what was observed into histograms."""
        self.decode.settle()
        self.encode.settle()

    def distributions(self) -> dict[str, Distribution]:
        """Stage -> what was observed."""
        return {"decode": self.decode.histogram.distribution(), "encode": self.encode.histogram.distribution()}


class NoEngine:
    """The statistics of a gateway that has no models."""

    def settle(self) -> None:
        pass

    def statistics(self) -> EngineStatistics:
        return EngineStatistics()


class CallSeries:
    """The calls of one RequestKey. `took` counts the seconds of a call that succeeded, `ran` those of its model,
    `failed` a call that did not succeed; `decoded` and `encoded` count the seconds of these stages. All are for the
    event loop, and all but `failed` only append a number. `tell` takes the same, many at a time.
    """

    __slots__ = (
        "_failed",
        "_failures",
        "_ran",
        "_recent",
        "_refused",
        "_took",
        "decoded",
        "encoded",
        "exemplars",
        "ran",
        "tell",
        "tokens",
        "took",
    )

    def __init__(self, codec: CodecTimes, tell: Tell | None = None) -> None:
        self._took = Gathered(SECONDS)
        self._ran = Gathered(())
        self.tell = tell
        self.ran = _ignored if tell is None else self._ran.observe
        self._failed = Histogram(SECONDS)
        self._failures: dict[Ending, int] = {}
        self._recent: deque[float] = deque(maxlen=MAX_RECENT)
        self._refused: deque[float] = deque(maxlen=MAX_RECENT)
        self.exemplars: dict[int, Exemplar] = {}
        """The last traced call of each bucket of its seconds."""
        self.tokens = (0, 0)
        """Those that calls brought, and those that they were answered with, as far as they are known."""
        self.took = self._took.observe
        self.decoded = codec.decode.observe
        self.encoded = codec.encode.observe

    def spent(self, taken: int, given: int) -> None:
        """Count tokens of texts."""
        before = self.tokens
        self.tokens = before[0] + taken, before[1] + given

    def failed(self, code: Code, reason: ErrorReason, seconds: float) -> None:
        self._failed.observe(seconds)
        self._failures[code, reason] = self._failures.get((code, reason), 0) + 1
        if code is not Code.CANCELLED:
            self._refused.append(seconds)

    def add(self, took: Any, ran: Any, failed: Iterable[tuple[Code, ErrorReason, float, int]]) -> None:
        """Calls that another process has answered: arrays of seconds, and (code, reason, seconds, how many)."""
        for code, reason, seconds, calls in failed:
            self._failed.observe_often(seconds, calls)
            self._failures[code, reason] = self._failures.get((code, reason), 0) + calls
            if code is not Code.CANCELLED:
                self._refused.extend([seconds] * min(calls, MAX_RECENT))
        self._took.observe_all(took)
        self._recent.extend(took[-MAX_RECENT:].tolist())
        if self.tell is not None:
            self.tell(took, ran)

    def add_merged(self, took: Iterable[tuple[float, int]]) -> None:
        """Calls that another process has answered: (seconds, how many)."""
        for seconds, calls in took:
            self._took.observe_often(seconds, calls)

    def traced(self, exemplar: Exemplar) -> None:
        """One of the calls left a trace."""
        self.exemplars[bisect_left(SECONDS, exemplar.value)] = exemplar

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

    def endings(self) -> dict[Ending, int]:
        """How calls ended -> how many did; no reason where they are OK."""
        self.settle()
        well = sum(self._took.histogram.counts)
        return {(Code.OK, None): well, **self._failures} if well else dict(self._failures)

    def recent(self) -> tuple[list[float], list[float]]:
        """The seconds of calls that were served, and of those that failed, since the last reading, of the last
        MAX_RECENT each. A call that its caller gave up is neither.
        """
        self.settle()
        served, refused = ([each.popleft() for _ in range(len(each))] for each in (self._recent, self._refused))
        return served, refused


_ignored: Final = deque[float](maxlen=0).append


class CallSeriesTable(dict[CallsKey, CallSeries]):
    """Series by key. A known key costs one dict lookup: the version may be a number, so nobody makes a text of it."""

    def __init__(self, make: Callable[[RequestKey], CallSeries]) -> None:
        self._make = make

    def __missing__(self, key: CallsKey) -> CallSeries:
        dialect, transport, model, version, method = key
        calls = self[key] = self._make((dialect, transport, model, str(version), method))
        return calls


def note_traced(calls: CallSeriesTable, outcome: CallOutcome, record: CallRecord) -> None:
    """A call that left a trace is over, and counted: its series tells which trace that is."""
    view, call = record.view, outcome.call
    model, version = outcome.named if view is None else (view.name, view.version)
    series = calls.get((call.dialect, call.transport, model, version, outcome.endpoint.method))
    if series is not None and record.trace_id is not None:
        series.traced(Exemplar(record.trace_id, outcome.seconds, time.time()))


class CallCounting(Protocol):
    """Where the service counts the calls that it answers."""

    calls: CallSeriesTable

    @property
    def call_counters(self) -> Mapping[str, CallEndings]:
        """Dialect -> who counts each of its calls once more."""
        ...

    @property
    def inferences(self) -> int:
        """How many calls have reached a model, ever."""
        ...

    @property
    def errors(self) -> RecentErrors:
        """The last errors of each kind."""
        ...


class CallEndings(Protocol):
    """Who counts each call of a dialect."""

    def ended(self, outcome: CallOutcome) -> None:
        """Count one call that is over."""
        ...


class MetricsCollector:
    """All counters of the process: calls are counted here, and the rest is read from `engine`.

    `more` gives what others count, `end` the text that dialects add. `call_counters` count the calls of a dialect once
    more, by its name. `calls` finds those of a kind. `restarts` is how often this process was replaced, by reason,
    where somebody watches.
    """

    def __init__(
        self,
        engine: StatisticsSource | None = None,
        more: Iterable[Callable[[], Iterable[AnyFamily]]] = (),
        call_counters: Mapping[str, CallCounters] = NOTHING,
        restarts: Mapping[str, int] = NOTHING,
        end: Callable[[], str] = str,
        stages: Collection[str] = STAGES,
        *,
        genai_names: bool = False,
    ) -> None:
        """`stages` are those whose times are shown."""
        self._stages = stages
        self._genai_names = genai_names
        self.call_counters = call_counters
        self.calls = CallSeriesTable(self._calls)
        self._gone = 0
        self._engine = engine or NoEngine()
        self._more = tuple(more)
        self._restarts = restarts
        self.restarts_of_doors: dict[int, Mapping[str, int]] = {}
        """By their number."""
        self._end = end
        self._requests: dict[RequestKey, CallSeries] = {}
        self.errors = RecentErrors()
        self._codecs: dict[ModelKey, CodecTimes] = {}
        self._process = ProcessCollector(registry=None)
        self._platform = PlatformCollector(registry=None)

    def _calls(self, key: RequestKey) -> CallSeries:
        calls = self._requests.get(key)
        if calls is None:
            dialect, transport, model, version, method = key
            counter = self.call_counters.get(dialect) if model else None
            tell = None if counter is None else counter.teller(model, method, transport)
            calls = self._requests[key] = CallSeries(self.codec(model, version), tell)
        return calls

    def codec(self, model: str, version: str) -> CodecTimes:
        """Where the decoding and encoding of a version's calls is counted; what reached no model is not shown."""
        return self._codecs.setdefault((model, version), CodecTimes()) if model else CodecTimes()

    @property
    def inferences(self) -> int:
        """How many calls have reached a model, ever."""
        return self._gone + sum(sum(calls.endings().values()) for key, calls in self._requests.items() if key[2])

    def recent(self) -> Iterator[tuple[RequestKey, Mapping[Ending, int], tuple[list[float], list[float]]]]:
        """Of each kind of calls: how many ended in which way so far, and the times of those that
        were served and that failed since this was last asked, which are then forgotten.
        """
        self.settle()
        for key, calls in self._requests.items():
            yield key, calls.endings(), calls.recent()

    def forget(self, model: str, version: int, is_last: bool) -> None:
        """A version was unloaded, the model's last or not: its series end, and start at 0 should it come back."""
        key = (model, str(version))
        ending = {key, (model, "")} if is_last else {key}
        self._codecs.pop(key, None)
        for each in [each for each in self._requests if each[2:4] in ending]:
            self._gone += sum(self._requests.pop(each).endings().values())
        self.calls.clear()
        if is_last:
            for counter in self.call_counters.values():
                counter.forget(model)

    def settle(self) -> None:
        """Sort what was noted of calls, on the loop: once a second, so that it does not grow, and before `render`."""
        self._engine.settle()
        noted: list[CodecTimes | CallSeries | CallCounters] = [*self._codecs.values(), *self._requests.values()]
        for each in (*noted, *self.call_counters.values()):
            each.settle()

    def render(self, *, openmetrics: bool = False) -> bytes:
        """The exposition text. Takes milliseconds: call it off the event loop, after `settle`."""
        return exposition(self.collect(), self._end(), openmetrics=openmetrics)

    def page(self, accept: str) -> tuple[bytes, str]:
        """The exposition text in the format that a scraper accepts, and its type. Called as `render` is."""
        openmetrics = wants_openmetrics(accept)
        return self.render(openmetrics=openmetrics), OPENMETRICS if openmetrics else PLAIN

    def collect(self) -> Iterator[AnyFamily]:
        """Return every family that has a series."""
        statistics = self._engine.statistics()
        yield from self._call_families()
        yield from self._token_families()
        yield self._stage_family(statistics.distributions)
        yield from _stream_families(statistics.distributions)
        if self._genai_names:
            yield from genai_families(statistics.distributions, self._seconds_by_model())
        yield from _model_families(statistics)
        yield from goal_families(statistics.models)
        yield from _cache_families(statistics)
        yield from _device_families(statistics.models)
        yield from _route_families(statistics.routes)
        yield from _share_families(statistics.shares)
        yield from shadow_families(statistics.routes)
        if self._restarts:
            total = Counter(self._restarts)
            for each in self.restarts_of_doors.values():
                total.update(each)
            restarts = [((reason,), count) for reason, count in total.items()]
            text = "How often the process had to be replaced, and why."
            yield counter("tensorgate_worker_restarts", text, "reason", restarts)
        for collect in self._more:
            yield from collect()
        yield from self._process.collect()
        yield from self._platform.collect()

    def _call_families(self) -> Iterator[AnyFamily]:
        labels = "dialect transport model version method"
        calls = [(key, series.endings(), series.seconds()) for key, series in list(self._requests.items())]
        yield counter(
            "tensorgate_requests",
            "Calls answered, by canonical status code and, where they failed, by reason.",
            f"{labels} code reason",
            [
                ((*key, code.name, *(() if reason is None else (reason,))), count)
                for key, endings, _ in calls
                for (code, reason), count in endings.items()
            ],
        )
        yield histogram(
            "tensorgate_request_seconds",
            "Time from the whole request read to the last answer sent.",
            labels,
            [(key, seconds.distribution()) for key, _, seconds in calls],
            {key: {**series.exemplars} for key, series in list(self._requests.items()) if series.exemplars},
        )

    def tokens(self) -> Mapping[ModelKey, Sequence[int]]:
        """Those of texts that came and went, by version, once there are any. In any thread."""
        found: dict[ModelKey, list[int]] = {}
        for (_, _, model, version, _), series in list(self._requests.items()):
            if model and any(series.tokens):
                counts = found.setdefault((model, version), [0, 0])
                counts[:] = [count + more for count, more in zip(counts, series.tokens, strict=True)]
        return found

    def _token_families(self) -> Iterator[AnyFamily]:
        """Of texts, by version, once there are any."""
        found = self.tokens()
        if found:
            yield counter(
                "tensorgate_tokens",
                "Tokens of texts, of requests (input) and of answers (output), as far as they are counted.",
                "model version kind",
                [
                    ((*key, kind), count)
                    for key, counts in found.items()
                    for kind, count in zip(("input", "output"), counts, strict=True)
                ],
            )

    def _seconds_by_model(self) -> Mapping[ModelKey, Distribution]:
        """The seconds of all calls of inference to a version."""
        merged: dict[ModelKey, Histogram] = {}
        for (_, _, model, version, _), series in list(self._requests.items()):
            if version:
                merged.setdefault((model, version), Histogram(SECONDS)).add(series.seconds())
        return {key: each.distribution() for key, each in merged.items()}

    def _stage_family(self, distributions: Mapping[ModelKey, VersionDistributions]) -> AnyFamily:
        """The stages that the engine runs, and those of the codecs, by version, once a request has been through."""
        found: dict[ModelKey, dict[str, Distribution]] = {key: {**each.stages} for key, each in distributions.items()}
        for key, codec in list(self._codecs.items()):
            found.setdefault(key, {}).update(codec.distributions())
        return histogram(
            "tensorgate_stage_seconds",
            "Time in each stage of a request.",
            "model version stage",
            [
                ((*key, stage), stages[stage])
                for key, stages in found.items()
                for stage in self._stages
                if stage in stages and any(stages[stage].counts)
            ],
        )


def _stream_families(distributions: Mapping[ModelKey, VersionDistributions]) -> Iterator[AnyFamily]:
    """Of models that stream, once they have."""
    for stage, text in (
        ("first_answer", "Time from a request to the first answer of its stream."),
        ("next_answer", "Time from an answer of a stream to the next."),
    ):
        stages = [(key, each.stages.get(stage)) for key, each in distributions.items()]
        found = [(key, each) for key, each in stages if each is not None and any(each.counts)]
        if found:
            yield histogram(f"tensorgate_{stage}_seconds", text, "model version", found)


def _model_families(statistics: EngineStatistics) -> Iterator[AnyFamily]:
    labels = "model version"
    yield histogram(
        "tensorgate_batch_rows",
        "Rows in each batch that ran.",
        labels,
        [(key, each.batches) for key, each in statistics.distributions.items() if any(each.batches.counts)],
    )
    models = [((each.model, str(each.version)), each) for each in statistics.models]
    # of idle models, too: alerts and autoscalers ask for the queue, and must find 0
    for name, text, samples in (
        ("tensorgate_queued_requests", "Requests that wait for a batch.", [(key, each.queued) for key, each in models]),
        (
            "tensorgate_queued_tokens",
            "Tokens of texts that wait for a batch.",
            [(key, each.queued_tokens) for key, each in models if each.queued_tokens is not None],
        ),
        (
            "tensorgate_running_requests",
            "Requests in batches that run.",
            [(key, each.running) for key, each in models if each.running or _has_been_asked(each)],
        ),
        ("tensorgate_model_load_seconds", "How long loading took.", [(key, each.load_s) for key, each in models]),
    ):
        yield gauge(name, text, labels, samples)
    if in_doors := [(key, model.in_doors) for key, model in models if model.in_doors]:
        yield counter("tensorgate_replica_requests", "Requests answered by copies in doors.", labels, in_doors)


def _has_been_asked(model: ModelCounts) -> bool:
    return bool(model.successes.count or any(model.failures.values()))


def _cache_families(statistics: EngineStatistics) -> Iterator[AnyFamily]:
    """Of the models that ask for it; nothing where none does."""
    lookups = [
        ((model.model, str(model.version), result), total.count)
        for model in statistics.models
        if model.is_cached
        for result, total in (("hit", model.hits), ("miss", model.misses))
    ]
    if not lookups:
        return
    text = "Requests that the response cache was asked for."
    yield counter("tensorgate_response_cache_lookups", text, "model version result", lookups)
    cache = statistics.cache
    for make, name, text, number in (
        (gauge, "bytes", "What it holds.", cache.nbytes),
        (gauge, "max_bytes", "What it may hold.", cache.max_bytes),
        (gauge, "entries", "Answers that it holds.", cache.entries),
        (counter, "evictions", "Answers that left for want of room.", cache.evictions),
    ):
        yield make(f"tensorgate_response_cache_{name}", text, "", [((), number)])


def _device_families(models: Iterable[ModelCounts]) -> Iterator[AnyFamily]:
    """Copies between the host and devices, of the models that are on any. One copy each way per batch is as it should
    be: a ratio above says that something goes back and forth.
    """
    found = [
        ((model.model, str(model.version)), model.traffic)
        for model in models
        if model.traffic.batches or model.devices != ("cpu",)
    ]
    if not found:
        return
    for name, text, copied_in, copied_out in (
        ("copies", "Copies between host and device.", "copies_in", "copies_out"),
        ("copied_bytes", "Bytes that they carried.", "bytes_in", "bytes_out"),
    ):
        yield counter(
            f"tensorgate_device_{name}",
            text,
            "model version direction",
            [
                ((*key, direction), getattr(traffic, attribute))
                for key, traffic in found
                for direction, attribute in (("in", copied_in), ("out", copied_out))
            ],
        )
    batches = [(key, traffic.batches) for key, traffic in found]
    yield counter("tensorgate_device_batches", "Batches that they were for.", "model version", batches)


def _route_families(routes: Sequence[RouteUsage]) -> Iterator[AnyFamily]:
    if not routes:
        return
    yield counter(
        "tensorgate_route_requests",
        "Requests by a route, by the version that they went to, and why: chosen by weight, matched by a rule, "
        "fallback.",
        "route model version why",
        [((route.name, *key), count) for route in routes for key, count in route.taken.items()],
    )
    refused = [((route.name,), route.refused) for route in routes]
    yield counter("tensorgate_route_refused", "Requests beyond a route's max_concurrent.", "route", refused)
    running = [((route.name,), route.running) for route in routes]
    yield gauge("tensorgate_route_running", "Requests of a route on their way.", "route", running)


def _share_families(shares: Sequence[ShareUsage]) -> Iterator[AnyFamily]:
    if not shares:
        return
    seconds = [((each.caller, each.device), each.seconds) for each in shares]
    text = "Time of a device that a caller has had."
    yield counter("tensorgate_share_device_seconds", text, "caller device", seconds)
    by_caller = {each.caller: each for each in shares}.values()
    queued = [((each.caller,), each.queued) for each in by_caller]
    yield gauge("tensorgate_share_queued", "Requests of a caller that wait.", "caller", queued)
    refused = [((each.caller,), each.refused) for each in by_caller]
    yield counter("tensorgate_share_refused", "Requests refused for a caller's own limit.", "caller", refused)

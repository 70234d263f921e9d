"""The exposition text under TensorFlow Serving's names, for dashboards and alerts that were made for it.

Written by hand: the names begin with a colon, which the client library would not have. A call is counted once, when it
is over; only those that succeeded are timed. Label values are public names of models: a call that named another, or
none that could be read, is counted under model_name="".
Source: TensorFlow Serving's monitoring, and what its REST server writes there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import chain
from typing import Any, Final, TypeAlias

from tensorgate.gateway.contract.call import Call
from tensorgate.gateway.contract.canonical import InferRequest
from tensorgate.gateway.contract.errors import Code
from tensorgate.gateway.contract.questions import ModelMetadata, ModelStatus
from tensorgate.gateway.telemetry.call_outcome import CallOutcome
from tensorgate.gateway.telemetry.histogram import Gathered, Histogram, label_text

LATENCY_US: Final = tuple(10 * 1.8**power for power in range(33))
EXAMPLES: Final = tuple(2.0**power for power in range(15))

_RUNTIME: Final = "TF1"
_US: Final = 1e6
_PREFIX: Final = ":tensorflow:serving:"
_APIS: Final = {"infer": "predict", "classify": "classify", "regress": "regress"}
"""The label of an endpoint's metrics -> the verb that its address ends in"""
_WITH_EXAMPLES: Final = frozenset({"classify", "regress"})

_Key: TypeAlias = tuple[str, str, str]
"""(model, method, transport)"""


class _Calls:
    """Those of one kind to one model."""

    __slots__ = ("examples", "failures", "latency", "runtime", "with_examples")

    def __init__(self, method: str) -> None:
        self.failures: dict[Code, int] = {}
        self.latency = Gathered(LATENCY_US)
        self.runtime = Gathered(LATENCY_US)
        self.examples = Gathered(EXAMPLES)
        self.with_examples = method in _WITH_EXAMPLES

    def codes(self) -> dict[Code, int]:
        """How many ended with which."""
        well = sum(self.latency.histogram.counts)
        return {Code.OK: well, **self.failures} if well else dict(self.failures)


class TfServingMetrics:
    """Counts the calls of the dialect, one by one or many at a time. `is_public` tells the names of models from any
    others.
    """

    def __init__(self, is_public: Callable[[str], bool]) -> None:
        self._is_public = is_public
        self._calls: dict[_Key, _Calls] = {}

    def ended(self, outcome: CallOutcome) -> None:
        """See metrics.Watch."""
        question, code = outcome.question, outcome.reply_code
        if type(question) is InferRequest:
            name = question.view.name
        else:
            name = self._named(outcome.call, question)
        calls = self._of(name, outcome.endpoint.method, outcome.call.transport)
        if code:
            calls.failures[code] = calls.failures.get(code, 0) + 1
            return
        calls.latency.observe(outcome.seconds * _US)
        if type(question) is InferRequest:
            calls.runtime.observe(outcome.model_seconds * _US)
            if calls.with_examples:
                calls.examples.observe(_rows(question))

    def teller(self, model: str, method: str, transport: str) -> Callable[[Any, Any], None] | None:
        """See metrics.Watch."""
        if method in _WITH_EXAMPLES:
            return None

        def tell(seconds: Any, ran: Any) -> None:
            if len(seconds) or len(ran):
                calls = self._of(model, method, transport)
                calls.latency.observe_all(seconds * _US)
                calls.runtime.observe_all(ran * _US)

        return tell

    def _of(self, model: str, method: str, transport: str) -> _Calls:
        key = (model, method, transport)
        calls = self._calls.get(key)
        if calls is None:
            calls = self._calls[key] = _Calls(method)
        return calls

    def _named(self, call: Call, question: Any) -> str:
        """The model that a call is about, if it says one that exists."""
        if type(question) is ModelMetadata:
            name = question.view.name
        elif type(question) is ModelStatus:
            name = question.ref.name
        else:
            name = call.args.get("model", "") or call.notes.get("model", "")  # over gRPC only the dialect can say
        return name if self._is_public(name) else ""

    def forget(self, model: str) -> None:
        """See metrics.Watch."""
        for key in [key for key in list(self._calls) if key[0] == model]:
            del self._calls[key]

    def settle(self) -> None:
        """See metrics.Watch."""
        for calls in list(self._calls.values()):
            for gathered in (calls.latency, calls.runtime, calls.examples):
                gathered.settle()

    def render(self) -> bytes:
        """The text. Off the event loop: numbers are read while they change, each of them whole."""
        counts: dict[str, int] = {}
        examples: dict[str, Histogram] = {}
        latencies: dict[str, Histogram] = {}
        runtimes: dict[str, Histogram] = {}
        for (model, method, transport), calls in list(self._calls.items()):
            api = _APIS.get(method, "")
            if transport == "http":
                _add(latencies, label_text(model_name=model, API=api, entrypoint="REST"), calls.latency.histogram)
            elif api:
                _add(
                    latencies, label_text(model_name=model, API=api.title(), entrypoint="GRPC"), calls.latency.histogram
                )
            else:
                continue  # the original counts no other methods of gRPC
            for code, count in calls.codes().items():
                of_code = label_text(model_name=model, status=code.name)
                counts[of_code] = counts.get(of_code, 0) + count
            _add(runtimes, label_text(model_name=model, API=api.title(), runtime=_RUNTIME), calls.runtime.histogram)
            _add(examples, label_text(model=model), calls.examples.histogram)
        totals = {of_model: int(histogram.sum) for of_model, histogram in examples.items()}
        families = (
            _counters("request_count", counts),
            _histograms("request_latency", latencies),
            _histograms("runtime_latency", runtimes),
            _histograms("request_example_counts", examples),
            _counters("request_example_count_total", totals),
            _counters("request_log_count", {}),  # no requests are logged here
        )
        return "".join(chain(*families)).encode()


def _rows(request: InferRequest) -> int:
    """How many examples it has."""
    first = next(iter(request.inputs.values()), None)
    return 0 if first is None or not first.shape else int(first.shape[0])


def _add(series: dict[str, Histogram], of: str, histogram: Histogram) -> None:
    """To the sum of those with the same labels. What has observed nothing is no series yet."""
    if any(histogram.counts):
        series.setdefault(of, Histogram(histogram.bounds)).add(histogram)


def _counters(name: str, series: Mapping[str, int]) -> Iterator[str]:
    yield f"# TYPE {_PREFIX}{name} counter\n"
    for of, count in series.items():
        yield f"{_PREFIX}{name}{{{of}}} {count}\n"


def _histograms(name: str, series: Mapping[str, Histogram]) -> Iterator[str]:
    yield f"# TYPE {_PREFIX}{name} histogram\n"
    for of, histogram in series.items():
        bounds = (*(f"{bound:g}" for bound in histogram.bounds), "+Inf")
        count = 0
        for bound, count in zip(bounds, histogram.buckets(), strict=True):
            yield f'{_PREFIX}{name}_bucket{{{of},le="{bound}"}} {count}\n'
        yield f"{_PREFIX}{name}_sum{{{of}}} {histogram.sum!r}\n{_PREFIX}{name}_count{{{of}}} {count}\n"

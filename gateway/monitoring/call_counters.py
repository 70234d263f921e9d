"""The calls of one dialect, counted once more as that dialect's metrics want them: by model, method and transport.

Label values are public names of models: a call that named another, or none that could be read, is counted under "".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final, NamedTuple, TypeAlias

from tensorgate.gateway.contract.call import Call, Reply
from tensorgate.gateway.contract.canonical import InferRequest
from tensorgate.gateway.contract.errors import Code
from tensorgate.gateway.contract.metrics import CallCounts, CallMetrics
from tensorgate.gateway.contract.questions import ModelMetadata, ModelStatus
from tensorgate.gateway.telemetry.call_outcome import CallOutcome
from tensorgate.gateway.telemetry.histogram import Gathered

_US: Final = 1e6

Pairs: TypeAlias = Iterable[tuple[float, int]]
_Key: TypeAlias = tuple[str, str, str]
"""(model, method, transport)"""


class _Calls:
    """The calls of one key."""

    __slots__ = ("failures", "latency", "rows", "runtime")

    def __init__(self, wanted: CallMetrics) -> None:
        self.failures: dict[Code, int] = {}
        self.latency = Gathered(wanted.bounds_us)
        self.runtime = Gathered(wanted.bounds_us)
        self.rows = Gathered(wanted.row_bounds)

    def counts(self, key: _Key) -> CallCounts:
        latency, runtime, rows = (each.histogram.distribution() for each in (self.latency, self.runtime, self.rows))
        well = sum(latency.counts)
        codes = {Code.OK: well, **self.failures} if well else dict(self.failures)
        return CallCounts(*key, codes, latency, runtime, rows)


class CountedCall(NamedTuple):
    """What is counted of one call."""

    model: str
    """A public name, or ""."""
    method: str
    transport: str
    code: Code
    """What the caller was told."""
    seconds: float
    model_seconds: float | None
    """None: it was no inference."""
    rows: float


class CountedModel(NamedTuple):
    """What is counted of an inference that another process has answered, beside what is known here."""

    model: str
    model_seconds: float
    rows: int


def counted_model(outcome: CallOutcome) -> tuple[str, int] | None:
    """The model of an inference, by its public name, and its rows; None for what is none."""
    question = outcome.question
    return (question.view.name, _rows(question)) if type(question) is InferRequest else None


def counted_call(outcome: CallOutcome, is_public: Callable[[str], bool]) -> CountedCall:
    """What is counted of a call that is over."""
    question, call = outcome.question, outcome.call
    method, code = outcome.endpoint.method, outcome.reply_code
    if outcome.counted is not None:
        model, seconds, rows = outcome.counted
        return CountedCall(model, method, call.transport, code, outcome.seconds, seconds, rows)
    if type(question) is InferRequest:
        name, seconds = question.view.name, outcome.model_seconds
        return CountedCall(name, method, call.transport, code, outcome.seconds, seconds, _rows(question))
    name = _named(call, question)
    return CountedCall(name if is_public(name) else "", method, call.transport, code, outcome.seconds, None, 0)


def _named(call: Call, question: Any) -> str:
    """The model that a call is about, if it says one."""
    if type(question) is ModelMetadata:
        return question.view.name
    if type(question) is ModelStatus:
        return question.ref.name
    return call.args.get("model", "") or call.notes.get("model", "")  # over gRPC only the dialect can say


class CallCounters:
    """Counts one by one or many at a time. `is_public` tells the names of models from any others."""

    def __init__(self, wanted: CallMetrics, is_public: Callable[[str], bool]) -> None:
        self.wanted = wanted
        self._is_public = is_public
        self._calls: dict[_Key, _Calls] = {}

    def ended(self, outcome: CallOutcome) -> None:
        """Count one call that is over."""
        self.count(counted_call(outcome, self._is_public))

    def count(self, call: CountedCall) -> None:
        """Count one call of which this is known."""
        calls = self._of(call.model, call.method, call.transport)
        if call.code:
            calls.failures[call.code] = calls.failures.get(call.code, 0) + 1
            return
        calls.latency.observe(call.seconds * _US)
        if call.model_seconds is not None:
            calls.runtime.observe(call.model_seconds * _US)
            if call.method in self.wanted.row_methods:
                calls.rows.observe(call.rows)

    def count_alike(self, call: CountedCall, number: int) -> None:
        """Count so many calls, of which these are the means."""
        calls = self._of(call.model, call.method, call.transport)
        if call.code:
            calls.failures[call.code] = calls.failures.get(call.code, 0) + number
            return
        calls.latency.observe_often(call.seconds * _US, number)
        if call.model_seconds is not None:
            calls.runtime.observe_often(call.model_seconds * _US, number)
            if call.method in self.wanted.row_methods:
                calls.rows.observe_often(call.rows, number)

    def count_merged(self, model: str, method: str, transport: str, took: Pairs, ran: Pairs) -> None:
        """Count inferences that went well: (seconds, how many), and the same of their model."""
        calls = self._of(model, method, transport)
        for gathered, pairs in ((calls.latency, took), (calls.runtime, ran)):
            for seconds, number in pairs:
                gathered.observe_often(seconds * _US, number)

    def teller(self, model: str, method: str, transport: str) -> Callable[[Any, Any], None] | None:
        """What takes the seconds of such inferences that went well, and those of their model, as arrays, in place of
        `ended`; None: `ended` is called for each.
        """
        if method in self.wanted.row_methods:
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
            calls = self._calls[key] = _Calls(self.wanted)
        return calls

    def forget(self, model: str) -> None:
        """A model has no loaded version any more: its counts end."""
        for key in [key for key in list(self._calls) if key[0] == model]:
            del self._calls[key]

    def settle(self) -> None:
        """Sort what was observed into histograms."""
        for calls in list(self._calls.values()):
            for gathered in (calls.latency, calls.runtime, calls.rows):
                gathered.settle()

    def page(self, target: str) -> Reply:
        """The dialect's page of them. Off the event loop: numbers are read while they change, each of them whole."""
        return self.wanted.answer(target, [calls.counts(key) for key, calls in list(self._calls.items())])


def _rows(request: InferRequest) -> int:
    """The rows of a request: the first dimension of its first input."""
    first = next(iter(request.inputs.values()), None)
    return 0 if first is None or not first.shape else int(first.shape[0])

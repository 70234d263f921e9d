"""The exposition under TensorFlow Serving's names: what is counted, what is timed, whose names are shown."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tensorgate.adapters.tf_serving.metrics import TfServingMetricsOptions, make_metrics
from tensorgate.gateway.contract.call import Call
from tensorgate.gateway.contract.canonical import InferRequest, ModelRef
from tensorgate.gateway.contract.errors import Code
from tensorgate.gateway.contract.questions import ModelMetadata, ModelStatus
from tensorgate.gateway.models.meters import Meters
from tensorgate.gateway.monitoring.call_counters import CallCounters
from tensorgate.gateway.monitoring.metrics import MetricsCollector
from tensorgate.gateway.telemetry.call_outcome import CallOutcome

KINDS = {
    "request_count": "counter",
    "request_latency": "histogram",
    "runtime_latency": "histogram",
    "request_example_counts": "histogram",
    "request_example_count_total": "counter",
    "request_log_count": "counter",
}
Labels = dict[str, str]


def infer(model: str, rows: int = 1) -> InferRequest:
    view: Any = SimpleNamespace(name=model)
    return InferRequest(view, {"x": np.zeros((rows, 3))})


class Counted:
    """The metrics, told of calls in few words, and read line by line."""

    def __init__(self, *models: str) -> None:
        shown = make_metrics(TfServingMetricsOptions(tf_serving_path="/m"))
        assert shown
        assert shown.calls
        self.counters = CallCounters(shown.calls, {*models}.__contains__)

    def call(
        self,
        method: str,
        question: Any = None,
        code: Code = Code.OK,
        us: float = 100.0,
        ran_us: float = 0.0,
        transport: Any = "http",
        **args: str,
    ) -> None:
        endpoint: Any = SimpleNamespace(method=method)
        call = Call(b"", "POST", "/", {}, transport, args)
        outcome = CallOutcome()
        outcome.endpoint, outcome.call = endpoint, call
        outcome.question, outcome.reply_code = question, code
        outcome.seconds, outcome.model_seconds = us / 1e6, ran_us / 1e6
        self.counters.ended(outcome)

    def text(self) -> str:
        return bytes(self.counters.page("/m").body).decode()  # type: ignore[arg-type]

    def lines(self) -> list[str]:
        return self.text().splitlines()

    def series(self, name: str) -> list[str]:
        """Those of one metric, without its prefix, in their order."""
        prefix = f":tensorflow:serving:{name}"
        return [line.removeprefix(prefix) for line in self.lines() if line.startswith((f"{prefix}{{", f"{prefix}_"))]


def test_every_metric_has_its_type_from_the_start_and_none_a_help() -> None:
    lines = Counted().lines()
    assert lines == [f"# TYPE :tensorflow:serving:{name} {kind}" for name, kind in KINDS.items()]


def test_calls_are_counted_by_model_and_status_over_all_methods() -> None:
    counted = Counted("a", "b")
    counted.call("infer", infer("a"))
    counted.call("infer", infer("a"), transport="grpc")
    counted.call("status", ModelStatus(ModelRef("a")))
    counted.call("metadata", ModelMetadata(infer("a").view))
    counted.call("infer", infer("b"), Code.DEADLINE_EXCEEDED)
    counted.call("regress", None, Code.INVALID_ARGUMENT, model="b")
    assert counted.series("request_count") == [
        '{model_name="a",status="OK"} 4',
        '{model_name="b",status="DEADLINE_EXCEEDED"} 1',
        '{model_name="b",status="INVALID_ARGUMENT"} 1',
    ]


def test_names_that_nobody_gave_to_a_model_are_no_labels() -> None:
    counted = Counted("a")
    for number in range(100):
        counted.call("infer", None, Code.NOT_FOUND, model=f"absent{number}")
        counted.call("status", ModelStatus(ModelRef(f"gone{number}")))
    assert counted.series("request_count") == [
        '{model_name="",status="NOT_FOUND"} 100',
        '{model_name="",status="OK"} 100',
    ]


def test_questions_about_models_over_grpc_are_not_counted() -> None:
    counted = Counted("a")
    counted.call("status", ModelStatus(ModelRef("a")), transport="grpc")
    assert counted.lines() == Counted().lines()


@pytest.mark.parametrize(
    ("method", "transport", "labels"),
    [
        ("infer", "http", 'model_name="a",API="predict",entrypoint="REST"'),
        ("regress", "http", 'model_name="a",API="regress",entrypoint="REST"'),
        ("classify", "grpc", 'model_name="a",API="Classify",entrypoint="GRPC"'),
    ],
)
def test_successes_are_timed_in_microseconds(method: str, transport: str, labels: str) -> None:
    counted = Counted("a")
    counted.call(method, infer("a"), us=250.0, transport=transport)
    counted.call(method, infer("a"), us=1e12, transport=transport)
    counted.call(method, infer("a"), Code.INTERNAL, us=9.0, transport=transport)
    lines = counted.series("request_latency")
    assert len(lines) == 33 + 3
    bounds = [line.split('le="')[1].split('"')[0] for line in lines[:34]]
    assert bounds[:8] == ["10", "18", "32.4", "58.32", "104.976", "188.957", "340.122", "612.22"]
    assert bounds[-2:] == [f"{10 * 1.8**32:g}", "+Inf"]
    assert lines[5:7] == [
        f'_bucket{{{labels},le="188.957"}} 0',
        f'_bucket{{{labels},le="340.122"}} 1',
    ]
    assert lines[-4:-2] == [f'_bucket{{{labels},le="{bounds[-2]}"}} 1', f'_bucket{{{labels},le="+Inf"}} 2']
    assert lines[-2:] == [f"_sum{{{labels}}} {1e12 + 250.0!r}", f"_count{{{labels}}} 2"]


def test_status_and_metadata_share_an_empty_api() -> None:
    counted = Counted("a")
    counted.call("status", ModelStatus(ModelRef("a")))
    counted.call("metadata", ModelMetadata(infer("a").view))
    assert counted.series("request_latency")[-1] == '_count{model_name="a",API="",entrypoint="REST"} 2'
    assert counted.series("runtime_latency") == []


def test_the_model_alone_is_timed_over_both_transports() -> None:
    counted = Counted("a")
    counted.call("infer", infer("a"), ran_us=30.0)
    counted.call("infer", infer("a"), ran_us=12.5, transport="grpc")
    assert counted.series("runtime_latency")[-2:] == [
        '_sum{model_name="a",API="Predict",runtime="TF1"} 42.5',
        '_count{model_name="a",API="Predict",runtime="TF1"} 2',
    ]


def test_examples_are_counted_where_there_are_any() -> None:
    counted = Counted("a")
    counted.call("infer", infer("a", 100))
    counted.call("regress", infer("a", 3))
    counted.call("classify", infer("a", 20_000), transport="grpc")
    counted.call("classify", infer("a", 7), Code.INTERNAL)
    assert counted.series("request_example_count_total") == ['{model="a"} 20003']
    lines = counted.series("request_example_counts")
    assert lines[:3] == [
        '_bucket{model="a",le="1"} 0',
        '_bucket{model="a",le="2"} 0',
        '_bucket{model="a",le="4"} 1',
    ]
    assert lines[-4:] == [
        '_bucket{model="a",le="16384"} 1',
        '_bucket{model="a",le="+Inf"} 2',
        '_sum{model="a"} 20003.0',
        '_count{model="a"} 2',
    ]


def test_names_are_escaped() -> None:
    counted = Counted('a "b" \\ c\n')
    counted.call("infer", infer('a "b" \\ c\n'))
    assert counted.series("request_count") == [r'{model_name="a \"b\" \\ c\n",status="OK"} 1']


def test_a_parser_reads_it() -> None:
    counted = Counted("a")
    counted.call("regress", infer("a"))
    families = {family.name: family for family in text_string_to_metric_families(counted.text())}
    assert families[":tensorflow:serving:request_latency"].type == "histogram"
    (sample,) = families[":tensorflow:serving:request_count"].samples
    assert (sample.labels, sample.value) == ({"model_name": "a", "status": "OK"}, 1)


def test_series_end_with_the_last_version_of_a_model() -> None:
    counted = Counted("a", "b")
    meters = Meters()
    meters.on_forget = MetricsCollector(call_counters={"tf_serving": counted.counters}).forget
    for name, version in (("a", 1), ("a", 2), ("b", 1)):
        meters.meter(name, version)
        counted.call("infer", infer(name))
    meters.forget("a", 1)
    assert len(counted.series("request_count")) == 2
    meters.forget("a", 2)
    assert counted.series("request_count") == ['{model_name="b",status="OK"} 1']

"""What runs alone is counted by the way, many at a time: the same as one by one."""

from collections.abc import Callable

import numpy as np
import pytest

from tensorgate.gateway.contract.canonical import InferRequest, InferResponse, ModelView
from tensorgate.gateway.contract.errors import GatewayError, ModelFailed
from tensorgate.gateway.contract.questions import Statistics
from tensorgate.gateway.engine.scheduler_metrics import SchedulerMetrics
from tensorgate.gateway.models.meters import ROWS, Meters
from tensorgate.gateway.telemetry.histogram import SECONDS, Histogram
from tensorgate.gateway.telemetry.statistics import Counters, Timings

ANSWER = InferResponse({"y": np.zeros(1)})
RUNS: tuple[tuple[int, InferResponse | GatewayError, float, Timings], ...] = (
    (1, ANSWER, 0.5, (("infer", 0.25),)),
    (4, ANSWER, 0.0625, (("infer", 0.03125),)),
    (1, ANSWER, 0.5, (("preprocess", 0.125), ("infer", 0.25), ("postprocess", 0.0625))),
    (1, ModelFailed("no"), 0.25, (("infer", 0.125),)),
    (4, ANSWER, 2.0, (("infer", 1.0),)),
)
"""Rows, outcome, seconds, what took them; all of them exact in binary."""


@pytest.fixture
def ask(make_model: Callable[..., ModelView]) -> InferRequest:
    return InferRequest(make_model("m", {}, {}), {})


def tell(meter: SchedulerMetrics, request: InferRequest) -> None:
    for number, (rows, outcome, seconds, timings) in enumerate(RUNS):
        meter.ran_inline(request, rows, outcome, (float(number), seconds), timings)


def statistics(counters: Counters, monkeypatch: pytest.MonkeyPatch) -> Statistics:
    monkeypatch.setattr("time.time", lambda: 100.0)
    monkeypatch.setattr("time.monotonic", lambda: 10.0)
    return counters.statistics("m", 1)


def test_what_runs_alone_is_the_same_in_all_series(ask: InferRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    stages: dict[str, Histogram] = {}
    batches = Histogram(ROWS)
    plain = SchedulerMetrics(
        lambda stage, took: stages.setdefault(stage, Histogram(SECONDS)).observe(took), batches.observe
    )
    meters = Meters()
    quick = meters.meter("m", 1)
    for meter in (plain, quick):
        tell(meter, ask)
    meters.settle()
    counted = meters.distributions()["m", "1"]
    assert statistics(quick.counters, monkeypatch) == statistics(plain.counters, monkeypatch)
    assert counted.batches == batches.distribution()
    for stage, histogram in stages.items():
        assert counted.stages[stage] == histogram.distribution(), stage


def test_nothing_is_counted_twice(ask: InferRequest) -> None:
    meter = Meters().meter("m", 1)
    for _ in range(3):
        tell(meter, ask)
        meter.counters.settle()
        meter.counters.settle()
    assert meter.counters.successes.count == 12
    assert meter.counters.rows == 30
    assert meter.counters.batches[4].count == 6

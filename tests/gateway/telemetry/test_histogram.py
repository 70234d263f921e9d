"""Histograms: what is noted and sorted later is the same as what is sorted at once."""

import threading

import numpy as np

from tensorgate.gateway.contract.errors import Code, ErrorReason
from tensorgate.gateway.monitoring.metrics import CallSeries, CodecTimes, MetricsCollector
from tensorgate.gateway.telemetry.histogram import SECONDS, Gathered, Histogram


def test_many_at_a_time_are_the_same_as_one_by_one() -> None:
    values = [*np.random.default_rng(1).exponential(1e-3, 5000).tolist(), *SECONDS, 0.0, 100.0]
    one, many = Histogram(SECONDS), Gathered(SECONDS)
    for number, value in enumerate(values):
        one.observe(value)
        many.observe(value)
        if number % 1000 == 0:
            many.settle()
    found = many.histogram
    assert found.counts == one.counts
    np.testing.assert_allclose(found.sum, one.sum, rtol=1e-12)


def test_nothing_is_lost_or_counted_twice_while_others_read() -> None:
    many = Gathered(SECONDS)
    ends = threading.Event()

    def read() -> None:
        while not ends.is_set():
            many.settle()

    readers = [threading.Thread(target=read) for _ in range(2)]
    for reader in readers:
        reader.start()
    for _ in range(100_000):
        many.observe(1e-3)
    ends.set()
    for reader in readers:
        reader.join()
    assert sum(many.histogram.counts) == 100_000


def test_calls_that_fail_are_no_others() -> None:
    calls = CallSeries(CodecTimes())
    for _ in range(3):
        calls.took(0.5)
    calls.failed(Code.INTERNAL, ErrorReason.MODEL_RAISED, 2.0)
    assert calls.endings() == {(Code.OK, None): 3, (Code.INTERNAL, ErrorReason.MODEL_RAISED): 1}
    assert calls.seconds().sum == 3.5
    assert calls.recent() == ([0.5, 0.5, 0.5], [2.0])
    assert calls.recent() == ([], [])


def test_what_reached_no_model_has_no_stages() -> None:
    metrics = MetricsCollector()
    metrics.calls["plain", "http", "", "", "ready"].took(0.1)
    text = metrics.render().decode()
    assert 'tensorgate_request_seconds_count{dialect="plain"' in text
    assert "tensorgate_stage_seconds_count" not in text

"""Seconds become minutes, hours and days; calls become rates and percentiles."""

from urllib.parse import quote

import numpy as np
import pytest

from tensorgate.adapters.grps.monitor import decode_series, encode_series
from tensorgate.gateway.contract.call import Call
from tensorgate.gateway.contract.errors import Code, ErrorReason
from tensorgate.gateway.contract.questions import MonitorSeries, Points
from tensorgate.gateway.monitoring.call_history import MAX_STREAMS, TOTAL, CallHistory, SecondOfCalls
from tensorgate.gateway.monitoring.metrics import MAX_RECENT, MetricsCollector, RequestKey
from tensorgate.gateway.monitoring.time_series import TimeSeries, Trend

INFER = ("open_inference", "http", "m", "1", "infer")
REFUSED = ("open_inference", "http", "", "", "infer")
HEALTH = ("open_inference", "http", "", "", "ready")


def count(metrics: MetricsCollector, key: RequestKey, code: Code, seconds: float) -> None:
    """One call that is over."""
    calls = metrics.calls[key]
    if code:
        calls.failed(code, ErrorReason.INTERNAL, seconds)
    else:
        calls.took(seconds)


def test_a_trend_remembers_and_forgets() -> None:
    trend = Trend(lambda values: sum(values) / len(values))
    for second in range(3600 * 24):
        trend.add(second % 60)
    days, hours, minutes, seconds = (trend.all()[a:b] for a, b in ((0, 30), (30, 54), (54, 114), (114, 174)))
    assert seconds == list(range(60))
    assert minutes == [29.5] * 60
    assert hours == [29.5] * 24
    assert days == [0.0] * 29 + [29.5]
    assert trend.last == 59


def test_the_highest_of_a_minute_is_that_of_its_seconds() -> None:
    trend = Trend(max)
    for second in range(60):
        trend.add(7.0 if second == 30 else 1.0)
    assert trend.all()[113] == 7.0


def test_calls_become_rates_and_percentiles() -> None:
    metrics = MetricsCollector()
    monitor = TimeSeries(metrics)
    for number in range(1, 101):
        count(metrics, INFER, Code.OK if number % 10 else Code.INTERNAL, number / 1000)
    count(metrics, INFER, Code.CANCELLED, 0.05)
    count(metrics, REFUSED, Code.NOT_FOUND, 0.001)
    count(metrics, HEALTH, Code.OK, 0.001)
    monitor.sample()
    assert set(monitor.history.streams()) == {("open_inference", "m"), ("open_inference", "")}
    [second] = monitor.history.points(("open_inference", "m"), "minutes").tolist()
    assert second[:2] == [101, 10]
    assert second[2:] == [pytest.approx(value, rel=0.05) for value in (50, 99, 50, 100)]
    assert monitor.trends["requests_per_second"].last == 102
    assert monitor.trends["error_percent"].last == pytest.approx(100 * 11 / 102)
    assert monitor.trends["max_latency_ms"].last == pytest.approx(100)
    monitor.sample()
    assert monitor.trends["requests_per_second"].last == 0
    assert np.isnan(monitor.history.points(TOTAL, "minutes")[1, 2:]).all(), "nothing was asked"
    assert monitor.history.counts(("open_inference", "m")) == (101, 10)


def test_a_model_that_comes_back_starts_anew() -> None:
    metrics = MetricsCollector()
    monitor = TimeSeries(metrics)
    for calls in (3, 1):
        for _ in range(calls):
            count(metrics, INFER, Code.OK, 0.001)
        monitor.sample()
        metrics.forget("m", 1, is_last=True)
    assert monitor.history.points(("open_inference", "m"), "minutes")[:, 0].tolist() == [3, 1]


def test_nothing_grows_without_end() -> None:
    metrics = MetricsCollector()
    monitor = TimeSeries(metrics)
    for _ in range(3 * MAX_RECENT):
        count(metrics, INFER, Code.OK, 0.001)
    for _ in range(300):
        monitor.sample()
    stream = ("open_inference", "m")
    assert monitor.history.counts(stream) == (3 * MAX_RECENT, 0)
    assert len(monitor.history.points(stream, "minutes")) == 120


def test_percentiles_of_minutes_and_hours_are_those_of_their_calls() -> None:
    """59 quick seconds and a slow one: the 99th percentile of the minute is slow, its median quick, whatever the means
    of its seconds say; and what is refused at once makes neither of them quicker.
    """
    history = CallHistory()
    for second in range(3600 * 2):
        slow = second % 60 == 30
        served = [2.0] * 20 if slow else [0.010] * 10
        history.add({("d", "m"): SecondOfCalls(len(served) + 50, 50, served, [50e-6] * 50)})
    about = {"hour": (60, 610.0, 60), "day": (2, 36600.0, 3600)}
    for span, (points, calls, seconds) in about.items():
        found = history.points(("d", "m"), span)
        assert len(found) == points
        expected = [calls + 50 * seconds, 50 * seconds, 10, 2000, 0.05, 0.05]
        for point in found.tolist():
            assert point == [pytest.approx(value, rel=0.04) for value in expected], span
    assert history.points(("d", "m"), "hour", since=118).shape == (2, 6)
    assert history.points(("d", "m"), "month").shape == (0, 6)


def test_streams_that_are_idle_longest_make_room() -> None:
    history = CallHistory()
    for number in range(MAX_STREAMS + 3):
        history.add({("d", str(number)): SecondOfCalls(1, 0, [0.001], [])})
    known = set(history.streams())
    assert len(known) <= MAX_STREAMS
    assert {("d", "0"), ("d", "1")}.isdisjoint(known)
    assert history.counts(("d", str(MAX_STREAMS + 2))) == (1, 0)
    assert history.points(("d", str(MAX_STREAMS + 2)), "minutes")[:, 0].sum() == 1


def test_series() -> None:
    monitor = TimeSeries(MetricsCollector())
    monitor.sample()
    for name in (
        "requests_per_second",
        "error_percent",
        "mean_latency_ms",
        "max_latency_ms",
        "cpu_percent",
        "memory_percent",
    ):
        found = monitor.series(MonitorSeries(name))
        assert found is not None
        assert (found.kind, [x for x, _ in found.points]) == ("trend", list(range(174)))
    cdf = monitor.series(MonitorSeries("latency_percentiles_ms"))
    assert cdf is not None
    assert [x for x, _ in cdf.points] == [*range(10, 100, 10), *range(91, 102)]
    assert monitor.series(MonitorSeries("")) is None


def test_names_of_grps() -> None:
    monitor = TimeSeries(MetricsCollector())
    monitor.trends["gpu0_memory_mib"] = Trend(max)

    def asked(name: str) -> Points | None:
        target = f"/grps/v1/monitor/series?name={quote(name)}"
        return monitor.series(decode_series(Call(b"", "GET", target, {}, "http"), lambda ref: None))  # type: ignore[arg-type, return-value]

    known = ("qps", "fail_rate(%)", "latency_avg(ms)", "latency_max(ms)", "cpu_usage(%)", "mem_usage(%)")
    for name in (*known, "latency_cdf(ms)", "gpu0_mem_usage(MIB)"):
        assert asked(f"*{name}"), name
    for name in ("qps", "*", "*error_percent", "*gpu1_mem_usage(MIB)", "*gpu0_memory_mib", ""):
        assert asked(name) is None, name


def test_series_to_the_byte() -> None:
    assert (
        encode_series(Points("trend", ((0, 0.126), (1, 2.0))), None).body
        == b'{"label":"trend","data":[[0,0.13],[1,2.0]]}'
    )
    unknown = encode_series(None, None)
    assert (unknown.http_status, unknown.body) == (200, b"key not found")

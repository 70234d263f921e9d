"""What doors count, and how the engine sums it up."""

from __future__ import annotations

import random
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tensorgate.gateway.contract.errors import Code, ErrorReason
from tensorgate.gateway.contract.metrics import CallMetrics
from tensorgate.gateway.crossing.frames import FrameReader, add_frame
from tensorgate.gateway.crossing.messages import Observed, Series
from tensorgate.gateway.monitoring import door_metrics
from tensorgate.gateway.monitoring.call_counters import CallCounters, CountedModel
from tensorgate.gateway.monitoring.door_metrics import DoorMetrics, DoorsObserved
from tensorgate.gateway.monitoring.metrics import MetricsCollector, note_traced
from tensorgate.gateway.telemetry.call_outcome import CallOutcome
from tensorgate.gateway.telemetry.call_record import CallRecord
from tensorgate.gateway.telemetry.histogram import SECONDS, Histogram, Merger


def keys(observed: Observed) -> list[tuple[str, str]]:
    return [(each.model, each.version) for each in observed.series]


def test_series_of_unloaded_versions_end_once_they_were_taken_over() -> None:
    door = DoorMetrics({}, lambda name: True, None)
    for model, version in (("m", 1), ("m", 2), ("r", 2), ("", "")):
        door.calls["v2", "http", model, version, "infer"].failed(Code.NOT_FOUND, ErrorReason.UNKNOWN_MODEL, 0.5)
    door.keep({("m", "2")}, ["r"])
    door.calls["v2", "http", "m", 1, "infer"].failed(Code.NOT_FOUND, ErrorReason.UNKNOWN_MODEL, 0.5)
    assert keys(door.take(0)) == [("m", "1"), ("m", "2"), ("r", "2"), ("", "")]
    assert set(door._every) == {("v2", "http", *key, "infer") for key in (("m", "2"), ("r", "2"), ("", ""))}
    assert not door.calls
    assert keys(door.take(0)) == []


class Sums:
    """In place of the collector."""

    def __init__(self) -> None:
        self.added: list[tuple[Any, ...]] = []
        self.calls: Any = self
        self.call_counters: dict[str, Any] = {}

    def __getitem__(self, key: tuple[Any, ...]) -> Any:
        self.added.append(key)
        return self

    def add(self, *of: Any) -> None: ...

    spent = add

    def decoded(self, seconds: float) -> None: ...

    encoded = decoded


def observed(*series: tuple[str, str], running: Sequence[tuple[str, int]] = ()) -> Observed:
    some = np.ones(1).tobytes()
    kinds = tuple(Series("v2", "http", *key, "infer", some, some, b"", b"", ()) for key in series)
    return Observed(0, kinds, (), (), (), (0, 0, 0, 0, 0), (), tuple(running))


def test_what_is_told_of_an_unloaded_version_revives_nothing() -> None:
    sums: Any = Sums()
    doors = DoorsObserved(sums, lambda model, version: (model, version) != ("m", "1"))
    doors.add(1, observed(("m", "1"), ("m", "2"), ("", "")))
    assert sums.added == [("v2", "http", "m", "2", "infer"), ("v2", "http", "", "", "infer")]


def test_requests_of_routes_that_are_on_their_way_add_up_until_a_door_has_gone() -> None:
    sums: Any = Sums()
    doors = DoorsObserved(sums)
    doors.add(1, observed(running=[("r", 2), ("s", 1)]))
    doors.add(2, observed(running=[("r", 3)]))
    doors.add(2, observed(running=[("r", 4)]))
    assert [doors.running(route) for route in "rst"] == [6, 1, 0]
    doors.gone(1)
    assert [doors.running(route) for route in "rst"] == [4, 0, 0]


@pytest.mark.parametrize("version", ["", "x"])
def test_series_without_a_model_are_told_of_in_any_case(version: str) -> None:
    door = DoorMetrics({}, lambda name: True, None)
    door.keep(set(), [])
    door.calls["v2", "http", "", version, "infer"].failed(Code.NOT_FOUND, ErrorReason.UNKNOWN_MODEL, 0.5)
    assert keys(door.take(0)) == [("", version)]
    assert len(door._every) == 1


BOUNDS_US = (10.0, 1000.0, 75_000.0)
CALLS = CallMetrics("/x", cast("Any", None), BOUNDS_US, (1.0, 4.0), frozenset({"classify"}))


def outcome(method: str, seconds: float, rows: int, code: Code) -> CallOutcome:
    told: Any = CallOutcome()
    told.endpoint, told.call = SimpleNamespace(method=method), SimpleNamespace(transport="http", dialect="tf")
    told.counted = CountedModel("m", seconds / 2, rows)
    told.seconds, told.reply_code = seconds, code
    return cast("CallOutcome", told)


def sums_of(engine: MetricsCollector) -> dict[Any, Any]:
    """All that is told of calls, by name and labels; the sums of merged times differ in their last digits."""
    engine.settle()
    found: dict[Any, Any] = {
        (sample.name, *sample.labels.values()): round(sample.value, 6)
        for family in text_string_to_metric_families(engine.render().decode())
        for sample in family.samples
        if "request" in sample.name or "stage" in sample.name
    }
    counters = engine.call_counters["tf"]
    for key, calls in counters._calls.items():
        counts = calls.counts(key)
        found["codes", key] = counts.codes
        for at, of in enumerate((counts.latency_us, counts.runtime_us, counts.rows)):
            found[at, key] = (of.counts, round(of.sum, 3))
    return found


def collector() -> MetricsCollector:
    return MetricsCollector(call_counters={"tf": CallCounters(CALLS, lambda name: True)})


def test_what_piles_up_is_merged_and_counts_as_if_it_was_not(monkeypatch: pytest.MonkeyPatch) -> None:
    chance = random.Random(5)  # noqa: S311
    doors = [DoorMetrics({"tf": CALLS}, lambda name: True, None) for _ in range(2)]
    engines = [collector() for _ in doors]
    monkeypatch.setattr(door_metrics, "MAX_NOTED", 500)
    edges = [us / 1e6 for us in BOUNDS_US] + list(SECONDS)
    for turn in range(30):
        for _ in range(100):
            method, code = chance.choice(["predict", "classify"]), chance.choice([Code.OK, Code.OK, Code.NOT_FOUND])
            seconds = chance.choice([chance.choice(edges), chance.lognormvariate(-6, 3)])
            ended = outcome(method, seconds, chance.randrange(6), code)
            for door in doors:
                series = door.calls["tf", "http", "m", 1, method]
                series.decoded(seconds / 4)
                series.encoded(seconds / 8)
                if code:
                    series.failed(code, ErrorReason.UNKNOWN_MODEL, seconds)
                else:
                    series.took(seconds)
                    series.ran(seconds / 2)
                if code or series.tell is None:
                    door.call_counters["tf"].ended(ended)
        doors[1].bound()
        noted = [each.noted for each in doors[1]._every.values()]
        assert sum(noted) + doors[1].call_counters["tf"].noted <= 500
        if turn in (12, 29):
            sizes = []
            for door, engine in zip(doors, engines, strict=True):
                frame = bytearray()
                add_frame(door.take(turn), frame)
                (said,) = FrameReader[Observed](Observed).receive(memoryview(frame))
                DoorsObserved(engine).add(1, said)
                sizes.append(len(frame))
            assert sizes[1] < sizes[0] / 3
    each, merged = map(sums_of, engines)
    assert merged == each
    assert len(doors[1].take(0).series) == 0


def test_exemplars_go_to_the_engine_once() -> None:
    door, engine = DoorMetrics({}, lambda name: True, None), MetricsCollector()
    outcome = CallOutcome()
    endpoint, view = SimpleNamespace(method="infer"), SimpleNamespace(name="m", version=1)
    call: Any = SimpleNamespace(dialect="v2", transport="http")
    outcome.endpoint, outcome.call, outcome.seconds = cast("Any", endpoint), call, 2.0
    record = CallRecord()
    record.view, record.trace_id = cast("Any", view), "0af7"
    note_traced(door.calls, outcome, record)
    assert not door.calls, "a call that was not counted has no series"
    door.calls["v2", "http", "m", 1, "infer"].took(2.0)
    note_traced(door.calls, outcome, record)
    said = door.take(0)
    DoorsObserved(engine).add(1, said)
    assert b'le="2.5"} 1.0 # {trace_id="0af7"} 2.0 ' in engine.render(openmetrics=True)
    assert door.calls["v2", "http", "m", 1, "infer"].exemplars == {}


def test_little_is_kept_one_by_one() -> None:
    door = DoorMetrics({"tf": CALLS}, lambda name: True, None)
    door.calls["tf", "http", "m", 1, "predict"].took(0.5)
    door.bound()
    (series,) = door.take(0).series
    assert (np.frombuffer(series.took).tolist(), any(series.merged)) == ([0.5], False)


@pytest.mark.parametrize("values", [[1.0], [0.5, 1.0], [1.0 + 1e-9, 2.0], [3.0, 1e9], [0.1] * 7 + [0.3] * 11])
def test_merged_values_stay_in_their_bucket(values: list[float]) -> None:
    merger, one_by_one, often = Merger([1.0, 2.0]), Histogram((1.0, 2.0)), Histogram((1.0, 2.0))
    merger.add(np.array(values))
    one_by_one.observe_all(np.array(values))
    for value, count in merger.take():
        often.observe_often(value, count)
    assert often.counts == one_by_one.counts
    assert often.sum == pytest.approx(one_by_one.sum, rel=1e-8)
    assert merger.take() == []

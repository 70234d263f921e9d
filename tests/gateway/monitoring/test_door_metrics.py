"""What doors count, and how the engine sums it up."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from tensorgate.gateway.contract.errors import Code
from tensorgate.gateway.crossing.messages import Observed, Series
from tensorgate.gateway.monitoring.door_metrics import DoorMetrics, DoorsObserved


def keys(observed: Observed) -> list[tuple[str, str]]:
    return [(each.model, each.version) for each in observed.series]


def test_series_of_unloaded_versions_end_once_they_were_taken_over() -> None:
    door = DoorMetrics({}, lambda name: True, None)
    for model, version in (("m", 1), ("m", 2), ("r", 2), ("", "")):
        door.calls["v2", "http", model, version, "infer"].failed(Code.NOT_FOUND, 0.5)
    door.keep({("m", "2")}, ["r"])
    door.calls["v2", "http", "m", 1, "infer"].failed(Code.NOT_FOUND, 0.5)
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

    def decoded(self, seconds: float) -> None: ...

    encoded = decoded


def observed(*series: tuple[str, str], running: Sequence[tuple[str, int]] = ()) -> Observed:
    some = np.ones(1).tobytes()
    kinds = tuple(Series("v2", "http", *key, "infer", some, some, b"", b"", ()) for key in series)
    return Observed(0, kinds, {}, (), (), (0, 0), (), tuple(running))


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
    door.calls["v2", "http", "", version, "infer"].failed(Code.NOT_FOUND, 0.5)
    assert keys(door.take(0)) == [("", version)]
    assert len(door._every) == 1

"""The plain way and the shortcuts give the same bytes, alone and among others, and what the model's formula says.

One world of models, made by the same number each time, with and without shortcuts. `soak_worlds.py` makes others.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from bursts import bursts, tour
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from questions import questions
from rig import Rig, rig
from worlds import make_world

pytestmark = pytest.mark.timeout(300)  # three servers start, and a busy machine has them wait

WORLD = 20
EXAMPLES = 60


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    """The servers, for all tests: connections and caches are to be used again."""
    with rig(make_world(WORLD), tmp_path_factory.mktemp("world")) as made:
        yield made


def test_every_model_by_every_form(pair: Rig) -> None:
    for ask in tour(pair.world):
        pair.judge([ask])


def test_whoever_shares_a_connection_stays_who_it_is(pair: Rig) -> None:
    """Callers with keys of their own, over one connection whose header table changes in every way."""
    pair.judge_callers(range(150))


def test_what_is_no_inference(pair: Rig) -> None:
    pair.compare(questions(pair.world))


@settings(
    max_examples=EXAMPLES,
    derandomize=True,
    database=None,
    phases=[Phase.generate],  # the rig looks for what is needed to see it again
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(data=st.data())
def test_alone_and_among_others(pair: Rig, data: st.DataObject) -> None:
    pair.judge_burst(data.draw(bursts(pair.world)))


def test_mirrors_see_no_difference(pair: Rig) -> None:
    pair.check_mirrors()

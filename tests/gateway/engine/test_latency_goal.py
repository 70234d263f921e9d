"""Batching with a goal, in pure functions and under virtual time: no clock, no wait."""

from collections.abc import Iterable, Sequence
from itertools import count

import numpy as np
import pytest

from tensorgate.gateway.engine.latency_goal import ArrivalRate, GoalPolicy, LatencyGoal
from tensorgate.gateway.engine.queue import LevelPolicy, QueuePolicy
from tensorgate.gateway.engine.simulation import Arrival, Simulated, Simulation

GOAL_S = 0.020
ROWS = 64
PADDED = (1, 8, 32)


def linear(rows: int) -> float:
    return 0.002 + 0.0001 * rows


def staircase(rows: int) -> float:
    return 0.002 + 0.0002 * next(size for size in (*PADDED, 64) if size >= rows)


def goal_of(*devices: str, share: float = 1.0) -> LatencyGoal:
    found = LatencyGoal(GoalPolicy(GOAL_S), devices or ("cpu",), ROWS)
    for device in found.times:
        for rows in (1, 2, 4, 8, 16, 32, 64):
            found.times[device].observe(rows, linear(rows))
    found.share = share
    return found


def busy(goal: LatencyGoal, per_second: float, until: float = 1.0) -> None:
    """So many rows have come a second."""
    for number in range(int(per_second * until)):
        goal.arrived(1, number / per_second)


def simulate(
    arrivals: Iterable[Arrival],
    *,
    goal: bool = True,
    run_s: object = linear,
    sizes: tuple[int, ...] = (),
    devices: Sequence[str] = ("cpu",),
    delay_us: int = 0,
    max_batch_size: int = ROWS,
    known: bool = True,
) -> tuple[Simulated, Simulation]:
    level = LevelPolicy(max_queue_size=100_000)
    policy = QueuePolicy(max_batch_size, delay_us, level, goal=GoalPolicy(GOAL_S, sizes) if goal else None)
    simulation = Simulation(policy, lambda device, rows: run_s(rows), devices)  # type: ignore[operator]
    if known:
        simulation.learn((rows, run_s(rows)) for rows in sizes or (1, 2, 4, 8, 16, 32, 64))  # type: ignore[operator]
    return simulation.run(arrivals), simulation


def poisson(per_second: float, seconds: float) -> Iterable[Arrival]:
    gaps = np.random.default_rng(7).exponential(1 / per_second, int(2 * per_second * seconds) + 100)
    return [Arrival(at) for at in np.cumsum(gaps).tolist() if at < seconds]


def test_the_rate_is_that_of_the_last_seconds() -> None:
    rate = ArrivalRate(0.1)
    assert rate.read(5.0) == 0.0
    for number in range(1000):
        rate.add(2, number / 1000)
    assert rate.read(1.0) == pytest.approx(2000, rel=0.02)
    assert rate.read(1.5) < 20


@pytest.mark.parametrize(
    ("per_second", "rows"),
    [
        (10, 59),  # with 98 % of the rows a second that 64 would do
        (9000, 59),
    ],
)
def test_a_batch_leaves_time_for_the_one_after_it(per_second: float, rows: int) -> None:
    goal = goal_of()
    busy(goal, per_second)
    assert goal.full("cpu", 1.0) == rows


def test_a_lower_share_makes_smaller_batches() -> None:
    goal = goal_of(share=0.5)
    busy(goal, 9000)
    full = goal.full("cpu", 1.0)
    assert linear(full) * 2 <= GOAL_S / 2 < linear(full + 2) * 2
    goal = goal_of(share=0.01)
    assert goal.full("cpu", 1.0) == 1  # what runs alone runs in any case


@pytest.mark.parametrize(
    ("per_second", "rows", "waits"),
    [
        (10, 1, False),  # the next comes in 100 ms, and would save 2
        (2000, 1, True),
        (2000, ROWS, False),  # full
    ],
)
def test_an_idle_device_waits_where_that_saves_time(per_second: float, rows: int, waits: bool) -> None:
    goal = goal_of()
    busy(goal, per_second)
    goal.full("cpu", 1.0)
    wait = goal.wait_s("cpu", rows, 1.0, 1.0 + GOAL_S, 1.0)
    assert (wait > 0) is waits
    assert wait <= GOAL_S / 4 + 1e-9
    assert (
        goal.wait_s("cpu", rows, 1.0 - GOAL_S / 4, 1.0 + GOAL_S / 2, 1.0) <= 0
    )  # it has waited for a quarter of the goal


@pytest.mark.parametrize(
    ("rows", "left_s", "per_second", "size"),
    [
        (40, GOAL_S, 100, 40),
        (40, 0.00411, 100, 21),  # as many as hold the time of the oldest
        (40, 0.00411, 9000, 40),  # smaller batches would not keep up, and nobody is left behind: late
        (200, 0.00411, 9000, 0),  # others are, who would be late, too: the oldest is refused
        (200, GOAL_S, 9000, 59),
    ],
)
def test_the_size_holds_the_goal_of_the_oldest(rows: int, left_s: float, per_second: float, size: int) -> None:
    goal = goal_of()
    busy(goal, per_second)
    goal.full("cpu", 1.0)
    assert goal.size("cpu", rows, 1, 1.0 + left_s, 1.0) == size


def test_lateness_counts_all_that_goes_before() -> None:
    goal = goal_of()
    busy(goal, 9000)
    full = goal.full("cpu", 1.0)
    assert goal.lateness_s(0, 1, 1.0 + GOAL_S, [(1.0, "cpu")], 1.0) < 0
    late = goal.lateness_s(3 * full, 1, 1.0 + GOAL_S, [(1.0, "cpu")], 1.0)
    assert late == pytest.approx(4 * linear(full) - GOAL_S, rel=0.05)
    assert goal.lateness_s(3 * full, 1, 1.0 + GOAL_S, [(1.001, "cpu")], 1.0) == pytest.approx(late + 0.001)


def test_late_batches_lower_the_share_at_once_and_good_ones_raise_it_slowly() -> None:
    goal = goal_of()
    goal.answered([GOAL_S * 2, GOAL_S / 2])
    assert goal.share == pytest.approx(0.98)
    assert (goal.counts.held, goal.counts.missed) == (1, 1)
    goal.answered([GOAL_S / 2])
    assert 0.98 < goal.share < 0.981
    for _ in range(100):
        goal.answered([GOAL_S * 2])
    assert goal.share == 0.5


@pytest.mark.parametrize("per_second", [200, 4000, 6500])
def test_the_goal_holds_and_nobody_is_refused(per_second: float) -> None:
    found, _ = simulate(poisson(per_second, 2.0))
    assert found.percentile(99) <= GOAL_S
    assert found.refused_share <= 0.01


@pytest.mark.parametrize("known", [True, False])
def test_beyond_what_the_device_can_do_those_who_are_answered_are_answered_in_time(known: bool) -> None:
    found, simulation = simulate(poisson(15_000, 2.0), known=known)
    assert found.percentile(99) <= GOAL_S * 1.1
    assert len(found.seconds) / 2.0 > 0.85 * ROWS / linear(ROWS)
    assert found.shed > 0
    late, _ = simulate(poisson(15_000, 2.0), goal=False)
    assert late.percentile(50) > 10 * GOAL_S
    status = simulation.queue.goal.status()  # type: ignore[union-attr]
    assert status.shed["goal"] == found.shed
    assert status.predicted_s == pytest.approx(status.actual_s, rel=0.1)


def test_padded_batches_are_filled() -> None:
    """As many as a fixed delay takes at best are 60 % of what the goal does."""
    arrivals = list(poisson(3200, 3.0))
    found, _ = simulate(arrivals, run_s=staircase, sizes=PADDED, max_batch_size=32)
    assert found.percentile(99) <= GOAL_S
    assert found.refused_share <= 0.01


def test_the_most_pressing_goes_first() -> None:
    arrivals = [Arrival(0.0), *(Arrival(0.0001, 1) for _ in range(3)), Arrival(0.0002, 1, deadline=0.006)]
    found, _ = simulate(arrivals, max_batch_size=1)
    assert found.arrived == [0.0, 0.0002, 0.0001, 0.0001, 0.0001]


def test_a_deadline_that_cannot_be_held_is_refused_at_once() -> None:
    found, simulation = simulate([Arrival(0.0, deadline=0.001)])
    assert (found.shed, found.seconds) == (1, [])
    assert simulation.queue.goal.status().shed == {"goal": 0, "deadline": 1}  # type: ignore[union-attr]


def test_a_goal_that_no_run_holds_refuses_nobody() -> None:
    found, simulation = simulate(poisson(20, 1.0), run_s=lambda rows: 0.030)
    assert found.shed == 0
    assert simulation.queue.goal.status().missed == len(found.seconds) > 0  # type: ignore[union-attr]


def test_who_comes_to_an_idle_model_is_served() -> None:
    slow = count()
    found, _ = simulate([Arrival(0.0), Arrival(1.0)], run_s=lambda rows: 0.5 if next(slow) > 7 else 0.002)
    assert len(found.seconds) == 2


def test_of_two_devices_the_quick_one_is_taken() -> None:
    policy = QueuePolicy(8, 0, LevelPolicy(100_000), goal=GoalPolicy(GOAL_S))
    ran: list[str] = []

    def run_s(device: str, rows: int) -> float:
        ran.append(device)
        return 0.002 if device == "cuda:0" else 0.050

    simulation = Simulation(policy, run_s, ("cuda:0", "cpu"))
    for device, seconds in (("cuda:0", 0.002), ("cpu", 0.050)):
        for rows in (1, 8):
            simulation.queue.learn(device, rows, seconds)  # type: ignore[union-attr]
    found = simulation.run(poisson(1000, 1.0))
    assert found.percentile(99) <= GOAL_S
    assert set(ran) == {"cuda:0"}


def test_sizes_that_have_not_run_are_tried() -> None:
    """What has run alone is no reason to run everybody alone."""
    goal = LatencyGoal(GoalPolicy(GOAL_S), ("cpu",), ROWS)
    goal.times["cpu"].observe(1, 0.0005)
    busy(goal, 9000)
    assert goal.full("cpu", 1.0) == 20
    goal.times["cpu"].observe(20, 0.004)
    assert goal.full("cpu", 1.0) > 20

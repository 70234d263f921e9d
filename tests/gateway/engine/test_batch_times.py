"""How long batches run, by rows: what is learned of a few runs, and what a stall or a slower machine changes of it."""

import pytest

from tensorgate.gateway.engine.batch_times import SHAPE_RUNS, BatchTimes


def taught(*points: tuple[int, float], max_rows: int = 32, sizes: tuple[int, ...] = (), runs: int = 3) -> BatchTimes:
    times = BatchTimes(max_rows, sizes)
    for rows, seconds in points:
        for _ in range(runs):
            times.observe(rows, seconds)
    return times


def test_what_has_not_run_is_not_known() -> None:
    times = BatchTimes(8)
    assert not times.is_known
    assert (times.seconds(4), times.largest(0.0), times.best_up_to(5), times.points()) == (0.0, 8, 5, [])


@pytest.mark.parametrize(
    ("rows", "seconds"),
    [
        (1, 0.010),
        (8, 0.017),
        (4, 0.013),  # between two points
        (16, 0.025),  # beyond the last the line goes on
        (100, 0.0413),  # no batch is larger than the largest
    ],
)
def test_between_the_sizes_that_have_run_lines_are_drawn(rows: int, seconds: float) -> None:
    assert taught((1, 0.010), (8, 0.017)).seconds(rows) == pytest.approx(seconds, rel=0.01)


def test_one_size_alone_says_what_each_row_costs_at_most() -> None:
    times = taught((4, 0.008))
    assert times.seconds(2) == pytest.approx(0.008)
    assert times.seconds(8) == pytest.approx(0.016)


def test_padded_batches_take_as_long_as_their_size() -> None:
    times = taught((1, 0.001), (8, 0.002), (32, 0.006), sizes=(1, 8, 32))
    assert [times.seconds(rows) for rows in (1, 2, 8, 9, 32)] == pytest.approx([0.001, 0.002, 0.002, 0.006, 0.006])
    assert [times.best_up_to(rows) for rows in (7, 8, 9, 15, 24, 32)] == [7, 8, 8, 8, 24, 32]


def test_where_rows_get_dearer_the_best_size_is_not_the_largest() -> None:
    times = taught((1, 0.010), (8, 0.020), (16, 0.080), (32, 0.300))
    assert times.best_up_to(32) == 8
    assert times.largest(0.080) == 16
    assert times.largest(0.005) == 0


def test_times_never_fall_with_the_rows() -> None:
    times = taught((1, 0.010), (8, 0.030), (16, 0.020), (32, 0.040))
    found = [times.seconds(rows) for rows in range(1, 33)]
    assert found == sorted(found)
    assert times.seconds(8) == times.seconds(16) == pytest.approx(0.025)


def test_a_single_stall_is_forgotten() -> None:
    times = taught((1, 0.010), (8, 0.020), runs=5)
    times.observe(8, 5.0)
    assert times.seconds(8) == pytest.approx(0.020)


def test_a_slower_machine_slows_sizes_that_have_not_run_since() -> None:
    times = taught((1, 0.010), (32, 0.040), runs=SHAPE_RUNS)
    for _ in range(6):
        times.observe(1, 0.020)
    assert times.seconds(32) == pytest.approx(0.080)
    for _ in range(9):
        times.observe(1, 0.010)
    assert times.seconds(32) == pytest.approx(0.040)


def test_what_is_likely_covers_most_runs() -> None:
    times = BatchTimes(4)
    for number in range(200):
        times.observe(4, 0.030 if number % 10 == 0 else 0.010)
    assert times.seconds(4) == pytest.approx(0.010)
    assert times.likely(4) == pytest.approx(0.030)

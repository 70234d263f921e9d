"""What a model's batches should be like, given the arrivals of its requests and the times of its batches.

The arrivals go through the scheduler's own queue under virtual time, for every choice there is; and once more, faster
and faster, until the choice does not hold any more: that is its headroom.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

from tensorgate.gateway.engine.batch_times import BatchTimes
from tensorgate.gateway.engine.latency_goal import GoalPolicy
from tensorgate.gateway.engine.queue import LevelPolicy, QueuePolicy
from tensorgate.gateway.engine.simulation import Arrival, Simulated, Simulation

REFUSED_AT_MOST: Final = 0.01
"""The share of requests that a choice may refuse and still hold."""
_DELAYS_US: Final = (0, 500, 1000, 2000, 5000, 10_000, 20_000)
_SPEEDS: Final = (1.0, 1.25, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0)
_MOST_ARRIVALS: Final = 20_000
_NOISE: Final = 0.05
"""How far runs of one size differ, as the deviation of their logarithms."""
_MAX_INSTANCES: Final = 8


@dataclass(frozen=True, slots=True)
class Curve:
    """How long a model's batches run: (rows, seconds) of each size that was measured."""

    points: Sequence[tuple[int, float]]
    sizes: tuple[int, ...] = ()
    why: str = ""
    """Why there are no more of them."""

    def times(self, max_rows: int) -> BatchTimes:
        found = BatchTimes(max_rows, self.sizes)
        for rows, seconds in self.points:
            if rows <= max_rows:
                found.observe(rows, seconds)
        return found


@dataclass(frozen=True, slots=True)
class Choice:
    """One way to batch, and what became of the recorded arrivals with it."""

    max_batch_size: int
    delay_us: int
    target_p99_ms: float | None
    p50_s: float
    p99_s: float
    refused: float
    """The share of requests."""
    mean_rows: float
    """Of a batch."""
    busy: float
    """The share of the time in which the device computes."""
    headroom: float
    """How many times as fast the calls may come."""
    instances: int = 1
    """How many devices like this one it takes."""

    def yaml(self) -> Iterator[str]:
        """The lines of the model's entry."""
        yield f"max_batch_size: {self.max_batch_size}"
        if self.target_p99_ms is not None:
            yield f"target_p99_ms: {self.target_p99_ms:g}"
        elif self.max_batch_size:
            yield f"max_queue_delay_us: {self.delay_us}"


@dataclass(frozen=True, slots=True)
class Advice:
    """What is chosen for a model, and why."""

    name: str
    arrivals: int
    per_second: float
    peak_per_second: float
    rows: float
    """Of a request, on the average."""
    curve: Curve
    choice: Choice | None
    other: Choice | None
    """The best of the other kind: a fixed delay where a goal is chosen, and none where there is no goal."""
    why: str


def advise(name: str, arrivals: Sequence[Arrival], curve: Curve, target_p99_ms: float | None) -> Advice:
    """Choose for one model. Without a goal the delay is chosen that answers soonest."""
    span = max(arrivals[-1].at - arrivals[0].at, 1e-3)
    peak = max(Counter(int(each.at) for each in arrivals).values())
    about = (len(arrivals), len(arrivals) / span, float(peak), sum(each.rows for each in arrivals) / len(arrivals))
    if not curve.points:
        return Advice(name, *about, curve, None, None, curve.why)
    came = arrivals[:_MOST_ARRIVALS]
    sizes = [rows for rows, _ in curve.points]
    fixed = min(
        (_tried(came, curve, size, delay, None) for size in sizes for delay in (_DELAYS_US if size > 1 else (0,))),
        key=lambda choice: (choice.refused > REFUSED_AT_MOST, choice.p99_s, choice.busy, choice.max_batch_size),
    )
    if target_p99_ms is None:
        return Advice(
            name, *about, curve, _measured_headroom(came, curve, fixed, 2 * fixed.p99_s), None, _why(curve, fixed)
        )
    target_s = target_p99_ms / 1e3
    fixed = max(
        (
            _measured_headroom(came, curve, _tried(came, curve, size, delay, None), target_s)
            for size in sizes
            for delay in (0, *(each for each in _DELAYS_US if each / 1e6 <= target_s / 2 and each and size > 1))
        ),
        key=lambda choice: (choice.headroom, -choice.p99_s),
    )
    goal = _measured_headroom(came, curve, _tried(came, curve, sizes[-1], 0, target_p99_ms), target_s)
    if not goal.headroom:
        goal = _with_instances(came, curve, goal, target_s)
    return Advice(name, *about, curve, goal, fixed, _why(curve, goal, target_s))


def _tried(
    arrivals: Sequence[Arrival],
    curve: Curve,
    size: int,
    delay_us: int,
    target_p99_ms: float | None,
    *,
    speed: float = 1.0,
    instances: int = 1,
) -> Choice:
    outcome, simulation_s = _simulated(arrivals, curve, size, delay_us, target_p99_ms, speed, instances)
    return Choice(
        size if len(curve.points) > 1 else 0,
        delay_us,
        target_p99_ms,
        outcome.percentile(50),
        outcome.percentile(99),
        outcome.refused_share,
        sum(outcome.batches) / max(1, len(outcome.batches)),
        outcome.busy_s / max(simulation_s, 1e-9) / instances,
        0.0,
        instances,
    )


def _simulated(
    arrivals: Sequence[Arrival],
    curve: Curve,
    size: int,
    delay_us: int,
    target_p99_ms: float | None,
    speed: float,
    instances: int,
) -> tuple[Simulated, float]:
    goal = None if target_p99_ms is None else GoalPolicy(target_p99_ms / 1e3, curve.sizes)
    level = LevelPolicy(max_queue_size=4096)
    times = curve.times(max(size, max(each.rows for each in arrivals)))
    noise = random.Random(1)  # noqa: S311  no secret: the same at every run
    policy = QueuePolicy(size, 0 if goal else delay_us, level, goal=goal)
    simulation = Simulation(
        policy,
        lambda device, rows: times.seconds(rows) * noise.lognormvariate(0.0, _NOISE),
        tuple(f"device {number}" for number in range(instances)),
    )
    simulation.learn(curve.points)
    first = arrivals[0].at
    outcome = simulation.run(
        Arrival(
            (each.at - first) / speed,
            min(each.rows, size),
            None if each.deadline is None else (each.at - first) / speed + each.deadline - each.at,
            each.key,
        )
        for each in arrivals
    )
    return outcome, outcome.ended_at


def _holds(choice: Choice, target_s: float) -> bool:
    return choice.p99_s <= target_s and choice.refused <= REFUSED_AT_MOST


def _measured_headroom(arrivals: Sequence[Arrival], curve: Curve, choice: Choice, target_s: float) -> Choice:
    """The choice with the largest of some speeds at which it holds; 0: not even as the calls came."""
    found = 0.0
    if _holds(choice, target_s):
        found = 1.0
        for speed in _SPEEDS[1:]:
            size = choice.max_batch_size or 1
            if not _holds(_tried(arrivals, curve, size, choice.delay_us, choice.target_p99_ms, speed=speed), target_s):
                break
            found = speed
    return replace(choice, headroom=found)


def _with_instances(arrivals: Sequence[Arrival], curve: Curve, choice: Choice, target_s: float) -> Choice:
    """With as many devices as it takes; as it was where more do not help."""
    for instances in range(2, _MAX_INSTANCES + 1):
        size = choice.max_batch_size or 1
        more = _tried(arrivals, curve, size, 0, choice.target_p99_ms, instances=instances)
        if _holds(more, target_s):
            return replace(more, headroom=1.0)
    return choice


def _why(curve: Curve, choice: Choice, target_s: float | None = None) -> str:
    (rows, least), (most, longest) = curve.points[0], curve.points[-1]
    parts = [f"{rows} row runs {least * 1e3:.3g} ms"]
    if most > rows:
        parts.append(f"{most} rows {longest * 1e3:.3g} ms, {least * most / longest:.3g} times as many a second")
    if curve.why:
        parts.append(curve.why)
    if target_s is not None and least > target_s:
        parts.append("so the goal cannot be held by any batch")
    elif not choice.headroom and target_s is not None:
        parts.append("no choice holds the goal as the calls came")
    elif choice.instances > 1:
        parts.append(f"one device does not hold the goal, {choice.instances} do")
    elif choice.busy < 0.5:
        parts.append(f"one device computes {choice.busy:.0%} of the time: it is enough")
    return "; ".join(parts)


_COLUMNS: Final = (
    "model",
    "requests",
    "per s",
    "peak",
    "rows",
    "batch",
    "p50 ms",
    "p99 ms",
    "refused",
    "busy",
    "holds to",
)


def report(found: Sequence[Advice]) -> Iterator[str]:
    """A table, why, and lines to paste."""
    table: list[tuple[str, ...]] = [_COLUMNS]
    for each in found:
        for label, choice in ((each.name, each.choice), ("  fixed delay", each.other)):
            if choice is not None:
                table.append(_row(label, each, choice))
    widths = [max(len(row[column]) for row in table) for column in range(len(_COLUMNS))]
    for row in table:
        cells = [
            cell.ljust(width) if not at else cell.rjust(width)
            for at, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        yield "  ".join(cells).rstrip()
    yield ""
    for each in found:
        yield f"{each.name}: {each.why}"
    yield "Times are of the queue and the model: reading and writing calls, and networks, come on top."
    yield ""
    yield "models:"
    for each in found:
        if each.choice is not None:
            yield f"  {each.name}:"
            yield from (f"    {line}" for line in each.choice.yaml())


def _row(label: str, advice: Advice, choice: Choice) -> tuple[str, ...]:
    kind = (
        f"goal {choice.target_p99_ms:g} ms"
        if choice.target_p99_ms
        else f"{choice.max_batch_size} after {choice.delay_us} us"
    )
    return (
        label,
        str(advice.arrivals),
        f"{advice.per_second:.3g}",
        f"{advice.peak_per_second:.3g}",
        f"{advice.rows:.3g}",
        f"{kind}, {choice.mean_rows:.3g}",
        f"{choice.p50_s * 1e3:.3g}",
        f"{choice.p99_s * 1e3:.3g}",
        f"{choice.refused:.1%}",
        f"{choice.busy:.0%}",
        f"x{choice.headroom:g}" if choice.headroom else "no",
    )


def plain(found: Sequence[Advice]) -> Sequence[Mapping[str, Any]]:
    """The advice, as data."""
    return [asdict(each) for each in found]

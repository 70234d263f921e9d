"""When a batch leaves, in which size, and who is refused, so that the 99th percentile of the time in the gateway holds
a goal at the highest throughput. Nothing here waits, and nothing looks at a clock: `now` is always given.

Two runs one after another bound everybody's time: who comes just after a batch has begun waits for its end, and then
for his own. So a batch is as large as the goal leaves room for, *itself and the one after it*, which is as large as the
arrivals of that time make it. Larger batches cost less a row, until then.

An idle device waits for company while the next request is expected sooner than the device time that sharing a run with
it saves, and for a part of the goal at most.

What cannot be answered in time is refused the moment it comes: at that moment its place in the queue, the batches
ahead of it and their times are known. Whoever is late in the queue, because the device was slower than expected, is
refused if others wait who can still be served in time, and is served late otherwise.

The goal covers what the queue does not see, too: reading calls and writing answers. The time until answers are handed
out is measured, and the part of the goal that the queue may use (`share`) is lowered with each batch that was late,
and raised slowly while they are not.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from tensorgate.gateway.contract.metrics import GoalStatus
from tensorgate.gateway.engine.batch_times import BatchTimes

_LATE_STEP: Final = 0.02
_HELD_STEP: Final = 0.00005
"""A batch in 400 may be late: a rule that allows for one request in a hundred has no room left for a bad minute."""
_LEAST_SHARE: Final = 0.5
_ENOUGH: Final = 0.98
"""A smaller batch is as good that serves so much of the rows a second: whoever comes meanwhile waits for less."""
_WAIT_SHARE: Final = 0.25
"""Of the goal, the most that an idle device waits: the rest is there when a burst comes."""


@dataclass(frozen=True, slots=True)
class GoalPolicy:
    """What the configuration says: the goal in seconds, and the sizes to which batches are padded."""

    target_s: float
    sizes: tuple[int, ...] = ()


@dataclass(slots=True)
class GoalCounts:
    """What has come of it so far, for metrics."""

    held: int = 0
    """Requests that were answered within the goal; `missed`: later."""
    missed: int = 0
    shed: dict[str, int] = field(default_factory=lambda: {"goal": 0, "deadline": 0})
    """Requests that were refused, by what they would have missed."""
    batches: int = 0
    predicted_s: float = 0.0
    """Seconds that batches were expected to run, and `actual_s` those that they ran, summed."""
    actual_s: float = 0.0
    waited_s: float = 0.0
    """Seconds that the oldest request of each batch had waited, summed."""


class ArrivalRate:
    """Rows that come in a second, lately: each counts less the longer ago it came."""

    def __init__(self, memory_s: float) -> None:
        self._memory_s = memory_s
        self._level = 0.0
        self._at = -math.inf
        self._since = math.inf

    def add(self, rows: int, now: float) -> None:
        """So many have come."""
        self._level = self._level * math.exp((self._at - now) / self._memory_s) + rows
        self._at = now
        self._since = min(self._since, now)

    def read(self, now: float) -> float:
        """Rows a second. Shortly after the first ones too low rather than too high."""
        if now <= self._since:
            return 0.0
        return self._level * math.exp((self._at - now) / self._memory_s) / self._memory_s


class LatencyGoal:
    """The goal of one model, and what has been learned on the way to it. `devices` are those of its workers, one each;
    batches have `max_rows` at most.
    """

    def __init__(self, policy: GoalPolicy, devices: Sequence[str], max_rows: int) -> None:
        self.target_s = policy.target_s
        self.share = 1.0
        self.counts = GoalCounts()
        self.times: Mapping[str, BatchTimes] = {
            device: BatchTimes(max_rows, policy.sizes) for device in dict.fromkeys(devices)
        }
        self._workers = len(devices)
        self._arrivals = ArrivalRate(2 * policy.target_s)
        self._full = {device: max(1, max_rows) for device in self.times}
        self._full_s = dict.fromkeys(self.times, 0.0)
        self.chosen_rows = 0
        """The size that the last batch was meant to have at most, and how long it was meant to wait for company."""
        self.chosen_wait_s = 0.0

    @property
    def budget_s(self) -> float:
        """The part of the goal that queue and run may take."""
        return self.target_s * self.share

    @property
    def is_attainable(self) -> bool:
        """Whether a request alone, on an idle device, holds the goal on any of the devices."""
        return any(times.seconds(1) <= self.target_s for times in self.times.values())

    def status(self) -> GoalStatus:
        """All of it as values, for metrics. In any thread."""
        counts = self.counts
        return GoalStatus(
            self.target_s,
            self.share,
            self.chosen_rows,
            self.chosen_wait_s,
            counts.held,
            counts.missed,
            dict(counts.shed),
            counts.batches,
            counts.predicted_s,
            counts.actual_s,
            counts.waited_s,
            min(times.seconds(1) for times in self.times.values()),
        )

    def arrived(self, rows: int, now: float) -> None:
        """A request has come, whatever becomes of it."""
        self._arrivals.add(rows, now)

    def full(self, device: str, now: float) -> int:
        """The rows of a full batch: the smallest size at which a row costs about as little as it can, of those that
        leave whoever comes just after it has begun the time for a run of his own.
        """
        times = self.times[device]
        if not times.is_known:
            return times.max_rows
        rate, budget_s = self._arrivals.read(now) / self._workers, self.budget_s

        def both_s(rows: int) -> float:
            company = max(1, min(rows, math.ceil(rate * times.seconds(rows))))
            return times.likely(rows) + times.likely(company)

        fitting = max(1, bisect_right(times.candidates, budget_s, key=both_s)) - 1
        best = times.candidates[fitting]
        if best <= times.largest_seen:  # of larger ones nothing is known before they have run
            at = bisect_left(times.candidates, _ENOUGH * times.rate(best), 0, fitting, key=times.rate)
            best = times.candidates[at]
        self._full[device], self._full_s[device] = best, times.seconds(best)
        self.chosen_rows = best
        return best

    def wait_s(self, device: str, rows: int, submitted: float, due: float, now: float) -> float:
        """How long an idle device waits for company, given the rows that wait and the oldest of these; 0: it begins."""
        times, full = self.times[device], self._full[device]
        self.chosen_wait_s = 0.0
        rate = self._arrivals.read(now) / self._workers
        if rows >= full or not times.is_known or rate <= 0:
            return 0.0
        together = times.seconds(min(full, rows + 1))
        saved = times.seconds(rows) + times.seconds(1) - together
        if saved * rate <= 1:
            return 0.0
        latest = min(due - times.likely(full), submitted + _WAIT_SHARE * self.budget_s)
        wait = min(latest - now, (full - rows) / rate)
        self.chosen_wait_s = max(0.0, wait)
        return self.chosen_wait_s

    def size(self, device: str, rows: int, first_rows: int, due: float, now: float) -> int:
        """How many of the rows that wait leave now, given the oldest of these; 0: the oldest would be late, and those
        behind it as well if they waited for it, so it is refused.
        """
        times, full = self.times[device], self._full[device]
        size = max(first_rows, times.best_up_to(min(rows, full)))
        holds = times.largest(due - now)
        if holds >= size:
            return size
        rate = self._arrivals.read(now) / self._workers
        if holds >= first_rows and times.rate(holds) >= rate:
            return max(first_rows, times.best_up_to(holds))
        is_late = now + times.seconds(size) > due
        return 0 if is_late and rows > size and self.is_attainable else size

    def lateness_s(self, ahead: int, rows: int, due: float, ends: Sequence[tuple[float, str]], now: float) -> float:
        """How much later than `due` a request of so many rows that comes now would be answered, with `ahead` rows
        before it; 0 or less: in time. `ends` say for each worker when it is expected to be free, and its device.
        """
        best = math.inf
        rate = self._arrivals.read(now) / self._workers
        total = sum(self._full[device] / max(self._full_s[device], 1e-9) for _, device in ends)
        most = max(self._full[device] for _, device in ends)
        turns, rest = divmod(ahead, most)
        for free, device in ends:
            times = self.times[device]
            if not times.is_known:
                return 0.0
            begin = max(free, now)
            if len(ends) == 1:
                begin += turns * self._full_s[device]
            elif turns:
                begin += turns * most / total
            size = min(self._full[device], math.ceil(rest + rows + rate * (begin - now)))
            best = min(best, begin + times.seconds(max(rows, size)) - due)
        return best

    def ran(self, device: str, rows: int, seconds: float, predicted_s: float, waited_s: float) -> None:
        """A batch has run for so long; it was expected to run for `predicted_s`."""
        self.times[device].observe(rows, seconds)
        counts = self.counts
        counts.batches += 1
        counts.predicted_s += predicted_s
        counts.actual_s += seconds
        counts.waited_s += waited_s

    def answered(self, totals: Sequence[float]) -> None:
        """The requests of a batch have been answered, each after so many seconds in all."""
        late = sum(total > self.target_s for total in totals)
        self.counts.missed += late
        self.counts.held += len(totals) - late
        step = -_LATE_STEP if late else _HELD_STEP
        self.share = min(1.0, max(_LEAST_SHARE, self.share + step))


Clock = Callable[[], float]

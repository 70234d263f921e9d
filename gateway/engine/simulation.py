"""A model's queue under virtual time: recorded or made arrivals, measured batch times, and no waiting.

The queue is the one that serves (`RequestQueue`, or `GoalQueue` with a goal), so what is found here is found of it, and
not of a model of it. Workers are not: a batch takes as long as `run_s` says.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Final, NamedTuple

from tensorgate.gateway.contract.errors import QueueFull, WouldBeLate
from tensorgate.gateway.contract.tensor import NOTHING
from tensorgate.gateway.engine.admission import Admission
from tensorgate.gateway.engine.goal_queue import GoalQueue
from tensorgate.gateway.engine.pending_request import PendingRequest
from tensorgate.gateway.engine.queue import QueuePolicy, RequestQueue
from tensorgate.gateway.engine.worker import Batch

RunSeconds = Callable[[str, int], float]
"""(device, rows) -> how long a batch of them takes there"""


class Arrival(NamedTuple):
    """A request that comes at some time, in seconds. `key`: with whom it may share a batch."""

    at: float
    rows: int = 1
    deadline: float | None = None
    key: object = "all"


@dataclass(slots=True)
class Simulated:
    """What became of the arrivals."""

    seconds: list[float] = field(default_factory=list)
    """Of those that were answered, in the order of their ends."""
    arrived: list[float] = field(default_factory=list)
    """When they had come."""
    late: int = 0
    """Those of them that were answered after their own deadline."""
    shed: int = 0
    full: int = 0
    """Refused since the queue was full."""
    batches: list[int] = field(default_factory=list)
    """Rows of each batch."""
    busy_s: float = 0.0
    ended_at: float = 0.0

    def percentile(self, percent: float) -> float:
        """Seconds; NaN where nothing was answered."""
        ordered = sorted(self.seconds)
        return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))] if ordered else math.nan

    @property
    def refused_share(self) -> float:
        """Those that were not answered, of all."""
        refused = self.shed + self.full
        return refused / max(1, refused + len(self.seconds))


class _Cancellation:
    """Nobody leaves."""

    call_record = None

    def end(self) -> None:
        pass


class _Request:
    """What a queue looks at."""

    __slots__ = ("deadline",)
    parameters = NOTHING
    priority = 0
    queue_timeout_us = 0
    cancellation = _Cancellation()

    def __init__(self, deadline: float | None) -> None:
        self.deadline = deadline


class _Worker:
    """Room for one batch."""

    contention = 0

    def __init__(self, device: str) -> None:
        self.device = device


_TICK_S: Final = 1e-6
"""A clock that moves only by what is waited for would stand still for less than its last digit."""
_ADMISSIONS: Final[dict[tuple[int, object], Admission]] = {}


class Simulation:
    """One model's queue and workers. `devices` are those of the workers, one each."""

    def __init__(self, policy: QueuePolicy, run_s: RunSeconds, devices: Sequence[str] = ("cpu",)) -> None:
        self.now = 0.0
        self._run_s = run_s
        self._idle: list[Any] = [_Worker(device) for device in devices]
        self.queue: RequestQueue | GoalQueue = (
            RequestQueue("simulated", policy, None, self._clock)
            if policy.goal is None
            else GoalQueue("simulated", policy, policy.goal, devices, clock=self._clock)
        )
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = count()
        self._wakeup = math.inf
        self.outcome = Simulated()

    def learn(self, points: Iterable[tuple[int, float]]) -> None:
        """What warm-up has measured: (rows, seconds)."""
        if isinstance(self.queue, GoalQueue):
            for rows, seconds in points:
                for device, times in self.queue.goal.times.items():
                    if rows <= times.max_rows:
                        self.queue.learn(device, rows, seconds)

    def run(self, arrivals: Iterable[Arrival]) -> Simulated:
        """All of them, in order of time, until the last is answered."""
        waiting = iter(arrivals)
        following = next(waiting, None)
        while following is not None or self._events:
            if following is not None and (not self._events or following.at <= self._events[0][0]):
                self.now = following.at
                self._arrive(following)
                following = next(waiting, None)
            else:
                self.now, _, happen = heapq.heappop(self._events)
                happen()
            if self._idle:
                self._dispatch()
        self.outcome.ended_at = self.now
        return self.outcome

    def _clock(self) -> float:
        return self.now

    def _at(self, when: float, happen: Callable[[], None]) -> None:
        heapq.heappush(self._events, (when, next(self._order), happen))

    def _arrive(self, arrival: Arrival) -> None:
        known = (arrival.rows, arrival.key)
        admission = _ADMISSIONS.setdefault(known, Admission(*known))
        request: Any = _Request(arrival.deadline)
        pending = PendingRequest(request, admission, self.now, self._left, self._failed)
        try:
            self.queue.add(pending)
        except QueueFull:
            self.outcome.full += 1
        except WouldBeLate:
            self.outcome.shed += 1

    def _left(self, pending: PendingRequest) -> None:
        self.queue.left(pending)

    def _failed(self, pending: PendingRequest, reason: str) -> None:
        self.outcome.shed += 1

    def _dispatch(self) -> None:
        while self._idle:
            found = self.queue.next_batch(self._idle)
            if found is None:
                if (wait := self.queue.next_wakeup_s) is not None and self.now + wait + _TICK_S < self._wakeup:
                    self._wakeup = self.now + wait + _TICK_S
                    self._at(self._wakeup, self._wake)
                return
            self._start(*found)

    def _wake(self) -> None:
        self._wakeup = math.inf

    def _start(self, worker: Any, batch: Batch) -> None:
        self._idle.remove(worker)
        batch.started = self.now
        for pending in batch.members:
            pending.started = True
        seconds = self._run_s(worker.device, batch.rows)
        self.outcome.batches.append(batch.rows)
        self.outcome.busy_s += seconds
        self._at(self.now + seconds, lambda: self._done(worker, batch))

    def _done(self, worker: Any, batch: Batch) -> None:
        self._idle.append(worker)
        self.queue.done(batch)
        for pending in batch.members:
            self.outcome.seconds.append(self.now - pending.submitted)
            self.outcome.arrived.append(pending.submitted)
            deadline = pending.request.deadline
            self.outcome.late += deadline is not None and self.now > deadline
            pending.end()

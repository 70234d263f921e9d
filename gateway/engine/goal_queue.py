"""The queue of a model with a goal: ordinary requests, the most pressing first, in batches as `latency_goal` says.

Each request has a time at which it is *due*: when the goal's time since it came is over, or its caller's deadline, if
that is sooner. Within a level of priority the one that is due first goes first. Without deadlines that is the order in
which they come.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from tensorgate.gateway.contract.errors import GatewayError, WouldBeLate
from tensorgate.gateway.engine.latency_goal import Clock, GoalPolicy, LatencyGoal
from tensorgate.gateway.engine.pending_request import PendingRequest
from tensorgate.gateway.engine.queue import Group, QueuePolicy, RequestQueue, count_rows
from tensorgate.gateway.engine.token_budget import TokenBudget
from tensorgate.gateway.engine.worker import Batch, Worker

CallSoon = Callable[..., Any]
GOAL: Final = "goal"
DEADLINE: Final = "deadline"


@dataclass(frozen=True, slots=True)
class _Run:
    """A batch that runs: where, since when, and how long it is expected to. Its oldest request had waited before."""

    worker: Worker
    began: float
    expected_s: float
    waited_s: float


class GoalQueue(RequestQueue):
    """Requests of a model with a goal. `devices` are those of its workers, one for each batch that may run beside
    others without taking turns; `call_soon` is that of the loop, by which the queue learns when the answers of a batch
    have been handed out; None: at once.
    """

    def __init__(
        self,
        name: str,
        policy: QueuePolicy,
        goal: GoalPolicy,
        devices: Sequence[str],
        budget: TokenBudget | None = None,
        call_soon: CallSoon | None = None,
        clock: Clock | None = None,
    ) -> None:
        super().__init__(name, policy, budget, clock)
        self.goal = LatencyGoal(goal, devices, policy.max_batch_size if policy.batching else 1)
        self._devices = tuple(devices)
        self._call_soon = call_soon
        self._runs: dict[Batch, _Run] = {}
        self._size = 0

    def add(self, pending: PendingRequest) -> None:
        """Raises WouldBeLate, and what RequestQueue does."""
        now, goal = pending.submitted, self.goal
        rows, deadline = pending.admission.rows, pending.request.deadline
        goal.arrived(rows, now)
        pending.due = due = now + goal.budget_s
        if deadline is not None and deadline < due:
            pending.due = due = deadline
        self._refuse_if_late(pending, due, now)
        super().add(pending)

    def next_batch(self, idle: Sequence[Worker]) -> tuple[Worker, Batch] | None:
        """The group whose first request is the most pressing, if it may leave, in the size that holds its goal."""
        self.next_wakeup_s = None
        if not self.queued and not self._finished:
            return None
        now = self._clock()
        worker = self._quickest(idle, now)
        if worker is None:
            return None
        self.goal.full(worker.device, now)
        best: Group | None = None
        for key, group in list(self._groups.items()):
            self._clear(group, worker, now)
            if not group:
                self._groups.pop(key, None)
                continue
            wait = 0.0 if self._closing else self._wait_for(group, worker, now)
            if wait > 0:
                self.next_wakeup_s = wait if self.next_wakeup_s is None else min(self.next_wakeup_s, wait)
            elif best is None or _order(group[0]) < _order(best[0]):
                best = group
        if best is None:
            return None
        self._size = self._size_of(best, worker, now)
        batch = self._take(best)
        waited = now - batch.members[0].submitted
        self._runs[batch] = _Run(worker, now, self.goal.times[worker.device].seconds(batch.rows), waited)
        return worker, batch

    def done(self, batch: Batch) -> None:
        """Learn from a batch that has run."""
        run = self._runs.pop(batch, None)
        if run is None:
            return
        now = self._clock()
        if not _has_failed(batch):
            took = now - (batch.started or run.began)
            self.goal.ran(run.worker.device, batch.rows, took, run.expected_s, run.waited_s)
        if self._call_soon is None:
            self._handed_out(batch, now)
        else:  # in the turn after the next: after those who wait for the answers, and are to be woken in the next
            self._call_soon(self._call_soon, self._handed_out, batch, now)

    def learn(self, device: str, rows: int, seconds: float) -> None:
        """A batch has run in warm-up."""
        if device in self.goal.times:
            self.goal.times[device].observe(rows, seconds)

    def _handed_out(self, batch: Batch, ended: float) -> None:
        """What answers wait for behind the run, calls are taken to have waited for before they came here."""
        now = self._clock()
        lag = now - ended
        self.goal.answered([now + lag - each.submitted for each in batch.members if not each.abandoned])

    def _refuse_if_late(self, pending: PendingRequest, due: float, now: float) -> None:
        """Whoever comes to an idle model is served, late or not: nothing is gained by refusing him. But for a deadline
        that cannot be held.
        """
        deadline = pending.request.deadline
        goal = self.goal
        if deadline is None and (not goal.is_attainable or (not self.queued and len(self._runs) < len(self._devices))):
            return
        ends = [(run.began + run.expected_s, run.worker.device) for run in self._runs.values()]
        idle = list(self._devices)
        for _, device in ends:
            idle.remove(device)
        ends += [(now, device) for device in idle]
        late = goal.lateness_s(self._rows_before(pending, due), pending.admission.rows, due, ends, now)
        if late > 0:
            raise self._shed(pending, due, late)

    def _rows_before(self, pending: PendingRequest, due: float) -> int:
        """Rows of those that go before a request that comes now: mostly of all."""
        if pending.request.deadline is None and not self._has_levels:
            return self._rows
        own = (2 * self._policy.level_of(pending.request) if self._has_levels else 0, due)
        return sum(count_rows(each for each in group if _order(each) <= own) for group in self._groups.values())

    def _shed(self, pending: PendingRequest, due: float, late_s: float) -> WouldBeLate:
        self.goal.counts.shed[DEADLINE if due == pending.request.deadline else GOAL] += 1
        return WouldBeLate(self._name, late_s)

    def _quickest(self, idle: Sequence[Worker], now: float) -> Worker | None:
        """Of the idle workers the scheduler's choice, the last, unless its device is slower than another's. None: a
        device that is busy now would be done sooner, and this one too late; or a batch would take turns with another,
        and nobody could say how long it takes.
        """
        times = self.goal.times
        idle = [worker for worker in idle if not worker.contention]
        if not idle or len(times) == 1:
            return idle[-1] if idle else None
        rows = max(1, self._rows)
        found = min(reversed(idle), key=lambda worker: times[worker.device].seconds(rows))
        alone = times[found.device].seconds(1)
        sooner = any(
            max(now, run.began + run.expected_s) + times[run.worker.device].seconds(rows) < now + alone
            for run in self._runs.values()
        )
        return None if sooner and alone > self.goal.budget_s else found

    def _wait_for(self, group: Group, worker: Worker, now: float) -> float:
        first = group[0]
        if first.admission.batch_key is None:
            return 0.0
        return self.goal.wait_s(worker.device, count_rows(group), first.submitted, first.due, now)

    def _clear(self, group: Group, worker: Worker, now: float) -> None:
        """Those who have left go, and those whose deadline cannot be held, and those who would make others late."""
        times = self.goal.times[worker.device]
        while True:
            self._drop_finished(group)
            if not group:
                return
            first = group[0]
            deadline, runs = first.request.deadline, times.seconds(first.admission.rows)
            if deadline is not None and now + runs > deadline:
                late = now + runs - deadline
            elif not self._size_of(group, worker, now):
                late = max(0.0, now + runs - first.due)
            else:
                return
            first.end(self._shed(first, first.due, late))

    def _size_of(self, group: Group, worker: Worker, now: float) -> int:
        first = group[0]
        if first.admission.batch_key is None:
            return first.admission.rows
        return self.goal.size(worker.device, count_rows(group), first.admission.rows, first.due, now)

    def _enter_group(self, key: Hashable, pending: PendingRequest) -> None:
        """Behind everybody who is due sooner, or has a better rank."""
        group = self._groups.get(key)
        if not isinstance(group, deque):
            self._groups[key] = self._new_group((pending,))
            return
        place = len(group)
        while place and _order(group[place - 1]) > _order(pending):
            place -= 1
        group.insert(place, pending)

    def _room(self, group: Group) -> int:
        return self._size or 1


def _has_failed(batch: Batch) -> bool:
    """Whether its time says nothing of batches that do not fail."""
    outcomes = batch.outcomes
    return bool(batch.alone) or (type(outcomes) is list and bool(outcomes) and isinstance(outcomes[0], GatewayError))


def _order(pending: PendingRequest) -> tuple[int, float]:
    return pending.rank, pending.due

"""Requests that wait for room, and which of them leave together.

Only requests of one batch key share a batch: the same input names, dtypes and trailing shapes, the same parameters, and
what else the model is shown of them (see admission.py). Of several groups that may go, the one with the most
urgent request goes first: the highest priority, then the longest wait; within a group the order is the same.

A request that has waited longer than its level's policy allows is refused, or, where the policy says `delay`, steps
behind all others of its level. Source: Triton, the queue policies of the dynamic batcher.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from tensorgate.gateway.contract.canonical import InferRequest
from tensorgate.gateway.contract.errors import QueueFull
from tensorgate.gateway.engine.latency_goal import Clock, GoalPolicy
from tensorgate.gateway.engine.pending_request import PendingRequest
from tensorgate.gateway.engine.token_budget import TokenBudget
from tensorgate.gateway.engine.worker import Batch, Worker


@dataclass(frozen=True, slots=True)
class LevelPolicy:
    """How requests of one priority wait. `timeout_us` 0: as long as it takes."""

    max_queue_size: int = 512
    timeout_us: int = 0
    timeout_action: Literal["reject", "delay"] = "reject"
    allow_timeout_override: bool = False

    def patience_us(self, request: InferRequest) -> int:
        """How long this request may wait, 0 without a limit: a caller may only shorten what the policy says."""
        wanted = request.queue_timeout_us if self.allow_timeout_override else 0
        if wanted and (not self.timeout_us or wanted < self.timeout_us):
            return wanted
        return self.timeout_us


@dataclass(frozen=True, slots=True)
class QueuePolicy:
    """How requests wait. `max_batch_size` 0: one request at a time, whatever its shape.

    There are `levels` of priority, counted from 1, which is the highest; requests that name none of them get
    `default_level`. A level waits as `level` says, unless it is one of `own_levels`.

    A group whose first requests make one of the `preferred_batch_sizes` exactly does not wait for more company, and
    leaves in that size; so does one with as many rows as the largest of them. With `send_on_mismatch`, neither does a
    group after which a request of another key has come. Source: Triton's dynamic batcher.

    With a `goal` none of these three counts: see goal_queue.
    """

    max_batch_size: int = 0
    max_queue_delay_us: int = 0
    level: LevelPolicy = LevelPolicy()
    own_levels: Mapping[int, LevelPolicy] = field(default_factory=dict)
    levels: int = 1
    default_level: int = 1
    preferred_batch_sizes: tuple[int, ...] = ()
    batching: bool = True
    send_on_mismatch: bool = False
    goal: GoalPolicy | None = None

    @property
    def has_timeouts(self) -> bool:
        """Whether any request may wait for a limited time only."""
        return any(each.timeout_us or each.allow_timeout_override for each in (self.level, *self.own_levels.values()))

    @property
    def may_go_early(self) -> bool:
        """Whether a full batch may leave the queue before there is room for it: nobody may overtake it, or be refused
        for having waited there.
        """
        is_plain = self.levels == 1 and not self.has_timeouts and self.goal is None
        return self.max_batch_size > 1 and self.batching and is_plain

    def level_of(self, request: InferRequest) -> int:
        """The request's level, from 1 on. Source: Triton takes 0, and what is too large, as the default."""
        level = request.priority
        return level if 1 <= level <= self.levels else self.default_level


class Group(Protocol):
    """Requests of one batch key, in the order in which they go."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[PendingRequest]: ...

    def __getitem__(self, place: int, /) -> PendingRequest: ...

    def popleft(self) -> PendingRequest: ...

    def remove(self, pending: PendingRequest, /) -> None: ...


class SchedulerQueue(Protocol):
    """Where a scheduler's requests wait: `RequestQueue`, or `sequences.Sequences`."""

    queued: int
    """Requests that wait."""
    queued_tokens: int | None
    """Tokens of their texts, padding within a request included; None where they are not counted."""
    next_wakeup_s: float | None
    """After next_batch has found nothing: seconds until something may go by the clock alone, None if nothing waits
    for the clock.
    """

    @property
    def alive(self) -> int:
        """Sequences that are not over."""
        ...

    def add(self, pending: PendingRequest) -> None:
        """Take in a request. Raises QueueFull, and what else refuses it."""
        ...

    def next_batch(self, idle: Sequence[Worker]) -> tuple[Worker, Batch] | None:
        """What may leave now, and the idle worker where it runs."""
        ...

    def done(self, batch: Batch) -> None:
        """A batch has run: its outcomes are complete, and its requests do not have them yet."""
        ...

    def left(self, pending: PendingRequest) -> None:
        """A waiting request has ended: abandoned, or late."""
        ...

    def delay(self, pending: PendingRequest) -> None:
        """A waiting request has waited too long, and lets all others of its level pass."""
        ...

    def waiting(self) -> Iterable[PendingRequest]:
        """Everything that waits, in order as far as order matters."""
        ...

    def close(self) -> None:
        """Nothing will be added: what waits goes as soon as it can."""
        ...


def batch_key(pending: PendingRequest) -> Hashable:
    """With whom a request may share a batch; None: with nobody."""
    key = pending.admission.batch_key
    if key is not None and pending.request.parameters:
        return key, tuple((name, type(value), value) for name, value in sorted(pending.request.parameters.items()))
    return key


class RequestQueue:
    """Ordinary requests: any that wait may go, to any idle worker. With a `budget` batches have no more tokens.

    A request's rank orders it: two for each level, the second for those that were delayed. Without levels it is 0, or
    1 for those that were delayed.
    """

    alive = 0

    def __init__(
        self, name: str, policy: QueuePolicy, budget: TokenBudget | None = None, clock: Clock | None = None
    ) -> None:
        self._name = name
        self._clock: Clock = clock or time.monotonic
        self._policy = policy
        self._groups: dict[Hashable, Group] = {}
        self._counts: Counter[int] = Counter()
        """Requests of each level that has any: a caller may name more levels than one could keep."""
        self._has_levels = policy.levels > 1 or bool(policy.own_levels)
        self._most = policy.level.max_queue_size
        self._bound = self._most + sum(level.max_queue_size for level in policy.own_levels.values())
        self._full = max((policy.max_batch_size, *policy.preferred_batch_sizes))
        self._enough = min(policy.max_batch_size, max(policy.preferred_batch_sizes, default=policy.max_batch_size))
        """Rows that wait for no more company."""
        self._budget = budget
        self._max_tokens = 0 if budget is None else budget.most
        self.queued_tokens: int | None = None if budget is None else 0
        self._rows = 0
        self._finished = 0
        self._closing = False
        self.queued = 0
        self.next_wakeup_s: float | None = None

    def add(self, pending: PendingRequest) -> None:
        """Behind everybody of its rank. Requests without a key share a group, and nothing else."""
        if self._budget is not None:
            pending.tokens = self._budget.tokens_of(pending.request, pending.admission.rows)
        if self._has_levels:
            self._enter_level(pending)
        elif self.queued >= self._most:
            raise QueueFull(self._name, self._most)
        key = pending.admission.batch_key if not pending.request.parameters else batch_key(pending)
        self._enter_group(key, pending)
        self.queued += 1
        self._rows += pending.admission.rows
        self._count_tokens(pending)

    def next_batch(self, idle: Sequence[Worker]) -> tuple[Worker, Batch] | None:
        """The ripe group whose first request is the most urgent, as far as it fits into one batch.

        Where it would only take turns with another batch, it goes if it is full: then its copies are hidden behind
        that one's computation. What is smaller gains company while it waits.
        """
        self.next_wakeup_s = None
        if not self.queued and not self._finished:
            return None
        if idle[-1].contention and self._rows < self._full and None not in self._groups and not self._max_tokens:
            return None
        now = self._clock()
        best: Group | None = None
        for key, group in list(self._groups.items()):
            self._drop_finished(group)
            if not group:
                del self._groups[key]
                continue
            if idle[-1].contention and not self._is_full(group):
                continue
            next_wakeup_s = self._wait_s(group, now)
            if next_wakeup_s > 0:
                self.next_wakeup_s = (
                    next_wakeup_s if self.next_wakeup_s is None else min(self.next_wakeup_s, next_wakeup_s)
                )
            elif best is None or self._urgency(group[0]) < self._urgency(best[0]):
                best = group
        return None if best is None else (idle[-1], self._take(best))

    def done(self, batch: Batch) -> None:
        """Ordinary requests leave nothing behind."""

    def left(self, pending: PendingRequest) -> None:
        """Its place in the group is cleared when its turn comes, or when many such have gathered."""
        self.queued -= 1
        self._rows -= pending.admission.rows
        self._count_tokens(pending, -1)
        if self._has_levels:
            self._leave_level(pending)
        self._finished += 1
        if self._finished > self._bound:
            for key, group in list(self._groups.items()):
                self._groups[key] = self._new_group([pending for pending in group if not pending.finished])
            self._finished = 0

    def delay(self, pending: PendingRequest) -> None:
        key = batch_key(pending)
        self._groups[key].remove(pending)
        pending.rank += 1
        self._enter_group(key, pending)

    def waiting(self) -> Iterable[PendingRequest]:
        return [pending for group in self._groups.values() for pending in group]

    def close(self) -> None:
        self._closing = True

    # What queues differ in that keep callers apart: how groups are made, and what goes first. See fair_queue.

    def _new_group(self, pendings: Iterable[PendingRequest]) -> Group:
        return deque(pendings)

    def _enter_group(self, key: Hashable, pending: PendingRequest) -> None:
        """Behind everybody of its rank."""
        group = self._groups.get(key)
        if isinstance(group, deque):
            insert_by_rank(group, pending)
        else:
            self._groups[key] = self._new_group((pending,))

    def _urgency(self, pending: PendingRequest) -> tuple[float, ...]:
        return pending.rank, pending.submitted

    def _enter_level(self, pending: PendingRequest) -> None:
        level = self._policy.level_of(pending.request)
        most = self._policy.own_levels.get(level, self._policy.level).max_queue_size
        if self._counts[level] >= most:
            raise QueueFull(self._name, most)
        self._counts[level] += 1
        pending.rank = 2 * level

    def _leave_level(self, pending: PendingRequest) -> None:
        level = pending.rank // 2
        self._counts[level] -= 1
        if not self._counts[level]:
            del self._counts[level]

    def _count_tokens(self, pending: PendingRequest, times: int = 1) -> None:
        if self.queued_tokens is not None:
            self.queued_tokens += times * pending.tokens * pending.admission.rows

    def _drop_finished(self, group: Group) -> None:
        """Abandoned and late requests leave before they cost a place in a batch."""
        while group and group[0].finished:
            group.popleft()
            self._finished -= 1

    def _wait_s(self, group: Group, now: float) -> float:
        """Seconds until this group may go: 0 when one of it has waited long enough, it fills a batch, or it is sent
        for a request that does not fit.
        """
        delay = self._policy.max_queue_delay_us / 1e6
        if not delay or self._closing or group[0].admission.batch_key is None:
            return 0.0
        if self._policy.send_on_mismatch and self._has_mismatch(group):
            return 0.0
        waited = now - min(pending.submitted for pending in group if not pending.finished)
        is_enough = count_rows(group) >= self._enough or self._has_enough_tokens(group) or self._preferred_rows(group)
        return 0.0 if waited >= delay or is_enough else delay - waited

    def _has_mismatch(self, group: Group) -> bool:
        """Whether a request of another group has come after the first of this one."""
        first = group[0].submitted
        return any(other[-1].submitted > first for other in self._groups.values() if other and other is not group)

    def _preferred_rows(self, group: Iterable[PendingRequest]) -> int:
        """The largest preferred size that its first requests make exactly; 0: none."""
        preferred = self._policy.preferred_batch_sizes
        if not preferred:
            return 0
        found = rows = 0
        for pending in group:
            if not pending.finished:
                rows += pending.admission.rows
                if rows in preferred:
                    found = rows
        return found

    def _is_full(self, group: Group) -> bool:
        if group[0].admission.batch_key is None:
            return True
        return count_rows(group) >= self._full or self._has_enough_tokens(group)

    def _has_enough_tokens(self, group: Iterable[PendingRequest]) -> bool:
        """Whether they are as many as run together, or more."""
        if not self._max_tokens:
            return False
        waiting = [pending for pending in group if not pending.finished]
        rows = sum(pending.admission.rows for pending in waiting)
        return rows * max((pending.tokens for pending in waiting), default=0) >= self._max_tokens

    def _take(self, group: Group) -> Batch:
        members: list[PendingRequest] = []
        room = most = max(self._room(group), group[0].admission.rows)
        longest = 0
        while group:
            pending = group[0]
            if pending.finished:
                self._finished -= 1
                group.popleft()
                continue
            rows = pending.admission.rows
            if rows > room:
                break
            if self._max_tokens:
                longest = max(longest, pending.tokens)
                if members and (most - room + rows) * longest > self._max_tokens:
                    break
            room -= rows
            self._count_tokens(pending, -1)
            members.append(group.popleft())
            if self._has_levels:
                self._leave_level(pending)
            if pending.admission.batch_key is None:
                break
        self.queued -= len(members)
        self._rows -= most - room
        return Batch(members)

    def _room(self, group: Group) -> int:
        """The largest preferred size that is filled exactly, else as many rows as the model takes."""
        return self._preferred_rows(group) or self._policy.max_batch_size


def insert_by_rank(group: deque[PendingRequest], pending: PendingRequest) -> None:
    """Behind everybody of its rank."""
    if not group or group[-1].rank <= pending.rank:
        group.append(pending)
        return
    place = len(group)
    while place and group[place - 1].rank > pending.rank:
        place -= 1
    group.insert(place, pending)


def count_rows(group: Iterable[PendingRequest]) -> int:
    """Those of requests that have not ended."""
    return sum(pending.admission.rows for pending in group if not pending.finished)

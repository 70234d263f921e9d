"""The queues of a model whose callers have shares of its devices: one for each caller, and who of them is next.

A batch may hold requests of several callers: request by request, the next is that of the caller who has had least (see
`shares`), of those that wait with the same batch key. Within a caller's queue everything is as in `RequestQueue`:
priorities, delays, timeouts and budgets. How many may wait is counted for each caller, so that a full queue is full for
that caller alone.

A model of sequences keeps their order and their seats; of several sequences that may go, and of those that wait for a
seat, the next is that of the caller who has had least. A seat is kept until its sequence ends.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from itertools import chain

from tensorgate.gateway.contract.errors import SequenceIdMismatch
from tensorgate.gateway.engine.pending_request import PendingRequest
from tensorgate.gateway.engine.queue import Group, QueuePolicy, RequestQueue, insert_by_rank
from tensorgate.gateway.engine.queue_shares import Found, QueueShares
from tensorgate.gateway.engine.sequence_controls import SequencePolicy
from tensorgate.gateway.engine.sequences import LiveSequence, Sequences
from tensorgate.gateway.engine.shares import Shares
from tensorgate.gateway.engine.token_budget import TokenBudget
from tensorgate.gateway.engine.worker import Batch, Worker


class FairGroup:
    """Requests of one batch key, by caller; the first of all is the first of the caller who has had least."""

    __slots__ = ("_of", "_shares")

    def __init__(self, shares: QueueShares, pendings: Iterable[PendingRequest]) -> None:
        self._shares = shares
        self._of: dict[str, deque[PendingRequest]] = {}
        for pending in pendings:
            self.add(pending)

    def add(self, pending: PendingRequest) -> None:
        """Behind everybody of its caller's who has its rank."""
        own = self._of.get(pending.share)
        if own is None:
            self._of[pending.share] = deque((pending,))
        else:
            insert_by_rank(own, pending)

    def remove(self, pending: PendingRequest) -> None:
        """Raises ValueError if it is not here."""
        own = self._of[pending.share]
        own.remove(pending)
        if not own:
            del self._of[pending.share]

    def popleft(self) -> PendingRequest:
        """Take the first one, which is charged to its caller unless it has ended."""
        own = self._first()
        pending = own.popleft()
        if not own:
            del self._of[pending.share]
        if not pending.finished:
            self._shares.charge(pending)
        return pending

    def __len__(self) -> int:
        return sum(map(len, self._of.values()))

    def __iter__(self) -> Iterator[PendingRequest]:
        return chain.from_iterable(self._of.values())

    def __getitem__(self, place: int) -> PendingRequest:
        """The first one, or of all others the one that came last."""
        if place == 0:
            return self._first()[0]
        return max([own[-1] for own in self._of.values()], key=lambda pending: pending.submitted)

    def _first(self) -> deque[PendingRequest]:
        of = self._of
        if len(of) == 1:
            return next(iter(of.values()))
        return min(of.values(), key=lambda own: (self._shares.virtual(own[0]), own[0].submitted))


class FairQueue(RequestQueue):
    """See queue.SchedulerQueue. `wake` has the scheduler look for a batch again."""

    def __init__(
        self,
        name: str,
        policy: QueuePolicy,
        budget: TokenBudget | None,
        shares: Shares,
        workers: Sequence[Worker],
        wake: Callable[[], None],
    ) -> None:
        super().__init__(name, policy, budget)
        self.shares = QueueShares(name, shares, workers, wake)
        self._has_levels = True  # so that every request is told of that comes and leaves

    def next_batch(self, idle: Sequence[Worker]) -> Found | None:
        """On the first device, of those that have an idle worker, where somebody may go now."""
        choices = _choices(idle) if self.queued else ()
        found, self.next_wakeup_s = self.shares.look(choices, super().next_batch, lambda: self.next_wakeup_s)
        return found or (None if self.queued else super().next_batch(idle))  # which tidies up

    def done(self, batch: Batch) -> None:
        self.shares.done(batch)

    def _enter_level(self, pending: PendingRequest) -> None:
        """Raises QueueFull where the caller has as many here as it may."""
        level = self._policy.level_of(pending.request)
        self.shares.enter(pending, level, self._policy.own_levels.get(level, self._policy.level).max_queue_size)
        pending.rank = 2 * level

    def _leave_level(self, pending: PendingRequest) -> None:
        self.shares.leave(pending, pending.rank // 2)

    def _new_group(self, pendings: Iterable[PendingRequest]) -> FairGroup:
        return FairGroup(self.shares, pendings)

    def _enter_group(self, key: Hashable, pending: PendingRequest) -> None:
        group = self._groups.get(key)
        if isinstance(group, FairGroup):
            group.add(pending)
        else:
            self._groups[key] = self._new_group((pending,))

    def _urgency(self, pending: PendingRequest) -> tuple[float, ...]:
        return self.shares.virtual(pending), pending.rank, pending.submitted

    def _take(self, group: Group) -> Batch:
        self.shares.begin(group[0])
        return super()._take(group)


class FairSequences(Sequences):
    """See queue.SchedulerQueue. `wake` as of Sequences."""

    def __init__(
        self,
        name: str,
        queue: QueuePolicy,
        policy: SequencePolicy,
        shares: Shares,
        workers: Sequence[Worker],
        wake: Callable[[], None],
    ) -> None:
        super().__init__(name, queue, policy, workers, wake)
        self.shares = QueueShares(name, shares, workers, wake)

    def add(self, pending: PendingRequest) -> None:
        try:
            super().add(pending)
        except SequenceIdMismatch:  # it has been let in, and has no place
            self.shares.leave(pending, 0)
            raise

    def next_batch(self, idle: Sequence[Worker]) -> Found | None:
        choices = [(worker,) for worker in idle if self._instances[worker].ready]
        found, self.next_wakeup_s = self.shares.look(choices, super().next_batch, lambda: self.next_wakeup_s)
        return found

    def done(self, batch: Batch) -> None:
        self.shares.done(batch)
        super().done(batch)

    def _enter(self, pending: PendingRequest) -> None:
        """Raises QueueFull where the caller has as many here as it may."""
        self.shares.enter(pending, 0, self._most)

    def _leave(self, pending: PendingRequest) -> None:
        self.shares.leave(pending, 0)

    def _in_turn(self, ready: Iterable[LiveSequence]) -> list[LiveSequence]:
        """By what their callers have had; `sorted` keeps the order of those of one caller."""
        return sorted(ready, key=lambda live: self.shares.virtual(live.waiting[0]) if live.waiting else math.inf)

    def _take(self, live: LiveSequence) -> PendingRequest:
        pending = super()._take(live)
        self.shares.begin(pending)
        self.shares.charge(pending)
        return pending


def _choices(idle: Sequence[Worker]) -> Iterator[Sequence[Worker]]:
    """The idle workers up to the best one of each device, the best device first."""
    seen: set[str] = set()
    for place in range(len(idle), 0, -1):
        device = idle[place - 1].device
        if device not in seen:
            seen.add(device)
            yield idle[:place]

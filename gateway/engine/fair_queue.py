"""The queue of a model whose callers have shares of its devices: one queue for each caller, and who of them is next.

A batch may hold requests of several callers: request by request, the next is that of the caller who has had least (see
`shares`), of those that wait with the same batch key. Within a caller's queue everything is as in `RequestQueue`:
priorities, delays, timeouts and budgets. How many may wait is counted for each caller, so that a full queue is full for
that caller alone.

What a batch takes is charged to its callers when it begins, as it is likely to take, so that the next batch is not
theirs again meanwhile, and put right when it has ended: each has had as much of the batch as its requests had of the
rows, or of the tokens where batches are bounded by those. On a GPU a batch's time is that which it was there, divided
by how many were; on the host, that of its thread.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Final, TypeVar

from tensorgate.gateway.contract.errors import QueueFull
from tensorgate.gateway.engine.pending_request import PendingRequest
from tensorgate.gateway.engine.queue import Group, QueuePolicy, RequestQueue, insert_by_rank
from tensorgate.gateway.engine.shares import ANONYMOUS, DeviceShares, Shares
from tensorgate.gateway.engine.token_budget import TokenBudget
from tensorgate.gateway.engine.worker import Batch, Worker

Key = TypeVar("Key")

HOST: Final = "cpu"
_FIRST_GUESS_S: Final = 0.01
"""The most that a row is taken to take before one has been measured."""
_KEEP: Final = 0.8
"""Of the time of a row that was known before, when another batch has been measured."""


@dataclass(slots=True, eq=False)
class Running:
    """A batch that runs: on which device, how much of that it fills, and what its callers have been charged with."""

    device: DeviceShares
    width: float
    is_on_host: bool
    mark: float
    unit_s: float
    """For each row, or token."""
    seconds: float = 0.0
    """What it has had so far."""


class FairGroup:
    """Requests of one batch key, by caller; the first of all is the first of the caller who has had least."""

    __slots__ = ("_of", "_queue")

    def __init__(self, queue: FairQueue, pendings: Iterable[PendingRequest]) -> None:
        self._queue = queue
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
            self._queue.charge(pending)
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
        accounts = self._queue.device.accounts
        return min(of.values(), key=lambda own: (accounts[own[0].share].virtual, own[0].submitted))


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
        self.wake = wake
        self._shares = shares
        self._has_levels = True  # so that every request is told of that comes and leaves
        computes = workers[0].executor.computes
        self._own: DeviceShares | None = None if computes else shares.new_device()
        places = Counter(worker.device for worker in workers if not worker.is_standby)
        is_unary = computes and not workers[0].executor.decoupled
        self._widths = {place: 1 / count if is_unary else 0.0 for place, count in places.items()}
        """How much of a device one batch fills; 0: it has no place there, for it runs as long as its caller reads."""
        self._in_thread = workers[0].executor.runs_on == "thread"
        self._devices = [self._device(place) for place in places]
        self.device = self._devices[0]
        """The one for which a batch is looked for."""
        self._of_level: Counter[tuple[str, int]] = Counter()
        self._of: Counter[str] = Counter()
        self._nested = 0
        """Requests that are steps of others, which hold the device meanwhile: they do not wait for it."""
        self._unit_s = 0.0
        self._is_measured = False
        self._running: dict[Batch, Running] = {}

    # ---------------------------------------------------------------------------------------------------- the scheduler

    def next_batch(self, idle: Sequence[Worker]) -> tuple[Worker, Batch] | None:
        """On the first device, of those that have an idle worker, where somebody may go now."""
        self.next_wakeup_s = None
        if not self.queued:
            for device in self._devices:
                device.leave(self)
            return super().next_batch(idle)
        now = self._shares.clock()
        tried: set[str] = set()
        for place in range(len(idle), 0, -1):
            worker = idle[place - 1]
            if worker.device not in tried:
                tried.add(worker.device)
                found = self._next_on(self._device(worker.device), idle[:place], now)
                if found is not None:
                    return found
        return None

    def _next_on(self, device: DeviceShares, idle: Sequence[Worker], now: float) -> tuple[Worker, Batch] | None:
        worker = idle[-1]
        if worker.contention and device.is_contended(now) and device.expects_others(self._of, now):
            return None  # what goes early goes before those who come until then
        width = self._widths[worker.device]
        if width and not self._nested and not device.may_start(self, width, now):
            return None
        self.device = device
        found = super().next_batch(idle)
        if found is None:
            device.leave(self)
            return None
        batch = found[1]
        self._shares.running.update([pending.share for pending in batch.members])
        is_on_host = self._in_thread and worker.device == HOST
        self._running[batch] = Running(
            device, width, is_on_host, device.start(self, width, now), self._unit_of(batch.members[0])
        )
        return found

    def done(self, batch: Batch) -> None:
        """Put right what its callers were charged with, and wake whoever waits for the device."""
        running = self._running.pop(batch)
        now = self._shares.clock()
        mark = running.device.end(self, running.width, now)
        seconds = mark - running.mark
        if running.is_on_host and batch.busy:
            seconds = batch.busy * (running.width or 1.0)
        self._settle(running, batch.members, seconds)
        self._learn(running.seconds / sum(map(self._size, batch.members)))
        self._shares.running.subtract([pending.share for pending in batch.members])

    def note_answer(self, batch: Batch) -> None:
        """A decoupled model has given an answer: what it took so far is charged now, and not when it is done."""
        running = self._running[batch]
        mark = running.device.mark(self._shares.clock())
        self._settle(running, batch.members, mark - running.mark)
        running.mark, running.unit_s = mark, 0.0  # what was charged in advance is put right

    def ran_alone(self, share: str, seconds: float, now: float) -> None:
        """A request has run that was not in the queue."""
        account = self._devices[0].arrive(self._shares.name(share), now)
        self._devices[0].begin(account)
        account.virtual += seconds / account.weight
        account.seconds += seconds

    # ---------------------------------------------------------------------------------------------------------- devices

    def first_virtual(self, device: DeviceShares) -> float:
        """See shares.WaitingQueue."""
        accounts = device.accounts
        return min([accounts[name].virtual for name in self._of], default=0.0)

    def charge(self, pending: PendingRequest) -> None:
        """A request is about to run, and will take as long as others took."""
        account = self.device.accounts[pending.share]
        account.virtual += self._size(pending) * self._unit_of(pending) / account.weight

    def _settle(self, running: Running, members: Sequence[PendingRequest], seconds: float) -> None:
        sizes = [self._size(pending) for pending in members]
        unit_s = seconds / sum(sizes)
        for pending, size in zip(members, sizes, strict=True):
            account = running.device.accounts[pending.share]
            account.virtual += size * (unit_s - running.unit_s) / account.weight
            account.seconds += size * unit_s
        running.seconds += seconds

    def _learn(self, unit_s: float) -> None:
        self._unit_s = _KEEP * self._unit_s + (1 - _KEEP) * unit_s if self._is_measured else unit_s
        self._is_measured = True

    def _size(self, pending: PendingRequest) -> int:
        return pending.admission.rows * (pending.tokens or 1)

    def _unit_of(self, pending: PendingRequest) -> float:
        if not self._unit_s:
            self._unit_s = min(pending.admission.seconds, _FIRST_GUESS_S) / self._size(pending)
        return self._unit_s

    def _device(self, place: str) -> DeviceShares:
        return self._own or self._shares.device(place or HOST)

    # ------------------------------------------------------------------------------------------------------ the callers

    def _enter_level(self, pending: PendingRequest) -> None:
        """Raises QueueFull where the caller has as many here as it may."""
        shares = self._shares
        pending.share = name = shares.name(pending.request.cancellation.share)
        level = self._policy.level_of(pending.request)
        most = shares.policy.max_queue_size or self._policy.own_levels.get(level, self._policy.level).max_queue_size
        if self._of_level[name, level] >= most:
            shares.refused[name] += 1
            raise QueueFull(self._name, most, name or ANONYMOUS)
        pending.rank = 2 * level
        for device in self._devices:
            device.arrive(name, pending.submitted, waits=self._of[name] > 0)
        self._of_level[name, level] += 1
        self._of[name] += 1
        shares.waiting[name] += 1
        self._nested += bool(pending.request.callers)

    def _leave_level(self, pending: PendingRequest) -> None:
        name = pending.share
        _count_down(self._of_level, (name, pending.rank // 2))
        _count_down(self._of, name)
        _count_down(self._shares.waiting, name)
        self._nested -= bool(pending.request.callers)

    def _new_group(self, pendings: Iterable[PendingRequest]) -> FairGroup:
        return FairGroup(self, pendings)

    def _enter_group(self, key: Hashable, pending: PendingRequest) -> None:
        group = self._groups.get(key)
        if isinstance(group, FairGroup):
            group.add(pending)
        else:
            self._groups[key] = FairGroup(self, (pending,))

    def _urgency(self, pending: PendingRequest) -> tuple[float, ...]:
        return self.device.accounts[pending.share].virtual, pending.rank, pending.submitted

    def _take(self, group: Group) -> Batch:
        self.device.begin(self.device.accounts[group[0].share])
        return super()._take(group)


def _count_down(counts: Counter[Key], key: Key) -> None:
    """One less; what is 0 leaves."""
    counts[key] -= 1
    if not counts[key]:
        del counts[key]

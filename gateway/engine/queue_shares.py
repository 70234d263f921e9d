"""What one model's queue tells the devices of its callers, and they it: who waits, what begins, and what it has taken.

What a batch takes is charged to its callers when it begins, as it is likely to take, so that the next batch is not
theirs again meanwhile, and put right when it has ended: each has had as much of the batch as its requests had of the
rows, or of the tokens where batches are bounded by those. On a GPU a batch's time is that which it was there, divided
by how many were; on the host, that of its thread. A model whose runs only wait for others, for another server or for
the steps of an ensemble, takes no device: its callers compete for itself alone.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias, TypeVar

from tensorgate.gateway.contract.errors import QueueFull
from tensorgate.gateway.engine.pending_request import PendingRequest
from tensorgate.gateway.engine.shares import ANONYMOUS, DeviceShares, Shares
from tensorgate.gateway.engine.worker import Batch, Worker

Key = TypeVar("Key")
Found: TypeAlias = tuple[Worker, Batch]
"""What begins, and where."""

HOST: Final = "cpu"
_FIRST_GUESS_S: Final = 0.01
"""The most that a request is taken to take before one has been measured."""
_KEEP: Final = 0.8
"""Of the time of a row that was known before, when another batch has been measured."""


_WAITS_BELOW: Final = 0.1
"""A thread that computes for less than this part of its runs waits for something else; one that waits for its turn on
a busy host computes for more.
"""


@dataclass(slots=True, eq=False)
class Running:
    """A batch that runs: on which device, and what its callers have been charged with."""

    device: DeviceShares
    part: float
    """How much of the host its thread is; 0 on a GPU, and for what has no thread of its own."""
    begun: float
    mark: float
    unit_s: float
    """For each row, or token."""
    seconds: float = 0.0
    """What it has had so far."""


class QueueShares:
    """Plays shares.WaitingQueue for one queue. `wake` has its scheduler look for a batch again."""

    def __init__(self, name: str, shares: Shares, workers: Sequence[Worker], wake: Callable[[], None]) -> None:
        self.queued = 0
        self.wake = wake
        self._name = name
        self._shares = shares
        executor = workers[0].executor
        self._own: DeviceShares | None = None if executor.computes else shares.new_device()
        places = Counter(worker.device for worker in workers if not worker.is_standby)
        self._parts = {place: 1 / count for place, count in places.items()}
        """How much of a device one of its batches fills."""
        self._holds = executor.computes and not executor.decoupled
        """Whether a batch keeps others away; none does that runs for as long as its caller reads."""
        self._busy = 1.0
        """How much of the time of a run its thread computes, on the host."""
        self._in_thread = executor.runs_on == "thread"
        self._devices = [self._device(place) for place in places]
        self.device = self._devices[0]
        """The one for which a batch is looked for."""
        self._of: Counter[str] = Counter()
        self._of_level: Counter[tuple[str, int]] = Counter()
        self._nested = 0
        """Requests that are steps of others, which hold the device meanwhile: they do not wait for it."""
        self._unit_s = 0.0
        self._is_measured = False
        self._running: dict[Batch, Running] = {}

    # ---------------------------------------------------------------------------------------------------------- waiting

    def enter(self, pending: PendingRequest, level: int, most: int) -> None:
        """A request comes. Raises QueueFull where its caller has as many of that level here as it may, which is `most`
        unless shares say so themselves.
        """
        shares = self._shares
        pending.share = name = shares.name(pending.request.cancellation.share)
        most = shares.policy.max_queue_size or most
        if self._of_level[name, level] >= most:
            shares.refused[name] += 1
            raise QueueFull(self._name, most, name or ANONYMOUS)
        for device in self._devices:
            device.arrive(name, pending.submitted, waits=self._of[name] > 0)
        self.queued += 1
        self._of_level[name, level] += 1
        self._of[name] += 1
        shares.waiting[name] += 1
        self._nested += bool(pending.request.callers)

    def leave(self, pending: PendingRequest, level: int) -> None:
        """It waits no more."""
        name = pending.share
        self.queued -= 1
        _count_down(self._of_level, (name, level))
        _count_down(self._of, name)
        _count_down(self._shares.waiting, name)
        self._nested -= bool(pending.request.callers)

    @property
    def callers(self) -> Iterable[str]:
        """See shares.WaitingQueue."""
        return self._of

    def first_virtual(self, device: DeviceShares) -> float:
        """See shares.WaitingQueue."""
        accounts = device.accounts
        return min([accounts[name].virtual for name in self._of], default=0.0)

    def virtual(self, pending: PendingRequest) -> float:
        """What orders a request among those of other callers: the less, the sooner. One that has ended may be of a
        caller who is forgotten: it goes first, and is dropped.
        """
        account = self.device.accounts.get(pending.share)
        return -math.inf if account is None else account.virtual

    # ---------------------------------------------------------------------------------------------------------- running

    def look(
        self,
        choices: Iterable[Sequence[Worker]],
        next_batch: Callable[[Sequence[Worker]], Found | None],
        next_wakeup_s: Callable[[], float | None],
    ) -> tuple[Found | None, float | None]:
        """The first batch that may begin now, for the last worker of one of these choices, each of a device of its own;
        or None, and the seconds until something may go by the clock alone. The queue itself finds the next batch.
        """
        soonest: list[float] = []
        tried: list[DeviceShares] = []
        for choice in choices:
            wait_s = self._wait_s(choice[-1])
            tried.append(self.device)
            if wait_s == 0.0:
                found = next_batch(choice)
                if found is not None:
                    self._start(*found)
                    return found, None
                self.device.leave(self)
                wait_s = next_wakeup_s()
            if wait_s is not None:
                soonest.append(wait_s)
        for device in self._devices:
            if device not in tried:  # nothing of this queue may begin there: whoever waits need not wait for it
                device.leave(self)
        return None, min(soonest, default=None)

    def _wait_s(self, worker: Worker) -> float | None:
        """Seconds until something may begin on the device of this worker, of which the next calls are: 0 is now. None:
        until others have ended.
        """
        self.device = device = self._device(worker.device)
        now = self._shares.clock()
        if worker.contention and device.is_contended(now) and device.expects_others(self._of, now):
            return None  # what goes early goes before those who come until then
        width = self._width(worker)
        return device.wait_s(self, width, now) if width and not self._nested else 0.0

    def charge(self, pending: PendingRequest) -> None:
        """A request is about to run, and will take as long as others took."""
        account = self.device.accounts[pending.share]
        account.virtual += self._size(pending) * self._unit_of(pending) / account.weight

    def begin(self, pending: PendingRequest) -> None:
        """It is the first one of a batch, and not charged yet."""
        self.device.begin(self.device.accounts[pending.share])

    def _start(self, worker: Worker, batch: Batch) -> None:
        """A batch begins, all of which has been charged."""
        device, now = self.device, self._shares.clock()
        self._shares.running.update([pending.share for pending in batch.members])
        unit_s = self._unit_of(batch.members[0])
        callers = {pending.share for pending in batch.members}
        expected_s = unit_s * sum(map(self._size, batch.members))
        mark = device.start(self, batch, callers, self._width(worker), now, expected_s)
        part = self._parts[worker.device] if self._in_thread and worker.device in ("", HOST) else 0.0
        self._running[batch] = Running(device, part, now, mark, unit_s)

    def note_answer(self, batch: Batch) -> None:
        """A decoupled model has given an answer: what it took so far is charged now, and not when it is done."""
        running = self._running[batch]
        mark = running.device.mark(self._shares.clock())
        self._settle(running, batch.members, mark - running.mark)
        running.mark, running.unit_s = mark, 0.0  # what was charged in advance is put right

    def done(self, batch: Batch) -> None:
        """A batch has ended: put right what its callers were charged with, and wake whoever waits for the device."""
        running, now = self._running.pop(batch), self._shares.clock()
        mark = running.device.end(batch, now)
        seconds = mark - running.mark
        if running.part and batch.busy:
            seconds = batch.busy * running.part
            busy = min(1.0, batch.busy / max(now - running.begun, batch.busy))
            self._busy = _KEEP * self._busy + (1 - _KEEP) * busy
        self._settle(running, batch.members, seconds)
        self._learn(running.seconds / sum(map(self._size, batch.members)))
        for pending in batch.members:
            _count_down(self._shares.running, pending.share)

    def ran_alone(self, share: str, begun: float, seconds: float) -> None:
        """A request has run that was not in the queue."""
        account = self._devices[0].arrive(self._shares.name(share), begun)
        self._devices[0].begin(account)
        account.virtual += seconds / account.weight
        account.seconds += seconds

    def _width(self, worker: Worker) -> float:
        return self._parts[worker.device] if self._holds and self._busy > _WAITS_BELOW else 0.0

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


def _count_down(counts: Counter[Key], key: Key) -> None:
    """One less; what is 0 leaves."""
    counts[key] -= 1
    if not counts[key]:
        del counts[key]

"""How much callers get of a device that several of them want: shares of its time, by weight.

Each caller has a *virtual time* on each device: the seconds that it has had of it, as they were measured, over its
weight. Whoever has had least is next. So callers that always wait get time by their weights, whoever asks more often or
for more; a caller that takes less leaves the rest to the others, in the same proportion; and nobody starves, for the
virtual times of those who go first grow, and reach those of whoever waits.

Time that nobody wanted is not saved up: a caller that comes back starts where the device is, or a little before
(CREDIT_S), so that one who asks seldom is answered soon.

The queues of several models may wait for one device. While more than one caller wants it, as many batches run there at
once as fill it, and those go first whose callers have had least, of whichever model. A model fills its device with as
many batches as it has instances there; on the host none that hardly computes, but waits for something else.

Source: Goyal, Vin and Cheng, Start-time Fair Queueing, 1996; the virtual time of a device is the start tag of what it
began last. Everything belongs to the event loop, but for `usage`.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final, NamedTuple, Protocol
from weakref import WeakSet

from tensorgate.gateway.contract.metrics import ShareUsage

CREDIT_S: Final = 0.02
"""By so much of the device's time, over its weight, a caller that comes back may be behind the others."""
RECENT_S: Final = 1.0
"""For so long after its last request a caller is taken for one that wants the device."""
MAX_CALLERS: Final = 256
"""How many have shares at once. Beyond them, those who come have one together, that of OTHERS."""
OTHERS: Final = "(others)"
ANONYMOUS: Final = "anonymous"
"""What "" is called, whom nobody knows."""
HOLD_S: Final = 1.0
_HOLD_TIMES: Final = 4.0
"""A batch that takes longer than HOLD_S, and so many times as long as was expected, keeps others from the device no
more: it hangs."""
_FULL: Final = 1 + 1e-9
_TICK_S: Final = 1e-3


@dataclass(frozen=True, slots=True)
class SharePolicy:
    """Weights by callers' names, of all others `default_weight`. `max_queue_size` of a caller's requests may wait for a
    model; None: as many as the model says.
    """

    weights: Mapping[str, float] = field(default_factory=dict)
    default_weight: float = 1.0
    max_queue_size: int | None = None


class Account:
    """What one caller has had of one device. `virtual` is in seconds over weight, `seconds` are those measured, `seen`
    is when it last wanted the device.
    """

    __slots__ = ("name", "seconds", "seen", "virtual", "weight")

    def __init__(self, name: str, weight: float) -> None:
        self.name = name
        self.weight = weight
        self.virtual = self.seconds = self.seen = 0.0


class WaitingQueue(Protocol):
    """One model's queue, as the devices know it."""

    queued: int

    @property
    def callers(self) -> Iterable[str]:
        """Whose requests wait here."""
        ...

    def first_virtual(self, device: DeviceShares) -> float:
        """The virtual time of the caller who goes next, of those who wait here."""
        ...

    def wake(self) -> None:
        """Look again for what may go."""
        ...


class Held(NamedTuple):
    """A batch that runs, and fills so much of the device; 1 is all of it."""

    queue: WaitingQueue
    callers: Iterable[str]
    width: float
    until: float
    """When it is taken to hang."""


class DeviceShares:
    """One device: who has had how much of it, what runs there, and which queues wait for it."""

    def __init__(self, shares: Shares) -> None:
        self._shares = shares
        self.accounts: dict[str, Account] = {}
        self._virtual = 0.0
        self._held: dict[object, Held] = {}
        """What runs, by its batch."""
        self._blocked: dict[WaitingQueue, None] = {}
        """Those that have something to run, and have been told to wait."""
        self._running = 0
        self._area = self._area_at = 0.0
        """Seconds of the device for each batch, if it divides its time equally among those that run at once."""
        self._last, self._last_seen, self._others_seen = "", -math.inf, -math.inf

    # ---------------------------------------------------------------------------------------------------------- callers

    def arrive(self, name: str, now: float, *, waits: bool = False) -> Account:
        """A caller wants the device. One that did not wait for it starts near where the device is."""
        if name != self._last:
            self._last, self._others_seen = name, self._last_seen
        self._last_seen = now
        account = self.account(name)
        account.seen = now
        if not waits:
            account.virtual = max(account.virtual, self._virtual - CREDIT_S / account.weight)
        return account

    def account(self, name: str) -> Account:
        """What a caller has had, which may be nothing yet."""
        return self.accounts.get(name) or self.accounts.setdefault(name, Account(name, self._shares.weight(name)))

    def is_contended(self, now: float) -> bool:
        """Whether more than one caller has wanted the device lately."""
        return now - self._others_seen < RECENT_S

    def expects_others(self, waiting: Container[str], now: float) -> bool:
        """Whether somebody has wanted the device lately who is not among those who wait, and may be about to."""
        since = now - RECENT_S
        return any(each.seen > since and each.name not in waiting for each in self.accounts.values())

    def begin(self, account: Account) -> None:
        """Something of this caller's begins, and will be charged."""
        self._virtual = max(self._virtual, account.virtual)

    # ----------------------------------------------------------------------------------------------------- what may run

    def wait_s(self, queue: WaitingQueue, width: float, now: float) -> float:
        """Seconds until a batch of this queue, which would fill so much of the device, may begin: 0 is now. Else the
        queue is woken when that may have changed, and may ask again after so many.
        """
        rivals = [each for each in self._blocked if each is not queue and each.queued]
        held = [each for each in self._held.values() if now < each.until]
        others = any(each.queue is not queue for each in held)
        if (rivals or others) and (self.is_contended(now) or _are_several(queue, *rivals, *held)):
            if held and sum([each.width for each in held]) + width > _FULL:
                self._blocked[queue] = None
                return max(min([each.until for each in held]) - now, _TICK_S)
            own = queue.first_virtual(self)
            first = [each for each in rivals if each.first_virtual(self) < own]
            if first:
                self._blocked[queue] = None
                for each in first:
                    each.wake()
                return HOLD_S
        self._blocked.pop(queue, None)
        return 0.0

    def leave(self, queue: WaitingQueue) -> None:
        """A queue has nothing to run after all."""
        self._blocked.pop(queue, None)
        self._wake()

    def start(
        self, queue: WaitingQueue, batch: object, callers: Iterable[str], width: float, now: float, expected_s: float
    ) -> float:
        """A batch of these callers begins, which will likely take so long -> the mark from which its time counts."""
        mark = self.mark(now)
        self._running += 1
        if width:
            self._held[batch] = Held(queue, callers, width, now + max(HOLD_S, _HOLD_TIMES * expected_s))
        return mark

    def end(self, batch: object, now: float) -> float:
        """A batch has ended -> the mark up to which its time counts."""
        mark = self.mark(now)
        self._running -= 1
        self._held.pop(batch, None)
        self._wake()
        return mark

    def mark(self, now: float) -> float:
        """How far the device has come for each of those that run: what two marks differ by is what one has had."""
        if self._running:
            self._area += (now - self._area_at) / self._running
        self._area_at = now
        return self._area

    def _wake(self) -> None:
        for queue in list(self._blocked):
            if queue.queued:
                queue.wake()
            else:
                del self._blocked[queue]

    # ---------------------------------------------------------------------------------------------------------- limits

    def reweigh(self) -> None:
        """The weights have changed."""
        for account in self.accounts.values():
            account.weight = self._shares.weight(account.name)

    def forget(self, name: str) -> float:
        """A caller who is not there any more -> the seconds that it has had."""
        account = self.accounts.pop(name, None)
        return 0.0 if account is None else account.seconds

    def is_ahead(self, name: str) -> bool:
        """Whether a caller has had more than the device has come to: it would gain if that were forgotten."""
        account = self.accounts.get(name)
        return account is not None and account.virtual > self._virtual


def _are_several(*of: WaitingQueue | Held) -> bool:
    return len({name for each in of for name in each.callers}) > 1


class Shares:
    """The devices of a process, and the callers that have shares of them."""

    def __init__(self, policy: SharePolicy, clock: Callable[[], float] = time.monotonic) -> None:
        self.policy = policy
        self.clock = clock
        self.waiting: Counter[str] = Counter()
        """Requests that wait, by caller."""
        self.refused: Counter[str] = Counter()
        """Requests that were refused for a caller's own limit."""
        self.running: Counter[str] = Counter()
        """Requests in batches that run."""
        self._devices: dict[str, DeviceShares] = {}
        self._all: WeakSet[DeviceShares] = WeakSet()
        self._names: dict[str, None] = {}

    def reconfigure(self, policy: SharePolicy) -> None:
        """Go by other weights from now on."""
        self.policy = policy
        for device in self._all:
            device.reweigh()

    def weight(self, name: str) -> float:
        """What a caller weighs."""
        return self.policy.weights.get(name, self.policy.default_weight)

    def device(self, name: str) -> DeviceShares:
        """One of the devices that all models share."""
        return self._devices.get(name) or self._devices.setdefault(name, self.new_device())

    def new_device(self) -> DeviceShares:
        """Something beside them that callers compete for."""
        device = DeviceShares(self)
        self._all.add(device)
        return device

    def name(self, share: str) -> str:
        """The caller in whose share a request counts: itself, or OTHERS where there are too many."""
        names = self._names
        if share not in names:
            if len(names) >= MAX_CALLERS and not self._forget_one():
                share = OTHERS
            names[share] = None
        return share

    def usage(self) -> list[ShareUsage]:
        """What each caller has had, by device. In any thread."""
        return [
            ShareUsage(
                account.name,
                device,
                account.weight,
                account.seconds,
                self.waiting[account.name],
                self.refused[account.name],
            )
            for device, each in list(self._devices.items())
            for account in list(each.accounts.values())
        ]

    def listed(self) -> list[dict[str, Any]]:
        """The same as plain data, most time first."""
        return [asdict(each) for each in sorted(self.usage(), key=lambda each: -each.seconds)]

    def _forget_one(self) -> bool:
        """Make room for another caller, of one that has nothing here and would begin no further back."""
        for name in self._names:
            if self.waiting[name] or self.running[name] or name in self.policy.weights or name == OTHERS:
                continue
            if any(device.is_ahead(name) for device in self._all):
                continue
            del self._names[name]
            for device in self._all:
                device.account(OTHERS).seconds += device.forget(name)
            self.refused[OTHERS] += self.refused.pop(name, 0)
            return True
        return False

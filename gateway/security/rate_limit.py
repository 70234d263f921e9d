"""How much callers may ask for: buckets of tokens that fill with time, and counts of what is on its way.

What a request costs is taken when it comes: one that is larger than what is there leaves a debt, which its caller waits
off. So everything is a few additions per request. Buckets of callers who are not heard of are forgotten, the oldest
first, once there are many.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from tensorgate.gateway.config import RateLimit
from tensorgate.gateway.contract.call import Call
from tensorgate.gateway.contract.canonical import InferRequest
from tensorgate.gateway.contract.errors import RateLimited
from tensorgate.gateway.security.access import allows

BUCKETS: Final = 10_000
"""How many callers, or addresses, a limit remembers."""
SHORT_S: Final = 1.0
"""After how long the end of a request is worth asking for again."""


class Bucket:
    """`rate` tokens a second, up to `size`, for each key of its own."""

    __slots__ = ("_clock", "_levels", "_rate", "_size", "_what")

    def __init__(self, what: str, rate: float, size: float, clock: Callable[[], float]) -> None:
        self._what = what
        self._rate = rate
        self._size = size
        self._clock = clock
        self._levels: OrderedDict[str, tuple[float, float]] = OrderedDict()  # key -> tokens, as of when

    def take(self, key: str, cost: float, least: float) -> None:
        """Raises RateLimited while there are fewer than `least`."""
        now = self._clock()
        levels = self._levels
        level, then = levels.get(key, (self._size, now))
        level = min(self._size, level + (now - then) * self._rate)
        if level < least:
            raise RateLimited(self._what, (least - level) / self._rate)
        levels[key] = level - cost, now
        levels.move_to_end(key)
        if len(levels) > BUCKETS:
            levels.popitem(last=False)


class Limit:
    """One of the configured limits."""

    def __init__(self, config: RateLimit, clock: Callable[[], float]) -> None:
        rate = config.requests_per_second
        minute = 60
        self.by_address = config.by == "address"
        self._by_caller = config.by == "caller"
        self._callers = None if config.callers is None else allows(config.callers)
        self._listeners = None if config.listeners is None else frozenset(config.listeners)
        self.names = None if config.names is None else frozenset(config.names)
        self._requests = None if rate is None else Bucket("requests", rate, config.burst or max(1.0, rate), clock)
        self._bytes = _per(minute, "bytes", config.bytes_per_minute, clock)
        self._rows = _per(minute, "rows", config.rows_per_minute, clock)
        self.counts_rows = self._rows is not None
        self._most = config.concurrent
        self._running: dict[str, int] = {}

    def concerns(self, call: Call) -> bool:
        """Whether the call falls under it, as far as its head tells."""
        if self._listeners is not None and self._listeners.isdisjoint(call.listener):
            return False
        return self._callers is None or self._callers(call.caller)

    def enter(self, call: Call) -> Callable[[], None] | None:
        """Count a call: what to do when it is over, if anything. Raises RateLimited."""
        key = self._key(call)
        running = self._running.get(key, 0)
        if self._most is not None and running >= self._most:
            raise RateLimited("requests at a time", SHORT_S)
        if self._bytes is not None:
            self._bytes.take(key, 0, 0)  # before a request is counted that is refused for its bytes
        if self._requests is not None:
            self._requests.take(key, 1, 1)
        if self._bytes is not None:
            self._bytes.take(key, len(call.body), 0)
        if self._most is None:
            return None
        self._running[key] = running + 1
        return lambda: self._leave(key)

    def count_rows(self, call: Call, requests: Sequence[InferRequest]) -> None:
        """Raises RateLimited."""
        if self._rows is not None:
            self._rows.take(self._key(call), sum(map(_rows, requests)), 0)

    def _key(self, call: Call) -> str:
        if self._by_caller:
            return "" if call.caller is None else call.caller.name
        return call.peer.address() if self.by_address else ""

    def _leave(self, key: str) -> None:
        left = self._running[key] - 1
        if left:
            self._running[key] = left
        else:
            del self._running[key]


def _per(seconds: int, what: str, most: int | None, clock: Callable[[], float]) -> Bucket | None:
    return None if most is None else Bucket(what, most / seconds, most, clock)


def _rows(request: InferRequest) -> int:
    if not request.view.max_batch_size:
        return 1
    return max((int(array.shape[0]) for array in request.inputs.values() if array.ndim), default=1)


class RateLimits:
    """All of them, and in which order: those by address before anybody knows who calls, those of certain models once
    the request is read.
    """

    def __init__(self, configs: Iterable[RateLimit], clock: Callable[[], float] = time.monotonic) -> None:
        limits = [Limit(config, clock) for config in configs]
        self.first = tuple(limit for limit in limits if limit.by_address and limit.names is None)
        self.then = tuple(limit for limit in limits if not limit.by_address and limit.names is None)
        self.last = tuple(limit for limit in limits if limit.names is not None)
        self.all = (*self.first, *self.then)


def requests_of(question: Any) -> Sequence[InferRequest]:
    """Those that a question is made of."""
    return (question,) if type(question) is InferRequest else getattr(question, "requests", ())

"""Rate limits: token buckets, and limits of concurrent calls.

A request's cost is taken when it arrives; one that costs more than the bucket holds leaves a debt, and later requests
wait until it is refilled. So a request costs a few additions. Beyond MAX_BUCKETS, the bucket that was not used for
longest is dropped.
"""

from __future__ import annotations

import math
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from tensorgate.gateway.config import RateLimit
from tensorgate.gateway.contract.call import Call, CallQuota
from tensorgate.gateway.contract.canonical import InferRequest
from tensorgate.gateway.contract.errors import RateLimited
from tensorgate.gateway.security.access import allows
from tensorgate.gateway.security.limit_table import LimitTable

MAX_BUCKETS: Final = 10_000
"""How many callers or addresses have a bucket of a limit at once."""
_AT_A_TIME: Final = "requests at a time"
RETRY_AFTER_S: Final = 1.0
"""The Retry-After of a call refused for too many concurrent ones."""


class Bucket:
    """A token bucket per key: `rate` tokens a second, up to `size`."""

    __slots__ = ("_clock", "_levels", "_what", "left", "rate", "size")

    def __init__(self, what: str, rate: float, size: float, clock: Callable[[], float]) -> None:
        self._what = what
        self.rate = rate
        self.size = size
        self.left = size
        """What the last `take` left."""
        self._clock = clock
        self._levels: OrderedDict[str, tuple[float, float]] = OrderedDict()  # key -> tokens, as of when

    def take(self, key: str, cost: float, least: float) -> None:
        """Take `cost` tokens. Raises RateLimited while there are fewer than `least`."""
        now = self._clock()
        levels = self._levels
        level, then = levels.get(key, (self.size, now))
        level = min(self.size, level + (now - then) * self.rate)
        if level < least:
            raise RateLimited(self._what, (least - level) / self.rate)
        self.left = level - cost
        levels[key] = self.left, now
        levels.move_to_end(key)
        if len(levels) > MAX_BUCKETS:
            levels.popitem(last=False)


class SharedBucket:
    """A token bucket per key that several processes take from."""

    __slots__ = ("_clock", "_name", "_table", "_what", "left", "rate", "size")

    def __init__(
        self, table: LimitTable, limit: str, what: str, rate: float, size: float, clock: Callable[[], float]
    ) -> None:
        self._table = table
        self._name = f"{limit} {what}"
        self._what = what
        self.rate = rate
        self.size = size
        self.left = size
        """What the last `take` left."""
        self._clock = clock

    def take(self, key: str, cost: float, least: float) -> None:
        """Take `cost` tokens. Raises RateLimited while there are fewer than `least`."""
        table = self._table
        wait = table.take(table.key(self._name, key), cost, least, self.rate, self.size, self._clock())
        if wait:
            raise RateLimited(self._what, wait)
        self.left = table.left


class Concurrent:
    """How many calls are under way, by key; `most` may be."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._running: dict[str, int] = {}

    def enter(self, key: str) -> Callable[[], None]:
        """Count one that begins -> what to call when it ends. Raises RateLimited."""
        running = self._running.get(key, 0)
        if running >= self._most:
            raise RateLimited(_AT_A_TIME, RETRY_AFTER_S)
        self._running[key] = running + 1
        return lambda: self._leave(key)

    def _leave(self, key: str) -> None:
        left = self._running[key] - 1
        if left:
            self._running[key] = left
        else:
            del self._running[key]


class SharedConcurrent:
    """The same of all processes together."""

    def __init__(self, table: LimitTable, limit: str, most: int, clock: Callable[[], float]) -> None:
        self._table = table
        self._name = f"{limit} concurrent"
        self._most = most
        self._clock = clock

    def enter(self, key: str) -> Callable[[], None]:
        """Count one that begins -> what to call when it ends. Raises RateLimited."""
        digest = self._table.key(self._name, key)
        if not self._table.enter(digest, self._most, self._clock()):
            raise RateLimited(_AT_A_TIME, RETRY_AFTER_S)
        return lambda: self._table.leave(digest)


class Limit:
    """One of the configured limits. `name` tells it from the others where they share a table."""

    def __init__(
        self, config: RateLimit, clock: Callable[[], float], name: str = "", table: LimitTable | None = None
    ) -> None:
        def bucket(what: str, rate: float, size: float) -> Bucket | SharedBucket:
            if table is None:
                return Bucket(what, rate, size, clock)
            return SharedBucket(table, name, what, rate, size, clock)

        def per_minute(what: str, most: int | None) -> Bucket | SharedBucket | None:
            return None if most is None else bucket(what, most / 60, most)

        rate = config.requests_per_second
        self.by_address = config.by == "address"
        self._by_caller = config.by == "caller"
        self._callers = None if config.callers is None else allows(config.callers)
        self._listeners = None if config.listeners is None else frozenset(config.listeners)
        self.names = None if config.names is None else frozenset(config.names)
        self._requests = None if rate is None else bucket("requests", rate, config.burst or max(1.0, rate))
        self._bytes = per_minute("bytes", config.bytes_per_minute)
        self._rows = per_minute("rows", config.rows_per_minute)
        self._tokens = per_minute("tokens", config.tokens_per_minute)
        self.counts_rows = self._rows is not None
        self._concurrent: Concurrent | SharedConcurrent | None = None
        if (most := config.concurrent) is not None:
            self._concurrent = Concurrent(most) if table is None else SharedConcurrent(table, name, most, clock)

    def concerns(self, call: Call) -> bool:
        """Whether the call falls under the limit, by its listener and caller."""
        if self._listeners is not None and self._listeners.isdisjoint(call.listener):
            return False
        return self._callers is None or self._callers(call.caller)

    def enter(self, call: Call) -> Callable[[], None] | None:
        """Count a call -> what to call when it ends, if anything. Raises RateLimited."""
        key = self._key(call)
        leave = None if self._concurrent is None else self._concurrent.enter(key)
        try:
            if self._bytes is not None:
                self._bytes.take(key, 0, 0)  # before a request is counted that is refused for its bytes
            if self._tokens is not None:
                self._enter_tokens(self._tokens, key, call)
            if self._requests is not None:
                requests = self._requests
                requests.take(key, 1, 1)
                if call.quota is None or requests.left < call.quota.remaining:
                    call.quota = CallQuota(
                        requests.size, requests.left, (requests.size - requests.left) / requests.rate
                    )
            if self._bytes is not None:
                self._bytes.take(key, len(call.body), 0)
        except RateLimited:
            if leave is not None:
                leave()
            raise
        return leave

    @staticmethod
    def _enter_tokens(tokens: Bucket | SharedBucket, key: str, call: Call) -> None:
        """How many a call takes is known when it is over: it may begin unless others have taken too many. Raises
        RateLimited.
        """
        tokens.take(key, 0, 0)
        if call.token_quota is None or tokens.left < call.token_quota.remaining:
            call.token_quota = CallQuota(tokens.size, tokens.left, (tokens.size - tokens.left) / tokens.rate)
        call.charges += (lambda count: tokens.take(key, count, -math.inf),)

    def count_rows(self, call: Call, requests: Sequence[InferRequest]) -> None:
        """Take the rows of requests. Raises RateLimited."""
        if self._rows is not None:
            self._rows.take(self._key(call), sum(map(_rows, requests)), 0)

    def _key(self, call: Call) -> str:
        if self._by_caller:
            return "" if call.caller is None else call.caller.name
        return call.peer.address() if self.by_address else ""


def _rows(request: InferRequest) -> int:
    if not request.view.max_batch_size:
        return 1
    return max((int(array.shape[0]) for array in request.inputs.values() if array.ndim), default=1)


class RateLimits:
    """All limits, by when they apply: those by address before authentication, those by caller after it, those of
    certain models after decoding.
    """

    def __init__(
        self,
        configs: Iterable[RateLimit],
        clock: Callable[[], float] = time.monotonic,
        table: LimitTable | None = None,
    ) -> None:
        """`table` is where several processes count together."""
        limits = [Limit(config, clock, f"{number} {config!r}", table) for number, config in enumerate(configs)]
        self.before_auth = tuple(limit for limit in limits if limit.by_address and limit.names is None)
        self.after_auth = tuple(limit for limit in limits if not limit.by_address and limit.names is None)
        self.after_decode = tuple(limit for limit in limits if limit.names is not None)
        self.all = (*self.before_auth, *self.after_auth)


def requests_of(question: Any) -> Sequence[InferRequest]:
    """The inference requests in a question."""
    return (question,) if type(question) is InferRequest else getattr(question, "requests", ())

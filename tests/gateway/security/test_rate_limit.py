"""Buckets, counts, and what they forget."""

from typing import Any

import pytest

from tensorgate.gateway.config import RateLimit
from tensorgate.gateway.contract.call import Call, Caller
from tensorgate.gateway.contract.errors import RateLimited
from tensorgate.gateway.security.rate_limit import MAX_BUCKETS, Bucket, RateLimits


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


class Address:
    def __init__(self, text: str) -> None:
        self._text = text

    def address(self) -> str:
        return self._text

    def names(self) -> tuple[str, ...]:
        return ()


def call(name: str | None = None, body: bytes = b"", address: str = "", listener: tuple[str, ...] = ()) -> Call:
    caller = None if name is None else Caller(name, frozenset({"free"} if name.startswith("f") else ()))
    return Call(body, "POST", "/", {}, "http", caller=caller, peer=Address(address), listener=listener)


def limit(clock: Clock, **config: Any) -> Any:
    limits = RateLimits([RateLimit(**config)], clock)
    return (*limits.all, *limits.after_decode)[0]


def taken(limit: Any, *calls: Call) -> int:
    """How many of the calls it lets pass."""
    passed = 0
    for each in calls:
        try:
            limit.enter(each)
            passed += 1
        except RateLimited:
            continue
    return passed


def test_a_bucket_fills_with_time() -> None:
    clock = Clock()
    bucket = Bucket("requests", 2.0, 3.0, clock)
    for _ in range(3):
        bucket.take("a", 1, 1)
    with pytest.raises(RateLimited) as caught:
        bucket.take("a", 1, 1)
    assert (caught.value.retry_after, caught.value.http_headers["Retry-After"]) == (1, "1")
    bucket.take("b", 1, 1)
    clock.now += 0.5
    bucket.take("a", 1, 1)
    with pytest.raises(RateLimited):
        bucket.take("a", 1, 1)
    clock.now += 1000
    for _ in range(3):
        bucket.take("a", 1, 1)
    with pytest.raises(RateLimited):
        bucket.take("a", 1, 1)


def test_strangers_cannot_fill_the_memory() -> None:
    bucket = Bucket("requests", 1.0, 1.0, Clock())
    for number in range(MAX_BUCKETS + 100):
        bucket.take(str(number), 1, 1)
    assert len(bucket._levels) == MAX_BUCKETS


def test_bytes_leave_a_debt() -> None:
    clock = Clock()
    bytes_a_minute = limit(clock, bytes_per_minute=600)
    assert taken(bytes_a_minute, call("a", bytes(1200)), call("a", b"x"), call("b", b"x")) == 2
    clock.now += 59
    assert taken(bytes_a_minute, call("a", b"x")) == 0
    clock.now += 1
    assert taken(bytes_a_minute, call("a", b"x")) == 1


def test_what_is_refused_for_its_bytes_costs_no_request() -> None:
    clock = Clock()
    both = limit(clock, bytes_per_minute=60, requests_per_second=1, burst=2)
    assert taken(both, call("a", bytes(120)), call("a")) == 1
    clock.now += 60
    assert taken(both, call("a"), call("a"), call("a")) == 2


def test_concurrent_requests() -> None:
    two = limit(Clock(), concurrent=2)
    leave, other = two.enter(call("a")), two.enter(call("a"))
    assert taken(two, call("a")) == 0
    also = two.enter(call("b"))
    leave()
    leave = two.enter(call("a"))
    assert taken(two, call("a")) == 0
    for each in (leave, other, also):
        each()
    assert two._concurrent._running == {}


def test_whose_requests_are_one() -> None:
    clock = Clock()
    one = {"requests_per_second": 1, "burst": 1}
    calls = [call(name, address=address) for name in ("a", "b", None, None) for address in ("1.2.3.4", "5.6.7.8")]
    assert taken(limit(clock, **one), *calls) == 3
    assert taken(limit(clock, by="address", **one), *calls) == 2
    assert taken(limit(clock, by="all", **one), *calls) == 1


def test_whom_a_limit_is_for() -> None:
    clock = Clock()
    free = limit(clock, callers=("role:free",), concurrent=1)
    assert [free.concerns(call(name)) for name in ("f", "a", None)] == [True, False, False]
    anonymous = limit(clock, callers=("anonymous",), listeners=("front",), concurrent=1)
    assert [anonymous.concerns(call(None, listener=names)) for names in (("front", "x:1"), ("back",))] == [True, False]


def test_the_narrowest_limit_says_what_it_leaves() -> None:
    clock = Clock()
    limits = [limit(clock, requests_per_second=2, burst=10), limit(clock, requests_per_second=1, burst=3)]
    told = []
    for _ in range(2):
        one = call("a")
        for each in limits:
            each.enter(one)
        told.append(one.quota)
    assert told == [(3, 2, 1.0), (3, 1, 2.0)]
    unlimited = call("a")
    limit(clock, concurrent=5).enter(unlimited)
    assert unlimited.quota is None


def test_tokens_are_taken_when_it_is_known_how_many() -> None:
    clock = Clock()
    few = limit(clock, tokens_per_minute=60)
    one, other = call("a"), call("a")
    few.enter(one)
    few.enter(other)
    assert other.token_quota == (60, 60, 0.0)
    for charge in one.charges:
        charge(90)
    with pytest.raises(RateLimited, match=r"too many tokens, retry after 30\.000 s"):
        few.enter(call("a"))
    assert taken(few, call("b")) == 1
    clock.now += 40
    later = call("a")
    few.enter(later)
    assert later.token_quota == (60, 10, 50.0)
    assert later.quota is None

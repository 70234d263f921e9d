"""Buckets and counts that several processes share: the same decisions as one process takes, whoever dies meanwhile."""

from __future__ import annotations

import mmap
import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorgate.gateway.contract.errors import RateLimited
from tensorgate.gateway.security.limit_table import WINDOW, LimitTable
from tensorgate.gateway.security.rate_limit import Bucket, Concurrent, SharedBucket, SharedConcurrent

BYTES = 1 << 20
ROWS = 4
PROCESSES = 3
OF_EACH = 400
WORKER = """
import mmap, os, sys, time
from tensorgate.gateway.security.limit_table import LimitTable
fd, row, calls, forever = map(int, sys.argv[1:])
table = LimitTable(memoryview(mmap.mmap(fd, os.fstat(fd).st_size)), fd, row, 4)
taken = 0
print("begun", flush=True)
while calls or forever:
    taken += not table.take(table.key("limit", "everybody"), 1, 1, 1e-9, 1000, time.monotonic())
    if table.enter(table.key("limit", "concurrent"), 5, time.monotonic()):
        table.leave(table.key("limit", "concurrent"))
    calls -= 1
print(taken)
"""


@pytest.fixture
def file() -> Iterator[int]:
    fd = os.memfd_create("limits")
    os.ftruncate(fd, BYTES)
    yield fd
    os.close(fd)


def table_of(fd: int, row: int = 0) -> LimitTable:
    return LimitTable(memoryview(mmap.mmap(fd, BYTES)), fd, row, ROWS)


def worker(fd: int, row: int, *, forever: bool = False) -> subprocess.Popen[str]:
    arguments = [str(each) for each in (fd, row, OF_EACH, int(forever))]
    return subprocess.Popen(
        [sys.executable, "-c", WORKER, *arguments], pass_fds=[fd], stdout=subprocess.PIPE, text=True, cwd=Path.cwd()
    )


class Clock:
    now = 50.0

    def __call__(self) -> float:
        return self.now


@given(
    st.lists(
        st.tuples(st.sampled_from("abc"), st.floats(0, 3), st.sampled_from([0.0, 1.0]), st.floats(0, 2)), max_size=40
    )
)
def test_a_shared_bucket_decides_as_one_of_a_process_does(calls: list[tuple[str, float, float, float]]) -> None:
    fd = os.memfd_create("limits")
    os.ftruncate(fd, BYTES)
    clock = Clock()
    own = Bucket("requests", 2.0, 3.0, clock)
    shared = [SharedBucket(table_of(fd, row), "limit", "requests", 2.0, 3.0, clock) for row in range(2)]
    for number, (key, cost, least, passes) in enumerate(calls):
        clock.now += passes
        outcomes = []
        for bucket in (own, shared[number % 2]):
            try:
                bucket.take(key, cost, least)
                outcomes.append(0.0)
            except RateLimited as error:
                outcomes.append(error.retry_after)
        assert outcomes[0] == pytest.approx(outcomes[1])
    os.close(fd)


@given(st.lists(st.tuples(st.sampled_from("ab"), st.booleans()), max_size=40))
def test_shared_counts_decide_as_those_of_a_process_do(steps: list[tuple[str, bool]]) -> None:
    fd = os.memfd_create("limits")
    os.ftruncate(fd, BYTES)
    own = Concurrent(2)
    shared = [SharedConcurrent(table_of(fd, row), "limit", 2, Clock()) for row in range(2)]
    under_way: dict[str, list[tuple[object, object]]] = {"a": [], "b": []}
    for number, (key, begins) in enumerate(steps):
        if not begins:
            for ends in under_way[key].pop() if under_way[key] else ():
                ends()  # type: ignore[operator]
            continue
        try:
            leave = shared[number % 2].enter(key)
        except RateLimited:
            with pytest.raises(RateLimited):
                own.enter(key)
        else:
            under_way[key].append((own.enter(key), leave))
    os.close(fd)


def test_processes_admit_what_one_would(file: int) -> None:
    workers = [worker(file, row) for row in range(PROCESSES)]
    taken = sum(int(each.communicate()[0].split()[1]) for each in workers)
    assert taken == 1000  # of 1,200 calls on a bucket of 1,000 that is hardly ever refilled


def test_whoever_is_killed_leaves_a_table_that_works(file: int) -> None:
    for _ in range(5):
        workers = [worker(file, row, forever=True) for row in range(2)]
        table = table_of(file, 2)
        for each in workers:
            assert each.stdout is not None
            assert each.stdout.readline() == "begun\n"
        for _ in range(2000):
            table.take(table.key("limit", "everybody"), 1, 1, 1e-9, 1000, 1.0)
        for each in workers:
            each.send_signal(signal.SIGKILL)
            each.communicate()
    table = table_of(file, 3)
    key = table.key("limit", "another")
    assert [table.take(key, 1, 1, 1.0, 2.0, 10.0) for _ in range(3)] == [0.0, 0.0, 1.0]
    for row in range(2):
        table_of(file, row).forget_row()
    key = table.key("limit", "concurrent")
    assert [table.enter(key, 5, 10.0) for _ in range(6)] == [True] * 5 + [False]


def test_calls_of_a_process_that_died_are_forgotten(file: int) -> None:
    first, other = table_of(file, 0), table_of(file, 1)
    key = first.key("limit", "a")
    assert first.enter(key, 2, 1.0)
    assert other.enter(key, 2, 1.0)
    assert not other.enter(key, 2, 1.0)
    table_of(file, 0).forget_row()
    assert other.enter(key, 2, 1.0)
    assert not other.enter(key, 2, 1.0)


def test_a_full_window_lets_the_oldest_go_but_no_call_that_is_under_way(file: int) -> None:
    os.ftruncate(file, 4096)
    memory = memoryview(mmap.mmap(file, 4096))[: 64 + 56 * WINDOW]
    table = LimitTable(memory, file, 0, ROWS)
    keys = [table.key("limit", str(number)) for number in range(WINDOW + 1)]
    for number, key in enumerate(keys[:WINDOW]):
        assert table.take(key, 1, 1, 1e-9, 1.0, 1.0 + number) == 0.0
    assert table.take(keys[0], 1, 1, 1e-9, 1.0, 100.0) > 0.0  # refused, and so not used
    assert table.take(keys[WINDOW], 1, 1, 1e-9, 1.0, 100.0) == 0.0
    assert table.take(keys[1], 1, 1, 1e-9, 1.0, 100.0) > 0.0  # still known
    for key in keys[1:]:
        table.enter(key, 1, 101.0)
    assert not table.enter(table.key("limit", "one more"), 1, 102.0)


@pytest.mark.parametrize("seed", range(20))
def test_bytes_of_nobody_are_no_trouble(file: int, seed: int) -> None:
    table = table_of(file, 1)
    some = random.Random(seed)  # noqa: S311
    os.pwrite(file, some.randbytes(BYTES - 64), 64)
    for number in range(200):
        key = table.key("limit", str(number))
        assert table.take(key, 1, 1, 1.0, 5.0, 10.0) >= 0.0
        if table.enter(key, 3, 10.0):
            table.leave(key)
    table.forget_row()

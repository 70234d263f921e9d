"""What doors share: seen by every mapping, one writer a cell, and who has fewest."""

from __future__ import annotations

import os
import signal
import struct
import threading

import pytest

from tensorgate.gateway.crossing.shared_state import MAGIC, RATE_LIMIT_BYTES, VERSION, SharedState


def two(listeners: int = 2, doors: int = 2) -> tuple[SharedState, SharedState]:
    """Two mappings of the same memory, as in two processes."""
    first = SharedState.create(listeners, doors)
    return first, SharedState(os.dup(first.fd))


def test_the_layout_is_the_documented_one() -> None:
    state, _ = two(listeners=3, doors=2)
    head = os.pread(state.fd, 40, 0)
    magic, version, listeners, rows, _, start, size = struct.unpack("<8sIIIIQQ", head)
    assert (magic, version, listeners, rows, size) == (MAGIC, VERSION, 3, 4, RATE_LIMIT_BYTES)
    assert start % 4096 == 0 < start
    state.set_alive(1, alive=True)
    state.set_linked(2, linked=True)
    state.set_open(2, 3, 7)
    state.take(2, 3)
    state.give(2, 3, 1, 5)
    cells = struct.unpack("<80q", os.pread(state.fd, 80 * 8, 64))
    assert {index: value for index, value in enumerate(cells) if value} == {
        1: 1,
        4 + 2: 1,
        8 + 2 * 4 + 3: 7,
        8 + 12 + 2 * 4 + 3: 1,
        8 + 24 + 2 * 16 + 3 * 4 + 1: 5,
    }
    state.rate_limits[:3] = b"abc"
    assert os.pread(state.fd, 3, start) == b"abc"
    assert len(state.rate_limits) == size


def test_what_one_writes_another_reads() -> None:
    one, other = two()
    one.set_alive(0, alive=True)
    one.set_open(1, 0, 5)
    one.rate_limits[10] = 9
    assert other.is_alive(0)
    assert (other.open(0), other.open(1), other.rate_limits[10]) == ([0] * 4, [5, 0, 0, 0], 9)
    other.clear(0)
    assert not one.is_alive(0)
    assert one.open(1) == [0] * 4


def test_all_are_linked_once_every_living_door_is() -> None:
    one, other = two()
    assert one.are_linked()  # nobody takes a call yet
    for row in (0, 1):
        one.set_alive(row, alive=True)
    one.set_linked(0, linked=True)
    assert not one.are_linked()
    other.set_linked(1, linked=True)
    assert one.are_linked()
    one.set_linked(1, linked=False)
    assert not other.are_linked()
    one.clear(1)
    assert one.are_linked()
    one.set_linked(0, linked=True)
    one.begin(0)  # its process is another one, which has not found the engine yet
    one.set_alive(0, alive=True)
    assert not one.are_linked()


def test_all_learn_that_the_group_has_served() -> None:
    one, other = two()
    assert not other.has_served()
    one.set_served()
    assert other.has_served()


def test_another_layout_is_refused() -> None:
    state, _ = two()
    os.pwrite(state.fd, (VERSION + 1).to_bytes(4, "little"), 8)
    with pytest.raises(ValueError, match="start the gateway anew"):
        SharedState(state.fd)
    os.pwrite(state.fd, VERSION.to_bytes(4, "little"), 8)
    os.ftruncate(state.fd, os.fstat(state.fd).st_size - 1)
    with pytest.raises(ValueError, match="start the gateway anew"):
        SharedState(state.fd)


@pytest.mark.parametrize(
    ("alive", "loads", "to"),
    [
        ([0, 1], [0, 0], None),
        ([0, 1], [1, 0], 1),
        ([0, 1], [0, 1], None),
        ([0], [5, 0], None),  # nobody else is there
        ([1], [5, 4], 1),  # it stops itself
        ([0, 1, 2], [3, 2, 1], 2),
        ([0, 1, 3], [3, 2, 1, 2], 1),
    ],
)
def test_the_lighter_one_is_alive_and_has_fewer(alive: list[int], loads: list[int], to: int | None) -> None:
    state = SharedState.create(1, 2)
    for row in alive:
        state.set_alive(row, alive=True)
    for row, load in enumerate(loads):
        state.set_open(0, row, load)
    assert state.lighter(0, 0) == to


def test_what_is_on_its_way_counts_until_it_is_taken_or_lost() -> None:
    state = SharedState.create(1, 2)
    state.set_alive(1, alive=True)
    state.set_open(0, 0, 2)
    state.give(0, 0, 1)
    assert state.lighter(0, 0) == 1
    state.give(0, 0, 1)
    assert state.lighter(0, 0) is None
    state.set_open(0, 1, 1)
    state.take(0, 1)
    assert state.lighter(0, 0) is None
    state.begin(1)  # its process is another one: it has nothing, and the second connection is lost
    state.set_alive(1, alive=True)
    assert state.lighter(0, 0) == 1
    assert state.open(0)[1] == 0


def test_one_process_at_a_time_is_alone() -> None:
    """Each mapping stands for a process; also one that is killed meanwhile lets the next one in."""
    one, other = two()
    inside, done = threading.Event(), threading.Event()

    def wait() -> None:
        with other.alone():
            inside.set()
        done.set()

    with one.alone():
        thread = threading.Thread(target=wait)
        thread.start()
        assert not inside.wait(0.2)
    assert done.wait(20)
    thread.join()
    child = os.fork()
    if child == 0:
        try:
            with one.alone():
                os.kill(os.getpid(), signal.SIGKILL)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    with other.alone():
        pass

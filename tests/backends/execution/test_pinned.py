"""Pinned memory that is kept: which sizes there are, when a piece comes back, and when it goes."""

import ctypes
import threading
import time
from typing import Any

import pytest

from tensorgate.backends.execution.pinned import PinnedPool, pinned_pool, size_class


class Runtime:
    """CUDA's, with room for so many bytes."""

    hostAllocPortable = 1  # noqa: N815 - its name

    def __init__(self, room: int = 1 << 30) -> None:
        self.room = room
        self.made: dict[int, Any] = {}
        self.freed = 0

    def hostAlloc(self, nbytes: int, flags: int) -> int:  # noqa: N802 - its name
        if nbytes + sum(map(len, self.made.values())) > self.room:
            raise RuntimeError("cudaErrorMemoryAllocation: out of memory")
        data = bytearray(nbytes)
        address = (ctypes.c_char * nbytes).from_buffer(data)
        place = int(ctypes.addressof(address))
        self.made[place] = data
        return place

    def freeHost(self, address: int) -> None:  # noqa: N802
        del self.made[address]
        self.freed += 1


def test_sizes_are_at_most_a_quarter_larger() -> None:
    for nbytes in [1, 4096, 4097, 84_000_000, 2**30, 2**30 + 1]:
        assert nbytes <= size_class(nbytes) <= max(4096, nbytes * 1.25)
    assert len({size_class(nbytes) for nbytes in range(1, 1 << 20, 97)}) <= 4 * 8 + 1


def test_a_piece_comes_back_with_the_last_view_of_it() -> None:
    runtime = Runtime()
    pool = PinnedPool(runtime)
    first = pool.take(10_000)
    view = first[100:200].view("f4")
    place = first.ctypes.data
    del first
    assert pool.take(10_000).ctypes.data != place
    del view
    assert pool.take(10_100).ctypes.data in runtime.made
    assert len(runtime.made) == 2
    pieces = [pool.take(10_000) for _ in range(2)]
    assert len({piece.ctypes.data for piece in pieces}) == 2
    assert len(runtime.made) == 2


def test_what_is_free_goes_when_it_was_idle_or_room_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    runtime = Runtime(room=40_000)
    pool = PinnedPool(runtime)
    pool.take(8192)
    now[0] = 200.0
    pool.take(16384)
    assert len(runtime.made) == 2
    now[0] = 400.0
    held = pool.take(4096)  # made anew, which is when the first is given up
    assert sorted(map(len, runtime.made.values())) == [4096, 16384]
    more = pool.take(32768)  # there is no room beside the other
    assert sorted(map(len, runtime.made.values())) == [4096, 32768]
    with pytest.raises(RuntimeError, match="out of memory"):
        pool.take(32768)
    del held, more
    pool.trim()
    assert runtime.made == {}


def test_many_threads_share_it() -> None:
    pool = PinnedPool(Runtime())
    errors = []

    def work(number: int) -> None:
        for turn in range(300):
            piece = pool.take(5000 + 3000 * (turn % 3))
            piece[:] = number
            if turn % 50 == 0:
                pool.trim()
            if not (piece == number).all():
                errors.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []


def test_a_process_has_one() -> None:
    runtime = Runtime()
    assert pinned_pool(runtime) is pinned_pool(runtime)

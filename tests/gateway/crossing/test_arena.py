"""The arena: a block lives as long as anything refers to it, and no longer; what is free goes back to the system."""

import gc
import os
import threading
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorgate.gateway.crossing.arena import PAGE, Arena, ArenaFull, PeerArena, class_of
from tensorgate.gateway.crossing.frames import CrossingBroken
from tensorgate.gateway.crossing.messages import Block


@pytest.fixture
def arena() -> Iterator[Arena]:
    arena = Arena(64 << 20)
    yield arena
    arena.close()


def pages(arena: Arena) -> int:
    """Bytes that the system has for it."""
    return os.fstat(arena.fd).st_blocks * 512


@given(st.integers(0, 1 << 40))
def test_classes(size: int) -> None:
    whole = class_of(size)
    assert whole >= size
    assert whole % PAGE == 0
    assert whole <= max(4 * PAGE, size * 5 // 4 + PAGE)
    assert class_of(whole) == whole


CHAINS: dict[str, Callable[[Any], Any]] = {
    "array": lambda root: root,
    "slice": lambda root: root[100:200],
    "dtype": lambda root: root.view(np.float32).reshape(2, -1)[1:],
    "memoryview": memoryview,
    "read-only": lambda root: memoryview(root).toreadonly()[5:],
    "cast": lambda root: memoryview(root).cast("f"),
    "frombuffer": lambda root: np.frombuffer(memoryview(root), np.int32, 8, 16),
    "chain": lambda root: memoryview(np.frombuffer(memoryview(np.frombuffer(root, "<u2"))[4:], np.uint8)),
    "ndarray": lambda root: np.ndarray((3, 4), np.float64, memoryview(root), 8).T,
}


@pytest.mark.parametrize("name", CHAINS)
def test_a_block_lives_as_long_as_what_refers_to_it(arena: Arena, name: str) -> None:
    root = arena.allocate(4096)
    held = CHAINS[name](root)
    del root
    gc.collect()
    assert arena.used == class_of(4096)
    other = arena.allocate(4096)
    assert not np.shares_memory(np.asarray(held), other)
    del held
    assert arena.used == class_of(4096)
    del other
    assert arena.used == 0


def test_what_was_freed_is_used_again(arena: Arena) -> None:
    first = arena.allocate(100_000)
    address = first.ctypes.data
    del first
    assert arena.allocate(99_000).ctypes.data == address


def test_the_bound(arena: Arena) -> None:
    held = [arena.allocate(16 << 20) for _ in range(4)]
    with pytest.raises(ArenaFull):
        arena.allocate(1)
    held.pop()
    small = arena.allocate(1)  # a larger block will do
    assert len({array.ctypes.data for array in (*held, small)}) == 4
    del held, small
    assert arena.used == 0
    assert arena.allocate(64 << 20).nbytes == 64 << 20


def test_pages_go_back(arena: Arena) -> None:
    held = arena.allocate(32 << 20)
    held[:] = 1
    assert pages(arena) >= 32 << 20
    del held
    assert pages(arena) >= 32 << 20, "they stay warm"
    arena.trim()
    assert pages(arena) >= 32 << 20, "some were taken since the last time"
    arena.trim()
    assert pages(arena) == 0
    assert not arena.allocate(32 << 20).any()


def test_no_more_than_some_pages_stay() -> None:
    arena = Arena(1 << 30)
    held = [arena.allocate(16 << 20) for _ in range(12)]
    for array in held:
        array[:] = 1
    last = held.pop()
    del array
    held.clear()
    assert pages(arena) <= 80 << 20
    assert last.all()
    arena.close()


def test_a_small_load_stays_warm_after_a_burst(arena: Arena) -> None:
    """Pages that are taken anew cost as much as a copy."""
    lasting = arena.allocate(100)
    burst = [arena.allocate(700_000) for _ in range(80)]
    arena_bytes = Arena(1 << 30)
    other = [arena_bytes.allocate(1 << 20) for _ in range(200)]
    lasting_too = arena_bytes.allocate(100)
    for array in (*burst, *other):
        array[:] = 1
    del array
    burst.clear()
    other.clear()
    for each, size in ((arena, 700_000), (arena_bytes, 1 << 20)):
        array = each.allocate(size)
        array[:] = 2
        before = pages(each)
        del array
        again = each.allocate(size)
        assert again.all()
        assert pages(each) == before
    assert (lasting.size, lasting_too.size) == (100, 100)
    arena_bytes.close()


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 300_000)), max_size=40))
def test_blocks_never_overlap(steps: list[tuple[int, int]]) -> None:
    arena = Arena(8 << 20)
    held: dict[int, Any] = {}
    for slot, size in steps:
        held.pop(slot, None)
        try:
            held[slot] = arena.allocate(size)
        except ArenaFull:
            continue
        held[slot][:] = slot
    assert all((held[slot] == slot).all() for slot in held)
    spans = sorted((array.ctypes.data, array.nbytes) for array in held.values())
    assert all(begin + size <= after for (begin, size), (after, _) in pairwise(spans))
    held.clear()
    assert arena.used == 0
    arena.close()


def test_in_many_threads(arena: Arena) -> None:
    wrong = []

    def work(mark: int) -> None:
        for size in range(1, 2000, 7):
            array = arena.allocate(size * 37)
            array[:] = mark
            if not (array == mark).all():
                wrong.append(mark)

    threads = [threading.Thread(target=work, args=(mark,)) for mark in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert arena.used == 0


def test_a_block_that_garbage_holds_is_freed_while_another_is_taken(arena: Arena) -> None:
    """The collector may run in any allocation, the arena's own among them."""
    before = gc.get_threshold()
    gc.set_threshold(1)
    try:
        for _ in range(300):
            cycle: list[Any] = [arena.allocate(5000)]
            cycle.append(cycle)
            del cycle
            arena.allocate(3 * PAGE)
    finally:
        gc.set_threshold(*before)
    gc.collect()
    assert arena.used == 0


def test_find(arena: Arena) -> None:
    array = arena.allocate(1000)
    address = array.ctypes.data
    assert arena.find(address, 1000) is not None
    assert arena.find(arena.address - 1, 1) is None
    assert arena.find(arena.address + arena.max_bytes - 1, 2) is None
    assert arena.find(np.zeros(10).ctypes.data, 80) is None


# -------------------------------------------------------------------------------------------------- the side that reads


def test_the_other_side_reads_and_gives_back(arena: Arena) -> None:
    peer = PeerArena(os.dup(arena.fd))
    array = arena.allocate(5000)
    array[:] = np.arange(5000) % 251
    view = peer.view(Block(array.ctypes.data - arena.address, 5000, 7))
    assert (view == array).all()
    with pytest.raises(ValueError, match="read-only"):
        view[0] = 1
    part = memoryview(view.view("<u2")[3:])
    del view
    assert not peer.has_released
    assert peer.take_released() == ()
    del part
    assert peer.has_released
    assert (peer.take_released(), peer.take_released()) == ((7,), ())


@pytest.mark.parametrize(
    ("offset", "size"),
    [(-1, 1), (0, -1), (0, (64 << 20) + 1), (64 << 20, 1), (2**63, 1), (1, 2**64 - 1), (-(2**63), 2**63), (2**64, 0)],
)
def test_hostile_blocks(arena: Arena, offset: int, size: int) -> None:
    peer = PeerArena(os.dup(arena.fd))
    with pytest.raises(CrossingBroken):
        peer.view(Block(offset, size, 1))
    assert not peer.has_released


@pytest.mark.parametrize("offset", [0, 64 << 20])
def test_a_block_of_nothing(arena: Arena, offset: int) -> None:
    assert PeerArena(os.dup(arena.fd)).view(Block(offset, 0, 1)).nbytes == 0


def test_only_memory_that_cannot_shrink_is_an_arena(arena: Arena) -> None:
    with pytest.raises(OSError, match="not permitted"):
        os.truncate(arena.fd, PAGE)
    fd = os.memfd_create("other")
    os.truncate(fd, PAGE)
    with pytest.raises(CrossingBroken):
        PeerArena(fd)
    reading, writing = os.pipe()
    os.close(writing)
    with pytest.raises(CrossingBroken):
        PeerArena(reading)


def test_descriptors_and_maps_end_with_the_last_array() -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))
    arena = Arena(1 << 30)
    peer = PeerArena(os.dup(arena.fd))
    array = arena.allocate(100)
    view = peer.view(Block(0, 100, 1))
    arena.close()
    del arena, peer
    array[:] = 3
    assert view.all()
    del array, view
    assert len(list(Path("/proc/self/fd").iterdir())) == before

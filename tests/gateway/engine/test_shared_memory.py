"""Regions that callers register: which are refused, what a view of one is, and when its mapping ends."""

import ctypes
import gc
import os
import threading
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tensorgate.gateway.contract.errors import (
    CudaMemoryUnavailable,
    GatewayError,
    InvalidArgument,
    RegionExists,
    RegionInvalid,
    RegionKeyReserved,
    RegionLimit,
    RegionNotFound,
    RegionOutOfBounds,
    RegionRange,
    RegionUnreachable,
    SharedMemoryDisabled,
)
from tensorgate.gateway.contract.questions import MemoryKind, Region, RegionStatus, RegisterRegion, UnregisterRegion
from tensorgate.gateway.engine.shared_memory import FOLDER, RESERVED, SharedMemory

PAGE = 4096
pytestmark = pytest.mark.skipif(not Path(FOLDER).is_dir(), reason="no POSIX shared memory below /dev/shm here")


@pytest.fixture
def make_file() -> Iterator[Callable[..., Path]]:
    """make_file(content, mode) -> a file below /dev/shm, as shm_open makes one."""
    made: list[Path] = []

    def make(content: bytes = bytes(PAGE), mode: int = 0o600) -> Path:
        made.append(Path(FOLDER) / f"tensorgate-test-{uuid.uuid4().hex}")
        made[-1].write_bytes(content)
        made[-1].chmod(mode)
        return made[-1]

    yield make
    for path in made:
        path.unlink(missing_ok=True)


def register(memory: SharedMemory, name: str, key: str, byte_size: int = PAGE, offset: int = 0) -> None:
    memory.register(RegisterRegion("system", Region(name, byte_size, key, offset)))


def names(memory: SharedMemory, kind: MemoryKind = "system") -> list[str]:
    return [region.name for region in memory.status(RegionStatus(kind))]


def open_files(file: Path) -> int:
    """How many descriptors this process has of a file."""
    return sum(entry.resolve() == file for entry in Path("/proc/self/fd").iterdir())


def mapped_files() -> str:
    return Path("/proc/self/maps").read_text()


# ------------------------------------------------------------------------------------------------------------ the table


def test_a_region_is_registered_listed_and_forgotten(make_file: Any) -> None:
    memory, file = SharedMemory(system=True), make_file()
    for name, key in (("a", f"/{file.name}"), ("b", file.name), ("c", f"//{file.name}")):
        register(memory, name, key, 100, 28)
    assert names(memory) == ["a", "b", "c"]
    assert memory.status(RegionStatus("system", "b")) == (Region("b", 100, file.name, 28),)
    assert memory.status(RegionStatus("cuda")) == ()
    for kind, name in (("system", "b"), ("system", "never there"), ("cuda", "")):
        memory.unregister(UnregisterRegion(kind, name))  # type: ignore[arg-type]
    assert names(memory) == ["a", "c"]
    memory.unregister(UnregisterRegion("system"))
    assert names(memory) == []
    with pytest.raises(RegionNotFound) as missing:
        memory.status(RegionStatus("system", "a"))
    assert (missing.value.name, missing.value.kind) == ("a", "system")


def test_a_view_is_the_memory_itself(make_file: Any) -> None:
    content = np.arange(3 * PAGE, dtype=np.uint32).astype(np.uint8).tobytes()
    memory, file = SharedMemory(system=True), make_file(content)
    register(memory, "r", file.name, 2 * PAGE - 10, PAGE + 5)
    view = memory.view("r", 3, 7)
    assert isinstance(view, memoryview)
    assert (view.readonly, bytes(view)) == (True, content[PAGE + 8 : PAGE + 15])
    into = memory.view("r", 0, 2 * PAGE - 10, writable=True)
    assert isinstance(into, memoryview)
    into[:3] = b"new"
    assert file.read_bytes()[PAGE + 5 : PAGE + 8] == b"new"
    assert file.stat().st_size == 3 * PAGE, "registered, and of the same size"


def test_each_name_once_and_no_more_than_the_limit(make_file: Any) -> None:
    memory, file = SharedMemory(system=True, max_regions=3), make_file()
    for name in "abc":
        register(memory, name, file.name)
    with pytest.raises(RegionExists):
        register(memory, "a", file.name)
    with pytest.raises(RegionLimit):
        register(memory, "d", file.name)
    memory.unregister(UnregisterRegion("system", "b"))
    register(memory, "d", file.name)


def test_a_thousand_registrations_hold_nothing_back(make_file: Any) -> None:
    memory, file = SharedMemory(system=True, max_regions=50), make_file()
    register(memory, "first", file.name)
    refused = 0
    for number in range(1000):
        try:
            register(memory, str(number), file.name)
        except RegionLimit:
            refused += 1
    assert (refused, len(names(memory))) == (951, 50)
    assert open_files(file) == 50
    memory.unregister(UnregisterRegion("system"))
    gc.collect()
    assert open_files(file) == 0
    assert file.name not in mapped_files()


def test_threads_register_one_name_once(make_file: Any) -> None:
    memory, file = SharedMemory(system=True), make_file()
    outcomes: list[Any] = []

    def go() -> None:
        try:
            register(memory, "r", file.name)
            outcomes.append(None)
        except RegionExists as error:
            outcomes.append(error)

    threads = [threading.Thread(target=go) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (outcomes.count(None), len(outcomes)) == (1, 8)


# ----------------------------------------------------------------------------------------------------------- refusals

KEYS: list[tuple[str, type[GatewayError]]] = [
    ("", RegionUnreachable),
    ("/", RegionUnreachable),
    (".", RegionUnreachable),
    ("/..", RegionUnreachable),
    ("/../etc/passwd", RegionUnreachable),
    ("../etc/passwd", RegionUnreachable),
    ("/etc/passwd", RegionUnreachable),
    ("folder/file", RegionUnreachable),
    ("/proc/self/mem", RegionUnreachable),
    ("with\0nul", RegionUnreachable),
    ("\ud800", RegionUnreachable),
    ("/" + 256 * "x", RegionUnreachable),
    ("/" + 10**6 * "x", RegionUnreachable),
    ("/not there", RegionUnreachable),
    (f"/{RESERVED}x", RegionKeyReserved),
    (f"{RESERVED}x", RegionKeyReserved),
]


@pytest.mark.parametrize(("key", "kind"), KEYS, ids=lambda value: repr(value)[:40])
def test_keys_that_lead_elsewhere(key: str, kind: type[GatewayError]) -> None:
    memory = SharedMemory(system=True)
    with pytest.raises(kind) as refused:
        register(memory, "r", key, 1)
    assert type(refused.value) is kind
    assert names(memory) == []


SIZES = [
    (0, PAGE + 1),
    (PAGE + 1, 0),
    (1, PAGE),
    (PAGE, 1),
    (2**63, 0),
    (2**64 - 1, 0),
    (2**64 - 1, 2**64 - 1),
    (1, 2**63),
    (PAGE, 2**64 - PAGE),
]


@pytest.mark.parametrize(("byte_size", "offset"), SIZES)
def test_regions_larger_than_their_memory(byte_size: int, offset: int, make_file: Any) -> None:
    memory, file = SharedMemory(system=True), make_file()
    with pytest.raises(RegionOutOfBounds):
        register(memory, "r", file.name, byte_size, offset)
    assert file.stat().st_size == PAGE


def test_a_region_of_nothing_cannot_be_mapped(make_file: Any) -> None:
    with pytest.raises(RegionInvalid):
        register(SharedMemory(system=True), "r", make_file().name, 0)


def test_what_is_no_file_of_our_own(make_file: Any, tmp_path: Path) -> None:
    memory = SharedMemory(system=True)
    secret = tmp_path / "secret"
    secret.write_bytes(bytes(PAGE))
    link, fifo, folder = (make_file() for _ in range(3))
    for path in (link, fifo, folder):
        path.unlink()
    link.symlink_to(secret)
    os.mkfifo(fifo)
    folder.mkdir()
    others = [make_file(mode=mode) for mode in (0o620, 0o602, 0o666)]
    try:
        for path in (link, fifo, folder, *others):
            with pytest.raises(RegionUnreachable):
                register(memory, "r", path.name, 1)
    finally:
        folder.rmdir()
    readable = make_file(mode=0o644)
    register(memory, "r", readable.name, 1)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make another user's file")
def test_root_does_not_reach_other_users_memory(make_file: Any) -> None:
    memory, file = SharedMemory(system=True), make_file()
    os.chown(file, 12345, 12345)
    with pytest.raises(RegionUnreachable):
        register(memory, "r", file.name, 1)


def test_memory_that_cannot_be_allocated_is_refused(make_file: Any) -> None:
    """A file of holes, larger than /dev/shm: to touch its last page would end the process."""
    memory, file = SharedMemory(system=True), make_file()
    room = os.statvfs(FOLDER)
    size = 2 * room.f_blocks * room.f_frsize
    os.truncate(file, size)
    with pytest.raises(RegionInvalid):
        register(memory, "r", file.name, size)
    assert file.stat().st_blocks <= PAGE // 512, "nothing was allocated to no purpose"
    register(memory, "r", file.name, 8 * PAGE, size - 8 * PAGE)
    assert file.stat().st_blocks >= 8 * PAGE // 512, "what is registered is there"


def test_a_prefix_that_keys_must_have(make_file: Any) -> None:
    memory, file = SharedMemory(system=True, prefix="/tensorgate-test-"), make_file()
    register(memory, "r", f"/{file.name}")
    with pytest.raises(RegionUnreachable):
        register(SharedMemory(system=True, prefix="/other"), "r", f"/{file.name}")


def test_long_names_are_not_kept(make_file: Any) -> None:
    with pytest.raises(InvalidArgument):
        register(SharedMemory(system=True), 1025 * "r", make_file().name)


RANGES = [(0, PAGE + 1), (1, PAGE), (PAGE, 1), (2**63, 1), (1, 2**63), (2**64 - 1, 2**64 - 1)]


@pytest.mark.parametrize(("offset", "byte_size"), RANGES)
def test_parts_outside_of_a_region(offset: int, byte_size: int, make_file: Any) -> None:
    memory, file = SharedMemory(system=True), make_file(bytes(3 * PAGE))
    register(memory, "r", file.name, PAGE)
    with pytest.raises(RegionRange) as refused:
        memory.view("r", offset, byte_size)
    assert refused.value.starts_outside is (offset >= PAGE)
    with pytest.raises(RegionNotFound):
        memory.view("q", offset, byte_size)
    for start in (0, PAGE):
        assert len(memory.view("r", start, 0)) == 0  # type: ignore[arg-type]


def test_a_file_that_was_cut_is_not_touched(make_file: Any) -> None:
    memory, file = SharedMemory(system=True), make_file(bytes(4 * PAGE))
    register(memory, "r", file.name, 4 * PAGE)
    os.truncate(file, PAGE)
    with pytest.raises(RegionRange):
        memory.view("r", 0, 1)
    os.truncate(file, 4 * PAGE)
    assert bytes(memory.view("r", 3 * PAGE, 1)) == b"\0"  # type: ignore[arg-type]


# ------------------------------------------------------------------------------------------------------- a region's end


def test_a_mapping_lives_as_long_as_its_last_reader(make_file: Any) -> None:
    memory, file = SharedMemory(system=True), make_file(b"x" * PAGE)
    register(memory, "r", file.name)
    array = np.frombuffer(memory.view("r", 0, PAGE), np.uint8)  # type: ignore[arg-type]
    part = array[100:].reshape(-1, 4)
    memory.unregister(UnregisterRegion("system", "r"))
    file.unlink()
    del array
    assert file.name in mapped_files()
    assert part.tobytes() == b"x" * (PAGE - 100)
    del part
    gc.collect()
    assert file.name not in mapped_files()


def test_a_name_may_be_used_again_while_the_old_memory_is_read(make_file: Any) -> None:
    memory, old, new = SharedMemory(system=True), make_file(b"o" * PAGE), make_file(b"n" * PAGE)
    register(memory, "r", old.name)
    view = memory.view("r", 0, 4)
    memory.unregister(UnregisterRegion("system"))
    register(memory, "r", new.name)
    assert (bytes(view), bytes(memory.view("r", 0, 4))) == (b"oooo", b"nnnn")  # type: ignore[arg-type]


# -------------------------------------------------------------------------------------------------------- off, and CUDA


@pytest.mark.parametrize("kind", ["system", "cuda"])
def test_what_is_off(kind: MemoryKind, make_file: Any) -> None:
    memory = SharedMemory()
    with pytest.raises(SharedMemoryDisabled):
        memory.register(RegisterRegion(kind, Region("r", PAGE, make_file().name), b""))
    with pytest.raises(SharedMemoryDisabled):
        memory.unregister(UnregisterRegion(kind, "r"))
    memory.unregister(UnregisterRegion(kind))
    assert names(memory, kind) == []
    assert memory.works == frozenset()


class Card:
    """Memory of a GPU that is none."""

    def __init__(self, handle: bytes, device: int, byte_size: int) -> None:
        if handle != b"good":
            raise ValueError("internal")
        self.opened = (device, byte_size)

    def view(self, offset: int, byte_size: int, *, writable: bool) -> Any:
        return memoryview(bytes(byte_size))


def test_cuda_regions(make_file: Any) -> None:
    region = Region("g", 64, device_id=1)
    with pytest.raises(CudaMemoryUnavailable):
        SharedMemory(cuda=True).register(RegisterRegion("cuda", region, b"good"))
    memory = SharedMemory(cuda=True, system=True, open_cuda=Card)
    assert memory.works == {"system", "cuda"}
    memory.register(RegisterRegion("cuda", region, b"good"))
    assert memory.status(RegionStatus("cuda")) == (region,)
    assert names(memory) == []
    assert len(memory.view("g", 60, 4)) == 4  # type: ignore[arg-type]
    with pytest.raises(RegionRange):
        memory.view("g", 60, 5)
    with pytest.raises(RegionExists):
        register(memory, "g", make_file().name)
    with pytest.raises(InvalidArgument) as refused:
        memory.register(RegisterRegion("cuda", Region("h", 64), b"bad"))
    assert "internal" not in str(refused.value)
    memory.unregister(UnregisterRegion("cuda"))
    assert names(memory, "cuda") == []


def test_gpus_know_of_a_mapping_as_long_as_it_is_there(make_file: Any) -> None:
    known: list[tuple[int, int]] = []

    def tell(address: int, nbytes: int) -> Callable[[], None]:
        known.append((address, nbytes))
        assert (ctypes.c_char * 3).from_address(address).raw == b"abc"

        def forget() -> None:
            assert (ctypes.c_char * 3).from_address(address).raw == b"abc"  # it is mapped still
            known.remove((address, nbytes))

        return forget

    memory, file = SharedMemory(system=True, register_host=tell), make_file(b"abc" + bytes(PAGE))
    register(memory, "r", file.name)
    view = memory.view("r", 0, 3)
    memory.unregister(UnregisterRegion("system", "r"))
    gc.collect()
    assert [nbytes for _, nbytes in known] == [PAGE]
    del view
    gc.collect()
    assert known == []

"""Memory that callers share with the gateway: they register a region by name, and requests name it in place of data.

One table holds regions of both kinds, POSIX shared memory and a GPU's, because a request names a region without its
kind; a name is taken once. What is registered stays mapped until it is unregistered *and* the last array on it is
gone: an array keeps its mapping alive, so that nothing is unmapped under a reader.

A mapping is only as safe as the file below it: who cuts the file while we read gives us SIGBUS. So a region is mapped
only if the gateway's own user owns it and nobody else may write to it; that user could stop the gateway anyway. Root
gets no more than that: a caller must not reach through us what it could not reach itself. Accidents are caught: the
pages are allocated before they are mapped (a full /dev/shm refuses, and does not kill), and the file's size is looked
at whenever a request names the region. Source: Triton's shared memory extensions.
"""

from __future__ import annotations

import contextlib
import logging
import mmap
import os
import stat
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, Protocol, TypeAlias

import numpy as np

from tensorgate.gateway.contract.errors import (
    CudaMemoryUnavailable,
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
from tensorgate.gateway.contract.memory import Memory
from tensorgate.gateway.contract.questions import MemoryKind, Region, RegionStatus, RegisterRegion, UnregisterRegion

log = logging.getLogger(__name__)

FOLDER: Final = "/dev/shm"  # noqa: S108
RESERVED: Final = "triton_python_backend_shm_region_"
_LONGEST_NAME: Final = 1024
_WRITABLE_BY_OTHERS: Final = stat.S_IWGRP | stat.S_IWOTH


class Mapped(Protocol):
    """The memory of a region; it is given back when the last view of it is gone."""

    def view(self, offset: int, byte_size: int, *, writable: bool) -> Memory | None:
        """A part of it that lies within the region; None if it is not there any more."""
        ...


OpenCuda: TypeAlias = Callable[[bytes, int, int], Mapped]
"""(CUDA IPC handle, device, bytes) -> the memory behind it. Raises ValueError."""


RegisterHost: TypeAlias = Callable[[int, int], Callable[[], None]]
"""(address, bytes) of memory that GPUs may copy from and to by themselves -> what takes that back."""


class SharedMemory:
    """The registered regions. Methods may be called from any thread.

    A kind is off unless it is allowed; `open_cuda` and `register_host` are None on a machine without GPUs. `prefix` is
    what the keys of system memory must begin with.
    """

    def __init__(
        self,
        *,
        system: bool = False,
        cuda: bool = False,
        prefix: str = "",
        max_regions: int = 256,
        open_cuda: OpenCuda | None = None,
        register_host: RegisterHost | None = None,
    ) -> None:
        self._allowed: Mapping[MemoryKind, bool] = {"system": system, "cuda": cuda}
        self._prefix = prefix.lstrip("/")
        self._max_regions = max_regions
        self._open_cuda = open_cuda
        self._register_host = register_host
        self._regions: dict[str, tuple[MemoryKind, Region, Mapped]] = {}
        self._lock = threading.Lock()

    @property
    def works(self) -> frozenset[MemoryKind]:
        """The kinds that can be registered here."""
        kinds: list[MemoryKind] = ["system"] if self._allowed["system"] else []
        if self._allowed["cuda"] and self._open_cuda is not None:
            kinds.append("cuda")
        return frozenset(kinds)

    @property
    def in_use(self) -> bool:
        """Whether any is registered."""
        return bool(self._regions)

    def view(self, name: str, offset: int, byte_size: int, *, writable: bool = False) -> Memory:
        """A part of a region, without a copy: bytes on the host, or memory of a GPU.

        Raises RegionNotFound, RegionRange.
        """
        entry = self._regions.get(name)
        if entry is None:
            raise RegionNotFound(name)
        _, region, mapped = entry
        view = mapped.view(offset, byte_size, writable=writable) if offset + byte_size <= region.byte_size else None
        if view is None:
            raise RegionRange(name, starts_outside=offset >= region.byte_size)
        return view

    def status(self, question: RegionStatus) -> tuple[Region, ...]:
        """The regions of a kind, or the one of that name. Raises RegionNotFound."""
        found = tuple(
            region
            for kind, region, _ in list(self._regions.values())
            if kind == question.kind and question.name in ("", region.name)
        )
        if question.name and not found:
            raise RegionNotFound(question.name, question.kind)
        return found

    def register(self, question: RegisterRegion) -> None:
        """Open and map a region. It may take as long as the kernel needs to allocate the pages.

        Raises SharedMemoryDisabled, RegionExists, RegionLimit, RegionUnreachable, RegionOutOfBounds, RegionInvalid,
        RegionKeyReserved, CudaMemoryUnavailable, InvalidArgument.
        """
        kind, region = question.kind, question.region
        if not self._allowed[kind]:
            raise SharedMemoryDisabled
        if len(region.name) > _LONGEST_NAME:
            raise InvalidArgument(f"the name of a shared memory region is longer than {_LONGEST_NAME} characters")
        self._check_room(region.name)
        mapped = self._map_system(region) if kind == "system" else self._map_cuda(region, question.handle)
        with self._lock:
            self._check_room(region.name)
            self._regions[region.name] = kind, region, mapped

    def unregister(self, question: UnregisterRegion) -> None:
        """Forget a region, or all of its kind; who forgets all need not be allowed any: clients begin with it.

        Raises SharedMemoryDisabled.
        """
        if question.name and not self._allowed[question.kind]:
            raise SharedMemoryDisabled
        with self._lock:
            for name, (kind, _, _) in list(self._regions.items()):
                if kind == question.kind and question.name in ("", name):
                    del self._regions[name]

    def _check_room(self, name: str) -> None:
        if name in self._regions:
            raise RegionExists(name)
        if len(self._regions) >= self._max_regions:
            raise RegionLimit(self._max_regions)

    def _map_system(self, region: Region) -> Mapped:
        name = region.key.lstrip("/")
        if name.startswith(RESERVED):
            raise RegionKeyReserved(region.name, region.key, RESERVED)
        if not name.startswith(self._prefix):
            raise RegionUnreachable(region.key)
        return _map_file(name, region, self._register_host)

    def _map_cuda(self, region: Region, handle: bytes) -> Mapped:
        if self._open_cuda is None:
            raise CudaMemoryUnavailable(region.name)
        try:
            return self._open_cuda(handle, region.device_id, region.byte_size)
        except ValueError as error:
            log.info("a CUDA region cannot be opened: %s", error)
            raise InvalidArgument(f"failed to register CUDA shared memory region '{region.name}'") from None


# ------------------------------------------------------------------------------------------------------- system memory


class _MappedFile:
    """A part of a file, from byte `start` of a mapping; `end` is where it ends in the file."""

    def __init__(self, mapping: mmap.mmap, start: int, end: int) -> None:
        self._mapping = mapping
        self._start = start
        self._end = end

    def view(self, offset: int, byte_size: int, *, writable: bool) -> Memory | None:
        if self._mapping.size() < self._end:  # the file's size, as it is now
            return None
        begin = self._start + offset
        view = memoryview(self._mapping)[begin : begin + byte_size]
        return view if writable else view.toreadonly()


class _Mapping(mmap.mmap):
    """A mapping that GPUs may know of, as long as it is there."""

    unregister: Callable[[], None] | None = None

    def __del__(self) -> None:
        if self.unregister is not None:
            self.unregister()


def _map_file(name: str, region: Region, register_host: RegisterHost | None) -> Mapped:
    """The region of the file `name` below /dev/shm. Raises RegionUnreachable, RegionOutOfBounds, RegionInvalid."""
    end = region.offset + region.byte_size
    with _opened(name, region.key) as file:
        facts = os.fstat(file)
        if end > facts.st_size:
            raise RegionOutOfBounds(region.name)
        if not region.byte_size or not _has_room(file, region.byte_size, facts):
            raise RegionInvalid(region.key)
        aligned = region.offset - region.offset % mmap.ALLOCATIONGRANULARITY
        try:
            os.posix_fallocate(file, region.offset, region.byte_size)
            mapping = _Mapping(file, end - aligned, offset=aligned)
        except (OSError, ValueError, OverflowError) as error:
            log.info("shared memory %r cannot be mapped: %s", name, error)
            raise RegionInvalid(region.key) from None
    if register_host is not None:
        address = np.frombuffer(mapping, np.uint8).ctypes.data
        mapping.unregister = register_host(address, len(mapping))
    return _MappedFile(mapping, region.offset - aligned, end)


def _has_room(file: int, byte_size: int, facts: os.stat_result) -> bool:
    """Whether there is memory for the pages that the file does not have yet, so that none is taken to no purpose."""
    room = os.fstatvfs(file)
    return byte_size - facts.st_blocks * 512 <= room.f_bavail * room.f_frsize


@contextlib.contextmanager
def _opened(name: str, key: str) -> Iterator[int]:
    """A descriptor of one ordinary file of our own right below /dev/shm; links are not followed."""
    if "/" in name or name in ("", ".", ".."):
        raise RegionUnreachable(key)
    try:
        file = os.open(f"{FOLDER}/{name}", os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except (OSError, ValueError) as error:
        log.info("shared memory %r cannot be opened: %s", name, error)
        raise RegionUnreachable(key) from None
    try:
        facts: Any = os.fstat(file)
        if not stat.S_ISREG(facts.st_mode) or facts.st_uid != os.geteuid() or facts.st_mode & _WRITABLE_BY_OTHERS:
            log.info("shared memory %r is refused: it must be a file that only user %d can write", name, os.geteuid())
            raise RegionUnreachable(key)
        yield file
    finally:
        os.close(file)

"""What the process may use and hold: processors, memory, caches, and what a caller may send.

How many threads compute on the host, all models together, is the section `cpu`: {threads: 8}.

ONNX Runtime gives each session as many threads as the machine has cores, regardless of the container's quota and of the
number of sessions; under load they compete for cores, and in a container with a quota all of them are throttled until
its next period. Here the budget is what the process may use, and a model's copies share it equally: each gets
threads / copies, at least one. So one model never has more threads than cores, whatever its `instances`; several busy
models are left to the operating system's scheduler. A model's own `intra_op_threads` takes precedence.

Measured on two cores, two models with two copies each, all busy (16 rows through six layers of 1024, medians of five
rounds): 5.0 ms of processor time per request by ONNX Runtime's defaults, 2.8 with two threads for each session, 2.5 by
this rule; p99 62, 46 and 42 ms beside other work, 34, 13 and 11 in the quietest round. One pool for all sessions, which
ONNX Runtime has as well, spins between runs whatever a session says, and fails sessions that do not ask for it.

A python model computes with NumPy, whose OpenBLAS has its own pool for the whole process, with a thread per core of the
machine: set OPENBLAS_NUM_THREADS (or OMP_NUM_THREADS, MKL_NUM_THREADS) if several such models are busy.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import Field

from tensorgate.gateway.contract.options import Options

MAX_DOORS: Final = 256
_CGROUPS: Final = Path("/sys/fs/cgroup")
_OWN: Final = Path("/proc/self/cgroup")


class Timeouts(Options):
    """Seconds after which an HTTP port closes a connection."""

    idle_seconds: float = Field(default=75, gt=0, allow_inf_nan=False)
    """That has no request."""
    head_seconds: float = Field(default=30, gt=0, allow_inf_nan=False)
    """Whose request's head, or handshake, is not whole."""
    body_seconds: float = Field(default=60, gt=0, allow_inf_nan=False)
    """Of whose request's body nothing more comes."""
    answer_seconds: float = Field(default=300, gt=0, allow_inf_nan=False)
    """Whose client takes nothing of its answer."""


class Limits(Options):
    """What a caller may send."""

    max_body_bytes: int = Field(default=64 << 20, ge=1)
    """The largest body, or the largest JSON part of one with binary tensors."""
    max_binary_bytes: int = Field(default=1 << 30, ge=1, lt=2**31)
    """The largest body with tensors as bytes: Open Inference's binary extension, and every message of gRPC."""
    max_json_depth: int | None = Field(default=None, ge=1)
    """How deep JSON may nest; null is each dialect's own limit."""
    max_elements: int | None = Field(default=None, ge=1)
    """How many elements the tensors of a request may have in all; null: as many as a body holds."""
    max_header_bytes: int = Field(default=8190, ge=1024, le=1 << 20)
    """The longest request line or header; of gRPC, all metadata of a call."""
    max_headers: int = Field(default=128, ge=8, le=10_000)
    """How many headers a request may have."""
    max_connections: int | None = Field(default=None, ge=1)
    """How many connections each port may have open; more are closed at once. null: any number."""
    max_concurrent_streams: int | None = Field(default=1000, ge=1, lt=2**31)
    """How many calls of gRPC one connection may have open: clients let further ones wait; null: any number."""
    timeouts: Timeouts = Timeouts()
    """How long HTTP ports wait for clients."""


class SharedMemoryConfig(Options):
    """Memory that callers on this machine share with the gateway, in place of sending tensors. Whoever may call the
    gateway may read and write what is registered."""

    system: bool = False
    """Allow POSIX shared memory: files below /dev/shm that the gateway's own user owns and only it can write."""
    cuda: bool = False
    """Allow a GPU's memory, by CUDA IPC handles."""
    prefix: str = ""
    """What the keys of system memory must begin with; empty allows every key."""
    max_regions: int = Field(default=256, ge=1)
    """How many regions may be registered at once. Each holds a file open."""


class ResponseCacheConfig(Options):
    """Answers that are given again to equal requests, of all models that ask for it with `response_cache: true`."""

    max_bytes: int = Field(default=64 << 20, ge=1)
    """How much they may take in all; what was used longest ago leaves first."""
    max_entry_bytes: int = Field(default=1 << 20, ge=1)
    """The largest inputs, and the largest outputs, that are kept."""
    ttl_seconds: float = Field(default=0, ge=0, allow_inf_nan=False)
    """How long an answer may be given again; 0: until its version is unloaded."""


class Cpu(Options):
    """The host's processors."""

    threads: int | None = Field(default=None, ge=1, le=4096)
    """How many threads models may compute with on the host; null is as many as there are cores for this process. A
    model's copies share them equally; a model's own intra_op_threads counts instead. NumPy in python models has threads
    of its own: see OPENBLAS_NUM_THREADS."""

    def budget(self) -> int:
        """The number of threads for all models together."""
        return self.threads or usable_cores()


class Processes(Options):
    """How many processes serve. Changes need a full restart."""

    doors: Annotated[int, Field(ge=1, le=MAX_DOORS)] | Literal["auto"] = 1
    """How many doors take calls, each a process that reads, checks and writes them, around one engine with the models.
    1: one process does everything; auto: as many as there are cores for this process."""
    engine_cores: (
        Annotated[int, Field(ge=1, le=4096)]
        | Annotated[tuple[Annotated[int, Field(ge=0, le=4095)], ...], Field(min_length=1)]
        | None
    ) = None
    """With doors: the cores on which the engine runs, as their number or as a list of their numbers, and the doors on
    the others, if there are any. null: all run where there is room."""
    replicas: bool = True
    """With doors: whether each may load copies of small models that take less time than the way to the engine, and
    answer for them itself. Only ONNX models on the host, without operators, sequences or a cache; 64 MiB of files for a
    model, 256 MiB for a door."""

    def count(self) -> int:
        """The number of doors."""
        return min(usable_cores(), MAX_DOORS) if self.doors == "auto" else self.doors


def usable_cores(own: Path = _OWN, cgroups: Path = _CGROUPS) -> int:
    """The number of cores that the process may run on, or the quota of its cgroup or of a parent if that is smaller."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, int(min([cores, *_quotas(own, cgroups)])))


def _quotas(own: Path, cgroups: Path) -> Iterator[float]:
    """All quotas, in cores. Source: Linux, control groups version 2 (cpu.max) and 1 (cpu.cfs_quota_us)."""
    try:
        lines = own.read_text(encoding="utf-8").splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if not controllers:
            root, name = cgroups, "cpu.max"
        elif "cpu" in controllers.split(","):
            root, name = cgroups / controllers, "cpu.cfs_quota_us"
        else:
            continue
        folder = root / path.lstrip("/")
        for each in (folder, *folder.parents):
            yield from _quota(each / name)
            if each == root:
                break


def _quota(file: Path) -> Iterator[float]:
    try:
        if file.name == "cpu.max":
            quota, period = file.read_text(encoding="utf-8").split()
        else:
            quota = file.read_text(encoding="utf-8").strip()
            period = file.with_name("cpu.cfs_period_us").read_text(encoding="utf-8")
        if quota not in ("max", "-1"):
            yield int(quota) / int(period)
    except (OSError, ValueError):  # no such group, or no quota
        return

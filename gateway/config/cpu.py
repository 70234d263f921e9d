"""How many threads compute on the host, all models together.

    cpu: {threads: 8}

ONNX Runtime gives each session as many threads as the machine has cores, whatever the container may use and however
many sessions there are; under load they take the cores from one another, and in a container with a quota all of them
stand still until its next period. Here the budget is what the process may use, and a model's copies share it equally:
each gets threads / copies, one at least. So one model never has more threads than cores, whatever its `instances`; of
several models that are busy at once the operating system makes the best. What a model says itself
(`intra_op_threads`) counts.

Measured on two cores, two models with two copies each, all busy (16 rows through six layers of 1024, medians of five
rounds): 5.0 ms of processor time per request by ONNX Runtime's defaults, 2.8 with two threads for each session, 2.5 by
this rule; p99 62, 46 and 42 ms beside other work, 34, 13 and 11 in the quietest round. One pool for all sessions, which
ONNX Runtime has as well, spins between runs whatever a session says, and fails sessions that do not ask for it.

A python model computes with NumPy, whose OpenBLAS has a pool of its own for the whole process, as large as the machine:
set OPENBLAS_NUM_THREADS (or OMP_NUM_THREADS, MKL_NUM_THREADS) in the environment where several such models are busy.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from pydantic import Field

from tensorgate.gateway.config.values import Section

_CGROUPS: Final = Path("/sys/fs/cgroup")
_OWN: Final = Path("/proc/self/cgroup")


class Cpu(Section):
    """The host's processors."""

    threads: int | None = Field(default=None, ge=1, le=4096)
    """How many threads models may compute with on the host; null is as many as there are cores for this process. A
    model's copies share them equally; a model's own intra_op_threads counts instead. NumPy in python models has threads
    of its own: see OPENBLAS_NUM_THREADS."""

    def budget(self) -> int:
        """The number of threads."""
        return self.threads or usable_cores()


def usable_cores(own: Path = _OWN, cgroups: Path = _CGROUPS) -> int:
    """The cores that the process may run on, or fewer if a quota of its cgroup or of one around it allows less."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, int(min([cores, *_quotas(own, cgroups)])))


def _quotas(own: Path, cgroups: Path) -> Iterator[float]:
    """In cores, as far as there are any. Source: Linux, control groups version 2 (cpu.max) and 1 (cpu.cfs_quota_us)."""
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
    except (OSError, ValueError):  # no such group here, or none with a quota
        return

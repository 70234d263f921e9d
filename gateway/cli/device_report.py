"""What `tensorgate check --device` tells: what of CUDA is there, and where each model of a configuration would run."""

from __future__ import annotations

import importlib.metadata
import re
from collections.abc import Iterator
from contextlib import suppress
from typing import Final

from tensorgate.backends.execution.cuda_install import driver_problem, package_conflict
from tensorgate.backends.execution.device import cuda_devices
from tensorgate.backends.execution.gpu import driver_version, mig_mode, read_gpu
from tensorgate.backends.execution.instances import EVERY_GPU, EVERYWHERE
from tensorgate.gateway.app import catalog
from tensorgate.gateway.config import Config
from tensorgate.gateway.contract.backend import BackendKind
from tensorgate.gateway.contract.registries import Registries

_PACKAGES: Final = re.compile(r"(cupy|nvidia|onnxruntime|tensorflow|torch)(-.*)?", re.IGNORECASE)
_TOOLS: Final = re.compile(r"tensorflow-(estimator|io|serving).*|nvidia-(ml-py|nvimgcodec.*)", re.IGNORECASE)


def installation(kinds: Registries) -> Iterator[str]:
    """A line for the driver, each package of CUDA and of what uses it, each GPU, and each backend."""
    yield f"driver: {driver_problem() or driver_version() or 'there, of a version that nvidia-ml-py does not tell'}"
    yield from sorted(
        f"package: {each.metadata['Name']} {each.version}"
        for each in importlib.metadata.distributions()
        if _PACKAGES.fullmatch(each.metadata["Name"]) and not _TOOLS.fullmatch(each.metadata["Name"])
    )
    if conflict := package_conflict():
        yield f"packages: {conflict}"
    for index in range(cuda_devices()):
        name = f"cuda:{index}"
        gpu = read_gpu(name)
        if gpu is None:
            yield f"{name}: says nothing of itself"
        else:
            size = f"{(gpu.total - gpu.used) / 2**30:.1f} of {gpu.total / 2**30:.1f} GiB free"
            yield f"{name}: {gpu.name}, {gpu.uuid}, {size}, MIG {mig_mode(name)}"
    for name, kind in kinds.backends.items():
        if kind.gpu_problem is not None:
            yield f"backend {name}: {kind.gpu_problem() or 'can use GPUs'}"


def models(config: Config, kinds: Registries) -> Iterator[str]:
    """A line for each model: what it asks for, and what it would get. One whose entry cannot be read is left out."""
    entries = catalog(config, kinds)
    names: tuple[str, ...] = ()
    with suppress(OSError):  # a check tells it
        names = entries.names()
    for name in names:
        try:
            entry = entries.read(name)
        except (ValueError, OSError):
            continue
        kind = kinds.backends[entry.backend]
        wanted = [entry.device] if isinstance(entry.device, str) else list(entry.device)
        where = "the backend decides" if kind.gpu_problem is None else _places(kind, wanted)
        yield f"model {name} ({entry.backend}): device {', '.join(wanted)} -> {where}"


def _places(kind: BackendKind, wanted: list[str]) -> str:
    if wanted == ["cpu"]:
        return "cpu"
    problem = kind.gpu_problem() if kind.gpu_problem is not None else ""
    gpus = [] if problem else [f"cuda:{index}" for index in range(cuda_devices())]
    if wanted == ["auto"]:
        return gpus[0] if gpus else "cpu"
    if wanted == [EVERYWHERE]:
        return ", ".join(gpus) or "cpu"
    if wanted == [EVERY_GPU]:
        return ", ".join(gpus) or f"fails: {problem}"
    numbered = ["cuda:0" if each == "cuda" else each for each in wanted]
    absent = [each for each in numbered if each not in ("cpu", *gpus)]
    return f"fails: {problem or f'there is no {absent[0]}'}" if absent else ", ".join(numbered)

"""The copies of a model, and the devices where they lie.

`device` of the YAML is one place or several: `auto` is one GPU or the CPU, `cuda:*` every GPU, `all` every GPU or the
CPU where there is none, a list each device in it, as often as it is named. `instances` copies lie on each:

    resnet:
      device: cuda:*          # a copy on every GPU …
      instances: 2            # … and a second one, so that copies and kernels of two batches overlap
    bert:
      device: [cuda:0, cuda:0, cuda:1]   # two copies on the first GPU, one on the second
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from tensorgate.backends.execution.cuda_install import cuda_problem
from tensorgate.backends.execution.device import cuda_devices
from tensorgate.gateway.contract.backend import Backend, BackendKind, ModelSource, RequestBackend
from tensorgate.gateway.contract.canonical import ModelView
from tensorgate.gateway.contract.errors import ModelFailed

EVERY_GPU: Final = "cuda:*"
EVERYWHERE: Final = "all"


def load_instances(
    kind: BackendKind, source: ModelSource, placement: Sequence[str], copies: int, undo: contextlib.ExitStack
) -> list[Backend | RequestBackend]:
    """Load `copies` on each device of the placement; devices alternate. `undo` closes what was loaded before a failure.

    Which devices are all, the backend says: the first copy is loaded wherever it likes best. Copies share the threads
    of the host. Raises ValueError.
    """
    if source.memory_limit_bytes and not kind.limits_memory:
        raise ValueError(
            "memory_limit_bytes: this backend takes memory from one pool for the whole process, and cannot limit a "
            "model's own; take the key out, or serve the model as ONNX or in a gateway of its own"
        )
    backends: list[Backend | RequestBackend] = []
    devices = list(placement)
    many = copies * (max(1, cuda_devices()) if devices[0] in (EVERYWHERE, EVERY_GPU) else len(devices))
    source = replace(source, threads=max(1, source.threads // many) if source.threads else 0)

    def load(device: str) -> None:
        backends.append(kind.load(replace(source, device=device)))
        undo.callback(backends[-1].close)

    if devices == [EVERYWHERE]:
        load("auto")
        first = backends[0].device.name
        devices = [first, *(gpu for gpu in _gpus() if gpu != first)] if first != "cpu" else [first]
    elif devices == [EVERY_GPU]:
        devices = _gpus()
        if not devices:
            raise ValueError(
                f"device {EVERY_GPU} was asked for, but no CUDA device can be used here: {cuda_problem()}; "
                f"say device: {EVERYWHERE} to use what is there"
            )
    for device in (devices * copies)[len(backends) :]:
        load(device)
    return backends


def check_free_instance(callers: Sequence[ModelView], view: ModelView) -> None:
    """Raises ModelFailed if all instances of a model are among the `callers` that wait for the request it is to get."""
    room = view.configuration.get("in_flight") or view.instances
    if [caller.handle for caller in callers].count(view.handle) >= room:
        raise ModelFailed(
            f"model '{view.name}' is asked by itself while all its instances ({room}) wait for the answer"
        )


def _gpus() -> list[str]:
    return [f"cuda:{index}" for index in range(cuda_devices())]

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
from typing import Any, Final

from backends.device import cuda_devices
from gateway.ports import BackendKind, ModelSource

EVERY_GPU: Final = "cuda:*"
EVERYWHERE: Final = "all"


def load_instances(
    kind: BackendKind, source: ModelSource, placement: Sequence[str], copies: int, undo: contextlib.ExitStack
) -> list[Any]:
    """Load `copies` on each device of the placement; devices alternate. `undo` closes what was loaded before a failure.

    Which devices are all, the backend says: the first copy is loaded wherever it likes best.
    """
    backends: list[Any] = []

    def load(device: str) -> None:
        backends.append(kind.load(replace(source, device=device)))
        undo.callback(backends[-1].close)

    devices = list(placement)
    if devices == [EVERYWHERE]:
        load("auto")
        first: str = backends[0].device.name
        devices = [first, *(gpu for gpu in _gpus() if gpu != first)] if first != "cpu" else [first]
    elif devices == [EVERY_GPU]:
        devices = _gpus()
        if not devices:
            raise ValueError(
                f"device {EVERY_GPU} was asked for, but no CUDA device can be used here; "
                f"say device: {EVERYWHERE} to use what is there, or install the extra cuda12 or cuda13 beside a driver"
            )
    for device in (devices * copies)[len(backends) :]:
        load(device)
    return backends


def _gpus() -> list[str]:
    return [f"cuda:{index}" for index in range(cuda_devices())]

"""Images as cameras and decoders give them, uint8 NHWC, made into what networks take, normalised floats NCHW.

How near does the engine's operator come to the memory's own speed, and from which size on is it worth while to send
bytes to the GPU and compute there?
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

import numpy as np

from tensorgate.backends.ops import OPS
from tensorgate.gateway.contract.operator import Op
from tensorgate.gateway.contract.tensor import DTYPES, TensorSpec

MEAN, STD = (123.675, 116.28, 103.53), (58.395, 57.12, 57.375)


def steps(datatype: str) -> tuple[Op, ...]:
    """What the YAML would say, as `tensorgate` makes it of that: one pass, if this version joins operators."""
    wanted: list[dict[str, Any]] = [
        {"op": "normalize", "input": "x", "mean": MEAN, "std": STD, "axis": -1, "to": datatype},
        {"op": "transpose", "input": "x", "layout": "NHWC->NCHW"},
    ]
    made = []
    for step in wanted:
        module, _, name = OPS[step["op"]].partition(":")
        kind = getattr(importlib.import_module(module), name)
        made.append(kind.make(kind.options(**step)))
    fusion = importlib.import_module("tensorgate.backends.ops.fusion")
    spec = TensorSpec("x", DTYPES["UINT8"], (-1, -1, -1, 3))
    return tuple(fusion.fuse(made, {"x": spec}))


def reference(x: Any, datatype: str) -> Any:
    """The same in NumPy, step by step."""
    y = (x.astype(np.float32) - np.array(MEAN, np.float32)) / np.array(STD, np.float32)
    return np.ascontiguousarray(y.transpose(0, 3, 1, 2)).astype(DTYPES[datatype])


def apply(made: Sequence[Op], x: Any, xp: Any) -> Any:
    tensors = {"x": x}
    for step in made:
        tensors = dict(step(tensors, xp))
    return tensors["x"]


class Clock:
    """Seconds that something takes: by the device's events on a GPU, by the clock on the wall otherwise."""

    def __init__(self, xp: Any) -> None:
        self._xp = xp

    def finish(self) -> None:
        if self._xp is not np:
            self._xp.cuda.get_current_stream().synchronize()

    def seconds(self, work: Callable[[], Any], times: int) -> float:
        """Of one of so many, back to back."""
        if self._xp is np:
            began = time.perf_counter()
            for _ in range(times):
                work()
            return (time.perf_counter() - began) / times
        cuda = self._xp.cuda
        start, end = cuda.Event(), cuda.Event()
        start.record()
        for _ in range(times):
            work()
        end.record()
        end.synchronize()
        return float(cuda.get_elapsed_time(start, end)) / 1e3 / times


def bandwidth(xp: Any, images: int, size: int, datatype: str, rounds: int, times: int) -> tuple[float, float]:
    """Bytes per second that the operator reads and writes, and that a copy on the same device reads and writes."""
    x = np.random.default_rng(0).integers(0, 256, (images, size, size, 3), np.uint8)
    on_device, made, clock = xp.asarray(x), steps(datatype), Clock(xp)
    y = apply(made, on_device, xp)
    some = y[:4] if xp is np else xp.asnumpy(y[:4])
    tolerance = 2e-3 if datatype == "FP16" else 1e-5
    if not np.allclose(some.astype(np.float32), reference(x[:4], datatype).astype(np.float32), tolerance, tolerance):
        raise ValueError(f"the operators give other numbers than NumPy does ({datatype})")
    half = (on_device.nbytes + y.nbytes) // 2
    source, target = xp.zeros(half, np.uint8), xp.empty(half, np.uint8)

    def copy() -> None:
        if xp is np:
            np.copyto(target, source)
        else:
            target.data.copy_from_device_async(source.data, half)

    own, copies = [], []
    for _ in range(rounds + 1):
        own.append(clock.seconds(lambda: apply(made, on_device, xp), times))
        copies.append(clock.seconds(copy, times))
    return (on_device.nbytes + y.nbytes) / median(own[1:]), 2 * half / median(copies[1:])


def ways(xp: Any, pixels: int, rounds: int) -> tuple[float, float]:
    """Seconds for one image of so many pixels a side, from bytes on the host to floats on the device: computed there,
    and computed on the host.
    """
    x = np.random.default_rng(0).integers(0, 256, (1, pixels, pixels, 3), np.uint8)
    made, clock = steps("FP32"), Clock(xp)

    def there() -> None:
        apply(made, xp.asarray(x), xp)
        clock.finish()

    def here() -> None:
        xp.asarray(apply(made, x, np))
        clock.finish()

    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(rounds + 2):
        for own, way in zip(times, (there, here), strict=True):
            began = time.perf_counter()
            way()
            own.append(time.perf_counter() - began)
    return median(times[0][2:]), median(times[1][2:])

"""Pixels to what a network takes, uint8 [N, 224, 224, 3] to FP32 [N, 3, 224, 224] scaled and normalized: how long.

    python -m benchmarks.preprocess

On the host: the expression that one would write, the operators one by one, and the same as the one step that they
become. Where there is a GPU: that step there, what part of the speed of a plain copy it reaches, and from which batch
on it beats the host though the pixels have to be copied there first. Results are compared before a clock runs.
"""

# ruff: noqa: T201 - a command speaks by print

from __future__ import annotations

import argparse
import importlib
import time
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any, NamedTuple

import numpy as np

from tensorgate.backends.execution.device import cuda_devices
from tensorgate.backends.ops.cast import KIND as CAST
from tensorgate.backends.ops.fusion import fuse
from tensorgate.backends.ops.normalize import KIND as NORMALIZE
from tensorgate.backends.ops.scale import KIND as SCALE
from tensorgate.backends.ops.transpose import KIND as TRANSPOSE
from tensorgate.gateway.app import tune_process
from tensorgate.gateway.contract.operator import Op
from tensorgate.gateway.contract.tensor import DTYPES, TensorSpec

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
SHAPE = (224, 224, 3)
WARM_UP = 3
Run = Callable[[], Any]


def steps() -> list[Op]:
    return [
        CAST.make(CAST.options(op="cast", input="x", to="FP32")),
        SCALE.make(SCALE.options(op="scale", input="x", divide=255.0)),
        NORMALIZE.make(NORMALIZE.options(op="normalize", input="x", mean=MEAN, std=STD, axis=-1)),
        TRANSPOSE.make(TRANSPOSE.options(op="transpose", input="x", layout="NHWC->NCHW")),
    ]


def through(ops: Sequence[Op], array: Any, xp: Any) -> Any:
    tensors: Any = {"x": array}
    for op in ops:
        tensors = op(tensors, xp)
    return tensors["x"]


def naive(array: Any) -> Any:
    """As it stands in many a server's handler."""
    scaled = (array.astype(np.float32) / 255 - np.float32(MEAN)) / np.float32(STD)
    return np.ascontiguousarray(scaled.transpose(0, 3, 1, 2))


class Line(NamedTuple):
    """One batch size; all in milliseconds, but for the bandwidths in GB/s. None where there is no GPU."""

    rows: int
    naive: float
    steps: float
    fused: float
    gpu: float | None = None
    gpu_and_copy: float | None = None
    gpu_bandwidth: float | None = None
    copy_bandwidth: float | None = None


def on_host(run: Run, rounds: int) -> float:
    """Milliseconds, the median of the rounds."""
    for _ in range(WARM_UP):
        run()
    times = []
    for _ in range(rounds):
        begun = time.perf_counter()
        run()
        times.append(time.perf_counter() - begun)
    return 1000 * median(times)


def on_gpu(run: Run, rounds: int, xp: Any) -> float:
    """The same between two events on the stream."""
    for _ in range(WARM_UP):
        run()
    times = []
    for _ in range(rounds):
        begun, ended = xp.cuda.Event(), xp.cuda.Event()
        begun.record()
        run()
        ended.record()
        ended.synchronize()
        times.append(xp.cuda.get_elapsed_time(begun, ended))
    return float(median(times))


def measure(rows: int, rounds: int, xp: Any) -> Line:
    """One batch size. Raises AssertionError where results differ."""
    array = np.random.default_rng(rows).integers(0, 256, (rows, *SHAPE), dtype=np.uint8)
    ops = steps()
    fused = fuse(ops, {"x": TensorSpec("x", DTYPES["UINT8"], (-1, *SHAPE))})
    if len(fused) != 1:
        raise AssertionError(f"the steps became {len(fused)} and not one")
    wanted = naive(array)
    for each in (ops, fused):
        np.testing.assert_allclose(through(each, array, np), wanted, atol=2e-6)
    line = Line(
        rows,
        on_host(lambda: naive(array), rounds),
        on_host(lambda: through(ops, array, np), rounds),
        on_host(lambda: through(fused, array, np), rounds),
    )
    return line if xp is np else _with_gpu(line, array, wanted, fused, rounds, xp)


def _with_gpu(line: Line, array: Any, wanted: Any, fused: Sequence[Op], rounds: int, xp: Any) -> Line:
    there = xp.asarray(array)
    np.testing.assert_allclose(xp.asnumpy(through(fused, there, xp)), wanted, atol=2e-6)
    pinned = _pinned(array, xp)
    moved = array.nbytes + wanted.nbytes
    source = xp.zeros(moved // 2, xp.uint8)
    target = xp.empty_like(source)
    alone = on_gpu(lambda: through(fused, there, xp), rounds, xp)
    copied = on_gpu(lambda: through(fused, _put(pinned, xp), xp), rounds, xp)
    plain = on_gpu(lambda: xp.copyto(target, source), rounds, xp)
    return line._replace(
        gpu=alone, gpu_and_copy=copied, gpu_bandwidth=moved / alone / 1e6, copy_bandwidth=moved / plain / 1e6
    )


def _pinned(array: Any, xp: Any) -> Any:
    """The array in memory that a GPU reads by itself, as the server's own buffers are."""
    memory = xp.cuda.alloc_pinned_memory(array.nbytes)
    pinned = np.frombuffer(memory, array.dtype, array.size).reshape(array.shape)
    pinned[...] = array
    return pinned


def _put(pinned: Any, xp: Any) -> Any:
    there = xp.empty(pinned.shape, pinned.dtype)
    there.set(pinned, xp.cuda.get_current_stream())
    return there


def table(lines: Sequence[Line]) -> str:
    head = ["rows", "naive ms", "steps ms", "one step ms", "naive /", "steps /"]
    gpu = [line for line in lines if line.gpu is not None]
    if gpu:
        head += ["GPU ms", "and copy ms", "GB/s", "copy GB/s", "of copy"]
    rows = [head]
    for line in lines:
        cells = [f"{line.naive:.3f}", f"{line.steps:.3f}", f"{line.fused:.3f}"]
        cells += [f"{line.naive / line.fused:.1f}", f"{line.steps / line.fused:.1f}"]
        if line.gpu is not None and line.gpu_bandwidth and line.copy_bandwidth:
            cells += [f"{line.gpu:.4f}", f"{line.gpu_and_copy:.4f}", f"{line.gpu_bandwidth:.0f}"]
            cells += [f"{line.copy_bandwidth:.0f}", f"{line.gpu_bandwidth / line.copy_bandwidth:.2f}"]
        rows.append([str(line.rows), *cells])
    widths = [max(len(row[column]) for row in rows) for column in range(len(head))]
    text = "\n".join("  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)
    return f"{text}\n{crossover(gpu)}" if gpu else f"{text}\nno GPU here"


def crossover(lines: Sequence[Line]) -> str:
    for line in lines:
        if line.gpu_and_copy is not None and line.gpu_and_copy < line.fused:
            return f"with its copy, the GPU is ahead of the host from {line.rows} rows on"
    return "with its copy, the GPU is never ahead of the host"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 2, 4, 8, 16, 32, 64, 128])
    parser.add_argument("--rounds", type=int, default=21)
    options = parser.parse_args(arguments)
    tune_process()  # as the server does
    xp = importlib.import_module("cupy") if cuda_devices() else np
    print(table([measure(rows, options.rounds, xp) for rows in sorted(options.rows)]))


if __name__ == "__main__":
    main()

"""The engine alone, without sockets and dialects: what queue, batches and answers cost beside the model itself.

Two questions. What does the engine add to one request that comes alone? And when many tasks ask with one row each, how
close does it come to a session that gets the same rows stacked already? Models run on the CPU, with one thread each, so
that of two cores one is left for the event loop. Contenders take turns within each round, and the table has medians
over rounds.

A row costs the engine about ten microseconds of Python: a request, a place in the queue, an answer, a task that is
woken. They pass while the session computes another batch, unless its rows cost less. Of 64 tasks with batches of 64
none are left to come meanwhile: then batch and answers alternate. So the models that count are of real size, with
batches of 32: a ranker (three dense layers) and ResNet-50 on thumbnails. The others show where the ratio goes below.
"""
# ruff: noqa: T201 - a command speaks by print

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from benchmarks import networks
from benchmarks.engine_room import Plan, Pressed, ask, loaded, press
from benchmarks.table import table
from tensorgate.gateway.app import tune_process
from tensorgate.gateway.contract.tensor import DTYPES, TensorSpec
from tensorgate.gateway.engine.model import Model

MAX_ADDED_US = 60.0
MIN_RATIO = 0.9
TASKS = 64
OPTIONS = {"intra_op_threads": 1}


@dataclass(frozen=True, slots=True)
class Case:
    """A model and the most rows of a batch. `counts`: the ratio must reach MIN_RATIO."""

    name: str
    make: Callable[[Path], Path]
    shape: tuple[int, ...]
    classes: int
    batch: int
    counts: bool

    def plan(self, folder: Path) -> Plan:
        x = TensorSpec("x", DTYPES["FP32"], (-1, *self.shape))
        y = TensorSpec("y", DTYPES["FP32"], (-1, self.classes))
        return Plan("onnx", self.make(folder / self.name), "cpu", self.batch, x, y, OPTIONS)


def _mlp(path: Path) -> Path:
    return networks.mlp(path, (512, 768, 768, 128))


def _ranker(path: Path) -> Path:
    return networks.mlp(path, (512, 2048, 2048, 128))


def _thumbnails(path: Path) -> Path:
    return networks.resnet50(path, size=32)


CASES = (
    Case("tiny", networks.tiny, (16,), 16, 64, False),
    Case("mlp", _mlp, (512,), 128, 32, False),
    Case("mlp", _mlp, (512,), 128, 64, False),
    Case("conv", networks.small_conv, (3, 32, 32), 10, 32, False),
    Case("conv", networks.small_conv, (3, 32, 32), 10, 64, False),
    Case("ranker", _ranker, (512,), 128, 32, True),
    Case("ranker", _ranker, (512,), 128, 64, False),
    Case("resnet50", _thumbnails, (3, 32, 32), 1000, 32, True),
)


@dataclass(frozen=True, slots=True)
class Round:
    """One turn of everybody. Microseconds of one row alone, and of a stacked batch, with the processor's time for it;
    rows per second of the tasks.
    """

    direct_us: float
    engine_us: float
    batch_us: float
    batch_cpu_us: float
    pressed: Pressed


class Direct:
    """The same session without an engine around it."""

    def __init__(self, path: Path) -> None:
        import onnxruntime

        settings = onnxruntime.SessionOptions()
        settings.intra_op_num_threads = OPTIONS["intra_op_threads"]
        settings.add_session_config_entry("session.intra_op.allow_spinning", "0")
        self._session = onnxruntime.InferenceSession(
            str(path / "model.onnx"), settings, providers=["CPUExecutionProvider"]
        )

    def run(self, x: Any) -> Any:
        return self._session.run(["y"], {"x": x})[0]

    def us(self, x: Any, seconds: float) -> tuple[float, float]:
        """Microseconds per run: by the clock, and of the processor."""
        began, cpu, runs = time.perf_counter(), time.process_time(), 0
        while not runs or time.perf_counter() < began + seconds:
            self.run(x)
            runs += 1
        return (time.perf_counter() - began) / runs * 1e6, (time.process_time() - cpu) / runs * 1e6


async def _alone_us(model: Model, row: Any, seconds: float) -> float:
    began, runs = time.perf_counter(), 0
    while not runs or time.perf_counter() < began + seconds:
        await ask(model, row)
        runs += 1
    return (time.perf_counter() - began) / runs * 1e6


async def measure(case: Case, folder: Path, rounds: int, seconds: float) -> list[Round]:
    """Turns of one case, after one of a tenth of the length that does not count."""
    plan = case.plan(folder)
    rows = np.random.default_rng(1).standard_normal((case.batch, *case.shape), np.float32)
    direct = Direct(plan.path)
    async with loaded(plan) as model:
        same = np.allclose(await ask(model, rows[:1]), direct.run(rows[:1]), 1e-4, 1e-5)
        if not same:
            raise SystemExit(f"failed: {case.name}: the engine gives other numbers than the session")
        turns = [
            Round(
                direct.us(rows[:1], length)[0],
                await _alone_us(model, rows[:1], length),
                *direct.us(rows, length),
                await press(model, rows[:1], TASKS, length),
            )
            for length in (seconds / 10, *[seconds] * rounds)
        ]
    return turns[1:]


HEAD = (
    "model",
    "batch",
    "alone: session us",
    "engine us",
    "added us",
    f"{TASKS} tasks: rows/s",
    "session rows/s",
    "batch ms",
    "ratio",
    "CPU us/row",
    "session's",
    "",
)


def line(case: Case, rounds: Sequence[Round]) -> tuple[tuple[str, ...], bool]:
    """A line of the table, and whether everything in it that must be reached is."""
    added = median([each.engine_us - each.direct_us for each in rounds])
    ratio = median([each.pressed.rows_per_s * each.batch_us / 1e6 / case.batch for each in rounds])
    batch_us = median([each.batch_us for each in rounds])
    reached = (added <= MAX_ADDED_US or case.name != "tiny") and (ratio >= MIN_RATIO or not case.counts)
    figures = (
        case.name,
        str(case.batch),
        f"{median([each.direct_us for each in rounds]):.1f}",
        f"{median([each.engine_us for each in rounds]):.1f}",
        f"{added:.1f}",
        f"{median([each.pressed.rows_per_s for each in rounds]):,.0f}",
        f"{case.batch / batch_us * 1e6:,.0f}",
        f"{batch_us / 1e3:.2f}",
        f"{ratio:.2f}",
        f"{median([each.pressed.cpu_us_per_row for each in rounds]):.1f}",
        f"{median([each.batch_cpu_us for each in rounds]) / case.batch:.1f}",
        "" if reached else "missed",
    )
    return figures, reached


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.engine", description=__doc__)
    add = parser.add_argument
    names = sorted({case.name for case in CASES})
    add("--cases", nargs="+", choices=names, default=names, help=f"default: {' '.join(names)}")
    add("--rounds", type=int, default=5, help="turns of each contender, of which the median counts; default: 5")
    add("--seconds", type=float, default=0.5, help="length of one turn; default: 0.5")
    return parser.parse_args(arguments)


async def _main(options: argparse.Namespace) -> bool:
    lines = []
    with tempfile.TemporaryDirectory() as folder:
        for number, case in enumerate(CASES):
            if case.name in options.cases:
                turns = await measure(case, Path(folder) / str(number), options.rounds, options.seconds)
                lines.append(line(case, turns))
    print(table(HEAD, [figures for figures, _ in lines]))
    print(
        f"must be reached: at most {MAX_ADDED_US:.0f} us added for tiny; "
        f"a ratio of {MIN_RATIO} for ranker and resnet50 with batches of 32"
    )
    return all(reached for _, reached in lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """0 if every line was reached, else 1."""
    options = parse(arguments)
    tune_process()  # as the server does
    try:
        import uvloop
    except ImportError:  # on Windows
        return int(not asyncio.run(_main(options)))
    return int(not uvloop.run(_main(options)))


if __name__ == "__main__":
    sys.exit(main())

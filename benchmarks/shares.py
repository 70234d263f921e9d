"""Do callers get their shares of a device, and what does a neighbour with a hundred times the load cost?

    python -m benchmarks.shares
    python -m benchmarks.shares --seconds 4 --rounds 5

Networks of real size on the CPU, one thread for each, asked by tasks of the event loop, each of which asks again once
it has its answer. Two questions.

Shares: callers want more than there is, of one model or of two. What each has had is measured here, around every run,
by the processor time of its thread, and compared with the weights; what the scheduler measures for itself is not used.

A neighbour: eight tasks ask for one caller; another caller has eight as well, then eight hundred. How much longer does
the first wait, at the 99th percentile? Once by the clock on the wall, which on a machine that others use shows them as
well, and once by the time that the device has spent on anybody's runs meanwhile, which shows no others, but does not
count moments in which the device had nothing to do, and which a busy neighbour fills. With shares, and without.

The tables have the median of all rounds, and for shares the worst; a rise is the median of those of each round, whose
turns follow each other. Exit status: 0, or 1 where a share differs by more than a twentieth from its weight, or the
neighbour costs more than a tenth by both clocks.
"""
# ruff: noqa: T201 - a command speaks by print

from __future__ import annotations

import argparse
import asyncio
import contextlib
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np

from benchmarks import networks
from benchmarks.engine_room import Plan, loaded
from benchmarks.table import table
from tensorgate.gateway.app import tune_process
from tensorgate.gateway.contract.canonical import InferRequest
from tensorgate.gateway.contract.execution import Executor, Observe
from tensorgate.gateway.contract.tensor import DTYPES, TensorSpec
from tensorgate.gateway.engine.model import Model
from tensorgate.gateway.engine.shares import SharePolicy, Shares

MAX_DIFFERENCE = 0.05
MAX_RISE = 1.1
FEW, MANY = 8, 800
BATCH = 8
WARM_S = 0.5
"""Before anything is measured."""


class Stopwatch:
    """Processor seconds of runs, by caller; and of all of them, which is the time of the device."""

    def __init__(self) -> None:
        self.had: Counter[str] = Counter()
        self.device_s = 0.0

    def around(self, executor: Executor) -> Executor:
        return Watched(executor, self)

    def note(self, requests: Sequence[InferRequest], seconds: float) -> None:
        self.device_s += seconds
        for request in requests:
            self.had[request.cancellation.share] += seconds / len(requests)  # type: ignore[assignment]


class Watched(Executor):
    """An executor whose runs are timed, in their own thread."""

    def __init__(self, executor: Executor, watch: Stopwatch) -> None:
        self._executor = executor
        self._watch = watch
        self.runs_on, self.inline, self.decoupled = executor.runs_on, executor.inline, executor.decoupled
        self.merges, self.computes = executor.merges, executor.computes
        self.device_lock_key = executor.device_lock_key

    def run(self, requests: Sequence[InferRequest], observe: Observe) -> Iterable[Any]:
        begun = time.thread_time()
        answers = [*self._executor.run(requests, observe)]
        self._watch.note(requests, time.thread_time() - begun)
        return answers

    def arun(self, requests: Sequence[InferRequest], observe: Observe) -> Any:
        raise NotImplementedError  # these run in threads

    def close(self) -> None:
        self._executor.close()


@dataclass(frozen=True, slots=True)
class Network:
    """A model that callers ask for one row at a time."""

    path: Path
    shape: tuple[int, ...]
    classes: int

    def plan(self) -> Plan:
        x = TensorSpec("x", DTYPES["FP32"], (-1, *self.shape))
        y = TensorSpec("y", DTYPES["FP32"], (-1, self.classes))
        return Plan("onnx", self.path, "cpu", BATCH, x, y, {"intra_op_threads": 1})

    @property
    def row(self) -> Any:
        return np.random.default_rng(0).standard_normal((1, *self.shape), np.float32)


class Client(NamedTuple):
    """So many tasks that ask one network for one caller."""

    share: str
    network: str
    tasks: int


class Waits(NamedTuple):
    """Milliseconds, at the 99th percentile: on the wall, and of the device."""

    wall: float
    device: float


class Result(NamedTuple):
    """What one turn gave: the part of each caller, and the waits of each."""

    parts: Mapping[str, float]
    waits: Mapping[str, Waits]


async def turn(
    some: Mapping[str, Network], clients: Sequence[Client], weights: Mapping[str, float] | None, seconds: float
) -> Result:
    """Let the clients ask for so long; `weights` None: nobody has a share."""
    watch = Stopwatch()
    shares = None if weights is None else Shares(SharePolicy(weights))
    waits: dict[str, list[tuple[float, float]]] = {client.share: [] for client in clients}
    async with contextlib.AsyncExitStack() as stack:
        models = {
            name: await stack.enter_async_context(loaded(network.plan(), shares, watch.around))
            for name, network in some.items()
        }
        begins = time.perf_counter() + WARM_S
        ends = begins + seconds

        async def keep_asking(share: str, model: Model, x: Any) -> None:
            while time.perf_counter() < ends:
                begun, device = time.perf_counter(), watch.device_s
                request = InferRequest(model.view, {"x": x})
                request.cancellation.share = share
                await anext(model.submit(request))
                if time.perf_counter() >= begins:
                    waits[share].append((time.perf_counter() - begun, watch.device_s - device))

        tasks = [
            asyncio.ensure_future(keep_asking(client.share, models[client.network], some[client.network].row))
            for client in clients
            for _ in range(client.tasks)
        ]
        await asyncio.sleep(WARM_S)
        watch.had.clear()
        await asyncio.sleep(max(0.0, ends - time.perf_counter()))
        had = dict(watch.had)
        await asyncio.gather(*tasks)
    whole = sum(had.values())
    parts = {share: had.get(share, 0.0) / whole for share in waits}
    return Result(parts, {share: _p99(each) for share, each in waits.items()})


def _p99(waits: Sequence[tuple[float, float]]) -> Waits:
    return Waits(*[float(np.percentile(each, 99)) * 1e3 for each in zip(*waits, strict=True)])


class Contest(NamedTuple):
    """Callers that want more than there is."""

    title: str
    clients: tuple[Client, ...]
    weights: Mapping[str, float]


CONTESTS = (
    Contest("one model, 1 : 1", (Client("a", "ranker", 24), Client("b", "ranker", 240)), {"a": 1, "b": 1}),
    Contest("one model, 3 : 1", (Client("a", "ranker", 24), Client("b", "ranker", 240)), {"a": 3, "b": 1}),
    Contest("a model each, 1 : 1", (Client("a", "ranker", 24), Client("b", "resnet50", 24)), {"a": 1, "b": 1}),
    Contest("a model each, 3 : 1", (Client("a", "resnet50", 24), Client("b", "ranker", 240)), {"a": 3, "b": 1}),
    Contest(
        "both models, 5 : 3 : 2",
        (
            Client("a", "ranker", 24),
            Client("a", "resnet50", 24),
            Client("b", "resnet50", 24),
            Client("c", "ranker", 240),
        ),
        {"a": 5, "b": 3, "c": 2},
    ),
)


async def shares_of(some: Mapping[str, Network], rounds: int, seconds: float) -> bool:
    """Print what each got, and say whether all are close to their weights."""
    lines, is_close = [], True
    for title, clients, weights in CONTESTS:
        used = {client.network: some[client.network] for client in clients}
        results = [(await turn(used, clients, weights, seconds)).parts for _ in range(rounds)]
        without = (await turn(used, clients, None, seconds)).parts
        for share, weight in weights.items():
            wanted = weight / sum(weights.values())
            worst = max((parts[share] for parts in results), key=lambda part: abs(part - wanted))
            is_close &= abs(worst - wanted) <= MAX_DIFFERENCE * wanted
            typical = median(parts[share] for parts in results)
            figures = (wanted, typical, worst, without[share])
            lines.append([title, share, *[f"{100 * each:.1f} %" for each in figures], f"{worst / wanted - 1:+.1%}"])
    print(table(["contest", "caller", "weight", "median", "worst", "without shares", "worst differs by"], lines, 2))
    return is_close


async def neighbour_of(some: Mapping[str, Network], rounds: int, seconds: float) -> bool:
    """Print what the neighbour costs, and say whether that is little by one of the two clocks."""
    lines, is_little = [], True
    for name, network in some.items():
        for title, weights in (("shares", {"a": 1.0, "b": 1.0}), ("no shares", None)):
            pairs: list[tuple[Waits, Waits]] = []
            for _ in range(rounds):
                few, many = [
                    (await turn({name: network}, [Client("a", name, FEW), Client("b", name, tasks)], weights, seconds))
                    for tasks in (FEW, MANY)
                ]
                pairs.append((few.waits["a"], many.waits["a"]))
            row, rises = [name, title], []
            for clock in range(len(Waits._fields)):
                rises.append(median(after[clock] / before[clock] for before, after in pairs))
                row += [f"{median(each[clock] for each in turns):.1f}" for turns in zip(*pairs, strict=True)]
                row.append(f"{rises[-1] - 1:+.1%}")
            is_little &= weights is None or min(rises) <= MAX_RISE
            lines.append(row)
    head = ["model", "", f"wall, {FEW}", str(MANY), "rise", f"device, {FEW}", str(MANY), "rise"]
    print(table(head, lines, 2))
    return is_little


def _networks(folder: Path) -> dict[str, Network]:
    return {
        "ranker": Network(networks.mlp(folder / "ranker", (512, 2048, 2048, 128)), (512,), 128),
        "resnet50": Network(networks.resnet50(folder / "resnet50", size=32), (3, 32, 32), 1000),
    }


async def _run(rounds: int, seconds: float) -> bool:
    with tempfile.TemporaryDirectory() as folder:
        some = _networks(Path(folder))
        print("Parts of the device's time:\n")
        is_close = await shares_of(some, rounds, seconds)
        print("\nMilliseconds of one caller at the 99th percentile, beside a neighbour with so many tasks:\n")
        is_little = await neighbour_of(some, rounds, seconds)
    return is_close and is_little


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.shares", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=5.0, help="of each turn")
    options = parser.parse_args(arguments)
    tune_process()
    return 0 if asyncio.run(_run(options.rounds, options.seconds)) else 1


if __name__ == "__main__":
    sys.exit(main())

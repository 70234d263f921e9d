"""A model as the gateway runs it, without the gateway's doors: loaded, warmed up, asked by tasks of the event loop."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tensorgate.backends import BACKENDS
from tensorgate.backends.execution import pipeline
from tensorgate.gateway.contract.backend import BackendKind, ModelSource
from tensorgate.gateway.contract.canonical import InferRequest
from tensorgate.gateway.contract.execution import Executor, Traffic
from tensorgate.gateway.contract.operator import Op
from tensorgate.gateway.contract.tensor import TensorSpec
from tensorgate.gateway.engine.model import Model, ModelSpec
from tensorgate.gateway.engine.queue import LevelPolicy, QueuePolicy
from tensorgate.gateway.engine.shares import Shares
from tensorgate.gateway.models.meters import Meters


@dataclass(frozen=True, slots=True)
class Plan:
    """What is loaded: `path` is the model's folder, `x` and `y` its one input and output."""

    backend: str
    path: Path
    device: str
    max_batch_size: int
    x: TensorSpec
    y: TensorSpec
    options: Mapping[str, Any]
    preprocess: Sequence[Op] = ()


def kind_of(backend: str) -> BackendKind:
    module, _, name = BACKENDS[backend].partition(":")
    kind: BackendKind = getattr(importlib.import_module(module), name)
    return kind


@contextlib.asynccontextmanager
async def loaded(
    plan: Plan, shares: Shares | None = None, watched: Callable[[Executor], Executor] = lambda executor: executor
) -> AsyncIterator[Model]:
    """The model, warm; unloaded at the end. Metrics are counted as ever. `watched` makes of each executor what runs in
    its place.
    """
    kind = kind_of(plan.backend)
    source = ModelSource(
        "benchmark", 1, plan.path, plan.device, (plan.x,), (plan.y,), plan.max_batch_size, kind.options(**plan.options)
    )
    computation = await asyncio.to_thread(pipeline.load, kind, source, 1, plan.preprocess, ())
    computation = replace(computation, executors=tuple(map(watched, computation.executors)))
    meter = Meters().meter("benchmark", 1)
    model = Model("benchmark", 1, (1,), computation, ModelSpec(_policy(plan)), meter, shares=shares)
    try:
        await model.warm_up()
        yield model
    finally:
        await model.close()


def _policy(plan: Plan) -> QueuePolicy:
    """Nobody is turned away here."""
    return QueuePolicy(plan.max_batch_size, level=LevelPolicy(max_queue_size=1 << 16))


async def ask(model: Model, x: Any) -> Any:
    """One request and its answer."""
    return (await anext(model.submit(InferRequest(model.view, {"x": x})))).outputs["y"]


@dataclass(frozen=True, slots=True)
class Pressed:
    """What a turn of many tasks gave. `cpu_us_per_row` is of the whole process: loop, model threads, all of it."""

    rows_per_s: float
    cpu_us_per_row: float
    traffic: Traffic
    seconds: float


async def press(model: Model, x: Any, tasks: int, seconds: float) -> Pressed:
    """So many tasks ask with `x` [rows, ...], each again as soon as it has its answer."""
    done = 0
    ends = time.perf_counter() + seconds

    async def keep_asking() -> None:
        nonlocal done
        while True:
            await ask(model, x)
            done += 1
            if time.perf_counter() >= ends:
                return

    before, began, cpu = model.computation.traffic(), time.perf_counter(), time.process_time()
    await asyncio.gather(*[keep_asking() for _ in range(tasks)])
    rows = done * x.shape[0]
    took, used = time.perf_counter() - began, time.process_time() - cpu
    after = model.computation.traffic()
    crossed = Traffic(*[now - then for now, then in zip(after, before, strict=True)])
    return Pressed(rows / took, used / rows * 1e6, crossed, took)


async def latencies(model: Model, x: Any, seconds: float) -> list[float]:
    """Seconds of each of as many requests as fit, one after another."""
    times: list[float] = []
    ends = time.perf_counter() + seconds
    while len(times) < 2 or time.perf_counter() < ends:
        began = time.perf_counter()
        await ask(model, x)
        times.append(time.perf_counter() - began)
    return times

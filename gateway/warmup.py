"""What a model runs before callers may ask it: first runs choose kernels, grow memory and start threads.

A sample that the operator wrote must succeed, or the model is not loaded. What is made up for lack of one may be
refused: the model knows more of its inputs than their shapes.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np

from gateway.canonical import InferRequest, Tensors
from gateway.errors import GatewayError
from gateway.ports import Executor

FULL_RUNS: Final = 2
"""Of a full batch: the first makes room, the second is measured to be quick."""

InThread: TypeAlias = Callable[[Callable[[], list[float]]], Awaitable[list[float]]]


@dataclass(frozen=True, slots=True)
class WarmUp:
    """How a model was warmed up: the time of its first run, and of its quickest, in seconds."""

    first: float
    best: float


@dataclass(frozen=True, slots=True, eq=False)
class Sample:
    """Inputs to be run `count` times by each executor."""

    name: str
    inputs: Tensors
    count: int = 1


def rows_of(inputs: Mapping[str, Any], rows: int) -> dict[str, Any]:
    """Inputs of one row, so many times: [1, *rest] -> [rows, *rest]."""
    return {name: np.repeat(array, rows, axis=0) for name, array in inputs.items()}


async def run_sample(executor: Executor, request: InferRequest, count: int, in_thread: InThread) -> list[float]:
    """Run a request so often -> the seconds of each run. Raises what the model does."""
    if executor.runs_on == "thread":
        return await in_thread(lambda: [_run(executor, request) for _ in range(count)])
    return [await _arun(executor, request) for _ in range(count)]


def _run(executor: Executor, request: InferRequest) -> float:
    begun = time.perf_counter()
    for outcomes in executor.run([request], _ignore):
        _raise_first(outcomes)
    return time.perf_counter() - begun


async def _arun(executor: Executor, request: InferRequest) -> float:
    begun = time.perf_counter()
    async for outcomes in executor.arun([request], _ignore):
        _raise_first(outcomes)
    return time.perf_counter() - begun


def _raise_first(outcomes: Iterable[Any]) -> None:
    for outcome in outcomes:
        if isinstance(outcome, GatewayError):
            raise outcome


def _ignore(stage: str, seconds: float) -> None:
    """Warm-up is not traffic."""

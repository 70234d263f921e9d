"""What a model runs before callers may ask it: first runs choose kernels, grow memory and start threads.

A sample that the operator wrote must succeed, or the model is not loaded. What is made up for lack of one may be
refused: the model knows more of its inputs than their shapes.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final, TypeAlias

import numpy as np

from tensorgate.gateway.contract.canonical import InferRequest
from tensorgate.gateway.contract.errors import GatewayError
from tensorgate.gateway.contract.execution import Executor
from tensorgate.gateway.contract.tensor import BYTES, Array, Tensors, TensorSpec

FULL_RUNS: Final = 2
"""Of a full batch: the first makes room, the second is measured to be quick."""
SIZE_RUNS: Final = 3
"""Of each size that is measured; the quickest counts."""
MEASURING_SECONDS: Final = 3.0
"""Larger sizes than fit into this are learned from traffic."""
_LENGTHS: Final = (8, 64, 512)
"""Of texts, of images, of a moment of sound."""
_MAX_ELEMENTS: Final = 1 << 20

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


def ones_of(spec: TensorSpec, sizes: Mapping[int, int] = MappingProxyType({})) -> Array:
    """An input of the specified form: ones, every open dimension 1 or what `sizes` says of its axis; of any rank: three
    of them.
    """
    shape = (
        (3,)
        if spec.shape is None
        else tuple(sizes.get(n, 1) if size < 0 else size for n, size in enumerate(spec.shape))
    )
    return np.full(shape, b"text" if spec.dtype == BYTES else 1, spec.dtype)


def made_up(specs: Sequence[TensorSpec], batched: bool) -> Iterator[Tensors]:
    """Inputs that a model may take which does not take ones of size 1: of several lengths, the shortest first, along
    all open axes but the first, which mostly is that of rows; then along the last axis alone, for what is open in
    between may have to agree with the rows. Of a vector without rows the first axis is the last.
    """
    for length in _LENGTHS:
        every = [dict.fromkeys(_open_axes(spec, batched), length) for spec in specs]
        last = [
            {axis: length for axis in axes if axis == len(spec.shape or ()) - 1}
            for spec, axes in zip(specs, every, strict=True)
        ]
        for axes in [every] if every == last else [every, last]:
            example = {spec.name: ones_of(spec, sizes) for spec, sizes in zip(specs, axes, strict=True)}
            if any(axes) and sum([array.size for array in example.values()]) <= _MAX_ELEMENTS:
                yield example


def _open_axes(spec: TensorSpec, batched: bool) -> list[int]:
    shape = spec.shape or ()
    first = 0 if len(shape) == 1 and not batched else 1
    return [axis for axis, size in enumerate(shape) if size < 0 and axis >= first]


def sizes_to_measure(max_rows: int, sizes: Sequence[int]) -> list[int]:
    """The numbers of rows whose times tell those of all others: the powers of two and the largest, or those to which
    batches are padded.
    """
    doubled = [1 << power for power in range(max_rows.bit_length())] or [1]
    return sorted({*doubled, max(1, max_rows)}) if not sizes else [*sizes]


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


def _ignore(timing: tuple[str, float]) -> None:
    """Warm-up is not traffic."""

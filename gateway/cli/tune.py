"""`tensorgate tune`: what each model's batches should be like, from recorded calls and measured runs.

The models are loaded, and run their examples in several sizes; `batch_advice` does the rest.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from tensorgate.gateway import app
from tensorgate.gateway.cli.batch_advice import Advice, Curve, advise
from tensorgate.gateway.cli.client import ClientError
from tensorgate.gateway.config import Config
from tensorgate.gateway.contract.call import Call
from tensorgate.gateway.contract.canonical import InferRequest, Trial
from tensorgate.gateway.contract.dialect import Dialect, Endpoint, Resolve
from tensorgate.gateway.contract.errors import GatewayError
from tensorgate.gateway.contract.execution import Executor
from tensorgate.gateway.contract.tensor import common_rows
from tensorgate.gateway.engine.model import Model
from tensorgate.gateway.engine.simulation import Arrival
from tensorgate.gateway.engine.warmup import rows_of, run_sample
from tensorgate.gateway.recording.record import RecordedCall, body_of, read_files

_RUNS: Final = 7
_MAX_ROWS: Final = 512
_LONGEST_RUN_S: Final = 2.0
_WORTH: Final = 0.97
"""A larger size is measured while it costs less than this much of the smaller one's time for a row."""

PrintLine = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class TuneOptions:
    """What to tune: the goal, or None for each model's own, and these models, or all."""

    target_p99_ms: float | None
    models: frozenset[str] = frozenset()


def tune(config: Config, files: Sequence[Path], wanted: TuneOptions, print_line: PrintLine) -> Sequence[Advice]:
    """Load the models, measure them, and advise. Prints what it does. Raises ClientError."""
    try:
        calls = sorted(read_files(files), key=lambda call: call.time)
    except (OSError, ValueError) as error:
        raise ClientError(str(error)) from None
    return asyncio.run(_tune(config, calls, wanted, print_line))


async def _tune(
    config: Config, calls: Sequence[RecordedCall], wanted: TuneOptions, print_line: PrintLine
) -> Sequence[Advice]:
    found: list[Advice] = []
    async with app.loaded_models(config, app.registries()) as loaded:
        for name, text in loaded.failed:
            print_line(f"{name} cannot be loaded: {text}")
        arrivals = await asyncio.to_thread(arrivals_of, calls, loaded.dialects, loaded.router.resolve)
        for model in loaded.models:
            if wanted.models and model.name not in wanted.models:
                continue
            came = arrivals.get(model, ())
            if not came:
                print_line(f"{model.name}: none of the recorded calls asks it")
                continue
            print_line(f"{model.name}: {len(came)} requests, measuring batches")
            curve = await measure(model)
            target = wanted.target_p99_ms or model.view.configuration.get("target_p99_ms")
            found.append(await asyncio.to_thread(advise, model.name, came, curve, target))
    if not found:
        raise ClientError("there is nothing to tune: no recorded call asks a model of this configuration")
    return found


def arrivals_of(
    calls: Iterable[RecordedCall], dialects: Mapping[str, Dialect], resolve: Resolve
) -> Mapping[object, Sequence[Arrival]]:
    """Model -> its requests, the times counted from the first call. What no model was asked is left out."""
    found: dict[object, list[Arrival]] = {}
    first: float | None = None
    for call in calls:
        first = call.time if first is None else first
        request = _request(call, dialects, resolve)
        if request is None:
            continue
        at = call.time - first
        deadline = None if call.deadline_s is None else at + call.deadline_s
        key = tuple(sorted((name, str(array.dtype), array.shape[1:]) for name, array in request.inputs.items()))
        arrival = Arrival(at, common_rows(request.inputs) or 1, deadline, key)
        found.setdefault(request.view.handle, []).append(arrival)
    return found


def _request(call: RecordedCall, dialects: Mapping[str, Dialect], resolve: Resolve) -> InferRequest | None:
    dialect = dialects.get(call.dialect)
    body = body_of(call)
    if dialect is None or body is None or not call.model:
        return None
    endpoint: Endpoint | None
    if call.transport == "grpc":
        endpoint, args = dialect.grpc.get(call.target), {}
    else:
        match = dialect.match(call.method, call.target)
        endpoint, args = match.endpoint, {**match.args}
    if endpoint is None or endpoint.admin:
        return None
    transport: Literal["http", "grpc"] = "grpc" if call.transport == "grpc" else "http"
    try:
        question = endpoint.decode(
            Call(body, call.method, call.target, call.headers, transport, args, in_thread=True, dialect=dialect.name),
            resolve,
        )
    except GatewayError:
        return None
    return question if isinstance(question, InferRequest) else None


async def measure(model: Model, rows: Sequence[int] = ()) -> Curve:
    """Run a model's example in these sizes, or in rising ones while a row gets cheaper."""
    executor = model.computation.executors[0]
    example = model.view.example_inputs
    sizes = tuple(model.view.configuration.get("pad_batches_to") or ())
    may_grow = bool(model.view.max_batch_size) and model.view.merges and common_rows(example) == 1
    wanted = rows or sizes or [1 << power for power in range(_MAX_ROWS.bit_length())]
    points: list[tuple[int, float]] = []
    for size in wanted if may_grow else (1,):
        inputs = rows_of(example, size) if may_grow else dict(example)
        request = InferRequest(model.view, inputs, cancellation=Trial())
        try:
            seconds = await _seconds(executor, request)
        except Exception as error:
            if not points:
                return Curve((), sizes, f"its example does not run: {error}")
            return Curve(points, sizes, f"{size} rows fail: {error}")
        points.append((size, seconds))
        if seconds > _LONGEST_RUN_S:
            return Curve(points, sizes, f"{size} rows run {seconds:.1f} s")
        best, least = min(
            ((each, took / each) for each, took in points[:-2]), key=lambda each: each[1], default=(0, 0.0)
        )
        if not (rows or sizes) and best and all(took / each > _WORTH * least for each, took in points[-2:]):
            return Curve(points[:-2], sizes, f"a row gets no cheaper beyond {best}")
    return Curve(points, sizes, "" if may_grow else "its requests share no runs")


async def _seconds(executor: Executor, request: InferRequest) -> float:
    """The median of some runs, behind one that does not count."""
    times = sorted((await run_sample(executor, request, 1 + _RUNS, asyncio.to_thread))[1:])
    return times[len(times) // 2]

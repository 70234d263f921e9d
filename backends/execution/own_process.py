"""Models that compute in processes of their own (`process: own`), as the engine sees them.

Whatever such a model does, be it a crash, an endless loop or all of the machine's memory, ends its own process: those
requests fail that ran there, others wait until another process stands, and nobody else notices. Queue, batches, cached
answers and numbers stay in the engine. What crosses is a batch: requests with their arrays there, arrays or errors
back, by `gateway.crossing`. The other half is `gateway.model_process`.

Arrays on the host are copied into memory that the process maps, and once more where it joins the rows of several: one
copy more each way than in one process. Arrays on a GPU cross by the host.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Iterable, Sequence
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
from prometheus_client.core import CounterMetricFamily, Metric

from tensorgate.backends.execution.device import Device
from tensorgate.backends.execution.instances import load_instances
from tensorgate.backends.execution.model_process import ModelProcess
from tensorgate.backends.execution.regions import place_outputs
from tensorgate.backends.execution.transfer import ready_events
from tensorgate.gateway.contract.backend import BackendKind, ModelSource
from tensorgate.gateway.contract.canonical import InferRequest, InferResponse
from tensorgate.gateway.contract.errors import GatewayError
from tensorgate.gateway.contract.execution import Computation, Executor, Observe
from tensorgate.gateway.crossing.fork_server import ForkServer
from tensorgate.gateway.crossing.model_messages import (
    StartModel,
)
from tensorgate.gateway.crossing.runs import computation_of

Outcomes = Sequence[InferResponse | GatewayError]


class ModelProcesses:
    """All of a gateway: the template that they are forked from, and how often they were started again."""

    def __init__(self, program: str, version: str) -> None:
        """`program` is the module of the other half, `version` the gateway's."""
        self._version = version
        self._fork_server = ForkServer(program)
        self._restarts: dict[tuple[str, str, str], int] = {}

    def load(
        self,
        kind: BackendKind,
        source: ModelSource,
        instances: int,
        placement: Sequence[str],
        message: StartModel,
        pinned: bool,
    ) -> Computation:
        """Start a process for each instance. In a thread. `message` says what they load, but for the device; `pinned`:
        what runs on one of them must not run on another. Raises what a load raises.
        """
        on_loop = source.on_loop
        if on_loop is None:
            raise ValueError("process: own needs an event loop")

        def start(at: ModelSource) -> Any:
            program = msgspec.structs.replace(message.program, device=at.device, threads=at.threads)
            said = msgspec.structs.replace(message, program=program)
            process = ModelProcess(self._fork_server, self._version, self.count, said, on_loop)
            on_loop(process.open())
            return process

        with contextlib.ExitStack() as undo:
            processes: list[Any] = load_instances(replace(kind, load=start), source, placement, instances, undo)
            undo.pop_all()
        first: ModelProcess = processes[0]
        pool = () if pinned else tuple(processes)
        executors = tuple(
            OwnProcessExecutor(process, number, pool)
            for number in range(first.loaded.executors)
            for process in processes
        )
        return computation_of(
            first.loaded,
            first.reader,
            executors=executors,
            is_ready=lambda: any(process.is_up for process in processes),
            devices=tuple(process.device.name for process in processes) * first.loaded.executors,
            instances=len(processes),
            memory=lambda: sum([process.memory_bytes() for process in processes]),
        )

    def count(self, model: str, version: int, reason: str) -> None:
        """A process is started again."""
        key = (model, str(version), reason)
        self._restarts[key] = self._restarts.get(key, 0) + 1

    def collect(self) -> Iterable[Metric]:
        """For Prometheus."""
        family = CounterMetricFamily(
            "tensorgate_model_process_restarts",
            "Processes of models that ended and were started again, by what ended them.",
            labels=("model", "version", "reason"),
        )
        for labels, count in list(self._restarts.items()):
            family.add_metric(labels, count)
        yield family


class OwnProcessExecutor(Executor):
    """Runs batches in a model's process: its own, or another instance's of the pool while that is down."""

    runs_on = "loop"
    inline = False

    def __init__(self, process: ModelProcess, number: int, pool: Sequence[ModelProcess]) -> None:
        self._process = process
        self._number = number
        self._pool = pool
        self._owner = number == 0
        self.decoupled = process.loaded.decoupled
        self.merges = process.loaded.merges

    def run(self, requests: Sequence[InferRequest], observe: Observe) -> Iterable[Outcomes]:
        raise NotImplementedError  # it runs on the loop

    async def arun(self, requests: Sequence[InferRequest], observe: Observe) -> AsyncGenerator[Outcomes, None]:
        if any(not isinstance(array, np.ndarray) for request in requests for array in request.inputs.values()):
            for event in ready_events(requests):
                await asyncio.to_thread(event.synchronize)
        process = self._process
        if not process.is_up:
            standing = [each for each in self._pool if each.is_up]
            process = min(standing, key=lambda each: each.running, default=process)
        answers = process.run(self._number, requests, observe, decoupled=self.decoupled)
        async with contextlib.aclosing(answers) as steps:
            async for outcomes in steps:
                yield [_placed(*each) for each in zip(requests, outcomes, strict=True)]

    def close(self) -> None:
        if self._owner:
            self._process.close()


def _placed(request: InferRequest, outcome: InferResponse | GatewayError) -> InferResponse | GatewayError:
    """An answer with its outputs in their caller's memory, if they were given some."""
    if not request.into or isinstance(outcome, GatewayError) or request.cancellation.cut:
        return outcome
    return place_outputs(outcome.outputs, request, ..., outcome, Device())

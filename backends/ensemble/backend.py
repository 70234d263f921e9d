"""Models composed of models: tensors flow from step to step inside the gateway.

A step starts as soon as its inputs are there, so steps that do not wait for each other run side by side. Each is an
ordinary request to the named model: it waits in that model's queue and shares batches there with whoever else calls
it. A step whose model is decoupled gives many answers, and what follows it runs once for each.

The models are found anew for every request, so that each may be loaded, unloaded and exchanged on its own.

What one model gives to others on the same GPU stays there: only what the caller asked for comes to the host, with the
answer of the model that made it.
Source: Triton's ensemble scheduler.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast

import numpy as np
from pydantic import Field

from tensorgate.backends.ensemble.call_stack import Chain, chain_of, check_room
from tensorgate.backends.ensemble.edges import joints
from tensorgate.backends.execution.device import Device
from tensorgate.gateway.contract.backend import BackendKind, Described, ModelSource
from tensorgate.gateway.contract.canonical import InferRequest, ModelRef, ModelView, OutputRequest
from tensorgate.gateway.contract.dialect import Resolve
from tensorgate.gateway.contract.errors import (
    GatewayError,
    InvalidArgument,
    ModelFailed,
    ModelNotFound,
    ModelUnavailable,
    Unavailable,
    UnknownOutput,
)
from tensorgate.gateway.contract.options import Options
from tensorgate.gateway.contract.tensor import NOTHING, Array, Tensors, check_inputs


class EnsembleStep(Options):
    """One model of an ensemble."""

    model: str = Field(min_length=1, description="Which model.")
    version: int | None = Field(None, ge=1, description="Which version; null is the highest that is ready.")
    inputs: dict[str, str] = Field(description="The model's input -> the ensemble's tensor that goes into it.")
    outputs: dict[str, str] = Field(description="The model's output -> the ensemble's tensor that it becomes.")


class EnsembleOptions(Options):
    """What the YAML may say of an ensemble."""

    path: None = Field(None, description="An ensemble has no file.")
    steps: tuple[EnsembleStep, ...] = Field(min_length=1, description="The models, in any order: tensors connect them.")
    decoupled: bool = Field(False, description="Whether it answers zero to many times, as one of its models does.")
    in_flight: int = Field(128, ge=1, description="How many requests may be on their way through it.")


@dataclass(frozen=True, slots=True)
class _Errand:
    """A request, and the tensors of the ensemble that its caller wants."""

    request: InferRequest
    wanted: frozenset[str]


class EnsembleBackend:
    """The flow through the steps. Raises ValueError where tensors are missing, made twice, or wait for each other."""

    runs_on: Literal["thread", "loop"] = "loop"
    inline = False
    merges = False
    platform = "ensemble"

    def __init__(self, source: ModelSource) -> None:
        options: EnsembleOptions = source.options
        described = _describe(source)
        self.max_batch_size = described.max_batch_size
        self.inputs = described.inputs
        self.outputs = described.outputs
        self.device = Device()
        self.decoupled = options.decoupled
        self.in_flight = options.in_flight
        self._name = source.name
        self._resolve = cast("Resolve", source.resolve)
        self._steps = options.steps
        self.parts = tuple(dict.fromkeys(_part(step) for step in options.steps))
        self._is_asked = False
        self._users = {
            id(step): [
                other for other in self._steps if not set(step.outputs.values()).isdisjoint(other.inputs.values())
            ]
            for step in self._steps
        }

    async def infer(
        self, tensors: Tensors, outputs: Sequence[str], requests: Sequence[InferRequest]
    ) -> AsyncIterator[Tensors]:
        (request,) = requests
        absent = {spec.name for spec in self.inputs} - tensors.keys()
        errand = _Errand(request, frozenset(outputs))
        async with contextlib.aclosing(self._flow(dict(tensors), absent, self._steps, errand)) as answers:
            async for answer in answers:
                yield await _on_host(self._checked(answer, outputs))

    def is_ready(self) -> bool:
        """Whether requests should come to all of its models now."""
        if self._is_asked:  # by one of its own parts: an ensemble in itself, which its requests are told
            return True
        self._is_asked = True
        try:
            return all(self._resolve(part).handle.is_ready() for part in self.parts)
        except ModelNotFound:
            return False
        finally:
            self._is_asked = False

    def close(self) -> None:
        """The models belong to themselves."""

    async def _flow(
        self, known: dict[str, Array], absent: set[str], waiting: Sequence[EnsembleStep], errand: _Errand
    ) -> AsyncGenerator[Tensors, None]:
        """Run what is left with what is known; every tensor of the ensemble for each answer.

        Decoupled models go last of those that could start, and what is left runs once for each of their answers.
        """
        while waiting:
            if errand.request.cancellation.cut:
                return
            able = [step for step in waiting if all(name in known or name in absent for name in step.inputs.values())]
            views = {id(step): self._view(step) for step in able}
            unary = [step for step in able if not views[id(step)].decoupled]
            if not unary:
                async for answer in self._fork(known, absent, waiting, able[0], views[id(able[0])], errand):
                    yield answer
                return
            for result in await _together([self._run(step, views[id(step)], known, errand) for step in unary]):
                known |= result
            done = {id(step) for step in unary}
            absent |= {name for step in unary for name in step.outputs.values()} - known.keys()
            waiting = [step for step in waiting if id(step) not in done]
        yield known

    async def _fork(
        self,
        known: Mapping[str, Array],
        absent: set[str],
        waiting: Sequence[EnsembleStep],
        step: EnsembleStep,
        view: ModelView,
        errand: _Errand,
    ) -> AsyncGenerator[Tensors, None]:
        if not self.decoupled:
            raise ModelFailed(f"in ensemble '{self._name}', model '{step.model}' is decoupled, but the ensemble is not")
        rest = [other for other in waiting if other is not step]
        async with contextlib.aclosing(self._answers(step, view, known, errand)) as results:
            async for result in results:
                missing = absent | (set(step.outputs.values()) - result.keys())
                async with contextlib.aclosing(self._flow({**known, **result}, missing, rest, errand)) as answers:
                    async for answer in answers:
                        yield answer

    async def _run(
        self, step: EnsembleStep, view: ModelView, known: Mapping[str, Array], errand: _Errand
    ) -> Mapping[str, Array]:
        """The one answer of a step, by the ensemble's names."""
        async with contextlib.aclosing(self._answers(step, view, known, errand)) as results:
            async for result in results:
                return result
        raise ModelFailed(f"in ensemble '{self._name}', model '{step.model}' gave no answer")

    async def _answers(
        self, step: EnsembleStep, view: ModelView, known: Mapping[str, Array], errand: _Errand
    ) -> AsyncGenerator[dict[str, Array], None]:
        try:
            try:
                answers = view.handle.submit(self._request(step, view, known, errand))
            except ModelUnavailable:  # exchanged or unloaded since it was found: ask what serves now
                view = self._view(step)
                answers = view.handle.submit(self._request(step, view, known, errand))
            try:
                async for answer in answers:
                    yield {step.outputs[name]: array for name, array in answer.outputs.items()}
            finally:
                answers.abandon()
        except (InvalidArgument, ModelFailed) as error:
            raise _kind_of(error)(f"in ensemble '{self._name}', {error}") from error

    def _request(
        self, step: EnsembleStep, view: ModelView, known: Mapping[str, Array], errand: _Errand
    ) -> InferRequest:
        request = errand.request
        inputs = {name: known[tensor] for name, tensor in step.inputs.items() if tensor in known}
        check_inputs(view.name, inputs, view.inputs, view.max_batch_size)
        for name in step.outputs:
            if name not in view.outputs:
                raise UnknownOutput(name, view.name)
        made = InferRequest(
            view,
            inputs,
            request.id,
            tuple([OutputRequest(name) for name in self._needed(step, errand)]),
            request.parameters,
            priority=request.priority,
            sequence=request.sequence,
            deadline=request.deadline,
            stream=request.stream,
            wire=self._chain(view, request),
            into=None if all(isinstance(array, np.ndarray) for array in inputs.values()) else NOTHING,
            on_device=self._stays(step, view),
        )
        if request.cancellation.request_id:
            made.cancellation.request_id = request.cancellation.request_id
        return made

    def _needed(self, step: EnsembleStep, errand: _Errand) -> Sequence[str]:
        """The outputs of a step that the caller or another step wants; all of one that runs for no such reason."""
        used = errand.wanted.union(*[other.inputs.values() for other in self._users[id(step)]])
        return [name for name, tensor in step.outputs.items() if tensor in used] or list(step.outputs)

    def _stays(self, step: EnsembleStep, view: ModelView) -> bool:
        """Whether all who wait for what a step gives are on the GPUs where it is made."""
        users = self._users[id(step)]
        return "cpu" not in view.devices and bool(users) and all(self._devices(user) == view.devices for user in users)

    def _devices(self, step: EnsembleStep) -> tuple[str, ...]:
        try:
            return self._resolve(_part(step)).devices
        except ModelNotFound:
            return ()  # its turn will tell

    def _chain(self, view: ModelView, request: InferRequest) -> Chain:
        """Who waits for a step. Raises ModelFailed where that would be for ever."""
        above, own = chain_of(request), request.view.handle
        waiting, ensembles = (*above.waiting, own), (*above.ensembles, own)
        if view.handle in ensembles:
            raise ModelFailed(f"ensemble '{view.name}' is a step of itself")
        check_room(waiting, view)
        return Chain(waiting, ensembles)

    def _view(self, step: EnsembleStep) -> ModelView:
        try:
            return self._resolve(_part(step))
        except ModelNotFound:
            version = "" if step.version is None else f" version {step.version}"
            raise Unavailable(f"in ensemble '{self._name}', model '{step.model}'{version} is not loaded") from None

    def _checked(self, answer: Tensors, outputs: Sequence[str]) -> Tensors:
        """Hold the models to what the ensemble declares."""
        specs = {spec.name: spec for spec in self.outputs}
        for name in outputs:
            if name not in answer:
                raise ModelFailed(f"in ensemble '{self._name}', no model gave the output '{name}'")
            array, spec = answer[name], specs[name]
            if array.dtype != spec.dtype or not spec.accepts(array.shape):
                raise ModelFailed(
                    f"in ensemble '{self._name}', output '{name}' is {array.dtype} {list(array.shape)}, but "
                    f"{spec.datatype} {list(spec.shape or ())} is declared"
                )
        return {name: answer[name] for name in outputs}


def _part(step: EnsembleStep) -> ModelRef:
    return ModelRef(step.model, step.version)


async def _on_host(answer: Tensors) -> Tensors:
    """What both the caller and another model asked for is still on a GPU: to wait for that is no work for the loop."""
    away = {name: array for name, array in answer.items() if not isinstance(array, np.ndarray)}
    if not away:
        return answer
    fetched = await asyncio.to_thread(lambda: {name: array.get() for name, array in away.items()})
    return {**answer, **fetched}


def _kind_of(error: GatewayError) -> type[InvalidArgument] | type[ModelFailed]:
    """What the caller is told: the kinds of both have their own facts, their parents carry a text."""
    return InvalidArgument if isinstance(error, InvalidArgument) else ModelFailed


async def _together(runs: Sequence[Coroutine[Any, Any, Mapping[str, Array]]]) -> list[Mapping[str, Array]]:
    """Side by side; the first failure ends the others."""
    if len(runs) == 1:
        return [await runs[0]]
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(run) for run in runs]
    except BaseExceptionGroup as failures:
        raise failures.exceptions[0] from None
    return [task.result() for task in tasks]


def _describe(source: ModelSource) -> Described:
    """What the YAML declares. Raises ValueError where the steps do not make it."""
    options: EnsembleOptions = source.options
    if not source.inputs or not source.outputs:
        raise ValueError("an ensemble needs its inputs and outputs declared")
    if not isinstance(source.max_batch_size, int):
        raise ValueError("an ensemble's max_batch_size must be a number: it has no file that could tell")
    _check(options.steps, {spec.name for spec in source.inputs}, {spec.name for spec in source.outputs})
    return Described(source.inputs, source.outputs, source.max_batch_size, options.decoupled)


def _check(steps: Sequence[EnsembleStep], inputs: set[str], outputs: set[str]) -> None:
    """Every tensor is made once, before it is needed, and every output is made."""
    made = set(inputs)
    for step in steps:
        for tensor in step.outputs.values():
            if tensor in made:
                raise ValueError(f"tensor '{tensor}' is made twice: each has one source")
            made.add(tensor)
    for step in steps:
        for tensor in step.inputs.values():
            if tensor not in made:
                raise ValueError(f"step '{step.model}' needs the tensor '{tensor}', which nothing makes")
    for tensor in sorted(outputs - made):
        raise ValueError(f"no step makes the output '{tensor}'")
    known, waiting = set(inputs), list(steps)
    while waiting:
        able = [step for step in waiting if known.issuperset(step.inputs.values())]
        if not able:
            raise ValueError(f"these steps wait for each other: {', '.join(step.model for step in waiting)}")
        known |= {tensor for step in able for tensor in step.outputs.values()}
        waiting = [step for step in waiting if step not in able]


KIND = BackendKind(
    EnsembleOptions,
    EnsembleBackend,
    versioned=False,
    parts=lambda options: [step.model for step in options.steps],
    describe=_describe,
    joints=joints,
)

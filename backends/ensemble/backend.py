"""Models composed of models: tensors flow from step to step inside the gateway.

A step starts as soon as its inputs are there, so steps that do not wait for each other run side by side. Each is an
ordinary request to the named model: it waits in that model's queue and shares batches there with whoever else calls
it. A step whose model is decoupled gives many answers, and what follows it runs once for each.

The models are found anew for every request, so that each may be loaded, unloaded and exchanged on its own.

What one model gives to others on the same GPU stays there: only what the caller asked for comes to the host, with the
answer of the model that made it. And nobody waits between them: a step is asked as soon as what it needs is enqueued on
the GPU, and its stream waits for the event behind that.
Source: Triton's ensemble scheduler.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any, cast

import numpy as np

from tensorgate.backends.ensemble.options import EnsembleOptions, EnsembleStep, check_edges, describe
from tensorgate.backends.execution.device import Device
from tensorgate.backends.execution.instances import check_free_instance
from tensorgate.gateway.contract.backend import Backend, BackendKind, ModelSource
from tensorgate.gateway.contract.canonical import (
    Answers,
    ChainedRequest,
    InferRequest,
    InferResponse,
    ModelRef,
    ModelView,
    OutputRequest,
)
from tensorgate.gateway.contract.dialect import Resolve
from tensorgate.gateway.contract.errors import (
    InvalidArgument,
    ModelFailed,
    ModelNotFound,
    ModelUnavailable,
    Unavailable,
    UnknownOutput,
)
from tensorgate.gateway.contract.tensor import NOTHING, Array, Tensors, check_inputs


@dataclass(frozen=True, slots=True)
class _Call:
    """A request, and the tensors of the ensemble that its caller wants."""

    request: InferRequest
    wanted: frozenset[str]
    running: list[asyncio.Task[InferResponse | None]] = field(default_factory=list)
    """Steps whose results have been handed on, and who may not be done."""
    ready: dict[int, Any] = field(default_factory=dict)
    """By the id of an array on a GPU, the event after which it is complete. Of one that is gone it does no harm."""

    async def done(self) -> None:
        """Until all steps are. Raises what went wrong late."""
        for task in self.running:
            await task

    async def end(self) -> None:
        """Let no step go on alone."""
        for task in self.running:
            task.cancel()
        await asyncio.gather(*self.running, return_exceptions=True)


class _Early:
    """A step's response, given in the thread of its run before it is complete, with the event after which it is."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.given: asyncio.Future[tuple[InferResponse, Any]] = self._loop.create_future()

    def give(self, response: InferResponse, event: Any) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._take, response, event)

    def _take(self, response: InferResponse, event: Any) -> None:
        if not self.given.done():  # a batch that failed is run again, request by request
            self.given.set_result((response, event))


class EnsembleBackend(Backend):
    """The flow through the steps. Raises ValueError where tensors are missing, made twice, or wait for each other."""

    runs_on = "loop"
    merges = False
    platform = "ensemble"

    def __init__(self, source: ModelSource) -> None:
        options: EnsembleOptions = source.options
        described = describe(source)
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
        call = _Call(request, frozenset(outputs))
        try:
            steps = self._steps if len(outputs) == len(self.outputs) else self._steps_for(call.wanted)
            async with contextlib.aclosing(self._flow(dict(tensors), steps, call)) as answers:
                async for answer in answers:
                    if call.running:
                        await call.done()
                    yield await _on_host(self._checked(answer, outputs))
        finally:
            if call.running:
                await call.end()

    def is_ready(self) -> bool:
        """Whether requests should come to all of its models now."""
        if self._is_asked:  # by one of its own parts: an ensemble in itself, which its requests are told
            return True
        self._is_asked = True
        try:
            return all(self._resolve(part).handle.is_ready() for part in self.parts)
        except (ModelNotFound, Unavailable):
            return False
        finally:
            self._is_asked = False

    def close(self) -> None:
        """The models belong to themselves."""

    def _steps_for(self, wanted: frozenset[str]) -> Sequence[EnsembleStep]:
        """The steps without those that work for outputs alone that nobody asked for, as Triton leaves them out. A step
        whose answer goes nowhere is there for what it does, and stays.
        """
        unwanted = {spec.name for spec in self.outputs} - wanted
        steps = list(self._steps)
        while True:
            needed = {tensor for step in steps for tensor in step.inputs.values()}
            kept = [
                step
                for step in steps
                if not unwanted.issuperset(step.outputs.values()) or not needed.isdisjoint(step.outputs.values())
            ]
            if len(kept) == len(steps):
                return steps
            left = {tensor for step in kept for tensor in step.inputs.values()}
            unwanted |= needed - left - wanted
            steps = kept

    async def _flow(
        self, known: dict[str, Array], waiting: Sequence[EnsembleStep], call: _Call
    ) -> AsyncGenerator[Tensors, None]:
        """Run what is left with what is known; every tensor of the ensemble for each answer.

        Decoupled models go last of those that could start, and what is left runs once for each of their answers. A
        step can start once nothing that waits makes what it takes: what is not known then was left out.
        """
        while waiting:
            if call.request.cancellation.cut:
                return
            pending = {name for step in waiting for name in step.outputs.values()}
            able = [step for step in waiting if pending.isdisjoint(step.inputs.values())]
            views = {id(step): self._view(step) for step in able}
            unary = [step for step in able if not views[id(step)].decoupled]
            if not unary:
                async for answer in self._fork(known, waiting, able[0], views[id(able[0])], call):
                    yield answer
                return
            for result in await _together([self._run(step, views[id(step)], known, call) for step in unary]):
                known |= result
            done = {id(step) for step in unary}
            waiting = [step for step in waiting if id(step) not in done]
        yield known

    async def _fork(
        self,
        known: Mapping[str, Array],
        waiting: Sequence[EnsembleStep],
        step: EnsembleStep,
        view: ModelView,
        call: _Call,
    ) -> AsyncGenerator[Tensors, None]:
        if not self.decoupled:
            raise ModelFailed(f"in ensemble '{self._name}', model '{step.model}' is decoupled, but the ensemble is not")
        rest = [other for other in waiting if other is not step]
        async with contextlib.aclosing(self._answers(step, view, known, call)) as results:
            async for result in results:
                async with contextlib.aclosing(self._flow({**known, **result}, rest, call)) as answers:
                    async for answer in answers:
                        yield answer

    async def _run(
        self, step: EnsembleStep, view: ModelView, known: Mapping[str, Array], call: _Call
    ) -> Mapping[str, Array]:
        """The one answer of a step, by the ensemble's names."""
        async with contextlib.aclosing(self._answers(step, view, known, call)) as results:
            async for result in results:
                return result
        raise ModelFailed(f"in ensemble '{self._name}', model '{step.model}' gave no answer")

    async def _answers(
        self, step: EnsembleStep, view: ModelView, known: Mapping[str, Array], call: _Call
    ) -> AsyncGenerator[dict[str, Array], None]:
        try:
            try:
                request, early = self._request(step, view, known, call)
                answers = view.handle.submit(request)
            except ModelUnavailable:  # exchanged or unloaded since it was found: ask what serves now
                view = self._view(step)
                request, early = self._request(step, view, known, call)
                answers = view.handle.submit(request)
            if early is not None:
                response = await self._soonest(answers, early, call)
                if response is not None:
                    yield {step.outputs[name]: array for name, array in response.outputs.items()}
                return
            try:
                async for answer in answers:
                    yield {step.outputs[name]: array for name, array in answer.outputs.items()}
            finally:
                answers.abandon()
        except (InvalidArgument, ModelFailed) as error:
            # The kinds of both have their own facts, their parents carry a text.
            kind = InvalidArgument if isinstance(error, InvalidArgument) else ModelFailed
            raise kind(f"in ensemble '{self._name}', {error}") from error

    async def _soonest(self, answers: Answers, early: _Early, call: _Call) -> InferResponse | None:
        """The only answer, as soon as it is enqueued on its GPU; the step itself goes on until it is complete."""
        task = asyncio.ensure_future(_only(answers))
        call.running.append(task)
        await asyncio.wait((task, early.given), return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        response, event = early.given.result()
        call.ready.update((id(array), event) for array in response.outputs.values())
        return response

    def _request(
        self, step: EnsembleStep, view: ModelView, known: Mapping[str, Array], call: _Call
    ) -> tuple[InferRequest, _Early | None]:
        """With who gets the answer early, where it stays on a GPU. What a sequence remembers is not for others."""
        request = call.request
        stays = self._stays(step, view)
        early = _Early() if stays and not view.decoupled and request.sequence is None else None
        inputs = {name: known[tensor] for name, tensor in step.inputs.items() if tensor in known}
        check_inputs(view.name, inputs, view.inputs, view.max_batch_size)
        for name in step.outputs:
            if name not in view.outputs:
                raise UnknownOutput(name, view.name)
        facts: dict[str, Any] = {}
        if early is not None or call.ready:
            events = {id(event): event for array in inputs.values() if (event := call.ready.get(id(array))) is not None}
            facts = {"ready": tuple(events.values()), "give": early.give if early is not None else None}
        made = (ChainedRequest if facts else InferRequest)(
            view,
            inputs,
            request.id,
            tuple([OutputRequest(name) for name in self._needed(step, call)]),
            request.parameters,
            priority=request.priority,
            sequence=request.sequence,
            deadline=request.deadline,
            queue_timeout_us=request.queue_timeout_us,
            stream=request.stream,
            into=None if all(isinstance(array, np.ndarray) for array in inputs.values()) else NOTHING,
            on_device=stays,
            callers=self._callers(view, request),
            **facts,
        )
        if request.cancellation.request_id:
            made.cancellation.request_id = request.cancellation.request_id
        if request.cancellation.share:
            made.cancellation.share = request.cancellation.share
        return made, early

    def _needed(self, step: EnsembleStep, call: _Call) -> Sequence[str]:
        """The outputs of a step that the caller or another step wants; all of one that runs for no such reason."""
        used = call.wanted.union(*[other.inputs.values() for other in self._users[id(step)]])
        return [name for name, tensor in step.outputs.items() if tensor in used] or list(step.outputs)

    def _stays(self, step: EnsembleStep, view: ModelView) -> bool:
        """Whether all who wait for what a step gives are on the GPUs where it is made."""
        users = self._users[id(step)]
        return "cpu" not in view.devices and bool(users) and all(self._devices(user) == view.devices for user in users)

    def _devices(self, step: EnsembleStep) -> tuple[str, ...]:
        try:
            return self._resolve(_part(step)).devices
        except (ModelNotFound, Unavailable):
            return ()  # its turn will tell

    def _callers(self, view: ModelView, request: InferRequest) -> tuple[ModelView, ...]:
        """Who waits for a step. Raises ModelFailed where that would be for ever.

        Ensembles do the same each time, so one below itself, with nothing but ensembles between, never comes to an end.
        A program there may stop after a while.
        """
        callers = (*request.callers, request.view)
        above = takewhile(lambda caller: caller.platform == self.platform, reversed(request.callers))
        if view.handle in [caller.handle for caller in (request.view, *above)]:
            raise ModelFailed(f"ensemble '{view.name}' is a step of itself")
        check_free_instance(callers, view)
        return callers

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


async def _only(answers: Answers) -> InferResponse | None:
    """The one answer of a unary model; None where it gives none."""
    try:
        async for answer in answers:
            return answer
        return None
    finally:
        answers.abandon()


def _part(step: EnsembleStep) -> ModelRef:
    return ModelRef(step.model, step.version)


async def _on_host(answer: Tensors) -> Tensors:
    """What both the caller and another model asked for is still on a GPU: to wait for that is no work for the loop."""
    away = {name: array for name, array in answer.items() if not isinstance(array, np.ndarray)}
    if not away:
        return answer
    fetched = await asyncio.to_thread(lambda: {name: array.get() for name, array in away.items()})
    return {**answer, **fetched}


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


KIND = BackendKind(
    EnsembleOptions,
    EnsembleBackend,
    versioned=False,
    parts=lambda options: [step.model for step in options.steps],
    describe=describe,
    check_edges=check_edges,
    numbers=lambda options: options.versions.named or (1,),
)

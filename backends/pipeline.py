"""One instance of a model on its device: rows joined, preprocessed, inferred, postprocessed, split again.

    join_rows -> put on the device -> preprocess ops -> Backend.infer -> postprocess ops -> back to the host ->
    split_rows

Two crossings per batch, no more: the joined rows go in once, and only outputs that somebody in the batch asked for
come out, or their best classes where nothing else is wanted of them. A batch of one is neither joined nor split: its
arrays pass through as they are.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import EllipsisType
from typing import Any, cast

import numpy as np

from backends.device import Device
from backends.fitting import input_specs, output_specs, with_rows
from backends.instances import load_instances
from backends.regions import place_outputs
from backends.rows import Outcome, all_rows, check_rows, join_rows, split_rows, wanted_whole
from backends.top_k import asks_for_classes, best_classes, largest_k
from gateway.canonical import (
    NOTHING,
    Array,
    InferRequest,
    InferResponse,
    Signature,
    Tensors,
    TopK,
    common_rows,
)
from gateway.errors import GatewayError, ModelFailed, text_of
from gateway.ports import (
    Backend,
    BackendKind,
    Computation,
    ModelSource,
    Observe,
    Op,
    RequestBackend,
    SignatureBackend,
)


def load(
    kind: BackendKind,
    source: ModelSource,
    instances: int,
    preprocess: Sequence[Op],
    postprocess: Sequence[Op],
    placement: Sequence[str] = (),
) -> Computation:
    """Load every instance and fit its operators to it. `placement` is where, in place of the source's device: see
    backends.instances. Raises ValueError naming what does not fit.
    """
    with contextlib.ExitStack() as undo:
        backends = load_instances(kind, source, placement or (source.device,), instances, undo)
        first = backends[0]
        source = with_rows(source, first.max_batch_size)
        inputs, required = input_specs(source, first, preprocess)
        outputs = output_specs(source, first, postprocess)
        signatures: Mapping[str, Signature] = getattr(first, "signatures", NOTHING)
        if signatures and (preprocess or postprocess):
            # What comes before and after the default function makes it another, and knows nothing of the rest.
            signatures = NOTHING
            for backend in backends:
                cast("SignatureBackend", backend).signatures = signatures
        further = [spec.name for each in signatures.values() for spec in each.outputs.values()]
        # The scheduler takes the last first: instances alternate, so that they share what runs at the same time.
        executor = RequestPipeline if hasattr(first, "infer_each") else Pipeline
        if executor is RequestPipeline and (preprocess or postprocess):
            raise ValueError("this backend takes requests as they are: preprocess and postprocess have no place here")
        executors = tuple(
            executor(backend, preprocess, postprocess, tuple(outputs), first.max_batch_size, further, number == 0)
            for number in range(first.in_flight)
            for backend in backends
        )
        undo.pop_all()
    return Computation(
        executors,
        tuple(inputs.values()),
        tuple(outputs.values()),
        tuple(required.values()),
        first.max_batch_size,
        first.platform,
        cast("Device", first.device).name,
        signatures,
        any_shape=getattr(first, "any_shape", False) and not preprocess,
        is_ready=getattr(first, "is_ready", lambda: True),
        devices=tuple(each.device for each in executors),
        instances=len(backends),
    )


class Pipeline:
    """The executor that a scheduler drives; one at a time, from one thread.

    `further` outputs are those of signatures other than the default. Of several executors over one backend, the owner
    closes it.
    """

    def __init__(
        self,
        backend: Backend | RequestBackend,
        preprocess: Sequence[Op],
        postprocess: Sequence[Op],
        outputs: tuple[str, ...],
        max_batch_size: int,
        further: Sequence[str] = (),
        owner: bool = True,
    ) -> None:
        self._backend = cast("Backend", backend)
        self._owner = owner
        self._device: Device = backend.device
        self._preprocess = preprocess
        self._postprocess = postprocess
        self._outputs = outputs
        self._order = tuple(dict.fromkeys((*outputs, *further)))
        self._raw_outputs = tuple(spec.name for spec in backend.outputs)
        self._max_batch_size = max_batch_size
        self._bare = self._device.xp is np and not (preprocess or postprocess or backend.decoupled)
        self.runs_on = backend.runs_on
        self.inline = backend.inline and self._device.xp is np  # waiting for a GPU is no work for the event loop
        self.decoupled = backend.decoupled
        self.merges = backend.merges

    @property
    def device(self) -> str:
        """Where it runs."""
        return self._device.name

    def run(self, requests: Sequence[InferRequest], observe: Observe) -> Iterable[Sequence[Outcome]]:
        """See Executor."""
        if self._bare:
            if len(requests) == 1 and requests[0].into is None and not asks_for_classes(requests[0]):
                return (self._run_bare(requests[0], observe),)
            return self._run(requests, observe)
        return self._run_on_device(requests, observe)

    def _run_bare(self, request: InferRequest, observe: Observe) -> Sequence[InferResponse]:
        """The short way: one request to a unary host model without operators. Its arrays pass through as they are."""
        requests = (request,)
        begun = time.perf_counter()
        try:
            (outputs,) = self._backend.infer(request.inputs, self._wanted(requests), requests)  # type: ignore[misc]
        except GatewayError:
            raise
        except Exception as error:
            raise ModelFailed(last_line(error)) from error
        observe("infer", time.perf_counter() - begun)
        if self._max_batch_size:
            check_rows(outputs, common_rows(request.inputs))
        return (InferResponse(outputs),)

    def _run_on_device(self, requests: Sequence[InferRequest], observe: Observe) -> Iterator[Sequence[Outcome]]:
        """Whatever happens on a device happens on its stream."""
        with self._device.active():
            yield from self._run(requests, observe)

    def _run(self, requests: Sequence[InferRequest], observe: Observe) -> Iterator[Sequence[Outcome]]:
        wanted = self._wanted(requests)
        tensors = self._before(requests, observe)
        begun = time.perf_counter()
        steps = iter(cast("Iterable[Tensors]", self._infer(tensors, wanted, requests)))
        try:
            while (raw := _next(steps)) is not None:
                observe("infer", time.perf_counter() - begun)
                yield self._after(raw, wanted, requests, observe)
                begun = time.perf_counter()
        finally:
            close = getattr(steps, "close", None)
            if close is not None:
                close()

    async def arun(self, requests: Sequence[InferRequest], observe: Observe) -> AsyncIterator[Sequence[Outcome]]:
        wanted = self._wanted(requests)
        tensors = self._before(requests, observe)
        begun = time.perf_counter()
        steps = cast("AsyncIterator[Tensors]", self._infer(tensors, wanted, requests))
        try:
            while True:
                try:
                    raw = await anext(steps)
                except StopAsyncIteration:
                    return
                except GatewayError:
                    raise
                except Exception as error:
                    raise ModelFailed(last_line(error)) from error
                observe("infer", time.perf_counter() - begun)
                yield self._after(raw, wanted, requests, observe)
                begun = time.perf_counter()
        finally:
            await cast("Any", steps).aclose()

    def close(self) -> None:
        if self._owner:
            self._backend.close()

    def _wanted(self, requests: Sequence[InferRequest]) -> tuple[str, ...]:
        """The outputs that somebody in the batch asked for, in the model's order."""
        for request in requests:
            if not request.outputs:
                return self._outputs
        names = {output.name for request in requests for output in request.outputs}
        return tuple([name for name in self._order if name in names])

    def _infer(
        self, tensors: Tensors, wanted: tuple[str, ...], requests: Sequence[InferRequest]
    ) -> Iterable[Tensors] | AsyncIterator[Tensors]:
        """Postprocessing may need outputs that nobody asked for; without it, only the wanted ones are computed."""
        return self._backend.infer(tensors, self._raw_outputs if self._postprocess else wanted, requests)

    def _before(self, requests: Sequence[InferRequest], observe: Observe) -> Tensors:
        begun = time.perf_counter()
        put = self._device.put
        if all(request.into is None for request in requests):
            tensors: Tensors = {name: put(array) for name, array in join_rows(requests).items()}
        else:
            tensors = {name: self._device.join([each.inputs[name] for each in requests]) for name in requests[0].inputs}
        for op in self._preprocess:
            tensors = op(tensors, self._device.xp)
        observe("preprocess", time.perf_counter() - begun)
        return tensors

    def _after(
        self, raw: Tensors, wanted: tuple[str, ...], requests: Sequence[InferRequest], observe: Observe
    ) -> Sequence[Outcome]:
        begun = time.perf_counter()
        for op in self._postprocess:
            raw = op(raw, self._device.xp)
        tensors = {name: raw[name] for name in wanted}
        if self._max_batch_size:
            check_rows(tensors, all_rows(requests))
        get = self._device.get
        classes = {name: self._best(name, tensors[name], k) for name, k in largest_k(requests).items()}
        placed = any(request.into for request in requests)
        whole = wanted_whole(requests) if classes or placed else None
        outputs = {name: get(array) for name, array in tensors.items() if whole is None or name in whole}
        outcomes = split_rows(outputs, requests, classes)
        if placed:
            outcomes = self._place(tensors, requests, outcomes)
        observe("postprocess", time.perf_counter() - begun)
        return [_not_final(outcome) for outcome in outcomes] if self.decoupled else outcomes

    def _place(self, tensors: Tensors, requests: Sequence[InferRequest], outcomes: list[Outcome]) -> list[Outcome]:
        """Copy outputs into their callers' memory, where it was given for them. Who has left may use it otherwise."""
        placed, start = [], 0
        for request, outcome in zip(requests, outcomes, strict=True):
            rows: slice | EllipsisType = ...
            if len(requests) > 1:
                rows = slice(start, start := start + cast("int", common_rows(request.inputs)))
            if request.into and isinstance(outcome, InferResponse) and not request.lifeline.cut:
                outcome = place_outputs(tensors, request, rows, outcome, self._device)
            placed.append(outcome)
        return placed

    def _best(self, name: str, array: Array, k: int) -> TopK | GatewayError:
        """The best classes of an output, found on the device, on the host."""
        best = best_classes(name, array, k, self._max_batch_size > 0, self._device.xp)
        if isinstance(best, GatewayError):
            return best
        return TopK(self._device.get(best.values), self._device.get(best.indices))


class RequestPipeline(Pipeline):
    """The executor over a backend that takes requests as they are: nothing is joined, nothing split."""

    async def arun(
        self, requests: Sequence[InferRequest], observe: Observe
    ) -> AsyncIterator[Sequence[InferResponse | GatewayError]]:
        begun = time.perf_counter()
        answers = cast("RequestBackend", self._backend).infer_each(requests)
        async with contextlib.aclosing(cast("Any", answers)) as steps:
            async for outcomes in steps:
                observe("infer", time.perf_counter() - begun)
                yield [self._finished(*each, observe) for each in zip(requests, outcomes, strict=True)]
                begun = time.perf_counter()

    def _finished(self, request: InferRequest, outcome: Outcome, observe: Observe) -> Outcome:
        """The best classes of outputs, or outputs put where their caller wants them, if that was asked for."""
        if isinstance(outcome, GatewayError) or not (request.into or asks_for_classes(request)):
            return outcome
        missing = [output.name for output in request.outputs if output.name not in outcome.outputs]
        if missing:
            return ModelFailed(f"the model gave no output '{missing[0]}'")
        try:
            (own,) = self._after(outcome.outputs, tuple(outcome.outputs), (request,), observe)
        except GatewayError as error:
            return error
        if isinstance(own, GatewayError):
            return own
        return InferResponse(own.outputs, outcome.parameters, outcome.final, own.classes)


def _not_final(outcome: Outcome) -> Outcome:
    """An answer that others may follow."""
    return replace(outcome, final=False) if isinstance(outcome, InferResponse) else outcome


def last_line(error: BaseException) -> str:
    """What a user's exception says for itself, without a traceback: "ValueError: no such word"."""
    text = text_of(error)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _next(steps: Iterator[Tensors]) -> Tensors | None:
    """The model's next answer, None after the last. Whatever the model raises becomes ModelFailed; errors that it
    raises in our terms keep their meaning.
    """
    try:
        return next(steps, None)
    except GatewayError:
        raise
    except Exception as error:
        raise ModelFailed(last_line(error)) from error

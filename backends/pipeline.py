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
from backends.failures import device_failures, failure_of, relieve
from backends.regions import place_outputs
from backends.top_k import asks_for_classes, best_classes, classes_of, largest_k
from gateway.canonical import (
    NOTHING,
    Array,
    InferRequest,
    InferResponse,
    Signature,
    Tensors,
    TensorSpec,
    TopK,
    common_rows,
)
from gateway.errors import GatewayError, ModelFailed, OutputRows
from gateway.ports import (
    Backend,
    BackendKind,
    Computation,
    LoadedModel,
    ModelSource,
    Observe,
    Op,
    RequestBackend,
    SignatureBackend,
)

Specs = Mapping[str, TensorSpec]
Outcome = InferResponse | GatewayError
"""What becomes of a request: what cannot be done for one is no concern of the others in the batch."""


def load(
    kind: BackendKind, source: ModelSource, instances: int, preprocess: Sequence[Op], postprocess: Sequence[Op]
) -> Computation:
    """Load every instance and fit its operators to it. Raises ValueError naming what does not fit."""
    with contextlib.ExitStack() as undo:
        backends = []
        for _ in range(instances):
            backends.append(kind.load(source))
            undo.callback(backends[-1].close)
        first = backends[0]
        source = _with_rows(source, first.max_batch_size)
        inputs, required = _input_specs(source, first, preprocess)
        outputs = _output_specs(source, first, postprocess)
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
            raise failure_of(error, request.view.name) from error
        observe("infer", time.perf_counter() - begun)
        if self._max_batch_size:
            check_rows(outputs, common_rows(request.inputs))
        return (InferResponse(outputs),)

    def _run_on_device(self, requests: Sequence[InferRequest], observe: Observe) -> Iterator[Sequence[Outcome]]:
        """Whatever happens on a device happens on its stream."""
        relieve()
        with self._device.active():
            yield from self._run(requests, observe)

    def _run(self, requests: Sequence[InferRequest], observe: Observe) -> Iterator[Sequence[Outcome]]:
        """Memory may run out anywhere, and a device speak of its end when results are fetched."""
        with device_failures(requests[0].view.name):
            yield from self._steps(requests, observe)

    def _steps(self, requests: Sequence[InferRequest], observe: Observe) -> Iterator[Sequence[Outcome]]:
        wanted = self._wanted(requests)
        tensors = self._before(requests, observe)
        begun = time.perf_counter()
        steps = iter(cast("Iterable[Tensors]", self._infer(tensors, wanted, requests)))
        try:
            while (raw := _next(steps, requests[0].view.name)) is not None:
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
                    raise failure_of(error, requests[0].view.name) from error
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
            check_rows(tensors, _all_rows(requests))
        get = self._device.get
        classes = {name: self._best(name, tensors[name], k) for name, k in largest_k(requests).items()}
        placed = any(request.into for request in requests)
        whole = _wanted_whole(requests) if classes or placed else None
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


def _next(steps: Iterator[Tensors], model: str) -> Tensors | None:
    """The model's next answer, None after the last. Whatever the model raises becomes ModelFailed; errors that it
    raises in our terms keep their meaning.
    """
    try:
        return next(steps, None)
    except GatewayError:
        raise
    except Exception as error:
        raise failure_of(error, model) from error


def join_rows(requests: Sequence[InferRequest]) -> Tensors:
    """Concatenate every input on axis 0, on the host: [rows_i, *rest] -> [sum(rows_i), *rest], dtype kept, one copy
    each.

    One request is passed through without a copy. Source: Triton model configuration, dynamic batching.
    """
    if len(requests) == 1:
        return requests[0].inputs
    return {name: np.concatenate([request.inputs[name] for request in requests]) for name in requests[0].inputs}


def split_rows(
    outputs: Tensors, requests: Sequence[InferRequest], classes: Mapping[str, TopK | GatewayError] = NOTHING
) -> list[Outcome]:
    """Give every request its own rows of every output that it asked for, as views: [sum(rows_i), *rest] -> [rows_i,
    *rest]; of an output whose best `classes` it asked for, those.

    A lone request gets all rows, whatever their number. What an output cannot give is the outcome of who asked for it.
    """
    if len(requests) == 1:
        return [_own(outputs, classes, requests[0], None)]
    outcomes, start = [], 0
    for request in requests:
        end = start + cast("int", common_rows(request.inputs))
        outcomes.append(_own(outputs, classes, request, slice(start, end)))
        start = end
    return outcomes


def _own(
    outputs: Tensors, classes: Mapping[str, TopK | GatewayError], request: InferRequest, rows: slice | None
) -> Outcome:
    found: dict[str, TopK] = {}
    if classes:
        for output in request.outputs:
            if output.top_k:
                best = classes[output.name]
                if isinstance(best, TopK):
                    best = classes_of(output.name, best, output.top_k, rows)
                if isinstance(best, GatewayError):
                    return best
                found[output.name] = best
    own = _asked(outputs, request)
    return InferResponse(own if rows is None else {name: array[rows] for name, array in own.items()}, classes=found)


def _wanted_whole(requests: Sequence[InferRequest]) -> set[str] | None:
    """The outputs that somebody wants whole and on the host; None: all of them."""
    if not all(request.outputs for request in requests):
        return None
    return {
        output.name
        for request in requests
        for output in request.outputs
        if not output.top_k and output.name not in (request.into or ())
    }


def _all_rows(requests: Sequence[InferRequest]) -> int | None:
    """Of a batch; None for a request that cannot be batched."""
    total = 0
    for request in requests:
        rows = common_rows(request.inputs)
        if rows is None:
            return None
        total += rows
    return total


def check_rows(outputs: Tensors, total: int | None) -> None:
    """A request that cannot be batched may give anything; a batch gives as many rows as it got."""
    if total is None:
        return
    for name, array in outputs.items():
        if array.shape[:1] != (total,):
            raise OutputRows(name, array.shape, total)


def _asked(outputs: Tensors, request: InferRequest) -> Tensors:
    if not request.outputs:
        return outputs
    elsewhere = request.into or ()
    names = {output.name for output in request.outputs if not output.top_k and output.name not in elsewhere}
    return outputs if len(names) == len(outputs) else {name: array for name, array in outputs.items() if name in names}


# ---------------------------------------------------------------------------------------------- fitting specifications


def _with_rows(source: ModelSource, max_batch_size: int) -> ModelSource:
    """The source with whole shapes: those that were declared before it was known whether there is a batch dimension
    get it in front, if there is.
    """
    if source.max_batch_size != "auto" or not max_batch_size:
        return source
    inputs, outputs = (
        tuple(replace(spec, shape=None if spec.shape is None else (-1, *spec.shape)) for spec in specs)
        for specs in (source.inputs, source.outputs)
    )
    return replace(source, inputs=inputs, outputs=outputs)


def _input_specs(source: ModelSource, backend: LoadedModel, preprocess: Sequence[Op]) -> tuple[Specs, Specs]:
    """What callers see, and what is required of them: the declared inputs, or the model's own where nothing is
    declared.

    The operators are tried on the specifications, and what they give must be what the model takes.
    """
    takes = {spec.name: spec for spec in backend.inputs}
    seen = {spec.name: spec for spec in source.inputs} or takes
    given: Specs = seen
    for op in preprocess:
        given = op.specs(given)
    for name, spec in takes.items():
        if name not in given:
            if spec.optional:
                continue
            raise ValueError(f"the model takes an input '{name}', but got {_listed(given)} (see inputs and preprocess)")
        _fits(f"input '{name}'", given[name], spec)
    for name in given:
        if name not in takes:
            raise ValueError(f"the model takes {_listed(takes)}, but no input '{name}' (see inputs and preprocess)")
    return seen, (seen if preprocess else takes)


def _output_specs(source: ModelSource, backend: LoadedModel, postprocess: Sequence[Op]) -> Specs:
    given: Specs = {spec.name: spec for spec in backend.outputs}
    for op in postprocess:
        given = op.specs(given)
    if not source.outputs:
        return given
    for spec in source.outputs:
        if spec.name not in given:
            raise ValueError(f"outputs declares '{spec.name}', but the model gives {_listed(given)}")
        _fits(f"output '{spec.name}'", given[spec.name], spec)
    return {
        spec.name: replace(spec, shape=spec.shape if spec.shape is not None else given[spec.name].shape)
        for spec in source.outputs
    }


def _fits(what: str, given: TensorSpec, wanted: TensorSpec) -> None:
    """Both ends of a joint agree in dtype, rank, and every dimension that neither leaves open."""
    if given.dtype != wanted.dtype:
        raise ValueError(f"{what} is {given.datatype} at one end and {wanted.datatype} at the other")
    if given.shape is None or wanted.shape is None:
        return
    agree = len(given.shape) == len(wanted.shape) and all(
        -1 in pair or pair[0] == pair[1] for pair in zip(given.shape, wanted.shape, strict=True)
    )
    if not agree:
        raise ValueError(f"{what} has shape {list(given.shape)} at one end and {list(wanted.shape)} at the other")


def _listed(specs: Specs) -> str:
    return ", ".join(f"'{name}'" for name in specs) or "nothing"

"""One instance of a model on its device: rows joined, preprocessed, inferred, postprocessed, split again.

    bring -> preprocess ops -> Backend.infer -> postprocess ops -> pack -> fetch -> split_rows
    |        '-------- computing, on the device ------------------'         |
    '-- requests' rows onto the device                        what they asked for back to the host

Two transfers per batch, no more: the rows go in at once, and only outputs that somebody in the batch asked for come
out, or their best classes where nothing else is wanted of them; transfer.py has how, and how two batches are on their
way through one instance. On the host nothing is transferred: a batch of one is neither joined nor split, and its arrays
pass through as they are.

Who asks for its outputs `on_device` gets them there, to be another model's inputs: complete, so that whoever is next
may use them on any stream; or, if it says so, as soon as they are enqueued, with an event behind them. Everybody
holds his inputs until he has waited for what he made of them: no memory is given again too early.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import EllipsisType
from typing import Any, NamedTuple, TypeVar, cast

import numpy as np

from tensorgate.backends.execution.device import CudaDevice, Device
from tensorgate.backends.execution.failures import device_failures, failure_of, relieve
from tensorgate.backends.execution.instances import load_instances
from tensorgate.backends.execution.padding import Padded, Padder
from tensorgate.backends.execution.regions import place_outputs
from tensorgate.backends.execution.rows import (
    Outcome,
    Rows,
    all_rows,
    are_plain,
    asked_for,
    check_rows,
    join_rows,
    places_of,
    sizes_of,
    split_rows,
    wanted_whole,
)
from tensorgate.backends.execution.spec_inference import (
    NO_OPERATORS,
    carried_inputs,
    input_specs,
    output_specs,
    specs_behind,
    with_rows,
)
from tensorgate.backends.execution.transfer import CudaTransfer, Transfer, ready_events, transfer_of
from tensorgate.backends.ops.best_classes import asks_for_classes, best_classes, largest_k
from tensorgate.backends.ops.fusion import fuse
from tensorgate.gateway.contract.backend import (
    NO_PADDING,
    Backend,
    BackendKind,
    ModelSource,
    RequestBackend,
)
from tensorgate.gateway.contract.canonical import ChainedRequest, InferRequest, InferResponse, TopK
from tensorgate.gateway.contract.errors import GatewayError
from tensorgate.gateway.contract.execution import Computation, Executor, Observe, Traffic
from tensorgate.gateway.contract.operator import Op
from tensorgate.gateway.contract.shortcuts import is_taken
from tensorgate.gateway.contract.tensor import NOTHING, Array, Tensors, common_rows

T = TypeVar("T")


def load(
    kind: BackendKind,
    source: ModelSource,
    instances: int,
    preprocess: Sequence[Op],
    postprocess: Sequence[Op],
    placement: Sequence[str] = (),
) -> Computation:
    """Load every instance and fit its operators to it. `placement` is where, in place of the source's device: see
    backends.execution.instances. Raises ValueError naming what does not fit.
    """
    with contextlib.ExitStack() as undo:
        backends = load_instances(kind, source, placement or (source.device,), instances, undo)
        first = backends[0]
        padding = source.padding
        max_batch_size = min(first.max_batch_size, *padding.sizes[-1:] or (first.max_batch_size,))
        source = with_rows(source, max_batch_size)
        inputs, required = input_specs(source, first, preprocess)
        outputs = output_specs(source, first, postprocess)
        preprocess, postprocess = (
            fuse(preprocess, inputs),
            fuse(postprocess, specs_behind(first, postprocess)),
        )
        signatures = first.signatures
        if signatures and (preprocess or postprocess):
            # What comes before and after the default function makes it another, and knows nothing of the rest.
            signatures = NOTHING
            for backend in backends:
                backend.signatures = signatures
        further = [spec.name for each in signatures.values() for spec in each.outputs.values()]
        # The scheduler takes the last first: instances alternate, so that they share what runs at the same time.
        executor = RequestPipeline if isinstance(first, RequestBackend) else Pipeline
        if executor is RequestPipeline and (preprocess or postprocess):
            raise ValueError(NO_OPERATORS)
        if executor is RequestPipeline and padding != NO_PADDING:
            raise ValueError("this backend takes requests as they are: pad_batches_to and ragged have no place here")
        padder = Padder(padding, inputs, outputs, max_batch_size) if padding != NO_PADDING else None
        executors = tuple(
            executor(backend, preprocess, postprocess, tuple(outputs), max_batch_size, further, number == 0, padder)
            for number in range(first.in_flight)
            for backend in backends
        )
        undo.pop_all()
    transferred = [cast("Device", backend.device).traffic for backend in backends]
    return Computation(
        executors,
        tuple(inputs.values()),
        tuple(outputs.values()),
        tuple(required.values()),
        max_batch_size,
        first.platform,
        cast("Device", first.device).name,
        signatures,
        any_shape=first.any_shape and not preprocess,
        sees_requests=first.sees_requests,
        is_ready=first.is_ready,
        pure=first.inline,
        traffic=lambda: sum([each.read() for each in transferred], Traffic()),
        devices=tuple(cast("Device", backend.device).name for backend in backends) * first.in_flight,
        instances=len(backends),
        ragged=padder.axes if padder else NOTHING,
        parts=first.parts,
        forwarder=first.forwarder,
    )


class BatchResults(NamedTuple):
    """What the batch's callers asked for, on the device: all of it as `tensors`; `packed` has those of `names` that
    somebody wants whole, then values and indices of the `best` classes. `placed`: some of it goes into callers' memory;
    `stays`: some of it is wanted where it is.
    """

    tensors: Tensors
    names: list[str]
    best: Mapping[str, TopK | GatewayError]
    packed: Any
    placed: bool
    stays: bool


class Pipeline(Executor):
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
        padder: Padder | None = None,
    ) -> None:
        self._backend = cast("Backend", backend)
        self._owner = owner
        self._device = cast("Device", backend.device)
        self._transfer: Transfer = transfer_of(self._device)
        self._preprocess = preprocess
        self._postprocess = postprocess
        self._outputs = outputs
        self._order = tuple(dict.fromkeys((*outputs, *further)))
        self._raw_outputs = tuple(spec.name for spec in backend.outputs)
        self._carried = carried_inputs(backend, postprocess)
        self._max_batch_size = max_batch_size
        self._padder = padder
        self._padded: Padded | None = None  # the batch that runs, if anything was added to it
        is_bare = self._device.xp is np and not (preprocess or postprocess)
        self._bare = is_bare and is_taken("bare_runs")
        self._joined = is_bare and not backend.decoupled and is_taken("joined_runs")
        self.runs_on = backend.runs_on
        self.computes = backend.runs_on == "thread"
        # Waiting for a GPU is no work for the event loop, nor is an op whose time one cannot tell from its shapes.
        steady = all(op.steady for op in (*preprocess, *postprocess))
        self.inline = backend.inline and self._device.xp is np and steady
        self.decoupled = backend.decoupled
        self.merges = backend.merges and not backend.decoupled
        self.batches_sequences = backend.batches_sequences
        self.device_lock_key: object | None = None if self._device.xp is np else self._device

    def run(self, requests: Sequence[InferRequest], observe: Observe) -> Iterable[Sequence[Outcome]]:
        if self._padder is not None:
            self._padded = self._padder.pad(requests)
        if self._bare and len(requests) == 1 and self._padded is None:
            (request,) = requests
            if request.into is None and not (request.outputs and asks_for_classes(request)):
                return self._stream_bare(request, observe) if self.decoupled else (self._run_bare(request, observe),)
        if self._joined and len(requests) > 1 and self._padded is None and are_plain(requests):
            return (self._run_together(requests, observe),)
        return self._run(requests, observe)

    def _run_bare(self, request: InferRequest, observe: Observe) -> Sequence[InferResponse]:
        """The short way: one request to a unary host model without operators. Its arrays pass through as they are."""
        wanted = self._wanted((request,)) if request.outputs else self._outputs
        begun = time.perf_counter()
        try:
            (raw,) = self._backend.infer(request.inputs, wanted, (request,))  # type: ignore[misc]
        except GatewayError:
            raise
        except Exception as error:
            raise failure_of(error, request.view.name) from error
        observe(("infer", time.perf_counter() - begun))
        return (InferResponse(self._given(raw, wanted, request)),)

    def _stream_bare(self, request: InferRequest, observe: Observe) -> Iterator[Sequence[InferResponse]]:
        """The short way of a decoupled model: each of its answers passes through as it is."""
        wanted = self._wanted((request,)) if request.outputs else self._outputs
        model, clock = request.view.name, time.perf_counter
        begun = clock()
        steps = iter(cast("Iterable[Tensors]", self._backend.infer(request.inputs, wanted, (request,))))
        try:
            while (raw := _next(steps, model)) is not None:
                observe(("infer", clock() - begun))
                yield (InferResponse(self._given(raw, wanted, request), final=False),)
                begun = clock()
        finally:
            close = getattr(steps, "close", None)
            if close is not None:  # a generator that is left before its end may have to clean up
                close()

    def _given(self, raw: Tensors, wanted: tuple[str, ...], request: InferRequest) -> Tensors:
        """What a host model gave to one request, as far as it was asked for. Raises ModelFailed, OutputRows."""
        outputs = asked_for(raw, wanted)
        if self._max_batch_size:
            rows = next(iter(request.inputs.values())).shape[:1] if request.inputs else None
            for array in outputs.values():
                if array.shape[:1] != rows:
                    check_rows(outputs, common_rows(request.inputs))  # which says what is wrong, if it is
        return outputs

    def _run_together(self, requests: Sequence[InferRequest], observe: Observe) -> Sequence[Outcome]:
        """The short way of several requests that want all outputs: rows are joined, and split when they are read."""
        begun = time.perf_counter()
        try:
            sizes, tensors = sizes_of(requests), join_rows(requests)
            joined = time.perf_counter()
            (raw,) = self._backend.infer(tensors, self._outputs, requests)  # type: ignore[misc]
        except GatewayError:
            raise
        except Exception as error:
            raise failure_of(error, requests[0].view.name) from error
        observe(("preprocess", joined - begun))
        observe(("infer", time.perf_counter() - joined))
        outputs = asked_for(raw, self._outputs)
        check_rows(outputs, sum(sizes))
        return Rows(outputs, sizes)

    def _run(self, requests: Sequence[InferRequest], observe: Observe) -> Iterator[Sequence[Outcome]]:
        """Memory may run out anywhere, and a device speak of its end when results are fetched."""
        relieve()
        wanted = self._wanted(requests)
        transfer = self._transfer
        steps: Iterator[Tensors] | None = None
        with device_failures(requests[0].view.name), transfer.batch(observe):
            transfer.bring(requests if self._padded is None else self._padded.requests)
            carried: Tensors = NOTHING
            try:
                while True:
                    with transfer.computing():
                        if steps is None:
                            tensors = self._prepared()
                            carried = {name: tensors[name] for name in self._carried if name in tensors}
                            steps = iter(cast("Iterable[Tensors]", self._infer(tensors, wanted, requests)))
                        raw = _next(steps, requests[0].view.name)
                        if raw is None:
                            return
                        transfer.lap("infer")
                        results = self._results({**raw, **carried} if carried else raw, wanted, requests)
                        if results.stays and not self.decoupled:
                            self._give(results, requests)
                    yield self._outcomes(results, requests)
                    if not self.decoupled:
                        return
            finally:
                close = getattr(steps, "close", None)
                if close is not None:  # a generator that is left before its end may have to clean up, on its device
                    with transfer.computing():
                        close()
                self._padded = None

    async def arun(self, requests: Sequence[InferRequest], observe: Observe) -> AsyncIterator[Sequence[Outcome]]:
        """What the model awaits, and on which stream it computes then, nobody knows: so what it is given is ready
        before it is called, and what it has enqueued on the default stream is waited for after it has answered. That,
        and the way back, is waited for in threads: the loop has others to serve.
        """
        if self._padder is not None:
            self._padded = self._padder.pad(requests)
        wanted = self._wanted(requests)
        transfer = self._transfer
        with transfer.batch(observe):
            transfer.bring(requests if self._padded is None else self._padded.requests)
            with transfer.computing():
                tensors = self._prepared()
            carried = {name: tensors[name] for name in self._carried if name in tensors}
            away = transfer if isinstance(transfer, CudaTransfer) else None
            if away is not None:
                await _in_thread(away.finish)
            begun = time.perf_counter()
            steps = cast("AsyncIterator[Tensors]", self._infer(tensors, wanted, requests))
            try:
                while True:
                    raw = await _anext(steps, requests[0].view.name)
                    if raw is None:
                        return
                    if away is not None:
                        await _in_thread(cast("CudaDevice", self._device).mark())
                    observe(("infer", time.perf_counter() - begun))
                    with transfer.computing():
                        results = self._results({**raw, **carried} if carried else raw, wanted, requests)
                    if away is None:
                        yield self._outcomes(results, requests)
                    else:
                        yield await _in_thread(partial(self._outcomes, results, requests))
                    begun = time.perf_counter()
            finally:
                await cast("Any", steps).aclose()
                self._padded = None

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

    def _prepared(self) -> Tensors:
        """What was brought, as the model takes it."""
        tensors = self._transfer.arrived()
        for op in self._preprocess:
            tensors = op(tensors, self._device.xp)
        self._transfer.lap("preprocess")
        return tensors

    def _results(self, raw: Tensors, wanted: tuple[str, ...], requests: Sequence[InferRequest]) -> BatchResults:
        """The outputs that somebody asked for, ready to leave the device."""
        if self._postprocess:
            raw = {name: self._device.put(array) for name, array in raw.items()}  # a class may give NumPy's on a GPU
        for op in self._postprocess:
            raw = op(raw, self._device.xp)
        tensors = asked_for(raw, wanted)
        if self._padded is not None:
            tensors = self._padded.without_rows(tensors)
        elif self._max_batch_size:
            check_rows(tensors, all_rows(requests))
        best = {name: self._best(name, tensors[name], k) for name, k in largest_k(requests).items()}
        stays = any(request.on_device for request in requests)
        placed = any(request.into for request in requests)
        whole = wanted_whole(requests) if best or placed or stays else None
        names = [name for name in tensors if whole is None or name in whole]
        found = [each for each in best.values() if isinstance(each, TopK)]
        leaving = [
            *[tensors[name] for name in names],
            *[array for each in found for array in (each.values, each.indices)],
        ]
        packed = self._transfer.pack(leaving)
        self._transfer.lap("postprocess")
        return BatchResults(tensors, names, best, packed, placed, stays)

    def _outcomes(self, results: BatchResults, requests: Sequence[InferRequest]) -> Sequence[Outcome]:
        """Everybody's own rows, on the host or where they are wanted."""
        arrays = iter(self._transfer.fetch(results.packed))
        outputs = dict(zip(results.names, arrays, strict=False))
        classes = {
            name: TopK(next(arrays), next(arrays)) if isinstance(best, TopK) else best
            for name, best in results.best.items()
        }
        outcomes = split_rows(outputs, requests, classes, results.tensors)
        if self._padded is not None and self._padded.cuts:
            outcomes = self._padded.own_lengths(outcomes, requests)
        if results.placed:
            with self._device.selected():
                outcomes = self._place(results.tensors, requests, outcomes)
        return [_not_final(outcome) for outcome in outcomes] if self.decoupled else outcomes

    def _give(self, results: BatchResults, requests: Sequence[InferRequest]) -> None:
        """Hand on what stays here, to be another model's inputs; this thread waits for it, others need not."""
        event = cast("CudaDevice", self._device).computed()
        for request, outcome in zip(requests, split_rows({}, requests, NOTHING, results.tensors), strict=True):
            if isinstance(request, ChainedRequest) and request.give is not None:
                request.give(cast("InferResponse", outcome), event)

    def _place(self, tensors: Tensors, requests: Sequence[InferRequest], outcomes: Sequence[Outcome]) -> list[Outcome]:
        """Copy outputs into their callers' memory, where it was given for them. Who has left may use it otherwise."""
        placed = []
        places: Sequence[slice | EllipsisType] = places_of(requests) if len(requests) > 1 else [...]
        for request, rows, outcome in zip(requests, places, outcomes, strict=True):
            if request.into and isinstance(outcome, InferResponse) and not request.cancellation.cut:
                outcome = place_outputs(tensors, request, rows, outcome, self._device)
            placed.append(outcome)
        return placed

    def _best(self, name: str, array: Array, k: int) -> TopK | GatewayError:
        """The best classes of an output, found where it is."""
        xp = np if isinstance(array, np.ndarray) else self._device.xp
        return best_classes(name, array, k, self._max_batch_size > 0, xp)


class RequestPipeline(Pipeline):
    """The executor over a backend that takes requests as they are: nothing is joined, nothing split."""

    def __init__(self, backend: Backend | RequestBackend, *others: Any) -> None:
        super().__init__(backend, *others)
        self._on_gpu = self._device.xp is not np
        self._alone: Any = cast("RequestBackend", backend).infer_alone
        if self._alone is not None and not self.decoupled:
            self.arun_alone = self._arun_alone

    async def arun(
        self, requests: Sequence[InferRequest], observe: Observe
    ) -> AsyncIterator[Sequence[InferResponse | GatewayError]]:
        if self._on_gpu:
            await _wait_for(requests)
        begun = time.perf_counter()
        answers = cast("RequestBackend", self._backend).infer_each(requests)
        async with contextlib.aclosing(cast("Any", answers)) as steps:
            async for outcomes in steps:
                observe(("infer", time.perf_counter() - begun))
                yield [self._finished(*each, observe) for each in zip(requests, outcomes, strict=True)]
                begun = time.perf_counter()

    async def _arun_alone(self, request: InferRequest, observe: Observe) -> Outcome:
        if self._on_gpu:
            await _wait_for((request,))
        begun = time.perf_counter()
        outcome = await self._alone(request)
        observe(("infer", time.perf_counter() - begun))
        return self._finished(request, outcome, observe)

    def _finished(self, request: InferRequest, outcome: Outcome, observe: Observe) -> Outcome:
        """The outputs that were asked for, in the model's order; such a model may leave some out. Best classes, or
        outputs in their caller's memory, if that was asked for.
        """
        if isinstance(outcome, GatewayError):
            return outcome
        wanted = self._wanted((request,))
        if not (request.into or asks_for_classes(request)):
            if (*outcome.outputs,) == wanted:
                return outcome
            given = outcome.outputs
            return replace(outcome, outputs={name: given[name] for name in wanted if name in given})
        try:
            with self._transfer.batch(observe):
                with self._transfer.computing():
                    results = self._results(outcome.outputs, wanted, (request,))
                (own,) = self._outcomes(results, (request,))
        except GatewayError as error:
            return error
        if isinstance(own, GatewayError):
            return own
        return InferResponse(own.outputs, outcome.parameters, outcome.final, own.classes)


async def _in_thread(wait: Callable[[], T]) -> T:
    """What it returns. Who is cancelled meanwhile goes on when it is over: it works with what the batch then frees."""
    waiting = asyncio.ensure_future(asyncio.to_thread(wait))
    try:
        return await asyncio.shield(waiting)
    except asyncio.CancelledError:
        await asyncio.wait([waiting])
        raise


async def _wait_for(requests: Sequence[InferRequest]) -> None:
    """Until the inputs that are on a GPU are what they say."""
    for event in ready_events(requests):
        await _in_thread(event.synchronize)


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


async def _anext(steps: AsyncIterator[Tensors], model: str) -> Tensors | None:
    """`_next` for a model on the event loop."""
    try:
        return await anext(steps)
    except StopAsyncIteration:
        return None
    except GatewayError:
        raise
    except Exception as error:
        raise failure_of(error, model) from error

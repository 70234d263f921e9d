"""One instance of a model on its device: rows joined, preprocessed, inferred, postprocessed, split again.

    join_rows -> put on the device -> preprocess ops -> Backend.infer -> postprocess ops -> back to the host ->
    split_rows

Two crossings per batch, no more: the joined rows go in once, and only outputs that somebody in the batch asked for
come out. A batch of one is neither joined nor split: its arrays pass through as they are.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np

from backends.device import Device
from gateway.canonical import InferRequest, InferResponse, Tensors, TensorSpec, common_rows
from gateway.errors import GatewayError, ModelFailed
from gateway.ports import Backend, BackendKind, Computation, ModelSource, Observe, Op

Specs = Mapping[str, TensorSpec]


def load(
    kind: BackendKind, source: ModelSource, instances: int, preprocess: Sequence[Op], postprocess: Sequence[Op]
) -> Computation:
    """Load every instance and fit its operators to it. Raises ValueError naming what does not fit."""
    backends = [kind.load(source) for _ in range(instances)]
    first = backends[0]
    inputs, required = _input_specs(source, first, preprocess)
    outputs = _output_specs(source, first, postprocess)
    pipelines = tuple(
        Pipeline(backend, preprocess, postprocess, tuple(outputs), source.max_batch_size, owner=number == 0)
        for backend in backends
        for number in range(backend.in_flight)
    )
    return Computation(
        pipelines,
        tuple(inputs.values()),
        tuple(outputs.values()),
        tuple(required.values()),
        first.platform,
        cast("Device", first.device).name,
    )


class Pipeline:
    """The executor that a scheduler drives; one at a time, from one thread.

    Of several over one backend, the owner closes it.
    """

    def __init__(
        self,
        backend: Backend,
        preprocess: Sequence[Op],
        postprocess: Sequence[Op],
        outputs: tuple[str, ...],
        max_batch_size: int,
        *,
        owner: bool = True,
    ) -> None:
        self._backend = backend
        self._owner = owner
        self._device: Device = backend.device
        self._preprocess = preprocess
        self._postprocess = postprocess
        self._outputs = outputs
        self._raw_outputs = tuple(spec.name for spec in backend.outputs)
        self._max_batch_size = max_batch_size
        self._bare = self._device.xp is np and not (preprocess or postprocess or backend.decoupled)
        self.runs_on = backend.runs_on
        self.inline = backend.inline and self._device.xp is np  # waiting for a GPU is no work for the event loop
        self.decoupled = backend.decoupled
        self.merges = backend.merges

    def run(self, requests: Sequence[InferRequest], observe: Observe) -> Iterable[Sequence[InferResponse]]:
        """See Executor."""
        if self._bare:
            return (self._run_bare(requests[0], observe),) if len(requests) == 1 else self._run(requests, observe)
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
            _check_rows(outputs, (common_rows(request.inputs),))
        return (InferResponse(outputs),)

    def _run_on_device(self, requests: Sequence[InferRequest], observe: Observe) -> Iterator[Sequence[InferResponse]]:
        """Whatever happens on a device happens on its stream."""
        with self._device.active():
            yield from self._run(requests, observe)

    def _run(self, requests: Sequence[InferRequest], observe: Observe) -> Iterator[Sequence[InferResponse]]:
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

    async def arun(self, requests: Sequence[InferRequest], observe: Observe) -> AsyncIterator[Sequence[InferResponse]]:
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
        return tuple([name for name in self._outputs if name in names])

    def _infer(
        self, tensors: Tensors, wanted: tuple[str, ...], requests: Sequence[InferRequest]
    ) -> Iterable[Tensors] | AsyncIterator[Tensors]:
        """Postprocessing may need outputs that nobody asked for; without it, only the wanted ones are computed."""
        return self._backend.infer(tensors, self._raw_outputs if self._postprocess else wanted, requests)

    def _before(self, requests: Sequence[InferRequest], observe: Observe) -> Tensors:
        begun = time.perf_counter()
        put = self._device.put
        tensors: Tensors = {name: put(array) for name, array in join_rows(requests).items()}
        for op in self._preprocess:
            tensors = op(tensors, self._device.xp)
        observe("preprocess", time.perf_counter() - begun)
        return tensors

    def _after(
        self, raw: Tensors, wanted: tuple[str, ...], requests: Sequence[InferRequest], observe: Observe
    ) -> Sequence[InferResponse]:
        begun = time.perf_counter()
        for op in self._postprocess:
            raw = op(raw, self._device.xp)
        get = self._device.get
        responses = split_rows({name: get(raw[name]) for name in wanted}, requests, self._max_batch_size)
        observe("postprocess", time.perf_counter() - begun)
        return [replace(each, final=False) for each in responses] if self.decoupled else responses


def last_line(error: BaseException) -> str:
    """What a user's exception says for itself, without a traceback: "ValueError: no such word"."""
    text = str(error)
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


def join_rows(requests: Sequence[InferRequest]) -> Tensors:
    """Concatenate every input on axis 0, on the host: [rows_i, *rest] -> [sum(rows_i), *rest], dtype kept, one copy
    each.

    One request is passed through without a copy. Source: Triton model configuration, dynamic batching.
    """
    if len(requests) == 1:
        return requests[0].inputs
    return {name: np.concatenate([request.inputs[name] for request in requests]) for name in requests[0].inputs}


def split_rows(outputs: Tensors, requests: Sequence[InferRequest], max_batch_size: int) -> list[InferResponse]:
    """Give every request its own rows of every output that it asked for, as views: [sum(rows_i), *rest] -> [rows_i,
    *rest].

    Raises ModelFailed naming an output whose axis 0 is not the batch. Requests that cannot be batched get everything.
    """
    rows = [common_rows(request.inputs) for request in requests]
    if max_batch_size:
        _check_rows(outputs, rows)
    if len(requests) == 1:
        return [InferResponse(_asked(outputs, requests[0]))]
    responses, start = [], 0
    for request, count in zip(requests, cast("list[int]", rows), strict=True):
        own = {name: array[start : start + count] for name, array in outputs.items()}
        responses.append(InferResponse(_asked(own, request)))
        start += count
    return responses


def _check_rows(outputs: Tensors, rows: Sequence[int | None]) -> None:
    """A request that cannot be batched may give anything; a batch gives as many rows as it got."""
    if None in rows:
        return
    total = sum(rows)  # type: ignore[arg-type]
    for name, array in outputs.items():
        if array.shape[:1] != (total,):
            raise ModelFailed(
                f"output '{name}' has shape {list(array.shape)}, "
                f"but its first dimension must be the {total} rows of the batch"
            )


def _asked(outputs: Tensors, request: InferRequest) -> Tensors:
    if not request.outputs:
        return outputs
    names = {output.name for output in request.outputs}
    return outputs if len(names) == len(outputs) else {name: array for name, array in outputs.items() if name in names}


# ---------------------------------------------------------------------------------------------- fitting specifications


def _input_specs(source: ModelSource, backend: Backend, preprocess: Sequence[Op]) -> tuple[Specs, Specs]:
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


def _output_specs(source: ModelSource, backend: Backend, postprocess: Sequence[Op]) -> Specs:
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

"""A model that another server computes.

What it takes and gives is what that server says of it when the model is loaded, unless the configuration declares it.
Without a batch dimension every request travels alone, and many at the same time; with one, requests that wait together
are joined, and the answer's rows split again. A caller's deadline goes along, and its call ends when it leaves.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from concurrent import futures
from dataclasses import replace
from functools import partial
from typing import Any, Final, cast

from tensorgate.backends.execution.device import Device
from tensorgate.backends.execution.rows import Rows, check_rows, join_rows, sizes_of
from tensorgate.backends.execution.spec_inference import max_batch_size
from tensorgate.backends.remote.call_scope import CallerLeft, RemoteCancellation, upstream_span
from tensorgate.backends.remote.forwarding import RemoteForwarder, may_forward
from tensorgate.backends.remote.grpc_connection import GrpcConnection
from tensorgate.backends.remote.http_connection import HttpConnection
from tensorgate.backends.remote.options import (
    RemoteOptions,
    UpstreamAccess,
    UpstreamOptions,
    access_of,
    remote_options,
    server_options,
)
from tensorgate.backends.remote.pool import Pool, collect
from tensorgate.backends.remote.server import RemoteServer
from tensorgate.backends.remote.tensor_mapping import TensorNames
from tensorgate.gateway.contract.backend import BackendKind, Described, ModelSource, RequestBackend, ServerKind
from tensorgate.gateway.contract.canonical import InferRequest, InferResponse
from tensorgate.gateway.contract.canonical import Sequence as RequestSequence
from tensorgate.gateway.contract.errors import (
    Cancelled,
    ErrorReason,
    Exhausted,
    GatewayError,
    ModelFailed,
    TimedOut,
    Unavailable,
)
from tensorgate.gateway.contract.forwarding import Forwarder
from tensorgate.gateway.contract.tensor import Array, Tensors
from tensorgate.gateway.contract.upstream import Ask, Await, Client, Description, UpstreamModel

_RETRY_S: Final = 0.1
_REMEMBERED_SHAPES: Final = 1024
_ABOUT_THE_SERVER: Final = (Cancelled, Exhausted, TimedOut, Unavailable)
"""What a server says of itself, and not of the requests: run alone, they would fare no better."""


class RemoteBackend(RequestBackend):
    """The model on this side. Where nobody says its tensors it has none, and whole calls alone reach it. Raises
    ValueError where the configuration asks for what cannot be, Unavailable where the server is not there.
    """

    device: Device
    forwarder: Forwarder | None

    def __init__(self, source: ModelSource) -> None:
        options: RemoteOptions = source.options
        upstream = options.upstream
        self._client = client = _client(source, upstream)
        self._on_loop = on_loop = cast("Await", source.on_loop)
        self._timeout_s = upstream.timeout_ms / 1000
        self._in, self._out = TensorNames("inputs", upstream.inputs), TensorNames("outputs", upstream.outputs)
        self._renames = bool(upstream.inputs or upstream.outputs)
        self._pool: Pool = on_loop(_open(client, upstream, access_of(upstream), source.name))
        self._pools: dict[str, Pool] = {client.transport: self._pool}
        try:
            declared = source.inputs and source.outputs
            described = Description() if declared else on_loop(self._ask(options.wait_seconds, upstream))
            self.inputs = source.inputs or self._in.here(described.inputs)
            self.outputs = source.outputs or self._out.here(described.outputs)
            forwards = may_forward(source, client, upstream)
            if not ((self.inputs and self.outputs) or forwards):
                raise ValueError(
                    f"{upstream.dialect} has no word for a model's tensors: inputs and outputs must be declared"
                )
            self.decoupled = described.decoupled if options.decoupled is None else options.decoupled
            if self.decoupled and client.streams == "no":
                raise ValueError(f"a decoupled model cannot be asked in {upstream.dialect} over {upstream.transport}")
            self.max_batch_size = max_batch_size(source, self.inputs, self.outputs) if self.inputs else 0
            there = self._in.there(self.inputs), self._out.there(self.outputs)
            self._description = Description(*there, self.decoupled, described.binary)
        except futures.CancelledError:  # the loop is about to end, and closes nothing any more
            raise
        except BaseException:
            on_loop(self._close())
            raise
        self.forwarder = None
        if forwards:
            if (other := upstream.other) is not None:
                beside = _client(source, other)
                self._pools[beside.transport] = on_loop(_open(beside, other, access_of(other), source.name))
            self.forwarder = RemoteForwarder(self._pools, upstream, source.name, client, options.in_flight)
        self._specs = {spec.name: spec for spec in self.outputs}
        self._fitting: set[tuple[Any, ...]] = set()
        self._all: tuple[str, ...] = tuple(self._specs) if source.outputs else ()
        self.merges = self.max_batch_size > 0 and not self.decoupled
        self.in_flight = options.in_flight
        self.platform = client.platform
        self.device = Device()

    def is_ready(self) -> bool:
        return self._pool.is_ready()

    def close(self) -> None:
        self._on_loop(self._close())

    async def _close(self) -> None:
        for pool in self._pools.values():
            await pool.close()

    async def infer_each(
        self, requests: Sequence[InferRequest]
    ) -> AsyncIterator[Sequence[InferResponse | GatewayError]]:
        if self.decoupled:
            (request,) = requests
            async with contextlib.aclosing(self._stream(request)) as answers:
                async for answer in answers:
                    yield (answer,)
        else:
            yield await self._outcomes(requests)

    async def _outcomes(self, requests: Sequence[InferRequest]) -> Sequence[InferResponse | GatewayError]:
        if len(requests) == 1:
            return (await self.infer_alone(requests[0]),)
        if any(request.sequence is not None for request in requests):
            return await asyncio.gather(*(self._outcome(request) for request in requests))
        return await self._together(requests)

    # ------------------------------------------------------------------------------------------------------------ unary

    async def infer_alone(self, request: InferRequest) -> InferResponse | GatewayError:
        inputs = request.inputs
        if request.into is not None:  # an input may lie on a GPU
            inputs = {name: self.device.put(array) for name, array in inputs.items()}
        requests = (request,)
        answer = await self._call(inputs, _names(requests), request, requests)
        if isinstance(answer, GatewayError):
            return answer
        return InferResponse(self._checked(answer.outputs, request), answer.parameters)

    async def _outcome(self, request: InferRequest) -> InferResponse | GatewayError:
        try:
            return await self.infer_alone(request)
        except GatewayError as error:
            return error

    async def _together(self, requests: Sequence[InferRequest]) -> Sequence[InferResponse | GatewayError]:
        """One call for all. What the server objects to is raised: each is then run again alone."""
        tensors = join_rows([_on_host(request, self.device) for request in requests])
        first = requests[0]
        joint = InferRequest(first.view, tensors, parameters=first.parameters, priority=first.priority)
        try:
            answer = await self._call(tensors, _names(requests), joint, requests)
        except _ABOUT_THE_SERVER as error:
            return [error] * len(requests)
        if isinstance(answer, GatewayError):
            return [answer] * len(requests)
        sizes = sizes_of(requests)
        check_rows(answer.outputs, sum(sizes))
        return [
            InferResponse(self._checked(own.outputs, request), answer.parameters)
            for own, request in zip(Rows(answer.outputs, sizes), requests, strict=True)
        ]

    async def _call(
        self, tensors: Tensors, outputs: Sequence[str], request: InferRequest, requests: Sequence[InferRequest]
    ) -> InferResponse | GatewayError:
        ask = self._encode(tensors, outputs or self._all, request, stream=False)
        with upstream_span(ask, requests), RemoteCancellation(requests) as cancellation:
            try:
                reply = await cancellation.wait(self._pool.call(ask, self._seconds(requests), _sequence(request)))
            except CallerLeft:
                return Cancelled("the caller has left")
            answer = self._client.decode(reply, self._description)
        return replace(answer, outputs=self._out.to_here(answer.outputs)) if self._renames else answer

    def _encode(self, tensors: Tensors, outputs: Sequence[str], request: InferRequest, *, stream: bool) -> Ask:
        """By the names that the other server has."""
        if self._renames:
            tensors = self._in.to_there(tensors)
            outputs = [self._out.theirs(name) for name in outputs]
        return self._client.encode(tensors, outputs, request, self._description, stream=stream)

    # ---------------------------------------------------------------------------------------------------------- streams

    async def _stream(self, request: InferRequest) -> AsyncGenerator[InferResponse, None]:
        on_host = _on_host(request, self.device)
        wanted = _names([request]) or self._all
        ask = self._encode(on_host.inputs, wanted, request, stream=True)
        pool, seconds = self._pool, self._seconds([request])
        with upstream_span(ask, [request]), RemoteCancellation([request]) as cancellation:
            async with contextlib.aclosing(pool.stream(ask, seconds, _sequence(request))) as replies:
                with contextlib.suppress(CallerLeft, StopAsyncIteration):
                    while True:
                        answer = self._client.decode_part(await cancellation.wait(anext(replies)), self._description)
                        if answer.outputs:
                            outputs = self._out.to_here(answer.outputs)
                            if wanted:  # not every protocol has a word for that
                                outputs = {name: array for name, array in outputs.items() if name in wanted}
                            yield InferResponse(self._part(outputs), answer.parameters, answer.final)
                        if answer.final:
                            return

    # ---------------------------------------------------------------------------------------------------------- loading

    async def _ask(self, seconds: float, upstream: UpstreamOptions) -> Description:
        """What the server says of the model, as soon as it says so. Raises Unavailable."""
        until = time.monotonic() + seconds
        questions = self._client.questions()
        if not questions:
            return Description()
        while True:
            try:
                replies = [await self._pool.call(question, max(1.0, seconds)) for question in questions]
                return self._client.description(replies)
            except GatewayError as error:
                if time.monotonic() >= until:
                    name, where = upstream.model or "the model", ", ".join(upstream.addresses)
                    raise Unavailable(f"upstream {where} does not describe {name}: {error}") from error
            await asyncio.sleep(_RETRY_S)

    # ---------------------------------------------------------------------------------------------------------- details

    def _seconds(self, requests: Sequence[InferRequest]) -> float | None:
        """How long the callers wait for a call, the most patient one's time."""
        limit = self._timeout_s or None
        deadlines = [request.deadline for request in requests if request.deadline is not None]
        if len(deadlines) < len(requests):
            return limit
        left = max(1e-3, max(deadlines) - time.monotonic())
        return left if limit is None else min(left, limit)

    def _checked(self, answer: Tensors, request: InferRequest) -> Tensors:
        """The outputs that were asked for, or all. Raises ModelFailed where they are not what the model declares."""
        if not request.outputs and [*answer] == [*self._specs]:
            return self._part(answer)
        wanted = [output.name for output in request.outputs] or self._specs
        for name in wanted:
            if name not in answer:
                raise ModelFailed(f"the upstream server gave no output '{name}'", ErrorReason.UPSTREAM)
        return self._part({name: answer[name] for name in self._specs if name in wanted})

    def _part(self, answer: Tensors) -> Tensors:
        """Outputs, checked; an answer of a stream may lack some. Raises ModelFailed."""
        fitted = answer
        for name, array in answer.items():
            if (name, array.dtype, array.shape) not in self._fitting:
                fitted = {**fitted, name: self._fitted(name, array)}
        return fitted

    def _fitted(self, name: str, array: Array) -> Array:
        """An output in the shape that is declared, but for dimensions of one behind it: MLServer declares a vector and
        answers a column. What fits as it is is remembered: shapes come again. Raises ModelFailed.
        """
        spec = self._specs.get(name)
        rank = array.ndim if spec is None or spec.shape is None else len(spec.shape)
        shape = array.shape[:rank] if set(array.shape[rank:]) == {1} else array.shape
        if spec is None or array.dtype != spec.dtype or not spec.accepts(shape):
            described = "none" if spec is None else f"{spec.datatype} {list(spec.shape or ())}"
            raise ModelFailed(
                f"the upstream server's output '{name}' is {array.dtype} {list(array.shape)}, declared is {described}",
                ErrorReason.UPSTREAM,
            )
        if shape != array.shape:
            return array.reshape(shape)
        if len(self._fitting) >= _REMEMBERED_SHAPES:
            self._fitting.clear()
        self._fitting.add((name, array.dtype, array.shape))
        return array


def _client(source: ModelSource, upstream: UpstreamOptions) -> Client:
    make = source.clients(upstream.dialect, upstream.transport) if source.clients is not None else None
    if make is None:
        raise ValueError(f"no server is asked in {upstream.dialect} over {upstream.transport}")
    version = source.version if upstream.versions else upstream.version
    return make(UpstreamModel(upstream.model or source.name, version, upstream.label, upstream.signature))


async def _open(client: Client, upstream: UpstreamOptions, access: UpstreamAccess, model: str) -> Pool:
    made: type[GrpcConnection | HttpConnection] = GrpcConnection if client.transport == "grpc" else HttpConnection
    connect = partial(made, max_bytes=upstream.max_answer_bytes, access=access)
    return Pool(client, connect, upstream.addresses, model)


def _names(requests: Sequence[InferRequest]) -> tuple[str, ...]:
    """The outputs that somebody asked for; none: all."""
    for request in requests:
        if not request.outputs:
            return ()
    return tuple(dict.fromkeys(output.name for request in requests for output in request.outputs))


def _on_host(request: InferRequest, device: Device) -> InferRequest:
    """Inputs in memory that a caller shares may lie on a GPU."""
    if request.into is None:
        return request
    return InferRequest(request.view, {name: device.put(array) for name, array in request.inputs.items()})


def _sequence(request: InferRequest) -> RequestSequence | None:
    """What has to go to the address that the requests before it went to."""
    return request.sequence if request.sequence is not None and request.sequence.id else None


def _describe(source: ModelSource) -> Described | None:
    """What the YAML declares; the server itself is asked when the model is loaded."""
    options: RemoteOptions = source.options
    if not (source.inputs and source.outputs):
        return None
    batch = max_batch_size(source, source.inputs, source.outputs)
    return Described(source.inputs, source.outputs, batch, bool(options.decoupled), as_requests=True)


KIND = BackendKind(
    RemoteOptions,
    RemoteBackend,
    versioned=False,
    numbers=lambda model: model.upstream.versions or (1,),
    describe=_describe,
    collect=collect,
    options_by_dialects=remote_options,
    servers=ServerKind(server_options, RemoteServer),
)

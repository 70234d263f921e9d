"""One loaded version of one model: what it takes, whether a request fits, and its scheduler."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, NoReturn, cast

from tensorgate.gateway.contract.canonical import (
    Answers,
    CancellationToken,
    InferRequest,
    InferResponse,
    ModelView,
    Trial,
    takes_whole_outputs,
)
from tensorgate.gateway.contract.errors import (
    DeviceLost,
    GatewayError,
    InvalidArgument,
    ModelFailed,
    ModelUnavailable,
    OutOfMemory,
    UnknownOutput,
    text_of,
)
from tensorgate.gateway.contract.execution import Computation, Executor
from tensorgate.gateway.contract.shortcuts import is_taken
from tensorgate.gateway.contract.tensor import (
    DEFAULT_SIGNATURE,
    NOTHING,
    Signature,
    Tensors,
    TensorSpec,
    check_inputs,
    common_rows,
)
from tensorgate.gateway.engine.pending_request import Admission, CompletedResponse, PendingRequest
from tensorgate.gateway.engine.queue import QueuePolicy
from tensorgate.gateway.engine.response_cache import ResponseCache
from tensorgate.gateway.engine.scheduler import Scheduler
from tensorgate.gateway.engine.scheduler_metrics import SchedulerMetrics
from tensorgate.gateway.engine.sequence_controls import SequencePolicy
from tensorgate.gateway.engine.warmup import FULL_RUNS, InThread, Sample, WarmUp, made_up, ones_of, rows_of, run_sample

_REMEMBERED_SHAPES: Final = 256
_SMALL_BYTES: Final = 16 << 10
EXAMPLE_RUNS: Final = 5
_ANY_LENGTH: Final = 1024
"""Up to this, requests of any length may share a batch."""
_DEFAULTS: Final = ("", DEFAULT_SIGNATURE)
"""What callers say who mean the default signature: some dialects always name one."""


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """What the configuration says of a model beyond its computation.

    `example` holds real inputs, by name, if it came with any; `warmup` are the operator's samples,
    `sizes` the only numbers of rows that batches have. `cached`: equal requests may get an
    answer that was given before.
    """

    policy: QueuePolicy = field(default_factory=QueuePolicy)
    sequences: SequencePolicy | None = None
    signatures: Mapping[str, Signature] = NOTHING
    labels: Mapping[str, tuple[str, ...]] = NOTHING
    mappings: Mapping[str, Any] = NOTHING
    example: Tensors = NOTHING
    warmup: tuple[Sample, ...] = ()
    sizes: tuple[int, ...] = ()
    configuration: Mapping[str, Any] = NOTHING
    cached: bool = False


@dataclass(slots=True, eq=False)
class AdmissionCheck:
    """Whether a request fits the computation, remembered by input names, dtypes and shapes: a repeated shape costs
    one look-up. `signatures` are those that the computation itself tells apart.

    `seconds` is the time of a small request, as warm-up measured it: the first guess for shapes not seen yet.
    `any_shape`: requests by a signature may have other shapes than required; their rows never meet those of others.
    `sees_requests`: the computation is shown the signature, and whether a stream is wanted; who differs in it shares no
    batch.
    `ragged` are the axes of inputs in which requests that share a batch may differ.
    """

    name: str
    required: Mapping[str, TensorSpec]
    max_batch_size: int
    merges: bool = True
    seconds: float = 1.0
    signatures: Mapping[str, Signature] = NOTHING
    any_shape: bool = False
    sees_requests: bool = False
    ragged: Mapping[str, tuple[int, ...]] = NOTHING
    # Never stale: a check is one version's, and the key has all that _check looks at.
    _known: dict[tuple[Any, ...], Admission] = field(default_factory=dict)
    _companies: dict[Hashable, object] = field(default_factory=dict)

    def admit(self, request: InferRequest) -> Admission:
        """Raises InvalidArgument's kinds if the computation cannot take these inputs or has not these outputs."""
        inputs = request.inputs
        key: tuple[Any, ...]
        if len(inputs) == 1:  # the usual case
            ((name, array),) = inputs.items()
            key = ((name, array.dtype, array.shape),)
        else:
            key = tuple([(name, array.dtype, array.shape) for name, array in inputs.items()])
        own = self.signatures.get(request.signature) if self.signatures else None
        any_shape = own is not None or (self.any_shape and bool(request.signature))
        if own is not None:
            key = (own.name, *key)
        elif any_shape:
            key = (None, *key)
        shown = None
        if self.sees_requests and (request.stream or request.signature not in _DEFAULTS):
            shown = "" if request.signature in _DEFAULTS else request.signature, request.stream
            key = (shown, *key)
        ragged = self.ragged if self.ragged and takes_whole_outputs(request) else NOTHING
        if ragged:
            key = (True, *key)
        admission = self._known.get(key)
        if admission is None:
            admission = self._check(inputs, own, any_shape, ragged, shown)
            if len(self._known) >= _REMEMBERED_SHAPES:
                self._known.clear()
                self._companies.clear()
            self._known[key] = admission
        if request.outputs:
            _check_outputs(request, own)
        return admission

    def _check(
        self,
        inputs: Tensors,
        own: Signature | None,
        any_shape: bool,
        ragged: Mapping[str, tuple[int, ...]],
        shown: Hashable,
    ) -> Admission:
        """The shapes of a signature's inputs are for its function to check: TensorFlow Serving does not."""
        required = self.required if own is None else {spec.name: spec for spec in own.inputs.values()}
        if any_shape:
            required = {name: replace(spec, shape=None) for name, spec in required.items()}
        rows = common_rows(inputs) if self.max_batch_size else None
        if rows is None:
            check_inputs(self.name, inputs, required, 0)
            return Admission(1, None, self._guess(inputs))
        check_inputs(self.name, inputs, required, self.max_batch_size)
        if not self.merges:
            return Admission(rows, None, self._guess(inputs))
        key: Any = tuple(
            sorted(
                (name, str(array.dtype), _trailing(array.shape, ragged.get(name, ()))) for name, array in inputs.items()
            )
        )
        if ragged:  # those of the same shapes that are not lengthened stay apart
            key = (True, key)
        # Who may share a batch is looked up for every request: an object is compared in no time, all this is not.
        company = self._companies.setdefault((own and own.name, shown, key), object())
        return Admission(rows, company, self._guess(inputs))

    def _guess(self, inputs: Tensors) -> float:
        """A small request of another shape is likely as quick as the small one of the warm-up; of a large one nothing
        is known.
        """
        return self.seconds if sum(array.nbytes for array in inputs.values()) <= _SMALL_BYTES else 1.0


def _check_outputs(request: InferRequest, own: Signature | None) -> None:
    """Raises UnknownOutput."""
    outputs = request.view.outputs if own is None else {spec.name for spec in own.outputs.values()}
    for output in request.outputs:
        if output.name not in outputs:
            raise UnknownOutput(output.name, request.view.name)


def _trailing(shape: tuple[int, ...], ragged: tuple[int, ...]) -> tuple[int, ...]:
    """The shape of a row as far as rows that share a batch must agree in it. Lengths along ragged axes may differ, but
    large ones by less than half: what a caller sends must not cost others many times the memory that it is.
    """
    return tuple(
        [-(max(size, _ANY_LENGTH) - 1).bit_length() if axis in ragged else size for axis, size in enumerate(shape)][1:]
    )


class ClosedScheduler:
    """What is left of a scheduler."""

    queued = running = 0

    def __init__(self, name: str) -> None:
        self._name = name

    def submit(self, request: InferRequest, *, awaited: bool = False) -> NoReturn:
        raise ModelUnavailable(self._name)

    async def close(self) -> None:
        """It is."""

    def give_up(self, why: type[GatewayError] = ModelUnavailable) -> None:
        """Nobody waits."""


class LostScheduler(ClosedScheduler):
    """What is left of a model whose device does no more work."""

    def submit(self, request: InferRequest, *, awaited: bool = False) -> NoReturn:
        raise DeviceLost(self._name)


class Model:
    """A loaded version: its view, the scheduler behind it, and its statistics since then.

    Made on the event loop once the computation is loaded. `load_seconds` is how long that took, warm-up included.
    """

    def __init__(
        self,
        name: str,
        version: int,
        versions: tuple[int, ...],
        computation: Computation,
        plan: ModelSpec,
        metrics: SchedulerMetrics,
        cache: ResponseCache | None = None,
    ) -> None:
        self.name = name
        self.version = version
        self.devices = computation.places
        self.counters = metrics.counters
        self._metrics = metrics
        self._cache = cache if plan.cached and is_taken("response_cache") else None
        self.load_seconds = 0.0
        self.computation = computation
        sequences = plan.sequences
        seen = computation if sequences is None else sequences.visible(computation)
        inputs = {spec.name: spec for spec in seen.inputs}
        outputs = {spec.name: _labelled(spec, plan.labels) for spec in seen.outputs}
        everything = {DEFAULT_SIGNATURE: Signature(DEFAULT_SIGNATURE, inputs, outputs)}
        required = {spec.name: spec for spec in seen.required}
        merges = computation.executors[0].merges and plan.policy.batching
        own = computation.signatures
        self._has_example = bool(plan.example)
        self._example: Tensors = plan.example or {key: ones_of(spec) for key, spec in inputs.items()}
        self._samples = plan.warmup
        self._sizes = plan.sizes
        self._admission_check = AdmissionCheck(
            name,
            required,
            plan.policy.max_batch_size,
            merges,
            signatures=own,
            any_shape=computation.any_shape,
            sees_requests=computation.sees_requests,
            ragged=computation.ragged,
        )
        self._scheduler: Scheduler | ClosedScheduler = Scheduler(
            name,
            computation.executors,
            plan.policy,
            self._admission_check.admit,
            metrics,
            sequences,
            computation.devices,
        )
        self._sequence_inputs = sequences.first_inputs() if sequences is not None else NOTHING
        self.view = ModelView(
            name=name,
            version=version,
            versions=versions,
            inputs=inputs,
            outputs=outputs,
            signatures={**(own or everything), **plan.signatures},
            max_batch_size=plan.policy.max_batch_size,
            platform=computation.platform,
            handle=self,
            decoupled=computation.executors[0].decoupled,
            merges=merges,
            sees_requests=computation.sees_requests,
            mappings=plan.mappings,
            example_inputs=self._example,
            configuration=plan.configuration,
            devices=computation.places,
            instances=computation.instances,
        )

    @property
    def queued(self) -> int:
        return self._scheduler.queued

    @property
    def running(self) -> int:
        return self._scheduler.running

    def is_ready(self) -> bool:
        """Whether requests should come now."""
        return self.computation.is_ready()

    def submit(self, request: InferRequest, *, awaited: bool = False) -> Answers:
        if self._cache is None:
            return self._scheduler.submit(request, awaited=awaited)
        return self._submit_cached(self._cache, request)

    def _submit_cached(self, cache: ResponseCache, request: InferRequest) -> Answers:
        """From the cache if it knows the answer, else from the model, and into the cache."""
        began = time.monotonic()
        key = cache.key(self, request)
        if key is None:
            return self._scheduler.submit(request)
        known = cache.get(key)
        took = time.monotonic() - began
        if known is not None:
            request.cancellation.end()
            self._metrics.hit(request, began, took)
            return CompletedResponse(known)
        answers = cast("PendingRequest | CompletedResponse", self._scheduler.submit(request))  # not awaited: not inline

        def keep(answer: InferResponse) -> None:
            begun = time.monotonic()
            if self._cache is not None:  # it was not unloaded meanwhile
                with contextlib.suppress(MemoryError):  # the caller gets the answer all the same
                    cache.put(key, answer, request)
            self.counters.misses.add(took + time.monotonic() - begun)

        answers.call_on_answer(keep)
        return answers

    @property
    def is_cached(self) -> bool:
        """Whether equal requests may get an answer that was given before."""
        return self._cache is not None

    async def close(self) -> None:
        """Refuse what comes, finish what was accepted, give memory back."""
        await self._scheduler.close()
        if self._cache is not None:
            self._cache.forget(self)
            self._cache = None
        self._scheduler = ClosedScheduler(self.name)  # whoever still knows the view must not keep the weights alive
        self.computation = replace(self.computation, executors=(), is_ready=lambda: False)

    def give_up(self) -> None:
        """Tell everybody who still waits that there will be no answer."""
        self._scheduler.give_up()

    def lose_device(self) -> None:
        """Whoever waits, and whoever comes, learns at once that there will be no answer. Nothing is given back: what
        has lost its device cannot even be closed.
        """
        self._scheduler.give_up(DeviceLost)
        self._scheduler = LostScheduler(self.name)
        self.computation = replace(self.computation, is_ready=lambda: False)

    async def warm_up(self, in_thread: InThread = asyncio.to_thread) -> WarmUp | None:
        """Run every executor on the operator's samples, which it must answer, and where a run has no effects beyond
        its answer on an example: alone, and, if there are no samples, as a full batch where that runs on a GPU. None
        where nothing ran.

        The quickest run is what the scheduler goes by until requests have been measured. Raises ValueError naming the
        sample.
        """
        times = []
        computation = self.computation
        devices = computation.devices or (computation.device,) * len(computation.executors)
        for executor, device in zip(computation.executors, devices, strict=True):
            if executor.inline or computation.pure:
                times += await self._run_example(executor, in_thread)
                if not self._samples:
                    await self._run_full(executor, device, in_thread)
            for sample in self._samples:
                await self._run_sample(executor, sample, in_thread)
        self._samples = ()
        if not times:
            return None
        self._admission_check.seconds = min(times)
        return WarmUp(times[0], min(times))

    async def _run_example(self, executor: Executor, in_thread: InThread) -> list[float]:
        """What was made up, the model may refuse: then longer ones are tried, and the first that it takes is kept."""
        if self._has_example:
            request = InferRequest(self.view, {**self._example, **self._sequence_inputs})
            return await run_sample(executor, request, EXAMPLE_RUNS, in_thread)
        refused: tuple[type[GatewayError], ...] = (InvalidArgument, ModelFailed)  # numbers can be wrong, too
        for example in (self._example, *made_up([*self.view.inputs.values()], self.view.max_batch_size > 0)):
            request = InferRequest(self.view, {**example, **self._sequence_inputs}, cancellation=Trial())
            with contextlib.suppress(*refused):
                times = await run_sample(executor, request, EXAMPLE_RUNS, in_thread)
                self._example = example
                return times
            refused = (InvalidArgument, ModelFailed, OutOfMemory)
        return []

    async def _run_full(self, executor: Executor, device: str, in_thread: InThread) -> None:
        """On a GPU kernels are chosen for shapes, and memory is taken for good. A host has neither, and runs only sizes
        that the operator has chosen. What is hidden from callers stands for one row: a model of sequences goes without.
        Nobody has promised that a full batch of the example is one that the model takes, or that fits into memory.
        """
        example = self._example
        if not self.view.max_batch_size or self._sequence_inputs or common_rows(example) != 1:
            return
        for rows in self._sizes or ((self.view.max_batch_size,) if device != "cpu" else ()):
            if rows > 1:
                with contextlib.suppress(InvalidArgument, OutOfMemory):
                    cancellation = CancellationToken() if self._has_example else Trial()
                    request = InferRequest(self.view, rows_of(example, rows), cancellation=cancellation)
                    await run_sample(executor, request, FULL_RUNS, in_thread)

    async def _run_sample(self, executor: Executor, sample: Sample, in_thread: InThread) -> None:
        sequence_inputs = (
            rows_of(self._sequence_inputs, common_rows(sample.inputs) or 1)
            if self.view.max_batch_size
            else self._sequence_inputs
        )
        request = InferRequest(self.view, {**sample.inputs, **sequence_inputs})
        try:
            self._admission_check.admit(request)
            await run_sample(executor, request, sample.count, in_thread)
        except Exception as error:
            raise ValueError(f"{sample.name}: {text_of(error) or type(error).__name__}") from error


def _labelled(spec: TensorSpec, labels: Mapping[str, tuple[str, ...]]) -> TensorSpec:
    if spec.name not in labels:
        return spec
    return TensorSpec(spec.name, spec.dtype, spec.shape, spec.optional, labels[spec.name])

"""One loaded version of one model: what it takes, whether a request fits, and its scheduler."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final, NoReturn, cast

from tensorgate.gateway.contract.canonical import (
    Answers,
    CancellationToken,
    InferRequest,
    InferResponse,
    ModelView,
    Trial,
)
from tensorgate.gateway.contract.dialect import WarmupRequest
from tensorgate.gateway.contract.errors import (
    DeviceLost,
    GatewayError,
    InvalidArgument,
    ModelFailed,
    ModelUnavailable,
    OutOfMemory,
    text_of,
)
from tensorgate.gateway.contract.execution import Computation, Executor
from tensorgate.gateway.contract.metrics import GoalStatus
from tensorgate.gateway.contract.shortcuts import is_taken
from tensorgate.gateway.contract.tensor import (
    DEFAULT_SIGNATURE,
    NOTHING,
    Signature,
    Tensors,
    TensorSpec,
    common_rows,
)
from tensorgate.gateway.engine.admission import Admission, AdmissionCheck
from tensorgate.gateway.engine.fair_scheduler import FairScheduler
from tensorgate.gateway.engine.pending_request import CompletedResponse
from tensorgate.gateway.engine.queue import QueuePolicy
from tensorgate.gateway.engine.response_cache import ResponseCache
from tensorgate.gateway.engine.scheduler import Scheduler
from tensorgate.gateway.engine.scheduler_metrics import SchedulerMetrics
from tensorgate.gateway.engine.sequence_controls import SequencePolicy
from tensorgate.gateway.engine.shares import Shares
from tensorgate.gateway.engine.token_budget import TokenBudget
from tensorgate.gateway.engine.warmup import (
    FULL_RUNS,
    MEASURING_SECONDS,
    SIZE_RUNS,
    InThread,
    Sample,
    WarmUp,
    made_up,
    ones_of,
    rows_of,
    run_sample,
    sizes_to_measure,
)

EXAMPLE_RUNS: Final = 5


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """What the configuration says of a model beyond its computation.

    `example` holds real inputs, by name, if it came with any; `warmup` are the operator's samples,
    `sizes` the only numbers of rows that batches have. `cached`: equal requests may get an
    answer that was given before. `budget`: of the tokens that its batches have.
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
    budget: TokenBudget | None = None


Answer = Callable[[InferRequest], InferResponse | GatewayError | Answers]


class ClosedScheduler:
    """In place of the scheduler of a model that takes nothing any more: it refuses every request with `error`."""

    queued = running = 0
    queued_tokens: int | None = None
    is_quiet = True
    goal_queue = None

    def __init__(self, name: str, error: type[ModelUnavailable] | type[DeviceLost] = ModelUnavailable) -> None:
        self._name = name
        self._error = error

    def submit(self, request: InferRequest) -> NoReturn:
        raise self._error(self._name)

    answer = submit

    async def close(self) -> None:
        """Nothing is left to be closed."""

    def give_up(self, why: type[GatewayError] = ModelUnavailable) -> None:
        """Nobody waits for an answer."""


class _Absent:
    """The handle of a version that is not loaded: it is looked at, and not asked."""

    def __init__(self, name: str) -> None:
        self._name = name

    def is_ready(self) -> bool:
        """It would be loaded for whoever asks."""
        return True

    def submit(self, request: InferRequest) -> NoReturn:
        raise ModelUnavailable(self._name)

    answer = submit


def absent_view(
    name: str, version: int, versions: tuple[int, ...], computation: Computation, spec: ModelSpec
) -> ModelView:
    """How callers would see a version that is not loaded; `computation` tells its tensors and runs nothing."""
    inputs = {each.name: each for each in computation.inputs}
    outputs = {each.name: _labelled(each, spec.labels) for each in computation.outputs}
    return ModelView(
        name=name,
        version=version,
        versions=versions,
        inputs=inputs,
        outputs=outputs,
        signatures={DEFAULT_SIGNATURE: Signature(DEFAULT_SIGNATURE, inputs, outputs), **spec.signatures},
        max_batch_size=spec.policy.max_batch_size,
        platform=computation.platform,
        handle=_Absent(name),
        decoupled=computation.executors[0].decoupled,
        mappings=spec.mappings,
        configuration=spec.configuration,
    )


def listed_view(name: str, mappings: Mapping[str, Any]) -> ModelView:
    """A model that is not loaded, as far as its entry tells of it: to be listed."""
    return ModelView(name, 0, (), NOTHING, NOTHING, NOTHING, 0, "", _Absent(name), mappings=mappings)


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
        shares: Shares | None = None,
    ) -> None:
        """With `shares`, callers wait by theirs."""
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
        schedule = Scheduler if shares is None else partial(FairScheduler, shares)
        self._use(
            schedule(
                name,
                computation.executors,
                plan.policy,
                self._admission_check.admit,
                metrics,
                sequences,
                computation.devices,
                plan.budget,
            )
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
            forwarder=None if sequences or plan.cached or plan.policy != QueuePolicy() else computation.forwarder,
        )

    def _use(self, scheduler: Scheduler | ClosedScheduler) -> None:
        """Let a scheduler take requests from now on: directly, unless answers are cached."""
        self._scheduler = scheduler
        is_cached = self._cache is not None
        self.submit: Callable[[InferRequest], Answers] = self._submit_cached if is_cached else scheduler.submit
        """See contract.canonical.Handle. So for `answer`."""
        self.answer: Answer = self._answer_cached if is_cached else scheduler.answer

    @property
    def queued(self) -> int:
        return self._scheduler.queued

    @property
    def queued_tokens(self) -> int | None:
        return self._scheduler.queued_tokens

    @property
    def running(self) -> int:
        return self._scheduler.running

    @property
    def is_quiet(self) -> bool:
        """Whether no request and no sequence is under way."""
        return self._scheduler.is_quiet

    @property
    def goal(self) -> GoalStatus | None:
        """How its goal is held; None where it has none."""
        queue = self._scheduler.goal_queue
        return None if queue is None else queue.goal.status()

    def is_ready(self) -> bool:
        """Whether requests should come now."""
        return self.computation.is_ready()

    def _submit_cached(self, request: InferRequest) -> Answers:
        found = self._answer_cached(request, self._scheduler.submit)
        return CompletedResponse(found) if isinstance(found, InferResponse) else cast("Answers", found)

    def _answer_cached(
        self, request: InferRequest, answer: Answer | None = None
    ) -> InferResponse | GatewayError | Answers:
        """From the cache if it knows the answer, else from the model, and into the cache. `answer` is the scheduler's,
        or its `submit`, for what the cache has no place for.
        """
        began = time.monotonic()
        cache = self._cache
        key = None if cache is None else cache.key(self, request)
        if cache is None or key is None:
            return (answer or self._scheduler.answer)(request)
        known = cache.get(key)
        took = time.monotonic() - began
        if known is not None:
            self._metrics.hit(request, began, took)
            return known
        answers = self._scheduler.submit(request)  # not in the caller's steps: the answer is kept whoever leaves

        def keep(answer: InferResponse) -> None:
            begun = time.monotonic()
            if self._cache is not None:  # it was not unloaded meanwhile
                with contextlib.suppress(MemoryError):  # the caller gets the answer all the same
                    cache.put(key, answer, request)
            self.counters.misses.add(took + time.monotonic() - begun)

        answers.call_on_answer(keep)
        return answers

    @property
    def example_seconds(self) -> float:
        """How long a small request is likely to run, as warm-up measured it; 1 where nothing ran."""
        return self._admission_check.seconds

    @property
    def is_traced(self) -> bool:
        """Whether requests leave traces now."""
        return self._metrics.tracer.on

    def admission_of(self, request: InferRequest) -> Admission:
        """What the model says of a request. Raises InvalidArgument's kinds for one that it does not take."""
        return self._admission_check.admit(request)

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
        self._use(ClosedScheduler(self.name))  # whoever still knows the view must not keep the weights alive
        self.computation = replace(self.computation, executors=(), is_ready=lambda: False)

    def give_up(self) -> None:
        """Tell everybody who still waits that there will be no answer."""
        self._scheduler.give_up()

    def lose_device(self) -> None:
        """Whoever waits, and whoever comes, learns at once that there will be no answer. Nothing is given back: what
        has lost its device cannot even be closed.
        """
        self._scheduler.give_up(DeviceLost)
        self._use(ClosedScheduler(self.name, DeviceLost))
        self.computation = replace(self.computation, is_ready=lambda: False)

    async def warm_up(
        self, in_thread: InThread = asyncio.to_thread, beside: Sequence[WarmupRequest] = ()
    ) -> WarmUp | None:
        """Run every executor on the operator's samples and on the requests that lie beside the version, which it must
        answer, and where a run has no effects beyond its answer on an example: alone, and, if there are no samples, as
        a full batch where that runs on a GPU. None where nothing ran.

        The quickest run is what the scheduler goes by until requests have been measured. Raises ValueError naming the
        sample.
        """
        times = []
        computation, queue = self.computation, self._scheduler.goal_queue
        devices = computation.devices or (computation.device,) * len(computation.executors)
        for executor, device in zip(computation.executors, devices, strict=True):
            if executor.inline or computation.pure:
                times += await self._run_example(executor, in_thread)
                if not self._samples:
                    await self._run_full(executor, device, in_thread)
                if queue is not None:
                    await self._run_sizes(executor, device, in_thread, queue.learn)
            for sample in self._samples:
                each = self._sample_request(sample)
                took = await self._run_request(executor, each, in_thread)
                if queue is not None:
                    queue.learn(device, common_rows(each.request.inputs) or 1, min(took))
            for each in beside:
                await self._run_request(executor, each, in_thread)
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

    async def _run_sizes(
        self, executor: Executor, device: str, in_thread: InThread, learn: Callable[[str, int, float], None]
    ) -> None:
        """For a goal: how long batches of several sizes take. See `_run_full` for what has no rows to add."""
        example = self._example
        if common_rows(example) != 1 or self._sequence_inputs:
            return
        spent = 0.0
        for rows in sizes_to_measure(self.view.max_batch_size, self._sizes):
            request = InferRequest(self.view, rows_of(example, rows), cancellation=Trial())
            try:
                times = await run_sample(executor, request, SIZE_RUNS, in_thread)
            except (InvalidArgument, ModelFailed, OutOfMemory):
                return
            learn(device, rows, min(times))
            spent += sum(times)
            if spent > MEASURING_SECONDS:
                return

    def _sample_request(self, sample: Sample) -> WarmupRequest:
        sequence_inputs = (
            rows_of(self._sequence_inputs, common_rows(sample.inputs) or 1)
            if self.view.max_batch_size
            else self._sequence_inputs
        )
        request = InferRequest(self.view, {**sample.inputs, **sequence_inputs})
        return WarmupRequest(sample.name, request, sample.count)

    async def _run_request(self, executor: Executor, each: WarmupRequest, in_thread: InThread) -> list[float]:
        try:
            self._admission_check.admit(each.request)
            return await run_sample(executor, each.request, each.count, in_thread)
        except Exception as error:
            raise ValueError(f"{each.name}: {text_of(error) or type(error).__name__}") from error


def _labelled(spec: TensorSpec, labels: Mapping[str, tuple[str, ...]]) -> TensorSpec:
    if spec.name not in labels:
        return spec
    return TensorSpec(spec.name, spec.dtype, spec.shape, spec.optional, labels[spec.name])

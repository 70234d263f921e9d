"""One loaded version of one model: what it takes, whether a request fits, and its scheduler."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, NoReturn

import numpy as np

from gateway.canonical import (
    BYTES,
    NOTHING,
    Array,
    InferRequest,
    Signature,
    Tensors,
    TensorSpec,
    check_inputs,
    common_rows,
)
from gateway.errors import DeviceLost, GatewayError, InvalidArgument, ModelUnavailable, UnknownOutput
from gateway.hidden import SequencePolicy
from gateway.job import Admission
from gateway.meter import Meter
from gateway.ports import Answers, Computation, ModelView
from gateway.scheduler import Scheduler
from gateway.waiting import QueuePolicy

DEFAULT_SIGNATURE: Final = "serving_default"
_REMEMBERED_SHAPES: Final = 256
_SMALL_BYTES: Final = 16 << 10


@dataclass(frozen=True, slots=True)
class ModelPlan:
    """What the configuration says of a model beyond its computation.

    `example` holds real inputs, by name, if it came with any.
    """

    policy: QueuePolicy = field(default_factory=QueuePolicy)
    sequences: SequencePolicy | None = None
    signatures: Mapping[str, Signature] = NOTHING
    labels: Mapping[str, tuple[str, ...]] = NOTHING
    mappings: Mapping[str, Any] = NOTHING
    example: Tensors = NOTHING
    configuration: Mapping[str, Any] = NOTHING


@dataclass(frozen=True, slots=True)
class WarmUp:
    """How a model was warmed up: the time of its first run, and of its quickest, in seconds."""

    first: float
    best: float


@dataclass(slots=True, eq=False)
class Gate:
    """Whether a request fits the computation, remembered by input names, dtypes and shapes: a repeated shape costs
    one look-up. `signatures` are those that the computation itself tells apart.

    `seconds` is the time of a small request, as warm-up measured it: the first guess for shapes not seen yet.
    `any_shape`: requests by a signature may have other shapes than required; their rows never meet those of others.
    """

    name: str
    required: Mapping[str, TensorSpec]
    max_batch_size: int
    merges: bool = True
    seconds: float = 1.0
    signatures: Mapping[str, Signature] = NOTHING
    any_shape: bool = False
    _known: dict[tuple[Any, ...], Admission] = field(default_factory=dict)

    def admit(self, request: InferRequest) -> Admission:
        """Raises InvalidArgument's kinds if the computation cannot take these inputs or has not these outputs."""
        inputs = request.inputs
        key: tuple[Any, ...] = tuple([(name, array.dtype, array.shape) for name, array in inputs.items()])
        own = self.signatures.get(request.signature) if self.signatures else None
        any_shape = own is not None or (self.any_shape and bool(request.signature))
        if own is not None:
            key = (own.name, *key)
        elif any_shape:
            key = (None, *key)
        admission = self._known.get(key)
        if admission is None:
            admission = self._check(inputs, own, any_shape)
            if len(self._known) >= _REMEMBERED_SHAPES:
                self._known.clear()
            self._known[key] = admission
        outputs = request.view.outputs if own is None else {spec.name for spec in own.outputs.values()}
        for output in request.outputs:
            if output.name not in outputs:
                raise UnknownOutput(output.name, request.view.name)
        return admission

    def _check(self, inputs: Tensors, own: Signature | None, any_shape: bool) -> Admission:
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
        key = tuple(sorted((name, str(array.dtype), array.shape[1:]) for name, array in inputs.items()))
        return Admission(rows, key if own is None else (own.name, key), self._guess(inputs))

    def _guess(self, inputs: Tensors) -> float:
        """A small request of another shape is likely as quick as the small one of the warm-up; of a large one nothing
        is known.
        """
        return self.seconds if sum(array.nbytes for array in inputs.values()) <= _SMALL_BYTES else 1.0


class Closed:
    """What is left of a scheduler."""

    queued = running = 0

    def __init__(self, name: str) -> None:
        self._name = name

    def submit(self, request: InferRequest) -> NoReturn:
        raise ModelUnavailable(self._name)

    async def close(self) -> None:
        """It is."""

    def give_up(self, why: type[GatewayError] = ModelUnavailable) -> None:
        """Nobody waits."""


class Lost(Closed):
    """What is left of a model whose device does no more work."""

    def submit(self, request: InferRequest) -> NoReturn:
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
        plan: ModelPlan,
        meter: Meter,
    ) -> None:
        self.name = name
        self.version = version
        self.devices = computation.places
        self.counters = meter.counters
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
        self._gate = Gate(
            name, required, plan.policy.max_batch_size, merges, signatures=own, any_shape=computation.any_shape
        )
        self._scheduler: Scheduler | Closed = Scheduler(
            name, computation.executors, plan.policy, self._gate.admit, meter, sequences, computation.devices
        )
        self._hidden = sequences.first_inputs() if sequences is not None else NOTHING
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
            mappings=plan.mappings,
            example_inputs=plan.example or {key: _example(spec) for key, spec in inputs.items()},
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

    def submit(self, request: InferRequest) -> Answers:
        return self._scheduler.submit(request)

    async def close(self) -> None:
        """Refuse what comes, finish what was accepted, give memory back."""
        await self._scheduler.close()
        self._scheduler = Closed(self.name)  # whoever still knows the view must not keep the weights alive
        self.computation = replace(self.computation, executors=(), is_ready=lambda: False)

    def give_up(self) -> None:
        """Tell everybody who still waits that there will be no answer."""
        self._scheduler.give_up()

    def lose_device(self) -> None:
        """Whoever waits, and whoever comes, learns at once that there will be no answer. Nothing is given back: what
        has lost its device cannot even be closed.
        """
        self._scheduler.give_up(DeviceLost)
        self._scheduler = Lost(self.name)
        self.computation = replace(self.computation, is_ready=lambda: False)

    def warm_up(self, runs: int = 5) -> WarmUp | None:
        """Run every instance on the example, in the calling thread; None where a run could have effects that nobody
        asked for, or the model refuses what was made up for it.

        The quickest run is what the scheduler goes by until requests have been measured.
        """
        try:
            times = [
                seconds
                for executor in self.computation.executors
                if executor.inline
                for seconds in self._try(executor, runs)
            ]
        except InvalidArgument:
            if self._has_example:
                raise
            return None
        if not times:
            return None
        self._gate.seconds = min(times)
        return WarmUp(times[0], min(times))

    def _try(self, executor: Any, runs: int) -> list[float]:
        times = []
        for _ in range(runs):
            started = time.perf_counter()
            for _responses in executor.run([self._example_request()], _ignore):
                pass
            times.append(time.perf_counter() - started)
        return times

    def _example_request(self) -> InferRequest:
        return InferRequest(self.view, {**self.view.example_inputs, **self._hidden})


def _ignore(stage: str, seconds: float) -> None:
    """Warm-up is not traffic."""


def _labelled(spec: TensorSpec, labels: Mapping[str, tuple[str, ...]]) -> TensorSpec:
    if spec.name not in labels:
        return spec
    return TensorSpec(spec.name, spec.dtype, spec.shape, spec.optional, labels[spec.name])


def _example(spec: TensorSpec) -> Array:
    """An input of the specified form: ones, every open dimension 1; of any rank: three of them."""
    shape = (3,) if spec.shape is None else tuple(1 if size < 0 else size for size in spec.shape)
    if spec.dtype == BYTES:
        return np.full(shape, b"text", np.object_)
    return np.ones(shape, spec.dtype)

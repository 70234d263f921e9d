"""What a scheduler drives: a loaded model with its pre- and postprocessing. For the engine, and for what makes it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeAlias

from tensorgate.gateway.contract.canonical import InferRequest, InferResponse, ModelRef
from tensorgate.gateway.contract.errors import GatewayError
from tensorgate.gateway.contract.forwarding import Forwarder
from tensorgate.gateway.contract.tensor import NOTHING, Signature, TensorSpec

Observe: TypeAlias = Callable[[tuple[str, float]], None]
"""observe((stage, seconds)): stages are preprocess, infer and postprocess. A list's own `append` is one."""

RunAlone: TypeAlias = Callable[[InferRequest, Observe], Awaitable[InferResponse | GatewayError]]


class Executor(ABC):
    """What a scheduler drives: one instance of a model with its pre- and postprocessing.

    Requests come and answers leave as host arrays. What cannot be done for one request alone is that request's outcome,
    in the place of a response; what is raised is the outcome of all.
    """

    runs_on: Literal["thread", "loop"]
    """Whether `run` is called in the executor's own thread, or `arun` on the event loop."""
    inline: bool
    """Whether `run` may be called on the event loop once it has been measured to be quick."""
    decoupled: bool
    """Whether a request has zero to many answers; such requests run one at a time, and `run` returns a generator."""
    merges: bool
    """Whether several requests may share a run."""
    computes: bool = True
    """Whether a run takes its device's time itself, and does not wait for others to compute."""
    batches_sequences: bool = False
    """Whether requests of several sequences may, though the model keeps their states itself: it is given each as it is,
    and none a second time."""
    device_lock_key: object | None = None
    """Executors of the same key compute one at a time, and only their copies beside each other; None: it shares with
    nobody."""
    arun_alone: RunAlone | None = None
    """Computes the outcome of one request on the event loop, of a unary model; ends soon after the request's
    cancellation or deadline. None: requests go through `arun`."""

    @abstractmethod
    def run(
        self, requests: Sequence[InferRequest], observe: Observe
    ) -> Iterable[Sequence[InferResponse | GatewayError]]:
        """Run one batch: each step gives one response per request, in their order. Unary models take one step."""

    @abstractmethod
    def arun(
        self, requests: Sequence[InferRequest], observe: Observe
    ) -> AsyncIterator[Sequence[InferResponse | GatewayError]]:
        """Run one batch on the event loop, where `runs_on` says so; steps as in `run`."""

    @abstractmethod
    def close(self) -> None:
        """Give back memory and devices."""


class Traffic(NamedTuple):
    """What was copied between the host and a model's device since it was loaded. All 0 for a model on the host."""

    copies_in: int = 0
    bytes_in: int = 0
    copies_out: int = 0
    bytes_out: int = 0
    batches: int = 0
    """The batches that were copied."""

    def __add__(self, other: tuple[Any, ...]) -> Traffic:
        return Traffic(*[own + others for own, others in zip(self, other, strict=True)])


@dataclass(frozen=True, slots=True)
class Computation:
    """A loaded version, ready to be scheduled."""

    executors: tuple[Executor, ...]
    """One for every run that may overlap with others."""
    inputs: tuple[TensorSpec, ...]
    """What callers see, in the model's order; of a model with signatures, those of its default."""
    outputs: tuple[TensorSpec, ...]
    required: tuple[TensorSpec, ...]
    """What the computation cannot do without; less strict than `inputs` where a shape is declared and no rank known."""
    max_batch_size: int
    """The most rows of a run; 0: no batch dimension."""
    platform: str
    """Informational, "onnxruntime_onnx" for example."""
    device: str
    """That of the first executor: cpu or cuda:N."""
    signatures: Mapping[str, Signature] = NOTHING
    """Those that the computation itself tells apart, each with tensors of its own."""
    any_shape: bool = False
    """Whether requests by a signature may have other shapes than required."""
    sees_requests: bool = False
    """Whether requests of different signatures, or of which some want a stream, never share a run."""
    is_ready: Callable[[], bool] = lambda: True
    """Whether requests should come now; a version that is loaded answers in any case."""
    pure: bool = False
    """Whether a run has no effects beyond its answer, so that it may be tried."""
    traffic: Callable[[], Traffic] = Traffic
    """Reads the counts of all instances together; called in any thread."""
    devices: tuple[str, ...] = ()
    """That of each executor, in their order; empty: one device for all."""
    instances: int = 1
    """How many copies of the model are behind the executors."""
    ragged: Mapping[str, tuple[int, ...]] = NOTHING
    """The axes, by input, in which requests that share a run may differ."""
    memory: Callable[[], int] = lambda: 0
    """Reads the bytes of the host that its own processes hold, which are none of the gateway's. In any thread."""
    parts: tuple[ModelRef, ...] = ()
    """The models without which it cannot answer."""
    forwarder: Forwarder | None = None
    """Has another server answer whole calls, where that may be."""

    @property
    def places(self) -> tuple[str, ...]:
        """The devices, each once."""
        return tuple(dict.fromkeys(self.devices)) or (self.device,)

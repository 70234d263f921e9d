"""What a scheduler drives: a loaded model with its pre- and postprocessing. For the engine, and for what makes it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias

from tensorgate.gateway.contract.canonical import InferRequest, InferResponse, ModelRef
from tensorgate.gateway.contract.errors import GatewayError
from tensorgate.gateway.contract.tensor import NOTHING, Signature, TensorSpec

Observe: TypeAlias = Callable[[str, float], None]
"""observe(stage, seconds)"""


class Executor(Protocol):
    """What a scheduler drives: one instance of a model with its pre- and postprocessing.

    Requests come and answers leave as host arrays. `merges`: several requests may share a run. What cannot be done for
    one of them alone is its outcome, in the place of a response; what is raised is the outcome of all. Executors of the
    same `device_lock_key` compute one at a time, and only their copies beside each other; None: it shares with nobody.
    """

    runs_on: Literal["thread", "loop"]
    inline: bool
    decoupled: bool
    merges: bool
    device_lock_key: object | None

    def run(
        self, requests: Sequence[InferRequest], observe: Observe
    ) -> Iterable[Sequence[InferResponse | GatewayError]]:
        """One batch: each step gives one response per request, in their order. Unary models take one step."""
        ...

    def arun(
        self, requests: Sequence[InferRequest], observe: Observe
    ) -> AsyncIterator[Sequence[InferResponse | GatewayError]]:
        """The same on the event loop, for executors that run there. One of a unary model may have `arun_alone`, too: a
        coroutine for the outcome of one request, see RequestBackend.
        """
        ...

    def close(self) -> None:
        """Give back memory and devices."""
        ...


class Traffic(NamedTuple):
    """What has crossed between the host and a model's device since it was loaded: copies and bytes each way, and the
    batches that they were for. All of it is 0 where the model is on the host.
    """

    copies_in: int = 0
    bytes_in: int = 0
    copies_out: int = 0
    bytes_out: int = 0
    batches: int = 0

    def __add__(self, other: tuple[Any, ...]) -> Traffic:
        return Traffic(*[own + others for own, others in zip(self, other, strict=True)])


@dataclass(frozen=True, slots=True)
class Computation:
    """A loaded version, ready to be scheduled: an executor for every run that may overlap with others, and what it
    takes and gives.

    `inputs` and `outputs` are what callers see; `required` is what the computation cannot do without, which may be
    less strict (a model of unknown rank behind a declared shape). `max_batch_size` 0: no batch dimension.
    `signatures` are those that the computation itself tells apart, each with tensors of its own; `inputs` and
    `outputs` are then those of its default. `any_shape`: requests by a signature may have other shapes than required.
    `sees_requests`: requests of different signatures, or of which some want a stream, never share a run.
    `is_ready`: whether requests should come now; a version that is loaded answers in any case. `pure`: a run has no
    effects beyond its answer, so that it may be tried. `traffic` is counted in
    all instances together; called in any thread. `device` is that of the first executor, `devices` are those of all, in
    their order; empty: one device for all. `instances` is how many copies of the model are behind the executors.
    `ragged` are the axes of inputs in which requests that share a run may differ. `parts` are the models without which
    it cannot answer.
    """

    executors: tuple[Executor, ...]
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    required: tuple[TensorSpec, ...]
    max_batch_size: int
    platform: str
    device: str
    signatures: Mapping[str, Signature] = NOTHING
    any_shape: bool = False
    sees_requests: bool = False
    is_ready: Callable[[], bool] = lambda: True
    pure: bool = False
    traffic: Callable[[], Traffic] = Traffic
    devices: tuple[str, ...] = ()
    instances: int = 1
    ragged: Mapping[str, tuple[int, ...]] = NOTHING
    parts: tuple[ModelRef, ...] = ()

    @property
    def places(self) -> tuple[str, ...]:
        """The devices, each once."""
        return tuple(dict.fromkeys(self.devices)) or (self.device,)

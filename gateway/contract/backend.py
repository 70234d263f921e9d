"""What computes a model: tensors in, tensors out. For whoever writes a backend.

A backend is a class derived from `Backend`, or from `RequestBackend` where rows of several requests cannot be joined,
and a `BackendKind` that names it; `docs/add-a-backend.md` has a whole one.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, Protocol, TypeAlias

from tensorgate.gateway.contract.canonical import InferRequest, InferResponse, ModelRef
from tensorgate.gateway.contract.dialect import Resolve
from tensorgate.gateway.contract.errors import GatewayError
from tensorgate.gateway.contract.forwarding import Forwarder
from tensorgate.gateway.contract.options import Options
from tensorgate.gateway.contract.tensor import NOTHING, Signature, Tensors, TensorSpec
from tensorgate.gateway.contract.upstream import Await, Clients, ModelServer

if TYPE_CHECKING:
    from prometheus_client.core import Metric

# ----------------------------------------------------------------------------------------------------- what it is given


@dataclass(frozen=True, slots=True)
class RaggedInput:
    """An input whose shapes may differ between the requests of a batch."""

    axes: tuple[int, ...] = ()
    """Along these, all become as long as the longest; empty: along all that vary."""
    value: float | str | None = None
    """What is added. None: 0, or empty text."""
    to_multiple_of: int = 1
    """The common length is rounded up to a multiple of this."""


@dataclass(frozen=True, slots=True)
class Cut:
    """An output that is as long along `axis` as an input along `input_axis`: each request gets its own length."""

    output: str
    axis: int
    input: str
    input_axis: int


@dataclass(frozen=True, slots=True)
class Padding:
    """What is added to batches before a backend gets them, and taken from its outputs."""

    sizes: tuple[int, ...] = ()
    """The numbers of rows that a batch may have, ascending; empty: any number."""
    ragged: Mapping[str, RaggedInput] = NOTHING
    """Inputs by name; "*" is every other one that varies."""
    cuts: tuple[Cut, ...] = ()


NO_PADDING: Final = Padding()


@dataclass(frozen=True, slots=True)
class ModelSource:
    """Where a version comes from and how it is wanted: all that a backend needs to load one instance of it."""

    name: str
    version: int
    path: Path
    """The version's folder, or the file that the YAML names where the kind is not `versioned`."""
    device: str
    """What the YAML asks for: auto, cpu, cuda or cuda:N."""
    inputs: tuple[TensorSpec, ...]
    """What the YAML declares; empty where it leaves that to the model's file. So are `outputs`."""
    outputs: tuple[TensorSpec, ...]
    max_batch_size: int | Literal["auto"]
    options: Any
    """An object of the class that `BackendKind.options` names."""
    parameters: Mapping[str, Any] = NOTHING
    """The model's `parameters` in the YAML, as they are."""
    member: str = ""
    """Behind the colon of `path: file.py:Member`."""
    resolve: Resolve | None = None
    """Finds other models, for a backend that is composed of them. Models come and go, so it is called for each request,
    on the event loop."""
    clients: Clients | None = None
    """Makes clients, for a backend that asks other servers."""
    on_loop: Await | None = None
    """Runs a coroutine on the event loop and waits for it: `load` is called in a thread."""
    padding: Padding = NO_PADDING
    """Done around the backend, which need not look at it."""
    threads: int = 0
    """Threads of the host that this instance may compute with; 0: no limit is configured."""
    memory_limit_bytes: int | None = None
    """How much of a GPU's memory this instance may take; None: no limit is configured."""
    verified: Path | None = None
    """The file or folder whose contents have been verified: no code from elsewhere belongs to the model. None: nothing
    is asked of its files."""

    def may_run(self, place: Path) -> bool:
        """Whether code of the model may come from a file or folder."""
        return self.verified is None or place.is_relative_to(self.verified)


# ----------------------------------------------------------------------------------------------------------- what it is


class ModelDevice(Protocol):
    """Where a model's arrays live; `backends.execution.device.open_device` makes one."""

    name: str
    """cpu, or cuda:N."""
    xp: Any
    """The module of its arrays: numpy or cupy."""


class LoadedModel(ABC):
    """One loaded instance of a model's computation. What has no default is set when it is made."""

    inputs: tuple[TensorSpec, ...]
    """What the computation itself takes, before which there may be preprocessing."""
    outputs: tuple[TensorSpec, ...]
    """What the computation itself gives, after which there may be postprocessing."""
    max_batch_size: int
    """The wanted one, or what "auto" turned out to be. 0: there is no batch dimension."""
    device: ModelDevice
    """Where tensors are when they come, and where outputs are left."""
    platform: str = ""
    """What clients are shown as the model's platform, "onnxruntime_onnx" for example."""
    runs_on: Literal["thread", "loop"] = "thread"
    """Whether it is called on the model's own thread, or gives async iterators that run on the event loop."""
    inline: bool = False
    """Whether it may be called on the event loop once it has been measured to be quick. It has no effects beyond its
    answer then: a run may be tried."""
    decoupled: bool = False
    """Whether one request gets zero to many answers; it then comes alone."""
    merges: bool = True
    """Whether several requests may come in one call."""
    batches_sequences: bool = False
    """Whether those of several sequences may, whose states it keeps itself. It raises nothing then: a call that fails
    is the outcome of each of its requests, and none comes a second time."""
    in_flight: int = 1
    """How many calls may overlap; more than 1 where the backend itself keeps them apart."""
    any_shape: bool = False
    """Whether it looks at its inputs' shapes itself: those it names are for callers to see, and TensorFlow Serving's
    need not keep to them."""
    sees_requests: bool = False
    """Whether it may compute something else for another signature, or where a stream is wanted: requests that differ in
    that never share a call."""
    signatures: Mapping[str, Signature] = NOTHING
    """Functions that it tells apart by `InferRequest.signature`; any other name means the default, whose tensors
    `inputs` and `outputs` are. Requests of different signatures never share a call. The shapes that a signature
    declares are not checked before the call."""
    parts: tuple[ModelRef, ...] = ()
    """The models that it is composed of."""
    forwarder: Forwarder | None = None
    """Has another server answer whole calls, where that may be."""

    def is_ready(self) -> bool:
        """Whether requests should come now. Called on the event loop."""
        return True

    def close(self) -> None:  # noqa: B027  most have nothing to give back
        """Give back memory and devices. Called in a thread, once, after the last call has ended."""


class Backend(LoadedModel):
    """A computation on tensors, which live on its `device`. Rows of the requests that share a call are joined."""

    @abstractmethod
    def infer(
        self, tensors: Tensors, outputs: Sequence[str], requests: Sequence[InferRequest]
    ) -> Iterable[Tensors] | AsyncIterator[Tensors]:
        """Named tensors of one batch, [rows, ...] where there is a batch dimension -> the named outputs with as many
        rows. One step for most models, zero to many for decoupled ones. A step may have more outputs than the named.

        Raises InvalidArgument for what the caller has done wrong; other exceptions become ModelFailed with their last
        line. A batch that failed is run again request by request.
        """


class RequestBackend(LoadedModel):
    """A computation on requests as they are, each with rows of its own. It runs on the event loop, without operators
    around it.
    """

    runs_on = "loop"
    infer_alone: Callable[[InferRequest], Awaitable[InferResponse | GatewayError]] | None = None
    """What becomes of one request of a unary model, if the backend can say that without `infer_each`, which costs less.
    Ends soon after the request's cancellation or deadline."""

    @abstractmethod
    def infer_each(self, requests: Sequence[InferRequest]) -> AsyncIterator[Sequence[InferResponse | GatewayError]]:
        """Requests of one batch -> what becomes of each, in their order, with host arrays. One step for most models,
        zero to many for decoupled ones. A response may have more outputs than were asked for.
        """


# ------------------------------------------------------------------------------------ what is known before it is loaded


@dataclass(frozen=True, slots=True)
class Described:
    """What a model takes and gives, as far as its files and options show it. The names are those of LoadedModel."""

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    max_batch_size: int
    decoupled: bool = False
    as_requests: bool = False
    """Whether it is a RequestBackend, which has no operators around it."""
    batches_sequences: bool = False
    platform: str = ""
    """As the loaded model would say it; empty where only its load tells how callers see the model."""


ConfigProblem: TypeAlias = tuple[tuple[str | int, ...], str]
"""Keys and indices that lead to a part of a model's entry in the YAML, and what is wrong there."""

FindModel: TypeAlias = Callable[[str, int | None], Described | None]
"""(name, version) -> another model as its callers see it; None where that is not known. Raises ModelNotFound."""


class SpokenUpstream(NamedTuple):
    """A dialect that other servers are asked in."""

    name: str
    transports: tuple[str, ...]
    """Over which of http and grpc."""
    finds_models: bool
    """Whether that can find out which models another server has."""


@dataclass(frozen=True, slots=True)
class ServerKind:
    """How a backend asks for all models of another server: the section `upstreams` of the YAML."""

    options_by_dialects: Callable[[tuple[SpokenUpstream, ...]], type[Options]]
    """The dialects that have a client -> what the YAML may say of a server."""
    open: Callable[[Any, Clients], ModelServer]
    """An object of those options -> the server. It connects when it is asked."""


@dataclass(frozen=True, slots=True)
class BackendKind:
    """A line of the BACKENDS table, resolved."""

    options: type[Options]
    """What the YAML may say of such a model, beyond what it may say of every model."""
    load: Callable[[ModelSource], Backend | RequestBackend]
    """Makes one instance; called in a thread. What it raises keeps the version from being served, and is logged."""
    versioned: bool = True
    """Whether `path` holds version folders."""
    numbers: Callable[[Any], Sequence[int]] = lambda options: (1,)
    """The versions of a model with these options that has no version folders."""
    runs_code: bool = False
    """Whether the author of such a model's files can do whatever the server can, be it as Python or as a graph that
    reads and writes files."""
    parts: Callable[[Any], Iterable[str]] = lambda options: ()
    """The names of the models that a model with these options is composed of."""
    collect: Callable[[], Iterable[Metric]] | None = None
    """What its models count, for Prometheus; called in any thread."""
    describe: Callable[[ModelSource], Described | None] = lambda source: None
    """What is known of a model before it is loaded, for a check of the configuration; None where that is nothing.
    Raises ValueError for what could not be loaded, either."""
    check_edges: Callable[[ModelSource, FindModel], Iterable[ConfigProblem]] = lambda source, find: ()
    """Where a model does not fit the models that it is composed of."""
    limits_memory: bool = False
    """Whether it can keep an instance within `ModelSource.memory_limit_bytes`."""
    own_process: bool = False
    """Whether its models may compute in a process of their own."""
    needs_own_process: bool = False
    """Whether they do so in any case: they would keep the interpreter to themselves while they compute."""
    replicable: bool = False
    """Whether doors may run copies of its quick models: a copy costs little more memory than the model's file."""
    gpu_problem: Callable[[], str] | None = None
    """Why its models cannot run on a GPU here, naming what is missing; empty where they can. None: `device` is nothing
    to them, or `auto` is the host."""
    options_by_dialects: Callable[[tuple[SpokenUpstream, ...]], type[Options]] | None = None
    """The dialects that have a client -> `options`, for a backend that asks other servers."""
    servers: ServerKind | None = None
    """Of a backend that can serve all models of another server."""
    server_options: type[Options] | None = None
    """What the YAML may say of such a server, for the dialects that there are."""

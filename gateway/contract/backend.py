"""What computes a model: tensors in, tensors out. For whoever writes a backend."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, Protocol, TypeAlias

from tensorgate.gateway.contract.canonical import InferRequest, InferResponse
from tensorgate.gateway.contract.dialect import Resolve
from tensorgate.gateway.contract.errors import GatewayError
from tensorgate.gateway.contract.options import Options
from tensorgate.gateway.contract.tensor import NOTHING, Signature, Tensors, TensorSpec
from tensorgate.gateway.contract.upstream import Await, Clients


@dataclass(frozen=True, slots=True)
class RaggedInput:
    """An input whose shapes may differ between the requests of a batch: along `axes` (empty: all that vary), where all
    become as long as the longest, rounded up to a multiple of `to_multiple_of`. What is added is `value`; None is 0, or
    empty text.
    """

    axes: tuple[int, ...] = ()
    value: float | str | None = None
    to_multiple_of: int = 1


@dataclass(frozen=True, slots=True)
class Cut:
    """An output that is as long along `axis` as an input along `input_axis`: each request gets its own length."""

    output: str
    axis: int
    input: str
    input_axis: int


@dataclass(frozen=True, slots=True)
class Padding:
    """What is added to batches: `sizes` are the numbers of rows that they may have, ascending; empty: any number. Of
    the `ragged` inputs "*" is every other one that varies.
    """

    sizes: tuple[int, ...] = ()
    ragged: Mapping[str, RaggedInput] = NOTHING
    cuts: tuple[Cut, ...] = ()


NO_PADDING: Final = Padding()


@dataclass(frozen=True, slots=True)
class ModelSource:
    """Where a version comes from and how it is wanted: all that a backend needs to load it.

    `path` is the version's folder, or the file that the YAML names, with the `member` of it that it names; `device` is
    what the YAML asks for: auto, cpu, cuda or cuda:N. `inputs` and `outputs` are what the YAML declares, empty where
    it leaves that to the model file. `options` is the backend's own Options object. `resolve` finds other models, for
    a backend that is composed of them: to be called per request, on the event loop, for models come and go. `clients`
    are for a backend that asks other servers, `on_loop` is for what it has to do on the event loop while it loads.
    `padding` is done around the backend. `threads` are those of the host that the model may compute with, or one copy
    of it, where it is one that is loaded; 0: nobody says. `memory_limit_bytes` is the most of a GPU's memory for each.
    """

    name: str
    version: int
    path: Path
    device: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    max_batch_size: int | Literal["auto"]
    options: Any
    parameters: Mapping[str, Any] = NOTHING
    member: str = ""
    resolve: Resolve | None = None
    clients: Clients | None = None
    on_loop: Await | None = None
    padding: Padding = NO_PADDING
    threads: int = 0
    memory_limit_bytes: int | None = None


class LoadedModel(Protocol):
    """One loaded instance of a model's computation.

    `inputs` and `outputs` are what the computation itself takes and gives (before any pre- or after any
    postprocessing). `max_batch_size` is the wanted one, or what "auto" turned out to be; 0: no batch dimension.
    `runs_on`: it is called on the model's own thread, or it is an async iterator that runs on the event loop. `inline`:
    it may be called on the event loop when it has been measured to be quick. `decoupled`: zero to many answers, one
    request at a time. `merges`: several requests may come in one call. `in_flight`: how many calls may overlap, 1
    unless the backend itself keeps them apart. A backend with `any_shape` set looks at the shapes of its inputs itself:
    those it names are declared for callers, and TensorFlow Serving's need not keep to them. One with `sees_requests`
    set may compute something else for another signature, or where a stream is wanted: requests that differ in that
    never share a call.
    """

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    max_batch_size: int
    platform: str
    device: Any
    runs_on: Literal["thread", "loop"]
    inline: bool
    decoupled: bool
    merges: bool
    in_flight: int

    def close(self) -> None:
        """Give back memory and devices."""
        ...


class Backend(LoadedModel, Protocol):
    """A computation on tensors, which live on its `device` (backends.execution.device); rows of requests are joined."""

    def infer(
        self, tensors: Tensors, outputs: Sequence[str], requests: Sequence[InferRequest]
    ) -> Iterable[Tensors] | AsyncIterator[Tensors]:
        """Named tensors of one batch -> the named outputs, once for most models, zero to many times for decoupled
        ones. Of more than those, the pipeline picks them.
        """
        ...


class SignatureBackend(Backend, Protocol):
    """A computation of several functions: `InferRequest.signature` says which; any other name means the default, whose
    tensors `inputs` and `outputs` are. Requests of different signatures never share a call. The shapes that a signature
    declares are not checked before it.
    """

    signatures: Mapping[str, Signature]


class RequestBackend(LoadedModel, Protocol):
    """A computation on requests as they are, each with rows of its own. It runs on the loop.

    One that is not ready all the time has `is_ready()`, which says whether requests should come now, as any backend
    may; one that is composed of other models has `parts`, their references. One of a unary model may have
    `infer_alone`, too, a coroutine for what becomes of one request, which ends soon after the request's cancellation or
    deadline. Of more outputs than were asked for, the
    pipeline picks those.
    """

    def infer_each(self, requests: Sequence[InferRequest]) -> AsyncIterator[Sequence[InferResponse | GatewayError]]:
        """Requests of one batch -> what becomes of each, in their order, with the outputs that it asked for as host
        arrays; once for most models, zero to many times for decoupled ones.
        """
        ...


@dataclass(frozen=True, slots=True)
class Described:
    """What a model takes and gives, as far as that can be told without loading it; see LoadedModel. `as_requests`: it
    is a RequestBackend, which has no operators around it.
    """

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    max_batch_size: int
    decoupled: bool = False
    as_requests: bool = False


Describe: TypeAlias = Callable[[ModelSource], Described | None]
"""Nothing where it cannot be told. Raises ValueError for what could not be loaded, either."""

Joint: TypeAlias = tuple[tuple[str | int, ...], str]
"""Keys and indices that lead to a part of a model's entry in the YAML, and what is wrong there."""

FindJoints: TypeAlias = Callable[[ModelSource, Callable[[str, int | None], Described | None]], Iterable[Joint]]
"""(model, (name, version) -> another model as its callers see it, None where that is not known) -> what does not fit.
The lookup raises ModelNotFound."""

LoadBackend: TypeAlias = Callable[[ModelSource], Backend | RequestBackend]


@dataclass(frozen=True, slots=True)
class BackendKind:
    """A line of the BACKENDS table, resolved: the YAML options of the backend and how to load one instance of it.

    `versioned`: `path` holds version folders. `runs_code`: whoever writes the files of such a model has what the
    server may do, be it as Python or as a graph that reads and writes files. `parts(options)` names the models that
    such a model is composed of.
    `collect` gives what its models count, as Prometheus' families; called in any thread. `limits_memory`: it can keep
    a model within `memory_limit_bytes`. `describe` and `joints` are for a check of the configuration, before anything
    is loaded.
    """

    options: type[Options]
    load: LoadBackend
    versioned: bool = True
    runs_code: bool = False
    parts: Callable[[Any], Iterable[str]] = lambda options: ()
    collect: Callable[[], Iterable[Any]] | None = None
    describe: Describe = lambda source: None
    joints: FindJoints = lambda source, find: ()
    limits_memory: bool = False
    options_by_dialects: Callable[[tuple[str, ...]], type[Options]] | None = None
    """Names of the dialects that have a client -> `options`, for a backend that asks other servers."""

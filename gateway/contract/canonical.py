"""The one form that every request and every answer takes between a dialect and a model, and the model version that
the two are for.

Wire types stop at the adapters. What travels inside is made of these frozen classes and of arrays.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar, dataclass_transform

from tensorgate.gateway.contract.tensor import NOTHING, Array, ParameterValue, Signature, Tensors, TensorSpec


class Answers(Protocol):
    """The answers to one request, as they come. Whoever takes no more of them before the last one calls `abandon`."""

    def take_nowait(self) -> InferResponse | None:
        """Take the only answer if it was there when the request was submitted; None if it has to be awaited.

        Raises the error that is in its place.
        """
        ...

    def __aiter__(self) -> AsyncIterator[InferResponse]: ...

    def __anext__(self) -> Awaitable[InferResponse]: ...

    def abandon(self) -> None:
        """Drop the request: what has not started never will. Without effect after the last answer."""
        ...


class Handle(Protocol):
    """The loaded version behind a view, as the service needs it."""

    def is_ready(self) -> bool:
        """Whether requests should come now."""
        ...

    def submit(self, request: InferRequest, *, awaited: bool = False) -> Answers:
        """Queue a request. Raises what refuses it at once: QueueFull, an input that does not fit, and so on.

        Who says `awaited` does nothing before he waits for the answer: it may be computed in his own steps.
        """
        ...


@dataclass(frozen=True, slots=True, eq=False)
class ModelView:
    """One version of one model under the public name by which it was asked for. Immutable; made when the version
    becomes ready.

    `name` is public (a route's or the model's own), `versions` are all that are served, ascending. `inputs` and
    `outputs` are the declared specifications in the model's order. `signatures` has `serving_default`, over all of
    them, unless the model brought signatures of its own.
    `merges` says whether requests share runs where there is a batch dimension. `sees_requests`: what is computed may
    depend on the signature by name, and not on its tensors alone.
    `max_batch_size` 0: no batch dimension. `platform` is informational, "onnxruntime_onnx" for example. `mappings`
    has the model's options for single dialects, by dialect name. `example_inputs` are real inputs that came with the
    model, for examples that run. `configuration` is its part of the YAML as plain data, defaults filled in, `devices`
    are where it runs, cpu or cuda:N, each once, in `instances` copies altogether. `route` is the
    gateway's own: by which one it was found.
    """

    name: str
    version: int
    versions: tuple[int, ...]
    inputs: Mapping[str, TensorSpec]
    outputs: Mapping[str, TensorSpec]
    signatures: Mapping[str, Signature]
    max_batch_size: int
    platform: str
    handle: Handle
    decoupled: bool = False
    merges: bool = True
    sees_requests: bool = False
    mappings: Mapping[str, Any] = NOTHING
    example_inputs: Tensors = NOTHING
    configuration: Mapping[str, Any] = NOTHING
    devices: tuple[str, ...] = ("cpu",)
    instances: int = 1
    route: Any = None


T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ModelRef:
    """A model as a caller names it.

    version None means the highest one that is ready. `qualified` is a whole "name-version" as grps clients write it:
    never split, since names contain hyphens and versions dots; an empty one means the default model.
    """

    name: str = ""
    version: int | None = None
    label: str | None = None
    qualified: str | None = None


@dataclass(frozen=True, slots=True)
class OutputRequest:
    """One output that a caller wants.

    `top_k` > 0 asks for the k best classes in place of the tensor; `wire` belongs to the dialect.
    """

    name: str
    top_k: int = 0
    wire: Mapping[str, Any] = NOTHING


@dataclass(frozen=True, slots=True, eq=False)
class Destination:
    """Where the caller wants one output: memory that it shares, the first bytes of it.

    `memory` is a writable memoryview, or a GPU's (`ports.DeviceMemory`). `serialize` lays BYTES out as the dialect
    does.
    """

    memory: Any
    serialize: Callable[[Array], bytes]


@dataclass(frozen=True, slots=True)
class Sequence:
    """Which sequence of requests this one belongs to, and whether it is its first or last.

    Source: Triton's sequence extension.
    """

    id: int | str
    start: bool = False
    end: bool = False


@dataclass_transform(frozen_default=True, eq_default=False, field_specifiers=(field,))
def message(cls: type[T]) -> type[T]:
    """A dataclass that is frozen for type checkers, and compared by identity, as what holds arrays must be.

    At run time it is an ordinary one: two or three of them are made per request, and a frozen __init__ costs a
    microsecond more.
    """
    return dataclass(slots=True, eq=False)(cls)


class OutgoingSpan(Protocol):
    """A call to another server that is made for a traced one: `headers` go along with it."""

    headers: Mapping[str, str]

    def end(self, *, failed: bool) -> None:
        """It is over. Of effect once."""
        ...


class Traced(Protocol):
    """Who wants to know what became of a request: told on the event loop, by those who know it."""

    def ran(self, rows: int, batch_rows: int, submitted: float, started: float, ended: float) -> None:
        """It has run, in a batch of so many rows. Times are in seconds of time.monotonic()."""
        ...

    def left(self, rows: int, submitted: float, ended: float) -> None:
        """It ended while it still waited."""
        ...

    def upstream(self, target: str) -> OutgoingSpan:
        """Another server is about to be asked."""
        ...


class CancellationToken:
    """Whether somebody still waits for an answer; cut by the scheduler when the caller leaves or its time is up.

    `on_cut` is called then, on the event loop: it belongs to whoever computes the answer. `call_record` is None where
    nobody wants to know what becomes of the request. `trial`: it is made up, and may fail without a word. `request_id`
    is what the answer's headers call it, "" where they do not.
    """

    # Values of the class: there is one of these for every request, and most need little of it.
    call_record: Traced | None = None
    cut = False
    on_cut: Callable[[], None] | None = None
    request_id = ""
    trial = False

    def end(self) -> None:
        """Nobody waits any more."""
        self.cut = True
        if self.on_cut is not None:
            self.on_cut()


class Trial(CancellationToken):
    """Of a request that nobody has sent: whether the model takes it, nobody knows."""

    trial = True


@message
class InferRequest:
    """Tensors for one model, checked by the dialect as strictly as its contract says.

    `view` is the model version it was decoded for, pinned until the reply. `outputs` empty means all. `deadline` is
    absolute, in seconds of `time.monotonic()`. `wire` carries what the dialect's own encoder needs to answer in kind;
    nobody else looks at it. `into` is None unless a tensor of it lies in memory that is not the request's own: then
    inputs may be arrays on a GPU, ready for every stream, and the outputs that it names go into their destinations.
    `stream`: the caller takes any number of answers; else a decoupled model has to give exactly one.
    `on_device`: the outputs are wanted where the model left them, ready for every stream; who asks for that is no
    client, but a model composed of models.
    """

    view: ModelView
    inputs: Tensors
    id: str = ""
    outputs: tuple[OutputRequest, ...] = ()
    parameters: Mapping[str, ParameterValue] = NOTHING
    signature: str = ""
    priority: int = 0
    sequence: Sequence | None = None
    deadline: float | None = None
    queue_timeout_us: int = 0
    stream: bool = False
    wire: Any = None
    into: Mapping[str, Destination] | None = None
    on_device: bool = False
    callers: tuple[ModelView, ...] = ()  # the models that wait for this request, outermost first
    cancellation: CancellationToken = field(default_factory=CancellationToken)


def takes_whole_outputs(request: InferRequest) -> bool:
    """Whether all outputs go to the host, and into no memory but ours: then they can be cut there."""
    return request.into is None and not request.on_device and not any(output.top_k for output in request.outputs)


@message
class TopK:
    """The best classes of each row of an output, best first: host arrays [rows, n], or [n] where the model has no
    batch dimension.

    `values` are in the output's dtype, `indices` count within the row, taken flat.
    """

    values: Array
    indices: Array


@message
class InferResponse:
    """One answer: the asked-for outputs, by the model's names, in the model's order, as host arrays unless the request
    wants them `on_device`. Of one that went into its caller's memory, only dtype and shape count.

    `classes` has the outputs whose best classes were asked for: an output is there or in `outputs`. `final` is False
    while a decoupled model may still say more.
    """

    outputs: Tensors
    parameters: Mapping[str, ParameterValue] = NOTHING
    final: bool = True
    classes: Mapping[str, TopK] = NOTHING

"""The one form that every request and every answer takes between a dialect and a model, and the model version that
the two are for.

Wire types stop at the adapters. What travels inside is made of these frozen classes and of arrays.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Protocol, TypeVar, dataclass_transform

from tensorgate.gateway.contract.errors import GatewayError
from tensorgate.gateway.contract.forwarding import Forwarder
from tensorgate.gateway.contract.tensor import BYTES, NOTHING, Array, ParameterValue, Signature, Tensors, TensorSpec


class Answers(Protocol):
    """The answers to one request, as they come. Whoever takes no more of them before the last one calls `abandon`."""

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

    def submit(self, request: InferRequest) -> Answers:
        """Queue a request. Raises what refuses it at once: QueueFull, an input that does not fit, and so on."""
        ...

    def answer(self, request: InferRequest) -> InferResponse | GatewayError | Answers:
        """Submit a request for a caller who does nothing before it is answered: an answer, or the error in its place,
        that is there at once comes as it is, and one that has to be awaited may be computed in the caller's own steps.
        Raises what `submit` does.
        """
        ...


class NamedRoute(Protocol):
    """The route behind a public name, as those know it who tell of it."""

    @property
    def name(self) -> str: ...


VERIFIED: Final = "verified"
"""In a view's configuration: what the version's files have proved, their SHA-256 and whose word it was; absent where
nothing was asked of them."""


@dataclass(frozen=True, slots=True, eq=False)
class ModelView:
    """One version of one model under the public name by which it was asked for. Immutable; made when the version
    becomes ready.
    """

    name: str
    """The public name: a route's or the model's own."""
    version: int
    versions: tuple[int, ...]
    """All that are served, ascending."""
    inputs: Mapping[str, TensorSpec]
    """The declared specifications, in the model's order."""
    outputs: Mapping[str, TensorSpec]
    signatures: Mapping[str, Signature]
    """The model's own, or `serving_default` over all inputs and outputs."""
    max_batch_size: int
    """The most rows of a request; 0: no batch dimension."""
    platform: str
    """Informational, "onnxruntime_onnx" for example."""
    handle: Handle
    decoupled: bool = False
    """Whether a request has zero to many answers; else it has exactly one."""
    merges: bool = True
    """Whether requests share runs where there is a batch dimension."""
    sees_requests: bool = False
    """Whether what is computed may depend on the signature by name, and not on its tensors alone."""
    mappings: Mapping[str, Any] = NOTHING
    """The model's options for single dialects, by dialect name."""
    example_inputs: Tensors = NOTHING
    """Real inputs that came with the model, for examples that run."""
    configuration: Mapping[str, Any] = NOTHING
    """The model's part of the YAML as plain data, defaults filled in."""
    devices: tuple[str, ...] = ("cpu",)
    """Where the model runs, cpu or cuda:N, each once."""
    instances: int = 1
    """How many copies of the model there are on all devices together."""
    route: NamedRoute | None = None
    """The route by which the view was found, if any; for routing alone."""
    forwarder: Forwarder | None = None
    """Has another server answer whole calls, where that may be."""


class MustLoad(Exception):
    """Raised by a resolve: the model that answers is one of those that are loaded when somebody asks for them."""

    def __init__(self, model: str) -> None:
        super().__init__(model)
        self.model = model


class MustForward(Exception):
    """Raised by a resolve: the server behind this model answers the whole call."""

    def __init__(self, view: ModelView) -> None:
        super().__init__(view.name)
        self.view = view


T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ModelRef:
    """A model as a caller names it."""

    name: str = ""
    version: int | None = None
    """None: the highest one that is ready."""
    label: str | None = None
    qualified: str | None = None
    """A whole "name-version" as grps clients write it: never split, since names contain hyphens and versions dots; an
    empty one means the default model."""


@dataclass(frozen=True, slots=True)
class OutputRequest:
    """One output that a caller wants."""

    name: str
    top_k: int = 0
    """Above 0: the k best classes in place of the tensor."""
    wire: Mapping[str, Any] = NOTHING
    """For the dialect's own encoder."""


@dataclass(frozen=True, slots=True, eq=False)
class Destination:
    """Where the caller wants one output: memory that it shares, the first bytes of it."""

    memory: Any
    """A writable memoryview, or a `memory.DeviceMemory`."""
    serialize: Callable[[Array], bytes]
    """Lays BYTES out as the dialect does."""


@dataclass(frozen=True, slots=True)
class Sequence:
    """Which sequence of requests this one belongs to, and whether it is its first or last.

    Source: Triton's sequence extension.
    """

    id: int | str
    """0 or "": to none, though the caller says that this is the first or the last; a model may look at that."""
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
        """End the span; only the first end counts."""
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

    def asked(self, target: str, span_id: str, begun: float, ended: float, *, failed: bool) -> None:
        """Another process has asked another server for this request, by a span of this number. Times are in seconds of
        time.monotonic().
        """
        ...

    def carried(self) -> Mapping[str, str]:
        """The headers that go along where another process asks other servers for this request."""
        ...


class CancellationToken:
    """Whether somebody still waits for an answer; cut by the scheduler when the caller leaves or its time is up."""

    # Values of the class: there is one of these for every request, and most need little of it.
    call_record: Traced | None = None
    """Who wants to know what becomes of the request."""
    cut = False
    is_asked_to_stop = False
    """The caller wants no more than there is, but still takes what comes: the model may end the request, with an error
    or more answers, or go on."""
    on_cut: Callable[[], None] | None = None
    """Called on the event loop when the token is cut; it belongs to whoever computes the answer."""
    is_satisfied = False
    """The caller has taken all that it wants before the model's last answer: the request has succeeded."""
    request_id = ""
    """What the answer's headers call the request, "" where they do not."""
    share = ""
    """Whose share of the devices the request is run from, "" where nobody knows, or there are no shares."""
    refused = False
    """Whether the request was not accepted by an engine in another process, which is known with its error only."""
    trial = False
    """Whether the request is made up, and may fail without a word."""

    def end(self) -> None:
        """Cut the token: nobody waits any more."""
        self.cut = True
        if self.on_cut is not None:
            self.on_cut()


class Trial(CancellationToken):
    """Of a request that nobody has sent: whether the model takes it, nobody knows."""

    trial = True


@message
class InferRequest:
    """Tensors for one model, checked by the dialect as strictly as its contract says."""

    view: ModelView
    """The model version that the request was decoded for, pinned until the reply."""
    inputs: Tensors
    """Host arrays; where `into` is set, perhaps arrays on a GPU, ready for every stream."""
    id: str = ""
    outputs: tuple[OutputRequest, ...] = ()
    """Empty: all."""
    parameters: Mapping[str, ParameterValue] = NOTHING
    signature: str = ""
    priority: int = 0
    """1 is the highest; 0: the model's default."""
    sequence: Sequence | None = None
    deadline: float | None = None
    """Absolute, in seconds of `time.monotonic()`."""
    queue_timeout_us: int = 0
    """How long the request may wait at most, where the model lets callers say so; 0: as the model says."""
    stream: bool = False
    """Whether the caller takes any number of answers; else a decoupled model has to give exactly one."""
    wire: Any = None
    """What the dialect's own encoder needs to answer in kind; nobody else looks at it."""
    into: Mapping[str, Destination] | None = None
    """Where the outputs that it names go. None unless a tensor lies in memory that is not the request's own."""
    on_device: bool = False
    """Whether outputs are wanted where the model left them, ready for every stream: for a model composed of models."""
    tokens: int = 0
    """How many tokens its longest text has, where the dialect has counted them; 0: it has not."""
    cancellation: CancellationToken = field(default_factory=CancellationToken)
    callers: tuple[ModelView, ...] = ()
    """The models that wait for this request, outermost first."""


@message
class ChainedRequest(InferRequest):
    """A step of a model composed of models, whose tensors stay on a GPU: events are handed on, and nobody waits."""

    ready: tuple[Any, ...] = ()
    """CUDA events: a stream that reads the inputs waits for them first."""
    give: Callable[[InferResponse, Any], None] | None = None
    """Takes the response, in the thread of the run, as soon as it has been enqueued, and the event after which it is
    true. It comes as an answer, too, once that is so."""


def takes_whole_outputs(request: InferRequest) -> bool:
    """Whether all outputs go to the host, and into no memory but ours: then they can be cut there."""
    return request.into is None and not request.on_device and not any(output.top_k for output in request.outputs)


@message
class TopK:
    """The best classes of each row of an output, best first: host arrays [rows, n], or [n] where the model has no
    batch dimension.
    """

    values: Array
    """In the output's dtype."""
    indices: Array
    """Counted within the row, taken flat."""


@message
class InferResponse:
    """One answer."""

    outputs: Tensors
    """The asked-for outputs, by the model's names, in the model's order, as host arrays unless the request wants them
    `on_device`. Of one that went into its caller's memory, only dtype and shape count."""
    parameters: Mapping[str, ParameterValue] = NOTHING
    final: bool = True
    """False while a decoupled model may still say more."""
    classes: Mapping[str, TopK] = NOTHING
    """The outputs whose best classes were asked for: an output is there or in `outputs`."""


LOAD_REPORT: Final = "triton_load_report"
"""A parameter of a request that wants to know how full its model is, as "text" or "json", and of the answer that tells.
Triton keeps names with that beginning for itself."""

INLINE_ENCODE_MAX_NUMBERS: Final = 1 << 13
INLINE_ENCODE_MAX_TEXTS: Final = 1 << 9
_INLINE_ENCODE_MAX_TEXT_BYTES: Final = 1 << 14


def is_long_as_text(answer: InferResponse, request: InferRequest) -> bool:
    """Whether encoding an answer would hold up the event loop, where every number is written as text."""
    for array in answer.outputs.values():
        if array.size > INLINE_ENCODE_MAX_NUMBERS:
            return True
    return is_long_as_bytes(answer, request)


def is_long_as_bytes(answer: InferResponse, request: InferRequest) -> bool:
    """The same where numbers are copied as bytes: only texts, and classes, are written one by one."""
    if answer.classes and sum([best.values.size for best in answer.classes.values()]) > INLINE_ENCODE_MAX_TEXTS:
        return True
    for array in answer.outputs.values():
        if array.dtype == BYTES and (
            array.size > INLINE_ENCODE_MAX_TEXTS or sum(map(len, array.reshape(-1))) > _INLINE_ENCODE_MAX_TEXT_BYTES
        ):
            return True
    return False

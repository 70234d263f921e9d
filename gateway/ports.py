"""What can be plugged in, and the messages that pass through the sockets of the house.

A dialect is pure: bytes in, request out; response in, bytes out. A backend turns tensors into tensors. Both know the
gateway by this module, `canonical` and `errors` alone.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, Protocol, TypeAlias

from pydantic import BaseModel, ConfigDict

from gateway.canonical import (
    BYTES,
    NOTHING,
    Array,
    InferRequest,
    InferResponse,
    ModelRef,
    Signature,
    Tensors,
    TensorSpec,
)
from gateway.errors import Code, GatewayError, RegionNotFound

Buffer: TypeAlias = bytes | bytearray | memoryview
Observe: TypeAlias = Callable[[str, float], None]
"""observe(stage, seconds)"""


class Options(BaseModel):
    """Base of everything that YAML sets: immutable, no unknown keys, no coercion of types."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


# ------------------------------------------------------------------------------------------------------- shared memory


class DeviceMemory(Protocol):
    """Bytes on a GPU that a caller shares."""

    nbytes: int

    def array(self, dtype: Any, shape: tuple[int, ...], *, copy: bool = False) -> Array:
        """These bytes as an array, on the device where that is possible; not a copy unless that is asked for, or is the
        only way.
        """
        ...

    def tobytes(self) -> bytes:
        """A copy on the host."""
        ...

    def write(self, array: Array) -> None:
        """Fill the first bytes with an array from anywhere; finished when it returns."""
        ...


Memory: TypeAlias = memoryview | DeviceMemory


class Regions(Protocol):
    """The memory that callers have registered."""

    def view(self, name: str, offset: int, byte_size: int, *, writable: bool = False) -> Memory:
        """A part of a region, without a copy: whoever shares it may change it at any time.

        Raises RegionNotFound, RegionRange.
        """
        ...


class NoRegions:
    """Where nobody can register any."""

    def view(self, name: str, offset: int, byte_size: int, *, writable: bool = False) -> Memory:
        raise RegionNotFound(name)


NO_REGIONS: Final[Regions] = NoRegions()


class NeedsThread(Exception):
    """Raised by a decode on the event loop that finds it has much to read, although its call is short: it is called
    again in a thread.
    """


# ------------------------------------------------------------------------------------------------------------ messages


@dataclass(frozen=True, slots=True)
class Caller:
    """Who calls, as the credentials say: its name and roles. `until` is when they expire, in seconds since 1970."""

    name: str
    roles: frozenset[str] = frozenset()
    until: float = math.inf


class Peer(Protocol):
    """The other end of a connection."""

    def address(self) -> str:
        """Its IP address; "" if it has none. It may be a proxy's."""
        ...

    def names(self) -> Sequence[str]:
        """What its certificate calls it, if it has shown one that was verified: URIs, DNS names, the common name."""
        ...


class Nobody:
    """Where there is no connection."""

    def address(self) -> str:
        return ""

    def names(self) -> Sequence[str]:
        return ()


NOBODY: Final[Peer] = Nobody()


def combined(headers: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Headers by their names in lower case; those that come again as one list. Nobody takes the first and somebody else
    the last of two, and two credentials are none. Source: RFC 9110, 5.3.
    """
    found: dict[str, str] = {}
    for name, value in headers:
        name = name.lower()
        found[name] = f"{found[name]}, {value}" if name in found else value
    return found


@dataclass(slots=True, eq=False)
class Call:
    """One message as a transport saw it, with what the dialect's address said (`args`: model, version, …).

    `dialect` is who reads it, `listener` what the port is called where it came in, `peer` the other end of the
    connection, `caller` who has asked, None if nobody knows. `auth` is what the port wants of callers, "" what all do,
    `ending` what is to be done when the call is over. `headers` is read case-insensitively
    with lower-case keys (HTTP headers or gRPC metadata). `raw_target` is the
    HTTP request target, still percent-encoded, or the full gRPC method. `deadline` is in seconds of
    `time.monotonic()`. `max_body_bytes` bounds the JSON of a body, also once it is inflated, `max_binary_bytes` a
    body of tensor data as bytes, `max_json_depth` how deep JSON may nest. `notes` is the dialect's own: what its decode
    learned that a later error must repeat, such as the request's id. `accepted`: the question is a model's to answer,
    and an error from here on is an answer, too. `regions` is the memory that callers share; `in_thread`
    tells a decode that it may take its time. `peer` is the other end of its connection;
    `request_id` is what its answer's headers call it, "" where they do not. `trail` is kept where somebody wants to
    know what becomes of it.
    """

    body: Buffer
    method: str
    raw_target: str
    headers: Mapping[str, str]
    transport: Literal["http", "grpc"]
    args: Mapping[str, str] = NOTHING
    deadline: float | None = None
    max_body_bytes: int = 64 << 20
    max_binary_bytes: int = 1 << 30
    max_json_depth: int | None = None
    notes: dict[str, Any] = field(default_factory=dict)
    accepted: bool = False
    regions: Regions = NO_REGIONS
    in_thread: bool = False
    dialect: str = ""
    listener: tuple[str, ...] = ()
    peer: Peer = NOBODY
    caller: Caller | None = None
    auth: str = ""
    request_id: str = ""
    trail: Any = None
    ending: tuple[Callable[[], None], ...] = ()

    def end(self) -> None:
        """The call is over."""
        for step in self.ending:
            step()

    def check_quick(self, most: int) -> None:
        """For a decode that takes as long as the body has bytes: on the event loop `most` of them, and none that are
        compressed, whose number nobody knows. Raises NeedsThread.
        """
        if not self.in_thread and (len(self.body) > most or "content-encoding" in self.headers):
            raise NeedsThread


@dataclass(slots=True, eq=False)
class Reply:
    """One message for a transport to send. `body` may be a list of buffers, sent in order without joining them first.

    `grpc_code` and `message` are what gRPC sends beside it; an OK reply carries a body. `streamed`: more may follow
    on the same call.
    """

    body: Buffer | Sequence[Buffer]
    http_status: int = 200
    headers: Mapping[str, str] = NOTHING
    grpc_code: Code = Code.OK
    message: str = ""
    streamed: bool = False


EMPTY: Final = Reply(b"")
_LONGEST_ARGUMENT: Final = 128 << 10
"""Linux refuses longer ones (MAX_ARG_STRLEN)."""

Resolve: TypeAlias = Callable[[ModelRef], "ModelView"]
Decode: TypeAlias = Callable[[Call, Resolve], Any]
"""Bytes -> a Question of `questions`.

Calls resolve where the contract says, once; raises GatewayError and nothing else.
"""
Encode: TypeAlias = Callable[[Any, Any], Reply]
"""(answer, the question it answers) -> Reply. May raise EncodingFailed."""
EncodeError: TypeAlias = Callable[[GatewayError, Call], Reply]
EncodeEnd: TypeAlias = Callable[[InferResponse | None, InferRequest], Reply | None]
"""(last answer, its question) -> what is sent after it, if anything."""
IsLong: TypeAlias = Callable[[InferResponse, InferRequest], bool]
"""(answer, its question) -> whether to write the reply would keep the event loop from others for too long."""

QUICK_TENSOR_BYTES: Final = 128 << 10
"""A body that is little but digits of numbers may be read on the event loop if it is no larger: that takes as long as a
hop to a thread and back."""
QUICK_JSON_BYTES: Final = 32 << 10
"""The same for JSON of which nothing is known."""
QUICK_NUMBERS: Final = 1 << 13
QUICK_TEXTS: Final = 1 << 9
_QUICK_TEXT_BYTES: Final = 1 << 14


def is_long_as_text(answer: InferResponse, request: InferRequest) -> bool:
    """Of replies in which every number is written as text."""
    many = any(array.size > QUICK_NUMBERS for array in answer.outputs.values())
    return many or is_long_as_bytes(answer, request)


def is_long_as_bytes(answer: InferResponse, request: InferRequest) -> bool:
    """Of replies in which numbers stay what they are: only texts, and those of classes, are written one by one."""
    if answer.classes and sum([best.values.size for best in answer.classes.values()]) > QUICK_TEXTS:
        return True
    return any(array.dtype == BYTES and _are_long(array) for array in answer.outputs.values())


def _are_long(texts: Array) -> bool:
    return texts.size > QUICK_TEXTS or sum(map(len, texts.reshape(-1))) > _QUICK_TEXT_BYTES


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One address of a dialect. `method` is the label that metrics give it (infer, metadata, ready, …); `address`
    documents it.

    `stream`: unary, single (a unary call that a decoupled model may answer, too, if it gives exactly one answer),
    server (one question, many replies) or bidi (a loop of questions on one connection). At a server's, a question may
    still be for one answer: `InferRequest.stream` says whether the caller takes several. `admin`: it changes the
    server's state, so that it needs the administrator's rights where the configuration sets any. `nothing` is what
    HTTP sends where a stream ends without a reply, `encode_end` has the word after a model's last answer. A reply that
    `is_long` is encoded in a thread.
    """

    address: str
    method: str
    decode: Decode
    encode: Encode
    encode_error: EncodeError
    stream: Literal["unary", "single", "server", "bidi"] = "unary"
    admin: bool = False
    nothing: Reply = EMPTY
    encode_end: EncodeEnd | None = None
    is_long: IsLong = is_long_as_text


@dataclass(frozen=True, slots=True)
class Match:
    """The endpoint that an HTTP request line names, and what its path said."""

    endpoint: Endpoint
    args: Mapping[str, str] = NOTHING


@dataclass(frozen=True, slots=True)
class Sample:
    """A POST that calls a model: percent-encoded path, with its query; a body for people to read."""

    path: str
    body: str
    content_type: str = ""

    def curl(self, base_url: str) -> str | None:
        """One line for the shell, None if no shell takes a body so long."""
        if len(self.body.encode()) >= _LONGEST_ARGUMENT:
            return None
        typed = f" -H {shlex.quote(f'Content-Type: {self.content_type}')}" if self.content_type else ""
        return f"curl -s {shlex.quote(base_url.rstrip('/') + self.path)}{typed} -d {shlex.quote(self.body)}"


@dataclass(frozen=True, slots=True)
class Dialect:
    """A wire protocol, whole: both transports in one table.

    `prefix` is the lower-case path prefix that belongs to it ("/v2"): it owns that path and all below it.
    `match(method, raw_target)` always answers: an address that does not exist is an endpoint whose decode raises, so
    that the dialect words its own 404, 405 or 400. `grpc` maps full method names to endpoints. `sample(view)` is a
    request that calls a model with its `example_inputs`, or None if the dialect cannot; `serve` and the page
    show it. `max_json_depth` is what its own servers allow. HTTP requests with the header `binary_header`
    (lower-case) carry tensors as bytes, and may be larger than others. `paths` are exact ones outside the prefix that
    belong to it, too. `http_timeout_ms` is how long an HTTP call may take
    once its body is here, 0 as long as it likes. `unreadable(status, text)` answers a message whose head is no HTTP;
    None: with JSON, whose `error` is the text.
    """

    name: str
    title: str
    prefix: str
    match: Callable[[str, str], Match]
    sample: Callable[[ModelView], Sample | None]
    grpc: Mapping[str, Endpoint] = NOTHING
    max_json_depth: int = 100
    binary_header: str = ""
    paths: tuple[str, ...] = ()
    http_timeout_ms: int = 0
    unreadable: Callable[[int, str], Reply] | None = None


@dataclass(frozen=True, slots=True)
class DialectKind:
    """A line of the DIALECTS table, resolved. `options` is the dialect's own section of the YAML, `model_options` its
    section in each model
    (a ModelView has that object in `mappings`, under the dialect's name). `uploads`: a load may bring files with it."""

    options: type[Options]
    make: Callable[[Any], Dialect]
    model_options: type[Options] | None = None
    uploads: bool = False


# ---------------------------------------------------------------------------------------- models as the rest sees them


class Answers(Protocol):
    """The answers to one request, as they come."""

    def __aiter__(self) -> AsyncIterator[InferResponse]: ...

    def __anext__(self) -> Awaitable[InferResponse]: ...

    def abandon(self) -> None:
        """Nobody waits any more: what has not started never will. Of no effect after the last answer."""


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


# --------------------------------------------------------------------------------------- servers that we are clients of


@dataclass(frozen=True, slots=True)
class UpstreamModel:
    """A model of another server, as that server's clients name it; `signature` "" is its default."""

    name: str
    version: int | None = None
    label: str | None = None
    signature: str = ""


class Cutter(Protocol):
    """Cuts the body of an HTTP answer that has many messages into these, while it arrives."""

    def feed(self, data: bytes) -> list[bytes]:
        """More of the body -> the messages that are whole now."""
        ...

    def end(self) -> list[bytes]:
        """Nothing more comes: what is left, whole or not."""
        ...


@dataclass(slots=True, eq=False)
class Ask:
    """One message to another server: `target` is an HTTP path, percent-encoded, or a full gRPC method. What comes back
    is a Reply; of a stream over HTTP several, with the messages that a new `cut` finds in the body.
    """

    target: str
    body: Sequence[Buffer] = ()
    method: str = "POST"
    headers: Mapping[str, str] = NOTHING
    cut: Callable[[], Cutter] | None = None


@dataclass(frozen=True, slots=True)
class Description:
    """What another server says of a model; what it leaves open stays empty."""

    inputs: tuple[TensorSpec, ...] = ()
    outputs: tuple[TensorSpec, ...] = ()
    decoupled: bool = False


class Client(Protocol):
    """A dialect from the other side, on one transport: what a client of a server sends, and what it makes of the
    answers, for one model. As pure as a dialect.

    `streams`: how a decoupled model is asked: a call of many messages each way (bidi), one question with many answers
    (server), or not at all (no). `platform` is informational.
    """

    transport: Literal["http", "grpc"]
    streams: Literal["bidi", "server", "no"]
    platform: str

    def probe(self) -> Ask:
        """Can the model answer now?"""
        ...

    def is_ready(self, reply: Reply) -> bool:
        """What the answer to a probe says."""
        ...

    def questions(self) -> Sequence[Ask]:
        """What to ask to learn the model's specifications; nothing where the protocol has no word for them."""
        ...

    def description(self, replies: Sequence[Reply]) -> Description:
        """The answers to those. Raises GatewayError."""
        ...

    def encode(
        self, tensors: Tensors, outputs: Sequence[str], request: InferRequest, description: Description, *, stream: bool
    ) -> Ask:
        """Host arrays in, the named outputs wanted; `request` has what goes along with them. Raises EncodingFailed."""
        ...

    def decode(self, reply: Reply, description: Description) -> InferResponse:
        """The whole answer, or with an error's kind and text what the server said instead: raises GatewayError."""
        ...

    def decode_part(self, reply: Reply, description: Description) -> InferResponse:
        """The same of one message of a stream: the last one is final, and may have no outputs."""
        ...


MakeClient: TypeAlias = Callable[[UpstreamModel], Client]
Clients: TypeAlias = Callable[[str, str], MakeClient | None]
"""(dialect, transport) -> what makes its clients, if there are any."""
Await: TypeAlias = Callable[[Coroutine[Any, Any, Any]], Any]
"""Runs on the event loop what a thread gives it, and returns what becomes of it."""


# ---------------------------------------------------------------------------------------------------- backends and ops


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
class Gpu:
    """A GPU as it is now, whoever uses it: bytes of memory, the share of time in which it computed (0 to 1), watts,
    joules since its driver was loaded. None: it does not tell.
    """

    device: str
    uuid: str
    name: str
    total: int
    used: int
    utilization: float | None = None
    power_watts: float | None = None
    power_limit_watts: float | None = None
    energy_joules: float | None = None
    temperature_celsius: float | None = None


ReadGpu: TypeAlias = Callable[[str], Gpu | None]
"""A model's device, "cuda:0" -> that GPU; None if it is none, or cannot be asked"""


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
    """A computation on tensors, which live on its `device` (see backends.device); the rows of requests are joined."""

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
    `infer_alone`, too, a coroutine for what becomes of one request, which ends soon after the request's lifeline or
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


class Op(Protocol):
    """A step before or after the model, written once against `xp` (numpy or cupy).

    One whose results along an axis depend on each other may have `along(specs)`, which names (tensor, axis from the
    front), None if that is not known: where there is a batch dimension, it must not be that.
    """

    def specs(self, specs: Mapping[str, TensorSpec]) -> Mapping[str, TensorSpec]:
        """The specifications after this step, given those before it. Raises ValueError if it cannot work on them."""
        ...

    def __call__(self, tensors: Tensors, xp: Any) -> Tensors:
        """The tensors after this step; those that it does not name pass through."""
        ...


LoadOp: TypeAlias = Callable[[str, Path, str], "OpKind"]
"""(name, file, class in it) -> an operator of the user's own. Raises ValueError."""
OpFactory: TypeAlias = Callable[[Any], Op]


@dataclass(frozen=True, slots=True)
class OpKind:
    """A line of the OPS table, resolved: the YAML options of the op and how to make one."""

    options: type[Options]
    make: OpFactory


class Executor(Protocol):
    """What a scheduler drives: one instance of a model with its pre- and postprocessing.

    Requests come and answers leave as host arrays. `merges`: several requests may share a run. What cannot be done for
    one of them alone is its outcome, in the place of a response; what is raised is the outcome of all. Executors of the
    same `turn` compute one at a time, and only their copies beside each other; None: it shares with nobody.
    """

    runs_on: Literal["thread", "loop"]
    inline: bool
    decoupled: bool
    merges: bool
    turn: object | None

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


@dataclass(frozen=True, slots=True)
class Registries:
    """The tables of what can be plugged in, with their lines imported: handed to the configuration by the composition
    root.
    """

    dialects: Mapping[str, DialectKind] = field(default_factory=dict)
    backends: Mapping[str, BackendKind] = field(default_factory=dict)
    ops: Mapping[str, OpKind] = field(default_factory=dict)
    load_op: LoadOp | None = None
    """For the operators that a configuration brings along."""

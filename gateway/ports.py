"""What can be plugged in, and the messages that pass through the sockets of the house.

A dialect is pure: bytes in, request out; response in, bytes out. A backend turns tensors into tensors. Both know the
gateway by this module, `canonical` and `errors` alone.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol, TypeAlias

from pydantic import BaseModel, ConfigDict

from gateway.canonical import NOTHING, InferRequest, InferResponse, ModelRef, Signature, Tensors, TensorSpec
from gateway.errors import Code, GatewayError

Buffer: TypeAlias = bytes | bytearray | memoryview
Observe: TypeAlias = Callable[[str, float], None]
"""observe(stage, seconds)"""


class Options(BaseModel):
    """Base of everything that YAML sets: immutable, no unknown keys, no coercion of types."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


# ------------------------------------------------------------------------------------------------------------ messages


@dataclass(slots=True, eq=False)
class Call:
    """One message as a transport saw it, with what the dialect's address said (`args`: model, version, …).

    `headers` is read case-insensitively with lower-case keys (HTTP headers or gRPC metadata). `raw_target` is the
    HTTP request target, still percent-encoded, or the full gRPC method. `deadline` is in seconds of
    `time.monotonic()`. `max_body_bytes` bounds what a dialect may inflate the body to, `max_json_depth` how deep its
    JSON may nest. `notes` is the dialect's own: what its decode learned that a later error must repeat, such as the
    request's id. `accepted`: the question is a model's to answer, and an error from here on is an answer, too.
    """

    body: Buffer
    method: str
    raw_target: str
    headers: Mapping[str, str]
    transport: Literal["http", "grpc"]
    args: Mapping[str, str] = NOTHING
    deadline: float | None = None
    max_body_bytes: int = 64 << 20
    max_json_depth: int | None = None
    notes: dict[str, Any] = field(default_factory=dict)
    accepted: bool = False


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


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One address of a dialect. `method` is the label that metrics give it (infer, metadata, ready, …); `address`
    documents it.

    `stream`: unary, server (one question, many replies) or bidi (a loop of questions on one connection). `admin`: it
    changes the server's state, so that it needs the administrator's rights where the configuration sets any.
    `encode_end` has the word after a model's last answer.
    """

    address: str
    method: str
    decode: Decode
    encode: Encode
    encode_error: EncodeError
    stream: Literal["unary", "server", "bidi"] = "unary"
    admin: bool = False
    encode_end: EncodeEnd | None = None


@dataclass(frozen=True, slots=True)
class Match:
    """The endpoint that an HTTP request line names, and what its path said."""

    endpoint: Endpoint
    args: Mapping[str, str] = NOTHING


@dataclass(frozen=True, slots=True)
class Dialect:
    """A wire protocol, whole: both transports in one table.

    `prefix` is the lower-case path prefix that belongs to it ("/v2"): it owns that path and all below it.
    `match(method, raw_target)` always answers: an address that does not exist is an endpoint whose decode raises, so
    that the dialect words its own 404, 405 or 400. `grpc` maps full method names to endpoints. `example(view,
    base_url)` is one shell line that calls a model with its `example_inputs`, or None if the dialect cannot call it;
    `serve` prints it. `max_json_depth` is what its own servers allow.
    """

    name: str
    title: str
    prefix: str
    match: Callable[[str, str], Match]
    example: Callable[[ModelView, str], str | None]
    grpc: Mapping[str, Endpoint] = NOTHING
    max_json_depth: int = 100


@dataclass(frozen=True, slots=True)
class DialectKind:
    """A line of the DIALECTS table, resolved. `options` is the dialect's own section of the YAML, `model_options` its
    section in each model
    (a ModelView has that object in `mappings`, under the dialect's name)."""

    options: type[Options]
    make: Callable[[Any], Dialect]
    model_options: type[Options] | None = None


# ---------------------------------------------------------------------------------------- models as the rest sees them


class Answers(Protocol):
    """The answers to one request, as they come."""

    def __aiter__(self) -> AsyncIterator[InferResponse]: ...

    async def __anext__(self) -> InferResponse: ...

    def abandon(self) -> None:
        """Nobody waits any more: what has not started never will. Of no effect after the last answer."""


class Handle(Protocol):
    """The loaded version behind a view, as the service needs it."""

    def submit(self, request: InferRequest) -> Answers:
        """Queue a request. Raises what refuses it at once: QueueFull, an input that does not fit, and so on."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class ModelView:
    """One version of one model under the public name by which it was asked for. Immutable; made when the version
    becomes ready.

    `name` is public (a route's or the model's own), `versions` are all that are served, ascending. `inputs` and
    `outputs` are the declared specifications in the model's order; `signatures` always has `serving_default`.
    `max_batch_size` 0: no batch dimension. `platform` is informational, "onnxruntime_onnx" for example. `mappings`
    has the model's options for single dialects, by dialect name. `example_inputs` are real inputs that came with the
    model, for examples that run. `configuration` is its part of the YAML as plain data, defaults filled in.
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
    mappings: Mapping[str, Any] = NOTHING
    example_inputs: Tensors = NOTHING
    configuration: Mapping[str, Any] = NOTHING


# ---------------------------------------------------------------------------------------------------- backends and ops


@dataclass(frozen=True, slots=True)
class ModelSource:
    """Where a version comes from and how it is wanted: all that a backend needs to load it.

    `path` is the version's folder, or the file that the YAML names, with the `member` of it that it names; `device` is
    what the YAML asks for: auto, cpu, cuda or cuda:N. `inputs` and `outputs` are what the YAML declares, empty where
    it leaves that to the model file. `options` is the backend's own Options object. `resolve` finds other models, for
    a backend that is composed of them: to be called per request, on the event loop, for models come and go.
    """

    name: str
    version: int
    path: Path
    device: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    max_batch_size: int
    options: Any
    parameters: Mapping[str, Any] = NOTHING
    member: str = ""
    resolve: Resolve | None = None


class Backend(Protocol):
    """One loaded instance of a model's computation. Tensors in and out live on its `device` (see backends.device).

    `inputs` and `outputs` are what the computation itself takes and gives (before any pre- or after any
    postprocessing). `runs_on`: infer is called on the model's own thread, or it is an async iterator that runs on the
    event loop. `inline`: infer may be called on the event loop when it has been measured to be quick. `decoupled`:
    zero to many answers, one request at a time. `merges`: the rows of several requests may come in one call.
    `in_flight`: how many calls of infer may overlap, 1 unless the backend itself keeps them apart.
    """

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    platform: str
    device: Any
    runs_on: Literal["thread", "loop"]
    inline: bool
    decoupled: bool
    merges: bool
    in_flight: int

    def infer(
        self, tensors: Tensors, outputs: Sequence[str], requests: Sequence[InferRequest]
    ) -> Iterable[Tensors] | AsyncIterator[Tensors]:
        """Named tensors of one batch -> the named outputs, once for most models, zero to many times for decoupled
        ones.
        """
        ...

    def close(self) -> None:
        """Give back memory and devices."""
        ...


LoadBackend: TypeAlias = Callable[[ModelSource], Backend]


@dataclass(frozen=True, slots=True)
class BackendKind:
    """A line of the BACKENDS table, resolved: the YAML options of the backend and how to load one instance of it.

    `versioned`: `path` holds version folders.
    """

    options: type[Options]
    load: LoadBackend
    versioned: bool = True


class Op(Protocol):
    """A step before or after the model, written once against `xp` (numpy or cupy)."""

    def specs(self, specs: Mapping[str, TensorSpec]) -> Mapping[str, TensorSpec]:
        """The specifications after this step, given those before it. Raises ValueError if it cannot work on them."""
        ...

    def __call__(self, tensors: Tensors, xp: Any) -> Tensors:
        """The tensors after this step; those that it does not name pass through."""
        ...


OpFactory: TypeAlias = Callable[[Any], Op]


@dataclass(frozen=True, slots=True)
class OpKind:
    """A line of the OPS table, resolved: the YAML options of the op and how to make one."""

    options: type[Options]
    make: OpFactory


class Executor(Protocol):
    """What a scheduler drives: one instance of a model with its pre- and postprocessing.

    Requests come and answers leave as host arrays. `merges`: several requests may share a run.
    """

    runs_on: Literal["thread", "loop"]
    inline: bool
    decoupled: bool
    merges: bool

    def run(self, requests: Sequence[InferRequest], observe: Observe) -> Iterable[Sequence[InferResponse]]:
        """One batch: each step gives one response per request, in their order. Unary models take one step."""
        ...

    def arun(self, requests: Sequence[InferRequest], observe: Observe) -> AsyncIterator[Sequence[InferResponse]]:
        """The same on the event loop, for executors that run there."""
        ...

    def close(self) -> None:
        """Give back memory and devices."""
        ...


@dataclass(frozen=True, slots=True)
class Computation:
    """A loaded version, ready to be scheduled: an executor for every run that may overlap with others, and what it
    takes and gives.

    `inputs` and `outputs` are what callers see; `required` is what the computation cannot do without, which may be
    less strict (a model of unknown rank behind a declared shape).
    """

    executors: tuple[Executor, ...]
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    required: tuple[TensorSpec, ...]
    platform: str
    device: str


@dataclass(frozen=True, slots=True)
class Registries:
    """The tables of what can be plugged in, with their lines imported: handed to the configuration by the composition
    root.
    """

    dialects: Mapping[str, DialectKind] = field(default_factory=dict)
    backends: Mapping[str, BackendKind] = field(default_factory=dict)
    ops: Mapping[str, OpKind] = field(default_factory=dict)

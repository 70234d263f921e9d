"""What a dialect is: the addresses of a wire protocol, and the functions that read and write the messages there.

A dialect is pure: bytes in, request out; response in, bytes out. A new one is a folder with a DialectKind and a line of
`adapters.DIALECTS`; docs/add-a-dialect.md shows a whole one.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, Protocol, TypeAlias

from tensorgate.gateway.contract.api import ApiDescription
from tensorgate.gateway.contract.call import EMPTY, Buffer, Call, CallQuota, Reply
from tensorgate.gateway.contract.canonical import InferRequest, InferResponse, ModelRef, ModelView, is_long_as_text
from tensorgate.gateway.contract.errors import GatewayError
from tensorgate.gateway.contract.metrics import DialectMetrics
from tensorgate.gateway.contract.options import Options
from tensorgate.gateway.contract.questions import Question
from tensorgate.gateway.contract.tensor import NOTHING
from tensorgate.gateway.contract.upstream import MakeClient

Resolve: TypeAlias = Callable[[ModelRef], ModelView]
"""Finds the version that answers. Raises ModelNotFound, LabelNotFound, or what forbids the caller to use it; what is no
GatewayError is the service's, and passes through a decode."""

Decode: TypeAlias = Callable[[Call, Resolve], Question]
"""Bytes -> request or other question. Calls `Resolve` where the protocol says, once.

Raises GatewayError and nothing else, whatever the bytes are; MustOffload to be called again in a thread.
"""

Encode: TypeAlias = Callable[[Any, Any], Reply]
"""(answer, the question it answers) -> Reply. `questions` says which type answers which. May raise EncodingFailed."""

EncodeError: TypeAlias = Callable[[GatewayError, Call], Reply]
"""Any failure of the call -> what the protocol's clients are told."""

ModelOf: TypeAlias = Callable[[Mapping[str, str], bytes], ModelRef | None]
"""(what the address says, the first bytes of the body) -> the model that is asked, None where these do not say. Raises
GatewayError."""

EncodeEnd: TypeAlias = Callable[[InferResponse | None, InferRequest], Reply | None]
"""(last answer, its question) -> the reply that ends the stream, if the protocol has one."""

Follow: TypeAlias = Callable[[InferResponse, InferRequest], bool]
"""(answer, its question) -> whether the caller wants no more answers. Called once for each, in order, on the event
loop; may raise GatewayError."""

IsLong: TypeAlias = Callable[[InferResponse, InferRequest], bool]
"""(answer, its question) -> whether encoding it would hold up the event loop."""

INLINE_DECODE_MAX_TENSOR_BYTES: Final = 128 << 10
"""A body that is little but digits of numbers may be read on the event loop if it is no larger: that takes as long as a
hop to a thread and back."""

INLINE_DECODE_MAX_JSON_BYTES: Final = 32 << 10
"""The largest body of any other JSON that may be read on the event loop."""


QuotaHeaders: TypeAlias = "Callable[[CallQuota | None, CallQuota | None], Mapping[str, str]]"


class TokenMeter(Protocol):
    """Counts the tokens of a call by the bytes of its answer."""

    def take(self, piece: Buffer) -> None:
        """The next piece of the answer."""
        ...

    def tokens(self) -> tuple[int, int]:
        """How many the call brought, and how many it has been answered with so far."""
        ...


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One address of a dialect."""

    address: str
    """Documentation, such as "POST /v2/models/{model}/infer"; logs show it."""
    method: str
    """Its label in metrics and logs: infer, metadata, ready, …"""
    decode: Decode
    encode: Encode
    encode_error: EncodeError
    stream: Literal["unary", "single", "server", "bidi"] = "unary"
    """unary: one question, one reply. single: unary, and a decoupled model may answer if it gives exactly one answer.
    server: one question, many replies, unless `InferRequest.stream` says that the caller takes one. bidi: a loop of
    questions on one connection."""
    admin: bool = False
    """It changes the server's state: it needs the administrator's rights where the configuration sets any."""
    nothing: Reply = EMPTY
    """What HTTP sends where a stream ends without a reply."""
    encode_end: EncodeEnd | None = None
    is_long: IsLong = is_long_as_text
    """A long reply is encoded in a thread."""
    quota_headers: QuotaHeaders | None = None
    """What HTTP's answers say of the caller's limits, of requests and of tokens; None: nothing."""
    tokens: Callable[[Any], tuple[int, int]] | None = None
    """A question that has been answered -> how many tokens of text it brought, and was answered with; None: they are
    not counted."""
    read_answer: Callable[[bytes], InferResponse] | None = None
    """What an answer says that another server has given to a call, unread, as tensors. Raises ModelFailed."""
    meter: Callable[[Call], TokenMeter] | None = None
    """Makes what counts the tokens of a call that another server answers, unread."""
    follow: Follow | None = None
    """Sees each answer of a request before it is encoded. Where the caller takes one reply, all answers are seen before
    the last of them is encoded: so a text that came in pieces is one reply. With it, and only with it, an InferTogether
    may ask a model that gives many answers, and be answered by a stream.
    """
    model_of: ModelOf | None = None
    """Finds the model before all of a call is here, so that the call may be sent on to another server meanwhile. Over
    gRPC `decode` has the last word, since the rest of a message may name another one.
    """


@dataclass(frozen=True, slots=True)
class Match:
    """The endpoint that an HTTP request line names."""

    endpoint: Endpoint
    args: Mapping[str, str] = NOTHING
    """What the path said: model, version, …"""


@dataclass(frozen=True, slots=True)
class SampleRequest:
    """A POST that calls a model, for people to read and send."""

    path: str
    """Percent-encoded, with its query."""
    body: str
    content_type: str = ""
    title: str = ""
    """What kind of call it is, in a word of the protocol's: infer, generate_stream, …"""
    streams: bool = False
    """Answers come one after the other, as the model makes them."""

    def curl(self, base_url: str) -> str | None:
        """One line for the shell, None if no shell takes a body so long."""
        if len(self.body.encode()) >= _MAX_ARGUMENT_BYTES:
            return None
        return self._curl(base_url, self.body)

    def curl_of_stdin(self, base_url: str) -> str:
        """One line for the shell that sends a body which comes through a pipe."""
        return self._curl(base_url, "@-")

    def _curl(self, base_url: str, data: str) -> str:
        typed = f" -H {shlex.quote(f'Content-Type: {self.content_type}')}" if self.content_type else ""
        return f"curl -s {shlex.quote(base_url.rstrip('/') + self.path)}{typed} -d {shlex.quote(data)}"


_MAX_ARGUMENT_BYTES: Final = 128 << 10
"""Linux refuses longer ones (MAX_ARG_STRLEN)."""


@dataclass(frozen=True, slots=True)
class Dialect:
    """A wire protocol as its options want it, on both transports."""

    name: str
    """Its line in the DIALECTS table."""
    title: str
    """Its name for people."""
    prefix: str
    """The lower-case path prefix that it owns ("/v2"): that path, and all below it."""
    match: Callable[[str, str], Match]
    """(HTTP method, raw target) -> endpoint. It always answers: an address that does not exist is an endpoint whose
    decode raises, so that the dialect words its own 404, 405 or 400."""
    sample: Callable[[ModelView], SampleRequest | None]
    """A request that calls the model with its `example_inputs`, for people to try; None: the protocol cannot."""
    grpc: Mapping[str, Endpoint] = NOTHING
    """Full gRPC method name -> endpoint."""
    max_json_depth: int = 100
    """How deep JSON may nest, unless the configuration says otherwise."""
    binary_header: str = ""
    """The lower-case header of HTTP requests that carry tensors as bytes, and may be larger than others."""
    paths: tuple[str, ...] = ()
    """Exact paths outside the prefix that it owns, too."""
    http_timeout_ms: int = 0
    """How long an HTTP call may take once its body is here; 0: as long as it likes."""
    unreadable: Callable[[int, str], Reply] | None = None
    """(status, text) -> the answer to a message whose head is no HTTP; None: JSON whose `error` is the text."""
    page_paths: tuple[str, ...] = ()
    """Exact paths at which its users look for the operator's page."""
    default_model: str | None = None
    """The public name that an empty `ModelRef.qualified` means."""
    alias: Callable[[ModelView], str | None] = lambda view: None
    """A name by which `ModelRef.qualified` finds a model's highest version, besides name-version."""
    initially_online: bool = False
    """Whether the operator's switch (`SetOnline`) is on at the start."""
    samples: Callable[[ModelView], Iterable[SampleRequest]] | None = None
    """Every kind of call that the protocol has for the model, each with its `title`; None: there is `sample` alone."""
    api: ApiDescription | None = None
    """Its HTTP addresses for /openapi.json; None: it describes none."""


@dataclass(frozen=True, slots=True)
class RepositoryFormat:
    """How another server writes down its models, read into entries of the YAML. Both raise ValueError."""

    read_override: Callable[[str, Mapping[str, Any]], Mapping[str, Any]]
    """(the configuration that a caller sends with a load, a model's entry) -> that entry, with what the caller says in
    its place."""
    read_folder: Callable[[Path, str | None, str, Callable[[str], None]], Mapping[str, Any]]
    """(a model's folder, a caller's configuration in place of the folder's, the model's name, who hears what is
    ignored) -> the entry. Raises OSError, too."""


@dataclass(frozen=True, slots=True)
class WarmupRequest:
    """A request that lies beside a version, which must answer it `count` times before it is ready."""

    name: str
    """What it is called where it fails."""
    request: InferRequest
    count: int


@dataclass(frozen=True, slots=True)
class DialectKind:
    """A line of the DIALECTS table, resolved."""

    options: type[Options]
    """The dialect's own section of the YAML."""
    make: Callable[[Any], Dialect]
    """An object of `options` -> the dialect."""
    model_options: type[Options] | None = None
    """Its section in each model. A ModelView has that object in `mappings`, under the dialect's name."""
    uploads: bool = False
    """A load may bring files with it."""
    http_client: MakeClient | None = None
    """Its client half over HTTP, for models that another server computes."""
    grpc_client: MakeClient | None = None
    """Its client half over gRPC."""
    finds_models: bool = True
    """Whether that can find out which models another server has, or if it has one of a name."""
    metrics: Callable[[Any], DialectMetrics | None] = lambda section: None
    """The section `metrics` of the YAML -> the metrics of the server that it imitates, if they are wanted."""
    metrics_options: type[Options] | None = None
    """What it adds to that section."""
    repository: RepositoryFormat | None = None
    """How the server that it imitates writes down its models."""
    warmup_requests: Callable[[Any, Path, ModelView], Iterable[WarmupRequest]] = lambda options, path, view: ()
    """(an object of `options`, where a version lies, that version) -> the requests that the server that it imitates
    would run there before it is ready. Raises ValueError, OSError."""

    @property
    def client_transports(self) -> tuple[str, ...]:
        """Over what other servers can be asked in it."""
        clients = {"grpc": self.grpc_client, "http": self.http_client}
        return tuple(transport for transport, client in clients.items() if client is not None)

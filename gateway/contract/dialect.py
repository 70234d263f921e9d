"""What a dialect is: addresses, and what reads and writes the messages there. For whoever writes one.

A dialect is pure: bytes in, request out; response in, bytes out.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

from tensorgate.gateway.contract.call import EMPTY, Call, Reply
from tensorgate.gateway.contract.canonical import InferRequest, InferResponse, ModelRef, ModelView
from tensorgate.gateway.contract.errors import GatewayError
from tensorgate.gateway.contract.options import Options
from tensorgate.gateway.contract.tensor import BYTES, NOTHING, Array

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

INLINE_DECODE_MAX_TENSOR_BYTES: Final = 128 << 10
"""A body that is little but digits of numbers may be read on the event loop if it is no larger: that takes as long as a
hop to a thread and back."""

INLINE_DECODE_MAX_JSON_BYTES: Final = 32 << 10
"""The same for JSON of which nothing is known."""

INLINE_ENCODE_MAX_NUMBERS: Final = 1 << 13

INLINE_ENCODE_MAX_TEXTS: Final = 1 << 9

_INLINE_ENCODE_MAX_TEXT_BYTES: Final = 1 << 14


def is_long_as_text(answer: InferResponse, request: InferRequest) -> bool:
    """Of replies in which every number is written as text."""
    many = any(array.size > INLINE_ENCODE_MAX_NUMBERS for array in answer.outputs.values())
    return many or is_long_as_bytes(answer, request)


def is_long_as_bytes(answer: InferResponse, request: InferRequest) -> bool:
    """Of replies in which numbers stay what they are: only texts, and those of classes, are written one by one."""
    if answer.classes and sum([best.values.size for best in answer.classes.values()]) > INLINE_ENCODE_MAX_TEXTS:
        return True
    return any(array.dtype == BYTES and _are_long(array) for array in answer.outputs.values())


def _are_long(texts: Array) -> bool:
    return texts.size > INLINE_ENCODE_MAX_TEXTS or sum(map(len, texts.reshape(-1))) > _INLINE_ENCODE_MAX_TEXT_BYTES


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

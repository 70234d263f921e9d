"""What is asked of a server first: which models are ready, and what they take and give."""

from __future__ import annotations

import json
import math
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from google.protobuf.message import DecodeError

from tensorgate.adapters.conformance.case import Finding, FoundServer, WireReply, WireRequest
from tensorgate.adapters.conformance.http_calls import get, post
from tensorgate.adapters.conformance.plain import plain_message
from tensorgate.adapters.open_inference.client import plain_state
from tensorgate.adapters.open_inference.conformance.calls import (
    FORMATS,
    GivenTensor,
    binary_infer,
    call,
    infer_message,
)
from tensorgate.adapters.protobuf.messages import message

MAX_MODELS = 24
"""More of those that are not known are left out."""
MAX_ZEROS = 1 << 20
"""Elements of an input; larger ones are not sent."""
_READY = ("READY", "")
Asking = Generator[WireRequest, WireReply, Any]


@dataclass(frozen=True, slots=True)
class V2ModelFacts:
    """A model as its metadata says it is."""

    name: str
    versions: tuple[str, ...]
    inputs: tuple[Mapping[str, Any], ...]
    """Each with `name`, `datatype` and `shape`, -1 where it varies."""
    outputs: tuple[Mapping[str, Any], ...]
    zeros: tuple[GivenTensor, ...] | None
    """What it was seen to answer; None: it takes no plain inference of zeros."""

    @property
    def path(self) -> str:
        return f"/v2/models/{quote(self.name, safe='')}"


def find(transports: Sequence[str], named: Sequence[str]) -> Finding:
    """Ask for the server's name, for its models and for the metadata of each."""
    over_http = "http" in transports
    server = yield from _json(*get("/v2")) if over_http else _message(*call("ServerMetadata", b""), "ServerMetadata")
    names = list(named) or (yield from _names(over_http))
    known = [name for name in names if name.startswith("conform_")]
    others = [name for name in names if not name.startswith("conform_")]
    notes = [] if known else ["none of the models that --repository writes is there: their behaviour was not asked"]
    if len(others) > MAX_MODELS:
        notes.append(f"{len(others) - MAX_MODELS} of {len(names)} models were left out")
    models = []
    for name in (*known, *others[:MAX_MODELS]):
        facts = yield from _model(name, over_http)
        models.append(facts)
        if facts.zeros is None and name in others:
            notes.append(f"{name}: takes no plain inference of zeros, so only its metadata was asked")
    name = f"{server.get('name', '')} {server.get('version', '')}".strip() if isinstance(server, dict) else ""
    extensions = server.get("extensions") if isinstance(server, dict) else None
    told = frozenset(map(str, extensions)) if isinstance(extensions, list) else None
    return FoundServer(name, models, notes, told)


def _names(over_http: bool) -> Asking:
    """Of the models that are ready: by the repository's index, or as KServe lists them."""
    if not over_http:
        index = yield from _message(*call("RepositoryIndex", b""), "RepositoryIndex")
        entries = index.get("models", [])
    else:
        entries = yield from _json(*post("/v2/repository/index", {}))  # MLServer wants a body
        if not isinstance(entries, list):
            listed = yield from _json(*get("/v2/models"))
            names = listed.get("models", []) if isinstance(listed, dict) else []
            return [name for name in names if isinstance(name, str)]
    ready = [each["name"] for each in entries if isinstance(each, dict) and plain_state(each.get("state")) in _READY]
    return list(dict.fromkeys(ready))


def _model(name: str, over_http: bool) -> Asking:
    if over_http:
        found = yield from _json(*get(f"/v2/models/{quote(name, safe='')}"))
    else:
        request = message("inference.ModelMetadataRequest")(name=name)
        found = yield from _message(*call("ModelMetadata", request), "ModelMetadata")
    try:
        inputs = tuple({**each, "shape": [int(size) for size in each["shape"]]} for each in found["inputs"])
        outputs = tuple({**each, "shape": [int(size) for size in each["shape"]]} for each in found["outputs"])
        versions = tuple(str(each) for each in found.get("versions") or ())
        zeros = _zeros(inputs)
    except (KeyError, TypeError, ValueError, AttributeError):
        return V2ModelFacts(name, (), (), (), None)  # the case that asks for its metadata tells what is wrong with them
    if zeros is not None:
        request, _ = (
            binary_infer(quote(name, safe=""), zeros, {})
            if over_http
            else call("ModelInfer", infer_message(name, zeros))
        )
        reply = yield request
        if reply.failure or reply.code or (over_http and reply.status != 200):
            zeros = None
    return V2ModelFacts(name, versions, inputs, outputs, zeros)


def _zeros(inputs: Sequence[Mapping[str, Any]]) -> tuple[GivenTensor, ...] | None:
    """One row of zeros for every input, or empty texts; None where that cannot be made."""
    made = []
    for each in inputs:
        shape = tuple(1 if size < 0 else size for size in each["shape"])
        count = math.prod(shape)
        if each["datatype"] not in {*FORMATS, "BYTES"} or count > MAX_ZEROS:
            return None
        made.append(GivenTensor(each["name"], each["datatype"], shape, _zero(each["datatype"]) * count))
    return tuple(made)


def _zero(datatype: str) -> tuple[Any, ...]:
    if datatype == "BYTES":
        return (b"",)
    return (False,) if datatype == "BOOL" else (0,)


def _json(request: WireRequest, _: Any) -> Asking:
    """The document of a reply, {} where there is none."""
    reply = yield request
    try:
        return json.loads(reply.body) if reply.status == 200 else {}
    except ValueError:
        return {}


def _message(request: WireRequest, _: Any, name: str) -> Asking:
    """The reply's message as a plain value, {} where there is none."""
    reply = yield request
    try:
        return plain_message(message(f"inference.{name}Response").FromString(reply.body)) if not reply.code else {}
    except DecodeError:
        return {}

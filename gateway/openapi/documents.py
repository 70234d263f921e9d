"""What the dialects say of their addresses -> documents of OpenAPI 3.1.

A model's part of a document is made once, kept as text, and only joined with others: a server may have hundreds of
models. A document is written in a thread, and for whoever asks: it has the models that the caller may use.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from http import HTTPStatus
from typing import Any, Final, NamedTuple, TypeAlias

import orjson

from tensorgate.gateway.config import Config
from tensorgate.gateway.contract.api import ApiDescription, ApiOperation, Content, Schema
from tensorgate.gateway.contract.canonical import ModelView
from tensorgate.gateway.contract.dialect import Dialect, SampleRequest
from tensorgate.gateway.contract.errors import (
    AdminRequired,
    CrossOriginRefused,
    DeadlineExceeded,
    Forbidden,
    GatewayError,
    Internal,
    InvalidArgument,
    LabelNotFound,
    ModelNotFound,
    NotFound,
    RateLimited,
    RouteNotFound,
    Unauthenticated,
    Unavailable,
)
from tensorgate.gateway.contract.questions import ApiDocument
from tensorgate.gateway.security.authorizer import HEALTH
from tensorgate.gateway.telemetry.call_outcome import INFERENCES

_OPENAPI: Final = "3.1.0"
_JSON: Final = "application/json"
_MAX_EXAMPLE_BYTES: Final = 16 << 10
_MAX_PARTS: Final = 4096
"""Of models, kept as text; a few KB each."""
_OK: Final = 200
_SECURED: Final[Mapping[type[GatewayError], str]] = {
    Unauthenticated: "auth",
    Forbidden: "auth",
    AdminRequired: "admin",
    CrossOriginRefused: "admin",
    RateLimited: "limits",
}
"""Failures that there are only where the configuration, or the operation, asks for them."""
_CHAPTERS: Final[Mapping[str, frozenset[str]]] = {
    "ask": frozenset(),
    "infer": frozenset({"message", "model", "tensor", "sequence", "capacity", "failure"}),
    "change": frozenset({"message", "control", "memory"}),
}
"""How a question, an inference, and a change of the server's state fail, by chapters of `contract.errors`."""
_ANYWHERE: Final = (InvalidArgument, NotFound, ModelNotFound, LabelNotFound, Unavailable, DeadlineExceeded, Internal)
"""How everything may fail."""


_Paths: TypeAlias = dict[str, dict[str, Any]]
"""Path -> method in lower case -> operation."""


class _Text(NamedTuple):
    """A model's part of a document: what it was made of, and the members of `paths` and `schemas`."""

    made_of: tuple[Any, ...]
    paths: bytes
    schemas: bytes


class _Security(NamedTuple):
    """The schemes of a port, as OpenAPI has them: `required` of every operation, `admin` of those that change state."""

    schemes: Mapping[str, Any]
    required: Sequence[Mapping[str, Sequence[str]]]
    admin: Sequence[Mapping[str, Sequence[str]]]
    open_health: bool


class ApiDocuments:
    """Writes documents, in any thread."""

    def __init__(self, dialects: Mapping[str, Dialect], version: str, config: Config) -> None:
        self._dialects = {name: dialect for name, dialect in dialects.items() if dialect.api is not None}
        self._version = version
        self._config = config
        # Stale when the version was loaded anew, whose specifications are other objects, and when the configuration
        # was. Of those that have left, the oldest make room.
        self._parts: OrderedDict[tuple[str, str, int], _Text] = OrderedDict()

    def reconfigure(self, config: Config) -> None:
        """Take over another configuration, which may want other credentials."""
        self._config = config
        self._parts = OrderedDict()

    def write(self, question: ApiDocument, views: Iterable[ModelView]) -> bytes:
        """The document of the server with the models of these views, or the question's own model. Raises NotFound."""
        spoken = self._spoken(question)
        security = self._security(question.listener)
        if question.view is not None:
            return self._of_model(spoken, question, question.view, security)
        return self._of_server(spoken, question, views, security)

    def _spoken(self, question: ApiDocument) -> list[Dialect]:
        here = [dialect for dialect in self._dialects.values() if self._speaks(question.listener, dialect.name)]
        if not question.dialect:
            return here
        named = [dialect for dialect in here if dialect.name == question.dialect]
        if not named:
            names = ", ".join(dialect.name for dialect in here)
            raise NotFound(f"dialect '{question.dialect}' is not described here, only {names}")
        return named

    def _speaks(self, listener: tuple[str, ...], dialect: str) -> bool:
        """A port that nobody has configured speaks them all."""
        spoken = next((each.dialects for each in self._config.listen.http if _names(each) == listener), None)
        return spoken is None or dialect in spoken

    # ------------------------------------------------------------------------------------------------------- documents

    def _of_model(
        self, dialects: Sequence[Dialect], question: ApiDocument, view: ModelView, security: _Security
    ) -> bytes:
        version = question.version
        max_bytes = None if question.long_examples else _MAX_EXAMPLE_BYTES
        paths: _Paths = {}
        known: dict[str, Schema] = {}
        responses: dict[str, Any] = {}
        for dialect, api in _described(dialects):
            part, server = api.model(view, version), api.server()
            known |= {**server.schemas, **part.schemas}
            responses |= self._responses(dialect, api, part.operations)
            self._add_paths(paths, dialect, api, part.operations, security)
        schemas = _reachable([paths, responses], known)
        if version is None and not view.configuration.get("sequences"):  # one request alone is no sequence
            for dialect in dialects:
                _add_example(paths, dialect.sample(view), max_bytes)
        about = f"{view.name} version {view.version}" if version is not None else view.name
        head = self._head(about, question, dialects, security, responses)
        return _document(head, [orjson.dumps(paths)[1:-1]], [orjson.dumps(schemas)[1:-1]])

    def _of_server(
        self, dialects: Sequence[Dialect], question: ApiDocument, views: Iterable[ModelView], security: _Security
    ) -> bytes:
        paths: _Paths = {}
        schemas: dict[str, Schema] = {}
        responses: dict[str, Any] = {}
        for dialect, api in _described(dialects):
            part = api.server()
            schemas |= part.schemas
            responses |= self._responses(dialect, api, part.operations)
            self._add_paths(paths, dialect, api, part.operations, security)
        texts = [
            self._part(dialect, api, view, paths, security) for view in views for dialect, api in _described(dialects)
        ]
        head = self._head(self._config.server_name, question, dialects, security, responses)
        return _document(
            head,
            [orjson.dumps(paths)[1:-1], *(text.paths for text in texts if text.paths)],
            [orjson.dumps(schemas)[1:-1], *(text.schemas for text in texts if text.schemas)],
        )

    def _part(
        self, dialect: Dialect, api: ApiDescription, view: ModelView, shared: Collection[str], security: _Security
    ) -> _Text:
        """A model's inferences, but those at addresses that it shares with others."""
        key = dialect.name, view.name, view.version
        made_of = view.inputs, view.outputs, view.signatures, view.mappings
        parts = self._parts
        known = parts.get(key)
        if known is not None and all(was is now for was, now in zip(known.made_of, made_of, strict=True)):
            return known
        part = api.model(view, None)
        own = [each for each in part.operations if each.kind in INFERENCES and each.path not in shared]
        paths: _Paths = {}
        self._add_paths(paths, dialect, api, own, security)
        schemas = _reachable([paths], part.schemas)
        text = _Text(made_of, orjson.dumps(paths)[1:-1], orjson.dumps(schemas)[1:-1])
        parts[key] = text
        while len(parts) > _MAX_PARTS:
            parts.popitem(last=False)
        return text

    def _head(
        self,
        about: str,
        question: ApiDocument,
        dialects: Sequence[Dialect],
        security: _Security,
        responses: Mapping[str, Any],
    ) -> dict[str, Any]:
        """All but paths and schemas. Where the server is, is told from the document: a proxy may have put a prefix
        before both.
        """
        up = question.target.partition("?")[0].count("/") - 1
        components: dict[str, Any] = {"responses": responses}
        head: dict[str, Any] = {
            "openapi": _OPENAPI,
            "info": {"title": about, "version": self._version},
            "servers": [{"url": "/".join([".."] * up) or "."}],
            "tags": [{"name": dialect.title} for dialect in dialects],
        }
        if security.schemes:
            components["securitySchemes"] = security.schemes
            head["security"] = security.required
        return {**head, "components": components}

    # ------------------------------------------------------------------------------------------------------ operations

    def _add_paths(
        self,
        paths: _Paths,
        dialect: Dialect,
        api: ApiDescription,
        operations: Iterable[ApiOperation],
        security: _Security,
    ) -> None:
        for each in operations:
            paths.setdefault(each.path, {})[each.method.lower()] = self._operation(dialect, api, each, security)

    def _operation(
        self, dialect: Dialect, api: ApiDescription, operation: ApiOperation, security: _Security
    ) -> dict[str, Any]:
        responses: dict[str, Any] = {str(_OK): _response("OK", operation.reply)}
        for status, (meaning, content) in operation.other_replies.items():
            responses[str(status)] = _response(meaning, content)
        for status in self._failures(api, operation):
            responses.setdefault(str(status), {"$ref": f"#/components/responses/{_named(dialect, operation, status)}"})
        described: dict[str, Any] = {
            "operationId": operation.id,
            "summary": operation.summary,
            "tags": [dialect.title],
            "responses": responses,
        }
        if operation.parameters:
            described["parameters"] = list(operation.parameters)
        if operation.request:
            described["requestBody"] = {"required": operation.requires_body, "content": _content(operation.request)}
        if operation.kind in HEALTH and security.open_health:
            described["security"] = []
        elif operation.admin and security.admin:
            described["security"] = security.admin
        return described

    def _responses(
        self, dialect: Dialect, api: ApiDescription, operations: Iterable[ApiOperation]
    ) -> Iterator[tuple[str, Any]]:
        """The failures of operations, once for all that fail alike."""
        for operation in {_group(each): each for each in operations}.values():
            for status, reasons in self._failures(api, operation).items():
                meaning = f"{HTTPStatus(status).phrase if status in _STATUSES else status}: {', '.join(reasons)}"
                yield _named(dialect, operation, status), _response(meaning, {_JSON: api.error})

    def _failures(self, api: ApiDescription, operation: ApiOperation) -> dict[int, list[str]]:
        """Status -> why, in the words of metrics and logs."""
        config = self._config
        present = {
            *(["auth"] if config.auth is not None else []),
            *(["limits"] if config.rate_limits else []),
            *(["admin"] if operation.admin else []),
        }
        chapters = _CHAPTERS[_group(operation)]
        found: dict[int, set[str]] = {}
        for kind, status in api.statuses.items():
            if issubclass(kind, RouteNotFound) or status == _OK or operation.kind in HEALTH:
                continue
            wanted = kind in _ANYWHERE or _chapter(kind) in chapters
            if _SECURED[kind] in present if kind in _SECURED else wanted:
                found.setdefault(status, set()).add(kind.error_reason)
        return {status: sorted(reasons) for status, reasons in sorted(found.items())}

    # -------------------------------------------------------------------------------------------------------- security

    def _security(self, listener: tuple[str, ...]) -> _Security:
        config, auth = self._config, self._config.auth
        here = next((each.auth for each in config.listen.http if _names(each) == listener), None)
        mode = "off" if auth is None else here or auth.mode
        schemes: dict[str, Any] = {}
        required: list[dict[str, list[str]]] = []
        if auth is not None and mode != "off":
            if auth.keys or auth.keys_file or auth.jwt:
                schemes["bearer"] = {"type": "http", "scheme": "bearer"}
                required.append({"bearer": []})
            if auth.keys or auth.keys_file:
                schemes["key"] = {"type": "apiKey", "in": "header", "name": "x-api-key"}
                required.append({"key": []})
            if auth.certificates:
                schemes["certificate"] = {"type": "mutualTLS"}
                required.append({"certificate": []})
            if mode == "optional":
                required.append({})
        admin = list(required)
        if config.admin is not None:
            schemes["admin"] = {"type": "apiKey", "in": "header", "name": config.admin.header}
            admin += [{**each, "admin": []} for each in required or [{}]]
        return _Security(schemes, required, admin, auth is not None and auth.health == "open")


_STATUSES: Final = frozenset(HTTPStatus)


def _names(listener: Any) -> tuple[str, ...]:
    """As a call has them."""
    return listener.title, listener.bind


def _described(dialects: Iterable[Dialect]) -> Iterator[tuple[Dialect, ApiDescription]]:
    return ((dialect, dialect.api) for dialect in dialects if dialect.api is not None)


def _group(operation: ApiOperation) -> str:
    """Operations of one group fail alike."""
    if operation.admin:
        return "change"
    return "infer" if operation.kind in INFERENCES else "ask"


def _named(dialect: Dialect, operation: ApiOperation, status: int) -> str:
    return f"{dialect.name}_{_group(operation)}_{status}"


def _chapter(kind: type[GatewayError]) -> str:
    """A dialect's own kinds are about its messages."""
    package, _, chapter = kind.__module__.rpartition(".")
    return chapter if package == GatewayError.__module__.rpartition(".")[0] else "message"


def _add_example(paths: _Paths, sample: SampleRequest | None, max_bytes: int | None) -> None:
    """Put a request that works beside its schema, unless it is long, or has numbers that JSON has no words for."""
    if sample is None or (max_bytes is not None and len(sample.body) > max_bytes):
        return
    operation = paths.get(sample.path.partition("?")[0], {}).get("post")
    if operation is None or _JSON not in operation["requestBody"]["content"]:
        return
    with suppress(orjson.JSONDecodeError):
        operation["requestBody"]["content"][_JSON]["example"] = orjson.loads(sample.body)


def _response(meaning: str, content: Content) -> dict[str, Any]:
    return {"description": meaning, **({"content": _content(content)} if content else {})}


def _content(content: Content) -> dict[str, Any]:
    return {media_type: {"schema": schema} for media_type, schema in content.items()}


def _reachable(roots: Any, known: Mapping[str, Schema]) -> dict[str, Schema]:
    """The schemas that these refer to, and those that they refer to in turn."""
    found: dict[str, Schema] = {}
    waiting = [roots]
    while waiting:
        each = waiting.pop()
        if isinstance(each, Mapping):
            name = str(each.get("$ref", "")).removeprefix("#/components/schemas/")
            if name in known and name not in found:
                found[name] = known[name]
                waiting.append(known[name])
            waiting += each.values()
        elif isinstance(each, (list, tuple)):
            waiting += each
    return found


def _document(head: Mapping[str, Any], paths: Sequence[bytes], schemas: Sequence[bytes]) -> bytes:
    """One document of its parts' texts."""
    components = orjson.dumps(head["components"])[:-1]
    rest = orjson.dumps({key: value for key, value in head.items() if key != "components"})[:-1]
    return b'%b,"paths":{%b},"components":%b,"schemas":{%b}}}' % (
        rest,
        b",".join(filter(None, paths)),
        components,
        b",".join(filter(None, schemas)),
    )

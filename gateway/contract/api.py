"""How a dialect describes its HTTP addresses to people and to generators of clients, in OpenAPI's words.

A dialect gives the operations and schemas that are its own; whoever puts a document together adds what all share: the
failures of each operation, by the dialect's own table of statuses, and the credentials that a port wants.
Source: OpenAPI 3.1, whose schemas are JSON Schema 2020-12.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from tensorgate.gateway.contract.canonical import ModelView
from tensorgate.gateway.contract.errors import GatewayError
from tensorgate.gateway.contract.tensor import NOTHING

Schema: TypeAlias = Mapping[str, Any]
"""A JSON Schema. It refers to others of the same document as `{"$ref": "#/components/schemas/NAME"}`."""

Content: TypeAlias = Mapping[str, Schema]
"""Media type -> what a body of that type is."""


@dataclass(frozen=True, slots=True)
class ApiOperation:
    """One HTTP method at one path."""

    kind: str
    """Endpoint.method: infer, metadata, ready, …"""
    method: str
    """HTTP's, in capitals."""
    path: str
    """With parameters in braces: /v2/models/{model}/infer."""
    id: str
    """Unique in a document: generators name a function by it."""
    summary: str
    reply: Content
    """What answers with status 200; {}: no body."""
    admin: bool = False
    """It needs the administrator's rights."""
    request: Content = NOTHING
    """{}: it takes no body."""
    requires_body: bool = True
    parameters: tuple[Mapping[str, Any], ...] = ()
    """OpenAPI's Parameter Objects."""
    other_replies: Mapping[int, tuple[str, Content]] = field(default_factory=dict)
    """Status -> what it means and its body, of answers that are neither 200 nor a failure."""


@dataclass(frozen=True, slots=True)
class ApiPart:
    """Operations, and the schemas that they refer to, by name."""

    operations: tuple[ApiOperation, ...]
    schemas: Mapping[str, Schema]


@dataclass(frozen=True, slots=True)
class ApiDescription:
    """A dialect's HTTP addresses, described."""

    server: Callable[[], ApiPart]
    """Every address, those of models with the model as a parameter."""
    model: Callable[[ModelView, int | None], ApiPart]
    """(a model, the version that the addresses name, None for those without) -> what is particular to that model. The
    names of its schemas, and its ids, occur in no other model's part."""
    statuses: Mapping[type[GatewayError], int]
    """The HTTP status of each kind of failure; one of 200 is told by `reply` alone."""
    error: Schema
    """The body of a failure, JSON."""

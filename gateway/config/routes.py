"""Routes: public names beside the models' own, and the models that answer under each.

routes:
  mnist: [{model: digits, label: stable, weight: 90}, {model: digits, label: canary, weight: 10}]
  vision:
    match: [{header: {x-canary: "*"}, to: [{model: resnet, label: canary}]}]
    targets: [{model: resnet, weight: 95}, {model: resnet-next, weight: 5}]
    sticky: {header: x-user-id}
    fallback: [{model: resnet-elsewhere}]
    timeout_ms: 500
    max_concurrent: 64
    mirror: {to: [{model: resnet-new}], share: 0.1, samples: {file: diffs.jsonl}}
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from pydantic import (
    AfterValidator,
    Field,
    GetCoreSchemaHandler,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic_core import CoreSchema, core_schema

from tensorgate.gateway.config.values import MAX_VERSION, refuse
from tensorgate.gateway.contract.files import Existing, FileRef
from tensorgate.gateway.contract.options import Options

ANY: Final = "*"
_HEADER: Final = r"^[A-Za-z0-9!#$%&'*+.^_`|~-]+$"

Header = Annotated[str, Field(pattern=_HEADER)]


class RouteTarget(Options):
    """A model behind a public name, with its share of the requests."""

    model: str
    """The model's name."""
    version: int | None = Field(default=None, ge=0, le=MAX_VERSION)
    """One version; null is the highest that is ready."""
    label: str | None = None
    """A version label in place of a version."""
    weight: int = Field(default=100, ge=0)
    """Its share, relative to the other targets."""

    @field_validator("label")
    @classmethod
    def _not_both(cls, label: str | None, info: ValidationInfo) -> str | None:
        if label is not None and info.data.get("version") is not None:
            raise ValueError("a target has a version or a label, not both")
        return label


def _some_weight(targets: tuple[RouteTarget, ...]) -> tuple[RouteTarget, ...]:
    if not any(target.weight for target in targets):
        raise ValueError("all weights are 0; one target at least must take requests")
    return targets


Targets = Annotated[tuple[RouteTarget, ...], Field(min_length=1), AfterValidator(_some_weight)]


class Rule(Options):
    """Where requests go of which all of this is true."""

    header: dict[Header, str | Annotated[tuple[str, ...], Field(min_length=1)]] = Field(default_factory=dict)
    """An HTTP header, or gRPC metadata -> its value, or one of several; "*" is any."""
    dialect: str | tuple[str, ...] | None = None
    """The dialect that the caller speaks, or one of several."""
    transport: Literal["http", "grpc"] | None = None
    """The transport that it uses."""
    listener: str | tuple[str, ...] | None = None
    """The port where it came in, by its name or its bind, or one of several."""
    caller: str | tuple[str, ...] | None = None
    """Who calls, as the section auth knows it, or one of several: a name, "role:NAME", "*" or "anonymous"."""
    to: Targets
    """Its targets."""

    @model_validator(mode="after")
    def _says_something(self) -> Rule:
        if not (self.header or self.dialect or self.transport or self.listener or self.caller):
            raise ValueError("a rule without a condition takes every request: write its targets as the route's own")
        return self


class Sticky(Options):
    """What keeps a caller with one target: equal values have the same one, as long as weights stay. When they are
    shifted, no more callers change than the shift takes.
    """

    header: Header | None = None
    """An HTTP header, or gRPC metadata."""
    parameter: str | None = Field(default=None, min_length=1)
    """A parameter of the request."""
    caller: bool = False
    """Who calls, as the section auth knows it."""

    @model_validator(mode="after")
    def _one_of_them(self) -> Sticky:
        if sum((self.header is not None, self.parameter is not None, self.caller)) != 1:
            raise ValueError("needs header, parameter or caller, one of them")
        return self


class DifferenceSamples(Options):
    """A file of answers that differ, one JSON object per line; `tensorgate diff FILE` shows it."""

    file: Annotated[FileRef, Existing("new")]
    """The file. When half of max_bytes is full, it becomes FILE.1, in place of an older one."""
    max_bytes: int = Field(default=64 << 20, ge=64 << 10)
    """The most that both take on disk."""
    rate_per_minute: float = Field(default=6, gt=0, le=6000, allow_inf_nan=False)
    """How many samples are kept at most."""
    inputs: bool = False
    """Whether a sample has the request's inputs, if they are no more than a few thousand elements."""


class Mirror(Options):
    """A copy of requests goes to other models once the caller has its answer, and the answers are compared. Callers do
    not wait for it. Requests of sequences and to decoupled models are not mirrored.
    """

    to: Targets
    """Models that get the copies, by weight."""
    share: float = Field(default=1.0, gt=0, le=1, allow_inf_nan=False)
    """How much of the traffic is mirrored, at random."""
    rtol: float = Field(default=1e-3, ge=0, allow_inf_nan=False)
    """How much floating-point numbers may differ, relative to the caller's answer; all others must be equal."""
    atol: float = Field(default=1e-5, ge=0, allow_inf_nan=False)
    """How much they may differ besides."""
    ignore: tuple[str, ...] = ()
    """Outputs that are not compared."""
    max_in_flight: int = Field(default=8, ge=1, le=1024)
    """How many copies may be under way."""
    max_queued_bytes: int = Field(default=64 << 20, ge=1 << 10)
    """How much tensors of copies may take, waiting or under way; beyond that, requests are not mirrored."""
    timeout_ms: int = Field(default=1000, ge=1)
    """How long a copy may take."""
    samples: DifferenceSamples | None = None
    """Where answers that differ are kept; null: they are only counted."""


class RouteConfig(Options):
    """A public name, and the models behind it."""

    targets: Targets
    """Models that share its requests by weight."""
    match: tuple[Rule, ...] = ()
    """Rules that are looked at first; the first that fits decides."""
    sticky: Sticky | None = None
    """What keeps a caller with one target; null: every request is shared out anew. A sequence always stays."""
    fallback: tuple[RouteTarget, ...] = ()
    """Models that are asked instead, in this order, when one is not there or not ready, or becomes so meanwhile."""
    fallback_on_overload: bool = False
    """Whether they are asked, too, when its queue is full."""
    timeout_ms: int = Field(default=0, ge=0)
    """How long a request may take at most; 0: as long as its caller waits."""
    max_concurrent: int = Field(default=0, ge=0)
    """How many requests may be on their way; more are refused like those of a full queue. 0: any number."""
    mirror: Mirror | None = None
    """Other models that get a copy of requests, so that answers can be compared."""

    @field_validator("fallback")
    @classmethod
    def _has_no_shares(cls, fallback: tuple[RouteTarget, ...]) -> tuple[RouteTarget, ...]:
        for index, target in enumerate(fallback):
            if "weight" in target.model_fields_set:
                raise refuse(index, "weight", text="a fallback has no share: the first that is ready takes all")
        return fallback


def _whole(route: tuple[RouteTarget, ...] | RouteConfig) -> RouteConfig:
    return route if isinstance(route, RouteConfig) else RouteConfig(targets=route)


class _ShortOrLong:
    """Annotation of a RouteConfig: its targets alone will do."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_after_validator_function(_whole, handler.generate_schema(Targets | RouteConfig))


Route = Annotated[RouteConfig, _ShortOrLong()]
"""A list of targets, or everything that can be said of a route."""

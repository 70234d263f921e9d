"""Why callers are turned away: errors that are no fault of the question itself, by a word for Prometheus."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from tensorgate.gateway.contract.errors import (
    AdminRequired,
    BatchTooLarge,
    BodyTooLarge,
    Code,
    DeadlineExceeded,
    Exhausted,
    GatewayError,
    MalformedJson,
    ModelControlOff,
    ModelUnavailable,
    OutOfMemory,
    OutputTooLarge,
    QueueFull,
    QueueTimeout,
    RegionLimit,
)

DRAINING: Final = "draining"
_DEPTH: Final = "depth"
_TOO_DEEP: Final = "nesting deeper than"
"""How a JSON reader's reason begins that has reached the limit."""
_BY_KIND: Final[Mapping[type[GatewayError], str]] = {
    BodyTooLarge: "body_too_large",
    BatchTooLarge: "batch_too_large",
    OutputTooLarge: "output_too_large",
    QueueFull: "queue_full",
    QueueTimeout: "queue_timeout",
    DeadlineExceeded: "deadline",
    ModelUnavailable: "unavailable",
    AdminRequired: "admin",
    ModelControlOff: "model_control",
    RegionLimit: "region_limit",
    Exhausted: "exhausted",
    OutOfMemory: "out_of_memory",
}
_BY_CODE: Final[Mapping[Code, str]] = {
    Code.UNAUTHENTICATED: "unauthenticated",
    Code.PERMISSION_DENIED: "forbidden",
    Code.RESOURCE_EXHAUSTED: "rate_limited",
}
"""Of kinds that have no word of their own."""

REFUSALS: Final = (*_BY_KIND.values(), *_BY_CODE.values(), _DEPTH, DRAINING)


def refusal_of(error: GatewayError, *, draining: bool) -> str | None:
    """One of REFUSALS, or None where the question itself, or the model, has failed."""
    if type(error) is ModelUnavailable and draining:
        return DRAINING
    if type(error) is MalformedJson and error.reason.startswith(_TOO_DEEP):
        return _DEPTH
    return _BY_KIND.get(type(error)) or _BY_CODE.get(error.code)

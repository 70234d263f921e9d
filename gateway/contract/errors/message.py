"""The request cannot be read, or has no endpoint."""

from __future__ import annotations

from tensorgate.gateway.contract.errors.base import Code, GatewayError, Worded
from tensorgate.gateway.contract.errors.reasons import ErrorReason


class InvalidArgument(Worded, GatewayError):
    """Something in the request is wrong, says a dialect or a user's model."""

    code = Code.INVALID_ARGUMENT
    error_reason = ErrorReason.MALFORMED


class Unsupported(Worded, GatewayError):
    """The request asks for something that this server does not support."""

    code = Code.UNIMPLEMENTED
    error_reason = ErrorReason.UNSUPPORTED


class NotFound(Worded, GatewayError):
    """Something other than a model does not exist."""

    code = Code.NOT_FOUND
    error_reason = ErrorReason.NOT_FOUND


class MalformedJson(GatewayError):
    """The body is not JSON.

    `reason` is RapidJSON's wording, which two of the three contracts use; `offset` counts bytes, None if unknown.
    `max_depth` is how deep it may nest, of one that nests deeper.
    """

    code = Code.INVALID_ARGUMENT
    error_reason = ErrorReason.MALFORMED

    def __init__(self, reason: str, offset: int | None = None, max_depth: int | None = None) -> None:
        super().__init__(f"{reason} at {offset}")
        self.reason = reason
        self.offset = offset
        self.max_depth = max_depth
        if max_depth is not None:
            self.error_reason = ErrorReason.TOO_DEEP


class BodyTooLarge(GatewayError):
    """The body is (or inflates to) more than `limit` bytes."""

    code = Code.RESOURCE_EXHAUSTED
    error_reason = ErrorReason.TOO_LARGE

    def __init__(self, limit: int) -> None:
        super().__init__(f"body larger than {limit} bytes")
        self.limit = limit


class RouteNotFound(GatewayError):
    """No endpoint has this address."""

    code = Code.UNIMPLEMENTED
    error_reason = ErrorReason.UNKNOWN_ADDRESS

    def __init__(self, method: str, path: str) -> None:
        super().__init__(f"{method} {path}")
        self.method = method
        self.path = path


class MethodNotAllowed(RouteNotFound):
    """The address has endpoints, but not for this method."""

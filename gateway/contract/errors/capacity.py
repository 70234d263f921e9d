"""Queues are full, deadlines pass, or the model is being unloaded."""

from __future__ import annotations

from math import ceil

from tensorgate.gateway.contract.errors.base import Code, GatewayError
from tensorgate.gateway.contract.errors.reasons import ErrorReason


class QueueFull(GatewayError):
    """The model's queue already has `limit` requests, or, where a `caller` is named, so many of that one's."""

    code = Code.UNAVAILABLE
    error_reason = ErrorReason.QUEUE_FULL

    def __init__(self, model: str, limit: int, caller: str = "") -> None:
        self.model = model
        self.limit = limit
        self.caller = caller
        super().__init__(f"{limit} requests wait for model '{model}'{self.whose}")

    @property
    def whose(self) -> str:
        """Whose limit it is, for the end of a sentence; "" where it is everybody's."""
        return f" (for caller '{self.caller}' alone)" if self.caller else ""


class QueueTimeout(GatewayError):
    """The request waited in the queue longer than its timeout."""

    code = Code.UNAVAILABLE
    error_reason = ErrorReason.QUEUE_TIMEOUT

    def __init__(self, model: str) -> None:
        super().__init__(model)
        self.model = model


class WouldBeLate(GatewayError):
    """The request would have been answered after its deadline, or past the model's goal, given what waits before it; in
    `wait_s` seconds it might not be.
    """

    code = Code.UNAVAILABLE
    error_reason = ErrorReason.SHED

    def __init__(self, model: str, wait_s: float) -> None:
        super().__init__(f"model '{model}' would answer {wait_s:.3f} s late")
        self.model = model
        self.wait_s = wait_s
        self.http_headers = {"Retry-After": str(max(1, ceil(wait_s)))}


class DeadlineExceeded(GatewayError):
    """The caller's deadline passed before the response."""

    code = Code.DEADLINE_EXCEEDED
    error_reason = ErrorReason.DEADLINE

    def __init__(self, model: str) -> None:
        super().__init__(model)
        self.model = model


class ModelUnavailable(GatewayError):
    """The model is being unloaded, or the server stops."""

    code = Code.UNAVAILABLE
    error_reason = ErrorReason.UNAVAILABLE

    def __init__(self, model: str) -> None:
        super().__init__(model)
        self.model = model

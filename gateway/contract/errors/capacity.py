"""Time and room."""

from __future__ import annotations

from tensorgate.gateway.contract.errors.base import Code, GatewayError


class QueueFull(GatewayError):
    """`limit` requests wait for this model already."""

    code = Code.UNAVAILABLE

    def __init__(self, model: str, limit: int) -> None:
        super().__init__(f"{limit} requests wait for model '{model}'")
        self.model = model
        self.limit = limit


class QueueTimeout(GatewayError):
    """The request waited longer than it was willing to."""

    code = Code.UNAVAILABLE

    def __init__(self, model: str) -> None:
        super().__init__(model)
        self.model = model


class DeadlineExceeded(GatewayError):
    """The caller's deadline passed before there was an answer."""

    code = Code.DEADLINE_EXCEEDED

    def __init__(self, model: str) -> None:
        super().__init__(model)
        self.model = model


class ModelUnavailable(GatewayError):
    """The model was being unloaded when the request reached it, or the server stops."""

    code = Code.UNAVAILABLE

    def __init__(self, model: str) -> None:
        super().__init__(model)
        self.model = model

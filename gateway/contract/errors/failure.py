"""The model or the gateway failed, or a model reports why it does not answer."""

from __future__ import annotations

from tensorgate.gateway.contract.errors.base import Code, GatewayError, Worded
from tensorgate.gateway.contract.errors.reasons import ErrorReason


class OutOfMemory(GatewayError):
    """The host or a device has no memory for the request: a smaller or later one may succeed."""

    code = Code.RESOURCE_EXHAUSTED
    error_reason = ErrorReason.OUT_OF_MEMORY

    def __init__(self, model: str) -> None:
        super().__init__(f"model '{model}' is out of memory")
        self.model = model


class DeviceLost(GatewayError):
    """The model's device refuses all further work of this process, which is about to be replaced."""

    code = Code.UNAVAILABLE
    error_reason = ErrorReason.UNAVAILABLE

    def __init__(self, model: str) -> None:
        super().__init__(f"model '{model}' has lost its device")
        self.model = model


class ModelFailed(Worded, GatewayError):
    """The model raised an exception; `text` is its last line, never a traceback."""

    code = Code.INTERNAL
    error_reason = ErrorReason.MODEL_RAISED


class OutputRows(ModelFailed):
    """A batch of `rows` rows gave an output with another number of rows, or without dimensions."""

    def __init__(self, output: str, shape: tuple[int, ...], rows: int) -> None:
        super().__init__(
            f"output '{output}' has shape {list(shape)}, but its first dimension must be the {rows} rows of the batch"
        )
        self.output = output
        self.shape = shape
        self.rows = rows


class Unknown(Worded, GatewayError):
    """A model reports a failure of no particular kind."""

    code = Code.UNKNOWN
    error_reason = ErrorReason.MODEL_RAISED


class Unavailable(Worded, GatewayError):
    """A model reports that it is unavailable."""

    code = Code.UNAVAILABLE
    error_reason = ErrorReason.UNAVAILABLE


class Exhausted(Worded, GatewayError):
    """A model reports that a resource is exhausted."""

    code = Code.RESOURCE_EXHAUSTED
    error_reason = ErrorReason.MODEL_REFUSED


class TimedOut(Worded, GatewayError):
    """A model reports that the request's time ran out."""

    code = Code.DEADLINE_EXCEEDED
    error_reason = ErrorReason.DEADLINE


class PreconditionFailed(Worded, GatewayError):
    """A model reports that its state does not allow the request."""

    code = Code.FAILED_PRECONDITION
    error_reason = ErrorReason.MODEL_REFUSED


class AlreadyExists(Worded, GatewayError):
    """A model reports that what the request would create exists."""

    code = Code.ALREADY_EXISTS
    error_reason = ErrorReason.MODEL_REFUSED


class Cancelled(Worded, GatewayError):
    """A model reports that it cancelled the request."""

    code = Code.CANCELLED
    error_reason = ErrorReason.CANCELLED


class EncodingFailed(Worded, GatewayError):
    """The response has a tensor that this encoding cannot carry."""

    code = Code.INVALID_ARGUMENT
    error_reason = ErrorReason.UNSUPPORTED


class Internal(GatewayError):
    """A bug of the gateway. Callers get no details; the log has the traceback."""

    code = Code.INTERNAL
    error_reason = ErrorReason.INTERNAL

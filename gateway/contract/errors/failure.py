"""What happened inside, and what a model says of it."""

from __future__ import annotations

from tensorgate.gateway.contract.errors.base import Code, GatewayError, Worded


class OutOfMemory(GatewayError):
    """There was no memory, on the host or on a device, for what the request needs: a smaller one, or a later one, may
    fare better.
    """

    code = Code.RESOURCE_EXHAUSTED

    def __init__(self, model: str) -> None:
        super().__init__(f"model '{model}' is out of memory")
        self.model = model


class DeviceLost(GatewayError):
    """The device of the model does no more work for this process, which is about to be replaced."""

    code = Code.UNAVAILABLE

    def __init__(self, model: str) -> None:
        super().__init__(f"model '{model}' has lost its device")
        self.model = model


class ModelFailed(Worded, GatewayError):
    """The model itself raised; `text` is the last line it said, never a traceback."""

    code = Code.INTERNAL


class OutputRows(ModelFailed):
    """A batch of `rows` rows gave an output of another number of rows, or without dimensions."""

    def __init__(self, output: str, shape: tuple[int, ...], rows: int) -> None:
        super().__init__(
            f"output '{output}' has shape {list(shape)}, but its first dimension must be the {rows} rows of the batch"
        )
        self.output = output
        self.shape = shape
        self.rows = rows


class Unknown(Worded, GatewayError):
    """A model says that a request failed, and not of what kind the failure is; `text` reaches the caller as it is."""

    code = Code.UNKNOWN


class Unavailable(Worded, GatewayError):
    """A model says that it cannot answer now; `text` reaches the caller as it is."""

    code = Code.UNAVAILABLE


class Exhausted(Worded, GatewayError):
    """A model says that it has no room for a request; `text` reaches the caller as it is."""

    code = Code.RESOURCE_EXHAUSTED


class TimedOut(Worded, GatewayError):
    """A model says that the time for a request was over; `text` reaches the caller as it is."""

    code = Code.DEADLINE_EXCEEDED


class PreconditionFailed(Worded, GatewayError):
    """A model says that it is in no state to answer such a request; `text` reaches the caller as it is."""

    code = Code.FAILED_PRECONDITION


class AlreadyExists(Worded, GatewayError):
    """A model says that what the request would make is there; `text` reaches the caller as it is."""

    code = Code.ALREADY_EXISTS


class Cancelled(Worded, GatewayError):
    """A model says that it has stopped working on a request; `text` reaches the caller as it is."""

    code = Code.CANCELLED


class EncodingFailed(Worded, GatewayError):
    """The answer has a tensor that this encoding cannot carry; `text` reaches the caller as it is."""

    code = Code.INVALID_ARGUMENT


class Internal(GatewayError):
    """A fault of ours. The caller learns no more than that; the log has the whole story."""

    code = Code.INTERNAL

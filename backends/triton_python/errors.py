"""pb_utils.TritonError and TritonModelException: a model's errors, and the gateway's kinds that they are."""

from __future__ import annotations

from typing import Any, ClassVar, Final

from tensorgate.gateway.contract.errors import (
    AlreadyExists,
    Cancelled,
    Code,
    GatewayError,
    InvalidArgument,
    ModelFailed,
    ModelNotFound,
    NotFound,
    Unavailable,
    Unknown,
    Unsupported,
)


class TritonError:
    """What went wrong with one request. It is a value to answer with, not an exception."""

    UNKNOWN: ClassVar[int] = 0
    INTERNAL: ClassVar[int] = 1
    NOT_FOUND: ClassVar[int] = 2
    INVALID_ARG: ClassVar[int] = 3
    UNAVAILABLE: ClassVar[int] = 4
    UNSUPPORTED: ClassVar[int] = 5
    ALREADY_EXISTS: ClassVar[int] = 6
    CANCELLED: ClassVar[int] = 7

    def __init__(self, message: str, code: int = 1) -> None:
        if not isinstance(message, str):
            raise TypeError(f"a TritonError's message is text, not {type(message).__name__}")
        if code not in KINDS:
            raise ValueError(f"{code!r} is no code of TritonError")
        self._message = message
        self._code = code

    def message(self) -> str:
        return self._message

    def code(self) -> int:
        return self._code

    def __repr__(self) -> str:
        return f"TritonError({self._message!r}, {self._code})"


class TritonModelException(Exception):
    """What pb_utils itself raises, and what a model may raise."""


KINDS: Final[dict[int, Any]] = {
    TritonError.UNKNOWN: Unknown,
    TritonError.INTERNAL: ModelFailed,
    TritonError.NOT_FOUND: NotFound,
    TritonError.INVALID_ARG: InvalidArgument,
    TritonError.UNAVAILABLE: Unavailable,
    TritonError.UNSUPPORTED: Unsupported,
    TritonError.ALREADY_EXISTS: AlreadyExists,
    TritonError.CANCELLED: Cancelled,
}
"""The kinds of GatewayError that are made of a text."""
_CODES: Final = {
    **{kind.code: number for number, kind in KINDS.items()},
    Code.RESOURCE_EXHAUSTED: TritonError.UNAVAILABLE,
    Code.DEADLINE_EXCEEDED: TritonError.UNAVAILABLE,
}


def gateway_error(error: TritonError) -> GatewayError:
    """A model's error -> the kind that every dialect can word."""
    kind: GatewayError = KINDS[error.code()](error.message())
    return kind


def triton_error(error: GatewayError) -> TritonError:
    """Another model's failure -> what the model that called it learns."""
    if isinstance(error, ModelNotFound):
        return TritonError(
            f"Model {error.name} - Error when running inference: Failed for execute the inference request. "
            f"Model '{error.name}' is not ready.",
            TritonError.NOT_FOUND,
        )
    return TritonError(getattr(error, "text", "") or str(error), _CODES.get(error.code, TritonError.INTERNAL))

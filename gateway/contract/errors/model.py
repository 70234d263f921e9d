"""The model, version, label or signature does not exist, or cannot be called like this."""

from __future__ import annotations

from tensorgate.gateway.contract.errors.base import Code, GatewayError
from tensorgate.gateway.contract.errors.reasons import ErrorReason


class ModelNotFound(GatewayError):
    """No model has this name or version. `known`: the model is configured or was loaded, but no version serves;
    `serves`: others of its versions do.
    """

    code = Code.NOT_FOUND
    error_reason = ErrorReason.UNKNOWN_MODEL

    def __init__(self, name: str, version: int | None = None, *, known: bool = False, serves: bool = False) -> None:
        super().__init__(name if version is None else f"{name} version {version}")
        self.name = name
        self.version = version
        self.known = known
        self.serves = serves
        if known:
            self.error_reason = ErrorReason.UNAVAILABLE
        elif serves:
            self.error_reason = ErrorReason.UNKNOWN_VERSION


class LabelNotFound(GatewayError):
    """The model has no version with this label."""

    code = Code.INVALID_ARGUMENT
    error_reason = ErrorReason.UNKNOWN_VERSION

    def __init__(self, name: str, label: str) -> None:
        super().__init__(f"{name} label {label}")
        self.name = name
        self.label = label


class SignatureNotFound(GatewayError):
    """The model has no such signature."""

    code = Code.FAILED_PRECONDITION
    error_reason = ErrorReason.UNKNOWN_SIGNATURE

    def __init__(self, model: str, signature: str) -> None:
        super().__init__(f"{model} signature {signature}")
        self.model = model
        self.signature = signature


class ModelDecoupled(GatewayError):
    """A decoupled model gives any number of responses, but this call takes exactly one."""

    code = Code.UNIMPLEMENTED
    error_reason = ErrorReason.UNSUPPORTED

    def __init__(self, model: str) -> None:
        super().__init__(model)
        self.model = model


class NotOneAnswer(GatewayError):
    """A decoupled model gave no response, or several, but this call takes exactly one."""

    code = Code.INVALID_ARGUMENT
    error_reason = ErrorReason.UNSUPPORTED

    def __init__(self, model: str) -> None:
        super().__init__(model)
        self.model = model

"""Which model is meant, and whether it can be asked in this way."""

from __future__ import annotations

from tensorgate.gateway.contract.errors.base import Code, GatewayError


class ModelNotFound(GatewayError):
    """No such model, or not in this version.

    `known` tells that the model has a name here but no version that answers.
    """

    code = Code.NOT_FOUND

    def __init__(self, name: str, version: int | None = None, *, known: bool = False) -> None:
        super().__init__(name if version is None else f"{name} version {version}")
        self.name = name
        self.version = version
        self.known = known


class LabelNotFound(GatewayError):
    """The version label names nothing."""

    code = Code.INVALID_ARGUMENT

    def __init__(self, name: str, label: str) -> None:
        super().__init__(f"{name} label {label}")
        self.name = name
        self.label = label


class SignatureNotFound(GatewayError):
    """The model has no such signature."""

    code = Code.FAILED_PRECONDITION

    def __init__(self, model: str, signature: str) -> None:
        super().__init__(f"{model} signature {signature}")
        self.model = model
        self.signature = signature


class ModelDecoupled(GatewayError):
    """The model answers zero to many times, and this call can carry exactly one answer."""

    code = Code.UNIMPLEMENTED

    def __init__(self, model: str) -> None:
        super().__init__(model)
        self.model = model


class NotOneAnswer(GatewayError):
    """A decoupled model gave no answer, or several, and this call can carry exactly one."""

    code = Code.INVALID_ARGUMENT

    def __init__(self, model: str) -> None:
        super().__init__(model)
        self.model = model

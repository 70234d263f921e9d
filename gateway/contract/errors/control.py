"""The caller is not allowed to, asks too often, or a change of the served models fails."""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil
from typing import NamedTuple

from tensorgate.gateway.contract.errors.base import Code, GatewayError
from tensorgate.gateway.contract.errors.reasons import ErrorReason


class AdminRequired(GatewayError):
    """The call would change the server's state, and lacks the administrator's key in `header`."""

    code = Code.PERMISSION_DENIED
    error_reason = ErrorReason.FORBIDDEN

    def __init__(self, header: str) -> None:
        super().__init__(header)
        self.header = header


class Unauthenticated(GatewayError):
    """The call has no credentials, or (`given`) invalid ones. Why they are invalid is not revealed."""

    code = Code.UNAUTHENTICATED
    error_reason = ErrorReason.UNAUTHENTICATED

    def __init__(self, *, given: bool) -> None:
        super().__init__("wrong credentials" if given else "no credentials")
        self.given = given
        challenge = 'Bearer realm="tensorgate"'
        self.http_headers = {"WWW-Authenticate": f'{challenge}, error="invalid_token"' if given else challenge}


class Forbidden(GatewayError):
    """The caller may not use `model` or, without one, change the server's state."""

    code = Code.PERMISSION_DENIED
    error_reason = ErrorReason.FORBIDDEN

    def __init__(self, model: str = "") -> None:
        super().__init__(f"not allowed: {f'model {model}' if model else 'administration'}")
        self.model = model


class CrossOriginRefused(GatewayError):
    """A browser was made to change the server's state by a page of another site, `origin`."""

    code = Code.PERMISSION_DENIED
    error_reason = ErrorReason.FORBIDDEN

    def __init__(self, origin: str) -> None:
        super().__init__(f"for pages of {origin}, this server's state is not to be changed")
        self.origin = origin


class RateLimited(GatewayError):
    """The caller has reached a limit of `what`; `retry_after` is in whole seconds."""

    code = Code.RESOURCE_EXHAUSTED
    error_reason = ErrorReason.RATE

    def __init__(self, what: str, retry_after: float) -> None:
        super().__init__(f"too many {what}, retry after {retry_after:.3f} s")
        self.what = what
        self.retry_after = max(1, ceil(retry_after))
        self.http_headers = {"Retry-After": str(self.retry_after)}


class ModelControlOff(GatewayError):
    """Callers may not load and unload models: model_control.mode is not explicit or, for a list that replaces all
    served models, model_control.model_roots is empty.
    """

    code = Code.UNAVAILABLE
    error_reason = ErrorReason.FORBIDDEN


class ModelNotStored(GatewayError):
    """The model to load is in no repository."""

    code = Code.INTERNAL
    error_reason = ErrorReason.UNKNOWN_MODEL

    def __init__(self, model: str) -> None:
        super().__init__(model)
        self.model = model


class LoadRefused(GatewayError):
    """The configuration or files of a load are wrong; `reason` is a text for the caller."""

    code = Code.INVALID_ARGUMENT
    error_reason = ErrorReason.LOAD_FAILED

    def __init__(self, model: str, reason: str) -> None:
        super().__init__(f"model '{model}': {reason}")
        self.model = model
        self.reason = reason


class LoadFailed(GatewayError):
    """Versions of a model could not be loaded; `reasons` has texts by version. Versions that served before still do."""

    code = Code.INVALID_ARGUMENT
    error_reason = ErrorReason.LOAD_FAILED

    def __init__(self, model: str, reasons: Mapping[int, str]) -> None:
        super().__init__(f"model '{model}': {dict(reasons)}")
        self.model = model
        self.reasons = reasons


class PlatformRefused(GatewayError):
    """The platform of a listed model is unknown, or differs from its present one, `before`."""

    code = Code.INVALID_ARGUMENT
    error_reason = ErrorReason.LOAD_FAILED

    def __init__(self, model: str, platform: str, before: str = "") -> None:
        super().__init__(f"model '{model}': platform '{platform}', so far '{before}'")
        self.model = model
        self.platform = platform
        self.before = before


class LabelRefused(GatewayError):
    """A label is to name a version that does not serve."""

    code = Code.FAILED_PRECONDITION
    error_reason = ErrorReason.LOAD_FAILED

    def __init__(self, model: str, label: str, version: int) -> None:
        super().__init__(f"model '{model}': label '{label}' for version {version}")
        self.model = model
        self.label = label
        self.version = version


class Reason(NamedTuple):
    """Why a load failed: a text for people, and its code."""

    text: str
    code: Code = Code.UNKNOWN


class ReloadFailed(GatewayError):
    """New models of a list could not be loaded; `reasons` is by model and version. The list is in force nonetheless."""

    code = Code.UNKNOWN
    error_reason = ErrorReason.LOAD_FAILED

    def __init__(self, reasons: Mapping[tuple[str, int], Reason]) -> None:
        super().__init__(str(dict(reasons)))
        self.reasons = reasons

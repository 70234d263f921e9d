"""Who may change the server's state, and what becomes of a change."""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil
from typing import NamedTuple

from tensorgate.gateway.contract.errors.base import Code, GatewayError


class AdminRequired(GatewayError):
    """The call changes the server's state, and does not carry the administrator's key in `header`."""

    code = Code.PERMISSION_DENIED

    def __init__(self, header: str) -> None:
        super().__init__(header)
        self.header = header


class Unauthenticated(GatewayError):
    """Nobody knows who calls: the call has no credentials, or some that count for nothing here.

    `given`: it has some. What exactly is wrong with them is nobody's business.
    """

    code = Code.UNAUTHENTICATED

    def __init__(self, *, given: bool) -> None:
        super().__init__("wrong credentials" if given else "no credentials")
        self.given = given
        challenge = 'Bearer realm="tensorgate"'
        self.http_headers = {"WWW-Authenticate": f'{challenge}, error="invalid_token"' if given else challenge}


class Forbidden(GatewayError):
    """The caller is known, or needs not be, and may not do this: use `model`, or change the server's state."""

    code = Code.PERMISSION_DENIED

    def __init__(self, model: str = "") -> None:
        super().__init__(f"not allowed: {f'model {model}' if model else 'administration'}")
        self.model = model


class CrossOriginRefused(GatewayError):
    """A page of another site has a browser change the server's state; `origin` is that site, as far as the browser
    says it.
    """

    code = Code.PERMISSION_DENIED

    def __init__(self, origin: str) -> None:
        super().__init__(f"for pages of {origin}, this server's state is not to be changed")
        self.origin = origin


class RateLimited(GatewayError):
    """The caller has used up what it may use; after `retry_after` seconds there is more."""

    code = Code.RESOURCE_EXHAUSTED

    def __init__(self, what: str, retry_after: float) -> None:
        super().__init__(f"too many {what}, retry after {retry_after:.3f} s")
        self.what = what
        self.retry_after = max(1, ceil(retry_after))
        self.http_headers = {"Retry-After": str(self.retry_after)}


class ModelControlOff(GatewayError):
    """Models are not loaded and unloaded by callers here: the mode of model control is another, or, for a list of
    models in place of those that are served, no folders are named where they may lie.
    """

    code = Code.UNAVAILABLE


class ModelNotStored(GatewayError):
    """A model was to be loaded that no repository holds."""

    code = Code.INTERNAL

    def __init__(self, model: str) -> None:
        super().__init__(model)
        self.model = model


class LoadRefused(GatewayError):
    """What a model was to be loaded with is wrong: its configuration, or the files that came along.

    `reason` is for the caller's eyes.
    """

    code = Code.INVALID_ARGUMENT

    def __init__(self, model: str, reason: str) -> None:
        super().__init__(f"model '{model}': {reason}")
        self.model = model
        self.reason = reason


class LoadFailed(GatewayError):
    """Versions of a model could not be loaded; `reasons` tells why, by version. What served before still does."""

    code = Code.INVALID_ARGUMENT

    def __init__(self, model: str, reasons: Mapping[int, str]) -> None:
        super().__init__(f"model '{model}': {dict(reasons)}")
        self.model = model
        self.reasons = reasons


class PlatformRefused(GatewayError):
    """A model was to be served as one of a platform that is not known here, or that differs from `before`, its own."""

    code = Code.INVALID_ARGUMENT

    def __init__(self, model: str, platform: str, before: str = "") -> None:
        super().__init__(f"model '{model}': platform '{platform}', so far '{before}'")
        self.model = model
        self.platform = platform
        self.before = before


class LabelRefused(GatewayError):
    """A label was to name a version that does not serve."""

    code = Code.FAILED_PRECONDITION

    def __init__(self, model: str, label: str, version: int) -> None:
        super().__init__(f"model '{model}': label '{label}' for version {version}")
        self.model = model
        self.label = label
        self.version = version


class Reason(NamedTuple):
    """Why something failed, for people, and of what kind that was."""

    text: str
    code: Code = Code.UNKNOWN


class ReloadFailed(GatewayError):
    """Models that are new in a list of models could not be loaded; `reasons` tells why, by model and version. The list
    counts all the same.
    """

    code = Code.UNKNOWN

    def __init__(self, reasons: Mapping[tuple[str, int], Reason]) -> None:
        super().__init__(str(dict(reasons)))
        self.reasons = reasons

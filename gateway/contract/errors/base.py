"""The base of all kinds, the codes that the dialects share, and what an exception says of itself."""

from __future__ import annotations

import os
import traceback
from collections.abc import Mapping
from enum import IntEnum
from pathlib import Path
from types import MappingProxyType
from typing import Final

from tensorgate.gateway.contract.errors.reasons import ErrorReason

_MAX_CAUSES: Final = 8


class Code(IntEnum):
    """gRPC's status codes, which all dialects share. Source: gRPC, statuscodes."""

    OK = 0
    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    ABORTED = 10
    OUT_OF_RANGE = 11
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    DATA_LOSS = 15
    UNAUTHENTICATED = 16


_CODES: Final[Mapping[int, Code]] = {
    400: Code.INVALID_ARGUMENT,
    404: Code.NOT_FOUND,
    408: Code.DEADLINE_EXCEEDED,
    409: Code.ALREADY_EXISTS,
    412: Code.FAILED_PRECONDITION,
    413: Code.RESOURCE_EXHAUSTED,
    429: Code.RESOURCE_EXHAUSTED,
    499: Code.CANCELLED,
    501: Code.UNIMPLEMENTED,
    502: Code.UNAVAILABLE,
    503: Code.UNAVAILABLE,
    504: Code.DEADLINE_EXCEEDED,
}
_FIRST_ERROR: Final = 400


def code_of(http_status: int) -> Code:
    """What another server's HTTP status means; whatever else is an error is internal. 502 is a proxy's."""
    return _CODES.get(http_status, Code.INTERNAL) if http_status >= _FIRST_ERROR else Code.OK


class GatewayError(Exception):
    """Base of all kinds.

    `code` is the kind's gRPC status, unless a dialect's table gives another; str() is for logs. Every dialect sends
    `http_headers` with the error. Every kind has an `error_reason`, and some errors one of their own.
    """

    code = Code.UNKNOWN
    error_reason = ErrorReason.INTERNAL
    http_headers: Mapping[str, str] = MappingProxyType({})
    is_logged = False
    """Whether the model's own process has told the log of it, with a traceback."""


class Worded(Exception):
    """Mixin of kinds with a finished text: every dialect sends `text` to the caller unchanged.

    For errors that only their origin can describe: a dialect's about its wire format, or a model's own. `error_reason`
    is for those whose reason is not that of their kind.
    """

    def __init__(self, text: str, error_reason: ErrorReason | None = None) -> None:
        super().__init__(text)
        self.text = text
        if error_reason is not None:
            self.error_reason = error_reason


def text_of(error: BaseException) -> str:
    """str() of an exception, with lone surrogates replaced; empty if a user's class raises in it."""
    try:
        return str(error).encode("utf-8", "replace").decode()
    except BaseException:
        return ""


def source_location(error: BaseException, folder: Path) -> str:
    """The innermost frame of an exception, or of its causes, in a file below a folder: "/m/model.py, line 12"; empty if
    there is none. Packages installed below the folder do not count.
    """
    own = f"{folder}{os.sep}"
    each: BaseException | None = error
    for _ in range(_MAX_CAUSES):
        if each is None:
            break
        frames = reversed(traceback.extract_tb(each.__traceback__))
        for frame in frames:
            if frame.filename.startswith(own) and "site-packages" not in frame.filename:
                return f"{frame.filename}, line {frame.lineno}"
        each = each.__cause__ or each.__context__
    return ""


def kinds(base: type[GatewayError] = GatewayError) -> list[type[GatewayError]]:
    """All subclasses of `base`, for the test that no dialect's table lacks one."""
    return [kind for child in base.__subclasses__() for kind in (child, *kinds(child))]

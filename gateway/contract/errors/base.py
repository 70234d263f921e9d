"""What all kinds have in common, and the codes that every dialect knows."""

from __future__ import annotations

import os
import traceback
from collections.abc import Mapping
from enum import IntEnum
from pathlib import Path
from types import MappingProxyType
from typing import Final

_MAX_CAUSES: Final = 8


class Code(IntEnum):
    """gRPC's status codes, the vocabulary that the dialects share. Source: gRPC, statuscodes."""

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


class GatewayError(Exception):
    """Base of all kinds.

    `code` is what the kind is called where a dialect has no better word for it; str() serves logs. `http_headers` go
    with the error in every dialect.
    """

    code = Code.UNKNOWN
    http_headers: Mapping[str, str] = MappingProxyType({})


class Worded(Exception):
    """What comes with a finished text, which reaches the caller as it is."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text


def text_of(error: BaseException) -> str:
    """What an exception says for itself: text that every encoding can carry, and nothing where
    a user's class raises instead.
    """
    try:
        return str(error).encode("utf-8", "replace").decode()
    except BaseException:
        return ""


def place_of(error: BaseException, folder: Path) -> str:
    """The last line below a folder that an exception has come through, or one that it was raised for: "model.py, line
    12" with its whole path; empty if there is none. Packages that are installed below the folder are somebody else's.
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
    """Every kind below `base`, for the test that no dialect's table lacks one."""
    return [kind for child in base.__subclasses__() for kind in (child, *kinds(child))]

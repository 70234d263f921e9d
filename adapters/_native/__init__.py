"""Helpers in C++, built where there is a compiler; everything works without them."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from tensorgate.gateway.contract.shortcuts import is_taken


def helper(shortcut: str, module: str, function: str) -> Any:
    """A compiled function. None where its shortcut is not to be taken, it has not been built, or is of an older source
    that lacks it.
    """
    if not is_taken(shortcut):
        return None
    try:
        return getattr(import_module(f"{__name__}.{module}"), function, None)
    except ImportError:
        return None

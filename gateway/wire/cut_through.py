"""Which bodies are sent on to somebody else while they still arrive."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from tensorgate.gateway.contract.shortcuts import is_taken
from tensorgate.gateway.wire.http1_body import MIN_PIECE_BYTES, Body

MIN_ARRIVING_BYTES: Final = 256 << 10 if is_taken("cut_through") else 1 << 62
"""Smaller bodies are here with the next read or two, and cost less in one piece."""
_SOON_S: Final = 1e-3
"""A body that is here by then is sent on whole: more and smaller pieces cost sender and receiver more, and save less.
"""


def begin_if_slow(body: Body, size: int, begin: Callable[[], None]) -> None:
    """Begin what may begin before a body of `size` bytes is whole, unless all of it is here soon, or it is small."""
    if size < MIN_ARRIVING_BYTES:
        return
    since = time.monotonic()

    def look() -> None:
        if not body.missing:
            body.on_more = None
        elif size - body.missing >= MIN_PIECE_BYTES and time.monotonic() - since >= _SOON_S:
            body.on_more = None
            begin()

    body.on_more = look

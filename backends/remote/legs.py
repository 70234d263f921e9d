"""Calls to other servers that are parts of traced calls: headers that say so, and when they were over."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from gateway.canonical import InferRequest
from gateway.ports import Ask


@contextmanager
def leg(ask: Ask, requests: Sequence[InferRequest]) -> Iterator[None]:
    """For the time of one call, which may be for several requests: it belongs to the first that is traced."""
    trail = next((trail for each in requests if (trail := each.lifeline.trail) is not None), None)
    if trail is None:
        yield
        return
    part = trail.upstream(ask.target)
    ask.headers = {**ask.headers, **part.headers}
    failed = True
    try:
        yield
        failed = False
    finally:
        part.end(failed=failed)

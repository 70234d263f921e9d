"""Calls to other servers that are parts of traced calls: headers that say so, and when they were over."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final

from tensorgate.gateway.contract.canonical import InferRequest, OutgoingSpan
from tensorgate.gateway.contract.upstream import Ask

_NOBODY_S: Final = nullcontext()


def leg(ask: Ask, requests: Sequence[InferRequest]) -> AbstractContextManager[Any]:
    """For the time of one call, which may be for several requests: it belongs to the first that is traced."""
    for request in requests:
        if (call_record := request.cancellation.call_record) is not None:
            part = call_record.upstream(ask.target)
            ask.headers = {**ask.headers, **part.headers}
            return _Part(part)
    return _NOBODY_S


class _Part:
    """Until its leg is over."""

    def __init__(self, part: OutgoingSpan) -> None:
        self._part = part

    def __enter__(self) -> None: ...

    def __exit__(self, kind: Any, *why: Any) -> None:
        self._part.end(failed=kind is not None)

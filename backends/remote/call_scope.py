"""What lasts as long as one call to another server: the span that its callers' traces get, and their cancellation."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final, TypeVar

from tensorgate.gateway.contract.canonical import InferRequest, OutgoingSpan
from tensorgate.gateway.contract.upstream import Ask
from tensorgate.gateway.wire.eager_start import on_task

T = TypeVar("T")
_UNTRACED: Final = nullcontext()


def upstream_span(ask: Ask, requests: Sequence[InferRequest]) -> AbstractContextManager[Any]:
    """A span for the time of one call, which may be for several requests: it belongs to the first that is traced. The
    call's headers say so.
    """
    for request in requests:
        if (call_record := request.cancellation.call_record) is not None:
            span = call_record.upstream(ask.target)
            ask.headers = {**ask.headers, **span.headers}
            return _UpstreamSpan(span)
    return _UNTRACED


class _UpstreamSpan:
    """Ends the span with the call."""

    def __init__(self, span: OutgoingSpan) -> None:
        self._span = span

    def __enter__(self) -> None: ...

    def __exit__(self, kind: Any, *why: Any) -> None:
        self._span.end(failed=kind is not None)


class CallerLeft(Exception):
    """All callers of a call have left."""


class RemoteCancellation:
    """Watches over the requests that share a call: once all their callers have left, what is waited for is cancelled.

    A context manager, for the time of the call, within one task.
    """

    def __init__(self, requests: Sequence[InferRequest]) -> None:
        self._tokens = [request.cancellation for request in requests]
        self._task: asyncio.Task[Any] | None = None
        self._left = False

    def __enter__(self) -> RemoteCancellation:
        for token in self._tokens:
            token.on_cut = self._note
        return self

    def __exit__(self, *why: object) -> None:
        for token in self._tokens:
            token.on_cut = None

    def _note(self) -> None:
        if not self._left and all(token.cut for token in self._tokens):
            self._left = True
            if self._task is not None:
                self._task.cancel()

    def _work_in(self, task: asyncio.Task[Any]) -> None:
        self._task = task

    async def wait(self, work: Awaitable[T]) -> T:
        """What becomes of it. Raises CallerLeft as soon as nobody waits."""
        on_task(self._work_in)
        try:
            return await work
        except asyncio.CancelledError:
            if not self._left or self._task is None:
                raise
            self._task.uncancel()
            raise CallerLeft from None
        finally:
            self._task = None

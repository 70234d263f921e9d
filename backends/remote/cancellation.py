"""Callers who leave while another server works for them: the call ends, so that the server can stop."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from typing import Any, TypeVar

from tensorgate.gateway.contract.canonical import InferRequest
from tensorgate.gateway.wire.eager_start import on_task

T = TypeVar("T")


class Left(Exception):
    """Nobody waits any more."""


class RemoteCancellation:
    """Watches over the requests that share a call: once all their callers have left, what is waited for is cancelled.

    A context manager, for the time of the call, within one task.
    """

    def __init__(self, requests: Sequence[InferRequest]) -> None:
        self._lifelines = [request.cancellation for request in requests]
        self._task: asyncio.Task[Any] | None = None
        self._left = False

    def __enter__(self) -> RemoteCancellation:
        for cancellation in self._lifelines:
            cancellation.on_cut = self._note
        return self

    def __exit__(self, *why: object) -> None:
        for cancellation in self._lifelines:
            cancellation.on_cut = None

    def _note(self) -> None:
        if not self._left and all(cancellation.cut for cancellation in self._lifelines):
            self._left = True
            if self._task is not None:
                self._task.cancel()

    def _work_in(self, task: asyncio.Task[Any]) -> None:
        self._task = task

    async def wait(self, work: Awaitable[T]) -> T:
        """What becomes of it. Raises Left as soon as nobody waits."""
        on_task(self._work_in)
        try:
            return await work
        except asyncio.CancelledError:
            if not self._left or self._task is None:
                raise
            self._task.uncancel()
            raise Left from None
        finally:
            self._task = None

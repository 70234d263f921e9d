"""Calls that are sent on to another server while they still arrive.

A call that another server answers whole (contract.forwarding) need not wait for its last byte: once its first ones name
the model, its flow begins, and every piece is sent on as it comes. Nothing is kept that would not be kept otherwise,
and nothing is let go: the body has its whole place from the start, within the same bounds, and keeps it until the
answer. So a call that could not be brought to one address is brought to another, whatever has come of it.

What the caller may do, and whether the model is there, is asked before the first byte is sent on. Over gRPC the rest of
a message may say otherwise than its beginning: its last byte is held back until all of it has been read as any other
call is. A server that has not got all of a message does nothing with it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any, Final, NoReturn

from tensorgate.gateway.contract.call import Call
from tensorgate.gateway.contract.canonical import ModelRef
from tensorgate.gateway.contract.dialect import Endpoint, Resolve
from tensorgate.gateway.contract.errors import Internal, Unavailable
from tensorgate.gateway.wire.eager_start import EagerTask, start_eagerly
from tensorgate.gateway.wire.http1_body import Body

_HELD_BYTES: Final = 1


class Arriving:
    """See contract.call.ArrivingBody."""

    __slots__ = ("_body", "_confirm", "_held_bytes", "_size", "error", "on_more")

    def __init__(self, body: Body, size: int, confirm: Callable[[], Coroutine[Any, Any, None]] | None = None) -> None:
        """A body of `size` bytes. `confirm` is run when it is whole, and raises why it must not be sent to its end."""
        self._body = body
        self._size = size
        self._confirm = confirm
        self._held_bytes = 0 if confirm is None else _HELD_BYTES
        self.error: Exception | None = None
        self.on_more: Callable[[], None] | None = None
        body.on_more = self._take

    @property
    def passable_bytes(self) -> int:
        """See contract.call.ArrivingBody."""
        return min(self._size - self._body.missing, self._size - self._held_bytes)

    def _take(self) -> None:
        if self._body.missing:
            if self.on_more is not None:
                self.on_more()
            return
        self._body.on_more = None
        confirm, self._confirm = self._confirm, None
        if confirm is None:
            self._end(None)
            return
        try:
            task = start_eagerly(asyncio.get_running_loop(), confirm())
        except Exception as error:
            self._end(error)
            return
        if task is None:
            self._end(None)
        else:
            task.add_done_callback(self._confirmed)

    def _confirmed(self, task: EagerTask) -> None:
        if not task.cancelled():
            self._end(task.exception())

    def _end(self, error: BaseException | None) -> None:
        """The body is whole. Whoever sends it on lets go of it, so that its memory is there for the next one."""
        if error is None:
            self._held_bytes = 0
        else:
            self.error = error if isinstance(error, Exception) else Internal()
        on_more, self.on_more = self.on_more, None
        if on_more is not None:
            on_more()


def forwarding(endpoint: Endpoint, ref: ModelRef) -> Endpoint:
    """The endpoint of a call that names this model and is sent on: nothing of it is read."""

    def decode(call: Call, resolve: Resolve) -> NoReturn:
        resolve(ref)
        raise Unavailable("the model is being changed")

    return replace(endpoint, decode=decode)

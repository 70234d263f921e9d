"""A large reply of another server that is sent on while it arrives."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Final

from tensorgate.gateway.contract.call import Buffer, Reply
from tensorgate.gateway.contract.errors import Code
from tensorgate.gateway.wire.http1_body import MIN_PIECE_BYTES, Body

_BROKEN: Final = Reply(
    b"", 502, grpc_code=Code.UNAVAILABLE, message="the connection to the upstream server broke within the answer"
)


class ReplyInPieces:
    """See contract.call.ArrivingReply."""

    def __init__(self, body: Body, place: memoryview, leave: Callable[[], object]) -> None:
        """`place` is where the body lies; `leave` ends what brings it."""
        self._body = body
        self._place = place
        self._leave = leave
        self._last: Reply | None = None
        self._waiter: asyncio.Future[None] | None = None
        self.translate: Callable[[Reply], Reply] = lambda reply: reply
        """What the caller gets for the server's last word."""
        body.on_more = self._wake

    async def pieces(self) -> AsyncIterator[Buffer]:
        """See ArrivingReply. A piece is small only if it is the last."""
        size, sent = len(self._place), 0
        while sent < size:
            here = size - self._body.missing
            if here == size or here - sent >= MIN_PIECE_BYTES:
                yield self._place[sent:here]
                sent = here
            elif self._last is not None:
                return
            else:
                await self._more()
        while self._last is None:
            await self._more()

    @property
    def last(self) -> Reply | None:
        """See ArrivingReply."""
        return None if self._last is None else self.translate(self._last)

    def finish(self, last: Reply | Exception) -> None:
        """The reply has ended."""
        if self._last is None:
            self._last = last if isinstance(last, Reply) else _BROKEN
            self._wake()

    def close(self) -> None:
        """See ArrivingReply."""
        if self._last is None:
            self._leave()

    async def _more(self) -> None:
        self._waiter = asyncio.get_running_loop().create_future()
        await self._waiter

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

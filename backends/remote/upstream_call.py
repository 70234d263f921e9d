"""One gRPC call of one message there and one or more back: what has come, and what that means.

Source: gRPC over HTTP/2.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping
from functools import partial
from typing import Final, Protocol
from urllib.parse import unquote_to_bytes

from tensorgate.backends.remote.arriving_reply import ReplyInPieces
from tensorgate.gateway.contract.call import Buffer, Reply
from tensorgate.gateway.contract.errors import Code
from tensorgate.gateway.contract.tensor import NOTHING
from tensorgate.gateway.wire.cut_through import begin_if_slow
from tensorgate.gateway.wire.grpc_messages import PREFIX_BYTES, Incoming
from tensorgate.gateway.wire.http1_body import Body
from tensorgate.gateway.wire.http2 import Stream
from tensorgate.gateway.wire.http2_frames import END_STREAM, STREAM_BYTES

_CODES: Final[Mapping[str, Code]] = {str(code.value): code for code in Code}
_HTTP_CODES: Final[Mapping[str, Code]] = {
    "400": Code.INTERNAL,
    "401": Code.UNAUTHENTICATED,
    "403": Code.PERMISSION_DENIED,
    "404": Code.UNIMPLEMENTED,
    **dict.fromkeys(("429", "502", "503", "504"), Code.UNAVAILABLE),
}
"""What a status means that no gRPC server has sent. Source: gRPC's mapping of HTTP statuses."""
_OVER: Final = Reply(b"")


class Owner(Protocol):
    """What a call needs of its connection."""

    def abandon(self, call: UpstreamCall) -> None:
        """End a call whose answer is not wanted any more, so that the server can stop."""
        ...

    def open_window(self, call: UpstreamCall) -> None:
        """The server may send as much of the answers as there is a place for."""
        ...


class UpstreamCall(Stream):
    """One call, of one answer, or with `streams` of any number. `headers` are those before the first one; of answers
    that have come, `held` bytes wait to be taken.
    """

    __slots__ = (
        "_answers",
        "_arriving",
        "_last",
        "_owner",
        "_takes_arriving",
        "_waiter",
        "headers",
        "held",
        "streams",
        "timer",
    )

    def __init__(
        self, owner: Owner, number: int, max_bytes: int, *, streams: bool, takes_arriving: bool = False
    ) -> None:
        super().__init__(number, STREAM_BYTES, max_bytes)
        self.end_flag = END_STREAM
        self.streams = streams
        self.headers: Mapping[str, str] | None = None
        self.held = 0
        self.timer: asyncio.TimerHandle | None = None
        self._owner = owner
        self._answers: deque[Buffer] = deque()
        self._last: Reply | Exception | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._takes_arriving = takes_arriving
        self._arriving: ReplyInPieces | None = None

    def make_incoming(self) -> Incoming:
        return Incoming(self.max_message_bytes, on_begin=self._message_begins if self._takes_arriving else None)

    def _message_begins(self, body: Body, size: int) -> None:
        begin_if_slow(body, size, partial(self._arrives, body))

    def _arrives(self, body: Body) -> None:
        """A large answer is given while it comes; its status follows."""
        place = body.place()
        if place is not None and self._last is None and self.headers is not None:
            self._arriving = ReplyInPieces(body, place, self.leave)
            self._last = Reply(place, metadata=(self.headers, NOTHING), arriving=self._arriving)
            self._wake()

    async def next(self) -> Reply | None:
        """What comes next: an answer, or what became of the call; None behind the last one. What has failed fails once
        all answers before are taken. Raises ConnectionLost, CallRefused.
        """
        while self._last is None and not (self.streams and self._answers):
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        if self.streams and self._answers:
            body = self._answers.popleft()
            self.held -= PREFIX_BYTES + len(body)
            self._owner.open_window(self)
            return Reply(body, metadata=(self.headers or NOTHING, NOTHING))
        last, self._last = self._last, _OVER
        if isinstance(last, Exception):
            raise last
        return None if last is _OVER else last

    def leave(self) -> None:
        """The caller asks for no more answers."""
        self._owner.abandon(self)

    def wanted(self) -> int:
        """How much more may come, beside what a message lacks that has begun."""
        return STREAM_BYTES - self.held if self.streams else 0

    def is_full(self) -> bool:
        """Whether there can be no more answers."""
        return not self.streams and bool(self._answers)

    def answer(self, body: Buffer) -> None:
        """One more is whole."""
        self._answers.append(body)
        if self.streams:
            self.held += PREFIX_BYTES + len(body)
            self._wake()

    def finish(self, last: Reply | Exception) -> None:
        """What became of the call; the first word counts."""
        if self._arriving is not None:
            self._arriving.finish(last)
        elif self._last is None:
            self._last = last
            self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def outcome(self, trailers: Mapping[str, str]) -> Reply:
        """What becomes of the call by the server's trailers."""
        grpc_status = trailers.get("grpc-status", "")
        if not grpc_status:
            status = (self.headers or trailers).get(":status", "")
            code = Code.UNKNOWN if status == "200" else _HTTP_CODES.get(status, Code.UNKNOWN)
            return failed(code, f"the answer is none of gRPC's: HTTP status {status}")
        code = _CODES.get(grpc_status, Code.UNKNOWN)
        if code is not Code.OK:
            text = unquote_to_bytes(trailers.get("grpc-message", "")).decode("utf-8", "replace")
            return Reply(b"", grpc_code=code, message=text, metadata=(self.headers or NOTHING, trailers))
        if self.is_full() and self.has_part:
            return failed(Code.INTERNAL, "more than one answer came")
        if self.has_part or not (self.streams or self._answers):
            return failed(Code.INTERNAL, "the answer is not whole")
        return _OVER if self.streams else Reply(self._answers[0], metadata=(self.headers or NOTHING, trailers))


def failed(code: Code, text: str) -> Reply:
    """What a call comes to that has no answer."""
    return Reply(b"", grpc_code=code, message=text)

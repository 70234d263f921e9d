"""One HTTP/2 connection to a gRPC server, for calls of one message there and one or more back. Belongs to the loop.

Over grpc.aio each message is copied several times, each of its steps takes a hop from a thread to the loop, and whether
a server said that it cannot or the connection broke is not told apart: that is what this is for.

Of one answer, all is taken as fast as it comes, for it has its limit. The answers of a stream are taken as fast as
somebody asks for them: those that wait for that are held to STREAM_BYTES, and the one that begins within these. Either
way the server hears soon enough that there is a place for all of a message that is larger.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Mapping
from typing import Any, Final

from tensorgate.backends.remote.connection import TOO_LARGE, ConnectionLost
from tensorgate.backends.remote.upstream_call import UpstreamCall, failed
from tensorgate.gateway.contract.call import ArrivingBody, Buffer, Reply
from tensorgate.gateway.contract.errors import Code
from tensorgate.gateway.contract.upstream import Ask
from tensorgate.gateway.wire import hpack
from tensorgate.gateway.wire.eager_start import in_task
from tensorgate.gateway.wire.grpc_messages import MessageTooLarge
from tensorgate.gateway.wire.http1_body import MIN_PIECE_BYTES
from tensorgate.gateway.wire.http2 import Http2
from tensorgate.gateway.wire.http2_frames import (
    CANCEL,
    END_STREAM,
    ENHANCE_YOUR_CALM,
    MAX_CONCURRENT_STREAMS,
    MAX_FRAME_BYTES,
    MAX_INT31,
    PREFACE,
    REFUSED_STREAM,
    RST_STREAM,
    STREAM_BYTES,
    Http2ConnectionError,
    short_frame,
)

_INADEQUATE_SECURITY: Final = 12
_RESET_CODES: Final[Mapping[int, Code]] = {
    REFUSED_STREAM: Code.UNAVAILABLE,
    CANCEL: Code.CANCELLED,
    ENHANCE_YOUR_CALM: Code.RESOURCE_EXHAUSTED,
    _INADEQUATE_SECURITY: Code.PERMISSION_DENIED,
}
_GONE_AFTER_MS: Final = 20_000
_MIN_GRANT_BYTES: Final = STREAM_BYTES // 2
"""A server does not hear of less room."""


class CallRefused(Exception):
    """The server has not looked at the request, and will not."""


class Http2Client(Http2[UpstreamCall], asyncio.BufferedProtocol):
    """The client's end of a connection. `ready` is done once the server's settings have come, `usable` is whether calls
    may begin, `closed` whether all is over; answers have at most `max_bytes`.
    """

    def __init__(self, max_bytes: int) -> None:
        self._loop = asyncio.get_running_loop()
        super().__init__(MAX_FRAME_BYTES, self._loop.call_soon)
        self._max_bytes = max_bytes
        self._next = 1
        self._max_calls = MAX_INT31
        self._room = asyncio.Event()
        self.ready: asyncio.Future[None] = self._loop.create_future()
        self.usable = False
        self.closed = False

    # ------------------------------------------------------------------------------------------------------------ calls

    @property
    def is_full(self) -> bool:
        """Whether a call has to wait until others are over."""
        return len(self._streams) >= self._max_calls and self.usable

    async def wait_for_room(self, until: float | None) -> None:
        """Raises TimeoutError if there is none before the loop's time `until`."""
        while self.is_full:
            await in_task()
            self._room.clear()
            async with asyncio.timeout_at(until):
                await self._room.wait()

    def begin(self, block: bytes, ask: Ask, until: float | None, *, streams: bool) -> UpstreamCall:
        """A call with these headers, as a block, and the body of `ask`, which the loop's time `until` ends, if there is
        room for one. Raises CallRefused.
        """
        if not self.usable:
            raise CallRefused
        number, self._next = self._next, self._next + 2
        if self._next >= MAX_INT31:
            self.usable = False
        takes_arriving = ask.takes_arriving and not streams
        call = UpstreamCall(self, number, self._max_bytes, streams=streams, takes_arriving=takes_arriving)
        if until is not None:
            call.timer = self._loop.call_at(until, self._expire, call)
        self._streams[number] = call
        parts, head = ask.body, self.headers_frame(number, block)
        size = sum(map(len, parts))
        if ask.arriving is not None:
            self._send_arriving(call, head, memoryview(parts[0]), ask.arriving)
        else:
            self.send_message(call, head, parts, size)
        return call

    def _send_arriving(self, call: UpstreamCall, head: bytes, body: memoryview, arriving: ArrivingBody) -> None:
        """Send as much of a message as is here, and the rest as it comes."""
        size, sent = len(body), 0

        def send_more() -> None:
            nonlocal sent
            if call.number not in self._streams:
                return
            if arriving.error is not None:
                self.abandon(call)
                call.finish(arriving.error)
                return
            here = arriving.passable_bytes
            if here < size and here - sent < MIN_PIECE_BYTES:
                return
            if here == size:
                call.end_flag = END_STREAM
            call.unsent.append(body[sent:here])
            sent = here
            self._send_more(call, [])

        call.end_flag, sent = 0, min(arriving.passable_bytes, size - 1)
        self.send_message(call, head, (body[:sent],), size)
        arriving.on_more = send_more
        send_more()
        if sent == size:
            arriving.on_more = None

    def _expire(self, call: UpstreamCall) -> None:
        self.abandon(call)
        call.finish(failed(Code.DEADLINE_EXCEEDED, "Deadline Exceeded"))

    def abandon(self, call: UpstreamCall) -> None:
        """End a call whose answer is not wanted any more, so that the server can stop."""
        if call.number in self._streams:
            self.write(short_frame(RST_STREAM, call.number, CANCEL))
            self._close_stream(call.number)

    def _close_stream(self, number: int) -> UpstreamCall | None:
        call = super()._close_stream(number)
        if call is not None and call.timer is not None:
            call.timer.cancel()
        self._room.set()
        if not self._streams and not self.usable:
            self._close()
        return call

    # ------------------------------------------------------------------------------------------------------- connection

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        # A server that is gone without a word is noticed, for probes are sent all the time.
        if (user_timeout := getattr(socket, "TCP_USER_TIMEOUT", None)) is not None:
            transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, user_timeout, _GONE_AFTER_MS)
        transport.write(PREFACE)

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        self._end(str(error) if error else "the server has closed the connection")

    def close(self) -> None:
        """Calls that are under way end."""
        self._end("closed")

    def on_connection_error(self, error: Http2ConnectionError) -> None:
        self._end(f"no HTTP/2 of gRPC: {error}")

    def _end(self, why: str) -> None:
        self.usable, self.closed = False, True
        if not self.ready.done():
            self.ready.set_exception(ConnectionLost(why))
            self.ready.exception()  # it may be that nobody waits any more
        transport, self._transport = self._transport, None
        for call in [*self._streams.values()]:
            self._close_stream(call.number)
            call.finish(ConnectionLost(why))
        self._room.set()
        if transport is not None:
            transport.abort()

    def on_settings(self, values: Mapping[int, int]) -> None:
        self._max_calls = values.get(MAX_CONCURRENT_STREAMS, self._max_calls)
        self._room.set()
        if not self.ready.done():
            self.usable = True
            self.ready.set_result(None)

    def on_goaway(self, last: int) -> None:
        """No new calls; those after the last that the server has looked at may be made again."""
        self.usable = False
        for call in [call for number, call in self._streams.items() if number > last]:
            self._close_stream(call.number)
            is_unread = call.headers is None
            call.finish(CallRefused() if is_unread else ConnectionLost("the server has stopped in mid-call"))
        self._room.set()
        if not self._streams:
            self._close()

    # ---------------------------------------------------------------------------------------------------------- answers

    def on_headers(self, number: int, flags: int, block: bytes) -> None:
        headers = hpack.decode(block)
        call = self._streams.get(number)
        if call is None:
            return
        if flags & END_STREAM:
            self._take_last(call, headers)
        elif (status := headers.get(":status", "")) == "200":
            call.headers = headers
        elif not status.startswith("1"):  # what follows is a page, and no message
            call.headers = headers
            self._give_up(call, call.outcome({}))

    def on_messages(self, stream: UpstreamCall, messages: list[tuple[Buffer, bool]]) -> None:
        for body, compressed in messages:
            if compressed:
                self._give_up(stream, failed(Code.INTERNAL, "the answer is compressed, which was not offered"))
            elif stream.headers is None:
                self._give_up(stream, failed(Code.INTERNAL, "the answer has no headers"))
            elif stream.is_full():
                self._give_up(stream, failed(Code.INTERNAL, "more than one answer came"))
            else:
                stream.answer(body)
                continue
            return

    def on_end(self, stream: UpstreamCall) -> None:
        self._take_last(stream, {})

    def _take_last(self, call: UpstreamCall, trailers: Mapping[str, str]) -> None:
        """A server's last word, which may come before all of the request is sent."""
        call.finish(call.outcome(trailers))
        if call.unsent or not call.end_flag:
            self.abandon(call)
        else:
            self._close_stream(call.number)

    def on_reset(self, stream: UpstreamCall, code: int) -> None:
        if code == REFUSED_STREAM and stream.headers is None:
            stream.finish(CallRefused())
        else:
            text = f"the server ended the call with error {code}"
            stream.finish(failed(_RESET_CODES.get(code, Code.INTERNAL), text))

    def on_stream_error(self, stream: UpstreamCall, error: Exception) -> None:
        if isinstance(error, MessageTooLarge):
            text = TOO_LARGE.format(size=error.size, max_bytes=error.limit)
            self._give_up(stream, failed(Code.RESOURCE_EXHAUSTED, text))
        elif isinstance(error, MemoryError):
            self._give_up(stream, failed(Code.RESOURCE_EXHAUSTED, "there is no memory for the answer"))
        else:
            self._give_up(stream, failed(Code.INTERNAL, f"no HTTP/2 of gRPC: {error}"))

    def _give_up(self, call: UpstreamCall, last: Reply) -> None:
        """There will be no answers any more, whatever else comes."""
        self.abandon(call)
        call.finish(last)

    def open_window(self, call: UpstreamCall) -> None:
        """The server may send as much of the answers as there is a place for."""
        number = call.number
        missing = 0 if call.incoming is None else call.incoming.missing
        coming = call.receive_window
        if self._data_frame is not None and self._data_frame[0] == number:
            coming += self._data_left
        short = max(missing, call.wanted()) - coming
        if (short >= _MIN_GRANT_BYTES or missing > coming) and number in self._streams:
            self.grant(call, short)

"""One connection of the gRPC lane: its calls begin here, and end.

Source: gRPC over HTTP/2.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from typing import Any, Final, Protocol, cast

from tensorgate.gateway.contract.call import Buffer, Peer, Reply
from tensorgate.gateway.contract.errors import Code
from tensorgate.gateway.contract.shortcuts import is_taken
from tensorgate.gateway.telemetry.connection_metrics import Counts
from tensorgate.gateway.transport.grpc_call import WINDOW_BYTES, GrpcCall
from tensorgate.gateway.transport.grpc_exchange import Bounds, Handler, Handlers
from tensorgate.gateway.transport.grpc_head import MALFORMED, Head, are_trailers, read_head
from tensorgate.gateway.transport.grpc_streams import STOPPING
from tensorgate.gateway.transport.peers import SocketPeer
from tensorgate.gateway.transport.timeouts import ClientTimeouts
from tensorgate.gateway.wire import hpack
from tensorgate.gateway.wire.eager_start import begin
from tensorgate.gateway.wire.grpc_messages import NotAdmitted, TooLarge, prefix
from tensorgate.gateway.wire.http1_body import PROCESS, Claims
from tensorgate.gateway.wire.http2 import Http2
from tensorgate.gateway.wire.http2_frames import (
    CANCEL,
    END_HEADERS,
    END_STREAM,
    MAGIC,
    MOST,
    NO_ERROR,
    PING,
    REFUSED_STREAM,
    RST_STREAM,
    STREAM_CLOSED,
    BadFrame,
    BadStream,
    FrameBudget,
    frame,
    goaway,
    short_frame,
)

log: Final = logging.getLogger(__name__)

FRAME_BYTES: Final = 1 << 20
_LONG_HEADERS_BYTES: Final = 256 << 10
"""Longer headers end the connection, and not only the call: they cannot be refused before they have been read. Shorter
ones may not, for other calls of the same client are on it.
"""
_PONG_WITHIN_S: Final = 1.0
_FAREWELL: Final = b"farewell"
_MAX_HEADS: Final = 64
_REMEMBERED_BYTES: Final = 1024 if is_taken("known_call_heads") else -1
_MAX_EARLY: Final = 1000
_GOOD: Final = Reply(b"")
_CLAIMED_BYTES: Final = 256 << 20
"""So much the messages of one connection may claim; one message may always claim all of itself."""
_OWN_STREAMS: Final = 100
"""So many calls a connection may have open whatever others have: what RFC 9113 recommends."""
_STREAMS: Final = Claims(1 << 16)
"""Calls of all connections beyond these. An open call that has said nothing yet costs two kilobytes."""


class Port(Protocol):
    """What all connections of a port have in common. `draining`: nothing more is taken."""

    handlers: Handlers
    counts: Counts
    bounds: Bounds
    timeouts: ClientTimeouts
    max_streams: int
    greeting: bytes
    loop: asyncio.AbstractEventLoop
    scratch: memoryview
    clients: set[Connection]
    draining: bool

    def forget(self, connection: Connection) -> None:
        """The connection is closed."""
        ...


class Connection(Http2[GrpcCall]):
    """One client. `_last` is the stream that it has begun last, `_leaving` are the tasks of calls that it has left;
    `_early` are streams that were over before it had said its last word, which may still come.
    """

    def __init__(self, lane: Port, budget: FrameBudget | None = None) -> None:
        metadata = lane.bounds.metadata
        super().__init__(FRAME_BYTES, MAGIC, lane.scratch, max(_LONG_HEADERS_BYTES, 2 * metadata), budget)
        self.lane = lane
        self.bounds = lane.bounds
        self.loop = lane.loop
        self.claims = Claims(max(_CLAIMED_BYTES, lane.bounds.message), PROCESS)
        self.peer: Peer = SocketPeer(None)
        self._decoder = hpack.Decoder(metadata)
        # By the bytes of their blocks. Stale as soon as anything is done to the table, by whichever block: it is asked
        # when a head is looked up, see _take_block. Handlers and limits stay the same as long as the port is there.
        self._heads: dict[bytes, Head] = {}
        self._heads_at = 0
        self._last = 0
        self._few_streams = min(_OWN_STREAMS, lane.max_streams)
        self._early: dict[int, None] = {}
        self._leaving: set[asyncio.Task[None]] = set()
        self._parts = self._has_parted = False
        self._still = 0
        self._unsent = 0

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        self.peer = SocketPeer(transport)
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        self.lane.clients.add(self)
        transport.write(self.lane.greeting)
        if self.lane.draining:
            self.part()

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        self.lane.forget(self)
        self._end_all()

    def _end_all(self) -> None:
        rpcs = [*self._streams.values()]
        _STREAMS.give(max(0, len(rpcs) - _OWN_STREAMS))
        self._streams.clear()
        self._stalled.clear()
        self._data = None
        for rpc in rpcs:
            rpc.incoming.close()
            self._leave(rpc)

    def _leave(self, rpc: GrpcCall) -> None:
        """Nobody waits for the answer."""
        rpc.is_left = True
        rpc.stop_timer()
        task = rpc.task
        if task is not None and not task.done():
            self._leaving.add(task)
            task.add_done_callback(self._leaving.discard)
            task.cancel()

    def abort(self) -> list[asyncio.Task[None]]:
        """At once. Returns what ends with it."""
        tasks = [rpc.task for rpc in self._streams.values() if rpc.task is not None]
        if self._transport is not None:
            self._transport.abort()
        self._end_all()
        return tasks

    # --------------------------------------------------------------------------------------------------------- parting

    def part(self) -> None:
        """No more calls, but for those that the client makes before it has read this."""
        if not self._parts:
            self._parts = True
            self._write(goaway(MOST, NO_ERROR) + frame(len(_FAREWELL), PING, 0, 0) + _FAREWELL)
            self.lane.loop.call_later(_PONG_WITHIN_S, self._part)

    def _take_pong(self, data: bytes) -> None:
        if data == _FAREWELL:
            self._part()

    def _part(self) -> None:
        if not self._has_parted and self._parts:
            self._has_parted = True
            self._write(goaway(self._last, NO_ERROR))
            for rpc in [rpc for rpc in self._streams.values() if not rpc.is_asked and not rpc.is_unary]:
                rpc.say(STOPPING)
                self.finish(rpc)
            self._close_if_over()

    def _close_if_over(self) -> None:
        if self._has_parted and not self._streams:
            self._close()

    def _break(self, error: BadFrame) -> None:
        log.debug("a connection ends: %s", error)
        self._write(goaway(self._last, error.code))
        self._close()
        self._end_all()

    def look_after(self) -> None:
        """Once in a while: end what has not moved for too long."""
        if self._transport is None:
            return
        self._still += 1
        sweep, timeouts = self.lane.timeouts.sweep, self.lane.timeouts
        unsent = self._transport.get_write_buffer_size()
        if unsent < self._unsent or (self._is_settled and not unsent):
            self._still = 0
        self._unsent = unsent
        if self._still * sweep > (timeouts.answer if self._is_settled else timeouts.head):
            self.abort()
            return
        for rpc in [*self._streams.values()]:
            rpc.still += 1
            seconds = rpc.still * sweep
            if not rpc.is_asked and rpc.deadline is not None and rpc.deadline < time.monotonic():
                self._expire(rpc)
            elif (rpc.unsent and seconds > timeouts.answer) or (rpc.is_waited_for and seconds > timeouts.body):
                self._leave(rpc)
                self._reset(rpc, CANCEL)

    # -------------------------------------------------------------------------------------------------------- receiving

    def _check_unknown(self, number: int) -> None:
        if number > self._last or not number & 1:
            raise BadFrame("a stream that has not begun")

    def _check_data(self, number: int, size: int) -> None:
        is_over = number not in self._streams and number not in self._early
        super()._check_data(number, size)
        if is_over:
            self._budget.spend()
            self._answer(short_frame(RST_STREAM, number, STREAM_CLOSED))

    def _take_block(self, number: int, flags: int, block: bytes) -> None:
        rpc = self._streams.get(number)
        if rpc is not None:
            self._take_trailers(rpc, flags, block)
            return
        if not number & 1:
            raise BadFrame("a stream with a server's number")
        count = len(self._streams)
        if count + len(self._leaving) >= self._few_streams and self._is_full and number > self._last:
            self._turn_away(number, flags, block)
            return
        known = self._heads.get(block) if self._heads_at == self._decoder.changes else None
        head = known or self._read_head(block)
        if number in self._early or self._has_parted:
            return  # of a call that is over, or that the client makes elsewhere
        if number <= self._last:
            raise BadFrame("a stream that is over", STREAM_CLOSED)
        self._last = number
        if count >= _OWN_STREAMS:
            _STREAMS.take(1)
        rpc = self._streams[number] = GrpcCall(self, number, head)
        rpc.ended = flags & END_STREAM != 0
        if head is MALFORMED:
            self._budget.spend()
            self._refuse(rpc, BadStream("headers that are none"))
        else:
            self._begin(rpc, head)

    @property
    def _is_full(self) -> bool:
        """Whether there must not be one call more."""
        count = len(self._streams)
        if self._has_parted:
            return False  # none is taken at all
        return count + len(self._leaving) >= self.lane.max_streams or (count >= _OWN_STREAMS and not _STREAMS.left)

    def _turn_away(self, number: int, flags: int, block: bytes) -> None:
        """One call too many. Of its headers nothing is read but what they do to the table."""
        self._budget.spend()
        if self._heads_at != self._decoder.changes or block not in self._heads:
            self._decoder.read(block)
        self._last = number
        if not flags & END_STREAM:
            self._expect_more(number)
        self._answer(short_frame(RST_STREAM, number, REFUSED_STREAM))

    def _begin(self, rpc: GrpcCall, head: Head) -> None:
        if head.handler is None:
            self._turn_down(rpc, head)
        elif rpc.ended:
            self._take_end(rpc)

    def _take_trailers(self, rpc: GrpcCall, flags: int, block: bytes) -> None:
        said = self._decoder.read(block)
        if rpc.ended:
            self._refuse(rpc, BadStream("headers behind the end", STREAM_CLOSED))
        elif not flags & END_STREAM or not are_trailers(said):
            self._refuse(rpc, BadStream("headers in mid-stream"))
        else:
            rpc.ended = True
            self._take_end(rpc)

    def _read_head(self, block: bytes) -> Head:
        """What a block says now: its bytes mean the same only as long as the table does. Raises BadBlock."""
        decoder = self._decoder
        before = decoder.changes
        head = read_head(decoder.read(block), self.lane.handlers, self.lane.bounds.metadata)
        if self._heads_at != decoder.changes or len(self._heads) >= _MAX_HEADS:
            self._heads.clear()
            self._heads_at = decoder.changes
        if decoder.changes == before and len(block) <= _REMEMBERED_BYTES:
            self._heads[block] = head
        return head

    def _turn_down(self, rpc: GrpcCall, head: Head) -> None:
        if head.refusal is not None:
            rpc.say(head.refusal)
        else:
            rpc.is_answered = True
            block = hpack.encode([(":status", head.status)])
            self._write(self.headers(rpc.number, block, END_HEADERS | END_STREAM))
        self.finish(rpc)

    def _take_messages(self, stream: GrpcCall, messages: list[tuple[bytes, bool]]) -> None:
        if stream.head.length is not None and not stream.has_said_length:
            self._refuse(stream, BadStream("not as long as it said"))
        elif not stream.is_unary:
            self._hear(stream, messages)
        elif not stream.is_asked:
            stream.is_asked = True
            ((body, is_compressed), *_) = messages
            self._start(stream, body, is_compressed=is_compressed)

    def _take_end(self, stream: GrpcCall) -> None:
        if stream.head.length is not None and not stream.has_said_length:
            self._refuse(stream, BadStream("not as long as it said"))
        elif stream.incoming.has_begun:
            self._fail(stream, Code.INTERNAL, "The message is not whole")
        elif not stream.is_unary:
            self._hear(stream, [])
        elif not stream.is_asked:
            self._fail(stream, Code.INTERNAL, "Missing request message")

    def _hear(self, rpc: GrpcCall, messages: list[tuple[bytes, bool]]) -> None:
        """More of many messages, or that there are no more. The flow begins with the first: some clients are not told
        why a call has failed that ends before they have asked anything.
        """
        rpc.hear(messages)
        if not rpc.is_asked:
            rpc.is_asked = True
            self._start(rpc, b"")

    def _take_reset(self, stream: GrpcCall, code: int) -> None:
        self._early.pop(stream.number, None)
        self._leave(stream)
        self._close_if_over()

    def _refuse(self, stream: GrpcCall, error: Exception) -> None:
        if isinstance(error, TooLarge):
            self._fail(
                stream, Code.RESOURCE_EXHAUSTED, f"Received message larger than max ({error.size} vs. {error.most})"
            )
        elif isinstance(error, BadStream):
            self._leave(stream)
            self._forget(stream.number)
            self._answer(short_frame(RST_STREAM, stream.number, error.code))
            self._close_if_over()
        elif isinstance(error, NotAdmitted):
            self._ask_the_gate(stream)
        else:
            self._fail(stream, Code.RESOURCE_EXHAUSTED, "The message is too large for the memory that is left")

    def _ask_the_gate(self, rpc: GrpcCall) -> None:
        """The flow with nothing in place of the message: it ends where callers are asked who they are."""
        rpc.incoming.close()
        if not rpc.is_unary:
            self._hear(rpc, [(b"", False)])
        elif not rpc.is_asked:
            rpc.is_asked = True
            self._start(rpc, b"")

    def _fail(self, rpc: GrpcCall, code: Code, text: str) -> None:
        """End a call whose flow, if it has one, is not to go on."""
        self._leave(rpc)
        rpc.say(Reply(b"", grpc_code=code, message=text))
        self.finish(rpc)

    # -------------------------------------------------------------------------------------------------------- answering

    def _start(self, rpc: GrpcCall, body: bytes, *, is_compressed: bool = False) -> None:
        self._budget.earned += 4  # what belongs to a call: an end, windows, a ping
        handler = cast("Handler", rpc.head.handler)
        flow = rpc.run_inflated(body) if is_compressed else handler.run(rpc, body)
        if handler.stream == "unary":
            try:
                task = begin(self.lane.loop, flow)
            except Exception as error:
                self._failed(rpc, error)
                return
            if task is None:
                self._over(rpc)
                return
        else:
            task = self.lane.loop.create_task(flow)
        rpc.task = task
        task.add_done_callback(rpc.done)
        if rpc.deadline is not None:
            seconds = rpc.deadline - time.monotonic()
            rpc.timer = self.lane.loop.call_later(max(0.0, seconds), self._expire, rpc)

    def done(self, rpc: GrpcCall, task: asyncio.Task[None]) -> None:
        """A call's task is over."""
        rpc.stop_timer()
        if task.cancelled():
            if not rpc.is_left:
                self._leave(rpc)
                self._reset(rpc, CANCEL)
            self._close_if_over()
        elif (error := task.exception()) is not None:
            self._failed(rpc, error)
        else:
            self._over(rpc)

    def _over(self, rpc: GrpcCall) -> None:
        if not rpc.is_answered and not rpc.is_left:
            rpc.say(_GOOD)
        self.finish(rpc)

    def _failed(self, rpc: GrpcCall, error: BaseException) -> None:
        """Its flow ends because the client has left, or has had its last word; or by a bug."""
        is_waited_for = not rpc.is_answered and not rpc.is_left
        if is_waited_for or not isinstance(error, ConnectionError):
            log.error("a call failed unexpectedly", exc_info=error)
        if is_waited_for:
            rpc.say(Reply(b"", grpc_code=Code.INTERNAL, message="Internal error"))
        self.finish(rpc)

    def _expire(self, rpc: GrpcCall) -> None:
        rpc.timer = None
        self._leave(rpc)
        if rpc.is_answered:
            self._reset(rpc, CANCEL)
        else:
            rpc.say(Reply(b"", grpc_code=Code.DEADLINE_EXCEEDED, message="Deadline Exceeded"))
        self.finish(rpc)

    def finish(self, rpc: GrpcCall) -> None:
        """Forget a call that is over, once all of it is sent. A client that goes on asking is told to stop."""
        if rpc.unsent and not rpc.is_left:
            return
        is_cut = rpc.incoming.is_closed
        if self._forget(rpc.number) is not None:
            if rpc.unsent:
                self._write(short_frame(RST_STREAM, rpc.number, CANCEL))
            elif not rpc.ended and (is_cut or not (rpc.is_asked and rpc.is_unary)):
                self._write(short_frame(RST_STREAM, rpc.number, NO_ERROR))
        self._close_if_over()

    def _forget(self, number: int) -> GrpcCall | None:
        rpc = super()._forget(number)
        if rpc is not None:
            if len(self._streams) >= _OWN_STREAMS:
                _STREAMS.give(1)
            if not rpc.ended:
                self._expect_more(number)
        return rpc

    def _expect_more(self, number: int) -> None:
        """Of a stream that is over, but the other end has not said its last word."""
        self._early[number] = None
        if len(self._early) > _MAX_EARLY:
            del self._early[next(iter(self._early))]

    def send(self, rpc: GrpcCall, head: bytes, parts: tuple[Buffer, ...], size: int) -> None:
        """A message."""
        self.lane.counts.sent += size
        self._send(rpc, head, parts, size, prefix(size))

    def say_last(self, rpc: GrpcCall, data: bytes) -> None:
        """A call's last frame, behind all that is still to be sent."""
        if rpc.unsent:
            rpc.after = data
        else:
            self._write(data)

    def take_back(self, rpc: GrpcCall) -> None:
        """Some of what waited for its reader has been read: more may come."""
        room = WINDOW_BYTES - rpc.granted - rpc.waiting
        if room >= WINDOW_BYTES // 2 and not rpc.ended and not rpc.is_left:
            self._grant(rpc, room)

    @property
    def is_paused(self) -> bool:
        """Whether the client takes nothing, as far as the kernel tells."""
        return self._is_paused

    def resume_writing(self) -> None:
        super().resume_writing()
        for rpc in [*self._streams.values()]:
            rpc.has_sent()

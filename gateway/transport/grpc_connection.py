"""One connection of a gRPC port: its calls begin here, and end.

Source: gRPC over HTTP/2.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections.abc import Coroutine
from functools import partial
from typing import Any, Final, cast

from tensorgate.gateway.contract.call import Buffer, Peer, Reply
from tensorgate.gateway.contract.errors import Code
from tensorgate.gateway.contract.shortcuts import is_taken
from tensorgate.gateway.transport.grpc_call import GrpcCall
from tensorgate.gateway.transport.grpc_context import GrpcContext
from tensorgate.gateway.transport.grpc_exchange import Handler
from tensorgate.gateway.transport.grpc_head import MALFORMED_HEAD, CallHead, are_trailers, read_call_head
from tensorgate.gateway.transport.grpc_streams import STOPPING
from tensorgate.gateway.transport.peers import SocketPeer
from tensorgate.gateway.wire import hpack
from tensorgate.gateway.wire.cut_through import begin_if_slow
from tensorgate.gateway.wire.eager_start import EagerTask, as_task, start_eagerly
from tensorgate.gateway.wire.grpc_messages import MessageTooLarge, NotAdmitted
from tensorgate.gateway.wire.http1_body import PROCESS_QUOTA, Body, Quota
from tensorgate.gateway.wire.http2 import Http2
from tensorgate.gateway.wire.http2_frames import (
    CANCEL,
    DATA,
    END_HEADERS,
    END_STREAM,
    MAGIC,
    MAX_INT31,
    NO_ERROR,
    PING,
    REFUSED_STREAM,
    RST_STREAM,
    STREAM_CLOSED,
    FrameBudget,
    Http2ConnectionError,
    Http2StreamError,
    frame_header,
    goaway,
    short_frame,
)

log: Final = logging.getLogger(__name__)

MAX_RECEIVED_FRAME_BYTES: Final = 1 << 20
_MAX_BLOCK_BYTES: Final = 256 << 10
"""Longer headers end the connection, since they cannot be refused before they have been read. Shorter ones end the
call alone, for other calls of the same client are on the connection.
"""
_PONG_WITHIN_S: Final = 1.0
_FAREWELL: Final = b"farewell"
_MAX_KNOWN_HEADS: Final = 64
_MAX_KNOWN_BLOCK_BYTES: Final = 1024 if is_taken("known_call_heads") else -1
_MAX_HALF_CLOSED: Final = 1000
_OK_REPLY: Final = Reply(b"")
_MAX_CLAIMED_BYTES: Final = 256 << 20
"""What the messages of one connection may claim; one message may always claim all of itself."""
_OWN_STREAMS: Final = 100
"""Calls that a connection may have open whatever others have: what RFC 9113 recommends."""
_STREAMS: Final = Quota(1 << 16)
"""Calls of all connections beyond these. An open call without a message costs two kilobytes."""


class GrpcServerConnection(Http2[GrpcCall], asyncio.BufferedProtocol):
    """One client of a gRPC port."""

    def __init__(self, context: GrpcContext, budget: FrameBudget | None = None) -> None:
        limits = context.limits
        super().__init__(
            MAX_RECEIVED_FRAME_BYTES,
            context.loop.call_soon,
            MAGIC,
            context.scratch,
            max(_MAX_BLOCK_BYTES, 2 * limits.max_metadata_bytes),
            budget,
        )
        self._context = context
        self._quota = Quota(max(_MAX_CLAIMED_BYTES, limits.max_message_bytes), PROCESS_QUOTA)
        self._peer: Peer = SocketPeer(None)
        self._decoder = hpack.Decoder(limits.max_metadata_bytes)
        # By the bytes of their blocks. Stale as soon as anything is done to the table, by whichever block: its state is
        # compared when a head is looked up, see on_headers. Handlers and limits last as long as the port.
        self._known_heads: dict[bytes, CallHead] = {}
        self._known_heads_at = 0
        self._last_stream = 0
        """The highest number of a stream that has begun."""
        self._own_streams = min(_OWN_STREAMS, context.max_streams)
        self._half_closed: dict[int, None] = {}
        """Streams that are over here while their client may still send on them, the oldest first."""
        self._cancelled: set[EagerTask] = set()
        """Tasks of abandoned calls, which have yet to end."""
        self._is_draining = self._is_drained = False
        self._idle_sweeps = 0
        self._unsent_bytes = 0

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        self._peer = SocketPeer(transport)
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        clients = self._context.clients
        clients.open.add(self)
        transport.write(self._context.greeting)
        if clients.stopping:
            self.drain()

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        self._context.clients.remove(self)
        self._end_all()

    def _end_all(self) -> None:
        rpcs = [*self._streams.values()]
        _STREAMS.give(max(0, len(rpcs) - _OWN_STREAMS))
        self._streams.clear()
        self._stalled.clear()
        self._data_frame = None
        for rpc in rpcs:
            if rpc.incoming is not None:
                rpc.incoming.close()
            self._abandon(rpc)

    def _abandon(self, rpc: GrpcCall) -> None:
        """Cancel a call whose answer nobody waits for."""
        rpc.is_abandoned = True
        rpc.stop_timer()
        task = rpc.task
        if task is not None and not task.done():
            self._cancelled.add(task)
            task.add_done_callback(self._cancelled.discard)
            task.cancel()

    def abort(self) -> list[asyncio.Task[None]]:
        """See ClientConnection."""
        tasks = [as_task(rpc.task) for rpc in self._streams.values() if rpc.task is not None and not rpc.task.done()]
        if self._transport is not None:
            self._transport.abort()
        self._end_all()
        return tasks

    # --------------------------------------------------------------------------------------------------------- draining

    def drain(self) -> None:
        """See ClientConnection. The calls that the client makes before it has read GOAWAY are taken, too."""
        if not self._is_draining:
            self._is_draining = True
            self.write(goaway(MAX_INT31, NO_ERROR) + frame_header(len(_FAREWELL), PING, 0, 0) + _FAREWELL)
            self._context.loop.call_later(_PONG_WITHIN_S, self._finish_drain)

    def on_pong(self, payload: bytes) -> None:
        if payload == _FAREWELL:
            self._finish_drain()

    def _finish_drain(self) -> None:
        """The client has read GOAWAY, or has had a second for it."""
        if not self._is_drained and self._is_draining:
            self._is_drained = True
            self.write(goaway(self._last_stream, NO_ERROR))
            for rpc in [rpc for rpc in self._streams.values() if not rpc.has_started and not rpc.is_unary]:
                rpc.send_status(STOPPING)
                self._finish(rpc)
            self._close_if_over()

    def _close_if_over(self) -> None:
        if self._is_drained and not self._streams:
            self._close()

    def on_connection_error(self, error: Http2ConnectionError) -> None:
        log.debug("a connection ends: %s", error)
        self.write(goaway(self._last_stream, error.code))
        self._close()
        self._end_all()

    def check_timeouts(self, now: float) -> None:
        """See ClientConnection."""
        if self._transport is None:
            return
        self._idle_sweeps += 1
        sweep, timeouts = self._context.timeouts.sweep, self._context.timeouts
        unsent = self._transport.get_write_buffer_size()
        if unsent < self._unsent_bytes or (self._has_settings and not unsent):
            self._idle_sweeps = 0
        self._unsent_bytes = unsent
        if self._idle_sweeps * sweep > (timeouts.answer if self._has_settings else timeouts.head):
            self.abort()
            return
        for rpc in [*self._streams.values()]:
            rpc.idle_sweeps += 1
            seconds = rpc.idle_sweeps * sweep
            if not rpc.has_started and rpc.deadline is not None and rpc.deadline < now:
                self._expire(rpc)
            elif (rpc.unsent and seconds > timeouts.answer) or (rpc.is_incomplete and seconds > timeouts.body):
                self._abandon(rpc)
                self._reset(rpc, CANCEL)

    # -------------------------------------------------------------------------------------------------------- receiving

    def on_unknown_stream(self, number: int, kind: int) -> None:
        if number > self._last_stream or not number & 1:
            raise Http2ConnectionError("a stream that has not begun")
        if kind == DATA and number not in self._half_closed:
            self._budget.spend()
            self._respond(short_frame(RST_STREAM, number, STREAM_CLOSED))

    def on_headers(self, number: int, flags: int, block: bytes) -> None:
        rpc = self._streams.get(number)
        if rpc is not None:
            self._receive_trailers(rpc, flags, block)
            return
        if not number & 1:
            raise Http2ConnectionError("a stream with a server's number")
        count = len(self._streams)
        if count + len(self._cancelled) >= self._own_streams and self._is_full and number > self._last_stream:
            self._refuse_stream(number, flags, block)
            return
        known = self._known_heads.get(block) if self._known_heads_at == self._decoder.changes else None
        head = known or self._read_head(block)
        if number in self._half_closed or self._is_drained:
            return  # of a call that is over, or that the client makes elsewhere
        if number <= self._last_stream:
            raise Http2ConnectionError("a stream that is over", STREAM_CLOSED)
        self._last_stream = number
        if count >= _OWN_STREAMS:
            _STREAMS.take(1)
        rpc = self._streams[number] = GrpcCall(self, self._context, number, head, self._peer, self._quota)
        rpc.ended = flags & END_STREAM != 0
        if head is MALFORMED_HEAD:
            self._budget.spend()
            self.on_stream_error(rpc, Http2StreamError("headers that are none"))
        else:
            self._begin(rpc, head)

    @property
    def _is_full(self) -> bool:
        """There must not be one call more."""
        if self._is_drained:
            return False  # none is taken at all
        count, max_streams = len(self._streams), self._context.max_streams
        return count + len(self._cancelled) >= max_streams or (count >= _OWN_STREAMS and not _STREAMS.left)

    def _refuse_stream(self, number: int, flags: int, block: bytes) -> None:
        """Refuse one call too many. Its headers are read only for what they do to the table."""
        self._budget.spend()
        if self._known_heads_at != self._decoder.changes or block not in self._known_heads:
            self._decoder.read(block)
        self._last_stream = number
        if not flags & END_STREAM:
            self._remember_half_closed(number)
        self._respond(short_frame(RST_STREAM, number, REFUSED_STREAM))

    def _begin(self, rpc: GrpcCall, head: CallHead) -> None:
        if head.handler is None:
            self._reject(rpc, head)
        elif rpc.ended:
            self.on_end(rpc)

    def _receive_trailers(self, rpc: GrpcCall, flags: int, block: bytes) -> None:
        fields = self._decoder.read(block)
        if rpc.ended:
            self.on_stream_error(rpc, Http2StreamError("headers behind the end", STREAM_CLOSED))
        elif not flags & END_STREAM or not are_trailers(fields):
            self.on_stream_error(rpc, Http2StreamError("headers in mid-stream"))
        else:
            rpc.ended = True
            self.on_end(rpc)

    def _read_head(self, block: bytes) -> CallHead:
        """Read a block, which means the same only as long as the table stays. Raises BadBlock."""
        decoder = self._decoder
        before = decoder.changes
        head = read_call_head(decoder.read(block), self._context.handlers, self._context.limits.max_metadata_bytes)
        if self._known_heads_at != decoder.changes or len(self._known_heads) >= _MAX_KNOWN_HEADS:
            self._known_heads.clear()
            self._known_heads_at = decoder.changes
        if decoder.changes == before and len(block) <= _MAX_KNOWN_BLOCK_BYTES:
            self._known_heads[block] = head
        return head

    def _reject(self, rpc: GrpcCall, head: CallHead) -> None:
        if head.refusal is not None:
            rpc.send_status(head.refusal)
        else:
            rpc.is_answered = True
            block = hpack.encode([(":status", head.status)])
            self.write(self.headers_frame(rpc.number, block, END_HEADERS | END_STREAM))
        self._finish(rpc)

    def on_messages(self, stream: GrpcCall, messages: list[tuple[Buffer, bool]]) -> None:
        if stream.head.length is not None and not stream.matches_content_length:
            self.on_stream_error(stream, Http2StreamError("not as long as it said"))
        elif not stream.is_unary:
            self._add_messages(stream, messages)
        elif not stream.has_started:
            stream.has_started = True
            ((body, is_compressed), *_) = messages
            self._start(stream, body, is_compressed=is_compressed)

    def on_message_begin(self, stream: GrpcCall, body: Body, size: int) -> None:
        if not stream.has_started:
            begin_if_slow(body, size, partial(self._start_arriving, stream, body, size))

    def _start_arriving(self, rpc: GrpcCall, body: Body, size: int) -> None:
        handler = cast("Handler", rpc.head.handler)
        flow = None if handler.run_arriving is None else handler.run_arriving(rpc, body, size)
        if flow is not None:
            rpc.has_started = True
            self._start(rpc, b"", flow=flow)

    def on_end(self, stream: GrpcCall) -> None:
        if stream.head.length is not None and not stream.matches_content_length:
            self.on_stream_error(stream, Http2StreamError("not as long as it said"))
        elif stream.has_part:
            self._fail(stream, Code.INTERNAL, "The message is not whole")
        elif not stream.is_unary:
            self._add_messages(stream, [])
        elif not stream.has_started:
            self._fail(stream, Code.INTERNAL, "Missing request message")

    def _add_messages(self, rpc: GrpcCall, messages: list[tuple[Buffer, bool]]) -> None:
        """Add messages of a stream, none for its end. The flow starts with the first: some clients do not learn why a
        call has failed that ends before they have sent anything.
        """
        rpc.add_messages(messages)
        if not rpc.has_started:
            rpc.has_started = True
            self._start(rpc, b"")

    def on_reset(self, stream: GrpcCall, code: int) -> None:
        self._half_closed.pop(stream.number, None)
        self._abandon(stream)
        self._close_if_over()

    def on_stream_error(self, stream: GrpcCall, error: Exception) -> None:
        if isinstance(error, MessageTooLarge):
            self._fail(
                stream, Code.RESOURCE_EXHAUSTED, f"Received message larger than max ({error.size} vs. {error.limit})"
            )
        elif isinstance(error, Http2StreamError):
            self._abandon(stream)
            self._close_stream(stream.number)
            self._respond(short_frame(RST_STREAM, stream.number, error.code))
            self._close_if_over()
        elif isinstance(error, NotAdmitted):
            self._run_unadmitted(stream)
        else:
            self._fail(stream, Code.RESOURCE_EXHAUSTED, "The message is too large for the memory that is left")

    def _run_unadmitted(self, rpc: GrpcCall) -> None:
        """Run the flow with an empty message: it ends where callers are authorized."""
        rpc.receiver().close()
        if not rpc.is_unary:
            self._add_messages(rpc, [(b"", False)])
        elif not rpc.has_started:
            rpc.has_started = True
            self._start(rpc, b"")

    def _fail(self, rpc: GrpcCall, code: Code, text: str) -> None:
        """End a call whose flow, if it has one, is not to go on."""
        self._abandon(rpc)
        rpc.send_status(Reply(b"", grpc_code=code, message=text))
        self._finish(rpc)

    # -------------------------------------------------------------------------------------------------------- answering

    def _start(
        self,
        rpc: GrpcCall,
        body: Buffer,
        *,
        is_compressed: bool = False,
        flow: Coroutine[Any, Any, None] | None = None,
    ) -> None:
        self._budget.earned += 4  # what belongs to a call: an end, windows, a ping
        handler = cast("Handler", rpc.head.handler)
        if flow is None:
            flow = rpc.run_inflated(body) if is_compressed else handler.run(rpc, body)
        if handler.stream == "unary":
            try:
                task: EagerTask | None = start_eagerly(self._context.loop, flow)
            except Exception as error:
                self._failed(rpc, error)
                return
            if task is None:
                self._completed(rpc)
                return
        else:
            task = self._context.loop.create_task(flow)
        rpc.task = task
        task.add_done_callback(partial(self._task_done, rpc))
        if rpc.deadline is not None:
            seconds = rpc.deadline - time.monotonic()
            rpc.timer = self._context.loop.call_later(max(0.0, seconds), self._expire, rpc)

    def _task_done(self, rpc: GrpcCall, task: EagerTask) -> None:
        rpc.stop_timer()
        if task.cancelled():
            if not rpc.is_abandoned:
                self._abandon(rpc)
                self._reset(rpc, CANCEL)
            self._close_if_over()
        elif (error := task.exception()) is not None:
            self._failed(rpc, error)
        else:
            self._completed(rpc)

    def _completed(self, rpc: GrpcCall) -> None:
        if not rpc.is_answered and not rpc.is_abandoned:
            rpc.send_status(_OK_REPLY)
        self._finish(rpc)

    def _failed(self, rpc: GrpcCall, error: BaseException) -> None:
        """A flow ends with an error: the client has left, or has its answer; or it is a bug."""
        is_awaited = not rpc.is_answered and not rpc.is_abandoned
        if is_awaited or not isinstance(error, ConnectionError):
            log.error("a call failed unexpectedly", exc_info=error)
        if is_awaited:
            rpc.send_status(Reply(b"", grpc_code=Code.INTERNAL, message="Internal error"))
        self._finish(rpc)

    def _expire(self, rpc: GrpcCall) -> None:
        rpc.timer = None
        self._abandon(rpc)
        if rpc.is_answered:
            self._reset(rpc, CANCEL)
        else:
            rpc.send_status(Reply(b"", grpc_code=Code.DEADLINE_EXCEEDED, message="Deadline Exceeded"))
        self._finish(rpc)

    def _finish(self, rpc: GrpcCall) -> None:
        """Close a call that is over, once all of it is sent. A client that still sends is told to stop."""
        if rpc.unsent and not rpc.is_abandoned:
            return
        is_cut = rpc.incoming is not None and (rpc.incoming.is_closed or rpc.incoming.has_begun)
        if self._close_stream(rpc.number) is not None:
            if rpc.unsent:
                self.write(short_frame(RST_STREAM, rpc.number, CANCEL))
            elif not rpc.ended and (is_cut or not (rpc.has_started and rpc.is_unary)):
                self.write(short_frame(RST_STREAM, rpc.number, NO_ERROR))
        self._close_if_over()

    def _close_stream(self, number: int) -> GrpcCall | None:
        rpc = super()._close_stream(number)
        if rpc is not None:
            if len(self._streams) >= _OWN_STREAMS:
                _STREAMS.give(1)
            if not rpc.ended:
                self._remember_half_closed(number)
        return rpc

    def _remember_half_closed(self, number: int) -> None:
        """A stream is over here, and the client has not sent END_STREAM."""
        self._half_closed[number] = None
        if len(self._half_closed) > _MAX_HALF_CLOSED:
            del self._half_closed[next(iter(self._half_closed))]

    def on_sent(self, stream: GrpcCall) -> None:
        if stream.unsent:
            return
        stream.wake_writers()
        if stream.is_answered and (stream.task is None or stream.task.done()):
            self._finish(stream)

    def resume_writing(self) -> None:
        super().resume_writing()
        for rpc in [*self._streams.values()]:
            self.on_sent(rpc)

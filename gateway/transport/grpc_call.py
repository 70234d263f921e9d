"""One call of a gRPC port: its messages as they are read, its answers as they are sent."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Mapping
from functools import partial
from typing import Any, Final, NoReturn, cast
from urllib.parse import quote_from_bytes

from tensorgate.gateway.contract.call import ArrivingReply, Buffer, Peer, Reply
from tensorgate.gateway.contract.errors import Code
from tensorgate.gateway.telemetry.request_id import REQUEST_ID
from tensorgate.gateway.transport.grpc_context import GrpcContext
from tensorgate.gateway.transport.grpc_exchange import Handler
from tensorgate.gateway.transport.grpc_head import CallHead
from tensorgate.gateway.transport.grpc_streams import short_detail
from tensorgate.gateway.wire import hpack
from tensorgate.gateway.wire.eager_start import EagerTask
from tensorgate.gateway.wire.grpc_messages import (
    MESSAGE_PREFIX,
    PREFIX_BYTES,
    CorruptMessage,
    Incoming,
    MessageTooLarge,
    inflate,
)
from tensorgate.gateway.wire.http1_body import Quota
from tensorgate.gateway.wire.http2 import Http2, Stream
from tensorgate.gateway.wire.http2_frames import END_HEADERS, END_STREAM

WINDOW_BYTES: Final = 4 << 20
"""How much of a call's messages may wait for their reader, beside one that is larger."""
_INFLATED_IN_THREAD_BYTES: Final = 1 << 10  # a thousand times as many may come of them
_HEADERS_BLOCK: Final = b"\x88" + hpack.encode([("content-type", "application/grpc")])
_ONLY_BLOCK: Final = _HEADERS_BLOCK + hpack.encode([("grpc-accept-encoding", "identity, deflate, gzip")])
_BROKEN: Final = Reply(b"", grpc_code=Code.INTERNAL, message="the answer has no end")
_OK: Final = hpack.encode([("grpc-status", "0")])
_PLAIN: Final = "".join(map(chr, range(0x20, 0x7F))).replace("%", "")


class Over(ConnectionError):
    """The call has been answered: its flow is to end as if the client had left."""


class GrpcCall(Stream):
    """A call on a server's connection, and the Rpc of its flow."""

    __slots__ = (
        "_connection",
        "_context",
        "_has_sent_headers",
        "_queue",
        "_quota",
        "_reader",
        "_request_id",
        "_writers",
        "deadline",
        "has_started",
        "head",
        "headers",
        "is_abandoned",
        "is_answered",
        "is_unary",
        "peer",
        "queued_bytes",
        "task",
        "timer",
    )

    def __init__(
        self, connection: Http2[Any], context: GrpcContext, number: int, head: CallHead, peer: Peer, quota: Quota
    ) -> None:
        super().__init__(number, WINDOW_BYTES, context.limits.max_message_bytes)
        self._quota = quota
        self._connection = connection
        self._context = context
        self.head = head
        self.headers = head.metadata
        self.is_unary = head.handler is not None and head.handler.stream != "bidi"
        """The client sends one message, and nothing behind it."""
        self.peer = peer
        self.deadline = None if head.timeout is None else time.monotonic() + head.timeout
        self.task: EagerTask | None = None
        """The flow, unless it was over with its first step."""
        self.timer: asyncio.TimerHandle | None = None
        """Ends the call at its deadline."""
        self.queued_bytes = 0
        """Of messages that wait to be read."""
        self.has_started = False
        """The flow has begun."""
        self.is_answered = False
        """The status has been sent, or waits behind the last message."""
        self.is_abandoned = False
        """Nobody waits for the answer."""
        self._has_sent_headers = False
        self._request_id = ""
        self._queue: deque[tuple[Buffer, bool]] | None = None
        self._reader: asyncio.Future[None] | None = None
        self._writers: list[asyncio.Future[None]] = []

    @property
    def is_incomplete(self) -> bool:
        """A part of a message has come, or none of a unary call, and the window lets more come."""
        return self.receive_window > 0 and (self.has_part or (self.is_unary and not self.has_started))

    @property
    def matches_content_length(self) -> bool:
        """The data is as long as the headers say, if they do, or may still become so."""
        length, received = self.head.length, self.received_bytes
        return length is None or received == length or (received < length and not (self.ended or self.is_unary))

    def make_incoming(self) -> Incoming:
        handler = self.head.handler
        on_begin = None
        if handler is not None and handler.run_arriving is not None:
            on_begin = partial(self._connection.on_message_begin, self)
        return Incoming(self.max_message_bytes, self._quota, self.head.admits, on_begin)

    def set_request_id(self, request_id: str) -> None:
        """See Rpc."""
        self._request_id = request_id

    def stop_timer(self) -> None:
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None

    # ---------------------------------------------------------------------------------------------------------- reading

    def add_messages(self, messages: list[tuple[Buffer, bool]]) -> None:
        """Queue messages for `read`; an empty list says that the stream has ended."""
        if self._queue is None:
            self._queue = deque()
        self._queue.extend(messages)
        self.queued_bytes += sum(len(body) + PREFIX_BYTES for body, _ in messages)
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)

    async def read(self) -> Buffer | None:
        """See Rpc."""
        while not self._queue:
            if self.ended and not self.has_part:
                return None
            self._reader = self._context.loop.create_future()
            await self._reader
        body, is_compressed = self._queue.popleft()
        self.queued_bytes -= len(body) + PREFIX_BYTES
        self._reopen_window()
        return await self._inflated(body) if is_compressed else body

    def _reopen_window(self) -> None:
        """Let more come, now that some of what waited has been read."""
        room = WINDOW_BYTES - self.receive_window - self.queued_bytes
        if room >= WINDOW_BYTES // 2 and not self.ended and not self.is_abandoned:
            self._connection.grant(self, room)

    async def run_inflated(self, body: Buffer) -> None:
        """Run the flow with a compressed message."""
        await cast("Handler", self.head.handler).run(self, await self._inflated(body))

    async def _inflated(self, body: Buffer) -> bytes:
        max_bytes = self._context.limits.max_message_bytes
        try:
            if len(body) < _INFLATED_IN_THREAD_BYTES:
                return inflate(body, self.head.coding, max_bytes)
            return await asyncio.to_thread(inflate, body, self.head.coding, max_bytes)
        except CorruptMessage as error:
            await self.fail(Reply(b"", grpc_code=Code.INTERNAL, message=str(error)))
        except MessageTooLarge as error:
            text = f"Received message larger than max ({error.limit} bytes once it is inflated)"
            await self.fail(Reply(b"", grpc_code=Code.RESOURCE_EXHAUSTED, message=text))

    # ---------------------------------------------------------------------------------------------------------- writing

    def send(self, reply: Reply) -> Awaitable[None] | None:
        """See Rpc. What the client does not take yet waits in `unsent`, and the call with it."""
        if self.is_abandoned:
            raise ConnectionResetError("the client has left")
        if reply.arriving is not None:
            return self._send_arriving(reply, reply.arriving)
        self._send_whole(reply)
        return None

    def _send_whole(self, reply: Reply) -> None:
        if reply.grpc_code is not Code.OK:
            self.send_status(reply)
            return
        self.is_answered = True
        metadata = reply.metadata
        self.last_frames = self._trailers(_OK if metadata is None else _OK + hpack.encode(metadata[1].items()))
        self._send_message(reply)

    async def _send_arriving(self, reply: Reply, arriving: ArrivingReply) -> None:
        """Send the only message while it comes, and the status behind it."""
        frames = self._first_frames(reply)
        size = sum(map(len, (reply.body,) if isinstance(reply.body, (bytes, bytearray, memoryview)) else reply.body))
        prefix: Buffer = MESSAGE_PREFIX.pack(0, size)
        async for piece in arriving.pieces():
            if self.is_abandoned:
                raise ConnectionResetError("the client has left")
            self._context.counters.sent += len(piece)
            self._connection.send_piece(self, frames, (prefix, piece) if prefix else (piece,))
            frames = prefix = b""
        if frames:  # there was not one piece
            self._has_sent_headers = False
        if self.is_abandoned:
            raise ConnectionResetError("the client has left")
        self.send_status(arriving.last or _BROKEN)

    async def write(self, reply: Reply) -> None:
        """See Rpc."""
        if self.is_abandoned:
            raise ConnectionResetError("the client has left")
        self._send_message(reply)
        if self.unsent or self._connection.is_paused:
            await self._flush()

    async def fail(self, reply: Reply) -> NoReturn:
        """See Rpc."""
        if not self.is_abandoned:
            self.send_status(reply)
        raise Over

    def send_status(self, reply: Reply) -> None:
        """End the call with the status of a reply, behind all that is unsent."""
        self.is_answered = True
        if reply.grpc_code is Code.OK:
            block = _OK
        else:
            text = quote_from_bytes(short_detail(reply.message), safe=_PLAIN)
            block = hpack.encode([("grpc-status", str(reply.grpc_code.value)), ("grpc-message", text)])
        head, first = (b"" if self._has_sent_headers else _ONLY_BLOCK), b""
        if reply.metadata is not None:
            before, behind = reply.metadata
            block += hpack.encode(behind.items())
            if before and head:
                head, first = b"", self._first_headers(before)
        self._connection.send_last(self, first + self._trailers(head + block))

    def _first_headers(self, metadata: Mapping[str, str]) -> bytes:
        self._has_sent_headers = True
        return self._connection.headers_frame(self.number, _HEADERS_BLOCK + hpack.encode(metadata.items()))

    def _first_frames(self, reply: Reply) -> bytes:
        """What goes before the first message."""
        if self._has_sent_headers:
            return b""
        if reply.metadata is not None:
            return self._first_headers(reply.metadata[0])
        self._has_sent_headers = True
        return self._connection.headers_frame(self.number, _HEADERS_BLOCK)

    def _trailers(self, block: bytes) -> bytes:
        if self._request_id:
            block += hpack.encode([(REQUEST_ID, self._request_id)])
        return self._connection.headers_frame(self.number, block, END_HEADERS | END_STREAM)

    def _send_message(self, reply: Reply) -> None:
        body = reply.body
        parts = (body,) if isinstance(body, (bytes, bytearray, memoryview)) else tuple(body)
        head = self._first_frames(reply)
        size = sum(map(len, parts))
        self._context.counters.sent += size
        self._connection.send_message(self, head, parts, size)

    def wake_writers(self) -> None:
        """Let those go on who wait for the client to take more."""
        writers, self._writers = self._writers, []
        for writer in writers:
            if not writer.done():
                writer.set_result(None)

    async def _flush(self) -> None:
        """Wait until the client has room for more."""
        writer = self._context.loop.create_future()
        self._writers.append(writer)
        await writer

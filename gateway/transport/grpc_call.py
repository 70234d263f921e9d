"""One call of the gRPC lane: its messages as they are read, its answers as they are sent."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Mapping
from typing import Final, NoReturn, Protocol, cast
from urllib.parse import quote_from_bytes

from tensorgate.gateway.contract.call import Buffer, Peer, Reply
from tensorgate.gateway.contract.errors import Code
from tensorgate.gateway.telemetry.request_id import REQUEST_ID
from tensorgate.gateway.transport.grpc_exchange import Bounds, Handler
from tensorgate.gateway.transport.grpc_head import Head
from tensorgate.gateway.transport.grpc_streams import short_detail
from tensorgate.gateway.wire import hpack
from tensorgate.gateway.wire.grpc_messages import PREFIX_BYTES, Garbled, Incoming, TooLarge, inflate
from tensorgate.gateway.wire.http1_body import Claims
from tensorgate.gateway.wire.http2 import Stream
from tensorgate.gateway.wire.http2_frames import END_HEADERS, END_STREAM

WINDOW_BYTES: Final = 4 << 20
"""Of a call's messages, so much may wait for their reader, beside one that is larger."""
_INFLATED_IN_THREAD_BYTES: Final = 1 << 10  # a thousand times as many may come of them
_HEADERS_BLOCK: Final = b"\x88" + hpack.encode([("content-type", "application/grpc")])
_ONLY_BLOCK: Final = _HEADERS_BLOCK + hpack.encode([("grpc-accept-encoding", "identity, deflate, gzip")])
_OK: Final = hpack.encode([("grpc-status", "0")])
_PLAIN: Final = "".join(map(chr, range(0x20, 0x7F))).replace("%", "")


class Link(Protocol):
    """What a call needs of its connection."""

    claims: Claims
    peer: Peer
    bounds: Bounds
    loop: asyncio.AbstractEventLoop

    @property
    def is_paused(self) -> bool:
        """Whether the client takes nothing, as far as the kernel tells."""
        ...

    def headers(self, stream: int, block: bytes, flags: int = END_HEADERS) -> bytes:
        """A frame of headers."""
        ...

    def send(self, rpc: GrpcCall, head: bytes, parts: tuple[Buffer, ...], size: int) -> None:
        """A message of `size` bytes."""
        ...

    def say_last(self, rpc: GrpcCall, data: bytes) -> None:
        """A call's last frame, behind all that is still to be sent."""
        ...

    def take_back(self, rpc: GrpcCall) -> None:
        """Some of what waited for its reader has been read: more may come."""
        ...

    def done(self, rpc: GrpcCall, task: asyncio.Task[None]) -> None:
        """The call's task has ended."""
        ...

    def finish(self, rpc: GrpcCall) -> None:
        """Forget a call that is over, once all of it is sent."""
        ...


class Over(ConnectionError):
    """The call has been answered: its flow is to end as if the client had left."""


class GrpcCall(Stream):
    """See Rpc. `is_asked`: its flow has begun; `is_answered`: its last word has been said; `is_left`: nobody
    waits for it. `waiting` is how many bytes of messages wait to be read.
    """

    __slots__ = (
        "_connection",
        "_has_headers",
        "_queue",
        "_reader",
        "_request_id",
        "_writers",
        "deadline",
        "head",
        "is_answered",
        "is_asked",
        "is_left",
        "task",
        "timer",
        "waiting",
    )

    def __init__(self, connection: Link, number: int, head: Head) -> None:
        incoming = Incoming(connection.bounds.message, connection.claims, head.admits)
        super().__init__(number, WINDOW_BYTES, incoming)
        self._connection = connection
        self.head = head
        self.deadline = None if head.timeout is None else time.monotonic() + head.timeout
        self.task: asyncio.Task[None] | None = None
        self.timer: asyncio.TimerHandle | None = None
        self.waiting = 0
        self.is_asked = self.is_answered = self.is_left = False
        self._has_headers = False
        self._request_id = ""
        self._queue: deque[tuple[bytes, bool]] | None = None
        self._reader: asyncio.Future[None] | None = None
        self._writers: list[asyncio.Future[None]] = []

    @property
    def is_unary(self) -> bool:
        """Whether there is one message, behind which the client has nothing to say."""
        handler = self.head.handler
        return handler is not None and handler.stream != "bidi"

    @property
    def is_waited_for(self) -> bool:
        """Whether there is a part of a message, or a call without the one that it is to have, and more may come."""
        return self.granted > 0 and (self.incoming.has_begun or (self.is_unary and not self.is_asked))

    @property
    def has_said_length(self) -> bool:
        """Whether its data is as long as its headers said, if they did."""
        length = self.head.length
        return length is None or self.taken == length or (self.taken < length and not (self.ended or self.is_unary))

    @property
    def headers(self) -> Mapping[str, str]:
        return self.head.metadata

    @property
    def peer(self) -> Peer:
        return self._connection.peer

    def name(self, request_id: str) -> None:
        self._request_id = request_id

    def done(self, task: asyncio.Task[None]) -> None:
        self._connection.done(self, task)

    def stop_timer(self) -> None:
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None

    # ---------------------------------------------------------------------------------------------------------- reading

    def hear(self, messages: list[tuple[bytes, bool]]) -> None:
        """More messages of many, or that there are no more."""
        if self._queue is None:
            self._queue = deque()
        self._queue.extend(messages)
        self.waiting += sum(len(body) + PREFIX_BYTES for body, _ in messages)
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)

    async def read(self) -> bytes | None:
        while not self._queue:
            if self.ended and not self.incoming.has_begun:
                return None
            self._reader = self._connection.loop.create_future()
            await self._reader
        body, is_compressed = self._queue.popleft()
        self.waiting -= len(body) + PREFIX_BYTES
        self._connection.take_back(self)
        return await self._inflated(body) if is_compressed else body

    async def run_inflated(self, body: bytes) -> None:
        """The flow, for a message that is compressed."""
        await cast("Handler", self.head.handler).run(self, await self._inflated(body))

    async def _inflated(self, body: bytes) -> bytes:
        most = self._connection.bounds.message
        try:
            if len(body) < _INFLATED_IN_THREAD_BYTES:
                return inflate(body, self.head.coding, most)
            return await asyncio.to_thread(inflate, body, self.head.coding, most)
        except Garbled as error:
            await self.fail(Reply(b"", grpc_code=Code.INTERNAL, message=str(error)))
        except TooLarge as error:
            text = f"Received message larger than max ({error.most} bytes once it is inflated)"
            await self.fail(Reply(b"", grpc_code=Code.RESOURCE_EXHAUSTED, message=text))

    # ---------------------------------------------------------------------------------------------------------- writing

    async def send(self, reply: Reply) -> None:
        if self.is_left:
            raise ConnectionResetError("the client has left")
        if reply.grpc_code is not Code.OK:
            self.say(reply)
            return
        self.is_answered = True
        self.after = self._trailers(_OK)
        self._say_message(reply)

    async def write(self, reply: Reply) -> None:
        if self.is_left:
            raise ConnectionResetError("the client has left")
        self._say_message(reply)
        if self.unsent or self._connection.is_paused:
            await self._drain()

    async def fail(self, reply: Reply) -> NoReturn:
        if not self.is_left:
            self.say(reply)
        raise Over

    def say(self, reply: Reply) -> None:
        """The last word: a status."""
        self.is_answered = True
        if reply.grpc_code is Code.OK:
            block = _OK
        else:
            text = quote_from_bytes(short_detail(reply.message), safe=_PLAIN)
            block = hpack.encode([("grpc-status", str(reply.grpc_code.value)), ("grpc-message", text)])
        head = b"" if self._has_headers else _ONLY_BLOCK
        self._connection.say_last(self, self._trailers(head + block))

    def _trailers(self, block: bytes) -> bytes:
        if self._request_id:
            block += hpack.encode([(REQUEST_ID, self._request_id)])
        return self._connection.headers(self.number, block, END_HEADERS | END_STREAM)

    def _say_message(self, reply: Reply) -> None:
        body = reply.body
        parts = (body,) if isinstance(body, (bytes, bytearray, memoryview)) else tuple(body)
        head = b""
        if not self._has_headers:
            self._has_headers = True
            head = self._connection.headers(self.number, _HEADERS_BLOCK)
        self._connection.send(self, head, parts, sum(map(len, parts)))

    def has_sent(self) -> None:
        if self.unsent:
            return
        writers, self._writers = self._writers, []
        for writer in writers:
            if not writer.done():
                writer.set_result(None)
        if self.is_answered and (self.task is None or self.task.done()):
            self._connection.finish(self)

    async def _drain(self) -> None:
        """Until the client has room for more."""
        writer = self._connection.loop.create_future()
        self._writers.append(writer)
        await writer

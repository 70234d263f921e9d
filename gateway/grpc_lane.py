"""A gRPC port without grpc: HTTP/2 to the handlers of methods, and back, on the event loop.

grpc.aio takes each message through a thread of its own, copies it several times, and makes a task of each call. Here a
call's first step is taken as soon as its message is whole: most small ones end with it, and their answer is one buffer.

    socket ──▶ Connection (http2) ── headers, messages ──▶ LaneRpc ──▶ the flow ──▶ back to the socket

Source: gRPC over HTTP/2.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import socket
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, NoReturn, cast
from urllib.parse import quote_from_bytes

from gateway import hpack
from gateway.canonical import NOTHING
from gateway.errors import Code
from gateway.first_step import begin
from gateway.grpc_exchange import Bounds, Handler, Handlers
from gateway.grpc_messages import CODINGS, PREFIX_BYTES, Garbled, TooLarge, inflate, prefix
from gateway.grpc_streams import short_detail
from gateway.http2 import Http2, Stream, new_scratch
from gateway.http2_frames import (
    CANCEL,
    END_HEADERS,
    END_STREAM,
    FIRST_WINDOW,
    FRAME_SIZE,
    HEADERS,
    LIST_SIZE,
    MAGIC,
    MOST,
    MOST_CONTROL_BYTES,
    MOST_STREAMS,
    NO_ERROR,
    PING,
    PROTOCOL_ERROR,
    REFUSED_STREAM,
    RST_STREAM,
    STREAM_CLOSED,
    WINDOW,
    WINDOW_UPDATE,
    BadFrame,
    BadStream,
    frame,
    goaway,
    settings,
    short_frame,
)
from gateway.patience import Patience
from gateway.peers import HttpPeer
from gateway.ports import Buffer, Peer, Reply
from gateway.request_id import REQUEST_ID
from gateway.traffic import Counts, Traffic

log: Final = logging.getLogger(__name__)

BACKLOG: Final = 1024
FRAME_BYTES: Final = 1 << 20
WINDOW_BYTES: Final = 4 << 20
"""Of a stream's messages, so much may wait for their reader, beside one that is larger."""
INFLATED_IN_THREAD_BYTES: Final = 64 << 10
_PONG_WITHIN_S: Final = 1.0
_FAREWELL: Final = b"farewell"
_MOST_HEADS: Final = 64
_NO_LIMIT: Final = 1 << 62

_HEADERS_BLOCK: Final = b"\x88" + hpack.encode([("content-type", "application/grpc")])
_OK: Final = hpack.encode([("grpc-status", "0")])
_TIMEOUT: Final = re.compile("([0-9]{1,8})([HMSmun])")
_UNITS: Final[Mapping[str, float]] = {"H": 3600.0, "M": 60.0, "S": 1.0, "m": 1e-3, "u": 1e-6, "n": 1e-9}
_OF_THE_TRANSPORT: Final = frozenset({"te", "content-type", "grpc-timeout", "grpc-encoding", "grpc-accept-encoding"})
_NOT_HTTP2: Final = frozenset({"connection", "keep-alive", "proxy-connection", "transfer-encoding", "upgrade"})
_UPPER: Final = re.compile("[A-Z]")


class Over(ConnectionError):
    """The call has been answered: its flow is to end as if the client had left."""


# ------------------------------------------------------------------------------------------------------------- the port


class GrpcLane:
    """All connections of one port."""

    def __init__(self, handlers: Handlers, counts: Counts, bounds: Bounds, patience: Patience | None = None) -> None:
        self.handlers = handlers
        self.counts = counts
        self.bounds = bounds
        self.patience = patience or Patience()
        self.most_streams = _NO_LIMIT if bounds.streams is None else bounds.streams
        said = {} if bounds.streams is None else {MOST_STREAMS: bounds.streams}
        said |= {WINDOW: WINDOW_BYTES, FRAME_SIZE: FRAME_BYTES, LIST_SIZE: bounds.metadata}
        self.greeting = settings(said) + short_frame(WINDOW_UPDATE, 0, MOST - FIRST_WINDOW)
        self.loop = asyncio.get_running_loop()
        self.scratch = new_scratch()
        self.connections: set[Connection] = set()
        self.parting = False
        self._all_gone = asyncio.Event()
        self._server: asyncio.Server | None = None

    async def start(self, sock: socket.socket) -> None:
        """Answer whoever connects to a bound socket, which is then the port's own."""
        self._server = await self.loop.create_server(self._connect, sock=sock, backlog=BACKLOG)
        self._sweep()

    def _connect(self) -> asyncio.BaseProtocol:
        most = self.bounds.connections
        if most is not None and len(self.connections) >= most:
            return _TurnedAway()
        return Connection(self)

    async def stop(self, grace: float) -> None:
        """Accept nothing more, finish what was asked for `grace` seconds, cancel the rest.

        Every client is told to ask nothing more here, and that whatever it has asked before it read that is answered.
        """
        if self._server is None:
            return
        self._server.close()
        await asyncio.sleep(0)  # who has connected is known
        self.parting = True
        for connection in list(self.connections):
            connection.part()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(grace):
                await self._gone()
        tasks = [task for connection in list(self.connections) for task in connection.abort()]
        await self._gone()
        if tasks:
            await asyncio.wait(tasks, timeout=1)
        self._timer.cancel()

    async def _gone(self) -> None:
        if self.connections:
            self._all_gone.clear()
            await self._all_gone.wait()

    def forget(self, connection: Connection) -> None:
        """The connection is closed."""
        self.connections.discard(connection)
        if not self.connections:
            self._all_gone.set()

    def _sweep(self) -> None:
        """Look after those who are waited for. One timer for all: one per call would cost more."""
        for connection in list(self.connections):
            connection.look_after()
        self._timer = self.loop.call_later(self.patience.sweep, self._sweep)

    def traffic(self) -> Traffic:
        """What passes here, for metrics: may be called in any thread."""
        counts = self.counts
        return Traffic(len(self.connections), counts.running, counts.received, counts.sent)


class _TurnedAway(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport.close()


# ------------------------------------------------------------------------------------------------------ one connection


@dataclass(frozen=True, slots=True)
class Head:
    """What the headers of a call say. `refusal` answers one that cannot be taken, `status` one that is not gRPC's."""

    handler: Handler | None
    metadata: Mapping[str, str]
    timeout: float | None = None
    coding: str = ""
    refusal: Reply | None = None
    status: str = "200"


class Connection(Http2["LaneRpc"]):
    """One client. `_last` is the stream that it has begun last, `_leaving` are the tasks of calls that it has left."""

    def __init__(self, lane: GrpcLane) -> None:
        metadata = lane.bounds.metadata
        super().__init__(FRAME_BYTES, MAGIC, lane.scratch, max(MOST_CONTROL_BYTES, 2 * metadata))
        self.lane = lane
        self.peer: Peer = HttpPeer(None)
        self._decoder = hpack.Decoder(metadata)
        self._heads: dict[bytes, Head] = {}
        self._last = 0
        self._leaving: set[asyncio.Task[None]] = set()
        self._is_settled = False
        self._parts = self._has_parted = False
        self._still = 0
        self._unsent = 0

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        self.peer = HttpPeer(transport)
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        self.lane.connections.add(self)
        transport.write(self.lane.greeting)
        if self.lane.parting:
            self.part()

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        self.lane.forget(self)
        self._end_all()

    def _end_all(self) -> None:
        rpcs = [*self._streams.values()]
        self._streams.clear()
        self._stalled.clear()
        self._data = None
        for rpc in rpcs:
            self._leave(rpc)

    def _leave(self, rpc: LaneRpc) -> None:
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
            self._close_if_over()

    def _close_if_over(self) -> None:
        if self._has_parted and not self._streams and self._transport is not None:
            self._transport.close()

    def _break(self, error: BadFrame) -> None:
        log.debug("a connection ends: %s", error)
        self._write(goaway(self._last, error.code))
        if self._transport is not None:
            self._transport.close()
        self._end_all()

    def look_after(self) -> None:
        """Once in a while: end what has not moved for too long."""
        if self._transport is None:
            return
        self._still += 1
        sweep, patience = self.lane.patience.sweep, self.lane.patience
        unsent = self._transport.get_write_buffer_size()
        if unsent < self._unsent or (self._is_settled and not unsent):
            self._still = 0
        self._unsent = unsent
        if self._still * sweep > (patience.answer if self._is_settled else patience.head):
            self.abort()
            return
        for rpc in [*self._streams.values()]:
            rpc.still += 1
            if (rpc.unsent and rpc.still * sweep > patience.answer) or (
                rpc.still * sweep > patience.body and rpc.is_waited_for
            ):
                self._leave(rpc)
                self._reset(rpc, CANCEL)

    # -------------------------------------------------------------------------------------------------------- receiving

    def _take_settled(self, values: Mapping[int, int]) -> None:
        self._is_settled = True

    def _check_unknown(self, number: int) -> None:
        if number > self._last:
            raise BadFrame("a stream that has not begun")

    def _take_block(self, number: int, flags: int, block: bytes) -> None:
        rpc = self._streams.get(number)
        if rpc is not None:
            self._take_trailers(rpc, flags, block)
            return
        head = self._heads.get(block) or self._read_head(block)
        if number <= self._last or self._has_parted:
            return  # of a call that is over, or that the client makes elsewhere
        if not number & 1:
            raise BadFrame("a stream with a server's number")
        self._last = number
        if head is _MALFORMED:
            self._answer(short_frame(RST_STREAM, number, PROTOCOL_ERROR))
        elif len(self._streams) + len(self._leaving) >= self.lane.most_streams:
            self._answer(short_frame(RST_STREAM, number, REFUSED_STREAM))
        else:
            rpc = self._streams[number] = LaneRpc(self, number, self._stream_window, head)
            rpc.ended = flags & END_STREAM != 0
            self._begin(rpc, head)

    def _begin(self, rpc: LaneRpc, head: Head) -> None:
        if head.handler is None:
            self._turn_down(rpc, head)
        elif rpc.ended:
            self._take_end(rpc)

    def _take_trailers(self, rpc: LaneRpc, flags: int, block: bytes) -> None:
        self._decoder.read(block)
        if rpc.ended:
            self._refuse(rpc, BadStream("headers behind the end", STREAM_CLOSED))
        elif not flags & END_STREAM:
            self._refuse(rpc, BadStream("headers in mid-stream"))
        else:
            rpc.ended = True
            self._take_end(rpc)

    def _read_head(self, block: bytes) -> Head:
        """Raises BadBlock."""
        before = self._decoder.changes
        said = self._decoder.read(block)
        head = _head(said, self.lane.handlers, self.lane.bounds.metadata)
        if self._decoder.changes != before or len(self._heads) >= _MOST_HEADS:
            self._heads.clear()
        if self._decoder.changes == before:
            self._heads[block] = head
        return head

    def _turn_down(self, rpc: LaneRpc, head: Head) -> None:
        if head.refusal is not None:
            rpc.say(head.refusal)
        else:
            rpc.is_answered = True
            block = hpack.encode([(":status", head.status)])
            self._write(frame(len(block), HEADERS, END_HEADERS | END_STREAM, rpc.number) + block)
        self.finish(rpc)

    def _take_messages(self, stream: LaneRpc, messages: list[tuple[bytes, bool]]) -> None:
        if not stream.is_unary:
            self._hear(stream, messages)
        elif not stream.is_asked:
            stream.is_asked = True
            ((body, is_compressed), *_) = messages
            self._start(stream, body, is_compressed=is_compressed)

    def _take_end(self, stream: LaneRpc) -> None:
        if stream.incoming.has_begun:
            self._fail(stream, Code.INTERNAL, "The message is not whole")
        elif not stream.is_unary:
            self._hear(stream, [])
        elif not stream.is_asked:
            self._fail(stream, Code.INTERNAL, "Missing request message")

    def _hear(self, rpc: LaneRpc, messages: list[tuple[bytes, bool]]) -> None:
        """More of many messages, or that there are no more. The flow begins with the first: some clients are not told
        why a call has failed that ends before they have asked anything.
        """
        rpc.hear(messages)
        if not rpc.is_asked:
            rpc.is_asked = True
            self._start(rpc, b"")

    def _take_reset(self, stream: LaneRpc, code: int) -> None:
        self._leave(stream)
        self._close_if_over()

    def _refuse(self, stream: LaneRpc, error: Exception) -> None:
        if isinstance(error, TooLarge):
            self._fail(
                stream, Code.RESOURCE_EXHAUSTED, f"Received message larger than max ({error.size} vs. {error.most})"
            )
        elif isinstance(error, BadStream):
            self._leave(stream)
            self._forget(stream.number)
            self._answer(short_frame(RST_STREAM, stream.number, error.code))
            self._close_if_over()
        else:
            self._fail(stream, Code.RESOURCE_EXHAUSTED, "The message is too large for the memory that is left")

    def _fail(self, rpc: LaneRpc, code: Code, text: str) -> None:
        """End a call whose flow, if it has one, is not to go on."""
        self._leave(rpc)
        rpc.say(Reply(b"", grpc_code=code, message=text))
        self.finish(rpc)

    # -------------------------------------------------------------------------------------------------------- answering

    def _start(self, rpc: LaneRpc, body: bytes, *, is_compressed: bool = False) -> None:
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

    def done(self, rpc: LaneRpc, task: asyncio.Task[None]) -> None:
        """A call's task is over."""
        rpc.stop_timer()
        if task.cancelled() or rpc.is_left:
            if not rpc.is_left:
                self._leave(rpc)
                self._reset(rpc, CANCEL)
            self._close_if_over()
            return
        error = task.exception()
        if error is None:
            self._over(rpc)
        else:
            self._failed(rpc, error)

    def _over(self, rpc: LaneRpc) -> None:
        if not rpc.is_answered and not rpc.is_left:
            rpc.say(_GOOD)
        self.finish(rpc)

    def _failed(self, rpc: LaneRpc, error: BaseException) -> None:
        if rpc.is_left or isinstance(error, ConnectionError):
            self.finish(rpc)
            return
        log.error("a call failed unexpectedly", exc_info=error)
        if not rpc.is_answered:
            rpc.say(Reply(b"", grpc_code=Code.INTERNAL, message="Internal error"))
        self.finish(rpc)

    def _expire(self, rpc: LaneRpc) -> None:
        rpc.timer = None
        self._leave(rpc)
        if rpc.is_answered:
            self._reset(rpc, CANCEL)
        else:
            rpc.say(Reply(b"", grpc_code=Code.DEADLINE_EXCEEDED, message="Deadline Exceeded"))
        self.finish(rpc)

    def finish(self, rpc: LaneRpc) -> None:
        """Forget a call that is over, once all of it is sent. A client that goes on asking is told to stop."""
        if rpc.unsent and not rpc.is_left:
            return
        if self._forget(rpc.number) is not None:
            if rpc.unsent:
                self._write(short_frame(RST_STREAM, rpc.number, CANCEL))
            elif not rpc.ended and not (rpc.is_asked and rpc.is_unary):
                self._write(short_frame(RST_STREAM, rpc.number, NO_ERROR))
        self._close_if_over()

    def send(self, rpc: LaneRpc, head: bytes, parts: tuple[Buffer, ...], size: int) -> None:
        """A message."""
        self.lane.counts.sent += size
        self._send(rpc, head, parts, size, prefix(size))

    def say_last(self, rpc: LaneRpc, data: bytes) -> None:
        """A call's last frame, behind all that is still to be sent."""
        if rpc.unsent:
            rpc.after = data
        else:
            self._write(data)

    def take_back(self, rpc: LaneRpc) -> None:
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


# ------------------------------------------------------------------------------------------------------------- one call


class LaneRpc(Stream):
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

    def __init__(self, connection: Connection, number: int, window: int, head: Head) -> None:
        super().__init__(number, window, WINDOW_BYTES, connection.lane.bounds.message)
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
        """Whether there is a part of a message, or a call without the one that it is to have."""
        return self.incoming.has_begun or (self.is_unary and not self.is_asked)

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
            self._reader = self._connection.lane.loop.create_future()
            await self._reader
        body, is_compressed = self._queue.popleft()
        self.waiting -= len(body) + PREFIX_BYTES
        self._connection.take_back(self)
        return await self._inflated(body) if is_compressed else body

    async def run_inflated(self, body: bytes) -> None:
        """The flow, for a message that is compressed."""
        await cast("Handler", self.head.handler).run(self, await self._inflated(body))

    async def _inflated(self, body: bytes) -> bytes:
        most = self._connection.lane.bounds.message
        try:
            if len(body) < INFLATED_IN_THREAD_BYTES:
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
        if self.unsent or self._connection.is_paused:
            await self._drain()

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
        head = b"" if self._has_headers else _HEADERS_BLOCK
        self._connection.say_last(self, self._trailers(head + block))

    def _trailers(self, block: bytes) -> bytes:
        if self._request_id:
            block += hpack.encode([(REQUEST_ID, self._request_id)])
        return frame(len(block), HEADERS, END_HEADERS | END_STREAM, self.number) + block

    def _say_message(self, reply: Reply) -> None:
        body = reply.body
        parts = (body,) if isinstance(body, (bytes, bytearray, memoryview)) else tuple(body)
        head = b""
        if not self._has_headers:
            self._has_headers = True
            head = frame(len(_HEADERS_BLOCK), HEADERS, END_HEADERS, self.number) + _HEADERS_BLOCK
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
        writer = self._connection.lane.loop.create_future()
        self._writers.append(writer)
        await writer


# ---------------------------------------------------------------------------------------------------------------- heads

_GOOD: Final = Reply(b"")
_PLAIN: Final = "".join(map(chr, range(0x20, 0x7F))).replace("%", "")
_MALFORMED: Final = Head(None, NOTHING)


def _head(said: list[tuple[str, str]] | None, handlers: Handlers, most: int) -> Head:
    """What a call's headers come to; None stands for too many of them."""
    if said is None:
        text = f"received metadata is larger than max ({most} bytes)"
        return Head(None, NOTHING, refusal=Reply(b"", grpc_code=Code.RESOURCE_EXHAUSTED, message=text))
    pseudo = {name: value for name, value in said if name.startswith(":")}
    rest = [(name, value) for name, value in said if not name.startswith(":")]
    all_once = len(pseudo) + len(rest) == len(said) and said[: len(pseudo)] == [*pseudo.items()]
    if not all_once or not {":method", ":path", ":scheme"} <= pseudo.keys():
        return _MALFORMED
    if any(_UPPER.search(name) or name in _NOT_HTTP2 or not name for name, _ in rest):
        return _MALFORMED
    fields = dict(rest)
    if pseudo[":method"] != "POST":
        return Head(None, NOTHING, status="405")
    if not fields.get("content-type", "").startswith("application/grpc"):
        return Head(None, NOTHING, status="415")
    handler = handlers.get(pseudo[":path"])
    if handler is None:
        return Head(None, NOTHING, refusal=Reply(b"", grpc_code=Code.UNIMPLEMENTED, message="Method not found!"))
    coding = fields.get("grpc-encoding", "")
    if coding not in CODINGS:
        text = f"Compression algorithm '{coding}' is not supported"
        return Head(None, NOTHING, refusal=Reply(b"", grpc_code=Code.UNIMPLEMENTED, message=text))
    timeout = None
    if (wanted := fields.get("grpc-timeout")) is not None:
        if (found := _TIMEOUT.fullmatch(wanted)) is None:
            return _MALFORMED
        timeout = int(found[1]) * _UNITS[found[2]]
    metadata = {name: value for name, value in rest if name not in _OF_THE_TRANSPORT and not name.endswith("-bin")}
    return Head(handler, metadata, timeout, coding)

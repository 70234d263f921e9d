"""Ordinary HTTP requests without a framework, in front of one.

    socket ──▶ FastPathConnection ── an ordinary request ──▶ the flow ──▶ back to the socket
                   └──────── anything else: the whole connection, from this request on ──▶ aiohttp

A connection decides on each request before it takes a byte of it. If the head is ordinary (see `http1_head`), the body
is read straight into the memory that the dialect gets, and the flow's answer is written in one go. If it is not, the
transport is given a protocol of aiohttp's, with every byte that was not taken yet, and the connection is that one's.

One request at a time is answered per connection, in order; what comes meanwhile waits, up to a bound. The flow's first
step is taken at once: most small requests end with it, and only some of those that have to wait cost a task.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from email.utils import formatdate
from functools import partial
from typing import Any, Final, NoReturn, cast

from tensorgate.gateway.contract.call import ArrivingReply, Buffer, Peer, Reply
from tensorgate.gateway.contract.errors import BodyTooLarge
from tensorgate.gateway.telemetry.request_id import REQUEST_ID
from tensorgate.gateway.transport.clients import Clients
from tensorgate.gateway.transport.http_exchange import Answer, AnswerArriving
from tensorgate.gateway.transport.peers import SocketPeer
from tensorgate.gateway.transport.timeouts import ClientTimeouts
from tensorgate.gateway.wire.cut_through import MIN_ARRIVING_BYTES, begin_if_slow
from tensorgate.gateway.wire.eager_start import EagerTask, as_task, start_eagerly
from tensorgate.gateway.wire.http1_body import Body
from tensorgate.gateway.wire.http1_head import KNOWN_HEADS, RequestHead, may_become_head, read_head, reply_head

log = logging.getLogger(__name__)

READ_BYTES: Final = 64 << 10
"""The size of a read that is not the rest of a body. As much may wait while a request is being answered."""
JOIN_BELOW_BYTES: Final = 32 << 10
"""Copying this much costs less than handing the kernel several buffers."""
_HOLD_BELOW_BYTES: Final = 4 << 10
"""Larger chunks leave at once."""
_MAX_HELD: Final = 64
_STOPPING_HEAD_S: Final = 1.0
"""How long the rest of a head may take once the port stops."""
WITHOUT_BODY: Final = frozenset((204, 304))
_ID_FIELD: Final = f"{REQUEST_ID}: ".encode()


class FastPath:
    """What all connections of a listener share. `received` and `sent` count bytes of bodies."""

    def __init__(
        self,
        answer: Answer,
        make_other: Callable[[], asyncio.Protocol],
        limit_of: Callable[[Mapping[str, str]], int],
        is_binary: Callable[[Mapping[str, str]], bool],
        clients: Clients[FastPathConnection],
        timeouts: ClientTimeouts,
        answer_arriving: AnswerArriving = lambda exchange, body, size: None,
    ) -> None:
        """`answer` is the flow, `answer_arriving` that of a request whose large body begins to come. `make_other` makes
        a protocol for what is not ordinary, `limit_of` says of a request's headers how many bytes its body may have,
        `is_binary` whether these are tensors' own.
        """
        self.answer = answer
        self.answer_arriving = answer_arriving
        self.make_other = make_other
        self.limit_of = limit_of
        self.is_binary = is_binary
        self.clients = clients
        self.timeouts = timeouts
        self.loop = asyncio.get_running_loop()
        self.buffer = memoryview(bytearray(READ_BYTES))  # read and emptied within one step of the loop, so one for all
        self.received = self.sent = 0
        self.draining = False
        """Every answer ends its connection."""
        self.date = b""
        """The Date header of this second."""
        clients.on_sweep = self._set_date
        clients.sweep()

    @property
    def running(self) -> int:
        """Requests that are being answered."""
        return sum(connection.is_answering for connection in list(self.clients.open))

    def connect(self) -> FastPathConnection:
        """A protocol for a new connection."""
        return FastPathConnection(self)

    def _set_date(self) -> None:
        self.date = b"Date: " + formatdate(time.time(), usegmt=True).encode() + b"\r\n"


class FastPathConnection(asyncio.BufferedProtocol):
    """One client."""

    __slots__ = (
        "_ahead",
        "_body",
        "_coming",
        "_exchange",
        "_flushed",
        "_has_next",
        "_has_part",
        "_held",
        "_is_reading",
        "_refused_bytes",
        "_room",
        "_task",
        "_unsent_bytes",
        "gives_up_at",
        "is_paused",
        "path",
        "peer",
        "transport",
    )

    transport: asyncio.Transport
    peer: Peer

    def __init__(self, path: FastPath) -> None:
        self.path = path
        self._room = path.buffer
        self._ahead = b""
        """What has been read of the next requests."""
        self._coming: FastPathExchange | None = None
        self._body: Body | None = None
        """The request whose body is being read, and that body."""
        self._exchange: FastPathExchange | None = None
        """The request that is being answered."""
        self._task: EagerTask | None = None
        self._flushed: asyncio.Future[None] | None = None
        self._held: list[Buffer] = []
        """Chunks that leave together, when the loop has been through what is at hand."""
        self._refused_bytes = 0
        """How much is still to come of a body that is refused."""
        self._unsent_bytes = 0
        """What was left of an answer when its reader was last checked."""
        self._has_part = False
        """What is ahead is known to be a part of a head."""
        self._has_next = False
        """What is ahead is about to be looked at."""
        self.is_paused = False
        """The client takes nothing, as far as the kernel tells."""
        self._is_reading = True
        self.gives_up_at = math.inf
        """The loop's time after which the client is given up."""

    # -------------------------------------------------------------------------------------------------- opened, closed

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        self.peer = SocketPeer(transport)
        self.path.clients.open.add(self)
        self._wait_for(self.path.timeouts.idle)
        if self.path.clients.stopping:
            self.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self.path.clients.remove(self)
        self.gives_up_at = math.inf
        self._forget_body()
        self._ahead = b""
        if self._task is not None:
            self._task.cancel()

    @property
    def is_answering(self) -> bool:
        """A request is being answered."""
        return self._exchange is not None

    def drain(self) -> None:
        """See ClientConnection. A request whose head has begun is answered, too, if the rest comes soon."""
        if self._exchange is None and self._body is None:
            if self._ahead:
                self._wait_for(min(self.path.timeouts.head, _STOPPING_HEAD_S))
            else:
                self.close()

    def close(self) -> None:
        """Close behind what has been written."""
        self._release()
        self._wait_for(self.path.timeouts.linger)
        self.transport.close()

    def abort(self) -> list[asyncio.Task[None]]:
        """See ClientConnection."""
        self.transport.abort()
        return [] if self._task is None else [as_task(self._task)]

    def check_timeouts(self, now: float) -> None:
        """See ClientConnection. A client that has taken more of its answer has another while for the rest."""
        if self.gives_up_at >= now:
            return
        unsent = self.transport.get_write_buffer_size()
        if self.is_paused and unsent < self._unsent_bytes:
            self._unsent_bytes = unsent
            self._wait_for(self.path.timeouts.answer)
        elif self.is_paused or self.transport.is_closing():
            self.abort()
        else:
            self.close()

    def _wait_for(self, seconds: float) -> None:
        self.gives_up_at = self.path.loop.time() + seconds

    # --------------------------------------------------------------------------------------------------------- reading

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._room

    def buffer_updated(self, nbytes: int) -> None:
        if self._body is not None:
            self._fill(self._body, nbytes)
            return
        data = bytes(self.path.buffer[:nbytes])
        if self._refused_bytes:
            self._skip(data)
            return
        self._ahead = self._ahead + data if self._ahead else data
        if self._exchange is None and not self._has_next:
            self._next()
        if self._ahead or not self._is_reading:
            self._read_as_needed()

    def _read_as_needed(self) -> None:
        """Stop reading while enough is ahead."""
        has_room = len(self._ahead) <= READ_BYTES
        if has_room is not self._is_reading:
            self._is_reading = has_room
            (self.transport.resume_reading if has_room else self.transport.pause_reading)()

    def _go_on(self) -> None:
        self._has_next = False
        if self._ahead and self._exchange is None and not self.transport.is_closing():
            self._next()
            self._read_as_needed()

    def _next(self) -> None:
        """Take the next request, as far as it is here."""
        data = self._ahead
        end = data.find(b"\r\n\r\n") + 4
        if end < 4:
            self._await_head(data)
            return
        self._has_part = False
        text = data[:end]
        head = KNOWN_HEADS.get(text) or read_head(text)
        if head is None:
            self._hand_over()
        elif head.length and head.length > self.path.limit_of(head.headers):
            self._ahead = b""
            self._refused_bytes = head.length
            self._answer(FastPathExchange(self, head, None, 0.0))
            self._skip(data[end:])
        elif len(data) - end >= head.length:
            after = end + head.length
            self._ahead = data[after:]
            self._answer(FastPathExchange(self, head, data[end:after], 0.0))
        else:
            self._ahead = b""
            self._coming = FastPathExchange(self, head, None, time.monotonic())
            self._body = Body(head.length, data[end:], is_shared=self.path.is_binary(head.headers))
            self._room = self._body.room
            self._wait_for(self.path.timeouts.body)
            if head.length >= MIN_ARRIVING_BYTES:
                begin = partial(self._answer_arriving, self._coming, self._body, head.length)
                begin_if_slow(self._body, head.length, begin)

    def _answer_arriving(self, exchange: FastPathExchange, body: Body, size: int) -> None:
        flow = self.path.answer_arriving(exchange, body, size)
        if flow is not None:
            self._answer(exchange, flow)

    def _await_head(self, data: bytes) -> None:
        if not may_become_head(data):
            self._hand_over()
        elif not self._has_part:
            self._has_part = True
            self._wait_for(self.path.timeouts.head)

    def _fill(self, body: Body, count: int) -> None:
        body.commit(count)
        if body.room:
            if self._body is not None:  # it may have been answered just now
                self._room = body.room
                self._wait_for(self.path.timeouts.body)
            return
        coming = cast("FastPathExchange", self._coming)
        self._forget_body()
        coming.body = body.whole()
        if self._exchange is None:
            self._answer(coming)
        else:  # its flow has begun, and has the body
            coming.take_body()
            self.gives_up_at = math.inf

    def _forget_body(self) -> None:
        """Let go of the memory of what was received, in an idle connection as in a closed one."""
        self._body = None
        self._coming = None
        self._room = self.path.buffer

    def _hand_over(self) -> None:
        """Give the connection to aiohttp, with all that was not taken."""
        if self.path.clients.stopping:
            self.close()
            return
        data, self._ahead = self._ahead, b""
        self._read_as_needed()
        self.path.clients.remove(self)
        other = self.path.make_other()
        other.connection_made(self.transport)
        self.transport.set_protocol(other)
        other.data_received(data)

    def _skip(self, data: bytes) -> None:
        """Throw away a refused body, since a client that is still sending does not read its answer yet."""
        self._refused_bytes -= min(self._refused_bytes, len(data))
        if not self._refused_bytes and self._exchange is None:
            self.close()

    # ------------------------------------------------------------------------------------------------------- answering

    def _answer(self, exchange: FastPathExchange, flow: Coroutine[Any, Any, None] | None = None) -> None:
        self._exchange = exchange
        self.gives_up_at = math.inf
        if flow is None:
            flow = self.path.answer(exchange)
        try:
            task = start_eagerly(self.path.loop, flow)
        except Exception as error:
            self._failed(exchange, error)
            return
        if task is None:
            self._answered(exchange)
        else:
            self._task = task
            task.add_done_callback(lambda task: self._finished(exchange, task))

    def _finished(self, exchange: FastPathExchange, task: EagerTask) -> None:
        self._task = None
        if task.cancelled():
            self.transport.abort()
            return
        error = task.exception()
        if error is None:
            self._answered(exchange)
        else:
            self._failed(exchange, error)

    def _failed(self, exchange: FastPathExchange, error: BaseException) -> None:
        """The flow has failed: a bug, or the client has left."""
        if self.transport.is_closing():
            return
        log.error("a request failed unexpectedly", exc_info=error)
        if exchange.has_begun:
            self.transport.abort()
            return
        exchange.closes = True
        self.write(exchange.head(Reply(b"", 500), b"Content-Length: 0\r\n"))
        self._answered(exchange)

    def _answered(self, exchange: FastPathExchange) -> None:
        self._exchange = None
        if self._body is not None:  # it was answered before it was whole
            self._refused_bytes = self._body.missing
            self._forget_body()
        if self._refused_bytes:
            self._wait_for(self.path.timeouts.linger)
        elif exchange.closes:
            self.close()
        else:
            path = self.path
            self.gives_up_at = path.loop.time() + path.timeouts.idle
            if self._ahead:
                self._has_next = True
                path.loop.call_soon(self._go_on)

    # --------------------------------------------------------------------------------------------------------- writing

    def write(self, *buffers: Buffer) -> None:
        """Write some buffers. Raises ConnectionError once the client has left."""
        if self._held:
            buffers = (*self._held, *buffers)
            self._held.clear()
        if sum(map(len, buffers)) < JOIN_BELOW_BYTES:
            self.write_joined(b"".join(buffers))
            return
        if self.transport.is_closing():
            raise ConnectionResetError("the client has left")
        self.transport.writelines(buffers)

    def write_joined(self, data: bytes) -> None:
        """Write what is in one piece. Raises ConnectionError once the client has left."""
        if self.transport.is_closing():
            raise ConnectionResetError("the client has left")
        self.transport.write(data)

    def write_soon(self, *buffers: Buffer) -> None:
        """Write with what else comes in this round of the loop. Raises ConnectionError once the client has left."""
        if len(self._held) > _MAX_HELD or sum(map(len, buffers)) > _HOLD_BELOW_BYTES:
            self.write(*buffers)
            return
        if self.transport.is_closing():
            raise ConnectionResetError("the client has left")
        if not self._held:
            self.path.loop.call_soon(self._release)
        self._held += buffers

    def _release(self) -> None:
        if self._held and not self.transport.is_closing():
            self.write()
        self._held.clear()

    async def flush(self) -> None:
        """Wait until most of what was written has left."""
        if self.is_paused:
            self._flushed = self.path.loop.create_future()
            await self._flushed

    def pause_writing(self) -> None:
        self.is_paused = True
        self._unsent_bytes = self.transport.get_write_buffer_size()
        self._wait_for(self.path.timeouts.answer)

    def resume_writing(self) -> None:
        self.is_paused = False
        self.gives_up_at = math.inf
        if self._flushed is not None and not self._flushed.done():
            self._flushed.set_result(None)


class FastPathExchange:
    """An HttpExchange. `body` is None until it is here, and when it is refused; requests may share their `headers`."""

    __slots__ = (
        "_connection",
        "begun",
        "body",
        "closes",
        "has_begun",
        "headers",
        "method",
        "peer",
        "request_id",
        "target",
    )

    def __init__(
        self, connection: FastPathConnection, head: RequestHead, body: bytes | memoryview | None, begun: float
    ) -> None:
        self._connection = connection
        self.peer = connection.peer
        """The client, one object for all of its requests."""
        self.method = head.method
        self.target = head.target
        self.headers: Mapping[str, str] = head.headers
        self.begun = begun
        self.body = body
        self.closes = not head.keep_alive
        self.has_begun = False
        self.request_id = ""

    def take_body(self) -> bytes | memoryview | None:
        """See HttpExchange. What outlives the answer must not keep it."""
        body = self.body
        if body is not None:
            self.body = b""
            self._connection.path.received += len(body)
        return body

    async def read(self, limit: int) -> NoReturn:
        """See HttpExchange. A body that is not here by now is refused."""
        raise BodyTooLarge(limit)

    def send(self, reply: Reply) -> Awaitable[None] | None:
        connection, body = self._connection, reply.body
        if reply.arriving is not None:
            return self._send_arriving(reply, reply.arriving)
        if type(body) is bytes and len(body) < JOIN_BELOW_BYTES and self.method == "POST" and reply.http_status == 200:
            size = len(body)
            connection.path.sent += size
            connection.write_joined(self.head(reply, b"Content-Length: %d\r\n" % size) + body)
            return connection.flush() if connection.is_paused else None
        buffers = (body,) if isinstance(body, (bytes, bytearray, memoryview)) else body
        size = sum(map(len, buffers))
        has_body = reply.http_status not in WITHOUT_BODY and self.method != "HEAD"
        # Without a body, nobody knows how long GET's would be: RFC 9110, 8.6.
        has_length = has_body or (size and reply.http_status not in WITHOUT_BODY)
        framing = b"Content-Length: %d\r\n" % size if has_length else b""
        if has_body:
            connection.path.sent += size
            connection.write(self.head(reply, framing), *buffers)
        else:
            connection.write(self.head(reply, framing))
        return connection.flush() if connection.is_paused else None

    async def _send_arriving(self, reply: Reply, arriving: ArrivingReply) -> None:
        """Send a reply while it comes. Where it ends too early, so does the connection: nobody takes it for whole."""
        connection, left = self._connection, len(cast("memoryview", reply.body))
        connection.write(self.head(reply, b"Content-Length: %d\r\n" % left))
        try:
            async for piece in arriving.pieces():
                left -= len(piece)
                connection.path.sent += len(piece)
                connection.write(piece)
                await connection.flush()
        finally:
            if left:
                connection.transport.abort()
        if left:
            raise ConnectionResetError("the answer ends too early")

    async def start(self, reply: Reply) -> None:
        framing = b"Transfer-Encoding: chunked\r\n" if self.method != "HEAD" else b""
        self._connection.write(self.head(reply, framing), *self._chunk(reply.body))
        if reply.further is not None and framing:
            reply.further(self._pass)
        await self._connection.flush()

    async def chunk(self, reply: Reply) -> None:
        connection = self._connection
        connection.write_soon(*self._chunk(reply.body))
        if connection.is_paused:
            await connection.flush()

    async def end(self) -> None:
        if self.method != "HEAD":
            self._connection.write(b"0\r\n\r\n")

    def _pass(self, piece: Buffer) -> bool:
        """A `PassOn`: a chunk of its own."""
        connection = self._connection
        if connection.is_paused or connection.transport.is_closing():
            return False
        connection.write(*self._chunk(piece))
        return True

    def _chunk(self, body: Buffer | Sequence[Buffer]) -> tuple[Buffer, ...]:
        buffers = (body,) if isinstance(body, (bytes, bytearray, memoryview)) else body
        size = sum(map(len, buffers))
        self._connection.path.sent += size
        return (b"%x\r\n" % size, *buffers, b"\r\n") if size and self.method != "HEAD" else ()

    def head(self, reply: Reply, framing: bytes) -> bytes:
        """The whole head of a reply, with Connection: close if it is the connection's last."""
        path = self._connection.path
        known = reply_head(reply.http_status, tuple(reply.headers.items()))
        end = b"\r\n"
        if known.closes:
            self.closes = True
        elif self.closes or path.draining or self.body is None:
            self.closes = True
            end = b"Connection: close\r\n\r\n"
        self.has_begun = True
        if not self.request_id:
            return known.data + path.date + framing + end
        return b"".join((known.data, path.date, framing, _ID_FIELD, self.request_id.encode(), b"\r\n", end))

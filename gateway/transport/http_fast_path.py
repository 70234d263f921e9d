"""The fast lane: ordinary HTTP requests without a framework, in front of one.

    socket ──▶ Connection ── an ordinary request ──▶ the flow ──▶ back to the socket
                   └──────── anything else: the whole connection, from this request on ──▶ aiohttp

A connection decides on each request before it takes a byte of it. If the head is ordinary (see `http_head`), the lane
reads the body straight into the memory that the dialect gets, lets the flow answer and writes that in one go. If it is
not, the transport is given a protocol of aiohttp's, with every byte that was not taken yet, and the lane is out of it.

One request at a time is answered per connection, in order; what comes meanwhile waits, up to a bound. The flow's first
step is taken at once: most small requests end with it, and only those that have to wait cost a task.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import time
from collections.abc import Callable, Mapping
from email.utils import formatdate
from typing import Final, cast

from tensorgate.gateway.contract.call import Buffer, Peer, Reply
from tensorgate.gateway.contract.errors import BodyTooLarge
from tensorgate.gateway.telemetry.request_id import REQUEST_ID
from tensorgate.gateway.transport.http_exchange import Answer
from tensorgate.gateway.transport.peers import SocketPeer
from tensorgate.gateway.transport.timeouts import ClientTimeouts
from tensorgate.gateway.wire.eager_start import begin
from tensorgate.gateway.wire.http1_body import Body
from tensorgate.gateway.wire.http1_head import Head, may_become_head, read_head, reply_head

log = logging.getLogger(__name__)

READ_BYTES: Final = 64 << 10
"""One read that is not the rest of a body; as much may wait while a request is being answered."""
JOIN_BELOW_BYTES: Final = 32 << 10
"""Copying this much costs less than handing the kernel several buffers."""
HEAD_AT_THE_END_S: Final = 1.0
"""So long a head may take that has begun before the lane stops."""
WITHOUT_BODY: Final = frozenset((204, 304))
_ID_FIELD: Final = f"{REQUEST_ID}: ".encode()


class FastPath:
    """All connections of one listener. `answer` is the flow, `make_other` makes a protocol for what is not ordinary,
    `limit_of` says of a request's headers how many bytes its body may have. `received` and `sent` count bytes of
    bodies.
    """

    def __init__(
        self,
        answer: Answer,
        make_other: Callable[[], asyncio.Protocol],
        limit_of: Callable[[Mapping[str, str]], int],
        timeouts: ClientTimeouts | None = None,
    ) -> None:
        self.answer = answer
        self.make_other = make_other
        self.limit_of = limit_of
        self.timeouts = timeouts or ClientTimeouts()
        self.loop = asyncio.get_running_loop()
        self.buffer = memoryview(bytearray(READ_BYTES))  # read and emptied within one step of the loop, so one for all
        self.connections: set[Connection] = set()
        self.received = self.sent = 0
        self.draining = False
        self.stopping = False
        self.date = b""
        self._all_gone = asyncio.Event()
        self._sweep()

    @property
    def running(self) -> int:
        """Requests that are being answered."""
        return sum(connection.is_answering for connection in list(self.connections))

    def connect(self) -> Connection:
        """A protocol for a new connection."""
        return Connection(self)

    async def stop(self, grace: float) -> None:
        """Close what is idle, let what is being answered finish for the seconds of grace, then end the rest."""
        await asyncio.sleep(0)  # what has arrived is read
        self.draining = self.stopping = True
        for connection in list(self.connections):
            connection.close_if_idle()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(grace):
                await self._gone()
        tasks = [task for connection in list(self.connections) if (task := connection.abort())]
        await self._gone()
        if tasks:
            await asyncio.wait(tasks, timeout=1)
        self._timer.cancel()

    async def _gone(self) -> None:
        if self.connections:
            self._all_gone.clear()
            await self._all_gone.wait()

    def forget(self, connection: Connection) -> None:
        """The connection is closed, or no longer the lane's."""
        self.connections.discard(connection)
        if not self.connections:
            self._all_gone.set()

    def _sweep(self) -> None:
        """Give up on who was waited for too long. One timer for all: moving one per request would cost more."""
        self.date = b"Date: " + formatdate(time.time(), usegmt=True).encode() + b"\r\n"
        now = self.loop.time()
        for late in [connection for connection in self.connections if connection.gives_up_at < now]:
            late.give_up()
        self._timer = self.loop.call_later(self.timeouts.sweep, self._sweep)


class Connection(asyncio.BufferedProtocol):
    """One client. What it has sent is `_ahead` until it is taken; `_coming` is the request whose `_body` is being
    filled, `_exchange` the one that is being answered.

    `_refused` is how much of a refused body is still to come, `_unsent` what was left of an answer when its reader was
    last looked after, `gives_up_at` the time of the loop at which the lane gives up. `_has_part`: what is ahead is
    known to be a part of a head; `_has_next`: it is about to be looked at.
    """

    __slots__ = (
        "_ahead",
        "_body",
        "_coming",
        "_drained",
        "_exchange",
        "_has_next",
        "_has_part",
        "_is_paused",
        "_is_reading",
        "_refused",
        "_room",
        "_task",
        "_unsent",
        "gives_up_at",
        "lane",
        "peer",
        "transport",
    )

    transport: asyncio.Transport
    _coming: FastPathExchange | None

    def __init__(self, lane: FastPath) -> None:
        self.lane = lane
        self._room = lane.buffer
        self._ahead = b""
        self._body: Body | None = None
        self._coming = None
        self._exchange: FastPathExchange | None = None
        self._task: asyncio.Task[None] | None = None
        self._drained: asyncio.Future[None] | None = None
        self._refused = 0
        self._unsent = 0
        self._has_part = False
        self._has_next = False
        self._is_paused = False
        self._is_reading = True
        self.gives_up_at = math.inf

    # -------------------------------------------------------------------------------------------------- opened, closed

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        self.peer = SocketPeer(transport)
        self.lane.connections.add(self)
        self._wait_for(self.lane.timeouts.idle)
        if self.lane.stopping:
            self.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self.lane.forget(self)
        self.gives_up_at = math.inf
        self._forget_body()
        self._ahead = b""
        if self._task is not None:
            self._task.cancel()

    @property
    def is_answering(self) -> bool:
        """Whether a request is being answered."""
        return self._exchange is not None

    def close_if_idle(self) -> None:
        """Whoever is in the middle of a head is answered once it is whole, if that is soon."""
        if self._exchange is None and self._body is None:
            if self._ahead:
                self._wait_for(min(self.lane.timeouts.head, HEAD_AT_THE_END_S))
            else:
                self.close()

    def close(self) -> None:
        """After what has been written."""
        self._wait_for(self.lane.timeouts.linger)
        self.transport.close()

    def abort(self) -> asyncio.Task[None] | None:
        """At once, whatever is left to be written. Returns the task that ends with it, if there is one."""
        self.transport.abort()
        return self._task

    def give_up(self) -> None:
        """The time has come, unless the client has taken some more of its answer meanwhile."""
        unsent = self.transport.get_write_buffer_size()
        if self._is_paused and unsent < self._unsent:
            self._unsent = unsent
            self._wait_for(self.lane.timeouts.answer)
        elif self._is_paused or self.transport.is_closing():
            self.abort()
        else:
            self.close()

    def _wait_for(self, seconds: float) -> None:
        self.gives_up_at = self.lane.loop.time() + seconds

    # --------------------------------------------------------------------------------------------------------- reading

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._room

    def buffer_updated(self, nbytes: int) -> None:
        if self._body is not None:
            self._fill(self._body, nbytes)
            return
        data = bytes(self.lane.buffer[:nbytes])
        if self._refused:
            self._skip(data)
            return
        self._ahead = self._ahead + data if self._ahead else data
        if self._exchange is None and not self._has_next:
            self._next()
        self._read_as_needed()

    def _read_as_needed(self) -> None:
        """Stop reading when enough is ahead, and go on when it is taken."""
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
        """The next request, as far as it is here."""
        data = self._ahead
        end = data.find(b"\r\n\r\n") + 4
        if end < 4:
            self._await_head(data)
            return
        self._has_part = False
        head = read_head(data[:end])
        if head is None:
            self._hand_over()
        elif head.length and head.length > self.lane.limit_of(head.headers):
            self._ahead = b""
            self._refused = head.length
            self._answer(FastPathExchange(self, head, None))
            self._skip(data[end:])
        elif len(data) - end >= head.length:
            after = end + head.length
            self._ahead = data[after:]
            self._answer(FastPathExchange(self, head, data[end:after]))
        else:
            self._ahead = b""
            self._coming = FastPathExchange(self, head, None)
            self._body = Body(head.length, data[end:])
            self._room = self._body.room
            self._wait_for(self.lane.timeouts.body)

    def _await_head(self, data: bytes) -> None:
        if not may_become_head(data):
            self._hand_over()
        elif not self._has_part:
            self._has_part = True
            self._wait_for(self.lane.timeouts.head)

    def _fill(self, body: Body, count: int) -> None:
        body.added(count)
        if body.room:
            self._room = body.room
            self._wait_for(self.lane.timeouts.body)
            return
        coming = cast("FastPathExchange", self._coming)
        self._forget_body()
        coming.body = body.whole()
        self._answer(coming)

    def _forget_body(self) -> None:
        """Neither an idle connection nor a closed one keeps the memory of what was received."""
        self._body = None
        self._coming = None
        self._room = self.lane.buffer

    def _hand_over(self) -> None:
        """From here on the connection is aiohttp's, with all that was not taken."""
        if self.lane.stopping:
            self.close()
            return
        data, self._ahead = self._ahead, b""
        self._read_as_needed()
        self.lane.forget(self)
        other = self.lane.make_other()
        other.connection_made(self.transport)
        self.transport.set_protocol(other)
        other.data_received(data)

    def _skip(self, data: bytes) -> None:
        """Throw away what comes of a refused body: a client that is still sending does not read its answer yet."""
        self._refused -= min(self._refused, len(data))
        if not self._refused and self._exchange is None:
            self.close()

    # ------------------------------------------------------------------------------------------------------- answering

    def _answer(self, exchange: FastPathExchange) -> None:
        self._exchange = exchange
        self.gives_up_at = math.inf
        flow = self.lane.answer(exchange)
        try:
            task = begin(self.lane.loop, flow)
        except Exception as error:
            self._failed(exchange, error)
            return
        if task is None:
            self._answered(exchange)
        else:
            self._task = task
            task.add_done_callback(lambda task: self._finished(exchange, task))

    def _finished(self, exchange: FastPathExchange, task: asyncio.Task[None]) -> None:
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
        """The flow itself has failed: a bug, or the client has left."""
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
        if self._refused:
            self._wait_for(self.lane.timeouts.linger)
        elif exchange.closes:
            self.close()
        else:
            self._wait_for(self.lane.timeouts.idle)
            if self._ahead:
                self._has_next = True
                self.lane.loop.call_soon(self._go_on)

    # --------------------------------------------------------------------------------------------------------- writing

    def write(self, *buffers: Buffer) -> None:
        """Raises ConnectionError once the client has left."""
        if self.transport.is_closing():
            raise ConnectionResetError("the client has left")
        if sum(map(len, buffers)) < JOIN_BELOW_BYTES:
            self.transport.write(b"".join(buffers))
        else:
            self.transport.writelines(buffers)

    async def drain(self) -> None:
        """Until most of what was written has left."""
        if self._is_paused:
            self._drained = self.lane.loop.create_future()
            await self._drained

    def pause_writing(self) -> None:
        self._is_paused = True
        self._unsent = self.transport.get_write_buffer_size()
        self._wait_for(self.lane.timeouts.answer)

    def resume_writing(self) -> None:
        self._is_paused = False
        self.gives_up_at = math.inf
        if self._drained is not None and not self._drained.done():
            self._drained.set_result(None)


class FastPathExchange:
    """A request in the lane. Its `body` is None until it is here, and when it is refused. `headers` may be shared with
    other requests.
    """

    __slots__ = ("_connection", "begun", "body", "closes", "has_begun", "headers", "method", "request_id", "target")

    def __init__(self, connection: Connection, head: Head, body: bytes | None) -> None:
        self._connection = connection
        self.method = head.method
        self.target = head.target
        self.headers: Mapping[str, str] = head.headers
        self.begun = time.monotonic()
        self.body = body
        self.closes = not head.keep_alive
        self.has_begun = False
        self.request_id = ""

    @property
    def peer(self) -> Peer:
        """The client, once for all of its requests."""
        return self._connection.peer

    async def read(self, limit: int) -> bytes:
        """The body, which is then its reader's alone: what outlives the answer must not keep it."""
        if self.body is None:
            raise BodyTooLarge(limit)
        body, self.body = self.body, b""
        self._connection.lane.received += len(body)
        return body

    async def send(self, reply: Reply) -> None:
        body = reply.body
        buffers = (body,) if isinstance(body, (bytes, bytearray, memoryview)) else body
        size = sum(map(len, buffers))
        has_body = reply.http_status not in WITHOUT_BODY and self.method != "HEAD"
        # Without a body, nobody knows how long GET's would be: RFC 9110, 8.6.
        has_length = has_body or (size and reply.http_status not in WITHOUT_BODY)
        framing = b"Content-Length: %d\r\n" % size if has_length else b""
        self._connection.lane.sent += size if has_body else 0
        self._connection.write(self.head(reply, framing), *(buffers if has_body else ()))
        await self._connection.drain()

    async def start(self, reply: Reply) -> None:
        framing = b"Transfer-Encoding: chunked\r\n" if self.method != "HEAD" else b""
        self._connection.write(self.head(reply, framing), *self._chunk(reply))
        await self._connection.drain()

    async def chunk(self, reply: Reply) -> None:
        self._connection.write(*self._chunk(reply))
        await self._connection.drain()

    async def end(self) -> None:
        if self.method != "HEAD":
            self._connection.write(b"0\r\n\r\n")

    def _chunk(self, reply: Reply) -> tuple[Buffer, ...]:
        body = reply.body
        buffers = (body,) if isinstance(body, (bytes, bytearray, memoryview)) else body
        size = sum(map(len, buffers))
        self._connection.lane.sent += size
        return (b"%x\r\n" % size, *buffers, b"\r\n") if size and self.method != "HEAD" else ()

    def head(self, reply: Reply, framing: bytes) -> bytes:
        """The head of a reply, whole. It says so if the connection ends with it."""
        lane = self._connection.lane
        known = reply_head(reply.http_status, tuple(reply.headers.items()))
        end = b"\r\n"
        if known.closes:
            self.closes = True
        elif self.closes or lane.draining or self.body is None:
            self.closes = True
            end = b"Connection: close\r\n\r\n"
        self.has_begun = True
        if not self.request_id:
            return known.data + lane.date + framing + end
        return b"".join((known.data, lane.date, framing, _ID_FIELD, self.request_id.encode(), b"\r\n", end))

"""Requests over HTTP/1.1 to one server: each has a connection for itself, and leaves it to the next.

A request goes out in one write, a reply is read where the socket wrote it, and nobody has to have a task for that.
"""

from __future__ import annotations

import asyncio
import math
import re
import ssl
import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Final, cast
from urllib.parse import urlsplit

from tensorgate.backends.remote.connection import CONNECTS_WITHIN_S, ConnectionLost, NotReached
from tensorgate.gateway.contract.call import ArrivingBody, Buffer, PassOn
from tensorgate.gateway.contract.upstream import Ask
from tensorgate.gateway.wire.cut_through import begin_if_slow
from tensorgate.gateway.wire.eager_start import in_task
from tensorgate.gateway.wire.http1_body import MIN_PIECE_BYTES, Body
from tensorgate.gateway.wire.http1_reply import BadReply, ReplyReader

_IDLE_S: Final = 15.0
"""So long a connection is kept that nobody needs."""
_SUCCESS: Final = 200
_BROKEN_INSIDE: Final = 500
"""Servers on Starlette, such as KServe's and MLServer's, close the connection behind an answer of this status without
saying so in it: the next request would be lost."""
_SMALL_BYTES: Final = 256 << 10
"""Smaller bodies leave in one write with their head."""
_TIMEOUT_HEADER: Final = "x-request-timeout-ms"
_SCRATCH_BYTES: Final = 64 << 10
_MAX_WAITING_BYTES: Final = 1 << 20
"""Of a stream, before its reader has to take them."""
_PORTS: Final = {"http": 80, "https": 443}
_LINE: Final = re.compile(r"[!-~\x80-\U0010ffff]+")
_HEADERS: Final = re.compile(r"(?:[\w!#$%&'*+\-.^`|~]+: [^\0\r\n]*\r\n)*", re.ASCII)
_DEFAULTS: Final = {"accept": "*/*", "accept-encoding": "identity"}
_WITH_BODY: Final = frozenset({"POST", "PUT", "PATCH"})


class Http1Connection(asyncio.BufferedProtocol):
    """One connection. It has one request at a time."""

    def __init__(self, scratch: memoryview) -> None:
        """`scratch` is memory for bytes that are looked at at once."""
        self._scratch = scratch
        self.idle_since = 0.0
        self.was_used = False
        """Whether another request came before."""
        self.reader: ReplyReader | None = None
        self._transport: asyncio.Transport | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._pass: PassOn | None = None
        self._error: Exception | None = None
        self._waiting_bytes = 0
        self._is_paused = False
        self._is_sending = False
        """More of a request's body is to come."""

    @property
    def is_open(self) -> bool:
        """Whether it may have another request."""
        return self._transport is not None and not self._transport.is_closing()

    def begin(
        self, head: bytes, body: Sequence[Buffer], reader: ReplyReader, arriving: ArrivingBody | None = None
    ) -> None:
        """Send a request, whose reply this reader gets, and a body that is `arriving` as it comes."""
        transport = self._transport
        if transport is None:
            raise ConnectionLost("the connection is closed")
        self.reader = reader
        self._pass = None
        self._error = None
        if arriving is not None:
            self._send_arriving(transport, head, memoryview(body[0]), arriving)
            return
        if sum(map(len, body)) <= _SMALL_BYTES:
            transport.write(b"".join((head, *body)))
            return
        transport.write(head)
        for part in body:
            transport.write(part)

    def _send_arriving(
        self, transport: asyncio.Transport, head: bytes, body: memoryview, arriving: ArrivingBody
    ) -> None:
        size, sent, reader = len(body), 0, self.reader

        def send_more() -> None:
            nonlocal sent
            if self.reader is not reader or self._transport is None:
                return
            if arriving.error is not None:
                self.fail(arriving.error)
                return
            here = arriving.passable_bytes
            if here < size and here - sent < MIN_PIECE_BYTES:
                return
            transport.write(body[sent:here])
            sent = here
            self._is_sending = sent < size

        self._is_sending = True
        transport.write(head)
        arriving.on_more = send_more
        send_more()
        if sent == size:
            arriving.on_more = None

    async def more(self) -> None:
        """Until there is more of the reply than was known. Raises what ends it."""
        if self._error is not None:
            raise self._error
        waiter = self._waiter = asyncio.get_running_loop().create_future()
        try:
            await waiter
        finally:
            self._waiter = None

    async def whole(self) -> None:
        """Until the reply is complete. Raises what ends it."""
        reader = self.reader
        while reader is not None and not reader.is_complete:
            await self.more()

    async def whole_or_slow(self, *, watch: bool) -> tuple[Body, memoryview] | None:
        """Until the reply is complete, or with `watch` is a large success of which much is still to come -> its body
        then, and where that lies. Raises what ends it.
        """
        reader = self.reader
        slow: list[tuple[Body, memoryview]] = []

        def begin(body: Body) -> None:
            place = body.place()
            if place is not None:
                slow.append((body, place))
                self._wake()

        def begins(body: Body, size: int) -> None:
            if reader is not None and reader.status == _SUCCESS:
                begin_if_slow(body, size, partial(begin, body))

        if watch and reader is not None:
            reader.on_begin = begins
        while reader is not None and not reader.is_complete and not slow:
            await self.more()
        return slow[0] if slow else None

    def pass_on(self, pass_: PassOn) -> None:
        """Pieces of the stream need not be taken while somebody waits for more, and nothing is left to be taken."""
        self._pass = pass_

    def take(self) -> list[bytes]:
        """The pieces of a stream that are here."""
        reader = self.reader
        if reader is None:
            return []
        pieces, reader.pieces = reader.pieces, []
        self._waiting_bytes = 0
        if self._is_paused and self._transport is not None:
            self._is_paused = False
            self._transport.resume_reading()
        return pieces

    def end(self) -> bool:
        """The request is over, in whatever way -> whether the connection may have another one; else it is closed."""
        reader, self.reader = self.reader, None
        transport = self._transport
        if (
            reader is not None
            and reader.is_complete
            and reader.keeps_alive
            and reader.status != _BROKEN_INSIDE
            and self._error is None
            and transport is not None
            and not transport.is_closing()
            and not self._is_sending  # it was answered before it was heard
            and not transport.get_write_buffer_size()
        ):
            return True
        self.close()
        return False

    def fail(self, error: Exception) -> None:
        """End the request with this error."""
        self._error = self._error or error
        self._wake()

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def _wake(self) -> None:
        waiter = self._waiter
        if waiter is None or waiter.done():
            return
        if self._error is not None:
            waiter.set_exception(self._error)
        else:
            waiter.set_result(None)

    # ------------------------------------------------------------------------------------------------ BufferedProtocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def get_buffer(self, sizehint: int) -> memoryview:
        reader = self.reader
        return self._scratch if reader is None or reader.arriving is None else reader.arriving.room

    def buffer_updated(self, nbytes: int) -> None:
        reader = self.reader
        if reader is None:  # nobody has asked
            self.close()
            return
        try:
            if reader.arriving is None:
                reader.receive(self._scratch[:nbytes])
            else:
                reader.commit(reader.arriving, nbytes)
        except BadReply as error:
            self.fail(ConnectionLost(str(error)))
        except Exception as error:
            self.fail(error)
        else:
            if reader.is_complete:
                self._wake()
            elif reader.is_stream and reader.pieces:
                if self._pass is not None and self._passes(self._pass, reader):
                    return
                self._waiting_bytes += nbytes
                if self._waiting_bytes > _MAX_WAITING_BYTES and not self._is_paused and self._transport is not None:
                    self._is_paused = True
                    self._transport.pause_reading()
                self._wake()
            return
        self.close()

    def _passes(self, pass_: PassOn, reader: ReplyReader) -> bool:
        """Whether what has come is on its way: what came before is, if its taker waits for more."""
        if self._waiter is None or self._waiter.done():
            return False
        pieces = reader.pieces
        if not pass_(pieces[0] if len(pieces) == 1 else b"".join(pieces)):
            return False
        pieces.clear()
        return True

    def eof_received(self) -> None:
        """Whoever closes his side has nothing more to say: so does this one."""
        reader = self.reader
        if reader is not None and not reader.is_complete:
            try:
                reader.eof()
            except BadReply as error:
                self.fail(ConnectionLost(str(error)))
            else:
                self._wake()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        reader = self.reader
        if reader is not None and not reader.is_complete:
            self.fail(ConnectionLost(str(exc or "the connection ended before the reply")))


class Http1Client:
    """All connections to one server. Made, used and closed on the event loop."""

    def __init__(
        self, base: str, tls: ssl.SSLContext | None = None, server_name: str = "", headers: Mapping[str, str] = {}
    ) -> None:
        """`base` is a URL, whose path comes before all targets; `headers` go with each request."""
        url = urlsplit(base)
        self._host = url.hostname or ""
        self._port = url.port or _PORTS.get(url.scheme, 80)
        self._prefix = url.path.rstrip("/")
        self._tls = (tls or ssl.create_default_context()) if url.scheme == "https" else None
        self._server_name = server_name or None
        host = f"[{self._host}]" if ":" in self._host else self._host
        named = {"host": host if self._port == _PORTS.get(url.scheme) else f"{host}:{self._port}"}
        self._headers = named | _DEFAULTS | {name.lower(): value for name, value in headers.items()}
        self._idle: list[Http1Connection] = []
        self._open: set[Http1Connection] = set()
        self._scratch = memoryview(bytearray(_SCRATCH_BYTES))
        self._sweeping: asyncio.TimerHandle | None = None
        self._is_closed = False

    async def send(self, ask: Ask, reader: ReplyReader, until: float | None) -> Http1Connection:
        """A connection that has sent this request, and how long its caller waits: until the loop's time `until`. It
        belongs to whoever asked until it is given to `release`.

        Raises NotReached, ConnectionLost, TimeoutError, ValueError for what is no header.
        """
        connection = self._take_idle() or await self._connect(until)
        headers = ask.headers
        if until is not None:
            left_ms = math.ceil((until - asyncio.get_running_loop().time()) * 1e3)
            headers = {**headers, _TIMEOUT_HEADER: str(max(1, left_ms))}
        try:
            head = self._head(ask.method, ask.target, headers, sum(map(len, ask.body)))
        except ValueError:
            self.release(connection)
            raise
        connection.begin(head, ask.body, reader, ask.arriving)
        return connection

    def release(self, connection: Http1Connection) -> None:
        """The request is over, in whatever way."""
        if not connection.end() or self._is_closed:
            self._drop(connection)
            return
        connection.idle_since = time.monotonic()
        connection.was_used = True
        self._idle.append(connection)
        if self._sweeping is None:
            self._sweeping = asyncio.get_running_loop().call_later(_IDLE_S, self._sweep)

    def _sweep(self) -> None:
        """Close what nobody has needed for long."""
        self._sweeping = None
        oldest = time.monotonic() - _IDLE_S
        while self._idle and self._idle[0].idle_since < oldest:
            self._drop(self._idle.pop(0))
        if self._idle:
            self._sweeping = asyncio.get_running_loop().call_later(_IDLE_S, self._sweep)

    def _drop(self, connection: Http1Connection) -> None:
        self._open.discard(connection)
        connection.close()

    def _head(self, method: str, target: str, headers: Mapping[str, str], length: int) -> bytes:
        fields = self._headers | {name.lower(): value for name, value in headers.items()}
        if length or method in _WITH_BODY:
            fields["content-length"] = str(length)
        path = self._prefix + target
        text = "".join([f"{name}: {value}\r\n" for name, value in fields.items()])
        if _LINE.fullmatch(path) is None or _HEADERS.fullmatch(text) is None or text.count("\n") != len(fields):
            raise ValueError("a header, or the target, has a line end or a space that it must not have")
        return f"{method} {path} HTTP/1.1\r\n{text}\r\n".encode("utf-8", "surrogateescape")

    def _take_idle(self) -> Http1Connection | None:
        """The one that was used last, which is the most likely to be alive."""
        oldest = time.monotonic() - _IDLE_S
        while self._idle:
            connection = self._idle.pop()
            if connection.is_open and connection.idle_since >= oldest:
                return connection
            self._drop(connection)
        return None

    async def _connect(self, until: float | None) -> Http1Connection:
        await in_task()
        loop = asyncio.get_running_loop()
        gives_up_at = loop.time() + CONNECTS_WITHIN_S
        is_late = until is not None and until < gives_up_at
        try:
            async with asyncio.timeout_at(until if is_late else gives_up_at):
                _, connection = await loop.create_connection(
                    partial(Http1Connection, self._scratch),
                    self._host,
                    self._port,
                    ssl=self._tls,
                    server_hostname=None if self._tls is None else self._server_name or self._host,
                )
        except TimeoutError:
            if is_late:
                raise
            raise NotReached(f"no connection to {self._host}:{self._port} within {CONNECTS_WITHIN_S:g} s") from None
        except (OSError, ssl.SSLError) as error:
            raise NotReached(str(error)) from None
        self._open.add(connection)
        return connection

    async def close(self) -> None:
        """Requests that are under way end."""
        self._is_closed = True
        if self._sweeping is not None:
            self._sweeping.cancel()
        for connection in self._open:
            connection.fail(ConnectionLost("the client is closed"))
            connection.close()
        self._open.clear()
        self._idle.clear()

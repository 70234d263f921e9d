"""HTTP on one side, Call and Reply on the other.

One flow takes every request, whether the fast path or aiohttp has read it. An exact path of the house
(/metrics, probes) comes first, then the dialect that owns the path's prefix; the dialect decides what exists below it.
This module knows no dialect, and no dialect knows this module.
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
import re
import socket
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, replace
from http import HTTPStatus
from types import MappingProxyType
from typing import Any, Final, NoReturn

from aiohttp import hdrs, web
from aiohttp.http import RawRequestMessage
from aiohttp.http_exceptions import BadHttpMethod, HttpProcessingError, LineTooLong

from tensorgate.gateway.config import Cors
from tensorgate.gateway.config.listeners import HTTP1, TlsFiles
from tensorgate.gateway.contract.call import ArrivingBody, ArrivingReply, Buffer, Call, Peer, Reply, combined
from tensorgate.gateway.contract.dialect import Dialect, Endpoint, Match, Resolve
from tensorgate.gateway.contract.errors import (
    AdminRequired,
    BodyTooLarge,
    CrossOriginRefused,
    GatewayError,
    InvalidArgument,
    Unauthenticated,
)
from tensorgate.gateway.contract.shortcuts import is_taken
from tensorgate.gateway.contract.tensor import NOTHING
from tensorgate.gateway.security.authorizer import MAX_UNAUTHENTICATED_BYTES
from tensorgate.gateway.service import Service
from tensorgate.gateway.telemetry.connection_metrics import ListenerTraffic
from tensorgate.gateway.telemetry.request_id import REQUEST_ID, is_valid
from tensorgate.gateway.telemetry.request_id import new as new_id
from tensorgate.gateway.transport.acceptor import Listening, listen
from tensorgate.gateway.transport.arriving import Arriving, forwarding
from tensorgate.gateway.transport.certificates import Certificates
from tensorgate.gateway.transport.clients import Clients
from tensorgate.gateway.transport.cors import CrossOrigin, foreign_origin
from tensorgate.gateway.transport.http_exchange import HttpExchange
from tensorgate.gateway.transport.http_fast_path import FastPath, FastPathConnection
from tensorgate.gateway.transport.peers import SocketPeer
from tensorgate.gateway.transport.spread import Share
from tensorgate.gateway.transport.timeouts import ClientTimeouts
from tensorgate.gateway.wire.http1_body import Body
from tensorgate.gateway.wire.http1_head import default_headers, reply_head


def _is_our_fault(record: logging.LogRecord) -> bool:
    """aiohttp logs a traceback for every message that is no HTTP. It is answered with 400; a scanner of ports must not
    fill the log.
    """
    return not (record.exc_info and isinstance(record.exc_info[1], HttpProcessingError))


_log: Final = logging.getLogger(__name__)
_log.addFilter(_is_our_fault)

Page = Callable[[HttpExchange], Awaitable[Reply]]
"""A path of the house itself: no dialect, no model."""

TIMEOUT_HEADER: Final = "x-request-timeout-ms"
READ_BUFFER_BYTES: Final = 1 << 20
_MAX_KNOWN_TARGETS: Final = 1024
_MAX_KNOWN_TARGET_BYTES: Final = 256
_READS: Final = ("GET", "HEAD")
SETTLE_S: Final = 0.05
"""The pause before idle connections are closed, in which clients are answered that have just connected or asked."""


@dataclass(frozen=True, slots=True)
class HttpLimits:
    """What one request may cost before a dialect sees it, and how long requests may take to finish once the server
    stops.
    """

    max_body_bytes: int
    max_binary_bytes: int
    max_json_depth: int | None = None
    grace_seconds: float = 30.0
    max_header_bytes: int = 8190
    max_headers: int = 128
    max_connections: int | None = None


class HttpListener:
    """One address that speaks some dialects. `limits` may be exchanged at any time."""

    def __init__(
        self,
        service: Service,
        dialects: Sequence[Dialect],
        pages: Mapping[str, Page],
        limits: HttpLimits,
        *,
        fast_path: bool = True,
        timeouts: ClientTimeouts | None = None,
        names: tuple[str, ...] = (),
        tls: TlsFiles | None = None,
        auth: str = "",
        guarded: Mapping[str, str] = NOTHING,
        cors: Cors | None = None,
        request_ids: bool = False,
        house: Sequence[Dialect] = (),
    ) -> None:
        """`pages` are exact paths of the house, and come first; `guarded` says which of them need whose rights. `house`
        are dialects of the house, which own their exact `paths` whatever else is spoken here. `names` are what routes
        call the listener, `auth` is what it wants of callers, "" what all ports do. Without `fast_path`
        aiohttp reads every request. With `request_ids` every answer has an id, and not only those to callers who sent
        one.
        """
        self._certificates = None if tls is None else Certificates(tls, HTTP1)
        self._auth = auth
        self._guarded = guarded
        self._cors = None if cors is None else CrossOrigin(cors)
        self._origins = frozenset(() if cors is None else cors.origins)
        self._service = service
        self._names = names
        self._request_ids = request_ids
        self._running = self._received = self._sent = 0
        self._dialects = dialects
        self._pages = pages
        # Of two that own a path, the first has it: what a user has put there comes before what always is.
        self._paths = {path: dialect for dialect in reversed(dialects) for path in dialect.paths}
        self._house = {path: dialect for dialect in house for path in dialect.paths}
        # Never stale: a listener's pages and dialects are its own, and a dialect's addresses are constants.
        self._places: dict[tuple[str, str], tuple[Dialect, Match]] = {}
        self._binary_headers = tuple({dialect.binary_header for dialect in dialects if dialect.binary_header})
        self.limits = limits
        self._timeouts = timeouts or ClientTimeouts()
        self._has_fast_path = fast_path and is_taken("http_fast_path")
        self._fast_path: FastPath | None = None
        self._clients: Clients[FastPathConnection] | None = None
        self._listening: Listening | None = None
        self._runner: web.ServerRunner | None = None
        self._draining = False

    async def start(self, sock: socket.socket, share: Share | None = None) -> None:
        """Listen at a bound socket; `share` is the part of it that one of several doors takes."""
        loop = asyncio.get_running_loop()
        options: dict[str, Any] = {
            "access_log": None,
            "logger": _log,
            "auto_decompress": False,
            "read_bufsize": READ_BUFFER_BYTES,
            "keepalive_timeout": self._timeouts.idle,
            "max_line_size": self.limits.max_header_bytes,
            "max_field_size": self.limits.max_header_bytes,
            "max_headers": self.limits.max_headers,
            "unreadable": self._unreadable,
        }
        framework = web.Server(self._receive, handler_cancellation=True)
        # aiohttp waits twice: for the reply, then for the task around it.
        self._runner = web.ServerRunner(framework, shutdown_timeout=self.limits.grace_seconds / 2)
        await self._runner.setup()

        def make_protocol() -> asyncio.Protocol:
            return _AiohttpProtocol(framework, on_change=lambda: clients.on_change(), loop=loop, **options)

        connect: Callable[[], asyncio.BaseProtocol] = make_protocol
        self._clients = clients = Clients[FastPathConnection](
            self._timeouts.sweep, self.limits.max_connections, lambda: len(framework.connections)
        )
        if self._has_fast_path:
            self._fast_path = FastPath(
                self._answer,
                make_protocol,
                self._limit_of,
                self._is_binary,
                clients,
                self._timeouts,
                self._answer_arriving,
            )
            connect = self._fast_path.connect
        self._listening = await listen(sock, connect, clients, self._certificates, self._timeouts, share)

    def drain(self) -> None:
        """End each connection with its next answer: so clients go elsewhere one after the other, and none finds a
        connection closed that it was just about to use.
        """
        self._draining = True
        if self._fast_path is not None:
            self._fast_path.draining = True

    async def stop(self, *, hand_on: bool = False) -> None:
        """Accept nothing more, close what is idle, and let what is being answered finish for the seconds of grace. With
        `hand_on` another process goes on at the address; else nobody does, whoever holds the same socket.
        """
        self.drain()
        if self._listening is not None:
            self._listening.close(hand_on=hand_on)
        await asyncio.sleep(SETTLE_S)
        if self._runner is not None:
            ends = [self._fast_path.clients.stop(self.limits.grace_seconds)] if self._fast_path is not None else []
            await asyncio.gather(self._runner.cleanup(), *ends)

    def traffic(self) -> ListenerTraffic:
        """What passes here, for metrics. May be called in any thread."""
        fast = self._fast_path
        connections = 0 if self._clients is None else self._clients.count
        if fast is None:
            return ListenerTraffic(connections, self._running, self._received, self._sent)
        return ListenerTraffic(
            connections, self._running + fast.running, self._received + fast.received, self._sent + fast.sent
        )

    async def _receive(self, request: web.BaseRequest) -> web.StreamResponse:
        exchange = AiohttpExchange(request, self._timeouts.body)
        self._running += 1
        try:
            await self._answer(exchange)
        finally:
            self._running -= 1
            self._received += exchange.received
            self._sent += exchange.sent
        if self._draining:
            exchange.response.force_close()
        return exchange.response

    # ----------------------------------------------------------------------------------------------------- one request

    async def _answer(self, exchange: HttpExchange) -> None:
        if self._cors is not None:
            if (preflight := self._cors.preflight(exchange)) is not None:
                await _sent(exchange, preflight)
                return
            exchange = self._cors.wrapped(exchange)
        target = exchange.target
        place = self._places.get((exchange.method, target)) or self._find_place(exchange.method, target)
        if place is None:
            await _sent(exchange, await self._page(exchange))
            return
        dialect, match = place
        endpoint, deadline = match.endpoint, None
        if TIMEOUT_HEADER in exchange.headers or (body := exchange.take_body()) is None:
            endpoint, body, deadline = await self._read(exchange, endpoint)
        if dialect.http_timeout_ms:
            deadline = min(deadline or math.inf, time.monotonic() + dialect.http_timeout_ms / 1000)
        call = self._call(exchange, match.args, body, deadline)
        if endpoint.admin and (origin := foreign_origin(exchange.headers, self._origins)) is not None:
            endpoint = _refusing(endpoint, CrossOriginRefused(origin))
        if endpoint.stream == "server":
            replies = _Replies(exchange)
            await self._service.handle(dialect.name, endpoint, call, replies.send)
            await replies.end(endpoint.nothing)
            return
        await self._service.handle(dialect.name, endpoint, call, exchange.send)
        if not exchange.has_begun:
            await _sent(exchange, endpoint.nothing)

    def _answer_arriving(self, exchange: HttpExchange, body: Body, size: int) -> Coroutine[Any, Any, None] | None:
        """What answers a request whose body is sent on to another server while it comes. Not where a dialect's time
        begins once the body is here.
        """
        place = self._places.get((exchange.method, exchange.target)) or self._find_place(
            exchange.method, exchange.target
        )
        room = body.place()
        if place is None or room is None or self._cors is not None or place[0].http_timeout_ms:
            return None
        dialect, match = place
        endpoint = match.endpoint
        ref = self._service.forwarded((dialect.name, "http"), endpoint, match.args, body.begun)
        if ref is None:
            return None
        try:
            deadline = _deadline(exchange)
        except GatewayError:
            return None
        call = self._call(exchange, match.args, room, deadline, Arriving(body, size))
        return self._service.handle(dialect.name, forwarding(endpoint, ref), call, exchange.send)

    async def _page(self, exchange: HttpExchange) -> Reply:
        """What the house itself has at a target, for those who may see it."""
        path = exchange.target.partition("?")[0]
        page = self._pages.get(path)
        if page is None:
            return _plain(404, "Not Found")
        return self._refused(path, exchange) or await page(exchange)

    def _refused(self, path: str, exchange: HttpExchange) -> Reply | None:
        """The answer to a caller who may not see a page of the house, or not change what it changes; None to others."""
        origin = None if exchange.method in _READS else foreign_origin(exchange.headers, self._origins)
        if origin is not None:
            return _plain(403, f"This changes the server, which is not for pages of {origin}")
        kind, authorizer = self._guarded.get(path), self._service.authorizer
        if kind is None or authorizer is None:
            return None
        try:
            authorizer.check_page(kind, exchange.headers, exchange.peer, self._auth)
        except GatewayError as error:
            return _refusal(error)
        return None

    def _limit_of(self, headers: Mapping[str, str]) -> int:
        """How many bytes a body may have. That of a caller who will be refused must be small, or is not even read."""
        limits = self.limits
        limit = limits.max_binary_bytes if self._is_binary(headers) else limits.max_body_bytes
        authorizer = self._service.authorizer
        if authorizer is None or limit <= MAX_UNAUTHENTICATED_BYTES:
            return limit
        length = headers.get("content-length", "")
        is_small = length.isdecimal() and int(length) <= MAX_UNAUTHENTICATED_BYTES
        return limit if is_small or authorizer.knows(headers, self._auth) else MAX_UNAUTHENTICATED_BYTES

    def _is_binary(self, headers: Mapping[str, str]) -> bool:
        """Whether a body is tensors' own bytes, at least in part."""
        return any(map(headers.__contains__, self._binary_headers))

    def _unreadable(self, status: int, target: str, text: str) -> Reply:
        """The answer to a message whose head is no HTTP, in the words of the dialect that its target belongs to."""
        dialect = self._owner(target)
        reply = _plain(status, text) if dialect is None or not dialect.unreadable else dialect.unreadable(status, text)
        return replace(reply, headers={**reply.headers, "Connection": "close"})

    def _find_place(self, method: str, target: str) -> tuple[Dialect, Match] | None:
        """The dialect that owns a target, and what is there, to be found at once the next time; None where none does.
        The longer ones are some caller's own, who is not to fill our memory.
        """
        path = target.partition("?")[0]
        dialect = None if path in self._pages else self._house.get(path) or self._owner(target)
        if dialect is None:
            return None
        place = dialect, dialect.match(method, target)
        if len(target) <= _MAX_KNOWN_TARGET_BYTES:
            if len(self._places) >= _MAX_KNOWN_TARGETS:
                self._places.clear()
            self._places[method, target] = place
        return place

    def _owner(self, target: str) -> Dialect | None:
        """The dialect that owns a path; the only one of a listener owns them all."""
        if len(self._dialects) == 1:
            return self._dialects[0]
        if self._paths and (owner := self._paths.get(target.partition("?")[0])) is not None:
            return owner
        for dialect in self._dialects:
            prefix = dialect.prefix
            if target[: len(prefix)].lower() == prefix and target[len(prefix) : len(prefix) + 1] in ("", "/", "?"):
                return dialect
        return None

    async def _read(self, exchange: HttpExchange, endpoint: Endpoint) -> tuple[Endpoint, Buffer, float | None]:
        """Read the body -> the endpoint, or one that refuses if the message itself is not acceptable; the body; the
        deadline that the caller has set.
        """
        try:
            deadline = _deadline(exchange)
            body = exchange.take_body()
            if body is None:
                body = await exchange.read(self._limit_of(exchange.headers))
        except GatewayError as error:
            return _refusing(endpoint, error), b"", None
        return endpoint, body, deadline

    def _call(
        self,
        exchange: HttpExchange,
        args: Mapping[str, str],
        body: Buffer,
        deadline: float | None,
        arriving: ArrivingBody | None = None,
    ) -> Call:
        limits = self.limits
        headers = exchange.headers
        request_id = headers.get(REQUEST_ID)
        if request_id is not None or self._request_ids:
            if request_id is None or not is_valid(request_id):
                request_id = new_id()
            exchange.request_id = request_id
        return Call(
            body,
            exchange.method,
            exchange.target,
            headers,
            "http",
            args,
            deadline,
            limits.max_body_bytes,
            limits.max_binary_bytes,
            limits.max_json_depth,
            listener=self._names,
            peer=exchange.peer,
            auth=self._auth,
            request_id=request_id or "",
            arriving=arriving,
        )


async def _sent(exchange: HttpExchange, reply: Reply) -> None:
    """Send a reply, and wait until it has left."""
    if (sent := exchange.send(reply)) is not None:
        await sent


def _deadline(exchange: HttpExchange) -> float | None:
    text = exchange.headers.get(TIMEOUT_HEADER)
    if text is None:
        return None
    if not text.isascii() or not text.isdecimal() or len(text) > 12:
        raise InvalidArgument(f"header {TIMEOUT_HEADER} must be a whole number of milliseconds")
    return (exchange.begun or time.monotonic()) + int(text) / 1000


def _refusing(endpoint: Endpoint, error: GatewayError) -> Endpoint:
    """The endpoint with a decode that only raises: so the refusal is encoded as all errors are."""

    def decode(call: Call, resolve: Resolve) -> NoReturn:
        raise error

    return replace(endpoint, decode=decode)


class _Replies:
    """Sends one reply as a response, and streamed ones as its chunks."""

    __slots__ = ("_exchange", "_has_sent", "_is_open")

    def __init__(self, exchange: HttpExchange) -> None:
        self._exchange = exchange
        self._is_open = False
        self._has_sent = False

    async def send(self, reply: Reply) -> None:
        if self._is_open:
            await self._exchange.chunk(reply)
        elif reply.streamed:
            await self._exchange.start(reply)
            self._is_open = True
        else:
            await _sent(self._exchange, reply)
            self._has_sent = True

    async def end(self, nothing: Reply) -> None:
        if self._is_open:
            await self._exchange.end()
        elif not self._has_sent:
            await _sent(self._exchange, nothing)


def _plain(status: int, text: str) -> Reply:
    return Reply(json.dumps({"error": text}).encode(), status, {"Content-Type": "application/json; charset=utf-8"})


class _AiohttpProtocol(web.RequestHandler):
    """aiohttp's protocol, but that what is no HTTP is answered in the words of the dialect that it was for: that of the
    latest request line whose beginning could be read.
    """

    def __init__(
        self,
        *args: Any,
        unreadable: Callable[[int, str, str], Reply],
        on_change: Callable[[], None],
        **options: Any,
    ) -> None:
        super().__init__(*args, **options)
        self._unreadable = unreadable
        self._on_change = on_change
        self._target = ""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._on_change()

    def connection_lost(self, exc: BaseException | None) -> None:
        running = self._task_handler
        super().connection_lost(exc)
        if running is None:
            self._on_change()
        else:  # aiohttp counts the connection until that has ended
            running.add_done_callback(lambda _: self._on_change())

    def data_received(self, data: bytes) -> None:
        if (line := _REQUEST_LINE.match(data)) is not None:  # a head may come in several pieces
            self._target = line[1].decode()
        super().data_received(data)
        running = self._current_request
        if running is not None and self._messages and not isinstance(self._messages[-1][0], RawRequestMessage):
            # What follows the head is no body: whoever waits for it would do so for ever.
            running.content.set_exception(_Broken(message="the body is not well-formed HTTP"))

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        super().handle_error(request, status, exc, message)  # writes to the log
        status = 501 if isinstance(exc, BadHttpMethod) else status  # no fault of the message
        reply = self._unreadable(status, self._target, _unreadable_text(status, exc))
        response = web.Response(status=reply.http_status, headers=_headers(reply), body=_joined(reply))
        response.force_close()
        return response


class _Broken(HttpProcessingError):
    """The rest of a body whose framing is wrong."""


_REQUEST_LINE: Final = re.compile(rb"(?:\r?\n)*[!-~]{1,32} (/[!-~]{0,255})")


def _unreadable_text(status: int, error: BaseException | None) -> str:
    """What is wrong, without a byte of what came."""
    if isinstance(error, LineTooLong):
        return f"The request line or a header is longer than {error.args[1]} bytes"
    if isinstance(error, HttpProcessingError):
        return "The method is unknown" if status == 501 else "The message is not well-formed HTTP"
    return HTTPStatus(status).phrase


class AiohttpExchange:
    """An HttpExchange that aiohttp has read; aiohttp sends, or ends, its `response`."""

    def __init__(self, request: web.BaseRequest, body_seconds: float = math.inf) -> None:
        """`body_seconds` is how long more of the body may take to come."""
        self._request = request
        self._body_seconds = None if body_seconds == math.inf else body_seconds
        self._is_broken = False
        self.method = request.method
        self.target = request.raw_path
        self.headers = _headers_of(request)
        self.begun = time.monotonic()
        self.response = web.StreamResponse()
        self.request_id = ""
        self.received = self.sent = 0
        self.has_begun = False

    @property
    def peer(self) -> Peer:
        """The client."""
        return SocketPeer(self._request.transport)

    def take_body(self) -> None:
        """See HttpExchange. It is read only when somebody asks for it."""

    async def read(self, limit: int) -> Buffer:
        """See HttpExchange. After BodyTooLarge aiohttp reads on for a while, and closes the connection."""
        body = await self._read(limit)
        self.received = len(body)
        return body

    async def _read(self, limit: int) -> Buffer:
        request = self._request
        if not request.body_exists:
            return b""
        length = request.content_length
        if length is not None and length > limit:
            raise BodyTooLarge(limit)
        if request.headers.get(hdrs.EXPECT, "").lower() == "100-continue" and request.transport is not None:
            request.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        parts, size = [], 0
        while part := await self._part():
            parts.append(part)
            size += len(part)
            if size > limit:
                raise BodyTooLarge(limit)
        return b"".join(parts)

    async def _part(self) -> bytes:
        """What has come of the body, b"" at its end. Raises InvalidArgument, and ConnectionError if nothing comes."""
        try:
            async with asyncio.timeout(self._body_seconds):
                return await self._request.content.readany()
        except _Broken as error:
            self._is_broken = True
            raise InvalidArgument(error.message) from None
        except TimeoutError:
            if self._request.transport is not None:
                self._request.transport.close()
            raise ConnectionResetError("no more of the body came") from None

    def send(self, reply: Reply) -> Awaitable[None] | None:
        if reply.arriving is not None:
            return self._send_arriving(reply, reply.arriving)
        body = _joined(reply)
        self.sent = len(body)
        self._open(reply, web.Response(status=reply.http_status, headers=self._headers(reply), body=body))
        return None

    async def _send_arriving(self, reply: Reply, arriving: ArrivingReply) -> None:
        """Send a reply while it comes. Where it ends too early, so does the connection: nobody takes it for whole."""
        left = len(_joined(reply))
        headers = {**self._headers(reply), "Content-Length": str(left)}
        self._open(reply, web.StreamResponse(status=reply.http_status, headers=headers))
        await self.response.prepare(self._request)
        try:
            async for piece in arriving.pieces():
                left -= len(piece)
                self.sent += len(piece)
                await self.response.write(piece)
        finally:
            if left and self._request.transport is not None:
                self._request.transport.abort()
        if not left:
            await self.response.write_eof()

    async def start(self, reply: Reply) -> None:
        self._open(reply, web.StreamResponse(status=reply.http_status, headers=self._headers(reply)))
        await self.response.prepare(self._request)
        await self.chunk(reply)

    async def chunk(self, reply: Reply) -> None:
        body = _joined(reply)
        self.sent += len(body)
        if body:
            await self.response.write(body)

    async def end(self) -> None:
        await self.response.write_eof()

    def _headers(self, reply: Reply) -> dict[str, str]:
        named = {REQUEST_ID: self.request_id} if self.request_id else {}
        return {**_headers(reply), **named}

    def _open(self, reply: Reply, response: web.StreamResponse) -> None:
        """Raises ValueError for headers that no reply may have: aiohttp would notice too late for an answer."""
        if self._is_broken or reply_head(reply.http_status, tuple(reply.headers.items())).closes:
            response.force_close()
        self.response = response
        self.has_begun = True


def _headers_of(request: web.BaseRequest) -> Mapping[str, str]:
    """The headers, repeated ones joined: aiohttp's own give the first of them."""
    given = request.headers
    return given if len({*map(str.lower, given)}) == len(given) else MappingProxyType(combined(given.items()))


def _headers(reply: Reply) -> dict[str, str]:
    """A reply's headers with all defaults, since aiohttp has another Content-Type for a reply without a body."""
    return {**dict(default_headers(reply.headers.items())), **reply.headers}


def _joined(reply: Reply) -> bytes | bytearray | memoryview:
    body = reply.body
    return body if isinstance(body, (bytes, bytearray, memoryview)) else b"".join(body)


def metrics_page(render: Callable[[str], tuple[bytes, str]], settle: Callable[[], None] = lambda: None) -> Page:
    """/metrics, rendered off the loop: it takes milliseconds. `settle` goes before, on the loop; `render` takes the
    header Accept and gives the text with its type.
    """

    async def page(exchange: HttpExchange) -> Reply:
        if exchange.method not in _READS:
            return _plain(405, "Method Not Allowed")
        settle()
        text, content_type = await asyncio.to_thread(render, exchange.headers.get("accept", ""))
        return Reply(text, headers={"Content-Type": content_type})

    return page


def dialect_metrics_page(answer: Callable[[str], Reply], settle: Callable[[], None] = lambda: None) -> Page:
    """A dialect's own metrics: `answer` takes the HTTP target, off the loop, for any method."""

    async def page(exchange: HttpExchange) -> Reply:
        settle()
        return await asyncio.to_thread(answer, exchange.target)

    return page


def probe_page(healthy: Callable[[], bool]) -> Page:
    """/healthz and /readyz: 200 or 503, and one word."""

    async def page(exchange: HttpExchange) -> Reply:
        ok = healthy()
        text = b"ok\n" if ok else b"unavailable\n"
        return Reply(text, 200 if ok else 503, {"Content-Type": "text/plain; charset=utf-8"})

    return read_only(page)


def read_only(read: Page) -> Page:
    """A page for GET and HEAD."""

    async def page(exchange: HttpExchange) -> Reply:
        return await read(exchange) if exchange.method in _READS else _plain(405, "Method Not Allowed")

    return page


def admin_page(check: Callable[[HttpExchange], bool], act: Callable[[], Awaitable[tuple[int, Any]]]) -> Page:
    """What changes the server, by POST, for administrators: JSON with a status. `check` lets them pass, and raises for
    others; where it is False, nobody is one, and there is no such page.
    """

    async def page(exchange: HttpExchange) -> Reply:
        try:
            if not check(exchange):
                return _plain(404, "Not Found")
        except AdminRequired as error:
            return _plain(403, f"this call must carry the administrator's key in the header {error.header}")
        except GatewayError as error:
            return _refusal(error)
        if exchange.method != "POST":
            return _plain(405, "Method Not Allowed")
        status, content = await act()
        return Reply(json.dumps(content).encode(), status, {"Content-Type": "application/json; charset=utf-8"})

    return page


def _refusal(error: GatewayError) -> Reply:
    if isinstance(error, Unauthenticated):
        reply = _plain(401, "The credentials are not valid" if error.given else "Credentials are required")
    else:
        reply = _plain(403, "This is for administrators")
    return replace(reply, headers={**reply.headers, **error.http_headers})

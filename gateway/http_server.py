"""HTTP on one side, Call and Reply on the other.

One flow takes every request, whichever way it came: through the lane, or through aiohttp. An exact path of the house
(/metrics, probes) comes first, then the dialect that owns the path's prefix; the dialect decides what exists below it.
This module knows no dialect, and no dialect knows this module.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import math
import socket
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from http import HTTPStatus
from typing import Any, Final, NoReturn

from aiohttp import hdrs, web
from aiohttp.http_exceptions import BadHttpMethod, HttpProcessingError

from gateway.admin import AdminKey
from gateway.errors import AdminRequired, BodyTooLarge, GatewayError, InvalidArgument
from gateway.http_exchange import Exchange
from gateway.http_head import SERVER, reply_head
from gateway.http_lane import Lane, Patience
from gateway.ports import Buffer, Call, Dialect, Endpoint, Match, Reply, Resolve
from gateway.service import Service


def _is_our_fault(record: logging.LogRecord) -> bool:
    """aiohttp logs a traceback for every message that is no HTTP. It is answered with 400; a scanner of ports must not
    fill the log.
    """
    return not (record.exc_info and isinstance(record.exc_info[1], HttpProcessingError))


_log: Final = logging.getLogger(__name__)
_log.addFilter(_is_our_fault)

Page = Callable[[Exchange], Awaitable[Reply]]
"""A path of the house itself: no dialect, no model."""

TIMEOUT_HEADER: Final = "x-request-timeout-ms"
READ_BUFFER_BYTES: Final = 1 << 20
BACKLOG: Final = 1024
SETTLE_S: Final = 0.05
"""Between the last connection and the closing of idle ones: whoever has just connected, or is just asking once more, is
answered."""


@dataclass(frozen=True, slots=True)
class HttpLimits:
    """What one request may cost before a dialect sees it, and how long requests may take to finish once the server
    stops.
    """

    max_body_bytes: int
    max_binary_bytes: int
    max_json_depth: int | None = None
    grace_seconds: float = 30.0


class HttpListener:
    """One address that speaks some dialects. `pages` are exact paths of the house, and come first.

    `limits` may be exchanged meanwhile. `names` are what routes call it. Without `fast_lane` aiohttp reads every
    request, not only those that the lane leaves to it.
    """

    def __init__(
        self,
        service: Service,
        dialects: Sequence[Dialect],
        pages: Mapping[str, Page],
        limits: HttpLimits,
        *,
        fast_lane: bool = True,
        patience: Patience | None = None,
        names: tuple[str, ...] = (),
    ) -> None:
        self._service = service
        self._names = names
        self._dialects = dialects
        self._pages = pages
        self._paths = {path: dialect for dialect in dialects for path in dialect.paths}
        self._binary_headers = tuple({dialect.binary_header for dialect in dialects if dialect.binary_header})
        self.limits = limits
        self._patience = patience or Patience()
        self._has_lane = fast_lane
        self._lane: Lane | None = None
        self._server: asyncio.Server | None = None
        self._runner: web.ServerRunner | None = None
        self._parting = False
        self._socket: socket.socket | None = None

    async def start(self, sock: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        options: dict[str, Any] = {
            "access_log": None,
            "logger": _log,
            "auto_decompress": False,
            "read_bufsize": READ_BUFFER_BYTES,
            "keepalive_timeout": self._patience.idle,
        }
        framework = web.Server(self._receive, handler_cancellation=True)
        # aiohttp waits twice: for the reply, then for the task around it.
        self._runner = web.ServerRunner(framework, shutdown_timeout=self.limits.grace_seconds / 2)
        await self._runner.setup()

        def make_protocol() -> asyncio.Protocol:
            return _AiohttpProtocol(framework, loop=loop, **options)

        if self._has_lane:
            self._lane = Lane(self._answer, make_protocol, self._limit_of, self._patience)
        connect = self._lane.connect if self._lane else make_protocol
        self._server = await loop.create_server(connect, sock=sock, backlog=BACKLOG)
        self._socket = sock

    def part(self) -> None:
        """From now on every answer ends its connection: clients go elsewhere, one after the other, and none of them
        finds a connection closed that it was just about to use.
        """
        self._parting = True
        if self._lane is not None:
            self._lane.parting = True

    async def stop(self, *, hand_on: bool = False) -> None:
        """Accept nothing more, close what is idle, let what is being answered finish for the seconds of grace. If it is
        to `hand_on` the address, another process goes on there; else nobody does, whoever holds the same socket.
        """
        self.part()
        if self._socket is not None and not hand_on:
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)
        if self._server is not None:
            self._server.close()
        await asyncio.sleep(SETTLE_S)
        if self._runner is not None:
            lanes = [self._lane.stop(self.limits.grace_seconds)] if self._lane else []
            await asyncio.gather(self._runner.cleanup(), *lanes)

    async def _receive(self, request: web.BaseRequest) -> web.StreamResponse:
        exchange = AiohttpExchange(request)
        await self._answer(exchange)
        if self._parting:
            exchange.response.force_close()
        return exchange.response

    # ----------------------------------------------------------------------------------------------------- one request

    async def _answer(self, exchange: Exchange) -> None:
        target = exchange.target
        page = self._pages.get(target.partition("?")[0])
        if page is not None:
            await exchange.send(await page(exchange))
            return
        dialect = self._owner(target)
        if dialect is None:
            await exchange.send(_plain(404, "Not Found"))
            return
        match = dialect.match(exchange.method, target)
        call, endpoint = await self._call(exchange, match, dialect.http_timeout_ms)
        replies = _Replies(exchange)
        await self._service.handle(dialect.name, endpoint, call, replies.send)
        await replies.end(endpoint.nothing)

    def _limit_of(self, headers: Mapping[str, str]) -> int:
        """How many bytes a body may have."""
        limits = self.limits
        is_binary = any(map(headers.__contains__, self._binary_headers))
        return limits.max_binary_bytes if is_binary else limits.max_body_bytes

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

    async def _call(self, exchange: Exchange, match: Match, timeout_ms: int) -> tuple[Call, Endpoint]:
        """The call, and its endpoint: one that refuses, if the message itself is not acceptable."""
        endpoint = match.endpoint
        limits = self.limits
        call = Call(
            b"",
            exchange.method,
            exchange.target,
            exchange.headers,
            "http",
            match.args,
            None,
            limits.max_body_bytes,
            limits.max_binary_bytes,
            limits.max_json_depth,
            listener=self._names,
        )
        try:
            call.deadline = _deadline(exchange)
            call.body = await exchange.read(self._limit_of(exchange.headers))
            if timeout_ms:
                call.deadline = min(call.deadline or math.inf, time.monotonic() + timeout_ms / 1000)
        except GatewayError as error:
            endpoint = _refusing(endpoint, error)
        return call, endpoint


def _deadline(exchange: Exchange) -> float | None:
    text = exchange.headers.get(TIMEOUT_HEADER)
    if text is None:
        return None
    if not text.isascii() or not text.isdecimal() or len(text) > 12:
        raise InvalidArgument(f"header {TIMEOUT_HEADER} must be a whole number of milliseconds")
    return exchange.begun + int(text) / 1000


def _refusing(endpoint: Endpoint, error: GatewayError) -> Endpoint:
    """The same endpoint, whose decode only raises: the refusal then takes the way that all errors take."""

    def decode(call: Call, resolve: Resolve) -> NoReturn:
        raise error

    return replace(endpoint, decode=decode)


class _Replies:
    """One reply is a response; streamed ones are chunks of one that is open until the last."""

    __slots__ = ("_exchange", "_has_sent", "_is_open")

    def __init__(self, exchange: Exchange) -> None:
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
            await self._exchange.send(reply)
            self._has_sent = True

    async def end(self, nothing: Reply) -> None:
        if self._is_open:
            await self._exchange.end()
        elif not self._has_sent:
            await self._exchange.send(nothing)


def _plain(status: int, text: str) -> Reply:
    return Reply(json.dumps({"error": text}).encode(), status, {"Content-Type": "application/json; charset=utf-8"})


class _AiohttpProtocol(web.RequestHandler):
    """What is no HTTP gets a page that tells nothing of us; a method that is unknown is no fault of the message."""

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        super().handle_error(request, status, exc, message)  # writes to the log
        page = html_page(501 if isinstance(exc, BadHttpMethod) else status)
        response = web.Response(status=page.http_status, headers=_headers(page), body=_joined(page))
        response.force_close()
        return response


def html_page(status: int) -> Reply:
    """The page of a status, as web servers have it. It is the last word on its connection."""
    title = HTTPStatus(status).phrase
    page = f"<HTML><HEAD>\n<TITLE>{status} {title}</TITLE>\n</HEAD><BODY>\n<H1>{title}</H1>\n</BODY></HTML>\n"
    return Reply(page.encode(), status, {"Content-Type": "text/html", "Connection": "close"})


class AiohttpExchange:
    """A request that aiohttp has read. `response` is for it to send, or to end."""

    def __init__(self, request: web.BaseRequest) -> None:
        self._request = request
        self.method = request.method
        self.target = request.raw_path
        self.headers = request.headers
        self.begun = time.monotonic()
        self.response = web.StreamResponse()

    async def read(self, limit: int) -> Buffer:
        """Raises BodyTooLarge as soon as that is known; aiohttp then reads on for a while and closes the connection."""
        request = self._request
        if not request.body_exists:
            return b""
        length = request.content_length
        if length is not None and length > limit:
            raise BodyTooLarge(limit)
        if request.headers.get(hdrs.EXPECT, "").lower() == "100-continue" and request.transport is not None:
            request.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        if length is not None:
            return await request.content.read()
        body = bytearray()
        async for chunk in request.content.iter_any():
            body += chunk
            if len(body) > limit:
                raise BodyTooLarge(limit)
        return bytes(body)

    async def send(self, reply: Reply) -> None:
        self._open(reply, web.Response(status=reply.http_status, headers=_headers(reply), body=_joined(reply)))

    async def start(self, reply: Reply) -> None:
        self._open(reply, web.StreamResponse(status=reply.http_status, headers=_headers(reply)))
        await self.response.prepare(self._request)
        await self.chunk(reply)

    async def chunk(self, reply: Reply) -> None:
        body = _joined(reply)
        if body:
            await self.response.write(body)

    async def end(self) -> None:
        await self.response.write_eof()

    def _open(self, reply: Reply, response: web.StreamResponse) -> None:
        """Raises ValueError for headers that no reply may have: aiohttp would notice too late for an answer."""
        if reply_head(reply.http_status, tuple(reply.headers.items())).closes:
            response.force_close()
        self.response = response


def _headers(reply: Reply) -> dict[str, str]:
    return {hdrs.SERVER: SERVER, **reply.headers}


def _joined(reply: Reply) -> bytes | bytearray | memoryview:
    body = reply.body
    return body if isinstance(body, (bytes, bytearray, memoryview)) else b"".join(body)


def bind(host: str, port: int) -> socket.socket:
    """A listening address of our own: without SO_REUSEPORT, so that two servers never share a port unnoticed.

    Raises OSError.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((host, port))
        sock.setblocking(False)
    except OSError:
        sock.close()
        raise
    return sock


def metrics_page(render: Callable[[], bytes]) -> Page:
    """/metrics, rendered off the loop: it takes milliseconds."""

    async def page() -> Reply:
        text = await asyncio.to_thread(render)
        return Reply(text, headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"})

    return read_only(page)


def tf_serving_metrics_page(path: str, render: Callable[[], bytes]) -> Page:
    """The same as TensorFlow Serving has it: for any method, and for no query."""

    async def page(exchange: Exchange) -> Reply:
        if exchange.target != path:
            text = f"Unexpected path: {exchange.target}. Should be {path}"
            return Reply(text.encode("utf-8", "replace"), 400, {"Content-Type": "text/plain"})
        return Reply(await asyncio.to_thread(render), headers={"Content-Type": "text/plain"})

    return page


def probe_page(healthy: Callable[[], bool]) -> Page:
    """/healthz and /readyz: 200 or 503, and one word."""

    async def page() -> Reply:
        ok = healthy()
        text = b"ok\n" if ok else b"unavailable\n"
        return Reply(text, 200 if ok else 503, {"Content-Type": "text/plain; charset=utf-8"})

    return read_only(page)


def read_only(read: Callable[[], Awaitable[Reply]]) -> Page:
    """Whatever the query."""

    async def page(exchange: Exchange) -> Reply:
        return await read() if exchange.method in ("GET", "HEAD") else _plain(405, "Method Not Allowed")

    return page


def admin_page(admin: Callable[[], AdminKey | None], act: Callable[[], Awaitable[tuple[int, Any]]]) -> Page:
    """What changes the server, by POST, for whoever shows the administrator's key: JSON with a status. Where there is
    no key, there is no such page.
    """

    async def page(exchange: Exchange) -> Reply:
        key = admin()
        if key is None:
            return _plain(404, "Not Found")
        if exchange.method != "POST":
            return _plain(405, "Method Not Allowed")
        try:
            key.check(exchange.headers)
        except AdminRequired as error:
            return _plain(403, f"this call must carry the administrator's key in the header {error.header}")
        status, content = await act()
        return Reply(json.dumps(content).encode(), status, {"Content-Type": "application/json; charset=utf-8"})

    return page

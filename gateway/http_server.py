"""aiohttp on one side, Call and Reply on the other.

One handler takes every request. An exact path of the house (/metrics, probes) comes first, then the dialect that owns
the path's prefix; the dialect decides what exists below it. This module knows no dialect, and no dialect knows this
module.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, NoReturn

from aiohttp import hdrs, web
from aiohttp.http_exceptions import HttpProcessingError

from gateway.errors import BodyTooLarge, GatewayError, InvalidArgument
from gateway.ports import Call, Dialect, Endpoint, Match, Reply, Resolve
from gateway.service import Service


def _is_our_fault(record: logging.LogRecord) -> bool:
    """aiohttp logs a traceback for every message that is no HTTP. It is answered with 400; a scanner of ports must not
    fill the log.
    """
    return not (record.exc_info and isinstance(record.exc_info[1], HttpProcessingError))


_log: Final = logging.getLogger(__name__)
_log.addFilter(_is_our_fault)

Page = Callable[[], Awaitable[web.Response]]
"""A path of the house itself: no dialect, no model."""

TIMEOUT_HEADER: Final = "x-request-timeout-ms"
READ_BUFFER_BYTES: Final = 1 << 20
BACKLOG: Final = 1024
SERVER: Final = "tensorgate"


@dataclass(frozen=True, slots=True)
class HttpLimits:
    """What one request may cost before a dialect sees it, and how long requests may take to finish once the server
    stops.
    """

    max_body_bytes: int
    max_json_depth: int | None = None
    grace_seconds: float = 30.0


class HttpListener:
    """One address that speaks some dialects. `pages` are exact paths of the house."""

    def __init__(
        self, service: Service, dialects: Sequence[Dialect], pages: Mapping[str, Page], limits: HttpLimits
    ) -> None:
        self._service = service
        self._dialects = dialects
        self._pages = pages
        self._limits = limits
        self._runner: web.ServerRunner | None = None

    async def start(self, sock: socket.socket) -> None:
        server = web.Server(
            self._receive,
            handler_cancellation=True,
            access_log=None,
            logger=_log,
            auto_decompress=False,
            read_bufsize=READ_BUFFER_BYTES,
        )
        self._runner = web.ServerRunner(server, shutdown_timeout=self._limits.grace_seconds)
        await self._runner.setup()
        await web.SockSite(self._runner, sock, backlog=BACKLOG).start()

    async def stop(self) -> None:
        """Accept nothing more, close what is idle, let what is being answered finish for the seconds of grace."""
        if self._runner is not None:
            await self._runner.cleanup()

    # ----------------------------------------------------------------------------------------------------- one request

    async def _receive(self, request: web.BaseRequest) -> web.StreamResponse:
        target = request.raw_path
        page = self._pages.get(target)
        if page is not None:
            return await page() if request.method in ("GET", "HEAD") else _plain(405, "Method Not Allowed")
        dialect = self._owner(target)
        if dialect is None:
            return _plain(404, "Not Found")
        match = dialect.match(request.method, target)
        call, endpoint = await self._call(request, match)
        exchange = _Exchange(request)
        await self._service.handle(dialect.name, endpoint, call, exchange.send)
        return await exchange.end()

    def _owner(self, target: str) -> Dialect | None:
        """The dialect that owns a path; the only one of a listener owns them all."""
        if len(self._dialects) == 1:
            return self._dialects[0]
        for dialect in self._dialects:
            prefix = dialect.prefix
            if target[: len(prefix)].lower() == prefix and target[len(prefix) : len(prefix) + 1] in ("", "/", "?"):
                return dialect
        return None

    async def _call(self, request: web.BaseRequest, match: Match) -> tuple[Call, Endpoint]:
        """The call, and its endpoint: one that refuses, if the message itself is not acceptable."""
        endpoint = match.endpoint
        call = Call(
            b"",
            request.method,
            request.raw_path,
            request.headers,
            "http",
            match.args,
            None,
            self._limits.max_body_bytes,
            self._limits.max_json_depth,
        )
        try:
            call.deadline = _deadline(request.headers)
            call.body = await self._read(request)
        except GatewayError as error:
            endpoint = _refusing(endpoint, error)
        return call, endpoint

    async def _read(self, request: web.BaseRequest) -> bytes:
        """The whole body.

        Raises BodyTooLarge as soon as that is known; aiohttp then reads on for a while and closes the connection.
        """
        if not request.body_exists:
            return b""
        limit = self._limits.max_body_bytes
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


def _deadline(headers: Mapping[str, str]) -> float | None:
    text = headers.get(TIMEOUT_HEADER)
    if text is None:
        return None
    if not text.isascii() or not text.isdecimal() or len(text) > 12:
        raise InvalidArgument(f"header {TIMEOUT_HEADER} must be a whole number of milliseconds")
    return time.monotonic() + int(text) / 1000


def _refusing(endpoint: Endpoint, error: GatewayError) -> Endpoint:
    """The same endpoint, whose decode only raises: the refusal then takes the way that all errors take."""

    def decode(call: Call, resolve: Resolve) -> NoReturn:
        raise error

    return replace(endpoint, decode=decode)


class _Exchange:
    """One reply is a response; streamed ones are chunks of one that is open until the last."""

    def __init__(self, request: web.BaseRequest) -> None:
        self._request = request
        self._stream: web.StreamResponse | None = None
        self._response: web.StreamResponse | None = None

    async def send(self, reply: Reply) -> None:
        if self._stream is None and not reply.streamed:
            self._response = web.Response(status=reply.http_status, headers=_headers(reply), body=_joined(reply))
            return
        if self._stream is None:
            self._stream = web.StreamResponse(status=reply.http_status, headers=_headers(reply))
            self._stream.enable_chunked_encoding()
            await self._stream.prepare(self._request)
        await _write(self._stream, reply)

    async def end(self) -> web.StreamResponse:
        if self._stream is not None:
            await self._stream.write_eof()
            return self._stream
        return self._response if self._response is not None else web.Response(headers={hdrs.SERVER: SERVER})


async def _write(stream: web.StreamResponse, reply: Reply) -> None:
    body = _joined(reply)
    if body:
        await stream.write(body)


def _headers(reply: Reply) -> dict[str, str]:
    return {hdrs.SERVER: SERVER, **reply.headers}


def _joined(reply: Reply) -> bytes | bytearray | memoryview:
    body = reply.body
    return body if isinstance(body, (bytes, bytearray, memoryview)) else b"".join(body)


def _plain(status: int, text: str) -> web.Response:
    return web.json_response({"error": text}, status=status, headers={hdrs.SERVER: SERVER})


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

    async def page() -> web.Response:
        text = await asyncio.to_thread(render)
        headers = {hdrs.CONTENT_TYPE: "text/plain; version=0.0.4; charset=utf-8", hdrs.SERVER: SERVER}
        return web.Response(body=text, headers=headers)

    return page


def probe_page(healthy: Callable[[], bool]) -> Page:
    """/healthz and /readyz: 200 or 503, and one word."""

    async def page() -> web.Response:
        ok = healthy()
        text = "ok\n" if ok else "unavailable\n"
        return web.Response(status=200 if ok else 503, text=text, headers={hdrs.SERVER: SERVER})

    return page

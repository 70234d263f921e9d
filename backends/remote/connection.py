"""One address of another server: a message there, what it says back. Made, used and closed on the event loop.

What never reached the server is `NotReached`, and may be sent to another one. Of what went with a connection that broke
(`Lost`), nobody knows what the server did before. Everything else is a Reply, also that the time was over.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
from typing import Any, Final, Literal, Protocol

import aiohttp
import grpc
from yarl import URL

from backends.remote.options import Access
from gateway.errors import Code
from gateway.ports import Ask, Buffer, Cutter, Reply

CONNECTS_WITHIN_S: Final = 1.0
_TIMEOUT_HEADER: Final = "x-request-timeout-ms"
_LARGE_BYTES: Final = 256 << 10
"""Larger bodies are sent piece by piece over HTTP."""
_SUCCESS: Final = 200
_READ_BYTES: Final = 1 << 20
_IDLE_S: Final = 15.0
_NOT_REACHED: Final = (
    "failed to connect to",
    "DNS resolution failed",
    "errors resolving",
    "connections to all backends failing",
)
"""How grpc's own words begin where it could not even connect."""
_BROKEN: Final = (
    "Stream removed (",
    "Socket closed",
    "recvmsg:",
    "sendmsg:",
    "Connection reset",
    "Broken pipe",
    "GOAWAY",
)
"""How they begin where a connection ended, of which its own state may tell a moment later than the call."""
_OPTIONS: Final = (
    ("grpc.max_send_message_length", -1),
    ("grpc.enable_http_proxy", 0),
    ("grpc.http2.max_frame_size", 1 << 20),  # as the gateway's own ports
    ("grpc.service_config_disable_resolution", 1),
    ("grpc.use_local_subchannel_pool", 1),  # each model's connection is its own
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.min_reconnect_backoff_ms", int(CONNECTS_WITHIN_S * 1000)),
)
OPEN: Final = Access()
"""No TLS, no headers."""


class NotReached(Exception):
    """The server could not be connected to: nothing was sent."""


class Lost(Exception):
    """The connection broke before there was an answer."""


class Connection(Protocol):
    """One address of another server."""

    async def call(self, ask: Ask, seconds: float | None) -> Reply:
        """One message, one reply. Raises NotReached, Lost."""
        ...

    def stream(self, ask: Ask, seconds: float | None) -> AsyncGenerator[Reply, None]:
        """One message, any number of replies; one that is no success is the last. Raises NotReached, Lost."""
        ...

    async def close(self) -> None:
        """Calls that are under way end."""
        ...


# ----------------------------------------------------------------------------------------------------------------- gRPC


class GrpcConnection:
    """See Connection. `streams`: how a question with many answers is asked."""

    def __init__(
        self, address: str, max_bytes: int, streams: Literal["bidi", "server", "no"], access: Access = OPEN
    ) -> None:
        self._streams = streams
        self._methods: dict[tuple[str, str], Any] = {}
        self._headers = access.headers
        options: list[tuple[str, Any]] = [*_OPTIONS, ("grpc.max_receive_message_length", max_bytes)]
        if access.tls is None:
            self._channel = grpc.aio.insecure_channel(address, options)
            return
        if access.server_name:
            options.append(("grpc.ssl_target_name_override", access.server_name))
        credentials = grpc.ssl_channel_credentials(*access.certificates)
        self._channel = grpc.aio.secure_channel(address, credentials, options)

    async def call(self, ask: Ask, seconds: float | None) -> Reply:
        try:
            body = await self._method("unary_unary", ask.target)(
                b"".join(ask.body), timeout=seconds, metadata=self._metadata(ask)
            )
        except grpc.aio.AioRpcError as error:
            return self._failed(error)
        return Reply(body)

    async def stream(self, ask: Ask, seconds: float | None) -> AsyncGenerator[Reply, None]:
        call = await self._begin(ask, seconds)
        try:
            while (body := await call.read()) is not grpc.aio.EOF:
                yield Reply(body)
        except grpc.aio.AioRpcError as error:
            yield self._failed(error)
        finally:
            call.cancel()

    async def _begin(self, ask: Ask, seconds: float | None) -> Any:
        body, metadata = b"".join(ask.body), self._metadata(ask)
        if self._streams == "server":
            return self._method("unary_stream", ask.target)(body, timeout=seconds, metadata=metadata)
        call = self._method("stream_stream", ask.target)(timeout=seconds, metadata=metadata)
        with contextlib.suppress(grpc.aio.AioRpcError):  # reading tells, too
            await call.write(body)
            await call.done_writing()
        return call

    def _metadata(self, ask: Ask) -> tuple[tuple[str, str], ...]:
        return (*ask.headers.items(), *self._headers) if ask.headers else self._headers

    def _method(self, kind: str, name: str) -> Any:
        method = self._methods.get((kind, name))
        if method is None:
            make = getattr(self._channel, kind)
            method = self._methods[kind, name] = make(name, request_serializer=None, response_deserializer=None)
        return method

    def _failed(self, error: grpc.aio.AioRpcError) -> Reply:
        code, text = Code(error.code().value[0]), error.details() or ""
        if code == Code.UNAVAILABLE:
            if text.startswith(_NOT_REACHED):
                raise NotReached(text) from None
            if text.startswith(_BROKEN) or self._channel.get_state() != grpc.ChannelConnectivity.READY:
                raise Lost(text) from None
        return Reply(b"", grpc_code=code, message=text)

    async def close(self) -> None:
        await self._channel.close()


# ----------------------------------------------------------------------------------------------------------------- HTTP


class HttpConnection:
    """See Connection. Connections are kept and used again."""

    def __init__(self, address: str, max_bytes: int, access: Access = OPEN) -> None:
        scheme = "http" if access.tls is None else "https"
        self._base = address if "://" in address else f"{scheme}://{address}"
        self._max_bytes = max_bytes
        self._tls = access.tls or True  # True is aiohttp's word for its own choice
        self._server_name = access.server_name or None
        self._headers = dict(access.headers)
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=_IDLE_S),
            cookie_jar=aiohttp.DummyCookieJar(),
            read_bufsize=_READ_BYTES,
            skip_auto_headers=("User-Agent",),
            headers={"Accept-Encoding": "identity"},
        )

    async def call(self, ask: Ask, seconds: float | None) -> Reply:
        try:
            with _failures():
                async with self._asked(ask, seconds) as answer:
                    return Reply(await self._body(answer), answer.status, _headers_of(answer))
        except TimeoutError:
            return _late()

    async def stream(self, ask: Ask, seconds: float | None) -> AsyncGenerator[Reply, None]:
        try:
            with _failures():
                async with self._asked(ask, seconds) as answer:
                    headers = _headers_of(answer)
                    if ask.cut is None or answer.status != _SUCCESS:
                        yield Reply(await self._body(answer), answer.status, headers)
                        return
                    async for message in self._messages(answer, ask.cut()):
                        yield Reply(message, answer.status, headers)
        except TimeoutError:
            yield _late()

    def _asked(self, ask: Ask, seconds: float | None) -> contextlib.AbstractAsyncContextManager[aiohttp.ClientResponse]:
        headers = {**self._headers, **ask.headers}
        if seconds is not None:
            headers[_TIMEOUT_HEADER] = str(max(1, int(seconds * 1000)))
        data: Any = None
        if ask.body:
            size = sum(map(len, ask.body))
            headers["Content-Length"] = str(size)
            data = b"".join(ask.body) if size < _LARGE_BYTES else _pieces(ask.body)
        return self._session.request(
            ask.method,
            URL(self._base + ask.target, encoded=True),
            data=data,
            headers=headers,
            timeout=aiohttp.ClientTimeout(total=seconds, sock_connect=CONNECTS_WITHIN_S),
            allow_redirects=False,
            ssl=self._tls,
            server_hostname=self._server_name,
        )

    async def _body(self, answer: aiohttp.ClientResponse) -> bytes:
        if (answer.content_length or 0) > self._max_bytes:
            raise aiohttp.ClientPayloadError
        if answer.content_length is not None:
            return await answer.read()
        parts, size = [], 0
        async for part in answer.content.iter_any():
            size += len(part)
            if size > self._max_bytes:
                raise aiohttp.ClientPayloadError
            parts.append(part)
        return b"".join(parts)

    async def _messages(self, answer: aiohttp.ClientResponse, cut: Cutter) -> AsyncIterator[bytes]:
        size = 0
        async for part in answer.content.iter_any():
            size += len(part)
            messages = cut.feed(part)
            for message in messages:
                yield message
            if messages:
                size = 0
            elif size > self._max_bytes:
                raise aiohttp.ClientPayloadError
        for message in cut.end():
            yield message

    async def close(self) -> None:
        await self._session.close()


async def _pieces(parts: Sequence[Buffer]) -> AsyncIterator[Buffer]:
    for part in parts:
        yield part


@contextlib.contextmanager
def _failures() -> Iterator[None]:
    """aiohttp's words for what went wrong -> ours. Raises NotReached, Lost; TimeoutError once the time is over."""
    try:
        yield
    except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
        raise NotReached(str(error)) from None
    except TimeoutError:
        raise
    except aiohttp.ClientError as error:
        raise Lost(f"{type(error).__name__} {error}") from None


def _late() -> Reply:
    return Reply(b"Deadline Exceeded", 504)


def _headers_of(answer: aiohttp.ClientResponse) -> dict[str, str]:
    return {name.lower(): value for name, value in answer.headers.items()}

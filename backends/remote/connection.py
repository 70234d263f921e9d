"""One address of another server: a message there, what it says back. Made, used and closed on the event loop.

What never reached the server is `NotReached`, and may be sent to another one. Of what went with a connection that broke
(`ConnectionLost`), nobody knows what the server did before. Everything else is a Reply, also that the time was over, or
that the answer has no end.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
from typing import Any, Final, Protocol

import aiohttp
from yarl import URL

from tensorgate.backends.remote.options import UpstreamAccess
from tensorgate.gateway.contract.call import Buffer, Reply
from tensorgate.gateway.contract.upstream import Ask, Cutter
from tensorgate.gateway.wire.eager_start import in_task

log = logging.getLogger(__name__)

CONNECTS_WITHIN_S: Final = 1.0
_TIMEOUT_HEADER: Final = "x-request-timeout-ms"
_LARGE_BYTES: Final = 256 << 10
"""Larger bodies are sent piece by piece over HTTP."""
_SUCCESS: Final = 200
_READ_BYTES: Final = 1 << 20
_IDLE_S: Final = 15.0
TOO_LARGE: Final = "the upstream server's answer has {size} bytes, of at most {max_bytes} (upstream.max_answer_bytes)"
_LATE: Final = Reply(b"Deadline Exceeded", 504)
OPEN: Final = UpstreamAccess()
"""No TLS, no headers."""


class NotReached(Exception):
    """The server could not be connected to: nothing was sent."""


class ConnectionLost(Exception):
    """The connection broke before there was an answer."""


class _TooLarge(Exception):
    """An answer, or one message of a stream, has more bytes than are read."""


class UpstreamConnection(Protocol):
    """One address of another server."""

    async def call(self, ask: Ask, seconds: float | None) -> Reply:
        """One message, one reply. Raises NotReached, ConnectionLost."""
        ...

    def stream(self, ask: Ask, seconds: float | None) -> AsyncGenerator[Reply, None]:
        """One message, any number of replies; one that is no success is the last. Raises NotReached, ConnectionLost."""
        ...

    async def close(self) -> None:
        """Calls that are under way end."""
        ...


# ----------------------------------------------------------------------------------------------------------------- HTTP


class HttpConnection:
    """An UpstreamConnection over HTTP/1.1. Sockets are kept and used again."""

    def __init__(self, address: str, max_bytes: int, access: UpstreamAccess = OPEN) -> None:
        scheme = "http" if access.tls is None else "https"
        self._base = address if "://" in address else f"{scheme}://{address}"
        self._max_bytes = max_bytes
        self._tls = access.tls or True  # True is aiohttp's word for its own choice
        self._server_name = access.server_name or None
        self._headers = dict(access.headers)
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=_IDLE_S),
            auto_decompress=False,
            cookie_jar=aiohttp.DummyCookieJar(),
            read_bufsize=_READ_BYTES,
            skip_auto_headers=("User-Agent",),
            headers={"Accept-Encoding": "identity"},
        )

    async def call(self, ask: Ask, seconds: float | None) -> Reply:
        await in_task()
        try:
            with _failures():
                async with self._asked(ask, seconds) as answer:
                    return Reply(await self._body(answer), answer.status, _headers_of(answer))
        except _TooLarge:
            return self._too_large()
        except TimeoutError:
            return _LATE

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
        except _TooLarge:
            yield self._too_large()
        except TimeoutError:
            yield _LATE

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
            raise _TooLarge
        if answer.content_length is not None:
            return await answer.read()
        parts, size = [], 0
        async for part in answer.content.iter_any():
            size += len(part)
            if size > self._max_bytes:
                raise _TooLarge
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
                raise _TooLarge
        for message in cut.end():
            yield message

    def _too_large(self) -> Reply:
        """What is beyond the limit was not read, and the connection is closed."""
        text = TOO_LARGE.format(size=f"more than {self._max_bytes}", max_bytes=self._max_bytes)
        log.warning("upstream %s: %s", self._base, text)
        return Reply(text.encode(), 413)

    async def close(self) -> None:
        await self._session.close()


async def _pieces(parts: Sequence[Buffer]) -> AsyncIterator[Buffer]:
    for part in parts:
        yield part


@contextlib.contextmanager
def _failures() -> Iterator[None]:
    """aiohttp's errors -> ours. Raises NotReached, ConnectionLost; TimeoutError once the time is over."""
    try:
        yield
    except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
        raise NotReached(str(error)) from None
    except TimeoutError:
        raise
    except aiohttp.ClientError as error:
        raise ConnectionLost(f"{type(error).__name__} {error}") from None


def _headers_of(answer: aiohttp.ClientResponse) -> dict[str, str]:
    return {name.lower(): value for name, value in answer.headers.items()}

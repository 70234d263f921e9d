"""One address of another server, over HTTP/1.1."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from functools import partial
from typing import Final

from tensorgate.backends.remote.arriving_reply import ReplyInPieces
from tensorgate.backends.remote.connection import OPEN, TOO_LARGE, ConnectionLost
from tensorgate.backends.remote.http1_client import Http1Client, Http1Connection
from tensorgate.backends.remote.options import UpstreamAccess
from tensorgate.gateway.contract.call import Reply
from tensorgate.gateway.contract.shortcuts import is_taken
from tensorgate.gateway.contract.upstream import Ask, Cutter
from tensorgate.gateway.wire.http1_body import Body
from tensorgate.gateway.wire.http1_reply import ReplyReader, ReplyTooLarge

log = logging.getLogger(__name__)

PASSES_ON: Final = is_taken("passed_pieces")

_HEAD: Final = "HEAD"
_SAFE: Final = frozenset({"GET", _HEAD})
_LATE: Final = Reply(b"Deadline Exceeded", 504)


class HttpConnection:
    """An UpstreamConnection over HTTP/1.1. Sockets are kept and used again."""

    def __init__(self, address: str, max_bytes: int, access: UpstreamAccess = OPEN) -> None:
        scheme = "http" if access.tls is None else "https"
        self._base = address if "://" in address else f"{scheme}://{address}"
        self._max_bytes = max_bytes
        self._client = Http1Client(self._base, access.tls, access.server_name, dict(access.headers))

    async def call(self, ask: Ask, seconds: float | None) -> Reply:
        until = self._until(seconds)
        try:
            while True:
                reader = ReplyReader(self._max_bytes, has_body=ask.method != _HEAD)
                connection = await self._client.send(ask, reader, until)
                was_used = connection.was_used
                over = partial(self._over, connection, self._end_at(until, connection))
                try:
                    slow = await connection.whole_or_slow(watch=ask.takes_arriving)
                except ConnectionLost:
                    over()
                    # It may have been closed for being idle: what is safe is asked again. Source: RFC 9110, 9.2.2.
                    if reader.status or not was_used or ask.method not in _SAFE:
                        raise
                    continue
                except BaseException:
                    over()
                    raise
                if slow is not None:
                    return _in_pieces(connection, reader, over, *slow)
                over()
                return Reply(reader.body(), reader.status, reader.headers)
        except ReplyTooLarge:
            return self._too_large()
        except TimeoutError:
            return _LATE

    async def stream(self, ask: Ask, seconds: float | None) -> AsyncGenerator[Reply, None]:
        reader = ReplyReader(self._max_bytes, has_body=ask.method != _HEAD, in_pieces=ask.cut is not None)
        until = self._until(seconds)
        try:
            connection = await self._client.send(ask, reader, until)
            late = self._end_at(until, connection)
            try:
                while not (reader.is_complete or (reader.status and reader.is_stream)):
                    await connection.more()
                if ask.cut is None or not reader.is_stream:
                    yield Reply(reader.body(), reader.status, reader.headers)
                    return
                further = connection.pass_on if ask.takes_arriving and PASSES_ON else None
                async for message in self._messages(connection, reader, ask.cut()):
                    yield Reply(message, reader.status, reader.headers, further=further)
                    further = None
            finally:
                if late is not None:
                    late.cancel()
                self._client.release(connection)
        except ReplyTooLarge:
            yield self._too_large()
        except TimeoutError:
            yield _LATE

    def _over(self, connection: Http1Connection, late: asyncio.TimerHandle | None) -> None:
        if late is not None:
            late.cancel()
        self._client.release(connection)

    def _until(self, seconds: float | None) -> float | None:
        """The loop's time at which a call is late, however long it takes to connect."""
        return None if seconds is None else asyncio.get_running_loop().time() + seconds

    def _end_at(self, until: float | None, connection: Http1Connection) -> asyncio.TimerHandle | None:
        if until is None:
            return None
        return asyncio.get_running_loop().call_at(until, connection.fail, TimeoutError())

    async def _messages(self, connection: Http1Connection, reader: ReplyReader, cut: Cutter) -> AsyncIterator[bytes]:
        size = 0
        while (parts := connection.take()) or not reader.is_complete:
            if not parts:  # what has come while its taker was busy wakes nobody
                await connection.more()
                continue
            part = parts[0] if len(parts) == 1 else b"".join(parts)  # what came together goes on together
            size += len(part)
            messages = cut.feed(part)
            for message in messages:
                yield message
            if messages:
                size = 0
            elif size > self._max_bytes:
                raise ReplyTooLarge
        for message in cut.end():
            yield message

    def _too_large(self) -> Reply:
        """What is beyond the limit was not read, and the connection is closed."""
        text = TOO_LARGE.format(size=f"more than {self._max_bytes}", max_bytes=self._max_bytes)
        log.warning("upstream %s: %s", self._base, text)
        return Reply(text.encode(), 413)

    async def close(self) -> None:
        await self._client.close()


def _in_pieces(
    connection: Http1Connection, reader: ReplyReader, over: Callable[[], None], body: Body, place: memoryview
) -> Reply:
    """A reply that is sent on while the rest of it comes; then it is `over`."""

    async def bring() -> None:
        last: Reply | Exception
        try:
            await connection.whole()
            last = Reply(b"", reader.status)
        except Exception as error:
            last = error
        finally:
            over()
        reply.finish(last)

    reply = ReplyInPieces(body, place, asyncio.ensure_future(bring()).cancel)
    return Reply(place, reader.status, reader.headers, arriving=reply)

"""Streams of questions: reading them until the client or the server ends them, and answering many at a time.

Questions are read and submitted one after the other, so that the requests of a sequence run in their order; then they
are answered at the same time. Answers of ordinary models leave in the order of their questions, those of decoupled
models as they come. At most `IN_FLIGHT` questions of a stream are open: then nothing more is read, and the client
waits.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any, Final

from tensorgate.gateway.contract.call import Buffer, Call, Reply
from tensorgate.gateway.contract.dialect import Endpoint
from tensorgate.gateway.contract.errors import Code
from tensorgate.gateway.service import Service
from tensorgate.gateway.transport.grpc_exchange import Rpc

IN_FLIGHT: Final = 64
MAX_DETAIL_BYTES: Final = 2000
"""A status travels in headers, where clients take 8 KB, and other than ASCII is three times as long."""

STOPPING: Final = Reply(b"", grpc_code=Code.UNAVAILABLE, message="the server is stopping")


def short_detail(message: str) -> bytes:
    """The beginning of a status' text, as much as travels; its last character may be cut."""
    return message.encode(errors="replace")[:MAX_DETAIL_BYTES]


class Stopping(Exception):
    """The server stops, and reads no more messages."""


class MessageReader:
    """Reads the next messages of all streams of a server, until that stops."""

    def __init__(self) -> None:
        self._waiting: set[asyncio.Task[Any]] = set()
        self.stopped = asyncio.Event()

    def stop(self) -> None:
        self.stopped.set()
        for read in self._waiting:
            read.cancel()

    async def next(self, rpc: Rpc) -> Buffer | None:
        """The next message, None after the last. Raises Stopping."""
        if self.stopped.is_set():
            raise Stopping
        read = asyncio.ensure_future(rpc.read())
        self._waiting.add(read)
        try:
            return await read
        except asyncio.CancelledError:
            if self.stopped.is_set():
                raise Stopping from None
            raise
        finally:
            self._waiting.discard(read)

    async def messages(self, rpc: Rpc) -> AsyncIterator[Buffer]:
        """All messages until the client ends the stream, or the server stops."""
        try:
            while (body := await self.next(rpc)) is not None:
                yield body
        except Stopping:
            return


class _Ended(Exception):
    """A reply that ends the whole stream."""

    def __init__(self, reply: Reply) -> None:
        super().__init__(reply.message)
        self.reply = reply


class BidiCall:
    """One bidirectional call."""

    def __init__(self, service: Service, dialect: str, endpoint: Endpoint, rpc: Rpc) -> None:
        self._service = service
        self._dialect = dialect
        self._endpoint = endpoint
        self._rpc = rpc
        self._room = asyncio.Semaphore(IN_FLIGHT)
        self._writing = asyncio.Lock()
        self._last_ended = asyncio.Event()
        self._last_ended.set()

    async def run(self, reader: MessageReader, call_of: Callable[[Buffer], Call]) -> None:
        """Answer until the client has ended the stream and all is answered. A cancellation ends all of it."""
        ended: Reply | None = None
        try:
            async with asyncio.TaskGroup() as tasks:
                try:
                    await self._listen(reader, call_of, tasks)
                except Stopping:
                    ended = STOPPING
        except* _Ended as group:
            ended = _first(group).reply
        except* ConnectionError:
            ended = None
        if ended is not None:
            await self._rpc.fail(ended)

    async def _listen(self, reader: MessageReader, call_of: Callable[[Buffer], Call], tasks: asyncio.TaskGroup) -> None:
        while True:
            await self._room.acquire()
            body = await reader.next(self._rpc)
            if body is None:
                return
            turn = _Turn()
            tasks.create_task(self._answer(call_of(body), turn))
            await turn.taken.wait()

    async def _answer(self, call: Call, turn: _Turn) -> None:
        def accepted(decoupled: bool) -> None:
            self._take(turn, ordered=not decoupled)

        async def send(reply: Reply) -> None:
            if not turn.taken.is_set():
                self._take(turn, ordered=True)
            await turn.previous.wait()
            if reply.grpc_code is not Code.OK:
                raise _Ended(reply)
            async with self._writing:
                await self._rpc.write(reply)

        try:
            await self._service.handle(self._dialect, self._endpoint, call, send, accepted)
        finally:
            turn.taken.set()
            turn.ended.set()
            self._room.release()

    def _take(self, turn: _Turn, *, ordered: bool) -> None:
        """Give a question its place in the order of answers."""
        if ordered:
            turn.previous, self._last_ended = self._last_ended, turn.ended
        turn.taken.set()


class _Turn:
    """A question's place in its stream."""

    __slots__ = ("ended", "previous", "taken")

    def __init__(self) -> None:
        self.taken = asyncio.Event()
        """The question is submitted, or will not be."""
        self.ended = asyncio.Event()
        """Its last answer has been sent."""
        self.previous = asyncio.Event()
        """The `ended` of the question whose answers go first."""
        self.previous.set()


def _first(group: BaseExceptionGroup[Any]) -> Any:
    """The first exception within a group of groups."""
    error: Any = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error

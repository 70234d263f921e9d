"""One HTTP/2 connection to a gRPC server, for calls of one message each way. Belongs to the event loop.

A large message is never copied here: what is sent are the parts that somebody else holds, and what is received goes
from the socket to the memory where it stays. Over grpc.aio each message is copied several times, and each of its steps
takes a hop from a thread to the loop: that is what this is for. Only what gRPC's unary calls need of HTTP/2 is here: no
pushes, no priorities, and answers of any size are taken as fast as they come, for each has its limit.

Source: RFC 9113; gRPC over HTTP/2.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from backends.remote.exchange import PREFIX_BYTES, Exchange, failed
from gateway import hpack
from gateway.errors import Code
from gateway.http2_frames import (
    ACK,
    CANCEL,
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    FIRST_FRAME,
    FIRST_WINDOW,
    FRAME,
    FRAME_BYTES,
    GOAWAY,
    HEADERS,
    MOST,
    MOST_CONTROL_BYTES,
    PADDED,
    PING,
    PREFACE,
    PRIORITY,
    PUSH_PROMISE,
    REFUSED_STREAM,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    BadFrame,
    frame,
    unpadded,
)
from gateway.ports import Buffer, Reply

_GIVEN_BACK_BYTES: Final = 1 << 29
_RESET_CODES: Final[Mapping[int, Code]] = {8: Code.CANCELLED, 11: Code.RESOURCE_EXHAUSTED, 12: Code.PERMISSION_DENIED}
_GONE_AFTER_MS: Final = 20_000
_SCRATCH_BYTES: Final = 128 << 10
_DIRECT_BYTES: Final = 32 << 10
"""So much of a frame that is still to come goes straight to its place."""
_BEGINNING_BYTES: Final = 16 << 10
"""So much is read before it is known whether there is a place for the rest."""
_JOINED_BYTES: Final = 32 << 10
"""Smaller requests are one buffer, which is quicker to send than several."""


class Broken(Exception):
    """The connection ended before there was an answer."""


class Refused(Exception):
    """The server has not looked at the request, and will not."""


class Http2(asyncio.BufferedProtocol):
    """See above. `ready` is done once the server has said its settings, `usable` is whether calls may begin; answers
    have at most `most_bytes`.
    """

    def __init__(self, most_bytes: int) -> None:
        self._loop = asyncio.get_running_loop()
        self._most_bytes = most_bytes
        self._transport: Any = None
        self._scratch = memoryview(bytearray(_SCRATCH_BYTES))
        self._have = 0
        self._calls: dict[int, Exchange] = {}
        self._stalled: dict[int, Exchange] = {}
        self._next = 1
        self._window = self._stream_window = FIRST_WINDOW
        self._frame_bytes = FIRST_FRAME
        self._most_calls = MOST
        self._room = asyncio.Event()
        self._taken = 0
        # Of the DATA frame that is being received: whose it is, its flags, and how much of it is to come.
        self._data: tuple[int, int] | None = None
        self._left = 0
        self._block: tuple[int, int, bytes] | None = None
        self._takes: Mapping[int, Callable[[int, int, bytes], None]] = {
            DATA: self._take_padded,
            HEADERS: self._take_headers,
            RST_STREAM: self._take_reset,
            SETTINGS: self._take_settings,
            PUSH_PROMISE: self._take_push,
            PING: self._take_ping,
            GOAWAY: self._take_goaway,
            WINDOW_UPDATE: self._take_window,
            CONTINUATION: self._take_continuation,
        }
        self.ready: asyncio.Future[None] = self._loop.create_future()
        self.usable = False

    # ------------------------------------------------------------------------------------------------------------ calls

    async def call(self, block: bytes, parts: Sequence[Buffer], seconds: float | None) -> Reply:
        """One request with these headers, as a block. Raises Broken, Refused."""
        begun = self._loop.time()
        while len(self._calls) >= self._most_calls and self.usable:
            self._room.clear()
            try:
                async with asyncio.timeout(seconds):
                    await self._room.wait()
            except TimeoutError:
                return failed(Code.DEADLINE_EXCEEDED, "Deadline Exceeded")
        if not self.usable:
            raise Refused
        number, self._next = self._next, self._next + 2
        if self._next >= MOST:
            self.usable = False
        exchange = Exchange(self._loop.create_future(), self._stream_window)
        self._calls[number] = exchange
        self._send(number, exchange, block, parts)
        timer = None
        if seconds is not None:
            timer = self._loop.call_at(begun + seconds, self._expire, number)
        try:
            return await exchange.reply
        except asyncio.CancelledError:
            self._abandon(number)
            raise
        finally:
            if timer is not None:
                timer.cancel()

    def _expire(self, number: int) -> None:
        exchange = self._calls.get(number)
        if exchange is not None:
            self._abandon(number)
            exchange.end(failed(Code.DEADLINE_EXCEEDED, "Deadline Exceeded"))

    def _abandon(self, number: int) -> None:
        """Nobody waits for the answer: the server may stop."""
        if self._forget(number):
            self._write(frame(4, RST_STREAM, 0, number) + CANCEL.to_bytes(4, "big"))

    def _forget(self, number: int) -> Exchange | None:
        self._stalled.pop(number, None)
        exchange = self._calls.pop(number, None)
        self._room.set()
        if not self._calls and not self.usable and self._transport is not None:
            self._transport.close()
        return exchange

    def _send(self, number: int, exchange: Exchange, block: bytes, parts: Sequence[Buffer]) -> None:
        size = sum(map(len, parts))
        head = frame(len(block), HEADERS, END_HEADERS, number) + block
        prefix = b"\0" + size.to_bytes(4, "big")
        room = min(self._window, exchange.window, self._frame_bytes, _JOINED_BYTES)
        whole = size + PREFIX_BYTES
        if whole <= room:
            self._window -= whole
            self._write(b"".join([head, frame(whole, DATA, END_STREAM, number), prefix, *parts]))
            return
        exchange.unsent.append(memoryview(prefix))
        exchange.unsent.extend([memoryview(part).cast("B") for part in parts if len(part)])
        self._send_more(number, exchange, [head])

    def _send_more(self, number: int, exchange: Exchange, pieces: list[Buffer]) -> None:
        """As much of a request as its windows allow, behind some pieces."""
        unsent = exchange.unsent
        while unsent and (room := min(self._window, exchange.window, self._frame_bytes)) > 0:
            begin, size = len(pieces), 0
            pieces.append(b"")
            while unsent and size < room:
                part = unsent.popleft()
                if len(part) > room - size:
                    unsent.appendleft(part[room - size :])
                    part = part[: room - size]
                pieces.append(part)
                size += len(part)
            pieces[begin] = frame(size, DATA, 0 if unsent else END_STREAM, number)
            self._window -= size
            exchange.window -= size
        if unsent:
            self._stalled[number] = exchange
        else:
            self._stalled.pop(number, None)
        if pieces:
            self._transport.writelines(pieces)

    def _write(self, data: bytes) -> None:
        if self._transport is not None:
            self._transport.write(data)

    # ------------------------------------------------------------------------------------------------------- connection

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        # A server that is gone without a word is noticed, for probes are sent all the time.
        if (user_timeout := getattr(socket, "TCP_USER_TIMEOUT", None)) is not None:
            transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, user_timeout, _GONE_AFTER_MS)
        transport.write(PREFACE)

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        self._end(Broken(str(error) if error else "the server has closed the connection"))

    def eof_received(self) -> bool:
        return False

    def close(self) -> None:
        """Calls that are under way end."""
        self._end(Broken("closed"))

    def _end(self, error: Exception) -> None:
        self.usable = False
        if not self.ready.done():
            self.ready.set_exception(error)
            self.ready.exception()  # it may be that nobody waits any more
        for exchange in self._calls.values():
            exchange.fail(error)
        self._calls.clear()
        self._stalled.clear()
        self._data = None
        self._room.set()
        if self._transport is not None:
            self._transport.abort()

    # -------------------------------------------------------------------------------------------------------- receiving

    def get_buffer(self, sizehint: int) -> memoryview:
        direct = self._direct()
        if direct is not None:
            return direct.room[: self._left]
        begins = self._data is None and not self._have
        return self._scratch[:_BEGINNING_BYTES] if begins else self._scratch[self._have :]

    def buffer_updated(self, nbytes: int) -> None:
        direct = self._direct()
        try:
            if direct is not None:
                direct.room = direct.room[nbytes:]
                self._took(nbytes)
                return
            self._have += nbytes
            self._read()
        except (BadFrame, hpack.BadBlock) as error:
            self._end(Broken(f"no HTTP/2 of gRPC: {error}"))

    def _direct(self) -> Exchange | None:
        """Whose message goes straight to its place."""
        if self._data is None or self._have or self._left < _DIRECT_BYTES:
            return None
        exchange = self._calls.get(self._data[0])
        return exchange if exchange is not None and len(exchange.room) >= self._left else None

    def _read(self) -> None:
        """All that is in the scratch memory, but for the beginning of a frame that is not whole."""
        at, have, scratch = 0, self._have, self._scratch
        while at < have:
            if self._data is not None:
                size = min(self._left, have - at)
                self._read_data(scratch[at : at + size])
                at += size
                continue
            if have - at < FRAME_BYTES:
                break
            most, least, kind, flags, number = FRAME.unpack_from(scratch, at)
            size, number = most << 8 | least, number & MOST
            if kind == DATA and not flags & PADDED and self._block is None:
                at += FRAME_BYTES
                self._data, self._left = (number, flags), size
                if not size:
                    self._took(0)
                continue
            if size > MOST_CONTROL_BYTES:
                raise BadFrame(f"a frame of {size} bytes")
            if have - at < FRAME_BYTES + size:
                break
            at += FRAME_BYTES
            self._take_frame(kind, flags, number, bytes(scratch[at : at + size]))
            at += size
        if at and at < have:
            scratch[: have - at] = scratch[at:have]
        self._have = have - at

    def _read_data(self, data: memoryview) -> None:
        """Of the frame that is being received."""
        number, _ = self._data or (0, 0)
        exchange = self._calls.get(number)
        if exchange is not None:
            wrong = exchange.take(data, self._most_bytes)
            if wrong is not None:
                self._abandon(number)
                exchange.end(wrong)
        self._took(len(data))

    def _took(self, count: int) -> None:
        self._left -= count
        self._taken += count
        if not self._left and self._data is not None:
            (number, flags), self._data = self._data, None
            if flags & END_STREAM:
                self._ended(number, {})
        if self._taken >= _GIVEN_BACK_BYTES:
            self._write(frame(4, WINDOW_UPDATE, 0, 0) + self._taken.to_bytes(4, "big"))
            self._taken = 0

    def _take_frame(self, kind: int, flags: int, number: int, data: bytes) -> None:
        if self._block is not None and kind != CONTINUATION:
            raise BadFrame("headers without an end")
        take = self._takes.get(kind)
        if take is not None:  # others are to be ignored
            take(flags, number, data)

    # ----------------------------------------------------------------------------------------------------------- frames

    def _take_padded(self, flags: int, number: int, data: bytes) -> None:
        self._data, self._left = (number, flags), len(data)
        self._read_data(memoryview(unpadded(data)))
        self._took(self._left)

    def _take_headers(self, flags: int, number: int, data: bytes) -> None:
        if flags & PADDED:
            data = unpadded(data)
        if flags & PRIORITY:
            data = data[5:]
        self._take_block(flags, number, data, flags)

    def _take_continuation(self, flags: int, number: int, data: bytes) -> None:
        if self._block is None or self._block[0] != number:
            raise BadFrame("headers without a beginning")
        _, first, begun = self._block
        if len(begun) + len(data) > MOST_CONTROL_BYTES:
            raise BadFrame("headers without an end")
        self._take_block(flags, number, begun + data, first)

    def _take_block(self, flags: int, number: int, data: bytes, first: int) -> None:
        """Headers, or their beginning; `first` are the flags of their first frame."""
        if not flags & END_HEADERS:
            self._block = (number, first, data)
            return
        self._block = None
        headers = hpack.decode(data)
        if first & END_STREAM:
            self._ended(number, headers)
        elif (exchange := self._calls.get(number)) is not None and not headers.get(":status", "").startswith("1"):
            exchange.headers = headers

    def _ended(self, number: int, trailers: Mapping[str, str]) -> None:
        """A server's last word, which may come before all of the request is sent."""
        exchange = self._calls.get(number)
        if exchange is None:
            return
        exchange.end(exchange.outcome(trailers))
        if exchange.unsent:
            self._abandon(number)
        else:
            self._forget(number)

    def _take_push(self, flags: int, number: int, data: bytes) -> None:
        raise BadFrame("a push")

    def _take_ping(self, flags: int, number: int, data: bytes) -> None:
        if not flags & ACK:
            self._write(frame(len(data), PING, ACK, 0) + data)

    def _take_settings(self, flags: int, stream: int, data: bytes) -> None:
        if flags & ACK:
            return
        for at in range(0, len(data) - 5, 6):
            number, value = int.from_bytes(data[at : at + 2], "big"), int.from_bytes(data[at + 2 : at + 6], "big")
            if number == 3:
                self._most_calls = value
                self._room.set()
            elif number == 4:
                for exchange in self._calls.values():
                    exchange.window += value - self._stream_window
                self._stream_window = value
            elif number == 5:
                self._frame_bytes = min(max(value, FIRST_FRAME), 2**24 - 1)
        self._write(frame(0, SETTINGS, ACK, 0))
        if not self.ready.done():
            self.usable = True
            self.ready.set_result(None)
        self._send_stalled()

    def _take_window(self, flags: int, number: int, data: bytes) -> None:
        more = int.from_bytes(data, "big") & MOST
        if number == 0:
            self._window += more
            self._send_stalled()
        elif (exchange := self._calls.get(number)) is not None:
            exchange.window += more
            if number in self._stalled:
                self._send_more(number, exchange, [])

    def _send_stalled(self) -> None:
        for number, exchange in [*self._stalled.items()]:
            if self._window <= 0:
                break
            self._send_more(number, exchange, [])

    def _take_reset(self, flags: int, number: int, data: bytes) -> None:
        why = int.from_bytes(data, "big")
        exchange = self._forget(number)
        if exchange is None:
            return
        if why == REFUSED_STREAM:
            exchange.fail(Refused())
        else:
            exchange.end(failed(_RESET_CODES.get(why, Code.INTERNAL), f"the server ended the call with error {why}"))

    def _take_goaway(self, flags: int, stream: int, data: bytes) -> None:
        """No new calls; those after the last that the server has looked at may be made again."""
        last = int.from_bytes(data[:4], "big") & MOST
        self.usable = False
        for number in [number for number in self._calls if number > last]:
            self._calls[number].fail(Refused())
            self._forget(number)
        self._room.set()
        if not self._calls and self._transport is not None:
            self._transport.close()

"""One end of an HTTP/2 connection, as far as it is the same for a client and a server of gRPC. Belongs to the loop.

A large message is never copied here: what is sent are the parts that somebody else holds, and what is received goes
from the socket to the memory where it stays. Every stream has a window of its own for what comes, which whoever reads
it opens again; the connection's is never shut. There are no pushes and no priorities.

Source: RFC 9113.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, Generic, TypeVar

from tensorgate.gateway.contract.call import Buffer
from tensorgate.gateway.contract.shortcuts import is_taken
from tensorgate.gateway.wire import hpack
from tensorgate.gateway.wire.grpc_messages import Incoming, NotAdmitted, TooLarge
from tensorgate.gateway.wire.http2_frames import (
    ACK,
    COMPRESSION_ERROR,
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    ENHANCE_YOUR_CALM,
    FIRST_FRAME,
    FIRST_WINDOW,
    FLOW_CONTROL_ERROR,
    FRAME,
    FRAME_BYTES,
    FRAME_SIZE,
    FRAME_SIZE_ERROR,
    GOAWAY,
    HEADERS,
    MAX_CONTROL_BYTES,
    MOST,
    PADDED,
    PING,
    PRIORITY,
    PUSH_PROMISE,
    RST_STREAM,
    SETTINGS,
    STREAM_CLOSED,
    TABLE_SIZE,
    WINDOW,
    WINDOW_UPDATE,
    BadFrame,
    BadStream,
    FrameBudget,
    check,
    frame,
    read_settings,
    short_frame,
    unpadded,
)

_GIVEN_BACK_BYTES: Final = 1 << 29
_SCRATCH_BYTES: Final = 512 << 10
_DIRECT_BYTES: Final = 32 << 10 if is_taken("direct_reads") else 1 << 62
"""So much of a frame that is still to come goes straight to its place."""
_BEGINNING_BYTES: Final = 16 << 10
"""So much is read before it is known whether there is a place for the rest, and of other things than data."""
_TURN_FRAMES: Final = 64
"""After so many frames of one connection others have their turn; headers count by the kilobyte, too."""
_MUCH_BYTES: Final = 8 << 10
"""Frames of so much data do not count: what is read at once has few of them."""
_MANY_FRAMES: Final = 32
"""After a read of so many, too: a loop may read from one connection many times before it looks at another."""
JOINED_BYTES: Final = 32 << 10
"""Copying this much costs less than handing the kernel several buffers."""
_TURN_BYTES: Final = 1 << 20
"""So much is handed to the kernel's side at once: what it has not taken yet, another stream may go before, or nobody
wants any more.
"""
_MAX_OWED: Final = 1000
"""Frames that are answered by frames, from somebody who reads no answers."""
_TAKES_WHOLE: Final = is_taken("whole_frames")
_WHOLE: Final = frozenset({END_HEADERS, END_HEADERS | END_STREAM} if _TAKES_WHOLE else ())
_CARRYING: Final = frozenset({DATA, HEADERS, CONTINUATION})
"""Of all other frames there is a budget, and of those of these that are empty."""
_SETTINGS_PER_FRAME: Final = 16
"""More of them in one frame cost as much as several frames."""


class Stream:
    """One call on a connection. `window` is how much more may be sent than the connection lets all streams begin with,
    which is less than nothing once something has been sent; `granted` is how much may come; `unsent` is what is left to
    be sent, `end` the flag of its last frame, and `after` goes behind that. `ended`: the other end has said its last
    word; `taken` is how many bytes it said. `still` is for whoever wants to know how long nothing has moved: it is set
    to 0 when something does.
    """

    __slots__ = ("after", "end", "ended", "granted", "incoming", "number", "still", "taken", "unsent", "window")

    def __init__(self, number: int, granted: int, incoming: Incoming) -> None:
        self.number = number
        self.window = 0
        self.granted = granted
        self.incoming = incoming
        self.unsent: deque[memoryview] = deque()
        self.end = 0
        self.after = b""
        self.ended = False
        self.taken = 0
        self.still = 0

    def has_sent(self) -> None:
        """All that was to be sent has been handed to the kernel's side, after some of it had to wait."""


def new_scratch() -> memoryview:
    """Memory to read into that has no better place."""
    return memoryview(bytearray(_SCRATCH_BYTES))


S = TypeVar("S", bound=Stream)


class Http2(asyncio.BufferedProtocol, Generic[S]):
    """See above. What comes of a call is for the side that knows what it means: the methods that are empty here."""

    def __init__(
        self,
        frame_bytes: int,
        preface: bytes = b"",
        scratch: memoryview | None = None,
        block_bytes: int = MAX_CONTROL_BYTES,
        budget: FrameBudget | None = None,
    ) -> None:
        """`frame_bytes` is the largest frame that may come, `block_bytes` the longest headers, and what has them or
        anything else but data; `preface` is what comes before the first. Connections of one loop may share their
        `scratch` memory: it is read and emptied within one step. `budget` is how many frames may come that carry
        nothing.
        """
        self._transport: Any = None
        self._scratch = scratch or new_scratch()
        self._beginning = self._scratch[:_BEGINNING_BYTES]
        self._rest = b""
        self._preface = preface
        self._max_frame_bytes = frame_bytes
        self._max_block_bytes = min(block_bytes, frame_bytes, _SCRATCH_BYTES - _BEGINNING_BYTES)
        self._streams: dict[int, S] = {}
        self._stalled: dict[int, S] = {}
        # What may be sent on all streams together, what each of them begins with, and the most that any has beyond.
        self._window = self._stream_window = FIRST_WINDOW
        self._widest = 0
        self._frame_bytes = FIRST_FRAME
        self._taken = 0
        # Of the DATA frame that is being received: whose it is, its flags, and how much of it is to come.
        self._data: tuple[int, int] | None = None
        self._left = 0
        self._block: tuple[int, int, bytes] | None = None
        self._is_paused = self._is_settled = False
        self._owed = 0
        self._budget = budget or FrameBudget()
        # Frames are left for the next turn; something is being read, and the answers to that.
        self._is_behind = self._is_reading = False
        self._answers: list[bytes] = []
        self._table_word = b""
        self._takes: Mapping[int, Callable[[int, int, bytes], None]] = {
            DATA: self._take_padded,
            HEADERS: self._take_headers,
            RST_STREAM: self._take_rst,
            SETTINGS: self._take_settings,
            PUSH_PROMISE: self._take_push,
            PING: self._take_ping,
            GOAWAY: self._take_goaway,
            WINDOW_UPDATE: self._take_window,
            CONTINUATION: self._take_continuation,
        }

    # -------------------------------------------------------------------------------------------- what a side knows of

    def _take_block(self, number: int, flags: int, block: bytes) -> None:
        """All headers of one frame, or of one with others behind it. Raises BadFrame, BadBlock."""

    def _take_messages(self, stream: S, messages: list[tuple[bytes, bool]]) -> None:
        """Some that are whole now, and whether each is compressed."""

    def _take_end(self, stream: S) -> None:
        """There are no more."""

    def _take_reset(self, stream: S, code: int) -> None:
        """The other end has ended the stream, which is forgotten."""

    def _take_settled(self, values: Mapping[int, int]) -> None:
        """The other end has said its settings."""

    def _take_pong(self, data: bytes) -> None:
        """It has answered a ping."""

    def _take_leave(self, last: int) -> None:
        """It takes no streams after that one."""

    def _refuse(self, stream: S, error: Exception) -> None:
        """What comes of the stream cannot be taken: BadStream, TooLarge, NotAdmitted, MemoryError. Raises BadFrame."""

    def _break(self, error: BadFrame) -> None:
        """The connection cannot go on."""

    def _soon(self, step: Callable[[], None]) -> None:
        """Take a step once others have had their turn."""
        asyncio.get_running_loop().call_soon(step)

    # -------------------------------------------------------------------------------------------------------- receiving

    def get_buffer(self, sizehint: int) -> memoryview:
        if self._data is not None and (direct := self._direct()) is not None:
            return direct.incoming.room[: self._left]
        rest = self._rest
        if rest:
            self._scratch[: len(rest)] = rest
            return self._scratch[len(rest) : len(rest) + _BEGINNING_BYTES]
        return self._beginning if self._data is None else self._scratch

    def buffer_updated(self, nbytes: int) -> None:
        """What is answered by frames is answered in one piece."""
        self._is_reading = True
        try:
            if self._data is not None and (direct := self._direct()) is not None:
                self._read_direct(direct, nbytes)
            else:
                self._read(len(self._rest) + nbytes)
        except hpack.BadBlock as error:
            self._break(BadFrame(str(error), COMPRESSION_ERROR))
        except BadFrame as error:
            self._break(error)
        finally:
            self._is_reading = False
            if self._answers:
                self._write(b"")

    def _fall_behind(self) -> None:
        """Others have their turn before the rest of what has come is looked at, and nothing more is read meanwhile."""
        if not self._is_behind and self._transport is not None and not self._transport.is_closing():
            self._is_behind = True
            self._transport.pause_reading()
            self._soon(self._catch_up)

    def _catch_up(self) -> None:
        self._is_behind = False
        rest = self._rest
        if self._transport is None or self._transport.is_closing():
            return
        if rest:
            self._scratch[: len(rest)] = rest
            self.buffer_updated(0)
        if not self._is_behind and self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    def _direct(self) -> S | None:
        """Whose message goes straight to its place."""
        if self._data is None or self._rest or self._left < _DIRECT_BYTES:
            return None
        stream = self._streams.get(self._data[0])
        return stream if stream is not None and len(stream.incoming.room) >= self._left else None

    def _read_direct(self, stream: S, count: int) -> None:
        stream.still = 0
        stream.taken += count
        try:
            messages = stream.incoming.added(count)
        except MemoryError as error:
            self._refuse(stream, error)
        else:
            if messages:
                self._mark_end(stream, count)
                self._take_messages(stream, messages)
        self._took(count)

    def _read(self, have: int) -> None:
        """What is in the scratch memory, but for a frame that is not whole yet, and what is left to the next turn."""
        scratch, turn = self._scratch, _TURN_FRAMES
        at = self._read_preface(have) if self._preface else 0
        while at < have and turn > 0:
            if self._data is not None:
                size = min(self._left, have - at)
                self._read_data(scratch[at : at + size])
                at += size
                continue
            if have - at < FRAME_BYTES:
                break
            turn -= 1
            most, least, kind, flags, number = FRAME.unpack_from(scratch, at)
            size, number = most << 8 | least, number & MOST
            if kind == DATA and not flags & PADDED and self._block is None:
                turn += size >= _MUCH_BYTES
                at += FRAME_BYTES
                if _TAKES_WHOLE and at + size <= have and self._take_lone(number, flags, scratch[at : at + size]):
                    at += size
                else:
                    self._begin_data(number, flags, size)
                continue
            if size > self._max_block_bytes:
                raise BadFrame(f"a frame of {size} bytes", FRAME_SIZE_ERROR)
            if have - at < FRAME_BYTES + size:
                break
            at += FRAME_BYTES + size
            turn -= size >> 10
            data = bytes(scratch[at - size : at])
            if kind == HEADERS and flags in _WHOLE and number and self._is_settled and self._block is None:
                self._take_block(number, flags, data)
            else:
                self._take_frame(kind, flags, number, data)
        self._rest = bytes(scratch[at:have])
        if turn <= _TURN_FRAMES - _MANY_FRAMES:
            self._fall_behind()

    def _read_preface(self, have: int) -> int:
        """As much of it as is here -> where it ends. Raises BadFrame."""
        size = min(have, len(self._preface))
        if self._scratch[:size] != self._preface[:size]:
            raise BadFrame("it does not speak HTTP/2")
        self._preface = self._preface[size:]
        return size

    def _take_lone(self, number: int, flags: int, data: memoryview) -> bool:
        """The short way of a frame that is one message, as most small ones are. -> whether it is."""
        stream, size = self._streams.get(number), len(data)
        if stream is None or stream.ended or size > stream.granted:
            return False
        message = stream.incoming.lone(data)
        if message is None:
            return False
        stream.still = 0
        stream.granted -= size
        stream.taken += size
        stream.ended = flags & END_STREAM != 0
        self._take_messages(stream, [message])
        if stream.ended and number in self._streams:
            self._take_end(stream)
        self._give_back(size)
        return True

    def _begin_data(self, number: int, flags: int, size: int) -> None:
        if not number or not self._is_settled:
            raise BadFrame("data of no stream")
        if size > self._max_frame_bytes:
            raise BadFrame(f"a frame of {size} bytes", FRAME_SIZE_ERROR)
        self._data, self._left = (number, flags), size
        self._check_data(number, size)
        if size:
            return
        if not flags & END_STREAM:
            self._budget.spend()
        self._took(0)

    def _check_data(self, number: int, size: int) -> None:
        """Whether so much may come of a stream."""
        stream = self._streams.get(number)
        if stream is None:
            self._check_unknown(number)
            return
        stream.granted -= size
        if stream.ended:
            self._refuse(stream, BadStream("data behind the end", STREAM_CLOSED))
        elif stream.granted < 0:
            self._refuse(stream, BadStream("more than the window", FLOW_CONTROL_ERROR))

    def _check_unknown(self, number: int) -> None:
        """Something comes of a stream that is not, or is no longer. Raises BadFrame where it cannot have been."""

    def _read_data(self, data: memoryview) -> None:
        """Of the frame that is being received."""
        number, _ = self._data or (0, 0)
        stream = self._streams.get(number)
        if stream is not None:
            stream.still = 0
            stream.taken += len(data)
            try:
                messages = stream.incoming.take(data)
            except (TooLarge, NotAdmitted, MemoryError) as error:
                self._refuse(stream, error)
            else:
                self._mark_end(stream, len(data))
                if messages:
                    self._take_messages(stream, messages)
                lacking = stream.incoming.lacking - (self._left - len(data))
                if lacking > stream.granted and number in self._streams:
                    self._grant(stream, lacking - stream.granted)
        self._took(len(data))

    def _mark_end(self, stream: S, count: int) -> None:
        """Say of a stream that it has ended, before it gets the last of its data."""
        if self._left == count and self._data is not None and self._data[1] & END_STREAM:
            stream.ended = True

    def _took(self, count: int) -> None:
        self._left -= count
        if not self._left and self._data is not None:
            (number, flags), self._data = self._data, None
            if flags & END_STREAM and (stream := self._streams.get(number)) is not None:
                stream.ended = True
                self._take_end(stream)
        self._give_back(count)

    def _give_back(self, count: int) -> None:
        """So much has been received, of all streams together: more may come."""
        self._taken += count
        if self._taken >= _GIVEN_BACK_BYTES:
            self._write(short_frame(WINDOW_UPDATE, 0, self._taken))
            self._taken = 0

    def _take_frame(self, kind: int, flags: int, number: int, data: bytes) -> None:
        if self._block is not None and kind != CONTINUATION:
            raise BadFrame("headers without an end")
        if kind != HEADERS:
            check(kind, flags, number, len(data))
        elif not number:
            raise BadFrame("headers of no stream")
        if not self._is_settled and kind != SETTINGS:
            raise BadFrame("frames before any settings")
        take = self._takes.get(kind)
        if kind not in _CARRYING:
            self._budget.spend()
        if take is not None:  # others are to be ignored
            take(flags, number, data)

    # ----------------------------------------------------------------------------------------------------------- frames

    def _take_padded(self, flags: int, number: int, data: bytes) -> None:
        self._data, self._left = (number, flags), len(data)
        self._check_data(number, len(data))
        found = unpadded(data)
        self._left = len(found)  # what pads it has come already
        self._taken += len(data) - len(found)
        if found:
            self._read_data(memoryview(found))
        else:
            self._budget.spend()
            self._took(0)

    def _take_headers(self, flags: int, number: int, data: bytes) -> None:
        if flags & PADDED:
            data = unpadded(data)
        if flags & PRIORITY:
            if len(data) < 5 or int.from_bytes(data[:4], "big") & MOST == number:
                raise BadFrame("a priority that is none")
            data = data[5:]
        self._take_part(flags, number, data, flags)

    def _take_continuation(self, flags: int, number: int, data: bytes) -> None:
        if self._block is None or self._block[0] != number:
            raise BadFrame("headers without a beginning")
        _, first, begun = self._block
        if not data:
            self._budget.spend()
        if len(begun) + len(data) > self._max_block_bytes:
            raise BadFrame("headers without an end", ENHANCE_YOUR_CALM)
        self._take_part(flags, number, begun + data, first)

    def _take_part(self, flags: int, number: int, data: bytes, first: int) -> None:
        """Headers, or their beginning; `first` are the flags of their first frame."""
        if flags & END_HEADERS:
            self._block = None
            self._take_block(number, first, data)
        else:
            self._block = (number, first, data)

    def _take_push(self, flags: int, number: int, data: bytes) -> None:
        raise BadFrame("a push")

    def _take_ping(self, flags: int, number: int, data: bytes) -> None:
        if flags & ACK:
            self._take_pong(data)
        else:
            self._answer(frame(len(data), PING, ACK, 0) + data)

    def _take_goaway(self, flags: int, number: int, data: bytes) -> None:
        if len(data) < 8:
            raise BadFrame("a farewell that is cut short", FRAME_SIZE_ERROR)
        self._take_leave(int.from_bytes(data[:4], "big") & MOST)

    def _take_settings(self, flags: int, number: int, data: bytes) -> None:
        if flags & ACK:
            return
        self._is_settled = True
        self._budget.spend(len(data) // 6 // _SETTINGS_PER_FRAME)
        values = dict(read_settings(data))
        self._stream_window = values.get(WINDOW, self._stream_window)
        if self._stream_window + self._widest > MOST:
            self._check_windows()
        self._frame_bytes = values.get(FRAME_SIZE, self._frame_bytes)
        if values.get(TABLE_SIZE, hpack.TABLE_BYTES) < hpack.TABLE_BYTES:
            self._table_word = hpack.NO_TABLE
        self._answer(frame(0, SETTINGS, ACK, 0))
        self._take_settled(values)
        self._send_stalled()

    def _take_rst(self, flags: int, number: int, data: bytes) -> None:
        stream = self._forget(number)
        if stream is None:
            self._check_unknown(number)
        else:
            self._take_reset(stream, int.from_bytes(data, "big"))

    def _take_window(self, flags: int, number: int, data: bytes) -> None:
        more = int.from_bytes(data, "big") & MOST
        if number == 0:
            self._window += more
            if not more:
                raise BadFrame("a window that is no larger")
            if self._window > MOST:
                raise BadFrame("a window that is too large", FLOW_CONTROL_ERROR)
            if self._stalled:
                self._send_stalled()
            return
        stream = self._streams.get(number)
        if stream is None:
            self._check_unknown(number)
            return
        if not more:
            self._refuse(stream, BadStream("a window that is no larger"))
            return
        try:
            self._widen(stream, more)
        except BadFrame as error:
            self._refuse(stream, BadStream(str(error), error.code))
            return
        if number in self._stalled:
            self._send_more(stream, [])

    def _widen(self, stream: S, more: int) -> None:
        window = stream.window + more
        if window > self._widest:
            if window + self._stream_window > MOST:
                raise BadFrame("a window that is too large", FLOW_CONTROL_ERROR)
            self._widest = window
        stream.window = window

    def _check_windows(self) -> None:
        """Whether one of the windows is too large, or was that of a stream that is over. Raises BadFrame."""
        self._widest = max((stream.window for stream in self._streams.values()), default=0)
        if self._stream_window + self._widest > MOST:
            raise BadFrame("a window that is too large", FLOW_CONTROL_ERROR)

    # ---------------------------------------------------------------------------------------------------------- sending

    def headers(self, stream: int, block: bytes, flags: int = END_HEADERS) -> bytes:
        """A frame of headers."""
        if self._table_word:  # in each, for they may leave in another order than they are made
            block = self._table_word + block
        size = len(block)
        return FRAME.pack(size >> 8, size & 0xFF, HEADERS, flags, stream) + block

    def _grant(self, stream: S, count: int) -> None:
        """So much more may come of a stream."""
        stream.granted += count
        self._write(short_frame(WINDOW_UPDATE, stream.number, count))

    def _forget(self, number: int) -> S | None:
        """A stream is over, whatever is left of it."""
        self._stalled.pop(number, None)
        stream = self._streams.pop(number, None)
        if stream is not None and stream.incoming.room:
            stream.incoming.close()
        return stream

    def _reset(self, stream: S, code: int) -> None:
        """End a stream from here."""
        if self._forget(stream.number) is not None:
            self._write(short_frame(RST_STREAM, stream.number, code))

    def _send(self, stream: S, head: bytes, parts: Iterable[Buffer], size: int, prefix: bytes) -> None:
        """A message behind some frames, as soon as there is a window for it, and what ends it."""
        whole = size + len(prefix)
        room = stream.window + self._stream_window
        if whole <= min(self._window, room, self._frame_bytes, JOINED_BYTES) and not stream.unsent:
            self._budget.earned += 4 + (whole >> 12)
            self._window -= whole
            stream.window -= whole
            self._write(b"".join([head, frame(whole, DATA, stream.end, stream.number), prefix, *parts, stream.after]))
            return
        stream.unsent.append(memoryview(prefix))
        stream.unsent.extend([memoryview(part).cast("B") for part in parts if len(part)])
        self._send_more(stream, [head] if head else [])

    def _send_more(self, stream: S, pieces: list[Buffer]) -> None:
        """As much of what a stream has to say as its windows and the kernel's side allow, behind some pieces."""
        self._take_turn(stream, pieces)
        while stream.unsent and self._window > 0 and not self._is_paused and self._room_of(stream) > 0:
            self._take_turn(stream, [])

    def _room_of(self, stream: S) -> int:
        """How much may be sent on a stream, as far as its own window goes."""
        return stream.window + self._stream_window

    def _take_turn(self, stream: S, pieces: list[Buffer]) -> None:
        unsent = stream.unsent
        number, turn = stream.number, 0 if self._is_paused else _TURN_BYTES
        while unsent and (room := min(self._window, self._room_of(stream), self._frame_bytes, turn)) > 0:
            size = _move(unsent, room, stream, pieces)
            self._budget.earned += 4 + (size >> 12)  # it has a reason to answer by windows, and by pings
            self._window -= size
            stream.window -= size
            stream.still = 0
            turn -= size
        if unsent:
            self._stalled.pop(number, None)  # who has just been served is the last in turn
            self._stalled[number] = stream
        else:
            if stream.after:
                pieces.append(stream.after)
        has_waited = not unsent and self._stalled.pop(number, None) is not None
        if pieces and self._transport is not None:
            if self._answers:
                self._write(b"")
            self._transport.writelines(pieces)
        if has_waited:
            stream.has_sent()

    def _send_stalled(self) -> None:
        """Those that wait take turns until none of them can go on."""
        can_go_on = True
        while can_go_on:
            can_go_on = False
            for stream in [*self._stalled.values()]:
                if self._window <= 0 or self._is_paused:
                    return
                if self._room_of(stream) > 0:
                    self._take_turn(stream, [])
                    can_go_on = True

    def _answer(self, data: bytes) -> None:
        """A frame that answers one: those of one read leave together. Raises BadFrame where nobody reads them."""
        if self._is_paused:
            self._owed += 1
            if self._owed > _MAX_OWED:
                raise BadFrame("too many frames that nobody reads the answers of", ENHANCE_YOUR_CALM)
        if self._is_reading:
            self._answers.append(data)
        else:
            self._write(data)

    def _write(self, data: bytes) -> None:
        if self._answers:
            data = b"".join([*self._answers, data])
            self._answers.clear()
        if self._transport is not None:
            self._transport.write(data)

    def _close(self) -> None:
        """Behind all that has been written."""
        if self._answers:
            self._write(b"")
        if self._transport is not None:
            self._transport.close()

    def pause_writing(self) -> None:
        self._is_paused = True

    def resume_writing(self) -> None:
        self._is_paused = False
        self._owed = 0
        self._send_stalled()


def _move(unsent: deque[memoryview], room: int, stream: Stream, pieces: list[Buffer]) -> int:
    """A frame of at most `room` bytes, from what is unsent to the pieces -> how many there are in it."""
    begin, size = len(pieces), 0
    pieces.append(b"")
    while unsent and size < room:
        part = unsent.popleft()
        if len(part) > room - size:
            unsent.appendleft(part[room - size :])
            part = part[: room - size]
        pieces.append(part)
        size += len(part)
    pieces[begin] = frame(size, DATA, 0 if unsent else stream.end, stream.number)
    return size

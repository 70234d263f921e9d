"""One end of an HTTP/2 connection, as far as it is the same for a client and a server of gRPC.

It has no socket and no event loop: `get_buffer` and `buffer_updated` take what has been read, a Transport takes what
is to be written, and what comes of a frame is an event, one of the methods `on_…`, which a client and a server define.
So both ends can be tested with bytes alone. `FRAME_RULES` at the end is the table of all frames.

A large message is never copied here: what is sent are the parts that somebody else holds, and what is received goes
from the socket to the memory where it stays. There are no pushes and no priorities.

A stream has one of the states of RFC 9113, 5.1:

    idle         it is in no table, and its number is larger than those of all that have begun
    open         it is in `_streams`, and not `ended`
    half-closed  it is in `_streams`, and `ended`: the other end has sent END_STREAM
    closed       it is in no table any more

Each stream has a window of its own for what it receives, which its reader opens again. The connection's window is never
closed: what has been received is given back without being asked for. Source: RFC 9113, 5.2.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Generic, Protocol, TypeVar

from tensorgate.gateway.contract.call import Buffer
from tensorgate.gateway.contract.shortcuts import is_taken
from tensorgate.gateway.wire import hpack
from tensorgate.gateway.wire.grpc_messages import MESSAGE_PREFIX, PREFIX_BYTES, Incoming, MessageTooLarge, NotAdmitted
from tensorgate.gateway.wire.http1_body import Body
from tensorgate.gateway.wire.http2_frames import (
    ACK,
    COMPRESSION_ERROR,
    CONTINUATION,
    DATA,
    DEFAULT_WINDOW,
    END_HEADERS,
    END_STREAM,
    ENHANCE_YOUR_CALM,
    FLOW_CONTROL_ERROR,
    FRAME_HEADER,
    FRAME_HEADER_BYTES,
    FRAME_SIZE_ERROR,
    GOAWAY,
    HEADER_TABLE_SIZE,
    HEADERS,
    INITIAL_WINDOW_SIZE,
    MAX_CONTROL_BYTES,
    MAX_FRAME_SIZE,
    MAX_INT31,
    MIN_FRAME_BYTES,
    PADDED,
    PING,
    PRIORITY,
    PRIORITY_FRAME,
    PUSH_PROMISE,
    RST_STREAM,
    SETTINGS,
    STREAM_CLOSED,
    WINDOW_UPDATE,
    FrameBudget,
    Http2ConnectionError,
    Http2StreamError,
    frame_header,
    read_settings,
    short_frame,
    unpadded,
)

_GIVEN_BACK_BYTES: Final = 1 << 29
"""What is received on all streams is given back to the connection's window in steps of this size."""
_SCRATCH_BYTES: Final = 512 << 10
_DIRECT_BYTES: Final = 32 << 10 if is_taken("direct_reads") else 1 << 62
"""A DATA frame of which this much is still to come is read straight into its message."""
_CONTROL_READ_BYTES: Final = 16 << 10
"""The size of a read while no DATA frame has begun: there is no place yet for a large one."""
_MAX_TURN_FRAMES: Final = 64
"""After this many frames of one connection others have their turn. Headers count by the kilobyte, too."""
_UNCOUNTED_DATA_BYTES: Final = 8 << 10
"""DATA of this size does not count for a turn, since one read has few such frames."""
_MAX_READ_FRAMES: Final = 32
"""Others have their turn after a read of this many frames, too: a loop may read from one connection many times before
it looks at another.
"""
JOINED_BYTES: Final = 32 << 10
"""Copying this much costs less than handing the kernel several buffers."""
_MAX_TURN_BYTES: Final = 1 << 20
"""What is written at once. Of the rest, another stream may go first, or nobody wants any more."""
_MAX_UNREAD_RESPONSES: Final = 1000
"""How many frames a peer may have answered that does not read the answers."""
_TAKES_WHOLE: Final = is_taken("whole_frames")
_WHOLE: Final = frozenset({END_HEADERS, END_HEADERS | END_STREAM} if _TAKES_WHOLE else ())
_SETTINGS_PER_FRAME: Final = 16
"""More settings in one frame cost as much as several frames."""


class Transport(Protocol):
    """What a connection writes to and stops reading from: as much of asyncio's as it uses."""

    def write(self, data: Buffer) -> None: ...
    def writelines(self, parts: Iterable[Buffer]) -> None: ...
    def close(self) -> None: ...
    def abort(self) -> None: ...
    def is_closing(self) -> bool: ...
    def pause_reading(self) -> None: ...
    def resume_reading(self) -> None: ...
    def get_write_buffer_size(self) -> int: ...


class Stream:
    """One stream of a connection."""

    __slots__ = (
        "end_flag",
        "ended",
        "idle_sweeps",
        "incoming",
        "last_frames",
        "max_message_bytes",
        "number",
        "receive_window",
        "received_bytes",
        "send_window",
        "unsent",
    )

    def __init__(self, number: int, receive_window: int, max_message_bytes: int) -> None:
        self.number = number
        self.max_message_bytes = max_message_bytes
        self.incoming: Incoming | None = None
        """The messages that come in pieces, once any has."""
        self.receive_window = receive_window
        """How many bytes may still come."""
        self.send_window = 0
        """How many bytes more may be sent than the connection's initial window allows: below 0 once some are sent, so
        that new settings change one number and not every stream.
        """
        self.unsent: deque[memoryview] = deque()
        """What waits for a window, or for the kernel."""
        self.end_flag = 0
        """The flag of the last DATA frame."""
        self.last_frames = b""
        """What is written behind all that is unsent."""
        self.ended = False
        """The other end has sent END_STREAM."""
        self.received_bytes = 0
        self.idle_sweeps = 0
        """How often the owner has looked since something was sent or received, which sets it to 0."""

    @property
    def has_part(self) -> bool:
        """A part of a message has come."""
        return self.incoming is not None and self.incoming.has_begun

    def receiver(self) -> Incoming:
        """What puts messages together, made when it is first asked for."""
        if self.incoming is None:
            self.incoming = self.make_incoming()
        return self.incoming

    def make_incoming(self) -> Incoming:
        return Incoming(self.max_message_bytes)


def new_scratch() -> memoryview:
    """Memory to read into. Connections of one loop may share it: it is read and emptied within one step."""
    return memoryview(bytearray(_SCRATCH_BYTES))


S = TypeVar("S", bound=Stream)


class Http2(ABC, Generic[S]):
    """One end of a connection, without what its events mean.

    A subclass that asyncio is to drive is an asyncio.BufferedProtocol besides.
    """

    def __init__(
        self,
        max_frame_bytes: int,
        call_soon: Callable[[Callable[[], None]], object],
        preface: bytes = b"",
        scratch: memoryview | None = None,
        max_block_bytes: int = MAX_CONTROL_BYTES,
        budget: FrameBudget | None = None,
    ) -> None:
        """`max_frame_bytes` bounds DATA frames that come, `max_block_bytes` headers and all other frames. `call_soon`
        takes a step once others have had their turn, `preface` is what comes before the first frame, `budget` bounds
        the frames that carry nothing.
        """
        self._transport: Transport | None = None
        self._call_soon = call_soon
        self._scratch = scratch or new_scratch()
        self._control_room = self._scratch[:_CONTROL_READ_BYTES]
        self._unread = b""
        self._preface = preface
        self._max_frame_bytes = max_frame_bytes
        self._max_block_bytes = min(max_block_bytes, max_frame_bytes, _SCRATCH_BYTES - _CONTROL_READ_BYTES)
        self._streams: dict[int, S] = {}
        self._stalled: dict[int, S] = {}
        # What may be sent on all streams together, what each of them begins with, and the largest `send_window`.
        self._window = self._initial_window = DEFAULT_WINDOW
        self._max_send_window = 0
        self._max_sent_frame_bytes = MIN_FRAME_BYTES
        self._not_given_back = 0
        # Of the DATA frame that is being received: its stream and flags, and how much of it is to come.
        self._data_frame: tuple[int, int] | None = None
        self._data_left = 0
        # Of headers that go on in CONTINUATION: their stream, the flags of their first frame, and what has come.
        self._partial_block: tuple[int, int, bytes] | None = None
        self.is_paused = False
        """The other end takes nothing, as far as the kernel tells."""
        self._has_settings = False
        self._unread_responses = 0
        self._budget = budget or FrameBudget()
        # Frames are left for the next turn; something is being read; frames that answer those of this read.
        self._is_yielding = self._is_reading = False
        self._responses: list[bytes] = []
        self._table_update = b""

    # ---------------------------------------------------------------------------------- events, for a client or server

    @abstractmethod
    def on_headers(self, number: int, flags: int, block: bytes) -> None:
        """All headers of one HEADERS frame and its CONTINUATION. Raises Http2ConnectionError, BadBlock."""

    @abstractmethod
    def on_messages(self, stream: S, messages: list[tuple[Buffer, bool]]) -> None:
        """Messages are whole; each comes with whether it is compressed."""

    @abstractmethod
    def on_end(self, stream: S) -> None:
        """The other end has sent END_STREAM behind the last message."""

    @abstractmethod
    def on_reset(self, stream: S, code: int) -> None:
        """The other end has reset a stream, which is closed."""

    @abstractmethod
    def on_stream_error(self, stream: S, error: Exception) -> None:
        """What comes of a stream cannot be taken: Http2StreamError, MessageTooLarge, NotAdmitted, MemoryError. Raises
        Http2ConnectionError.
        """

    @abstractmethod
    def on_connection_error(self, error: Http2ConnectionError) -> None:
        """The connection cannot go on."""

    def on_unknown_stream(self, number: int, kind: int) -> None:
        """A frame of this type names a stream that is idle or closed. Raises Http2ConnectionError."""

    def on_settings(self, values: Mapping[int, int]) -> None:
        """The other end has sent settings, which are in force."""

    def on_pong(self, payload: bytes) -> None:
        """The other end has answered a ping."""

    def on_goaway(self, last: int) -> None:
        """The other end takes no streams after that one."""

    def on_message_begin(self, stream: S, body: Body, size: int) -> None:
        """The first bytes of a large message are here, of a stream whose Incoming tells of it."""

    def on_sent(self, stream: S) -> None:
        """The last of what had to wait has been written."""

    # -------------------------------------------------------------------------------------------------------- receiving

    def get_buffer(self, sizehint: int) -> memoryview:
        if self._data_frame is not None and (direct := self._direct_stream()) is not None:
            return direct.receiver().room[: self._data_left]
        rest = self._unread
        if rest:
            self._scratch[: len(rest)] = rest
            return self._scratch[len(rest) : len(rest) + _CONTROL_READ_BYTES]
        return self._control_room if self._data_frame is None else self._scratch

    def buffer_updated(self, nbytes: int) -> None:
        """Take what has been read. Frames that answer frames are written in one piece."""
        self._is_reading = True
        try:
            if self._data_frame is not None and (direct := self._direct_stream()) is not None:
                self._receive_direct(direct, nbytes)
            else:
                self._receive(len(self._unread) + nbytes)
        except hpack.BadBlock as error:
            self.on_connection_error(Http2ConnectionError(str(error), COMPRESSION_ERROR))
        except Http2ConnectionError as error:
            self.on_connection_error(error)
        finally:
            self._is_reading = False
            if self._responses:
                self.write(b"")

    def _yield_turn(self) -> None:
        """Leave what is unread to the next turn, and read nothing more meanwhile."""
        if not self._is_yielding and self._transport is not None and not self._transport.is_closing():
            self._is_yielding = True
            self._transport.pause_reading()
            self._call_soon(self._take_next_turn)

    def _take_next_turn(self) -> None:
        self._is_yielding = False
        rest = self._unread
        if self._transport is None or self._transport.is_closing():
            return
        if rest:
            self._scratch[: len(rest)] = rest
            self.buffer_updated(0)
        if not self._is_yielding and self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    def _direct_stream(self) -> S | None:
        """The stream whose message is read straight into its place, if there is one."""
        if self._data_frame is None or self._unread or self._data_left < _DIRECT_BYTES:
            return None
        stream = self._streams.get(self._data_frame[0])
        if stream is None or stream.incoming is None or len(stream.incoming.room) < self._data_left:
            return None
        return stream

    def _receive_direct(self, stream: S, count: int) -> None:
        stream.idle_sweeps = 0
        stream.received_bytes += count
        try:
            messages = stream.receiver().commit(count)
        except MemoryError as error:
            self.on_stream_error(stream, error)
        else:
            if messages:
                self._mark_end(stream, count)
                self.on_messages(stream, messages)
        self._data_received(count)

    def _receive(self, have: int) -> None:
        """Take the first `have` bytes of the scratch memory, but for a frame that is not whole yet and what is left to
        the next turn.
        """
        scratch, turn = self._scratch, _MAX_TURN_FRAMES
        at = self._receive_preface(have) if self._preface else 0
        while at < have and turn > 0:
            if self._data_frame is not None:
                size = min(self._data_left, have - at)
                self._receive_data(scratch[at : at + size])
                at += size
                continue
            if have - at < FRAME_HEADER_BYTES:
                break
            turn -= 1
            high, low, kind, flags, number = FRAME_HEADER.unpack_from(scratch, at)
            size, number = high << 8 | low, number & MAX_INT31
            if kind == DATA and not flags & PADDED and self._partial_block is None:
                turn += size >= _UNCOUNTED_DATA_BYTES
                at += FRAME_HEADER_BYTES
                end = at + size
                if _TAKES_WHOLE and end <= have and self._receive_whole_data(number, flags, scratch[at:end]):
                    at = end
                else:
                    self._begin_data(number, flags, size)
                continue
            if size > self._max_block_bytes:
                raise Http2ConnectionError(f"a frame of {size} bytes", FRAME_SIZE_ERROR)
            if have - at < FRAME_HEADER_BYTES + size:
                break
            at += FRAME_HEADER_BYTES + size
            turn -= size >> 10
            payload = bytes(scratch[at - size : at])
            if kind == HEADERS and flags in _WHOLE and number and self._has_settings and self._partial_block is None:
                self.on_headers(number, flags, payload)
            else:
                self._receive_frame(kind, flags, number, payload)
        self._unread = bytes(scratch[at:have])
        if turn <= _MAX_TURN_FRAMES - _MAX_READ_FRAMES:
            self._yield_turn()

    def _receive_preface(self, have: int) -> int:
        """Compare as much of the preface as is here. -> where it ends. Raises Http2ConnectionError."""
        size = min(have, len(self._preface))
        if self._scratch[:size] != self._preface[:size]:
            raise Http2ConnectionError("it does not speak HTTP/2")
        self._preface = self._preface[size:]
        return size

    def _receive_whole_data(self, number: int, flags: int, data: memoryview) -> bool:
        """The short way of a DATA frame that is one message, as most small ones are. -> whether it is."""
        stream, size = self._streams.get(number), len(data)
        if stream is None or stream.ended or size > stream.receive_window:
            return False
        if stream.incoming is not None and (stream.incoming.has_begun or stream.incoming.is_closed):
            return False
        if not PREFIX_BYTES <= size <= PREFIX_BYTES + stream.max_message_bytes:
            return False
        if int.from_bytes(data[1:PREFIX_BYTES], "big") != size - PREFIX_BYTES:
            return False
        message = bytes(data[PREFIX_BYTES:]), data[0] != 0
        stream.idle_sweeps = 0
        stream.receive_window -= size
        stream.received_bytes += size
        stream.ended = flags & END_STREAM != 0
        self.on_messages(stream, [message])
        if stream.ended and number in self._streams:
            self.on_end(stream)
        self._give_back(size)
        return True

    def _begin_data(self, number: int, flags: int, size: int) -> None:
        if not number or not self._has_settings:
            raise Http2ConnectionError("data of no stream")
        if size > self._max_frame_bytes:
            raise Http2ConnectionError(f"a frame of {size} bytes", FRAME_SIZE_ERROR)
        self._data_frame, self._data_left = (number, flags), size
        self._check_data(number, size)
        if size:
            return
        if not flags & END_STREAM:
            self._budget.spend()
        self._data_received(0)

    def _check_data(self, number: int, size: int) -> None:
        """Take a DATA frame's size from the stream's window. Reports what may not come."""
        stream = self._streams.get(number)
        if stream is None:
            self.on_unknown_stream(number, DATA)
            return
        stream.receive_window -= size
        if stream.ended:
            self.on_stream_error(stream, Http2StreamError("data behind the end", STREAM_CLOSED))
        elif stream.receive_window < 0:
            self.on_stream_error(stream, Http2StreamError("more than the window", FLOW_CONTROL_ERROR))

    def _receive_data(self, data: memoryview) -> None:
        """Take a part of the DATA frame that is being received."""
        number, _ = self._data_frame or (0, 0)
        stream = self._streams.get(number)
        if stream is not None:
            stream.idle_sweeps = 0
            stream.received_bytes += len(data)
            incoming = stream.receiver()
            try:
                messages = incoming.take(data)
            except (MessageTooLarge, NotAdmitted, MemoryError) as error:
                self.on_stream_error(stream, error)
            else:
                self._mark_end(stream, len(data))
                if messages:
                    self.on_messages(stream, messages)
                missing = incoming.missing - (self._data_left - len(data))
                if missing > stream.receive_window and number in self._streams:
                    self.grant(stream, missing - stream.receive_window)
        self._data_received(len(data))

    def _mark_end(self, stream: S, count: int) -> None:
        """Mark a stream as ended before the last of its data is handed on."""
        if self._data_left == count and self._data_frame is not None and self._data_frame[1] & END_STREAM:
            stream.ended = True

    def _data_received(self, count: int) -> None:
        self._data_left -= count
        if not self._data_left and self._data_frame is not None:
            (number, flags), self._data_frame = self._data_frame, None
            if flags & END_STREAM and (stream := self._streams.get(number)) is not None:
                stream.ended = True
                self.on_end(stream)
        self._give_back(count)

    def _give_back(self, count: int) -> None:
        """Return to the connection's window what has been received on any stream."""
        self._not_given_back += count
        if self._not_given_back >= _GIVEN_BACK_BYTES:
            self.write(short_frame(WINDOW_UPDATE, 0, self._not_given_back))
            self._not_given_back = 0

    def _receive_frame(self, kind: int, flags: int, number: int, payload: bytes) -> None:
        """Take a frame by its rule. Raises Http2ConnectionError, BadBlock."""
        if self._partial_block is not None and kind != CONTINUATION:
            raise Http2ConnectionError("headers without an end")
        rule = FRAME_RULES.get(kind, _UNKNOWN_FRAME)
        if rule.names_stream is not None and rule.names_stream != (number != 0):
            wrong = "of a stream that names none" if rule.names_stream else "of the connection that names a stream"
            raise Http2ConnectionError(f"a frame {wrong}")
        if rule.size is not None and rule.size != len(payload):
            raise _bad_size(kind, payload)
        if not self._has_settings and kind != SETTINGS:
            raise Http2ConnectionError("frames before any settings")
        if rule.spends_budget:
            self._budget.left -= 1
            if self._budget.left < 0:
                self._budget.refill()
        if rule.receive is not None:
            rule.receive(self, flags, number, payload)

    # ----------------------------------------------------------------------------------------------------------- frames

    def _receive_padded_data(self, flags: int, number: int, data: bytes) -> None:
        self._data_frame, self._data_left = (number, flags), len(data)
        self._check_data(number, len(data))
        found = unpadded(data)
        self._data_left = len(found)  # what pads it has come already
        self._not_given_back += len(data) - len(found)
        if found:
            self._receive_data(memoryview(found))
        else:
            self._budget.spend()
            self._data_received(0)

    def _receive_headers(self, flags: int, number: int, data: bytes) -> None:
        if flags & PADDED:
            data = unpadded(data)
        if flags & PRIORITY:
            if len(data) < 5 or int.from_bytes(data[:4], "big") & MAX_INT31 == number:
                raise Http2ConnectionError("a priority that is none")
            data = data[5:]
        self._receive_block(flags, number, data, flags)

    def _receive_continuation(self, flags: int, number: int, data: bytes) -> None:
        if self._partial_block is None or self._partial_block[0] != number:
            raise Http2ConnectionError("headers without a beginning")
        _, first, begun = self._partial_block
        if not data:
            self._budget.spend()
        if len(begun) + len(data) > self._max_block_bytes:
            raise Http2ConnectionError("headers without an end", ENHANCE_YOUR_CALM)
        self._receive_block(flags, number, begun + data, first)

    def _receive_block(self, flags: int, number: int, data: bytes, first: int) -> None:
        """Hand on headers that are whole, and keep others; `first` are the flags of their first frame."""
        if flags & END_HEADERS:
            self._partial_block = None
            self.on_headers(number, first, data)
        else:
            self._partial_block = (number, first, data)

    def _receive_push_promise(self, flags: int, number: int, data: bytes) -> None:
        raise Http2ConnectionError("a push")

    def _receive_ping(self, flags: int, number: int, data: bytes) -> None:
        if flags & ACK:
            self.on_pong(data)
        else:
            self._respond(frame_header(len(data), PING, ACK, 0) + data)

    def _receive_goaway(self, flags: int, number: int, data: bytes) -> None:
        if len(data) < 8:
            raise Http2ConnectionError("a farewell that is cut short", FRAME_SIZE_ERROR)
        self.on_goaway(int.from_bytes(data[:4], "big") & MAX_INT31)

    def _receive_settings(self, flags: int, number: int, data: bytes) -> None:
        if len(data) % 6 or (data and flags & ACK):
            raise _bad_size(SETTINGS, data)
        if flags & ACK:
            return
        self._has_settings = True
        self._budget.spend(len(data) // 6 // _SETTINGS_PER_FRAME)
        values = dict(read_settings(data))
        self._initial_window = values.get(INITIAL_WINDOW_SIZE, self._initial_window)
        if self._initial_window + self._max_send_window > MAX_INT31:
            self._check_windows()
        self._max_sent_frame_bytes = values.get(MAX_FRAME_SIZE, self._max_sent_frame_bytes)
        if values.get(HEADER_TABLE_SIZE, hpack.TABLE_BYTES) < hpack.TABLE_BYTES:
            self._table_update = hpack.NO_TABLE
        self._respond(frame_header(0, SETTINGS, ACK, 0))
        self.on_settings(values)
        self._send_stalled()

    def _receive_rst_stream(self, flags: int, number: int, data: bytes) -> None:
        stream = self._close_stream(number)
        if stream is None:
            self.on_unknown_stream(number, RST_STREAM)
        else:
            self.on_reset(stream, int.from_bytes(data, "big"))

    def _receive_window_update(self, flags: int, number: int, data: bytes) -> None:
        more = int.from_bytes(data, "big") & MAX_INT31
        if number == 0:
            self._window += more
            if not more:
                raise Http2ConnectionError("a window that is no larger")
            if self._window > MAX_INT31:
                raise Http2ConnectionError("a window that is too large", FLOW_CONTROL_ERROR)
            if self._stalled:
                self._send_stalled()
            return
        stream = self._streams.get(number)
        if stream is None:
            self.on_unknown_stream(number, WINDOW_UPDATE)
            return
        if not more:
            self.on_stream_error(stream, Http2StreamError("a window that is no larger"))
            return
        try:
            self._enlarge_window(stream, more)
        except Http2ConnectionError as error:
            self.on_stream_error(stream, Http2StreamError(str(error), error.code))
            return
        if number in self._stalled:
            self._send_more(stream, [])

    def _enlarge_window(self, stream: S, more: int) -> None:
        window = stream.send_window + more
        if window > self._max_send_window:
            if window + self._initial_window > MAX_INT31:
                raise Http2ConnectionError("a window that is too large", FLOW_CONTROL_ERROR)
            self._max_send_window = window
        stream.send_window = window

    def _check_windows(self) -> None:
        """Look for the largest window again, which may be that of a closed stream. Raises Http2ConnectionError."""
        self._max_send_window = max((stream.send_window for stream in self._streams.values()), default=0)
        if self._initial_window + self._max_send_window > MAX_INT31:
            raise Http2ConnectionError("a window that is too large", FLOW_CONTROL_ERROR)

    # ---------------------------------------------------------------------------------------------------------- sending

    def headers_frame(self, stream: int, block: bytes, flags: int = END_HEADERS) -> bytes:
        """A frame of headers."""
        if self._table_update:  # in each, for they may leave in another order than they are made
            block = self._table_update + block
        size = len(block)
        return FRAME_HEADER.pack(size >> 8, size & 0xFF, HEADERS, flags, stream) + block

    def grant(self, stream: S, count: int) -> None:
        """Let `count` bytes more come of a stream."""
        stream.receive_window += count
        self.write(short_frame(WINDOW_UPDATE, stream.number, count))

    def _close_stream(self, number: int) -> S | None:
        """Forget a stream with all that it still holds. -> the stream, None if it is closed already."""
        self._stalled.pop(number, None)
        stream = self._streams.pop(number, None)
        if stream is not None and stream.incoming is not None and stream.incoming.room:
            stream.incoming.close()
        return stream

    def _reset(self, stream: S, code: int) -> None:
        """Close a stream with RST_STREAM."""
        if self._close_stream(stream.number) is not None:
            self.write(short_frame(RST_STREAM, stream.number, code))

    def send_message(self, stream: S, head: bytes, parts: Iterable[Buffer], size: int) -> None:
        """Send some frames and a message of `size` bytes, as soon as there is a window for it, and `last_frames`."""
        prefix, whole = MESSAGE_PREFIX.pack(0, size), size + PREFIX_BYTES
        room = stream.send_window + self._initial_window
        if whole <= min(self._window, room, self._max_sent_frame_bytes, JOINED_BYTES) and not stream.unsent:
            self._budget.earned += 4 + (whole >> 12)
            self._window -= whole
            stream.send_window -= whole
            data = FRAME_HEADER.pack(whole >> 8, whole & 0xFF, DATA, stream.end_flag, stream.number)
            self.write(b"".join([head, data, prefix, *parts, stream.last_frames]))
            return
        stream.unsent.append(memoryview(prefix))
        stream.unsent.extend([memoryview(part).cast("B") for part in parts if len(part)])
        self._send_more(stream, [head] if head else [])

    def send_piece(self, stream: S, head: bytes, parts: Iterable[Buffer]) -> None:
        """Send some frames and a part of a message, of which more follows, as soon as there is a window for it."""
        stream.unsent.extend([memoryview(part).cast("B") for part in parts if len(part)])
        self._send_more(stream, [head] if head else [])

    def send_last(self, stream: S, frames: bytes) -> None:
        """Send a stream's last frames, behind all that is unsent."""
        if stream.unsent:
            stream.last_frames = frames
        else:
            self.write(frames)

    def _send_more(self, stream: S, pieces: list[Buffer]) -> None:
        """Send pieces, and of what is unsent as much as the windows and the kernel take."""
        self._send_turn(stream, pieces)
        while stream.unsent and self._window > 0 and not self.is_paused and self._stream_room(stream) > 0:
            self._send_turn(stream, [])

    def _stream_room(self, stream: S) -> int:
        """How much the stream's own window lets be sent."""
        return stream.send_window + self._initial_window

    def _send_turn(self, stream: S, pieces: list[Buffer]) -> None:
        unsent = stream.unsent
        number, turn = stream.number, 0 if self.is_paused else _MAX_TURN_BYTES
        while unsent and (room := min(self._window, self._stream_room(stream), self._max_sent_frame_bytes, turn)) > 0:
            size = _move(unsent, room, stream, pieces)
            self._budget.earned += 4 + (size >> 12)  # it has a reason to answer by windows, and by pings
            self._window -= size
            stream.send_window -= size
            stream.idle_sweeps = 0
            turn -= size
        if unsent:
            self._stalled.pop(number, None)  # who has just been served is the last in turn
            self._stalled[number] = stream
        else:
            if stream.last_frames:
                pieces.append(stream.last_frames)
        has_waited = not unsent and self._stalled.pop(number, None) is not None
        if pieces and self._transport is not None:
            if self._responses:
                self.write(b"")
            self._transport.writelines(pieces)
        if has_waited:
            self.on_sent(stream)

    def _send_stalled(self) -> None:
        """Let the streams that wait take turns until none of them can go on."""
        can_go_on = True
        while can_go_on:
            can_go_on = False
            for stream in [*self._stalled.values()]:
                if self._window <= 0 or self.is_paused:
                    return
                if self._stream_room(stream) > 0:
                    self._send_turn(stream, [])
                    can_go_on = True

    def _respond(self, data: bytes) -> None:
        """Write a frame that answers one; those of one read leave together. Raises Http2ConnectionError where nobody
        reads them.
        """
        if self.is_paused:
            self._unread_responses += 1
            if self._unread_responses > _MAX_UNREAD_RESPONSES:
                raise Http2ConnectionError("too many frames that nobody reads the answers of", ENHANCE_YOUR_CALM)
        if self._is_reading:
            self._responses.append(data)
        else:
            self.write(data)

    def write(self, data: bytes) -> None:
        if self._responses:
            data = b"".join([*self._responses, data])
            self._responses.clear()
        if self._transport is not None:
            self._transport.write(data)

    def _close(self) -> None:
        """Close the connection behind all that has been written."""
        if self._responses:
            self.write(b"")
        if self._transport is not None:
            self._transport.close()

    def pause_writing(self) -> None:
        self.is_paused = True

    def resume_writing(self) -> None:
        self.is_paused = False
        self._unread_responses = 0
        self._send_stalled()


def _move(unsent: deque[memoryview], room: int, stream: Stream, pieces: list[Buffer]) -> int:
    """Move a frame of at most `room` bytes from what is unsent to the pieces. -> how many bytes."""
    begin, size = len(pieces), 0
    pieces.append(b"")
    while unsent and size < room:
        part = unsent.popleft()
        if len(part) > room - size:
            unsent.appendleft(part[room - size :])
            part = part[: room - size]
        pieces.append(part)
        size += len(part)
    pieces[begin] = frame_header(size, DATA, 0 if unsent else stream.end_flag, stream.number)
    return size


def _bad_size(kind: int, payload: bytes) -> Http2ConnectionError:
    return Http2ConnectionError(f"{len(payload)} bytes in a frame of kind {kind}", FRAME_SIZE_ERROR)


@dataclass(frozen=True, slots=True)
class FrameRule:
    """What holds of all frames of one type."""

    receive: Callable[[Http2[Any], int, int, bytes], None] | None
    """Takes flags, stream and payload. None: the frame is ignored."""
    names_stream: bool | None = None
    """True: the frame is of a stream, whose number is not 0. False: it is of the connection. None: it is of either."""
    size: int | None = None
    """The payload's size, None where it varies."""
    spends_budget: bool = True
    """The frame carries nothing and counts against the FrameBudget. Of the others, those that are empty do."""


FRAME_RULES: Final[Mapping[int, FrameRule]] = {
    # Whole DATA and HEADERS do not come by here: see `_receive`.
    DATA: FrameRule(Http2._receive_padded_data, names_stream=True, spends_budget=False),
    HEADERS: FrameRule(Http2._receive_headers, names_stream=True, spends_budget=False),
    PRIORITY_FRAME: FrameRule(None, names_stream=True, size=5),
    RST_STREAM: FrameRule(Http2._receive_rst_stream, names_stream=True, size=4),
    SETTINGS: FrameRule(Http2._receive_settings, names_stream=False),
    PUSH_PROMISE: FrameRule(Http2._receive_push_promise),
    PING: FrameRule(Http2._receive_ping, names_stream=False, size=8),
    GOAWAY: FrameRule(Http2._receive_goaway, names_stream=False),
    WINDOW_UPDATE: FrameRule(Http2._receive_window_update, size=4),
    CONTINUATION: FrameRule(Http2._receive_continuation, names_stream=True, spends_budget=False),
}
"""All frames. Source: RFC 9113, 6."""
_UNKNOWN_FRAME: Final = FrameRule(None)
"""Source: RFC 9113, 5.5."""

"""What RFC 9113 says of single frames, section by section, and of each kind of frame in each state of a stream.

Each case is bytes on a connection that has begun, and the reaction: a connection error or a stream error with its code,
or nothing, whereupon the connection goes on. A stream error may be a connection error, says 5.4.2; which of the two we
have made of it is written down, too.
"""

from typing import NamedTuple

import h2_wire as h2
import pytest
from h2_core import ASK, BEGUN, HOLD, Core
from h2_wire import data, frame, in_frames, literal, message, request, reset, settings, window

from tensorgate.gateway.wire.http2_frames import (
    ACK,
    COMPRESSION_ERROR,
    CONTINUATION,
    DATA,
    DEFAULT_WINDOW,
    END_HEADERS,
    END_STREAM,
    FLOW_CONTROL_ERROR,
    FRAME_SIZE_ERROR,
    GOAWAY,
    HEADERS,
    MAX_INT31,
    NO_ERROR,
    PADDED,
    PING,
    PRIORITY,
    PRIORITY_FRAME,
    PROTOCOL_ERROR,
    PUSH_PROMISE,
    REFUSED_STREAM,
    RST_STREAM,
    SETTINGS,
    STREAM_CLOSED,
    WINDOW_UPDATE,
)


class Connection(NamedTuple):
    """The whole connection ends, for this reason."""

    code: int


class Stream(NamedTuple):
    """Stream 1 ends, for this reason."""

    code: int


class Refused(NamedTuple):
    """Stream 1 is answered with a status of gRPC, and no model has heard of it."""

    status: int


BROKEN, MALFORMED = Connection(PROTOCOL_ERROR), Stream(PROTOCOL_ERROR)
GOES_ON = None
"""Nothing ends: what was said is fine, or to be ignored."""
Reaction = Connection | Stream | Refused | None

HELD = literal(request(HOLD))
HEAD = request(ASK)
OPEN = in_frames(1, HELD)
CUT = frame(HEADERS, 0, 1, HELD)
WHOLE = in_frames(1, literal(HEAD)) + data(1, message(b"hello"), end=True)
ENDED = OPEN + data(1, message(b"x"), end=True)
"""The client has nothing more to say; it waits."""


def head(*more: tuple[str, str], without: tuple[str, ...] = (), first: tuple[tuple[str, str], ...] = ()) -> bytes:
    """A call whose headers differ from the usual ones."""
    fields = [*first, *((name, value) for name, value in HEAD if name not in without), *more]
    return in_frames(1, literal(fields)) + data(1, message(b"hello"), end=True)


def sized(kind: int, stream: int, size: int, flags: int = 0) -> bytes:
    return frame(kind, flags, stream, bytes(size))


CASES: dict[str, tuple[bytes, Reaction]] = {
    # ------------------------------------------------------------------------------------------------- frames: 4, 5.5
    "4.1 unknown kinds": (frame(0x63, 0xFF, 0, b"?") + OPEN + frame(0x64, 0xFF, 1, b"?"), GOES_ON),
    "4.1 unknown flags": (frame(PING, 0xFE, 0, b"12345678"), GOES_ON),
    "4.1 the reserved bit": (frame(HEADERS, END_HEADERS, 1 << 31 | 1, HELD), GOES_ON),
    "4.2 DATA larger than allowed": (OPEN + h2.head_of((1 << 20) + 1, DATA, 0, 1), Connection(FRAME_SIZE_ERROR)),
    "4.2 HEADERS larger than allowed": (h2.head_of((1 << 20) + 1, HEADERS, 4, 1), Connection(FRAME_SIZE_ERROR)),
    "4.3 a block that is none": (in_frames(1, b"\xff\xff\xff\xff\xff\xff"), Connection(COMPRESSION_ERROR)),
    "4.3 a block of a closed stream that is none": (WHOLE + in_frames(1, b"\x80"), Connection(COMPRESSION_ERROR)),
    "4.3 PRIORITY within a block": (CUT + sized(PRIORITY_FRAME, 1, 5), BROKEN),
    "4.3 PING within a block": (CUT + sized(PING, 0, 8), BROKEN),
    "4.3 HEADERS of another within a block": (CUT + in_frames(3, HELD), BROKEN),
    "5.5 an unknown kind within a block": (CUT + frame(0x63, 0, 1), BROKEN),
    "5.1.1 a server's number": (in_frames(2, HELD), BROKEN),
    "5.1.1 a number that was passed over": (in_frames(5, HELD) + in_frames(3, HELD), Connection(STREAM_CLOSED)),
    "5.1.2 too many": (b"".join(in_frames(n, HELD) for n in range(3, 23, 2)) + in_frames(25, HELD), GOES_ON),
    # ---------------------------------------------------------------------------------------------------------- kinds
    "6.1 DATA of no stream": (data(0, b"x"), BROKEN),
    "6.1 padding as long as DATA": (OPEN + frame(DATA, PADDED, 1, b"\2x"), BROKEN),
    "6.1 padding without its length": (OPEN + frame(DATA, PADDED, 1), BROKEN),
    "6.1 nothing but padding": (OPEN + frame(DATA, PADDED, 1, b"\1x"), GOES_ON),
    "6.2 HEADERS of no stream": (in_frames(0, HELD), BROKEN),
    "6.2 padding as long as HEADERS": (frame(HEADERS, PADDED | END_HEADERS, 1, b"\2x"), BROKEN),
    "6.2 a priority that is cut": (frame(HEADERS, PRIORITY | END_HEADERS, 1, b"\0\0"), BROKEN),
    "6.2 a priority": (frame(HEADERS, PRIORITY | END_HEADERS, 1, bytes(5) + HELD), GOES_ON),
    "6.3 PRIORITY of no stream": (sized(PRIORITY_FRAME, 0, 5), BROKEN),
    "6.3 PRIORITY of four bytes": (sized(PRIORITY_FRAME, 1, 4), Connection(FRAME_SIZE_ERROR)),  # may be the stream's
    "6.4 RST_STREAM of no stream": (reset(0), BROKEN),
    "6.4 RST_STREAM of three bytes": (OPEN + sized(RST_STREAM, 1, 3), Connection(FRAME_SIZE_ERROR)),
    "6.4 an unknown reason": (OPEN + reset(1, 12345), GOES_ON),
    "6.5 SETTINGS of a stream": (frame(SETTINGS, 0, 1), BROKEN),
    "6.5 half a setting": (sized(SETTINGS, 0, 7), Connection(FRAME_SIZE_ERROR)),
    "6.5 ACK of something": (sized(SETTINGS, 0, 6, ACK), Connection(FRAME_SIZE_ERROR)),
    "6.5 ACK of nothing that was sent": (frame(SETTINGS, ACK), GOES_ON),
    "6.5.2 half a push": (settings((h2.PUSH, 2)), BROKEN),
    "6.5.2 a window that is too large": (settings((h2.WINDOW, MAX_INT31 + 1)), Connection(FLOW_CONTROL_ERROR)),
    "6.5.2 the largest window": (settings((h2.WINDOW, MAX_INT31)), GOES_ON),
    "6.5.2 frames that are too small": (settings((h2.FRAME, 16_383)), BROKEN),
    "6.5.2 frames that are too large": (settings((h2.FRAME, 1 << 24)), BROKEN),
    "6.5.2 frames of the smallest and the largest": (settings((h2.FRAME, 16_384), (h2.FRAME, (1 << 24) - 1)), GOES_ON),
    "6.5.2 an unknown setting": (settings((0, 1), (0x99, MAX_INT31)), GOES_ON),
    "6.5.3 of one setting twice the last counts": (settings((h2.WINDOW, MAX_INT31), (h2.WINDOW, 0)) + OPEN
                                                   + window(1, MAX_INT31), GOES_ON),
    "6.6 a push of the client's": (frame(PUSH_PROMISE, END_HEADERS, 1, b"\0\0\0\2" + HELD), BROKEN),
    "6.7 PING of a stream": (frame(PING, 0, 1, bytes(8)), BROKEN),
    "6.7 PING of seven bytes": (sized(PING, 0, 7), Connection(FRAME_SIZE_ERROR)),
    "6.7 an answer that nobody asked for": (frame(PING, ACK, 0, b"whatever"), GOES_ON),
    "6.8 GOAWAY of a stream": (sized(GOAWAY, 1, 8), BROKEN),
    "6.8 GOAWAY that is cut": (sized(GOAWAY, 0, 7), Connection(FRAME_SIZE_ERROR)),
    "6.8 GOAWAY with a text": (sized(GOAWAY, 0, 8) + WHOLE, GOES_ON),
    "6.9 a window of nothing": (OPEN + window(1, 0), MALFORMED),
    "6.9 a connection's window of nothing": (window(0, 0), BROKEN),
    "6.9 WINDOW_UPDATE of three bytes": (sized(WINDOW_UPDATE, 0, 3), Connection(FRAME_SIZE_ERROR)),
    "6.9 the reserved bit": (OPEN + window(1, 1 << 31 | 1), GOES_ON),
    "6.9.1 the largest windows": (
        OPEN + window(0, MAX_INT31 - DEFAULT_WINDOW) + window(1, MAX_INT31 - DEFAULT_WINDOW), GOES_ON,
    ),
    "6.9.1 a window that is too large": (OPEN + window(1, MAX_INT31), Stream(FLOW_CONTROL_ERROR)),
    "6.9.1 a connection's window that is too large": (window(0, MAX_INT31), Connection(FLOW_CONTROL_ERROR)),
    "6.9.1 more than the window": (OPEN + data(1, b"\0\0\x50\0\0")
                                   + data(1, bytes(1 << 20)) * 6, Stream(FLOW_CONTROL_ERROR)),
    "6.9.2 a window that settings make too large": (OPEN + window(1, 1) + settings((h2.WINDOW, MAX_INT31)),
                                                    Connection(FLOW_CONTROL_ERROR)),
    "6.10 CONTINUATION of nothing": (frame(CONTINUATION, END_HEADERS, 1, HELD), BROKEN),
    "6.10 CONTINUATION behind the end": (OPEN + frame(CONTINUATION, END_HEADERS, 1, HELD), BROKEN),
    "6.10 CONTINUATION of no stream": (CUT + frame(CONTINUATION, 4, 0), BROKEN),
    "6.10 CONTINUATION of another": (CUT + frame(CONTINUATION, 4, 3), BROKEN),
    "6.10 many of them": (in_frames(1, HELD, 0, 3), GOES_ON),
    # ----------------------------------------------------------------------------------------------------- messages: 8
    "8.1 headers in mid-stream": (OPEN + in_frames(1, literal([("x", "y")])), MALFORMED),
    "8.1 a pseudo header in trailers": (OPEN + in_frames(1, literal([(":path", "/")]), END_STREAM), MALFORMED),
    "8.1.1 less than it said": (head(("content-length", "11")), MALFORMED),
    "8.1.1 more than it said": (head(("content-length", "9")), MALFORMED),
    "8.1.1 as much as it said": (head(("content-length", "10")), GOES_ON),
    "8.1.1 5,000 digits": (head(("content-length", "1" * 5000)), MALFORMED),
    "8.1.1 two lengths": (head(("content-length", "10"), ("content-length", "11")), MALFORMED),
    "8.2.1 a name in upper case": (head(("X-A", "b")), MALFORMED),
    "8.2.1 a name with a space": (head(("x a", "b")), MALFORMED),
    "8.2.1 an empty name": (head(("", "b")), MALFORMED),
    "8.2.1 a value with an end of line": (head(("x-a", "b\r\nc: d")), MALFORMED),
    "8.2.2 connection": (head(("connection", "close")), MALFORMED),
    "8.2.2 keep-alive": (head(("keep-alive", "5")), MALFORMED),
    "8.2.2 proxy-connection": (head(("proxy-connection", "close")), MALFORMED),
    "8.2.2 transfer-encoding": (head(("transfer-encoding", "chunked")), MALFORMED),
    "8.2.2 upgrade": (head(("upgrade", "h2c")), MALFORMED),
    "8.2.2 te": (head(("te", "gzip"), without=("te",)), MALFORMED),
    "8.3 an unknown pseudo header": (head(first=((":colour", "red"),)), MALFORMED),
    "8.3 an answer's pseudo header": (head(first=((":status", "200"),)), MALFORMED),
    "8.3 a pseudo header behind others": (head((":authority", "x"), without=(":authority",)), MALFORMED),
    "8.3.1 no method": (head(without=(":method",)), MALFORMED),
    "8.3.1 no scheme": (head(without=(":scheme",)), MALFORMED),
    "8.3.1 no path": (head(without=(":path",)), MALFORMED),
    "8.3.1 an empty path": (head(without=(":path",), first=((":path", ""),)), MALFORMED),
    "8.3.1 two paths": (head(first=((":path", ASK),)), MALFORMED),
    "8.3.1 no authority": (head(without=(":authority",)), GOES_ON),
    "8.3.1 a host that is another": (head(("host", "elsewhere")), MALFORMED),
    "8.3.1 the same host": (head(("host", "test")), GOES_ON),
}  # fmt: skip


def reaction(core: Core) -> Reaction:
    if core.broken is not None:
        assert core.broken != NO_ERROR, "RFC 9113, 5.4.1: it says why"
        return Connection(core.broken)
    stream = core.wire.streams[1]
    if stream.reset is not None:
        assert len(stream.resets) == 1
        return Stream(stream.reset)
    return Refused(stream.status) if stream.status else GOES_ON


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("step", [1, 7, 1 << 20], ids=["bytewise", "in sevens", "at once"])
def test_a_case(name: str, step: int) -> None:
    said, wanted = CASES[name]
    if len(said) > 1 << 20 and step < 1 << 20:
        step = 60_000
    core = Core(streams=10)
    whole = BEGUN + said
    for at in range(0, len(whole), step):
        core.feed(whole[at : at + step])
    assert reaction(core) == wanted
    if core.broken is None:
        if core.open:
            core.feed(reset(1))
        before = len(core.calls)
        core.feed(
            settings((h2.WINDOW, DEFAULT_WINDOW)),
            in_frames(1001, literal(HEAD)),
            data(1001, message(b"after"), end=True),
        )
        if name.startswith("5.1.2"):
            assert core.wire.streams[25].reset == REFUSED_STREAM
            return
        assert core.wire.streams[1001].status == 0
        assert len(core.calls) == before + 1


BEGINNINGS = {
    "3.4 no preface": (settings() + WHOLE, PROTOCOL_ERROR),
    "3.4 another protocol": (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n" + bytes(30), PROTOCOL_ERROR),
    "3.4 something before SETTINGS": (h2.MAGIC + sized(PING, 0, 8), PROTOCOL_ERROR),
    "3.4 a call before SETTINGS": (h2.MAGIC + WHOLE, PROTOCOL_ERROR),
    "3.4 data before SETTINGS": (h2.MAGIC + data(1, b"x"), PROTOCOL_ERROR),
}


@pytest.mark.parametrize("name", BEGINNINGS)
def test_a_beginning(name: str) -> None:
    said, code = BEGINNINGS[name]
    assert Core().feed(said).broken == code


# -------------------------------------------------------------------------------------------------------------- states

STATES = {
    "idle": b"",
    "open": OPEN,
    "half-closed": ENDED,
    "reset by the client": OPEN + reset(1),
    "answered": WHOLE,
    "answered before its end": in_frames(1, literal(request("/no/such"))),
}
"""What brings stream 1 there."""
FRAMES = {
    "DATA": data(1, b"\0"),
    "HEADERS": in_frames(1, HELD, END_STREAM),
    "PRIORITY": sized(PRIORITY_FRAME, 1, 5),
    "RST_STREAM": reset(1),
    "WINDOW_UPDATE": window(1, 1),
    "CONTINUATION": frame(CONTINUATION, END_HEADERS, 1),
}
TABLE: dict[str, dict[str, Reaction]] = {
    "idle": {"DATA": BROKEN, "HEADERS": Refused(13), "PRIORITY": GOES_ON, "RST_STREAM": BROKEN,
             "WINDOW_UPDATE": BROKEN, "CONTINUATION": BROKEN},
    "open": {"DATA": GOES_ON, "HEADERS": MALFORMED, "PRIORITY": GOES_ON, "RST_STREAM": GOES_ON,
             "WINDOW_UPDATE": GOES_ON, "CONTINUATION": BROKEN},
    "half-closed": {"DATA": Stream(STREAM_CLOSED), "HEADERS": Stream(STREAM_CLOSED), "PRIORITY": GOES_ON,
                    "RST_STREAM": GOES_ON, "WINDOW_UPDATE": GOES_ON, "CONTINUATION": BROKEN},
    "reset by the client": {"DATA": Stream(STREAM_CLOSED), "HEADERS": Connection(STREAM_CLOSED), "PRIORITY": GOES_ON,
                            "RST_STREAM": GOES_ON, "WINDOW_UPDATE": GOES_ON, "CONTINUATION": BROKEN},
    "answered": {"DATA": Stream(STREAM_CLOSED), "HEADERS": Connection(STREAM_CLOSED), "PRIORITY": GOES_ON,
                 "RST_STREAM": GOES_ON, "WINDOW_UPDATE": GOES_ON, "CONTINUATION": BROKEN},
    # What was under way when the answer ended is ignored: the reset said that no more is wanted.
    "answered before its end": {"DATA": Stream(NO_ERROR), "HEADERS": Stream(NO_ERROR), "PRIORITY": Stream(NO_ERROR),
                                "RST_STREAM": Stream(NO_ERROR), "WINDOW_UPDATE": Stream(NO_ERROR),
                                "CONTINUATION": BROKEN},
}  # fmt: skip
"""RFC 9113, 5.1: state x frame."""


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("kind", FRAMES)
def test_a_frame_in_a_state(state: str, kind: str) -> None:
    core = Core().feed(BEGUN, STATES[state])
    core.feed(FRAMES[kind])
    assert reaction(core) == TABLE[state][kind]

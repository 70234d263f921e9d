"""A peer that breaks HTTP/2's rules at a gRPC port: what it gets, and that nobody else notices.

Each fault is followed by an ordinary call. A row says what RFC 9113 wants then: the connection ends, or the stream by a
reset or a status; both where a stream's error may as well end the connection. grpc.aio minds less.
"""

import asyncio
import contextlib
from dataclasses import dataclass

import h2_wire as h2
import pytest
from h2_wire import Wire, connect, data, frame, in_frames, literal, message, number, request, settings, window
from toy_rpc import CHAT, ECHO, HOLD, Toy
from waiting import steps

from tensorgate.gateway.wire.http2_frames import (
    ACK,
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HEADERS,
    MAX_INT31,
    PADDED,
    PING,
    PRIORITY,
    PUSH_PROMISE,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
)

CONNECTION, STREAM, IGNORED = "connection", "stream", "ignored"
BLOCK = literal(request(ECHO))
OPEN = in_frames(1, literal(request(CHAT)))
"""A stream that waits for more."""
WHOLE = in_frames(1, BLOCK) + data(1, message(b"hello"), end=True)


@pytest.fixture
def own_server() -> bool:
    """grpc.aio ignores many of these."""
    return True


@dataclass(frozen=True)
class Fault:
    """What is sent, and what must come of it."""

    sent: bytes
    wanted: str


def asked(*more: tuple[str, str], **changes: object) -> bytes:
    """A whole call with these headers."""
    return in_frames(1, literal([*request(ECHO, **changes), *more])) + data(1, message(b"hello"), end=True)  # type: ignore[arg-type]


def led(*before: tuple[str, str]) -> bytes:
    return in_frames(1, literal([*before, *request(ECHO)])) + data(1, message(b"hello"), end=True)


FAULTS = {
    # Frames where they do not belong: RFC 9113, 5.1 and 6.
    "DATA on stream 0": Fault(data(0, b"x"), CONNECTION),
    "DATA on an idle stream": Fault(data(5, b"x"), CONNECTION),
    "DATA on an idle stream of the server": Fault(data(2, b"x"), CONNECTION),
    "DATA after the end": Fault(WHOLE + data(1, b"x"), "stream connection"),
    "DATA after a reset by its sender": Fault(OPEN + h2.reset(1) + data(1, b"x"), "stream connection"),
    "HEADERS on stream 0": Fault(in_frames(0, BLOCK), CONNECTION),
    "HEADERS on an even stream": Fault(in_frames(2, BLOCK, END_STREAM), CONNECTION),
    "HEADERS on a lower stream": Fault(in_frames(5, literal(request(CHAT))) + in_frames(3, BLOCK), CONNECTION),
    "HEADERS on a stream that was": Fault(WHOLE + in_frames(1, BLOCK, END_STREAM), "stream connection"),
    "HEADERS in mid-stream without an end": Fault(OPEN + in_frames(1, literal([("x", "1")])), "stream connection"),
    "RST_STREAM on stream 0": Fault(h2.reset(0), CONNECTION),
    "RST_STREAM on an idle stream": Fault(h2.reset(7), CONNECTION),
    "RST_STREAM of 3 bytes": Fault(OPEN + frame(RST_STREAM, 0, 1, b"\0\0\0"), CONNECTION),
    "RST_STREAM of 5 bytes": Fault(OPEN + frame(RST_STREAM, 0, 1, bytes(5)), CONNECTION),
    "PRIORITY of 4 bytes": Fault(OPEN + frame(h2.PRIORITY_FRAME, 0, 1, bytes(4)), "stream connection"),
    "PRIORITY on stream 0": Fault(frame(h2.PRIORITY_FRAME, 0, 0, bytes(5)), CONNECTION),
    "PUSH_PROMISE of a client": Fault(OPEN + frame(PUSH_PROMISE, END_HEADERS, 1, b"\0\0\0\2" + BLOCK), CONNECTION),
    "GOAWAY on a stream": Fault(OPEN + frame(GOAWAY, 0, 1, bytes(8)), CONNECTION),
    "GOAWAY of 4 bytes": Fault(frame(GOAWAY, 0, 0, bytes(4)), CONNECTION),
    "PING on a stream": Fault(OPEN + frame(PING, 0, 1, bytes(8)), CONNECTION),
    "PING of 7 bytes": Fault(frame(PING, 0, 0, bytes(7)), CONNECTION),
    "PING of 9 bytes": Fault(frame(PING, 0, 0, bytes(9)), CONNECTION),
    # Sizes and padding: 4.2, 6.1, 6.2.
    "DATA of padding alone, and none": Fault(OPEN + frame(DATA, PADDED, 1), CONNECTION),
    "DATA of more padding than frame": Fault(OPEN + frame(DATA, PADDED, 1, b"\5abcd"), CONNECTION),
    "HEADERS of more padding than frame": Fault(frame(HEADERS, END_HEADERS | PADDED, 1, b"\xffabcd"), CONNECTION),
    "HEADERS without room for priority": Fault(frame(HEADERS, END_HEADERS | PRIORITY, 1, b"\0\0"), CONNECTION),
    "HEADERS of padding and no priority": Fault(
        frame(HEADERS, END_HEADERS | PADDED | PRIORITY, 1, b"\1\0\0"), CONNECTION
    ),
    # Windows: 6.9.
    "WINDOW_UPDATE of 0": Fault(window(0, 0), CONNECTION),
    "WINDOW_UPDATE of 0 on a stream": Fault(OPEN + window(1, 0), "stream connection"),
    "WINDOW_UPDATE of 3 bytes": Fault(frame(WINDOW_UPDATE, 0, 0, bytes(3)), CONNECTION),
    "WINDOW_UPDATE of 5 bytes": Fault(OPEN + frame(WINDOW_UPDATE, 0, 1, bytes(5)), CONNECTION),
    "WINDOW_UPDATE on an idle stream": Fault(window(9, 1), CONNECTION),
    "too large a window": Fault(window(0, MAX_INT31) * 2, CONNECTION),
    "too large a window of a stream": Fault(OPEN + window(1, MAX_INT31) * 2, "stream connection"),
    "too large a window by SETTINGS": Fault(
        OPEN + window(1, 1000) + settings((h2.WINDOW, MAX_INT31)), "stream connection"
    ),
    # Settings: 6.5.
    "SETTINGS of 5 bytes": Fault(frame(SETTINGS, 0, 0, bytes(5)), CONNECTION),
    "SETTINGS on a stream": Fault(OPEN + frame(SETTINGS, 0, 1), CONNECTION),
    "SETTINGS ACK that says something": Fault(frame(SETTINGS, ACK, 0, bytes(6)), CONNECTION),
    "SETTINGS of a push that is neither": Fault(settings((h2.PUSH, 2)), CONNECTION),
    "SETTINGS of too large a window": Fault(settings((h2.WINDOW, MAX_INT31 + 1)), CONNECTION),
    "SETTINGS of too small a frame": Fault(settings((h2.FRAME, 16_383)), CONNECTION),
    "SETTINGS of too large a frame": Fault(settings((h2.FRAME, 1 << 24)), CONNECTION),
    # Header blocks: 4.3, 6.10.
    "CONTINUATION first": Fault(frame(CONTINUATION, END_HEADERS, 1, BLOCK), CONNECTION),
    "CONTINUATION after the end": Fault(OPEN + frame(CONTINUATION, END_HEADERS, 1, BLOCK), CONNECTION),
    "CONTINUATION of another stream": Fault(
        frame(HEADERS, 0, 1, BLOCK[:9]) + frame(CONTINUATION, END_HEADERS, 3, BLOCK[9:]), CONNECTION
    ),
    "a frame within a header block": Fault(frame(HEADERS, 0, 1, BLOCK[:9]) + frame(PING, 0, 0, bytes(8)), CONNECTION),
    "an unknown frame within a header block": Fault(
        frame(HEADERS, 0, 1, BLOCK[:9]) + frame(0x63, 0, 0, b"x"), CONNECTION
    ),
    "a block that ends too soon": Fault(in_frames(1, BLOCK[:-1]), CONNECTION),
    "an index of 0": Fault(in_frames(1, b"\x80" + BLOCK), CONNECTION),
    "an index that is not there": Fault(in_frames(1, number(70, 7, 0x80) + BLOCK), CONNECTION),
    "a number without an end": Fault(in_frames(1, b"\xff" + b"\xff" * 20), CONNECTION),
    "a number of too many bits": Fault(in_frames(1, b"\xff" + b"\x80" * 9 + b"\1" + BLOCK), CONNECTION),
    "a text longer than the block": Fault(in_frames(1, b"\0\x7f\xff\xff\xff\x0fabc"), CONNECTION),
    "a table larger than allowed": Fault(in_frames(1, number(1 << 20, 5, 0x20) + BLOCK), CONNECTION),
    "a table resized at the end": Fault(in_frames(1, BLOCK + b"\x20"), "connection ignored"),
    "bad padding of Huffman's code": Fault(in_frames(1, b"\0\x82\x1c\x64" + b"\x81\0" + BLOCK), CONNECTION),
    "Huffman's end within": Fault(in_frames(1, b"\0\x01x\x84\xff\xff\xff\xff" + BLOCK), CONNECTION),
    # What is no request: 8.1, 8.2, 8.3.
    "names in upper case": Fault(asked(("X-Upper", "1")), STREAM),
    "a name of nothing": Fault(asked(("", "1")), STREAM),
    "a name with a space": Fault(asked(("a b", "1")), STREAM),
    "a name with a line break": Fault(asked(("a\nb", "1")), STREAM),
    "a name that is not ASCII": Fault(asked(("x-\xe9", "1")), STREAM),
    "a value with a line break": Fault(asked(("x-a", "1\r\nx-b: 2")), STREAM),
    "a value with a zero": Fault(asked(("x-a", "1\0")), STREAM),
    "no method": Fault(asked(without=[":method"]), STREAM),
    "no path": Fault(asked(without=[":path"]), STREAM),
    "no scheme": Fault(asked(without=[":scheme"]), STREAM),
    "two paths": Fault(led((":path", "/toy.Toy/Tell")), STREAM),
    "two methods": Fault(led((":method", "POST")), STREAM),
    "an unknown pseudo header": Fault(led((":colour", "red")), STREAM),
    "a status in a request": Fault(led((":status", "200")), STREAM),
    "a pseudo header after others": Fault(asked((":authority", "late"), without=[":authority"]), STREAM),
    "a pseudo header in trailers": Fault(
        OPEN + data(1, message(b"hello")) + in_frames(1, literal([(":path", "/")]), END_STREAM), STREAM
    ),
    "connection": Fault(asked(("connection", "keep-alive")), STREAM),
    "transfer-encoding": Fault(asked(("transfer-encoding", "chunked")), STREAM),
    "te of something else": Fault(asked(te="gzip"), STREAM),
    "too small a content-length": Fault(asked(("content-length", "3")), STREAM),
    "too large a content-length": Fault(asked(("content-length", "300")), STREAM),
    "a content-length that is no number": Fault(asked(("content-length", "-1")), STREAM),
    "a content-length of many digits": Fault(asked(("content-length", "9" * 5000)), STREAM),
    "a content-length that begins with many zeros": Fault(asked(("content-length", "0" * 5000 + "10")), STREAM),
    "two content-lengths": Fault(asked(("content-length", "10"), ("content-length", "10")), STREAM),
    "an empty path": Fault(in_frames(1, literal(request(""))) + data(1, message(b"hello"), end=True), STREAM),
    "a host that is not the authority": Fault(asked(("host", "elsewhere")), STREAM),
    "two hosts": Fault(asked(("host", "test"), ("host", "test")), STREAM),
}  # fmt: skip


async def outcome(wire: Wire) -> str:
    """What has come of it, once another call is answered, or none can be."""
    after = 1001
    wire.send(in_frames(after, BLOCK), data(after, message(b"after"), end=True))
    await wire.until(lambda: wire.streams[after].over or wire.goaway)
    if wire.closed or wire.goaway is not None:
        return CONNECTION
    assert wire.streams[after].body == b"after"
    broken = wire.streams[1]
    told = broken.status or broken.header(":status") not in (None, "200")
    return STREAM if told or broken.reset is not None else IGNORED


@pytest.mark.parametrize("name", FAULTS)
async def test_faults(name: str, toy: Toy) -> None:
    fault = FAULTS[name]
    wanted = {*fault.wanted.split()}
    async with await connect(toy.port) as other, await connect(toy.port) as wire:
        await other.settled()
        await wire.settled()
        wire.send(fault.sent)
        if wanted == {STREAM}:
            await wire.answer(1)
        found = await outcome(wire)
        assert found in wanted, (wire.goaway, dict(wire.streams))
        if found == CONNECTION:
            await wire.end()
            assert wire.goaway is None or wire.goaway[1] != 0, "RFC 9113, 5.4.1: it says why"
        assert (await other.call(ECHO, b"hello")).body == b"hello"
    await toy.until(lambda: not toy.model.open)


@pytest.mark.parametrize("kind", [DATA, HEADERS, SETTINGS, 0x63])
async def test_frames_larger_than_the_server_has_allowed(kind: int, toy: Toy) -> None:
    """It does not wait for their ends. Source: RFC 9113, 4.2."""
    async with await connect(toy.port) as other, await connect(toy.port) as wire:
        await wire.settled()
        size = wire.settings.get(h2.FRAME, h2.MIN_FRAME_BYTES) + 1
        assert size < 1 << 24, "frames of any size are too large"
        wire.send(OPEN, h2.head_of(size, kind, 0, 0 if kind == SETTINGS else 1), bytes(size))
        assert await outcome(wire) in ((CONNECTION, STREAM) if kind == DATA else (CONNECTION,))
        assert (await other.call(ECHO, b"hello")).body == b"hello"


HTTP1 = b"POST /toy.Toy/Echo HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhello"
BEGINNINGS = {
    "HTTP/1.1": HTTP1,
    "HTTP/1.1 GET": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    "HTTP/1.1 upgrade": b"GET / HTTP/1.1\r\nHost: x\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\n\r\n",
    "TLS": b"\x16\x03\x01\x00\xa5\x01\x00\x00\xa1\x03\x03" + bytes(160),
    "another preface": b"PRI * HTTP/2.1\r\n\r\nSM\r\n\r\n" + settings(),
    "zeros": bytes(1000),
    "lines": b"\r\n" * 100,
    "no preface": settings() + WHOLE,
    "no SETTINGS": h2.MAGIC + WHOLE,
}


@pytest.mark.parametrize("way", BEGINNINGS)
async def test_beginnings(way: str, toy: Toy) -> None:
    """A connection that does not begin as HTTP/2 ends at once, and with it nothing else."""
    async with await connect(toy.port) as other, await h2.plug(toy.port) as wire:
        wire.send(BEGINNINGS[way])
        async with asyncio.timeout(h2.WITHIN_S):
            with contextlib.suppress(ConnectionError):
                while await wire.reader.read(1 << 16):
                    """Whatever it says before it goes."""
        assert toy.model.submitted == 0
        assert (await other.call(ECHO, b"hello")).body == b"hello"


@pytest.mark.parametrize("cut", [0, 1, 10, 23, 24, 30])
async def test_a_beginning_that_breaks_off(cut: int, toy: Toy) -> None:
    async with await h2.plug(toy.port) as wire, await connect(toy.port) as other:
        wire.send((h2.MAGIC + settings())[:cut])
        wire.hang_up()
        async with asyncio.timeout(h2.WITHIN_S):
            with contextlib.suppress(ConnectionError):
                while await wire.reader.read(1 << 16):
                    """Its SETTINGS, perhaps."""
        assert (await other.call(ECHO, b"hello")).body == b"hello"


async def test_a_half_closed_connection_may_still_be_answered(toy: Toy) -> None:
    """TCP's end of a client that wants to hear no more, or only says no more: the work ends, or is answered."""
    async with await connect(toy.port) as wire, await connect(toy.port) as other:
        stream = wire.ask(HOLD, b"hello")
        await toy.until(lambda: toy.model.open)
        wire.hang_up()
        assert (await other.call(ECHO, b"hello")).body == b"hello"
        await steps()
        toy.model.go.set()
        await wire.until(lambda: wire.streams[stream].over)
        assert wire.closed or wire.streams[stream].status in (0, 14)
        await wire.end()
    await toy.until(lambda: not toy.model.open)

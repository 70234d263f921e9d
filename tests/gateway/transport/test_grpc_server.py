"""Calls over a gRPC port, by their bytes: whatever way a client puts a call into frames, it gets the same answer."""

import asyncio
import zlib

import h2_wire as h2
import hpack
import pytest
from h2_wire import Wire, connect, data, frame, in_frames, literal, message, number, request, settings
from toy_rpc import ECHO, FAIL, HOLD, TELL, Toy

from tensorgate.gateway.wire.http2_frames import DATA, END_HEADERS, END_STREAM, HEADERS, PADDED, PING, PRIORITY

HEAD = request(ECHO)
BLOCK = literal(HEAD)
WHOLE = message(b"hello")
LAST = data(1, WHOLE, end=True)


def padded(kind: int, flags: int, payload: bytes, padding: int, before: bytes = b"") -> bytes:
    return frame(kind, flags | PADDED, 1, bytes([padding]) + before + payload + bytes(padding))


def huffman(text: str) -> bytes:
    codes = hpack.huffman_constants
    coded = hpack.huffman.HuffmanEncoder(codes.REQUEST_CODES, codes.REQUEST_CODES_LENGTH).encode(text.encode())
    return number(len(coded), 7, 0x80) + coded


CALLS = {
    "plain": in_frames(1, BLOCK) + LAST,
    "huffman": in_frames(1, b"".join(b"\0" + huffman(name) + huffman(value) for name, value in HEAD)) + LAST,
    "remembered": in_frames(1, hpack.Encoder().encode(HEAD)) + LAST,
    "never indexed": in_frames(1, b"".join(b"\x10" + literal([pair])[1:] for pair in HEAD)) + LAST,
    "table resized": in_frames(1, number(0, 5, 0x20) + number(4096, 5, 0x20) + hpack.Encoder().encode(HEAD)) + LAST,
    "continuation": in_frames(1, BLOCK, size=50) + LAST,
    "continuation of single bytes": in_frames(1, BLOCK, size=1) + LAST,
    "empty continuation": frame(HEADERS, 0, 1, BLOCK) + frame(h2.CONTINUATION, END_HEADERS, 1) + LAST,
    "padded headers": padded(HEADERS, END_HEADERS, BLOCK, 17) + LAST,
    "padding of none": padded(HEADERS, END_HEADERS, BLOCK, 0) + padded(DATA, END_STREAM, WHOLE, 0),
    "priority in headers": frame(HEADERS, END_HEADERS | PRIORITY, 1, b"\0\0\0\0\x10" + BLOCK) + LAST,
    "padding and priority": padded(HEADERS, END_HEADERS | PRIORITY, BLOCK, 255, b"\x80\0\0\0\0") + LAST,
    "padded data": in_frames(1, BLOCK) + padded(DATA, END_STREAM, WHOLE, 255),
    "padding alone": in_frames(1, BLOCK) + padded(DATA, 0, b"", 9) + LAST,
    "an empty frame ends it": in_frames(1, BLOCK) + data(1, WHOLE) + data(1, end=True),
    "padding ends it": in_frames(1, BLOCK) + data(1, WHOLE) + padded(DATA, END_STREAM, b"", 5),
    "empty frames between": in_frames(1, BLOCK) + data(1) * 5 + data(1, WHOLE[:3]) + data(1) * 5
    + data(1, WHOLE[3:], end=True),
    "a prefix in bytes": in_frames(1, BLOCK) + b"".join(data(1, WHOLE[n : n + 1]) for n in range(10))
    + data(1, end=True),
    "trailers": in_frames(1, BLOCK) + data(1, WHOLE) + in_frames(1, literal([("x-end", "1")]), END_STREAM),
    "unknown frames": frame(0x63, 0xFF, 0, b"?" * 99) + in_frames(1, BLOCK) + frame(0x63, 0xFF, 1, b"?") + LAST,
    "unknown flags": frame(HEADERS, END_HEADERS | 0x92, 1, BLOCK) + frame(DATA, END_STREAM | 0x96, 1, WHOLE),
    "reserved bits": frame(HEADERS, END_HEADERS, 1 << 31 | 1, BLOCK) + frame(DATA, END_STREAM, 1 << 31 | 1, WHOLE),
    "unknown settings": settings((0x99, 5), (0, 1)) + in_frames(1, BLOCK) + LAST,
    "priority frames": frame(h2.PRIORITY_FRAME, 0, 9, bytes(5)) + in_frames(1, BLOCK)
    + frame(h2.PRIORITY_FRAME, 0, 1, bytes(5)) + LAST,
    "priority update": frame(0x10, 0, 0, b"\0\0\0\x01u=1") + in_frames(1, BLOCK) + LAST,
    "a ping within": in_frames(1, BLOCK) + frame(PING, 0, 0, b"withinit") + LAST,
    "settings within": in_frames(1, BLOCK) + settings((h2.WINDOW, 1 << 20)) + LAST,
    "a reset of another": in_frames(1, BLOCK) + LAST + in_frames(3, BLOCK) + h2.reset(3),
    "a later stream first": in_frames(1001, BLOCK) + LAST.replace(b"\0\0\0\1", b"\0\0\x03\xe9", 1),
}  # fmt: skip


NOT_BY_GRPC_AIO = {way for way in CALLS if "padd" in way or way == "unknown flags"}
"""gRPC's own library takes neither padding nor unknown flags of DATA, and refuses the call."""


@pytest.mark.parametrize("way", CALLS)
async def test_all_ways_to_say_one_thing(way: str, toy: Toy) -> None:
    async with await connect(toy.port) as wire:
        wire.send(CALLS[way])
        if way in NOT_BY_GRPC_AIO and not toy.own_server:
            stream = wire.streams[1]
            await wire.until(lambda: stream.over)
            assert wire.closed or stream.reset == 1 or stream.status == 13 or stream.body == b"hello"
        else:
            assert (await wire.answer(1001 if "later" in way else 1)).body == b"hello"
            assert (await asked_again(wire)).body == b"hello"


async def asked_again(wire: Wire) -> h2.Stream:
    """On a higher stream, by a block whose table is the server's own."""
    wire.send(in_frames(2001, BLOCK), data(2001, WHOLE, end=True))
    return await wire.answer(2001)


async def test_the_last_stream_of_a_connection(toy: Toy) -> None:
    last = (1 << 31) - 1
    async with await connect(toy.port) as wire:
        wire.send(in_frames(last, BLOCK), data(last, WHOLE, end=True))
        assert (await wire.answer(last)).body == b"hello"
        await wire.echo()
        assert wire.pongs


async def test_every_cut_of_a_message_into_two_frames(toy: Toy) -> None:
    async with await connect(toy.port) as wire:
        for cut in range(len(WHOLE) + 1):
            stream = wire.open_stream(ECHO)
            wire.send(data(stream, WHOLE[:cut]), data(stream, WHOLE[cut:], end=True))
            assert (await wire.answer(stream)).body == b"hello"


async def test_bytes_that_come_one_by_one(toy: Toy) -> None:
    async with await connect(toy.port) as wire:
        for byte in CALLS["remembered"]:
            wire.send(bytes([byte]))
            await asyncio.sleep(0)
        assert (await wire.answer(1)).body == b"hello"


async def test_what_an_answer_says(toy: Toy) -> None:
    async with await connect(toy.port) as wire:
        answer = await wire.call(ECHO, b"hello")
        head, trailers = map(dict, answer.blocks)
        assert head[":status"] == "200"
        assert head["content-type"] == "application/grpc"
        assert "grpc-status" not in head
        assert trailers["grpc-status"] == "0"
        assert answer.ended
        assert answer.reset is None
        refused = await wire.call(FAIL, b"5 no such thing")
        assert refused.data == b""
        assert (refused.status, refused.text, refused.reset) == (5, "no such thing", None)
        assert (refused.header(":status"), refused.header("content-type")) == ("200", "application/grpc")


async def test_many_calls_at_a_time_are_answered_as_each_is_ready(toy: Toy) -> None:
    async with await connect(toy.port) as wire:
        waiting = [wire.ask(HOLD, b"%d" % n) for n in range(40)]
        quick = [wire.ask(ECHO, b"q%d" % n) for n in range(40)]
        for n, stream in enumerate(quick):
            assert (await wire.answer(stream)).body == b"q%d" % n
        assert not any(wire.streams[stream].over for stream in waiting)
        toy.model.go.set()
        for n, stream in enumerate(waiting):
            assert (await wire.answer(stream)).body == b"%d" % n


async def test_calls_whose_frames_are_interleaved(toy: Toy) -> None:
    bodies = {1 + 2 * n: bytes([65 + n]) * 40_000 for n in range(8)}
    async with await connect(toy.port) as wire:
        await wire.settled()
        for stream in bodies:
            wire.send(in_frames(stream, wire.block(request(ECHO))))
        for at in range(0, 40_005, 3_000):
            for stream, body in bodies.items():
                await wire.send_data(stream, message(body)[at : at + 3_000], end=at + 3_000 >= 40_005)
        for stream, body in bodies.items():
            assert (await wire.answer(stream)).body == body


async def test_a_table_that_changes_over_many_calls(toy: Toy) -> None:
    """Entries come, are referred to, and are driven out by others."""
    async with await connect(toy.port) as wire:
        for n in range(60):
            more = [(f"x-{n % 7}", f"{n % 5}" * 30), ("x-n", str(n)), ("x-long", "y" * (n * 97 % 5000))]
            told = (await wire.call(TELL, b"", *more)).body
            assert all(f'"{name}": "{value}"'.encode() in told for name, value in more)
            if n % 20 == 10:
                wire.encoder.header_table_size = 4096 - n * 60


async def test_a_table_is_kept_for_calls_that_are_refused_too(toy: Toy) -> None:
    async with await connect(toy.port) as wire:
        refused = [await wire.call("/toy.Toy/No", b"", ("x-no", str(n))) for n in range(3)]
        assert [answer.status for answer in refused] == [12, 12, 12]
        stream = wire.open_stream(ECHO, ("x-left", "1"))
        wire.send(h2.reset(stream))
        assert (await wire.call(ECHO, b"hello", ("x-left", "1"), ("x-no", "2"))).body == b"hello"


@pytest.mark.parametrize("size", [0, 1, 16_383, 16_384, 70_000, 5_000_000])
async def test_sizes(size: int, toy: Toy) -> None:
    body = (b"0123456789abcde" * (size // 15 + 1))[:size]
    async with await connect(toy.port) as wire:
        await wire.settled()
        stream = wire.open_stream(ECHO)
        await wire.send_data(stream, message(body))
        assert zlib.crc32((await wire.answer(stream)).body) == zlib.crc32(body)

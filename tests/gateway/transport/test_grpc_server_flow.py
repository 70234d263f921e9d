"""A gRPC port's windows, settings and pings: nothing is sent that the client has no room for, and nothing is stuck."""

import h2_wire as h2
import pytest
from h2_wire import Wire, connect, data, frame, in_frames, literal, message, request, settings, window
from toy_rpc import BIG, CHAT, COUNT, ECHO, FAIL, HOLD, STREAMS, TELL, Toy

from tensorgate.gateway.wire.http2_frames import DATA, DEFAULT_WINDOW, GOAWAY, SETTINGS


def largest(wire: Wire) -> int:
    return max(size for kind, _, _, size in wire.frames if kind == DATA)


async def test_frames_are_no_larger_than_the_client_wants(toy: Toy) -> None:
    async with await connect(toy.port) as wire:
        assert len((await wire.call(BIG, b"200000")).body) == 200_000
        assert largest(wire) <= 16_384
    async with await connect(toy.port, (h2.FRAME, 1 << 20), (h2.WINDOW, h2.MAX_INT31)) as wire:
        assert len((await wire.call(BIG, b"200000")).body) == 200_000


async def test_a_window_of_nothing_that_opens_later(toy: Toy) -> None:
    async with await connect(toy.port, (h2.WINDOW, 0)) as wire:
        stream = wire.ask(ECHO, b"hello")
        await toy.until(lambda: toy.model.submitted == 1 and not toy.model.open)
        await wire.echo()
        assert not wire.streams[stream].data
        wire.send(window(stream, 3))
        await wire.until(lambda: len(wire.streams[stream].data) == 3)
        await wire.echo()
        assert len(wire.streams[stream].data) == 3
        wire.send(window(stream, 1000))
        assert (await wire.answer(stream)).body == b"hello"


async def test_an_error_needs_no_window(toy: Toy) -> None:
    async with await connect(toy.port, (h2.WINDOW, 0)) as wire:
        assert (await wire.call(FAIL, b"9 not now")).text == "not now"


async def test_windows_that_open_slowly(toy: Toy) -> None:
    """5 MB through windows that are opened bit by bit, as it comes; no byte too many."""
    async with await connect(toy.port, (h2.WINDOW, 100_000), room=0) as wire:
        stream = wire.ask(BIG, b"5000000")
        given, whole, took = 100_000, DEFAULT_WINDOW, wire.streams[stream]
        while not took.over:
            before = len(took.data)
            await wire.until(lambda: len(took.data) == min(given, whole) or took.over)  # noqa: B023
            assert len(took.data) <= min(given, whole)
            assert len(took.data) > before or took.over
            wire.send(window(stream, 150_001), window(0, 120_000))
            given, whole = given + 150_001, whole + 120_000
        assert len(took.body) == 5_000_000


async def test_the_window_of_the_connection_is_all_streams_together(toy: Toy) -> None:
    async with await connect(toy.port, (h2.WINDOW, 1 << 20), room=0) as wire:
        streams = [wire.ask(BIG, b"50000") for _ in range(3)]

        def total() -> int:
            return sum(len(wire.streams[stream].data) for stream in streams)

        await wire.until(lambda: total() == DEFAULT_WINDOW)
        await wire.echo()
        assert total() == DEFAULT_WINDOW
        wire.send(window(0, 200_000))
        for stream in streams:
            assert len((await wire.answer(stream)).body) == 50_000


async def test_a_window_that_becomes_negative(toy: Toy) -> None:
    """SETTINGS take away what has been used already: then as much must be given twice."""
    async with await connect(toy.port, (h2.WINDOW, 30_000)) as wire:
        stream = wire.ask(BIG, b"50000")
        took = wire.streams[stream]
        await wire.until(lambda: len(took.data) == 30_000)
        wire.send(settings((h2.WINDOW, 10_000)), window(stream, 20_000))
        await wire.echo()
        assert len(took.data) == 30_000
        wire.send(window(stream, 7))
        await wire.until(lambda: len(took.data) == 30_007)
        wire.send(settings((h2.WINDOW, 50_000)))
        assert len((await wire.answer(stream)).body) == 50_000


async def test_settings_open_the_windows_of_all_streams(toy: Toy) -> None:
    async with await connect(toy.port, (h2.WINDOW, 1)) as wire:
        streams = [wire.ask(BIG, b"1000") for _ in range(5)]
        await wire.until(lambda: all(len(wire.streams[stream].data) == 1 for stream in streams))
        wire.send(settings((h2.WINDOW, 5000)))
        for stream in streams:
            assert len((await wire.answer(stream)).body) == 1000


async def test_the_client_gets_room_for_what_it_sends(toy: Toy) -> None:
    """Twenty calls of half a megabyte: more than any window that is not opened again."""
    async with await connect(toy.port) as wire:
        await wire.settled()
        for _ in range(20):
            stream = wire.open_stream(TELL)
            await wire.send_data(stream, message(bytes(500_000)))
            assert b'"size": 500000' in (await wire.answer(stream)).body


async def test_room_is_given_back_for_padding_and_for_streams_that_were_reset(toy: Toy) -> None:
    async with await connect(toy.port) as wire:
        await wire.settled()
        for _ in range(30):
            stream = wire.open_stream(ECHO)
            await wire.send_data(stream, message(bytes(300_000))[:250_000], end=False)
            wire.send(h2.reset(stream))
        assert (await wire.call(ECHO, b"hello")).body == b"hello"
        assert not toy.model.open


# ------------------------------------------------------------------------------------------------------ the connection


async def test_settings_and_pings_are_acknowledged(toy: Toy) -> None:
    async with await connect(toy.port) as wire:
        await wire.settled()
        wire.send(settings(), settings((h2.TABLE, 0), (h2.PUSH, 0), (h2.STREAMS, 0), (h2.HEADER_LIST, 1000)))
        await wire.until(lambda: wire.acks == 3)
        for mark in (b"abcdefgh", bytes(8), b"\xff" * 8):
            await wire.echo(mark)
        assert wire.pongs == [b"abcdefgh", bytes(8), b"\xff" * 8]
        assert (await wire.call(ECHO, b"hello")).body == b"hello"
        assert wire.frames[0][0] == SETTINGS, "the server's preface"


async def test_what_the_server_announces(toy: Toy) -> None:
    async with await connect(toy.port) as wire:
        await wire.settled()
        assert wire.settings[h2.STREAMS] == STREAMS
        assert wire.settings.get(h2.PUSH, 0) == 0
        assert 16_384 <= wire.settings.get(h2.FRAME, 16_384) < 1 << 24
        assert wire.settings.get(h2.WINDOW, DEFAULT_WINDOW) <= h2.MAX_INT31


async def test_a_client_that_does_not_acknowledge_settings_is_answered(toy: Toy) -> None:
    async with await connect(toy.port) as wire:
        wire.acknowledges = False
        assert (await wire.call(ECHO, b"hello")).body == b"hello"


async def test_a_client_that_says_everything_at_once(toy: Toy) -> None:
    """Before it has heard anything from the server."""
    async with await h2.plug(toy.port) as wire:
        calls = [in_frames(n, literal(request(ECHO))) + data(n, message(b"%d" % n), end=True) for n in range(1, 100, 2)]
        wire.send(h2.MAGIC, settings(), *calls)
        for n in range(1, 100, 2):
            assert (await wire.answer(n)).body == b"%d" % n


@pytest.mark.parametrize("method", [ECHO, FAIL, COUNT, CHAT, "/toy.Toy/No"])
@pytest.mark.parametrize("size", [0, 100])
async def test_the_table_of_the_answers_is_no_larger_than_the_client_wants(size: int, method: str, toy: Toy) -> None:
    """The first block after the change says so: RFC 7541, 4.2. nghttp2 takes no other."""
    async with await connect(toy.port) as wire:
        assert (await wire.call(method, b"5 3")).status is not None
        wire.acks = 0
        wire.send(settings((h2.TABLE, size)))
        await wire.until(lambda: wire.acks)
        wire.decoder.max_allowed_table_size = size
        for _ in range(3):
            assert (await wire.call(method, b"5 3")).status is not None


async def test_goaway_of_a_client_lets_what_it_asked_be_answered(toy: Toy) -> None:
    async with await connect(toy.port) as wire:
        stream = wire.ask(HOLD, b"hello")
        await toy.until(lambda: toy.model.open)
        wire.send(frame(GOAWAY, 0, 0, bytes(8)))
        await wire.echo()
        toy.model.go.set()
        assert (await wire.answer(stream)).body == b"hello"

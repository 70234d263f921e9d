"""Peers at a gRPC port who mean harm: others are answered meanwhile, and memory and work stay bounded.

A port may end an attacker's connection, or make it wait; what it may not is to go on taking.
"""

import asyncio
import contextlib
import gzip
import os
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import h2_wire as h2
import pytest
from h2_wire import Wire, connect, data, frame, in_frames, literal, message, number, request, settings, window
from toy_rpc import BIG, CHAT, COUNT, ECHO, HOLD, STREAMS, TELL, Model, Toy, toy_port
from waiting import settles, stays, steps

from tensorgate.gateway.contract.canonical import ModelView
from tensorgate.gateway.wire.http2_frames import CONTINUATION, DATA, END_HEADERS, END_STREAM, HEADERS, PING, SETTINGS

BOUND_BYTES = 64 << 20
"""So much memory nobody may cost: the interpreter and its allocator take some of it anyway."""
PATIENCE_S = 1.0


@pytest.fixture
def own_server() -> bool:
    """What grpc.aio does then is no measure: some of it ends that whole server."""
    return True


def rss_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@asynccontextmanager
async def attacked(toy: Toy, tasks: int = 4 * STREAMS) -> AsyncIterator[None]:
    """Others are answered all the time, and nothing grows without a bound."""
    before, most, peak = rss_bytes(), 0, 0

    async def others() -> None:
        nonlocal most, peak
        async with await connect(toy.port) as other:
            while True:
                assert (await other.call(ECHO, b"hello")).body == b"hello"
                most, peak = max(most, len(asyncio.all_tasks())), max(peak, rss_bytes())
                await steps()

    asking = asyncio.create_task(others())
    try:
        yield
        async with await connect(toy.port) as after:
            assert (await after.call(ECHO, b"hello")).body == b"hello"
        assert not asking.done(), asking.exception()
    finally:
        asking.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asking
    assert most <= tasks
    assert peak - before <= BOUND_BYTES


async def pour(wire: Wire, part: bytes, times: int) -> bool:
    """Send it until all is sent, the connection is at its end, or nothing more is taken -> whether all was sent."""
    for _ in range(times):
        if wire.writer.is_closing():
            return False
        wire.send(part)
        try:
            async with asyncio.timeout(PATIENCE_S):
                await wire.writer.drain()
        except (TimeoutError, ConnectionError):
            return False
        await asyncio.sleep(0)
    return True


async def test_rapid_resets(toy: Toy) -> None:
    """CVE-2023-44487: calls that are begun and left at once."""
    async with attacked(toy), await connect(toy.port) as wire:
        wire.send(in_frames(1, wire.block(request(HOLD))), h2.reset(1))
        block = wire.block(request(HOLD))
        for first in range(3, 20_003, 200):
            calls = (
                in_frames(n, block) + data(n, message(b"x"), end=True) + h2.reset(n)
                for n in range(first, first + 200, 2)
            )
            if not await pour(wire, b"".join(calls), 1):
                break
        await wire.echo()
        await toy.until(lambda: not toy.model.open)
        await toy.until(lambda: toy.listener.traffic().running <= 1)


async def test_a_header_block_without_an_end(toy: Toy) -> None:
    """CVE-2024-27316."""
    async with attacked(toy), await connect(toy.port) as wire:
        wire.send(frame(HEADERS, 0, 1, literal(request(ECHO))))
        part = frame(CONTINUATION, 0, 1, literal([("x", "y" * 16_000)])) * 10
        took_all = await pour(wire, part, 200)
        assert not took_all
        await wire.until(lambda: wire.goaway or wire.streams[1].over)


async def test_a_header_block_of_empty_frames(toy: Toy) -> None:
    async with attacked(toy), await connect(toy.port) as wire:
        wire.send(frame(HEADERS, 0, 1, literal(request(ECHO))))
        await pour(wire, frame(CONTINUATION, 0, 1) * 1000, 100)
        await wire.until(lambda: wire.goaway)
        assert wire.goaway or wire.closed


FLOODS = {
    "PING": frame(PING, 0, 0, b"12345678") * 1000,
    "SETTINGS": settings((h2.WINDOW, 1 << 20)) * 1000,
    "empty SETTINGS": settings() * 1000,
    "unknown frames": frame(0x63, 0, 0, b"x" * 20) * 1000,
    "PRIORITY": frame(h2.PRIORITY_FRAME, 0, 3, bytes(5)) * 1000,
    "WINDOW_UPDATE": window(0, 1) * 1000,
}


@pytest.mark.parametrize("name", FLOODS)
async def test_floods_by_who_never_reads(name: str, toy: Toy) -> None:
    async with attacked(toy), await connect(toy.port, room=0, buffer_bytes=4096) as wire:
        await pour(wire, FLOODS[name], 100)


async def test_empty_data_without_an_end(toy: Toy) -> None:
    async with attacked(toy), await connect(toy.port) as wire:
        stream = wire.open_stream(CHAT)
        await pour(wire, data(stream) * 1000, 100)
    await toy.until(lambda: toy.listener.traffic().running == 0)


async def test_data_bytewise(toy: Toy) -> None:
    """A message of a hundred kilobytes in as many frames: little memory, and it is answered."""
    async with attacked(toy), await connect(toy.port) as wire:
        await wire.settled()
        stream = wire.open_stream(TELL)
        whole = message(bytes(60_000))
        frames = b"".join(data(stream, whole[n : n + 1]) for n in range(len(whole)))
        wire.send(frames, data(stream, end=True))
        assert b'"size": 60000' in (await wire.answer(stream)).body


BOMBS = {
    "a table's entry ten thousand times": literal(request(ECHO))
    + b"\x40" + literal([("x", "y" * 3900)])[1:] + b"\xbe" * 10_000,
    "64 KB in one": literal([*request(ECHO), ("x", "y" * 65_536)]),
    "thousands of headers": literal([*request(ECHO), *((f"x-{n}", "") for n in range(5000))]),
    "thousands of empty ones": literal(request(ECHO)) + b"\0\1x\0" * 20_000,
    "sizes of the table": number(0, 5, 0x20) * 50_000 + literal(request(ECHO)),
    "a text of 2 GB": literal(request(ECHO)) + b"\0\1x" + number(1 << 31, 7) + b"y" * 1000,
}  # fmt: skip


@pytest.mark.parametrize("name", BOMBS)
async def test_bombs_of_headers(name: str, toy: Toy) -> None:
    async with attacked(toy), await connect(toy.port) as wire:
        await wire.settled()
        for stream in (1, 3, 5):
            wire.send(in_frames(stream, BOMBS[name]), data(stream, message(b"x"), end=True))
            await wire.until(lambda: wire.goaway or wire.streams[stream].over)  # noqa: B023
            assert wire.goaway or wire.closed or wire.streams[stream].status != 0 or name == "sizes of the table"


async def test_many_connections_that_say_half_of_something(toy: Toy) -> None:
    whole = h2.MAGIC + settings() + in_frames(1, literal(request(ECHO))) + data(1, message(b"hello"), end=True)
    async with attacked(toy), contextlib.AsyncExitStack() as stack:
        for n in range(100):
            wire = await stack.enter_async_context(await h2.plug(toy.port))
            wire.send(whole[: n * len(whole) // 101])
        await stays(lambda: len(toy.model.open) <= 1)


async def test_who_never_reads_costs_little(toy: Toy) -> None:
    async with attacked(toy), await connect(toy.port, buffer_bytes=4096) as wire:
        for _ in range(STREAMS // 2):
            wire.ask(COUNT, b"1000000 10000")
        await toy.until(lambda: len(toy.model.open) >= STREAMS // 2)
        await settles(lambda: toy.model.made)
        assert toy.model.made * 10_000 < BOUND_BYTES
    await toy.until(lambda: not toy.model.open)


async def test_windows_that_are_never_opened(toy: Toy) -> None:
    async with attacked(toy), await connect(toy.port, (h2.WINDOW, 0), room=0) as wire:
        for _ in range(STREAMS // 2):
            wire.ask(COUNT, b"1000000 10000")
        await toy.until(lambda: len(toy.model.open) >= STREAMS // 2)
        await settles(lambda: toy.model.made)
        assert toy.model.made * 10_000 < BOUND_BYTES
    await toy.until(lambda: not toy.model.open)


@pytest.mark.parametrize("compressed", [False, True])
async def test_who_asks_and_asks_is_made_to_wait(compressed: bool, toy: Toy) -> None:
    """A conversation whose questions are not answered yet: windows close, and little is kept of what is unpacked."""
    body = b"hold" + bytes(100_000)
    more = [("grpc-encoding", "gzip")] if compressed else []
    question = message(gzip.compress(body), 1) if compressed else message(body)
    async with attacked(toy), await connect(toy.port) as wire:
        await wire.settled()
        stream = wire.open_stream(CHAT, *more)
        sent = 0

        async def ask() -> None:
            nonlocal sent
            while True:
                await wire.send_data(stream, question, end=False)
                sent += 1

        asking = asyncio.create_task(ask())
        await settles(lambda: sent)
        assert len(toy.model.open) <= 65, "one of another's"
        if not compressed:
            assert sent * len(question) < BOUND_BYTES // 2
        asking.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asking
        wire.send(h2.reset(stream))
        await toy.until(lambda: len(toy.model.open) <= 1)


async def test_windows_that_open_by_single_bytes(toy: Toy) -> None:
    async with attacked(toy), await connect(toy.port, (h2.WINDOW, 0)) as wire:
        stream = wire.ask(BIG, b"3000")
        wire.send(window(stream, 1) * 3005)
        assert len((await wire.answer(stream)).body) == 3000


async def test_more_streams_than_allowed(toy: Toy) -> None:
    """What is too much is refused, so that it may be asked again, or waits; the rest is answered."""
    count = STREAMS + 50
    async with attacked(toy), await connect(toy.port) as wire:
        await wire.settled()
        streams = [wire.ask(HOLD, b"%d" % n) for n in range(count)]
        await toy.until(lambda: len(toy.model.open) >= STREAMS)
        await wire.echo()
        assert len(toy.model.open) <= STREAMS + 1, "one of another's"
        toy.model.go.set()
        answers = [await wire.answer(stream) for stream in streams]
        assert all(answer.body == b"%d" % n for n, answer in enumerate(answers) if answer.status == 0)
        refused = [answer for answer in answers if answer.status != 0]
        assert all(answer.reset == 7 or answer.status in (8, 14) for answer in refused)
        assert len(refused) <= 50
        assert (await wire.call(ECHO, b"hello")).body == b"hello"


async def test_what_follows_on_a_refused_stream_is_ignored(toy: Toy) -> None:
    """It was under way already: RFC 9113, 5.1, on closed streams. One reset is enough."""
    async with await connect(toy.port) as wire:
        await wire.settled()
        for _ in range(STREAMS):
            wire.ask(HOLD, b"")
        stream = wire.open_stream(ECHO)
        wire.send(data(stream, message(b"hel")[:7]), data(stream, b"x"), data(stream, b"y", end=True))
        broken = wire.take()
        wire.send(in_frames(broken, literal(request(ECHO, ("X-Upper", "1")))), data(broken, message(b"x"), end=True))
        await wire.echo()
        toy.model.go.set()
        for held in range(1, stream, 2):
            assert (await wire.answer(held)).body == b""
        for refused in (wire.streams[stream], wire.streams[broken]):
            assert len(refused.resets) <= 1


async def test_more_connections_than_allowed(make_model: Callable[..., ModelView], own_server: bool) -> None:
    async with toy_port(make_model("toy", {}, {}, handle=Model()), own_server=own_server, connections=5) as toy:
        async with contextlib.AsyncExitStack() as stack:
            wires = [await stack.enter_async_context(await connect(toy.port)) for _ in range(5)]
            for wire in wires:
                assert (await wire.call(ECHO, b"hello")).body == b"hello"
            try:
                async with await connect(toy.port) as sixth:
                    sixth.ask(ECHO, b"hello")
                    await sixth.end()
                    assert not any(stream.data for stream in sixth.streams.values())
            except ConnectionError:
                """It is not even taken."""
            for wire in wires:
                assert (await wire.call(ECHO, b"hello")).body == b"hello"
        for _ in range(500):  # the port may learn a little later that the others have left
            with contextlib.suppress(ConnectionError):
                async with await connect(toy.port) as wire:
                    stream = wire.ask(ECHO, b"hello")
                    await wire.until(lambda: wire.streams[stream].over)  # noqa: B023
                    if wire.streams[stream].status == 0:
                        break
            await steps()
        else:
            raise AssertionError("nobody is taken any more")


# ---------------------------------------------------------------------------------------------------- cut, and mutated

BEGUN = h2.MAGIC + settings((h2.WINDOW, 1 << 20)) + window(0, 1 << 20)
TALK = b"".join((
    BEGUN,
    in_frames(1, literal(request(ECHO))), data(1, message(b"hello"), end=True),
    in_frames(3, literal(request(COUNT)), 0, 40), data(3, b"\0\0\0\0"), data(3, b"\4" + b"3 10", end=True),
    frame(PING, 0, 0, b"mutation"),
    in_frames(5, literal(request(CHAT))), data(5, message(b"a") + message(b"b")), window(5, 1000),
    in_frames(7, literal(request(TELL, ("grpc-timeout", "5S"), ("x-bin", "AAEC")))), h2.reset(7),
    settings((h2.FRAME, 1 << 15)), data(5, end=True), frame(SETTINGS, 1),
))  # fmt: skip


async def say(toy: Toy, talk: bytes, *, abort: bool) -> None:
    """A whole connection that says this, and leaves."""
    async with await h2.plug(toy.port) as wire:
        wire.send(talk)
        if abort:
            await asyncio.sleep(0)
            return
        wire.hang_up()
        async with asyncio.timeout(h2.WITHIN_S):
            with contextlib.suppress(ConnectionError):
                while await wire.reader.read(1 << 16):
                    """Answers, and complaints."""


@pytest.mark.parametrize("abort", [True, False])
async def test_connections_that_break_off_anywhere(abort: bool, toy: Toy) -> None:
    async with attacked(toy):
        for cut in range(len(BEGUN), len(TALK), 1 if abort else 3):
            await say(toy, TALK[:cut], abort=abort)
    await toy.until(lambda: not toy.model.open)
    await toy.until(lambda: toy.listener.traffic().running == 0)


@pytest.mark.parametrize("seed", range(4))
async def test_bytes_that_are_changed(seed: int, toy: Toy) -> None:
    chance = random.Random(seed)  # noqa: S311
    async with attacked(toy):
        for _ in range(75):
            talk = bytearray(TALK)
            for _ in range(chance.choice([1, 1, 2, 8])):
                at = chance.randrange(len(BEGUN) - 30, len(talk))
                if chance.random() < 0.6:
                    talk[at] = chance.choice([0, 1, 0x7F, 0x80, 0xFF, chance.randrange(256)])
                elif chance.random() < 0.5:
                    del talk[at : at + chance.randrange(1, 9)]
                else:
                    talk[at:at] = bytes(chance.randrange(256) for _ in range(chance.randrange(1, 9)))
            await say(toy, bytes(talk), abort=False)
    await toy.until(lambda: not toy.model.open)
    await toy.until(lambda: toy.listener.traffic().running == 0)


@pytest.mark.parametrize("path", [b"/toy.Toy/\x80", b"/\xff\xfe", b"\xc3", "/toy.Toy/Ech\xf6".encode()])
async def test_a_path_that_is_no_text(path: bytes, toy: Toy) -> None:
    """One such call, and a whole server of grpc.aio is at its end: its main loop decodes paths, and dies of it."""
    async with attacked(toy), await connect(toy.port) as wire:
        headers = [(name, path if name == ":path" else value) for name, value in request(ECHO)]
        wire.send(in_frames(1, literal(headers)), data(1, message(b"hello"), end=True))
        answer = await wire.answer(1)
        assert answer.status == 12 or answer.reset is not None or answer.header(":status") in ("400", "404")
        wire.send(in_frames(3, literal(request(ECHO))), data(3, message(b"hello"), end=True))
        assert (await wire.answer(3)).body == b"hello"


async def test_nothing_but_noise(toy: Toy) -> None:
    chance = random.Random(7)  # noqa: S311
    async with attacked(toy):
        for size in (1, 9, 100, 10_000):
            await say(toy, chance.randbytes(size), abort=False)
            await say(toy, BEGUN + chance.randbytes(size), abort=False)
            await say(toy, BEGUN + frame(HEADERS, END_HEADERS | END_STREAM, 1, chance.randbytes(size)), abort=False)
            await say(toy, BEGUN + frame(DATA, 0, 1, chance.randbytes(size)), abort=False)

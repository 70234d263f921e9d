"""How a gRPC port stops: what was asked is answered, and who may ask again elsewhere learns it."""

import asyncio

import h2_wire as h2
import pytest
from h2_wire import Wire, connect, data, message
from toy_rpc import CHAT, ECHO, HOLD, Toy
from waiting import steps

from tensorgate.gateway.wire.http2_frames import REFUSED_STREAM

UNAVAILABLE = 14


@pytest.fixture
def own_server() -> bool:
    """grpc.aio stops otherwise: it cancels what it has not taken yet."""
    return True


async def stopped(stopping: asyncio.Task[None]) -> None:
    async with asyncio.timeout(h2.WITHIN_S):
        await stopping


async def test_calls_under_way_are_answered(toy: Toy) -> None:
    async with await connect(toy.port) as wire:
        streams = [wire.ask(HOLD, b"%d" % n) for n in range(20)]
        await toy.until(lambda: len(toy.model.open) == 20)
        stopping = asyncio.create_task(toy.listener.stop(60))
        await wire.until(lambda: wire.goaway)
        assert wire.goaway is not None
        last, reason = wire.goaway
        assert last >= streams[-1]
        assert reason == 0
        assert not stopping.done()
        toy.model.go.set()
        for n, stream in enumerate(streams):
            assert (await wire.answer(stream)).body == b"%d" % n
        await wire.end()
        await stopped(stopping)


async def test_idle_connections_are_closed(toy: Toy) -> None:
    async with await connect(toy.port) as silent, await connect(toy.port) as idle, await h2.plug(toy.port) as plugged:
        await silent.settled()
        assert (await idle.call(ECHO, b"hello")).body == b"hello"
        stopping = asyncio.create_task(toy.listener.stop(60))
        await asyncio.gather(*(wire.end() for wire in (silent, idle, plugged)))
        for wire in (silent, idle):
            assert wire.goaway is not None
            assert wire.goaway[1] == 0
        await stopped(stopping)


async def test_who_comes_later_is_not_taken(toy: Toy) -> None:
    async with await connect(toy.port) as wire:
        wire.ask(HOLD, b"hello")
        await toy.until(lambda: toy.model.open)
        stopping = asyncio.create_task(toy.listener.stop(60))
        await wire.until(lambda: wire.goaway)
        try:
            async with await connect(toy.port) as late:
                late.ask(ECHO, b"hello")
                await late.end()
                assert not any(stream.data for stream in late.streams.values())
        except ConnectionError:
            """Nobody listens."""
        toy.model.go.set()
        await wire.end()
        await stopped(stopping)


def may_be_repeated(wire: Wire, stream: int) -> bool:
    """Whether a client knows that its call has not been looked at: RFC 9113, 8.7; or is told to try elsewhere."""
    took = wire.streams[stream]
    after = wire.goaway is not None and stream > wire.goaway[0]
    return after or took.reset == REFUSED_STREAM or took.status == UNAVAILABLE


async def test_what_is_asked_meanwhile_is_answered_or_may_be_repeated(toy: Toy) -> None:
    """Calls of clients who have not read the GOAWAY yet, one after the other while the port stops."""
    async with await connect(toy.port) as holding, await connect(toy.port) as wire:
        held = holding.ask(HOLD, b"held")
        assert (await wire.call(ECHO, b"hello")).body == b"hello"
        await toy.until(lambda: toy.model.open)
        stopping = asyncio.create_task(toy.listener.stop(60))
        streams = []
        for n in range(30):
            streams.append(wire.ask(ECHO, b"%d" % n))
            await steps(3)
        toy.model.go.set()
        assert (await holding.answer(held)).body == b"held"
        await asyncio.gather(wire.end(), holding.end())
        for n, stream in enumerate(streams):
            answered = wire.streams[stream].status == 0
            assert not answered or wire.streams[stream].body == b"%d" % n
            assert answered or may_be_repeated(wire, stream), (n, wire.streams[stream], wire.goaway)
        await stopped(stopping)


@pytest.mark.parametrize("method", [HOLD, CHAT])
async def test_when_the_time_is_up_what_still_runs_is_cancelled(method: str, toy: Toy) -> None:
    async with await connect(toy.port) as wire:
        stream = wire.open_stream(method)
        wire.send(data(stream, message(b"hold"), end=True))
        await toy.until(lambda: toy.model.open)
        stopping = asyncio.create_task(toy.listener.stop(0.1))
        await toy.until(lambda: toy.model.abandoned == 1)
        await wire.end()
        await stopped(stopping)
        assert not wire.streams[stream].data


async def test_conversations_end_where_the_client_has_nothing_to_wait_for(toy: Toy) -> None:
    async with await connect(toy.port) as wire:
        stream = wire.open_stream(CHAT)
        wire.send(data(stream, message(b"a")))
        await wire.until(lambda: wire.streams[stream].data)
        stopping = asyncio.create_task(toy.listener.stop(60))
        answer = await wire.answer(stream)
        assert (answer.messages, answer.status) == ([b"a"], UNAVAILABLE)
        await wire.end()
        await stopped(stopping)


async def test_conversations_that_have_not_begun_end_too(toy: Toy) -> None:
    async with await connect(toy.port) as wire:
        stream = wire.open_stream(CHAT)
        await wire.echo()
        stopping = asyncio.create_task(toy.listener.stop(60))
        answer = await wire.answer(stream)
        assert answer.status == UNAVAILABLE or may_be_repeated(wire, stream)
        await wire.end()
        await stopped(stopping)


async def test_who_watches_health_learns_the_end(toy: Toy) -> None:
    async with await connect(toy.port) as wire:
        stream = wire.ask("/grpc.health.v1.Health/Watch", b"")
        await wire.until(lambda: wire.streams[stream].data)
        stopping = asyncio.create_task(toy.listener.stop(60))
        assert (await wire.answer(stream)).messages
        await wire.end()
        await stopped(stopping)


async def test_a_client_that_never_reads_does_not_hold_up_the_end(toy: Toy) -> None:
    async with await connect(toy.port, buffer_bytes=4096) as wire:
        for _ in range(20):
            wire.ask("/toy.Toy/Count", b"1000000 100000")
        await toy.until(lambda: len(toy.model.open) == 20)
        stopping = asyncio.create_task(toy.listener.stop(0.1))
        await toy.until(lambda: not toy.model.open)
        await stopped(stopping)


async def test_stop_without_anybody_and_twice(toy: Toy) -> None:
    await stopped(asyncio.create_task(toy.listener.stop(60)))
    await stopped(asyncio.create_task(toy.listener.stop(60)))

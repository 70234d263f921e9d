"""Streams over a gRPC port, by their bytes: how they go on, and how they end."""

import json
from collections.abc import Callable

import h2_wire as h2
import pytest
from h2_wire import Wire, connect, data, message
from toy_rpc import CHAT, COUNT, ECHO, HOLD, TELL, Toy
from waiting import Clock


async def test_a_stream_of_answers(toy: Toy) -> None:
    async with await connect(toy.port) as wire:
        answer = await wire.call(COUNT, b"5 3")
        assert (answer.messages, answer.status) == ([b"0..", b"1..", b"2..", b"3..", b"4.."], 0)
        nothing = await wire.call(COUNT, b"0 0")
        assert (nothing.messages, nothing.status) == ([], 0)
        refused = await wire.call(COUNT, b"wrong")
        assert (refused.messages, refused.status, refused.text) == ([], 3, "this is wrong")


async def test_a_conversation(toy: Toy) -> None:
    async with await connect(toy.port) as wire:
        stream = wire.open_stream(CHAT)
        took = wire.streams[stream]
        for n in range(50):
            wire.send(data(stream, message(b"%d" % n)))
            if n % 10 == 0:
                await wire.until(lambda: len(took.data) and took.messages[-1] == b"%d" % n)  # noqa: B023
        wire.send(data(stream, end=True))
        answer = await wire.answer(stream)
        assert (answer.messages, answer.status) == ([b"%d" % n for n in range(50)], 0)


async def test_a_conversation_may_go_on_after_the_last_question(toy: Toy) -> None:
    async with await connect(toy.port) as wire:
        stream = wire.open_stream(CHAT)
        wire.send(data(stream, message(b"a") + message(b"hold b") + message(b"c"), end=True))
        took = wire.streams[stream]
        await wire.until(lambda: len(took.data) == 6)
        await toy.until(lambda: len(toy.model.open) <= 2)
        toy.model.go.set()
        assert (await wire.answer(stream)).messages == [b"a", b"hold b", b"c"]


@pytest.mark.parametrize("payload", [b"", message(b"")])
async def test_a_conversation_of_little(payload: bytes, toy: Toy) -> None:
    async with await connect(toy.port) as wire:
        stream = wire.open_stream(CHAT)
        wire.send(data(stream, payload, end=True))
        answer = await wire.answer(stream)
        assert (answer.messages, answer.status) == ([b""] if payload else [], 0)


LEAVES: dict[str, Callable[[Wire, int], object]] = {
    "reset": lambda wire, stream: wire.send(h2.reset(stream)),
    "reset for no reason": lambda wire, stream: wire.send(h2.reset(stream, 0)),
    "connection": lambda wire, stream: wire.writer.transport.abort(),
}


@pytest.mark.parametrize("method", [HOLD, CHAT])
@pytest.mark.parametrize("way", LEAVES)
async def test_who_leaves_ends_the_work(way: str, method: str, toy: Toy) -> None:
    async with await connect(toy.port) as wire:
        stream = wire.open_stream(method)
        wire.send(data(stream, message(b"hold"), end=method == HOLD))
        await toy.until(lambda: len(toy.model.open) == 1)
        LEAVES[way](wire, stream)
        await toy.until(lambda: toy.model.abandoned == 1)
        if way != "connection":
            assert (await wire.call(ECHO, b"hello")).body == b"hello"
            assert not wire.streams[stream].data
    await toy.until(lambda: toy.listener.traffic().running == 0)


async def test_who_leaves_a_stream_of_answers_ends_it(toy: Toy) -> None:
    async with await connect(toy.port) as wire:
        stream = wire.ask(COUNT, b"1000000 1000")
        await wire.until(lambda: len(wire.streams[stream].data) > 50_000)
        wire.send(h2.reset(stream))
        await toy.until(lambda: not toy.model.open)
        assert toy.model.made < 1_000_000
        assert (await wire.call(ECHO, b"hello")).body == b"hello"


@pytest.mark.parametrize("method", [HOLD, CHAT])
async def test_a_deadline_ends_the_work(method: str, toy: Toy) -> None:
    async with await connect(toy.port) as wire:
        stream = wire.open_stream(method, ("grpc-timeout", "200m"))
        wire.send(data(stream, message(b"hold"), end=method == HOLD))
        answer = await wire.answer(stream)
        assert answer.status == 4 or answer.reset is not None
        await toy.until(lambda: toy.model.abandoned == 1)
        assert (await wire.call(ECHO, b"hello")).body == b"hello"


@pytest.mark.parametrize("method", [HOLD, CHAT])
async def test_a_deadline_ends_a_call_that_has_asked_nothing(method: str, toy: Toy) -> None:
    async with await connect(toy.port) as wire:
        answer = await wire.answer(wire.open_stream(method, ("grpc-timeout", "200m")))
        assert answer.status == 4 or answer.reset is not None
        assert (await wire.call(ECHO, b"hello")).body == b"hello"
    assert toy.model.submitted == 1


async def test_a_deadline_counts_from_the_call_and_not_from_its_message(toy: Toy, clock: Clock) -> None:
    async with await connect(toy.port) as wire:
        stream = wire.open_stream(TELL, ("grpc-timeout", "100S"))
        await wire.echo()
        await clock.advance(1.1)
        wire.send(data(stream, message(b""), end=True))
        left = json.loads((await wire.answer(stream)).body)["left"]
        assert left == pytest.approx(98.9) if toy.own_server else left < 100


async def test_a_deadline_ends_a_stream_of_answers(toy: Toy) -> None:
    async with await connect(toy.port) as wire:
        answer = await wire.call(COUNT, b"100000000 100", ("grpc-timeout", "200m"))
        assert answer.status == 4 or answer.reset is not None
        assert answer.data
        await toy.until(lambda: not toy.model.open)


async def test_an_error_ends_a_conversation(toy: Toy) -> None:
    async with await connect(toy.port) as wire:
        stream = wire.open_stream(CHAT)
        wire.send(data(stream, message(b"a") + message(b"wrong")))
        answer = await wire.answer(stream)
        assert (answer.messages, answer.status, answer.text) == ([b"a"], 3, "this is wrong")
        assert answer.reset in (None, 0), "the client need not say more: RFC 9113, 8.1"
        wire.send(data(stream, message(b"more"), end=True))
        assert (await wire.call(ECHO, b"hello")).body == b"hello"

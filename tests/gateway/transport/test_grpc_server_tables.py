"""HPACK's table is a connection's: whatever changes it changes what later blocks mean, whoever has remembered them.

Source: RFC 7541, 2.2 and 4.
"""

import json

import h2_wire as h2
import pytest
from h2_wire import Wire, connect, data, frame, in_frames, literal, message, number, request
from toy_rpc import CHAT, ECHO, TELL, Toy

from tensorgate.gateway.wire.http2_frames import END_HEADERS, END_STREAM, HEADERS

NEWEST = b"\xbe"
"""The entry that was inserted last."""


def inserted(name: str, value: str) -> bytes:
    """A header that becomes the newest entry of the table."""
    return b"\x40" + literal([(name, value)])[1:]


ASK = literal(request(TELL)) + NEWEST
"""Who asks is whoever the table names: the same bytes each time."""
FILLER = "f" * 2000


async def trailers(wire: Wire, block: bytes) -> None:
    """Of a call that is answered."""
    stream = wire.take()
    wire.send(in_frames(stream, literal(request(CHAT))), data(stream, message(b"hello")))
    wire.send(in_frames(stream, block, END_STREAM))
    await wire.answer(stream)


async def late_headers(wire: Wire, block: bytes) -> None:
    """A second block in mid-stream: the stream is at its end, and the table has changed all the same."""
    stream = wire.take()
    wire.send(in_frames(stream, literal(request(CHAT))), in_frames(stream, block))
    await wire.until(lambda: wire.streams[stream].over)


async def cancelled(wire: Wire, block: bytes) -> None:
    stream = wire.take()
    wire.send(in_frames(stream, literal(request(CHAT)) + block), h2.reset(stream))
    await wire.echo()


async def after_a_cancel(wire: Wire, block: bytes) -> None:
    """Trailers that were under way when the other side had done with the stream."""
    stream = wire.take()
    wire.send(in_frames(stream, literal(request("/toy.Toy/None"))))
    await wire.answer(stream)
    wire.send(in_frames(stream, block, END_STREAM))
    await wire.echo()


async def malformed(wire: Wire, block: bytes) -> None:
    """A head that is none of gRPC's."""
    stream = wire.take()
    wire.send(in_frames(stream, literal([*request(ECHO), ("connection", "close")]) + block, END_STREAM))
    await wire.until(lambda: wire.streams[stream].over)


async def asked(wire: Wire, block: bytes) -> None:
    """An ordinary call."""
    stream = wire.take()
    wire.send(in_frames(stream, literal(request(ECHO)) + block), data(stream, message(b"hello"), end=True))
    assert (await wire.answer(stream)).body == b"hello"


WAYS = [trailers, late_headers, cancelled, after_a_cancel, malformed, asked]
CHANGES = {
    "insertion": inserted("x-user", "bob"),
    "eviction": inserted("x-fill", FILLER) + inserted("x-fill", FILLER) + inserted("x-user", "bob"),
    "resize": number(0, 5, 0x20) + number(4096, 5, 0x20) + inserted("x-user", "bob"),
}


async def who(wire: Wire, block: bytes) -> str:
    stream = wire.take()
    wire.send(frame(HEADERS, END_HEADERS, stream, block), data(stream, message(b""), end=True))
    answer = await wire.answer(stream)
    user: str = json.loads(answer.body)["headers"]["x-user"]
    return user


@pytest.fixture
def own_server() -> bool:
    """The table is our own; `hpack` and grpc.aio have theirs."""
    return True


@pytest.mark.parametrize("change", [name for name in CHANGES if name != "resize"])
@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
async def test_nobody_passes_for_another(way: object, change: str, toy: Toy) -> None:
    async with await connect(toy.port) as wire:
        await wire.settled()
        await asked(wire, inserted("x-user", "alice"))
        assert [await who(wire, ASK) for _ in range(3)] == ["alice"] * 3
        await way(wire, CHANGES[change])  # type: ignore[operator]
        assert [await who(wire, ASK) for _ in range(3)] == ["bob"] * 3


async def test_a_table_that_is_resized_in_trailers(toy: Toy) -> None:
    """A size may only be said where a block begins."""
    async with await connect(toy.port) as wire:
        await wire.settled()
        await asked(wire, inserted("x-user", "alice"))
        assert await who(wire, ASK) == await who(wire, ASK) == "alice"
        await trailers(wire, CHANGES["resize"])
        assert await who(wire, ASK) == "bob"


async def test_an_entry_that_is_gone_is_not_remembered(toy: Toy) -> None:
    async with await connect(toy.port) as wire:
        await wire.settled()
        await asked(wire, inserted("x-user", "alice"))
        assert await who(wire, ASK) == await who(wire, ASK) == "alice"
        await trailers(wire, number(0, 5, 0x20) + number(4096, 5, 0x20))
        wire.send(frame(HEADERS, END_HEADERS, wire.take(), ASK))
        await wire.until(lambda: wire.goaway)
        assert wire.goaway is not None
        assert wire.goaway[1] == 9

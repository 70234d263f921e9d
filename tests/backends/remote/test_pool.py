"""Which address is asked: connections here are made up, and say what a test has them say."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from typing import Any

import pytest
from waiting import Clock, until

from tensorgate.backends.remote.connection import ConnectionLost, NotReached
from tensorgate.backends.remote.pool import Pool
from tensorgate.gateway.contract.call import Reply
from tensorgate.gateway.contract.canonical import Sequence
from tensorgate.gateway.contract.errors import Code, Unavailable
from tensorgate.gateway.contract.upstream import Ask

PROBE = Ask("/probe")
QUESTION = Ask("/question")


class Made:
    """Says what `answer` says to every question but probes, which it meets with `well`."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.well = True
        self.asked = 0
        self.probed = 0
        self.closed = False
        self.seconds: float | None = None
        self.answer: Callable[[], Any] = lambda: Reply(name.encode())

    async def call(self, ask: Ask, seconds: float | None) -> Reply:
        if ask is PROBE:
            self.probed += 1
            if not self.well:
                raise NotReached
            return Reply(b"ready")
        self.asked += 1
        self.seconds = seconds
        said = self.answer()
        if isinstance(said, Exception):
            raise said
        reply: Reply = await said if asyncio.iscoroutine(said) else said
        return reply

    async def stream(self, ask: Ask, seconds: float | None) -> AsyncGenerator[Reply, None]:
        for _ in range(2):
            yield await self.call(ask, seconds)

    async def close(self) -> None:
        self.closed = True


class Rig:
    def __init__(self, *names: str) -> None:
        client: Any = type("Client", (), {"probe": lambda self: PROBE, "is_ready": lambda self, reply: True})()
        self.made: dict[str, Made] = {}
        self.pool = Pool(client, self.connect, names)

    def connect(self, name: str) -> Made:
        self.made[name] = Made(name)
        return self.made[name]

    async def ask(self, sequence: int | str = 0, *, start: bool = False, end: bool = False) -> str:
        told = Sequence(sequence, start, end) if sequence else None
        return bytes((await self.pool.call(QUESTION, None, told)).body).decode()  # type: ignore[arg-type]


@pytest.fixture
async def make_rig() -> Any:
    rigs: list[Rig] = []

    async def make(*names: str) -> Rig:
        rigs.append(Rig(*names))
        await until(lambda: all(made.probed for made in rigs[-1].made.values()))
        return rigs[-1]

    yield make
    for rig in rigs:
        await rig.pool.close()
        assert all(made.closed for made in rig.made.values())


async def test_idle_addresses_take_turns_and_a_busy_one_is_spared(make_rig: Any) -> None:
    rig = await make_rig("a", "b", "c")
    assert sorted([await rig.ask() for _ in range(6)]) == ["a", "a", "b", "b", "c", "c"]
    gate = asyncio.Event()

    async def slow() -> Reply:
        await gate.wait()
        return Reply(b"slow")

    rig.made["a"].answer = slow
    waiting = [asyncio.ensure_future(rig.ask()) for _ in range(3)]
    await until(lambda: rig.made["a"].asked == 3)
    assert rig.made["a"].asked == 3
    assert "a" not in [await rig.ask() for _ in range(10)]
    gate.set()
    await asyncio.gather(*waiting)


async def test_what_reached_nobody_goes_to_one_other_address(make_rig: Any) -> None:
    rig = await make_rig("a", "b")
    rig.made["a"].answer = NotReached
    assert [await rig.ask() for _ in range(4)] == ["b"] * 4
    rig.made["b"].answer = NotReached
    with pytest.raises(Unavailable, match="cannot be reached"):
        await rig.ask()
    three = await make_rig("a", "b", "c")
    for made in three.made.values():
        made.answer = NotReached
    with pytest.raises(Unavailable):
        await three.ask()
    assert sum(made.asked for made in three.made.values()) == 2


async def test_another_address_has_the_time_that_is_left(make_rig: Any, clock: Clock) -> None:
    async def slow() -> Reply:
        clock.move(0.1)
        raise NotReached

    rig = await make_rig("a", "b")
    for name in "ab":
        rig.made[name].answer = slow
    with pytest.raises(Unavailable):
        await rig.pool.call(QUESTION, 5)
    with pytest.raises(Unavailable):
        _ = [reply async for reply in rig.pool.stream(QUESTION, 5)]
    assert sorted(round(made.seconds, 1) for made in rig.made.values()) == [4.9, 5.0]
    with pytest.raises(Unavailable):
        await rig.pool.call(QUESTION, None)
    assert {made.seconds for made in rig.made.values()} == {None}


async def test_what_may_have_been_begun_is_never_sent_again(make_rig: Any) -> None:
    rig = await make_rig("a", "b")
    rig.made["a"].answer = rig.made["b"].answer = ConnectionLost
    with pytest.raises(Unavailable, match="broke"):
        await rig.ask()
    assert sum(made.asked for made in rig.made.values()) == 1
    rig = await make_rig("a", "b")
    for made in rig.made.values():
        made.answer = lambda: Reply(b"", grpc_code=Code.UNAVAILABLE, message="queue full")
    assert (await rig.pool.call(QUESTION, None)).message == "queue full"
    assert sum(made.asked for made in rig.made.values()) == 1


async def test_a_stream_moves_on_only_before_its_first_answer(make_rig: Any) -> None:
    rig = await make_rig("a", "b")
    rig.made["a"].answer = NotReached
    for _ in range(2):
        assert [reply.body async for reply in rig.pool.stream(QUESTION, None)] == [b"b", b"b"]


async def test_an_address_that_fails_time_and_again_is_left_alone(make_rig: Any) -> None:
    rig = await make_rig("a", "b")
    rig.made["a"].answer = lambda: Reply(b"bad", grpc_code=Code.UNAVAILABLE)
    said = [await rig.ask() for _ in range(30)]
    assert said.count("bad") == 5
    assert said[-15:] == ["b"] * 15
    alone = await make_rig("a")
    alone.made["a"].answer = lambda: Reply(b"bad", grpc_code=Code.UNAVAILABLE)
    assert [await alone.ask() for _ in range(8)] == ["bad"] * 8


async def test_readiness_follows_the_probes(make_rig: Any, clock: Clock) -> None:
    rig = await make_rig("a", "b")
    assert rig.pool.is_ready()
    rig.made["a"].well = rig.made["b"].well = False
    await clock.advance(1.1)
    assert not rig.pool.is_ready()
    assert await rig.ask() in ("a", "b")  # somebody has to be asked
    rig.made["b"].well = True
    await clock.advance(1.1)
    assert rig.pool.is_ready()
    assert [await rig.ask() for _ in range(3)] == ["b"] * 3


async def test_a_broken_connection_is_looked_at_before_the_second_is_over(make_rig: Any, clock: Clock) -> None:
    rig = await make_rig("a")
    rig.made["a"].answer = ConnectionLost
    with pytest.raises(Unavailable):
        await rig.ask()
    assert not rig.pool.is_ready()
    await clock.advance(0.3)
    assert rig.pool.is_ready()


async def test_requests_of_a_sequence_stay_together(make_rig: Any) -> None:
    rig = await make_rig("a", "b", "c")
    homes = {name: {await rig.ask(name, start=not n) for n in range(5)} for name in (*range(1, 15), *"abcdefghijklmno")}
    assert all(len(home) == 1 for home in homes.values())
    assert set().union(*homes.values()) == {"a", "b", "c"}


async def test_a_sequence_does_not_move_while_its_address_is_unwell(make_rig: Any) -> None:
    """Nor comes back to one that it has left: the state is where the sequence began."""
    rig = await make_rig("a", "b", "c")
    home = await rig.ask(7, start=True)
    rig.made[home].well = False
    await until(lambda: not next(each for each in rig.pool.addresses if each.name == home).ready)
    assert await rig.ask(7) == home
    moved = await rig.ask(7, start=True)
    assert moved != home
    rig.made[home].well = True
    await until(lambda: all(each.ready for each in rig.pool.addresses))
    assert await rig.ask(7) == moved
    assert await rig.ask(7, end=True) == moved
    assert await rig.ask(7) == home  # nothing is known of it any more


async def test_a_sequence_whose_address_has_died_fails(make_rig: Any) -> None:
    rig = await make_rig("a", "b")
    home = await rig.ask(7, start=True)
    others = [await rig.ask(number, start=True) for number in range(8, 30)]
    rig.made[home].answer = NotReached
    for _ in range(3):
        with pytest.raises(Unavailable, match="the upstream server that has sequence 7 cannot be reached"):
            await rig.ask(7)
        with pytest.raises(Unavailable, match="sequence 7"):
            _ = [reply async for reply in rig.pool.stream(QUESTION, None, Sequence(7))]
    begun = await rig.ask(7, start=True)
    assert begun != home
    assert await rig.ask(7) == begun
    assert {"a", "b"} == {*others}


async def test_of_sequences_that_never_end_the_oldest_is_forgotten(
    make_rig: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tensorgate.backends.remote.pool._MAX_SEQUENCES", 10)
    rig = await make_rig("a", "b")
    for number in range(1, 100):
        await rig.ask(number, start=True)
    assert [*rig.pool._sequences] == [*range(90, 100)]


async def test_why_a_connection_broke_is_logged_once(make_rig: Any, caplog: pytest.LogCaptureFixture) -> None:
    rig = await make_rig("a")
    rig.made["a"].answer = lambda: ConnectionLost("ClientPayloadError no chunk")
    for _ in range(3):
        with pytest.raises(Unavailable):
            await rig.ask()
    assert [line for line in caplog.messages if "chunk" in line] == ["upstream a: ClientPayloadError no chunk"]

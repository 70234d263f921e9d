"""What one connection may cost everybody else: streams, windows, frames that carry nothing, memory that is only
promised, and turns. All of it in counts.
"""

import gc

import h2_wire as h2
import pytest
from h2_core import ASK, BEGUN, HOLD, NOBODY, Clock, Core
from h2_wire import data, frame, in_frames, literal, message, request, reset, settings, window
from toy_rpc import ECHO, Toy

from tensorgate.gateway.config.resources import Limits
from tensorgate.gateway.telemetry.connection_metrics import ListenerCounters
from tensorgate.gateway.transport import grpc_connection
from tensorgate.gateway.transport.grpc_call import GrpcCall
from tensorgate.gateway.transport.grpc_exchange import GrpcLimits
from tensorgate.gateway.transport.grpc_server import GrpcServer
from tensorgate.gateway.wire.http1_body import PROCESS_QUOTA, SMALL_BYTES, Body, Quota
from tensorgate.gateway.wire.http2_frames import (
    ACK,
    DATA,
    DEFAULT_WINDOW,
    END_HEADERS,
    END_STREAM,
    ENHANCE_YOUR_CALM,
    FLOW_CONTROL_ERROR,
    FRAMES_AT_ONCE,
    FRAMES_PER_S,
    HEADERS,
    MAX_INT31,
    NO_ERROR,
    PING,
    REFUSED_STREAM,
    FrameBudget,
)

pytestmark = pytest.mark.usefixtures("nothing_left")


@pytest.fixture
def own_server() -> bool:
    """Limits are those of the gateway's own server."""
    return True


OPEN = literal(request(HOLD))
GIB = b"\0" + (1 << 30).to_bytes(4, "big")
"""What goes before a message of one gibibyte."""


def calls() -> int:
    return sum(isinstance(each, GrpcCall) for each in gc.get_objects())


def heads(first: int, count: int, block: bytes = OPEN, flags: int = 0) -> bytes:
    return b"".join(in_frames(first + 2 * n, block, flags) for n in range(count))


# ------------------------------------------------------------------------------------------------------------- streams


async def test_streams_are_limited_unless_the_configuration_says_otherwise() -> None:
    most = Limits().max_concurrent_streams
    assert most == 1000
    server = GrpcServer({}, ListenerCounters(), GrpcLimits(1 << 20, max_streams=most))
    assert (h2.STREAMS).to_bytes(2, "big") + most.to_bytes(4, "big") in server.context.greeting


def test_streams_count_before_the_client_has_heard_of_the_limit() -> None:
    core = Core(streams=10).feed(BEGUN, heads(1, 30))
    assert core.open == 10
    assert [core.wire.streams[n].reset for n in range(1, 61, 2)] == [None] * 10 + [REFUSED_STREAM] * 20


def test_a_refusal_is_a_frame_among_others_and_no_call() -> None:
    core = Core(streams=10).feed(BEGUN, heads(1, 10))
    before = core.pipe.writes
    reads = 0
    made = calls()
    flood = heads(21, 2000)
    while flood:
        flood = flood[core.take(flood) :]
        reads += 1
        while core.steps:
            core.steps.popleft()()
            reads += 1
    core.look()
    assert sum(stream.reset == REFUSED_STREAM for stream in core.wire.streams.values()) == 2000
    assert core.pipe.writes - before <= reads < 200
    assert calls() <= made


def test_a_refused_block_changes_the_table_all_the_same() -> None:
    insert = b"\x40" + literal([("x-user", "bob")])[1:]
    core = Core(streams=1).feed(BEGUN, heads(1, 1), heads(3, 1, OPEN + insert), reset(1))
    core.feed(in_frames(5, literal(request(ASK)) + b"\xbe"), data(5, message(b""), end=True))
    assert core.wire.streams[3].reset == REFUSED_STREAM
    assert core.calls[0][0]["x-user"] == "bob"


def test_what_follows_on_a_refused_stream_is_ignored() -> None:
    core = Core(streams=1).feed(BEGUN, heads(1, 2), data(3, message(b"x")), data(3, b"y", end=True))
    assert core.wire.streams[3].resets == [REFUSED_STREAM]
    assert core.broken is None


def test_all_connections_share_a_bound_beyond_what_each_may_have(monkeypatch: pytest.MonkeyPatch) -> None:
    shared = Quota(50)
    monkeypatch.setattr(grpc_connection, "_STREAMS", shared)
    greedy, modest, late = (Core(streams=1000) for _ in range(3))
    greedy.feed(BEGUN, heads(1, 300))
    assert (greedy.open, shared.left) == (150, 0)
    modest.feed(BEGUN, heads(1, 100))
    assert modest.open == 100
    modest.feed(heads(201, 1))
    assert modest.open == 100
    greedy.feed(*(reset(1 + 2 * n) for n in range(20)))
    assert shared.left == 20
    late.feed(BEGUN, heads(1, 110))
    assert (late.open, shared.left) == (110, 10)
    for core in (greedy, modest, late):
        core.leave()
    assert shared.left == 50


def test_a_broken_block_takes_no_place_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    shared = Quota(50)
    monkeypatch.setattr(grpc_connection, "_STREAMS", shared)
    core = Core(streams=1000).feed(BEGUN, heads(1, 110), in_frames(301, b"\xbe"))
    assert core.broken == 9
    assert shared.left == 50


# ------------------------------------------------------------------------------------------------------------- windows


class Walked(dict):  # type: ignore[type-arg]
    """A table of streams that knows how often somebody has gone through it."""

    walks = 0

    def values(self) -> object:  # type: ignore[override]
        self.walks += 1
        return super().values()

    def items(self) -> object:  # type: ignore[override]
        self.walks += 1
        return super().items()

    def __iter__(self) -> object:  # type: ignore[override]
        self.walks += 1
        return super().__iter__()


def test_a_window_in_settings_is_one_number() -> None:
    core = Core(streams=1000).feed(BEGUN, heads(1, 1000))
    streams = core.connection._streams = Walked(core.connection._streams)
    core.feed(*(settings((h2.WINDOW, DEFAULT_WINDOW + n % 7)) for n in range(5000)))
    assert (core.broken, core.open, core.wire.acks, streams.walks) == (None, 1000, 5001, 0)


def test_a_window_that_only_some_settings_make_too_large() -> None:
    core = Core().feed(BEGUN, heads(1, 2), window(1, MAX_INT31 - DEFAULT_WINDOW), settings((h2.WINDOW, DEFAULT_WINDOW)))
    assert core.broken is None
    core.feed(reset(1), settings((h2.WINDOW, MAX_INT31)))
    assert core.broken is None, "the stream that had so large a window is over"
    core.feed(settings((h2.WINDOW, DEFAULT_WINDOW)), window(3, 1), settings((h2.WINDOW, MAX_INT31)))
    assert core.broken == FLOW_CONTROL_ERROR


def test_a_window_that_is_too_large_ends_one_stream() -> None:
    core = Core().feed(BEGUN, heads(1, 2), window(1, MAX_INT31), window(3, MAX_INT31))
    assert core.wire.streams[1].reset == core.wire.streams[3].reset == FLOW_CONTROL_ERROR
    assert core.broken is None


# ------------------------------------------------------------------------------------------------ frames without a load

IDLE = {
    "SETTINGS": settings((h2.WINDOW, 70_000)),
    "empty SETTINGS": settings(),
    "PING": frame(PING, 0, 0, b"12345678"),
    "PING that answers": frame(PING, ACK, 0, b"12345678"),
    "PRIORITY": frame(h2.PRIORITY_FRAME, 0, 1, bytes(5)),
    "RST_STREAM": reset(1),
    "WINDOW_UPDATE": window(0, 1),
    "WINDOW_UPDATE of a stream": window(1, 1),
    "unknown": frame(0x63, 0, 0, b"?"),
    "empty DATA": data(3),
    "padding": frame(DATA, 0x8, 3, b"\3\0\0\0"),
    "DATA of a stream that is over": data(1, b"x"),
    "refused HEADERS": b"",
    "malformed HEADERS": b"",
}


@pytest.mark.parametrize("name", IDLE)
def test_frames_that_carry_nothing_have_a_budget(name: str) -> None:
    clock = Clock()
    core = Core(clock, streams=2).feed(BEGUN, heads(1, 1), reset(1), heads(3, 1))
    spent, at = 2, 5  # SETTINGS and a reset

    def some(count: int) -> bytes:
        nonlocal at
        if IDLE[name]:
            return IDLE[name] * count
        block = OPEN if name == "refused HEADERS" else literal([*request(HOLD), ("X", "")])
        if name == "refused HEADERS" and at == 5:
            core.feed(heads(at, 1))
            at += 2
        at += 2 * count
        return heads(at - 2 * count, count, block, END_STREAM)

    core.feed(some(FRAMES_AT_ONCE - spent))
    assert core.broken is None
    clock.now += 2
    core.feed(some(2 * FRAMES_PER_S))
    assert core.broken is None, "time gives some back"
    core.feed(some(1))
    assert core.broken == ENHANCE_YOUR_CALM


def test_nothing_is_saved_up() -> None:
    clock = Clock()
    budget = FrameBudget(clock)
    clock.now += 1e6
    budget.earned = 10**9
    budget.spend(FRAMES_AT_ONCE)
    budget.spend()
    core = Core(clock).feed(BEGUN, IDLE["PING"] * (FRAMES_AT_ONCE - 1))
    assert core.broken is None


def test_whoever_gets_answers_may_open_windows_for_them() -> None:
    """Windows as small as nobody's: one for each hundred bytes of a stream of calls."""
    core = Core().feed(BEGUN)
    for n in range(1, 40_000, 2):
        core.feed(in_frames(n, literal(request(ASK))), data(n, message(b"x"), end=True), window(0, 100), IDLE["PING"])
    assert core.broken is None
    assert len(core.calls) == 20_000


def test_settings_in_one_frame_cost_as_much_as_in_many() -> None:
    core = Core().feed(BEGUN)
    for _ in range(300):
        core.feed(settings(*[(h2.WINDOW, 70_000)] * 2000))
    assert core.broken == ENHANCE_YOUR_CALM


# --------------------------------------------------------------------------------------------------------------- turns


@pytest.mark.parametrize("name", ["PING", "empty DATA", "WINDOW_UPDATE"])
def test_others_have_their_turn_within_a_flood(name: str) -> None:
    core = Core().feed(BEGUN, heads(1, 2))
    flood = IDLE[name] * 5000
    level, turns = core.connection._budget.left, 0
    while flood:
        flood = flood[core.take(flood) :]
        while True:
            assert level - core.connection._budget.left <= 64
            level, turns = core.connection._budget.left, turns + 1
            if not core.steps:
                break
            assert not core.pipe.reading, "more is read before others had their turn"
            core.steps.popleft()()
        assert core.pipe.reading
    assert turns >= 5000 // 64
    core.look()
    assert core.broken is None


def test_one_read_is_not_much() -> None:
    """Half a frame is no reason to read half a megabyte of frames behind it."""
    core = Core().feed(BEGUN, heads(1, 1), frame(PING, 0, 0, b"12345678")[:12])
    assert len(core.connection.get_buffer(-1)) <= 16 << 10


def test_a_flood_behind_some_data_has_its_turns_too() -> None:
    """Of which much is read at once."""
    core = Core().feed(BEGUN, heads(1, 1), data(1, GIB + bytes(20_000))[:15_000])
    core.take(data(1, GIB + bytes(20_000))[15_000:] + IDLE["PING"] * 5000)
    assert len(core.connection._unread) > 80_000
    turns = 0
    while core.steps:
        core.steps.popleft()()
        turns += 1
    core.look()
    assert len(core.wire.pongs) == 5000
    assert turns >= 5000 // 64


async def test_a_probe_is_answered_within_a_flood(toy: Toy) -> None:
    """Over sockets: another connection has its answer before the flood has been read to its end."""
    async with await h2.connect(toy.port) as flood, await h2.connect(toy.port) as other:
        await flood.settled()
        await other.settled()
        answered: list[int] = []
        flood.send(frame(PING, 0, 0, b"12345678") * 9000, frame(PING, 0, 0, b"the last"))
        stream = other.ask(ECHO, b"hello")
        await other.answer(stream)
        answered.append(len(flood.pongs))
        await flood.until(lambda: b"the last" in flood.pongs)
        assert answered[0] < 9000


# -------------------------------------------------------------------------------------------------------------- memory


def claim(stream: int, block: bytes = OPEN) -> bytes:
    return in_frames(stream, block) + data(stream, GIB + b"x")


def test_claims_of_one_connection_are_bounded() -> None:
    before = PROCESS_QUOTA.taken
    core = Core(streams=1000).feed(BEGUN, *(claim(1 + 2 * n) for n in range(1000)))
    assert core.open == 1000
    held = [rpc.receiver() for rpc in core.connection._streams.values()]
    assert sum(len(each.room) for each in held) <= (1 << 30) + 1000 * SMALL_BYTES
    assert all(each.missing == (1 << 30) - 1 for each in held)
    assert PROCESS_QUOTA.taken - before == 1 << 30
    core.feed(reset(1))
    assert PROCESS_QUOTA.taken == before
    core.leave()
    assert PROCESS_QUOTA.taken == before


def test_claims_of_all_connections_are_bounded() -> None:
    before = PROCESS_QUOTA.taken
    cores = [Core(streams=10).feed(BEGUN, claim(1)) for _ in range(20)]
    assert PROCESS_QUOTA.taken - before <= 4 << 30
    held = [rpc.receiver() for core in cores for rpc in core.connection._streams.values()]
    assert sum(len(each.room) for each in held) <= (4 << 30) + 20 * SMALL_BYTES
    for core in cores:
        core.leave()
    assert PROCESS_QUOTA.taken == before


@pytest.mark.parametrize("step", [1000, 65_536, 10**6])
@pytest.mark.parametrize("most", [0, 200_000])
def test_a_message_beyond_the_bound_arrives_all_the_same(most: int, step: int) -> None:
    """It grows, or has its place as soon as there is one."""
    quota = Quota(most)
    content = bytes(n * 31 % 251 for n in range(4096)) * 40
    body, rest, peak = Body(len(content), content[:10], quota), memoryview(content)[10:], 0
    assert body.missing == len(rest)
    while rest:
        part = rest[: min(step, len(body.room))]
        body.room[: len(part)] = part
        body.commit(len(part))
        rest = rest[len(part) :]
        assert body.missing == len(rest)
        peak = max(peak, len(body.room))
        assert len(body.room) <= max(SMALL_BYTES, len(content) - len(rest)) or most
    assert body.whole() == content
    assert quota.taken == 0


def test_a_place_that_becomes_free_is_taken() -> None:
    quota = Quota(200_000)
    first = Body(200_000, b"", quota)
    second = Body(150_000, b"", quota)
    assert len(second.room) == SMALL_BYTES
    del first
    second.room[:] = bytes(SMALL_BYTES)
    second.commit(SMALL_BYTES)
    assert len(second.room) == 150_000 - SMALL_BYTES
    assert quota.taken == 150_000


def test_nothing_large_is_kept_of_somebody_who_will_be_refused() -> None:
    before = PROCESS_QUOTA.taken
    core = Core().feed(BEGUN, claim(1, literal(request(NOBODY))))
    told = core.wire.streams[1]
    assert (told.status, told.text, told.reset) == (16, "who are you?", NO_ERROR)
    core.feed(data(1, bytes(100_000)), data(1, b"", end=True))
    assert (core.open, core.broken, PROCESS_QUOTA.taken) == (0, None, before)


def test_a_small_message_of_somebody_who_will_be_refused() -> None:
    """Whether it is answered at once or with its end: in the same words."""
    core = Core().feed(BEGUN, in_frames(1, literal(request(NOBODY))), data(1, message(b""), end=True))
    assert (core.wire.streams[1].status, core.wire.streams[1].reset) == (16, None)


def test_a_head_that_is_answered_without_a_body() -> None:
    core = Core().feed(BEGUN, frame(HEADERS, END_HEADERS | END_STREAM, 1, literal(request("/no/such"))))
    assert (core.wire.streams[1].status, core.open) == (12, 0)

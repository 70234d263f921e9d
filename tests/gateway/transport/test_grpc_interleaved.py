"""Callers who share a connection get what each would get on one of its own, whatever the others do to the table that
their headers are written with: trailers, new sizes, streams that are cancelled, refused, malformed or over.

What they say is written by the package hpack, whose table is the oracle for ours. What they share are names and values,
so that the same bytes mean one thing now and another a little later.
"""

import asyncio
import json
import random
from collections.abc import Callable
from typing import Any, NamedTuple

import grpc
import hpack
import pytest
from h2_core import ASK, BEGUN, HOLD, Core
from h2_wire import data, in_frames, literal, message, request, reset
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from toy_rpc import HOLD as TOY_HOLD
from toy_rpc import TELL, Toy

from tensorgate.gateway.transport.grpc_connection import GrpcServerConnection
from tensorgate.gateway.transport.grpc_head import CallHead, read_call_head
from tensorgate.gateway.wire import hpack as ours
from tensorgate.gateway.wire.http2_frames import END_STREAM, MIN_FRAME_BYTES, REFUSED_STREAM

STREAMS = 3
Fields = tuple[tuple[str, str], ...]

USERS: list[Fields] = [(("x-user", name),) for name in ("alice", "bob")]
KEYS: list[Fields] = [(("x-key", "k1"), *user) for user in USERS]
FIELDS: st.SearchStrategy[Fields] = st.sampled_from([*USERS, *USERS, *USERS, *KEYS, (), (("x-long", "v" * 900),)])
SIZES = (50, 100, 0, 4096)
"""Of the table: with one entry, or two, the same few bytes mean another caller all the time."""


class Op(NamedTuple):
    """What one caller does next: `kind` of the things that `Talk` can do, with these headers, and with those in its
    trailers, in frames of this size.
    """

    kind: str
    fields: Fields
    trailers: Fields
    size: int


KINDS = (
    ["call"] * 5
    + ["trailers"] * 3
    + ["release"] * 2
    + ["behind", "late", "cancel", "hold", "malformed", "unknown", "resize"]
)
OPS = st.lists(
    st.builds(Op, st.sampled_from(KINDS), FIELDS, FIELDS, st.sampled_from([1, 40, MIN_FRAME_BYTES, MIN_FRAME_BYTES])),
    min_size=15,
    max_size=40,
)


class Talk:
    """One connection, and what should come of it."""

    def __init__(self, core: Core, cut: int, size: int) -> None:
        self.core = core.feed(BEGUN)
        self._cut = cut
        self._encoder = hpack.Encoder()
        self._encoder.header_table_size = size
        self._next = 1
        self._held: list[int] = []

    def block(self, path: str, fields: Fields, *more: tuple[str, str]) -> bytes:
        """What all calls say leaves no trace, what the caller says is in the table."""
        usual = [hpack.NeverIndexedHeaderTuple(*pair) for pair in request(path, *more)]
        return bytes(self._encoder.encode([*usual, *fields]))

    def feed(self, *parts: bytes) -> None:
        whole = b"".join(parts)
        for at in range(0, len(whole), self._cut):
            self.core.feed(whole[at : at + self._cut])

    def do(self, op: Op) -> None:
        stream, self._next = self._next, self._next + 2
        getattr(self, f"_{op.kind}")(stream, op)
        assert self.core.broken is None

    def check(self, stream: int, fields: Fields) -> None:
        """An answer, or a refusal where too many calls are open."""
        told = self.core.wire.streams[stream]
        if len(self._held) >= STREAMS:
            assert told.reset == REFUSED_STREAM
        else:
            assert told.body == alone(fields)

    def _call(self, stream: int, op: Op) -> None:
        self._ask(stream, op.fields, op.size)
        self._ask_again(op.fields, op.size)

    def _ask(self, stream: int, fields: Fields, size: int) -> None:
        self.feed(in_frames(stream, self.block(ASK, fields), 0, size), data(stream, message(b"hello"), end=True))
        self.check(stream, fields)

    def _ask_again(self, fields: Fields, size: int) -> None:
        """The second time all of it may be in the table."""
        self._next += 2
        self._ask(self._next - 2, fields, size)

    def _trailers(self, stream: int, op: Op) -> None:
        """Of a call that is open. Who asks next has headers like these trailers."""
        self.feed(in_frames(stream, self.block(HOLD, op.fields), 0, op.size), data(stream, message(b"hello")))
        self.feed(in_frames(stream, bytes(self._encoder.encode(list(op.trailers))), END_STREAM, op.size))
        assert self.core.wire.streams[stream].reset == (REFUSED_STREAM if len(self._held) >= STREAMS else None)
        self.feed(reset(stream))
        self.core.connection._cancelled.clear()  # nobody takes the steps of tasks here
        self._ask_again(op.trailers, op.size)

    def _behind(self, stream: int, op: Op) -> None:
        """Trailers behind the answer."""
        self.feed(in_frames(stream, self.block(ASK, op.fields), 0, op.size), data(stream, message(b"hello")))
        self.check(stream, op.fields)
        self.feed(in_frames(stream, bytes(self._encoder.encode(list(op.trailers))), END_STREAM, op.size))
        self._ask_again(op.trailers, op.size)

    def _late(self, stream: int, op: Op) -> None:
        """A second head in mid-stream, which ends that stream."""
        self.feed(in_frames(stream, self.block(HOLD, op.fields), 0, op.size))
        self.feed(in_frames(stream, bytes(self._encoder.encode(list(op.trailers))), 0, op.size))
        assert self.core.wire.streams[stream].reset is not None

    def _cancel(self, stream: int, op: Op) -> None:
        self.feed(in_frames(stream, self.block(ASK, op.fields), 0, op.size), reset(stream))

    def _hold(self, stream: int, op: Op) -> None:
        self.feed(in_frames(stream, self.block(HOLD, op.fields), 0, op.size), data(stream, message(b"x"), end=True))
        if len(self._held) < STREAMS:
            self._held.append(stream)

    def _release(self, stream: int, op: Op) -> None:
        if self._held:
            self.feed(reset(self._held.pop(0)))
        self.core.connection._cancelled.clear()

    def _malformed(self, stream: int, op: Op) -> None:
        self.feed(in_frames(stream, self.block(ASK, op.fields, ("connection", "close")), END_STREAM, op.size))
        assert self.core.wire.streams[stream].reset is not None

    def _unknown(self, stream: int, op: Op) -> None:
        self.feed(in_frames(stream, self.block("/no/such", op.fields), END_STREAM, op.size))
        assert self.core.wire.streams[stream].over

    def _resize(self, stream: int, op: Op) -> None:
        """Said with the next block, to which hpack remembers one such change alone."""
        if not self._encoder.header_table.resized:
            self._encoder.header_table_size = SIZES[(len(op.fields) + len(op.trailers)) % 4]


_ALONE: dict[Fields, bytes] = {}


def alone(fields: Fields) -> bytes:
    """What a connection of its own gives, by headers that need no table."""
    if fields not in _ALONE:
        core = Core().feed(BEGUN, in_frames(1, literal([*request(ASK), *fields])), data(1, message(b"hello"), end=True))
        _ALONE[fields] = core.wire.streams[1].body
    return _ALONE[fields]


def talk(ops: list[Op], cut: int, size: int) -> None:
    one = Talk(Core(streams=STREAMS), cut, size)
    try:
        for op in ops:
            one.do(op)
    finally:
        one.core.leave()


EXAMPLES = 60
BOUNDED = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}


@settings(max_examples=EXAMPLES, **BOUNDED)  # type: ignore[arg-type]
@given(OPS, st.sampled_from([1, 30, 1 << 20, 1 << 20]), st.sampled_from(SIZES))
def test_callers_get_what_they_would_get_alone(ops: list[Op], cut: int, size: int) -> None:
    talk(ops, cut, size)


def _filled(self: GrpcServerConnection, block: bytes) -> CallHead:
    """As it once was: the table's state was looked at when a head was remembered, and not when it was found."""
    if (head := self._known_heads.get(block)) is not None:
        return head
    before = self._decoder.changes
    head = read_call_head(self._decoder.read(block), self._context.handlers, self._context.limits.max_metadata_bytes)
    if self._decoder.changes != before:
        self._known_heads.clear()
    else:
        self._known_heads[block] = head
    return head


def _deaf_to_refusals(self: GrpcServerConnection, number: int, flags: int, block: bytes) -> None:
    """Headers of a call too many, which are not read at all."""
    self._last_stream = number
    self._respond(reset(number, REFUSED_STREAM))


FAULTS: dict[str, tuple[str, Callable[..., Any]]] = {
    "heads that outlive the table": ("_read_head", _filled),
    "refused headers that are not read": ("_refuse_stream", _deaf_to_refusals),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_what_was_once_wrong_would_be_found(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The property above is sharp enough: put back, the fault does not get past so many examples."""
    monkeypatch.setattr(GrpcServerConnection, *FAULTS[fault])
    tried = settings(
        max_examples=EXAMPLES,
        derandomize=True,
        database=None,
        phases=[Phase.generate],
        report_multiple_bugs=False,
        **BOUNDED,
    )  # type: ignore[arg-type]

    @tried
    @given(OPS, st.sampled_from(SIZES))
    def attempt(ops: list[Op], size: int) -> None:
        nonlocal tries
        tries += 1
        talk(ops, 1 << 20, size)

    tries = 0
    with pytest.raises(AssertionError):
        attempt()
    assert tries <= EXAMPLES


# ---------------------------------------------------------------------------------------------------- the table itself

NAMES = st.sampled_from(["x", "x-user", ":path", "te", "cookie", "x" * 300])
TEXTS = st.text(st.characters(min_codepoint=0x20, max_codepoint=0x7E), max_size=40)
PAIRS = st.lists(st.tuples(NAMES, TEXTS), max_size=6)


@settings(max_examples=200, **BOUNDED)  # type: ignore[arg-type]
@given(st.lists(st.tuples(PAIRS, st.booleans(), st.sampled_from([None, None, 0, 64, 500, 4096])), max_size=12))
def test_what_hpack_writes_is_read(blocks: list[tuple[list[tuple[str, str]], bool, int | None]]) -> None:
    encoder, decoder = hpack.Encoder(), ours.Decoder(1 << 20)
    for pairs, huffman, size in blocks:
        if size is not None:
            encoder.header_table_size = size
        assert decoder.read(encoder.encode(pairs, huffman=huffman)) == pairs
        assert [*decoder._table] == [(n.decode(), v.decode()) for n, v in encoder.header_table.dynamic_entries]


@settings(max_examples=400, **BOUNDED)  # type: ignore[arg-type]
@given(st.lists(st.binary(max_size=60), max_size=4), st.integers(0, 10**6))
def test_any_bytes_are_read_as_hpack_reads_them(blocks: list[bytes], seed: int) -> None:
    """Blocks and noise: both say the same, or both refuse, and the tables stay the same."""
    chance = random.Random(seed)  # noqa: S311
    encoder = hpack.Encoder()
    theirs, decoder = hpack.Decoder(), ours.Decoder(1 << 20)
    for noise in blocks:
        block = bytearray(encoder.encode([("x-user", "bob"), ("x", noise.hex())], huffman=chance.random() < 0.5))
        if chance.random() < 0.7:
            block[chance.randrange(len(block)) :] = noise
        try:
            wanted: Any = theirs.decode(bytes(block), raw=True)
        except (hpack.HPACKError, UnicodeDecodeError):
            wanted = None
        try:
            found = decoder.read(bytes(block))
        except ours.BadBlock:
            assert wanted is None
            return
        if wanted is None:
            return  # it has bounds of its own
        assert found == [(name.decode("latin-1"), value.decode("latin-1")) for name, value in wanted]


@settings(max_examples=200, **BOUNDED)  # type: ignore[arg-type]
@given(PAIRS)
def test_what_we_write_is_read_by_hpack(pairs: list[tuple[str, str]]) -> None:
    decoder = hpack.Decoder()
    assert decoder.decode(ours.encode(pairs)) == pairs
    assert not decoder.header_table.dynamic_entries


# ------------------------------------------------------------------------------------------------------- whole calls


async def test_callers_of_one_channel_of_grpc(toy: Toy) -> None:
    """gRPC's own client: forty callers at a time with metadata of their own, some of whom leave."""
    chance = random.Random(14)  # noqa: S311
    async with grpc.aio.insecure_channel(f"127.0.0.1:{toy.port}") as channel:

        async def call(number: int) -> None:
            said = [("x-user", chance.choice(["alice", "bob", "carol"])), ("x-number", str(number % 7))]
            if number % 5 == 0:
                held = channel.unary_unary(TOY_HOLD)(b"", metadata=said)
                await asyncio.sleep(0)
                held.cancel()
            if number % 3 == 0:
                said.append((f"x-{number}", "n" * 200))
            told = json.loads(await channel.unary_unary(TELL)(b"", metadata=said, timeout=60 + number % 2))
            assert {name: told["headers"].get(name) for name, _ in said} == dict(said)

        for first in range(0, 400, 40):
            await asyncio.gather(*map(call, range(first, first + 40)))

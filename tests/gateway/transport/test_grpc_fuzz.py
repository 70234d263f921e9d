"""HTTP/2 fuzzed from a corpus: whatever a client says, and in whatever pieces it comes, the reaction is one and the
same, nothing is raised, and nothing is kept behind the end.
"""

import random
from pathlib import Path

import pytest
from h2_core import BEGUN, Core
from hypothesis import given, settings
from hypothesis import strategies as st

from tensorgate.gateway.transport import grpc_connection
from tensorgate.gateway.wire.http1_body import PROCESS_QUOTA

pytestmark = pytest.mark.usefixtures("nothing_left")

CORPUS = [
    bytes.fromhex(line.partition("#")[0])
    for line in (Path(__file__).parent / "http2_corpus.txt").read_text().splitlines()
    if not line.startswith("#")
]
ODD = (0, 1, 2, 4, 5, 7, 8, 9, 0x20, 0x25, 0x3F, 0x40, 0x7F, 0x80, 0xBE, 0xFF)
"""Bytes that mean something in many places."""


def mutated(chance: random.Random) -> bytes:
    """Some of the corpus, one behind the other, with some bytes changed, left out, put in, or said twice."""
    talk = bytearray(b"".join(chance.sample(CORPUS, chance.choice([1, 1, 2, 3]))))
    for _ in range(chance.choice([0, 1, 1, 2, 4, 16])):
        at = chance.randrange(len(talk) + 1)
        match chance.randrange(5):
            case 0:
                talk[at : at + 1] = bytes([chance.choice(ODD)])
            case 1:
                del talk[at : at + chance.randrange(1, 12)]
            case 2:
                talk[at:at] = chance.randbytes(chance.randrange(1, 12))
            case 3:
                part = talk[at : at + chance.randrange(1, 60)]
                talk[at:at] = part * chance.choice([1, 2, 50])
            case _:
                talk[at:at] = chance.choice(CORPUS)
    return bytes(talk)


def outcome(talk: bytes, sizes: list[int]) -> tuple[object, ...]:
    """What comes of it in pieces of these sizes, over and over: what each stream was told, and the end."""
    held, open_ = PROCESS_QUOTA.taken, grpc_connection._STREAMS.taken
    core = Core(streams=5).feed(BEGUN)
    at = turn = 0
    while at < len(talk):
        size = sizes[turn % len(sizes)]
        core.feed(talk[at : at + size])
        at, turn = at + size, turn + 1
    streams = {
        number: (stream.blocks, bytes(stream.data), stream.ended, stream.resets)
        for number, stream in core.wire.streams.items()
    }
    found = streams, core.broken, core.wire.pongs, core.calls
    core.leave()
    assert core.open == 0
    assert (PROCESS_QUOTA.taken, grpc_connection._STREAMS.taken) == (held, open_)
    return found


@pytest.mark.parametrize("seed", range(10))
def test_pieces_make_no_difference(seed: int) -> None:
    chance = random.Random(seed)  # noqa: S311
    for _ in range(60):
        talk = mutated(chance)
        whole = outcome(talk, [1 << 20])
        assert outcome(talk, [chance.randrange(1, 40) for _ in range(5)]) == whole, talk.hex()
        if len(talk) < 400:
            assert outcome(talk, [1]) == whole, talk.hex()


@settings(max_examples=150, deadline=None)
@given(st.lists(st.sampled_from(CORPUS) | st.binary(max_size=40), max_size=5), st.lists(st.integers(1, 50), min_size=1))
def test_pieces_of_anything(parts: list[bytes], sizes: list[int]) -> None:
    talk = b"".join(parts)
    assert outcome(talk, sizes) == outcome(talk, [1 << 20])

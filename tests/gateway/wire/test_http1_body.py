"""Bodies are received without a copy, and are bytes like all others."""

import resource

import pytest

from tensorgate.gateway.wire.http1_body import Body


@pytest.mark.parametrize("length", [1, 2, 3, 1000, 5_000_000])
@pytest.mark.parametrize("begun", [0, 1, 999])
@pytest.mark.parametrize("step", [1, 7, 65536, 10**7])
def test_a_body_in_steps(length: int, begun: int, step: int) -> None:
    if begun >= length or length // step > 10_000:
        begun, step = 0, length
    content = bytes(n * 31 % 251 for n in range(min(length, 4096))) * (length // 4096 + 1)
    content = content[:length]
    body = Body(length, content[:begun])
    while body.room:
        part = content[length - len(body.room) :][:step]
        body.room[: len(part)] = part
        body.commit(len(part))
    whole = body.whole()
    assert type(whole) is bytes
    assert whole == content
    assert hash(whole) == hash(content)
    assert {content: 1}[whole] == 1


def test_two_bodies_of_one_length_are_two() -> None:
    first, second = Body(1, b""), Body(1, b"")
    first.room[:] = b"a"
    second.room[:] = b"b"
    assert (first.whole(), second.whole(), b"a", b"b") == (b"a", b"b", b"\x61", b"\x62")


def test_a_claim_costs_no_memory() -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    bodies = [Body(1 << 30, b"x") for _ in range(4)]
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 1 << 19  # KiB
    assert len(bodies) == 4

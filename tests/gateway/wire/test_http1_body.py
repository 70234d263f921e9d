"""Bodies are received without a copy, and are bytes like all others."""

import resource

import pytest

from tensorgate.gateway.wire.grpc_messages import MESSAGE_PREFIX, Incoming
from tensorgate.gateway.wire.http1_body import SHARED_BODIES, SMALL_BYTES, Body, Quota


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


class Memory:
    """Memory that another process reads, too, as long as there is some."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, count: int = 1 << 20) -> None:
        self.given: list[bytearray] = []
        self._count = count
        monkeypatch.setattr(SHARED_BODIES, "allocate", self.allocate)

    def allocate(self, size: int) -> memoryview | None:
        if len(self.given) == self._count:
            return None
        self.given.append(bytearray(size))
        return memoryview(self.given[-1])


def filled(body: Body, content: bytes, step: int = 10_000) -> bytes | memoryview:
    while body.room:
        part = content[len(content) - body.missing :][: min(step, len(body.room))]
        body.room[: len(part)] = part
        body.commit(len(part))
    return body.whole()


@pytest.mark.parametrize("length", [SMALL_BYTES, SMALL_BYTES + 1, 500_000])
@pytest.mark.parametrize("is_shared", [False, True])
def test_a_large_body_lies_in_shared_memory(monkeypatch: pytest.MonkeyPatch, length: int, is_shared: bool) -> None:
    memory = Memory(monkeypatch)
    content = bytes(range(250)) * (length // 250 + 1)
    content = content[:length]
    whole = filled(Body(length, content[:100], is_shared=is_shared), content)
    assert whole == content
    if is_shared and length > SMALL_BYTES:
        assert isinstance(whole, memoryview)
        assert whole.obj is memory.given[0]
        assert whole.readonly
    else:
        assert type(whole) is bytes
        assert not memory.given


@pytest.mark.parametrize("count", [0, 1, 2, 9])
def test_a_body_that_grows_where_shared_memory_ends(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    memory = Memory(monkeypatch, count)
    content = bytes(range(250)) * 4000
    body = Body(len(content), content[:70_000], Quota(100_000), is_shared=True)
    assert filled(body, content) == content
    assert len(memory.given) == min(count, 4)


def test_without_shared_memory_all_bodies_are_bytes() -> None:
    assert type(filled(Body(200_000, b"", is_shared=True), bytes(200_000))) is bytes


@pytest.mark.parametrize("compressed", [False, True])
def test_large_messages_of_grpc(monkeypatch: pytest.MonkeyPatch, compressed: bool) -> None:
    Memory(monkeypatch)
    content = bytes(range(250)) * 1000
    data = MESSAGE_PREFIX.pack(compressed, len(content)) + content + MESSAGE_PREFIX.pack(0, 3) + b"abc"
    incoming = Incoming(1 << 20)
    found = [each for at in range(0, len(data), 40_000) for each in incoming.take(memoryview(data)[at : at + 40_000])]
    assert [(bytes(body), flag) for body, flag in found] == [(content, compressed), (b"abc", False)]
    assert [type(body) for body, _ in found] == [bytes if compressed else memoryview, bytes]

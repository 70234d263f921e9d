"""What is kept of a call that passes unread, and when it is not compared."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tensorgate.gateway.contract.call import Call, Reply
from tensorgate.gateway.contract.canonical import InferResponse
from tensorgate.gateway.contract.errors import ModelFailed, Unavailable
from tensorgate.gateway.routing.mirrored_call import CopiedCall, MirroredCall


class Keeper:
    """Room for so many bytes, and what became of copies."""

    def __init__(self, room: int = 1 << 20) -> None:
        self.room = room
        self.done: list[str] = []

    def hold(self, copy: MirroredCall, nbytes: int) -> bool:
        if nbytes > self.room:
            return False
        self.room -= nbytes
        copy.nbytes += nbytes
        return True

    def drop(self) -> None:
        self.done.append("dropped")

    def release(self, copy: MirroredCall) -> None:
        self.room += copy.nbytes
        self.done.append("released")

    def send(self, copy: MirroredCall) -> None:
        self.done.append("sent")


class Forwarder:
    """A server that says these pieces with this status."""

    def __init__(self, pieces: list[bytes], status: int = 200, *, takes: bool = True) -> None:
        self.pieces, self.status, self.is_taken = pieces, status, takes
        self.asked: list[tuple[Call, bool, bool]] = []

    def takes(self, call: Call, name: str) -> bool:
        return self.is_taken

    async def forward(
        self, call: Call, headers: Mapping[str, str], *, streams: bool, whole: bool
    ) -> AsyncGenerator[Reply, None]:
        self.asked.append((call, streams, whole))
        for piece in self.pieces:
            yield Reply(piece, self.status, streamed=streams)


def read(body: bytes) -> InferResponse:
    if body == b"no answer":
        raise ModelFailed("no answer")
    return InferResponse({"text": np.array([body], object)})


def copied(keeper: Keeper) -> MirroredCall:
    call = Call(b"{}", "POST", "/v1/completions", {}, "http", deadline=1.0)
    view: Any = SimpleNamespace(name="m")
    return MirroredCall(keeper, CopiedCall(call, read, "m", True), view, lambda chosen: view)


async def test_what_was_answered_is_read_when_the_call_is_over() -> None:
    keeper = Keeper()
    with copied(keeper) as copy:
        copy.take(b"one ")
        copy.take(memoryview(b"two"))
    assert keeper.done == ["sent"]
    primary = await copy.primary()
    assert isinstance(primary.outcome, InferResponse)
    assert primary.outcome.outputs["text"].tolist() == [b"one two"]
    assert primary.seconds > 0


async def test_what_is_no_answer_is_an_error_to_compare() -> None:
    with copied(Keeper()) as copy:
        copy.take(b"no answer")
    assert isinstance((await copy.primary()).outcome, ModelFailed)


async def test_a_long_answer_is_read_in_a_thread() -> None:
    with copied(Keeper()) as copy:
        copy.take(bytes(100_000))
    outcome = (await copy.primary()).outcome
    assert isinstance(outcome, InferResponse)
    assert outcome.outputs["text"].tolist() == [bytes(100_000)]


def test_one_too_large_for_the_room_is_dropped_and_gives_it_back() -> None:
    keeper = Keeper(10)
    with copied(keeper) as copy:
        for _ in range(4):
            copy.take(b"1234")
        assert keeper.room == 2
    assert keeper.done == ["dropped", "released"]
    assert keeper.room == 10


def test_nothing_is_compared_of_a_call_that_failed_or_said_nothing() -> None:
    keeper = Keeper()
    with copied(keeper):
        pass
    error = ConnectionResetError()
    copy = copied(keeper)
    copy.take(b"one")
    copy.__exit__(type(error), error, None)
    assert keeper.done == ["released", "released"]
    assert keeper.room == 1 << 20


async def test_the_shadow_gets_the_same_call_with_a_time_of_its_own() -> None:
    keeper, forwarder = Keeper(), Forwarder([b"one ", b"two"])
    copy, view = copied(keeper), SimpleNamespace(name="s", forwarder=forwarder)
    answer = await copy.answer(view, 5.0)  # type: ignore[arg-type]
    assert answer.outputs["text"].tolist() == [b"one two"]
    ((call, streams, whole),) = forwarder.asked
    assert (call.body, call.raw_target, streams, whole) == (b"{}", "/v1/completions", True, True)
    assert call.deadline is not None
    assert call.deadline > 1.0
    assert keeper.room == (1 << 20) - 7


@pytest.mark.parametrize(
    ("forwarder", "room", "error", "words"),
    [
        (None, 100, Unavailable, "are not passed on"),
        (Forwarder([], takes=False), 100, Unavailable, "are not passed on"),
        (Forwarder([b"away"], 503), 100, Unavailable, "answered 503: b'away'"),
        (Forwarder([b"1234", b"5678"]), 6, ModelFailed, "too large to be compared"),
        (Forwarder([b"no answer"]), 100, ModelFailed, "no answer"),
    ],
)
async def test_a_shadow_that_cannot(forwarder: Any, room: int, error: type[Exception], words: str) -> None:
    view: Any = SimpleNamespace(name="s", forwarder=forwarder)
    with pytest.raises(error, match=words):
        await copied(Keeper(room)).answer(view, 5.0)

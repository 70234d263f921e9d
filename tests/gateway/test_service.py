"""What the service does with answers besides handing them on."""

import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from gateway.canonical import InferRequest, InferResponse, TopK
from gateway.metrics import Metrics
from gateway.ports import Call, Endpoint, ModelView, NeedsThread, Reply
from gateway.questions import ServerDescription, ServerLive
from gateway.service import MANY_CLASSES, Service


class Answering:
    """A handle that gives every request this one answer."""

    def __init__(self, answer: InferResponse) -> None:
        self.answer = answer

    def submit(self, request: InferRequest) -> Any:
        return self

    async def __aiter__(self) -> Any:
        yield self.answer

    def abandon(self) -> None:
        pass


@pytest.mark.parametrize(("count", "elsewhere"), [(MANY_CLASSES // 2, False), (MANY_CLASSES // 2 + 1, True)])
async def test_many_classes_are_written_in_a_thread(
    count: int, elsewhere: bool, make_model: Callable[..., ModelView]
) -> None:
    best = TopK(np.zeros((2, count)), np.zeros((2, count), np.int64))
    view = replace(make_model("m", {}, {}), handle=Answering(InferResponse({}, classes={"y": best})))
    threads: list[threading.Thread] = []

    def encode(answer: Any, question: Any) -> Reply:
        threads.append(threading.current_thread())
        return Reply(b"")

    def decode(call: Call, resolve: Any) -> InferRequest:
        return InferRequest(view, {})

    class Nobody:
        resolve = None

    nobody: Any = Nobody()
    service = Service(nobody, nobody, nobody, Metrics(lambda: ()), ServerDescription("", ""))
    replies: list[Reply] = []

    async def send(reply: Reply) -> None:
        replies.append(reply)

    refuse: Any = None
    await service.handle("d", Endpoint("", "infer", decode, encode, refuse), Call(b"", "", "", {}, "http"), send)
    assert len(replies) == 1
    assert [thread is not threading.current_thread() for thread in threads] == [elsewhere]


async def test_a_decode_that_needs_a_thread_gets_one() -> None:
    """A short call may name much memory to read: it is decoded again, elsewhere."""
    tries: list[tuple[bool, bool]] = []

    def decode(call: Call, resolve: Any) -> ServerLive:
        tries.append((call.in_thread, threading.current_thread() is threading.main_thread()))
        if not call.in_thread:
            raise NeedsThread
        return ServerLive()

    nobody: Any = type("Nobody", (), {"resolve": None})()
    service = Service(nobody, nobody, nobody, Metrics(lambda: ()), ServerDescription("", ""))
    answers: list[Any] = []

    def encode(answer: Any, question: Any) -> Reply:
        answers.append(answer)
        return Reply(b"")

    async def send(reply: Reply) -> None:
        pass

    refuse: Any = None
    await service.handle("d", Endpoint("", "live", decode, encode, refuse), Call(b"", "", "", {}, "http"), send)
    assert tries == [(False, True), (True, False)]
    assert answers == [True]

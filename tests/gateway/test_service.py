"""What the service does with answers besides handing them on."""

import asyncio
import threading
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tensorgate.gateway import service as service_module
from tensorgate.gateway.contract.call import Call, MustOffload, Reply
from tensorgate.gateway.contract.canonical import INLINE_ENCODE_MAX_TEXTS, InferRequest, InferResponse, ModelView, TopK
from tensorgate.gateway.contract.dialect import Endpoint
from tensorgate.gateway.contract.errors import Code, GatewayError, InvalidArgument
from tensorgate.gateway.contract.questions import InferTogether, ServerDescription, ServerLive
from tensorgate.gateway.monitoring.metrics import MetricsCollector
from tensorgate.gateway.service import LARGE_BODY_BYTES, Service


def make_service() -> Service:
    engine: Any = SimpleNamespace(
        resolve=None,
        resolver=lambda call: None,
        discovers=False,
        check_forward=lambda call, ref: None,
        forwarded=lambda kind, named: None,
        named=lambda call: ("", ""),
        names=tuple,
        is_public=lambda name: False,
        ask=None,
        regions=None,
    )
    config: Any = None
    return Service(config, engine, MetricsCollector(), ServerDescription("", ""))


class Answering:
    """A handle that gives every request this one answer."""

    def __init__(self, answer: InferResponse) -> None:
        self._answer = answer

    def answer(self, request: InferRequest) -> InferResponse:
        return self._answer


@pytest.mark.parametrize(
    ("count", "elsewhere"), [(INLINE_ENCODE_MAX_TEXTS // 2, False), (INLINE_ENCODE_MAX_TEXTS // 2 + 1, True)]
)
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

    service = make_service()
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
            raise MustOffload
        return ServerLive()

    service = make_service()
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


class Submitted:
    """A handle that notes what becomes of each request, and answers or refuses it."""

    def __init__(self, *outcomes: InferResponse | GatewayError) -> None:
        self.outcomes = outcomes
        self.abandoned: list[int] = []
        self.submitted = 0

    def submit(self, request: InferRequest) -> Any:
        self.submitted += 1
        return OneOf(self, self.submitted - 1)


class OneOf:
    def __init__(self, handle: Submitted, index: int) -> None:
        self.handle = handle
        self.index = index

    def __aiter__(self) -> Any:
        return self

    async def __anext__(self) -> InferResponse:
        assert self.handle.submitted == len(self.handle.outcomes)  # all of them before the first is waited for
        outcome = self.handle.outcomes[self.index]
        if isinstance(outcome, GatewayError):
            raise outcome
        return outcome

    def abandon(self) -> None:
        self.handle.abandoned.append(self.index)


async def ask_together(handle: Submitted, view: ModelView) -> tuple[Any, list[Reply]]:
    answered: list[Any] = []
    replies: list[Reply] = []
    view = replace(view, handle=handle)

    def decode(call: Call, resolve: Any) -> InferTogether:
        return InferTogether(tuple(InferRequest(view, {}) for _ in handle.outcomes))

    def encode(answer: Any, question: Any) -> Reply:
        answered.extend(answer)
        return Reply(b"")

    def encode_error(error: GatewayError, call: Call) -> Reply:
        return Reply(str(error).encode(), grpc_code=error.code)

    async def send(reply: Reply) -> None:
        replies.append(reply)

    service = make_service()
    await service.handle("d", Endpoint("", "infer", decode, encode, encode_error), Call(b"", "", "", {}, "grpc"), send)
    return answered, replies


async def test_what_is_asked_together_is_answered_together(make_model: Callable[..., ModelView]) -> None:
    answers = InferResponse({}), InferResponse({})
    handle = Submitted(*answers)
    answered, replies = await ask_together(handle, make_model("m", {}, {}))
    assert answered == [*answers]
    assert [reply.grpc_code for reply in replies] == [Code.OK]


async def test_of_what_is_asked_together_the_first_error_ends_all(make_model: Callable[..., ModelView]) -> None:
    handle = Submitted(InferResponse({}), InvalidArgument("no"), InferResponse({}))
    answered, replies = await ask_together(handle, make_model("m", {}, {}))
    assert not answered
    assert [(reply.grpc_code, reply.body) for reply in replies] == [(Code.INVALID_ARGUMENT, b"no")]
    assert handle.abandoned == [0, 1, 2]


async def test_models_that_stream_are_not_asked_together(make_model: Callable[..., ModelView]) -> None:
    handle = Submitted(InferResponse({}))
    _, replies = await ask_together(handle, make_model("m", {}, {}, decoupled=True))
    assert (handle.submitted, replies[0].grpc_code) == (0, Code.UNIMPLEMENTED)


@pytest.mark.parametrize(("headers", "in_thread"), [({}, False), ({"content-encoding": "gzip"}, True)])
async def test_nobody_knows_how_long_compressed_bodies_are(headers: dict[str, str], in_thread: bool) -> None:
    decoded: list[bool] = []

    def decode(call: Call, resolve: Any) -> Any:
        decoded.append(call.in_thread)
        return ServerLive()

    async def send(reply: Reply) -> None:
        pass

    endpoint = Endpoint("", "live", decode, lambda answer, question: Reply(b""), lambda error, call: Reply(b""))
    await make_service().handle("v2", endpoint, Call(b"x", "POST", "", headers, "http"), send)
    assert decoded == [in_thread]


@pytest.mark.parametrize(
    ("size", "headers", "trims"),
    [(1, {}, 0), (LARGE_BODY_BYTES - 1, {}, 0), (LARGE_BODY_BYTES, {}, 1), (20, {"content-encoding": "gzip"}, 1)],
)
async def test_what_large_bodies_leave_is_given_back_once_they_are_over(
    size: int, headers: dict[str, str], trims: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service_module, "TRIM_AFTER_S", 0)
    calls: list[threading.Thread] = []
    trimmed = asyncio.Event()
    loop = asyncio.get_running_loop()

    def trim() -> None:
        calls.append(threading.current_thread())
        loop.call_soon_threadsafe(trimmed.set)

    def decode(call: Call, resolve: Any) -> Any:
        if len(call.body) > LARGE_BODY_BYTES and not call.in_thread:
            raise MustOffload
        return ServerLive()

    async def send(reply: Reply) -> None:
        pass

    service = make_service()
    service.trim = trim
    endpoint = Endpoint("", "live", decode, lambda answer, question: Reply(b""), lambda error, call: Reply(b""))
    for expected in range(1, 3):
        for _ in range(3):
            await service.handle("v2", endpoint, Call(bytes(size), "POST", "", headers, "http"), send)
        if trims:
            await trimmed.wait()
            trimmed.clear()
            assert len(calls) >= expected
    assert bool(calls) is bool(trims)
    assert threading.main_thread() not in calls

"""Streams of questions over gRPC: their order, how many are open, how they end. The wire format is a toy; the model
answers when the test says so.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import aio_port
import grpc
import pytest
from aio_port import AioServer
from waiting import settles, stays, steps, until

from tensorgate.adapters.protobuf.messages import pool
from tensorgate.gateway.contract.call import Call, Reply
from tensorgate.gateway.contract.canonical import InferRequest, InferResponse, ModelRef, ModelView
from tensorgate.gateway.contract.dialect import Dialect, Endpoint, Match, Resolve
from tensorgate.gateway.contract.errors import Code, DeadlineExceeded, GatewayError, InvalidArgument, ModelFailed
from tensorgate.gateway.contract.questions import ServerDescription
from tensorgate.gateway.monitoring.metrics import MetricsCollector
from tensorgate.gateway.service import LARGE_BODY_BYTES, Service
from tensorgate.gateway.transport.grpc_exchange import GrpcLimits
from tensorgate.gateway.transport.grpc_port import GrpcListener
from tensorgate.gateway.transport.grpc_server import GrpcServer
from tensorgate.gateway.transport.grpc_streams import IN_FLIGHT, MAX_DETAIL_BYTES
from tensorgate.gateway.transport.sockets import bind

CHAT = "/toy.Toy/Chat"


@dataclass
class Asked:
    """A request that was submitted; the test puts its answers, None after the last, and sees whether it was left."""

    id: str
    answers: asyncio.Queue[Any] = field(default_factory=asyncio.Queue)
    taken: int = 0
    left: bool = False

    def __aiter__(self) -> "Asked":
        return self

    async def __anext__(self) -> InferResponse:
        answer = await self.answers.get()
        if answer is None:
            raise StopAsyncIteration
        if isinstance(answer, GatewayError):
            raise answer
        self.taken += 1
        return InferResponse({}, {"text": answer}, final=False)

    def abandon(self) -> None:
        self.left = True

    def say(self, *answers: Any) -> None:
        for answer in (*answers, None):
            self.answers.put_nowait(answer)


class Handle:
    def __init__(self) -> None:
        self.asked: dict[str, Asked] = {}

    def answer(self, request: InferRequest) -> Any:
        if request.id == "late":
            raise DeadlineExceeded("m")
        self.asked[request.id] = Asked(request.id)
        return self.asked[request.id]


def decode(call: Call, resolve: Resolve) -> InferRequest:
    """A message is "model id", and anything."""
    model, name, *_ = bytes(call.body[:100]).decode().split()
    if model == "wrong":
        raise InvalidArgument(f"{name} is wrong")
    return InferRequest(resolve(ModelRef(model)), {}, name, stream=True, wire=call.headers)


def encode(answer: InferResponse, request: InferRequest) -> Reply:
    return Reply([request.id.encode(), b"=", str(answer.parameters["text"]).encode()], streamed=True)


def encode_end(last: InferResponse | None, request: InferRequest) -> Reply | None:
    if not request.view.decoupled:
        return None
    return Reply(f"{request.id} ends{'' if last else ' without a word'}".encode(), streamed=True)


def encode_error(error: GatewayError, call: Call) -> Reply:
    if "strict" in call.headers:
        return Reply(b"", grpc_code=error.code, message=str(error))
    return Reply(f"{'model' if call.accepted else 'caller'}: {error}".encode(), streamed=True)


ENDPOINT = Endpoint(CHAT, "chat", decode, encode, encode_error, stream="bidi", encode_end=encode_end)
METHODS = {CHAT: ENDPOINT}
DIALECT = Dialect("toy", "Toy", "/toy", lambda method, target: Match(ENDPOINT), lambda view: None, METHODS)


@dataclass
class House:
    asked: dict[str, Asked]
    listener: GrpcListener
    channel: Any = None

    def chat(self, **options: Any) -> Any:
        return self.channel.stream_stream(CHAT)(**options)

    async def submitted(self, *names: str) -> list[Asked]:
        await until(lambda: all(name in self.asked for name in names))
        return [self.asked[name] for name in names]


async def read(chat: Any) -> str:
    body = await asyncio.wait_for(chat.read(), 10)
    return "the end" if body is grpc.aio.EOF else bytes(body).decode()


@pytest.fixture(params=[GrpcServer, AioServer])
async def house(make_model: Callable[..., ModelView], request: pytest.FixtureRequest) -> AsyncIterator[House]:
    handle = Handle()
    plain = make_model("plain", {}, {}, handle=handle)
    views = {"plain": plain, "many": replace(plain, name="many", decoupled=True)}
    config: Any = SimpleNamespace(readiness="strict", expose_model_errors=True, routes={}, models={})

    def resolve(ref: ModelRef) -> Any:
        return views[ref.name]

    engine: Any = SimpleNamespace(
        is_complete=lambda: True,
        regions=None,
        ask=None,
        resolve=resolve,
        resolver=lambda call: None,
        discovers=False,
        check_forward=lambda call, ref: None,
        forwarded=lambda kind, named: None,
        named=lambda call: ("", ""),
        names=lambda: tuple(views),
        is_public=views.__contains__,
    )
    service = Service(config, engine, MetricsCollector(), ServerDescription("t", "1"))
    listener = GrpcListener(service, [DIALECT], GrpcLimits(LARGE_BODY_BYTES * 2), pool(), make_port=request.param)
    sock = bind("127.0.0.1", 0)
    port = sock.getsockname()[1]
    await listener.start(sock)
    house = House(handle.asked, listener)
    async with grpc.aio.insecure_channel(
        f"127.0.0.1:{port}", options=[("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]
    ) as house.channel:
        yield house
    await listener.stop(0)


async def test_ordinary_models_answer_in_order(house: House) -> None:
    chat = house.chat()
    for name in ("a", "b", "c"):
        await chat.write(f"plain {name}".encode())
    a, b, c = await house.submitted("a", "b", "c")
    c.say(3)
    b.say(2)
    await until(lambda: b.taken == c.taken == 1)
    a.say(1)
    assert [await read(chat) for _ in range(3)] == ["a=1", "b=2", "c=3"]
    await chat.done_writing()
    assert await read(chat) == "the end"
    assert await chat.code() is grpc.StatusCode.OK


async def test_decoupled_models_answer_when_they_like(house: House) -> None:
    chat = house.chat()
    for line in ("plain a", "many b", "many c", "plain d"):
        await chat.write(line.encode())
    a, b, c, d = await house.submitted("a", "b", "c", "d")
    b.answers.put_nowait(1)
    assert await read(chat) == "b=1"
    c.say(1, 2)
    assert [await read(chat) for _ in range(3)] == ["c=1", "c=2", "c ends"]
    d.say(1)
    b.say(2)
    assert [await read(chat) for _ in range(2)] == ["b=2", "b ends"]
    a.say(1)
    assert [await read(chat) for _ in range(2)] == ["a=1", "d=1"]


async def test_a_decoupled_model_may_have_nothing_to_say(house: House) -> None:
    chat = house.chat()
    await chat.write(b"many a")
    (a,) = await house.submitted("a")
    a.say()
    assert await read(chat) == "a ends without a word"


async def test_errors_keep_their_place_and_the_stream_goes_on(house: House) -> None:
    chat = house.chat()
    for line in ("plain a", "wrong b", "plain c", "many d"):
        await chat.write(line.encode())
    a, c, d = await house.submitted("a", "c", "d")
    c.say(1)
    d.say(1, ModelFailed("it broke"))
    assert [await read(chat) for _ in range(2)] == ["d=1", "model: it broke"]
    a.say(1)
    assert [await read(chat) for _ in range(3)] == ["a=1", "caller: b is wrong", "c=1"]
    await chat.done_writing()
    assert await chat.code() is grpc.StatusCode.OK


async def test_requests_are_submitted_in_order_also_when_a_thread_decodes_them(house: House) -> None:
    chat = house.chat()
    large = b"plain large " + bytes(LARGE_BODY_BYTES)
    for body in (b"plain first", large, b"plain small", b"many last"):
        await chat.write(body)
    await house.submitted("last")
    assert list(house.asked) == ["first", "large", "small", "last"]


async def test_few_questions_are_open_at_a_time(house: House) -> None:
    chat = house.chat()

    async def ask() -> None:
        for number in range(IN_FLIGHT * 2):
            await chat.write(f"plain {number}".encode())
        await chat.done_writing()

    asking = asyncio.create_task(ask())
    await house.submitted(str(IN_FLIGHT - 1))
    await stays(lambda: len(house.asked) == IN_FLIGHT)
    for number in range(IN_FLIGHT * 2):
        (asked,) = await house.submitted(str(number))
        asked.say(number)
        assert await read(chat) == f"{number}={number}"
    await asking
    assert await read(chat) == "the end"


async def test_everything_is_answered_after_the_last_question(house: House) -> None:
    chat = house.chat()
    await chat.write(b"plain a")
    await chat.write(b"many b")
    await chat.done_writing()
    a, b = await house.submitted("a", "b")
    await steps()
    a.say(1)
    b.say(1)
    assert sorted([await read(chat) for _ in range(4)]) == ["a=1", "b ends", "b=1", "the end"]


async def test_cancellation_cancels_what_runs(house: House) -> None:
    chat = house.chat()
    for line in ("plain a", "many b", "plain c"):
        await chat.write(line.encode())
    asked = await house.submitted("a", "b", "c")
    chat.cancel()
    await until(lambda: all(each.left for each in asked))


async def test_a_deadline_ends_the_whole_stream(house: House) -> None:
    for seconds in (0.2, 2.0, 20.0):  # on a busy machine a deadline may pass before the request is there
        chat = house.chat(timeout=seconds)
        with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
            await chat.write(b"plain a")
        await until(lambda: "a" in house.asked or chat.done())  # noqa: B023 - it is awaited here
        if "a" in house.asked:
            break
    (a,) = await house.submitted("a")
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await read(chat)
    assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    await until(lambda: a.left)


async def test_an_error_may_end_the_stream_after_what_was_asked_before(house: House) -> None:
    chat = house.chat(metadata=(("strict", "1"),))
    for line in ("plain a", "wrong b", "plain c"):
        await chat.write(line.encode())
    a, c = await house.submitted("a", "c")
    a.say(1)
    assert await read(chat) == "a=1"
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await read(chat)
    assert (caught.value.code().value[0], caught.value.details()) == (Code.INVALID_ARGUMENT, "b is wrong")
    await until(lambda: c.left)


@pytest.mark.parametrize("word", ["x", "ü"])
async def test_a_long_text_still_arrives(word: str, house: House) -> None:
    chat = house.chat(metadata=(("strict", "1"),))
    await chat.write(b"many a")
    (a,) = await house.submitted("a")
    a.say(ModelFailed(word * 100_000))
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await read(chat)
    assert caught.value.code() is grpc.StatusCode.INTERNAL
    details = caught.value.details() or ""
    assert details == word * len(details)
    assert MAX_DETAIL_BYTES - 2 < len(details.encode()) <= MAX_DETAIL_BYTES


async def test_a_server_that_stops_answers_what_was_asked_and_waits_for_nobodys_next_word(house: House) -> None:
    idle, busy = house.chat(), house.chat()
    await idle.write(b"plain idle")
    (asked,) = await house.submitted("idle")
    asked.say(1)
    assert await read(idle) == "idle=1"
    await busy.write(b"plain a")
    (a,) = await house.submitted("a")
    stopping = asyncio.create_task(house.listener.stop(600))
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await read(idle)
    assert (caught.value.code(), caught.value.details()) == (grpc.StatusCode.UNAVAILABLE, "the server is stopping")
    a.say(1)
    assert await read(busy) == "a=1"
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await read(busy)
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    await stopping


async def test_a_reader_that_is_slow_slows_only_its_own_answers(house: House) -> None:
    slow, quick = house.chat(), house.chat()
    await slow.write(b"many a")
    (a,) = await house.submitted("a")
    for _ in range(1000):
        a.answers.put_nowait("x" * 100_000)
    await settles(lambda: a.taken)
    waiting = a.taken
    assert waiting < 200, "what is not read waits where it is made"
    await quick.write(b"plain b")
    (b,) = await house.submitted("b")
    b.say(1)
    assert await read(quick) == "b=1"
    for _ in range(900):
        assert len(await read(slow)) == 100_002
    assert a.taken > waiting


async def test_a_client_that_leaves_is_no_fault_of_ours(house: House, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        for _ in range(5):
            chat = house.chat()
            await chat.write(b"many a")
            (a,) = await house.submitted("a")
            for _ in range(100):
                a.answers.put_nowait("x" * 50_000)
            await read(chat)
            chat.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await chat.read()
            await until(lambda left=a: left.left)  # type: ignore[misc]
            house.asked.clear()
    assert not caplog.records


@pytest.mark.parametrize("least", [1, 1 << 20])
async def test_a_large_message_is_put_together_elsewhere(least: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aio_port, "COPIED_IN_THREAD_BYTES", least)
    parts = [b"head", memoryview(b"numbers" * 1000), b"", bytearray(b"tail")]
    assert await aio_port.body_of(Reply(parts)) == b"".join(parts)
    assert await aio_port.body_of(Reply(memoryview(b"alone"))) == b"alone"
    assert await aio_port.body_of(Reply([])) == b""
    whole = b"whole"
    assert await aio_port.body_of(Reply(whole)) is whole

"""A real DoorPort and real EngineLinks in one loop, and peers that do what they should not: nothing but their own
connection is disturbed, and nothing of them stays.
"""

import asyncio
import gc
import itertools
import logging
import math
import os
import random
import socket
import struct
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, cast

import msgspec
import numpy as np
import pytest
from waiting import steps, until

from tensorgate.gateway.contract.call import Buffer
from tensorgate.gateway.contract.canonical import InferRequest, InferResponse, ModelView
from tensorgate.gateway.contract.errors import Cancelled, Code, GatewayError, ModelFailed, Unavailable
from tensorgate.gateway.contract.tensor import TensorSpec
from tensorgate.gateway.crossing import channel
from tensorgate.gateway.crossing.arena import Arena, PeerArena
from tensorgate.gateway.crossing.channel import greet, hello_of
from tensorgate.gateway.crossing.door_port import DoorConnection, DoorPort, Recorder, Seconds
from tensorgate.gateway.crossing.engine_link import EngineLink, tell
from tensorgate.gateway.crossing.frames import CrossingBroken, FrameReader, add_frame
from tensorgate.gateway.crossing.messages import (
    Answer,
    Asked,
    Block,
    Cancel,
    CountedError,
    Credit,
    End,
    Ended,
    Failure,
    FromEngine,
    Hello,
    Observed,
    Relay,
    RelayEnd,
    RelayPage,
    RelayReply,
    Release,
    Seen,
    Series,
    Settle,
    Stale,
    State,
    Submit,
    Tensor,
)
from tensorgate.gateway.crossing.tensors import TensorWriter
from tensorgate.gateway.crossing.views import view_message
from tensorgate.gateway.telemetry.call_record import CallRecord
from tensorgate.gateway.telemetry.trace_context import parent_of

SPEC = TensorSpec("x", np.dtype("f4"), (-1, -1))
MARK = 777
"""The call that a peer asks last to see whether it still may."""
SMALL = {"x": np.arange(6, dtype=np.float32).reshape(2, 3)}
LARGE = {"x": np.arange(60_000, dtype=np.float32).reshape(2, -1)}


class Later:
    """Answers that come with the loop's next turn; those of a decoupled model are three."""

    def __init__(self, request: InferRequest) -> None:
        self.token = request.cancellation
        self.share = request.cancellation.share
        count = 3 if request.view.decoupled else 1
        self._left = [InferResponse({"y": request.inputs["x"]}) for _ in range(count)]
        self.is_abandoned = False

    def __aiter__(self) -> "Later":
        return self

    async def __anext__(self) -> InferResponse:
        await asyncio.sleep(0)
        if not self._left:
            raise StopAsyncIteration
        return self._left.pop()

    def abandon(self) -> None:
        self.is_abandoned = True


class Unanswered(Later):
    """Answers that do not come before nobody wants them."""

    async def __anext__(self) -> InferResponse:
        await until(lambda: self.is_abandoned)
        raise Cancelled


class Model:
    """What is to be asked of it says how it answers: by its id."""

    def __init__(self) -> None:
        self.asked: list[Later] = []

    def is_ready(self) -> bool:
        return True

    def answer(self, request: InferRequest) -> Any:
        if request.id == "fail":
            return ModelFailed("no")
        if request.id == "bug":
            raise ZeroDivisionError
        if request.id == "strange":
            return InferResponse({"y": np.zeros(3, "c16")})
        if request.id == "now":
            return InferResponse({"y": request.inputs["x"]})
        self.asked.append(Unanswered(request) if request.id == "never" else Later(request))
        return self.asked[-1]

    submit = answer


class Host:
    def __init__(self) -> None:
        self.model = Model()
        self.views = {number: self._view(number == 2) for number in (1, 2)}
        self.doors: set[int] = set()

    def _view(self, decoupled: bool) -> ModelView:
        name = "stream" if decoupled else "plain"
        handle = cast("Any", self.model)
        return ModelView(name, 1, (1,), {"x": SPEC}, {"y": SPEC}, {}, 0, "onnx", handle, decoupled)

    def view_of(self, serial: int) -> ModelView | None:
        return self.views.get(serial)

    def state(self, number: int, writer: TensorWriter) -> State:
        views = tuple(view_message(view, serial, writer) for serial, view in self.views.items())
        return State(number, views, {}, (), True, True, False, (), ("plain", "stream"), {}, 0, "")

    def seconds_of(self, serial: int, request: InferRequest) -> Seconds | None:
        return None

    async def relay(self, door: DoorConnection, message: Relay | RelayPage, body: Buffer) -> None:
        if isinstance(message, RelayPage):
            raise CrossingBroken("no page")
        if message.dialect == "bug":
            raise ZeroDivisionError
        door.send(RelayReply(message.call, (door.channel.writer.data(body),), 200, {}, 0, "", False))
        door.send(RelayEnd(message.call, 0, 0, "", "cancelled", "", "", "", None, 0.0))

    def observed(self, door: int, message: Observed) -> None:
        if any(len(each.took) % 8 for each in message.series):
            raise CrossingBroken("counts")
        self.doors.add(door)

    def joined(self, hello: Hello) -> None:
        pass

    def left(self, door: int) -> None:
        self.doors.discard(door)


class Rig:
    def __init__(self, folder: Path) -> None:
        self.path = folder / "engine.sock"
        self.host = Host()
        self.port = DoorPort(self.path, "1", self.host)

    async def link(self) -> tuple[EngineLink, "asyncio.Task[None]"]:
        told = asyncio.Event()
        link = EngineLink(self.path, "1", 0, {}, lambda state: told.set() if state else None, lambda number: None)
        running = asyncio.ensure_future(link.run())
        async with asyncio.timeout(10):
            await told.wait()
        return link, running

    async def until_alone(self) -> None:
        """Until one door is left."""
        await until(lambda: len(self.port._doors) == 1)
        await asyncio.sleep(0)

    async def peer(self) -> "Peer":
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        sock.setblocking(False)
        await asyncio.get_running_loop().sock_connect(sock, str(self.path))
        arena = Arena(1 << 30)
        _, peer_arena = await asyncio.to_thread(greet, sock, arena, hello_of("1", 7), first=True)
        return Peer(sock, arena, peer_arena)


class Peer:
    """A door that says whatever it is told to."""

    def __init__(self, sock: socket.socket, arena: Arena, peer_arena: PeerArena) -> None:
        self.sock = sock
        self.arena = arena
        self.peer_arena = peer_arena

    async def say(self, *messages: Any) -> None:
        buffer = bytearray()
        for message in messages:
            if isinstance(message, bytes):
                buffer += message
            else:
                add_frame(message, buffer)
        await asyncio.get_running_loop().sock_sendall(self.sock, buffer)

    async def is_cut_off(self) -> bool:
        """Whether the engine ends the connection rather than answer one more call; all else that it says is dropped."""
        loop, frames = asyncio.get_running_loop(), FrameReader[Any](FromEngine)
        with suppress(ConnectionError):
            while data := await loop.sock_recv(self.sock, 1 << 20):
                for message in frames.receive(memoryview(data)):
                    if isinstance(message, Answer) and message.call == MARK:
                        return False
        return True

    def close(self) -> None:
        self.sock.close()
        self.arena.close()


@asynccontextmanager
async def rigged(folder: Path) -> AsyncIterator[Rig]:
    rig = Rig(folder)
    await rig.port.start()
    try:
        yield rig
    finally:
        await rig.port.stop()
        await steps()


async def ask(link: EngineLink, inputs: Any = SMALL, *, model: str = "plain", id: str = "") -> InferResponse:
    view = link.snapshot.models[model][1].view
    answers = cast("Any", view.handle).submit(InferRequest(view, inputs, id))
    answer: InferResponse = await anext(answers)
    return answer


def run(test: Callable[[Rig], Coroutine[Any, Any, None]], folder: Path) -> None:
    async def main() -> None:
        async with asyncio.timeout(120), rigged(folder) as rig:
            await test(rig)

    asyncio.run(main())


@pytest.mark.parametrize("id", ["", "now"])
@pytest.mark.parametrize("inputs", [SMALL, LARGE], ids=["small", "large"])
def test_an_inference(tmp_path: Path, id: str, inputs: Any) -> None:
    async def test(rig: Rig) -> None:
        link, running = await rig.link()
        for _ in range(3):
            answer = await ask(link, inputs, id=id)
            assert answer.outputs["y"].tobytes() == inputs["x"].tobytes()
        view = link.snapshot.models["stream"][1].view
        stream = cast("Any", view.handle).submit(InferRequest(view, inputs))
        assert [answer.outputs["y"].sum() async for answer in stream] == [inputs["x"].sum()] * 3
        running.cancel()

    run(test, tmp_path)


@pytest.mark.parametrize("share", ["", "team-a"])
def test_whose_share_it_is_crosses(tmp_path: Path, share: str) -> None:
    async def test(rig: Rig) -> None:
        link, running = await rig.link()
        view = link.snapshot.models["plain"][1].view
        request = InferRequest(view, SMALL)
        if share:
            request.cancellation.share = share
        await anext(cast("Any", view.handle).submit(request))
        (asked,) = rig.host.model.asked
        assert asked.share == share
        running.cancel()

    run(test, tmp_path)


@pytest.mark.parametrize(
    ("id", "kind", "text"),
    [("fail", "ModelFailed", "no"), ("bug", "Internal", ""), ("strange", "EncodingFailed", "tensor y is complex128")],
)
def test_an_error_ends_its_call_alone(tmp_path: Path, id: str, kind: str, text: str) -> None:
    async def test(rig: Rig) -> None:
        link, running = await rig.link()
        other = asyncio.ensure_future(ask(link))
        with pytest.raises(GatewayError) as error:
            await ask(link, id=id)
        assert type(error.value).__name__ == kind
        assert str(error.value).startswith(text)
        await other
        running.cancel()

    run(test, tmp_path)


@pytest.mark.parametrize("is_satisfied", [True, False])
def test_the_engine_hears_why_a_caller_takes_no_more(tmp_path: Path, is_satisfied: bool) -> None:
    async def test(rig: Rig) -> None:
        link, running = await rig.link()
        view = link.snapshot.models["stream"][1].view
        request = InferRequest(view, SMALL, "never")
        answers = cast("Any", view.handle).submit(request)
        await until(lambda: rig.host.model.asked)
        request.cancellation.is_satisfied = is_satisfied
        answers.abandon()
        [later] = rig.host.model.asked
        await until(lambda: later.is_abandoned)
        assert later.token.is_satisfied is is_satisfied
        running.cancel()

    run(test, tmp_path)


def relay(number: int, dialect: str = "x", body: Any = b"abc") -> Relay:
    return Relay(
        number, dialect, body, "", "", {}, "http", {}, None, (1, 1, None), (), ("", ()), None, "", "", False, None
    )  # fmt: skip


@pytest.mark.parametrize("size", [3, 100_000])
def test_a_whole_call(tmp_path: Path, size: int) -> None:
    async def test(rig: Rig) -> None:
        link, running = await rig.link()
        body = bytes(range(250)) * (size // 250 + 1)
        events = [event async for event in link.relay(lambda number, w: relay(number, body=w.data(body)))]
        assert bytes(cast("Any", events[0]).body) == body
        with pytest.raises(GatewayError) as error:
            [event async for event in link.relay(lambda number, writer: relay(number, "bug"))]
        assert error.value.code is Code.INTERNAL
        running.cancel()

    run(test, tmp_path)


def test_replies_that_nobody_takes_give_their_memory_back(tmp_path: Path) -> None:
    async def test(rig: Rig) -> None:
        link, running = await rig.link()
        [door] = rig.port._doors
        for _ in range(20):
            events = link.relay(lambda number, w: relay(number, body=w.data(bytes(100_000))))
            waiting = asyncio.ensure_future(anext(events))
            await asyncio.sleep(0)
            waiting.cancel()

        def is_free() -> bool:
            rig.port.give_back()
            cast("Any", link._channel).give_back()
            return not (door.channel._arena.used or cast("Any", link._channel)._arena.used)

        await until(is_free)
        running.cancel()

    run(test, tmp_path)


def test_an_idle_crossing_keeps_no_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel, "TRIM_EVERY_S", 0.0)

    async def test(rig: Rig) -> None:
        link, running = await rig.link()
        await ask(link, LARGE)
        [door] = rig.port._doors
        ends = [door.channel, cast("Any", link._channel)]

        def is_empty() -> bool:
            for end in ends:
                end.give_back()
            return not any(os.fstat(end._arena.fd).st_blocks for end in ends)

        await until(is_empty)
        running.cancel()

    run(test, tmp_path)


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def maps() -> int:
    return Path("/proc/self/maps").read_text().count("memfd:tensorgate")


def test_doors_come_and_go(tmp_path: Path) -> None:
    """Nothing of them stays, and nobody waits for the collector to see to it."""

    async def test(rig: Rig) -> None:
        link, running = await rig.link()
        await ask(link, LARGE)
        before: tuple[int, int] | None = None
        gc.collect()
        gc.disable()
        for turn in range(200):
            other, going = await rig.link()
            assert (await ask(other, LARGE)).outputs["y"].size == LARGE["x"].size
            going.cancel()
            cast("Any", other._channel).close()
            del other
            await rig.until_alone()
            if turn == 20:
                before = descriptors(), maps()
        assert before is not None
        assert descriptors() <= before[0] + 2
        assert maps() <= before[1] + 2
        await ask(link, LARGE)
        running.cancel()

    try:
        run(test, tmp_path)
    finally:
        gc.enable()


def tensor(shape: tuple[int, ...] = (1,), data: Any = b"1234", datatype: str = "FP32") -> Tensor:
    return Tensor("x", datatype, shape, data)


def submit(call: int, **more: Any) -> Submit:
    return Submit(call, more.pop("model", 1), more.pop("inputs", (tensor(),)), **more)


def observed(**more: Any) -> Observed:
    said: dict[str, Any] = {"settle": 0, "series": (), "errors": (), "ended": (), "listeners": ()}
    return Observed(**(said | {"lines": (0, 0, 0, 0, 0), "routes": (), "routes_running": ()} | more))


SERIES = Series("x", "http", "m", "1", "infer", b"1234567", b"", b"", b"", ())
MERGED_NONE = msgspec.structs.replace(SERIES, took=b"", merged=(((0.5, 0),), (), (), ()))
CUT_OFF = {
    "greets again": (Hello(1, "1", 1),),
    "says what engines say": (Stale(1),),
    "a call twice": (submit(1, model=2), submit(1, model=2)),
    "a call and a relay": (submit(1, model=2), relay(1)),
    "a relay twice": (relay(1), relay(1)),
    "an unknown page": (RelayPage(1, "/x", "GET", "/x", {}, b"", ("", ())),),
    "a ticket that is not out": (Release((1 << 40,)),),
    "deadline NaN": (submit(1, deadline=math.nan),),
    "deadline inf": (submit(1, deadline=math.inf),),
    "deadline -inf": (submit(1, deadline=-math.inf),),
    "a tensor without data": (submit(1, inputs=(tensor(data=b""),)),),
    "a huge tensor": (submit(1, inputs=(tensor((2**40, 2**40)),)),),
    "outside of the arena": (submit(1, inputs=(tensor((2**20,), Block(2**40, 2**22, 1)),)),),
    "bytes of a body outside": (relay(1, body=Block(-1, 5, 1)),),
    "half a number": (observed(series=(SERIES,)),),
    "merged of nothing": (
        observed(series=(msgspec.structs.replace(SERIES, took=b"", merged=(((0.5, 0),), (), (), ())),)),
    ),
    "noise": (b"\x04\0\0\0noise",),
    "a long frame": (struct.pack("<I", 1 << 31),),
}
HARMLESS = {
    "credit for nothing": (Credit(9, 5), Credit(9, -(2**63)), Credit(2**64 - 1, 2**64 - 1)),
    "cancelled twice": (submit(1), Cancel(1), Cancel(1), Cancel(-1)),
    "numbers": (submit(-(2**63)), submit(2**63), submit(2**64 - 1, model=2)),
    "a model that is none": (submit(1, model=-5), submit(2, model=2**63)),
    "names that repeat": (submit(1, inputs=(tensor(), tensor((2,), b"12345678"), tensor())),),
    "odd parameters": (submit(1, parameters={"a": math.nan, "b": 2**64 - 1, "": "x" * 100_000}),),
    "odd times": (submit(1, deadline=-1e9, queue_timeout_us=-(2**63), priority=-(2**63)),),
    "seen the future": (Seen(2**63), observed(settle=2**63)),
    "no inputs": (submit(1, inputs=()),),
}


@pytest.mark.parametrize("name", [*CUT_OFF, *HARMLESS])
def test_a_hostile_door(tmp_path: Path, name: str, caplog: pytest.LogCaptureFixture) -> None:
    async def test(rig: Rig) -> None:
        link, running = await rig.link()
        peer = await rig.peer()
        waiting = [asyncio.ensure_future(ask(link, LARGE)) for _ in range(5)]
        caplog.clear()
        with caplog.at_level(logging.INFO):
            await peer.say(*(CUT_OFF | HARMLESS)[name])
            if name in HARMLESS:
                await steps()
                await peer.say(submit(MARK, id="now"))
            assert await peer.is_cut_off() is (name in CUT_OFF)
        assert len([record for record in caplog.records if "broke the protocol" in record.getMessage()]) == (
            name in CUT_OFF
        )
        assert all(len(record.getMessage()) < 1000 for record in caplog.records)
        assert name == "no inputs" or not any(record.exc_info for record in caplog.records)
        await asyncio.gather(*waiting)
        assert (await ask(link)).outputs["y"].size == 6
        await rig.port.settle()
        peer.close()
        running.cancel()

    run(test, tmp_path)


def test_what_a_door_has_left_is_abandoned(tmp_path: Path) -> None:
    async def test(rig: Rig) -> None:
        peer = await rig.peer()
        await peer.say(*[submit(number, model=1 + number // 3, id="never") for number in range(6)])
        await until(lambda: len(rig.host.model.asked) == 6)
        peer.close()
        await until(lambda: all(asked.is_abandoned for asked in rig.host.model.asked) and not rig.port._doors)

    run(test, tmp_path)


def test_a_door_that_does_not_read_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel, "MAX_WAITING_BYTES", 1 << 20)

    async def test(rig: Rig) -> None:
        link, running = await rig.link()
        peer = await rig.peer()
        body = tensor((4000,), bytes(16_000))
        with suppress(ConnectionError):
            for number in range(400):
                await peer.say(submit(number, inputs=(body,)))
                await asyncio.sleep(0)
        await ask(link)
        await rig.until_alone()
        peer.close()
        running.cancel()

    run(test, tmp_path)


@pytest.mark.parametrize("seed", range(8))
def test_fuzzed(tmp_path: Path, seed: int) -> None:
    """Messages of all kinds, some of them with bytes that were changed."""
    chance = random.Random(seed)  # noqa: S311

    def any_message(number: int) -> Any:
        call = chance.choice([number, number % 7, -number, 2**63])
        size = chance.choice([0, 4, 20_000])
        block = Block(chance.choice([0, 4096, -1, 2**62]), size, chance.choice([number, 1]))
        data = chance.choice([bytes(size), block])
        ended = Ended("x", "m", "infer", "http", chance.choice([0, 99]), 0.1, -1.0, -1)
        key = ("x", "http", "m", "1", "infer", chance.choice([3, 99]), chance.choice(["dtype", "bad luck"]))
        return chance.choice(
            [
                submit(call, inputs=(tensor((size // 4,), data),), deadline=chance.choice([None, 1e300, 5.0])),
                submit(call, model=2, id=chance.choice(["", "fail", "now"])),
                Cancel(call),
                Credit(call, chance.choice([1, -1, 2**63])),
                relay(call, body=data),
                Seen(number),
                observed(ended=(ended,), errors=(CountedError(key, "no", 1.0, 2.0, chance.choice([1, -1])),)),
                Release((chance.choice([1, number]),)),
            ]
        )

    async def test(rig: Rig) -> None:
        link, running = await rig.link()
        numbers = itertools.count(1)
        for _ in range(25):
            peer = await rig.peer()
            buffer = bytearray()
            for _ in range(20):
                add_frame(any_message(next(numbers)), buffer)
            for _ in range(chance.randrange(3)):
                buffer[chance.randrange(len(buffer))] = chance.randrange(256)
            asking = asyncio.ensure_future(ask(link, LARGE))
            with suppress(ConnectionError):  # it may be cut off before it has said all
                await peer.say(bytes(buffer))
            await asyncio.sleep(0)
            peer.close()
            assert (await asking).outputs["y"].size == LARGE["x"].size
        await rig.until_alone()
        [door] = rig.port._doors
        assert not door._running
        running.cancel()

    run(test, tmp_path)


# ------------------------------------------------------------------------------------------------- an engine that lies


ENGINE_LIES = {
    "greets again": Hello(1, "1", 1),
    "says what doors say": Cancel(1),
    "an answer of no data": Answer(1, (tensor(data=b""),), {}, True, {}, ()),
    "an answer from nowhere": Answer(1, (tensor((2**20,), Block(2**50, 2**22, 1)),), {}, True, {}, ()),
    "no such error": Failure(1, "KeyError", "", {}),
    "no such code": Failure(1, "ModelFailed", "", {"code": 77}),
    "no such code of a reply": RelayReply(2, (b"",), 200, {}, 99, "", False),
    "a reply from nowhere": RelayReply(2, (Block(-5, 1, 1),), 200, {}, 0, "", False),
    "no such end": RelayEnd(2, 99, 0, "", "cancelled", "", "", "", None, 0.0),
    "no such reason": RelayEnd(2, 0, 0, "", "bad luck", "", "", "", None, 0.0),
    "no such reason of an error": Failure(1, "ModelFailed", "", {"error_reason": "bad luck"}),
    "a ticket that is not out": Release((5, 5)),
}
ENGINE_ODD = {
    "answers to nobody": (Answer(99, (tensor(),), {}, True, {}, ()), End(99), Stale(-1)),
    "ends for nobody": (
        RelayEnd(98, 0, 0, "", "cancelled", "", "", "", None, 0.0),
        RelayReply(97, (b"",), 200, {}, 0, "", False),
    ),
    "settles": (Settle(2**63),),
    "an answer twice": (Answer(99, (), {}, True, {}, ()), Answer(99, (), {}, True, {}, ())),
}


@pytest.mark.parametrize("name", [*ENGINE_LIES, *ENGINE_ODD])
def test_a_hostile_engine(tmp_path: Path, name: str, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listener.bind(str(tmp_path / "engine.sock"))
        listener.listen()
        listener.setblocking(False)
        told = asyncio.Event()
        link = EngineLink(
            tmp_path / "engine.sock", "1", 0, {}, lambda state: told.set() if state else None, lambda number: None
        )
        running = asyncio.ensure_future(link.run())
        sock, _ = await loop.sock_accept(listener)
        arena = Arena(1 << 30)
        await asyncio.to_thread(greet, sock, arena, hello_of("1"), first=False)
        peer = Peer(sock, arena, cast("Any", None))
        host = Host()
        await peer.say(host.state(1, TensorWriter(arena)))
        await told.wait()
        asking = asyncio.ensure_future(ask(link))

        async def whole() -> list[Any]:
            return [event async for event in link.relay(lambda number, writer: relay(number))]

        relayed = asyncio.ensure_future(whole())
        await asyncio.sleep(0)
        if name in ENGINE_LIES:
            await peer.say(ENGINE_LIES[name])
            for call in (asking, relayed):
                with pytest.raises(Unavailable):
                    await call
        else:
            await peer.say(*ENGINE_ODD[name], Answer(1, (tensor(),), {}, True, {}, ()))
            assert (await asking).outputs["x"].size == 1
            assert not relayed.done()
            relayed.cancel()
        running.cancel()
        peer.close()
        listener.close()
        await steps()

    with caplog.at_level(logging.INFO):
        asyncio.run(main())
    assert not any(record.exc_info for record in caplog.records)


def test_who_does_not_greet_is_not_let_in(tmp_path: Path) -> None:
    async def test(rig: Rig) -> None:
        link, running = await rig.link()
        before = descriptors()
        for said in (b"", b"abc", b"\x04\0\0\0noise", b"\xff\xff\xff\xff", msgspec.msgpack.encode(Hello(1, "1", 1))):
            sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            sock.setblocking(False)
            await asyncio.get_running_loop().sock_connect(sock, str(rig.path))
            sock.send(said)
            reading, writing = os.pipe()
            if said:
                socket.send_fds(sock, [said], [reading])
            os.close(reading)
            os.close(writing)
            sock.close()
        await ask(link)
        await until(lambda: descriptors() <= before)
        assert len(rig.port._doors) == 1
        running.cancel()

    run(test, tmp_path)


TRACE = "00-" + "a" * 32 + "-" + "b" * 16


def test_calls_to_other_servers_get_spans_of_their_own_where_somebody_traces_them() -> None:
    traced = Recorder({"traceparent": f"{TRACE}-01", "tracestate": "v=1"})
    span = traced.upstream("/x")
    parent = parent_of(span.headers)
    assert parent is not None
    assert (parent.trace_id, parent.sampled, parent.state) == ("a" * 32, True, "v=1")
    assert parent.span_id != "b" * 16
    span.end(failed=True)
    span.end(failed=False)  # the first end counts
    _, (asked,) = traced.take()
    assert (asked.target, asked.span_id, asked.failed, asked.begun <= asked.ended) == ("/x", parent.span_id, True, True)
    assert traced.take() == ((), ())
    for headers in ({}, {"traceparent": f"{TRACE}-00"}):
        untraced = Recorder(headers)
        span = untraced.upstream("/x")
        span.end(failed=False)
        assert (span.headers, untraced.take()) == (headers, ((), ()))


@pytest.mark.parametrize("span_id", ["", "b" * 15, "0" * 16, "B" * 16, "-" + "b" * 15, "b" * 17])
def test_a_span_without_a_number_breaks_the_crossing(span_id: str) -> None:
    with pytest.raises(CrossingBroken, match="when a request ran"):
        tell(CallRecord(), (), (Asked("/x", span_id, 0.0, 1.0, False),))


def test_what_became_of_a_request_is_told_to_its_record() -> None:
    record = CallRecord()
    tell(record, ((2, 8, 1.0, 2.0, 4.0), (3, 1.0, 5.0)), (Asked("/x", "b" * 16, 0.0, 1.0, False),))
    assert (record.rows, record.batch_rows, record.queue_s, record.compute_s) == (5, 8, 4.0, 2.0)

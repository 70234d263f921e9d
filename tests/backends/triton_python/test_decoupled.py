"""Models that answer any number of times, later, from threads, or never; and async ones."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

import pytest
from waiting import settles, until

from tensorgate.gateway.contract.canonical import InferResponse
from tensorgate.gateway.contract.errors import DeadlineExceeded, ModelFailed, ModelUnavailable, NotFound
from tensorgate.gateway.engine.pending_request import PendingRequest
from tensorgate.gateway.models.loaded_models import Snapshot

X = {"name": "x", "datatype": "FP32", "shape": [-1]}
Y = {"name": "y", "datatype": "FP32", "shape": [-1]}
BATCHED: dict[str, Any] = {
    "max_batch_size": 8,
    "inputs": [X | {"shape": [-1, 2]}],
    "outputs": [Y | {"shape": [-1, 2]}],
}
BEFORE = "Failed to process the request(s) for model 'm_0', message: "


# ----------------------------------------------------------------------------------------------------------- decoupled

REPEAT = """
def execute(self, requests):
    for request in requests:
        threading.Thread(target=self.answer, args=(request.get_response_sender(), x_of(request))).start()
def answer(self, sender, x):
    for number in range(int(x[0])):
        sender.send(y([number]))
    sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""


async def test_decoupled_answers_from_threads_after_execute_has_returned(world: Any) -> None:
    world.model("m", REPEAT, decoupled=True)
    await world.start()
    assert world.view("m").decoupled
    assert await asyncio.gather(*(world.ys("m", [n]) for n in (3, 0, 200))) == [
        [[0], [1], [2]],
        [],
        [[n] for n in range(200)],
    ]


async def test_many_decoupled_requests_are_open_at_once(world: Any) -> None:
    world.model(
        "m",
        """
        def initialize(self, args):
            self.waiting = []
        def execute(self, requests):
            (request,) = requests
            self.waiting.append((request.get_response_sender(), x_of(request)))
            if len(self.waiting) == 100:
                for sender, x in self.waiting:
                    sender.send(y(x), flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
        """,
        decoupled=True,
    )
    await world.start()
    assert await asyncio.gather(*(world.ys("m", [n]) for n in range(100))) == [[[n]] for n in range(100)]


async def test_only_the_last_answer_is_final_and_only_if_it_says_so(world: Any) -> None:
    world.model(
        "m",
        """
        def execute(self, requests):
            sender = requests[0].get_response_sender()
            sender.send(y([1]))
            sender.send(y([2]), pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
        """,
        decoupled=True,
    )
    await world.start()
    assert [answer.final for answer in await world.all("m")] == [False, True]


SENDS = [
    ("s.send(y([1]), 1); s.send(y([2]))", "Unable to send response. Response sender has been closed."),
    ("s.send(flags=1); s.send(flags=1)", "Unable to send response. Response sender has been closed."),
    ("s.send(y([1]), 4)", "Unable to send response. Unsupported flag."),
    ("s.send()", "Inference Response object must be provided when the response flags is set to zero."),
]


async def test_a_sender_refuses_what_tritons_refuses(world: Any) -> None:
    lines = "\n".join(f"        {'if' if n == 0 else 'elif'} n == {n}: {line}" for n, (line, _) in enumerate(SENDS))
    world.model(
        "m",
        f"""
def initialize(self, args):
    self.heard = []
def execute(self, requests):
    s, n = requests[0].get_response_sender(), int(x_of(requests[0])[0])
    try:
{lines}
    except pb_utils.TritonModelException as error:
        self.heard.append(str(error))
    try:
        s.send(flags=1)
    except pb_utils.TritonModelException:
        pass
""",
        decoupled=True,
    )
    await world.start()
    for number in range(len(SENDS)):
        await world.all("m", [number])
    assert world.python("m").heard == [text for _, text in SENDS]


async def test_errors_of_a_decoupled_model(world: Any) -> None:
    world.model(
        "m",
        """
        def execute(self, requests):
            n, sender = int(x_of(requests[0])[0]), requests[0].get_response_sender()
            sender.send(y([0]))
            if n == 0:
                raise ValueError("halfway")
            if n == 1:
                gone = pb_utils.TritonError("gone", pb_utils.TritonError.NOT_FOUND)
                sender.send(pb_utils.InferenceResponse(error=gone))
                sender.send(y([1]))
                sender.send(flags=1)
            if n == 2:
                return [y([1])]
            if n == 3:
                return None
        """,
        decoupled=True,
    )
    await world.start()
    want = [
        (ModelFailed, BEFORE + "ValueError: halfway"),
        (NotFound, "gone"),
        (
            ModelFailed,
            BEFORE + "Python model 'm_0' is using the decoupled mode and the execute function must return None.",
        ),
        (ModelFailed, "the model has dropped the request without a final response"),
    ]
    for number, (kind, text) in enumerate(want):
        job = world.submit("m", [number])
        assert (await anext(job)).outputs["y"].tolist() == [0]
        with pytest.raises(kind) as caught:
            await anext(job)
        assert str(caught.value) == text


async def test_a_model_learns_that_its_caller_has_left_and_its_sends_come_to_nothing(world: Any) -> None:
    world.model(
        "m",
        """
        def initialize(self, args):
            self.sent, self.cancelled = 0, threading.Event()
        def execute(self, requests):
            threading.Thread(target=self.answer, args=(requests[0], requests[0].get_response_sender())).start()
        def answer(self, request, sender):
            while not request.is_cancelled():
                self.sent += 1
                sender.send(y([self.sent]))
            assert sender.is_cancelled()
            sender.send(y([0]))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
            self.cancelled.set()
        """,
        decoupled=True,
    )
    await world.start()
    model = world.python("m")
    async with aclosing(_reading(world.submit("m"))) as answers:
        assert (await anext(answers)).outputs["y"].tolist() == [1]
        await settles(lambda: model.sent)
        assert model.sent < 200  # a slow reader holds its model up
    assert await asyncio.to_thread(model.cancelled.wait, 50)
    assert world.app.repository.snapshot.models["m"][1].running == 0


async def _reading(job: PendingRequest) -> AsyncIterator[InferResponse]:
    try:
        async for answer in job:
            yield answer
    finally:
        job.abandon()


async def test_a_model_that_never_ends_a_request_holds_up_neither_others_nor_the_end(world: Any) -> None:
    world.model(
        "m",
        """
        kept = []
        def execute(self, requests):
            if x_of(requests[0])[0] == 0:
                self.kept.append(requests[0].get_response_sender())
            else:
                requests[0].get_response_sender().send(y([1]), 1)
        """,
        decoupled=True,
    )
    await world.start()
    forgotten, late = world.submit("m", [0]), world.submit("m", [0], deadline=time.monotonic() + 0.2)
    assert await world.ys("m", [1]) == [[1]]
    with pytest.raises(DeadlineExceeded):
        await anext(late)
    assert world.app.repository.snapshot.models["m"][1].running == 1
    assert await world.app.drain()
    with pytest.raises(ModelUnavailable):
        await anext(forgotten)
    world.app.repository.snapshot = Snapshot()  # it is unloaded


async def test_a_model_that_answers_once_may_use_its_sender_too(world: Any) -> None:
    world.model(
        "m",
        """
        def initialize(self, args):
            self.heard = []
        def execute(self, requests):
            out = []
            for request in requests:
                if x_of(request).flat[0] == 0:
                    out.append(y(x_of(request)))
                else:
                    threading.Timer(0.05, self.answer, (request.get_response_sender(), x_of(request))).start()
                    out.append(None)
            return None if out == [None] else out
        def answer(self, sender, x):
            for step in (lambda: sender.send(flags=1), lambda: sender.send(y(-x)), lambda: sender.send(y(x))):
                try:
                    step()
                except pb_utils.TritonModelException as error:
                    self.heard.append(str(error))
        """,
        **BATCHED,
    )
    await world.start()
    assert await asyncio.gather(*(world.y("m", [[n, n]]) for n in (0, 1, 2))) == [[[-n, -n]] for n in (0, 1, 2)]
    await until(lambda: len(world.python("m").heard) == 4)
    assert set(world.python("m").heard) == {
        "Unable to send response. Non-decoupled model cannot send complete final before sending a response.",
        "Unable to send response. Non-decoupled model cannot send more than one response.",
    }


# --------------------------------------------------------------------------------------------------------------- async


async def test_execute_may_be_async(world: Any) -> None:
    world.model(
        "once",
        """
        async def execute(self, requests):
            await asyncio.sleep(0)
            if x_of(requests[0])[0] < 0:
                raise ValueError("negative")
            return [y(2 * x_of(request)) for request in requests]
        """,
    )
    world.model(
        "many",
        """
        begun = 0
        async def execute(self, requests):
            sender, x = requests[0].get_response_sender(), x_of(requests[0])
            self.begun += 1
            while self.begun < 20:  # until all run at a time
                await asyncio.sleep(0.001)
            for number in range(int(x[0])):
                await asyncio.sleep(0)
                sender.send(y([number]))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
        """,
        decoupled=True,
    )
    await world.start()
    assert await world.y("once", [1, 2]) == [2, 4]
    error = await world.error("once", [-1])
    assert str(error) == "Failed to process the request(s) for model 'once_0', message: ValueError: negative"
    assert await asyncio.gather(*(world.ys("many", [3]) for _ in range(20))) == [[[0], [1], [2]]] * 20


async def test_an_async_model_that_outruns_its_reader_is_stopped(world: Any) -> None:
    world.model(
        "m",
        """
        def initialize(self, args):
            self.done = threading.Event()
        async def execute(self, requests):
            sender = requests[0].get_response_sender()
            try:
                for number in range(5000):
                    sender.send(y([number]))
            finally:
                self.done.set()
        """,
        decoupled=True,
    )
    await world.start()
    job = world.submit("m")
    assert await asyncio.to_thread(world.python("m").done.wait, 50)
    with pytest.raises(ModelFailed, match="4096 answers wait for the caller to read them"):
        await outcome_of(job)


async def outcome_of(job: PendingRequest) -> None:
    async with asyncio.timeout(10):
        async for _ in job:
            pass


async def test_a_plain_execute_has_an_event_loop_to_run(world: Any) -> None:
    world.model(
        "m",
        """
        def execute(self, requests):
            async def double(x):
                await asyncio.sleep(0)
                return 2 * x
            loop = asyncio.get_event_loop()
            return [y(loop.run_until_complete(double(x_of(request)))) for request in requests]
        """,
    )
    await world.start()
    assert await world.y("m", [4]) == [8]

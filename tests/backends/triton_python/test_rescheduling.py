"""Requests that a model gives back to be executed again: Triton's L0_backend_python/request_rescheduling."""

import asyncio
from typing import Any

import pytest

from tensorgate.gateway.contract.canonical import Sequence
from tensorgate.gateway.contract.errors import InvalidArgument, ModelFailed

COUNT_DOWN = """
def initialize(self, args):
    self.left, self.log = {}, []
    self.start = pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_START
def execute(self, requests):
    for request in requests:
        sender, key = request.get_response_sender(), request.correlation_id()
        self.log.append((key, bool(request.flags() & self.start)))
        if request.flags() & self.start:
            self.left[key] = int(x_of(request)[0])
        self.left[key] -= 1
        if self.left[key] > 0:
            request.set_release_flags(pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)
            sender.send(y([self.left[key]]))
        else:
            sender.send(y([self.left[key]]), flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
ONCE_MORE = """
def initialize(self, args):
    self.seen = 0
def execute(self, requests):
    answers = []
    for request in requests:
        self.seen += 1
        if self.seen % 3 == 1:
            request.set_release_flags(pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)
            answers.append(RESCHEDULED)
        else:
            answers.append(y([self.seen]))
    return answers
"""


@pytest.mark.parametrize("way", ["def", "async def"])
async def test_a_decoupled_model_goes_on_step_by_step(world: Any, way: str) -> None:
    world.model("m", COUNT_DOWN.replace("def execute", f"{way} execute"), decoupled=True, iterative=True)
    await world.start()
    assert await world.ys("m", [3]) == [[2], [1], [0]]
    first = world.python("m").log[0][0]
    assert world.python("m").log == [(first, True), (first, False), (first, False)]
    assert await world.ys("m", [2], sequence=Sequence("mine", False, False)) == [[1], [0]]
    assert world.python("m").log[3:] == [("mine", True), ("mine", False)]


async def test_those_that_go_on_take_turns(world: Any) -> None:
    world.model("m", COUNT_DOWN, decoupled=True, iterative=True)
    await world.start()
    assert await asyncio.gather(*(world.ys("m", [n]) for n in (40, 40))) == [[[n] for n in reversed(range(40))]] * 2
    keys = [key for key, _ in world.python("m").log]
    assert keys != sorted(keys), "the second request did not wait for the end of the first"


async def test_one_answer_after_another_execution(world: Any) -> None:
    world.model("m", ONCE_MORE.replace("RESCHEDULED", "None"), iterative=True)
    await world.start()
    assert [await world.y("m", [0]) for _ in range(3)] == [[2], [3], [5]]


async def test_an_answer_for_a_request_that_goes_on(world: Any) -> None:
    world.model("m", ONCE_MORE.replace("RESCHEDULED", "y([9])"), iterative=True)
    await world.start()
    error = await world.error("m", [0])
    assert type(error) is ModelFailed
    assert "Expected a None object in the execute function return list for reschduled request" in str(error)


@pytest.mark.parametrize("model", [COUNT_DOWN, ONCE_MORE.replace("RESCHEDULED", "None")])
async def test_a_model_that_is_not_iterative(world: Any, model: str) -> None:
    """Triton: L0_iterative_sequence, test_unsupported_dynamic_scheduler."""
    world.model("m", model, decoupled=model is COUNT_DOWN)
    await world.start()
    first = Sequence(1, True, False)
    error = await world.error("m", [2], sequence=first)
    assert type(error) is InvalidArgument
    assert "Request is released with TRITONSERVER_REQUEST_RELEASE_RESCHEDULE" in str(error)


async def test_nobody_goes_on_without_a_caller(world: Any) -> None:
    world.model("m", COUNT_DOWN, decoupled=True, iterative=True)
    await world.start()
    job = world.submit("m", [10**9])
    await anext(job)
    job.abandon()
    assert await world.ys("m", [2]) == [[1], [0]]
    executed = len(world.python("m").log)
    assert await world.ys("m", [1]) == [[0]]
    assert len(world.python("m").log) == executed + 1

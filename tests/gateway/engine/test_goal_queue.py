"""A scheduler with a goal: what it refuses, and what it learns of what has run."""

import asyncio
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from tensorgate.gateway.contract.canonical import InferRequest, InferResponse
from tensorgate.gateway.contract.errors import WouldBeLate
from tensorgate.gateway.contract.execution import Executor
from tensorgate.gateway.engine.admission import Admission
from tensorgate.gateway.engine.latency_goal import GoalPolicy
from tensorgate.gateway.engine.queue import QueuePolicy
from tensorgate.gateway.engine.scheduler import Scheduler
from tensorgate.gateway.engine.scheduler_metrics import SchedulerMetrics

KEY = object()


class Held(Executor):
    """Answers with the number of requests in the batch, on the loop, once it is let go."""

    runs_on = "loop"
    inline = decoupled = False
    merges = True

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.batches: list[int] = []

    def run(self, requests: Sequence[InferRequest], observe: Any) -> Any:
        raise NotImplementedError

    async def arun(self, requests: Sequence[InferRequest], observe: Any) -> Any:
        self.batches.append(len(requests))
        await self.gate.wait()
        yield [InferResponse({"y": np.array([len(requests)])}) for request in requests]

    def close(self) -> None:
        """Nothing to give back."""


@pytest.fixture
def executor() -> Held:
    return Held()


def scheduler_of(*executors: Held) -> Scheduler:
    policy = QueuePolicy(4, goal=GoalPolicy(0.020))
    made = Scheduler(
        "m",
        executors,
        policy,
        lambda request: Admission(1, KEY),
        SchedulerMetrics(lambda stage, seconds: None, lambda rows: None),
        devices=["cpu"] * len(executors),
    )
    assert made.goal_queue is not None
    for rows, seconds in ((1, 0.008), (4, 0.009)):
        made.goal_queue.learn("cpu", rows, seconds)
    return made


async def test_what_would_be_late_is_refused_with_the_time_after_which_it_would_not(
    executor: Held, make_model: Any, clock: Any
) -> None:
    scheduler = scheduler_of(executor)
    view = make_model("m", {"x": ("FP64", None)}, {"y": ("FP64", None)})

    def ask() -> InferRequest:
        return InferRequest(view, {"x": np.zeros(1)})

    taken = [scheduler.submit(ask())]
    await clock.advance(0)
    assert executor.batches == [1]
    taken += [scheduler.submit(ask()) for _ in range(3)]  # a batch that ends after 17 ms, and has room for one more
    with pytest.raises(WouldBeLate) as refused:
        taken.extend(scheduler.submit(ask()) for _ in range(9))
    assert 0 < refused.value.wait_s < 1
    assert refused.value.http_headers == {"Retry-After": "1"}
    assert scheduler.goal_queue is not None
    status = scheduler.goal_queue.goal.status()
    assert (status.shed, status.held, status.missed) == ({"goal": 1, "deadline": 0}, 0, 0)
    executor.gate.set()
    for answers in taken:
        await anext(answers)
    await clock.advance(0)
    status = scheduler.goal_queue.goal.status()
    assert status.batches == len(executor.batches)
    assert status.held + status.missed == len(taken)
    assert (status.target_s, status.rows) == (0.020, 4)
    await scheduler.close()


async def test_a_deadline_that_passes_while_it_waits_is_refused_before_it_runs(
    executor: Held, make_model: Any, clock: Any
) -> None:
    """It was to be held when it came; the batch before it ran longer than expected."""
    view = make_model("m", {"x": ("FP64", None)}, {"y": ("FP64", None)})
    scheduler = scheduler_of(executor)
    first = scheduler.submit(InferRequest(view, {"x": np.zeros(1)}))
    await clock.advance(0)
    late = scheduler.submit(InferRequest(view, {"x": np.zeros(1)}, deadline=clock() + 0.019))
    await clock.advance(0.015)
    executor.gate.set()
    assert len([answer async for answer in first]) == 1
    with pytest.raises(WouldBeLate):
        await anext(late)
    assert executor.batches == [1]
    assert scheduler.goal_queue is not None
    assert scheduler.goal_queue.goal.status().shed == {"goal": 0, "deadline": 1}
    await scheduler.close()


async def test_a_worker_whose_batch_would_take_turns_waits(make_model: Any, clock: Any) -> None:
    """Nobody could say how long it would run."""
    view = make_model("m", {"x": ("FP64", None)}, {"y": ("FP64", None)})
    executors = [Held(), Held()]
    for executor in executors:
        executor.device_lock_key = "one device"
    scheduler = scheduler_of(*executors)
    taken = []
    for _ in range(2):
        taken.append(scheduler.submit(InferRequest(view, {"x": np.zeros(1)})))
        await clock.advance(0.001)
    assert sorted(executor.batches for executor in executors) == [[], [1]]
    for executor in executors:
        executor.gate.set()
    for answers in taken:
        await anext(answers)
    assert sum(len(executor.batches) for executor in executors) == 2
    await scheduler.close()

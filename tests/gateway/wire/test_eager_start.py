"""Flows that are begun outside of any task."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tensorgate.gateway.wire.eager_start import TasklessFlow, Waiter, as_task, in_task, on_task, start_eagerly


async def test_a_flow_that_does_not_wait_has_no_task() -> None:
    told: list[Any] = []

    async def flow() -> None:
        on_task(told.append)

    assert start_eagerly(asyncio.get_running_loop(), flow()) is None
    assert told == []


async def test_whoever_asks_in_the_first_step_is_told_of_the_task() -> None:
    told: list[Any] = []

    async def flow() -> None:
        on_task(told.append)
        await asyncio.sleep(0)
        on_task(told.append)

    task = start_eagerly(asyncio.get_running_loop(), flow())
    assert told == [task]
    assert task is not None
    await task
    assert told == [task, task]


async def test_nobody_is_told_of_the_task_of_another_flow() -> None:
    told: list[Any] = []

    async def fails() -> None:
        on_task(told.append)
        raise ValueError("no")

    async def flow() -> None:
        await asyncio.sleep(0)

    loop = asyncio.get_running_loop()
    with pytest.raises(ValueError, match="no"):
        start_eagerly(loop, fails())
    task = start_eagerly(loop, flow())
    assert task is not None
    await task
    assert told == []


async def test_what_needs_a_task_waits_for_it() -> None:
    steps: list[str] = []

    async def flow() -> None:
        steps.append("first")
        await in_task()
        async with asyncio.timeout(1):  # raises outside of a task
            await asyncio.sleep(0)
        steps.append("second")
        await in_task()
        steps.append("third")

    task = start_eagerly(asyncio.get_running_loop(), flow())
    assert steps == ["first"]
    assert task is not None
    await task
    assert steps == ["first", "second", "third"]


def begun(flow: Any) -> tuple[TasklessFlow, list[Any]]:
    """A flow that waits, and the list of what is told once it is over."""
    started = start_eagerly(asyncio.get_running_loop(), flow)
    over: list[Any] = []
    assert isinstance(started, TasklessFlow)
    started.add_done_callback(over.append)
    return started, over


async def test_whoever_has_the_result_goes_on_with_the_flow_at_once() -> None:
    first, second = Waiter[int](), Waiter[int]()
    seen: list[int] = []

    async def flow() -> None:
        seen.append(await first)
        seen.append(await second)

    started, over = begun(flow())
    first.set_result(1)
    assert seen == [1]
    assert not started.done()
    assert not over
    second.set_result(2)
    assert seen == [1, 2]
    assert over == [started]
    assert started.done()
    assert started.exception() is None
    assert not started.cancelled()


async def test_a_result_that_is_there_is_not_waited_for() -> None:
    waiter = Waiter[int]()
    waiter.set_result(7)
    seen: list[int] = []

    async def flow() -> None:
        seen.append(await waiter)

    assert start_eagerly(asyncio.get_running_loop(), flow()) is None
    assert seen == [7]


@pytest.mark.parametrize("through_anext", [False, True])
async def test_an_error_is_raised_where_the_result_is_awaited(through_anext: bool) -> None:
    waiter = Waiter[int]()

    class Results:
        def __anext__(self) -> Waiter[int]:
            return waiter

    async def flow() -> None:
        await (anext(Results(), None) if through_anext else waiter)

    started, over = begun(flow())
    error = ValueError("no")
    waiter.set_exception(error)
    assert over == [started]
    assert started.exception() is error


async def test_the_end_of_results_gives_the_default() -> None:
    waiter = Waiter[int]()
    seen: list[Any] = []

    class Results:
        def __anext__(self) -> Waiter[int]:
            return waiter

    async def flow() -> None:
        seen.append(await anext(Results(), None))

    _, over = begun(flow())
    waiter.set_exception(StopAsyncIteration())
    assert seen == [None]
    assert over


async def test_a_flow_that_waits_for_anything_else_has_a_task() -> None:
    waiter = Waiter[int]()
    told: list[Any] = []

    async def flow() -> None:
        await waiter
        await in_task()
        async with asyncio.timeout(1):  # raises outside of a task
            await asyncio.sleep(0)
        on_task(told.append)

    started, over = begun(flow())
    waiter.set_result(1)
    task = as_task(started)
    await task
    assert told == [task]
    await asyncio.sleep(0)
    assert over == [started]


async def test_a_cancelled_flow_is_told_where_it_waits() -> None:
    waiter = Waiter[int]()
    seen: list[str] = []

    async def flow() -> None:
        try:
            await waiter
        except asyncio.CancelledError:
            seen.append("cancelled")
            await asyncio.sleep(0)
            seen.append("cleaned up")
            raise

    started, over = begun(flow())
    started.cancel()
    assert seen == []  # it takes no step inside of whoever cancels
    with pytest.raises(asyncio.CancelledError):
        await as_task(started)
    await asyncio.sleep(0)
    assert seen == ["cancelled", "cleaned up"]
    assert over == [started]
    assert started.cancelled()
    assert waiter.is_over
    waiter.set_result(1)  # without effect


async def test_a_result_and_a_cancellation_of_one_turn_end_as_a_task_does() -> None:
    waiter = Waiter[int]()
    seen: list[int] = []

    async def flow() -> None:
        seen.append(await waiter)

    started, _ = begun(flow())
    started.cancel()
    waiter.set_result(1)
    with pytest.raises(asyncio.CancelledError):
        await as_task(started)
    assert seen == []


async def test_a_flow_that_is_cancelled_in_its_own_step_is_told_where_it_waits_next() -> None:
    first, second = Waiter[int](), Waiter[int]()
    seen: list[str] = []
    flows: list[TasklessFlow] = []

    async def flow() -> None:
        await first
        flows[0].cancel()
        seen.append("goes on")
        await second

    started, _ = begun(flow())
    flows.append(started)
    first.set_result(1)
    assert seen == ["goes on"]
    with pytest.raises(asyncio.CancelledError):
        await as_task(started)


async def test_a_task_waits_for_a_result_as_for_a_future() -> None:
    waiter = Waiter[int]()

    async def flow() -> int:
        return await waiter

    task = asyncio.create_task(flow())
    await asyncio.sleep(0)
    waiter.set_result(5)
    assert await asyncio.wait_for(task, 1) == 5
    assert await asyncio.ensure_future(waiter) == 5


async def test_a_callback_that_fails_is_nothing_to_whoever_had_the_result() -> None:
    waiter = Waiter[int]()
    said: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: said.append(context["exception"]))

    async def flow() -> None:
        await waiter

    started, over = begun(flow())
    error = ValueError("no")

    def fails(_: Any) -> None:
        raise error

    started.add_done_callback(fails)
    waiter.set_result(1)
    assert over == [started]
    assert said == [error]

"""Flows that are begun outside of any task."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tensorgate.gateway.wire.eager_start import in_task, on_task, start_eagerly


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

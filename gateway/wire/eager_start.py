"""The first step of a coroutine, taken at once: most small requests end with it, and only those that wait cost a task.

Code that needs its task in that step asks here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Generator
from typing import Any, Final

from tensorgate.gateway.contract.shortcuts import is_taken

Task = asyncio.Task[Any]
_IS_TAKEN: Final = is_taken("eager_start")

_first_steps: Final[list[list[Callable[[Task], None]]]] = []
"""Of each coroutine whose first step is being taken: the callbacks that want its task."""


def start_eagerly(loop: asyncio.AbstractEventLoop, flow: Coroutine[Any, Any, None]) -> asyncio.Task[None] | None:
    """Take the first step outside of any task. -> the task that goes on, None if the coroutine is over.

    Raises what the coroutine raises.
    """
    if not _IS_TAKEN:
        return loop.create_task(flow)
    callbacks: list[Callable[[Task], None]] = []
    _first_steps.append(callbacks)
    try:
        waits_for = flow.send(None)
    except StopIteration:
        return None
    finally:
        _first_steps.pop()
    task = loop.create_task(_Begun(flow, waits_for))
    for callback in callbacks:
        callback(task)
    return task


def on_task(callback: Callable[[Task], None]) -> None:
    """Call back with the task of the running coroutine, now or as soon as it has one."""
    if _first_steps:
        _first_steps[-1].append(callback)
    elif (task := asyncio.current_task()) is not None:
        callback(task)


async def in_task() -> None:
    """Go on in a task, as asyncio's timeouts need it."""
    if _first_steps:
        await asyncio.sleep(0)


class _Begun(Coroutine[Any, Any, None]):
    """A coroutine whose first step was taken outside of any task, for a task to go on with."""

    __slots__ = ("_coroutine", "_waits_for")

    def __init__(self, coroutine: Coroutine[Any, Any, None], waits_for: Any) -> None:
        self._coroutine = coroutine
        self._waits_for: tuple[Any, ...] = (waits_for,)

    def send(self, value: Any) -> Any:
        if self._waits_for:
            (waits_for,), self._waits_for = self._waits_for, ()
            return waits_for
        return self._coroutine.send(value)

    def throw(self, *error: Any) -> Any:
        self._waits_for = ()
        return self._coroutine.throw(*error)

    def close(self) -> None:
        self._coroutine.close()

    def __await__(self) -> Generator[Any, Any, None]:
        raise TypeError("only a task goes on with it")

"""The first step of a coroutine, taken at once: most small requests end with it, and only those that wait cost a task.

Those that wait for a Waiter do not: whoever has the result goes on with them there and then. Code that needs its task
asks here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Generator
from typing import Any, Final, Generic, NoReturn, TypeAlias, TypeVar

from tensorgate.gateway.contract.shortcuts import is_taken

Task = asyncio.Task[Any]
Flow = Coroutine[Any, Any, None]
T = TypeVar("T")
_IS_TAKEN: Final = is_taken("eager_start")

_first_steps: Final[list[list[Callable[[Task], None]]]] = []
"""Of each coroutine of which a step is being taken outside of any task: the callbacks that want its task."""


def start_eagerly(loop: asyncio.AbstractEventLoop, flow: Flow) -> EagerTask | None:
    """Take the first step outside of any task. -> what goes on, None if the coroutine is over.

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
    if type(waits_for) is Waiter and not callbacks:
        return TasklessFlow(loop, flow, waits_for)
    return _task_of(loop, flow, waits_for, callbacks)


def _task_of(
    loop: asyncio.AbstractEventLoop, flow: Flow, waits_for: Any, callbacks: list[Callable[[Task], None]]
) -> asyncio.Task[None]:
    """The task that goes on with a flow."""
    if type(waits_for) is Waiter:
        waits_for = waits_for.as_future(loop)
    task = loop.create_task(_Begun(flow, waits_for))
    for callback in callbacks:
        callback(task)
    return task


class Waiter(Generic[T]):
    """A result to come, for one who awaits it. All is for the event loop."""

    __slots__ = ("_error", "_future", "_result", "flow", "is_over")

    _result: T

    def __init__(self) -> None:
        self._error: Exception | None = None
        self._future: asyncio.Future[None] | None = None
        self.flow: TasklessFlow | None = None
        """Who awaits it without a task."""
        self.is_over = False
        """The result is here, or nobody waits for it any more."""

    def __await__(self) -> Generator[Any, None, T]:
        return self  # type: ignore[return-value]  # it has what `await` uses of one

    def __iter__(self) -> Waiter[T]:
        return self

    def __next__(self) -> Any:
        if self._error is not None:
            raise self._error
        if self.is_over:
            raise StopIteration(self._result)
        return self if _first_steps else self.as_future(asyncio.get_running_loop())

    def send(self, value: object) -> Any:
        """See Generator: `anext` with a default asks for it."""
        return next(self)

    def throw(self, error: Any, value: Any = None, traceback: Any = None) -> NoReturn:
        """See Generator: whoever awaited this goes on without it."""
        self.is_over = True
        self.flow = None
        raise error if value is None else value

    def set_result(self, result: T) -> None:
        """Give the result, once: a flow without a task takes its next step before this returns."""
        self._result = result
        self._wake()

    def set_exception(self, error: Exception) -> None:
        """Give an error in place of the result."""
        self._error = error
        self._wake()

    def _wake(self) -> None:
        self.is_over = True
        flow, future = self.flow, self._future
        if flow is not None:
            self.flow = None
            flow.go_on()
        elif future is not None and not future.done():
            future.set_result(None)

    def as_future(self, loop: asyncio.AbstractEventLoop) -> asyncio.Future[None]:
        """What a task that goes on with the flow is to wait for."""
        self.flow = None
        self._future = future = loop.create_future()
        future._asyncio_future_blocking = True  # what a future says that is awaited
        return future


class TasklessFlow:
    """A flow that waits for a Waiter. Once it waits for anything else, or is cancelled, it is a task's."""

    __slots__ = ("_callbacks", "_error", "_flow", "_is_cancelled", "_is_over", "_loop", "_task", "_waiter")

    def __init__(self, loop: asyncio.AbstractEventLoop, flow: Flow, waiter: Waiter[Any]) -> None:
        self._loop = loop
        self._flow = flow
        self._waiter: Waiter[Any] | None = waiter
        """None while a step is being taken, and afterwards."""
        waiter.flow = self
        self._callbacks: list[Callable[[TasklessFlow], object]] = []
        self._task: asyncio.Task[None] | None = None
        self._error: BaseException | None = None
        self._is_cancelled = self._is_over = False

    def go_on(self) -> None:
        """Take the next step: what was awaited is here."""
        self._waiter = None
        callbacks: list[Callable[[Task], None]] = []
        _first_steps.append(callbacks)
        try:
            try:
                waits_for = self._flow.send(None)
            finally:
                _first_steps.pop()
        except StopIteration:
            self._end()
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:
            self._error = error
            self._end()
        else:
            if type(waits_for) is Waiter and not callbacks and not self._is_cancelled:
                self._waiter = waits_for
                waits_for.flow = self
            else:
                self._go_on_in_task(waits_for, callbacks)

    def _go_on_in_task(self, waits_for: Any, callbacks: list[Callable[[Task], None]]) -> asyncio.Task[None]:
        self._task = task = _task_of(self._loop, self._flow, waits_for, callbacks)
        if self._is_cancelled:
            task.cancel()
        task.add_done_callback(self._end)
        return task

    def _end(self, task: asyncio.Task[None] | None = None) -> None:
        self._is_over = True
        for callback in self._callbacks:
            try:
                callback(self)
            except Exception as error:  # it is nothing to whoever had the result
                self._loop.call_exception_handler({"message": "a callback failed", "exception": error})

    def add_done_callback(self, callback: Callable[[TasklessFlow], object]) -> None:
        """Have a function called with this when the flow is over, which it is not yet."""
        self._callbacks.append(callback)

    def cancel(self) -> None:
        """See asyncio.Task."""
        self._is_cancelled = True
        if self._task is not None:
            self._task.cancel()
        elif self._waiter is not None:
            self.task()

    def task(self) -> asyncio.Task[None]:
        """The task that goes on with the flow from now on. Not to be asked for in its own steps, or when it is over."""
        if self._task is None:
            waiter, self._waiter = self._waiter, None
            return self._go_on_in_task(waiter, [])
        return self._task

    def done(self) -> bool:
        """See asyncio.Task."""
        return self._is_over

    def cancelled(self) -> bool:
        """See asyncio.Task."""
        return isinstance(self._error, asyncio.CancelledError) if self._task is None else self._task.cancelled()

    def exception(self) -> BaseException | None:
        """See asyncio.Task."""
        return self._error if self._task is None else self._task.exception()


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


EagerTask: TypeAlias = asyncio.Task[None] | TasklessFlow
"""What goes on with a flow behind its first step."""


def as_task(flow: EagerTask) -> asyncio.Task[None]:
    """The task that goes on from now on with a flow that is not over, and takes no step now."""
    return flow.task() if isinstance(flow, TasklessFlow) else flow


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

"""The one thread in which a model's instance lives: it is imported, initialized, executed and finalized there.

Triton gives a model its process's main thread for all of these, and some libraries want that: a CUDA context, a
connection to SQLite. The thread is a daemon, and so are the threads that a model starts from it: a model that never
ends cannot keep the gateway from ending.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")


class ModelThread:
    """Runs steps one after the other. After `become_loop`, they are callbacks of an event loop in the same thread."""

    def __init__(self, name: str) -> None:
        self._inbox: queue.SimpleQueue[Callable[[], object] | None] = queue.SimpleQueue()
        self.loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    @property
    def is_current(self) -> bool:
        return threading.current_thread() is self._thread

    def post(self, step: Callable[[], object]) -> None:
        """Run a step that does not raise."""
        if self.loop is not None:
            self.loop.call_soon_threadsafe(step)
        else:
            self._inbox.put(step)

    def call(self, step: Callable[[], T], timeout: float | None = None) -> T:
        """Run a step, and give what it returns or raises. Raises TimeoutError if it takes longer."""
        future: Future[T] = Future()

        def run() -> None:
            try:
                future.set_result(step())
            except BaseException as error:  # a model may even raise SystemExit
                future.set_exception(error)

        self.post(run)
        return future.result(timeout)

    def become_loop(self) -> None:
        """From now on, steps run on an event loop, and may make tasks there."""
        ready: Future[asyncio.AbstractEventLoop] = Future()

        def serve() -> None:
            with asyncio.Runner() as runner:  # cancels what is left when it closes
                loop = runner.get_loop()
                ready.set_result(loop)
                loop.run_forever()

        self.post(serve)
        self.loop = ready.result()

    def leave_loop(self) -> None:
        """Back to plain steps: what still runs on the loop is cancelled first."""
        loop, self.loop = self.loop, None
        if loop is not None:
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(loop.stop)

    def stop(self) -> None:
        """After the steps before it. Does not wait."""
        self._inbox.put(None)

    def _work(self) -> None:
        """With an event loop that does not run: models that are not async use `get_event_loop().run_until_complete`."""
        loop = asyncio.new_event_loop()
        asyncio.set_event_loop(loop)
        try:
            while (step := self._inbox.get()) is not None:
                step()
                del step  # what it holds is not ours to keep while there is nothing to do
        finally:
            loop.close()

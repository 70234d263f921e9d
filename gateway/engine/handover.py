"""What a model's thread gives, piece by piece, on its way to the event loop."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable
from typing import Final, Generic, TypeVar

T = TypeVar("T")

LOOKS_EVERY_S: Final = 1e-3


class Handover(Generic[T]):
    """To wake the loop for each piece would cost more than many a model does: the two threads would take turns with the
    interpreter, piece by piece. So the first wakes it, and as long as more come than one in LOOKS_EVERY_S, it looks for
    them in place of being woken, as drivers of network cards do. Source: Mogul and Ramakrishnan, 1997.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, take: Callable[[T], None], window: int) -> None:
        """`take` gets each piece on the loop. Whoever gives them waits once `window` of them are not taken; the loop is
        told when there are half as many.
        """
        self._loop = loop
        self._take_one = take
        self._urgent = window // 2
        self._given: deque[T] = deque()
        self._is_awake = False
        """The loop looks, or has been told to."""

    def give(self, piece: T) -> None:
        """In the thread."""
        self._given.append(piece)
        if not self._is_awake or len(self._given) == self._urgent:
            self._is_awake = True
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody is left to tell
                self._loop.call_soon_threadsafe(self._take)

    def take_all(self) -> None:
        """On the loop: what is here by now."""
        while self._given:
            self._take_one(self._given.popleft())

    def _take(self) -> None:
        if not self._given:
            self._is_awake = False
            if not self._given:  # still: whoever gives one now sees that nobody looks
                return
            self._is_awake = True
        self._loop.call_later(LOOKS_EVERY_S, self._take)
        self.take_all()

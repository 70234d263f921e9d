"""How tests wait: for what has to come true, never for a length of time.

A machine may be as busy as it likes: `until` and `wait_until` give up so late that only what never happens is missed.
Where time itself matters, the fixture `clock` stops it, and a test moves it on.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

GIVES_UP_S = 45.0
"""Below the timeout of a test: what was waited for is named, which a timeout cannot."""
STEPS = 20
"""Of the event loop, between two looks at the world outside it"""
PAUSE_S = 0.001

_now = time.perf_counter  # whatever stands in for time.monotonic()


def wait_until(happened: Callable[[], object], what: Callable[[], object] = lambda: "") -> None:
    """Wait until it has happened; `what` is told if it never does."""
    give_up = _now() + GIVES_UP_S
    while not happened():
        if _now() > give_up:
            raise AssertionError(f"it did not happen. {what()}")
        time.sleep(PAUSE_S)  # real time: until others have gone on


async def until(happened: Callable[[], object], what: Callable[[], object] = lambda: "") -> None:
    """Wait until it has happened, while the loop, threads and other processes go on. The clock may stand still."""
    give_up = _now() + GIVES_UP_S
    while not happened():
        if _now() > give_up:
            raise AssertionError(f"it did not happen. {what()}")
        await steps()


async def steps(count: int = STEPS) -> None:
    """Let the loop take so many steps, then threads and processes go on for a moment, so that what was about to happen
    has a chance to: before something is said not to happen.
    """
    for _ in range(count):
        await asyncio.sleep(0)
    time.sleep(PAUSE_S)  # real time: a timer would need the clock, which may stand still  # noqa: ASYNC251


async def stays(holds: Callable[[], object], rounds: int = 30) -> None:
    """It goes on to be so: seen once in a round of the loop's steps."""
    for _ in range(rounds):
        assert holds()
        await steps()


async def settles(value: Callable[[], object]) -> None:
    """Wait until it has been the same for many rounds."""
    last, same, give_up = value(), 0, _now() + GIVES_UP_S
    while same < 50:
        if _now() > give_up:
            raise AssertionError(f"it goes on: {value()}")
        await steps()
        same = same + 1 if value() == last else 0
        last = value()


class Clock:
    """time.monotonic(), and with it the time of the event loop: it stands still until a test moves it."""

    def __init__(self, running: Callable[[], float]) -> None:
        self._running = running
        self._now = running()
        self._ahead: float | None = None

    def __call__(self) -> float:
        return self._now if self._ahead is None else self._running() + self._ahead

    def move(self, seconds: float) -> None:
        self._now += seconds

    async def advance(self, seconds: float) -> None:
        """Let what has begun come to its timers, move on, and let what was due until then happen."""
        await steps()
        self._now += seconds
        await steps()

    def go_on(self) -> None:
        """It stands still no longer."""
        self._ahead = self._now - self._running()

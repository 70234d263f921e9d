"""Calls that wait for a place outside of this process: a disk, another server. A thread takes them there, some times a
second: nobody waits for it. What it cannot keep up with is dropped, counted, and said in the log once a minute.
"""

from __future__ import annotations

import logging
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Sequence
from typing import ClassVar, Final, Generic, TypeVar

log = logging.getLogger(__name__)

MAX_WAITING_BYTES: Final = 64 << 20
"""Bodies that may wait."""
MAX_WAITING_CALLS: Final = 65_536
_WRITE_EVERY_S: Final = 0.1
_CLOSES_WITHIN_S: Final = 2.0
_SAY_EVERY_S: Final = 60.0

Item = TypeVar("Item")


class Backlog(ABC, Generic[Item]):
    """Takes calls on the event loop, and puts them somewhere in a thread of its own."""

    at_once: ClassVar[int] = 64
    """How many are put there together: all of them, or none."""

    def __init__(self, place: str) -> None:
        """`place` is what the log calls it."""
        self._place = place
        self._waiting: deque[tuple[Item, int]] = deque()
        self._taken_bytes = self._done_bytes = 0  # each is written in one place: nothing is locked
        self._thread: threading.Thread | None = None
        self._ends = threading.Event()
        self._complained = False
        self._said_dropped = 0
        self._says_at = 0.0
        self._refused = self._failed = self._written = 0

    @property
    def dropped(self) -> int:
        """Calls that were too many, or could not be put there."""
        return self._refused + self._failed

    @property
    def written(self) -> int:
        """Calls that are there."""
        return self._written

    def take(self, item: Item, nbytes: int) -> None:
        """Keep a call with bodies of so many bytes; drop it if too much waits."""
        full = self._taken_bytes - self._done_bytes + nbytes > MAX_WAITING_BYTES
        if full or len(self._waiting) >= MAX_WAITING_CALLS:
            self._refused += 1
            return
        self._taken_bytes += nbytes
        self._waiting.append((item, nbytes))
        if self._thread is None:
            self._ends.clear()
            self._thread = threading.Thread(target=self._work, name="recorder", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """Put there what waits, as far as that works within moments."""
        if self._thread is not None:
            self._ends.set()
            self._thread.join(_CLOSES_WITHIN_S)
            self._thread = None

    @abstractmethod
    def put(self, items: Sequence[Item]) -> None:
        """Put calls there, in the thread. Raises OSError where that cannot be done; the next are tried all the same."""

    @abstractmethod
    def leave(self) -> None:
        """Let go of what is open, in the thread: calls end, or one could not be put there."""

    def _work(self) -> None:
        while not self._ends.wait(_WRITE_EVERY_S):
            self._flush()
        self._flush()
        self.leave()

    def _flush(self) -> None:
        while self._waiting:
            taken = [self._waiting.popleft() for _ in range(min(len(self._waiting), self.at_once))]
            try:
                self.put([item for item, _ in taken])
                self._written += len(taken)
                self._complained = False
            except OSError as error:
                self._failed += len(taken)
                self.leave()
                if not self._complained:
                    log.error("calls cannot be recorded in %s: %s", self._place, error.strerror or error)
                self._complained = True
            except Exception:  # a call that cannot be told of: later ones can
                self._failed += len(taken)
                log.exception("calls cannot be recorded")
            self._done_bytes += sum(nbytes for _, nbytes in taken)
        self._say_dropped()

    def _say_dropped(self) -> None:
        dropped, now = self.dropped, time.monotonic()
        if dropped > self._said_dropped and now >= self._says_at:
            log.warning("%d calls were not recorded in %s", dropped - self._said_dropped, self._place)
            self._said_dropped, self._says_at = dropped, now + _SAY_EVERY_S

"""Token buckets and counts of concurrent calls that several processes share, in memory that all of them map.

    offset   what
    0        a secret, 16 bytes: keys the hashes, so that nobody can choose callers whose slots collide
    64       slots, each: digest of limit and key (16 bytes, zeros: free), level, when it was so, last used (float64
             each; seconds of time.monotonic(), which is the same for all processes), and the number of concurrent calls
             in each process's row (uint32)

A key's slot is one of WINDOW from its hash on. Where all are taken, the one that was used longest ago gives way, unless
calls are under way in it.

All access is under a lock of the file, which the kernel takes from a process that dies (POSIX record locks; between the
threads of one process they are none: the authorizer is for the event loop alone). A process that is killed in the midst
of it leaves a slot with some numbers old and some new, each of them whole; a slot gets its digest last. What cannot be
a number of ours is taken for a full bucket. The calls that were under way in a dead process are forgotten when the next
one takes its row.

Measured on one core: 6.6 us for a bucket, 3.0 us of it the two calls of the lock; a bucket of one process takes 0.5.
"""

from __future__ import annotations

import fcntl
import math
import secrets
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import blake2b
from typing import Final

import numpy as np

from tensorgate.gateway.crossing.shared_state import SharedState

WINDOW: Final = 16
"""Slots in which a key may be."""
_MAX_AHEAD_S: Final = 60.0
"""Times of other processes are a moment apart from ours, and no more."""
_HEADER_BYTES: Final = 64
_SECRET_BYTES: Final = 16
_DIGEST_BYTES: Final = 16
_FREE: Final = bytes(_DIGEST_BYTES)
_NUMBERS: Final = struct.Struct("<ddd")
_COUNT: Final = struct.Struct("<I")
_COUNTS_AT: Final = _DIGEST_BYTES + _NUMBERS.size


class LimitTable:
    """One process's view of the table. Every method belongs to the event loop."""

    def __init__(self, memory: memoryview, fd: int, row: int, rows: int) -> None:
        """`memory` is the region of the file `fd` that is the table's, zeros at first; `row` is this process's own."""
        self._memory = memory
        self._fd = fd
        self._row = row
        self._rows = rows
        self._slot_bytes = -(-(_COUNTS_AT + _COUNT.size * rows) // 8) * 8
        self._slots = (len(memory) - _HEADER_BYTES) // self._slot_bytes
        with self._locked():
            if memory[:_SECRET_BYTES] == bytes(_SECRET_BYTES):
                memory[:_SECRET_BYTES] = secrets.token_bytes(_SECRET_BYTES)
        self._secret = bytes(memory[:_SECRET_BYTES])
        self.left = 0.0
        """What the last `take` of this process left in its bucket."""

    @classmethod
    def of(cls, shared: SharedState, row: int | None) -> LimitTable:
        """The table in what doors share, for the door of a row; None: for the engine, whose row is after theirs."""
        rows = 2 * shared.doors
        return cls(shared.rate_limits, shared.fd, rows if row is None else row, rows + 1)

    def forget_row(self) -> None:
        """The row's process is gone, or begins: what was under way in it is over."""
        start = _COUNTS_AT + _COUNT.size * self._row
        size = self._slots * self._slot_bytes
        slots = np.frombuffer(self._memory, np.uint8, size, _HEADER_BYTES).reshape(self._slots, self._slot_bytes)
        with self._locked():
            slots[:, start : start + _COUNT.size] = 0

    def key(self, limit: str, key: str) -> bytes:
        """What finds the slot of one of a limit's keys."""
        text = f"{limit}\0{key}".encode("utf-8", "surrogateescape")
        return blake2b(text, digest_size=_DIGEST_BYTES, key=self._secret).digest()

    def take(self, key: bytes, cost: float, least: float, rate: float, size: float, now: float) -> float:
        """Take tokens of a bucket that gets `rate` of them a second, up to `size` -> 0.0; or, if there are fewer than
        `least`, none -> the seconds until there are.
        """
        with self._locked():
            at = self._find(key, now)
            if at is None:
                return 1 / rate
            level, then, _ = _NUMBERS.unpack_from(self._memory, at + _DIGEST_BYTES)
            if not then or not then < now + _MAX_AHEAD_S:
                level, then = size, now
            level = min(size, level + max(0.0, now - then) * rate) if math.isfinite(level) else size
            if level < least:
                return (least - level) / rate
            now = max(now, then)  # another process may have come in between
            self.left = level - cost
            _NUMBERS.pack_into(self._memory, at + _DIGEST_BYTES, self.left, now, now)
        return 0.0

    def enter(self, key: bytes, most: int, now: float) -> bool:
        """Count a call that begins; False if so many are under way already, in all processes."""
        with self._locked():
            at = self._find(key, now)
            if at is None or self._running(at) >= most:
                return False
            self._add(at, 1)
        return True

    def leave(self, key: bytes) -> None:
        """Count the end of a call that has entered."""
        with self._locked():
            at = self._known(key)
            if at is not None:
                self._add(at, -1)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        fcntl.lockf(self._fd, fcntl.LOCK_EX, 1, 0)
        try:
            yield
        finally:
            fcntl.lockf(self._fd, fcntl.LOCK_UN, 1, 0)

    def _at(self, slot: int) -> int:
        return _HEADER_BYTES + slot * self._slot_bytes

    def _window(self, key: bytes) -> Iterator[int]:
        first = int.from_bytes(key[:8], "little")
        return (self._at((first + step) % self._slots) for step in range(min(WINDOW, self._slots)))

    def _known(self, key: bytes) -> int | None:
        memory = self._memory
        return next((at for at in self._window(key) if memory[at : at + _DIGEST_BYTES] == key), None)

    def _find(self, key: bytes, now: float) -> int | None:
        """The slot of a key, a new one if it has none; None if calls are under way in every slot that it may have."""
        at = self._known(key)
        if at is not None:
            return at
        memory = self._memory
        free = None
        oldest = math.inf
        for each in self._window(key):
            if memory[each : each + _DIGEST_BYTES] == _FREE:
                free = each
                break
            used = _NUMBERS.unpack_from(memory, each + _DIGEST_BYTES)[2]
            if not used < now + _MAX_AHEAD_S:  # no time that was
                used = -math.inf
            if used < oldest and not self._running(each):
                free, oldest = each, used
        if free is None:
            return None
        memory[free : free + _DIGEST_BYTES] = _FREE
        _NUMBERS.pack_into(memory, free + _DIGEST_BYTES, 0.0, 0.0, now)
        memory[free + _COUNTS_AT : free + self._slot_bytes] = bytes(self._slot_bytes - _COUNTS_AT)
        memory[free : free + _DIGEST_BYTES] = key
        return free

    def _running(self, at: int) -> int:
        start = at + _COUNTS_AT
        return sum(self._memory[start : start + _COUNT.size * self._rows].cast("I"))

    def _add(self, at: int, calls: int) -> None:
        place = at + _COUNTS_AT + _COUNT.size * self._row
        (running,) = _COUNT.unpack_from(self._memory, place)
        _COUNT.pack_into(self._memory, place, max(0, running + calls))

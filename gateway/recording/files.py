"""Recorded calls on their way into files. A thread writes, some times a second: nobody waits for a disk.

The file in use has the configured name; a full one is renamed to NAME.1, the one before to NAME.2, and so on, and the
oldest is removed. What the disk cannot keep up with is dropped, counted, and said in the log once a minute.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Final

log = logging.getLogger(__name__)

MAX_WAITING_BYTES: Final = 64 << 20
"""Bodies that may wait for the disk."""
MAX_WAITING_CALLS: Final = 65_536
_WRITE_EVERY_S: Final = 0.1
_CLOSES_WITHIN_S: Final = 2.0
_CALLS_AT_ONCE: Final = 64
_SAY_EVERY_S: Final = 60.0
_BLOCK_BYTES: Final = 1 << 16

Make = Callable[[], bytes]
"""Makes the line of a call that is over."""


class RecordFiles:
    """Takes calls on the event loop, and writes them in a thread of its own."""

    def __init__(self, path: Path, max_bytes: int, files: int) -> None:
        """`max_bytes` is the size of one file; so many `files` are kept, the one in use among them."""
        self._path = path
        self._max_bytes = max_bytes
        self._kept = files
        self._waiting: deque[tuple[Make, int]] = deque()
        self._taken_bytes = self._done_bytes = 0  # each is written in one place: nothing is locked
        self._thread: threading.Thread | None = None
        self._ends = threading.Event()
        self._file = -1
        self._size = 0
        self._complained = False
        self._said_dropped = 0
        self._says_at = 0.0
        self._refused = self._failed = self._written = 0

    @property
    def dropped(self) -> int:
        """Calls that were too many for the disk, or could not be written."""
        return self._refused + self._failed

    @property
    def written(self) -> int:
        """Calls that stand in a file."""
        return self._written

    def take(self, make: Make, nbytes: int) -> None:
        """Keep a call with bodies of so many bytes; drop it if too much waits."""
        full = self._taken_bytes - self._done_bytes + nbytes > MAX_WAITING_BYTES
        if full or len(self._waiting) >= MAX_WAITING_CALLS:
            self._refused += 1
            return
        self._taken_bytes += nbytes
        self._waiting.append((make, nbytes))
        if self._thread is None:
            self._ends.clear()
            self._thread = threading.Thread(target=self._work, name="recorder", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """Write what waits, as far as that works within moments."""
        if self._thread is not None:
            self._ends.set()
            self._thread.join(_CLOSES_WITHIN_S)
            self._thread = None

    def _work(self) -> None:
        while not self._ends.wait(_WRITE_EVERY_S):
            self._flush()
        self._flush()
        self._close_file()

    def _flush(self) -> None:
        while self._waiting:
            taken = [self._waiting.popleft() for _ in range(min(len(self._waiting), _CALLS_AT_ONCE))]
            try:
                self._write(b"".join([make() for make, _ in taken]))
                self._written += len(taken)
                self._complained = False
            except OSError as error:
                self._failed += len(taken)
                self._close_file()  # a line may be cut off: opening it again removes that
                if not self._complained:
                    log.error("calls cannot be recorded in %s: %s", self._path, error.strerror or error)
                self._complained = True
            except Exception:  # a call that has no line: later ones are to have theirs
                self._failed += len(taken)
                log.exception("calls cannot be recorded")
            self._done_bytes += sum(nbytes for _, nbytes in taken)
        self._say_dropped()

    def _say_dropped(self) -> None:
        dropped, now = self.dropped, time.monotonic()
        if dropped > self._said_dropped and now >= self._says_at:
            log.warning("%d calls were not recorded in %s", dropped - self._said_dropped, self._path)
            self._said_dropped, self._says_at = dropped, now + _SAY_EVERY_S

    def _write(self, lines: bytes) -> None:
        if self._file >= 0 and (not self._is_current() or self._size + len(lines) > self._max_bytes):
            full = self._is_current()
            self._close_file()
            if full:
                self._rotate()
        if self._file < 0:
            self._file = os.open(self._path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
            self._size = _whole_lines(self._file)
            os.ftruncate(self._file, self._size)
        left = memoryview(lines)
        while left:
            left = left[os.write(self._file, left) :]
        self._size += len(lines)

    def _close_file(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _rotate(self) -> None:
        for number in range(self._kept - 1, 0, -1):
            before = self._path if number == 1 else self._numbered(number - 1)
            if before.exists():
                before.replace(self._numbered(number))
        if self._kept == 1:
            self._path.unlink(missing_ok=True)

    def _numbered(self, number: int) -> Path:
        return self._path.with_name(f"{self._path.name}.{number}")

    def _is_current(self) -> bool:
        """Whether the name still means the file that is open."""
        try:
            named, open_ = self._path.stat(), os.fstat(self._file)
        except OSError:
            return False
        return (named.st_dev, named.st_ino) == (open_.st_dev, open_.st_ino)


def _whole_lines(file: int) -> int:
    """The bytes of a file without a last line that is cut off: its writer was killed, or the disk was full."""
    size = os.fstat(file).st_size
    while size:
        begin = max(0, size - _BLOCK_BYTES)
        end = os.pread(file, size - begin, begin).rfind(b"\n")
        if end >= 0:
            return begin + end + 1
        size = begin
    return 0

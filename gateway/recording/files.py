"""Recorded calls on their way into files.

The file in use has the configured name; a full one is renamed to NAME.1, the one before to NAME.2, and so on, and the
oldest is removed.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tensorgate.gateway.recording.backlog import Backlog

_BLOCK_BYTES: Final = 1 << 16


class RecordFiles(Backlog[bytes]):
    """Writes the lines of calls."""

    at_once = 256

    def __init__(self, path: Path, max_bytes: int, files: int) -> None:
        """`max_bytes` is the size of one file; so many `files` are kept, the one in use among them."""
        super().__init__(str(path))
        self._path = path
        self._max_bytes = max_bytes
        self._kept = files
        self._file = -1
        self._size = 0

    def put(self, items: Sequence[bytes]) -> None:
        self._write(b"".join(items))

    def leave(self) -> None:
        """A line that could not be written may be cut off: opening the file again removes that."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _write(self, lines: bytes) -> None:
        if self._file >= 0 and (not self._is_current() or self._size + len(lines) > self._max_bytes):
            full = self._is_current()
            self.leave()
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

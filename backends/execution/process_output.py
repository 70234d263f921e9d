"""What a model's own process writes to its standard output and standard error, for the server's log."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import sys
from typing import Final

LOG_LINE: Final = "\x1e"
"""Begins a log message in what a process writes: its level, its logger and its text follow."""
LOG_FIELD: Final = "\x1f"
_MAX_LINE_BYTES: Final = 1 << 16


class ProcessOutput:
    """What a process writes, line by line to the server's log."""

    def __init__(self, loop: asyncio.AbstractEventLoop, fd: int, model: str) -> None:
        self._loop = loop
        self._fd = fd
        self._model = model
        self._rest = b""
        os.set_blocking(fd, False)
        loop.add_reader(fd, self._read)

    def _read(self) -> None:
        try:
            data = os.read(self._fd, _MAX_LINE_BYTES)
        except BlockingIOError:
            return
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > _MAX_LINE_BYTES or not data:
            lines.append(self._rest)
            self._rest = b""
        for line in lines:
            self._write(line.decode("utf-8", "replace"))
        if not data:
            self.close()

    def _write(self, line: str) -> None:
        """A message of its log, perhaps behind a line that has not ended; or a line as it is."""
        plain, sign, message = line.partition(LOG_LINE)
        if plain:
            sys.stderr.write(f"{self._model}: {plain}\n")
        if not sign:
            return
        level, _, rest = message.partition(LOG_FIELD)
        name, _, text = rest.partition(LOG_FIELD)
        if level.isdecimal():
            with contextlib.suppress(ValueError):  # what a model writes in this form by itself
                logging.getLogger(name).log(int(level), "%s: %s", self._model, json.loads(text))

    def close(self) -> None:
        """All that is there is read first."""
        fd, self._fd = self._fd, -1
        if fd < 0:
            return
        self._loop.remove_reader(fd)
        with contextlib.suppress(OSError):
            while data := os.read(fd, _MAX_LINE_BYTES):
                self._rest += data
        os.close(fd)
        for line in self._rest.splitlines():
            self._write(line.decode("utf-8", "replace"))
        self._rest = b""

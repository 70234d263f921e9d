"""The access log: a line of JSON for each call that is over.

Lines are made on the event loop, in microseconds, and written by a thread of their own a few times a second: neither a
slow disk nor a full pipe is waited for. What it cannot keep up with is dropped, and counted. JSON escapes what could
end a line, so that no caller can write one of its own.
"""

from __future__ import annotations

import json
import logging
import os
import random
import sys
import threading
import time
from collections import deque
from pathlib import Path
from typing import Any, Final

import orjson

from gateway.config import AccessLogConfig
from gateway.errors import Code
from gateway.trail import Trail

log = logging.getLogger(__name__)

STREAMS: Final = ("stdout", "stderr")
MOST_WAITING: Final = 16_384
"""Lines that may wait for the disk."""
LONGEST_TEXT: Final = 512
"""Characters of a name that goes into a line."""
_FLUSH_EVERY_S: Final = 0.25
_CLOSES_WITHIN_S: Final = 2.0
_LINES_AT_ONCE: Final = 1024


class AccessLog:
    """Which calls leave a line, and what stands in it."""

    def __init__(self, config: AccessLogConfig, lines: LogFile) -> None:
        self._lines = lines
        self._sample = config.sample
        self._slow_s = config.slow_ms / 1000 if config.slow_ms is not None else None
        self._all_errors = config.errors == "always"
        self._second = 0
        self._second_text = ""

    @property
    def dropped(self) -> int:
        """Lines that were too many for the disk."""
        return self._lines.dropped

    @property
    def written(self) -> int:
        """Lines that were not."""
        return self._lines.taken

    def write(self, trail: Trail, request_id: str, code: Code, kind: str, seconds: float) -> None:
        """A call is over. `kind` is the error that it ended with, "" for none."""
        if self._wants(code, seconds):
            self._lines.write(self._line(trail, request_id, code, kind, seconds))

    def _wants(self, code: Code, seconds: float) -> bool:
        if self._sample >= 1 or (code is not Code.OK and self._all_errors):
            return True
        if self._slow_s is not None and seconds >= self._slow_s:
            return True
        return random.random() < self._sample  # noqa: S311  (it guards nothing)

    def _line(self, trail: Trail, request_id: str, code: Code, kind: str, seconds: float) -> bytes:
        call, view = trail.call, trail.view
        line: dict[str, Any] = {
            "time": self._time(),
            "request_id": request_id,
            "caller": _name_of(getattr(call, "caller", None)),
            "remote": call.peer.address(),
            "dialect": call.dialect,
            "transport": call.transport,
            "listener": call.listener[0] if call.listener else "",
            "method": trail.endpoint.method,
        }
        if view is not None:
            handle: Any = view.handle
            line["route"] = view.route.name if view.route is not None else None
            line["model"] = getattr(handle, "name", view.name)
            line["version"] = view.version
            line["rows"] = trail.rows
            line["batch_rows"] = trail.batch_rows
            line["queue_ms"] = round(trail.queue_s * 1e3, 3)
            line["compute_ms"] = round(trail.compute_s * 1e3, 3)
        line["bytes_in"] = trail.received
        line["bytes_out"] = trail.sent
        line["total_ms"] = round(seconds * 1e3, 3)
        line["code"] = code.name
        if call.transport == "http":
            line["http_status"] = trail.status
        if kind:
            line["error"] = kind
        if trail.span is not None:
            line["trace_id"] = trail.span.trace_id
        return _encoded(line)

    def _time(self) -> str:
        """2026-01-31T23:59:59.123Z, of which most is the same all second long. Source: RFC 3339."""
        now = time.time()
        second = int(now)
        if second != self._second:
            self._second = second
            self._second_text = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(second))
        return f"{self._second_text}.{int((now - second) * 1000):03d}Z"


def _name_of(caller: Any) -> str | None:
    return None if caller is None else str(getattr(caller, "name", caller))[:LONGEST_TEXT]


def _encoded(line: dict[str, Any]) -> bytes:
    try:
        return orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE)
    except TypeError:  # bytes that were no UTF-8 are no text for orjson
        return json.dumps(line).encode() + b"\n"


class LogFile:
    """Lines on their way into a file, or a stream of the process. `write` is for the event loop; a thread, which starts
    with the first line, does the rest.

    A file that was renamed or removed (logrotate) is opened anew, at the latest with `reopen`; one that was emptied is
    written from its new end on.
    """

    def __init__(self, name: str, path: Path) -> None:
        self._stream = name if name in STREAMS else ""
        self._path = path
        self._waiting: deque[bytes] = deque()
        self._thread: threading.Thread | None = None
        self._ends = threading.Event()
        self._file = -1
        self._reopens = False
        self._complained = False
        self.taken = 0
        self.dropped = 0

    def write(self, line: bytes) -> None:
        """Take a line; drop it if too many wait."""
        if len(self._waiting) >= MOST_WAITING:
            self.dropped += 1
            return
        self.taken += 1
        self._waiting.append(line)
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="access log", daemon=True)
            self._thread.start()

    def reopen(self) -> None:
        """The file is another one now. May be called from a signal's handler."""
        self._reopens = True

    def close(self) -> None:
        """Write what waits, as far as that works within moments."""
        if self._thread is not None:
            self._ends.set()
            self._thread.join(_CLOSES_WITHIN_S)
            self._thread = None

    def _work(self) -> None:
        while not self._ends.wait(_FLUSH_EVERY_S):
            self._flush()
        self._flush()
        if self._file >= 0 and not self._stream:
            os.close(self._file)

    def _flush(self) -> None:
        while self._waiting:
            lines = [self._waiting.popleft() for _ in range(min(len(self._waiting), _LINES_AT_ONCE))]
            try:
                _write_all(self._opened(), b"".join(lines))
                self._complained = False
            except OSError as error:
                self.dropped += len(lines)
                if not self._complained:
                    log.error("the access log cannot be written: %s", error.strerror or error)
                self._complained = True

    def _opened(self) -> int:
        if self._stream:
            self._file = (sys.__stdout__ if self._stream == "stdout" else sys.__stderr__).fileno()  # type: ignore[union-attr]
            return self._file
        if self._file >= 0 and (self._reopens or not self._is_current()):
            os.close(self._file)
            self._file = -1
        self._reopens = False
        if self._file < 0:
            self._file = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o640)
        return self._file

    def _is_current(self) -> bool:
        """Whether the name still means the file that is open."""
        try:
            named, open_ = self._path.stat(), os.fstat(self._file)
        except OSError:
            return False
        return (named.st_dev, named.st_ino) == (open_.st_dev, open_.st_ino)


def _write_all(file: int, data: bytes) -> None:
    left = memoryview(data)
    while left:
        left = left[os.write(file, left) :]

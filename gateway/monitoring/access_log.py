"""The access log: a line of JSON for each call that is over.

Lines are made on the event loop (`log_lines`), and written by a thread, some times a second: neither a slow disk nor
a full pipe is waited for. What it cannot keep up with is dropped, and counted. JSON escapes what could end a line, so
that no caller can write one of its own.
"""

from __future__ import annotations

import json
import logging
import os
import random
import stat
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, Final

from tensorgate.gateway.config import AccessLogConfig
from tensorgate.gateway.contract.canonical import ModelView
from tensorgate.gateway.contract.errors import Code
from tensorgate.gateway.monitoring.log_lines import Lines
from tensorgate.gateway.telemetry.call_outcome import CallOutcome, FailureKind

log = logging.getLogger(__name__)

STREAMS: Final = ("stdout", "stderr")
MAX_WAITING: Final = 16_384
"""Lines that may wait for the disk."""
MAX_TEXT_CHARS: Final = 512
"""Characters of a name that goes into a line."""
LINES_AT_ONCE: Final = 64
_WRITE_EVERY_S: Final = 0.1
_CLOSES_WITHIN_S: Final = 2.0
_PIECES_AT_ONCE: Final = 256
_MAX_NAMES: Final = 1024
_NAMES_LAST_S: Final = 60.0


class AccessLog:
    """Which calls leave a line, and what stands in it. `write` is for the event loop, all else for any thread."""

    def __init__(self, config: AccessLogConfig, file: LogFile) -> None:
        self._file = file
        self._sample = config.sample
        self._all = config.sample >= 1
        self._slow_s = config.slow_ms / 1000 if config.slow_ms is not None else None
        self._all_errors = config.errors == "always"
        self._names = _Names()
        self._lines = Lines(self._names, self._are_waiting, LINES_AT_ONCE)
        if self._all:
            self.end = self._lines.end  # type: ignore[method-assign, assignment]  # the same, of all calls
        self._names_until = 0.0
        self._flushing = threading.Lock()
        file.refill = self.flush

    @property
    def dropped(self) -> int:
        """Lines that were too many for the disk."""
        return self._file.dropped

    @property
    def written(self) -> int:
        """Lines that went to the file."""
        self.flush()
        return self._file.taken

    def end(self, outcome: CallOutcome) -> None:
        """A call is over. It has no call record then, and nothing of its memory is kept."""
        if self._wants(outcome.code, outcome.seconds):
            self._lines.end(outcome)
        else:
            outcome.call_record = None

    def _are_waiting(self, count: int) -> None:
        """So many lines wait."""
        if count >= LINES_AT_ONCE:
            self.flush(wait=False)
        else:
            self._file.start()

    def _wants(self, code: Code, seconds: float) -> bool:
        if code is not Code.OK and self._all_errors:
            return True
        if self._slow_s is not None and seconds >= self._slow_s:
            return True
        return random.random() < self._sample  # noqa: S311  (it guards nothing)

    def flush(self, *, wait: bool = True) -> None:
        """Hand over what waits. If another thread is about to, the loop does not `wait` for it."""
        if self._flushing.acquire(blocking=wait):
            try:
                lines, count = self._lines.take()
                if count:
                    self._file.write(lines, count)
                self._forget_names()
            finally:
                self._flushing.release()

    def _forget_names(self) -> None:
        """Models that are gone must not stay for the sake of a line."""
        now = time.monotonic()
        if now >= self._names_until:
            self._names.clear()
            self._names_until = now + _NAMES_LAST_S


class _Names(dict[tuple[Any, ...], str]):
    """The part of a line that is the same for all such calls: who has asked whom for what, and how it ended.

    Never stale: all that the text says is in the key, where a view stands for itself alone and does not change.
    """

    def __missing__(self, key: tuple[Any, ...]) -> str:
        if len(self) >= _MAX_NAMES:
            self.clear()
        text = self[key] = _names(*key)
        return text


def _names(
    model: ModelView | tuple[str, int | str],
    listener: tuple[str, ...],
    dialect: str,
    transport: str,
    method: str,
    code: Code,
    failure: FailureKind,
    status: int,
    address: str,
    caller: str | None,
) -> str:
    words: dict[str, Any] = {"caller": caller and caller[:MAX_TEXT_CHARS], "remote": address}
    words |= {"listener": listener[0] if listener else "", "dialect": dialect, "transport": transport, "method": method}
    if isinstance(model, ModelView):
        words |= {"model": getattr(model.handle, "name", model.name), "version": model.version}
        words["route"] = model.route and model.route.name
    elif model[0]:
        words |= {"model": model[0], "version": model[1] or None}
    words["code"] = code.name
    if transport == "http" and status:
        words["http_status"] = status
    if failure.error:
        words["error"] = failure.error
    if code is not Code.OK:
        words["reason"] = failure.reason
    return "".join(f",{json.dumps(key)}:{json.dumps(value)}" for key, value in words.items())


class LogFile:
    """Lines on their way into a file, or a stream of the process. `write` takes some, from one thread at a time; a
    thread, which starts with the first of them or with `start`, writes, and asks for more with `refill` before it does.

    A file that was renamed or removed (logrotate) is opened anew, at the latest with `reopen`; one that was emptied is
    written from its new end on.
    """

    def __init__(
        self,
        name: str,
        path: Path,
        refill: Callable[[], None] = lambda: None,
        alone: Callable[[], AbstractContextManager[Any]] = nullcontext,
    ) -> None:
        """`alone` keeps other processes from writing there meanwhile, for what is no regular file: a pipe takes more
        than some kilobytes piece by piece.
        """
        self.refill = refill
        self._alone = alone
        self._stream = name if name in STREAMS else ""
        self._path = path
        self._waiting: deque[tuple[bytes, int]] = deque()
        self._thread: threading.Thread | None = None
        self._ends = threading.Event()
        self._file = -1
        self._reopens = False
        self._complained = False
        self.taken = 0
        self._done = self._refused = self._failed = 0  # each is counted in one place: nothing is locked

    @property
    def dropped(self) -> int:
        """Lines that were too many, or could not be written."""
        return self._refused + self._failed

    def start(self) -> None:
        """Start the thread that writes."""
        if self._thread is None:
            self._ends.clear()
            self._thread = threading.Thread(target=self._work, name="access log", daemon=True)
            self._thread.start()

    def write(self, lines: bytes, count: int = 1) -> None:
        """Take so many whole lines; drop them if too many wait."""
        if self.taken - self._done >= MAX_WAITING:
            self._refused += count
            return
        self.taken += count
        self._waiting.append((lines, count))
        self.start()

    def reopen(self) -> None:
        """The file is another one now. May be called from a signal's handler."""
        self._reopens = True

    def close(self) -> None:
        """Write what waits, as far as that works within moments."""
        self.refill()
        if self._thread is not None:
            self._ends.set()
            self._thread.join(_CLOSES_WITHIN_S)
            self._thread = None

    def _work(self) -> None:
        while not self._ends.wait(_WRITE_EVERY_S):
            self._flush()
        self._flush()
        if self._file >= 0 and not self._stream:
            os.close(self._file)
            self._file = -1

    def _flush(self) -> None:
        self.refill()
        while self._waiting:
            taken = [self._waiting.popleft() for _ in range(min(len(self._waiting), _PIECES_AT_ONCE))]
            count = sum(lines for _, lines in taken)
            try:
                file = self._opened()
                with nullcontext() if stat.S_ISREG(os.fstat(file).st_mode) else self._alone():
                    _write_all(file, [piece for piece, _ in taken])
                self._complained = False
            except OSError as error:
                self._failed += count
                if not self._complained:
                    log.error("the access log cannot be written: %s", error.strerror or error)
                self._complained = True
            self._done += count

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


def _write_all(file: int, pieces: Sequence[bytes]) -> None:
    written = os.writev(file, pieces)  # joined first, they would keep the interpreter from everybody for as long
    for piece in pieces:
        left = memoryview(piece)[written:]
        written = max(0, written - len(piece))
        while left:
            left = left[os.write(file, left) :]

"""The access log: a line of JSON for each call that is over.

What they say is noted on the event loop, in a microsecond or two; a thread makes lines of it and writes them, a few
times a second: neither a slow disk nor a full pipe is waited for. What it cannot keep up with is dropped, and counted.
JSON escapes what could end a line, so that no caller can write one of its own.
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
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, TypeAlias

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
_LINES_AT_ONCE: Final = 256

Facts: TypeAlias = tuple[Any, ...]
"""What a line says of a call: see facts_of."""


class AccessLog:
    """Which calls leave a line, and what stands in it."""

    def __init__(self, config: AccessLogConfig, lines: LogFile) -> None:
        self._lines = lines
        self._sample = config.sample
        self._slow_s = config.slow_ms / 1000 if config.slow_ms is not None else None
        self._all_errors = config.errors == "always"

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
            self._lines.write(facts_of(trail, request_id, code, kind, seconds))

    def _wants(self, code: Code, seconds: float) -> bool:
        if self._sample >= 1 or (code is not Code.OK and self._all_errors):
            return True
        if self._slow_s is not None and seconds >= self._slow_s:
            return True
        return random.random() < self._sample  # noqa: S311  (it guards nothing)


def facts_of(trail: Trail, request_id: str, code: Code, kind: str, seconds: float) -> Facts:
    """What a line will say. On the event loop: as little as possible, and nothing that keeps the call's memory."""
    call, view = trail.call, trail.view
    caller = getattr(call, "caller", None)
    model: tuple[Any, ...] = ()
    if view is not None:
        route = view.route
        model = (getattr(view.handle, "name", view.name), view.version, route and route.name)
    return (
        time.time(),
        request_id,
        None if caller is None else str(getattr(caller, "name", caller)),
        call.peer.address(),
        call.listener,
        call.dialect,
        call.transport,
        trail.endpoint.method,
        int(code),
        kind,
        trail.status if call.transport == "http" else 0,
        model,
        trail.rows,
        trail.batch_rows,
        trail.queue_s,
        trail.compute_s,
        trail.received,
        trail.sent,
        seconds,
        "" if trail.span is None else trail.span.trace_id,
    )


def line_of(facts: Facts) -> bytes:
    """The line. In the thread that writes it: there, one after the other takes a third of the time that it takes in
    between other work.
    """
    now, request_id, caller, address, listener, dialect, transport, method, code, kind, status, model, *numbers = facts
    rows, batch_rows, queue_s, compute_s, received, sent, seconds, trace_id = numbers
    second = int(now)
    asked = (
        f',"rows":{rows},"batch_rows":{batch_rows},"queue_ms":{queue_s * 1e3:.3f},"compute_ms":{compute_s * 1e3:.3f}'
    )
    names = _constant(listener, dialect, transport, method, code, kind, status, model)
    traced = f',"trace_id":"{trace_id}"' if trace_id else ""
    return (
        f'{{"time":"{_time(second)}.{int((now - second) * 1000):03d}Z","request_id":{_escaped(request_id)}'
        f',"caller":{"null" if caller is None else _quoted(caller)},"remote":{_quoted(address)}{names}'
        f'{asked if model else ""},"bytes_in":{received},"bytes_out":{sent}'
        f',"total_ms":{seconds * 1e3:.3f}{traced}}}\n'
    ).encode()


@lru_cache(maxsize=2)
def _time(second: int) -> str:
    """2026-01-31T23:59:59, UTC. Source: RFC 3339."""
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(second))


def _escaped(text: str) -> str:
    """As JSON, in ASCII: nothing in it ends a line, and even what was no UTF-8 can be written."""
    return json.dumps(text[:LONGEST_TEXT])


_quoted: Final = lru_cache(maxsize=4096)(_escaped)
"""Of what comes again and again."""


@lru_cache(maxsize=1024)
def _constant(
    listener: tuple[str, ...],
    dialect: str,
    transport: str,
    method: str,
    code: int,
    kind: str,
    status: int,
    model: tuple[Any, ...],
) -> str:
    """The part of a line that is the same for all such calls."""
    words = {"listener": listener[0] if listener else "", "dialect": dialect, "transport": transport, "method": method}
    words |= dict(zip(("model", "version", "route"), model, strict=False))
    outcome: dict[str, Any] = {"code": Code(code).name}
    outcome |= {"http_status": status} if status else {}
    outcome |= {"error": kind} if kind else {}
    return "".join(f",{json.dumps(key)}:{json.dumps(value)}" for key, value in {**words, **outcome}.items())


class LogFile:
    """Lines on their way into a file, or a stream of the process. `write` is for the event loop; a thread, which starts
    with the first line, does the rest: `render` makes a line of what it is given.

    A file that was renamed or removed (logrotate) is opened anew, at the latest with `reopen`; one that was emptied is
    written from its new end on.
    """

    def __init__(self, name: str, path: Path, render: Callable[[Any], bytes] = bytes) -> None:
        self._render = render
        self._stream = name if name in STREAMS else ""
        self._path = path
        self._waiting: deque[Any] = deque()
        self._thread: threading.Thread | None = None
        self._ends = threading.Event()
        self._file = -1
        self._reopens = False
        self._complained = False
        self.taken = 0
        self.dropped = 0

    def write(self, line: Any) -> None:
        """Take a line, or what `render` makes one of; drop it if too many wait."""
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
                _write_all(self._opened(), b"".join(map(self._render, lines)))
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

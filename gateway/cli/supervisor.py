"""A parent that starts the server again when its process cannot go on.

    parent    holds the listening sockets of HTTP, and nothing of CUDA; waits
      └ worker    a fork of it, which serves

A kernel with a stray pointer makes CUDA refuse all further work of the process; a crash in a native library, or the
kernel's out-of-memory killer, ends it. Nobody but another process can help then. The worker is forked once everything
is imported and read, so that a new one costs no more than its models; connections that come meanwhile wait in the
parent's sockets. Whatever way a worker ends that was not told to, another takes its place; only one that could not
even begin, at the very first start, ends the parent with its status: what is wrong with a configuration is said once.

Signals go through to the worker; whoever ends the parent, ends the worker with it (PR_SET_PDEATHSIG).
"""

from __future__ import annotations

import atexit
import ctypes
import math
import mmap
import os
import select
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, NoReturn

RESTART: Final = 75
"""The exit status of a worker that wants to be replaced: EX_TEMPFAIL of sysexits.h."""
DEVICE_LOST: Final = "device_lost"
EXIT: Final = "exit"
"""Why workers are replaced that have ended with a status: a model's own code may call os._exit."""
FIRST_PAUSE_S: Final = 1.0
LONGEST_PAUSE_S: Final = 30.0
HEALTHY_AFTER_S: Final = 60.0
"""Who has lived so long has earned a quick restart."""

_FORWARDED: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1)
_PR_SET_PDEATHSIG: Final = 1

Work = Callable[[Mapping[str, int], Callable[[], None]], int]
"""What a worker does: (restarts so far, by their reason; what to call once it serves) -> exit status."""


class Supervisor:
    """Runs `work` in a child, and again whenever that ends unasked.

    `within` is how many seconds a worker may take to stop. Belongs to the main thread of a process that has no other
    than those of libraries which know of forks.
    """

    def __init__(self, work: Work, say: Callable[[str], None], within: float) -> None:
        self._work = work
        self._say = say
        self._within = within
        self._worker = 0
        self._stopping = False
        self._deadline = math.inf
        self._restarts: dict[str, int] = {DEVICE_LOST: 0}
        self._has_served = mmap.mmap(-1, 1)  # shared with the workers: whether any of them has begun to serve

    def run(self) -> int:
        """Until it is told to stop, or the first worker cannot begin -> the worker's exit status; 128 and the signal's
        number if a signal ended it.
        """
        with self._signals() as woken:
            pause = FIRST_PAUSE_S
            while True:
                begun = time.monotonic()
                try:
                    self._start()
                except OSError as error:  # no memory, or no more processes: the machine may have some again
                    self._say(f"no process for a worker: {error.strerror}; another attempt in {pause:g} s")
                else:
                    status = self._wait(woken)
                    reason = _reason(status)
                    if self._stopping or (reason == EXIT and not self._has_served[0]):
                        return status if status >= 0 else 128 - status
                    self._restarts[reason] = self._restarts.get(reason, 0) + 1
                    pause = FIRST_PAUSE_S if time.monotonic() - begun > HEALTHY_AFTER_S else pause
                    why = f"exit status {status}" if reason == EXIT else reason
                    self._say(f"the worker ended ({why}); another begins in {pause:g} s")
                _sleep(pause, woken, lambda: self._stopping)
                if self._stopping:
                    return 0
                pause = min(2 * pause, LONGEST_PAUSE_S)

    @contextmanager
    def _signals(self) -> Iterator[int]:
        """Signals may reach any thread of a process, and wake the main one by what they write here."""
        woken, wake = os.pipe()
        for end in (woken, wake):
            os.set_blocking(end, False)
        before = {number: signal.signal(number, self._note) for number in (*_FORWARDED, signal.SIGCHLD)}
        previous = signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        try:
            yield woken
        finally:
            signal.set_wakeup_fd(previous)
            for number, handler in before.items():
                signal.signal(number, handler)
            os.close(woken)
            os.close(wake)

    def _note(self, number: int, frame: object) -> None:
        if number == signal.SIGCHLD:
            return
        if number in (signal.SIGTERM, signal.SIGINT) and not self._stopping:
            self._stopping = True
            self._deadline = time.monotonic() + self._within
        if self._worker:
            os.kill(self._worker, number)

    # ------------------------------------------------------------------------------------------------------ the worker

    def _start(self) -> None:
        """What a signal does is settled on both sides before any can come. Raises OSError."""
        sys.stdout.flush()
        sys.stderr.flush()
        signal.pthread_sigmask(signal.SIG_BLOCK, _FORWARDED)
        parent = os.getpid()
        try:
            self._worker = os.fork()
            if not self._worker:
                self._be_worker(parent)
            if self._stopping:  # since the last look
                os.kill(self._worker, signal.SIGTERM)
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _FORWARDED)

    def _be_worker(self, parent: int) -> NoReturn:
        status: Any = 1
        try:
            signal.set_wakeup_fd(-1)
            for number in (*_FORWARDED, signal.SIGCHLD):
                signal.signal(number, signal.SIG_DFL)
            signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
            _die_with(parent)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _FORWARDED)
            status = self._work(dict(self._restarts), self._serves)
        except SystemExit as ended:
            status = ended.code
        except BaseException:
            sys.excepthook(*sys.exc_info())
        end_process(status if isinstance(status, int) else 0 if status is None else 1)

    def _serves(self) -> None:
        self._has_served[0] = 1

    def _wait(self, woken: int) -> int:
        """Until the worker has ended -> its exit status, or minus the signal that ended it.

        As process 1 of a container the parent inherits orphans, and buries them, too.
        """
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == self._worker:
                self._worker = 0
                return os.waitstatus_to_exitcode(status)
            if pid:
                continue
            if time.monotonic() >= self._deadline:
                self._say("the worker does not stop, and is killed")
                os.kill(self._worker, signal.SIGKILL)
                self._deadline = math.inf
            _drain(woken, self._deadline - time.monotonic())


def end_process(status: int, *, orderly: bool = True) -> NoReturn:
    """At once, whatever threads still do: one may be loading a model for minutes. If not `orderly`, libraries are not
    told, either: with a lost device they may never end.
    """
    if orderly:
        atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            continue
    os._exit(status)


def _reason(status: int) -> str:
    """What ended a worker, as metrics name it."""
    if status == RESTART:
        return DEVICE_LOST
    if status >= 0:
        return EXIT
    known = -status in signal.valid_signals() and -status < signal.SIGRTMIN
    return signal.Signals(-status).name if known else f"signal_{-status}"


def _die_with(parent: int) -> None:
    """Be told to stop when the parent is gone, however it went. Linux has that; elsewhere an orphan lives on."""
    if not sys.platform.startswith("linux"):
        return
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM), 0, 0, 0)
    if os.getppid() != parent:
        sys.exit(0)


def _sleep(seconds: float, woken: int, over: Callable[[], bool]) -> None:
    until = time.monotonic() + seconds
    while not over() and (left := until - time.monotonic()) > 0:
        _drain(woken, left)


def _drain(woken: int, seconds: float) -> None:
    """Wait for a signal, `seconds` at most, or for ever."""
    if select.select([woken], [], [], None if seconds == math.inf else max(0.0, seconds))[0]:
        os.read(woken, 4096)

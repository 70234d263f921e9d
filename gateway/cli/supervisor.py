"""A parent process that restarts the server when its process cannot go on.

    parent    holds the listening sockets, and nothing of CUDA; waits
      └ worker    a fork of it, which serves

A GPU kernel with a stray pointer makes CUDA refuse all further work of the process; a crash in a native library, or the
kernel's out-of-memory killer, ends it. Only another process can serve then. The worker is forked after all imports, so
that a new one costs no more than its models; connections that arrive meanwhile wait in the parent's sockets. A worker
that ends without a signal to stop is replaced. Only if the first worker ends with a status before it serves does the
parent end with that status: a wrong configuration is reported once.

Signals are forwarded to the worker; if the parent dies, so does the worker (PR_SET_PDEATHSIG).
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
"""The exit status of a worker that asks for its replacement: EX_TEMPFAIL of sysexits.h."""
DEVICE_LOST: Final = "device_lost"
EXIT: Final = "exit"
"""The reason of a restart after an exit status: a model's code may call os._exit."""
MIN_PAUSE_S: Final = 1.0
MAX_PAUSE_S: Final = 30.0
HEALTHY_AFTER_S: Final = 60.0
"""A worker that ran this long is restarted after MIN_PAUSE_S."""

_FORWARDED: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1)
PR_SET_PDEATHSIG: Final = 1

Work = Callable[[Mapping[str, int], Callable[[], None]], int]
"""What a worker does: (restarts so far, by their reason; what to call once it serves) -> exit status."""


class Supervisor:
    """Runs `work` in a child process, and again whenever that ends without a signal to stop.

    A worker that takes longer than `within` seconds to stop is killed. Call it in the main thread of a process without
    other threads, except those of libraries that support fork.
    """

    def __init__(self, work: Work, log: Callable[[str], None], within: float) -> None:
        self._work = work
        self._log = log
        self._within = within
        self._worker = 0
        self._stopping = False
        self._deadline = math.inf
        self._restarts: dict[str, int] = {DEVICE_LOST: 0}
        self._has_served = mmap.mmap(-1, 1)  # shared with the workers: whether any of them has begun to serve

    def run(self) -> int:
        """Run until a signal to stop, or until the first worker ends before it serves -> the worker's exit status, or
        128 plus the number of the signal that ended it.
        """
        with signals(self._note, *_FORWARDED) as woken:
            pause = MIN_PAUSE_S
            while True:
                begun = time.monotonic()
                try:
                    self._start()
                except OSError as error:  # no memory, or no more processes: the machine may have some again
                    self._log(f"no process for a worker: {error.strerror}; another attempt in {pause:g} s")
                else:
                    status = self._wait(woken)
                    reason = reason_of(status)
                    if self._stopping or (reason == EXIT and not self._has_served[0]):
                        return status if status >= 0 else 128 - status
                    self._restarts[reason] = self._restarts.get(reason, 0) + 1
                    pause = MIN_PAUSE_S if time.monotonic() - begun > HEALTHY_AFTER_S else pause
                    why = f"exit status {status}" if reason == EXIT else reason
                    self._log(f"the worker ended ({why}); another begins in {pause:g} s")
                _sleep(pause, woken, lambda: self._stopping)
                if self._stopping:
                    return 0
                pause = min(2 * pause, MAX_PAUSE_S)

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
        """Fork a worker, with signals blocked until both sides have their handlers. Raises OSError."""
        sys.stdout.flush()
        sys.stderr.flush()
        signal.pthread_sigmask(signal.SIG_BLOCK, _FORWARDED)
        parent = os.getpid()
        try:
            self._worker = os.fork()
            if not self._worker:
                self._run_worker(parent)
            if self._stopping:  # a signal arrived before they were blocked
                os.kill(self._worker, signal.SIGTERM)
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _FORWARDED)

    def _run_worker(self, parent: int) -> NoReturn:
        status: Any = 1
        try:
            signal.set_wakeup_fd(-1)
            for number in (*_FORWARDED, signal.SIGCHLD):
                signal.signal(number, signal.SIG_DFL)
            signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
            _end_with(parent)
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
        """Wait for the worker's end -> its exit status, or minus the signal that ended it.

        As process 1 of a container, the parent also reaps orphans.
        """
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == self._worker:
                self._worker = 0
                return os.waitstatus_to_exitcode(status)
            if pid:
                continue
            if time.monotonic() >= self._deadline:
                self._log("the worker does not stop, and is killed")
                os.kill(self._worker, signal.SIGKILL)
                self._deadline = math.inf
            _drain(woken, self._deadline - time.monotonic())


@contextmanager
def signals(handler: Callable[[int, object], None], *numbers: int) -> Iterator[int]:
    """Handle these signals and SIGCHLD; yields a file descriptor that becomes readable when one arrives, in whichever
    thread.
    """
    woken, wake = os.pipe()
    for end in (woken, wake):
        os.set_blocking(end, False)
    before = {number: signal.signal(number, handler) for number in (*numbers, signal.SIGCHLD)}
    previous = signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    try:
        yield woken
    finally:
        signal.set_wakeup_fd(previous)
        for number, old in before.items():
            signal.signal(number, old)
        os.close(woken)
        os.close(wake)


def end_process(status: int, *, orderly: bool = True) -> NoReturn:
    """End the process without waiting for threads: one may be loading a model for minutes. Unless `orderly`, atexit
    handlers do not run either: with a lost device they may never return.
    """
    if orderly:
        atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            continue
    os._exit(status)


def reason_of(status: int) -> str:
    """Why a worker ended, as metrics name it."""
    if status == RESTART:
        return DEVICE_LOST
    if status >= 0:
        return EXIT
    known = -status in signal.valid_signals() and -status < signal.SIGRTMIN
    return signal.Signals(-status).name if known else f"signal_{-status}"


def _end_with(parent: int) -> None:
    """Get SIGTERM when the parent dies. Only Linux supports it; elsewhere the orphan goes on."""
    if not sys.platform.startswith("linux"):
        return
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, int(signal.SIGTERM), 0, 0, 0)
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

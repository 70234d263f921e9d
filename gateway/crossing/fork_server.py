"""Processes that are forked from one that has everything imported, and nothing begun: a *template*.

A process that is started anew imports for a second what the next one imports again, and keeps a copy of it. A fork has
both at once, and shares the pages until somebody writes on them. The template has one thread, opens no device, and runs
no model. It is a program that is exec'd, not a fork of the engine, whose threads and connections a fork would inherit.

It ends when the engine's side of its socket is closed, be it that the engine was killed; its children end with it. It
is started for the first who needs it and ended with the last one.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import gc
import os
import random
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterable
from typing import Any, Final

from tensorgate.gateway.crossing.frames import CrossingBroken, FrameReader, add_frame
from tensorgate.gateway.crossing.model_messages import ForkModel, KillModel, ModelEnded, ModelForked

_MAX_FRAME: Final = 4096
_PR_SET_PDEATHSIG: Final = 1
_FORK_S: Final = 60.0
"""How long a template may take until it forks: it imports first."""

OnEnd = Callable[[int], None]
"""on_end(status): the exit status of a process, or minus the signal's number."""


class ForkServer:
    """The engine's side. All methods are for the event loop."""

    def __init__(self, program: str) -> None:
        """`program` is the module that calls `serve_forks`."""
        self._program = program
        self._template: _Template | None = None
        self._starting = asyncio.Lock()
        self._users = 0

    def hold(self) -> None:
        """Somebody needs processes, and will call `release`."""
        self._users += 1

    def release(self) -> None:
        """The last one lets the template end."""
        self._users -= 1
        if not self._users and self._template is not None:
            self._template.end()
            self._template = None

    async def fork(self, connection: int, output: int, on_end: OnEnd) -> ForkedProcess:
        """A new process with these two descriptors. Raises OSError where there is none."""
        async with self._starting:
            if self._template is None or self._template.is_over:
                self._template = await asyncio.to_thread(_Template, self._program, sys.path)
                self._template.attach()
            return await self._template.fork(connection, output, on_end)


class ForkedProcess:
    """A process of the template's."""

    def __init__(self, template: _Template, number: int) -> None:
        self._template = template
        self._number = number

    def kill(self) -> None:
        """By SIGKILL. Without effect on one that has ended."""
        self._template.kill(self._number)


class _Template:
    """The running template. Made in a thread."""

    def __init__(self, program: str, path: list[str]) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        command = [sys.executable, "-P", "-c", _start(program, path, theirs.fileno())]
        try:
            self._process = subprocess.Popen(  # noqa: S603  our own interpreter
                command, stdin=subprocess.DEVNULL, stdout=_errors(), stderr=_errors(), pass_fds=[theirs.fileno()]
            )
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        ours.setblocking(False)
        self._sock = ours
        self._frames: FrameReader[Any] = FrameReader(ModelForked | ModelEnded)
        self._next = 0
        self._forking: dict[int, asyncio.Future[int]] = {}
        self._live: dict[int, OnEnd] = {}
        self.is_over = False

    def attach(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._sock, self._read)

    async def fork(self, connection: int, output: int, on_end: OnEnd) -> ForkedProcess:
        number = self._next
        self._next += 1
        self._live[number] = on_end
        done = self._forking[number] = self._loop.create_future()
        socket.send_fds(self._sock, [_frame(ForkModel(number))], [connection, output])
        try:
            await asyncio.wait_for(done, _FORK_S)
        except BaseException as error:
            self._live.pop(number, None)
            self._forking.pop(number, None)
            self.kill(number)
            if isinstance(error, TimeoutError):
                raise OSError("no process for a model could be started") from None
            raise
        return ForkedProcess(self, number)

    def kill(self, number: int) -> None:
        if not self.is_over:
            self._sock.send(_frame(KillModel(number)))

    def _read(self) -> None:
        try:
            data = self._sock.recv(_MAX_FRAME)
            messages = self._frames.receive(memoryview(data))
        except BlockingIOError:
            return
        except (OSError, CrossingBroken):
            data, messages = b"", []
        for message in messages:
            if isinstance(message, ModelForked):
                done = self._forking.pop(message.number, None)
                if done is not None and not done.done():
                    done.set_result(message.pid)
            elif (on_end := self._live.pop(message.number, None)) is not None:
                on_end(message.status)
        if not data:
            self.end()

    def end(self) -> None:
        """It is not needed any more, or has ended; so do those that it has forked."""
        if self.is_over:
            return
        self.is_over = True
        self._loop.remove_reader(self._sock)
        self._sock.close()
        live, self._live = self._live, {}
        forking, self._forking = self._forking, {}
        for done in forking.values():
            if not done.done():
                done.set_exception(OSError("no process for a model could be started"))
        for on_end in live.values():
            on_end(-signal.SIGKILL)
        self._loop.run_in_executor(None, self._process.wait)


def _start(program: str, path: list[str], fd: int) -> str:
    """What the interpreter runs: modules are found as here."""
    return f"import sys; sys.path[:] = {path!r}; from {program} import main; main({fd})"


def _errors() -> int:
    """Standard error, if there is any: a template without would take its number for something else."""
    try:
        os.fstat(2)
    except OSError:
        return subprocess.DEVNULL
    return 2


def _frame(message: Any) -> bytes:
    frame = bytearray()
    add_frame(message, frame)
    return bytes(frame)


# --------------------------------------------------------------------------------------------------- in the template


def serve_forks(fd: int, run: Callable[[int], None]) -> None:
    """Be the template: fork on demand, and let each child run(connection). Returns when the engine is gone."""
    sock = socket.socket(fileno=fd)
    sock.set_inheritable(False)
    sock.setblocking(False)
    signals = _signals()
    gc.collect()
    gc.freeze()  # a collection must not touch, and so copy, every page that is shared
    poll = select.poll()
    poll.register(sock, select.POLLIN)
    poll.register(signals[0], select.POLLIN)
    frames: FrameReader[Any] = FrameReader(ForkModel | KillModel)
    numbers: dict[int, int] = {}
    try:
        while True:
            poll.poll()
            with contextlib.suppress(BlockingIOError):
                os.read(signals[0], _MAX_FRAME)
            _reap(sock, numbers)
            data, fds, _, _ = _receive(sock)
            if data is None:
                continue
            if not data:
                return
            for message in frames.receive(memoryview(data)):
                if isinstance(message, KillModel):
                    _kill([pid for pid, number in numbers.items() if number == message.number])
                    continue
                pid = _fork(sock, signals, fds, run)
                numbers[pid] = message.number
                sock.send(_frame(ModelForked(message.number, pid)))
            for each in fds:
                os.close(each)
    except (OSError, CrossingBroken):
        return
    finally:
        _kill(numbers)


def _signals() -> tuple[int, int]:
    """A pipe that can be read when a child ends. What a terminal or a service manager sends to all processes is for the
    engine to judge.
    """
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGCHLD):
        signal.signal(number, _ignore)
    ended, wakeup = os.pipe()
    os.set_blocking(ended, False)
    os.set_blocking(wakeup, False)
    signal.set_wakeup_fd(wakeup, warn_on_full_buffer=False)
    return ended, wakeup


def _kill(pids: Iterable[int]) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _receive(sock: socket.socket) -> tuple[bytes | None, list[int], int, Any]:
    try:
        return socket.recv_fds(sock, _MAX_FRAME, 2)
    except BlockingIOError:
        return None, [], 0, None


def _reap(sock: socket.socket, numbers: dict[int, int]) -> None:
    """Tell of every child that has ended."""
    for pid in list(numbers):
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            sock.send(_frame(ModelEnded(numbers.pop(pid), os.waitstatus_to_exitcode(status))))


def _fork(sock: socket.socket, signals: tuple[int, int], fds: list[int], run: Callable[[int], None]) -> int:
    parent = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    try:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)
        sock.close()
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for each in signals:
            os.close(each)
        connection, output = fds
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.close(output)
        sys.stdout, sys.stderr = (
            os.fdopen(number, "w", buffering=1, errors="backslashreplace", closefd=False) for number in (1, 2)
        )
        random.seed()  # each copy would draw the same numbers
        if (numpy := sys.modules.get("numpy")) is not None:
            numpy.random.seed()
        run(connection)
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(0)
    except BaseException:
        sys.excepthook(*sys.exc_info())
    os._exit(1)


def _ignore(number: int, frame: Any) -> None:
    """A handler, so that programs which a model starts have the signal's own effect again."""

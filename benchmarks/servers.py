"""Servers under test: each a process of its own, on its own port, pinned to one core."""

from __future__ import annotations

import http.client
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

ROOT = Path(__file__).parents[1]
HOST = "127.0.0.1"
STARTS_WITHIN_S = 60.0
STOPS_WITHIN_S = 15.0
TICKS_PER_S = os.sysconf("SC_CLK_TCK")


class Failed(Exception):
    """The comparison cannot go on; the text tells a person why and what to do."""


@dataclass(frozen=True, slots=True)
class Server:
    """A running contender."""

    name: str
    port: int
    pid: int

    def cpu_us(self) -> float:
        """User and system time of the process and all its threads so far; the kernel counts in steps of 10 ms."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICKS_PER_S * 1e6

    def post(self, path: str, body: bytes, headers: Mapping[str, str]) -> bytes:
        """The body of the 200 answer; raises Failed for any other."""
        connection = http.client.HTTPConnection(HOST, self.port, timeout=30)
        connection.request("POST", path, body, dict(headers))
        reply = connection.getresponse()
        answer = reply.read()
        connection.close()
        if reply.status != 200:
            raise Failed(f"{self.name} answered {reply.status} to POST {path}: {answer[:300]!r}")
        return answer


def check_port(port: int) -> None:
    """Raise Failed if someone listens there.

    Two servers that both set SO_REUSEPORT share a port without a word, and a forgotten one would answer part of the
    traffic. Binding without it tells.
    """
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # forgives closing connections, not listeners
        try:
            probe.bind((HOST, port))
        except OSError as error:
            raise Failed(f"port {port} is not free ({error.strerror}); `ss -ltnp` names who listens") from None


@contextmanager
def pinned(core: int | set[int]) -> Iterator[None]:
    """Processes started inside run on this core, or these, and no other."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, core if isinstance(core, set) else {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


@contextmanager
def running(
    name: str, command: Sequence[str], port: int, core: int | set[int], is_ready: Callable[[int], bool] | None = None
) -> Iterator[Server]:
    """Start it, wait until its port says that it is ready, over HTTP unless told otherwise, and stop it at the end."""
    check_port(port)
    with tempfile.TemporaryFile("w+") as log:
        with pinned(core):
            process = subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=subprocess.STDOUT)  # noqa: S603 - our own
        try:
            _wait_until_ready(name, process, port, log, is_ready or _is_ready)
            yield Server(name, port, process.pid)
        finally:
            _stop(process)


@contextmanager
def awake() -> Iterator[None]:
    """No core sleeps meanwhile: each has a loop that runs when nothing else does. What waits for a core that sleeps has
    to wait for it to wake up, too, which on a virtual machine takes longer than many a call, and now so, now so.
    """
    endless = "import os; os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))\nwhile True: pass"
    loops = []
    try:
        for core in os.sched_getaffinity(0):
            with pinned(core):
                loops.append(subprocess.Popen([sys.executable, "-c", endless]))  # noqa: S603 - our own
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def _wait_until_ready(
    name: str, process: subprocess.Popen[bytes], port: int, log: IO[str], is_ready: Callable[[int], bool]
) -> None:
    give_up = time.monotonic() + STARTS_WITHIN_S
    while not is_ready(port):
        if process.poll() is not None or time.monotonic() > give_up:
            log.seek(0)
            how = "ended" if process.poll() is not None else f"was not ready within {STARTS_WITHIN_S:.0f} s"
            raise Failed(f"{name} {how}; it said:\n{log.read()[-3000:]}")
        time.sleep(0.05)


def _is_ready(port: int) -> bool:
    connection = http.client.HTTPConnection(HOST, port, timeout=5)
    try:
        connection.request("GET", "/v2/health/ready")
        return connection.getresponse().status == 200
    except OSError:
        return False
    finally:
        connection.close()


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(STOPS_WITHIN_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()

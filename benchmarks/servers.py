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
LISTENS = "0A"
"""A socket's state, as the kernel writes it."""
TICKS_PER_S = os.sysconf("SC_CLK_TCK")


class Failed(Exception):
    """The comparison cannot go on; the text tells a person why and what to do."""


class Silent(Failed):
    """A server answered nothing at all."""


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


class Family(Server):
    """A running contender that is a process with children of its own."""

    __slots__ = ()

    def cpu_us(self) -> float:
        """User and system time of all its processes so far. Those that have ended are not counted."""
        return sum(Server(self.name, self.port, pid).cpu_us() for pid in family(self.pid))

    def memory_mib(self) -> float:
        """What they take of the machine's memory: a page that several processes share is divided among them."""
        return sum(proportional_kib(pid) for pid in family(self.pid)) / 1024


def family(pid: int) -> list[int]:
    """The process and all its descendants."""
    found = [pid]
    for each in found:
        for children in Path(f"/proc/{each}/task").glob("*/children"):
            found += map(int, children.read_text().split())
    return found


def proportional_kib(pid: int) -> int:
    rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
    return next(int(line.split()[1]) for line in rollup.splitlines() if line.startswith("Pss:"))


def listeners(port: int) -> int:
    """How many sockets listen at the port, on IPv4."""
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return sum(row[3] == LISTENS and int(row[1].rpartition(":")[2], 16) == port for row in rows)


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
    name: str,
    command: Sequence[str],
    port: int,
    core: int | set[int],
    ready: Callable[[int], bool] | None = None,
    cwd: Path = ROOT,
    environment: Mapping[str, str] | None = None,
) -> Iterator[Server]:
    """Start it, wait until its port says that it is ready, over HTTP unless told otherwise, and stop it at the end."""
    check_port(port)
    with tempfile.TemporaryFile("w+") as log:
        with pinned(core):
            process = subprocess.Popen(  # noqa: S603 - our own
                command, cwd=cwd, env=environment, stdout=log, stderr=subprocess.STDOUT
            )
        try:
            _wait_until_ready(name, process, port, log, ready or is_ready)
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
    name: str, process: subprocess.Popen[bytes], port: int, log: IO[str], ready: Callable[[int], bool]
) -> None:
    give_up = time.monotonic() + STARTS_WITHIN_S
    while not ready(port):
        if process.poll() is not None or time.monotonic() > give_up:
            log.seek(0)
            how = "ended" if process.poll() is not None else f"was not ready within {STARTS_WITHIN_S:.0f} s"
            raise Failed(f"{name} {how}; it said:\n{log.read()[-3000:]}")
        time.sleep(0.05)


def is_ready(port: int) -> bool:
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

"""The command line in processes of their own, without a second of imports each: they are forks of one that has them.

That is how a supervised gateway gets its workers, too. Whatever a process has of its own, a fork has: environment,
streams, signals, and its end. Linux lets us wait for it as for a child.

Run as a script, this is the process that forks: for each line, a JSON array of arguments, environment and two files for
what the command says, it answers with the number of a process.
"""

from __future__ import annotations

import atexit
import ctypes
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import IO

ROOT = Path(__file__).parents[2]
_PR_SET_CHILD_SUBREAPER = 36
_LOOKS_EVERY_S = 0.005


class Fork:
    """A process as subprocess.Popen has it."""

    def __init__(self, arguments: Sequence[str | Path], output: Path, errors: Path) -> None:
        parent = _parent()
        assert parent.stdin
        assert parent.stdout
        for file in (output, errors):
            file.write_bytes(b"")
        request = [list(map(str, arguments)), dict(os.environ), str(output), str(errors)]
        parent.stdin.write(json.dumps(request) + "\n")
        parent.stdin.flush()
        self.pid = int(parent.stdout.readline())
        self.returncode: int | None = None

    def poll(self) -> int | None:
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self.returncode = os.waitstatus_to_exitcode(status) if pid else None
        return self.returncode

    def wait(self, timeout: float) -> int:
        give_up = time.monotonic() + timeout
        while (status := self.poll()) is None:
            if time.monotonic() > give_up:
                raise subprocess.TimeoutExpired(f"process {self.pid}", timeout)
            time.sleep(_LOOKS_EVERY_S)  # real time: as subprocess does it
        return status

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


@cache
def _parent() -> subprocess.Popen[str]:
    """The process that forks, one for all tests. What it has forked becomes ours as soon as it lets go of it."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    parent = subprocess.Popen(
        [sys.executable, "-W", "ignore::DeprecationWarning:__main__", __file__],  # of forks beside a library's threads
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    atexit.register(_end, parent)
    return parent


def _end(parent: subprocess.Popen[str]) -> None:
    parent.communicate()


def _fork_for(requests: IO[str]) -> int:
    """The parent, until nobody asks any more, and then 0; and in each fork the status that its command ends with."""
    from tensorgate.gateway import app, config
    from tensorgate.gateway.cli import main as command

    config.config_class(app.registries())
    for line in requests:
        arguments, environment, output, errors = json.loads(line)
        if os.fork() == 0:
            if fork := os.fork():
                os.write(1, str(fork).encode())
                os._exit(0)
            os.environ.clear()
            os.environ.update(environment)
            _speak_into(output, errors)
            return command.main(arguments)
        os.wait()
        os.write(1, b"\n")  # now it is its grandparent's child
    return 0


def _speak_into(output: str, errors: str) -> None:
    """New streams in place of the parent's, as Python opens them for files."""
    for number, name in enumerate((os.devnull, output, errors)):
        os.close(number)
        os.open(name, os.O_RDWR | os.O_CREAT | os.O_APPEND)
    sys.stdin, sys.stdout, sys.stderr = (
        os.fdopen(0), os.fdopen(1, "w"), os.fdopen(2, "w", buffering=1, errors="backslashreplace")
    )  # fmt: skip


if __name__ == "__main__":
    sys.path[0] = str(ROOT)
    sys.exit(_fork_for(sys.stdin))

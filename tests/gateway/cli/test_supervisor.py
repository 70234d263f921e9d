"""The parent process: what it replaces, what it passes on, and that nobody outlives it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from textwrap import dedent

import pytest
from waiting import wait_until

ROOT = Path(__file__).parents[3]
WITHIN_S = 20.0


class Run:
    """A supervisor in a process of its own; `worker` is the body of what its workers do, which know `attempt`."""

    def __init__(self, folder: Path, worker: str, within: float = 10) -> None:
        self.folder = folder
        program = folder / "program.py"
        program.write_text(
            dedent(
                """
                import os, signal, sys, time
                from pathlib import Path
                from tensorgate.gateway.cli import supervisor
                supervisor.MIN_PAUSE_S = float(os.environ.get("PAUSE", "0.01"))
                supervisor.MAX_PAUSE_S = 3 * supervisor.MIN_PAUSE_S
                folder = Path(sys.argv[1])
                refused = int(os.environ.get("REFUSED_FORKS", "0"))
                fork, attempts = os.fork, iter(range(99))
                def refusing_fork():
                    if 1 <= next(attempts) <= refused:
                        raise BlockingIOError(11, "Resource temporarily unavailable")
                    return fork()
                os.fork = refusing_fork

                def work(restarts, serves):
                    attempt = sum(restarts.values())
                    (folder / f"worker{attempt}").write_text(str(os.getpid()))
                    (folder / "restarts").write_text(repr(restarts))
                """
            )
            + "".join(f"    {line}\n" for line in dedent(worker).strip().splitlines())
            + f"sys.exit(supervisor.Supervisor(work, lambda line: print(line, flush=True), {within}).run())\n"
        )
        self.process: subprocess.Popen[str]

    def start(self, **environment: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(self.folder / "program.py"), str(self.folder)],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
            stdout=subprocess.PIPE,
            text=True,
        )

    def end(self) -> tuple[int, list[str]]:
        out, _ = self.process.communicate(timeout=WITHIN_S)
        return self.process.returncode, out.splitlines()

    def worker(self, attempt: int = 0) -> int:
        """The pid of a worker, once it is there."""
        file = self.folder / f"worker{attempt}"
        wait_until(lambda: file.exists() and file.read_text() != "")
        return int(file.read_text())

    @property
    def restarts(self) -> str:
        return (self.folder / "restarts").read_text()


def is_alive(pid: int) -> bool:
    """A zombie is not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


@pytest.fixture
def supervise(tmp_path: Path) -> Iterator[Callable[..., Run]]:
    made: list[Run] = []

    def make(worker: str, within: float = 10, **environment: str) -> Run:
        run = Run(tmp_path, worker, within)
        made.append(run)
        run.start(**environment)
        return run

    yield make
    for run in made:
        if run.process.poll() is None:
            run.process.kill()
        run.process.communicate()


WAITS = """
print("ready", flush=True)
while True:
    time.sleep(1)
"""


def test_a_worker_that_cannot_go_on_is_replaced(supervise: Callable[..., Run]) -> None:
    run = supervise(
        """
        if attempt == 0:
            return supervisor.RESTART
        if attempt < 3:
            os.kill(os.getpid(), [signal.SIGSEGV, signal.SIGKILL][attempt - 1])
        return 7
        """
    )
    status, said = run.end()
    assert status == 7
    assert said == [
        "the worker ended (device_lost); another begins in 0.01 s",
        "the worker ended (SIGSEGV); another begins in 0.02 s",
        "the worker ended (SIGKILL); another begins in 0.03 s",
    ]
    assert run.restarts == "{'device_lost': 1, 'SIGSEGV': 1, 'SIGKILL': 1}"


@pytest.mark.parametrize(
    ("end", "why", "reason"),
    [
        ("os._exit(9)", "exit status 9", "exit"),
        ("os._exit(0)", "exit status 0", "exit"),
        ("return 0", "exit status 0", "exit"),
        ("sys.exit('no')", "exit status 1", "exit"),
        ("raise ValueError('no')", "exit status 1", "exit"),
        ("os.kill(os.getpid(), signal.SIGHUP)", "SIGHUP", "SIGHUP"),
        ("os.kill(os.getpid(), signal.SIGTERM)", "exit status 0", "exit"),
        ("os.kill(os.getpid(), signal.SIGRTMIN + 2)", f"signal_{signal.SIGRTMIN + 2}", f"signal_{signal.SIGRTMIN + 2}"),
    ],
)
def test_who_has_served_is_replaced_whatever_way_it_ends(
    supervise: Callable[..., Run], end: str, why: str, reason: str
) -> None:
    """The second one, too, that has not served: what was good once may be so again."""
    run = supervise(
        f"""
        if attempt == 0:
            serves()
        if attempt < 2:
            {end}
            time.sleep(9)
        {WAITS.strip().replace(chr(10), chr(10) + "        ")}
        """
    )
    assert run.process.stdout is not None
    assert [run.process.stdout.readline() for _ in range(3)] == [
        f"the worker ended ({why}); another begins in 0.01 s\n",
        f"the worker ended ({why}); another begins in 0.02 s\n",
        "ready\n",
    ]
    assert run.restarts == f"{{'device_lost': 0, '{reason}': 2}}"
    run.process.terminate()
    assert run.end() == (0, [])


def test_a_process_that_cannot_be_forked_now_is_forked_later(supervise: Callable[..., Run]) -> None:
    run = supervise("return 7 if attempt else supervisor.RESTART", REFUSED_FORKS="2")
    status, said = run.end()
    assert status == 7
    assert said == [
        "the worker ended (device_lost); another begins in 0.01 s",
        "no process for a worker: Resource temporarily unavailable; another attempt in 0.02 s",
        "no process for a worker: Resource temporarily unavailable; another attempt in 0.03 s",
    ]


@pytest.mark.parametrize(
    ("worker", "status"),
    [
        ("return 0", 0),
        ("return 2", 2),
        ("sys.exit(3)", 3),
        ("sys.exit()", 0),
        ("raise ValueError('no')", 1),
    ],
)
def test_who_cannot_even_begin_is_not_replaced(supervise: Callable[..., Run], worker: str, status: int) -> None:
    assert supervise(worker).end() == (status, [])


def test_a_signal_ends_a_pause(supervise: Callable[..., Run]) -> None:
    run = supervise("return supervisor.RESTART if attempt < 2 else 0", PAUSE="29")
    assert run.process.stdout is not None
    assert run.process.stdout.readline() == "the worker ended (device_lost); another begins in 29 s\n"
    run.process.terminate()
    assert run.end() == (0, [])


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_to_stop_goes_through(supervise: Callable[..., Run], number: signal.Signals) -> None:
    run = supervise(
        f"""
        def stop(*_):
            print("draining", flush=True)
            sys.exit(0)
        signal.signal({int(number)}, stop)
        {WAITS.strip().replace(chr(10), chr(10) + "        ")}
        """
    )
    assert run.process.stdout is not None
    assert run.process.stdout.readline() == "ready\n"
    run.process.send_signal(number)
    assert run.end() == (0, ["draining"])
    assert not is_alive(run.worker())


def test_who_loses_its_device_while_stopping_is_not_replaced(supervise: Callable[..., Run]) -> None:
    run = supervise("signal.signal(signal.SIGTERM, lambda *_: sys.exit(supervisor.RESTART))\n" + WAITS)
    assert run.process.stdout is not None
    assert run.process.stdout.readline() == "ready\n"
    run.process.terminate()
    assert run.end() == (75, [])


def test_other_signals_go_through_and_change_nothing_here(supervise: Callable[..., Run]) -> None:
    run = supervise("signal.signal(signal.SIGUSR1, lambda *_: print('looked', flush=True))\n" + WAITS)
    assert run.process.stdout is not None
    assert run.process.stdout.readline() == "ready\n"
    run.process.send_signal(signal.SIGUSR1)
    assert run.process.stdout.readline() == "looked\n"
    run.process.terminate()
    assert run.end() == (0, [])


def test_who_does_not_stop_is_killed(supervise: Callable[..., Run]) -> None:
    run = supervise("signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + WAITS, within=0.3)
    assert run.process.stdout is not None
    assert run.process.stdout.readline() == "ready\n"
    run.process.terminate()
    assert run.end() == (137, ["the worker does not stop, and is killed"])
    assert not is_alive(run.worker())


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux tells a child of its parent's death")
def test_no_orphan_outlives_the_parent(supervise: Callable[..., Run]) -> None:
    run = supervise(WAITS)
    assert run.process.stdout is not None
    assert run.process.stdout.readline() == "ready\n"
    assert is_alive(run.worker())
    run.process.kill()
    run.process.wait(WITHIN_S)
    wait_until(lambda: not is_alive(run.worker()))

"""The group of engine and doors: what is replaced, what is passed on, and in which order it ends.

Its children are small programs, whose doors answer each connection with their pid.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Event, Thread

import pytest
from waiting import wait_until

from tensorgate.gateway.cli.processes import engine_cores
from tensorgate.gateway.config.resources import Processes

ROOT = Path(__file__).parents[3]
WITHIN_S = 20.0

CHILD = """
import os, select, signal, socket, sys, time
from pathlib import Path
from tensorgate.gateway.crossing.role import Role

folder = Path(sys.argv[1])
role = Role.of_environment(os.environ)
assert role is not None and "TENSORGATE_ROLE" not in os.environ
assert role.configuration() == "models: {}"
name = role.role if role.role == "engine" else f"door{role.slot}"
asked = []


def note(line):
    with (folder / "log").open("a") as log:
        log.write(f"{name} {os.getpid()} {line}\\n")


def hear(number, frame):
    note(signal.Signals(number).name)
    asked.append(number)


for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
    signal.signal(number, hear)
woken, wake = os.pipe()
os.set_blocking(wake, False)
signal.set_wakeup_fd(wake)
note(f"starts {role.row} {dict(role.restarts or {})} {len(os.sched_getaffinity(0))}")
note(f"folder {role.folder}")
BEFORE
sock = socket.socket(fileno=role.http[0]) if role.http else None
role.is_ready()
note("serves")
while not {signal.SIGTERM, signal.SIGUSR2} & set(asked):
    ready = select.select([each for each in (woken, sock) if each], [], [])[0]
    if woken in ready:
        os.read(woken, 100)
    if sock in ready:
        try:
            connection, _ = sock.accept()
        except BlockingIOError:
            continue
        connection.sendall(str(os.getpid()).encode())
        connection.close()
AFTER
note("ends")
"""

PROGRAM = """
import sys
from pathlib import Path
from tensorgate.gateway.cli import processes
from tensorgate.gateway.config.listeners import Listen, Listener
from tensorgate.gateway.transport.sockets import addresses, bound_for_doors

processes.MIN_PAUSE_S = 0.01
processes.STEADY_AFTER_S = 0.5
folder, drains, kill_after, cores, doors = Path(sys.argv[1]), *map(float, sys.argv[2:4]), *map(int, sys.argv[4:])
listen = Listen(http=(Listener(bind="127.0.0.1:0"),))
with bound_for_doors(listen, doors) as slots:
    def log(line):
        print(line, flush=True)
    command = [sys.executable, str(folder / "child.py"), str(folder)]
    found = addresses(listen, slots[0])
    engine = processes.engine_cores(processes.Processes(engine_cores=cores or None))
    parts = processes.GroupParts(command, slots, found, "models: {}", engine)
    sys.exit(processes.ProcessGroup(parts, log, drains, kill_after, lambda: log(f"serves {found[0]}"), int).run())
"""


class RunningGroup:
    def __init__(
        self, folder: Path, before: str, after: str, drains: float, kill_after: float, cores: int, doors: int
    ) -> None:
        self.folder = folder
        self.doors = doors
        (folder / "child.py").write_text(CHILD.replace("BEFORE", before).replace("AFTER", after))
        (folder / "program.py").write_text(PROGRAM)
        self.process = subprocess.Popen(
            [sys.executable, str(folder / "program.py"), str(folder), *map(str, (drains, kill_after, cores, doors))],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(folder)},
            stdout=subprocess.PIPE,
            text=True,
        )
        self.port = 0

    def serves(self) -> RunningGroup:
        """Once all do."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line.startswith("serves http://127.0.0.1:"), line
        self.port = int(line.rpartition(":")[2])
        return self

    def lines(self, *words: str) -> list[list[str]]:
        """Those of the children's log that have these words: name, pid, what it says."""
        with contextlib.suppress(FileNotFoundError):
            lines = (self.folder / "log").read_text().splitlines()
            return [line.split(maxsplit=2) for line in lines if all(word in line for word in words)]
        return []

    def pid(self, name: str) -> int:
        """The latest process of a name."""
        return int(self.lines(f"{name} ", "starts")[-1][1])

    def ask(self) -> int:
        """The pid of the door that answers a new connection."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=WITHIN_S) as client:
            said = client.recv(100)
            assert said, "no answer"
            return int(said)

    def end(self) -> tuple[int, list[str]]:
        out, _ = self.process.communicate(timeout=WITHIN_S)
        return self.process.returncode, out.splitlines()


Start = Callable[..., RunningGroup]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    made: list[RunningGroup] = []

    def begin(
        before: str = "", after: str = "", drains: float = 10, kill_after: float = 10, cores: int = 0, doors: int = 2
    ) -> RunningGroup:
        made.append(RunningGroup(tmp_path, before, after, drains, kill_after, cores, doors))
        return made[-1]

    yield begin
    for group in made:
        if group.process.poll() is None:
            group.process.kill()
        group.process.communicate()


def test_doors_end_before_the_engine(start: Start) -> None:
    group = start(after="time.sleep(0.3 if role.role == 'door' else 0)").serves()
    assert {group.ask() for _ in range(40)} <= {group.pid("door0"), group.pid("door1")}
    group.process.send_signal(signal.SIGTERM)
    assert group.end() == (0, [])
    assert [line[0] for line in group.lines("ends")][2:] == ["engine"]
    assert [line[0] for line in group.lines("SIGTERM")][2:] == ["engine"]
    assert not Path(group.lines("engine", "folder")[0][2].split()[1]).exists()


def test_a_killed_door_is_replaced_at_once_and_nobody_is_refused(start: Start) -> None:
    group = start().serves()
    before = group.pid("door1")
    os.kill(before, signal.SIGKILL)
    answers = {group.ask() for _ in range(40)}
    wait_until(lambda: group.pid("door1") != before)
    assert before not in answers
    assert [line[2] for line in group.lines("door1", "starts")][1].startswith(
        "starts 1 {'device_lost': 0, 'SIGKILL': 1}"
    )
    group.process.send_signal(signal.SIGTERM)
    assert group.end() == (0, ["door 1 ended (SIGKILL); another begins at once"])


def test_a_door_that_keeps_ending_has_to_wait(start: Start) -> None:
    group = start("if role.slot and role.restarts: sys.exit(3)").serves()
    os.kill(group.pid("door1"), signal.SIGKILL)
    assert group.process.stdout is not None
    assert [group.process.stdout.readline() for _ in range(3)] == [
        "door 1 ended (SIGKILL); another begins at once\n",
        "door 1 ended (exit status 3); another begins in 0.25 s\n",
        "door 1 ended (exit status 3); another begins in 0.5 s\n",
    ]
    group.process.send_signal(signal.SIGTERM)
    assert group.end() == (0, [])


def test_an_engine_that_cannot_go_on_is_replaced_with_its_reasons(start: Start) -> None:
    group = start(
        after="""
if role.role == "engine" and not role.restarts and (folder / "lose").exists():
    os._exit(75)
"""
    ).serves()
    (group.folder / "lose").touch()
    os.kill(group.pid("engine"), signal.SIGTERM)
    wait_until(lambda: len(group.lines("engine", "starts")) == 2)
    wait_until(lambda: "{'device_lost': 1}" in group.lines("engine", "starts")[1][2])
    os.kill(group.pid("engine"), signal.SIGSEGV)
    wait_until(lambda: len(group.lines("engine", "starts")) == 3)
    assert "{'device_lost': 1, 'SIGSEGV': 1}" in group.lines("engine", "starts")[2][2]
    assert len(group.lines("door0", "starts")) == 1
    group.process.send_signal(signal.SIGTERM)
    assert group.end() == (
        0,
        [
            "the engine ended (device_lost); another begins in 0.01 s",
            "the engine ended (SIGSEGV); another begins in 0.02 s",
        ],
    )


def test_an_engine_that_has_served_for_a_while_begins_at_once_and_one_that_falls_waits_longer(start: Start) -> None:
    group = start().serves()
    assert group.process.stdout is not None
    said: list[str] = []
    for serves_s in (0, 0, 0.7, 0.7, 0):
        begun = len(group.lines("engine", "serves"))
        wait_until(lambda begun=begun: len(group.lines("engine", "serves")) == max(begun, len(said) + 1))
        time.sleep(serves_s)  # real time: so long it serves
        os.kill(group.pid("engine"), signal.SIGKILL)
        said.append(group.process.stdout.readline().partition("another begins ")[2].rstrip())
    assert said == ["in 0.01 s", "in 0.02 s", "at once", "at once", "in 0.01 s"]
    wait_until(lambda: len(group.lines("engine", "serves")) == 6)
    group.process.send_signal(signal.SIGTERM)
    assert group.end() == (0, [])


@pytest.mark.parametrize("role", ["engine", "door"])
def test_a_first_start_that_fails_ends_all_with_its_status(start: Start, role: str) -> None:
    group = start(f"if role.role == {role!r} and role.slot == {int(role == 'door')}: sys.exit(7)")
    assert group.end() == (7, [])


def test_signals_go_to_all_that_serve(start: Start) -> None:
    group = start().serves()
    for name in ("SIGHUP", "SIGUSR1"):
        group.process.send_signal(signal.Signals[name])
        wait_until(lambda name=name: len(group.lines(name)) == 3)
    group.process.send_signal(signal.SIGINT)
    assert group.end() == (0, [])


def test_who_does_not_stop_is_killed(start: Start) -> None:
    group = start(after="time.sleep(60 if role.slot else 0)", drains=0, kill_after=0.5).serves()
    group.process.send_signal(signal.SIGTERM)
    assert group.end() == (128 + signal.SIGKILL, ["door 1 does not stop, and is killed"])
    assert group.lines("engine", "ends")


def test_a_third_signal_reaches_the_engine_while_doors_drain(start: Start) -> None:
    after = "while not (folder / 'go').exists() if role.role == 'door' else asked.count(15) < 2: time.sleep(0.05)"
    group = start(after=after).serves()
    for count in range(1, 4):
        group.process.send_signal(signal.SIGTERM)
        wait_until(lambda count=count: len(group.lines("door0", "SIGTERM")) == count)
        assert bool(group.lines("engine", "SIGTERM")) <= (count == 3)
        time.sleep(0.25)  # real time: a sooner one would be the same signal
    wait_until(lambda: len(group.lines("engine", "SIGTERM")) == 2)
    (group.folder / "go").touch()
    assert group.end() == (0, [])


def test_the_engine_gives_up_when_doors_have_had_the_time(start: Start) -> None:
    after = "while not (folder / 'go').exists() if role.role == 'door' else asked.count(15) < 2: time.sleep(0.05)"
    group = start(after=after, drains=0.3, kill_after=60).serves()
    group.process.send_signal(signal.SIGTERM)
    wait_until(lambda: len(group.lines("engine", "SIGTERM")) == 2)
    (group.folder / "go").touch()
    assert group.end() == (0, [])


def test_a_rolling_restart_refuses_nobody(start: Start) -> None:
    group = start(after="if signal.SIGUSR2 in asked: time.sleep(0.3)").serves()
    over, answers, failures = Event(), set(), []

    def keep_asking() -> None:
        while not over.is_set():
            try:
                answers.add(group.ask())
            except Exception as error:
                failures.append(error)

    before = {group.pid("door0"), group.pid("door1")}
    clients = [Thread(target=keep_asking) for _ in range(2)]
    for client in clients:
        client.start()
    for count in (2, 3):  # the second time rows of before are used again
        group.process.send_signal(signal.SIGUSR2)
        wait_until(lambda count=count: len(group.lines("SIGUSR2")) == 2 * (count - 1))
        rows = [int(line[2].split()[1]) for line in group.lines("door1", "starts")]
        assert rows == [1, 3, 1][:count]
    after = {group.pid("door0"), group.pid("door1")}
    wait_until(lambda: after <= answers)
    over.set()
    for client in clients:
        client.join()
    assert failures == []
    assert not before & after
    assert len(group.lines("engine", "starts")) == 1
    group.process.send_signal(signal.SIGTERM)
    assert group.end() == (0, [f"door {slot} is another process now" for slot in (0, 1, 0, 1)])


def test_a_rolling_restart_ends_with_the_first_that_fails(start: Start) -> None:
    group = start("if role.row >= role.doors and role.role == 'door': sys.exit(4)").serves()
    doors = {group.pid("door0"), group.pid("door1")}
    group.process.send_signal(signal.SIGUSR2)
    wait_until(lambda: len(group.lines("door0", "starts")) == 2)
    said = group.process.stdout.readline() if group.process.stdout else ""
    assert said == "door 0 could not be replaced (exit status 4); the doors stay as they are\n"
    assert {group.ask() for _ in range(20)} <= doors
    assert len(group.lines("door1", "starts")) == 1
    group.process.send_signal(signal.SIGTERM)
    assert group.end() == (0, [])


def test_nobody_outlives_the_supervisor(start: Start) -> None:
    group = start().serves()
    group.process.kill()
    wait_until(lambda: len(group.lines("ends")) == 3)


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores")
def test_the_engine_has_its_cores_and_doors_have_the_others(start: Start) -> None:
    group = start(cores=1).serves()
    usable = len(os.sched_getaffinity(0))
    assert [line[2].split()[-1] for line in group.lines("engine", "starts")] == ["1"]
    assert [line[2].split()[-1] for line in group.lines("door", "starts")] == [str(usable - 1)] * 2


def test_cores_of_the_engine() -> None:
    usable = sorted(os.sched_getaffinity(0))
    for wanted, cores in ((None, []), (1, usable[-1:]), ((usable[0], 4000), usable[:1])):
        assert engine_cores(Processes.model_validate({"engine_cores": wanted})) == cores

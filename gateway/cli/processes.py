"""A group of processes: one engine, and doors around it.

    supervisor    holds the listening sockets and the shared state; waits
      ├ engine      models, queues, counters
      ├ door 0      accepts at sockets of its own, reads and writes calls
      └ door 1      …

Each child is a program that is started anew, not a fork: the same command line, with its role in the environment
(`crossing.role`). So a rolling restart runs what is installed now. Children write a byte once they serve.

A door that ends unasked is replaced at once, and only if it ends soon after that, again and again, after a pause. Its
sockets stay open here, so that connections wait for the next one. An engine that has served for a while is replaced at
once, too; before one that ends earlier is replaced, the pauses of `supervisor` double. If a process ends with a status
before all have served once, the group ends with that status: a wrong configuration is reported once.

SIGTERM and SIGINT stop the doors, and then the engine, which answers what they still have. SIGHUP and SIGUSR1 go to all
that serve. SIGUSR2 replaces one door after the other: the next one serves at the same sockets before the one before it
is told, by SIGUSR2, to accept no more, finish what it has and end.

Children have a process group of their own each, so that a terminal's signals come from here and in this order. If the
supervisor dies, they get SIGTERM (PR_SET_PDEATHSIG).
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import os
import select
import shutil
import signal
import subprocess
import tempfile
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from tensorgate.gateway.cli.supervisor import (
    DEVICE_LOST,
    EXIT,
    MAX_PAUSE_S,
    MIN_PAUSE_S,
    PR_SET_PDEATHSIG,
    reason_of,
    signals,
)
from tensorgate.gateway.config.resources import Processes
from tensorgate.gateway.crossing.role import Role
from tensorgate.gateway.crossing.shared_state import SharedState
from tensorgate.gateway.security.limit_table import LimitTable
from tensorgate.gateway.transport.sockets import Sockets

HAND_ON: Final = signal.SIGUSR2
"""Tells a door to accept no more without shutting its sockets, which the next one has, to finish and to end."""
FIRST_DOOR_PAUSE_S: Final = 0.25
"""The pause before a door is started again that has ended soon after it was; then twice as long, and so on."""
SOON_S: Final = 5.0
"""A door that ends earlier than this after its start has ended soon."""
STEADY_AFTER_S: Final = 10.0
"""An engine that has served for so long is started again at once, however often it ends."""
ONE_SIGNAL_S: Final = 0.2
"""Signals to stop that are no further apart count as one."""
_GIVE_UP: Final = 3
"""With so many signals to stop the engine gives up what runs, while doors still drain."""
_STOPPING: Final = (signal.SIGTERM, signal.SIGINT)
_PASSED_ON: Final = (signal.SIGHUP, signal.SIGUSR1)


@dataclass(eq=False, slots=True)
class _Child:
    """A process of the group."""

    place: _Place
    row: int
    process: subprocess.Popen[bytes]
    ready: int
    """Where its byte comes; -1 once that has come, or the process has gone."""
    begun: float
    serves: bool = False
    served_from: float = math.inf
    """When it first served."""
    deadline: float = math.inf
    """When it is killed."""

    def send(self, number: int) -> None:
        """Send it a signal. Popen's own way would reap it, too, unnoticed."""
        os.kill(self.process.pid, number)


@dataclass(eq=False, slots=True)
class _Place:
    """What is to run: the engine, or a door of some slot."""

    kind: Literal["engine", "door"]
    slot: int
    child: _Child | None = None
    next: _Child | None = None
    """The door that is to take the place of `child`."""
    restarts: dict[str, int] | None = None
    pause: float = 0.0
    soon: int = 0
    """How many times in a row its child has ended soon."""
    due: float = -math.inf
    """When to start the child that there is not."""

    def __str__(self) -> str:
        return "the engine" if self.kind == "engine" else f"door {self.slot}"


@dataclass(frozen=True, slots=True)
class GroupParts:
    """What the processes of a group share, and how each is started."""

    command: Sequence[str]
    """What runs a child."""
    slots: Sequence[Sockets]
    """The sockets of each door, which listen already."""
    addresses: Sequence[str]
    """The same as `serve` says them."""
    text: str
    """The YAML text that the group starts with."""
    engine_cores: Sequence[int] = ()
    """The cores of the engine, the doors having the others. Empty: all run anywhere."""


class ProcessGroup:
    """Runs engine and doors until a signal to stop. Call it in the main thread."""

    def __init__(
        self,
        parts: GroupParts,
        log: Callable[[str], None],
        drains: float,
        kill_after: float,
        on_serving: Callable[[], None],
        on_stopping: Callable[[], None],
    ) -> None:
        """Doors may take `drains` seconds to stop, and the engine has what they leave of them, before it gives up what
        runs. A process that takes `kill_after` seconds more is killed. `on_serving` is called once all have served,
        `on_stopping` with the first signal to stop.
        """
        self._parts = parts
        self._log = log
        self._drains = drains
        self._within = drains + kill_after
        self._on_serving = on_serving
        self._on_stopping = on_stopping
        self._engine = _Place("engine", 0)
        self._doors = [_Place("door", slot) for slot in range(len(parts.slots))]
        self._places = (self._engine, *self._doors)
        self._leaving: list[_Child] = []
        """Doors that finish what they have; others are in their places."""
        self._rolling: deque[_Place] = deque()
        """Doors that are to be replaced, the first of them now."""
        self._signals: deque[int] = deque()
        self._stops = 0
        """How many signals to stop have come."""
        self._stopped_at = -math.inf
        self._engine_stops = 0
        """How many the engine has got."""
        self._engine_stop_due = math.inf
        """When it may get the next."""
        self._drained_by = math.inf
        """When the time to drain is over."""
        self._have_served = False
        self._status = 0
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._folder: Path
        self._state: SharedState
        self._text: int

    def run(self) -> int:
        """Run until a signal to stop, or until a process ends before all have served -> 0, or the exit status of the
        first process that stopped with another; of one that a signal ended, 128 plus its number. Raises OSError.
        """
        with contextlib.ExitStack() as undo:
            self._folder = Path(tempfile.mkdtemp(prefix="tensorgate-"))
            undo.callback(shutil.rmtree, self._folder, ignore_errors=True)
            listeners = sum(1 for _ in self._parts.slots[0].all())
            self._state = SharedState.create(listeners, len(self._doors))
            undo.callback(os.close, self._state.fd)
            self._text = os.memfd_create("tensorgate-configuration")
            undo.callback(os.close, self._text)
            os.pwrite(self._text, self._parts.text.encode(), 0)
            woken = undo.enter_context(signals(self._note, *_STOPPING, *_PASSED_ON, HAND_ON))
            try:
                while not self._stops or self._children():
                    self._step(woken)
            finally:
                for child in self._children():  # there are none, unless this process fails
                    child.send(signal.SIGKILL)
        return self._status

    def _note(self, number: int, frame: object) -> None:
        if number != signal.SIGCHLD:
            self._signals.append(number)

    def _children(self, kind: str = "") -> list[_Child]:
        """All that run, or those of a kind."""
        places = [place for place in self._places if kind in ("", place.kind)]
        leaving = self._leaving if kind != "engine" else []
        return [child for place in places for child in (place.child, place.next) if child is not None] + leaving

    def _step(self, woken: int) -> None:
        """Do all that is due, and wait for what comes next."""
        while self._signals:
            self._act_on(self._signals.popleft())
        now = time.monotonic()
        if not self._stops:
            for place in self._places:
                if place.child is None and place.due <= now:
                    self._fill(place)
            self._roll()
        else:
            self._stop_engine(now)
        for child in self._children():
            if child.deadline <= now:
                self._log(f"{child.place} does not stop, and is killed")
                child.deadline = math.inf
                child.send(signal.SIGKILL)
        if not self._stops or self._children():
            self._wait(woken)
        self._reap()

    def _wait(self, woken: int) -> None:
        """Until a signal, a byte of a child, or the next point in time."""
        times = [child.deadline for child in self._children()]
        if self._stops:
            times += [self._engine_stop_due, self._drained_by]
        else:
            times += [place.due for place in self._places if place.child is None]
        nearest = min(times)
        seconds = None if nearest == math.inf else max(0.0, nearest - time.monotonic())
        waiting = {child.ready: child for child in self._children() if child.ready >= 0}
        for ready in select.select([woken, *waiting], [], [], seconds)[0]:
            if ready == woken:
                os.read(woken, 4096)
            else:
                self._hear(waiting[ready])

    def _hear(self, child: _Child) -> None:
        """A child has said that it serves, or has closed its end of the pipe."""
        with contextlib.suppress(BlockingIOError):  # it has ended without, and left the pipe to a process of its own
            child.serves = os.read(child.ready, 1) != b""
        os.close(child.ready)
        child.ready = -1
        if not child.serves:
            return
        child.served_from = time.monotonic()
        if child.place.next is child:
            self._replace(child.place, child)
        if not self._have_served and all(place.child and place.child.serves for place in self._places):
            self._have_served = True
            if not self._stops:
                self._on_serving()
                self._state.set_served()

    # ------------------------------------------------------------------------------------------------ signals, stopping

    def _act_on(self, number: int) -> None:
        if number in _STOPPING:
            now = time.monotonic()
            if now - self._stopped_at >= ONE_SIGNAL_S:
                self._stop()
            self._stopped_at = now
        elif number == HAND_ON:
            self._rolling.extend(place for place in self._doors if place not in self._rolling)
        else:
            for child in self._children():
                if child.serves:  # another one has no handler yet, and opens and reads everything anew
                    child.send(number)

    def _stop(self) -> None:
        """The first signal: doors drain; the second: they hurry; the third is for the engine, too."""
        now = time.monotonic()
        if not self._stops:
            self._on_stopping()
            self._drained_by = now + self._drains
        self._stops += 1
        for child in self._children("door"):
            child.send(signal.SIGTERM)
            child.deadline = min(child.deadline, now + self._within)

    def _stop_engine(self, now: float) -> None:
        """Send the engine the signals that are due, apart from each other: with the first, once there are no doors, it
        drains; with the second, once time is over or the user has asked for it, it gives up what runs.
        """
        engine = self._engine.child
        if now >= self._drained_by:
            self._stops, self._drained_by = max(self._stops, _GIVE_UP), math.inf
        due = 2 if self._stops >= _GIVE_UP else int(not self._children("door"))
        if engine is None or self._engine_stops >= due:
            self._engine_stop_due = math.inf
        elif self._engine_stop_due == math.inf or now >= self._engine_stop_due:
            engine.send(signal.SIGTERM)
            engine.deadline = min(engine.deadline, now + self._within)
            self._engine_stops += 1
            self._engine_stop_due = now + 2 * ONE_SIGNAL_S

    # ------------------------------------------------------------------------------------------------- beginnings, ends

    def _fill(self, place: _Place) -> None:
        """Start a child where there is none."""
        try:
            place.child = self._start(place, self._free_rows(place)[0])
        except OSError as error:  # no memory, or no more processes: the machine may have some again
            place.pause = min(max(2 * place.pause, MIN_PAUSE_S), MAX_PAUSE_S)
            place.due = time.monotonic() + place.pause
            self._log(f"no process for {place}: {error.strerror}; another attempt in {place.pause:g} s")

    def _roll(self) -> None:
        """Start the next door that takes another one's place."""
        if not self._rolling or self._rolling[0].next is not None:
            return
        place = self._rolling[0]
        rows = self._free_rows(place)
        if not rows:
            return  # the one of the restart before has not finished
        try:
            place.next = self._start(place, rows[0])
        except OSError as error:
            self._rolling.clear()
            self._log(f"no process for {place}: {error.strerror}; the doors stay as they are")

    def _replace(self, place: _Place, child: _Child) -> None:
        """A door serves in another one's place, which finishes what it has."""
        self._rolling.remove(place)
        before, place.child, place.next = place.child, child, None
        if before is not None:
            self._leaving.append(before)
            before.send(HAND_ON)
            before.deadline = time.monotonic() + self._within
        self._log(f"{place} is another process now")

    def _free_rows(self, place: _Place) -> list[int]:
        """Those of the two rows of a slot that no process has."""
        taken = {child.row for child in self._children() if child.place is place}
        return [row for row in (place.slot, place.slot + len(self._doors)) if row not in taken]

    def _start(self, place: _Place, row: int) -> _Child:
        """Start a process whose cells are those of a row. Raises OSError."""
        is_door = place.kind == "door"
        ready, byte = os.pipe()
        try:
            role = Role(
                place.kind,
                place.slot,
                row,
                len(self._doors),
                self._folder,
                self._state.fd,
                byte,
                self._text,
                addresses=self._parts.addresses,
                restarts=place.restarts,
                is_next=place.child is not None,
                **_descriptors(self._parts.slots[place.slot]) if is_door else {},
            )
            process = subprocess.Popen(  # noqa: S603  our own command line
                self._parts.command,
                env=os.environ | role.environment(),
                pass_fds=role.inherited(),
                stdin=subprocess.DEVNULL,
                process_group=0,
                preexec_fn=self._prepare(os.getpid(), self._cores(is_door=is_door)),
            )
        except OSError:
            os.close(ready)
            raise
        finally:
            os.close(byte)
        os.set_blocking(ready, False)
        return _Child(place, row, process, ready, time.monotonic())

    def _cores(self, *, is_door: bool) -> set[int]:
        """The cores of a process; empty: any."""
        engine, all_of_them = set(self._parts.engine_cores), os.sched_getaffinity(0)
        return (all_of_them - engine if is_door else all_of_them & engine) if engine else set()

    def _prepare(self, parent: int, cores: set[int]) -> Callable[[], None]:
        """What a child does before it becomes its program."""

        def prepare() -> None:
            self._libc.prctl(PR_SET_PDEATHSIG, int(signal.SIGTERM), 0, 0, 0)
            if os.getppid() != parent:
                os._exit(0)
            if cores:
                os.sched_setaffinity(0, cores)

        return prepare

    def _reap(self) -> None:
        """Notice which processes have ended; as process 1 of a container, also orphans."""
        with contextlib.suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                for child in self._children():
                    if child.process.pid == ended[0]:
                        child.process.returncode = os.waitstatus_to_exitcode(ended[1])
                        self._end(child, child.process.returncode)

    def _end(self, child: _Child, status: int) -> None:
        """A process has ended."""
        if child.ready >= 0:
            self._hear(child)
        place = child.place
        if place.kind == "door":
            self._state.clear(child.row)
            LimitTable.of(self._state, child.row).forget_row()
        if child in self._leaving:
            self._leaving.remove(child)
        elif place.next is child:
            place.next = None
            self._rolling.clear()
            if not self._stops:
                self._log(f"{place} could not be replaced ({_why(status)}); the doors stay as they are")
        else:
            place.child, place.next = place.next, None
            if place.child is not None:
                self._rolling.remove(place)
            if not self._stops:
                self._note_end(child, status)
        # Told to stop, it may have no handler yet, or none any more.
        if self._stops and not self._status and status != -signal.SIGTERM:
            self._status = status if status >= 0 else 128 - status

    def _note_end(self, child: _Child, status: int) -> None:
        """A process has ended unasked."""
        place, reason = child.place, reason_of(status)
        if reason == EXIT and not self._have_served:
            self._stop()
            return
        place.restarts = place.restarts or {DEVICE_LOST: 0}
        place.restarts[reason] = place.restarts.get(reason, 0) + 1
        now = time.monotonic()
        if place.kind == "engine":
            is_steady = now - child.served_from >= STEADY_AFTER_S
            place.pause = 0 if is_steady else min(max(2 * place.pause, MIN_PAUSE_S), MAX_PAUSE_S)
        else:
            place.soon = place.soon + 1 if now - child.begun < SOON_S else 1
            place.pause = 0 if place.soon == 1 else min(FIRST_DOOR_PAUSE_S * 2 ** (place.soon - 2), MAX_PAUSE_S)
        place.due = now + place.pause
        when = f"in {place.pause:g} s" if place.pause else "at once"
        self._log(f"{place} ended ({_why(status)}); another begins {when}")


def engine_cores(processes: Processes) -> list[int]:
    """The cores that the engine runs on; empty: any. Of those that a configuration lists, those that there are."""
    wanted, usable = processes.engine_cores, sorted(os.sched_getaffinity(0))
    if wanted is None:
        return []
    return usable[-wanted:] if isinstance(wanted, int) else [core for core in wanted if core in usable]


def _descriptors(sockets: Sockets) -> dict[str, Any]:
    return {
        "http": [sock.fileno() for sock in sockets.http],
        "metrics": None if sockets.metrics is None else sockets.metrics.fileno(),
        "grpc": [sock.fileno() for sock in sockets.grpc],
    }


def _why(status: int) -> str:
    reason = reason_of(status)
    return f"exit status {status}" if reason == EXIT else reason

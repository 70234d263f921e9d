"""`serve`: one process; or a supervisor and the worker that it replaces when that cannot go on; or, with doors, a
supervisor and a group of processes.
"""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import math
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from tensorgate import __version__
from tensorgate.gateway.app import NAME, App, freeze_gc, report_line
from tensorgate.gateway.cli.processes import GroupParts, ProcessGroup, engine_cores
from tensorgate.gateway.cli.supervisor import DEVICE_LOST, RESTART, Supervisor, end_process
from tensorgate.gateway.config import Config, ConfigError, load_text
from tensorgate.gateway.contract.registries import Registries
from tensorgate.gateway.contract.tensor import NOTHING
from tensorgate.gateway.crossing.role import Role
from tensorgate.gateway.crossing.shared_state import SharedState
from tensorgate.gateway.door import Door
from tensorgate.gateway.engine_process import LOOK_EVERY_S, EngineProcess
from tensorgate.gateway.models.changes import effective
from tensorgate.gateway.security.limit_table import LimitTable
from tensorgate.gateway.transport.sockets import Sockets, addresses, bound, bound_for_doors

MAX_LEAVE_S: Final = 2.0
"""How long other requests may still finish after a device is lost. Those on that device fail at once."""
MAX_LOADING_S: Final = 5.0
"""How long a restarted worker loads models before it listens and answers unready; a restarted engine, before doors find
it."""
_KILL_AFTER_S: Final = 5.0
"""After unready_seconds and drain_seconds, a worker that does not stop is killed this much later."""
_ONE_SIGNAL_S: Final = 0.2
_DRIVERS: Final = ("/dev/nvidiactl", "/dev/dxg")


Log = Callable[[str], None]
Read = Callable[[], Config]
"""Reads the configuration anew. Raises ConfigError."""


def serve(config: Config, kinds: Registries, log: Log, read: Read, role: Role | None = None) -> int:
    """Run until SIGTERM or SIGINT, then drain. Returns the exit status, unless it ends the process itself. A process of
    a group has a `role`; `config` is what the group has started with then.
    """
    if role is not None:
        faulthandler.enable()  # a crash in a native library leaves at least its stack in the log
        run = run_engine if role.role == "engine" else run_door
        end_process(run(role, _read_again(config, read), kinds, log, read))
    if (doors := config.processes.count()) > 1:
        return _serve_by_doors(config, doors, log)
    if not is_supervised(config):
        end_process(_run(config, kinds, log, read, None, NOTHING))
    with contextlib.ExitStack() as undo:
        try:
            sockets = undo.enter_context(bound(config.listen))
        except OSError as error:
            log(str(error))
            return 1

        def work(restarts: Mapping[str, int], serves: Callable[[], None]) -> int:
            now = _read_again(config, read) if any(restarts.values()) else config
            return _run(now, kinds, log, read, sockets, restarts, serves)

        return Supervisor(work, log, config.unready_seconds + config.drain_seconds + _KILL_AFTER_S).run()


def _serve_by_doors(config: Config, doors: int, log: Log) -> int:
    with contextlib.ExitStack() as undo:
        try:
            slots = undo.enter_context(bound_for_doors(config.listen, doors))
        except OSError as error:
            log(str(error))
            return 1
        found = addresses(config.listen, slots[0])
        text = config.source.read_text(encoding="utf-8") if config.source.is_file() else ""
        command = [sys.executable, "-m", "tensorgate", *sys.argv[1:]]
        parts = GroupParts(command, slots, found, text, engine_cores(config.processes))
        drains = config.unready_seconds + config.drain_seconds
        listening = f"{NAME} {__version__} listens on {'  '.join(found)}  ({doors} doors)"
        stopping = _draining(config)
        return ProcessGroup(parts, log, drains, _KILL_AFTER_S, lambda: log(listening), lambda: log(stopping)).run()


def run_engine(role: Role, config: Config, kinds: Registries, log: Log, read: Read) -> int:
    """Be the engine of a group -> the exit status, RESTART to be started again."""
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        return runner.run(_run_engine(role, config, kinds, log, read))


async def _run_engine(role: Role, config: Config, kinds: Registries, log: Log, read: Read) -> int:
    supervisor = os.getppid()
    shared = SharedState(role.shared)
    limits = LimitTable.of(shared, None)
    limits.forget_row()
    try:
        app = App(config, kinds, log, None, role.restarts or {DEVICE_LOST: 0}, read, limits)
    except (ImportError, OSError) as error:  # OSError: a repository that lies elsewhere
        log(str(error))
        return 1
    app.addresses = list(role.addresses)
    engine = EngineProcess(app, role.engine_socket, role.configuration())
    stop = _Stop(app.give_up)
    stop.hurried.set()  # when the signal comes, doors have been unready for as long as they should
    _listen_to_signals(stop, {signal.SIGUSR1: app.reopen_logs})
    asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, app.reloads.request, "SIGHUP")
    freeze_gc()
    app.watch()
    over = asyncio.ensure_future(_either(stop.requested, app.device_lost))
    loading = _load(app, log)
    if role.restarts is not None:  # meanwhile doors say that there is no engine, and not that there are no models
        await asyncio.wait([loading, over], timeout=MAX_LOADING_S, return_when=asyncio.FIRST_COMPLETED)
    await engine.start(again=role.restarts is not None)
    role.is_ready()
    told = asyncio.ensure_future(_announce_in_turn(app, log, loading, shared))
    await over
    loading.cancel()
    told.cancel()
    if app.device_lost.is_set():
        log(f"a device is lost: unready now, and ending with status {RESTART}, to be started again")
        await asyncio.sleep(LOOK_EVERY_S * 2)
        end_process(RESTART, orderly=False)
    begun = time.perf_counter()
    drained = await app.drain(stop.hurried)
    await engine.stop()
    if os.getppid() != supervisor:  # it was killed, and nobody else removes what it has made
        shutil.rmtree(role.folder, ignore_errors=True)
    return _tell_end(log, begun, drained=drained)


def run_door(role: Role, config: Config, kinds: Registries, log: Log, read: Read) -> int:
    """Be a door of a group -> the exit status."""
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        return runner.run(_run_door(role, config, kinds, log))


async def _run_door(role: Role, config: Config, kinds: Registries, log: Log) -> int:
    def read_text(text: str) -> Config:
        return effective(config, load_text(text, config.source, kinds))

    try:
        door = Door(config, kinds, role, read_text)
    except ImportError as error:
        log(str(error))
        return 1
    stop, next_door = _Stop(lambda: None), asyncio.Event()
    _listen_to_signals(stop, {signal.SIGUSR1: door.reopen_logs, signal.SIGUSR2: next_door.set, signal.SIGHUP: int})
    freeze_gc()
    if await door.start():
        role.is_ready()
    await _either(stop.requested, next_door, door.outdated)
    begun = time.perf_counter()
    drained = await door.drain(stop.hurried, hand_on=not stop.requested.is_set())
    if drained:
        return 1 if door.outdated.is_set() else 0
    log(f"door {role.slot} gave up after {time.perf_counter() - begun:.1f} s: a call still runs (see drain_seconds)")
    return 1


def _listen_to_signals(stop: _Stop, more: Mapping[int, Callable[[], object]]) -> None:
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.signal)
    for other, act in more.items():
        loop.add_signal_handler(other, act)


def _draining(config: Config) -> str:
    """What is said when a signal to stop has come."""
    pause = f", stopping in {config.unready_seconds:g} s" if config.unready_seconds else ""
    return f"draining: unready now{pause}, finishing what was accepted"


def _tell_end(log: Log, begun: float, *, drained: bool) -> int:
    """Say how draining went -> the exit status."""
    seconds = time.perf_counter() - begun
    if not drained:
        log(f"gave up after {seconds:.1f} s: a model still runs (see drain_seconds)")
        return 1
    log(f"drained in {seconds:.1f} s")
    return 0


def _read_again(config: Config, read: Read) -> Config:
    """The configuration of a worker that is not the first: the file as it is now, but for keys that need a restart."""
    try:
        return effective(config, read())
    except ConfigError:
        return config


def is_supervised(config: Config) -> bool:
    """Whether to run under a supervisor; `auto`: if models may be on a GPU."""
    if config.supervise != "auto":
        return config.supervise
    may_be = bool(config.repositories) or any(model.device != "cpu" for model in config.models.values())
    return may_be and any(Path(driver).exists() for driver in _DRIVERS)


def _run(
    config: Config,
    kinds: Registries,
    log: Log,
    read: Read,
    sockets: Sockets | None,
    restarts: Mapping[str, int],
    serves: Callable[[], None] = lambda: None,
) -> int:
    faulthandler.enable()  # a crash in a native library leaves at least its stack in the log
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        return runner.run(_serve(config, kinds, log, read, sockets, restarts, serves))


def _loop_factory() -> type[asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:
        return None
    loop: type[asyncio.AbstractEventLoop] = uvloop.Loop
    return loop


async def _serve(
    config: Config,
    kinds: Registries,
    log: Log,
    read: Read,
    sockets: Sockets | None,
    restarts: Mapping[str, int],
    serves: Callable[[], None],
) -> int:
    """Serve until SIGTERM, SIGINT or the loss of a device. After the latter it ends the process and does not return:
    threads and libraries that wait for the device may never end. `serves` is called once it listens.
    """
    try:
        app = App(config, kinds, log, sockets, restarts, read)
    except (ImportError, OSError) as error:  # OSError: a repository that lies elsewhere
        log(str(error))
        return 1
    stop = _Stop(app.give_up)
    _listen_to_signals(stop, {signal.SIGUSR1: app.reopen_logs})
    asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, app.reloads.request, "SIGHUP")
    freeze_gc()
    over = asyncio.ensure_future(_either(stop.requested, app.device_lost))
    loading = _load(app, log) if any(restarts.values()) else None
    if loading is not None:
        await asyncio.wait([loading, over], timeout=MAX_LOADING_S, return_when=asyncio.FIRST_COMPLETED)
    try:
        await app.start()
    except OSError as error:
        log(str(error))
        return 1
    serves()
    log(f"{NAME} {__version__} listens on " + "  ".join(app.addresses))
    loading = loading or _load(app, log)
    loading.add_done_callback(lambda _: _announce(app, log))
    await over
    if app.device_lost.is_set():
        log(f"a device is lost: unready now, and ending with status {RESTART}, to be started again")
        loading.cancel()
        await app.leave(MAX_LEAVE_S)
        end_process(RESTART, orderly=False)
    log(_draining(config))
    loading.cancel()
    begun = time.perf_counter()
    return _tell_end(log, begun, drained=await app.drain(stop.hurried))


class _Stop:
    """Counts signals to stop: the first drains; the second skips unready_seconds; the third gives up running requests.

    A terminal sends its signal to supervisor and worker, and the supervisor forwards it: signals within _ONE_SIGNAL_S
    count as one.
    """

    def __init__(self, give_up: Callable[[], None]) -> None:
        self.requested = asyncio.Event()
        self.hurried = asyncio.Event()
        self._give_up = give_up
        self._last = -math.inf

    def signal(self) -> None:
        now, before = time.monotonic(), self._last
        self._last = now
        if now - before < _ONE_SIGNAL_S:
            return
        if not self.requested.is_set():
            self.requested.set()
        elif not self.hurried.is_set():
            self.hurried.set()
        else:
            self._give_up()


def _load(app: App, log: Log) -> asyncio.Task[None]:
    """Start to load all models."""
    return asyncio.ensure_future(app.load(lambda report: log(report_line(report))))


async def _either(*events: asyncio.Event) -> None:
    waits = [asyncio.ensure_future(event.wait()) for event in events]
    await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)


async def _announce_in_turn(app: App, log: Log, loading: asyncio.Future[None], shared: SharedState) -> None:
    """Models are often loaded before the doors serve. Whoever reads that it is ready may ask at once, at the addresses
    that were said before.
    """
    await asyncio.wait([loading])
    while not shared.has_served():  # noqa: ASYNC110  another process says so, in memory
        await asyncio.sleep(LOOK_EVERY_S)
    _announce(app, log)


def _announce(app: App, log: Log) -> None:
    state = "ready" if app.service.ready else "NOT READY: not every model could be loaded (readiness: strict)"
    log(state)
    for title, line in app.examples().items():
        log(f"\n{title}:\n  {line}")
    if app.page_address is not None:
        log(f"\nthe operator's page: {app.page_address}")
    if app.docs_address is not None:
        log(f"the API, to read and to try: {app.docs_address}")

"""`serve`: one process that answers, or a parent and the worker that it replaces when that cannot go on."""

from __future__ import annotations

import asyncio
import faulthandler
import math
import signal
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from tensorgate import __version__
from tensorgate.gateway.app import NAME, App, Say, Sockets, freeze_gc, told
from tensorgate.gateway.cli.supervisor import RESTART, Supervisor, end_process
from tensorgate.gateway.config import Config, ConfigError
from tensorgate.gateway.contract.registries import Registries
from tensorgate.gateway.contract.tensor import NOTHING
from tensorgate.gateway.models.changes import effective

LEAVES_WITHIN_S: Final = 2.0
"""For what can still be answered when a device is lost. Whoever waits for that device learns it at once."""
CALLERS_WAIT_S: Final = 5.0
"""So long a new worker lets connections wait for its models; then they are told that it is not ready."""
_KILLED_AFTER_S: Final = 5.0
"""Beyond unready_seconds and drain_seconds, where a worker does not stop."""
_ONE_SIGNAL_S: Final = 0.2
_DRIVERS: Final = ("/dev/nvidiactl", "/dev/dxg")


Read = Callable[[], Config]
"""Reads the configuration anew. Raises ConfigError."""


def serve(config: Config, kinds: Registries, say: Say, read: Read) -> int:
    """Run until SIGTERM or SIGINT, then drain. Returns the exit status, unless it ends the process itself."""
    if not is_supervised(config):
        end_process(_run(config, kinds, say, read, None, NOTHING))
    try:
        sockets = Sockets(config)
    except OSError as error:
        say(str(error))
        return 1
    with sockets:

        def work(restarts: Mapping[str, int], serves: Callable[[], None]) -> int:
            now = _read_again(config, read) if any(restarts.values()) else config
            return _run(now, kinds, say, read, sockets, restarts, serves)

        return Supervisor(work, say, config.unready_seconds + config.drain_seconds + _KILLED_AFTER_S).run()


def _read_again(config: Config, read: Read) -> Config:
    """What a new worker serves: the file as it is now, but for what needs a restart of the whole, such as ports."""
    try:
        return effective(config, read())
    except ConfigError:
        return config


def is_supervised(config: Config) -> bool:
    """Whether a parent is to watch over the process: `auto` is where models may be on a GPU."""
    if config.supervise != "auto":
        return config.supervise
    may_be = bool(config.repositories) or any(model.device != "cpu" for model in config.models.values())
    return may_be and any(Path(driver).exists() for driver in _DRIVERS)


def _run(
    config: Config,
    kinds: Registries,
    say: Say,
    read: Read,
    sockets: Sockets | None,
    restarts: Mapping[str, int],
    serves: Callable[[], None] = lambda: None,
) -> int:
    faulthandler.enable()  # a crash in a native library leaves at least its stack in the log
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        return runner.run(_serve(config, kinds, say, read, sockets, restarts, serves))


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
    say: Say,
    read: Read,
    sockets: Sockets | None,
    restarts: Mapping[str, int],
    serves: Callable[[], None],
) -> int:
    """Until SIGTERM, SIGINT or the loss of a device. Of the latter it does not return: to wait for threads and
    libraries that still believe in the device could take for ever. `serves` is called once it listens.
    """
    try:
        app = App(config, kinds, say, sockets, restarts, read)
    except ImportError as error:
        say(str(error))
        return 1
    stop = _Stop(app.repository.give_up)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.signal)
    loop.add_signal_handler(signal.SIGHUP, app.reloads.request, "SIGHUP")
    loop.add_signal_handler(signal.SIGUSR1, app.reopen_logs)
    freeze_gc()
    over = asyncio.ensure_future(_either(stop.asked, app.device_lost))
    loading = _load(app, say) if any(restarts.values()) else None
    if loading is not None:
        await asyncio.wait([loading, over], timeout=CALLERS_WAIT_S, return_when=asyncio.FIRST_COMPLETED)
    try:
        await app.start()
    except OSError as error:
        say(str(error))
        return 1
    serves()
    say(f"{NAME} {__version__} listens on " + "  ".join(app.addresses))
    loading = loading or _load(app, say)
    loading.add_done_callback(lambda _: _announce(app, say))
    await over
    if app.device_lost.is_set():
        say(f"a device is lost: unready now, and ending with status {RESTART}, to be started again")
        loading.cancel()
        await app.leave(LEAVES_WITHIN_S)
        end_process(RESTART, orderly=False)
    pause = f", stopping in {config.unready_seconds:g} s" if config.unready_seconds else ""
    say(f"draining: unready now{pause}, finishing what was accepted")
    loading.cancel()
    begun = time.perf_counter()
    if not await app.drain(stop.hurried):
        say(f"gave up after {time.perf_counter() - begun:.1f} s: a model still runs (see drain_seconds)")
        return 1
    say(f"drained in {time.perf_counter() - begun:.1f} s")
    return 0


class _Stop:
    """What signals to stop mean: the first, to drain; the next, not to wait for others to notice; one more, not to wait
    for what runs, either.

    A terminal sends its signal to the supervisor and to us, and the supervisor passes it on: what comes within a moment
    is one.
    """

    def __init__(self, give_up: Callable[[], None]) -> None:
        self.asked = asyncio.Event()
        self.hurried = asyncio.Event()
        self._give_up = give_up
        self._last = -math.inf

    def signal(self) -> None:
        now, before = time.monotonic(), self._last
        self._last = now
        if now - before < _ONE_SIGNAL_S:
            return
        if self.hurried.is_set():
            self._give_up()
        elif self.asked.is_set():
            self.hurried.set()
        self.asked.set()


def _load(app: App, say: Say) -> asyncio.Task[None]:
    """Begin to load all models."""
    return asyncio.ensure_future(app.load(lambda report: say(told(report))))


async def _either(*events: asyncio.Event) -> None:
    waits = [asyncio.ensure_future(event.wait()) for event in events]
    await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)


def _announce(app: App, say: Say) -> None:
    state = "ready" if app.service.ready else "NOT READY: not every model could be loaded (readiness: strict)"
    say(state)
    for title, line in app.examples().items():
        say(f"\n{title}:\n  {line}")

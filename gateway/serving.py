"""`serve`: one process that answers, or a parent and the worker that it replaces when that cannot go on."""

from __future__ import annotations

import asyncio
import faulthandler
import signal
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from gateway.app import NAME, App, Say, Sockets, keep_what_is_there, told, version
from gateway.canonical import NOTHING
from gateway.config import Config
from gateway.ports import Registries
from gateway.supervisor import RESTART, Supervisor, end_process

LEAVES_WITHIN_S: Final = 2.0
"""For what can still be answered when a device is lost. Whoever waits for that device learns it at once."""
CALLERS_WAIT_S: Final = 5.0
"""So long a new worker lets connections wait for its models; then they are told that it is not ready."""
_KILLED_AFTER_S: Final = 5.0
"""Beyond drain_seconds, where a worker does not stop."""
_DRIVERS: Final = ("/dev/nvidiactl", "/dev/dxg")


def serve(config: Config, kinds: Registries, say: Say) -> int:
    """Run until SIGTERM or SIGINT, then drain. Returns the exit status, unless it ends the process itself."""
    if not is_supervised(config):
        end_process(_run(config, kinds, say, None, NOTHING))
    try:
        sockets = Sockets(config)
    except OSError as error:
        say(str(error))
        return 1
    with sockets:
        supervisor = Supervisor(
            lambda restarts: _run(config, kinds, say, sockets, restarts), say, config.drain_seconds + _KILLED_AFTER_S
        )
        return supervisor.run()


def is_supervised(config: Config) -> bool:
    """Whether a parent is to watch over the process: `auto` is where models may be on a GPU."""
    if config.supervise != "auto":
        return config.supervise
    may_be = bool(config.repositories) or any(model.device != "cpu" for model in config.models.values())
    return may_be and any(Path(driver).exists() for driver in _DRIVERS)


def _run(config: Config, kinds: Registries, say: Say, sockets: Sockets | None, restarts: Mapping[str, int]) -> int:
    faulthandler.enable()  # a crash in a native library leaves at least its stack in the log
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        return runner.run(_serve(config, kinds, say, sockets, restarts))


def _loop_factory() -> type[asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:
        return None
    loop: type[asyncio.AbstractEventLoop] = uvloop.Loop
    return loop


async def _serve(
    config: Config, kinds: Registries, say: Say, sockets: Sockets | None, restarts: Mapping[str, int]
) -> int:
    """Until SIGTERM, SIGINT or the loss of a device. Of the latter it does not return: to wait for threads and
    libraries that still believe in the device could take for ever.
    """
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    try:
        app = App(config, kinds, say, sockets, restarts)
    except ImportError as error:
        say(str(error))
        return 1
    loop.add_signal_handler(signal.SIGUSR1, app.reopen_logs)
    keep_what_is_there()
    over = asyncio.ensure_future(_either(stopped, app.device_lost))
    loading = _load(app, say) if any(restarts.values()) else None
    if loading is not None:
        await asyncio.wait([loading, over], timeout=CALLERS_WAIT_S, return_when=asyncio.FIRST_COMPLETED)
    try:
        await app.start()
    except OSError as error:
        say(str(error))
        return 1
    say(f"{NAME} {version()} listens on " + "  ".join(app.addresses))
    loading = loading or _load(app, say)
    loading.add_done_callback(lambda _: _announce(app, say))
    await over
    if app.device_lost.is_set():
        say(f"a device is lost: unready now, and ending with status {RESTART}, to be started again")
        loading.cancel()
        await app.leave(LEAVES_WITHIN_S)
        end_process(RESTART, orderly=False)
    say("draining: unready now, finishing what was accepted")
    loading.cancel()
    begun = time.perf_counter()
    if not await app.drain():
        say(f"gave up after {time.perf_counter() - begun:.1f} s: a model still runs (see drain_seconds)")
        return 1
    say(f"drained in {time.perf_counter() - begun:.1f} s")
    return 0


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

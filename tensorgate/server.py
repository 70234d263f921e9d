"""A gateway inside another program, for tests and notebooks."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import threading
from collections.abc import Mapping
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any, Final, Self

from tensorgate.gateway.app import App, registries, report_line
from tensorgate.gateway.config import Config, Listener, load_config, load_text
from tensorgate.gateway.contract.registries import Registries

_BIND: Final = "127.0.0.1:0"


class Server:
    """A gateway on free ports of this machine, from entering to leaving a `with` or an `async with`.

        with Server({"models": {"cosine": {"backend": "python", "path": "cosine.py:Cosine", ...}}}) as server:
            requests.post(f"{server.url}/v2/models/cosine/infer", json=...)

    `config` is what the YAML would say, as a mapping or as its text, or the Path of such a file. Paths in the first two
    are relative to the working directory. Its ports are replaced by free ones of 127.0.0.1, and a gRPC port is added if
    there is none; `url` is the first of HTTP, "http://127.0.0.1:40123", `grpc_address` that of gRPC, "127.0.0.1:40124".
    The gateway runs on an event loop in a thread of its own. When it is entered, all models are loaded.

    Entering raises ConfigError for a wrong configuration, and RuntimeError for a model that cannot be loaded.
    """

    def __init__(self, config: Mapping[str, Any] | str | Path) -> None:
        self._source = config
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop
        self._serving: asyncio.Task[Any] | None = None

    def __enter__(self) -> Self:
        kinds = registries()
        started: Future[list[str]] = Future()
        run = partial(self._run, self._read(kinds), kinds, started)
        self._thread = threading.Thread(target=run, name="tensorgate", daemon=True)
        self._thread.start()
        try:
            addresses = started.result()
        except BaseException:  # an interrupt, too
            self._stop()
            raise
        self.url = next(address for address in addresses if address.startswith("http"))
        self.grpc_address = next(address.partition("//")[2] for address in addresses if address.startswith("grpc"))
        return self

    def __exit__(self, *why: object) -> None:
        self._stop()

    async def __aenter__(self) -> Self:
        return await asyncio.to_thread(self.__enter__)

    async def __aexit__(self, *why: object) -> None:
        await asyncio.to_thread(self._stop)

    def _read(self, kinds: Registries) -> Config:
        """Raises ConfigError."""
        source = self._source
        if isinstance(source, Path):
            return _on_free_ports(load_config(source, kinds))
        text = source if isinstance(source, str) else json.dumps(source, default=os.fspath)
        return _on_free_ports(load_text(text, Path("<Server>"), kinds))

    def _run(self, config: Config, kinds: Registries, started: Future[list[str]]) -> None:
        try:
            asyncio.run(self._serve(config, kinds, started))
        except asyncio.CancelledError:
            pass
        except BaseException as error:
            if started.done():
                raise
            started.set_exception(error)

    async def _serve(self, config: Config, kinds: Registries, started: Future[list[str]]) -> None:
        """Until the task is cancelled."""
        self._loop, self._serving = asyncio.get_running_loop(), asyncio.current_task()
        failures: list[str] = []
        app = App(config, kinds, read=lambda: self._read(kinds))
        try:
            await app.start()
            await app.load(lambda report: failures.append(report_line(report).strip()) if report.error else None)
            if not app.service.ready:
                raise RuntimeError("\n".join(failures))
            started.set_result(app.addresses)
            await asyncio.Event().wait()
        finally:
            hurried = asyncio.Event()
            hurried.set()
            await app.drain(hurried)

    def _stop(self) -> None:
        """Answer what was accepted, unload the models, close the ports."""
        if self._thread is not None:
            with contextlib.suppress(RuntimeError):  # it may be over
                if self._serving is not None:
                    self._loop.call_soon_threadsafe(self._serving.cancel)
            self._thread.join()
        self._thread = self._serving = None


def _on_free_ports(config: Config) -> Config:
    """Listeners keep their names: routes may go by them."""
    listen = config.listen
    changes = {
        "http": tuple(_freed(listener) for listener in listen.http),
        "grpc": tuple(_freed(listener) for listener in listen.grpc) or (Listener(bind=_BIND),),
        "metrics": listen.metrics and listen.metrics.model_copy(update={"bind": _BIND}),
    }
    return config.model_copy(update={"listen": listen.model_copy(update=changes)})


def _freed(listener: Listener) -> Listener:
    return listener.model_copy(update={"bind": _BIND, "name": listener.title})

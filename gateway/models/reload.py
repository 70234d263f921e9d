"""Reloads the configuration while the gateway serves.

    read and check ── wrong ──▶ refused: the old configuration stays in force
          │
    compute what changes (`changes`): nothing else is touched
          │
    load models that are added or differ, beside those that serve; they take over
          │             └─ one fails ──▶ incomplete: its old version serves on, and the steps below do not happen
    apply routes, limits, administrators, readiness: all at once, in one step of the event loop
          │
    unload models that were removed, after they have answered what they accepted

So a route never leads to a model that is not loaded yet, or not any more.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, Final, Literal

from tensorgate.gateway.config import Config, ConfigError
from tensorgate.gateway.models.catalog import Catalog, Catalogs
from tensorgate.gateway.models.changes import Changes, changes, effective
from tensorgate.gateway.models.loader import LoadReport
from tensorgate.gateway.models.repository import Repository

log = logging.getLogger(__name__)

NO_CHANGES: Final = Changes()
RESULTS: Final = ("applied", "unchanged", "incomplete", "refused")


@dataclass(frozen=True, slots=True)
class ReloadOutcome:
    """The outcome of a reload. `errors` has a line for each problem of a file that was refused, and for each model that
    failed to load.
    """

    result: Literal["applied", "unchanged", "incomplete", "refused"]
    changes: Changes = NO_CHANGES
    errors: tuple[str, ...] = ()
    seconds: float = 0.0

    def plain(self) -> dict[str, Any]:
        """The outcome as plain data, for JSON."""
        return {
            "result": self.result,
            "seconds": round(self.seconds, 3),
            "errors": list(self.errors),
            "changes": self.changes.plain(),
        }


@dataclass(frozen=True, slots=True)
class ReloadActions:
    """The composition root's part of a reload: `read` the configuration (in a thread; raises ConfigError), make its
    `catalog`, `take_over` all sections but models.
    """

    read: Callable[[], Config]
    catalog: Callable[[Config], Catalog]
    take_over: Callable[[Config], None]


class Reloader:
    """Applies a changed configuration to a running gateway. One reload runs at a time, the first after all models of
    the start are loaded. `config` is the configuration in force, `counts` has the reloads by result, and `succeeded_at`
    is when (time.time) the configuration in force was last found to be that of the file.
    """

    def __init__(self, config: Config, catalog: Catalog, repository: Repository, actions: ReloadActions) -> None:
        self.config = config
        self.loaded = asyncio.Event()
        self._catalog = catalog
        self._repository = repository
        self._actions = actions
        self._lock = asyncio.Lock()
        self._running: set[asyncio.Task[ReloadOutcome]] = set()
        self.counts = dict.fromkeys(RESULTS, 0)
        self.succeeded_at = time.time()

    def request(self, why: str) -> asyncio.Task[ReloadOutcome]:
        """Start a reload; it runs to its end even if nobody awaits the task."""
        task = asyncio.ensure_future(self._reload(why))
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        return task

    def stop(self) -> None:
        """Cancel running reloads: the gateway is about to end."""
        for task in self._running:
            task.cancel()

    async def follow(self, pause: float) -> None:
        """Reload for ever whenever the file has changed, once it is the same at two looks `pause` seconds apart.

        A look costs one stat, which follows links: editors replace the file, Kubernetes the folder behind a link.
        """
        file = self.config.source
        known = last = None
        content = self.config.digest
        while True:
            await asyncio.sleep(pause)
            found = await asyncio.to_thread(_file_stamp, file)
            settled, last = found == last, found
            if found is None or found == known or not settled:
                continue
            known = found
            digest = await asyncio.to_thread(_digest, file)
            if digest != content:
                content = digest
                await self.request("the file has changed")

    async def _reload(self, why: str) -> ReloadOutcome:
        await self.loaded.wait()
        async with self._lock:
            begun = time.perf_counter()
            log.info("reloading the configuration: %s", why)
            try:
                outcome = await self._outcome()
            except Exception as error:
                log.exception("the configuration could not be reloaded")
                outcome = ReloadOutcome("incomplete", errors=(f"{type(error).__name__}, see the log",))
            outcome = ReloadOutcome(outcome.result, outcome.changes, outcome.errors, time.perf_counter() - begun)
            self.counts[outcome.result] += 1
            if outcome.result in ("applied", "unchanged"):
                self.succeeded_at = time.time()
            for line in _log_lines(outcome):
                log.log(logging.INFO if outcome.result in ("applied", "unchanged") else logging.ERROR, "%s", line)
            return outcome

    async def _outcome(self) -> ReloadOutcome:
        try:
            config = await asyncio.to_thread(self._actions.read)
            in_force = effective(self.config, config)
        except ConfigError as error:
            return ReloadOutcome("refused", errors=tuple(map(str, error.problems)))
        catalog = await asyncio.to_thread(self._actions.catalog, config)
        try:
            diff = await self._repository.catalog_diff(catalog)
        except OSError as error:
            return ReloadOutcome("refused", errors=(f"{config.source}: repositories: {error}",))
        plan = changes(self.config, config, diff.serving, diff.wanted, diff.touched)
        failures: list[LoadReport] = []

        def report(each: LoadReport) -> None:
            if each.error:
                failures.append(each)

        names = list(dict.fromkeys((*plan.to_load(), *diff.errors)))
        await self._repository.load_changed(Catalogs(catalog, self._catalog), diff, names, report)
        errors = tuple(f"models.{each}: {each.error}" for each in failures)
        required = plan.required() | diff.new
        if any(each.name in required for each in failures):
            return ReloadOutcome("incomplete", plan, errors)
        self.config = in_force
        self._catalog = catalog
        self._actions.take_over(self.config)
        await self._repository.unload_removed(catalog, diff)
        return ReloadOutcome("applied" if plan else "unchanged", plan, errors)


def _log_lines(outcome: ReloadOutcome) -> Iterator[str]:
    """Lines for the operator's log."""
    match outcome.result:
        case "refused":
            yield "the configuration was refused, the old one serves on:"
        case "incomplete":
            yield "not every model could be loaded: old versions and old routes serve on, nothing was taken away"
        case _:
            yield f"the configuration was reloaded in {outcome.seconds:.2f} s"
    yield from (f"  {error}" for error in outcome.errors)
    if outcome.result != "refused":
        yield from (f"  {line}" for line in outcome.changes.lines())


def _file_stamp(file: Path) -> tuple[int, int, int] | None:
    """Differs whenever the file was replaced or written; None if there is no file."""
    try:
        state = file.stat()
    except OSError:
        return None
    return state.st_ino, state.st_mtime_ns, state.st_size


def _digest(file: Path) -> str:
    try:
        return sha256(file.read_bytes()).hexdigest()
    except OSError:
        return ""

"""The configuration, read anew while the gateway serves.

    read and check ── wrong ──▶ refused: the old one goes on
          │
    what would change (`changes`): nothing else is touched
          │
    models that are added or differ load beside those that serve, and take over
          │             └─ one fails ──▶ incomplete: its old version goes on, and so does all that follows here
    routes, limits, administrators, readiness: all at once, in one step of the event loop
          │
    models that are gone leave, once they have answered what they accepted

So a route never leads to a model that is not there: neither to one that has not come yet, nor to one that has left.
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

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from tensorgate.gateway.config import Config, ConfigError
from tensorgate.gateway.models.catalog import Catalog, Catalogs
from tensorgate.gateway.models.changes import Changes, changes, effective
from tensorgate.gateway.models.loader import LoadReport
from tensorgate.gateway.models.repository import Repository

log = logging.getLogger(__name__)

NO_CHANGES: Final = Changes()
RESULTS: Final = ("applied", "unchanged", "incomplete", "refused")


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a reload. `errors` has a line for each problem of a file that was refused, and for each model that
    failed to load.
    """

    result: Literal["applied", "unchanged", "incomplete", "refused"]
    changes: Changes = NO_CHANGES
    errors: tuple[str, ...] = ()
    seconds: float = 0.0

    def plain(self) -> dict[str, Any]:
        """For programs."""
        return {
            "result": self.result,
            "seconds": round(self.seconds, 3),
            "errors": list(self.errors),
            "changes": self.changes.plain(),
        }


@dataclass(frozen=True, slots=True)
class ReloadActions:
    """What the composition root does in a reload: `read` the configuration (in a thread; raises ConfigError), make a
    `catalog` of it, `take_over` all of it that is no model.
    """

    read: Callable[[], Config]
    catalog: Callable[[Config], Catalog]
    take_over: Callable[[Config], None]


class Reloads:
    """Brings a running gateway to what its configuration says now. One reload at a time, the first once all models of
    the start are loaded. `config` is the one in force.
    """

    def __init__(self, config: Config, catalog: Catalog, repository: Repository, steps: ReloadActions) -> None:
        self.config = config
        self.loaded = asyncio.Event()
        self._catalog = catalog
        self._repository = repository
        self._steps = steps
        self._turn = asyncio.Lock()
        self._running: set[asyncio.Task[Outcome]] = set()
        self._counts = dict.fromkeys(RESULTS, 0)
        self._succeeded_at = time.time()

    def request(self, why: str) -> asyncio.Task[Outcome]:
        """Begin a reload, which is brought to its end whether anybody waits for it or not."""
        task = asyncio.ensure_future(self._reload(why))
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        return task

    def stop(self) -> None:
        """No more of them: the gateway is about to end."""
        for task in self._running:
            task.cancel()

    async def follow(self, pause: float) -> None:
        """Reload for ever whenever the file is another, and has not been written to since the last look.

        A look follows links: editors put a new file in the place of the old one, Kubernetes another folder under a
        link. It costs one stat.
        """
        file = self.config.source
        known = last = None
        content = self.config.digest
        while True:
            await asyncio.sleep(pause)
            found = await asyncio.to_thread(_print, file)
            settled, last = found == last, found
            if found is None or found == known or not settled:
                continue
            known = found
            digest = await asyncio.to_thread(_digest, file)
            if digest != content:
                content = digest
                await self.request("the file has changed")

    def collect(self) -> Iterator[Metric]:
        """The series of /metrics."""
        counted = CounterMetricFamily(
            "tensorgate_config_reloads", "Times the configuration was read anew, by what came of it.", labels=["result"]
        )
        for result, count in self._counts.items():
            counted.add_metric([result], count)
        yield counted
        yield GaugeMetricFamily(
            "tensorgate_config_last_reload_success_timestamp_seconds",
            "When the configuration in force was last found to be that of the file.",
            self._succeeded_at,
        )
        info = GaugeMetricFamily(
            "tensorgate_config_info", "The SHA-256 of the configuration in force.", labels=["hash"]
        )
        info.add_metric([self.config.digest], 1)
        yield info

    async def _reload(self, why: str) -> Outcome:
        await self.loaded.wait()
        async with self._turn:
            begun = time.perf_counter()
            log.info("reloading the configuration: %s", why)
            try:
                outcome = await self._outcome()
            except Exception as error:
                log.exception("the configuration could not be reloaded")
                outcome = Outcome("incomplete", errors=(f"{type(error).__name__}, see the log",))
            outcome = Outcome(outcome.result, outcome.changes, outcome.errors, time.perf_counter() - begun)
            self._counts[outcome.result] += 1
            if outcome.result in ("applied", "unchanged"):
                self._succeeded_at = time.time()
            for line in _told(outcome):
                log.log(logging.INFO if outcome.result in ("applied", "unchanged") else logging.ERROR, "%s", line)
            return outcome

    async def _outcome(self) -> Outcome:
        try:
            config = await asyncio.to_thread(self._steps.read)
            in_force = effective(self.config, config)
        except ConfigError as error:
            return Outcome("refused", errors=tuple(map(str, error.problems)))
        catalog = await asyncio.to_thread(self._steps.catalog, config)
        try:
            found = await self._repository.catalog_diff(catalog)
        except OSError as error:
            return Outcome("refused", errors=(f"{config.source}: repositories: {error}",))
        due = changes(self.config, config, found.serving, found.wanted, found.touched)
        failures: list[LoadReport] = []

        def report(each: LoadReport) -> None:
            if each.error:
                failures.append(each)

        names = list(dict.fromkeys((*due.due(), *found.errors)))
        await self._repository.bring(Catalogs(catalog, self._catalog), found, names, report)
        errors = tuple(_failure(each) for each in failures)
        demanded = due.demanded() | found.new
        if any(each.name in demanded for each in failures):
            return Outcome("incomplete", due, errors)
        self.config = in_force
        self._catalog = catalog
        self._steps.take_over(self.config)
        await self._repository.part(catalog, found)
        return Outcome("applied" if due else "unchanged", due, errors)


def _told(outcome: Outcome) -> Iterator[str]:
    """For the operator's log."""
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


def _failure(report: LoadReport) -> str:
    version = f" version {report.version}" if report.version is not None else ""
    return f"models.{report.name}{version}: {report.error}"


def _print(file: Path) -> tuple[int, int, int] | None:
    """Another one whenever the file is another; None where there is none."""
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

"""Loads models when somebody asks for them, and unloads the least valuable where memory is short.

    a request names a model that is not loaded -> the router raises MustLoad, the service has it loaded, and reads the
    request once more -> one load, however many wait -> room is made -> loaded, measured, entered in the ledger

Who waits does so within his own deadline. A load that failed is not tried again at once: who asks then is told why.
Models with requests or sequences never leave, nor do those that another one in memory is composed of. Whoever calls a
model just as it leaves finds it gone, and has it loaded anew: nothing that was accepted is lost.

Everything here belongs to the event loop; what takes long runs in threads.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, Protocol

from tensorgate.gateway.config import ModelConfig, Residency
from tensorgate.gateway.config.residency import DAYS, ModelResidency
from tensorgate.gateway.contract.errors import DeadlineExceeded, LoadFailed, Reason, Unavailable
from tensorgate.gateway.contract.files import tree_bytes
from tensorgate.gateway.contract.metrics import ResidencyCounts
from tensorgate.gateway.engine.model import Model
from tensorgate.gateway.models.ledger import Ledger, Resident
from tensorgate.gateway.models.loader import LoadReport, Report, error_line, public_error
from tensorgate.gateway.models.memory_meter import CPU, MemoryMeter
from tensorgate.gateway.models.model_state import StoredModel
from tensorgate.gateway.telemetry.histogram import SECONDS, Histogram

log = logging.getLogger(__name__)

Cause = Literal["request", "neighbour", "schedule", "pin", "caller"]
"""Why a model is loaded: somebody asked it, or its neighbour; it is time; it is pinned; a caller loads it."""
Leaving = Literal["memory", "idle", "caller"]
LOOKS_EVERY_S: Final = 1.0
_LOOKS_FOR_ROOM_S: Final = 0.02
_FIRST_DELAY_S: Final = 1.0
_MAX_DELAY_S: Final = 60.0
_NO_ROOM: Final = "the models that run hold the memory that it needs"
_LEAST_OF_FILE: Final = 0.2
"""A model holds no less than so much of its files: else other things were freed while it was measured."""


class Loads(Protocol):
    """What loads and unloads: the repository."""

    def read_demanded(self, name: str) -> StoredModel:
        """A model as it lies on disk. In a thread. Raises ModelNotFound, ValueError, OSError."""
        ...

    async def fetch_demanded(self, stored: StoredModel) -> None:
        """Have its files on this machine. Raises what a fetch does."""
        ...

    async def load_demanded(self, stored: StoredModel, name: str, report: Report) -> Reason | None:
        """Load it -> None, or why none of its versions serves."""
        ...

    async def evict(self, name: str) -> None:
        """Unload it, and wait until it has answered what it accepted and given back its memory."""
        ...

    def loaded(self, name: str) -> Iterable[Model]:
        """Its versions that are in memory."""
        ...

    def parts(self, config: ModelConfig) -> Iterable[str]:
        """The models that it is composed of."""
        ...

    def is_loadable(self, name: str) -> bool:
        """Whether it is one of those that are loaded on demand."""
        ...


@dataclass(slots=True, eq=False)
class _Load:
    """A model that is being loaded. `waiting` callers wait for it."""

    cause: Cause
    begun: float
    report: Report
    task: asyncio.Task[str] | None = None
    waiting: int = 0
    is_measured_alone: bool = True


@dataclass(frozen=True, slots=True)
class _Failure:
    """Why a load failed, and until when (time.monotonic()) it is not tried again."""

    text: str
    until: float
    delay: float


@dataclass(slots=True)
class DemandCounts:
    """What has happened so far."""

    loads: dict[str, int] = field(default_factory=dict)
    """By cause."""
    evictions: dict[str, int] = field(default_factory=dict)
    """By why they left."""
    failures: int = 0
    turned_away: int = 0
    """Callers who were told to ask again."""
    waits: Histogram = field(default_factory=lambda: Histogram(SECONDS))
    """How long callers waited who got their model."""


class OnDemand:
    """Of all models that are loaded on demand: which are in memory, which come, and which leave."""

    def __init__(
        self, models: Loads, config: Residency, meter: MemoryMeter, settings: Callable[[str], ModelResidency]
    ) -> None:
        """`settings` has what a model's own entry says, as far as that is known before it is read."""
        self._models = models
        self._config = config
        self._meter = meter
        self._settings = settings
        self._slots = asyncio.Semaphore(config.loads_at_once)
        self._loads: dict[str, _Load] = {}
        self._leaving: dict[str, asyncio.Task[None]] = {}
        self._failed: dict[str, _Failure] = {}
        self._parts: dict[str, tuple[str, ...]] = {}
        self._kept: dict[str, float] = {}
        """Of residents whose own entry says so, after how many idle seconds they leave."""
        self._begun: set[str] = set()
        """Backends of which a model was loaded: what their libraries take with the first, is no model's."""
        self._pinned: set[str] = set()
        """By callers."""
        self._looked = time.time()
        self.ledger = Ledger(config.max_resident_bytes)
        self.counts = DemandCounts()

    # -------------------------------------------------------------------------------------------------------- callers

    async def demand(self, name: str, deadline: float | None = None, cause: Cause = "request") -> None:
        """Wait until a model is loaded. Raises Unavailable, which says when to ask again, and DeadlineExceeded."""
        now = time.monotonic()
        failed = self._failed.get(name)
        if failed is not None and now < failed.until and name not in self._loads:
            raise self._later(f"model '{name}' failed to load: {failed.text}", failed.until - now)
        load = self._begin(name, cause)
        wait_s = self._wait_s(name)
        left = None if deadline is None else deadline - now
        load.waiting += 1
        task = _task_of(load)
        try:
            await asyncio.wait((task,), timeout=wait_s if left is None else max(0.0, min(wait_s, left)))
        finally:
            load.waiting -= 1
        if not task.done():
            if left is not None and left <= wait_s:
                raise DeadlineExceeded(name)
            still = self.ledger.load_seconds(name) - (time.monotonic() - load.begun)
            raise self._later(f"model '{name}' is being loaded", still)
        problem = "the server stops" if task.cancelled() else task.result()
        if problem:
            failed = self._failed.get(name)
            raise self._later(problem, 1.0 if failed is None else failed.until - time.monotonic())
        self.counts.waits.observe(time.monotonic() - now)
        self._fetch_neighbours(name)

    async def pin(self, name: str, cause: Cause = "pin", report: Report | None = None) -> None:
        """Load a model that stays until `release`. Raises LoadFailed."""
        self._pinned.add(name)
        self._failed.pop(name, None)
        load = self._begin(name, cause, report)
        load.waiting += 1
        try:
            problem = await asyncio.shield(_task_of(load))
        finally:
            load.waiting -= 1
        if problem:
            self._pinned.discard(name)
            raise LoadFailed(name, {1: problem})
        if (resident := self.ledger.residents.get(name)) is not None:
            resident.stays = True

    async def release(self, name: str) -> None:
        """Unload a model, as a caller wants it."""
        self._pinned.discard(name)
        await self._evict(name, "caller")

    def failure(self, name: str) -> str:
        """Why the model cannot be loaded now; empty where it can."""
        failed = self._failed.get(name)
        return "" if failed is None or time.monotonic() >= failed.until else failed.text

    @property
    def loading(self) -> int:
        """How many models are being loaded."""
        return len(self._loads)

    def read(self) -> ResidencyCounts:
        """All numbers as values of their own. In any thread."""
        ledger, counts = self.ledger, self.counts
        residents = list(ledger.residents.values())
        devices = sorted({*ledger.bounds, *(device for each in residents for device in each.holds)})
        return ResidencyCounts(
            len(residents),
            self.loading,
            {device: sum([each.holds.get(device, 0) for each in residents]) for device in devices},
            ledger.bounds,
            dict(counts.loads),
            dict(counts.evictions),
            counts.failures,
            counts.turned_away,
            counts.waits.distribution(),
        )

    # ------------------------------------------------------------------------------------------------------ one's load

    def _begin(self, name: str, cause: Cause, report: Report | None = None) -> _Load:
        load = self._loads.get(name)
        if load is None:
            load = self._loads[name] = _Load(cause, time.monotonic(), report or _silent)
            load.task = asyncio.ensure_future(self._load(name, load))
        return load

    async def _load(self, name: str, load: _Load) -> str:
        """-> why it failed, for callers; empty: it serves."""
        said = ""
        try:
            leaving = self._leaving.get(name)
            if leaving is not None:
                await asyncio.shield(leaving)
            if self._is_loaded(name):
                return ""
            async with self._slots:
                stored = await asyncio.to_thread(self._models.read_demanded, name)
            self._parts[name] = parts = tuple(self._models.parts(stored.config))
            for part in parts:
                if self._models.is_loadable(part) and not self._is_loaded(part):
                    await self.demand(part, cause=load.cause)
            await self._models.fetch_demanded(stored)  # who waits for a network keeps nobody from a place
            async with self._slots:
                problem = await self._load_stored(name, load, stored)
        except asyncio.CancelledError:
            raise
        except Exception as error:
            log.debug("a model could not be loaded on demand", exc_info=error)
            problem, said = public_error(error), error_line(error)
        finally:
            del self._loads[name]
            self.ledger.reserved.pop(name, None)
            if name not in self.ledger.residents:
                self._parts.pop(name, None)
        if problem and problem is not _NO_ROOM:
            self._note_failure(name, problem, said or problem)
        elif not problem:
            self._failed.pop(name, None)
            self.counts.loads[load.cause] = self.counts.loads.get(load.cause, 0) + 1
        return problem

    def _is_loaded(self, name: str) -> bool:
        return any(True for _ in self._models.loaded(name))

    async def _load_stored(self, name: str, load: _Load, stored: StoredModel) -> str:
        """With a place among those that load."""
        config = stored.config
        file_bytes = await asyncio.to_thread(_bytes_of, stored)
        place = _device_of(config)
        needs = self.ledger.expected(name, config.backend, file_bytes, place)
        if not self.ledger.fits(needs):
            return f"it needs {_sizes(needs)}, more than max_resident_bytes leaves beside what is pinned"
        if not await self._make_room(name, needs, load):
            return _NO_ROOM
        self.ledger.reserved[name] = needs
        for other in self._loads.values():
            other.is_measured_alone = False
        load.is_measured_alone = sum(each in self.ledger.reserved for each in self._loads) == 1
        devices = [*self.ledger.bounds, *needs]
        before, begun = self._meter.read(devices), time.monotonic()
        reason = await self._models.load_demanded(stored, name, load.report)
        if reason is not None:
            return reason.text
        seconds = time.monotonic() - begun
        models = [*self._models.loaded(name)]
        after = self._meter.read((*devices, *[device for model in models for device in model.devices]))
        taken = {device: after[device] - before.get(device, after[device]) for device in after}
        own = sum([model.computation.memory() for model in models])
        is_measured = load.is_measured_alone and config.backend in self._begun
        self._begun.add(config.backend)
        holds = _measured(taken, own, file_bytes) if is_measured else None
        now = time.monotonic()
        del self.ledger.reserved[name]
        stays = self._config.is_pinned(name) or config.residency.pin or name in self._pinned
        if config.residency.keep is not None:
            self._kept[name] = config.residency.keep
        guessed_on = place if holds is None else ""
        holds = needs if holds is None else holds
        self.ledger.add(Resident(name, holds, seconds, now, now, stays, config.backend, file_bytes, guessed_on))
        log.debug("loaded %s on demand in %.3f s, holds %s", name, seconds, _sizes(holds))
        await self._shed(self.ledger.excess(), lambda each: each.name != name)
        return ""

    async def _make_room(self, name: str, needs: Mapping[str, int], load: _Load) -> bool:
        """Have others leave until a model fits -> whether it does. Only who is waited for waits for others to end."""
        while lacking := self.ledger.lacking(needs):
            if await self._shed(lacking, self._is_less_wanted(load)):
                continue
            if not load.waiting:
                return False
            await asyncio.sleep(_LOOKS_FOR_ROOM_S)
        return True

    def _is_less_wanted(self, load: _Load) -> Callable[[Resident], bool]:
        """A model that nobody has asked for yet pushes out none that was asked for since it was thought of."""
        if load.cause in ("neighbour", "schedule") and not load.waiting:
            since = load.begun - (self._config.keep or _MAX_DELAY_S)
            return lambda each: each.used < since
        return lambda each: True

    # -------------------------------------------------------------------------------------------------------- leaving

    async def _shed(self, lacking: Mapping[str, int], may_leave: Callable[[Resident], bool]) -> bool:
        """Free so many bytes, by device -> whether somebody left for it."""
        if not lacking:
            return False
        self._note_uses()
        now, parts = time.monotonic(), self._parts_in_use()

        def may(each: Resident) -> bool:
            return may_leave(each) and each.name not in parts and self._is_quiet(each)

        chosen = self.ledger.to_leave(lacking, now, may)
        if not chosen:  # those that are composed of others hold nothing, and keep them here
            composed = [each for each in self.ledger.residents.values() if self._parts.get(each.name)]
            able = [each for each in composed if each.may_leave(now) and may(each)]
            chosen = sorted(able, key=lambda each: each.used)[:1]
        await asyncio.gather(*[self._evict(each.name, "memory") for each in chosen])
        return bool(chosen)

    def _evict(self, name: str, why: Leaving) -> asyncio.Task[None]:
        task = self._leaving.get(name)
        if task is None:
            if name in self.ledger.residents:
                self.counts.evictions[why] = self.counts.evictions.get(why, 0) + 1
            task = self._leaving[name] = asyncio.ensure_future(self._evict_now(name))
        return task

    async def _evict_now(self, name: str) -> None:
        for load in self._loads.values():
            load.is_measured_alone = False
        try:
            await self._models.evict(name)
        finally:
            self.ledger.remove(name)
            self._parts.pop(name, None)
            self._kept.pop(name, None)
            del self._leaving[name]

    def _is_quiet(self, resident: Resident) -> bool:
        name = resident.name
        return name not in self._leaving and all(model.is_quiet for model in self._models.loaded(name))

    def _parts_in_use(self) -> set[str]:
        """What those are composed of that are in memory, or are being loaded."""
        return {part for parts in self._parts.values() for part in parts}

    def _note_uses(self) -> None:
        """When each was asked for last: its own counters know."""
        for name, resident in self.ledger.residents.items():
            for model in self._models.loaded(name):
                model.counters.settle()
                if model.counters.last is not None:
                    resident.used = max(resident.used, model.counters.last)

    # ---------------------------------------------------------------------------------------------------- by the clock

    async def run(self) -> None:
        """Look for ever after what is idle, what was unloaded by others, and what is to be fetched."""
        while True:
            await asyncio.sleep(LOOKS_EVERY_S)
            self.look()

    def look(self) -> None:
        """Once."""
        for name in [name for name in self.ledger.residents if not self._is_loaded(name)]:
            if name not in self._leaving:  # a caller, a reload or a poll has unloaded it
                self.ledger.remove(name)
        self._note_uses()
        now, parts = time.monotonic(), self._parts_in_use()
        for resident in list(self.ledger.residents.values()):
            keep = self._kept.get(resident.name, self._config.keep)
            idle = keep is not None and now - resident.used >= keep
            if idle and not resident.stays and resident.name not in parts and self._is_quiet(resident):
                self._evict(resident.name, "idle")
        self._fetch_at(time.time())

    def _fetch_at(self, now: float) -> None:
        """What the schedule wants that has become due since the last look."""
        before, self._looked = self._looked, now
        for each in self._config.prefetch:
            hour, minute = map(int, each.at.split(":"))
            due = _moment(now, hour, minute)
            if before < due <= now and DAYS[time.localtime(now).tm_wday] in each.days:
                self._fetch(each.models, "schedule")

    def _fetch_neighbours(self, name: str) -> None:
        neighbours = self._config.neighbours.get(name)
        if neighbours:
            self._fetch(neighbours, "neighbour")

    def _fetch(self, names: Sequence[str], cause: Cause) -> None:
        for name in names:
            if self._models.is_loadable(name) and not self.failure(name):
                self._begin(name, cause)

    # -------------------------------------------------------------------------------------------------------- failing

    def _note_failure(self, name: str, text: str, said: str) -> None:
        """`text` is for callers, `said` for the log."""
        before = self._failed.get(name)
        delay = _FIRST_DELAY_S if before is None else min(2 * before.delay, _MAX_DELAY_S)
        self._failed[name] = _Failure(text, time.monotonic() + delay, delay)
        self.counts.failures += 1
        log.warning("model %s was asked for, and failed to load: %s; not tried again for %.0f s", name, said, delay)

    def _later(self, text: str, seconds: float) -> Unavailable:
        self.counts.turned_away += 1
        error = Unavailable(text)
        error.http_headers = {"Retry-After": str(max(1, round(seconds)))}
        return error

    def _wait_s(self, name: str) -> float:
        own = self._settings(name).wait
        return self._config.wait if own is None else own

    async def close(self) -> None:
        """Begin nothing more."""
        tasks = [task for load in self._loads.values() if (task := load.task) is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, *self._leaving.values(), return_exceptions=True)


def _task_of(load: _Load) -> asyncio.Task[str]:
    if load.task is None:
        raise RuntimeError("a load that was not begun")
    return load.task


def _measured(taken: Mapping[str, int], own: int, file_bytes: int) -> Mapping[str, int] | None:
    """What a model holds, by what was taken meanwhile and its `own` processes; None where that was not all its own."""
    found = {device: nbytes for device, nbytes in taken.items() if nbytes > 0 and device != CPU}
    host = max(taken.get(CPU, 0), 0) + own
    if not found and host < _LEAST_OF_FILE * file_bytes:
        return None
    return {**found, CPU: host}


def _bytes_of(stored: StoredModel) -> int:
    """The size of a model's files; 0 of one that has none. Of those that are not fetched yet, what their store says."""
    total = 0
    if stored.config.path is None:
        return total
    for version, path in stored.versions.items():
        try:
            total += tree_bytes(path)
        except OSError:
            total += stored.trees[version].size if version in stored.trees else 0
    return total


def _device_of(config: ModelConfig) -> str:
    """Where a model is likely to be, before it is loaded."""
    device = config.device if isinstance(config.device, str) else config.device[0]
    return device if device.startswith("cuda:") and device != "cuda:*" else CPU


def _moment(now: float, hour: int, minute: int) -> float:
    """That minute of today, in seconds since the epoch."""
    today = time.localtime(now)
    return time.mktime((today.tm_year, today.tm_mon, today.tm_mday, hour, minute, 0, 0, 0, -1))


def _sizes(holds: Mapping[str, int]) -> str:
    return ", ".join(f"{nbytes:,} bytes of {device}" for device, nbytes in holds.items())


def _silent(report: LoadReport) -> None:
    """Nobody at the terminal waits for it."""

"""Decides which models are served: as the configuration, callers, or the disk want it.

One model is loaded or unloaded by one call at a time, different models concurrently.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Collection, Coroutine, Iterable, Mapping, Sequence
from typing import Any, Final, TypeVar

from tensorgate.gateway.config import ModelConfig, ModelControl, Residency
from tensorgate.gateway.config.options import EVERYTHING
from tensorgate.gateway.contract.canonical import ModelView
from tensorgate.gateway.contract.errors import (
    Code,
    GatewayError,
    LabelRefused,
    LoadFailed,
    LoadRefused,
    ModelControlOff,
    ModelNotFound,
    ModelNotStored,
    ModelUnavailable,
    PlatformRefused,
    Reason,
    ReloadFailed,
)
from tensorgate.gateway.contract.questions import IndexEntry, LoadModel, UnloadModel, VersionStatus, WantedModel
from tensorgate.gateway.contract.tensor import NOTHING
from tensorgate.gateway.engine.model import Model, listed_view
from tensorgate.gateway.models.catalog import Catalog
from tensorgate.gateway.models.changes import CatalogDiff, catalog_diff, differs
from tensorgate.gateway.models.listed_catalog import PLATFORM, ListedCatalog
from tensorgate.gateway.models.loaded_models import LoadedModels
from tensorgate.gateway.models.loader import (
    LoadReport,
    ModelLoader,
    Report,
    RepositoryDeps,
    error_line,
    public_error,
    without_folders,
)
from tensorgate.gateway.models.memory_meter import MemoryMeter
from tensorgate.gateway.models.model_state import ModelState, StoredModel
from tensorgate.gateway.models.on_demand import OnDemand
from tensorgate.gateway.models.server_catalog import ServerCatalog
from tensorgate.gateway.models.verification import Verifier

log = logging.getLogger(__name__)

_TRY_AGAIN_S: Final = 1.0
_LOADABLE: Final = "loaded when it is asked for"

Result = TypeVar("Result")


class Repository(LoadedModels):
    """Loads and unloads models of a catalog, as model control allows, and keeps the state of each."""

    def __init__(
        self,
        catalog: Catalog,
        deps: RepositoryDeps,
        control: ModelControl | None = None,
        residency: Residency | None = None,
        meter: MemoryMeter | None = None,
    ) -> None:
        self._control = control or ModelControl()
        self._residency = residency or Residency()
        roots = [root.path for root in self._control.model_roots]
        self._catalog = ListedCatalog(catalog, deps.versioned, deps.validate, roots, deps.files)
        verifier = Verifier(self._control)
        loader = ModelLoader(self._catalog, deps, trusted=self._control.trusted, verifier=verifier)
        names = catalog.names()
        held = [name for name in self._control.chosen(names) if not self._is_on_demand(name)]
        super().__init__(loader, deps, held)
        self.on_demand = OnDemand(self, self._residency, meter or MemoryMeter(), deps.residency)
        self._barred: set[str] = set()
        """Models that callers have unloaded, which come back only if they load them."""
        self._pinned = [name for name in names if self._is_on_demand(name) and self._is_pinned(name)]
        self._note_loadable(names)
        self._work: set[asyncio.Task[Any]] = set()
        self._reloading = asyncio.Lock()
        self._closed = False

    # ------------------------------------------------------------------------------------------------------- on demand

    def _is_on_demand(self, name: str) -> bool:
        return self._residency.is_on_demand(name) or self._residency.is_pinned(name)

    def _is_pinned(self, name: str) -> bool:
        return self._residency.is_pinned(name) or self.deps.residency(name).pin

    def _note_loadable(self, names: Iterable[str]) -> None:
        """Publish which models of the catalog are loaded when somebody asks for them."""
        self.loadable = frozenset(name for name in names if self._is_on_demand(name)) - self._barred
        self._publish()

    def is_loadable(self, name: str) -> bool:
        """Whether a model is loaded when somebody asks for it."""
        return name in self.loadable

    def is_known(self, name: str) -> bool:
        """Whether a model is in memory, or is being loaded or unloaded."""
        return name in self._states

    def loaded(self, name: str) -> Iterable[Model]:
        """The versions of a model that are in memory."""
        state = self._states.get(name)
        return () if state is None else state.models.values()

    def parts(self, config: ModelConfig) -> Iterable[str]:
        """The models that a model is composed of."""
        return self.deps.parts(config)

    def read_demanded(self, name: str) -> StoredModel:
        """A model as it lies on disk. In a thread. Raises ModelNotFound, ValueError, OSError."""
        return self._loader.read(name)

    def absent(self) -> list[ModelView]:
        """The models of the configuration file that are not in memory, and would be loaded for whoever asks."""
        entries = self.deps.entries()
        return [
            listed_view(name, entry.mappings())
            for name, entry in entries.items()
            if name in self.loadable and name not in self.snapshot.models
        ]

    def described(self, name: str) -> ModelView | None:
        """How callers would see a model that is not loaded; None where only its load would tell. In a thread. Raises as
        a load does.
        """
        return self._loader.described(self._loader.read(name), name)

    async def fetch_demanded(self, stored: StoredModel) -> None:
        """Have a model's files on this machine. Raises what a fetch does."""
        await self._loader.fetch(stored)

    async def load_demanded(self, stored: StoredModel, name: str, report: Report) -> Reason | None:
        """Load a model that somebody asks for -> None, or why none of its versions serves."""
        state = self._states.setdefault(name, ModelState(name))
        state.on_demand = True
        failures = await self._load(state, stored, report)
        if state.models:
            return None
        self._drop(state)
        return next(iter(failures.values()), Reason("no version to load", Code.NOT_FOUND))

    async def evict(self, name: str) -> None:
        """Unload a model, and wait until it has answered what it accepted and given back its memory."""
        state = self._states.get(name)
        if state is None:
            return
        async with state.lock:
            self._unload(state)
            await self._until_closed(name)
            self._drop(state)

    def _drop(self, state: ModelState) -> None:
        """Forget a model that is not loaded: of those that are loaded on demand there may be many."""
        if self._states.get(state.name) is state and not state.models:
            del self._states[state.name]
            self._publish()

    # --------------------------------------------------------------------------------------------------------- queries

    def statuses(self, name: str, version: int | None = None) -> tuple[VersionStatus, ...]:
        """Every version that was ever wanted, highest first, or the one that is named. Raises ModelNotFound."""
        state = self._states.get(name)
        known = state.version_statuses() if state else {}
        if version is not None:
            known = {version: known[version]} if version in known else {}
        if not known:
            raise ModelNotFound(name, version, known=state is not None and (state.wanted or bool(state.statuses)))
        return tuple(known[number] for number in sorted(known, reverse=True))

    def all_available(self) -> bool:
        """Whether every wanted model serves, in all versions that were wanted when it was added.

        A model that was unloaded on purpose does not count, nor a newer version that fails beside one that serves, nor
        a model that a reload added and that has never served.
        """
        wanted = [state for state in self._states.values() if state.wanted and not (state.is_new or state.on_demand)]
        return all(state.ready for state in wanted)

    def stored(self, name: str) -> StoredModel | None:
        """What a model's versions were loaded from; None for one that was not."""
        state = self._states.get(name)
        return None if state is None else state.stored

    def configuration(self, name: str) -> Mapping[str, Any]:
        """A wanted model's configuration, as plain data. Raises ModelNotFound."""
        state = self._states.get(name)
        if state is None or state.stored is None or not state.wanted:
            raise ModelNotFound(name)
        return state.stored.config.model_dump(mode="json")

    def configurations(self) -> dict[str, Mapping[str, Any]]:
        """The configuration of every wanted model that could be read, by name."""
        return {name: self.configuration(name) for name, each in self._states.items() if each.wanted and each.stored}

    async def index(self, ready_only: bool = False) -> tuple[IndexEntry, ...]:
        """Every model of the catalog and every one that was loaded, by name."""
        names = await asyncio.to_thread(self._catalog.names)
        states = {name: self._not_loaded(name) for name in names} | self._states
        entries = [entry for name in sorted(states) for entry in states[name].index()]
        return tuple(entry for entry in entries if not ready_only or entry.state == "READY")

    def _not_loaded(self, name: str) -> ModelState:
        """A model of the catalog that is not in memory, as the index tells of it."""
        is_loadable = name in self.loadable
        return ModelState(name, error=(self.on_demand.failure(name) or _LOADABLE) if is_loadable else "")

    def known(self) -> tuple[IndexEntry, ...]:
        """Every model that was ever wanted, by name."""
        return tuple(entry for name in sorted(self._states) for entry in self._states[name].index())

    # --------------------------------------------------------------------------------------- load and unload by callers

    async def load(self, name: str, configuration: str | None = None, files: Mapping[str, bytes] = NOTHING) -> None:
        """Load a model, or load it anew, and its parts that are not loaded yet.

        Raises ModelControlOff, ModelNotStored, LoadRefused, LoadFailed. Cancellation of the caller does not stop it.
        """
        self._check_open(name)
        if files and not self._control.allow_uploads:
            raise LoadRefused(name, "this server takes no files (see model_control.allow_uploads)")
        if files and configuration is None:
            raise LoadRefused(
                name, "failed to poll from model repository: files need a configuration ('config') beside them"
            )
        self._barred.discard(name)
        if configuration is None and not files and self._is_on_demand(name):
            self._note_loadable((*self.loadable, name))
            await self._shielded(self.on_demand.pin(name, "caller", _log_report))
            return
        await self._shielded(self._load_tree(name, configuration, files, {name}))

    async def unload(self, name: str, dependents: bool = False) -> None:
        """Take a model, with `dependents` also its parts, out of the snapshot; accepted requests finish in the
        background. A model that is not loaded is no error. Raises ModelControlOff.
        """
        self._check_open(name)
        if name in self.loadable:
            self._barred.add(name)
            self._note_loadable(self.loadable)
            await self._shielded(self.on_demand.release(name))
            return
        await self._shielded(self._unload_tree(name, dependents, {name}))

    async def control_upstream(self, servers: ServerCatalog, question: LoadModel | UnloadModel) -> bool:
        """Have the server of a model load or unload it, and do so here -> whether there is such a server.

        Raises GatewayError: what the server said instead, or LoadFailed for a model that cannot be served here.
        """
        name = question.name
        if not servers.controls(name) or not await asyncio.to_thread(self._is_of, servers, name):
            return False
        await servers.control(question)
        if isinstance(question, UnloadModel):
            await self._shielded(self._unload_tree(name, False, {name}))
        elif await servers.find(name):
            await self._shielded(self._load_tree(name, None, NOTHING, {name}))
        await self.follow(servers, _log_report)
        return True

    def _is_of(self, servers: ServerCatalog, name: str) -> bool:
        """Whether a model is one of those servers', or nobody's that is known."""
        try:
            return self._catalog.read(name) == servers.read(name)
        except ModelNotFound:
            return name not in self._catalog.names()
        except (ValueError, OSError):
            return False

    def _check_open(self, name: str) -> None:
        if self._control.mode != "explicit":
            raise ModelControlOff
        if self._closed:
            raise ModelUnavailable(name)

    async def _load_tree(
        self, name: str, configuration: str | None, files: Mapping[str, bytes], seen: set[str]
    ) -> None:
        state = self._states.get(name)
        served = state.stored if state is not None and state.wanted else None
        try:
            stored = await asyncio.to_thread(self._loader.read, name, configuration, files, served)
        except ModelNotFound:
            raise ModelNotStored(name) from None
        except (ValueError, OSError) as error:
            raise LoadRefused(name, public_error(error)) from None
        state = self._states.setdefault(name, ModelState(name))
        try:
            if not stored.versions:
                raise LoadRefused(name, "at least one version must be available under the version policy")
            for part in self.deps.parts(stored.config):
                if part not in seen and part not in self.snapshot.models:
                    seen.add(part)
                    await self._load_tree(part, None, NOTHING, seen)
            failures = await self._load(state, stored, _log_report)
        finally:
            if stored.upload is not None and (state.stored is not stored or not state.models):
                stored.upload.cleanup()
        if failures:
            raise LoadFailed(name, {version: why.text for version, why in failures.items() if version is not None})

    async def _unload_tree(self, name: str, dependents: bool, seen: set[str]) -> None:
        state = self._states.get(name)
        if state is None:
            return
        parts = self.deps.parts(state.stored.config) if dependents and state.stored else ()
        async with state.lock:
            self._unload(state)
        for part in set(parts) - seen:
            seen.add(part)
            await self._unload_tree(part, dependents, seen)

    # -------------------------------------------------------------------------------------------- a list of all models

    async def reload(self, models: Sequence[WantedModel]) -> None:
        """Serve these models and no others; returns once those that did not serve before do.

        Labels take effect first, all at once. Then new versions are loaded and take over; models that are neither
        listed nor part of a listed one are unloaded. Raises ModelControlOff, PlatformRefused, LabelRefused or
        LoadRefused, which leave everything as it was, or ReloadFailed.
        """
        if not self._control.model_roots:
            raise ModelControlOff
        if self._closed:
            raise ModelUnavailable("")
        await self._shielded(self._reload(models))

    async def _reload(self, models: Sequence[WantedModel]) -> None:
        async with self._reloading:
            self._check_list(models)
            stored = await asyncio.to_thread(self._read_list, models)
            listed = {each.name: stored[each.name].config for each in models}
            self._catalog.take_over(listed, stored.keys() - listed.keys())
            for name, each in stored.items():
                self._states.setdefault(name, ModelState(name)).labels = each.config.labels
            self._publish()
            new = [name for name in stored if name not in self.snapshot.models]
            for name, state in self._states.items():
                if name not in stored and (state.wanted or state.lock.locked()):
                    self._spawn(self._unload_tree(name, False, {name}))
            tasks = {name: self._spawn(self._load_listed(name, each)) for name, each in stored.items()}
            outcomes = zip(new, await asyncio.gather(*(tasks[name] for name in new)), strict=True)
            failures = {
                (name, version): why
                for name, reasons in outcomes
                if name not in self.snapshot.models
                for version, why in reasons.items()
                if version is not None
            }
        if failures:
            raise ReloadFailed(failures)

    def _check_list(self, models: Sequence[WantedModel]) -> None:
        """Source: the order of TensorFlow Serving's checks; labels are compared with what serves before anything
        changes.
        """
        wanted = {name for name, state in self._states.items() if state.wanted}
        for each in models:
            if each.platform != PLATFORM and each.name in wanted:
                raise PlatformRefused(each.name, each.platform, PLATFORM)
        for each in models:
            for label, version in each.labels.items():
                if version not in self.snapshot.models.get(each.name, NOTHING):
                    raise LabelRefused(each.name, label, version)
        for each in models:
            if each.platform != PLATFORM:
                raise PlatformRefused(each.name, each.platform)

    def _read_list(self, models: Sequence[WantedModel]) -> dict[str, StoredModel]:
        """The listed models and their parts, as they lie on disk. Raises LoadRefused."""
        found: dict[str, StoredModel] = {}
        for each in models:
            try:
                found[each.name] = stored = self._loader.stored(self._catalog.configure(each))
            except (ValueError, OSError) as error:
                raise LoadRefused(each.name, public_error(error)) from None
            if not stored.versions:
                raise LoadRefused(each.name, f"no versions of it found under base path {each.base_path}")
        due = deque(found.values())
        while due:
            for part in self.deps.parts(due.popleft().config):
                if part not in found:
                    try:
                        found[part] = self._loader.read(part)
                    except (ModelNotFound, ValueError, OSError) as error:
                        raise LoadRefused(part, public_error(error)) from None
                    due.append(found[part])
        return found

    async def _load_listed(self, name: str, stored: StoredModel) -> Mapping[int | None, Reason]:
        return await self._load(self._states[name], stored, _log_report, anew=False, relabel=False)

    # ------------------------------------------------------------------------------------------------ another catalog

    async def catalog_diff(self, catalog: Catalog) -> CatalogDiff:
        """How the models of this catalog differ from those served. Raises OSError if it cannot be read."""
        own = self._catalog.own
        if self._catalog.has_list and not await asyncio.to_thread(differs, catalog, own):
            return CatalogDiff(keeps_list=True)
        names = self._wanted_of(await asyncio.to_thread(catalog.names), await asyncio.to_thread(own.names))
        return await asyncio.to_thread(
            catalog_diff, catalog, own, names, dict(self._states), self._loader, self.deps.parts
        )

    def _wanted_of(self, names: Sequence[str], known: Collection[str]) -> list[str]:
        """The models of another catalog that are to serve; `known` are those of the catalog in force. In mode explicit,
        known models that callers have unloaded, or never loaded, are left out.
        """
        names = [name for name in names if not self._is_on_demand(name) or name in self._states]
        if self._control.mode != "explicit":
            return names
        chosen = set(self._control.chosen(tuple(names))).difference(known)
        wanted = {name for name, state in self._states.items() if state.wanted}
        return [name for name in names if name in wanted or name in chosen]

    async def load_changed(self, catalog: Catalog, diff: CatalogDiff, names: Collection[str], report: Report) -> None:
        """Load these models of a diff, one after the other, beside all that serve.

        The catalog is in force from now on; it has to know every model that serves.
        """
        self._catalog.exchange(catalog, keep_list=diff.keeps_list)
        self._note_loadable(await asyncio.to_thread(catalog.names))
        for name in names:
            state = self._states.setdefault(name, ModelState(name))
            state.is_new = state.is_new or not state.wanted
            if name in diff.stored:
                await self._shielded(self._load(state, diff.stored[name], report, anew=False))
            else:
                await self._refuse(state, diff.errors[name], report)

    async def unload_removed(self, catalog: Catalog, diff: CatalogDiff) -> None:
        """Unload the models that the catalog does not have. Accepted requests finish in the background."""
        names = set(await asyncio.to_thread(catalog.names))
        self._catalog.exchange(catalog, keep_list=diff.keeps_list)
        self._note_loadable(names)
        if not diff.keeps_list:
            for name, state in self._states.items():
                if state.wanted and name not in names:
                    self._spawn(self._unload_tree(name, False, {name}))

    # ---------------------------------------------------------------------------------------------- start, poll, close

    async def load_all(self, report: Report) -> None:
        """Load the models wanted at start, one after the other; a failure is reported and does not stop the others."""
        names = deque(self._states)
        while names:
            state = self._states.setdefault(name := names.popleft(), ModelState(name, wanted=True))
            await self._shielded(self._reconcile(state, report))
            if state.starting:  # nothing was loaded that could fail
                state.starting = False
                self._publish()
            parts = self.deps.parts(state.stored.config) if state.stored else ()
            names.extend(part for part in parts if part not in self._states and not self._is_on_demand(part))
        for name in self._pinned:
            try:
                await self.on_demand.pin(name, report=report)
            except LoadFailed as error:
                report(LoadReport(name, None, error=error.reasons[1]))

    async def poll(self, report: Report) -> None:
        """Look at the disk once: load models that are new or have changed, unload those that were removed.

        Versions that have not changed stay loaded. Raises OSError if the disk cannot be read.
        """
        await asyncio.gather(*await self._poll_once(report))

    async def keep_polling(self, report: Report) -> None:
        """Poll for ever, every poll_seconds; a model that loads slowly does not hold up others."""
        while True:
            await asyncio.sleep(self._control.poll_seconds)
            try:
                await self._poll_once(report)
            except OSError as error:
                log.warning("the model repository cannot be read: %s", error)

    async def keep_following(self, servers: ServerCatalog, report: Report) -> None:
        """Follow for ever which models other servers have."""
        while True:
            await asyncio.sleep(servers.refresh_seconds)
            await self.follow(servers, report)

    async def follow(self, servers: ServerCatalog, report: Report) -> list[asyncio.Task[None]]:
        """Begin to load the models that other servers have got, and to unload those that they have lost. What has never
        served does not make this server unready: it may be nothing that callers can ask for.
        """
        before = servers.names()
        await servers.refresh()
        if self._control.mode == "explicit" and EVERYTHING not in self._control.load:
            return []
        came = set(servers.names()).difference(before).intersection(self._states)
        back = [state for name in came if not (state := self._states[name]).wanted and not state.lock.locked()]
        work = [self.admit(name, report) for name in servers.names() if name not in self._states]
        work += [self._spawn(self._reconcile(state, report)) for state in back]
        left = set(before).difference(servers.names())
        if left:
            known = await asyncio.to_thread(self._catalog.names)
            gone = left.difference(known).intersection(self._states)
            work += [self._spawn(self._unload_tree(name, False, {name})) for name in gone]
        return work

    def admit(self, name: str, report: Report) -> asyncio.Task[None]:
        """Begin to load a model of the catalog that is not known yet, or find out how that goes."""
        state = self._states.get(name)
        if state is not None:
            return self._spawn(_until_free(state))
        state = self._states[name] = ModelState(name)
        state.is_new = True
        return self._spawn(self._reconcile(state, report, anew=False))

    async def keep_retrying(self, report: Report) -> None:
        """Retry for ever models that failed because another server was not available; only success is reported."""

        def report_success(outcome: LoadReport) -> None:
            if not outcome.error:
                report(outcome)

        while True:
            await asyncio.sleep(_TRY_AGAIN_S)
            late = [state for state in self._states.values() if state.awaits_upstream and not state.lock.locked()]
            await asyncio.gather(*(self._shielded(self._reconcile(state, report_success)) for state in late))

    async def _poll_once(self, report: Report) -> list[asyncio.Task[None]]:
        found = await asyncio.to_thread(self._loader.fingerprints, self._followed)
        if self._residency.on_demand:
            self._note_loadable(await asyncio.to_thread(self._catalog.followed))
        changes: list[Coroutine[Any, Any, None]] = []
        for name, fingerprint in found.items():
            state = self._states.setdefault(name, ModelState(name))
            if state.fingerprint != fingerprint:
                state.fingerprint = fingerprint
                changes.append(self._reconcile(state, report, anew=False))
        for name, state in self._states.items():
            if state.wanted and name not in found and not state.lock.locked():
                changes.append(self._unload_tree(name, False, {name}))
        return [self._spawn(change) for change in changes]

    def _followed(self) -> list[str]:
        """The models whose files are looked at: not those that nobody has asked for. In a thread."""
        return [name for name in self._catalog.followed() if not self._is_on_demand(name) or name in self._states]

    async def close(self) -> None:
        """Unload everything, after accepted requests are answered. Running loads are cancelled."""
        self._closed = True
        for task in tuple(self._work):
            task.cancel()
        await asyncio.gather(*self._work, return_exceptions=True)
        await self.on_demand.close()
        await self._unload_all()
        self._loader.close()

    async def _reconcile(self, state: ModelState, report: Report, *, anew: bool = True) -> None:
        """Load a model as the catalog has it now, and report failures. If a caller's list comes in between, it wins."""
        listing = self._catalog.listing
        try:
            stored = await asyncio.to_thread(self._loader.read, state.name)
        except Exception as error:
            log.debug("model %s cannot be read", state.name, exc_info=error)
            missing = isinstance(error, ModelNotFound)
            state.unreachable = isinstance(error, ConnectionError)
            await self._refuse(state, f"no such model: {state.name}" if missing else error_line(error), report)
            return
        state.unreachable = False
        await self._load(state, stored, report, anew=anew, current=lambda: self._catalog.listing is listing)

    async def _refuse(self, state: ModelState, text: str, report: Report) -> None:
        """Report a model that cannot be read; versions that serve stay loaded."""
        state.error = without_folders(text)
        state.wanted = True
        state.fingerprint = await asyncio.to_thread(self._catalog.fingerprint, state.name) or None
        self._publish()
        report(LoadReport(state.name, None, error=text))

    # ----------------------------------------------------------------------------------------------------------- tasks

    def _spawn(self, work: Coroutine[Any, Any, Result]) -> asyncio.Task[Result]:
        """Start a task that runs to its end whether it is awaited or not."""
        task = asyncio.ensure_future(work)
        self._work.add(task)
        task.add_done_callback(self._done)
        return task

    async def _shielded(self, work: Coroutine[Any, Any, Any]) -> None:
        """Run to the end even if the caller is cancelled."""
        await asyncio.shield(self._spawn(work))

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._work.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None and not isinstance(error, GatewayError):
            log.error("model control failed unexpectedly", exc_info=error)


async def _until_free(state: ModelState) -> None:
    async with state.lock:
        pass


def _log_report(report: LoadReport) -> None:
    """Log a failure that a caller is answered with, for the operator."""
    if report.error:
        log.info("model %s version %s failed to load: %s", report.name, report.version, report.error)

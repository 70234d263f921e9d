"""Which models are served, and by whose word: the configuration's, callers', or the disk's.

One model is loaded or unloaded by one call at a time, different models side by side.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Collection, Coroutine, Mapping, Sequence
from typing import Any, Final, TypeVar

from tensorgate.gateway.config import ModelControl
from tensorgate.gateway.contract.errors import (
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
from tensorgate.gateway.contract.questions import IndexEntry, VersionStatus, WantedModel
from tensorgate.gateway.contract.tensor import NOTHING
from tensorgate.gateway.models.catalog import Catalog
from tensorgate.gateway.models.changes import CatalogDiff, catalog_diff, differs
from tensorgate.gateway.models.listed_catalog import PLATFORM, ListedCatalog
from tensorgate.gateway.models.loaded_models import LoadedModels
from tensorgate.gateway.models.loader import Loader, LoadReport, Report, RepositoryDeps, told, without_folders
from tensorgate.gateway.models.model_state import ModelState, Stored

log = logging.getLogger(__name__)

_TRY_AGAIN_S: Final = 1.0

Result = TypeVar("Result")


class Repository(LoadedModels):
    """Loads and unloads models of a catalog, as model control allows, and remembers what became of each."""

    def __init__(self, catalog: Catalog, hooks: RepositoryDeps, control: ModelControl | None = None) -> None:
        self._control = control or ModelControl()
        roots = [root.path for root in self._control.model_roots]
        self._catalog = ListedCatalog(catalog, hooks.versioned, hooks.validate, roots)
        loader = Loader(self._catalog, hooks, trusted=self._control.trusted)
        super().__init__(loader, hooks, self._control.chosen(catalog.names()))
        self._work: set[asyncio.Task[Any]] = set()
        self._reloading = asyncio.Lock()
        self._closed = False

    # -------------------------------------------------------------------------------------------------- what there is

    def statuses(self, name: str, version: int | None = None) -> tuple[VersionStatus, ...]:
        """Every version that was ever wanted, highest first, or the one that is named. Raises ModelNotFound."""
        record = self._records.get(name)
        known = record.told() if record else {}
        if version is not None:
            known = {version: known[version]} if version in known else {}
        if not known:
            raise ModelNotFound(name, version, known=record is not None and (record.wanted or bool(record.statuses)))
        return tuple(known[number] for number in sorted(known, reverse=True))

    def all_available(self) -> bool:
        """Whether every model that is wanted serves, in all versions that were wanted when it came.

        What is unloaded on purpose does not count, nor does a newer version that fails beside one that serves, nor a
        model that a reload brought and that has never served.
        """
        return all(record.ready for record in self._records.values() if record.wanted and not record.late)

    def configuration(self, name: str) -> Mapping[str, Any]:
        """How a wanted model is configured, as plain data. Raises ModelNotFound."""
        record = self._records.get(name)
        if record is None or record.stored is None or not record.wanted:
            raise ModelNotFound(name)
        return record.stored.config.model_dump(mode="json")

    def configurations(self) -> dict[str, Mapping[str, Any]]:
        """Of every wanted model that could be read, by name."""
        return {name: self.configuration(name) for name, each in self._records.items() if each.wanted and each.stored}

    async def index(self, ready_only: bool = False) -> tuple[IndexEntry, ...]:
        """Every model of the catalog and every one that was loaded, by name."""
        names = await asyncio.to_thread(self._catalog.names)
        records = {name: ModelState(name) for name in names} | self._records
        entries = [entry for name in sorted(records) for entry in records[name].index()]
        return tuple(entry for entry in entries if not ready_only or entry.state == "READY")

    def known(self) -> tuple[IndexEntry, ...]:
        """Every model that was ever wanted, by name."""
        return tuple(entry for name in sorted(self._records) for entry in self._records[name].index())

    # ------------------------------------------------------------------------------------------------- callers' wishes

    async def load(self, name: str, configuration: str | None = None, files: Mapping[str, bytes] = NOTHING) -> None:
        """Load a model, or load it anew, and what it is composed of if that is not loaded yet.

        Raises ModelControlOff, ModelNotStored, LoadRefused, LoadFailed. A caller who leaves does not stop it.
        """
        self._check_open(name)
        if files and not self._control.allow_uploads:
            raise LoadRefused(name, "this server takes no files (see model_control.allow_uploads)")
        if files and configuration is None:
            raise LoadRefused(name, "files need a configuration ('config') beside them")
        await self._to_the_end(self._load_tree(name, configuration, files, {name}))

    async def unload(self, name: str, dependents: bool = False) -> None:
        """Take a model off the table, with `dependents` also what it is composed of; the rest goes on in the
        background. A model that is not loaded is no error. Raises ModelControlOff.
        """
        self._check_open(name)
        await self._to_the_end(self._unload_tree(name, dependents, {name}))

    def _check_open(self, name: str) -> None:
        if self._control.mode != "explicit":
            raise ModelControlOff
        if self._closed:
            raise ModelUnavailable(name)

    async def _load_tree(
        self, name: str, configuration: str | None, files: Mapping[str, bytes], seen: set[str]
    ) -> None:
        try:
            stored = await asyncio.to_thread(self._loader.read, name, configuration, files)
        except ModelNotFound:
            raise ModelNotStored(name) from None
        except (ValueError, OSError) as error:
            raise LoadRefused(name, without_folders(told(error))) from None
        record = self._records.setdefault(name, ModelState(name))
        try:
            if not stored.versions:
                raise LoadRefused(name, "at least one version must be available under the version policy")
            for part in self._hooks.parts(stored.config):
                if part not in seen and part not in self.snapshot.models:
                    seen.add(part)
                    await self._load_tree(part, None, NOTHING, seen)
            failures = await self._bring(record, stored, _log_report)
        finally:
            if stored.upload is not None and record.stored is not stored:
                stored.upload.cleanup()
        if failures:
            raise LoadFailed(name, {version: why.text for version, why in failures.items() if version is not None})

    async def _unload_tree(self, name: str, dependents: bool, seen: set[str]) -> None:
        record = self._records.get(name)
        if record is None:
            return
        parts = self._hooks.parts(record.stored.config) if dependents and record.stored else ()
        async with record.lock:
            self._dismiss(record)
        for part in set(parts) - seen:
            seen.add(part)
            await self._unload_tree(part, dependents, seen)

    # -------------------------------------------------------------------------------------------- a list of all models

    async def reload(self, models: Sequence[WantedModel]) -> None:
        """Serve these models and no others; returns once those of them serve that did not.

        Labels take effect first, all at once. Then new versions are loaded, and take over from those that are not
        wanted any more; models that are not listed, nor part of one, are unloaded. Raises ModelControlOff,
        PlatformRefused, LabelRefused or LoadRefused, which leave everything as it was, or ReloadFailed.
        """
        if not self._control.model_roots:
            raise ModelControlOff
        if self._closed:
            raise ModelUnavailable("")
        await self._to_the_end(self._reload(models))

    async def _reload(self, models: Sequence[WantedModel]) -> None:
        async with self._reloading:
            self._check_list(models)
            stored = await asyncio.to_thread(self._read_list, models)
            listed = {each.name: stored[each.name].config for each in models}
            self._catalog.take_over(listed, stored.keys() - listed.keys())
            for name, each in stored.items():
                self._records.setdefault(name, ModelState(name)).labels = each.config.labels
            self._publish()
            new = [name for name in stored if name not in self.snapshot.models]
            for name, record in self._records.items():
                if name not in stored and (record.wanted or record.lock.locked()):
                    self._begin(self._unload_tree(name, False, {name}))
            tasks = {name: self._begin(self._bring_listed(name, each)) for name, each in stored.items()}
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
        wanted = {name for name, record in self._records.items() if record.wanted}
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

    def _read_list(self, models: Sequence[WantedModel]) -> dict[str, Stored]:
        """What is listed and what that is composed of, as it lies on disk. Raises LoadRefused."""
        found: dict[str, Stored] = {}
        for each in models:
            try:
                found[each.name] = stored = self._loader.stored(self._catalog.configure(each))
            except (ValueError, OSError) as error:
                raise LoadRefused(each.name, without_folders(told(error))) from None
            if not stored.versions:
                raise LoadRefused(each.name, f"no versions of it found under base path {each.base_path}")
        due = deque(found.values())
        while due:
            for part in self._hooks.parts(due.popleft().config):
                if part not in found:
                    try:
                        found[part] = self._loader.read(part)
                    except (ModelNotFound, ValueError, OSError) as error:
                        raise LoadRefused(part, without_folders(told(error))) from None
                    due.append(found[part])
        return found

    async def _bring_listed(self, name: str, stored: Stored) -> Mapping[int | None, Reason]:
        return await self._bring(self._records[name], stored, _log_report, anew=False, relabel=False)

    # ------------------------------------------------------------------------------------------------ another catalog

    async def catalog_diff(self, catalog: Catalog) -> CatalogDiff:
        """What would be different if this were the catalog. Raises OSError if it cannot be read."""
        own = self._catalog.own
        if self._catalog.has_list and not await asyncio.to_thread(differs, catalog, own):
            return CatalogDiff(keeps_list=True)
        names = self._wanted_of(await asyncio.to_thread(catalog.names), await asyncio.to_thread(own.names))
        return await asyncio.to_thread(
            catalog_diff, catalog, own, names, dict(self._records), self._loader, self._hooks.parts
        )

    def _wanted_of(self, names: Sequence[str], known: Collection[str]) -> list[str]:
        """Of a catalog's models, those that are to serve; `known` are those of our own. What callers have unloaded of
        these, or never loaded, is not.
        """
        if self._control.mode != "explicit":
            return list(names)
        chosen = set(self._control.chosen(tuple(names))).difference(known)
        wanted = {name for name, record in self._records.items() if record.wanted}
        return [name for name in names if name in wanted or name in chosen]

    async def bring(self, catalog: Catalog, found: CatalogDiff, names: Collection[str], report: Report) -> None:
        """Load these models as the study found them, one after the other, beside all that serve. From now on the
        catalog counts; it has to know of every model that serves.
        """
        self._catalog.exchange(catalog, keep_list=found.keeps_list)
        for name in names:
            record = self._records.setdefault(name, ModelState(name))
            record.late = record.late or not record.wanted
            if name in found.stored:
                await self._to_the_end(self._bring_changed(record, found.stored[name], report))
            else:
                await self._refuse(record, found.errors[name], report)

    async def _bring_changed(self, record: ModelState, stored: Stored, report: Report) -> None:
        await self._bring(record, stored, report, anew=False)

    async def part(self, catalog: Catalog, found: CatalogDiff) -> None:
        """The models that the catalog does not have leave, once they have answered what they accepted; nobody waits for
        that here.
        """
        names = set(await asyncio.to_thread(catalog.names))
        self._catalog.exchange(catalog, keep_list=found.keeps_list)
        if not found.keeps_list:
            for name, record in self._records.items():
                if record.wanted and name not in names:
                    self._begin(self._unload_tree(name, False, {name}))

    # ---------------------------------------------------------------------------------------------- start, poll, close

    async def load_all(self, report: Report) -> None:
        """Load what is wanted at start, one model after the other; a failure is reported and stops nobody else."""
        names = deque(self._records)
        while names:
            record = self._records.setdefault(name := names.popleft(), ModelState(name, wanted=True))
            await self._to_the_end(self._settle(record, report))
            parts = self._hooks.parts(record.stored.config) if record.stored else ()
            names.extend(part for part in parts if part not in self._records)

    async def poll(self, report: Report) -> None:
        """Look at the disk once and follow it: load what is new or has changed, unload what has gone.

        A version that has not changed goes on as it is. Raises OSError if the disk cannot be read.
        """
        await asyncio.gather(*await self._follow(report))

    async def keep_polling(self, report: Report) -> None:
        """Poll for ever, at the configuration's pace; a model that loads slowly holds up no other."""
        while True:
            await asyncio.sleep(self._control.poll_seconds)
            try:
                await self._follow(report)
            except OSError as error:
                log.warning("the model repository cannot be read: %s", error)

    async def keep_trying(self, report: Report) -> None:
        """Load anew, for ever, what failed only because somebody else was not there; told once they are."""

        def told_once(found: LoadReport) -> None:
            if not found.error:
                report(found)

        while True:
            await asyncio.sleep(_TRY_AGAIN_S)
            late = [record for record in self._records.values() if record.awaits_others and not record.lock.locked()]
            await asyncio.gather(*(self._to_the_end(self._settle(record, told_once)) for record in late))

    async def _follow(self, report: Report) -> list[asyncio.Task[None]]:
        found = await asyncio.to_thread(self._loader.look, self._catalog.followed)
        changes: list[Coroutine[Any, Any, None]] = []
        for name, seen in found.items():
            record = self._records.setdefault(name, ModelState(name))
            if record.seen != seen:
                record.seen = seen
                changes.append(self._settle(record, report, anew=False))
        for name, record in self._records.items():
            if record.wanted and name not in found and not record.lock.locked():
                changes.append(self._unload_tree(name, False, {name}))
        return [self._begin(change) for change in changes]

    async def close(self) -> None:
        """Unload everything, once what was accepted is answered. What is being loaded is not waited for."""
        self._closed = True
        for task in tuple(self._work):
            task.cancel()
        await asyncio.gather(*self._work, return_exceptions=True)
        await self._leave_all()
        self._loader.close()

    async def _settle(self, record: ModelState, report: Report, *, anew: bool = True) -> None:
        """Bring a model to what the catalog says of it now; reports what went wrong. Where a caller's list comes in
        between, that is what counts.
        """
        listing = self._catalog.listing
        try:
            stored = await asyncio.to_thread(self._loader.read, record.name)
        except Exception as error:
            log.debug("model %s cannot be read", record.name, exc_info=error)
            missing = isinstance(error, ModelNotFound)
            await self._refuse(record, f"no such model: {record.name}" if missing else told(error), report)
            return
        await self._bring(record, stored, report, anew=anew, current=lambda: self._catalog.listing is listing)

    async def _refuse(self, record: ModelState, text: str, report: Report) -> None:
        """It cannot be read; what serves goes on."""
        record.error = without_folders(text)
        record.wanted = True
        record.seen = await asyncio.to_thread(self._catalog.fingerprint, record.name) or None
        self._publish()
        report(LoadReport(record.name, None, error=text))

    # ----------------------------------------------------------------------------------------------------------- tasks

    def _begin(self, work: Coroutine[Any, Any, Result]) -> asyncio.Task[Result]:
        """Start what is brought to its end whether anybody waits for it or not."""
        task = asyncio.ensure_future(work)
        self._work.add(task)
        task.add_done_callback(self._done)
        return task

    async def _to_the_end(self, work: Coroutine[Any, Any, None]) -> None:
        """Whoever asked for it may leave."""
        await asyncio.shield(self._begin(work))

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._work.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None and not isinstance(error, GatewayError):
            log.error("model control failed unexpectedly", exc_info=error)


def _log_report(report: LoadReport) -> None:
    """Where a caller learns what went wrong, the operator's log does too."""
    if report.error:
        log.info("model %s version %s failed to load: %s", report.name, report.version, report.error)

"""Which models are loaded, in which versions, in what state; loading and unloading them.

Readers get a snapshot: an immutable table that is replaced whole when anything changes, so that a request sees one
state of the world. New versions load beside those that serve, in threads; then the snapshot changes, and what it no
longer names finishes what it had accepted and gives its memory back. One model is loaded or unloaded by one call at a
time, different models side by side.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections import deque
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, TypeVar

from gateway.canonical import NOTHING
from gateway.catalog import Catalog
from gateway.config import ModelControl
from gateway.errors import (
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
from gateway.loader import Hooks, Loader, LoadReport, Report, told
from gateway.model import Model
from gateway.model_list import PLATFORM, ListedCatalog
from gateway.questions import IndexEntry, VersionStatus, WantedModel
from gateway.record import AVAILABLE, END, LOADING, START, UNLOADING, ModelRecord, Stored
from gateway.uploads import Upload

log = logging.getLogger(__name__)

Result = TypeVar("Result")

_FOLDERS: Final = re.compile(r"/(?:[^\s/:'\"]+/)+")


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Everything that is ready: versions by model, ascending.

    `labels` has the version labels of every model that is wanted, also of those that failed to load; `unloaded` names
    those that served once and are not wanted any more.
    """

    models: Mapping[str, Mapping[int, Model]] = NOTHING
    labels: Mapping[str, Mapping[str, int]] = NOTHING
    unloaded: frozenset[str] = frozenset()


class Repository:
    """Loads and unloads models of a catalog, as model control allows, and remembers what became of each."""

    def __init__(self, catalog: Catalog, hooks: Hooks, control: ModelControl | None = None) -> None:
        self._hooks = hooks
        self._control = control or ModelControl()
        roots = [root.path for root in self._control.model_roots]
        self._catalog = ListedCatalog(catalog, hooks.versioned, hooks.validate, roots)
        self._loader = Loader(self._catalog, hooks)
        self._records = {name: ModelRecord(name, wanted=True) for name in self._control.chosen(catalog.names())}
        self._work: set[asyncio.Task[Any]] = set()
        self._leaving: dict[asyncio.Task[None], Iterable[Model]] = {}
        self._reloading = asyncio.Lock()
        self._closed = False
        self.snapshot = Snapshot()
        self._publish()

    # -------------------------------------------------------------------------------------------------- what there is

    def statuses(self, name: str, version: int | None = None) -> tuple[VersionStatus, ...]:
        """Every version that was ever wanted, highest first, or the one that is named. Raises ModelNotFound."""
        record = self._records.get(name)
        known = record.statuses if record else {}
        if version is not None:
            known = {version: known[version]} if version in known else {}
        if not known:
            raise ModelNotFound(name, version, known=record is not None and (record.wanted or bool(record.statuses)))
        return tuple(known[number] for number in sorted(known, reverse=True))

    def all_available(self) -> bool:
        """Whether every model that is wanted serves, in all versions that were wanted when it came.

        What is unloaded on purpose does not count, nor does a newer version that fails beside one that serves.
        """
        return all(record.ready for record in self._records.values() if record.wanted)

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
        records = {name: ModelRecord(name) for name in names} | self._records
        entries = [entry for name in sorted(records) for entry in records[name].index()]
        return tuple(entry for entry in entries if not ready_only or entry.state == "READY")

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
            raise LoadRefused(name, _without_folders(told(error))) from None
        record = self._records.setdefault(name, ModelRecord(name))
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
            raise LoadFailed(name, {v: _without_folders(why.text) for v, why in failures.items() if v is not None})

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
        self._check_open("")
        await self._to_the_end(self._reload(models))

    async def _reload(self, models: Sequence[WantedModel]) -> None:
        async with self._reloading:
            self._check_list(models)
            stored = await asyncio.to_thread(self._read_list, models)
            self._catalog.take_over({each.name: stored[each.name].config for each in models})
            for name, each in stored.items():
                self._records.setdefault(name, ModelRecord(name)).labels = each.config.labels
            self._publish()
            new = [name for name in stored if name not in self.snapshot.models]
            for name, record in self._records.items():
                if name not in stored and (record.wanted or record.lock.locked()):
                    self._begin(self._unload_tree(name, False, {name}))
            tasks = {name: self._begin(self._bring_listed(name, each)) for name, each in stored.items()}
            outcomes = zip(new, await asyncio.gather(*(tasks[name] for name in new)), strict=True)
            failures = {
                (name, version): Reason(_without_folders(why.text), why.code)
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
                raise LoadRefused(each.name, _without_folders(told(error))) from None
            if not stored.versions:
                raise LoadRefused(each.name, f"no versions of it found under base path {each.base_path}")
        due = deque(found.values())
        while due:
            for part in self._hooks.parts(due.popleft().config):
                if part not in found:
                    try:
                        found[part] = self._loader.read(part)
                    except (ModelNotFound, ValueError, OSError) as error:
                        raise LoadRefused(part, _without_folders(told(error))) from None
                    due.append(found[part])
        return found

    async def _bring_listed(self, name: str, stored: Stored) -> Mapping[int | None, Reason]:
        return await self._bring(self._records[name], stored, _log_report, anew=False, relabel=False)

    # ---------------------------------------------------------------------------------------------- start, poll, close

    async def load_all(self, report: Report) -> None:
        """Load what is wanted at start, one model after the other; a failure is reported and stops nobody else."""
        names = deque(self._records)
        while names:
            record = self._records.setdefault(name := names.popleft(), ModelRecord(name, wanted=True))
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

    async def _follow(self, report: Report) -> list[asyncio.Task[None]]:
        found = await asyncio.to_thread(self._loader.look)
        changes: list[Coroutine[Any, Any, None]] = []
        for name, seen in found.items():
            record = self._records.setdefault(name, ModelRecord(name))
            if record.seen != seen:
                record.seen = seen
                changes.append(self._settle(record, report, anew=False))
        for name, record in self._records.items():
            if record.wanted and name not in found and not record.lock.locked():
                changes.append(self._unload_tree(name, False, {name}))
        return [self._begin(change) for change in changes]

    def give_up(self) -> None:
        """Tell everybody who still waits for a model that there will be no answer."""
        for models in [self.serving(), *self._leaving.values()]:
            for model in models:
                model.give_up()

    async def close(self) -> None:
        """Unload everything, once what was accepted is answered. What is being loaded is not waited for."""
        self._closed = True
        for task in tuple(self._work):
            task.cancel()
        await asyncio.gather(*self._work, return_exceptions=True)
        for record in self._records.values():
            self._retire(record, record.models, record.stored.upload if record.stored else None)
        await asyncio.gather(*self._leaving)
        self._loader.close()

    def serving(self) -> list[Model]:
        """Every version that is ready."""
        return [model for versions in self.snapshot.models.values() for model in versions.values()]

    async def _settle(self, record: ModelRecord, report: Report, *, anew: bool = True) -> None:
        """Bring a model to what the catalog says of it now; reports what went wrong."""
        try:
            stored = await asyncio.to_thread(self._loader.read, record.name)
        except Exception as error:
            log.debug("model %s cannot be read", record.name, exc_info=error)
            missing = isinstance(error, ModelNotFound)
            text = f"no such model: {record.name}" if missing else told(error)
            record.error = text
            record.wanted = True
            record.seen = None if missing else await asyncio.to_thread(self._catalog.fingerprint, record.name)
            self._publish()
            report(LoadReport(record.name, None, error=text))
            return
        await self._bring(record, stored, report, anew=anew)

    # ------------------------------------------------------------------------------------------------ loading one model

    async def _bring(
        self, record: ModelRecord, stored: Stored, report: Report, *, anew: bool = True, relabel: bool = True
    ) -> Mapping[int | None, Reason]:
        """Load a model's versions and let them take over -> why some could not be loaded, by version; by None, why
        there are none.

        A version that fails leaves the one that served in its place, and none is given up before all that are wanted
        are there. Under another configuration either all versions take over or none. The configuration's labels take
        effect with its versions, unless they have done so already.
        """
        async with record.lock:
            before, old = record.models, record.stored
            alike = stored.same_but_for_versions(old)
            kept = {} if anew or not alike or old is None else _unchanged(before, old, stored)
            if relabel and not before:
                record.labels = stored.config.labels
            made, failures = await self._make_all(record, stored, kept, report)
            if failures and before and not alike:
                self._discard(record, made)
            else:
                record.stored = stored
                record.labels = stored.config.labels if relabel else record.labels
                record.models = _in_service((dict(before) if failures else kept) | made, stored)
                record.failed = bool(failures) and (record.failed or not before)
                gone = {version: model for version, model in before.items() if record.models.get(version) is not model}
                self._retire(record, gone, old.upload if old else None)
            record.wanted = True
            record.seen = stored.fingerprint
            record.error = failures[None].text if None in failures else ""
            self._publish()
            for version in made.keys() & record.models.keys():
                record.note(version, AVAILABLE)
            return failures

    async def _make_all(
        self, record: ModelRecord, stored: Stored, kept: Mapping[int, Model], report: Report
    ) -> tuple[dict[int, Model], dict[int | None, Reason]]:
        """The versions that are not kept, made one after the other; the first ones of a model serve at once."""
        made: dict[int, Model] = {}
        failures: dict[int | None, Reason] = {}
        due = [version for version in stored.versions if version not in kept]
        fresh = [version for version in due if version not in record.models]
        for version in fresh:
            record.note(version, START)
        first = not record.models
        if first:
            record.stored = stored
        if not stored.versions:
            failures[None] = Reason(f"no version to load in {stored.place}", Code.NOT_FOUND)
            report(LoadReport(record.name, None, error=failures[None].text))
        for version in due:
            if version in fresh:
                record.note(version, LOADING)
            outcome = await self._loader.make(record.name, version, stored, report)
            if isinstance(outcome, Model):
                made[version] = outcome
                if first:
                    record.wanted, record.models = True, _in_service(made, stored)
                    self._publish()
                    record.note(version, AVAILABLE)
            else:
                failures[version] = outcome
                if version in fresh:
                    record.note(version, END, outcome)
        return made, failures

    # ---------------------------------------------------------------------------------------------------- taking leave

    def _dismiss(self, record: ModelRecord) -> None:
        """A model is not wanted any more: off the table at once."""
        gone, record.models = record.models, {}
        record.wanted = record.failed = False
        record.error = ""
        record.seen = None
        self._publish()
        self._retire(record, gone, record.stored.upload if record.stored else None)

    def _discard(self, record: ModelRecord, made: Mapping[int, Model]) -> None:
        """Versions that never served, because others of the same load failed."""
        for version in made.keys() - record.models.keys():
            record.note(version, END, Reason("another version of the same load failed", Code.ABORTED))
        self._leave(record, made, {}, None)

    def _retire(self, record: ModelRecord, gone: Mapping[int, Model], upload: Upload | None) -> None:
        """Versions that served; in what state they are is told unless others have taken their place."""
        ending = {
            version: record.note(version, UNLOADING)
            for version, model in gone.items()
            if record.models.get(version, model) is model
        }
        self._leave(record, gone, ending, upload)

    def _leave(
        self, record: ModelRecord, gone: Mapping[int, Model], ending: Mapping[int, VersionStatus], upload: Upload | None
    ) -> None:
        if gone or upload:
            models = tuple(gone.values())
            task = asyncio.ensure_future(self._close(record, models, ending, upload))
            self._leaving[task] = models
            task.add_done_callback(self._leaving.pop)

    async def _close(
        self, record: ModelRecord, models: Iterable[Model], ending: Mapping[int, VersionStatus], upload: Upload | None
    ) -> None:
        """Finish what was accepted, and give back what was held."""
        await asyncio.gather(*(model.close() for model in models))
        for version, status in ending.items():
            if record.statuses.get(version) is status:  # else it has come back meanwhile
                record.note(version, END)
                self._hooks.forget(record.name, version)
        if upload is not None:
            await asyncio.to_thread(upload.cleanup)

    # ---------------------------------------------------------------------------------------------------------- tables

    def _publish(self) -> None:
        records = self._records
        self.snapshot = Snapshot(
            {name: record.models for name, record in records.items() if record.models},
            {name: record.labels for name, record in records.items() if record.wanted},
            frozenset(name for name, record in records.items() if not record.wanted and record.statuses),
        )

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


def _in_service(models: Mapping[int, Model], stored: Stored) -> dict[int, Model]:
    """Versions in ascending order, each of which tells of all, and of the policy by which they are chosen."""
    versions = tuple(sorted(models))
    policy = {"versions": stored.config.versions.plain(), "labels": stored.config.labels}
    for model in models.values():
        said = model.view.configuration
        if model.view.versions != versions or any(said.get(key) != value for key, value in policy.items()):
            model.view = replace(model.view, versions=versions, configuration={**said, **policy})
    return {version: models[version] for version in versions}


def _unchanged(before: Mapping[int, Model], old: Stored, stored: Stored) -> dict[int, Model]:
    """The versions that serve, are still wanted, and lie on disk as they did."""
    same = [version for version in stored.versions if old.prints.get(version) == stored.prints[version]]
    return {version: before[version] for version in same if version in before}


def _log_report(report: LoadReport) -> None:
    """Where a caller learns what went wrong, the operator's log does too."""
    if report.error:
        log.info("model %s version %s failed to load: %s", report.name, report.version, report.error)


def _without_folders(text: str) -> str:
    """For callers, who need not know where models lie."""
    return _FOLDERS.sub("", text)

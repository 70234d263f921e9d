"""What is loaded: a record for each model, and the table of all versions that are ready.

Readers get a snapshot: an immutable table that is replaced whole when anything changes, so that a request sees one
state of the world. New versions load beside those that serve, in threads; then the snapshot changes, and what it no
longer names finishes what it had accepted and gives its memory back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from tensorgate.gateway.contract.errors import Code, Reason
from tensorgate.gateway.contract.questions import VersionStatus
from tensorgate.gateway.contract.tensor import NOTHING
from tensorgate.gateway.engine.model import Model
from tensorgate.gateway.models.loader import Loader, LoadReport, Report, RepositoryDeps
from tensorgate.gateway.models.model_folder import Upload, no_version
from tensorgate.gateway.models.model_state import AVAILABLE, END, LOADING, START, UNLOADING, ModelState, Stored

RECLAIM_AFTER_S: Final = 0.2


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Everything that is ready: versions by model, ascending. A model that is composed of others is ready while they
    are served, and is again when they come back.

    `labels` has the version labels of every model that is wanted, also of those that failed to load; `unloaded` names
    those that served once and are not wanted any more.
    """

    models: Mapping[str, Mapping[int, Model]] = NOTHING
    labels: Mapping[str, Mapping[str, int]] = NOTHING
    unloaded: frozenset[str] = frozenset()


class LoadedModels:
    """Loads versions, puts them into service and takes them out of it. Which, is for whoever builds upon it to say."""

    def __init__(self, loader: Loader, hooks: RepositoryDeps, wanted: Iterable[str]) -> None:
        self._loader = loader
        self._hooks = hooks
        self._records = {name: ModelState(name, wanted=True) for name in wanted}
        self._leaving: dict[asyncio.Task[None], Iterable[Model]] = {}
        self._reclaiming: asyncio.Future[None] | None = None
        self._ended = False
        self.snapshot = Snapshot()
        self._publish()

    def serving(self) -> list[Model]:
        """Every version that is ready."""
        return [model for versions in self.snapshot.models.values() for model in versions.values()]

    def give_up(self) -> None:
        """Tell everybody who still waits for a model that there will be no answer."""
        loaded = [record.models.values() for record in self._records.values()]
        for models in [*loaded, *self._leaving.values()]:
            for model in models:
                model.give_up()

    def lose_device(self, name: str) -> None:
        """The device of a model does no more work for this process, nor does any other GPU's: CUDA says so."""
        why = Reason("its device is lost, the server restarts", Code.UNAVAILABLE)
        for models in [self.serving(), *self._leaving.values()]:
            for model in models:
                if model.name == name or set(model.devices) != {"cpu"}:
                    model.lose_device()
                    self._records[model.name].note(model.version, END, why)

    async def _leave_all(self) -> None:
        """Unload everything, once what was accepted is answered."""
        self._ended = True
        if self._reclaiming is not None:
            self._reclaiming.cancel()
        for record in self._records.values():
            self._retire(record, record.models, record.stored.upload if record.stored else None)
        await asyncio.gather(*self._leaving)

    def _publish(self) -> None:
        records = self._records
        whole = _whole({name: record.models for name, record in records.items()})
        for name, record in records.items():
            record.served = whole[name]
        self.snapshot = Snapshot(
            {name: versions for name, versions in whole.items() if versions},
            {name: record.labels for name, record in records.items() if record.wanted},
            frozenset(name for name, record in records.items() if not record.wanted and record.statuses),
        )

    # ------------------------------------------------------------------------------------------------ loading one model

    async def _bring(
        self,
        record: ModelState,
        stored: Stored,
        report: Report,
        *,
        anew: bool = True,
        relabel: bool = True,
        current: Callable[[], bool] = lambda: True,
    ) -> Mapping[int | None, Reason]:
        """Load a model's versions and let them take over -> why some could not be loaded, by version; by None, why
        there are none.

        A version that fails leaves the one that served in its place, and none is given up before all that are wanted
        are there. Under another configuration either all versions take over or none. The configuration's labels take
        effect with its versions, unless they have done so already. Nothing happens if this is not `current` any more
        when its turn comes, nor do labels that have become old meanwhile take effect.
        """
        async with record.lock:
            if not current():
                return {}
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
                record.labels = stored.config.labels if relabel and current() else record.labels
                record.models = _in_service((dict(before) if failures else kept) | made, stored)
                record.failed = bool(failures) and (record.failed or not before)
                gone = {version: model for version, model in before.items() if record.models.get(version) is not model}
                self._retire(record, gone, old.upload if old else None)
            record.wanted = True
            record.late = record.late and not record.models
            record.seen = stored.fingerprint
            record.error = failures[None].text if None in failures else ""
            self._publish()
            for version in made.keys() & record.models.keys():
                record.note(version, AVAILABLE)
            return failures

    async def _make_all(
        self, record: ModelState, stored: Stored, kept: Mapping[int, Model], report: Report
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
            failures[None] = Reason("no version to load", Code.NOT_FOUND)
            text = await asyncio.to_thread(no_version, stored.config)
            report(LoadReport(record.name, None, error=text))
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

    def _dismiss(self, record: ModelState) -> None:
        """A model is not wanted any more: off the table at once."""
        gone, record.models = record.models, {}
        record.wanted = record.failed = False
        record.error = ""
        record.seen = None
        self._publish()
        self._retire(record, gone, record.stored.upload if record.stored else None)

    def _discard(self, record: ModelState, made: Mapping[int, Model]) -> None:
        """Versions that never served, because others of the same load failed."""
        for version in made.keys() - record.models.keys():
            record.note(version, END, Reason("another version of the same load failed", Code.ABORTED))
        self._leave(record, made, {}, None)

    def _retire(self, record: ModelState, gone: Mapping[int, Model], upload: Upload | None) -> None:
        """Versions that served; in what state they are is told unless others have taken their place."""
        ending = {
            version: record.note(version, UNLOADING)
            for version, model in gone.items()
            if record.models.get(version, model) is model
        }
        self._leave(record, gone, ending, upload)

    def _leave(
        self, record: ModelState, gone: Mapping[int, Model], ending: Mapping[int, VersionStatus], upload: Upload | None
    ) -> None:
        if gone or upload:
            models = tuple(gone.values())
            task = asyncio.ensure_future(self._close(record, models, ending, upload))
            self._leaving[task] = models
            task.add_done_callback(self._left)

    def _left(self, task: asyncio.Task[None]) -> None:
        """Models are gone; whoever ends the server does not wait for what they have left."""
        del self._leaving[task]
        if self._reclaiming is None and not self._ended:
            self._reclaiming = asyncio.ensure_future(self._reclaim())

    async def _reclaim(self) -> None:
        """Once for all that leave within a moment."""
        await asyncio.sleep(RECLAIM_AFTER_S)
        self._reclaiming = None
        await asyncio.to_thread(self._hooks.reclaim)

    async def _close(
        self, record: ModelState, models: Iterable[Model], ending: Mapping[int, VersionStatus], upload: Upload | None
    ) -> None:
        """Finish what was accepted, and give back what was held."""
        await asyncio.gather(*(model.close() for model in models))
        for version, status in ending.items():
            if record.statuses.get(version) is status:  # else it has come back meanwhile
                record.note(version, END)
                self._hooks.forget(record.name, version)
        if upload is not None:
            await asyncio.to_thread(upload.cleanup)


def _whole(models: Mapping[str, Mapping[int, Model]]) -> Mapping[str, Mapping[int, Model]]:
    """The versions of which no part is missing, nor a part of a part. What is no model of ours may be a route, and is
    found when it is asked for.
    """
    while True:
        lacking = [
            (name, version)
            for name, versions in models.items()
            for version, model in versions.items()
            for part in model.computation.parts
            if part.name in models and not _has(models[part.name], part.version)
        ]
        if not lacking:
            return models
        models = {
            name: {version: model for version, model in versions.items() if (name, version) not in lacking}
            for name, versions in models.items()
        }


def _has(versions: Mapping[int, Model], version: int | None) -> bool:
    return bool(versions) if version is None else version in versions


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

"""What is loaded: the state of each model, and the snapshot of all versions that are ready.

A snapshot is immutable and replaced whole when anything changes, so that a request sees one state of the world. New
versions load beside those that serve, in threads; then the snapshot changes, and versions that it no longer names
finish the requests they accepted and free their memory.
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
from tensorgate.gateway.models.loader import LoadReport, ModelLoader, Report, RepositoryDeps
from tensorgate.gateway.models.model_folder import Upload
from tensorgate.gateway.models.model_state import AVAILABLE, END, LOADING, START, UNLOADING, ModelState, StoredModel

RECLAIM_AFTER_S: Final = 0.2


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All versions that are ready, by model, ascending. An ensemble is ready while its parts are.

    `labels` has the version labels of every wanted model, loaded or not; `unloaded` names models that served once and
    are not wanted any more, `starting` those that are being loaded since the start, `loadable` those that are loaded
    when somebody asks for them, loaded or not.
    """

    models: Mapping[str, Mapping[int, Model]] = NOTHING
    labels: Mapping[str, Mapping[str, int]] = NOTHING
    unloaded: frozenset[str] = frozenset()
    starting: frozenset[str] = frozenset()
    loadable: frozenset[str] = frozenset()


class LoadedModels:
    """Loads versions, publishes them in the snapshot and unloads them. The subclass decides which."""

    def __init__(self, loader: ModelLoader, deps: RepositoryDeps, wanted: Iterable[str]) -> None:
        self._loader = loader
        self.deps = deps
        self._states = {name: ModelState(name, starting=True, wanted=True) for name in wanted}
        self._closing: dict[asyncio.Task[None], Iterable[Model]] = {}
        self._reclaiming: asyncio.Future[None] | None = None
        self._ended = False
        self.loadable: frozenset[str] = frozenset()
        self.snapshot = Snapshot()
        self._publish()

    def serving(self) -> list[Model]:
        """Every version that is ready."""
        return [model for versions in self.snapshot.models.values() for model in versions.values()]

    def give_up(self) -> None:
        """Fail all requests that wait for a model."""
        loaded = [state.models.values() for state in self._states.values()]
        for models in [*loaded, *self._closing.values()]:
            for model in models:
                model.give_up()

    def lose_device(self, name: str) -> None:
        """Stop all models on GPUs: after an error on the device of model `name`, CUDA refuses all further work."""
        why = Reason("its device is lost, the server restarts", Code.UNAVAILABLE)
        for models in [self.serving(), *self._closing.values()]:
            for model in models:
                if model.name == name or set(model.devices) != {"cpu"}:
                    model.lose_device()
                    self._states[model.name].set_status(model.version, END, why)

    async def _unload_all(self) -> None:
        """Unload everything, after accepted requests are answered."""
        self._ended = True
        if self._reclaiming is not None:
            self._reclaiming.cancel()
        for state in self._states.values():
            self._retire(state, state.models, state.stored.upload if state.stored else None)
        await asyncio.gather(*self._closing)

    def _publish(self) -> None:
        states = self._states
        complete = _complete({name: state.models for name, state in states.items()})
        for name, state in states.items():
            state.served = complete[name]
        self.snapshot = Snapshot(
            {name: versions for name, versions in complete.items() if versions},
            {name: state.labels for name, state in states.items() if state.wanted},
            frozenset(
                name for name, state in states.items() if not (state.wanted or state.on_demand) and state.statuses
            ),
            frozenset(name for name, state in states.items() if state.starting),
            self.loadable,
        )

    # ------------------------------------------------------------------------------------------------ loading one model

    async def _load(
        self,
        state: ModelState,
        stored: StoredModel,
        report: Report,
        *,
        anew: bool = True,
        relabel: bool = True,
        current: Callable[[], bool] = lambda: True,
    ) -> Mapping[int | None, Reason]:
        """Load a model's versions and publish them -> the reasons of those that failed, by version; by None, why there
        is no version.

        A version that fails leaves the one that served in its place, and no version is unloaded before all wanted ones
        are loaded. Under another configuration all versions take over, or none. `anew`: load versions that have not
        changed, too. `relabel`: the configuration's labels take effect. If `current` is false once the lock is held,
        nothing happens; if it becomes false while loading, labels stay.
        """
        async with state.lock:
            if not current():
                return {}
            before, old = state.models, state.stored
            alike = stored.same_but_for_versions(old)
            kept = {} if anew or not alike or old is None else _unchanged(before, old, stored)
            if relabel and not before:
                state.labels = stored.config.labels
            made, failures = await self._load_versions(state, stored, kept, report)
            if failures and before and not alike:
                self._discard(state, made)
            else:
                state.stored = stored
                state.labels = stored.config.labels if relabel and current() else state.labels
                state.models = _in_service((dict(before) if failures else kept) | made, stored)
                state.failed = bool(failures) and (state.failed or not before)
                gone = {version: model for version, model in before.items() if state.models.get(version) is not model}
                self._retire(state, gone, old.upload if old else None)
            state.wanted = True
            state.starting = False
            state.is_new = state.is_new and not state.models
            state.fingerprint = stored.fingerprint
            state.error = failures[None].text if None in failures else ""
            self._publish()
            for version in made.keys() & state.models.keys():
                state.set_status(version, AVAILABLE)
            return failures

    async def _load_versions(
        self, state: ModelState, stored: StoredModel, kept: Mapping[int, Model], report: Report
    ) -> tuple[dict[int, Model], dict[int | None, Reason]]:
        """Load the versions that are not kept, one after the other; if the model has none yet, each serves at once."""
        made: dict[int, Model] = {}
        failures: dict[int | None, Reason] = {}
        due = [version for version in stored.versions if version not in kept]
        fresh = [version for version in due if version not in state.models]
        for version in fresh:
            state.set_status(version, START)
        first = not state.models
        if first:
            state.stored = stored
        if not stored.versions:
            failures[None] = Reason("no version to load", Code.NOT_FOUND)
            text = await asyncio.to_thread(self.deps.files.no_version, stored.config)
            report(LoadReport(state.name, None, error=text))
        for version in due:
            if version in fresh:
                state.set_status(version, LOADING)
            outcome = await self._loader.load_version(state.name, version, stored, report)
            if isinstance(outcome, Model):
                made[version] = outcome
                if first:
                    state.wanted, state.models = True, _in_service(made, stored)
                    self._publish()
                    state.set_status(version, AVAILABLE)
            else:
                failures[version] = outcome
                if version in fresh:
                    state.set_status(version, END, outcome)
        return made, failures

    # ------------------------------------------------------------------------------------------------------- unloading

    def _unload(self, state: ModelState) -> None:
        """Take a model that is not wanted any more out of the snapshot, and close its versions."""
        gone, state.models = state.models, {}
        state.wanted = state.failed = False
        state.error = ""
        state.fingerprint = None
        self._publish()
        self._retire(state, gone, state.stored.upload if state.stored else None)

    async def _until_closed(self, name: str) -> None:
        """Wait until no version of a model is being closed."""
        tasks = [task for task, models in self._closing.items() if any(model.name == name for model in models)]
        await asyncio.gather(*tasks, return_exceptions=True)

    def _discard(self, state: ModelState, made: Mapping[int, Model]) -> None:
        """Close versions that never served, because others of the same load failed."""
        for version in made.keys() - state.models.keys():
            state.set_status(version, END, Reason("another version of the same load failed", Code.ABORTED))
        self._close_later(state, made, {}, None)

    def _retire(self, state: ModelState, gone: Mapping[int, Model], upload: Upload | None) -> None:
        """Close versions that served; their status changes unless others have taken their place."""
        ending = {
            version: state.set_status(version, UNLOADING)
            for version, model in gone.items()
            if state.models.get(version, model) is model
        }
        self._close_later(state, gone, ending, upload)

    def _close_later(
        self, state: ModelState, gone: Mapping[int, Model], ending: Mapping[int, VersionStatus], upload: Upload | None
    ) -> None:
        if gone or upload:
            models = tuple(gone.values())
            task = asyncio.ensure_future(self._close(state, models, ending, upload))
            self._closing[task] = models
            task.add_done_callback(self._on_closed)

    def _on_closed(self, task: asyncio.Task[None]) -> None:
        """Reclaim memory once models are closed; closing the server does not wait for it."""
        del self._closing[task]
        if self._reclaiming is None and not self._ended:
            self._reclaiming = asyncio.ensure_future(self._reclaim())

    async def _reclaim(self) -> None:
        """Reclaim once for all models that close within RECLAIM_AFTER_S."""
        await asyncio.sleep(RECLAIM_AFTER_S)
        self._reclaiming = None
        await asyncio.to_thread(self.deps.reclaim)

    async def _close(
        self, state: ModelState, models: Iterable[Model], ending: Mapping[int, VersionStatus], upload: Upload | None
    ) -> None:
        """Close models after their accepted requests, and delete the upload."""
        await asyncio.gather(*(model.close() for model in models))
        for version, status in ending.items():
            if state.statuses.get(version) is status:  # else it has come back meanwhile
                state.set_status(version, END)
                self.deps.meters.forget(state.name, version)
        if upload is not None:
            await asyncio.to_thread(upload.cleanup)


def _complete(models: Mapping[str, Mapping[int, Model]]) -> Mapping[str, Mapping[int, Model]]:
    """The versions whose parts, and the parts of those, are all loaded. A part that is no model may be a route, which
    is resolved when it is called.
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


def _in_service(models: Mapping[int, Model], stored: StoredModel) -> dict[int, Model]:
    """Versions in ascending order, with all of them and the version policy in each one's view."""
    versions = tuple(sorted(models))
    policy = {"versions": stored.config.versions.plain(), "labels": stored.config.labels}
    for model in models.values():
        said = model.view.configuration
        if model.view.versions != versions or any(said.get(key) != value for key, value in policy.items()):
            model.view = replace(model.view, versions=versions, configuration={**said, **policy})
    return {version: models[version] for version in versions}


def _unchanged(before: Mapping[int, Model], old: StoredModel, stored: StoredModel) -> dict[int, Model]:
    """The versions that serve, are still wanted, and whose files have not changed."""
    same = [version for version in stored.versions if old.prints.get(version) == stored.prints[version]]
    return {version: before[version] for version in same if version in before}

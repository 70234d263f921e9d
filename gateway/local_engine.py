"""The engine in this process: the repository of models, and the router in front of it, behind `contract.engine.Engine`.

Every question that is about models, or about memory shared with them, is answered here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, cast

from tensorgate.gateway.contract.canonical import ModelRef, ModelView
from tensorgate.gateway.contract.errors import Code, GatewayError, ModelNotFound
from tensorgate.gateway.contract.memory import Regions
from tensorgate.gateway.contract.metrics import CacheUsage, EngineStatistics
from tensorgate.gateway.contract.questions import (
    IndexEntry,
    KnownVersions,
    LoadModel,
    ModelActivities,
    ModelActivity,
    ModelConfiguration,
    ModelConfigurations,
    ModelStatistics,
    ModelStatus,
    RegionStatus,
    RegisterRegion,
    ReloadModels,
    RepositoryIndex,
    ServedModels,
    Statistics,
    TraceSettings,
    UnloadModel,
    UnregisterRegion,
    VersionStatus,
)
from tensorgate.gateway.contract.tensor import NOTHING
from tensorgate.gateway.engine.model import Model
from tensorgate.gateway.engine.shared_memory import SharedMemory
from tensorgate.gateway.engine.shares import Shares
from tensorgate.gateway.models.loader import public_error
from tensorgate.gateway.models.meters import model_counts
from tensorgate.gateway.models.model_state import AVAILABLE, END, LOADING, START
from tensorgate.gateway.models.repository import Repository
from tensorgate.gateway.models.server_catalog import ServerCatalog
from tensorgate.gateway.routing.router import Router
from tensorgate.gateway.telemetry.tracing import RequestTracing


class LocalEngine:
    """See contract.engine.Engine. What it only passes on are methods of the router and the repository themselves."""

    def __init__(
        self,
        repository: Repository,
        router: Router,
        tracing: RequestTracing | None = None,
        memory: SharedMemory | None = None,
        servers: ServerCatalog | None = None,
        shares: Shares | None = None,
    ) -> None:
        """`servers` are others, whose models are served here; `shares` are those that callers have of the devices."""
        self._shares = shares
        self.gather: Callable[[], Awaitable[None]] | None = None
        """Has others tell what they have counted of these models, before anybody is told."""
        self._servers = servers
        self._repository = repository
        self._router = router
        self._tracing = tracing or RequestTracing()
        memory = memory or SharedMemory()
        self.regions: Regions = memory
        self.resolve = router.resolve
        self.resolver = router.resolver
        self.named = router.named
        self.check_forward = router.check_forward
        self.forwarded = router.forwarded
        self.names = router.names
        self.is_public = router.is_public
        self.is_complete = repository.all_available
        self._answers: Mapping[type, Callable[[Any], Any]] = {
            ModelStatus: self._model_status,
            ModelConfiguration: self._model_configuration,
            ModelConfigurations: self._model_configurations,
            ModelActivities: self._model_activities,
            ServedModels: self._served_models,
            KnownVersions: lambda question: repository.known(),
            RepositoryIndex: self._repository_index,
            LoadModel: self._load,
            UnloadModel: self._unload,
            ReloadModels: lambda question: repository.reload(question.models),
            ModelStatistics: self._gathered_statistics,
            TraceSettings: self._trace_settings,
            RegionStatus: memory.status,
            RegisterRegion: lambda question: asyncio.to_thread(memory.register, question),
            UnregisterRegion: memory.unregister,
        }

    @property
    def discovers(self) -> bool:
        """See contract.engine.Engine."""
        return self._servers is not None and self._servers.is_open

    async def discover(self, name: str) -> bool:
        """See contract.engine.Engine."""
        if self._servers is None or self._router.is_public(name) or not await self._servers.find(name):
            return False
        await asyncio.shield(self._repository.admit(name, lambda report: None))
        return name in self._repository.snapshot.models

    async def demand(self, model: str, deadline: float | None) -> None:
        """See contract.engine.Engine."""
        await self._repository.on_demand.demand(model, deadline)

    def is_loadable(self, model: str) -> bool:
        """See contract.engine.Engine."""
        return self._repository.is_loadable(model) and not self._repository.on_demand.failure(model)

    async def described(self, model: str) -> ModelView | None:
        """See contract.engine.Engine."""
        try:
            return await asyncio.to_thread(self._repository.described, model)
        except (GatewayError, ValueError, ImportError, OSError):  # what is wrong, its load will tell
            return None

    def ask(self, question: Any) -> Any:
        return self._answers[type(question)](question)

    def settle(self) -> None:
        self._repository.deps.meters.settle()

    def statistics(self) -> EngineStatistics:
        meters, cache = self._repository.deps.meters, self._repository.deps.cache
        return EngineStatistics(
            [model_counts(model) for model in self._repository.serving()],
            meters.distributions(),
            CacheUsage(cache.nbytes, cache.max_bytes, cache.entries, cache.evictions),
            self._router.usage(),
            () if self._shares is None else self._shares.usage(),
        )

    async def _repository_index(self, question: RepositoryIndex) -> tuple[IndexEntry, ...]:
        """What other servers could load is here, too, where callers may have them load it."""
        entries = await self._repository.index(question.ready_only)
        if self._servers is None or question.ready_only:
            return entries
        known = {entry.name for entry in entries}
        more = [entry for entry in await self._servers.index() if entry.name not in known]
        return tuple(sorted((*entries, *more), key=lambda entry: entry.name)) if more else entries

    async def _load(self, question: LoadModel) -> None:
        if self._servers is None or not await self._repository.control_upstream(self._servers, question):
            await self._repository.load(question.name, question.configuration, question.files)

    async def _unload(self, question: UnloadModel) -> None:
        if self._servers is None or not await self._repository.control_upstream(self._servers, question):
            await self._repository.unload(question.name, question.dependents)

    def _model_status(self, question: ModelStatus) -> tuple[VersionStatus, ...] | Awaitable[tuple[VersionStatus, ...]]:
        ref = question.ref
        model = self._router.models_behind(ref.name)[0]
        if self._is_absent(model):
            return self._status_of_absent(ref, model)
        try:
            statuses = self._repository.statuses(model, ref.version)
        except ModelNotFound as error:
            raise ModelNotFound(ref.name, ref.version, known=error.known, serves=error.serves) from None
        loaded = self._repository.snapshot.models.get(model, {})
        unready = {version for version, each in loaded.items() if not each.is_ready()}
        return tuple(
            VersionStatus(each.version, LOADING) if each.version in unready and each.state == AVAILABLE else each
            for each in statuses
        )

    def _served_models(self, question: ServedModels) -> tuple[ModelView, ...]:
        views = self._router.views()
        if not question.absent:
            return views
        known = {view.name for view in views}
        return (*views, *[view for view in self._repository.absent() if view.name not in known])

    def _is_absent(self, model: str) -> bool:
        """Whether a model is not in memory, and would be loaded for whoever asks."""
        return self._repository.is_loadable(model) and not self._repository.is_known(model)

    async def _status_of_absent(self, ref: ModelRef, model: str) -> tuple[VersionStatus, ...]:
        """START: tracked, and nothing has been done with it yet; END where its last load failed. Source: TensorFlow
        Serving, ModelVersionStatus.
        """
        try:
            stored = await asyncio.to_thread(self._repository.read_demanded, model)
        except (ValueError, OSError) as error:
            return (VersionStatus(1, END, public_error(error)),)
        failure = self._repository.on_demand.failure(model)
        found = tuple(
            [
                VersionStatus(version, END, failure, Code.UNAVAILABLE) if failure else VersionStatus(version, START)
                for version in sorted(stored.versions, reverse=True)
                if ref.version in (None, version)
            ]
        )
        if not found:
            raise ModelNotFound(ref.name, ref.version, serves=ref.version is not None)
        return found

    def _model_configurations(self, question: ModelConfigurations) -> Mapping[str, Mapping[str, Any]]:
        return {name: self._described(name, plain) for name, plain in self._repository.configurations().items()}

    def _model_configuration(self, question: ModelConfiguration) -> Mapping[str, Any] | Awaitable[Mapping[str, Any]]:
        if self._is_absent(question.name):
            return self._configuration_of_absent(question.name)
        return self._described(question.name, self._repository.configuration(question.name))

    async def _configuration_of_absent(self, name: str) -> Mapping[str, Any]:
        try:
            stored = await asyncio.to_thread(self._repository.read_demanded, name)
        except (ValueError, OSError):
            raise ModelNotFound(name, known=True) from None
        return {"name": name, **stored.config.model_dump(mode="json")}

    def _described(self, name: str, configuration: Mapping[str, Any]) -> Mapping[str, Any]:
        """A model's configuration with its name, and the highest version that is loaded."""
        loaded = self._repository.snapshot.models.get(name)
        return {"name": name, **configuration} | ({"version": max(loaded)} if loaded else {})

    def _model_activities(self, question: ModelActivities) -> tuple[ModelActivity, ...]:
        self.settle()
        return tuple([self._activity(model, question.detailed) for model in self._repository.serving()])

    def _activity(self, model: Model, detailed: frozenset[str] | None) -> ModelActivity:
        counters = model.counters
        now = (model.view, model.is_ready(), model.queued, model.running, counters.rows, counters.runs)
        if detailed is not None and model.name not in detailed:
            return ModelActivity(*now)
        meters = self._repository.deps.meters
        batches = meters.batches(model.name, model.version)
        streams = meters.streams(model.name, model.version) if model.view.decoupled else NOTHING
        traffic = model.computation.traffic()._asdict()
        return ModelActivity(*now, traffic, batches, streams, model.queued_tokens, model.goal)

    def _gathered_statistics(
        self, question: ModelStatistics
    ) -> tuple[Statistics, ...] | Awaitable[tuple[Statistics, ...]]:
        return self._model_statistics(question) if self.gather is None else self._after_all(self.gather, question)

    async def _after_all(
        self, gather: Callable[[], Awaitable[None]], question: ModelStatistics
    ) -> tuple[Statistics, ...]:
        await gather()
        return self._model_statistics(question)

    def _model_statistics(self, question: ModelStatistics) -> tuple[Statistics, ...]:
        models = self._repository.snapshot.models
        if question.ref is None:
            every = [(name, models[name]) for name in sorted(models)]
        elif self._is_absent(question.ref.name):
            every = []
        else:
            every = [(question.ref.name, cast("Mapping[int, Model]", self._router.served(question.ref)))]
        return tuple(
            version.counters.statistics(name, version.version)
            for name, versions in every
            for version in versions.values()
        )

    def _trace_settings(self, question: TraceSettings) -> Mapping[str, tuple[str, ...]]:
        model = self._router.models_behind(question.model)[0]
        if model and model not in self._repository.snapshot.models and not self._repository.is_loadable(model):
            raise ModelNotFound(question.model)
        self._tracing.change(model, question.changes)
        return self._tracing.settings(model)

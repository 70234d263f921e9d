"""The composition root: the only module that knows dialects and backends by name, and puts everything together.

configuration -> registries resolved -> repository, router, service, metrics -> listeners -> models loaded -> ready ->
drained
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import gc
import platform
import shlex
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, Final, NamedTuple

from tensorgate import __version__
from tensorgate.adapters import DIALECTS
from tensorgate.adapters.protobuf import messages as descriptors
from tensorgate.backends import BACKENDS
from tensorgate.backends.execution import cuda_memory, registered
from tensorgate.backends.execution.failures import free_pools, on_lost_device
from tensorgate.backends.execution.gpu import device_bytes, read_gpu
from tensorgate.backends.execution.own_process import ModelProcesses
from tensorgate.backends.ops import OPS
from tensorgate.backends.python import user_ops
from tensorgate.gateway.config import (
    Config,
    ConfigError,
    ModelConfig,
    Problem,
    SharesConfig,
    load_config,
    load_text,
    model_validator,
)
from tensorgate.gateway.config.residency import Residency
from tensorgate.gateway.contract.backend import BackendKind, ModelSource, SpokenUpstream
from tensorgate.gateway.contract.canonical import ModelView
from tensorgate.gateway.contract.dialect import Dialect, DialectKind, SampleRequest
from tensorgate.gateway.contract.execution import Computation
from tensorgate.gateway.contract.metrics import Gpu, ServerCounts
from tensorgate.gateway.contract.questions import ServerDescription
from tensorgate.gateway.contract.registries import Registries
from tensorgate.gateway.contract.tensor import NOTHING
from tensorgate.gateway.contract.upstream import Await
from tensorgate.gateway.crossing.messages import ReplicaOffer
from tensorgate.gateway.engine.model import Model
from tensorgate.gateway.engine.response_cache import ResponseCache
from tensorgate.gateway.engine.shared_memory import SharedMemory
from tensorgate.gateway.engine.shares import ANONYMOUS, SharePolicy, Shares
from tensorgate.gateway.local_engine import LocalEngine
from tensorgate.gateway.model_loading import described, loader, model_source
from tensorgate.gateway.models.catalog import (
    Catalog,
    Catalogs,
    FolderCatalog,
    Validate,
    YamlCatalog,
    folder_reader,
)
from tensorgate.gateway.models.changes import Changes, changes
from tensorgate.gateway.models.loader import LoadComputation, LoadReport, RepositoryDeps
from tensorgate.gateway.models.memory_meter import MemoryMeter
from tensorgate.gateway.models.meters import Meters
from tensorgate.gateway.models.model_files import ModelFiles
from tensorgate.gateway.models.reload import ReloadActions, Reloader
from tensorgate.gateway.models.remote_catalog import RemoteCatalog
from tensorgate.gateway.models.repository import Repository
from tensorgate.gateway.models.server_catalog import ServerCatalog
from tensorgate.gateway.monitoring.access_log import AccessLog, LogFile
from tensorgate.gateway.monitoring.call_counters import CallCounters
from tensorgate.gateway.monitoring.families import AnyFamily
from tensorgate.gateway.monitoring.gpu_metrics import gpu_families, gpus_of
from tensorgate.gateway.monitoring.metrics import MetricsCollector, note_traced
from tensorgate.gateway.monitoring.observer import Observer
from tensorgate.gateway.monitoring.process_metrics import ProcessMetrics
from tensorgate.gateway.monitoring.reload_metrics import reload_families
from tensorgate.gateway.monitoring.residency_metrics import residency_families
from tensorgate.gateway.monitoring.server_counts import ServerCounter
from tensorgate.gateway.monitoring.spans import Spans
from tensorgate.gateway.monitoring.time_series import TimeSeries
from tensorgate.gateway.monitoring.usage import Usage
from tensorgate.gateway.openapi.address import ADDRESS as API_DOCUMENTS
from tensorgate.gateway.openapi.documents import ApiDocuments
from tensorgate.gateway.openapi.page import PATHS as DOCS_PATHS
from tensorgate.gateway.openapi.page import docs_page
from tensorgate.gateway.page import ReadPage, open_paths, pages
from tensorgate.gateway.page.status import Status
from tensorgate.gateway.recording.events import EventSink
from tensorgate.gateway.recording.files import RecordFiles
from tensorgate.gateway.recording.recorder import FlightRecorder
from tensorgate.gateway.replicas import offer_of
from tensorgate.gateway.routing.router import Router
from tensorgate.gateway.security.auth import AdminKey
from tensorgate.gateway.security.authorizer import authorizer_of
from tensorgate.gateway.security.limit_table import LimitTable
from tensorgate.gateway.service import Service
from tensorgate.gateway.stores.stores import Stores
from tensorgate.gateway.telemetry.tracing import RequestTracing, TraceFile
from tensorgate.gateway.transport.http_exchange import HttpExchange
from tensorgate.gateway.transport.http_server import (
    Page,
    admin_page,
    dialect_metrics_page,
    metrics_page,
    probe_page,
    read_only,
)
from tensorgate.gateway.transport.ports import Ports
from tensorgate.gateway.transport.sockets import Sockets, addresses, bound

NAME: Final = "tensorgate"
MODEL_PROCESS: Final = "tensorgate.gateway.model_process"
_AFTER_GIVING_UP_S: Final = 1.0
"""So long after that draining ends, whatever still runs."""
_MAX_EXAMPLE_CHARS: Final = 1000
"""How long a line that `serve` prints may be."""
_MAX_SHORT_CHARS: Final = 200
"""How long it is where there is a shorter one."""
"""The program of models with processes of their own. It imports this module."""
_RELOAD_STATUS: Final = {"refused": 422, "incomplete": 500}
Say = Callable[[str], None]


def registries() -> Registries:
    """The three tables with their lines imported. None of these modules imports a heavy library by itself."""
    dialects: dict[str, DialectKind] = _imported(DIALECTS)
    backends: dict[str, BackendKind] = _imported(BACKENDS)
    with_client = tuple(
        SpokenUpstream(name, transports, kind.finds_models)
        for name, kind in dialects.items()
        if (transports := kind.client_transports)
    )
    for name, kind in backends.items():
        if kind.options_by_dialects is not None:
            kind = backends[name] = replace(kind, options=kind.options_by_dialects(with_client))
        if kind.servers is not None:
            backends[name] = replace(kind, server_options=kind.servers.options_by_dialects(with_client))
    return Registries(dialects, backends, _imported(OPS), user_ops.load)


def _imported(table: dict[str, str]) -> dict[str, Any]:
    return {name: resolve_name(line) for name, line in table.items()}


def _repository(
    config: Config,
    kinds: Registries,
    models: Catalog,
    validate: Validate,
    load: LoadComputation,
    meters: Meters,
    cache: ResponseCache,
    entries: Callable[[], Mapping[str, ModelConfig]],
    files: ModelFiles,
    shares: Shares | None = None,
) -> Repository:

    def describe(model: ModelConfig, source: ModelSource) -> Computation | None:
        found = described(kinds, model, source)
        return None if found is None else found.computation

    hooks = RepositoryDeps(
        load,
        meters,
        versioned=lambda model: kinds.backends[model.backend].versioned,
        numbers=lambda model: kinds.backends[model.backend].numbers(model),
        runs_code=lambda model: kinds.backends[model.backend].runs_code,
        parts=lambda model: kinds.backends[model.backend].parts(model),
        validate=validate,
        cache=cache,
        shares=shares,
        files=files,
        reclaim=reclaim_memory,
        entries=entries,
        describe=lambda model, name, version, path: describe(model, model_source(model, name, version, path)),
        warmup_requests=lambda path, view: [
            each
            for name, options in config.dialects().items()
            for each in kinds.dialects[name].warmup_requests(options, path, view)
        ],
    )
    return Repository(models, hooks, config.model_control, config.residency, MemoryMeter(device_bytes))


def catalog(
    config: Config,
    kinds: Registries,
    say: Say = lambda line: None,
    validate: Validate | None = None,
    servers: ServerCatalog | None = None,
    files: ModelFiles | None = None,
) -> Catalog:
    """The models of the YAML, and those of the folders and servers that it names; `say` hears what these ignore.
    `servers` are those that are asked already, `files` finds those of models.
    """
    files = files or model_files(config, say)
    validate = validate or model_validator(kinds)
    form = next(kind.repository for kind in kinds.dialects.values() if kind.repository is not None)
    catalogs: list[Catalog] = [YamlCatalog(config, form.read_override, validate, files)]

    def read_folder(folder: Path, configuration: str | None, name: str) -> Mapping[str, Any]:
        return form.read_folder(folder, configuration, name, say)

    reader = folder_reader(form.read_override, read_folder)
    verify = config.model_control.verify
    for folder in config.repositories:
        if folder.location is None:
            catalogs.append(FolderCatalog([folder.path], reader, validate, verify))
        else:
            catalogs.append(RemoteCatalog(folder.location, files.stores, reader, validate, verify))
    if config.upstreams:
        catalogs.append(servers or server_catalog(config, kinds, validate))
    return catalogs[0] if len(catalogs) == 1 else Catalogs(*catalogs)


def model_files(config: Config, say: Say = lambda line: None) -> ModelFiles:
    """What finds the files of a configuration's models; `say` hears what is fetched."""
    return ModelFiles(Stores(config.stores, say))


def server_catalog(config: Config, kinds: Registries, validate: Validate) -> ServerCatalog:
    """The models of the servers that the section `upstreams` names."""
    open_server = next(kind.servers.open for kind in kinds.backends.values() if kind.servers is not None)
    servers = {name: open_server(options, kinds.client) for name, options in config.upstreams.items()}
    return ServerCatalog(servers, validate, config.source.parent)


def _share_policy(config: SharesConfig) -> SharePolicy:
    weights = {"" if name == ANONYMOUS else name: weight for name, weight in config.weights.items()}
    return SharePolicy(weights, config.default_weight, config.max_queue_size)


def _shared_memory(config: Config) -> SharedMemory:
    allowed = config.shared_memory
    return SharedMemory(
        system=allowed.system,
        cuda=allowed.cuda,
        prefix=allowed.prefix,
        max_regions=allowed.max_regions,
        open_cuda=cuda_memory.opener() if allowed.cuda else None,
        register_host=registered.registrar() if allowed.system else None,
    )


class LoadedConfig(NamedTuple):
    """Models that nobody outside can ask, and what finds them in calls. `failed`: (name, why) of those that could not
    be loaded.
    """

    router: Router
    dialects: Mapping[str, Dialect]
    models: Sequence[Model]
    failed: list[tuple[str, str]]


class App:
    """A gateway from one configuration, which `read` reads anew. `start` listens, `load` loads, `drain` ends."""

    def __init__(
        self,
        config: Config,
        kinds: Registries,
        say: Say = lambda line: None,
        sockets: Sockets | None = None,
        restarts: Mapping[str, int] = NOTHING,
        read: Callable[[], Config] | None = None,
        limits: LimitTable | None = None,
    ) -> None:
        """`limits` is where several processes count the calls that they let in."""
        self._say = say
        self._limits = limits
        self._plugged_in = kinds
        self._authorization: Any = (None, (), None)
        self._kinds = kinds = config.extended(kinds)
        self._ops = config.ops
        self._entries = config.models
        self._processes = ModelProcesses(MODEL_PROCESS, __version__)
        self.device_lost = asyncio.Event()
        self._ending: asyncio.Timeout | None = None
        self._gave_up = False
        self._sockets = sockets
        self.tracing = _tracing(config)
        self.observer = observer_of(config)
        self.vitals = ProcessMetrics(__version__, lambda: self.service.ready, self.observer)
        counting: list[Callable[[], Iterable[AnyFamily]]] = [
            kind.collect for kind in kinds.backends.values() if kind.collect is not None
        ]
        counting += [lambda: gpu_families(self._gpus()), self.vitals.collect, self._reload_families]
        counting.append(self._processes.collect)
        if config.residency.on_demand:
            counting.append(lambda: residency_families(self.repository.on_demand.read()))
        if self.observer is not None and self.observer.usage is not None:
            counting.append(self.observer.usage.collect)
        wanted = {name: kind.metrics(config.metrics) for name, kind in kinds.dialects.items()}
        self._call_counters = {
            name: CallCounters(metrics.calls, lambda name: self.router.is_public(name))
            for name, metrics in wanted.items()
            if metrics and metrics.calls
        }
        self._cache = cache = ResponseCache()
        meters = Meters(self.tracing)
        self._validate = model_validator(kinds)
        self._servers = server_catalog(config, kinds, self._validate) if config.upstreams else None
        self._files = files = model_files(config, say)
        models = catalog(config, kinds, say, self._validate, self._servers, files)
        self._shares = None if config.shares is None else Shares(_share_policy(config.shares))
        self.repository = _repository(
            config,
            kinds,
            models,
            self._validate,
            self._load_model,
            meters,
            cache,
            lambda: self._entries,
            files,
            self._shares,
        )
        steps = ReloadActions(
            read or (lambda: load_config(config.source, self._plugged_in)), self._catalog, self._take_over
        )
        self.reloads = Reloader(config, models, self.repository, steps)
        options = config.dialects()
        self.dialects: dict[str, Dialect] = {name: kind.make(options[name]) for name, kind in kinds.dialects.items()}
        house = house_dialects(config)
        self.called = self.dialects | {dialect.name: dialect for dialect in house}
        """The dialects in which calls may come."""
        spoken = self.dialects.values()
        default_model = next((dialect.default_model for dialect in spoken if dialect.default_model), None)
        self.router = Router(config, self.repository, default_model, lambda view: alias(spoken, view))
        memory = _shared_memory(config)
        description = ServerDescription(config.server_name, __version__, _public_configuration(config), memory.works)
        self.engine = engine = LocalEngine(
            self.repository, self.router, self.tracing, memory, self._servers, self._shares
        )
        self.metrics = MetricsCollector(
            engine,
            counting,
            self._call_counters,
            restarts,
            self._renderer([metrics.render for metrics in wanted.values() if metrics and metrics.render]),
            config.metrics.stages,
            genai_names=config.metrics.genai_names,
        )
        meters.on_forget = self.metrics.forget
        if self.observer is not None:
            self.observer.on_traced = partial(note_traced, self.metrics.calls)
        self.monitor = TimeSeries(self.metrics, self._gpus)
        self.service = Service(config, engine, self.metrics, description, self.monitor)
        self.service.observer = self.observer
        self.service.recorder = self._recorder = recorder_of(config)
        if self._recorder is not None:
            self.vitals.recorded = self._recorder.counts
        self.service.trim = trim_memory
        self.service.online = any(dialect.initially_online for dialect in spoken)
        titles = {name: dialect.title for name, dialect in self.called.items()}
        about = (NAME, __version__)
        self.overview = Status(self.service, engine, self.monitor, about, titles, self.metrics.errors)
        self.overview.restarts = restarts
        self.overview.listeners = self.vitals.listeners.listed
        self.overview.grpc_port = self._grpc_port
        self.overview.labels = lambda: self.repository.snapshot.labels
        self.overview.routes = lambda: [route.listed() for route in self.router.routes.values()]
        self.overview.tokens = self.metrics.tokens
        if self.observer is not None and self.observer.usage is not None:
            self.overview.callers = self.observer.usage.callers
        if self._shares is not None:
            self.overview.shares = self._shares.listed
        self._loop: asyncio.AbstractEventLoop
        self._tasks: list[asyncio.Future[None]] = []
        self._documents = ApiDocuments(self.dialects, __version__, config)
        if config.api_docs:
            self.service.documents = self._documents.write
        self.ports = Ports(self.service, self.dialects, descriptors.pool(), self.vitals.listeners, self._guarded, house)
        self.addresses: list[str] = []
        self._bound = contextlib.ExitStack()
        self.on_take_over: Callable[[Config], None] = lambda config: None
        """Hears of another configuration that is in force now."""
        self._take_over(config)

    @property
    def config(self) -> Config:
        """The one in force."""
        return self.reloads.config

    def _renderer(self, renders: Sequence[Callable[[ServerCounts], str]]) -> Callable[[], str]:
        """What dialects add to /metrics, read once for all of them."""
        if not renders:
            return str
        counter = ServerCounter(self.engine.statistics, read_gpu)

        def render() -> str:
            counts = counter.read()
            return "".join([each(counts) for each in renders])

        return render

    def _load_model(self, config: ModelConfig, name: str, version: int, path: Path) -> Computation:
        """By what is plugged in now: a configuration may have brought operators since the start."""
        load = loader(
            self._kinds, self.router.resolve_loaded, self._on_loop, self.config.cpu.budget(), self._processes, self._ops
        )
        return load(config, name, version, path)

    def replica_offer(self, model: Model) -> ReplicaOffer | None:
        """What doors are told of a version of which they may run copies; None of any other."""
        stored = self.repository.stored(model.name)
        if stored is None or not self.config.processes.replicas or self._shares is not None:  # what counts is here
            return None
        return offer_of(model, stored, self._kinds.backends[stored.config.backend])

    def _catalog(self, config: Config) -> Catalog:
        """Of a configuration that is about to be loaded."""
        kinds = config.extended(self._plugged_in)
        if kinds.ops != self._kinds.ops:
            self._validate = model_validator(kinds)
        self._kinds = kinds
        self._ops = config.ops
        return catalog(config, kinds, self._say, self._validate, self._servers, self._files)

    def _take_over(self, config: Config) -> None:
        """All that a configuration says and that is no model, as far as it takes effect without a restart."""
        self._entries = config.models
        self.service.admin = AdminKey(config.admin) if config.admin else None
        authorization = (config.auth, config.rate_limits, config.limits.max_elements, config.shares)
        if authorization != self._authorization:  # else what was counted of callers goes on
            self._authorization = authorization
            self.service.authorizer, self.router.access = authorizer_of(config, self.router.models_behind, self._limits)
        self.router.forwards = self.service.authorizer is None or not self.service.authorizer.counts_tensors
        if self._shares is not None and config.shares is not None:
            self._shares.reconfigure(_share_policy(config.shares))
        self.router.reroute(config.routes)
        cache = config.response_cache
        self._cache.bound(cache.max_bytes, cache.max_entry_bytes, cache.ttl_seconds)
        self.ports.limit(config)
        self._documents.reconfigure(config)
        self.service.reconfigure(config)
        self.on_take_over(config)

    async def _reload(self) -> tuple[int, Any]:
        outcome = await asyncio.shield(self.reloads.request("POST /admin/reload"))
        return _RELOAD_STATUS.get(outcome.result, 200), outcome.plain()

    def _check_admin(self, exchange: HttpExchange) -> bool:
        """Let an administrator pass; False where there are none. Raises Unauthenticated, Forbidden, AdminRequired."""
        authorizer, key = self.service.authorizer, self.service.admin
        if authorizer is not None and authorizer.knows_callers:
            authorizer.check_administrator(exchange.headers, exchange.peer, key)
        elif key is None:
            return False
        else:
            key.check(exchange.headers)
        return True

    def _reload_families(self) -> Iterable[AnyFamily]:
        reloads = self.reloads
        return reload_families(reloads.counts, reloads.succeeded_at, self.config.digest)

    def _on_loop(self, work: Coroutine[Any, Any, Any]) -> Any:
        """For a thread that loads a model."""
        return _waits_for(self._loop)(work)

    async def start(self) -> None:
        """Listen on every address: live at once, ready once models are loaded.

        Raises OSError naming an address that is taken.
        """
        with contextlib.ExitStack() as undo:
            sockets = self._sockets or undo.enter_context(bound(self.config.listen))
            await self.ports.start(self.config, sockets, self.pages)
            self.addresses += addresses(self.config.listen, sockets)
            self._bound = undo.pop_all()
        self.watch()

    def watch(self) -> None:
        """Begin to observe the server itself."""
        self._tasks += [asyncio.ensure_future(self.monitor.run()), asyncio.ensure_future(self.vitals.run())]

    async def load(self, report: Callable[[LoadReport], None]) -> None:
        """Load every wanted model version; ready afterwards, as far as readiness allows."""
        self._loop = asyncio.get_running_loop()
        on_lost_device(self._note_loss)
        await self.repository.load_all(report)
        if self._servers is not None:
            await asyncio.gather(*await self.repository.follow(self._servers, report))
        self.service.started = True
        self.reloads.loaded.set()
        if self.config.reload.watch:
            self._tasks.append(asyncio.ensure_future(self.reloads.follow(self.config.reload.poll_seconds)))
        self._tasks.append(asyncio.ensure_future(self.repository.keep_retrying(report)))
        if self.config.residency.on_demand:
            self._tasks.append(asyncio.ensure_future(self.repository.on_demand.run()))
        if self._servers is not None:
            self._tasks.append(asyncio.ensure_future(self.repository.keep_following(self._servers, report)))
        if self.config.model_control.mode == "poll":
            self._tasks.append(asyncio.ensure_future(self.repository.keep_polling(report)))

    def _note_loss(self, model: str, why: str) -> None:
        """In the thread where it was noticed."""
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody is left to tell
            self._loop.call_soon_threadsafe(self.lose_device, model)

    def lose_device(self, model: str) -> None:
        """Unready in every dialect, and no answers from a GPU: CUDA refuses all further work of this process."""
        self.service.draining = True
        self.repository.lose_device(model)
        self.device_lost.set()

    async def leave(self, grace: float) -> None:
        """Answer what still can be answered, for so many seconds. Nothing is unloaded: the process is to end now."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(grace):
                await self.ports.stop(grace, hand_on=True)
        await self._close_observer()

    async def drain(self, hurried: asyncio.Event | None = None) -> bool:
        """Unready in every dialect; after `unready_seconds`, or once it is `hurried`, no new connections; everything
        that was accepted answered, then models unloaded.

        False if that took longer than `drain_seconds`: who still waits then is told so.
        """
        self.service.draining = True
        self.reloads.stop()
        for task in self._tasks:
            task.cancel()
        self.ports.drain()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self.config.unready_seconds):
                await (hurried or asyncio.Event()).wait()
        grace = self.config.drain_seconds
        timer = asyncio.get_running_loop().call_later(grace, self.give_up)
        try:
            async with asyncio.timeout(grace + _AFTER_GIVING_UP_S) as self._ending:
                if self._gave_up:
                    self.give_up()
                await self.ports.stop(grace + 0.5)
                await self.repository.close()
                if self._servers is not None:
                    await self._servers.close()
                await asyncio.to_thread(self.tracing.close)
        except TimeoutError:
            return False
        finally:
            self._ending = None
            timer.cancel()
            self._bound.close()
            await self._close_observer()
        return True

    def give_up(self) -> None:
        """Nobody shall wait any longer: who does is told so, and draining ends soon, whatever still runs."""
        self.repository.give_up()
        self._gave_up = True
        if self._ending is not None and not self._ending.expired():
            self._ending.reschedule(asyncio.get_running_loop().time() + _AFTER_GIVING_UP_S)

    async def _close_observer(self) -> None:
        if self.observer is not None:
            await asyncio.to_thread(self.observer.close)
        if self._recorder is not None:
            await asyncio.to_thread(self._recorder.close)

    def reopen_logs(self) -> None:
        """The access log was renamed, and goes on in a new file."""
        if self.observer is not None:
            self.observer.reopen()

    def examples(self) -> dict[str, str]:
        """Dialect title -> one shell line that works right now, for the first model that the dialect can call with one
        that people can read.
        """
        address = next((a for a in self.addresses if a.startswith("http://")), None)
        if address is None:
            return {}
        served = self.ports.spoken(self.config.listen.http[0])
        return {d.title: line for d in served if (line := self._example(d, address)) is not None}

    @property
    def page_address(self) -> str | None:
        """Where a browser finds the operator's page."""
        return f"{self._site}/" if self.config.page and self._site else None

    @property
    def docs_address(self) -> str | None:
        """Where it finds the API described."""
        return f"{self._site}{DOCS_PATHS[0]}" if self.config.api_docs and self._site else None

    @property
    def _site(self) -> str:
        """The first address for browsers, "" where its port speaks no dialect."""
        address = next((a for a in self.addresses if a.startswith(("http://", "https://"))), "")
        return address if address and self.ports.spoken(self.config.listen.http[0]) else ""

    def _grpc_port(self) -> int | None:
        """The port of the first gRPC listener; doors have bound it where this process has not."""
        bound = [address for address in self.addresses if address.startswith("grpc")]
        told = bound[:1] or [each.bind for each in self.config.listen.grpc[:1]]
        port = told[0].rpartition(":")[2] if told else ""
        return int(port) if port.isdecimal() and int(port) else None

    def _example(self, dialect: Dialect, address: str) -> str | None:
        for versions in self.repository.snapshot.models.values():
            view = versions[max(versions)].view
            if view.configuration.get("sequences"):  # one request alone is no sequence
                continue
            sample = dialect.sample(view)
            if sample is not None and (line := self._line(dialect, view.name, sample, address)) is not None:
                return line
        return None

    def _line(self, dialect: Dialect, model: str, sample: SampleRequest, address: str) -> str | None:
        """The shell line that sends a sample: with its body where that is short, or asks the gateway itself for it."""
        auth = self.config.auth
        needs_key = auth is not None and auth.mode == "required"
        can_ask = self.config.api_docs and not needs_key
        line = sample.curl(address)
        if line is not None and len(line) <= (_MAX_SHORT_CHARS if can_ask else _MAX_EXAMPLE_CHARS):
            return f'{line} -H "Authorization: Bearer $KEY"' if needs_key else line
        body = f"tensorgate sample {shlex.quote(model)} --dialect {dialect.name} --url {address}"
        return f"{body} | {sample.curl_of_stdin(address)}" if can_ask else None

    def pages(self, dialects: Sequence[Dialect]) -> dict[str, Page]:
        """The house's own pages on a port that speaks these dialects: those for operators are on no other."""
        operated = pages(self.overview, dialects) if self.config.page and dialects else {}
        shown = {**operated, **docs_pages(self.config, dialects)}
        return self._pages() | {path: read_only(read) for path, read in shown.items()}

    def _gpus(self) -> list[Gpu]:
        return gpus_of((device for model in self.repository.serving() for device in model.devices), read_gpu)

    def _pages(self) -> dict[str, Page]:
        pages = {
            "/metrics": metrics_page(self.metrics.page, self.metrics.settle),
            "/healthz": probe_page(lambda: True),
            "/readyz": probe_page(lambda: self.service.ready),
            "/admin/reload": admin_page(self._check_admin, self._reload),
        }
        return pages | {
            counters.wanted.path: dialect_metrics_page(counters.page, self.metrics.settle)
            for counters in self._call_counters.values()
        }

    def _guarded(self, pages: Iterable[str]) -> dict[str, str]:
        return guarded(pages, (each.wanted.path for each in self._call_counters.values()), self.dialects.values())


def guarded(pages: Iterable[str], metrics: Iterable[str], dialects: Iterable[Dialect]) -> dict[str, str]:
    """Which pages need whose rights. Probes need nobody's, nor do the operator's page itself and /docs: they tell
    nothing, and ask for a key.
    """
    counted = {"/metrics", *metrics}
    open_to_all = {"/healthz", "/readyz", "/admin/reload", *open_paths(dialects), *DOCS_PATHS}
    return {path: "metrics" if path in counted else "page" for path in pages if path not in open_to_all}


def house_dialects(config: Config) -> tuple[Dialect, ...]:
    """The dialects of the house, beside those that the table names."""
    return (API_DOCUMENTS,) if config.api_docs else ()


def docs_pages(config: Config, dialects: Sequence[Dialect]) -> dict[str, ReadPage]:
    """/docs on a port that speaks these dialects."""
    return dict.fromkeys(DOCS_PATHS, docs_page) if config.api_docs and dialects else {}


def _waits_for(loop: asyncio.AbstractEventLoop) -> Await:
    return lambda work: asyncio.run_coroutine_threadsafe(work, loop).result()


def _public_configuration(config: Config) -> dict[str, Any]:
    """The configuration, but for who may do what."""
    return {section: said for section, said in config.plain().items() if section not in ("auth", "rate_limits")}


def alias(dialects: Iterable[Dialect], view: ModelView) -> str | None:
    """The qualified name that a dialect gives to a model, the first one's that does."""
    return next((name for dialect in dialects if (name := dialect.alias(view)) is not None), None)


def _tracing(config: Config) -> RequestTracing:
    wanted = config.tracing
    initial = {"trace_rate": wanted.rate, "trace_count": wanted.count, "log_frequency": wanted.log_frequency}
    levels = {"trace_level": wanted.level} if wanted.level else {}
    if wanted.file is None:
        return RequestTracing(initial={**initial, **levels})
    return RequestTracing(TraceFile(wanted.file.path), wanted.file.written, {**initial, **levels})


def observer_of(
    config: Config, alone: Callable[[], contextlib.AbstractContextManager[Any]] = contextlib.nullcontext
) -> Observer | None:
    """`alone` keeps other processes from the access log. Raises ImportError where OpenTelemetry is wanted, and not
    installed.
    """
    log, wanted = None, config.access_log
    file = LogFile(wanted.file.written, wanted.file.path, alone=alone) if wanted is not None else None
    if wanted is not None and file is not None:
        log = AccessLog(wanted, file)
    spans = Spans(config.opentelemetry, __version__) if config.opentelemetry is not None else None
    usage = Usage() if config.metrics.usage else None
    return Observer(log, file, spans, usage) if log is not None or spans is not None or usage is not None else None


def recorder_of(config: Config, slot: int | None = None) -> FlightRecorder | None:
    """What records calls: of the door of a slot, in files of its own."""
    wanted = config.record
    if wanted is None:
        return None
    files = None
    if wanted.file is not None:
        path = wanted.file.path
        if slot is not None:
            path = path.with_name(f"{path.name}-{slot}")
        files = RecordFiles(path, wanted.max_bytes, wanted.files)
    keys = frozenset({config.admin.header.lower()}) if config.admin is not None else frozenset[str]()
    return FlightRecorder(wanted, files, EventSink(wanted.events, config.server_name) if wanted.events else None, keys)


@contextlib.asynccontextmanager
async def loaded_models(config: Config, kinds: Registries) -> AsyncIterator[LoadedConfig]:
    """Load every model, without ports, and give them back at the end."""
    kinds = config.extended(kinds)
    reports: list[LoadReport] = []
    on_loop = _waits_for(asyncio.get_running_loop())
    validate = model_validator(kinds)
    files = model_files(config)
    models = catalog(config, kinds, validate=validate, files=files)
    processes = ModelProcesses(MODEL_PROCESS, __version__)
    load_model = loader(kinds, lambda ref: router.resolve(ref), on_loop, config.cpu.budget(), processes, config.ops)
    everything = config.model_copy(update={"residency": Residency()})
    repository = _repository(everything, kinds, models, validate, load_model, Meters(), ResponseCache(), dict, files)
    options = config.dialects()
    dialects = {name: kind.make(options[name]) for name, kind in kinds.dialects.items()}
    default_model = next((dialect.default_model for dialect in dialects.values() if dialect.default_model), None)
    router = Router(config, repository, default_model, lambda view: alias(dialects.values(), view))
    await repository.load_all(reports.append)
    failed = [(report.name, f"{report}: {report.error}") for report in reports if report.error]
    try:
        yield LoadedConfig(router, dialects, list(repository.serving()), failed)
    finally:
        await repository.close()


def dry_run_load(config: Config, kinds: Registries) -> list[tuple[str, str]]:
    """Load every model and give it back; what went wrong, each with the model's name."""

    async def load() -> list[tuple[str, str]]:
        async with loaded_models(config, kinds) as loaded:
            return loaded.failed

    return asyncio.run(load())


def plan(old: Path, new: Path, text: Callable[[], str] | None = None) -> Changes:
    """What a reload would do that finds one configuration in the place of another; `text` stands for the old file, as
    if it lay where the new one does. Raises ConfigError.
    """
    kinds = registries()
    after = load_config(new, kinds)
    before = load_text(text(), new, kinds) if text else load_config(old, kinds)
    return changes(before, after, _models(before, kinds), _models(after, kinds))


def _models(config: Config, kinds: Registries) -> dict[str, ModelConfig]:
    """All that a configuration names, those of repositories among them. Raises ConfigError."""
    models = catalog(config, config.extended(kinds))
    found: dict[str, ModelConfig] = {}
    problems = []
    try:
        names = models.names()
    except OSError as error:
        raise ConfigError((Problem(config.source, 0, 0, "repositories", str(error)),)) from None
    for name in names:
        try:
            found[name] = models.read(name)
        except (ValueError, OSError) as error:
            problems.append(Problem(config.source, 0, 0, f"models.{name}", str(error)))
    if problems:
        raise ConfigError(tuple(problems))
    return found


def report_line(report: LoadReport) -> str:
    """What became of a version, as `serve` says it."""
    if report.error:
        return f"  FAILED {report}: {report.error}"
    warm = report.warm_up
    warmed = f", warm: first run {warm.first * 1e3:.2f} ms, then {warm.best * 1e3:.3f} ms" if warm else ""
    proof = report.verified
    verified = f", verified by {proof.by}, sha256 {proof.sha256}" if proof else ""
    return f"  loaded {report} on {report.device} in {report.seconds:.2f} s{warmed}{verified}"


def freeze_gc() -> None:
    """Modules, tables and configuration live as long as the process. Python's collector of cycles would look at all of
    them again and again, and the event loop stand still meanwhile, for 50 ms. Models, which come and go, come later.
    """
    gc.collect()
    gc.freeze()


def reclaim_memory() -> None:
    """What an unloaded model leaves is freed, and still kept: by Python in cycles of references, by CuPy and PyTorch on
    the device, by glibc because of `tune_process`. Cycles of old are frozen, so that few remain to be looked at; glibc
    gives back without the interpreter's lock.
    """
    gc.collect()
    free_pools()
    trim_memory()


def trim_memory() -> None:
    """What large bodies leave is freed, and still kept by glibc because of `tune_process`: tens of milliseconds for a
    gigabyte, without the interpreter's lock.
    """
    if platform.libc_ver()[0] == "glibc":
        ctypes.CDLL(None).malloc_trim(0)


def tune_process() -> None:
    """What a server wants of its interpreter and allocator, and a program at large does not.

    A model's thread that has its result waits for the interpreter until the event loop lets go of it: half a
    millisecond at most, not Python's five. A request of a hundred thousand parts is as many objects, over all of which
    Python's collector of cycles would go again and again, while everybody waits: it looks at a few thousand young ones
    at a time, and at all only after millions. And glibc keeps large freed buffers instead of giving each back to the
    kernel: large bodies come and go, and fresh pages cost more than the bytes in them. All threads share one arena,
    since those of other threads keep nothing: they are unmapped as soon as they are empty.
    """
    sys.setswitchinterval(0.5e-3)
    gc.set_threshold(5_000, 5, 200)
    if platform.libc_ver()[0] == "glibc":
        m_trim_threshold, m_mmap_threshold, m_arena_max = -1, -3, -8
        libc = ctypes.CDLL(None)
        libc.mallopt(m_arena_max, 1)
        libc.mallopt(m_mmap_threshold, 1 << 30)
        libc.mallopt(m_trim_threshold, (1 << 31) - 1)

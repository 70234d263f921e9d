"""From a model on disk to a model in memory, in threads of its own, so that the event loop does not wait."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import time
import weakref
from collections.abc import Callable, Hashable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeVar

from tensorgate.gateway.config import ModelConfig
from tensorgate.gateway.config.residency import ModelResidency
from tensorgate.gateway.contract.canonical import ModelView
from tensorgate.gateway.contract.dialect import WarmupRequest
from tensorgate.gateway.contract.errors import Code, GatewayError, Reason, source_location, text_of
from tensorgate.gateway.contract.execution import Computation
from tensorgate.gateway.contract.tensor import NOTHING
from tensorgate.gateway.engine.model import Model, absent_view
from tensorgate.gateway.engine.response_cache import ResponseCache
from tensorgate.gateway.engine.shares import Shares
from tensorgate.gateway.engine.warmup import WarmUp
from tensorgate.gateway.models.catalog import Catalog, Validate
from tensorgate.gateway.models.meters import Meters
from tensorgate.gateway.models.model_files import ModelFiles
from tensorgate.gateway.models.model_folder import Upload, first_program, store
from tensorgate.gateway.models.model_spec import model_spec
from tensorgate.gateway.models.model_state import StoredModel
from tensorgate.gateway.models.verification import NotVerified, Verified, Verifier, pinned
from tensorgate.gateway.stores.cache import CacheFull

log = logging.getLogger(__name__)

Result = TypeVar("Result")
LoadComputation = Callable[[ModelConfig, str, int, Path], Computation]
"""(configuration, name, version, path) -> loaded computation.

Called in a thread; raises with a message for the operator.
"""

_THREADS: Final = min(8, max(2, (os.cpu_count() or 1) - 1))
"""One fewer than the cores, so that requests are served meanwhile."""
_NO_PROGRAMS: Final = "this server takes none (see model_control.trusted)"
_AS_ALL: Final = ModelResidency()
_FOLDERS: Final = re.compile(r"(?<![^\s('\"=:,])/(?:[^\s/:'\"]+/)+")
_URLS: Final = re.compile(r"\b[a-z][a-z0-9]*://[^\s'\"]*/")
_CODES: Final = {
    NotVerified: Code.FAILED_PRECONDITION,
    FileNotFoundError: Code.NOT_FOUND,
    PermissionError: Code.PERMISSION_DENIED,
    MemoryError: Code.RESOURCE_EXHAUSTED,
    ConnectionError: Code.UNAVAILABLE,
    CacheFull: Code.RESOURCE_EXHAUSTED,
    ValueError: Code.INVALID_ARGUMENT,
}


@dataclass(frozen=True, slots=True)
class LoadReport:
    """The outcome of loading one version, for the operator; `version` is None if the model's versions could not be
    read. `error` is empty if the version serves. `verified` says what it has proved.
    """

    name: str
    version: int | None
    device: str = ""
    seconds: float = 0.0
    warm_up: WarmUp | None = None
    error: str = ""
    verified: Verified | None = None

    def __str__(self) -> str:
        return f"{self.name} version {self.version}" if self.version is not None else self.name


Report = Callable[[LoadReport], None]


def _refuse(plain: Mapping[str, Any], folder: Path) -> ModelConfig:
    raise ValueError("only models of the configuration are served here")


@dataclass(frozen=True, slots=True)
class RepositoryDeps:
    """What the composition root knows of models and the repository does not.

    `load` makes a computation, `meters` count what versions do.
    `describe` tells of a version that is not loaded, where its file does; it is called in a thread.
    `entries` are those of the configuration file, which are known before any model is read.
    `versioned` tells whether a model has version folders, `numbers` which versions one without them has, `runs_code`
    whether its files are programs, `parts` which models an ensemble is composed of; `validate` turns a model's plain
    YAML form into its configuration. `cache` is for models with response_cache. `reclaim` returns freed memory to the
    system; it is called in a thread. `warmup_requests` reads those that lie at the path of a version; it is called in a
    thread, too. `files` finds those of models, wherever they lie. With `shares`, callers have theirs of the devices.
    """

    load: LoadComputation
    meters: Meters
    versioned: Callable[[ModelConfig], bool]
    parts: Callable[[ModelConfig], Iterable[str]] = lambda config: ()
    validate: Validate = _refuse
    cache: ResponseCache = field(default_factory=ResponseCache)
    reclaim: Callable[[], None] = lambda: None
    runs_code: Callable[[ModelConfig], bool] = lambda config: True
    warmup_requests: Callable[[Path, ModelView], list[WarmupRequest]] = lambda path, view: []
    numbers: Callable[[ModelConfig], Iterable[int]] = lambda config: (1,)
    entries: Callable[[], Mapping[str, ModelConfig]] = lambda: NOTHING
    describe: Callable[[ModelConfig, str, int, Path], Computation | None] = lambda config, name, version, path: None
    shares: Shares | None = None
    files: ModelFiles = field(default_factory=ModelFiles)

    def residency(self, name: str) -> ModelResidency:
        """What a model's entry in the file says of how it is held."""
        entry = self.entries().get(name)
        return _AS_ALL if entry is None else entry.residency


class ModelLoader:
    """Reads models of a catalog and loads them. Unless callers are `trusted`, their files must not be programs."""

    def __init__(
        self, catalog: Catalog, deps: RepositoryDeps, *, trusted: bool = False, verifier: Verifier | None = None
    ) -> None:
        self._catalog = catalog
        self._deps = deps
        self._trusted = trusted
        self._verifier = verifier or Verifier()
        self._threads = ThreadPoolExecutor(_THREADS, "load")

    def fingerprints(self, names: Callable[[], Iterable[str]]) -> dict[str, Hashable]:
        """The fingerprint of each model. Call it in a thread. Raises OSError."""
        return {name: self._catalog.fingerprint(name) for name in names()}

    def read(
        self,
        name: str,
        configuration: str | None = None,
        files: Mapping[str, bytes] = NOTHING,
        served: StoredModel | None = None,
    ) -> StoredModel:
        """A model's configuration and versions. Call it in a thread. Raises as the catalog does, and ValueError for
        programs among the files of callers who are not trusted.

        The configuration that a caller gave for what is `served` stands until a file of the model changes, or files
        come. Source: Triton, loads after a load with `config`.
        """
        if not self._trusted and (program := first_program(files)) is not None:
            raise ValueError(f"file '{program}' is a program; {_NO_PROGRAMS}")
        fingerprint = self._catalog.fingerprint(name) or None
        if configuration is None and served is not None and served.upload is None and served.fingerprint == fingerprint:
            configuration = served.given
        upload = store(files) if files else None
        try:
            config = self._catalog.read(name, configuration, Path(upload.name) if upload else None)
            if upload is not None and not self._trusted and self._deps.runs_code(config):
                raise ValueError(f"files of the backend {config.backend} are programs; {_NO_PROGRAMS}")
            return self.stored(config, fingerprint, upload, given=configuration)
        except BaseException:
            if upload is not None:
                upload.cleanup()
            raise

    def stored(
        self,
        config: ModelConfig,
        fingerprint: Hashable = None,
        upload: Upload | None = None,
        *,
        given: str | None = None,
    ) -> StoredModel:
        """The versions at the path of a configuration. Call it in a thread. Raises OSError or ValueError."""
        deps = self._deps
        found = deps.files.versions(config, deps.versioned(config), deps.numbers(config))
        return StoredModel(config, found.paths, fingerprint, upload, given, found.trees)

    def described(self, stored: StoredModel, name: str) -> ModelView | None:
        """How callers would see the highest version of a model; None where only its load would tell, or would fetch it.
        In a thread. Raises as a load does.
        """
        version = max(stored.versions, default=None)
        if version is None:
            return None
        config, tree, files = stored.config, stored.trees.get(version), self._deps.files
        if tree is not None and not files.stores.cache.has(tree):
            return None
        lease = files.lease(config, tree) if tree is not None else None
        verified = self._verifier.check(config, version, stored.versions[version])
        computation = self._deps.describe(config, name, version, stored.versions[version])
        if lease is not None:
            lease.close()
        if computation is None or not computation.platform or config.sequences is not None:
            return None
        spec = model_spec(config, computation, verified)
        return absent_view(name, version, tuple(stored.versions), computation, spec)

    async def fetch(self, stored: StoredModel) -> None:
        """Have the files of all versions on this machine, in the cache. Raises OSError or ValueError."""
        for tree in stored.trees.values():
            lease = await self._in_thread(self._deps.files.lease, stored.config, tree)
            lease.close()

    async def load_version(self, name: str, version: int, stored: StoredModel, report: Report) -> Model | Reason:
        """A version, loaded and warmed up, or the reason for callers why not."""
        started = time.perf_counter()
        try:
            path, tree = stored.versions[version], stored.trees.get(version)
            lease = await self._in_thread(self._deps.files.lease, stored.config, tree) if tree is not None else None
            verified = await self._in_thread(self._verifier.check, stored.config, version, path)
            model, warm_up = await self._make(name, version, stored.config, path, verified)
        except Exception as error:
            log.debug("model %s version %s failed to load", name, version, exc_info=error)
            text = load_error(error, stored.versions[version])
            report(LoadReport(name, version, error=text))
            return Reason(without_folders(text), code_of(error))
        if lease is not None:
            weakref.finalize(model, lease.close)  # mapped files of it stay until then
        model.load_seconds = time.perf_counter() - started
        report(LoadReport(name, version, ", ".join(model.devices), model.load_seconds, warm_up, verified=verified))
        return model

    async def _make(
        self, name: str, version: int, config: ModelConfig, path: Path, verified: Verified | None
    ) -> tuple[Model, WarmUp | None]:
        known = pinned(config, verified.plain()) if verified else config
        computation = await self._in_thread(self._deps.load, known, name, version, path)
        try:
            spec = await asyncio.to_thread(model_spec, config, computation, verified)
            if spec.policy.goal is not None and self._deps.shares is not None:
                raise ValueError("target_p99_ms: callers have shares, which have an order of their own; leave out one")
            model = Model(
                name,
                version,
                (version,),
                computation,
                spec,
                self._deps.meters.meter(name, version),
                self._deps.cache,
                self._deps.shares,
            )
        except BaseException:
            for executor in computation.executors:
                await asyncio.to_thread(executor.close)
            raise
        try:
            beside = await self._in_thread(self._deps.warmup_requests, path, model.view)
            warm_up = await model.warm_up(self._in_thread, beside)
            if verified is not None:
                await self._in_thread(verified.check_unchanged)
            return model, warm_up
        except BaseException:
            await model.close()
            raise

    async def _in_thread(self, call: Callable[..., Result], *args: Any) -> Result:
        """Call what may take minutes, apart from asyncio's threads, whose calls take milliseconds."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, call, *args)

    def close(self) -> None:
        """End the threads; busy ones finish their call first."""
        self._threads.shutdown(wait=False)


def load_error(error: BaseException, path: Path) -> str:
    """Why a version at a path could not be loaded, in one line for the operator; with the place in the model's code."""
    text = error_line(error)
    location = _source_location(error, path)
    return f"{text} ({location})" if location else text


def error_line(error: BaseException) -> str:
    """An error's text in one line, for the operator; with its type if it is unexpected."""
    expected = isinstance(error, (GatewayError, OSError, ValueError, ImportError, MemoryError))
    text = text_of(error) if expected else f"{type(error).__name__}: {text_of(error)}"
    return text or type(error).__name__


def _source_location(error: BaseException, path: Path) -> str:
    """The file and line in the model's own code that raised; empty for a SyntaxError, whose text has them already."""
    if isinstance(error, SyntaxError):
        return ""
    return source_location(error, path if path.is_dir() else path.parent)


def public_error(error: Exception) -> str:
    """An error's text in one line, for callers."""
    return without_folders(error_line(error))


def without_folders(text: str) -> str:
    """A text for callers, who must not learn where models lie: folders of paths and URLs are removed."""
    return _FOLDERS.sub("", _URLS.sub("", text))


def code_of(error: Exception) -> Code:
    """The status code of a failed load; a wrong file is INVALID_ARGUMENT."""
    if isinstance(error, GatewayError):
        return error.code
    return next((code for kind, code in _CODES.items() if isinstance(error, kind)), Code.UNKNOWN)

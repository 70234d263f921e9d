"""From a model on disk to a model in memory: what is slow, in threads of its own, so that nobody waits for it."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import time
from collections.abc import Callable, Hashable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeVar

from tensorgate.gateway.config import ModelConfig
from tensorgate.gateway.contract.errors import Code, GatewayError, Reason, place_of, text_of
from tensorgate.gateway.contract.execution import Computation
from tensorgate.gateway.contract.tensor import NOTHING
from tensorgate.gateway.engine.model import Model
from tensorgate.gateway.engine.response_cache import ResponseCache
from tensorgate.gateway.engine.scheduler_metrics import SchedulerMetrics
from tensorgate.gateway.engine.warmup import WarmUp
from tensorgate.gateway.models.catalog import Catalog, Validate
from tensorgate.gateway.models.model_folder import Upload, first_program, store, wanted_versions
from tensorgate.gateway.models.model_spec import model_spec
from tensorgate.gateway.models.model_state import Stored

log = logging.getLogger(__name__)

Result = TypeVar("Result")
LoadComputation = Callable[[ModelConfig, str, int, Path], Computation]
"""(configuration, name, version, where it lies) -> loaded computation.

Called in a thread; raises with a message for the operator.
"""

_THREADS: Final = min(8, max(2, (os.cpu_count() or 1) - 1))
"""Not so many that no core is left to the requests that come meanwhile."""
_NO_PROGRAMS: Final = "this server takes none (see model_control.trusted)"
_FOLDERS: Final = re.compile(r"(?<![^\s('\"=:,])/(?:[^\s/:'\"]+/)+")
_CODES: Final = {
    FileNotFoundError: Code.NOT_FOUND,
    PermissionError: Code.PERMISSION_DENIED,
    MemoryError: Code.RESOURCE_EXHAUSTED,
    ValueError: Code.INVALID_ARGUMENT,
}


@dataclass(frozen=True, slots=True)
class LoadReport:
    """What became of one wanted version, or (None) of the model whose versions could not even be told, for the
    operator's eyes. `error` is empty if it serves.
    """

    name: str
    version: int | None
    device: str = ""
    seconds: float = 0.0
    warm_up: WarmUp | None = None
    error: str = ""


Report = Callable[[LoadReport], None]


def _refuse(plain: Mapping[str, Any], folder: Path) -> ModelConfig:
    raise ValueError("only models of the configuration are served here")


@dataclass(frozen=True, slots=True)
class RepositoryDeps:
    """What the composition root knows of models and the repository does not.

    `load` makes a computation, `meter` tells where a version reports to, `forget` that it will not report any more,
    `versioned` whether a model has version folders, `runs_code` whether its files are programs, `parts` which models it
    is composed of, `validate` what becomes of a model's plain YAML form. `cache` is for the models that want one.
    `reclaim` gives the system the memory that an unloaded model has left; it is called in a thread.
    """

    load: LoadComputation
    meter: Callable[[str, int], SchedulerMetrics]
    versioned: Callable[[ModelConfig], bool]
    forget: Callable[[str, int], None] = lambda name, version: None
    parts: Callable[[ModelConfig], Iterable[str]] = lambda config: ()
    validate: Validate = _refuse
    cache: ResponseCache = field(default_factory=ResponseCache)
    reclaim: Callable[[], None] = lambda: None
    runs_code: Callable[[ModelConfig], bool] = lambda config: True


class Loader:
    """Reads models of a catalog and makes them. Only where callers are `trusted` may their files be programs."""

    def __init__(self, catalog: Catalog, hooks: RepositoryDeps, *, trusted: bool = False) -> None:
        self._catalog = catalog
        self._hooks = hooks
        self._trusted = trusted
        self._threads = ThreadPoolExecutor(_THREADS, "load")

    def look(self, names: Callable[[], Iterable[str]]) -> dict[str, Hashable]:
        """The models of those names, each with its fingerprint. In a thread. Raises OSError."""
        return {name: self._catalog.fingerprint(name) for name in names()}

    def read(self, name: str, configuration: str | None = None, files: Mapping[str, bytes] = NOTHING) -> Stored:
        """What the catalog says of a model, and what lies there. In a thread. Raises as the catalog does, and
        ValueError for programs among the files of callers who are not trusted.
        """
        if not self._trusted and (program := first_program(files)) is not None:
            raise ValueError(f"file '{program}' is a program; {_NO_PROGRAMS}")
        seen = self._catalog.fingerprint(name) if name in self._catalog.names() else None
        upload = store(files) if files else None
        try:
            config = self._catalog.read(name, configuration, Path(upload.name) if upload else None)
            if upload is not None and not self._trusted and self._hooks.runs_code(config):
                raise ValueError(f"files of the backend {config.backend} are programs; {_NO_PROGRAMS}")
            return self.stored(config, seen, upload, given=configuration is not None)
        except BaseException:
            if upload is not None:
                upload.cleanup()
            raise

    def stored(
        self, config: ModelConfig, seen: Hashable = None, upload: Upload | None = None, *, given: bool = False
    ) -> Stored:
        """What lies where a configuration says. In a thread. Raises OSError."""
        place = config.path.path if config.path else Path()
        versions = wanted_versions(config) if self._hooks.versioned(config) else {1: place}
        return Stored(config, versions, seen, upload, given)

    async def make(self, name: str, version: int, stored: Stored, report: Report) -> Model | Reason:
        """A version, loaded and warm, or, for callers, why not."""
        started = time.perf_counter()
        try:
            model, warm_up = await self._load_version(name, version, stored.config, stored.versions[version])
        except Exception as error:
            log.debug("model %s version %s failed to load", name, version, exc_info=error)
            text = told(error)
            if place := _place_of(error, stored.versions[version]):
                text = f"{text} ({place})"
            report(LoadReport(name, version, error=text))
            return Reason(without_folders(text), code_of(error))
        model.load_seconds = time.perf_counter() - started
        report(LoadReport(name, version, ", ".join(model.devices), model.load_seconds, warm_up))
        return model

    async def _load_version(
        self, name: str, version: int, config: ModelConfig, path: Path
    ) -> tuple[Model, WarmUp | None]:
        computation = await self._in_thread(self._hooks.load, config, name, version, path)
        try:
            plan = await asyncio.to_thread(model_spec, config, computation)
            model = Model(
                name, version, (version,), computation, plan, self._hooks.meter(name, version), self._hooks.cache
            )
        except BaseException:
            for executor in computation.executors:
                await asyncio.to_thread(executor.close)
            raise
        try:
            return model, await model.warm_up(self._in_thread)
        except BaseException:
            await model.close()
            raise

    async def _in_thread(self, call: Callable[..., Result], *args: Any) -> Result:
        """Call what may take minutes: it must not wait behind what takes milliseconds, nor the other way round."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, call, *args)

    def close(self) -> None:
        """Threads that are busy end with what they do."""
        self._threads.shutdown(wait=False)


def told(error: Exception) -> str:
    """What went wrong, in one line; what nobody expected, with its kind."""
    expected = isinstance(error, (GatewayError, OSError, ValueError, ImportError, MemoryError))
    text = text_of(error) if expected else f"{type(error).__name__}: {text_of(error)}"
    return text or type(error).__name__


def _place_of(error: Exception, path: Path) -> str:
    """Where in a model's own code it was, if it has some, and the text does not say so itself as Python's does of what
    it cannot read.
    """
    if isinstance(error, SyntaxError):
        return ""
    return place_of(error, path if path.is_dir() else path.parent)


def without_folders(text: str) -> str:
    """For callers, who need not know where models lie."""
    return _FOLDERS.sub("", text)


def code_of(error: Exception) -> Code:
    """Of what kind a failed load is. What lies on disk and is wrong is the argument."""
    if isinstance(error, GatewayError):
        return error.code
    return next((code for kind, code in _CODES.items() if isinstance(error, kind)), Code.UNKNOWN)

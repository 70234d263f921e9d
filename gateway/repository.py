"""Which models are loaded, in which versions, in what state.

Readers get a snapshot: an immutable table that is replaced whole when anything changes, so that a request sees one
state of the world.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from gateway.canonical import NOTHING, Signature, Tensors, TensorSpec
from gateway.config import Config, ModelConfig, SignatureConfig
from gateway.errors import GatewayError, ModelNotFound
from gateway.model import Model, ModelPlan, WarmUp
from gateway.ports import Computation
from gateway.questions import VersionStatus
from gateway.scheduler import Meter, QueuePolicy

log = logging.getLogger(__name__)

LoadComputation = Callable[[ModelConfig, str, int, Path], Computation]
"""(configuration, name, version, where it lies) -> loaded computation.

Called in a thread; raises with a message for the operator.
"""

LOADING: Final = "LOADING"
AVAILABLE: Final = "AVAILABLE"
UNLOADING: Final = "UNLOADING"
END: Final = "END"


@dataclass(frozen=True, slots=True)
class LoadReport:
    """What became of one wanted version, for the operator's eyes. `error` is empty if it serves."""

    name: str
    version: int
    device: str = ""
    seconds: float = 0.0
    warm_up: WarmUp | None = None
    error: str = ""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Everything that is ready: versions by model, ascending. `configured` names also what failed to load."""

    models: Mapping[str, Mapping[int, Model]] = NOTHING
    configured: tuple[str, ...] = ()


class Repository:
    """Loads and unloads versions, and remembers what became of each."""

    def __init__(
        self,
        config: Config,
        load: LoadComputation,
        meter: Callable[[str, int], Meter],
        versioned: Callable[[ModelConfig], bool],
    ) -> None:
        self._config = config
        self._load = load
        self._meter = meter
        self._versioned = versioned
        self._statuses: dict[str, dict[int, VersionStatus]] = {name: {} for name in config.models}
        self.snapshot = Snapshot(configured=tuple(config.models))

    async def load_all(self, report: Callable[[LoadReport], None]) -> None:
        """Load every wanted version, one after the other, off the loop; a failure is reported and stops nobody else."""
        for name, config in self._config.models.items():
            wanted = wanted_versions(config) if self._versioned(config) else {1: _path(config)}
            if not wanted:
                report(LoadReport(name, 0, error=f"no version to load in {_path(config)}"))
            for version, path in wanted.items():
                report(await self._load_version(config, name, version, path, tuple(wanted)))

    def statuses(self, name: str, version: int | None = None) -> tuple[VersionStatus, ...]:
        """Every version that was ever wanted, highest first, or the one that is named. Raises ModelNotFound."""
        known = self._statuses.get(name, {})
        if version is not None:
            known = {version: known[version]} if version in known else {}
        if not known:
            raise ModelNotFound(name, version, known=name in self._statuses)
        return tuple(known[number] for number in sorted(known, reverse=True))

    def all_available(self) -> bool:
        """Whether every wanted version is ready, and every model has one."""
        return all(
            statuses and all(status.state == AVAILABLE for status in statuses.values())
            for statuses in self._statuses.values()
        )

    async def close(self) -> None:
        """Unload everything, once what was accepted is answered."""
        models = [model for versions in self.snapshot.models.values() for model in versions.values()]
        for model in models:
            self._note(model.name, model.version, UNLOADING)
        await asyncio.gather(*(model.close() for model in models))
        for model in models:
            self._note(model.name, model.version, END)

    async def _load_version(
        self, config: ModelConfig, name: str, version: int, path: Path, versions: tuple[int, ...]
    ) -> LoadReport:
        self._note(name, version, LOADING)
        started = time.perf_counter()
        try:
            computation = await asyncio.to_thread(self._load, config, name, version, path)
            plan = model_plan(config, computation)
            model = Model(name, version, versions, computation, plan, self._meter(name, version))
            warm_up = await asyncio.to_thread(model.warm_up)
        except Exception as error:
            return self._failed(name, version, error)
        self._publish(model)
        self._note(name, version, AVAILABLE)
        return LoadReport(name, version, model.device, time.perf_counter() - started, warm_up)

    def _failed(self, name: str, version: int, error: Exception) -> LoadReport:
        expected = isinstance(error, (GatewayError, OSError, ValueError, ImportError))
        log.debug("model %s version %s failed to load", name, version, exc_info=error)
        text = str(error) if expected else f"{type(error).__name__}: {error}"
        self._note(name, version, END, text or type(error).__name__)
        return LoadReport(name, version, error=text or type(error).__name__)

    def _note(self, name: str, version: int, state: str, error: str = "") -> None:
        self._statuses[name][version] = VersionStatus(version, state, error)

    def _publish(self, model: Model) -> None:
        versions = {**self.snapshot.models.get(model.name, {}), model.version: model}
        ordered = {number: versions[number] for number in sorted(versions)}
        self.snapshot = Snapshot({**self.snapshot.models, model.name: ordered}, self.snapshot.configured)


def wanted_versions(config: ModelConfig) -> dict[int, Path]:
    """Version -> where it lies, ascending, as the version policy chooses.

    A folder whose name is a number is a version; others are ignored.
    """
    folders = [entry for entry in _path(config).iterdir() if entry.is_dir() and entry.name.isdecimal()]
    found = {int(folder.name): folder for folder in folders}
    return {version: found[version] for version in config.versions.choose(found)}


def _path(config: ModelConfig) -> Path:
    return config.path.path if config.path else Path()


def model_plan(config: ModelConfig, computation: Computation) -> ModelPlan:
    """What the configuration says of a loaded model beside its computation.

    Raises ValueError naming what does not fit it.
    """
    return ModelPlan(
        policy=QueuePolicy(config.max_batch_size, config.max_queue_delay_us, config.max_queue_size),
        signatures={name: _signature(name, one, computation) for name, one in config.signatures.items()},
        labels={output: _lines(file.path) for output, file in config.class_labels.items()},
        mappings=config.mappings(),
        example=_read_example(config.example.path, computation.inputs, config.max_batch_size)
        if config.example
        else NOTHING,
        configuration=config.model_dump(mode="json"),
    )


def _signature(name: str, config: SignatureConfig, computation: Computation) -> Signature:
    """What the configuration leaves empty is everything, by the model's own names."""
    inputs = config.inputs or {spec.name: spec.name for spec in computation.inputs}
    outputs = config.outputs or {spec.name: spec.name for spec in computation.outputs}
    for kind, chosen, specs in (("input", inputs, computation.inputs), ("output", outputs, computation.outputs)):
        unknown = set(chosen.values()) - {spec.name for spec in specs}
        if unknown:
            raise ValueError(f"signature {name} names an {kind} that the model does not have: {sorted(unknown)[0]}")
    return Signature(name, inputs, outputs, config.method)


def _lines(path: Path) -> tuple[str, ...]:
    """Line i is class i: nothing but the end of a line may end one."""
    return tuple(path.read_text(encoding="utf-8").removesuffix("\n").split("\n"))


def _read_example(path: Path, inputs: tuple[TensorSpec, ...], max_batch_size: int) -> Tensors:
    """One request's inputs from a JSON file: {"input": nested list}, or the bare list of a model with one input.

    A model that batches may leave the batch dimension out: the file then holds one row.
    """
    content: Any = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(content, dict):
        content = {inputs[0].name: content}
    specs = {spec.name: spec for spec in inputs}
    unknown = set(content) - set(specs)
    if unknown:
        raise ValueError(f"{path}: no such input: {', '.join(sorted(unknown))}")
    return {
        name: _example_array(content[name], spec, max_batch_size) for name, spec in specs.items() if name in content
    }


def _example_array(value: Any, spec: TensorSpec, max_batch_size: int) -> np.ndarray[Any, Any]:
    if spec.datatype == "BYTES":
        array = np.array(value, np.object_)
        array[...] = np.vectorize(str.encode, otypes=[np.object_])(array)
    else:
        array = np.array(value, spec.dtype)
    one_row = max_batch_size and spec.shape is not None and array.ndim == len(spec.shape) - 1
    return array[np.newaxis] if one_row else array

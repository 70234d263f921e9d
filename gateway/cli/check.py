"""What is wrong with the models of a configuration, as far as it shows without loading one.

A model's file or its declarations say what it takes and gives. The operators around it are tried on that, as they are
when it is loaded and in the same words; then everything else that the configuration says of its tensors; and last,
whether the models of an ensemble fit each other. Of what only loading can tell, nothing is said.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tensorgate.backends.execution import spec_inference as fitting
from tensorgate.gateway.app import catalog, model_source
from tensorgate.gateway.config import Config, ModelConfig, Problem, locator
from tensorgate.gateway.config.yaml_tree import key_path
from tensorgate.gateway.contract.backend import ConfigProblem, Described, ModelSource
from tensorgate.gateway.contract.errors import ModelNotFound
from tensorgate.gateway.contract.execution import Computation
from tensorgate.gateway.contract.registries import Registries
from tensorgate.gateway.models.loader import error_line
from tensorgate.gateway.models.model_folder import FILE, no_version, wanted_versions
from tensorgate.gateway.models.model_spec import model_spec


def misfits(config: Config, file: Path, kinds: Registries) -> list[tuple[str, Problem]]:
    """What does not fit, each with its model's name and the place in the file where it can be changed."""
    found = _Checks(config, config.extended(kinds)).run()
    places = _Places(config, file)
    return [(name, places.problem(name, key, text)) for name, (key, text) in found]


@dataclass(slots=True)
class _Checks:
    """One look at all models. `known` has what callers see of each version that could be described."""

    config: Config
    kinds: Registries
    known: dict[str, dict[int, Described | None]] = field(default_factory=dict)
    _at_start: frozenset[str] = frozenset()

    def run(self) -> list[tuple[str, ConfigProblem]]:
        models = catalog(self.config, self.kinds)
        self._at_start = frozenset(self.config.model_control.chosen(models.names()))
        configs: dict[str, ModelConfig] = {}
        found: list[tuple[str, ConfigProblem]] = []
        for name in models.names():
            try:
                configs[name] = models.read(name)
            except (ValueError, OSError) as error:
                found.append((name, ((), str(error))))
        for name, config in configs.items():
            self.known[name] = {}
            found += [(name, joint) for joint in dict.fromkeys(self._model(name, config))]
        for name, config in configs.items():
            source = model_source(config, name, 1, Path())
            joints = self.kinds.backends[config.backend].check_edges(source, self._find)
            found += [(name, joint) for joint in joints]
        return found

    def _model(self, name: str, config: ModelConfig) -> Iterator[ConfigProblem]:
        """Of all its versions."""
        place = config.path.path if config.path else Path()
        try:
            versions = wanted_versions(config) if self.kinds.backends[config.backend].versioned else {1: place}
        except OSError as error:
            yield ("path",), str(error)
            return
        if not versions and name in self._at_start:
            yield ("path",), no_version(config)
        for label, wanted in config.labels.items():
            if versions and wanted not in versions:
                yield ("labels", label), f"no version {wanted} is served, but {', '.join(map(str, versions))}"
        for version, path in versions.items():
            self.known[name][version] = None
            try:
                self.known[name][version] = self._version(config, model_source(config, name, version, path))
            except fitting.Misfit as misfit:
                yield misfit.key, misfit.text
            except Exception as error:  # as with a model that is loaded: whatever it is, it is the operator's to know
                yield (), error_line(error)

    def _version(self, config: ModelConfig, source: ModelSource) -> Described | None:
        """What callers see of it. Raises what does not fit."""
        before = fitting.make_ops(self.kinds.ops, config.preprocess, "preprocess")
        after = fitting.make_ops(self.kinds.ops, config.postprocess, "postprocess")
        own = self.kinds.backends[config.backend].describe(source)
        if own is None:
            return None
        if own.as_requests and (before or after):
            raise fitting.Misfit(("preprocess" if before else "postprocess",), fitting.NO_OPERATORS)
        source = fitting.with_rows(source, own.max_batch_size)
        inputs, required = fitting.input_specs(source, own, before)
        outputs = fitting.output_specs(source, own, after)
        seen = Described(tuple(inputs.values()), tuple(outputs.values()), own.max_batch_size, own.decoupled)
        executor: Any = own  # as far as a plan looks at executors
        model_spec(
            config,
            Computation(
                (executor,), seen.inputs, seen.outputs, tuple(required.values()), seen.max_batch_size, "", "cpu"
            ),
        )
        return seen

    def _find(self, name: str, version: int | None) -> Described | None:
        """The highest version that is served, if none is named."""
        versions = self.known.get(name)
        control = self.config.model_control
        if versions is None and (control.allow_uploads or control.model_roots):  # callers may bring it yet
            return None
        if versions is None or (version is not None and versions and version not in versions):
            raise ModelNotFound(name, version)
        return versions.get(max(versions, default=0) if version is None else version)


class _Places:
    """Where a model's entry stands: in the file itself, or in a file of its own in a repository."""

    def __init__(self, config: Config, file: Path) -> None:
        self._config = config
        self._file = file
        self._locate = locator(file)

    def problem(self, name: str, key: Iterable[str | int], text: str) -> Problem:
        if name not in self._config.models:
            for folder in self._config.repositories:
                own = folder.path / name / FILE
                if own.is_file():
                    return locator(own)(tuple(key), text)
            return Problem(self._file, 0, 0, key_path(("models", name, *key)), text)
        return self._locate(("models", name, *key), text)

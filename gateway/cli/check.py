"""Finds what is wrong with the models of a configuration without loading any.

A model's file or its declarations give its inputs and outputs. Its operators are checked against them, by the functions
and with the texts of a load; then all other keys about its tensors; and last, whether the models of an ensemble fit
each other. What only loading can show is not checked.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tensorgate.backends.execution.spec_inference import Misfit
from tensorgate.gateway.app import catalog, model_files
from tensorgate.gateway.config import Config, ModelConfig, Problem, locator
from tensorgate.gateway.config.yaml_tree import key_path
from tensorgate.gateway.contract.backend import ConfigProblem, Described, ModelSource
from tensorgate.gateway.contract.errors import ModelNotFound
from tensorgate.gateway.contract.registries import Registries
from tensorgate.gateway.model_loading import described, model_source
from tensorgate.gateway.models.loader import error_line
from tensorgate.gateway.models.model_files import ModelFiles
from tensorgate.gateway.models.model_folder import FILE
from tensorgate.gateway.models.model_spec import model_spec
from tensorgate.gateway.models.verification import NotVerified, Verifier
from tensorgate.gateway.stores.listing import FileTree


def misfits(
    config: Config, file: Path, kinds: Registries, say: Callable[[str], None] = lambda line: None
) -> list[tuple[str, Problem]]:
    """(model, problem) for everything that does not fit, with the line in the file. Models that lie elsewhere are
    fetched; `say` hears of that.
    """
    found = _Checks(config, config.extended(kinds), model_files(config, say)).run()
    locations = _Locations(config, file)
    return [(name, locations.problem(name, key, text)) for name, (key, text) in found]


@dataclass(slots=True)
class _Checks:
    """The checks of all models. `known` has each version as callers see it, None if it could not be described."""

    config: Config
    kinds: Registries
    files: ModelFiles
    known: dict[str, dict[int, Described | None]] = field(default_factory=dict)
    _at_start: frozenset[str] = frozenset()

    def run(self) -> list[tuple[str, ConfigProblem]]:
        models = catalog(self.config, self.kinds, files=self.files)
        try:
            names = models.names()
        except OSError as error:
            return [("", (("repositories",), str(error)))]
        self._at_start = frozenset(self.config.model_control.chosen(names))
        configs: dict[str, ModelConfig] = {}
        found: list[tuple[str, ConfigProblem]] = []
        for name in names:
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
        """Check all versions of a model."""
        try:
            kind = self.kinds.backends[config.backend]
            found = self.files.versions(config, kind.versioned, kind.numbers(config))
        except (OSError, ValueError) as error:
            yield ("path",), str(error)
            return
        versions = found.paths
        if not versions and name in self._at_start:
            yield ("path",), self.files.no_version(config)
        for label, wanted in config.labels.items():
            if versions and wanted not in versions:
                yield ("labels", label), f"no version {wanted} is served, but {', '.join(map(str, versions))}"
        verifier = Verifier(self.config.model_control)
        for version, path in versions.items():
            self.known[name][version] = None
            try:
                source = model_source(config, name, version, path)
                self.known[name][version] = self._version(config, verifier, source, found.trees.get(version))
            except NotVerified as error:
                yield ("verify",) if config.verify else (), str(error)
            except Misfit as misfit:
                yield misfit.key, misfit.text
            except Exception as error:  # as in a load, whatever fails is reported
                yield (), error_line(error)

    def _version(
        self, config: ModelConfig, verifier: Verifier, source: ModelSource, tree: FileTree | None
    ) -> Described | None:
        """A version as callers see it; its `tree` is fetched first. Raises what does not fit."""
        with contextlib.ExitStack() as held:
            if tree is not None:
                held.callback(self.files.lease(config, tree).close)
            verifier.check(config, source.version, source.path)
            seen = described(self.kinds, config, source)
        if seen is None:
            return None
        model_spec(config, seen.computation)
        return seen.model

    def _find(self, name: str, version: int | None) -> Described | None:
        """A version, by default the highest. Raises ModelNotFound."""
        versions = self.known.get(name)
        control = self.config.model_control
        if versions is None and (control.allow_uploads or control.model_roots):  # a caller may load it later
            return None
        if versions is None or (version is not None and versions and version not in versions):
            raise ModelNotFound(name, version)
        return versions.get(max(versions, default=0) if version is None else version)


class _Locations:
    """Finds a model's entry: in the configuration file, or in its own file in a repository."""

    def __init__(self, config: Config, file: Path) -> None:
        self._config = config
        self._file = file
        self._locate = locator(file)

    def problem(self, name: str, key: Iterable[str | int], text: str) -> Problem:
        if not name:
            return self._locate(tuple(key), text)
        if name not in self._config.models:
            for folder in self._config.repositories:
                own = folder.path / name / FILE
                if folder.location is None and own.is_file():
                    return locator(own)(tuple(key), text)
            return Problem(self._file, 0, 0, key_path(("models", name, *key)), text)
        return self._locate(("models", name, *key), text)

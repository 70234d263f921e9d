"""From the name that a caller uses to the one version that answers.

Public names are the models' own and those of the configured routes. A route shares its traffic among targets by weight.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import replace

from gateway.canonical import NOTHING, ModelRef
from gateway.config import Config, RouteTarget
from gateway.errors import LabelNotFound, ModelNotFound
from gateway.inventory import Snapshot
from gateway.model import Model
from gateway.ports import ModelView
from gateway.repository import Repository


class Router:
    """Resolves references against the repository's current snapshot; its tables are made anew when that changes, not
    per request.

    A qualified name is name-version; `qualified` gives one that a model has besides, for its highest version.
    """

    def __init__(
        self,
        config: Config,
        repository: Repository,
        default_model: str | None = None,
        qualified: Callable[[ModelView], str | None] = lambda view: None,
    ) -> None:
        self._repository = repository
        self._routes = config.routes
        self._default = default_model
        self._qualified_name = qualified
        self._snapshot: Snapshot | None = None
        self._qualified: dict[str, ModelView] = {}
        self._views: dict[tuple[str, str, int], ModelView] = {}

    def resolve(self, ref: ModelRef) -> ModelView:
        """Raises ModelNotFound or LabelNotFound."""
        if self._snapshot is not self._repository.snapshot:
            self._index(self._repository.snapshot)
        if ref.qualified is not None:
            return self._by_qualified_name(ref.qualified)
        if ref.name in self._routes:
            return self._by_route(ref)
        return self._public(ref.name, self._version(ref.name, ref))

    def served(self, ref: ModelRef) -> Mapping[int, Model]:
        """The versions that answer under a name, ascending, or the one that is named.

        Of a route's, each is the first target's that has it, as for a caller who names the version. Raises
        ModelNotFound.
        """
        loaded = self._repository.snapshot.models
        versions: dict[int, Model] = {}
        for model in [target.model for target in self._routes.get(ref.name, ())] or [ref.name]:
            versions = {**loaded.get(model, {}), **versions}
        if not versions:
            raise ModelNotFound(ref.name, known=ref.name in self._repository.snapshot.labels)
        if ref.version is not None:
            if ref.version not in versions:
                raise ModelNotFound(ref.name, ref.version)
            return {ref.version: versions[ref.version]}
        return {version: versions[version] for version in sorted(versions)}

    def names(self) -> tuple[str, ...]:
        """Every public name, models first."""
        wanted = self._repository.snapshot.labels
        return (*wanted, *(name for name in self._routes if name not in wanted))

    def is_public(self, name: str) -> bool:
        """Whether it is among them."""
        return name in self._routes or name in self._repository.snapshot.labels

    def _index(self, snapshot: Snapshot) -> None:
        """Make the tables; the snapshot last, for decoders in other threads take it as the sign that they are made."""
        self._views = {}
        self._qualified = {
            f"{name}-{version}": model.view
            for name, versions in snapshot.models.items()
            for version, model in versions.items()
        }
        for versions in reversed([*filter(None, snapshot.models.values())]):  # the first of two with one name keeps it
            view = versions[max(versions)].view
            name = self._qualified_name(view)
            if name is not None:
                self._qualified[name] = view
        self._snapshot = snapshot

    def _by_qualified_name(self, qualified: str) -> ModelView:
        wanted = self._repository.snapshot.labels
        name = qualified or self._default or (next(iter(wanted)) if len(wanted) == 1 else "")
        view = self._qualified.get(name)
        if view is not None:
            return view
        if not qualified and name in wanted:
            return self.resolve(ModelRef(name))
        raise ModelNotFound(qualified)

    def _version(self, name: str, ref: ModelRef) -> Model:
        """The loaded version of a model that a reference means.

        A label is looked up before the model, as TensorFlow Serving does.
        """
        snapshot = self._repository.snapshot
        version = ref.version
        if ref.label is not None:
            version = snapshot.labels.get(name, NOTHING).get(ref.label)
            if version is None:
                raise LabelNotFound(ref.name, ref.label)
        versions = snapshot.models.get(name)
        if not versions:
            raise ModelNotFound(ref.name, version, known=name in snapshot.labels or name in snapshot.unloaded)
        if version is None:
            version = max(versions)
        if version not in versions:
            raise ModelNotFound(ref.name, version)
        return versions[version]

    def _by_route(self, ref: ModelRef) -> ModelView:
        """A caller who names version or label gets it from the first target that has it; others are shared out by
        weight.
        """
        targets = self._routes[ref.name]
        if ref.version is None and ref.label is None:
            target = _choose(targets)
            wanted = ModelRef(ref.name, target.version, target.label)
            return self._public(ref.name, self._version(target.model, wanted))
        for target in targets[:-1]:
            try:
                return self._public(ref.name, self._version(target.model, ref))
            except (ModelNotFound, LabelNotFound):
                continue
        return self._public(ref.name, self._version(targets[-1].model, ref))

    def _public(self, name: str, model: Model) -> ModelView:
        """The model's view under the name that the caller knows."""
        if name == model.name:
            return model.view
        key = (name, model.name, model.version)
        view = self._views.get(key)
        if view is None:
            view = self._views[key] = replace(model.view, name=name)
        return view


def _choose(targets: tuple[RouteTarget, ...]) -> RouteTarget:
    if len(targets) == 1:
        return targets[0]
    # S311: it shares traffic and guards nothing.
    return random.choices(targets, [target.weight for target in targets])[0]  # noqa: S311

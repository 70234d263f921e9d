"""The catalog with the list of models that a caller sent, TensorFlow Serving's reload, in front of it.

Everything here but `ListedCatalog.take_over` and `exchange` reads the disk: call it in a thread.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

from tensorgate.gateway.config import FileRef, ModelConfig, VersionPolicy
from tensorgate.gateway.config.values import NAME
from tensorgate.gateway.contract.errors import ModelNotFound
from tensorgate.gateway.contract.questions import WantedModel
from tensorgate.gateway.models.catalog import Catalog, Validate
from tensorgate.gateway.models.model_files import ModelFiles
from tensorgate.gateway.models.model_folder import version_folders

PLATFORM: Final = "tensorflow"
"""The one platform that callers may give a listed model."""

_BACKENDS: Final = {"model.onnx": "onnx", "saved_model.pb": "tensorflow"}
"""A file in a version's folder -> the backend of the model."""


class ListedCatalog:
    """The models that a caller listed last, then those of a catalog.

    A listed model that the catalog knows keeps its configuration, except versions, labels and their folder. The backend
    of any other is found by its files. The folders must lie below `roots`, with links resolved. `own` is the catalog
    behind the list; `listing` is a new object after each list, and after each exchange of that catalog.
    """

    def __init__(
        self,
        catalog: Catalog,
        versioned: Callable[[ModelConfig], bool],
        validate: Validate,
        roots: Sequence[Path],
        files: ModelFiles,
    ) -> None:
        self.own = catalog
        self._versioned = versioned
        self._validate = validate
        self._roots = roots
        self._files = files
        self._listed: Mapping[str, ModelConfig] = {}
        self._followed: tuple[str, ...] | None = None
        self.listing = object()

    def names(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys((*self.own.names(), *self._listed)))

    def read(self, name: str, configuration: str | None = None, folder: Path | None = None) -> ModelConfig:
        """Like Catalog.read; without `configuration`, a listed model as it was listed."""
        if configuration is None and name in self._listed:
            return self._listed[name]
        return self.own.read(name, configuration, folder)

    def fingerprint(self, name: str) -> Hashable:
        listed = self._listed.get(name)
        if listed is None:
            return self.own.fingerprint(name)
        return self._files.fingerprint(listed)

    def followed(self) -> tuple[str, ...]:
        """The models whose files to watch: those listed last and their parts, else all."""
        return self.names() if self._followed is None else self._followed

    @property
    def has_list(self) -> bool:
        """Whether a list is in force."""
        return self._followed is not None

    def exchange(self, catalog: Catalog, *, keep_list: bool) -> None:
        """Replace the catalog; without `keep_list`, a list in force is dropped."""
        self.own = catalog
        self.listing = object()
        if not keep_list:
            self._listed, self._followed = {}, None

    def take_over(self, listed: Mapping[str, ModelConfig], parts: Iterable[str]) -> None:
        """Replace the list: the listed models, and the names of the models that they are composed of."""
        self._listed = listed
        self._followed = (*listed, *parts)
        self.listing = object()

    def configure(self, wanted: WantedModel) -> ModelConfig:
        """The configuration that a model would have if it were listed. Raises ValueError or OSError."""
        versions, labels = VersionPolicy.parse(wanted.versions), dict(wanted.labels)
        try:
            own = self.own.read(wanted.name)
        except ModelNotFound:
            return self._new(wanted)
        changes = {"versions": versions, "labels": labels}
        if not self._versioned(own):
            return own.model_copy(update=changes)
        if own.path is not None and _is_at(own.path, wanted.base_path):
            return own.model_copy(update=changes)
        return own.model_copy(update=changes | {"path": FileRef(wanted.base_path, self._allowed(wanted.base_path))})

    def _new(self, wanted: WantedModel) -> ModelConfig:
        if re.fullmatch(NAME, wanted.name) is None:
            raise ValueError("a model's name is not empty, and has neither / nor control characters")
        folder = self._allowed(wanted.base_path)
        entry = {"backend": _backend(folder), "path": str(folder), "versions": wanted.versions}
        return self._validate(entry | {"labels": dict(wanted.labels)}, folder)

    def _allowed(self, base_path: str) -> Path:
        """The folder, with links resolved. Raises ValueError for one outside the roots, whether it exists or not."""
        folder = _resolved(base_path)
        if folder is None or not any(folder.is_relative_to(root.resolve()) for root in self._roots):
            raise ValueError("its base path lies below none of this server's model_control.model_roots")
        return folder


def _is_at(place: FileRef, base_path: str) -> bool:
    """Whether a caller names the very path or URL that the configuration has for the model."""
    if place.location is not None:
        return base_path.rstrip("/") == place.written.rstrip("/")
    return place.path.resolve() == _resolved(base_path)


def _resolved(base_path: str) -> Path | None:
    """An absolute path with links resolved; None for one that cannot be, or is not absolute."""
    try:
        return Path(base_path).resolve() if base_path.startswith("/") else None
    except (OSError, RuntimeError, ValueError):
        return None


def _backend(folder: Path) -> str:
    """The backend of the model whose versions lie in a folder. Raises ValueError if there is none, or OSError."""
    files = {file.name for version in version_folders(folder).values() for file in version.iterdir()}
    for file, backend in _BACKENDS.items():
        if file in files:
            return backend
    raise ValueError(f"no version of it has a {' or a '.join(_BACKENDS)}")

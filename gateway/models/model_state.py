"""The state of one model: its configuration, its versions, and the status of each."""

from __future__ import annotations

import asyncio
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from tensorgate.gateway.config import ModelConfig
from tensorgate.gateway.contract.errors import Code, Reason
from tensorgate.gateway.contract.questions import IndexEntry, VersionStatus
from tensorgate.gateway.engine.model import Model
from tensorgate.gateway.models.model_folder import Upload, files_fingerprint, tree_fingerprint
from tensorgate.gateway.stores.listing import FileTree

START: Final = "START"
LOADING: Final = "LOADING"
AVAILABLE: Final = "AVAILABLE"
UNLOADING: Final = "UNLOADING"
END: Final = "END"

_INDEX_STATES: Final = {AVAILABLE: "READY", UNLOADING: "UNLOADING", END: "UNAVAILABLE"}
_REMEMBERED_VERSIONS: Final = 100
_NO_REASON: Final = Reason("")


@dataclass(frozen=True, slots=True, eq=False)
class StoredModel:
    """A model as it lies on disk at one moment: its configuration, and the versions that its policy chooses.

    `trees` has the versions whose files lie elsewhere, and are fetched when they are loaded. `fingerprint` covers the
    whole model, `prints` each version and the files that the configuration names. `upload` holds the files if a load
    call brought them, `given` is the configuration that it brought, as its text.
    """

    config: ModelConfig
    versions: Mapping[int, Path]
    fingerprint: Hashable = None
    upload: Upload | None = None
    given: str | None = None
    trees: Mapping[int, FileTree] = field(default_factory=dict)
    prints: Mapping[int | None, Hashable] = field(init=False)

    def __post_init__(self) -> None:
        prints: dict[int | None, Hashable] = {
            version: self.trees[version].key if version in self.trees else tree_fingerprint(path)
            for version, path in self.versions.items()
        }
        object.__setattr__(self, "prints", prints | {None: files_fingerprint(self.config)})

    def same_but_for_versions(self, other: StoredModel | None) -> bool:
        """Whether versions whose own files have not changed can stay loaded."""
        if other is None or self.upload is not None or other.upload is not None:
            return False
        return self._shared() == other._shared()

    def _shared(self) -> tuple[Any, ...]:
        """What all versions are computed by, as plain data, which compares equal whenever it was read."""
        plain = self.config.model_dump(mode="json", exclude={"path", "versions", "labels"})
        return self.prints[None], self.config.path.path if self.config.path else Path(), plain


@dataclass(slots=True, eq=False)
class ModelState:
    """One model, loaded or not. Whoever loads or unloads it holds its lock.

    `unreachable`: the store where its versions lie could not be asked for them.

    `starting`: it is wanted from the start on, and the first attempt to load it is not over. `wanted`: it counts for
    readiness, unless it `is_new`: added while others serve, and not served yet; or is here `on_demand`, because
    somebody asked for it. `failed`: not all versions that were wanted first could be loaded; `error`: why none could
    be. `fingerprint` is that of the last attempt, `stored` what the versions were loaded from. `labels` are the
    configuration's, or those of a caller's list. `models` are loaded; those of which no part is missing are `served`.
    """

    name: str
    starting: bool = False
    wanted: bool = False
    is_new: bool = False
    failed: bool = False
    unreachable: bool = False
    error: str = ""
    on_demand: bool = False
    fingerprint: Hashable = None
    stored: StoredModel | None = None
    labels: Mapping[str, int] = field(default_factory=dict)
    models: Mapping[int, Model] = field(default_factory=dict)
    served: Mapping[int, Model] = field(default_factory=dict)
    statuses: dict[int, VersionStatus] = field(default_factory=dict)
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def ready(self) -> bool:
        """Whether it serves. A version that lacks a part does not count: the part does, if it is wanted."""
        return bool(self.models) and not self.failed and all(model.is_ready() for model in self.served.values())

    @property
    def awaits_upstream(self) -> bool:
        """Whether loading failed because another server, or a store, was not available."""
        if not self.wanted or self.models:
            return False
        ended = [status for status in self.statuses.values() if status.state == END]
        return self.unreachable or any(status.code == Code.UNAVAILABLE for status in ended)

    def version_statuses(self) -> dict[int, VersionStatus]:
        """Every version that was ever wanted, as callers see it: one that lacks a part counts as unloaded."""
        lacking = self.models.keys() - self.served.keys()
        return {
            version: VersionStatus(version, END) if version in lacking and status.state == AVAILABLE else status
            for version, status in self.statuses.items()
        }

    def set_status(self, version: int, state: str, why: Reason = _NO_REASON) -> VersionStatus:
        """Set a version's status. Of many ended versions, the lowest is forgotten."""
        status = self.statuses[version] = VersionStatus(version, state, *why)
        if len(self.statuses) > _REMEMBERED_VERSIONS:
            ended = [each.version for each in self.statuses.values() if each.state == END]
            if ended:
                del self.statuses[min(ended)]
        return status

    def index(self) -> Iterator[IndexEntry]:
        """An entry per version; a model that was never loaded has one with only its name."""
        if not self.statuses:
            yield IndexEntry(self.name, None, "UNAVAILABLE", self.error) if self.error else IndexEntry(self.name)
        for version, status in sorted(self.version_statuses().items()):
            state = _INDEX_STATES.get(status.state, "LOADING")
            reason = status.error or ("unloaded" if status.state == END else "")
            yield IndexEntry(self.name, version, state, reason)

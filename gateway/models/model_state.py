"""What the repository remembers of one model: its configuration, its versions, and what became of each."""

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
from tensorgate.gateway.models.model_folder import Upload, files_print, tree_print

START: Final = "START"
LOADING: Final = "LOADING"
AVAILABLE: Final = "AVAILABLE"
UNLOADING: Final = "UNLOADING"
END: Final = "END"

_INDEX_STATES: Final = {AVAILABLE: "READY", UNLOADING: "UNLOADING", END: "UNAVAILABLE"}
_REMEMBERED_VERSIONS: Final = 100
_NO_REASON: Final = Reason("")


@dataclass(frozen=True, slots=True, eq=False)
class Stored:
    """A model as it lies on disk at one moment: how it is configured, and the versions that its policy chooses.

    `fingerprint` is the whole model's, `upload` holds its files if they came with the call; `given`: its configuration
    came with one.
    """

    config: ModelConfig
    versions: Mapping[int, Path]
    fingerprint: Hashable = None
    upload: Upload | None = None
    given: bool = False
    prints: Mapping[int, Hashable] = field(init=False)
    around: Hashable = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "prints", {version: tree_print(path) for version, path in self.versions.items()})
        object.__setattr__(self, "around", files_print(self.config))

    @property
    def place(self) -> Path:
        """Where its versions are sought."""
        return self.config.path.path if self.config.path else Path()

    def same_but_for_versions(self, other: Stored | None) -> bool:
        """Whether a version that has not changed itself may go on as it is."""
        if other is None or self.upload is not None or other.upload is not None:
            return False
        return (self.around, self.place) == (other.around, other.place) and _core(self.config) == _core(other.config)


def _core(config: ModelConfig) -> dict[str, Any]:
    """What a version is computed by: all but which versions there are, and how they are called. As plain data, which is
    alike whenever it was read.
    """
    return config.model_dump(mode="json", exclude={"path", "versions", "labels"})


@dataclass(slots=True, eq=False)
class ModelState:
    """One model, loaded or not. Its lock is held by whoever loads or unloads it.

    `wanted`: it counts for readiness, unless it is `late`: came while others served, and has not done so itself yet;
    `failed`: not all that was wanted when it came could be loaded; `error`: why no version of it could be. `seen` is
    the fingerprint of what was last tried, `stored` is what its versions were loaded from; `labels` are its own, unless
    a caller's list has brought others. Of the loaded `models`, those are `served` of which no part is missing.
    """

    name: str
    wanted: bool = False
    late: bool = False
    failed: bool = False
    error: str = ""
    seen: Hashable = None
    stored: Stored | None = None
    labels: Mapping[str, int] = field(default_factory=dict)
    models: Mapping[int, Model] = field(default_factory=dict)
    served: Mapping[int, Model] = field(default_factory=dict)
    statuses: dict[int, VersionStatus] = field(default_factory=dict)
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def ready(self) -> bool:
        """What is loaded and lacks a part does not count: the part does, if it is wanted."""
        return bool(self.models) and not self.failed and all(model.is_ready() for model in self.served.values())

    @property
    def awaits_others(self) -> bool:
        """Whether it could not be loaded because another server was not there."""
        return (
            self.wanted
            and not self.models
            and any(status.state == END and status.code == Code.UNAVAILABLE for status in self.statuses.values())
        )

    def told(self) -> dict[int, VersionStatus]:
        """Every version that was ever wanted, as callers see it: one that lacks a part of it is no better than one that
        is unloaded.
        """
        lacking = self.models.keys() - self.served.keys()
        return {
            version: VersionStatus(version, END) if version in lacking and status.state == AVAILABLE else status
            for version, status in self.statuses.items()
        }

    def note(self, version: int, state: str, why: Reason = _NO_REASON) -> VersionStatus:
        """A version's new state. Of versions that ended long ago, the lowest are forgotten."""
        status = self.statuses[version] = VersionStatus(version, state, *why)
        if len(self.statuses) > _REMEMBERED_VERSIONS:
            ended = [each.version for each in self.statuses.values() if each.state == END]
            if ended:
                del self.statuses[min(ended)]
        return status

    def index(self) -> Iterator[IndexEntry]:
        """An entry per version; one that was never loaded has only a name."""
        if not self.statuses:
            yield IndexEntry(self.name, None, "UNAVAILABLE", self.error) if self.error else IndexEntry(self.name)
        for version, status in sorted(self.told().items()):
            state = _INDEX_STATES.get(status.state, "LOADING")
            reason = status.error or ("unloaded" if status.state == END else "")
            yield IndexEntry(self.name, version, state, reason)

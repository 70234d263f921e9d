"""A model's files, on this machine or elsewhere: which versions there are, and a version's files once it is loaded.

What lies elsewhere is only listed when a catalog is read or polled; a version is fetched when it is loaded. The folder
that it will have is known from its listing, so that a StoredModel is the same in both cases. Everything here may wait
for a disk or a store: call it in a thread.
"""

from __future__ import annotations

import logging
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tensorgate.gateway.config import ModelConfig, StoresConfig
from tensorgate.gateway.contract.locations import Location
from tensorgate.gateway.models.model_folder import files_fingerprint, no_version, no_version_among, tree_fingerprint
from tensorgate.gateway.models.model_folder import wanted_versions as local_versions
from tensorgate.gateway.stores.cache import Lease
from tensorgate.gateway.stores.listing import FileTree
from tensorgate.gateway.stores.stores import Stores

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Versions:
    """Version -> its folder or file; `trees` has those that have to be fetched first."""

    paths: Mapping[int, Path]
    trees: Mapping[int, FileTree] = field(default_factory=dict)


class ModelFiles:
    """Finds the files of models; without `stores`, with what the configuration says by default."""

    def __init__(self, stores: Stores | None = None) -> None:
        self.stores = stores or Stores(StoresConfig())

    def versions(self, config: ModelConfig, versioned: bool, numbers: Iterable[int]) -> Versions:
        """The versions that the version policy chooses; of a model without version folders, `numbers`.

        Raises OSError or ValueError.
        """
        place = config.path
        if place is None or place.location is None:
            path = place.path if place else Path()
            return Versions(local_versions(config) if versioned else dict.fromkeys(numbers, path))
        if not versioned:
            tree, name = self._beside(place.location)
            path = self.stores.cache.place(tree)
            path = path if tree.name else path / name
            return Versions(dict.fromkeys(numbers, path), dict.fromkeys(numbers, tree))
        listing = self.stores.listing(place.location)
        if config.versions.flat or listing.is_file:
            trees = {1: listing.whole()}
        else:
            found = listing.versions()
            trees = {version: found[version] for version in config.versions.choose(found)}
        return Versions({version: self.stores.cache.place(tree) for version, tree in trees.items()}, trees)

    def _beside(self, location: Location) -> tuple[FileTree, str]:
        """The folder that a program lies in, with all it may import or read, and the program's name; of the web, whose
        folders need not list their files, the program alone.
        """
        folder = location if location.is_web else location.parent()
        listing = self.stores.listing(folder)
        name = location.below.rpartition("/")[2]
        if not listing.is_file and name not in listing.names():
            raise FileNotFoundError(f"{location.url}: there is no such file")
        return listing.whole(), name

    def fingerprint(self, config: ModelConfig) -> Hashable:
        """Changes whenever a file of the model does, or one that the configuration names beside it. A model that cannot
        be listed has the reason in its place.
        """
        place = config.path
        if place is None or place.location is None:
            return tree_fingerprint(place.path) if place else (), files_fingerprint(config)
        is_program = place.member != "" and not place.location.is_web
        try:
            listing = self.stores.listing(place.location.parent() if is_program else place.location)
        except (OSError, ValueError) as error:
            return str(error), files_fingerprint(config)
        return listing.whole().key, files_fingerprint(config)

    def lease(self, config: ModelConfig, tree: FileTree) -> Lease:
        """A version's files, fetched if they are not there, for as long as the lease is held. Raises OSError or
        ValueError.
        """
        if config.path is None or config.path.location is None:
            raise ValueError("a model of this machine is not fetched")
        return self.stores.fetch(tree, config.path.location)

    def no_version(self, config: ModelConfig) -> str:
        """Why a model has no version to load: what its folder contains, and what was expected."""
        location = config.path.location if config.path else None
        if location is None:
            return no_version(config)
        try:
            listing = self.stores.listing(location)
        except (OSError, ValueError) as error:
            return f"no version to load: {error}"
        return no_version_among(config, location.url, sorted(listing.versions()), listing.names())

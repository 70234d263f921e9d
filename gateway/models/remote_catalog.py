"""Repositories that lie elsewhere: a folder per model, as in FolderCatalog, below a URL.

What says how models are configured is small and lies beside their versions; it is fetched, and versions are there by
name alone: empty files that nobody reads. So the folder is read as one of this machine, and the path of each model that
comes of it is put back to its URL, from which its versions are fetched when they are loaded.
"""

from __future__ import annotations

import threading
from collections.abc import Hashable
from pathlib import Path
from typing import Final

from tensorgate.gateway.config import FileRef, ModelConfig
from tensorgate.gateway.config.verification import VerifyConfig
from tensorgate.gateway.contract.locations import Location
from tensorgate.gateway.models.catalog import FolderCatalog, ReadFolder, Validate, without_new_urls
from tensorgate.gateway.stores.cache import Lease
from tensorgate.gateway.stores.listing import Listing
from tensorgate.gateway.stores.stores import Stores

_MAX_BESIDE_BYTES: Final = 16 << 20
"""The largest file beside a model's versions that is there before the model is loaded."""
_FRESH_S: Final = 1.0
"""How long a listing is taken for what there is: a look at all models is one."""


class RemoteCatalog:
    """See catalog.Catalog. What its store cannot list is an OSError."""

    def __init__(
        self,
        location: Location,
        stores: Stores,
        read_folder: ReadFolder,
        validate: Validate,
        verify: VerifyConfig | None = None,
    ) -> None:
        self._location = location
        self._stores = stores
        self._read_folder = read_folder
        self._validate = validate
        self._verify = verify
        self._lock = threading.Lock()
        self._listed: tuple[float, Listing] | None = None
        self._leases: dict[str, Lease] = {}

    def names(self) -> tuple[str, ...]:
        return tuple([name for name in self._listing().folders() if name[0] != "." and name.isprintable()])

    def read(self, name: str, configuration: str | None = None, folder: Path | None = None) -> ModelConfig:
        """Like FolderCatalog.read; no configuration in the repository names a URL."""
        skeleton = self._skeleton()
        local = FolderCatalog([skeleton], self._read_folder, self._validate, self._verify)
        config = without_new_urls(local.read(name, configuration, folder), None)
        place = config.path
        if folder is not None or place is None or not place.path.is_relative_to(skeleton):
            return config
        below = place.path.relative_to(skeleton).as_posix()
        there = self._location.child(below + ("/" if self._location.is_web and place.path.is_dir() else ""))
        url = f"{there.url}:{place.member}" if place.member else there.url
        return config.model_copy(update={"path": FileRef(url, Path(there.url), place.member, there)})

    def fingerprint(self, name: str) -> Hashable:
        try:
            listing = self._listing()
        except OSError:  # names say so
            return ()
        return listing.folder(name).key if name in listing.folders() else ()

    def _listing(self) -> Listing:
        with self._lock:
            if self._listed is None or self._stores.clock() - self._listed[0] > _FRESH_S:
                try:
                    self._listed = self._stores.clock(), self._stores.listing(self._location)
                except ValueError as error:  # as a disk that cannot be read
                    raise OSError(str(error)) from None
            return self._listed[1]

    def _skeleton(self) -> Path:
        """A folder of this machine. What configurations name there is read when models are loaded: it stays."""
        tree = self._listing().skeleton(_MAX_BESIDE_BYTES)
        lease = self._leases.get(tree.key)
        if lease is None:
            lease = self._leases[tree.key] = self._stores.fetch(tree, self._location)
        return lease.path

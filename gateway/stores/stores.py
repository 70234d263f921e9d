"""From a location to folders of this machine: what it lists, and a lease of what of it is wanted.

A store that cannot be asked has an answer all the same, if it had one before: what it listed then, of which the cache
may have what is wanted. So a gateway starts again while a store is down, and `offline` is the same by intent. A store
that fails is left alone for a while, longer and longer, however often models are tried again.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from json import JSONDecodeError
from pathlib import Path
from typing import Final, TypeVar

from tensorgate.gateway.config import SourceConfig, StoresConfig
from tensorgate.gateway.contract.locations import Location, parse_location
from tensorgate.gateway.stores.cache import Cache, Lease
from tensorgate.gateway.stores.errors import Changed, NotThere, Unreachable
from tensorgate.gateway.stores.fetching import Fetcher, Say
from tensorgate.gateway.stores.http import Policy, Web, pause
from tensorgate.gateway.stores.hub import HubStore
from tensorgate.gateway.stores.listing import FileTree, Listing
from tensorgate.gateway.stores.objects import ObjectStore
from tensorgate.gateway.stores.registry import RegistryStore
from tensorgate.gateway.stores.store import Store
from tensorgate.gateway.stores.tracking import TrackingStore
from tensorgate.gateway.stores.web import WebStore

log = logging.getLogger(__name__)

Result = TypeVar("Result")

_MAX_MIRRORS: Final = 8


@dataclass(slots=True)
class _Outage:
    """A store that failed: why, how often in a row, and until when it is left alone."""

    error: Unreachable
    count: int
    until: float


class Stores:
    """All stores of a configuration, and one cache. Its calls block: in a thread."""

    def __init__(
        self,
        options: StoresConfig,
        say: Say = log.info,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._options = options
        self._policy = Policy(options.timeout_seconds, options.retries, options.allow_private_redirects, sleep)
        self._web = Web(self._policy)
        self.clock = clock
        self.cache = Cache(cache_folder(options), options.cache.max_bytes)
        self._fetcher = Fetcher(self.cache, self._policy, options.connections, say)
        self._opened: dict[tuple[str, str], Store] = {}
        self._outages: dict[str, _Outage] = {}
        self._lock = threading.Lock()

    def listing(self, location: Location) -> Listing:
        """What lies at a location: as its store says now, or said last where it cannot be asked.

        Raises NotThere, NotAllowed, Unreachable, and ValueError.
        """
        known = self.cache.remembered(location)
        if known is not None and known.is_final:
            return known
        if self._options.offline:
            if known is None:
                raise NotThere(f"{location.url}: not in the cache {self.cache.folder}, and stores.offline is true")
            return known
        try:
            listing = self._ask(location)
        except Changed:
            raise
        except Unreachable as error:
            if known is None:
                raise
            log.warning("%s; what it listed last is taken", error)
            return known
        self.cache.remember(listing)
        return listing

    def _ask(self, location: Location) -> Listing:
        there = self._mirrored(location)
        try:
            listing = self._spared(location.url, lambda: self._store(there).list(there))
        except (AttributeError, JSONDecodeError, KeyError, TypeError) as error:
            text = f"{location.url}: what answers there is no such store ({type(error).__name__})"
            raise ValueError(text) from error
        return replace(listing, location=location)

    def _spared(self, what: str, ask: Callable[[], Result]) -> Result:
        """Ask, unless that failed a moment ago."""
        outage = self._outages.get(what)
        if outage is not None and self.clock() < outage.until:
            raise outage.error
        try:
            found = ask()
        except Unreachable as error:
            count = outage.count + 1 if outage is not None else 0
            self._outages[what] = _Outage(error, count, self.clock() + pause(count))
            raise
        self._outages.pop(what, None)
        return found

    def fetch(self, tree: FileTree, location: Location) -> Lease:
        """A tree of what lies at a location, fetched if the cache lacks it; its path is `cache.place(tree)`.

        Raises NotThere, NotAllowed, Unreachable, Damaged, CacheFull, OSError.
        """
        if self._options.offline:
            lease = self.cache.lease(tree)
            if lease is None:
                raise NotThere(f"{tree.url}: not in the cache {self.cache.folder}, and stores.offline is true")
            return lease
        store = self._store(self._mirrored(location))
        try:
            return self._spared(tree.key, lambda: self._fetcher.fetch(tree, store))
        except Changed:
            raise
        except Unreachable:
            self._outages[location.url] = self._outages[tree.key]  # nor is it listed again and again meanwhile
            raise

    def _mirrored(self, location: Location) -> Location:
        for _ in range(_MAX_MIRRORS):
            prefix, source = self._options.source(location.url)
            if source.mirror is None:
                return location
            location = parse_location(source.mirror + location.url.removeprefix(prefix))
        raise ValueError(f"{location.url}: stores.sources: mirrors lead in a circle")

    def _store(self, location: Location) -> Store:
        prefix, source = self._options.source(location.url)
        key = location.scheme, prefix
        with self._lock:
            if key not in self._opened:
                self._opened[key] = self._open(location.scheme, source)
            return self._opened[key]

    def _open(self, scheme: str, source: SourceConfig) -> Store:
        match scheme:
            case "https" | "http":
                return WebStore(self._web, source)
            case "hf":
                return HubStore(self._web, source)
            case "oci":
                return RegistryStore(self._web, source)
            case "mlflow":
                return TrackingStore(self._web, source, self._store)
        return ObjectStore(scheme, source, self._policy)

    def close(self) -> None:
        """End the threads that fetch."""
        self._fetcher.close()


def cache_folder(options: StoresConfig) -> Path:
    """Where the cache is."""
    if options.cache.folder is not None:
        return options.cache.folder.path
    home = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(home).expanduser().absolute() / "tensorgate" / "models"

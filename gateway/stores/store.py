"""What every kind of store can do."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Protocol

from tensorgate.gateway.contract.locations import Location
from tensorgate.gateway.stores.listing import Listing, RemoteFile


class Store(Protocol):
    """A kind of store. Blocks: call it in a thread. Raises NotThere, NotAllowed, Unreachable, and ValueError."""

    def list(self, location: Location) -> Listing:
        """What lies at a location; nothing is downloaded but what says it."""
        ...

    def open(self, file: RemoteFile, offset: int) -> AbstractContextManager[tuple[int, Iterator[bytes]]]:
        """(where it begins, the bytes from there) of a file that was listed: at the offset, or at its start where that
        cannot be. Raises Changed if it is another file by now.
        """
        ...

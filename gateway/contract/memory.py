"""Memory that callers share with the gateway, on the host or on a GPU."""

from __future__ import annotations

from typing import Any, Final, Protocol, TypeAlias

import numpy as np

from tensorgate.gateway.contract.errors import RegionNotFound
from tensorgate.gateway.contract.tensor import Array


class DeviceMemory(Protocol):
    """Bytes on a GPU that a caller shares."""

    nbytes: int
    """The size of this part of the region."""

    def array(self, dtype: np.dtype[Any], shape: tuple[int, ...], *, copy: bool = False) -> Array:
        """These bytes as an array, on the device where that is possible; not a copy unless that is asked for, or is the
        only way.
        """
        ...

    def tobytes(self) -> bytes:
        """A copy on the host."""
        ...

    def write(self, array: Array) -> None:
        """Fill the first bytes with an array from anywhere; finished when it returns."""
        ...


Memory: TypeAlias = memoryview | DeviceMemory


class Regions(Protocol):
    """The memory that callers have registered."""

    @property
    def in_use(self) -> bool:
        """Whether any is registered."""
        ...

    def view(self, name: str, offset: int, byte_size: int, *, writable: bool = False) -> Memory:
        """A part of a region, without a copy: whoever shares it may change it at any time.

        Raises RegionNotFound, RegionRange.
        """
        ...


class NoRegions:
    """No memory can be registered."""

    in_use = False

    def view(self, name: str, offset: int, byte_size: int, *, writable: bool = False) -> Memory:
        raise RegionNotFound(name)


NO_REGIONS: Final[Regions] = NoRegions()

"""Regions of shared memory."""

from __future__ import annotations

from tensorgate.gateway.contract.errors.base import Code, GatewayError
from tensorgate.gateway.contract.errors.message import InvalidArgument, NotFound, Unsupported
from tensorgate.gateway.contract.errors.reasons import ErrorReason


class SharedMemoryDisabled(Unsupported):
    """This server does not allow shared memory of this kind."""

    error_reason = ErrorReason.SHARED_MEMORY

    def __init__(self) -> None:
        super().__init__("shared memory is disabled")


class RegionNotFound(NotFound):
    """No region has this name; `kind` is system or cuda where the caller said which, else ""."""

    error_reason = ErrorReason.SHARED_MEMORY

    def __init__(self, name: str, kind: str = "") -> None:
        super().__init__(f"no shared memory region '{name}'")
        self.name = name
        self.kind = kind


class RegionExists(InvalidArgument):
    """A region of this name is registered already."""

    code = Code.ALREADY_EXISTS
    error_reason = ErrorReason.SHARED_MEMORY

    def __init__(self, name: str) -> None:
        super().__init__(f"shared memory region '{name}' exists")
        self.name = name


class RegionUnreachable(GatewayError):
    """No memory has this key, or the gateway may not map it."""

    code = Code.INTERNAL
    error_reason = ErrorReason.SHARED_MEMORY

    def __init__(self, key: str) -> None:
        super().__init__(key)
        self.key = key


class RegionOutOfBounds(InvalidArgument):
    """The memory that is to be registered under this name is smaller than the region."""

    error_reason = ErrorReason.SHARED_MEMORY

    def __init__(self, name: str) -> None:
        super().__init__(f"shared memory region '{name}' is larger than its memory")
        self.name = name


class RegionInvalid(GatewayError):
    """The memory of this key cannot be mapped."""

    code = Code.INTERNAL
    error_reason = ErrorReason.SHARED_MEMORY

    def __init__(self, key: str) -> None:
        super().__init__(key)
        self.key = key


class RegionKeyReserved(InvalidArgument):
    """The key begins with a reserved prefix."""

    error_reason = ErrorReason.SHARED_MEMORY

    def __init__(self, name: str, key: str, prefix: str) -> None:
        super().__init__(f"shared memory region '{name}' has the key '{key}', but '{prefix}' is reserved")
        self.name = name
        self.key = key
        self.prefix = prefix


class RegionLimit(GatewayError):
    """`limit` regions are registered already."""

    code = Code.UNAVAILABLE
    error_reason = ErrorReason.SHARED_MEMORY

    def __init__(self, limit: int) -> None:
        super().__init__(f"{limit} shared memory regions are registered")
        self.limit = limit


class CudaMemoryUnavailable(InvalidArgument):
    """The server has no GPU whose memory could be shared."""

    error_reason = ErrorReason.SHARED_MEMORY

    def __init__(self, name: str) -> None:
        super().__init__(f"shared memory region '{name}' is of a GPU, and there is none")
        self.name = name


class RegionRange(InvalidArgument):
    """A request refers to memory outside of a region; `starts_outside`: to none within."""

    error_reason = ErrorReason.SHARED_MEMORY

    def __init__(self, name: str, *, starts_outside: bool = False) -> None:
        super().__init__(f"outside of shared memory region '{name}'")
        self.name = name
        self.starts_outside = starts_outside


class OutputTooLarge(GatewayError):
    """An output needs `needed` bytes, but its caller gave a region of `given`."""

    code = Code.INTERNAL
    error_reason = ErrorReason.TOO_LARGE

    def __init__(self, output: str, given: int, needed: int) -> None:
        super().__init__(f"output '{output}' needs {needed} bytes, {given} are given")
        self.output = output
        self.given = given
        self.needed = needed

"""What each kind of failure is to a dialect: HTTP status, gRPC code and text, in one table for both transports."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final, NamedTuple, NoReturn, TypeAlias

from tensorgate.gateway.contract import errors
from tensorgate.gateway.contract.call import Call
from tensorgate.gateway.contract.dialect import EncodeError, Endpoint, Resolve
from tensorgate.gateway.contract.errors import Code, GatewayError

Words: TypeAlias = str | Callable[..., str]
"""A format of the error, {0}, or what makes the text of it."""

OWN_TEXT: Final = "{0.text}"

MEMORY_KINDS: Final[tuple[type[GatewayError], ...]] = (
    errors.SharedMemoryDisabled,
    errors.RegionNotFound,
    errors.RegionExists,
    errors.RegionUnreachable,
    errors.RegionInvalid,
    errors.RegionOutOfBounds,
    errors.RegionKeyReserved,
    errors.RegionLimit,
    errors.CudaMemoryUnavailable,
    errors.RegionRange,
    errors.OutputTooLarge,
)
"""What can only go wrong where a protocol has shared memory."""


class Wording(NamedTuple):
    """What one kind of failure is called."""

    http_status: int
    grpc_code: Code
    words: Words

    def text(self, error: GatewayError, *context: Any) -> str:
        """`context` is what the dialect's own texts are made of besides."""
        return self.words.format(error) if isinstance(self.words, str) else self.words(error, *context)


def table(
    groups: Mapping[tuple[int, Code], Mapping[type[GatewayError], Words]],
) -> Mapping[type[GatewayError], Wording]:
    """(HTTP status, gRPC code) -> the kinds that have them, and their words -> a row for each kind."""
    return MappingProxyType(
        {kind: Wording(*codes, words) for codes, kinds in groups.items() for kind, words in kinds.items()}
    )


def nearest(error: GatewayError, rows: Mapping[type[GatewayError], Wording]) -> Wording:
    """The row of the error's kind, or of the nearest kind above it; a stranger is a fault of ours."""
    return next((rows[each] for each in type(error).__mro__ if each in rows), rows[errors.Internal])


def refusing(address: str, error: Callable[[Call], GatewayError], encode_error: EncodeError) -> Endpoint:
    """The endpoint of addresses that do not exist: all of their calls fail like this."""

    def decode(call: Call, resolve: Resolve) -> NoReturn:
        raise error(call)

    def encode(answer: Any, question: Any) -> NoReturn:
        raise AssertionError("nothing was asked")

    return Endpoint(address, "unknown", decode, encode, encode_error)

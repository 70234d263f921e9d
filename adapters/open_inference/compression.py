"""gzip and deflate bodies of Open Inference V2's infer: what comes in, inflated to a bound; what goes out, in the
coding that the client prefers.

`deflate` is a zlib stream (RFC 1950), as HTTP has it.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from functools import lru_cache
from types import MappingProxyType
from typing import Final

from tensorgate.adapters.inflate import inflate
from tensorgate.adapters.open_inference.errors import UnsupportedCoding
from tensorgate.gateway.contract.call import Buffer, Call
from tensorgate.gateway.contract.errors import InvalidArgument

_WINDOW_BITS: Final[Mapping[str, int]] = MappingProxyType({"gzip": 16 + zlib.MAX_WBITS, "deflate": zlib.MAX_WBITS})
_LEVEL: Final = zlib.Z_BEST_SPEED
"""Digits hardly shrink further with effort, and the caller waits."""


def plain_body(call: Call, limit: int) -> Buffer:
    """The body of a call, inflated if it is compressed.

    Raises UnsupportedCoding, InvalidArgument for a broken stream, BodyTooLarge beyond `limit` bytes.
    """
    coding = call.headers.get("content-encoding")
    if coding is None:
        return call.body
    coding = coding.strip().lower()
    if coding in ("", "identity"):
        return call.body
    if coding not in _WINDOW_BITS:
        raise UnsupportedCoding()
    try:
        return inflate(call.body, _WINDOW_BITS[coding], limit)
    except zlib.error as error:
        raise InvalidArgument(f"failed to decompress the {coding} request body: {error}") from None


# Never stale: made of nothing but its arguments.
@lru_cache(maxsize=64)
def best_coding(accepted: str) -> str:
    """An Accept-Encoding header -> gzip, deflate, or "" for none: the highest q, the first of equals."""
    best, weight = "", 0.0
    for choice in accepted.split(","):
        coding, _, quality = choice.partition(";")
        coding = coding.strip().lower()
        value = _quality(quality)
        if value > weight and (coding in _WINDOW_BITS or coding == "identity"):
            best, weight = coding, value
    return "" if best == "identity" else best


def _quality(parameter: str) -> float:
    """What `q=` says: 1 if nothing, 0 if nothing sensible."""
    name, _, value = parameter.partition("=")
    if not name.strip():
        return 1.0
    try:
        return float(value) if name.strip().lower() == "q" else 0.0
    except ValueError:
        return 0.0


def deflated(buffers: Sequence[Buffer], coding: str) -> list[Buffer]:
    """Buffers, sent one after the other -> the same content as one compressed stream."""
    stream = zlib.compressobj(_LEVEL, zlib.DEFLATED, _WINDOW_BITS[coding])
    return [*(stream.compress(buffer) for buffer in buffers), stream.flush()]

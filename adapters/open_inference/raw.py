"""Binary tensor data of Open Inference V2 <-> arrays: little-endian, row-major, packed. BOOL is one byte, true unless
0; BYTES is each element's length as a uint32, then the element.

The same form serves binary tensor data over HTTP and raw contents over gRPC. Numbers are views of the message in both
directions, never copies, but for small ones on their way out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from tensorgate.adapters.json import texts
from tensorgate.gateway.contract.call import Buffer
from tensorgate.gateway.contract.errors import ErrorReason, GatewayError, InvalidArgument
from tensorgate.gateway.contract.tensor import BYTES, Array

_CHEAP_TO_COPY_BYTES: Final = 2 << 10
"""Smaller than this, a view is more work than a copy."""


class CutLength(GatewayError):
    """A string's length is cut short, which is told with the request's id."""

    error_reason = ErrorReason.MALFORMED


class WrongSize(GatewayError):
    """`want` bytes are needed for a tensor, `got` are there; the caller knows whose they are."""

    error_reason = ErrorReason.SHAPE

    def __init__(self, want: int, got: int) -> None:
        super().__init__(f"{want} bytes needed, {got} given")
        self.want = want
        self.got = got


class WrongCount(GatewayError):
    """A tensor of strings has `got` of them, or that many at least, and declares another number."""

    error_reason = ErrorReason.SHAPE

    def __init__(self, got: int) -> None:
        super().__init__(f"{got} strings given")
        self.got = got


def numbers_of(data: memoryview, dtype: np.dtype[Any], shape: tuple[int, ...], count: int) -> Array:
    """Bytes -> array of `shape`, which has `count` elements, on the host: a view of the bytes (BOOL: a copy).

    Raises WrongSize.
    """
    if len(data) != count * dtype.itemsize:
        raise WrongSize(count * dtype.itemsize, len(data))
    if not count:
        return np.empty(shape, dtype)
    if dtype.kind == "b":
        return (np.frombuffer(data, np.uint8) != 0).reshape(shape)
    return np.ndarray(shape, dtype, data)


def strings_of(data: memoryview, shape: tuple[int, ...], count: int, name: str, model: str) -> Array:
    """Bytes -> object array of `shape`, which has `count` elements.

    Raises InvalidArgument where an element is cut short, WrongText where a length is or where their number is wrong.
    """
    where = f"for inference input '{name}'"
    elements, at = texts.read_lengths(data, count)
    left = len(data) - at
    if left:
        if len(elements) == count:
            raise WrongCount(count + 1)
        if left < texts.LENGTH.size:
            raise CutLength(
                f"incomplete string length indicator {where} for model '{model}', expecting 4 bytes but only "
                f"{left} bytes available. Please make sure the string length indicator is in one buffer."
            )
        raise InvalidArgument(
            f"incomplete string data {where}, expecting string of length {texts.LENGTH.unpack_from(data, at)[0]} "
            f"but only {left - texts.LENGTH.size} bytes available"
        )
    if len(elements) < count:
        raise WrongCount(len(elements))
    return texts.array_of(elements).reshape(shape)


def raw_of(array: Array) -> Buffer:
    """A host array -> its raw bytes: of a large one, a view where it is contiguous and not BYTES."""
    if array.dtype == BYTES:
        return texts.with_lengths(array)
    if array.nbytes < _CHEAP_TO_COPY_BYTES:
        raw: bytes = array.tobytes()
        return raw
    view: memoryview = array.ravel().view(np.uint8).data
    return view


HEADER_LENGTH: Final = "Inference-Header-Content-Length"
"""How many bytes of a body are JSON; binary tensors follow them. Counted before any compression."""


@dataclass(frozen=True, slots=True)
class V2ReplyForm:
    """`binary` names the outputs that go out as bytes behind the JSON, `coding` is the compression of the whole: gzip,
    deflate or "".
    """

    binary: frozenset[str] = frozenset()
    coding: str = ""


PLAIN: Final = V2ReplyForm()

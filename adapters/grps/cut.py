"""Long arrays of numbers, cut out of a body before it is read as a document.

What is left is small, with a mark in the place of each array, so that whatever the document says of its keys (which
is known, which stands there twice) holds for the arrays, too. A mark is a text that no caller can know. An array that
is not plain numbers which fit stays where it is; reading the document words what is wrong with it.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from tensorgate.adapters.grps.fields import FLOAT_MAX
from tensorgate.adapters.grps.tensors import BY_FIELD, Array
from tensorgate.adapters.json.body import scan
from tensorgate.gateway.contract.call import Buffer
from tensorgate.gateway.contract.tensor import DTYPES

MIN_BYTES: Final = 4 << 10
"""Smaller bodies are read as quickly as they are."""

_SECRET: Final = secrets.token_hex(16)
_DTYPES: Final[dict[bytes, np.dtype[Any]]] = {
    row.field.removeprefix("flat_").encode(): DTYPES[row.datatype]
    for row in BY_FIELD.values()
    if row.datatype not in ("BYTES", "FP16")
} | {b"double": DTYPES["FP64"]}
_KEY: Final = re.compile(
    rb'"flat(?:_(' + b"|".join(_DTYPES) + rb")|(" + b"|".join(name.capitalize() for name in _DTYPES) + rb'))"'
    rb"[ \t\n\r]*:[ \t\n\r]*(?=\[)"
)
"""Only where a member's key ends: inside a text its closing quote would have a backslash before it."""


def cut(body: Buffer) -> tuple[bytes, Mapping[str, Array]]:
    """-> the body without its long arrays, and these by their marks."""
    view, kept, begin = memoryview(body), list[Buffer](), 0
    found: dict[str, Array] = {}
    key = _KEY.search(body)
    while key is not None:
        end = key.end()
        array = _numbers(body, end, _DTYPES[(key[1] or key[2]).lower()])
        if array is not None:
            mark = f"{_SECRET}{len(found)}"
            found[mark], after = array
            kept += (view[begin:end], f'["{mark}"]'.encode())
            begin = end = after
        key = _KEY.search(body, end)
    return b"".join((*kept, view[begin:])), found


def _numbers(body: Buffer, start: int, dtype: np.dtype[Any]) -> tuple[Array, int] | None:
    """A flat array of numbers that fit, and the offset behind it; None for what has to be looked at closely."""
    scanned = scan(body, start, dtype)
    if scanned is None:
        return None
    array, end = scanned
    if array.ndim != 1 or not array.size:
        return None
    if dtype.kind == "f" and not (array.min() > -FLOAT_MAX[dtype] and array.max() < FLOAT_MAX[dtype]):
        return None  # what rounds to the largest number may be beyond it, and NaN is in no such array
    return array, end


def mark_of(value: Any, arrays: Mapping[str, Array]) -> Array | None:
    """The array whose mark this is, if it is one."""
    if not arrays or len(value) != 1:
        return None
    mark = value[0]
    return arrays.get(mark) if isinstance(mark, str) else None

"""The text of numbers: orjson's digits, the fewest that read back as the same number, set as Python sets them: 1e-05.
What is not finite is a string.

The compiled helper writes it where it is installed; what follows it here does the same without.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np
import orjson

from tensorgate.adapters._native import helper
from tensorgate.adapters.grps.tensors import Array
from tensorgate.gateway.contract.call import Buffer
from tensorgate.gateway.contract.tensor import DTYPES

_format_nested: Final[Callable[..., Buffer] | None] = helper("native_numbers", "_numbers", "format_nested")

_KINDS: Final[Mapping[np.dtype[Any], str]] = {
    DTYPES["FP32"]: "f",
    DTYPES["FP64"]: "d",
    DTYPES["INT8"]: "b",
    DTYPES["UINT8"]: "B",
    DTYPES["INT16"]: "h",
    DTYPES["INT32"]: "i",
    DTYPES["INT64"]: "q",
}
"""The dtypes of grps' numbers, as the compiled helper calls them."""

_MIN_PLAIN, _MIN_EXPONENT = 1e-4, 1e16
"""Between these Python writes no exponent."""
_FIRST_SHORTENED: Final = 1e13
"""From here on orjson does, for 32-bit floats."""
_MAX_REWRITTEN: Final = 4096


def joined(array: Array, seams: tuple[bytes, ...], *, widened: bool = False) -> Buffer:
    """The numbers of an array of rank 1 or more, one at least, in row-major order. seams[0] stands between two numbers
    of a row, seams[n] where n innermost arrays end at once; there are as many as dimensions. `widened` writes float32
    as the doubles that equal them.
    """
    if _format_nested is not None:
        kind = "w" if widened else _KINDS[array.dtype]
        return _format_nested(np.ascontiguousarray(array), kind, array.shape, seams)
    rows = compact((_doubles(array) if widened else array).reshape(-1, array.shape[-1]))[2:-2].split(b"],[")
    texts = [row.replace(b",", seams[0]) for row in rows]
    for count, size in enumerate(array.shape[-2::-1], 1):
        texts = [seams[count].join(texts[at : at + size]) for at in range(0, len(texts), size)]
    return texts[0]


@np.errstate(invalid="ignore")
def _doubles(array: Array) -> Array:
    """Some bit patterns of NaN would be warned of."""
    return array.astype(np.float64)


def compact(array: Array) -> bytes:
    """orjson's text of an array of rank 1 or more, with Python's where they differ; what is not finite as strings."""
    if array.dtype.kind != "f":
        return _dumped(array)
    odd = _written_otherwise(array)
    if not odd.any():
        return _dumped(array)
    known = array.copy()
    known[odd] = np.nan  # null to orjson
    text = _dumped(known)
    view, begin = memoryview(text), 0
    spliced: list[Buffer] = []
    for name in _in_python(array[odd]):
        null = text.index(b"n", begin)  # nothing else has this letter, and one byte is found quickly
        spliced += (view[begin:null], name)
        begin = null + 4
    return b"".join((*spliced, view[begin:]))


def _dumped(array: Array) -> bytes:
    return orjson.dumps(np.ascontiguousarray(array), option=orjson.OPT_SERIALIZE_NUMPY)


def _written_otherwise(array: Array) -> Array:
    """Where orjson's text is not Python's: 1e-05 is 0.00001 there, and 1e+13 of 32 bits has an exponent. Each costs a
    third of a microsecond, so very many stay as they are, equal numbers.
    """
    size = np.abs(array)
    odd = (size < _MIN_PLAIN) & (size > 0)
    if array.dtype == np.float32:
        odd |= (size >= _FIRST_SHORTENED) & (size < _MIN_EXPONENT)
    if np.count_nonzero(odd) > _MAX_REWRITTEN:
        odd[:] = False
    return odd | ~np.isfinite(array)


def _in_python(values: Array) -> list[bytes]:
    """The texts of some values: their shortest digits, as Python sets them."""
    finite = np.isfinite(values)
    names = np.where(np.isnan(values), b'"NaN"', np.where(values > 0, b'"Infinity"', b'"-Infinity"')).astype(np.object_)
    if finite.any():
        names[finite] = json.dumps(orjson.loads(_dumped(values[finite])))[1:-1].encode().split(b", ")
    texts: list[bytes] = names.tolist()
    return texts

"""The flat fields of tensors in grps' JSON: arrays of numbers or strings -> arrays.

Long arrays of numbers are cut out of the body before the rest is read as a document (see `json.cuts`). What is not
plain numbers that fit stays where it is; reading the document words what is wrong with it. Source: the JSON mapping of
protobuf as the Python server of grps v1.1.0 applies it.
"""

from __future__ import annotations

import re
from typing import Any, Final

import numpy as np

from tensorgate.adapters.grps.fields import FLOAT_MAX, floating, integer_within, list_of, refuse, shown
from tensorgate.adapters.grps.tensors import BY_FIELD, Array
from tensorgate.adapters.json.body import Ragged, WrongLeaf, rectangle, scan
from tensorgate.adapters.json.cuts import without
from tensorgate.gateway.contract.call import Buffer
from tensorgate.gateway.contract.tensor import BYTES, DTYPES

_FLOAT32: Final = DTYPES["FP32"]
_FLOAT64: Final = DTYPES["FP64"]
_EXACT: Final = 2.0**53 - 1


def flat_array(value: Any, dtype: np.dtype[Any], body: bytes) -> Array:
    """A JSON array -> flat array of `dtype`: in one go where it holds what the dtype is, one by one where it holds
    what the mapping accepts besides.
    """
    try:
        if dtype == BYTES:
            return _flat(value, dtype, body)
        if dtype.kind == "f":
            return _floats(value, dtype, body)
        return _integers(value, dtype, body)
    except Ragged:
        return refuse("expected an array without arrays in it")
    except WrongLeaf as wrong:
        return refuse(f"{shown(wrong.leaf)} does not fit")


def _flat(value: Any, dtype: np.dtype[Any], body: bytes) -> Array:
    flat = rectangle(value, dtype, body)
    if flat.ndim != 1:
        raise Ragged()
    return flat


def _floats(value: Any, dtype: np.dtype[Any], body: bytes) -> Array:
    """Half floats travel as 32-bit ones; beyond their own range they become infinite, as conversion makes them."""
    limit = FLOAT_MAX[_FLOAT64 if dtype == _FLOAT64 else _FLOAT32]
    try:
        wide = _flat(value, _FLOAT64, body)
    except WrongLeaf:
        wide = np.array(list_of(floating(limit))(value), _FLOAT64)
    else:
        if wide.size and not (wide.min() >= -limit and wide.max() <= limit):
            refuse("a number is not finite or too large")
    with np.errstate(over="ignore"):
        return wide.astype(dtype, copy=False)


def _integers(value: Any, dtype: np.dtype[Any], body: bytes) -> Array:
    try:
        return _flat(value, dtype, body)
    except WrongLeaf:
        pass
    try:
        wide = _flat(value, _FLOAT64, body)
    except WrongLeaf:
        wide = None
    if wide is not None and _are_integers(wide, dtype):
        return wide.astype(dtype)
    return np.array(list_of(integer_within(dtype))(value), dtype)


def _are_integers(wide: Array, dtype: np.dtype[Any]) -> bool:
    """Whether these doubles are integers that lost nothing on the way and fit."""
    limits = np.iinfo(dtype)
    low, high = max(limits.min, -_EXACT), min(limits.max, _EXACT)
    return bool(wide.min() >= low and wide.max() <= high and (wide == np.rint(wide)).all())


# --------------------------------------------------------------------------------------------- arrays cut out of a body

MIN_BYTES: Final = 4 << 10
"""Smaller bodies are read as quickly as they are."""

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


def cut(body: Buffer) -> tuple[bytes, list[Array]]:
    """-> the body with marks in the place of its long arrays, and these, by the numbers of their marks."""
    places: list[tuple[int, int]] = []
    arrays: list[Array] = []
    key = _KEY.search(body)
    while key is not None:
        end = key.end()
        found = _numbers(body, end, _DTYPES[(key[1] or key[2]).lower()])
        if found is not None:
            array, after = found
            arrays.append(array)
            places.append((end, after))
            end = after
        key = _KEY.search(body, end)
    return without(body, places), arrays


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

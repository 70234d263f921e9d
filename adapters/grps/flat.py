"""The flat fields of tensors in JSON: arrays of numbers or strings -> arrays."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from tensorgate.adapters.grps.fields import FLOAT_MAX, floating, integer_within, list_of, refuse, shown
from tensorgate.adapters.grps.tensors import Array
from tensorgate.adapters.json.body import Ragged, WrongLeaf, rectangle
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

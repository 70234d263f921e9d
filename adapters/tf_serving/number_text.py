"""The text of numbers. Source: TensorFlow Serving, which prints six significant digits if they read back as the same
number, and else as many as always do: 9 for float32, 17 for float64.

The compiled helper writes floating numbers where it is installed; what follows it here does the same without.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal, TypeAlias

import numpy as np

from tensorgate.gateway.contract.shortcuts import require
from tensorgate.gateway.contract.tensor import DTYPES

try:
    require("native_numbers")
    from tensorgate.adapters._native import _numbers
except ImportError:  # built where there is a compiler
    _format_rows = None
else:
    _format_rows = _numbers.format_rows

Array: TypeAlias = np.ndarray[Any, Any]

_KINDS: Final[Mapping[Any, Literal["f", "d"]]] = {DTYPES["FP32"]: "f", DTYPES["FP64"]: "d"}
_TRUTH: Final = ("false", "true")
_ENOUGH: Final = {4: "%.9g ", 8: "%.17g "}
_NOT_FINITE: Final = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}


def number_texts(array: Array) -> list[str]:
    """Every element of a bool, integer, float32 or float64 array as TensorFlow Serving writes it, in row-major order.

    0.1 -> '0.1', 1e6 -> '1e+06', float32 1/3 -> '0.333333343', 1 -> '1.0', infinity -> 'Infinity'.
    """
    flat = array.reshape(-1)
    if flat.dtype.kind == "b":
        return [_TRUTH[value] for value in flat.tolist()]
    if flat.dtype.kind in "iu":
        return [*map(str, flat.tolist())]
    if _format_rows is not None:
        return _format_rows(np.ascontiguousarray(flat), _KINDS[flat.dtype], 1, "")
    return _floats(flat)


def number_rows(array: Array, between: str) -> list[str]:
    """The same, the texts of every row of a two-dimensional array [rows, columns > 0] joined by `between`."""
    if _format_rows is not None and array.dtype.kind == "f":
        return _format_rows(np.ascontiguousarray(array), _KINDS[array.dtype], array.shape[1], between)
    if array.dtype.kind in "iu":
        rows = [repr(row)[1:-1] for row in array.tolist()]
        return rows if between == ", " else [row.replace(", ", between) for row in rows]
    texts = number_texts(array)
    columns = array.shape[1]
    return [between.join(texts[at : at + columns]) for at in range(0, len(texts), columns)]


def _floats(flat: Array) -> list[str]:
    """One format operation and one comparison for all of them, then the same for those that six digits fail.

    Reading back goes through float64, which rounds twice for float32; of all decimals with six digits, none lies where
    that matters.
    """
    values = flat.tolist()
    texts = ("%g " * len(values) % tuple(values)).split()
    failed = (np.array([*map(float, texts)], flat.dtype) != flat).nonzero()[0]
    if failed.size:
        longer = (_ENOUGH[flat.itemsize] * failed.size % tuple(flat[failed].tolist())).split()
        for index, text in zip(failed.tolist(), longer, strict=True):
            texts[index] = text
    return [text if "." in text or "e" in text else _NOT_FINITE.get(text) or text + ".0" for text in texts]

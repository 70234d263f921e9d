"""The text of numbers. Source: TensorFlow Serving, which prints six significant digits if they read back as the same
number, and else as many as always do: 9 for float32, 17 for float64.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

_TRUTH: Final = ("false", "true")
_ENOUGH: Final = {4: "%.9g ", 8: "%.17g "}
_NOT_FINITE: Final = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}


def number_texts(array: np.ndarray[Any, Any]) -> list[str]:
    """Every element of a bool, integer, float32 or float64 array as TensorFlow Serving writes it, in row-major order.

    0.1 -> '0.1', 1e6 -> '1e+06', float32 1/3 -> '0.333333343', 1 -> '1.0', infinity -> 'Infinity'.
    """
    flat = array.reshape(-1)
    if flat.dtype.kind == "b":
        return [_TRUTH[value] for value in flat.tolist()]
    if flat.dtype.kind in "iu":
        return [*map(str, flat.tolist())]
    return [text if "." in text or "e" in text else _NOT_FINITE.get(text) or text + ".0" for text in _float_texts(flat)]


def _float_texts(flat: np.ndarray[Any, Any]) -> list[str]:
    """One format operation and one comparison for all of them, then the same for those that six digits fail."""
    values = flat.tolist()
    texts = ("%g " * len(values) % tuple(values)).split()
    failed = (np.array([*map(float, texts)], flat.dtype) != flat).nonzero()[0]
    if failed.size:
        longer = (_ENOUGH[flat.itemsize] * failed.size % tuple(flat[failed].tolist())).split()
        for index, text in zip(failed.tolist(), longer, strict=True):
            texts[index] = text
    return texts

"""Compares two responses to one request, tensor by tensor: the caller's and a shadow's.

Floating-point numbers may differ by `atol + rtol * |caller's|`, NaN equals NaN, an infinity only itself. Integers,
booleans and bytes must be equal. Large tensors are compared in pieces, because differences are computed in double
precision. Pure, and slow for large tensors: call it off the event loop.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from tensorgate.gateway.contract.canonical import InferResponse
from tensorgate.gateway.contract.tensor import BYTES, DATATYPES, Array, Tensors

_PIECE: Final = 1 << 18
_FIRST: Final = 5
"""How many differing elements are listed."""
_EXACT: Final = "iub"
"""Kinds of dtypes without a tolerance."""


@dataclass(frozen=True, slots=True)
class Tolerance:
    """How much floating-point numbers may differ."""

    rtol: float = 1e-3
    atol: float = 1e-5


@dataclass(frozen=True, slots=True)
class TensorDiff:
    """The comparison of one output: `what` is equal, values, datatype, shape, missing (the shadow lacks it) or extra
    (only the shadow has it).

    If values were compared, `beyond` of `elements` are beyond the tolerance, and `max_absolute` is the largest
    difference. `max_relative` is the largest relative to the larger of both numbers, of elements that differ by more
    than `atol`. `first` lists some elements beyond the tolerance: index, the caller's, the shadow's.
    """

    output: str
    what: str
    primary: str = ""
    shadow: str = ""
    elements: int = 0
    beyond: int = 0
    max_absolute: float = 0.0
    max_relative: float = 0.0
    first: tuple[tuple[tuple[int, ...], Any, Any], ...] = ()


def compare(
    primary: InferResponse, shadow: InferResponse, tolerance: Tolerance, ignored: Collection[str] = ()
) -> list[TensorDiff]:
    """Compare every output that either response has, in the caller's order; classifications like tensors."""
    wanted, given = _tensors(primary, ignored), _tensors(shadow, ignored)
    found = [_compared(name, array, given[name], tolerance) for name, array in wanted.items() if name in given]
    found += [TensorDiff(name, "missing", primary=_form(wanted[name])) for name in wanted if name not in given]
    found += [TensorDiff(name, "extra", shadow=_form(given[name])) for name in given if name not in wanted]
    return found


def _tensors(answer: InferResponse, ignored: Collection[str]) -> Tensors:
    tensors = {name: array for name, array in answer.outputs.items() if name not in ignored}
    for name, best in answer.classes.items():
        if name not in ignored:
            tensors |= {f"{name} (values)": best.values, f"{name} (classes)": best.indices}
    return tensors


def _form(array: Array) -> str:
    return f"{DATATYPES[array.dtype]} {list(array.shape)}"


def _compared(name: str, primary: Array, shadow: Array, tolerance: Tolerance) -> TensorDiff:
    forms = _form(primary), _form(shadow)
    if primary.dtype != shadow.dtype:
        return TensorDiff(name, "datatype", *forms)
    if primary.shape != shadow.shape:
        return TensorDiff(name, "shape", *forms)
    beyond, largest, relative = 0, 0.0, 0.0
    first: list[tuple[tuple[int, ...], Any, Any]] = []
    mine, theirs = primary.reshape(-1), shadow.reshape(-1)
    for start in range(0, primary.size, _PIECE):
        a, b = mine[start : start + _PIECE], theirs[start : start + _PIECE]
        wrong, absolute, share = _bytes(a, b) if primary.dtype == BYTES else _numbers(a, b, tolerance)
        count = int(np.count_nonzero(wrong))
        if count and len(first) < _FIRST:
            for at in np.flatnonzero(wrong)[: _FIRST - len(first)].tolist():
                index = np.unravel_index(start + at, primary.shape)
                first.append((tuple(map(int, index)), _element(a[at]), _element(b[at])))
        beyond += count
        largest, relative = max(largest, absolute), max(relative, share)
    what = "values" if beyond else "equal"
    return TensorDiff(name, what, *forms, primary.size, beyond, largest, relative, tuple(first))


def _bytes(a: Array, b: Array) -> tuple[Array, float, float]:
    return np.asarray(a != b, np.bool_), 0.0, 0.0


def _numbers(a: Array, b: Array, tolerance: Tolerance) -> tuple[Array, float, float]:
    """-> mask of elements beyond the tolerance, largest absolute difference, largest relative difference."""
    x, y = a.astype(np.float64), b.astype(np.float64)
    with np.errstate(all="ignore"):
        same = a == b if a.dtype.kind in _EXACT else (x == y) | (np.isnan(x) & np.isnan(y))
        if same.all():
            return ~same, 0.0, 0.0
        distance = np.where(same, 0.0, np.abs(y - x))
        distance[np.isnan(distance)] = np.inf
        size = np.abs(x)
        larger = np.maximum(size, np.abs(y))
        if a.dtype.kind in _EXACT:
            wrong = ~same
        else:
            near = np.isfinite(x) & (distance <= tolerance.atol + tolerance.rtol * size)
            wrong = ~(same | near)
        counts = (distance > tolerance.atol) & np.isfinite(larger)
        shares = np.divide(distance, larger, out=np.where(np.isfinite(distance), 0.0, np.inf), where=counts)
    return wrong, float(distance.max()), float(shares.max())


def _element(value: Any) -> Any:
    """An element as JSON can carry it."""
    if isinstance(value, bytes):
        return value[:64].decode("utf-8", "backslashreplace")
    plain = value.item() if hasattr(value, "item") else value
    if not isinstance(plain, (bool, int, float)):
        plain = float(plain)  # bfloat16
    return plain if not isinstance(plain, float) or math.isfinite(plain) else str(plain)

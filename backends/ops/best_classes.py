"""The best classes of an output, found where the tensor lives: k values and indices leave the device, not the scores.

Per output of a batch there is one search, for the largest k that anybody asks for; every caller is given a slice of
its rows. The order is exact: descending in the tensor's own type, equal values (and -0.0 and 0.0 are equal) by the
lowest index, NaN last. Written once against `xp`, NumPy or CuPy. Source: Triton's classification extension.

Values become signed or unsigned integers, *keys*, whose ascending order is the order wanted: so one comparison serves
all types, and NaN has a place in it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from tensorgate.gateway.contract.canonical import InferRequest, TopK
from tensorgate.gateway.contract.errors import ClassesTooMany, ClassesUnsupported, GatewayError
from tensorgate.gateway.contract.tensor import DATATYPES, DTYPES, Array

_FLOATS: Final[Mapping[np.dtype[Any], tuple[np.dtype[Any], int]]] = {
    DTYPES["FP32"]: (np.dtype(np.int32), 0x7F80_0000),
    DTYPES["FP64"]: (np.dtype(np.int64), 0x7FF0_0000_0000_0000),
}
"""A type's bits as integers, and infinity among them: only NaN is beyond."""
_MAX_ROW: Final = 1_000_000
_MAX_CLASSES: Final = 4_000_000
"""In one output of one request: each becomes a text of some tens of bytes."""
_SORTED_WHOLE: Final = 256
"""Elements of a row; in longer ones the best are separated from the rest before they are sorted."""


def asks_for_classes(request: InferRequest) -> bool:
    for output in request.outputs:  # noqa: SIM110 - asked of every request, and any() costs several times as much
        if output.top_k:
            return True
    return False


def largest_k(requests: Sequence[InferRequest]) -> dict[str, int]:
    """Output -> the largest k that somebody asks for, of those outputs that are to be classified."""
    largest: dict[str, int] = {}
    for request in requests:
        for output in request.outputs:
            if output.top_k > largest.get(output.name, 0):
                largest[output.name] = output.top_k
    return largest


def best_classes(name: str, array: Array, k: int, batched: bool, xp: Any) -> TopK | GatewayError:
    """An output, rows on axis 0 if `batched`, else all of it one row -> its n = min(k, elements of a row) best, on the
    same device: [rows, n], or [n].

    What cannot be classified is an error for those who asked, not raised: others in the batch want the tensor itself.
    """
    if array.dtype.kind not in "iu" and array.dtype not in _FLOATS:
        return ClassesUnsupported(name, DATATYPES[array.dtype])
    batched = batched and array.ndim > 0
    rows = array.shape[0] if batched else 1
    size = math.prod(array.shape[1:] if batched else array.shape)
    if size > _MAX_ROW:
        return ClassesTooMany(name)
    flat = array.reshape(rows, size)
    indices = best_indices(flat, min(k, size), xp)
    values = xp.take_along_axis(flat, indices, axis=1)
    return TopK(values, indices) if batched else TopK(values[0], indices[0])


def best_indices(flat: Array, n: int, xp: Any) -> Array:
    """Integers, FP16, FP32 or FP64 [rows, size] -> where the n best of each row are, n <= size: INT64 [rows, n]."""
    size = flat.shape[1]
    if not (len(flat) and n):
        return xp.zeros((len(flat), n), np.int64)
    keys = _keys(flat.astype(np.float32) if flat.dtype == np.float16 else flat, xp)
    if n == 1:
        return xp.argmin(keys, axis=1)[:, None]  # the first of equal ones, as NumPy and CuPy have it
    whole = size <= _SORTED_WHOLE or n * 4 > size or xp is not np  # a GPU would have to tell how many, and we to wait
    return _sorted_best(keys, n, xp) if whole else _few_best(keys, n, xp)


def classes_of(name: str, best: TopK, k: int, rows: slice | None) -> TopK | GatewayError:
    """The k best of these rows of a batch (None: of all there is), as views."""
    values, indices = best.values[..., :k], best.indices[..., :k]
    if rows is not None:
        values, indices = values[rows], indices[rows]
    return TopK(values, indices) if values.size <= _MAX_CLASSES else ClassesTooMany(name)


def _keys(flat: Array, xp: Any) -> Array:
    """Values -> integers in the opposite order; NaN -> the largest of them."""
    if flat.dtype.kind != "f":
        return ~flat
    integer, infinity = _FLOATS[flat.dtype]
    largest = int(np.iinfo(integer).max)
    bits = flat.view(integer)
    magnitude = bits & largest
    ascending = bits ^ (bits >> (8 * integer.itemsize - 1) & largest)  # of negative floats the larger has smaller bits
    keys = xp.where(magnitude == 0, integer.type(-1), ~ascending)  # -0.0 as 0.0
    return xp.where(magnitude > infinity, integer.type(largest), keys)


def _sorted_best(keys: Array, n: int, xp: Any) -> Array:
    return xp.argsort(keys, axis=1, kind="stable")[:, :n]


def _few_best(keys: Array, n: int, xp: Any) -> Array:
    """The best without sorting the others: every key below the n-th smallest, and of those equal to it
    the first, as many as are missing.
    """
    last = xp.partition(keys, n - 1, axis=1)[:, n - 1 : n]
    chosen = keys < last
    level = keys == last
    chosen |= level & (xp.cumsum(level, axis=1) <= n - chosen.sum(axis=1, keepdims=True))
    candidates = xp.nonzero(chosen)[1].reshape(len(keys), n)  # ascending in each row, so that the sort keeps ties right
    order = xp.argsort(xp.take_along_axis(keys, candidates, axis=1), axis=1, kind="stable")
    return xp.take_along_axis(candidates, order, axis=1)

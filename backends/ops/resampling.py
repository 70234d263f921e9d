"""Resizing along one axis: every new entry is a weighted sum of a few neighbouring old ones.

With antialiasing, an entry of a smaller image is the mean of all that it stands for: the filter is as wide as the image
shrinks. Weights are Pillow's, computed as it does; so is the arithmetic of uint8, whose weights are integers of 22
binary places, each pass rounded to whole numbers. Without antialiasing the filter keeps its width, and entries beyond
the border are those of the border, as PyTorch and OpenCV do it (align_corners=False); both passes are done before
anything is rounded.

On the host a pass is a few matrix products, each for a band of the new entries with the old ones that these need; exact
for integers too, since float64 holds every sum. On a GPU it is one kernel. Sources: Pillow, Resample.c; PyTorch,
UpSample.h.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np

from tensorgate.gateway.contract.tensor import Array

Method = Literal["nearest", "bilinear", "bicubic", "lanczos"]
PLACES: Final = 22
_BAND: Final = 32
_BLOCK_BYTES: Final = 16 << 20

_Filter = Callable[[Array], Array]


def _triangle(x: Array) -> Array:
    return np.maximum(1 - np.abs(x), 0)


def _cubic(a: float) -> _Filter:
    def weight(x: Array) -> Array:
        x = np.abs(x)
        near = ((a + 2) * x - (a + 3)) * x * x + 1
        far = (((x - 5) * x + 8) * x - 4) * a
        return np.where(x < 1, near, np.where(x < 2, far, 0))

    return weight


def _lanczos(x: Array) -> Array:
    return np.where(np.abs(x) < 3, np.sinc(x) * np.sinc(x / 3), 0)


_FILTERS: Final[dict[str, tuple[_Filter, float]]] = {
    # the filter, and how far it reaches to either side
    "bilinear": (_triangle, 1),
    "bicubic": (_cubic(-0.5), 2),
    "lanczos": (_lanczos, 3),
}


@dataclass(frozen=True, slots=True, eq=False)
class Taps:
    """Which entries make each new one: those from `first`, with `weights`, zeros at the end: [new], [new, most]."""

    first: Array
    weights: Array

    @property
    def ends(self) -> Array:
        """The entry after the last that has a weight."""
        used = self.weights.shape[1] - np.argmax(self.weights[:, ::-1] != 0, axis=1)
        return self.first + np.where(self.weights.any(axis=1), used, 0)


@functools.lru_cache(maxsize=256)
def taps(old: int, new: int, method: Method, antialias: bool, whole: bool) -> Taps:
    """How `old` entries become `new` ones. `whole`: weights are whole numbers of 2**-PLACES, made as Pillow does."""
    made = _antialiased(old, new, method) if antialias else _sampled(old, new, method)
    if not whole:
        return made
    rounded = np.trunc(made.weights * (1 << PLACES) + np.where(made.weights < 0, -0.5, 0.5))
    return Taps(made.first, rounded)


def nearest(old: int, new: int) -> Array:
    """The old entry that each new one is. Positions are summed up one by one, as Pillow does."""
    step = old / new
    steps = np.full(new, step)
    steps[:1] = step * 0.5
    return np.minimum(np.cumsum(steps).astype(np.int64), old - 1)


def _antialiased(old: int, new: int, method: Method) -> Taps:
    weight, reach = _FILTERS[method]
    scale = old / new
    wide = max(scale, 1.0)
    support = reach * wide
    width = math.ceil(support) * 2 + 1
    center = (np.arange(new) + 0.5) * scale
    first = np.maximum((center - support + 0.5).astype(np.int64), 0)
    end = np.minimum((center + support + 0.5).astype(np.int64), old)
    offset = np.arange(width)
    weights = weight((offset + first[:, None] - center[:, None] + 0.5) * (1 / wide))
    weights = np.where(offset < (end - first)[:, None], weights, 0.0)
    total = np.add.accumulate(weights, axis=1)[:, -1:]  # one after the other, in the order that Pillow has
    weights /= np.where(total == 0, 1, total)
    return Taps(first, weights)


def _sampled(old: int, new: int, method: Method) -> Taps:
    """A filter of its own width at every position; what it finds beyond the border is the border's."""
    weight, reach = (_cubic(-0.75), 2) if method == "bicubic" else _FILTERS[method]
    position = (np.arange(new) + 0.5) * (old / new) - 0.5
    left = np.floor(position).astype(np.int64) - int(reach) + 1
    entries = left[:, None] + np.arange(2 * int(reach))
    own = weight(entries - position[:, None])
    own /= own.sum(axis=1, keepdims=True)
    entries = entries.clip(0, old - 1)
    first = entries[:, 0]
    weights = np.zeros_like(own)
    for tap in range(own.shape[1]):
        np.add.at(weights, (np.arange(new), entries[:, tap] - first), own[:, tap])
    return Taps(first, weights)


# ------------------------------------------------------------------------------------------------------------ the host


@functools.lru_cache(maxsize=64)
def _bands(
    old: int, new: int, method: Method, antialias: bool, whole: bool, dtype: type
) -> list[tuple[int, int, int, int, Array]]:
    """The new entries from, to; the old ones from, to; and the matrix [new entries, old entries] between them."""
    made = taps(old, new, method, antialias, whole)
    ends, bands = made.ends, []
    for start in range(0, new, _BAND):
        stop = min(start + _BAND, new)
        low, high = int(made.first[start:stop].min()), int(ends[start:stop].max())
        matrix: Array = np.zeros((stop - start, high - low), dtype)
        for row, entry in enumerate(range(start, stop)):
            at, end = int(made.first[entry]), int(ends[entry])
            matrix[row, at - low : end - low] = made.weights[entry, : end - at]
        bands.append((start, stop, low, high, matrix))
    return bands


def on_host(x: Array, new: int, method: Method, antialias: bool) -> Array:
    """[outer, old, inner] -> [outer, new, inner]: uint8 to uint8 rounded as Pillow does, floats kept. Temporaries are
    bounded.
    """
    outer, old, inner = x.shape
    whole = x.dtype == np.uint8
    work = np.float64 if whole or x.dtype == np.float64 else np.float32
    bands = _bands(old, new, method, antialias, whole, work)
    result = np.empty((outer, new, inner), x.dtype)
    line_bytes = max(old, new) * np.dtype(work).itemsize
    wide = max(1, min(inner, _BLOCK_BYTES // line_bytes))
    high = max(1, _BLOCK_BYTES // (line_bytes * wide))
    for top in range(0, outer, high):
        for left in range(0, inner, wide):
            block = x[top : top + high, :, left : left + wide].transpose(1, 0, 2)
            entries = block.astype(work, order="C").reshape(old, -1)
            sums = np.empty((new, entries.shape[1]), work)
            for start, stop, low, end, matrix in bands:
                np.matmul(matrix, entries[low:end], out=sums[start:stop])
            if whole:
                sums += 1 << (PLACES - 1)
                sums *= 2.0**-PLACES
                np.floor(sums, out=sums)
                sums.clip(0, 255, out=sums)
            result[top : top + high, :, left : left + wide] = sums.reshape(new, *block.shape[1:]).transpose(1, 0, 2)
    return result


# ------------------------------------------------------------------------------------------------------------- the GPU

BODY: Final = """
    const INDEX row = (INDEX)i / inner, lane = (INDEX)i - row * inner;
    const INDEX block = row / fresh, entry = row - block * fresh;
    const INDEX from = (block * old + first[entry]) * inner + lane;
    const int count = counts[entry];
    A sum = HALF;
    for (int tap = 0; tap < count; ++tap) {
        sum += (A)x[from + tap * inner] * weights[entry * most + tap];
    }
    y = FINISH;
"""
"""One new element `i` of y [outer, fresh, inner], from x [outer, old, inner]."""
WIDE: Final = ("int64", "long long")
NARROW: Final = ("uint32", "unsigned int")
"""Where all offsets fit: a GPU divides these several times as fast. CuPy's name, and C's."""
_MAX_NARROW: Final = 1 << 31
WHOLE: Final = ("1 << 21", "sum >> 22 < 0 ? 0 : sum >> 22 > 255 ? 255 : sum >> 22")
FLOATING: Final = ("0", "(T)sum")


def body(whole: bool, index: tuple[str, str]) -> str:
    """The kernel's text for uint8 in int (A), or for floats in float or double."""
    half, finish = WHOLE if whole else FLOATING
    return BODY.replace("HALF", half).replace("FINISH", finish).replace("INDEX", index[1])


@functools.cache
def _kernel(xp: Any, whole: bool, index: tuple[str, str]) -> Any:
    sizes = ", ".join(f"{index[0]} {name}" for name in ("old", "fresh", "inner", "most"))
    return xp.ElementwiseKernel(
        f"raw T x, raw int32 first, raw int32 counts, raw A weights, {sizes}",
        "T y",
        body(whole, index),
        f"tensorgate_resample_{'whole' if whole else 'floating'}",
    )


def on_gpu(x: Array, new: int, tables: tuple[Array, ...], xp: Any) -> Array:
    """Resample on a GPU, as `on_host` does; `tables` are host_tables' for these sizes, taken there."""
    outer, old, inner = x.shape
    first, counts, weights = tables
    y = xp.empty((outer, new, inner), x.dtype)
    if y.size:
        narrow = max(x.size, y.size, weights.size) < _MAX_NARROW
        kernel = _kernel(xp, x.dtype == np.uint8, NARROW if narrow else WIDE)
        kernel(xp.ascontiguousarray(x), first, counts, weights, old, new, inner, weights.shape[1], y)
    return y


def host_tables(
    old: int, new: int, method: Method, antialias: bool, dtype: np.dtype[Any]
) -> tuple[Array, Array, Array]:
    """What the kernel reads: first entries and how many, int32 [new]; weights [new, most] in what it sums in."""
    whole = dtype == np.uint8
    made = taps(old, new, method, antialias, whole)
    weights = made.weights.astype(np.int32 if whole else np.float64 if dtype == np.float64 else np.float32)
    return made.first.astype(np.int32), (made.ends - made.first).astype(np.int32), weights

"""`nms` on a GPU: one kernel, a block of threads for each image.

Candidates are sorted, so the block goes through them once: each that is still there is kept, and its threads drop what
it overlaps behind it. It ends with the last that is wanted, and needs no table of all pairs.

Arithmetic is that of the host to the bit: each step is rounded, none is fused with another, and NaN is passed on.
"""

from __future__ import annotations

import functools
from typing import Any, Final

import numpy as np

from tensorgate.gateway.contract.tensor import Array

THREADS: Final = 256
MAX_CANDIDATES: Final = 10_000
"""As many as the operator's option allows; a byte of shared memory for each."""
OPTIONS: Final = ("-std=c++17", "--fmad=false")
KERNEL: Final = """
__device__ inline Real lower(Real a, Real b) { return a != a ? a : b != b ? b : a < b ? a : b; }
__device__ inline Real upper(Real a, Real b) { return a != a ? a : b != b ? b : a > b ? a : b; }

extern "C" __global__ void tensorgate_nms(
    const Real* __restrict__ x0, const Real* __restrict__ y0, const Real* __restrict__ x1, const Real* __restrict__ y1,
    const long long* __restrict__ classes, const bool* __restrict__ valid, const Real threshold,
    const unsigned int candidates, const unsigned int most, const unsigned int class_aware,
    long long* __restrict__ picks, bool* __restrict__ taken) {
    __shared__ bool alive[MAX_CANDIDATES];
    const unsigned long long start = (unsigned long long)blockIdx.x * candidates;
    for (unsigned int other = threadIdx.x; other < candidates; other += blockDim.x) {
        alive[other] = valid[start + other];
    }
    __syncthreads();
    unsigned int kept = 0;
    for (unsigned int best = 0; best < candidates && kept < most; ++best) {
        if (!alive[best]) {  // nobody writes there any more: all threads see the same
            continue;
        }
        if (threadIdx.x == 0) {
            picks[(unsigned long long)blockIdx.x * most + kept] = best;
            taken[(unsigned long long)blockIdx.x * most + kept] = true;
        }
        ++kept;
        const unsigned long long b = start + best;
        const Real area = (x1[b] - x0[b]) * (y1[b] - y0[b]);
        for (unsigned int other = best + 1 + threadIdx.x; other < candidates; other += blockDim.x) {
            const unsigned long long o = start + other;
            if (!alive[other] || (class_aware && classes[o] != classes[b])) {
                continue;
            }
            const Real width = upper(lower(x1[b], x1[o]) - upper(x0[b], x0[o]), 0);
            const Real height = upper(lower(y1[b], y1[o]) - upper(y0[b], y0[o]), 0);
            const Real common = width * height;
            const Real both = area + (x1[o] - x0[o]) * (y1[o] - y0[o]) - common;
            if (common / (both > 0 ? both : (Real)1) > threshold) {
                alive[other] = false;
            }
        }
        __syncthreads();
    }
}
"""


def source(dtype: np.dtype[Any]) -> str:
    """The kernel's text for FP32 or FP64 boxes."""
    real = "double" if dtype == np.float64 else "float"
    return f"#define MAX_CANDIDATES {MAX_CANDIDATES}\ntypedef {real} Real;\n{KERNEL}"


@functools.cache
def _kernel(xp: Any, dtype: np.dtype[Any]) -> Any:
    return xp.RawKernel(source(dtype), "tensorgate_nms", options=OPTIONS)


def select(
    corners: tuple[Array, Array, Array, Array],
    classes: Array | None,
    valid: Array,
    threshold: float,
    picks: Array,
    taken: Array,
    xp: Any,
) -> None:
    """Fill picks, INT64, and taken, BOOL, both [N, max_output] and zero, from sorted candidates [N, M]."""
    images, candidates = valid.shape
    x0, y0, x1, y1 = [xp.ascontiguousarray(corner) for corner in corners]
    kinds = valid if classes is None else xp.ascontiguousarray(classes.astype(np.int64))  # any pointer will do for none
    arguments = (
        *(x0, y0, x1, y1, kinds, xp.ascontiguousarray(valid)),
        *(x0.dtype.type(threshold), np.uint32(candidates), np.uint32(picks.shape[1]), np.uint32(classes is not None)),
        *(picks, taken),
    )
    _kernel(xp, x0.dtype)((images,), (THREADS,), arguments)

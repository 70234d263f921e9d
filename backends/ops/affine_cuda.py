"""`affine` on a GPU: one kernel reads a tensor once and writes the result once.

The usual case, bytes with channels last to FP32 or FP16 with channels first, has a kernel of its own. A thread takes
PIXELS neighbouring pixels: it reads them as CHANNELS words of PIXELS bytes and writes each channel's as 16 bytes, so
that the threads of a warp write 512 bytes in a row. All else is one element per thread, read wherever it lies.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Final

import numpy as np

from tensorgate.gateway.contract.tensor import Array

THREADS: Final = 256
_MAX_CHANNELS: Final = 4
_MAX_ROWS: Final = 65535
_PLANAR: Final = (0, 3, 1, 2)
_HALF: Final = """
__device__ inline unsigned short rounded(float value) {
    unsigned short bits;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
    return bits;
}
"""
_FLOAT: Final = """
__device__ inline float rounded(float value) {
    return value;
}
"""
KERNEL: Final = """
struct __align__(16) Pack {
    Out of[PIXELS];
};

extern "C" __global__ void tensorgate_planar(
    const Word* __restrict__ x, Pack* __restrict__ y, const float* __restrict__ scale, const float* __restrict__ shift,
    unsigned int groups, unsigned int images) {
    for (unsigned int image = blockIdx.y; image < images; image += gridDim.y) {
        for (unsigned int group = blockIdx.x * blockDim.x + threadIdx.x; group < groups;
             group += gridDim.x * blockDim.x) {
            const Word* from = x + ((unsigned long long)image * groups + group) * CHANNELS;
            Word words[CHANNELS];
            #pragma unroll
            for (int word = 0; word < CHANNELS; ++word) {
                words[word] = from[word];
            }
            #pragma unroll
            for (int channel = 0; channel < CHANNELS; ++channel) {
                Pack pack;
                #pragma unroll
                for (int pixel = 0; pixel < PIXELS; ++pixel) {
                    const int byte = pixel * CHANNELS + channel;
                    const unsigned int value = (unsigned int)(words[byte / PIXELS] >> (byte % PIXELS * 8)) & 255;
                    pack.of[pixel] = rounded((float)value * scale[channel] + shift[channel]);
                }
                y[((unsigned long long)image * CHANNELS + channel) * groups + group] = pack;
            }
        }
    }
}
"""
GENERIC: Final = "y = (Y)((F)x * scale + shift)"


def pixels_per_thread(dtype: np.dtype[Any]) -> int:
    """As many as make 16 bytes."""
    return 16 // dtype.itemsize


def source(dtype: np.dtype[Any], channels: int, rounded: str = "") -> str:
    """The planar kernel's text for FP32 or FP16 results; `rounded` replaces its conversion where that is no CUDA."""
    half = dtype == np.float16
    return (
        f"#define CHANNELS {channels}\n"
        f"#define PIXELS {pixels_per_thread(dtype)}\n"
        f"typedef {'unsigned short' if half else 'float'} Out;\n"
        f"typedef unsigned {'long long' if half else 'int'} Word;\n"
        f"{rounded or (_HALF if half else _FLOAT)}{KERNEL}"
    )


@functools.cache
def _planar_kernel(xp: Any, dtype: np.dtype[Any], channels: int) -> Any:
    return xp.RawKernel(source(dtype, channels), "tensorgate_planar", options=("-std=c++17",))


@functools.cache
def _generic_kernel(xp: Any) -> Any:
    return xp.ElementwiseKernel("X x, F scale, F shift", "Y y", GENERIC, "tensorgate_affine")


def run(
    array: Array,
    order: tuple[int, ...] | None,
    dtype: np.dtype[Any],
    axis: int,
    channels: int,
    factors: Callable[[int], tuple[Array, Array]],
    xp: Any,
) -> Array:
    """array * scale + shift, its axes in this order, in `dtype`. `factors(n)` are scale and shift, each n times over:
    float32 or float64, of as many `channels` as they have, along one axis of the result.
    """
    if is_planar(array, order, dtype):
        return _planar(array, dtype, factors(1 if channels > 1 else array.shape[3]), xp)
    view = array if order is None else array.transpose(order)
    result = xp.empty(view.shape, dtype)
    shape = [1] * view.ndim
    if channels > 1:
        shape[axis] = channels
    scale, shift = (each.reshape(shape) for each in factors(1))
    _generic_kernel(xp)(view, scale, shift, result)
    return result


def is_planar(array: Array, order: tuple[int, ...] | None, dtype: np.dtype[Any]) -> bool:
    """Whether it is the usual case, and lies as the kernel wants it."""
    if order != _PLANAR or array.dtype != np.uint8 or dtype not in (np.float32, np.float16) or not array.size:
        return False
    pixels = pixels_per_thread(dtype)
    return bool(
        array.shape[3] <= _MAX_CHANNELS
        and array.shape[1] * array.shape[2] % pixels == 0
        and array.shape[1] * array.shape[2] // pixels < 1 << 31
        and array.flags.c_contiguous
        and array.data.ptr % pixels == 0
    )


def _planar(array: Array, dtype: np.dtype[Any], factors: tuple[Array, Array], xp: Any) -> Array:
    images, height, width, channels = array.shape
    result = xp.empty((images, channels, height, width), dtype)
    groups = height * width // pixels_per_thread(dtype)
    grid = (-(-groups // THREADS), min(images, _MAX_ROWS))
    arguments = (array, result, *factors, np.uint32(groups), np.uint32(images))
    _planar_kernel(xp, dtype, channels)(grid, (THREADS,), arguments)
    return result

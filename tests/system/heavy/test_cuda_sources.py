"""The texts of the GPU's kernels, compiled as C++ for this machine's processor and run thread by thread.

That they are right is shown here wherever there is a C++ compiler; how they do on a GPU is for tests marked gpu.
"""

from __future__ import annotations

import ctypes
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from backends.ops import affine_cuda, resampling
from backends.ops.affine import Affine, Pass

pytestmark = pytest.mark.heavy
RANDOM = np.random.default_rng(5)
CUDA = """
#include <cstddef>
#include <cstring>
#define __global__
#define __device__
#define __restrict__
#define __align__(bytes) alignas(bytes)
struct Place { unsigned int x, y; };
static Place blockIdx, blockDim, gridDim, threadIdx;
"""
ROUNDED = """
static unsigned short rounded(float value) {  // to the nearest half, ties to even
    unsigned int bits;
    std::memcpy(&bits, &value, 4);
    const unsigned int sign = bits >> 16 & 0x8000u, size = bits & 0x7fffffffu;
    if (size >= 0x7f800000u) {
        return sign | (size > 0x7f800000u ? 0x7e00u : 0x7c00u);
    }
    float small;
    std::memcpy(&small, &size, 4);
    if (size < 0x38800000u) {  // below the normal halves: the sum's last bit is theirs
        small += 0.5f;
        std::memcpy(&bits, &small, 4);
        return sign | (bits - 0x3f000000u);
    }
    const unsigned int half = (size + 0xfffu + (size >> 13 & 1u)) >> 13;
    const unsigned int moved = half - (112u << 10);
    return sign | (moved > 0x7c00u ? 0x7c00u : moved);
}
"""
LAUNCH = """
extern "C" void launch(const Word* x, Pack* y, const float* scale, const float* shift, unsigned int groups,
                       unsigned int images, unsigned int wide, unsigned int high, unsigned int threads) {
    gridDim = {wide, high};
    blockDim = {threads, 1};
    for (blockIdx.y = 0; blockIdx.y < high; ++blockIdx.y)
        for (blockIdx.x = 0; blockIdx.x < wide; ++blockIdx.x)
            for (threadIdx.x = 0; threadIdx.x < threads; ++threadIdx.x)
                tensorgate_planar(x, y, scale, shift, groups, images);
}
"""

Compile = Callable[[str], Any]


@pytest.fixture
def compiled(tmp_path: Path) -> Compile:
    """A text -> the library that it becomes."""

    def compile_(text: str) -> Any:
        source, library = tmp_path / "kernel.cpp", tmp_path / "kernel.so"
        source.write_text(text)
        flags = ["-std=c++17", "-O1", "-ffp-contract=off", "-fsanitize=undefined", "-fno-sanitize-recover=all"]
        subprocess.run(["g++", *flags, "-shared", "-fPIC", "-o", library, source], check=True)
        return ctypes.CDLL(str(library))

    return compile_


def pointer(array: Any) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.ctypes.data)


@pytest.mark.parametrize("channels", [1, 2, 3, 4])
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_planar(channels: int, dtype: Any, compiled: Compile) -> None:
    result = np.dtype(dtype)
    rounded = ROUNDED if result == np.float16 else ""
    library = compiled(CUDA + affine_cuda.source(result, channels, rounded) + LAUNCH)
    scale, shift = RANDOM.normal(0, 3, (2, channels)).astype(np.float32)
    scale[0], shift[-1] = 1e-7, 1e5  # halves below the normal ones, and infinite ones
    for images, height, width in [(1, 1, 16), (3, 24, 31), (5, 8, 40)]:
        x = RANDOM.integers(0, 256, (images, height, width, channels)).astype(np.uint8)
        groups = height * width // affine_cuda.pixels_per_thread(result)
        y = np.zeros((images, channels, height, width), result)
        for wide, high, threads in [(-(-groups // 256), images, 256), (2, 2, 3)]:  # one element each, and several
            y[:] = 0
            library.launch(*map(pointer, (x, y, scale, shift)), groups, images, wide, high, threads)
            step = Affine(result, (0, 3, 1, 2), np.dtype(np.float32), scale, shift, 1)
            with np.errstate(all="ignore"):
                np.testing.assert_array_equal(y, Pass("x", step)(x, np))


@pytest.mark.parametrize("method", ["bilinear", "bicubic", "lanczos"])
@pytest.mark.parametrize("dtype", [np.uint8, np.float32, np.float64])
def test_resampling(method: resampling.Method, dtype: Any, compiled: Compile) -> None:
    whole = dtype == np.uint8
    types = {np.uint8: ("unsigned char", "int"), np.float32: ("float", "float"), np.float64: ("double", "double")}
    element, accumulator = types[dtype]
    library = compiled(
        f"""{CUDA}
        typedef {element} T;
        typedef {accumulator} A;
        extern "C" void run(const T* x, const int* first, const int* counts, const A* weights, long long old,
                            long long fresh, long long inner, long long most, T* result, std::ptrdiff_t size) {{
            for (std::ptrdiff_t i = 0; i < size; ++i) {{
                T& y = result[i];
                {resampling.body(whole)}
            }}
        }}"""
    )
    for outer, old, new, inner in [(2, 40, 16, 3), (1, 7, 20, 5), (3, 1, 4, 1), (2, 30, 1, 2)]:
        x = (RANDOM.random((outer, old, inner)) * 255).astype(dtype)
        x[0, : old // 2] = 255 if whole else 1e3  # edges ring, and are clipped
        first, counts, weights = resampling.host_tables(old, new, method, True, x.dtype)
        y = np.zeros((outer, new, inner), dtype)
        sizes = map(ctypes.c_longlong, (old, new, inner, weights.shape[1]))
        library.run(*map(pointer, (x, first, counts, weights)), *sizes, pointer(y), ctypes.c_longlong(y.size))
        want = resampling.on_host(x, new, method, True)
        if whole:
            np.testing.assert_array_equal(y, want)
        else:
            np.testing.assert_allclose(y, want, rtol=0, atol=1e3 * 8 * np.finfo(dtype).eps)

"""CuPy as far as operators use it, on NumPy; its kernels are compiled as C++ for this machine's processor."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from tensorgate.backends.ops import affine_cuda

CUDA = """
#include <cstddef>
#include <cstring>
#define __global__
#define __device__
#define __restrict__
#define __align__(bytes) alignas(bytes)
struct Place { unsigned int x, y; };
static Place blockIdx, blockDim, gridDim;
static thread_local Place threadIdx;
"""
TOGETHER = """
#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>
#define __shared__ static
static std::mutex gate;
static std::condition_variable opened;
static unsigned int arrived, rounds;
static void __syncthreads() {
    std::unique_lock<std::mutex> held(gate);
    const unsigned int round = rounds;
    if (++arrived == blockDim.x) {
        arrived = 0;
        ++rounds;
        opened.notify_all();
    } else {
        opened.wait(held, [=] { return rounds != round; });
    }
}
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
HALF = """
struct float16 {
    unsigned short bits;
    float16(float value) : bits(rounded(value)) {}
    operator float() const {
        const unsigned int rest = bits & 0x7fffu, sign = (unsigned int)(bits & 0x8000u) << 16;
        unsigned int wide = (rest << 13) + (112u << 23);
        float value;
        if (rest >= 0x7c00u) {
            wide += 112u << 23;
        } else if (rest < 0x400u) {
            value = rest / 16777216.0f;
            std::memcpy(&wide, &value, 4);
        }
        wide |= sign;
        std::memcpy(&value, &wide, 4);
        return value;
    }
};
"""
TYPES = {"b": "bool", "u1": "unsigned char", "i2": "short", "i4": "int", "i8": "long long", "f2": "float16"}
TYPES |= {
    "b1": "bool",
    "u2": "unsigned short",
    "i1": "signed char",
    "u4": "unsigned int",
    "f4": "float",
    "f8": "double",
}


def compiled(text: str, folder: Path) -> Any:
    """A text -> the library that it becomes."""
    name = hashlib.sha256(text.encode()).hexdigest()[:16]
    source, library = folder / f"{name}.cpp", folder / f"{name}.so"
    if not library.exists():
        source.write_text(text)
        flags = ["-std=c++17", "-O1", "-ffp-contract=off", "-fsanitize=undefined", "-fno-sanitize-recover=all"]
        subprocess.run(["g++", *flags, "-shared", "-fPIC", "-o", library, source], check=True)
    return ctypes.CDLL(str(library))


class OnGpu(np.ndarray):
    """An array that pretends to be there."""

    @property
    def data(self) -> Any:  # type: ignore[override]
        return SimpleNamespace(ptr=self.ctypes.data)


def there(result: Any) -> Any:
    return result.view(OnGpu) if isinstance(result, np.ndarray) and result.dtype != object else result


class StandIn:
    """The module. What it does not have of its own is NumPy's."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.cuda = SimpleNamespace(
            runtime=SimpleNamespace(getDevice=lambda: 0), get_current_stream=lambda: SimpleNamespace(ptr=0)
        )
        self.launched: list[str] = []

    def __getattr__(self, name: str) -> Any:
        function = getattr(np, name)
        return functools.wraps(function)(lambda *arguments, **options: there(function(*arguments, **options)))

    def RawKernel(self, code: str, name: str, options: tuple[str, ...]) -> Any:  # noqa: N802 - CuPy's name
        return self._nms(code, name, options) if name == "tensorgate_nms" else self._planar(code, name, options)

    def _nms(self, code: str, name: str, options: tuple[str, ...]) -> Any:
        """A block's threads are real ones, since they wait for each other; a few do for many."""
        assert options == ("-std=c++17", "--fmad=false")
        launch = """
        extern "C" void launch(const Real* x0, const Real* y0, const Real* x1, const Real* y1, const long long* classes,
                               const bool* valid, Real threshold, unsigned int candidates, unsigned int most,
                               unsigned int class_aware, long long* picks, bool* taken, unsigned int images,
                               unsigned int threads) {
            blockDim = {threads, 1};
            for (blockIdx.x = 0; blockIdx.x < images; ++blockIdx.x) {
                std::vector<std::thread> all;
                for (unsigned int own = 0; own < threads; ++own) {
                    all.emplace_back([=] {
                        threadIdx.x = own;
                        tensorgate_nms(x0, y0, x1, y1, classes, valid, threshold, candidates, most, class_aware, picks,
                                       taken);
                    });
                }
                for (std::thread& each : all) {
                    each.join();
                }
            }
        }"""
        library = compiled(CUDA + TOGETHER + code + launch, self._folder)

        def run(grid: tuple[int, ...], block: tuple[int, ...], arguments: tuple[Any, ...]) -> None:
            self.launched.append(name)
            *arrays, threshold, candidates, most, class_aware, picks, taken = arguments
            assert all(isinstance(each, OnGpu) and each.flags.c_contiguous for each in (*arrays, picks, taken))
            assert (picks.dtype, taken.dtype) == (np.int64, bool)
            assert all(isinstance(each, np.uint32) for each in (candidates, most, class_aware))
            real = {np.float32: ctypes.c_float, np.float64: ctypes.c_double}[type(threshold)]
            assert all(each.dtype == threshold.dtype for each in arrays[:4])
            library.launch(
                *[ctypes.c_void_p(each.data.ptr) for each in arrays],
                real(threshold),
                *[ctypes.c_uint(int(each)) for each in (candidates, most, class_aware)],
                ctypes.c_void_p(picks.data.ptr),
                ctypes.c_void_p(taken.data.ptr),
                ctypes.c_uint(grid[0]),
                ctypes.c_uint(3),
            )

        return run

    def _planar(self, code: str, name: str, options: tuple[str, ...]) -> Any:
        assert options == ("-std=c++17",)
        launch = """
        extern "C" void launch(const Word* x, Pack* y, const float* scale, const float* shift, unsigned int groups,
                               unsigned int images, unsigned int wide, unsigned int high, unsigned int threads) {
            gridDim = {wide, high};
            blockDim = {threads, 1};
            for (blockIdx.y = 0; blockIdx.y < high; ++blockIdx.y)
                for (blockIdx.x = 0; blockIdx.x < wide; ++blockIdx.x)
                    for (threadIdx.x = 0; threadIdx.x < threads; ++threadIdx.x)
                        tensorgate_planar(x, y, scale, shift, groups, images);
        }"""
        library = compiled(CUDA + code.replace(affine_cuda._HALF, ROUNDED) + launch, self._folder)

        def run(grid: tuple[int, ...], block: tuple[int, ...], arguments: tuple[Any, ...]) -> None:
            self.launched.append(name)
            *arrays, groups, images = arguments
            assert all(isinstance(each, OnGpu) and each.flags.c_contiguous for each in arrays)
            assert isinstance(groups, np.uint32)
            assert isinstance(images, np.uint32)
            pointers = [ctypes.c_void_p(each.data.ptr) for each in arrays]
            library.launch(*pointers, int(groups), int(images), *grid, *block)

        return run

    def ElementwiseKernel(self, inputs: str, outputs: str, body: str, name: str) -> Any:  # noqa: N802
        (out,) = [each.split() for each in outputs.split(", ")]
        declared = [each.removeprefix("raw ").split() for each in inputs.split(", ")]
        raw = [each.startswith("raw ") for each in inputs.split(", ")]

        def run(*arguments: Any) -> Any:
            self.launched.append(name)
            *given, result = arguments
            assert isinstance(result, OnGpu)
            types: dict[Any, Any] = {}
            parameters, prepare, values, kept = [], [], [], []
            for (kind, own), is_raw, value in zip([*declared, out], [*raw, False], [*given, result], strict=True):
                if kind in ("int64", "uint32"):
                    parameters.append(f"{'long long' if kind == 'int64' else 'unsigned int'} {own}")
                    values.append((ctypes.c_longlong if kind == "int64" else ctypes.c_uint)(value))
                    continue
                assert isinstance(value, OnGpu), own
                if kind == "int32":
                    assert value.dtype == np.int32
                c_type = types.setdefault(kind, TYPES[value.dtype.str[1:]])
                assert c_type == TYPES[value.dtype.str[1:]], f"{own} is no {kind}"
                if own != out[1] and not is_raw:
                    value = np.ascontiguousarray(np.broadcast_to(value, result.shape))
                assert value.flags.c_contiguous
                kept.append(value)
                constant = "" if own == out[1] else "const "
                parameters.append(f"{constant}{kind}* {own if is_raw else own + '_'}")
                if not is_raw:
                    prepare.append(f"{constant}{kind}& {own} = {own}_[i];")
                values.append(ctypes.c_void_p(value.ctypes.data))
            defined = "\n".join(f"typedef {c_type} {kind};" for kind, c_type in types.items())
            library = compiled(
                f"""{CUDA}{ROUNDED}{HALF}
                {defined}
                extern "C" void run({", ".join(parameters)}, std::ptrdiff_t size) {{
                    for (std::ptrdiff_t i = 0; i < size; ++i) {{ {" ".join(prepare)} {body}; }}
                }}""",
                self._folder,
            )
            library.run(*values, ctypes.c_longlong(result.size))
            return result

        return run

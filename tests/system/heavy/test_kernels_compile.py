"""Every kernel of the sources becomes a program for each generation of GPUs, without a warning and without a register
that has to live in memory. No GPU and no driver is needed for that.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import product

import numpy as np
import pytest
from nvrtc import OF_CUPY, compiled
from serving import ROOT

from benchmarks import digits_cuda
from tensorgate.backends.ops import affine_cuda, resampling

pytestmark = pytest.mark.heavy
ARCHITECTURES = ("sm_80", "sm_90", "sm_100", "sm_120")
"""A100; H100 and H200; B200; what workstations have of the same generation."""
MAX_REGISTERS = 64
"""With these, 256 threads a block keep a multiprocessor half full, enough for kernels that wait for memory."""
TYPES = {
    "BOOL": "bool",
    "UINT8": "unsigned char",
    "INT8": "signed char",
    "INT16": "short",
    "INT32": "int",
    "INT64": "long long",
    "FP16": "__half",
    "FP32": "float",
    "FP64": "double",
}
MAKERS = re.compile(r"\.(?:RawKernel|ElementwiseKernel|RawModule|ReductionKernel)\(")


def elementwise(types: dict[str, str], inputs: str, output: str, body: str) -> str:
    """What CuPy makes of an ElementwiseKernel whose arrays lie in C order: one element per thread and turn."""
    kinds = "\n".join(f"typedef {TYPES[datatype]} {name};" for name, datatype in types.items())
    given, loads = [], []
    for each in inputs.split(", "):
        kind, name = each.removeprefix("raw ").split()
        kind = {"int32": "int", "int64": "long long"}.get(kind, kind)
        if each.startswith("raw "):
            given.append(f"const {kind}* {name}")
        elif kind == "long long":
            given.append(f"const {kind} {name}")
        else:
            given.append(f"const {kind}* {name}_")
            loads.append(f"const {kind}& {name} = {name}_[i];")
    kind, name = output.split()
    return f"""#include <cuda_fp16.h>
    {kinds}
    extern "C" __global__ void kernel({", ".join(given)}, {kind}* {name}_, const long long size) {{
        const long long step = (long long)blockDim.x * gridDim.x;
        for (long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x; i < size; i += step) {{
            {" ".join(loads)} {kind}& {name} = {name}_[i];
            {body};
        }}
    }}"""


def variants() -> Iterator[tuple[str, str]]:
    """Module and variant, text."""
    for dtype, channels in product((np.float32, np.float16), range(1, 5)):
        text = affine_cuda.source(np.dtype(dtype), channels)
        yield f"affine_cuda planar {np.dtype(dtype).name} of {channels}", text
    for source, target in product(TYPES, ("FP16", "FP32", "FP64")):
        wide = source in ("FP64", "INT64", "INT32") or target == "FP64"
        types = {"X": source, "F": "FP64" if wide else "FP32", "Y": target}
        text = elementwise(types, "X x, F scale, F shift", "Y y", affine_cuda.GENERIC)
        yield f"affine_cuda {source} to {target}", text
    takes = "raw T x, raw int32 first, raw int32 counts, raw A weights, int64 old, int64 fresh, int64 inner, int64 most"
    for datatype, sums in (("UINT8", "INT32"), ("FP16", "FP32"), ("FP32", "FP32"), ("FP64", "FP64")):
        text = elementwise({"T": datatype, "A": sums}, takes, "T y", resampling.body(datatype == "UINT8"))
        yield f"resampling {datatype}", text
    yield "digits_cuda", digits_cuda.SOURCE


VARIANTS = dict(variants())


def test_no_kernel_is_left_out() -> None:
    """Whoever writes a kernel adds its variants here."""
    folders = (ROOT / "backends", ROOT / "benchmarks")
    found = {file.stem for folder in folders for file in folder.rglob("*.py") if MAKERS.search(file.read_text())}
    assert found == {name.split()[0] for name in VARIANTS}


@pytest.mark.parametrize("name", VARIANTS)
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_kernel_compiles_cleanly(architecture: str, name: str) -> None:
    needs, complaints = compiled(VARIANTS[name], architecture)
    assert complaints == ""
    assert needs.spilled == 0
    assert needs.registers <= MAX_REGISTERS
    assert needs.kernels >= 1


def test_what_is_wrong_is_told() -> None:
    """A compiler that says nothing would pass everything."""
    spilling = """extern "C" __global__ void __launch_bounds__(1024, 2) kernel(const float* x, float* y) {
        float kept[96];
        #pragma unroll
        for (int i = 0; i < 96; ++i) kept[i] = x[i * 4096 + threadIdx.x];
        __syncthreads();
        #pragma unroll
        for (int i = 0; i < 96; ++i) y[i * 4096 + threadIdx.x] = kept[(i * 31) % 96] * kept[95 - i];
    }"""
    assert compiled(spilling, "sm_90")[0].spilled > 0
    unused = 'extern "C" __global__ void kernel(int* y) { int never; *y = 1; }'
    assert "never" in compiled(unused, "sm_90")[1]
    with pytest.raises(AssertionError, match="error"):
        compiled('extern "C" __global__ void kernel(int* y) { *y = nothing; }', "sm_90", OF_CUPY)

"""Every kernel of the sources becomes a program for each generation of GPUs, without a warning and without a register
that has to live in memory. No GPU and no driver is needed for that.

The texts are those that operators hand to CuPy: they run here with a module that keeps the text and computes nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cuda_stand_in import OnGpu, StandIn
from nvrtc import compiled
from serving import ROOT

from benchmarks import digits_cuda
from tensorgate.backends.ops import resampling
from tensorgate.backends.ops.affine import Affine, Pass
from tensorgate.backends.ops.nms import KIND as NMS
from tensorgate.gateway.contract.tensor import DTYPES

pytestmark = pytest.mark.heavy
ARCHITECTURES = ("sm_80", "sm_90", "sm_100", "sm_120")
"""A100; H100 and H200; B200; what workstations have of the same generation."""
MAX_REGISTERS = 64
"""With these, 256 threads a block keep a multiprocessor half full, enough for kernels that wait for memory."""
OF_CUPY = ("-ftz=true",)
"""What CuPy adds for every kernel."""
MAKERS = re.compile(r"\.(?:RawKernel|ElementwiseKernel|RawModule|ReductionKernel)\(")
C_TYPES = {
    "b1": "bool", "u1": "unsigned char", "i1": "signed char", "u2": "unsigned short", "i2": "short",
    "u4": "unsigned int", "i4": "int", "u8": "unsigned long long", "i8": "long long", "f2": "__half", "f4": "float",
    "f8": "double",
}  # fmt: skip
NUMPY_NAMES = {"int32": "int", "uint32": "unsigned int", "int64": "long long", "uint64": "unsigned long long"}
BEYOND = 1 << 33
"""More elements than 32 bits count."""

Kernel = tuple[str, str, tuple[str, ...]]
"""What tells it apart, its text, the compiler's options."""


class Recorder(StandIn):
    """CuPy as far as kernels are made and launched: the text is kept, and nothing is computed."""

    def __init__(self) -> None:
        super().__init__(Path())
        self.kernels: list[Kernel] = []

    def RawKernel(self, code: str, name: str, options: tuple[str, ...]) -> Any:  # noqa: N802 - CuPy's name
        return lambda grid, block, arguments: self.kernels.append(("", code, options))

    def ElementwiseKernel(self, inputs: str, outputs: str, body: str, name: str) -> Any:  # noqa: N802 - CuPy's name
        def launch(*arguments: Any) -> Any:
            types = _types([*inputs.split(", "), outputs], arguments)
            variant = " ".join(f"{kind}={c_type}" for kind, c_type in types.items())
            self.kernels.append((variant, elementwise(types, inputs, outputs, body), ("-std=c++17",)))
            return arguments[-1]

        return launch

    def ascontiguousarray(self, array: Any) -> Any:
        """As it is: one that only says how large it is has no memory to copy."""
        return array

    def empty(self, shape: tuple[int, ...], dtype: Any) -> Any:
        return sized(shape, dtype)


def sized(shape: tuple[int, ...], dtype: Any) -> Any:
    """An array of any size in one element's memory."""
    return np.broadcast_to(np.zeros((), dtype), shape).view(OnGpu)


def _types(declared: list[str], arguments: tuple[Any, ...]) -> dict[str, str]:
    """The C type of each that the kernel leaves open, by what it was launched with."""
    kinds = [each.removeprefix("raw ").split()[0] for each in declared]
    given = zip(kinds, arguments, strict=True)
    return {kind: C_TYPES[value.dtype.str[1:]] for kind, value in given if len(kind) == 1}


def elementwise(types: dict[str, str], inputs: str, output: str, body: str) -> str:
    """What CuPy makes of an ElementwiseKernel whose arrays lie in C order: one element per thread and turn."""
    kinds = "\n".join(f"typedef {c_type} {name};" for name, c_type in types.items())
    given, loads = [], []
    for each in inputs.split(", "):
        kind, name = each.removeprefix("raw ").split()
        is_number, kind = len(kind) > 1, NUMPY_NAMES.get(kind, kind)
        if each.startswith("raw "):
            given.append(f"const {kind}* {name}")
        elif is_number:
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


# ----------------------------------------------------------------------------------------- every way to launch a kernel


def launch_affine(xp: Recorder) -> None:
    """The usual case for each number of channels, and one element per thread for each pair of datatypes."""
    one = np.ones(1)
    for target, channels in product((np.float32, np.float16), range(1, 5)):
        wide = np.zeros((1, 8, 8, channels), np.uint8).view(OnGpu)
        Pass("x", Affine(np.dtype(target), (0, 3, 1, 2), np.dtype(np.float32), one, one, 1))(wide, xp)
    for given, wanted in product(C_TYPES, ("f2", "f4", "f8")):
        exact = wanted == "f8" or given in ("u4", "i4", "u8", "i8", "f8")
        compute = np.dtype(np.float64 if exact else np.float32)
        Pass("x", Affine(np.dtype(wanted), None, compute, one, one, 0))(sized((4, 3), given), xp)


def launch_resampling(xp: Recorder) -> None:
    """Few elements, and more than 32 bits count."""
    for dtype, inner in product((np.uint8, np.float16, np.float32, np.float64), (16, BEYOND // 8)):
        made = resampling.host_tables(8, 4, "bilinear", True, np.dtype(dtype))
        tables = tuple(each.view(OnGpu) for each in made)
        resampling.on_gpu(sized((1, 8, inner), dtype), 4, tables, xp)


def launch_nms(xp: Recorder) -> None:
    op = NMS.make(NMS.options(op="nms", boxes="b", scores="s"))  # type: ignore[call-arg]
    for datatype in ("FP32", "FP64"):
        boxes, scores = (np.zeros(shape, DTYPES[datatype]).view(OnGpu) for shape in ((1, 4, 4), (1, 4)))
        op({"b": boxes, "s": scores}, xp)


LAUNCHES: dict[str, Callable[[Recorder], None]] = {
    "affine_cuda": launch_affine,
    "nms_cuda": launch_nms,
    "resampling": launch_resampling,
}
"""Module -> what has it launch every kernel that it can make."""


def kernels() -> Iterator[tuple[str, Kernel]]:
    """Module, kernel: each text once."""
    for module, launch in LAUNCHES.items():
        recorder = Recorder()
        launch(recorder)
        yield from ((module, kernel) for kernel in dict.fromkeys(recorder.kernels))
    yield "digits_cuda", ("", digits_cuda.SOURCE, ("-std=c++17",))


KERNELS = list(kernels())


def test_no_kernel_is_left_out() -> None:
    """Whoever writes a kernel has it launched here."""
    folders = (ROOT / "backends", ROOT / "benchmarks")
    found = {file.stem for folder in folders for file in folder.rglob("*.py") if MAKERS.search(file.read_text())}
    assert found == {module for module, _ in KERNELS}


@pytest.mark.parametrize("number", range(len(KERNELS)), ids=lambda number: f"{number} {KERNELS[number][0]}")
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_kernel_compiles_cleanly(architecture: str, number: int) -> None:
    module, (variant, text, options) = KERNELS[number]
    needs, complaints = compiled(text, architecture, (*OF_CUPY, *options))
    assert (complaints, needs.spilled) == ("", 0), f"{module} {variant}"
    assert needs.registers <= MAX_REGISTERS, f"{module} {variant}"
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
        compiled('extern "C" __global__ void kernel(int* y) { *y = nothing; }', "sm_90")

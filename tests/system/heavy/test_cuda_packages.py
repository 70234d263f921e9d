"""CUDA's packages as the extras bring them, in .venv-cuda12 and .venv-cuda13, on a machine with or without a GPU.

Without one, ONNX Runtime's real provider has to get as far as the driver, with nothing set in the environment: every
other library is there. CUDA 13's build names libcuda.so.1 as what it misses; CUDA 12's opens that when it is used.
"""

from __future__ import annotations

import ctypes
import re
import subprocess
from pathlib import Path

import onnx
import pytest
from client_scripts import environment
from onnx import TensorProto, helper
from serving import ROOT

pytestmark = pytest.mark.heavy

WITHIN_S = 300.0  # gigabytes are read for the first time
MISSING = re.compile(r"(lib[\w.-]+\.so[\w.]*): cannot open shared object file")
SESSION = """
import sys, onnxruntime
if sys.argv[2]:
    from tensorgate.backends.onnx.providers import gpu_problem
    print(gpu_problem())
try:
    session = onnxruntime.InferenceSession(sys.argv[1], providers=["CUDAExecutionProvider"], enable_fallback=0)
    print(session.get_providers())
except Exception as error:
    print(error)
"""
LOAD = """
import logging, pathlib, sys
logging.basicConfig(format="%(message)s")
from tensorgate.gateway.contract.backend import ModelSource
from tensorgate.backends.onnx.backend import KIND
for device in ("auto", "auto", "cuda:0"):
    try:
        source = ModelSource("m", 1, pathlib.Path(sys.argv[1]).parent, device, (), (), 0, KIND.options())
        print(device, KIND.load(source).device.name)
    except ValueError as error:
        print(error)
"""

COMPILE = """
import numpy, re
from cupy_backends.cuda.libs import nvrtc
from tensorgate.backends.ops import affine_cuda, nms_cuda, resampling

texts = [nms_cuda.source(numpy.dtype(dtype)) for dtype in ("f4", "f8")]
texts += [affine_cuda.source(numpy.dtype(dtype), n) for dtype in ("f2", "f4") for n in (1, 2, 3, 4)]
for whole, x, a in ((True, "unsigned char", "int"), (False, "float", "float"), (False, "double", "double")):
    for index in (resampling.WIDE, resampling.NARROW):
        names = ", ".join(f"{index[1]} {name}" for name in ("old", "fresh", "inner", "most"))
        texts.append(
            f"typedef {x} T; typedef {a} A; extern \\"C\\" __global__ void resample(const T* x, const int* first, "
            f"const int* counts, const A* weights, {names}, T* out, long long size) {{"
            "long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x; if (i < size) { T& y = out[i];"
            + resampling.body(whole, index) + "} }"
        )
divisions = []
for arch in (80, 90, 100, 120):
    for text in texts:
        program = nvrtc.createProgram(text, "kernel.cu", [], [])
        options = [*nms_cuda.OPTIONS, f"-arch=compute_{arch}"]
        try:
            nvrtc.compileProgram(program, options)
        except Exception:
            print(nvrtc.getProgramLog(program))
            raise
        assert not nvrtc.getProgramLog(program).strip(), nvrtc.getProgramLog(program)
        ptx = nvrtc.getPTX(program)
        ptx = ptx.decode() if isinstance(ptx, bytes) else ptx
        assert ptx.count(".entry") == 1
        if "resample" in text:
            divisions.append(len(re.findall(r"(div|rem)[.][su]64", ptx)))
print("compiled", len(texts), "kernels;", "64-bit divisions, wide and narrow:", divisions[:2])
"""


def has_driver() -> bool:
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    return True


@pytest.fixture(params=["12", "13"])
def python(request: pytest.FixtureRequest) -> Path:
    found = ROOT / f".venv-cuda{request.param}/bin/python"
    if not found.exists():
        pytest.fail("CUDA's packages are not installed: say `make test-system`", pytrace=False)
    return found


@pytest.fixture
def model(tmp_path: Path) -> Path:
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n"]) for name in "xy")
    graph = helper.make_graph([helper.make_node("Neg", ["x"], ["y"])], "g", [x], [y])
    path = tmp_path / "model.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8), path)
    return path


def says(python: Path, code: str, *words: str | Path, **variables: str) -> str:
    """Both outputs of a script; what the loader is told by the environment is left out."""
    clean = {name: value for name, value in environment().items() if name != "LD_LIBRARY_PATH"}
    done = subprocess.run(
        [python, "-c", code, *words],
        cwd="/",
        env=clean | variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=WITHIN_S,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def missing(told: str) -> set[str]:
    return set(MISSING.findall(told))


def test_nothing_but_the_driver_is_missing(python: Path, model: Path) -> None:
    told = says(python, SESSION, model, "opened")
    if has_driver():
        assert "['CUDAExecutionProvider'" in told, told
        assert not missing(told), told
    else:
        assert missing(told) == {"libcuda.so.1"}, told
        assert "pip install" not in told, told
        assert "CUDA driver version is insufficient" in told or "Failed to load library" in told, told


def test_it_is_the_libraries_being_opened_that_helps(python: Path, model: Path) -> None:
    told = says(python, SESSION, model, "")
    assert missing(told) & {"libcublasLt.so.12", "libcublasLt.so.13"}, told


def test_onnx_runtime_may_lie_elsewhere(python: Path, model: Path, tmp_path: Path) -> None:
    (place,) = (python.parent.parent / "lib").glob("python3*/site-packages/onnxruntime")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere/onnxruntime").symlink_to(place)
    told = says(python, SESSION, model, "opened", PYTHONPATH=str(tmp_path / "elsewhere"))
    assert missing(told) <= {"libcuda.so.1"}, told


def test_a_model_is_loaded_where_it_can_be(python: Path, model: Path) -> None:
    lines = says(python, LOAD, model).splitlines()
    if has_driver():
        assert lines == ["auto cuda:0", "auto cuda:0", "cuda:0 cuda:0"]
        return
    why = "the NVIDIA driver is missing: libcuda.so.1: cannot open shared object file: No such file or directory"
    assert [line for line in lines if line] == [
        f"models with device auto run on the CPU: {why}",
        "auto cpu",
        "auto cpu",
        f"device cuda:0 was asked for, but {why}; say device: auto to use what is there",
    ]


def test_the_command_tells_what_is_there(python: Path) -> None:
    told = says(python, "from tensorgate.gateway.cli.main import main; main(['check', '--device'])")
    wheels = {line.split()[1] for line in told.splitlines() if line.startswith("package: ")}
    assert {"onnxruntime-gpu"} < wheels
    assert len([each for each in wheels if each.startswith("nvidia-")]) >= 7, told
    assert "backend onnx: " in told


def test_kernels_compile(python: Path) -> None:
    """By the compiler that comes with the packages, for every generation, without a warning; it needs no GPU."""
    told = says(python, COMPILE)
    assert told.splitlines()[-1] == "compiled 16 kernels; 64-bit divisions, wide and narrow: [2, 0]", told

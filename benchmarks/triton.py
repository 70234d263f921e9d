"""A real Triton as a contender: the one that `make test-system` unpacks, with an identity of its own kind.

Its package has no backend but Python's. Where there is a C compiler, `triton_identity.c` becomes a backend that copies
bytes in the server's own process: Triton at its best. The Python backend is the other one: a process per instance.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sysconfig
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.servers import HOST, ROOT, Failed, Server, running

TOOLS = ROOT / ".tools-heavy"
SOURCE = Path(__file__).parent / "triton_identity.c"
STOPS_AFTER_S = 5
IDENTITY = """
name: "identity"
backend: "{backend}"
max_batch_size: 32
input [{{name: "x", data_type: TYPE_FP32, dims: [-1]}}]
output [{{name: "y", data_type: TYPE_FP32, dims: [-1]}}]
instance_group [{{kind: KIND_CPU, count: {instances}}}]
"""
PYTHON = """
import triton_python_backend_utils as utils


class TritonPythonModel:
    def execute(self, requests):
        tensors = [utils.get_input_tensor_by_name(request, "x") for request in requests]
        return [utils.InferenceResponse([utils.Tensor("y", tensor.as_numpy())]) for tensor in tensors]
"""


@dataclass(frozen=True, slots=True)
class Ports:
    http: int
    grpc: int
    metrics: int


def find_triton() -> Path:
    """Its folder; raises Failed where it is not unpacked."""
    folder = TOOLS / "pytriton/tritonserver"
    if not (folder / "bin/tritonserver").exists():
        raise Failed(f"there is no Triton in {TOOLS}: `make .tools-heavy/.installed` unpacks one")
    return folder


def lay_identity(folder: Path, instances: int) -> Sequence[Path]:
    """A model repository with `identity`, and a folder of backends with the one that it wants, in `folder`.

    Copies the Python backend only where there is no C compiler. -> the repository, the backends
    """
    compiler = shutil.which("cc")
    backend = "python" if compiler is None else "identity"
    version = folder / "repository/identity/1"
    version.mkdir(parents=True)
    (version.parent / "config.pbtxt").write_text(IDENTITY.format(backend=backend, instances=instances))
    if compiler is None:
        (version / "model.py").write_text(PYTHON)
        return folder / "repository", find_triton() / "backends"
    library = folder / "backends/identity/libtriton_identity.so"
    library.parent.mkdir(parents=True)
    command = [compiler, "-O2", "-shared", "-fPIC", str(SOURCE), "-o", str(library)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - our own command
    if done.returncode != 0:
        raise Failed(f"{SOURCE.name} could not be built: {done.stderr}")
    return folder / "repository", folder / "backends"


@contextmanager
def triton(name: str, repository: Path, backends: Path, ports: Ports, cores: set[int]) -> Iterator[Server]:
    """One that serves the repository, on these cores, at its HTTP port."""
    options = {"model-repository": repository, "backend-directory": backends, "exit-timeout-secs": STOPS_AFTER_S}
    for door in ("http", "grpc", "metrics"):
        options |= {f"{door}-address": HOST, f"{door}-port": getattr(ports, door)}
    command = [str(find_triton() / "bin/tritonserver"), *(f"--{name}={value}" for name, value in options.items())]
    libraries = os.pathsep.join((str(TOOLS / "nvidia_pytriton.libs"), sysconfig.get_config_var("LIBDIR")))
    numpy = TOOLS / "numpy"  # the Python backend finds its NumPy in its working directory
    environment = {**os.environ, "LD_LIBRARY_PATH": libraries, "PYTHONPATH": str(numpy)}
    with running(name, command, ports.http, cores, cwd=numpy, environment=environment) as server:
        yield server

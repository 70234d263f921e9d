"""A real Triton as a contender: the one that `make test-system` unpacks, with an identity of its own kind.

Its package has no backend but Python's. Where there is a C compiler, `triton_identity.c` becomes a backend that copies
bytes in the server's own process: Triton at its best. The Python backend is the other one: a process per instance.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.servers import HOST, ROOT, Failed, Server, running

NAME = "triton"
TOOLS = ROOT / ".tools-heavy"
SOURCE = Path(__file__).parent / "triton_identity.c"
STOPS_AFTER_S = 5
CONFIGURATION = """
name: "{name}"
backend: "{backend}"
max_batch_size: 32
input [{{name: "x", data_type: TYPE_FP32, dims: [-1]}}]
output [{{name: "y", data_type: TYPE_FP32, dims: [-1]}}]
instance_group [{{kind: KIND_CPU, count: {instances}}}]
"""
PYTHON = """
import triton_python_backend_utils as utils
import time


class TritonPythonModel:
    work_s = {work_s}

    def execute(self, requests):
        ends = time.thread_time() + self.work_s * len(requests)
        while time.thread_time() < ends:
            sum(range(100))
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


@dataclass(frozen=True, slots=True)
class Repository:
    """Folders: of models, and of the backends that they want."""

    models: Path
    backends: Path

    @classmethod
    def at(cls, folder: Path) -> Repository:
        """Empty, but for Triton's Python backend."""
        repository = cls(folder / "models", folder / "backends")
        repository.models.mkdir()
        repository.backends.mkdir()
        (repository.backends / "python").symlink_to(find_triton() / "backends/python")
        return repository

    def add_identity(self, instances: int) -> None:
        """`identity`, in C, or in Python where there is no compiler."""
        compiler = shutil.which("cc")
        if compiler is None:
            self.add_python("identity", instances)
            return
        self._add("identity", "identity", instances)
        library = self.backends / "identity/libtriton_identity.so"
        library.parent.mkdir()
        command = [compiler, "-O2", "-shared", "-fPIC", str(SOURCE), "-o", str(library)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - our own command
        if done.returncode != 0:
            raise Failed(f"{SOURCE.name} could not be built: {done.stderr}")

    def add_python(self, name: str, instances: int = 1, work_s: float = 0.0) -> None:
        """A model that answers y = x after so many seconds of pure Python."""
        folder = self._add(name, "python", instances)
        (folder / "model.py").write_text(PYTHON.format(work_s=work_s))

    def _add(self, name: str, backend: str, instances: int) -> Path:
        folder = self.models / name / "1"
        folder.mkdir(parents=True)
        text = CONFIGURATION.format(name=name, backend=backend, instances=instances)
        (folder.parent / "config.pbtxt").write_text(text)
        return folder


@contextmanager
def triton(repository: Repository, ports: Ports, cores: set[int]) -> Iterator[Server]:
    """One that serves the repository, on these cores, at its HTTP port."""
    options: dict[str, object] = {"model-repository": repository.models, "backend-directory": repository.backends}
    options["exit-timeout-secs"] = STOPS_AFTER_S
    for door in ("http", "grpc", "metrics"):
        options |= {f"{door}-address": HOST, f"{door}-port": getattr(ports, door)}
    command = [str(find_triton() / "bin/tritonserver"), *(f"--{name}={value}" for name, value in options.items())]
    libraries = os.pathsep.join((str(TOOLS / "nvidia_pytriton.libs"), sysconfig.get_config_var("LIBDIR")))
    numpy = TOOLS / "numpy"  # the Python backend finds its NumPy in its working directory
    environment = {**os.environ, "LD_LIBRARY_PATH": libraries, "PYTHONPATH": str(numpy)}
    with running(NAME, command, ports.http, cores, cwd=numpy, environment=environment) as server:
        yield server

"""Puts the genuine servers' programs into a folder, out of the wheels that carry them:

    python unpack.py FOLDER

perf_analyzer comes with tritonclient 2.50.0 (later ones need a newer glibc), its libb64 and libcudart and a whole
Triton 2.51 with its python backend with nvidia-pytriton 0.7.0. That server's python backend wants NumPy 1, found from
its working directory. Linux on x86-64 with glibc 2.35 or newer.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

WHEELS = ("tritonclient==2.50.0", "nvidia-pytriton==0.7.0")
NUMPY = "numpy==1.26.4"


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    with tempfile.TemporaryDirectory() as wheels:
        for wheel in WHEELS:
            subprocess.run([*pip, "download", "--no-deps", "--dest", wheels, wheel], check=True)
        for path in Path(wheels).glob("*.whl"):
            with zipfile.ZipFile(path) as archive:
                archive.extractall(folder, [name for name in archive.namelist() if wanted(name)])
    subprocess.run([*pip, "install", "--no-warn-conflicts", "--target", folder / "numpy", NUMPY], check=True)
    arrange(folder)


def wanted(name: str) -> bool:
    return name.endswith("bin/perf_analyzer") or name.startswith(("nvidia_pytriton.libs/", "pytriton/tritonserver/"))


def arrange(folder: Path) -> None:
    """Everything where its user looks for it, and executable."""
    (perf_analyzer,) = folder.rglob("perf_analyzer")
    perf_analyzer.rename(folder / "perf_analyzer")
    libraries = folder / "nvidia_pytriton.libs"
    for name, pattern in (("libb64.so.0d", "libb64-*.so.0d"), ("libcudart.so.12", "libcudart-*.so.12*")):
        (found,) = libraries.glob(pattern)
        (libraries / name).unlink(missing_ok=True)
        (libraries / name).symlink_to(found.name)
    server = folder / "pytriton/tritonserver"
    stub = server / f"python_backend_stubs/{sys.version_info.major}.{sys.version_info.minor}/triton_python_backend_stub"
    stub.rename(server / "backends/python/triton_python_backend_stub")
    for program in (folder / "perf_analyzer", server / "bin/tritonserver", server / f"backends/python/{stub.name}"):
        program.chmod(0o755)


if __name__ == "__main__":
    main(Path(sys.argv[1]).absolute())

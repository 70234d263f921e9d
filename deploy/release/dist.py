"""What a release consists of: an sdist, a wheel for every Python from 3.11 on, what it brings with it, and checksums.

    python deploy/release/dist.py dist

They are made of what is committed. The wheel is made from the sdist, and says which Linux it runs on at least
(manylinux, by auditwheel). The bill of materials (CycloneDX) is of an environment into which that wheel was installed
with what deploy/locks/cpu.txt locks. Needs deploy/release/requirements.txt, and a C++ compiler.
"""
# ruff: noqa: T201 - a command speaks by print

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LOCK = ROOT / "deploy/locks/cpu.txt"
HELPERS = {path.stem for path in (ROOT / "adapters/_native").glob("*.cpp")}
QUIET = ("--quiet", "--disable-pip-version-check")


def run(*words: str | Path) -> None:
    """Raises SystemExit with what the command said, unless it succeeds."""
    tools = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    done = subprocess.run(words, cwd=ROOT, env=os.environ | tools, capture_output=True, text=True)  # noqa: S603
    if done.returncode:
        raise SystemExit(f"{' '.join(map(str, words))}\n{done.stdout}{done.stderr}")


def make_wheel(scratch: Path, target: Path) -> Path:
    """Writes sdist and wheel; returns the wheel."""
    sources = scratch / "sources"
    sources.mkdir()
    run("git", "archive", "--output", scratch / "sources.tar", "HEAD")
    shutil.unpack_archive(scratch / "sources.tar", sources, filter="data")
    run(sys.executable, "-m", "build", "--outdir", scratch, sources)
    (sdist,), (plain,) = scratch.glob("*.tar.gz"), scratch.glob("*.whl")
    with zipfile.ZipFile(plain) as archive:
        compiled = {Path(name).name.split(".")[0] for name in archive.namelist() if name.endswith(".so")}
    if missing := HELPERS - compiled:
        raise SystemExit(f"these helpers were not compiled: {', '.join(sorted(missing))}; is there a C++ compiler?")
    shutil.copy(sdist, target)
    run(sys.executable, "-m", "auditwheel", "repair", "--wheel-dir", target, plain)
    (wheel,) = target.glob("*.whl")
    return wheel


def write_materials(wheel: Path, scratch: Path, target: Path) -> None:
    python = scratch / "environment/bin/python"
    run(sys.executable, "-m", "venv", python.parents[1])
    run(python, "-m", "pip", "install", *QUIET, "--require-hashes", "-r", LOCK)
    run(python, "-m", "pip", "install", *QUIET, "--no-deps", wheel)
    run(python, "-m", "pip", "uninstall", *QUIET, "--yes", "pip", "setuptools")
    name = target / f"{wheel.name.split('-cp')[0]}-cpu.cdx.json"
    materials = ("environment", "--pyproject", ROOT / "pyproject.toml", "--output-reproducible", "-o", name, python)
    run(sys.executable, "-m", "cyclonedx_py", *materials)


def main() -> None:
    parser = argparse.ArgumentParser(description="Make the files of a release.")
    parser.add_argument("target", type=Path, help="the folder to write, replaced as a whole")
    target = parser.parse_args().target.absolute()
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    with tempfile.TemporaryDirectory() as scratch:
        print("making sdist and wheel")
        wheel = make_wheel(Path(scratch), target)
        print("installing the wheel, and writing down what is there")
        write_materials(wheel, Path(scratch), target)
    files = sorted(target.iterdir())
    sums = [f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.name}\n" for file in files]
    (target / "SHA256SUMS").write_text("".join(sums))
    for file in sorted(target.iterdir()):
        print(f"{file.stat().st_size:>10,}  {file.name}")


if __name__ == "__main__":
    main()

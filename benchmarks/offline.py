"""The GPU's suite and benchmark on a machine that has a GPU and no network.

    python -m benchmarks.offline pack                 here: all that the machine lacks into build/gpu
    python -m benchmarks.offline run suite            there: each of these is one call of less than ten minutes
    python -m benchmarks.offline run engine
    python -m benchmarks.offline run served
    python -m benchmarks.offline summary              what they said, once more

The machine has Python 3.12 with NumPy, CuPy and torch for CUDA 13, aiohttp, grpcio, onnx, hypothesis, pytest and
pytest-xdist. What the tests need besides is packed as wheels; ONNX Runtime's build for CUDA is cut to one architecture;
the compiled helpers go along. `run` unpacks them the first time. Each part ends with one line per step, and the exit
status is 0 if every step's was; all that the steps said lies in build/gpu/said, or in the folder of --out.
"""
# ruff: noqa: T201 - a command speaks by print

from __future__ import annotations

import argparse
import io
import json
import lzma
import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import time
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from benchmarks import fatbin

ROOT = Path(__file__).parents[1]
PACKED = ROOT / "build/gpu"
HELPERS = ROOT / "adapters/_native"
MAX_PACKED_MIB = 64
PYTHON = "3.12"
ARCHITECTURE = 90
WHEELS = (
    "annotated-types", "grpcio-health-checking", "grpcio-reflection", "jsonschema", "jsonschema-specifications",
    "orjson", "pybase64", "pysimdjson", "pytest-aiohttp", "pytest-asyncio", "python-rapidjson", "referencing",
    "rpds-py", "typing-inspection", "execnet", "pytest-timeout", "pytest-xdist",
)  # fmt: skip
WITH_THEIR_OWN = ("pydantic",)
"""Those that want another wheel of one very version; the rest is taken without what it asks for."""
CLIENT = ("tritonclient",)
"""Beside cuda-bindings, which torch brings."""
ONNXRUNTIME = "onnxruntime-gpu>=1.27"
LEFT_OUT = ("libonnxruntime.so", "tensorrt", ".dist-info/", "/transformers/", "/quantization/", "/tools/", "/datasets/")
"""Of ONNX Runtime's wheel: what its Python module does not load, and the facts of the installed one that it covers."""


class Step(NamedTuple):
    """A command of a part, and the seconds that it may take."""

    name: str
    command: tuple[str, ...]
    limit_s: int


_PYTEST = (
    *("-m", "pytest", "-W", "default", "-p", "no:cacheprovider", "--continue-on-collection-errors"),
    "tests/backends",
)
"""A module that cannot be imported there, or a warning of an older library, ends nothing else."""
_GPU = ("-m", "benchmarks.gpu", "--sections")
_VERSIONS = """
import cupy, onnxruntime, sys, torch
free, total = cupy.cuda.runtime.memGetInfo()
properties = cupy.cuda.runtime.getDeviceProperties(0)
print("python", sys.version.split()[0], "cupy", cupy.__version__, "torch", torch.__version__)
print("onnxruntime", onnxruntime.__version__, onnxruntime.get_available_providers())
print(properties["name"].decode(), "driver", cupy.cuda.runtime.driverGetVersion(), f"{free >> 20} of {total >> 20} MiB")
"""
PARTS: dict[str, tuple[Step, ...]] = {
    "suite": (
        Step("versions", ("-c", _VERSIONS), 60),
        Step("tests side by side", (*_PYTEST, "-n", "8", "-m", "gpu and not alone"), 300),
        Step("tests alone", (*_PYTEST, "-m", "gpu and alone"), 200),
    ),
    "engine": (
        Step("engine", (*_GPU, "throughput", "graphs", "latency", "memory"), 420),
        Step("pixels", ("-m", "benchmarks.preprocess", "--rounds", "3"), 120),
    ),
    "served": (Step("served", (*_GPU, "ensemble", "images", "decode", "crossover", "served"), 540),),
}


# ----------------------------------------------------------------------------------------------------------------- here


def pack(python: str, architecture: int) -> int:
    """Fill build/gpu anew. -> exit status: 1 if it is too large to travel."""
    shutil.rmtree(PACKED, ignore_errors=True)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        _download(python, folder / "site", WHEELS)
        _download(python, folder / "site", WITH_THEIR_OWN, alone=False)
        _download(python, folder / "client", CLIENT)
        _download(python, folder / "onnxruntime", (ONNXRUNTIME,))
        (PACKED / "helpers").mkdir(parents=True)
        for file in HELPERS.glob("*.abi3.so"):
            shutil.copy(file, PACKED / "helpers")
        for name in ("site", "client"):
            (PACKED / f"{name}.tar.xz").write_bytes(packed(members(sorted((folder / name).glob("*.whl")))))
        wheels = (folder / "onnxruntime").glob("*.whl")
        (PACKED / "onnxruntime.tar.xz").write_bytes(packed(cut(members(wheels), architecture)))
    sizes = {path.name: size_of(path) / 2**20 for path in sorted(PACKED.iterdir())}
    for name, size in sizes.items():
        print(f"{size:6.1f} MiB  {name}")
    total = sum(sizes.values())
    print(f"{total:6.1f} MiB  of {MAX_PACKED_MIB}")
    return int(total > MAX_PACKED_MIB)


def _download(python: str, folder: Path, names: Sequence[str], *, alone: bool = True) -> None:
    """Wheels for that Python on Linux, by pip."""
    platforms = [f"--platform=manylinux_2_{minor}_x86_64" for minor in (17, 24, 27, 28)]
    command = [
        sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--only-binary=:all:",
        f"--python-version={python}", *platforms, "--platform=manylinux2014_x86_64", "--platform=any",
        f"--dest={folder}", *(["--no-deps"] if alone else []), *names,
    ]  # fmt: skip
    subprocess.run(command, check=True)  # noqa: S603 - our own


Member = tuple[str, bytes]
"""A file's name below the folder where it is unpacked, and what is in it."""


def members(wheels: Iterable[Path]) -> Iterator[Member]:
    """All files of wheels."""
    for wheel in wheels:
        with zipfile.ZipFile(wheel) as source:
            yield from ((name, source.read(name)) for name in source.namelist() if not name.endswith("/"))


def cut(given: Iterable[Member], architecture: int) -> Iterator[Member]:
    """ONNX Runtime's files without what is not needed, its kernels those of one architecture."""
    for name, content in given:
        if name.endswith("providers_cuda.so"):
            library = bytearray(content)
            fatbin.keep(library, architecture)
            yield name, bytes(library)
        elif not any(part in name for part in LEFT_OUT):
            yield name, content


def packed(given: Iterable[Member]) -> bytes:
    """As one archive, as small as can be: it takes a minute."""
    made = io.BytesIO()
    filters = [{"id": lzma.FILTER_X86}, {"id": lzma.FILTER_LZMA2, "preset": 9 | lzma.PRESET_EXTREME}]
    with (
        lzma.LZMAFile(made, "w", format=lzma.FORMAT_XZ, filters=filters) as archive,
        tarfile.open(fileobj=archive, mode="w") as target,
    ):
        for name, content in given:
            facts = tarfile.TarInfo(name)
            facts.size, facts.mode = len(content), 0o644
            target.addfile(facts, io.BytesIO(content))
    return made.getvalue()


def size_of(path: Path) -> int:
    """Bytes of a file, or of all files in a folder."""
    return path.stat().st_size if path.is_file() else sum(size_of(each) for each in path.iterdir())


# ---------------------------------------------------------------------------------------------------------------- there


def unpack(site: Path) -> None:
    """Once: wheels beside the installed ones, ONNX Runtime over the one that is there, helpers beside their sources."""
    done = PACKED / "unpacked"
    if done.exists():
        return
    for helper in (PACKED / "helpers").glob("*.so"):
        shutil.copy(helper, HELPERS)
    for old in (site / "onnxruntime/capi").glob("onnxruntime_pybind11_state*.so"):
        old.unlink()
    for name, target in (("site", PACKED / "site"), ("client", PACKED / "client"), ("onnxruntime", site)):
        with tarfile.open(PACKED / f"{name}.tar.xz") as archive:
            archive.extractall(target, filter="data")
    done.touch()


def environment() -> dict[str, str]:
    """Ours, and the wheels that were packed."""
    paths = [str(PACKED / "site"), *filter(None, [os.environ.get("PYTHONPATH")])]
    return os.environ | {"PYTHONPATH": os.pathsep.join(paths), "ORT_DISABLE_TELEMETRY": "1", "PYTHONUNBUFFERED": "1"}


def run(part: str, said: Path) -> int:
    """The steps of a part, one after another, whatever becomes of them. -> exit status"""
    said.mkdir(parents=True, exist_ok=True)
    done: dict[str, dict[str, object]] = {}
    for step in PARTS[part]:
        began = time.perf_counter()
        status = _run(step, said / f"{part}-{step.name.replace(' ', '-')}.txt")
        done[step.name] = {"status": status, "seconds": round(time.perf_counter() - began, 1)}
        (said / f"{part}.json").write_text(json.dumps(done, indent=1) + "\n")
    with suppress(FileNotFoundError):
        shutil.copytree(ROOT / "benchmarks/results", said / "results", dirs_exist_ok=True)
    return summary(said)


def _run(step: Step, log: Path) -> int | str:
    """Its exit status, or what ended it."""
    with log.open("w") as output:
        command = [sys.executable, *step.command]
        try:
            done = subprocess.run(  # noqa: S603 - our own
                command, cwd=ROOT, env=environment(), stdout=output, stderr=output, timeout=step.limit_s, check=False
            )
        except subprocess.TimeoutExpired:
            return f"ended after {step.limit_s} s"
    return done.returncode


def summary(said: Path) -> int:
    """Print what each step came to, and the lines of its log that count. -> 1 if one of them failed"""
    failed = 0
    for part in PARTS:
        file = said / f"{part}.json"
        if not file.exists():
            continue
        for name, facts in json.loads(file.read_text()).items():
            failed += facts["status"] != 0
            word = "ok    " if facts["status"] == 0 else "FAILED"
            print(f"{word} {part}: {name}, {facts['seconds']} s, exit status {facts['status']}")
            log = said / f"{part}-{name.replace(' ', '-')}.txt"
            for line in worth_telling(log.read_text(errors="replace")):
                print(f"       {line}")
    return int(failed > 0)


def worth_telling(log: str) -> Iterator[str]:
    """Of a suite: what was left out, failures, the count. Of a benchmark: its sections' tables and marks, without the
    table of all figures, which says them again.
    """
    lines = log.partition("\nsection  ")[0].splitlines()
    last = log.splitlines()[-3:]
    marks = ("FAILED", "ERROR", "missed:", "GPU tests left out", "missing:")
    tables = [line for line in lines if "  " in line.strip() and not line.startswith((" ", "E ", ">"))]
    told = [line for line in log.splitlines() if line.startswith(marks)][:30]
    yield from (line[:140] for line in (*told, *(tables[:90] if " passed" not in log else ()), *last))


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.offline", description=__doc__)
    parser.add_argument("verb", choices=("pack", "run", "summary"))
    parser.add_argument("part", nargs="?", choices=PARTS)
    parser.add_argument("--python", default=PYTHON, help=f"of the machine; default: {PYTHON}")
    parser.add_argument("--architecture", type=int, default=ARCHITECTURE, help="of its GPU; default: 90, H100")
    parser.add_argument("--out", type=Path, default=PACKED / "said", help="where `run` puts what was said")
    options = parser.parse_args(arguments)
    if (options.verb == "run") is not (options.part is not None):
        parser.error("`run` takes a part: " + ", ".join(PARTS))
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    if options.verb == "pack":
        return pack(options.python, options.architecture)
    if options.verb == "run":
        unpack(Path(sysconfig.get_path("platlib")))
        return run(options.part, options.out)
    return summary(options.out)


if __name__ == "__main__":
    sys.exit(main())

"""The engine and the whole gateway on a GPU, against the very session or module that it runs.

    python -m benchmarks.gpu                  everything that this machine can do, in less than twenty minutes
    python -m benchmarks.gpu --device cpu     the same code on the host, with small models

Models are made here, with random weights. "Raw" is a session (ONNX Runtime) or module (PyTorch) without an engine, with
the same options: one batch, run over and over on one stream, on the device already or copied there and back in pinned
memory. The engine gets its rows from the host, gives every caller its own rows back there, and must come near that all
the same where a batch takes 5 ms or more. Every section tells its own failure, and the others go on. At the end all
figures stand in one table, and in a file below benchmarks/results/, of which `benchmarks.gpu_plot` makes a picture.
Exit status: 0 if everything ran and reached its mark, 1 if a mark was missed, 2 if something failed.
"""
# ruff: noqa: T201 - a command speaks by print

from __future__ import annotations

import argparse
import asyncio
import importlib
import sys
import tempfile
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

try:
    from benchmarks import report as files
    from benchmarks.gpu_engine import ensemble, graphs, latency, memory, throughput
    from benchmarks.gpu_images import crossover, decode, images
    from benchmarks.gpu_served import served
    from benchmarks.gpu_setting import FULL, SMALL, Report, Setting
    from benchmarks.raw import CUDA
    from tensorgate.backends.execution.device import cuda_devices
    from tensorgate.backends.execution.gpu import read_gpu
except ImportError as error:
    raise SystemExit(f"failed: {error}; pip install -e . installs what the gateway itself needs") from None

SWITCH_S = 0.5e-3  # as the server has it
SECTIONS: dict[str, Callable[[Setting], Awaitable[None]]] = {
    "throughput": throughput,
    "graphs": graphs,
    "latency": latency,
    "memory": memory,
    "ensemble": ensemble,
    "images": images,
    "decode": decode,
    "crossover": crossover,
    "served": served,
}


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__)
    add = parser.add_argument
    add("--device", default="auto", help="auto, cpu, cuda or cuda:N; default: auto, which wants a GPU")
    add("--backends", nargs="+", choices=("onnx", "torch"), help="default: those that can use the device")
    add("--sections", nargs="+", choices=SECTIONS, default=[*SECTIONS], help=f"default: {' '.join(SECTIONS)}")
    add("--datatype", choices=("FP32", "FP16"), default="FP32", help="of weights and tensors; default: FP32")
    add("--rounds", type=int, default=3, help="turns of each contender, of which the median counts; default: 3")
    add("--seconds", type=float, default=2.0, help="length of one turn; default: 2")
    return parser.parse_args(arguments)


def usable(device: str) -> tuple[dict[str, str], list[str]]:
    """Backends that can compute there -> what they are; and what is missing, in words."""
    found, missing = {}, []
    if device != "cpu" and not cuda_devices():
        missing.append("a GPU: CuPy is not installed (cupy-cuda13x or cupy-cuda12x), or finds no driver")
    for name, package, look in (("onnx", "onnxruntime", _onnxruntime), ("torch", "torch", _torch)):
        try:
            words, works = look(importlib.import_module(package), device)
        except ImportError:
            words, works = f"{package} is not installed", False
        if works:
            found[name] = words
        else:
            missing.append(f"{name}: {words}")
    if "onnx" in found:
        try:
            importlib.import_module("onnx")
        except ImportError:
            del found["onnx"]
            missing.append("onnx: the package onnx, which writes the models, is not installed")
    return found, missing


def _onnxruntime(module: Any, device: str) -> tuple[str, bool]:
    works = device == "cpu" or CUDA in module.get_available_providers()
    return f"ONNX Runtime {module.__version__}{'' if works else ' is a build without CUDA'}", works


def _torch(module: Any, device: str) -> tuple[str, bool]:
    works = device == "cpu" or module.cuda.is_available()
    return f"torch {module.__version__}{'' if works else ' finds no GPU'}", works


def place_of(wanted: str) -> str:
    """What --device says, as the YAML has it."""
    return "cuda:0" if wanted in ("auto", "cuda") else wanted


async def run(options: argparse.Namespace, folder: Path) -> Report:
    device = place_of(options.device)
    report = Report(judged=device != "cpu")
    found, missing = usable(device)
    for line in (*found.values(), *(f"missing: {each}" for each in missing)):
        print(line)
    wanted = tuple(options.backends or found)
    report.failed += [f"{name} is asked for, and missing" for name in wanted if name not in found]
    if device != "cpu" and not cuda_devices():
        report.failed.append("there is no GPU to be used here; --device cpu runs the same code on the host")
        return report
    report.missing += missing
    networks = FULL if device != "cpu" else SMALL
    backends = tuple(name for name in wanted if name in found)
    setting = Setting(device, backends, networks, options.datatype, options.rounds, options.seconds, folder, report)
    if not backends:
        report.failed.append("nothing here can compute a model on this device")
    for name in options.sections:
        section = SECTIONS[name]
        print(f"\n{name}: {section.__doc__}")
        try:
            await section(setting)
        except Exception as error:
            report.fail(name, error)
    return report


def facts_of(device: str) -> dict[str, Any]:
    """What the file says of the machine."""
    gpu = read_gpu(device)
    return {"machine": files.machine() | {"gpu": gpu.name if gpu else "", "device": device}}


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    sys.setswitchinterval(SWITCH_S)
    with tempfile.TemporaryDirectory() as folder:
        try:
            uvloop = importlib.import_module("uvloop")
        except ImportError:
            report = asyncio.run(run(options, Path(folder)))
        else:
            report = uvloop.run(run(options, Path(folder)))
    if report.figures:
        print(f"\n{report.summary()}")
        facts = facts_of(place_of(options.device)) | report.facts()
        print(f"\nwrote {files.keep('gpu', facts, vars(options))}")
    print()
    for line in report.missed:
        print(f"missed: {line}")
    for line in report.failed:
        print(f"FAILED: {line}")
    if not (report.missed or report.failed):
        print("everything ran" + (", and reached its mark" if report.judged else ""))
    return 2 if report.failed else int(bool(report.missed))


if __name__ == "__main__":
    sys.exit(main())

"""The engine on a GPU, against the very session or module that it runs.

    python -m benchmarks.gpu                  everything that this machine can do
    python -m benchmarks.gpu --device cpu     the same code on the host, with small models

Models are made here, with random weights. "Raw" is a session (ONNX Runtime) or module (PyTorch) without an engine: one
batch that lies on the device already, run over and over on one stream. The engine gets its rows from the host, gives
every caller its own rows back there, and must come near that all the same. Every section tells its own failure, and
the others go on. Exit status: 0 if everything ran and reached its mark, 1 if a mark was missed, 2 if something failed.
"""
# ruff: noqa: T201 - a command speaks by print

from __future__ import annotations

import argparse
import asyncio
import gc
import importlib
import os
import sys
import tempfile
import time
import traceback
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import numpy as np

from benchmarks.table import table

try:
    from benchmarks import pixels
    from benchmarks.engine_room import Plan, Pressed, ask, latencies, loaded, press
    from benchmarks.raw import CUDA, Raw, open_raw
    from tensorgate.backends.execution.device import cuda_devices
    from tensorgate.gateway.contract.tensor import DTYPES, TensorSpec
except ImportError as error:
    raise SystemExit(f"failed: {error}; pip install -e . installs what the gateway itself needs") from None

MIN_RATIO = 0.95
MIN_BANDWIDTH = 0.8
SWITCH_S = 0.5e-3  # as the server has it
WHOLE_TASKS = 4
ROWS_PER_PLACE = 3
"""Tasks that ask with single rows, for each row of a batch."""


@dataclass(frozen=True, slots=True)
class Network:
    """A model in the sizes of this run."""

    name: str
    shape: tuple[int, ...]
    classes: int
    batches: tuple[int, ...]
    widths: tuple[int, ...]

    def make(self, backend: str, folder: Path, dtype: Any) -> Path:
        path = folder / f"{self.name}-{backend}"
        if path.exists():
            return path
        if backend == "onnx":
            networks = importlib.import_module("benchmarks.networks")
            if self.name == "mlp":
                return networks.mlp(path, self.widths, dtype)  # type: ignore[no-any-return]
            return networks.resnet50(path, dtype, self.shape[1], self.widths[0], self.classes)  # type: ignore[no-any-return]
        networks = importlib.import_module("benchmarks.torch_networks")
        module = networks.mlp(self.widths) if self.name == "mlp" else networks.resnet50(self.widths[0], self.classes)
        return networks.save(module, path, np.zeros((2, *self.shape), dtype))  # type: ignore[no-any-return]


FULL = (
    Network("resnet50", (3, 224, 224), 1000, (32, 128), (64,)),
    Network("mlp", (1024,), 256, (256,), (1024, 4096, 4096, 256)),
)
SMALL = (Network("resnet50", (3, 32, 32), 10, (4,), (4,)), Network("mlp", (64,), 16, (16,), (64, 128, 16)))


@dataclass(slots=True)
class Report:
    """What the sections say. `missed` are marks, `failed` sections."""

    judged: bool
    missed: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)

    def mark(self, what: str, value: float, least: float) -> str:
        """How a value compares with its mark, in a word."""
        if not self.judged:
            return ""
        if value >= least:
            return "reached"
        self.missed.append(f"{what}: {value:.2f}, must reach {least}")
        return "missed"


@dataclass(frozen=True, slots=True)
class Setting:
    """The run: where, with what, how long."""

    device: str
    backends: tuple[str, ...]
    networks: tuple[Network, ...]
    dtype: str
    rounds: int
    seconds: float
    folder: Path
    report: Report

    @property
    def on_gpu(self) -> bool:
        return self.device != "cpu"

    @property
    def xp(self) -> Any:
        return importlib.import_module("cupy") if self.on_gpu else np

    @property
    def options(self) -> dict[str, Any]:
        return {} if self.on_gpu else {"intra_op_threads": 1}

    def plan(self, backend: str, network: Network, batch: int) -> Plan:
        x = TensorSpec("x", DTYPES[self.dtype], (-1, *network.shape))
        y = TensorSpec("y", DTYPES[self.dtype], (-1, network.classes))
        path = network.make(backend, self.folder, DTYPES[self.dtype])
        return Plan(backend, path, self.device, batch, x, y, self.options)

    def models(self) -> Iterator[tuple[str, Network]]:
        yield from ((backend, network) for backend in self.backends for network in self.networks)

    def input(self, network: Network, rows: int) -> Any:
        return np.random.default_rng(1).standard_normal((rows, *network.shape), np.float32).astype(DTYPES[self.dtype])


# ------------------------------------------------------------------------------------------------------------- sections


async def throughput(setting: Setting) -> None:
    """Rows per second: raw, and the engine asked with whole batches and with single rows."""
    head = ("model", "batch", "asked with", "rows/s", "/ raw", "copies in, out per batch", "CPU us/row", "")
    lines: list[tuple[str, ...]] = []
    for backend, network in setting.models():
        for batch in network.batches:
            lines += await _attempt(
                setting, f"{backend} {network.name} {batch}", _compare(setting, backend, network, batch)
            )
    print(table(head, lines))


async def _compare(setting: Setting, backend: str, network: Network, batch: int) -> list[tuple[str, ...]]:
    plan, x = setting.plan(backend, network, batch), setting.input(network, batch)
    threads = setting.options.get("intra_op_threads", 0)
    raw = open_raw(backend, plan.path, setting.device, x, threads)
    name = f"{backend} {network.name}"
    async with loaded(plan) as model:
        _check(await ask(model, x), raw.answer(), setting.dtype)
        turns: dict[str, list[Pressed]] = {"whole batches": [], "single rows": []}
        rates = []
        for length in (setting.seconds / 5, *[setting.seconds] * setting.rounds):
            rates.append(batch / _seconds_per_run(raw, length))
            turns["whole batches"].append(await press(model, x, WHOLE_TASKS, length))
            turns["single rows"].append(await press(model, x[:1], ROWS_PER_PLACE * batch, length))
    lines: list[tuple[str, ...]] = [(name, str(batch), "raw", f"{median(rates[1:]):,.0f}", "1.00", "-", "-", "")]
    for how, pressed in turns.items():
        ratio = median([turn.rows_per_s / rate for turn, rate in zip(pressed[1:], rates[1:], strict=True)])
        lines.append(
            (
                name,
                str(batch),
                how,
                f"{median([turn.rows_per_s for turn in pressed[1:]]):,.0f}",
                f"{ratio:.2f}",
                _copies(setting, f"{name} {batch} {how}", pressed[1:]),
                f"{median([turn.cpu_us_per_row for turn in pressed[1:]]):.1f}",
                setting.report.mark(f"{name}, batch {batch}, {how}: rows/s against raw", ratio, MIN_RATIO),
            )
        )
    return lines


def _check(got: Any, want: Any, dtype: str) -> None:
    tolerance = 5e-2 if dtype == "FP16" else 5e-3
    if not np.allclose(got.astype(np.float32), want.astype(np.float32), tolerance, tolerance):
        raise ValueError("the engine gives other numbers than the raw model")


def _seconds_per_run(raw: Raw, seconds: float) -> float:
    """Of runs back to back, for about so long."""
    began = time.perf_counter()
    raw.run(3)
    times = max(3, int(seconds / ((time.perf_counter() - began) / 3)))
    began = time.perf_counter()
    raw.run(times)
    return (time.perf_counter() - began) / times


def _copies(setting: Setting, name: str, pressed: Sequence[Pressed]) -> str:
    batches = sum(turn.traffic.batches for turn in pressed)
    if not batches:
        return "-"
    crossed = [sum(turn.traffic.copies_in for turn in pressed), sum(turn.traffic.copies_out for turn in pressed)]
    if setting.report.judged and crossed != [batches, batches]:
        setting.report.missed.append(f"{name}: {crossed[0]} copies in and {crossed[1]} out for {batches} batches")
    return f"{crossed[0] / batches:.2f}, {crossed[1] / batches:.2f}"


async def latency(setting: Setting) -> None:
    """One row at a time: what a lone caller waits."""
    lines: list[tuple[str, ...]] = []
    for backend, network in setting.models():
        lines += await _attempt(setting, f"{backend} {network.name}", _alone(setting, backend, network))
    print(table(("model", "raw us", "engine p50 us", "p99 us", "requests"), lines))


async def _alone(setting: Setting, backend: str, network: Network) -> list[tuple[str, ...]]:
    plan, x = setting.plan(backend, network, 1), setting.input(network, 1)
    raw = open_raw(backend, plan.path, setting.device, x, setting.options.get("intra_op_threads", 0))
    alone = []
    for _ in range(50):
        began = time.perf_counter()
        raw.run(1)
        alone.append(time.perf_counter() - began)
    async with loaded(plan) as model:
        await latencies(model, x, setting.seconds / 5)
        times = await latencies(model, x, setting.seconds)
    cuts = quantiles(times, n=100, method="inclusive")
    figures = (median(alone), cuts[49], cuts[98])
    return [(f"{backend} {network.name}", *(f"{seconds * 1e6:,.0f}" for seconds in figures), str(len(times)))]


async def memory(setting: Setting) -> None:
    """MiB in use, on the GPU by whomever, on the host by this process: before a model is loaded, then, afterwards."""
    lines: list[tuple[str, ...]] = []
    for backend, network in setting.models():
        lines += await _attempt(setting, f"{backend} {network.name}", _around(setting, backend, network))
    print(table(("model", "before", "loaded", "after a batch", "unloaded"), lines))


async def _around(setting: Setting, backend: str, network: Network) -> list[tuple[str, ...]]:
    plan = setting.plan(backend, network, network.batches[-1])
    found = [_used(setting)]
    async with loaded(plan) as model:
        found.append(_used(setting))
        await ask(model, setting.input(network, network.batches[-1]))
        found.append(_used(setting))
    del model
    gc.collect()
    found.append(_used(setting))
    return [(f"{backend} {network.name}", *(f"{used / 2**20:,.0f}" for used in found))]


def _used(setting: Setting) -> int:
    if not setting.on_gpu:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    with setting.xp.cuda.Device(int(setting.device.partition(":")[2] or 0)):
        free, total = setting.xp.cuda.runtime.memGetInfo()
    return int(total - free)


async def images(setting: Setting) -> None:
    """uint8 NHWC -> normalised NCHW: how much of the device's copy bandwidth the operators use."""
    count, size, times = (512, 224, 20) if setting.on_gpu else (2, 64, 2)
    lines = []
    for datatype in ("FP32", "FP16"):
        own, copy = pixels.bandwidth(setting.xp, count, size, datatype, setting.rounds, times)
        mark = setting.report.mark(
            f"preprocessing to {datatype}: bandwidth against a copy's", own / copy, MIN_BANDWIDTH
        )
        lines.append(
            (
                f"{count} x {size} x {size} to {datatype}",
                f"{own / 1e9:,.1f}",
                f"{copy / 1e9:,.1f}",
                f"{own / copy:.2f}",
                mark,
            )
        )
    print(table(("images", "operators GB/s", "copy GB/s", "ratio", ""), lines))


async def crossover(setting: Setting) -> None:
    """One image, from bytes on the host to floats on the device: computed there, or on the host and then sent."""
    sizes = (8, 16, 32, 64, 128, 224, 448, 1024) if setting.on_gpu else (8, 32)
    lines, first = [], None
    for size in sizes:
        there, here = pixels.ways(setting.xp, size, 10 * setting.rounds)
        lines.append((f"{size} x {size}", f"{there * 1e6:,.0f}", f"{here * 1e6:,.0f}"))
        first = size if there < here and first is None else first
    print(table(("image", "computed on the device us", "on the host us"), lines))
    if setting.on_gpu:
        print(f"the device is quicker from {first} x {first} on" if first else "the host is quicker at all these sizes")


SECTIONS: dict[str, Callable[[Setting], Awaitable[None]]] = {
    "throughput": throughput,
    "latency": latency,
    "memory": memory,
    "images": images,
    "crossover": crossover,
}


async def _attempt(setting: Setting, name: str, work: Awaitable[list[tuple[str, ...]]]) -> list[tuple[str, ...]]:
    """The lines, or none if they could not be had: the others go on."""
    try:
        return await work
    except Exception as error:
        _fail(setting.report, name, error)
        return []


def _fail(report: Report, name: str, error: Exception) -> None:
    report.failed.append(f"{name}: {type(error).__name__}: {error}")
    traceback.print_exception(error)


# -------------------------------------------------------------------------------------------------------------- command


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


async def run(options: argparse.Namespace, folder: Path) -> Report:
    device = "cuda:0" if options.device in ("auto", "cuda") else options.device
    report = Report(judged=device != "cpu")
    found, missing = usable(device)
    for line in (*found.values(), *(f"missing: {each}" for each in missing)):
        print(line)
    wanted = tuple(options.backends or found)
    report.failed += [f"{name} is asked for, and missing" for name in wanted if name not in found]
    if device != "cpu" and not cuda_devices():
        report.failed.append("there is no GPU to be used here; --device cpu runs the same code on the host")
        return report
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
            _fail(report, name, error)
    return report


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

"""The sections of `benchmarks.gpu` about images: pixels made ready, files decoded."""
# ruff: noqa: T201 - a command speaks by print

from __future__ import annotations

import importlib
import io
import time
from statistics import median
from typing import Any

import numpy as np

from benchmarks import pixels
from benchmarks.gpu_setting import Line, Setting
from benchmarks.table import table
from tensorgate.backends.ops import OPS

MIN_BANDWIDTH = 0.8


async def images(setting: Setting) -> None:
    """uint8 NHWC -> normalised NCHW: how much of the device's copy bandwidth the operators use."""
    count, size, times = (512, 224, 20) if setting.on_gpu else (2, 64, 2)
    lines: list[Line] = []
    for datatype in ("FP32", "FP16"):
        own, copy = pixels.bandwidth(setting.xp, count, size, datatype, setting.rounds, times)
        what = f"preprocessing to {datatype}"
        mark = setting.report.mark(f"{what}: bandwidth against a copy's", own / copy, MIN_BANDWIDTH)
        setting.report.add("images", what, own / 1e9, "GB/s", copy / 1e9, mark)
        name = f"{count} x {size} x {size} to {datatype}"
        lines.append((name, f"{own / 1e9:,.1f}", f"{copy / 1e9:,.1f}", f"{own / copy:.2f}", mark))
    print(table(("images", "operators GB/s", "copy GB/s", "ratio", ""), lines))


async def decode(setting: Setting) -> None:
    """JPEG files to pixels on the device: Pillow on the host's cores and a copy, and nvImageCodec where it is."""
    image = importlib.import_module("PIL.Image")
    height, width, count = (480, 640, 64) if setting.on_gpu else (60, 80, 4)
    files = np.empty(count, object)
    random = np.random.default_rng(3)
    for row in range(count):
        smooth = random.integers(0, 256, (height // 16, width // 16, 3)).astype(np.uint8).repeat(16, 0).repeat(16, 1)
        stream = io.BytesIO()
        image.fromarray(smooth).save(stream, "JPEG", quality=90)
        files[row] = stream.getvalue()
    module, _, name = OPS["decode_image"].partition(":")
    kind = getattr(importlib.import_module(module), name)
    lines: list[Line] = []
    rates: dict[str, float] = {}
    for decoder in ("pillow", "nvimgcodec"):
        if decoder == "nvimgcodec" and not setting.on_gpu:
            continue
        try:
            op = kind.make(kind.options(op="decode_image", input="x", decoder=decoder))
        except ValueError as error:
            setting.report.missing.append(str(error))
            continue
        rates[decoder] = _files_per_s(op, files, setting)
        against = rates["pillow"] if decoder != "pillow" else None
        setting.report.add("decode", f"{count} of {width} x {height} by {decoder}", rates[decoder], "images/s", against)
        lines.append((f"{count} of {width} x {height}", decoder, f"{rates[decoder]:,.0f}"))
    print(table(("files", "by", "images/s"), lines, left=2))


def _files_per_s(op: Any, files: Any, setting: Setting) -> float:
    times = []
    clock = pixels.Clock(setting.xp)
    for _ in range(setting.rounds + 2):
        began = time.perf_counter()
        op({"x": files}, setting.xp)
        clock.finish()
        times.append(time.perf_counter() - began)
    return float(len(files) / median(times[2:]))


async def crossover(setting: Setting) -> None:
    """One image, from bytes on the host to floats on the device: computed there, or on the host and then sent."""
    sizes = (8, 16, 32, 64, 128, 224, 448, 1024) if setting.on_gpu else (8, 32)
    lines, first = [], None
    for size in sizes:
        there, here = pixels.ways(setting.xp, size, 10 * setting.rounds)
        lines.append((f"{size} x {size}", f"{there * 1e6:,.0f}", f"{here * 1e6:,.0f}"))
        setting.report.add("crossover", f"{size} x {size} on the device", there * 1e6, "us", here * 1e6)
        first = size if there < here and first is None else first
    print(table(("image", "computed on the device us", "on the host us"), lines))
    if setting.on_gpu:
        told = f"the device is quicker from {first} x {first} on" if first else "the host is quicker at all these sizes"
        print(told)

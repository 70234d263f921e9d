"""The sections of `benchmarks.gpu` in which the engine runs without doors."""
# ruff: noqa: T201 - a command speaks by print

from __future__ import annotations

import asyncio
import gc
import os
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import yaml

from benchmarks.engine_room import Pressed, ask, latencies, loaded, press
from benchmarks.gpu_setting import Line, Network, Setting, declared
from benchmarks.raw import Raw, open_raw
from benchmarks.table import table
from tensorgate.gateway.app import App, registries
from tensorgate.gateway.config import load_config
from tensorgate.gateway.contract.canonical import InferRequest, ModelRef
from tensorgate.gateway.contract.execution import Traffic

MIN_RATIO = 0.95
MIN_BATCH_S = 5e-3
"""Batches that take less are told and not judged: what Python needs for a batch shows beside them."""
WHOLE_TASKS = 4
ROWS_PER_PLACE = 3
"""Tasks that ask with single rows, for each row of a batch."""


async def throughput(setting: Setting) -> None:
    """Rows per second: raw, and the engine asked with whole batches and with single rows."""
    head = (
        "model",
        "batch",
        "asked with",
        "rows/s",
        "/ raw",
        "ms/batch",
        "copies in, out",
        "MB/s in, out",
        "CPU us/row",
    )
    lines: list[Line] = []
    for backend, network in setting.models():
        for batch in network.batches:
            name = f"{backend} {network.name} {batch}"
            lines += await setting.attempt(name, _compare(setting, backend, network, batch))
    print(table((*head, ""), lines))


async def _compare(setting: Setting, backend: str, network: Network, batch: int) -> list[Line]:
    plan, x = setting.plan(backend, network, batch), setting.input(network, batch)
    name = f"{backend} {network.name}"
    async with loaded(plan) as model:
        raw = open_raw(plan, x)  # now: the engine has opened the libraries that its session needs, too
        setting.check(await ask(model, x), raw.answer())
        turns: dict[str, list[Pressed]] = {"whole batches": [], "single rows": []}
        rates, fed = [], []
        for length in (setting.seconds / 5, *[setting.seconds] * setting.rounds):
            rates.append(batch / seconds_per_run(raw, length))
            fed.append(batch / seconds_per_run(raw, length, from_host=True))
            turns["whole batches"].append(await press(model, x, WHOLE_TASKS, length))
            turns["single rows"].append(await press(model, x[:1], ROWS_PER_PLACE * batch, length))
    batch_s = batch / median(rates[1:])
    per_batch, blank = f"{batch_s * 1e3:.2f}", ("-", "-", "-", "")
    fed_ratio = median([mine / its for mine, its in zip(fed[1:], rates[1:], strict=True)])
    lines: list[Line] = [
        (name, str(batch), "raw, on the device", f"{median(rates[1:]):,.0f}", "1.00", per_batch, *blank),
        (name, str(batch), "raw, from pinned memory", f"{median(fed[1:]):,.0f}", f"{fed_ratio:.2f}", "-", *blank),
    ]
    for how, pressed in turns.items():
        ratio = median([turn.rows_per_s / rate for turn, rate in zip(pressed[1:], rates[1:], strict=True)])
        rate = median([turn.rows_per_s for turn in pressed[1:]])
        what = f"{name}, batch {batch}, {how}"
        mark = "not judged"
        if batch_s >= MIN_BATCH_S:
            mark = setting.report.mark(f"{what}: rows/s against raw", ratio, MIN_RATIO)
        setting.report.add("throughput", what, rate, "rows/s", median(rates[1:]), mark)
        lines.append(
            (
                name,
                str(batch),
                how,
                f"{rate:,.0f}",
                f"{ratio:.2f}",
                "-",
                _copies(setting, what, pressed[1:]),
                _carried(pressed[1:]),
                f"{median([turn.cpu_us_per_row for turn in pressed[1:]]):.1f}",
                mark,
            )
        )
    return lines


def seconds_per_run(raw: Raw, seconds: float, *, from_host: bool = False) -> float:
    """Of runs back to back, for about so long; `from_host` with the copy of the batch in and of the answer out."""
    run = raw.run_from_host if from_host else raw.run
    began = time.perf_counter()
    run(3)
    times = max(3, int(seconds / ((time.perf_counter() - began) / 3)))
    began = time.perf_counter()
    run(times)
    return (time.perf_counter() - began) / times


def _copies(setting: Setting, name: str, pressed: Sequence[Pressed]) -> str:
    batches = sum(turn.traffic.batches for turn in pressed)
    if not batches:
        return "-"
    crossed = [sum(turn.traffic.copies_in for turn in pressed), sum(turn.traffic.copies_out for turn in pressed)]
    if setting.report.judged and crossed != [batches, batches]:
        setting.report.missed.append(f"{name}: {crossed[0]} copies in and {crossed[1]} out for {batches} batches")
    return f"{crossed[0] / batches:.2f}, {crossed[1] / batches:.2f}"


def _carried(pressed: Sequence[Pressed]) -> str:
    """Over the bus, both ways."""
    if not any(turn.traffic.batches for turn in pressed):
        return "-"
    ways = (
        median([turn.traffic.bytes_in / turn.seconds for turn in pressed]),
        median([turn.traffic.bytes_out / turn.seconds for turn in pressed]),
    )
    return ", ".join(f"{way / 1e6:,.0f}" for way in ways)


async def graphs(setting: Setting) -> None:
    """Kernels recorded for each shape and started together, against one by one: what a lone caller waits."""
    lines: list[Line] = []
    for backend, network in setting.models():
        name = f"{backend} {network.name}"
        lines += await setting.attempt(f"{name} graphs", _recorded(setting, backend, network))
    print(table(("model", "batch", "plain ms", "recorded ms", "plain / recorded"), lines))


async def _recorded(setting: Setting, backend: str, network: Network) -> list[Line]:
    lines: list[Line] = []
    largest = network.batches[-1]
    x = setting.input(network, largest)
    plans = {wanted: setting.plan(backend, network, largest, cuda_graph=wanted) for wanted in (False, True)}
    async with loaded(plans[False]) as plain, loaded(plans[True]) as recorded:
        for batch in sorted({1, min(8, largest), largest}):
            rows = x[:batch]
            for _ in range(4):  # recorded by then
                setting.check(await ask(recorded, rows), await ask(plain, rows))
            figures: dict[bool, list[float]] = {False: [], True: []}
            for _ in range(setting.rounds):
                for wanted, model in ((False, plain), (True, recorded)):
                    figures[wanted] += await latencies(model, rows, setting.seconds / 4)
            without, own = median(figures[False]), median(figures[True])
            name = f"{backend} {network.name}, batch {batch}"
            setting.report.add("graphs", name, own * 1e3, "ms", without * 1e3)
            lines.append(
                (
                    f"{backend} {network.name}",
                    str(batch),
                    f"{without * 1e3:.3f}",
                    f"{own * 1e3:.3f}",
                    f"{without / own:.2f}",
                )
            )
    return lines


async def latency(setting: Setting) -> None:
    """One row at a time: what a lone caller waits."""
    lines: list[Line] = []
    for backend, network in setting.models():
        lines += await setting.attempt(f"{backend} {network.name}", _alone(setting, backend, network))
    print(table(("model", "raw us", "from pinned us", "engine p50 us", "p99 us", "requests"), lines))


async def _alone(setting: Setting, backend: str, network: Network) -> list[Line]:
    plan, x = setting.plan(backend, network, 1), setting.input(network, 1)
    alone: tuple[list[float], list[float]] = ([], [])
    async with loaded(plan) as model:
        raw = open_raw(plan, x)
        for _ in range(50):
            for times, run in zip(alone, (raw.run, raw.run_from_host), strict=True):
                began = time.perf_counter()
                run(1)
                times.append(time.perf_counter() - began)
        await latencies(model, x, setting.seconds / 5)
        times = await latencies(model, x, setting.seconds)
    cuts = quantiles(times, n=100, method="inclusive")
    figures = (median(alone[0]), median(alone[1]), cuts[49], cuts[98])
    setting.report.add("latency", f"{backend} {network.name}, p50", cuts[49] * 1e6, "us", figures[1] * 1e6)
    setting.report.add("latency", f"{backend} {network.name}, p99", cuts[98] * 1e6, "us", figures[1] * 1e6)
    return [(f"{backend} {network.name}", *(f"{seconds * 1e6:,.0f}" for seconds in figures), str(len(times)))]


async def memory(setting: Setting) -> None:
    """MiB in use, on the GPU by whomever, on the host by this process: before a model is loaded, then, afterwards."""
    lines: list[Line] = []
    for backend, network in setting.models():
        lines += await setting.attempt(f"{backend} {network.name}", _around(setting, backend, network))
    print(table(("model", "before", "loaded", "after a batch", "unloaded"), lines))


async def _around(setting: Setting, backend: str, network: Network) -> list[Line]:
    plan = setting.plan(backend, network, network.batches[-1])
    found = [used_bytes(setting)]
    async with loaded(plan) as model:
        found.append(used_bytes(setting))
        await ask(model, setting.input(network, network.batches[-1]))
        found.append(used_bytes(setting))
    del model
    gc.collect()
    found.append(used_bytes(setting))
    setting.report.add("memory", f"{backend} {network.name}, after a batch", (found[2] - found[0]) / 2**20, "MiB")
    setting.report.add("memory", f"{backend} {network.name}, unloaded", (found[3] - found[0]) / 2**20, "MiB")
    return [(f"{backend} {network.name}", *(f"{used / 2**20:,.0f}" for used in found))]


def used_bytes(setting: Setting) -> int:
    """Of the GPU by whomever, or of the host by this process."""
    if not setting.on_gpu:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    with setting.xp.cuda.Device(int(setting.device.partition(":")[2] or 0)):
        free, total = setting.xp.cuda.runtime.memGetInfo()
    return int(total - free)


async def ensemble(setting: Setting) -> None:
    """Three models behind each other on one device: copies of a request, and what the steps cost above the models."""
    lines: list[Line] = []
    for backend in setting.backends:
        lines += await setting.attempt(f"{backend} ensemble", _through(setting, backend))
    head = ("models", "rows", "models one by one ms", "ensemble ms", "added ms", "copies in, out")
    print(table(head, lines))


async def _through(setting: Setting, backend: str) -> list[Line]:
    network = next(each for each in setting.networks if each.name == "mlp")
    square = Network("mlp", (network.shape[0],), network.shape[0], network.batches, _squared(network))
    rows = network.batches[0]
    plan = replace(setting, folder=setting.folder / "square").plan(backend, square, rows)
    row = {"datatype": setting.dtype, "shape": [-1, network.shape[0]]}
    part = declared(plan) | {"backend": backend, "path": str(plan.path.parent), "device": setting.device}
    part |= {"max_batch_size": rows, **plan.options}
    steps = [
        {"model": f"part{number}", "inputs": {"x": f"t{number}"}, "outputs": {"y": f"t{number + 1}"}}
        for number in range(3)
    ]
    whole = {
        "backend": "ensemble",
        "steps": steps,
        "max_batch_size": rows,
        "inputs": [{"name": "t0", **row}],
        "outputs": [{"name": "t3", **row}],
    }
    parts = [f"part{number}" for number in range(3)]
    file = setting.folder / f"ensemble-{backend}.yaml"
    file.write_text(yaml.safe_dump({"models": {**dict.fromkeys(parts, part), "whole": whole}}))
    kinds = registries()
    app = App(load_config(file, kinds), kinds)
    wrong: list[str] = []
    await app.load(lambda report: wrong.extend([report.error] if report.error else []))
    if wrong:
        raise ValueError("; ".join(wrong))
    try:
        x = setting.input(square, rows)
        setting.check(await _ask(app, "whole", "t0", x), await _one_by_one(app, parts, x))
        apart: list[float] = []
        together: list[float] = []
        before = _crossed(app, parts)
        ends, count = time.perf_counter() + setting.seconds, 0
        while time.perf_counter() < ends or not together:
            began = time.perf_counter()
            await _ask(app, "whole", "t0", x)
            together.append(time.perf_counter() - began)
            count += 1
        crossed = Traffic(*[now - then for now, then in zip(_crossed(app, parts), before, strict=True)])
        for _ in together:
            began = time.perf_counter()
            await _one_by_one(app, parts, x)
            apart.append(time.perf_counter() - began)
    finally:
        await app.repository.close()
    own, other = median(together) * 1e3, median(apart) * 1e3
    name = f"three of {backend} mlp, {rows} rows"
    setting.report.add("ensemble", name, own, "ms", other)
    copies = f"{crossed.copies_in / count:.2f}, {crossed.copies_out / count:.2f}" if crossed.batches else "-"
    if setting.report.judged and (crossed.copies_in, crossed.copies_out) != (count, count):
        setting.report.missed.append(f"{name}: {copies} copies in and out per request, must be one of each")
    return [(f"three of {backend} mlp", str(rows), f"{other:.2f}", f"{own:.2f}", f"{own - other:+.2f}", copies)]


def _squared(network: Network) -> tuple[int, ...]:
    """Widths that end as wide as they begin."""
    return (*network.widths[:-1], network.shape[0])


def _crossed(app: App, names: Sequence[str]) -> Traffic:
    total = Traffic()
    for name in names:
        total += app.repository.snapshot.models[name][1].computation.traffic()
    return total


async def _ask(app: App, name: str, tensor: str, x: Any) -> Any:
    view = app.router.resolve(ModelRef(name))
    async with asyncio.timeout(60):
        answer = await anext(aiter(view.handle.submit(InferRequest(view, {tensor: x}))))
    (output,) = answer.outputs.values()
    return output


async def _one_by_one(app: App, names: Sequence[str], x: Any) -> Any:
    """As a client would do it who has no ensemble."""
    for name in names:
        x = await _ask(app, name, "x", x)
    return x

"""More models than memory: what callers of models that are there pay for those who ask for others.

    python -m benchmarks.on_demand                      hits beside misses, and of a server with the hot models alone
    python -m benchmarks.on_demand zipf --seconds 60    Zipf's traffic over all models, in three dialects: latencies,
                                                        loads, the process's memory beside the ledger

Each model is a matrix of 1 MiB that no other has, so that an answer tells whose it is; wrong ones are counted. Requests
of 512 numbers come at a fixed rate, in JSON of Open Inference, TensorFlow Serving and grps in turn, whatever becomes of
those before: latencies count from when a request was due. The server has one core, or --cores, whoever asks the other.
"""
# ruff: noqa: T201 - a command speaks by print

from __future__ import annotations

import argparse
import asyncio
import http.client
import json
import os
import random
import re
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import uvloop
import yaml
from onnx import TensorProto, helper, numpy_helper

from benchmarks.servers import HOST, Server, running

PORT, METRICS_PORT = 18061, 18062
SIDE = 512
X = [1.0] * SIDE
HOT = 48
ASKING_CORE = 1
NUMBERS = (
    "tensorgate_resident_models",
    "tensorgate_resident_bytes",
    "tensorgate_demand_loads_total",
    "tensorgate_demand_refusals_total",
    "tensorgate_demand_failures_total",
)


def make_models(folder: Path, count: int) -> None:
    """Model n answers n + 1 times what it is asked."""
    for number in range(count):
        version = folder / f"m{number}/1"
        version.mkdir(parents=True)
        weights = numpy_helper.from_array(np.diag(np.full(SIDE, number + 1, np.float32)), "w")
        specs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", SIDE]) for name in "xy"]
        graph = helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["y"])], "g", specs[:1], specs[1:], [weights])
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)
        (version / "model.onnx").write_bytes(model.SerializeToString())
        (version.parent / "model.yaml").write_text("backend: onnx\nmax_batch_size: 8\n")


@contextmanager
def gateway(folder: Path, models: Path, cores: int, **sections: Any) -> Iterator[Server]:
    file = folder / "gateway.yaml"
    listen = {"http": [{"bind": f"{HOST}:{PORT}"}], "grpc": [], "metrics": {"bind": f"{HOST}:{METRICS_PORT}"}}
    told = {"listen": listen, "repositories": [str(models)], "grps": {"initially_online": True}, **sections}
    file.write_text(yaml.safe_dump(told))
    command = [sys.executable, "-m", "tensorgate", "serve", str(file), "--log-level", "warning"]
    with running("gateway", command, PORT, set(range(cores)) if cores > 1 else 0) as server:
        yield server


def request(number: int, dialect: int) -> bytes:
    """One of three, as bytes."""
    path, body = (
        (f"/v2/models/m{number}/infer", {"inputs": [{"name": "x", "shape": [1, SIDE], "datatype": "FP32", "data": X}]}),
        (f"/v1/models/m{number}:predict", {"instances": [X]}),
        ("/grps/v1/infer/predict?return-ndarray=true", {"model": f"m{number}-1", "ndarray": [X]}),
    )[dialect]
    text = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(text)}\r\n\r\n"
    return head.encode() + text


@dataclass
class Outcome:
    """Latencies in milliseconds, by group, and what went wrong."""

    latencies: dict[str, list[float]] = field(default_factory=dict)
    wrong: Counter[str] = field(default_factory=Counter)

    def line(self, group: str) -> str:
        found = self.latencies.get(group, [])
        if not found:
            return f"{group:22} none"
        p50, p90, p99 = np.percentile(found, [50, 90, 99])
        times = f"p50 {p50:7.2f}   p90 {p90:7.2f}   p99 {p99:7.2f}   max {max(found):7.1f} ms"
        return f"{group:10} {len(found):7,}   {times}"


class Asker:
    """Connections that are used again."""

    def __init__(self) -> None:
        self._idle: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []
        self._known: dict[tuple[int, int], bytes] = {}

    async def ask(self, number: int, dialect: int, due: float, group: str, outcome: Outcome) -> None:
        data = self._known.get((number, dialect)) or self._known.setdefault((number, dialect), request(number, dialect))
        reader, writer = self._idle.pop() if self._idle else await asyncio.open_connection(HOST, PORT)
        writer.write(data)
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0])
        body = await reader.readexactly(length)
        outcome.latencies.setdefault(group, []).append((time.monotonic() - due) * 1e3)
        self._idle.append((reader, writer))
        if head[9:12] != b"200":
            outcome.wrong[f"{head[9:12].decode()} {body[:90]!r}"] += 1
        elif float(number + 1) != first_number(body):
            outcome.wrong["another model's answer"] += 1


def first_number(body: bytes) -> float:
    """That of the outputs, in any of the three."""
    for mark in (b'"data":[', b'"predictions":', b'"ndarray":'):
        _, found, rest = body.partition(mark)
        if found:
            return float(re.match(rb"[\s\[]*([-0-9.e+]+)", rest)[1])  # type: ignore[index]
    return float("nan")


Pick = Callable[[], tuple[int, str]]
"""-> the model to be asked next, and the group where it counts."""


async def press(streams: Sequence[tuple[float, Pick]], seconds: float) -> Outcome:
    """Streams of requests, each (so many a second, of whom)."""
    outcome, asker, tasks = Outcome(), Asker(), set[asyncio.Task[None]]()
    begin = time.monotonic() + 0.1
    turns = iter(range(1 << 60))

    async def stream(rate: float, pick: Pick) -> None:
        for turn in range(int(rate * seconds)):
            due = begin + turn / rate
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            number, group = pick()
            task = asyncio.create_task(asker.ask(number, next(turns) % 3, due, group, outcome))
            tasks.add(task)
            task.add_done_callback(tasks.discard)

    await asyncio.gather(*[stream(rate, pick) for rate, pick in streams])
    await asyncio.gather(*tasks)
    return outcome


def told(*names: str) -> Mapping[str, float]:
    """What /metrics says, summed over labels."""
    connection = http.client.HTTPConnection(HOST, METRICS_PORT, timeout=30)
    connection.request("GET", "/metrics")
    text = connection.getresponse().read().decode()
    connection.close()
    found = dict.fromkeys(names, 0.0)
    for line in text.splitlines():
        name = re.split(r"[{ ]", line, maxsplit=1)[0]
        if name in found:
            found[name] += float(line.rpartition(" ")[2])
    return found


def anonymous_mib(pid: int) -> float:
    """What a process holds of its own."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(re.search(r"RssAnon:\s+(\d+)", status)[1]) / 1024  # type: ignore[index]


def neighbours(options: argparse.Namespace, folder: Path) -> None:
    """Hits at a fixed rate beside more and more misses."""
    models = folder / "models"
    make_models(models, options.models)
    source = random.Random(1)  # noqa: S311  no secret
    room = int(options.room * 2.3 * (1 << 20))  # ONNX Runtime holds such a model twice
    cold = iter(lambda: HOT + source.randrange(options.models - HOT), -1)

    def hit() -> tuple[int, str]:
        return source.randrange(HOT), "hits"

    def miss() -> tuple[int, str]:
        return next(cold), "misses"

    async def warmed(*streams: tuple[float, Pick]) -> Outcome:
        asker, outcome = Asker(), Outcome()
        for number in range(HOT):
            await asker.ask(number, number % 3, time.monotonic(), "first", outcome)
        await press([(options.rate, hit)], 2.0)
        return await press(streams, options.seconds)

    hits = (options.rate, hit)
    few = {"residency": {"on_demand": [f"m{number}" for number in range(HOT, options.models)]}}
    results: dict[str, Outcome] = {}
    for turn in range(options.rounds):
        with gateway(folder, models, options.cores, **few):
            merge(results, "hot models alone", uvloop.run(warmed(hits)))
        residency = {"on_demand": True, "max_resident_bytes": {"cpu": room}}
        with gateway(folder, models, options.cores, residency=residency):
            merge(results, "on demand, hits alone", uvloop.run(warmed(hits)))
            for rate in options.misses:
                merge(results, f"beside {rate:g} misses a second", uvloop.run(warmed(hits, (rate, miss))))
        print(f"round {turn + 1} of {options.rounds}", file=sys.stderr, flush=True)
    base = float(np.percentile(results["hot models alone"].latencies["hits"], 99))
    for name, outcome in results.items():
        p99 = float(np.percentile(outcome.latencies["hits"], 99))
        print(f"{name:28} {outcome.line('hits')}   {p99 / base:5.2f}")
        if "misses" in outcome.latencies:
            print(f"{'':28} {outcome.line('misses')}")
        if outcome.wrong:
            print(f"{'':28} WRONG {dict(outcome.wrong)}")


def merge(results: dict[str, Outcome], name: str, outcome: Outcome) -> None:
    """Another round of the same."""
    before = results.setdefault(name, Outcome())
    for group, found in outcome.latencies.items():
        before.latencies.setdefault(group, []).extend(found)
    before.wrong.update(outcome.wrong)


def zipf(options: argparse.Namespace, folder: Path) -> None:
    """All models, the n-th of them asked for as 1 / n^s."""
    models = folder / "models"
    make_models(models, options.models)
    room = int(options.room * 2.3 * (1 << 20))
    weights = 1 / np.arange(1, options.models + 1) ** options.skew
    edges = np.cumsum(weights / weights.sum())
    source = np.random.default_rng(1)

    def pick() -> tuple[int, str]:
        return min(int(np.searchsorted(edges, source.random())), options.models - 1), "all"

    residency = {"on_demand": True, "max_resident_bytes": {"cpu": room}}
    with gateway(folder, models, options.cores, residency=residency) as server:
        begun = anonymous_mib(server.pid)
        started = time.monotonic()
        while (left := options.seconds - (time.monotonic() - started)) > 0:
            outcome = uvloop.run(press([(options.rate, pick)], min(left, options.report)))
            now = told(*NUMBERS)
            held, ledger = anonymous_mib(server.pid) - begun, now["tensorgate_resident_bytes"] / (1 << 20)
            print(f"{time.monotonic() - started:6.0f} s {outcome.line('all')}")
            print(
                f"         {now['tensorgate_resident_models']:.0f} models; ledger {ledger:.0f} MiB, process {held:.0f} "
                f"({ledger / held:.2f}); {now['tensorgate_demand_loads_total']:.0f} loads, "
                f"{now['tensorgate_demand_refusals_total']:.0f} callers told to come again, "
                f"{now['tensorgate_demand_failures_total']:.0f} failed loads {dict(outcome.wrong) or ''}",
                flush=True,
            )


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.on_demand", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["neighbours", "zipf"], nargs="?", default="neighbours")
    parser.add_argument("--models", type=int, default=500, help="how many there are; default: 500")
    parser.add_argument("--room", type=int, default=64, help="for how many of them there is memory; default: 64")
    parser.add_argument("--rate", type=float, default=300.0, help="hits, or all requests, a second; default: 300")
    parser.add_argument("--misses", type=float, nargs="*", default=[2.0, 10.0], help="a second; default: 2 10")
    parser.add_argument("--skew", type=float, default=1.1, help="Zipf's exponent; default: 1.1")
    parser.add_argument("--seconds", type=float, default=10.0, help="of each turn; default: 10")
    parser.add_argument("--report", type=float, default=20.0, help="a line for so many seconds; default: 20")
    parser.add_argument("--rounds", type=int, default=3, help="turns of each; default: 3")
    parser.add_argument("--cores", type=int, default=1, help="of the server, from the first on; default: 1")
    options = parser.parse_args(arguments)
    os.sched_setaffinity(0, {ASKING_CORE})
    with tempfile.TemporaryDirectory() as folder:
        (zipf if options.what == "zipf" else neighbours)(options, Path(folder))


if __name__ == "__main__":
    main()

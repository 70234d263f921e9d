"""The section of `benchmarks.gpu` with doors: a gateway under load, over HTTP and gRPC, in two dialects."""
# ruff: noqa: T201 - a command speaks by print

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean, quantiles
from typing import Any

import grpc
import numpy as np
import orjson
import yaml

from benchmarks import closed_loop
from benchmarks.engine_room import Plan, loaded
from benchmarks.gpu_engine import seconds_per_run
from benchmarks.gpu_setting import Line, Setting, declared
from benchmarks.grpc_wires import WIRES as GRPC_WIRES
from benchmarks.raw import open_raw
from benchmarks.servers import HOST, Failed, Server, running
from benchmarks.table import table
from benchmarks.wires import TF_SERVING, V2

HTTP, GRPC, METRICS = 18060, 18061, 18062
CALLERS = (1, 8, 64)
MAX_PROCESSES = 8
"""Of callers: one of them alone would be what is measured."""
SETTLES_S = 0.5
LENGTH = "Inference-Header-Content-Length"
MODEL = "identity"
"""The name by which the wires ask; what is served under it is the first network."""


@dataclass(frozen=True, slots=True)
class Request:
    """One request, sent over and over. `message` is a whole HTTP request, or a call's message; `read` makes an array of
    an answer's body.
    """

    name: str
    port: int
    message: bytes
    read: Callable[[bytes], Any]
    path: str = ""
    headers: tuple[tuple[str, str], ...] = ()
    method: str = ""


def requests(x: Any) -> Iterator[Request]:
    """FP32 x [1, ...] in every form: 600 KB as bytes, or 3 MB of JSON, for an image of 224 x 224."""
    head, data = _binary(x)
    headers = (("Content-Type", "application/octet-stream"), (LENGTH, str(len(head))))
    yield _http("V2 HTTP, binary", V2.path, headers, head + data, _read_binary)
    for name, wire in (("V2 HTTP, JSON", V2), ("TF Serving HTTP, JSON", TF_SERVING)):
        yield _http(name, wire.path, (("Content-Type", "application/json"),), wire.request(x), wire.read)
    raw, _, content = GRPC_WIRES
    for name, call in (("V2 gRPC, raw", raw), ("TF Serving gRPC, tensor_content", content)):
        yield Request(name, GRPC, call.request(x), call.read, method=call.method)


def _binary(x: Any) -> tuple[bytes, bytes]:
    data = x.tobytes()
    tensor = {"name": "x", "shape": list(x.shape), "datatype": "FP32", "parameters": {"binary_data_size": len(data)}}
    outputs = [{"name": "y", "parameters": {"binary_data": True}}]
    return orjson.dumps({"inputs": [tensor], "outputs": outputs}), data


def _read_binary(body: bytes) -> Any:
    head, _, _ = body.partition(b"}]}")
    (output,) = orjson.loads(head + b"}]}")["outputs"]
    data = body[len(body) - output["parameters"]["binary_data_size"] :]
    return np.frombuffer(data, np.float32).reshape(output["shape"])


def _http(
    name: str, path: str, headers: tuple[tuple[str, str], ...], body: bytes, read: Callable[[bytes], Any]
) -> Request:
    lines = [f"POST {path} HTTP/1.1", f"Host: {HOST}", f"Content-Length: {len(body)}"]
    lines += [f"{key}: {value}" for key, value in headers]
    return Request(name, HTTP, "\r\n".join([*lines, "", ""]).encode() + body, read, path, headers)


async def served(setting: Setting) -> None:
    """A gateway in a process of its own, asked by others with single rows: against the raw model from pinned memory."""
    lines: list[Line] = []
    for backend in setting.backends:
        if setting.dtype == "FP32":  # as the wires send it
            lines += await setting.attempt(f"{backend} served", _serve(setting, backend))
    head = ("model", "request", "callers", "rows/s", "/ raw", "p50 ms", "p99 ms", "GPU", "MB/s in, out", "CPU us/row")
    print(table(head, lines, left=2))


async def _serve(setting: Setting, backend: str) -> list[Line]:
    network = setting.networks[0]
    batch = network.batches[0]
    plan, x = setting.plan(backend, network, batch), setting.input(network, batch)
    async with loaded(plan):  # which opens the libraries that the raw session needs, too
        raw = open_raw(plan, x)
        rate = batch / seconds_per_run(raw, setting.seconds, from_host=True)
        want = raw.answer()[:1]
        del raw
    return await asyncio.to_thread(_press_all, setting, plan, f"{backend} {network.name}", x[:1], want, rate)


def _press_all(setting: Setting, plan: Plan, model: str, x: Any, want: Any, rate: float) -> list[Line]:
    file = setting.folder / f"served-{plan.backend}.yaml"
    file.write_text(yaml.safe_dump(_configuration(plan)))
    lines: list[Line] = []
    command = [sys.executable, "-m", "tensorgate", "serve", str(file)]
    with running("gateway", command, HTTP, os.sched_getaffinity(0)) as server:
        for request in requests(x):
            setting.check(_ask(server, request), want)
            for callers in CALLERS:
                name = f"{model}, {request.name}, c={callers}"
                lines.append(_line(setting, model, name, request, callers, server, rate))
    return lines


def _configuration(plan: Plan) -> dict[str, Any]:
    listen = {"http": [{"bind": f"{HOST}:{HTTP}"}], "grpc": [{"bind": f"{HOST}:{GRPC}"}]}
    model = declared(plan) | {"backend": plan.backend, "path": str(plan.path.parent), "device": plan.device}
    return {
        "listen": {**listen, "metrics": {"bind": f"{HOST}:{METRICS}"}},
        "models": {MODEL: model | {"max_batch_size": plan.max_batch_size, **plan.options}},
    }


def _ask(server: Server, request: Request) -> Any:
    """The answer as an array; raises Failed."""
    if not request.method:
        body = request.message.partition(b"\r\n\r\n")[2]
        return request.read(server.post(request.path, body, dict(request.headers)))
    options = [("grpc.max_receive_message_length", -1), ("grpc.enable_http_proxy", 0)]
    with grpc.insecure_channel(f"{HOST}:{GRPC}", options) as channel:
        try:
            return request.read(channel.unary_unary(request.method)(request.message, timeout=60))
        except grpc.RpcError as error:
            raise Failed(f"{request.name}: {error.code()}: {error.details()}") from None


def _line(setting: Setting, model: str, name: str, request: Request, callers: int, server: Server, rate: float) -> Line:
    press(setting, request, callers, SETTLES_S)
    before, cpu = read_metrics(), server.cpu_us()
    with watched() as loads:
        latencies, seconds = press(setting, request, callers, setting.seconds)
    after, used = read_metrics(), server.cpu_us() - cpu
    rows_per_s = len(latencies) / seconds
    cuts = quantiles(latencies, n=100, method="inclusive") if len(latencies) > 1 else [latencies[0]] * 99
    busy = fmean(loads) if loads else None
    carried = [
        (after.get(key, 0.0) - before.get(key, 0.0)) / seconds / 1e6 for key in ('direction="in"', 'direction="out"')
    ]
    add = setting.report.add
    add("served", name, rows_per_s, "rows/s", rate)
    add("served", f"{name}, p50", cuts[49], "ms")
    add("served", f"{name}, p99", cuts[98], "ms")
    if busy is not None:
        add("served", f"{name}, GPU busy", busy, "of 1")
    return (
        model,
        request.name,
        str(callers),
        f"{rows_per_s:,.0f}",
        f"{rows_per_s / rate:.2f}",
        f"{cuts[49]:.2f}",
        f"{cuts[98]:.2f}",
        "-" if busy is None else f"{busy:.0%}",
        f"{carried[0]:,.0f}, {carried[1]:,.0f}" if setting.on_gpu else "-",
        f"{used / len(latencies):,.0f}",
    )


def press(setting: Setting, request: Request, callers: int, seconds: float) -> tuple[list[float], float]:
    """Latencies in milliseconds of all answers, and the seconds in which they came. Raises Failed for any but 200."""
    file = setting.folder / "message"
    file.write_bytes(request.message)
    many = min(callers, MAX_PROCESSES)
    shares = [callers // many + (number < callers % many) for number in range(many)]
    found: list[float] = []
    answers: Counter[str] = Counter()
    with ExitStack() as stack:
        processes = [stack.enter_context(_caller()) for _ in shares]
        for process, share in zip(processes, shares, strict=True):
            plan = closed_loop.Plan(request.port, str(file), share, seconds, request.method)
            _say(process, json.dumps(asdict(plan)))
        for process in processes:
            if _heard(process) != "ready\n":
                raise Failed(f"{request.name}: a caller did not start")
        begin = time.monotonic() + 0.1
        for process in processes:
            _say(process, str(begin))
        for process in processes:
            told = json.loads(_heard(process) or "{}")
            found += told.get("latencies_ms", ())
            answers.update(told.get("answers", {"none": 1}))
    if set(answers) - {"200", "OK"} or not found:
        raise Failed(f"{request.name}: answers were {dict(answers)}")
    return found, seconds


@contextmanager
def _caller() -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "benchmarks.closed_loop"]
    process = subprocess.Popen(  # noqa: S603 - our own
        command, cwd=Path(__file__).parents[1], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def _say(process: subprocess.Popen[str], line: str) -> None:
    assert process.stdin  # noqa: S101
    process.stdin.write(line + "\n")
    process.stdin.flush()


def _heard(process: subprocess.Popen[str]) -> str:
    assert process.stdout  # noqa: S101
    return process.stdout.readline()


COPIED = re.compile(r"^tensorgate_device_copied_bytes_total\{.*?(direction=\"\w+\").*\} (\S+)$", re.MULTILINE)
BUSY = re.compile(r"^tensorgate_gpu_utilization_ratio\{.*\} (\S+)$", re.MULTILINE)


def _metrics() -> str:
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with direct.open(f"http://{HOST}:{METRICS}/metrics", timeout=10) as answer:
        text: str = answer.read().decode()
    return text


def read_metrics() -> dict[str, float]:
    """Bytes that the gateway has copied so far, by direction."""
    return {key: float(value) for key, value in COPIED.findall(_metrics())}


@contextmanager
def watched() -> Iterator[list[float]]:
    """How busy the GPU is meanwhile, from 0 to 1, four times a second, as the gateway's own metrics tell it; nothing
    where there is none.
    """
    loads: list[float] = []
    over = threading.Event()

    def look() -> None:
        while not over.wait(0.25):
            loads.extend(float(value) for value in BUSY.findall(_metrics()))

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield loads
    finally:
        over.set()
        thread.join()

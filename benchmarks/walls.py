"""Walls between models: what a Python model that computes does to everybody else, in the gateway's process and in one
of its own, and what such processes cost.

A Python model computes 50 ms of pure Python for each call and two callers never let it rest; an ONNX identity beside it
is asked at a fixed rate, and a latency counts from when a request was due. Then the memory and the time to start of a
server with many Python models. A real Triton does the same, each of whose Python models is a process.
"""
# ruff: noqa: T201 - a command speaks by print

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median, quantiles
from typing import IO, Any, cast

import numpy as np
import yaml

from benchmarks import report, triton
from benchmarks.closed_loop import Plan as ClosedPlan
from benchmarks.contest import CONFIGURATION, PORT
from benchmarks.open_loop import Plan as OpenPlan
from benchmarks.servers import HOST, ROOT, Failed, Family, Server, family, running
from benchmarks.table import table
from benchmarks.wires import V2

MODELS = Path(__file__).parent / "walls_models.py"
INSIDE, OWN = "inside", "own"
CONTENDERS = (INSIDE, OWN, triton.NAME)
"""Python models in the gateway's process, each in one of its own, and Triton's."""
BEGINS_WITHIN_S = 0.25
EPILOG = """
contenders:
  inside  Python models in the gateway's process, as they are unless told otherwise
  own     the same with `process: own`
  triton  tritonserver, whose Python backend has a process for each model

examples:
  python -m benchmarks.walls
  python -m benchmarks.walls --parts probes --rounds 9 --rate 500
  python -m benchmarks.walls --parts many --models 20
"""


@dataclass(frozen=True, slots=True)
class Turn:
    """Latencies of the probes, and how often the busy model answered meanwhile."""

    p50_ms: float
    p99_ms: float
    max_ms: float
    busy_per_s: float


@dataclass(frozen=True, slots=True)
class Start:
    """What a server with so many Python models took to be ready, and its memory after a call to each of them."""

    models: int
    start_s: float
    memory_mib: float
    processes: int


def gateway(own: bool, names: Mapping[str, float], ports: triton.Ports) -> dict[str, Any]:
    """A configuration with `identity`, and a Python model for each name with its seconds of work."""
    content: dict[str, Any] = yaml.safe_load(CONFIGURATION.read_text())
    content["listen"] = {"http": [{"bind": f"{HOST}:{ports.http}"}], "grpc": [{"bind": f"{HOST}:{ports.grpc}"}]}
    models = content["models"]
    models["identity"]["path"] = str(CONFIGURATION.parent / models["identity"]["path"])
    for name, work_s in names.items():
        models[name] = {
            "backend": "python",
            "path": f"{MODELS}:{'Busy' if work_s else 'Copy'}",
            "parameters": {"work_s": work_s},
            "inputs": [{"name": "x", "datatype": "FP32", "shape": [-1, -1]}],
            "outputs": [{"name": "y", "datatype": "FP32", "shape": [-1, -1]}],
            **({"process": "own"} if own else {}),
        }
    return content


@contextmanager
def started(name: str, models: Mapping[str, float], folder: Path) -> Iterator[Family]:
    """The contender with these Python models, name -> seconds of work. `folder` is empty."""
    first = PORT + 60 + 3 * CONTENDERS.index(name)
    ports, cores = triton.Ports(first, first + 1, first + 2), os.sched_getaffinity(0)
    with ExitStack() as stack:
        server: Server
        if name == triton.NAME:
            repository = triton.Repository.at(folder)
            repository.add_identity(1)
            for model, work_s in models.items():
                repository.add_python(model, work_s=work_s)
            server = stack.enter_context(triton.triton(repository, ports, cores))
        else:
            file = folder / "gateway.yaml"
            file.write_text(yaml.safe_dump(gateway(name == OWN, models, ports)))
            command = [sys.executable, "-m", "tensorgate", "serve", str(file)]
            server = stack.enter_context(running(name, command, ports.http, cores))
        yield Family(server.name, server.port, server.pid)


def has_own_processes() -> bool:
    """Whether this gateway knows `process: own`."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "gateway.yaml"
        file.write_text(yaml.safe_dump(gateway(True, {"copy": 0.0}, triton.Ports(0, 0, 0))))
        command = [sys.executable, "-m", "tensorgate", "check", str(file)]
        return subprocess.run(command, capture_output=True, check=False).returncode == 0  # noqa: S603 - our own command


def without_what_is_missing(contenders: Sequence[str]) -> list[str]:
    """Those that can be started here; says of the others why not."""
    left = list(contenders)
    if OWN in left and not has_own_processes():
        print("left out: this gateway knows no `process: own` of a model", file=sys.stderr)
        left.remove(OWN)
    if triton.NAME in left:
        try:
            triton.find_triton()
        except Failed as failure:
            print(f"left out: {failure}", file=sys.stderr)
            left.remove(triton.NAME)
    return left


def message(model: str, array: Any) -> tuple[str, bytes]:
    """The path and the body of a call."""
    return f"/v2/models/{model}/infer", V2.request(array)


def http_request(model: str, array: Any) -> bytes:
    """All of a request, as the senders want it."""
    path, body = message(model, array)
    head = (
        f"POST {path} HTTP/1.1\r\nHost: {HOST}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


def check(server: Server, model: str) -> None:
    """Raise Failed unless it answers with the very numbers."""
    array = np.random.default_rng(1).standard_normal((1, 16), np.float32)
    path, body = message(model, array)
    answer = server.post(path, body, {"Content-Type": "application/json"})
    if V2.read(answer).tobytes() != array.tobytes():
        raise Failed(f"{server.name}, {model}: the answer has other numbers: {answer[:300]!r}")


class Sender:
    """`benchmarks.open_loop` or `benchmarks.closed_loop`, with a plan."""

    def __init__(self, module: str, plan: OpenPlan | ClosedPlan) -> None:
        command = [sys.executable, "-m", f"benchmarks.{module}"]
        self._process = subprocess.Popen(  # noqa: S603 - our own command
            command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._say(json.dumps(asdict(plan)))
        cast("IO[str]", self._process.stdout).readline()

    def _say(self, line: str) -> None:
        into = cast("IO[str]", self._process.stdin)
        into.write(line + "\n")
        into.flush()

    def begin(self, when: float) -> None:
        self._say(str(when))

    def latencies(self) -> list[float]:
        """In milliseconds, once it has ended. Raises Failed for an answer other than 200."""
        output, _ = self._process.communicate()
        outcome: dict[str, Any] = json.loads(output) if output else {"answers": {"nothing": 1}}
        if set(outcome["answers"]) - {"200"}:
            raise Failed(f"not everything was answered well: {outcome['answers']}")
        found: list[float] = outcome["latencies_ms"]
        return found


def turn(server: Server, busy: bool, folder: Path, options: argparse.Namespace) -> Turn:
    """Probes at their rate, beside callers of the busy model or alone."""
    array = np.random.default_rng(1).standard_normal((1, 16), np.float32)
    files = {model: folder / model for model in ("identity", "busy")}
    for model, file in files.items():
        file.write_bytes(http_request(model, array))
    probes = Sender("open_loop", OpenPlan(server.port, str(files["identity"]), options.rate, options.seconds))
    senders = [probes]
    if busy:
        plan = ClosedPlan(server.port, str(files["busy"]), options.callers, options.seconds)
        senders.append(Sender("closed_loop", plan))
    begin = time.monotonic() + BEGINS_WITHIN_S
    for sender in senders:
        sender.begin(begin)
    latencies = [sender.latencies() for sender in senders]
    return seen(latencies[0], len(latencies[1]) / options.seconds if busy else 0.0)


def seen(latencies_ms: Sequence[float], busy_per_s: float) -> Turn:
    """Raises Failed where there are too few for a percentile."""
    if len(latencies_ms) < 2:
        raise Failed("next to no probe was answered")
    centiles = quantiles(latencies_ms, n=100, method="inclusive")
    return Turn(centiles[49], centiles[98], max(latencies_ms), busy_per_s)


Turns = Mapping[str, Mapping[str, Sequence[Turn]]]
"""contender -> `alone` or `beside` -> turns"""


def probes(options: argparse.Namespace, contenders: Sequence[str]) -> dict[str, dict[str, list[Turn]]]:
    """Everybody is started; each has a turn of each kind in each round."""
    results: dict[str, dict[str, list[Turn]]] = {name: {"alone": [], "beside": []} for name in contenders}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        servers = []
        for name in contenders:
            (folder / name).mkdir()
            servers.append(stack.enter_context(started(name, {"busy": options.work}, folder / name)))
        for server in servers:
            check(server, "identity")
            check(server, "busy")
            turn(server, True, folder, options)  # does not count
        for number in range(options.rounds):
            for server in servers if number % 2 == 0 else reversed(servers):
                for kind in ("alone", "beside"):
                    results[server.name][kind].append(turn(server, kind == "beside", folder, options))
            print(f"probes: round {number + 1} of {options.rounds}", file=sys.stderr)
    return results


def middle(turns: Sequence[Turn]) -> Turn:
    """The median of each figure."""
    return Turn(*(median(column) for column in zip(*(asdict(turn).values() for turn in turns), strict=True)))


def probe_lines(results: Turns) -> list[tuple[str, ...]]:
    made: list[tuple[str, ...]] = [
        ("contender", "busy model", "p50 ms", "p99 ms", "max ms", "p99 / alone", "busy calls/s")
    ]
    for name, kinds in results.items():
        for kind, turns in kinds.items():
            one = middle(turns)
            times = median(each.p99_ms / quiet.p99_ms for each, quiet in zip(turns, kinds["alone"], strict=True))
            figures = (one.p50_ms, one.p99_ms, one.max_ms, times)
            rests = "rests" if kind == "alone" else "works"
            made.append((name, rests, *(f"{figure:.2f}" for figure in figures), f"{one.busy_per_s:.1f}"))
    return made


def start(name: str, models: int) -> Start:
    """One server with so many Python models of one class, each called once."""
    names = {f"copy{number}": 0.0 for number in range(models)}
    with tempfile.TemporaryDirectory() as folder:
        began = time.monotonic()
        with started(name, names, Path(folder)) as server:
            took = time.monotonic() - began
            for model in names:
                check(server, model)
            return Start(models, took, server.memory_mib(), len(family(server.pid)))


def many(options: argparse.Namespace, contenders: Sequence[str]) -> dict[str, dict[str, list[Start]]]:
    """contender -> `none` or `many` -> starts, one server at a time"""
    results: dict[str, dict[str, list[Start]]] = {name: {"none": [], "many": []} for name in contenders}
    for number in range(options.starts):
        for name in contenders:
            results[name]["none"].append(start(name, 0))
            results[name]["many"].append(start(name, options.models))
        print(f"many: round {number + 1} of {options.starts}", file=sys.stderr)
    return results


def start_lines(results: Mapping[str, Mapping[str, Sequence[Start]]]) -> list[tuple[str, ...]]:
    """Medians; `each` is what a model adds to a server without any."""
    made: list[tuple[str, ...]] = [("contender", "models", "start s", "memory MiB", "processes", "ms each", "MiB each")]
    for name, kinds in results.items():
        empty_s, empty_mib = (median(getattr(one, key) for one in kinds["none"]) for key in ("start_s", "memory_mib"))
        for starts in kinds.values():
            took, memory, processes = (
                median(getattr(one, key) for one in starts) for key in ("start_s", "memory_mib", "processes")
            )
            models = starts[0].models
            each = (
                [f"{(took - empty_s) / models * 1e3:.1f}", f"{(memory - empty_mib) / models:.2f}"]
                if models
                else ["-", "-"]
            )
            made.append((name, str(models), f"{took:.2f}", f"{memory:.0f}", f"{processes:.0f}", *each))
    return made


def facts(results: Mapping[str, Mapping[str, Mapping[str, Sequence[Any]]]]) -> dict[str, Any]:
    """For the file: every turn and every start."""
    return {
        part: {
            name: {kind: [asdict(each) for each in all_of_a_kind] for kind, all_of_a_kind in kinds.items()}
            for name, kinds in by_name.items()
        }
        for part, by_name in results.items()
    }


PARTS: Mapping[str, tuple[Callable[..., Any], Callable[[Any], list[tuple[str, ...]]]]] = {
    "probes": (probes, probe_lines),
    "many": (many, start_lines),
}


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.walls",
        description=__doc__,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--contenders", nargs="+", choices=CONTENDERS, default=list(CONTENDERS), metavar="NAME", help="see below")
    add("--parts", nargs="+", choices=PARTS, default=list(PARTS), metavar="PART", help="probes, many; default: both")
    add("--rounds", type=int, default=5, help="turns of each kind, of which the median counts; default: 5")
    add("--seconds", type=float, default=4.0, help="length of one turn; default: 4")
    add("--rate", type=float, default=100.0, help="probes a second; default: 100")
    add("--callers", type=int, default=2, help="of the busy model; default: 2")
    add(
        "--work",
        type=float,
        default=0.05,
        metavar="SECONDS",
        help="of pure Python for each of their calls; default: 0.05",
    )
    add("--models", type=int, default=50, help="Python models that are started; default: 50")
    add("--starts", type=int, default=3, help="of each server, of which the median counts; default: 3")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> None:
    options = parse(arguments)
    results: dict[str, Any] = {}
    try:
        contenders = without_what_is_missing(options.contenders)
        for part in options.parts:
            measure, lines = PARTS[part]
            results[part] = found = measure(options, contenders)
            head, *body = lines(found)
            print(table(head, body, left=2 if part == "probes" else 1), flush=True)
    except Failed as failure:
        raise SystemExit(f"failed: {failure}") from None
    facts = {
        part: {
            name: {kind: list(map(asdict, all_of)) for kind, all_of in kinds.items()} for name, kinds in by_name.items()
        }
        for part, by_name in results.items()
    }
    print(f"all rounds: {report.keep('walls', facts, vars(options))}")


if __name__ == "__main__":
    main()

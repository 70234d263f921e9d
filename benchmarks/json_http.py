"""Infer over HTTP with JSON: the gateway against a bare aiohttp handler that does the same work by hand.

Each contender is a server on one core; wrk presses it from another. The model is the identity, so the figures are the
cost of HTTP, JSON, batching and the rest of the way. Contenders take turns within each round, and the table has medians
over rounds. A ratio above 1 means more requests per second than the bare handler.
"""
# ruff: noqa: T201 - a command speaks by print

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from benchmarks import report
from benchmarks.servers import Failed, Server, check_port, running
from benchmarks.wires import WIRES, Wire
from benchmarks.wrk import Load, Round, find_wrk, press

CONFIGURATION = Path(__file__).parent / "identity.yaml"
SIZES = (16, 1_000, 150_528)  # a row of features, an embedding, an image of 3 x 224 x 224
EPILOG = """
contenders:
  gateway      python -m gateway serve benchmarks/identity.yaml
  bare         aiohttp + uvloop + orjson + NumPy: parses, makes the array, writes the answer; no checks, no model
  precomputed  the same, but the answer's text was made beforehand
  control      a second bare: how far its ratio is from 1 is how far to trust the others

examples:
  python -m benchmarks.json_http
  python -m benchmarks.json_http --cases v2/16 tf_serving/16 --rounds 9
  python -m benchmarks.json_http --contenders bare control --seconds 2
"""


@dataclass(frozen=True, slots=True)
class Case:
    """One request, sent over and over: `array` is FP32 [1, n]."""

    wire: Wire
    array: Any

    @property
    def name(self) -> str:
        return f"{self.wire.name}/{self.array.size}"

    def check(self, server: Server) -> None:
        """Raise Failed unless the server sends back the very numbers."""
        answer = server.post(self.wire.path, self.wire.request(self.array))
        try:
            same = np.array_equal(self.wire.read(answer), self.array)
        except (KeyError, TypeError, ValueError) as error:
            raise Failed(f"{server.name}, {self.name}: {error!r} in {answer[:300]!r}") from None
        if not same:
            raise Failed(f"{server.name}, {self.name}: the answer has other numbers or another shape: {answer[:300]!r}")


def cases() -> dict[str, Case]:
    rng = np.random.default_rng(1)
    arrays = [rng.standard_normal((1, size), np.float32) for size in SIZES]
    return {case.name: case for case in (Case(wire, array) for wire in WIRES for array in arrays)}


def commands() -> dict[str, tuple[int, list[str]]]:
    """contender -> its port, how to start it"""
    bind = yaml.safe_load(CONFIGURATION.read_text())["listen"]["http"][0]["bind"]
    port = int(bind.rpartition(":")[2])
    bare = [sys.executable, "-m", "benchmarks.bare"]
    return {
        "gateway": (port, [sys.executable, "-m", "gateway", "serve", str(CONFIGURATION)]),
        "bare": (port + 10, [*bare, str(port + 10)]),
        "precomputed": (port + 11, [*bare, str(port + 11), "--precomputed"]),
        "control": (port + 12, [*bare, str(port + 12)]),
    }


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.json_http",
        description=__doc__,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    choices, names = list(commands()), list(cases())
    add = parser.add_argument
    add(
        "--contenders",
        nargs="+",
        choices=choices,
        default=choices[:3],
        metavar="NAME",
        help="see below; default: the first three",
    )
    add(
        "--cases", nargs="+", choices=names, default=names, metavar="DIALECT/FLOATS", help=f"default: {' '.join(names)}"
    )
    add("--rounds", type=int, default=5, help="turns of each contender, of which the median counts; default: 5")
    add("--seconds", type=int, default=3, help="length of one turn; default: 3")
    add("--connections", type=int, default=8, help="kept busy by wrk's one thread; default: 8")
    add("--server-core", type=int, default=0, help="the servers' core; default: 0")
    add("--load-core", type=int, default=1, help="wrk's core; default: 1")
    return parser.parse_args(arguments)


def check_machine(options: argparse.Namespace) -> None:
    """Everything that can be wrong before a server is started. Raises Failed."""
    find_wrk()
    if options.server_core == options.load_core:
        raise Failed("server and load on one core would measure each other")
    missing = {options.server_core, options.load_core} - os.sched_getaffinity(0)
    if missing:
        raise Failed(f"core {min(missing)} is not ours to use; choose with --server-core and --load-core")
    for contender in options.contenders:
        check_port(commands()[contender][0])


def compare(options: argparse.Namespace) -> dict[str, dict[str, list[Round]]]:
    """Start the contenders, check their answers, and let them take turns."""
    load = Load(options.seconds, options.connections, options.load_core)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        servers = []
        for name in options.contenders:
            port, command = commands()[name]
            servers.append(stack.enter_context(running(name, command, port, options.server_core)))
        chosen = [case for name, case in cases().items() if name in options.cases]
        for case in chosen:
            for server in servers:
                case.check(server)
        return {case.name: measure(case, servers, folder, load, options.rounds) for case in chosen}


def measure(case: Case, servers: Sequence[Server], folder: Path, load: Load, rounds: int) -> dict[str, list[Round]]:
    """Turns of one case, after one short turn each that does not count."""
    body = folder / "body"
    body.write_bytes(case.wire.request(case.array))
    for server in servers:
        press(server, case.wire.path, body, Load(1, load.connections, load.core))
    results: dict[str, list[Round]] = {server.name: [] for server in servers}
    for number in range(rounds):
        for server in servers if number % 2 == 0 else reversed(servers):  # nobody always runs first
            results[server.name].append(press(server, case.wire.path, body, load))
        print(f"{case.name}: round {number + 1} of {rounds}", file=sys.stderr)
    return results


def main(arguments: Sequence[str] | None = None) -> None:
    options = parse(arguments)
    try:
        check_machine(options)
        results: Mapping[str, Mapping[str, Sequence[Round]]] = compare(options)
    except Failed as failure:
        raise SystemExit(f"failed: {failure}") from None
    print(report.table(results))
    print(f"all rounds: {report.save(results, vars(options))}")


if __name__ == "__main__":
    main()

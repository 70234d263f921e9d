"""Infer over gRPC, as Open Inference and TensorFlow Serving: the gateway against a bare grpc.aio handler that does the
same work by hand.

Each contender is a server on one core; h2load presses it from another. The model is the identity, so the figures are
the cost of gRPC, protobuf, batching and the rest of the way. Contenders take turns within each round, and the table has
medians over rounds. A ratio above 1 means more requests per second than the bare handler.
"""
# ruff: noqa: T201 - a command speaks by print

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import yaml

from benchmarks import report
from benchmarks.contest import CONFIGURATION, GATEWAY, check_cores, take_turns
from benchmarks.grpc_bytes import HEALTH, SERVING
from benchmarks.grpc_wires import WIRES, GrpcWire
from benchmarks.h2load import find_h2load, press
from benchmarks.servers import HOST, Failed, Server, check_port, running
from benchmarks.wrk import Load, Round

SIZES = (16, 150_528)  # a row of features, an image of 3 x 224 x 224
EPILOG = """
contenders:
  gateway  python -m tensorgate serve benchmarks/identity.yaml
  bare     grpc.aio + uvloop + upb + NumPy: parses, makes the array, writes the answer; no checks, no model
  control  a second bare: how far its ratio is from 1 is how far to trust the others

examples:
  python -m benchmarks.grpc_infer
  python -m benchmarks.grpc_infer --cases raw/16 float_val/16 --rounds 9
"""


@dataclass(frozen=True, slots=True)
class Case:
    """One request, sent over and over: `array` is FP32 [1, n]."""

    wire: GrpcWire
    array: Any

    @property
    def name(self) -> str:
        return f"{self.wire.name}/{self.array.size}"

    def request(self) -> bytes:
        return self.wire.request(self.array)

    def check(self, server: Server) -> int:
        """The size of the answer's message; raises Failed unless the server sends back the very numbers."""
        body = ask(server.port, self.wire.method, self.request())
        try:
            answer = self.wire.read(body)
        except (KeyError, TypeError, ValueError) as error:
            raise Failed(f"{server.name}, {self.name}: not an answer to the request: {error}") from None
        if answer.shape != self.array.shape or answer.tobytes() != self.array.tobytes():
            raise Failed(f"{server.name}, {self.name}: the answer has other numbers or another shape: {body[:300]!r}")
        return len(body)


def ask(port: int, method: str, body: bytes) -> bytes:
    options = [("grpc.max_receive_message_length", -1), ("grpc.enable_http_proxy", 0)]
    with grpc.insecure_channel(f"{HOST}:{port}", options) as channel:
        try:
            answer: bytes = channel.unary_unary(method)(body, timeout=30)
        except grpc.RpcError as error:
            raise Failed(f"port {port} answered {error.code()}: {error.details()}") from None
    return answer


def is_ready(port: int) -> bool:
    try:
        return ask(port, HEALTH, b"") == SERVING
    except Failed:
        return False


def cases() -> dict[str, Case]:
    rng = np.random.default_rng(1)
    rows = [rng.standard_normal((1, size), np.float32) for size in SIZES]
    return {case.name: case for case in (Case(wire, row) for wire in WIRES for row in rows)}


def commands() -> dict[str, tuple[int, list[str]]]:
    """contender -> its port, how to start it"""
    bind = yaml.safe_load(CONFIGURATION.read_text())["listen"]["grpc"][0]["bind"]
    port = int(bind.rpartition(":")[2])
    bare = [sys.executable, "-m", "benchmarks.grpc_bare"]
    return {
        "gateway": (port, GATEWAY),
        "bare": (port + 20, [*bare, str(port + 20)]),
        "control": (port + 21, [*bare, str(port + 21)]),
    }


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.grpc_infer",
        description=__doc__,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    choices, names = list(commands()), list(cases())
    add = parser.add_argument
    add("--contenders", nargs="+", choices=choices, default=choices[:2], metavar="NAME", help="default: the first two")
    add("--cases", nargs="+", choices=names, default=names, metavar="CASE", help=f"default: {' '.join(names)}")
    add("--rounds", type=int, default=5, help="turns of each contender, of which the median counts; default: 5")
    add("--seconds", type=int, default=3, help="length of one turn; default: 3")
    add("--connections", type=int, default=8, help="kept busy by h2load's one thread; default: 8")
    add("--server-core", type=int, default=0, help="the servers' core; default: 0")
    add("--load-core", type=int, default=1, help="h2load's core; default: 1")
    return parser.parse_args(arguments)


def check_machine(options: argparse.Namespace) -> None:
    """Everything that can be wrong before a server is started. Raises Failed."""
    find_h2load()
    check_cores(options)
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
            servers.append(stack.enter_context(running(name, command, port, options.server_core, is_ready)))
        chosen = [case for name, case in cases().items() if name in options.cases]
        return {case.name: measure(case, servers, folder, load, options.rounds) for case in chosen}


def measure(case: Case, servers: Sequence[Server], folder: Path, load: Load, rounds: int) -> dict[str, list[Round]]:
    """Turns of one case, after one short turn each that does not count."""
    file = folder / "message"
    body = case.request()
    file.write_bytes(b"\0" + len(body).to_bytes(4, "big") + body)
    sizes = {server.name: 5 + case.check(server) for server in servers}
    for server in servers:
        press(server, case.wire.method, file, sizes[server.name], Load(1, load.connections, load.core))
    return take_turns(
        case.name, servers, rounds, lambda server: press(server, case.wire.method, file, sizes[server.name], load)
    )


def main(arguments: Sequence[str] | None = None) -> None:
    options = parse(arguments)
    try:
        check_machine(options)
        results: Mapping[str, Mapping[str, Sequence[Round]]] = compare(options)
    except Failed as failure:
        raise SystemExit(f"failed: {failure}") from None
    print(report.table(results))
    print(f"all rounds: {report.save('grpc_infer', results, vars(options))}")


if __name__ == "__main__":
    main()

"""What it costs to go through the gateway to a model on another server: Open Inference over gRPC, one caller.

The upstream is a gateway with the identity; the relay is a gateway whose only model is remote. The same call goes to
both in turns. The table has the time of a call (median of a turn), and the processor time that the servers took for it:
the upstream alone for a direct call, both for a relayed one. Of each, the least of all turns counts, for others may use
the machine. `added` is what the relay adds, in direct calls: at 1, a relayed call costs as much as two direct ones.
`bare` is a relay by grpc.aio that does nothing but pass bytes on.

Upstream and relay have cores of their own, the caller has none. Not all that is added is the relay's work: while one of
the three computes, the others' cores fall asleep, and an upstream that waits between its calls needs more for each than
one that is asked without a pause. With --awake no core sleeps, as on a machine that has more to do.
"""
# ruff: noqa: T201 - a command speaks by print

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from math import nan
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import grpc
import numpy as np
import yaml

from benchmarks.contest import CONFIGURATION
from benchmarks.grpc_bytes import SIZES as MESSAGE_SIZES
from benchmarks.grpc_infer import is_ready
from benchmarks.grpc_wires import INFER, infer_read, infer_request
from benchmarks.servers import HOST, Failed, Server, awake, running

SIZES = (16, 150_528)  # a row of features; an image of 3 x 224 x 224, 600 KB
RELAY_PORT = 18040
BARE_PORT = 18041


def relay_configuration(upstream_port: int) -> str:
    upstream = {"dialect": "open_inference", "transport": "grpc", "address": f"{HOST}:{upstream_port}"}
    model = {"backend": "remote", "upstream": upstream}
    listen = {"http": [{"bind": f"{HOST}:0"}], "grpc": [{"bind": f"{HOST}:{RELAY_PORT}"}]}
    return yaml.safe_dump({"listen": listen, "models": {"identity": model}})


class Turn(NamedTuple):
    """What a call took, in microseconds: on the clock, and of the servers' processors."""

    clock: float
    processor: float


def measure(ask: Any, body: bytes, array: Any, seconds: float, servers: Sequence[Server]) -> Turn:
    """Calls, one after the other; the first answer is compared with what was sent."""
    if infer_read(ask(body)).tobytes() != array.tobytes():
        raise Failed("the answer has other numbers")
    times: list[float] = []
    before = sum(server.cpu_us() for server in servers)
    until = time.perf_counter() + seconds
    while (begun := time.perf_counter()) < until:
        ask(body)
        times.append(time.perf_counter() - begun)
    return Turn(median(times) * 1e6, (sum(server.cpu_us() for server in servers) - before) / len(times))


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.relay", description=__doc__)
    parser.add_argument("--rounds", type=int, default=25, help="turns of each, of which the least counts; default: 25")
    parser.add_argument("--seconds", type=float, default=0.4, help="length of one turn; default: 0.4")
    parser.add_argument("--upstream-core", type=int, default=1, help="default: 1")
    parser.add_argument("--relay-core", type=int, default=0, help="default: 0")
    parser.add_argument("--awake", action="store_true", help="keep the cores from sleeping between calls")
    options = parser.parse_args(arguments)
    port = int(yaml.safe_load(CONFIGURATION.read_text())["listen"]["grpc"][0]["bind"].rpartition(":")[2])
    serve = [sys.executable, "-m", "tensorgate", "serve"]
    try:
        with ExitStack() as stack:
            file = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "relay.yaml"
            file.write_text(relay_configuration(port))
            upstream = stack.enter_context(
                running("upstream", [*serve, str(CONFIGURATION)], port, options.upstream_core, is_ready)
            )
            relay = stack.enter_context(running("relay", [*serve, str(file)], RELAY_PORT, options.relay_core, is_ready))
            passing_on = [sys.executable, "-m", "benchmarks.bare_relay", str(BARE_PORT), str(port)]
            bare = stack.enter_context(running("bare", passing_on, BARE_PORT, options.relay_core, is_ready))
            if options.awake:
                stack.enter_context(awake())
            ways = {"direct": (upstream,), "relay": (relay, upstream), "bare": (bare, upstream)}
            compare(stack, ways, options)
    except Failed as failure:
        raise SystemExit(f"failed: {failure}") from None


def compare(stack: ExitStack, ways: dict[str, tuple[Server, ...]], options: argparse.Namespace) -> None:
    """Each way is the servers that it leads through, the one that is called first."""
    asks = {
        name: stack.enter_context(
            grpc.insecure_channel(f"{HOST}:{servers[0].port}", [*MESSAGE_SIZES, ("grpc.enable_http_proxy", 0)])
        ).unary_unary(INFER)
        for name, servers in ways.items()
    }
    print(f"{'floats':>8}  {'':<9}  {'direct us':>10}  {'relay us':>10}  added  {'bare us':>10}  added")
    for size in SIZES:
        array = np.random.default_rng(1).standard_normal((1, size), np.float32)
        body = infer_request(array)
        turns: dict[str, list[Turn]] = {name: [] for name in asks}
        for _ in range(options.rounds):
            for name, ask in asks.items():
                turns[name].append(measure(ask, body, array, options.seconds, ways[name]))
        for index, what in enumerate(Turn._fields):
            direct, *others = (min(turn[index] for turn in turns[name]) for name in turns)
            added = [(other - direct) / direct if direct else nan for other in others]
            columns = [f"{other:>10.0f}  {more:>5.2f}" for other, more in zip(others, added, strict=True)]
            print(f"{size:>8}  {what:<9}  {direct:>10.0f}  {'  '.join(columns)}")


if __name__ == "__main__":
    main()

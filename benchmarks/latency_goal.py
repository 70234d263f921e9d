"""What `target_p99_ms` brings beside fixed delays: the highest rate of requests at which the goal holds.

The *throughput* of a way to batch is the highest mean rate of an open loop at which the 99th percentile of the answered
requests' latencies is within the goal (--slack allows for some more), and at most 1 % of all requests are refused. It
is searched by halving. A rate at which the server does not hold is tried again (--tries), since a machine that others
use stands still now and then, whatever the policy. Three shapes of load have the same mean: steady (Poisson), bursts (a
fifth of each second has 2.5 times the mean), ramps (0.2 to 1.8 times the mean and back in --ramp seconds).

First under virtual time: the scheduler's own queue, with the times that the model's batches were measured to take. Then
the real server, over HTTP on this machine, whose latencies count from when a request was due. Its model is a stand-in
that sleeps for those times, as a device beside the processor is waited for: so that a busy machine slows the gateway
alone. With --compute it is the network itself, on the core of the server. `bound` is what no
policy passes on a steady load: half the goal for the batch before one's own, and half for one's own, each as large as
it may be.

Beyond the limit: at 1.5 times the best fixed delay's rate, requests a second that are answered within the goal.
"""
# ruff: noqa: T201, S311 - a command speaks by print, and its random numbers are no secrets

from __future__ import annotations

import argparse
import asyncio
import json
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import yaml

from benchmarks.networks import mlp
from benchmarks.open_loop import Plan
from benchmarks.servers import HOST, pinned, running
from benchmarks.table import table
from tensorgate.gateway import app
from tensorgate.gateway.cli.batch_advice import Curve
from tensorgate.gateway.cli.tune import measure
from tensorgate.gateway.config import load_config
from tensorgate.gateway.engine.latency_goal import GoalPolicy
from tensorgate.gateway.engine.queue import LevelPolicy, QueuePolicy
from tensorgate.gateway.engine.simulation import Arrival, Simulation

PORT = 18090
WIDTHS = (64, 4096, 4096, 64)
"""Most of a run of few rows is spent on reading weights: what batches are for."""
MAX_ROWS = 128
SIZES = (1, 2, 4, 8, 16, 32, 64, 128)
PADDED = (1, 8, 32, 128)
REFUSED_AT_MOST = 0.01
PRECISION = 1.06
QUEUE = 100_000
STARTS_WITHIN_S = 0.8
"""The load generator."""
NOISE = 0.05
EPILOG = """
examples:
  python -m benchmarks.latency_goal                             # both, about half an hour
  python -m benchmarks.latency_goal --only simulation --seconds 20 --sizes 8 32 128
  python -m benchmarks.latency_goal --target-ms 240 --curve 1:12.6,2:14.6,4:15.1,8:19,16:29.1,32:51.5,64:99.4,128:196.6
  python -m benchmarks.latency_goal --only server --shapes steady --cases padded --server-core 0 --load-core 1
"""


@dataclass(frozen=True, slots=True)
class Policy:
    """A way to batch: a goal, or a fixed delay."""

    name: str
    delay_us: int | None
    max_rows: int = MAX_ROWS

    @property
    def is_goal(self) -> bool:
        return self.delay_us is None


@dataclass(frozen=True, slots=True)
class Trial:
    """What one load saw. `good`: requests a second that were answered within the goal."""

    p99_s: float
    refused: float
    good: float

    def holds(self, limit_s: float) -> bool:
        return self.p99_s <= limit_s and self.refused <= REFUSED_AT_MOST


Try = Callable[[Policy, Sequence[float]], Trial]


def due_times(shape: str, rate: float, seconds: float, ramp_s: float, seed: int = 1) -> list[float]:
    """Poisson arrivals of a mean rate, thinned to the shape."""
    chance = random.Random(seed)
    most = {"steady": 1.0, "bursts": 2.5, "ramps": 1.8}[shape]

    def level(at: float) -> float:
        if shape == "bursts":
            return most if at % 1.0 < 0.2 else (1 - 0.2 * most) / 0.8
        return 1.0 if shape == "steady" else 0.2 + 1.6 * (1 - abs(at % ramp_s / ramp_s * 2 - 1))

    found, at = [], 0.0
    while (at := at + chance.expovariate(rate * most)) < seconds:
        if chance.random() * most < level(at):
            found.append(at)
    return found


def highest_rate(
    attempt: Callable[[float], Trial], limit_s: float, low: float, tries: int = 1
) -> tuple[float, Trial | None]:
    """The highest rate that holds, and what it was like; 0 if even a twentieth of `low` does not."""
    best, held, first = 0.0, None, low
    rate, high = low, float("inf")
    while high / max(best, first / 20) > PRECISION:
        trial = next((each for each in map(attempt, [rate] * tries) if each.holds(limit_s)), None)
        if trial is not None:
            best, held = rate, trial
        else:
            high = rate
        rate = best * 2 if high == float("inf") else high / 2 if not best else (best * high) ** 0.5
    return best, held


# ---------------------------------------------------------------------------------------------------------- simulation


def simulated(curve: Curve, padded: bool, target_s: float) -> Try:
    """Trials under virtual time."""
    times = curve.times(MAX_ROWS)

    def attempt(policy: Policy, due: Sequence[float]) -> Trial:
        noise = random.Random(2)
        sizes = PADDED if padded else ()
        goal = GoalPolicy(target_s, sizes) if policy.is_goal else None
        queue = QueuePolicy(policy.max_rows, policy.delay_us or 0, LevelPolicy(QUEUE), goal=goal)
        simulation = Simulation(queue, lambda device, rows: times.seconds(rows) * noise.lognormvariate(0.0, NOISE))
        simulation.learn(curve.points)
        outcome = simulation.run(map(Arrival, due))
        good = sum(seconds <= target_s for seconds in outcome.seconds) / due[-1]
        return Trial(outcome.percentile(99), outcome.refused_share, good)

    return attempt


def bound(curve: Curve, target_s: float) -> float:
    """The rate of batches one after another, each of which runs for half the goal at most."""
    times = curve.times(MAX_ROWS)
    return max(
        (times.rate(rows) for rows in range(1, MAX_ROWS + 1) if times.seconds(rows) <= target_s / 2), default=0.0
    )


# -------------------------------------------------------------------------------------------------------------- server


STAND_IN = """
import time

class StandIn:
    def __init__(self, context):
        self.seconds = context.parameters["seconds"]

    def infer(self, inputs, request):
        x = inputs["x"]
        time.sleep(self.seconds[len(x)])
        return {"y": x}
"""
"""Its parameter has the seconds of each number of rows."""


def configuration(
    folder: Path, padded: bool, policy: Policy | None, target_ms: float, stand_in: Curve | None = None
) -> Path:
    entry: dict[str, object] = {"backend": "onnx", "path": str(folder / "mlp"), "device": "cpu"}
    if stand_in is not None:
        (folder / "stand_in.py").write_text(STAND_IN)
        times = stand_in.times(MAX_ROWS)
        tensor = {"datatype": "FP32", "shape": [-1, WIDTHS[0]]}
        entry = {"backend": "python", "path": str(folder / "stand_in.py:StandIn")}
        entry |= {"inputs": [{"name": "x"} | tensor], "outputs": [{"name": "y"} | tensor]}
        entry |= {"parameters": {"seconds": [times.seconds(rows) for rows in range(MAX_ROWS + 1)]}}
        entry |= {"warmup": [{"batch_size": rows, "count": 3} for rows in (PADDED if padded else SIZES)]}
    entry |= {"max_batch_size": MAX_ROWS, "max_queue_size": QUEUE}
    if padded:
        entry["pad_batches_to"] = [*PADDED]
    if policy is not None:
        entry["max_batch_size"] = policy.max_rows
        entry |= {"target_p99_ms": target_ms} if policy.is_goal else {"max_queue_delay_us": policy.delay_us}
    document = {"listen": {"http": [{"bind": f"{HOST}:{PORT}"}]}, "cpu": {"threads": 1}, "models": {"mlp": entry}}
    file = folder / "gateway.yaml"
    file.write_text(yaml.safe_dump(document))
    return file


def request_file(folder: Path) -> Path:
    body = json.dumps({"instances": [[0.5] * WIDTHS[0]]}).encode()
    head = f"POST /v1/models/mlp:predict HTTP/1.1\r\nHost: {HOST}\r\nContent-Length: {len(body)}\r\n\r\n"
    file = folder / "request.http"
    file.write_bytes(head.encode() + body)
    return file


def pressed(message: Path, due: Sequence[float], target_s: float, core: int | set[int]) -> Trial:
    """One load on the server that runs."""
    plan = Plan(PORT, str(message), 0.0, due[-1], due_s=due)
    with pinned(core):
        process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.open_loop"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
    out, _ = process.communicate(f"{json.dumps(asdict(plan))}\n{time.monotonic() + STARTS_WITHIN_S}\n")
    said = json.loads(out.splitlines()[-1])
    served = sorted(said["served_ms"])
    refused = 1 - len(served) / len(due)
    p99 = served[min(len(served) - 1, len(served) * 99 // 100)] / 1e3 if served else float("inf")
    return Trial(p99, refused, sum(each <= target_s * 1e3 for each in served) / due[-1])


# --------------------------------------------------------------------------------------------------------------- tables


def compared(
    attempt: Try, policies: Sequence[Policy], options: argparse.Namespace, start: float, tries: int = 1
) -> Iterator[list[str]]:
    """A row for each shape: the rate of each policy, and what the goal brings."""
    limit_s = options.target_ms / 1e3 * (1 + options.slack)

    def load(policy: Policy, shape: str, rate: float) -> Trial:
        return attempt(policy, due_times(shape, rate, options.seconds, options.ramp))

    for shape in options.shapes:
        rates: dict[str, float] = {}
        at_best: dict[str, Trial] = {}
        for policy in policies:
            rates[policy.name], found = highest_rate(partial(load, policy, shape), limit_s, start, tries)
            at_best |= {} if found is None else {policy.name: found}
            print(f"  {shape}, {policy.name}: {rates[policy.name]:.0f}/s", file=sys.stderr, flush=True)
        fixed, rate = max(
            ((each.name, rates[each.name]) for each in policies if not each.is_goal), key=lambda each: each[1]
        )
        over = due_times(shape, 1.5 * max(rate, 1.0), options.seconds, options.ramp)
        good = {each.name: attempt(each, over).good for each in policies if each.is_goal or each.name == fixed}
        goal = at_best.get("goal")
        yield [
            shape,
            *(f"{rates[each.name]:.0f}" for each in policies),
            f"{rates['goal'] / rate:.2f}" if rate else "-",
            "-" if goal is None else f"{goal.p99_s * 1e3:.1f} ms, {goal.refused:.1%}",
            f"{good[fixed]:.0f} / {good['goal']:.0f}",
        ]


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.latency_goal",
        description=__doc__,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--only", choices=("simulation", "server"))
    parser.add_argument("--target-ms", type=float, default=100.0)
    parser.add_argument("--slack", type=float, default=0.1, help="how far above the goal still holds (default 0.1)")
    parser.add_argument("--seconds", type=float, default=8.0, help="of one load")
    parser.add_argument("--tries", type=int, default=3, help="of a rate that the server does not hold (default 3)")
    parser.add_argument("--ramp", type=float, default=4.0, metavar="S")
    parser.add_argument("--shapes", nargs="+", default=["steady", "bursts", "ramps"])
    parser.add_argument("--cases", nargs="+", choices=("plain", "padded"), default=["plain", "padded"])
    parser.add_argument("--delays-us", nargs="+", type=int, default=[0, 5000, 20_000])
    parser.add_argument("--compute", action="store_true", help="the server computes the network itself")
    parser.add_argument("--curve", help="ROWS:MS,… in place of measuring, for runs on one machine to be compared")
    parser.add_argument("--sizes", nargs="+", type=int, default=[MAX_ROWS], help="max_batch_size with a fixed delay")
    parser.add_argument("--server-core", type=int, default=0)
    parser.add_argument("--load-core", type=int, default=1)
    options = parser.parse_args()
    policies = [
        *(Policy(f"{rows} in {delay} us", delay, rows) for rows in options.sizes for delay in options.delays_us),
        Policy("goal", None),
    ]
    heads = ["load", *(each.name for each in policies), "goal/best", "goal at its rate", "in time at 1.5x: best / goal"]
    target_s = options.target_ms / 1e3
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        (folder / "mlp" / "1").mkdir(parents=True)
        mlp(folder / "mlp" / "1" / "model.onnx", WIDTHS)
        for case in options.cases:
            padded = case == "padded"
            curve = read_curve(options.curve, padded) if options.curve else measured(folder, padded, options)
            points = ", ".join(f"{rows}: {seconds * 1e3:.2f}" for rows, seconds in curve.points)
            print(f"\n{case}: ms by rows {points}; bound {bound(curve, target_s):.0f}/s")
            start = bound(curve, target_s) / 4
            if options.only != "server":
                print("simulation, requests/s:")
                print(table(heads, [*compared(simulated(curve, padded, target_s), policies, options, start)]))
            if options.only != "simulation":
                print("server, requests/s:")
                stand_in = None if options.compute else curve
                print(table(heads, [*served(folder, padded, policies, options, start, stand_in)]))


def read_curve(text: str, padded: bool) -> Curve:
    """Of it the sizes that batches are padded to, where they are."""
    points = [(int(rows), float(ms) / 1e3) for rows, ms in (part.split(":") for part in text.split(","))]
    return Curve([each for each in points if not padded or each[0] in PADDED], PADDED if padded else ())


def measured(folder: Path, padded: bool, options: argparse.Namespace) -> Curve:
    with pinned(options.server_core):
        return asyncio.run(curve_of(configuration(folder, padded, None, options.target_ms), padded))


async def curve_of(file: Path, padded: bool) -> Curve:
    kinds = app.registries()
    async with app.loaded_models(load_config(file, kinds), kinds) as loaded:
        return await measure(loaded.models[0], PADDED if padded else SIZES)


def served(
    folder: Path,
    padded: bool,
    policies: Sequence[Policy],
    options: argparse.Namespace,
    start: float,
    stand_in: Curve | None,
) -> Iterator[list[str]]:
    """Each policy's server is started for each of its loads anew: what one has learned of another load counts not."""
    message = request_file(folder)

    def attempt(policy: Policy, due: Sequence[float]) -> Trial:
        file = configuration(folder, padded, policy, options.target_ms, stand_in)
        command = [sys.executable, "-m", "tensorgate", "serve", str(file)]
        with running(policy.name, command, PORT, options.server_core):
            return pressed(message, due, options.target_ms / 1e3, options.load_core)

    yield from compared(attempt, policies, options, start, options.tries)


if __name__ == "__main__":
    main()

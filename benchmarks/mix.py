"""Small requests beside large ones: does a large body make everybody else wait?

Small requests come at a fixed rate, and so do large ones of one kind after the other; what is measured is the latency
of the small ones, with the large ones beside them and without, in turns. The table has medians over rounds. Beside it
stands what the event loop's own meter says, which knows what of a stall was the machine's (see `watched`).
"""
# ruff: noqa: T201 - a command speaks by print

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import IO, Any, cast

import yaml

from benchmarks import report
from benchmarks.mix_cases import LARGE, SMALL, Ask
from benchmarks.open_loop import Plan
from benchmarks.servers import ROOT, Failed, Server, check_port, running

CONFIGURATION = Path(__file__).parent / "mix.yaml"
ALONE = "(alone)"
STARTS_WITHIN_S = 1.0
TELLS_WITHIN_S = 60.0
MAY_BE_MS = 5.0
MAY_BE_TIMES = 2.0
EPILOG = """
examples:
  python -m benchmarks.mix
  python -m benchmarks.mix --large "v2 json" "grpc raw 6 MB" --rounds 5
  python -m benchmarks.mix --small tf_serving --large "tf_serving json"
  python -m benchmarks.mix --stalls                  # large requests one at a time, and the loop's meter alone
"""


@dataclass(frozen=True, slots=True)
class Turn:
    """What one turn showed: latencies of small requests and of large ones in milliseconds, and the loop's meter."""

    p50_ms: float
    p99_ms: float
    max_ms: float
    large_p50_ms: float
    stall_ms: float
    busy_ms: float
    stalls: float

    def facts(self) -> dict[str, float]:
        return asdict(self)


class Gateway:
    """The server under test, whose meter writes to `file`."""

    def __init__(self, server: Server, ports: Mapping[str, int], file: Path) -> None:
        self._server = server
        self._file = file
        self._ports = ports

    def port(self, ask: Ask) -> int:
        return self._ports[ask.transport]

    def stalls(self) -> dict[str, float]:
        """What the meter has seen since it was last asked."""
        self._file.unlink(missing_ok=True)
        os.kill(self._server.pid, signal.SIGUSR2)
        give_up = time.monotonic() + TELLS_WITHIN_S
        while not self._file.exists():
            if time.monotonic() > give_up:
                raise Failed(f"the loop has stood still for {TELLS_WITHIN_S:.0f} s")
            time.sleep(0.01)
        told: dict[str, float] = json.loads(self._file.read_text())
        return told


@contextmanager
def gateway(folder: Path) -> Iterator[Gateway]:
    """Started, on all cores."""
    listen = yaml.safe_load(CONFIGURATION.read_text())["listen"]
    ports = {name: int(listen[name][0]["bind"].rpartition(":")[2]) for name in ("http", "grpc")}
    check_port(ports["grpc"])
    file = folder / "stalls"
    command = [sys.executable, "-m", "benchmarks.watched", str(file), "serve", str(CONFIGURATION)]
    with running("gateway", command, ports["http"], os.sched_getaffinity(0)) as server:
        yield Gateway(server, ports, file)


class Sender:
    """Sends one kind of request at a fixed rate, from a process of its own."""

    def __init__(self, plan: Plan, ask: Ask, name: str) -> None:
        self._ask = ask
        self._name = name
        command = [sys.executable, "-m", "benchmarks.open_loop"]
        self._process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)  # noqa: S603
        self._say(json.dumps(asdict(plan)))

    def _say(self, line: str) -> None:
        into = cast("IO[str]", self._process.stdin)
        into.write(line + "\n")
        into.flush()

    def await_ready(self) -> None:
        cast("IO[str]", self._process.stdout).readline()

    def begin(self, when: float) -> None:
        self._say(str(when))

    def latencies(self) -> list[float]:
        """In milliseconds, once all are answered. Raises Failed for an answer that is not the right one."""
        output, _ = self._process.communicate()
        outcome = json.loads(output) if output else {"answers": {"nothing": 1}}
        wrong = {status: count for status, count in outcome["answers"].items() if status != self._ask.answer}
        if wrong:
            raise Failed(f"{self._name} was to be answered with {self._ask.answer}, and was with {wrong}")
        return sorted(outcome["latencies_ms"])


class Mix:
    """Runs turns. Messages are kept in files of `folder`."""

    def __init__(self, server: Gateway, folder: Path, options: argparse.Namespace) -> None:
        self._server = server
        self._folder = folder
        self._options = options

    def turn(self, small: str, large: str) -> Turn:
        options = self._options
        senders = [self._sender(small, SMALL[small], options.small_rate)]
        if large != ALONE:
            senders.append(self._sender(large, LARGE[large], options.large_rate))
        self._run(senders)
        latencies = [sender.latencies() for sender in senders]
        told = self._server.stalls()
        of_small, of_large = latencies[0], latencies[1] if len(latencies) > 1 else [0.0]
        p99 = of_small[int(len(of_small) * 0.99)]
        stalls = told["worst_ms"], told["busy_ms"], told["over_2_ms"]
        return Turn(median(of_small), p99, of_small[-1], median(of_large), *stalls)

    def alone(self, large: str) -> list[dict[str, float]]:
        """What the meter says of large requests one at a time, once per request."""
        told = []
        for number in range(self._options.rounds + 1):
            sender = self._sender(large, LARGE[large], 1.0, seconds=1.0)
            self._run([sender])
            (latency,) = sender.latencies()
            stalls = self._server.stalls()
            if number:  # the first one finds nothing warm
                told.append({"took_ms": latency, **stalls})
        return told

    def _run(self, senders: Sequence[Sender]) -> None:
        for sender in senders:
            sender.await_ready()
        self._server.stalls()
        begin = time.monotonic() + STARTS_WITHIN_S / 4
        for sender in senders:
            sender.begin(begin)

    def _sender(self, name: str, ask: Ask, rate: float, seconds: float | None = None) -> Sender:
        file = self._folder / f"{ask.transport}-{name}".replace(" ", "_")
        if not file.exists():
            file.write_bytes(ask.message())
        method = ask.target if ask.transport == "grpc" else ""
        plan = Plan(self._server.port(ask), str(file), rate, seconds or self._options.seconds, method)
        return Sender(plan, ask, name)


def middle(turns: Sequence[Turn]) -> Turn:
    """The median of each figure."""
    return Turn(*(median(column) for column in zip(*(turn.facts().values() for turn in turns), strict=True)))


HEAD = ("small", "large", "p50 ms", "p99 ms", "max ms", "/ alone", "large p50 ms", "stall ms", "busy ms", ">2 ms", "")


def table(results: Mapping[tuple[str, str], Sequence[Turn]]) -> str:
    lines: list[tuple[str, ...]] = [HEAD]
    for (small, large), turns in results.items():
        one, alone = middle(turns), results[small, ALONE]
        times = median(turn.p99_ms / other.p99_ms for turn, other in zip(turns, alone, strict=True))
        keeps = times <= MAY_BE_TIMES or one.p99_ms < MAY_BE_MS
        figures = (one.p50_ms, one.p99_ms, one.max_ms, times, one.large_p50_ms, one.stall_ms, one.busy_ms)
        lines.append((small, large, *(f"{each:.2f}" for each in figures), f"{one.stalls:.0f}", "" if keeps else "SLOW"))
    return _aligned(lines)


def _aligned(lines: Sequence[Sequence[str]]) -> str:
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(text.ljust(width) if at < 2 else text.rjust(width) for at, (text, width) in cells).rstrip()
        for cells in (enumerate(zip(line, widths, strict=True)) for line in lines)
    )


def compare(options: argparse.Namespace) -> dict[tuple[str, str], list[Turn]]:
    """Turns of every kind in each round, the small requests alone first."""
    kinds = [(small, large) for small in options.small for large in (ALONE, *options.large)]
    results: dict[tuple[str, str], list[Turn]] = {kind: [] for kind in kinds}
    with tempfile.TemporaryDirectory() as folder, gateway(Path(folder)) as server:
        mix = Mix(server, Path(folder), options)
        for small, large in kinds:  # does not count
            mix.turn(small, large)
        for number in range(options.rounds):
            for kind in kinds:
                results[kind].append(mix.turn(*kind))
            print(f"round {number + 1} of {options.rounds}", file=sys.stderr)
    return results


def stalls(options: argparse.Namespace) -> dict[str, list[dict[str, float]]]:
    with tempfile.TemporaryDirectory() as folder, gateway(Path(folder)) as server:
        mix = Mix(server, Path(folder), options)
        return {large: mix.alone(large) for large in options.large}


def stall_table(results: Mapping[str, Sequence[Mapping[str, float]]]) -> str:
    """The least of each figure: a machine that does other things adds to all, and takes away from none."""
    lines = [("large", "", "took ms", "stall ms", "busy ms", ">2 ms")]
    for large, told in results.items():
        figures = [min(one[key] for one in told) for key in ("took_ms", "worst_ms", "busy_ms", "over_2_ms")]
        lines.append((large, "", *(f"{each:.2f}" for each in figures)))
    return _aligned(lines)


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.mix",
        description=__doc__,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--small", nargs="+", choices=SMALL, default=["v2"], metavar="KIND", help=f"of {', '.join(SMALL)}; default: v2")
    add("--large", nargs="+", choices=LARGE, default=[*LARGE], metavar="KIND", help=f"default: {', '.join(LARGE)}")
    add("--rounds", type=int, default=3, help="turns of each kind, of which the median counts; default: 3")
    add("--seconds", type=float, default=4.0, help="length of one turn; default: 4")
    add("--small-rate", type=float, default=200.0, help="a second; default: 200")
    add("--large-rate", type=float, default=2.0, help="a second; default: 2")
    add("--stalls", action="store_true", help="large requests alone, one at a time: what the loop's meter says")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> None:
    options = parse(arguments)
    facts: Mapping[str, Any]
    try:
        if options.stalls:
            facts = one_by_one = stalls(options)
            print(stall_table(one_by_one))
        else:
            results = compare(options)
            facts = {f"{small} beside {large}": [t.facts() for t in turns] for (small, large), turns in results.items()}
            print(table(results))
    except Failed as failure:
        raise SystemExit(f"failed: {failure}") from None
    print(f"all rounds: {report.keep('mix', {'rounds': facts}, vars(options))}")


if __name__ == "__main__":
    main()
